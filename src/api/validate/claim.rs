//! Faults of a VolumeClaim.
use serde_json::Value;

use super::super::field::{FieldError, FieldErrors};
use super::super::quantity;
use super::{
    access_modes, entries, fs_type, list, map_size, mount_options, reference, required, text, unchanged,
};

/// Faults of a VolumeClaim.
pub fn claim(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    reference(&mut faults, "spec.volumeClassName", &spec["volumeClassName"]);
    reference(&mut faults, "spec.volumeName", &spec["volumeName"]);
    reference(&mut faults, "spec.volumeAttributesClassName", &spec["volumeAttributesClassName"]);
    if spec["ephemeral"].is_object() {
        ephemeral(&mut faults, spec, old.map_or(&Value::Null, |old| &old["spec"]["ephemeral"]));
    } else {
        access_modes(&mut faults, &spec["accessModes"]);
    }
    fs_group(&mut faults, spec);
    let request =
        size(&mut faults, "spec.resources.requests.storage", &spec["resources"]["requests"]["storage"]);
    let limit = size(&mut faults, "spec.resources.limits.storage", &spec["resources"]["limits"]["storage"]);
    if let (Some(request), Some(limit)) = (request, limit)
        && limit < request
    {
        faults.invalid("spec.resources.limits.storage", "is below the request; raise it or leave it out");
    }
    let named = !text(&spec["volumeName"]).is_empty();
    let filled = !spec["dataSource"].is_null();
    let made = !named && spec["ephemeral"].is_null();
    if made && !filled && request.is_none() && spec["resources"]["requests"]["storage"].is_null() {
        faults.required("spec.resources.requests.storage", "is needed to make a volume, such as 10Gi");
    }
    if filled {
        source(&mut faults, new, named);
    }
    if let Some(old) = old {
        let fields =
            ["volumeClassName", "volumeName", "accessModes", "volumeMode", "dataSource", "ephemeral"];
        unchanged(&mut faults, old, new, &fields, "delete the claim and make another one");
        claim_size_change(&mut faults, old, new);
        attributes_change(&mut faults, old, new);
    }
    faults.into_vec()
}

/// So begins what drivers are told of their users, by whoever orchestrates them.
const RESERVED: &str = "csi.storage.k8s.io/";

/// A volume that is there while it is published: nothing counts of it that is said elsewhere.
fn ephemeral(faults: &mut FieldErrors, spec: &Value, was: &Value) {
    let (path, of) = ("spec.ephemeral", &spec["ephemeral"]);
    required(faults, &format!("{path}.plugin"), &of["plugin"]);
    reference(faults, &format!("{path}.plugin"), &of["plugin"]);
    reference(faults, &format!("{path}.nodePublishSecretName"), &of["nodePublishSecretName"]);
    // A driver may go by what stands there of who uses it.
    for (key, _) in entries(&of["attributes"]).filter(|(key, _)| key.starts_with(RESERVED)) {
        let message =
            format!("what begins with {RESERVED} is told to the plugin by Wharfline alone; leave it out");
        faults.invalid(format!("{path}.attributes[{key}]"), message);
    }
    map_size(faults, &format!("{path}.attributes"), &of["attributes"]);
    mount_options(faults, &format!("{path}.mountOptions"), &of["mountOptions"], &was["mountOptions"]);
    if of["fsType"] != was["fsType"] {
        fs_type(faults, &format!("{path}.fsType"), &of["fsType"]);
    }
    let others = ["volumeClassName", "volumeName", "volumeAttributesClassName", "dataSource", "resources"];
    let given = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => true,
    };
    for field in others.into_iter().filter(|field| given(&spec[*field])) {
        let message = "says nothing about an ephemeral volume: what its plugin is told stands in spec.ephemeral.attributes; \
                       leave it out";
        faults.invalid(format!("spec.{field}"), message);
    }
    if spec["volumeMode"] == "Block" {
        faults.invalid("spec.volumeMode", "an ephemeral volume is a file system; leave it out");
    }
    if list(&spec["accessModes"]).any(|mode| mode != "SingleNodeWriter") {
        let message = "an ephemeral volume has one user; leave it out or give SingleNodeWriter alone";
        faults.invalid("spec.accessModes", message);
    }
}

fn fs_group(faults: &mut FieldErrors, spec: &Value) {
    let path = "spec.fsGroup";
    match spec["fsGroup"].as_u64() {
        Some(_) if spec["volumeMode"] == "Block" => {
            faults.invalid(path, "a block volume has no files that a group could have; leave it out");
        }
        // To the kernel that is no group, but "as it is".
        Some(group) if group >= u64::from(u32::MAX) => {
            faults.invalid(path, format!("{group} is no group; one is below {}", u32::MAX));
        }
        Some(_) | None => {}
    }
}

/// What the volume is filled from.
fn source(faults: &mut FieldErrors, claim: &Value, named: bool) {
    let (path, source) = ("spec.dataSource", &claim["spec"]["dataSource"]);
    let one = ["claimName", "snapshotName"].into_iter().find(|field| !source[*field].is_null());
    if one.is_none() {
        faults.invalid(path, "needs claimName or snapshotName");
    }
    if named {
        faults.invalid(
            path,
            "fills a volume that is made, and spec.volumeName names one that is there; leave one out",
        );
    }
    if !source["snapshotName"].is_null() {
        let path = "spec.dataSource.snapshotName";
        reference(faults, path, &source["snapshotName"]);
        if text(&source["snapshotName"]).is_empty() {
            faults.required(path, "names the Snapshot that the volume is filled from, in the same namespace");
        }
    }
    if source["claimName"].is_null() {
        return;
    }
    let path = "spec.dataSource.claimName";
    let name = text(&source["claimName"]);
    reference(faults, path, &source["claimName"]);
    if name.is_empty() {
        faults.required(path, "names the claim whose volume is copied, in the same namespace");
    } else if source["snapshotName"].is_null() && name == text(&claim["metadata"]["name"]) {
        faults.invalid(path, "is this claim itself; name the one whose volume is copied");
    }
}

/// Attributes are changed to others, or back; what a volume without any has nobody knows. So a class that is named by mistake can be
/// taken back as long as the volume was never given it.
fn attributes_change(faults: &mut FieldErrors, old: &Value, new: &Value) {
    let named = |o: &Value| !text(&o["spec"]["volumeAttributesClassName"]).is_empty();
    let has = text(&old["status"]["volumeAttributesClassName"]);
    if named(old) && !named(new) && !has.is_empty() {
        faults.forbidden(
            "spec.volumeAttributesClassName",
            format!(
                "cannot be taken away once the volume has one, only changed: name the VolumeAttributesClass that it shall \
                 have, or \"{has}\", which it has"
            ),
        );
    }
}

/// A request may be raised, and taken back as long as the volume does not have it yet. One that was never bound may be of any
/// size: its volume is begun anew if it was refused, and else has what was asked for before.
fn claim_size_change(faults: &mut FieldErrors, old: &Value, new: &Value) {
    let requested = |o: &Value| quantity::bytes(text(&o["spec"]["resources"]["requests"]["storage"])).ok();
    let (Some(before), Some(now)) = (requested(old), requested(new)) else { return };
    let status = &old["status"];
    let has = [text(&status["allocated"]), text(&status["capacity"])].into_iter().find(|has| !has.is_empty());
    let bytes = has.and_then(|has| quantity::bytes(has).ok());
    if now >= before || bytes.is_some_and(|bytes| now >= bytes) {
        return;
    }
    let bound = ["Bound", "Lost"].contains(&text(&status["phase"]));
    if has.is_none() && !bound {
        return;
    }
    let message = match has {
        None => "a volume cannot shrink, and this one may have been asked for already".to_owned(),
        Some(has) => format!("a volume cannot shrink: it has {has}"),
    };
    faults.forbidden("spec.resources.requests.storage", message);
}

/// A size that is more than nothing, if there is one.
pub(super) fn size(faults: &mut FieldErrors, path: &str, value: &Value) -> Option<i64> {
    if value.is_null() {
        return None;
    }
    match quantity::bytes(text(value)) {
        Ok(bytes) if bytes > 0 => Some(bytes),
        Ok(_) => {
            faults.invalid(path, "must be more than nothing");
            None
        }
        Err(error) => {
            faults.invalid(path, error.to_string());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::field::Cause;
    use super::super::paths;
    use super::*;

    #[test]
    fn a_group_is_one_that_files_can_have() {
        let faults = |mode: &str, group: i64| {
            let spec = json!({ "accessModes": ["SingleNodeWriter"], "volumeMode": mode, "fsGroup": group,
                "resources": { "requests": { "storage": "1Gi" } } });
            claim(&json!({ "spec": spec }), None)
        };
        for group in [0, 2000, i64::from(u32::MAX) - 1] {
            assert_eq!(faults("Filesystem", group), [], "{group}");
        }
        for (mode, group) in [("Filesystem", i64::from(u32::MAX)), ("Block", 2000)] {
            assert_eq!(paths(&faults(mode, group)), ["spec.fsGroup"], "{mode} {group}");
        }
    }

    #[test]
    fn an_ephemeral_volume_is_told_by_its_plugins_words_alone() {
        type Edit = fn(&mut Value);
        let faults = |edit: Edit| {
            let mut spec = json!({ "ephemeral": { "plugin": "scratch", "attributes": { "size": "1Gi" } } });
            edit(&mut spec);
            let found = claim(&json!({ "spec": spec }), None);
            paths(&found).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(faults(|_| ()), [""; 0]);
        assert_eq!(faults(|spec| spec["accessModes"] = json!(["SingleNodeWriter"])), [""; 0]);
        assert_eq!(faults(|spec| spec["resources"] = json!({})), [""; 0]);
        let cases: [(Edit, &str); 13] = [
            (|spec| spec["ephemeral"]["plugin"] = json!(""), "spec.ephemeral.plugin"),
            (|spec| spec["ephemeral"]["plugin"] = json!("A b"), "spec.ephemeral.plugin"),
            (
                |spec| spec["ephemeral"]["nodePublishSecretName"] = json!("a/b"),
                "spec.ephemeral.nodePublishSecretName",
            ),
            (
                |spec| spec["ephemeral"]["attributes"]["csi.storage.k8s.io/ephemeral"] = json!("true"),
                "spec.ephemeral.attributes[csi.storage.k8s.io/ephemeral]",
            ),
            (
                |spec| spec["ephemeral"]["attributes"]["csi.storage.k8s.io/pod.namespace"] = json!("theirs"),
                "spec.ephemeral.attributes[csi.storage.k8s.io/pod.namespace]",
            ),
            (
                |spec| spec["ephemeral"]["attributes"]["a"] = json!("x".repeat(4096)),
                "spec.ephemeral.attributes",
            ),
            (|spec| spec["ephemeral"]["fsType"] = json!("x".repeat(129)), "spec.ephemeral.fsType"),
            (
                |spec| spec["ephemeral"]["mountOptions"] = json!(["x".repeat(4097)]),
                "spec.ephemeral.mountOptions",
            ),
            (|spec| spec["volumeClassName"] = json!("fast"), "spec.volumeClassName"),
            (|spec| spec["volumeName"] = json!("v"), "spec.volumeName"),
            (|spec| spec["resources"] = json!({ "requests": { "storage": "1Gi" } }), "spec.resources"),
            (|spec| spec["volumeMode"] = json!("Block"), "spec.volumeMode"),
            (|spec| spec["accessModes"] = json!(["MultiNodeMultiWriter"]), "spec.accessModes"),
        ];
        for (edit, wanted) in cases {
            assert_eq!(faults(edit), [wanted]);
        }
        let of = |size: &str| json!({ "spec": { "ephemeral": { "plugin": "scratch", "attributes": { "size": size } } } });
        assert_eq!(paths(&claim(&of("1Gi"), Some(&of("2Gi")))), ["spec.ephemeral"]);
    }

    #[test]
    fn three_faults_are_three_errors() {
        let claim = json!({ "spec": { "accessModes": [], "resources": {
            "requests": { "storage": "ten" }, "limits": { "storage": "0" } } } });
        assert_eq!(
            paths(&super::claim(&claim, None)),
            ["spec.accessModes", "spec.resources.requests.storage", "spec.resources.limits.storage"]
        );
    }

    /// Obligation CO-GEN-20.
    #[test]
    fn what_is_asked_for_is_a_range_of_sizes() {
        let (least, most) = ("spec.resources.requests.storage", "spec.resources.limits.storage");
        for (request, limit, faults) in [
            ("1Gi", "1Gi", vec![]),
            ("1Gi", "2Gi", vec![]),
            ("0", "1Gi", vec![least]),
            ("-1Gi", "1Gi", vec![least]),
            ("1Gi", "0", vec![most]),
            ("1Gi", "-1Gi", vec![most]),
            ("2Gi", "1Gi", vec![most]),
        ] {
            let of = json!({ "spec": { "accessModes": ["SingleNodeWriter"], "resources": {
                "requests": { "storage": request }, "limits": { "storage": limit } } } });
            assert_eq!(paths(&claim(&of, None)), faults, "{request} {limit}");
        }
    }

    #[test]
    fn a_class_of_attributes_can_be_taken_back_that_the_volume_was_never_given() {
        let path = "spec.volumeAttributesClassName";
        for (before, after, has, faults) in [
            ("gold", "", "", vec![]),
            ("gold", "", "gold", vec![path]),
            ("gold", "", "silver", vec![path]),
            ("gold", "silver", "gold", vec![]),
            ("", "", "gold", vec![]),
            ("", "gold", "", vec![]),
        ] {
            let of = |name: &str| {
                json!({ "spec": { "accessModes": ["SingleNodeWriter"], "volumeAttributesClassName": name,
                "resources": { "requests": { "storage": "1Gi" } } }, "status": { "volumeAttributesClassName": has } })
            };
            assert_eq!(paths(&claim(&of(after), Some(&of(before)))), faults, "{before} {after} {has}");
        }
    }

    #[test]
    fn what_a_claim_is_filled_from_is_one_other_thing_of_its_namespace() {
        let of = |spec: Value| {
            let mut claim =
                json!({ "metadata": { "name": "copy" }, "spec": { "accessModes": ["SingleNodeWriter"] } });
            claim["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            claim
        };
        let copy = of(json!({ "dataSource": { "claimName": "data" } }));
        assert!(claim(&copy, None).is_empty(), "it is as large as what it is a copy of");
        for (spec, faults) in [
            (json!({ "dataSource": {} }), vec!["spec.dataSource"]),
            (json!({ "dataSource": { "claimName": "" } }), vec!["spec.dataSource.claimName"]),
            (json!({ "dataSource": { "claimName": "a/b" } }), vec!["spec.dataSource.claimName"]),
            (json!({ "dataSource": { "claimName": "copy" } }), vec!["spec.dataSource.claimName"]),
            (json!({ "dataSource": { "snapshotName": "copy" } }), vec![]),
            (json!({ "dataSource": { "snapshotName": "" } }), vec!["spec.dataSource.snapshotName"]),
            (json!({ "dataSource": { "claimName": "data", "snapshotName": "s" } }), vec![]),
            (json!({ "volumeName": "v", "dataSource": { "claimName": "data" } }), vec!["spec.dataSource"]),
        ] {
            assert_eq!(paths(&claim(&of(spec.clone()), None)), faults, "{spec}");
        }
        let other = of(json!({ "dataSource": { "claimName": "other" } }));
        assert_eq!(paths(&claim(&other, Some(&copy))), ["spec.dataSource"], "it cannot change");
    }

    /// Scenario A27.
    #[test]
    fn what_a_claim_asks_for_beside_its_size_cannot_change() {
        let old = json!({ "spec": { "volumeClassName": "a", "volumeMode": "Filesystem",
            "accessModes": ["SingleNodeWriter", "MultiNodeReaderOnly"],
            "resources": { "requests": { "storage": "1Gi" } } } });
        assert!(claim(&old, Some(&old)).is_empty());
        for (field, value) in [
            ("volumeClassName", json!("b")),
            ("volumeName", json!("v")),
            ("accessModes", json!(["MultiNodeReaderOnly"])),
            ("accessModes", json!(["SingleNodeWriter"])),
            ("volumeMode", json!("Block")),
        ] {
            let mut new = old.clone();
            new["spec"][field] = value;
            assert_eq!(paths(&claim(&new, Some(&old))), [format!("spec.{field}")], "{new}");
        }
    }

    /// Obligation CO-CTRL-105.
    #[test]
    fn sizes_do_not_shrink() {
        let of = |s: &str| json!({ "spec": { "accessModes": ["SingleNodeWriter"], "resources": { "requests": { "storage": s } } } });
        assert!(claim(&of("1Gi"), Some(&of("1024Mi"))).is_empty());
        let size =
            |faults: Vec<FieldError>| faults.into_iter().map(|f| (f.path, f.cause)).collect::<Vec<_>>();
        let refused = vec![("spec.resources.requests.storage".to_owned(), Cause::Forbidden)];
        for (phase, faults) in [("", &vec![]), ("Pending", &vec![]), ("Bound", &refused), ("Lost", &refused)]
        {
            let mut before = of("2Gi");
            before["status"] = json!({ "phase": phase });
            assert_eq!(&size(claim(&of("1Gi"), Some(&before))), faults, "nobody said what it has: {phase}");
        }
        assert!(claim(&of("3Gi"), Some(&of("2Gi"))).is_empty(), "it may grow");
        let asked = |requested: &str, has: &str| {
            let mut claim = of(requested);
            claim["status"] = json!({ "capacity": has });
            claim
        };
        assert!(
            claim(&of("2Gi"), Some(&asked("3Gi", "2Gi"))).is_empty(),
            "what it did not get is taken back"
        );
        assert_eq!(size(claim(&of("1Gi"), Some(&asked("3Gi", "2Gi")))), refused);
        assert_eq!(size(claim(&of("2Gi"), Some(&asked("3Gi", "3Gi")))), refused);
        let mut half = asked("4Gi", "1Gi");
        half["status"]["allocated"] = json!("3Gi");
        assert!(claim(&of("3Gi"), Some(&half)).is_empty());
        assert_eq!(
            size(claim(&of("2Gi"), Some(&half))),
            refused,
            "its backend has it, though its users do not yet"
        );
    }
}
