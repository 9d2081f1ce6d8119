//! Volumes that are there while they are published.
use std::fs;

use tonic::Code;
use wharfline::csi::proto;
use wharfline::csi::proto::volume_capability::access_mode::Mode as Access;

use crate::rig::{Rig, mounts_below, publish, publish_as, refused};

const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// A request for one, with attributes.
fn asked(
    handle: &str,
    target: &std::path::Path,
    attributes: &[(&str, &str)],
) -> proto::NodePublishVolumeRequest {
    let mut request = publish(handle, target);
    request.volume_context.insert(EPHEMERAL.into(), "true".into());
    // Others are told more than the driver wants to know.
    request.volume_context.insert("csi.storage.k8s.io/pod.name".into(), "app".into());
    request.volume_context.extend(attributes.iter().map(|(key, value)| ((*key).into(), (*value).into())));
    request
}

fn homes(rig: &Rig) -> usize {
    fs::read_dir(rig.path("D/ephemeral")).unwrap().count()
}

#[tokio::test]
async fn it_is_made_by_its_publication_and_gone_with_it() {
    let mut rig = Rig::new();
    let target = rig.target("tmp");
    let request = || asked("csi-1", &target, &[("size", "1Mi")]);
    rig.publish(request()).await.unwrap();
    fs::write(target.join("file"), "kept while it lasts").unwrap();
    // The same again, also of a driver that was started anew, is the same volume.
    rig.restart().await;
    rig.publish(request()).await.unwrap();
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "kept while it lasts");
    let stats = proto::NodeGetVolumeStatsRequest {
        volume_id: "csi-1".into(),
        volume_path: target.display().to_string(),
        staging_target_path: String::new(),
    };
    let stats = rig.instance().node().node_get_volume_stats(stats).await.unwrap().into_inner();
    assert!(stats.usage[0].total > 0);
    // It is none of the controller's.
    let list = rig.instance().controller().list_volumes(proto::ListVolumesRequest::default()).await.unwrap();
    assert!(list.into_inner().entries.is_empty());
    // Other attributes are another volume.
    for other in [&[("size", "2Mi")][..], &[]] {
        assert_eq!(refused(rig.publish(asked("csi-1", &target, other)).await, "csi-1"), Code::AlreadyExists);
    }
    rig.unpublish("csi-1", &target).await.unwrap();
    assert!(!target.exists());
    assert_eq!(homes(&rig), 0, "its data went with it");
    rig.unpublish("csi-1", &target).await.unwrap();
    // The next one of that name begins empty.
    rig.publish(request()).await.unwrap();
    assert!(!target.join("file").exists());
    rig.unpublish("csi-1", &target).await.unwrap();
    rig.finish().await;
}

#[tokio::test]
async fn the_last_of_two_targets_ends_it() {
    let rig = Rig::new();
    let (one, two) = (rig.target("one"), rig.target("two"));
    let at = |target: &std::path::Path| {
        let mut request = asked("csi-1", target, &[]);
        let shared = publish_as("csi-1", target, Access::SingleNodeMultiWriter);
        request.volume_capability = shared.volume_capability;
        request
    };
    rig.publish(at(&one)).await.unwrap();
    rig.publish(at(&two)).await.unwrap();
    fs::write(one.join("file"), "seen by both").unwrap();
    rig.unpublish("csi-1", &one).await.unwrap();
    assert_eq!(fs::read_to_string(two.join("file")).unwrap(), "seen by both");
    rig.unpublish("csi-1", &two).await.unwrap();
    assert_eq!(homes(&rig), 0);
    rig.finish().await;
}

#[tokio::test]
async fn what_cannot_be_is_refused_and_nothing_is_left() {
    let rig = Rig::new();
    let target = rig.target("tmp");
    for (attributes, needle, code) in [
        (&[("size", "much")][..], "\"much\" is no number of bytes", Code::InvalidArgument),
        (&[("tier", "gold")], "\"tier\" is not known", Code::InvalidArgument),
        (&[("size", "1000000Ti")], "are asked for", Code::ResourceExhausted),
    ] {
        let result = rig.publish(asked("csi-1", &target, attributes)).await;
        assert_eq!(refused(result, needle), code, "{attributes:?}");
        assert_eq!(homes(&rig), 0);
    }
    let like_a_volume = asked("0123456789abcdef0123", &target, &[]);
    assert_eq!(refused(rig.publish(like_a_volume).await, "volume_id"), Code::InvalidArgument);
    // Without that word it is the id of a volume that nobody created.
    let result = rig.publish(publish("csi-1", &target)).await;
    assert_eq!(refused(result, "csi-1"), Code::NotFound);
    assert!(!target.exists());
    // A target that cannot be: what was made for it goes with the unpublish that follows.
    fs::write(&target, "in the way").unwrap();
    let result = rig.publish(asked("csi-1", &target, &[])).await;
    assert_eq!(refused(result, "no directory"), Code::FailedPrecondition);
    rig.unpublish("csi-1", &target).await.unwrap();
    assert_eq!(homes(&rig), 0);
    fs::remove_file(&target).unwrap();
    assert!(mounts_below(&rig.path("targets")).is_empty());
    rig.finish().await;
}

#[tokio::test]
async fn what_is_promised_to_it_is_promised_to_nobody_else() {
    let rig = Rig::new();
    let room = || async {
        let asked = proto::GetCapacityRequest::default();
        rig.instance().controller().get_capacity(asked).await.unwrap().into_inner().available_capacity
    };
    let before = room().await;
    let target = rig.target("tmp");
    let half = (before / 2 / (1 << 20)).to_string() + "Mi";
    rig.publish(asked("csi-1", &target, &[("size", &half)])).await.unwrap();
    // Others use the disk, too.
    assert!(room().await < before * 3 / 4, "{before}");
    rig.unpublish("csi-1", &target).await.unwrap();
    assert!(room().await > before * 3 / 4);
    rig.finish().await;
}

#[tokio::test]
async fn what_cannot_be_removed_now_is_taken_off_and_asked_for_again() {
    let rig = Rig::new();
    let target = rig.target("tmp");
    rig.publish(asked("csi-1", &target, &[])).await.unwrap();
    let away = rig.path("away");
    fs::rename(rig.data_dir(), &away).unwrap();
    assert_eq!(refused(rig.unpublish("csi-1", &target).await, "is gone"), Code::FailedPrecondition);
    assert!(!target.exists(), "nobody uses it any more");
    fs::rename(&away, rig.data_dir()).unwrap();
    rig.unpublish("csi-1", &target).await.unwrap();
    assert_eq!(homes(&rig), 0);
    rig.finish().await;
}
