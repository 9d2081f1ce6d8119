//! CSI requests from our records, and our records from CSI answers. Every field is set here and nowhere else.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::VolumeSpec;
use crate::api::attributes::Attributes;
use crate::api::meta::{AccessMode, Call, Capability, Map, ObjectRef, SecretRef, Segments, Time, VolumeMode};
use crate::api::snapshot::SnapshotOf;
use crate::api::volume::{Content, CreateSource, VolumeAttachmentSpec, WantedSize};
use crate::csi::proto::volume_capability::{AccessType, BlockVolume, MountVolume, access_mode::Mode};
use crate::csi::proto::volume_content_source::{SnapshotSource, Type as ContentKind, VolumeSource};
use crate::csi::proto::{self, VolumeCapability, VolumeContentSource};
use crate::csi::{self, Failure, Remedy};

/// Secrets of one call. Not `Debug`.
pub type Secrets = BTreeMap<String, String>;

/// In which words a driver is asked about one node (CO-GEN-18).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Modes {
    /// It does not know the newer ones.
    Old,
    /// It does: one of them takes the place of SINGLE_NODE_WRITER, which leaves open whether several may write.
    Newer,
    /// It does, and nothing of that was frozen: SINGLE_NODE_WRITER stays, for so it may have been asked before.
    Beside,
}

impl Modes {
    /// What a driver can at this time, of what nothing was asked before.
    pub fn of(can: bool) -> Self {
        if can { Self::Newer } else { Self::Old }
    }

    /// As it was frozen, whatever the driver has learnt since.
    pub fn frozen(frozen: Option<bool>, can: bool) -> Self {
        match (frozen, can) {
            (Some(newer), _) => Self::of(newer),
            (None, false) => Self::Old,
            (None, true) => Self::Beside,
        }
    }

    /// On a node, before its first call: what an earlier version has `kept` of its first call goes before what was frozen with the
    /// attachment.
    pub fn first(kept: Option<bool>, frozen: Option<bool>, can: bool) -> Self {
        match kept {
            Some(newer) => Self::frozen(None, newer),
            None => Self::frozen(frozen, can),
        }
    }
}

/// CSI's form of a capability.
pub fn capability(of: &Capability, newer_modes: Modes) -> VolumeCapability {
    for_group(of, newer_modes, String::new())
}

fn for_group(of: &Capability, newer_modes: Modes, volume_mount_group: String) -> VolumeCapability {
    let access_type = match of.volume_mode {
        VolumeMode::Filesystem => AccessType::Mount(MountVolume {
            fs_type: of.fs_type.clone(),
            mount_flags: of.mount_options.clone(),
            volume_mount_group,
        }),
        VolumeMode::Block => AccessType::Block(BlockVolume {}),
    };
    VolumeCapability {
        access_mode: Some(proto::volume_capability::AccessMode {
            mode: mode(of.access_mode, newer_modes).into(),
        }),
        access_type: Some(access_type),
    }
}

/// What was found out of the driver of a volume before it was first staged or published here; it stays so until that is undone.
#[derive(Debug, Clone, Copy)]
pub struct Dialect {
    /// Its words about one node.
    pub newer_modes: Modes,
    /// It mounts for a group.
    pub mount_group: bool,
}

/// The capability of calls to the node service.
fn here(of: &VolumeAttachmentSpec, dialect: Dialect) -> VolumeCapability {
    let group = of.fs_group.filter(|_| dialect.mount_group).map(|group| group.to_string());
    for_group(&of.capability, dialect.newer_modes, group.unwrap_or_default())
}

/// Of `SingleNodeWriter` one user is let in at a time (`plan::release`), which is what SINGLE_NODE_SINGLE_WRITER says.
fn mode(mode: AccessMode, modes: Modes) -> Mode {
    match (mode, modes) {
        (AccessMode::SingleNodeReaderOnly, _) => Mode::SingleNodeReaderOnly,
        (AccessMode::SingleNodeWriter, Modes::Newer)
        | (AccessMode::SingleNodeSingleWriter, Modes::Newer | Modes::Beside) => Mode::SingleNodeSingleWriter,
        (AccessMode::SingleNodeMultiWriter, Modes::Newer | Modes::Beside) => Mode::SingleNodeMultiWriter,
        (AccessMode::SingleNodeWriter, Modes::Old | Modes::Beside)
        | (AccessMode::SingleNodeSingleWriter | AccessMode::SingleNodeMultiWriter, Modes::Old) => {
            Mode::SingleNodeWriter
        }
        (AccessMode::MultiNodeReaderOnly, _) => Mode::MultiNodeReaderOnly,
        (AccessMode::MultiNodeSingleWriter, _) => Mode::MultiNodeSingleWriter,
        (AccessMode::MultiNodeMultiWriter, _) => Mode::MultiNodeMultiWriter,
    }
}

fn capabilities(spec: &VolumeSpec, newer_modes: Modes) -> Vec<VolumeCapability> {
    let of = |access_mode: &AccessMode| Capability { access_mode: *access_mode, ..spec.capability() };
    spec.access_modes.iter().map(|mode| capability(&of(mode), newer_modes)).collect()
}

fn topologies(terms: &[Segments]) -> Vec<proto::Topology> {
    terms.iter().map(|segments| proto::Topology { segments: segments.clone() }).collect()
}

fn content(of: &Content) -> VolumeContentSource {
    let handle = of.handle.clone();
    let kind = if of.snapshot.is_empty() {
        ContentKind::Volume(VolumeSource { volume_id: handle })
    } else {
        ContentKind::Snapshot(SnapshotSource { snapshot_id: handle })
    };
    VolumeContentSource { r#type: Some(kind) }
}

/// CreateSnapshot of what was frozen, under a name that is made of the Snapshot's uid (CO-CTRL-85).
pub fn snapshot(of: &SnapshotOf, uid: &str, secrets: Secrets) -> proto::CreateSnapshotRequest {
    proto::CreateSnapshotRequest {
        source_volume_id: of.handle.clone(),
        name: format!("snap-{uid}"),
        secrets,
        parameters: of.parameters.clone(),
    }
}

/// CreateVolumeGroupSnapshot of what was frozen, likewise (CO-GRP-02).
pub fn group(of: &SnapshotOf, uid: &str, secrets: Secrets) -> proto::CreateVolumeGroupSnapshotRequest {
    proto::CreateVolumeGroupSnapshotRequest {
        name: format!("snap-{uid}"),
        source_volume_ids: of.members.iter().map(|member| member.handle.clone()).collect(),
        secrets,
        parameters: of.parameters.clone(),
    }
}

/// As exact as statuses carry it: what comes back from the API compares equal.
pub fn time(told: Option<prost_types::Timestamp>) -> Option<Time> {
    let told = told?;
    let time = jiff::Timestamp::new(told.seconds, told.nanos).ok()?;
    jiff::Timestamp::from_microsecond(time.as_microsecond()).ok().map(Time)
}

/// One page of ListSnapshots, of a snapshot by its handle.
pub fn list_snapshot(handle: &str, token: &str, secrets: Secrets) -> proto::ListSnapshotsRequest {
    proto::ListSnapshotsRequest {
        max_entries: 0,
        starting_token: token.to_owned(),
        source_volume_id: String::new(),
        snapshot_id: handle.to_owned(),
        secrets,
    }
}

/// CreateVolume from the frozen request.
pub fn create(
    spec: &VolumeSpec,
    source: &CreateSource,
    secrets: Secrets,
    newer_modes: bool,
) -> proto::CreateVolumeRequest {
    let newer_modes = Modes::frozen(source.newer_modes, newer_modes);
    let requirement = proto::TopologyRequirement {
        requisite: topologies(&source.requisite),
        preferred: topologies(&source.preferred),
    };
    let asked = !(requirement.requisite.is_empty() && requirement.preferred.is_empty());
    let range =
        proto::CapacityRange { required_bytes: source.required_bytes, limit_bytes: source.limit_bytes };
    let sized = range.required_bytes != 0 || range.limit_bytes != 0;
    proto::CreateVolumeRequest {
        name: source.name.clone(),
        // Nobody may have said how large it is to be, or how large what it is filled from: then nothing is asked for.
        capacity_range: Some(range).filter(|_| sized),
        volume_capabilities: capabilities(spec, newer_modes),
        parameters: source.parameters.clone(),
        secrets,
        volume_content_source: source.content.as_ref().map(content),
        accessibility_requirements: asked.then_some(requirement),
        mutable_parameters: source.attributes.as_ref().map(|a| a.parameters.clone()).unwrap_or_default(),
    }
}

/// ControllerModifyVolume: everything that the class says, not only what is new.
pub fn modify(
    handle: &str,
    attributes: &Attributes,
    secrets: Secrets,
) -> proto::ControllerModifyVolumeRequest {
    proto::ControllerModifyVolumeRequest {
        volume_id: handle.to_owned(),
        secrets,
        mutable_parameters: attributes.parameters.clone(),
    }
}

/// ValidateVolumeCapabilities for a volume that existed before.
pub fn validate(
    spec: &VolumeSpec,
    handle: &str,
    context: &Map,
    secrets: Secrets,
    newer_modes: Modes,
) -> proto::ValidateVolumeCapabilitiesRequest {
    proto::ValidateVolumeCapabilitiesRequest {
        volume_id: handle.to_owned(),
        volume_context: context.clone(),
        volume_capabilities: capabilities(spec, newer_modes),
        parameters: Map::new(),
        secrets,
        mutable_parameters: Map::new(),
    }
}

/// DeleteVolume.
pub fn delete(handle: &str, secrets: Secrets) -> proto::DeleteVolumeRequest {
    proto::DeleteVolumeRequest { volume_id: handle.to_owned(), secrets }
}

/// ControllerExpandVolume, with the capability that the volume is attached with (CO-CTRL-105).
pub fn expand(
    spec: &VolumeSpec,
    handle: &str,
    size: WantedSize,
    secrets: Secrets,
    newer_modes: Modes,
) -> proto::ControllerExpandVolumeRequest {
    proto::ControllerExpandVolumeRequest {
        volume_id: handle.to_owned(),
        capacity_range: Some(proto::CapacityRange {
            required_bytes: size.required_bytes,
            limit_bytes: size.limit_bytes,
        }),
        secrets,
        volume_capability: Some(capability(&spec.capability(), newer_modes)),
    }
}

/// Where a volume is that a node shall expand, and to what.
pub struct Expand<'a> {
    /// Where it is published, or else staged.
    pub path: &'a str,
    /// The staging path, empty without staging.
    pub staging: &'a str,
    /// To what size, in bytes.
    pub bytes: i64,
    /// The secrets.
    pub secrets: Secrets,
}

/// NodeExpandVolume.
pub fn node_expand(
    of: &VolumeAttachmentSpec,
    with: Expand<'_>,
    dialect: Dialect,
) -> proto::NodeExpandVolumeRequest {
    proto::NodeExpandVolumeRequest {
        volume_id: of.handle.clone(),
        volume_path: with.path.to_owned(),
        capacity_range: Some(proto::CapacityRange { required_bytes: with.bytes, limit_bytes: 0 }),
        staging_target_path: with.staging.to_owned(),
        volume_capability: Some(here(of, dialect)),
        secrets: with.secrets,
    }
}

/// ControllerPublishVolume. `readonly` only where the controller knows it (CO-CTRL-32).
pub fn attach(
    of: &VolumeAttachmentSpec,
    secrets: Secrets,
    controller: csi::ControllerCapabilities,
) -> proto::ControllerPublishVolumeRequest {
    let frozen = of.newer_modes.map(|frozen| frozen.controller);
    let newer_modes = Modes::frozen(frozen, controller.single_node_multi_writer);
    proto::ControllerPublishVolumeRequest {
        volume_id: of.handle.clone(),
        node_id: of.node_id.clone(),
        volume_capability: Some(capability(&of.capability, newer_modes)),
        readonly: of.read_only && controller.publish_readonly,
        secrets,
        volume_context: of.volume_context.clone(),
    }
}

/// ControllerUnpublishVolume. Never without a node id: that would detach everywhere (CO-CTRL-46).
pub fn detach(of: &VolumeAttachmentSpec, secrets: Secrets) -> proto::ControllerUnpublishVolumeRequest {
    proto::ControllerUnpublishVolumeRequest {
        volume_id: of.handle.clone(),
        node_id: of.node_id.clone(),
        secrets,
    }
}

/// NodeStageVolume.
pub fn stage(
    of: &VolumeAttachmentSpec,
    publish_context: &Map,
    staging: &str,
    secrets: Secrets,
    dialect: Dialect,
) -> proto::NodeStageVolumeRequest {
    proto::NodeStageVolumeRequest {
        volume_id: of.handle.clone(),
        publish_context: publish_context.clone(),
        staging_target_path: staging.to_owned(),
        volume_capability: Some(here(of, dialect)),
        secrets,
        volume_context: of.volume_context.clone(),
    }
}

/// What a publication is asked with, beside the attachment.
pub struct Publish<'a> {
    /// What ControllerPublish answered.
    pub publish_context: &'a Map,
    /// The staging path, empty without staging.
    pub staging: &'a str,
    /// The target path.
    pub target: &'a str,
    /// The allocation that it is for, and whether that only reads.
    pub user: (&'a ObjectRef, bool),
    /// The secrets.
    pub secrets: Secrets,
}

/// NodePublishVolume.
pub fn publish(
    of: &VolumeAttachmentSpec,
    with: Publish<'_>,
    dialect: Dialect,
) -> proto::NodePublishVolumeRequest {
    let (allocation, read_only) = with.user;
    proto::NodePublishVolumeRequest {
        volume_id: of.handle.clone(),
        publish_context: with.publish_context.clone(),
        staging_target_path: with.staging.to_owned(),
        target_path: with.target.to_owned(),
        volume_capability: Some(here(of, dialect)),
        readonly: read_only || of.capability.access_mode.read_only(),
        secrets: with.secrets,
        volume_context: context(of, allocation),
    }
}

/// The volume context of a publication. Whose it is stands there for drivers that are to know it alone.
fn context(of: &VolumeAttachmentSpec, allocation: &ObjectRef) -> Map {
    let mut context = of.volume_context.clone();
    if of.pod_info {
        let ObjectRef { namespace, name, uid } = allocation;
        for (key, value) in [("name", name), ("namespace", namespace), ("uid", uid)] {
            context.insert(format!("csi.storage.k8s.io/pod.{key}"), value.clone());
        }
    }
    context
}

/// A failure with the name of the Secret that has to be mended, if that is what it takes (CO-ERR-07).
pub fn naming(mut failure: Failure, secret: Option<&SecretRef>) -> Failure {
    if let (Remedy::RepairSecrets, Some(SecretRef { namespace, name })) = (failure.remedy(), secret) {
        failure.message =
            format!("{}; what it was sent is in the Secret \"{namespace}/{name}\"", failure.message);
    }
    failure
}

/// A finished call as status shows it. `duration` ends now.
pub fn call<T>(method: &str, result: &Result<T, Failure>, attempt: u32, started: Time, now: Time) -> Call {
    let (code, message) = match result {
        Ok(_) => ("OK", String::new()),
        Err(failure) => (failure.code_name(), failure.message.clone()),
    };
    let took = now.0.duration_since(started.0).as_millis();
    Call {
        method: method.to_owned(),
        code: code.to_owned(),
        message,
        start_time: started,
        duration_millis: u64::try_from(took).unwrap_or(0),
        attempt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Obligation CO-GEN-17.
    #[test]
    fn a_capability_is_whole_and_a_block_volume_has_no_file_system() {
        use AccessMode::{
            MultiNodeMultiWriter, MultiNodeReaderOnly, MultiNodeSingleWriter, SingleNodeMultiWriter,
            SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeWriter,
        };
        let modes = [
            SingleNodeWriter,
            SingleNodeReaderOnly,
            SingleNodeSingleWriter,
            SingleNodeMultiWriter,
            MultiNodeReaderOnly,
            MultiNodeSingleWriter,
            MultiNodeMultiWriter,
        ];
        let words = [Modes::Old, Modes::Beside, Modes::Newer];
        for (access_mode, newer) in modes.into_iter().flat_map(|mode| words.map(|newer| (mode, newer))) {
            let of = |volume_mode| Capability {
                access_mode,
                volume_mode,
                fs_type: "ext4".into(),
                mount_options: vec!["noatime".into()],
            };
            let block = capability(&of(VolumeMode::Block), newer);
            assert_eq!(block.access_type, Some(AccessType::Block(BlockVolume {})));
            let mounted = capability(&of(VolumeMode::Filesystem), newer);
            let Some(AccessType::Mount(mount)) = mounted.access_type else { panic!("{access_mode:?}") };
            assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("ext4", vec!["noatime".to_owned()]));
            assert_eq!(block.access_mode, mounted.access_mode);
            let mode = block.access_mode.map_or(0, |mode| mode.mode);
            assert!(Mode::try_from(mode).is_ok_and(|mode| mode != Mode::Unknown), "{access_mode:?}");
        }
    }

    /// Obligation CO-GEN-18.
    #[test]
    fn each_mode_has_its_word_before_and_after_the_newer_ones_came() {
        // What was said before, beside the newer ones, and with them.
        let table = [
            (
                AccessMode::SingleNodeWriter,
                [Mode::SingleNodeWriter, Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter],
            ),
            (AccessMode::SingleNodeReaderOnly, [Mode::SingleNodeReaderOnly; 3]),
            (
                AccessMode::SingleNodeSingleWriter,
                [Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter, Mode::SingleNodeSingleWriter],
            ),
            (
                AccessMode::SingleNodeMultiWriter,
                [Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter, Mode::SingleNodeMultiWriter],
            ),
            (AccessMode::MultiNodeReaderOnly, [Mode::MultiNodeReaderOnly; 3]),
            (AccessMode::MultiNodeSingleWriter, [Mode::MultiNodeSingleWriter; 3]),
            (AccessMode::MultiNodeMultiWriter, [Mode::MultiNodeMultiWriter; 3]),
        ];
        for (ours, said) in table {
            assert_eq!(
                [Modes::Old, Modes::Beside, Modes::Newer].map(|words| mode(ours, words)),
                said,
                "{ours:?}"
            );
        }
    }

    #[test]
    fn what_an_earlier_version_began_on_a_node_goes_on_as_it_was() {
        for can in [false, true] {
            for frozen in [None, Some(false), Some(true)] {
                assert_eq!(Modes::first(Some(true), frozen, can), Modes::Beside, "{frozen:?} {can}");
                assert_eq!(Modes::first(Some(false), frozen, can), Modes::Old, "{frozen:?} {can}");
                assert_eq!(Modes::first(None, frozen, can), Modes::frozen(frozen, can), "{frozen:?} {can}");
            }
        }
    }

    #[test]
    fn a_volume_is_asked_for_in_the_modes_that_were_frozen() {
        let spec = VolumeSpec { access_modes: vec![AccessMode::SingleNodeWriter], ..VolumeSpec::default() };
        for (frozen, can, words) in [
            (None, false, Modes::Old),
            (None, true, Modes::Beside),
            (Some(false), false, Modes::Old),
            (Some(false), true, Modes::Old),
            (Some(true), false, Modes::Newer),
            (Some(true), true, Modes::Newer),
        ] {
            assert_eq!(Modes::frozen(frozen, can), words, "{frozen:?} {can}");
            let source = CreateSource { newer_modes: frozen, ..CreateSource::default() };
            let request = create(&spec, &source, Secrets::new(), can);
            let said = request.volume_capabilities[0].access_mode.map(|mode| mode.mode());
            assert_eq!(said, Some(mode(AccessMode::SingleNodeWriter, words)), "{frozen:?} {can}");
        }
    }

    /// Obligation CO-GEN-20.
    #[test]
    fn a_range_of_sizes_says_something_or_is_left_out() {
        for (required_bytes, limit_bytes) in [(0, 0), (1, 0), (0, 1), (2, 2), (1, 2)] {
            let source = CreateSource { required_bytes, limit_bytes, ..CreateSource::default() };
            let range = create(&VolumeSpec::default(), &source, Secrets::new(), true).capacity_range;
            let wanted = (required_bytes + limit_bytes > 0)
                .then_some(proto::CapacityRange { required_bytes, limit_bytes });
            assert_eq!(range, wanted);
        }
    }
}
