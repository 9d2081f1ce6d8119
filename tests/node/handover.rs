//! What others wrote while this node was away, or while another was host.
use std::time::Duration;

use serde_json::{Value, json};
use wharfline::api::meta::Rung;
use wharfline::csi::{Code, Rpc};

use crate::support::node::{NODE, Rig, Special, condition, condition_reason, until};
use crate::support::scripted::{Answer, Config, Gate};

/// The earlier host's word that the volume is deleted says nothing: the new host asks the plugin and speaks for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_that_an_earlier_host_confirmed_is_confirmed_anew() {
    let mut rig = Rig::new(Config::full()).await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    rig.stop().await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "exists": "Down" })).await;
    let moved = json!({ "controller": { "nodeName": NODE, "epoch": 2 } });
    let volume = rig.world.status(&rig.volumes, "vol-1", moved).await;
    assert_eq!(volume.status.unwrap().observed_epoch, 1);
    rig.start().await;
    let own = |v: &Value| v["status"]["observedEpoch"] == 2 && v["status"]["exists"] == "Down";
    rig.world.until(&rig.volumes, "vol-1", "deleted by this host's word", own).await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 1);
    rig.world.let_go(&rig.volumes, "vol-1").await;
    rig.finish().await;
}

/// The host is decided on the Volume, and its attachments are told a moment later. Who comes back just then is still named
/// there, and must not call beside the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attachment_that_names_the_host_before_is_left_to_the_host_of_its_volume() {
    let mut rig = Rig::new(Config::full()).await;
    let app = rig.user("app").await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let host = |node: &str, epoch: u64| json!({ "controller": { "nodeName": node, "epoch": epoch } });
    rig.world.status(&rig.volumes, "vol-1", host("another", 2)).await;
    rig.attach("vol-1", &[&app], &Special::default()).await;
    // It reads all of it anew.
    rig.stop().await;
    rig.start().await;
    rig.ready().await;
    rig.ask("vol-2", &Special::default()).await;
    rig.volume_up("vol-2").await;
    assert_eq!(rig.count(Rpc::ControllerPublishVolume), 0);
    rig.world.status(&rig.volumes, "vol-1", host(NODE, 3)).await;
    let told = json!({ "spec": { "host": { "nodeName": NODE, "epoch": 3 } } });
    rig.world.patch(&rig.attachments, "att-1", told).await;
    rig.published("app").await;
    assert_eq!(rig.count(Rpc::ControllerPublishVolume), 1);
    rig.end_volume("vol-2").await;
    rig.end_all().await;
    rig.finish().await;
}

/// The allocations controller speaks for a node that is silent; once it is back the node says what is true.
async fn told(rig: &Rig, condition: Value, status: Value) {
    let before = rig.allocs.get("app").await.unwrap().status.unwrap().conditions;
    let mut list = serde_json::to_value(before).unwrap();
    let ready = list.as_array_mut().unwrap().iter_mut().find(|c| c["type"] == "Ready").unwrap();
    for (key, value) in condition.as_object().unwrap() {
        ready[key] = value.clone();
    }
    let mut status = status;
    status["conditions"] = list;
    rig.world.status(&rig.allocs, "app", status).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_only_silent_says_again_that_its_tasks_run() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    let ready = |a: &Value| condition(a, "Ready", "True") && condition_reason(a, "Ready") == Some("Running");
    rig.world.until(&rig.allocs, "app", "ready", ready).await;
    // Cut off: what it wrote last is all that it knows.
    let lost = json!({ "status": "Unknown", "reason": "NoFence", "message": "is lost" });
    told(&rig, lost.clone(), json!({})).await;
    rig.world.until(&rig.allocs, "app", "ready again", ready).await;
    // Started anew: it knows only what stands there.
    rig.stop().await;
    told(&rig, lost, json!({})).await;
    rig.start().await;
    rig.world.until(&rig.allocs, "app", "ready after a restart", ready).await;
    assert_eq!(rig.count(Rpc::NodePublishVolume), 1, "nothing was touched");
    rig.end_all().await;
    rig.finish().await;
}

/// Two who contradict one another for ever would never be quiet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_lease_does_not_contradict_until_it_has_one() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.options.lease = Duration::from_secs(3);
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    rig.running().await;
    rig.link.cut_leases();
    crate::server::lease_over(&rig).await;
    told(&rig, json!({ "status": "Unknown", "reason": "NoFence", "message": "is lost" }), json!({})).await;
    // The daemon hears of this one after the other.
    rig.user("later").await;
    let waits = |a: &Value| a["status"]["phase"] == "WaitingVolumes";
    rig.world.until(&rig.allocs, "later", "seen", waits).await;
    let app = serde_json::to_value(rig.allocs.get("app").await.unwrap()).unwrap();
    assert_eq!(condition_reason(&app, "Ready"), Some("NoFence"));
    rig.link.mend();
    rig.world.until(&rig.allocs, "app", "ready again", |a| condition(a, "Ready", "True")).await;
    rig.end_alloc("later").await;
    rig.end_all().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_given_up_takes_down_what_is_left_and_lets_the_reason_stand() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.stop().await;
    let lost = json!({ "status": "False", "reason": "NodeLost", "message": "is lost and surely off" });
    told(&rig, lost, json!({ "phase": "Failed" })).await;
    rig.start().await;
    let down = |a: &Value| a["status"]["volumes"][0]["published"] == "Down";
    let app = rig.world.until(&rig.allocs, "app", "unpublished", down).await;
    let app = serde_json::to_value(app).unwrap();
    assert_eq!(
        (condition_reason(&app, "Ready"), &app["status"]["phase"]),
        (Some("NodeLost"), &json!("Failed"))
    );
    assert!(condition(&app, "VolumesReady", "False"), "{app}");
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// This node is host anew, under a higher epoch.
async fn new_host(rig: &Rig) {
    let host = json!({ "nodeName": NODE, "epoch": 2 });
    rig.world.status(&rig.volumes, "vol-1", json!({ "controller": host })).await;
    rig.world.patch(&rig.attachments, "att-1", json!({ "spec": { "host": host } })).await;
}

/// Scenario B127.
/// The node may be calling about it at the same time; and what is in place is not called again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_host_attaches_nothing_that_an_earlier_one_attached() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.stop().await;
    new_host(&rig).await;
    rig.start().await;
    rig.ask("vol-2", &Special::default()).await;
    rig.volume_up("vol-2").await;
    rig.end_volume("vol-2").await;
    rig.end_all().await;
    assert_eq!((rig.count(Rpc::ControllerPublishVolume), rig.count(Rpc::ControllerUnpublishVolume)), (1, 1));
    rig.finish().await;
}

/// A plugin that has learnt more may find the same wish another one. A task that uses the volume is worth more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_host_detaches_nothing_that_the_node_may_be_using() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.backend.next(
        Rpc::ControllerPublishVolume,
        Answer::fail(Code::AlreadyExists, "attached with other arguments"),
    );
    rig.stop().await;
    // The earlier host was in doubt when it went.
    let doubt = json!({ "controller": { "attached": "Unknown" } });
    rig.world.status(&rig.attachments, "att-1", doubt).await;
    new_host(&rig).await;
    rig.start().await;
    let told = |a: &Value| a["status"]["controller"]["reason"] == "ControllerPublishVolumeFailed";
    rig.world.until(&rig.attachments, "att-1", "the refusal", told).await;
    assert_eq!((rig.count(Rpc::ControllerPublishVolume), rig.count(Rpc::ControllerUnpublishVolume)), (2, 0));
    rig.end_all().await;
    assert_eq!(rig.count(Rpc::ControllerUnpublishVolume), 1);
    rig.finish().await;
}

/// A living host that is asked to let go says so only when no call is under way, and calls nothing more under its epoch,
/// not even when it is started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_lets_go_between_two_calls_and_makes_no_more() {
    let mut rig = Rig::new(Config::full()).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().hang(&gate));
    rig.ask("vol-1", &Special::default()).await;
    rig.in_flight(Rpc::CreateVolume, 1).await;
    let asked = rig.world.status(&rig.volumes, "vol-1", json!({ "askedToRelease": 1 })).await;
    // Another volume goes all the way meanwhile.
    rig.ask("vol-2", &Special::default()).await;
    rig.volume_up("vol-2").await;
    let still = rig.volumes.get("vol-1").await.unwrap();
    assert_eq!(
        still.metadata.resource_version, asked.metadata.resource_version,
        "it spoke in the middle of a call"
    );
    gate.open();
    let released = |v: &Value| v["status"]["releasedEpoch"] == 1;
    let volume = rig.world.until(&rig.volumes, "vol-1", "released", released).await;
    let status = volume.status.unwrap();
    assert_eq!((status.exists, status.observed_epoch), (Some(Rung::Up), 1), "what it learned is lost");

    let app = rig.user("app").await;
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.stop().await;
    rig.start().await;
    rig.ready().await;
    rig.end_volume("vol-2").await;
    let order = rig.backend.order();
    assert_eq!(order, ["CreateVolume", "CreateVolume", "DeleteVolume"], "it made calls after it let go");

    // A new epoch is a new word, of the same node, too.
    let again = json!({ "controller": { "nodeName": NODE, "epoch": 2 }, "askedToRelease": null });
    rig.world.status(&rig.volumes, "vol-1", again).await;
    let told = json!({ "spec": { "host": { "nodeName": NODE, "epoch": 2 } } });
    rig.world.patch(&rig.attachments, "att-1", told).await;
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

/// What the plugin may still be at work on is waited for: a call that ended without its word, and whatever an earlier daemon
/// may have begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_does_not_let_go_while_the_plugin_may_be_at_work() {
    const LONGEST: Duration = Duration::from_secs(2);
    let mut rig = Rig::idle(Config::full()).await;
    rig.options.longest_call = LONGEST;
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    rig.deadline(Rpc::CreateVolume, "100ms").await;
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().hang(&gate));
    rig.backend.always(Rpc::CreateVolume, Answer::fail(Code::Aborted, "at work on it"));
    rig.ask("vol-1", &Special::default()).await;
    rig.called(Rpc::CreateVolume, 1).await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "askedToRelease": 1 })).await;
    let released = |v: &Value| v["status"]["releasedEpoch"] == 1;
    rig.world.until(&rig.volumes, "vol-1", "released", released).await;
    assert!(rig.backend.calls_of(Rpc::CreateVolume)[0].started.elapsed() >= LONGEST);

    rig.backend.honest(Rpc::CreateVolume);
    let again = json!({ "controller": { "nodeName": NODE, "epoch": 2 }, "askedToRelease": null });
    rig.world.status(&rig.volumes, "vol-1", again).await;
    rig.volume_up("vol-1").await;
    rig.stop().await;
    let began = tokio::time::Instant::now();
    rig.start().await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "askedToRelease": 2 })).await;
    let released = |v: &Value| v["status"]["releasedEpoch"] == 2;
    rig.world.until(&rig.volumes, "vol-1", "released again", released).await;
    assert!(began.elapsed() >= LONGEST);
    rig.ready().await;
    let last = json!({ "controller": { "nodeName": NODE, "epoch": 3 }, "askedToRelease": null });
    rig.world.status(&rig.volumes, "vol-1", last).await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Who lets go of what was never made says so, and the next host's refusal is then a refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_never_made_is_known_not_to_be_there_after_a_handover() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    // The plugin is not there yet.
    rig.ask("vol-1", &Special::default()).await;
    let waits = |v: &Value| v["status"]["provisioning"]["reason"] == "PluginNotReady";
    rig.world.until(&rig.volumes, "vol-1", "told", waits).await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "askedToRelease": 1 })).await;
    let released = |v: &Value| v["status"]["releasedEpoch"] == 1 && v["status"]["exists"] == "Down";
    rig.world.until(&rig.volumes, "vol-1", "released", released).await;
    rig.register().await;
    rig.ready().await;
    rig.backend.always(Rpc::CreateVolume, Answer::fail(Code::OutOfRange, "too large"));
    let again = json!({ "controller": { "nodeName": NODE, "epoch": 2 }, "askedToRelease": null });
    rig.world.status(&rig.volumes, "vol-1", again).await;
    let refused = |v: &Value| v["status"]["observedEpoch"] == 2 && v["status"]["exists"] == "Down";
    rig.world.until(&rig.volumes, "vol-1", "refused", refused).await;
    // Nothing has to be undone.
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 0);
    rig.finish().await;
}

/// Its answer comes late: the store has it on the state that it was asked in, or not at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_asked_back_goes_on_under_its_epoch_whatever_it_was_about_to_say() {
    const STATUS: &str = "/apis/wharfline.dev/v1alpha1/volumes/vol-1/status";
    let mut rig = Rig::new(Config::full()).await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let gate = Gate::new();
    let before = rig.link.patches(STATUS);
    rig.link.hold(STATUS, &gate);
    rig.world.status(&rig.volumes, "vol-1", json!({ "askedToRelease": 1 })).await;
    until(|| rig.link.patches(STATUS) > before, "its answer is on its way").await;
    let back = rig.world.status(&rig.volumes, "vol-1", json!({ "askedToRelease": null })).await;
    gate.open();
    let app = rig.user("app").await;
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.published("app").await;
    let volume = rig.volumes.get("vol-1").await.unwrap();
    assert_eq!(volume.status.as_ref().map(|s| s.released_epoch), Some(0), "it took a late word: {volume:?}");
    assert_eq!(back.status, volume.status);

    // Asked again, also in another life, it answers that.
    rig.stop().await;
    rig.start().await;
    rig.ready().await;
    rig.end_all().await;
    rig.ask("vol-2", &Special::default()).await;
    rig.volume_up("vol-2").await;
    rig.world.status(&rig.volumes, "vol-2", json!({ "askedToRelease": 1 })).await;
    let released = |v: &Value| v["status"]["releasedEpoch"] == 1;
    rig.world.until(&rig.volumes, "vol-2", "released", released).await;
    let again = json!({ "controller": { "nodeName": NODE, "epoch": 2 }, "askedToRelease": null });
    rig.world.status(&rig.volumes, "vol-2", again).await;
    rig.end_volume("vol-2").await;
    rig.finish().await;
}

/// Of a Volume that is gone nobody else is made host any more: who is named detaches, though it has let go of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_let_go_of_a_volume_that_is_gone_detaches_it_while_it_is_named() {
    let rig = Rig::new(Config::full()).await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let app = rig.user("app").await;
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.published("app").await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "askedToRelease": 1 })).await;
    let released = |v: &Value| v["status"]["releasedEpoch"] == 1;
    rig.world.until(&rig.volumes, "vol-1", "released", released).await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    assert_eq!((rig.count(Rpc::ControllerUnpublishVolume), rig.count(Rpc::DeleteVolume)), (1, 0));
    rig.end_lost_volume("vol-1").await;
    rig.finish().await;
}
