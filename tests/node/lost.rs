//! What goes while nobody looks: a staging mount, a Volume.
use std::time::Duration;

use serde_json::{Value, json};
use wharfline::csi::Rpc;

use crate::support::node::{NODE_ID, Rig, Special};
use crate::support::scripted::Config;

/// Everything is unmounted while no daemon runs, without a boot. The publish target goes as plugins take it away.
async fn unmounted_behind_its_back(rig: &mut Rig) {
    rig.stop().await;
    rig.backend.reboot(NODE_ID);
    for row in rig.mounted() {
        rustix::mount::unmount(row, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
    for directory in std::fs::read_dir(rig.tree("publish")).unwrap() {
        std::fs::remove_dir(directory.unwrap().path().join("target")).unwrap();
    }
    rig.start().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_staging_mount_that_is_gone_is_made_again_before_anything_is_published_from_it() {
    let mut rig = Rig::new(Config { careless: true, ..Config::full() }).await;
    let app = rig.running().await;
    let path = std::path::PathBuf::from(&app.status.unwrap().volumes[0].path);
    std::fs::write(path.join("mark"), "x").unwrap();
    unmounted_behind_its_back(&mut rig).await;
    rig.called(Rpc::NodePublishVolume, 2).await;
    rig.published("app").await;
    assert!(path.join("mark").exists(), "what is published is not the volume");
    assert_eq!(rig.count(Rpc::NodeStageVolume), 2);
    let order = rig.backend.order();
    let stage = order.iter().rposition(|c| *c == "NodeStageVolume").unwrap();
    assert_eq!(order[stage + 1], "NodePublishVolume", "{order:?}");
    rig.end_all().await;
    rig.finish().await;
}

/// Only the staging mount goes: who has the volume keeps it, and the next one gets the volume, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_staging_mount_that_went_under_a_running_daemon_is_made_again_for_the_next_user() {
    use crate::support::node::Special;
    let special = Special { mode: Some("SingleNodeMultiWriter"), ..Special::default() };
    let rig = Rig::new(Config { careless: true, ..Config::full() }).await;
    let (app, next) = (rig.user("app").await, rig.user("next").await);
    rig.give(&[&app], &special).await;
    let app = rig.published("app").await;
    let path = std::path::PathBuf::from(&app.status.as_ref().unwrap().volumes[0].path);
    std::fs::write(path.join("mark"), "x").unwrap();
    let staging = rig.mounted().into_iter().find(|p| p.contains("/staging/")).unwrap();
    rustix::mount::unmount(staging, rustix::mount::UnmountFlags::DETACH).unwrap();
    rig.backend.forget_stages(NODE_ID);
    let uids = [crate::support::node::uid(&app), crate::support::node::uid(&next)];
    rig.world.patch(&rig.attachments, "att-1", serde_json::json!({ "spec": { "allocations": uids } })).await;
    let next = rig.published("next").await;
    let path = std::path::PathBuf::from(&next.status.unwrap().volumes[0].path);
    assert!(path.join("mark").exists(), "what is published is not the volume");
    assert_eq!((rig.count(Rpc::NodeStageVolume), rig.count(Rpc::NodePublishVolume)), (2, 2));
    rig.end_alloc("next").await;
    rig.end_all().await;
    rig.finish().await;
}

/// The lost mounts are told, each by its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_unmounted_while_no_daemon_ran_is_told() {
    let mut rig = Rig::new(Config { careless: true, ..Config::full() }).await;
    rig.running().await;
    unmounted_behind_its_back(&mut rig).await;
    rig.published("app").await;
    for place in ["staging path", "target path"] {
        rig.told("MountLost", &format!("volume \"vol-1\": what was mounted at its {place}")).await;
    }
    rig.end_all().await;
    rig.finish().await;
}

/// A driver that goes by what it remembers, and answers OK to a stage that it would have to make anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_is_only_remembered_is_undone_and_made_anew_once_nobody_has_the_volume() {
    let mut rig = Rig::new(Config::full()).await;
    let app = rig.running().await;
    let path = std::path::PathBuf::from(&app.status.unwrap().volumes[0].path);
    std::fs::write(path.join("mark"), "x").unwrap();
    rig.stop().await;
    for row in rig.mounted() {
        rustix::mount::unmount(row, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
    let calls = rig.backend.order().len();
    rig.start().await;
    rig.called(Rpc::NodePublishVolume, 2).await;
    rig.published("app").await;
    assert!(path.join("mark").exists(), "what is published is not the volume");
    let anew = [
        "NodeStageVolume",
        "NodeUnpublishVolume",
        "NodeUnstageVolume",
        "NodeStageVolume",
        "NodePublishVolume",
    ];
    assert_eq!(rig.backend.order()[calls..], anew);
    rig.end_all().await;
    rig.finish().await;
}

/// Legal: what NodeStage does need not be a mount at the staging path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_mounts_nothing_at_staging_is_not_suspected() {
    let mut rig = Rig::new(Config { bare_staging: true, ..Config::full() }).await;
    rig.running().await;
    let calls = rig.backend.order();
    rig.kill().await;
    rig.start().await;
    rig.ready().await;
    rig.published("app").await;
    assert_eq!(rig.backend.order(), calls);
    rig.end_all().await;
    rig.finish().await;
}

/// Scenario B49.
/// A person took the Volume off by force. What it was attached to is in its attachment still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lost_its_volume_is_detached_from_its_attachment_alone() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    let holder =
        json!({ "allocation": { "namespace": "default", "name": "app", "uid": "u" }, "nodeName": "node-a" });
    rig.world.status(&rig.volumes, "vol-1", json!({ "holders": [holder] })).await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    assert!(rig.volumes.get_opt("vol-1").await.unwrap().is_none());
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    assert_eq!((rig.count(Rpc::ControllerUnpublishVolume), rig.count(Rpc::DeleteVolume)), (1, 0));
    rig.end_lost_volume("vol-1").await;
    rig.finish().await;
}

/// Scenarios A32, B27, B33.
/// Nothing brings back what is deleted: the data stays as long as there is a claim that nobody deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_deleted_under_its_claim_keeps_the_data_until_the_claim_goes() {
    let rig = Rig::new(Config::full()).await;
    let claims: kube::Api<wharfline::api::VolumeClaim> = rig.world.namespaced();
    let claim = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClaim", "metadata": { "name": "data" },
        "spec": { "volumeClassName": "c", "accessModes": ["SingleNodeWriter"],
            "resources": { "requests": { "storage": "1Mi" } } } });
    let claim = rig.world.create(&claims, claim).await;
    let of = json!({ "namespace": "default", "name": "data", "uid": claim.metadata.uid });
    rig.ask("vol-1", &Special { spec: json!({ "claimRef": of }), ..Special::default() }).await;
    rig.volume_up("vol-1").await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    let waits = |v: &Value| {
        v["status"]["provisioning"]["message"].as_str().is_some_and(|m| m.contains("claim default/data"))
    };
    rig.world.until(&rig.volumes, "vol-1", "kept", waits).await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 0);
    // It looks ever more seldom, and at once when it is told.
    let again = |v: &Value| {
        v["status"]["nextAttemptTime"].as_str().and_then(|time| time.parse::<jiff::Timestamp>().ok())
    };
    let later = |v: &Value| again(v).is_some_and(|at| at > jiff::Timestamp::now() + Duration::from_secs(3));
    let seen = rig.world.until(&rig.volumes, "vol-1", "looked for seldom", later).await;
    rig.world.delete(&claims, "data").await;
    let told = json!({ "metadata": { "annotations": { "wharfline.dev/claim-goes": "data" } } });
    rig.world.patch(&rig.volumes, "vol-1", told).await;
    rig.world.until(&rig.volumes, "vol-1", "deleted", |v| v["status"]["exists"] == "Down").await;
    let next = again(&serde_json::to_value(seen).unwrap()).unwrap();
    assert!(jiff::Timestamp::now() < next, "it waited for its time");
    rig.world.let_go(&rig.volumes, "vol-1").await;
    rig.world.let_go(&claims, "data").await;
    rig.finish().await;
}

/// Nobody wants the volume and its claim any more; whichever goes first.
async fn kept(mut spec: Value, order: [&str; 2]) {
    let rig = Rig::new(Config::full()).await;
    rig.backend.add_volume("there", std::collections::BTreeMap::new());
    let claims: kube::Api<wharfline::api::VolumeClaim> = rig.world.namespaced();
    let claim = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClaim", "metadata": { "name": "data" },
        "spec": { "volumeClassName": "c", "accessModes": ["SingleNodeWriter"],
            "resources": { "requests": { "storage": "1Mi" } } } });
    let claim = rig.world.create(&claims, claim).await;
    let made = spec["source"].is_null();
    spec["claimRef"] = json!({ "namespace": "default", "name": "data", "uid": claim.metadata.uid });
    rig.ask("vol-1", &Special { spec, ..Special::default() }).await;
    let handle = rig.volume_up("vol-1").await.status.unwrap().handle;
    for kind in order {
        if kind == "claim" {
            rig.world.delete(&claims, "data").await;
            rig.world.let_go(&claims, "data").await;
        } else {
            rig.world.delete(&rig.volumes, "vol-1").await;
        }
    }
    crate::refused::meanwhile(&rig).await;
    let deletions = rig.backend.calls_of(Rpc::DeleteVolume);
    let of_it = deletions.iter().filter(|call| call.ask.volume() == Some(handle.as_str())).count();
    assert_eq!((deletions.len(), of_it), (1, 0), "{order:?}: {deletions:?}");
    assert!(rig.backend.volumes().contains(&handle), "{order:?}");
    rig.world.let_go(&rig.volumes, "vol-1").await;
    if made {
        // Found again by its name, so that nothing is left of this test.
        rig.ask("vol-1", &Special::default()).await;
        rig.volume_up("vol-1").await;
        rig.end_volume("vol-1").await;
    }
    rig.finish().await;
}

/// Scenarios B28, B30.
/// What is to be kept, and what was there before whatever is said of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_or_was_there_before_is_never_deleted_whether_it_or_its_claim_goes_first() {
    let there = json!({ "existing": { "handle": "there" } });
    for order in [["claim", "volume"], ["volume", "claim"]] {
        kept(json!({ "reclaimPolicy": "Retain" }), order).await;
        kept(json!({ "reclaimPolicy": "Retain", "source": there }), order).await;
        kept(json!({ "reclaimPolicy": "Delete", "source": there }), order).await;
    }
}

/// There was no room for it, its host made it in the same moment, and another one is made in its place: nobody ever had it.
/// What is bound is in use, whatever was written on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_in_whose_place_another_one_is_begun_goes_under_its_claim() {
    for phase in ["Pending", "Bound"] {
        let rig = Rig::new(Config::full()).await;
        let claims: kube::Api<wharfline::api::VolumeClaim> = rig.world.namespaced();
        let claim = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClaim", "metadata": { "name": "data" },
            "spec": { "volumeClassName": "c", "accessModes": ["SingleNodeWriter"],
                "resources": { "requests": { "storage": "1Mi" } } } });
        let claim = rig.world.create(&claims, claim).await;
        rig.world.status(&claims, "data", json!({ "phase": phase })).await;
        let of = json!({ "namespace": "default", "name": "data", "uid": claim.metadata.uid });
        rig.ask("vol-1", &Special { spec: json!({ "claimRef": of }), ..Special::default() }).await;
        rig.volume_up("vol-1").await;
        let marked = json!({ "metadata": { "annotations": { "wharfline.dev/begun-anew": "node-b" } } });
        rig.world.patch(&rig.volumes, "vol-1", marked).await;
        rig.world.delete(&rig.volumes, "vol-1").await;
        let bound = phase == "Bound";
        if bound {
            let waits = |v: &Value| {
                v["status"]["provisioning"]["message"]
                    .as_str()
                    .is_some_and(|m| m.contains("claim default/data"))
            };
            rig.world.until(&rig.volumes, "vol-1", "kept", waits).await;
            assert_eq!(rig.count(Rpc::DeleteVolume), 0);
            rig.world.delete(&claims, "data").await;
        }
        rig.world.until(&rig.volumes, "vol-1", "deleted", |v| v["status"]["exists"] == "Down").await;
        rig.world.let_go(&rig.volumes, "vol-1").await;
        if !bound {
            rig.world.delete(&claims, "data").await;
        }
        rig.world.let_go(&claims, "data").await;
        rig.finish().await;
    }
}
