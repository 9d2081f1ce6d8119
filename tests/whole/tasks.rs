//! What a task is given beside its volumes: limits, a user, a directory of a volume.
use serde_json::json;

use crate::quickstart::QUICKSTART;
use crate::rig::{Rig, until};

#[test]
fn a_task_has_its_user_its_limits_and_a_directory_of_its_volume() {
    let mut rig = Rig::new();
    rig.up();
    let before = QUICKSTART.rsplit_once("---").unwrap().0;
    let script =
        "id -u; grep -o wharfline /proc/self/cgroup | sort -u; ls -A /data | wc -l; exec sleep infinity";
    let hello = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
        "metadata": { "name": "hello", "namespace": "default" },
        "spec": { "volumes": [{ "name": "data", "claimName": "data" }], "tasks": [{ "name": "reader",
            "runtime": { "process": { "command": ["/bin/sh", "-c", script], "user": "65534:65534" } },
            "resources": { "limits": { "memory": "64Mi", "cpu": "500m", "pids": "20" } },
            "volumeMounts": [{ "name": "data", "mountPath": "/data", "subPath": "app/db" }] }] } });
    rig.apply(&format!("{before}---\n{hello}"));
    rig.wait_ready("allocation/hello");
    until("it has said all", || rig.run(&["logs", "hello"]).lines().count() == 3);
    assert_eq!(rig.run(&["logs", "hello"]), "65534\nwharfline\n0\n");
    let path = rig.get("allocation", "hello")["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    assert!(std::path::Path::new(&path).join("app/db").is_dir(), "made in the volume");

    // A link that somebody has left in the volume leads nowhere.
    std::os::unix::fs::symlink("/etc", std::path::Path::new(&path).join("out")).unwrap();
    let mut other = hello;
    other["metadata"]["name"] = json!("other");
    other["spec"]["tasks"][0]["volumeMounts"][0]["subPath"] = json!("out");
    rig.run(&["delete", "allocation/hello"]);
    rig.apply(&other.to_string());
    let told = || {
        let events = rig.list("events");
        let of_it = |e: &&serde_json::Value| e["reason"] == "TaskNotStarted";
        events.iter().find(of_it).map(|e| e["message"].as_str().unwrap_or_default().to_owned())
    };
    until("it is told", || told().is_some());
    let note = told().unwrap();
    assert!(note.contains("volume data, subPath \"out\": leads through a link"), "{note}");
    rig.run(&["delete", "allocation/other", "volumeclaim/data", "volumeclass/dir", "plugin/dir"]);
    for kind in ["volumes", "allocations", "plugins"] {
        until(&format!("no {kind} are left"), || rig.list(kind).is_empty());
    }
    rig.terminate();
}
