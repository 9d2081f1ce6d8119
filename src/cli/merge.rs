//! Client-side apply: what was applied last, what is wanted now and what is there, made into one merge patch.
//!
//! Keeps kubectl's annotation, so that either tool continues where the other left off. A field is removed only if
//! the last apply set it; what controllers or other people set stays. Never talks to the server.
use serde_json::{Map, Value, json};

/// kubectl's annotation with the manifest as last applied.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The manifest with its own text in the annotation, as it is sent.
pub fn with_annotation(manifest: &Value) -> Value {
    let mut wanted = without_annotation(manifest);
    let text = format!("{wanted}\n");
    wanted["metadata"]["annotations"][LAST_APPLIED] = json!(text);
    wanted
}

/// The manifest as it was last applied, if this or kubectl did.
pub fn last_applied(seen: &Value) -> Option<Value> {
    serde_json::from_str(seen["metadata"]["annotations"][LAST_APPLIED].as_str()?).ok()
}

/// The merge patch from what is there to what is wanted; empty when nothing is to be done.
pub fn three_way(original: Option<&Value>, wanted: &Value, seen: &Value) -> Value {
    Value::Object(object_patch(original.and_then(Value::as_object), wanted, seen))
}

/// Whether a patch would do nothing.
pub(crate) fn is_empty(patch: &Value) -> bool {
    patch.as_object().is_some_and(Map::is_empty)
}

fn without_annotation(manifest: &Value) -> Value {
    let mut plain = manifest.clone();
    if !plain["metadata"]["annotations"].is_object() {
        plain["metadata"]["annotations"] = json!({});
    }
    if let Some(annotations) = plain["metadata"]["annotations"].as_object_mut() {
        annotations.remove(LAST_APPLIED);
    }
    plain
}

fn object_patch(original: Option<&Map<String, Value>>, wanted: &Value, seen: &Value) -> Map<String, Value> {
    let mut patch = Map::new();
    for (key, value) in wanted.as_object().into_iter().flatten() {
        let there = seen.get(key);
        match (value, there) {
            (Value::Null, None) => {}
            (Value::Null, Some(_)) => {
                patch.insert(key.clone(), Value::Null);
            }
            (Value::Object(_), Some(there @ Value::Object(_))) => {
                let before = original.and_then(|o| o.get(key)).and_then(Value::as_object);
                let inner = object_patch(before, value, there);
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            (value, there) => {
                let value = without_nulls(value);
                if there != Some(&value) {
                    patch.insert(key.clone(), value);
                }
            }
        }
    }
    for key in original.into_iter().flat_map(Map::keys) {
        if wanted.get(key).is_none() && seen.get(key).is_some() {
            patch.insert(key.clone(), Value::Null);
        }
    }
    patch
}

/// A null inside a new object means an absent field, and would be stored by nobody.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), without_nulls(value)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_holds_what_differs_and_nothing_else() {
        for (name, original, wanted, seen, patch) in [
            ("equal", json!({"a": 1}), json!({"a": 1}), json!({"a": 1, "b": 2}), json!({})),
            ("changed", json!({"a": 1}), json!({"a": 2}), json!({"a": 1}), json!({"a": 2})),
            ("drifted", json!({"a": 1}), json!({"a": 1}), json!({"a": 3}), json!({"a": 1})),
            ("added", json!({}), json!({"a": {"b": 1}}), json!({}), json!({"a": {"b": 1}})),
            (
                "dropped",
                json!({"a": 1, "b": 2}),
                json!({"a": 1}),
                json!({"a": 1, "b": 2}),
                json!({"b": null}),
            ),
            ("dropped and gone", json!({"b": 2}), json!({}), json!({}), json!({})),
            ("not ours", json!({}), json!({}), json!({"b": 2}), json!({})),
            (
                "deep",
                json!({"s": {"x": 1, "y": 1}}),
                json!({"s": {"y": 2}}),
                json!({"s": {"x": 1, "y": 1, "z": 1}}),
                json!({"s": {"x": null, "y": 2}}),
            ),
            (
                "whole branch dropped",
                json!({"s": {"x": 1}}),
                json!({}),
                json!({"s": {"x": 1, "z": 1}}),
                json!({"s": null}),
            ),
            (
                "lists as a whole",
                json!({"l": [1]}),
                json!({"l": [1, 2]}),
                json!({"l": [1]}),
                json!({"l": [1, 2]}),
            ),
            ("explicit null", json!({}), json!({"a": null, "b": null}), json!({"a": 1}), json!({"a": null})),
            (
                "null in a new branch",
                json!({}),
                json!({"s": {"a": null, "b": 1}}),
                json!({}),
                json!({"s": {"b": 1}}),
            ),
            ("list for an object", json!({}), json!({"s": [1]}), json!({"s": {"a": 1}}), json!({"s": [1]})),
        ] {
            let made = three_way(Some(&original), &wanted, &seen);
            assert_eq!(made, patch, "{name}");
            let mut after = seen.clone();
            json_patch::merge(&mut after, &made);
            assert_eq!(
                three_way(Some(&wanted), &wanted, &after),
                json!({}),
                "{name}: a second apply does nothing"
            );
        }
    }

    #[test]
    fn the_annotation_holds_the_manifest_without_itself() {
        let manifest = json!({"kind": "K", "metadata": {"name": "n"}});
        let sent = with_annotation(&manifest);
        assert_eq!(
            sent["metadata"]["annotations"][LAST_APPLIED],
            "{\"kind\":\"K\",\"metadata\":{\"annotations\":{},\"name\":\"n\"}}\n"
        );
        assert_eq!(with_annotation(&sent), sent);
        assert_eq!(
            last_applied(&sent),
            Some(json!({"kind": "K", "metadata": {"annotations": {}, "name": "n"}}))
        );
        assert_eq!(last_applied(&manifest), None);
    }
}
