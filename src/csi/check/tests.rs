//! Cases for the checks of answers.
use super::super::proto::validate_volume_capabilities_response::Confirmed;
use super::super::proto::volume_capability::{AccessMode, BlockVolume, MountVolume};
use super::super::proto::volume_content_source::{SnapshotSource, Type as Source};
use super::super::proto::{CapacityRange, VolumeContentSource};
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
    let placed = Volume { accessible_topology: vec![Topology { segments: pairs(&[("a b", "c")]) }], ..of(1) };
    assert_eq!(created(&asked(1, 0), &placed).unwrap_err().reason(), "IllegalTopology");
}

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
        assert_eq!(says(echo.clone()), Confirmation::Contradicted, "{echo:?}");
    }
    let silent = ValidateVolumeCapabilitiesResponse { confirmed: None, message: "no".into() };
    assert_eq!(confirmation(&asked, &silent), Confirmation::NotConfirmed("no".into()));
    let empty =
        ValidateVolumeCapabilitiesResponse { confirmed: Some(Confirmed::default()), message: String::new() };
    assert_eq!(confirmation(&asked, &empty), Confirmation::Confirmed);
    let other = Confirmed { volume_context: pairs(&[("k", "w")]), ..Default::default() };
    let other = ValidateVolumeCapabilitiesResponse { confirmed: Some(other), message: String::new() };
    assert_eq!(confirmation(&asked, &other), Confirmation::Contradicted);
}
