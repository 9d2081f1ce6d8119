//! Snapshots, volumes from them and from other volumes, growth, and what is told of how full a volume is.
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use tonic::{Code, Status};
use wharfline::csi::proto;
use wharfline::csi::proto::volume_content_source::{SnapshotSource, Type, VolumeSource};
use wharfline::csi::proto::volume_usage::Unit;

use crate::rig::{self, Rig, refused, sized};

const MIB: i64 = 1 << 20;
const UNKNOWN: &str = "0123456789abcdef0123";

async fn snapshot(rig: &Rig, volume: &str, name: &str) -> Result<proto::Snapshot, Status> {
    let request = proto::CreateSnapshotRequest {
        source_volume_id: volume.to_owned(),
        name: name.to_owned(),
        ..Default::default()
    };
    let answer = rig.instance().controller().create_snapshot(request).await?;
    Ok(answer.into_inner().snapshot.expect("a snapshot"))
}

async fn delete_snapshot(rig: &Rig, id: &str) -> Result<(), Status> {
    let request = proto::DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
    rig.instance().controller().delete_snapshot(request).await.map(drop)
}

async fn snapshots(rig: &Rig, request: proto::ListSnapshotsRequest) -> Vec<proto::Snapshot> {
    let answer = rig.instance().controller().list_snapshots(request).await.unwrap().into_inner();
    answer.entries.into_iter().map(|entry| entry.snapshot.unwrap()).collect()
}

fn from(kind: Type, request: proto::CreateVolumeRequest) -> proto::CreateVolumeRequest {
    let source = proto::VolumeContentSource { r#type: Some(kind) };
    proto::CreateVolumeRequest { volume_content_source: Some(source), ..request }
}

fn of_snapshot(id: &str) -> Type {
    Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() })
}

fn of_volume(id: &str) -> Type {
    Type::Volume(VolumeSource { volume_id: id.to_owned() })
}

async fn expand(rig: &Rig, volume: &str, bytes: i64) -> Result<i64, Status> {
    let request = proto::ControllerExpandVolumeRequest {
        volume_id: volume.to_owned(),
        capacity_range: Some(proto::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        ..Default::default()
    };
    let answer = rig.instance().controller().controller_expand_volume(request).await?.into_inner();
    assert!(!answer.node_expansion_required);
    Ok(answer.capacity_bytes)
}

async fn stats(rig: &Rig, volume: &str, path: &Path) -> Result<Vec<proto::VolumeUsage>, Status> {
    let request = proto::NodeGetVolumeStatsRequest {
        volume_id: volume.to_owned(),
        volume_path: path.display().to_string(),
        ..Default::default()
    };
    Ok(rig.instance().node().node_get_volume_stats(request).await?.into_inner().usage)
}

#[tokio::test]
async fn a_snapshot_is_a_copy_and_so_is_what_is_made_from_it() {
    let mut rig = Rig::new();
    let made = rig.create(sized("web", 8 * MIB, 0)).await.unwrap();
    let id = made.volume_id.as_str();
    let target = rig.target("web");
    rig.publish(rig::publish(id, &target)).await.unwrap();
    let secret = rig.path("secret");
    fs::write(&secret, "outside").unwrap();
    fs::write(target.join("file"), "at the snapshot").unwrap();
    fs::hard_link(target.join("file"), target.join("link")).unwrap();
    symlink(&secret, target.join("out")).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o2770)).unwrap();
    std::os::unix::fs::chown(target.join("file"), Some(1001), Some(1002)).unwrap();

    let taken = snapshot(&rig, id, "snap").await.unwrap();
    assert_eq!((taken.size_bytes, taken.ready_to_use), (8 * MIB, true));
    assert_eq!(taken.source_volume_id, id);
    fs::write(target.join("file"), "later").unwrap();
    rig.restart().await;
    assert_eq!(snapshot(&rig, id, "snap").await.unwrap(), taken);
    assert_eq!(snapshots(&rig, proto::ListSnapshotsRequest::default()).await, std::slice::from_ref(&taken));
    let same = rig.create(from(of_snapshot(&taken.snapshot_id), rig::create("same"))).await.unwrap();
    assert_eq!(same.capacity_bytes, 8 * MIB);
    assert_eq!(same.content_source.clone().unwrap().r#type, Some(of_snapshot(&taken.snapshot_id)));
    let clone = rig.create(from(of_volume(id), sized("clone", 9 * MIB, 0))).await.unwrap();
    assert_eq!(clone.capacity_bytes, 9 * MIB);
    rig.unpublish(id, &target).await.unwrap();
    rig.delete(id).await.unwrap();
    for (volume, text) in [(&same, "at the snapshot"), (&clone, "later")] {
        let data = rig.data(&volume.volume_id);
        assert_eq!(fs::read_to_string(data.join("file")).unwrap(), text);
        assert_eq!(fs::read_link(data.join("out")).unwrap(), secret);
        let (file, link) =
            (fs::metadata(data.join("file")).unwrap(), fs::metadata(data.join("link")).unwrap());
        assert_eq!((file.uid(), file.gid(), file.ino()), (1001, 1002, link.ino()));
        assert_eq!(fs::metadata(&data).unwrap().mode() & 0o7777, 0o2770);
        rig.delete(&volume.volume_id).await.unwrap();
    }
    assert_eq!(fs::read_to_string(&secret).unwrap(), "outside");
    for _ in 0..2 {
        delete_snapshot(&rig, &taken.snapshot_id).await.unwrap();
    }
    rig.finish().await;
}

#[tokio::test]
async fn names_sources_and_sizes() {
    let rig = Rig::new();
    let one = rig.create(sized("one", 4 * MIB, 0)).await.unwrap().volume_id;
    let two = rig.volume("two").await;
    let taken = snapshot(&rig, &one, "snap").await.unwrap();
    for (about, code, volume, name) in [
        ("another source", Code::AlreadyExists, two.as_str(), "snap"),
        ("name", Code::InvalidArgument, &one, ""),
        ("source_volume_id", Code::InvalidArgument, "", "x"),
        ("does not exist", Code::NotFound, UNKNOWN, "x"),
        ("does not exist", Code::NotFound, "../x", "x"),
    ] {
        assert_eq!(refused(snapshot(&rig, volume, name).await, about), code, "{about}");
    }
    assert_eq!(refused(delete_snapshot(&rig, "").await, "snapshot_id"), Code::InvalidArgument);
    for unknown in [UNKNOWN, "no/id", ".."] {
        delete_snapshot(&rig, unknown).await.unwrap();
        for request in [
            proto::ListSnapshotsRequest { snapshot_id: unknown.into(), ..Default::default() },
            proto::ListSnapshotsRequest { source_volume_id: unknown.into(), ..Default::default() },
        ] {
            assert_eq!(snapshots(&rig, request).await, []);
        }
    }
    let of_one = proto::ListSnapshotsRequest { source_volume_id: one.clone(), ..Default::default() };
    assert_eq!(snapshots(&rig, of_one).await, std::slice::from_ref(&taken));
    let small = rig.create(from(of_snapshot(&taken.snapshot_id), sized("from", 0, MIB))).await;
    assert_eq!(refused(small, "made from"), Code::OutOfRange);
    let ask = || from(of_volume(&one), rig::create("from"));
    let made = rig.create(ask()).await.unwrap();
    assert_eq!(rig.create(ask()).await.unwrap(), made);
    for other in [from(of_volume(&two), rig::create("from")), rig::create("from")] {
        assert_eq!(refused(rig.create(other).await, "another source"), Code::AlreadyExists);
    }
    let get = |id: &str| {
        let request = proto::ControllerGetVolumeRequest { volume_id: id.to_owned() };
        let mut client = rig.instance().controller();
        async move { client.controller_get_volume(request).await.map(tonic::Response::into_inner) }
    };
    assert_eq!(get(&made.volume_id).await.unwrap().volume.unwrap(), made);
    assert_eq!(refused(get(UNKNOWN).await, "does not exist"), Code::NotFound);
    delete_snapshot(&rig, &taken.snapshot_id).await.unwrap();
    for id in [&one, &two, &made.volume_id] {
        rig.delete(id).await.unwrap();
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_volume_with_a_mount_in_it_is_not_copied_in_part() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let inner = rig.data(&id).join("inner");
    fs::create_dir(&inner).unwrap();
    rustix::mount::mount("tmpfs", &inner, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    let result = snapshot(&rig, &id, "snap").await;
    rustix::mount::unmount(&inner, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(refused(result, "something is mounted in the volume"), Code::Internal);
    assert_eq!(snapshots(&rig, proto::ListSnapshotsRequest::default()).await, []);
    let taken = snapshot(&rig, &id, "snap").await.unwrap();
    delete_snapshot(&rig, &taken.snapshot_id).await.unwrap();
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn a_volume_grows_by_a_larger_promise() {
    let mut rig = Rig::new();
    let id = rig.create(sized("web", 4 * MIB, 0)).await.unwrap().volume_id;
    for (about, code, volume, bytes) in [
        ("volume_id", Code::InvalidArgument, "", MIB),
        ("capacity_range", Code::InvalidArgument, &id, 0),
        ("does not exist", Code::NotFound, UNKNOWN, MIB),
        ("in all", Code::OutOfRange, &id, i64::MAX),
    ] {
        assert_eq!(refused(expand(&rig, volume, bytes).await, about), code, "{about}");
    }
    for _ in 0..2 {
        assert_eq!(expand(&rig, &id, 6 * MIB).await.unwrap(), 6 * MIB);
        rig.restart().await;
    }
    assert_eq!(expand(&rig, &id, MIB).await.unwrap(), 6 * MIB, "it never shrinks");
    assert_eq!(rig.create(sized("web", 6 * MIB, 0)).await.unwrap().capacity_bytes, 6 * MIB);
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn stats_are_those_of_the_file_system_below() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let target = rig.target("web");
    let early = stats(&rig, &id, &target).await;
    assert_eq!(refused(early, "not published"), Code::NotFound);
    rig.publish(rig::publish(&id, &target)).await.unwrap();
    let told = stats(&rig, &id, &target).await.unwrap();
    let fs = rustix::fs::statvfs(rig.data(&id)).unwrap();
    assert_eq!(told[0].total, i64::try_from(fs.f_blocks * fs.f_frsize).unwrap());
    assert!(told[0].unit() == Unit::Bytes && told[0].used > 0 && told[0].available > 0, "{told:?}");
    assert!(told.len() == 1 || told[1].unit() == Unit::Inodes, "{told:?}");
    for (about, code, volume, path) in [
        ("volume_id", Code::InvalidArgument, "", target.as_path()),
        ("volume_path", Code::InvalidArgument, &id, "".as_ref()),
        ("volume_path", Code::InvalidArgument, &id, "relative".as_ref()),
        ("does not exist", Code::NotFound, UNKNOWN, &target),
        ("does not exist", Code::NotFound, "no/id", &target),
        ("not published", Code::NotFound, &id, "/proc".as_ref()),
        ("not published", Code::NotFound, &id, "/no/such".as_ref()),
    ] {
        assert_eq!(refused(stats(&rig, volume, path).await, about), code, "{about}");
    }
    rig.unpublish(&id, &target).await.unwrap();
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}
