//! The quickstart manifest, as `make run` applies it.
use serde_json::Value;

use crate::rig::{Rig, until};

pub(crate) const QUICKSTART: &str = include_str!("../../manifests/quickstart.yaml");

pub(crate) fn greeting(rig: &Rig) -> String {
    let path = rig.get("allocation", "hello")["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    let file = std::path::Path::new(&path).join("greeting");
    until("the greeting is written", || std::fs::read_to_string(&file).is_ok_and(|t| t.ends_with('\n')));
    std::fs::read_to_string(file).unwrap()
}

pub(crate) fn started(rig: &Rig) {
    rig.apply(QUICKSTART);
    rig.wait_ready("allocation/hello");
    assert_eq!(greeting(rig), "hello from wharfline\n");
}

pub(crate) fn volume_calls(rig: &Rig) -> Vec<String> {
    let of = |calls: &Value| -> Vec<String> {
        let text =
            |c: &Value| format!("{} {}", c["method"].as_str().unwrap(), c["startTime"].as_str().unwrap());
        calls.as_array().into_iter().flatten().map(text).collect()
    };
    let mut all: Vec<_> = rig.list("volumes").iter().flat_map(|v| of(&v["status"]["calls"])).collect();
    all.extend(rig.list("volumeattachments").iter().flat_map(|a| of(&a["status"]["node"]["calls"])));
    all
}

/// Scenario B1.
#[test]
fn one_file_up_and_all_the_way_back() {
    let mut rig = Rig::new();
    rig.up();
    started(&rig);
    let plugin = rig.get("plugin", "dir");
    assert_eq!(plugin["status"]["provider"]["name"], "dir.csi.wharfline.dev");
    assert_eq!(plugin["status"]["nodes"]["healthy"], 1);
    assert_eq!(rig.get("volumeclaim", "data")["status"]["phase"], "Bound");
    let table = rig.run(&["get", "plugins,volumeclaims,allocations"]);
    for word in ["dir.csi.wharfline.dev", "1/1", "Bound", "64Mi", "RWO", "Running", "node-a"] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
    let file = rig.data.path().with_extension("yaml");
    rig.run(&["delete", "-f", file.to_str().unwrap()]);
    for kind in [
        "plugins",
        "plugininstances",
        "volumeclasses",
        "volumeclaims",
        "volumes",
        "volumeattachments",
        "allocations",
    ] {
        until(&format!("no {kind} are left"), || rig.list(kind).is_empty());
    }
    let volumes = rig.data.path().join("drivers/dir/volumes");
    assert_eq!(std::fs::read_dir(volumes).unwrap().count(), 0, "a backend volume is left");
    rig.terminate();
    assert_eq!(rig.mounts().len(), 1, "only the tree itself: {:?}", rig.mounts());
    rig.run(&["down"]);
    rig.assert_nothing_left();
}

/// Scenarios A25, B119.
/// Nor does a file that is applied once more.
#[test]
fn sigkill_costs_nothing_but_time() {
    let mut rig = Rig::new();
    rig.up();
    started(&rig);
    let before = (rig.mounts(), volume_calls(&rig));
    let written = |rig: &Rig| -> Vec<Value> {
        let of = |(kind, name): (&str, &str)| rig.get(kind, name)["metadata"]["generation"].clone();
        let applied =
            [("plugin", "dir"), ("volumeclass", "dir"), ("volumeclaim", "data"), ("allocation", "hello")];
        let class = rig.get("volumeclass", "dir")["metadata"]["resourceVersion"].clone();
        let volumes = rig.list("volumes").into_iter().map(|v| v["metadata"]["generation"].clone());
        applied.map(of).into_iter().chain([class]).chain(volumes).collect()
    };
    let objects = written(&rig);
    rig.apply(QUICKSTART);
    assert_eq!(written(&rig), objects, "nothing is written");
    let tasks = |rig: &Rig| -> Vec<String> {
        rig.processes().into_iter().filter(|p| !p.contains(" up ") && !p.contains("--kubeconfig")).collect()
    };
    let running = tasks(&rig);
    rig.kill();
    assert_eq!(rig.mounts(), before.0, "the workload goes on without the daemon");
    assert_eq!(tasks(&rig), running);
    rig.up();
    rig.wait_ready("allocation/hello");
    rig.wait_ready("plugin/dir");
    assert_eq!((rig.mounts(), volume_calls(&rig)), before, "no mount was touched, no mutating call made");
    assert_eq!(tasks(&rig), running, "no task was started again");
    assert_eq!(greeting(&rig), "hello from wharfline\n");
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
}

/// A task is not started on a bare directory, nor is it stuck for good.
#[test]
fn a_target_that_was_unmounted_by_hand_is_published_again_before_its_task_starts_again() {
    let mut rig = Rig::new();
    rig.up();
    started(&rig);
    let path = rig.get("allocation", "hello")["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    let shim = rig.processes().into_iter().find(|p| p.contains(".writer")).expect("the task's shim");
    let pid = shim.split(' ').next().unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let file = std::path::Path::new(&path).join("greeting");
    until("it greets again", || std::fs::read_to_string(&file).is_ok_and(|text| text.lines().count() == 2));
    assert!(rig.mounts().iter().any(|mount| mount.ends_with(&path)), "{:?}", rig.mounts());
    rig.wait_ready("allocation/hello");
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
}

/// A node is there as long as its daemon is: what a person deletes of it comes back, and what runs is not touched.
#[test]
fn a_node_that_is_deleted_joins_again() {
    let mut rig = Rig::new();
    rig.up();
    let uid = |rig: &Rig, kind: &str| {
        rig.list(kind).first().map(|object| object["metadata"]["uid"].as_str().unwrap().to_owned())
    };
    for kind in ["nodes", "nodeagents"] {
        let before = uid(&rig, kind).unwrap();
        rig.run(&["delete", kind, "node-a", "--wait=false"]);
        until("it is there again", || uid(&rig, kind).is_some_and(|now| now != before));
    }
    started(&rig);
    let before = (rig.mounts(), rig.processes(), uid(&rig, "nodeagents").unwrap());
    rig.run(&["delete", "nodeagent", "node-a", "--wait=false"]);
    until("it is there again and says what it did", || {
        uid(&rig, "nodeagents").is_some_and(|now| now != before.2)
            && rig.get("nodeagent", "node-a")["status"]["incarnation"].is_string()
    });
    rig.run(&["delete", "node", "node-a", "--wait=false"]);
    let why = rig.run(&["why", "node", "node-a"]);
    assert!(why.contains("allocation/hello") && why.contains("runs on it"), "{why}");
    assert_eq!((rig.mounts(), rig.processes()), (before.0, before.1));
    let file = rig.data.path().with_extension("yaml");
    rig.run(&["delete", "-f", file.to_str().unwrap()]);
    until("the node is new", || {
        rig.list("nodes").first().is_some_and(|node| node["metadata"]["deletionTimestamp"].is_null())
    });
    started(&rig);
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
}

/// Obligation CO-PLUG-20.
#[test]
fn down_takes_down_and_the_next_up_brings_back() {
    let mut rig = Rig::new();
    rig.up();
    started(&rig);
    rig.run(&["down"]);
    rig.ended();
    rig.assert_nothing_left();
    rig.up();
    rig.wait_ready("allocation/hello");
    // The task ran a second time, on the same volume.
    until("the second greeting", || greeting(&rig) == "hello from wharfline\nhello from wharfline\n");
    rig.kill();
    rig.run(&["down", "--delete-volumes"]);
    rig.assert_nothing_left();
    assert_eq!(std::fs::read_dir(rig.data.path().join("drivers/dir/volumes")).unwrap().count(), 0);
}
