//! What a schema cannot say. Every function lists all faults of one object by field path.
//!
//! Called after the schema's own checks, so types are right; what is absent is simply absent.
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use serde_json::Value;

use super::field::{Cause, FieldError, FieldErrors};
use super::quantity;

/// The longest path that a Unix socket may have, in bytes.
pub const SOCKET_PATH_MAX: usize = 107;
/// CSI's bound for a string, in bytes (CO-GEN-04).
pub const CSI_STRING_MAX: usize = 128;
/// CSI's bound for a map, keys and values together, in bytes (CO-GEN-04, A-36).
pub const CSI_MAP_MAX: usize = 4096;

/// Faults of a Plugin.
pub fn plugin(new: &Value, _: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    names(&mut faults, "spec.instances", &spec["instances"]);
    for (i, instance) in list(&spec["instances"]).enumerate() {
        let path = format!("spec.instances[{i}]");
        runtime(&mut faults, &format!("{path}.runtime"), &instance["runtime"]);
        one_of(
            &mut faults,
            &format!("{path}.placement"),
            &instance["placement"],
            &["everyNode", "nodeSelector", "replicas"],
            false,
        );
        check_duration(&mut faults, &format!("{path}.healthTimeout"), &instance["healthTimeout"]);
    }
    for (rpc, value) in entries(&spec["deadlines"]) {
        let path = format!("spec.deadlines[{rpc}]");
        check_duration(&mut faults, &path, value);
        let own = value.as_str().and_then(quantity::duration).unwrap_or_default();
        if !rpc.starts_with("Node") && own > super::plugin::LONGEST_CONTROLLER_CALL {
            faults.invalid(
                &path,
                "must be at most 2m: a host that went silent is waited for no longer than that",
            );
        }
    }
    faults.into_vec()
}

/// Faults of a VolumeClass.
pub fn class(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    required(&mut faults, "spec.plugin", &spec["plugin"]);
    reference(&mut faults, "spec.plugin", &spec["plugin"]);
    map_size(&mut faults, "spec.parameters", &spec["parameters"]);
    mount_options(&mut faults, &spec["mountOptions"]);
    if let Some(old) = old {
        unchanged(&mut faults, old, new, &["plugin", "parameters"], "make another class instead");
    }
    faults.into_vec()
}

/// Faults of a VolumeClaim.
pub fn claim(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    reference(&mut faults, "spec.volumeClassName", &spec["volumeClassName"]);
    reference(&mut faults, "spec.volumeName", &spec["volumeName"]);
    access_modes(&mut faults, &spec["accessModes"]);
    let request =
        size(&mut faults, "spec.resources.requests.storage", &spec["resources"]["requests"]["storage"]);
    let limit = size(&mut faults, "spec.resources.limits.storage", &spec["resources"]["limits"]["storage"]);
    if let (Some(request), Some(limit)) = (request, limit)
        && limit < request
    {
        faults.invalid("spec.resources.limits.storage", "is below the request; raise it or leave it out");
    }
    let named = !text(&spec["volumeName"]).is_empty();
    if !named && request.is_none() && spec["resources"]["requests"]["storage"].is_null() {
        faults.required("spec.resources.requests.storage", "is needed to make a volume, such as 10Gi");
    }
    if !spec["dataSource"].is_null() {
        not_yet(&mut faults, "spec.dataSource", "Starting from a snapshot or a claim");
    }
    if let Some(old) = old {
        let fields = ["volumeClassName", "volumeName", "accessModes", "volumeMode"];
        unchanged(&mut faults, old, new, &fields, "delete the claim and make another one");
        claim_size_change(&mut faults, old, new);
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
        let handle = text(&spec["source"]["existing"]["handle"]);
        if handle.is_empty() {
            faults.required(
                "spec.source.existing.handle",
                "is the plugin's id of the volume and may not be empty",
            );
        } else if handle.len() > CSI_STRING_MAX {
            faults.add(
                "spec.source.existing.handle",
                Cause::TooLong,
                format!("has {} bytes; CSI allows {CSI_STRING_MAX}", handle.len()),
            );
        } else if handle.chars().any(char::is_control) {
            faults.invalid(
                "spec.source.existing.handle",
                format!("{handle:?} holds a control character; give the plugin's id as the plugin writes it"),
            );
        }
        map_size(&mut faults, "spec.source.existing.context", &spec["source"]["existing"]["context"]);
    }
    if spec["source"]["create"].is_object() {
        let name = text(&spec["source"]["create"]["name"]);
        if name.is_empty() || name.len() > CSI_STRING_MAX {
            faults.invalid("spec.source.create.name", format!("needs 1 to {CSI_STRING_MAX} bytes"));
        }
        map_size(&mut faults, "spec.source.create.parameters", &spec["source"]["create"]["parameters"]);
    }
    if let Some(old) = old {
        let fields = ["plugin", "source", "accessModes", "volumeMode", "fsType"];
        unchanged(&mut faults, old, new, &fields, "what a volume is cannot change; make another one");
    }
    faults.into_vec()
}

/// Faults of a Snapshot: the kind is known but not built yet.
pub fn snapshot(_: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    if old.is_none() {
        not_yet(&mut faults, "kind", "Snapshot");
    }
    faults.into_vec()
}

/// Faults of an Allocation.
pub fn allocation(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    names(&mut faults, "spec.volumes", &spec["volumes"]);
    names(&mut faults, "spec.tasks", &spec["tasks"]);
    reference(&mut faults, "spec.nodeName", &spec["nodeName"]);
    let mut claims = HashSet::new();
    for (i, volume) in list(&spec["volumes"]).enumerate() {
        let claim = text(&volume["claimName"]);
        if claim.is_empty() {
            faults.required(format!("spec.volumes[{i}].claimName"), "is needed");
        } else if !claims.insert(claim) {
            faults.add(
                format!("spec.volumes[{i}].claimName"),
                Cause::Duplicate,
                format!("claim \"{claim}\" is listed already; mount one entry several times instead"),
            );
        }
        reference(&mut faults, &format!("spec.volumes[{i}].claimName"), &volume["claimName"]);
        host_path(&mut faults, &format!("spec.volumes[{i}].hostPath"), text(&volume["hostPath"]));
    }
    let known: HashSet<_> = list(&spec["volumes"]).map(|v| text(&v["name"])).collect();
    for (i, one) in list(&spec["tasks"]).enumerate() {
        task(&mut faults, &format!("spec.tasks[{i}]"), one, &known);
    }
    if let Some(old) = old {
        let fields = ["nodeName", "nodeSelector", "volumes", "tasks"];
        unchanged(&mut faults, old, new, &fields, "delete the allocation and make another one");
    }
    faults.into_vec()
}

fn task(faults: &mut FieldErrors, path: &str, task: &Value, volumes: &HashSet<&str>) {
    runtime(faults, &format!("{path}.runtime"), &task["runtime"]);
    check_duration(faults, &format!("{path}.stopGracePeriod"), &task["stopGracePeriod"]);
    let plugin = &task["csiPlugin"];
    let process = task["runtime"]["process"].is_object();
    if plugin.is_object() {
        required(faults, &format!("{path}.csiPlugin.pluginName"), &plugin["pluginName"]);
        reference(faults, &format!("{path}.csiPlugin.pluginName"), &plugin["pluginName"]);
        check_duration(faults, &format!("{path}.csiPlugin.healthTimeout"), &plugin["healthTimeout"]);
        for field in ["mountDir", "stagePublishBaseDir"] {
            if process && !text(&plugin[field]).is_empty() {
                faults.forbidden(
                    format!("{path}.csiPlugin.{field}"),
                    "speaks of a container's own root; a process has the host's, leave it out",
                );
            }
        }
    } else if task["runtime"]["external"].is_object() {
        faults.forbidden(
            format!("{path}.runtime.external"),
            "is for plugins only; give the task a csiPlugin block",
        );
    }
    if plugin.is_object() && !task["env"]["CSI_ENDPOINT"].is_null() {
        faults.forbidden(
            format!("{path}.env.CSI_ENDPOINT"),
            "is given to a plugin by Wharfline, which has to know where its socket is; leave it out",
        );
    }
    let mut taken = HashMap::new();
    for (i, mount) in list(&task["volumeMounts"]).enumerate() {
        let at = format!("{path}.volumeMounts[{i}]");
        if plugin.is_object() {
            let message = "a plugin works in the mounts of its machine and gets no volumes; leave it out";
            faults.forbidden(&at, message);
        }
        let name = text(&mount["name"]);
        if !volumes.contains(name) {
            faults.invalid(format!("{at}.name"), format!("\"{name}\" is not one of spec.volumes"));
        }
        let path = text(&mount["mountPath"]);
        if !path.starts_with('/') || path == "/" || path.split('/').any(|part| part == "..") {
            faults.invalid(format!("{at}.mountPath"), "must be an absolute path below / without \"..\"");
        }
        let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if let Some(other) = taken.insert(parts, i) {
            let message = format!("volumeMounts[{other}] is mounted there already, and would be hidden");
            faults.invalid(format!("{at}.mountPath"), message);
        }
    }
}

fn runtime(faults: &mut FieldErrors, path: &str, runtime: &Value) {
    one_of(faults, path, runtime, &["process", "external", "oci", "containerd", "systemd"], true);
    for kind in ["oci", "containerd", "systemd"] {
        if runtime[kind].is_object() {
            not_yet(faults, &format!("{path}.{kind}"), "This runtime");
        }
    }
    if runtime["process"].is_object()
        && list(&runtime["process"]["command"]).next().is_none_or(|c| text(c).is_empty())
    {
        faults.required(format!("{path}.process.command"), "needs at least the program to run");
    }
    if runtime["external"].is_object() {
        socket(faults, &format!("{path}.external.socket"), text(&runtime["external"]["socket"]));
    }
}

fn socket(faults: &mut FieldErrors, path: &str, socket: &str) {
    if socket.contains("://") {
        faults.invalid(path, "must be a plain path of a Unix socket; other transports are not part of CSI");
    } else if !socket.starts_with('/') {
        faults.invalid(path, "must be an absolute path");
    } else if socket.len() > SOCKET_PATH_MAX {
        let message = format!("has {} bytes; a Unix socket's path may have {SOCKET_PATH_MAX}", socket.len());
        faults.add(path, Cause::TooLong, message);
    }
}

fn host_path(faults: &mut FieldErrors, path: &str, value: &str) {
    if value.is_empty() {
        return;
    }
    if !value.starts_with('/') || value.split('/').any(|part| part == "..") || value == "/" {
        faults.invalid(path, "must be an absolute path below / without \"..\"");
    }
}

fn claim_size_change(faults: &mut FieldErrors, old: &Value, new: &Value) {
    let of = |o: &Value| quantity::bytes(text(&o["spec"]["resources"]["requests"]["storage"])).ok();
    let path = "spec.resources.requests.storage";
    match (of(old), of(new)) {
        (Some(old), Some(new)) if new < old => faults.forbidden(path, "a volume cannot shrink"),
        (Some(old), Some(new)) if new > old => not_yet(faults, path, "Growing a volume"),
        _ => {}
    }
}

fn access_modes(faults: &mut FieldErrors, modes: &Value) {
    if list(modes).next().is_none() {
        faults.required("spec.accessModes", "needs at least one, such as SingleNodeWriter");
    }
}

fn mount_options(faults: &mut FieldErrors, options: &Value) {
    if list(options).map(|o| text(o).len()).sum::<usize>() > CSI_MAP_MAX {
        faults.add("spec.mountOptions", Cause::TooLong, format!("CSI allows {CSI_MAP_MAX} bytes in all"));
    }
}

fn map_size(faults: &mut FieldErrors, path: &str, map: &Value) {
    let bytes: usize = entries(map).map(|(k, v)| k.len() + text(v).len()).sum();
    if bytes > CSI_MAP_MAX {
        faults.add(path, Cause::TooLong, format!("has {bytes} bytes; CSI allows {CSI_MAP_MAX} in all"));
    }
}

fn size(faults: &mut FieldErrors, path: &str, value: &Value) -> Option<i64> {
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

fn check_duration(faults: &mut FieldErrors, path: &str, value: &Value) {
    if !value.is_null() && quantity::duration(text(value)).is_none() {
        faults.invalid(path, format!("\"{}\" is not a duration; write 30s, 2m or 500ms", text(value)));
    }
}

fn one_of(faults: &mut FieldErrors, path: &str, value: &Value, keys: &[&str], needed: bool) {
    let given = keys.iter().filter(|key| !value[**key].is_null()).count();
    if given > 1 || (needed && given == 0) {
        let mut choice = String::new();
        for key in keys {
            let _ = write!(choice, "{}{key}", if choice.is_empty() { "" } else { ", " });
        }
        faults.invalid(path, format!("needs exactly one of {choice}"));
    }
}

/// That no two are the same is said by the schema, of which the name is the key.
fn names(faults: &mut FieldErrors, path: &str, values: &Value) {
    for (i, value) in list(values).enumerate() {
        let name = text(&value["name"]);
        let label = name.len() <= 63
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if name.is_empty() || !label || name.starts_with('-') || name.ends_with('-') {
            faults.invalid(
                format!("{path}[{i}].name"),
                format!("\"{name}\" must be 1 to 63 lower-case letters, digits or inner dashes"),
            );
        }
    }
}

fn unchanged(faults: &mut FieldErrors, old: &Value, new: &Value, fields: &[&str], advice: &str) {
    for field in fields {
        if old["spec"][*field] != new["spec"][*field] {
            faults.forbidden(format!("spec.{field}"), format!("cannot change; {advice}"));
        }
    }
}

/// The machine-readable word for what is known but not built.
pub const NOT_SUPPORTED_YET: &str = "NotSupportedYet";

fn not_yet(faults: &mut FieldErrors, path: &str, what: &str) {
    faults.add(path, Cause::NotSupported, format!("{NOT_SUPPORTED_YET}: {what} is not built yet"));
}

/// Lower case words joined by dots and dashes, as DNS names are and names of objects must be.
pub fn is_subdomain(name: &str, longest: usize) -> bool {
    let part = |part: &str| {
        let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(ok) && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= longest && name.split('.').all(part)
}

/// The name of another object, which need not be there yet, but must be one that can be.
fn reference(faults: &mut FieldErrors, path: &str, value: &Value) {
    let name = text(value);
    if !name.is_empty() && !is_subdomain(name, 253) {
        let message = format!(
            "\"{name}\" cannot be the name of an object: a to z, 0 to 9, '-' and '.', at most 253 characters"
        );
        faults.invalid(path, message);
    }
}

fn required(faults: &mut FieldErrors, path: &str, value: &Value) {
    if text(value).is_empty() {
        faults.required(path, "is needed");
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn paths(faults: &[FieldError]) -> Vec<&str> {
        faults.iter().map(|f| f.path.as_str()).collect()
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

    #[test]
    fn allocation_faults_are_found_at_their_paths() {
        let alloc = json!({ "spec": {
            "volumes": [{ "name": "a", "claimName": "c" }, { "name": "a", "claimName": "c", "hostPath": "../x" }],
            "tasks": [{ "name": "t", "runtime": { "process": { "command": [] }, "oci": {} }, "stopGracePeriod": "10",
                "volumeMounts": [{ "name": "z", "mountPath": "data" }],
                "csiPlugin": { "pluginName": "p", "role": "Node", "mountDir": "/csi" } }] } });
        assert_eq!(
            paths(&allocation(&alloc, None)),
            [
                "spec.volumes[1].claimName",
                "spec.volumes[1].hostPath",
                "spec.tasks[0].runtime",
                "spec.tasks[0].runtime.oci",
                "spec.tasks[0].runtime.process.command",
                "spec.tasks[0].stopGracePeriod",
                "spec.tasks[0].csiPlugin.mountDir",
                "spec.tasks[0].volumeMounts[0]",
                "spec.tasks[0].volumeMounts[0].name",
                "spec.tasks[0].volumeMounts[0].mountPath",
            ]
        );
    }

    /// Scenario A75.
    #[test]
    fn what_a_task_cannot_mount_is_refused_before_anything_is_claimed() {
        let alloc = |task: &Value| {
            let mut all = json!({ "name": "t", "runtime": { "process": { "command": ["x"] } } });
            all.as_object_mut().unwrap().extend(task.as_object().unwrap().clone());
            json!({ "spec": { "volumes": [{ "name": "a", "claimName": "c" }, { "name": "b", "claimName": "d" }],
                "tasks": [all] } })
        };
        let mounts = |first: &str, second: &str| json!({ "volumeMounts": [{ "name": "a", "mountPath": first }, { "name": "b", "mountPath": second }] });
        for (task, wanted) in [
            (mounts("/data", "/data/more"), &[][..]),
            (mounts("/data", "/data"), &["spec.tasks[0].volumeMounts[1].mountPath"]),
            (mounts("/data/./x/", "/data//x"), &["spec.tasks[0].volumeMounts[1].mountPath"]),
            (
                json!({ "csiPlugin": { "pluginName": "p", "role": "Node" },
                    "volumeMounts": [{ "name": "a", "mountPath": "/data" }] }),
                &["spec.tasks[0].volumeMounts[0]"],
            ),
            (
                json!({ "csiPlugin": { "pluginName": "p", "role": "Node" }, "env": { "CSI_ENDPOINT": "x" } }),
                &["spec.tasks[0].env.CSI_ENDPOINT"],
            ),
            (json!({ "env": { "CSI_ENDPOINT": "x" } }), &[]),
        ] {
            assert_eq!(paths(&allocation(&alloc(&task), None)), wanted, "{task}");
        }
    }

    #[test]
    fn a_socket_path_has_a_length() {
        let of = |path: String| {
            json!({ "spec": { "instances": [
            { "name": "a", "role": "Node", "runtime": { "external": { "socket": path } } }] } })
        };
        assert!(plugin(&of(format!("/{}", "x".repeat(106))), None).is_empty());
        assert_eq!(
            paths(&plugin(&of(format!("/{}", "x".repeat(107))), None)),
            ["spec.instances[0].runtime.external.socket"]
        );
        assert_eq!(plugin(&of("tcp://1.2.3.4:5".into()), None).len(), 1);
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

    #[test]
    fn what_a_volume_is_cannot_change() {
        let old = json!({ "spec": { "plugin": "a", "accessModes": ["SingleNodeWriter"],
            "source": { "existing": { "handle": "h" } } } });
        let mut new = old.clone();
        assert!(volume(&new, Some(&old)).is_empty());
        new["spec"]["source"]["existing"]["handle"] = json!("other");
        assert_eq!(paths(&volume(&new, Some(&old))), ["spec.source"]);
    }

    #[test]
    fn sizes_do_not_shrink() {
        let of = |s: &str| json!({ "spec": { "accessModes": ["SingleNodeWriter"], "resources": { "requests": { "storage": s } } } });
        assert!(claim(&of("1Gi"), Some(&of("1024Mi"))).is_empty());
        assert_eq!(claim(&of("1Gi"), Some(&of("2Gi")))[0].cause, Cause::Forbidden);
        assert!(claim(&of("3Gi"), Some(&of("2Gi")))[0].message.contains(NOT_SUPPORTED_YET));
    }

    #[test]
    fn a_controller_call_is_not_waited_for_longer_than_a_silent_host() {
        let with = |rpc: &str, limit: &str| json!({ "spec": { "deadlines": { rpc: limit } } });
        for (rpc, limit, paths_of) in [
            ("CreateVolume", "2m", vec![]),
            ("CreateVolume", "121s", vec!["spec.deadlines[CreateVolume]"]),
            ("NodeStageVolume", "10m", vec![]),
            ("NodeStageVolume", "soon", vec!["spec.deadlines[NodeStageVolume]"]),
        ] {
            assert_eq!(paths(&plugin(&with(rpc, limit), None)), paths_of, "{rpc}: {limit}");
        }
    }
}
