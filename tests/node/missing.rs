//! What a driver does not find is looked up before it is asked for again: in our record, and by its host at the driver.
use serde_json::{Value, json};
use wharfline::csi::{Code, Rpc};

use crate::support::node::{NODE, Rig, Special};
use crate::support::scripted::{Answer, Config};

const ATTACH: Rpc = Rpc::ControllerPublishVolume;
const DETACH: Rpc = Rpc::ControllerUnpublishVolume;
const GET: Rpc = Rpc::ControllerGetVolume;
const VALIDATE: Rpc = Rpc::ValidateVolumeCapabilities;
/// GET_VOLUME of the controller service.
const CAN_GET: i32 = 12;

/// A driver that may be asked with this call, with what is alpha switched on or off.
async fn asked_by(look: Rpc, alpha: bool) -> Rig {
    let mut config = Config { alpha, ..Config::full() };
    if look == GET || !alpha {
        config.controller.push(CAN_GET);
    }
    let mut rig = Rig::idle(config).await;
    rig.plugin_object(json!({ "alpha": alpha })).await;
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    rig
}

fn not_found() -> Answer {
    Answer::fail(Code::NotFound, "no such thing")
}

/// How often each of these was called in a row, in the order of the calls.
fn between(rig: &Rig, rpcs: &[Rpc]) -> Vec<&'static str> {
    let calls = rig.backend.calls();
    calls.iter().filter(|call| rpcs.contains(&call.rpc)).map(|call| call.rpc.name()).collect()
}

/// Obligations CO-ERR-05, CO-CTRL-49.
/// Part of obligation CO-CTRL-37.
/// Each time before the next attempt; where the driver has no call that only looks, or its call is alpha, it is asked whether the
/// volume can be used as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_asks_for_the_volume_before_it_asks_again_for_what_was_not_found() {
    for (look, alpha) in [(GET, true), (VALIDATE, true), (VALIDATE, false)] {
        let rig = asked_by(look, alpha).await;
        for _ in 0..2 {
            rig.backend.next(ATTACH, not_found());
            rig.backend.next(DETACH, not_found());
        }
        rig.running().await;
        let (name, other) = (look.name(), if look == GET { VALIDATE } else { GET });
        let wanted = |rpc: Rpc| [rpc.name(), name, rpc.name(), name, rpc.name()];
        assert_eq!(between(&rig, &[ATTACH, look]), wanted(ATTACH));
        let knows = format!("looked up: {look} finds the volume, so it is the node");
        rig.told("ControllerPublishVolumeFailed", &knows).await;
        rig.end_all().await;
        assert_eq!(
            between(&rig, &[DETACH, look])[2..],
            wanted(DETACH),
            "it counts as attached until it is said not to be"
        );
        rig.told("ControllerUnpublishVolumeFailed", &knows).await;
        assert_eq!(rig.count(other), 0);
        let handles: Vec<_> = rig.backend.calls_of(look).into_iter().map(|call| call.ask).collect();
        assert!(handles.windows(2).all(|two| two[0] == two[1]), "{handles:?}");
        rig.finish().await;
    }
}

/// Obligation CO-CTRL-70.
/// What is gone at the backend is said to be gone, and kept all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_driver_does_not_know_is_said_to_be_gone_and_is_not_given_up() {
    for (look, alpha) in [(GET, true), (VALIDATE, false)] {
        let rig = asked_by(look, alpha).await;
        rig.backend.always(ATTACH, not_found());
        rig.backend.always(look, not_found());
        let app = rig.user("app").await;
        rig.give(&[&app], &Special::default()).await;
        let handle = rig.volumes.get("vol-1").await.unwrap().status.unwrap().handle;
        let gone = format!("looked up: {look} does not find the volume {handle:?} either: it is gone");
        let told =
            |a: &Value| a["status"]["controller"]["message"].as_str().is_some_and(|m| m.contains(&gone));
        let held = rig.world.until(&rig.attachments, "att-1", "told", told).await;
        assert!(held.status.unwrap().controller.unwrap().next_attempt_time.is_some());
        rig.called(ATTACH, 3).await;
        rig.backend.honest(look);
        rig.backend.always(look, Answer::fail(Code::Internal, "out of order"));
        let unsure = |a: &Value| {
            let message = a["status"]["controller"]["message"].as_str().unwrap_or_default();
            message.contains("whether it is there was not to be learned") && message.contains("out of order")
        };
        rig.world.until(&rig.attachments, "att-1", "told", unsure).await;
        rig.backend.honest(ATTACH);
        rig.backend.honest(look);
        rig.published("app").await;
        rig.end_all().await;
        rig.finish().await;
    }
}

/// Part of obligation CO-ERR-12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_has_no_call_to_look_with_is_asked_once() {
    let rig = asked_by(VALIDATE, false).await;
    for _ in 0..3 {
        rig.backend.next(ATTACH, not_found());
    }
    rig.backend.always(VALIDATE, Answer::fail(Code::Unimplemented, "what is that?"));
    rig.running().await;
    assert_eq!((rig.count(ATTACH), rig.count(VALIDATE)), (4, 1));
    rig.told("ControllerPublishVolumeFailed", "was not to be learned").await;
    rig.end_all().await;
    rig.finish().await;
}

/// Obligations CO-NODE-25, CO-NODE-38.
/// A node asks nothing of a driver that is its host's to ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_looks_into_our_record_before_it_asks_again_for_what_was_not_found() {
    let rig = Rig::new(Config::full()).await;
    let rpcs = [Rpc::NodeStageVolume, Rpc::NodePublishVolume, Rpc::NodeUnstageVolume];
    for rpc in rpcs {
        rig.backend.next(rpc, not_found());
        rig.backend.next(rpc, not_found());
    }
    rig.running().await;
    let handle = rig.volumes.get("vol-1").await.unwrap().status.unwrap().handle;
    rig.end_all().await;
    for rpc in rpcs {
        assert_eq!(rig.count(rpc), 3, "{rpc}");
        let found = format!("looked up: the record here, Volume \"vol-1\", has the handle {handle:?} still");
        rig.told(&format!("{rpc}Failed"), &found).await;
    }
    assert_eq!((rig.count(VALIDATE), rig.count(GET)), (0, 0));
    rig.finish().await;
}

/// Somebody took the finalizers off: there is nothing to be looked for at the driver.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_whose_record_is_gone_is_said_to_be_gone() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    let holder =
        json!({ "allocation": { "namespace": "default", "name": "app", "uid": "u" }, "nodeName": NODE });
    rig.world.status(&rig.volumes, "vol-1", json!({ "holders": [holder] })).await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    assert!(rig.volumes.get_opt("vol-1").await.unwrap().is_none());
    rig.backend.next(Rpc::NodeUnstageVolume, not_found());
    rig.backend.next(DETACH, not_found());
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    let gone = "looked up: there is no Volume \"vol-1\" any more";
    rig.told("NodeUnstageVolumeFailed", gone).await;
    rig.told("ControllerUnpublishVolumeFailed", gone).await;
    // Found again by its name, so that nothing is left of this test.
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-CTRL-59.
/// A handle that a person named: there is nothing else to ask, and it may come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_was_there_and_is_not_found_is_asked_for_again_until_it_is() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.add_volume("there", std::collections::BTreeMap::new());
    rig.backend.next(VALIDATE, not_found());
    rig.backend.next(VALIDATE, not_found());
    let volume = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": "vol-1" },
        "spec": { "plugin": "scripted", "accessModes": ["SingleNodeWriter"],
            "source": { "existing": { "handle": "there" } } } });
    rig.world.create(&rig.volumes, volume).await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "controller": { "nodeName": NODE, "epoch": 1 } })).await;
    rig.volume_up("vol-1").await;
    let calls = rig.backend.calls_of(VALIDATE);
    assert!(calls.len() == 3 && calls.windows(2).all(|two| two[0].ask == two[1].ask), "{calls:?}");
    let found = "looked up: the record here, Volume \"vol-1\", has the handle \"there\" still";
    rig.told("ValidateVolumeCapabilitiesFailed", found).await;
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    rig.finish().await;
}
