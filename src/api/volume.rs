//! Volume: one volume of a backend, and VolumeAttachment: one volume on one node.
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::attributes::{Attributes, Modification};
use super::meta::{
    AccessMode, Call, Capability, Condition, Host, Map, ObjectRef, ReclaimPolicy, Rung, SecretRefs, Segments,
    Time, VolumeMode, is_of_another, may_be_stale,
};
use super::plugin::ControllerScope;
use super::quantity;

/// One volume of a backend, created for a claim or registered with its handle.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "wharfline.dev", version = "v1alpha1", kind = "Volume", plural = "volumes", shortname = "vol")]
#[kube(status = "VolumeStatus", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct VolumeSpec {
    /// The Plugin that serves it.
    pub plugin: String,
    /// Where it comes from.
    pub source: VolumeSource,
    /// How it may be used; the first is the one in use.
    pub access_modes: Vec<AccessMode>,
    /// File system or block.
    #[serde(default)]
    pub volume_mode: VolumeMode,
    /// The file system, empty for the plugin's choice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fs_type: String,
    /// Mount options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// Secrets per family of calls.
    #[serde(default, skip_serializing_if = "SecretRefs::is_empty")]
    pub secrets: SecretRefs,
    /// What becomes of it when its claim is gone. One that was there before (`source.existing`) is kept, whatever this says.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
    /// The claim it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_ref: Option<ObjectRef>,
    /// The size that it shall have by now, if another than it was made with. Of a volume with a claim the claims controller
    /// writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<WantedSize>,
    /// The attributes that it shall have. Of a volume with a claim the claims controller writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
}

/// A size that a volume shall be expanded to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WantedSize {
    /// At least so many bytes.
    pub required_bytes: i64,
    /// At most so many bytes; 0 = no bound.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub limit_bytes: i64,
    /// The plugin expands on nodes alone: its controller is not asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node_only: bool,
}

impl VolumeSpec {
    /// The one capability that the volume is used with.
    pub fn capability(&self) -> Capability {
        Capability {
            access_mode: self.access_modes.first().copied().unwrap_or(AccessMode::SingleNodeWriter),
            volume_mode: self.volume_mode,
            fs_type: self.fs_type.clone(),
            mount_options: self.mount_options.clone(),
        }
    }

    /// Whether its data outlives its object: it existed before, or was made and is to be retained.
    pub fn is_kept(&self) -> bool {
        let made = self.source.create.is_some() && self.reclaim_policy == ReclaimPolicy::Retain;
        self.source.existing.is_some() || made
    }
}

/// Where a volume comes from: exactly one of these.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSource {
    /// It is created; everything that CreateVolume will be sent, frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create: Option<CreateSource>,
    /// It exists already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<ExistingSource>,
    /// It is there only while it is published: NodePublishVolume makes it, and NodeUnpublishVolume ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<EphemeralSource>,
}

impl VolumeSource {
    /// What is known of it without an answer of the plugin to CreateVolume: its handle and its context.
    pub fn told(&self) -> Option<(&str, &Map)> {
        let existing = self.existing.as_ref().map(|source| (source.handle.as_str(), &source.context));
        existing.or(self.ephemeral.as_ref().map(|source| (source.handle.as_str(), &source.context)))
    }

    /// The only node whose instance knows it, with `controllerScope: Node`.
    pub fn home(&self) -> Option<&str> {
        let made = self.create.as_ref().map(|create| create.node_name.as_str());
        let found = self.existing.as_ref().map(|existing| existing.node_name.as_str());
        made.or(found).filter(|node| !node.is_empty())
    }
}

/// The frozen request to CreateVolume, secrets aside.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateSource {
    /// The name sent, which makes a repetition harmless.
    pub name: String,
    /// At least so many bytes.
    pub required_bytes: i64,
    /// At most so many bytes; 0 = no bound.
    #[serde(default)]
    pub limit_bytes: i64,
    /// The class's parameters.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub parameters: Map,
    /// What it is made with of what can be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// Where the volume must be reachable from; nothing is sent when both lists are empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requisite: Vec<Segments>,
    /// Where it is wanted, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preferred: Vec<Segments>,
    /// With `controllerScope: Node`, the node whose instance must make it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// The node of the first consumer, for which it was asked for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selected_node: String,
    /// What it is filled from; it begins empty when this is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Whether it is asked for with CSI's newer access modes for one node, in the place of SINGLE_NODE_WRITER. Absent where
    /// nothing was frozen: then that stays, and the others are used as the driver can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_modes: Option<bool>,
}

/// What a volume is filled from when it is made. Found once, and never looked up again by its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Content {
    /// The Volume that it is a copy of; empty where it is filled from a Snapshot.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume: String,
    /// The Snapshot, as `namespace/name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub snapshot: String,
    /// The uid of the one or the other.
    pub uid: String,
    /// What the plugin calls it.
    pub handle: String,
}

/// A volume that exists already.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExistingSource {
    /// The plugin's id for it.
    pub handle: String,
    /// The context that goes with it into every call.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub context: Map,
    /// Where it can be reached from; anywhere when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology: Vec<Segments>,
    /// With `controllerScope: Node`, the node that has it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// How large it is, such as 10Gi, as far as that is known. What a claim asks for beyond it is an expansion; without it nothing is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub capacity: String,
}

/// A volume that is there only while it is published.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EphemeralSource {
    /// What the plugin is told as its id.
    pub handle: String,
    /// The context of NodePublishVolume: what the claim says of it, and [`EPHEMERAL`].
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub context: Map,
}

/// The key of a volume context, with the value `true`, by which drivers know a volume that NodePublishVolume makes, as
/// Kubernetes has it.
pub const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// What is seen of a volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// Where the volume stands. Written by the volumes controller, from `exists` and the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<VolumePhase>,
    /// Who makes its controller calls. Written by the volumes controller, by compare-and-swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Host>,
    /// The epoch of the host that is asked to make no more calls, because another node shall make them; absent again if it does
    /// well before it has let go. Written by the volumes controller, by compare-and-swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_to_release: Option<i64>,
    /// The newest epoch whose host was asked and said that it has no call under way and makes no more. Written by that host,
    /// on a state in which it is asked.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub released_epoch: i64,
    /// The allocations that may use it. Written by the holders controller, by compare-and-swap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<Holder>,
    /// The Volumes that are being made as copies of this one. Written by the volumes controller, on the state that it was
    /// decided on: a copy gets its first host once it is named here, and nothing is deleted while a copy is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<String>,
    /// The Snapshots that are being cut of this volume, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<ObjectRef>,
    /// The handle that was compared with those of all other Volumes: which of them has it, too, is in the condition `HandleShared`.
    /// Written by the volumes controller; its host deletes nothing by another one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub handle_checked: String,
    /// Whether the backend has it, as the host knows. Absent = the host has said nothing yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<Rung>,
    /// The plugin's id for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub handle: String,
    /// The plugin's context for it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub context: Map,
    /// Its size as the plugin said; empty when it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub capacity: String,
    /// Where it can be reached from; anywhere when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology: Vec<Segments>,
    /// The last CSI calls of its host about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// When the host tries again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// A create of what was said not to be there is about to be made, or may be under way: the object does not go.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attempting: bool,
    /// The epoch that the host speaks for.
    #[serde(default)]
    pub observed_epoch: i64,
    /// The host's word on a failure or wait, folded into the `Ready` condition by the volumes controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Condition>,
    /// What its host knows of its expansion. Absent = none was ever begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expansion: Option<Expansion>,
    /// What its host knows of its attributes. Absent = it was never given any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modification: Option<Modification>,
    /// `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What a host knows of the expansion of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Expansion {
    /// What ControllerExpandVolume is asked for, or was without a final answer: the same is asked again until there is one
    /// (CO-CTRL-108).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<WantedSize>,
    /// What is asked for is done only while nobody uses the volume, and may be under way: nobody is granted the volume until there is a
    /// final answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offline: bool,
    /// The size that each node that has the volume, or gets it, shall bring it to by NodeExpandVolume; 0 = none
    /// (CO-CTRL-107).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub node_bytes: i64,
    /// Why it waits or fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
}

/// The condition of a claim, or of an attachment, that is to have more than it has: False, with the reason. It is not there
/// while nothing is owed.
pub const EXPANDED: &str = "Expanded";

/// The condition of an attachment whose plugin tells how the volume is on its node: False when it says that something is wrong
/// with it, Unknown when it cannot say. It is not there where nothing is told. Nothing is done because of it.
pub const VOLUME_HEALTHY: &str = "VolumeHealthy";

/// Annotation of a volume that was never made and in whose place another one is begun: elsewhere, for there was no room for it
/// (`NoRoom`), or as its claim asks for it by now. That its claim is there keeps it no longer.
pub const BEGUN_ANEW: &str = "wharfline.dev/begun-anew";
/// The annotation of a Volume that was deleted before its claim, once that goes, too: its host, which asked for the claim and waits, asks
/// again.
pub const CLAIM_GOES: &str = "wharfline.dev/claim-goes";

/// Marks a Volume that is kept by a change that comes after its deletion.
pub(super) fn kept_late(old: &Value, new: &mut Value) {
    super::meta::keep_late("reclaimPolicy", old, new);
}

/// Why a volume is not made: its plugin has no room for it there (RESOURCE_EXHAUSTED of CreateVolume).
pub const NO_ROOM: &str = "NoRoom";

/// The reason of an attachment whose plugin said that the node can have no more volumes (RESOURCE_EXHAUSTED).
pub const ATTACH_LIMIT: &str = "AttachLimitExceeded";

impl Volume {
    /// The size that nodes shall bring it to; 0 = they have nothing to do.
    pub fn node_bytes(&self) -> i64 {
        let told = self.status.as_ref().and_then(|s| s.expansion.as_ref()).map_or(0, |e| e.node_bytes);
        let alone = self.spec.size.filter(|size| size.node_only).map_or(0, |size| size.required_bytes);
        told.max(alone)
    }

    /// Whether its driver may be at an expansion under which nobody may use it.
    pub fn expands_offline(&self) -> bool {
        let expansion = self.status.as_ref().and_then(|status| status.expansion.as_ref());
        expansion.is_some_and(|expansion| expansion.offline && expansion.asked.is_some())
    }

    /// Whether it was refused, was to be made, and surely is not there: nothing of it is in doubt that could stay behind or come
    /// to be.
    pub fn is_refused(&self) -> bool {
        let Some(status) = &self.status else { return false };
        let absent = status.exists == Some(Rung::Down) && !status.attempting;
        absent && status.provisioning.is_some() && self.spec.source.create.is_some()
    }

    /// The same because its plugin last had no room for it where it was asked to make it.
    pub fn has_no_room(&self) -> bool {
        let said = self.status.as_ref().and_then(|status| status.provisioning.as_ref());
        self.is_refused() && said.is_some_and(|condition| condition.reason == NO_ROOM)
    }

    /// The attributes that it has, if that is sure.
    pub fn attributes(&self) -> Option<&Attributes> {
        self.status.as_ref()?.modification.as_ref()?.sure()
    }

    /// Whether it was ever given any, though it may be in doubt what it has now.
    pub fn was_given_attributes(&self) -> bool {
        self.status.as_ref().and_then(|s| s.modification.as_ref()).is_some_and(|change| change.has.is_some())
    }
}

impl Volume {
    /// How many bytes it has: by what its plugin told, else by what a person said of one that was registered. Nothing where nobody did.
    pub fn bytes(&self) -> Option<i64> {
        let known = |text: &str| quantity::bytes(text).ok().filter(|bytes| *bytes > 0);
        let told = self.status.as_ref().and_then(|status| known(&status.capacity));
        told.or_else(|| known(&self.spec.source.existing.as_ref()?.capacity))
    }

    /// The only node that knows it: the one that its source names or, where each instance knows its own volumes alone, its host's.
    pub fn home(&self, scope: ControllerScope) -> Option<&str> {
        let host = || self.status.as_ref()?.controller.as_ref();
        let host = || host().filter(|_| scope == ControllerScope::Node).map(|host| host.node_name.as_str());
        self.spec.source.home().or_else(host)
    }

    /// What it is filled from, as long as it is not made, or may have to be made once more to be used or deleted.
    pub fn unfinished(&self) -> Option<&Content> {
        let content = self.spec.source.create.as_ref()?.content.as_ref()?;
        let Some(status) = &self.status else { return Some(content) };
        let said = status.is_said_own() || is_of_another(&status.conditions);
        let undone = self.metadata.deletion_timestamp.is_some() && !status.handle.is_empty();
        let finished = match status.exists {
            // It may turn out to be another one's, which may go with that.
            Some(Rung::Up) => said,
            Some(Rung::Unknown) => undone && said,
            Some(Rung::Down) | None => undone,
        };
        (!finished || may_be_stale(&status.conditions)).then_some(content)
    }
}

impl VolumeStatus {
    /// Whether it was said that the handle that it was given is its own. What was ready once, or held, is that: before that was said of
    /// handles it was so all the same.
    pub fn is_said_own(&self) -> bool {
        let was_ready = matches!(self.phase, Some(VolumePhase::Ready | VolumePhase::Released));
        self.handle_checked == self.handle || was_ready || !self.holders.is_empty()
    }

    /// The host that may make calls: none after it let go.
    pub fn calling_host(&self) -> Option<&Host> {
        self.controller.as_ref().filter(|host| host.epoch != self.released_epoch)
    }
}

impl VolumeAttachment {
    /// Whether the plugin refuses to attach it, because its node can have no more volumes.
    pub fn refused(&self) -> bool {
        let host = self.status.as_ref().and_then(|s| s.controller.as_ref());
        host.is_some_and(|host| host.reason == ATTACH_LIMIT && host.attached != Rung::Up)
    }

    /// Whether the plugin last did not find what was to be attached: the volume or the node, for which it has one code.
    pub fn is_unknown(&self) -> bool {
        let host = self.status.as_ref().and_then(|s| s.controller.as_ref());
        let attaching = |host: &AttachStatus| {
            host.calls
                .iter()
                .rev()
                .find(|call| call.method == "ControllerPublishVolume")
                .is_some_and(|call| call.code == "NOT_FOUND")
        };
        host.is_some_and(|host| host.attached != Rung::Up && !host.reason.is_empty() && attaching(host))
    }
}

/// Whether a number was never set.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
pub(super) fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Where a volume stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VolumePhase {
    /// Not made yet.
    Pending,
    /// Can be used.
    Ready,
    /// On its way out.
    Releasing,
    /// Its claim is gone and it is kept.
    Released,
    /// It cannot be made or used as asked.
    Failed,
}

/// An allocation that may use a volume, from the grant until its release is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The allocation.
    pub allocation: ObjectRef,
    /// The node it is granted on.
    pub node_name: String,
    /// The attachment that it is granted by, and by no later one of that name.
    #[serde(default, rename = "attachmentUID", skip_serializing_if = "String::is_empty")]
    pub attachment_uid: String,
    /// The boot that the node reported when it was granted; empty when it had reported none.
    #[serde(default, rename = "bootID", skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// Whether it only reads.
    #[serde(default)]
    pub read_only: bool,
}

/// One volume on one node: attached and staged there, with all that undoing needs.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "wharfline.dev",
    version = "v1alpha1",
    kind = "VolumeAttachment",
    plural = "volumeattachments"
)]
#[kube(shortname = "att", status = "VolumeAttachmentStatus", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachmentSpec {
    /// The Volume.
    pub volume: String,
    /// Its uid.
    pub volume_uid: String,
    /// The claim it is bound to.
    pub claim: ObjectRef,
    /// The node.
    pub node_name: String,
    /// Who makes the controller calls; kept equal to the volume's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// Whether ControllerPublish is needed; copied at creation, never derived again.
    pub attach_required: bool,
    /// Whether NodeStage is needed; copied at creation, never derived again.
    pub stage_required: bool,
    /// Whether NodePublish is told for which allocation it is; copied at creation, never derived again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pod_info: bool,
    /// The Plugin.
    pub plugin: String,
    /// The plugin's id for the volume.
    pub handle: String,
    /// The volume context, unchanged in every call.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub volume_context: Map,
    /// What the plugin calls the node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_id: String,
    /// The one capability that the volume is used with.
    pub capability: Capability,
    /// The group that its files are given to, as the claim named it when this was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_group: Option<u32>,
    /// Whether every user of it here only reads.
    #[serde(default)]
    pub read_only: bool,
    /// The uids of the allocations that were let in: nobody else gets the volume published, and while there is none
    /// nothing is attached or staged. Empty at creation; one enters once a holder that names this attachment stands,
    /// and none is taken out again.
    #[serde(default)]
    pub allocations: Vec<String>,
    /// A fence stands for the node's release: it cannot write any more, though it has not said so.
    #[serde(default)]
    pub fenced: bool,
    /// The size that the node shall bring the volume to by NodeExpandVolume, in bytes; 0 = it has nothing to do. Kept equal to
    /// what the Volume says.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub expand_bytes: i64,
    /// Secrets per family of calls.
    #[serde(default, skip_serializing_if = "SecretRefs::is_empty")]
    pub secrets: SecretRefs,
    /// Who is asked with CSI's newer access modes for one node; frozen at creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_modes: Option<NewerModes>,
}

/// Which service of a driver knows CSI's newer access modes for one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewerModes {
    /// That of its controllers.
    pub controller: bool,
    /// That of the node.
    pub node: bool,
}

/// What is seen of an attachment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachmentStatus {
    /// The host's part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<AttachStatus>,
    /// The node's part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<StageStatus>,
    /// `Ready` = attached and staged as far as either is needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What the host knows of an attachment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttachStatus {
    /// The rung.
    pub attached: Rung,
    /// The epoch of the host that says so.
    pub epoch: i64,
    /// What ControllerPublish answered, unchanged into stage and publish.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub publish_context: Map,
    /// The last calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// When it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// Why it waits or fails; empty while all is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A former host's word of a volume: a write that was under way when another node became its host, and would cover what
/// that one says or let others go by what it doubts.
pub(super) fn late_word(new: &Value, old: &Value) -> Option<String> {
    const WORDS: [&str; 6] = ["exists", "handle", "context", "capacity", "topology", "observedEpoch"];
    let status = &new["status"];
    late(&status["controller"]["epoch"], &status["observedEpoch"])
        .filter(|_| says_other(&WORDS, status, &old["status"]))
}

/// The same of an attachment.
pub(super) fn late_attachment(new: &Value, old: &Value) -> Option<String> {
    const WORDS: [&str; 3] = ["attached", "publishContext", "epoch"];
    let said = &new["status"]["controller"];
    late(&new["spec"]["host"]["epoch"], &said["epoch"])
        .filter(|_| says_other(&WORDS, said, &old["status"]["controller"]))
}

/// Whether the host of a volume says that the backend does not have it, and that it makes no call that could change it; and
/// nobody is let in.
pub(super) fn volume_over(object: &Value) -> bool {
    let status = &object["status"];
    let epoch = status["controller"]["epoch"].as_i64();
    let spoken_for = epoch.is_some() && status["observedEpoch"].as_i64() == epoch;
    let attempting = status["attempting"].as_bool().unwrap_or_default();
    let held = status["holders"].as_array().is_some_and(|holders| !holders.is_empty());
    // Of one that was to be kept by then, or is taken for one that was never made, its end is told.
    let vague = status["calls"].as_array().and_then(|calls| calls.last()).is_some_and(is_vague);
    let told = vague || object["metadata"]["annotations"].get(super::meta::KEPT_LATE).is_some();
    spoken_for && status["exists"] == json!(Rung::Down) && !attempting && !held && !told
}

fn is_vague(call: &Value) -> bool {
    let text = |field: &str| call[field].as_str().unwrap_or_default();
    taken_for_refused((text("method"), text("code")))
}

/// Whether a call of this method was refused with a code that says nothing of what was made, and is taken for a refusal all the same
/// (CO-ERR-02, CO-ERR-13, CO-ERR-15): no table of the specification has it.
pub fn taken_for_refused((method, code): (&str, &str)) -> bool {
    let makes = ["CreateVolume", "CreateSnapshot", "CreateVolumeGroupSnapshot"];
    makes.contains(&method) && ["UNKNOWN", "INTERNAL", "DATA_LOSS"].contains(&code)
}

/// Whether the node of an attachment has nothing of the volume any more, and takes nothing up under it again.
pub(super) fn is_let_go(object: &Value) -> bool {
    let uid = object["metadata"]["uid"].as_str();
    uid.is_some() && object["status"]["node"]["releasedUID"].as_str() == uid
}

/// Whether the node of an attachment has nothing of the volume any more, and its host says that it is detached, if it was ever
/// to be attached.
pub(super) fn attachment_over(object: &Value) -> bool {
    let said = &object["status"]["controller"];
    let epoch = object["spec"]["host"]["epoch"].as_i64();
    let spoken_for = epoch.is_some() && said["epoch"].as_i64() == epoch;
    let detached = object["spec"]["attachRequired"] == json!(false)
        || spoken_for && said["attached"] == json!(Rung::Down);
    is_let_go(object) && detached
}

pub(super) fn late(host: &Value, said: &Value) -> Option<String> {
    let (host, said) = (host.as_i64()?, said.as_i64()?);
    (said < host).then(|| format!("the host of epoch {said} says so, and the volume has one of epoch {host}"))
}

/// Whether one of these differs; what is left out is the same as what is empty.
pub(super) fn says_other(words: &[&str], new: &Value, old: &Value) -> bool {
    let said = |part: &Value, word: &str| {
        let value = part[word].clone();
        let empty = [Value::Null, json!(0), json!(""), json!({}), json!([])].contains(&value);
        (!empty).then_some(value)
    };
    words.iter().any(|word| said(new, word) != said(old, word))
}

/// What the node knows of an attachment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    /// The rung.
    pub staged: Rung,
    /// Never staged again under this uid.
    #[serde(default)]
    pub closed: bool,
    /// The attachment's uid once the node has nothing of the volume any more.
    #[serde(default, rename = "releasedUID", skip_serializing_if = "String::is_empty")]
    pub released_uid: String,
    /// The size that NodeExpandVolume was last answered OK for, in bytes; 0 = it never was under this attachment.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub expanded_bytes: i64,
    /// How full it is here, as far as its plugin tells. Told anew when it has moved by a twentieth, so it may be that much off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<VolumeUsage>,
    /// The last calls, stage, publish and expand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// When it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// Why it waits or fails; empty while all is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How full a volume is (NodeGetVolumeStats).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeUsage {
    /// Space, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Figures>,
    /// Inodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes: Option<Figures>,
    /// When it was so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// How much there is of something, and what is left of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    /// All of it.
    pub total: i64,
    /// What is used; absent where the plugin does not say, as for block volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<i64>,
    /// What may be used still, which need not be all that is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
}

impl VolumeUsage {
    /// Whether it has no figures.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_none() && self.inodes.is_none()
    }
}

impl Figures {
    /// What is used of it, in per cent, as `df` counts it: of what is used and what may be used still; absent where it is not
    /// told.
    pub fn per_cent(&self) -> Option<i64> {
        let used = self.used?;
        let all = used.saturating_add(self.available.unwrap_or_else(|| self.total.saturating_sub(used)));
        let (used, all) = (i128::from(used), i128::from(all));
        // What is begun of a per cent counts as one.
        (all > 0).then(|| i64::try_from((used * 100 + all - 1) / all).unwrap_or(100))
    }
}

#[cfg(test)]
mod tests;
