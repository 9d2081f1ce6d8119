//! Snapshot: a picture of a volume, or of several, at one moment.
use std::collections::{BTreeMap, BTreeSet};

use kube::CustomResource;
use kube::core::{Expression, SelectorExt as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::meta::{
    Call, Condition, Host, Map, READY, ReclaimPolicy, Rung, SecretRef, Time, VolumeMode, is_of_another,
    is_true, may_be_stale,
};
use super::volume::{is_zero, late, says_other};

/// A picture of a volume, or of several, at one moment, from which claims can be filled.
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
    /// Where it comes from.
    #[serde(default)]
    pub source: SnapshotSource,
    /// The class with the parameters and the Secret for it; that of the claim when it names none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume_class_name: String,
    /// What becomes of the backend's snapshot with the object. One that was there before stays.
    #[serde(default)]
    pub deletion_policy: ReclaimPolicy,
}

/// Where a snapshot comes from: `claimName`, `selector`, or `handle` with `plugin`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSource {
    /// The claim whose volume is pictured, in the same namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim_name: String,
    /// The claims whose volumes are pictured together, at one moment: those of the same namespace with such labels when the
    /// snapshot is begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<ClaimSelector>,
    /// A picture that exists already: the plugin's id for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub handle: String,
    /// The Plugin that has it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plugin: String,
    /// With `controllerScope: Node`, the node that has it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
}

/// Which claims are meant: those with all these labels, and of which all these expressions are true.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSelector {
    /// Labels with their values.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub match_labels: Map,
    /// What else has to be true of the labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<LabelRequirement>,
}

/// What has to be true of a label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelRequirement {
    /// The label.
    pub key: String,
    /// How it is compared.
    pub operator: LabelOperator,
    /// What it is compared with: at least one with `In` and `NotIn`, none with the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// How a label is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// It has one of the values.
    In,
    /// It has none of the values, or is not there.
    NotIn,
    /// It is there, whatever its value.
    Exists,
    /// It is not there.
    DoesNotExist,
}

impl ClaimSelector {
    /// Whether a claim with these labels is meant.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let equal = self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
        equal && self.match_expressions.iter().all(|one| one.expression().matches(labels))
    }
}

impl LabelRequirement {
    fn expression(&self) -> Expression {
        let (key, values) = (self.key.clone(), self.values.iter().cloned().collect::<BTreeSet<_>>());
        match self.operator {
            LabelOperator::In => Expression::In(key, values),
            LabelOperator::NotIn => Expression::NotIn(key, values),
            LabelOperator::Exists => Expression::Exists(key),
            LabelOperator::DoesNotExist => Expression::DoesNotExist(key),
        }
    }
}

/// What a snapshot is of, and all that is asked for with it. Found once, before anything is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotOf {
    /// The Plugin.
    pub plugin: String,
    /// The Volume; empty for one that was there before, and for one of several volumes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume: String,
    /// Its uid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// What the plugin calls the volume.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub handle: String,
    /// Whether that is a file system or a block volume; absent where nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<VolumeMode>,
    /// Of several volumes: each of them, by the names of their claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberOf>,
    /// With `controllerScope: Node`, the only node that knows it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The class's parameters for CreateSnapshot.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub parameters: Map,
    /// The Secret of its calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretRef>,
}

/// One of the volumes that are pictured together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberOf {
    /// Its claim.
    pub claim_name: String,
    /// The Volume.
    pub volume: String,
    /// Its uid.
    pub uid: String,
    /// What the plugin calls it.
    pub handle: String,
    /// Whether it is a file system or a block volume.
    #[serde(default)]
    pub volume_mode: VolumeMode,
}

/// The picture of one of several volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// The claim whose volume it pictures; empty for what the plugin counts to the group and nobody asked for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim_name: String,
    /// The plugin's id for it.
    pub handle: String,
    /// How large a volume must be that is filled from it; empty when the plugin did not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub size: String,
}

/// What is seen of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// What it is of. Written once, by the snapshots controller, on the state that it was decided on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<SnapshotOf>,
    /// Who makes its calls. Written by the snapshots controller, by compare-and-swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Host>,
    /// The epoch of the host that is asked to make no more calls; absent again if it does well before it has let go. Written by
    /// the snapshots controller, by compare-and-swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_to_release: Option<i64>,
    /// The Volumes that are being filled from it. Written by the snapshots controller, on the state that it was decided on: one
    /// gets its first host once it is named here, and nothing is deleted while one is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<String>,
    /// The handles, of a group those of its pictures and its own, that were compared with those of all other Snapshots: which of them
    /// has one of them, too, is in the condition `HandleShared`. Written by the snapshots controller; its host deletes nothing by
    /// another one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handles_checked: Vec<String>,
    /// The newest epoch whose host was asked and said that it makes no more calls. Written by that host, on a state in
    /// which it is asked.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub released_epoch: i64,
    /// The epoch that the host speaks for.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub observed_epoch: i64,
    /// Whether the backend has it. It is Unknown from before the first CreateSnapshot until that is answered for good; absent =
    /// nothing was ever asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<Rung>,
    /// The plugin's id for it; of several volumes, for the group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub handle: String,
    /// Of several volumes: the pictures, which alone can be deleted together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<Member>,
    /// How large a volume must be that is filled from it; empty when the plugin did not say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub size: String,
    /// When it was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    /// Whether claims can be filled from it.
    #[serde(default)]
    pub ready: bool,
    /// The group of the plugin's that it is of, which alone can be deleted.
    #[serde(default, rename = "groupID", skip_serializing_if = "String::is_empty")]
    pub group_id: String,
    /// The last calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// When the host tries again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// The host's word on a failure or wait, folded into the `Ready` condition by the snapshots controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taking: Option<Condition>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl SnapshotStatus {
    /// The host that may make calls: none after it let go.
    pub fn calling_host(&self) -> Option<&Host> {
        self.controller.as_ref().filter(|host| host.epoch != self.released_epoch)
    }

    /// All that its plugin knows it by; nothing before that is known.
    pub fn known_by(&self) -> impl Iterator<Item = &str> {
        known_by(&self.handle, &self.members)
    }

    /// Whether all of these handles were compared.
    pub fn has_checked<'a>(&self, mut handles: impl Iterator<Item = &'a str>) -> bool {
        handles.all(|handle| self.handles_checked.iter().any(|one| one == handle))
    }

    /// Whether it was said that the handle that it was given is its own; of a group that of the group counts. What was ready once is that:
    /// before that was said of handles it was so all the same.
    pub fn is_said_own(&self) -> bool {
        self.has_checked(std::iter::once(self.handle.as_str())) || is_true(&self.conditions, READY)
    }

    /// The same, or that it is another's.
    fn is_said(&self) -> bool {
        self.is_said_own() || is_of_another(&self.conditions)
    }
}

/// All that a plugin knows one by that has this handle and, if it is of several volumes, these pictures.
pub fn known_by<'a>(handle: &'a str, members: &'a [Member]) -> impl Iterator<Item = &'a str> {
    let own = Some(handle).filter(|handle| !handle.is_empty());
    members.iter().map(|member| member.handle.as_str()).chain(own)
}

impl SnapshotOf {
    /// The uids of the volumes that it is of; none for one that was there before.
    pub fn uids(&self) -> impl Iterator<Item = &str> {
        let alone = Some(self.uid.as_str()).filter(|uid| !uid.is_empty());
        alone.into_iter().chain(self.members.iter().map(|member| member.uid.as_str()))
    }

    /// The volumes that it is of: their names and uids.
    pub fn volumes(&self) -> impl Iterator<Item = (&str, &str)> {
        let alone = Some((self.volume.as_str(), self.uid.as_str())).filter(|(_, uid)| !uid.is_empty());
        alone.into_iter().chain(self.members.iter().map(|m| (m.volume.as_str(), m.uid.as_str())))
    }
}

impl Snapshot {
    /// The only node whose instance knows it, with `controllerScope: Node`.
    pub fn home(&self) -> Option<&str> {
        let of = self.status.as_ref().and_then(|status| status.of.as_ref()).map(|of| of.node_name.as_str());
        Some(of.unwrap_or(&self.spec.source.node_name)).filter(|node| !node.is_empty())
    }

    /// Its plugin and what that knows it, or the group that it is, by; absent before that is known.
    pub fn handle(&self) -> Option<(&str, &str)> {
        let source = &self.spec.source;
        if !self.is_cut() {
            return Some((&source.plugin, &source.handle));
        }
        let status = self.status.as_ref().filter(|status| !status.handle.is_empty())?;
        Some((&status.of.as_ref()?.plugin, &status.handle))
    }

    /// The same of all pictures that it is: of several volumes there is one each.
    pub fn handles(&self) -> impl Iterator<Item = (&str, &str)> {
        let status = self.status.as_ref();
        let plugin = status.and_then(|status| Some(status.of.as_ref()?.plugin.as_str())).unwrap_or_default();
        let members = status.map(|status| status.members.as_slice()).unwrap_or_default();
        let alone = self.handle().filter(|_| !self.is_group());
        alone.into_iter().chain(members.iter().map(move |member| (plugin, member.handle.as_str())))
    }

    /// Whether it is of several volumes.
    pub fn is_group(&self) -> bool {
        self.spec.source.selector.is_some()
    }

    /// Whether it has to be cut; one that was there before has not.
    pub fn is_cut(&self) -> bool {
        self.spec.source.handle.is_empty()
    }

    /// Whether its volume has to stay for it: it is not ready yet, or may have to be cut once more to be deleted.
    pub fn needs_volume(&self) -> bool {
        let status = self.status.clone().unwrap_or_default();
        let leaving = self.metadata.deletion_timestamp.is_some();
        let named = !status.handle.is_empty();
        self.is_cut()
            && status.of.is_some()
            && match status.exists {
                Some(Rung::Up | Rung::Unknown) if may_be_stale(&status.conditions) => true,
                // It may turn out to be another one's, which may go with that.
                Some(Rung::Up | Rung::Unknown) if named && !status.is_said() => true,
                Some(Rung::Up) => !leaving && !status.ready,
                Some(Rung::Unknown) => !leaving || status.handle.is_empty(),
                // Also what was refused for good is asked for again, once something has changed.
                Some(Rung::Down) | None => !leaving,
            }
    }
}

/// What the plugin has may be anybody's: who may write in one namespace alone may not name it there.
pub(super) fn reserved(new: &Value) -> Option<&'static str> {
    new["spec"]["source"]["handle"].as_str().map(|_| "spec.source.handle")
}

/// Marks a Snapshot that is kept by a change that comes after its deletion.
pub(super) fn kept_late(old: &Value, new: &mut Value) {
    super::meta::keep_late("deletionPolicy", old, new);
}

/// A former host's word of a snapshot, which would cover what the present one says.
pub(super) fn late_snapshot(new: &Value, old: &Value) -> Option<String> {
    const WORDS: [&str; 6] = ["exists", "handle", "members", "size", "ready", "observedEpoch"];
    let status = &new["status"];
    late(&status["controller"]["epoch"], &status["observedEpoch"])
        .filter(|_| says_other(&WORDS, status, &old["status"]))
}

#[cfg(test)]
mod tests;
