//! One volume's life on one node, with the built-in driver as a task: up, used, through a restart, down.
use futures::StreamExt;
use kube::Api;
use kube::api::{WatchEvent, WatchParams};
use serde_json::json;
use wharfline::api::allocation::AllocationPhase;
use wharfline::api::{Allocation, PluginInstance, Volume, VolumeAttachment};

use crate::support::node::{Daemon, NODE, Place, Rig, World, mounts_beneath, server, uid};
use crate::support::scripted::Config;

async fn plugin(world: &World) -> (Api<Allocation>, Api<PluginInstance>) {
    let allocs: Api<Allocation> = world.namespaced();
    let alloc = world
        .create(
            &allocs,
            json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
            "metadata": { "name": "dir" },
            "spec": { "tasks": [{ "name": "plugin",
                "runtime": { "process": { "command": ["wharfline", "csi", "dir", "--data-dir", "${DATA_DIR}/drivers/dir"] } },
                "csiPlugin": { "pluginName": "dir", "role": "Monolith" } }] } }),
        )
        .await;
    world.status(&allocs, "dir", json!({ "nodeName": NODE })).await;
    let instances: Api<PluginInstance> = world.all();
    world
        .create(
            &instances,
            json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "PluginInstance",
            "metadata": { "name": "dir-a" },
            "spec": { "plugin": "dir", "role": "Monolith", "nodeName": NODE, "task": "plugin",
                "allocation": { "namespace": "default", "name": "dir", "uid": uid(&alloc) } } }),
        )
        .await;
    (allocs, instances)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_goes_up_is_used_survives_a_restart_and_comes_down() {
    let place = Place::new();
    let server = server().await;
    let world = World::new(&server);
    let daemon = Daemon::start(&server, &place).await;
    let (allocs, instances) = plugin(&world).await;
    world
        .until(&instances, "dir-a", "ready", |i| {
            i["status"]["provider"]["name"] == "dir.csi.wharfline.dev"
                && i["status"]["conditions"]
                    .as_array()
                    .is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
        })
        .await;

    let volumes: Api<Volume> = world.all();
    let volume = world
        .create(
            &volumes,
            json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": "vol-1" },
            "spec": { "plugin": "dir", "accessModes": ["SingleNodeWriter"],
                "source": { "create": { "name": "vol-1", "requiredBytes": 1 << 20 } } } }),
        )
        .await;
    world.status(&volumes, "vol-1", json!({ "controller": { "nodeName": NODE, "epoch": 1 } })).await;
    let made = world.until(&volumes, "vol-1", "made", |v| v["status"]["exists"] == "Up").await;
    let handle = made.status.unwrap().handle;

    let app = world
        .create(
            &allocs,
            json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation", "metadata": { "name": "app" },
            "spec": { "volumes": [{ "name": "data", "claimName": "data" }],
                "tasks": [{ "name": "writer", "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                    "runtime": { "process": { "command": ["/bin/sh", "-c",
                        "echo hello >> /data/greeting && exec sleep infinity"] } } }] } }),
        )
        .await;
    world.status(&allocs, "app", json!({ "nodeName": NODE })).await;
    let attachments: Api<VolumeAttachment> = world.all();
    world
        .create(
            &attachments,
            json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
            "metadata": { "name": "att-1" },
            "spec": { "volume": "vol-1", "volumeUid": uid(&volume), "nodeName": NODE, "plugin": "dir",
                "claim": { "namespace": "default", "name": "data", "uid": "c" },
                "host": { "nodeName": NODE, "epoch": 1 }, "attachRequired": false, "stageRequired": false,
                "handle": handle, "nodeId": NODE, "allocations": [uid(&app)],
                "capability": { "accessMode": "SingleNodeWriter" } } }),
        )
        .await;
    let running = world.until(&allocs, "app", "running", |a| a["status"]["phase"] == "Running").await;
    let path = running.status.unwrap().volumes[0].path.clone();
    let greeting = std::path::Path::new(&path).join("greeting");
    crate::support::node::until_file(&greeting, "hello\n").await;

    // A restart of the daemon touches nothing.
    let before = mounts_beneath(place.data.path());
    daemon.stop().await;
    let daemon = Daemon::start(&server, &place).await;
    assert_eq!(mounts_beneath(place.data.path()), before);
    world.until(&allocs, "app", "running still", |a| a["status"]["phase"] == "Running").await;
    assert_eq!(std::fs::read_to_string(&greeting).unwrap(), "hello\n", "the task was not started again");

    world.delete(&allocs, "app").await;
    world.until(&allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    world.delete(&attachments, "att-1").await;
    world
        .until(&attachments, "att-1", "released", |a| {
            a["status"]["node"]["releasedUID"] == a["metadata"]["uid"]
        })
        .await;
    world.let_go(&attachments, "att-1").await;
    world.let_go(&allocs, "app").await;
    world.delete(&volumes, "vol-1").await;
    world.until(&volumes, "vol-1", "deleted", |v| v["status"]["exists"] == "Down").await;
    world.let_go(&volumes, "vol-1").await;
    world.delete(&allocs, "dir").await;
    world.status(&allocs, "dir", json!({ "pluginReleased": true })).await;
    world.until(&allocs, "dir", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    world.let_go(&allocs, "dir").await;
    crate::support::node::until(|| !place.run.exists(), "the socket's directory is gone").await;
    let tree = place.data.path().join("volumes");
    assert_eq!(mounts_beneath(place.data.path()), [tree.to_string_lossy()]);
    assert_eq!(std::fs::read_dir(place.data.path().join("drivers/dir/volumes")).unwrap().count(), 0);
    daemon.stop().await;
    place.clear();
}

/// What is over before anybody could read it is not told: each word is a write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_down_at_once_says_once_that_it_is_down() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    let version = rig.allocs.get("app").await.unwrap().metadata.resource_version.unwrap();
    let parameters = WatchParams::default().fields("metadata.name=app");
    let mut changes = rig.allocs.watch(&parameters, &version).await.unwrap().boxed();
    rig.world.delete(&rig.allocs, "app").await;
    let mut said = Vec::new();
    let down = async {
        while said.last() != Some(&Some(AllocationPhase::Stopped)) {
            if let Some(WatchEvent::Modified(change)) = changes.next().await.transpose().unwrap() {
                said.push(change.status.and_then(|status| status.phase));
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), down).await.expect("it comes down");
    // That it is to be deleted, and that it is down.
    assert_eq!(said, [Some(AllocationPhase::Running), Some(AllocationPhase::Stopped)]);
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}
