//! A node that can have no more volumes than the plugin told.
use serde_json::{Value, json};

use crate::rig::{Cluster, until};
use crate::work::{allocation, blocker, driver, finish, instances, node_of, wait};

/// The claim of the manifest once more.
fn second(driver: &str) -> String {
    driver.split("\n---\n").nth(2).unwrap().replace("name: disk", "name: more")
}

/// Scenario B57: what the plugin refuses to attach on one node runs on another; with none it waits and says why. Nothing of
/// it stays on the first.
/// Part of obligation CO-CTRL-40.
#[tokio::test]
async fn who_finds_no_slot_runs_on_another_node() {
    let mut cluster = Cluster::apart(1).await;
    for node in ["n0", "n1"] {
        cluster.machine(node, "boot-0");
    }
    let driver = driver(&cluster);
    cluster.apply(&format!("{driver}\n---\n{}", second(&driver)));
    until("the plugin serves everywhere", || instances(&cluster).len() == 2);
    cluster.apply(&allocation("first", "nodeName: n0", "exec sleep infinity"));
    wait(&cluster, "first", "Running");
    // The backend has less room for the node than its plugin told when it came.
    let announced = cluster.place("backend").join("nodes/n0/node.json");
    let mut node: Value = serde_json::from_str(&std::fs::read_to_string(&announced).unwrap()).unwrap();
    node["maxVolumes"] = json!(1);
    std::fs::write(&announced, node.to_string()).unwrap();

    cluster.run(&["cordon", "n1"]);
    let more = allocation("app", "", "exec sleep infinity").replace("claimName: disk", "claimName: more");
    cluster.apply(&more);
    until("it is said why it waits", || blocker(&cluster, "app").contains("AttachLimitExceeded"));
    assert_eq!(node_of(&cluster, "app"), "n0", "there is no other");
    cluster.run(&["uncordon", "n1"]);
    wait(&cluster, "app", "Running");
    assert_eq!((node_of(&cluster, "app"), node_of(&cluster, "first")), ("n1".to_owned(), "n0".to_owned()));
    finish(cluster, &["n0", "n1"]);
}
