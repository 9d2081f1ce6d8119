//! What a volume is filled from.
use super::*;

fn text(cluster: &Value, asked: &str) -> (String, String) {
    let root = explain(&objects(cluster), &subject(asked)).unwrap().root.unwrap();
    (root.subject.to_string(), root.text)
}

/// The claim `logs` is to be a copy of the claim `data`.
fn copying(told: &Value) -> Vec<(&'static str, Value)> {
    let spec = json!({ "dataSource": { "claimName": "data" } });
    let status = json!({ "phase": "Pending", "volumeName": "", "conditions": told });
    vec![("claims/1", json!({ "spec": spec, "status": status }))]
}

#[test]
fn who_waits_for_what_it_is_filled_from_leads_there() {
    let waits =
        json!([{ "type": "Ready", "status": "False", "reason": "SourceNotReady", "message": "waits" }]);
    let mut changes = copying(&waits);
    let full =
        json!([{ "type": "Ready", "status": "False", "reason": "ResourceExhausted", "message": "no room" }]);
    changes.push(("claims/0", json!({ "status": { "phase": "Pending" } })));
    changes.push(("volumes/0", json!({ "status": { "phase": "Pending", "conditions": full } })));
    let (cause, said) = text(&with(&changes), "VolumeClaim/logs");
    assert_eq!(cause, "volume/vol-data");
    assert!(said.contains("no room"), "{said}");
    // One that is as it should be is no cause of anything.
    let differs =
        json!([{ "type": "Ready", "status": "False", "reason": "SourceMismatch", "message": "too small" }]);
    let (cause, said) = text(&with(&copying(&differs)), "VolumeClaim/logs");
    assert_eq!((cause.as_str(), said.as_str()), ("volumeclaim/logs", "not bound: too small"));
    // Also where it would wait for its first user otherwise: none makes it fit.
    let mut changes = copying(&differs);
    changes.push(("classes/0", json!({ "spec": { "volumeBindingMode": "WaitForFirstConsumer" } })));
    let (cause, said) = text(&with(&changes), "VolumeClaim/logs");
    assert_eq!((cause.as_str(), said.as_str()), ("volumeclaim/logs", "not bound: too small"));
}

#[test]
fn who_stays_for_a_copy_leads_to_it() {
    let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let content = json!({ "volume": "vol-data", "uid": "uid-data", "handle": "data" });
    let copy = json!({ "spec": { "source": { "existing": null,
            "create": { "name": "vol-logs", "requiredBytes": 1, "content": content } } },
        "status": { "phase": "Pending", "conditions":
            [{ "type": "Ready", "status": "False", "reason": "ResourceExhausted", "message": "no room" }] } });
    let cluster = with(&[
        ("claims/0", going),
        ("allocations/0", json!({ "spec": { "volumes": [] } })),
        ("volumes/0", json!({ "status": { "holders": [] } })),
        ("volumes/1", copy),
    ]);
    let (cause, said) = text(&cluster, "VolumeClaim/data");
    assert_eq!(cause, "volume/vol-logs");
    assert!(said.contains("no room"), "{said}");
}

#[test]
fn a_snapshot_leads_to_what_holds_it_up() {
    let snapshot = |status: Value, deleted: Option<&str>| {
        json!([{ "metadata": { "namespace": "shop", "name": "nightly", "deletionTimestamp": deleted },
            "spec": { "source": { "claimName": "data" } }, "status": status }])
    };
    let of = json!({ "plugin": "nfs", "volume": "vol-data", "uid": "uid-data", "handle": "data" });
    let told =
        json!({ "type": "Taken", "status": "False", "reason": "CreateSnapshotFailed", "message": "no room" });
    let failing = json!({ "of": of, "exists": "Unknown", "controller": { "nodeName": "a", "epoch": 1 }, "taking": told });
    let mut cluster = healthy();
    cluster["snapshots"] = snapshot(failing, None);
    assert_eq!(text(&cluster, "Snapshot/nightly"), ("snapshot/nightly".into(), "not ready: no room".into()));
    // Its volume stays for it, and says so.
    let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    json_patch::merge(&mut cluster["claims"][0], &going);
    json_patch::merge(&mut cluster["allocations"][0], &json!({ "spec": { "volumes": [] } }));
    json_patch::merge(&mut cluster["volumes"][0], &json!({ "status": { "holders": [] } }));
    assert_eq!(text(&cluster, "VolumeClaim/data").0, "snapshot/nightly");
    // A claim that is filled from it, and what it waits for itself.
    let mut cluster = with(&[(
        "claims/1",
        json!({ "spec": { "dataSource": { "snapshotName": "nightly" } },
            "status": { "phase": "Pending", "volumeName": "" } }),
    )]);
    cluster["snapshots"] = snapshot(json!({}), None);
    cluster["claims"].as_array_mut().unwrap().remove(0);
    assert_eq!(text(&cluster, "VolumeClaim/logs"), ("volumeclaim/data".into(), "does not exist".into()));
    let ready = json!({ "of": of, "exists": "Up", "ready": true });
    cluster["snapshots"] = snapshot(ready, None);
    assert_eq!(text(&cluster, "VolumeClaim/logs").0, "volumeclaim/logs");
    let explained = explain(&objects(&cluster), &subject("Snapshot/nightly")).unwrap();
    assert_eq!(explained.root, None);
    // Its driver has the data, and nobody knows whose.
    let shared = |deleted, reason: &str| {
        let ending = reason == "HandleEnding";
        let word = if ending { reason } else { "HandleShared" };
        let mut conditions = json!([
            { "type": "Ready", "status": "False", "reason": word, "message": "its plugin gave it that of another" },
            { "type": "HandleShared", "status": "True", "reason": reason, "message": "another has it" }]);
        if ending {
            conditions.as_array_mut().unwrap().pop();
        }
        let mut cluster = cluster.clone();
        cluster["snapshots"] =
            snapshot(json!({ "of": of, "exists": "Up", "ready": true, "conditions": conditions }), deleted);
        explain(&objects(&cluster), &subject("Snapshot/nightly")).unwrap().root.unwrap()
    };
    assert_eq!(shared(None, "HandleShared").text, "not ready: its plugin gave it that of another");
    let ending = shared(None, "HandleEnding");
    assert_eq!(ending.text, "not ready: its plugin gave it that of another");
    assert_eq!(ending.advice, "`wharfline describe snapshot/nightly -n shop`");
    for deleted in [None, Some("2026-01-01T00:00:00Z")] {
        let anothers = shared(deleted, "HandleOfAnother").advice;
        assert!(
            anothers.starts_with("`wharfline delete snapshot/nightly -n shop`, and take it anew"),
            "{anothers}"
        );
        let advice = shared(deleted, "HandleShared").advice;
        assert!(advice.contains("wharfline patch snapshot/nightly -n shop --type merge"), "{advice}");
        assert!(advice.contains("Retain"), "{advice}");
    }
}

#[test]
fn a_schedule_leads_to_the_snapshot_that_it_waits_for() {
    let mut cluster = healthy();
    let schedule = |reason: &str, truth: &str| {
        json!([{ "metadata": { "namespace": "shop", "name": "hourly" },
            "spec": { "schedule": "0 * * * *", "template": { "spec": { "source": { "claimName": "data" } } } },
            "status": { "lastSnapshot": "hourly-1", "conditions": [
                { "type": "Ready", "status": truth, "reason": reason, "message": "the last one is not ready" }] } }])
    };
    cluster["schedules"] = schedule("Unfinished", "False");
    let said = "took none when one was due last: the last one is not ready";
    assert_eq!(text(&cluster, "SnapshotSchedule/hourly"), ("snapshotschedule/hourly".into(), said.into()));
    let told =
        json!({ "type": "Taken", "status": "False", "reason": "CreateSnapshotFailed", "message": "no room" });
    let of = json!({ "plugin": "nfs", "volume": "vol-data", "uid": "uid-data", "handle": "data" });
    let status = json!({ "of": of, "exists": "Unknown", "controller": { "nodeName": "a", "epoch": 1 }, "taking": told });
    cluster["snapshots"] = json!([{ "metadata": { "namespace": "shop", "name": "hourly-1" },
        "spec": { "source": { "claimName": "data" } }, "status": status }]);
    assert_eq!(text(&cluster, "SnapshotSchedule/hourly").0, "snapshot/hourly-1");
    // That it waits for its time holds nobody up.
    cluster["snapshots"] = json!([]);
    cluster["schedules"] = schedule("Waiting", "True");
    assert_eq!(explain(&objects(&cluster), &subject("SnapshotSchedule/hourly")).unwrap().root, None);
}

#[test]
fn claims_that_are_to_be_filled_from_each_other_are_named_as_such() {
    let waits = |from: &str| {
        json!({ "spec": { "dataSource": { "claimName": from } },
            "status": { "phase": "Pending", "volumeName": "" } })
    };
    let cluster = with(&[("claims/0", waits("logs")), ("claims/1", waits("data"))]);
    let page = explain(&objects(&cluster), &subject("VolumeClaim/data")).unwrap();
    let way: Vec<_> = page.tree.path().iter().map(|branch| branch.subject.to_string()).collect();
    assert_eq!(way, ["volumeclaim/data", "volumeclaim/logs", "volumeclaim/data"]);
    let root = page.root.unwrap();
    assert_eq!(root.text, "is to be filled from volumeclaim/logs, which waits for it: neither can begin");
    assert_eq!(root.advice, "delete one of them, and apply it with another dataSource or none");
}

/// A claim that is made anew under the name of the one whose picture it is to be filled from.
#[test]
fn who_is_filled_from_a_picture_of_its_own_name_waits_for_the_picture() {
    let from = json!({ "spec": { "dataSource": { "snapshotName": "group", "claimName": "data" } },
        "status": { "phase": "Pending", "volumeName": "" } });
    let page = explain(&objects(&with(&[("claims/0", from)])), &subject("VolumeClaim/data")).unwrap();
    let way: Vec<_> = page.tree.path().iter().map(|branch| branch.subject.to_string()).collect();
    assert_eq!(way, ["volumeclaim/data", "snapshot/group"]);
    assert_eq!(page.root.unwrap().text, "does not exist");
}
