//! Cases for the checks of answers.
use super::super::capabilities::ControllerCapabilities;
use super::super::proto::list_volumes_response::{Entry, VolumeStatus};
use super::super::proto::validate_volume_capabilities_response::Confirmed;
use super::super::proto::volume_capability::{AccessMode, BlockVolume, MountVolume};
use super::super::proto::volume_content_source::{SnapshotSource, Type as Source};
use super::super::proto::{
    BlockMetadata, CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetVolumeResponse, CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest,
    GetCapacityResponse, GetMetadataAllocatedResponse, GetMetadataDeltaResponse,
    GetVolumeGroupSnapshotRequest, NodeExpandVolumeRequest, NodeExpandVolumeResponse,
    NodeGetVolumeStatsResponse, Snapshot, VolumeCondition, VolumeContentSource, VolumeGroupSnapshot,
    VolumeUsage,
};
use super::*;

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn info(name: &str) -> GetPluginInfoResponse {
    GetPluginInfoResponse { name: name.into(), vendor_version: "1".into(), manifest: BTreeMap::new() }
}

/// Obligation CO-IDEN-01.
#[test]
fn plugin_names() {
    for good in ["a", "hostpath.csi.k8s.io", "Dir-1.csi.example", "9", &"x".repeat(63)] {
        assert_eq!(plugin_info(&info(good)), Ok(()), "{good}");
    }
    for bad in ["a_b", "-a", "a-", ".a", "a.", "a..b", "a b", "a/b", "é", "a\n", &"x".repeat(64)] {
        assert_eq!(plugin_info(&info(bad)), Err(Fault::IllegalPluginName { name: bad.into() }), "{bad}");
    }
    assert_eq!(plugin_info(&info("")), Err(Fault::NoPluginName));
    let silent = GetPluginInfoResponse { vendor_version: String::new(), ..info("a") };
    assert_eq!(plugin_info(&silent), Err(Fault::NoVersion));
    let large = GetPluginInfoResponse { manifest: pairs(&[("k", &"v".repeat(MAX_MAP))]), ..info("a") };
    assert_eq!(plugin_info(&large), Err(Fault::MapTooLarge { field: "manifest", length: MAX_MAP + 1 }));
    assert!(plugin_info(&info(&"y".repeat(1000))).unwrap_err().to_string().len() < 300);
}

/// Part of obligation CO-NODE-11.
#[test]
fn node_ids_and_limits() {
    let node = |id: &str, limit| NodeGetInfoResponse {
        node_id: id.into(),
        max_volumes_per_node: limit,
        accessible_topology: None,
    };
    assert_eq!(node_info(&node(&"n".repeat(256), 0)), Ok(()));
    assert_eq!(node_info(&node("id/with:any thing", 7)), Ok(()));
    assert_eq!(node_info(&node(&"é".repeat(129), 0)), Err(Fault::NodeIdTooLong { length: 258 }));
    assert_eq!(node_info(&node("", 0)), Err(Fault::NoNodeId));
    let fault = node_info(&node("n\u{1b}[2J", 0)).unwrap_err();
    assert_eq!((fault.reason(), fault.to_string().contains("\\u{1b}")), ("IllegalNodeID", true), "{fault}");
    assert_eq!(node_info(&node("n", -1)), Err(Fault::NegativeLimit { limit: -1 }));
    let zone = Topology { segments: pairs(&[("a b", "c")]) };
    let placed = NodeGetInfoResponse { accessible_topology: Some(zone), ..node("n", 0) };
    assert_eq!(node_info(&placed), Err(Fault::IllegalTopologyKey { key: "a b".into() }));
}

/// Part of obligation CO-NODE-12.
#[test]
fn topology_keys_and_values() {
    let check = |segments: &[(&str, &str)]| topology(&Topology { segments: pairs(segments) });
    let long = "x".repeat(63);
    for good in ["zone", "Zone_1.a", "dir.csi.example/node", &long, &format!("{long}/{long}")] {
        assert_eq!(check(&[(good, "v")]), Ok(()), "{good}");
    }
    for bad in [
        "",
        "/",
        "a/",
        "/a",
        "a/b/c",
        "Up.example/zone",
        "a..b/zone",
        "-a/zone",
        "a_b/zone",
        "zone-",
        "z one",
        &format!("{long}x"),
    ] {
        assert_eq!(check(&[(bad, "v")]), Err(Fault::IllegalTopologyKey { key: bad.into() }), "{bad}");
    }
    for bad in ["", "-a", "a-", "a/b", "a b", &"x".repeat(64)] {
        let fault = Fault::IllegalTopologyValue { key: "zone".into(), value: bad.into() };
        assert_eq!(check(&[("zone", bad)]), Err(fault), "{bad}");
    }
    assert_eq!(
        check(&[("Zone", "a"), ("zone", "b")]),
        Err(Fault::RepeatedTopologyKey { key: "zone".into() })
    );
    assert_eq!(check(&[("a.example/zone", "a"), ("b.example/zone", "b")]), Ok(()));
}

#[test]
fn volumes() {
    let of = |id: &str| Volume { volume_id: id.into(), ..Default::default() };
    assert_eq!(volume(None), Err(Fault::NoVolume));
    assert_eq!(volume(Some(&of(""))), Err(Fault::NoVolumeId));
    assert!(volume(Some(&of(&"v".repeat(1024)))).is_ok());
    assert_eq!(volume(Some(&of(&"v".repeat(1025)))), Err(Fault::VolumeIdTooLong { length: 1025 }));
    assert!(
        volume(Some(&of("projects/p/disks/[a b]"))).is_ok(),
        "widely used drivers have slashes in their ids"
    );
    let fault = volume(Some(&of("v\n"))).unwrap_err();
    assert_eq!((fault.reason(), fault.to_string().contains("\\n")), ("IllegalVolumeID", true), "{fault}");
    let full = Volume { volume_context: pairs(&[("k", &"v".repeat(MAX_MAP))]), ..of("v") };
    assert_eq!(volume(Some(&full)).unwrap_err().reason(), "AnswerTooLarge");
}

/// Scenario B1.
#[test]
fn a_volume_is_what_was_asked_for() {
    let asked = |required, limit| CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes: required, limit_bytes: limit }),
        ..Default::default()
    };
    let of = |bytes| Volume { volume_id: "v".into(), capacity_bytes: bytes, ..Default::default() };
    for (required, limit, bytes, fits) in [
        (10, 0, 10, true),
        (10, 0, 9, false),
        (10, 0, 0, true),
        (0, 10, 10, true),
        (0, 10, 11, false),
        (10, 10, 10, true),
        (10, 20, 1 << 40, false),
    ] {
        assert_eq!(created(&asked(required, limit), &of(bytes)).is_ok(), fits, "{required} {limit} {bytes}");
    }
    assert_eq!(created(&asked(1, 0), &of(-1)), Err(Fault::NegativeCapacity { bytes: -1 }));
    let source = |id: &str| VolumeContentSource {
        r#type: Some(Source::Snapshot(SnapshotSource { snapshot_id: id.into() })),
    };
    let restored = CreateVolumeRequest { volume_content_source: Some(source("s")), ..Default::default() };
    assert_eq!(created(&restored, &of(1)), Err(Fault::SourceNotConfirmed));
    let filled = Volume { content_source: Some(source("s")), ..of(1) };
    assert_eq!(created(&restored, &filled), Ok(()));
    let other = Volume { content_source: Some(source("t")), ..of(1) };
    assert_eq!(created(&restored, &other), Err(Fault::SourceNotConfirmed));
    let placed = Volume { accessible_topology: vec![Topology { segments: pairs(&[("a b", "c")]) }], ..of(1) };
    assert_eq!(created(&asked(1, 0), &placed).unwrap_err().reason(), "IllegalTopology");
}

/// Scenario A24.
/// Each of these may be left out of what is echoed; what is echoed is what was asked for.
#[test]
fn an_echo_has_the_flags_and_the_kind_that_were_asked_for() {
    let mount = |flags: &[&str]| {
        let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Some(AccessType::Mount(MountVolume { mount_flags, ..Default::default() }))
    };
    let block = || Some(AccessType::Block(BlockVolume {}));
    let of = |mode: i32, access_type: Option<AccessType>| VolumeCapability {
        access_mode: Some(AccessMode { mode }),
        access_type,
    };
    for (asked, echo, confirmed) in [
        (of(1, block()), of(1, block()), true),
        (of(1, block()), of(1, None), true),
        (of(1, block()), VolumeCapability { access_mode: None, access_type: block() }, true),
        (of(1, block()), of(2, block()), false),
        (of(1, block()), of(1, mount(&[])), false),
        (of(1, mount(&["a", "b"])), of(1, mount(&["a", "b"])), true),
        (of(1, mount(&["a", "b"])), of(1, mount(&[])), true),
        (of(1, mount(&["a"])), of(1, mount(&["b"])), false),
        (of(1, mount(&["a", "b"])), of(1, mount(&["a"])), false),
        (of(1, mount(&[])), of(1, mount(&["a"])), false),
        (of(1, mount(&["a"])), of(2, mount(&["a"])), false),
        (of(1, mount(&[])), of(1, block()), false),
    ] {
        let request =
            ValidateVolumeCapabilitiesRequest { volume_capabilities: vec![asked], ..Default::default() };
        let told = Confirmed { volume_capabilities: vec![echo], ..Default::default() };
        let answer = ValidateVolumeCapabilitiesResponse { confirmed: Some(told), message: String::new() };
        let wanted = if confirmed {
            Confirmation::Confirmed
        } else {
            Confirmation::Contradicted("volume_capabilities")
        };
        assert_eq!(confirmation(&request, &answer), wanted, "{request:?} {answer:?}");
    }
}

#[test]
fn a_range_is_told_by_the_bounds_that_it_has() {
    for (required, limit, told) in [
        (5, 0, "5 at least"),
        (0, 7, "7 at most"),
        (5, 7, "5 at least and 7 at most"),
        (5, 5, "5, no less and no more"),
    ] {
        assert_eq!(sizes::range(required, limit), told);
    }
}

/// Scenarios A24, Q2.
/// Obligations CO-CTRL-56, CO-CTRL-58.
#[test]
fn confirmations() {
    let mount = |fs_type: &str| {
        Some(AccessType::Mount(MountVolume { fs_type: fs_type.into(), ..Default::default() }))
    };
    let capability = |mode: i32, access_type| VolumeCapability {
        access_mode: (mode >= 0).then_some(AccessMode { mode }),
        access_type,
    };
    let asked = ValidateVolumeCapabilitiesRequest {
        volume_capabilities: vec![capability(1, mount("ext4"))],
        volume_context: pairs(&[("k", "v")]),
        ..Default::default()
    };
    let says = |echo: VolumeCapability| {
        let confirmed = Confirmed { volume_capabilities: vec![echo], ..Default::default() };
        confirmation(
            &asked,
            &ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() },
        )
    };
    for echo in
        [capability(1, mount("ext4")), capability(1, None), capability(-1, mount("")), capability(0, None)]
    {
        assert_eq!(says(echo.clone()), Confirmation::Confirmed, "{echo:?}");
    }
    let block = Some(AccessType::Block(BlockVolume {}));
    for echo in [capability(2, mount("ext4")), capability(1, mount("xfs")), capability(1, block)] {
        assert_eq!(says(echo.clone()), Confirmation::Contradicted("volume_capabilities"), "{echo:?}");
    }
    let silent = ValidateVolumeCapabilitiesResponse { confirmed: None, message: "no".into() };
    assert_eq!(confirmation(&asked, &silent), Confirmation::NotConfirmed("no".into()));
    let empty =
        ValidateVolumeCapabilitiesResponse { confirmed: Some(Confirmed::default()), message: String::new() };
    assert_eq!(confirmation(&asked, &empty), Confirmation::Confirmed);
    let other = Confirmed { volume_context: pairs(&[("k", "w")]), ..Default::default() };
    let other = ValidateVolumeCapabilitiesResponse { confirmed: Some(other), message: String::new() };
    assert_eq!(confirmation(&asked, &other), Confirmation::Contradicted("volume_context"));
}

fn taken(id: &str, source: &str) -> Snapshot {
    Snapshot { snapshot_id: id.into(), source_volume_id: source.into(), ..Default::default() }
}

/// Part of obligations CO-CTRL-88, CO-CTRL-100, CO-CTRL-101.
#[test]
fn snapshots_that_can_be_used() {
    let time = |seconds, nanos| Some(prost_types::Timestamp { seconds, nanos });
    let of = |creation_time| Snapshot { creation_time, ..taken("s", "v") };
    for good in
        [of(None), of(time(0, 0)), of(time(1_700_000_000, 999_999_999)), taken(&"s".repeat(1024), "v")]
    {
        assert!(snapshot(Some(&good)).is_ok(), "{good:?}");
    }
    for bad in [time(-1, 0), time(1, -1), time(1, 1_000_000_000), time(i64::MAX, 0)] {
        assert_eq!(snapshot(Some(&of(bad))).unwrap_err().reason(), "IllegalSnapshot", "{bad:?}");
    }
    assert_eq!(snapshot(None), Err(Fault::Nothing { what: "snapshot" }));
    assert_eq!(snapshot(Some(&taken("", "v"))), Err(Fault::NoId { what: "snapshot" }));
    let long = snapshot(Some(&taken(&"s".repeat(1025), "v"))).unwrap_err();
    assert_eq!(long, Fault::IdTooLong { what: "snapshot", length: 1025 });
    assert!(snapshot(Some(&taken("s\u{7}", "v"))).unwrap_err().to_string().contains("control character"));
    let negative = Snapshot { size_bytes: -1, ..taken("s", "v") };
    assert_eq!(snapshot(Some(&negative)), Err(Fault::NegativeSize { bytes: -1 }));

    let asked = CreateSnapshotRequest { source_volume_id: "v".into(), ..Default::default() };
    assert_eq!(snapshot_taken(&asked, &taken("s", "v")), Ok(()));
    let other = Fault::AnotherOne { what: "source volume", told: "w".into() };
    assert_eq!(snapshot_taken(&asked, &taken("s", "w")), Err(other.clone()));
    assert!(snapshot_got("s", Some(&taken("s", "v"))).is_ok());
    assert_eq!(snapshot_got("t", Some(&taken("s", "v"))).unwrap_err().reason(), "AnotherAnswer");
    for (source, id, fits) in [
        ("", "", true),
        ("v", "", true),
        ("", "s", true),
        ("v", "s", true),
        ("w", "", false),
        ("v", "t", false),
    ] {
        assert_eq!(snapshot_listed(source, id, Some(&taken("s", "v"))).is_ok(), fits, "{source} {id}");
    }
}

/// Part of obligations CO-GRP-02, CO-GRP-03, CO-GRP-04, CO-GRP-20.
#[test]
fn groups_are_one_ready_snapshot_of_each_volume() {
    let member = |id: &str, source: &str| Snapshot {
        group_snapshot_id: "g".into(),
        ready_to_use: true,
        ..taken(id, source)
    };
    let of = |snapshots: Vec<Snapshot>| VolumeGroupSnapshot {
        group_snapshot_id: "g".into(),
        snapshots,
        creation_time: None,
        ready_to_use: true,
    };
    let whole = of(vec![member("a", "1"), member("b", "2")]);
    assert_eq!(group(Some(&whole)), Ok(&whole));
    assert_eq!(group(None), Err(Fault::Nothing { what: "group snapshot" }));
    let nameless = VolumeGroupSnapshot { group_snapshot_id: String::new(), ..whole.clone() };
    assert_eq!(group(Some(&nameless)), Err(Fault::NoId { what: "group snapshot" }));
    let foreign = Snapshot { group_snapshot_id: "h".into(), ..member("b", "2") };
    for (members, why) in [
        (vec![], "there are none"),
        (vec![member("a", "1"), foreign], "not said to be of this group"),
        (vec![member("a", "1"), member("a", "2")], "there twice"),
        (vec![member("a", "1"), taken("", "2")], "has no id"),
    ] {
        let fault = group(Some(&of(members))).unwrap_err();
        assert!(fault.to_string().contains(why), "{fault}");
    }
    let asked = |volumes: &[&str]| CreateVolumeGroupSnapshotRequest {
        source_volume_ids: volumes.iter().map(|volume| (*volume).to_owned()).collect(),
        ..Default::default()
    };
    for (volumes, fits) in [
        (&["1", "2"][..], true),
        (&["2", "1"], true),
        (&["1"], false),
        (&["1", "3"], false),
        (&["1", "2", "3"], false),
    ] {
        assert_eq!(group_taken(&asked(volumes), &whole).is_ok(), fits, "{volumes:?}");
    }
    let twice = of(vec![member("a", "1"), member("b", "1"), member("c", "2")]);
    assert_eq!(group_taken(&asked(&["1", "2"]), &twice).unwrap_err().reason(), "WrongMembers");
    let look =
        |id: &str| GetVolumeGroupSnapshotRequest { group_snapshot_id: id.into(), ..Default::default() };
    assert!(group_got(&look("g"), Some(&whole)).is_ok() && group_got(&look("h"), Some(&whole)).is_err());
    assert!(group_is_ready(&whole));
    let slow = Snapshot { ready_to_use: false, ..member("b", "2") };
    assert!(!group_is_ready(&of(vec![member("a", "1"), slow])), "one member is not ready");
    assert!(!group_is_ready(&VolumeGroupSnapshot { ready_to_use: false, ..whole }));
}

/// Part of obligations CO-CTRL-107, CO-NODE-83.
#[test]
fn what_a_volume_has_grown_to() {
    for (required, limit, bytes, controller, node) in [
        (10, 0, 10, true, Ok(Some(10))),
        (10, 0, 11, true, Ok(Some(11))),
        (10, 0, 9, false, Err(())),
        (10, 20, 21, false, Err(())),
        (0, 20, 5, true, Ok(Some(5))),
        (10, 0, 0, false, Ok(None)),
        (0, 20, 0, false, Ok(None)),
        (10, 0, -1, false, Err(())),
    ] {
        let range = Some(CapacityRange { required_bytes: required, limit_bytes: limit });
        let told = expanded(
            &ControllerExpandVolumeRequest { capacity_range: range, ..Default::default() },
            &ControllerExpandVolumeResponse { capacity_bytes: bytes, node_expansion_required: true },
        );
        let case = format!("{required} {limit} {bytes}");
        assert_eq!(told.is_ok(), controller, "{case}");
        assert!(told.is_err() || told == Ok(Expanded { bytes, node_expansion_required: true }), "{case}");
        let told = node_expanded(
            &NodeExpandVolumeRequest { capacity_range: range, ..Default::default() },
            &NodeExpandVolumeResponse { capacity_bytes: bytes },
        );
        assert_eq!(told.map_err(drop), node, "{case}");
    }
}

/// Part of obligation CO-NODE-72.
#[test]
fn figures_that_make_no_sense_are_left_out() {
    let entry = |unit, total, used, available| VolumeUsage { unit, total, used, available };
    let full = |total, used, available| Some(Usage { total, used: Some(used), available: Some(available) });
    let bare = |total| Some(Usage { total, used: None, available: None });
    let cases: [(Vec<VolumeUsage>, Option<Usage>, Option<Usage>); 12] = [
        (vec![], None, None),
        (vec![entry(1, 10, 4, 5), entry(2, 7, 0, 7)], full(10, 4, 5), full(7, 0, 7)),
        (vec![entry(1, 10, 10, 0)], full(10, 10, 0), None),
        // What is kept for root is no tenth of it: it was not told what is left.
        (vec![entry(1, 100, 90, 0)], full(100, 90, 0), None),
        (vec![entry(1, 100, 89, 0)], Some(Usage { total: 100, used: Some(89), available: None }), None),
        (
            vec![entry(1, 100, 95, 0), entry(2, 100, 9, 0)],
            full(100, 95, 0),
            Some(Usage { total: 100, used: Some(9), available: None }),
        ),
        // A block volume.
        (vec![entry(1, 10, 0, 0)], bare(10), None),
        (vec![entry(3, 10, 4, 5), entry(0, 10, 4, 5), entry(-1, 1, 1, 1)], None, None),
        (vec![entry(1, -10, 4, 5)], None, None),
        (vec![entry(1, 10, -4, 5), entry(2, 10, 4, -5)], None, None),
        // A file system that counts no inodes.
        (vec![entry(1, 10, 4, 5), entry(2, 0, 0, 0)], full(10, 4, 5), None),
        (vec![entry(1, -1, 0, 0), entry(1, 10, 4, 5), entry(1, 20, 4, 5)], full(10, 4, 5), None),
    ];
    for (usage, bytes, inodes) in cases {
        let told = stats(&NodeGetVolumeStatsResponse { usage: usage.clone(), volume_condition: None });
        assert_eq!(told, Stats { bytes, inodes, condition: None }, "{usage:?}");
    }
}

fn told(abnormal: bool, message: &str) -> Condition {
    Condition { abnormal, message: message.into() }
}

/// Part of obligations CO-CTRL-69, CO-NODE-72.
#[test]
fn of_two_conditions_the_worse_one_counts() {
    let [well, bad, other] =
        [(false, "well"), (true, "disk gone"), (true, "path gone")].map(|(bad, why)| Some(told(bad, why)));
    for (one, two, counts) in [
        (None, None, None),
        (well.clone(), None, well.clone()),
        (None, bad.clone(), bad.clone()),
        (well.clone(), bad.clone(), bad.clone()),
        (bad.clone(), well.clone(), bad.clone()),
        (bad.clone(), other.clone(), bad.clone()),
        (well.clone(), well.clone(), well.clone()),
    ] {
        assert_eq!(worse(one.clone(), two.clone()), counts, "{one:?} {two:?}");
    }
    let told = VolumeCondition { abnormal: true, message: "m".repeat(1000) };
    let alone = stats(&NodeGetVolumeStatsResponse { usage: vec![], volume_condition: Some(told) });
    assert!(
        alone.bytes.is_none() && alone.condition.unwrap().message.len() < 200,
        "and nothing else is told"
    );
    // As a driver of a later minor version, which has no such field, would answer.
    assert_eq!(Condition::listed(&Entry { volume: None, status: Some(VolumeStatus::default()) }), None);
    assert_eq!(Condition::got(&ControllerGetVolumeResponse::default()), None);
}

/// Obligation CO-CTRL-67.
#[test]
fn where_a_volume_is_attached_is_read_only_where_it_is_told() {
    let (nobody, nodes) = (Vec::new(), vec!["alien".to_owned(), "node-a".to_owned()]);
    for (reported, attaches, told, seen) in [
        (true, true, Some(&nodes[..]), Some(&nodes[..])),
        (true, true, None, Some(&nobody[..])),
        (true, true, Some(&[][..]), Some(&nobody[..])),
        (false, true, Some(&nodes[..]), None),
        (true, false, Some(&nodes[..]), None),
        (false, false, None, None),
    ] {
        let can = ControllerCapabilities {
            list_volumes_published_nodes: reported,
            publish_unpublish_volume: attaches,
            ..Default::default()
        };
        assert_eq!(published_nodes(&can, told), seen, "{reported} {attaches} {told:?}");
    }
}

/// Part of obligations CO-CTRL-65, CO-CTRL-70, CO-CTRL-71.
#[test]
fn volumes_of_lists_and_free_space() {
    let of =
        |id: &str, bytes| Some(Volume { volume_id: id.into(), capacity_bytes: bytes, ..Default::default() });
    assert!(listed(&Entry { volume: of("v", 0), status: None }).is_ok());
    assert_eq!(listed(&Entry { volume: None, status: None }), Err(Fault::NoVolume));
    assert!(listed(&Entry { volume: of("v", -1), status: None }).is_err());
    let got = |id: &str, bytes| ControllerGetVolumeResponse { volume: of(id, bytes), status: None };
    assert!(got_volume("v", &got("v", 1)).is_ok());
    assert_eq!(got_volume("v", &got("w", 1)).unwrap_err().reason(), "AnotherAnswer");
    assert!(
        got_volume("v", &got("v", -1)).is_err()
            && got_volume("v", &ControllerGetVolumeResponse::default()).is_err()
    );
    let space = |available, largest, smallest| GetCapacityResponse {
        available_capacity: available,
        maximum_volume_size: largest,
        minimum_volume_size: smallest,
    };
    let told = room(&space(5, Some(0), None)).unwrap();
    assert_eq!(told, Room { available: 5, largest: Some(0), smallest: None });
    for bad in [space(-1, None, None), space(1, Some(-1), None), space(1, None, Some(-1))] {
        assert_eq!(room(&bad).unwrap_err().reason(), "IllegalCapacity", "{bad:?}");
    }
}

/// Obligation CO-CTRL-66.
/// Part of obligation CO-CTRL-65.
#[test]
fn every_list_ends() {
    let mut pages = Pages::new();
    assert_eq!(pages.token(), "");
    assert_eq!(pages.took("b", 2, 2), Ok(true));
    assert_eq!(pages.token(), "b");
    assert_eq!(pages.took("c", 0, 2), Ok(true));
    assert_eq!(pages.took("d", 3, 2), Err(Fault::TooManyEntries { count: 3, most: 2 }));
    // The plugin has forgotten its token: from the beginning, where the same tokens may come again.
    for _ in 0..Pages::RESTARTS {
        assert_eq!(pages.restart(), Ok(()));
        assert_eq!(pages.token(), "");
        assert_eq!(pages.took("b", 9, 0), Ok(true));
    }
    assert_eq!(pages.clone().restart().unwrap_err().reason(), "IllegalList", "no more often than that");
    assert_eq!((pages.clone().took("", 0, 0), pages.took("b", 0, 0).is_err()), (Ok(false), true));
    assert!(Pages::new().restart().is_err(), "the empty token is known to every plugin");
    let mut circle = Pages::new();
    assert_eq!((circle.took("x", 1, 0), circle.took("y", 1, 0)), (Ok(true), Ok(true)));
    assert_eq!(circle.took("x", 1, 0), Err(Fault::EndlessList { why: "a token has come twice" }));
    let mut endless = Pages::new();
    let fault = (0..).find_map(|page: usize| endless.took(&page.to_string(), 1, 0).err());
    assert_eq!(fault, Some(Fault::EndlessList { why: "it has too many pages" }));
}

fn part(kind: i32, capacity: i64, blocks: &[(i64, i64)]) -> GetMetadataAllocatedResponse {
    let block = |(byte_offset, size_bytes): &(i64, i64)| BlockMetadata {
        byte_offset: *byte_offset,
        size_bytes: *size_bytes,
    };
    GetMetadataAllocatedResponse {
        block_metadata_type: kind,
        volume_capacity_bytes: capacity,
        block_metadata: blocks.iter().map(block).collect(),
    }
}

/// Obligation CO-META-04.
#[test]
fn blocks_that_contradict_one_another_are_a_fault() {
    // What was asked (offset, most per part), the parts, and what is wrong with the last.
    type Case = ((i64, i32), Vec<GetMetadataAllocatedResponse>, &'static str);
    let cases: Vec<Case> = vec![
        ((0, 0), vec![part(0, 100, &[])], "how blocks are cut"),
        ((0, 0), vec![part(9, 100, &[])], "how blocks are cut"),
        ((0, 0), vec![part(1, 0, &[])], "capacity is missing"),
        ((0, 0), vec![part(1, 100, &[(0, 10)]), part(2, 100, &[(10, 10)])], "changes within the stream"),
        ((0, 0), vec![part(1, 100, &[(0, 10)]), part(1, 200, &[(10, 10)])], "changes within the stream"),
        ((0, 2), vec![part(1, 100, &[(0, 10), (10, 10), (20, 10)])], "more blocks than were asked for"),
        ((0, 0), vec![part(1, 100, &[(0, 0)])], "is empty"),
        ((0, 0), vec![part(2, 100, &[(-10, 20)])], "begins before the volume"),
        ((0, 0), vec![part(2, 100, &[(1, i64::MAX)])], "beyond all numbers"),
        ((0, 0), vec![part(1, 100, &[(0, 10), (10, 20)])], "differ in it"),
        ((0, 0), vec![part(1, 100, &[(0, 10)]), part(1, 100, &[(10, 20)])], "differ in it"),
        ((0, 0), vec![part(2, 100, &[(90, 11)])], "beyond the volume"),
        ((0, 0), vec![part(1, 100, &[(110, 10)])], "beyond the volume"),
        ((0, 0), vec![part(2, 100, &[(0, 20), (10, 20)])], "overlap"),
        ((0, 0), vec![part(2, 100, &[(50, 10)]), part(2, 100, &[(20, 10)])], "do not rise"),
        ((50, 0), vec![part(1, 100, &[(40, 10)])], "before the offset"),
    ];
    for ((from, most), parts, why) in cases {
        let mut sequence = Sequence::new(from, most);
        let (last, first) = parts.split_last().unwrap();
        for part in first {
            drop(sequence.allocated(part.clone()).unwrap());
        }
        let fault = sequence.allocated(last.clone()).unwrap_err();
        assert!(fault.to_string().contains(why) && fault.reason() == "WrongBlocks", "{parts:?}: {fault}");
    }
}

/// Obligation CO-META-03.
#[test]
fn a_question_goes_on_after_the_last_byte_and_nothing_is_told_twice() {
    let mut sequence = Sequence::new(0, 2);
    assert_eq!(sequence.resume_at(), 0);
    let told = sequence.allocated(part(1, 95, &[(0, 10), (30, 10)])).unwrap();
    assert_eq!((told.kind, told.capacity, told.blocks.len()), (BlockKind::Fixed, 95, 2));
    assert_eq!(sequence.allocated(part(1, 95, &[])).unwrap().blocks, []);
    assert_eq!(sequence.resume_at(), 40);
    // The last one is as long as the others, and goes beyond the end of the volume.
    assert!(sequence.allocated(part(1, 95, &[(90, 10)])).is_ok());
    let mut later = Sequence::new(35, 0);
    assert_eq!(later.resume_at(), 35);
    let told = later.allocated(part(1, 95, &[(30, 10), (50, 10)])).unwrap();
    assert_eq!(told.blocks, [Block { start: 35, end: 40 }, Block { start: 50, end: 60 }]);
    let same = GetMetadataDeltaResponse {
        block_metadata_type: 2,
        volume_capacity_bytes: 95,
        block_metadata: vec![BlockMetadata { byte_offset: 0, size_bytes: 5 }],
    };
    assert_eq!(Sequence::new(0, 0).delta(same).unwrap().kind, BlockKind::Variable);
}
