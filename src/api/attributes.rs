//! VolumeAttributesClass: what a plugin can change of a volume while that is used.
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::meta::Map;

/// What a plugin can change of a volume while that is used, such as how fast it is. A claim names the one that it wants, and may
/// name another one later.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "wharfline.dev",
    version = "v1alpha1",
    kind = "VolumeAttributesClass",
    plural = "volumeattributesclasses"
)]
#[kube(shortname = "vac", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttributesClassSpec {
    /// The Plugin whose volumes can have it. It must have MODIFY_VOLUME.
    pub plugin: String,
    /// CSI's mutable parameters for CreateVolume and ControllerModifyVolume, at least one and at most 4 KiB in all. A plugin
    /// takes what is left out for "as it is". They never change: another class has others.
    pub parameters: Map,
}

/// What a volume shall have, or has, of a VolumeAttributesClass: kept with it, whatever becomes of the class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attributes {
    /// The VolumeAttributesClass.
    pub class_name: String,
    /// Its parameters.
    pub parameters: Map,
}

/// What a host knows of the attributes of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Modification {
    /// What CreateVolume, and then ControllerModifyVolume, was last answered OK for. Absent = nobody gave it any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has: Option<Attributes>,
    /// What ControllerModifyVolume is asked for, or was without a final answer: the same is asked again until there is one,
    /// whatever is wanted by then (CO-CTRL-77).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Attributes>,
    /// An attempt to give it others may have done so, or a part of it: what it has is not known for sure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub doubted: bool,
    /// Why it waits or fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<super::meta::Condition>,
}

impl Modification {
    /// What it has, if that is sure.
    pub fn sure(&self) -> Option<&Attributes> {
        self.has.as_ref().filter(|_| !self.doubted)
    }
}

/// The condition of a claim that names another VolumeAttributesClass than its volume has: False, with the reason. It is not
/// there while both are the same.
pub const MODIFIED: &str = "Modified";
