//! Allocation: a workload on one node, tasks plus the claims they use.
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::claim::VolumeClaimSpec;
use super::meta::{Call, Condition, Map, Rung, TemplateMetadata, Time};
use super::plugin::Role;
use super::runtime::{Runtime, TaskResources};

/// A workload on one node: tasks plus the claims they use; no tasks at all = keep the volumes mounted there.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "wharfline.dev", version = "v1alpha1", kind = "Allocation", plural = "allocations")]
#[kube(shortname = "alloc", namespaced, status = "AllocationStatus", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct AllocationSpec {
    /// A pin to one node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Nodes with all these labels.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub node_selector: Map,
    /// The claims it uses, keyed by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volumes: Vec<AllocationVolume>,
    /// Its tasks, keyed by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub tasks: Vec<Task>,
    /// Stopped, its volumes released, and kept.
    #[serde(default)]
    pub stop: bool,
    /// What happens when its node is lost.
    #[serde(default)]
    pub on_node_lost: OnNodeLost,
}

/// What happens to an allocation whose node is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum OnNodeLost {
    /// It stays bound to that node.
    #[default]
    Hold,
    /// It is bound to another node once the lost one is fenced.
    Rebind,
}

/// One claim used by an allocation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllocationVolume {
    /// The name that tasks mount it by.
    pub name: String,
    /// The claim, in the allocation's namespace. With `claimTemplate` it is `ALLOCATION-NAME` when not given.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim_name: String,
    /// The claim is made for this allocation, like this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_template: Option<Box<ClaimTemplate>>,
    /// Whether it is only read.
    #[serde(default)]
    pub read_only: bool,
    /// A path on the host to publish it at too, beneath a directory that the node allows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host_path: String,
    /// What is done when its mounts die or go while it is up: a FUSE driver ended, somebody unmounted it.
    #[serde(default, skip_serializing_if = "OnStaleMount::is_none")]
    pub on_stale_mount: OnStaleMount,
}

/// A claim that an allocation brings along.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimTemplate {
    /// Its labels and annotations.
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    /// What it asks for.
    pub spec: VolumeClaimSpec,
    /// What becomes of it when the allocation is deleted.
    #[serde(default, skip_serializing_if = "WhenDeleted::is_delete")]
    pub when_deleted: WhenDeleted,
}

/// What becomes of a claim that an allocation brought along when that is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum WhenDeleted {
    /// It goes, too, and its volume as its class says. No other allocation ever uses it.
    #[default]
    Delete,
    /// It stays, and the next allocation of the same name that asks for it has it again.
    Retain,
}

impl WhenDeleted {
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
    fn is_delete(&self) -> bool {
        *self == Self::Delete
    }
}

/// The label of a claim that stays when its allocation is deleted: whose it is, by name.
pub const CLAIM_OF: &str = "wharfline.dev/allocation";

/// The name of the claim that an allocation brings along, where it does not say another one.
pub fn claim_name(allocation: &str, volume: &str) -> String {
    format!("{allocation}-{volume}")
}

/// Fills in the names of the claims that it brings along.
pub fn name_claims(object: &mut Value) {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    for volume in object.pointer_mut("/spec/volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        let unnamed = volume["claimName"].as_str().is_none_or(str::is_empty);
        if let (true, true, Some(own)) =
            (unnamed, volume["claimTemplate"].is_object(), volume["name"].as_str().map(str::to_owned))
        {
            volume["claimName"] = Value::from(claim_name(&name, &own));
        }
    }
}

/// What the condition of a lost or dead mount says where nothing but that brings it back; who explains it goes by this.
pub const START_ANEW: &str = "stop the allocation and start it again";

/// What is done when the mounts of a volume die or go while it is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
pub enum OnStaleMount {
    /// It is told, and touched by nobody.
    #[default]
    None,
    /// It is mounted anew. Tasks whose own mounts of it are well run on; those whose mounts are dead are ended first, and start
    /// again.
    Remount,
    /// The tasks that mount it are ended, it is mounted anew, and they start again.
    Restart,
}

impl OnStaleMount {
    #[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// One task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// A name unique in the allocation.
    pub name: String,
    /// How it is run.
    pub runtime: Runtime,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub env: Map,
    /// What it may take.
    #[serde(default, skip_serializing_if = "TaskResources::is_empty")]
    pub resources: TaskResources,
    /// Where it sees the allocation's volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_mounts: Vec<VolumeMount>,
    /// Whether it is started again after it ended; `Always` for one that serves a plugin.
    #[serde(default)]
    pub restart_policy: RestartPolicy,
    /// From SIGTERM to SIGKILL, such as `10s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_period: Option<String>,
    /// Makes the task an instance of a plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csi_plugin: Option<CsiPlugin>,
}

impl Task {
    /// Whether it is started again: one that serves a plugin always is, until no volume needs it.
    pub fn restarts(&self) -> RestartPolicy {
        if self.csi_plugin.is_some() { RestartPolicy::Always } else { self.restart_policy }
    }
}

/// Whether a task is started again after it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
pub enum RestartPolicy {
    /// Whatever its exit code was.
    #[default]
    Always,
    /// Unless it ended with 0.
    OnFailure,
    /// Never.
    Never,
}

/// Where a task sees a volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMount {
    /// One of the allocation's volumes.
    pub name: String,
    /// An absolute path in the task.
    pub mount_path: String,
    /// A directory of the volume that is mounted instead of its root, such as `app/data`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sub_path: String,
    /// Whether this task only reads.
    #[serde(default)]
    pub read_only: bool,
}

/// Makes a task an instance of a plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CsiPlugin {
    /// The Plugin it serves.
    pub plugin_name: String,
    /// Which services.
    pub role: Role,
    /// Where the socket's directory is mounted in a container's own root; refused under `process` and `external`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mount_dir: String,
    /// Where staging and publish paths are mounted in a container's own root; refused under `process` and `external`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stage_publish_base_dir: String,
    /// How long it may take to become ready, such as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_timeout: Option<String>,
}

/// What is seen of an allocation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllocationStatus {
    /// The node it is bound to. Written by placement.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Where it stands. Written by the node once there is one, before that by placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<AllocationPhase>,
    /// It has to leave its node, which is being drained or where a volume of its is not to be had: it ends there, and is placed anew.
    /// Written by placement.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evicted: bool,
    /// A plugin's own allocation may stop: no volume needs it. Written by the plugins controller.
    #[serde(default)]
    pub plugin_released: bool,
    /// Why a task of it serves nobody, though its csiPlugin block names a plugin. Written by the plugins controller.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plugin_refused: String,
    /// What keeps it from its volumes while its node has no attachment for it, which is all that a node sees of them. Written
    /// by the allocations controller; the node says it in its conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obstacle: Option<Obstacle>,
    /// It is being deleted, has ended, and its node has no attachment any more that lets it in. It goes with this word.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
    /// Its volumes as the node sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumePublication>,
    /// Its tasks as the node sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskStatus>,
    /// `Placed` (placement), `VolumesReady` and `Ready` (the node).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl AllocationStatus {
    /// Whether it has ended for good and needs nothing of its node any more: it is there to be looked at.
    pub fn over(&self) -> bool {
        let for_good = matches!(self.phase, Some(AllocationPhase::Complete | AllocationPhase::Failed));
        for_good && self.ended()
    }

    /// Whether none of its tasks has run on its node, as far as anybody has said.
    pub fn is_unbegun(&self) -> bool {
        let waits =
            matches!(self.phase, None | Some(AllocationPhase::WaitingVolumes | AllocationPhase::Starting));
        waits && self.tasks.iter().all(|task| task.state == TaskState::Pending && task.restarts == 0)
    }

    /// Whether its node said that nothing of it is left: no process, no publication.
    pub fn ended(&self) -> bool {
        let over = self.phase.is_some_and(AllocationPhase::terminal);
        let down = self.volumes.iter().all(|v| v.published == Rung::Down);
        let idle = self.tasks.iter().all(|t| match t.state {
            TaskState::Pending | TaskState::Exited => true,
            TaskState::Running | TaskState::Restarting | TaskState::Stopping | TaskState::Lost => false,
        });
        over && down && idle
    }
}

/// Whether the node of an allocation says that nothing of it is left, nor any attachment that lets it in.
pub(super) fn allocation_over(object: &Value) -> bool {
    let status = &object["status"];
    status["released"] == true && AllocationStatus::deserialize(status).is_ok_and(|status| status.ended())
}

/// What keeps an allocation from its volumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Obstacle {
    /// One word, such as `PluginNotReady`.
    pub reason: String,
    /// One sentence.
    pub message: String,
}

/// Where an allocation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AllocationPhase {
    /// Not bound to a node.
    Pending,
    /// Bound; its volumes are on their way.
    WaitingVolumes,
    /// Its volumes, if it has any, are there, and a task has not run yet: its image or its runtime may be missing.
    Starting,
    /// Its tasks run, or its volumes are published if it has no tasks.
    Running,
    /// A task has ended, and is started again after a pause.
    Restarting,
    /// Its tasks ended well and are not started again.
    Complete,
    /// A task failed and is not started again.
    Failed,
    /// On its way down.
    Stopping,
    /// Down: nothing runs, nothing is published.
    Stopped,
}

impl AllocationPhase {
    /// Whether its tasks are over for good.
    pub fn terminal(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Stopped)
    }
}

/// One volume of an allocation as its node sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumePublication {
    /// The allocation's name for it.
    pub name: String,
    /// The Volume.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume: String,
    /// The rung.
    pub published: Rung,
    /// Where it is on the host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The last calls that did not end well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
}

/// One task as its node sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskStatus {
    /// The task.
    pub name: String,
    /// Where it stands.
    pub state: TaskState,
    /// How often it was started again.
    #[serde(default)]
    pub restarts: u32,
    /// The last exit code, or 128 plus the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// When it is started the next time, after a start or a run that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_time: Option<Time>,
    /// The last lines that it wrote before it failed: ten at most, of its standard error if it wrote there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub last_output: String,
    /// The digest of the image that it was started from last.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// The last few things that happened to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<TaskEvent>,
}

/// What a task wrote last, behind a sentence about its end; nothing of one that wrote nothing. The very last line is often the
/// least: what a wrapper says of the program that it ran, or how a trace is to be had.
pub fn wrote_last(last_output: &str) -> String {
    const LINES: usize = 3;
    let all: Vec<_> = last_output.lines().collect();
    let last = &all[all.len().saturating_sub(LINES)..];
    if last.is_empty() { String::new() } else { format!("; it wrote last: {}", last.join(" | ")) }
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
pub enum TaskState {
    /// Not started yet.
    #[default]
    Pending,
    /// Its process lives.
    Running,
    /// Waiting to be started again.
    Restarting,
    /// Asked to end.
    Stopping,
    /// Over; no process is left.
    Exited,
    /// Nobody looks after it any more, and what is left of it is not gone yet, as far as anybody knows.
    Lost,
}

/// Something that happened to a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskEvent {
    /// When.
    pub time: Time,
    /// One word, such as `Started`.
    pub reason: String,
    /// One sentence.
    pub message: String,
}

/// How the end of a task begins that could not be run at all, in its event `Exited`.
pub const DID_NOT_START: &str = "did not start";

/// How many events a task keeps.
pub const TASK_EVENTS_KEPT: usize = 6;
/// The taint of a Node on which nothing but plugins shall stay.
pub const DRAIN: &str = "wharfline.dev/drain";
/// The reason of `Ready` under which a node tells of one that has left it.
pub const EVICTED: &str = "Evicted";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn of_what_a_task_wrote_the_last_three_lines_are_told() {
        for (output, expected) in [
            ("", ""),
            ("one", "; it wrote last: one"),
            (
                "is on ext4\nended before it listened\n",
                "; it wrote last: is on ext4 | ended before it listened",
            ),
            ("a\nb\nc\nd", "; it wrote last: b | c | d"),
        ] {
            assert_eq!(wrote_last(output), expected, "{output:?}");
        }
    }

    #[test]
    fn the_claims_that_it_brings_along_are_named_and_no_others() {
        let template = json!({ "spec": {} });
        let mut object = json!({ "metadata": { "name": "app" }, "spec": { "volumes": [
            { "name": "a", "claimTemplate": template },
            { "name": "b", "claimTemplate": template, "claimName": "mine" },
            { "name": "c" },
            { "name": "d", "claimTemplate": template, "claimName": "" }] } });
        name_claims(&mut object);
        let names: Vec<_> = (0..4).map(|i| object["spec"]["volumes"][i]["claimName"].clone()).collect();
        assert_eq!(names, [json!("app-a"), json!("mine"), Value::Null, json!("app-d")]);
        let mut none = json!({ "metadata": { "name": "app" } });
        name_claims(&mut none);
        assert_eq!(none, json!({ "metadata": { "name": "app" } }), "nothing is added to what has none");
    }
}
