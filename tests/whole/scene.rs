//! Drivers that do what a test says, run by Wharfline as processes, and those who use their volumes.
use serde_json::{Value, json};

use crate::rig::{Rig, until};
use crate::scripted::steered::{self, Steered};

/// This binary again, as a driver: it does nothing when the environment names none.
#[test]
fn as_driver() {
    // Its files live as long as the process.
    steered::run_if_asked(|home| std::mem::forget(crate::fuse::Fuse::mount(home)));
}

/// The command that runs it.
pub(crate) fn command() -> Value {
    json!([std::env::current_exe().unwrap(), "scene::as_driver", "--exact", "--nocapture"])
}

/// Its environment: which driver, and what it is run as.
pub(crate) fn env(driver: &Steered, run_as: &str) -> Value {
    json!({ steered::DIRECTORY: driver.path(), steered::AS: run_as })
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    let mut metadata = json!({ "name": name });
    if matches!(kind, "Allocation" | "VolumeClaim") {
        metadata["namespace"] = json!("default");
    }
    json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
}

/// A Plugin that is served by this driver on each node, with these fields more of its instances.
pub(crate) fn plugin(name: &str, driver: &Steered, run_as: &str, more: &Value) -> Value {
    let mut instances = json!({ "name": "all", "role": "Monolith", "placement": { "everyNode": {} },
        "runtime": { "process": { "command": command() } }, "env": env(driver, run_as) });
    instances.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object("Plugin", name, &json!({ "instances": [instances] }))
}

/// An allocation whose task serves a plugin in this role.
pub(crate) fn serves(name: &str, plugin: &str, role: &str, (driver, run_as): (&Steered, &str)) -> Value {
    let task = json!({ "name": "driver", "runtime": { "process": { "command": command() } },
        "env": env(driver, run_as), "csiPlugin": { "pluginName": plugin, "role": role } });
    object("Allocation", name, &json!({ "tasks": [task] }))
}

/// A class of this plugin, named like it.
pub(crate) fn class(plugin: &str) -> Value {
    let spec =
        json!({ "plugin": plugin, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer" });
    object("VolumeClass", plugin, &spec)
}

/// A claim of this class, named like those who use it or not.
pub(crate) fn claim(name: &str, class: &str, mode: &str) -> Value {
    object(
        "VolumeClaim",
        name,
        &json!({ "volumeClassName": class, "accessModes": [mode],
        "resources": { "requests": { "storage": "1Mi" } } }),
    )
}

/// Who uses a claim, and says in its volume how often it was started.
pub(crate) fn user(name: &str, claim: &str) -> Value {
    let script = format!("echo {name} >> /data/{name} && exec sleep infinity");
    let task = json!({ "name": "task", "runtime": { "process": { "command": ["/bin/sh", "-c", script] } },
        "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    object(
        "Allocation",
        name,
        &json!({ "volumes": [{ "name": "data", "claimName": claim }], "tasks": [task] }),
    )
}

/// A claim and its user, both of this name.
pub(crate) fn used(name: &str, class: &str) -> [Value; 2] {
    [claim(name, class, "SingleNodeWriter"), user(name, name)]
}

pub(crate) fn apply(rig: &Rig, objects: &[Value]) {
    let documents: Vec<_> = objects.iter().map(Value::to_string).collect();
    rig.apply(&documents.join("\n---\n"));
}

/// A condition of an object; null when it has none of this type.
pub(crate) fn condition(object: &Value, kind: &str) -> Value {
    let all = object["status"]["conditions"].as_array();
    all.into_iter().flatten().find(|c| c["type"] == kind).cloned().unwrap_or_default()
}

/// The instances of a plugin, oldest first.
pub(crate) fn instances(rig: &Rig, plugin: &str) -> Vec<Value> {
    let mut all = rig.list("plugininstances");
    all.retain(|instance| instance["spec"]["plugin"] == plugin);
    all.sort_by_key(|instance| instance["metadata"]["creationTimestamp"].as_str().map(str::to_owned));
    all
}

/// The one instance of a plugin; null before there is one.
pub(crate) fn instance(rig: &Rig, plugin: &str) -> Value {
    let mut all = instances(rig, plugin);
    assert!(all.len() < 2, "{all:#?}");
    all.pop().unwrap_or_default()
}

/// The allocation that runs an instance.
pub(crate) fn allocation_of(rig: &Rig, instance: &Value) -> Value {
    let uid = &instance["spec"]["allocation"]["uid"];
    rig.list("allocations").into_iter().find(|a| a["metadata"]["uid"] == *uid).unwrap_or_default()
}

/// The process of the task that an allocation runs; none between two of them.
pub(crate) fn pid(rig: &Rig, allocation: &Value) -> Option<i32> {
    let uid = allocation["metadata"]["uid"].as_str()?;
    let tasks = std::fs::read_dir(rig.data.path().join("tasks")).ok()?.flatten();
    let directory = tasks.map(|entry| entry.path()).find(|path| path.to_str().unwrap().contains(uid))?;
    let state: Value = serde_json::from_slice(&std::fs::read(directory.join("state.json")).ok()?).ok()?;
    i32::try_from(state["task"]["pid"].as_i64()?).ok()
}

/// SIGKILL to that process.
pub(crate) fn kill(rig: &Rig, allocation: &Value) {
    let pid = rustix::process::Pid::from_raw(pid(rig, allocation).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// What was told of an object, and how often.
pub(crate) fn events(rig: &Rig, object: &Value) -> Vec<(String, String, u64)> {
    let uid = &object["metadata"]["uid"];
    let all = rig.list("events").into_iter().filter(|e| e["involvedObject"]["uid"] == *uid);
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let times = |e: &Value| e["count"].as_u64().or(e["series"]["count"].as_u64()).unwrap_or(1);
    all.map(|e| (word(&e["reason"]), word(&e["message"]), times(&e))).collect()
}

/// How often this reason was told of an object.
pub(crate) fn told(rig: &Rig, object: &Value, reason: &str) -> u64 {
    events(rig, object).iter().filter(|(why, ..)| why == reason).map(|(.., times)| times).sum()
}

pub(crate) fn phase(rig: &Rig, allocation: &str) -> String {
    rig.get("allocation", allocation)["status"]["phase"].as_str().unwrap_or_default().to_owned()
}

/// Where an allocation has its volume.
pub(crate) fn path(rig: &Rig, allocation: &str) -> String {
    rig.get("allocation", allocation)["status"]["volumes"][0]["path"].as_str().unwrap().to_owned()
}

/// How often a user has been started, by what it wrote in its volume.
pub(crate) fn starts(rig: &Rig, user: &str) -> usize {
    let text = std::fs::read_to_string(format!("{}/{user}", path(rig, user))).unwrap_or_default();
    text.lines().count()
}

/// The handle of the volume of a claim.
pub(crate) fn handle(rig: &Rig, claim: &str) -> String {
    let volume = rig.get("volumeclaim", claim)["status"]["volumeName"].as_str().unwrap().to_owned();
    rig.get("volume", &volume)["status"]["handle"].as_str().unwrap().to_owned()
}

/// Takes all objects down and sees that nothing is left, neither here nor with the drivers.
pub(crate) fn finish(mut rig: Rig, drivers: &[&Steered]) {
    // Users and their claims first; plugins that somebody runs by hand go with the allocations that run them.
    let by_hand = |a: &Value| !a["spec"]["tasks"][0]["csiPlugin"].is_null();
    let (serving, using): (Vec<_>, Vec<_>) = rig.list("allocations").into_iter().partition(by_hand);
    for allocation in using.iter().chain(serving.iter().filter(|a| a["metadata"]["namespace"] == "default")) {
        let name = allocation["metadata"]["name"].as_str().unwrap();
        rig.run(&["delete", "allocation", name, "--wait=false"]);
    }
    for kind in ["volumeclaims", "volumeclasses", "plugins"] {
        rig.run(&["delete", kind, "--all", "--wait=false"]);
    }
    for kind in ["allocations", "volumeattachments", "volumes", "plugininstances", "plugins"] {
        until(&format!("no {kind} are left"), || rig.list(kind).is_empty());
    }
    for driver in drivers {
        driver.assert_clean();
    }
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
}
