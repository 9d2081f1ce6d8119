//! Faults of a Snapshot.
use serde_json::Value;

use super::super::field::{FieldError, FieldErrors};
use super::volume::handle;
use super::{one_of, reference, required, unchanged};

/// Faults of a Snapshot.
pub fn snapshot(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    let source = &spec["source"];
    one_of(&mut faults, "spec.source", source, &["claimName", "handle"], true);
    reference(&mut faults, "spec.volumeClassName", &spec["volumeClassName"]);
    if !source["claimName"].is_null() {
        required(&mut faults, "spec.source.claimName", &source["claimName"]);
        reference(&mut faults, "spec.source.claimName", &source["claimName"]);
        for field in ["plugin", "nodeName"].into_iter().filter(|field| !source[*field].is_null()) {
            let path = format!("spec.source.{field}");
            faults.invalid(path, "goes with a handle; that of a claim's volume is known, so leave it out");
        }
    }
    if !source["handle"].is_null() {
        handle(&mut faults, "spec.source.handle", ("snapshot", &source["handle"]));
        required(&mut faults, "spec.source.plugin", &source["plugin"]);
        reference(&mut faults, "spec.source.plugin", &source["plugin"]);
        reference(&mut faults, "spec.source.nodeName", &source["nodeName"]);
    }
    if let Some(old) = old {
        let fields = ["source", "volumeClassName"];
        unchanged(&mut faults, old, new, &fields, "what a snapshot is of cannot change; make another one");
    }
    faults.into_vec()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::paths;
    use super::*;

    #[test]
    fn a_snapshot_is_of_a_claim_or_was_there_before() {
        let of = |source: Value| json!({ "spec": { "source": source } });
        for (source, faults) in [
            (json!({ "claimName": "data" }), vec![]),
            (json!({ "handle": "snap/1 x", "plugin": "p" }), vec![]),
            (json!({ "handle": "snap", "plugin": "p", "nodeName": "a" }), vec![]),
            (json!({}), vec!["spec.source"]),
            (json!({ "claimName": "" }), vec!["spec.source.claimName"]),
            (json!({ "claimName": "a/b" }), vec!["spec.source.claimName"]),
            (json!({ "claimName": "data", "plugin": "p" }), vec!["spec.source.plugin"]),
            (json!({ "handle": "snap" }), vec!["spec.source.plugin"]),
            (json!({ "handle": "a\nb", "plugin": "p" }), vec!["spec.source.handle"]),
            (
                json!({ "handle": "h", "claimName": "c", "plugin": "p" }),
                vec!["spec.source", "spec.source.plugin"],
            ),
        ] {
            assert_eq!(paths(&snapshot(&of(source.clone()), None)), faults, "{source}");
        }
        let old = of(json!({ "claimName": "data" }));
        let mut new = old.clone();
        new["spec"]["deletionPolicy"] = json!("Retain");
        assert!(snapshot(&new, Some(&old)).is_empty(), "whether it stays may be thought over");
        new["spec"]["source"]["claimName"] = json!("other");
        assert_eq!(paths(&snapshot(&new, Some(&old))), ["spec.source"]);
    }
}
