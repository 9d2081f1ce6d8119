//! What comes between two steps: another user, a deletion, a restart, a plugin that changes.
use kube::ResourceExt as _;
use serde_json::{Value, json};
use wharfline::csi::{Code, Rpc};

use crate::support::node::{Rig, Special, uid};
use crate::support::scripted::{Answer, Config, Gate};

/// PUBLISH_UNPUBLISH_VOLUME among the capabilities of a controller.
const ATTACHES: i32 = 2;

/// Scenario A51: the one leaves while the other is between stage and publish.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_unstages_nothing_under_one_who_is_about_to_publish() {
    let shared = Special { mode: Some("SingleNodeMultiWriter"), ..Special::default() };
    let rig = Rig::new(Config::full()).await;
    let (app, next) = (rig.user("app").await, rig.user("next").await);
    rig.give(&[&app], &shared).await;
    rig.published("app").await;
    let gate = Gate::new();
    rig.backend.next(Rpc::NodePublishVolume, Answer::honest().hang(&gate));
    let both = json!({ "spec": { "allocations": [uid(&app), uid(&next)] } });
    rig.world.patch(&rig.attachments, "att-1", both).await;
    rig.in_flight(Rpc::NodePublishVolume, 2).await;
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.until(&rig.allocs, "app", "leaving", |a| a["status"]["phase"] == "Stopping").await;
    gate.open();
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.published("next").await;
    assert_eq!((rig.count(Rpc::NodeStageVolume), rig.count(Rpc::NodeUnstageVolume)), (1, 0));
    assert_eq!(rig.mounted().len(), 2, "staged and one user");
    rig.end_alloc("next").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario B39: what was attached is to be detached, though the plugin says by now that nothing has to be. One that does not
/// know the call any more is asked, and says why not, until it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_attached_is_detached_by_the_rule_of_then() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.plugin.kill().await;
    rig.backend.configure(|c| c.controller.retain(|number| *number != ATTACHES));
    let unknown = Answer::fail(Code::Unimplemented, "no such call");
    rig.backend.always(Rpc::ControllerUnpublishVolume, unknown);
    rig.plugin.serve();
    let learnt = |i: &Value| {
        let known = i["status"]["capabilities"].to_string();
        known.contains("controller/CREATE_DELETE") && !known.contains("controller/PUBLISH_UNPUBLISH")
    };
    rig.world.until(&rig.instances, "p", "attaches no more", learnt).await;
    rig.end_alloc("app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.called(Rpc::ControllerUnpublishVolume, 2).await;
    let attachment = serde_json::to_value(rig.attachments.get("att-1").await.unwrap()).unwrap();
    assert_ne!(attachment["status"]["controller"]["attached"], "Down", "nobody has detached it");
    rig.backend.configure(|c| c.controller.push(ATTACHES));
    rig.backend.honest(Rpc::ControllerUnpublishVolume);
    rig.detached().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-IDEN-03: a new version has no controller service at all, but the volume is attached and there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_lost_its_controller_service_is_asked_for_nothing_of_it() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.plugin.kill().await;
    let services = Config::full().services;
    rig.backend.configure(|c| c.services.clear());
    rig.plugin.serve();
    let learnt = |i: &Value| {
        let known = i["status"]["capabilities"].to_string();
        known.contains("node/") && !known.contains("CONTROLLER_SERVICE")
    };
    rig.world.until(&rig.instances, "p", "has no controller service", learnt).await;
    rig.end_alloc("app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    let told = |a: &Value| a["status"].to_string().contains("has no CONTROLLER_SERVICE");
    rig.world.until(&rig.attachments, "att-1", "told why it stays attached", told).await;
    assert_eq!(rig.count(Rpc::ControllerUnpublishVolume), 0);
    rig.backend.configure(|c| c.services.clone_from(&services));
    rig.plugin.kill().await;
    rig.plugin.serve();
    rig.detached().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario B94.
/// Scenario B41: a refused attachment is not asked for again, and goes with who wanted it.
/// Part of obligation CO-GEN-26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_attachment_goes_with_who_wanted_it() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.always(Rpc::ControllerPublishVolume, Answer::fail(Code::InvalidArgument, "no such node"));
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    let refused = |a: &Value| a["status"]["controller"]["reason"] == "ControllerPublishVolumeFailed";
    rig.world.until(&rig.attachments, "att-1", "refused", refused).await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    assert_eq!(rig.count(Rpc::ControllerPublishVolume), 1);
    assert_eq!(rig.count(Rpc::NodeStageVolume), 0);
    rig.finish().await;
}

/// Obligation CO-PLUG-17.
/// Scenario B59: while its socket is away, what the plugin told of the node stays known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_plugin_told_of_its_node_outlives_its_socket() {
    let mut rig = Rig::new(Config { max_volumes: 7, ..Config::full() }).await;
    let told = rig.ready().await.status.unwrap();
    assert_eq!(told.max_volumes, 7);
    rig.plugin.kill().await;
    let away = |i: &Value| crate::support::node::condition(i, "Ready", "False");
    let status = rig.world.until(&rig.instances, "p", "away", away).await.status.unwrap();
    assert_eq!(
        (status.max_volumes, status.topology, status.node_id, status.capabilities),
        (told.max_volumes, told.topology, told.node_id, told.capabilities)
    );
    rig.plugin.serve();
    rig.ready().await;
    rig.finish().await;
}

/// Scenarios B120, B121: deleted by force while the daemon was down, and another one has the claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_deleted_by_force_makes_way_for_the_next() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.stop().await;
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.let_go(&rig.allocs, "app").await;
    let next = rig.user("next").await;
    let attachment = rig.attachments.get("att-1").await.unwrap();
    let both: Vec<_> = attachment.spec.allocations.iter().cloned().chain([uid(&next)]).collect();
    rig.world.patch(&rig.attachments, "att-1", json!({ "spec": { "allocations": both } })).await;
    rig.start().await;
    rig.published("next").await;
    let about: Vec<_> = rig.backend.order().into_iter().filter(|c| c.contains("blish")).collect();
    let wanted = ["ControllerPublishVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodePublishVolume"];
    assert_eq!(about, wanted, "the one after the other, by {}", attachment.name_any());
    rig.end_alloc("next").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario B69.
/// Scenario B125: staged, the publication not known, the daemon killed, and then nobody wants it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_only_staged_is_unstaged_after_a_kill() {
    let mut rig = Rig::new(Config::full()).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::NodePublishVolume, Answer::honest().hang(&gate));
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    rig.in_flight(Rpc::NodePublishVolume, 1).await;
    rig.kill().await;
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.start().await;
    rig.detached().await;
    assert_eq!((rig.count(Rpc::NodeUnpublishVolume), rig.count(Rpc::NodeUnstageVolume)), (1, 1));
    assert_eq!(rig.count(Rpc::NodeStageVolume), 1);
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}
