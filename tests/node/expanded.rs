//! Volumes that grow: their host asks for it, then each node that has them, and nobody's mount is touched for it.
use std::time::Duration;

use serde_json::{Value, json};
use wharfline::api::meta::Rung;
use wharfline::csi::{Code, Rpc, proto};

use crate::support::node::{NODE, Rig, Special, condition, condition_message, uid, until};
use crate::support::scripted::{Answer, Ask, Config, Gate};

/// What volumes of these tests are made with.
const MIB: i64 = 1 << 20;
const EXPAND: Rpc = Rpc::ControllerExpandVolume;
const NODE_EXPAND: Rpc = Rpc::NodeExpandVolume;

/// EXPAND_VOLUME of the controller and of the node service.
const CONTROLLER_CAN: i32 = 9;
const NODE_CAN: i32 = 3;

/// A plugin that grows volumes while they are used, and leaves the file system to the nodes.
fn growing() -> Config {
    let mut config = Config::full();
    config.controller.push(CONTROLLER_CAN);
    config.node.push(NODE_CAN);
    (config.expansion, config.node_expansion) = (vec![1], true);
    config
}

async fn want(rig: &Rig, bytes: i64) {
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "size": { "requiredBytes": bytes } } })).await;
}

async fn owe(rig: &Rig, bytes: i64) {
    rig.world.patch(&rig.attachments, "att-1", json!({ "spec": { "expandBytes": bytes } })).await;
}

async fn hold(rig: &Rig, held: bool) {
    let holders = if held {
        json!([{ "allocation": { "namespace": "default", "name": "app", "uid": "u" }, "nodeName": NODE }])
    } else {
        json!([])
    };
    rig.world.status(&rig.volumes, "vol-1", json!({ "holders": holders })).await;
}

/// Its backend has so much.
async fn has(rig: &Rig, bytes: i64) -> Value {
    let size = wharfline::api::quantity::display(bytes);
    let volume =
        rig.world.until(&rig.volumes, "vol-1", &size, |v| v["status"]["capacity"] == size.as_str()).await;
    serde_json::to_value(volume).unwrap()
}

/// Its node has so much.
async fn shows(rig: &Rig, bytes: i64) {
    let has = |a: &Value| a["status"]["node"]["expandedBytes"] == bytes;
    rig.world.until(&rig.attachments, "att-1", "expanded", has).await;
}

async fn told(rig: &Rig, reason: &str) -> Value {
    let says = |v: &Value| v["status"]["expansion"]["condition"]["reason"] == reason;
    serde_json::to_value(rig.world.until(&rig.volumes, "vol-1", reason, says).await).unwrap()
}

/// What sizes were asked for, in MiB.
fn asked(rig: &Rig, rpc: Rpc) -> Vec<i64> {
    let range = |ask: Ask| match ask {
        Ask::ControllerExpandVolume(of) => of.capacity_range,
        Ask::NodeExpandVolume(of) => of.capacity_range,
        other => panic!("{other:?}"),
    };
    let bytes = |range: proto::CapacityRange| range.required_bytes / MIB;
    rig.backend.calls_of(rpc).into_iter().map(|call| range(call.ask).map_or(0, bytes)).collect()
}

async fn end(rig: Rig) {
    rig.end_all().await;
    rig.finish().await;
}

/// Obligations CO-CTRL-105, CO-CTRL-107, CO-NODE-82, CO-NODE-83.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_grows_under_its_user_at_its_backend_and_then_on_its_node() {
    let mut rig = Rig::new(growing()).await;
    rig.running().await;
    let before = rig.backend.order().len();
    want(&rig, 2 * MIB).await;
    let volume = has(&rig, 2 * MIB).await;
    let expansion = &volume["status"]["expansion"];
    assert_eq!((&expansion["nodeBytes"], &expansion["asked"]), (&json!(2 * MIB), &Value::Null), "{volume}");
    assert_eq!(rig.count(NODE_EXPAND), 0, "nobody told the node");
    // The answer does not have to tell a size.
    rig.backend.next(
        NODE_EXPAND,
        Answer::reply(&proto::NodeExpandVolumeResponse { capacity_bytes: 0 }).after_effect(),
    );
    owe(&rig, 2 * MIB).await;
    shows(&rig, 2 * MIB).await;
    assert_eq!(rig.backend.order()[before..], ["ControllerExpandVolume", "NodeExpandVolume"]);
    let range = Some(proto::CapacityRange { required_bytes: 2 * MIB, limit_bytes: 0 });
    let of = |rpc| rig.backend.calls_of(rpc).into_iter().next().unwrap().ask;
    let (attach, publish) = (of(Rpc::ControllerPublishVolume), of(Rpc::NodePublishVolume));
    let (Ask::ControllerPublishVolume(attach), Ask::NodePublishVolume(publish)) = (attach, publish) else {
        panic!("other requests")
    };
    let golden = proto::ControllerExpandVolumeRequest {
        volume_id: attach.volume_id.clone(),
        capacity_range: range,
        volume_capability: attach.volume_capability.clone(),
        ..Default::default()
    };
    assert_eq!(of(EXPAND), Ask::ControllerExpandVolume(golden));
    let golden = proto::NodeExpandVolumeRequest {
        volume_id: attach.volume_id,
        volume_path: publish.target_path,
        staging_target_path: publish.staging_target_path,
        capacity_range: range,
        volume_capability: publish.volume_capability,
        ..Default::default()
    };
    assert_eq!(of(NODE_EXPAND), Ask::NodeExpandVolume(golden));
    assert_eq!(rig.backend.expansion_debts(), []);
    // Done is done, whoever looks.
    rig.stop().await;
    rig.start().await;
    rig.ready().await;
    want(&rig, 3 * MIB).await;
    has(&rig, 3 * MIB).await;
    owe(&rig, 3 * MIB).await;
    shows(&rig, 3 * MIB).await;
    assert_eq!((asked(&rig, EXPAND), asked(&rig, NODE_EXPAND)), (vec![2, 3], vec![2, 3]));
    rig.published("app").await;
    end(rig).await;
}

/// Obligations CO-CTRL-108, CO-CTRL-110, CO-CTRL-113: the same size again, whatever is wanted by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_doubt_is_asked_for_again_before_anything_else_is() {
    for killed in [false, true] {
        let mut rig = Rig::new(growing()).await;
        // One that is killed is killed before its call is given up, however slow the machine.
        rig.deadline(EXPAND, if killed { "20s" } else { "1s" }).await;
        rig.running().await;
        let gate = Gate::new();
        rig.backend.next(EXPAND, Answer::honest().after_effect().hang(&gate));
        want(&rig, 2 * MIB).await;
        rig.in_flight(EXPAND, 1).await;
        let volume = serde_json::to_value(rig.volumes.get("vol-1").await.unwrap()).unwrap();
        assert_eq!(
            volume["status"]["expansion"]["asked"]["requiredBytes"],
            2 * MIB,
            "said before it is asked"
        );
        want(&rig, 3 * MIB).await;
        if killed {
            rig.kill().await;
            rig.start().await;
            rig.ready().await;
        }
        has(&rig, 3 * MIB).await;
        assert_eq!(asked(&rig, EXPAND), [2, 2, 3]);
        gate.open();
        end(rig).await;
    }
    let codes = [
        Code::NotFound,
        Code::ResourceExhausted,
        Code::Internal,
        Code::Aborted,
        Code::Unavailable,
        Code::Unknown,
    ];
    for code in codes {
        let rig = Rig::new(growing()).await;
        rig.running().await;
        rig.backend.next(EXPAND, Answer::fail(code, "not now"));
        want(&rig, 2 * MIB).await;
        has(&rig, 2 * MIB).await;
        assert_eq!(asked(&rig, EXPAND), [2, 2], "{code:?}");
        end(rig).await;
    }
}

/// A write that failed is none: what is asked for stands at the server before it is asked, however often that takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_said_is_said_before_it_is_asked() {
    let rig = Rig::new(growing()).await;
    rig.running().await;
    let gate = Gate::new();
    rig.backend.next(EXPAND, Answer::honest().hang(&gate));
    rig.link.cut();
    want(&rig, 2 * MIB).await;
    let deaf = tokio::time::Instant::now();
    until(|| deaf.elapsed() > Duration::from_millis(700), "two words have failed").await;
    assert_eq!(asked(&rig, EXPAND), Vec::<i64>::new());
    rig.link.mend();
    rig.in_flight(EXPAND, 1).await;
    let volume = serde_json::to_value(rig.volumes.get("vol-1").await.unwrap()).unwrap();
    assert_eq!(volume["status"]["expansion"]["asked"]["requiredBytes"], 2 * MIB);
    gate.open();
    has(&rig, 2 * MIB).await;
    end(rig).await;
}

/// Decided on a size that was wanted no more: the word of it is refused, and nothing of it is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_back_before_it_was_said_is_not_asked_for() {
    const STATUS: &str = "/apis/wharfline.dev/v1alpha1/volumes/vol-1/status";
    let rig = Rig::new(growing()).await;
    rig.running().await;
    let gate = Gate::new();
    let before = rig.link.patches(STATUS);
    rig.link.hold(STATUS, &gate);
    want(&rig, 20 * MIB).await;
    until(|| rig.link.patches(STATUS) > before, "it is on its way").await;
    want(&rig, 12 * MIB).await;
    gate.open();
    has(&rig, 12 * MIB).await;
    assert_eq!(asked(&rig, EXPAND), [12]);
    end(rig).await;
}

/// Scenario B107.
/// Obligations CO-CTRL-109, CO-CTRL-112.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_is_not_asked_for_again_and_can_be_taken_back() {
    for (code, reason) in [(Code::OutOfRange, "OUT_OF_RANGE"), (Code::InvalidArgument, "INVALID_ARGUMENT")] {
        let mut rig = Rig::new(growing()).await;
        rig.running().await;
        rig.backend.always(EXPAND, Answer::fail(code, "too large"));
        want(&rig, 8 * MIB).await;
        let volume = told(&rig, "ControllerExpandVolumeFailed").await;
        assert!(
            volume["status"]["expansion"]["condition"]["message"].as_str().unwrap().contains(reason),
            "{volume}"
        );
        assert_eq!(volume["status"]["expansion"]["asked"], Value::Null, "{volume}");
        rig.stop().await;
        rig.start().await;
        rig.ready().await;
        rig.backend.honest(EXPAND);
        want(&rig, MIB).await;
        let quiet = |v: &Value| v["status"]["expansion"]["condition"].is_null();
        rig.world.until(&rig.volumes, "vol-1", "nothing is told", quiet).await;
        want(&rig, 2 * MIB).await;
        has(&rig, 2 * MIB).await;
        let all = asked(&rig, EXPAND);
        // A daemon that starts does not know what was refused before it.
        assert!(all == [8, 2] || all == [8, 8, 2], "{code:?} {all:?}");
        end(rig).await;
    }
}

/// Scenario B106.
/// Obligations CO-CTRL-106, CO-CTRL-107, CO-NODE-81.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_grows_while_nobody_uses_it_waits_for_that_and_is_ready_for_its_next_user() {
    let mut config = growing();
    config.expansion = vec![2];
    let rig = Rig::new(config).await;
    rig.running().await;
    hold(&rig, true).await;
    want(&rig, 2 * MIB).await;
    let volume = told(&rig, "InUse").await;
    let message = volume["status"]["expansion"]["condition"]["message"].as_str().unwrap();
    assert!(message.starts_with("still in use by allocation default/app on node-a, and"), "{message}");
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    assert_eq!(rig.count(EXPAND), 0, "it was used until now");
    hold(&rig, false).await;
    has(&rig, 2 * MIB).await;
    let app = rig.user("app").await;
    let before = rig.backend.order().len();
    let owing = Special { attachment: json!({ "expandBytes": 2 * MIB }), ..Special::default() };
    rig.attach("vol-1", &[&app], &owing).await;
    rig.published("app").await;
    shows(&rig, 2 * MIB).await;
    let order = ["ControllerPublishVolume", "NodeStageVolume", "NodeExpandVolume", "NodePublishVolume"];
    assert_eq!(rig.backend.order()[before..], order);
    end(rig).await;
}

/// It stands at the server before the call that users are kept out, and goes with a final answer alone: one that was given up may be
/// under way still.
///
/// Obligation CO-CTRL-106.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_grows_while_nobody_uses_it_keeps_users_out_until_it_is_answered_for_good() {
    for refused in [false, true] {
        let mut config = growing();
        config.expansion = vec![2];
        let mut rig = Rig::new(config).await;
        rig.deadline(EXPAND, "1s").await;
        rig.ask("vol-1", &Special::default()).await;
        rig.volume_up("vol-1").await;
        let gate = Gate::new();
        rig.backend.next(EXPAND, Answer::honest().hang(&gate));
        rig.backend.always(EXPAND, Answer::fail(Code::Unavailable, "not now"));
        want(&rig, 2 * MIB).await;
        rig.in_flight(EXPAND, 1).await;
        let keeps_out = |v: &Value| v["status"]["expansion"]["offline"] == true;
        let volume = serde_json::to_value(rig.volumes.get("vol-1").await.unwrap()).unwrap();
        assert!(keeps_out(&volume), "{volume}");
        // Given up, and refused for a reason that says nothing of the first one.
        rig.called(EXPAND, 2).await;
        assert!(keeps_out(&told(&rig, "ControllerExpandVolumeUncertain").await));
        rig.stop().await;
        rig.start().await;
        rig.ready().await;
        rig.called(EXPAND, 3).await;
        assert!(keeps_out(&serde_json::to_value(rig.volumes.get("vol-1").await.unwrap()).unwrap()));
        if refused {
            rig.backend.instead(EXPAND, Answer::fail(Code::OutOfRange, "too large"));
        } else {
            rig.backend.honest(EXPAND);
        }
        rig.world.until(&rig.volumes, "vol-1", "users may come", |v| !keeps_out(v)).await;
        let size = serde_json::to_value(rig.volumes.get("vol-1").await.unwrap()).unwrap();
        assert_eq!(size["status"]["expansion"]["asked"], Value::Null, "{size}");
        gate.open();
        rig.end_volume("vol-1").await;
        rig.finish().await;
    }
}

/// Who was granted the volume while the word that keeps users out was on its way has it first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_granted_a_volume_before_users_are_kept_out_has_it_first() {
    const STATUS: &str = "/apis/wharfline.dev/v1alpha1/volumes/vol-1/status";
    let mut config = growing();
    config.expansion = vec![2];
    let rig = Rig::new(config).await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let gate = Gate::new();
    let before = rig.link.patches(STATUS);
    rig.link.hold(STATUS, &gate);
    want(&rig, 2 * MIB).await;
    until(|| rig.link.patches(STATUS) > before, "it is on its way").await;
    hold(&rig, true).await;
    gate.open();
    let volume = told(&rig, "InUse").await;
    assert_eq!(volume["status"]["expansion"]["offline"], Value::Null, "{volume}");
    assert_eq!(rig.count(EXPAND), 0);
    hold(&rig, false).await;
    has(&rig, 2 * MIB).await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-CTRL-111: a plugin that does not say so beforehand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_cannot_while_a_volume_is_used_is_asked_when_that_is_over() {
    let rig = Rig::new(growing()).await;
    rig.running().await;
    hold(&rig, true).await;
    rig.backend.next(EXPAND, Answer::fail(Code::FailedPrecondition, "it is in use"));
    want(&rig, 2 * MIB).await;
    let volume = told(&rig, "ControllerExpandVolumeFailed").await;
    assert_eq!(volume["status"]["nextAttemptTime"], Value::Null, "no time is what it waits for");
    let message = volume["status"]["expansion"]["condition"]["message"].as_str().unwrap();
    assert!(
        message.ends_with("asked again once it is let go by allocation default/app on node-a"),
        "{message}"
    );
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    assert_eq!(rig.count(EXPAND), 1);
    hold(&rig, false).await;
    has(&rig, 2 * MIB).await;
    assert_eq!(asked(&rig, EXPAND), [2, 2]);
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligations CO-NODE-84, CO-NODE-87: a file system that cannot grow as it is staged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_file_system_is_left_alone_until_it_is_staged_anew() {
    let mut rig = Rig::new(growing()).await;
    rig.running().await;
    want(&rig, 2 * MIB).await;
    has(&rig, 2 * MIB).await;
    rig.backend.always(NODE_EXPAND, Answer::fail(Code::FailedPrecondition, "not while it is mounted"));
    owe(&rig, 2 * MIB).await;
    rig.called(NODE_EXPAND, 1).await;
    rig.stop().await;
    rig.start().await;
    rig.ready().await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    assert_eq!(rig.count(NODE_EXPAND), 1, "{:?}", rig.backend.order());
    rig.backend.honest(NODE_EXPAND);
    let app = rig.user("app").await;
    let owing = Special { attachment: json!({ "expandBytes": 2 * MIB }), ..Special::default() };
    rig.attach("vol-1", &[&app], &owing).await;
    shows(&rig, 2 * MIB).await;
    assert_eq!(asked(&rig, NODE_EXPAND), [2, 2]);
    end(rig).await;
}

/// Obligations CO-NODE-85, CO-NODE-86.
/// No user waits for more than the first try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_waits_for_one_try_and_the_rest_is_made_behind_it() {
    for code in [Code::NotFound, Code::Internal, Code::ResourceExhausted] {
        let rig = Rig::new(growing()).await;
        rig.backend.next(NODE_EXPAND, Answer::fail(code, "not now"));
        let app = rig.user("app").await;
        let owing = Special { attachment: json!({ "expandBytes": MIB }), ..Special::default() };
        rig.give(&[&app], &owing).await;
        shows(&rig, MIB).await;
        rig.published("app").await;
        let order = rig.backend.order();
        let tail = ["NodeStageVolume", "NodeExpandVolume", "NodePublishVolume", "NodeExpandVolume"];
        assert_eq!(order[order.len() - 4..], tail, "{code:?}");
        end(rig).await;
    }
    for code in [Code::OutOfRange, Code::InvalidArgument] {
        let rig = Rig::new(growing()).await;
        rig.backend.next(NODE_EXPAND, Answer::fail(code, "too large"));
        let app = rig.user("app").await;
        let owing = Special { attachment: json!({ "expandBytes": MIB }), ..Special::default() };
        rig.give(&[&app], &owing).await;
        rig.published("app").await;
        // Another size is another question.
        want(&rig, 2 * MIB).await;
        has(&rig, 2 * MIB).await;
        owe(&rig, 2 * MIB).await;
        shows(&rig, 2 * MIB).await;
        assert_eq!(asked(&rig, NODE_EXPAND), [1, 2], "{code:?}");
        end(rig).await;
    }
}

/// Scenario A36.
/// Obligation CO-CTRL-107: whatever becomes of the daemon meanwhile, the same is asked again, and once it is answered, never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_dies_while_a_file_system_grows_asks_again() {
    let mut rig = Rig::new(growing()).await;
    rig.running().await;
    let gate = Gate::new();
    rig.backend.next(NODE_EXPAND, Answer::honest().after_effect().hang(&gate));
    want(&rig, 2 * MIB).await;
    has(&rig, 2 * MIB).await;
    owe(&rig, 2 * MIB).await;
    rig.in_flight(NODE_EXPAND, 1).await;
    rig.kill().await;
    rig.start().await;
    rig.ready().await;
    shows(&rig, 2 * MIB).await;
    let calls = rig.backend.calls_of(NODE_EXPAND);
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].ask, calls[1].ask);
    gate.open();
    // What is owed while nobody is there is owed when somebody is.
    want(&rig, 3 * MIB).await;
    has(&rig, 3 * MIB).await;
    rig.stop().await;
    owe(&rig, 3 * MIB).await;
    rig.start().await;
    rig.ready().await;
    shows(&rig, 3 * MIB).await;
    assert_eq!(asked(&rig, NODE_EXPAND), [2, 2, 3]);
    end(rig).await;
}

/// Obligation CO-NODE-80: who is asked at all (of volumes that are only read: A-29).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_can_is_asked() {
    // On nodes alone.
    let mut config = growing();
    config.controller.retain(|can| *can != CONTROLLER_CAN);
    let rig = Rig::new(config).await;
    rig.running().await;
    let size = json!({ "spec": { "size": { "requiredBytes": 2 * MIB, "nodeOnly": true } } });
    rig.world.patch(&rig.volumes, "vol-1", size).await;
    owe(&rig, 2 * MIB).await;
    shows(&rig, 2 * MIB).await;
    assert_eq!((rig.count(EXPAND), asked(&rig, NODE_EXPAND)), (0, vec![2]));
    end(rig).await;
    // The controller alone, which leaves the nodes something to do all the same: a debt that nobody can pay is none.
    let mut config = growing();
    config.node.retain(|can| *can != NODE_CAN);
    let rig = Rig::new(config).await;
    rig.running().await;
    owe(&rig, 2 * MIB).await;
    shows(&rig, 2 * MIB).await;
    assert_eq!(rig.count(NODE_EXPAND), 0);
    end(rig).await;
    // Nobody at all: its host says so, and waits for another driver.
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    want(&rig, 2 * MIB).await;
    told(&rig, "PluginLacksCapability").await;
    assert_eq!(rig.count(EXPAND), 0);
    end(rig).await;
    // Read-only: the debt stays.
    let rig = Rig::new(growing()).await;
    let app = rig.user("app").await;
    let attachment = json!({ "expandBytes": 2 * MIB, "readOnly": true });
    rig.give(&[&app], &Special { attachment, ..Special::default() }).await;
    let app = rig.published("app").await;
    let other = serde_json::to_value(rig.attachments.get("att-1").await.unwrap()).unwrap();
    assert_eq!((rig.count(NODE_EXPAND), &other["status"]["node"]["expandedBytes"]), (0, &Value::Null));
    assert_eq!(app.status.unwrap().volumes[0].published, Rung::Up);
    end(rig).await;
}

/// Obligation CO-NODE-81: without staging, what is published grows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_staging_it_grows_once_it_is_published() {
    let mut config = Config::without_attach_and_stage();
    config.controller.push(CONTROLLER_CAN);
    config.node.push(NODE_CAN);
    let rig = Rig::new(config).await;
    let app = rig.user("app").await;
    let owing = Special { attachment: json!({ "expandBytes": MIB }), ..Special::default() };
    rig.give(&[&app], &owing).await;
    shows(&rig, MIB).await;
    assert_eq!(rig.backend.order(), ["CreateVolume", "NodePublishVolume", "NodeExpandVolume"]);
    let Ask::NodeExpandVolume(asked) = rig.backend.calls_of(NODE_EXPAND).remove(0).ask else {
        panic!("another call")
    };
    assert_eq!(asked.staging_target_path, "");
    assert!(asked.volume_path.ends_with("/target"), "{}", asked.volume_path);
    end(rig).await;
}

/// What does not grow on its node is told as its size, and troubles nobody who uses it; nor is it forgotten by a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_uses_what_does_not_grow_is_not_troubled() {
    let mut rig = Rig::new(growing()).await;
    let app = rig.user("app").await;
    rig.give(&[&app], &Special { mode: Some("SingleNodeMultiWriter"), ..Special::default() }).await;
    rig.published("app").await;
    let says = |a: &Value| {
        condition_message(a, "Expanded").is_some_and(|text| text.contains("only when it is staged anew"))
            && condition(a, "Ready", "True")
    };
    rig.backend.always(NODE_EXPAND, Answer::fail(Code::FailedPrecondition, "only when it is staged anew"));
    owe(&rig, 2 * MIB).await;
    rig.world.until(&rig.attachments, "att-1", "why", says).await;
    let app = serde_json::to_value(rig.published("app").await).unwrap();
    assert!(condition(&app, "VolumesReady", "True") && condition(&app, "Ready", "True"), "{app}");
    rig.stop().await;
    rig.start().await;
    rig.ready().await;
    let more = rig.user("more").await;
    let attachment = rig.attachments.get("att-1").await.unwrap();
    let both = [attachment.spec.allocations.as_slice(), &[uid(&more)]].concat();
    rig.world.patch(&rig.attachments, "att-1", json!({ "spec": { "allocations": both } })).await;
    rig.published("more").await;
    rig.world.until(&rig.attachments, "att-1", "still", says).await;
    rig.backend.honest(NODE_EXPAND);
    want(&rig, 3 * MIB).await;
    has(&rig, 3 * MIB).await;
    owe(&rig, 3 * MIB).await;
    let silent = |a: &Value| condition_message(a, "Expanded").is_none();
    rig.world.until(&rig.attachments, "att-1", "nothing is told", silent).await;
    assert_eq!(asked(&rig, NODE_EXPAND), [2, 3]);
    rig.end_alloc("more").await;
    end(rig).await;
}

/// Obligation CO-GEN-30.
/// Scenario B109: the one field of a request that is alpha is sent where its Plugin switches alpha on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_of_a_nodes_expansion_are_sent_where_alpha_is_on() {
    let mut config = growing();
    // The plugin complains of what is alpha where that is not so.
    config.alpha = false;
    let rig = Rig::new(config).await;
    rig.secret("s", "hunter22").await;
    let secrets = json!({ "nodeExpand": { "namespace": "default", "name": "s" } });
    let app = rig.user("app").await;
    rig.give(&[&app], &Special { secrets, ..Special::default() }).await;
    rig.published("app").await;
    let sent = |rig: &Rig| match rig.backend.calls_of(NODE_EXPAND).pop().unwrap().ask {
        Ask::NodeExpandVolume(of) => of.secrets,
        other => panic!("{other:?}"),
    };
    want(&rig, 2 * MIB).await;
    has(&rig, 2 * MIB).await;
    owe(&rig, 2 * MIB).await;
    shows(&rig, 2 * MIB).await;
    assert!(sent(&rig).is_empty(), "alpha is off unless it is switched on");
    rig.backend.configure(|config| config.alpha = true);
    rig.plugin_object(json!({ "alpha": true })).await;
    // Its daemon sees that on its own time.
    for size in 3.. {
        want(&rig, size * MIB).await;
        has(&rig, size * MIB).await;
        owe(&rig, size * MIB).await;
        shows(&rig, size * MIB).await;
        if !sent(&rig).is_empty() {
            break;
        }
        assert!(size < 30, "alpha was switched on, and nothing is sent");
    }
    assert_eq!(sent(&rig).get("password").map(String::as_str), Some("hunter22"));
    end(rig).await;
}

/// Obligation CO-GEN-18.
/// A volume grows in the words that it was attached and staged with, whatever its driver has learnt since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_grows_in_the_words_that_it_is_used_with() {
    use proto::volume_capability::access_mode::Mode;
    for (newer, mode) in [(false, Mode::SingleNodeWriter), (true, Mode::SingleNodeSingleWriter)] {
        let rig = Rig::new(growing()).await;
        let app = rig.user("app").await;
        let attachment = json!({ "newerModes": { "controller": newer, "node": newer } });
        rig.give(&[&app], &Special { attachment, ..Special::default() }).await;
        rig.published("app").await;
        want(&rig, 2 * MIB).await;
        has(&rig, 2 * MIB).await;
        owe(&rig, 2 * MIB).await;
        shows(&rig, 2 * MIB).await;
        for rpc in [EXPAND, NODE_EXPAND] {
            let capability = match rig.backend.calls_of(rpc).pop().unwrap().ask {
                Ask::ControllerExpandVolume(of) => of.volume_capability,
                Ask::NodeExpandVolume(of) => of.volume_capability,
                other => panic!("{other:?}"),
            };
            let said = capability.and_then(|capability| capability.access_mode).map(|mode| mode.mode);
            assert_eq!(said, Some(mode as i32), "{rpc:?} {newer}");
        }
        end(rig).await;
    }
}
