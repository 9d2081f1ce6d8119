//! NodeAgent: what the node daemon says of its machine; Snapshot: a picture of a volume (not built yet).
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::meta::{Condition, Time};

/// What the node daemon says of its machine.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "wharfline.dev",
    version = "v1alpha1",
    kind = "NodeAgent",
    plural = "nodeagents",
    shortname = "na"
)]
#[kube(status = "NodeAgentStatus", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct NodeAgentSpec {}

/// What is seen of a node daemon. The daemon writes all of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeAgentStatus {
    /// Kept with the journal; tells one installation from another of the same name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub incarnation: String,
    /// The kernel's boot id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// The kernel's release.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    /// Wharfline's version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// The runtimes that the node allows and has what it takes for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runtimes: Vec<String>,
    /// Beneath which directories volumes may be published on the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_paths: Vec<String>,
    /// Mounts and directories found in our tree that no record owns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leftovers: Vec<String>,
    /// Taken down by `wharfline down`: nothing is started here until the next `up`.
    #[serde(default)]
    pub stopped: bool,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A picture of a volume at one moment. The kind is known so that a manifest gets a clear answer; it is not built yet.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "wharfline.dev",
    version = "v1alpha1",
    kind = "Snapshot",
    plural = "snapshots",
    shortname = "snap"
)]
#[kube(namespaced, status = "SnapshotStatus", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSpec {
    /// The claim whose volume is pictured.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim_name: String,
    /// A picture that exists already.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub handle: String,
    /// What becomes of the backend's snapshot with the object.
    #[serde(default)]
    pub deletion_policy: super::meta::ReclaimPolicy,
}

/// What is seen of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The plugin's id for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub handle: String,
    /// Its size.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub size: String,
    /// When it was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Whether it can be used.
    #[serde(default)]
    pub ready: bool,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
