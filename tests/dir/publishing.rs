//! Targets: what may be published where, and that it is really so.
use std::fs;
use std::path::Path;

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use tonic::Code;
use wharfline::csi::proto;
use wharfline::csi::proto::volume_capability::access_mode::Mode as Access;

use crate::rig::{Rig, mount_line, mounts_below, publish, publish_as, refused, with_flags};

const EROFS: Option<i32> = Some(30);

#[tokio::test]
async fn one_target_and_other_arguments() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let target = rig.target("web");
    rig.publish(publish(&id, &target)).await.unwrap();
    let mounted = mount_line(&target);
    rig.publish(publish(&id, &target)).await.unwrap();
    let mut slashes = publish(&id, &target);
    slashes.target_path = format!("{}/", slashes.target_path.replace("/targets/", "//targets/./"));
    rig.publish(slashes).await.unwrap();
    let mut read_only = publish(&id, &target);
    read_only.readonly = true;
    let mut flags = publish(&id, &target);
    flags.volume_capability = Some(with_flags(Access::SingleNodeWriter, &["noexec"]));
    for other in [read_only, flags, publish_as(&id, &target, Access::SingleNodeMultiWriter)] {
        assert_eq!(refused(rig.publish(other).await, "another"), Code::AlreadyExists);
    }
    assert_eq!(mount_line(&target), mounted);
    // The contract compares neither secrets nor contexts with what this driver keeps.
    let mut secrets = publish(&id, &target);
    secrets.secrets.insert("password".into(), "canary".into());
    rig.publish(secrets).await.unwrap();
    rig.unpublish(&id, &target).await.unwrap();
    // Once it is gone, the other arguments are as good as any.
    rig.publish(publish_as(&id, &target, Access::SingleNodeMultiWriter)).await.unwrap();
    rig.unpublish(&id, &target).await.unwrap();
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn a_second_target() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let (one, two) = (rig.target("one"), rig.target("two"));
    for mode in [Access::SingleNodeWriter, Access::SingleNodeReaderOnly, Access::SingleNodeSingleWriter] {
        rig.publish(publish_as(&id, &one, mode)).await.unwrap();
        for second in [mode, Access::SingleNodeMultiWriter] {
            let result = rig.publish(publish_as(&id, &two, second)).await;
            assert_eq!(refused(result, "targets/one"), Code::FailedPrecondition, "{mode:?} {second:?}");
            assert!(!two.exists());
        }
        rig.unpublish(&id, &one).await.unwrap();
        rig.publish(publish_as(&id, &two, mode)).await.unwrap();
        rig.unpublish(&id, &two).await.unwrap();
    }
    for target in [&one, &two] {
        rig.publish(publish_as(&id, target, Access::SingleNodeMultiWriter)).await.unwrap();
    }
    assert_eq!(mounts_below(&rig.path("targets")).len(), 2);
    let single = publish_as(&id, &rig.target("three"), Access::SingleNodeSingleWriter);
    assert_eq!(refused(rig.publish(single).await, "published at"), Code::FailedPrecondition);
    for target in [&one, &two] {
        rig.unpublish(&id, target).await.unwrap();
    }
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn read_only_is_enforced() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    fs::write(rig.data(&id).join("file"), "kept").unwrap();
    let target = rig.target("web");
    let flagged = |flags: &[&str]| proto::NodePublishVolumeRequest {
        volume_capability: Some(with_flags(Access::SingleNodeWriter, flags)),
        ..publish(&id, &target)
    };
    let ways = [
        proto::NodePublishVolumeRequest { readonly: true, ..publish(&id, &target) },
        publish_as(&id, &target, Access::SingleNodeReaderOnly),
        flagged(&["ro"]),
    ];
    for way in ways {
        rig.publish(way.clone()).await.unwrap();
        assert_eq!(fs::write(target.join("file"), "x").unwrap_err().raw_os_error(), EROFS);
        assert_eq!(fs::create_dir(target.join("new")).unwrap_err().raw_os_error(), EROFS);
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "kept");
        rig.publish(way).await.unwrap();
        fs::write(rig.data(&id).join("file"), "kept").unwrap(); // the volume itself is not read-only
        rig.unpublish(&id, &target).await.unwrap();
    }
    rig.publish(flagged(&["nosuid", "nodev", "noexec", "noatime"])).await.unwrap();
    let line = mount_line(&target);
    let options = line.split(' ').nth(5).unwrap().split(',').collect::<Vec<_>>();
    assert!(["rw", "nosuid", "nodev", "noexec", "noatime"].iter().all(|one| options.contains(one)), "{line}");
    fs::write(target.join("file"), "written").unwrap();
    rig.unpublish(&id, &target).await.unwrap();
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn what_is_mounted_inside_stays_inside() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let target = rig.target("web");
    let shared = rig.path("targets");
    mount_bind(&shared, &shared).unwrap();
    mount_change(&shared, MountPropagationFlags::SHARED).unwrap();
    let data_dir = rig.data_dir();
    mount_bind(&data_dir, &data_dir).unwrap();
    mount_change(&data_dir, MountPropagationFlags::SHARED).unwrap();
    rig.publish(publish(&id, &target)).await.unwrap();
    fs::create_dir(target.join("inner")).unwrap();
    mount_bind(target.join("inner"), target.join("inner")).unwrap();
    let own = std::slice::from_ref(&data_dir);
    assert_eq!(mounts_below(&data_dir), own, "it came back into the data directory");
    unmount(target.join("inner"), UnmountFlags::empty()).unwrap();
    rig.unpublish(&id, &target).await.unwrap();
    rig.delete(&id).await.unwrap();
    for own in [shared, data_dir] {
        unmount(own, UnmountFlags::empty()).unwrap();
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_target_in_use_is_not_pulled_away() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let target = rig.target("web");
    rig.publish(publish(&id, &target)).await.unwrap();
    let open = fs::File::create(target.join("open")).unwrap();
    assert_eq!(refused(rig.unpublish(&id, &target).await, "busy"), Code::FailedPrecondition);
    assert_eq!(mounts_below(&target), std::slice::from_ref(&target));
    drop(open);
    rig.unpublish(&id, &target).await.unwrap();
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

/// What else may be at a target: the caller is told, and nothing of it is touched.
#[tokio::test]
async fn a_target_that_is_something_else() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let at = |name: &str| rig.target(name);
    fs::write(at("file"), "precious").unwrap();
    fs::create_dir(at("full")).unwrap();
    fs::write(at("full").join("file"), "precious").unwrap();
    std::os::unix::fs::symlink(at("full"), at("link")).unwrap();
    fs::create_dir(at("mounted")).unwrap();
    mount_bind(at("full"), at("mounted")).unwrap();
    for (name, about) in
        [("file", "no directory"), ("link", "no directory"), ("full", "files"), ("mounted", "mounted")]
    {
        let result = rig.publish(publish(&id, &at(name))).await;
        assert_eq!(refused(result, about), Code::FailedPrecondition, "{name}");
    }
    for name in ["file", "link", "full"] {
        rig.unpublish(&id, &at(name)).await.unwrap();
    }
    assert_eq!(refused(rig.unpublish(&id, &at("mounted")).await, "else"), Code::FailedPrecondition);
    for unknown in ["0123456789abcdef0123", "reallyfakevolumeid"] {
        assert_eq!(refused(rig.unpublish(unknown, &at("mounted")).await, "exist"), Code::NotFound);
    }
    assert_eq!(mounts_below(&rig.path("targets")), [at("mounted")]);
    for file in [at("file"), at("full").join("file"), at("link").join("file"), at("mounted").join("file")] {
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious", "{}", file.display());
    }
    unmount(at("mounted"), UnmountFlags::empty()).unwrap();
    rig.delete(&id).await.unwrap();
    clear(&rig.path("targets"));
    rig.finish().await;
}

fn clear(dir: &Path) {
    fs::remove_dir_all(dir).unwrap();
    fs::create_dir(dir).unwrap();
}

/// As when its data directory is on another file system by now: the former mount is nothing that anybody could use.
#[tokio::test]
async fn what_was_mounted_from_a_former_directory_makes_way() {
    let rig = Rig::new();
    let id = rig.volume("a").await;
    let target = rig.target("one");
    for again in [false, true] {
        rig.publish(publish(&id, &target)).await.unwrap();
        fs::remove_dir_all(rig.data(&id)).unwrap();
        fs::create_dir(rig.data(&id)).unwrap();
        fs::write(rig.data(&id).join("new"), "").unwrap();
        if again {
            rig.publish(publish(&id, &target)).await.unwrap();
            assert!(target.join("new").exists());
            assert_eq!(mounts_below(&target), vec![target.clone()], "once");
        }
        rig.unpublish(&id, &target).await.unwrap();
        assert!(!target.exists());
    }
    // Nothing in it is its directory, whoever mounted that there.
    fs::create_dir(&target).unwrap();
    fs::create_dir(rig.data(&id).join("sub")).unwrap();
    mount_bind(rig.data(&id).join("sub"), &target).unwrap();
    assert_eq!(refused(rig.unpublish(&id, &target).await, "something else"), Code::FailedPrecondition);
    unmount(&target, UnmountFlags::empty()).unwrap();
    rig.unpublish(&id, &target).await.unwrap();
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn an_empty_directory_at_the_target_will_do() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let target = rig.target("web");
    fs::create_dir(&target).unwrap();
    rig.publish(publish(&id, &target)).await.unwrap();
    fs::write(target.join("file"), "x").unwrap();
    rig.unpublish(&id, &target).await.unwrap();
    assert!(!target.exists());
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

/// A plugin in a mount namespace of its own is seen elsewhere through a shared parent; a peer stands for that here.
#[tokio::test]
async fn read_only_holds_wherever_the_mount_is_shared_to() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let target = rig.target("web");
    let (shared, peer) = (rig.path("targets"), rig.path("peer"));
    fs::create_dir(&peer).unwrap();
    mount_bind(&shared, &shared).unwrap();
    mount_change(&shared, MountPropagationFlags::SHARED).unwrap();
    mount_bind(&shared, &peer).unwrap();
    rig.publish(proto::NodePublishVolumeRequest { readonly: true, ..publish(&id, &target) }).await.unwrap();
    for seen in [&target, &peer.join("web")] {
        let error = fs::write(seen.join("file"), "x").unwrap_err();
        assert_eq!(error.raw_os_error(), EROFS, "{}", seen.display());
    }
    rig.unpublish(&id, &target).await.unwrap();
    assert_eq!(mounts_below(&rig.path("peer")), [peer.as_path()]);
    for own in [peer, shared] {
        unmount(own, UnmountFlags::empty()).unwrap();
    }
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}
