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
