//! Nodes: `Ready` from the lease, facts from the daemon, and the end of a Node that a person deleted.
//!
//! Never frees anything: a lease that ran out only says that nobody knows, and only the server's own word says that.
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::context::Context;
use super::drive::Outcome;
use super::facts::{boot_id, deleting, fence, node_down, uid};
use super::plugins::hosted_alone;
use super::wake::users_of_node;
use super::write::Failure;
use crate::api::meta::{ObjectRef, READY};
use crate::api::{Snapshot, Volume, VolumeStatus};
use crate::plan::Reason;
use crate::plan::host::{HostNode, Pulse, host_node, must_ask};
use crate::plan::marks::OUT_OF_SERVICE;
use crate::plan::release::Fence;

/// One look at one Node.
pub(crate) async fn reconcile(node: Arc<Node>, context: Arc<Context>) -> Outcome {
    let name = node.name_any();
    ask_if_silent(&context, &name).await?;
    let (state, left) = pulse(&context, &name);
    if deleting(&*node) && (state != HostNode::Alive || unused(&context, &name)) {
        context.release(&*node).await?;
        return Ok(None);
    }
    let patch = status(&context, &node, state);
    if !patch.is_null() {
        context.merge(&*node, json!({ "status": patch })).await?;
        return Ok(left);
    }
    let doubt = disproved(&context, &node, state).await?;
    Ok([left, doubt].into_iter().flatten().min())
}

/// Takes the word back that the present boot of a node is off, once its lease was renewed since: kept, it would let the next silence of
/// its daemon alone pass for the end of the machine. When to look again.
async fn disproved(context: &Context, node: &Node, state: HostNode) -> Result<Option<Duration>, Failure> {
    let name = node.name_any();
    let stands = fence(&context.world, &name) == Fence::Stands;
    let since = context.fenced_for(&name, stands);
    if !stands || state != HostNode::Alive {
        return Ok(None);
    }
    // Whoever is heard within a lease's time now has renewed it after that word, though what is heard may be as late as that.
    let enough = 2 * context.options.lease_duration;
    if let Some(left) = enough.checked_sub(since).filter(|left| !left.is_zero()) {
        return Ok(Some(left));
    }
    let boot = boot_id(&context.world, &name);
    let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    taints.retain(|taint| taint.key != OUT_OF_SERVICE || taint.value.as_ref() != Some(&boot));
    let metadata = json!({ "resourceVersion": node.metadata.resource_version });
    context.merge(node, json!({ "metadata": metadata, "spec": { "taints": taints } })).await?;
    let sentence = format!(
        "its daemon renews its lease under boot {boot}, which was said to be off: the taint is taken away. What was given to \
         other nodes stays there"
    );
    let about = ObjectRef { namespace: String::new(), name, uid: uid(node) };
    context.tell::<Node>(&about, "NotOff", &sentence).await;
    Ok(None)
}

/// Asks the server itself before a node is called silent, and before it is called gone: a watch that has gone deaf shows
/// every node as silent, and one that was silent may have come back.
async fn ask_if_silent(context: &Context, node: &str) -> Result<(), Failure> {
    let known = context.lease_age(node);
    if known.is_some() && !must_ask(facts(context, node)) {
        return Ok(());
    }
    let path = Lease::url_path(&(), Some(&context.options.system_namespace));
    match context.read::<Lease>(&path, node).await? {
        Some(lease) => {
            let age = known.map_or(Duration::ZERO, |(age, _)| age);
            context.lease_asked(node, &lease, age);
        }
        None => context.lease_gone(node),
    }
    if known.is_some() {
        // Its Node may say the same as before, when it was taken down.
        users_of_node(context, node);
    }
    Ok(())
}

/// What differs from one renewal of a lease to the next. Times on it are its node's, and are compared with nothing.
pub(crate) fn renewal(lease: &Lease) -> String {
    let spec = lease.spec.clone().unwrap_or_default();
    let renewed = spec.renew_time.map(|t| t.0.to_string()).unwrap_or_default();
    format!("{} {renewed}", spec.holder_identity.unwrap_or_default())
}

/// Whether the node's word still counts, and after how much more silence that changes.
pub(crate) fn pulse(context: &Context, node: &str) -> (HostNode, Option<Duration>) {
    host_node(facts(context, node))
}

fn facts(context: &Context, node: &str) -> Pulse {
    // Without a lease it has been silent at least since we began to look, and then some.
    let unknown = || {
        let silent = context.looking_for() + context.options.lease_duration;
        (silent, Some(silent))
    };
    let (silent_for, asked_at) = context.lease_age(node).unwrap_or_else(unknown);
    Pulse {
        silent_for,
        asked_at,
        lease: context.options.lease_duration,
        longest_call: context.options.longest_call,
        fenced: fence(&context.world, node) == Fence::Stands,
        deleted: context.world.nodes.named(node).is_none(),
    }
}

/// Whether a living node may go: nothing is placed or attached there, and it let go of what it made the calls for.
fn unused(context: &Context, node: &str) -> bool {
    let word = format!("node:{node}");
    let world = &context.world;
    let calls = |v: &Volume| {
        let host = v.status.as_ref().and_then(VolumeStatus::calling_host);
        host.is_some_and(|host| host.node_name == node) && v.spec.source.home() != Some(node)
    };
    // One that its node alone knows goes with it.
    let calls_here = |s: &Snapshot| {
        let status = s.status.clone().unwrap_or_default();
        let host = status.calling_host().is_some_and(|host| host.node_name == node);
        host && status.of.is_none_or(|of| of.node_name != node)
    };
    world.attachments.count(&word) == 0
        && world.allocations.count(&word) == 0
        && !world.volumes.by(&format!("host:{node}")).iter().any(|v| calls(v))
        && !world.snapshots.by(&format!("host:{node}")).iter().any(|s| calls_here(s))
        && !world.attachments.all().iter().any(|a| hosted_alone(world, a, node))
}

/// The part of the status that is to be written; null when nothing is.
fn status(context: &Context, node: &Node, state: HostNode) -> Value {
    let name = node.name_any();
    let (truth, reason, message) = if node_down(&context.world, &name) {
        let reason = Reason::NodeStopped { node: name.clone() };
        ("False", reason.word(), reason.to_string())
    } else if state == HostNode::Alive {
        ("True", "LeaseRenewed", "its daemon renews its lease".to_owned())
    } else if context.lease_age(&name).is_none() {
        ("Unknown", "NoLease", "its daemon has not taken a lease".to_owned())
    } else {
        ("Unknown", "LeaseNotRenewed", "its daemon has not renewed its lease in time".to_owned())
    };
    let seen = node.status.clone().unwrap_or_default();
    let mut conditions = seen.conditions.unwrap_or_default();
    let old = conditions.iter().find(|c| c.type_ == READY);
    let same = old.is_some_and(|c| {
        c.status == truth && c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(&message)
    });
    let mut patch = json!({});
    if !same {
        let kept = old.filter(|c| c.status == truth).and_then(|c| c.last_transition_time.clone());
        let now = Time((context.options.now)());
        conditions.retain(|c| c.type_ != READY);
        conditions.push(NodeCondition {
            type_: READY.to_owned(),
            status: truth.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(kept.unwrap_or(now)),
            last_heartbeat_time: None,
        });
        patch["conditions"] = json!(conditions);
    }
    if let Some(told) = context.world.agents.named(&name).and_then(|a| a.status.clone()) {
        let info = seen.node_info.as_ref();
        let known = info.map(|i| (i.boot_id.as_str(), i.kernel_version.as_str()));
        if known.unwrap_or_default() != (told.boot_id.as_str(), told.kernel.as_str()) {
            patch["nodeInfo"] = json!({ "bootID": told.boot_id, "kernelVersion": told.kernel });
        }
    }
    if patch == json!({}) { Value::Null } else { patch }
}
