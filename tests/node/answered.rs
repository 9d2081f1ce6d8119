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
