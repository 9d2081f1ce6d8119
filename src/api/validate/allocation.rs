//! Faults of an Allocation.
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::field::{Cause, FieldError, FieldErrors};
use super::super::quantity;
use super::mounts::{is_below_root, mounts};
use super::runtime::{driver_is_root, driver_paths, env, health_timeout, own_endpoint, resources, runtime};
use super::{check_duration, claim, list, names, reference, required, template_labels, text, unchanged};

/// What a person may wait for the end of a task.
const LONGEST_GRACE: Duration = Duration::from_secs(24 * 3600);
/// The longest value of a label.
const LONGEST_LABEL: usize = 63;
/// What to do instead of a change that is refused.
const ANOTHER: &str = "delete the allocation and make another one";

/// Faults of an Allocation.
pub fn allocation(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    let spec = &new["spec"];
    // What cannot change is no reason to refuse a change of something else: it was taken before this was refused.
    let differs = |field: &str| old.is_none_or(|old| old["spec"][field] != spec[field]);
    if differs("volumes") {
        volumes(&mut faults, &spec["volumes"]);
        retained(&mut faults, new);
    }
    if differs("nodeName") {
        reference(&mut faults, "spec.nodeName", &spec["nodeName"]);
    }
    if differs("tasks") {
        tasks(&mut faults, spec, old);
    }
    if let Some(old) = old {
        let fields = ["nodeName", "nodeSelector", "volumes"];
        unchanged(&mut faults, old, new, &fields, ANOTHER);
        tasks_stay(&mut faults, old, new);
    }
    faults.into_vec()
}

fn volumes(faults: &mut FieldErrors, volumes: &Value) {
    names(faults, "spec.volumes", volumes);
    let mut claims = HashSet::new();
    for (i, volume) in list(volumes).enumerate() {
        let claim = text(&volume["claimName"]);
        if volume["claimTemplate"].is_object() {
            template(faults, &format!("spec.volumes[{i}].claimTemplate"), &volume["claimTemplate"]);
        }
        if claim.is_empty() {
            let message = "names a claim; or give claimTemplate, and one is made";
            faults.required(format!("spec.volumes[{i}].claimName"), message);
        } else if !claims.insert(claim) {
            faults.add(
                format!("spec.volumes[{i}].claimName"),
                Cause::Duplicate,
                format!("claim \"{claim}\" is listed already; mount one entry several times instead"),
            );
        }
        reference(faults, &format!("spec.volumes[{i}].claimName"), &volume["claimName"]);
    }
    host_paths(faults, volumes);
}

/// A claim that outlives its allocation has that one's name for a label.
fn retained(faults: &mut FieldErrors, allocation: &Value) {
    let name = text(&allocation["metadata"]["name"]);
    for (i, volume) in list(&allocation["spec"]["volumes"]).enumerate() {
        if volume["claimTemplate"]["whenDeleted"] == "Retain" && name.len() > LONGEST_LABEL {
            let message = format!(
                "needs a name of the allocation of at most {LONGEST_LABEL} characters: it is a label of the claim"
            );
            faults.invalid(format!("spec.volumes[{i}].claimTemplate.whenDeleted"), message);
        }
    }
}

/// A claim that the allocation brings along: what would be wrong with it by itself.
fn template(faults: &mut FieldErrors, path: &str, template: &Value) {
    template_labels(faults, &format!("{path}.metadata"), &template["metadata"]);
    for fault in claim(&json!({ "spec": template["spec"] }), None) {
        faults.add(format!("{path}.{}", fault.path), fault.cause, fault.message);
    }
    if template["spec"]["ephemeral"].is_object() && template["whenDeleted"] == "Retain" {
        let message = "nothing of an ephemeral volume would be kept; leave it out";
        faults.invalid(format!("{path}.whenDeleted"), message);
    }
    if !text(&template["spec"]["volumeName"]).is_empty() {
        let message = "names one volume, and each allocation brings its own: name a claim of that volume in claimName instead";
        faults.invalid(format!("{path}.spec.volumeName"), message);
    }
}

fn tasks(faults: &mut FieldErrors, spec: &Value, old: Option<&Value>) {
    names(faults, "spec.tasks", &spec["tasks"]);
    let known: HashSet<_> = list(&spec["volumes"]).map(|v| text(&v["name"])).collect();
    for (i, one) in list(&spec["tasks"]).enumerate() {
        let path = format!("spec.tasks[{i}]");
        let former = old.map(|old| &old["spec"]["tasks"][i]);
        if former.is_none_or(|former| but_for_block(former) != but_for_block(one)) {
            task(faults, &path, one, &known);
        }
        if former.is_none_or(|former| former["csiPlugin"] != one["csiPlugin"]) {
            block(faults, &path, one);
        }
        if former.is_none_or(|former| former != one) {
            mounts(faults, &path, one, "csiPlugin");
        }
    }
}

/// A task with nothing in its csiPlugin block but that it has one.
fn but_for_block(task: &Value) -> Value {
    let mut task = task.clone();
    task["csiPlugin"] = Value::Bool(task["csiPlugin"].is_object());
    task
}

/// Of tasks only what is in their csiPlugin blocks may change; where the allocation is a Plugin's own, not even that.
fn tasks_stay(faults: &mut FieldErrors, old: &Value, new: &Value) {
    let tasks = |of: &Value| list(&of["spec"]["tasks"]).map(but_for_block).collect::<Vec<_>>();
    if tasks(old) != tasks(new) {
        let message = format!("cannot change, but for what is in their csiPlugin blocks; {ANOTHER}");
        faults.forbidden("spec.tasks", message);
        return;
    }
    let owner = |of: &Value| text(&of["metadata"]["annotations"]["wharfline.dev/plugin-name"]).to_owned();
    let owner = Some(owner(old)).filter(|owner| !owner.is_empty()).unwrap_or_else(|| owner(new));
    for (i, (old, new)) in list(&old["spec"]["tasks"]).zip(list(&new["spec"]["tasks"])).enumerate() {
        if !owner.is_empty() && old["csiPlugin"] != new["csiPlugin"] {
            let message = format!("is as Plugin \"{owner}\" says; change its spec.instances");
            faults.forbidden(format!("spec.tasks[{i}].csiPlugin"), message);
        }
    }
}

/// What is in a task's csiPlugin block, which may change.
fn block(faults: &mut FieldErrors, path: &str, task: &Value) {
    let plugin = &task["csiPlugin"];
    if plugin.is_object() {
        required(faults, &format!("{path}.csiPlugin.pluginName"), &plugin["pluginName"]);
        reference(faults, &format!("{path}.csiPlugin.pluginName"), &plugin["pluginName"]);
        health_timeout(faults, &format!("{path}.csiPlugin.healthTimeout"), &plugin["healthTimeout"]);
        driver_paths(faults, &format!("{path}.csiPlugin"), plugin, &task["runtime"]);
    }
}

/// All else of a task, which cannot.
fn task(faults: &mut FieldErrors, path: &str, task: &Value, volumes: &HashSet<&str>) {
    runtime(faults, &format!("{path}.runtime"), &task["runtime"]);
    resources(faults, path, task);
    env(faults, path, task);
    let grace = format!("{path}.stopGracePeriod");
    check_duration(faults, &grace, &task["stopGracePeriod"]);
    if task["stopGracePeriod"]
        .as_str()
        .and_then(quantity::duration)
        .is_some_and(|grace| grace > LONGEST_GRACE)
    {
        faults.invalid(grace, "must be at most 24h");
    }
    let plugin = &task["csiPlugin"];
    if plugin.is_object() {
        driver_stays(faults, &format!("{path}.restartPolicy"), task);
        driver_is_root(faults, path, task);
        own_endpoint(faults, path, task);
    } else if task["runtime"]["external"].is_object() {
        faults.forbidden(
            format!("{path}.runtime.external"),
            "is for plugins only; give the task a csiPlugin block",
        );
    }
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
        let sub = text(&mount["subPath"]);
        if !sub.is_empty() && !is_sub_path(sub) {
            let message =
                "must be a relative path of names, without \"..\", \".\" and empty parts, such as app/data";
            faults.invalid(format!("{at}.subPath"), message);
        }
    }
}

/// A driver whose volumes are mounted is needed to take them down, however it ended.
fn driver_stays(faults: &mut FieldErrors, path: &str, task: &Value) {
    if task["csiPlugin"].is_object() && !matches!(text(&task["restartPolicy"]), "" | "Always") {
        let message = "a task that serves a plugin is always started again, until no volume needs it; leave it out or say Always";
        faults.invalid(path, message);
    }
}

/// The longest path that the kernel takes, in bytes.
const PATH_MAX: usize = 4096;

/// Whether each part of it is a name.
fn is_sub_path(path: &str) -> bool {
    path.len() <= PATH_MAX
        && !path.contains('\0')
        && !path.split('/').any(|part| matches!(part, "" | "." | ".."))
}

/// One volume would cover the other, or be mounted in it.
fn host_paths(faults: &mut FieldErrors, volumes: &Value) {
    let mut taken: Vec<(usize, &Path)> = Vec::new();
    for (i, volume) in list(volumes).enumerate() {
        let (at, value) = (format!("spec.volumes[{i}].hostPath"), text(&volume["hostPath"]));
        if value.is_empty() {
            continue;
        }
        // The node takes no path that could be written otherwise.
        if !is_below_root(value) || value.split('/').any(|part| part == ".") {
            faults.invalid(at, "must be an absolute path below / without \".\" and \"..\"");
            continue;
        }
        let path = Path::new(value);
        let overlaps = |(_, other): &&(usize, &Path)| path.starts_with(other) || other.starts_with(path);
        match taken.iter().find(overlaps) {
            Some((other, _)) => {
                let message = format!("must be neither that of volumes[{other}] nor lie in it or above it");
                faults.invalid(at, message);
            }
            None => taken.push((i, path)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::paths;
    use super::*;

    /// Scenario A42.
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
                "spec.tasks[0].runtime.process.command",
                "spec.tasks[0].runtime.oci.archive",
                "spec.tasks[0].stopGracePeriod",
                "spec.tasks[0].volumeMounts[0]",
                "spec.tasks[0].volumeMounts[0].name",
                "spec.tasks[0].csiPlugin.mountDir",
                "spec.tasks[0].volumeMounts[0].mountPath",
            ]
        );
    }

    #[test]
    fn a_claim_that_is_brought_along_is_checked_as_one_that_is_made() {
        let spec =
            json!({ "accessModes": ["SingleNodeWriter"], "resources": { "requests": { "storage": "1Gi" } } });
        let with = |template| {
            let volumes = json!([{ "name": "a", "claimName": "x-a", "claimTemplate": template }]);
            json!({ "spec": { "volumes": volumes } })
        };
        let at = |field: &str| format!("spec.volumes[0].claimTemplate.{field}");
        let mut named = spec.clone();
        named["volumeName"] = json!("v");
        for (template, wanted) in [
            (json!({ "spec": spec }), vec![]),
            (json!({ "spec": named }), vec![at("spec.volumeName")]),
            (json!({ "spec": {} }), vec![at("spec.accessModes"), at("spec.resources.requests.storage")]),
            (
                json!({ "spec": spec, "metadata": { "labels": { "a b": "c" }, "annotations": { "d e": "f" } } }),
                vec![at("metadata.labels"), at("metadata.annotations")],
            ),
            (
                json!({ "spec": spec, "metadata": { "labels": { "wharfline.dev/allocation": "other" } } }),
                vec![at("metadata.labels")],
            ),
        ] {
            assert_eq!(paths(&allocation(&with(template.clone()), None)), wanted, "{template}");
        }
        let mut kept = with(json!({ "spec": spec, "whenDeleted": "Retain" }));
        for (name, wanted) in [("x".repeat(63), vec![]), ("x".repeat(64), vec![at("whenDeleted")])] {
            kept["metadata"] = json!({ "name": name });
            assert_eq!(paths(&allocation(&kept, None)), wanted, "{name}");
        }
        let neither = json!({ "spec": { "volumes": [{ "name": "a" }] } });
        assert_eq!(paths(&allocation(&neither, None)), ["spec.volumes[0].claimName"]);
        let long = json!({ "spec": { "volumes": [{ "name": "a", "claimName": "x".repeat(254), "claimTemplate": { "spec": spec } }] } });
        assert_eq!(paths(&allocation(&long, None)), ["spec.volumes[0].claimName"]);
    }

    #[test]
    fn paths_of_the_host_are_plain_and_lie_apart() {
        let bad = |i: usize| format!("spec.volumes[{i}].hostPath");
        for (paths_of, wanted) in [
            (["/srv/a", "/srv/b", ""], vec![]),
            (["/srv/a", "/srv/ab", "/srv/a b"], vec![]),
            (["/srv/a", "/srv/a", ""], vec![bad(1)]),
            (["/srv/a", "/srv//a/", "/srv/a/in"], vec![bad(1), bad(2)]),
            (["/srv/a/in", "/srv/a", "/srv"], vec![bad(1), bad(2)]),
            (["/srv/./a", "/srv/a/..", "srv/a"], vec![bad(0), bad(1), bad(2)]),
        ] {
            let volumes: Vec<_> = paths_of
                .iter()
                .enumerate()
                .map(|(i, path)| json!({ "name": format!("v{i}"), "claimName": format!("c{i}"), "hostPath": path }))
                .collect();
            assert_eq!(
                paths(&allocation(&json!({ "spec": { "volumes": volumes } }), None)),
                wanted,
                "{paths_of:?}"
            );
        }
    }

    #[test]
    fn of_a_task_only_what_is_in_its_block_may_change() {
        let alloc = |task: &Value, owner: &str| {
            let mut all = json!({ "name": "t", "runtime": { "process": { "command": ["x"] } },
                "csiPlugin": { "pluginName": "p", "role": "Node" } });
            all.as_object_mut().unwrap().extend(task.as_object().unwrap().clone());
            let annotations = json!({ "wharfline.dev/plugin-name": owner });
            json!({ "metadata": { "annotations": annotations }, "spec": { "tasks": [all] } })
        };
        let block = json!({ "csiPlugin": { "pluginName": "q", "role": "Monolith", "healthTimeout": "1m" } });
        let stays = "spec.tasks: cannot change, but for what is in their csiPlugin blocks; \
                     delete the allocation and make another one";
        let owned = "spec.tasks[0].csiPlugin: is as Plugin \"p\" says; change its spec.instances";
        for (task, owner, wanted) in [
            (json!({}), "", None),
            (json!({}), "p", None),
            (block.clone(), "", None),
            (block, "p", Some(owned)),
            (json!({ "csiPlugin": null }), "", Some(stays)),
            (json!({ "env": { "A": "b" } }), "", Some(stays)),
            (json!({ "name": "u" }), "", Some(stays)),
        ] {
            let (old, new) = (alloc(&json!({}), owner), alloc(&task, owner));
            let faults = allocation(&new, Some(&old));
            let found: Vec<_> = faults.iter().map(|f| format!("{}: {}", f.path, f.message)).collect();
            assert_eq!(found, wanted.into_iter().collect::<Vec<_>>(), "{task} {owner}");
            let back = allocation(&old, Some(&new));
            assert_eq!(back.is_empty(), wanted.is_none(), "{task} {owner}");
        }
    }

    /// They were taken before each of these was refused, and none of it can change.
    #[test]
    fn what_cannot_change_holds_up_no_stop() {
        let of = |task: &Value, volumes: &Value| {
            let mut all = json!({ "name": "t", "runtime": { "process": { "command": ["x"] } },
                "csiPlugin": { "pluginName": "p", "role": "Node" } });
            all.as_object_mut().unwrap().extend(task.as_object().unwrap().clone());
            json!({ "spec": { "tasks": [all], "volumes": volumes } })
        };
        let at = |path: &str| {
            json!([{ "name": "a", "claimName": "c", "hostPath": "/srv/a" },
            { "name": "b", "claimName": "d", "hostPath": path }])
        };
        let process = |more: Value| json!({ "runtime": { "process": more } });
        for (task, volumes) in [
            (json!({ "stopGracePeriod": "48h" }), json!([])),
            (json!({ "env": { "A=B": "x" } }), json!([])),
            (process(json!({ "command": ["x"], "workingDir": "rel" })), json!([])),
            (json!({ "runtime": { "external": { "socket": "/run/../x.sock" } } }), json!([])),
            (json!({ "csiPlugin": { "pluginName": "p", "role": "Node", "healthTimeout": "0s" } }), json!([])),
            (json!({}), at("/srv/a/in")),
            (json!({}), at("/srv/./b")),
        ] {
            let old = of(&task, &volumes);
            assert_eq!(allocation(&old, None).len(), 1, "{old}");
            let mut new = old.clone();
            new["spec"]["stop"] = json!(true);
            assert_eq!(paths(&allocation(&new, Some(&old))), [""; 0], "{old}");
            // What may change is looked at when it does.
            new["spec"]["tasks"][0]["csiPlugin"] = json!({ "pluginName": "q", "role": "Node" });
            assert_eq!(paths(&allocation(&new, Some(&old))), [""; 0], "{old}");
            new["spec"]["tasks"][0]["csiPlugin"]["healthTimeout"] = json!("99ms");
            let faults = allocation(&new, Some(&old));
            assert_eq!(paths(&faults), ["spec.tasks[0].csiPlugin.healthTimeout"], "{old}");
        }
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
        let serving = |more: &Value| {
            let mut all = json!({ "csiPlugin": { "pluginName": "p", "role": "Node" } });
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        let patient = |timeout: &str| {
            serving(&json!({ "csiPlugin": { "pluginName": "p", "role": "Node", "healthTimeout": timeout } }))
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
            (serving(&json!({ "restartPolicy": "Always" })), &[]),
            (serving(&json!({ "restartPolicy": "OnFailure" })), &["spec.tasks[0].restartPolicy"]),
            (serving(&json!({ "restartPolicy": "Never" })), &["spec.tasks[0].restartPolicy"]),
            (json!({ "restartPolicy": "Never" }), &[]),
            (patient("0s"), &["spec.tasks[0].csiPlugin.healthTimeout"]),
            (patient("99ms"), &["spec.tasks[0].csiPlugin.healthTimeout"]),
            (patient("soon"), &["spec.tasks[0].csiPlugin.healthTimeout"]),
            (patient("100ms"), &[]),
            (serving(&json!({ "runtime": { "external": { "socket": "/run/x.sock" } } })), &[]),
            (
                serving(&json!({ "runtime": { "external": { "socket": "/run/../x.sock" } } })),
                &["spec.tasks[0].runtime.external.socket"],
            ),
            (json!({ "env": { "A=B": "x", "B C": "x" } }), &["spec.tasks[0].env[A=B]"]),
            (json!({ "stopGracePeriod": "24h" }), &[]),
            (json!({ "stopGracePeriod": "999999999h" }), &["spec.tasks[0].stopGracePeriod"]),
            (
                json!({ "runtime": { "process": { "command": ["x"], "workingDir": "rel" } } }),
                &["spec.tasks[0].runtime.process.workingDir"],
            ),
            (json!({ "runtime": { "process": { "command": ["x"], "workingDir": "${DATA_DIR}/x" } } }), &[]),
        ] {
            assert_eq!(paths(&allocation(&alloc(&task), None)), wanted, "{task}");
        }
        // What was taken before it was refused may change its block still.
        let never = |of: &str| {
            alloc(&serving(
                &json!({ "restartPolicy": "Never", "csiPlugin": { "pluginName": of, "role": "Node" } }),
            ))
        };
        assert!(allocation(&never("q"), Some(&never("p"))).is_empty());
    }
}
