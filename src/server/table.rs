//! Objects as tables and as bare metadata: the forms that `kubectl get` and metadata clients ask for.
use jiff::Timestamp;
use serde_json::{Value, json};

use super::resource::{Nature, Resource};
use super::{age, jsonpath};
use crate::api::Cell;

/// What stands in a row beside its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowObject {
    /// Nothing.
    Nothing,
    /// The metadata.
    Metadata,
    /// The whole object.
    Whole,
}

impl RowObject {
    /// The meaning of the `includeObject` parameter.
    pub(crate) fn of(parameter: Option<&str>) -> Self {
        match parameter {
            Some("None") => Self::Nothing,
            Some("Object") => Self::Whole,
            Some(_) | None => Self::Metadata,
        }
    }
}

/// A table of the objects. `metadata` is the list's own.
pub(crate) fn table(
    resource: &Resource,
    objects: impl IntoIterator<Item = Value>,
    metadata: &Value,
    (include, now): (RowObject, Timestamp),
) -> Value {
    let rows: Vec<Value> = objects.into_iter().map(|object| row(resource, object, include, now)).collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns(resource),
        "rows": rows,
    })
}

fn columns(resource: &Resource) -> Vec<Value> {
    let column = |name: &str, kind: &str, format: &str, wide: bool| {
        let priority = i32::from(wide);
        json!({ "name": name, "type": kind, "format": format, "description": name, "priority": priority })
    };
    let own = resource.kind.columns.iter().map(|c| {
        // A date is sent as an age, which is text.
        let kind = if c.kind == "date" { "string" } else { c.kind };
        column(c.name, kind, "", c.wide)
    });
    let mut all = vec![column("Name", "string", "name", false)];
    all.extend(own);
    if ends_with_age(resource) {
        all.push(column("Age", "string", "", false));
    }
    all
}

/// Kubernetes shows when a definition was made, not for how long it has been there.
fn ends_with_age(resource: &Resource) -> bool {
    resource.nature != Nature::Definition
}

fn row(resource: &Resource, object: Value, include: RowObject, now: Timestamp) -> Value {
    let metadata = &object["metadata"];
    let mut cells = vec![metadata["name"].clone()];
    cells.extend(resource.kind.columns.iter().map(|column| {
        let value = match column.cell {
            Cell::Path(path) => joined(&jsonpath::find(&object, path)),
            Cell::Computed(_, compute) => compute(&object),
        };
        match value.as_str() {
            Some(time) if column.kind == "date" => Value::from(age::since(time, now)),
            _ => value,
        }
    }));
    if ends_with_age(resource) {
        let created = metadata["creationTimestamp"].as_str().unwrap_or_default();
        cells.push(Value::from(age::since(created, now)));
    }
    let mut row = json!({ "cells": cells });
    match include {
        RowObject::Nothing => {}
        RowObject::Metadata => row["object"] = bare(&object),
        RowObject::Whole => row["object"] = object,
    }
    row
}

/// One value as it is, several joined by commas, none as null.
fn joined(found: &[&Value]) -> Value {
    match found {
        [] => Value::Null,
        [one] => (*one).clone(),
        many => {
            let texts =
                many.iter().map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            Value::from(texts.collect::<Vec<_>>().join(","))
        }
    }
}

/// `PartialObjectMetadata` of one object.
pub(crate) fn bare(object: &Value) -> Value {
    json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"] })
}

/// `PartialObjectMetadataList` of several.
pub(crate) fn bare_list(objects: impl IntoIterator<Item = Value>, metadata: &Value) -> Value {
    let items: Vec<Value> = objects.into_iter().map(|object| bare(&object)).collect();
    json!({
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "items": items,
    })
}
