//! What a node lets go of before anybody asks it to.
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use wharfline::api::VolumeAttachment;
use wharfline::csi::Rpc;

use crate::support::node::{DEADLINE, Rig, Special};
use crate::support::scripted::{Answer, Config, Gate};

const STATUS: &str = "/apis/wharfline.dev/v1alpha1/volumeattachments/att-1/status";

/// One allocation `app` that has its volume in this mode.
async fn running(mode: &'static str) -> Rig {
    let rig = Rig::new(Config::full()).await;
    let app = rig.user("app").await;
    rig.give(&[&app], &Special { mode: Some(mode), ..Special::default() }).await;
    rig.published("app").await;
    rig
}

fn is_marked(attachment: &Value) -> bool {
    attachment["metadata"]["deletionTimestamp"].is_string()
}

/// Nobody takes a deletion back, and where one alone may have the volume no other can have been let in: its node does not wait to
/// be asked, and the attachment's deletion begins with its word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_nobody_can_want_any_more_is_let_go_before_anybody_asks() {
    for mode in ["SingleNodeWriter", "SingleNodeSingleWriter", "SingleNodeReaderOnly"] {
        let rig = running(mode).await;
        // It goes as soon as nothing of it is left.
        let own = json!({ "metadata": { "finalizers": ["wharfline.dev/protection"] } });
        rig.world.patch(&rig.attachments, "att-1", own).await;
        let before = rig.link.patches(STATUS);
        rig.end_alloc("app").await;
        let gone = |a: Option<&VolumeAttachment>| a.is_none();
        let gone = await_condition(rig.attachments.clone(), "att-1", gone);
        tokio::time::timeout(DEADLINE, gone).await.unwrap().unwrap();
        assert_eq!(rig.link.patches(STATUS), before + 1, "{mode}: let go and detached, which is one word");
        let calls = [Rpc::NodeUnpublishVolume, Rpc::NodeUnstageVolume, Rpc::ControllerUnpublishVolume];
        assert_eq!(calls.map(|rpc| rig.count(rpc)), [1, 1, 1], "{mode}");
        assert_eq!(rig.count(Rpc::ControllerPublishVolume), 1, "{mode}: it is not attached again");
        rig.end_volume("vol-1").await;
        rig.finish().await;
    }
}

/// Others may come who were let in already, or it may be wanted again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_may_be_wanted_again_is_kept_until_it_is_asked_for() {
    for (mode, deleted) in
        [("SingleNodeMultiWriter", true), ("MultiNodeMultiWriter", true), ("SingleNodeWriter", false)]
    {
        let rig = running(mode).await;
        if deleted {
            rig.end_alloc("app").await;
        } else {
            rig.stop_alloc("app").await;
        }
        // What is asked for after that is done after it, too.
        let second =
            rig.alloc("second", json!({ "volumes": [{ "name": "data", "claimName": "other" }] })).await;
        rig.give_second(&second).await;
        rig.published("second").await;
        assert_eq!(rig.count(Rpc::NodeUnstageVolume), 0, "{mode}");
        rig.world.until(&rig.attachments, "att-1", "it stays", |a| !is_marked(a)).await;
        rig.end_attachment().await;
        if !deleted {
            rig.end_alloc("app").await;
        }
        rig.end_volume("vol-1").await;
        rig.end_second().await;
        rig.finish().await;
    }
}

/// The daemon ends after it let go and before that is told: the next one detaches, and tells both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_let_go_unasked_is_known_to_the_next_daemon() {
    let mut rig = running("SingleNodeWriter").await;
    let gate = Gate::new();
    rig.backend.next(Rpc::ControllerUnpublishVolume, Answer::honest().hang(&gate));
    rig.world.delete(&rig.allocs, "app").await;
    rig.in_flight(Rpc::ControllerUnpublishVolume, 1).await;
    rig.kill().await;
    gate.open();
    rig.start().await;
    rig.world.until(&rig.attachments, "att-1", "it goes", is_marked).await;
    rig.detached().await;
    assert_eq!(rig.count(Rpc::ControllerPublishVolume), 1);
    assert_eq!(rig.count(Rpc::NodeStageVolume), 1);
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}
