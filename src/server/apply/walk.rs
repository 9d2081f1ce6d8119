//! Values taken apart as their schema says: what is one piece, and what consists of fields or items of their own.
//!
//! A struct or map consists of its fields unless it is atomic. A list is one piece unless the schema makes it a set or
//! gives its items keys. Where the schema says nothing, objects consist of fields and lists are one piece.
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fields::{Element, FieldSet};
use crate::server::path::Path;
use crate::server::schema::{Apart, Rule};

/// What a value consists of.
pub(super) enum Parts<'a> {
    /// One piece.
    Piece,
    /// Fields or entries.
    Fields(&'a Map<String, Value>),
    /// Items that are known by key or value, in the order of the list.
    Items(Vec<(Element, &'a Value)>),
}

/// What a value consists of. A list whose items cannot be told apart (a key is missing, two are the same) is one piece.
pub(super) fn parts<'a>(value: &'a Value, rule: Option<&Rule>) -> Parts<'a> {
    match value {
        Value::Object(_) if rule.is_some_and(Rule::is_atomic) => Parts::Piece,
        Value::Object(fields) => Parts::Fields(fields),
        Value::Array(items) => match elements(items, rule) {
            Some(elements) if is_distinct(&elements) => {
                Parts::Items(elements.into_iter().zip(items).collect())
            }
            Some(_) | None => Parts::Piece,
        },
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Parts::Piece,
    }
}

fn elements(items: &[Value], rule: Option<&Rule>) -> Option<Vec<Element>> {
    match rule.map(Rule::apart)? {
        Apart::Nothing => None,
        Apart::Themselves => Some(items.iter().map(Element::value).collect()),
        Apart::Keys(keys) => items.iter().map(|item| key_of(item, keys, of_items(rule))).collect(),
    }
}

/// The first item of a list with keys that lacks one, in words. Items that are the same are left to the schema.
pub(super) fn keyless(value: &Value, rule: Option<&Rule>, path: &Path<'_>) -> Option<String> {
    match value {
        Value::Object(_) if rule.is_some_and(Rule::is_atomic) => None,
        Value::Object(fields) => {
            fields.iter().find_map(|(name, value)| keyless(value, of_field(rule, name), &path.field(name)))
        }
        Value::Array(items) => {
            let of_items = of_items(rule);
            let keys = match rule.map(Rule::apart)? {
                Apart::Keys(keys) => keys.as_slice(),
                Apart::Themselves | Apart::Nothing => &[],
            };
            items.iter().enumerate().find_map(|(index, item)| {
                let path = path.item(index);
                if key_of(item, keys, of_items).is_none() {
                    let keys = keys.join("\", \"");
                    return Some(format!(
                        "{path} has no \"{keys}\", by which the items of this list are known"
                    ));
                }
                keyless(item, of_items, &path)
            })
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn key_of(item: &Value, keys: &[String], rule: Option<&Rule>) -> Option<Element> {
    let value = |key: &str| item.get(key).or_else(|| rule?.default_of(key));
    let pairs = keys.iter().map(|key| Some((key.clone(), value(key)?.clone())));
    pairs.collect::<Option<Map<_, _>>>().map(Element::key)
}

fn is_distinct(elements: &[Element]) -> bool {
    let mut sorted: Vec<&Element> = elements.iter().collect();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] != pair[1])
}

/// The rule of a field.
pub(super) fn of_field<'a>(rule: Option<&'a Rule>, name: &str) -> Option<&'a Rule> {
    rule.and_then(|rule| rule.of_field(name))
}

/// The rule of the items of a list.
pub(super) fn of_items(rule: Option<&Rule>) -> Option<&Rule> {
    rule.and_then(Rule::items)
}

/// Whether this is a field of a struct, and not an entry of a map.
pub(super) fn is_declared(rule: Option<&Rule>, name: &str) -> bool {
    rule.is_some_and(|rule| rule.property(name).is_some())
}

/// What an applied value owns: its pieces, the entries of its maps and the items of its lists; a struct or list by what is
/// in it, or by itself when nothing is.
pub(super) fn applied(value: &Value, rule: Option<&Rule>) -> FieldSet {
    let mut set = FieldSet::default();
    match parts(value, rule) {
        Parts::Piece => set.join(),
        Parts::Fields(fields) => {
            for (name, value) in fields {
                let mut below = applied(value, of_field(rule, name));
                if !is_declared(rule, name) || below.is_empty() {
                    below.join();
                }
                set.put(Element::Field(name.clone()), below);
            }
        }
        Parts::Items(items) => {
            for (element, value) in items {
                let mut below = applied(value, of_items(rule));
                below.join();
                set.put(element, below);
            }
        }
    }
    set
}

/// Every path that a value has, its own included.
fn all(value: &Value, rule: Option<&Rule>) -> FieldSet {
    let mut set = FieldSet::member();
    match parts(value, rule) {
        Parts::Piece => {}
        Parts::Fields(fields) => {
            for (name, value) in fields {
                set.put(Element::Field(name.clone()), all(value, of_field(rule, name)));
            }
        }
        Parts::Items(items) => {
            for (element, value) in items {
                set.put(element, all(value, of_items(rule)));
            }
        }
    }
    set
}

/// What tells two values apart.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Paths that only the new one has, and pieces that are not the same.
    pub(super) written: FieldSet,
    /// Paths that only the old one has.
    pub(super) removed: FieldSet,
}

impl Changes {
    fn put(&mut self, element: &Element, below: Self) {
        self.written.put(element.clone(), below.written);
        self.removed.put(element.clone(), below.removed);
    }
}

/// What tells two values apart. The order of the items of a list that has keys or is a set does not.
pub(super) fn compare(old: Option<&Value>, new: Option<&Value>, rule: Option<&Rule>) -> Changes {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) if old == new => return Changes::default(),
        (Some(old), Some(new)) => (old, new),
        (old, new) => {
            let whole = |value: Option<&Value>| value.map(|value| all(value, rule)).unwrap_or_default();
            return Changes { written: whole(new), removed: whole(old) };
        }
    };
    let mut changes = Changes::default();
    match (parts(old, rule), parts(new, rule)) {
        (Parts::Fields(before), Parts::Fields(after)) => {
            let gone = before.keys().filter(|name| !after.contains_key(*name));
            for name in after.keys().chain(gone) {
                let below = compare(before.get(name), after.get(name), of_field(rule, name));
                changes.put(&Element::Field(name.clone()), below);
            }
        }
        (Parts::Items(before), Parts::Items(after)) => {
            let (before, after): (BTreeMap<_, _>, BTreeMap<_, _>) =
                (before.into_iter().collect(), after.into_iter().collect());
            let gone = before.keys().filter(|element| !after.contains_key(*element));
            for element in after.keys().chain(gone) {
                let pair = (before.get(element).copied(), after.get(element).copied());
                changes.put(element, compare(pair.0, pair.1, of_items(rule)));
            }
        }
        // Something else is in its place: whoever had a part of the old one has nothing left of it.
        _ => {
            (changes.written, changes.removed) = (all(new, rule), all(old, rule));
            changes.removed.leave(&[]);
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{applied, compare};
    use crate::server::apply::tests::rule;

    #[test]
    fn an_applied_value_owns_its_pieces() {
        for (value, fields) in [
            (json!({ "spec": { "plugin": "a" } }), json!({ "f:spec": { "f:plugin": {} } })),
            (json!({ "spec": {} }), json!({ "f:spec": {} })),
            (json!({ "spec": { "atoms": ["a", "b"] } }), json!({ "f:spec": { "f:atoms": {} } })),
            (json!({ "spec": { "ref": { "a": "b" } } }), json!({ "f:spec": { "f:ref": {} } })),
            (
                json!({ "spec": { "set": ["a", "b"] } }),
                json!({ "f:spec": { "f:set": { "v:\"a\"": {}, "v:\"b\"": {} } } }),
            ),
            (json!({ "spec": { "set": [] } }), json!({ "f:spec": { "f:set": {} } })),
            (
                json!({ "spec": { "tasks": [{ "name": "a", "image": "i" }] } }),
                json!({ "f:spec": { "f:tasks": {
                    "k:{\"name\":\"a\"}": { ".": {}, "f:name": {}, "f:image": {} }
                } } }),
            ),
            (json!({ "spec": { "tasks": [{ "image": "i" }] } }), json!({ "f:spec": { "f:tasks": {} } })),
            (json!({ "spec": { "map": { "a": "1" } } }), json!({ "f:spec": { "f:map": { "f:a": {} } } })),
            (json!({ "spec": { "map": {} } }), json!({ "f:spec": { "f:map": {} } })),
            (
                json!({ "free": { "a": { "b": [{ "c": 1 }] } } }),
                json!({ "f:free": { "f:a": { ".": {}, "f:b": { } } } }),
            ),
        ] {
            assert_eq!(applied(&value, Some(&rule())).wire(), fields, "{value}");
        }
    }

    #[test]
    fn changes_name_the_smallest_parts() {
        let task = |image: &str| json!({ "name": "a", "image": image });
        let cases: Vec<(Value, Value, Value, Value)> = vec![
            (
                json!({ "plugin": "a" }),
                json!({ "plugin": "b" }),
                json!({ "f:spec": { "f:plugin": {} } }),
                json!({}),
            ),
            (
                json!({ "plugin": "a", "sub": { "x": "1" } }),
                json!({ "plugin": "a" }),
                json!({}),
                json!({ "f:spec": { "f:sub": { ".": {}, "f:x": {} } } }),
            ),
            (
                json!({ "tasks": [task("i"), { "name": "b" }] }),
                json!({ "tasks": [{ "name": "c" }, task("j")] }),
                json!({ "f:spec": { "f:tasks": {
                    "k:{\"name\":\"a\"}": { "f:image": {} }, "k:{\"name\":\"c\"}": { ".": {}, "f:name": {} }
                } } }),
                json!({ "f:spec": { "f:tasks": { "k:{\"name\":\"b\"}": { ".": {}, "f:name": {} } } } }),
            ),
            (json!({ "set": ["a", "b"] }), json!({ "set": ["b", "a"] }), json!({}), json!({})),
            (
                json!({ "atoms": ["a", "b"] }),
                json!({ "atoms": ["b", "a"] }),
                json!({ "f:spec": { "f:atoms": {} } }),
                json!({}),
            ),
            (
                json!({ "map": { "a": "1" } }),
                json!({ "map": null }),
                json!({ "f:spec": { "f:map": {} } }),
                json!({ "f:spec": { "f:map": { "f:a": {} } } }),
            ),
        ];
        for (old, new, written, removed) in cases {
            let (old, new) = (json!({ "spec": old }), json!({ "spec": new }));
            let changes = compare(Some(&old), Some(&new), Some(&rule()));
            assert_eq!(
                (changes.written.wire(), changes.removed.wire()),
                (written, removed),
                "{old} to {new}"
            );
        }
    }
}
