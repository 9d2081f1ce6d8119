//! A store that is backed up, restored, and moved, under what runs.
use crate::rig::{Cluster, alone, until};

const QUICKSTART: &str = include_str!("../../manifests/quickstart.yaml");

/// Everything that people write, without what changes by itself.
fn wanted(cluster: &Cluster) -> Vec<serde_json::Value> {
    let kinds =
        ["plugins", "volumeclasses", "volumeclaims", "volumes", "allocations", "secrets", "configmaps"];
    let objects = kinds.iter().flat_map(|kind| cluster.list(kind));
    objects
        .map(|mut object| {
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
            serde_json::json!({ "metadata": object["metadata"], "spec": object["spec"], "data": object["data"] })
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_restored_into_another_etcd_and_the_tasks_do_not_notice() {
    let mut cluster = Cluster::start(1).await;
    cluster.join("n0");
    cluster.apply(QUICKSTART);
    cluster.run(&["wait", "allocation/hello", "--for=jsonpath={.status.phase}=Running", "--timeout", "60s"]);
    cluster.apply("apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\nstringData:\n  key: canary-7361\n");
    let before = wanted(&cluster);
    let (status, mounted) = (cluster.get("allocation", "hello")["status"].clone(), cluster.mounts("n0"));
    let version = |cluster: &Cluster| {
        let version = cluster.get("allocation", "hello")["metadata"]["resourceVersion"].clone();
        version.as_str().unwrap().parse::<u64>().unwrap()
    };
    let old = version(&cluster);
    let file = cluster.place("backup.jsonl");
    let file = file.to_str().unwrap();
    let said = cluster.run(&["backup", "-o", file]);
    assert!(said.starts_with(file) && said.contains(" keys"), "{said}");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(!text.contains("canary-7361") && !text.contains("Y2FuYXJ5LTczNjE"), "a Secret lies open in it");
    let again = cluster.try_run(&["backup", "-o", file]);
    assert_eq!(again.status.code(), Some(2), "a backup replaces no file");

    // What came behind the backup is lost; the port stays, so that the node finds the server again.
    let address = cluster.urls()[0].strip_prefix("https://").unwrap().to_owned();
    cluster.kill_server(0);
    let other = crate::etcd::Etcd::start(1).await;
    let store = format!("etcd://{}", other.endpoints().join(","));
    let broken = cluster.place("broken.jsonl");
    let end = text.trim_end().rfind('\n').unwrap();
    std::fs::write(&broken, &text[..=end]).unwrap();
    let directory = cluster.place("s0");
    let restore = |file: &str| {
        let directory = directory.to_str().unwrap();
        alone(&["restore", file, "--data-dir", directory, "--store", &store, "--raise", "5000"])
    };
    let refused = restore(broken.to_str().unwrap());
    assert!(!refused.status.success(), "a broken file");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("it is not whole"), "{refused:?}");
    let done = restore(file);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let twice = restore(file);
    assert!(String::from_utf8_lossy(&twice.stderr).contains("the store is not empty"), "{twice:?}");
    cluster.serve_at(0, "pki", &store, &address).unwrap_or_else(|log| panic!("{log}"));
    assert_eq!(wanted(&cluster), before);
    assert!(version(&cluster) > old, "no revision comes twice");
    let secret = cluster.run(&["get", "secret", "s", "-o", "jsonpath={.data.key}"]);
    assert_eq!(secret.trim(), "Y2FuYXJ5LTczNjE=");
    // The node is there again, and all is as it was.
    cluster.run(&["wait", "node/n0", "--for=condition=Ready", "--timeout", "60s"]);
    cluster.run(&["annotate", "allocation/hello", "a=b"]);
    let after = cluster.get("allocation", "hello")["status"].clone();
    assert_eq!((&after["tasks"], &after["volumes"]), (&status["tasks"], &status["volumes"]));
    assert_eq!(cluster.mounts("n0"), mounted);
    for kind in ["allocations", "volumeclaims", "volumeclasses", "plugins"] {
        cluster.run(&["delete", kind, "--all", "--timeout", "60s"]);
    }
    until("nothing is left", || cluster.mounts("n0").is_empty());
    cluster.stop_node("n0", true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_began_alone_becomes_a_cluster_under_a_running_task() {
    let mut cluster = Cluster::start(0).await;
    let address = cluster.up("n0");
    let kubeconfig = cluster.place("n0").join("kubeconfig");
    let kubeconfig = kubeconfig.to_str().unwrap();
    let manifest = cluster.place("quickstart.yaml");
    std::fs::write(&manifest, QUICKSTART).unwrap();
    let at = |args: &[&str]| {
        let done = alone(&[&["--kubeconfig", kubeconfig], args].concat());
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    at(&["apply", "-f", manifest.to_str().unwrap()]);
    at(&["wait", "allocation/hello", "--for=jsonpath={.status.phase}=Running", "--timeout", "60s"]);
    let before: serde_json::Value =
        serde_json::from_str(&at(&["get", "allocation", "hello", "-o", "json"])).unwrap();
    let mounted = cluster.mounts("n0");
    let directory = cluster.place("n0");
    let directory = directory.to_str().unwrap().to_owned();
    let store = cluster.store();
    let migrate = || alone(&["migrate", "--data-dir", &directory, "--to", &store]);
    let refused = migrate();
    assert!(!refused.status.success(), "`up` runs on it");
    cluster.stop_node("n0", true);
    let done = migrate();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(
        said.contains("token create --node") && !cluster.place("n0").join("store.redb").exists(),
        "{said}"
    );
    let pki = format!("{directory}/pki");
    cluster.serve_at(0, &pki, &store, &address).unwrap_or_else(|log| panic!("{log}"));
    let name = before["status"]["nodeName"].as_str().unwrap();
    let token = cluster.token(&["--node", name]);
    let server = cluster.urls()[0].clone();
    cluster
        .node("n0", &["--server", &server, "--token", &token, "--name", name])
        .unwrap_or_else(|log| panic!("{log}"));
    let after = cluster.get("allocation", "hello");
    assert_eq!(after["status"]["tasks"], before["status"]["tasks"]);
    assert_eq!(after["status"]["volumes"], before["status"]["volumes"]);
    assert_eq!(cluster.mounts("n0"), mounted);
    for kind in ["allocations", "volumeclaims", "volumeclasses", "plugins"] {
        cluster.run(&["delete", kind, "--all", "--timeout", "60s"]);
    }
    assert_eq!(cluster.mounts("n0"), Vec::<String>::new());
    cluster.stop_node("n0", true);
}
