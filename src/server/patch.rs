//! Patches: bytes of a request turned into a value, and the value applied to an object.
//!
//! Nothing here knows kinds or validation. Strategic merge has a place of its own, `strategic`; the caller decides which
//! kinds accept it.
use http::StatusCode;
use json_patch::PatchOperation;
use serde_json::{Map, Value};

use super::status::Refusal;
use super::{body, strategic};

/// The most operations of one JSON patch, as in Kubernetes.
const MAX_OPERATIONS: usize = 10_000;
/// The most bytes that the copies of one JSON patch make, as in Kubernetes.
const MAX_COPIED: usize = 3 << 20;

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
    Strategic(Map<String, Value>),
    /// Operations one after another.
    Json(Vec<PatchOperation>),
}

impl Patch {
    /// Reads the body of a merge, strategic or JSON patch.
    pub(crate) fn read(kind: PatchType, bytes: &[u8]) -> Result<Self, Refusal> {
        let value = body::json(bytes)?;
        match kind {
            PatchType::Merge if value.is_object() => Ok(Self::Merge(value)),
            PatchType::Strategic => match value {
                Value::Object(patch) => Ok(Self::Strategic(patch)),
                _ => Err(not_an_object()),
            },
            PatchType::Merge => Err(not_an_object()),
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
        let metadata = match self {
            Self::Merge(patch) => patch.get("metadata"),
            Self::Strategic(patch) => patch.get("metadata"),
            Self::Json(_) => None,
        };
        let given = metadata.and_then(|metadata| metadata.get("resourceVersion")).and_then(Value::as_str);
        given.is_some_and(|given| !given.is_empty())
    }

    /// The object after the patch.
    pub(crate) fn apply(&self, object: &Value) -> Result<Value, Refusal> {
        let mut patched = object.clone();
        match self {
            Self::Merge(patch) => json_patch::merge(&mut patched, patch),
            Self::Strategic(patch) => strategic::merge(&mut patched, patch)?,
            Self::Json(operations) => {
                let mut copied = 0;
                for operation in operations {
                    if let PatchOperation::Copy(copy) = operation {
                        copied += object_size(patched.pointer(copy.from.as_str()));
                        if copied > MAX_COPIED {
                            let message = format!("the patch copies more than {MAX_COPIED} bytes");
                            let code = StatusCode::PAYLOAD_TOO_LARGE;
                            return Err(Refusal::new(code, "RequestEntityTooLarge", message));
                        }
                    }
                    step(&mut patched, operation)?;
                }
            }
        }
        if body::nests_deeper(&patched, body::MAX_DEPTH) {
            let message = format!("the patched object is nested more than {} levels deep", body::MAX_DEPTH);
            return Err(unprocessable(message));
        }
        if patched.is_object() {
            Ok(patched)
        } else {
            Err(unprocessable("the patch replaces the whole object by something else"))
        }
    }
}

/// How long a value is as JSON.
fn object_size(value: Option<&Value>) -> usize {
    value.map_or(0, |value| value.to_string().len())
}

fn not_an_object() -> Refusal {
    Refusal::bad_request("a merge patch must be a JSON object")
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
    fn a_patch_makes_nothing_that_could_not_be_sent() {
        let deep = (0..40).fold(json!(1), |inner, _| json!({ "a": inner }));
        let path = "/a".repeat(40);
        let patch = json!([{ "op": "add", "path": "/a", "value": deep["a"] }, { "op": "add", "path": path, "value": deep }]);
        assert_eq!(patched(PatchType::Json, &json!({}), &patch), Err(422), "80 levels");
        let mut copies = vec![json!({ "op": "add", "path": "/x", "value": { "a": "x".repeat(1000) } })];
        copies.extend((0..30).map(|n| json!({ "op": "copy", "from": "/x", "path": format!("/x/c{n}") })));
        assert_eq!(patched(PatchType::Json, &json!({}), &json!(copies)), Err(413), "each doubles it");
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
}
