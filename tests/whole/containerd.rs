//! A driver and its user in containers of containerd's, which dies in the middle as the daemon does.
use std::future::Future;

use serde_json::{Value, json};

use crate::containers::{Driver, processes_in_containers};
use crate::its::{Containerd, RunsIn};
use crate::rig::{Rig, until};

pub(crate) fn wait<T>(what: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(what)
}

/// The file of a node that has its containerd there, and runs containers by nothing else.
pub(crate) fn node_file(rig: &Rig, socket: &std::path::Path) {
    let file = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "NodeConfiguration",
        "runtimes": ["containerd"], "containerdSocket": socket });
    std::fs::write(rig.data.path().join("node.yaml"), file.to_string()).unwrap();
}

fn tasks(containerd: &Containerd) -> Vec<(String, String)> {
    let told = containerd.ctr("wharfline", &["tasks", "list"]);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut all: Vec<_> =
        told.lines().skip(1).map(|line| (words(line)[0].clone(), words(line)[1].clone())).collect();
    all.sort();
    all
}

pub(crate) fn manifest() -> String {
    Driver::Lent.manifest().replace("\"oci\":", "\"containerd\":")
}

/// Scenario B119.
/// Obligations CO-PLUG-01, CO-PLUG-12.
#[test]
fn a_driver_and_its_user_run_in_containers_of_containerds() {
    let mut rig = Rig::new();
    let directory = tempfile::tempdir().unwrap();
    let mut containerd = wait(Containerd::start(directory.path(), RunsIn::Machine));
    node_file(&rig, &containerd.socket());
    Driver::Lent.up(&mut rig);
    let usable = |rig: &Rig| {
        rig.get("nodeagent", "node-a")["status"]["runtimes"].as_array().cloned().unwrap_or_default()
    };
    until("the node says that it has containerd", || usable(&rig) == [json!("containerd")]);
    rig.apply(&manifest());
    rig.wait_ready("allocation/hello");
    assert_eq!(crate::quickstart::greeting(&rig), "hello from wharfline\n");
    let status = |rig: &Rig| rig.get("allocation", "hello")["status"]["tasks"][0].clone();
    let task: Value = status(&rig);
    assert!(task["image"].as_str().is_some_and(|image| image.starts_with("sha256:")), "{task}");
    let (mounts, running) = (rig.mounts(), tasks(&containerd));
    assert!(mounts.iter().all(|mount| !mount.contains("/stage")), "{mounts:?}");
    assert_eq!(running.len(), 2, "{running:?}");
    assert!(running[0].0.starts_with("default.hello.writer-"), "{running:?}");

    // Without the daemon, and without containerd, all goes on, and is found again, once.
    rig.kill();
    containerd.kill();
    let processes = processes_in_containers(&rig);
    assert!(processes.len() >= 2);
    Driver::Lent.up(&mut rig);
    rig.wait_ready("allocation/hello");
    rig.wait_ready("plugin/dir");
    wait(containerd.resume());
    assert_eq!((rig.mounts(), tasks(&containerd)), (mounts, running.clone()));
    assert_eq!(processes_in_containers(&rig), processes);
    assert_eq!(status(&rig)["restarts"].as_u64().unwrap_or(0), 0);
    assert_eq!(crate::quickstart::greeting(&rig), "hello from wharfline\n");

    // A task that dies is started again by its policy, as another container.
    containerd.ctr("wharfline", &["tasks", "kill", "--signal", "SIGKILL", &running[0].0]);
    until("it runs again", || {
        let now = status(&rig);
        now["restarts"].as_u64() == Some(1) && now["state"] == "Running"
    });
    until("only the new one is there", || {
        let now = tasks(&containerd);
        now.len() == 2 && now != running
    });

    rig.run(&["delete", "allocation/hello", "volumeclaim/data", "volumeclass/dir", "plugin/dir"]);
    for kind in ["volumes", "allocations", "plugins"] {
        until(&format!("no {kind} are left"), || rig.list(kind).is_empty());
    }
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
    wait(containerd.end());
}

/// A node whose containerd is away says so, and nothing but that has to change.
#[test]
fn a_task_waits_for_containerd_and_says_so() {
    let mut rig = Rig::new();
    let directory = tempfile::tempdir().unwrap();
    let mut containerd = wait(Containerd::start(directory.path(), RunsIn::Machine));
    containerd.kill();
    node_file(&rig, &containerd.socket());
    Driver::Lent.up(&mut rig);
    rig.apply(&manifest());
    let named = format!("containerd does not answer at {}", containerd.socket().display());
    let told = || rig.run(&["get", "allocations", "-A", "-o", "json"]);
    until("it says what is missing", || told().contains("RuntimeMissing") && told().contains(&named));
    assert_eq!(rig.get("nodeagent", "node-a")["status"]["runtimes"].as_array().map_or(0, Vec::len), 0);
    wait(containerd.resume());
    rig.wait_ready("allocation/hello");
    // What goes while it is away is removed when it is back.
    let whose = |containerd: &Containerd| -> Vec<String> {
        let told = containerd.ctr("wharfline", &["containers", "list", "-q"]);
        told.lines().filter_map(|id| id.rsplit_once('-')).map(|(name, _)| name.to_owned()).collect()
    };
    let both = whose(&containerd);
    assert_eq!(both.len(), 2, "{both:?}");
    containerd.kill();
    rig.run(&["delete", "allocation/hello"]);
    until("the task is over", || rig.list("allocations").len() == 1);
    wait(containerd.resume());
    until("only the driver is remembered", || whose(&containerd).len() == 1);
    rig.apply(&manifest());
    rig.wait_ready("allocation/hello");
    assert_eq!(whose(&containerd), both);
    // Without a daemon `down` reads the same file of the node.
    rig.terminate();
    assert_eq!(tasks(&containerd).len(), 2, "all goes on");
    rig.run(&["down", "--delete-volumes"]);
    assert_eq!(tasks(&containerd), []);
    rig.assert_nothing_left();
    wait(containerd.end());
}
