//! The server's rules, one by one, through requests within the process.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
mod support {
    pub(crate) mod server_api;
}

use http::Method;
use serde_json::{Value, json};
use support::server_api::*;

fn one(name: &str) -> String {
    format!("{GADGETS}/{name}")
}

#[tokio::test]
async fn create_stamps_the_object_and_drops_status() {
    let f = fixture().await;
    let mut body = a_gadget("a");
    body["status"] = json!({ "phase": "Ready" });
    body["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
    let made = post(&f.server, GADGETS, body).await;
    assert_eq!(made.code, 201, "{made:?}");
    assert_eq!(made.at("/metadata/namespace"), "default");
    assert_eq!(made.at("/metadata/generation"), 1);
    assert_eq!(made.at("/metadata/creationTimestamp"), "2024-05-01T10:00:00Z");
    assert_eq!(made.at("/metadata/uid").as_str().unwrap().len(), 36);
    assert_eq!(made.at("/spec"), &json!({ "plugin": "dir", "size": 1, "mode": "Filesystem" }));
    assert!(made.at("/status").is_null() && made.at("/metadata/deletionTimestamp").is_null());
    let read = get(&f.server, &one("a")).await;
    assert_eq!(read.body, made.body, "what was answered is what is read");
}

/// Scenario A39.
#[tokio::test]
async fn create_refuses_what_kubernetes_refuses() {
    let f = fixture().await;
    post(&f.server, GADGETS, a_gadget("a")).await;
    let again = post(&f.server, GADGETS, a_gadget("a")).await;
    assert_eq!(again.refusal(), (409, "AlreadyExists"));
    assert_eq!(again.message(), "gadgets.test.dev \"a\" already exists");
    let mut versioned = a_gadget("b");
    versioned["metadata"]["resourceVersion"] = json!("1");
    assert_eq!(post(&f.server, GADGETS, versioned).await.refusal(), (400, "BadRequest"));
    let mut elsewhere = a_gadget("b");
    elsewhere["metadata"]["namespace"] = json!("other");
    assert_eq!(post(&f.server, GADGETS, elsewhere).await.refusal(), (400, "BadRequest"));
    let mut other = a_gadget("b");
    other["kind"] = json!("Held");
    assert_eq!(post(&f.server, GADGETS, other).await.refusal(), (400, "BadRequest"));
    let nowhere = "/apis/test.dev/v1/namespaces/nowhere/gadgets";
    let missing = post(&f.server, nowhere, a_gadget("b")).await;
    assert_eq!(missing.refusal(), (404, "NotFound"));
    assert_eq!(missing.message(), "namespaces \"nowhere\" not found");
    assert_eq!(get(&f.server, &one("b")).await.message(), "gadgets.test.dev \"b\" not found");
    let everywhere = "/apis/test.dev/v1/gadgets";
    assert_eq!(post(&f.server, everywhere, a_gadget("b")).await.refusal(), (400, "BadRequest"));
}

#[tokio::test]
async fn generated_names_are_drawn_again_when_taken() {
    let f = fixture().await;
    let body = json!({ "metadata": { "generateName": "gadget-" }, "spec": { "plugin": "dir" } });
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let made = post(&f.server, GADGETS, body.clone()).await;
        assert_eq!(made.code, 201);
        let name = made.at("/metadata/name").as_str().unwrap().to_owned();
        assert!(name.starts_with("gadget-") && name.len() == "gadget-".len() + 5, "{name}");
        names.insert(name);
    }
    assert_eq!(names.len(), 20);
    let nameless = post(&f.server, GADGETS, json!({ "spec": { "plugin": "dir" } })).await;
    assert_eq!(nameless.refusal(), (422, "Invalid"));
}

#[tokio::test]
async fn all_faults_are_listed_and_nothing_is_stored() {
    let f = fixture().await;
    let before = f.writes().await;
    let mut body = a_gadget("Bad_Name");
    body["spec"] = json!({ "plugin": "forbidden", "size": 0, "mode": "Blok", "parameters": { "a": 1 } });
    let refused = post(&f.server, GADGETS, body).await;
    assert_eq!(refused.refusal(), (422, "Invalid"));
    let causes = refused.at("/details/causes").as_array().unwrap();
    let fields: Vec<&str> = causes.iter().map(|cause| cause["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["spec.mode", "spec.parameters.a", "spec.size", "metadata.name", "spec.plugin"]);
    assert_eq!(causes[0]["reason"], "FieldValueNotSupported");
    assert!(refused.message().starts_with("Gadget.test.dev \"Bad_Name\" is invalid: ["));
    assert_eq!(f.writes().await, before);
}

#[tokio::test]
async fn unknown_fields_are_refused_warned_of_or_dropped() {
    let f = fixture().await;
    let mut body = a_gadget("a");
    body["spec"] = json!({ "plugin": "dir", "plguin": "x" });
    body["metadata"]["lables"] = json!({});
    let strict = post(&f.server, &format!("{GADGETS}?fieldValidation=Strict"), body.clone()).await;
    assert_eq!(strict.refusal(), (400, "BadRequest"));
    let expected = "strict decoding error: unknown field \"metadata.lables\"; did you mean \"labels\"?, \
                    unknown field \"spec.plguin\"; did you mean \"plugin\"?";
    assert!(strict.message().ends_with(expected), "{}", strict.message());
    let warned = post(&f.server, GADGETS, body.clone()).await;
    assert_eq!(warned.code, 201);
    let warnings: Vec<_> = warned.headers.get_all("warning").iter().map(|v| v.to_str().unwrap()).collect();
    assert_eq!(warnings.len(), 2);
    assert!(warnings[1].starts_with("299 - \"unknown field \\\"spec.plguin\\\""), "{warnings:?}");
    assert!(warned.at("/spec/plguin").is_null(), "pruned all the same");
    body["metadata"]["name"] = json!("b");
    let ignored = post(&f.server, &format!("{GADGETS}?fieldValidation=Ignore"), body).await;
    assert!(ignored.code == 201 && ignored.headers.get("warning").is_none());
}

#[tokio::test]
async fn strict_faults_come_with_all_the_others() {
    let f = fixture().await;
    let text = r#"{"metadata":{"name":"a"},"spec":{"plugin":"dir","plugin":"dir","szie":1,"mode":"x"}}"#;
    let path = format!("{GADGETS}?fieldValidation=Strict");
    let response = send(&f.server, Method::POST, &path, Some(text.into()), With::default()).await;
    let refused = read(response).await;
    assert_eq!(refused.code, 400);
    let causes = refused.at("/details/causes").as_array().unwrap();
    let fields: Vec<&str> = causes.iter().map(|cause| cause["field"].as_str().unwrap()).collect();
    assert_eq!(fields, ["spec.szie", "spec.plugin", "spec.mode"]);
}

#[tokio::test]
async fn put_needs_the_current_version_and_counts_generations() {
    let f = fixture().await;
    let made = post(&f.server, GADGETS, a_gadget("a")).await;
    let mut body = made.body.clone();
    body["spec"]["size"] = json!(2);
    body["status"] = json!({ "phase": "Ready" });
    let changed = put(&f.server, &one("a"), body.clone()).await;
    assert_eq!((changed.code, changed.at("/metadata/generation")), (200, &json!(2)));
    assert!(changed.at("/status").is_null(), "the main endpoint ignores status");
    assert_eq!(put(&f.server, &one("a"), body.clone()).await.refusal(), (409, "Conflict"));
    body["metadata"]["resourceVersion"] = Value::Null;
    let blind = put(&f.server, &one("a"), body.clone()).await;
    assert_eq!(blind.code, 200, "kinds that are not ours may be replaced blindly");
    body["metadata"]["uid"] = json!("another");
    assert_eq!(put(&f.server, &one("a"), body).await.refusal(), (409, "Conflict"));
    assert_eq!(put(&f.server, &one("a"), a_gadget("b")).await.refusal(), (400, "BadRequest"));
    assert_eq!(put(&f.server, &one("none"), a_gadget("none")).await.code, 404);
}

#[tokio::test]
async fn our_own_kinds_and_leases_are_never_replaced_blindly() {
    let server = wharfline::server::Server::new(store(), wharfline::api::definitions(), options());
    server.bootstrap().await.unwrap();
    let classes = "/apis/wharfline.dev/v1alpha1/volumeclasses";
    let class = json!({ "metadata": { "name": "c" }, "spec": { "plugin": "dir" } });
    let made = post(&server, classes, class.clone()).await;
    assert_eq!(made.code, 201, "{made:?}");
    let blind = put(&server, &format!("{classes}/c"), class).await;
    assert_eq!(blind.refusal(), (422, "Invalid"));
    assert_eq!(blind.at("/details/causes/0/field"), "metadata.resourceVersion");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({ "metadata": { "name": "l" }, "spec": { "holderIdentity": "x" } });
    assert_eq!(post(&server, leases, lease.clone()).await.code, 201);
    assert_eq!(put(&server, &format!("{leases}/l"), lease).await.refusal(), (422, "Invalid"));
}

#[tokio::test]
async fn status_has_its_own_endpoint_and_never_raises_the_generation() {
    let f = fixture().await;
    let made = post(&f.server, GADGETS, a_gadget("a")).await;
    let path = format!("{}/status", one("a"));
    let all = json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "size": 9 }, "status": { "phase": "Ready" } });
    let done = merge(&f.server, &path, all).await;
    assert_eq!(done.code, 200, "{done:?}");
    assert_eq!(done.at("/status"), &json!({ "phase": "Ready" }));
    assert_eq!(done.at("/spec"), made.at("/spec"));
    assert!(done.at("/metadata/labels").is_null());
    assert_eq!(done.at("/metadata/generation"), 1);
    let mut whole = done.body.clone();
    whole["status"] = json!({ "phase": "Gone", "seen": 3 });
    assert_eq!(put(&f.server, &path, whole).await.at("/status/seen"), 3);
    let bad = merge(&f.server, &path, json!({ "status": { "seen": "x" } })).await;
    assert_eq!(bad.refusal(), (422, "Invalid"));
    assert_eq!(get(&f.server, &path).await.at("/status/phase"), "Gone");
    let spec =
        merge(&f.server, &one("a"), json!({ "spec": { "size": 4 }, "status": { "phase": "X" } })).await;
    assert_eq!((spec.at("/metadata/generation"), spec.at("/status/phase")), (&json!(2), &json!("Gone")));
    let label = merge(&f.server, &one("a"), json!({ "metadata": { "labels": { "a": "b" } } })).await;
    assert_eq!(label.at("/metadata/generation"), 2, "metadata does not raise it");
    assert_eq!(delete(&f.server, &path, None).await.code, 405);
}

/// Scenario A25.
#[tokio::test]
async fn a_write_that_changes_nothing_makes_no_revision() {
    let f = fixture().await;
    let made = post(&f.server, GADGETS, a_gadget("a")).await;
    let before = f.writes().await;
    let patched = merge(&f.server, &one("a"), json!({ "spec": { "plugin": "dir", "nodeName": null } })).await;
    assert_eq!(patched.body, made.body);
    assert_eq!(put(&f.server, &one("a"), made.body.clone()).await.body, made.body);
    let status = merge(&f.server, &format!("{}/status", one("a")), json!({ "status": null })).await;
    assert_eq!(status.body, made.body);
    assert_eq!(f.writes().await, before);
}

#[tokio::test]
async fn dry_runs_answer_as_if_and_store_nothing() {
    let f = fixture().await;
    post(&f.server, GADGETS, a_gadget("a")).await;
    let before = f.writes().await;
    let path = format!("{GADGETS}?dryRun=All");
    assert_eq!(post(&f.server, &path, a_gadget("b")).await.code, 201);
    assert_eq!(post(&f.server, &path, a_gadget("a")).await.code, 409);
    let patched =
        merge(&f.server, &format!("{}?dryRun=All", one("a")), json!({ "spec": { "size": 7 } })).await;
    assert_eq!((patched.at("/spec/size"), patched.at("/metadata/generation")), (&json!(7), &json!(2)));
    assert_eq!(delete(&f.server, &one("a"), Some(json!({ "dryRun": ["All"] }))).await.code, 200);
    assert_eq!(delete(&f.server, &format!("{}?dryRun=Some", one("a")), None).await.code, 400);
    assert_eq!(f.writes().await, before);
}

#[tokio::test]
async fn patches_take_versions_null_tests_and_say_what_they_do_not_take() {
    let f = fixture().await;
    post(&f.server, GADGETS, a_gadget("a")).await;
    let json_patch = "application/json-patch+json";
    let finalizer = json!([
        { "op": "test", "path": "/metadata/finalizers", "value": null },
        { "op": "add", "path": "/metadata/finalizers", "value": ["test.dev/x"] }
    ]);
    assert_eq!(patch(&f.server, &one("a"), finalizer.clone(), json_patch).await.code, 200);
    assert_eq!(patch(&f.server, &one("a"), finalizer, json_patch).await.refusal(), (422, "Invalid"));
    let stale = json!({ "metadata": { "resourceVersion": "1" }, "spec": { "size": 3 } });
    assert_eq!(merge(&f.server, &one("a"), stale).await.refusal(), (409, "Conflict"));
    assert_eq!(patch(&f.server, &one("a"), json!({}), "text/plain").await.code, 415);
    let strict = format!("{}?fieldValidation=Strict", one("a"));
    assert_eq!(merge(&f.server, &strict, json!({ "spec": { "sise": 3 } })).await.code, 400);
    assert_eq!(merge(&f.server, &one("a"), json!({ "spec": { "plugin": "x" } })).await.code, 422);
    let config_maps = "/api/v1/namespaces/default/configmaps";
    post(&f.server, config_maps, json!({ "metadata": { "name": "c" }, "data": { "a": "1" } })).await;
    let strategic = "application/strategic-merge-patch+json";
    let path = format!("{config_maps}/c");
    let done = patch(&f.server, &path, json!({ "data": { "b": "2", "a": null } }), strategic).await;
    assert_eq!(done.at("/data"), &json!({ "b": "2" }));
}

#[tokio::test]
async fn racing_merge_patches_lose_nothing() {
    let f = fixture().await;
    post(&f.server, GADGETS, a_gadget("a")).await;
    let writer = |who: usize| {
        let server = f.server.clone();
        async move {
            for turn in 0..25 {
                let patch = json!({ "spec": { "parameters": { format!("{who}-{turn}"): "x" } } });
                assert_eq!(merge(&server, &one("a"), patch).await.code, 200);
            }
        }
    };
    futures::future::join_all((0..4).map(|who| tokio::spawn(writer(who)))).await;
    let read = get(&f.server, &one("a")).await;
    assert_eq!(read.at("/spec/parameters").as_object().unwrap().len(), 100);
    assert_eq!(read.at("/metadata/generation"), 101);
}

#[tokio::test]
async fn deletion_answers_a_status_or_waits_for_finalizers() {
    let f = fixture().await;
    let made = post(&f.server, GADGETS, a_gadget("a")).await;
    let gone = delete(&f.server, &one("a"), Some(json!({ "propagationPolicy": "Background" }))).await;
    assert_eq!((gone.code, gone.at("/status")), (200, &json!("Success")));
    let details =
        json!({ "name": "a", "group": "test.dev", "kind": "gadgets", "uid": made.at("/metadata/uid") });
    assert_eq!(gone.at("/details"), &details);
    assert_eq!(delete(&f.server, &one("a"), None).await.refusal(), (404, "NotFound"));

    let helds = "/apis/test.dev/v1/namespaces/default/helds";
    let held = format!("{helds}/h");
    let made =
        post(&f.server, helds, json!({ "metadata": { "name": "h" }, "spec": { "plugin": "p" } })).await;
    assert_eq!(made.at("/metadata/finalizers"), &json!(["test.dev/hold"]), "set at admission");
    // A file has none, and whoever replaces an object from it means no harm.
    for finalizers in [json!(["x.dev/y"]), json!([]), json!(null)] {
        let file =
            json!({ "metadata": { "name": "h", "finalizers": finalizers }, "spec": { "plugin": "p" } });
        let kept = put(&f.server, &held, file).await;
        let all = kept.at("/metadata/finalizers").as_array().unwrap().clone();
        assert!(all.contains(&json!("test.dev/hold")), "{all:?}");
    }
    let bare = json!({ "metadata": { "name": "h" }, "spec": { "plugin": "p" } });
    assert_eq!(put(&f.server, &held, bare).await.at("/metadata/finalizers"), &json!(["test.dev/hold"]));
    let none = merge(&f.server, &held, json!({ "metadata": { "finalizers": null } })).await;
    assert_eq!(none.at("/metadata/finalizers"), &json!(["test.dev/hold"]));
    let marked = delete(&f.server, &held, None).await;
    assert_eq!(marked.at("/metadata/deletionTimestamp"), "2024-05-01T10:00:00Z");
    assert_eq!(marked.at("/metadata/deletionGracePeriodSeconds"), 0);
    assert_eq!(marked.at("/metadata/generation"), 2);
    let writes = f.writes().await;
    assert_eq!(delete(&f.server, &held, None).await.body, marked.body, "a second delete changes nothing");
    assert_eq!(f.writes().await, writes);
    let more =
        merge(&f.server, &held, json!({ "metadata": { "finalizers": ["test.dev/hold", "x.dev/y"] } })).await;
    assert_eq!(more.at("/details/causes/0/reason"), "FieldValueForbidden");
    let last = merge(&f.server, &held, json!({ "metadata": { "finalizers": null } })).await;
    assert_eq!(last.code, 200);
    assert_eq!(get(&f.server, &held).await.code, 404);
}

/// One write says that nothing is left and takes the finalizer; that of somebody else stays.
#[tokio::test]
async fn the_last_word_of_what_goes_takes_its_own_finalizer() {
    let f = fixture().await;
    let helds = "/apis/test.dev/v1/namespaces/default/helds";
    let over = json!({ "status": { "phase": "Over" } });
    let held = |name: &str, finalizers: Value| json!({ "metadata": { "name": name, "finalizers": finalizers }, "spec": { "plugin": "p" } });
    let status = |name: &str| format!("{helds}/{name}/status");
    // What stays keeps it, whatever is said of it.
    post(&f.server, helds, held("h", json!([]))).await;
    let stays = merge(&f.server, &status("h"), over.clone()).await;
    assert_eq!(stays.at("/metadata/finalizers"), &json!(["test.dev/hold"]));
    merge(&f.server, &status("h"), json!({ "status": { "phase": "Busy" } })).await;
    assert!(
        delete(&f.server, &format!("{helds}/h"), None).await.at("/metadata/deletionTimestamp").is_string()
    );
    // Of what goes another word takes nothing, nor does a write of the rest that finds it said.
    let busy = merge(&f.server, &status("h"), json!({ "status": { "seen": 1 } })).await;
    assert_eq!(busy.at("/metadata/finalizers"), &json!(["test.dev/hold"]));
    let tried = json!({ "status": { "phase": "Over" }, "metadata": { "labels": { "a": "b" } } });
    let main = merge(&f.server, &format!("{helds}/h"), tried).await;
    assert_eq!(main.at("/metadata/finalizers"), &json!(["test.dev/hold"]), "it says no status");
    let writes = f.writes().await;
    let dry = merge(&f.server, &format!("{}?dryRun=All", status("h")), over.clone()).await;
    assert_eq!((dry.code, f.writes().await), (200, writes));
    assert_eq!(
        get(&f.server, &format!("{helds}/h")).await.at("/metadata/finalizers"),
        &json!(["test.dev/hold"])
    );
    let last = merge(&f.server, &status("h"), over.clone()).await;
    assert_eq!((last.code, last.at("/status/phase")), (200, &json!("Over")));
    assert_eq!(f.writes().await, writes + 1);
    assert_eq!(get(&f.server, &format!("{helds}/h")).await.code, 404);

    post(&f.server, helds, held("two", json!(["x.dev/y"]))).await;
    delete(&f.server, &format!("{helds}/two"), None).await;
    let left = merge(&f.server, &status("two"), over).await;
    assert_eq!(left.at("/metadata/finalizers"), &json!(["x.dev/y"]));
    assert_eq!(get(&f.server, &format!("{helds}/two")).await.at("/status/phase"), "Over");
}

/// One write says that it goes and has its deletion begin; what says that nothing is left, too, is gone with it.
#[tokio::test]
async fn the_word_of_what_goes_begins_its_deletion() {
    let f = fixture().await;
    let helds = "/apis/test.dev/v1/namespaces/default/helds";
    let held = |name: &str| json!({ "metadata": { "name": name }, "spec": { "plugin": "p" } });
    let status = |name: &str| format!("{helds}/{name}/status");
    let says = |phase: &str| json!({ "status": { "phase": phase } });
    post(&f.server, helds, held("one")).await;
    let tried = merge(&f.server, &format!("{helds}/one"), says("Going")).await;
    assert_eq!(tried.at("/metadata/deletionTimestamp"), &Value::Null, "it says no status");
    let busy = merge(&f.server, &status("one"), says("Busy")).await;
    assert_eq!(busy.at("/metadata/deletionTimestamp"), &Value::Null);
    let writes = f.writes().await;
    let goes = merge(&f.server, &status("one"), says("Going")).await;
    assert_eq!(goes.at("/metadata/deletionTimestamp"), "2024-05-01T10:00:00Z");
    assert_eq!(goes.at("/metadata/deletionGracePeriodSeconds"), 0);
    assert_eq!(goes.at("/metadata/generation"), 1, "it was asked for nothing");
    assert_eq!(goes.at("/metadata/finalizers"), &json!(["test.dev/hold"]));
    assert_eq!(f.writes().await, writes + 1);
    let still = merge(&f.server, &status("one"), json!({ "status": { "seen": 1 } })).await;
    assert_eq!(still.at("/metadata/deletionTimestamp"), "2024-05-01T10:00:00Z");
    let asked = delete(&f.server, &format!("{helds}/one"), None).await;
    assert_eq!(asked.at("/metadata/generation"), 1, "it goes already");

    post(&f.server, helds, held("two")).await;
    let writes = f.writes().await;
    let last = merge(&f.server, &status("two"), says("Over at once")).await;
    assert_eq!((last.code, last.at("/status/phase")), (200, &json!("Over at once")));
    assert_eq!(f.writes().await, writes + 1);
    assert_eq!(get(&f.server, &format!("{helds}/two")).await.code, 404);
}

#[tokio::test]
async fn preconditions_and_propagation_are_kept() {
    let f = fixture().await;
    let made = post(&f.server, GADGETS, a_gadget("a")).await;
    for wrong in [json!({ "uid": "x" }), json!({ "resourceVersion": "1" })] {
        let refused = delete(&f.server, &one("a"), Some(json!({ "preconditions": wrong }))).await;
        assert_eq!(refused.refusal(), (409, "Conflict"));
    }
    let odd = delete(&f.server, &one("a"), Some(json!({ "propagationPolicy": "Sideways" }))).await;
    assert_eq!(odd.code, 400);
    let right =
        json!({ "uid": made.at("/metadata/uid"), "resourceVersion": made.at("/metadata/resourceVersion") });
    let options = json!({ "preconditions": right, "propagationPolicy": "Foreground" });
    let marked = delete(&f.server, &one("a"), Some(options)).await;
    assert_eq!((marked.code, marked.at("/metadata/finalizers")), (202, &json!(["foregroundDeletion"])));
    post(&f.server, GADGETS, a_gadget("b")).await;
    let orphaning = delete(&f.server, &format!("{}?propagationPolicy=Orphan", one("b")), None).await;
    assert_eq!((orphaning.code, orphaning.at("/metadata/finalizers")), (202, &json!(["orphan"])));
}

#[tokio::test]
async fn collections_are_deleted_by_selector() {
    let f = fixture().await;
    for (name, label) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut body = a_gadget(name);
        body["metadata"]["labels"] = json!({ "l": label });
        post(&f.server, GADGETS, body).await;
    }
    let gone = delete(&f.server, &format!("{GADGETS}?labelSelector=l%3Dx"), None).await;
    assert_eq!((gone.code, gone.at("/items").as_array().unwrap().len()), (200, 2));
    let left = get(&f.server, GADGETS).await;
    assert_eq!(left.at("/items/0/metadata/name"), "c");
    assert_eq!(left.at("/items").as_array().unwrap().len(), 1);
}

/// Scenario A37.
#[tokio::test]
async fn lists_select_by_declared_fields_and_labels() {
    let f = fixture().await;
    for (name, node) in [("a", Some("n1")), ("b", Some("n2")), ("c", None)] {
        let mut body = a_gadget(name);
        if let Some(node) = node {
            body["spec"]["nodeName"] = json!(node);
        }
        post(&f.server, GADGETS, body).await;
    }
    for (selector, expected) in [
        ("fieldSelector=spec.nodeName%3Dn1", vec!["a"]),
        ("fieldSelector=spec.nodeName%3D", vec!["c"]),
        ("fieldSelector=spec.nodeName!%3Dn1,metadata.name!%3Dc", vec!["b"]),
        ("fieldSelector=metadata.name%3Db,metadata.namespace%3Ddefault", vec!["b"]),
        ("labelSelector=x", vec![]),
    ] {
        let found = get(&f.server, &format!("{GADGETS}?{selector}")).await;
        let items = found.at("/items").as_array().unwrap();
        let names: Vec<&str> = items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected, "{selector}");
    }
    let undeclared = get(&f.server, &format!("{GADGETS}?fieldSelector=spec.size%3D1")).await;
    assert_eq!(undeclared.refusal(), (400, "BadRequest"));
    let all = get(&f.server, "/apis/test.dev/v1/gadgets").await;
    assert_eq!(all.at("/kind"), "GadgetList");
    assert_eq!(all.at("/items").as_array().unwrap().len(), 3);
}

/// Scenario A37.
#[tokio::test]
async fn pages_stay_at_the_revision_of_the_first() {
    let f = fixture().await;
    for name in ["a", "b", "c", "d", "e"] {
        post(&f.server, GADGETS, a_gadget(name)).await;
    }
    let first = get(&f.server, &format!("{GADGETS}?limit=2")).await;
    let token = first.at("/metadata/continue").as_str().unwrap();
    delete(&f.server, &one("c"), None).await;
    post(&f.server, GADGETS, a_gadget("d2")).await;
    let second = get(&f.server, &format!("{GADGETS}?limit=2&continue={token}")).await;
    let names = |answer: &Answer| -> Vec<String> {
        let items = answer.at("/items").as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&second), ["c", "d"], "as of the first page");
    assert_eq!(second.version(), first.version());
    let token = second.at("/metadata/continue").as_str().unwrap().to_owned();
    let last = get(&f.server, &format!("{GADGETS}?limit=2&continue={token}")).await;
    assert_eq!((names(&last), last.at("/metadata/continue")), (vec!["e".to_owned()], &Value::Null));

    f.compact().await;
    let expired = get(&f.server, &format!("{GADGETS}?limit=2&continue={token}")).await;
    assert_eq!(expired.refusal(), (410, "Expired"));
    let fresh = expired.at("/metadata/continue").as_str().unwrap();
    let rest = get(&f.server, &format!("{GADGETS}?limit=2&continue={fresh}")).await;
    assert_eq!(names(&rest), ["d2", "e"], "the rest, as it is now");
    assert_eq!(get(&f.server, &format!("{GADGETS}?continue=x")).await.code, 400);
}

/// Scenario A37.
#[tokio::test]
async fn a_page_with_a_selector_fills_up_to_its_limit() {
    let f = fixture().await;
    for number in 0..12 {
        let mut body = a_gadget(&format!("g{number:02}"));
        body["spec"]["nodeName"] = json!(if number % 3 == 0 { "n1" } else { "n2" });
        post(&f.server, GADGETS, body).await;
    }
    let path = format!("{GADGETS}?fieldSelector=spec.nodeName%3Dn1&limit=3");
    let first = get(&f.server, &path).await;
    assert_eq!(first.at("/items").as_array().unwrap().len(), 3);
    let token = first.at("/metadata/continue").as_str().unwrap();
    let second = get(&f.server, &format!("{path}&continue={token}")).await;
    assert_eq!(second.at("/items/0/metadata/name"), "g09");
    assert!(second.at("/metadata/continue").is_null());
}

#[tokio::test]
async fn revisions_of_reads_are_kept() {
    let f = fixture().await;
    let made = post(&f.server, GADGETS, a_gadget("a")).await;
    merge(&f.server, &one("a"), json!({ "spec": { "size": 5 } })).await;
    let old = format!("{GADGETS}?resourceVersion={}&resourceVersionMatch=Exact", made.version());
    assert_eq!(get(&f.server, &old).await.at("/items/0/spec/size"), 1);
    for path in [GADGETS.to_owned(), one("a")] {
        for version in ["0", "1"] {
            assert_eq!(get(&f.server, &format!("{path}?resourceVersion={version}")).await.code, 200);
        }
        let future = get(&f.server, &format!("{path}?resourceVersion=999999")).await;
        assert_eq!(future.refusal(), (504, "Timeout"));
        assert_eq!(future.at("/details/causes/0/reason"), "ResourceVersionTooLarge");
    }
    let exact = format!("{GADGETS}?resourceVersion=999999&resourceVersionMatch=Exact");
    assert!(
        get(&f.server, &exact).await.message().starts_with("Too large resource version: 999999, current:")
    );
    f.compact().await;
    assert_eq!(get(&f.server, &old).await.refusal(), (410, "Expired"));
    assert_eq!(get(&f.server, &format!("{GADGETS}?resourceVersion=x")).await.code, 400);
}

#[tokio::test]
async fn namespaces_hold_objects_and_refuse_new_ones_when_going() {
    let f = fixture().await;
    for name in ["default", "wharfline-system"] {
        assert_eq!(get(&f.server, &format!("/api/v1/namespaces/{name}")).await.at("/status/phase"), "Active");
    }
    f.server.bootstrap().await.expect("may be repeated");
    let refused = delete(&f.server, "/api/v1/namespaces/default", None).await;
    assert_eq!(refused.refusal(), (403, "Forbidden"));
    post(&f.server, "/api/v1/namespaces", json!({ "metadata": { "name": "shop" } })).await;
    let inside = "/apis/test.dev/v1/namespaces/shop/gadgets";
    assert_eq!(post(&f.server, inside, a_gadget("a")).await.code, 201);
    let going = delete(&f.server, "/api/v1/namespaces/shop", None).await;
    assert_eq!(going.at("/status/phase"), "Terminating", "held by its finalizer");
    assert_eq!(post(&f.server, inside, a_gadget("b")).await.refusal(), (403, "Forbidden"));
}

#[tokio::test]
async fn events_are_one_storage_with_two_faces() {
    let f = fixture().await;
    let new = "/apis/events.k8s.io/v1/namespaces/default/events";
    let core = "/api/v1/namespaces/default/events";
    let body = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "e1" },
        "regarding": { "kind": "Gadget", "name": "a" }, "note": "made", "reason": "Made", "type": "Normal",
        "reportingController": "test", "reportingInstance": "x", "action": "Make",
        "eventTime": "2024-05-01T09:59:00.000000Z"
    });
    let made = post(&f.server, new, body).await;
    assert_eq!((made.code, made.at("/note")), (201, &json!("made")));
    let selector =
        "fieldSelector=involvedObject.name%3Da,involvedObject.kind%3DGadget,involvedObject.namespace%3D";
    let seen = get(&f.server, &format!("{core}?{selector}")).await;
    assert_eq!(seen.at("/items/0/message"), "made");
    assert_eq!(seen.at("/items/0/apiVersion"), "v1");
    assert_eq!(seen.at("/items/0/involvedObject/name"), "a");
    let mut lines = watch(&f.server, &format!("{new}?resourceVersion={}", made.version())).await;
    let patch = json!({ "series": { "count": 2, "lastObservedTime": "2024-05-01T10:00:00.000000Z" }, "note": "again" });
    assert_eq!(merge(&f.server, &format!("{new}/e1"), patch).await.at("/note"), "again");
    let event = lines.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["note"]), (&json!("MODIFIED"), &json!("again")));
    assert_eq!(get(&f.server, &format!("{core}/e1")).await.at("/message"), "again");
}
