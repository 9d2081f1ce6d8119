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

/// Scenario B9.
/// Obligation CO-CTRL-16.
/// Each node has disks of its own, and those of the first are full by now: the volume is made on the second, and its user goes there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_finds_no_room_runs_where_there_is_some() {
    let mut cluster = Cluster::start(1).await;
    let small = cluster.place("n0").join("drivers/loop");
    for node in ["n0", "n1"] {
        cluster.join(node);
    }
    std::fs::create_dir_all(&small).unwrap();
    let size = Some(c"size=96m");
    rustix::mount::mount("small", &small, "tmpfs", rustix::mount::MountFlags::empty(), size).unwrap();
    let manifest = include_str!("../../manifests/loop.yaml")
        .replace("spec:\n  instances:", "spec:\n  controllerScope: Node\n  instances:")
        .replace("drivers/loop\"]", "drivers/loop\", --topology, \"${NODE_NAME}\"]");
    assert!(manifest.contains("controllerScope: Node") && manifest.contains("--topology"));
    let (objects, _writer) = manifest.rsplit_once("\n---\n").unwrap();
    cluster.apply(objects);
    until("the plugin serves everywhere", || instances(&cluster).len() == 2);
    let tells = |i: &Value| i["status"]["rooms"][0]["availableBytes"].is_i64();
    until("both tell of room", || cluster.list("plugininstances").iter().all(tells));
    // What the first one told is old news by now.
    let other = std::fs::File::create(small.join("other")).unwrap();
    rustix::fs::fallocate(&other, rustix::fs::FallocateFlags::empty(), 0, 64 << 20).unwrap();
    drop(other);
    cluster.apply(&allocation("app", "", "exec sleep infinity"));
    wait(&cluster, "app", "Running");
    assert_eq!(node_of(&cluster, "app"), "n1");
    let events = cluster.run(&["describe", "volumeclaim/disk"]);
    assert!(events.contains("NoRoom") && events.contains("made on \"n1\" instead"), "{events}");
    assert_eq!(
        std::fs::read_dir(small.join("volumes")).map_or(0, Iterator::count),
        0,
        "something is left of it"
    );
    for kind in ["allocations", "volumeclaims", "volumeclasses", "plugins"] {
        cluster.run(&["delete", kind, "--all", "--timeout", "60s"]);
    }
    for kind in ["volumes", "volumeattachments", "plugininstances", "allocations"] {
        assert_eq!(cluster.list(kind), Vec::<Value>::new(), "{kind}");
    }
    rustix::mount::unmount(&small, rustix::mount::UnmountFlags::empty()).unwrap();
    for node in ["n0", "n1"] {
        assert_eq!(cluster.mounts(node), Vec::<String>::new(), "{node} has mounts left");
        cluster.stop_node(node, true);
    }
}
