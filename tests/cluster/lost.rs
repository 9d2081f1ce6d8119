//! Machines that boot anew, are imaged anew, get another name, or are taken out of the cluster.
use crate::rig::{Cluster, until};
use crate::work::{BEATS, allocation, beats, blocker, driver, finish, lines, node_of, plain, wait};

const FREED: &str = "it runs elsewhere";

async fn machines(names: &[&str]) -> Cluster {
    let mut cluster = Cluster::apart(1).await;
    for name in names {
        cluster.machine(name, "boot-0");
    }
    cluster.apply(&driver(&cluster));
    cluster
}

/// Whether the volume's only attachment is on this node.
fn only_on(cluster: &Cluster, node: &str) -> bool {
    let attachments = cluster.list("volumeattachments");
    attachments.len() == 1 && attachments[0]["spec"]["nodeName"] == node
}

/// Scenarios B123, B129: what ran goes on behind a reboot, by itself and on its node; what was deleted meanwhile does not.
#[tokio::test]
async fn a_machine_boots_again_and_goes_on() {
    let mut cluster = machines(&["n0", "n1"]).await;
    let again = allocation("app", "nodeName: n0", BEATS).replace("Never", "OnFailure");
    cluster.apply(&again);
    cluster.apply(
        &allocation("idle", "nodeName: n0", "exec sleep infinity")
            .replace("claimName: disk", "claimName: more"),
    );
    cluster.apply(&driver(&cluster).split("\n---\n").nth(2).unwrap().replace("name: disk", "name: more"));
    wait(&cluster, "app", "Running");
    wait(&cluster, "idle", "Running");
    let attachments = |cluster: &Cluster| {
        let all = cluster.list("volumeattachments");
        all.iter().map(|a| a["metadata"]["uid"].to_string()).collect::<std::collections::BTreeSet<_>>()
    };
    let before = attachments(&cluster);
    cluster.power_off("n0");
    cluster.run(&["delete", "allocation", "idle", "--wait=false"]);
    cluster.machine("n0", "boot-1");
    until("what was deleted is gone", || cluster.get("allocation", "idle").is_null());
    until("it runs again", || {
        let app = cluster.get("allocation", "app");
        app["status"]["phase"] == "Running" && blocker(&cluster, "app").is_empty()
    });
    let app = cluster.get("allocation", "app");
    beats(&cluster, &app, 5);
    assert_eq!(lines(&cluster, &app, "runs"), 2, "once before the reboot, once behind it");
    assert!(attachments(&cluster).is_subset(&before), "the same machine, the same grant");
    finish(cluster, &["n0", "n1"]);
}

/// A machine that lost its disk keeps its name by a person's word alone, and then has what was bound there.
#[tokio::test]
async fn a_machine_that_is_imaged_anew_gets_its_name_from_a_person() {
    let mut cluster = machines(&["n0", "n1"]).await;
    cluster.apply(&allocation("app", "nodeName: n0", BEATS).replace("Never", "Always"));
    cluster.apply(&plain("once", "nodeName: n0"));
    wait(&cluster, "app", "Running");
    wait(&cluster, "once", "Running");
    cluster.power_off("n0");
    std::fs::remove_dir_all(cluster.place("n0")).unwrap();
    let refused = cluster.try_machine("n0", "boot-1", &cluster.joining("n0")).unwrap_err();
    assert!(refused.contains("node \"n0\" belongs to another machine's key"), "{refused}");
    let command = "wharfline annotate node/n0 wharfline.dev/key-";
    assert!(refused.contains(command), "nobody says what to do: {refused}");
    cluster.run(&["wait", "node/n0", "--for=condition=Ready=Unknown", "--timeout", "60s"]);
    let mut words = command.split(' ').skip(1).collect::<Vec<_>>();
    cluster.run(&std::mem::take(&mut words));
    let more = cluster.joining("n0");
    cluster.try_machine("n0", "boot-1", &more).unwrap();
    until("it runs again", || {
        cluster.get("allocation", "app")["status"]["phase"] == "Running"
            && blocker(&cluster, "app").is_empty()
    });
    let app = cluster.get("allocation", "app");
    until("its data are there", || lines(&cluster, &app, "runs") == 2);
    assert!(only_on(&cluster, "n0"));
    // What shall run once had begun: it is not run a second time, and says so.
    wait(&cluster, "once", "Failed");
    assert!(blocker(&cluster, "once").contains("before this machine lost its disk"));
    finish(cluster, &["n0", "n1"]);
}

/// Scenarios A67, B45, B50: a machine gets another name. Under the old one nobody comes back: what was bound there says so,
/// and with the old Node its attachments go, too.
#[tokio::test]
async fn a_machine_that_is_renamed_leaves_nothing_behind() {
    let mut cluster = machines(&["n0"]).await;
    cluster.apply(&allocation("app", "onNodeLost: Rebind", BEATS));
    wait(&cluster, "app", "Running");
    cluster.power_off("n0");
    std::fs::remove_dir_all(cluster.place("n0")).unwrap();
    cluster.machine("n9", "boot-1");
    until("it waits for a word", || blocker(&cluster, "app").contains("NoFence"));
    assert!(only_on(&cluster, "n0"), "time frees nothing");
    cluster.run(&["delete", "node", "n0", "--timeout", "60s"]);
    until(FREED, || node_of(&cluster, "app") == "n9" && only_on(&cluster, "n9"));
    wait(&cluster, "app", "Running");
    let app = cluster.get("allocation", "app");
    until("its data came along", || lines(&cluster, &app, "runs") == 2);
    finish(cluster, &["n9"]);
}

/// Scenario B50: a Node that is deleted while its machine lives waits for what is there, and says for what.
#[tokio::test]
async fn a_node_that_is_used_is_not_taken_out() {
    let cluster = machines(&["n0", "n1"]).await;
    cluster.apply(&allocation("app", "nodeName: n0", BEATS));
    wait(&cluster, "app", "Running");
    let app = cluster.get("allocation", "app");
    let early = cluster.try_run(&["delete", "node", "n0", "--timeout", "2s"]);
    assert!(!early.status.success());
    beats(&cluster, &app, 10);
    assert!(only_on(&cluster, "n0"));
    let why = cluster.try_run(&["why", "node/n0"]);
    let why = String::from_utf8_lossy(&why.stdout).into_owned();
    assert!(why.contains("app"), "who is in the way? {why}");
    cluster.run(&["delete", "allocation", "app", "--timeout", "60s"]);
    // Its plugin leaves it, and what that made the calls for goes to the other node.
    cluster.run(&["wait", "node/n0", "--for=delete", "--timeout", "60s"]);
    assert_eq!(cluster.list("volumeattachments"), Vec::<serde_json::Value>::new());
    // Its volume is still there, and there for others.
    cluster.apply(&allocation("reader", "nodeName: n1", "[ $(wc -l < /disk/runs) = 1 ]"));
    wait(&cluster, "reader", "Complete");
    finish(cluster, &["n1"]);
}
