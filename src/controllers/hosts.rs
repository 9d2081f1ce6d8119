//! Who makes a volume's controller calls: what is known of its host and of those who could be.
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::context::Context;
use super::facts::{Instances, deleting, serves};
use super::nodes::pulse;
use super::plugins::stays;
use super::volumes::only;
use super::world::namespace_or_default;
use crate::api::meta::Host;
use crate::api::{Volume, VolumeStatus};
use crate::plan::Reason;
use crate::plan::host::{self, Candidate, Decision, HostNode, Serving};
use crate::plan::registry::Service;

/// Since when no controller instance of a plugin was healthy on a node that is host of its volumes. In memory only: new
/// controllers wait anew.
#[derive(Debug, Default)]
pub(crate) struct Absences(Mutex<HashMap<(String, String), Instant>>);

impl Absences {
    /// For how long it has been away, this look included.
    fn seen(&self, plugin: &str, node: &str) -> Duration {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry((plugin.to_owned(), node.to_owned())).or_insert_with(Instant::now).elapsed()
    }

    fn over(&self, plugin: &str, node: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a look into the map for every volume that is well.
        if !all.is_empty() {
            all.remove(&(plugin.to_owned(), node.to_owned()));
        }
    }
}

/// The decision, and when to ask again if nothing changes.
pub(crate) fn decide(
    context: &Context,
    object: &Volume,
    status: &VolumeStatus,
) -> (Decision, Option<Duration>) {
    let current = status.controller.as_ref();
    // What was never attempted needs nobody to undo it.
    if deleting(object) && current.is_none() {
        return (Decision::Wait(Reason::NoHost), None);
    }
    let world = &context.world;
    let plugin = world.plugins.named(&object.spec.plugin);
    if plugin.is_none() && current.is_none() {
        let reason = Reason::NotFound { kind: "Plugin", name: object.spec.plugin.clone() };
        return (Decision::Wait(reason), None);
    }
    let instances = Instances::of(world, &object.spec.plugin);
    let (node, silence) = current.map_or((HostNode::Gone, None), |host| pulse(context, &host.node_name));
    let (serving, absence) =
        current.map_or((Serving::Gone, None), |host| standing(context, &instances, host, object));
    let candidates = match (status.calling_host(), node, serving) {
        // While it makes the calls and is to go on with them, nobody else is asked for.
        (Some(_), HostNode::Alive | HostNode::Silent, Serving::Well | Serving::Away) => Vec::new(),
        (None, _, _) | (Some(_), HostNode::Gone, _) | (Some(_), _, Serving::Leaving | Serving::Gone) => {
            candidates(context, &instances)
        }
    };
    let preferred = consumer(context, object, status);
    let decision = host::decide(&host::Facts {
        current,
        current_node: node,
        serving,
        asked: status.asked_to_release,
        released: status.released_epoch,
        node_goes: current.is_some_and(|host| goes(context, &host.node_name)),
        candidates: &candidates,
        only: only(object),
        preferred: preferred.as_deref(),
        plugin: &object.spec.plugin,
        has_controllers: instances.has_controllers(plugin.as_deref()),
    });
    let decision = match decision {
        Decision::Unneeded if object.spec.source.create.is_some() => Decision::Wait(Reason::PluginLacks {
            plugin: object.spec.plugin.clone(),
            capability: "CREATE_DELETE_VOLUME",
        }),
        Decision::Keep
        | Decision::AskToRelease
        | Decision::Assign(_)
        | Decision::Wait(_)
        | Decision::Unneeded => decision,
    };
    let unseen = candidates.is_empty() && !instances.nodes(Service::Controller).is_empty();
    if unseen && matches!(decision, Decision::Wait(_)) {
        return (decision, Some(super::ledger::PATIENCE));
    }
    let silence = silence.filter(|_| node == HostNode::Silent);
    (decision, [silence, absence].into_iter().flatten().min())
}

/// Whether the Node is on its way out.
fn goes(context: &Context, node: &str) -> bool {
    context.world.nodes.named(node).is_some_and(|node| deleting(&*node))
}

/// How the plugin's controller instance on the host's node stands, and after how long that changes by itself.
fn standing(
    context: &Context,
    instances: &Instances,
    host: &Host,
    object: &Volume,
) -> (Serving, Option<Duration>) {
    let (plugin, node) = (&object.spec.plugin, &host.node_name);
    if instances.serving(Service::Controller, node).is_some() {
        context.absences.over(plugin, node);
        return (if remains(context, instances, node) { Serving::Well } else { Serving::Leaving }, None);
    }
    let away = context.absences.seen(plugin, node);
    match context.options.instance_patience.checked_sub(away).filter(|left| !left.is_zero()) {
        Some(left) if !goes(context, node) => (Serving::Away, Some(left)),
        Some(_) | None => (Serving::Gone, None),
    }
}

/// The nodes with a healthy controller instance. One that would have to be replaced at once is none: two such would hand
/// the volume to and fro.
fn candidates(context: &Context, instances: &Instances) -> Vec<Candidate> {
    let world = &context.world;
    let serving = instances.nodes(Service::Controller).into_iter();
    let living = serving.filter(|node| pulse(context, node).0 != HostNode::Gone);
    living
        .map(|node| Candidate {
            node: node.to_owned(),
            load: world.volumes.count(&format!("host:{node}")),
            stays: remains(context, instances, node),
        })
        .collect()
}

/// Whether the node stays, and a healthy controller instance on it.
fn remains(context: &Context, instances: &Instances, node: &str) -> bool {
    let mut here = instances
        .list
        .iter()
        .filter(|i| i.node == node && i.healthy_since.is_some() && serves(i.role, Service::Controller));
    !goes(context, node) && here.any(|i| instances.objects.get(&i.id).is_some_and(|i| stays(context, i)))
}

/// The node of the first consumer, where one is known.
fn consumer(context: &Context, object: &Volume, status: &VolumeStatus) -> Option<String> {
    if let Some(holder) = status.holders.first() {
        return Some(holder.node_name.clone());
    }
    let of = object.spec.claim_ref.as_ref()?;
    let name = (namespace_or_default(&of.namespace).to_owned(), of.name.clone());
    let claim = context.world.claims.get(&name)?;
    claim.status.as_ref().map(|s| s.selected_node.clone()).filter(|node| !node.is_empty())
}
