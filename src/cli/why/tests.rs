#![allow(clippy::too_many_lines)] // tables of cases
use serde_json::{Value, json};

use super::*;

mod filling;
mod leaving;
mod placing;
mod serving;
mod stopping;
mod telling;

/// A small cluster in which all is well: plugin `nfs` on nodes a and b, two workloads with one claim each on b.
fn healthy() -> Value {
    let truth = |kind: &str| json!([{ "type": kind, "status": "True" }]);
    let node =
        |name: &str| json!({ "metadata": { "name": name }, "status": { "conditions": truth("Ready") } });
    let instance = |node: &str| {
        json!({
            "metadata": { "name": format!("nfs-{node}") },
            "spec": {
                "plugin": "nfs", "role": "Monolith", "nodeName": node, "task": "driver",
                "allocation": { "namespace": "wharfline-system", "name": format!("nfs-all-{node}") },
            },
            "status": { "conditions": truth("Ready") },
        })
    };
    let claim = |name: &str| {
        json!({
            "metadata": { "namespace": "shop", "name": name },
            "spec": { "volumeClassName": "fast" },
            "status": { "phase": "Bound", "volumeName": format!("vol-{name}"), "conditions": truth("Ready") },
        })
    };
    let volume = |name: &str| {
        json!({
            "metadata": { "name": format!("vol-{name}"), "uid": format!("uid-{name}") },
            "spec": {
                "plugin": "nfs", "accessModes": ["SingleNodeWriter"],
                "source": { "existing": { "handle": name } }, "claimRef": { "namespace": "shop", "name": name },
            },
            "status": {
                "phase": "Ready", "controller": { "nodeName": "a", "epoch": 1 },
                "holders": [{ "allocation": { "namespace": "shop", "name": format!("web-{name}") }, "nodeName": "b" }],
            },
        })
    };
    let attachment = |name: &str| {
        json!({
            "metadata": { "name": format!("att-{name}"), "uid": format!("att-uid-{name}") },
            "spec": {
                "volume": format!("vol-{name}"), "volumeUid": format!("uid-{name}"),
                "claim": { "namespace": "shop", "name": name }, "nodeName": "b",
                "host": { "nodeName": "a", "epoch": 1 }, "attachRequired": true, "stageRequired": true,
                "plugin": "nfs", "handle": name, "capability": { "accessMode": "SingleNodeWriter" },
            },
            "status": { "controller": { "attached": "Up", "epoch": 1 }, "node": { "staged": "Up" } },
        })
    };
    let allocation = |name: &str| {
        json!({
            "metadata": { "namespace": "shop", "name": format!("web-{name}") },
            "spec": { "volumes": [{ "name": "v", "claimName": name }], "tasks": [{ "name": "t", "runtime": {} }] },
            "status": {
                "nodeName": "b", "phase": "Running", "conditions": truth("Ready"),
                "volumes": [{ "name": "v", "volume": format!("vol-{name}"), "published": "Up" }],
                "tasks": [{ "name": "t", "state": "Running" }],
            },
        })
    };
    let driver = |node: &str| {
        json!({
            "metadata": { "namespace": "wharfline-system", "name": format!("nfs-all-{node}") },
            "spec": { "nodeName": node, "tasks": [{
                "name": "driver", "runtime": {}, "csiPlugin": { "pluginName": "nfs", "role": "Monolith" },
            }] },
            "status": { "nodeName": node, "phase": "Running", "tasks": [{ "name": "driver", "state": "Running" }] },
        })
    };
    json!({
        "plugins": [{ "metadata": { "name": "nfs" }, "spec": {} }],
        "instances": [instance("a"), instance("b")],
        "classes": [{ "metadata": { "name": "fast" }, "spec": { "plugin": "nfs" } }],
        "claims": [claim("data"), claim("logs")],
        "volumes": [volume("data"), volume("logs")],
        "attachments": [attachment("data"), attachment("logs")],
        "allocations": [allocation("data"), allocation("logs"), driver("a"), driver("b")],
        "nodes": [node("a"), node("b")],
    })
}

fn objects(cluster: &Value) -> Objects {
    fn list<K: serde::de::DeserializeOwned>(cluster: &Value, field: &str) -> Vec<K> {
        serde_json::from_value(cluster[field].clone()).unwrap()
    }
    Objects {
        plugins: list(cluster, "plugins"),
        instances: list(cluster, "instances"),
        classes: list(cluster, "classes"),
        claims: list(cluster, "claims"),
        volumes: list(cluster, "volumes"),
        snapshots: serde_json::from_value(cluster["snapshots"].clone()).unwrap_or_default(),
        schedules: serde_json::from_value(cluster["schedules"].clone()).unwrap_or_default(),
        attachments: list(cluster, "attachments"),
        allocations: list(cluster, "allocations"),
        nodes: list(cluster, "nodes"),
        events: serde_json::from_value(cluster["events"].clone()).unwrap_or_default(),
    }
}

/// The cluster after merge patches on some objects, named by their place: `volumes/0`.
fn with(changes: &[(&str, Value)]) -> Value {
    let mut cluster = healthy();
    for (place, patch) in changes {
        let object = cluster.pointer_mut(&format!("/{place}")).unwrap();
        json_patch::merge(object, patch);
    }
    cluster
}

fn without(mut cluster: Value, field: &str, index: usize) -> Value {
    cluster[field].as_array_mut().unwrap().remove(index);
    cluster
}

fn subject(words: &str) -> Subject {
    let (kind, name) = words.split_once('/').unwrap();
    let kind = Kind::of(kind).unwrap();
    match (kind, name.split_once('@')) {
        (_, Some((name, namespace))) => Subject::namespaced(kind, namespace, name),
        (Kind::Allocation | Kind::Claim | Kind::Snapshot | Kind::Schedule, None) => {
            Subject::namespaced(kind, "shop", name)
        }
        _ => Subject::global(kind, name),
    }
}

fn waiting(volume: &str) -> Value {
    json!({ "status": {
        "phase": "WaitingVolumes",
        "volumes": [{ "name": "v", "volume": volume, "published": "Down" }],
        "conditions": [{ "type": "Ready", "status": "False", "reason": "VolumesNotReady", "message": "" }],
    } })
}

fn unmet(kind: &str, reason: &str, message: &str) -> Value {
    json!({ "status": { "conditions": [{ "type": kind, "status": "False", "reason": reason, "message": message }] } })
}

fn call(code: &str, time: &str, message: &str) -> Value {
    json!({ "method": "NodeStageVolume", "code": code, "message": message, "startTime": time, "durationMillis": 3, "attempt": 4 })
}

const DELETED: &str = "2026-01-01T00:00:00Z";

fn deleted() -> Value {
    json!({ "metadata": { "deletionTimestamp": DELETED, "finalizers": ["wharfline.dev/protection"] } })
}

struct Case {
    name: &'static str,
    cluster: Value,
    asked: &'static str,
    /// The way down to the cause.
    way: &'static [&'static str],
    says: &'static str,
    advice: &'static str,
}

fn going_up() -> Vec<Case> {
    let claimless = json!({ "status": { "phase": "Pending", "volumeName": "" } });
    vec![
        Case {
            name: "a mount that died under who runs",
            cluster: with(&[
                ("allocations/0", unmet("VolumesReady", "MountStale", "what is mounted has lost its server")),
                (
                    "allocations/0",
                    json!({ "status": { "volumes": [{ "name": "v", "published": "Unknown" }] } }),
                ),
            ]),
            asked: "Allocation/web-data",
            way: &["allocation/web-data"],
            says: "Running on b: what is mounted has lost its server",
            advice: "",
        },
        Case {
            name: "the class is missing",
            cluster: without(with(&[("claims/0", claimless.clone())]), "classes", 0),
            asked: "VolumeClaim/data",
            way: &["volumeclaim/data", "volumeclass/fast"],
            says: "does not exist",
            advice: "apply a manifest of volumeclass/fast",
        },
        Case {
            name: "the plugin is missing",
            cluster: without(with(&[("claims/0", claimless.clone())]), "plugins", 0),
            asked: "VolumeClaim/data",
            way: &["volumeclaim/data", "volumeclass/fast", "plugin/nfs"],
            says: "does not exist",
            advice: "apply a manifest of plugin/nfs",
        },
        Case {
            name: "nobody uses a late-bound claim",
            cluster: without(
                with(&[
                    ("claims/0", claimless.clone()),
                    ("classes/0", json!({ "spec": { "volumeBindingMode": "WaitForFirstConsumer" } })),
                ]),
                "allocations",
                0,
            ),
            asked: "VolumeClaim/data",
            way: &["volumeclaim/data"],
            says: "not bound: waits for the first allocation that uses it",
            advice: "apply an allocation that uses it",
        },
        Case {
            name: "no default class",
            cluster: with(&[
                ("claims/0", claimless),
                ("claims/0", json!({ "spec": { "volumeClassName": "" } })),
            ]),
            asked: "VolumeClaim/data",
            way: &["volumeclaim/data", "volumeclass/(default)"],
            says: "the claim names no class and no class is the default",
            advice: "name one in volumeClassName",
        },
        Case {
            name: "the claim is missing",
            cluster: without(with(&[("allocations/0", waiting(""))]), "claims", 0),
            asked: "Allocation/web-data",
            way: &["allocation/web-data", "volumeclaim/data"],
            says: "does not exist",
            advice: "apply a manifest of volumeclaim/data -n shop",
        },
        Case {
            name: "staging fails",
            cluster: with(&[
                ("allocations/0", waiting("vol-data")),
                (
                    "attachments/0",
                    json!({ "status": { "node": {
                    "staged": "Unknown", "reason": "StageFailed", "message": "staging path is not on a shared mount",
                    "nextAttemptTime": "2026-01-01T00:00:08Z",
                    "calls": [
                        call("DEADLINE_EXCEEDED", "2026-01-01T00:00:00Z", "slow"),
                        call("FAILED_PRECONDITION", "2026-01-01T00:00:02Z", "not shared"),
                    ],
                } } }),
                ),
            ]),
            asked: "Allocation/web-data",
            way: &["allocation/web-data", "volumeclaim/data", "volume/vol-data", "volumeattachment/att-data"],
            says: "attached to b, not staged: staging path is not on a shared mount",
            advice: "mend what the message says: by its code the call is not expected to succeed before; it is tried",
        },
        Case {
            name: "attaching waits for the host's driver, which cannot be reached",
            cluster: with(&[
                ("allocations/0", waiting("vol-data")),
                (
                    "attachments/0",
                    json!({ "status": { "controller": { "attached": "Unknown", "reason": "PluginNotReady", "message": "m" } } }),
                ),
                ("instances/0", unmet("Connected", "NoSocket", "no socket at /run/x")),
            ]),
            asked: "Allocation/web-data",
            way: &[
                "allocation/web-data",
                "volumeclaim/data",
                "volume/vol-data",
                "volumeattachment/att-data",
                "plugin/nfs",
                "plugininstance/nfs-a",
            ],
            says: "not healthy on a: no socket at /run/x",
            advice: "`wharfline describe plugininstance/nfs-a`",
        },
        Case {
            name: "the plugin went away before there was an attachment",
            cluster: without(
                with(&[
                    ("allocations/0", waiting("")),
                    ("instances/1", unmet("Connected", "NoSocket", "no socket at /run/x")),
                ]),
                "attachments",
                0,
            ),
            asked: "Allocation/web-data",
            way: &[
                "allocation/web-data",
                "volumeclaim/data",
                "volume/vol-data",
                "plugin/nfs",
                "plugininstance/nfs-b",
            ],
            says: "not healthy on b: no socket at /run/x",
            advice: "`wharfline describe plugininstance/nfs-b`",
        },
        Case {
            name: "an instance on a lost node counts for nothing",
            cluster: with(&[("nodes/1", unmet("Ready", "LeaseExpired", "no sign of life since 12:00"))]),
            asked: "Plugin/nfs",
            way: &["plugin/nfs", "plugininstance/nfs-b", "node/b"],
            says: "not ready: no sign of life since 12:00",
            advice: "start the node daemon on b",
        },
        Case {
            name: "the host is lost",
            cluster: with(&[
                (
                    "volumes/0",
                    json!({ "status": { "phase": "Pending", "provisioning": { "type": "Provisioned", "status": "False", "reason": "NoHost", "message": "m" } } }),
                ),
                ("claims/0", json!({ "status": { "phase": "Pending" } })),
                ("nodes/0", unmet("Ready", "LeaseExpired", "no sign of life since 12:00")),
            ]),
            asked: "VolumeClaim/data",
            way: &["volumeclaim/data", "volume/vol-data", "node/a"],
            says: "not ready: no sign of life since 12:00",
            advice: "start the node daemon on a",
        },
        Case {
            name: "no instance reaches the node, because the driver's task fails",
            cluster: without(
                with(&[
                    ("allocations/0", waiting("vol-data")),
                    (
                        "attachments/0",
                        json!({ "status": { "node": { "staged": "Down", "reason": "PluginNotReady", "message": "m" } } }),
                    ),
                    (
                        "allocations/3",
                        json!({ "status": { "phase": "Failed", "tasks": [{ "name": "driver", "state": "Exited", "exitCode": 3, "restarts": 2, "lastOutput": "a\nno license" }] } }),
                    ),
                ]),
                "instances",
                1,
            ),
            asked: "Allocation/web-data",
            way: &[
                "allocation/web-data",
                "volumeclaim/data",
                "volume/vol-data",
                "volumeattachment/att-data",
                "plugin/nfs",
                "allocation/nfs-all-b",
            ],
            says: "Failed on b; task driver ended with 3, started again 2 times; it wrote last: a | no license",
            advice: "`wharfline logs nfs-all-b/driver -n wharfline-system`",
        },
    ]
}

fn coming_down() -> Vec<Case> {
    vec![
        Case {
            name: "another allocation holds the volume on another node",
            cluster: with(&[
                ("allocations/0", json!({ "status": { "nodeName": "a" } })),
                ("allocations/0", waiting("vol-data")),
                (
                    "volumes/0",
                    json!({ "status": { "holders": [{ "allocation": { "namespace": "shop", "name": "web-logs" }, "nodeName": "b" }] } }),
                ),
            ]),
            asked: "Allocation/web-data",
            way: &["allocation/web-data", "volumeclaim/data", "volume/vol-data", "allocation/web-logs"],
            says: "holds volume/vol-data on b, and has to end or be deleted first",
            advice: "wait until it ends, or `wharfline delete allocation/web-logs -n shop`",
        },
        Case {
            name: "the holder's node is lost",
            cluster: with(&[
                ("allocations/0", json!({ "status": { "nodeName": "a" } })),
                ("allocations/0", waiting("vol-data")),
                (
                    "volumes/0",
                    json!({ "status": { "holders": [{ "allocation": { "namespace": "shop", "name": "web-logs" }, "nodeName": "b" }] } }),
                ),
                ("nodes/1", unmet("Ready", "NoFence", "run: taint")),
            ]),
            asked: "Allocation/web-data",
            way: &[
                "allocation/web-data",
                "volumeclaim/data",
                "volume/vol-data",
                "allocation/web-logs",
                "node/b",
            ],
            says: "not ready: run: taint",
            advice: "run the command in the message",
        },
        Case {
            name: "a claim in use",
            cluster: with(&[("claims/0", deleted())]),
            asked: "VolumeClaim/data",
            way: &["volumeclaim/data", "allocation/web-data"],
            says: "uses it",
            advice: "`wharfline delete allocation/web-data -n shop`",
        },
        Case {
            name: "a plugin of which an instance that is wanted is not there",
            cluster: without(
                with(&[
                    ("plugins/0", unmet("Ready", "InstancesMissing", "1 of 2 instances are ready")),
                    (
                        "allocations/3",
                        json!({ "status": { "phase": "Failed", "tasks": [{
                        "name": "driver", "state": "Exited", "exitCode": 2, "restarts": 0,
                    }] } }),
                    ),
                ]),
                "instances",
                1,
            ),
            asked: "Plugin/nfs",
            way: &["plugin/nfs", "allocation/nfs-all-b"],
            says: "Failed on b; task driver ended with 2, started again 0 times",
            advice: "`wharfline logs nfs-all-b/driver -n wharfline-system`",
        },
        Case {
            name: "a plugin that volumes need",
            cluster: with(&[("plugins/0", deleted())]),
            asked: "Plugin/nfs",
            way: &["plugin/nfs", "volumeclaim/data"],
            says: "needs it for vol-data",
            advice: "`wharfline delete volumeclaim/data -n shop`, and its data with it",
        },
        Case {
            name: "a volume whose node does not release it",
            cluster: with(&[
                ("volumes/0", deleted()),
                ("attachments/0", deleted()),
                (
                    "attachments/0",
                    json!({ "status": { "node": { "reason": "UnstageFailed", "message": "target is busy" } } }),
                ),
            ]),
            asked: "Volume/vol-data",
            way: &["volume/vol-data", "volumeattachment/att-data"],
            says: "not released by b yet: target is busy",
            advice: "`wharfline describe volumeattachment/att-data`",
        },
        Case {
            name: "a released attachment that is not detached",
            cluster: with(&[
                ("attachments/0", deleted()),
                (
                    "attachments/0",
                    json!({ "status": {
                    "node": { "staged": "Down", "releasedUID": "att-uid-data" },
                    "controller": { "reason": "Failed", "message": "backend says no" },
                } }),
                ),
            ]),
            asked: "VolumeAttachment/att-data",
            way: &["volumeattachment/att-data"],
            says: "released by b, not detached yet: backend says no",
            advice: "`wharfline describe volumeattachment/att-data`",
        },
        Case {
            name: "an allocation whose tasks do not end",
            cluster: with(&[
                ("allocations/0", deleted()),
                ("allocations/0", json!({ "status": { "phase": "Stopping" } })),
            ]),
            asked: "Allocation/web-data",
            way: &["allocation/web-data"],
            says: "being deleted; task t is Running",
            advice: "`wharfline describe allocation/web-data -n shop`",
        },
    ]
}

/// Allocation `web-data` without a node, with this said of it by placement.
fn unplaced(reason: &str, message: &str) -> Value {
    let told = |kind: &str| json!({ "type": kind, "status": "False", "reason": reason, "message": message });
    json!({ "status": {
        "nodeName": "", "phase": "Pending", "volumes": null, "tasks": null,
        "conditions": [told("Placed"), told("Ready")],
    } })
}

/// The same cluster without nodes and instances.
fn nodeless(name: &'static str, mut cluster: Value) -> Case {
    cluster["nodes"] = json!([]);
    cluster["instances"] = json!([]);
    cluster["allocations"].as_array_mut().unwrap().truncate(2);
    Case {
        name,
        cluster,
        asked: "Allocation/web-data",
        way: &["allocation/web-data", "node/(none)"],
        says: "no node has joined",
        advice: "start `wharfline up` on the machine that shall be the node, or `wharfline node` with a `wharfline \
            token create`",
    }
}

fn failing() -> Vec<Case> {
    let ended = json!({ "status": {
        "phase": "Failed",
        "conditions": [
            { "type": "Placed", "status": "True", "reason": "Placed" },
            { "type": "VolumesReady", "status": "False", "reason": "VolumesNotReady", "message": "waits" },
            { "type": "Ready", "status": "False", "reason": "TaskFailed", "message": "task t: exited with 1" },
        ],
        "volumes": [{ "name": "v", "volume": "vol-data", "published": "Down" }],
        "tasks": [{ "name": "t", "state": "Exited", "exitCode": 1, "restarts": 0 }],
    } });
    vec![
        Case {
            name: "a task failed for good, and its volume is not attached any more",
            cluster: without(with(&[("allocations/0", ended)]), "attachments", 0),
            asked: "Allocation/web-data",
            way: &["allocation/web-data"],
            says: "Failed on b: task t: exited with 1; task t ended with 1, started again 0 times",
            advice: "`wharfline logs web-data/t -n shop`; once that is put right, delete it and apply it again",
        },
        Case {
            name: "others ended because one task failed for good",
            cluster: with(&[(
                "allocations/0",
                json!({ "status": {
            "phase": "Failed",
            "conditions": [
                { "type": "Placed", "status": "True", "reason": "Placed" },
                { "type": "Ready", "status": "False", "reason": "TaskFailed", "message": "task t: exited with 3" },
            ],
            "tasks": [
                { "name": "aaa", "state": "Exited", "exitCode": 143, "restarts": 0 },
                { "name": "t", "state": "Exited", "exitCode": 3, "restarts": 0 },
            ],
        } }),
            )]),
            asked: "Allocation/web-data",
            way: &["allocation/web-data"],
            says: "Failed on b: task t: exited with 3; task t ended with 3, started again 0 times",
            advice: "`wharfline logs web-data/t -n shop`; once that is put right, delete it and apply it again",
        },
    ]
}

fn sharing() -> Vec<Case> {
    let held = |mode: &str| {
        json!({
            "spec": { "accessModes": [mode] },
            "status": { "holders": [{ "allocation": { "namespace": "shop", "name": "web-logs" }, "nodeName": "b" }] },
        })
    };
    let case = |name: &'static str, mode: &str, node: &str| Case {
        name,
        cluster: with(&[
            ("allocations/0", waiting("vol-data")),
            ("allocations/0", json!({ "status": { "nodeName": node } })),
            ("volumes/0", held(mode)),
        ]),
        asked: "Allocation/web-data",
        way: &["allocation/web-data", "volumeclaim/data", "volume/vol-data", "allocation/web-logs"],
        says: "holds volume/vol-data on b, and has to end or be deleted first",
        advice: "wait until it ends, or `wharfline delete allocation/web-logs -n shop`",
    };
    vec![
        case("a single writer on the same node", "SingleNodeSingleWriter", "b"),
        case("a single writer on another node", "SingleNodeSingleWriter", "a"),
        case("one writer on the same node", "SingleNodeWriter", "b"),
        case("one writer on another node", "SingleNodeWriter", "a"),
        Case {
            cluster: with(&[
                ("allocations/0", waiting("vol-data")),
                ("volumes/0", held("SingleNodeMultiWriter")),
                (
                    "attachments/0",
                    json!({ "status": { "node": { "staged": "Down", "reason": "StageFailed", "message": "m" } } }),
                ),
            ]),
            way: &["allocation/web-data", "volumeclaim/data", "volume/vol-data", "volumeattachment/att-data"],
            says: "attached to b, not staged: m",
            advice: "`wharfline describe volumeattachment/att-data`",
            ..case("several writers on one node hold nobody up", "", "b")
        },
        Case {
            name: "the holder was deleted, and another of its name waits",
            cluster: with(&[
                ("allocations/0", waiting("vol-data")),
                ("allocations/0", json!({ "metadata": { "uid": "new" } })),
                (
                    "volumes/0",
                    json!({ "status": { "holders": [{
                        "allocation": { "namespace": "shop", "name": "web-data", "uid": "old" }, "nodeName": "b",
                    }] } }),
                ),
            ]),
            asked: "Allocation/web-data",
            way: &["allocation/web-data", "volumeclaim/data", "volume/vol-data", "allocation/web-data"],
            says: "one of this name is gone, and b has not released volume/vol-data yet",
            advice: "`wharfline describe volume/vol-data`",
        },
    ]
}

fn going() -> Vec<Case> {
    vec![
        Case {
            name: "an allocation whose volume waits for its task",
            cluster: with(&[
                ("allocations/0", deleted()),
                (
                    "allocations/0",
                    json!({ "status": { "phase": "Stopping", "tasks": [{ "name": "t", "state": "Stopping" }] } }),
                ),
                ("attachments/0", deleted()),
                (
                    "attachments/0",
                    json!({ "status": { "node": { "reason": "TasksRunning", "message": "waits for the task" } } }),
                ),
            ]),
            asked: "Allocation/web-data",
            way: &["allocation/web-data"],
            says: "being deleted; task t is Stopping",
            advice: "`wharfline describe allocation/web-data -n shop`",
        },
        Case {
            name: "a plugin that goes and is healthy still",
            cluster: without(with(&[("plugins/0", deleted()), ("claims/0", deleted())]), "allocations", 0),
            asked: "Plugin/nfs",
            way: &["plugin/nfs", "volumeclaim/logs"],
            says: "needs it for vol-logs",
            advice: "`wharfline delete volumeclaim/logs -n shop`, and its data with it",
        },
        Case {
            name: "a plugin that goes, asked from below",
            cluster: with(&[("plugins/0", deleted())]),
            asked: "VolumeClass/fast",
            way: &["volumeclass/fast", "plugin/nfs"],
            says: "being deleted, and makes no more volumes",
            advice: "apply a Plugin of that name once it is gone",
        },
        Case {
            name: "a node that goes",
            cluster: with(&[("nodes/1", deleted())]),
            asked: "Node/b",
            way: &["node/b", "allocation/web-data"],
            says: "runs on it",
            advice: "`wharfline delete allocation/web-data -n shop`",
        },
        Case {
            name: "a node that goes and whose plugin is host of a volume",
            cluster: {
                let here = json!({ "status": { "nodeName": "b" } });
                let goes = [("nodes/1", deleted()), ("allocations/3", deleted()), ("allocations/3", here)];
                let mut cluster = with(&goes);
                cluster["attachments"] = json!([]);
                let allocations = cluster["allocations"].as_array_mut().unwrap();
                allocations.drain(..2);
                cluster
            },
            asked: "Node/b",
            way: &["node/b", "allocation/nfs-all-b", "volumeclaim/data"],
            says: "needs it for vol-data",
            advice: "start a controller instance of nfs on another node, and that one goes on with the volume; or `wharfline delete",
        },
        Case {
            name: "a node that goes and was asked to let go of a volume",
            cluster: {
                let here = json!({ "status": { "nodeName": "b" } });
                let asked = json!({ "status": { "controller": { "nodeName": "b", "epoch": 3 }, "askedToRelease": 3 } });
                let goes = [("nodes/1", deleted()), ("allocations/3", deleted()), ("allocations/3", here)];
                let mut cluster = with(&goes.into_iter().chain([("volumes/0", asked)]).collect::<Vec<_>>());
                cluster["attachments"] = json!([]);
                let volumes = cluster["volumes"].as_array_mut().unwrap();
                volumes.truncate(1);
                let allocations = cluster["allocations"].as_array_mut().unwrap();
                allocations.drain(..2);
                cluster
            },
            asked: "Node/b",
            way: &["node/b", "allocation/nfs-all-b", "volume/vol-data"],
            says: "goes to another node once b lets go of it",
            advice: "wait: it does so when no call can be at work any more",
        },
        Case {
            name: "a node that goes and has an attachment left",
            cluster: {
                let mut cluster = with(&[("nodes/1", deleted()), ("attachments/0", deleted())]);
                cluster["allocations"] = json!([]);
                cluster
            },
            asked: "Node/b",
            way: &["node/b", "volumeattachment/att-data"],
            says: "not released by b yet",
            advice: "`wharfline describe volumeattachment/att-data`",
        },
        Case {
            name: "a claim that goes, with a volume that cannot",
            cluster: without(
                with(&[
                    ("claims/0", deleted()),
                    ("volumes/0", deleted()),
                    (
                        "volumes/0",
                        json!({ "status": { "holders": [], "provisioning":
                            { "type": "Provisioned", "status": "False", "reason": "DeleteFailed", "message": "has snapshots" } } }),
                    ),
                    ("attachments/0", json!({ "spec": { "volume": "other" } })),
                ]),
                "allocations",
                0,
            ),
            asked: "VolumeClaim/data",
            way: &["volumeclaim/data", "volume/vol-data"],
            says: "being deleted: has snapshots",
            advice: "`wharfline describe volume/vol-data`",
        },
    ]
}

#[test]
fn the_way_to_the_cause_is_found() {
    let cases = [going_up(), coming_down(), placing::placing(), failing(), sharing(), going()];
    let mut wrong = Vec::new();
    for case in cases.into_iter().flatten() {
        let name = case.name;
        let explanation = explain(&objects(&case.cluster), &subject(case.asked)).expect(name);
        let way: Vec<String> = explanation.tree.path().iter().map(|b| b.subject.to_string()).collect();
        let (says, advice) = explanation.root.map(|root| (root.text, root.advice)).unwrap_or_default();
        if way != case.way || says != case.says || !advice.starts_with(case.advice) {
            wrong.push(format!("{name}: {way:?}, \"{says}\", \"{advice}\""));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_well_has_no_cause() {
    let cluster = objects(&healthy());
    for asked in [
        "Allocation/web-data",
        "VolumeClaim/data",
        "VolumeClass/fast",
        "Volume/vol-data",
        "VolumeAttachment/att-data",
        "Plugin/nfs",
        "PluginInstance/nfs-a",
        "Node/a",
    ] {
        let explanation = explain(&cluster, &subject(asked)).expect(asked);
        assert_eq!((explanation.root, explanation.also), (None, Vec::new()), "{asked}");
    }
    assert_eq!(explain(&cluster, &subject("Volume/none")), None);
}

#[test]
fn the_last_failed_call_and_the_next_attempt_come_with_the_cause() {
    let staging = going_up().into_iter().find(|case| case.name == "staging fails").unwrap();
    let root = explain(&objects(&staging.cluster), &subject(staging.asked)).unwrap().root.unwrap();
    assert_eq!(root.call.map(|call| call.code).as_deref(), Some("FAILED_PRECONDITION"));
    assert_eq!(root.next.map(|time| time.0.to_string()).as_deref(), Some("2026-01-01T00:00:08Z"));
    assert_eq!(root.reason, "StageFailed");
    // Its node is not heard: nothing is tried before that is there again.
    let mut dead = staging.cluster;
    json_patch::merge(&mut dead["nodes"][1], &unmet("Ready", "LeaseNotRenewed", "silent"));
    dead["nodes"][1]["status"]["conditions"][0]["status"] = json!("Unknown");
    let page = explain(&objects(&dead), &subject("VolumeAttachment/att-data")).unwrap();
    assert!(page.tree.next.is_some(), "its node would: {:?}", page.tree);
    let root = page.root.unwrap();
    assert_eq!((root.subject.name.as_str(), root.next), ("b", None), "{}", root.text);
}

#[test]
fn others_with_the_same_cause_are_named() {
    let down =
        json!({ "status": { "node": { "staged": "Down", "reason": "PluginNotReady", "message": "m" } } });
    let cluster = with(&[
        ("allocations/0", waiting("vol-data")),
        ("allocations/1", waiting("vol-logs")),
        ("attachments/0", down.clone()),
        ("attachments/1", down),
        ("instances/1", unmet("Probed", "ProbeFailed", "not ready")),
    ]);
    let explanation = explain(&objects(&cluster), &subject("Allocation/web-data")).unwrap();
    let also: Vec<String> = explanation.also.iter().map(|s| s.words("shop")).collect();
    assert_eq!(also, ["allocation/web-logs"]);
    assert_eq!(explanation.also[0].words("other"), "allocation/web-logs -n shop");
}

#[test]
fn references_that_run_in_a_circle_end() {
    // The driver of the plugin waits for a volume of that very plugin.
    let mut cluster = with(&[("instances/1", unmet("Connected", "NoSocket", "none"))]);
    let own = json!({ "spec": { "volumes": [{ "name": "v", "claimName": "data" }] } });
    json_patch::merge(&mut cluster["allocations"][3], &own);
    json_patch::merge(&mut cluster["allocations"][3], &waiting("vol-data"));
    cluster["claims"][0]["metadata"]["namespace"] = json!("wharfline-system");
    json_patch::merge(&mut cluster["attachments"][0], &json!({ "status": { "node": { "staged": "Down" } } }));
    let explanation = explain(&objects(&cluster), &subject("PluginInstance/nfs-b")).unwrap();
    assert!(explanation.root.is_some());
}
