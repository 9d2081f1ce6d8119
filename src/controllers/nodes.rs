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

use super::allocations::serves;
use super::context::Context;
use super::drive::Outcome;
use super::facts::{boot_id, deleting, fence_command, node_down, said_off, said_stopped, uid};
use super::ledger::version;
use super::plugins::hosted_alone;
use super::wake::users_of_node;
use super::write::Failure;
use crate::api::meta::{ObjectRef, READY, Unrenewed};
use crate::api::node_agent::OUT_OF_SERVICE;
use crate::api::plugin::ControllerScope;
use crate::api::snapshot::SnapshotOf;
use crate::api::{Allocation, AllocationStatus, NodeAgent, Snapshot, Volume, VolumeStatus};
use crate::plan::Reason;
use crate::plan::host::{HostNode, Pulse, host_node, must_ask};
use crate::plan::nodes::{self as plan, Deletion, Leaving, NO_LEASE, SILENT_SINCE_DELETED};
use crate::plan::release::Fence;

/// When to look again at a Node whose daemon said something that has not reached us.
const AGAIN: Duration = Duration::from_secs(1);

/// One look at one Node.
pub(crate) async fn reconcile(node: Arc<Node>, context: Arc<Context>) -> Outcome {
    let name = node.name_any();
    ask_if_silent(&context, &name).await?;
    let silent = context.unrenewed(&name);
    let (state, left) = pulse(&context, &name);
    let disproved = is_disproved(&context, &name);
    if goes(&context, &node, state) {
        if !released(&context, &node, (state, silent)).await? {
            return Ok(Some(AGAIN));
        }
        context.said_off_since(&name, None);
        return Ok(None);
    }
    // Before the Node gets another version: that would be later than the renewal, if somebody else were to lead then.
    if disproved {
        take_back(&context, &node).await?;
        return Ok(Some(AGAIN));
    }
    let patch = status(&context, &node, state);
    if !patch.is_null() {
        // Against this version only: what is said of one that is not heard tells later whether it was deleted before.
        let metadata = json!({ "resourceVersion": node.metadata.resource_version });
        context.merge(&*node, json!({ "metadata": metadata, "status": patch })).await?;
        return Ok(left);
    }
    Ok(left)
}

/// Whether an operator's fence stands: the present boot of a node was said to be off, and nothing was heard of it since. A Node that is
/// gone was said to be.
pub(crate) fn fence(context: &Context, node: &str) -> Fence {
    if said_off(&context.world, node) == Fence::Stands && !is_disproved(context, node) {
        Fence::Stands
    } else {
        Fence::None
    }
}

/// Whether a node's lease was renewed after it had been said that its present boot is off.
fn is_disproved(context: &Context, node: &str) -> bool {
    let said = context.world.nodes.named(node).filter(|_| said_off(&context.world, node) == Fence::Stands);
    let said = said.map(|object| (boot_id(&context.world, node), version(&*object)));
    let since = context.said_off_since(node, said);
    plan::disproved(since, context.lease_version(node), told_by_holder(context, node))
}

/// Whether a Node that is deleted may go.
fn goes(context: &Context, node: &Node, state: HostNode) -> bool {
    let name = node.name_any();
    let deletion = deletion(node);
    deletion != Deletion::None
        && plan::goes(Leaving {
            deletion,
            state,
            unused: unused(context, &name),
            fenced: fence(context, &name) == Fence::Stands,
            stopped: said_stopped(&context.world, &name),
            booted: !boot_id(&context.world, &name).is_empty(),
        })
}

/// Lets a Node go, and with it what it had: of one that is not heard only as long as it is as silent as it was seen, and what it told
/// last is what the server has. Whether it is let go.
async fn released(
    context: &Context,
    node: &Node,
    (state, silent): (HostNode, Unrenewed),
) -> Result<bool, Failure> {
    if state == HostNode::Alive {
        context.release(node).await?;
        return Ok(true);
    }
    let name = node.name_any();
    let said = |agent: Option<&NodeAgent>| {
        agent.and_then(|a| a.status.as_ref()).map(|s| (s.boot_id.clone(), s.stopped))
    };
    let there = context.read::<NodeAgent>(&NodeAgent::url_path(&(), None), &name).await?;
    if said(there.as_ref()) != said(context.world.agents.named(&name).as_deref()) {
        return Ok(false);
    }
    context.release_unrenewed(node, silent).await?;
    Ok(true)
}

/// Whether who renews the lease is who told its boot last, and renewed it under that boot.
fn told_by_holder(context: &Context, node: &str) -> bool {
    let told =
        context.world.agents.named(node).and_then(|a| a.status.as_ref().map(|s| s.incarnation.clone()));
    context.lease_holder(node).is_some_and(|(holder, _)| told.is_some_and(|told| told == holder))
        && context.lease_boot(node).is_none_or(|boot| boot == boot_id(&context.world, node))
}

/// Status and reason of its `Ready` condition.
fn ready(node: &Node) -> Option<(&str, &str)> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.find(|condition| condition.type_ == READY);
    ready.map(|c| (c.status.as_str(), c.reason.as_deref().unwrap_or_default()))
}

fn deletion(node: &Node) -> Deletion {
    plan::deletion(deleting(node), ready(node))
}

/// Takes the word back that the present boot of a node is off: its lease was renewed since.
async fn take_back(context: &Context, node: &Node) -> Result<(), Failure> {
    let name = node.name_any();
    let boot = boot_id(&context.world, &name);
    let mut taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    taints.retain(|taint| taint.key != OUT_OF_SERVICE || taint.value.as_ref() != Some(&boot));
    let metadata = json!({ "resourceVersion": node.metadata.resource_version });
    context.merge(node, json!({ "metadata": metadata, "spec": { "taints": taints } })).await?;
    let sentence = format!(
        "its daemon has renewed its lease under boot {boot} after that was said to be off: the taint is taken away at {}. What was \
         given to other nodes stays there",
        context.now().0
    );
    let about = ObjectRef { namespace: String::new(), name, uid: uid(node) };
    context.tell::<Node>(&about, "NotOff", &sentence).await;
    Ok(())
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
        fenced: fence(context, node) == Fence::Stands,
        deleted: context.world.nodes.named(node).is_none(),
    }
}

/// Whether a living node may go: nothing is placed or attached there, and it let go of what it made the calls for.
fn unused(context: &Context, node: &str) -> bool {
    let word = format!("node:{node}");
    let world = &context.world;
    let scope = |plugin: &str| {
        world.plugins.named(plugin).map(|plugin| plugin.spec.controller_scope).unwrap_or_default()
    };
    let calls = |v: &Volume| {
        let host = v.status.as_ref().and_then(VolumeStatus::calling_host);
        host.is_some_and(|host| host.node_name == node) && v.home(scope(&v.spec.plugin)) != Some(node)
    };
    // One that its node alone knows goes with it.
    let calls_here = |s: &Snapshot| {
        let status = s.status.clone().unwrap_or_default();
        let host = status.calling_host().is_some_and(|host| host.node_name == node);
        let stays = |of: &SnapshotOf| of.node_name == node || scope(&of.plugin) == ControllerScope::Node;
        host && !status.of.as_ref().is_some_and(stays)
    };
    // One that has ended, and stays to be looked at, needs nothing of its node any more.
    let ended = |a: &Allocation| !serves(a) && a.status.as_ref().is_some_and(AllocationStatus::over);
    world.attachments.count(&word) == 0
        && world.allocations.by(&word).iter().all(|a| ended(a))
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
    } else if deletion(node) == Deletion::TakeOut && !boot_id(&context.world, &name).is_empty() {
        let command = fence_command(&context.world, &name);
        let sentence = "its daemon was heard when the Node was deleted, and is silent since: what runs there may run on, and is \
                        waited for. Start the daemon again or, if the machine is surely off,";
        ("Unknown", SILENT_SINCE_DELETED, format!("{sentence} {command}"))
    } else if context.lease_age(&name).is_none() {
        ("Unknown", NO_LEASE, "its daemon has not taken a lease".to_owned())
    } else {
        ("Unknown", "LeaseNotRenewed", "its daemon has not renewed its lease in time".to_owned())
    };
    let seen = node.status.clone().unwrap_or_default();
    let mut conditions = seen.conditions.unwrap_or_default();
    let old = conditions.iter().find(|c| c.type_ == READY);
    let renewed = context.lease_holder(&name).is_some_and(|(_, again)| again);
    let same = truth == "True" && plan::unheard(ready(node), renewed)
        || old.is_some_and(|c| {
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
