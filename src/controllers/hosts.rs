//! Who makes a volume's controller calls: what is known of its host and of those who could be.
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::cache::Name;
use super::claims::selected;
use super::context::Context;
use super::facts::{Instances, deleting, node_down, said_off, serves};
use super::groups;
use super::nodes::pulse;
use super::plugins::leaving;
use super::volumes::held_back;
use super::world::namespace_or_default;
use crate::api::meta::Host;
use crate::api::plugin::{ControllerScope, STEADY};
use crate::api::{PluginInstance, Volume, VolumeStatus};
use crate::plan::Reason;
use crate::plan::host::{self, Candidate, Decision, HostNode, Serving};
use crate::plan::registry::{Instance, Service};
use crate::plan::release::Fence;

/// Since when no controller instance of a plugin was healthy on a living node that is host of its volumes. In memory only:
/// new controllers wait anew.
#[derive(Debug, Default)]
pub(crate) struct Absences(Mutex<HashMap<(String, String), Absence>>);

#[derive(Debug, Clone, Copy)]
struct Absence {
    since: Instant,
    /// When anybody looked last: what nobody looked at for long may have been well in between.
    seen: Instant,
}

impl Absences {
    /// For how long it has been away, this look included.
    fn seen(&self, plugin: &str, node: &str, patience: Duration) -> Duration {
        let now = Instant::now();
        let mut all = self.all();
        let absence =
            all.entry((plugin.to_owned(), node.to_owned())).or_insert(Absence { since: now, seen: now });
        if absence.seen.elapsed() > 2 * patience {
            absence.since = now;
        }
        absence.seen = now;
        absence.since.elapsed()
    }

    fn over(&self, plugin: &str, node: &str) {
        let mut all = self.all();
        // Mostly there is none, and every look asks.
        if !all.is_empty() {
            all.remove(&(plugin.to_owned(), node.to_owned()));
        }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Absence>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What has a host, and what is known of it.
pub(crate) struct Hosted<'a> {
    /// Its plugin.
    pub(crate) plugin: &'a str,
    /// Its object is being deleted.
    pub(crate) deleting: bool,
    /// The present host.
    pub(crate) current: Option<&'a Host>,
    /// The same, unless it let go.
    pub(crate) calling: Option<&'a Host>,
    /// The epoch of the host that was asked to let go.
    pub(crate) asked: Option<i64>,
    /// The epoch for which a host said that it makes no more calls.
    pub(crate) released: i64,
    /// The only node that will do.
    pub(crate) only: Option<&'a str>,
    /// That node is the host of what it is of: it goes with it.
    pub(crate) follows: bool,
    /// The node of the first consumer.
    pub(crate) preferred: Option<String>,
    /// It cannot do without a host.
    pub(crate) needed: bool,
}

/// The same for a volume, and when to ask again if nothing changes.
pub(crate) fn of_volume(
    context: &Context,
    object: &Volume,
    status: &VolumeStatus,
) -> (Decision, Option<Duration>) {
    let current = status.controller.as_ref();
    if object.spec.source.ephemeral.is_some() {
        return (Decision::Unneeded, None);
    }
    if let Some(reason) = current.is_none().then(|| held_back(&context.world, object)).flatten() {
        return (Decision::Wait(reason), None);
    }
    // As long as a snapshot of several volumes is being cut all of them have one host.
    let pinned = groups::pinned(&context.world, object).filter(|_| object.spec.source.home().is_none());
    let of = Hosted {
        plugin: &object.spec.plugin,
        deleting: deleting(object),
        current,
        calling: status.calling_host(),
        asked: status.asked_to_release,
        released: status.released_epoch,
        only: object.spec.source.home().or(pinned.as_deref()),
        follows: pinned.is_some(),
        preferred: consumer(context, object, status),
        needed: object.spec.source.create.is_some(),
    };
    decide(context, &of)
}

/// The host that a volume has from the start: one that is about to be made, and needs nothing to be written before.
pub(crate) fn first(context: &Context, object: &Volume) -> Option<Host> {
    object.spec.source.create.as_ref().filter(|create| create.content.is_none())?;
    match of_volume(context, object, &VolumeStatus::default()).0 {
        Decision::Assign(host) => Some(host),
        Decision::Keep
        | Decision::AskToRelease
        | Decision::TakeBack
        | Decision::Wait(_)
        | Decision::Unneeded => None,
    }
}

/// The decision, and when to ask again if nothing changes.
pub(crate) fn decide(context: &Context, of: &Hosted<'_>) -> (Decision, Option<Duration>) {
    let current = of.current;
    // What was never attempted needs nobody to undo it.
    if of.deleting && current.is_none() {
        return (Decision::Wait(Reason::NoHost), None);
    }
    let world = &context.world;
    let plugin = world.plugins.named(of.plugin);
    if plugin.is_none() && current.is_none() {
        let reason = Reason::NotFound { kind: "Plugin", name: of.plugin.to_owned() };
        return (Decision::Wait(reason), None);
    }
    let instances = Instances::of(world, of.plugin);
    let (node, silence) = current.map_or((HostNode::Gone, None), |host| pulse(context, &host.node_name));
    let staying = Staying::of(context, &instances, of.plugin);
    let (mut serving, absence) =
        current.map_or((Serving::Gone, None), |host| standing(context, &staying, host, node));
    if of.follows && current.is_some_and(|host| of.only != Some(host.node_name.as_str())) {
        serving = Serving::Leaving;
    }
    let candidates = match (of.calling, node, serving) {
        // While it makes the calls and is to go on with them, nobody else is asked for.
        (Some(_), HostNode::Alive | HostNode::Silent, Serving::Well | Serving::Unsteady | Serving::Away) => {
            Vec::new()
        }
        (None, _, _) | (Some(_), HostNode::Gone, _) | (Some(_), _, Serving::Leaving | Serving::Gone) => {
            candidates(context, &staying)
        }
    };
    let decision = host::decide(&host::Facts {
        current,
        current_node: node,
        serving,
        asked: of.asked,
        released: of.released,
        node_goes: current.is_some_and(|host| goes(context, &host.node_name)),
        candidates: &candidates,
        only: of.only,
        local: plugin.as_ref().is_some_and(|plugin| plugin.spec.controller_scope == ControllerScope::Node),
        preferred: of.preferred.as_deref(),
        plugin: of.plugin,
        has_controllers: instances.has_controllers(plugin.as_deref()),
    });
    let decision = match decision {
        Decision::Unneeded if of.needed => Decision::Wait(Reason::PluginLacks {
            plugin: of.plugin.to_owned(),
            capability: "CREATE_DELETE_VOLUME",
        }),
        Decision::Keep
        | Decision::AskToRelease
        | Decision::TakeBack
        | Decision::Assign(_)
        | Decision::Wait(_)
        | Decision::Unneeded => decision,
    };
    let unseen = candidates.is_empty() && instances.nodes(Service::Controller).len() > 0;
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

/// The controller instances of a plugin, and which of them go on.
struct Staying<'a> {
    plugin: &'a str,
    instances: &'a Instances,
    /// The allocations that shall stop for good.
    leaving: Arc<BTreeSet<Name>>,
}

impl<'a> Staying<'a> {
    fn of(context: &Context, instances: &'a Instances, plugin: &'a str) -> Self {
        Self { plugin, instances, leaving: leaving(context, plugin) }
    }

    /// The nodes with a healthy one that stays.
    fn nodes(&self) -> BTreeSet<&str> {
        let healthy = |i: &&Instance| i.healthy_since.is_some() && serves(i.role, Service::Controller);
        let stays = |i: &&Instance| {
            let of = self.instances.objects.get(&i.id).map(|object| &object.spec.allocation);
            of.is_some_and(|of| !self.leaving.contains(&(of.namespace.clone(), of.name.clone())))
        };
        self.instances.list.iter().filter(healthy).filter(stays).map(|i| i.node.as_str()).collect()
    }

    /// Whether one stays on this node. Mostly none leaves, and that is asked of every volume.
    fn on(&self, node: &str) -> bool {
        self.leaving.is_empty() || self.nodes().contains(node)
    }
}

/// How the plugin's controller instance on the host's node stands, and after how long that changes by itself.
fn standing(
    context: &Context,
    staying: &Staying<'_>,
    host: &Host,
    state: HostNode,
) -> (Serving, Option<Duration>) {
    let (plugin, node) = (staying.plugin, host.node_name.as_str());
    let going = goes(context, node);
    if let Some(instance) = staying.instances.serving(Service::Controller, node) {
        context.absences.over(plugin, node);
        let serving = match (staying.on(node) && !going, is_steady(instance)) {
            (true, true) => Serving::Well,
            (true, false) => Serving::Unsteady,
            (false, _) => Serving::Leaving,
        };
        return (serving, None);
    }
    if state != HostNode::Alive {
        // With its daemon the instance comes back, and its absence begins anew.
        context.absences.over(plugin, node);
        return (Serving::Away, None);
    }
    let patience = context.options.instance_patience;
    let away = context.absences.seen(plugin, node, patience);
    match patience.checked_sub(away).filter(|left| !left.is_zero()) {
        Some(left) if !going && !node_down(&context.world, node) => (Serving::Away, Some(left)),
        Some(_) | None => (Serving::Gone, None),
    }
}

/// Whether an instance has never ended again and again, as far as its status says: one that has kept running for a while since may have
/// done so only because nobody made the call that ends it.
fn is_steady(instance: &PluginInstance) -> bool {
    !instance.status.iter().flat_map(|status| &status.conditions).any(|condition| condition.kind == STEADY)
}

/// The nodes with a healthy controller instance. One that would have to be replaced at once is none: two such would hand
/// the volume to and fro.
fn candidates(context: &Context, staying: &Staying<'_>) -> Vec<Candidate> {
    let world = &context.world;
    let stay = staying.nodes();
    let serving = staying.instances.nodes(Service::Controller);
    // One that is said to be off begins nothing: once it is silent its calls are not waited for.
    let off = |node: &str| said_off(world, node) == Fence::Stands;
    let living =
        serving.filter(|node| pulse(context, node).0 != HostNode::Gone && !goes(context, node) && !off(node));
    living
        .map(|node| Candidate {
            node: node.to_owned(),
            load: world.volumes.count(&format!("host:{node}")),
            stays: stay.contains(node),
            steady: staying
                .instances
                .serving(Service::Controller, node)
                .is_none_or(|instance| is_steady(instance)),
        })
        .collect()
}

/// The node of the first consumer, where one is known.
fn consumer(context: &Context, object: &Volume, status: &VolumeStatus) -> Option<String> {
    if let Some(holder) = status.holders.first() {
        return Some(holder.node_name.clone());
    }
    let of = object.spec.claim_ref.as_ref()?;
    let name = (namespace_or_default(&of.namespace).to_owned(), of.name.clone());
    let claim = context.world.claims.get(&name)?;
    Some(selected(&claim, Some(object)).to_owned()).filter(|node| !node.is_empty())
}
