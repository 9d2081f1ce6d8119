//! Volumes that are there while they are published, and what a driver is told of whom it publishes for.
use serde_json::{Value, json};
use wharfline::api::{Allocation, VolumeAttachment};
use wharfline::csi::Rpc;

use crate::support::node::{Rig, Special, uid};
use crate::support::scripted::{Answer, Ask, Config};

const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
const HANDLE: &str = "csi-vol-1";

/// A volume of that kind on its way to `user`, as the controllers make it.
async fn give(rig: &Rig, user: &Allocation) {
    let context = json!({ "size": "1Gi", EPHEMERAL: "true" });
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": "vol-1" },
        "spec": { "plugin": "scripted", "accessModes": ["SingleNodeWriter"],
            "source": { "ephemeral": { "handle": HANDLE, "context": context } } } });
    let _made: wharfline::api::Volume = rig.world.create(&rig.volumes, object).await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "phase": "Ready" })).await;
    let attachment = json!({ "host": null, "attachRequired": false, "stageRequired": false, "podInfo": true,
        "handle": HANDLE, "volumeContext": context });
    let _made: VolumeAttachment =
        rig.attach("vol-1", &[user], &Special { attachment, ..Special::default() }).await;
}

async fn end(rig: &Rig) {
    rig.end_alloc("app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    let released = |a: &Value| a["status"]["node"]["releasedUID"] == a["metadata"]["uid"];
    rig.world.until(&rig.attachments, "att-1", "released", released).await;
    rig.world.let_go(&rig.attachments, "att-1").await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
}

/// Scenarios B38, B79, B90.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ephemeral_volume_is_published_and_unpublished_and_nothing_else() {
    let rig = Rig::new(Config::full()).await;
    let app = rig.user("app").await;
    give(&rig, &app).await;
    rig.published("app").await;
    let asked = rig.backend.calls().into_iter().find_map(|call| match call.ask {
        Ask::NodePublishVolume(request) => Some(request),
        _ => None,
    });
    let asked = asked.expect("it is published");
    assert_eq!(asked.volume_id, HANDLE);
    let context = json!(asked.volume_context);
    let wanted = json!({ EPHEMERAL: "true", "size": "1Gi", "csi.storage.k8s.io/pod.name": "app",
        "csi.storage.k8s.io/pod.namespace": "default", "csi.storage.k8s.io/pod.uid": uid(&app) });
    assert_eq!(context, wanted);
    end(&rig).await;
    assert_eq!(rig.backend.order(), ["NodePublishVolume", "NodeUnpublishVolume"]);
    assert!(!rig.files.path().join("volumes").join(HANDLE).exists(), "its data went with it");
    rig.finish().await;
}

/// Scenario B90.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ephemeral_volume_that_may_be_there_is_unpublished() {
    let mut rig = Rig::new(Config::full()).await;
    // Every answer is lost.
    rig.backend.always(Rpc::NodePublishVolume, Answer::cut().after_effect());
    let app = rig.user("app").await;
    give(&rig, &app).await;
    rig.called(Rpc::NodePublishVolume, 1).await;
    rig.kill().await;
    rig.start().await;
    end(&rig).await;
    assert!(rig.count(Rpc::NodeUnpublishVolume) > 0);
    assert!(!rig.files.path().join("volumes").join(HANDLE).exists(), "its data went with it");
    rig.finish().await;
}

/// Scenario B79.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_not_told_of_allocations_is_told_nothing() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    let asked = rig.backend.calls().into_iter().find_map(|call| match call.ask {
        Ask::NodePublishVolume(request) => Some(request),
        _ => None,
    });
    let known = rig.volumes.get("vol-1").await.unwrap().status.unwrap().context;
    assert_eq!(asked.expect("it is published").volume_context, known);
    rig.end_all().await;
    rig.finish().await;
}
