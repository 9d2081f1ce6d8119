//! Is what a plugin answered legal? Each fault is a sentence that a person understands.
//!
//! Where the contract's limits are tighter than what known drivers keep to, the limits here are wider, and the
//! constants say so. Judges answers only; never what we send.
use std::collections::BTreeMap;

pub(super) mod blocks;
mod entries;
mod sizes;
mod snapshots;
mod usage;

pub use blocks::{Block, BlockKind, Blocks, Sequence};
pub use entries::{Condition, Pages, Room, got_volume, listed, published_nodes, room, worse};
pub use sizes::{Expanded, expanded, node_expanded};
pub use snapshots::{
    group, group_got, group_is_ready, group_taken, snapshot, snapshot_got, snapshot_listed, snapshot_taken,
};
pub use usage::{Stats, Usage, stats};

use super::proto::volume_capability::AccessType;
use super::proto::{
    CreateVolumeRequest, GetPluginInfoResponse, NodeGetInfoResponse, Topology,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume, VolumeCapability,
};
use super::{failure, hiding};

/// Longest driver name, in characters.
pub const MAX_PLUGIN_NAME: usize = 63;
/// Longest node id, in bytes.
pub const MAX_NODE_ID: usize = 256;
/// Longest volume id taken, in bytes. The contract's limit for strings is 128; drivers go beyond it.
pub const MAX_VOLUME_ID: usize = 1024;
/// Largest map taken, keys and values together, in bytes. The contract's limit is 4 KiB; drivers go beyond it, and
/// what must be held is that our objects stay small.
pub const MAX_MAP: usize = 64 * 1024;
/// Longest prefix, name and value of a topology segment, in characters.
pub const MAX_TOPOLOGY_PART: usize = 63;
/// Most segments of one topology, and most topologies of one volume.
pub const MAX_TOPOLOGIES: usize = 256;

/// What a message calls the plugin's id of a node.
const NODE_ID: &str = "plugin's id for this node";

/// What is wrong with an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// `GetPluginInfo` without a name.
    #[error("the plugin reports no name")]
    NoPluginName,
    /// A name outside the contract's form.
    #[error(
        "the plugin's name {name:?} is not of at most {MAX_PLUGIN_NAME} letters, digits, '-' and '.', \
         with a letter or digit at both ends"
    )]
    IllegalPluginName {
        /// As reported, cut if it is long.
        name: String,
    },
    /// `GetPluginInfo` without a version.
    #[error("the plugin reports no version")]
    NoVersion,
    /// `NodeGetInfo` without a node id.
    #[error("the plugin reports no id for this node")]
    NoNodeId,
    /// A node id above the limit.
    #[error("the plugin's id for this node has {length} bytes; at most {MAX_NODE_ID} are allowed")]
    NodeIdTooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// `max_volumes_per_node` below zero.
    #[error("the plugin reports a limit of {limit} volumes for this node")]
    NegativeLimit {
        /// As reported.
        limit: i64,
    },
    /// A key that breaks the rule for topology keys.
    #[error(
        "the topology key {key:?} is not a name of letters, digits, '-', '_' and '.' with an optional domain prefix"
    )]
    IllegalTopologyKey {
        /// As reported, cut if it is long.
        key: String,
    },
    /// Two keys that differ in case only.
    #[error("the topology key {key:?} is reported twice, in different case")]
    RepeatedTopologyKey {
        /// The later one.
        key: String,
    },
    /// A value that breaks the rule for topology values.
    #[error("the value {value:?} of topology key {key:?} is not of letters, digits, '-', '_' and '.'")]
    IllegalTopologyValue {
        /// Its key.
        key: String,
        /// As reported, cut if it is long.
        value: String,
    },
    /// More segments or topologies than can be meant.
    #[error("{count} topology entries are reported; at most {MAX_TOPOLOGIES} are taken")]
    TooManyTopologies {
        /// How many.
        count: usize,
    },
    /// `CreateVolume` without a volume.
    #[error("the answer holds no volume")]
    NoVolume,
    /// A volume without an id.
    #[error("the volume has no id")]
    NoVolumeId,
    /// A volume id above the limit.
    #[error("the volume's id has {length} bytes; at most {MAX_VOLUME_ID} are taken")]
    VolumeIdTooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// An id that would write over lines or terminals. Slashes and spaces are an id's own affair: no path is made of it.
    #[error("the {what} {id:?} holds a control character")]
    ControlCharacter {
        /// Whose id.
        what: &'static str,
        /// As reported, cut if it is long.
        id: String,
    },
    /// A map above the limit.
    #[error("the {field} holds {length} bytes; at most {MAX_MAP} are taken")]
    MapTooLarge {
        /// Its name in the contract.
        field: &'static str,
        /// Keys and values together, in bytes.
        length: usize,
    },
    /// A capacity below zero.
    #[error("the volume's capacity is reported as {bytes} bytes")]
    NegativeCapacity {
        /// As reported.
        bytes: i64,
    },
    /// A capacity that was not asked for.
    #[error("the volume has {bytes} bytes; asked for were {}", sizes::range(*required, *limit))]
    CapacityOutOfRange {
        /// As reported.
        bytes: i64,
        /// Asked for at least.
        required: i64,
        /// Asked for at most; zero for no limit.
        limit: i64,
    },
    /// A source was asked for and is not confirmed: the volume may be empty.
    #[error("the plugin does not confirm that the volume was filled from the source asked for")]
    SourceNotConfirmed,
    /// A snapshot or a group of them was asked for or made, and there is none.
    #[error("the answer holds no {what}")]
    Nothing {
        /// Of what.
        what: &'static str,
    },
    /// A snapshot or a group without an id.
    #[error("the {what} has no id")]
    NoId {
        /// Whose.
        what: &'static str,
    },
    /// The id of a snapshot or a group above the limit.
    #[error("the {what}'s id has {length} bytes; at most {MAX_VOLUME_ID} are taken")]
    IdTooLong {
        /// Whose.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
    },
    /// The answer is about something that was not asked about.
    #[error("the answer is about the {what} {told:?}, which was not asked about")]
    AnotherOne {
        /// What it is.
        what: &'static str,
        /// As reported, cut if it is long.
        told: String,
    },
    /// A snapshot of a size below zero.
    #[error("the snapshot's size is reported as {bytes} bytes")]
    NegativeSize {
        /// As reported.
        bytes: i64,
    },
    /// A time that no calendar has.
    #[error("the time of the {what} is reported as {seconds} s and {nanos} ns")]
    IllegalTime {
        /// Whose.
        what: &'static str,
        /// Since 1970.
        seconds: i64,
        /// Beside them.
        nanos: i32,
    },
    /// The snapshots of a group are not one of each volume, or not of this group.
    #[error("the group's snapshots are wrong: {why}")]
    WrongMembers {
        /// In what.
        why: &'static str,
    },
    /// More entries on a page than were asked for.
    #[error("a page holds {count} entries; at most {most} were asked for")]
    TooManyEntries {
        /// How many.
        count: usize,
        /// How many were asked for.
        most: i32,
    },
    /// The pages of a list go round in a circle, or have no end.
    #[error("the list does not end: {why}")]
    EndlessList {
        /// How that is known.
        why: &'static str,
    },
    /// Free space, or a bound of sizes, below zero.
    #[error("the {field} is reported as {bytes} bytes")]
    NegativeRoom {
        /// Its name in the contract.
        field: &'static str,
        /// As reported.
        bytes: i64,
    },
    /// A stream of blocks that contradicts itself: nothing of it can be believed.
    #[error("the list of blocks is wrong: {why}")]
    WrongBlocks {
        /// In what.
        why: &'static str,
    },
}

impl Fault {
    /// One `CamelCase` word for a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoPluginName | Self::IllegalPluginName { .. } => "IllegalPluginName",
            Self::NoVersion => "NoPluginVersion",
            Self::NoNodeId | Self::NodeIdTooLong { .. } => "IllegalNodeID",
            Self::NegativeLimit { .. } => "IllegalVolumeLimit",
            Self::IllegalTopologyKey { .. }
            | Self::RepeatedTopologyKey { .. }
            | Self::IllegalTopologyValue { .. }
            | Self::TooManyTopologies { .. } => "IllegalTopology",
            Self::NoVolume | Self::NoVolumeId | Self::VolumeIdTooLong { .. } => "IllegalVolumeID",
            Self::ControlCharacter { what: NODE_ID, .. } => "IllegalNodeID",
            Self::ControlCharacter { .. } => "IllegalVolumeID",
            Self::MapTooLarge { .. } => "AnswerTooLarge",
            Self::NegativeCapacity { .. } | Self::CapacityOutOfRange { .. } => "WrongCapacity",
            Self::SourceNotConfirmed => "SourceNotConfirmed",
            Self::Nothing { .. } | Self::NoId { .. } | Self::IdTooLong { .. } => "IllegalSnapshotID",
            Self::AnotherOne { .. } => "AnotherAnswer",
            Self::NegativeSize { .. } | Self::IllegalTime { .. } => "IllegalSnapshot",
            Self::WrongMembers { .. } => "WrongMembers",
            Self::TooManyEntries { .. } | Self::EndlessList { .. } => "IllegalList",
            Self::NegativeRoom { .. } => "IllegalCapacity",
            Self::WrongBlocks { .. } => "WrongBlocks",
        }
    }
}

/// The answer of `GetPluginInfo`.
pub fn plugin_info(info: &GetPluginInfoResponse) -> Result<(), Fault> {
    if info.name.is_empty() {
        return Err(Fault::NoPluginName);
    }
    if !is_plugin_name(&info.name) {
        return Err(Fault::IllegalPluginName { name: cut(&info.name) });
    }
    if info.vendor_version.is_empty() {
        return Err(Fault::NoVersion);
    }
    map("manifest", &info.manifest)
}

/// The answer of `NodeGetInfo`.
pub fn node_info(info: &NodeGetInfoResponse) -> Result<(), Fault> {
    if info.node_id.is_empty() {
        return Err(Fault::NoNodeId);
    }
    if info.node_id.len() > MAX_NODE_ID {
        return Err(Fault::NodeIdTooLong { length: info.node_id.len() });
    }
    printable(NODE_ID, &info.node_id)?;
    if info.max_volumes_per_node < 0 {
        return Err(Fault::NegativeLimit { limit: info.max_volumes_per_node });
    }
    info.accessible_topology.as_ref().map_or(Ok(()), topology)
}

/// The segments of one topology. The contract also wants one prefix for all keys of a plugin; widely used drivers
/// report several (their own beside `topology.kubernetes.io`), so that is not held against them.
pub fn topology(topology: &Topology) -> Result<(), Fault> {
    if topology.segments.len() > MAX_TOPOLOGIES {
        return Err(Fault::TooManyTopologies { count: topology.segments.len() });
    }
    let mut seen = std::collections::BTreeSet::new();
    for (key, value) in &topology.segments {
        if !is_topology_key(key) {
            return Err(Fault::IllegalTopologyKey { key: cut(key) });
        }
        if !seen.insert(key.to_ascii_lowercase()) {
            return Err(Fault::RepeatedTopologyKey { key: key.clone() });
        }
        if !is_topology_part(value) {
            return Err(Fault::IllegalTopologyValue { key: key.clone(), value: cut(value) });
        }
    }
    Ok(())
}

/// A volume as `CreateVolume` returned it, taken by itself.
pub fn volume(volume: Option<&Volume>) -> Result<&Volume, Fault> {
    let volume = volume.ok_or(Fault::NoVolume)?;
    if volume.volume_id.is_empty() {
        return Err(Fault::NoVolumeId);
    }
    if volume.volume_id.len() > MAX_VOLUME_ID {
        return Err(Fault::VolumeIdTooLong { length: volume.volume_id.len() });
    }
    printable("volume's id", &volume.volume_id)?;
    map("volume_context", &volume.volume_context)?;
    Ok(volume)
}

/// A volume against the request that made it. The volume exists, whatever is wrong with it, and has to be deleted.
pub fn created(request: &CreateVolumeRequest, volume: &Volume) -> Result<(), Fault> {
    let bytes = volume.capacity_bytes;
    if bytes < 0 {
        return Err(Fault::NegativeCapacity { bytes });
    }
    let (required, limit) =
        request.capacity_range.as_ref().map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
    // Zero is "not known", which shares on file servers report.
    if bytes != 0 && (bytes < required || (limit != 0 && bytes > limit)) {
        return Err(Fault::CapacityOutOfRange { bytes, required, limit });
    }
    if request.volume_content_source.is_some() && request.volume_content_source != volume.content_source {
        return Err(Fault::SourceNotConfirmed);
    }
    if volume.accessible_topology.len() > MAX_TOPOLOGIES {
        return Err(Fault::TooManyTopologies { count: volume.accessible_topology.len() });
    }
    volume.accessible_topology.iter().try_for_each(topology)
}

fn printable(what: &'static str, id: &str) -> Result<(), Fault> {
    if id.chars().any(char::is_control) { Err(Fault::ControlCharacter { what, id: cut(id) }) } else { Ok(()) }
}

/// A map of an answer, such as `publish_context`.
pub fn map(field: &'static str, entries: &BTreeMap<String, String>) -> Result<(), Fault> {
    let length = entries.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
    if length > MAX_MAP { Err(Fault::MapTooLarge { field, length }) } else { Ok(()) }
}

/// What `ValidateVolumeCapabilities` said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// All that was asked is confirmed.
    Confirmed,
    /// Nothing is confirmed; the plugin's own words, if any, as a person may read them.
    NotConfirmed(String),
    /// The plugin confirmed something else than was asked: it did not understand the question. The field in which it differs.
    Contradicted(&'static str),
}

/// Compares the answer of `ValidateVolumeCapabilities` with the question: an old plugin may ignore what is new in it.
/// Parts that the plugin leaves out of its echo are not held against it; many do.
pub fn confirmation(
    asked: &ValidateVolumeCapabilitiesRequest,
    answer: &ValidateVolumeCapabilitiesResponse,
) -> Confirmation {
    let Some(confirmed) = &answer.confirmed else {
        let secrets = hiding::searched(asked.secrets.values());
        return Confirmation::NotConfirmed(failure::clean(&answer.message, &secrets));
    };
    let capabilities = confirmed.volume_capabilities.is_empty()
        || asked
            .volume_capabilities
            .iter()
            .all(|asked| confirmed.volume_capabilities.iter().any(|echo| echoes(asked, echo)));
    let same = |asked: &BTreeMap<String, String>, echo: &BTreeMap<String, String>| {
        echo.iter().all(|(key, value)| asked.get(key) == Some(value))
    };
    let parts = [
        ("volume_capabilities", capabilities),
        ("volume_context", same(&asked.volume_context, &confirmed.volume_context)),
        ("parameters", same(&asked.parameters, &confirmed.parameters)),
        ("mutable_parameters", same(&asked.mutable_parameters, &confirmed.mutable_parameters)),
    ];
    let differs = parts.iter().find(|(_, same)| !same);
    differs.map_or(Confirmation::Confirmed, |(field, _)| Confirmation::Contradicted(field))
}

fn echoes(asked: &VolumeCapability, echo: &VolumeCapability) -> bool {
    let mode = match (&asked.access_mode, &echo.access_mode) {
        (Some(asked), Some(echo)) => asked.mode == echo.mode || echo.mode == 0,
        (_, None) => true,
        (None, Some(_)) => false,
    };
    let kind = match (&asked.access_type, &echo.access_type) {
        (_, None) | (Some(AccessType::Block(_)), Some(AccessType::Block(_))) => true,
        (Some(AccessType::Mount(asked)), Some(AccessType::Mount(echo))) => {
            (echo.fs_type.is_empty() || echo.fs_type == asked.fs_type)
                && (echo.mount_flags.is_empty() || echo.mount_flags == asked.mount_flags)
                && (echo.volume_mount_group.is_empty() || echo.volume_mount_group == asked.volume_mount_group)
        }
        (Some(AccessType::Block(_)), Some(AccessType::Mount(_)))
        | (Some(AccessType::Mount(_)), Some(AccessType::Block(_)))
        | (None, Some(_)) => false,
    };
    mode && kind
}

fn is_plugin_name(name: &str) -> bool {
    name.len() <= MAX_PLUGIN_NAME
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.'))
        && ends_alphanumeric(name)
        && !name.contains("..")
}

fn is_topology_key(key: &str) -> bool {
    match key.split_once('/') {
        None => is_topology_part(key),
        Some((prefix, name)) => {
            is_topology_part(name)
                && prefix.len() <= MAX_TOPOLOGY_PART
                && ends_alphanumeric(prefix)
                && !prefix.contains("..")
                && prefix.chars().all(|letter| {
                    letter.is_ascii_lowercase() || letter.is_ascii_digit() || matches!(letter, '-' | '.')
                })
        }
    }
}

fn is_topology_part(part: &str) -> bool {
    part.len() <= MAX_TOPOLOGY_PART
        && ends_alphanumeric(part)
        && part.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.'))
}

/// Both ends are letters or digits, so it is not empty either.
fn ends_alphanumeric(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}

/// What a message shows of a text that may be of any length.
fn cut(text: &str) -> String {
    const SHOWN: usize = 100;
    let shown = text.chars().take(SHOWN).collect::<String>();
    if shown.len() < text.len() { format!("{shown}…") } else { shown }
}

#[cfg(test)]
mod tests;
