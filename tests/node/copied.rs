//! Volumes that are made as copies of volumes: what the driver is asked, again and again the same, and what it is not asked.
use serde_json::{Value, json};
use wharfline::api::Volume;
use wharfline::csi::proto::volume_content_source::{Type, VolumeSource};
use wharfline::csi::{Code, Rpc, proto};

use crate::support::node::{Rig, Special, uid};
use crate::support::scripted::{Answer, Ask, Config, Gate};

const CREATE: Rpc = Rpc::CreateVolume;
const DELETE: Rpc = Rpc::DeleteVolume;
/// CLONE_VOLUME of the controller service.
const CLONE: i32 = 7;

fn copying() -> Config {
    let mut config = Config::full();
    config.controller.push(CLONE);
    config
}

/// The Volume `vol-2`, to be filled from `vol-1`.
async fn ask_for_copy(rig: &Rig) {
    let source = rig.volumes.get("vol-1").await.unwrap();
    let handle = source.status.clone().unwrap().handle;
    let content = json!({ "volume": "vol-1", "uid": uid(&source), "handle": handle });
    let create = json!({ "name": "vol-2", "requiredBytes": 2 << 20, "content": content });
    let spec = json!({ "source": { "create": create } });
    rig.ask("vol-2", &Special { spec, ..Special::default() }).await;
}

/// The volumes controller's word of what is filled from `vol-1`.
async fn enter(rig: &Rig, copies: &[&str]) {
    rig.world.status(&rig.volumes, "vol-1", json!({ "copies": copies })).await;
}

async fn made(config: Config) -> Rig {
    let rig = Rig::new(config).await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    rig
}

async fn told(rig: &Rig, reason: &str) -> Volume {
    let says = |v: &Value| v["status"]["provisioning"]["reason"] == reason;
    rig.world.until(&rig.volumes, "vol-2", reason, says).await
}

/// What was asked of volumes by this name.
fn asked(rig: &Rig, name: &str) -> Vec<proto::CreateVolumeRequest> {
    let create = |ask: Ask| match ask {
        Ask::CreateVolume(of) => of,
        other => panic!("{other:?}"),
    };
    let all = rig.backend.calls_of(CREATE).into_iter().map(|call| create(call.ask));
    all.filter(|create| create.name == name).collect()
}

async fn end(rig: Rig) {
    rig.end_volume("vol-2").await;
    enter(&rig, &[]).await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-CTRL-05.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_asked_for_alike_until_it_is_there_and_its_source_stays_for_it() {
    for killed in [false, true] {
        let mut rig = made(copying()).await;
        rig.deadline(CREATE, "1s").await;
        let gate = Gate::new();
        rig.backend.next(CREATE, Answer::honest().after_effect().hang(&gate));
        enter(&rig, &["vol-2"]).await;
        ask_for_copy(&rig).await;
        rig.in_flight(CREATE, 2).await;
        rig.world.delete(&rig.volumes, "vol-1").await;
        if killed {
            rig.kill().await;
            rig.start().await;
            rig.ready().await;
        }
        rig.volume_up("vol-2").await;
        let all = asked(&rig, "vol-2");
        assert!(all.len() > 1 && all.iter().all(|one| *one == all[0]), "{all:?}");
        let volume_id = rig.volumes.get("vol-1").await.unwrap().status.unwrap().handle;
        let source = Some(Type::Volume(VolumeSource { volume_id }));
        assert_eq!(all[0].volume_content_source, Some(proto::VolumeContentSource { r#type: source }));
        assert_eq!(rig.count(DELETE), 0, "it is being copied");
        gate.open();
        enter(&rig, &[]).await;
        let gone = |v: &Value| v["status"]["exists"] == "Down";
        rig.world.until(&rig.volumes, "vol-1", "deleted", gone).await;
        rig.world.let_go(&rig.volumes, "vol-1").await;
        rig.end_volume("vol-2").await;
        rig.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_makes_no_copies_is_asked_for_none_and_has_none_to_delete() {
    let rig = made(Config::full()).await;
    ask_for_copy(&rig).await;
    told(&rig, "PluginLacksCapability").await;
    let before = rig.backend.order().len();
    rig.end_volume("vol-2").await;
    assert_eq!(rig.backend.order().len(), before, "what was never asked for is not made to be deleted");
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-CTRL-09.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_said_to_be_a_copy_is_none() {
    let rig = made(copying()).await;
    let context = rig.volumes.get("vol-1").await.unwrap().status.unwrap().context;
    let empty = proto::Volume {
        volume_id: "backend/0002".to_owned(),
        capacity_bytes: 2 << 20,
        volume_context: context,
        ..proto::Volume::default()
    };
    let answer = proto::CreateVolumeResponse { volume: Some(empty) };
    rig.backend.next(CREATE, Answer::reply(&answer).after_effect());
    ask_for_copy(&rig).await;
    told(&rig, "UnusableAnswer").await;
    let undone = |v: &Value| v["status"]["exists"] == "Down";
    rig.world.until(&rig.volumes, "vol-2", "deleted again", undone).await;
    assert_eq!(rig.count(DELETE), 1);
    end(rig).await;
}

/// Obligation CO-CTRL-14.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_is_not_found_is_looked_for_again() {
    let rig = made(copying()).await;
    for _ in 0..2 {
        rig.backend.next(CREATE, Answer::fail(Code::NotFound, "no such source"));
    }
    ask_for_copy(&rig).await;
    rig.volume_up("vol-2").await;
    let calls = asked(&rig, "vol-2");
    assert!(calls.len() == 3 && calls.windows(2).all(|two| two[0] == two[1]), "{calls:?}");
    rig.told("CreateVolumeFailed", "looked up: the record here, Volume \"vol-1\", has the handle").await;
    end(rig).await;
}

/// Obligation CO-CTRL-14.
/// Somebody took the finalizers off the source: nothing can come of it any more, and nobody asks for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_filled_any_more_is_told_and_asked_for_no_more() {
    let rig = made(copying()).await;
    rig.backend.always(CREATE, Answer::fail(Code::NotFound, "no such source"));
    ask_for_copy(&rig).await;
    told(&rig, "CreateVolumeFailed").await;
    enter(&rig, &["vol-2"]).await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    let volume = told(&rig, "SourceGone").await;
    assert!(volume.is_refused() && volume.status.unwrap().next_attempt_time.is_none());
    let before = asked(&rig, "vol-2").len();
    rig.backend.honest(CREATE);
    crate::refused::meanwhile(&rig).await;
    assert_eq!(asked(&rig, "vol-2").len(), before);
    rig.end_volume("vol-2").await;
    // Found again by its name, so that nothing is left of this test.
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Who refuses to copy what is in use is asked when that is over, however long the pause that began with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_was_refused_for_its_source_is_used_is_made_when_that_is_over() {
    let rig = made(copying()).await;
    let holders =
        json!([{ "allocation": { "namespace": "default", "name": "app", "uid": "u" }, "nodeName": "b" }]);
    rig.world.status(&rig.volumes, "vol-1", json!({ "holders": holders, "copies": ["vol-2"] })).await;
    // It would not be asked for again by itself.
    rig.backend.next_for(CREATE, "vol-2", Answer::fail(Code::InvalidArgument, "not while it is in use"));
    ask_for_copy(&rig).await;
    let refused = told(&rig, "CreateVolumeFailed").await;
    assert_eq!(refused.status.unwrap().next_attempt_time, None);
    assert_eq!(asked(&rig, "vol-2").len(), 1);
    rig.world.status(&rig.volumes, "vol-1", json!({ "holders": [] })).await;
    rig.volume_up("vol-2").await;
    assert_eq!(asked(&rig, "vol-2").len(), 2);
    end(rig).await;
}
