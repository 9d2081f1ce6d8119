//! A csiPlugin block that changes under a running task: the process makes room, its users stay.
use serde_json::{Value, json};
use wharfline::api::Allocation;

use crate::instances::{driver, end_own, own_instance, ready, user_of_own};
use crate::support::node::{NODE, Rig, uid};
use crate::support::scripted::Config;

/// Changes the block of the allocation `own`.
pub(crate) async fn change(rig: &Rig, block: Value) {
    let spec = serde_json::to_value(&rig.allocs.get("own").await.unwrap().spec).unwrap();
    let mut task = spec["tasks"][0].clone();
    for (field, value) in block.as_object().unwrap() {
        task["csiPlugin"][field] = value.clone();
    }
    rig.world.patch(&rig.allocs, "own", json!({ "spec": { "tasks": [task] } })).await;
}

/// Takes the admission of `own` back, and gives it anew.
async fn admit(rig: &Rig, alloc: &Allocation, spec: Value) {
    rig.world.delete(&rig.instances, "own").await;
    let mut all = json!({ "plugin": "own", "role": "Monolith", "nodeName": NODE, "task": "plugin",
        "allocation": { "namespace": "default", "name": "own", "uid": uid(alloc) } });
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "PluginInstance",
        "metadata": { "name": "own" }, "spec": all });
    rig.world.create(&rig.instances, object).await;
}

/// The allocation's condition Ready, and what it says.
fn told(allocation: &Value) -> (&str, &str) {
    let conditions = allocation["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|c| c["type"] == "Ready");
    ready.map_or(("", ""), |c| (c["status"].as_str().unwrap_or(""), c["message"].as_str().unwrap_or("")))
}

async fn restarts(rig: &Rig, count: u64) {
    let again = |a: &Value| a["status"]["tasks"][0]["restarts"].as_u64().unwrap_or(0) == count;
    rig.world.until(&rig.allocs, "own", "started again", again).await;
}

/// Scenario A20.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_block_takes_hold_when_it_is_admitted_and_users_stay() {
    let mut rig = Rig::idle(Config::without_attach_and_stage()).await;
    rig.start().await;
    let command = json!(["/bin/sh", "-c", format!("exec {}", driver(&rig))]);
    let own = own_instance(&rig, command, "20s").await;
    ready(&rig, "own", "True").await;
    let app = user_of_own(&rig).await;

    // How long it may take is nothing that it was told; a path of its own is refused to a process.
    change(&rig, json!({ "healthTimeout": "25s" })).await;
    // Somebody needs it as it was: nobody admitted it for anything else.
    change(&rig, json!({ "role": "Node" })).await;
    let held = "task plugin serves plugin own as Monolith still: its csiPlugin block now says plugin own as Node, and that waits \
                until no volume needs it as it was";
    rig.world.until(&rig.allocs, "own", "told that it is held", |a: &Value| told(a) == ("True", held)).await;
    rig.stop().await;
    rig.start().await;
    ready(&rig, "own", "True").await;
    restarts(&rig, 0).await;

    admit(&rig, &own, json!({ "role": "Node" })).await;
    restarts(&rig, 1).await;
    ready(&rig, "own", "True").await;
    rig.world
        .until(&rig.allocs, "own", "nothing is held any more", |a: &Value| told(a) == ("True", ""))
        .await;
    let after = serde_json::to_value(rig.allocs.get("app").await.unwrap()).unwrap();
    assert_eq!(after["status"], app["status"], "its user was disturbed");
    let path = app["status"]["volumes"][0]["path"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(format!("{path}/log")).unwrap(), "up\n");

    // What it brought up it takes down in its new role.
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    change(&rig, json!({ "pluginName": "other", "role": "Monolith" })).await;
    admit(&rig, &own, json!({ "plugin": "other" })).await;
    restarts(&rig, 2).await;
    ready(&rig, "own", "True").await;
    change(&rig, json!({ "pluginName": "own" })).await;
    admit(&rig, &own, json!({ "plugin": "own" })).await;
    restarts(&rig, 3).await;
    ready(&rig, "own", "True").await;
    rig.end_volume("vol-1").await;
    end_own(&rig).await;
}
