//! Several machines: each node has processes and mounts of its own, which all end at once when its power goes off, and one
//! backend that all of them reach.
use serde_json::Value;

use crate::rig::{Cluster, until};

/// A driver whose volumes are attached, on every node, over one backend.
fn driver(cluster: &Cluster) -> String {
    let backend = cluster.place("backend");
    include_str!("../../manifests/loop.yaml")
        .split("\n---\n")
        .take(3)
        .collect::<Vec<_>>()
        .join("\n---\n")
        .replace("${DATA_DIR}/drivers/loop", backend.to_str().unwrap())
}

/// An allocation of the claim `disk`, with one task.
fn allocation(name: &str, more: &str, script: &str) -> String {
    format!(
        "apiVersion: wharfline.dev/v1alpha1\nkind: Allocation\nmetadata: {{name: {name}}}\nspec:\n  {more}\n  \
         volumes: [{{name: disk, claimName: disk}}]\n  tasks:\n  - name: t\n    restartPolicy: Never\n    \
         runtime: {{process: {{command: [/bin/sh, -c, \"{script}\"]}}}}\n    \
         volumeMounts: [{{name: disk, mountPath: /disk}}]\n"
    )
}

fn wait(cluster: &Cluster, name: &str, phase: &str) {
    let phase = format!("--for=jsonpath={{.status.phase}}={phase}");
    cluster.run(&["wait", &format!("allocation/{name}"), &phase, "--timeout", "60s"]);
}

/// The message of what an allocation waits for.
fn blocker(cluster: &Cluster, name: &str) -> String {
    let conditions = cluster.get("allocation", name)["status"]["conditions"].clone();
    let unmet = conditions.as_array().into_iter().flatten().filter(|c| c["status"] != "True");
    unmet
        .map(|c| format!("{}: {}\n", c["reason"].as_str().unwrap(), c["message"].as_str().unwrap()))
        .collect()
}

fn finish(mut cluster: Cluster, nodes: &[&str]) {
    for kind in ["allocations", "volumeclaims", "volumeclasses", "plugins"] {
        cluster.run(&["delete", kind, "--all", "--timeout", "60s"]);
    }
    for kind in ["volumes", "volumeattachments", "plugininstances", "allocations"] {
        assert_eq!(cluster.list(kind), Vec::<Value>::new(), "{kind}");
    }
    let left = std::fs::read_dir(cluster.place("backend").join("volumes"));
    assert_eq!(left.map_or(0, Iterator::count), 0, "the backend has volumes left");
    for node in nodes {
        cluster.power_off(node);
    }
}

/// Scenarios A74, B43, B44, B86.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_written_on_one_machine_and_read_on_another() {
    let mut cluster = Cluster::start(1).await;
    cluster.machine("n0", "boot-0");
    cluster.machine("n1", "boot-0");
    cluster.apply(&driver(&cluster));
    cluster.apply(&allocation("first", "nodeName: n0", "echo of n0 > /disk/word && sync"));
    wait(&cluster, "first", "Complete");
    cluster.apply(&allocation("second", "nodeName: n1", "grep -q 'of n0' /disk/word && exec sleep infinity"));
    wait(&cluster, "second", "Running");
    // A third one elsewhere waits, and says for whom.
    cluster.apply(&allocation("third", "nodeName: n0", "grep -q 'of n0' /disk/word && exec sleep infinity"));
    until("the third says who has it", || {
        let said = blocker(&cluster, "third");
        said.contains("n1") && said.contains("second")
    });
    let attachments = cluster.list("volumeattachments");
    let up: Vec<_> = attachments.iter().filter(|a| a["status"]["node"]["staged"] == "Up").collect();
    assert_eq!(up.len(), 1, "one machine has it: {attachments:#?}");
    cluster.run(&["delete", "allocation", "second", "--timeout", "60s"]);
    wait(&cluster, "third", "Running");
    finish(cluster, &["n0", "n1"]);
}

/// Scenarios A67, A68, B45, B46, B47, B123: a machine goes off, its workload waits for a person's word, goes on elsewhere with
/// all that was written, and the machine comes back without touching it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_went_off_is_fenced_and_comes_back_clean() {
    let mut cluster = Cluster::start(1).await;
    cluster.machine("n0", "boot-0");
    cluster.machine("n1", "boot-0");
    cluster.apply(&driver(&cluster));
    let script = "echo run >> /disk/runs && sync && exec sleep infinity";
    cluster.apply(&allocation("app", "onNodeLost: Rebind", script));
    wait(&cluster, "app", "Running");
    let node = |cluster: &Cluster| {
        cluster.get("allocation", "app")["status"]["nodeName"].as_str().unwrap_or_default().to_owned()
    };
    let lost = node(&cluster);
    let other = if lost == "n0" { "n1" } else { "n0" };
    cluster.power_off(&lost);
    until("it waits for a fence and says the command", || {
        let said = blocker(&cluster, "app");
        said.contains("NoFence")
            && said.contains(&format!("taint node {lost} wharfline.dev/out-of-service=boot-0"))
    });
    let holders = cluster.list("volumes")[0]["status"]["holders"].clone();
    assert_eq!(holders[0]["nodeName"], lost.as_str(), "a lease that has run out frees nothing");
    let taint = r#"{"spec":{"taints":[{"key":"wharfline.dev/out-of-service","value":"boot-0","effect":"NoExecute"}]}}"#;
    cluster.run(&["patch", "node", &lost, "-p", taint]);
    until("it runs elsewhere", || {
        node(&cluster) == other && cluster.get("allocation", "app")["status"]["phase"] == "Running"
    });
    // The machine boots again: what it had is reported clean, and it takes nothing back.
    cluster.machine(&lost, "boot-1");
    until("its attachment is gone", || {
        let attachments = cluster.list("volumeattachments");
        attachments.len() == 1 && attachments[0]["spec"]["nodeName"] == other
    });
    assert_eq!(node(&cluster), other);
    cluster.run(&["delete", "allocation", "app", "--timeout", "60s"]);
    let counts = "[ $(wc -l < /disk/runs) = 2 ]";
    cluster.apply(&allocation("check", &format!("nodeName: {lost}"), counts));
    wait(&cluster, "check", "Complete");
    finish(cluster, &["n0", "n1"]);
}
