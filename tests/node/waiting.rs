//! Allocations that wait for their plugin: what is said of it, what ends the wait, and how soon it goes on.
use std::time::Duration;

use serde_json::{Value, json};
use wharfline::api::meta::Rung;
use wharfline::csi::{Code, Rpc};

use crate::instances::ready;
use crate::support::node::{Rig, Special, condition, condition_reason};
use crate::support::scripted::{Answer, Config};

/// An allocation whose volume is made, and whose plugin went away before it was published.
async fn waits_for_its_plugin() -> Rig {
    let mut rig = Rig::new(Config::without_attach_and_stage()).await;
    let app = rig.user("app").await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    rig.plugin.kill().await;
    ready(&rig, "p", "False").await;
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.world.until(&rig.allocs, "app", "waits for its plugin", waits).await;
    rig
}

fn waits(allocation: &Value) -> bool {
    condition_reason(allocation, "Ready") == Some("PluginNotReady") && condition(allocation, "Ready", "False")
}

/// A daemon that begins anew before the plugin is back takes nothing for failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_its_plugin_goes_on_within_a_second_of_it_also_after_a_restart() {
    let mut rig = waits_for_its_plugin().await;
    rig.stop().await;
    rig.start().await;
    ready(&rig, "p", "False").await;
    let still = |a: &Value| waits(a) && a["status"]["phase"] == "WaitingVolumes";
    rig.world.until(&rig.allocs, "app", "waits for it still", still).await;
    rig.plugin.serve();
    ready(&rig, "p", "True").await;
    let registered = tokio::time::Instant::now();
    rig.published("app").await;
    assert!(registered.elapsed() < Duration::from_secs(1), "{:?}", registered.elapsed());
    rig.end_all().await;
    rig.finish().await;
}

/// Scenario A60.
/// The end of the wait needs no plugin, and nothing is called when that comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_stopped_or_deleted_while_it_waits_for_its_plugin_has_nothing_left() {
    for delete in [false, true] {
        let mut rig = waits_for_its_plugin().await;
        if delete {
            rig.world.delete(&rig.allocs, "app").await;
        } else {
            let stop = json!({ "spec": { "stop": true } });
            rig.world.patch(&rig.allocs, "app", stop).await;
        }
        let stopped = |a: &Value| a["status"]["phase"] == "Stopped";
        let app = rig.world.until(&rig.allocs, "app", "stopped without its plugin", stopped).await;
        let app = serde_json::to_value(app).unwrap();
        assert_eq!(app["status"]["volumes"][0]["published"], "Down");
        rig.end_attachment().await;
        rig.plugin.serve();
        ready(&rig, "p", "True").await;
        if !delete {
            rig.world.delete(&rig.allocs, "app").await;
        }
        rig.world.let_go(&rig.allocs, "app").await;
        rig.end_volume("vol-1").await;
        assert_eq!((rig.count(Rpc::NodePublishVolume), rig.count(Rpc::NodeUnpublishVolume)), (0, 0));
        rig.finish().await;
    }
}

/// Scenario A61.
/// At first its backend is away, and then the driver itself: for as long as several attempts take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_is_away_during_attach_or_detach_fails_nobody() {
    let mut rig = Rig::new(Config::full()).await;
    let away = || Answer::fail(Code::Unavailable, "no backend");
    rig.backend.always(Rpc::ControllerPublishVolume, away());
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    rig.called(Rpc::ControllerPublishVolume, 4).await;
    rig.plugin.kill().await;
    ready(&rig, "p", "False").await;
    let still = rig.allocs.get("app").await.unwrap();
    assert_eq!(serde_json::to_value(still).unwrap()["status"]["phase"], "WaitingVolumes");
    rig.backend.honest(Rpc::ControllerPublishVolume);
    rig.plugin.serve();
    rig.published("app").await;
    rig.backend.always(Rpc::ControllerUnpublishVolume, away());
    rig.end_alloc("app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.called(Rpc::ControllerUnpublishVolume, 4).await;
    rig.plugin.kill().await;
    ready(&rig, "p", "False").await;
    let still = rig.attachments.get("att-1").await.unwrap().status.unwrap().controller.unwrap();
    assert_ne!(still.attached, Rung::Down);
    rig.backend.honest(Rpc::ControllerUnpublishVolume);
    rig.plugin.serve();
    rig.detached().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// The controllers alone know why there is no attachment; its node says it, until there is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_there_is_no_attachment_yet_is_known_by_the_controllers_and_said_by_the_node() {
    let mut rig = Rig::new(Config::without_attach_and_stage()).await;
    let app = rig.user("app").await;
    let own = |a: &Value| a["status"]["phase"] == "WaitingVolumes";
    rig.world.until(&rig.allocs, "app", "waiting", own).await;
    let obstacle = json!({ "reason": "PluginNotReady", "message": "waits for a healthy instance" });
    rig.world.status(&rig.allocs, "app", json!({ "obstacle": obstacle })).await;
    let said = |a: &Value| waits(a) && condition_reason(a, "VolumesReady") == Some("PluginNotReady");
    rig.world.until(&rig.allocs, "app", "told", said).await;
    rig.stop().await;
    rig.start().await;
    // It looks at all that it has before it says that a new one is bound to it.
    rig.alloc("other", json!({ "volumes": [{ "name": "data", "claimName": "other" }] })).await;
    rig.world.until(&rig.allocs, "other", "waiting", own).await;
    let after = serde_json::to_value(rig.allocs.get("app").await.unwrap()).unwrap();
    assert!(said(&after), "{after}");
    // What was said of the time before counts no more.
    rig.give(&[&app], &Special::default()).await;
    let app = serde_json::to_value(rig.published("app").await).unwrap();
    assert!(!waits(&app), "{app}");
    rig.end_alloc("other").await;
    rig.end_all().await;
    rig.finish().await;
}
