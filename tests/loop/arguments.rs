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
        ("fs_type", mount(Access::SingleNodeWriter, "ext3", &[])),
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
    let driver = backend.all();
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
        (
            "volume_content_source",
            with(&|request| request.volume_content_source = Some(proto::VolumeContentSource::default())),
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
    let driver = backend.all();
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
    let driver = backend.all();
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

/// An attached volume, and the request that stages it.
struct Attached {
    backend: Backend,
    driver: rig::Driver,
    id: String,
    good: proto::NodeStageVolumeRequest,
}

impl Attached {
    async fn new() -> Self {
        let backend = Backend::new();
        let driver = backend.all();
        let id = driver.volume("web", 4 * MIB, &ext4()).await;
        let context = driver.attach(&id, "node-a", &ext4()).await.unwrap();
        let good = stage(&id, &context, &backend.staging("web"), &ext4());
        std::fs::write(backend.path("file"), "x").unwrap();
        std::os::unix::fs::symlink(backend.staging("web"), backend.path("link")).unwrap();
        Self { backend, driver, id, good }
    }

    fn text(&self, name: &str) -> String {
        self.backend.path(name).display().to_string()
    }

    async fn end(self) {
        self.driver.unstaged(&self.id, &self.backend.staging("web")).await;
        self.driver.detach(&self.id, "node-a").await.unwrap();
        self.driver.delete(&self.id).await.unwrap();
        self.driver.stop().await;
        self.backend.assert_nothing_left();
    }
}

#[tokio::test]
async fn staging() {
    let at = Attached::new().await;
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
        ("no directory", Code::FailedPrecondition, &|r| r.staging_target_path = at.text("file")),
        ("no directory", Code::FailedPrecondition, &|r| r.staging_target_path = at.text("link")),
        ("something else", Code::FailedPrecondition, &|r| r.staging_target_path = "/proc".into()),
    ];
    for (about, code, change) in cases {
        let mut request = at.good.clone();
        change(&mut request);
        assert_eq!(refused(at.driver.stage(request).await, about), *code, "{about}");
        assert_eq!((at.backend.devices(), at.backend.mounts()), (vec![], vec![]), "{about}");
    }
    for (about, capability) in impossible() {
        let result = at
            .driver
            .stage(proto::NodeStageVolumeRequest { volume_capability: Some(capability), ..at.good.clone() })
            .await;
        assert_eq!(refused(result, about), Code::InvalidArgument);
    }
    at.end().await;
}

#[tokio::test]
async fn publishing() {
    let at = Attached::new().await;
    at.driver.stage(at.good.clone()).await.unwrap();
    std::fs::create_dir(at.backend.target("full")).unwrap();
    std::fs::write(at.backend.target("full").join("file"), "x").unwrap();
    let published = rig::publish(&at.good, &at.backend.target("web"));
    let cases: &[(&str, Code, Change<'_, proto::NodePublishVolumeRequest>)] = &[
        ("volume_id", Code::InvalidArgument, &|r| r.volume_id.clear()),
        ("target_path", Code::InvalidArgument, &|r| r.target_path.clear()),
        ("target_path", Code::InvalidArgument, &|r| r.target_path = "/".into()),
        ("target_path", Code::InvalidArgument, &|r| r.target_path.push('\0')),
        ("volume_capability", Code::InvalidArgument, &|r| r.volume_capability = None),
        ("does not exist", Code::NotFound, &|r| r.volume_id = UNKNOWN.into()),
        ("parent", Code::FailedPrecondition, &|r| r.target_path.push_str("/none/at/all")),
        ("no directory", Code::FailedPrecondition, &|r| r.target_path = at.text("file")),
        ("something else", Code::FailedPrecondition, &|r| r.target_path = "/proc".into()),
        ("files in it", Code::FailedPrecondition, &|r| r.target_path = at.text("targets/full")),
    ];
    for (about, code, change) in cases {
        let mut request = published.clone();
        change(&mut request);
        assert_eq!(refused(at.driver.publish(request).await, about), *code, "{about}");
        assert_eq!(at.backend.mounts(), [at.backend.staging("web")], "{about}");
    }
    std::fs::remove_dir_all(at.backend.target("full")).unwrap();
    at.end().await;
}

#[tokio::test]
async fn taking_down() {
    let at = Attached::new().await;
    at.driver.stage(at.good.clone()).await.unwrap();
    let (staging, target) = (at.backend.staging("web"), at.backend.target("web"));
    for call in ["unpublish", "unstage"] {
        for (volume, path, code) in [
            ("", target.as_path(), Code::InvalidArgument),
            (&at.id, "".as_ref(), Code::InvalidArgument),
            (&at.id, "relative".as_ref(), Code::InvalidArgument),
            ("no-id", "/proc".as_ref(), Code::NotFound),
        ] {
            let result = match call {
                "unpublish" => at.driver.unpublish(volume, path).await,
                _ => at.driver.unstage(volume, path).await,
            };
            assert_eq!(result.unwrap_err().code(), code, "{call} {volume:?} {path:?}");
        }
    }
    for unknown in [UNKNOWN, "no-id"] {
        at.driver.unpublish(unknown, &target).await.unwrap();
        at.driver.unstaged(unknown, &at.backend.staging("nothing")).await;
    }
    assert_eq!(refused(at.driver.unpublish(UNKNOWN, &staging).await, UNKNOWN), Code::NotFound);
    at.end().await;
}
