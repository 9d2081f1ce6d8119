//! VolumeClass: how volumes of one sort are made.
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::meta::{Map, ReclaimPolicy, SecretRefs, Segments};

/// How volumes of one sort are made.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "wharfline.dev", version = "v1alpha1", kind = "VolumeClass", plural = "volumeclasses")]
#[kube(shortname = "vclass", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct VolumeClassSpec {
    /// The Plugin that makes them.
    pub plugin: String,
    /// Opaque parameters for CreateVolume, at most 4 KiB.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub parameters: Map,
    /// Opaque parameters for CreateSnapshot, at most 4 KiB.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub snapshot_parameters: Map,
    /// Secrets per family of calls.
    #[serde(default, skip_serializing_if = "SecretRefs::is_empty")]
    pub secrets: SecretRefs,
    /// The file system, empty for the plugin's choice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fs_type: String,
    /// Mount options, at most 4 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// What becomes of a volume whose claim is gone.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
    /// When a volume is made.
    #[serde(default)]
    pub volume_binding_mode: VolumeBindingMode,
    /// Where volumes may be made; anywhere when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_topologies: Vec<Segments>,
    /// Whether claims may grow.
    #[serde(default)]
    pub allow_volume_expansion: bool,
    /// Whether claims that name no class get this one.
    #[serde(default)]
    pub default: bool,
}

/// When a volume is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum VolumeBindingMode {
    /// As soon as it is claimed.
    #[default]
    Immediate,
    /// Once its first consumer is placed, for that node.
    WaitForFirstConsumer,
}
