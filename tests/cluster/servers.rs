//! Several servers and nodes.
use crate::rig::{Cluster, until};
use crate::work::{allocation, driver, wait};

/// A driver on every node, a claim, and a task that writes into it.
const QUICKSTART: &str = include_str!("../../manifests/quickstart.yaml");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_outlives_the_server_that_made_it() {
    let mut cluster = Cluster::start(2).await;
    cluster.join("n0");
    cluster.join("n1");
    cluster.apply(QUICKSTART);
    cluster.run(&["wait", "allocation/hello", "--for=jsonpath={.status.phase}=Running", "--timeout", "60s"]);
    let allocation = cluster.get("allocation", "hello");
    let node = allocation["status"]["nodeName"].as_str().unwrap().to_owned();
    let path = allocation["status"]["volumes"][0]["path"].as_str().unwrap().to_owned();
    let (mounted, restarts) = (cluster.mounts(&node), allocation["status"]["tasks"][0]["restarts"].clone());
    assert!(!mounted.is_empty() && path.starts_with(cluster.place(&node).to_str().unwrap()), "{path}");

    // Which one leads is told by the lease; that one dies without a word.
    cluster.kill_server(0);
    let again = cluster.get("allocation", "hello");
    assert_eq!(again["status"]["volumes"], allocation["status"]["volumes"]);
    // What the other server is told, the nodes do.
    cluster.apply(
        &QUICKSTART
            .replace("name: data", "name: more")
            .replace("claimName: data", "claimName: more")
            .replace("name: hello", "name: again"),
    );
    cluster.run(&["wait", "allocation/again", "--for=jsonpath={.status.phase}=Running", "--timeout", "60s"]);
    assert_eq!(cluster.mounts(&node).iter().filter(|point| mounted.contains(point)).count(), mounted.len());
    assert_eq!(cluster.get("allocation", "hello")["status"]["tasks"][0]["restarts"], restarts);

    for kind in ["allocations", "volumeclaims", "volumeclasses", "plugins"] {
        cluster.run(&["delete", kind, "--all", "--timeout", "60s"]);
    }
    for kind in ["allocations", "volumeclaims", "volumes", "volumeattachments", "plugininstances", "plugins"]
    {
        assert_eq!(cluster.list(kind), Vec::<serde_json::Value>::new(), "{kind}");
    }
    for node in ["n0", "n1"] {
        assert_eq!(cluster.mounts(node), Vec::<String>::new());
        cluster.stop_node(node, true);
    }
}

/// Scenarios B31, B120, B122.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_daemon_that_was_killed_goes_on_without_a_token() {
    let mut cluster = Cluster::start(1).await;
    cluster.join("n0");
    cluster.apply(QUICKSTART);
    cluster.run(&["wait", "allocation/hello", "--for=jsonpath={.status.phase}=Running", "--timeout", "60s"]);
    let before = cluster.get("allocation", "hello")["status"].clone();
    let mounted = cluster.mounts("n0");
    cluster.run(&["delete", "volumeclaim", "data", "--wait=false"]);
    cluster.stop_node("n0", false);
    assert_eq!(cluster.mounts("n0"), mounted);
    cluster.node("n0", &[]).unwrap();
    let after = cluster.get("allocation", "hello")["status"].clone();
    assert_eq!((&after["tasks"], &after["volumes"]), (&before["tasks"], &before["volumes"]));
    assert_eq!(cluster.mounts("n0"), mounted);
    // Its directory is not to be taken down as long as something is up.
    let refused = cluster.node("n0", &[]).unwrap_err();
    assert!(refused.contains("another wharfline runs on this data directory"), "{refused}");
    // Its user is deleted while nobody is there to hear of it.
    cluster.stop_node("n0", false);
    cluster.run(&["delete", "allocation", "hello", "--wait=false"]);
    assert_eq!(cluster.mounts("n0"), mounted);
    cluster.node("n0", &[]).unwrap();
    until("it is taken down", || {
        cluster.mounts("n0").is_empty() && cluster.get("allocation", "hello").is_null()
    });
    cluster.run(&["delete", "volumeclass/dir", "plugin/dir"]);
    for kind in ["volumeclaims", "volumes", "volumeattachments", "plugininstances"] {
        until(&format!("no {kind} are left"), || cluster.list(kind).is_empty());
    }
}

/// Scenario B120.
/// What is staged and attached for it, too, is undone by a daemon that was told nothing of it while it was there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_deleted_while_no_daemon_runs_leaves_neither_stage_nor_attachment() {
    let mut cluster = Cluster::start(1).await;
    cluster.join("n0");
    cluster.apply(&driver(&cluster));
    cluster.apply(&allocation("app", "", "exec sleep infinity"));
    wait(&cluster, "app", "Running");
    let mounted = cluster.mounts("n0");
    let holds = |part: &str| mounted.iter().any(|point| point.contains(part));
    assert!(holds("/staging/") && holds("/publish/"), "{mounted:?}");
    cluster.stop_node("n0", false);
    cluster.run(&["delete", "allocation", "app", "--wait=false"]);
    assert_eq!(cluster.mounts("n0"), mounted);
    assert_eq!(cluster.list("volumeattachments").len(), 1, "nobody says that it is released");
    cluster.node("n0", &[]).unwrap();
    until("it is taken down", || {
        cluster.get("allocation", "app").is_null() && cluster.list("volumeattachments").is_empty()
    });
    let left = cluster.mounts("n0");
    assert!(
        left.iter().all(|point| !point.contains("/staging/") && !point.contains("/publish/")),
        "{left:?}"
    );
    for kind in ["volumeclaims", "volumeclasses", "plugins"] {
        cluster.run(&["delete", kind, "--all", "--timeout", "60s"]);
    }
    for kind in ["volumes", "plugininstances", "allocations"] {
        assert_eq!(cluster.list(kind), Vec::<serde_json::Value>::new(), "{kind}");
    }
    cluster.stop_node("n0", true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_other_keys_is_refused() {
    let mut cluster = Cluster::start(1).await;
    cluster.kill_server(0);
    let store = cluster.store();
    let error = cluster.serve(0, "other", &store).unwrap_err();
    assert!(
        error.contains("give this server the --pki-dir of the others: the store is sealed with key"),
        "{error}"
    );
    cluster.serve(0, "pki", &store).unwrap();
    let error = cluster.serve(0, "pki", "etcd://nowhere").unwrap_err();
    assert!(error.contains("\"nowhere\" is not HOST:PORT"), "{error}");
}
