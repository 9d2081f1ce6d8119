//! What is going on at this moment.
use super::*;

fn text(cluster: &Value, asked: &str) -> String {
    explain(&objects(cluster), &subject(asked)).unwrap().root.unwrap().text
}

fn no_answer(uid: &str, last: &str) -> Value {
    json!([{
        "metadata": { "name": "e" }, "involvedObject": { "uid": uid }, "reason": "NoAnswerYet", "type": "Warning",
        "action": "NodeStageVolume",
        "message": "NodeStageVolume: no answer from the plugin for 5 s", "eventTime": "2026-01-01T00:00:01.000000Z",
        "series": { "count": 2, "lastObservedTime": last },
    }])
}

#[test]
fn a_call_that_takes_long_is_named_while_it_lasts() {
    let staging = |calls: Value| {
        let node = json!({ "status": { "node":
            { "staged": "Down", "reason": "NodeStageVolumeUncertain", "message": "m", "calls": calls } } });
        with(&[("allocations/0", waiting("vol-data")), ("attachments/0", node)])
    };
    let told = "2026-01-01T00:00:09.000000Z";
    // Calls take 3 ms, as `call` has it; one that is told of began five seconds before.
    for (calls, uid, named) in [
        (json!([]), "att-uid-data", true),
        (json!([]), "att-uid-logs", false),
        (json!([call("ABORTED", "2026-01-01T00:00:03.990Z", "no")]), "att-uid-data", true),
        (json!([call("ABORTED", "2026-01-01T00:00:03.998Z", "no")]), "att-uid-data", false),
        (json!([call("ABORTED", "2026-01-01T00:00:12Z", "no")]), "att-uid-data", false),
        (
            json!([{ "method": "NodePublishVolume", "code": "OK", "startTime": "2026-01-01T00:00:08Z",
            "durationMillis": 3, "attempt": 1 }]),
            "att-uid-data",
            true,
        ),
    ] {
        let mut cluster = staging(calls.clone());
        cluster["events"] = no_answer(uid, told);
        let said = text(&cluster, "Allocation/web-data");
        let end = "; NodeStageVolume: no answer from the plugin for 5 s";
        assert_eq!(said.ends_with(end), named, "{uid} {calls}: {said}");
    }
    // What it waited for before is there again; and what publishes has staged.
    let before = json!({ "status": { "node": { "reason": "PluginNotReady", "message": "waits for a healthy instance" } } });
    let mut cluster = staging(json!([]));
    json_patch::merge(&mut cluster["attachments"][0], &before);
    for (action, says) in [
        ("NodeStageVolume", "attached to b, not staged"),
        ("NodePublishVolume", "staged on b, not published"),
    ] {
        cluster["events"] = no_answer("att-uid-data", told);
        cluster["events"][0]["action"] = json!(action);
        let said = text(&cluster, "Allocation/web-data");
        assert_eq!(said, format!("{says}; NodeStageVolume: no answer from the plugin for 5 s"));
    }
    cluster["events"] = json!([]);
    assert!(text(&cluster, "Allocation/web-data").contains("waits for a healthy instance"));
    // The other side's word about the same attachment counts, too.
    let host = json!({ "status": { "controller": { "calls": [call("OK", "2026-01-01T00:00:05Z", "")] } } });
    let mut cluster = staging(json!([]));
    json_patch::merge(&mut cluster["attachments"][0], &host);
    cluster["events"] = no_answer("att-uid-data", told);
    assert!(!text(&cluster, "Allocation/web-data").contains("no answer"));
    let making = json!({ "status": { "phase": "Pending", "provisioning": { "type": "Provisioned", "status": "Unknown" } } });
    let mut cluster =
        with(&[("volumes/0", making), ("claims/0", json!({ "status": { "phase": "Pending" } }))]);
    cluster["events"] = no_answer("uid-data", "2026-01-01T00:00:09.000000Z");
    assert!(
        text(&cluster, "VolumeClaim/data").contains("no answer"),
        "{}",
        text(&cluster, "VolumeClaim/data")
    );
}

/// The volume is up, and one of its users has no answer yet.
#[test]
fn a_call_for_a_user_that_takes_long_is_named_while_it_lasts() {
    let told = "2026-01-01T00:00:09.000000Z";
    let event = |method: &str| {
        let mut event = no_answer("att-uid-data", told);
        event[0]["action"] = json!(method);
        event
    };
    let ended = json!([{ "method": "NodePublishVolume", "code": "OK", "startTime": "2026-01-01T00:00:08Z",
        "durationMillis": 3, "attempt": 1 }]);
    let waits = waiting("vol-data");
    let rung = |rung: &str| json!({ "status": { "volumes": [{ "name": "v", "volume": "vol-data", "published": rung }] } });
    let over = json!({ "status": { "node": { "staged": "Up", "calls": ended } } });
    // Nothing was staged, and nothing is written of it before there is an answer.
    let first = json!({ "metadata": { "uid": "web-uid" }, "status": { "volumes": null } });
    let let_in = json!({ "spec": { "allocations": ["web-uid"] } });
    for (method, changes, named) in [
        ("NodePublishVolume", vec![first], true),
        (
            "NodePublishVolume",
            vec![json!({ "metadata": { "uid": "other" }, "status": { "volumes": null } })],
            false,
        ),
        ("NodePublishVolume", vec![waits.clone()], true),
        ("NodeUnpublishVolume", vec![deleted(), rung("Unknown")], true),
        ("NodeUnpublishVolume", vec![deleted(), rung("Down")], false),
        ("NodePublishVolume", vec![rung("Up")], false),
        ("NodePublishVolume", vec![waits.clone(), json!({ "status": { "phase": "Failed" } })], false),
        ("NodePublishVolume", vec![waits.clone(), json!({ "status": { "nodeName": "a" } })], false),
        ("NodeStageVolume", vec![waits.clone()], false),
    ] {
        let changes: Vec<_> = changes.into_iter().map(|change| ("allocations/0", change)).collect();
        let mut cluster = with(&changes);
        json_patch::merge(&mut cluster["attachments"][0], &let_in);
        cluster["events"] = event(method);
        let page = explain(&objects(&cluster), &subject("VolumeAttachment/att-data")).unwrap();
        assert_eq!(page.root.is_some(), named, "{method} {changes:?}: {:?}", page.tree);
        if let Some(root) = page.root {
            assert_eq!(root.reason, "NoAnswerYet");
            assert_eq!(root.text, "up on b; NodeStageVolume: no answer from the plugin for 5 s");
        }
    }
    // It has ended, and what is waited for now is something else.
    let mut cluster = with(&[("allocations/0", waits), ("attachments/0", over)]);
    cluster["events"] = event("NodePublishVolume");
    let page = explain(&objects(&cluster), &subject("VolumeAttachment/att-data")).unwrap();
    assert!(page.root.is_none(), "{:?}", page.tree);
    let mut cluster = with(&[("allocations/0", waiting("vol-data"))]);
    cluster["events"] = event("NodePublishVolume");
    assert!(text(&cluster, "Allocation/web-data").ends_with("no answer from the plugin for 5 s"));
}

#[test]
fn who_waits_for_its_turn_is_told_for_whom() {
    let waits = json!({ "spec": { "attachRequired": true }, "status": { "controller": { "attached": "Down",
        "reason": "NotInTurn", "message": "waits for its turn" } } });
    let call = json!([{ "method": "ControllerPublishVolume", "code": "INTERNAL", "message": "no slot",
        "startTime": "2026-01-01T00:00:08Z", "durationMillis": 3, "attempt": 7 }]);
    let other = |rung: &str| {
        json!({ "spec": { "attachRequired": true }, "status": { "controller": { "attached": rung,
            "reason": "ControllerPublishVolumeFailed", "message": "no slot", "calls": call } } })
    };
    for (rung, told) in [("Unknown", true), ("Up", false), ("Down", false)] {
        let cluster = with(&[("attachments/0", waits.clone()), ("attachments/1", other(rung))]);
        let page = explain(&objects(&cluster), &subject("VolumeAttachment/att-data")).unwrap();
        let way: Vec<_> = page.tree.path().iter().map(|branch| branch.subject.to_string()).collect();
        assert_eq!(way.contains(&"volumeattachment/att-logs".to_owned()), told, "{rung}: {way:?}");
    }
    // At another node where there is none at this.
    let mut elsewhere = other("Unknown");
    elsewhere["spec"]["nodeName"] = json!("a");
    let cluster = with(&[("attachments/0", waits), ("attachments/1", elsewhere)]);
    let page = explain(&objects(&cluster), &subject("VolumeAttachment/att-data")).unwrap();
    assert_eq!(page.tree.because.len(), 1, "{:?}", page.tree);
}

#[test]
fn a_task_that_cannot_be_started_is_named() {
    let event = |reason: &str| json!({ "time": "2026-01-01T00:00:00Z", "reason": reason, "message": "no such runtime" });
    for (last, named) in [("StartFailed", true), ("Started", false)] {
        let change = json!({ "status": {
            "phase": "WaitingVolumes",
            "tasks": [{ "name": "t", "state": "Pending", "events": [event("StartFailed"), event(last)] }],
            "conditions": [{ "type": "Ready", "status": "False", "reason": "TasksNotRunning", "message": "" }],
        } });
        let said = text(&with(&[("allocations/0", change)]), "Allocation/web-data");
        assert_eq!(said.contains("task t is not started: no such runtime"), named, "{said}");
    }
}

#[test]
fn only_what_a_plugin_needs_is_waited_for() {
    for (attach, stage, said) in [
        (true, true, "staged on b, not published"),
        (true, false, "attached to b, not published"),
        (false, true, "staged on b, not published"),
        (false, false, "not published on b"),
    ] {
        let change = json!({
            "spec": { "attachRequired": attach, "stageRequired": stage },
            "status": { "node": { "staged": if stage { "Up" } else { "Down" }, "reason": "PublishFailed", "message": "no" } },
        });
        let cluster = with(&[("allocations/0", waiting("vol-data")), ("attachments/0", change)]);
        assert_eq!(text(&cluster, "Allocation/web-data"), format!("{said}: no"));
    }
    let change = json!({ "spec": { "attachRequired": false }, "status": { "node": { "staged": "Down" } } });
    let cluster = with(&[("allocations/0", waiting("vol-data")), ("attachments/0", change)]);
    assert_eq!(text(&cluster, "Allocation/web-data"), "not staged on b");
}

/// Workloads first, then what holds the plugin: it leaves by itself after that.
#[test]
fn a_node_that_goes_waits_for_what_needs_its_plugin() {
    let mut cluster = with(&[("nodes/1", deleted()), ("allocations/3", deleted())]);
    cluster["attachments"] = json!([]);
    cluster["allocations"].as_array_mut().unwrap().drain(..2);
    let explanation = explain(&objects(&cluster), &subject("Node/b")).unwrap();
    let way: Vec<String> = explanation.tree.path().iter().map(|b| b.subject.to_string()).collect();
    assert_eq!(way, ["node/b", "allocation/nfs-all-b", "volumeclaim/data"]);
}

#[test]
fn a_task_that_is_to_serve_another_plugin_says_what_holds_it() {
    let block = |plugin: &str| {
        json!({ "metadata": { "name": "nfs-all-a", "namespace": "wharfline-system" },
            "spec": { "tasks": [{ "name": "driver", "runtime": {},
                "csiPlugin": { "pluginName": plugin, "role": "Monolith" } }] } })
    };
    let in_use = unmet("Ready", "InUse", "still in use by volume vol-data");
    for (plugin, way) in
        [("nfs", vec![]), ("other", vec!["allocation/web-data", "plugin/nfs", "volumeclaim/data"])]
    {
        let mut cluster = with(&[("plugins/0", in_use.clone()), ("allocations/0", block(plugin))]);
        cluster["allocations"][0]["metadata"] = json!({ "namespace": "shop", "name": "web-data" });
        cluster["instances"][0]["spec"]["allocation"] = json!({ "namespace": "shop", "name": "web-data" });
        let page = explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap();
        let found: Vec<_> = page.tree.path().iter().map(|branch| branch.subject.to_string()).collect();
        let blocked = page.root.is_some();
        assert_eq!(blocked, !way.is_empty(), "{plugin}");
        let held =
            page.tree.text.contains("task driver serves plugin nfs as Monolith until nothing needs that");
        assert!(held == blocked && (!blocked || found == way), "{plugin}: {found:?} {}", page.tree.text);
    }
}

/// Two share a volume, and each has a host path of its own that it cannot have.
#[test]
fn the_host_path_of_another_is_not_the_cause() {
    let of_it = |reason: &str| {
        let mut of_it = waiting("vol-data");
        of_it["status"]["conditions"] = json!([{ "type": "VolumesReady", "status": "False", "reason": reason,
            "message": "hostPath /opt/x: is not beneath one that this node allows" }]);
        of_it
    };
    let others = json!({ "status": { "node": { "staged": "Up", "reason": "HostPathTaken",
        "message": "hostPath /srv/site: allocation \"shop/other\" has a volume at /srv/site" } } });
    for reason in ["HostPathTaken", "HostPathNotAllowed", "HostPathOccupied", "PathNotAllowed"] {
        let cluster = with(&[("allocations/0", of_it(reason)), ("attachments/0", others.clone())]);
        let root = explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap().root.unwrap();
        assert_eq!(root.subject.to_string(), "allocation/web-data", "{reason}");
        assert!(root.text.contains("/opt/x"), "{}", root.text);
        assert_eq!(root.advice.contains("--host-path"), reason == "HostPathNotAllowed", "{}", root.advice);
    }
    // Who says nothing of its own waits for the attachment.
    let cluster = with(&[("allocations/0", waiting("vol-data")), ("attachments/0", others)]);
    let root = explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap().root.unwrap();
    assert!(root.text.contains("/srv/site"), "{}", root.text);
}

/// Every instance is well, and the next spec is not in force.
#[test]
fn a_plugin_of_which_not_every_instance_is_updated_is_not_fine() {
    let conditions = |updated: &str, reason: &str| {
        json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "" },
            { "type": "Updated", "status": updated, "reason": reason, "message": "1 of 2; the former spec brings back" }] } })
    };
    for (updated, reason, held) in
        [("True", "Updated", false), ("False", "Updating", true), ("False", "UpdateHeld", true)]
    {
        let cluster = with(&[("plugins/0", conditions(updated, reason))]);
        let page = explain(&objects(&cluster), &subject("Plugin/nfs")).unwrap();
        let says = page.tree.text.contains("the former spec brings back");
        assert_eq!((page.root.is_some(), says), (held, held), "{reason}: {}", page.tree.text);
        // Another one that starts, or a former one that serves until then, is no reason to say otherwise.
        let sick = unmet("Connected", "NoSocket", "no socket at /run/x");
        let cluster = with(&[
            ("plugins/0", conditions(updated, reason)),
            ("instances/1", sick),
            ("allocations/3", deleted()),
        ]);
        let page = explain(&objects(&cluster), &subject("Plugin/nfs")).unwrap();
        let root = page.root.map(|root| (root.subject.to_string(), root.reason));
        let wanted = held.then(|| ("plugin/nfs".to_owned(), reason.to_owned()));
        assert_eq!(root, wanted, "{reason}");
        assert!(page.tree.text.starts_with("1 of 2 instances healthy"), "{}", page.tree.text);
    }
}

/// A former instance that somebody deleted: its volumes go on with the next one, and nobody is to delete them for it.
#[test]
fn who_serves_until_its_successor_is_up_waits_for_the_update() {
    let conditions = json!([
        { "type": "Ready", "status": "False", "reason": "SuccessorNotReady", "message": "serves until its successor is up" },
        { "type": "Updated", "status": "False", "reason": "UpdateHeld", "message": "the next one has no image" },
    ]);
    let cluster = with(&[
        ("allocations/3", deleted()),
        ("plugins/0", json!({ "status": { "conditions": conditions } })),
    ]);
    let asked = Subject::namespaced(Kind::Allocation, "wharfline-system", "nfs-all-b");
    let page = explain(&objects(&cluster), &asked).unwrap();
    let root = page.root.unwrap();
    assert_eq!(
        (root.subject.to_string().as_str(), root.reason.as_str()),
        ("plugin/nfs", "SuccessorNotReady")
    );
    assert!(root.text.contains("UpdateHeld: the next one has no image"), "{}", root.text);
    assert_eq!(root.advice, "mend plugin/nfs, or apply its former spec again");
}

/// It runs, and that is not all that is wanted of it.
#[test]
fn an_allocation_that_runs_and_serves_nobody_says_so() {
    let refusal = "task driver serves nobody: Plugin \"nfs\" takes no instances from namespace \"shop\"";
    let unwell = unmet("Ready", "HealthTimeout", "within 2 s its socket did not answer");
    for (refused, sick, way, says) in [
        ("", false, vec![], "Running on a"),
        (refusal, false, vec!["allocation/web-data"], refusal),
        (
            "",
            true,
            vec!["allocation/web-data", "plugininstance/nfs-a"],
            "within 2 s its socket did not answer",
        ),
    ] {
        let here = json!({ "namespace": "shop", "name": "web-data" });
        let mut cluster = healthy();
        cluster["allocations"][0] = cluster["allocations"][2].take();
        cluster["allocations"].as_array_mut().unwrap().remove(2);
        cluster["allocations"][0]["metadata"] = here.clone();
        cluster["allocations"][0]["status"]["pluginRefused"] = json!(refused);
        cluster["instances"][0]["spec"]["allocation"] = here;
        if sick {
            json_patch::merge(&mut cluster["instances"][0], &unwell);
        }
        let page = explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap();
        let found: Vec<_> = page.tree.path().iter().map(|branch| branch.subject.to_string()).collect();
        assert_eq!(page.root.is_some(), !way.is_empty(), "{refused} {sick}");
        assert!(way.is_empty() || found == way, "{refused} {sick}: {found:?}");
        let root = page.root.map_or(page.tree.text, |root| root.text);
        assert!(root.contains(says), "{root}");
    }
}

/// The same of its attributes.
#[test]
fn what_is_to_be_changed_says_why_it_has_not_been() {
    let told =
        |message: &str| json!({ "type": "Modified", "status": "False", "reason": "R", "message": message });
    let ready = json!({ "type": "Ready", "status": "True" });
    let claim = json!({ "spec": { "volumeAttributesClassName": "gold" },
        "status": { "conditions": [ready, told("no such tier")] } });
    let host = json!({ "status": { "modification": { "condition": told("the host says so") } } });
    let cluster = with(&[("claims/0", claim), ("volumes/0", host)]);
    let asked = explain(&objects(&cluster), &subject("VolumeClaim/data")).unwrap();
    assert!(
        asked.tree.text.ends_with(", without the attributes of \"gold\": no such tier"),
        "{}",
        asked.tree.text
    );
    assert_eq!(text(&cluster, "Volume/vol-data"), "Ready, not modified: the host says so");
    assert_eq!(explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap().root, None);
}

/// Who uses it is not blocked by its size, and is not told of it.
#[test]
fn what_is_to_have_more_says_why_it_has_not_and_blocks_nobody() {
    let size =
        |message: &str| json!({ "type": "Expanded", "status": "False", "reason": "R", "message": message });
    let ready = json!({ "type": "Ready", "status": "True" });
    let claim = json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } },
        "status": { "capacity": "1Gi", "conditions": [ready, size("it is slow")] } });
    let host = json!({ "status": { "expansion": { "condition": size("the host says so") } } });
    let node = json!({ "status": { "conditions": [size("the node says so")] } });
    let cluster = with(&[("claims/0", claim.clone()), ("volumes/0", host)]);
    let asked = explain(&objects(&cluster), &subject("VolumeClaim/data")).unwrap();
    assert_eq!(asked.tree.text, "bound to vol-data, and has 1Gi of 2Gi: it is slow");
    assert_eq!(text(&cluster, "Volume/vol-data"), "Ready, not expanded: the host says so");
    let cluster = with(&[("claims/0", claim), ("attachments/0", node)]);
    assert_eq!(text(&cluster, "Volume/vol-data"), "not expanded on b: the node says so");
    assert_eq!(text(&cluster, "VolumeAttachment/att-data"), "not expanded on b: the node says so");
    let asked = explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap();
    assert_eq!(asked.root, None);
}

#[test]
fn a_task_that_is_not_started_says_so_once_and_when_it_is_tried_again() {
    let message = "volume v, subPath \"a\": is a file";
    let next = "2026-01-01T00:00:05Z";
    for ready in [format!("task t: {message}"), "its tasks are about to start".to_owned()] {
        let status = json!({ "status": {
            "phase": "Starting", "conditions": [{ "type": "Ready", "status": "False", "reason": "Starting", "message": ready }],
            "tasks": [{ "name": "t", "state": "Pending", "restarts": 0, "nextAttemptTime": next,
                "events": [{ "time": "2026-01-01T00:00:01Z", "reason": "StartFailed", "message": message }] }],
        } });
        let root = explain(&objects(&with(&[("allocations/0", status)])), &subject("Allocation/web-data"));
        let root = root.unwrap().root.unwrap();
        assert_eq!(root.text.matches(message).count(), 1, "{}", root.text);
        assert_eq!(root.next.map(|time| time.0.to_string()).as_deref(), Some(next));
    }
}

/// A volume of which the mount is lost may still be in the way of its own end.
#[test]
fn an_allocation_that_leaves_names_what_keeps_a_lost_mount_from_being_taken_down() {
    let lost = json!({ "type": "VolumesReady", "status": "False", "reason": "MountLost", "message": "it is covered" });
    let mut going = deleted();
    json_patch::merge(
        &mut going,
        &json!({ "status": { "phase": "Stopping", "conditions": [lost],
        "tasks": [], "volumes": [{ "name": "v", "volume": "vol-data", "published": "Down" }] } }),
    );
    let node = json!({ "status": { "node": { "staged": "Up", "reason": "ForeignMount", "message": "unmount it there",
        "nextAttemptTime": "2026-01-01T00:00:05Z" } } });
    let cluster = with(&[("allocations/0", going), ("attachments/0", node)]);
    let page = explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap();
    let root = page.root.unwrap();
    assert_eq!(
        (root.subject.to_string().as_str(), root.reason.as_str()),
        ("volumeattachment/att-data", "ForeignMount")
    );
    assert!(root.next.is_some());
    assert_eq!(root.advice, "unmount what the message names; it then goes on by itself");
}

/// A node that does not allow what it needs, or lacks it, does not start it: that is said of no such task.
#[test]
fn a_task_is_started_again_by_itself_unless_its_node_cannot() {
    for (reason, wanted) in [
        ("TaskExited", "`wharfline logs web-data/t -n shop`; it is started again by itself"),
        ("RuntimeNotAllowed", "`wharfline logs web-data/t -n shop`"),
        ("RuntimeMissing", "`wharfline logs web-data/t -n shop`"),
        ("ImageUnusable", "`wharfline logs web-data/t -n shop`"),
    ] {
        let status = json!({ "status": {
            "phase": "Restarting",
            "conditions": [{ "type": "Ready", "status": "False", "reason": reason, "message": "why" }],
            "tasks": [{ "name": "t", "state": "Restarting", "exitCode": 1, "restarts": 1 }],
        } });
        let cluster = objects(&with(&[("allocations/0", status)]));
        let root =
            explain(&cluster, &subject("Allocation/web-data")).and_then(|found| found.root).expect(reason);
        let says = "Restarting on b: why; task t ended with 1, started again 1 times";
        assert_eq!((root.text.as_str(), root.advice.as_str()), (says, wanted), "{reason}");
    }
}

#[test]
fn a_program_that_never_ran_has_no_logs_to_look_at() {
    for (phase, state, end) in [
        ("Restarting", "Restarting", "; it is started again by itself"),
        ("Failed", "Exited", "; once that is put right, delete it and apply it again"),
    ] {
        for (message, ran) in
            [("did not start: /no: No such file or directory", false), ("exited with code 127", true)]
        {
            let event = json!({ "time": DELETED, "reason": "Exited", "message": message });
            let status = json!({ "status": { "phase": phase,
                "conditions": [{ "type": "Ready", "status": "False", "reason": "R", "message": "m" }],
                "tasks": [{ "name": "t", "state": state, "exitCode": 127, "restarts": 2, "events": [event],
                    "nextAttemptTime": "2026-01-01T00:00:05Z" }] } });
            let root =
                explain(&objects(&with(&[("allocations/0", status)])), &subject("Allocation/web-data"));
            let root = root.unwrap().root.unwrap();
            assert_eq!(root.advice.contains("it never ran"), !ran, "{}", root.advice);
            assert_eq!(root.advice.contains("wharfline logs"), ran, "{}", root.advice);
            assert!(root.advice.ends_with(end), "{}", root.advice);
            assert!(root.next.is_some());
        }
    }
}

/// What it waits for has a time of its own.
#[test]
fn a_task_that_its_node_cannot_start_says_when_that_is_tried_again() {
    let status = json!({ "status": { "phase": "Starting",
        "conditions": [{ "type": "Ready", "status": "False", "reason": "RuntimeMissing", "message": "there is no runc" }],
        "tasks": [{ "name": "t", "state": "Pending", "restarts": 0, "nextAttemptTime": "2026-01-01T00:00:05Z",
            "events": [{ "time": DELETED, "reason": "RuntimeMissing", "message": "there is no runc" }] }] } });
    let root = explain(&objects(&with(&[("allocations/0", status)])), &subject("Allocation/web-data"));
    assert!(root.unwrap().root.unwrap().next.is_some());
}

/// The condition decides what brings it back; where that is a stop and a start, the commands are told.
#[test]
fn a_mount_that_nobody_heals_comes_back_by_a_stop_and_a_start() {
    let anew = "nothing is mounted there; stop the allocation and start it again to have it published anew";
    for (reason, message, advised) in [
        ("MountLost", anew, true),
        ("MountStale", anew, true),
        ("MountLost", "something else is mounted over it; nothing is done before that is unmounted", false),
        ("MountLost", "nothing is mounted there; as onStaleMount says, it is published once more", false),
        ("MountSilent", "whoever uses it waits; it is looked at again and again", false),
    ] {
        let lost = json!({ "type": "VolumesReady", "status": "False", "reason": reason, "message": message });
        let change = json!({ "status": { "phase": "Running", "conditions": [lost] } });
        let page =
            explain(&objects(&with(&[("allocations/0", change)])), &subject("Allocation/web-data")).unwrap();
        let advice = page.root.unwrap().advice;
        let patch = r#"`wharfline patch allocation/web-data -n shop -p '{"spec":{"stop":true}}'`"#;
        assert_eq!(advice.starts_with(patch), advised, "{reason} {message}: {advice}");
        let looks = advice.starts_with("look why its file system does not answer");
        assert_eq!(looks, reason == "MountSilent", "{reason} {message}: {advice}");
    }
}

/// What no repeat can mend is for a person to mend.
#[test]
fn a_call_that_cannot_succeed_is_not_left_to_itself() {
    let again = "2026-01-01T00:00:05Z";
    let failing = |method: &str, code: &str| {
        let call = json!({ "method": method, "code": code, "message": "no", "startTime": again,
            "durationMillis": 3, "attempt": 4 });
        let told = json!({ "type": "Provisioned", "status": "False", "reason": "Failed", "message": "no" });
        let status = json!({ "holders": [], "phase": "Releasing", "provisioning": told, "calls": [call],
            "nextAttemptTime": again });
        let mut cluster = with(&[("claims/0", deleted()), ("volumes/0", deleted())]);
        json_patch::merge(&mut cluster["volumes"][0], &json!({ "status": status }));
        cluster["attachments"] = json!([]);
        let page = explain(&objects(&cluster), &subject("Volume/vol-data")).unwrap();
        page.root.unwrap().advice
    };
    let keep =
        "`wharfline patch volume/vol-data --type merge -p '{\"spec\": {\"reclaimPolicy\": \"Retain\"}}'`";
    for (method, code, advice) in [
        ("DeleteVolume", "FAILED_PRECONDITION", keep),
        ("DeleteVolume", "INTERNAL", "it is tried again by itself; `wharfline describe volume/vol-data`"),
        ("DeleteVolume", "UNAVAILABLE", "it is tried again by itself; `wharfline describe volume/vol-data`"),
        ("DeleteVolume", "PERMISSION_DENIED", keep),
        ("DeleteVolume", "INVALID_ARGUMENT", keep),
        ("DeleteVolume", "UNIMPLEMENTED", keep),
        ("DeleteVolume", "UNAUTHENTICATED", "the Secret that the call is made with"),
        ("CreateVolume", "OUT_OF_RANGE", "give its claim another size"),
        ("ControllerModifyVolume", "INVALID_ARGUMENT", "name another VolumeAttributesClass"),
        ("ControllerExpandVolume", "FAILED_PRECONDITION", "end those who use it"),
        ("NodeStageVolume", "INVALID_ARGUMENT", "an allocation that is deleted and applied again"),
        ("NodeExpandVolume", "INVALID_ARGUMENT", "it is staged anew, and grown then"),
        ("NodeExpandVolume", "FAILED_PRECONDITION", "mend what the message says: by its code"),
        ("ControllerExpandVolume", "UNIMPLEMENTED", "takes the request back"),
        ("CreateVolume", "UNIMPLEMENTED", "one that is deleted comes anew"),
        ("NodeUnpublishVolume", "UNIMPLEMENTED", "one that is deleted comes anew"),
        ("CreateVolume", "RESOURCE_EXHAUSTED", "it is tried again by itself"),
        ("ControllerPublishVolume", "NOT_FOUND", "delete its claim"),
        (
            "ValidateVolumeCapabilities",
            "NOT_FOUND",
            "`wharfline delete volume/vol-data` and register it anew",
        ),
    ] {
        let told = failing(method, code);
        assert!(told.contains(advice), "{method} {code}: {told}");
    }
}

/// One of them has to go, and which one, and what becomes of its data, depends on where this one comes from.
#[test]
fn of_two_volumes_of_one_handle_the_way_out_is_told_that_leads_out() {
    let retain =
        "`wharfline patch volume/vol-data --type merge -p '{\"spec\": {\"reclaimPolicy\": \"Retain\"}}'`";
    let told = |made: bool, goes: bool| {
        let shared = json!({ "status": { "phase": if goes { "Releasing" } else { "Pending" }, "holders": [], "conditions": [
            { "type": "Ready", "status": "False", "reason": "HandleShared", "message": "volume \"other\" has it, too" }] } });
        let mut changes = vec![("volumes/0", shared)];
        changes.extend(goes.then(|| ("volumes/0", deleted())));
        let mut cluster = without(with(&changes), "attachments", 0);
        if made {
            cluster["volumes"][0]["spec"]["source"] =
                json!({ "create": { "name": "v", "requiredBytes": 1 } });
        }
        explain(&objects(&cluster), &subject("Volume/vol-data")).unwrap().root.unwrap().advice
    };
    let forgets = "`wharfline delete volume/vol-data` forgets this one";
    assert!(told(false, false).contains(forgets) && !told(false, false).contains(retain));
    assert!(!told(true, false).contains(forgets) && told(true, false).contains(retain));
    let given = json!({ "status": { "phase": "Pending", "holders": [], "conditions": [
        { "type": "Ready", "status": "False", "reason": "HandleShared", "message": "its plugin gave it that of another" },
        { "type": "HandleShared", "status": "True", "reason": "HandleOfAnother", "message": "another has it" }] } });
    let cluster = without(with(&[("volumes/0", given)]), "attachments", 0);
    let advice = explain(&objects(&cluster), &subject("Volume/vol-data")).unwrap().root.unwrap().advice;
    assert!(advice.starts_with("`wharfline delete volumeclaim/data -n shop`, and make it anew"), "{advice}");
    // Kept after its claim.
    let cluster = without(cluster, "claims", 0);
    let advice = explain(&objects(&cluster), &subject("Volume/vol-data")).unwrap().root.unwrap().advice;
    assert!(advice.starts_with("`wharfline delete volume/vol-data`, and make it anew"), "{advice}");
    // One that was made, and is being deleted with what is in both.
    let mut cluster = without(
        with(&[(
            "volumes/0",
            json!({ "status": { "phase": "Pending", "holders": [], "conditions": [
        { "type": "Ready", "status": "False", "reason": "HandleShared", "message": "volume \"other\" has it, too" }] } }),
        )]),
        "attachments",
        0,
    );
    let mut other = cluster["volumes"][0].clone();
    json_patch::merge(
        &mut other,
        &json!({ "metadata": { "name": "other" }, "spec": { "source": {
        "existing": null, "create": { "name": "v", "requiredBytes": 1 } } } }),
    );
    json_patch::merge(&mut other, &deleted());
    other["status"]["handle"] = cluster["volumes"][0]["spec"]["source"]["existing"]["handle"].clone();
    cluster["volumes"].as_array_mut().unwrap().push(other);
    let advice = explain(&objects(&cluster), &subject("Volume/vol-data")).unwrap().root.unwrap().advice;
    assert!(advice.starts_with("to use what is in it: `wharfline patch volume/other"), "{advice}");
    let going = told(true, true);
    assert!(going.starts_with("delete the one that the message names") && going.ends_with(retain), "{going}");
}

/// Where readers came first a writer waits for them, not for itself.
#[test]
fn a_writer_that_waits_for_readers_of_its_node_leads_to_them() {
    for reads in [true, false] {
        let cluster = with(&[
            (
                "volumes/0",
                json!({ "spec": { "accessModes": ["MultiNodeSingleWriter"] }, "status": { "holders": [
                { "allocation": { "namespace": "shop", "name": "web-data" }, "nodeName": "b", "readOnly": true }] } }),
            ),
            ("attachments/0", json!({ "spec": { "readOnly": reads } })),
            ("allocations/1", json!({ "spec": { "volumes": [{ "name": "v", "claimName": "data" }] } })),
            ("allocations/1", waiting("")),
        ]);
        let page = explain(&objects(&cluster), &subject("Allocation/web-logs")).unwrap();
        let way: Vec<_> = page.tree.path().iter().map(|branch| branch.subject.to_string()).collect();
        let to_reader = way.last().is_some_and(|last| last == "allocation/web-data");
        assert_eq!(to_reader, reads, "{way:?}");
    }
}

#[test]
fn what_is_kept_and_what_is_lost_say_how_to_go_on() {
    let released = json!({ "status": { "phase": "Released" } });
    let kept = with(&[("volumes/0", released)]);
    let advice = |cluster: &Value, asked: &str| {
        explain(&objects(cluster), &subject(asked)).unwrap().root.unwrap().advice
    };
    let free = "`wharfline patch volume/vol-data --type merge -p '{\"spec\": {\"claimRef\": null}}'`, and a claim with \
        spec.volumeName: vol-data";
    let forget = "to forget it and keep its data: `wharfline delete volume/vol-data`";
    assert_eq!(advice(&kept, "Volume/vol-data"), format!("to use it again: {free}; {forget}"));
    let mut made = kept;
    made["volumes"][0]["spec"]["source"] = json!({ "create": { "name": "vol-data", "requiredBytes": 1 } });
    let delete = "'{\"spec\": {\"reclaimPolicy\": \"Delete\"}}'`";
    let told = advice(&made, "Volume/vol-data");
    assert!(told.contains(free) && told.ends_with(delete), "{told}");
    let lost = json!({ "status": { "phase": "Lost" } });
    let cluster = without(with(&[("claims/0", lost)]), "volumes", 0);
    let told = advice(&cluster, "VolumeClaim/data");
    assert!(told.contains("`wharfline volume adopt`"), "{told}");
}

/// What the controller refuses can be taken back; once it has given it, a node's refusal is to be mended.
#[test]
fn an_expansion_that_is_refused_says_what_can_be_done() {
    let again = "2026-01-01T00:00:05Z";
    let call = |method: &str| {
        json!([{ "method": method, "code": "OUT_OF_RANGE", "message": "no", "startTime": again, "durationMillis": 3,
            "attempt": 4 }])
    };
    let told = json!({ "type": "Expanded", "status": "False", "reason": "Failed", "message": "no" });
    let advice = |place: &str, status: Value| {
        let cluster = with(&[(place, json!({ "status": status }))]);
        explain(&objects(&cluster), &subject("Volume/vol-data")).unwrap().root.unwrap().advice
    };
    let host = json!({ "expansion": { "condition": told }, "calls": call("ControllerExpandVolume"), "nextAttemptTime": again });
    assert!(advice("volumes/0", host).starts_with("ask for another size"));
    let node = json!({ "conditions": [told],
        "node": { "staged": "Up", "calls": call("NodeExpandVolume"), "nextAttemptTime": again } });
    assert!(advice("attachments/0", node).starts_with("mend what the message says"));
}

/// Who followed the advice to delete the volume lost its data.
#[test]
fn what_is_expanded_while_nobody_uses_it_names_who_has_to_end_and_who_waits_names_it() {
    let told =
        json!({ "type": "Expanded", "status": "False", "reason": "InUse", "message": "still in use by x" });
    let waits = json!({ "status": { "expansion": { "condition": told } } });
    let ready = json!({ "type": "Ready", "status": "True" });
    let claim = json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } },
        "status": { "capacity": "1Gi", "conditions": [ready, told] } });
    let cluster = with(&[("claims/0", claim.clone()), ("volumes/0", waits.clone())]);
    for asked in ["Volume/vol-data", "VolumeClaim/data"] {
        let root = explain(&objects(&cluster), &subject(asked)).unwrap().root.unwrap();
        assert_eq!(root.subject.to_string(), "allocation/web-data", "{asked}");
        assert!(root.advice.starts_with("`wharfline patch allocation/web-data -n shop"), "{}", root.advice);
    }
    let mut free = with(&[("claims/0", claim), ("volumes/0", waits)]);
    free["volumes"][0]["status"]["holders"] = json!([]);
    let advice = explain(&objects(&free), &subject("Volume/vol-data")).unwrap().root.unwrap().advice;
    assert_eq!(advice, "it is expanded by itself once nothing has it any more");

    let call = json!([{ "method": "ControllerExpandVolume", "code": "DEADLINE_EXCEEDED", "message": "no answer",
        "startTime": "2026-01-01T00:00:05Z", "durationMillis": 3, "attempt": 4 }]);
    let expanding = json!({ "status": { "expansion": { "asked": { "requiredBytes": 2 }, "offline": true,
        "condition": { "type": "Expanded", "status": "False", "reason": "ControllerExpandVolumeFailed", "message": "no answer" } },
        "calls": call } });
    let mut cluster = with(&[("volumes/0", expanding), ("allocations/0", waiting(""))]);
    cluster["volumes"][0]["status"]["holders"] = json!([]);
    cluster = without(cluster, "attachments", 0);
    let page = explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap();
    let root = page.root.unwrap();
    assert_eq!(
        (root.subject.to_string().as_str(), root.reason.as_str()),
        ("volume/vol-data", "VolumeExpanding")
    );
    assert_eq!(root.call.unwrap().code, "DEADLINE_EXCEEDED");
}

/// It waits for nothing, and is not fine for that.
#[test]
fn what_its_driver_calls_unwell_is_not_called_fine() {
    let unwell = json!({ "type": "VolumeHealthy", "status": "False", "reason": "Abnormal", "message": "a disk is gone" });
    for (status, said) in
        [("False", Some("the driver calls volume/vol-data unwell on b: a disk is gone")), ("Unknown", None)]
    {
        let mut told = unwell.clone();
        told["status"] = json!(status);
        let cluster = with(&[("attachments/0", json!({ "status": { "conditions": [told] } }))]);
        for asked in ["Volume/vol-data", "VolumeClaim/data", "Allocation/web-data"] {
            let page = explain(&objects(&cluster), &subject(asked)).unwrap();
            assert_eq!((page.root.as_ref(), page.tree.told_unwell()), (None, said), "{asked}");
        }
    }
}

/// The node of an earlier user was lost and fenced: what is left there is in nobody's way.
#[test]
fn what_is_left_on_a_node_that_was_fenced_holds_nobody_up() {
    let fenced = json!({ "spec": { "fenced": true, "nodeName": "a" } });
    let leaving = [("attachments/0", deleted()), ("attachments/0", fenced)];
    let page = explain(&objects(&with(&leaving)), &subject("Volume/vol-data")).unwrap();
    assert_eq!(page.root, None, "{:?}", page.tree);
    // Nor is one that simply goes, as long as its claim stays.
    let going = with(&[("attachments/0", deleted()), ("allocations/0", deleted())]);
    assert_eq!(explain(&objects(&going), &subject("Volume/vol-data")).unwrap().root, None);
}

/// A writer waits for the readers of a node that may write, though readers are in no writer's way elsewhere.
#[test]
fn readers_on_a_node_that_may_write_are_named_to_a_writer() {
    let shared = |read_only: bool| {
        let mut cluster = with(&[
            ("volumes/0", json!({ "spec": { "accessModes": ["MultiNodeSingleWriter"] } })),
            ("attachments/0", json!({ "spec": { "readOnly": read_only } })),
            ("allocations/1", json!({ "spec": { "volumes": [{ "name": "v", "claimName": "data" }] } })),
            ("allocations/1", waiting("")),
            ("allocations/1", json!({ "status": { "nodeName": "a" } })),
        ]);
        cluster["volumes"][0]["status"]["holders"][0]["readOnly"] = json!(true);
        explain(&objects(&cluster), &subject("Allocation/web-logs")).unwrap()
    };
    let way = |page: &Explanation| page.tree.path().last().map(|b| b.subject.to_string());
    assert_eq!(way(&shared(false)), Some("allocation/web-data".into()));
    assert_eq!(way(&shared(true)), Some("volume/vol-data".into()), "it is attached there in this moment");
}

#[test]
fn who_may_not_begin_on_what_is_let_go_is_told_what_keeps_it() {
    let waits = json!({ "status": {
        "phase": "Restarting",
        "conditions": [{ "type": "VolumesReady", "status": "False", "reason": "PluginNotReady", "message": "it waits" }],
    } });
    let here =
        json!({ "status": { "node": { "reason": "PluginNotReady", "message": "no instance there" } } });
    let away = json!({ "status": { "conditions": [
        { "type": "Ready", "status": "False", "reason": "NoSocket", "message": "no socket" }] } });
    let cluster = with(&[
        ("allocations/0", waits),
        ("attachments/0", deleted()),
        ("attachments/0", here),
        ("instances/1", away),
    ]);
    let page = explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap();
    let way: Vec<_> = page.tree.path().iter().map(|branch| branch.subject.to_string()).collect();
    let wanted = [
        "allocation/web-data",
        "volumeclaim/data",
        "volume/vol-data",
        "volumeattachment/att-data",
        "plugin/nfs",
        "plugininstance/nfs-b",
    ];
    assert_eq!(way, wanted, "{:#?}", page.tree);
}

#[test]
fn while_a_host_hands_over_that_is_what_is_waited_for() {
    let asked = json!({ "status": { "askedToRelease": 1, "controller": { "nodeName": "a", "epoch": 1 } } });
    let before = json!({ "status": { "controller":
        { "attached": "Down", "reason": "PluginNotReady", "message": "waits for a healthy instance on a" } } });
    let cluster =
        with(&[("allocations/0", waiting("vol-data")), ("volumes/0", asked), ("attachments/0", before)]);
    let root = explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap().root.unwrap();
    assert_eq!(root.subject.to_string(), "volume/vol-data");
    assert_eq!(root.text, "goes to another node once a lets go of it");
    assert!(root.advice.contains("at most 150 s after"), "{}", root.advice);
}

#[test]
fn a_volume_that_its_backend_has_lost_is_not_just_tried_again() {
    let call = call("NOT_FOUND", "2026-01-01T00:00:03Z", "no such volume");
    let node = json!({ "status": { "node": { "staged": "Down", "reason": "NodeStageVolumeFailed", "message": "m",
        "calls": [call], "nextAttemptTime": "2026-01-01T00:00:13Z" } } });
    let cluster = with(&[("allocations/0", waiting("vol-data")), ("attachments/0", node)]);
    let advice = explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap().root.unwrap().advice;
    assert!(
        advice.starts_with("`wharfline volume audit` tells whether its backend has the volume still"),
        "{advice}"
    );
}
