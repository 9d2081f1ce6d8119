//! Volumes that grow, used or not, and what is told of how full they are.
use std::fs;
use std::path::Path;

use tonic::Code;
use wharfline::csi::proto;
use wharfline::csi::proto::volume_usage::Unit;

use crate::rig::{self, Access, BTRFS, Backend, Driver, MIB, XFS, block, ext4, mount, refused};

const UNKNOWN: &str = "0123456789abcdef0123";

/// A volume with a file system in use.
struct Used {
    backend: Backend,
    driver: Driver,
    id: String,
    staged: proto::NodeStageVolumeRequest,
}

impl Used {
    async fn new(bytes: i64, capability: &proto::VolumeCapability) -> Self {
        let backend = Backend::new();
        let driver = backend.all();
        let id = driver.volume("web", bytes, capability).await;
        let context = driver.attach(&id, "node-a", capability).await.unwrap();
        let staged = rig::stage(&id, &context, &backend.staging("web"), capability);
        driver.stage(staged.clone()).await.unwrap();
        driver.publish(rig::publish(&staged, &backend.target("web"))).await.unwrap();
        Self { backend, driver, id, staged }
    }

    async fn end(self) {
        self.driver.unpublish(&self.id, &self.backend.target("web")).await.unwrap();
        self.driver.unstaged(&self.id, &self.backend.staging("web")).await;
        self.driver.detach(&self.id, "node-a").await.unwrap();
        self.driver.delete(&self.id).await.unwrap();
        self.driver.stop().await;
        self.backend.assert_nothing_left();
    }
}

/// Bytes of the file system at a path.
fn total(path: &Path) -> i64 {
    let fs = rustix::fs::statvfs(path).unwrap();
    i64::try_from(fs.f_blocks * fs.f_frsize).unwrap()
}

async fn grows(fs_type: &str, bytes: i64) {
    let used = Used::new(bytes, &mount(Access::SingleNodeWriter, fs_type, &[])).await;
    let (driver, id) = (&used.driver, &used.id);
    let (staging, target) = (used.backend.staging("web"), used.backend.target("web"));
    fs::write(target.join("kept"), "kept").unwrap();
    let before = total(&target);

    // In use: the controller, then the node; each of them again is success.
    let early = driver.expand_here(id, &target, 2 * bytes).await;
    assert_eq!(refused(early, "ControllerExpandVolume"), Code::OutOfRange);
    for _ in 0..2 {
        let answer = driver.expand(id, 2 * bytes).await.unwrap();
        assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (2 * bytes, true));
    }
    assert_eq!(total(&target), before, "nobody told the node");
    if fs_type == "ext4" && !rig::may_grow_ext4() {
        let result = driver.expand_here(id, &target, 2 * bytes).await;
        assert_eq!(refused(result, "CAP_SYS_RESOURCE"), Code::FailedPrecondition);
        driver.unpublish(id, &target).await.unwrap();
        driver.unstaged(id, &staging).await;
        driver.stage(used.staged.clone()).await.unwrap();
        driver.publish(rig::publish(&used.staged, &target)).await.unwrap();
    }
    for path in [&target, &staging, &target] {
        assert_eq!(driver.expand_here(id, path, 2 * bytes).await.unwrap(), 2 * bytes);
    }
    let grown = total(&target);
    assert!(grown > before + bytes * 9 / 10, "{before} {grown}");
    assert_eq!(driver.expand(id, bytes).await.unwrap().capacity_bytes, 2 * bytes, "it never shrinks");

    // Not in use: the next stage does it.
    driver.unpublish(id, &target).await.unwrap();
    driver.unstaged(id, &staging).await;
    let gone = driver.expand_here(id, &staging, 0).await;
    assert_eq!(refused(gone, "not published or staged"), Code::NotFound);
    driver.expand(id, 3 * bytes).await.unwrap();
    driver.stage(used.staged.clone()).await.unwrap();
    driver.publish(rig::publish(&used.staged, &target)).await.unwrap();
    assert!(total(&target) > grown + bytes * 9 / 10, "{grown} {}", total(&target));
    assert_eq!(driver.expand_here(id, &target, 0).await.unwrap(), 3 * bytes);
    assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "kept");
    used.end().await;
}

#[tokio::test]
async fn ext4_grows() {
    grows("ext4", 32 * MIB).await;
}

#[tokio::test]
async fn xfs_grows() {
    grows("xfs", XFS).await;
}

#[tokio::test]
async fn btrfs_grows() {
    grows("btrfs", BTRFS).await;
}

#[tokio::test]
async fn the_smallest_ext4_grows_far() {
    let used = Used::new(4 * MIB, &ext4()).await;
    used.driver.expand(&used.id, 2048 * MIB).await.unwrap();
    let (staging, target) = (used.backend.staging("web"), used.backend.target("web"));
    if !rig::may_grow_ext4() {
        used.driver.unpublish(&used.id, &target).await.unwrap();
        used.driver.unstaged(&used.id, &staging).await;
        used.driver.stage(used.staged.clone()).await.unwrap();
        used.driver.publish(rig::publish(&used.staged, &target)).await.unwrap();
    }
    assert_eq!(used.driver.expand_here(&used.id, &target, 0).await.unwrap(), 2048 * MIB);
    assert!(total(&target) > 1800 * MIB, "{}", total(&target));
    used.end().await;
}

#[tokio::test]
async fn a_raw_device_grows() {
    let used = Used::new(8 * MIB, &block(Access::SingleNodeWriter)).await;
    let (driver, target, staging) = (&used.driver, used.backend.target("web"), used.backend.staging("web"));
    let size = || {
        use std::io::Seek as _;
        fs::File::open(&target).unwrap().seek(std::io::SeekFrom::End(0)).unwrap()
    };
    let answer = driver.expand(&used.id, 12 * MIB + 1).await.unwrap();
    assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (12 * MIB + 4096, true));
    assert_eq!(size(), 8 << 20);
    assert_eq!(driver.expand_here(&used.id, &target, 0).await.unwrap(), 12 * MIB + 4096);
    assert_eq!(size(), (12 << 20) + 4096);
    for path in [&target, &staging] {
        let stats = driver.stats(&used.id, path).await.unwrap();
        let [usage] = stats.as_slice() else { panic!("{stats:?}") };
        assert_eq!((usage.total, usage.unit()), (12 * MIB + 4096, Unit::Bytes));
    }
    used.end().await;
}

#[tokio::test]
async fn a_block_volume_that_nobody_has_needs_no_node() {
    let backend = Backend::new();
    let driver = backend.all();
    let id = driver.volume("web", 8 * MIB, &block(Access::SingleNodeWriter)).await;
    let request = proto::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: Some(proto::CapacityRange { required_bytes: 9 * MIB, limit_bytes: 9 * MIB }),
        volume_capability: Some(block(Access::SingleNodeWriter)),
        ..Default::default()
    };
    let answer = driver.controller().controller_expand_volume(request).await.unwrap().into_inner();
    assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (9 * MIB, false));
    assert_eq!(fs::metadata(backend.image(&id)).unwrap().len(), 9 << 20);
    driver.delete(&id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn a_volume_that_may_only_be_read_grows_later() {
    let used = Used::new(16 * MIB, &ext4()).await;
    let (driver, id, staging) = (&used.driver, &used.id, used.backend.staging("web"));
    driver.unpublish(id, &used.backend.target("web")).await.unwrap();
    driver.unstaged(id, &staging).await;
    driver.detach(id, "node-a").await.unwrap();
    let reader = mount(Access::SingleNodeReaderOnly, "ext4", &[]);
    let context = driver.attach(id, "node-a", &reader).await.unwrap();
    driver.expand(id, 32 * MIB).await.unwrap();
    driver.stage(rig::stage(id, &context, &staging, &reader)).await.unwrap();
    let before = total(&staging);
    let result = driver.expand_here(id, &staging, 0).await;
    assert_eq!(refused(result, "to be read alone"), Code::FailedPrecondition);
    driver.unstaged(id, &staging).await;
    driver.detach(id, "node-a").await.unwrap();
    let context = driver.attach(id, "node-a", &ext4()).await.unwrap();
    driver.stage(rig::stage(id, &context, &staging, &ext4())).await.unwrap();
    assert!(total(&staging) > before + 14 * MIB);
    used.end().await;
}

#[tokio::test]
async fn arguments() {
    let used = Used::new(16 * MIB, &ext4()).await;
    let (driver, id, target) = (&used.driver, &used.id, used.backend.target("web"));
    let elsewhere = used.backend.path("targets");
    assert_eq!(refused(driver.expand("", MIB).await, "volume_id"), Code::InvalidArgument);
    assert_eq!(refused(driver.expand(id, -1).await, "capacity_range"), Code::InvalidArgument);
    assert_eq!(refused(driver.expand(id, 0).await, "capacity_range"), Code::InvalidArgument);
    for unknown in [UNKNOWN, "no/id"] {
        assert_eq!(refused(driver.expand(unknown, MIB).await, "does not exist"), Code::NotFound);
        let here = driver.expand_here(unknown, &target, 0).await;
        assert_eq!(refused(here, "does not exist"), Code::NotFound);
        assert_eq!(refused(driver.stats(unknown, &target).await, "does not exist"), Code::NotFound);
    }
    let ask = |required_bytes, limit_bytes, capability| proto::ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: Some(proto::CapacityRange { required_bytes, limit_bytes }),
        volume_capability: capability,
        ..Default::default()
    };
    let without = proto::ControllerExpandVolumeRequest { capacity_range: None, ..ask(1, 0, None) };
    for (about, code, request) in [
        ("capacity_range", Code::InvalidArgument, without),
        ("limit_bytes", Code::OutOfRange, ask(2, 1, None)),
        ("do not shrink", Code::OutOfRange, ask(0, MIB, None)),
        ("least that serves", Code::OutOfRange, ask(17 * MIB + 1, 17 * MIB + 1, None)),
        ("in all", Code::OutOfRange, ask(i64::MAX, 0, None)),
        (
            "fs_type",
            Code::InvalidArgument,
            ask(17 * MIB, 0, Some(mount(Access::SingleNodeWriter, "fat", &[]))),
        ),
    ] {
        let result = driver.controller().controller_expand_volume(request).await;
        assert_eq!(refused(result, about), code, "{about}");
    }
    for (about, code, volume, path) in [
        ("volume_id", Code::InvalidArgument, "", target.as_path()),
        ("volume_path", Code::InvalidArgument, id, "".as_ref()),
        ("volume_path", Code::InvalidArgument, id, "relative".as_ref()),
        ("not published or staged", Code::NotFound, id, &elsewhere),
        ("not published or staged", Code::NotFound, id, "/proc".as_ref()),
        ("not published or staged", Code::NotFound, id, "/no/such/place".as_ref()),
    ] {
        assert_eq!(refused(driver.expand_here(volume, path, 0).await, about), code, "{about} {path:?}");
        assert_eq!(refused(driver.stats(volume, path).await, about), code, "{about} {path:?}");
    }
    assert_eq!(fs::metadata(used.backend.image(id)).unwrap().len(), 16 << 20, "a refusal changed it");
    used.end().await;
}

#[tokio::test]
async fn stats_are_those_of_the_file_system() {
    let used = Used::new(64 * MIB, &ext4()).await;
    let target = used.backend.target("web");
    fs::write(target.join("file"), vec![1; 10 << 20]).unwrap();
    fs::File::open(target.join("file")).unwrap().sync_all().unwrap();
    for path in [&target, &used.backend.staging("web")] {
        let stats = used.driver.stats(&used.id, path).await.unwrap();
        let [bytes, inodes] = stats.as_slice() else { panic!("{stats:?}") };
        assert_eq!((bytes.unit(), inodes.unit()), (Unit::Bytes, Unit::Inodes));
        assert_eq!(bytes.total, total(&target));
        assert!(bytes.used >= 10 * MIB && bytes.available <= bytes.total - bytes.used, "{bytes:?}");
        assert!(inodes.used >= 1 && inodes.total == inodes.used + inodes.available, "{inodes:?}");
    }
    used.end().await;
}

#[tokio::test]
async fn what_is_promised_is_never_more_than_what_is_free() {
    let backend = Backend::new();
    let at = backend.path("small");
    fs::create_dir(&at).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &at, "tmpfs", flags, Some(c"size=64m")).unwrap();
    let data = Some(at.join("D"));
    let driver = backend.start("node-a", rig::How { data, ..Default::default() });
    let id = driver.volume("a", 20 * MIB, &ext4()).await;
    driver.volume("b", 20 * MIB, &ext4()).await;
    assert_eq!(refused(driver.expand(&id, 50 * MIB).await, "promised"), Code::ResourceExhausted);
    assert_eq!(refused(driver.expand(&id, 65 * MIB).await, "in all"), Code::OutOfRange);
    driver.expand(&id, 40 * MIB).await.unwrap();
    assert_eq!(refused(driver.expand(&id, 50 * MIB).await, "promised"), Code::ResourceExhausted);
    driver.stop().await;
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
}
