//! Volumes that are there while they are published.
use serde_json::{Value, json};

use crate::bench::Bench;
use crate::fake::{Behaviour, DISK};
use crate::manifests::{phase, plugin, ready, user, why};

/// A plugin that has them beside others, and whose driver attaches and stages those.
async fn scratch(bench: &Bench, modes: Value) {
    let mut object = plugin("scratch", "Cluster");
    object["spec"]["volumeLifecycleModes"] = modes;
    object["spec"]["podInfoOnMount"] = json!(true);
    bench.make("plugins", object).await;
    bench.until("the plugin is ready", |seen| ready(&seen.get("plugins", "", "scratch"))).await;
}

fn claim(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "ephemeral": {
        "plugin": "scratch", "attributes": { "size": "1Gi" }, "nodePublishSecretName": "key" } } })
}

/// An allocation that brings one along.
fn bringing(name: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": { "volumes": [
        { "name": "tmp", "claimTemplate": { "spec": claim("")["spec"] } }] } })
}

/// Scenarios B38, B90.
#[tokio::test(start_paused = true)]
async fn an_ephemeral_volume_is_neither_made_nor_attached_nor_staged_and_goes_with_its_allocation() {
    let bench = Bench::with(&["a"], Behaviour { capabilities: DISK.to_vec(), ..Behaviour::default() }).await;
    scratch(&bench, json!(["Persistent", "Ephemeral"])).await;
    bench.make("allocations", bringing("app")).await;
    bench.until("it runs", |seen| phase(seen, "app") == "Running").await;
    let volume = bench.seen.only("volumes");
    let own = bench.seen.get("volumeclaims", "default", "app-tmp");
    assert_eq!(own["status"]["volumeName"], volume["metadata"]["name"]);
    assert_eq!(volume["status"]["controller"], Value::Null, "nobody has to make it");
    assert_eq!(volume["status"]["phase"], "Ready");
    let handle = format!("csi-{}", volume["metadata"]["name"].as_str().unwrap());
    let source = json!({ "ephemeral": { "handle": handle,
        "context": { "size": "1Gi", "csi.storage.k8s.io/ephemeral": "true" } } });
    assert_eq!(volume["spec"]["source"], source);
    let secrets = json!({ "nodePublish": { "namespace": "default", "name": "key" } });
    assert_eq!(volume["spec"]["secrets"], secrets, "of its own namespace");
    let spec = &bench.seen.only("volumeattachments")["spec"];
    assert_eq!((&spec["attachRequired"], &spec["stageRequired"]), (&json!(false), &json!(false)));
    assert_eq!((&spec["handle"], &spec["podInfo"]), (&json!(handle), &json!(true)));
    assert_eq!(spec["volumeContext"], source["ephemeral"]["context"]);
    // A second user waits, as with any volume of one writer.
    bench.make("allocations", user("other", "app-tmp", "")).await;
    bench
        .until("it waits", |seen| why(&seen.get("allocations", "default", "other")) == "HeldElsewhere")
        .await;
    bench.delete("allocations", "default", "other").await;
    bench.delete("allocations", "default", "app").await;
    let kinds = ["allocations", "volumeclaims", "volumes", "volumeattachments"];
    let ours = |seen: &crate::bench::Seen, kind: &str| {
        let all = seen.all(kind);
        all.iter().filter(|one| one["metadata"]["name"] == "app" || kind != "allocations").count()
    };
    bench.until("nothing of it is left", |seen| kinds.iter().all(|kind| ours(seen, kind) == 0)).await;
    let calls = bench.ledger.calls();
    let about = ["create", "attach", "stage", "unstage", "detach", "delete"];
    let others: Vec<_> =
        calls.iter().filter(|call| about.iter().any(|verb| call.starts_with(verb))).collect();
    assert!(others.is_empty(), "{others:?}");
    bench.end().await;
}

/// Scenario B91.
#[tokio::test(start_paused = true)]
async fn a_plugin_that_does_not_list_a_mode_is_not_asked_for_it() {
    let bench = Bench::new(&["a"]).await;
    let waits = |name: &'static str, word: &'static str| {
        move |seen: &crate::bench::Seen| why(&seen.get("volumeclaims", "default", name)) == word
    };
    bench.make("volumeclaims", claim("tmp")).await;
    bench.until("it waits for the plugin", waits("tmp", "NotFound")).await;
    scratch(&bench, json!(["Persistent"])).await;
    bench.until("it is refused", waits("tmp", "NoLifecycleMode")).await;
    bench.quiet().await;
    assert!(bench.seen.all("volumes").is_empty());
    // It goes on by itself, and now the other kind is refused.
    bench.patch("plugins", "", "scratch", json!({ "spec": { "volumeLifecycleModes": ["Ephemeral"] } })).await;
    bench.until("it is bound", |seen| ready(&seen.get("volumeclaims", "default", "tmp"))).await;
    bench.make("volumeclasses", crate::manifests::class("scratch", "scratch")).await;
    bench.make("volumeclaims", crate::manifests::claim("data", "scratch", "SingleNodeWriter")).await;
    bench.until("it is refused", waits("data", "NoLifecycleMode")).await;
    // Nothing can be made of one that is not there by itself.
    bench
        .patch(
            "plugins",
            "",
            "scratch",
            json!({ "spec": { "volumeLifecycleModes": ["Ephemeral", "Persistent"] } }),
        )
        .await;
    let mut copy = crate::manifests::claim("copy", "scratch", "SingleNodeWriter");
    copy["spec"]["dataSource"] = json!({ "claimName": "tmp" });
    bench.make("volumeclaims", copy).await;
    bench.until("there is nothing to copy", waits("copy", "PluginLacksCapability")).await;
    for name in ["tmp", "data", "copy"] {
        bench.delete("volumeclaims", "default", name).await;
    }
    bench.until("nothing is left", |seen| seen.all("volumes").is_empty()).await;
    bench.end().await;
}

/// Scenario B55.
#[tokio::test(start_paused = true)]
async fn ephemeral_volumes_and_others_count_together() {
    let behaviour = Behaviour { capabilities: DISK.to_vec(), max_volumes: 2, ..Behaviour::default() };
    let bench = Bench::with(&["a"], behaviour).await;
    scratch(&bench, json!(["Persistent", "Ephemeral"])).await;
    bench.make("volumeclasses", crate::manifests::class("scratch", "scratch")).await;
    bench.make("volumeclaims", crate::manifests::claim("data", "scratch", "SingleNodeWriter")).await;
    bench.make("allocations", user("lasting", "data", "")).await;
    bench.make("allocations", bringing("first")).await;
    for name in ["lasting", "first"] {
        bench.until("it runs", |seen| phase(seen, name) == "Running").await;
    }
    bench.make("allocations", bringing("second")).await;
    bench
        .until("there is no slot", |seen| why(&seen.get("allocations", "default", "second")) == "NoNodeFits")
        .await;
    bench.delete("allocations", "default", "lasting").await;
    bench.until("it has the slot", |seen| phase(seen, "second") == "Running").await;
    for name in ["first", "second"] {
        bench.delete("allocations", "default", name).await;
    }
    bench.delete("volumeclaims", "default", "data").await;
    bench.until("nothing is left", |seen| seen.all("volumes").is_empty()).await;
    bench.end().await;
}
