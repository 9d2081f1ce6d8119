//! What is to stop, and what keeps it: an allocation that serves a plugin, and a plugin itself.
use super::*;

fn driver(cluster: &Value, node: &str) -> Explanation {
    let name = format!("nfs-all-{node}");
    explain(&objects(cluster), &Subject::namespaced(Kind::Allocation, "wharfline-system", &name)).unwrap()
}

fn way(page: &Explanation) -> Vec<String> {
    page.tree.path().iter().map(|branch| branch.subject.to_string()).collect()
}

/// It runs on, as its Ready condition says, which is True.
fn stopped() -> Value {
    let ready = json!({ "type": "Ready", "status": "True", "reason": "Running", "message": "it is to stop" });
    json!({ "spec": { "stop": true }, "status": { "conditions": [ready] } })
}

#[test]
fn one_that_is_to_stop_names_what_needs_its_plugin_on_its_node() {
    for going in [stopped(), deleted()] {
        let page = driver(&with(&[("allocations/3", going.clone())]), "b");
        assert_eq!(way(&page), ["allocation/nfs-all-b", "volumeclaim/data", "allocation/web-data"]);
        let root = page.root.unwrap();
        assert_eq!(root.advice, "`wharfline delete allocation/web-data -n shop`, or leave it");
        // Both volumes are used there.
        assert_eq!(page.tree.because.len(), 2, "{:?}", page.tree);
        // Nobody uses them on a: their controller calls are made there.
        let page = driver(&with(&[("allocations/2", going.clone())]), "a");
        assert_eq!(way(&page), ["allocation/nfs-all-a", "volumeclaim/data"]);
        // Which this one does not make.
        let mut cluster = with(&[("allocations/2", going)]);
        cluster["allocations"][2]["spec"]["tasks"][0]["csiPlugin"]["role"] = json!("Node");
        let page = driver(&cluster, "a");
        assert_eq!(way(&page), ["allocation/nfs-all-a"]);
        assert!(page.tree.text.ends_with("; task driver is Running"), "{}", page.tree.text);
    }
}

#[test]
fn one_that_is_to_stop_waits_until_nothing_of_it_is_left() {
    let phase = |phase: &str, state: &str| {
        json!({ "spec": { "stop": true }, "status": { "phase": phase, "pluginReleased": true,
            "tasks": [{ "name": "driver", "state": state }] } })
    };
    for (change, says) in [
        (stopped(), Some("Running on b, is to stop")),
        (phase("Running", "Running"), Some("Running on b, is to stop; task driver is Running")),
        (phase("Stopping", "Stopping"), Some("Stopping on b, is to stop; task driver is Stopping")),
        (phase("Stopping", "Exited"), Some("Stopping on b, is to stop")),
        (phase("Stopped", "Exited"), None),
        (phase("Complete", "Exited"), None),
    ] {
        let page = driver(&with(&[("allocations/3", change.clone())]), "b");
        assert_eq!(page.root.as_ref().map(|_| page.tree.text.as_str()), says, "{change}");
    }
}

/// What keeps it is of another kind than is followed here.
#[test]
fn where_nothing_is_seen_that_needs_the_plugin_its_own_word_is_told() {
    let mut cluster =
        with(&[("allocations/3", stopped()), ("plugins/0", unmet("Ready", "InUse", "still in use by x"))]);
    for field in ["claims", "volumes", "attachments"] {
        cluster[field] = json!([]);
    }
    let page = driver(&cluster, "b");
    assert_eq!(way(&page), ["allocation/nfs-all-b", "plugin/nfs"]);
    assert_eq!(page.root.unwrap().text, "is needed: still in use by x");
}

#[test]
fn a_snapshot_that_its_host_has_to_delete_needs_the_plugin_there() {
    let snapshot = json!({
        "metadata": { "namespace": "shop", "name": "eve" },
        "spec": { "source": { "claimName": "data" }, "deletionPolicy": "Delete" },
        "status": {
            "of": { "volume": "vol-data", "uid": "uid-data", "plugin": "nfs" }, "exists": "Up", "ready": true,
            "controller": { "nodeName": "a", "epoch": 1 },
        },
    });
    for (node, found) in [("a", true), ("b", false)] {
        let at = if node == "a" { "allocations/2" } else { "allocations/3" };
        let mut cluster = with(&[(at, stopped())]);
        for field in ["claims", "volumes", "attachments"] {
            cluster[field] = json!([]);
        }
        cluster["snapshots"] = json!([snapshot]);
        let page = driver(&cluster, node);
        assert_eq!(way(&page).last().map(String::as_str) == Some("snapshot/eve"), found, "{:?}", page.tree);
    }
}

/// Only the driver that crashes could delete the volume that the plugin waits for.
#[test]
fn a_plugin_that_is_deleted_leads_to_the_last_words_of_its_driver() {
    let making =
        json!({ "type": "Provisioned", "status": "False", "reason": "PluginNotReady", "message": "m" });
    let crashed = json!({ "status": {
        "phase": "Restarting",
        "conditions": [{ "type": "Ready", "status": "False", "reason": "Restarting",
            "message": "task driver: exited with code 4 after 0 s" }],
        "tasks": [{ "name": "driver", "state": "Restarting", "exitCode": 4, "restarts": 7,
            "lastOutput": "one\nno license" }],
    } });
    for leaves in [false, true] {
        let mut cluster = with(&[
            ("plugins/0", deleted()),
            ("volumes/0", deleted()),
            ("volumes/0", json!({ "status": { "holders": null, "provisioning": making } })),
            ("instances/0", unmet("Ready", "ProcessEnded", "its process ended")),
            ("allocations/2", crashed.clone()),
        ]);
        if leaves {
            json_patch::merge(&mut cluster["allocations"][2], &deleted());
        }
        cluster["claims"] = json!([]);
        cluster["attachments"] = json!([]);
        cluster["volumes"].as_array_mut().unwrap().truncate(1);
        cluster["allocations"].as_array_mut().unwrap().drain(..2);
        let page = explain(&objects(&cluster), &subject("Plugin/nfs")).unwrap();
        let driver = ["plugin/nfs", "plugininstance/nfs-a", "allocation/nfs-all-a"];
        assert_eq!(way(&page), [&["plugin/nfs", "volume/vol-data"][..], &driver].concat(), "{leaves}");
        let root = page.root.unwrap();
        let says = "exited with code 4 after 0 s; task driver ended with 4, started again 7 times; \
            it wrote last: one | no license";
        assert!(root.text.ends_with(says), "{}", root.text);
        assert!(
            root.advice.contains("wharfline logs nfs-all-a/driver -n wharfline-system"),
            "{}",
            root.advice
        );
        let asked = explain(&objects(&cluster), &subject("Volume/vol-data")).unwrap();
        assert_eq!(asked.root.unwrap().text, root.text, "the same is told to who asks about the volume");
    }
}

#[test]
fn a_plugin_that_is_deleted_and_that_nothing_needs_waits_for_its_own_allocations() {
    let going = json!({ "status": { "phase": "Stopping", "pluginReleased": true } });
    let mut cluster =
        with(&[("plugins/0", deleted()), ("allocations/3", deleted()), ("allocations/3", going)]);
    cluster["volumes"] = json!([]);
    let page = explain(&objects(&cluster), &subject("Plugin/nfs")).unwrap();
    assert_eq!(way(&page), ["plugin/nfs", "allocation/nfs-all-b"]);
    assert_eq!(page.root.unwrap().text, "being deleted; task driver is Running");
}

/// To delete it once more would do nothing.
#[test]
fn a_volume_that_was_deleted_under_its_claim_waits_for_the_claim() {
    let waits = json!({ "metadata": { "deletionTimestamp": DELETED, "finalizers": ["wharfline.dev/protection"] },
        "status": { "phase": "Releasing", "holders": [], "nextAttemptTime": "2026-01-01T00:00:05Z",
            "provisioning": { "type": "Provisioned", "status": "False", "reason": "InUse", "message": "in use" } } });
    // Of what is kept the Volume itself says so.
    let bound = json!({ "metadata": { "deletionTimestamp": DELETED, "finalizers": ["wharfline.dev/protection"] },
        "status": { "phase": "Releasing", "holders": [], "conditions": [
            { "type": "Ready", "status": "False", "reason": "InUse", "message": "is bound to its claim" }] } });
    let mut cluster = Value::Null;
    for waits in [bound, waits] {
        cluster = without(with(&[("volumes/0", waits)]), "attachments", 0);
        let root = explain(&objects(&cluster), &subject("Volume/vol-data")).unwrap().root.unwrap();
        assert_eq!(root.advice, "`wharfline delete volumeclaim/data -n shop`: it goes with that");
        assert_eq!(root.next, None);
    }
    // Its claim goes already: something else is in its way.
    json_patch::merge(&mut cluster["claims"][0], &deleted());
    let root = explain(&objects(&cluster), &subject("Volume/vol-data")).unwrap().root.unwrap();
    assert!(!root.advice.contains("delete volumeclaim/data"), "{}", root.advice);
}

/// The attachment goes once its node has let go, and that once the task of the last one who has the volume has ended.
#[test]
fn a_volume_that_leaves_its_node_leads_to_the_task_that_has_it_still() {
    let ends =
        json!({ "status": { "phase": "Stopping", "tasks": [{ "name": "web", "state": "Stopping" }] } });
    let mut changes = vec![("volumes/0", deleted()), ("attachments/0", deleted())];
    let page = explain(&objects(&with(&changes)), &subject("Volume/vol-data")).unwrap();
    assert_eq!(way(&page), ["volume/vol-data", "volumeattachment/att-data"]);
    changes.extend([("allocations/0", deleted()), ("allocations/0", ends)]);
    let page = explain(&objects(&with(&changes)), &subject("Volume/vol-data")).unwrap();
    assert_eq!(way(&page), ["volume/vol-data", "volumeattachment/att-data", "allocation/web-data"]);
    assert!(page.root.unwrap().text.contains("task web is Stopping"));
}

/// Nobody asks a node for what it takes down by itself: all who were let in are being deleted, or it has closed already.
#[test]
fn what_a_node_takes_down_by_itself_is_on_its_way_down() {
    let busy = json!({ "status": { "node": { "reason": "UnpublishFailed", "message": "target is busy" } } });
    let closed = json!({ "status": { "node": { "closed": true } } });
    let let_in = json!({ "spec": { "allocations": ["uid-of-web"] } });
    let uid = json!({ "metadata": { "uid": "uid-of-web" } });
    let told = |changes: &[(&str, Value)]| {
        let cluster = with(changes);
        let asked = Subject::global(Kind::Attachment, "att-data");
        explain(&objects(&cluster), &asked).unwrap().tree.text
    };
    let at = |what: Value| ("attachments/0", what);
    let user = |what: Value| ("allocations/0", what);
    let goes = [at(busy.clone()), at(let_in.clone()), user(uid.clone()), user(deleted())];
    assert_eq!(told(&goes), "not released by b yet: target is busy");
    assert_eq!(told(&[at(busy.clone()), at(closed)]), "not released by b yet: target is busy");
    let stays = told(&[at(busy), at(let_in), user(uid)]);
    assert!(stays.ends_with("target is busy") && !stays.contains("released"), "{stays}");
}

/// The allocation has ended and its claim is deleted: what is in the way of all three is the detach that fails.
#[test]
fn what_cannot_be_detached_is_what_everybody_waits_for_whose_end_it_holds_up() {
    let attachment = json!({
        "metadata": { "deletionTimestamp": DELETED, "finalizers": ["wharfline.dev/protection"] },
        "status": {
            "node": { "staged": "Down", "releasedUID": "att-uid-data" },
            "controller": { "attached": "Unknown", "reason": "ControllerUnpublishVolumeFailed", "message": "no" },
        },
    });
    let ended = json!({ "status": { "phase": "Stopped", "tasks": [{ "name": "t", "state": "Exited" }],
        "volumes": [{ "name": "v", "volume": "vol-data", "published": "Down" }] } });
    let in_use = unmet("Ready", "InUse", "still in use by allocation shop/web-data");
    let cluster = with(&[
        ("attachments/0", attachment),
        ("allocations/0", deleted()),
        ("allocations/0", ended),
        ("claims/0", deleted()),
        ("claims/0", in_use),
    ]);
    let att = "volumeattachment/att-data";
    let says = "released by b, not detached yet: no";
    for (asked, ways) in [
        ("Allocation/web-data", vec!["allocation/web-data", att]),
        ("VolumeClaim/data", vec!["volumeclaim/data", "allocation/web-data", att]),
        ("Volume/vol-data", vec!["volume/vol-data", att]),
    ] {
        let page = explain(&objects(&cluster), &subject(asked)).unwrap();
        assert_eq!(way(&page), ways, "{asked}");
        assert_eq!(page.root.unwrap().text, says, "{asked}");
    }
    // The allocation is gone, its hold is not.
    let cluster = without(cluster, "allocations", 0);
    let page = explain(&objects(&cluster), &subject("VolumeClaim/data")).unwrap();
    assert_eq!(way(&page), ["volumeclaim/data", att]);
}

/// It is deleted already: to delete it once more would do nothing.
#[test]
fn a_claim_that_goes_and_whose_user_is_not_seen_is_not_to_be_deleted_once_more() {
    let in_use = unmet("Ready", "InUse", "still in use by allocation shop/web-data");
    let mut cluster = with(&[("claims/0", deleted()), ("claims/0", in_use)]);
    cluster["volumes"][0]["status"]["holders"] = json!([]);
    let cluster = without(cluster, "allocations", 0);
    let root = explain(&objects(&cluster), &subject("VolumeClaim/data")).unwrap().root.unwrap();
    assert_eq!(root.advice, "it goes by itself once nothing has it any more");
}

/// Who waits for a claim that is being deleted does not keep it, and does not get it.
#[test]
fn a_claim_that_is_being_deleted_is_waited_for_in_vain() {
    let named = json!({ "spec": { "volumes": [{ "name": "v", "claimName": "data" }] } });
    let in_use = unmet("Ready", "InUse", "still in use by allocation shop/web-data");
    let unplaced = json!({ "status": { "phase": "Pending", "nodeName": "", "volumes": [], "tasks": [],
        "conditions": [{ "type": "Ready", "status": "False", "reason": "BeingDeleted", "message": "being deleted" }] } });
    for waits in [waiting(""), unplaced] {
        let cluster = with(&[
            ("claims/0", deleted()),
            ("claims/0", in_use.clone()),
            ("allocations/1", named.clone()),
            ("allocations/1", waits),
        ]);
        let page = explain(&objects(&cluster), &subject("Allocation/web-logs")).unwrap();
        assert_eq!(way(&page), ["allocation/web-logs", "volumeclaim/data", "allocation/web-data"]);
        let said = &page.tree.because[0].text;
        assert!(said.starts_with("being deleted, and given to nobody any more: "), "{said}");
        let advice = page.root.unwrap().advice;
        assert!(advice.starts_with("apply a manifest of it again once it is gone"), "{advice}");
        // Of its own it is made by itself.
        let template = json!({ "claimTemplate": { "spec": { "accessModes": ["SingleNodeWriter"] } } });
        let mut own = cluster.clone();
        json_patch::merge(&mut own["allocations"][1]["spec"]["volumes"][0], &template);
        let advice = explain(&objects(&own), &subject("Allocation/web-logs")).unwrap().root.unwrap().advice;
        assert!(advice.starts_with("it is made anew by itself once it is gone"), "{advice}");
        let page = explain(&objects(&cluster), &subject("VolumeClaim/data")).unwrap();
        assert_eq!(way(&page), ["volumeclaim/data", "allocation/web-data"]);
        assert_eq!(page.tree.because.len(), 1, "{:?}", page.tree);
    }
}
