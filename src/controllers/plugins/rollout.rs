//! The instances of a Plugin come, and are replaced when its spec changes, as [`plan::update`](crate::plan::update) says.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use tokio::time::Instant;

use super::super::context::Context;
use super::super::facts::{Instances, deleting, node_down, node_ready, uid};
use super::super::write::Failure;
use super::wanted::{Slot, Wanted, slot};
use super::{fault, loops_said, own_allocations, tasks};
use crate::api::meta::{Condition, ObjectRef, Time, Truth};
use crate::api::plugin::{BEGINS, HEALTH_TIMED_OUT, MIN_HEALTHY_TIME, MOST_REPLICAS};
use crate::api::quantity;
use crate::api::{Allocation, Plugin, PluginInstance, Volume};
use crate::plan::registry::{self, Instance};
use crate::plan::update::{self, Made, OnNode, Pace, Standing, begun, standing, steps};

/// The condition that says whether every instance is of the spec that is wanted. It is there from the first change on.
const UPDATED: &str = "Updated";
/// Its reason while the next instance does not get healthy.
const HELD: &str = "UpdateHeld";

/// What is wanted and what there is, by entry and node.
type Slots = BTreeMap<String, BTreeMap<String, OnNode>>;

fn slots(
    context: &Context,
    plugin: &Plugin,
    instances: &Instances,
    (own, wanted): (&[Arc<Allocation>], &[Wanted]),
) -> Slots {
    let known = Known::of(context, plugin, instances);
    let mut by_slot: BTreeMap<Slot, Vec<&Arc<Allocation>>> = BTreeMap::new();
    for allocation in own {
        by_slot.entry(slot(allocation)).or_default().push(allocation);
    }
    let mut all = Slots::new();
    for one in wanted {
        let (entry, node) = one.slot();
        let of_it = by_slot.remove(&one.slot()).unwrap_or_default();
        all.entry(entry).or_default().insert(node, known.on_node(one, of_it));
    }
    all
}

/// What is known of the instances of a Plugin, by their allocations: found once for all that is decided on it.
struct Known<'a> {
    context: &'a Context,
    least: Duration,
    by_allocation: HashMap<&'a str, Vec<&'a Arc<PluginInstance>>>,
    healthy: BTreeSet<&'a str>,
}

impl<'a> Known<'a> {
    fn of(context: &'a Context, plugin: &Plugin, instances: &'a Instances) -> Self {
        let mut by_allocation: HashMap<&str, Vec<_>> = HashMap::new();
        for object in instances.objects.values() {
            by_allocation.entry(&object.spec.allocation.uid).or_default().push(object);
        }
        let healthy = instances.list.iter().filter(|i| i.healthy_since.is_some()).map(|i| i.id.as_str());
        Self { context, least: min_healthy_time(plugin), by_allocation, healthy: healthy.collect() }
    }

    /// What was made of what is wanted in one place.
    fn on_node<'b>(&self, one: &Wanted, of_it: impl IntoIterator<Item = &'b Arc<Allocation>>) -> OnNode {
        let (world, node) = (&self.context.world, &one.node);
        let made = of_it.into_iter().map(|allocation| {
            let of =
                self.by_allocation.get(uid(&**allocation).as_str()).map(Vec::as_slice).unwrap_or_default();
            let loops = of.iter().any(|o| o.status.as_ref().is_some_and(|s| s.unsteady().is_some()));
            // Each is asked: one that is not well begins anew.
            let settled = of.iter().filter(|object| self.is_settled(object)).count();
            Made {
                name: allocation.name_any(),
                current: one.is_met_by(allocation),
                healthy: of.iter().any(|object| self.is_healthy(object)),
                settled: !of.is_empty() && !loops && settled == of.len(),
                loops,
                leaving: deleting(&**allocation),
            }
        });
        let made = made.collect();
        let ready = world.nodes.named(node).is_some_and(|n| node_ready(&n)) && !node_down(world, node);
        OnNode { ready, name: one.name.clone(), made }
    }

    fn is_healthy(&self, object: &PluginInstance) -> bool {
        self.healthy.contains(object.name_any().as_str())
    }

    /// Whether it has been healthy for as long as the Plugin wants.
    fn is_settled(&self, object: &PluginInstance) -> bool {
        if !self.is_healthy(object) {
            self.context.settling.forget(object);
            return false;
        }
        self.context.settling.well_for(object) >= self.least
    }
}

/// Whether a former instance has to serve on although its end was asked for (`plan::update`).
pub(super) fn serves_on(context: &Context, plugin: &str, former: &Allocation, next: &Wanted) -> bool {
    let Some(plugin) = context.world.plugins.named(plugin).filter(|plugin| !deleting(&**plugin)) else {
        return false;
    };
    let instances = Instances::of(&context.world, &plugin.name_any());
    let own = own_allocations(context, &plugin.name_any());
    let on = Known::of(context, &plugin, &instances)
        .on_node(next, own.iter().filter(|other| slot(other) == next.slot()));
    update::serves_on(pace(&plugin), &on, &former.name_any())
}

fn min_healthy_time(plugin: &Plugin) -> Duration {
    let strategy = plugin.spec.update_strategy.as_ref();
    let given = strategy.and_then(|strategy| strategy.min_healthy_time.as_deref());
    given.and_then(quantity::duration).unwrap_or(MIN_HEALTHY_TIME)
}

/// After how long an instance that is healthy now counts, if it stays so; nothing while there is none that does not.
pub(super) fn settles(context: &Context, plugin: &Plugin) -> Option<Duration> {
    let instances = Instances::of(&context.world, &plugin.name_any());
    let least = min_healthy_time(plugin);
    let healthy = instances.list.iter().filter(|i| i.healthy_since.is_some());
    let left = healthy.filter_map(|i| instances.objects.get(&i.id)).filter_map(|object| {
        least.checked_sub(context.settling.well_for(object)).filter(|left| !left.is_zero())
    });
    left.min()
}

/// Since when each instance has been seen healthy without an end. By the clock of whoever looks, and in memory only: new
/// controllers wait anew.
#[derive(Debug, Default)]
pub(crate) struct Settling(Mutex<HashMap<String, (Option<Time>, Instant)>>);

impl Settling {
    /// For how long an instance that is healthy has been so, as far as was seen, since the time that it tells.
    fn well_for(&self, object: &PluginInstance) -> Duration {
        let (now, since) = (Instant::now(), object.status.as_ref().and_then(|status| status.since));
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = all.entry(uid(object)).or_insert((since, now));
        if seen.0 != since {
            *seen = (since, now);
        }
        now.duration_since(seen.1)
    }

    /// The instance is gone.
    pub(crate) fn forget(&self, object: &PluginInstance) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid(object));
    }
}

/// Makes what is missing, and asks for the end of what is too many or of a former spec. What is refused holds up nothing else.
pub(super) async fn place(
    context: &Context,
    plugin: &Plugin,
    own: &[Arc<Allocation>],
    wanted: &[Wanted],
) -> Result<(), Failure> {
    let places: BTreeSet<Slot> = wanted.iter().map(Wanted::slot).collect();
    let staying = || own.iter().filter(|a| !deleting(&***a));
    for allocation in staying().filter(|a| !places.contains(&slot(a))) {
        context.delete(&**allocation).await?;
    }
    let instances = Instances::of(&context.world, &plugin.name_any());
    let (all, pace) = (slots(context, plugin, &instances, (own, wanted)), pace(plugin));
    let mut under_way: usize = all.values().map(|nodes| begun(pace, nodes)).sum();
    let mut refused = Ok(());
    for (entry, nodes) in all {
        let now = steps(pace, &nodes, under_way - begun(pace, &nodes));
        under_way += now.begun;
        for allocation in staying().filter(|a| now.stop.contains(&a.name_any())) {
            context.delete(&**allocation).await?;
        }
        let made = |one: &&Wanted| one.slot().0 == entry && now.make.contains(&one.node);
        for one in wanted.iter().filter(made) {
            refused = refused.and(make(context, one).await?);
        }
    }
    refused
}

/// What volumes of a Plugin that is being deleted need comes back where it is missing: one that was just being replaced, say.
pub(super) async fn place_again(
    context: &Context,
    plugin: &Plugin,
    own: &[Arc<Allocation>],
    wanted: &[Wanted],
) -> Result<(), Failure> {
    let of_it = format!("plugin:{}", plugin.name_any());
    let (attachments, volumes) = (context.world.attachments.by(&of_it), context.world.volumes.by(&of_it));
    let host = |v: &Arc<Volume>| Some(v.status.as_ref()?.controller.as_ref()?.node_name.clone());
    let mut nodes: BTreeSet<String> = volumes.iter().filter_map(host).collect();
    nodes.extend(attachments.iter().map(|attachment| attachment.spec.node_name.clone()));
    let there: BTreeSet<Slot> = own.iter().map(|a| slot(a)).collect();
    // A controller may be anywhere, if there is none at all.
    let controllers: BTreeSet<String> =
        wanted.iter().filter(|one| one.role.controller()).map(|one| one.slot().0).collect();
    let none = !there.iter().any(|(entry, _)| controllers.contains(entry));
    let needed = |one: &&Wanted| nodes.contains(&one.node) || none && one.role.controller();
    let missing = |one: &&Wanted| needed(one) && !there.contains(&one.slot());
    let mut refused = Ok(());
    for one in wanted.iter().filter(missing) {
        refused = refused.and(make(context, one).await?);
    }
    refused
}

/// Makes an instance. That it was refused is no reason to make no other one: the inner result says so.
async fn make(context: &Context, one: &Wanted) -> Result<Result<(), Failure>, Failure> {
    match context.create(&one.allocation(&context.options.system_namespace)).await {
        // It is there already, and on its way into the cache.
        Ok(_) | Err(Failure::Conflict) => Ok(Ok(())),
        Err(refusal @ Failure::Refused { .. }) => Ok(Err(refusal)),
        Err(failure @ (Failure::Gone | Failure::Unsaid(_) | Failure::NoAnswer(_))) => Err(failure),
    }
}

fn pace(plugin: &Plugin) -> Pace {
    let strategy = plugin.spec.update_strategy.clone().unwrap_or_default();
    Pace::of(strategy.max_surge, strategy.max_unavailable)
}

/// The instances that are and those that shall be, so that one that has not come up yet counts as missing. While one is
/// replaced the two count as one, which is there if either of them is. One that goes, and in whose place none comes, counts
/// only while a volume needs it: its node may be lost, and be a long time away. One that no node is left for is missing, too.
pub(super) fn counted(
    context: &Context,
    plugin: &Plugin,
    instances: &Instances,
    (own, wanted): (&[Arc<Allocation>], &[Wanted]),
) -> Vec<Instance> {
    let by_uid: BTreeMap<String, &Arc<Allocation>> = own.iter().map(|a| (uid(&**a), a)).collect();
    let places: BTreeSet<Slot> = wanted.iter().map(Wanted::slot).collect();
    let allocation_of =
        |instance: &Instance| by_uid.get(&instances.objects.get(&instance.id)?.spec.allocation.uid);
    let over = |instance: &&Instance| {
        allocation_of(instance).is_some_and(|allocation| {
            deleting(&***allocation)
                && !places.contains(&slot(allocation))
                && tasks::may_stop(context, allocation).is_ok()
        })
    };
    // Its allocation goes first, and what is in its place is counted.
    let succeeded = |instance: &&Instance| {
        let orphan = || {
            let object = instances.objects.get(&instance.id);
            object.is_some_and(|object| tasks::allocation_of(context, &object.spec.allocation).is_none())
        };
        let in_its_place = |one: &Wanted| one.node == instance.node && one.role == instance.role;
        instance.healthy_since.is_none() && wanted.iter().any(in_its_place) && orphan()
    };
    let mut list: Vec<Instance> = Vec::new();
    let mut known: BTreeMap<Slot, usize> = BTreeMap::new();
    for instance in instances.list.iter().filter(|instance| !over(instance) && !succeeded(instance)) {
        let better = |other: &Instance| {
            let rank = |i: &Instance| (i.healthy_since.is_some(), i.born, i.healthy_since);
            rank(instance) > rank(other)
        };
        let slot = allocation_of(instance).map(|allocation| slot(allocation));
        match slot.as_ref().and_then(|slot| known.get(slot)) {
            Some(at) if better(&list[*at]) => list[*at] = instance.clone(),
            Some(_) => {}
            None => {
                known.extend(slot.map(|slot| (slot, list.len())));
                list.push(instance.clone());
            }
        }
    }
    for one in wanted.iter().filter(|one| !known.contains_key(&one.slot())) {
        list.push(Instance {
            id: one.name.clone(),
            role: one.role,
            node: one.node.clone(),
            born: None,
            healthy_since: None,
            node_id: String::new(),
        });
    }
    list.extend(nowhere(plugin, wanted));
    list
}

/// What `replicas` asks for and no node is there for, an instance each, on no node: one node has one of each entry.
fn nowhere<'a>(plugin: &'a Plugin, wanted: &'a [Wanted]) -> impl Iterator<Item = Instance> + 'a {
    let entries = plugin.spec.instances.iter().filter(|_| !deleting(plugin));
    entries.flat_map(|entry| {
        let placed = wanted.iter().filter(|one| one.slot().0 == entry.name).count();
        // One of before there was a bound may ask for any number.
        let asked = entry.placement.replicas.map_or(0, |replicas| replicas.min(MOST_REPLICAS) as usize);
        (placed..asked).map(|nth| Instance {
            id: format!("{}/{nth}", entry.name),
            role: entry.role,
            node: String::new(),
            born: None,
            healthy_since: None,
            node_id: String::new(),
        })
    })
}

/// Whether every instance is of the spec that is wanted; nothing before the first change. Once that was so, an instance
/// that is unwell is no matter of this.
pub(super) async fn updated(
    context: &Context,
    plugin: &Plugin,
    instances: &Instances,
    (own, wanted): (&[Arc<Allocation>], &[Wanted]),
) -> Option<Condition> {
    let slots = slots(context, plugin, instances, (own, wanted));
    let all: Vec<Standing> = slots.values().map(|nodes| standing(pace(plugin), nodes)).collect();
    let sum = |count: fn(&Standing) -> usize| all.iter().map(count).sum::<usize>();
    let (total, done, former) = (sum(|s| s.wanted), sum(|s| s.done), sum(|s| s.former));
    let before = plugin.status.as_ref().and_then(|s| s.conditions.iter().find(|c| c.kind == UPDATED));
    if deleting(plugin) || former == 0 && before.is_none() {
        return None;
    }
    let was = before.is_some_and(|condition| condition.status == Truth::True);
    let condition = if former == 0 && (was || done == total) {
        Condition::new(UPDATED, Truth::True, UPDATED, "every instance is of this spec")
    } else {
        let nodes = all.iter().flat_map(|s| &s.changing).map(String::as_str).collect();
        let so_far = format!("{done} of {total} instances are of this spec");
        match unwell(&slots, &nodes, instances, own) {
            Some((reason, message)) => {
                let sentence = format!(
                    "no other instance is replaced before this one is healthy: {reason} {message}. The former spec \
                     brings back what was"
                );
                let of = ObjectRef { namespace: String::new(), name: plugin.name_any(), uid: uid(plugin) };
                context.tell::<Plugin>(&of, HELD, &sentence).await;
                Condition::new(UPDATED, Truth::False, HELD, format!("{so_far}; {sentence}"))
            }
            None => {
                let first = |names: BTreeSet<&str>| names.into_iter().take(3).collect::<Vec<_>>().join(", ");
                let without: BTreeSet<&str> =
                    all.iter().flat_map(|s| &s.without).map(String::as_str).collect();
                let settling: BTreeSet<&str> =
                    nodes.iter().copied().filter(|node| settles_on(&slots, node)).collect();
                let sentence = match (nodes.is_empty(), without.is_empty()) {
                    (false, _) if !settling.is_empty() && settling.len() == nodes.len() => format!(
                        "{so_far}; waits until the next instance on {} has been healthy for {} s, as \
                         spec.updateStrategy.minHealthyTime says",
                        first(settling),
                        min_healthy_time(plugin).as_secs_f64()
                    ),
                    (false, _) => format!("{so_far}; waits for node {}", first(nodes)),
                    (true, true) => so_far,
                    (true, false) => format!(
                        "{so_far}; no other instance stops while none serves node {}. Bring it back, delete the Node, or \
                         raise spec.updateStrategy.maxUnavailable",
                        first(without)
                    ),
                };
                Condition::new(UPDATED, Truth::False, "Updating", sentence)
            }
        }
    };
    Some(condition.of_generation(plugin.metadata.generation))
}

/// Whether all that is waited for on a node is that its next instance stays healthy.
fn settles_on(slots: &Slots, node: &str) -> bool {
    let there = slots.values().filter_map(|nodes| nodes.get(node));
    let mut next = there
        .flat_map(|on| &on.made)
        .filter(|made| made.current && !made.leaving && !made.settled)
        .peekable();
    next.peek().is_some() && next.all(|made| made.healthy && !made.loops)
}

/// What is wrong with the next instance on one of these nodes.
fn unwell(
    slots: &Slots,
    nodes: &BTreeSet<&str>,
    instances: &Instances,
    own: &[Arc<Allocation>],
) -> Option<(String, String)> {
    let made = slots.values().flatten().filter(|(node, _)| nodes.contains(node.as_str()));
    let names: BTreeSet<&str> = made
        .flat_map(|(_, on)| &on.made)
        .filter(|made| made.current && !made.leaving && !made.settled)
        .map(|made| made.name.as_str())
        .collect();
    let next = |a: &&Arc<Allocation>| names.contains(a.name_any().as_str());
    let next: BTreeSet<String> = own.iter().filter(next).map(|a| uid(&**a)).collect();
    let of_it = |object: &&Arc<PluginInstance>| next.contains(&object.spec.allocation.uid);
    let mut objects = instances.objects.values().filter(of_it);
    let twice = registry::duplicate_node_ids(&instances.list);
    objects.find_map(|object| {
        let name = object.name_any();
        if let Some((_, holder)) = twice.iter().find(|(id, _)| *id == name) {
            let node = &object.spec.node_name;
            let message = format!("on node \"{node}\": node \"{holder}\" reported the same node id before");
            return Some(("DuplicateNodeID".to_owned(), message));
        }
        let fault = fault(Arc::clone(object));
        // What is missing says more than that it ends each time, for that is because it is missing.
        let late = fault.as_ref().is_some_and(|(reason, _)| reason == HEALTH_TIMED_OUT);
        let unsteady = object.status.as_ref().and_then(|status| status.unsteady());
        if let Some(loops) = unsteady.filter(|_| !late) {
            return Some((
                loops.reason.clone(),
                format!("on node \"{}\": it {}", object.spec.node_name, loops_said(object)),
            ));
        }
        // A socket that is not there yet may come, and somebody may listen to it; that neither was so in time is told as another
        // fault.
        let begins = |reason: &str| BEGINS.contains(&reason);
        fault.filter(|(reason, _)| !begins(reason))
    })
}
