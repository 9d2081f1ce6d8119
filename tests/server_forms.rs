//! The forms of answers: tables, metadata, discovery, OpenAPI; limits of requests; what lies sealed on the disk.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
mod support {
    pub(crate) mod server_api;
}

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use support::server_api::*;
use wharfline::api::definitions;
use wharfline::server::{BootstrapError, SealingKey, Server};
use wharfline::store::embedded::{EmbeddedStore, Options};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

async fn get_as(server: &Server, path: &str, accept: &'static str) -> Answer {
    ask(server, Method::GET, path, None, With { accept: Some(accept), ..With::default() }).await
}

#[tokio::test]
async fn tables_have_the_columns_of_the_kind() {
    let f = fixture().await;
    let mut body = a_gadget("a");
    body["spec"]["modes"] = json!(["RWO", "ROX"]);
    post(&f.server, GADGETS, body).await;
    let table = get_as(&f.server, GADGETS, TABLE).await;
    assert_eq!(table.at("/kind"), "Table");
    let columns = table.at("/columnDefinitions").as_array().unwrap();
    let heads: Vec<(&str, u64)> = columns
        .iter()
        .map(|column| (column["name"].as_str().unwrap(), column["priority"].as_u64().unwrap()))
        .collect();
    assert_eq!(heads, [("Name", 0), ("NODE", 0), ("MODES", 1), ("READY", 0), ("Age", 0)]);
    assert_eq!(table.at("/rows/0/cells"), &json!(["a", null, "RWO,ROX", "Waiting", "0s"]));
    assert_eq!(table.at("/rows/0/object/kind"), "PartialObjectMetadata");
    assert!(table.at("/rows/0/object/spec").is_null());
    let whole = get_as(&f.server, &format!("{GADGETS}?includeObject=Object"), TABLE).await;
    assert_eq!(whole.at("/rows/0/object/spec/plugin"), "dir");
    let none = get_as(&f.server, &format!("{GADGETS}?includeObject=None"), TABLE).await;
    assert!(none.at("/rows/0/object").is_null());
    let single = get_as(&f.server, &format!("{GADGETS}/a"), TABLE).await;
    assert_eq!(single.at("/rows/0/cells/0"), "a");
    let metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let bare = get_as(&f.server, GADGETS, metadata).await;
    assert_eq!(
        (bare.at("/kind"), bare.at("/items/0/spec")),
        (&json!("PartialObjectMetadataList"), &Value::Null)
    );
    assert_eq!(get_as(&f.server, GADGETS, "application/yaml").await.code, 406);
}

#[tokio::test]
async fn every_column_of_every_kind_can_be_computed_from_nothing() {
    let server = Server::new(store(), definitions(), options());
    server.bootstrap().await.unwrap();
    for kind in definitions() {
        let place = if kind.namespaced { "namespaces/default/" } else { "" };
        let path = format!("/apis/{}/{}/{place}{}", kind.group, kind.version, kind.plural);
        let table = get_as(&server, &path, TABLE).await;
        assert_eq!(table.code, 200, "{path}");
        assert_eq!(table.at("/columnDefinitions").as_array().unwrap().len(), kind.columns.len() + 2);
        for column in kind.columns {
            if let wharfline::api::Cell::Computed(_, compute) = column.cell {
                compute(&json!({}));
            }
        }
    }
}

/// Every discovery document of a server with our kinds, by what is asked for.
async fn discovered() -> Value {
    let server = Server::new(store(), definitions(), options());
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let mut found = serde_json::Map::new();
    for path in ["/api", "/apis"] {
        let answer = get_as(&server, path, aggregated).await;
        assert_eq!(answer.headers["content-type"], aggregated.split(',').next().unwrap());
        found.insert(format!("{path} aggregated"), answer.body);
    }
    let groups = get(&server, "/apis").await.body;
    let mut paths = vec!["/api".to_owned(), "/apis".to_owned(), "/api/v1".to_owned()];
    for group in groups["groups"].as_array().unwrap() {
        paths.push(format!("/apis/{}", group["name"].as_str().unwrap()));
        for version in group["versions"].as_array().unwrap() {
            paths.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        }
    }
    for path in paths {
        let answer = get(&server, &path).await;
        assert_eq!(answer.code, 200, "{path}");
        found.insert(path, answer.body);
    }
    Value::Object(found)
}

/// What is served is a promise: whoever changes it changes this file, and a reviewer sees it.
#[tokio::test]
async fn discovery_is_what_the_golden_file_says() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/discovery.json");
    let seen = discovered().await;
    if std::env::var_os("UPDATE_DISCOVERY").is_some() {
        std::fs::write(&path, format!("{}\n", serde_json::to_string_pretty(&seen).unwrap())).unwrap();
    }
    let wanted: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let again = "meant so? UPDATE_DISCOVERY=1 cargo test --test server_forms";
    assert_eq!(names(&seen), names(&wanted), "{again}");
    for (name, document) in seen.as_object().unwrap() {
        assert_eq!(document, &wanted[name], "{name}; {again}");
    }
}

#[tokio::test]
async fn nothing_else_is_served() {
    let server = Server::new(store(), definitions(), options());
    for missing in [
        "/apis/apps",
        "/apis/apps/v1",
        "/api/v2",
        "/api/v1/namespaces/default/pods",
        "/api/v1/namespaces/default/services",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        "/openapi/v2",
    ] {
        assert_eq!(get(&server, missing).await.refusal(), (404, "NotFound"), "{missing}");
    }
    assert_eq!(delete(&server, "/apis", None).await.code, 405);
}

#[tokio::test]
async fn kube_clients_discover_us_in_both_ways() {
    let f = fixture().await;
    let client = f.server.client(wharfline::server::Identity::admin());
    let plain = kube::discovery::Discovery::new(client.clone()).run().await.unwrap();
    let aggregated = kube::discovery::Discovery::new(client).run_aggregated().await.unwrap();
    for found in [plain, aggregated] {
        let group = found.groups().find(|group| group.name() == "test.dev").unwrap();
        let (resource, capabilities) = group.recommended_kind("Gadget").unwrap();
        assert_eq!(resource.plural, "gadgets");
        assert!(capabilities.supports_operation("watch"));
        assert_eq!(capabilities.subresources.len(), 1);
    }
}

#[tokio::test]
async fn openapi_documents_carry_kinds_operations_and_a_tag() {
    let f = fixture().await;
    let index = get(&f.server, "/openapi/v3").await;
    let url = index.at("/paths/apis~1test.dev~1v1/serverRelativeURL").as_str().unwrap();
    let document = get(&f.server, url).await;
    let schema = document.at("/components/schemas/dev.test.v1.Gadget");
    let kind = json!([{ "group": "test.dev", "version": "v1", "kind": "Gadget" }]);
    assert_eq!(schema["x-kubernetes-group-version-kind"], kind);
    assert_eq!(schema["properties"]["metadata"]["properties"]["name"]["type"], "string");
    let path = "/paths/~1apis~1test.dev~1v1~1namespaces~1{namespace}~1gadgets~1{name}/patch";
    let patch = document.at(path);
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Gadget");
    assert!(patch["parameters"].as_array().unwrap().iter().any(|p| p["name"] == "fieldValidation"));
    let tag = document.headers["etag"].to_str().unwrap().to_owned();
    let request = http::Request::get("/openapi/v3/apis/test.dev/v1")
        .header("if-none-match", tag)
        .extension(wharfline::server::Identity::admin())
        .body(axum::body::Body::empty())
        .unwrap();
    let again = tower::ServiceExt::oneshot(f.server.router(), request).await.unwrap();
    assert_eq!(again.status(), 304);
    assert_eq!(get(&f.server, "/openapi/v3/apis/none/v1").await.code, 404);
}

#[tokio::test]
async fn bodies_are_bounded_in_size_depth_and_type() {
    let f = fixture().await;
    let before = f.writes().await;
    let raw = async |bytes: Vec<u8>, kind: Option<&'static str>| {
        let with = With { content_type: kind, ..With::default() };
        read(send(&f.server, Method::POST, GADGETS, Some(bytes), with).await).await
    };
    let large = raw(vec![b' '; (1 << 20) + 1], None).await;
    assert_eq!(large.refusal(), (413, "RequestEntityTooLarge"));
    let deep = format!("{}1{}", "{\"a\":".repeat(65), "}".repeat(65));
    assert!(raw(deep.into_bytes(), None).await.message().contains("nested"));
    for broken in ["", "{", "[]", "\"x\"", "null", "{} {}"] {
        assert_eq!(raw(broken.into(), None).await.refusal(), (400, "BadRequest"), "{broken:?}");
    }
    assert_eq!(raw(b"a: b".to_vec(), Some("application/cbor")).await.code, 415);
    assert_eq!(raw(vec![0], Some("application/vnd.kubernetes.protobuf")).await.code, 400);
    let get_with = get(&f.server, &format!("{GADGETS}?limit=x")).await;
    assert_eq!(get_with.refusal(), (400, "BadRequest"));
    assert_eq!(ask(&f.server, Method::PUT, GADGETS, Some(json!({})), With::default()).await.code, 405);
    assert_eq!(f.writes().await, before);
    // Just below the limit, with the server's own fields added: refused by the store, not half written.
    let mut body = a_gadget("big");
    body["spec"]["parameters"] = json!({ "a": "x".repeat((1 << 20) - 200) });
    assert_eq!(post(&f.server, GADGETS, body).await.refusal(), (413, "RequestEntityTooLarge"));
}

#[tokio::test]
async fn secrets_are_folded_sealed_and_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let open = || Arc::new(EmbeddedStore::open(&path, Options::default()).unwrap());
    let server = Server::new(open(), vec![], options());
    server.bootstrap().await.unwrap();
    let body = json!({
        "metadata": {
            "name": "s",
            "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "canary-annotation" },
            "labels": { "canary-label": "x" }
        },
        "stringData": { "password": "canary-plain" },
        "data": { "old": "Y2FuYXJ5LWRhdGE=" }
    });
    let made = post(&server, SECRETS, body).await;
    assert_eq!(made.at("/data"), &json!({ "password": "Y2FuYXJ5LXBsYWlu", "old": "Y2FuYXJ5LWRhdGE=" }));
    assert!(made.at("/stringData").is_null());
    assert_eq!(made.at("/type"), "Opaque");
    // What is not text is refused, not kept as nothing.
    let odd = merge(&server, &format!("{SECRETS}/s"), json!({ "stringData": { "port": 5432 } })).await;
    assert_eq!(odd.code, 422, "{}", odd.message());
    assert!(odd.message().contains("stringData"), "{}", odd.message());
    merge(&server, &format!("{SECRETS}/s"), json!({ "stringData": { "password": "canary-second" } })).await;
    let lines = watch(&server, &format!("{SECRETS}?resourceVersion={}", made.version())).await.next().await;
    assert_eq!(lines.unwrap()["object"]["data"]["password"], "Y2FuYXJ5LXNlY29uZA==");
    let selected =
        get(&server, &format!("{SECRETS}?labelSelector=canary-label&fieldSelector=type%3DOpaque")).await;
    assert_eq!(selected.at("/items").as_array().unwrap().len(), 1);
    let table = get_as(&server, SECRETS, TABLE).await;
    assert_eq!(table.at("/rows/0/cells"), &json!(["s", "Opaque", 2, "0s"]));
    server.shutdown().await;
    drop(server);
    let bytes = std::fs::read(&path).unwrap();
    for canary in ["canary", "Y2FuYXJ5", "last-applied", "password"] {
        let found = bytes.windows(canary.len()).any(|window| window == canary.as_bytes());
        assert!(!found, "{canary} lies open in the store");
    }
    let server = Server::new(open(), vec![], options());
    server.bootstrap().await.unwrap();
    let read = get(&server, &format!("{SECRETS}/s")).await;
    assert_eq!(read.at("/data/password"), "Y2FuYXJ5LXNlY29uZA==");
}

/// Obligation CO-GEN-21.
#[tokio::test]
async fn a_key_of_a_secret_is_one_that_csi_takes() {
    let f = fixture().await;
    let of = |name: &str, key: &str| json!({ "metadata": { "name": name }, "stringData": { key: "v" } });
    for (n, bad) in ["", "a b", "a/b", "naïve", "a:b", &"k".repeat(254)].into_iter().enumerate() {
        let refused = post(&f.server, SECRETS, of(&format!("bad-{n}"), bad)).await;
        assert_eq!(refused.refusal(), (422, "Invalid"), "{bad}");
        assert!(refused.message().contains(&format!("data.{bad}")), "{}", refused.message());
    }
    for (n, good) in ["userKey", "tls.crt", "_a-B.9", &"k".repeat(253)].into_iter().enumerate() {
        assert_eq!(post(&f.server, SECRETS, of(&format!("good-{n}"), good)).await.code, 201, "{good}");
    }
}

#[tokio::test]
async fn a_store_sealed_by_other_keys_is_refused() {
    let f = fixture().await;
    post(&f.server, SECRETS, json!({ "metadata": { "name": "s" } })).await;
    let mut others = options();
    others.sealing = SealingKey::new(&[1; 32]);
    let shared: Arc<EmbeddedStore> = Arc::clone(&f.store);
    let stranger = Server::new(shared, vec![], others);
    assert!(matches!(stranger.bootstrap().await, Err(BootstrapError::OtherSealingKey { .. })));
    let read = get(&stranger, &format!("{SECRETS}/s")).await;
    assert_eq!(read.refusal(), (500, "InternalError"), "and opens nothing");
}

#[tokio::test]
async fn refusals_never_quote_a_secret() {
    let f = fixture().await;
    for data in [json!({ "data": { "a": "canary!" } }), json!({ "data": { "a": 4711 } })] {
        let mut body = data;
        body["metadata"] = json!({ "name": "s" });
        let refused = post(&f.server, SECRETS, body).await;
        assert_eq!(refused.refusal(), (422, "Invalid"));
        assert_eq!(refused.at("/details/causes/0/field"), "data.a");
        let said = refused.body.to_string();
        assert!(!said.contains("canary") && !said.contains("4711"), "{said}");
    }
    let kept = json!({ "metadata": { "name": "k" }, "immutable": true, "data": { "a": "YQ==" } });
    post(&f.server, SECRETS, kept).await;
    let changed = merge(&f.server, &format!("{SECRETS}/k"), json!({ "data": { "a": "Yg==" } })).await;
    assert_eq!(changed.refusal(), (422, "Invalid"));
}

#[tokio::test]
async fn health_and_version_are_told() {
    let f = fixture().await;
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(get(&f.server, path).await.code, 200);
    }
    let version = get(&f.server, "/version").await;
    assert!(version.at("/gitVersion").as_str().unwrap().starts_with("v1.32."));
}

#[tokio::test]
async fn a_panic_is_one_failed_request() {
    let mut kind = gadget();
    kind.validate = |_, _| panic!("a defect of the kind");
    let server = Server::new(store(), vec![kind], options());
    server.bootstrap().await.unwrap();
    assert_eq!(post(&server, GADGETS, a_gadget("a")).await.refusal(), (500, "InternalError"));
    assert_eq!(get(&server, GADGETS).await.code, 200);
}
