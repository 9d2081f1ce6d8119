//! Nodes that are not heard or to be taken out, and plugins that go: what still needs them.
use super::*;

fn root(cluster: &Value, asked: &str) -> Root {
    explain(&objects(cluster), &subject(asked)).unwrap().root.unwrap()
}

/// The volume of claim `data`, which nobody uses and whose calls node a makes.
fn unused(changes: &[(&str, Value)]) -> Value {
    let mut cluster = with(changes);
    cluster["volumes"][0]["status"]["holders"] = json!([]);
    for (kind, which) in [("volumes", 1), ("claims", 1), ("attachments", 1), ("attachments", 0)] {
        cluster = without(cluster, kind, which);
    }
    cluster["allocations"].as_array_mut().unwrap().drain(0..2);
    cluster
}

#[test]
fn of_a_node_that_is_not_heard_the_way_to_say_that_it_is_off_is_told() {
    for (boot, command) in [
        (
            json!({ "bootID": "boot-1" }),
            "wharfline taint node b --overwrite wharfline.dev/out-of-service=boot-1:NoExecute",
        ),
        (Value::Null, "wharfline delete node b"),
    ] {
        let unknown = json!({ "status": { "nodeInfo": boot, "conditions": [
            { "type": "Ready", "status": "Unknown", "reason": "LeaseNotRenewed", "message": "silent" }] } });
        let mut changes = vec![("nodes/1", unknown)];
        for says in ["not ready: silent", "being deleted: silent"] {
            let root = root(&with(&changes), "Node/b");
            assert_eq!(root.text, says);
            let wanted = format!("where the machine is surely off, `{command}`");
            assert!(root.advice.ends_with(&wanted), "{}", root.advice);
            changes.push(("nodes/1", deleted()));
        }
    }
}

#[test]
fn what_was_said_of_a_node_is_not_advised_again() {
    let silent = |boot: &str| {
        json!({ "spec": { "taints": [{ "key": "wharfline.dev/out-of-service", "value": boot, "effect": "NoExecute" }] },
            "status": { "nodeInfo": { "bootID": "boot-1" }, "conditions": [
                { "type": "Ready", "status": "Unknown", "reason": "LeaseNotRenewed", "message": "silent" }] } })
    };
    for (boot, says) in [
        (
            "boot-1",
            "b is said to be off, and what it had is free for others: delete what shall not wait for it",
        ),
        (
            "boot-0",
            "its taint names another boot, and says nothing of this one; where the machine is surely off, `wharfline",
        ),
    ] {
        let advice = root(&with(&[("nodes/1", silent(boot))]), "Node/b").advice;
        assert!(advice.contains(says), "{advice}");
        assert_eq!(advice.contains("wharfline taint"), boot == "boot-0", "{advice}");
    }
}

/// Nobody else can delete it.
#[test]
fn what_a_node_that_is_gone_for_good_has_may_be_left_there() {
    let mut cluster = without(unused(&[("volumes/0", deleted())]), "claims", 0);
    cluster["nodes"].as_array_mut().unwrap().remove(0);
    cluster["instances"].as_array_mut().unwrap().remove(0);
    cluster["volumes"][0]["spec"]["source"] =
        json!({ "create": { "name": "v", "requiredBytes": 1, "nodeName": "a" } });
    let page = root(&cluster, "Volume/vol-data");
    let retain =
        "`wharfline patch volume/vol-data --type merge -p '{\"spec\": {\"reclaimPolicy\": \"Retain\"}}'`";
    assert_eq!(page.subject.to_string(), "node/a");
    assert!(page.advice.ends_with(&format!("leave what it has: {retain}")), "{}", page.advice);
}

#[test]
fn a_volume_whose_claim_is_gone_is_what_a_plugin_that_goes_is_needed_by() {
    let in_use = unmet("Ready", "InUse", "still in use by volume vol-data");
    let changes = [("plugins/0", deleted()), ("plugins/0", in_use)];
    let claimed = root(&unused(&changes), "Plugin/nfs");
    assert_eq!(claimed.subject.to_string(), "volumeclaim/data");
    let released = without(unused(&changes), "claims", 0);
    let page = root(&released, "Plugin/nfs");
    assert_eq!(
        (page.subject.to_string().as_str(), page.text.as_str()),
        ("volume/vol-data", "needs it, and its claim is gone")
    );
    assert_eq!(page.advice, "`wharfline delete volume/vol-data`, which leaves its data at the backend");
    let mut made = released;
    made["volumes"][0]["spec"]["source"] = json!({ "create": { "name": "v", "requiredBytes": 1 } });
    assert_eq!(root(&made, "Plugin/nfs").advice, "`wharfline delete volume/vol-data`, and its data with it");
}

#[test]
fn a_node_that_goes_is_kept_by_the_volumes_whose_calls_are_made_there() {
    let cluster = unused(&[("nodes/0", deleted())]);
    let start =
        "start a controller instance of plugin/nfs on another node, and that one goes on with it; or ";
    let page = root(&cluster, "Node/a");
    assert_eq!(
        (page.subject.to_string().as_str(), page.text.as_str()),
        ("volume/vol-data", "has its calls made there")
    );
    let both = "`wharfline delete volumeclaim/data -n shop`, and then `wharfline delete volume/vol-data`, which leaves its data \
                at the backend";
    assert_eq!(page.advice, format!("{start}{both}"));
    let page = root(&without(cluster.clone(), "claims", 0), "Node/a");
    let alone = "`wharfline delete volume/vol-data`, which leaves its data at the backend";
    assert_eq!(page.advice, format!("{start}{alone}"));
    // One that others are about to go on with, and one that is deleted already.
    let asked = json!({ "status": { "askedToRelease": 1 } });
    let mut handed = cluster.clone();
    json_patch::merge(&mut handed["volumes"][0], &asked);
    let page = root(&handed, "Node/a");
    assert_eq!(page.text, "goes to another node once a lets go of it");
    assert!(page.advice.starts_with("wait: "), "{}", page.advice);
    let mut going = cluster.clone();
    json_patch::merge(&mut going["volumes"][0], &deleted());
    assert_eq!(root(&going, "Node/a").text, "being deleted");
    // One that this node alone reaches goes with it, and one of another node has nothing to do with it.
    for (kind, change) in [
        ("volumes", json!({ "spec": { "source": { "existing": { "nodeName": "a" } } } })),
        ("plugins", json!({ "spec": { "controllerScope": "Node" } })),
        ("volumes", json!({ "status": { "controller": { "nodeName": "b" } } })),
    ] {
        let mut other = cluster.clone();
        json_patch::merge(&mut other[kind][0], &change);
        let page = explain(&objects(&other), &subject("Node/a")).unwrap();
        assert_eq!(page.tree.because.len(), 0, "{:?}", page.tree);
    }
}

#[test]
fn a_node_that_takes_nothing_new_says_so() {
    let taint = |key: &str, value: &str| json!({ "spec": { "taints": [{ "key": key, "value": value, "effect": "NoExecute" }] } });
    let said = |change: Value| {
        let boot = json!({ "status": { "nodeInfo": { "bootID": "boot-1" } } });
        let page =
            explain(&objects(&with(&[("nodes/1", boot), ("nodes/1", change)])), &subject("Node/b")).unwrap();
        assert_eq!(page.root, None, "it keeps nothing that is there");
        page.tree.text
    };
    for (change, text) in [
        (json!({}), "ready"),
        (taint("wharfline.dev/out-of-service", "boot-0"), "ready"),
        (
            taint("wharfline.dev/out-of-service", "boot-1"),
            "ready, but said to be off: nothing new comes to it before \
             `wharfline taint node b wharfline.dev/out-of-service-`, or its next renewal",
        ),
        (
            taint("wharfline.dev/drain", ""),
            "ready, but being drained: nothing new comes to it before `wharfline uncordon b`",
        ),
        (
            json!({ "spec": { "unschedulable": true } }),
            "ready, but cordoned: nothing new comes to it before `wharfline uncordon b`",
        ),
    ] {
        assert_eq!(said(change), text);
    }
}
