use super::*;
use crate::api::meta::{HANDLE_ENDED, HANDLE_ENDING, HANDLE_OF_ANOTHER, HANDLE_SHARED};

#[test]
fn fullness_is_of_what_may_be_used() {
    let of = |total, used, available| Figures { total, used, available }.per_cent();
    for (figures, expected) in [
        ((100, Some(50), Some(50)), Some(50)),
        // Five are kept for root.
        ((100, Some(90), Some(5)), Some(95)),
        ((100, Some(100), None), Some(100)),
        ((100, Some(0), Some(0)), None),
        ((100, None, Some(10)), None),
        ((1000, Some(1), Some(999)), Some(1)),
        ((i64::MAX, Some(i64::MAX), Some(i64::MAX)), Some(100)),
    ] {
        assert_eq!(of(figures.0, figures.1, figures.2), expected, "{figures:?}");
    }
}

fn volume(host: i64, of: i64, exists: &str) -> Value {
    json!({ "status": { "controller": { "nodeName": "n", "epoch": host }, "exists": exists, "observedEpoch": of } })
}

fn attachment(host: i64, of: i64, attached: &str) -> Value {
    json!({ "spec": { "host": { "nodeName": "n", "epoch": host } },
        "status": { "controller": { "attached": attached, "epoch": of } } })
}

#[test]
fn a_former_hosts_word_comes_too_late() {
    for (host, now, before, late) in [
        (2, (1, "Up"), (1, "Unknown"), true),
        (2, (1, "Unknown"), (2, "Unknown"), true),
        // It stands as it stood, and somebody else writes.
        (2, (1, "Up"), (1, "Up"), false),
        (2, (2, "Up"), (1, "Unknown"), false),
        (2, (2, "Down"), (2, "Up"), false),
        (1, (1, "Up"), (0, "Unknown"), false),
    ] {
        let (new, old) = (volume(host, now.0, now.1), volume(host, before.0, before.1));
        assert_eq!(late_word(&new, &old).is_some(), late, "{new} after {old}");
        let (new, old) = (attachment(host, now.0, now.1), attachment(host, before.0, before.1));
        assert_eq!(late_attachment(&new, &old).is_some(), late, "{new} after {old}");
    }
}

#[test]
fn a_new_host_is_written_over_what_the_former_said() {
    assert_eq!(late_word(&volume(2, 1, "Up"), &volume(1, 1, "Up")), None);
    assert_eq!(late_attachment(&attachment(2, 1, "Up"), &attachment(1, 1, "Up")), None);
    // Nobody said anything yet, and a typed client writes it as it reads it.
    let (mut new, mut old) = (volume(1, 0, "Up"), volume(1, 0, "Up"));
    new["status"]["exists"].take();
    old["status"] = json!({});
    assert_eq!(late_word(&new, &old), None);
}

/// What was there before stays whatever its policy says, and what is there while it is published ends with that.
#[test]
fn what_outlives_its_object_is_kept() {
    for (source, policy, kept) in [
        (json!({ "create": { "name": "v", "requiredBytes": 1 } }), "Delete", false),
        (json!({ "create": { "name": "v", "requiredBytes": 1 } }), "Retain", true),
        (json!({ "existing": { "handle": "h" } }), "Delete", true),
        (json!({ "existing": { "handle": "h" } }), "Retain", true),
        (json!({ "ephemeral": { "handle": "h" } }), "Retain", false),
    ] {
        let spec = json!({ "plugin": "p", "accessModes": ["SingleNodeWriter"], "source": source,
            "reclaimPolicy": policy });
        let spec: VolumeSpec = serde_json::from_value(spec).unwrap();
        assert_eq!(spec.is_kept(), kept, "{source} {policy}");
    }
}

#[test]
fn what_is_known_of_a_volume_is_its_plugins_word_and_else_a_persons() {
    let of = |source: Value, status: Value| -> Volume {
        serde_json::from_value(json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": "v" },
            "spec": { "plugin": "p", "accessModes": ["SingleNodeWriter"], "source": source }, "status": status }))
        .unwrap()
    };
    let made = json!({ "create": { "name": "v", "requiredBytes": 1 } });
    let there =
        |capacity: &str| json!({ "existing": { "handle": "h", "capacity": capacity, "nodeName": "n" } });
    for (source, capacity, bytes) in [
        (made.clone(), "", None),
        (made.clone(), "2Ki", Some(2048)),
        (there(""), "", None),
        (there("1Ki"), "", Some(1024)),
        (there("1Ki"), "0", Some(1024)),
        (there("1Ki"), "2Ki", Some(2048)),
    ] {
        assert_eq!(of(source.clone(), json!({ "capacity": capacity })).bytes(), bytes, "{source} {capacity}");
    }
    let hosted = json!({ "controller": { "nodeName": "h", "epoch": 1 } });
    for (source, scope, home) in [
        (made.clone(), ControllerScope::Cluster, None),
        (made, ControllerScope::Node, Some("h")),
        (there(""), ControllerScope::Cluster, Some("n")),
        (there(""), ControllerScope::Node, Some("n")),
    ] {
        assert_eq!(of(source.clone(), hosted.clone()).home(scope), home, "{source} {scope:?}");
    }
}

/// Obligation CO-CTRL-16.
#[test]
fn what_has_no_room_may_go_while_nothing_of_it_is_in_doubt() {
    for (reason, exists, attempting, wanted) in [
        (NO_ROOM, "Down", false, true),
        (NO_ROOM, "Down", true, false),
        (NO_ROOM, "Unknown", false, false),
        (NO_ROOM, "Up", false, false),
        ("CreateVolumeFailed", "Down", false, false),
    ] {
        let said = json!({ "type": "Provisioned", "status": "False", "reason": reason });
        let volume: Volume = serde_json::from_value(json!({
            "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": "v" },
            "spec": { "plugin": "p", "accessModes": ["SingleNodeWriter"],
                "source": { "create": { "name": "v", "requiredBytes": 1 } } },
            "status": { "exists": exists, "attempting": attempting, "provisioning": said },
        }))
        .unwrap();
        assert_eq!(volume.has_no_room(), wanted, "{reason} {exists} {attempting}");
        let refused = exists == "Down" && !attempting;
        assert_eq!(volume.is_refused(), refused, "{reason} {exists} {attempting}");
    }
}

/// What a volume is filled from stays for what may have to be made once more.
#[test]
fn a_source_stays_for_a_copy_whose_handle_may_be_another_ones() {
    for (exists, checked, phase, because, leaving, expected) in [
        (None, "", "Pending", "", false, true),
        (None, "", "Pending", "", true, true),
        (Some("Unknown"), "h", "Pending", "", false, true),
        (Some("Unknown"), "h", "Releasing", "", true, false),
        (Some("Unknown"), "", "Releasing", "", true, true),
        (Some("Unknown"), "", "Releasing", HANDLE_OF_ANOTHER, true, false),
        (Some("Up"), "", "Pending", "", false, true),
        (Some("Up"), "", "Releasing", "", true, true),
        (Some("Up"), "h", "Pending", "", false, false),
        (Some("Up"), "h", "Releasing", "", true, false),
        (Some("Up"), "", "Ready", "", false, false),
        (Some("Up"), "h", "Releasing", HANDLE_ENDING, true, true),
        (Some("Up"), "h", "Pending", HANDLE_ENDED, false, true),
        (Some("Up"), "", "Pending", HANDLE_OF_ANOTHER, false, false),
    ] {
        let handle = if exists.is_some() { "h" } else { "" };
        let mut conditions = Vec::new();
        if !because.is_empty() {
            conditions
                .push(json!({ "type": HANDLE_SHARED, "status": "True", "reason": because, "message": "" }));
        }
        let deletion = leaving.then_some("2026-01-01T00:00:00Z");
        let volume: Volume = serde_json::from_value(json!({
            "metadata": { "name": "v", "deletionTimestamp": deletion },
            "spec": { "plugin": "p", "accessModes": ["SingleNodeWriter"], "source": { "create": {
                "name": "n", "requiredBytes": 1, "content": { "volume": "w", "uid": "u", "handle": "wh" },
            } } },
            "status": {
                "exists": exists, "handle": handle, "handleChecked": checked, "phase": phase, "conditions": conditions,
            },
        }))
        .unwrap();
        let found = volume.unfinished().is_some();
        assert_eq!(found, expected, "{exists:?} {checked:?} {phase} {because:?} leaving {leaving}");
    }
}

/// Whoever may have been made all the same is told of: so it is let go of by who tells.
#[test]
fn what_is_taken_for_refused_does_not_go_with_its_hosts_word() {
    for (method, code, over) in [
        ("CreateVolume", "INTERNAL", false),
        ("CreateVolume", "UNKNOWN", false),
        ("CreateVolume", "RESOURCE_EXHAUSTED", true),
        ("DeleteVolume", "INTERNAL", true),
        ("DeleteVolume", "OK", true),
    ] {
        let volume = json!({ "metadata": {}, "status": { "controller": { "nodeName": "n", "epoch": 1 }, "observedEpoch": 1,
            "exists": "Down", "calls": [{ "method": "CreateVolume", "code": "INTERNAL" }, { "method": method, "code": code }] } });
        assert_eq!(volume_over(&volume), over, "{method} {code}");
    }
}
