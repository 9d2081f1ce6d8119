//! Plugin: one CSI driver as the operator names it, and PluginInstance: one process that serves it.
use std::time::Duration;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::audit::{Audit, AuditRequest};
use super::meta::{Condition, Map, ObjectRef, Segments, Time, Truth};
use super::room::{Room, RoomQuestion};
use super::runtime::{Runtime, TaskResources};

/// One CSI driver as the operator names it.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "wharfline.dev",
    version = "v1alpha1",
    kind = "Plugin",
    plural = "plugins",
    shortname = "plug"
)]
#[kube(status = "PluginStatus", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct PluginSpec {
    /// The name that GetPluginInfo must answer; any name is taken when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub driver_name: String,
    /// Whether any controller instance serves any volume, or each its own node's only.
    #[serde(default)]
    pub controller_scope: ControllerScope,
    /// Namespaces whose tasks may serve this plugin through a `csiPlugin` block.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_instances_from: Vec<String>,
    /// Deadlines per RPC, such as `NodePublishVolume: 2m`; at most 2m but for calls of the node service.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub deadlines: Map,
    /// How many of its calls may be under way at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// Whether what CSI calls alpha is used with this driver: secrets of NodeExpandVolume, and how volumes are by the word of a
    /// driver that does not tell how full they are. It may change with each release of CSI.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alpha: bool,
    /// Whether the files of its volumes are given to the group that a claim names, where the driver does not do that itself.
    #[serde(default, skip_serializing_if = "FsGroupPolicy::is_default")]
    pub fs_group_policy: FsGroupPolicy,
    /// Which volumes it has: `Persistent` ones alone when not given. `Ephemeral` has to be said: whoever may make a claim in
    /// any namespace then says what the driver is told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub volume_lifecycle_modes: Vec<LifecycleMode>,
    /// Whether NodePublishVolume is told for which allocation it is, in its volume context, as pods are in Kubernetes:
    /// `csi.storage.k8s.io/pod.name`, `pod.namespace` and `pod.uid`. Counts for attachments that are made from then on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pod_info_on_mount: bool,
    /// The processes that serve it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub instances: Vec<PluginInstances>,
    /// How processes are replaced when their entry in `instances` changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
}

/// How long volumes of a plugin live, as in a CSIDriver of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LifecycleMode {
    /// From their creation to their deletion.
    Persistent,
    /// While they are published: `spec.ephemeral` of a claim.
    Ephemeral,
}

impl PluginSpec {
    /// Whether it has volumes that live so.
    pub fn serves(&self, mode: LifecycleMode) -> bool {
        let persistent_alone = self.volume_lifecycle_modes.is_empty() && mode == LifecycleMode::Persistent;
        persistent_alone || self.volume_lifecycle_modes.contains(&mode)
    }
}

/// When nodes give the files of a volume to the group that its claim names, as in a CSIDriver of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum FsGroupPolicy {
    /// Where one node writes alone, and the class names an fsType: then it is a file system of its own.
    #[default]
    ReadWriteOnceWithFSType,
    /// Always.
    File,
    /// Never: the driver's volumes know no owners, or their owners are nobody's business.
    None,
}

impl FsGroupPolicy {
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How processes are replaced: one of the two, as in a DaemonSet of Kubernetes. One node at a time, with both running, when
/// none is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// On so many nodes at a time the next process runs beside the former one, which stops once the next one is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<u32>,
    /// On so many nodes at a time the former process stops before the next one starts: for drivers of which a node can run
    /// one only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<u32>,
    /// For how long the next process has to be healthy before it counts, the former one stops and the next node has its turn:
    /// a duration such as `30s`, `10s` when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_healthy_time: Option<String>,
}

/// How many calls of a plugin may be under way at a time. About one volume there is never more than one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Concurrency {
    /// Attaches and detaches (ControllerPublishVolume, ControllerUnpublishVolume) at one node; 1 when not given, for many
    /// drivers pick a free device of the machine and take it in two steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attaches_per_node: Option<u32>,
    /// The same at all nodes together; 32 when not given. Both are counted by each node that makes controller calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attaches: Option<u32>,
}

/// Attaches and detaches at one node at a time, where a Plugin does not say it.
pub const ATTACHES_PER_NODE: u32 = 1;

/// The same at all nodes together.
pub const ATTACHES: u32 = 32;

/// For how long the next process has to be healthy where a Plugin does not say it.
pub const MIN_HEALTHY_TIME: Duration = Duration::from_secs(10);

/// The longest deadline of a call of the controller service. A host that is silent is replaced once its lease has run out
/// for longer than this, for its last call may run so long; a driver that needs longer answers ABORTED or is asked again.
pub const LONGEST_CONTROLLER_CALL: Duration = Duration::from_secs(120);

/// The calls of CSI 1.12, which may have deadlines.
pub const RPCS: [&str; 32] = [
    "GetPluginInfo",
    "GetPluginCapabilities",
    "Probe",
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ValidateVolumeCapabilities",
    "ListVolumes",
    "GetCapacity",
    "ControllerGetCapabilities",
    "CreateSnapshot",
    "DeleteSnapshot",
    "ListSnapshots",
    "GetSnapshot",
    "ControllerExpandVolume",
    "ControllerGetVolume",
    "ControllerModifyVolume",
    "GroupControllerGetCapabilities",
    "CreateVolumeGroupSnapshot",
    "DeleteVolumeGroupSnapshot",
    "GetVolumeGroupSnapshot",
    "GetMetadataAllocated",
    "GetMetadataDelta",
    "NodeStageVolume",
    "NodeUnstageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
    "NodeGetVolumeStats",
    "NodeExpandVolume",
    "NodeGetCapabilities",
    "NodeGetInfo",
];

/// Which volumes a controller instance knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum ControllerScope {
    /// Any instance serves any volume.
    #[default]
    Cluster,
    /// Each knows its own node's volumes only.
    Node,
}

/// The most replicas of one entry that may be asked for: one node has one of them.
pub const MOST_REPLICAS: u32 = 1000;

/// One group of instances of a plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginInstances {
    /// A name unique in the plugin.
    pub name: String,
    /// Which CSI services the process serves.
    pub role: Role,
    /// Where instances run.
    #[serde(default)]
    pub placement: Placement,
    /// How they are run.
    pub runtime: Runtime,
    /// Environment variables of the process.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub env: Map,
    /// What the process may take.
    #[serde(default, skip_serializing_if = "TaskResources::is_empty")]
    pub resources: TaskResources,
    /// Where the socket's directory is mounted in a container's own root.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mount_dir: String,
    /// Where staging and publish paths are mounted in a container's own root.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stage_publish_base_dir: String,
    /// How long an instance may take to become ready before it is restarted, such as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_timeout: Option<String>,
}

/// Which CSI services an instance serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Role {
    /// The controller service.
    Controller,
    /// The node service.
    Node,
    /// Both.
    Monolith,
}

impl Role {
    /// Whether an instance of this role makes controller calls.
    pub fn controller(self) -> bool {
        matches!(self, Self::Controller | Self::Monolith)
    }
    /// Whether an instance of this role makes node calls.
    pub fn node(self) -> bool {
        matches!(self, Self::Node | Self::Monolith)
    }
    /// The word as manifests write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Controller => "Controller",
            Self::Node => "Node",
            Self::Monolith => "Monolith",
        }
    }
}

/// Where instances run: exactly one of these; every node when none is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// One on every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_node: Option<Nothing>,
    /// One on every node with all these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub node_selector: Option<Map>,
    /// So many in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
}

/// An object without fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Nothing {}

/// What is seen of a plugin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginStatus {
    /// What the driver says it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,
    /// The driver that its volumes are of, by the name that it answered; empty before the first volume. Until the last one
    /// is gone no other driver is taken in its place.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub driver_name: String,
    /// Controller instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controllers: Option<Health>,
    /// Node instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Health>,
    /// What all instances can do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// The topology keys that its nodes report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_keys: Vec<String>,
    /// Set on a Plugin that nobody declared: the namespace whose task serves it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub undeclared_from: String,
    /// `Ready` = every expected instance is healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The vendor name and version that the driver itself reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Provider {
    /// GetPluginInfo's name.
    pub name: String,
    /// GetPluginInfo's vendor_version.
    pub version: String,
}

/// How many instances are healthy of how many wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Ready instances.
    pub healthy: u32,
    /// Instances wanted.
    pub expected: u32,
}

/// One process that serves a plugin and owns one socket.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "wharfline.dev", version = "v1alpha1", kind = "PluginInstance", plural = "plugininstances")]
#[kube(shortname = "pi", status = "PluginInstanceStatus", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct PluginInstanceSpec {
    /// The Plugin served.
    pub plugin: String,
    /// Which services.
    pub role: Role,
    /// The node it runs on.
    pub node_name: String,
    /// The allocation whose task it is.
    pub allocation: ObjectRef,
    /// The task in that allocation.
    pub task: String,
    /// A person asks what the backend has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<AuditRequest>,
    /// What room there is for volumes is asked for here: by the controllers, for each class of the plugin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rooms: Vec<RoomQuestion>,
}

/// What is seen of an instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginInstanceStatus {
    /// What the driver says it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,
    /// What the driver calls this node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_id: String,
    /// How many volumes the node can take; 0 = no limit known.
    #[serde(default)]
    pub max_volumes: i64,
    /// Where the node is, in the driver's words.
    #[serde(default, skip_serializing_if = "Segments::is_empty")]
    pub topology: Segments,
    /// What this instance can do, such as `controller/CREATE_DELETE_VOLUME`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Since when it has been healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// What the backend has, while somebody asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
    /// How much room there is, as far as the driver says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rooms: Vec<Room>,
    /// `Connected`, `Probed`, `Fingerprinted`, `Ready`; and `Steady` once its process has ended twice in a row without having
    /// run for a minute: False until it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl PluginInstanceStatus {
    /// What it says of a process that ends soon after each start; absent where it keeps running.
    pub fn unsteady(&self) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.kind == STEADY && c.status == Truth::False)
    }
}

/// The condition of an instance whose process ended again and again: whether it has kept running since.
pub const STEADY: &str = "Steady";

/// Why an instance is not steady.
pub const CRASH_LOOP: &str = "CrashLoop";

/// Why an instance is not Ready: it was not within its `healthTimeout`. That stays while it is started again.
pub const HEALTH_TIMED_OUT: &str = "HealthTimeout";

/// Why an instance is not Ready that begins: nobody listens at its socket yet, or it does not say that it is ready.
pub const BEGINS: [&str; 2] = ["NoSocket", "ProbeFailed"];

/// Why an instance is not Ready: another driver answers than the Plugin is for.
pub const OTHER_DRIVER: &str = "OtherDriver";

/// The capability words in [`PluginInstanceStatus::capabilities`]: the service, a slash, CSI's own name.
pub mod capability {
    /// The controller creates and deletes volumes.
    pub const CREATE_DELETE: &str = "controller/CREATE_DELETE_VOLUME";
    /// The controller attaches and detaches.
    pub const PUBLISH_UNPUBLISH: &str = "controller/PUBLISH_UNPUBLISH_VOLUME";
    /// The controller expands volumes.
    pub const CONTROLLER_EXPAND: &str = "controller/EXPAND_VOLUME";
    /// The controller changes volumes that are there.
    pub const MODIFY: &str = "controller/MODIFY_VOLUME";
    /// The controller says how much room there is.
    pub const GET_CAPACITY: &str = "controller/GET_CAPACITY";
    /// The controller makes volumes out of volumes.
    pub const CLONE: &str = "controller/CLONE_VOLUME";
    /// The controller takes and deletes snapshots, and makes volumes out of them.
    pub const SNAPSHOT: &str = "controller/CREATE_DELETE_SNAPSHOT";
    /// The group controller takes and deletes snapshots of several volumes at one moment.
    pub const GROUP_SNAPSHOT: &str = "group-controller/CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT";
    /// The node expands volumes.
    pub const NODE_EXPAND: &str = "node/EXPAND_VOLUME";
    /// The node stages.
    pub const STAGE_UNSTAGE: &str = "node/STAGE_UNSTAGE_VOLUME";
    /// Topology must be used when placing.
    pub const TOPOLOGY: &str = "plugin/VOLUME_ACCESSIBILITY_CONSTRAINTS";
    /// There is a controller service.
    pub const CONTROLLER_SERVICE: &str = "plugin/CONTROLLER_SERVICE";
    /// The controller knows the newer single-node modes.
    pub const CONTROLLER_MULTI_WRITER: &str = "controller/SINGLE_NODE_MULTI_WRITER";
    /// The node knows the newer single-node modes.
    pub const NODE_MULTI_WRITER: &str = "node/SINGLE_NODE_MULTI_WRITER";
}
