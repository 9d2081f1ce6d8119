use serde_json::json;

use super::*;
use crate::api::meta::{HANDLE_ENDED, HANDLE_ENDING, HANDLE_OF_ANOTHER, HANDLE_SHARED};

/// What is known of a Snapshot's handle: what the condition HandleShared gives as its reason, whether it was compared, whether it
/// was ready once.
type Known = (&'static str, bool, bool);

#[test]
fn a_source_stays_for_what_may_have_to_be_taken_once_more() {
    const UNSAID: Known = ("", false, false);
    const CHECKED: Known = ("", true, false);
    const WAS_READY: Known = ("", false, true);
    const ENDING: Known = (HANDLE_ENDING, true, false);
    const ENDED: Known = (HANDLE_ENDED, true, true);
    const ANOTHERS: Known = (HANDLE_OF_ANOTHER, false, false);
    for (exists, known, ready, leaving, expected) in [
        (None, UNSAID, false, false, true),
        (None, UNSAID, false, true, false),
        (Some("Down"), UNSAID, false, false, true),
        (Some("Down"), UNSAID, false, true, false),
        (Some("Unknown"), UNSAID, false, false, true),
        // Its handle is known.
        (Some("Unknown"), CHECKED, false, true, false),
        (Some("Unknown"), ENDING, false, true, true),
        (Some("Unknown"), UNSAID, false, true, true),
        (Some("Unknown"), ANOTHERS, false, true, false),
        (Some("Up"), UNSAID, false, false, true),
        (Some("Up"), UNSAID, true, false, true),
        (Some("Up"), UNSAID, true, true, true),
        (Some("Up"), CHECKED, false, false, true),
        (Some("Up"), CHECKED, true, false, false),
        (Some("Up"), CHECKED, false, true, false),
        (Some("Up"), WAS_READY, true, false, false),
        (Some("Up"), WAS_READY, true, true, false),
        (Some("Up"), ENDING, true, true, true),
        (Some("Up"), ENDED, true, false, true),
        (Some("Up"), ANOTHERS, true, false, false),
        (Some("Up"), ANOTHERS, false, true, false),
    ] {
        let (because, checked, was_ready) = known;
        let mut conditions = Vec::new();
        if was_ready {
            conditions.push(json!({ "type": "Ready", "status": "True", "reason": "Ready", "message": "" }));
        }
        if !because.is_empty() {
            conditions
                .push(json!({ "type": HANDLE_SHARED, "status": "True", "reason": because, "message": "" }));
        }
        let handles: &[&str] = if checked { &["h"] } else { &[] };
        let deletion = leaving.then_some("2026-01-01T00:00:00Z");
        let snapshot: Snapshot = serde_json::from_value(json!({
            "metadata": { "name": "s", "namespace": "default", "deletionTimestamp": deletion },
            "spec": { "source": { "claimName": "c" } },
            "status": {
                "of": { "plugin": "p", "volume": "v", "uid": "u", "volumeHandle": "vh" }, "exists": exists, "handle": "h",
                "handlesChecked": handles, "ready": ready, "conditions": conditions,
            },
        }))
        .unwrap();
        assert_eq!(snapshot.needs_volume(), expected, "{exists:?} {known:?} ready {ready} leaving {leaving}");
    }
}
