//! Who may join, and who may stay.
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use wharfline::api::Allocation;
use wharfline::server::{Issued, kubeconfig};

use crate::rig::{Cluster, until};
use crate::work::{allocation, driver, wait};

/// A client with the certificate that a node was given.
async fn node_client(cluster: &Cluster, node: &str) -> kube::Client {
    let file = |name: &str| std::fs::read_to_string(cluster.place(node).join("identity").join(name)).unwrap();
    let issued = Issued { certificate: file("node.crt"), key: file("node.key") };
    let text = kubeconfig((&cluster.urls()[0], &[]), &file("ca.crt"), &issued);
    let config = Kubeconfig::from_yaml(&text).unwrap();
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_join_is_told_why() {
    let mut cluster = Cluster::start(1).await;
    cluster.join("n0");
    let server = cluster.urls()[0].clone();
    let refused = |cluster: &mut Cluster, directory: &str, token: &str, name: &str| {
        cluster.node(directory, &["--server", &server, "--token", token, "--name", name]).unwrap_err()
    };
    let good = cluster.token(&[]);
    let (head, secret) = good.rsplit_once('.').unwrap();
    let wrong = format!("{head}.{}", secret.chars().rev().collect::<String>());
    let (hash, rest) = good.strip_prefix("wfl1").unwrap().split_once("::").unwrap();
    let elsewhere = format!("wfl1{}::{rest}", hash.chars().rev().collect::<String>());
    let other = cluster.token(&["--node", "n8"]);
    let short = cluster.token(&["--ttl", "1s"]);
    for (token, name, why) in [
        ("nonsense", "n1", "this is no join token"),
        (wrong.as_str(), "n1", "the join token is not known here"),
        (&elsewhere, "n1", "the server's authority is not the one that the token names"),
        (&other, "n1", "the join token is for node \"n8\" alone"),
        (&good, "n0", "node \"n0\" belongs to another machine's key"),
        (&good, "N 1", "no node name"),
    ] {
        let said = refused(&mut cluster, "x", token, name);
        assert!(said.lines().last().unwrap().contains(why), "{token} {name}: {said}");
        let _ = std::fs::remove_dir_all(cluster.place("x"));
        let _ = std::fs::remove_file(cluster.place("x.log"));
    }
    until("the short token has expired", || {
        refused(&mut cluster, "x", &short, "n0").contains("the join token has expired")
    });
    assert_eq!(cluster.list("nodes").len(), 1, "a refused node leaves nothing");
    // None of it used the token up; its first owner may come again, nobody else.
    cluster.node("n1", &["--server", &server, "--token", &good, "--name", "n1"]).unwrap();
    let said = refused(&mut cluster, "y", &good, "n2");
    assert!(said.contains("the join token was used by node \"n1\""), "{said}");
    let said = cluster.node("z", &[]).unwrap_err();
    assert!(said.contains("this machine has not joined yet"), "{said}");
    cluster.stop_node("n1", true);
    let said = cluster.node("n1", &["--name", "n3"]).unwrap_err();
    assert!(said.contains("this data directory is node \"n1\""), "{said}");
    for refused in ["x", "y", "z"] {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(cluster.place(refused).to_str().unwrap()), "{refused} left a mount");
    }
    let secrets = cluster.run(&["get", "secrets", "-n", "wharfline-system", "-o", "yaml"]);
    assert!(!secrets.contains(secret), "only a hash of the secret is kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_removed_is_out_at_once() {
    let mut cluster = Cluster::start(1).await;
    let (first_token, server) = (cluster.token(&[]), cluster.urls()[0].clone());
    cluster.node("n0", &["--server", &server, "--token", &first_token, "--name", "n0"]).unwrap();
    let client = node_client(&cluster, "n0").await;
    let allocations: Api<Allocation> = Api::all(client.clone());
    let mine = ListParams::default().fields("status.nodeName=n0");
    match allocations.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{}", status.message),
        other => panic!("{other:?}"),
    }
    let first = allocations.list(&mine).await.unwrap();
    let version = first.metadata.resource_version.unwrap();
    let mut watch = allocations
        .watch(&WatchParams::default().fields("status.nodeName=n0"), &version)
        .await
        .unwrap()
        .boxed();
    cluster.run(&["delete", "node", "n0", "--timeout", "60s"]);
    let end = async {
        while let Ok(Some(event)) = watch.try_next().await {
            assert!(matches!(event, WatchEvent::Bookmark(_)), "an event after the node was removed");
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(3), end).await.expect("the watch ends at once");
    match allocations.list(&mine).await {
        Err(kube::Error::Api(status)) => {
            assert_eq!(status.code, 401);
            assert!(status.message.contains("node \"n0\" is not a member"), "{}", status.message);
        }
        other => panic!("{other:?}"),
    }
    // The token that let it in makes nothing once more, and neither does its certificate: the daemon says so and ends.
    cluster.stop_node("n0", true);
    let said = cluster.node("n0", &["--server", &server, "--token", &first_token]).unwrap_err();
    assert!(said.contains("node \"n0\" was removed; join again with a new token"), "{said}");
    let said = cluster.node("n0", &[]).unwrap_err();
    assert!(said.contains("this machine is no member of its cluster any more"), "{said}");
    assert_eq!(cluster.list("nodes").len(), 0);
    // The same machine with a new token is a new member.
    cluster.join("n0");
    allocations.list(&mine).await.unwrap();
    // A person gives the name away: the key that had it is out, and does not take it back by itself.
    // Not while it is heard: what runs there would run on.
    cluster.run(&["wait", "node/n0", "--for=condition=Ready", "--timeout", "60s"]);
    let refused = cluster.try_run(&["annotate", "node/n0", "wharfline.dev/key-"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("the machine that has this name is heard"), "{said}");
    cluster.stop_node("n0", true);
    cluster.run(&["wait", "node/n0", "--for=condition=Ready=Unknown", "--timeout", "60s"]);
    cluster.run(&["annotate", "node/n0", "wharfline.dev/key-"]);
    let out =
        async || matches!(allocations.list(&mine).await, Err(kube::Error::Api(status)) if status.code == 401);
    // A server learns of it by its watch of the store.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(3);
    while !out().await {
        assert!(std::time::Instant::now() < deadline, "the key that had the name is still let in");
    }
    let said = cluster.node("n0", &[]).unwrap_err();
    assert!(said.contains("this machine is no member of its cluster any more"), "{said}");
    assert!(cluster.get("node", "n0")["metadata"]["annotations"]["wharfline.dev/key"].is_null());
    assert!(out().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_one_thing_only() {
    let mut cluster = Cluster::start(1).await;
    cluster.join("n0");
    let place = |name: &str| cluster.place(name).to_str().unwrap().to_owned();
    let (server, node) = (place("s0"), place("n0"));
    for (args, why) in [
        (vec!["down", "--data-dir", server.as_str()], "nothing to take down"),
        (vec!["server", "--data-dir", server.as_str(), "--listen", "127.0.0.1:0"], "another server runs on"),
        (vec!["up", "--data-dir", node.as_str(), "--listen", "127.0.0.1:0"], "is node \"n0\" of a cluster"),
        (
            vec!["server", "--data-dir", node.as_str(), "--listen", "127.0.0.1:0"],
            "is node \"n0\" of a cluster",
        ),
        (vec!["down", "--data-dir", node.as_str()], "the daemon of node \"n0\" runs here"),
    ] {
        let done = cluster.try_run(&args);
        let said =
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(said.contains(why), "{args:?}: {said}");
        assert_eq!(done.status.success(), why.starts_with("nothing"), "{args:?}: {said}");
    }
    for made in ["pki", "store.redb", "kubeconfig"] {
        assert!(!cluster.place("n0").join(made).exists(), "{made}");
    }
    assert_eq!(cluster.list("nodes").len(), 1);
    cluster.run(&["wait", "node/n0", "--for=condition=Ready", "--timeout", "30s"]);
}

/// It is a member until its Node is gone: who else would take down what is up?
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_is_started_again_while_its_node_is_being_deleted_goes_on() {
    let mut cluster = Cluster::start(1).await;
    cluster.join("n0");
    cluster.apply(&driver(&cluster));
    cluster.apply(&allocation("app", "", "exec sleep infinity"));
    wait(&cluster, "app", "Running");
    cluster.run(&["delete", "node", "n0", "--wait=false"]);
    for gently in [true, false] {
        cluster.stop_node("n0", gently);
        cluster.node("n0", &[]).unwrap();
    }
    // Nobody else joins under its name meanwhile.
    let (token, server) = (cluster.token(&[]), cluster.urls()[0].clone());
    let said = cluster.node("other", &["--server", &server, "--token", &token, "--name", "n0"]).unwrap_err();
    assert!(said.contains("node \"n0\" is being deleted; wait until it is gone"), "{said}");
    assert!(!cluster.get("node", "n0").is_null() && !cluster.mounts("n0").is_empty());
    for kind in ["allocations", "volumeclaims", "volumeclasses", "plugins"] {
        cluster.run(&["delete", kind, "--all", "--timeout", "60s"]);
    }
    cluster.run(&["wait", "node/n0", "--for=delete", "--timeout", "60s"]);
    assert_eq!(cluster.mounts("n0"), Vec::<String>::new());
}

/// Nobody else takes down any more what runs there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_up_on_a_machine_that_is_no_member_comes_down_by_what_it_knows_itself() {
    let mut cluster = Cluster::start(1).await;
    cluster.join("n0");
    cluster.apply(&driver(&cluster));
    cluster.apply(&allocation("app", "", "exec sleep infinity"));
    wait(&cluster, "app", "Running");
    let place = cluster.place("n0").to_str().unwrap().to_owned();
    let down = |cluster: &Cluster| {
        let done = cluster.try_run(&["down", "--data-dir", &place]);
        let said =
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        (done.status.success(), said)
    };
    cluster.stop_node("n0", false);
    let (done, said) = down(&cluster);
    assert!(
        !done && said.contains("start the daemon again and take the node out, `wharfline drain n0`"),
        "a member: {said}"
    );
    cluster.run(&["wait", "node/n0", "--for=condition=Ready=Unknown", "--timeout", "60s"]);
    let deleted = cluster.try_run(&["delete", "node", "n0", "--timeout", "60s"]);
    let said = String::from_utf8_lossy(&deleted.stderr);
    assert!(deleted.status.success() && said.contains("node/n0 is not heard: by this"), "{deleted:?}");
    assert!(!cluster.mounts("n0").is_empty(), "its task runs on");
    let (done, said) = down(&cluster);
    assert!(done && said.contains("is no member of its cluster any more"), "{said}");
    assert_eq!(cluster.mounts("n0"), Vec::<String>::new());
    assert_eq!(running(&place), Vec::new());
    let (done, said) = down(&cluster);
    assert!(done, "once more: {said}");
    // The same directory is a new member's, and the volume of the old one is used on it.
    cluster.join("n0");
    cluster.apply(&allocation("more", "", "exec sleep infinity"));
    wait(&cluster, "more", "Running");
    for kind in ["allocations", "volumeclaims", "volumeclasses", "plugins"] {
        cluster.run(&["delete", kind, "--all", "--timeout", "60s"]);
    }
    cluster.run(&["delete", "node", "n0", "--timeout", "60s"]);
    cluster.stop_node("n0", true);
    let (done, said) = down(&cluster);
    assert!(done, "{said}");
    assert_eq!(cluster.mounts("n0"), Vec::<String>::new());
}

/// Killed with all that it ran, as systemd does with a unit, nobody is left who could take down what is up there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_up_on_a_machine_that_is_no_member_comes_down_by_a_plugin_that_is_given_once_more() {
    let mut cluster = Cluster::start(1).await;
    cluster.join("n0");
    cluster.apply(&driver(&cluster));
    cluster.apply(&allocation("app", "", "exec sleep infinity"));
    wait(&cluster, "app", "Running");
    cluster.stop_node("n0", false);
    let (place, backend) = (cluster.place("n0"), cluster.place("backend"));
    let place = place.to_str().unwrap();
    until("all that it ran is killed", || {
        let ran: Vec<_> = running(place).into_iter().chain(running(backend.to_str().unwrap())).collect();
        for pid in &ran {
            let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
        }
        ran.is_empty()
    });
    cluster.run(&["wait", "node/n0", "--for=condition=Ready=Unknown", "--timeout", "60s"]);
    cluster.run(&["delete", "node", "n0", "--timeout", "60s"]);
    let down = |cluster: &Cluster, more: &[&str]| {
        let args = [&["down", "--data-dir", place], more].concat();
        let done = cluster.try_run(&args);
        let said =
            format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        (done.status.success(), said)
    };
    let (done, said) = down(&cluster, &["--timeout", "2s"]);
    assert!(!done && said.contains("give its Plugin with `wharfline down --apply FILE`"), "{said}");
    for made in ["pki", "store.redb", "down.store"] {
        assert!(!cluster.place("n0").join(made).exists(), "{made}: it is no server");
    }
    let file = cluster.place("plugin.yaml");
    let (all, file) = (driver(&cluster), file.to_str().unwrap());
    std::fs::write(file, &all).unwrap();
    let (done, said) = down(&cluster, &["--apply", file]);
    assert!(!done && said.contains("kind: \"VolumeClass\" is of no use here"), "{said}");
    std::fs::write(file, all.split("\n---\n").next().unwrap()).unwrap();
    let (done, said) = down(&cluster, &["--apply", file]);
    assert!(done, "{said}");
    assert_eq!((cluster.mounts("n0"), running(place)), (vec![], vec![]));
    // The volume is used on another machine.
    cluster.join("n1");
    wait(&cluster, "app", "Failed");
    cluster.run(&["delete", "allocation", "app", "--timeout", "60s"]);
    cluster.apply(&allocation("more", "", "exec sleep infinity"));
    wait(&cluster, "more", "Running");
    for kind in ["allocations", "volumeclaims", "volumeclasses", "plugins"] {
        cluster.run(&["delete", kind, "--all", "--timeout", "60s"]);
    }
}

/// The processes whose command names this directory.
fn running(directory: &str) -> Vec<rustix::process::Pid> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let pid: i32 = path.file_name()?.to_str()?.parse().ok()?;
        let text = std::fs::read_to_string(path.join("cmdline")).ok()?;
        text.contains(directory).then(|| rustix::process::Pid::from_raw(pid)).flatten()
    });
    all.collect()
}

/// A server with an embedded store and nodes that joined it has no node of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn down_does_not_reach_other_machines() {
    let mut cluster = Cluster::start(1).await;
    cluster.kill_server(0);
    cluster.serve(0, "s0/pki", "embedded").unwrap();
    cluster.join("n0");
    let server = cluster.place("s0").to_str().unwrap().to_owned();
    let down = |cluster: &Cluster| {
        let done = cluster.try_run(&["down", "--data-dir", &server]);
        format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
    };
    let said = down(&cluster);
    assert!(said.contains("it has no node of its own to take down"), "{said}");
    assert!(cluster.get("node", "n0")["metadata"]["annotations"]["wharfline.dev/stopped"].is_null());
    cluster.stop_node("n0", true);
    cluster.kill_server(0);
    let kubeconfig = cluster.place("s0").join("kubeconfig");
    assert!(kubeconfig.exists());
    let done = std::process::Command::new(env!("CARGO_BIN_EXE_wharfline"))
        .args(["down", "--data-dir", &server])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&done.stdout).contains("nothing to take down"), "{done:?}");
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&server), "it left a mount");
}
