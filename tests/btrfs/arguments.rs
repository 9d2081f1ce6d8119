//! What the driver refuses: a start where there is no btrfs, and calls because of their arguments.
use std::path::Path;

use tonic::Code;
use wharfline::csi::proto;
use wharfline::csi::proto::volume_capability::{AccessType, BlockVolume, MountVolume};
use wharfline::drivers::btrfs::{Mode, Server, Settings};

use crate::rig::{self, Backend, MIB, create, from_snapshot, from_volume, refused};

const UNKNOWN: &str = "0123456789abcdef0123";

#[test]
fn a_place_that_is_no_btrfs_is_refused_and_left_as_it_is() {
    let root = tempfile::tempdir_in("/var/tmp").unwrap();
    for at in ["D", "deep/er/D"] {
        let settings = Settings {
            endpoint: format!("unix://{}", root.path().join("csi.sock").display()),
            node_id: "n".into(),
            data_dir: root.path().join(at),
            mode: Mode::All,
        };
        let error = Server::bind(&settings).unwrap_err();
        let refusal = std::error::Error::source(&error).unwrap().to_string();
        assert!(refusal.contains(&root.path().display().to_string()), "{refusal}");
        assert!(refusal.contains("and this driver needs btrfs"), "{refusal}");
    }
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0, "something was made");
}

#[tokio::test]
async fn create_and_expand() {
    let backend = Backend::new();
    let driver = backend.start();
    let with = |change: &dyn Fn(&mut proto::CreateVolumeRequest)| {
        let mut request = create("fine", 4 * MIB);
        change(&mut request);
        request
    };
    let range = |required_bytes, limit_bytes| Some(proto::CapacityRange { required_bytes, limit_bytes });
    let typed = |kind| proto::VolumeCapability { access_type: Some(kind), ..rig::writer() };
    let fat = AccessType::Mount(MountVolume { fs_type: "fat".into(), ..Default::default() });
    for (about, code, request) in [
        ("name", Code::InvalidArgument, with(&|r| r.name.clear())),
        ("volume_capabilities", Code::InvalidArgument, with(&|r| r.volume_capabilities.clear())),
        (
            "block",
            Code::InvalidArgument,
            with(&|r| r.volume_capabilities.push(typed(AccessType::Block(BlockVolume {})))),
        ),
        ("fs_type", Code::InvalidArgument, with(&|r| r.volume_capabilities.push(typed(fat.clone())))),
        ("least that serves", Code::OutOfRange, with(&|r| r.capacity_range = range(1, 4096))),
        ("does not exist", Code::NotFound, from_snapshot(UNKNOWN, create("fine", 0))),
        ("does not exist", Code::NotFound, from_volume(UNKNOWN, create("fine", 0))),
        ("snapshot_id", Code::InvalidArgument, from_snapshot("", create("fine", 0))),
    ] {
        assert_eq!(refused(driver.create(request).await, about), code, "{about}");
    }
    assert!(driver.volumes().await.is_empty());
    let btrfs = AccessType::Mount(MountVolume { fs_type: "btrfs".into(), ..Default::default() });
    let fine = with(&|r| r.volume_capabilities = vec![typed(btrfs.clone())]);
    let id = driver.create(fine).await.unwrap().volume_id;
    for (about, code, volume, bytes) in [
        ("volume_id", Code::InvalidArgument, "", MIB),
        ("capacity_range", Code::InvalidArgument, &id, 0),
        ("does not exist", Code::NotFound, UNKNOWN, MIB),
        ("in all", Code::OutOfRange, &id, i64::MAX),
    ] {
        assert_eq!(refused(driver.expand(volume, bytes).await, about), code, "{about}");
    }
    for (about, code, volume, path) in [
        ("volume_id", Code::InvalidArgument, "", "/a"),
        ("volume_path", Code::InvalidArgument, &id, ""),
        ("does not exist", Code::NotFound, UNKNOWN, "/a"),
        ("not published", Code::NotFound, &id, "/proc"),
        ("not published", Code::NotFound, &id, "/no/such"),
    ] {
        assert_eq!(refused(driver.stats(volume, Path::new(path)).await, about), code, "{about}");
    }
    let other = driver.create(create("other", 0)).await.unwrap().volume_id;
    let snapshot = driver.snapshot(&id, "snap").await.unwrap().snapshot_id;
    assert_eq!(refused(driver.snapshot(&other, "snap").await, "another source"), Code::AlreadyExists);
    assert_eq!(refused(driver.snapshot(UNKNOWN, "x").await, "does not exist"), Code::NotFound);
    assert_eq!(refused(driver.snapshot(&id, "").await, "name"), Code::InvalidArgument);
    assert_eq!(refused(driver.delete_snapshot("").await, "snapshot_id"), Code::InvalidArgument);
    let mut small = from_snapshot(&snapshot, create("small", 0));
    small.capacity_range = range(0, 2 * MIB);
    assert_eq!(refused(driver.create(small).await, "made from"), Code::OutOfRange);
    driver.delete_snapshot(&snapshot).await.unwrap();
    for id in [id, other] {
        driver.delete(&id).await.unwrap();
    }
    driver.stop().await;
    backend.assert_nothing_left();
}
