//! Machines that cannot hear the others: what runs there goes on, nobody else gets its volumes, and all goes on by itself
//! once they are heard again.
use serde_json::Value;

use crate::net::Cut;
use crate::rig::{Cluster, until};
use crate::work::{BEATS, allocation, beats, blocker, driver, finish, lines, node_of, readiness, wait};

/// Two machines, and a writer on one of them; its machine and the other one.
async fn written() -> (Cluster, String, String) {
    let mut cluster = Cluster::apart(1).await;
    cluster.machine("n0", "boot-0");
    cluster.machine("n1", "boot-0");
    cluster.apply(&driver(&cluster));
    cluster.apply(&allocation("app", "onNodeLost: Rebind", BEATS));
    wait(&cluster, "app", "Running");
    let here = node_of(&cluster, "app");
    let there = if here == "n0" { "n1" } else { "n0" };
    (cluster, here, there.to_owned())
}

/// What must not change while nobody hears of it.
fn kept(cluster: &Cluster, machine: &str) -> Value {
    let app = cluster.get("allocation", "app")["status"].clone();
    let attachments = cluster.list("volumeattachments");
    let known = attachments.iter().map(|a| serde_json::json!([a["metadata"]["uid"], a["spec"]]));
    serde_json::json!([
        app["nodeName"],
        app["volumes"],
        app["tasks"],
        known.collect::<Vec<_>>(),
        cluster.list("volumes")[0]["status"]["holders"],
        cluster.mounts(machine),
    ])
}

/// A lease that runs out frees nothing, whichever way the cable is broken.
async fn a_long_silence(cut: Cut) {
    let (cluster, here, there) = written().await;
    let (app, before) = (cluster.get("allocation", "app"), kept(&cluster, &here));
    cluster.cut(&here, cut);
    until("it is silent, and the command that says more is told", || {
        let said = blocker(&cluster, "app");
        said.contains("NoFence")
            && said.contains(&format!("{here} --overwrite wharfline.dev/out-of-service=boot-0"))
    });
    cluster.apply(&allocation("other", &format!("nodeName: {there}"), "exec sleep infinity"));
    until("who wants the volume too is told who has it", || {
        let said = blocker(&cluster, "other");
        said.contains("HeldElsewhere") && said.contains(&here) && said.contains("app")
    });
    beats(&cluster, &app, 20);
    assert_eq!(kept(&cluster, &here), before);
    assert!(!cluster.mounts(&there).iter().any(|point| point.contains("/publish/")), "published twice");

    cluster.mend(&here);
    until("it is heard again", || {
        readiness(&cluster, &here).0 == "True" && blocker(&cluster, "app").is_empty()
    });
    beats(&cluster, &app, 5);
    assert_eq!(kept(&cluster, &here), before);
    assert_eq!(lines(&cluster, &app, "runs"), 1, "the task was never started again");
    cluster.run(&["delete", "allocation", "app", "--timeout", "60s"]);
    wait(&cluster, "other", "Running");
    finish(cluster, &["n0", "n1"]);
}

/// Scenarios B43, B46.
#[tokio::test]
async fn a_machine_that_is_cut_off_keeps_its_volumes() {
    a_long_silence(Cut::Whole).await;
}

/// Scenario B46.
#[tokio::test]
async fn a_machine_that_is_not_heard_keeps_its_volumes() {
    a_long_silence(Cut::Sent).await;
}

/// Scenario B46.
#[tokio::test]
async fn a_machine_that_hears_nothing_keeps_its_volumes() {
    a_long_silence(Cut::Received).await;
}

/// A silence that is shorter than the lease is none. What was asked meanwhile is done behind it.
#[tokio::test]
async fn a_short_silence_is_none() {
    let (cluster, here, there) = written().await;
    let app = cluster.get("allocation", "app");
    let (before, ready) = (kept(&cluster, &here), readiness(&cluster, &here));
    cluster.cut(&here, Cut::Whole);
    beats(&cluster, &app, 25);
    assert_eq!(kept(&cluster, &here), before);
    cluster.mend(&here);
    beats(&cluster, &app, 5);
    assert_eq!(readiness(&cluster, &here), ready);

    cluster.cut(&here, Cut::Whole);
    cluster.run(&["delete", "allocation", "app", "--wait=false"]);
    cluster.apply(&allocation("next", &format!("nodeName: {there}"), "exec sleep infinity"));
    beats(&cluster, &app, 25);
    cluster.mend(&here);
    wait(&cluster, "next", "Running");
    assert_eq!(readiness(&cluster, &here), ready);
    // Its volume is let go first, and its last word is written behind that: who comes next need not wait for it.
    until("app is gone", || cluster.get("allocation", "app").is_null());
    finish(cluster, &["n0", "n1"]);
}

/// Scenarios A69, B126: without servers and store, for longer than a lease, all that runs goes on, and nothing comes down
/// when they are back.
#[tokio::test]
async fn what_runs_needs_no_server() {
    let (mut cluster, here, _) = written().await;
    let (app, before) = (cluster.get("allocation", "app"), kept(&cluster, &here));
    let address = cluster.urls()[0].strip_prefix("https://").unwrap().to_owned();
    cluster.kill_server(0);
    cluster.kill_store();
    beats(&cluster, &app, 130);
    cluster.run_store().await;
    let store = cluster.store();
    cluster.serve_at(0, "pki", &store, &address).unwrap();
    until("both are heard", || {
        ["n0", "n1"].iter().all(|node| readiness(&cluster, node).0 == "True")
            && blocker(&cluster, "app").is_empty()
    });
    beats(&cluster, &app, 30);
    assert_eq!(kept(&cluster, &here), before);
    assert_eq!(lines(&cluster, &app, "runs"), 1, "the task was never started again");
    finish(cluster, &["n0", "n1"]);
}
