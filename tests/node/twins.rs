//! Two Volumes of one plugin and handle on one node. The controllers let only one of them be used; should that fail, the
//! node still takes nothing away from under the other.
use serde_json::{Value, json};
use wharfline::api::meta::Rung;
use wharfline::api::{Allocation, VolumeAttachment};
use wharfline::csi::{Rpc, proto};

use crate::support::node::{Rig, Special, uid};
use crate::support::scripted::{Answer, Config, Gate};

fn special() -> Special {
    Special { mode: Some("SingleNodeMultiWriter"), ..Special::default() }
}

/// `vol-1`, made for `app`, and `vol-2`, registered by a person with the handle of the first, for `app2`.
async fn both_used(rig: &Rig) -> (Allocation, Allocation) {
    let app = rig.user("app").await;
    rig.give(&[&app], &special()).await;
    rig.published("app").await;
    let first = rig.volumes.get("vol-1").await.unwrap().status.unwrap();
    let existing = json!({ "handle": first.handle, "context": first.context });
    let second = json!({ "source": { "existing": existing } });
    let second = rig.ask("vol-2", &Special { spec: second, ..special() }).await;
    rig.volume_up("vol-2").await;
    let app2 = rig.alloc("app2", json!({ "volumes": [{ "name": "data", "claimName": "data2" }] })).await;
    let mut spec = serde_json::to_value(rig.attachments.get("att-1").await.unwrap().spec).unwrap();
    spec["volume"] = json!("vol-2");
    spec["volumeUid"] = json!(uid(&second));
    spec["claim"] = json!({ "namespace": "default", "name": "data2", "uid": "c2" });
    spec["allocations"] = json!([uid(&app2)]);
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
        "metadata": { "name": "att-2" }, "spec": spec });
    let _: VolumeAttachment = rig.world.create(&rig.attachments, object).await;
    (app, rig.published("app2").await)
}

async fn detached(rig: &Rig, name: &str) {
    let holds = |a: &Value| {
        a["status"]["node"]["releasedUID"] == a["metadata"]["uid"]
            && a["status"]["controller"]["attached"] == "Down"
    };
    rig.world.until(&rig.attachments, name, "released and detached", holds).await;
    rig.world.let_go(&rig.attachments, name).await;
}

/// Scenario B72: unstaged and detached when both are gone, whichever goes first.
async fn unstaged_when_both_are_gone(first: usize) {
    let rig = Rig::new(Config::full()).await;
    both_used(&rig).await;
    let names = [("app", "att-1"), ("app2", "att-2")];
    let (leaves, stays) = (names[first], names[1 - first]);
    rig.end_alloc(leaves.0).await;
    rig.world.delete(&rig.attachments, leaves.1).await;
    let told = |a: &Value| a["status"]["node"]["reason"] == "HandleShared";
    rig.world.until(&rig.attachments, leaves.1, "waiting for the other", told).await;
    assert_eq!((rig.count(Rpc::NodeUnstageVolume), rig.count(Rpc::ControllerUnpublishVolume)), (0, 0));
    assert_eq!(rig.mounted().len(), 2, "one staging and one publication: {:?}", rig.mounted());
    rig.end_alloc(stays.0).await;
    rig.world.delete(&rig.attachments, stays.1).await;
    detached(&rig, stays.1).await;
    detached(&rig, leaves.1).await;
    assert_eq!(rig.count(Rpc::NodeUnstageVolume), 1);
    rig.world.delete(&rig.volumes, "vol-2").await;
    rig.world.let_go(&rig.volumes, "vol-2").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario B72.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_volumes_of_one_handle_are_unstaged_when_both_are_gone() {
    Box::pin(unstaged_when_both_are_gone(0)).await;
    Box::pin(unstaged_when_both_are_gone(1)).await;
}

/// Both leave at the same moment, and the daemon dies in between: one unstage, both released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_volumes_of_one_handle_may_leave_together() {
    let mut rig = Rig::new(Config::full()).await;
    both_used(&rig).await;
    rig.kill().await;
    for (app, attachment) in [("app", "att-1"), ("app2", "att-2")] {
        rig.world.delete(&rig.allocs, app).await;
        rig.world.delete(&rig.attachments, attachment).await;
    }
    rig.start().await;
    tokio::join!(detached(&rig, "att-1"), detached(&rig, "att-2"));
    assert_eq!(rig.count(Rpc::NodeUnstageVolume), 1);
    for app in ["app", "app2"] {
        rig.world.until(&rig.allocs, app, "stopped", |a| a["status"]["phase"] == "Stopped").await;
        rig.world.let_go(&rig.allocs, app).await;
    }
    rig.world.delete(&rig.volumes, "vol-2").await;
    rig.world.let_go(&rig.volumes, "vol-2").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// What the volumes controller says of the handle is enough: no DeleteVolume while it is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_whose_handle_another_has_is_not_deleted() {
    let rig = Rig::new(Config::full()).await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let shared = json!([{ "type": "HandleShared", "status": "True", "reason": "HandleShared", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    rig.world.status(&rig.volumes, "vol-1", json!({ "conditions": shared })).await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    // Another volume's whole life: the host has looked at this one by then.
    rig.ask("vol-0", &Special::default()).await;
    rig.volume_up("vol-0").await;
    rig.end_volume("vol-0").await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 1, "vol-0 alone");
    rig.world.status(&rig.volumes, "vol-1", json!({ "conditions": [] })).await;
    let gone = |v: &Value| v["status"]["exists"] == "Down";
    rig.world.until(&rig.volumes, "vol-1", "deleted", gone).await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    rig.finish().await;
}

/// Nor before the controllers, which see the handles of all, have said that no other one has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_deleted_on_the_word_that_its_handle_is_no_others() {
    let rig = Rig::new(Config::full()).await;
    rig.world.speak_of_handles(false);
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "handleChecked": "another" })).await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    // The host has looked at it by then.
    rig.ask("vol-0", &Special::default()).await;
    rig.volume_up("vol-0").await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 0);
    rig.world.speak_of_handles(true);
    rig.world.until(&rig.volumes, "vol-1", "deleted", |v| v["status"]["exists"] == "Down").await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    rig.end_volume("vol-0").await;
    rig.finish().await;
}

/// Obligation CO-CTRL-09.
/// Nor is what does not fit, which may be another Volume's; and it is asked for again once that word is taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_is_deleted_on_that_word_and_asked_for_again() {
    let rig = Rig::new(Config::full()).await;
    rig.world.speak_of_handles(false);
    let volume = proto::Volume { capacity_bytes: 5, volume_id: "tiny".into(), ..Default::default() };
    let reply = proto::CreateVolumeResponse { volume: Some(volume) };
    rig.backend.next(Rpc::CreateVolume, Answer::reply(&reply));
    rig.ask("vol-1", &Special::default()).await;
    let unusable = |v: &Value| v["status"]["provisioning"]["reason"] == "UnusableAnswer";
    let told = rig.world.until(&rig.volumes, "vol-1", "refused", unusable).await.status.unwrap();
    assert_eq!((told.exists, told.handle.as_str()), (Some(Rung::Unknown), "tiny"));
    rig.ask("vol-0", &Special::default()).await;
    rig.volume_up("vol-0").await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 0);
    rig.world.status(&rig.volumes, "vol-1", json!({ "handleChecked": "tiny" })).await;
    let undone = |v: &Value| v["status"]["exists"] == "Down" && v["status"]["handle"].is_null();
    let undone = rig.world.until(&rig.volumes, "vol-1", "deleted again", undone).await;
    assert_eq!(undone.status.unwrap().provisioning.unwrap().message, told.provisioning.unwrap().message);
    // What was said of the handle that it had could be taken for a word on the next one.
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Retain" } })).await;
    rig.ask("vol-2", &Special::default()).await;
    rig.volume_up("vol-2").await;
    assert_eq!(rig.backend.order(), ["CreateVolume", "CreateVolume", "DeleteVolume", "CreateVolume"]);
    rig.world.speak_of_handles(true);
    rig.volume_up("vol-1").await;
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Delete" } })).await;
    for name in ["vol-0", "vol-1", "vol-2"] {
        rig.end_volume(name).await;
    }
    rig.finish().await;
}

/// What its plugin gave it may have gone with what had it before: it is asked again by name, before it is used or deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_whose_handle_has_ended_with_another_one_is_asked_for_again() {
    for leaves in [false, true] {
        let rig = Rig::new(Config::full()).await;
        rig.world.speak_of_handles(false);
        rig.ask("vol-1", &Special::default()).await;
        let first = rig.volume_up("vol-1").await.status.unwrap().handle;
        let ended = json!([{ "type": "HandleShared", "status": "True", "reason": "HandleEnded", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
        rig.world.status(&rig.volumes, "vol-1", json!({ "conditions": ended })).await;
        rig.world.until(&rig.volumes, "vol-1", "forgotten", |v| v["status"]["handle"].is_null()).await;
        if leaves {
            rig.world.delete(&rig.volumes, "vol-1").await;
        }
        // The host has looked at it by then, and waits until the word is taken back.
        rig.ask("vol-0", &Special::default()).await;
        rig.volume_up("vol-0").await;
        assert_eq!(rig.count(Rpc::CreateVolume), 2, "once for each");
        rig.world.status(&rig.volumes, "vol-1", json!({ "conditions": [] })).await;
        rig.called(Rpc::CreateVolume, 3).await;
        let again = |v: &Value| v["status"]["handle"] == first.as_str() && v["status"]["exists"] == "Up";
        rig.world.until(&rig.volumes, "vol-1", "given once more", again).await;
        assert_eq!(rig.count(Rpc::DeleteVolume), 0);
        rig.world.speak_of_handles(true);
        if leaves {
            rig.world.until(&rig.volumes, "vol-1", "deleted", |v| v["status"]["exists"] == "Down").await;
            rig.world.let_go(&rig.volumes, "vol-1").await;
        } else {
            rig.end_volume("vol-1").await;
        }
        rig.end_volume("vol-0").await;
        rig.finish().await;
    }
}

/// Kept while the plugin is at its deletion: its host says how that ended, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_lets_go_of_what_is_kept_when_its_deletion_has_ended() {
    let refused = Answer::fail(wharfline::csi::Code::FailedPrecondition, "it has snapshots");
    for (answer, exists) in [(Answer::honest(), "Down"), (refused, "Up")] {
        let rig = Rig::new(Config::full()).await;
        rig.ask("vol-1", &Special::default()).await;
        rig.volume_up("vol-1").await;
        let gate = Gate::new();
        rig.backend.next(Rpc::DeleteVolume, answer.hang(&gate));
        rig.world.delete(&rig.volumes, "vol-1").await;
        rig.in_flight(Rpc::DeleteVolume, 1).await;
        let keep = json!({ "spec": { "reclaimPolicy": "Retain" } });
        rig.world.patch(&rig.volumes, "vol-1", keep).await;
        rig.world.status(&rig.volumes, "vol-1", json!({ "askedToRelease": 1 })).await;
        // The host sees to others meanwhile.
        rig.ask("vol-0", &Special::default()).await;
        rig.volume_up("vol-0").await;
        let status = rig.volumes.get("vol-1").await.unwrap().status.unwrap();
        assert_eq!((status.released_epoch, status.exists), (0, Some(Rung::Up)));
        gate.open();
        let said = |v: &Value| v["status"]["releasedEpoch"] == 1 && v["status"]["exists"] == exists;
        rig.world.until(&rig.volumes, "vol-1", "let go", said).await;
        assert_eq!(rig.count(Rpc::DeleteVolume), 1);
        rig.world.let_go(&rig.volumes, "vol-1").await;
        rig.end_volume("vol-0").await;
        if exists == "Up" {
            rig.end_lost_volume("vol-1").await;
        }
        rig.finish().await;
    }
}

/// Whoever begins anew does not know how it ended, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_began_anew_says_in_doubt_what_an_earlier_daemon_may_have_deleted() {
    let mut rig = Rig::new(Config::full()).await;
    rig.options.longest_call = std::time::Duration::from_millis(50);
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let gate = Gate::new();
    rig.backend.next(Rpc::DeleteVolume, Answer::honest().hang(&gate));
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.in_flight(Rpc::DeleteVolume, 1).await;
    rig.kill().await;
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Retain" } })).await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "askedToRelease": 1 })).await;
    rig.start().await;
    rig.ready().await;
    let said = |v: &Value| v["status"]["releasedEpoch"] == 1 && v["status"]["exists"] == "Unknown";
    rig.world.until(&rig.volumes, "vol-1", "let go in doubt", said).await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 1);
    rig.world.let_go(&rig.volumes, "vol-1").await;
    // It was not done.
    rig.end_lost_volume("vol-1").await;
    rig.finish().await;
}
