//! The instances of a Plugin come, and are replaced when its spec changes, as [`plan::update`](crate::plan::update) says.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;

use super::super::context::Context;
use super::super::facts::{Instances, deleting, node_down, node_ready, uid};
use super::super::write::Failure;
use super::fault;
use super::wanted::{Slot, Wanted, slot};
use crate::api::meta::{Condition, ObjectRef, Truth};
use crate::api::{Allocation, Plugin, PluginInstance};
use crate::plan::registry::Instance;
use crate::plan::update::{Made, OnNode, Pace, Standing, standing, steps};

/// The condition that says whether every instance is of the spec that is wanted. It is there from the first change on.
const UPDATED: &str = "Updated";
/// Its reason while the next instance does not get healthy.
const HELD: &str = "UpdateHeld";

/// What is wanted and what there is, by entry and node.
type Slots = BTreeMap<String, BTreeMap<String, OnNode>>;

fn slots(context: &Context, instances: &Instances, own: &[Arc<Allocation>], wanted: &[Wanted]) -> Slots {
    let healthy: BTreeSet<&str> = instances
        .list
        .iter()
        .filter(|i| i.healthy_since.is_some())
        .filter_map(|i| instances.objects.get(&i.id))
        .map(|object| object.spec.allocation.uid.as_str())
        .collect();
    let mut by_slot: BTreeMap<Slot, Vec<&Arc<Allocation>>> = BTreeMap::new();
    for allocation in own {
        by_slot.entry(slot(allocation)).or_default().push(allocation);
    }
    let mut all = Slots::new();
    for one in wanted {
        let (entry, node) = one.slot();
        let of_it = by_slot.remove(&one.slot()).unwrap_or_default();
        let made = of_it.into_iter().map(|allocation| Made {
            name: allocation.name_any(),
            current: one.is_met_by(allocation),
            healthy: healthy.contains(uid(&**allocation).as_str()),
            leaving: deleting(&**allocation),
        });
        let ready = context.world.nodes.named(&node).is_some_and(|n| node_ready(&n))
            && !node_down(&context.world, &node);
        let on = OnNode { ready, name: one.name.clone(), made: made.collect() };
        all.entry(entry).or_default().insert(node, on);
    }
    all
}

/// Makes what is missing, and asks for the end of what is too many or of a former spec.
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
    let strategy = plugin.spec.update_strategy.clone().unwrap_or_default();
    let pace = Pace::of(strategy.max_surge, strategy.max_unavailable);
    for (entry, nodes) in slots(context, &instances, own, wanted) {
        let now = steps(pace, &nodes);
        for allocation in staying().filter(|a| now.stop.contains(&a.name_any())) {
            context.delete(&**allocation).await?;
        }
        let made = |one: &&Wanted| one.slot().0 == entry && now.make.contains(&one.node);
        for one in wanted.iter().filter(made) {
            match context.create(&one.allocation(&context.options.system_namespace)).await {
                // It is there already, and on its way into the cache.
                Ok(_) | Err(Failure::Conflict) => {}
                Err(failure) => return Err(failure),
            }
        }
    }
    Ok(())
}

/// The instances that are and those that shall be, so that one that has not come up yet counts as missing. While one is
/// replaced the two count as one, which is there if either of them is.
pub(super) fn counted(instances: &Instances, own: &[Arc<Allocation>], wanted: &[Wanted]) -> Vec<Instance> {
    let by_uid: BTreeMap<String, &Arc<Allocation>> = own.iter().map(|a| (uid(&**a), a)).collect();
    let slot_of = |instance: &Instance| {
        let of = &instances.objects.get(&instance.id)?.spec.allocation.uid;
        by_uid.get(of).map(|allocation| slot(allocation))
    };
    let mut list: Vec<Instance> = Vec::new();
    let mut known: BTreeMap<Slot, usize> = BTreeMap::new();
    for instance in &instances.list {
        let better = |other: &Instance| {
            let rank = |i: &Instance| (i.healthy_since.is_some(), i.born, i.healthy_since);
            rank(instance) > rank(other)
        };
        let slot = slot_of(instance);
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
    list
}

/// Whether every instance is of the spec that is wanted; nothing before the first change.
pub(super) async fn updated(
    context: &Context,
    plugin: &Plugin,
    instances: &Instances,
    (own, wanted): (&[Arc<Allocation>], &[Wanted]),
) -> Option<Condition> {
    let all: Vec<Standing> = slots(context, instances, own, wanted).values().map(standing).collect();
    let sum = |count: fn(&Standing) -> usize| all.iter().map(count).sum::<usize>();
    let (total, done, former) = (sum(|s| s.wanted), sum(|s| s.done), sum(|s| s.former));
    let before = plugin.status.as_ref().and_then(|s| s.conditions.iter().find(|c| c.kind == UPDATED));
    if deleting(plugin) || former == 0 && before.is_none() {
        return None;
    }
    let condition = if done == total && former == 0 {
        Condition::new(UPDATED, Truth::True, UPDATED, "every instance is of this spec")
    } else {
        let nodes: BTreeSet<&str> = all.iter().flat_map(|s| &s.changing).map(String::as_str).collect();
        let next = |a: &&Arc<Allocation>| wanted.iter().any(|w| w.slot() == slot(a) && w.is_met_by(a));
        let unwell = own.iter().filter(|a| nodes.contains(a.spec.node_name.as_str())).filter(next);
        let of = |allocation: &Arc<Allocation>| -> Option<Arc<PluginInstance>> {
            let mut objects = instances.objects.values();
            objects.find(|object| object.spec.allocation.uid == uid(&**allocation)).cloned()
        };
        let so_far = format!("{done} of {total} instances are of this spec");
        match unwell.filter_map(of).find_map(fault) {
            Some((reason, message)) => {
                let sentence = format!(
                    "{so_far}; no other is changed before this one is healthy: {reason} {message}. The former spec \
                     brings back what was"
                );
                let of = ObjectRef { namespace: String::new(), name: plugin.name_any(), uid: uid(plugin) };
                context.tell::<Plugin>(&of, HELD, &sentence).await;
                Condition::new(UPDATED, Truth::False, HELD, sentence)
            }
            None => Condition::new(UPDATED, Truth::False, "Updating", so_far),
        }
    };
    Some(condition.of_generation(plugin.metadata.generation))
}
