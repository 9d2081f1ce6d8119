//! Volumes that grow, change, and are looked at.
use wharfline::csi::check::{Condition, Expanded, Stats, Usage};
use wharfline::csi::{Advice, check};

use super::*;

const MIB: i64 = 1 << 20;

/// A volume that is attached to `node-a`, staged and published there.
async fn in_use(bench: &Bench) -> Way {
    let volume = bench.plugin.create_volume(create("pvc"), LONG).await.unwrap();
    let mut way = Way { volume_context: volume.volume_context, ..Way::new(&volume.volume_id, "node-a") };
    let attached = bench.plugin.controller_publish_volume(way.attach(), LONG).await.unwrap();
    way.publish_context = attached.publish_context;
    bench.plugin.node_stage_volume(way.stage(), LONG).await.unwrap();
    bench.plugin.node_publish_volume(way.publish("/target"), LONG).await.unwrap();
    way
}

async fn take_down(bench: &Bench, way: &Way) {
    bench.plugin.node_unpublish_volume(way.unpublish("/target"), LONG).await.unwrap();
    bench.plugin.node_unstage_volume(way.unstage(), LONG).await.unwrap();
    bench.plugin.controller_unpublish_volume(way.detach(), LONG).await.unwrap();
}

/// Part of obligations CO-CTRL-105, CO-CTRL-107, CO-NODE-82, CO-NODE-83, CO-NODE-87.
#[tokio::test]
async fn a_volume_grows_at_its_backend_and_then_on_its_node() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    bench.backend.configure(|config| config.node_expansion = true);
    let way = in_use(&bench).await;
    let grown = bench.plugin.controller_expand_volume(way.expand(3 * MIB), LONG).await.unwrap();
    assert_eq!(grown, Expanded { bytes: 3 * MIB, node_expansion_required: true });
    assert_eq!(bench.backend.capacity(&way.volume), Some(3 * MIB));
    assert_eq!(bench.backend.expansion_debts(), [(way.volume.clone(), "node-a".to_owned())]);
    // The same again changes nothing.
    assert_eq!(bench.plugin.controller_expand_volume(way.expand(3 * MIB), LONG).await, Ok(grown));
    let grow = || bench.plugin.node_expand_volume(way.node_expand("/target", 3 * MIB), LONG);
    bench.backend.next(Rpc::NodeExpandVolume, Answer::fail(Code::FailedPrecondition, "mounted"));
    let failure = grow().await.unwrap_err();
    assert_eq!((failure.advice(), failure.remedy()), (Advice::NextMount, Remedy::ChangeInput));
    assert_eq!(grow().await, Ok(Some(3 * MIB)));
    assert_eq!(bench.backend.expansion_debts(), []);
    // A plugin that does not say how large it is now has not made it empty.
    bench.backend.next(Rpc::NodeExpandVolume, Answer::reply(&proto::NodeExpandVolumeResponse::default()));
    assert_eq!(grow().await, Ok(None));
    take_down(&bench, &way).await;
    bench.plugin.delete_volume(delete(&way.volume), LONG).await.unwrap();
    bench.backend.assert_clean();
}

#[tokio::test]
async fn an_ok_with_another_size_is_doubt() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    let range = |required_bytes, limit_bytes| Some(proto::CapacityRange { required_bytes, limit_bytes });
    for (asked, bytes) in [((10, 0), 9), ((10, 0), 0), ((10, 20), 21), ((10, 0), -1)] {
        let answer =
            proto::ControllerExpandVolumeResponse { capacity_bytes: bytes, node_expansion_required: false };
        bench.backend.next(Rpc::ControllerExpandVolume, Answer::reply(&answer));
        let request = proto::ControllerExpandVolumeRequest {
            capacity_range: range(asked.0, asked.1),
            ..Way::new("v", "n").expand(1)
        };
        let failure = bench.plugin.controller_expand_volume(request, LONG).await.unwrap_err();
        assert!(failure.is_uncertain(), "{failure}");
        assert_eq!(failure.breach, Some("WrongCapacity"), "{failure}");
        let answer = proto::NodeExpandVolumeResponse { capacity_bytes: bytes };
        bench.backend.next(Rpc::NodeExpandVolume, Answer::reply(&answer));
        let request = proto::NodeExpandVolumeRequest {
            capacity_range: range(asked.0, asked.1),
            ..Way::new("v", "n").node_expand("/t", 1)
        };
        assert_eq!(bench.plugin.node_expand_volume(request, LONG).await.is_ok(), bytes == 0, "{bytes}");
    }
}

/// Part of obligations CO-CTRL-106, CO-CTRL-111, CO-CTRL-112.
#[tokio::test]
async fn one_that_grows_offline_only_says_so_while_it_is_in_use() {
    let bench = Bench::with(Config::everything(), Alpha::Off);
    bench.backend.configure(|config| {
        config.expansion = vec![2];
        config.max_volume_bytes = 4 * MIB;
    });
    let expansion = bench.plugin.get_plugin_capabilities(LONG).await.unwrap().expansion;
    assert!(expansion.offline && !expansion.online);
    let way = in_use(&bench).await;
    let grow = |bytes| bench.plugin.controller_expand_volume(way.expand(bytes), LONG);
    // The script's, not the model's, which would complain that it was asked.
    bench.backend.next(Rpc::ControllerExpandVolume, Answer::fail(Code::FailedPrecondition, "in use"));
    assert_eq!(grow(2 * MIB).await.unwrap_err().advice(), Advice::TakeOffline);
    take_down(&bench, &way).await;
    assert_eq!(grow(5 * MIB).await.unwrap_err().advice(), Advice::ChangeInput);
    assert_eq!(grow(2 * MIB).await.unwrap().bytes, 2 * MIB);
    bench.plugin.delete_volume(delete(&way.volume), LONG).await.unwrap();
    bench.backend.assert_clean();
}

/// Part of obligations CO-CTRL-75, CO-CTRL-76, CO-CTRL-78.
#[tokio::test]
async fn what_may_be_changed_of_a_volume_is_changed() {
    let bench = Bench::with(Config::everything(), Alpha::Off);
    let request = proto::CreateVolumeRequest {
        mutable_parameters: [("iops".to_owned(), "1".to_owned()), ("tier".to_owned(), "a".to_owned())].into(),
        ..create("pvc")
    };
    let volume = bench.plugin.create_volume(request, LONG).await.unwrap();
    let way = Way::new(&volume.volume_id, "node-a");
    bench.backend.next(Rpc::ControllerModifyVolume, Answer::fail(Code::InvalidArgument, "no such tier"));
    let failure = bench.plugin.controller_modify_volume(way.modify("tier", "z"), LONG).await.unwrap_err();
    assert!(failure.advice() == Advice::ChangeInput && !failure.is_uncertain(), "nothing was applied");
    bench.plugin.controller_modify_volume(way.modify("iops", "2"), LONG).await.unwrap();
    let now = bench.backend.mutable_parameters(&volume.volume_id);
    // What was left out of the request stays as it was.
    assert_eq!(now, [("iops".to_owned(), "2".to_owned()), ("tier".to_owned(), "a".to_owned())].into());
    bench.plugin.delete_volume(delete(&volume.volume_id), LONG).await.unwrap();
    bench.backend.assert_clean();
}

/// Part of obligations CO-CTRL-67, CO-CTRL-69, CO-CTRL-70, CO-NODE-70, CO-NODE-72, CO-NODE-73.
#[tokio::test]
async fn a_volume_in_use_is_looked_at_from_both_sides() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    let way = in_use(&bench).await;
    let stats = |path: &'static str| bench.plugin.node_get_volume_stats(way.stats(path), LONG);
    let total = u64::try_from(MIB).unwrap();
    let bytes = Some(Usage { total, used: Some(total / 4), available: Some(total - total / 4) });
    let well = Some(Condition { abnormal: false, message: String::new() });
    for path in ["/target", "/staging"] {
        assert_eq!(stats(path).await, Ok(Stats { bytes, inodes: None, condition: well.clone() }), "{path}");
    }
    let got = bench.plugin.controller_get_volume(way.get(), LONG).await.unwrap();
    let can = bench.plugin.controller_get_capabilities(LONG).await.unwrap();
    let told = got.status.as_ref().map(|status| &status.published_node_ids[..]);
    assert_eq!(check::published_nodes(&can, told), Some(&["node-a".to_owned()][..]));
    assert_eq!(check::got_volume(&way.volume, &got).unwrap().capacity_bytes, MIB);

    bench.backend.configure(|config| {
        config.ill.insert(way.volume.clone(), "a disk is gone".to_owned());
        config.node.retain(|number| *number != 4);
    });
    let got = bench.plugin.controller_get_volume(way.get(), LONG).await.unwrap();
    let seen = stats("/target").await.unwrap();
    assert_eq!(seen.condition, None, "the node does not report conditions");
    let worse = check::worse(seen.condition, Condition::got(&got));
    assert_eq!(worse, Some(Condition { abnormal: true, message: "a disk is gone".into() }));
    let page = bench.plugin.list_volumes(proto::ListVolumesRequest::default(), LONG).await.unwrap();
    assert_eq!(Condition::listed(&page.entries[0]), worse);

    // NOT_FOUND says nothing of the volume but that it was not found there.
    bench.backend.next(Rpc::NodeGetVolumeStats, Answer::fail(Code::NotFound, "not at this path"));
    assert_eq!(stats("/target").await.unwrap_err().advice(), Advice::Verify);
    take_down(&bench, &way).await;
    bench.plugin.delete_volume(delete(&way.volume), LONG).await.unwrap();
    bench.backend.assert_clean();
}
