//! What a driver gets when it is called about a volume: each field of the requests, and what is at the paths in them just then.
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use wharfline::csi::proto::controller_service_capability::rpc::Type as Controller;
use wharfline::csi::proto::node_service_capability::rpc::Type as Node;
use wharfline::csi::proto::volume_capability::access_mode::Mode;
use wharfline::csi::proto::volume_capability::{AccessMode, AccessType, MountVolume};
use wharfline::csi::{Code, Rpc, proto};

use crate::support::node::{NODE_ID, Rig, Special, mounts_beneath};
use crate::support::scripted::{Answer, Ask, Config, Logged, Scripted, Site, Witness};

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    Nothing,
    /// An empty directory that can be written.
    Empty,
    Mount,
    Other,
}

fn at(path: &Path) -> There {
    let Ok(facts) = std::fs::symlink_metadata(path) else { return There::Nothing };
    if mounts_beneath(path).iter().any(|point| Path::new(point) == path) {
        return There::Mount;
    }
    let probe = path.join("probe");
    let empty = facts.is_dir() && std::fs::read_dir(path).is_ok_and(|mut all| all.next().is_none());
    let written = empty && std::fs::write(&probe, "").and_then(|()| std::fs::remove_file(&probe)).is_ok();
    if written { There::Empty } else { There::Other }
}

/// What each call found at the paths that it names.
#[derive(Default)]
struct Found(Mutex<Vec<(Rpc, Vec<There>)>>);

impl Witness for Found {
    fn arrived(&self, _: usize, ask: &Ask) {
        let paths = match ask {
            Ask::NodeStageVolume(r) => vec![Path::new(&r.staging_target_path)],
            Ask::NodeUnstageVolume(r) => vec![Path::new(&r.staging_target_path)],
            Ask::NodePublishVolume(r) => {
                let target = Path::new(&r.target_path);
                vec![Path::new(&r.staging_target_path), target.parent().unwrap(), target]
            }
            Ask::NodeUnpublishVolume(r) => vec![Path::new(&r.target_path)],
            _ => return,
        };
        let there = paths.into_iter().map(at).collect();
        self.0.lock().unwrap().push((ask.rpc(), there));
    }
    fn performed(&self, _: usize, _: &Ask, _: bool) {}
}

/// A rig whose driver looks at what it finds.
async fn watched(config: Config) -> (Rig, Arc<Found>) {
    let mut rig = Rig::idle(config).await;
    rig.plugin.kill().await;
    let (socket, found) = (rig.plugin.socket().to_owned(), Arc::<Found>::default());
    let witness: Arc<dyn Witness> = Arc::clone(&found) as _;
    rig.plugin = Scripted::start(&rig.backend, Site { witness: Some(witness), ..Site::new(NODE_ID) }, socket);
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    (rig, found)
}

fn capability(mode: Mode) -> proto::VolumeCapability {
    proto::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode as i32 }),
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: "ext4".into(),
            mount_flags: vec!["noatime".into()],
            volume_mount_group: String::new(),
        })),
    }
}

fn published(calls: Vec<Logged>) -> Vec<proto::NodePublishVolumeRequest> {
    let request = |call: Logged| match call.ask {
        Ask::NodePublishVolume(request) => request,
        other => panic!("{other:?}"),
    };
    calls.into_iter().map(request).collect()
}

/// The one request of its kind.
macro_rules! only {
    ($rig:ident, $rpc:ident) => {{
        let mut calls = $rig.backend.calls_of(Rpc::$rpc);
        assert_eq!(calls.len(), 1);
        let Ask::$rpc(request) = calls.remove(0).ask else { panic!("another request") };
        request
    }};
}

/// Scenarios A58, A65, B2, B71, Q10.
/// Obligations CO-NODE-21, CO-NODE-46.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_is_whole_and_its_paths_are_as_they_have_to_be() {
    use There::{Empty, Mount, Nothing};
    let (rig, found) = watched(Config::full()).await;
    for (name, word) in [("stage", "for the stage"), ("publish", "for the publish")] {
        rig.secret(name, word).await;
    }
    let secret = |name: &str| json!({ "namespace": "default", "name": name });
    let capability_of =
        json!({ "accessMode": "SingleNodeWriter", "fsType": "ext4", "mountOptions": ["noatime"] });
    let special = Special {
        secrets: json!({ "nodeStage": secret("stage"), "nodePublish": secret("publish") }),
        attachment: json!({ "capability": capability_of }),
        ..Special::default()
    };
    let app = rig.user("app").await;
    rig.give(&[&app], &special).await;
    let path = rig.published("app").await.status.unwrap().volumes[0].path.clone();
    let volume = rig.volumes.get("vol-1").await.unwrap().status.unwrap();
    let attached = rig.attachments.get("att-1").await.unwrap().status.unwrap().controller.unwrap();
    assert!(!volume.context.is_empty() && !attached.publish_context.is_empty());
    let secrets = |word: &str| std::iter::once(("password".to_owned(), word.to_owned())).collect();
    let (stage, publish) = (only!(rig, NodeStageVolume), only!(rig, NodePublishVolume));
    let attach = only!(rig, ControllerPublishVolume);
    assert_eq!(attach.volume_capability, Some(capability(Mode::SingleNodeWriter)));
    assert_eq!(attach.volume_context, volume.context);
    let staging = stage.staging_target_path.clone();
    assert!(Path::new(&staging).starts_with(rig.tree("staging")), "{staging}");
    let golden = proto::NodeStageVolumeRequest {
        volume_id: volume.handle.clone(),
        publish_context: attached.publish_context.clone(),
        staging_target_path: staging.clone(),
        volume_capability: Some(capability(Mode::SingleNodeWriter)),
        secrets: secrets("for the stage"),
        volume_context: volume.context.clone(),
    };
    assert_eq!(stage, golden);
    let golden = proto::NodePublishVolumeRequest {
        volume_id: volume.handle.clone(),
        publish_context: attached.publish_context,
        staging_target_path: staging.clone(),
        target_path: path.clone(),
        volume_capability: Some(capability(Mode::SingleNodeWriter)),
        readonly: false,
        secrets: secrets("for the publish"),
        volume_context: volume.context,
    };
    assert_eq!(publish, golden);
    rig.end_all().await;
    assert_eq!(only!(rig, NodeUnpublishVolume).target_path, path);
    assert_eq!(only!(rig, NodeUnstageVolume).staging_target_path, staging);
    let wanted = [
        (Rpc::NodeStageVolume, vec![Empty]),
        (Rpc::NodePublishVolume, vec![Mount, Empty, Nothing]),
        (Rpc::NodeUnpublishVolume, vec![Mount]),
        (Rpc::NodeUnstageVolume, vec![Mount]),
    ];
    assert_eq!(*found.0.lock().unwrap(), wanted);
    rig.finish().await;

    // Without staging no path of it is told.
    let (rig, found) = watched(Config::without_attach_and_stage()).await;
    rig.running().await;
    let publish = only!(rig, NodePublishVolume);
    assert!(publish.staging_target_path.is_empty() && publish.publish_context.is_empty(), "{publish:?}");
    assert_eq!(found.0.lock().unwrap()[0].1[1..], [Empty, Nothing]);
    rig.end_all().await;
    rig.finish().await;
}

/// Obligations CO-NODE-22, CO-NODE-35, CO-NODE-46, CO-NODE-47, CO-NODE-49, CO-NODE-61.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_and_two_writers_have_one_stage_and_each_a_target_of_its_own() {
    let shared = Special { mode: Some("MultiNodeMultiWriter"), ..Special::default() };
    let rig = Rig::new(Config::full()).await;
    let volumes = json!([{ "name": "data", "claimName": "data", "readOnly": true }]);
    let (app, other) = (rig.user("app").await, rig.user("other").await);
    let reader = rig.alloc("reader", json!({ "volumes": volumes })).await;
    rig.give(&[&app, &reader, &other], &shared).await;
    let mut paths = Vec::new();
    for name in ["app", "reader", "other"] {
        paths.push(rig.published(name).await.status.unwrap().volumes[0].path.clone());
    }
    let staging = only!(rig, NodeStageVolume);
    let calls = published(rig.backend.calls_of(Rpc::NodePublishVolume));
    assert_eq!(calls.len(), 3);
    assert_eq!(calls.iter().map(|call| &call.target_path).collect::<BTreeSet<_>>(), paths.iter().collect());
    for call in &calls {
        assert_eq!(call.staging_target_path, staging.staging_target_path);
        assert_eq!(call.volume_capability, staging.volume_capability, "whoever uses it");
        assert_eq!(call.readonly, call.target_path == paths[1], "{call:?}");
    }
    let written = paths.iter().map(|path| std::fs::write(Path::new(path).join("x"), "x").is_ok());
    assert_eq!(written.collect::<Vec<_>>(), [true, false, true]);

    // What is unmounted and was not answered with OK is not unpublished.
    for _ in 0..2 {
        rig.backend.next(Rpc::NodeUnpublishVolume, Answer::fail(Code::Internal, "no").after_effect());
    }
    let before = rig.backend.order().len();
    for name in ["app", "reader", "other"] {
        rig.world.delete(&rig.allocs, name).await;
    }
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.detached().await;
    for name in ["app", "reader", "other"] {
        rig.world.until(&rig.allocs, name, "stopped", |a| a["status"]["phase"] == "Stopped").await;
        rig.world.let_go(&rig.allocs, name).await;
    }
    let down = rig.backend.order().split_off(before);
    let [unpublish, unstage] = ["NodeUnpublishVolume", "NodeUnstageVolume"];
    let detach = "ControllerUnpublishVolume";
    assert_eq!(down, [unpublish, unpublish, unpublish, unpublish, unpublish, unstage, detach]);
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario B75.
/// Obligation CO-NODE-49: what is there for readers is published for reading, and the mode that was asked for stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_only_be_read_is_published_for_reading() {
    for (name, mode) in [
        ("SingleNodeReaderOnly", Mode::SingleNodeReaderOnly),
        ("MultiNodeReaderOnly", Mode::MultiNodeReaderOnly),
    ] {
        let rig = Rig::new(Config::without_attach_and_stage()).await;
        let app = rig.user("app").await;
        rig.give(&[&app], &Special { mode: Some(name), ..Special::default() }).await;
        let path = rig.published("app").await.status.unwrap().volumes[0].path.clone();
        let publish = only!(rig, NodePublishVolume);
        let told = publish.volume_capability.unwrap().access_mode.unwrap().mode;
        assert_eq!((publish.readonly, told), (true, mode as i32), "{name}");
        assert!(std::fs::write(Path::new(&path).join("x"), "x").is_err(), "{name}");
        rig.end_all().await;
        rig.finish().await;
    }
}

/// Obligation CO-NODE-01: no call and no field that the driver does not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_gets_the_calls_and_modes_that_it_says_it_has() {
    // STAGE_UNSTAGE_VOLUME, SINGLE_NODE_MULTI_WRITER, VOLUME_MOUNT_GROUP; the others are asked for by no user.
    for node in [vec![], vec![1], vec![5], vec![1, 5], vec![1, 5, 6]] {
        let rig = Rig::new(Config { controller: vec![1], node: node.clone(), ..Config::full() }).await;
        let app = rig.user("app").await;
        let special = Special { mode: Some("SingleNodeSingleWriter"), ..Special::default() };
        rig.give(&[&app], &special).await;
        rig.published("app").await;
        rig.end_all().await;
        let calls: Vec<_> = rig.backend.calls().into_iter().filter(|call| call.ask.is_node_call()).collect();
        let names: Vec<_> = calls.iter().map(|call| call.rpc.name()).collect();
        let all = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
        assert_eq!(names, if node.contains(&1) { &all[..] } else { &all[1..3] }, "{node:?}");
        let wanted =
            if node.contains(&5) { Mode::SingleNodeSingleWriter } else { Mode::SingleNodeWriter } as i32;
        for call in calls {
            let (Ask::NodeStageVolume(proto::NodeStageVolumeRequest { volume_capability, .. })
            | Ask::NodePublishVolume(proto::NodePublishVolumeRequest { volume_capability, .. })) = call.ask
            else {
                continue;
            };
            let capability = volume_capability.unwrap();
            assert_eq!(capability.access_mode.unwrap().mode, wanted, "{node:?}");
            let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("no mount") };
            assert_eq!(mount.volume_mount_group, "", "nobody asked for a group");
        }
        rig.finish().await;
    }
}

/// Obligation CO-GEN-18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_side_is_asked_in_the_modes_that_it_knows() {
    // As the users' mode is said where the newer modes are not known, and where they are.
    let modes = [
        ("SingleNodeWriter", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
        ("SingleNodeMultiWriter", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
    ];
    let sides = [(false, false), (false, true), (true, false), (true, true)];
    for ((name, old, newer), (controller, node)) in
        modes.into_iter().flat_map(|mode| sides.into_iter().map(move |side| (mode, side)))
    {
        let mut config = Config::full();
        config.controller.retain(|number| controller || *number != Controller::SingleNodeMultiWriter as i32);
        config.node.retain(|number| node || *number != Node::SingleNodeMultiWriter as i32);
        let rig = Rig::new(config).await;
        let app = rig.user("app").await;
        // As the controllers freeze it.
        let spec = json!({ "source": { "create": { "name": "vol-1", "requiredBytes": 1 << 20, "newerModes": controller } } });
        let attachment = json!({ "newerModes": { "controller": controller, "node": node } });
        let special = Special { mode: Some(name), spec, attachment, ..Special::default() };
        rig.give(&[&app], &special).await;
        rig.published("app").await;
        rig.end_all().await;
        let said =
            |capability: Option<proto::VolumeCapability>| capability?.access_mode.map(|mode| mode.mode());
        let of = |knows: bool| Some(if knows { newer } else { old });
        let create = only!(rig, CreateVolume).volume_capabilities;
        assert_eq!(create.into_iter().map(|c| said(Some(c))).collect::<Vec<_>>(), [of(controller)], "{name}");
        assert_eq!(said(only!(rig, ControllerPublishVolume).volume_capability), of(controller), "{name}");
        assert_eq!(said(only!(rig, NodeStageVolume).volume_capability), of(node), "{name}");
        assert_eq!(said(only!(rig, NodePublishVolume).volume_capability), of(node), "{name}");
        rig.finish().await;
    }
}
