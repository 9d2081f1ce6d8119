//! Snapshots of several volumes at one moment.
use wharfline::csi::{Advice, check};

use super::*;

/// Part of obligations CO-GRP-02, CO-GRP-03, CO-GRP-04, CO-GRP-06, CO-GRP-10, CO-GRP-11, CO-CTRL-95, CO-CTRL-96.
#[tokio::test]
async fn a_group_is_taken_looked_at_and_deleted() {
    let bench = Bench::with(Config::everything(), Alpha::Off);
    bench.backend.configure(|config| config.ready_after = 1);
    for volume in ["v", "w"] {
        bench.backend.add_volume(volume, BTreeMap::new());
    }
    let request = group(&["v", "w"], "g");
    // Taken, but nobody heard of it: the same again finds it.
    bench.backend.next(Rpc::CreateVolumeGroupSnapshot, Answer::cut().after_effect());
    let failure = bench.plugin.create_volume_group_snapshot(request.clone(), LONG).await.unwrap_err();
    assert!(failure.is_uncertain() && bench.plugin.owes_group_snapshot("g"), "{failure}");
    assert!(bench.plugin.owes("v") && bench.plugin.owes("w"));
    let taken = bench.plugin.create_volume_group_snapshot(request.clone(), LONG).await.unwrap();
    assert!(!bench.plugin.owes_group_snapshot("g") && !bench.plugin.owes("w"));
    assert_eq!(check::group_taken(&request, &taken), Ok(()));
    assert!(check::group_is_ready(&taken), "{taken:?}");
    assert_eq!(bench.backend.snapshots().len(), 2);
    let members = taken.snapshots.iter().map(|member| member.snapshot_id.as_str()).collect::<Vec<_>>();

    // A member goes with its group alone.
    bench.backend.next(Rpc::DeleteSnapshot, Answer::fail(Code::InvalidArgument, "part of a group"));
    let failure = bench.plugin.delete_snapshot(delete_snapshot(members[0]), LONG).await.unwrap_err();
    assert_eq!(failure.advice(), Advice::DeleteGroup);

    let id = &taken.group_snapshot_id;
    // Members that are not the group's: they are asked for, then deleted.
    let wrong = Answer::fail(Code::InvalidArgument, "other members");
    bench.backend.next(Rpc::DeleteVolumeGroupSnapshot, wrong);
    let failure = bench.plugin.delete_volume_group_snapshot(delete_group(id, &members[..1]), LONG).await;
    assert_eq!(failure.unwrap_err().advice(), Advice::CorrectMembers);
    let seen = bench.plugin.get_volume_group_snapshot(get_group(id, &members), LONG).await.unwrap();
    assert_eq!(seen, taken);
    for lost in [true, false] {
        if lost {
            bench.backend.next(Rpc::DeleteVolumeGroupSnapshot, Answer::cut().after_effect());
        }
        let deleted = bench.plugin.delete_volume_group_snapshot(delete_group(id, &members), LONG).await;
        assert_eq!(deleted.is_err(), lost);
    }
    let failure = bench.plugin.get_volume_group_snapshot(get_group(id, &members), LONG).await.unwrap_err();
    assert!(failure.is_not_found() && failure.advice() == Advice::Verify);
    bench.backend.assert_clean();
}

#[tokio::test]
async fn an_ok_without_a_usable_group_is_doubt() {
    let bench = Bench::with(Config::everything(), Alpha::Off);
    let member = |id: &str, group: &str| proto::Snapshot {
        snapshot_id: id.into(),
        group_snapshot_id: group.into(),
        ..Default::default()
    };
    let of = |id: &str, snapshots| {
        Some(proto::VolumeGroupSnapshot { group_snapshot_id: id.into(), snapshots, ..Default::default() })
    };
    for (group_snapshot, told) in [
        (None, "holds no group snapshot"),
        (of("", vec![member("a", "")]), "has no id"),
        (of("g", vec![]), "there are none"),
        (of("g", vec![member("a", "")]), "not said to be of this group"),
        (of("g", vec![member("a", "g"), member("a", "g")]), "one is there twice"),
    ] {
        let answer = Answer::reply(&proto::CreateVolumeGroupSnapshotResponse {
            group_snapshot: group_snapshot.clone(),
        });
        let failure = failing(&bench, Rpc::CreateVolumeGroupSnapshot, answer, LONG).await;
        assert!(
            failure.is_uncertain() && failure.breach.is_some() && failure.message.contains(told),
            "{failure}"
        );
        let answer = Answer::reply(&proto::GetVolumeGroupSnapshotResponse { group_snapshot });
        let failure = failing(&bench, Rpc::GetVolumeGroupSnapshot, answer, LONG).await;
        assert!(failure.message.contains(told), "{failure}");
    }
    let other = of("another", vec![member("a", "another")]);
    let answer = Answer::reply(&proto::GetVolumeGroupSnapshotResponse { group_snapshot: other });
    assert_eq!(
        failing(&bench, Rpc::GetVolumeGroupSnapshot, answer, LONG).await.breach,
        Some("AnotherAnswer")
    );
}
