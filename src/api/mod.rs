//! VALUES: the kinds, conditions, names and their validation.
//!
//! Nothing here does I/O, reads a clock or knows a client. Every kind is one file; [`definitions`] lists them
//! as data, which is all that the server needs to serve them.
pub mod allocation;
pub mod attributes;
pub mod audit;
pub mod blocks;
pub mod capability;
pub mod claim;
pub mod class;
pub mod crd;
pub mod definitions;
pub mod field;
pub mod kind;
pub mod meta;
pub mod node_agent;
pub mod plugin;
pub mod quantity;
pub mod room;
pub mod runtime;
pub mod schedule;
pub mod snapshot;
pub mod token;
pub mod validate;
pub mod volume;

pub use allocation::{Allocation, AllocationSpec, AllocationStatus};
pub use attributes::{VolumeAttributesClass, VolumeAttributesClassSpec};
pub use claim::{VolumeClaim, VolumeClaimSpec, VolumeClaimStatus};
pub use class::{VolumeClass, VolumeClassSpec};
pub use definitions::definitions;
pub use field::{FieldError, FieldErrors};
pub use kind::{Cell, Column, KindDefinition, NodeRight};
pub use node_agent::{NodeAgent, NodeAgentSpec, NodeAgentStatus};
pub use plugin::{
    Plugin, PluginInstance, PluginInstanceSpec, PluginInstanceStatus, PluginSpec, PluginStatus,
};
pub use schedule::{SnapshotSchedule, SnapshotScheduleSpec, SnapshotScheduleStatus};
pub use snapshot::{Snapshot, SnapshotSpec, SnapshotStatus};
pub use volume::{
    Volume, VolumeAttachment, VolumeAttachmentSpec, VolumeAttachmentStatus, VolumeSpec, VolumeStatus,
};

/// The API group of every kind of ours.
pub const GROUP: &str = "wharfline.dev";
/// The one version served.
pub const VERSION: &str = "v1alpha1";
/// `group/version`, as manifests write it.
pub const API_VERSION: &str = "wharfline.dev/v1alpha1";
