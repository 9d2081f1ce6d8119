//! The rest of the Kubernetes wire: reviews, definitions, protobuf and YAML bodies, lists at revisions, what the server
//! tells of itself.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
#[path = "server_wire/bodies.rs"]
mod bodies;
#[path = "server_wire/reviews.rs"]
mod reviews;
#[path = "support/server_api.rs"]
mod server_api;

use std::sync::Arc;

use http::Method;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::wait::{Condition, await_condition, conditions};
use serde_json::{Value, json};
use server_api::*;
use wharfline::api::definitions;
use wharfline::server::{Identity, Pki, Server};

const SUBJECT: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn stranger() -> Identity {
    Identity { user: "somebody".to_owned(), groups: vec!["elsewhere".to_owned()], key: None }
}

async fn whole() -> Server {
    let mut kinds = definitions();
    kinds.push(gadget());
    let server = Server::new(store(), kinds, options());
    server.bootstrap().await.unwrap();
    server
}

// Definitions

#[tokio::test]
async fn definitions_are_there_for_every_kind_of_ours() {
    let server = whole().await;
    let list = get(&server, CRDS).await;
    let names: Vec<&str> = list
        .at("/items")
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    let mut wanted: Vec<String> =
        definitions().iter().map(|kind| format!("{}.{}", kind.plural, kind.group)).collect();
    wanted.push("gadgets.test.dev".to_owned());
    wanted.sort();
    assert_eq!(names, wanted);
    // Kubernetes' own type takes every one of them.
    for item in list.at("/items").as_array().unwrap() {
        let typed: CustomResourceDefinition = serde_json::from_value(item.clone()).unwrap();
        assert!(conditions::is_crd_established().matches_object(Some(&typed)), "{item}");
        assert_eq!(item["metadata"]["uid"].as_str().unwrap().len(), 36);
        assert_eq!(item["metadata"]["creationTimestamp"], "2024-05-01T10:00:00Z");
    }
    let again = get(&server, CRDS).await;
    assert_eq!(again.body, list.body);
    let client = server.client(Identity::admin());
    let all: kube::Api<CustomResourceDefinition> = kube::Api::all(client);
    let waiting = await_condition(all, "volumes.wharfline.dev", conditions::is_crd_established());
    tokio::time::timeout(std::time::Duration::from_secs(10), waiting).await.unwrap().unwrap();
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let with = With { accept: Some(table), ..With::default() };
    let table = ask(&server, Method::GET, &format!("{CRDS}/volumes.wharfline.dev"), None, with).await;
    assert_eq!(table.at("/rows/0/cells"), &json!(["volumes.wharfline.dev", "2024-05-01T10:00:00Z"]));
    assert_eq!(get(&server, &format!("{CRDS}/pods.none")).await.refusal(), (404, "NotFound"));
}

#[tokio::test]
async fn definitions_are_paged_selected_and_watched_like_objects() {
    let f = fixture().await;
    let first = get(&f.server, &format!("{CRDS}?limit=1")).await;
    assert_eq!(first.at("/items/0/metadata/name"), "gadgets.test.dev");
    assert_eq!(first.at("/metadata/remainingItemCount"), 1);
    let token = first.at("/metadata/continue").as_str().unwrap();
    post(&f.server, GADGETS, a_gadget("a")).await;
    let second = get(&f.server, &format!("{CRDS}?limit=1&continue={token}")).await;
    assert_eq!(second.at("/items/0/metadata/name"), "helds.test.dev");
    assert_eq!((second.version(), second.at("/metadata/continue")), (first.version(), &Value::Null));
    let named = get(&f.server, &format!("{CRDS}?fieldSelector=metadata.name%3Dhelds.test.dev")).await;
    assert_eq!(named.at("/items").as_array().unwrap().len(), 1);
    assert_eq!(get(&f.server, &format!("{CRDS}?resourceVersion=99999")).await.refusal(), (504, "Timeout"));

    let mut lines = watch(&f.server, CRDS).await;
    assert_eq!(lines.told().await, "ADDED gadgets.test.dev");
    assert_eq!(lines.told().await, "ADDED helds.test.dev");
    let streamed = format!(
        "{CRDS}?sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true\
         &fieldSelector=metadata.name%3Dhelds.test.dev"
    );
    let mut lines = watch(&f.server, &streamed).await;
    assert_eq!(lines.told().await, "ADDED helds.test.dev");
    let end = lines.next().await.unwrap();
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    // It stays open, and says so; what others write does not concern it.
    let mut lines =
        watch(&f.server, &format!("{CRDS}?allowWatchBookmarks=true&resourceVersion={}", first.version()))
            .await;
    let made = post(&f.server, GADGETS, a_gadget("b")).await;
    loop {
        let line = lines.next().await.unwrap();
        assert_eq!(line["type"], "BOOKMARK");
        if line["object"]["metadata"]["resourceVersion"] == made.at("/metadata/resourceVersion").clone() {
            break;
        }
    }
    // A build that served other kinds may have given this version out.
    let later = f.restarted();
    get(&later, CRDS).await;
    let mut lines = watch(&later, &format!("{CRDS}?resourceVersion={}", first.version())).await;
    let line = lines.next().await.unwrap();
    assert_eq!((&line["type"], &line["object"]["code"]), (&json!("ERROR"), &json!(410)));
}

#[tokio::test]
async fn definitions_cannot_be_written() {
    let f = fixture().await;
    let before = f.writes().await;
    let one = format!("{CRDS}/gadgets.test.dev");
    for (method, path) in [
        (Method::POST, CRDS),
        (Method::PUT, &one),
        (Method::PATCH, &one),
        (Method::DELETE, &one),
        (Method::DELETE, CRDS),
    ] {
        let refused = ask(&f.server, method.clone(), path, Some(json!({})), With::default()).await;
        assert_eq!(refused.refusal(), (405, "MethodNotAllowed"), "{method}");
        assert!(refused.message().contains("read-only"), "{}", refused.message());
    }
    assert_eq!(f.writes().await, before);
    let who = With { identity: Some(stranger()), ..With::default() };
    assert_eq!(ask(&f.server, Method::GET, CRDS, None, who).await.code, 403);
}

// Lists

#[tokio::test]
async fn versions_and_their_matching_follow_the_table_of_kubernetes() {
    let f = fixture().await;
    let old = post(&f.server, GADGETS, a_gadget("a")).await.version();
    let now = post(&f.server, GADGETS, a_gadget("b")).await.version();
    let token = get(&f.server, &format!("{GADGETS}?limit=1")).await;
    let token = token.at("/metadata/continue").as_str().unwrap().to_owned();
    let count = async |query: &str| {
        let answer = get(&f.server, &format!("{GADGETS}?{query}")).await;
        if answer.code == 200 {
            Ok((answer.at("/items").as_array().unwrap().len(), answer.version()))
        } else {
            Err((answer.code, answer.at("/reason").as_str().unwrap().to_owned()))
        }
    };
    let invalid = || Err((422, "Invalid".to_owned()));
    let future = || Err((504, "Timeout".to_owned()));
    for (query, wanted) in [
        (String::new(), Ok((2, now))),
        ("resourceVersion=0".to_owned(), Ok((2, now))),
        (format!("resourceVersion={old}"), Ok((2, now))),
        (format!("resourceVersion={old}&limit=5"), Ok((1, old))),
        (format!("resourceVersion={old}&resourceVersionMatch=NotOlderThan"), Ok((2, now))),
        (format!("resourceVersion={old}&limit=5&resourceVersionMatch=NotOlderThan"), Ok((2, now))),
        (format!("resourceVersion={old}&resourceVersionMatch=Exact"), Ok((1, old))),
        ("resourceVersion=0&resourceVersionMatch=NotOlderThan".to_owned(), Ok((2, now))),
        (format!("continue={token}"), Ok((1, now))),
        (format!("continue={token}&resourceVersion=0"), Ok((1, now))),
        (format!("resourceVersion={}", now + 9), future()),
        (format!("resourceVersion={}&resourceVersionMatch=Exact", now + 9), future()),
        (format!("resourceVersion={}&resourceVersionMatch=NotOlderThan", now + 9), future()),
        ("resourceVersion=0&resourceVersionMatch=Exact".to_owned(), invalid()),
        ("resourceVersionMatch=Exact".to_owned(), invalid()),
        ("resourceVersionMatch=NotOlderThan".to_owned(), invalid()),
        (format!("resourceVersion={old}&resourceVersionMatch=Older"), invalid()),
        (format!("continue={token}&resourceVersionMatch=Exact"), invalid()),
        (format!("continue={token}&resourceVersion=0&resourceVersionMatch=NotOlderThan"), invalid()),
        ("sendInitialEvents=true".to_owned(), invalid()),
        (format!("continue={token}&resourceVersion={old}"), Err((400, "BadRequest".to_owned()))),
        ("resourceVersion=x".to_owned(), Err((400, "BadRequest".to_owned()))),
        ("limit=-1".to_owned(), Err((400, "BadRequest".to_owned()))),
        ("continue=bm9uc2Vuc2U".to_owned(), Err((400, "BadRequest".to_owned()))),
    ] {
        assert_eq!(count(&query).await, wanted, "{query}");
    }
    let beyond = get(&f.server, &format!("{GADGETS}?resourceVersion=99999")).await;
    assert_eq!(beyond.at("/details/causes/0/reason"), "ResourceVersionTooLarge");
    assert_eq!(
        (beyond.at("/details/retryAfterSeconds"), &beyond.headers["retry-after"]),
        (&json!(1), &http::HeaderValue::from(1))
    );
}

#[tokio::test]
async fn what_remains_is_counted_where_nothing_selects() {
    let f = fixture().await;
    for number in 0..7 {
        post(&f.server, GADGETS, a_gadget(&format!("g{number}"))).await;
    }
    let page = async |query: &str| get(&f.server, &format!("{GADGETS}?limit=3{query}")).await;
    let first = page("").await;
    assert_eq!(first.at("/metadata/remainingItemCount"), 4);
    post(&f.server, GADGETS, a_gadget("later")).await;
    let token = first.at("/metadata/continue").as_str().unwrap();
    let second = page(&format!("&continue={token}")).await;
    assert_eq!(second.at("/metadata/remainingItemCount"), 1, "as of the first page");
    let token = second.at("/metadata/continue").as_str().unwrap();
    let last = page(&format!("&continue={token}")).await;
    assert!(last.at("/metadata/remainingItemCount").is_null());
    for selector in ["labelSelector=%21none", "fieldSelector=metadata.namespace%3Ddefault"] {
        let selected = page(&format!("&{selector}")).await;
        assert!(selected.at("/metadata/continue").is_string(), "{selector}");
        assert!(selected.at("/metadata/remainingItemCount").is_null(), "{selector}");
    }
}

#[tokio::test]
async fn unknown_fields_of_selectors_are_refused_with_the_known_ones() {
    let server = whole().await;
    for (path, field, known) in [
        (GADGETS, "spec.size", "metadata.name, metadata.namespace, spec.nodeName, status.phase"),
        ("/api/v1/nodes", "spec.podCIDR", "spec.unschedulable"),
        ("/api/v1/secrets", "data", "type"),
        ("/api/v1/namespaces", "spec", "status.phase"),
        ("/api/v1/events", "message", "involvedObject.uid"),
        (CRDS, "spec.group", "metadata.name, metadata.namespace"),
    ] {
        for watch in ["", "&watch=true"] {
            let refused = get(&server, &format!("{path}?fieldSelector={field}%3Dx{watch}")).await;
            assert_eq!(refused.refusal(), (400, "BadRequest"), "{path}");
            let said = refused.message();
            assert!(
                said.contains(&format!("field label not supported: {field}")) && said.contains(known),
                "{said}"
            );
        }
    }
}

// Patches

#[tokio::test]
async fn strategic_patches_merge_what_kubernetes_merges() {
    let server = whole().await;
    let node = json!({ "metadata": { "name": "n" }, "spec": { "taints": [
        { "key": "a", "effect": "NoSchedule" }, { "key": "a", "effect": "NoExecute" }
    ] } });
    post(&server, "/api/v1/nodes", node).await;
    let strategic = async |path: &str, body: Value| {
        patch(&server, path, body, "application/strategic-merge-patch+json").await
    };
    let taints = json!([{ "key": "b", "effect": "NoSchedule" }]);
    let done = strategic("/api/v1/nodes/n", json!({ "spec": { "taints": taints } })).await;
    assert_eq!(done.at("/spec/taints"), &taints, "taints are replaced");
    let status = "/api/v1/nodes/n/status";
    strategic(
        status,
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "Up" }] } }),
    )
    .await;
    let done = strategic(
        status,
        json!({ "status": { "conditions": [
        { "type": "Ready", "status": "False" }, { "type": "Full", "status": "True" }
    ] } }),
    )
    .await;
    let wanted =
        json!([{ "type": "Ready", "status": "False", "reason": "Up" }, { "type": "Full", "status": "True" }]);
    assert_eq!(done.at("/status/conditions"), &wanted);
    let refused = strategic("/api/v1/nodes/n", json!({ "spec": { "$patch": "shred" } })).await;
    assert_eq!(refused.refusal(), (400, "BadRequest"));
    assert_eq!(strategic("/apis/wharfline.dev/v1alpha1/volumeclasses/dir", json!({})).await.code, 415);
}

// What the server tells of itself

#[tokio::test]
async fn the_authority_is_told_to_whoever_is_known() {
    let f = fixture().await;
    assert_eq!(get(&f.server, "/cacerts").await.code, 404, "this server signs nothing");
    let keys = tempfile::tempdir().unwrap();
    let pki = Pki::load_or_create(keys.path(), jiff::Timestamp::now(), &|bytes| bytes.fill(5)).unwrap();
    let pem = pki.ca_pem().to_owned();
    let mut with_keys = options();
    with_keys.signer = Some(Arc::new(pki));
    let server = Server::new(store(), vec![], with_keys);
    let anonymous = http::Request::get("/cacerts").body(axum::body::Body::empty()).unwrap();
    let answer = tower::ServiceExt::oneshot(server.router(), anonymous).await.unwrap();
    assert_eq!(answer.status(), 401, "the contract names what strangers may ask");
    let viewer =
        Identity { user: "v".into(), groups: vec!["wharfline:viewers".into()], key: Some("k".into()) };
    let (code, told) = text(&server, "/cacerts", viewer).await;
    assert_eq!((code, told.as_str()), (200, pem.as_str()));
    assert!(pem.starts_with("-----BEGIN CERTIFICATE-----") && !pem.contains("PRIVATE"));
    assert_eq!(post(&server, "/cacerts", json!({})).await.code, 405);
}

async fn text(server: &Server, path: &str, identity: Identity) -> (u16, String) {
    let with = With { identity: Some(identity), ..With::default() };
    let response = send(server, Method::GET, path, None, with).await;
    let code = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (code, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn requests_are_counted_for_administrators() {
    let f = fixture().await;
    post(&f.server, GADGETS, a_gadget("a")).await;
    post(&f.server, GADGETS, a_gadget("a")).await;
    merge(&f.server, &format!("{GADGETS}/a/status"), json!({ "status": { "phase": "Up" } })).await;
    let open = watch(&f.server, GADGETS).await;
    let (code, said) = text(&f.server, "/metrics", Identity::admin()).await;
    assert_eq!(code, 200);
    let of = |verb: &str, part: &str, code: u16| {
        format!(
            "_count{{verb=\"{verb}\",group=\"test.dev\",resource=\"gadgets\",subresource=\"{part}\",code=\"{code}\"}} 1"
        )
    };
    let revision = format!("wharfline_store_revision {}", f.writes().await);
    for line in [
        of("create", "", 201),
        of("create", "", 409),
        of("patch", "status", 200),
        of("watch", "", 200),
        "wharfline_watches 1".to_owned(),
        revision,
        "wharfline_store_followed 1".to_owned(),
    ] {
        assert!(said.contains(&line), "{line} is not in\n{said}");
    }
    drop(open);
    let (_, said) = text(&f.server, "/metrics", Identity::admin()).await;
    assert!(said.contains("wharfline_watches 0"), "{said}");
    for other in [Identity::node("n1"), stranger()] {
        assert_eq!(text(&f.server, "/metrics", other).await.0, 403);
    }
}

#[tokio::test]
async fn health_says_which_check_failed() {
    let f = fixture().await;
    watch(&f.server, GADGETS).await;
    for (path, wanted) in [
        ("/healthz", "ok".to_owned()),
        ("/livez?verbose", "[+]ping ok\nlivez check passed\n".to_owned()),
        ("/readyz?verbose=true", "[+]ping ok\n[+]store-followed ok\nreadyz check passed\n".to_owned()),
    ] {
        assert_eq!(text(&f.server, path, stranger()).await, (200, wanted), "{path}");
    }
    // A server that was never let run follows nothing yet.
    let server = Server::new(store(), vec![], options());
    let (code, said) = text(&server, "/readyz?verbose", stranger()).await;
    assert_eq!((code, said.contains("[-]store-followed failed\nreadyz check failed")), (503, true), "{said}");
    assert_eq!(text(&server, "/readyz", stranger()).await.0, 503);
    assert_eq!(text(&server, "/livez", stranger()).await.0, 200);
}

// Explanations

/// Every field of a schema without a description.
fn silent(schema: &Value, path: &str, found: &mut Vec<String>) {
    if schema["description"].as_str().is_none_or(|words| words.trim().len() < 5) {
        found.push(path.to_owned());
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        silent(property, &format!("{path}.{name}"), found);
    }
    for (name, property) in schema["items"]["properties"].as_object().into_iter().flatten() {
        silent(property, &format!("{path}[].{name}"), found);
    }
    for (name, property) in schema["additionalProperties"]["properties"].as_object().into_iter().flatten() {
        silent(property, &format!("{path}.*.{name}"), found);
    }
}

#[tokio::test]
async fn every_field_of_every_kind_is_explained() {
    let server = Server::new(store(), definitions(), options());
    let index = get(&server, "/openapi/v3").await;
    let (mut found, mut kinds) = (Vec::new(), 0);
    for entry in index.at("/paths").as_object().unwrap().values() {
        let document = get(&server, entry["serverRelativeURL"].as_str().unwrap()).await;
        for (name, schema) in document.at("/components/schemas").as_object().unwrap() {
            let kind = &schema["x-kubernetes-group-version-kind"][0]["kind"];
            if !kind.as_str().unwrap().ends_with("List") {
                kinds += 1;
                silent(schema, name, &mut found);
            }
        }
    }
    assert_eq!(kinds, 22);
    assert!(found.is_empty(), "{} fields without a word:\n{}", found.len(), found.join("\n"));
}
