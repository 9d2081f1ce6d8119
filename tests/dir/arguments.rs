//! What each call refuses because of its arguments, and that a refusal changes nothing.
use tonic::Code;
use wharfline::csi::proto;
use wharfline::csi::proto::volume_capability::access_mode::Mode as Access;
use wharfline::csi::proto::volume_capability::{AccessType, BlockVolume, MountVolume};
use wharfline::csi::proto::volume_content_source::{SnapshotSource, Type, VolumeSource};
use wharfline::drivers::dir::TOPOLOGY_KEY;

use crate::rig::{self, NODE, Rig, capability, mounts_below, refused};

const UNKNOWN: &str = "0123456789abcdef0123";

fn block() -> proto::VolumeCapability {
    proto::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..capability(Access::SingleNodeWriter)
    }
}

fn of_fs(fs_type: &str) -> proto::VolumeCapability {
    let volume = MountVolume { fs_type: fs_type.into(), ..Default::default() };
    proto::VolumeCapability {
        access_type: Some(AccessType::Mount(volume)),
        ..capability(Access::SingleNodeWriter)
    }
}

fn impossible() -> Vec<(&'static str, proto::VolumeCapability)> {
    vec![
        ("access_mode", proto::VolumeCapability { access_mode: None, ..block() }),
        ("access_type", proto::VolumeCapability { access_type: None, ..block() }),
        ("UNKNOWN", capability(Access::Unknown)),
        ("MULTI_NODE_READER_ONLY", capability(Access::MultiNodeReaderOnly)),
        ("MULTI_NODE_SINGLE_WRITER", capability(Access::MultiNodeSingleWriter)),
        ("MULTI_NODE_MULTI_WRITER", capability(Access::MultiNodeMultiWriter)),
        ("block", block()),
        ("fs_type", of_fs("no-such-fs")),
        ("mount_flags", rig::with_flags(Access::SingleNodeWriter, &["uid=0"])),
    ]
}

#[tokio::test]
async fn create() {
    let rig = Rig::new();
    let with = |change: &dyn Fn(&mut proto::CreateVolumeRequest)| {
        let mut request = rig::create("fine");
        change(&mut request);
        request
    };
    let source = |kind| Some(proto::VolumeContentSource { r#type: Some(kind) });
    let mut cases = vec![
        ("name", with(&|request| request.name = String::new())),
        ("name", with(&|request| request.name = "x".repeat(129))),
        ("name", with(&|request| request.name = "bell\u{7}".into())),
        ("volume_capabilities", with(&|request| request.volume_capabilities.clear())),
        ("capacity_range", rig::sized("fine", -1, 0)),
        ("capacity_range", rig::sized("fine", 0, 0)),
        ("tier", with(&|request| drop(request.parameters.insert("tier".into(), "gold".into())))),
        ("iops", with(&|request| drop(request.mutable_parameters.insert("iops".into(), "9".into())))),
        (
            "volume_content_source",
            with(&|request| request.volume_content_source = Some(proto::VolumeContentSource::default())),
        ),
        (
            "snapshot_id",
            with(&|request| {
                request.volume_content_source =
                    source(Type::Snapshot(SnapshotSource { snapshot_id: String::new() }));
            }),
        ),
        (
            "volume_id",
            with(&|request| {
                request.volume_content_source =
                    source(Type::Volume(VolumeSource { volume_id: String::new() }));
            }),
        ),
        (
            "accessibility_requirements",
            with(&|request| request.accessibility_requirements = Some(proto::TopologyRequirement::default())),
        ),
    ];
    for (about, capability) in impossible() {
        // Also when a good one comes first: the caller may use any of them later.
        cases.push((about, with(&|request| request.volume_capabilities.push(capability.clone()))));
    }
    for (about, request) in cases {
        assert_eq!(refused(rig.create(request).await, about), Code::InvalidArgument, "{about}");
    }
    for gone in [UNKNOWN, "s"] {
        for kind in [
            Type::Snapshot(SnapshotSource { snapshot_id: gone.into() }),
            Type::Volume(VolumeSource { volume_id: gone.into() }),
        ] {
            let result =
                rig.create(with(&|request| request.volume_content_source = source(kind.clone()))).await;
            assert_eq!(refused(result, "does not exist"), Code::NotFound, "{kind:?}");
        }
    }
    let empty_range = rig.create(rig::sized("fine", 2, 1)).await;
    assert_eq!(refused(empty_range, "limit_bytes"), Code::OutOfRange);
    assert_eq!(rig.ids().await, [] as [String; 0]);
    rig.finish().await;
}

#[tokio::test]
async fn names_of_every_allowed_kind() {
    let rig = Rig::new();
    let mut ids = Vec::new();
    for name in [&"x".repeat(128), "../../outside", "with blank and\ttab", "ünïcode", "a/b"] {
        let id = rig.volume(name).await;
        assert!(rig.data(&id).is_dir(), "{name}");
        ids.push(id);
    }
    assert_eq!(rig.ids().await.len(), ids.len());
    for id in ids {
        rig.delete(&id).await.unwrap();
    }
    rig.finish().await;
}

#[tokio::test]
async fn delete() {
    let rig = Rig::new();
    assert_eq!(refused(rig.delete("").await, "volume_id"), Code::InvalidArgument);
    let long = "x".repeat(500);
    for unknown in [UNKNOWN, "reallyfakevolumeid", "../../D", "..", &long] {
        rig.delete(unknown).await.unwrap();
    }
    assert!(rig.data_dir().is_dir());
    rig.finish().await;
}

#[tokio::test]
async fn validate() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let ask =
        |volume: &str, capabilities: Vec<proto::VolumeCapability>| proto::ValidateVolumeCapabilitiesRequest {
            volume_id: volume.to_owned(),
            volume_capabilities: capabilities,
            ..Default::default()
        };
    let fine = || vec![capability(Access::SingleNodeWriter)];
    let mut client = rig.instance().controller();
    for (about, code, request) in [
        ("volume_id", Code::InvalidArgument, ask("", fine())),
        ("volume_capabilities", Code::InvalidArgument, ask(&id, vec![])),
        ("access_mode", Code::InvalidArgument, ask(&id, vec![capability(Access::Unknown)])),
        ("does not exist", Code::NotFound, ask(UNKNOWN, fine())),
        ("does not exist", Code::NotFound, ask("reallyfakevolumeid", fine())),
    ] {
        assert_eq!(refused(client.validate_volume_capabilities(request).await, about), code, "{about}");
    }
    // Impossible is an answer here, not an error.
    for (about, capability) in impossible().split_off(3) {
        let answer =
            client.validate_volume_capabilities(ask(&id, vec![capability])).await.unwrap().into_inner();
        assert_eq!(answer.confirmed, None);
        assert!(answer.message.contains(about), "{}", answer.message);
    }
    let mut foreign = ask(&id, fine());
    foreign.volume_context.insert("share".into(), "17".into());
    let answer = client.validate_volume_capabilities(foreign).await.unwrap().into_inner();
    assert_eq!(answer.confirmed, None);
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn publish() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let target = rig.target("web");
    let with = |change: &dyn Fn(&mut proto::NodePublishVolumeRequest)| {
        let mut request = rig::publish(&id, &target);
        change(&mut request);
        request
    };
    let mut cases = vec![
        ("volume_id", Code::InvalidArgument, with(&|request| request.volume_id.clear())),
        ("target_path", Code::InvalidArgument, with(&|request| request.target_path.clear())),
        ("target_path", Code::InvalidArgument, with(&|request| request.target_path = "some/path".into())),
        ("target_path", Code::InvalidArgument, with(&|request| request.target_path.push_str("/../x"))),
        ("volume_capability", Code::InvalidArgument, with(&|request| request.volume_capability = None)),
        ("does not exist", Code::NotFound, with(&|request| request.volume_id = UNKNOWN.into())),
        ("does not exist", Code::NotFound, with(&|request| request.volume_id = "../web".into())),
        (
            "parent",
            Code::FailedPrecondition,
            with(&|request| request.target_path = rig.target("no/web").display().to_string()),
        ),
    ];
    for (about, capability) in impossible() {
        let request = with(&|request| request.volume_capability = Some(capability.clone()));
        cases.push((about, Code::InvalidArgument, request));
    }
    // The order of the suites: the first thing missing decides, whatever else is wrong.
    let only_id = proto::NodePublishVolumeRequest { volume_id: UNKNOWN.into(), ..Default::default() };
    cases.push(("target_path", Code::InvalidArgument, only_id));
    cases.push(("volume_id", Code::InvalidArgument, proto::NodePublishVolumeRequest::default()));
    for (about, code, request) in cases {
        assert_eq!(refused(rig.publish(request).await, about), code, "{about}");
        assert!(!target.exists(), "{about}");
    }
    assert_eq!(mounts_below(&rig.path("targets")).len(), 0);
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn unpublish() {
    let rig = Rig::new();
    let target = rig.target("web");
    let no_id = rig.unpublish("", &target).await;
    assert_eq!(refused(no_id, "volume_id"), Code::InvalidArgument);
    for bad in ["", "some/path", "/a/../b"] {
        let result = rig.unpublish(UNKNOWN, bad.as_ref()).await;
        assert_eq!(refused(result, "target_path"), Code::InvalidArgument, "{bad}");
    }
    for unknown in [UNKNOWN, "reallyfakevolumeid"] {
        rig.unpublish(unknown, &target).await.unwrap();
        rig.unpublish(unknown, &rig.target("no/parent")).await.unwrap();
    }
    rig.finish().await;
}

#[tokio::test]
async fn list_and_capacity() {
    let rig = Rig::new();
    let mut client = rig.instance().controller();
    let list = |max_entries, token: &str| proto::ListVolumesRequest {
        max_entries,
        starting_token: token.to_owned(),
    };
    let negative = client.list_volumes(list(-1, "")).await;
    assert_eq!(refused(negative, "max_entries"), Code::InvalidArgument);
    for bad in ["invalid-token", "after-", "after-x", UNKNOWN] {
        assert_eq!(
            refused(client.list_volumes(list(0, bad)).await, "starting_token"),
            Code::Aborted,
            "{bad}"
        );
    }
    let topology = |value: &str| {
        Some(proto::Topology { segments: [(TOPOLOGY_KEY.to_owned(), value.to_owned())].into() })
    };
    let ask = |volume_capabilities, accessible_topology| proto::GetCapacityRequest {
        volume_capabilities,
        accessible_topology,
        ..Default::default()
    };
    for (request, some) in [
        (ask(vec![], None), true),
        (ask(vec![capability(Access::SingleNodeWriter)], topology(NODE)), true),
        (ask(vec![], topology("node-b")), false),
        (ask(vec![block()], None), false),
    ] {
        let answer = client.get_capacity(request.clone()).await.unwrap().into_inner();
        assert_eq!(answer.available_capacity > 0, some, "{request:?}");
        assert_eq!(answer.maximum_volume_size, Some(answer.available_capacity));
    }
    rig.finish().await;
}

#[tokio::test]
async fn what_is_not_offered_is_unimplemented() {
    let rig = Rig::new();
    let (mut controller, mut node) = (rig.instance().controller(), rig.instance().node());
    let codes = [
        controller.controller_publish_volume(proto::ControllerPublishVolumeRequest::default()).await.err(),
        controller
            .controller_unpublish_volume(proto::ControllerUnpublishVolumeRequest::default())
            .await
            .err(),
        controller.controller_modify_volume(proto::ControllerModifyVolumeRequest::default()).await.err(),
        node.node_stage_volume(proto::NodeStageVolumeRequest::default()).await.err(),
        node.node_unstage_volume(proto::NodeUnstageVolumeRequest::default()).await.err(),
        node.node_expand_volume(proto::NodeExpandVolumeRequest::default()).await.err(),
    ];
    for error in codes {
        assert_eq!(error.unwrap().code(), Code::Unimplemented);
    }
    rig.finish().await;
}
