//! Making, sizing, listing and counting volumes.
use tonic::Code;
use wharfline::csi::proto;

use crate::rig::{self, Access, Backend, How, MIB, XFS, block, ext4, mount, refused};

fn sized(name: &str, required_bytes: i64, limit_bytes: i64, fs_type: &str) -> proto::CreateVolumeRequest {
    let capacity_range = Some(proto::CapacityRange { required_bytes, limit_bytes });
    let capability = mount(Access::SingleNodeWriter, fs_type, &[]);
    proto::CreateVolumeRequest { capacity_range, ..rig::create(name, 0, &capability) }
}

#[tokio::test]
async fn a_size_is_what_the_file_system_needs_and_the_range_allows() {
    let backend = Backend::new();
    let driver = backend.all();
    for (name, request, bytes) in [
        ("usual", rig::create("usual", 0, &ext4()), 1024 * MIB),
        ("limited", sized("limited", 0, 32 * MIB, "ext4"), 32 * MIB),
        ("tiny", sized("tiny", 1, 0, "ext4"), 4 * MIB),
        ("raw", rig::create("raw", 1, &block(Access::SingleNodeWriter)), 4 * MIB),
        ("xfs", sized("xfs", 1, 0, "xfs"), XFS),
        ("exact", sized("exact", 5 * MIB, 5 * MIB, ""), 5 * MIB),
        ("rounded", sized("rounded", 5 * MIB + 1, 0, ""), 5 * MIB + 4096),
    ] {
        let made = driver.create(request.clone()).await.unwrap();
        assert_eq!((made.capacity_bytes, &made.accessible_topology), (bytes, &vec![]), "{name}");
        assert_eq!(driver.create(request).await.unwrap(), made, "{name}");
        driver.delete(&made.volume_id).await.unwrap();
    }
    for (about, request) in [
        ("limit_bytes", sized("v", 2 * MIB, MIB, "")),
        ("the least that serves", sized("v", 0, 4 * MIB - 1, "ext4")),
        ("the least that serves", sized("v", 0, XFS - 1, "xfs")),
        ("the least that serves", sized("v", MIB, XFS - 1, "xfs")),
        ("the least that serves", sized("v", 5 * MIB + 1, 5 * MIB + 1, "")),
        ("in all", sized("v", i64::MAX, 0, "")),
    ] {
        assert_eq!(refused(driver.create(request).await, about), Code::OutOfRange, "{about}");
    }
    // Also when the small one is only one of several.
    let mut several = sized("v", 0, XFS - 1, "ext4");
    several.volume_capabilities.push(mount(Access::SingleNodeWriter, "xfs", &[]));
    assert_eq!(refused(driver.create(several).await, "the least"), Code::OutOfRange);
    driver.stop().await;
    backend.assert_nothing_left();
}

#[tokio::test]
async fn the_same_name_is_the_same_volume_or_a_conflict() {
    let backend = Backend::new();
    let mut driver = backend.all();
    let made = driver.create(sized("web", 8 * MIB, 16 * MIB, "ext4")).await.unwrap();
    for _ in 0..2 {
        for same in [
            sized("web", 8 * MIB, 16 * MIB, "ext4"),
            sized("web", MIB, 0, ""),
            rig::create("web", 0, &block(Access::MultiNodeMultiWriter)),
        ] {
            assert_eq!(driver.create(same).await.unwrap(), made);
        }
        for conflict in
            [sized("web", 9 * MIB, 0, "ext4"), sized("web", 0, 7 * MIB, "ext4"), sized("web", MIB, 0, "xfs")]
        {
            assert_eq!(refused(driver.create(conflict).await, "capacity"), Code::AlreadyExists);
        }
        driver.kill();
        driver = backend.all();
    }
    // Too small for what it is asked for later.
    let xfs = mount(Access::SingleNodeWriter, "xfs", &[]);
    let attach = driver.attach(&made.volume_id, "node-a", &xfs).await;
    assert_eq!(refused(attach, "xfs needs"), Code::FailedPrecondition);
    driver.delete(&made.volume_id).await.unwrap();
    driver.stop().await;
    backend.assert_nothing_left();
}

/// A file system of a known size, so that nothing else on this machine moves the numbers.
#[tokio::test]
async fn what_is_written_is_not_promised_twice() {
    let backend = Backend::new();
    let at = backend.path("small");
    std::fs::create_dir(&at).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &at, "tmpfs", flags, Some(c"size=64m")).unwrap();
    let how = How { data: Some(at.join("D")), ..Default::default() };
    let driver = backend.start("node-a", how);
    let available = async |capabilities: Vec<proto::VolumeCapability>| {
        let request = proto::GetCapacityRequest { volume_capabilities: capabilities, ..Default::default() };
        driver.controller().get_capacity(request).await.unwrap().into_inner()
    };
    let before = available(vec![]).await.available_capacity;
    assert!((60 * MIB..=64 * MIB).contains(&before), "{before}");
    let id = driver.volume("a", 40 * MIB, &ext4()).await;
    let after = available(vec![]).await.available_capacity;
    assert!((before - 41 * MIB..=before - 40 * MIB).contains(&after), "{before} {after}");
    let image = at.join("D/volumes").join(&id).join("image");
    let file = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 30 << 20], 0).unwrap();
    drop(file);
    let written = available(vec![]).await.available_capacity;
    assert!((after - MIB..=after).contains(&written), "{after} {written}");
    let another = driver.create(rig::create("b", 40 * MIB, &ext4())).await;
    assert_eq!(refused(another, "promised"), Code::ResourceExhausted);
    let xfs = available(vec![mount(Access::SingleNodeWriter, "xfs", &[])]).await;
    assert_eq!(xfs.minimum_volume_size, Some(XFS));
    let impossible = available(vec![mount(Access::MultiNodeMultiWriter, "ext4", &[])]).await;
    assert_eq!((impossible.available_capacity, impossible.maximum_volume_size), (0, Some(0)));
    driver.delete(&id).await.unwrap();
    assert!(available(vec![]).await.available_capacity > 59 * MIB);
    driver.stop().await;
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).unwrap();
}

#[tokio::test]
async fn pages() {
    let backend = Backend::new();
    let driver = backend.all();
    let mut ids = Vec::new();
    for number in 0..5 {
        ids.push(driver.volume(&format!("v{number}"), 4 * MIB, &ext4()).await);
    }
    ids.sort();
    driver.attach(&ids[1], "node-a", &ext4()).await.unwrap();
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let request = proto::ListVolumesRequest { max_entries: 2, starting_token: token };
        let answer = driver.controller().list_volumes(request).await.unwrap().into_inner();
        for entry in answer.entries {
            let (id, nodes) = (entry.volume.unwrap().volume_id, entry.status.unwrap().published_node_ids);
            assert_eq!(nodes, if id == ids[1] { vec!["node-a"] } else { vec![] });
            seen.push(id);
        }
        pages += 1;
        token = answer.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!((pages, &seen), (3, &ids));
    let get = async |id: &str| {
        let request = proto::ControllerGetVolumeRequest { volume_id: id.to_owned() };
        driver.controller().controller_get_volume(request).await.map(tonic::Response::into_inner)
    };
    let one = get(&ids[1]).await.unwrap();
    assert_eq!(one.volume.unwrap().volume_id, ids[1]);
    assert_eq!(one.status.unwrap().published_node_ids, ["node-a"]);
    assert_eq!(get(&ids[0]).await.unwrap().status.unwrap().published_node_ids, [] as [String; 0]);
    assert_eq!(refused(get("0123456789abcdef0123").await, "does not exist"), Code::NotFound);
    assert_eq!(refused(get("").await, "volume_id"), Code::InvalidArgument);
    for (token, max_entries, code) in [("nonsense", 0, Code::Aborted), ("", -1, Code::InvalidArgument)] {
        let request = proto::ListVolumesRequest { max_entries, starting_token: token.into() };
        assert_eq!(driver.controller().list_volumes(request).await.unwrap_err().code(), code);
    }
    driver.detach(&ids[1], "node-a").await.unwrap();
    for id in ids {
        driver.delete(&id).await.unwrap();
    }
    driver.stop().await;
    backend.assert_nothing_left();
}
