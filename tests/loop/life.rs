//! The whole life of a volume, each call twice, with the driver killed in the middle.
use std::fs;
use std::path::Path;
use std::process::Command;

use tonic::Code;
use wharfline::csi::proto;
use wharfline::csi::proto::controller_service_capability as controller_capability;
use wharfline::csi::proto::controller_service_capability::rpc::Type as Rpc;
use wharfline::csi::proto::node_service_capability as node_capability;
use wharfline::csi::proto::plugin_capability::service::Type as Service;
use wharfline::drivers::loopback::NAME;

use crate::rig::{self, Access, BTRFS, Backend, MIB, XFS, block, ext4, mount, mount_lines, refused};

async fn live(capability: proto::VolumeCapability, bytes: i64, fs_type: &str) {
    let backend = Backend::new();
    let mut driver = backend.all();
    let id = driver.volume("web", bytes, &capability).await;
    assert_eq!(driver.volume("web", bytes, &capability).await, id);
    assert_eq!(fs::metadata(backend.image(&id)).unwrap().len(), u64::try_from(bytes).unwrap());
    let context = driver.attach(&id, "node-a", &capability).await.unwrap();
    assert_eq!(driver.attach(&id, "node-a", &capability).await.unwrap(), context, "another token");
    let staging = backend.staging("web");
    let staged = rig::stage(&id, &context, &staging, &capability);
    driver.stage(staged.clone()).await.unwrap();
    let devices = backend.devices();
    assert_eq!(devices.len(), 1, "{devices:?}");
    driver.stage(staged.clone()).await.unwrap();
    let target = backend.target("web");
    let published = rig::publish(&staged, &target);
    driver.publish(published.clone()).await.unwrap();
    driver.publish(published.clone()).await.unwrap();
    let is_block = fs_type.is_empty();
    let file = if is_block { target.clone() } else { target.join("greeting") };
    write(&file, b"hello");
    let mounts = mount_lines(&backend.path(""));
    let line = &mounts.iter().find(|(point, _)| *point == target).unwrap().1;
    assert!(line.contains(&format!("- {} ", if is_block { "devtmpfs" } else { fs_type })), "{line}");

    driver.kill();
    driver = backend.all();
    assert_eq!(driver.volume("web", bytes, &capability).await, id);
    assert_eq!(driver.attach(&id, "node-a", &capability).await.unwrap(), context);
    driver.stage(staged.clone()).await.unwrap();
    driver.publish(published.clone()).await.unwrap();
    assert_eq!((mount_lines(&backend.path("")), backend.devices()), (mounts, devices), "not touched");
    assert!(fs::read(&file).is_ok_and(|bytes| bytes.starts_with(b"hello")));
    assert_eq!(refused(driver.unstage(&id, &staging).await, "published at"), Code::FailedPrecondition);
    assert_eq!(refused(driver.delete(&id).await, "attached to node node-a"), Code::FailedPrecondition);

    for _ in 0..2 {
        driver.unpublish(&id, &target).await.unwrap();
        assert!(!target.exists());
    }
    for _ in 0..2 {
        driver.unstaged(&id, &staging).await;
        assert_eq!(backend.devices(), [] as [String; 0]);
    }
    driver.kill();
    driver = backend.all();
    for _ in 0..2 {
        driver.detach(&id, "node-a").await.unwrap();
    }
    // What was written is there the next time; nothing is formatted twice.
    let context = driver.attach(&id, "node-a", &capability).await.unwrap();
    let staged = rig::stage(&id, &context, &staging, &capability);
    driver.stage(staged.clone()).await.unwrap();
    driver.publish(rig::publish(&staged, &target)).await.unwrap();
    assert!(fs::read(&file).is_ok_and(|bytes| bytes.starts_with(b"hello")));
    driver.unpublish(&id, &target).await.unwrap();
    driver.unstaged(&id, &staging).await;
    driver.detach(&id, "node-a").await.unwrap();
    for _ in 0..2 {
        driver.delete(&id).await.unwrap();
        driver.unpublish(&id, &target).await.unwrap();
        driver.unstaged(&id, &staging).await;
        driver.detach(&id, "node-a").await.unwrap();
    }
    driver.stop().await;
    backend.assert_nothing_left();
}

fn write(file: &Path, bytes: &[u8]) {
    use std::io::Write as _;
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(!file.exists()).truncate(false).open(file).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

#[tokio::test]
async fn of_ext4() {
    live(ext4(), 64 * MIB, "ext4").await;
}

#[tokio::test]
async fn of_no_named_file_system() {
    live(mount(Access::SingleNodeSingleWriter, "", &["noatime", "discard"]), 16 * MIB, "ext4").await;
}

#[tokio::test]
async fn of_xfs() {
    live(mount(Access::SingleNodeWriter, "xfs", &[]), XFS, "xfs").await;
}

/// What the kernel does to a file system when its device is pulled out: of an xfs even the root does not answer any more.
#[tokio::test]
async fn what_does_not_answer_any_more_is_taken_down_and_can_be_had_again() {
    let backend = Backend::new();
    let driver = backend.all();
    let xfs = mount(Access::SingleNodeWriter, "xfs", &[]);
    let id = driver.volume("web", XFS, &xfs).await;
    let context = driver.attach(&id, "node-a", &xfs).await.unwrap();
    let (staging, target) = (backend.staging("s"), backend.target("t"));
    let staged = rig::stage(&id, &context, &staging, &xfs);
    driver.stage(staged.clone()).await.unwrap();
    driver.publish(rig::publish(&staged, &target)).await.unwrap();
    write(&target.join("kept"), b"kept");
    let shutdown =
        "open(F, '<', $ARGV[0]) or die; $mode = pack('L', 1); ioctl(F, 0x8004587d, $mode) or die $!";
    let done = Command::new("perl").args(["-e", shutdown]).arg(&target).status().unwrap();
    assert!(done.success());
    assert_eq!(fs::metadata(&target).unwrap_err().raw_os_error(), Some(5), "it is dead");
    driver.unpublish(&id, &target).await.unwrap();
    assert!(!target.exists());
    driver.unstaged(&id, &staging).await;
    driver.stage(staged.clone()).await.unwrap();
    driver.publish(rig::publish(&staged, &target)).await.unwrap();
    assert_eq!(fs::read(target.join("kept")).unwrap(), b"kept");
    driver.unpublish(&id, &target).await.unwrap();
    driver.unstaged(&id, &staging).await;
    driver.detach(&id, "node-a").await.unwrap();
    driver.delete(&id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn of_btrfs() {
    live(mount(Access::SingleNodeWriter, "btrfs", &[]), BTRFS, "btrfs").await;
}

#[tokio::test]
async fn of_a_raw_device() {
    live(block(Access::SingleNodeWriter), 64 * MIB, "").await;
}

#[tokio::test]
async fn what_it_says_of_itself() {
    let backend = Backend::new();
    let driver = backend.start("node-a", rig::How { limit: Some(7), ..Default::default() });
    let mut identity = driver.identity();
    let info = identity.get_plugin_info(proto::GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.name.as_str(), info.vendor_version.as_str()), (NAME, env!("CARGO_PKG_VERSION")));
    assert_eq!(identity.probe(proto::ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));
    let offered = identity.get_plugin_capabilities(proto::GetPluginCapabilitiesRequest {}).await;
    let service = proto::plugin_capability::Service { r#type: Service::ControllerService.into() };
    let online = proto::plugin_capability::VolumeExpansion {
        r#type: proto::plugin_capability::volume_expansion::Type::Online.into(),
    };
    let all = [
        proto::plugin_capability::Type::Service(service),
        proto::plugin_capability::Type::VolumeExpansion(online),
    ];
    let all = all.map(|kind| proto::PluginCapability { r#type: Some(kind) });
    assert_eq!(offered.unwrap().into_inner().capabilities, all);
    drop(identity);

    let info = driver.nodes().node_get_info(proto::NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("node-a", 7));
    assert_eq!(info.accessible_topology, None);
    let node = driver.nodes().node_get_capabilities(proto::NodeGetCapabilitiesRequest {}).await;
    let rpc = |kind: node_capability::rpc::Type| proto::NodeServiceCapability {
        r#type: Some(node_capability::Type::Rpc(node_capability::Rpc { r#type: kind.into() })),
    };
    let expected = [
        node_capability::rpc::Type::StageUnstageVolume,
        node_capability::rpc::Type::GetVolumeStats,
        node_capability::rpc::Type::ExpandVolume,
        node_capability::rpc::Type::SingleNodeMultiWriter,
    ];
    assert_eq!(node.unwrap().into_inner().capabilities, expected.map(rpc));

    let request = proto::ControllerGetCapabilitiesRequest {};
    let served = driver.controller().controller_get_capabilities(request).await.unwrap().into_inner();
    let rpc = |kind: Rpc| proto::ControllerServiceCapability {
        r#type: Some(controller_capability::Type::Rpc(controller_capability::Rpc { r#type: kind.into() })),
    };
    let expected = [
        Rpc::CreateDeleteVolume,
        Rpc::PublishUnpublishVolume,
        Rpc::PublishReadonly,
        Rpc::ListVolumes,
        Rpc::ListVolumesPublishedNodes,
        Rpc::GetCapacity,
        Rpc::CreateDeleteSnapshot,
        Rpc::ListSnapshots,
        Rpc::GetSnapshot,
        Rpc::CloneVolume,
        Rpc::ExpandVolume,
        Rpc::GetVolume,
        Rpc::SingleNodeMultiWriter,
    ];
    assert_eq!(served.capabilities, expected.map(rpc));
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn one_volume_has_several_targets_on_its_node() {
    let backend = Backend::new();
    let driver = backend.all();
    let capability = mount(Access::SingleNodeMultiWriter, "ext4", &["noexec"]);
    let id = driver.volume("web", 16 * MIB, &capability).await;
    let context = driver.attach(&id, "node-a", &capability).await.unwrap();
    let staging = backend.staging("web");
    let staged = rig::stage(&id, &context, &staging, &capability);
    driver.stage(staged.clone()).await.unwrap();
    let (one, two) = (backend.target("one"), backend.target("two"));
    driver.publish(rig::publish(&staged, &one)).await.unwrap();
    driver.publish(rig::read_only(rig::publish(&staged, &two))).await.unwrap();
    let again = driver.publish(rig::publish(&staged, &two)).await;
    assert_eq!(refused(again, "readonly"), Code::AlreadyExists);
    fs::write(one.join("file"), "written by one").unwrap();
    assert_eq!(fs::read_to_string(two.join("file")).unwrap(), "written by one");
    assert_eq!(fs::write(two.join("file"), "x").unwrap_err().raw_os_error(), Some(30), "EROFS");
    let lines = mount_lines(&one);
    assert!(lines[0].1.contains("noexec"), "{lines:?}");
    let usual = proto::VolumeCapability { access_mode: ext4().access_mode, ..capability };
    let mut other = rig::publish(&staged, &backend.target("three"));
    other.volume_capability = Some(usual);
    assert_eq!(refused(driver.publish(other).await, "access_mode"), Code::FailedPrecondition);
    for target in [&one, &two] {
        driver.unpublish(&id, target).await.unwrap();
    }
    driver.unstaged(&id, &staging).await;
    driver.detach(&id, "").await.unwrap();
    driver.delete(&id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn many_volumes_at_once() {
    let backend = Backend::new();
    let driver = backend.all();
    let lives = (0..12).map(|number| {
        let (backend, driver, name) = (&backend, &driver, format!("v{number}"));
        async move {
            let id = driver.volume(&name, 16 * MIB, &ext4()).await;
            let context = driver.attach(&id, "node-a", &ext4()).await.unwrap();
            let (staging, target) = (backend.staging(&name), backend.target(&name));
            let staged = rig::stage(&id, &context, &staging, &ext4());
            driver.stage(staged.clone()).await.unwrap();
            driver.publish(rig::publish(&staged, &target)).await.unwrap();
            fs::write(target.join("own"), &name).unwrap();
            assert_eq!(fs::read_to_string(target.join("own")).unwrap(), name);
            driver.unpublish(&id, &target).await.unwrap();
            driver.unstaged(&id, &staging).await;
            driver.detach(&id, "node-a").await.unwrap();
            driver.delete(&id).await.unwrap();
        }
    });
    futures::future::join_all(lives).await;
    driver.stop().await;
    backend.assert_nothing_left();
}
