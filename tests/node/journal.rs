//! The journal: one daemon at a time, and what is done without it.
use serde_json::json;
use wharfline::csi::Rpc;
use wharfline::node::Error;
use wharfline::node::agent::Refused;
use wharfline::server::Identity;

use crate::support::node::{Daemon, NODE, Rig, Special, until};
use crate::support::scripted::Config;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_daemon_on_the_same_data_is_refused() {
    let rig = Rig::new(Config::full()).await;
    let client = rig.server.client(Identity::node(NODE));
    let second = Daemon::try_start(client, rig.place.machine(), rig.options.clone()).await;
    assert!(matches!(second, Err(Error::InUse(_))));
    rig.running().await;
    rig.end_all().await;
    rig.finish().await;
}

/// A daemon that has lost its journal is another to the server, and waits until the lease of the old one is over.
fn lose(rig: &mut Rig) {
    rig.options.lease = std::time::Duration::from_secs(1);
    std::fs::remove_file(rig.place.data.path().join("journal")).unwrap();
}

/// Two machines with one name: the second one ends before it has touched anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_machine_with_the_same_name_ends_and_touches_nothing() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.options.lease = std::time::Duration::from_secs(1);
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    rig.running().await;
    let calls = rig.backend.order();
    let place = crate::support::node::Place::new();
    let options = wharfline::node::Options { lease: rig.options.lease, ..place.options() };
    let client = rig.server.client(Identity::node(NODE));
    let second = Daemon::try_start(client, place.machine(), options).await;
    assert!(matches!(second, Err(Error::Refused(Refused::Impostor { .. }))), "it must not become ready");
    assert_eq!(rig.backend.order(), calls);
    place.clear();
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

/// Obligation CO-GEN-28.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_journal_a_daemon_repeats_what_may_be_up_and_reverses_nothing() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    let mounts = rig.mounted();
    rig.stop().await;
    lose(&mut rig);
    rig.start().await;
    rig.called(Rpc::NodePublishVolume, 2).await;
    rig.published("app").await;
    assert_eq!((rig.count(Rpc::NodeStageVolume), rig.count(Rpc::NodePublishVolume)), (2, 2));
    assert_eq!((rig.count(Rpc::NodeUnpublishVolume), rig.count(Rpc::NodeUnstageVolume)), (0, 0));
    assert_eq!(rig.mounted(), mounts);
    let agent = rig.agents.get(NODE).await.unwrap();
    assert!(agent.status.unwrap().leftovers.is_empty(), "they have an owner again");
    rig.end_all().await;
    rig.finish().await;
}

/// Scenarios B120, B124.
/// What nobody wants any more comes down, though no record says that it ever was up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_journal_a_daemon_still_takes_down_what_leaves() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.stop().await;
    lose(&mut rig);
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.start().await;
    rig.detached().await;
    assert_eq!((rig.count(Rpc::NodeUnpublishVolume), rig.count(Rpc::NodeUnstageVolume)), (1, 1));
    assert_eq!((rig.count(Rpc::NodeStageVolume), rig.count(Rpc::NodePublishVolume)), (1, 1));
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_journal_a_daemon_finds_its_tasks_and_ends_those_that_nobody_wants() {
    let mut rig = Rig::new(Config::full()).await;
    let task = json!({ "tasks": [{ "name": "t", "runtime": { "process": {
        "command": ["/bin/sleep", "infinity"] } } }] });
    let (kept, gone) = (rig.alloc("kept", task.clone()).await, rig.alloc("gone", task).await);
    for name in ["kept", "gone"] {
        rig.world.until(&rig.allocs, name, "running", |a| a["status"]["phase"] == "Running").await;
    }
    let tasks = rig.place.data.path().join("tasks");
    let state = |uid: &str| {
        let path = tasks.join(format!("{uid}.t/state.json"));
        let state: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        state["task"]["pid"].as_i64().unwrap()
    };
    let (kept, gone) = (state(&crate::support::node::uid(&kept)), state(&crate::support::node::uid(&gone)));
    rig.stop().await;
    lose(&mut rig);
    rig.world.delete(&rig.allocs, "gone").await;
    rig.world.let_go(&rig.allocs, "gone").await;
    rig.start().await;
    until(|| !std::path::Path::new(&format!("/proc/{gone}")).exists(), "the unwanted task is gone").await;
    assert!(std::path::Path::new(&format!("/proc/{kept}")).exists(), "the wanted one was left alone");
    let kept = rig.allocs.get("kept").await.unwrap().status.unwrap();
    assert_eq!(kept.tasks[0].restarts, 0);
    rig.end_alloc("kept").await;
    until(|| std::fs::read_dir(&tasks).unwrap().count() == 0, "no records of tasks are left").await;
    rig.finish().await;
}

/// Not knowing what runs is not knowing that nothing does: without its journal a daemon that cannot find out does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_journal_a_daemon_that_cannot_say_what_runs_does_not_begin() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.stop().await;
    let calls = rig.backend.order();
    lose(&mut rig);
    let machine = crate::support::node::blind(rig.place.machine());
    let client = rig.link.client(&rig.server, NODE);
    let refused = Daemon::try_start(client, machine, rig.options.clone()).await;
    assert!(matches!(refused, Err(Error::Runtime(_))), "it began");
    assert_eq!(rig.backend.order(), calls, "nothing was asked");
    rig.start().await;
    rig.end_all().await;
    rig.finish().await;
}

/// A volume made while the journal was there, and deleted without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_that_may_have_begun_before_the_journal_was_lost_is_not_forgotten() {
    use crate::support::scripted::{Answer, Gate};
    use wharfline::csi::Code;
    let mut rig = Rig::new(Config::full()).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().after_effect().hang(&gate));
    rig.backend.next(Rpc::CreateVolume, Answer::fail(Code::InvalidArgument, "no"));
    rig.ask("vol-1", &Special::default()).await;
    rig.in_flight(Rpc::CreateVolume, 1).await;
    rig.kill().await;
    // The lock is let go when the last line is written.
    until(|| !rig.backend.calls().iter().any(crate::support::scripted::Logged::in_flight), "ended").await;
    lose(&mut rig);
    rig.start().await;
    let refused = |v: &serde_json::Value| v["status"]["provisioning"]["reason"] == "CreateVolumeFailed";
    let volume = rig.world.until(&rig.volumes, "vol-1", "refused", refused).await;
    assert_eq!(volume.status.unwrap().exists, Some(wharfline::api::meta::Rung::Unknown));
    rig.end_volume("vol-1").await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 1);
    rig.finish().await;
}
