//! `manifests/loop.yaml`: a driver that attaches and stages, with a file system and with a raw device, under one `up`.
use serde_json::json;

use crate::rig::{Rig, until};

const LOOP: &str = include_str!("../../manifests/loop.yaml");

/// A raw volume of the same class, and a task that copies from one volume to the other.
const RAW: &str = r#"
apiVersion: wharfline.dev/v1alpha1
kind: VolumeClaim
metadata:
  name: raw
spec:
  volumeClassName: loop
  volumeMode: Block
  accessModes: [SingleNodeWriter]
  resources:
    requests:
      storage: 8Mi
---
apiVersion: wharfline.dev/v1alpha1
kind: Allocation
metadata:
  name: copier
spec:
  volumes:
    - name: raw
      claimName: raw
  tasks:
    - name: copier
      runtime:
        process:
          command: [/bin/sh, -c, "echo raw bytes | dd of=/raw conv=fsync && exec sleep infinity"]
      volumeMounts:
        - name: raw
          mountPath: /raw
"#;

/// Loop devices over files beneath the data directory.
fn devices(rig: &Rig) -> Vec<String> {
    let all = std::fs::read_dir("/sys/block").unwrap().flatten();
    let files = all.filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok());
    files.filter(|file| std::path::Path::new(file.trim_end()).starts_with(rig.data.path())).collect()
}

fn target(rig: &Rig, allocation: &str) -> String {
    rig.get("allocation", allocation)["status"]["volumes"][0]["path"].as_str().unwrap().to_owned()
}

/// What the driver did, by the first words of its log.
fn deeds(rig: &Rig) -> Vec<String> {
    // What a task wrote to its standard error comes out there.
    let log = rig.try_run(&["logs", "plugin/loop"]).stderr;
    let log = String::from_utf8_lossy(&log);
    let words = ["created", "attached", "formatted", "staged", "published", "unpublished", "unstaged"];
    let words = words.iter().chain(&["detached", "deleted"]);
    let deed = |line: &str| {
        let said = line.split("INFO ").nth(1)?.split(' ').next()?.to_owned();
        words.clone().any(|word| *word == said).then_some(said)
    };
    log.lines().filter_map(deed).collect()
}

#[test]
fn attached_staged_published_and_all_the_way_back() {
    let mut rig = Rig::new();
    rig.up();
    rig.apply(LOOP);
    rig.wait_ready("allocation/writer");
    let report = std::path::Path::new(&target(&rig, "writer")).join("report");
    until("the task has written", || {
        std::fs::read_to_string(&report).is_ok_and(|text| text.contains("ext4"))
    });
    assert_eq!(devices(&rig).len(), 1);
    let attachment = &rig.list("volumeattachments")[0];
    assert_eq!(attachment["status"]["controller"]["attached"], "Up");
    assert_eq!(attachment["status"]["node"]["staged"], "Up");

    // All of it killed and begun again: nothing is attached, staged or formatted a second time.
    let mounts = rig.mounts();
    rig.kill();
    rig.up();
    rig.wait_ready("allocation/writer");
    rig.wait_ready("plugin/loop");
    assert_eq!((rig.mounts(), devices(&rig).len()), (mounts, 1));
    assert_eq!(deeds(&rig), ["created", "attached", "formatted", "staged", "published"]);

    rig.run(&["delete", "allocation", "writer"]);
    rig.run(&["delete", "volumeclaim", "disk"]);
    until("no volume is left", || rig.list("volumes").is_empty());
    let mirrored = ["unpublished", "unstaged", "detached", "deleted"];
    assert_eq!(deeds(&rig)[5..], mirrored);
    assert!(devices(&rig).is_empty());

    rig.apply(RAW);
    rig.wait_ready("allocation/copier");
    let device = target(&rig, "copier");
    until("the task has written", || std::fs::read(&device).is_ok_and(|all| all.starts_with(b"raw bytes\n")));
    rig.run(&["delete", "-f", rig.data.path().with_extension("yaml").to_str().unwrap()]);
    until("no volume is left", || rig.list("volumes").is_empty());
    assert_eq!(deeds(&rig)[9..], [&["created", "attached", "staged", "published"], &mirrored[..]].concat());
    assert!(devices(&rig).is_empty());
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
    assert_eq!(std::fs::read_dir(rig.data.path().join("drivers/loop/volumes")).unwrap().count(), 0);
}

/// Scenario B93.
/// Written, taken off the node altogether, and read by somebody else.
#[test]
fn files_of_several_sizes_are_the_same_after_the_volume_was_mounted_anew() {
    const REPORT: &str = "df -T /disk >> /disk/report && exec sleep infinity";
    const WRITE: &str = "cd /disk && for size in 1 4096 1048576 8388608; do head -c $size /dev/urandom > $size; done \
                         && sha256sum 1 4096 1048576 8388608 > sums && sync && echo written && exec sleep infinity";
    const READ: &str = "cd /disk && wc -c 1 4096 1048576 8388608 && sha256sum -c sums && exec sleep infinity";
    let mut rig = Rig::new();
    rig.up();
    assert!(LOOP.contains(REPORT));
    rig.apply(&LOOP.replace(REPORT, WRITE));
    rig.wait_ready("allocation/writer");
    until("the files are written", || rig.run(&["logs", "writer"]) == "written\n");
    rig.run(&["delete", "allocation", "writer"]);
    until("nothing is attached", || rig.list("volumeattachments").is_empty() && devices(&rig).is_empty());
    let (_, allocation) = LOOP.rsplit_once("---\n").unwrap();
    rig.apply(&allocation.replace(REPORT, READ).replace("writer", "reader"));
    rig.wait_ready("allocation/reader");
    until("the files are read", || rig.run(&["logs", "reader"]).lines().count() == 9);
    let read = rig.run(&["logs", "reader"]);
    let lines: Vec<Vec<&str>> = read.lines().map(|line| line.split_whitespace().collect()).collect();
    for (n, size) in ["1", "4096", "1048576", "8388608"].into_iter().enumerate() {
        assert_eq!(lines[n], [size, size], "{read}");
        assert_eq!(lines[n + 5], [format!("{size}:").as_str(), "OK"], "{read}");
    }
    let first =
        ["created", "attached", "formatted", "staged", "published", "unpublished", "unstaged", "detached"];
    assert_eq!(deeds(&rig), [&first[..], &["attached", "staged", "published"]].concat());
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
}

/// How many bytes the file system at the allocation's path has in all.
fn room(rig: &Rig, allocation: &str) -> u64 {
    let found = rustix::fs::statvfs(target(rig, allocation)).unwrap();
    found.f_blocks * found.f_frsize
}

/// Scenario B100.
/// What was pictured of 64 MiB is in a file system of the size that was asked for.
#[test]
fn a_file_system_that_is_restored_to_a_larger_volume_has_all_of_it() {
    let mut rig = Rig::new();
    rig.up();
    rig.apply(LOOP);
    rig.wait_ready("allocation/writer");
    let report = |allocation: &str| std::path::Path::new(&target(&rig, allocation)).join("report");
    until("the task has written", || {
        std::fs::read_to_string(report("writer")).is_ok_and(|text| text.contains("ext4"))
    });
    rustix::fs::syncfs(std::fs::File::open(report("writer")).unwrap()).unwrap();
    let written = std::fs::read(report("writer")).unwrap();
    let picture = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot", "metadata": { "name": "small" },
        "spec": { "source": { "claimName": "disk" } } });
    rig.apply(&picture.to_string());
    rig.wait_ready("snapshot/small");
    let larger = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClaim",
        "metadata": { "name": "larger" }, "spec": { "volumeClassName": "loop",
        "dataSource": { "snapshotName": "small" }, "accessModes": ["SingleNodeWriter"],
        "resources": { "requests": { "storage": "256Mi" } } } });
    let user = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
        "metadata": { "name": "reader" }, "spec": { "volumes": [{ "name": "disk", "claimName": "larger" }] } });
    rig.apply(&format!("{larger}\n---\n{user}"));
    rig.wait_ready("allocation/reader");
    assert_eq!(std::fs::read(report("reader")).unwrap(), written);
    let (small, large) = (room(&rig, "writer"), room(&rig, "reader"));
    assert!(small < 64 << 20 && large > 200 << 20, "{small} and {large} bytes");
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
}
