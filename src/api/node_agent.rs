//! NodeAgent: what the node daemon says of its machine.
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::meta::Condition;

/// The taint by which an operator says that a node is surely off; its value is the boot id that is off.
pub const OUT_OF_SERVICE: &str = "wharfline.dev/out-of-service";
/// The annotation of a node's Lease with the boot under which it was renewed last: its holder outlives a boot.
pub const LEASE_BOOT: &str = "wharfline.dev/boot-id";

/// The command that says of a node that this boot of it is off. One that never told its boot can only be deleted.
pub fn fence_command(node: &str, boot: &str) -> String {
    match boot {
        "" => format!("wharfline delete node {node}"),
        boot => format!("wharfline taint node {node} --overwrite {OUT_OF_SERVICE}={boot}:NoExecute"),
    }
}

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

/// A runtime that a node allows and cannot use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MissingRuntime {
    /// Its word.
    pub name: String,
    /// What is missing.
    pub message: String,
}

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
    /// The runtimes that the node allows and has not what it takes for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub missing_runtimes: Vec<MissingRuntime>,
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
