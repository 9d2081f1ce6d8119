//! Faults of a Volume and of a VolumeClass.
use serde_json::Value;

use super::super::field::{Cause, FieldError, FieldErrors};
use super::{
    CSI_STRING_MAX, access_modes, map_size, mount_options, one_of, reference, required, text, unchanged,
};

/// Faults of a VolumeClass.
pub fn class(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    required(&mut faults, "spec.plugin", &spec["plugin"]);
    reference(&mut faults, "spec.plugin", &spec["plugin"]);
    map_size(&mut faults, "spec.parameters", &spec["parameters"]);
    map_size(&mut faults, "spec.snapshotParameters", &spec["snapshotParameters"]);
    mount_options(&mut faults, &spec["mountOptions"]);
    if let Some(old) = old {
        unchanged(&mut faults, old, new, &["plugin", "parameters"], "make another class instead");
    }
    faults.into_vec()
}

/// Faults of a Volume.
pub fn volume(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    required(&mut faults, "spec.plugin", &spec["plugin"]);
    reference(&mut faults, "spec.plugin", &spec["plugin"]);
    reference(&mut faults, "spec.claimRef.name", &spec["claimRef"]["name"]);
    access_modes(&mut faults, &spec["accessModes"]);
    one_of(&mut faults, "spec.source", &spec["source"], &["create", "existing"], true);
    mount_options(&mut faults, &spec["mountOptions"]);
    if spec["source"]["existing"].is_object() {
        handle(&mut faults, "spec.source.existing.handle", ("volume", &spec["source"]["existing"]["handle"]));
        map_size(&mut faults, "spec.source.existing.context", &spec["source"]["existing"]["context"]);
    }
    if spec["source"]["create"].is_object() {
        let name = text(&spec["source"]["create"]["name"]);
        if name.is_empty() || name.len() > CSI_STRING_MAX {
            faults.invalid("spec.source.create.name", format!("needs 1 to {CSI_STRING_MAX} bytes"));
        }
        map_size(&mut faults, "spec.source.create.parameters", &spec["source"]["create"]["parameters"]);
    }
    size(&mut faults, &spec["size"]);
    if let Some(old) = old {
        let fields = ["plugin", "source", "accessModes", "volumeMode", "fsType"];
        unchanged(&mut faults, old, new, &fields, "what a volume is cannot change; make another one");
    }
    faults.into_vec()
}

/// A plugin's id of something that was there before.
pub(super) fn handle(faults: &mut FieldErrors, path: &str, (what, value): (&str, &Value)) {
    let handle = text(value);
    if handle.is_empty() {
        faults.required(path, format!("is the plugin's id of the {what} and may not be empty"));
    } else if handle.len() > CSI_STRING_MAX {
        let message = format!("has {} bytes; CSI allows {CSI_STRING_MAX}", handle.len());
        faults.add(path, Cause::TooLong, message);
    } else if handle.chars().any(char::is_control) {
        let message =
            format!("{handle:?} holds a control character; give the plugin's id as the plugin writes it");
        faults.invalid(path, message);
    }
}

/// A size that a volume shall be expanded to.
fn size(faults: &mut FieldErrors, size: &Value) {
    if size.is_null() {
        return;
    }
    let (required, limit) =
        (size["requiredBytes"].as_i64().unwrap_or(0), size["limitBytes"].as_i64().unwrap_or(0));
    if required <= 0 {
        faults.invalid("spec.size.requiredBytes", "must be more than nothing");
    }
    if limit < 0 || limit != 0 && limit < required {
        faults.invalid("spec.size.limitBytes", "must be 0, for no bound, or at least requiredBytes");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::paths;
    use super::*;

    #[test]
    fn a_handle_is_what_the_plugin_wrote() {
        let of = |handle: &str| {
            json!({ "spec": { "plugin": "a", "accessModes": ["SingleNodeWriter"],
            "source": { "existing": { "handle": handle } } } })
        };
        assert!(volume(&of("projects/p/zones/[z]/disks/a b"), None).is_empty());
        for bad in ["", "a\nb", &"x".repeat(CSI_STRING_MAX + 1)] {
            assert_eq!(paths(&volume(&of(bad), None)), ["spec.source.existing.handle"], "{bad}");
        }
    }

    #[test]
    fn a_size_is_a_range() {
        let of = |required: i64, limit: i64| {
            json!({ "spec": { "plugin": "a", "accessModes": ["SingleNodeWriter"],
                "size": { "requiredBytes": required, "limitBytes": limit },
                "source": { "existing": { "handle": "h" } } } })
        };
        for (required, limit, faults) in [
            (1, 0, vec![]),
            (2, 2, vec![]),
            (1, 2, vec![]),
            (0, 0, vec!["spec.size.requiredBytes"]),
            (-1, -1, vec!["spec.size.requiredBytes", "spec.size.limitBytes"]),
            (2, 1, vec!["spec.size.limitBytes"]),
        ] {
            assert_eq!(paths(&volume(&of(required, limit), None)), faults, "{required} {limit}");
        }
    }

    #[test]
    fn what_a_volume_is_cannot_change() {
        let old = json!({ "spec": { "plugin": "a", "accessModes": ["SingleNodeWriter"],
            "source": { "existing": { "handle": "h" } } } });
        let mut new = old.clone();
        assert!(volume(&new, Some(&old)).is_empty());
        new["spec"]["source"]["existing"]["handle"] = json!("other");
        assert_eq!(paths(&volume(&new, Some(&old))), ["spec.source"]);
    }
}
