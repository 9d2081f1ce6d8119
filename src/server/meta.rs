//! The metadata that every object has: its schema and the rules of names, labels and owners.
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::api::{FieldErrors, validate};

/// The schema of `metadata`, one for all kinds.
pub(crate) static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let text = || json!({ "type": "string" });
    let map = || json!({ "type": "object", "additionalProperties": { "type": "string" } });
    let time = || json!({ "type": "string", "format": "date-time" });
    json!({
        "type": "object",
        "properties": {
            "name": text(), "generateName": text(), "namespace": text(), "uid": text(), "selfLink": text(),
            "resourceVersion": text(), "generation": { "type": "integer" },
            "creationTimestamp": time(), "deletionTimestamp": time(),
            "deletionGracePeriodSeconds": { "type": "integer" },
            "labels": map(), "annotations": map(),
            "finalizers": { "type": "array", "items": { "type": "string" }, "x-kubernetes-list-type": "set" },
            "ownerReferences": { "type": "array",
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"], "items": {
                "type": "object", "x-kubernetes-map-type": "atomic", "required": ["apiVersion", "kind", "name", "uid"],
                "properties": {
                    "apiVersion": text(), "kind": text(), "name": text(), "uid": text(),
                    "controller": { "type": "boolean" }, "blockOwnerDeletion": { "type": "boolean" }
                }
            } },
            "managedFields": { "type": "array", "items": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true
            } }
        }
    })
});

/// Lists the faults of an object's metadata beyond its schema.
pub(crate) fn check(metadata: &Value, namespaces: bool, faults: &mut FieldErrors) {
    let name = metadata["name"].as_str().unwrap_or_default();
    let longest = if namespaces { 63 } else { 253 };
    if name.is_empty() {
        faults.required("metadata.name", "Required value: name or generateName is required");
    } else if !validate::is_subdomain(name, longest) || (namespaces && name.contains('.')) {
        let message = format!(
            "Invalid value: \"{}\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', must start and end with an alphanumeric character, and has at most {longest} characters",
            name.escape_debug()
        );
        faults.invalid("metadata.name", message);
    }
    validate::labels(faults, "metadata", metadata);
    for (index, finalizer) in metadata["finalizers"].as_array().into_iter().flatten().enumerate() {
        if !validate::is_qualified(finalizer.as_str().unwrap_or_default()) {
            faults
                .invalid(format!("metadata.finalizers[{index}]"), "Invalid value: must be a qualified name");
        }
    }
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
    let controllers = owners.filter(|owner| owner["controller"] == Value::Bool(true)).count();
    if controllers > 1 {
        let message = "Invalid value: only one reference can have controller set to true";
        faults.invalid("metadata.ownerReferences", message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::check;
    use crate::api::FieldErrors;

    #[test]
    fn bad_metadata_is_listed_fault_by_fault() {
        let metadata = json!({
            "name": "Not_A_Name",
            "labels": { "ok/x": "fine", "bad key": "v", "k": "-x" },
            "annotations": { "a/b/c": "" },
            "finalizers": ["wharfline.dev/ok", "no good"],
            "ownerReferences": [{ "controller": true }, { "controller": true }]
        });
        let mut faults = FieldErrors::new();
        check(&metadata, false, &mut faults);
        let paths: Vec<String> = faults.into_vec().into_iter().map(|fault| fault.path).collect();
        assert_eq!(
            paths,
            [
                "metadata.name",
                "metadata.labels",
                "metadata.labels.k",
                "metadata.annotations",
                "metadata.finalizers[1]",
                "metadata.ownerReferences"
            ]
        );
    }

    #[test]
    fn names_of_namespaces_have_no_dots() {
        for (name, namespaces, good) in
            [("a.b", false, true), ("a.b", true, false), ("a-1", true, true), ("a-", true, false)]
        {
            let mut faults = FieldErrors::new();
            check(&json!({ "name": name }), namespaces, &mut faults);
            assert_eq!(faults.is_empty(), good, "{name}");
        }
    }
}
