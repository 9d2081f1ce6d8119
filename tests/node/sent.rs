//! What stands in requests: all that CSI requires, each thing as it was told, and paths that every plugin takes.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use kube::Api;
use serde_json::{Value, json};
use wharfline::api::{Snapshot, VolumeAttachment};
use wharfline::csi::proto::volume_capability::access_mode::Mode;
use wharfline::csi::proto::volume_capability::{AccessType, MountVolume};
use wharfline::csi::{Code, Rpc, proto};

use crate::support::node::{NODE, NODE_ID, Rig, Special, uid};
use crate::support::scripted::{Answer, Ask, Config, Gate, Site, requests};

/// What the plugin calls a node that is not there any more.
const ELSEWHERE: &str = "i-elsewhere";
const PASSWORD: &str = "it is a secret";

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Keys and values that nobody may read anything into.
fn odd() -> BTreeMap<String, String> {
    map(&[("pool/Näme", " two  spaces "), ("empty", ""), ("{\"a\"", "\n\t"), ("csi.storage.k8s.io/x", "y")])
}

fn all_secrets() -> Value {
    let reference = json!({ "namespace": "default", "name": "s" });
    json!({ "provision": reference, "controllerPublish": reference, "nodeStage": reference,
        "nodePublish": reference })
}

fn first(rig: &Rig, rpc: Rpc) -> Ask {
    rig.backend.calls_of(rpc).into_iter().next().expect("it was called").ask
}

/// A volume that was there before, with a context of its own.
fn there(handle: &str, context: &BTreeMap<String, String>) -> Special {
    let spec = json!({ "source": { "existing": { "handle": handle, "context": context } } });
    Special { spec, ..Special::default() }
}

async fn forgotten(rig: &Rig, volume: &str) {
    rig.world.delete(&rig.volumes, volume).await;
    rig.world.let_go(&rig.volumes, volume).await;
}

/// The required fields that a request leaves out.
fn missing(ask: &Ask) -> Vec<&'static str> {
    let whole = |of: &proto::VolumeCapability| {
        let mode = of.access_mode.as_ref().map_or(0, |mode| mode.mode);
        of.access_type.is_some() && Mode::try_from(mode).is_ok_and(|mode| mode != Mode::Unknown)
    };
    let one = |of: &Option<proto::VolumeCapability>| of.as_ref().is_some_and(whole);
    let all = |of: &[proto::VolumeCapability]| !of.is_empty() && of.iter().all(whole);
    let told = |text: &String| !text.is_empty();
    let fields = match ask {
        Ask::Probe(_)
        | Ask::GetPluginInfo(_)
        | Ask::GetPluginCapabilities(_)
        | Ask::ControllerGetCapabilities(_)
        | Ask::GroupControllerGetCapabilities(_)
        | Ask::NodeGetCapabilities(_)
        | Ask::NodeGetInfo(_) => vec![],
        Ask::CreateVolume(of) => {
            vec![("name", told(&of.name)), ("volume_capabilities", all(&of.volume_capabilities))]
        }
        Ask::DeleteVolume(of) => vec![("volume_id", told(&of.volume_id))],
        Ask::ControllerPublishVolume(of) => vec![
            ("volume_id", told(&of.volume_id)),
            ("node_id", told(&of.node_id)),
            ("volume_capability", one(&of.volume_capability)),
        ],
        Ask::ControllerUnpublishVolume(of) => vec![("volume_id", told(&of.volume_id))],
        Ask::ValidateVolumeCapabilities(of) => {
            vec![("volume_id", told(&of.volume_id)), ("volume_capabilities", all(&of.volume_capabilities))]
        }
        Ask::CreateSnapshot(of) => {
            vec![("source_volume_id", told(&of.source_volume_id)), ("name", told(&of.name))]
        }
        Ask::DeleteSnapshot(of) => vec![("snapshot_id", told(&of.snapshot_id))],
        Ask::ControllerExpandVolume(of) => {
            vec![("volume_id", told(&of.volume_id)), ("capacity_range", of.capacity_range.is_some())]
        }
        Ask::NodeStageVolume(of) => vec![
            ("volume_id", told(&of.volume_id)),
            ("staging_target_path", told(&of.staging_target_path)),
            ("volume_capability", one(&of.volume_capability)),
        ],
        Ask::NodeUnstageVolume(of) => {
            vec![("volume_id", told(&of.volume_id)), ("staging_target_path", told(&of.staging_target_path))]
        }
        Ask::NodePublishVolume(of) => vec![
            ("volume_id", told(&of.volume_id)),
            ("target_path", told(&of.target_path)),
            ("volume_capability", one(&of.volume_capability)),
        ],
        Ask::NodeUnpublishVolume(of) => {
            vec![("volume_id", told(&of.volume_id)), ("target_path", told(&of.target_path))]
        }
        Ask::NodeGetVolumeStats(of) => {
            vec![("volume_id", told(&of.volume_id)), ("volume_path", told(&of.volume_path))]
        }
        Ask::NodeExpandVolume(of) => {
            vec![("volume_id", told(&of.volume_id)), ("volume_path", told(&of.volume_path))]
        }
        other => panic!("nobody told what has to stand in {other:?}"),
    };
    fields.into_iter().filter(|(_, told)| !told).map(|(name, _)| name).collect()
}

/// A snapshot of `vol-1` is cut and deleted again.
async fn picture(rig: &Rig) {
    let snapshots: Api<Snapshot> = rig.world.namespaced();
    let volume = rig.volumes.get("vol-1").await.unwrap();
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot", "metadata": { "name": "snap" },
        "spec": { "source": { "claimName": "data" } } });
    let made = rig.world.create(&snapshots, object).await;
    let entry = json!([{ "namespace": "default", "name": "snap", "uid": uid(&made) }]);
    rig.world.status(&rig.volumes, "vol-1", json!({ "snapshots": entry })).await;
    let of = json!({ "plugin": "scripted", "volume": "vol-1", "uid": uid(&volume),
        "handle": volume.status.clone().unwrap().handle });
    let status = json!({ "of": of, "controller": { "nodeName": NODE, "epoch": 1 } });
    rig.world.status(&snapshots, "snap", status).await;
    rig.world.until(&snapshots, "snap", "ready", |s| s["status"]["ready"] == true).await;
    rig.world.delete(&snapshots, "snap").await;
    rig.world.until(&snapshots, "snap", "deleted", |s| s["status"]["exists"] == "Down").await;
    rig.world.let_go(&snapshots, "snap").await;
    rig.world.status(&rig.volumes, "vol-1", json!({ "snapshots": null })).await;
}

/// Obligation CO-GEN-06.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_has_all_that_csi_requires() {
    let mut config = Config::full();
    config.controller.extend([5, 9]);
    config.node.extend([2, 3]);
    (config.expansion, config.node_expansion) = (vec![1], true);
    let mut rig = Rig::idle(config).await;
    rig.options.stats_period = Some(Duration::from_millis(50));
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    rig.backend.add_volume("there", odd());
    rig.ask("vol-0", &there("there", &odd())).await;
    rig.volume_up("vol-0").await;
    rig.running().await;
    rig.called(Rpc::NodeGetVolumeStats, 1).await;
    rig.world.patch(&rig.volumes, "vol-1", json!({ "spec": { "size": { "requiredBytes": 2 << 20 } } })).await;
    rig.called(Rpc::ControllerExpandVolume, 1).await;
    rig.world.patch(&rig.attachments, "att-1", json!({ "spec": { "expandBytes": 2 << 20 } })).await;
    rig.called(Rpc::NodeExpandVolume, 1).await;
    picture(&rig).await;
    forgotten(&rig, "vol-0").await;
    rig.end_all().await;
    let calls = rig.backend.calls();
    for call in &calls {
        assert_eq!(missing(&call.ask), Vec::<&str>::new(), "{call:?}");
    }
    let mut about: Vec<_> = calls.iter().map(|call| call.rpc.name()).collect();
    about.sort_unstable();
    about.dedup();
    assert_eq!(about.len(), 20, "one of each that a node calls: {about:?}");
    rig.finish().await;
}

/// Scenarios A65, B2.
/// Obligations CO-GEN-13, CO-CTRL-31, CO-CTRL-55.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volumes_context_arrives_as_it_was_given_whatever_becomes_of_the_daemon() {
    let mut rig = Rig::new(Config::full()).await;
    rig.backend.add_volume("there/1", odd());
    rig.secret("s", PASSWORD).await;
    let existing = json!({ "existing": { "handle": "there/1", "context": odd() } });
    let special = Special {
        spec: json!({ "source": existing, "mountOptions": ["noatime"] }),
        secrets: all_secrets(),
        attachment: json!({ "capability": { "accessMode": "SingleNodeWriter", "mountOptions": ["noatime"] } }),
        ..Special::default()
    };
    let app = rig.user("app").await;
    rig.ask("vol-1", &special).await;
    rig.volume_up("vol-1").await;
    rig.stop().await;
    rig.start().await;
    rig.ready().await;
    rig.backend.next(Rpc::NodeStageVolume, Answer::honest().hang(&Gate::new()));
    rig.attach("vol-1", &[&app], &special).await;
    rig.in_flight(Rpc::NodeStageVolume, 1).await;
    rig.kill().await;
    rig.start().await;
    rig.published("app").await;
    let secrets = map(&[("password", PASSWORD)]);
    let capability = |mode| {
        let flags = MountVolume { mount_flags: vec!["noatime".to_owned()], ..MountVolume::default() };
        proto::VolumeCapability { access_type: Some(AccessType::Mount(flags)), ..requests::capability(mode) }
    };
    let validate = proto::ValidateVolumeCapabilitiesRequest {
        volume_id: "there/1".to_owned(),
        volume_context: odd(),
        volume_capabilities: vec![capability(Mode::SingleNodeSingleWriter)],
        secrets: secrets.clone(),
        ..Default::default()
    };
    assert_eq!(first(&rig, Rpc::ValidateVolumeCapabilities), Ask::ValidateVolumeCapabilities(validate));
    let attach = proto::ControllerPublishVolumeRequest {
        volume_id: "there/1".to_owned(),
        node_id: NODE_ID.to_owned(),
        // Nothing of the words was frozen with this attachment.
        volume_capability: Some(capability(Mode::SingleNodeWriter)),
        readonly: false,
        secrets,
        volume_context: odd(),
    };
    assert_eq!(first(&rig, Rpc::ControllerPublishVolume), Ask::ControllerPublishVolume(attach));
    for call in rig.backend.calls_of(Rpc::NodeStageVolume) {
        let Ask::NodeStageVolume(stage) = call.ask else { panic!("another request") };
        assert_eq!(stage.volume_context, odd());
    }
    let Ask::NodePublishVolume(publish) = first(&rig, Rpc::NodePublishVolume) else {
        panic!("another request")
    };
    assert_eq!(publish.volume_context, odd());
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    forgotten(&rig, "vol-1").await;
    rig.finish().await;
}

/// Obligations CO-GEN-14, CO-CTRL-30, CO-CTRL-46: each node by the id that the plugin gave it, though one of them is gone, and with what was
/// answered for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_of_one_volume_are_not_mixed_up() {
    const SHARED: &str = "MultiNodeMultiWriter";
    let rig = Rig::new(Config::full()).await;
    rig.backend.add_node(&Site::new(ELSEWHERE));
    let app = rig.user("app").await;
    let special = Special { mode: Some(SHARED), ..Special::default() };
    rig.ask("vol-1", &special).await;
    let volume = rig.volume_up("vol-1").await;
    let status = volume.status.clone().unwrap();
    let spec = json!({ "volume": "vol-1", "volumeUid": uid(&volume), "nodeName": "node-b", "nodeId": ELSEWHERE,
        "plugin": "scripted", "claim": { "namespace": "default", "name": "data", "uid": "c" },
        "host": { "nodeName": NODE, "epoch": 1 }, "attachRequired": true, "stageRequired": true,
        "handle": status.handle, "volumeContext": status.context, "allocations": ["somebody"],
        "capability": { "accessMode": SHARED } });
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
        "metadata": { "name": "att-2" }, "spec": spec });
    let other: VolumeAttachment = rig.world.create(&rig.attachments, object).await;
    // That of the other node is there before anything is staged here.
    for (name, node) in [("att-2", ELSEWHERE), ("att-1", NODE_ID)] {
        if node == NODE_ID {
            rig.attach("vol-1", &[&app], &special).await;
        }
        let up = |a: &Value| a["status"]["controller"]["attached"] == "Up";
        let attached = rig.world.until(&rig.attachments, name, "attached", up).await;
        let told = attached.status.unwrap().controller.unwrap().publish_context;
        assert_eq!(told, map(&[("device", "/dev/scripted\t0"), ("attached to", node)]));
    }
    rig.published("app").await;
    let own = map(&[("device", "/dev/scripted\t0"), ("attached to", NODE_ID)]);
    let Ask::NodeStageVolume(stage) = first(&rig, Rpc::NodeStageVolume) else { panic!("another request") };
    let Ask::NodePublishVolume(publish) = first(&rig, Rpc::NodePublishVolume) else {
        panic!("another request")
    };
    assert_eq!((&stage.publish_context, &publish.publish_context), (&own, &own));
    rig.world.delete(&rig.attachments, "att-2").await;
    let down = json!({ "node": { "staged": "Down", "releasedUID": uid(&other) } });
    rig.world.status(&rig.attachments, "att-2", down).await;
    let detached = |a: &Value| a["status"]["controller"]["attached"] == "Down";
    rig.world.until(&rig.attachments, "att-2", "detached", detached).await;
    rig.world.let_go(&rig.attachments, "att-2").await;
    let detach = proto::ControllerUnpublishVolumeRequest {
        volume_id: status.handle,
        node_id: ELSEWHERE.to_owned(),
        secrets: BTreeMap::new(),
    };
    assert_eq!(first(&rig, Rpc::ControllerUnpublishVolume), Ask::ControllerUnpublishVolume(detach));
    rig.end_all().await;
    rig.finish().await;
}

/// Scenario B1.
/// Obligations CO-CTRL-02, CO-CTRL-03, CO-CTRL-04, CO-CTRL-06.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_asked_for_with_all_that_its_object_says() {
    let mut config = Config::full();
    config.services = vec![1, 2];
    let rig = Rig::new(config).await;
    rig.secret("s", PASSWORD).await;
    let zones = json!([{ "zone": "b" }, { "zone": "a" }]);
    let create = json!({ "name": "asked for", "requiredBytes": 1 << 20, "limitBytes": 2 << 20,
        "parameters": odd(), "requisite": zones, "preferred": zones });
    let spec = json!({ "source": { "create": create }, "fsType": "ext4", "mountOptions": ["noatime"],
        "accessModes": ["SingleNodeWriter", "MultiNodeReaderOnly"] });
    let special = Special { spec, secrets: all_secrets(), ..Special::default() };
    rig.ask("vol-1", &special).await;
    rig.volume_up("vol-1").await;
    let capability = |mode| {
        let kind = MountVolume {
            fs_type: "ext4".to_owned(),
            mount_flags: vec!["noatime".to_owned()],
            volume_mount_group: String::new(),
        };
        proto::VolumeCapability { access_type: Some(AccessType::Mount(kind)), ..requests::capability(mode) }
    };
    let zone = |name: &str| proto::Topology { segments: map(&[("zone", name)]) };
    let golden = proto::CreateVolumeRequest {
        name: "asked for".to_owned(),
        capacity_range: Some(proto::CapacityRange { required_bytes: 1 << 20, limit_bytes: 2 << 20 }),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter), capability(Mode::MultiNodeReaderOnly)],
        parameters: odd(),
        secrets: map(&[("password", PASSWORD)]),
        accessibility_requirements: Some(proto::TopologyRequirement {
            requisite: vec![zone("b"), zone("a")],
            preferred: vec![zone("b"), zone("a")],
        }),
        ..Default::default()
    };
    assert_eq!(first(&rig, Rpc::CreateVolume), Ask::CreateVolume(golden));
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-GEN-05.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_are_short_however_long_names_are() {
    let long = |letter: &str, length: usize| letter.repeat(length);
    let (volume, user, mount, handle) = (long("v", 63), long("u", 63), long("m", 63), long("h", 128));
    let rig = Rig::new(Config::full()).await;
    rig.backend.add_volume(&handle, BTreeMap::new());
    rig.ask(&volume, &there(&handle, &BTreeMap::new())).await;
    rig.volume_up(&volume).await;
    let app = rig.alloc(&user, json!({ "volumes": [{ "name": mount, "claimName": "data" }] })).await;
    rig.attach(&volume, &[&app], &Special::default()).await;
    rig.published(&user).await;
    let (Ask::NodeStageVolume(stage), Ask::NodePublishVolume(publish)) =
        (first(&rig, Rpc::NodeStageVolume), first(&rig, Rpc::NodePublishVolume))
    else {
        panic!("other requests")
    };
    for path in [&stage.staging_target_path, &publish.target_path] {
        assert!(path.len() <= 128, "{} bytes: {path}", path.len());
    }
    assert_eq!(publish.staging_target_path, stage.staging_target_path);
    rig.end_alloc(&user).await;
    rig.end_attachment().await;
    forgotten(&rig, &volume).await;
    rig.finish().await;
}

/// Scenarios A59, Q7.
/// It is told to the driver byte for byte, and to people in quotes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_path_is_made_of_what_a_driver_calls_a_volume() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.next(Rpc::NodeStageVolume, Answer::fail(Code::NotFound, "no such thing"));
    let handles = ["../../[é]/#&=' x", "/etc/../", "a/b#c&d=e"];
    let handles = handles.map(|odd| format!("{odd}{}", "h".repeat(128 - odd.len())));
    let mut places = BTreeSet::new();
    for handle in &handles {
        rig.backend.add_volume(handle, BTreeMap::new());
        rig.ask("vol-1", &there(handle, &BTreeMap::new())).await;
        rig.volume_up("vol-1").await;
        let app = rig.user("app").await;
        rig.attach("vol-1", &[&app], &Special::default()).await;
        rig.published("app").await;
        let last = |rpc| rig.backend.calls_of(rpc).pop().expect("it was called").ask;
        let (Ask::NodeStageVolume(stage), Ask::NodePublishVolume(publish)) =
            (last(Rpc::NodeStageVolume), last(Rpc::NodePublishVolume))
        else {
            panic!("other requests")
        };
        assert_eq!((&stage.volume_id, &publish.volume_id), (handle, handle));
        let (staging, target) = (Path::new(&stage.staging_target_path), Path::new(&publish.target_path));
        assert_eq!(staging.parent(), Some(rig.tree("staging").as_path()), "{handle}");
        let directory = target.parent().unwrap();
        assert_eq!(directory.parent(), Some(rig.tree("publish").as_path()), "{handle}");
        for name in [staging, directory, target].map(|path| path.file_name().unwrap().to_str().unwrap()) {
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{handle}: {name}");
        }
        assert!(staging.as_os_str().len().max(target.as_os_str().len()) <= 128, "{handle}");
        assert!(places.insert(staging.to_owned()) && places.insert(target.to_owned()), "{handle}");
        rig.end_alloc("app").await;
        rig.end_attachment().await;
        forgotten(&rig, "vol-1").await;
    }
    rig.told("NodeStageVolumeFailed", &format!("has the handle \"{}\"", handles[0])).await;
    rig.finish().await;
}
