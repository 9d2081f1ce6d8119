//! Which csiPlugin block a task serves by when that has changed, whether its process has to make room, and what keeps it
//! from serving.
use std::borrow::Cow;

use kube::{Resource, ResourceExt};

use super::super::context::Node;
use super::super::journal::{Entry, InstanceEntry, task_key};
use super::super::registry::InstanceKey;
use crate::api::Allocation;
use crate::api::allocation::{CsiPlugin, Task};
use crate::plan::plugins::{in_force, outdated};
use crate::plan::supervise::Process;

/// The allocation with the blocks that are in force, of which one may differ from what is written.
pub(super) fn as_served<'a>(node: &Node, allocation: &'a Allocation) -> Cow<'a, Allocation> {
    let uid = allocation.uid().unwrap_or_default();
    let mut served = Cow::Borrowed(allocation);
    for (at, task) in allocation.spec.tasks.iter().enumerate() {
        let Some(written) = &task.csi_plugin else { continue };
        let kept = started_with(node, &uid, task);
        let object = node.caches.instances.one(&format!("{uid}/{}", task.name));
        let admitted = object.as_ref().map(|object| (object.spec.plugin.as_str(), object.spec.role));
        let block = in_force(written, kept.as_ref(), admitted).into_owned();
        if block != *written {
            served.to_mut().spec.tasks[at].csi_plugin = Some(block);
        }
    }
    served
}

/// What of the blocks that are written is not in force yet.
pub(super) fn held(written: &Allocation, served: &Allocation) -> Option<String> {
    written.spec.tasks.iter().zip(&served.spec.tasks).find_map(|(written, served)| {
        let (wanted, serves) = (written.csi_plugin.as_ref()?, served.csi_plugin.as_ref()?);
        let of = |block: &CsiPlugin| (block.plugin_name.clone(), block.role);
        let ((to, to_role), (from, from_role)) = (of(wanted), of(serves));
        ((&to, to_role) != (&from, from_role)).then(|| {
            format!(
                "task {} serves plugin {from} as {from_role:?} still: its csiPlugin block now says plugin {to} as {to_role:?}, \
                 and that waits until no volume needs it as it was",
                written.name
            )
        })
    })
}

/// Whether a task of it serves a plugin, or was to.
pub(super) fn serves(allocation: &Allocation) -> bool {
    allocation.spec.tasks.iter().any(|task| task.csi_plugin.is_some())
}

/// That it was asked to stop, and runs on for those who need its plugin.
pub(super) fn needed(node: &Node, allocation: &Allocation) -> Option<String> {
    let serves = serves(allocation);
    let let_go = allocation.status.as_ref().is_some_and(|status| status.plugin_released);
    let asked = allocation.meta().deletion_timestamp.is_some() || allocation.spec.stop || node.stopped();
    (serves && asked && !let_go).then(|| {
        let (namespace, name) = (allocation.namespace().unwrap_or_default(), allocation.name_any());
        format!(
            "it is to stop, and serves on until nothing needs it any more: \
             `wharfline why alloc/{name} -n {namespace}` names what does"
        )
    })
}

/// Why a task of it serves nobody, by the word of the controllers.
pub(super) fn refused(allocation: &Allocation) -> Option<String> {
    let status = allocation.status.as_ref()?;
    Some(status.plugin_refused.clone()).filter(|why| !why.is_empty())
}

/// What is wrong with an instance of it that its process alone does not tell.
pub(super) fn unwell(node: &Node, allocation: &Allocation) -> Option<String> {
    let uid = allocation.uid().unwrap_or_default();
    allocation.spec.tasks.iter().filter(|task| task.csi_plugin.is_some()).find_map(|task| {
        let key = InstanceKey { allocation: uid.clone(), task: task.name.clone() };
        let progress = node.registry.get(&key)?.progress;
        progress.trouble().map(|why| format!("task {} serves nobody: {why}", task.name))
    })
}

/// Whether the task's process was started by another block than the one that is in force.
pub(super) fn is_outdated(node: &Node, uid: &str, task: &Task) -> bool {
    let Some(wanted) = &task.csi_plugin else { return false };
    let runs = node.tasks.process(uid, &task.name) == Process::Running;
    runs && started_with(node, uid, task).is_some_and(|started| outdated(&started, wanted))
}

/// What the journal keeps of the instance that the task was when it was started last.
pub(super) fn former(node: &Node, uid: &str, task: &str) -> Option<InstanceEntry> {
    node.journal.look(|all| match all.get(&task_key(uid, task)) {
        Some(Entry::Task(entry)) => entry.plugin.clone(),
        _ => None,
    })
}

/// The block that the task was started with last.
fn started_with(node: &Node, uid: &str, task: &Task) -> Option<CsiPlugin> {
    let former = former(node, uid, &task.name)?;
    // Of before it was kept: what else may have changed since is not known.
    let of_old = || {
        let written = task.csi_plugin.clone()?;
        Some(CsiPlugin { plugin_name: former.plugin.clone(), role: former.role, ..written })
    };
    former.block.clone().or_else(of_old)
}
