//! Servers restarted one after the other, under clients that must not notice.
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::etcd::Port;
use crate::rig::{Cluster, until, wharfline};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_are_restarted_one_by_one_and_no_client_notices() {
    let mut cluster = Cluster::start(0).await;
    let ports: Vec<Port> = std::iter::repeat_with(Port::take).take(3).collect();
    let addresses: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{}", port.number())).collect();
    let store = cluster.store();
    let serve = |cluster: &mut Cluster, n: usize| {
        let peers = addresses.iter().filter(|address| **address != addresses[n]);
        let peers: Vec<&str> = peers.flat_map(|address| ["--peer", address.as_str()]).collect();
        let served = cluster.serve_with(n, ("pki", &store, &addresses[n]), &peers);
        served.unwrap_or_else(|log| panic!("server {n}: {log}"));
    };
    (0..3).for_each(|n| serve(&mut cluster, n));
    cluster.join("n0");
    cluster.apply(include_str!("../../manifests/quickstart.yaml"));
    cluster.run(&["wait", "allocation/hello", "--for=jsonpath={.status.phase}=Running", "--timeout", "60s"]);
    let before = cluster.get("allocation", "hello")["status"].clone();
    let mounted = cluster.mounts("n0");

    // All clients have the kubeconfig of the first server, which names the others.
    let kubeconfig = cluster.place("s0").join("kubeconfig").to_str().unwrap().to_owned();
    let mut follower = wharfline();
    follower.args(["--kubeconfig", &kubeconfig, "get", "configmaps", "-w", "-o", "name"]);
    let mut follower = follower.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let told = BufReader::new(follower.stdout.take().unwrap());
    let (done, place) = (AtomicBool::new(false), cluster.place("note.yaml"));
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written: Vec<String> = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let name = format!("note-{}", written.len());
                let object = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
                std::fs::write(&place, object).unwrap();
                let file = place.to_str().unwrap();
                let made = wharfline().args(["--kubeconfig", &kubeconfig, "apply", "-f", file]).output();
                let made = made.unwrap();
                assert!(made.status.success(), "{name}: {}", String::from_utf8_lossy(&made.stderr));
                written.push(name);
            }
            written
        });
        for n in 0..3 {
            cluster.stop_server(n);
            serve(&mut cluster, n);
        }
        done.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(written.len() > 3, "{written:?}");
    let kept = cluster.list("configmaps");
    let kept: Vec<&str> = kept.iter().filter_map(|object| object["metadata"]["name"].as_str()).collect();
    assert!(written.iter().all(|name| kept.contains(&name.as_str())), "{written:?}: {kept:?}");
    // The one that watches from before was told of all.
    let mut missing: Vec<String> = written.iter().map(|name| format!("configmap/{name}")).collect();
    for line in told.lines() {
        let line = line.unwrap();
        missing.retain(|name| *name != line);
        if missing.is_empty() {
            break;
        }
    }
    // `timeout` passes it on.
    let pid = rustix::process::Pid::from_child(&follower);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    follower.wait().unwrap();
    assert_eq!(missing, Vec::<String>::new(), "the watch was not told of these");

    // Nothing was done anew, and what is said to the servers now is done.
    assert_eq!(cluster.mounts("n0"), mounted);
    assert_eq!(cluster.get("allocation", "hello")["status"]["tasks"], before["tasks"]);
    cluster.run(&["delete", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/quickstart.yaml")]);
    until("nothing is mounted", || cluster.mounts("n0").is_empty());
    cluster.stop_node("n0", true);
}
