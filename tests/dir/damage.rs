//! What is found after a crash, a reboot, or somebody's hand: it converges, or says plainly what is missing.
use std::fs;

use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tonic::Code;
use wharfline::csi::proto;

use crate::rig::{self, Rig, mount_line, mounts_below, publish, refused};

#[tokio::test]
async fn after_a_reboot_the_same_request_mounts_again() {
    let mut rig = Rig::new();
    let id = rig.volume("web").await;
    let (target, other) = (rig.target("web"), rig.target("other"));
    rig.publish(publish(&id, &target)).await.unwrap();
    // What a reboot leaves: the record and the bare directory.
    unmount(&target, UnmountFlags::empty()).unwrap();
    rig.restart().await;
    rig.publish(publish(&id, &target)).await.unwrap();
    assert_eq!(mounts_below(&target), std::slice::from_ref(&target));
    unmount(&target, UnmountFlags::empty()).unwrap();
    // A mount that is no more does not keep the volume from another target, nor from being deleted.
    rig.publish(publish(&id, &other)).await.unwrap();
    rig.unpublish(&id, &other).await.unwrap();
    rig.unpublish(&id, &target).await.unwrap();
    assert!(!target.exists());
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn a_publication_cut_short_is_finished_or_undone() {
    for finish in [true, false] {
        let mut rig = Rig::new();
        let id = rig.volume("web").await;
        let target = rig.target("web");
        rig.publish(publish(&id, &target)).await.unwrap();
        let record = rig.data_dir().join("volumes").join(&id).join("volume.json");
        let intent = fs::read(&record).unwrap();
        rig.unpublish(&id, &target).await.unwrap();
        // Killed after the intent was written and the directory made, before the mount.
        fs::write(&record, &intent).unwrap();
        fs::create_dir(&target).unwrap();
        rig.restart().await;
        if finish {
            rig.publish(publish(&id, &target)).await.unwrap();
            assert_eq!(mounts_below(&target), std::slice::from_ref(&target));
        }
        rig.unpublish(&id, &target).await.unwrap();
        assert!(!target.exists());
        rig.delete(&id).await.unwrap();
        rig.finish().await;
    }
}

#[tokio::test]
async fn a_mount_without_a_record_of_it_is_recognised() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let target = rig.target("web");
    fs::create_dir(&target).unwrap();
    mount_bind(rig.data(&id), &target).unwrap();
    let mounted = mount_line(&target);
    assert_eq!(refused(rig.delete(&id).await, "mounted at"), Code::FailedPrecondition);
    rig.publish(publish(&id, &target)).await.unwrap();
    assert_eq!(mount_line(&target), mounted);
    let elsewhere = rig.publish(publish(&id, &rig.target("other"))).await;
    assert_eq!(refused(elsewhere, "targets/web"), Code::FailedPrecondition, "it was not remembered");
    // Twice on top of itself: all of it is taken off.
    mount_bind(rig.data(&id), &target).unwrap();
    rig.unpublish(&id, &target).await.unwrap();
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn something_mounted_inside_a_volume_is_not_deleted_through() {
    let rig = Rig::new();
    let id = rig.volume("web").await;
    let outside = rig.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "data").unwrap();
    let inner = rig.data(&id).join("inner");
    fs::create_dir(&inner).unwrap();
    mount_bind(&outside, &inner).unwrap();
    assert_eq!(refused(rig.delete(&id).await, "inner"), Code::FailedPrecondition);
    assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "data");
    unmount(&inner, UnmountFlags::empty()).unwrap();
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn data_that_is_gone_is_named_and_teardown_still_works() {
    let rig = Rig::new();
    let (id, target) = (rig.volume("web").await, rig.target("web"));
    rig.publish(publish(&id, &target)).await.unwrap();
    fs::remove_dir(rig.data(&id)).unwrap();
    let again = rig.publish(publish(&id, &target)).await;
    assert_eq!(refused(again, "data is gone"), Code::FailedPrecondition);
    assert_eq!(refused(rig.delete(&id).await, "mounted at"), Code::FailedPrecondition);
    rig.unpublish(&id, &target).await.unwrap();
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn a_data_directory_that_is_gone_is_named() {
    let rig = Rig::new();
    let (id, target) = (rig.volume("web").await, rig.target("web"));
    rig.publish(publish(&id, &target)).await.unwrap();
    let away = rig.path("away");
    fs::rename(rig.data_dir(), &away).unwrap();
    let mut controller = rig.instance().controller();
    let gone = [
        refused(rig.create(rig::create("other")).await, "is gone"),
        refused(rig.delete(&id).await, "is gone"),
        refused(rig.publish(publish(&id, &rig.target("other"))).await, "is gone"),
        refused(controller.list_volumes(proto::ListVolumesRequest::default()).await, "is gone"),
        refused(controller.get_capacity(proto::GetCapacityRequest::default()).await, "is gone"),
        refused(rig.instance().identity().probe(proto::ProbeRequest {}).await, "is gone"),
    ];
    assert_eq!(gone, [Code::FailedPrecondition; 6]);
    assert!(!rig.data_dir().exists(), "it was made anew, and data would go beside the disk");
    rig.unpublish(&id, &target).await.unwrap();
    assert!(!target.exists());
    fs::rename(&away, rig.data_dir()).unwrap();
    assert_eq!(rig.ids().await, [id.as_str()]);
    rig.unpublish(&id, &target).await.unwrap();
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn one_call_at_a_time_on_a_volume() {
    let rig = Rig::new();
    let (id, other) = (rig.volume("web").await, rig.volume("other").await);
    let target = rig.target("web");
    let held = fs::File::open(rig.data_dir().join("volumes").join(&id)).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    assert_eq!(refused(rig.publish(publish(&id, &target)).await, "at work"), Code::Aborted);
    assert_eq!(refused(rig.unpublish(&id, &target).await, "at work"), Code::Aborted);
    assert_eq!(refused(rig.delete(&id).await, "at work"), Code::Aborted);
    assert_eq!(rig.volume("web").await, id, "asking for it needs no lock");
    rig.delete(&other).await.unwrap();
    drop(held);
    rig.publish(publish(&id, &target)).await.unwrap();
    rig.unpublish(&id, &target).await.unwrap();
    rig.delete(&id).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn deletions_and_creations_cut_short_are_finished() {
    let mut rig = Rig::new();
    let volumes = rig.data_dir().join("volumes");
    let trash = rig.data_dir().join("trash");
    let (deleted, drafted, repeated) =
        (rig.volume("deleted").await, rig.volume("drafted").await, rig.volume("repeated").await);
    for id in [&deleted, &repeated] {
        fs::create_dir_all(rig.data(id).join("a/b")).unwrap();
        fs::write(rig.data(id).join("a/b/file"), "x").unwrap();
        fs::rename(volumes.join(id), trash.join(id)).unwrap();
    }
    fs::rename(volumes.join(&drafted), trash.join(format!("{drafted}.new"))).unwrap();
    fs::create_dir(trash.join("not-ours")).unwrap();
    // The caller repeats one of them, and asks for another anew, before any restart.
    rig.delete(&repeated).await.unwrap();
    assert!(!trash.join(&repeated).exists());
    assert_eq!(rig.volume("drafted").await, drafted);
    assert!(!trash.join(format!("{drafted}.new")).exists());
    assert_eq!(rig.ids().await, [drafted.as_str()]);
    rig.restart().await;
    assert_eq!(rig::entries(&trash), ["not-ours"]);
    fs::remove_dir(trash.join("not-ours")).unwrap();
    rig.delete(&drafted).await.unwrap();
    rig.finish().await;
}
