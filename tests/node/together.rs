//! Several tasks in one allocation, of which some serve plugins: each by itself, whatever becomes of the others.
use serde_json::{Value, json};
use wharfline::api::Allocation;
use wharfline::csi::Rpc;

use crate::instances::{driver, ready, user_of_own};
use crate::support::node::{NODE, NODE_ID, Rig, Special, condition_message, uid, until};
use crate::support::scripted::{Config, Scripted, Site};

/// A task that serves a plugin by a process of this node; it says where the test is to answer for it.
fn serving(rig: &Rig, name: &str, plugin: &str) -> Value {
    let at = rig.files.path().join(name);
    let script =
        format!("echo $CSI_ENDPOINT > {0}.new && mv {0}.new {0} && exec sleep infinity", at.display());
    json!({ "name": name, "runtime": { "process": { "command": ["/bin/sh", "-c", script] } },
        "csiPlugin": { "pluginName": plugin, "role": "Monolith" } })
}

/// Answers at the socket of a task that was just started.
async fn answer(rig: &Rig, name: &str) -> Scripted {
    let at = rig.files.path().join(name);
    until(|| at.exists(), "it runs").await;
    let endpoint = std::fs::read_to_string(&at).unwrap();
    std::fs::remove_file(&at).unwrap();
    let socket = endpoint.trim().strip_prefix("unix://").unwrap().to_owned();
    Scripted::start(&rig.backend, Site::new(if name == "d3" { "i-other" } else { NODE_ID }), socket)
}

async fn admit(rig: &Rig, alloc: &Allocation, task: &str, plugin: &str) {
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "PluginInstance",
        "metadata": { "name": task }, "spec": { "plugin": plugin, "role": "Monolith", "nodeName": NODE,
            "task": task, "allocation": { "namespace": "default", "name": "many", "uid": uid(alloc) } } });
    rig.world.create(&rig.instances, object).await;
}

/// Changes which plugin one of the tasks is to serve.
async fn turn(rig: &Rig, task: usize, plugin: &str) {
    let spec = serde_json::to_value(&rig.allocs.get("many").await.unwrap().spec).unwrap();
    let mut tasks = spec["tasks"].clone();
    tasks[task]["csiPlugin"]["pluginName"] = json!(plugin);
    rig.world.patch(&rig.allocs, "many", json!({ "spec": { "tasks": tasks } })).await;
}

async fn restarted(rig: &Rig, counts: [u64; 3]) {
    let are =
        |a: &Value| (0..3).all(|at| a["status"]["tasks"][at]["restarts"].as_u64().unwrap_or(0) == counts[at]);
    rig.world.until(&rig.allocs, "many", "started again so often", are).await;
}

/// Of three tasks two serve one plugin and the third another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_plugins_in_one_allocation_are_many_instances() {
    let mut rig = Rig::idle(Config::without_attach_and_stage()).await;
    rig.start().await;
    let tasks = json!([serving(&rig, "d1", "own"), serving(&rig, "d2", "own"), serving(&rig, "d3", "other")]);
    let alloc = rig.alloc("many", json!({ "tasks": tasks })).await;
    let mut drivers = Vec::new();
    for (task, plugin) in [("d1", "own"), ("d2", "own"), ("d3", "other")] {
        admit(&rig, &alloc, task, plugin).await;
        drivers.push(answer(&rig, task).await);
        ready(&rig, task, "True").await;
    }
    let directories = || std::fs::read_dir(&rig.place.run).map_or(0, Iterator::count);
    assert_eq!(directories(), 3, "each has its own");
    let app = user_of_own(&rig).await;
    rig.ask("third", &Special { spec: json!({ "plugin": "other" }), ..Special::default() }).await;
    rig.volume_up("third").await;
    let asked: Vec<_> = rig.backend.calls_of(Rpc::CreateVolume).into_iter().map(|call| call.node).collect();
    assert_eq!(asked, [NODE_ID, "i-other"], "each plugin makes its own");

    // One of the two may go: the other one is there.
    turn(&rig, 0, "third").await;
    rig.world.delete(&rig.instances, "d1").await;
    admit(&rig, &alloc, "d1", "third").await;
    drivers[0] = answer(&rig, "d1").await;
    restarted(&rig, [1, 0, 0]).await;
    ready(&rig, "d1", "True").await;
    // The volume needs the other one as it was.
    turn(&rig, 1, "third").await;
    let held =
        |a: &Value| condition_message(a, "Ready").is_some_and(|m| m.starts_with("task d2 serves plugin own"));
    rig.world.until(&rig.allocs, "many", "held", held).await;
    restarted(&rig, [1, 0, 0]).await;
    // The end of one is no matter of the others, nor of its users.
    drivers[2].kill().await;
    ready(&rig, "d3", "False").await;
    ready(&rig, "d1", "True").await;
    ready(&rig, "d2", "True").await;
    drivers[2].serve();
    ready(&rig, "d3", "True").await;
    let after = serde_json::to_value(rig.allocs.get("app").await.unwrap()).unwrap();
    assert_eq!(after["status"], app["status"], "its user was disturbed");

    rig.end_alloc("app").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.end_volume("third").await;
    rig.world.delete(&rig.instances, "d2").await;
    admit(&rig, &alloc, "d2", "third").await;
    drivers[1] = answer(&rig, "d2").await;
    restarted(&rig, [1, 1, 0]).await;
    ready(&rig, "d2", "True").await;
    rig.release_plugin("many").await;
    until(|| directories() == 0, "nothing is left of any of them").await;
}

/// Obligation CO-PLUG-20. The allocation has failed for good, and its driver serves until nothing needs it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_fails_takes_no_driver_beside_it_along() {
    let mut rig = Rig::idle(Config::without_attach_and_stage()).await;
    rig.start().await;
    let go = rig.files.path().join("go");
    let job = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 3", go.display());
    let shell = |script: String| json!({ "process": { "command": ["/bin/sh", "-c", script] } });
    let tasks = json!([
        { "name": "plugin", "runtime": shell(format!("exec {}", driver(&rig))),
          "csiPlugin": { "pluginName": "own", "role": "Monolith" } },
        { "name": "job", "restartPolicy": "Never", "runtime": shell(job) },
        { "name": "beside", "runtime": shell("exec sleep infinity".to_owned()) }]);
    let alloc = rig.alloc("own", json!({ "tasks": tasks })).await;
    rig.admit_as("own", "own", &alloc).await;
    ready(&rig, "own", "True").await;
    user_of_own(&rig).await;
    std::fs::write(&go, "").unwrap();
    let failed = |a: &Value| {
        let state = |at: usize| a["status"]["tasks"][at]["state"].clone();
        a["status"]["phase"] == "Failed" && state(1) == "Exited" && state(2) == "Exited"
    };
    let told = rig.world.until(&rig.allocs, "own", "failed", failed).await;
    let told = serde_json::to_value(told).unwrap();
    assert_eq!(told["status"]["tasks"][0]["state"], "Running", "{told:#}");
    assert!(
        condition_message(&told, "Ready").is_some_and(|m| m.contains("task job: exited with code 3")),
        "{told:#}"
    );
    // A daemon that has just begun thinks no other.
    rig.stop().await;
    rig.start().await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    ready(&rig, "own", "True").await;
    rig.world.delete(&rig.allocs, "own").await;
    rig.world.status(&rig.allocs, "own", json!({ "pluginReleased": true })).await;
    let over = |a: &Value| a["status"]["tasks"][0]["state"] == "Exited" && a["status"]["phase"] == "Failed";
    rig.world.until(&rig.allocs, "own", "ended", over).await;
    rig.world.let_go(&rig.allocs, "own").await;
    rig.world.delete(&rig.instances, "own").await;
}
