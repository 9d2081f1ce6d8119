//! The walker over a structural schema: shapes an object (prune, default) and checks it (types, limits).
//!
//! Messages and field paths read as in Kubernetes. Nothing stops at the first fault. What a schema says that
//! this walker does not know (CEL rules, merge hints) is left to `KindDefinition::validate`.
mod rule;

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::{Map, Value};

pub(crate) use self::rule::{Apart, Rule};
use self::rule::{Extra, Kind};
use super::path::Path;
use super::suggest::nearest;
use crate::api::field::Cause;
use crate::api::{FieldError, FieldErrors};

/// How many fields that no schema knows are listed; who sends more learns of the rest when these are mended.
const MOST_UNKNOWN: usize = 50;

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
pub(crate) fn shape(value: &mut Value, rule: &Rule, path: &Path<'_>, unknown: &mut Vec<Unknown>) {
    shape_as(value, (rule, Absent::Filled), path, unknown);
}

/// The same without defaults, for a value that need not be whole.
pub(crate) fn prune(value: &mut Value, rule: &Rule, path: &Path<'_>, unknown: &mut Vec<Unknown>) {
    shape_as(value, (rule, Absent::Left), path, unknown);
}

/// What becomes of an absent field that has a default.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    Filled,
    Left,
}

fn shape_as(value: &mut Value, (rule, absent): (&Rule, Absent), path: &Path<'_>, unknown: &mut Vec<Unknown>) {
    match value {
        Value::Object(fields) => shape_object(fields, (rule, absent), path, unknown),
        Value::Array(items) => {
            if let Some(rule) = &rule.items {
                for (index, item) in items.iter_mut().enumerate() {
                    shape_as(item, (rule, absent), &path.item(index), unknown);
                }
            }
        }
        _ => {}
    }
}

fn shape_object(
    fields: &mut Map<String, Value>,
    (rule, absent): (&Rule, Absent),
    path: &Path<'_>,
    unknown: &mut Vec<Unknown>,
) {
    let keeps_more = rule.open || !matches!(rule.extra, Extra::Nothing);
    fields.retain(|name, value| {
        if rule.properties.contains_key(name) {
            return !value.is_null();
        }
        if !keeps_more && unknown.len() < MOST_UNKNOWN {
            let meant = nearest(name, rule.properties.keys().map(String::as_str)).map(str::to_owned);
            unknown.push(Unknown { path: path.field(name).into(), meant });
        }
        keeps_more
    });
    for (name, default) in rule.defaults.iter().filter(|_| absent == Absent::Filled) {
        if !fields.contains_key(name) {
            fields.insert(name.clone(), default.clone());
        }
    }
    for (name, value) in fields.iter_mut() {
        if let Some(rule) = rule.of_field(name) {
            shape_as(value, (rule, absent), &path.field(name), unknown);
        }
    }
}

/// How the fields are called that say how long something takes, or may take.
const TIMES: [&str; 3] = ["Period", "Timeout", "Time"];

/// Lists every place where the value breaks the schema.
pub(crate) fn check(value: &Value, rule: &Rule, path: &Path<'_>, faults: &mut FieldErrors) {
    if value.is_null() && rule.nullable {
        return;
    }
    if !rule.kind.fits(value) {
        let wanted = rule.kind.word();
        // YAML makes numbers and truth values of what a person meant as text.
        let scalar = value.is_number() || value.is_boolean();
        let named = matches!(rule.extra, Extra::Of(_));
        let field = path.to_string();
        let time = value.is_number() && TIMES.iter().any(|end| field.ends_with(end));
        let hint = match wanted {
            "string" if time => "; write it with its unit, such as 10s",
            "string" if scalar => "; put it in quotes",
            // Where others have lists of names and values.
            "object" if named && value.is_array() => "; write NAME: VALUE, without `- name:`",
            _ => "",
        };
        faults.invalid(path, format!("Invalid value: {}: must be of type {wanted}{hint}", shown(value)));
        return;
    }
    if let Some(allowed) = &rule.allowed {
        check_enum(value, allowed, path, faults);
    }
    match value {
        Value::Object(fields) => check_object(fields, rule, path, faults),
        Value::Array(items) => check_array(items, rule, path, faults),
        Value::String(text) => check_text(text, rule, path, faults),
        Value::Number(number) => {
            check_number(number.as_f64().unwrap_or_default(), value, rule, path, faults);
        }
        Value::Null | Value::Bool(_) => {}
    }
    check_combinations(value, rule, path, faults);
}

fn check_enum(value: &Value, allowed: &[Value], path: &Path<'_>, faults: &mut FieldErrors) {
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

fn check_object(fields: &Map<String, Value>, rule: &Rule, path: &Path<'_>, faults: &mut FieldErrors) {
    for name in &rule.required {
        if !fields.contains_key(name) {
            faults.required(path.field(name), "Required value");
        }
    }
    check_size(|| fields.len(), rule, "properties", path, faults);
    for (name, value) in fields {
        if let Some(rule) = rule.of_field(name) {
            check(value, rule, &path.field(name), faults);
        }
    }
}

fn check_array(items: &[Value], rule: &Rule, path: &Path<'_>, faults: &mut FieldErrors) {
    check_size(|| items.len(), rule, "items", path, faults);
    // What tells an element apart; nothing where they need not differ.
    let mark = |item: &Value| match &rule.apart {
        Apart::Keys(keys) => Some(keys.iter().map(|key| item[key].to_string()).collect()),
        Apart::Themselves => Some(vec![item.to_string()]),
        Apart::Nothing => None,
    };
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let at = path.item(index);
        if mark(item).is_some_and(|mark: Vec<String>| !seen.insert(mark)) {
            let what = match &rule.apart {
                Apart::Keys(keys) => keys
                    .iter()
                    .map(|key| format!("{key}: {}", shown(&item[key])))
                    .collect::<Vec<_>>()
                    .join(", "),
                Apart::Themselves | Apart::Nothing => shown(item),
            };
            faults.add(at, Cause::Duplicate, format!("Duplicate value: {what}"));
        }
        if let Some(rule) = &rule.items {
            check(item, rule, &at, faults);
        }
    }
}

fn check_text(text: &str, rule: &Rule, path: &Path<'_>, faults: &mut FieldErrors) {
    check_size(|| text.chars().count(), rule, "characters", path, faults);
    let bad = |what: &str| format!("Invalid value: {}: must be {what}", shown(&Value::from(text)));
    match rule.format.as_deref() {
        Some("date-time") if text.parse::<jiff::Timestamp>().is_err() => {
            faults.invalid(path, bad("a time such as 2006-01-02T15:04:05Z"));
        }
        Some("uuid") if uuid::Uuid::try_parse(text).is_err() => faults.invalid(path, bad("a UUID")),
        Some(_) | None => {}
    }
}

fn check_number(number: f64, value: &Value, rule: &Rule, path: &Path<'_>, faults: &mut FieldErrors) {
    let mut bad = |relation: &str, limit: f64| {
        let message = format!("Invalid value: {value}: must be {relation} {limit}");
        faults.invalid(path, message);
    };
    match rule.low {
        Some(low) if number < low.limit => bad("greater than or equal to", low.limit),
        Some(low) if number <= low.limit && low.strict => bad("greater than", low.limit),
        Some(_) | None => {}
    }
    match rule.high {
        Some(high) if number > high.limit => bad("less than or equal to", high.limit),
        Some(high) if number >= high.limit && high.strict => bad("less than", high.limit),
        Some(_) | None => {}
    }
    let whole = |low: i64, high: u64| {
        value.as_i64().is_some_and(|n| n >= low) && value.as_u64().is_none_or(|n| n <= high)
            || value.as_u64().is_some_and(|n| n <= high)
    };
    let format = rule.format.as_deref().unwrap_or_default();
    let fits = match format {
        "int32" => whole(i64::from(i32::MIN), i32::MAX as u64),
        "uint16" => whole(0, u64::from(u16::MAX)),
        "uint32" => whole(0, u64::from(u32::MAX)),
        "uint64" | "uint" => value.is_u64() || !value.is_i64(),
        "int64" => value.is_i64() || !value.is_u64(),
        _ => true,
    };
    if !fits {
        faults.invalid(path, format!("Invalid value: {value}: must be a number of format {format}"));
    }
}

/// Counts only where there is a limit.
fn check_size(
    count: impl FnOnce() -> usize,
    rule: &Rule,
    noun: &str,
    path: &Path<'_>,
    faults: &mut FieldErrors,
) {
    let (least, most) = rule.size;
    if least.is_none() && most.is_none() {
        return;
    }
    let count = count() as u64;
    if let Some(most) = most.filter(|most| count > *most) {
        faults.add(path, Cause::TooLong, format!("Too long: may not be more than {most} {noun}"));
    }
    if let Some(least) = least.filter(|least| count < *least) {
        faults.invalid(path, format!("Invalid value: must be at least {least} {noun}"));
    }
}

fn check_combinations(value: &Value, rule: &Rule, path: &Path<'_>, faults: &mut FieldErrors) {
    let holds = |rule: &Rule| {
        let mut faults = FieldErrors::new();
        check(value, rule, path, &mut faults);
        faults.is_empty()
    };
    for part in &rule.all_of {
        check(value, part, path, faults);
    }
    if rule.kind == Kind::IntOrString {
        return;
    }
    let mismatch = |how: &str| format!("Invalid value: must fit {how} of these: {}", rule.offers);
    if !rule.any_of.is_empty() && !rule.any_of.iter().any(holds) {
        faults.invalid(path, mismatch("at least one"));
    }
    if !rule.one_of.is_empty() && rule.one_of.iter().filter(|part| holds(part)).count() != 1 {
        faults.invalid(path, mismatch("exactly one"));
    }
    if rule.not.as_deref().is_some_and(holds) {
        faults.invalid(path, "Invalid value: must not have this form");
    }
}

impl Rule {
    /// The rule of a field, declared or not.
    pub(crate) fn of_field(&self, name: &str) -> Option<&Self> {
        match (self.properties.get(name), &self.extra) {
            (Some(rule), _) => Some(rule),
            (None, Extra::Of(rule)) => Some(rule),
            (None, Extra::Nothing | Extra::Anything) => None,
        }
    }
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

    use super::{Path, Rule, check, shape};
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
                "stopGracePeriod": { "type": "string" },
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
        check(&json!({ "spec": spec }), &Rule::read(&schema()), &Path::Root, &mut faults);
        faults.into_vec().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn shaping_prunes_defaults_and_suggests() {
        let mut object = json!({ "spec": {
            "plguin": "x", "count": null, "labels": { "any": "thing" }, "free": { "a": { "b": null } },
            "tasks": [{ "naem": 1 }]
        } });
        let mut unknown = Vec::new();
        shape(&mut object, &Rule::read(&schema()), &Path::Root, &mut unknown);
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
            "stopGracePeriod": 10,
            "labels": { "a": 1 }, "modes": [], "tasks": [{ "name": "a" }, { "name": "a" }],
            "runtime": { "oci": {}, "process": {} }
        });
        assert_eq!(
            faults(&spec),
            [
                "spec.count: Invalid value: 10: must be less than or equal to 9",
                "spec.labels.a: Invalid value: 1: must be of type string; put it in quotes",
                "spec.mode: Unsupported value: \"Blok\": supported values: \"Block\", \"Filesystem\"; did you mean \"Block\"?",
                "spec.modes: Invalid value: must be at least 1 items",
                "spec.plugin: Invalid value: must be at least 1 characters",
                "spec.runtime: Invalid value: must fit exactly one of these: process, oci",
                "spec.since: Invalid value: \"yesterday\": must be a time such as 2006-01-02T15:04:05Z",
                "spec.size: Invalid value: true: must be of type integer or string",
                "spec.stopGracePeriod: Invalid value: 10: must be of type string; write it with its unit, such as 10s",
                "spec.tasks[1]: Duplicate value: name: \"a\"",
            ]
        );
        assert_eq!(faults(&json!({})), ["spec.plugin: Required value"]);
        assert_eq!(
            faults(&json!({ "plugin": "muchtoolong" })),
            ["spec.plugin: Too long: may not be more than 8 characters"]
        );
        assert_eq!(
            faults(&json!({ "plugin": "a", "labels": [{ "name": "b", "value": "c" }] })),
            [
                "spec.labels: Invalid value: \"array\": must be of type object; write NAME: VALUE, without `- name:`"
            ]
        );
        assert_eq!(faults(&json!({ "plugin": "a", "count": -3_000_000_000_i64 })).len(), 2);
    }
}
