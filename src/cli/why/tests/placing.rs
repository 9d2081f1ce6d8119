use serde_json::{Value, json};

use super::{Case, explain, nodeless, objects, subject, unmet, unplaced, with, without};

/// The claim `data`, of a class that waits for the first consumer.
fn late() -> [(&'static str, Value); 2] {
    let why = json!({ "type": "Ready", "status": "False", "reason": "WaitingForFirstConsumer",
        "message": "waits for the first allocation that uses it" });
    [
        ("claims/0", json!({ "status": { "phase": "Pending", "volumeName": "", "conditions": [why] } })),
        ("classes/0", json!({ "spec": { "volumeBindingMode": "WaitForFirstConsumer" } })),
    ]
}

/// Its volume is being made for a node already, and the claim does not say so yet.
#[test]
fn a_claim_whose_volume_was_begun_waits_for_that() {
    let volume = json!({ "spec": { "source": { "existing": null, "create": { "name": "vol-data", "requiredBytes": 1 } },
        "claimRef": { "uid": "of-data" } }, "status": { "phase": "Pending", "holders": null } });
    let claim = json!({ "metadata": { "uid": "of-data" } });
    for (uid, wanted) in [("of-data", "volume/vol-data"), ("of-another", "allocation/web-data")] {
        let [late, class] = late();
        let other = json!({ "spec": { "claimRef": { "uid": uid } } });
        let changes =
            [late, class, ("claims/0", claim.clone()), ("volumes/0", volume.clone()), ("volumes/0", other)];
        let cluster = with(&[&changes[..], &[("allocations/0", unplaced("VolumeNotReady", "m"))]].concat());
        let tree = explain(&objects(&cluster), &subject("VolumeClaim/data")).unwrap().tree;
        let first = tree.because.first().map(|branch| branch.subject.to_string());
        let seen: Vec<_> = tree.because.iter().map(|branch| branch.subject.to_string()).collect();
        assert_eq!(first.is_some_and(|first| first == wanted), uid == "of-data", "{uid}: {seen:?}");
    }
}

pub(super) fn placing() -> Vec<Case> {
    let with_late = |changes: &[(&'static str, Value)]| {
        let all: Vec<_> = late().into_iter().chain(changes.iter().cloned()).collect();
        with(&all)
    };
    let fits = |details: &str| unplaced("NoNodeFits", &format!("no node fits: {details}"));
    let closed = || (json!({ "unschedulable": true }), "cordoned");
    let cordoned = |name: &'static str, (spec, says): (Value, &'static str), asked, way| Case {
        name,
        cluster: with_late(&[
            ("allocations/0", fits(&format!("a: the allocation is pinned elsewhere; b: {says}"))),
            ("allocations/0", json!({ "spec": { "nodeName": "b" } })),
            ("nodes/1", json!({ "spec": spec })),
        ]),
        asked,
        way,
        says,
        advice: "`wharfline uncordon b`",
    };
    let runtime = |name: &'static str, details, says, advice| Case {
        name,
        cluster: without(with(&[("allocations/0", fits(details))]), "nodes", 0),
        asked: "Allocation/web-data",
        way: &["allocation/web-data", "node/b"],
        says,
        advice,
    };
    vec![
        cordoned(
            "the node is cordoned, and the claim is bound late",
            closed(),
            "Allocation/web-data",
            &["allocation/web-data", "node/b"],
        ),
        cordoned(
            "the same, asked of the claim",
            closed(),
            "VolumeClaim/data",
            &["volumeclaim/data", "allocation/web-data", "node/b"],
        ),
        cordoned(
            "the node is drained, and the claim is bound late",
            (json!({ "taints": [{ "key": "wharfline.dev/drain", "effect": "NoExecute" }] }), "being drained"),
            "Allocation/web-data",
            &["allocation/web-data", "node/b"],
        ),
        Case {
            name: "no node has the label",
            cluster: with_late(&[
                ("allocations/0", fits("a: has no label disk=ssd; b: has no label disk=ssd")),
                ("allocations/0", json!({ "spec": { "nodeSelector": { "disk": "ssd" } } })),
            ]),
            asked: "Allocation/web-data",
            way: &["allocation/web-data", "node/a"],
            says: "has no label disk=ssd, which the allocation asks for",
            advice: "`wharfline label node/a disk=ssd`, or change its nodeSelector",
        },
        Case {
            name: "the only node was taken down",
            cluster: without(
                with_late(&[
                    ("allocations/0", fits("b: taken down")),
                    ("nodes/1", unmet("Ready", "NodeStopped", "taken down")),
                    (
                        "nodes/1",
                        json!({ "metadata": { "annotations": { "wharfline.dev/stopped": "true" } } }),
                    ),
                ]),
                "nodes",
                0,
            ),
            asked: "Allocation/web-data",
            way: &["allocation/web-data", "node/b"],
            says: "not ready: taken down",
            advice: "start its daemon again: `wharfline up`, or `wharfline node` in a cluster",
        },
        Case {
            name: "no node has a healthy instance of the plugin",
            cluster: without(
                with_late(&[
                    ("allocations/0", fits("b: no healthy instance of plugin nfs")),
                    ("instances/1", unmet("Ready", "ProbeFailed", "nobody answers")),
                ]),
                "nodes",
                0,
            ),
            asked: "Allocation/web-data",
            way: &["allocation/web-data", "plugin/nfs", "plugininstance/nfs-b"],
            says: "not healthy on b: nobody answers",
            advice: "`wharfline describe plugininstance/nfs-b`, and the logs of its task: \
                `wharfline logs nfs-all-b/driver -n wharfline-system`",
        },
        Case {
            name: "a node that does not fit for what only placement knows",
            cluster: without(
                with(&[("allocations/0", fits("b: plugin nfs has its limit of 3 volumes there"))]),
                "nodes",
                0,
            ),
            asked: "Allocation/web-data",
            way: &["allocation/web-data", "node/b"],
            says: "does not fit: plugin nfs has its limit of 3 volumes there",
            advice: "`wharfline describe allocation/web-data -n shop` tells of every node",
        },
        runtime(
            "a runtime is lacking",
            "a: cordoned; b: cannot use the runtime oci: runc is not installed; it was looked for in /bin",
            "does not fit: cannot use the runtime oci: runc is not installed; it was looked for in /bin",
            "put there what is missing",
        ),
        runtime(
            "a runtime will never be there",
            "b: cannot use the runtime systemd: systemd is not PID 1 of this machine",
            "does not fit: cannot use the runtime systemd: systemd is not PID 1 of this machine",
            "let it run elsewhere, or with another runtime",
        ),
        runtime(
            "a runtime is not allowed",
            "b: does not allow the runtime oci",
            "does not fit: does not allow the runtime oci",
            "start that node's daemon with `--runtime oci` besides, or let it run elsewhere",
        ),
        Case {
            name: "its claim is used on another node",
            cluster: without(
                with(&[
                    ("allocations/0", fits("b: claim data is on node a")),
                    (
                        "volumes/0",
                        json!({ "status": { "holders": [
                            { "allocation": { "namespace": "shop", "name": "one", "uid": "1" }, "nodeName": "a" },
                            { "allocation": { "namespace": "shop", "name": "two", "uid": "2" }, "nodeName": "a" },
                        ] } }),
                    ),
                ]),
                "nodes",
                0,
            ),
            asked: "Allocation/web-data",
            way: &["allocation/web-data", "node/b"],
            says: "does not fit: claim data is on node a",
            advice: "let it be placed on a as well, or `wharfline delete allocation/one -n shop` and \
                `wharfline delete allocation/two -n shop`",
        },
        Case {
            name: "the node it is pinned to does not exist",
            cluster: with_late(&[
                ("allocations/0", unplaced("NotFound", "waits for Node \"c\", which does not exist yet")),
                ("allocations/0", json!({ "spec": { "nodeName": "c" } })),
            ]),
            asked: "Allocation/web-data",
            way: &["allocation/web-data", "node/c"],
            says: "does not exist",
            advice: "start `wharfline up --node-name c` on that machine, or let it join as that (`wharfline node`)",
        },
        nodeless("no node has joined", with(&[("allocations/0", unplaced("NoNodes", "no node has joined"))])),
        Case {
            asked: "VolumeClaim/data",
            way: &["volumeclaim/data", "volumeclass/fast", "plugin/nfs", "node/(none)"],
            ..nodeless(
                "no node has joined, and the claim waits for its plugin",
                with(&[("claims/0", json!({ "status": { "phase": "Pending", "volumeName": "" } }))]),
            )
        },
        Case {
            name: "one claim waits for its class, the other for the first consumer",
            cluster: with_late(&[
                ("allocations/0", unplaced("VolumeNotReady", "claim \"logs\": waits for VolumeClass \"x\"")),
                (
                    "allocations/0",
                    json!({ "spec": { "volumes": [
                        { "name": "v", "claimName": "data" }, { "name": "w", "claimName": "logs" },
                    ] } }),
                ),
                ("claims/1", json!({ "spec": { "volumeClassName": "x" } })),
                ("claims/1", json!({ "status": { "phase": "Pending", "volumeName": "" } })),
            ]),
            asked: "Allocation/web-data",
            way: &["allocation/web-data", "volumeclaim/logs", "volumeclass/x"],
            says: "does not exist",
            advice: "apply a manifest of volumeclass/x",
        },
    ]
}
