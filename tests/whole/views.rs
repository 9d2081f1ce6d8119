//! Drivers whose containers have the tree of volumes at another path than the node.
use std::path::Path;

use serde_json::{Value, json};

use crate::containers::{Driver, lent, processes_in_containers};
use crate::rig::{Rig, until};

/// Where the drivers' containers have the tree.
const BASE: &str = "/inside/volumes";

/// The paths beneath [`BASE`] at which something is mounted in a container, each once.
fn mounts_inside(rig: &Rig) -> Vec<String> {
    let mut all = Vec::new();
    for process in processes_in_containers(rig) {
        let table = std::fs::read_to_string(Path::new("/proc").join(process).join("mountinfo"));
        let points = table.unwrap_or_default();
        let points = points.lines().filter_map(|line| line.split(' ').nth(4));
        all.extend(points.filter_map(|point| point.strip_prefix(BASE)).map(str::to_owned));
    }
    all.sort();
    all.dedup();
    all
}

/// The paths beneath the node's tree at which something is mounted there.
fn mounts_of_the_node(rig: &Rig) -> Vec<String> {
    let tree = rig.data.path().join("volumes").to_string_lossy().into_owned();
    let points = rig.mounts().into_iter().filter_map(|line| line.split(' ').nth(1).map(str::to_owned));
    let mut all: Vec<_> = points.filter_map(|point| point.strip_prefix(&tree).map(str::to_owned)).collect();
    all.sort();
    all.dedup();
    all
}

/// The loop driver in a container of busybox, which attaches and stages, and a task of the node that uses a volume.
fn loop_manifest() -> String {
    let documents = include_str!("../../manifests/loop.yaml").split("---\n").collect::<Vec<_>>();
    let mut paths: Vec<Value> =
        lent().map(|(path, at)| json!({ "path": path, "mountPath": at, "readOnly": true })).into();
    // mkfs.ext4 is the node's.
    paths.push(json!({ "path": "/usr/sbin", "mountPath": "/usr/sbin", "readOnly": true }));
    paths.push(json!({ "path": "${DATA_DIR}/drivers", "mountPath": "/volumes" }));
    let runtime = json!({ "archive": "${DATA_DIR}/image-archives/busybox.tar", "privileged": true,
        "hostDevices": true, "hostPaths": paths,
        "command": ["/program/wharfline", "csi", "loop", "--data-dir", "/volumes/loop"] });
    let plugin = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin", "metadata": { "name": "loop" },
        "spec": { "instances": [{ "name": "all", "role": "Monolith", "placement": { "everyNode": {} },
            "mountDir": "/csi", "stagePublishBaseDir": BASE, "runtime": { "oci": runtime } }] } });
    [&[plugin.to_string().as_str()], &documents[1..]].concat().join("\n---\n")
}

/// Whether the journal keeps the view of a plugin's instance.
fn kept(rig: &Rig) -> bool {
    let journal = std::fs::read(rig.data.path().join("journal")).unwrap();
    String::from_utf8_lossy(&journal).contains(&format!("\"stagePublishBaseDir\":\"{BASE}\""))
}

/// Obligation CO-PLUG-11.
#[test]
fn a_driver_stages_and_publishes_where_its_container_has_the_tree() {
    let mut rig = Rig::new();
    let more = ["--allow-privileged", "--bind-path", "/usr/sbin"];
    Driver::Lent.up_with(&mut rig, &more);
    rig.apply(&loop_manifest());
    rig.wait_ready("allocation/writer");
    let target = rig.get("allocation", "writer")["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    assert!(Path::new(&target).starts_with(rig.data.path()), "people are told the node's path: {target}");
    let report = Path::new(&target).join("report");
    until("the task has written", || {
        std::fs::read_to_string(&report).is_ok_and(|text| text.contains("ext4"))
    });
    let inside = mounts_inside(&rig);
    assert_eq!(inside.len(), 3, "the tree, the stage and the target: {inside:?}");
    assert_eq!(inside, mounts_of_the_node(&rig));
    assert!(kept(&rig));

    // The next daemon knows it from its journal.
    let mounts = rig.mounts();
    rig.kill();
    Driver::Lent.up_with(&mut rig, &more);
    rig.wait_ready("allocation/writer");
    rig.wait_ready("plugin/loop");
    assert_eq!(rig.mounts(), mounts);
    rig.run(&["delete", "allocation", "writer"]);
    rig.run(&["delete", "volumeclaim", "disk"]);
    until("no volume is left", || rig.list("volumes").is_empty());
    assert_eq!(mounts_inside(&rig), [""], "the tree alone");
    rig.run(&["delete", "plugin/loop", "volumeclass/loop"]);
    until("no plugin is left", || rig.list("plugins").is_empty() && rig.list("allocations").is_empty());
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
}

/// The path may be another one after an update: each process is told its own, and the next one takes down at its own path
/// what the former one has mounted.
#[test]
fn a_driver_takes_down_at_its_path_what_another_one_mounted_at_its_own() {
    let mut rig = Rig::new();
    Driver::Lent.up(&mut rig);
    rig.apply(&Driver::Lent.manifest());
    rig.wait_ready("allocation/hello");
    assert_eq!(mounts_inside(&rig), Vec::<String>::new(), "it is at the node's path");
    rig.apply(&Driver::Lent.manifest_with(&json!({ "stagePublishBaseDir": BASE })));
    until("the next one runs alone", || {
        let all = rig.list("plugininstances");
        all.len() == 1 && kept(&rig)
    });
    rig.wait_ready("plugin/dir");
    assert_eq!(crate::quickstart::greeting(&rig), "hello from wharfline\n");
    assert_eq!(mounts_inside(&rig), mounts_of_the_node(&rig));
    rig.run(&["delete", "allocation/hello", "volumeclaim/data", "volumeclass/dir", "plugin/dir"]);
    for kind in ["volumes", "allocations", "plugins"] {
        until(&format!("no {kind} are left"), || rig.list(kind).is_empty());
    }
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
}
