//! What a plugin's backend has, for a person who asks: the question and the answer, both at a PluginInstance.
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::meta::{Map, Segments, Time};

/// What is listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AuditList {
    /// Volumes.
    #[default]
    Volumes,
    /// Snapshots, those of groups with them.
    Snapshots,
}

impl AuditList {
    /// Whether it is what a question is for that does not say.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for AuditList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Volumes => "volumes",
            Self::Snapshots => "snapshots",
        })
    }
}

/// A question for a page of what a backend has. `wharfline volume audit` asks it, and takes it back when it has read the answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditRequest {
    /// Tells one question from another.
    pub id: String,
    /// What is listed; volumes when it does not say.
    #[serde(default, skip_serializing_if = "AuditList::is_default")]
    pub list: AuditList,
    /// Where the page before ended, in the plugin's words; the first page when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub starting_token: String,
}

/// The answer. A list is no view of one moment: a thing may come twice or not at all, and what did not come is not gone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Audit {
    /// The question's.
    pub id: String,
    /// The question's.
    #[serde(default, skip_serializing_if = "AuditList::is_default")]
    pub list: AuditList,
    /// The question's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub starting_token: String,
    /// When it was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// The volumes that the plugin listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<BackendVolume>,
    /// Of snapshots: the Secret that they were listed with, as `namespace/name`; empty where it was none, absent where nothing was
    /// listed. A plugin may list those of one account alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Of snapshots: why none, or no more, were listed with this Secret; those of the next ones are all the same. Empty when they were.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unlisted: String,
    /// The snapshots that the plugin listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<BackendSnapshot>,
    /// Where the next page begins; empty at the end.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next_token: String,
    /// Why there is no answer; empty when there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Audit {
    /// Whether it is the answer to this question.
    pub fn answers(&self, request: &AuditRequest) -> bool {
        self.list == request.list && self.is_for(request)
    }

    /// Whether it came for this question: with another list, from a daemon that does not know of the one that was asked for.
    pub fn is_for(&self, request: &AuditRequest) -> bool {
        self.id == request.id && self.starting_token == request.starting_token
    }
}

/// A volume as its plugin lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendVolume {
    /// The plugin's id for it.
    pub handle: String,
    /// Its size; empty when the plugin does not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub size: String,
    /// What has to go with it into every call.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub context: Map,
    /// Where it can be reached from; anywhere when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology: Vec<Segments>,
    /// The plugin's ids of the nodes that it is attached to; absent where the plugin tells of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ids: Option<Vec<String>>,
    /// What is wrong with it, in the plugin's words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub abnormal: String,
}

/// A snapshot as its plugin lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendSnapshot {
    /// The plugin's id for it.
    pub handle: String,
    /// The plugin's id for the volume that it was cut from; empty when the plugin does not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The plugin's id for the group that it is of; empty for one that is of none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// How large a volume must be that is filled from it; empty when the plugin does not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub size: String,
    /// When it was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}
