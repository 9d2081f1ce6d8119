//! An applied configuration merged into an object, and what is no longer applied taken out of it.
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::fields::{Element, FieldSet};
use super::walk::{Parts, is_declared, of_field, of_items, parts};
use crate::server::schema::Rule;

/// The object with everything that is applied, at the finest grain that the schema allows.
pub(super) fn merge(live: &Value, applied: &Value, rule: Option<&Rule>) -> Value {
    match (parts(live, rule), parts(applied, rule)) {
        (Parts::Fields(live), Parts::Fields(applied)) => {
            let mut merged = live.clone();
            for (name, value) in applied {
                let value = match live.get(name) {
                    Some(live) => merge(live, value, of_field(rule, name)),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Parts::Items(live), Parts::Items(applied)) => merge_items(&live, &applied, of_items(rule)),
        _ => applied.clone(),
    }
}

type Items<'a> = [(Element, &'a Value)];

/// Applied items come in their own order; each that is not applied stays before the one that it stood before.
fn merge_items(live: &Items<'_>, applied: &Items<'_>, rule: Option<&Rule>) -> Value {
    let mut places: BTreeMap<&Element, usize> = BTreeMap::new();
    for (at, (element, _)) in live.iter().enumerate() {
        places.entry(element).or_insert(at);
    }
    let wanted: BTreeSet<&Element> = applied.iter().map(|(element, _)| element).collect();
    // Which of the applied ones are there already, in their order.
    let known: Vec<usize> = (0..applied.len()).filter(|at| places.contains_key(&applied[*at].0)).collect();
    let merged = |(element, value): &(Element, &Value)| match places.get(element) {
        Some(at) => merge(live[*at].1, value, rule),
        None => (*value).clone(),
    };
    let mut items = Vec::new();
    let (mut done, mut ahead) = (0, 0);
    for (element, value) in live {
        if !wanted.contains(element) {
            items.push((*value).clone());
            continue;
        }
        while known.get(ahead).is_some_and(|next| *next < done) {
            ahead += 1;
        }
        if let Some(next) = known.get(ahead).filter(|next| applied[**next].0 == *element) {
            items.extend(applied[done..=*next].iter().map(merged));
            done = next + 1;
        }
    }
    items.extend(applied[done..].iter().map(merged));
    Value::Array(items)
}

/// Takes out of a value what was applied before (`last`) and what nobody has any longer (`kept`: all that somebody has).
///
/// An entry of a map or an item of a list goes as a whole with the last who had it. A struct goes when nothing is left in
/// it but what the schema itself fills in.
pub(super) fn prune(value: &mut Value, rule: Option<&Rule>, (last, kept): (&FieldSet, &FieldSet)) {
    match parts(value, rule) {
        Parts::Piece => {}
        Parts::Fields(_) => {
            if let Value::Object(fields) = value {
                prune_fields(fields, rule, (last, kept));
            }
        }
        Parts::Items(items) => {
            let elements: Vec<Element> = items.into_iter().map(|(element, _)| element).collect();
            if let Value::Array(items) = value {
                let mut elements = elements.iter();
                items.retain_mut(|item| {
                    let Some(element) = elements.next() else { return true };
                    !is_over(item, of_items(rule), element, (last, kept))
                });
            }
        }
    }
}

fn prune_fields(fields: &mut Map<String, Value>, rule: Option<&Rule>, (last, kept): (&FieldSet, &FieldSet)) {
    fields.retain(|name, value| {
        let element = Element::Field(name.clone());
        let below = of_field(rule, name);
        if !is_declared(rule, name) {
            return !is_over(value, below, &element, (last, kept));
        }
        let Some(last) = last.get(&element) else { return true };
        if let Some(kept) = kept.get(&element) {
            prune(value, below, (last, kept));
            return true;
        }
        if matches!(parts(value, below), Parts::Piece) {
            return !last.is_member();
        }
        prune(value, below, (last, &FieldSet::default()));
        !is_filled_in(value, below)
    });
}

/// Whether an entry or item goes; what was applied in it goes in any case.
fn is_over(
    value: &mut Value,
    rule: Option<&Rule>,
    element: &Element,
    (last, kept): (&FieldSet, &FieldSet),
) -> bool {
    let Some(last) = last.get(element) else { return false };
    let kept = kept.get(element);
    if last.is_member() && !kept.is_some_and(FieldSet::is_member) {
        return true;
    }
    prune(value, rule, (last, kept.unwrap_or(&FieldSet::default())));
    false
}

/// Whether there is nothing in a struct, map or list but defaults.
fn is_filled_in(value: &Value, rule: Option<&Rule>) -> bool {
    match value {
        Value::Object(fields) => fields.iter().all(|(name, value)| {
            let default = rule.and_then(|rule| rule.default_of(name));
            default == Some(value)
                || (value.is_object() && is_declared(rule, name) && is_filled_in(value, of_field(rule, name)))
        }),
        Value::Array(items) => items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{merge, prune};
    use crate::server::apply::fields::FieldSet;
    use crate::server::apply::tests::rule;

    #[test]
    fn what_is_applied_is_merged_at_the_grain_of_the_schema() {
        let names = |names: &[&str]| -> Value { names.iter().map(|name| json!({ "name": name })).collect() };
        for (live, applied, merged) in [
            (
                json!({ "map": { "a": "1", "b": "2" } }),
                json!({ "map": { "b": "3" } }),
                json!({ "map": { "a": "1", "b": "3" } }),
            ),
            (json!({ "ref": { "a": "1" } }), json!({ "ref": { "b": "2" } }), json!({ "ref": { "b": "2" } })),
            (json!({ "atoms": ["a"] }), json!({ "atoms": ["b"] }), json!({ "atoms": ["b"] })),
            (json!({ "set": ["a", "b"] }), json!({ "set": ["c", "b"] }), json!({ "set": ["a", "c", "b"] })),
            (
                json!({ "tasks": [{ "name": "a", "image": "i" }, { "name": "b" }] }),
                json!({ "tasks": [{ "name": "c" }, { "name": "a", "image": "j" }] }),
                json!({ "tasks": [{ "name": "c" }, { "name": "a", "image": "j" }, { "name": "b" }] }),
            ),
            // Applied the other way round.
            (
                json!({ "tasks": names(&["a", "b", "c"]) }),
                json!({ "tasks": names(&["c", "a"]) }),
                json!({ "tasks": names(&["b", "c", "a"]) }),
            ),
            // A list that was written without keys is replaced.
            (
                json!({ "tasks": [{ "image": "i" }] }),
                json!({ "tasks": names(&["a"]) }),
                json!({ "tasks": names(&["a"]) }),
            ),
            (
                json!({ "map": { "a": "1" } }),
                json!({ "sub": { "x": "1" } }),
                json!({ "map": { "a": "1" }, "sub": { "x": "1" } }),
            ),
        ] {
            let done = merge(&json!({ "spec": live }), &json!({ "spec": applied }), Some(&rule()));
            assert_eq!(done["spec"], merged, "{applied} into {live}");
        }
    }

    #[test]
    fn what_nobody_has_any_longer_is_taken_out() {
        let task = "k:{\"name\":\"a\"}";
        let cases: Vec<(Value, Value, Value, Value)> = vec![
            // A piece, and a struct that is empty without it.
            (
                json!({ "plugin": "p", "sub": { "x": "1" } }),
                json!({ "f:sub": { "f:x": {} } }),
                json!({}),
                json!({ "plugin": "p" }),
            ),
            (
                json!({ "sub": { "x": "1", "y": "2" } }),
                json!({ "f:sub": { "f:x": {}, "f:y": {} } }),
                json!({ "f:sub": { "f:y": {} } }),
                json!({ "sub": { "y": "2" } }),
            ),
            // Nobody's, but written by somebody: stays, and its struct with it.
            (
                json!({ "sub": { "x": "1", "y": "2" } }),
                json!({ "f:sub": { "f:x": {} } }),
                json!({}),
                json!({ "sub": { "y": "2" } }),
            ),
            // A default does not keep a struct.
            (
                json!({ "plugin": "p", "sub": { "x": "1", "mode": "Block" } }),
                json!({ "f:sub": { "f:x": {} } }),
                json!({}),
                json!({ "plugin": "p" }),
            ),
            // Entries: the others stay.
            (
                json!({ "map": { "a": "1", "b": "2" } }),
                json!({ "f:map": { "f:a": {} } }),
                json!({}),
                json!({ "map": { "b": "2" } }),
            ),
            // The map itself is applied still.
            (
                json!({ "map": { "a": "1" } }),
                json!({ "f:map": { "f:a": {} } }),
                json!({ "f:map": {} }),
                json!({ "map": {} }),
            ),
            (
                json!({ "set": ["a", "b", "c"] }),
                json!({ "f:set": { "v:\"a\"": {}, "v:\"b\"": {} } }),
                json!({ "f:set": { "v:\"b\"": {} } }),
                json!({ "set": ["b", "c"] }),
            ),
            // An item goes as a whole with the last who had it, even if somebody wrote a field of it.
            (
                json!({ "tasks": [{ "name": "a", "image": "i" }, { "name": "b" }] }),
                json!({ "f:tasks": { task: { ".": {}, "f:name": {} } } }),
                json!({ "f:tasks": { task: { "f:image": {} } } }),
                json!({ "tasks": [{ "name": "b" }] }),
            ),
            // Another has the item, too: it loses one field.
            (
                json!({ "tasks": [{ "name": "a", "image": "i" }] }),
                json!({ "f:tasks": { task: { ".": {}, "f:name": {}, "f:image": {} } } }),
                json!({ "f:tasks": { task: { ".": {}, "f:name": {} } } }),
                json!({ "tasks": [{ "name": "a" }] }),
            ),
            (
                json!({ "atoms": ["a"], "ref": { "a": "b" }, "plugin": "p" }),
                json!({ "f:atoms": {}, "f:ref": {} }),
                json!({}),
                json!({ "plugin": "p" }),
            ),
        ];
        for (live, last, kept, rest) in cases {
            let set = |fields: &Value| FieldSet::read(&json!({ "f:spec": fields })).unwrap();
            let mut object = json!({ "metadata": { "name": "a" }, "spec": live });
            let kept = if kept == json!({}) { FieldSet::default() } else { set(&kept) };
            prune(&mut object, Some(&rule()), (&set(&last), &kept));
            assert_eq!(object["spec"], rest, "{last} out of {live}");
        }
    }
}
