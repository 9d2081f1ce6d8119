//! Strategic merge patches, for the kinds of Kubernetes' own that we serve: a patch and an object in, an object out.
//!
//! What Kubernetes says per field is here one short table, for these kinds have few lists: `metadata.ownerReferences`,
//! `status.conditions` and `status.addresses` are merged by a key, `metadata.finalizers` and `spec.podCIDRs` are sets,
//! every other list (taints among them) is replaced. All directives are understood: `$patch`, `$retainKeys`,
//! `$deleteFromPrimitiveList/…` and `$setElementOrder/…`; the last one orders the elements it names among the places
//! that these have.
use serde_json::{Map, Value};

use super::status::Refusal;

/// How a list is merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Merging {
    /// Elements with the same value of this field are one.
    By(&'static str),
    /// Elements that are equal are one.
    Set,
    /// The patch's list takes its place.
    Replace,
}

impl Merging {
    fn of(parent: &str, list: &str) -> Self {
        match (parent, list) {
            ("metadata", "ownerReferences") => Self::By("uid"),
            ("status", "conditions" | "addresses") => Self::By("type"),
            ("metadata", "finalizers") | ("spec", "podCIDRs") => Self::Set,
            _ => Self::Replace,
        }
    }
}

/// Below the fields of an object's first level no list is merged.
const DEEP: &str = "…";
/// How many pairs of elements are compared for one list.
const MOST_COMPARED: usize = 1_000_000;

/// Merges the patch into the object.
pub(crate) fn merge(object: &mut Value, patch: &Map<String, Value>) -> Result<(), Refusal> {
    if patch.get("$patch").is_some_and(|directive| directive == "delete") {
        return Err(Refusal::bad_request("a strategic merge patch cannot delete the whole object"));
    }
    merge_map(object, patch, "")
}

fn merge_map(target: &mut Value, patch: &Map<String, Value>, place: &str) -> Result<(), Refusal> {
    match patch.get("$patch").map(|directive| directive.as_str().unwrap_or_default()) {
        Some("replace") => *target = Value::Object(Map::new()),
        None | Some("merge" | "delete") => {}
        Some(other) => return Err(unknown("$patch", other)),
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return Ok(()) };
    if let Some(retained) = patch.get("$retainKeys") {
        retain(target, patch, retained)?;
    }
    for (key, value) in patch {
        match key.split_once('/') {
            _ if key == "$patch" || key == "$retainKeys" => {}
            // After everything else: it orders what has come to be there.
            Some(("$setElementOrder", _)) => {}
            Some(("$deleteFromPrimitiveList", list)) => {
                let gone = value.as_array().ok_or_else(|| not_a_list(key))?;
                if let Some(Value::Array(items)) = target.get_mut(list) {
                    within_reason(list, items.len(), gone.len())?;
                    items.retain(|item| !gone.contains(item));
                }
            }
            _ if key.starts_with('$') => return Err(unknown("directive", key)),
            _ => merge_field(target, (key, value), place)?,
        }
    }
    for (key, order) in patch {
        if let Some(list) = key.strip_prefix("$setElementOrder/")
            && let Some(Value::Array(items)) = target.get_mut(list)
        {
            let order = order.as_array().ok_or_else(|| not_a_list(key))?;
            within_reason(list, items.len(), order.len())?;
            sort(items, order, Merging::of(place, list));
        }
    }
    Ok(())
}

fn merge_field(
    target: &mut Map<String, Value>,
    (key, value): (&String, &Value),
    place: &str,
) -> Result<(), Refusal> {
    match value {
        Value::Null => drop(target.remove(key)),
        Value::Object(fields) if fields.get("$patch").is_some_and(|directive| directive == "delete") => {
            target.remove(key);
        }
        Value::Object(fields) => {
            let below = if place.is_empty() { key } else { DEEP };
            merge_map(target.entry(key.clone()).or_insert(Value::Null), fields, below)?;
        }
        Value::Array(changes) => {
            let merging = Merging::of(place, key);
            let there = target.entry(key.clone()).or_insert_with(|| Value::Array(Vec::new()));
            let mut items = match there {
                Value::Array(items) if merging != Merging::Replace && !replaces(changes) => {
                    std::mem::take(items)
                }
                _ => Vec::new(),
            };
            if merging != Merging::Replace {
                within_reason(key, items.len() + changes.len(), changes.len())?;
            }
            merge_list(&mut items, changes, (key, merging))?;
            *there = Value::Array(items);
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            target.insert(key.clone(), value.clone());
        }
    }
    Ok(())
}

/// Whether a list of changes says that it is the whole list.
fn replaces(changes: &[Value]) -> bool {
    changes.iter().any(|change| change["$patch"] == "replace")
}

fn merge_list(
    items: &mut Vec<Value>,
    changes: &[Value],
    (list, merging): (&str, Merging),
) -> Result<(), Refusal> {
    for change in changes.iter().filter(|change| change["$patch"] != "replace") {
        let at = match merging {
            Merging::Replace => None,
            Merging::Set => items.iter().position(|item| item == change),
            Merging::By(key) if change.get(key).is_some_and(|value| !value.is_null()) => {
                items.iter().position(|item| item[key] == change[key])
            }
            Merging::By(key) => {
                let message = format!(
                    "an element of {list} in the patch does not say its {key}, by which it is merged"
                );
                return Err(Refusal::bad_request(message));
            }
        };
        match (change, at) {
            (Value::Object(fields), at) if fields.get("$patch").is_some_and(|word| word == "delete") => {
                if let Some(at) = at {
                    items.remove(at);
                }
            }
            (Value::Object(fields), Some(at)) => merge_map(&mut items[at], fields, DEEP)?,
            (Value::Object(fields), None) => {
                let mut fresh = Value::Null;
                merge_map(&mut fresh, fields, DEEP)?;
                items.push(fresh);
            }
            (_, Some(_)) => {}
            (other, None) => items.push(other.clone()),
        }
    }
    Ok(())
}

/// Removes what is not to be retained; a patch that sets what it does not retain contradicts itself.
fn retain(
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    retained: &Value,
) -> Result<(), Refusal> {
    let retained = retained.as_array().ok_or_else(|| not_a_list("$retainKeys"))?;
    within_reason("$retainKeys", target.len().max(patch.len()), retained.len())?;
    let keeps = |key: &str| retained.iter().any(|kept| kept == key);
    let set = patch.iter().filter(|(key, value)| !key.starts_with('$') && !value.is_null());
    if let Some((other, _)) = set.into_iter().find(|(key, _)| !keeps(key)) {
        return Err(Refusal::bad_request(format!(
            "the patch sets {other}, which its $retainKeys does not name"
        )));
    }
    target.retain(|key, _| keeps(key));
    Ok(())
}

/// Puts the elements that the order names into that order, in the places that they have together.
fn sort(items: &mut [Value], order: &[Value], merging: Merging) {
    let same = |item: &Value, named: &Value| match merging {
        Merging::By(key) => item[key] == named[key],
        Merging::Set | Merging::Replace => item == named,
    };
    let rank = |item: &Value| order.iter().position(|named| same(item, named));
    let places: Vec<usize> = (0..items.len()).filter(|at| rank(&items[*at]).is_some()).collect();
    let mut named: Vec<Value> = places.iter().map(|at| items[*at].clone()).collect();
    named.sort_by_cached_key(|item| rank(item));
    for (place, item) in places.into_iter().zip(named) {
        items[place] = item;
    }
}

/// Each element is compared with each: lists for which that would take long are not merged.
fn within_reason(list: &str, items: usize, changes: usize) -> Result<(), Refusal> {
    if items.saturating_mul(changes) <= MOST_COMPARED {
        return Ok(());
    }
    let message = format!(
        "{list}: lists of {items} and {changes} elements are too long to be merged; use another patch"
    );
    Err(Refusal::bad_request(message))
}

fn unknown(what: &str, given: &str) -> Refusal {
    Refusal::bad_request(format!("a strategic merge patch knows no {what} {given:?}"))
}

fn not_a_list(what: &str) -> Refusal {
    Refusal::bad_request(format!("{what} of a strategic merge patch must be a list"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::merge;

    fn merged(object: &Value, patch: &Value) -> Result<Value, String> {
        let mut object = object.clone();
        merge(&mut object, patch.as_object().unwrap()).map_err(|refusal| refusal.message)?;
        Ok(object)
    }

    #[test]
    fn lists_that_would_take_long_are_refused_and_not_merged() {
        let many = |n: usize| (0..n).map(|n| Value::from(format!("f{n}"))).collect::<Value>();
        let of = |finalizers: Value| json!({ "metadata": { "finalizers": finalizers } });
        assert!(merged(&of(many(300)), &of(many(700))).is_ok());
        let refused = merged(&of(many(1000)), &of(many(20_000))).unwrap_err();
        assert!(refused.contains("finalizers: lists of 21000 and 20000 elements"), "{refused}");
        let order = json!({ "metadata": { "$setElementOrder/finalizers": many(20_000) } });
        assert!(merged(&of(many(1000)), &order).is_err());
        let gone = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": many(20_000) } });
        assert!(merged(&of(many(1000)), &gone).is_err());
        // What is replaced is not compared.
        assert!(merged(&json!({}), &json!({ "data": { "x": many(20_000) } })).is_ok());
    }

    #[test]
    fn each_list_is_merged_as_kubernetes_merges_it() {
        let taint = |key: &str, effect: &str| json!({ "key": key, "effect": effect });
        for (what, object, patch, wanted) in [
            (
                "taints are replaced, whatever their keys",
                json!({ "spec": { "taints": [taint("a", "NoSchedule"), taint("a", "NoExecute")] } }),
                json!({ "spec": { "taints": [taint("a", "NoExecute")] } }),
                json!({ "spec": { "taints": [taint("a", "NoExecute")] } }),
            ),
            (
                "conditions are merged by their type",
                json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "Up" }] } }),
                json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }, { "type": "Full" }] } }),
                json!({ "status": { "conditions": [
                    { "type": "Ready", "status": "False", "reason": "Up" }, { "type": "Full" }
                ] } }),
            ),
            (
                "addresses are merged by their type",
                json!({ "status": { "addresses": [{ "type": "Hostname", "address": "a" }] } }),
                json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "1" }] } }),
                json!({ "status": { "addresses": [
                    { "type": "Hostname", "address": "a" }, { "type": "InternalIP", "address": "1" }
                ] } }),
            ),
            (
                "owners are merged by their uid",
                json!({ "metadata": { "ownerReferences": [{ "uid": "1", "name": "a" }] } }),
                json!({ "metadata": { "ownerReferences": [{ "uid": "1", "controller": true }, { "uid": "2" }] } }),
                json!({ "metadata": { "ownerReferences": [
                    { "uid": "1", "name": "a", "controller": true }, { "uid": "2" }
                ] } }),
            ),
            (
                "finalizers are a set",
                json!({ "metadata": { "finalizers": ["a", "b"] } }),
                json!({ "metadata": { "finalizers": ["b", "c"], "$deleteFromPrimitiveList/finalizers": ["a"] } }),
                json!({ "metadata": { "finalizers": ["b", "c"] } }),
            ),
            (
                "a namespace's own finalizers are not those of the metadata",
                json!({ "spec": { "finalizers": ["kubernetes"] } }),
                json!({ "spec": { "finalizers": ["other"] } }),
                json!({ "spec": { "finalizers": ["other"] } }),
            ),
            (
                "no list is merged below",
                json!({ "data": { "status": { "conditions": [{ "type": "A" }] } } }),
                json!({ "data": { "status": { "conditions": [{ "type": "B" }] } } }),
                json!({ "data": { "status": { "conditions": [{ "type": "B" }] } } }),
            ),
        ] {
            assert_eq!(merged(&object, &patch).as_ref(), Ok(&wanted), "{what}");
        }
    }

    #[test]
    fn directives_do_what_they_say() {
        let conditions = |list: Value| json!({ "status": { "conditions": list } });
        for (what, object, patch, wanted) in [
            (
                "a null removes, also where nothing is",
                json!({ "data": { "x": "1", "y": "2" } }),
                json!({ "data": { "x": null, "z": "3" }, "spec": { "deep": { "gone": null } } }),
                json!({ "data": { "y": "2", "z": "3" }, "spec": { "deep": {} } }),
            ),
            (
                "$patch: replace of a map",
                json!({ "data": { "x": "1" } }),
                json!({ "data": { "$patch": "replace", "y": "2" } }),
                json!({ "data": { "y": "2" } }),
            ),
            (
                "$patch: delete of a map",
                json!({ "data": { "x": "1" }, "a": 1 }),
                json!({ "data": { "$patch": "delete" } }),
                json!({ "a": 1 }),
            ),
            (
                "$patch: delete of an element",
                conditions(json!([{ "type": "A" }, { "type": "B" }])),
                conditions(json!([{ "type": "A", "$patch": "delete" }, { "type": "C", "$patch": "delete" }])),
                conditions(json!([{ "type": "B" }])),
            ),
            (
                "$patch: replace of a list",
                conditions(json!([{ "type": "A" }, { "type": "B" }])),
                conditions(json!([{ "$patch": "replace" }, { "type": "C" }])),
                conditions(json!([{ "type": "C" }])),
            ),
            (
                "$retainKeys",
                json!({ "spec": { "a": 1, "b": 2, "c": 3 } }),
                json!({ "spec": { "$retainKeys": ["a", "d"], "d": 4 } }),
                json!({ "spec": { "a": 1, "d": 4 } }),
            ),
            (
                "$setElementOrder",
                conditions(json!([{ "type": "A" }, { "type": "own" }, { "type": "B" }])),
                json!({ "status": {
                    "conditions": [{ "type": "C" }],
                    "$setElementOrder/conditions": [{ "type": "C" }, { "type": "B" }, { "type": "A" }]
                } }),
                conditions(json!([{ "type": "C" }, { "type": "own" }, { "type": "B" }, { "type": "A" }])),
            ),
        ] {
            assert_eq!(merged(&object, &patch).as_ref(), Ok(&wanted), "{what}");
        }
    }

    #[test]
    fn what_a_patch_cannot_mean_is_refused() {
        for (patch, said) in [
            (json!({ "$patch": "delete" }), "the whole object"),
            (json!({ "data": { "$patch": "shred" } }), "\"shred\""),
            (json!({ "data": { "$shred": [] } }), "\"$shred\""),
            (json!({ "status": { "conditions": [{ "status": "True" }] } }), "its type"),
            (json!({ "spec": { "$retainKeys": ["a"], "b": 1 } }), "sets b"),
            (json!({ "spec": { "$retainKeys": "a" } }), "must be a list"),
            (json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": "a" } }), "must be a list"),
        ] {
            let refused = merged(&json!({}), &patch).unwrap_err();
            assert!(refused.contains(said), "{patch}: {refused}");
        }
    }
}
