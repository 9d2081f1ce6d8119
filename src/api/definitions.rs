//! Every kind of ours as data: schema, columns, selectable fields, finalizer, validation.
use kube::CustomResourceExt;
use serde_json::{Value, json};

use super::kind::{Cell, Column, KindDefinition, NodeRight};
use super::meta::{AccessMode, ReclaimPolicy};
use super::validate;
use super::volume::Figures;
use super::{
    Allocation, NodeAgent, Plugin, PluginInstance, Snapshot, SnapshotSchedule, Volume, VolumeAttachment,
    VolumeAttributesClass, VolumeClaim, VolumeClass,
};

/// The finalizer of every kind that has one.
pub const FINALIZER: &str = "wharfline.dev/protection";

const fn column(name: &'static str, path: &'static str) -> Column {
    Column { name, kind: "string", wide: false, cell: Cell::Path(path) }
}

const fn wide(name: &'static str, path: &'static str) -> Column {
    Column { name, kind: "string", wide: true, cell: Cell::Path(path) }
}

const fn computed(name: &'static str, path: &'static str, value: fn(&Value) -> Value) -> Column {
    Column { name, kind: "string", wide: false, cell: Cell::Computed(path, value) }
}

const READY: Column = column("READY", ".status.conditions[?(@.type==\"Ready\")].status");
const MESSAGE: Column = wide("MESSAGE", ".status.conditions[?(@.type==\"Ready\")].message");

/// Every kind of ours, in the order of discovery.
pub fn definitions() -> Vec<KindDefinition> {
    let mut all = of_plugins();
    all.extend(of_volumes());
    all.extend(of_nodes());
    all
}

fn of_plugins() -> Vec<KindDefinition> {
    vec![
        KindDefinition {
            columns: PLUGIN,
            nodes: const { &[NodeRight::EVERY_NODE] },
            finalizer: Some(FINALIZER),
            validate: validate::plugin,
            ..of::<Plugin>("plugin", &["plug"], &[])
        },
        KindDefinition {
            columns: PLUGIN_INSTANCE,
            nodes: const {
                &[
                    NodeRight::of("spec.nodeName", INSTANCE_PART),
                    NodeRight::of("spec.nodeName", AUDIT_PART),
                    NodeRight::of("spec.nodeName", ROOM_PART),
                ]
            },
            ..of::<PluginInstance>("plugininstance", &["pi"], &["spec.nodeName", "spec.plugin"])
        },
    ]
}

fn of_volumes() -> Vec<KindDefinition> {
    vec![
        KindDefinition {
            columns: CLASS,
            validate: validate::class,
            ..of::<VolumeClass>("volumeclass", &["vclass"], &[])
        },
        KindDefinition {
            columns: ATTRIBUTES,
            validate: validate::attributes,
            ..of::<VolumeAttributesClass>("volumeattributesclass", &["vac"], &[])
        },
        KindDefinition {
            columns: CLAIM,
            nodes: const { &[NodeRight::BY_NAME] },
            finalizer: Some(FINALIZER),
            validate: validate::claim,
            ..of::<VolumeClaim>("volumeclaim", &["vc"], &[])
        },
        KindDefinition {
            columns: VOLUME,
            nodes: const { &[NodeRight::of("status.controller.nodeName", VOLUME_PART)] },
            finalizer: Some(FINALIZER),
            amend: super::volume::kept_late,
            validate: validate::volume,
            late: super::volume::late_word,
            goes: |_| false,
            over: super::volume::volume_over,
            ..of::<Volume>("volume", &["vol"], &["spec.plugin", "status.controller.nodeName"])
        },
        KindDefinition {
            columns: ATTACHMENT,
            nodes: const {
                &[
                    NodeRight::of("spec.nodeName", ATTACHED_PART),
                    NodeRight::of("spec.host.nodeName", HOSTED_PART),
                ]
            },
            finalizer: Some(FINALIZER),
            late: super::volume::late_attachment,
            goes: super::volume::is_let_go,
            over: super::volume::attachment_over,
            ..of::<VolumeAttachment>("volumeattachment", &["att"], &["spec.nodeName", "spec.host.nodeName"])
        },
        KindDefinition {
            columns: SNAPSHOT,
            nodes: const { &[NodeRight::of("status.controller.nodeName", SNAPSHOT_PART)] },
            finalizer: Some(FINALIZER),
            amend: super::snapshot::kept_late,
            validate: validate::snapshot,
            reserved: super::snapshot::reserved,
            late: super::snapshot::late_snapshot,
            ..of::<Snapshot>("snapshot", &["snap"], &["status.controller.nodeName"])
        },
        KindDefinition {
            columns: SCHEDULE,
            validate: validate::schedule,
            ..of::<SnapshotSchedule>("snapshotschedule", &["snapsched"], &[])
        },
    ]
}

fn of_nodes() -> Vec<KindDefinition> {
    vec![
        KindDefinition {
            columns: ALLOCATION,
            nodes: const { &[NodeRight::of("status.nodeName", ALLOCATION_PART)] },
            finalizer: Some(FINALIZER),
            goes: |_| false,
            over: super::allocation::allocation_over,
            default: super::allocation::name_claims,
            validate: validate::allocation,
            ..of::<Allocation>("allocation", &["alloc"], &["status.nodeName"])
        },
        KindDefinition {
            columns: AGENT,
            nodes: const { &[NodeRight::of("metadata.name", AGENT_PART)] },
            ..of::<NodeAgent>("nodeagent", &["na"], &[])
        },
    ]
}

/// The fields of an Allocation's status that its node writes.
pub const ALLOCATION_PART: &[&str] = &["phase", "released", "volumes", "tasks", "conditions"];
/// The fields of a VolumeAttachment's status that its node writes.
pub const ATTACHED_PART: &[&str] = &["node", "conditions"];
/// The fields of a VolumeAttachment's status that its host writes.
pub const HOSTED_PART: &[&str] = &["controller"];
/// The fields of a PluginInstance's status that say how it is.
pub const INSTANCE_PART: &[&str] =
    &["provider", "nodeId", "maxVolumes", "topology", "capabilities", "since", "conditions"];
/// The field of a PluginInstance's status that says what its backend has.
pub const AUDIT_PART: &[&str] = &["audit"];
/// The field of a PluginInstance's status that says how much room its backend has.
pub const ROOM_PART: &[&str] = &["rooms"];
/// The fields of a NodeAgent's status: all of them.
pub const AGENT_PART: &[&str] = &[
    "incarnation",
    "bootId",
    "kernel",
    "version",
    "runtimes",
    "missingRuntimes",
    "hostPaths",
    "leftovers",
    "stopped",
    "conditions",
];
/// The fields of a Snapshot's status that its host writes.
pub const SNAPSHOT_PART: &[&str] = &[
    "exists",
    "handle",
    "members",
    "size",
    "creationTime",
    "ready",
    "groupID",
    "calls",
    "nextAttemptTime",
    "observedEpoch",
    "releasedEpoch",
    "taking",
];
/// The fields of a Volume's status that its host writes.
pub const VOLUME_PART: &[&str] = &[
    "exists",
    "handle",
    "context",
    "capacity",
    "topology",
    "calls",
    "nextAttemptTime",
    "attempting",
    "observedEpoch",
    "releasedEpoch",
    "provisioning",
    "expansion",
    "modification",
];

const PLUGIN: &[Column] = &[
    column("PROVIDER", ".status.provider.name"),
    column("VERSION", ".status.provider.version"),
    computed("CONTROLLERS", ".status.controllers.healthy", |o| fraction(o, "controllers")),
    computed("NODES", ".status.nodes.healthy", |o| fraction(o, "nodes")),
    READY,
    Column {
        name: "CAPABILITIES",
        kind: "string",
        wide: true,
        cell: Cell::Computed(".status.capabilities", |o| joined(&o["status"]["capabilities"])),
    },
    Column {
        name: "MESSAGE",
        kind: "string",
        wide: true,
        cell: Cell::Computed(".status.conditions[?(@.type==\"Ready\")].message", plugin_message),
    },
];
const PLUGIN_INSTANCE: &[Column] = &[
    column("PLUGIN", ".spec.plugin"),
    column("ROLE", ".spec.role"),
    column("NODE", ".spec.nodeName"),
    READY,
    wide("NODEID", ".status.nodeId"),
    wide("VERSION", ".status.provider.version"),
    MESSAGE,
];
const CLASS: &[Column] = &[
    column("PLUGIN", ".spec.plugin"),
    column("RECLAIM", ".spec.reclaimPolicy"),
    column("BINDING", ".spec.volumeBindingMode"),
    column("DEFAULT", ".spec.default"),
];
const ATTRIBUTES: &[Column] = &[
    column("PLUGIN", ".spec.plugin"),
    computed("PARAMETERS", ".spec.parameters", |o| parameters(&o["spec"]["parameters"])),
];
const CLAIM: &[Column] = &[
    computed("STATUS", ".status.phase", phase_unless_it_goes),
    column("VOLUME", ".status.volumeName"),
    column("CAPACITY", ".status.capacity"),
    computed("MODES", ".spec.accessModes", |o| modes(&o["spec"]["accessModes"])),
    column("CLASS", ".spec.volumeClassName"),
    computed("USED-BY", ".status.usedBy[*].name", |o| names(&o["status"]["usedBy"], "name")),
    wide("ATTRIBUTES", ".status.volumeAttributesClassName"),
];
const VOLUME: &[Column] = &[
    column("PLUGIN", ".spec.plugin"),
    column("CAPACITY", ".status.capacity"),
    computed("MODES", ".spec.accessModes", |o| modes(&o["spec"]["accessModes"])),
    computed("RECLAIM", ".spec.reclaimPolicy", reclaim),
    column("STATUS", ".status.phase"),
    computed("CLAIM", ".spec.claimRef.name", |o| claim_of(&o["spec"]["claimRef"])),
    computed("NODES", ".status.holders[*].nodeName", |o| names(&o["status"]["holders"], "nodeName")),
    wide("HANDLE", ".status.handle"),
];
const ATTACHMENT: &[Column] = &[
    column("VOLUME", ".spec.volume"),
    column("NODE", ".spec.nodeName"),
    computed("ATTACHED", ".status.controller.attached", |o| {
        rung(o, "attachRequired", "controller", "attached")
    }),
    computed("STAGED", ".status.node.staged", |o| rung(o, "stageRequired", "node", "staged")),
    computed("USED", ".status.node.usage.bytes.used", fullness),
    Column { name: "NEXT", kind: "string", wide: true, cell: Cell::Path(".status.node.nextAttemptTime") },
    wide("MESSAGE", ".status.node.message"),
];
const SNAPSHOT: &[Column] = &[
    READY,
    computed("SOURCE", ".spec.source.claimName", pictured),
    column("SIZE", ".status.size"),
    Column { name: "TAKEN", kind: "date", wide: false, cell: Cell::Path(".status.creationTime") },
    wide("HANDLE", ".status.handle"),
    MESSAGE,
];
const SCHEDULE: &[Column] = &[
    column("SCHEDULE", ".spec.schedule"),
    column("SUSPENDED", ".spec.suspend"),
    Column { name: "LAST", kind: "date", wide: false, cell: Cell::Path(".status.lastTime") },
    column("NEXT", ".status.nextTime"),
    wide("SNAPSHOT", ".status.lastSnapshot"),
    MESSAGE,
];
const ALLOCATION: &[Column] = &[
    computed("STATUS", ".status.phase", phase_unless_it_goes),
    column("NODE", ".status.nodeName"),
    computed("VOLUMES", ".status.volumes[*].published", published),
    computed("RESTARTS", ".status.tasks[*].restarts", restarts),
    MESSAGE,
];
const AGENT: &[Column] = &[
    READY,
    column("VERSION", ".status.version"),
    column("KERNEL", ".status.kernel"),
    wide("BOOT", ".status.bootId"),
];

/// The columns of core Node, which the server takes from here so that all columns stand on one page.
pub const NODE: &[Column] = &[
    computed("STATUS", ".status.conditions[?(@.type==\"Ready\")].status", node_status),
    wide("KERNEL", ".status.nodeInfo.kernelVersion"),
    wide("BOOT", ".status.nodeInfo.bootID"),
];

fn of<K: CustomResourceExt>(
    singular: &'static str,
    short_names: &'static [&'static str],
    selectable: &'static [&'static str],
) -> KindDefinition {
    let crd = K::crd();
    let version = &crd.spec.versions[0];
    let mut schema = version
        .schema
        .as_ref()
        .and_then(|s| s.open_api_v3_schema.as_ref())
        .and_then(|s| serde_json::to_value(s).ok())
        .unwrap_or_default();
    schema["description"] = schema["properties"]["spec"]["description"].clone();
    schema["properties"]["apiVersion"] = json!({ "type": "string" });
    schema["properties"]["kind"] = json!({ "type": "string" });
    schema["properties"]["metadata"] = json!({ "type": "object" });
    KindDefinition {
        group: super::GROUP,
        version: super::VERSION,
        kind: String::leak(crd.spec.names.kind.clone()),
        plural: String::leak(crd.spec.names.plural.clone()),
        singular,
        short_names,
        namespaced: crd.spec.scope == "Namespaced",
        has_status: version.subresources.as_ref().is_some_and(|s| s.status.is_some()),
        schema,
        columns: &[],
        selectable,
        nodes: &[],
        finalizer: None,
        default: |_| {},
        amend: |_, _| {},
        validate: |_, _| Vec::new(),
        reserved: |_| None,
        late: |_, _| None,
        goes: |_| false,
        over: |_| false,
    }
}

fn fraction(object: &Value, role: &str) -> Value {
    match object["status"].get(role) {
        Some(health) => json!(format!(
            "{}/{}",
            health["healthy"].as_u64().unwrap_or(0),
            health["expected"].as_u64().unwrap_or(0)
        )),
        None => Value::Null,
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn joined(list: &Value) -> Value {
    json!(items(list).filter_map(Value::as_str).collect::<Vec<_>>().join(","))
}

fn names(list: &Value, field: &str) -> Value {
    let mut names: Vec<_> = items(list).filter_map(|v| v[field].as_str()).collect();
    names.dedup();
    json!(names.join(","))
}

/// What becomes of a volume: one that was there before is kept, whatever its policy says.
fn reclaim(volume: &Value) -> Value {
    let there = volume["spec"]["source"]["existing"].is_object();
    if there { json!(ReclaimPolicy::Retain) } else { volume["spec"]["reclaimPolicy"].clone() }
}

/// The pairs of a map, as a person writes them.
fn parameters(map: &Value) -> Value {
    let pairs = map.as_object().into_iter().flatten();
    let pairs = pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    json!(pairs.collect::<Vec<_>>().join(","))
}

fn modes(list: &Value) -> Value {
    let short = |v: &Value| serde_json::from_value::<AccessMode>(v.clone()).ok().map(AccessMode::short);
    json!(items(list).filter_map(short).collect::<Vec<_>>().join(","))
}

/// What a snapshot is of: its claim or claims, or that it was there before.
fn pictured(snapshot: &Value) -> Value {
    let source = &snapshot["spec"]["source"];
    match (source["claimName"].as_str(), source["selector"].is_null()) {
        (Some(claim), _) => json!(claim),
        (None, true) => source["handle"].clone(),
        (None, false) => names(&snapshot["status"]["of"]["members"], "claimName"),
    }
}

fn claim_of(claim: &Value) -> Value {
    match claim["name"].as_str() {
        Some(name) => json!(format!("{}/{name}", claim["namespace"].as_str().unwrap_or("default"))),
        None => Value::Null,
    }
}

fn rung(object: &Value, required: &str, side: &str, field: &str) -> Value {
    if object["spec"][required] == json!(false) {
        return json!("-");
    }
    object["status"][side].get(field).cloned().unwrap_or_else(|| json!("Unknown"))
}

/// What is used of a volume, in per cent, on the node of its attachment.
fn fullness(object: &Value) -> Value {
    let bytes = serde_json::from_value::<Figures>(object["status"]["node"]["usage"]["bytes"].clone());
    let part = bytes.ok().and_then(|bytes| bytes.per_cent());
    part.map_or(Value::Null, |part| json!(format!("{part}%")))
}

fn published(object: &Value) -> Value {
    let up = items(&object["status"]["volumes"]).filter(|v| v["published"] == "Up").count();
    json!(format!("{up}/{}", items(&object["spec"]["volumes"]).count()))
}

fn restarts(object: &Value) -> Value {
    json!(items(&object["status"]["tasks"]).filter_map(|t| t["restarts"].as_u64()).sum::<u64>().to_string())
}

/// As kubectl has it of a PersistentVolumeClaim and of a Pod: of one that goes, that it goes is told, and not that it is
/// bound or runs.
fn phase_unless_it_goes(object: &Value) -> Value {
    let goes = !object["metadata"]["deletionTimestamp"].is_null();
    if goes { json!("Terminating") } else { object["status"]["phase"].clone() }
}

/// While its instances are well and an update is not through, how far that is.
fn plugin_message(object: &Value) -> Value {
    let named = |kind: &str| items(&object["status"]["conditions"]).find(|c| c["type"] == kind);
    let ready = named("Ready");
    let well = ready.is_none_or(|condition| condition["status"] == "True");
    let update = named("Updated").filter(|condition| well && condition["status"] == "False");
    update.or(ready).map(|condition| condition["message"].clone()).unwrap_or_default()
}

fn node_status(object: &Value) -> Value {
    let ready = items(&object["status"]["conditions"]).find(|c| c["type"] == "Ready").map(|c| &c["status"]);
    let word = match ready.and_then(Value::as_str) {
        Some("True") => "Ready",
        Some("False") => "NotReady",
        _ => "Unknown",
    };
    let cordoned = object["spec"]["unschedulable"] == json!(true);
    let deleted = !object["metadata"]["deletionTimestamp"].is_null();
    let more = [(cordoned, "SchedulingDisabled"), (deleted, "Deleting")];
    let words = std::iter::once(word).chain(more.iter().filter(|(is, _)| *is).map(|(_, word)| *word));
    json!(words.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_says_so() {
        let mut claim = json!({ "status": { "phase": "Bound" } });
        assert_eq!(phase_unless_it_goes(&claim), "Bound");
        assert_eq!(phase_unless_it_goes(&json!({})), Value::Null);
        claim["metadata"] = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        assert_eq!(phase_unless_it_goes(&claim), "Terminating");
        claim["status"]["phase"] = json!("Running");
        for kind in ["VolumeClaim", "Allocation"] {
            let all = definitions();
            let columns = all.iter().find(|definition| definition.kind == kind).unwrap().columns;
            let status = columns.iter().find(|column| column.name == "STATUS").unwrap();
            let Cell::Computed(_, cell) = status.cell else { panic!("{kind}: it is a field alone") };
            assert_eq!(cell(&claim), "Terminating", "{kind}");
        }
    }

    #[test]
    fn what_was_there_before_is_shown_as_kept() {
        let made = json!({ "spec": { "source": { "create": {} }, "reclaimPolicy": "Delete" } });
        let there = json!({ "spec": { "source": { "existing": {} }, "reclaimPolicy": "Delete" } });
        assert_eq!((reclaim(&made), reclaim(&there)), (json!("Delete"), json!("Retain")));
    }

    #[test]
    fn a_plugin_tells_of_its_update_while_its_instances_are_well() {
        let told = |conditions: Value| plugin_message(&json!({ "status": { "conditions": conditions } }));
        let of = |kind: &str, status: &str, message: &str| json!({ "type": kind, "status": status, "message": message });
        let (well, unwell) = (of("Ready", "True", "well"), of("Ready", "False", "unwell"));
        let (held, done) = (of("Updated", "False", "held"), of("Updated", "True", "done"));
        for (conditions, says) in [
            (json!([]), Value::Null),
            (json!([well]), json!("well")),
            (json!([well, held]), json!("held")),
            (json!([well, done]), json!("well")),
            (json!([unwell, held]), json!("unwell")),
        ] {
            assert_eq!(told(conditions.clone()), says, "{conditions}");
        }
    }

    #[test]
    fn a_node_shows_what_keeps_new_work_away() {
        let mut node = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        assert_eq!(node_status(&node), "Ready");
        node["spec"] = json!({ "unschedulable": true });
        node["metadata"] = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        assert_eq!(node_status(&node), "Ready,SchedulingDisabled,Deleting");
        assert_eq!(node_status(&json!({})), "Unknown");
    }

    #[test]
    fn cells_say_what_a_person_wants_to_know() {
        let alloc = json!({
            "spec": { "volumes": [{}, {}] },
            "status": { "volumes": [{ "published": "Up" }, { "published": "Down" }], "tasks": [{ "restarts": 2 }, {}] },
        });
        assert_eq!(published(&alloc), json!("1/2"));
        assert_eq!(restarts(&alloc), json!("2"));
        assert_eq!(modes(&json!(["SingleNodeWriter", "MultiNodeMultiWriter"])), json!("RWO,RWX"));
        assert_eq!(
            fraction(&json!({ "status": { "nodes": { "healthy": 1, "expected": 3 } } }), "nodes"),
            json!("1/3")
        );
        assert_eq!(
            rung(&json!({ "spec": { "attachRequired": false } }), "attachRequired", "controller", "attached"),
            "-"
        );
    }

    #[test]
    fn every_kind_has_a_schema_and_a_status_where_the_design_says_so() {
        for kind in definitions() {
            assert_eq!(kind.schema["type"], "object", "{}", kind.kind);
            assert!(kind.schema["properties"]["spec"].is_object(), "{}", kind.kind);
            let class = ["VolumeClass", "VolumeAttributesClass"].contains(&kind.kind);
            assert_eq!(kind.has_status, !class, "{}", kind.kind);
        }
    }
}
