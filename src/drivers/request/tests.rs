use super::*;
use crate::csi::proto::volume_capability::{AccessMode as WireMode, BlockVolume, MountVolume};

/// A driver of directories on ext4.
struct OnExt4;

impl Offer for OnExt4 {
    fn includes(&self, capability: &Capability) -> Result<(), String> {
        match capability {
            Capability { block: true, .. } => Err("no device".into()),
            Capability { mode, .. } if mode.is_for_nodes() => Err("one node".into()),
            Capability { fs_type, .. } if !matches!(fs_type.as_str(), "" | "ext4") => Err("ext4".into()),
            Capability { .. } => Ok(()),
        }
    }

    fn mount_options(&self) -> &'static [&'static str] {
        &MOUNT_OPTIONS
    }
}

fn mount(mode: Mode) -> proto::VolumeCapability {
    asked(mode.into(), MountVolume::default())
}

fn asked(mode: i32, mount: MountVolume) -> proto::VolumeCapability {
    proto::VolumeCapability {
        access_mode: Some(WireMode { mode }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

#[test]
fn a_name_is_what_the_contract_allows() {
    let longest = "x".repeat(128);
    for good in ["a", "with blank", "tab\tand\nline", "ünïcode", "../..", "/", &longest] {
        assert_eq!(name(good).unwrap(), good);
    }
    let wide = "ü".repeat(65); // 130 bytes, 65 characters
    for bad in ["", &"x".repeat(129), &wide, "nul\0", "bell\u{7}", "vt\u{b}", "del\u{7f}", "c1\u{9f}"] {
        assert!(matches!(name(bad), Err(Refusal::Invalid { field: "name", .. })), "{bad:?}");
    }
}

#[test]
fn an_id_is_derived_and_is_a_file_name() {
    let of = |node, root, name| VolumeId::of(node, Path::new(root), name);
    let id = of("node-a", "/d", "../../etc");
    assert_eq!(id, of("node-a", "/d", "../../etc"));
    for other in [of("node-b", "/d", "../../etc"), of("node-a", "/e", "../../etc"), of("node-a", "/d", "x")] {
        assert_ne!(id, other);
    }
    assert_eq!(VolumeId::parse(id.as_str()), Some(id.clone()));
    assert_eq!(id.as_str().len(), 20);
    for bad in [
        "",
        "..",
        "0123456789abcdef012",
        "0123456789ABCDEF0123",
        "0123456789abcdef01234",
        "../../../../../../../",
    ] {
        assert_eq!(VolumeId::parse(bad), None, "{bad}");
    }
}

#[test]
fn what_a_driver_includes() {
    let possible = [
        (Mode::SingleNodeWriter, AccessMode::Writer),
        (Mode::SingleNodeReaderOnly, AccessMode::ReaderOnly),
        (Mode::SingleNodeSingleWriter, AccessMode::SingleWriter),
        (Mode::SingleNodeMultiWriter, AccessMode::MultiWriter),
    ];
    for (wire, mode) in possible {
        assert_eq!(capability(&mount(wire), &OnExt4).unwrap().mode, mode);
    }
    let same_fs = MountVolume { fs_type: "ext4".into(), ..Default::default() };
    assert_eq!(capability(&asked(1, same_fs), &OnExt4).unwrap().fs_type, "ext4");
}

#[test]
fn what_is_malformed_and_what_is_beyond_a_driver() {
    let with = |change: fn(&mut MountVolume)| {
        let mut volume = MountVolume::default();
        change(&mut volume);
        asked(1, volume)
    };
    let block = proto::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..mount(Mode::SingleNodeWriter)
    };
    let cases = [
        (proto::VolumeCapability { access_mode: None, ..mount(Mode::SingleNodeWriter) }, true),
        (proto::VolumeCapability { access_type: None, ..mount(Mode::SingleNodeWriter) }, true),
        (mount(Mode::Unknown), true),
        (asked(99, MountVolume::default()), false),
        (mount(Mode::MultiNodeReaderOnly), false),
        (mount(Mode::MultiNodeSingleWriter), false),
        (mount(Mode::MultiNodeMultiWriter), false),
        (block, false),
        (with(|volume| volume.fs_type = "xfs".into()), false),
        (with(|volume| volume.volume_mount_group = "100".into()), false),
        (with(|volume| volume.mount_flags = vec!["ro".into(), "password=canary".into()]), false),
    ];
    for (asked, malformed) in cases {
        let fault = capability(&asked, &OnExt4).unwrap_err();
        assert_eq!(matches!(fault, CapabilityFault::Malformed(_)), malformed, "{asked:?}");
        let text = Refusal::to_string(&fault.refusal("volume_capability"));
        assert!(!text.contains("canary"), "{text}");
    }
}

#[test]
fn sizes() {
    let range = |required_bytes, limit_bytes| proto::CapacityRange { required_bytes, limit_bytes };
    assert_eq!(size(None).unwrap(), Size { required: 0, limit: None });
    assert_eq!(size(Some(&range(5, 0))).unwrap(), Size { required: 5, limit: None });
    assert_eq!(size(Some(&range(0, 5))).unwrap(), Size { required: 0, limit: Some(5) });
    for bad in [range(0, 0), range(-1, 0), range(5, -1)] {
        assert!(matches!(size(Some(&bad)), Err(Refusal::Invalid { .. })), "{bad:?}");
    }
    assert!(matches!(size(Some(&range(6, 5))), Err(Refusal::EmptyRange { required: 6, limit: 5 })));
    let exact = Size { required: 5, limit: Some(5) };
    assert_eq!([4, 5, 6].map(|capacity| exact.allows(capacity)), [false, true, false]);
}

#[test]
fn target_paths() {
    let target = path("target_path", "/a//b/./c/").unwrap();
    assert_eq!((target.parent(), target.leaf()), (Path::new("/a/b"), Path::new("c")));
    assert_eq!(target, path("target_path", "/a/b/c").unwrap());
    let long = format!("/{}", "x".repeat(4095));
    for bad in ["", "a/b", "./a", "/", "/a/../b", "/a\0b", &long] {
        assert!(
            matches!(path("target_path", bad), Err(Refusal::Invalid { field: "target_path", .. })),
            "{bad:?}"
        );
    }
}

#[test]
fn parameters_are_refused() {
    let keys = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>();
    assert!(no_parameters("parameters", &keys(&[])).is_ok());
    assert!(no_parameters("parameters", &keys(&["csi.storage.k8s.io/pvc/name"])).is_ok());
    assert!(no_parameters("parameters", &keys(&["csi.storage.k8s.io/pvc/name", "tier"])).is_err());
}

#[test]
fn topology() {
    let node = |key: &str, value: &str| proto::Topology { segments: [(key.into(), value.into())].into() };
    let here = node("k/node", "a");
    let asks = |requisite: Vec<proto::Topology>, preferred: Vec<proto::Topology>| {
        topology_allows(Some(&proto::TopologyRequirement { requisite, preferred }), &here)
    };
    assert!(topology_allows(None, &here).unwrap());
    assert!(asks(vec![node("k/node", "b"), here.clone()], vec![]).unwrap());
    assert!(asks(vec![], vec![node("k/node", "b")]).unwrap(), "a preference is a wish");
    assert!(!asks(vec![node("k/node", "b")], vec![here.clone()]).unwrap());
    assert!(!asks(vec![node("other", "a")], vec![]).unwrap());
    assert!(matches!(asks(vec![], vec![]), Err(Refusal::Invalid { .. })));
}
