//! Allocations whose node cannot speak for them: the end of one that is deleted, what becomes of a lost node's, and what one
//! waits for of which its node knows nothing yet.
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::json;

use super::context::Context;
use super::drive::Outcome;
use super::facts::{deleting, fence_command, uid, with_condition};
use super::holders::obstacle;
use super::nodes::{fence, pulse};
use super::templates;
use crate::api::allocation::{AllocationPhase, EVICTED, Obstacle, OnNodeLost};
use crate::api::meta::{Condition, READY, Truth};
use crate::api::{Allocation, AllocationStatus};
use crate::plan::Reason;
use crate::plan::host::HostNode;
use crate::plan::release::Fence;

/// One look at one allocation.
pub(crate) async fn reconcile(object: Arc<Allocation>, context: Arc<Context>) -> Outcome {
    // What becomes of it does not wait for its claims.
    let made = templates::make(&context, &object).await;
    let again = look_at(object, context).await?;
    Ok([again, made?].into_iter().flatten().min())
}

async fn look_at(object: Arc<Allocation>, context: Arc<Context>) -> Outcome {
    let status = object.status.clone().unwrap_or_default();
    let node = &status.node_name;
    let off = !node.is_empty() && node_off(&context, node);
    if deleting(&*object) {
        let held = !context.world.volumes.names(&format!("user:{}", uid(&*object))).is_empty();
        if !held && (node.is_empty() || off || over(&status, serves(&object))) {
            context.release(&*object).await?;
            return Ok(None);
        }
    }
    let over = status.phase.is_some_and(AllocationPhase::terminal);
    let lost = match context.world.nodes.named(node) {
        None => true,
        Some(node) => silent(&node),
    };
    // A plugin's own allocation stays with its node, whatever becomes of that.
    if !lost || node.is_empty() || over || serves(&object) {
        return unattached(&context, &object, &status).await;
    }
    let mut new = status.clone();
    let (truth, reason) = if !off {
        let command = fence_command(&context.world, node);
        (Truth::Unknown, Reason::NoFence { node: node.clone(), command })
    } else if object.spec.on_node_lost == OnNodeLost::Hold && !status.evicted {
        new.phase = Some(AllocationPhase::Failed);
        (Truth::False, Reason::NodeLost { node: node.clone() })
    } else {
        // Placement binds it anew.
        return Ok(None);
    };
    let condition = Condition::new(READY, truth, reason.word(), reason.to_string());
    let condition = condition.of_generation(object.metadata.generation);
    new.conditions = with_condition(&context, &status.conditions, condition);
    if new != status {
        // Against this version only: a node that has come back in between knows better.
        let patch = json!({ "metadata": { "resourceVersion": object.resource_version() },
            "status": { "phase": new.phase, "conditions": new.conditions } });
        context.merge(&*object, patch).await?;
    }
    Ok(None)
}

/// Says what keeps an allocation from its volumes before its node has an attachment for it, in a field that the node reads.
async fn unattached(context: &Context, object: &Allocation, status: &AllocationStatus) -> Outcome {
    let bound = !status.node_name.is_empty() && status.phase == Some(AllocationPhase::WaitingVolumes);
    let waits = bound && !object.spec.stop && !deleting(object);
    let reason = if waits { obstacle(context, object, &status.node_name) } else { None };
    let obstacle =
        reason.map(|reason| Obstacle { reason: reason.word().to_owned(), message: reason.to_string() });
    if obstacle != status.obstacle {
        context.merge(object, json!({ "status": { "obstacle": obstacle } })).await?;
    }
    Ok(None)
}

/// Whether the node is surely off: fenced and silent, or its Node is gone.
pub(crate) fn node_off(context: &Context, node: &str) -> bool {
    fence(context, node) == Fence::Stands && pulse(context, node).0 != HostNode::Alive
}

/// Whether an allocation serves a plugin.
pub(crate) fn serves(allocation: &Allocation) -> bool {
    allocation.spec.tasks.iter().any(|t| t.csi_plugin.is_some())
}

fn silent(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.into_iter().flatten().any(|c| c.type_ == READY && c.status == "Unknown")
}

/// Whether nothing of it is left on its node, and nothing comes again: a driver between two runs does, until it is let go.
pub(crate) fn over(status: &AllocationStatus, serves: bool) -> bool {
    status.ended() && (!serves || status.plugin_released)
}

/// Whether its node said that nothing of it is left, and knew then that it has to leave: an older word may be of before it
/// was started again.
pub(crate) fn evicted(status: &AllocationStatus) -> bool {
    let knew = status.conditions.iter().any(|c| c.kind == READY && c.reason == EVICTED);
    status.evicted && knew && status.ended()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::allocation::{TaskState, TaskStatus, VolumePublication};
    use crate::api::meta::Rung;

    #[test]
    fn an_allocation_has_ended_when_nothing_of_it_is_left() {
        use AllocationPhase as P;
        let with = |phase, published, state| AllocationStatus {
            phase: Some(phase),
            volumes: vec![VolumePublication { published, ..VolumePublication::default() }],
            tasks: vec![TaskStatus { state, ..TaskStatus::default() }],
            ..AllocationStatus::default()
        };
        assert!(with(P::Stopped, Rung::Down, TaskState::Exited).ended());
        assert!(!with(P::Stopping, Rung::Down, TaskState::Exited).ended());
        assert!(!with(P::Stopped, Rung::Unknown, TaskState::Exited).ended());
        assert!(!with(P::Failed, Rung::Down, TaskState::Running).ended());
        for (serves, plugin_released, expected) in
            [(false, false, true), (true, false, false), (true, true, true)]
        {
            let failed = with(P::Failed, Rung::Down, TaskState::Exited);
            let failed = AllocationStatus { plugin_released, ..failed };
            assert_eq!(over(&failed, serves), expected, "serves: {serves}, released: {plugin_released}");
        }
        let stopped = with(P::Stopped, Rung::Down, TaskState::Exited);
        let told = |evicted, word: &str| AllocationStatus {
            evicted,
            conditions: vec![Condition::new(READY, Truth::False, word, "")],
            ..stopped.clone()
        };
        assert!(evicted(&told(true, EVICTED)));
        assert!(!evicted(&told(true, "Stopped")), "what it said before it was told to leave");
        assert!(!evicted(&told(false, EVICTED)));
    }
}
