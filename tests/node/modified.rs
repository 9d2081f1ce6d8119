//! Volumes whose attributes change while they are used: what their driver is asked, and what it is not asked before an answer.
use serde_json::{Value, json};
use wharfline::csi::{Code, Rpc, proto};

use crate::support::node::{Rig, Special};
use crate::support::scripted::{Answer, Ask, Config, Gate};

const MODIFY: Rpc = Rpc::ControllerModifyVolume;
/// MODIFY_VOLUME of the controller service.
const CAN: i32 = 14;

fn changing() -> Config {
    let mut config = Config::full();
    config.controller.push(CAN);
    config
}

/// A class has more than what tells it from others.
fn class(name: &str) -> Value {
    json!({ "className": name, "parameters": { "tier": name, "iops": "100" } })
}

/// A volume that was made with `silver`.
async fn silver(config: Config) -> Rig {
    made(config, Value::Null).await
}

async fn made(config: Config, secrets: Value) -> Rig {
    let rig = Rig::new(config).await;
    let special = Special {
        spec: json!({ "attributes": class("silver"), "source": { "create":
            { "name": "vol-1", "requiredBytes": 1 << 20, "attributes": class("silver") } } }),
        secrets,
        ..Special::default()
    };
    rig.ask("vol-1", &special).await;
    rig
}

async fn want(rig: &Rig, name: &str) {
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "attributes": class(name) } })).await;
}

async fn until(rig: &Rig, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let volume = rig.world.until(&rig.volumes, "vol-1", what, |v| holds(&v["status"]["modification"])).await;
    serde_json::to_value(volume).unwrap()
}

async fn has(rig: &Rig, name: &str) {
    until(rig, name, |m| m["has"] == class(name) && m["asked"].is_null() && m["condition"].is_null()).await;
}

async fn told(rig: &Rig, reason: &str) -> Value {
    until(rig, reason, |m| m["condition"]["reason"] == reason).await
}

/// The tiers that were asked for.
fn asked(rig: &Rig) -> Vec<String> {
    let tier = |ask: Ask| match ask {
        Ask::ControllerModifyVolume(of) => of.mutable_parameters["tier"].clone(),
        other => panic!("{other:?}"),
    };
    rig.backend.calls_of(MODIFY).into_iter().map(|call| tier(call.ask)).collect()
}

async fn end(rig: Rig) {
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-CTRL-75.
/// Part of obligation CO-CTRL-04.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_made_with_attributes_and_given_others_with_all_that_their_class_says() {
    let keys = json!({ "namespace": "default", "name": "keys" });
    let mut rig = made(changing(), json!({ "controllerModify": keys })).await;
    rig.secret("keys", "s3cret").await;
    rig.volume_up("vol-1").await;
    let Ask::CreateVolume(create) = rig.backend.calls_of(Rpc::CreateVolume).remove(0).ask else { panic!() };
    assert_eq!(create.mutable_parameters["tier"], "silver");
    assert_eq!(asked(&rig).len(), 0, "it has them");
    want(&rig, "gold").await;
    has(&rig, "gold").await;
    let Ask::ControllerModifyVolume(request) = rig.backend.calls_of(MODIFY).remove(0).ask else { panic!() };
    let map =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let golden = proto::ControllerModifyVolumeRequest {
        volume_id: "backend/0001".to_owned(),
        secrets: map(&[("password", "s3cret")]),
        mutable_parameters: map(&[("tier", "gold"), ("iops", "100")]),
    };
    assert_eq!(request, golden);
    // Done is done, whoever looks.
    rig.stop().await;
    rig.start().await;
    rig.ready().await;
    want(&rig, "silver").await;
    has(&rig, "silver").await;
    assert_eq!(asked(&rig), ["gold", "silver"]);
    end(rig).await;
}

/// Scenario B110.
/// Obligations CO-CTRL-77, CO-CTRL-79.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_in_doubt_is_ended_before_another_is_begun() {
    for killed in [false, true] {
        let mut rig = silver(changing()).await;
        // One that is killed is killed before its call is given up, however slow the machine.
        rig.deadline(MODIFY, if killed { "20s" } else { "1s" }).await;
        rig.volume_up("vol-1").await;
        let gate = Gate::new();
        rig.backend.next(MODIFY, Answer::honest().after_effect().hang(&gate));
        want(&rig, "gold").await;
        rig.in_flight(MODIFY, 1).await;
        let volume = serde_json::to_value(rig.volumes.get("vol-1").await.unwrap()).unwrap();
        assert_eq!(volume["status"]["modification"]["asked"], class("gold"), "said before it is asked");
        want(&rig, "bronze").await;
        if killed {
            rig.kill().await;
            rig.start().await;
            rig.ready().await;
        }
        has(&rig, "bronze").await;
        assert_eq!(asked(&rig), ["gold", "gold", "bronze"]);
        gate.open();
        end(rig).await;
    }
    for code in [Code::NotFound, Code::Aborted, Code::Internal, Code::Unavailable] {
        let rig = silver(changing()).await;
        rig.volume_up("vol-1").await;
        rig.backend.next(MODIFY, Answer::fail(code, "not now"));
        want(&rig, "gold").await;
        has(&rig, "gold").await;
        assert_eq!(asked(&rig), ["gold", "gold"], "{code:?}");
        let looked_up = usize::from(code == Code::NotFound);
        assert_eq!(rig.count(Rpc::ValidateVolumeCapabilities), looked_up, "{code:?}");
        end(rig).await;
    }
}

/// Obligation CO-CTRL-78.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_cannot_be_is_told_and_can_be_taken_back() {
    let rig = silver(changing()).await;
    rig.volume_up("vol-1").await;
    rig.backend.next(MODIFY, Answer::fail(Code::InvalidArgument, "no such tier"));
    want(&rig, "gold").await;
    let volume = told(&rig, "ControllerModifyVolumeFailed").await;
    let modification = &volume["status"]["modification"];
    assert!(modification["condition"]["message"].as_str().unwrap().contains("no such tier"), "{volume}");
    let (asked_for, had) = (&modification["asked"], &modification["has"]);
    assert_eq!((asked_for, had), (&Value::Null, &class("silver")), "nothing was done");
    assert_eq!(modification["doubted"], Value::Null);
    assert_eq!(volume["status"]["nextAttemptTime"], Value::Null, "nor is it asked for again: {volume}");
    want(&rig, "silver").await;
    until(&rig, "taken back", |m| m["condition"].is_null()).await;
    assert_eq!(asked(&rig), ["gold"]);
    want(&rig, "bronze").await;
    has(&rig, "bronze").await;
    assert_eq!(asked(&rig), ["gold", "bronze"]);
    end(rig).await;
}

/// Obligation CO-CTRL-75.
/// Part of obligation CO-CTRL-04.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_changes_nothing_is_neither_asked_to_nor_made_to_begin_so() {
    let rig = silver(Config::full()).await;
    let lacks = |v: &Value| v["status"]["provisioning"]["reason"] == "PluginLacksCapability";
    rig.world.until(&rig.volumes, "vol-1", "told", lacks).await;
    assert_eq!(rig.count(Rpc::CreateVolume), 0);
    rig.world.delete(&rig.volumes, "vol-1").await;
    let never = |v: &Value| v["status"]["exists"] == "Down";
    rig.world.until(&rig.volumes, "vol-1", "nothing was made", never).await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    rig.ask("vol-2", &Special::default()).await;
    rig.volume_up("vol-2").await;
    rig.world.patch(&rig.volumes, "vol-2", json!({ "spec": { "attributes": class("gold") } })).await;
    let lacks = |v: &Value| v["status"]["modification"]["condition"]["reason"] == "PluginLacksCapability";
    rig.world.until(&rig.volumes, "vol-2", "told", lacks).await;
    assert_eq!(asked(&rig).len(), 0);
    rig.end_volume("vol-2").await;
    rig.finish().await;
}

/// What a refusal left behind nobody knows, unless it says that nothing was applied and there was no attempt before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_have_been_changed_in_part_is_changed_back() {
    for before in [None, Some(Code::Aborted)] {
        let rig = silver(changing()).await;
        rig.volume_up("vol-1").await;
        if let Some(code) = before {
            rig.backend.next(MODIFY, Answer::fail(code, "it is at work").after_effect());
        }
        let last = if before.is_some() { Code::InvalidArgument } else { Code::OutOfRange };
        rig.backend.next(MODIFY, Answer::fail(last, "no such tier").after_effect());
        want(&rig, "gold").await;
        let volume = told(&rig, "ControllerModifyVolumeFailed").await;
        assert_eq!(volume["status"]["modification"]["doubted"], true, "{volume}");
        want(&rig, "silver").await;
        has(&rig, "silver").await;
        let calls = asked(&rig);
        assert_eq!(calls.last().map(String::as_str), Some("silver"), "{calls:?}");
        let volume = serde_json::to_value(rig.volumes.get("vol-1").await.unwrap()).unwrap();
        assert_eq!(volume["status"]["modification"]["doubted"], Value::Null);
        end(rig).await;
    }
}

/// What was said of one class holds up no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_class_is_asked_for_after_the_doubted_one_was_refused() {
    let rig = silver(changing()).await;
    rig.deadline(MODIFY, "1s").await;
    rig.volume_up("vol-1").await;
    let gate = Gate::new();
    rig.backend.next(MODIFY, Answer::fail(Code::Internal, "too late").hang(&gate));
    rig.backend.next(MODIFY, Answer::fail(Code::InvalidArgument, "no such tier"));
    want(&rig, "gold").await;
    rig.in_flight(MODIFY, 1).await;
    want(&rig, "bronze").await;
    has(&rig, "bronze").await;
    assert_eq!(asked(&rig), ["gold", "gold", "bronze"]);
    gate.open();
    end(rig).await;
}

/// A driver that lost what it could holds up nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_grows_though_its_attributes_wait() {
    let mut config = Config::full();
    config.controller.push(9);
    config.expansion = vec![1];
    let rig = Rig::new(config).await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    want(&rig, "gold").await;
    told(&rig, "PluginLacksCapability").await;
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "size": { "requiredBytes": 2 << 20 } } })).await;
    let grown = |v: &Value| {
        let waits = v["status"]["modification"]["condition"]["reason"] == "PluginLacksCapability";
        waits && v["status"]["capacity"] == "2Mi"
    };
    rig.world.until(&rig.volumes, "vol-1", "grown, and still told", grown).await;
    assert_eq!(asked(&rig).len(), 0);
    end(rig).await;
}
