//! Snapshots, and volumes that are made from them and from other volumes.
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tonic::Code;
use wharfline::csi::proto;

use crate::rig::{
    self, Access, BTRFS, Backend, Driver, How, MIB, XFS, block, ext4, from, mount, of_snapshot, of_volume,
    refused,
};

const UNKNOWN: &str = "0123456789abcdef0123";

/// Attaches, stages and publishes a volume under a name.
async fn up(
    backend: &Backend,
    driver: &Driver,
    id: &str,
    name: &str,
    capability: &proto::VolumeCapability,
) -> PathBuf {
    let context = driver.attach(id, "node-a", capability).await.unwrap();
    let staged = rig::stage(id, &context, &backend.staging(name), capability);
    driver.stage(staged.clone()).await.unwrap();
    let target = backend.target(name);
    driver.publish(rig::publish(&staged, &target)).await.unwrap();
    target
}

async fn down(backend: &Backend, driver: &Driver, id: &str, name: &str) {
    driver.unpublish(id, &backend.target(name)).await.unwrap();
    driver.unstaged(id, &backend.staging(name)).await;
    driver.detach(id, "node-a").await.unwrap();
    driver.delete(id).await.unwrap();
}

fn total(path: &Path) -> i64 {
    let fs = rustix::fs::statvfs(path).unwrap();
    i64::try_from(fs.f_blocks * fs.f_frsize).unwrap()
}

/// A snapshot of a volume in use, volumes from both, one of them larger; each as it was at its time.
async fn lives(backend: &Backend, driver: &Driver, fs_type: &str, bytes: i64) {
    let capability = mount(Access::SingleNodeWriter, fs_type, &[]);
    let id = driver.volume("web", bytes, &capability).await;
    let target = up(backend, driver, &id, "web", &capability).await;
    fs::write(target.join("file"), "at the snapshot").unwrap();
    let snapshot = driver.snapshot(&id, "snap").await.unwrap();
    fs::write(target.join("other"), "nobody waits any more").unwrap();
    assert_eq!((snapshot.size_bytes, snapshot.ready_to_use), (bytes, true));
    assert_eq!(snapshot.source_volume_id, id);
    assert!(snapshot.creation_time.is_some_and(|time| time.seconds > 1_700_000_000));
    fs::write(target.join("file"), "later").unwrap();
    assert_eq!(driver.snapshot(&id, "snap").await.unwrap(), snapshot, "another one of the same name");

    let same = from(of_snapshot(&snapshot.snapshot_id), rig::create("same", 0, &capability));
    let same = driver.create(same).await.unwrap();
    assert_eq!(same.capacity_bytes, bytes);
    assert_eq!(same.content_source.clone().unwrap().r#type.unwrap(), of_snapshot(&snapshot.snapshot_id));
    let larger = from(of_snapshot(&snapshot.snapshot_id), rig::create("larger", 2 * bytes, &capability));
    let larger = driver.create(larger).await.unwrap();
    assert_eq!(larger.capacity_bytes, 2 * bytes);
    let clone = from(of_volume(&id), rig::create("clone", bytes, &capability));
    let clone = driver.create(clone.clone()).await.unwrap();
    assert_eq!(clone.content_source.clone().unwrap().r#type.unwrap(), of_volume(&id));

    restored_to_be_read(backend, driver, &same.volume_id, fs_type).await;

    // All of them beside each other.
    for (volume, name, text) in [
        (&same.volume_id, "same", "at the snapshot"),
        (&larger.volume_id, "larger", "at the snapshot"),
        (&clone.volume_id, "clone", "later"),
    ] {
        let target = up(backend, driver, volume, name, &capability).await;
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), text, "{name}");
        fs::write(target.join("file"), name).unwrap();
    }
    let (usual, grown) = (total(&target), total(&backend.target("larger")));
    assert!(grown > usual + bytes * 9 / 10, "{usual} {grown}");
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "later");
    down(backend, driver, &id, "web").await;
    assert_eq!(
        driver.snapshots().await,
        std::slice::from_ref(&snapshot.snapshot_id),
        "it outlives its volume"
    );
    for _ in 0..2 {
        driver.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    }
    for (volume, name) in [(&same, "same"), (&larger, "larger"), (&clone, "clone")] {
        assert_eq!(fs::read_to_string(backend.target(name).join("file")).unwrap(), name);
        down(backend, driver, &volume.volume_id, name).await;
    }
}

/// An xfs wants to write its log once, which it does even when it was frozen: that is done before.
async fn restored_to_be_read(backend: &Backend, driver: &Driver, id: &str, fs_type: &str) {
    let reader = mount(Access::SingleNodeReaderOnly, fs_type, &[]);
    let context = driver.attach(id, "node-a", &reader).await.unwrap();
    let staging = backend.staging("same");
    driver.stage(rig::stage(id, &context, &staging, &reader)).await.unwrap();
    assert_eq!(fs::read_to_string(staging.join("file")).unwrap(), "at the snapshot");
    driver.unstaged(id, &staging).await;
    driver.detach(id, "node-a").await.unwrap();
}

async fn copied(fs_type: &str, bytes: i64) {
    let backend = Backend::new();
    let driver = backend.all();
    lives(&backend, &driver, fs_type, bytes).await;
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn of_ext4() {
    copied("ext4", 32 * MIB).await;
}

#[tokio::test]
async fn of_xfs() {
    copied("xfs", XFS).await;
}

#[tokio::test]
async fn of_btrfs() {
    copied("btrfs", BTRFS).await;
}

/// A file system that shares blocks, mounted beneath a backend; gone with this.
struct Sharing {
    at: PathBuf,
}

impl Sharing {
    fn new(backend: &Backend) -> Self {
        let (image, at) = (backend.path("below.img"), backend.path("below"));
        fs::create_dir(&at).unwrap();
        fs::File::create(&image).unwrap().set_len(2 << 30).unwrap();
        let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
            let done = Command::new(program).args(arguments).env("PATH", rig::programs()).output().unwrap();
            assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
        };
        run("mkfs.xfs", &["-q".as_ref(), image.as_os_str()]);
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()]);
        Self { at }
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn blocks_are_shared_where_the_file_system_can() {
    let backend = Backend::new();
    let below = Sharing::new(&backend);
    let data = below.at.join("D");
    let driver = backend.start("node-a", How { data: Some(data.clone()), ..Default::default() });
    lives(&backend, &driver, "ext4", 32 * MIB).await;

    // A raw device in use is no hindrance, and what is shared costs nothing.
    let capability = block(Access::SingleNodeWriter);
    let id = driver.volume("raw", 256 * MIB, &capability).await;
    let target = up(&backend, &driver, &id, "raw", &capability).await;
    let mut device = fs::OpenOptions::new().write(true).open(&target).unwrap();
    std::io::Write::write_all(&mut device, &vec![7; 200 << 20]).unwrap();
    drop(device);
    let free = || {
        let fs = rustix::fs::statvfs(&below.at).unwrap();
        i64::try_from(fs.f_bfree * fs.f_frsize).unwrap()
    };
    driver.snapshot(&id, "first").await.unwrap(); // brings what was not written yet to the disk
    let before = free();
    let snapshot = driver.snapshot(&id, "second").await.unwrap();
    assert!(before - free() < 20 * MIB, "{before} {}", free());
    let image = data.join("snapshots").join(&snapshot.snapshot_id).join("image");
    assert!(fs::read(&image).unwrap()[..200 << 20].iter().all(|&byte| byte == 7), "it is not all there");
    // What is written to it from now on needs room once more.
    let available = async || {
        let answer = driver.controller().get_capacity(proto::GetCapacityRequest::default()).await;
        answer.unwrap().into_inner().available_capacity
    };
    assert!(available().await <= free() - 256 * MIB, "{} {}", available().await, free());
    for name in driver.snapshots().await {
        driver.delete_snapshot(&name).await.unwrap();
    }
    down(&backend, &driver, &id, "raw").await;
    driver.stop().await;
    for empty in ["volumes", "trash", "snapshots", "trash-of-snapshots"] {
        assert_eq!(rig::entries(&data.join(empty)), [] as [String; 0], "in {empty}");
    }
    drop(below);
}

#[tokio::test]
async fn a_device_that_may_be_written_is_not_copied() {
    let backend = Backend::new();
    let driver = backend.all();
    let capability = block(Access::SingleNodeWriter);
    let id = driver.volume("raw", 8 * MIB, &capability).await;
    let target = up(&backend, &driver, &id, "raw", &capability).await;
    fs::OpenOptions::new().write(true).open(&target).unwrap();
    for _ in 0..2 {
        assert_eq!(refused(driver.snapshot(&id, "snap").await, "may write to it"), Code::FailedPrecondition);
    }
    let clone = driver.create(from(of_volume(&id), rig::create("clone", 0, &capability))).await;
    assert_eq!(refused(clone, "may write to it"), Code::FailedPrecondition);
    assert!(driver.snapshots().await.is_empty());
    assert_eq!(driver.list().await.len(), 1);
    driver.unpublish(&id, &target).await.unwrap();
    driver.unstaged(&id, &backend.staging("raw")).await;
    let snapshot = driver.snapshot(&id, "snap").await.unwrap();
    driver.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    down(&backend, &driver, &id, "raw").await;
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn holes_stay_holes() {
    let backend = Backend::new();
    let driver = backend.all();
    let id = driver.volume("web", 4096 * MIB, &ext4()).await;
    let snapshot = driver.snapshot(&id, "snap").await.unwrap();
    let image = backend.path("D/snapshots").join(&snapshot.snapshot_id).join("image");
    let meta = fs::metadata(image).unwrap();
    assert_eq!((meta.len(), meta.blocks()), (4096 << 20, 0));
    driver.delete(&id).await.unwrap();
    driver.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn arguments_and_names() {
    let backend = Backend::new();
    let driver = backend.all();
    let one = driver.volume("one", 8 * MIB, &ext4()).await;
    let two = driver.volume("two", 8 * MIB, &ext4()).await;
    let ask = |source: &str, name: &str| proto::CreateSnapshotRequest {
        source_volume_id: source.to_owned(),
        name: name.to_owned(),
        ..Default::default()
    };
    let odd = proto::CreateSnapshotRequest {
        parameters: [("tier".to_owned(), "gold".to_owned())].into(),
        ..ask(&one, "snap")
    };
    for (about, code, request) in [
        ("name", Code::InvalidArgument, ask(&one, "")),
        ("name", Code::InvalidArgument, ask(&one, &"x".repeat(129))),
        ("source_volume_id", Code::InvalidArgument, ask("", "snap")),
        ("tier", Code::InvalidArgument, odd),
        ("does not exist", Code::NotFound, ask(UNKNOWN, "snap")),
        ("does not exist", Code::NotFound, ask("../x", "snap")),
    ] {
        let result = driver.controller().create_snapshot(request).await;
        assert_eq!(refused(result, about), code, "{about}");
    }
    assert_eq!(refused(driver.delete_snapshot("").await, "snapshot_id"), Code::InvalidArgument);
    for unknown in [UNKNOWN, "..", "../../D"] {
        driver.delete_snapshot(unknown).await.unwrap();
    }
    let snapshot = driver.snapshot(&one, "snap").await.unwrap().snapshot_id;
    assert_eq!(refused(driver.snapshot(&two, "snap").await, "another source"), Code::AlreadyExists);
    let get = async |id: &str| {
        let request = proto::GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        driver.controller().get_snapshot(request).await.map(tonic::Response::into_inner)
    };
    assert_eq!(get(&snapshot).await.unwrap().snapshot.unwrap().source_volume_id, one);
    assert_eq!(refused(get("").await, "snapshot_id"), Code::InvalidArgument);
    assert_eq!(refused(get(UNKNOWN).await, "does not exist"), Code::NotFound);

    let create = |source, bytes| from(source, rig::create("from", bytes, &ext4()));
    for (source, about) in [
        (of_snapshot(UNKNOWN), "snapshot"),
        (of_snapshot(&one), "snapshot"),
        (of_volume(UNKNOWN), "volume"),
        (of_volume(&snapshot), "volume"),
        (of_volume("../x"), "volume"),
    ] {
        assert_eq!(refused(driver.create(create(source, 0)).await, about), Code::NotFound);
    }
    let mut small = create(of_snapshot(&snapshot), 0);
    small.capacity_range = Some(proto::CapacityRange { required_bytes: 0, limit_bytes: 7 * MIB });
    assert_eq!(refused(driver.create(small).await, "made from"), Code::OutOfRange);
    let made = driver.create(create(of_snapshot(&snapshot), 0)).await.unwrap();
    assert_eq!(driver.create(create(of_snapshot(&snapshot), 0)).await.unwrap(), made);
    for other in [create(of_volume(&one), 0), rig::create("from", 0, &ext4())] {
        assert_eq!(refused(driver.create(other).await, "another source"), Code::AlreadyExists);
    }
    for id in [&one, &two, &made.volume_id] {
        driver.delete(id).await.unwrap();
    }
    driver.delete_snapshot(&snapshot).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn pages_and_filters() {
    let backend = Backend::new();
    let driver = backend.all();
    let volumes = [driver.volume("a", 4 * MIB, &ext4()).await, driver.volume("b", 4 * MIB, &ext4()).await];
    let mut all = Vec::new();
    for number in 0..6 {
        let taken = driver.snapshot(&volumes[number % 2], &format!("s{number}")).await.unwrap();
        all.push((taken.snapshot_id, taken.source_volume_id));
    }
    all.sort();
    let list =
        async |request| driver.controller().list_snapshots(request).await.map(tonic::Response::into_inner);
    let ids = |answer: &proto::ListSnapshotsResponse| {
        let id = |entry: &proto::list_snapshots_response::Entry| entry.snapshot.clone().unwrap().snapshot_id;
        answer.entries.iter().map(id).collect::<Vec<_>>()
    };
    for source in ["", volumes[0].as_str()] {
        let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
        loop {
            let request = proto::ListSnapshotsRequest {
                max_entries: 2,
                starting_token: token,
                source_volume_id: source.to_owned(),
                ..Default::default()
            };
            let answer = list(request).await.unwrap();
            seen.extend(ids(&answer));
            pages += 1;
            token = answer.next_token;
            if token.is_empty() {
                break;
            }
        }
        let expected = all.iter().filter(|(_, of)| source.is_empty() || of == source);
        assert_eq!(seen, expected.map(|(id, _)| id.clone()).collect::<Vec<_>>());
        assert_eq!(pages, if source.is_empty() { 3 } else { 2 });
    }
    let by_id = |id: &str| proto::ListSnapshotsRequest { snapshot_id: id.to_owned(), ..Default::default() };
    assert_eq!(ids(&list(by_id(&all[3].0)).await.unwrap()), std::slice::from_ref(&all[3].0));
    for unknown in [UNKNOWN, "no/id", volumes[0].as_str()] {
        assert!(list(by_id(unknown)).await.unwrap().entries.is_empty());
        let request =
            proto::ListSnapshotsRequest { source_volume_id: all[0].0.clone(), ..Default::default() };
        assert!(list(request).await.unwrap().entries.is_empty());
    }
    for (token, max_entries, code) in [("nonsense", 0, Code::Aborted), ("", -1, Code::InvalidArgument)] {
        let request =
            proto::ListSnapshotsRequest { max_entries, starting_token: token.into(), ..Default::default() };
        assert_eq!(list(request).await.unwrap_err().code(), code);
    }
    for (id, _) in &all {
        driver.delete_snapshot(id).await.unwrap();
    }
    for id in &volumes {
        driver.delete(id).await.unwrap();
    }
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn with_a_topology_volumes_are_for_its_nodes() {
    let backend = Backend::new();
    let driver = backend.start("node-a", How { topology: Some("rack-1"), ..Default::default() });
    let topology = |value: &str| proto::Topology {
        segments: [(wharfline::drivers::loopback::TOPOLOGY_KEY.to_owned(), value.to_owned())].into(),
    };
    let on = |value: &str| proto::CreateVolumeRequest {
        accessibility_requirements: Some(proto::TopologyRequirement {
            requisite: vec![topology(value)],
            preferred: vec![],
        }),
        ..rig::create("web", 8 * MIB, &ext4())
    };
    let info = driver.nodes().node_get_info(proto::NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.accessible_topology, Some(topology("rack-1")));
    let offered = driver.identity().get_plugin_capabilities(proto::GetPluginCapabilitiesRequest {}).await;
    assert_eq!(offered.unwrap().into_inner().capabilities.len(), 3);
    assert_eq!(refused(driver.create(on("rack-2")).await, "node-a"), Code::ResourceExhausted);
    let made = driver.create(on("rack-1")).await.unwrap();
    assert_eq!(made.accessible_topology, [topology("rack-1")]);
    assert_eq!(refused(driver.create(on("rack-2")).await, "topology"), Code::AlreadyExists);
    for (value, some) in [("rack-1", true), ("rack-2", false)] {
        let request =
            proto::GetCapacityRequest { accessible_topology: Some(topology(value)), ..Default::default() };
        let answer = driver.controller().get_capacity(request).await.unwrap().into_inner();
        assert_eq!(answer.available_capacity > 0, some, "{value}");
    }
    driver.delete(&made.volume_id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}
