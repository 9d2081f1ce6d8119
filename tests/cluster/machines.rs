//! Several machines: each node has processes and mounts of its own, which all end at once when its power goes off, and one
//! backend that all of them reach.
use crate::rig::{Cluster, until};
use crate::work::{allocation, blocker, driver, finish, node_of, wait};

/// The command that is told for a machine that is surely off.
fn command(node: &str) -> String {
    format!("wharfline taint node {node} --overwrite wharfline.dev/out-of-service=boot-0:NoExecute")
}

/// Scenarios A43, A74, B43, B44, B86.
#[tokio::test]
async fn a_volume_is_written_on_one_machine_and_read_on_another() {
    let mut cluster = Cluster::apart(1).await;
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
#[tokio::test]
async fn a_machine_that_went_off_is_fenced_and_comes_back_clean() {
    let mut cluster = Cluster::apart(1).await;
    cluster.machine("n0", "boot-0");
    cluster.machine("n1", "boot-0");
    cluster.apply(&driver(&cluster));
    let script = "echo run >> /disk/runs && sync && exec sleep infinity";
    cluster.apply(&allocation("app", "onNodeLost: Rebind", script));
    wait(&cluster, "app", "Running");
    let lost = node_of(&cluster, "app");
    let other = if lost == "n0" { "n1" } else { "n0" };
    cluster.power_off(&lost);
    until("it waits for a fence and says the command", || {
        let said = blocker(&cluster, "app");
        said.contains("NoFence") && said.contains(&command(&lost))
    });
    let holders = cluster.list("volumes")[0]["status"]["holders"].clone();
    assert_eq!(holders[0]["nodeName"], lost.as_str(), "a lease that has run out frees nothing");
    let command = command(&lost);
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    cluster.run(&words);
    until("it runs elsewhere", || {
        node_of(&cluster, "app") == other && cluster.get("allocation", "app")["status"]["phase"] == "Running"
    });
    // The machine boots again: what it had is reported clean, and it takes nothing back.
    cluster.machine(&lost, "boot-1");
    until("its attachment is gone", || {
        let attachments = cluster.list("volumeattachments");
        attachments.len() == 1 && attachments[0]["spec"]["nodeName"] == other
    });
    assert_eq!(node_of(&cluster, "app"), other);
    cluster.run(&["delete", "allocation", "app", "--timeout", "60s"]);
    let counts = "[ $(wc -l < /disk/runs) = 2 ]";
    cluster.apply(&allocation("check", &format!("nodeName: {lost}"), counts));
    wait(&cluster, "check", "Complete");
    finish(cluster, &["n0", "n1"]);
}
