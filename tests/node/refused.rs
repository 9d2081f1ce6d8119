//! Final errors: repeated after growing pauses, or not at all until something changes.
use kube::Api;
use serde_json::json;
use wharfline::api::meta::Rung;
use wharfline::csi::{Code, Rpc};

use crate::support::node::{Rig, Special, condition_reason};
use crate::support::scripted::{Answer, Config};

/// SINGLE_NODE_MULTI_WRITER among the capabilities of a node.
const NODE_MULTI_WRITER: i32 = 5;

/// How often a volume is asked about in a life in which nothing fails: by a driver that attaches and stages, and by one that
/// does neither.
const LIFE: usize = 8;
const SHORT_LIFE: usize = 4;

/// What a host asks when a volume was not found.
const LOOKED_UP: &str = "ValidateVolumeCapabilities";

async fn retried(rpc: Rpc, code: Code) {
    retried_by(Config::full(), LIFE, rpc, code).await;
}

/// Calls of one kind fail a few times: the same request is sent again, the gaps grow, why is told, and nothing else is called
/// more than once.
async fn retried_by(config: Config, life: usize, rpc: Rpc, code: Code) {
    let rig = Rig::new(config).await;
    for _ in 0..3 {
        rig.backend.next(rpc, Answer::fail(code, "not now"));
    }
    rig.running().await;
    rig.end_all().await;
    let calls = rig.backend.calls_of(rpc);
    assert_eq!(calls.len(), 4, "{rpc} {code:?}");
    assert!(calls.windows(2).all(|w| w[0].ask == w[1].ask), "{rpc} {code:?}: {calls:#?}");
    // What was not found is looked up: tests/node/missing.rs.
    let order: Vec<_> = rig.backend.order().into_iter().filter(|name| *name != LOOKED_UP).collect();
    assert_eq!(order.len(), life + 3, "{rpc} {code:?}: {order:?}");
    let word = match code {
        code if UNCERTAIN.contains(&code) => "Uncertain",
        Code::DataLoss => "DataLoss",
        _ => "Failed",
    };
    rig.told(&format!("{}{word}", rpc.name()), "not now").await;
    let gaps: Vec<_> = calls.windows(2).map(|w| w[1].started - w[0].ended.unwrap().0).collect();
    // Three quarters of 250 ms at least, then twice that, and so on; a busy machine only makes them longer.
    for (n, gap) in gaps.iter().enumerate() {
        let least = std::time::Duration::from_millis(187 << n);
        assert!(*gap >= least, "{rpc} {code:?}: {gaps:?}");
    }
    rig.finish().await;
}

/// What says nothing of whether the attempt is over, where the call's own table has no other word.
const UNCERTAIN: [Code; 5] =
    [Code::Cancelled, Code::DeadlineExceeded, Code::Aborted, Code::Unavailable, Code::ResourceExhausted];

/// Scenarios B62, B63.
/// Obligations CO-ERR-01, CO-ERR-02, CO-ERR-04, CO-ERR-09, CO-ERR-10, CO-ERR-13, CO-ERR-14.
/// Part of obligation CO-NODE-25.
/// Part of obligation CO-ERR-05.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_same_request_may_heal_is_sent_again_as_it_was_whatever_the_code() {
    let codes = [Code::Unknown, Code::NotFound, Code::FailedPrecondition, Code::Internal, Code::DataLoss];
    for codes in [codes, UNCERTAIN] {
        let all = codes.map(|code| retried(Rpc::NodeStageVolume, code));
        futures::future::join_all(all).await;
    }
}

/// Part of obligations CO-NODE-38, CO-NODE-52.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_driver_does_not_find_or_cannot_do_now_is_asked_for_again() {
    tokio::join!(
        retried(Rpc::NodeUnstageVolume, Code::NotFound),
        retried(Rpc::NodePublishVolume, Code::NotFound),
        retried_by(
            Config::without_attach_and_stage(),
            SHORT_LIFE,
            Rpc::NodePublishVolume,
            Code::FailedPrecondition
        ),
    );
}

/// Obligations CO-NODE-20, CO-NODE-45: what is done and not confirmed is nothing to stand on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_called_before_what_it_stands_on_was_answered_with_ok() {
    let rig = Rig::new(Config::full()).await;
    let rungs = [Rpc::ControllerPublishVolume, Rpc::NodeStageVolume, Rpc::NodePublishVolume];
    for rpc in &rungs[..2] {
        for _ in 0..2 {
            rig.backend.next(*rpc, Answer::fail(Code::Internal, "not yet").after_effect());
        }
    }
    rig.running().await;
    for two in rungs.windows(2) {
        let (below, above) = (rig.backend.calls_of(two[0]), rig.backend.calls_of(two[1]));
        assert_eq!(below.len(), 3, "{}", two[0]);
        assert!(above[0].started >= below[2].ended.unwrap().0, "{} came before {} was OK", two[1], two[0]);
    }
    rig.end_all().await;
    rig.finish().await;
}

/// Scenarios A72, B4, B42, Q9.
/// Obligations CO-GEN-25, CO-CTRL-45.
/// Part of obligation CO-CTRL-49.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_that_time_may_heal_are_repeated_with_growing_gaps() {
    retried(Rpc::CreateVolume, Code::DeadlineExceeded).await;
    retried(Rpc::ControllerPublishVolume, Code::FailedPrecondition).await;
    retried(Rpc::NodeStageVolume, Code::Internal).await;
    retried(Rpc::NodePublishVolume, Code::Unknown).await;
    retried(Rpc::NodeUnpublishVolume, Code::Internal).await;
    retried(Rpc::NodeUnstageVolume, Code::Aborted).await;
    retried(Rpc::ControllerUnpublishVolume, Code::NotFound).await;
    retried(Rpc::DeleteVolume, Code::FailedPrecondition).await;
}

/// Long enough for several attempts of anything that is repeated: another volume needs three.
pub(crate) async fn meanwhile(rig: &Rig) {
    rig.backend.next_for(Rpc::CreateVolume, "other", Answer::fail(Code::Internal, "no"));
    rig.backend.next_for(Rpc::CreateVolume, "other", Answer::fail(Code::Internal, "no"));
    rig.ask("other", &Special::default()).await;
    rig.volume_up("other").await;
    rig.end_volume("other").await;
}

/// Scenario B62.
/// Obligations CO-ERR-03, CO-ERR-11, CO-ERR-12.
/// Part of obligation CO-GEN-26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_must_change_is_sent_once_until_the_plugin_comes_anew() {
    for code in [Code::InvalidArgument, Code::OutOfRange, Code::Unimplemented] {
        let mut rig = Rig::new(Config::full()).await;
        rig.backend.next(Rpc::NodeStageVolume, Answer::fail(code, "wrong fsType"));
        let app = rig.user("app").await;
        rig.give(&[&app], &Special::default()).await;
        let holds = |a: &serde_json::Value| a["status"]["node"]["reason"] == "NodeStageVolumeFailed";
        let blocked = rig.world.until(&rig.attachments, "att-1", "blocked", holds).await;
        let node = blocked.status.unwrap().node.unwrap();
        assert!(node.message.contains("wrong fsType") && node.next_attempt_time.is_none());
        let shown =
            |a: &serde_json::Value| condition_reason(a, "VolumesReady") == Some("NodeStageVolumeFailed");
        rig.world.until(&rig.allocs, "app", "told why", shown).await;
        meanwhile(&rig).await;
        assert_eq!(rig.count(Rpc::NodeStageVolume), 1, "{code:?}");
        rig.plugin.kill().await;
        rig.plugin.serve();
        rig.published("app").await;
        assert_eq!(rig.count(Rpc::NodeStageVolume), 2, "{code:?}");
        rig.end_all().await;
        rig.finish().await;
    }
}

/// Scenario B8.
/// Obligation CO-GEN-26.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_creation_is_tried_again_when_its_object_changes() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.next(Rpc::CreateVolume, Answer::fail(Code::OutOfRange, "too large"));
    rig.ask("vol-1", &Special::default()).await;
    let holds = |v: &serde_json::Value| v["status"]["provisioning"]["reason"] == "CreateVolumeFailed";
    rig.world.until(&rig.volumes, "vol-1", "blocked", holds).await;
    meanwhile(&rig).await;
    // That it failed is then written of it, which changes nothing.
    rig.world.status(&rig.volumes, "vol-1", json!({ "phase": "Failed" })).await;
    meanwhile(&rig).await;
    let asked =
        || rig.backend.calls_of(Rpc::CreateVolume).iter().filter(|c| c.ask.volume() == Some("vol-1")).count();
    assert_eq!(asked(), 1);
    let volumes: Api<wharfline::api::Volume> = rig.world.all();
    rig.world.patch(&volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Retain" } })).await;
    rig.volume_up("vol-1").await;
    assert_eq!(asked(), 2);
    rig.world.patch(&volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Delete" } })).await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// What is there with other arguments comes down first; never the same call twice in a row.
async fn undone_first(rpc: Rpc, reverse: Rpc) {
    let rig = Rig::new(Config::full()).await;
    rig.backend.next(rpc, Answer::fail(Code::AlreadyExists, "other arguments"));
    rig.backend.next(rpc, Answer::fail(Code::AlreadyExists, "other arguments"));
    rig.running().await;
    let about: Vec<_> = rig
        .backend
        .order()
        .into_iter()
        .filter(|name| *name == rpc.name() || *name == reverse.name())
        .collect();
    let (there, back) = (rpc.name(), reverse.name());
    assert_eq!(about, [there, back, there, back, there]);
    rig.end_all().await;
    rig.finish().await;
}

/// Obligations CO-ERR-06, CO-NODE-26.
/// Obligations CO-CTRL-38, CO-NODE-52: that a publish which is not found is asked for again is the test before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_exists_with_other_arguments_is_undone_first() {
    undone_first(Rpc::ControllerPublishVolume, Rpc::ControllerUnpublishVolume).await;
    undone_first(Rpc::NodeStageVolume, Rpc::NodeUnstageVolume).await;
    undone_first(Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume).await;
}

/// Obligation CO-NODE-54: the plugin forgot that it had staged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_that_misses_its_stage_stages_again() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.next(Rpc::NodePublishVolume, Answer::fail(Code::FailedPrecondition, "not staged"));
    rig.running().await;
    let order: Vec<_> = rig.backend.order().into_iter().filter(|c| c.starts_with("Node")).collect();
    assert_eq!(order, ["NodeStageVolume", "NodePublishVolume", "NodeStageVolume", "NodePublishVolume"]);
    rig.end_all().await;
    rig.finish().await;
}

/// A failing volume costs one write per attempt, and none while it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_object_costs_no_writes() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.always(Rpc::NodeStageVolume, Answer::fail(Code::Internal, "no"));
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    // Between the fifth attempt and the sixth are at least three seconds, and more after each: on a machine that is busy
    // with other things a later gap tells.
    let mut told = false;
    for attempt in 5..=8 {
        let shown = |a: &serde_json::Value| {
            let calls = a["status"]["node"]["calls"].as_array();
            calls.is_some_and(|c| c.iter().any(|c| c["attempt"].as_u64() >= Some(attempt)))
        };
        let shown = rig.world.until(&rig.attachments, "att-1", "the attempt is shown", shown).await;
        let status = shown.status.unwrap().node.unwrap();
        assert!(status.next_attempt_time.is_some());
        let staged: Vec<_> = status.calls.iter().filter(|c| c.method == "NodeStageVolume").collect();
        assert_eq!(staged.len(), 1, "{:?}", status.calls);
        let attempts = usize::try_from(staged[0].attempt).unwrap();
        let other = format!("other-{attempt}");
        rig.ask(&other, &Special::default()).await;
        rig.volume_up(&other).await;
        rig.end_volume(&other).await;
        let now = rig.attachments.get("att-1").await.unwrap();
        if rig.count(Rpc::NodeStageVolume) == attempts {
            assert_eq!(now.metadata.resource_version, shown.metadata.resource_version, "{now:#?}");
            told = true;
            break;
        }
    }
    assert!(told, "the machine was too slow to tell");
    rig.backend.honest(Rpc::NodeStageVolume);
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

/// Scenario A57.
/// Obligation CO-NODE-63.
/// NOT_FOUND to a reverse call is no success by itself: the kernel has a word in it, and patience.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_found_counts_as_unpublished_only_when_nothing_is_mounted() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.backend.always(Rpc::NodeUnpublishVolume, Answer::fail(Code::NotFound, "unknown volume"));
    rig.world.delete(&rig.allocs, "app").await;
    rig.called(Rpc::NodeUnpublishVolume, 4).await;
    assert_eq!(rig.mounted().len(), 2, "it is mounted still");
    rig.backend.honest(Rpc::NodeUnpublishVolume);
    rig.backend
        .always(Rpc::NodeUnpublishVolume, Answer::fail(Code::NotFound, "unknown volume").after_effect());
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Part of obligation CO-NODE-47.
/// A plugin that learnt the newer modes meanwhile is asked for what it was asked for at first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capability_learnt_between_two_calls_changes_no_request() {
    let mut old = Config::full();
    old.node.retain(|number| *number != NODE_MULTI_WRITER);
    let mut rig = Rig::new(old).await;
    let app = rig.user("app").await;
    let special = Special { mode: Some("SingleNodeSingleWriter"), ..Special::default() };
    rig.backend.always(Rpc::NodePublishVolume, Answer::fail(Code::Internal, "not now"));
    rig.give(&[&app], &special).await;
    rig.called(Rpc::NodePublishVolume, 1).await;
    rig.plugin.kill().await;
    rig.backend.configure(|c| c.node.push(NODE_MULTI_WRITER));
    rig.backend.honest(Rpc::NodePublishVolume);
    rig.plugin.serve();
    let learnt = |i: &serde_json::Value| {
        i["status"]["capabilities"].to_string().contains("node/SINGLE_NODE_MULTI_WRITER")
    };
    rig.world.until(&rig.instances, "p", "the new capability", learnt).await;
    rig.published("app").await;
    let calls = rig.backend.calls_of(Rpc::NodePublishVolume);
    assert!(calls.windows(2).all(|w| w[0].ask == w[1].ask));
    rig.end_all().await;
    rig.finish().await;
}

/// One volume that fails or hangs delays no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_hangs_delays_no_other() {
    let rig = Rig::new(Config::full()).await;
    let gate = crate::support::scripted::Gate::new();
    rig.backend.next_for(Rpc::CreateVolume, "vol-1", Answer::honest().hang(&gate));
    rig.ask("vol-1", &Special::default()).await;
    rig.in_flight(Rpc::CreateVolume, 1).await;
    rig.ask("other", &Special::default()).await;
    rig.volume_up("other").await;
    rig.end_volume("other").await;
    gate.open();
    rig.volume_up("vol-1").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario A72.
/// A failure and its end are told once each, to whoever reads events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_of_the_first_failure_and_of_the_recovery() {
    let rig = Rig::new(Config::full()).await;
    for _ in 0..2 {
        rig.backend.next(Rpc::NodeStageVolume, Answer::fail(Code::Internal, "pool is away"));
    }
    rig.running().await;
    rig.end_all().await;
    let events = rig.events_until("Recovered").await;
    let count = |reason: &str| events.iter().filter(|(r, _)| r == reason).count();
    assert_eq!(count("NodeStageVolumeFailed"), 1, "{events:?}");
    assert_eq!(count("Recovered"), 1, "{events:?}");
    assert_eq!(count("PluginHealthy"), 1, "{events:?}");
    let told = events.iter().find(|(r, _)| r == "NodeStageVolumeFailed").unwrap();
    assert!(told.1.contains("pool is away"), "{told:?}");
    rig.finish().await;
}

/// Obligation CO-GEN-11: what a plugin says is shown, and cut; what else its status has is nobody's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_message_is_shown_cut_and_details_are_not_read() {
    let rig = Rig::new(Config::full()).await;
    let long = format!("pool is away {}", "x".repeat(10 << 10));
    rig.backend.always(Rpc::NodeStageVolume, Answer::broken_details(Code::Internal, long));
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    let shown = |a: &serde_json::Value| a["status"]["node"]["reason"] == "NodeStageVolumeFailed";
    let shown = rig.world.until(&rig.attachments, "att-1", "the message", shown).await;
    let message = shown.status.unwrap().node.unwrap().message;
    let cut = |text: &str| text.contains("pool is away xxx") && text.len() < 1200;
    assert!(cut(&message), "{} bytes: {message}", message.len());
    let events = rig.events_until("NodeStageVolumeFailed").await;
    let told = &events.iter().find(|(reason, _)| reason == "NodeStageVolumeFailed").unwrap().1;
    assert!(cut(told), "{} bytes: {told}", told.len());
    rig.backend.honest(Rpc::NodeStageVolume);
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

/// Scenario B56, and the node's part of B57: a node that can have no more volumes is asked again how many it can have, and
/// the plugin stays healthy meanwhile.
/// Obligation CO-CTRL-40.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_attachment_brings_the_new_limit_of_its_node() {
    let rig = Rig::new(Config { max_volumes: 9, ..Config::full() }).await;
    let instance = rig.ready().await;
    let (name, before) = (instance.metadata.name.unwrap(), instance.status.unwrap());
    assert_eq!(before.max_volumes, 9);
    rig.backend.configure(|config| config.max_volumes = 3);
    rig.backend.always(Rpc::ControllerPublishVolume, Answer::fail(Code::ResourceExhausted, "no slot"));
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    let refused = |a: &serde_json::Value| a["status"]["controller"]["reason"] == "AttachLimitExceeded";
    rig.world.until(&rig.attachments, "att-1", "refused", refused).await;
    let told = |i: &serde_json::Value| i["status"]["maxVolumes"] == 3;
    let after = rig.world.until(&rig.instances, &name, "the new limit", told).await.status.unwrap();
    assert_eq!(after.since, before.since, "it was unwell in between");
    rig.called(Rpc::ControllerPublishVolume, 3).await;
    crate::codes::grow(&rig, Rpc::ControllerPublishVolume, "backend/0001");
    rig.backend.honest(Rpc::ControllerPublishVolume);
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

/// Scenario B10.
/// Obligation CO-CTRL-16: whether there is another place for it is the controllers' to say; here it is asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_without_room_says_so_and_is_asked_for_again() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.always(Rpc::CreateVolume, Answer::fail(Code::ResourceExhausted, "the pool is full"));
    rig.ask("vol-1", &Special::default()).await;
    let told = |v: &serde_json::Value| {
        let said = &v["status"]["provisioning"];
        said["reason"] == "NoRoom" && said["message"].as_str().is_some_and(|m| m.contains("the pool is full"))
    };
    let volume = rig.world.until(&rig.volumes, "vol-1", "told", told).await;
    assert!(volume.has_no_room());
    let status = volume.status.unwrap();
    assert!(status.next_attempt_time.is_some() && status.exists == Some(Rung::Down), "{status:?}");
    rig.called(Rpc::CreateVolume, 3).await;
    rig.backend.honest(Rpc::CreateVolume);
    let volume = rig.volume_up("vol-1").await;
    assert!(!volume.has_no_room());
    rig.end_volume("vol-1").await;
    rig.finish().await;
}
