//! Calls whose outcome nobody knows: repeated as they were while wanted, reversed when not (obligations part 7).
use serde_json::{Value, json};
use wharfline::api::Volume;
use wharfline::api::meta::Rung;
use wharfline::csi::{Code, Rpc, proto};

use crate::support::node::{Rig, Special, uid};
use crate::support::scripted::{Answer, Config, Gate};

/// The call is repeated, with the same request, and the life goes on.
async fn repeated(rpc: Rpc, answer: Answer, deadline: Option<&str>) {
    let rig = Rig::new(Config::full()).await;
    if let Some(deadline) = deadline {
        rig.deadline(rpc, deadline).await;
    }
    rig.backend.next(rpc, answer);
    rig.running().await;
    rig.end_all().await;
    let calls = rig.backend.calls_of(rpc);
    assert_eq!(calls.len(), 2, "{rpc}");
    assert_eq!(calls[0].ask, calls[1].ask, "{rpc}");
    assert_eq!(rig.backend.order().len(), 9, "nothing else was repeated: {:?}", rig.backend.order());
    rig.finish().await;
}

const CALLS: [Rpc; 8] = [
    Rpc::CreateVolume,
    Rpc::ControllerPublishVolume,
    Rpc::NodeStageVolume,
    Rpc::NodePublishVolume,
    Rpc::NodeUnpublishVolume,
    Rpc::NodeUnstageVolume,
    Rpc::ControllerUnpublishVolume,
    Rpc::DeleteVolume,
];

/// Obligations CO-NODE-24, CO-NODE-51.
/// Obligations CO-CTRL-11, CO-CTRL-21, CO-CTRL-36.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_after_the_effect() {
    for rpc in CALLS {
        repeated(rpc, Answer::cut().after_effect(), None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_before_the_effect() {
    for rpc in CALLS {
        repeated(rpc, Answer::cut(), None).await;
    }
}

/// Scenario B63.
/// Obligations CO-ERR-01, CO-ERR-04, CO-NODE-24, CO-NODE-51.
/// Obligation CO-GEN-09.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_that_passes_with_the_effect_done() {
    for rpc in CALLS {
        let gate = Gate::new();
        repeated(rpc, Answer::honest().after_effect().hang(&gate), Some("300ms")).await;
    }
}

/// Obligation CO-ERR-11: the answer that is too large is no OUT_OF_RANGE.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_our_side_made_up_are_never_final() {
    for answer in [Answer::oversize(1 << 30), Answer::garbage(), Answer::no_status(), Answer::http(503)] {
        repeated(Rpc::NodeStageVolume, answer, None).await;
    }
}

/// Nobody wants it any more while a forward call is in flight: its reverse comes next, and no second forward call.
async fn reversed(rpc: Rpc, reverse: Rpc, done: bool) {
    let rig = Rig::new(Config::full()).await;
    rig.deadline(rpc, "1s").await;
    let gate = Gate::new();
    let answer = if done { Answer::honest().after_effect() } else { Answer::honest() };
    rig.backend.next(rpc, answer.hang(&gate));
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    rig.in_flight(rpc, 1).await;
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.detached().await;
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_volume("vol-1").await;
    assert_eq!(rig.count(rpc), 1, "{rpc}");
    assert_eq!(rig.count(reverse), 1, "{reverse} is owed");
    rig.finish().await;
}

/// Obligations CO-NODE-24, CO-NODE-51, CO-NODE-62.
/// Scenarios B40, B64, B69.
/// Obligations CO-GEN-09, CO-CTRL-36.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unwanted_before_its_outcome_is_known_is_reversed() {
    for done in [false, true] {
        reversed(Rpc::ControllerPublishVolume, Rpc::ControllerUnpublishVolume, done).await;
        reversed(Rpc::NodeStageVolume, Rpc::NodeUnstageVolume, done).await;
        reversed(Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume, done).await;
    }
}

/// Obligation CO-GEN-02: a daemon that was killed in a call does not know that it is under way, and the driver says so. That is no
/// failure: it is asked again at growing pauses, and told as what it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_a_killed_daemon_left_under_way_is_waited_for() {
    let mut rig = Rig::new(Config::full()).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::NodeStageVolume, Answer::honest().after_effect().hang(&gate));
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    rig.in_flight(Rpc::NodeStageVolume, 1).await;
    rig.kill().await;
    for _ in 0..5 {
        rig.backend.next(Rpc::NodeStageVolume, Answer::fail(Code::Aborted, "at work on it"));
    }
    rig.start().await;
    rig.ready().await;
    let told = |a: &Value| a["status"]["node"]["reason"] == "NodeStageVolumeUncertain";
    rig.world.until(&rig.attachments, "att-1", "told", told).await;
    rig.published("app").await;
    let calls = rig.backend.calls_of(Rpc::NodeStageVolume);
    assert_eq!(calls.len(), 7, "{calls:?}");
    assert!(calls.windows(2).all(|two| two[0].ask == two[1].ask), "{calls:?}");
    let gaps: Vec<_> = calls[1..].windows(2).map(|two| two[1].started - two[0].ended.unwrap().0).collect();
    for (n, gap) in gaps.iter().enumerate() {
        assert!(*gap >= std::time::Duration::from_millis(187 << n), "{gaps:?}");
    }
    gate.open();
    rig.end_all().await;
    let told = rig.events_until("Recovered").await;
    assert!(!told.iter().any(|(reason, _)| reason.ends_with("Failed")), "{told:?}");
    rig.finish().await;
}

/// Scenarios B65, B94.
/// Obligations CO-NODE-24, CO-NODE-51: a refusal ends its attempt and says nothing of what that left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_and_is_unwanted_is_reversed_all_the_same() {
    for (rpc, reverse) in
        [(Rpc::NodeStageVolume, Rpc::NodeUnstageVolume), (Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume)]
    {
        for done in [false, true] {
            let rig = Rig::new(Config::full()).await;
            let refusal = Answer::fail(Code::InvalidArgument, "no");
            rig.backend.next(rpc, if done { refusal.after_effect() } else { refusal });
            let app = rig.user("app").await;
            rig.give(&[&app], &Special::default()).await;
            rig.told(&format!("{}Failed", rpc.name()), "no").await;
            rig.end_all().await;
            assert_eq!((rig.count(rpc), rig.count(reverse)), (1, 1), "{rpc} {done}");
            rig.finish().await;
        }
    }
}

/// It was refused, and is not wanted any more: it is reversed until that succeeds, and what is below it after that.
async fn refused_and_reversed(rpc: Rpc, reverse: Rpc) {
    let rig = Rig::new(Config::full()).await;
    rig.backend.always(rpc, Answer::fail(Code::Internal, "half of it is done"));
    for _ in 0..2 {
        rig.backend.next(reverse, Answer::fail(Code::Internal, "not now"));
    }
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    rig.called(rpc, 1).await;
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.detached().await;
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_volume("vol-1").await;
    assert_eq!(rig.count(reverse), 3, "{reverse} is owed");
    let order = rig.backend.order();
    let last = order.iter().rposition(|call| *call == reverse.name()).unwrap();
    let below = [Rpc::NodeUnpublishVolume, Rpc::NodeUnstageVolume, Rpc::ControllerUnpublishVolume];
    let below = below.iter().skip_while(|one| **one != reverse).skip(1);
    for later in below {
        let at = order.iter().position(|call| *call == later.name());
        assert!(at.is_some_and(|at| at > last), "{later} after {reverse}: {order:?}");
    }
    rig.finish().await;
}

/// Scenarios A56, B69.
/// Obligation CO-GEN-31.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_comes_down_in_order_until_that_succeeds() {
    refused_and_reversed(Rpc::ControllerPublishVolume, Rpc::ControllerUnpublishVolume).await;
    refused_and_reversed(Rpc::NodeStageVolume, Rpc::NodeUnstageVolume).await;
    refused_and_reversed(Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume).await;
}

/// Scenario B5.
/// The volume is deleted while its creation hangs: it is learnt by name, then deleted.
/// Obligations CO-CTRL-11, CO-CTRL-12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_in_doubt_is_repeated_by_name_and_then_deleted() {
    let rig = Rig::new(Config::full()).await;
    rig.deadline(Rpc::CreateVolume, "500ms").await;
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().after_effect().hang(&gate));
    rig.ask("vol-1", &Special::default()).await;
    rig.in_flight(Rpc::CreateVolume, 1).await;
    rig.end_volume("vol-1").await;
    assert_eq!(rig.backend.order(), ["CreateVolume", "CreateVolume", "DeleteVolume"]);
    rig.finish().await;
}

/// Whether it was made must still be found out, and no other request can do that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_creation_of_what_is_to_be_deleted_is_tried_again() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.next(Rpc::CreateVolume, Answer::cut().after_effect());
    for _ in 0..3 {
        rig.backend.next(Rpc::CreateVolume, Answer::fail(Code::InvalidArgument, "not now"));
    }
    rig.ask("vol-1", &Special::default()).await;
    rig.called(Rpc::CreateVolume, 1).await;
    rig.end_volume("vol-1").await;
    assert_eq!((rig.count(Rpc::CreateVolume), rig.count(Rpc::DeleteVolume)), (5, 1));
    rig.finish().await;
}

/// A later refusal says nothing about an earlier attempt.
/// Obligation CO-GEN-32.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_does_not_undo_an_earlier_creation() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.next(Rpc::CreateVolume, Answer::cut().after_effect());
    rig.backend.next(Rpc::CreateVolume, Answer::fail(Code::InvalidArgument, "no such pool"));
    rig.ask("vol-1", &Special::default()).await;
    let refused = |v: &serde_json::Value| {
        v["status"]["provisioning"]["message"].as_str().is_some_and(|m| m.contains("no such pool"))
    };
    let volume = rig.world.until(&rig.volumes, "vol-1", "refused", refused).await;
    assert_eq!(volume.status.unwrap().exists, Some(wharfline::api::meta::Rung::Unknown));
    rig.end_volume("vol-1").await;
    let wanted = ["CreateVolume", "CreateVolume", "CreateVolume", "DeleteVolume"];
    assert_eq!(rig.backend.order(), wanted, "found by its name, and deleted");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_refusal_says_that_nothing_was_made() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.next(Rpc::CreateVolume, Answer::fail(Code::InvalidArgument, "no such pool"));
    rig.ask("vol-1", &Special::default()).await;
    rig.world.until(&rig.volumes, "vol-1", "refused", |v| v["status"]["exists"] == "Down").await;
    rig.end_volume("vol-1").await;
    assert_eq!(rig.backend.order(), ["CreateVolume"]);
    rig.finish().await;
}

/// Obligation CO-CTRL-09.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_too_small_is_deleted_again() {
    let rig = Rig::new(Config::full()).await;
    let volume = proto::Volume { capacity_bytes: 5, volume_id: "tiny".into(), ..Default::default() };
    let reply = proto::CreateVolumeResponse { volume: Some(volume) };
    rig.backend.next(Rpc::CreateVolume, Answer::reply(&reply));
    rig.ask("vol-1", &Special::default()).await;
    let unusable = |v: &serde_json::Value| {
        v["status"]["provisioning"]["reason"] == "UnusableAnswer" && v["status"]["exists"] == "Down"
    };
    let volume = rig.world.until(&rig.volumes, "vol-1", "refused", unusable).await;
    let status = volume.status.unwrap();
    assert_eq!((status.exists, status.handle.as_str()), (Some(wharfline::api::meta::Rung::Down), ""));
    rig.end_volume("vol-1").await;
    assert_eq!(rig.backend.order(), ["CreateVolume", "DeleteVolume"]);
    rig.finish().await;
}

/// An unstage in doubt is finished before the volume is staged for somebody new (kubernetes issue 86360).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unstage_in_doubt_is_finished_before_the_next_stage() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.backend.next(Rpc::NodeUnstageVolume, Answer::fail(Code::Unavailable, "busy").after_effect());
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    let app = rig.user("app").await;
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.published("app").await;
    let order = rig.backend.order();
    let unstages: Vec<_> = order.iter().enumerate().filter(|(_, c)| **c == "NodeUnstageVolume").collect();
    let stage = order.iter().rposition(|c| *c == "NodeStageVolume").unwrap();
    assert_eq!(unstages.len(), 2);
    assert!(unstages[1].0 < stage, "{order:?}");
    rig.end_all().await;
    rig.finish().await;
}

/// Scenarios B66, B68.
/// Obligation CO-NODE-37: while an unstage is under way or in doubt, nothing is staged for somebody new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_while_an_unstage_hangs_gets_the_volume_staged_once_it_has_ended() {
    let rig = Rig::new(Config { controller: vec![1], ..Config::full() }).await;
    rig.deadline(Rpc::NodeUnstageVolume, "1s").await;
    rig.running().await;
    let gate = Gate::new();
    rig.backend.next(Rpc::NodeUnstageVolume, Answer::honest().after_effect().hang(&gate));
    rig.end_alloc("app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.in_flight(Rpc::NodeUnstageVolume, 1).await;
    next_one(&rig).await;
    rig.published("next").await;
    let order: Vec<_> = rig.backend.order().into_iter().filter(|call| call.starts_with("Node")).collect();
    let [stage, unstage] = ["NodeStageVolume", "NodeUnstageVolume"];
    let [publish, unpublish] = ["NodePublishVolume", "NodeUnpublishVolume"];
    assert_eq!(order, [stage, publish, unpublish, unstage, unstage, stage, publish]);
    end_next(rig).await;
}

/// Somebody else comes for the volume of `att-1`.
async fn next_one(rig: &Rig) {
    let next = rig.user("next").await;
    let mut spec = serde_json::to_value(rig.attachments.get("att-1").await.unwrap().spec).unwrap();
    spec["allocations"] = json!([uid(&next)]);
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
        "metadata": { "name": "att-2" }, "spec": spec });
    let _made: wharfline::api::VolumeAttachment = rig.world.create(&rig.attachments, object).await;
}

/// That one goes too, and then nobody is left.
async fn end_next(rig: Rig) {
    rig.detached().await;
    rig.end_alloc("next").await;
    rig.world.delete(&rig.attachments, "att-2").await;
    let released = |a: &Value| a["status"]["node"]["releasedUID"] == a["metadata"]["uid"];
    rig.world.until(&rig.attachments, "att-2", "released", released).await;
    rig.world.let_go(&rig.attachments, "att-2").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario B67.
/// That an unstage was refused does not mean that the volume is staged: it is staged anew before it is published again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_while_an_unstage_is_refused_gets_the_volume_staged_before_it_is_published() {
    for code in [Code::Internal, Code::InvalidArgument, Code::FailedPrecondition] {
        let rig = Rig::new(Config { controller: vec![1], ..Config::full() }).await;
        rig.running().await;
        rig.backend.always(Rpc::NodeUnstageVolume, Answer::fail(code, "not now"));
        rig.end_alloc("app").await;
        rig.world.delete(&rig.attachments, "att-1").await;
        rig.called(Rpc::NodeUnstageVolume, 1).await;
        next_one(&rig).await;
        rig.called(Rpc::NodeUnstageVolume, 3).await;
        rig.backend.honest(Rpc::NodeUnstageVolume);
        rig.published("next").await;
        let mut order = rig.backend.order();
        order.retain(|call| call.starts_with("Node"));
        // However often it was tried.
        order.dedup();
        let [stage, unstage] = ["NodeStageVolume", "NodeUnstageVolume"];
        let [publish, unpublish] = ["NodePublishVolume", "NodeUnpublishVolume"];
        assert_eq!(order, [stage, publish, unpublish, unstage, stage, publish], "{code:?}");
        end_next(rig).await;
    }
}

/// On the word that a volume is not there its object may go. While that word is about to change it says so, and that it is
/// final is said only once it is.
fn may_go(volume: &Volume) -> bool {
    let status = volume.status.as_ref().unwrap();
    status.exists == Some(Rung::Down) && !status.attempting
}

/// Refused once, and at work on the second attempt behind the gate.
async fn at_work_again(rig: &Rig, gate: &Gate) {
    rig.backend.next(Rpc::CreateVolume, Answer::fail(Code::ResourceExhausted, "no space yet"));
    rig.backend.next(Rpc::CreateVolume, Answer::honest().hang(gate));
    rig.ask("vol-1", &Special::default()).await;
    rig.in_flight(Rpc::CreateVolume, 2).await;
}

/// Scenario B5.
/// Obligation CO-CTRL-12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_repeated_create_makes_is_deleted_before_its_object_goes() {
    let rig = Rig::new(Config::full()).await;
    let gate = Gate::new();
    at_work_again(&rig, &gate).await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    let refused = |v: &Value| v["status"]["exists"] == "Down" && v["status"]["calls"].is_array();
    let volume = rig.world.until(&rig.volumes, "vol-1", "refused", refused).await;
    assert!(!may_go(&volume), "a create is at work and nothing says so");
    gate.open();
    rig.end_volume("vol-1").await;
    assert_eq!(rig.backend.order(), ["CreateVolume", "CreateVolume", "DeleteVolume"]);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_begins_anew_is_announced() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.next(Rpc::CreateVolume, Answer::fail(Code::OutOfRange, "too large"));
    rig.ask("vol-1", &Special::default()).await;
    let blocked =
        rig.world.until(&rig.volumes, "vol-1", "blocked", |v| v["status"]["exists"] == "Down").await;
    assert!(may_go(&blocked), "nothing is tried any more");
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().hang(&gate));
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Retain" } })).await;
    rig.in_flight(Rpc::CreateVolume, 2).await;
    let volume = rig.volumes.get("vol-1").await.unwrap();
    assert!(!may_go(&volume), "a create is at work and nothing says so");
    gate.open();
    rig.volume_up("vol-1").await;
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Delete" } })).await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario B6.
/// The daemon, with its memory or without, does not know what became of the create that it was killed at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_create_that_was_cut_off_is_in_doubt() {
    for forgets in [false, true] {
        let mut rig = Rig::new(Config::full()).await;
        let gate = Gate::new();
        at_work_again(&rig, &gate).await;
        rig.kill().await;
        gate.open();
        rig.called(Rpc::CreateVolume, 2).await;
        rig.world.delete(&rig.volumes, "vol-1").await;
        if forgets {
            std::fs::remove_file(rig.place.data.path().join("journal")).unwrap();
        }
        rig.start().await;
        rig.end_volume("vol-1").await;
        let order = rig.backend.order();
        assert_eq!(
            order,
            ["CreateVolume", "CreateVolume", "CreateVolume", "DeleteVolume"],
            "forgets: {forgets}"
        );
        rig.finish().await;
    }
}

/// The object may go on the word that stands at the server, so no call is made while it stands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_cannot_be_announced_is_not_made() {
    const STATUS: &str = "/apis/wharfline.dev/v1alpha1/volumes/vol-1/status";
    let rig = Rig::new(Config::full()).await;
    rig.backend.next(Rpc::CreateVolume, Answer::fail(Code::OutOfRange, "too large"));
    rig.ask("vol-1", &Special::default()).await;
    rig.world.until(&rig.volumes, "vol-1", "blocked", |v| v["status"]["exists"] == "Down").await;
    rig.link.cut();
    let before = rig.link.patches(STATUS);
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Retain" } })).await;
    let tried = || rig.link.patches(STATUS) >= before + 3;
    crate::support::node::until(tried, "the announcement is tried again and again").await;
    assert_eq!(rig.count(Rpc::CreateVolume), 1);
    rig.link.mend();
    rig.volume_up("vol-1").await;
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Delete" } })).await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_creation_is_not_announced_while_there_is_nobody_to_call() {
    const STATUS: &str = "/apis/wharfline.dev/v1alpha1/volumes/vol-1/status";
    let mut rig = Rig::new(Config::full()).await;
    rig.backend.next(Rpc::CreateVolume, Answer::fail(Code::OutOfRange, "too large"));
    rig.ask("vol-1", &Special::default()).await;
    rig.world.until(&rig.volumes, "vol-1", "blocked", |v| v["status"]["exists"] == "Down").await;
    rig.plugin.stop().await;
    rig.not_ready("NoSocket").await;
    let waits = |v: &Value, generation: u64| {
        let said = &v["status"]["provisioning"];
        said["reason"] == "PluginNotReady" && said["observedGeneration"] == generation
    };
    rig.world.until(&rig.volumes, "vol-1", "waits", |v| waits(v, 1)).await;
    let before = rig.link.patches(STATUS);
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Retain" } })).await;
    rig.world.until(&rig.volumes, "vol-1", "waits", |v| waits(v, 2)).await;
    // Long enough for many more: an allocation comes and goes.
    rig.user("app").await;
    rig.end_alloc("app").await;
    assert_eq!(rig.link.patches(STATUS) - before, 1);
    rig.plugin.serve();
    rig.volume_up("vol-1").await;
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Delete" } })).await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}
