//! What is made of what a plugin answers: written in one piece, kept for as long as it is needed, and compared with what was
//! asked.
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use wharfline::csi::proto::validate_volume_capabilities_response::Confirmed;
use wharfline::csi::proto::volume_capability::access_mode::Mode;
use wharfline::csi::proto::volume_capability::{AccessType, BlockVolume};
use wharfline::csi::{Code, Rpc, proto};

use crate::support::node::{Rig, Special};
use crate::support::scripted::{Answer, Config, Gate, requests};

const CREATE: Rpc = Rpc::CreateVolume;
const VALIDATE: Rpc = Rpc::ValidateVolumeCapabilities;
const DETACH: Rpc = Rpc::ControllerUnpublishVolume;

/// Scenarios A29, B20.
/// Obligation CO-CTRL-08.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_create_answers_is_written_in_one_piece_and_no_volume_is_no_answer() {
    let mut config = Config::full();
    config.services = vec![1, 2];
    let rig = Rig::new(config).await;
    let gate = Gate::new();
    let nothing = proto::CreateVolumeResponse { volume: None };
    rig.backend.next(CREATE, Answer::reply(&nothing).after_effect());
    rig.backend.next(CREATE, Answer::honest().hang(&gate));
    let create = json!({ "name": "vol-1", "requiredBytes": 1 << 20, "requisite": [{ "zone": "a" }] });
    let spec = json!({ "source": { "create": create } });
    rig.ask("vol-1", &Special { spec, ..Special::default() }).await;
    rig.in_flight(CREATE, 2).await;
    let doubted = |v: &Value| v["status"]["exists"] == "Unknown";
    rig.world.until(&rig.volumes, "vol-1", "in doubt", doubted).await;
    // The first that is said of it is the whole.
    let told = |v: &Value| v["status"]["exists"] == "Up" || !v["status"]["handle"].is_null();
    let (volume, ()) =
        tokio::join!(rig.world.until(&rig.volumes, "vol-1", "made", told), async { gate.open() });
    let status = serde_json::to_value(volume.status.unwrap()).unwrap();
    assert_eq!((&status["exists"], &status["handle"]), (&json!("Up"), &json!("backend/0001")), "{status}");
    assert_eq!(status["context"], json!(Config::full().volume_context));
    assert_eq!((&status["capacity"], &status["topology"]), (&json!("1Mi"), &json!([{ "zone": "a" }])));
    let calls = rig.backend.calls_of(CREATE);
    assert!(calls.len() == 2 && calls[0].ask == calls[1].ask, "{calls:?}");
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenarios A29, Q11.
/// A size of nothing is no size, and a volume without places has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_create_does_not_answer_is_not_made_up() {
    let rig = Rig::new(Config::full()).await;
    let volume = proto::Volume { volume_id: "made".into(), ..Default::default() };
    rig.backend.next(CREATE, Answer::reply(&proto::CreateVolumeResponse { volume: Some(volume) }));
    rig.ask("vol-1", &Special::default()).await;
    let volume = rig.volume_up("vol-1").await;
    assert_eq!(volume.spec.source.create.unwrap().required_bytes, 1 << 20, "that is only what was asked for");
    let status = volume.status.unwrap();
    assert_eq!((status.handle.as_str(), status.capacity.as_str()), ("made", ""));
    assert!(status.topology.is_empty() && status.context.is_empty(), "{status:?}");
    rig.end_volume("vol-1").await;
    assert_eq!(rig.backend.order(), ["CreateVolume", "DeleteVolume"]);
    // A place of which nothing is said is none.
    let nowhere = vec![proto::Topology::default()];
    let volume = proto::Volume { volume_id: "2".into(), accessible_topology: nowhere, ..Default::default() };
    rig.backend.next(CREATE, Answer::reply(&proto::CreateVolumeResponse { volume: Some(volume) }));
    rig.ask("vol-2", &Special::default()).await;
    let status = rig.volume_up("vol-2").await.status.unwrap();
    assert!(status.topology.is_empty(), "{status:?}");
    rig.end_volume("vol-2").await;
    rig.finish().await;
}

/// Scenario Q1.
/// Its host is not sure of it any more and asks once more: the answer leaves out where it can be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_a_volume_is_stays_though_a_repeated_create_does_not_say_it() {
    let mut config = Config::full();
    config.services = vec![1, 2];
    let mut rig = Rig::new(config).await;
    let create = json!({ "name": "vol-1", "requiredBytes": 1 << 20, "requisite": [{ "zone": "a" }] });
    rig.ask("vol-1", &Special { spec: json!({ "source": { "create": create } }), ..Special::default() })
        .await;
    let first = rig.volume_up("vol-1").await.status.unwrap();
    let zone = json!([{ "zone": "a" }]);
    assert_eq!(serde_json::to_value(&first.topology).unwrap(), zone);
    rig.stop().await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "exists": "Unknown" })).await;
    let again = proto::Volume {
        volume_id: first.handle.clone(),
        capacity_bytes: 1 << 20,
        volume_context: first.context.clone(),
        ..Default::default()
    };
    rig.backend.next(CREATE, Answer::reply(&proto::CreateVolumeResponse { volume: Some(again) }));
    rig.start().await;
    rig.called(CREATE, 2).await;
    let again = rig.volume_up("vol-1").await.status.unwrap();
    assert_eq!((again.handle, again.context), (first.handle, first.context));
    assert_eq!(serde_json::to_value(&again.topology).unwrap(), zone);
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-CTRL-48.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_attachment_was_told_is_kept_until_it_is_surely_detached() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    let gate = Gate::new();
    rig.backend.next(DETACH, Answer::cut().after_effect());
    rig.backend.next(DETACH, Answer::honest().hang(&gate));
    rig.end_alloc("app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.in_flight(DETACH, 2).await;
    let doubted = |a: &Value| a["status"]["controller"]["attached"] == "Unknown";
    let attachment = rig.world.until(&rig.attachments, "att-1", "in doubt", doubted).await;
    let told = attachment.status.unwrap().controller.unwrap().publish_context;
    assert!(told.contains_key("device"), "{told:?}");
    gate.open();
    let down = |a: &Value| a["status"]["controller"]["attached"] == "Down";
    let attachment = rig.world.until(&rig.attachments, "att-1", "detached", down).await;
    let told = attachment.status.unwrap().controller.unwrap().publish_context;
    assert!(told.is_empty(), "{told:?}");
    rig.world.let_go(&rig.attachments, "att-1").await;
    assert_eq!(rig.count(DETACH), 2);
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// A volume that was there before is asked about, and this is answered.
async fn answered(rig: &Rig, volume: &str, answer: &proto::ValidateVolumeCapabilitiesResponse) {
    rig.backend.next(VALIDATE, Answer::reply(answer));
    let spec = json!({ "source": { "existing": { "handle": "there" } } });
    let secrets = json!({ "provision": { "namespace": "default", "name": "s" } });
    rig.ask(volume, &Special { spec, secrets, ..Special::default() }).await;
}

async fn forgotten(rig: &Rig, volume: &str) {
    rig.world.delete(&rig.volumes, volume).await;
    rig.world.let_go(&rig.volumes, volume).await;
}

/// Scenarios A24, Q2.
/// Obligations CO-CTRL-56, CO-CTRL-57, CO-CTRL-58.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_was_there_is_used_unless_its_plugin_speaks_of_another_one() {
    let rig = Rig::new(Config::full()).await;
    rig.secret("s", "hunter22").await;
    rig.backend.add_volume("there", std::collections::BTreeMap::new());
    let asked = requests::capability(Mode::SingleNodeSingleWriter);
    let echo = |of: proto::VolumeCapability| proto::ValidateVolumeCapabilitiesResponse {
        confirmed: Some(Confirmed { volume_capabilities: vec![of], ..Confirmed::default() }),
        message: String::new(),
    };
    let block = Some(AccessType::Block(BlockVolume {}));
    let others = [
        ("block", proto::VolumeCapability { access_type: block, ..asked.clone() }),
        ("read-only", requests::capability(Mode::SingleNodeReaderOnly)),
    ];
    for (name, other) in others {
        answered(&rig, name, &echo(other)).await;
        let refused = |v: &Value| v["status"]["provisioning"]["reason"] == "UnusableAnswer";
        let volume = rig.world.until(&rig.volumes, name, "refused", refused).await;
        assert_ne!(volume.status.unwrap().exists, Some(wharfline::api::meta::Rung::Up), "{name}");
        forgotten(&rig, name).await;
    }
    answered(&rig, "half", &echo(proto::VolumeCapability { access_type: None, ..asked })).await;
    rig.volume_up("half").await;
    forgotten(&rig, "half").await;
    let message = "never heard of hunter22".to_owned();
    let silent = proto::ValidateVolumeCapabilitiesResponse { confirmed: None, message };
    answered(&rig, "silent", &silent).await;
    rig.volume_up("silent").await;
    rig.told("NotConfirmed", "never heard of <redacted>").await;
    forgotten(&rig, "silent").await;
    rig.finish().await;
}

/// Scenario A24.
/// Another refusal than that it is not there: it cannot be used, and nobody is asked again as long as nothing changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_its_plugin_refuses_is_not_used() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.add_volume("there", std::collections::BTreeMap::new());
    rig.backend.next(VALIDATE, Answer::fail(Code::InvalidArgument, "not in this mode"));
    let spec = json!({ "source": { "existing": { "handle": "there" } } });
    rig.ask("vol-1", &Special { spec, ..Special::default() }).await;
    let refused = |v: &Value| {
        let said = &v["status"]["provisioning"];
        let message = said["message"].as_str().unwrap_or_default();
        said["reason"] == "ValidateVolumeCapabilitiesFailed" && message.contains("not in this mode")
    };
    rig.world.until(&rig.volumes, "vol-1", "refused", refused).await;
    crate::refused::meanwhile(&rig).await;
    assert_eq!(rig.count(VALIDATE), 1);
    let volume = rig.volumes.get("vol-1").await.unwrap();
    assert_ne!(volume.status.unwrap().exists, Some(wharfline::api::meta::Rung::Up));
    forgotten(&rig, "vol-1").await;
    rig.finish().await;
}

/// Obligation CO-CTRL-60: the call is mandatory, and there are drivers without it. No word is no refusal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_cannot_validate_is_asked_once_and_believed() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.add_volume("there", std::collections::BTreeMap::new());
    rig.backend.always(VALIDATE, Answer::fail(Code::Unimplemented, "what is that?"));
    let spec = json!({ "source": { "existing": { "handle": "there" } } });
    rig.ask("vol-1", &Special { spec, ..Special::default() }).await;
    rig.volume_up("vol-1").await;
    let app = rig.user("app").await;
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.published("app").await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    assert_eq!(rig.count(VALIDATE), 1);
    forgotten(&rig, "vol-1").await;
    rig.finish().await;
}

/// Obligation CO-GEN-03: what is edited meanwhile counts for what is begun afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_has_the_same_fields_whatever_is_edited_meanwhile() {
    for rpc in [Rpc::CreateVolume, Rpc::ControllerPublishVolume, Rpc::NodeStageVolume, Rpc::NodePublishVolume]
    {
        let rig = Rig::new(Config::full()).await;
        rig.deadline(rpc, "1s").await;
        let gate = Gate::new();
        rig.backend.next(rpc, Answer::honest().after_effect().hang(&gate));
        let special = Special { spec: json!({ "mountOptions": ["noatime"] }), ..Special::default() };
        let app = rig.user("app").await;
        let given = async {
            rig.give(&[&app], &special).await;
        };
        let edited = async {
            rig.in_flight(rpc, 1).await;
            let patch = Patch::Merge(json!({ "spec": { "mountOptions": ["ro"] } }));
            let edit = rig.volumes.patch("vol-1", &PatchParams::default(), &patch).await;
            assert_eq!(edit.is_err(), rpc == Rpc::CreateVolume, "{rpc}: {edit:?}");
        };
        tokio::join!(given, edited);
        rig.published("app").await;
        let asked: Vec<_> = rig.backend.calls_of(rpc).into_iter().map(|call| call.ask).collect();
        assert!(asked.len() > 1 && asked.iter().all(|ask| *ask == asked[0]), "{rpc}: {asked:?}");
        gate.open();
        rig.end_all().await;
        rig.finish().await;
    }
}
