//! VolumeClaim: a person's request for storage.
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::meta::{AccessMode, Condition, Map, ObjectRef, VolumeMode};

/// A person's request for storage.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "wharfline.dev", version = "v1alpha1", kind = "VolumeClaim", plural = "volumeclaims")]
#[kube(shortname = "vc", namespaced, status = "VolumeClaimStatus", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaimSpec {
    /// The class to make the volume from; the default class when neither this nor `volumeName` is given.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume_class_name: String,
    /// A Volume that exists already.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume_name: String,
    /// How the volume may be used; each is asked for when it is made, the first one is used.
    #[serde(default)]
    pub access_modes: Vec<AccessMode>,
    /// File system or block.
    #[serde(default)]
    pub volume_mode: VolumeMode,
    /// The size.
    #[serde(default)]
    pub resources: Resources,
    /// The group that the files of the volume are given to where they are used, so that tasks in it may read and write them:
    /// by the driver if it can, else by the node, as `spec.fsGroupPolicy` of the Plugin says. Another one counts from the
    /// next attachment on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_group: Option<u32>,
    /// The VolumeAttributesClass that the volume shall have; another one may be named at any time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume_attributes_class_name: String,
    /// What the volume is filled from when it is made; empty when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_source: Option<DataSource>,
    /// A volume that is there only while an allocation uses it: NodePublishVolume makes it and NodeUnpublishVolume ends it,
    /// with all that is in it. It has no class and no size beside this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<Ephemeral>,
}

/// A volume that a plugin makes when it publishes it (`Ephemeral` of `spec.volumeLifecycleModes` of the Plugin).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ephemeral {
    /// The Plugin.
    pub plugin: String,
    /// What the plugin is told of it, such as its size; the plugin's own words.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub attributes: Map,
    /// The file system, empty for the plugin's choice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fs_type: String,
    /// Mount options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// The Secret for NodePublishVolume, in the claim's own namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_publish_secret_name: String,
}

/// What a new volume is filled from: a claim or a Snapshot, in the claim's own namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataSource {
    /// A claim, whose volume is copied as it is then. With a Snapshot of several volumes: the claim whose picture it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim_name: String,
    /// A Snapshot.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub snapshot_name: String,
}

/// The size wanted and its upper bound.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// At least this much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Storage>,
    /// At most this much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Storage>,
}

/// An amount of storage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// A size such as `10Gi`.
    pub storage: String,
}

/// What is seen of a claim.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeClaimStatus {
    /// Where the claim stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ClaimPhase>,
    /// The Volume made or found for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume_name: String,
    /// How many volumes were begun for this claim; part of the volume's name.
    #[serde(default)]
    pub series: u32,
    /// The size that its users have, once the nodes have done their part of an expansion.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub capacity: String,
    /// The size that the backend has, where its users have less yet; empty while that is `capacity`. It is not taken back.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub allocated: String,
    /// The VolumeAttributesClass that the volume has.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume_attributes_class_name: String,
    /// Late binding: the node of the first consumer. Written by placement, by compare-and-swap, where it does not make the volume at
    /// once; else with `Bound`, as the volume has it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selected_node: String,
    /// The allocations that use it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<ObjectRef>,
    /// `Ready` = bound; `Expanded` False = it asks for more than it has, and why; `Modified` False = it names another
    /// VolumeAttributesClass than its volume has, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Where a claim stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClaimPhase {
    /// No volume yet.
    Pending,
    /// One volume, ready.
    Bound,
    /// Its volume is gone.
    Lost,
}
