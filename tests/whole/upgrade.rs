//! A driver is replaced by another version of it, while its volumes are in use.
use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::quickstart::{greeting, started};
use crate::rig::{Rig, until};

/// The driver's processes here, by pid.
fn drivers(rig: &Rig) -> BTreeSet<String> {
    let of_it = |line: &String| line.contains("csi dir");
    rig.processes()
        .iter()
        .filter(|line| of_it(line))
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

fn updated(rig: &Rig) -> Value {
    let plugin = rig.get("plugin", "dir");
    let conditions = plugin["status"]["conditions"].as_array().unwrap().clone();
    conditions.into_iter().find(|c| c["type"] == "Updated").unwrap_or_default()
}

/// Wants the driver with another command.
fn change(rig: &Rig, command: &Value) {
    run_by(rig, &json!({ "process": { "command": command } }));
}

/// Wants the driver run otherwise. No version is named: its controllers write the object meanwhile.
fn run_by(rig: &Rig, runtime: &Value) {
    let mut plugin = rig.get("plugin", "dir");
    plugin["spec"]["instances"][0]["runtime"] = runtime.clone();
    plugin["metadata"] = json!({ "name": "dir" });
    plugin["status"].take();
    rig.apply(&plugin.to_string());
}

/// Scenarios A16, A53, B111, B116.
#[test]
fn a_driver_is_replaced_under_a_running_task_which_the_next_one_takes_down() {
    let mut rig = Rig::new();
    rig.up();
    started(&rig);
    let before = drivers(&rig);
    assert_eq!(before.len(), 1);
    let (mounts, task) = (rig.mounts(), rig.get("allocation", "hello")["status"]["tasks"].clone());
    let command = rig.get("plugin", "dir")["spec"]["instances"][0]["runtime"]["process"]["command"].clone();

    // One that is no driver is held: the former one serves.
    change(&rig, &json!(["/bin/false"]));
    until("the change is held", || updated(&rig)["reason"] == "UpdateHeld");
    assert_eq!(drivers(&rig), before);
    let plugin = rig.get("plugin", "dir");
    assert_eq!(plugin["status"]["nodes"], json!({ "healthy": 1, "expected": 1 }), "{plugin}");
    let message = updated(&rig)["message"].as_str().unwrap().to_owned();
    assert!(message.contains("0 of 1") && message.contains("exited with code 1"), "{message}");

    // So is one that cannot even be started.
    run_by(&rig, &json!({ "oci": { "archive": "${DATA_DIR}/image-archives/none.tar" } }));
    until("what it lacks is told", || {
        let updated = updated(&rig);
        updated["reason"] == "UpdateHeld" && updated["message"].as_str().unwrap().contains("none.tar")
    });
    assert_eq!(drivers(&rig), before);
    let more = include_str!("../../manifests/quickstart.yaml").split("---").last().unwrap();
    let more = more.replace("name: hello", "name: second").replace("name: data", "name: more");
    let claim = include_str!("../../manifests/quickstart.yaml").split("---").nth(2).unwrap();
    let claim = claim.replace("name: data", "name: more");
    rig.apply(&format!("{claim}---{}", more.replace("claimName: data", "claimName: more")));
    rig.wait_ready("allocation/second");

    // Another version of the same driver, said by an option that changes nothing.
    let mut next = command.as_array().unwrap().clone();
    next.insert(0, json!("/usr/bin/env"));
    next[1] = json!(crate::rig::WHARFLINE);
    change(&rig, &Value::Array(next));
    until("the change is through", || updated(&rig)["status"] == "True");
    until("one driver is left", || drivers(&rig).len() == 1);
    assert!(drivers(&rig).is_disjoint(&before), "another process serves");
    let told = rig.get("allocation", "hello")["status"]["tasks"].clone();
    assert_eq!(told, task, "the task was not started again");
    let kept: Vec<String> = rig.mounts().into_iter().filter(|mount| mounts.contains(mount)).collect();
    assert_eq!(kept, mounts, "what was mounted stays");
    assert_eq!(greeting(&rig), "hello from wharfline\n");

    rig.run(&["delete", "allocation/hello", "allocation/second"]);
    rig.run(&["delete", "volumeclaim/data", "volumeclaim/more", "volumeclass/dir", "plugin/dir"]);
    for kind in ["volumes", "volumeattachments", "allocations", "plugininstances", "plugins"] {
        until(&format!("no {kind} are left"), || rig.list(kind).is_empty());
    }
    rig.terminate();
}
