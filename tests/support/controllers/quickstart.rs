//! The quickstart, up and down in every order.
use serde_json::{Value, json};

use crate::bench::{Bench, Seen, condition};

/// The objects of the quickstart: plural, namespace, object.
pub(crate) fn quickstart() -> Vec<(&'static str, &'static str, Value)> {
    let command = json!(["wharfline", "csi", "dir", "--data-dir", "${DATA_DIR}/drivers/dir"]);
    let write = json!(["/bin/sh", "-c", "echo hello >> /data/greeting && exec sleep infinity"]);
    vec![
        (
            "plugins",
            "",
            json!({ "metadata": { "name": "dir" }, "spec": { "controllerScope": "Node", "instances": [
            { "name": "all", "role": "Monolith", "placement": { "everyNode": {} },
              "runtime": { "process": { "command": command } } }] } }),
        ),
        (
            "volumeclasses",
            "",
            json!({ "metadata": { "name": "dir" }, "spec": { "plugin": "dir", "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer" } }),
        ),
        (
            "volumeclaims",
            "default",
            json!({ "metadata": { "name": "data" }, "spec": { "volumeClassName": "dir",
            "accessModes": ["SingleNodeWriter"], "resources": { "requests": { "storage": "1Gi" } } } }),
        ),
        (
            "allocations",
            "default",
            json!({ "metadata": { "name": "hello" }, "spec": {
            "volumes": [{ "name": "data", "claimName": "data" }],
            "tasks": [{ "name": "writer", "runtime": { "process": { "command": write } },
                        "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }] } }),
        ),
    ]
}

fn orders() -> Vec<[usize; 4]> {
    let mut orders = Vec::new();
    for a in 0..4 {
        for b in 0..4 {
            for c in 0..4 {
                let d = 6 - (a + b + c).min(6);
                let mut sorted = [a, b, c, d];
                sorted.sort_unstable();
                if sorted == [0, 1, 2, 3] {
                    orders.push([a, b, c, d]);
                }
            }
        }
    }
    orders
}

pub(crate) fn running(seen: &Seen, name: &str) -> bool {
    seen.get("allocations", "default", name)["status"]["phase"] == "Running"
}

pub(crate) fn nothing_left(seen: &Seen) -> bool {
    [
        "plugins",
        "plugininstances",
        "volumeclasses",
        "volumeclaims",
        "volumes",
        "volumeattachments",
        "allocations",
    ]
    .iter()
    .all(|plural| seen.all(plural).is_empty())
}

/// Scenario B26.
/// What is missing makes things wait, and they go on by themselves; what is deleted goes in whatever order.
#[tokio::test(start_paused = true)]
async fn up_and_down_in_every_order() {
    let orders = orders();
    assert_eq!(orders.len(), 24);
    for (i, up) in orders.iter().enumerate() {
        let bench = Bench::new(&["a", "b"]).await;
        let objects = quickstart();
        for index in up {
            let (plural, _, object) = &objects[*index];
            bench.make(plural, object.clone()).await;
            if i % 3 == 0 {
                // Let what is there settle first, so that each object comes late.
                crate::bench::pass(1).await;
            }
        }
        bench.until("it runs", |seen| running(seen, "hello")).await;
        let claim = bench.seen.get("volumeclaims", "default", "data");
        assert_eq!(claim["status"]["phase"], "Bound");
        bench
            .until("the plugin is ready", |seen| {
                condition(&seen.get("plugins", "", "dir"), "Ready")["status"] == "True"
            })
            .await;
        assert_eq!(bench.ledger.count("create"), 1, "{:?}", bench.ledger.calls());
        let down = orders[(i * 7 + 5) % 24];
        for index in down {
            let (plural, namespace, object) = &objects[index];
            bench.delete(plural, namespace, object["metadata"]["name"].as_str().unwrap()).await;
            if i % 3 == 1 {
                crate::bench::pass(1).await;
            }
        }
        bench.until("nothing is left", nothing_left).await;
        assert!(bench.ledger.is_empty(), "{up:?} {down:?} {:?}", bench.ledger.calls());
        let verbs: Vec<_> =
            bench.ledger.calls().iter().map(|c| c.split(' ').next().unwrap().to_owned()).collect();
        assert_eq!(verbs, ["create", "publish", "unpublish", "delete"], "{up:?} {down:?}");
        bench.end().await;
    }
}
