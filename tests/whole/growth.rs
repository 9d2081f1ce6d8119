//! Claims that ask for more while they are used: `csi loop`, with a file system that grows under its user, and with one that
//! may have to be staged anew for it.
use serde_json::{Value, json};

use crate::rig::{Rig, until};

/// A driver that finds what makes file systems where these tests do, a class that lets volumes grow, and one user.
fn manifest(fs: &str, allowed: bool) -> String {
    let objects = [
        json!({ "kind": "Plugin", "metadata": { "name": "loop" }, "spec": { "instances": [{ "name": "all",
            "role": "Monolith", "placement": { "everyNode": {} }, "env": { "PATH": std::env::var("PATH").unwrap() },
            "runtime": { "process": { "command":
                ["wharfline", "csi", "loop", "--data-dir", "${DATA_DIR}/drivers/loop"] } } }] } }),
        json!({ "kind": "VolumeClass", "metadata": { "name": "loop" }, "spec": { "plugin": "loop", "fsType": fs,
            "allowVolumeExpansion": allowed } }),
        json!({ "kind": "VolumeClaim", "metadata": { "name": "disk" }, "spec": { "volumeClassName": "loop",
            "accessModes": ["SingleNodeWriter"], "resources": { "requests": { "storage": "320Mi" } } } }),
        json!({ "kind": "Allocation", "metadata": { "name": "user" }, "spec": {
            "volumes": [{ "name": "disk", "claimName": "disk" }],
            "tasks": [{ "name": "user", "volumeMounts": [{ "name": "disk", "mountPath": "/disk" }], "runtime":
                { "process": { "command": ["/bin/sh", "-c", "echo kept > /disk/file && exec sleep infinity"] } } }] } }),
    ];
    let text = |mut object: Value| {
        object["apiVersion"] = json!("wharfline.dev/v1alpha1");
        format!("{object}\n---\n")
    };
    objects.into_iter().map(text).collect()
}

fn started(fs: &str, allowed: bool) -> Rig {
    let mut rig = Rig::new();
    rig.up();
    rig.apply(&manifest(fs, allowed));
    rig.wait_ready("allocation/user");
    rig
}

fn ask_for(rig: &Rig, size: &str) -> std::process::Output {
    let patch = json!({ "spec": { "resources": { "requests": { "storage": size } } } }).to_string();
    rig.try_run(&["patch", "volumeclaim", "disk", "-p", &patch])
}

/// What its user sees of the volume, in MiB.
fn size(rig: &Rig) -> u64 {
    let path = rig.get("allocation", "user")["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    let of = rustix::fs::statvfs(path).unwrap();
    (of.f_blocks * of.f_frsize) >> 20
}

fn status(rig: &Rig) -> Value {
    rig.get("volumeclaim", "disk")["status"].clone()
}

fn expanded(rig: &Rig) -> Value {
    let conditions = status(rig)["conditions"].clone();
    let found = conditions.as_array().into_iter().flatten().find(|c| c["type"] == "Expanded");
    found.cloned().unwrap_or_default()
}

fn shows(rig: &Rig, capacity: &str) {
    until(&format!("the claim shows {capacity}"), || status(rig)["capacity"] == capacity);
    until("nothing is told of an expansion", || expanded(rig).is_null());
}

fn ended(mut rig: Rig) {
    rig.run(&["delete", "allocation", "user"]);
    rig.run(&["delete", "volumeclaim", "disk"]);
    until("no volume is left", || rig.list("volumes").is_empty());
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
}

/// Scenarios A35, B105, B108.
/// No daemon that dies meanwhile makes a difference.
#[test]
fn a_volume_grows_under_its_running_task() {
    let mut rig = started("xfs", true);
    let before = (size(&rig), rig.mounts(), rig.get("allocation", "user")["status"]["tasks"].clone());
    assert!((250..=320).contains(&before.0), "{}", before.0);
    assert!(ask_for(&rig, "640Mi").status.success());
    shows(&rig, "640Mi");
    assert!((550..=640).contains(&size(&rig)), "{}", size(&rig));
    assert_eq!(
        (rig.mounts(), rig.get("allocation", "user")["status"]["tasks"].clone()),
        (before.1, before.2)
    );
    rig.kill();
    rig.up();
    assert!(ask_for(&rig, "800Mi").status.success());
    shows(&rig, "800Mi");
    assert!(size(&rig) > 650, "{}", size(&rig));
    // It has that now.
    let refused = ask_for(&rig, "650Mi");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("a volume cannot shrink: it has 800Mi"), "{said}");
    ended(rig);
}

/// Scenarios B104, B106.
/// A person who allows it need do nothing else.
#[test]
fn a_class_that_does_not_let_volumes_grow_says_so_until_it_does() {
    let rig = started("ext4", false);
    assert!(ask_for(&rig, "400Mi").status.success());
    until("why is told", || expanded(&rig)["reason"] == "ExpansionNotAllowed");
    let why = rig.try_run(&["why", "volumeclaim/disk"]).stdout;
    let why = String::from_utf8_lossy(&why).into_owned();
    assert!(why.contains("has 320Mi of 400Mi: class \"loop\" does not allow expansion"), "{why}");
    assert_eq!(rig.get("volumeclaim", "disk")["status"]["phase"], "Bound");
    // Taken back, it is as it was.
    assert!(ask_for(&rig, "320Mi").status.success());
    until("nothing is told", || expanded(&rig).is_null());
    assert!(ask_for(&rig, "400Mi").status.success());
    rig.run(&["patch", "volumeclass", "loop", "-p", r#"{"spec":{"allowVolumeExpansion":true}}"#]);
    // With the right that ext4 wants it grows at once; without, when it is staged anew.
    let online = rustix::thread::capabilities(None)
        .unwrap()
        .effective
        .contains(rustix::thread::CapabilitySet::SYS_RESOURCE);
    if !online {
        until("its node cannot as it is", || {
            expanded(&rig)["message"].as_str().is_some_and(|m| m.contains("node \"node-a\""))
        });
        assert_eq!(
            (&status(&rig)["capacity"], &status(&rig)["allocated"]),
            (&json!("320Mi"), &json!("400Mi"))
        );
        let why = rig.try_run(&["why", "volumeclaim/disk"]).stdout;
        let why = String::from_utf8_lossy(&why).into_owned();
        assert!(why.contains("grows when it is staged the next time"), "{why}");
        rig.run(&["patch", "allocation", "user", "-p", r#"{"spec":{"stop":true}}"#]);
        until("it is stopped", || rig.get("allocation", "user")["status"]["phase"] == "Stopped");
        until("nobody has the volume", || rig.list("volumeattachments").is_empty());
        rig.run(&["patch", "allocation", "user", "-p", r#"{"spec":{"stop":false}}"#]);
        rig.wait_ready("allocation/user");
    }
    shows(&rig, "400Mi");
    assert!(size(&rig) > 340, "{}", size(&rig));
    let path = rig.get("allocation", "user")["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    assert_eq!(std::fs::read_to_string(std::path::Path::new(&path).join("file")).unwrap(), "kept\n");
    ended(rig);
}
