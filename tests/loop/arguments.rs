//! What each call refuses because of its arguments, and that a refusal changes nothing.
use tonic::Code;
use wharfline::csi::proto;
use wharfline::csi::proto::volume_capability::{AccessType, MountVolume};

use crate::rig::{self, Access, Backend, MIB, block, ext4, mount, refused, stage};

/// What makes a good request a bad one.
type Change<'a, T> = &'a dyn Fn(&mut T);

const UNKNOWN: &str = "0123456789abcdef0123";

fn impossible() -> Vec<(&'static str, proto::VolumeCapability)> {
    let group = MountVolume { volume_mount_group: "100".into(), ..Default::default() };
    vec![
        ("access_mode", proto::VolumeCapability { access_mode: None, ..ext4() }),
        ("access_type", proto::VolumeCapability { access_type: None, ..ext4() }),
        ("UNKNOWN", mount(Access::Unknown, "ext4", &[])),
        ("UNKNOWN", block(Access::Unknown)),
        ("MULTI_NODE_READER_ONLY", mount(Access::MultiNodeReaderOnly, "ext4", &[])),
        ("MULTI_NODE_SINGLE_WRITER", mount(Access::MultiNodeSingleWriter, "", &[])),
        ("MULTI_NODE_MULTI_WRITER", mount(Access::MultiNodeMultiWriter, "xfs", &[])),
        ("fs_type", mount(Access::SingleNodeWriter, "btrfs", &[])),
        ("fs_type", mount(Access::SingleNodeWriter, "../ext4", &[])),
        ("mount_flags", mount(Access::SingleNodeWriter, "ext4", &["loop"])),
        ("mount_flags", mount(Access::SingleNodeWriter, "ext4", &["ro", "password=canary"])),
        (
            "volume_mount_group",
            proto::VolumeCapability { access_type: Some(AccessType::Mount(group)), ..ext4() },
        ),
    ]
}

#[tokio::test]
async fn create() {
    let backend = Backend::new();
    let driver = backend.all().await;
    let with = |change: &dyn Fn(&mut proto::CreateVolumeRequest)| {
        let mut request = rig::create("fine", 4 * MIB, &ext4());
        change(&mut request);
        request
    };
    let mut cases = vec![
        ("name", with(&|request| request.name = String::new())),
        ("name", with(&|request| request.name = "x".repeat(129))),
        ("name", with(&|request| request.name = "bell\u{7}".into())),
        ("volume_capabilities", with(&|request| request.volume_capabilities.clear())),
        ("capacity_range", with(&|request| request.capacity_range.as_mut().unwrap().required_bytes = -1)),
        ("capacity_range", with(&|request| request.capacity_range = Some(proto::CapacityRange::default()))),
        ("fsType", with(&|request| drop(request.parameters.insert("fsType".into(), "xfs".into())))),
        ("iops", with(&|request| drop(request.mutable_parameters.insert("iops".into(), "9".into())))),
        ("volume_content_source", with(&|request| request.volume_content_source = Some(Default::default()))),
        (
            "accessibility_requirements",
            with(&|request| request.accessibility_requirements = Some(Default::default())),
        ),
    ];
    for (about, capability) in impossible() {
        // Also when a good one comes first: the caller may use any of them later.
        cases.push((about, with(&|request| request.volume_capabilities.push(capability.clone()))));
    }
    for (about, request) in cases {
        let result = driver.create(request).await;
        assert!(result.as_ref().is_err_and(|status| !status.message().contains("canary")), "{result:?}");
        assert_eq!(refused(result, about), Code::InvalidArgument, "{about}");
    }
    assert!(driver.list().await.is_empty());
    for name in ["../../outside", "a/b", "with blank and\ttab", &"x".repeat(128)] {
        let id = driver.volume(name, 4 * MIB, &ext4()).await;
        assert!(backend.image(&id).is_file(), "{name}");
        driver.delete(&id).await.unwrap();
    }
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn delete_attach_and_detach() {
    let backend = Backend::new();
    let driver = backend.all().await;
    let id = driver.volume("web", 4 * MIB, &ext4()).await;
    assert_eq!(refused(driver.delete("").await, "volume_id"), Code::InvalidArgument);
    assert_eq!(refused(driver.detach("", "node-a").await, "volume_id"), Code::InvalidArgument);
    for unknown in [UNKNOWN, "..", "../../D", "nul\0", &"x".repeat(500)] {
        driver.delete(unknown).await.unwrap();
        driver.detach(unknown, "node-a").await.unwrap();
        let attach = driver.attach(unknown, "node-a", &ext4()).await;
        assert_eq!(refused(attach, "does not exist"), Code::NotFound);
    }
    driver.detach(&id, "no-such-node").await.unwrap();
    for (about, request) in [
        ("volume_id", rig::attach("", "node-a", &ext4())),
        ("node_id", rig::attach(&id, "", &ext4())),
        (
            "volume_capability",
            proto::ControllerPublishVolumeRequest {
                volume_capability: None,
                ..rig::attach(&id, "node-a", &ext4())
            },
        ),
    ] {
        let result = driver.controller().controller_publish_volume(request).await;
        assert_eq!(refused(result, about), Code::InvalidArgument);
    }
    for (about, capability) in impossible() {
        let result = driver.attach(&id, "node-a", &capability).await;
        assert_eq!(refused(result, about), Code::InvalidArgument);
    }
    assert_eq!(driver.list().await, [(id.clone(), vec![])]);
    driver.delete(&id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn validate() {
    let backend = Backend::new();
    let driver = backend.all().await;
    let id = driver.volume("web", 4 * MIB, &ext4()).await;
    let ask = |volume: &str, capabilities: Vec<proto::VolumeCapability>| {
        let request = proto::ValidateVolumeCapabilitiesRequest {
            volume_id: volume.to_owned(),
            volume_capabilities: capabilities,
            ..Default::default()
        };
        let mut client = driver.controller();
        async move { client.validate_volume_capabilities(request).await.map(tonic::Response::into_inner) }
    };
    for (about, code, volume, capabilities) in [
        ("volume_id", Code::InvalidArgument, "", vec![ext4()]),
        ("volume_capabilities", Code::InvalidArgument, id.as_str(), vec![]),
        ("access_mode", Code::InvalidArgument, &id, vec![mount(Access::Unknown, "", &[])]),
        ("does not exist", Code::NotFound, UNKNOWN, vec![ext4()]),
        ("does not exist", Code::NotFound, "no/id", vec![ext4()]),
    ] {
        assert_eq!(refused(ask(volume, capabilities).await, about), code, "{about}");
    }
    let fine = vec![ext4(), block(Access::MultiNodeMultiWriter)];
    let answer = ask(&id, fine.clone()).await.unwrap();
    assert_eq!(answer.confirmed.unwrap().volume_capabilities, fine);
    for (about, capability) in [
        ("xfs needs", mount(Access::SingleNodeWriter, "xfs", &[])),
        ("MULTI_NODE_READER_ONLY", mount(Access::MultiNodeReaderOnly, "ext4", &[])),
    ] {
        let answer = ask(&id, vec![ext4(), capability]).await.unwrap();
        assert!(answer.confirmed.is_none() && answer.message.contains(about), "{answer:?}");
    }
    driver.delete(&id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn of_the_node() {
    let backend = Backend::new();
    let driver = backend.all().await;
    let id = driver.volume("web", 4 * MIB, &ext4()).await;
    let context = driver.attach(&id, "node-a", &ext4()).await.unwrap();
    let (staging, target) = (backend.staging("web"), backend.target("web"));
    let good = stage(&id, &context, &staging, &ext4());
    let file = backend.path("file");
    std::fs::write(&file, "x").unwrap();
    let link = backend.path("link");
    std::os::unix::fs::symlink(&staging, &link).unwrap();
    let cases: &[(&str, Code, Change<'_, proto::NodeStageVolumeRequest>)] = &[
        ("volume_id", Code::InvalidArgument, &|r| r.volume_id.clear()),
        ("staging_target_path", Code::InvalidArgument, &|r| r.staging_target_path.clear()),
        ("staging_target_path", Code::InvalidArgument, &|r| r.staging_target_path = "relative".into()),
        ("staging_target_path", Code::InvalidArgument, &|r| r.staging_target_path = "/a/../b".into()),
        ("volume_capability", Code::InvalidArgument, &|r| r.volume_capability = None),
        ("does not exist", Code::NotFound, &|r| r.volume_id = UNKNOWN.into()),
        ("does not exist", Code::NotFound, &|r| r.volume_id = "../x".into()),
        ("no directory", Code::FailedPrecondition, &|r| r.staging_target_path.push_str("/none/at/all")),
        ("no directory", Code::FailedPrecondition, &|r| r.staging_target_path.push_str("/none")),
        ("no directory", Code::FailedPrecondition, &|r| r.staging_target_path = file.display().to_string()),
        ("no directory", Code::FailedPrecondition, &|r| r.staging_target_path = link.display().to_string()),
        ("something else", Code::FailedPrecondition, &|r| r.staging_target_path = "/proc".into()),
    ];
    for (about, code, change) in cases {
        let mut request = good.clone();
        change(&mut request);
        assert_eq!(refused(driver.stage(request).await, about), *code, "{about}");
        assert_eq!((backend.devices(), backend.mounts()), (vec![], vec![]), "{about}");
    }
    for (about, capability) in impossible() {
        let result = driver.stage(stage(&id, &context, &staging, &capability)).await;
        assert_eq!(refused(result, about), Code::InvalidArgument);
    }
    driver.stage(good.clone()).await.unwrap();
    std::fs::create_dir(backend.target("full")).unwrap();
    std::fs::write(backend.target("full").join("file"), "x").unwrap();
    let published = rig::publish(&good, &target);
    let cases: &[(&str, Code, Change<'_, proto::NodePublishVolumeRequest>)] = &[
        ("volume_id", Code::InvalidArgument, &|r| r.volume_id.clear()),
        ("target_path", Code::InvalidArgument, &|r| r.target_path.clear()),
        ("target_path", Code::InvalidArgument, &|r| r.target_path = "/".into()),
        ("target_path", Code::InvalidArgument, &|r| r.target_path.push('\0')),
        ("volume_capability", Code::InvalidArgument, &|r| r.volume_capability = None),
        ("does not exist", Code::NotFound, &|r| r.volume_id = UNKNOWN.into()),
        ("parent", Code::FailedPrecondition, &|r| r.target_path.push_str("/none/at/all")),
        ("no directory", Code::FailedPrecondition, &|r| r.target_path = file.display().to_string()),
        ("something else", Code::FailedPrecondition, &|r| r.target_path = "/proc".into()),
        ("files in it", Code::FailedPrecondition, &|r| {
            r.target_path = backend.target("full").display().to_string()
        }),
    ];
    for (about, code, change) in cases {
        let mut request = published.clone();
        change(&mut request);
        assert_eq!(refused(driver.publish(request).await, about), *code, "{about}");
        assert_eq!(backend.mounts(), [staging.clone()], "{about}");
    }
    std::fs::remove_dir_all(backend.target("full")).unwrap();
    for call in ["unpublish", "unstage"] {
        for (volume, path, code) in [
            ("", target.as_path(), Code::InvalidArgument),
            (&id, "".as_ref(), Code::InvalidArgument),
            (&id, "relative".as_ref(), Code::InvalidArgument),
            ("no-id", "/proc".as_ref(), Code::NotFound),
        ] {
            let result = match call {
                "unpublish" => driver.unpublish(volume, path).await,
                _ => driver.unstage(volume, path).await,
            };
            assert_eq!(result.unwrap_err().code(), code, "{call} {volume:?} {path:?}");
        }
    }
    for unknown in [UNKNOWN, "no-id"] {
        driver.unpublish(unknown, &target).await.unwrap();
        driver.unstage(unknown, &backend.staging("nothing")).await.unwrap();
    }
    assert_eq!(refused(driver.unpublish(UNKNOWN, &staging).await, UNKNOWN), Code::NotFound);
    driver.unstage(&id, &staging).await.unwrap();
    driver.detach(&id, "node-a").await.unwrap();
    driver.delete(&id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}
