//! Faults of a Volume and of a VolumeClass.
use serde_json::Value;

use super::super::field::{Cause, FieldError, FieldErrors};
use super::{
    CSI_STRING_MAX, access_modes, entries, fs_type, list, map_size, mount_options, one_of, reference,
    required, text, unchanged,
};

/// Faults of a VolumeClass.
pub fn class(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    required(&mut faults, "spec.plugin", &spec["plugin"]);
    reference(&mut faults, "spec.plugin", &spec["plugin"]);
    map_size(&mut faults, "spec.parameters", &spec["parameters"]);
    map_size(&mut faults, "spec.snapshotParameters", &spec["snapshotParameters"]);
    let was = |field: &str| old.map_or(Value::Null, |old| old["spec"][field].clone());
    mount_options(&mut faults, "spec.mountOptions", &spec["mountOptions"], &was("mountOptions"));
    let places = &spec["allowedTopologies"];
    for (i, place) in list(places).enumerate().filter(|_| *places != was("allowedTopologies")) {
        if entries(place).next().is_none() {
            let message = "needs at least one segment, such as zone: a; anywhere is no entry at all";
            faults.required(format!("spec.allowedTopologies[{i}]"), message);
        }
    }
    if was("fsType") != spec["fsType"] {
        fs_type(&mut faults, "spec.fsType", &spec["fsType"]);
    }
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
    one_of(&mut faults, "spec.source", &spec["source"], &["create", "existing", "ephemeral"], true);
    // What a class or a claim of before has is no fault of the volume that is made by it.
    let made = ["create", "ephemeral"].iter().any(|source| spec["source"][source].is_object());
    let was = |field: &str| match old {
        _ if made => spec[field].clone(),
        Some(old) => old["spec"][field].clone(),
        None => Value::Null,
    };
    mount_options(&mut faults, "spec.mountOptions", &spec["mountOptions"], &was("mountOptions"));
    if spec["source"]["existing"].is_object() {
        handle(&mut faults, "spec.source.existing.handle", ("volume", &spec["source"]["existing"]["handle"]));
        map_size(&mut faults, "spec.source.existing.context", &spec["source"]["existing"]["context"]);
        super::claim::size(
            &mut faults,
            "spec.source.existing.capacity",
            &spec["source"]["existing"]["capacity"],
        );
    }
    if spec["source"]["ephemeral"].is_object() {
        let of = &spec["source"]["ephemeral"];
        handle(&mut faults, "spec.source.ephemeral.handle", ("volume", &of["handle"]));
        map_size(&mut faults, "spec.source.ephemeral.context", &of["context"]);
    }
    if spec["source"]["create"].is_object() {
        let name = text(&spec["source"]["create"]["name"]);
        if name.is_empty() || name.len() > CSI_STRING_MAX {
            faults.invalid("spec.source.create.name", format!("needs 1 to {CSI_STRING_MAX} bytes"));
        }
        // None of this can change later, so that one of before would be stuck with it.
        if old.is_none() {
            if name.chars().any(char::is_control) {
                faults.invalid("spec.source.create.name", format!("{name:?} holds a control character"));
            }
            range(&mut faults, &spec["source"]["create"]);
        }
        given(&mut faults, "spec.source.create.attributes", &spec["source"]["create"]["attributes"]);
        map_size(&mut faults, "spec.source.create.parameters", &spec["source"]["create"]["parameters"]);
    }
    size(&mut faults, &spec["size"]);
    if was("fsType") != spec["fsType"] {
        fs_type(&mut faults, "spec.fsType", &spec["fsType"]);
    }
    given(&mut faults, "spec.attributes", &spec["attributes"]);
    if let Some(old) = old {
        let fields = ["plugin", "accessModes", "volumeMode", "fsType"];
        unchanged(&mut faults, old, new, &fields, "what a volume is cannot change; make another one");
        source_unchanged(&mut faults, &old["spec"]["source"], &spec["source"]);
        claim_unchanged(&mut faults, old, spec);
        if is_being_asked_for(old) {
            let advice =
                "its plugin may be at work on it, and is asked for the same again; change it afterwards";
            unchanged(&mut faults, old, new, &["mountOptions"], advice);
        }
    }
    faults.into_vec()
}

/// Where a volume comes from stays. How large one is that was there before can be said later, once.
fn source_unchanged(faults: &mut FieldErrors, old: &Value, new: &Value) {
    let unsaid = text(&old["existing"]["capacity"]).is_empty();
    let rest = |source: &Value| {
        let mut rest = source.clone();
        if let Some(existing) = rest.get_mut("existing").and_then(Value::as_object_mut).filter(|_| unsaid) {
            existing.remove("capacity");
        }
        rest
    };
    if rest(old) != rest(new) {
        let message =
            "cannot change, but for spec.source.existing.capacity where none was said; make another volume";
        faults.forbidden("spec.source", message);
    }
}

/// Who has it keeps it: a claim whose volume were another's would have lost it.
fn claim_unchanged(faults: &mut FieldErrors, old: &Value, spec: &Value) {
    let of = &old["spec"]["claimRef"];
    let held = old["status"]["holders"].as_array().is_some_and(|holders| !holders.is_empty());
    let ready = old["status"]["phase"] == "Ready";
    let has = !text(&of["uid"]).is_empty() && (held || ready);
    let same = ["namespace", "name", "uid"].iter().all(|field| of[field] == spec["claimRef"][field]);
    if has && !same {
        let (name, namespace) = (text(&of["name"]), text(&of["namespace"]));
        let message = if !ready {
            format!(
                "who uses claim \"{name}\" in {namespace} has it still: this is possible once they have ended"
            )
        } else if spec["source"]["create"].is_null() {
            format!(
                "claim \"{name}\" in {namespace} has it: delete that first; if that has another volume, delete this object and register it anew"
            )
        } else {
            format!(
                "claim \"{name}\" in {namespace} has it: set reclaimPolicy Retain, then delete that; if that has another volume, delete this \
                 object, and register what it has: wharfline volume adopt"
            )
        };
        faults.forbidden("spec.claimRef", message);
    }
}

/// Whether a call may be under way that names how the volume is used: the next attempt names the same (CO-GEN-03).
fn is_being_asked_for(old: &Value) -> bool {
    let status = &old["status"];
    // Of what has a host and was not said to be there or not, a create may be under way.
    let hosted = old["spec"]["source"]["create"].is_object() && status["controller"].is_object();
    let by_its_host = status["observedEpoch"] == status["controller"]["epoch"];
    let absent = status["exists"] == "Down" && by_its_host && status["attempting"] != true;
    let known = status["exists"] == "Up" || absent;
    hosted && !known || status["expansion"]["asked"].is_object()
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

/// Attributes that a volume shall have.
fn given(faults: &mut FieldErrors, path: &str, attributes: &Value) {
    if attributes.is_null() {
        return;
    }
    required(faults, &format!("{path}.className"), &attributes["className"]);
    let path = format!("{path}.parameters");
    if entries(&attributes["parameters"]).next().is_none() {
        faults.required(&path, "needs at least one: they are what the volume shall have");
    }
    map_size(faults, &path, &attributes["parameters"]);
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

/// The sizes between which a volume is to be made (CO-GEN-20). Nothing asked for is 0.
fn range(faults: &mut FieldErrors, create: &Value) {
    let bytes = |field: &str| create[field].as_i64().unwrap_or(0);
    let (required, limit) = (bytes("requiredBytes"), bytes("limitBytes"));
    if required < 0 {
        faults.invalid("spec.source.create.requiredBytes", "may not be negative");
    }
    if limit < 0 || limit != 0 && limit < required {
        let message = "must be 0, for no bound, or at least requiredBytes";
        faults.invalid("spec.source.create.limitBytes", message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::paths;
    use super::*;

    /// Part of obligation CO-GEN-03.
    #[test]
    fn how_a_volume_is_mounted_stays_while_its_plugin_may_be_at_work_on_it() {
        let of = |options: Value, status: Value| {
            json!({ "spec": { "plugin": "a", "accessModes": ["SingleNodeWriter"], "mountOptions": options,
                "source": { "create": { "name": "v", "requiredBytes": 1 } } }, "status": status })
        };
        for (status, frozen) in [
            (json!({}), false),
            (json!({ "controller": {} }), true),
            (json!({ "controller": {}, "exists": "Unknown" }), true),
            (json!({ "controller": { "epoch": 2 }, "exists": "Down", "observedEpoch": 2 }), false),
            (json!({ "controller": { "epoch": 3 }, "exists": "Down", "observedEpoch": 2 }), true),
            (
                json!({ "controller": { "epoch": 2 }, "exists": "Down", "observedEpoch": 2, "attempting": true }),
                true,
            ),
            (json!({ "controller": {}, "exists": "Up" }), false),
            (json!({ "exists": "Up", "expansion": { "asked": { "requiredBytes": 2 } } }), true),
            (json!({ "exists": "Up", "expansion": { "nodeBytes": 2 } }), false),
        ] {
            let (old, new) = (of(json!(["a"]), status.clone()), of(json!(["b"]), status.clone()));
            let expected = if frozen { vec!["spec.mountOptions"] } else { vec![] };
            assert_eq!(paths(&volume(&new, Some(&old))), expected, "{status}");
            assert!(volume(&old, Some(&old)).is_empty(), "{status}");
        }
    }

    /// Its claim would say that it is lost, while who uses it goes on.
    #[test]
    fn whose_a_volume_is_stays_while_its_claim_has_it() {
        let of = |claim: Value, phase: &str| {
            json!({ "spec": { "plugin": "a", "accessModes": ["SingleNodeWriter"], "claimRef": claim,
                "source": { "existing": { "handle": "h" } } }, "status": { "phase": phase } })
        };
        let claim = |name: &str, uid: &str| json!({ "namespace": "d", "name": name, "uid": uid });
        let others = [Value::Null, claim("other", "u"), claim("c", "another"), json!({ "name": "c" })];
        for (had, phase, stays) in [
            (claim("c", "u"), "Ready", true),
            (claim("c", "u"), "Released", false),
            (claim("c", "u"), "Pending", false),
            (json!({ "namespace": "d", "name": "c" }), "Ready", false),
            (Value::Null, "Ready", false),
        ] {
            for new in &others {
                let faults = volume(&of(new.clone(), phase), Some(&of(had.clone(), phase)));
                let expected = if stays { vec!["spec.claimRef"] } else { vec![] };
                assert_eq!(paths(&faults), expected, "{had} {new} {phase}");
            }
            assert!(volume(&of(had.clone(), phase), Some(&of(had, phase))).is_empty());
        }
    }

    /// Obligation CO-GEN-20.
    #[test]
    fn what_is_made_has_a_range_of_sizes() {
        let of = |required: i64, limit: i64| {
            json!({ "spec": { "plugin": "a", "accessModes": ["SingleNodeWriter"],
                "source": { "create": { "name": "v", "requiredBytes": required, "limitBytes": limit } } } })
        };
        let (least, most) = ("spec.source.create.requiredBytes", "spec.source.create.limitBytes");
        for (required, limit, faults) in [
            (0, 0, vec![]),
            (1, 0, vec![]),
            (0, 1, vec![]),
            (2, 2, vec![]),
            (1, 2, vec![]),
            (-1, 0, vec![least]),
            (1, -1, vec![most]),
            (-2, -1, vec![least, most]),
            (2, 1, vec![most]),
        ] {
            assert_eq!(paths(&volume(&of(required, limit), None)), faults, "{required} {limit}");
        }
        let old = of(2, 1);
        assert!(volume(&old, Some(&old)).is_empty(), "one of before can be changed and deleted");
    }

    /// Obligation CO-CTRL-01.
    #[test]
    fn the_name_at_the_plugin_is_short_and_without_control_characters() {
        let of = |name: &str| {
            json!({ "spec": { "plugin": "a", "accessModes": ["SingleNodeWriter"],
            "source": { "create": { "name": name, "requiredBytes": 1 } } } })
        };
        assert!(volume(&of(&"é".repeat(CSI_STRING_MAX / 2)), None).is_empty());
        let all = (0..=0x1f).chain(0x7f..=0x9f).filter_map(char::from_u32).map(|c| format!("a{c}"));
        for bad in all.chain([String::new(), "é".repeat(CSI_STRING_MAX / 2 + 1)]) {
            assert_eq!(paths(&volume(&of(&bad), None)), ["spec.source.create.name"], "{bad:?}");
        }
    }

    /// Obligation CO-GEN-04: bytes are counted, and each field is named.
    #[test]
    fn what_csi_does_not_carry_is_refused() {
        let (most, more) = ("é".repeat(64), format!("{}x", "é".repeat(64)));
        let (fits, large) = (json!({ "k": "x".repeat(4095) }), json!({ "k": "x".repeat(4096) }));
        let (flags, many) =
            (json!(["x".repeat(4000), "y".repeat(96)]), json!(["x".repeat(4000), "y".repeat(97)]));
        let create = |field: &str, value: &Value| {
            let mut source = json!({ "name": "n", "requiredBytes": 1 });
            source[field] = value.clone();
            json!({ "create": source })
        };
        let existing = |field: &str, value: &Value| {
            let mut source = json!({ "handle": "h" });
            source[field] = value.clone();
            json!({ "existing": source })
        };
        let of_volume = |field: &str, value: Value| {
            let mut spec = json!({ "plugin": "a", "accessModes": ["SingleNodeWriter"], "source": existing("handle", &json!("h")) });
            spec[field] = value;
            volume(&json!({ "spec": spec }), None)
        };
        let of_class = |field: &str, value: &Value| {
            let mut spec = json!({ "plugin": "a" });
            spec[field] = value.clone();
            class(&json!({ "spec": spec }), None)
        };
        let (most, more) = (json!(most), json!(more));
        for (path, good, bad) in [
            ("spec.fsType", of_class("fsType", &most), of_class("fsType", &more)),
            ("spec.parameters", of_class("parameters", &fits), of_class("parameters", &large)),
            (
                "spec.snapshotParameters",
                of_class("snapshotParameters", &fits),
                of_class("snapshotParameters", &large),
            ),
            ("spec.mountOptions", of_class("mountOptions", &flags), of_class("mountOptions", &many)),
            (
                "spec.mountOptions",
                of_volume("mountOptions", flags.clone()),
                of_volume("mountOptions", many.clone()),
            ),
            ("spec.fsType", of_volume("fsType", most.clone()), of_volume("fsType", more.clone())),
            (
                "spec.source.create.name",
                of_volume("source", create("name", &most)),
                of_volume("source", create("name", &more)),
            ),
            (
                "spec.source.create.parameters",
                of_volume("source", create("parameters", &fits)),
                of_volume("source", create("parameters", &large)),
            ),
            (
                "spec.source.existing.handle",
                of_volume("source", existing("handle", &most)),
                of_volume("source", existing("handle", &more)),
            ),
            (
                "spec.source.existing.context",
                of_volume("source", existing("context", &fits)),
                of_volume("source", existing("context", &large)),
            ),
        ] {
            assert_eq!((paths(&good), paths(&bad)), (vec![], vec![path]), "{path}: {good:?} {bad:?}");
        }
        let long = json!({ "spec": { "plugin": "a", "fsType": more } });
        assert!(class(&long, Some(&long)).is_empty(), "one of before can be changed and deleted");
    }

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

    /// Obligation CO-GEN-20.
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

    /// Scenario A22.
    #[test]
    fn all_that_is_wrong_with_a_volume_is_told_at_once() {
        let of = |source: Value| json!({ "spec": { "plugin": "", "accessModes": [], "source": source } });
        let both = ["spec.plugin", "spec.accessModes"];
        for (source, third) in [
            (json!({ "existing": { "handle": "" } }), "spec.source.existing.handle"),
            (json!({ "existing": { "handle": "h", "capacity": "big" } }), "spec.source.existing.capacity"),
            (json!({ "existing": { "handle": "h", "capacity": "0" } }), "spec.source.existing.capacity"),
            (json!({ "create": { "name": "", "requiredBytes": 1 } }), "spec.source.create.name"),
            (json!({}), "spec.source"),
        ] {
            let faults = volume(&of(source), None);
            assert_eq!(paths(&faults), [both[0], both[1], third], "{faults:?}");
        }
    }

    /// Scenarios A26, A27, A28.
    #[test]
    fn what_a_volume_is_cannot_change() {
        let existing = |handle: &str, context: Value, topology: Value| json!({ "existing": { "handle": handle, "context": context, "topology": topology } });
        let (context, zone) = (json!({ "k": "v" }), json!([{ "zone": "a" }]));
        let there = json!({ "spec": { "plugin": "a", "accessModes": ["SingleNodeWriter", "MultiNodeReaderOnly"],
            "volumeMode": "Filesystem", "fsType": "ext4", "mountOptions": ["noatime"], "reclaimPolicy": "Retain",
            "source": existing("h", context.clone(), zone.clone()) } });
        let create = |parameters: Value, requisite: Value| json!({ "create": { "name": "n", "requiredBytes": 1, "parameters": parameters, "requisite": requisite } });
        let mut made = there.clone();
        made["spec"]["source"] = create(context.clone(), zone.clone());
        let mut anywhere = there.clone();
        anywhere["spec"]["source"] = create(context.clone(), json!([]));
        let sized = |capacity: &str| json!({ "existing": { "handle": "h", "context": context, "topology": zone, "capacity": capacity } });
        let mut large = there.clone();
        large["spec"]["source"] = sized("1Gi");
        let secrets = json!({ "nodeStage": { "namespace": "default", "name": "s" } });
        for (old, field, value, stays) in [
            (&there, "source", sized("1Gi"), false),
            (&large, "source", sized("2Gi"), true),
            (&large, "source", existing("h", context.clone(), zone.clone()), true),
            (&there, "plugin", json!("b"), true),
            (&there, "source", existing("other", context.clone(), zone.clone()), true),
            (&there, "source", existing("h", json!({ "k": "w" }), zone.clone()), true),
            (&there, "source", existing("h", json!({}), zone.clone()), true),
            (&there, "source", existing("h", context.clone(), json!([{ "zone": "b" }])), true),
            (&there, "source", existing("h", context.clone(), json!([])), true),
            (&there, "source", create(context.clone(), zone.clone()), true),
            (&made, "source", create(json!({}), zone.clone()), true),
            (&made, "source", create(context.clone(), json!([{ "zone": "b" }])), true),
            (&made, "source", create(context.clone(), json!([])), true),
            (&anywhere, "source", create(context.clone(), zone.clone()), true),
            (&there, "accessModes", json!(["MultiNodeReaderOnly"]), true),
            (&there, "accessModes", json!(["SingleNodeWriter"]), true),
            (&there, "volumeMode", json!("Block"), true),
            (&there, "fsType", json!("xfs"), true),
            (&there, "secrets", secrets, false),
            (&there, "mountOptions", json!([]), false),
            (&there, "reclaimPolicy", json!("Delete"), false),
        ] {
            let mut new = old.clone();
            assert!(volume(&new, Some(old)).is_empty(), "{old}");
            new["spec"][field] = value;
            let path = format!("spec.{field}");
            let expected = if stays { vec![path.as_str()] } else { vec![] };
            assert_eq!(paths(&volume(&new, Some(old))), expected, "{new}");
        }
    }

    /// Scenario A22.
    #[test]
    fn what_means_nothing_is_refused_and_left_where_it_stands() {
        for (field, value, path) in [
            ("mountOptions", json!([""]), "spec.mountOptions[0]"),
            ("mountOptions", json!(["noatime", "size=1 mode=2"]), "spec.mountOptions[1]"),
            ("fsType", json!("/bin/sh"), "spec.fsType"),
            ("fsType", json!("ext4 "), "spec.fsType"),
            ("allowedTopologies", json!([{ "zone": "a" }, {}]), "spec.allowedTopologies[1]"),
        ] {
            let mut odd = json!({ "spec": { "plugin": "a" } });
            assert!(class(&odd, None).is_empty());
            odd["spec"][field] = value;
            assert_eq!(paths(&class(&odd, None)), [path], "{odd}");
            let mut later = odd.clone();
            later["spec"]["reclaimPolicy"] = json!("Retain");
            assert!(class(&later, Some(&odd)).is_empty(), "{odd}");
        }
        // A volume is refused it where a person said it, and made where it comes from a class or a claim of before.
        for (source, refused) in [
            (json!({ "existing": { "handle": "h" } }), true),
            (json!({ "create": { "name": "v", "requiredBytes": 1 } }), false),
            (json!({ "ephemeral": { "handle": "h" } }), false),
        ] {
            for (field, value, path) in [
                ("fsType", json!("ext4 "), "spec.fsType"),
                ("mountOptions", json!([""]), "spec.mountOptions[0]"),
            ] {
                let mut of = json!({ "spec": { "plugin": "a", "accessModes": ["SingleNodeWriter"], "source": source } });
                of["spec"][field] = value;
                let expected = if refused { vec![path] } else { vec![] };
                assert_eq!(paths(&volume(&of, None)), expected, "{of}");
            }
        }
        let options = json!(["noatime", "commit=30", "context=\"a:b\"", "X-y", "ro,nodev"]);
        assert!(
            class(&json!({ "spec": { "plugin": "a", "mountOptions": options, "fsType": "ext4" } }), None)
                .is_empty()
        );
    }

    /// Scenario A26.
    #[test]
    fn what_a_class_makes_volumes_of_cannot_change() {
        let old =
            json!({ "spec": { "plugin": "a", "parameters": { "k": "v" }, "mountOptions": ["noatime"] } });
        for (field, value, stays) in [
            ("plugin", json!("b"), true),
            ("parameters", json!({ "k": "w" }), true),
            ("parameters", json!({}), true),
            ("secrets", json!({ "nodeStage": { "namespace": "default", "name": "s" } }), false),
            ("mountOptions", json!([]), false),
            ("reclaimPolicy", json!("Retain"), false),
            ("allowedTopologies", json!([{ "zone": "a" }]), false),
        ] {
            let mut new = old.clone();
            assert!(class(&new, Some(&old)).is_empty());
            new["spec"][field] = value;
            let path = format!("spec.{field}");
            let expected = if stays { vec![path.as_str()] } else { vec![] };
            assert_eq!(paths(&class(&new, Some(&old))), expected, "{new}");
        }
    }

    /// Nobody is told to have deleted what he wants to keep.
    #[test]
    fn what_may_be_done_where_a_volume_stays_its_claims_is_said() {
        let claim = json!({ "namespace": "d", "name": "c", "uid": "u" });
        let made = json!({ "create": { "name": "v", "requiredBytes": 1 } });
        let registered = json!({ "existing": { "handle": "h" } });
        for (source, phase, held, said) in [
            (&registered, "Ready", true, "delete this object and register it anew"),
            (&made, "Ready", false, "has it: set reclaimPolicy Retain, then delete that"),
            (&made, "Released", true, "who uses claim \"c\" in d has it still"),
            (&registered, "Pending", true, "who uses claim \"c\" in d has it still"),
        ] {
            let holders = if held { json!(["a"]) } else { json!([]) };
            let mut old = json!({
                "spec": { "plugin": "a", "accessModes": ["SingleNodeWriter"], "claimRef": claim, "source": source },
                "status": { "phase": phase, "holders": holders },
            });
            let mut new = old.clone();
            new["spec"]["claimRef"].take();
            let faults = volume(&new, Some(&old));
            assert_eq!(paths(&faults), ["spec.claimRef"], "{phase} {held}");
            assert!(format!("{faults:?}").contains(&format!("{said:?}")[1..said.len()]), "{faults:?}");
            old["status"]["holders"].take();
            old["status"]["phase"] = json!("Released");
            assert!(volume(&new, Some(&old)).is_empty(), "nobody has it");
        }
    }
}
