//! The walker over a structural schema: shapes an object (prune, default) and checks it (types, limits).
//!
//! Messages and field paths read as in Kubernetes. Nothing stops at the first fault. What a schema says that
//! this walker does not know (CEL rules, merge hints) is left to `KindDefinition::validate`.
use std::fmt::Write;

use serde_json::{Map, Value};

use super::path::Path;
use super::suggest::nearest;
use crate::api::field::Cause;
use crate::api::{FieldError, FieldErrors};

/// A field that the schema does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unknown {
    /// Its path.
    pub(crate) path: String,
    /// The known name nearest to it.
    pub(crate) meant: Option<String>,
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown field \"{}\"", self.path)?;
        match &self.meant {
            Some(name) => write!(f, "; did you mean \"{name}\"?"),
            None => Ok(()),
        }
    }
}

/// Removes what the schema does not know, drops nulls of declared fields (a null is an absent field) and fills
/// the schema's defaults. Reports what was unknown.
pub(crate) fn shape(value: &mut Value, schema: &Value, path: &Path<'_>, unknown: &mut Vec<Unknown>) {
    match value {
        Value::Object(fields) => shape_object(fields, schema, path, unknown),
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for (index, item) in items.iter_mut().enumerate() {
                    shape(item, schema, &path.item(index), unknown);
                }
            }
        }
        _ => {}
    }
}

fn shape_object(
    fields: &mut Map<String, Value>,
    schema: &Value,
    path: &Path<'_>,
    unknown: &mut Vec<Unknown>,
) {
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let extra = schema.get("additionalProperties");
    let open = schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true);
    fields.retain(|name, value| {
        if properties.contains_key(name) {
            return !value.is_null();
        }
        let keep = open || extra.is_some_and(|extra| extra != &Value::Bool(false));
        if !keep {
            let meant = nearest(name, properties.keys().map(String::as_str)).map(str::to_owned);
            unknown.push(Unknown { path: path.field(name).into(), meant });
        }
        keep
    });
    for (name, schema) in properties {
        if let (None, Some(default)) = (fields.get(name), schema.get("default")) {
            fields.insert(name.clone(), default.clone());
        }
        if let Some(value) = fields.get_mut(name) {
            shape(value, schema, &path.field(name), unknown);
        }
    }
    if let Some(schema) = extra.filter(|extra| extra.is_object()) {
        for (name, value) in fields.iter_mut().filter(|(name, _)| !properties.contains_key(*name)) {
            shape(value, schema, &path.field(name), unknown);
        }
    }
}

/// Lists every place where the value breaks the schema.
pub(crate) fn check(value: &Value, schema: &Value, path: &Path<'_>, faults: &mut FieldErrors) {
    if value.is_null() && schema["nullable"] == Value::Bool(true) {
        return;
    }
    if !has_type(value, schema) {
        let wanted = schema["type"].as_str().unwrap_or("integer or string");
        faults.invalid(path, format!("Invalid value: {}: must be of type {wanted}", shown(value)));
        return;
    }
    check_enum(value, schema, path, faults);
    match value {
        Value::Object(fields) => check_object(fields, schema, path, faults),
        Value::Array(items) => check_array(items, schema, path, faults),
        Value::String(text) => check_text(text, schema, path, faults),
        Value::Number(number) => {
            check_number(number.as_f64().unwrap_or_default(), value, schema, path, faults);
        }
        Value::Null | Value::Bool(_) => {}
    }
    check_combinations(value, schema, path, faults);
}

fn has_type(value: &Value, schema: &Value) -> bool {
    if schema["x-kubernetes-int-or-string"] == Value::Bool(true) {
        return value.is_string() || value.is_i64() || value.is_u64();
    }
    match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some(_) | None => true,
    }
}

fn check_enum(value: &Value, schema: &Value, path: &Path<'_>, faults: &mut FieldErrors) {
    let Some(allowed) = schema.get("enum").and_then(Value::as_array) else { return };
    if allowed.contains(value) {
        return;
    }
    let names: Vec<String> = allowed.iter().filter(|v| !v.is_null()).map(shown).collect();
    let mut message = format!("Unsupported value: {}: supported values: {}", shown(value), names.join(", "));
    let meant = value.as_str().and_then(|text| nearest(text, allowed.iter().filter_map(Value::as_str)));
    if let Some(meant) = meant {
        let _ = write!(message, "; did you mean \"{meant}\"?");
    }
    faults.add(path, Cause::NotSupported, message);
}

fn check_object(fields: &Map<String, Value>, schema: &Value, path: &Path<'_>, faults: &mut FieldErrors) {
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            faults.required(path.field(name), "Required value");
        }
    }
    let count = fields.len() as u64;
    limits(count, PROPERTIES, schema, path, faults);
    let properties = schema.get("properties");
    let extra = schema.get("additionalProperties").filter(|extra| extra.is_object());
    for (name, value) in fields {
        if let Some(schema) = properties.and_then(|all| all.get(name)).or(extra) {
            check(value, schema, &path.field(name), faults);
        }
    }
}

fn check_array(items: &[Value], schema: &Value, path: &Path<'_>, faults: &mut FieldErrors) {
    limits(items.len() as u64, ITEMS, schema, path, faults);
    let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let set = schema["x-kubernetes-list-type"] == "set" || schema["uniqueItems"] == Value::Bool(true);
    // What tells the elements apart; nothing where they need not differ.
    let marks: Vec<Vec<&Value>> = match keys.is_empty() {
        false => items.iter().map(|item| keys.iter().map(|key| &item[*key]).collect()).collect(),
        true if set => items.iter().map(|item| vec![item]).collect(),
        true => Vec::new(),
    };
    for (index, item) in items.iter().enumerate() {
        let at = path.item(index);
        if marks.get(index).is_some_and(|mark| marks[..index].contains(mark)) {
            let what = if keys.is_empty() {
                shown(item)
            } else {
                keys.iter().map(|key| format!("{key}: {}", shown(&item[*key]))).collect::<Vec<_>>().join(", ")
            };
            faults.add(at, Cause::Duplicate, format!("Duplicate value: {what}"));
        }
        if let Some(schema) = schema.get("items") {
            check(item, schema, &at, faults);
        }
    }
}

fn check_text(text: &str, schema: &Value, path: &Path<'_>, faults: &mut FieldErrors) {
    limits(text.chars().count() as u64, LENGTH, schema, path, faults);
    let bad = |what: &str| format!("Invalid value: {}: must be {what}", shown(&Value::from(text)));
    match schema["format"].as_str() {
        Some("date-time") if text.parse::<jiff::Timestamp>().is_err() => {
            faults.invalid(path, bad("a time such as 2006-01-02T15:04:05Z"));
        }
        Some("uuid") if uuid::Uuid::try_parse(text).is_err() => faults.invalid(path, bad("a UUID")),
        Some(_) | None => {}
    }
}

fn check_number(number: f64, value: &Value, schema: &Value, path: &Path<'_>, faults: &mut FieldErrors) {
    let mut bad = |relation: &str, limit: f64| {
        let message = format!("Invalid value: {value}: must be {relation} {limit}");
        faults.invalid(path, message);
    };
    let strict = |key: &str| schema[key] == Value::Bool(true);
    match schema["minimum"].as_f64() {
        Some(limit) if number < limit => bad("greater than or equal to", limit),
        Some(limit) if number <= limit && strict("exclusiveMinimum") => bad("greater than", limit),
        Some(_) | None => {}
    }
    match schema["maximum"].as_f64() {
        Some(limit) if number > limit => bad("less than or equal to", limit),
        Some(limit) if number >= limit && strict("exclusiveMaximum") => bad("less than", limit),
        Some(_) | None => {}
    }
    let whole = |low: i64, high: u64| {
        value.as_i64().is_some_and(|n| n >= low) && value.as_u64().is_none_or(|n| n <= high)
            || value.as_u64().is_some_and(|n| n <= high)
    };
    let fits = match schema["format"].as_str() {
        Some("int32") => whole(i64::from(i32::MIN), i32::MAX as u64),
        Some("uint16") => whole(0, u64::from(u16::MAX)),
        Some("uint32") => whole(0, u64::from(u32::MAX)),
        Some("uint64" | "uint") => value.is_u64() || !value.is_i64(),
        Some("int64") => value.is_i64() || !value.is_u64(),
        Some(_) | None => true,
    };
    if !fits {
        let format = schema["format"].as_str().unwrap_or_default();
        faults.invalid(path, format!("Invalid value: {value}: must be a number of format {format}"));
    }
}

/// The keywords of a lower and an upper limit, and what they count.
type Limits = (&'static str, &'static str, &'static str);

const PROPERTIES: Limits = ("minProperties", "maxProperties", "properties");
const ITEMS: Limits = ("minItems", "maxItems", "items");
const LENGTH: Limits = ("minLength", "maxLength", "characters");

fn limits(count: u64, (min, max, noun): Limits, schema: &Value, path: &Path<'_>, faults: &mut FieldErrors) {
    if let Some(most) = schema[max].as_u64().filter(|most| count > *most) {
        faults.add(path, Cause::TooLong, format!("Too long: may not be more than {most} {noun}"));
    }
    if let Some(least) = schema[min].as_u64().filter(|least| count < *least) {
        faults.invalid(path, format!("Invalid value: must be at least {least} {noun}"));
    }
}

fn check_combinations(value: &Value, schema: &Value, path: &Path<'_>, faults: &mut FieldErrors) {
    let holds = |schema: &Value| {
        let mut faults = FieldErrors::new();
        check(value, schema, path, &mut faults);
        faults.is_empty()
    };
    for part in schema["allOf"].as_array().into_iter().flatten() {
        check(value, part, path, faults);
    }
    if schema["x-kubernetes-int-or-string"] == Value::Bool(true) {
        return;
    }
    let mismatch = |how: &str| format!("Invalid value: must fit {how} of these: {}", one_of(schema));
    let branches = |key: &str| schema[key].as_array().filter(|parts| !parts.is_empty());
    if branches("anyOf").is_some_and(|parts| !parts.iter().any(holds)) {
        faults.invalid(path, mismatch("at least one"));
    }
    if branches("oneOf").is_some_and(|parts| parts.iter().filter(|part| holds(part)).count() != 1) {
        faults.invalid(path, mismatch("exactly one"));
    }
    if schema.get("not").is_some_and(holds) {
        faults.invalid(path, "Invalid value: must not have this form");
    }
}

/// The names a union offers: what each branch requires.
fn one_of(schema: &Value) -> String {
    let branches = [&schema["oneOf"], &schema["anyOf"]].into_iter().filter_map(Value::as_array).flatten();
    let names = branches.map(|branch| {
        let required = branch["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        required.collect::<Vec<_>>().join(" with ")
    });
    names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ")
}

/// A value as it stands in messages, shortened: a message must not carry a whole document.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) => "\"object\"".to_owned(),
        Value::Array(_) => "\"array\"".to_owned(),
        Value::String(text) if text.chars().count() > 80 => {
            format!("\"{}...\"", text.chars().take(77).collect::<String>().escape_debug())
        }
        Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => value.to_string(),
    }
}

/// Adds the kind's own faults to the schema's; where the schema already spoke of a path, it is enough.
pub(crate) fn merged(schema: Vec<FieldError>, own: Vec<FieldError>) -> Vec<FieldError> {
    let mut all = schema;
    for fault in own {
        if !all.iter().any(|known| known.path == fault.path) {
            all.push(fault);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Path, check, shape};
    use crate::api::FieldErrors;

    fn schema() -> Value {
        json!({ "type": "object", "required": ["spec"], "properties": { "spec": {
            "type": "object", "required": ["plugin"],
            "properties": {
                "plugin": { "type": "string", "minLength": 1, "maxLength": 8 },
                "mode": { "type": "string", "enum": ["Block", "Filesystem"], "default": "Filesystem" },
                "count": { "type": "integer", "format": "int32", "minimum": 1, "maximum": 9 },
                "size": { "x-kubernetes-int-or-string": true, "anyOf": [{ "type": "integer" }, { "type": "string" }] },
                "since": { "type": "string", "format": "date-time" },
                "labels": { "type": "object", "additionalProperties": { "type": "string" } },
                "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                "modes": { "type": "array", "x-kubernetes-list-type": "set", "minItems": 1, "items": { "type": "string" } },
                "tasks": {
                    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "items": { "type": "object", "properties": { "name": { "type": "string" } } }
                },
                "runtime": {
                    "type": "object",
                    "properties": { "process": { "type": "object" }, "oci": { "type": "object" } },
                    "oneOf": [{ "required": ["process"] }, { "required": ["oci"] }]
                }
            }
        } } })
    }

    fn faults(spec: &Value) -> Vec<String> {
        let mut faults = FieldErrors::new();
        check(&json!({ "spec": spec }), &schema(), &Path::Root, &mut faults);
        faults.into_vec().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn shaping_prunes_defaults_and_suggests() {
        let mut object = json!({ "spec": {
            "plguin": "x", "count": null, "labels": { "any": "thing" }, "free": { "a": { "b": null } },
            "tasks": [{ "naem": 1 }]
        } });
        let mut unknown = Vec::new();
        shape(&mut object, &schema(), &Path::Root, &mut unknown);
        let expected = json!({ "spec": {
            "mode": "Filesystem", "labels": { "any": "thing" }, "free": { "a": { "b": null } }, "tasks": [{}]
        } });
        assert_eq!(object, expected);
        let told: Vec<String> = unknown.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "unknown field \"spec.plguin\"; did you mean \"plugin\"?",
                "unknown field \"spec.tasks[0].naem\"; did you mean \"name\"?"
            ]
        );
    }

    #[test]
    fn a_whole_object_has_no_faults() {
        let spec = json!({
            "plugin": "dir", "mode": "Block", "count": 3, "size": "1Gi", "since": "2024-01-01T00:00:00Z",
            "labels": { "a": "b" }, "modes": ["x", "y"], "tasks": [{ "name": "a" }, { "name": "b" }],
            "runtime": { "oci": {} }
        });
        assert_eq!(faults(&spec), [""; 0]);
        assert_eq!(faults(&json!({ "plugin": "dir", "size": 7 })), [""; 0]);
    }

    #[test]
    fn every_fault_is_listed_with_its_path() {
        let spec = json!({
            "plugin": "", "mode": "Blok", "count": 10, "size": true, "since": "yesterday",
            "labels": { "a": 1 }, "modes": [], "tasks": [{ "name": "a" }, { "name": "a" }],
            "runtime": { "oci": {}, "process": {} }
        });
        assert_eq!(
            faults(&spec),
            [
                "spec.count: Invalid value: 10: must be less than or equal to 9",
                "spec.labels.a: Invalid value: 1: must be of type string",
                "spec.mode: Unsupported value: \"Blok\": supported values: \"Block\", \"Filesystem\"; did you mean \"Block\"?",
                "spec.modes: Invalid value: must be at least 1 items",
                "spec.plugin: Invalid value: must be at least 1 characters",
                "spec.runtime: Invalid value: must fit exactly one of these: process, oci",
                "spec.since: Invalid value: \"yesterday\": must be a time such as 2006-01-02T15:04:05Z",
                "spec.size: Invalid value: true: must be of type integer or string",
                "spec.tasks[1]: Duplicate value: name: \"a\"",
            ]
        );
        assert_eq!(faults(&json!({})), ["spec.plugin: Required value"]);
        assert_eq!(
            faults(&json!({ "plugin": "muchtoolong" })),
            ["spec.plugin: Too long: may not be more than 8 characters"]
        );
        assert_eq!(faults(&json!({ "plugin": "a", "count": -3_000_000_000_i64 })).len(), 2);
    }
}
