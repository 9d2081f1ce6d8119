//! How a task ended.
use kube::ResourceExt;

use super::super::Branch;
use super::unmet;
use crate::api::allocation::{AllocationPhase, DID_NOT_START, TaskStatus, wrote_last};
use crate::api::{Allocation, AllocationStatus};

/// How a task ended, and where to read why.
pub(super) fn add_exit(branch: &mut Branch, allocation: &Allocation, status: &AllocationStatus) {
    let failed = || status.tasks.iter().filter(|t| t.exit_code.is_some_and(|code| code != 0));
    // Others end because one failed, and with a code of their own: the node says which one it was.
    let told = unmet(&status.conditions, "Ready").map(|c| c.message.as_str()).unwrap_or_default();
    let named = |t: &&TaskStatus| {
        told.strip_prefix("task ").is_some_and(|rest| rest.starts_with(&format!("{}:", t.name)))
    };
    let Some(task) = failed().find(named).or_else(|| failed().next()) else { return };
    let code = task.exit_code.unwrap_or_default();
    branch.add(&format!("; task {} ended with {code}, started again {} times", task.name, task.restarts));
    branch.add(&wrote_last(&task.last_output));
    branch.next = branch.next.or(task.next_attempt_time);
    let never_ran = task.events.iter().rev().find(|event| event.reason == "Exited");
    let never_ran = never_ran.is_some_and(|event| event.message.starts_with(DID_NOT_START));
    let logs = if never_ran {
        "it never ran, and so it wrote nothing: correct what the message names".to_owned()
    } else {
        logs_of(allocation, &task.name)
    };
    let serves = allocation.spec.tasks.iter().any(|t| t.csi_plugin.is_some());
    branch.hint = match status.phase {
        Some(AllocationPhase::Failed) if !serves => {
            format!("{logs}; once that is put right, delete it and apply it again")
        }
        // Of one that its node cannot start, the reason says what to do.
        Some(AllocationPhase::Restarting) if !is_held_up(&branch.reason) => {
            format!("{logs}; it is started again by itself")
        }
        _ => logs,
    };
}

/// Whether that is why a task is not started, for more than a moment.
fn is_held_up(reason: &str) -> bool {
    ["ImageUnusable", "RuntimeMissing", "RuntimeNotAllowed"].contains(&reason)
}

/// The command that shows what a task wrote.
pub(super) fn logs_of(allocation: &Allocation, task: &str) -> String {
    let namespace = allocation.namespace().unwrap_or_default();
    format!("`wharfline logs {}/{task} -n {namespace}`", allocation.name_any())
}
