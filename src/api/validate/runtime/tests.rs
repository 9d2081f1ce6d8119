//! One table for each rule: what is given, and what is said of it.
use serde_json::{Value, json};

use super::super::{allocation, plugin};
use crate::api::FieldError;

/// What is said, without the path of the task or instance.
fn said(faults: &[FieldError]) -> Vec<String> {
    let lines = faults.iter().map(ToString::to_string);
    lines.map(|line| line.replace("spec.tasks[0].", "").replace("spec.instances[0].", "")).collect()
}

/// Faults of a task with these fields that may mount the volumes `a` and `b`.
fn of_task(fields: &Value) -> Vec<String> {
    let mut task = json!({ "name": "t" });
    task.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let volumes = json!([{ "name": "a", "claimName": "c" }, { "name": "b", "claimName": "d" }]);
    said(&allocation(&json!({ "spec": { "volumes": volumes, "tasks": [task] } }), None))
}

/// Faults of an instance of a plugin.
fn of_instance(fields: &Value) -> Vec<String> {
    let mut entry = json!({ "name": "t", "role": "Monolith" });
    entry.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    said(&plugin(&json!({ "spec": { "instances": [entry] } }), None))
}

/// Of a process on the host: another word is another way to run the same.
fn process(fields: &Value) -> Vec<String> {
    let mut block = json!({ "command": ["x"] });
    block.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let of = |runtime: &str| of_task(&json!({ "runtime": { runtime: block } }));
    let said = of("process");
    let in_a_unit: Vec<_> =
        said.iter().map(|line| line.replace("runtime.process", "runtime.systemd")).collect();
    assert_eq!(of("systemd"), in_a_unit);
    said
}

#[test]
fn a_process_has_a_program() {
    let needed = "runtime.process.command: needs at least the program to run";
    for (command, wanted) in [
        (json!([]), Some(needed)),
        (json!([""]), Some(needed)),
        (json!(null), Some(needed)),
        (json!(["a", ""]), None),
    ] {
        let wanted: Vec<_> = wanted.into_iter().collect();
        assert_eq!(process(&json!({ "command": command })), wanted, "{command}");
    }
    let both = json!({ "runtime": { "process": { "command": ["x"] }, "systemd": { "command": ["x"] } } });
    assert!(of_task(&both)[0].starts_with("runtime: "), "{:?}", of_task(&both));
}

fn container(fields: &Value) -> Value {
    let mut block = json!({ "archive": "/a.tar" });
    block.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "oci": block })
}

/// The two runtimes of containers are told the same, and of each the same is said.
fn oci(fields: &Value) -> Vec<String> {
    let runtime = container(fields);
    let said = of_task(&json!({ "runtime": runtime }));
    let other = of_task(&json!({ "runtime": { "containerd": runtime["oci"] } }));
    let other: Vec<_> = other.iter().map(|line| line.replace("runtime.containerd", "runtime.oci")).collect();
    assert_eq!(other, said);
    said
}

#[test]
fn what_says_nothing_is_not_refused() {
    let process = json!({ "command": ["x"], "user": "", "groups": [], "capabilities": null });
    let mounts = json!([{ "name": "a", "mountPath": "/v", "subPath": "" }]);
    let none: [&str; 0] = [];
    assert_eq!(of_task(&json!({ "runtime": { "process": process }, "volumeMounts": mounts })), none);
    let both = json!({ "oci": { "archive": "/a" }, "containerd": { "archive": "/a" } });
    assert!(of_task(&json!({ "runtime": both }))[0].starts_with("runtime: "));
}

/// Values, and what is said of each of them.
type Row<'a> = (&'a [&'a str], &'a str);

/// Each value is refused with the message, in which `{v}` is the value, or taken where there is none.
fn table(path: &str, check: impl Fn(&str) -> Vec<String>, rows: &[Row<'_>]) {
    for (values, message) in rows {
        for value in *values {
            let wanted = match *message {
                "" => Vec::new(),
                message => vec![format!("{path}: {}", message.replace("{v}", value))],
            };
            assert_eq!(check(value), wanted, "{value:?}");
        }
    }
}

#[test]
fn a_user_is_a_name_or_a_number_and_so_is_its_group() {
    let rows: &[Row<'_>] = &[
        (&["", "root", "_apt", "a-b.c_9", "0", "1000:1000", "app:disk", "app:6", "4294967294"], ""),
        (
            &[
                "App",
                "-a",
                "9a",
                "a b",
                ":",
                "a:",
                ":a",
                "a:b:c",
                "4294967295",
                "+1",
                "é",
                "a/b",
                "root:4294967295",
            ],
            "\"{v}\" must be USER or USER:GROUP, each a name or a number",
        ),
    ];
    table("runtime.process.user", |v| process(&json!({ "user": v })), rows);
    table("runtime.oci.user", |v| oci(&json!({ "user": v })), rows);
}

#[test]
fn a_group_is_a_name_or_a_number() {
    let rows: &[Row<'_>] = &[
        (&["disk", "6", "4294967294"], ""),
        (&["", "a:b", "Disk", "4294967295", "-1"], "\"{v}\" must be a group's name or number"),
    ];
    table("runtime.process.groups[1]", |v| process(&json!({ "groups": ["a", v] })), rows);
    table("runtime.oci.groups[1]", |v| oci(&json!({ "groups": ["a", v] })), rows);
}

#[test]
fn capabilities_have_the_kernels_names() {
    let rows: &[Row<'_>] = &[
        (&["NET_ADMIN", "ALL", "CHECKPOINT_RESTORE"], ""),
        (
            &["", "CAP_NET_ADMIN", "net_admin", "NET", "all"],
            "\"{v}\" is not a capability; write it without CAP_, such as NET_ADMIN, or ALL",
        ),
    ];
    for list in ["add", "drop"] {
        let block = |v: &str| json!({ "capabilities": { list: ["KILL", v] } });
        table(&format!("runtime.process.capabilities.{list}[1]"), |v| process(&block(v)), rows);
        table(&format!("runtime.oci.capabilities.{list}[1]"), |v| oci(&block(v)), rows);
    }
}

#[test]
fn limits_are_amounts_that_a_program_can_live_with() {
    let tables: [(&str, &[Row<'_>]); 3] = [
        (
            "memory",
            &[
                (&["", "4Mi", "256Mi", "1.5Gi", "4194304"], ""),
                (
                    &["4Mi0", "much"],
                    "\"{v}\" is not a size; write a number with a unit such as 500Mi or 10Gi",
                ),
                (&["4194303", "0", "1k"], "must be at least 4Mi: less does not start a program"),
            ],
        ),
        (
            "cpu",
            &[
                (&["", "10m", "0.01", "500m", "2", "1.5"], ""),
                (&["half", "2k", "-1", "1,5"], "\"{v}\" is not an amount of CPU; write 500m or 2"),
                (&["9m", "0", "0.009"], "must be at least 10m"),
            ],
        ),
        (
            "pids",
            &[
                (&["", "1", "200", "4194304"], ""),
                (&["0", "4194305", "-1", "1k", "many"], "must be a number from 1 to 4194304"),
            ],
        ),
    ];
    for (name, rows) in tables {
        let path = format!("resources.limits.{name}");
        let with =
            |v: &str, runtime: Value| json!({ "runtime": runtime, "resources": { "limits": { name: v } } });
        table(&path, |v| of_task(&with(v, json!({ "process": { "command": ["x"] } }))), rows);
        table(&path, |v| of_task(&with(v, container(&json!({})))), rows);
        table(&path, |v| of_instance(&with(v, container(&json!({})))), rows);
    }
}

#[test]
fn what_something_else_runs_is_limited_there() {
    let fields =
        json!({ "runtime": { "external": { "socket": "/s" } }, "resources": { "limits": { "pids": "9" } } });
    let wanted = ["resources: something else runs the task; limit it there"];
    assert_eq!(of_instance(&fields), wanted);
    let mut task = fields;
    task["csiPlugin"] = json!({ "pluginName": "p", "role": "Node" });
    assert_eq!(of_task(&task), wanted);
}

#[test]
fn an_image_lies_on_the_node() {
    let absolute = "must be an absolute path without \"..\"";
    table(
        "runtime.oci.archive",
        |v| oci(&json!({ "archive": v })),
        &[
            (&["/srv/a.tar", "/", "${DATA_DIR}/images/${NODE_NAME}.tar", "/srv/${NODE_NAME}"], ""),
            (&[""], "is needed: no registry is asked; name the image's directory or tar on the node"),
            (&["a.tar", "/srv/../a", "/a\0", "${DATA_DIR}a", "${DATA_DIR}/../a", "${NODE_NAME}/a"], absolute),
        ],
    );
    table(
        "runtime.oci.image",
        |v| oci(&json!({ "image": v })),
        &[
            (&["", "registry.k8s.io/sig-storage/nfsplugin:v4.9.0", &"x".repeat(255)], ""),
            (&["a\nb", "\u{7f}", &"x".repeat(256)], "cannot be the name of an image"),
        ],
    );
    table(
        "runtime.oci.workingDir",
        |v| oci(&json!({ "workingDir": v })),
        &[(&["", "/", "/srv/app"], ""), (&["srv", "/a/../b", "/\0"], absolute)],
    );
}

#[test]
fn devices_lie_below_dev() {
    table(
        "runtime.oci.devices[0]",
        |v| oci(&json!({ "devices": [v] })),
        &[
            (&["/dev/fuse", "/dev/mapper/control"], ""),
            (
                &["", "/dev", "/dev/", "dev/fuse", "/etc/fuse", "/dev/../etc", "/devs/a", "/dev/a\0"],
                "must be a device below /dev",
            ),
        ],
    );
}

#[test]
fn privileged_needs_nothing_more_and_is_needed_for_the_nodes_processes() {
    for (fields, wanted) in [
        (json!({ "privileged": true, "hostPid": true, "capabilities": { "add": ["ALL"] } }), ""),
        (json!({ "devices": ["/dev/fuse"], "capabilities": { "drop": ["ALL"] } }), ""),
        (
            json!({ "privileged": true, "devices": ["/dev/fuse"] }),
            "devices: privileged has them all; leave it out",
        ),
        (
            json!({ "privileged": true, "capabilities": { "drop": ["KILL"] } }),
            "capabilities.drop: privileged has them all; leave it out",
        ),
        (json!({ "hostPid": true }), "hostPid: needs privileged: it reaches every process of the node"),
    ] {
        let wanted: Vec<_> =
            Some(wanted).filter(|w| !w.is_empty()).map(|w| format!("runtime.oci.{w}")).into_iter().collect();
        assert_eq!(oci(&fields), wanted, "{fields}");
    }
}

const BELOW_ROOT: &str = "must be an absolute path below / without \"..\"";

#[test]
fn paths_of_the_node_and_of_the_container_are_absolute() {
    let rows: &[Row<'_>] =
        &[(&["/lib/modules", "/dev/mapper"], ""), (&["", "/", "//.", "lib", "/a/../b", "/a\0"], BELOW_ROOT)];
    let host = |path: &str, at: &str| oci(&json!({ "hostPaths": [{ "path": path, "mountPath": at }] }));
    table("runtime.oci.hostPaths[0].path", |v| host(v, "/x"), rows);
    let paths = ["/proc", "/sys/fs", "/dev", "${DATA_DIR}/a", "/srv/${NODE_NAME}"];
    table("runtime.oci.hostPaths[0].path", |v| host(v, "/x"), &[(&paths, "")]);
    let bad = ["${DATA_DIR}", "${DATA_DIR}/..", "${DATA_DIR}a"];
    table("runtime.oci.hostPaths[0].path", |v| host(v, "/x"), &[(&bad, BELOW_ROOT)]);
    table("runtime.oci.hostPaths[0].mountPath", |v| host("/x", v), rows);
    let mount = |v: &str| {
        of_task(
            &json!({ "runtime": container(&json!({})), "volumeMounts": [{ "name": "a", "mountPath": v }] }),
        )
    };
    table("volumeMounts[0].mountPath", mount, rows);
}

#[test]
fn what_is_the_containers_own_stays_its_own() {
    let rows: &[Row<'_>] = &[
        (&["/dev/xvda", "/procs", "/a/proc", "/system"], ""),
        (
            &["/proc", "/proc/1", "//proc/", "/sys", "/sys/fs/x", "/dev", "/dev/."],
            "is the container's own; choose another path",
        ),
    ];
    let host = |v: &str| oci(&json!({ "hostPaths": [{ "path": "/x", "mountPath": v }] }));
    table("runtime.oci.hostPaths[0].mountPath", host, rows);
    let mounts = |v: &str| json!([{ "name": "a", "mountPath": v }]);
    table(
        "volumeMounts[0].mountPath",
        |v| of_task(&json!({ "runtime": container(&json!({})), "volumeMounts": mounts(v) })),
        rows,
    );
    let alive =
        |v: &str| oci(&json!({ "hostDevices": true, "hostPaths": [{ "path": "/x", "mountPath": v }] }));
    let in_dev = "lies in the node's /dev with hostDevices; choose another path";
    let own = "is the container's own; choose another path";
    table(
        "runtime.oci.hostPaths[0].mountPath",
        alive,
        &[(&["/dev/xvda", "/dev/shm"], in_dev), (&["/dev", "/proc"], own), (&["/devs"], "")],
    );
    for field in ["mountDir", "stagePublishBaseDir"] {
        table(field, |v| of_instance(&json!({ "runtime": container(&json!({})), field: v })), rows);
    }
    // The host's root is no container.
    let on_host = |v: &str| {
        of_task(&json!({ "runtime": { "process": { "command": ["x"] } }, "volumeMounts": mounts(v) }))
    };
    assert_eq!(on_host("/dev"), [""; 0]);
}

#[test]
fn nothing_is_mounted_over_something_else() {
    let task = json!({
        "runtime": container(&json!({ "hostPaths": [
            { "path": "/h", "mountPath": "/data/" }, { "path": "/h", "mountPath": "/run/./x" }, { "path": "/h", "mountPath": "/data/in" }] })),
        "volumeMounts": [{ "name": "a", "mountPath": "/data" }, { "name": "b", "mountPath": "//data" }],
    });
    let mut expected = vec![
        "volumeMounts[1].mountPath: volumeMounts[0] is mounted there already, and would be hidden".to_owned(),
        "runtime.oci.hostPaths[0].mountPath: volumeMounts[0] is mounted there already, and would be hidden"
            .to_owned(),
    ];
    assert_eq!(of_task(&task), expected);
    let mut instance = task;
    instance["volumeMounts"] = Value::Null;
    instance["mountDir"] = json!("/run/x");
    instance["stagePublishBaseDir"] = json!("/run/x/");
    expected = ["mountDir", "stagePublishBaseDir"]
        .map(|f| format!("{f}: runtime.oci.hostPaths[1] is mounted there already, and would be hidden"))
        .into();
    assert_eq!(of_instance(&instance), expected);
    let mut task = instance;
    task["csiPlugin"] =
        json!({ "pluginName": "p", "role": "Node", "mountDir": "/csi", "stagePublishBaseDir": "/csi" });
    let wanted =
        "csiPlugin.stagePublishBaseDir: csiPlugin.mountDir is mounted there already, and would be hidden";
    assert_eq!(of_task(&task), [wanted]);
}

/// What a driver mounts in the tree is mounted on the node; so would be whatever else was mounted there.
#[test]
fn nothing_is_mounted_where_it_would_reach_the_node() {
    for (at, propagation, mount_dir, base, wanted) in [
        ("/h", "None", "/csi", "/data", vec![]),
        ("/h", "None", "/h/csi", "/data", vec![]),
        ("/h", "None", "/data/csi", "/data", vec![("mountDir", "stagePublishBaseDir")]),
        (
            "/data/./h",
            "None",
            "/csi",
            "/data/",
            vec![("runtime.oci.hostPaths[0].mountPath", "stagePublishBaseDir")],
        ),
        ("/h", "HostToContainer", "/csi", "/h/data", vec![]),
        ("/h", "Bidirectional", "/csi", "/h/data", vec![("stagePublishBaseDir", "runtime.oci.hostPaths[0]")]),
        ("/h", "Bidirectional", "/h/csi", "/hdata", vec![("mountDir", "runtime.oci.hostPaths[0]")]),
        ("/h", "Bidirectional", "/csi", "/data", vec![]),
    ] {
        let host = json!({ "path": "/x", "mountPath": at, "propagation": propagation });
        let instance = json!({ "role": "Node", "runtime": container(&json!({ "hostPaths": [host] })),
            "mountDir": mount_dir, "stagePublishBaseDir": base });
        let line = |(field, open): &(&str, &str)| {
            format!("{field}: lies in {open}: what is mounted there is mounted on the node, too")
        };
        let wanted: Vec<_> = wanted.iter().map(line).collect();
        assert_eq!(of_instance(&instance), wanted, "{instance}");
    }
}

/// Scenario B95.
#[test]
fn a_directory_of_a_volume_lies_in_it() {
    let mounts = |v: &str| json!([{ "name": "a", "mountPath": "/a", "subPath": v }]);
    let long = "x/".repeat(2048) + "x";
    table(
        "volumeMounts[0].subPath",
        |v| of_task(&json!({ "runtime": { "process": { "command": ["x"] } }, "volumeMounts": mounts(v) })),
        &[
            (&["", "app/data", "..a/b..", &long[2..]], ""),
            (
                &["/app", "app/", "a//b", ".", "a/.", "..", "a/../b", "a\0", &long],
                "must be a relative path of names, without \"..\", \".\" and empty parts, such as app/data",
            ),
        ],
    );
}

/// The fields of a plugin's paths in a task and in an instance are under the same rules, in the same words.
#[test]
fn a_drivers_paths_inside_are_a_containers() {
    let own_root = "speaks of a container's own root; a process has the host's, leave it out";
    let elsewhere = "something else runs the driver; it says itself where its paths are";
    let controller = "stages and publishes nothing; leave it out";
    let longest = format!("/{}", "x".repeat(97));
    let too_long = format!("{longest}x");
    let process = json!({ "process": { "command": ["x"] } });
    let external = json!({ "external": { "socket": "/s" } });
    let container = container(&json!({}));
    let socket = "its socket's path would have 108 bytes; a Unix socket's may have 107";
    for (runtime, role, field, value, wanted) in [
        (&process, "Node", "mountDir", "/csi", own_root),
        (&process, "Node", "stagePublishBaseDir", "/csi", own_root),
        (&json!({ "systemd": { "command": ["x"] } }), "Node", "mountDir", "/csi", own_root),
        (&external, "Node", "mountDir", "/csi", elsewhere),
        (&external, "Node", "stagePublishBaseDir", "/csi", elsewhere),
        (&container, "Node", "mountDir", "csi", BELOW_ROOT),
        (&container, "Node", "mountDir", "/a/../b", BELOW_ROOT),
        (&container, "Node", "mountDir", "/", BELOW_ROOT),
        (&container, "Node", "stagePublishBaseDir", "csi", BELOW_ROOT),
        (&container, "Node", "mountDir", "/csi/", ""),
        (&container, "Node", "mountDir", &longest, ""),
        (&container, "Node", "mountDir", &too_long, socket),
        (&container, "Node", "stagePublishBaseDir", &too_long, ""),
        (&container, "Controller", "mountDir", "/csi", ""),
        (&container, "Controller", "stagePublishBaseDir", "/csi", controller),
        (&container, "Monolith", "stagePublishBaseDir", "/csi", ""),
    ] {
        let lines = |at: &str| match wanted {
            "" => Vec::new(),
            wanted => vec![format!("{at}{field}: {wanted}")],
        };
        let task =
            json!({ "runtime": runtime, "csiPlugin": { "pluginName": "p", "role": role, field: value } });
        assert_eq!(of_task(&task), lines("csiPlugin."), "{runtime} {role} {field} {value}");
        let instance = json!({ "runtime": runtime, "role": role, field: value });
        assert_eq!(of_instance(&instance), lines(""), "{runtime} {role} {field} {value}");
    }
}
