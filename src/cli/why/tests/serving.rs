//! Who serves a plugin, and does not keep running.
use super::*;

#[test]
fn a_driver_that_is_well_in_between_is_named_to_those_who_need_it() {
    let steady = json!([
        { "type": "Ready", "status": "True" },
        { "type": "Steady", "status": "False", "reason": "CrashLoop", "message": "none of its last 4 runs went well" },
    ]);
    let unsteady = json!({ "status": { "conditions": steady } });
    let here = |cluster: Value, asked: &str, way: &[&str]| {
        let page = explain(&objects(&cluster), &subject(asked)).unwrap();
        let found: Vec<_> = page.tree.path().iter().map(|branch| branch.subject.to_string()).collect();
        assert_eq!(found[..way.len().min(found.len())], *way, "{asked}");
        assert_eq!(page.root.is_some(), !way.is_empty(), "{asked}");
        if let Some(root) = page.root {
            assert_eq!(root.reason, "CrashLoop");
            assert_eq!(root.text, "healthy on b for now: none of its last 4 runs went well");
            assert!(root.advice.contains("wharfline describe plugininstance/nfs-b"), "{}", root.advice);
        }
    };
    let b = || with(&[("instances/1", unsteady.clone())]);
    here(b(), "Plugin/nfs", &["plugin/nfs", "plugininstance/nfs-b"]);
    here(b(), "PluginInstance/nfs-b", &["plugininstance/nfs-b"]);
    // What runs is not held up by it, and what waits for node b is.
    here(b(), "Allocation/web-data", &[]);
    let down =
        json!({ "status": { "node": { "staged": "Down", "reason": "PluginNotReady", "message": "m" } } });
    let waits = with(&[
        ("instances/1", unsteady.clone()),
        ("allocations/0", waiting("vol-data")),
        ("attachments/0", down),
    ]);
    let way = ["allocation/web-data", "volumeclaim/data", "volume/vol-data"];
    let rest = ["volumeattachment/att-data", "plugin/nfs", "plugininstance/nfs-b"];
    here(waits, "Allocation/web-data", &[&way[..], &rest].concat());
    // A new volume is made by the other one.
    let claim = json!({ "spec": { "volumeClassName": "fast" }, "status": { "phase": "Pending", "volumeName": null } });
    let page = explain(
        &objects(&with(&[("instances/1", unsteady), ("claims/0", claim)])),
        &subject("VolumeClaim/data"),
    );
    let page = page.unwrap();
    assert!(page.root.is_none_or(|root| root.reason != "CrashLoop"), "{:?}", page.tree);
}

/// A plugin whose next instance on node b is there beside the former one.
fn with_next(changes: &[(&str, Value)]) -> Value {
    let mut cluster = healthy();
    let copy = |cluster: &mut Value, list: &str, from: usize, name: &str, time: &str| {
        let mut next = cluster[list][from].clone();
        next["metadata"]["name"] = json!(name);
        next["metadata"]["creationTimestamp"] = json!(time);
        cluster[list].as_array_mut().unwrap().push(next);
    };
    cluster["instances"][1]["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    copy(&mut cluster, "instances", 1, "nfs-b-next", "2026-01-01T00:01:00Z");
    cluster["instances"][2]["spec"]["allocation"]["name"] = json!("nfs-next-b");
    copy(&mut cluster, "allocations", 3, "nfs-next-b", "2026-01-01T00:01:00Z");
    let updating = json!({ "conditions": [{ "type": "Ready", "status": "True" },
        { "type": "Updated", "status": "False", "reason": "Updating", "message": "waits for node b" }] });
    cluster["plugins"][0]["status"] = updating;
    for (place, patch) in changes {
        json_patch::merge(cluster.pointer_mut(&format!("/{place}")).unwrap(), patch);
    }
    cluster
}

fn root(cluster: &Value, asked: &str) -> (String, String, String) {
    let root = explain(&objects(cluster), &subject(asked)).unwrap().root.unwrap();
    (root.subject.to_string(), root.text, root.advice)
}

#[test]
fn what_is_wrong_with_an_instance_whose_successor_is_well_is_no_matter() {
    let looping = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" },
        { "type": "Steady", "status": "False", "reason": "CrashLoop", "message": "none of its runs went well" }] } });
    let sick = unmet("Ready", "ProcessEnded", "its process exited");
    for wrong in [&looping, &sick] {
        let cluster = with_next(&[("instances/1", wrong.clone())]);
        let (subject, text, _) = root(&cluster, "Plugin/nfs");
        assert_eq!((subject.as_str(), text.ends_with("waits for node b")), ("plugin/nfs", true), "{text}");
        // The former spec was brought back, and the next one goes.
        let cluster = with_next(&[("instances/1", looping.clone()), ("allocations/4", deleted())]);
        assert_eq!(root(&cluster, "Plugin/nfs").0, "plugininstance/nfs-b");
        // The next one is no better.
        for next in [&looping, &sick] {
            let cluster = with_next(&[("instances/1", wrong.clone()), ("instances/2", next.clone())]);
            assert!(root(&cluster, "Plugin/nfs").0.starts_with("plugininstance/nfs-b"));
        }
    }
}

#[test]
fn a_former_instance_that_waits_for_calls_says_so() {
    let draining = json!({ "metadata": { "deletionTimestamp": DELETED, "finalizers": ["wharfline.dev/protection"] },
        "status": { "pluginReleased": true, "tasks": [{ "name": "driver", "state": "Running",
            "events": [{ "time": DELETED, "reason": "Draining", "message": "is asked to end when the calls end" }] }] } });
    let (subject, text, _) = root(&with_next(&[("allocations/3", draining)]), "Plugin/nfs");
    assert_eq!(subject, "allocation/nfs-all-b");
    assert!(text.ends_with("task driver is Running; it is asked to end when the calls end"), "{text}");
}

#[test]
fn an_update_that_is_held_is_told_while_nobody_serves() {
    let held = json!({ "status": { "conditions": [
        { "type": "Ready", "status": "False", "reason": "ProcessEnded", "message": "m" },
        { "type": "Updated", "status": "False", "reason": "UpdateHeld", "message": "0 of 2; the former spec helps" }] } });
    let cluster = with(&[("plugins/0", held), ("instances/1", unmet("Ready", "ProcessEnded", "m"))]);
    let tree = explain(&objects(&cluster), &subject("Plugin/nfs")).unwrap().tree;
    assert_eq!(
        tree.text,
        "1 of 2 instances healthy; its update is not through: 0 of 2; the former spec helps"
    );
    let (_, _, advice) = root(&cluster, "Plugin/nfs");
    assert!(advice.ends_with("; or apply the former spec of plugin/nfs again"), "{advice}");
}

/// To delete what needs it would be a loss for nothing.
#[test]
fn who_changed_what_serves_is_told_to_change_it_back() {
    let other = json!({ "spec": { "tasks": [{ "name": "driver", "runtime": {},
        "csiPlugin": { "pluginName": "other", "role": "Monolith" } }] } });
    let in_use = unmet("Ready", "InUse", "volumes need it");
    let cluster = with(&[("allocations/3", other), ("plugins/0", in_use.clone())]);
    let (_, _, advice) = root(&cluster, "Allocation/nfs-all-b@wharfline-system");
    assert!(advice.starts_with("write its csiPlugin block as it was, or leave it"), "{advice}");
    let (_, _, advice) = root(&with(&[("plugins/0", in_use.clone())]), "Plugin/nfs");
    assert!(advice.starts_with("undo what was changed or deleted, or leave it"), "{advice}");
    // Who has it deleted wants it to go.
    let cluster = with(&[("plugins/0", in_use), ("plugins/0", deleted())]);
    let (_, _, advice) = root(&cluster, "Plugin/nfs");
    assert!(advice.starts_with("`wharfline delete volumeclaim/data"), "{advice}");
}

/// One of its plugins can do without it, and what needs that plugin is not to blame.
#[test]
fn of_two_plugins_of_an_allocation_the_one_that_is_needed_is_named() {
    let both = json!({ "metadata": { "deletionTimestamp": DELETED, "finalizers": ["wharfline.dev/protection"] },
        "spec": { "tasks": [
            { "name": "driver", "runtime": {}, "csiPlugin": { "pluginName": "nfs", "role": "Monolith" } },
            { "name": "more", "runtime": {}, "csiPlugin": { "pluginName": "zfs", "role": "Monolith" } }] } });
    let mut cluster = with(&[("allocations/3", both)]);
    let other = json!({ "metadata": { "name": "zfs" }, "spec": {}, "status": unmet("Ready", "InUse", "z")["status"] });
    cluster["plugins"].as_array_mut().unwrap().push(other);
    cluster["volumes"][1]["spec"]["plugin"] = json!("zfs");
    let (subject, ..) = root(&cluster, "Allocation/nfs-all-b@wharfline-system");
    assert_eq!(subject, "allocation/web-logs");
}

/// An allocation of the namespace whose task is to serve a plugin that is not there.
fn to_serve(name: &str, plugin: &str, status: &Value, volumes: &Value) -> Value {
    let mut status = status.clone();
    status["status"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
    json!({ "metadata": { "namespace": "shop", "name": name, "uid": name },
        "spec": { "volumes": volumes, "tasks": [{ "name": "driver", "runtime": {},
            "csiPlugin": { "pluginName": plugin, "role": "Monolith" } }] },
        "status": status["status"] })
}

/// A plugin that nobody declared comes with its first healthy instance, and what keeps that from coming is the cause.
#[test]
fn what_is_to_bring_a_plugin_along_is_the_cause_of_its_absence() {
    let pending = json!({ "spec": { "volumeClassName": "fast" },
        "status": { "phase": "Pending", "volumeName": null, "conditions": [{ "type": "Ready", "status": "False",
            "reason": "NotFound", "message": "waits for Plugin \"own\", which does not exist yet" }] } });
    let unready =
        || unplaced("VolumeNotReady", "claim \"data\": waits for Plugin \"own\", which does not exist yet");
    let mut cluster = with(&[
        ("classes/0", json!({ "spec": { "plugin": "own" } })),
        ("claims/0", pending),
        ("allocations/0", unready()),
    ]);
    let (subject, text, advice) = root(&cluster, "Allocation/web-data");
    assert_eq!((subject.as_str(), text.as_str()), ("plugin/own", "does not exist"), "{advice}");
    let failed = json!({ "status": { "nodeName": "b", "phase": "Failed", "conditions": [{ "type": "Ready",
        "status": "False", "reason": "NotStarted", "message": "no such command" }] } });
    let all = cluster["allocations"].as_array_mut().unwrap();
    all.push(to_serve("drv", "own", &failed, &json!([])));
    let (subject, text, _) = root(&cluster, "Allocation/web-data");
    assert_eq!(subject, "allocation/drv");
    assert!(text.contains("no such command"), "{text}");
    // It waits for the very plugin that it is to bring along.
    let uses = json!([{ "name": "v", "claimName": "data" }]);
    *cluster["allocations"].as_array_mut().unwrap().last_mut().unwrap() =
        to_serve("drv", "own", &unready(), &uses);
    let (subject, text, advice) = root(&cluster, "Allocation/drv");
    assert_eq!(subject, "plugin/own");
    assert!(text.contains("waits for this in the end"), "{text}");
    assert!(advice.contains("run one of the drivers in an allocation without"), "{advice}");
    // One that is told so is no matter of the plugin at all.
    *cluster["allocations"].as_array_mut().unwrap().last_mut().unwrap() = to_serve(
        "drv",
        "own",
        &unplaced("OwnPlugin", "serves plugin \"own\" and can use no volume of it"),
        &uses,
    );
    let (subject, _, advice) = root(&cluster, "Allocation/drv");
    assert_eq!(subject, "allocation/drv");
    assert!(advice.contains("in an allocation of its own"), "{advice}");
}

#[test]
fn who_may_not_serve_a_plugin_is_told_how_it_may() {
    let refused =
        "Plugin \"nfs\" takes no instances from namespace \"shop\"; its allowInstancesFrom does not name it";
    let mut driver = to_serve(
        "drv",
        "nfs",
        &json!({ "status": { "nodeName": "b", "phase": "Running",
        "pluginRefused": refused } }),
        &json!([]),
    );
    let mut cluster = with(&[("plugins/0", json!({ "spec": { "allowInstancesFrom": ["ops"] } }))]);
    cluster["allocations"].as_array_mut().unwrap().push(driver.clone());
    let (_, text, advice) = root(&cluster, "Allocation/drv");
    assert!(text.contains(refused), "{text}");
    let patch = "`wharfline patch plugin/nfs -p '{\"spec\":{\"allowInstancesFrom\":[\"ops\",\"shop\"]}}'`";
    assert!(advice.starts_with(patch), "{advice}");
    // What is refused for another reason is not let in by that.
    driver["status"]["pluginRefused"] = json!("serves plugin \"nfs\" and can use no volume of it");
    *cluster["allocations"].as_array_mut().unwrap().last_mut().unwrap() = driver;
    let (_, _, advice) = root(&cluster, "Allocation/drv");
    assert!(!advice.contains("allowInstancesFrom"), "{advice}");
}

/// One that was there before, on a node that is not known.
#[test]
fn a_volume_of_a_node_that_does_not_exist_leads_to_it() {
    let why =
        json!([{ "type": "Ready", "status": "False", "reason": "PluginNotReady", "message": "no instance" }]);
    let source = json!({ "existing": { "handle": "h", "nodeName": "n9" } });
    let volume = json!({ "spec": { "source": source },
        "status": { "phase": "Pending", "controller": null, "conditions": why } });
    let cluster = with(&[("volumes/0", volume)]);
    let root = explain(&objects(&cluster), &subject("Volume/vol-data")).unwrap().root.unwrap();
    assert_eq!((root.subject.to_string().as_str(), root.text.as_str()), ("node/n9", "does not exist"));
}
