//! A staging mount that goes while nobody looks: no task may write to the directory that was beneath it.
use wharfline::csi::Rpc;

use crate::support::node::{NODE_ID, Rig};
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
