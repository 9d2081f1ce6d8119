//! What every kind shares: conditions, rungs, calls, references, time.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A point in time, RFC 3339 on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(#[serde(with = "rfc3339")] pub jiff::Timestamp);

impl JsonSchema for Time {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }
    fn inline_schema() -> bool {
        true
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

mod rfc3339 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(time: &jiff::Timestamp, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&format_args!("{time:.6}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<jiff::Timestamp, D::Error> {
        String::deserialize(input)?.parse().map_err(D::Error::custom)
    }
}

/// What is known of one step of the ladder. There is no fourth value: no final answer is `Unknown`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
pub enum Rung {
    /// Known not to be there.
    Down,
    /// May be there: attempted, or an executor was assigned and has said nothing yet.
    #[default]
    Unknown,
    /// Known to be there.
    Up,
}

/// The truth of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody can say yet.
    Unknown,
}

/// A condition of the Kubernetes shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The name of the condition, such as `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it holds.
    pub status: Truth,
    /// One CamelCase word.
    #[serde(default)]
    pub reason: String,
    /// One sentence that names the blocker, if there is one.
    #[serde(default)]
    pub message: String,
    /// The generation of the spec that this speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// The condition that every kind has.
pub const READY: &str = "Ready";

/// The condition of a Volume, or a Snapshot, whose plugin and handle another one has, too: what is done to the one is done to both.
pub const HANDLE_SHARED: &str = "HandleShared";
/// The reason of that condition of an object that was given what is another's. It stays so when the other one is gone: nobody knows
/// what is in it, or whether that is to be kept.
pub const HANDLE_OF_ANOTHER: &str = "HandleOfAnother";

/// The reason of `Ready`, and of that condition, of an object whose handle another one has, too, that goes first.
pub const HANDLE_ENDING: &str = "HandleEnding";
/// The reason of that condition once the other one has gone: what the plugin gave may have gone with it, and is asked for once more.
pub const HANDLE_ENDED: &str = "HandleEnded";

/// Whether these conditions say that an object may be asked for once more, for what it was given may go with another one, or has.
pub fn may_be_stale(conditions: &[Condition]) -> bool {
    [HANDLE_ENDING, HANDLE_ENDED].contains(&shared_because(conditions))
}

/// The reason of the condition `HandleShared`, while that is true; empty else.
pub fn shared_because(conditions: &[Condition]) -> &str {
    let shared = conditions.iter().find(|c| c.kind == HANDLE_SHARED && c.status == Truth::True);
    shared.map(|condition| condition.reason.as_str()).unwrap_or_default()
}

/// The annotation of an object that is kept by now (Retain), and was to be deleted at its backend when its deletion began: that may have
/// been asked for. Set by the server.
pub const KEPT_LATE: &str = "wharfline.dev/kept-late";

/// Marks a change that keeps by `field` of its spec what was to be deleted when its deletion began.
pub(super) fn keep_late(field: &str, old: &Value, new: &mut Value) {
    let kept = |object: &Value| object["spec"][field] == "Retain";
    if old["metadata"].get("deletionTimestamp").is_some() && !kept(old) && kept(new) {
        let metadata = new["metadata"].as_object_mut();
        let annotations = metadata.map(|metadata| metadata.entry("annotations").or_insert(Value::Null));
        // What is none is refused.
        match annotations {
            Some(annotations @ Value::Null) => *annotations = serde_json::json!({ KEPT_LATE: "true" }),
            Some(Value::Object(annotations)) => drop(annotations.insert(KEPT_LATE.to_owned(), "true".into())),
            Some(_) | None => {}
        }
    }
}

/// Whether the conditions of an object say that it was given what is another's.
pub fn is_of_another(conditions: &[Condition]) -> bool {
    conditions
        .iter()
        .any(|condition| condition.kind == HANDLE_SHARED && condition.reason == HANDLE_OF_ANOTHER)
}

/// Puts `new` in its place in the list, keeping the transition time while the truth stays the same.
pub fn set_condition(conditions: &mut Vec<Condition>, mut new: Condition, now: Time) {
    match conditions.iter_mut().find(|c| c.kind == new.kind) {
        Some(old) => {
            let same = old.status == new.status;
            new.last_transition_time = if same { old.last_transition_time } else { Some(now) };
            *old = new;
        }
        None => {
            new.last_transition_time = Some(now);
            conditions.push(new);
        }
    }
}

/// Whether the named condition is `True`.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions.iter().any(|c| c.kind == kind && c.status == Truth::True)
}

impl Condition {
    /// A condition with the given truth; `lastTransitionTime` is set by [`set_condition`].
    pub fn new(kind: &str, status: Truth, reason: &str, message: impl Into<String>) -> Self {
        Self {
            kind: kind.to_owned(),
            status,
            reason: reason.to_owned(),
            message: message.into(),
            observed_generation: None,
            last_transition_time: None,
        }
    }

    /// The same condition speaking of one generation of the spec.
    #[must_use]
    pub fn of_generation(mut self, generation: Option<i64>) -> Self {
        self.observed_generation = generation;
        self
    }
}

/// One CSI call as status and `describe` show it. Never carries a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// The RPC, such as `NodePublishVolume`.
    pub method: String,
    /// The gRPC code's name as the specification writes it, such as `OK` or `FAILED_PRECONDITION`.
    pub code: String,
    /// The plugin's message, shortened.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the call was sent.
    pub start_time: Time,
    /// How long it took, in milliseconds.
    pub duration_millis: u64,
    /// Which attempt of this step it was, from 1.
    pub attempt: u32,
}

/// How many calls a status keeps.
pub const CALLS_KEPT: usize = 8;

/// A Secret by reference; its content is read when the call is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct SecretRef {
    /// The Secret's name.
    pub name: String,
    /// The Secret's namespace.
    #[serde(default = "default_namespace")]
    pub namespace: String,
}

fn default_namespace() -> String {
    "default".to_owned()
}

/// Secret references per family of CSI calls.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretRefs {
    /// For CreateVolume and DeleteVolume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provision: Option<SecretRef>,
    /// For ControllerPublishVolume and ControllerUnpublishVolume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_publish: Option<SecretRef>,
    /// For NodeStageVolume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_stage: Option<SecretRef>,
    /// For NodePublishVolume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_publish: Option<SecretRef>,
    /// For ControllerExpandVolume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_expand: Option<SecretRef>,
    /// For ControllerModifyVolume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_modify: Option<SecretRef>,
    /// For NodeExpandVolume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_expand: Option<SecretRef>,
    /// For CreateSnapshot, ListSnapshots and DeleteSnapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SecretRef>,
}

impl SecretRefs {
    /// Whether no reference is set.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// Every reference that is set.
    pub fn all(&self) -> impl Iterator<Item = &SecretRef> {
        let Self {
            provision,
            controller_publish,
            node_stage,
            node_publish,
            controller_expand,
            controller_modify,
            node_expand,
            snapshot,
        } = self;
        [
            provision,
            controller_publish,
            node_stage,
            node_publish,
            controller_expand,
            controller_modify,
            node_expand,
            snapshot,
        ]
        .into_iter()
        .flatten()
    }
}

/// An object in a namespace, with the uid that tells it from a later one of the same name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Its namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid; empty where a person wrote the reference and nothing was bound yet.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// What a write goes by that makes another node a host because its own is silent: the write is done only as long as that
/// one's lease is as it was. A renewal that comes first ends it, so that who renews and then looks sees every host there is.
/// An extension of the controllers' own requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unrenewed {
    /// The node that is silent.
    pub node: String,
    /// The `resourceVersion` of its lease; `None`: it has none.
    pub version: Option<String>,
}

/// What a write goes by beside its own object: it is done only as long as another one, which has no namespace, is as it was. An
/// extension of the controllers' own requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsSeen {
    /// The plural of the other one's kind, which is one of ours.
    pub plural: String,
    /// Its name.
    pub name: String,
    /// Its `resourceVersion`; `None`: it does not exist.
    pub version: Option<String>,
}

/// The uid of a new object, which another one names already. An extension of the controllers' own requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithUid(pub String);

/// Says that a new object is stored with the status that it bears, so that what is decided when it is made need not be written
/// behind it. An extension of the controllers' own requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WithStatus;

/// Says that the end of an object is asked for with the status that is written, so that what is decided together is one write. An
/// extension of the controllers' own requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WithEnd;

/// The node that makes a volume's controller calls, with the number of the assignment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    /// The node.
    pub node_name: String,
    /// Rises by one at each assignment, so that an old host's word is not taken for the new one's.
    pub epoch: i64,
}

/// One term of a topology: all segments must match.
pub type Segments = std::collections::BTreeMap<String, String>;

/// A string map with a stable order.
pub type Map = std::collections::BTreeMap<String, String>;

/// CSI's access modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    /// Published on one node at a time, read and write (RWO).
    SingleNodeWriter,
    /// Published on one node at a time, read only.
    SingleNodeReaderOnly,
    /// One writer in the whole cluster (RWOP).
    SingleNodeSingleWriter,
    /// Several writers on one node.
    SingleNodeMultiWriter,
    /// Published on many nodes, read only (ROX).
    MultiNodeReaderOnly,
    /// Published on many nodes, one of them writes.
    MultiNodeSingleWriter,
    /// Published on many nodes, all may write (RWX).
    MultiNodeMultiWriter,
}

impl AccessMode {
    /// The short word that tables show.
    pub fn short(self) -> &'static str {
        match self {
            Self::SingleNodeWriter => "RWO",
            Self::SingleNodeReaderOnly => "ROO",
            Self::SingleNodeSingleWriter => "RWOP",
            Self::SingleNodeMultiWriter => "RWOM",
            Self::MultiNodeReaderOnly => "ROX",
            Self::MultiNodeSingleWriter => "RWXS",
            Self::MultiNodeMultiWriter => "RWX",
        }
    }

    /// Whether the volume may be published on one node only.
    pub fn single_node(self) -> bool {
        match self {
            Self::SingleNodeWriter
            | Self::SingleNodeReaderOnly
            | Self::SingleNodeSingleWriter
            | Self::SingleNodeMultiWriter => true,
            Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter => false,
        }
    }

    /// Whether no user may write.
    pub fn read_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }
}

/// Whether a volume is mounted as a file system or handed over as a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
pub enum VolumeMode {
    /// A directory tree.
    #[default]
    Filesystem,
    /// A block device.
    Block,
}

/// What becomes of the backend's volume when its claim is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimPolicy {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays, and so does the Volume object.
    Retain,
}

/// The one capability that a volume is used with, the same in every call about it (CO-GEN-16).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capability {
    /// How many nodes and users.
    pub access_mode: AccessMode,
    /// File system or block.
    #[serde(default)]
    pub volume_mode: VolumeMode,
    /// The file system, empty for the plugin's choice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fs_type: String,
    /// Mount options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
}

/// What is written on an object that is made from a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub labels: Map,
    /// Annotations.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub annotations: Map,
}

impl TemplateMetadata {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(deleted: bool, policy: &str, annotations: Value) -> Value {
        let mut object = json!({ "metadata": {}, "spec": { "policy": policy } });
        if deleted {
            object["metadata"]["deletionTimestamp"] = Value::from("2026-01-01T00:00:00Z");
        }
        if !annotations.is_null() {
            object["metadata"]["annotations"] = annotations;
        }
        object
    }

    #[test]
    fn what_is_kept_after_its_deletion_is_marked() {
        for (deleted, before, after, marked) in [
            (true, "Delete", "Retain", true),
            (false, "Delete", "Retain", false),
            (true, "Retain", "Retain", false),
            (true, "Delete", "Delete", false),
            (true, "Retain", "Delete", false),
        ] {
            for others in [Value::Null, json!({ "a": "b" })] {
                let old = object(deleted, before, Value::Null);
                let mut new = object(deleted, after, others.clone());
                keep_late("policy", &old, &mut new);
                let annotations = &new["metadata"]["annotations"];
                assert_eq!(annotations.get(KEPT_LATE).is_some(), marked, "{new}");
                assert!(others.is_null() || annotations["a"] == "b");
            }
        }
        let mut wrong = object(true, "Retain", Value::from("x"));
        keep_late("policy", &object(true, "Delete", Value::Null), &mut wrong);
        assert_eq!(wrong["metadata"]["annotations"], "x", "it is refused as it is");
    }
}
