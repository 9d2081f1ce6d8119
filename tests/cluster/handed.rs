//! Volumes whose controller calls another node makes from now on, while the node that made them lives.
use serde_json::Value;

use crate::rig::{Cluster, until};
use crate::work::{BEATS, allocation, beats, driver, finish, instances, lines, wait};

/// The driver with its two roles apart: a controller where the label says so, and nodes everywhere.
fn apart(cluster: &Cluster) -> String {
    let whole = driver(cluster);
    let (head, rest) = whole.split_once("    - name: all\n").unwrap();
    let (entry, rest) = rest.split_once("\n---\n").unwrap();
    let role = |name: &str, role: &str, placement: &str| {
        let entry = entry
            .replace("everyNode: {}", placement)
            .replace("csi, loop,", &format!("csi, loop, --mode, {},", role.to_lowercase()));
        let lines = entry.lines().filter(|line| !line.contains("role: Monolith"));
        format!("    - name: {name}\n      role: {role}\n{}\n", lines.collect::<Vec<_>>().join("\n"))
    };
    let controller = role("controller", "Controller", "nodeSelector: {calls: \"yes\"}");
    let node = role("node", "Node", "everyNode: {}");
    format!("{head}{controller}{node}---\n{rest}")
}

fn volume(cluster: &Cluster) -> Value {
    let volumes = cluster.list("volumes");
    assert_eq!(volumes.len(), 1, "{volumes:#?}");
    volumes[0].clone()
}

fn host(cluster: &Cluster) -> (String, i64) {
    let host = volume(cluster)["status"]["controller"].clone();
    (host["nodeName"].as_str().unwrap_or_default().to_owned(), host["epoch"].as_i64().unwrap_or_default())
}

/// The calls about the volume itself that its hosts made.
fn calls(cluster: &Cluster, method: &str) -> usize {
    let calls = volume(cluster)["status"]["calls"].as_array().cloned().unwrap_or_default();
    calls.iter().filter(|call| call["method"] == method).count()
}

/// The controller instance of a plugin moves to another node under a task that writes: its volumes go with it, nothing is
/// called again for what was in place, and the new host takes them down in the end.
#[tokio::test]
async fn a_controller_that_moves_hands_its_volumes_over() {
    let mut cluster = Cluster::apart(1).await;
    for node in ["n0", "n1", "n2"] {
        cluster.machine(node, "boot-0");
    }
    cluster.run(&["label", "node", "n0", "calls=yes"]);
    cluster.apply(&apart(&cluster));
    cluster.apply(&allocation("app", "nodeName: n2", BEATS));
    wait(&cluster, "app", "Running");
    assert_eq!(host(&cluster), ("n0".to_owned(), 1));
    let app = cluster.get("allocation", "app");
    let mounts = cluster.mounts("n2");
    let before = cluster.list("volumeattachments")[0]["status"]["controller"]["calls"].clone();

    // First the other is there, then the first has to go.
    cluster.run(&["label", "node", "n1", "calls=yes"]);
    until("both can make calls", || instances(&cluster).len() == 5);
    beats(&cluster, &app, 5);
    assert_eq!(host(&cluster), ("n0".to_owned(), 1), "who does well keeps it");
    cluster.run(&["label", "node", "n0", "calls-"]);
    until("the other node makes its calls", || host(&cluster) == ("n1".to_owned(), 2));
    until("the first instance is gone", || instances(&cluster).len() == 4);
    beats(&cluster, &app, 5);
    assert_eq!(cluster.mounts("n2"), mounts, "what is in use was touched");
    assert_eq!((lines(&cluster, &app, "runs"), calls(&cluster, "CreateVolume")), (1, 1));
    let after = cluster.list("volumeattachments")[0]["status"]["controller"]["calls"].clone();
    assert_eq!(after, before, "it was attached anew");

    // Back, in the same way: the new host is one like any other.
    cluster.run(&["label", "node", "n0", "calls=yes"]);
    cluster.run(&["label", "node", "n1", "calls-"]);
    until("the first makes its calls again", || host(&cluster) == ("n0".to_owned(), 3));
    finish(cluster, &["n0", "n1", "n2"]);
}

/// The only controller instance has to go: it stays for as long as nobody can take over, and says what it waits for.
#[tokio::test]
async fn the_last_controller_stays_with_its_volumes() {
    let mut cluster = Cluster::apart(1).await;
    for node in ["n0", "n1"] {
        cluster.machine(node, "boot-0");
    }
    cluster.run(&["label", "node", "n0", "calls=yes"]);
    cluster.apply(&apart(&cluster));
    cluster.apply(&allocation("app", "nodeName: n1", BEATS));
    wait(&cluster, "app", "Running");
    cluster.run(&["label", "node", "n0", "calls-"]);
    until("it is said what it waits for", || {
        let why = cluster.try_run(&["why", "plugin/loop"]);
        String::from_utf8_lossy(&why.stdout).contains("needs it")
    });
    assert_eq!((host(&cluster), instances(&cluster).len()), (("n0".to_owned(), 1), 3));
    cluster.run(&["label", "node", "n1", "calls=yes"]);
    until("the other node makes its calls", || host(&cluster) == ("n1".to_owned(), 2));
    until("the first instance is gone", || instances(&cluster).len() == 3);
    finish(cluster, &["n0", "n1"]);
}
