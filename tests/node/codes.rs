//! Single codes of single calls that the contract gives a meaning of their own.
use kube::Api;
use serde_json::{Value, json};
use wharfline::api::{Volume, VolumeAttachment};
use wharfline::csi::{Code, Rpc, proto};

use crate::refused::meanwhile;
use crate::support::node::{NODE, NODE_ID, Rig, Special, condition_reason, uid};
use crate::support::scripted::{Answer, Ask, Config, Site, requests};

const CREATE: Rpc = Rpc::CreateVolume;
const DELETE: Rpc = Rpc::DeleteVolume;
const ATTACH: Rpc = Rpc::ControllerPublishVolume;
/// CREATE_DELETE_SNAPSHOT of the controller service.
const SNAPSHOTS: i32 = 5;

/// Pauses between the calls of one kind about one thing: three quarters at least of 250 ms, then of twice that, and so on.
pub(crate) fn grow(rig: &Rig, rpc: Rpc, subject: &str) {
    let calls = rig.backend.calls_of(rpc);
    let calls: Vec<_> = calls.into_iter().filter(|call| call.ask.subject() == Some(subject)).collect();
    assert!(calls.len() >= 3, "{rpc}: only {} calls about {subject}", calls.len());
    assert!(calls.windows(2).all(|two| two[0].ask == two[1].ask), "{rpc}: {calls:#?}");
    for (n, two) in calls.windows(2).enumerate() {
        let gap = two[1].started - two[0].ended.unwrap().0;
        assert!(gap >= std::time::Duration::from_millis(187 << n.min(4)), "{rpc}: pause {n} is {gap:?}");
    }
}

fn asked_about(rig: &Rig, rpc: Rpc, subject: &str) -> usize {
    rig.backend.calls_of(rpc).iter().filter(|call| call.ask.subject() == Some(subject)).count()
}

/// Scenario B8.
/// Obligations CO-CTRL-13, CO-CTRL-15.
/// Part of obligation CO-CTRL-17: its claim can be corrected, and another volume is asked for then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_made_as_it_is_asked_for_is_asked_for_once() {
    for (code, said, filled) in [
        (Code::InvalidArgument, "no such source", true),
        (Code::AlreadyExists, "report that", false),
        (Code::OutOfRange, "smaller than the least", false),
    ] {
        let mut config = Config::full();
        config.controller.push(SNAPSHOTS);
        let rig = Rig::new(config).await;
        let message = if code == Code::AlreadyExists { "taken" } else { said };
        rig.backend.next(CREATE, Answer::fail(code, message));
        let content = json!({ "snapshot": "default/s", "uid": "u", "handle": "h" });
        let mut create = json!({ "name": "vol-1", "requiredBytes": 1 << 20 });
        if filled {
            create["content"] = content;
        }
        rig.ask("vol-1", &Special { spec: json!({ "source": { "create": create } }), ..Special::default() })
            .await;
        let told = |v: &Value| {
            let told = &v["status"]["provisioning"];
            let message = told["message"].as_str().unwrap_or_default();
            told["reason"] == "CreateVolumeFailed"
                && message.contains(said)
                && message.contains("not tried again")
        };
        let volume: Volume = rig.world.until(&rig.volumes, "vol-1", "told", told).await;
        assert!(volume.is_refused() && volume.status.unwrap().next_attempt_time.is_none(), "{code:?}");
        meanwhile(&rig).await;
        assert_eq!(asked_about(&rig, CREATE, "vol-1"), 1, "{code:?}");
        rig.end_volume("vol-1").await;
        assert_eq!(rig.count(DELETE), 1, "{code:?}: nothing was made, so only the other one is deleted");
        rig.finish().await;
    }
}

/// Scenario B34.
/// Obligation CO-CTRL-22.
/// A snapshot that somebody made of it: the volume stays as it is, why is told, and it goes once the snapshot has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_others_depend_on_is_deleted_when_they_are_gone() {
    let mut config = Config { dependent_snapshots: true, ..Config::full() };
    config.controller.push(SNAPSHOTS);
    let rig = Rig::new(config).await;
    rig.ask("vol-1", &Special::default()).await;
    let handle = rig.volume_up("vol-1").await.status.unwrap().handle;
    let site = Site::new(NODE_ID);
    rig.backend.replay(&site, &Ask::CreateSnapshot(requests::snapshot(&handle, "by hand")));
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.called(DELETE, 3).await;
    grow(&rig, DELETE, &handle);
    let told = |v: &Value| {
        v["status"]["provisioning"]["message"]
            .as_str()
            .is_some_and(|said| said.contains("is a snapshot of it"))
    };
    let volume: Volume = rig.world.until(&rig.volumes, "vol-1", "told", told).await;
    let status = volume.status.unwrap();
    assert!(status.next_attempt_time.is_some() && status.handle == handle);
    assert_eq!(rig.backend.volumes(), [handle]);
    let snapshot = rig.backend.snapshot_named("by hand").unwrap();
    rig.backend.replay(&site, &Ask::DeleteSnapshot(requests::delete_snapshot(&snapshot)));
    gone(&rig, "vol-1").await;
    rig.finish().await;
}

/// It was deleted before; nothing is at its backend, and its object may go.
async fn gone(rig: &Rig, volume: &str) {
    let down = |v: &Value| v["status"]["exists"] == "Down" && v["status"]["attempting"].is_null();
    rig.world.until(&rig.volumes, volume, "deleted", down).await;
    rig.world.let_go(&rig.volumes, volume).await;
}

/// Obligation CO-CTRL-23.
/// The driver ought to say OK of what it does not know: it is asked on, and a person may let the volume go without its word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_of_what_is_not_found_is_repeated_until_a_person_lets_it_go() {
    let rig = Rig::new(Config::full()).await;
    rig.ask("vol-1", &Special::default()).await;
    let handle = rig.volume_up("vol-1").await.status.unwrap().handle;
    rig.backend.always(DELETE, Answer::fail(Code::NotFound, "no such volume").after_effect());
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.called(DELETE, 5).await;
    grow(&rig, DELETE, &handle);
    let volume = rig.volumes.get("vol-1").await.unwrap();
    let status = volume.status.unwrap();
    assert!(volume.metadata.finalizers.is_some_and(|held| !held.is_empty()) && status.handle == handle);
    let said = status.provisioning.unwrap().message;
    assert!(said.contains("no such volume") && said.contains("reclaimPolicy Retain"), "{said}");
    let volumes: Api<Volume> = rig.world.all();
    rig.world.patch(&volumes, "vol-1", json!({ "spec": { "reclaimPolicy": "Retain" } })).await;
    let calls = rig.count(DELETE);
    rig.backend.honest(DELETE);
    meanwhile(&rig).await;
    assert_eq!(asked_about(&rig, DELETE, &handle), calls, "nobody asks any more");
    rig.world.let_go(&rig.volumes, "vol-1").await;
    rig.finish().await;
}

/// Obligation CO-CTRL-37.
/// One code for both: our record and the driver are asked about the volume (tests/node/missing.rs), the node about its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_not_found_is_asked_what_it_is_called() {
    let rig = Rig::new(Config::full()).await;
    let name = rig.ready().await.metadata.name.unwrap();
    rig.backend.always(ATTACH, Answer::fail(Code::NotFound, "no such node"));
    let app = rig.user("app").await;
    let before = rig.count(Rpc::NodeGetInfo);
    rig.give(&[&app], &Special::default()).await;
    rig.called(Rpc::NodeGetInfo, before + 1).await;
    assert_eq!(rig.count(Rpc::GetPluginInfo), 1, "it is called as before, so nothing else is asked anew");
    rig.called(ATTACH, 3).await;
    rig.told("ControllerPublishVolumeFailed", "so it is the node that the driver does not know").await;
    let handle = rig.volumes.get("vol-1").await.unwrap().status.unwrap().handle;
    grow(&rig, ATTACH, &handle);
    rig.backend.always(
        Rpc::NodeGetInfo,
        Answer::reply(&proto::NodeGetInfoResponse {
            node_id: "i-renamed".to_owned(),
            ..proto::NodeGetInfoResponse::default()
        }),
    );
    let renamed = |i: &Value| i["status"]["nodeId"] == "i-renamed";
    rig.world.until(&rig.instances, &name, "the new name", renamed).await;
    rig.backend.honest(Rpc::NodeGetInfo);
    rig.backend.honest(ATTACH);
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

/// Scenario A63.
/// Obligation CO-CTRL-39.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_attached_elsewhere_is_attached_here_once_it_is_not() {
    const ELSEWHERE: &str = "i-elsewhere";
    let rig = Rig::new(Config::full()).await;
    rig.backend.add_node(&Site::new(ELSEWHERE));
    let app = rig.user("app").await;
    rig.ask("vol-1", &Special::default()).await;
    let volume = rig.volume_up("vol-1").await;
    let handle = volume.status.clone().unwrap().handle;
    let spec = json!({ "volume": "vol-1", "volumeUid": uid(&volume), "nodeName": "node-b", "nodeId": ELSEWHERE,
        "plugin": "scripted", "claim": { "namespace": "default", "name": "data", "uid": "c" },
        "host": { "nodeName": NODE, "epoch": 1 }, "attachRequired": true, "stageRequired": true,
        "handle": handle, "volumeContext": volume.status.clone().unwrap().context, "allocations": ["somebody"], "capability": { "accessMode": "SingleNodeWriter" } });
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
        "metadata": { "name": "att-2" }, "spec": spec });
    let other: VolumeAttachment = rig.world.create(&rig.attachments, object).await;
    let up = |a: &Value| a["status"]["controller"]["attached"] == "Up";
    rig.world.until(&rig.attachments, "att-2", "attached", up).await;
    rig.backend.always(ATTACH, Answer::fail(Code::FailedPrecondition, "attached to i-elsewhere"));
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.called(ATTACH, 4).await;
    let told = |a: &Value| {
        let said = a["status"]["controller"]["message"].as_str().unwrap_or_default();
        said.contains("FAILED_PRECONDITION") && !a["status"]["controller"]["nextAttemptTime"].is_null()
    };
    rig.world.until(&rig.attachments, "att-1", "told", told).await;
    assert_eq!(rig.count(Rpc::ControllerUnpublishVolume), 0, "nobody is detached on the word of that");
    rig.world.delete(&rig.attachments, "att-2").await;
    let down = json!({ "node": { "staged": "Down", "releasedUID": uid(&other) } });
    rig.world.status(&rig.attachments, "att-2", down).await;
    let detached = |a: &Value| a["status"]["controller"]["attached"] == "Down";
    rig.world.until(&rig.attachments, "att-2", "detached", detached).await;
    rig.backend.honest(ATTACH);
    rig.world.let_go(&rig.attachments, "att-2").await;
    rig.published("app").await;
    let here: Vec<_> = rig.backend.calls_of(ATTACH).into_iter().skip(1).collect();
    assert!(here.windows(2).all(|two| two[0].ask == two[1].ask), "{here:#?}");
    rig.end_all().await;
    rig.finish().await;
}

/// Obligations CO-NODE-27, CO-NODE-53.
/// What a volume cannot do is told, tried ever more seldom, and nobody else's concern.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_volume_does_not_support_holds_up_no_other_volume() {
    let bare = Config::without_attach_and_stage();
    for (config, rpc) in [(Config::full(), Rpc::NodeStageVolume), (bare, Rpc::NodePublishVolume)] {
        let rig = Rig::new(config).await;
        let app = rig.user("app").await;
        rig.ask("vol-1", &Special::default()).await;
        let handle = rig.volume_up("vol-1").await.status.unwrap().handle;
        for _ in 0..5 {
            rig.backend.next_for(rpc, &handle, Answer::fail(Code::FailedPrecondition, "not as a reader"));
        }
        rig.attach("vol-1", &[&app], &Special::default()).await;
        let told = |a: &Value| {
            let word = condition_reason(a, "VolumesReady").unwrap_or_default();
            word == format!("{rpc}Failed") && a.to_string().contains("not as a reader")
        };
        rig.world.until(&rig.allocs, "app", "told", told).await;
        let second = json!({ "volumes": [{ "name": "data", "claimName": "other" }] });
        let second = rig.alloc("second", second).await;
        rig.give_second(&second).await;
        rig.published("second").await;
        rig.end_second().await;
        rig.published("app").await;
        assert_eq!(asked_about(&rig, rpc, &handle), 6, "{rpc}");
        grow(&rig, rpc, &handle);
        rig.end_all().await;
        rig.finish().await;
    }
}

/// Obligation CO-ERR-15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_data_is_told_of_what_failed_otherwise_before_too() {
    let rig = Rig::new(Config::full()).await;
    let rpc = Rpc::NodeStageVolume;
    for code in [Code::Internal, Code::DataLoss, Code::DataLoss, Code::Internal] {
        rig.backend.next(rpc, Answer::fail(code, "block 7 is bad"));
    }
    rig.running().await;
    let calls = rig.backend.calls_of(rpc);
    assert!(calls.len() == 5 && calls.windows(2).all(|two| two[0].ask == two[1].ask), "{calls:#?}");
    rig.told("NodeStageVolumeDataLoss", "the driver says that data is lost").await;
    rig.end_all().await;
    let events = rig.events_until("Recovered").await;
    let count = |reason: &str| events.iter().filter(|(r, _)| r == reason).count();
    let told = ["NodeStageVolumeFailed", "NodeStageVolumeDataLoss", "Recovered"].map(count);
    assert_eq!(told, [1, 1, 1], "{events:?}");
    rig.finish().await;
}
