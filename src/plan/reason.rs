//! Why something waits, as a word for conditions and a sentence for people.
use crate::api::meta::HANDLE_ENDING;

/// A cause of waiting. Each carries the names that its sentence needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The named object does not exist yet.
    NotFound {
        /// Such as `VolumeClass`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// No healthy instance of the plugin where one is needed.
    PluginNotReady {
        /// The plugin.
        plugin: String,
        /// The node, empty when any would do.
        node: String,
    },
    /// The plugin lacks a capability that is needed.
    PluginLacks {
        /// The plugin.
        plugin: String,
        /// CSI's word for what is missing.
        capability: &'static str,
    },
    /// The plugin has no volumes that live so.
    NoLifecycleMode {
        /// The plugin.
        plugin: String,
        /// `Persistent` or `Ephemeral`.
        mode: &'static str,
    },
    /// No healthy instance of the plugin is where the class lets volumes be.
    NoPlaceAllowed {
        /// The class.
        class: String,
        /// Its allowedTopologies, in words.
        allowed: String,
        /// The plugin.
        plugin: String,
        /// Where its healthy instances are, in words.
        there: String,
    },
    /// A late-bound claim waits for its first consumer.
    WaitingForFirstConsumer,
    /// Its driver may be at an expansion of the volume that it makes only while nobody uses it.
    VolumeExpanding {
        /// The volume.
        volume: String,
    },
    /// The claim's volume is not ready.
    VolumeNotReady {
        /// The claim.
        claim: String,
        /// What holds it up.
        message: String,
    },
    /// The volume is not attached to this node yet.
    NotAttached,
    /// Another user holds the volume.
    HeldElsewhere {
        /// The volume.
        volume: String,
        /// `namespace/name` of the holder.
        holder: String,
        /// Its node.
        node: String,
    },
    /// The node still has the volume or may have it.
    NotReleased {
        /// The node.
        node: String,
    },
    /// The node is lost and nobody has said that it cannot write any more.
    NoFence {
        /// The node.
        node: String,
        /// The command that frees it.
        command: String,
    },
    /// Processes of the task are left.
    TasksRunning,
    /// Users are left.
    InUse {
        /// Who they are.
        by: String,
    },
    /// No node fits; each with its reason.
    NoNodeFits {
        /// Node and reason, joined.
        details: String,
    },
    /// No node has joined.
    NoNodes,
    /// The volumes of the allocation are not all published.
    VolumesNotReady,
    /// A failed task waits before it is started again.
    Backoff,
    /// The task's image is read and unpacked.
    ImageNotReady,
    /// The task's image cannot be used, or something else that its container needs.
    ImageUnusable,
    /// The node does not allow the task's runtime, or something of what the task asks of it.
    RuntimeNotAllowed,
    /// The node has no program for the task's runtime.
    RuntimeMissing,
    /// A Secret that a call needs is not there.
    SecretMissing {
        /// `namespace/name`.
        secret: String,
    },
    /// A Secret that a call needs is there, perhaps, and cannot be used.
    SecretUnreadable {
        /// `namespace/name`.
        secret: String,
        /// What is wrong with it, without its content.
        why: String,
    },
    /// Nobody makes controller calls for the volume.
    NoHost,
    /// The host's lease was not renewed in time.
    LeaseNotRenewed,
    /// The node is marked stopped.
    NodeStopped {
        /// The node.
        node: String,
    },
    /// The node is lost and surely off.
    NodeLost {
        /// The node.
        node: String,
    },
    /// The named object is on its way out.
    BeingDeleted {
        /// Such as `VolumeClaim`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// There is a claim of the name that an allocation's own shall have, and it is not its own.
    ClaimTaken {
        /// The claim.
        claim: String,
    },
    /// The volume belongs to another claim.
    BoundElsewhere {
        /// The volume.
        volume: String,
        /// `namespace/name` of the claim that has it.
        claim: String,
    },
    /// The volume named is not what the claim asks for.
    VolumeMismatch {
        /// The volume.
        volume: String,
        /// What differs.
        details: String,
    },
    /// The claim had a volume, and it is gone.
    VolumeLost {
        /// The volume.
        volume: String,
    },
    /// Another Volume has the same plugin and handle.
    HandleShared {
        /// The other one.
        volume: String,
    },
    /// Another publication has the path of the host that is asked for, or one in it or above it.
    HostPathTaken {
        /// What is asked for.
        path: String,
        /// What is taken.
        taken: String,
        /// `namespace/name` of the allocation that has it.
        holder: String,
    },
    /// What is staged is dead, and others have it published still.
    StageDead,
    /// The class of a claim does not let its volumes expand.
    ExpansionNotAllowed {
        /// The class.
        class: String,
    },
    /// What a new volume is to be filled from cannot be used yet.
    SourceNotReady {
        /// Such as `claim "data"`.
        from: String,
        /// What it waits for.
        why: String,
    },
    /// Of a volume that was there before nobody said how large it is.
    SizeUnknown {
        /// Its name.
        volume: String,
    },
    /// What a new volume is to be filled from does not fit what is asked for.
    SourceMismatch {
        /// Such as `claim "data"`.
        from: String,
        /// What differs, and what to do.
        details: String,
    },
    /// What a new volume is to be filled from is where that volume shall not be.
    SourceElsewhere {
        /// Such as `claim "data"`.
        from: String,
        /// Where it is, and where the new one shall be.
        details: String,
    },
    /// A claim names attributes that are another plugin's.
    AttributesMismatch {
        /// The VolumeAttributesClass.
        class: String,
        /// Its plugin.
        of: String,
        /// The volume's plugin.
        plugin: String,
    },
    /// Its plugin gave it the handle of another Volume, or Snapshot.
    GivenTwice {
        /// The other one, as `volume "NAME"` or `snapshot NAMESPACE/NAME`.
        other: String,
    },
    /// What has the same handle is being deleted, or nothing was said of it yet.
    HandleEnding {
        /// The other one, as `volume "NAME"` or `snapshot NAMESPACE/NAME`.
        other: String,
    },
    /// What had the same handle is gone.
    HandleEnded,
    /// The controllers have not said yet whether another object has its handle, too.
    HandleUnchecked,
    /// Another Snapshot has the same plugin and handle.
    SnapshotShared {
        /// The other one, as `snapshot NAMESPACE/NAME`.
        other: String,
    },
    /// A plugin that is asked on each node by itself: on which is not said.
    NodeNotNamed {
        /// The plugin.
        plugin: String,
    },
    /// A person said that the node's present boot is off.
    SaidOff {
        /// The node.
        node: String,
    },
    /// What a snapshot is of is not with the node that makes the snapshot's calls.
    VolumeNotHere,
    /// A snapshot is cut, and not ready yet.
    SnapshotProcessing,
    /// The plugin lists no snapshot of that handle.
    SnapshotNotFound {
        /// The handle.
        handle: String,
    },
    /// What a volume was to be filled from is gone, and its plugin does not find it either.
    SourceGone {
        /// Such as `Snapshot "default/nightly"`.
        what: String,
    },
    /// A snapshot is of a group, which alone can be deleted.
    PartOfGroup,
    /// A former instance of a plugin serves until the next one is up.
    SuccessorNotReady {
        /// The allocation of the next one.
        successor: String,
    },
    /// An allocation asks for a volume of the plugin that it serves itself.
    OwnPlugin {
        /// The plugin.
        plugin: String,
    },
    /// So many attaches and detaches of a plugin are under way as may be.
    NotInTurn {
        /// The plugin.
        plugin: String,
        /// The field of the Plugin that says how many.
        field: &'static str,
        /// How many.
        most: usize,
        /// At which node; empty where all nodes are counted together.
        node: String,
    },
    /// A person stopped it.
    Stopped,
}

impl Reason {
    /// One CamelCase word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "NotFound",
            Self::PluginNotReady { .. } => "PluginNotReady",
            Self::PluginLacks { .. } => "PluginLacksCapability",
            Self::NoLifecycleMode { .. } => "NoLifecycleMode",
            Self::NoPlaceAllowed { .. } => "NoPlaceAllowed",
            Self::WaitingForFirstConsumer => "WaitingForFirstConsumer",
            Self::VolumeExpanding { .. } => "VolumeExpanding",
            Self::VolumeNotReady { .. } => "VolumeNotReady",
            Self::NotAttached => "NotAttached",
            Self::HeldElsewhere { .. } => "HeldElsewhere",
            Self::NotReleased { .. } => "NotReleased",
            Self::NoFence { .. } => "NoFence",
            Self::TasksRunning => "TasksRunning",
            Self::InUse { .. } => "InUse",
            Self::NoNodeFits { .. } => "NoNodeFits",
            Self::NoNodes => "NoNodes",
            Self::VolumesNotReady => "VolumesNotReady",
            Self::Backoff => "Backoff",
            Self::ImageNotReady => "ImageNotReady",
            Self::ImageUnusable => "ImageUnusable",
            Self::RuntimeNotAllowed => "RuntimeNotAllowed",
            Self::RuntimeMissing => "RuntimeMissing",
            Self::SecretMissing { .. } => "SecretMissing",
            Self::SecretUnreadable { .. } => "SecretUnreadable",
            Self::NoHost => "NoHost",
            Self::LeaseNotRenewed => "LeaseNotRenewed",
            Self::NodeStopped { .. } => "NodeStopped",
            Self::NodeLost { .. } => "NodeLost",
            Self::BeingDeleted { .. } => "BeingDeleted",
            Self::ClaimTaken { .. } => "ClaimTaken",
            Self::BoundElsewhere { .. } => "BoundElsewhere",
            Self::VolumeMismatch { .. } => "VolumeMismatch",
            Self::VolumeLost { .. } => "VolumeLost",
            Self::HandleShared { .. } => "HandleShared",
            Self::HostPathTaken { .. } => "HostPathTaken",
            Self::StageDead => "StageDead",
            Self::ExpansionNotAllowed { .. } => "ExpansionNotAllowed",
            Self::SourceNotReady { .. } => "SourceNotReady",
            Self::SizeUnknown { .. } => "SizeUnknown",
            Self::SourceMismatch { .. } => "SourceMismatch",
            Self::SourceElsewhere { .. } => "SourceElsewhere",
            Self::AttributesMismatch { .. } => "AttributesMismatch",
            Self::SnapshotShared { .. } | Self::GivenTwice { .. } => "HandleShared",
            Self::HandleEnding { .. } | Self::HandleEnded => HANDLE_ENDING,
            Self::HandleUnchecked => "HandleUnchecked",
            Self::NodeNotNamed { .. } => "NodeNotNamed",
            Self::SaidOff { .. } => "SaidOff",
            Self::VolumeNotHere => "VolumeNotHere",
            Self::SnapshotProcessing => "Processing",
            Self::SnapshotNotFound { .. } => "SnapshotNotFound",
            Self::SourceGone { .. } => "SourceGone",
            Self::PartOfGroup => "PartOfGroup",
            Self::SuccessorNotReady { .. } => "SuccessorNotReady",
            Self::OwnPlugin { .. } => "OwnPlugin",
            Self::NotInTurn { .. } => "NotInTurn",
            Self::Stopped => "Stopped",
        }
    }
}

impl std::fmt::Display for Reason {
    #[expect(clippy::too_many_lines, reason = "a sentence for each variant")]
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound { kind, name } => {
                write!(f, "waits for {kind} \"{name}\", which does not exist yet")
            }
            Self::PluginNotReady { plugin, node } if node.is_empty() => {
                write!(f, "waits for a healthy instance of plugin \"{plugin}\"")
            }
            Self::PluginNotReady { plugin, node } => {
                write!(f, "waits for a healthy instance of plugin \"{plugin}\" on node \"{node}\"")
            }
            Self::PluginLacks { plugin, capability } => write!(f, "plugin \"{plugin}\" has no {capability}"),
            Self::NoLifecycleMode { plugin, mode } => write!(
                f,
                "plugin \"{plugin}\" is not asked for such a volume: {mode} is not among its spec.volumeLifecycleModes"
            ),
            Self::NoPlaceAllowed { class, allowed, plugin, there } => write!(
                f,
                "class \"{class}\" lets volumes be at {allowed} alone (allowedTopologies), and no healthy instance of plugin \
                 \"{plugin}\" is there, but {there}"
            ),
            Self::WaitingForFirstConsumer => write!(f, "waits for the first allocation that uses it"),
            Self::VolumeExpanding { volume } => write!(
                f,
                "volume \"{volume}\" is being expanded, which its driver does only while nobody uses it; it is given to nobody \
                 before the driver has answered"
            ),
            Self::VolumeNotReady { claim, message } if message.is_empty() => {
                write!(f, "waits for the volume of claim \"{claim}\"")
            }
            Self::VolumeNotReady { claim, message } => write!(f, "claim \"{claim}\": {message}"),
            Self::NotAttached => write!(f, "waits until the volume is attached to this node"),
            Self::HeldElsewhere { volume, holder, node } => {
                write!(
                    f,
                    "volume \"{volume}\" is held by allocation \"{holder}\" on node \"{node}\", \
                     which has to end or be deleted first"
                )
            }
            Self::NotReleased { node } => write!(f, "waits until node \"{node}\" has released the volume"),
            Self::NoFence { node, command } => write!(
                f,
                "node \"{node}\" is lost and may still write; once it is surely off, run: {command}"
            ),
            Self::TasksRunning => write!(f, "waits until no process of the task is left"),
            Self::InUse { by } => write!(f, "still in use by {by}"),
            Self::NoNodeFits { details } => write!(f, "no node fits: {details}"),
            Self::NoNodes => write!(f, "no node has joined"),
            Self::VolumesNotReady => write!(f, "waits until all its volumes are published"),
            Self::Backoff => write!(f, "waits before the next start"),
            Self::ImageNotReady => write!(f, "waits until its image is unpacked"),
            Self::ImageUnusable => write!(f, "its image cannot be used"),
            Self::RuntimeNotAllowed => write!(f, "this node does not allow what it asks for"),
            Self::RuntimeMissing => write!(f, "this node has no program for its runtime"),
            Self::SecretMissing { secret } => write!(f, "waits for Secret \"{secret}\", which a call needs"),
            Self::SecretUnreadable { secret, why } => {
                write!(f, "Secret \"{secret}\", which a call needs, cannot be read: {why}")
            }
            Self::NoHost => write!(f, "waits until a node is chosen to make its controller calls"),
            Self::LeaseNotRenewed => write!(f, "this node's lease is not renewed; no call is started"),
            Self::NodeStopped { node } => {
                write!(f, "node \"{node}\" was taken down, and is back once its daemon starts again")
            }
            Self::NodeLost { node } => write!(f, "node \"{node}\" was lost, and surely off"),
            Self::BeingDeleted { kind, name } => write!(f, "{kind} \"{name}\" is being deleted"),
            Self::ClaimTaken { claim } => write!(
                f,
                "claim \"{claim}\", which shall be made for it, is there already and is not its own: give another claimName \
                 beside claimTemplate in another allocation, or wait until that claim is gone"
            ),
            Self::BoundElsewhere { volume, claim } => {
                write!(f, "volume \"{volume}\" belongs to claim \"{claim}\"")
            }
            Self::VolumeMismatch { volume, details } => {
                write!(f, "volume \"{volume}\" is not what is asked for: {details}")
            }
            Self::VolumeLost { volume } => write!(f, "its volume \"{volume}\" is gone"),
            Self::HandleShared { volume } => {
                write!(f, "waits for volume \"{volume}\", which has the same plugin and handle")
            }
            Self::HostPathTaken { path, taken, holder } => write!(
                f,
                "hostPath {path}: allocation \"{holder}\" has a volume at {taken}; it has to end or be deleted first, or \
                 another path be chosen"
            ),
            Self::StageDead => write!(
                f,
                "what is staged is dead: it is staged anew once nobody else here has the volume published"
            ),
            Self::ExpansionNotAllowed { class } => {
                write!(f, "class \"{class}\" does not allow expansion (allowVolumeExpansion)")
            }
            Self::SourceNotReady { from, why } => {
                write!(f, "waits for {from}, which it is made of: {why}")
            }
            Self::SizeUnknown { volume } => write!(
                f,
                "nobody said how large volume \"{volume}\" is, so that what its claim requests is neither compared with it nor \
                 an expansion: say it once in the volume's spec.source.existing.capacity"
            ),
            Self::SourceMismatch { from, details } => write!(f, "does not fit {from}: {details}"),
            Self::AttributesMismatch { class, of, plugin } => write!(
                f,
                "VolumeAttributesClass \"{class}\" is of plugin \"{of}\", and the volume of \"{plugin}\"; name one of \"{plugin}\""
            ),
            Self::GivenTwice { other } => write!(
                f,
                "its plugin gave it the handle of {other}: nobody knows what is in it, so that it is never used; deleted, it goes alone, and \
                 nothing is deleted at the backend; `wharfline volume audit` names what the plugin has besides"
            ),
            Self::HandleEnding { other } => {
                write!(f, "{other} has the same handle, and goes first: that is waited for; `wharfline why` of that one says what it waits for")
            }
            Self::HandleEnded => f.write_str(
                "what had the same handle has gone, and what its plugin gave it perhaps with it: its plugin is asked once more",
            ),
            Self::HandleUnchecked => {
                f.write_str("the controllers have not said yet that no other object has its handle; they do as soon as they run")
            }
            Self::SnapshotShared { other } => {
                write!(
                    f,
                    "{other} has the same plugin and handle: use that one, or delete it first, with deletionPolicy: Retain if it was cut for it"
                )
            }
            Self::NodeNotNamed { plugin } => write!(
                f,
                "plugin \"{plugin}\" has controllerScope Node, and nothing says which node has this: delete what was registered and \
                 apply it with nodeName in its source; what was made is reached under controllerScope Cluster, as it was"
            ),
            Self::SaidOff { node } => write!(
                f,
                "node \"{node}\" is said to be off (taint wharfline.dev/out-of-service), and is given nothing before that is taken away"
            ),
            Self::VolumeNotHere => write!(
                f,
                "another node makes the calls of the volume that it is of, and this goes there, too; if the volume is gone, delete this; if it \
                 waits here then, set deletionPolicy Retain"
            ),
            Self::SourceElsewhere { from, details } => {
                write!(f, "cannot be filled from {from} where it shall be: {details}")
            }
            Self::SnapshotProcessing => write!(f, "is cut; the plugin makes it ready to be used"),
            Self::SnapshotNotFound { handle } => write!(f, "the plugin lists no snapshot \"{handle}\""),
            Self::SourceGone { what } => {
                write!(
                    f,
                    "{what}, which it was to be filled from, is gone: delete the claim that asks for it"
                )
            }
            Self::PartOfGroup => write!(
                f,
                "it is one of a group of snapshots, which alone can be deleted: set deletionPolicy Retain to leave it there"
            ),
            Self::SuccessorNotReady { successor } => write!(
                f,
                "serves until its successor \"{successor}\" has been healthy for spec.updateStrategy.minHealthyTime; the \
                 Plugin's condition Updated says what keeps that one from it"
            ),
            Self::OwnPlugin { plugin } => {
                write!(f, "serves plugin \"{plugin}\" and can use no volume of it")
            }
            Self::NotInTurn { plugin, field, most, node } => {
                let at = if node.is_empty() { String::new() } else { format!(" at node \"{node}\"") };
                write!(
                    f,
                    "waits for its turn: {most} of plugin \"{plugin}\" at a time are attached or detached{at} \
                     (spec.concurrency.{field} of the Plugin)"
                )
            }
            Self::Stopped => write!(f, "was stopped"),
        }
    }
}
