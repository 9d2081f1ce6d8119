//! Faults of a VolumeAttributesClass.
use serde_json::Value;

use super::super::field::{FieldError, FieldErrors};
use super::{entries, map_size, reference, required, unchanged};

/// Faults of a VolumeAttributesClass.
pub fn attributes(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    required(&mut faults, "spec.plugin", &spec["plugin"]);
    reference(&mut faults, "spec.plugin", &spec["plugin"]);
    if entries(&spec["parameters"]).next().is_none() {
        faults.required("spec.parameters", "needs at least one: they are what a volume of this class has");
    }
    map_size(&mut faults, "spec.parameters", &spec["parameters"]);
    if let Some(old) = old {
        let remedy = "volumes have them; make another class instead";
        unchanged(&mut faults, old, new, &["plugin", "parameters"], remedy);
    }
    faults.into_vec()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::paths;
    use super::*;

    /// Obligation CO-CTRL-75: of parameters there is at least one.
    #[test]
    fn a_class_says_something_and_says_it_for_ever() {
        let of = |plugin: &str, parameters: Value| json!({ "spec": { "plugin": plugin, "parameters": parameters } });
        let gold = of("p", json!({ "iops": "9000" }));
        assert!(attributes(&gold, None).is_empty());
        assert!(attributes(&gold, Some(&gold)).is_empty());
        for (bad, old, path) in [
            (of("p", json!({})), None, "spec.parameters"),
            (of("p", json!({ "k": "x".repeat(4096) })), None, "spec.parameters"),
            (of("", json!({ "iops": "1" })), None, "spec.plugin"),
            (of("p", json!({ "iops": "1" })), Some(&gold), "spec.parameters"),
            (of("q", json!({ "iops": "9000" })), Some(&gold), "spec.plugin"),
        ] {
            assert_eq!(paths(&attributes(&bad, old)), [path], "{bad}");
        }
    }
}
