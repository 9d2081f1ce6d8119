//! Faults of a Snapshot.
use serde_json::Value;

use super::super::field::{FieldError, FieldErrors};
use super::volume::handle;
use super::{list, one_of, reference, required, text, unchanged};

/// Faults of a Snapshot.
pub fn snapshot(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    let source = &spec["source"];
    one_of(&mut faults, "spec.source", source, &["claimName", "selector", "handle"], true);
    reference(&mut faults, "spec.volumeClassName", &spec["volumeClassName"]);
    if !source["claimName"].is_null() {
        required(&mut faults, "spec.source.claimName", &source["claimName"]);
        reference(&mut faults, "spec.source.claimName", &source["claimName"]);
    }
    if !source["selector"].is_null() {
        selector(&mut faults, "spec.source.selector", &source["selector"]);
    }
    if !(source["claimName"].is_null() && source["selector"].is_null()) {
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

/// A selector of claims. One that selects all is none: whoever forgot to say which means something else.
fn selector(faults: &mut FieldErrors, path: &str, selector: &Value) {
    let (labels, expressions) = (&selector["matchLabels"], &selector["matchExpressions"]);
    if labels.as_object().is_none_or(serde_json::Map::is_empty) && list(expressions).next().is_none() {
        faults.required(path, "says by their labels which claims are meant: give matchLabels");
    }
    for (i, one) in list(expressions).enumerate() {
        let path = format!("{path}.matchExpressions[{i}]");
        required(faults, &format!("{path}.key"), &one["key"]);
        let compared = matches!(text(&one["operator"]), "In" | "NotIn");
        let path = format!("{path}.values");
        match (compared, list(&one["values"]).next().is_some()) {
            (true, false) => faults.required(path, "says with what the label is compared"),
            (false, true) => faults.invalid(path, "goes with In and NotIn alone; leave it out"),
            (true, true) | (false, false) => {}
        }
    }
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
            (json!({ "selector": { "matchLabels": { "app": "db" } } }), vec![]),
            (json!({ "selector": { "matchExpressions": [{ "key": "app", "operator": "Exists" }] } }), vec![]),
            (json!({ "selector": {} }), vec!["spec.source.selector"]),
            (json!({ "selector": { "matchLabels": {} } }), vec!["spec.source.selector"]),
            (json!({ "selector": { "matchLabels": { "a": "b" } }, "claimName": "c" }), vec!["spec.source"]),
            (
                json!({ "selector": { "matchLabels": { "a": "b" } }, "nodeName": "n" }),
                vec!["spec.source.nodeName"],
            ),
            (
                json!({ "selector": { "matchExpressions": [
                    { "key": "a", "operator": "In" },
                    { "key": "", "operator": "NotIn", "values": ["b"] },
                    { "key": "a", "operator": "DoesNotExist", "values": ["b"] },
                ] } }),
                vec![
                    "spec.source.selector.matchExpressions[0].values",
                    "spec.source.selector.matchExpressions[1].key",
                    "spec.source.selector.matchExpressions[2].values",
                ],
            ),
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
