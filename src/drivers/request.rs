//! Requests parsed into values that cannot be wrong: what is not in the contract, or more than a driver can do, ends here.
//!
//! What is the same for every driver; what one of them can do of it, it says itself ([`Offer`]).
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

mod source;

pub(super) use source::{Source, grown, growth, size_from, source};

use super::refusal::Refusal;
use crate::csi::proto;
use crate::csi::proto::volume_capability::AccessType;
use crate::csi::proto::volume_capability::access_mode::Mode;

/// Bytes of a name that every plugin must take, and the most that a caller may send.
const LONGEST_NAME: usize = 128;
const LONGEST_PATH: usize = 4095;
/// Keys that Kubernetes' sidecars add for their own bookkeeping; they ask nothing of the driver.
const FOREIGN_PARAMETERS: &str = "csi.storage.k8s.io/";
/// Mount flags that concern no particular file system.
pub(super) const MOUNT_OPTIONS: [&str; 8] =
    ["ro", "rw", "nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime"];

fn invalid(field: &'static str, problem: impl Into<String>) -> Refusal {
    Refusal::Invalid { field, problem: problem.into() }
}

/// The name of a volume to be, which is also the key under which a repeated request finds it.
pub(super) fn name(name: &str) -> Result<&str, Refusal> {
    // As the contract has it: tab, line feed and carriage return are allowed.
    let forbidden = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    if name.is_empty() {
        Err(invalid("name", "is missing"))
    } else if name.len() > LONGEST_NAME {
        Err(invalid("name", format!("has {} bytes; at most {LONGEST_NAME} are allowed", name.len())))
    } else if name.contains(forbidden) {
        Err(invalid("name", "holds a control character"))
    } else {
        Ok(name)
    }
}

/// The id of a volume: 20 hexadecimal digits, and so always a safe file name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct VolumeId(String);

impl VolumeId {
    const DIGITS: usize = 20;

    /// The id of the volume called `name` in the data directory `root` of `owner`. The same name elsewhere has another
    /// one, or two drivers on one node would take each other's mounts for their own.
    pub(super) fn of(owner: &str, root: &Path, name: &str) -> Self {
        let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
        for part in [owner.as_bytes(), root.as_os_str().as_bytes(), name.as_bytes()] {
            digest.update(&part.len().to_le_bytes());
            digest.update(part);
        }
        let digest = digest.finish();
        let mut id = String::with_capacity(Self::DIGITS);
        for byte in &digest.as_ref()[..Self::DIGITS / 2] {
            let _ = write!(id, "{byte:02x}");
        }
        Self(id)
    }

    /// `None` for what cannot be an id of this driver.
    pub(super) fn parse(id: &str) -> Option<Self> {
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (id.len() == Self::DIGITS && id.bytes().all(digit)).then(|| Self(id.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for VolumeId {
    type Error = String;

    fn try_from(id: String) -> Result<Self, String> {
        Self::parse(&id).ok_or_else(|| format!("{id:?} is no volume id"))
    }
}

impl From<VolumeId> for String {
    fn from(id: VolumeId) -> Self {
        id.0
    }
}

/// The id of a snapshot in a request; as [`volume_id`].
pub(super) fn snapshot_id(id: &str) -> Result<Option<VolumeId>, Refusal> {
    if id.is_empty() { Err(invalid("snapshot_id", "is missing")) } else { Ok(VolumeId::parse(id)) }
}

/// The id in a request; `None` when it is set but cannot be an id of this driver, and so names no volume.
pub(super) fn volume_id(id: &str) -> Result<Option<VolumeId>, Refusal> {
    if id.is_empty() { Err(invalid("volume_id", "is missing")) } else { Ok(VolumeId::parse(id)) }
}

/// How a volume may be used. The names are in records on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AccessMode {
    /// SINGLE_NODE_WRITER, which leaves open how many; one target, as the contract has it.
    Writer,
    /// SINGLE_NODE_READER_ONLY
    ReaderOnly,
    /// SINGLE_NODE_SINGLE_WRITER
    SingleWriter,
    /// SINGLE_NODE_MULTI_WRITER, of those for one node the only one with several targets
    MultiWriter,
    /// MULTI_NODE_READER_ONLY
    NodesReaderOnly,
    /// MULTI_NODE_SINGLE_WRITER
    NodesSingleWriter,
    /// MULTI_NODE_MULTI_WRITER
    NodesMultiWriter,
}

impl AccessMode {
    fn read(mode: i32) -> Result<Self, CapabilityFault> {
        use CapabilityFault::{Malformed, Unsupported};
        match Mode::try_from(mode) {
            Ok(Mode::Unknown) => Err(Malformed("access_mode is UNKNOWN".into())),
            Ok(Mode::SingleNodeWriter) => Ok(Self::Writer),
            Ok(Mode::SingleNodeReaderOnly) => Ok(Self::ReaderOnly),
            Ok(Mode::SingleNodeSingleWriter) => Ok(Self::SingleWriter),
            Ok(Mode::SingleNodeMultiWriter) => Ok(Self::MultiWriter),
            Ok(Mode::MultiNodeReaderOnly) => Ok(Self::NodesReaderOnly),
            Ok(Mode::MultiNodeSingleWriter) => Ok(Self::NodesSingleWriter),
            Ok(Mode::MultiNodeMultiWriter) => Ok(Self::NodesMultiWriter),
            Err(_) => Err(Unsupported(format!("access mode {mode} is not known"))),
        }
    }

    fn wire(self) -> Mode {
        match self {
            Self::Writer => Mode::SingleNodeWriter,
            Self::ReaderOnly => Mode::SingleNodeReaderOnly,
            Self::SingleWriter => Mode::SingleNodeSingleWriter,
            Self::MultiWriter => Mode::SingleNodeMultiWriter,
            Self::NodesReaderOnly => Mode::MultiNodeReaderOnly,
            Self::NodesSingleWriter => Mode::MultiNodeSingleWriter,
            Self::NodesMultiWriter => Mode::MultiNodeMultiWriter,
        }
    }

    /// Its name in the contract.
    pub(super) fn name(self) -> &'static str {
        self.wire().as_str_name()
    }

    /// Whether several nodes may have the volume at once.
    pub(super) fn is_for_nodes(self) -> bool {
        match self {
            Self::Writer | Self::ReaderOnly | Self::SingleWriter | Self::MultiWriter => false,
            Self::NodesReaderOnly | Self::NodesSingleWriter | Self::NodesMultiWriter => true,
        }
    }

    /// Whether one node may have several targets.
    pub(super) fn is_for_targets(self) -> bool {
        self == Self::MultiWriter || self.is_for_nodes()
    }

    /// Whether nobody may write.
    pub(super) fn is_read_only(self) -> bool {
        matches!(self, Self::ReaderOnly | Self::NodesReaderOnly)
    }
}

/// One way of use that a driver can serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Capability {
    pub(super) mode: AccessMode,
    /// As a device; then neither of the others is set.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) block: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) fs_type: String,
    /// As sent, because a repeated publish must bring the same ones. All are among the options that the driver knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) mount_flags: Vec<String>,
}

/// Why a capability is not one of ours. The texts never repeat mount flags: people put passwords there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CapabilityFault {
    /// The contract forbids it.
    Malformed(String),
    /// The contract allows it and the driver cannot do it.
    Unsupported(String),
}

impl CapabilityFault {
    /// For calls to which both faults are the same.
    pub(super) fn refusal(self, field: &'static str) -> Refusal {
        match self {
            Self::Malformed(problem) | Self::Unsupported(problem) => invalid(field, problem),
        }
    }
}

/// What a driver can do of what the contract allows.
pub(super) trait Offer {
    /// Says what is beyond it. Mount flags were looked at already.
    fn includes(&self, capability: &Capability) -> Result<(), String>;

    /// The mount flags that it knows.
    fn mount_options(&self) -> &'static [&'static str];
}

/// Reads one capability.
pub(super) fn capability(
    asked: &proto::VolumeCapability,
    offer: &impl Offer,
) -> Result<Capability, CapabilityFault> {
    use CapabilityFault::{Malformed, Unsupported};
    let mode = asked.access_mode.as_ref().ok_or_else(|| Malformed("access_mode is missing".into()))?;
    let access = asked.access_type.as_ref().ok_or_else(|| Malformed("access_type is missing".into()))?;
    let mode = AccessMode::read(mode.mode)?;
    let capability = match access {
        AccessType::Block(_) => Capability { mode, block: true, fs_type: String::new(), mount_flags: vec![] },
        AccessType::Mount(mount) if !mount.volume_mount_group.is_empty() => {
            return Err(Unsupported("volume_mount_group is not supported".into()));
        }
        AccessType::Mount(mount) => {
            let (fs_type, mount_flags) = (mount.fs_type.clone(), mount.mount_flags.clone());
            Capability { mode, block: false, fs_type, mount_flags }
        }
    };
    let options = offer.mount_options();
    if !capability.mount_flags.iter().all(|flag| options.contains(&flag.as_str())) {
        return Err(Unsupported(format!("of mount_flags only {} are supported", options.join(", "))));
    }
    offer.includes(&capability).map_err(Unsupported)?;
    Ok(capability)
}

/// Reads the capability of a call that has one.
pub(super) fn the_capability(
    asked: Option<&proto::VolumeCapability>,
    offer: &impl Offer,
) -> Result<Capability, Refusal> {
    const FIELD: &str = "volume_capability";
    let asked = asked.ok_or_else(|| invalid(FIELD, "is missing"))?;
    capability(asked, offer).map_err(|fault| fault.refusal(FIELD))
}

/// Reads the capability of a call that may have one.
pub(super) fn any_capability(
    asked: Option<&proto::VolumeCapability>,
    offer: &impl Offer,
) -> Result<Option<Capability>, Refusal> {
    asked.map(|asked| the_capability(Some(asked), offer)).transpose()
}

/// Reads capabilities of which every one must be possible.
pub(super) fn capabilities(
    asked: &[proto::VolumeCapability],
    offer: &impl Offer,
) -> Result<Vec<Capability>, Refusal> {
    const FIELD: &str = "volume_capabilities";
    if asked.is_empty() {
        return Err(invalid(FIELD, "are missing"));
    }
    asked.iter().map(|one| capability(one, offer).map_err(|fault| fault.refusal(FIELD))).collect()
}

/// What of the rest of a ValidateVolumeCapabilities is not as it was when the volume was made. No driver here gives out a
/// volume context or knows mutable parameters.
pub(super) fn differs(
    asked: &proto::ValidateVolumeCapabilitiesRequest,
    parameters: &BTreeMap<String, String>,
) -> Option<&'static str> {
    if !asked.volume_context.is_empty() {
        Some("volume_context is not the one this driver gave")
    } else if !asked.parameters.is_empty() && asked.parameters != *parameters {
        Some("parameters are not those the volume was made with")
    } else if !asked.mutable_parameters.is_empty() {
        Some("mutable_parameters are not supported")
    } else {
        None
    }
}

/// The answer that all of it is possible.
pub(super) fn confirmed(
    asked: proto::ValidateVolumeCapabilitiesRequest,
) -> proto::ValidateVolumeCapabilitiesResponse {
    let confirmed = proto::validate_volume_capabilities_response::Confirmed {
        volume_context: asked.volume_context,
        volume_capabilities: asked.volume_capabilities,
        parameters: asked.parameters,
        mutable_parameters: asked.mutable_parameters,
    };
    proto::ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() }
}

/// Bytes that a volume must have and may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) required: u64,
    pub(super) limit: Option<u64>,
}

impl Size {
    /// Whether a volume that was promised `capacity` bytes satisfies this.
    pub(super) fn allows(self, capacity: u64) -> bool {
        self.required <= capacity && self.limit.is_none_or(|limit| capacity <= limit)
    }
}

/// Reads a capacity range; none at all is a volume of no promised size.
pub(super) fn size(range: Option<&proto::CapacityRange>) -> Result<Size, Refusal> {
    let Some(range) = range else { return Ok(Size::default()) };
    let bytes = |value: i64| {
        u64::try_from(value).map_err(|_| invalid("capacity_range", format!("{value} bytes are negative")))
    };
    let (required, limit) = (bytes(range.required_bytes)?, bytes(range.limit_bytes)?);
    if required == 0 && limit == 0 {
        return Err(invalid("capacity_range", "sets neither required_bytes nor limit_bytes"));
    }
    if limit != 0 && limit < required {
        return Err(Refusal::EmptyRange { required, limit });
    }
    Ok(Size { required, limit: (limit != 0).then_some(limit) })
}

/// A place for a volume: an entry of a directory that the caller made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct TargetPath(PathBuf);

impl TargetPath {
    pub(super) fn as_path(&self) -> &Path {
        &self.0
    }

    /// The directory that the caller made.
    pub(super) fn parent(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new("/"))
    }

    /// The entry that this driver makes in it.
    pub(super) fn leaf(&self) -> &Path {
        self.0.file_name().map_or(Path::new(""), Path::new)
    }
}

/// Reads a path to be mounted on: absolute, without `..`.
pub(super) fn path(field: &'static str, path: &str) -> Result<TargetPath, Refusal> {
    if path.is_empty() {
        return Err(invalid(field, "is missing"));
    }
    let climbs = Path::new(path).components().any(|part| part == Component::ParentDir);
    if !path.starts_with('/') || climbs || path.contains('\0') {
        return Err(invalid(field, format!("{path:?} is not absolute or climbs")));
    }
    if path.len() > LONGEST_PATH {
        return Err(invalid(field, format!("has {} bytes; at most {LONGEST_PATH} are possible", path.len())));
    }
    // Rebuilt from its parts, so that `/a//b/` and `/a/b` are one target.
    let whole: PathBuf = Path::new(path).components().collect();
    if whole.file_name().is_none() {
        return Err(invalid(field, "is the root directory"));
    }
    Ok(TargetPath(whole))
}

/// Whether a key is none of a driver's, but one that callers add by themselves.
pub(super) fn is_foreign(key: &str) -> bool {
    key.starts_with(FOREIGN_PARAMETERS)
}

/// Refuses parameters, of which no driver here has any.
pub(super) fn no_parameters<'a>(
    field: &'static str,
    keys: impl IntoIterator<Item = &'a String>,
) -> Result<(), Refusal> {
    match keys.into_iter().find(|key| !is_foreign(key)) {
        Some(key) => Err(invalid(field, format!("{key:?} is not known; this driver takes none"))),
        None => Ok(()),
    }
}

/// Whether the requirement lets a volume be reachable from the node with exactly these `segments`.
pub(super) fn topology_allows(
    requirement: Option<&proto::TopologyRequirement>,
    segments: &proto::Topology,
) -> Result<bool, Refusal> {
    let Some(requirement) = requirement else { return Ok(true) };
    if requirement.requisite.is_empty() && requirement.preferred.is_empty() {
        return Err(invalid(
            "accessibility_requirements",
            "names neither requisite nor preferred topologies",
        ));
    }
    // Preferred alone is a wish: the caller chose this instance, and it has one place to offer.
    let requisite = &requirement.requisite;
    Ok(requisite.is_empty() || requisite.iter().any(|term| matches(term, segments)))
}

/// Whether a node with `segments` is in `term`: every key of the term with its value.
pub(super) fn matches(term: &proto::Topology, segments: &proto::Topology) -> bool {
    term.segments.iter().all(|(key, value)| segments.segments.get(key) == Some(value))
}

#[cfg(test)]
mod tests;
