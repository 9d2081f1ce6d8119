//! Who may join, and who may stay.
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use wharfline::api::Allocation;
use wharfline::server::{Issued, kubeconfig};

use crate::rig::{Cluster, until};

/// A client with the certificate that a node was given.
async fn node_client(cluster: &Cluster, node: &str) -> kube::Client {
    let file = |name: &str| std::fs::read_to_string(cluster.place(node).join("identity").join(name)).unwrap();
    let issued = Issued { certificate: file("node.crt"), key: file("node.key") };
    let text = kubeconfig(&cluster.urls()[0], &file("ca.crt"), &issued);
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
    let said = cluster.node("n1", &["--name", "n3"]).unwrap_err();
    assert!(said.contains("this data directory is node \"n1\""), "{said}");
    let secrets = cluster.run(&["get", "secrets", "-n", "wharfline-system", "-o", "yaml"]);
    assert!(!secrets.contains(secret), "only a hash of the secret is kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_removed_is_out_at_once() {
    let mut cluster = Cluster::start(1).await;
    cluster.join("n0");
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
    // The same key with a new token is a new member.
    cluster.stop_node("n0", true);
    std::fs::remove_file(cluster.place("n0").join("identity/node.crt")).unwrap();
    cluster.join("n0");
    allocations.list(&mine).await.unwrap();
    // A person gives the name away; then the key that had it is out.
    cluster.run(&["annotate", "node/n0", "wharfline.dev/key-"]);
    until("the old key is refused", || {
        !matches!(
            cluster.get("node", "n0")["metadata"]["annotations"]["wharfline.dev/key"],
            serde_json::Value::String(_)
        )
    });
    assert!(matches!(allocations.list(&mine).await, Err(kube::Error::Api(status)) if status.code == 401));
}
