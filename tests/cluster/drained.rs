//! Nodes on which nothing new shall come, or nothing shall stay.
use crate::rig::{Cluster, until};
use crate::work::{
    BEATS, allocation, beats, blocker, driver, finish, instances, lines, node_of, plain, wait,
};

/// Obligation CO-PLUG-20.
/// Scenarios A19, A74: what runs leaves, while it writes; its replacement has all that it wrote, and the plugins stay. What
/// can go nowhere waits and says why.
#[tokio::test]
async fn a_node_is_drained_and_used_again() {
    let mut cluster = Cluster::apart(1).await;
    cluster.machine("n0", "boot-0");
    cluster.machine("n1", "boot-0");
    cluster.apply(&driver(&cluster));
    cluster.run(&["cordon", "n1"]);
    cluster.apply(&allocation("app", "", BEATS));
    cluster.apply(&plain("pinned", "nodeName: n0"));
    cluster.apply(&plain("stopped", "stop: false"));
    for name in ["app", "pinned", "stopped"] {
        wait(&cluster, name, "Running");
        assert_eq!(node_of(&cluster, name), "n0", "n1 is cordoned");
    }
    let app = cluster.get("allocation", "app");
    cluster.run(&["patch", "allocation", "stopped", "-p", r#"{"spec":{"stop":true}}"#]);
    wait(&cluster, "stopped", "Stopped");
    cluster.run(&["uncordon", "n1"]);
    beats(&cluster, &app, 5);
    let (written, served) = (lines(&cluster, &app, "beats"), instances(&cluster));
    assert_eq!(served.len(), 2);

    let said = cluster.run(&["drain", "n0", "--timeout", "60s"]);
    for name in ["app", "pinned", "stopped"] {
        assert!(said.contains(&format!("allocation/{name} has left n0")), "{said}");
    }
    assert!(!cluster.mounts("n0").iter().any(|point| point.contains("/publish/")), "it is still there");
    wait(&cluster, "app", "Running");
    let app = cluster.get("allocation", "app");
    assert_eq!(node_of(&cluster, "app"), "n1");
    until("it writes on", || lines(&cluster, &app, "beats") > written);
    assert_eq!(lines(&cluster, &app, "runs"), 2);
    until("it says why it waits", || blocker(&cluster, "pinned").contains("n0: being drained"));
    let why = cluster.try_run(&["why", "allocation/pinned"]);
    assert!(String::from_utf8_lossy(&why.stdout).contains("wharfline uncordon n0"), "{why:?}");
    assert_eq!((node_of(&cluster, "stopped"), instances(&cluster)), (String::new(), served));
    // It can be drained again, and then there is nothing to wait for.
    let again = cluster.run(&["drain", "n0"]);
    assert_eq!(again, "node/n0 cordoned, and being drained\n");

    cluster.run(&["uncordon", "n0"]);
    wait(&cluster, "pinned", "Running");
    assert_eq!((node_of(&cluster, "pinned").as_str(), node_of(&cluster, "app").as_str()), ("n0", "n1"));
    cluster.run(&["patch", "allocation", "stopped", "-p", r#"{"spec":{"stop":false}}"#]);
    wait(&cluster, "stopped", "Running");
    finish(cluster, &["n0", "n1"]);
}

/// A drained machine that nobody hears keeps what it has until it is heard; then it leaves.
#[tokio::test]
async fn a_drain_waits_for_a_machine_that_is_away() {
    let mut cluster = Cluster::apart(1).await;
    cluster.machine("n0", "boot-0");
    cluster.machine("n1", "boot-0");
    cluster.apply(&driver(&cluster));
    cluster.apply(&allocation("app", "onNodeLost: Rebind", BEATS));
    wait(&cluster, "app", "Running");
    let (app, here) = (cluster.get("allocation", "app"), node_of(&cluster, "app"));
    cluster.cut(&here, crate::net::Cut::Whole);
    until("it is silent", || blocker(&cluster, "app").contains("NoFence"));
    let said = cluster.try_run(&["drain", &here, "--timeout", "1s"]);
    let error = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(error.contains("NoFence") && error.contains("out-of-service=boot-0"), "{error}");
    beats(&cluster, &app, 10);
    assert_eq!(node_of(&cluster, "app"), here);
    cluster.mend(&here);
    until("it has left", || node_of(&cluster, "app") != here);
    wait(&cluster, "app", "Running");
    let app = cluster.get("allocation", "app");
    assert_eq!(lines(&cluster, &app, "runs"), 2);
    finish(cluster, &["n0", "n1"]);
}
