//! The kinds of Kubernetes itself that we serve, as data: Secret, ConfigMap, Namespace, Node, Event, Lease.
//!
//! Their schemas are open: fields that we do not name are kept. What is special about them besides is in
//! `resource` (sealing, one storage for both kinds of events) and here in their defaults.
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::joining::KEY;
use crate::api::definitions::{FINALIZER, NODE};
use crate::api::{Cell, Column, FieldError, FieldErrors, KindDefinition, NodeRight};

/// Every core kind, in the order of discovery.
pub(crate) fn definitions() -> Vec<KindDefinition> {
    vec![config_map(), event(""), namespace(), node(), secret(), lease(), event("events.k8s.io")]
}

/// A kind without anything special, namespaced and of the core.
pub(crate) fn plain(kind: &'static str, plural: &'static str, singular: &'static str) -> KindDefinition {
    KindDefinition {
        group: "",
        version: "v1",
        kind,
        plural,
        singular,
        short_names: &[],
        namespaced: true,
        has_status: false,
        schema: open(&[]),
        columns: &[],
        selectable: &[],
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

/// An object schema with the given properties that keeps every other field too.
pub(crate) fn open(properties: &[(&str, Value)]) -> Value {
    let mut all: Map<String, Value> = properties.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    all.insert("apiVersion".to_owned(), json!({ "type": "string" }));
    all.insert("kind".to_owned(), json!({ "type": "string" }));
    all.insert("metadata".to_owned(), json!({ "type": "object" }));
    json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": all })
}

pub(crate) fn open_object() -> Value {
    json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

fn texts() -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "string" } })
}

fn column(name: &'static str, kind: &'static str, cell: Cell) -> Column {
    Column { name, kind, wide: false, cell }
}

fn config_map() -> KindDefinition {
    const COLUMNS: &[Column] =
        &[Column { name: "DATA", kind: "integer", wide: false, cell: Cell::Computed(".data", count_data) }];
    KindDefinition {
        short_names: &["cm"],
        schema: open(&[
            ("data", texts()),
            ("binaryData", texts()),
            ("immutable", json!({ "type": "boolean" })),
        ]),
        columns: COLUMNS,
        validate: |new, old| immutable_faults(new, old, &["data", "binaryData"]),
        ..plain("ConfigMap", "configmaps", "configmap")
    }
}

fn secret() -> KindDefinition {
    const COLUMNS: &[Column] = &[
        Column { name: "TYPE", kind: "string", wide: false, cell: Cell::Path(".type") },
        Column { name: "DATA", kind: "integer", wide: false, cell: Cell::Computed(".data", count_data) },
    ];
    KindDefinition {
        schema: open(&[
            ("data", texts()),
            ("stringData", texts()),
            ("type", json!({ "type": "string", "default": "Opaque" })),
            ("immutable", json!({ "type": "boolean" })),
        ]),
        columns: COLUMNS,
        selectable: &["type"],
        default: fold_string_data,
        validate: secret_faults,
        ..plain("Secret", "secrets", "secret")
    }
}

fn namespace() -> KindDefinition {
    const COLUMNS: &[Column] = &[Column {
        name: "STATUS",
        kind: "string",
        wide: false,
        cell: Cell::Computed(".status.phase", |object| match object["metadata"].get("deletionTimestamp") {
            Some(_) => Value::from("Terminating"),
            None => Value::from("Active"),
        }),
    }];
    KindDefinition {
        short_names: &["ns"],
        namespaced: false,
        schema: open(&[("spec", open_object()), ("status", open_object())]),
        columns: COLUMNS,
        selectable: &["status.phase"],
        nodes: const { &[NodeRight::BY_NAME] },
        finalizer: Some(FINALIZER),
        default: |object| {
            let going = object["metadata"].get("deletionTimestamp").is_some();
            let phase = Value::from(if going { "Terminating" } else { "Active" });
            if let Some(fields) = object.as_object_mut() {
                let status = fields.entry("status").or_insert_with(|| Value::Object(Map::new()));
                // Of another type it is refused by the schema.
                if let Some(status) = status.as_object_mut() {
                    status.insert("phase".to_owned(), phase);
                }
            }
        },
        ..plain("Namespace", "namespaces", "namespace")
    }
}

fn node() -> KindDefinition {
    KindDefinition {
        short_names: &["no"],
        namespaced: false,
        has_status: true,
        schema: open(&[
            (
                "spec",
                json!({
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {
                        "unschedulable": { "type": "boolean" },
                        "taints": { "type": "array", "x-kubernetes-list-type": "atomic", "items": {
                            "type": "object", "required": ["key", "effect"],
                            "properties": {
                                "key": { "type": "string" }, "value": { "type": "string" },
                                "effect": { "type": "string", "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"] },
                                "timeAdded": { "type": "string", "format": "date-time" }
                            }
                        } }
                    }
                }),
            ),
            (
                "status",
                json!({
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": { "conditions": {
                        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                        "items": open_object()
                    } }
                }),
            ),
        ]),
        columns: NODE,
        selectable: &["spec.unschedulable"],
        nodes: const { &[NodeRight::of("metadata.name", &[])] },
        finalizer: Some(FINALIZER),
        validate: given_away,
        ..plain("Node", "nodes", "node")
    }
}

/// A name is given away by taking the hash of its key off: whoever joins under it next runs what was placed there. So that says that the
/// machine which had it is off, and nobody can say that of one that is heard.
fn given_away(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let key = |node: &Value| node["metadata"]["annotations"][KEY].as_str().map(str::to_owned);
    let mut faults = FieldErrors::default();
    let Some(old) = old.filter(|old| key(old).is_some() && key(new) != key(old)) else {
        return faults.into_vec();
    };
    let conditions = old["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    if ready.any(|ready| ready["status"] == "True") {
        faults.forbidden(
            format!("metadata.annotations[{KEY}]"),
            "the machine that has this name is heard, and what runs there would run on beside what the next one of the name starts: take it \
             out (wharfline delete node), or end its daemon and what it runs, and wait until the Node is not Ready",
        );
    }
    faults.into_vec()
}

fn lease() -> KindDefinition {
    const COLUMNS: &[Column] =
        &[Column { name: "HOLDER", kind: "string", wide: false, cell: Cell::Path(".spec.holderIdentity") }];
    KindDefinition {
        group: "coordination.k8s.io",
        schema: open(&[("spec", open_object())]),
        columns: COLUMNS,
        ..plain("Lease", "leases", "lease")
    }
}

fn event(group: &'static str) -> KindDefinition {
    let core = group.is_empty();
    let columns = vec![
        column("LAST-SEEN", "date", Cell::Computed(".lastTimestamp", last_seen)),
        column("TYPE", "string", Cell::Path(".type")),
        column("REASON", "string", Cell::Path(".reason")),
        column("OBJECT", "string", Cell::Computed(".involvedObject", event_object)),
        column("MESSAGE", "string", Cell::Path(if core { ".message" } else { ".note" })),
    ];
    KindDefinition {
        group,
        short_names: &["ev"],
        // Two definitions for the life of the process: a leak of some hundred bytes buys plain slices elsewhere.
        columns: columns.leak(),
        selectable: if core { CORE_EVENT_FIELDS } else { NEW_EVENT_FIELDS },
        ..plain("Event", "events", "event")
    }
}

const CORE_EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const NEW_EVENT_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];

fn count_data(object: &Value) -> Value {
    let count = |field: &str| object[field].as_object().map_or(0, Map::len);
    Value::from(count("data") + count("binaryData"))
}

fn last_seen(event: &Value) -> Value {
    let series = &event["series"]["lastObservedTime"];
    [series, &event["lastTimestamp"], &event["deprecatedLastTimestamp"], &event["eventTime"]]
        .into_iter()
        .chain([&event["metadata"]["creationTimestamp"]])
        .find(|time| time.is_string())
        .cloned()
        .unwrap_or_default()
}

fn event_object(event: &Value) -> Value {
    let about = event.get("involvedObject").unwrap_or(&event["regarding"]);
    let text = |field: &str| about[field].as_str().unwrap_or_default().to_owned();
    Value::from(format!("{}/{}", text("kind").to_lowercase(), text("name")))
}

/// `stringData` is written plain and kept in `data` as base64.
fn fold_string_data(secret: &mut Value) {
    let Some(Value::Object(plain)) = secret.as_object_mut().and_then(|fields| fields.remove("stringData"))
    else {
        return;
    };
    if !secret["data"].is_object() {
        secret["data"] = Value::Object(Map::new());
    }
    let mut odd = Map::new();
    for (key, value) in plain {
        match value {
            Value::String(text) => secret["data"][key] = Value::from(STANDARD.encode(text)),
            Value::Null => {}
            // Refused by the schema, which says how to write it.
            other => drop(odd.insert(key, other)),
        }
    }
    if !odd.is_empty() {
        secret["stringData"] = Value::Object(odd);
    }
}

/// What Kubernetes takes as a key of a Secret, and CSI as one of its secrets.
fn is_key(key: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !key.is_empty() && key.len() <= 253 && key.bytes().all(allowed)
}

/// Faults never quote a value: it is secret.
fn secret_faults(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    for (key, value) in new["data"].as_object().into_iter().flatten() {
        // One of before may have it.
        if !is_key(key) && old.is_none_or(|old| old["data"].get(key).is_none()) {
            let message = "Invalid value: a key is of letters, digits, '-', '_' and '.', at most 253 of them";
            faults.invalid(format!("data.{key}"), message);
        }
        if value.as_str().is_none_or(|text| STANDARD.decode(text.replace(['\n', '\r'], "")).is_err()) {
            faults.invalid(
                format!("data.{key}"),
                "Invalid value: must be base64; plain text goes into stringData",
            );
        }
    }
    if old.is_some_and(|old| old["type"] != new["type"]) {
        faults.invalid("type", "Invalid value: field is immutable");
    }
    let mut all = faults.into_vec();
    all.extend(immutable_faults(new, old, &["data"]));
    all
}

fn immutable_faults(new: &Value, old: Option<&Value>, fields: &[&str]) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    if let Some(old) = old.filter(|old| old["immutable"] == Value::Bool(true)) {
        for field in fields.iter().chain(&["immutable"]).filter(|field| old[**field] != new[**field]) {
            faults.forbidden(*field, "Forbidden: field is immutable when `immutable` is set");
        }
    }
    faults.into_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_not_given_away_while_its_machine_is_heard() {
        let node = |key: Option<&str>, ready: &str| {
            json!({ "metadata": { "annotations": { "other": "x", KEY: key } },
                "status": { "conditions": [{ "type": "Ready", "status": ready }] } })
        };
        for (key, ready, refused) in [
            (None, "True", true),
            (Some("another"), "True", true),
            (Some("mine"), "True", false),
            (None, "Unknown", false),
            // Taken down by its own word.
            (None, "False", false),
        ] {
            let faults = given_away(&node(key, ready), Some(&node(Some("mine"), ready)));
            assert_eq!(!faults.is_empty(), refused, "{key:?} {ready}");
        }
        // Who has none yet is given one.
        assert!(given_away(&node(Some("mine"), "True"), Some(&node(None, "True"))).is_empty());
        assert!(given_away(&node(None, "True"), None).is_empty());
    }
}
