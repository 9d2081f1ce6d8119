//! Server-side apply on the wire: codes and words, conflicts, creation, dry runs, racing writers, kube-rs.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
mod support {
    pub(crate) mod server_api;
}

use std::sync::Arc;

use http::Method;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use support::server_api::*;
use wharfline::api::{VolumeClass, definitions};
use wharfline::server::{Identity, Server};
use wharfline::store::Store;

const APPLY: &str = "application/apply-patch+yaml";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn one(name: &str) -> String {
    format!("{GADGETS}/{name}")
}

/// A gadget of which only this is said.
fn gadget_of(spec: Value) -> Value {
    json!({ "apiVersion": "test.dev/v1", "kind": "Gadget", "metadata": { "name": "a" }, "spec": spec })
}

async fn apply(server: &Server, path: &str, manager: &str, body: Value) -> Answer {
    let joint = if path.contains('?') { '&' } else { '?' };
    patch(server, &format!("{path}{joint}fieldManager={manager}"), body, APPLY).await
}

/// `OPERATION MANAGER [SUBRESOURCE]` and what they have.
fn owners(answer: &Answer) -> Value {
    let entries = answer.at("/metadata/managedFields").as_array().into_iter().flatten();
    let name = |entry: &Value| {
        let words =
            ["operation", "manager", "subresource"].map(|field| entry[field].as_str().unwrap_or_default());
        words.join(" ").trim().to_owned()
    };
    Value::Object(entries.map(|entry| (name(entry), entry["fieldsV1"].clone())).collect())
}

#[tokio::test]
async fn what_is_not_there_is_made_and_what_is_there_is_merged() {
    let f = fixture().await;
    let config = gadget_of(json!({ "plugin": "dir", "parameters": { "a": "1" } }));
    let made = apply(&f.server, &one("a"), "m", config.clone()).await;
    assert_eq!(made.code, 201, "{:?}", made.body);
    assert_eq!(made.at("/spec/size"), 1, "defaults are filled in");
    assert_eq!(made.at("/metadata/generation"), 1);
    let fields = json!({ "f:spec": { "f:plugin": {}, "f:parameters": { "f:a": {} } } });
    assert_eq!(owners(&made), json!({ "Apply m": fields }));
    let entry = made.at("/metadata/managedFields/0");
    assert_eq!(entry["time"], "2024-05-01T10:00:00Z");
    assert_eq!((&entry["apiVersion"], &entry["fieldsType"]), (&json!("test.dev/v1"), &json!("FieldsV1")));
    let before = f.writes().await;
    let again = apply(&f.server, &one("a"), "m", config).await;
    assert_eq!((again.code, &again.body), (200, &made.body));
    assert_eq!(f.writes().await, before, "nothing changes, nothing is written");
    let other = gadget_of(json!({ "parameters": { "b": "2" }, "size": 3 }));
    let merged = apply(&f.server, &one("a"), "n", other).await;
    assert_eq!(merged.at("/spec/parameters"), &json!({ "a": "1", "b": "2" }));
    assert_eq!(merged.at("/metadata/generation"), 2);
    let less = apply(&f.server, &one("a"), "n", gadget_of(json!({}))).await;
    assert_eq!(less.at("/spec"), made.at("/spec"), "what it no longer wants is gone");
    assert_eq!(get(&f.server, &one("a")).await.body, less.body);
}

#[tokio::test]
async fn a_conflict_is_told_and_can_be_forced() {
    let f = fixture().await;
    post(
        &f.server,
        &format!("{GADGETS}?fieldManager=kubectl-create"),
        gadget_of(json!({ "plugin": "dir", "size": 2 })),
    )
    .await;
    let before = f.writes().await;
    let wanted = gadget_of(json!({ "size": 3 }));
    let refused = apply(&f.server, &one("a"), "m", wanted.clone()).await;
    assert_eq!(refused.refusal(), (409, "Conflict"));
    assert_eq!(
        refused.message(),
        "Apply failed with 1 conflict: conflict with \"kubectl-create\" using test.dev/v1: .spec.size"
    );
    let cause = json!([{
        "reason": "FieldManagerConflict", "field": ".spec.size",
        "message": "conflict with \"kubectl-create\" using test.dev/v1"
    }]);
    assert_eq!(refused.at("/details/causes"), &cause);
    let not_forced = apply(&f.server, &format!("{}?force=false", one("a")), "m", wanted.clone()).await;
    assert_eq!(not_forced.code, 409);
    assert_eq!(f.writes().await, before);
    let forced = apply(&f.server, &format!("{}?force=true", one("a")), "m", wanted).await;
    assert_eq!((forced.code, forced.at("/spec/size")), (200, &json!(3)));
    assert!(owners(&forced)["Update kubectl-create"]["f:spec"].get("f:size").is_none());
}

#[tokio::test]
async fn what_is_malformed_is_refused_before_anything_is_read() {
    let f = fixture().await;
    apply(&f.server, &one("a"), "m", gadget_of(json!({ "plugin": "dir" }))).await;
    let before = f.writes().await;
    let nobody = patch(&f.server, &one("a"), gadget_of(json!({})), APPLY).await;
    assert_eq!(nobody.refusal(), (422, "Invalid"));
    assert_eq!(
        nobody.message(),
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
    );
    let long = "x".repeat(129);
    assert_eq!(apply(&f.server, &one("a"), &long, gadget_of(json!({}))).await.code, 422);
    assert_eq!(apply(&f.server, &one("a"), "a%07", gadget_of(json!({}))).await.code, 422);
    let forced = merge(&f.server, &format!("{}?force=true", one("a")), json!({})).await;
    assert_eq!(forced.code, 422);
    assert!(forced.message().contains("force: Forbidden: may not be specified for non-apply patch"));
    let of = |pointer: &str, value: Value| {
        let mut config = gadget_of(json!({ "plugin": "dir" }));
        *config.pointer_mut(pointer).unwrap() = value;
        config
    };
    let mut managed = gadget_of(json!({}));
    managed["metadata"]["managedFields"] = json!([]);
    for (config, code, said) in [
        (managed, 400, "metadata.managedFields must be nil"),
        (
            of("/apiVersion", json!("test.dev/v2")),
            400,
            "Specified patch version: test.dev/v2, expected: test.dev/v1",
        ),
        (of("/kind", json!("Held")), 400, "expected: Gadget"),
        (of("/kind", Value::Null), 400, "expected: Gadget"),
        (of("/metadata/name", json!("b")), 400, "does not match the name"),
        (of("/metadata", json!("a")), 400, "metadata must be an object"),
        (of("/spec", json!("a")), 422, "spec: Invalid value"),
        (of("/spec/plugin", json!(7)), 422, "must be of type string"),
        (json!(["a"]), 400, "one object"),
    ] {
        let refused = apply(&f.server, &one("a"), "m", config.clone()).await;
        assert_eq!(refused.code, code, "{config}: {}", refused.message());
        assert!(refused.message().contains(said), "{config}: {}", refused.message());
    }
    let mut stale = gadget_of(json!({ "plugin": "dir", "size": 9 }));
    stale["metadata"]["resourceVersion"] = json!("1");
    assert_eq!(apply(&f.server, &one("a"), "m", stale).await.refusal(), (409, "Conflict"));
    let mut other = gadget_of(json!({ "plugin": "dir" }));
    other["metadata"] = json!({ "name": "b", "uid": "4711" });
    assert_eq!(apply(&f.server, &one("b"), "m", other).await.refusal(), (409, "Conflict"));
    let elsewhere = "/apis/test.dev/v1/namespaces/nowhere/gadgets/a";
    assert_eq!(apply(&f.server, elsewhere, "m", gadget_of(json!({ "plugin": "dir" }))).await.code, 404);
    assert_eq!(f.writes().await, before);
}

#[tokio::test]
async fn bodies_are_yaml_or_json_within_bounds() {
    let f = fixture().await;
    let raw = async |text: &str| {
        let with = With { content_type: Some(APPLY), ..With::default() };
        let path = format!("{}?fieldManager=m", one("a"));
        read(send(&f.server, Method::PATCH, &path, Some(text.as_bytes().to_vec()), with).await).await
    };
    let yaml = "# a comment\napiVersion: test.dev/v1\nkind: Gadget\nmetadata: {name: a}\nspec:\n  plugin: dir\n  size: 4\n";
    assert_eq!(raw(yaml).await.code, 201);
    let braces = "{apiVersion: test.dev/v1, kind: Gadget, spec: {plugin: dir}}";
    assert_eq!(raw(braces).await.at("/spec/size"), 1);
    for bad in ["", "a: [", "a: 1\na: 2\n", "- a\n", "a: &x [*x]\n", "--- {}\n--- {}\n"] {
        let refused = raw(bad).await;
        assert_eq!(refused.refusal(), (400, "BadRequest"), "{bad:?}: {}", refused.message());
    }
    let deep = format!("spec: {}{}", "[".repeat(80), "]".repeat(80));
    assert_eq!(raw(&deep).await.code, 400);
    let bomb: String = (1..30).map(|n| format!("l{n}: &l{n} [*l{}, *l{}]\n", n - 1, n - 1)).collect();
    assert_eq!(raw(&format!("l0: &l0 x\n{bomb}")).await.code, 400);
    assert_eq!(raw(&" ".repeat((1 << 20) + 1)).await.refusal(), (413, "RequestEntityTooLarge"));
}

#[tokio::test]
async fn unknown_fields_are_refused_told_or_dropped() {
    let f = fixture().await;
    let config = || gadget_of(json!({ "plugin": "dir", "sise": 3 }));
    let at = |validation: &str| format!("{}?fieldValidation={validation}", one("a"));
    let strict = apply(&f.server, &at("Strict"), "m", config()).await;
    assert_eq!(strict.refusal(), (400, "BadRequest"));
    assert!(
        strict.message().contains("strict decoding error: unknown field \"spec.sise\""),
        "{}",
        strict.message()
    );
    for (validation, warned) in [("Warn", true), ("Ignore", false)] {
        let done = apply(&f.server, &at(validation), "m", config()).await;
        assert!(done.code == 201 || done.code == 200);
        assert_eq!(done.headers.contains_key("warning"), warned, "{validation}");
        assert_eq!(done.at("/spec/sise"), &Value::Null);
        assert_eq!(owners(&done), json!({ "Apply m": { "f:spec": { "f:plugin": {} } } }));
    }
}

#[tokio::test]
async fn a_dry_run_decides_all_and_writes_nothing() {
    let f = fixture().await;
    let before = f.writes().await;
    let at = format!("{}?dryRun=All", one("a"));
    let made = apply(&f.server, &at, "m", gadget_of(json!({ "plugin": "dir" }))).await;
    assert_eq!(made.code, 201);
    assert_eq!(f.writes().await, before);
    apply(&f.server, &one("a"), "m", gadget_of(json!({ "plugin": "dir", "size": 2 }))).await;
    let before = f.writes().await;
    let changed = apply(&f.server, &at, "m", gadget_of(json!({ "plugin": "dir", "size": 3 }))).await;
    assert_eq!((changed.code, changed.at("/spec/size")), (200, &json!(3)));
    assert_eq!(apply(&f.server, &at, "n", gadget_of(json!({ "size": 3 }))).await.code, 409);
    assert_eq!(f.writes().await, before);
    assert_eq!(get(&f.server, &one("a")).await.at("/spec/size"), 2);
}

#[tokio::test]
async fn the_status_is_applied_on_its_own() {
    let f = fixture().await;
    let status = format!("{}/status", one("a"));
    let config = |status: &str| {
        json!({
            "apiVersion": "test.dev/v1", "kind": "Gadget", "metadata": { "name": "a", "labels": { "x": "y" } },
            "spec": { "size": 7 },
            "status": { "phase": "Up", "conditions": [{ "type": "Ready", "status": status }] }
        })
    };
    assert_eq!(apply(&f.server, &status, "m", config("True")).await.refusal(), (404, "NotFound"));
    let main = apply(&f.server, &one("a"), "m", gadget_of(json!({ "plugin": "dir" }))).await;
    let applied = apply(&f.server, &status, "m", config("True")).await;
    assert_eq!(applied.code, 200);
    assert_eq!((applied.at("/spec"), applied.at("/metadata/labels")), (main.at("/spec"), &Value::Null));
    let key = "k:{\"type\":\"Ready\"}";
    let fields = json!({ "f:status": {
        "f:phase": {}, "f:conditions": { key: { ".": {}, "f:type": {}, "f:status": {} } }
    } });
    assert_eq!(owners(&applied)["Apply m status"], fields);
    let refused = apply(&f.server, &status, "n", config("False")).await;
    assert_eq!(
        refused.message(),
        format!(
            "Apply failed with 1 conflict: conflict with \"m\" with subresource \"status\": \
             .status.conditions[type=\"Ready\"].status"
        )
    );
    // Another condition is another's.
    let mut other = config("True");
    other["status"] = json!({ "conditions": [{ "type": "Full", "status": "False" }] });
    let both = apply(&f.server, &status, "n", other).await;
    assert_eq!(both.at("/status/conditions").as_array().unwrap().len(), 2);
    let mut less = config("True");
    less["status"] = json!({});
    let left = apply(&f.server, &status, "m", less).await;
    assert_eq!(left.at("/status"), &json!({ "conditions": [{ "type": "Full", "status": "False" }] }));
    assert_eq!(owners(&left)["Apply m"], json!({ "f:spec": { "f:plugin": {} } }));
}

#[tokio::test]
async fn ordinary_writes_are_kept_under_their_managers_name() {
    let f = fixture().await;
    let with = |agent: &str| {
        http::Request::post(GADGETS)
            .header("user-agent", agent)
            .extension(Identity::admin())
            .body(axum::body::Body::from(gadget_of(json!({ "plugin": "dir" })).to_string()))
            .unwrap()
    };
    let response = f.server.router();
    let made = read(tower::ServiceExt::oneshot(response, with("kubectl/v1.32 (linux)")).await.unwrap()).await;
    assert_eq!(owners(&made).as_object().unwrap().keys().collect::<Vec<_>>(), ["Update kubectl"]);
    let labelled = merge(
        &f.server,
        &format!("{}?fieldManager=kubectl-label", one("a")),
        json!({ "metadata": { "labels": { "x": "1" } } }),
    )
    .await;
    assert_eq!(
        owners(&labelled)["Update kubectl-label"],
        json!({ "f:metadata": { "f:labels": { ".": {}, "f:x": {} } } })
    );
    // Our own leave no entry; others lose what they write.
    let ours = With {
        content_type: Some("application/merge-patch+json"),
        identity: Some(Identity::controllers()),
        ..With::default()
    };
    let change = json!({ "metadata": { "labels": { "x": "2" } } });
    let changed = ask(&f.server, Method::PATCH, &one("a"), Some(change), ours.clone()).await;
    assert_eq!(owners(&changed)["Update kubectl-label"], json!({ "f:metadata": { "f:labels": {} } }));
    let status = json!({ "status": { "phase": "Up" } });
    let written = ask(&f.server, Method::PATCH, &format!("{}/status", one("a")), Some(status), ours).await;
    assert_eq!(owners(&written), owners(&changed));
    let mut another = gadget_of(json!({ "plugin": "dir" }));
    another["metadata"]["name"] = json!("b");
    let by_ours = With { identity: Some(Identity::controllers()), ..With::default() };
    let made = ask(&f.server, Method::POST, GADGETS, Some(another), by_ours).await;
    assert_eq!((made.code, made.at("/metadata/managedFields")), (201, &Value::Null));
    // An empty list lets go of all of it, as kubectl's users do it.
    let reset = merge(&f.server, &one("a"), json!({ "metadata": { "managedFields": [{}] } })).await;
    assert_eq!(reset.at("/metadata/managedFields"), &Value::Null);
    let first = apply(&f.server, &one("a"), "m", gadget_of(json!({ "plugin": "dir" }))).await;
    let all: Vec<String> = owners(&first).as_object().unwrap().keys().cloned().collect();
    assert_eq!(all, ["Apply m", "Update before-first-apply"]);
}

#[tokio::test]
async fn what_kubectl_does_to_take_over_is_taken() {
    let f = fixture().await;
    let made = post(
        &f.server,
        &format!("{GADGETS}?fieldManager=kubectl-client-side-apply"),
        gadget_of(json!({ "plugin": "dir", "size": 2 })),
    )
    .await;
    let json_patch = "application/json-patch+json";
    let mut managers = made.at("/metadata/managedFields").clone();
    managers[0]["manager"] = json!("kubectl");
    managers[0]["operation"] = json!("Apply");
    let operations = |version: &Value| {
        json!([
            { "op": "replace", "path": "/metadata/managedFields", "value": managers },
            { "op": "replace", "path": "/metadata/resourceVersion", "value": version }
        ])
    };
    let stale = patch(&f.server, &one("a"), operations(&json!("1")), json_patch).await;
    assert_eq!(stale.refusal(), (409, "Conflict"));
    let taken =
        patch(&f.server, &one("a"), operations(made.at("/metadata/resourceVersion")), json_patch).await;
    assert_eq!(taken.code, 200);
    assert_eq!(taken.at("/metadata/managedFields"), &managers);
    let less = apply(&f.server, &one("a"), "kubectl", gadget_of(json!({ "plugin": "dir" }))).await;
    assert_eq!(less.at("/spec/size"), 1, "it is applied as if it always had been");
}

#[tokio::test]
async fn every_kind_takes_an_apply() {
    let f = fixture().await;
    let map = |data: Value| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" }, "data": data });
    let path = format!("{CONFIG_MAPS}/c");
    assert_eq!(apply(&f.server, &path, "m", map(json!({ "a": "1" }))).await.code, 201);
    assert_eq!(
        apply(&f.server, &path, "n", map(json!({ "b": "2" }))).await.at("/data"),
        &json!({ "a": "1", "b": "2" })
    );
    assert_eq!(apply(&f.server, &path, "n", map(json!({ "a": "2" }))).await.code, 409);
    let secret = |text: &str| json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s" }, "stringData": { "p": text, "q": text } });
    let path = "/api/v1/namespaces/default/secrets/s";
    let made = apply(&f.server, path, "m", secret("one")).await;
    assert_eq!((made.code, made.at("/data/p")), (201, &json!("b25l")));
    assert_eq!(owners(&made)["Apply m"]["f:data"], json!({ "f:p": {}, "f:q": {} }), "as it is kept");
    let before = f.writes().await;
    assert_eq!(apply(&f.server, path, "m", secret("one")).await.code, 200);
    assert_eq!(f.writes().await, before);
    let refused = apply(&f.server, path, "n", secret("two")).await;
    assert_eq!(refused.code, 409);
    assert!(!refused.body.to_string().contains("b25l"), "{:?}", refused.body);
    let mut less = secret("one");
    less["stringData"] = json!({ "q": "one" });
    assert_eq!(apply(&f.server, path, "m", less).await.at("/data"), &json!({ "q": "b25l" }));
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n", "labels": { "zone": "a" } },
        "spec": { "taints": [{ "key": "k", "effect": "NoExecute" }] }
    });
    let made = apply(&f.server, "/api/v1/nodes/n", "m", node).await;
    assert_eq!(made.code, 201);
    assert_eq!(made.at("/metadata/finalizers").as_array().unwrap().len(), 1, "the server's own");
    assert!(owners(&made)["Apply m"]["f:metadata"].get("f:finalizers").is_none());
    for (path, kind, version, spec) in [
        ("/api/v1/namespaces/shop", "Namespace", "v1", json!({})),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases/l",
            "Lease",
            "coordination.k8s.io/v1",
            json!({ "holderIdentity": "x" }),
        ),
    ] {
        let name = path.rsplit('/').next().unwrap();
        let config =
            json!({ "apiVersion": version, "kind": kind, "metadata": { "name": name }, "spec": spec });
        assert_eq!(apply(&f.server, path, "m", config.clone()).await.code, 201, "{kind}");
        assert_eq!(apply(&f.server, path, "m", config).await.code, 200, "{kind}");
    }
}

#[tokio::test]
async fn items_of_keyed_lists_have_owners_of_their_own() {
    let server = Server::new(store(), definitions(), options());
    server.bootstrap().await.unwrap();
    let path = "/apis/wharfline.dev/v1alpha1/plugins/p";
    let instance = |name: &str, socket: &str| json!({ "name": name, "role": "Monolith", "runtime": { "external": { "socket": socket } } });
    let plugin = |instances: Value| {
        json!({
            "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin", "metadata": { "name": "p" },
            "spec": { "instances": instances }
        })
    };
    let made =
        apply(&server, path, "m", plugin(json!([instance("a", "/a.sock"), instance("b", "/b.sock")]))).await;
    assert_eq!(made.code, 201, "{}", made.message());
    let added = apply(&server, path, "n", plugin(json!([instance("c", "/c.sock")]))).await;
    assert_eq!(added.at("/spec/instances").as_array().unwrap().len(), 3);
    let refused = apply(&server, path, "n", plugin(json!([instance("a", "/x.sock")]))).await;
    assert_eq!(
        refused.message(),
        "Apply failed with 1 conflict: conflict with \"m\": .spec.instances[name=\"a\"].runtime.external.socket"
    );
    let less = apply(&server, path, "m", plugin(json!([instance("b", "/b.sock")]))).await;
    let names: Vec<&str> =
        less.at("/spec/instances").as_array().unwrap().iter().map(|i| i["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["b", "c"]);
    // One of a union in place of another, with the defaults that came with it.
    let mut process = instance("b", "");
    process["runtime"] = json!({ "process": { "command": ["/bin/true"] } });
    let switched = apply(&server, path, "m", plugin(json!([process]))).await;
    assert_eq!(switched.code, 200, "{}", switched.message());
    assert!(switched.at("/spec/instances/0/runtime/external").is_null());
    let twice = plugin(json!([instance("b", "/b.sock"), instance("b", "/c.sock")]));
    let refused = apply(&server, path, "m", twice).await;
    assert_eq!(refused.code, 422);
    assert!(refused.message().contains("Duplicate value: name: \"b\""), "{}", refused.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_appliers_lose_nothing() {
    let f = fixture().await;
    // Two servers over one store, so that the store decides.
    let shared: Arc<dyn Store> = Arc::<wharfline::store::embedded::EmbeddedStore>::clone(&f.store);
    let second = Server::new(shared, vec![gadget(), held()], options());
    let racing = (0..16).map(|n| {
        let server = if n % 2 == 0 { f.server.clone() } else { second.clone() };
        tokio::spawn(async move {
            let key = format!("k{n}");
            let config = gadget_of(json!({ "plugin": "dir", "parameters": { key: "1" } }));
            apply(&server, &one("a"), &format!("m{n}"), config).await.code
        })
    });
    let codes: Vec<u16> = futures::future::join_all(racing).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 1, "{codes:?}");
    assert!(codes.iter().all(|code| [200, 201].contains(code)), "{codes:?}");
    let done = get(&f.server, &one("a")).await;
    assert_eq!(done.at("/spec/parameters").as_object().unwrap().len(), 16);
    assert_eq!(owners(&done).as_object().unwrap().len(), 16);
}

#[tokio::test]
async fn kube_clients_apply_within_the_process() {
    let server = Server::new(store(), definitions(), options());
    server.bootstrap().await.unwrap();
    let api: Api<VolumeClass> = Api::all(server.client(Identity::admin()));
    let class = |policy: &str| {
        json!({
            "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClass", "metadata": { "name": "c" },
            "spec": { "plugin": "dir", "reclaimPolicy": policy }
        })
    };
    let by = |manager: &str| PatchParams::apply(manager);
    let made = api.patch("c", &by("m"), &Patch::Apply(class("Retain"))).await.unwrap();
    let managers = made.metadata.managed_fields.unwrap();
    assert_eq!((managers.len(), managers[0].manager.as_deref()), (1, Some("m")));
    let refused = api.patch("c", &by("n"), &Patch::Apply(class("Delete"))).await.unwrap_err();
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    assert_eq!(status.details.unwrap().causes[0].reason, "FieldManagerConflict");
    api.patch("c", &by("n").force(), &Patch::Apply(class("Delete"))).await.unwrap();
    // Controllers that apply have entries: else they could take nothing back.
    let ours: Api<VolumeClass> = Api::all(server.client(Identity::controllers()));
    let label = json!({
        "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClass", "metadata": { "labels": { "seen": "yes" } }
    });
    let seen = ours.patch("c", &by("classes"), &Patch::Apply(label)).await.unwrap();
    assert!(seen.metadata.managed_fields.unwrap().iter().any(|e| e.manager.as_deref() == Some("classes")));
}

#[tokio::test]
async fn clients_see_the_types_of_lists() {
    let server = Server::new(store(), definitions(), options());
    let document = get(&server, "/openapi/v3/apis/wharfline.dev/v1alpha1").await;
    let plugin = document.at("/components/schemas/dev.wharfline.v1alpha1.Plugin/properties");
    let instances = &plugin["spec"]["properties"]["instances"];
    assert_eq!(instances["x-kubernetes-list-type"], "map");
    assert_eq!(instances["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(
        plugin["metadata"]["properties"]["ownerReferences"]["x-kubernetes-list-map-keys"],
        json!(["uid"])
    );
    assert_eq!(plugin["metadata"]["properties"]["finalizers"]["x-kubernetes-list-type"], "set");
    let patch = document.at("/paths/~1apis~1wharfline.dev~1v1alpha1~1plugins~1{name}~1status/patch");
    assert!(patch["requestBody"]["content"].get(APPLY).is_some());
    assert!(patch["parameters"].as_array().unwrap().iter().any(|parameter| parameter["name"] == "force"));
}
