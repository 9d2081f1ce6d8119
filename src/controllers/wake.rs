//! What a change of one object means for the others: the only place that says which controller looks again, and at what.
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Node};
use kube::ResourceExt;

use super::cache::{Name, name_of};
use super::context::Context;
use super::facts::{deleting, node_ready, said_off};
use super::garbage::holds_for_dependents;
use super::plugins::known_to_driver;
use super::world::{Cached, ConfigMapMeta, SecretMeta, handle_word, namespace_or_default, snapshot_words};
use crate::api::meta::Condition;
use crate::api::meta::{ObjectRef, READY, Rung, is_true};
use crate::api::schedule::SCHEDULE;
use crate::api::volume::EXPANDED;
use crate::api::{
    Allocation, NodeAgent, Plugin, PluginInstance, Snapshot, SnapshotSchedule, Volume, VolumeAttachment,
    VolumeAttributesClass, VolumeClaim, VolumeClass,
};
use crate::plan::marks::{PLUGIN_NAME, STOPPED};
use crate::plan::release::Fence;

/// A kind whose changes wake controllers.
pub(crate) trait Wakes: Cached {
    /// Called after the cache shows the change.
    fn changed(context: &Context, old: Option<&Self>, new: Option<&Self>) {
        ownership(context, old, new);
        let both = [old, new];
        let Some(name) = both.into_iter().flatten().map(name_of).next() else { return };
        Self::wake(context, &name, old, new);
    }

    /// Wakes whom the change concerns.
    fn wake(context: &Context, name: &Name, old: Option<&Self>, new: Option<&Self>);
}

fn ownership<K: Cached>(context: &Context, old: Option<&K>, new: Option<&K>) {
    if let Some(new) = new.filter(|n| !n.owner_references().is_empty()) {
        K::cache(&context.world).dependents.add(name_of(new));
    }
    // One that is deleted last, or without what it owns, waits for a look, and for each of its dependents.
    if let Some(new) = new.filter(|n| holds_for_dependents(*n)) {
        K::cache(&context.world).dependents.add(name_of(new));
    }
    for object in [old, new].into_iter().flatten() {
        let namespace = object.namespace().unwrap_or_default();
        for owner in object.owner_references() {
            context.world.dependent_changed(owner, &namespace);
        }
    }
    let gone = old.and_then(|o| o.meta().uid.as_deref());
    if gone != new.and_then(|n| n.meta().uid.as_deref())
        && let Some(uid) = gone
    {
        context.world.owner_gone(uid);
    }
}

/// Whether `part` of the object differs; coming and going differ.
fn differs<K, P: PartialEq>(old: Option<&K>, new: Option<&K>, part: impl Fn(&K) -> P) -> bool {
    old.map(&part) != new.map(&part)
}

pub(super) fn cluster(name: &str) -> Name {
    (String::new(), name.to_owned())
}

fn name_in(reference: &ObjectRef) -> Name {
    (namespace_or_default(&reference.namespace).to_owned(), reference.name.clone())
}

/// Everything that waits for a healthy instance of the plugin, or for the plugin itself.
pub(super) fn users_of_plugin(context: &Context, plugin: &str) {
    let (world, queues) = (&context.world, &context.queues);
    let volumes = world.volumes.names(&format!("plugin:{plugin}"));
    queues.volumes.add_all(volumes.clone());
    queues.holders.add_all(volumes);
    queues.snapshots.add_all(world.snapshots.names(&format!("plugin:{plugin}")));
    queues.snapshots.add_all(world.snapshots.names("unfrozen"));
    queues.claims.add_all(world.claims.names("unbound"));
    queues.claims.add_all(world.claims.names("expanding"));
    queues.claims.add_all(world.claims.names("modifying"));
    queues.placement.add_all(world.allocations.names("unplaced"));
    queues.allocations.add_all(world.allocations.names("waiting"));
}

/// A plugin, or an allocation that serves it, that shall stop and may wait for what just changed.
fn leaving_plugin(context: &Context, plugin: &str) {
    let (world, queues) = (&context.world, &context.queues);
    let undeclared = |p: &Plugin| p.spec.instances.is_empty();
    if world.plugins.named(plugin).is_some_and(|p| deleting(&*p) || undeclared(&p)) {
        queues.plugins.add(cluster(plugin));
    }
    queues.plugin_tasks.add_all(world.allocations.names(&format!("leaving:{plugin}")));
    let former = context.changing.of(plugin);
    if !former.is_empty() {
        queues.plugins.add(cluster(plugin));
    }
    queues.plugin_tasks.add_all(former);
    let down: BTreeSet<Name> =
        world.nodes.names("down").into_iter().chain(world.agents.names("down")).collect();
    for (_, node) in down {
        let of_plugin = |a: &Arc<Allocation>| {
            a.spec.tasks.iter().filter_map(|t| t.csi_plugin.as_ref()).any(|p| p.plugin_name == plugin)
        };
        let there = world.allocations.by(&format!("node:{node}")).into_iter().filter(of_plugin);
        queues.plugin_tasks.add_all(there.map(|allocation| name_of(&*allocation)));
    }
}

/// Everything that depends on whether a node is ready, where it is, and whether it is fenced.
pub(crate) fn users_of_node(context: &Context, node: &str) {
    let (world, queues) = (&context.world, &context.queues);
    queues.plugins.add_all(world.plugins.all().iter().map(|p| name_of(&**p)));
    queues.placement.add_all(world.allocations.names("unplaced"));
    // What cannot begin where it is may fit there.
    queues.placement.add_all(world.allocations.names("unbegun"));
    queues.claims.add_all(world.claims.names("unbound"));
    queues.volumes.add_all(world.volumes.names(&format!("host:{node}")));
    queues.snapshots.add_all(world.snapshots.names(&format!("host:{node}")));
    queues.holders.add_all(world.volumes.names(&format!("holder:{node}")));
    for attachment in world.attachments.by(&format!("node:{node}")) {
        queues.attachments.add(name_of(&*attachment));
        queues.holders.add(cluster(&attachment.spec.volume));
    }
    for allocation in world.allocations.by(&format!("node:{node}")) {
        let name = name_of(&*allocation);
        queues.placement.add(name.clone());
        queues.plugin_tasks.add(name.clone());
        queues.allocations.add(name);
        volumes_of(context, &allocation);
    }
    for instance in world.instances.by(&format!("node:{node}")) {
        users_of_plugin(context, &instance.spec.plugin);
    }
}

/// The volumes that an allocation uses, for the holders controller.
fn volumes_of(context: &Context, allocation: &Allocation) {
    let namespace = allocation.namespace().unwrap_or_default();
    for volume in &allocation.spec.volumes {
        let word = format!("claim:{namespace}/{}", volume.claim_name);
        context.queues.holders.add_all(context.world.volumes.names(&word));
    }
}

impl Wakes for Plugin {
    fn wake(context: &Context, name: &Name, old: Option<&Self>, new: Option<&Self>) {
        context.queues.plugins.add(name.clone());
        if differs(old, new, |p| (p.metadata.generation, deleting(p), p.metadata.uid.clone())) {
            users_of_plugin(context, &name.1);
            let serving = context.world.allocations.names(&format!("serves:{}", name.1));
            context.queues.plugin_tasks.add_all(serving);
            // Whether others can go on with what a node that goes makes calls for.
            let going = context.world.nodes.all().into_iter().filter(|node| deleting(&**node));
            context.queues.nodes.add_all(going.map(|node| name_of(&*node)));
            // Also those that serve it still, whatever is written of them.
            for instance in context.world.instances.by(&format!("plugin:{}", name.1)) {
                let of = &instance.spec.allocation;
                context.queues.plugin_tasks.add((of.namespace.clone(), of.name.clone()));
            }
            context.queues.instances.add_all(context.world.instances.names(&format!("plugin:{}", name.1)));
        }
    }
}

impl Wakes for PluginInstance {
    fn wake(context: &Context, name: &Name, old: Option<&Self>, new: Option<&Self>) {
        context.queues.instances.add(name.clone());
        let told = |i: &Self| {
            let status = i.status.clone().unwrap_or_default();
            let (ready, unsteady) = (is_true(&status.conditions, READY), status.unsteady().is_some());
            (
                ready,
                unsteady,
                status.node_id,
                status.topology,
                status.capabilities,
                status.max_volumes,
                status.since,
            )
        };
        let new_word = differs(old, new, told);
        // What has no room where it was asked for may have some elsewhere.
        if differs(old, new, |i: &Self| {
            i.status.as_ref().map(|status| status.rooms.clone()).unwrap_or_default()
        }) {
            context.queues.claims.add_all(context.world.claims.names("unbound"));
        }
        if let Some(gone) = old.filter(|_| new.is_none()) {
            context.settling.forget(gone);
        }
        for instance in [old, new].into_iter().flatten() {
            let spec = &instance.spec;
            context.queues.plugins.add(cluster(&spec.plugin));
            let allocation = (spec.allocation.namespace.clone(), spec.allocation.name.clone());
            context.queues.plugin_tasks.add(allocation);
            if new_word {
                users_of_plugin(context, &spec.plugin);
                leaving_plugin(context, &spec.plugin);
            }
        }
    }
}

impl Wakes for VolumeClass {
    fn wake(context: &Context, _: &Name, old: Option<&Self>, new: Option<&Self>) {
        // What room there is for its volumes is asked.
        old.into_iter().chain(new).for_each(|class| context.queues.plugins.add(cluster(&class.spec.plugin)));
        context.queues.snapshots.add_all(context.world.snapshots.names("unfrozen"));
        context.queues.claims.add_all(context.world.claims.names("unbound"));
        context.queues.claims.add_all(context.world.claims.names("expanding"));
        context.queues.placement.add_all(context.world.allocations.names("unplaced"));
    }
}

impl Wakes for VolumeAttributesClass {
    fn wake(context: &Context, name: &Name, _: Option<&Self>, _: Option<&Self>) {
        context.queues.claims.add_all(context.world.claims.names(&format!("attributes:{}", name.1)));
    }
}

impl Wakes for VolumeClaim {
    fn wake(context: &Context, name: &Name, old: Option<&Self>, new: Option<&Self>) {
        let (world, queues) = (&context.world, &context.queues);
        queues.claims.add(name.clone());
        let claim = format!("claim:{}/{}", name.0, name.1);
        queues.placement.add_all(world.allocations.names(&claim));
        if new.is_none() {
            // One that brings it along makes another one.
            queues.allocations.add_all(world.allocations.names(&claim));
        }
        waiting_for(context, &format!("source:{}/{}", name.0, name.1));
        queues.snapshots.add_all(world.snapshots.names(&claim));
        queues.snapshots.add_all(world.snapshots.names(&format!("selecting:{}", name.0)));
        let volumes = world.volumes.names(&claim);
        queues.volumes.add_all(volumes.clone());
        queues.holders.add_all(volumes);
        for claim in [old, new].into_iter().flatten() {
            let status = claim.status.as_ref().map(|s| s.volume_name.as_str()).unwrap_or_default();
            for volume in [status, &claim.spec.volume_name].into_iter().filter(|v| !v.is_empty()) {
                queues.volumes.add(cluster(volume));
                queues.holders.add(cluster(volume));
            }
        }
        queues.namespaces.add(cluster(&name.0));
    }
}

impl Wakes for Volume {
    fn wake(context: &Context, name: &Name, old: Option<&Self>, new: Option<&Self>) {
        let (world, queues) = (&context.world, &context.queues);
        queues.volumes.add(name.clone());
        queues.holders.add(name.clone());
        queues.claims.add_all(world.claims.names(&format!("volume:{}", name.1)));
        queues.attachments.add_all(world.attachments.names(&format!("volume:{}", name.1)));
        for volume in [old, new].into_iter().flatten() {
            queues.volumes.add_all(world.twins(volume).iter().map(|twin| cluster(&twin.name_any())));
            copies_of(context, volume);
            if let Some(claim) = &volume.spec.claim_ref {
                let claim = name_in(claim);
                queues.placement.add_all(world.allocations.names(&format!("claim:{}/{}", claim.0, claim.1)));
                let given =
                    |v: &Self| (v.status.as_ref().map(|status| status.holders.clone()), v.expands_offline());
                if differs(old, new, given) {
                    // Who waits is told for whom.
                    queues
                        .allocations
                        .add_all(world.allocations.names(&format!("claim:{}/{}", claim.0, claim.1)));
                }
                queues.claims.add(claim);
            }
            let holders = volume.status.iter().flat_map(|s| &s.holders);
            queues.allocations.add_all(holders.map(|h| name_in(&h.allocation)));
        }
        for volume in [old, new].into_iter().flatten() {
            driver_of(context, &volume.spec.plugin);
        }
        let needs = |v: &Self| {
            let status = v.status.clone().unwrap_or_default();
            let nodes: Vec<_> = status.holders.into_iter().map(|h| h.node_name).collect();
            let host = (status.controller, status.observed_epoch, status.released_epoch);
            (deleting(v), (status.exists, status.attempting), host, nodes)
        };
        if differs(old, new, needs) {
            let hosts =
                [old, new].into_iter().flatten().filter_map(|v| v.status.as_ref()?.controller.as_ref());
            let going = hosts.filter(|h| world.nodes.named(&h.node_name).is_some_and(|n| deleting(&*n)));
            queues.nodes.add_all(going.map(|host| cluster(&host.node_name)));
            for volume in [old, new].into_iter().flatten() {
                leaving_plugin(context, &volume.spec.plugin);
            }
        }
    }
}

/// The driver of volumes and snapshots is known from the first on, and may be another after the last.
fn driver_of(context: &Context, plugin: &str) {
    let of = context.world.plugins.named(plugin).and_then(|p| p.status.clone()).unwrap_or_default();
    if of.driver_name.is_empty() == known_to_driver(context, plugin) {
        context.queues.plugins.add(cluster(plugin));
    }
}

/// What a volume is filled from, and what is filled from it: each waits for the other.
fn copies_of(context: &Context, volume: &Volume) {
    let (world, queues) = (&context.world, &context.queues);
    if let Some(content) = volume.spec.source.create.as_ref().and_then(|create| create.content.as_ref()) {
        if let Some((namespace, name)) = content.snapshot.split_once('/') {
            queues.snapshots.add((namespace.to_owned(), name.to_owned()));
        }
        queues.volumes.add(cluster(&content.volume));
        let of = world.volumes.named(&content.volume).and_then(|source| source.spec.claim_ref.clone());
        queues.claims.add_all(of.iter().map(name_in));
    }
    if let Some(uid) = &volume.metadata.uid {
        queues.volumes.add_all(world.volumes.names(&format!("copy:{uid}")));
        queues.snapshots.add_all(world.snapshots.names(&format!("of:{uid}")));
    }
    if let Some(claim) = &volume.spec.claim_ref {
        let of = name_in(claim);
        queues.claims.add_all(world.claims.names(&format!("source:{}/{}", of.0, of.1)));
        queues.snapshots.add_all(world.snapshots.names(&format!("claim:{}/{}", of.0, of.1)));
        queues.snapshots.add_all(world.snapshots.names(&format!("selecting:{}", of.0)));
    }
}

/// Claims that shall be filled from what is under this word, and where they are wanted.
fn waiting_for(context: &Context, word: &str) {
    let (world, queues) = (&context.world, &context.queues);
    for claim in world.claims.names(word) {
        let users = format!("claim:{}/{}", claim.0, claim.1);
        queues.placement.add_all(world.allocations.names(&users));
        queues.claims.add(claim);
    }
}

impl Wakes for SnapshotSchedule {
    fn wake(context: &Context, name: &Name, _: Option<&Self>, _: Option<&Self>) {
        context.queues.schedules.add(name.clone());
        context.queues.namespaces.add(cluster(&name.0));
    }
}

impl Wakes for Snapshot {
    fn wake(context: &Context, name: &Name, old: Option<&Self>, new: Option<&Self>) {
        let (world, queues) = (&context.world, &context.queues);
        queues.snapshots.add(name.clone());
        waiting_for(context, &format!("snapshot:{}/{}", name.0, name.1));
        for snapshot in [old, new].into_iter().flatten() {
            if let Some(uid) = &snapshot.metadata.uid {
                queues.volumes.add_all(world.volumes.names(&format!("copy:{uid}")));
            }
            let schedule = snapshot.labels().get(SCHEDULE);
            queues.schedules.add_all(schedule.map(|schedule| (name.0.clone(), schedule.clone())));
            for word in snapshot_words(snapshot) {
                queues.snapshots.add_all(world.snapshots.names(&word));
            }
            let status = snapshot.status.as_ref();
            let Some(of) = status.and_then(|status| status.of.as_ref()) else { continue };
            for (volume, _) in of.volumes() {
                queues.volumes.add(cluster(volume));
                let claim = world.volumes.named(volume).and_then(|volume| volume.spec.claim_ref.clone());
                queues.claims.add_all(claim.iter().map(name_in));
            }
            leaving_plugin(context, &of.plugin);
            driver_of(context, &of.plugin);
            let host = status.and_then(|status| status.controller.as_ref());
            let going = host.filter(|h| world.nodes.named(&h.node_name).is_some_and(|n| deleting(&*n)));
            queues.nodes.add_all(going.map(|host| cluster(&host.node_name)));
        }
        queues.namespaces.add(cluster(&name.0));
    }
}

impl Wakes for VolumeAttachment {
    fn wake(context: &Context, name: &Name, old: Option<&Self>, new: Option<&Self>) {
        context.queues.attachments.add(name.clone());
        attach_limit(context, old, new);
        if differs(old, new, |a| (a.spec.expand_bytes != 0).then(|| (expanded(a), up(a), refusal(a)))) {
            let claims = [old, new].into_iter().flatten().map(|a| name_in(&a.spec.claim));
            context.queues.claims.add_all(claims);
        }
        if let Some(going) = new.filter(|a| deleting(*a) && !old.is_some_and(deleting)) {
            // Who uses it may have to leave.
            let claim = format!("claim:{}/{}", going.spec.claim.namespace, going.spec.claim.name);
            context.queues.placement.add_all(context.world.allocations.names(&claim));
        }
        for attachment in [old, new].into_iter().flatten() {
            let spec = &attachment.spec;
            context.queues.holders.add(cluster(&spec.volume));
            context.queues.nodes.add(cluster(&spec.node_name));
            // The node that detaches it may have to stay until it has.
            let host = spec.host.as_ref().filter(|host| host.node_name != spec.node_name && new.is_none());
            context.queues.nodes.add_all(host.map(|host| cluster(&host.node_name)));
            if new.is_none() {
                // A node may have room again.
                context.queues.placement.add_all(context.world.allocations.names("unplaced"));
            }
            if old.is_none() || new.is_none() {
                context.queues.volumes.add(cluster(&spec.volume));
                let twins = context.world.volumes.names(&handle_word(&spec.plugin, &spec.handle));
                context.queues.volumes.add_all(twins);
                leaving_plugin(context, &spec.plugin);
            }
        }
    }
}

/// The size that its node has brought a volume to, in bytes.
pub(super) fn expanded(attachment: &VolumeAttachment) -> i64 {
    attachment.status.as_ref().and_then(|s| s.node.as_ref()).map_or(0, |node| node.expanded_bytes)
}

/// Why its node has not brought the volume to its size, if that was tried.
pub(super) fn refusal(attachment: &VolumeAttachment) -> Option<Condition> {
    attachment.status.as_ref()?.conditions.iter().find(|c| c.kind == EXPANDED).cloned()
}

/// Whether the node has the volume, or may have it.
pub(super) fn up(attachment: &VolumeAttachment) -> bool {
    let node = attachment.status.as_ref().and_then(|s| s.node.as_ref());
    !attachment.spec.allocations.is_empty() && node.is_none_or(|node| node.released_uid.is_empty())
}

/// A node that can have no more volumes of a plugin, or may have one again.
fn attach_limit(context: &Context, old: Option<&VolumeAttachment>, new: Option<&VolumeAttachment>) {
    let (world, queues) = (&context.world, &context.queues);
    let calls = |a: &VolumeAttachment| {
        let host = a.status.as_ref().and_then(|s| s.controller.as_ref());
        host.and_then(|host| host.calls.last().map(|call| call.start_time))
    };
    if old.is_some_and(VolumeAttachment::refused)
        && let Some(there) = new.filter(|a| !a.refused())
    {
        let host = there.status.as_ref().and_then(|status| status.controller.as_ref());
        let up = host.is_some_and(|host| host.attached == Rung::Up);
        if context.refusals.attached(there, up) {
            queues.placement.add_all(world.allocations.names("unplaced"));
        }
    }
    let anew = |a: &&VolumeAttachment| !old.is_some_and(|o| o.refused() && calls(o) == calls(a));
    if let Some(refused) = new.filter(|a| a.refused()).filter(anew) {
        context.refusals.note(refused);
        queues.placement.add_all(world.allocations.names(&format!("node:{}", refused.spec.node_name)));
    }
    if let Some(gone) = old.filter(|_| new.is_none())
        && context.refusals.gone(gone)
    {
        queues.placement.add_all(world.allocations.names("unplaced"));
    }
}

impl Wakes for Allocation {
    fn wake(context: &Context, name: &Name, old: Option<&Self>, new: Option<&Self>) {
        let (world, queues) = (&context.world, &context.queues);
        queues.placement.add(name.clone());
        queues.allocations.add(name.clone());
        queues.plugin_tasks.add(name.clone());
        queues.instances.add_all(world.instances.names(&format!("allocation:{}/{}", name.0, name.1)));
        queues.namespaces.add(cluster(&name.0));
        if new.is_none() {
            let over = context.changing.set(name, &BTreeSet::new());
            queues.plugins.add_all(over.iter().map(|plugin| cluster(plugin)));
        }
        // An allocation with a hundred volumes has its status written as often: each time only the volumes of which it
        // says something new are looked at.
        let whole = old.map(whole_of) != new.map(whole_of);
        for allocation in [old, new].into_iter().flatten() {
            if whole {
                let claims = allocation.spec.volumes.iter().map(|v| (name.0.clone(), v.claim_name.clone()));
                queues.claims.add_all(claims);
                volumes_of(context, allocation);
            }
            queues.plugins.add_all(allocation.annotations().get(PLUGIN_NAME).map(|p| cluster(p)));
            let serves = allocation.spec.tasks.iter().filter_map(|t| t.csi_plugin.as_ref());
            queues.plugins.add_all(serves.map(|p| cluster(&p.plugin_name)));
            let node = allocation.status.as_ref().map(|s| s.node_name.as_str()).unwrap_or_default();
            if world.nodes.named(node).is_some_and(|n| deleting(&*n)) {
                queues.nodes.add(cluster(node));
            }
            // With the instance goes, perhaps, the host of volumes.
            if old.map(leaves) != new.map(leaves)
                && allocation.spec.tasks.iter().any(|t| t.csi_plugin.is_some())
            {
                queues.volumes.add_all(world.volumes.names(&format!("host:{node}")));
            }
        }
        if let (Some(old), Some(new), false) = (old, new, whole) {
            volumes_told(context, &name.0, old, new);
        }
    }
}

/// Whether its tasks are to end for good.
fn leaves(a: &Allocation) -> bool {
    deleting(a) || a.spec.stop
}

/// What of an allocation concerns each of its volumes.
fn whole_of(a: &Allocation) -> impl PartialEq + '_ {
    let object = (a.metadata.uid.as_deref(), deleting(a), a.spec.stop, a.spec.volumes.as_slice());
    let status = a.status.as_ref().map(|s| (s.node_name.as_str(), s.phase, s.evicted));
    (object, status.unwrap_or_default())
}

/// The volumes of which an allocation's status says something new, for the holders controller.
fn volumes_told(context: &Context, namespace: &str, old: &Allocation, new: &Allocation) {
    let (before, after) = (rungs(old), rungs(new));
    let changed = |name: &str| before.get(name) != after.get(name);
    for volume in new.spec.volumes.iter().filter(|v| changed(&v.name)) {
        let word = format!("claim:{namespace}/{}", volume.claim_name);
        context.queues.holders.add_all(context.world.volumes.names(&word));
        // Whoever has it still keeps it.
        let claim = (namespace.to_owned(), volume.claim_name.clone());
        if context.world.claims.get(&claim).is_some_and(|claim| deleting(&*claim)) {
            context.queues.claims.add(claim);
        }
    }
}

fn rungs(allocation: &Allocation) -> HashMap<&str, Rung> {
    let volumes = allocation.status.iter().flat_map(|s| &s.volumes);
    volumes.map(|v| (v.name.as_str(), v.published)).collect()
}

impl Wakes for Node {
    fn wake(context: &Context, name: &Name, old: Option<&Self>, new: Option<&Self>) {
        context.queues.nodes.add(name.clone());
        let matters = |n: &Self| {
            let spec = n.spec.clone().unwrap_or_default();
            let down = n.annotations().contains_key(STOPPED);
            (node_ready(n), n.labels().clone(), down, spec.unschedulable, spec.taints, deleting(n))
        };
        if differs(old, new, matters) {
            users_of_node(context, &name.1);
        }
    }
}

impl Wakes for NodeAgent {
    fn wake(context: &Context, name: &Name, old: Option<&Self>, new: Option<&Self>) {
        context.queues.nodes.add(name.clone());
        let matters = |a: &Self| {
            a.status
                .as_ref()
                .map(|s| (s.boot_id.clone(), s.stopped, s.runtimes.clone(), s.missing_runtimes.clone()))
        };
        if differs(old, new, matters) {
            users_of_node(context, &name.1);
        }
    }
}

impl Wakes for Lease {
    fn wake(context: &Context, name: &Name, _: Option<&Self>, new: Option<&Self>) {
        if name.0 != context.options.system_namespace {
            return;
        }
        match new {
            Some(lease) => context.lease_seen(&name.1, lease),
            None => context.lease_gone(&name.1),
        }
        // A renewal of a node that is ready changes nothing: its timer looks at the lease when it fires. But it may disprove that
        // the node is off.
        let ready = context.world.nodes.named(&name.1).is_some_and(|n| node_ready(&n));
        if !ready || new.is_none() || said_off(&context.world, &name.1) == Fence::Stands {
            context.queues.nodes.add(cluster(&name.1));
        }
    }
}

impl Wakes for Namespace {
    fn wake(context: &Context, name: &Name, _: Option<&Self>, _: Option<&Self>) {
        context.queues.namespaces.add(name.clone());
    }
}

impl Wakes for Event {
    fn wake(context: &Context, name: &Name, _: Option<&Self>, new: Option<&Self>) {
        if new.is_some() {
            context.queues.events.add(name.clone());
        }
        content_of_namespace(context, name);
    }
}

impl Wakes for SecretMeta {
    fn wake(context: &Context, name: &Name, _: Option<&Self>, _: Option<&Self>) {
        content_of_namespace(context, name);
    }
}

impl Wakes for ConfigMapMeta {
    fn wake(context: &Context, name: &Name, _: Option<&Self>, _: Option<&Self>) {
        content_of_namespace(context, name);
    }
}

fn content_of_namespace(context: &Context, name: &Name) {
    if context.world.namespaces.named(&name.0).is_some_and(|n| deleting(&*n)) {
        context.queues.namespaces.add(cluster(&name.0));
    }
}
