//! Patches: bytes of a request turned into a value, and the value applied to an object.
//!
//! Nothing here knows kinds or validation. Strategic merge is taken as a merge patch with its directives
//! understood as far as lists of plain values go; the caller decides which kinds accept it.
use http::StatusCode;
use json_patch::PatchOperation;
use serde_json::{Map, Value};

use super::body;
use super::status::Refusal;

/// The most operations of one JSON patch, as in Kubernetes.
const MAX_OPERATIONS: usize = 10_000;

/// What kind of patch a content type means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchType {
    /// RFC 7386.
    Merge,
    /// RFC 6902.
    Json,
    /// Kubernetes' strategic merge.
    Strategic,
}

impl PatchType {
    /// The type that a content type names.
    pub(crate) fn of(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/merge-patch+json" => Some(Self::Merge),
            "application/json-patch+json" => Some(Self::Json),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            _ => None,
        }
    }
}

/// A patch that was read and can be applied again and again.
#[derive(Debug, Clone)]
pub(crate) enum Patch {
    /// A document merged into the object.
    Merge(Value),
    /// A document merged with strategic directives.
    Strategic(Value),
    /// Operations one after another.
    Json(Vec<PatchOperation>),
}

impl Patch {
    /// Reads the body of a merge, strategic or JSON patch.
    pub(crate) fn read(kind: PatchType, bytes: &[u8]) -> Result<Self, Refusal> {
        let value = body::json(bytes)?;
        match kind {
            PatchType::Merge if value.is_object() => Ok(Self::Merge(value)),
            PatchType::Strategic if value.is_object() => Ok(Self::Strategic(value)),
            PatchType::Merge | PatchType::Strategic => {
                Err(Refusal::bad_request("a merge patch must be a JSON object"))
            }
            PatchType::Json => {
                let operations: Vec<PatchOperation> = serde_json::from_value(value)
                    .map_err(|e| Refusal::bad_request(format!("error decoding patch: {e}")))?;
                if operations.len() > MAX_OPERATIONS {
                    let message = format!("the patch has more than {MAX_OPERATIONS} operations");
                    let code = StatusCode::PAYLOAD_TOO_LARGE;
                    return Err(Refusal::new(code, "RequestEntityTooLarge", message));
                }
                Ok(Self::Json(operations))
            }
        }
    }

    /// Whether the patch itself insists on a resourceVersion, so that a conflict must go back to the client.
    pub(crate) fn names_version(&self) -> bool {
        match self {
            Self::Merge(patch) | Self::Strategic(patch) => {
                let given = patch.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                given.is_some_and(|given| !given.is_empty())
            }
            Self::Json(_) => false,
        }
    }

    /// The object after the patch.
    pub(crate) fn apply(&self, object: &Value) -> Result<Value, Refusal> {
        let mut patched = object.clone();
        match self {
            Self::Merge(patch) => json_patch::merge(&mut patched, patch),
            Self::Strategic(patch) => merge_strategic(&mut patched, patch),
            Self::Json(operations) => {
                for operation in operations {
                    step(&mut patched, operation)?;
                }
            }
        }
        if patched.is_object() {
            Ok(patched)
        } else {
            Err(unprocessable("the patch replaces the whole object by something else"))
        }
    }
}

fn unprocessable(message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
}

/// One operation. A `test` for null passes where the path is absent: Kubernetes' library does so, RFC 6902
/// does not, and kube-runtime's `finalizer()` begins with exactly that test.
fn step(object: &mut Value, operation: &PatchOperation) -> Result<(), Refusal> {
    if let PatchOperation::Test(test) = operation
        && test.value.is_null()
        && object.pointer(test.path.as_str()).is_none()
    {
        return Ok(());
    }
    json_patch::patch(object, std::slice::from_ref(operation)).map_err(|e| {
        unprocessable(format!("the server rejected our request due to an error in our request: {e}"))
    })
}

/// A merge patch that also understands the directives kubectl writes into strategic patches.
fn merge_strategic(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if patch.get("$patch").and_then(Value::as_str) == Some("replace") {
        let plain = patch.iter().filter(|(key, _)| !key.starts_with('$'));
        *target = Value::Object(plain.map(|(k, v)| (k.clone(), v.clone())).collect());
        return;
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(items)), Value::Array(gone)) = (target.get_mut(list), value) {
                items.retain(|item| !gone.contains(item));
            }
        } else if key.starts_with('$') {
            // $setElementOrder, $retainKeys: an order or a hint, not content.
        } else if value.is_null() || value.get("$patch").and_then(Value::as_str) == Some("delete") {
            target.remove(key);
        } else if let Some(by) = merge_key(key)
            && let (Some(Value::Array(items)), Value::Array(changes)) = (target.get_mut(key), value)
        {
            merge_list(items, changes, by);
        } else {
            merge_strategic(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// How the lists of the core kinds that we serve are merged: by a key, or as sets (`""`).
fn merge_key(list: &str) -> Option<&'static str> {
    match list {
        "conditions" | "addresses" => Some("type"),
        "ownerReferences" => Some("uid"),
        "finalizers" => Some(""),
        _ => None,
    }
}

fn merge_list(items: &mut Vec<Value>, changes: &[Value], by: &str) {
    for change in changes {
        let same = |item: &Value| if by.is_empty() { item == change } else { item[by] == change[by] };
        let deletes = change.get("$patch").and_then(Value::as_str) == Some("delete");
        match items.iter().position(same) {
            Some(at) if deletes => drop(items.remove(at)),
            Some(at) => merge_strategic(&mut items[at], change),
            None if deletes => {}
            None => items.push(change.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Patch, PatchType};

    fn patched(kind: PatchType, object: &Value, patch: &Value) -> Result<Value, u16> {
        let patch = Patch::read(kind, patch.to_string().as_bytes()).map_err(|r| r.code.as_u16())?;
        patch.apply(object).map_err(|r| r.code.as_u16())
    }

    #[test]
    fn a_json_patch_test_for_null_passes_where_nothing_is() {
        let patch = json!([
            { "op": "test", "path": "/metadata/finalizers", "value": null },
            { "op": "add", "path": "/metadata/finalizers", "value": ["a"] }
        ]);
        let bare = json!({ "metadata": {} });
        let done = patched(PatchType::Json, &bare, &patch).unwrap();
        assert_eq!(done, json!({ "metadata": { "finalizers": ["a"] } }));
        assert_eq!(patched(PatchType::Json, &done, &patch), Err(422), "present now");
    }

    #[test]
    fn malformed_patches_are_the_clients_fault() {
        let object = json!({ "a": 1 });
        assert_eq!(patched(PatchType::Json, &object, &json!({ "a": 2 })), Err(400));
        assert_eq!(patched(PatchType::Merge, &object, &json!([1])), Err(400));
        let replace = json!([{ "op": "replace", "path": "", "value": 7 }]);
        assert_eq!(patched(PatchType::Json, &object, &replace), Err(422));
        let absent = json!([{ "op": "remove", "path": "/b" }]);
        assert_eq!(patched(PatchType::Json, &object, &absent), Err(422));
    }

    #[test]
    fn strategic_directives_are_understood() {
        let object = json!({
            "metadata": { "finalizers": ["a", "b"] },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "Up" }] },
            "data": { "x": "1", "y": "2" }
        });
        let patch = json!({
            "metadata": { "$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"] },
            "status": { "conditions": [{ "type": "Ready", "status": "False" }, { "type": "Full" }] },
            "data": { "x": null, "z": "3" }
        });
        let expected = json!({
            "metadata": { "finalizers": ["b"] },
            "status": { "conditions": [
                { "type": "Ready", "status": "False", "reason": "Up" }, { "type": "Full" }
            ] },
            "data": { "y": "2", "z": "3" }
        });
        assert_eq!(patched(PatchType::Strategic, &object, &patch), Ok(expected));
    }
}
