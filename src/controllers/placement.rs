//! Placement: an allocation gets its node, a late-bound claim the node of its first consumer.
use std::collections::BTreeSet;
use std::sync::Arc;

use kube::{Resource, ResourceExt};

use super::allocations::{evicted, node_off, serves};
use super::cache::{Name, name_of};
use super::claims::{
    begin_selected, class_of, is_asked_for_at, late, plugin_named, reference, requested, segments, selected,
    usable, volume_of,
};
use super::context::Context;
use super::drive::Outcome;
use super::facts::{Instances, deleting, draining, lacks, node_ready, uid, with_condition};
use super::holders::held;
use super::plugins::room;
use super::world::{World, closing};
use super::write::Failure;
use super::{sources, templates};
use crate::api::allocation::{
    AllocationPhase, AllocationVolume, OnNodeLost, Task, TaskState, VolumePublication,
};
use crate::api::meta::{AccessMode, Condition, READY, ReclaimPolicy, Rung, Truth, VolumeMode};
use crate::api::plugin::ControllerScope;
use crate::api::volume::{CreateSource, NO_ROOM};
use crate::api::{Allocation, AllocationStatus, Volume, VolumeAttachment, VolumeClaim, VolumeClass};
use crate::plan::Reason;
use crate::plan::claim::{self, Origin};
use crate::plan::place::{self, Awaited, Claim, Node, NodePlugin, Place, Placed, Wish};
use crate::plan::registry::Service;

/// Said of an allocation that loses an attachment under its tasks.
const ATTACHMENT_CLOSED: &str = "AttachmentClosed";

/// What to do with an allocation.
enum Decision {
    /// It has what it needs.
    Leave,
    /// Enter the node of the first consumer into this claim.
    Select(Arc<VolumeClaim>, String),
    /// The same, for there is no room for its volume on the node that was selected before, the last one here.
    Move(Arc<VolumeClaim>, String, String),
    /// Bind it.
    Bind(String),
    /// Tell it to leave its node.
    Evict,
    /// The same, if this attachment that it uses really goes.
    EvictIfClosed(Arc<VolumeAttachment>),
    /// Nothing can be done now.
    Wait(Reason),
}

/// One look at one allocation.
pub(crate) async fn reconcile(object: Arc<Allocation>, context: Arc<Context>) -> Outcome {
    let status = object.status.clone().unwrap_or_default();
    let mates = mates(&context, &object);
    // Two that have to meet on one node are placed one after the other, the second when the first is seen there.
    let _one_at_a_time = if mates.is_empty() { None } else { Some(context.sharing.lock().await) };
    if let Some(wait) = mates.iter().find_map(|mate| context.behind::<Allocation>(&name_of(&**mate))) {
        return Ok(Some(wait));
    }
    let mut again = None;
    let new = match decide(&context, &object, &status) {
        Decision::Leave => return Ok(None),
        Decision::Select(claim, node) => return select(&context, &claim, node).await,
        Decision::Move(claim, node, from) => {
            if let Some(wait) = context.behind::<VolumeClaim>(&name_of(&*claim)) {
                return Ok(Some(wait));
            }
            let sentence = format!(
                "there is no room for its volume on node \"{from}\"; it is made on \"{node}\" instead"
            );
            context.tell::<VolumeClaim>(&reference(&*claim), NO_ROOM, &sentence).await;
            let mut claim = (*claim).clone();
            claim.status.get_or_insert_default().selected_node = node;
            context.replace_status(&claim).await?;
            return Ok(None);
        }
        Decision::Bind(node) => bound(&context, &object, &status, node),
        Decision::Evict => AllocationStatus { evicted: true, ..status.clone() },
        Decision::EvictIfClosed(attachment) => {
            if !is_closed(&context, &attachment).await? {
                // The cache is behind, and what it shows next brings us back.
                return Ok(None);
            }
            let sentence = format!(
                "the attachment of volume \"{}\" to node \"{}\" is being taken away under it, so it is stopped there and \
                begins anew",
                attachment.spec.volume, attachment.spec.node_name
            );
            context.tell::<Allocation>(&reference(&*object), ATTACHMENT_CLOSED, &sentence).await;
            AllocationStatus { evicted: true, ..status.clone() }
        }
        Decision::Wait(reason) => {
            // A claim that is not there mostly comes with it.
            let unclaimed = matches!(&reason, Reason::NotFound { kind, .. } if *kind == "VolumeClaim");
            let under_way =
                unclaimed || matches!(&reason, Reason::VolumeNotReady { message, .. } if message.is_empty());
            if let Some(left) = context.soon(&*object).filter(|_| under_way) {
                return Ok(Some(left));
            }
            if matches!(reason, Reason::NoNodeFits { .. }) {
                again = context.refusals.next();
            }
            if matches!(reason, Reason::VolumeNotReady { .. }) {
                again = context.full.next();
            }
            waiting(&context, &object, &status, &reason)
        }
    };
    if new != status {
        let mut object = (*object).clone();
        object.status = Some(new);
        context.replace_status(&object).await?;
    }
    Ok(again)
}

/// Enters the node of the first consumer: into the volume, which is made at once and is there once; or into its claim as it was
/// seen, by which its controller makes the volume. So it is where that cannot be made now, for the claim says what is lacking; where
/// another node was chosen before; and where the volume would be kept if the claim were gone by now.
async fn select(context: &Context, claim: &VolumeClaim, node: String) -> Outcome {
    if let Some(wait) = context.behind::<VolumeClaim>(&name_of(claim)) {
        return Ok(Some(wait));
    }
    let anew = !selected(claim, None).is_empty();
    let goes =
        class_of(&context.world, claim).is_some_and(|c| c.spec.reclaim_policy == ReclaimPolicy::Delete);
    let mut claim = claim.clone();
    claim.status.get_or_insert_default().selected_node = node;
    if !anew
        && goes
        && let Some(begun) = begin_selected(context, &claim).await?
    {
        return Ok(begun);
    }
    context.replace_status(&claim).await?;
    Ok(None)
}

fn decide(context: &Context, object: &Allocation, status: &AllocationStatus) -> Decision {
    let over = matches!(status.phase, Some(AllocationPhase::Complete | AllocationPhase::Failed));
    if deleting(object) || over {
        return Decision::Leave;
    }
    if !status.node_name.is_empty() {
        match place::placed(placed(context, object, status)) {
            Place::Keep => return Decision::Leave,
            Place::Evict => return Decision::Evict,
            Place::EvictIfClosed => {
                return closed(context, object, status).map_or(Decision::Leave, Decision::EvictIfClosed);
            }
            Place::Anew => {}
        }
    }
    if object.spec.stop {
        return Decision::Wait(Reason::Stopped);
    }
    let pin = Some(object.spec.node_name.clone()).filter(|pin| !pin.is_empty());
    if let (Some(pin), true, true) = (&pin, serves(object), object.spec.volumes.is_empty()) {
        // A plugin's instance belongs to its node and waits there for whatever is missing.
        return match context.world.nodes.named(pin) {
            Some(_) => Decision::Bind(pin.clone()),
            None => Decision::Wait(Reason::NotFound { kind: "Node", name: pin.clone() }),
        };
    }
    match place(context, object, status, pin) {
        Ok(decision) => decision,
        Err(reason) => Decision::Wait(reason),
    }
}

fn placed(context: &Context, object: &Allocation, status: &AllocationStatus) -> Placed {
    let node = &status.node_name;
    let rebind = object.spec.on_node_lost == OnNodeLost::Rebind && !object.spec.stop;
    Placed {
        plugin: serves(object),
        lost: (rebind || status.evicted) && node_off(context, node),
        draining: context.world.nodes.named(node).is_some_and(|node| draining(&node)),
        refused: object.spec.node_name.is_empty()
            && refused(context, object, status)
            && fits_elsewhere(context, object, node),
        deprived: deprived(context, object, status),
        unfit: object.spec.node_name.is_empty()
            && unfit(context, object, status)
            && fits_elsewhere(context, object, node),
        closed: closed(context, object, status).is_some(),
        evicted: status.evicted,
        ended: evicted(status),
    }
}

/// An attachment that is being taken away under a task that uses it and shall run on, such as after a fence by mistake, or where a
/// person deletes it. What no task uses its node lets go of by itself.
fn closed(
    context: &Context,
    object: &Allocation,
    status: &AllocationStatus,
) -> Option<Arc<VolumeAttachment>> {
    let node = &status.node_name;
    let attachments = context.world.attachments.by(&closing(&uid(object)));
    if attachments.is_empty() || object.spec.stop || planted!("closed-is-kept") {
        return None;
    }
    context.world.nodes.named(node).filter(|node| node_ready(node))?;
    let is_under_a_task = |a: &Arc<VolumeAttachment>| {
        let mut volumes = object.spec.volumes.iter().filter(|v| v.claim_name == a.spec.claim.name);
        a.spec.node_name == *node && volumes.any(|v| is_used(object, status, (v, &a.spec.volume)))
    };
    attachments.into_iter().find(is_under_a_task)
}

/// Whether a task that may use a volume runs, by its node's word: one that mounts it, or any where it is at a path of the machine.
fn is_used(object: &Allocation, status: &AllocationStatus, (volume, of): (&AllocationVolume, &str)) -> bool {
    let is_it = |seen: &VolumePublication| seen.volume.is_empty() || seen.volume == of;
    let mut seen = status.volumes.iter().filter(|seen| seen.name == volume.name && is_it(seen));
    let published = seen.any(|seen| seen.published != Rung::Down);
    let at_host = !volume.host_path.is_empty();
    let mounts = |task: &&Task| at_host || task.volume_mounts.iter().any(|mount| mount.name == volume.name);
    let runs = |task: &Task| {
        let seen = status.tasks.iter().find(|seen| seen.name == task.name);
        seen.is_some_and(|seen| matches!(seen.state, TaskState::Running | TaskState::Lost))
    };
    published && object.spec.tasks.iter().filter(mounts).any(runs)
}

/// Asks the server itself whether an attachment that is seen to be going is.
async fn is_closed(context: &Context, seen: &VolumeAttachment) -> Result<bool, Failure> {
    let path = VolumeAttachment::url_path(&(), None);
    let found: Option<VolumeAttachment> = context.read(&path, &seen.name_any()).await?;
    Ok(found.is_some_and(|found| uid(&found) == uid(seen) && deleting(&found)))
}

/// Whether it waits on its node, where nothing of it runs yet, for what is not to be had there.
fn deprived(context: &Context, object: &Allocation, status: &AllocationStatus) -> bool {
    let waits = status.phase == Some(AllocationPhase::WaitingVolumes) && !object.spec.stop;
    let namespace = object.namespace().unwrap_or_default();
    let lacks = |volume: &AllocationVolume| {
        let name = (namespace.clone(), volume.claim_name.clone());
        place::deprives(awaited(&context.world, object, (&name, &status.node_name)))
    };
    waits && object.spec.volumes.iter().any(lacks)
}

/// Whether its node lacks a runtime of its tasks, none of which has ever run there.
fn unfit(context: &Context, object: &Allocation, status: &AllocationStatus) -> bool {
    let lacks = |task: &Task| {
        task.runtime.word().is_some_and(|word| lacks(&context.world, &status.node_name, word).is_some())
    };
    status.is_unbegun() && !object.spec.stop && object.spec.tasks.iter().any(lacks)
}

fn awaited(world: &World, object: &Allocation, (name, node): (&Name, &str)) -> Awaited {
    let Some(claim) = world.claims.get(name) else {
        return Awaited { exists: false, going: false, holds: false, unplaced: false, elsewhere: false };
    };
    let volume = volume_of(world, &claim);
    let class = if claim.spec.volume_name.is_empty() { class_of(world, &claim) } else { None };
    let unmade = volume.is_none() && class.is_some_and(|class| late(&class));
    let chosen = selected(&claim, None);
    Awaited {
        exists: true,
        going: deleting(&*claim),
        holds: volume.as_deref().is_some_and(|volume| is_held_by(volume, object)),
        unplaced: unmade && chosen.is_empty(),
        elsewhere: match &volume {
            Some(volume) => !is_reached(world, volume, node),
            None => unmade && chosen != node,
        },
    }
}

/// Whether the node reaches the volume, or will when it is made; so it does as long as nobody says where the node is.
pub(super) fn is_reached(world: &World, volume: &Volume, node: &str) -> bool {
    if volume.status.as_ref().is_none_or(|status| status.handle.is_empty()) && !volume.is_refused() {
        return is_asked_for_at(world, volume, node);
    }
    let instances = Instances::of(world, &volume.spec.plugin);
    let here = instances.serving(Service::Node, node).and_then(|i| i.status.as_ref()).map(|s| &s.topology);
    here.is_none_or(|here| place::reaches(&reachable_from(volume), here))
}

/// Whether the allocation is among the holders of the volume.
fn is_held_by(volume: &Volume, object: &Allocation) -> bool {
    let holders = volume.status.as_ref().map(|status| status.holders.as_slice()).unwrap_or_default();
    holders.iter().any(|holder| holder.allocation.uid == uid(object))
}

/// Whether a plugin attaches a volume of the allocation no more to its node, where nothing of it runs yet.
fn refused(context: &Context, object: &Allocation, status: &AllocationStatus) -> bool {
    let world = &context.world;
    let begun = status.phase.is_some_and(|phase| phase != AllocationPhase::WaitingVolumes);
    // Asked of every allocation at every look, and mostly there is none.
    if begun || context.refusals.next().is_none() {
        return false;
    }
    let namespace = object.namespace().unwrap_or_default();
    let claims = object.spec.volumes.iter().map(|v| (namespace.clone(), v.claim_name.clone()));
    let volumes = claims.filter_map(|claim| volume_of(world, &*world.claims.get(&claim)?));
    let mut attachments = volumes.flat_map(|v| world.attachments.by(&format!("volume:{}", v.name_any())));
    attachments.any(|a| a.spec.node_name == status.node_name && a.refused())
}

/// Whether another node than its own would take it now. Otherwise it stays, and the plugin is asked again and again: to leave
/// for nothing would cost much more.
fn fits_elsewhere(context: &Context, object: &Allocation, node: &str) -> bool {
    let found: Result<Vec<_>, _> =
        object.spec.volumes.iter().map(|v| look_up(context, object, &v.claim_name)).collect();
    let Ok(found) = found else { return false };
    let claims: Vec<_> = found.into_iter().map(|one| places(context, object, one).facts).collect();
    let wish = wish(object, None);
    let mut nodes = nodes(context);
    nodes.retain(|n| n.name != node);
    place::choose(&wish, &nodes, &claims).is_ok()
}

/// What an allocation asks of its node.
fn wish(object: &Allocation, pin: Option<String>) -> Wish {
    Wish {
        pin,
        labels: object.spec.node_selector.clone(),
        plugin: serves(object),
        runtimes: object.spec.tasks.iter().filter_map(|task| task.runtime.word()).collect(),
    }
}

/// A claim of the allocation with what was found for it.
#[derive(Clone)]
struct Found {
    claim: Arc<VolumeClaim>,
    volume: Option<Arc<Volume>>,
    class: Option<Arc<VolumeClass>>,
    late: bool,
    plugin: String,
    /// What its volume will be filled from.
    origin: Option<Origin>,
}

/// The same with what is known of where it can be used.
struct Wanted {
    claim: Arc<VolumeClaim>,
    volume: Option<Arc<Volume>>,
    /// Late, without volume, and without a selected node that can still serve it.
    unselected: bool,
    /// The node for which its volume is being made, if that can still serve it.
    begun: Option<String>,
    facts: Claim,
}

fn place(
    context: &Context,
    object: &Allocation,
    status: &AllocationStatus,
    pin: Option<String>,
) -> Result<Decision, Reason> {
    let mut found = Vec::new();
    for volume in &object.spec.volumes {
        found.push(look_up(context, object, &volume.claim_name)?);
    }
    for one in found.iter().filter(|one| !one.late) {
        ready(context, &one.claim, one.volume.as_deref())?;
    }
    if let Some(moved) = roomier(context, object, pin.clone(), &found) {
        return Ok(moved);
    }
    let mut wanted: Vec<_> = found.into_iter().map(|one| places(context, object, one)).collect();
    if wanted.iter().any(|one| one.unselected) {
        // What is made next goes where the others of this user are being made.
        for one in &mut wanted {
            one.facts.only = one.facts.only.take().or_else(|| one.begun.take());
        }
    }
    let wish = wish(object, pin);
    let claims: Vec<_> = wanted.iter().map(|w| w.facts.clone()).collect();
    let mut nodes = nodes(context);
    // A node that is off may not have renewed its condition yet.
    for node in nodes.iter_mut().filter(|n| n.name == status.node_name && !evicted(status)) {
        node.ready = false;
    }
    let node = place::choose(&wish, &nodes, &claims)?;
    if let Some(one) = wanted.iter().find(|w| w.unselected) {
        return Ok(Decision::Select(Arc::clone(&one.claim), node));
    }
    for one in &wanted {
        ready(context, &one.claim, one.volume.as_deref())?;
    }
    Ok(Decision::Bind(node))
}

/// A late-bound claim whose volume has no room on the node that was selected for it, if there is another node for it and for
/// what else the allocation needs. What is filled from something else stays where that is.
fn roomier(context: &Context, object: &Allocation, pin: Option<String>, found: &[Found]) -> Option<Decision> {
    let world = &context.world;
    let selected = |one: &Found| selected(&one.claim, one.volume.as_deref()).to_owned();
    let is_full = |one: &&Found| {
        let Some(volume) = one.volume.as_deref().filter(|volume| one.late && volume.has_no_room()) else {
            return false;
        };
        let create = volume.spec.source.create.as_ref();
        let somewhere = |c: &CreateSource| !c.node_name.is_empty() || !c.requisite.is_empty();
        let movable = create.is_some_and(|c| c.content.is_none() && somewhere(c));
        let node = selected(one);
        movable && !deleting(volume) && !node.is_empty() && is_asked_for_at(world, volume, &node)
    };
    let full = found.iter().find(is_full)?;
    let from = selected(full);
    context.full.note(&full.plugin, &from);
    let elsewhere = |one: &Found| {
        let is_it = std::ptr::eq(one, full);
        let volume = one.volume.clone().filter(|_| !is_it);
        let mut facts = places(context, object, Found { volume, ..one.clone() }).facts;
        if is_it {
            facts.only = None;
            let full = context.full.of(&one.plugin);
            let there: Vec<_> = facts.nodes.iter().filter(|n| full.contains(&n.node)).cloned().collect();
            // Nodes at one place are served by one backend.
            let same = |n: &NodePlugin, o: &NodePlugin| !n.topology.is_empty() && n.topology == o.topology;
            facts.nodes.retain(|n| !full.contains(&n.node) && !there.iter().any(|other| same(n, other)));
        }
        facts
    };
    let claims: Vec<_> = found.iter().map(elsewhere).collect();
    let wish = wish(object, pin);
    let node = place::choose(&wish, &nodes(context), &claims).ok()?;
    Some(Decision::Move(Arc::clone(&full.claim), node, from))
}

/// Whether the claim's volume can be used. That the claim is bound to it is known from the same facts as its controller
/// knows it: waiting for that to be written would put one more write in every claim's way.
fn ready(context: &Context, claim: &VolumeClaim, volume: Option<&Volume>) -> Result<(), Reason> {
    if volume.is_some_and(|volume| usable(&context.world, claim, volume)) {
        return Ok(());
    }
    let said = claim
        .status
        .as_ref()
        .and_then(|s| s.conditions.iter().find(|c| c.kind == READY && c.status != Truth::True));
    // What goes on by itself is not worth a write per step; what is missing is named.
    let said = said.filter(|c| !claim::UNDER_WAY.contains(&c.reason.as_str()));
    let message = said.map(|c| c.message.clone()).unwrap_or_default();
    Err(Reason::VolumeNotReady { claim: claim.name_any(), message })
}

/// The plugin of a claim's volume, or of the one that it will have; empty if that is not known.
pub(super) fn plugin_of(world: &World, claim: &VolumeClaim) -> String {
    if let Some(volume) = volume_of(world, claim) {
        return volume.spec.plugin.clone();
    }
    let class = if claim.spec.volume_name.is_empty() { class_of(world, claim) } else { None };
    plugin_named(claim, class.as_deref()).to_owned()
}

fn look_up(context: &Context, object: &Allocation, name: &str) -> Result<Found, Reason> {
    let world = &context.world;
    if let Some(reason) = templates::unusable(world, object, name) {
        return Err(reason);
    }
    let key = (object.namespace().unwrap_or_default(), name.to_owned());
    let Some(claim) = world.claims.get(&key) else {
        return Err(Reason::NotFound { kind: "VolumeClaim", name: name.to_owned() });
    };
    if deleting(&*claim) {
        return Err(Reason::BeingDeleted { kind: "VolumeClaim", name: name.to_owned() });
    }
    let volume = volume_of(world, &claim);
    let class = if claim.spec.volume_name.is_empty() { class_of(world, &claim) } else { None };
    let late = class.as_deref().is_some_and(late);
    let plugin = plugin_of(world, &claim);
    if object.spec.tasks.iter().filter_map(|t| t.csi_plugin.as_ref()).any(|p| p.plugin_name == plugin) {
        return Err(Reason::OwnPlugin { plugin });
    }
    let mut origin = None;
    if late
        && volume.is_none()
        && let Some(found) = sources::of(world, &claim, &plugin)
    {
        // The place is where that is, so it has to be known first.
        let allowed = class.as_ref().map(|class| class.spec.allowed_topologies.clone()).unwrap_or_default();
        let wish = claim::Wish {
            allowed,
            block: claim.spec.volume_mode == VolumeMode::Block,
            ..claim::Wish::default()
        };
        let usable = claim::usable(&found.source, &wish, &plugin);
        let message = |reason: Reason| reason.to_string();
        let why = |message| Reason::VolumeNotReady { claim: name.to_owned(), message };
        origin = Some(usable.map_err(message).map_err(why)?.clone());
    }
    Ok(Found { claim, volume, class, late, plugin, origin })
}

/// What is known of where a claim can be used: of every node, so it is asked only where that is decided.
fn places(
    context: &Context,
    object: &Allocation,
    Found { claim, volume, class, late, plugin, origin }: Found,
) -> Wanted {
    let world = &context.world;
    let instances = Instances::of(world, &plugin);
    let selected = selected(&claim, volume.as_deref()).to_owned();
    let local =
        world.plugins.named(&plugin).is_some_and(|p| p.spec.controller_scope == ControllerScope::Node);
    // A node that was selected for a volume not begun yet, and cannot serve it any more, is selected no longer.
    let usable = |node: &str| {
        instances.serving(Service::Node, node).is_some()
            && (!local || instances.serving(Service::Controller, node).is_some())
    };
    // Its class may have been given other places since.
    let allowed = class.as_ref().map(|c| c.spec.allowed_topologies.clone()).unwrap_or_default();
    let outside = || !place::reaches(&allowed, &segments(&instances, &selected));
    let unselected = late && volume.is_none() && (!usable(&selected) || origin.is_none() && outside());
    let begun = volume.as_deref().filter(|volume| late && is_begun(volume)).map(|_| selected.clone());
    let begun = begun.filter(|node| usable(node));
    let only = match &volume {
        Some(volume) => held_on(volume).or_else(|| met_on(context, object, &claim, volume)),
        None => Some(selected)
            .filter(|node| late && !unselected && !node.is_empty())
            .or_else(|| origin.as_ref().map(|o| o.node.clone()).filter(|node| !node.is_empty())),
    };
    let reached = origin.map(|o| o.topology).filter(|terms| !terms.is_empty());
    let (topology, by_class) = match (&volume, reached) {
        (Some(volume), _) => (reachable_from(volume), String::new()),
        (None, Some(terms)) => (terms, String::new()),
        (None, None) => {
            class.as_ref().map(|c| (c.spec.allowed_topologies.clone(), c.name_any())).unwrap_or_default()
        }
    };
    let mut nodes = serving_nodes(context, &plugin, &instances);
    let mut needs = (String::new(), 0);
    if volume.is_none() {
        nodes.retain(|n| usable(&n.node));
        if let Some(class) = class.as_deref().filter(|_| late) {
            needs = (class.name_any(), requested(&claim).unwrap_or(0));
            for there in &mut nodes {
                there.room = room(&instances, local, &needs.0, &there.node).map(|room| place::Room {
                    available: room.available_bytes.unwrap_or(i64::MAX),
                    largest: room.largest_bytes.unwrap_or(i64::MAX),
                });
            }
        }
    }
    let attached = volume.iter().flat_map(|v| world.attachments.by(&format!("volume:{}", v.name_any())));
    let present_on: BTreeSet<_> =
        attached.filter(|a| !a.refused()).map(|a| a.spec.node_name.clone()).collect();
    let name = claim.name_any();
    let facts = Claim { name, plugin, nodes, topology, class: by_class, only, present_on, needs };
    Wanted { claim, volume, unselected, begun, facts }
}

/// Whether a volume is being made for the first time, and so it is not known yet where else it will be reached from.
fn is_begun(volume: &Volume) -> bool {
    let made = volume.status.as_ref().is_some_and(|status| !status.handle.is_empty());
    !made && !volume.is_refused()
}

/// Whether several users of a volume run side by side, but on one node.
fn shared_on_one_node(volume: &Volume) -> bool {
    match volume.spec.capability().access_mode {
        AccessMode::SingleNodeMultiWriter => true,
        // The next user waits for the present one wherever it is.
        AccessMode::SingleNodeWriter
        | AccessMode::SingleNodeSingleWriter
        | AccessMode::SingleNodeReaderOnly => false,
        AccessMode::MultiNodeReaderOnly
        | AccessMode::MultiNodeSingleWriter
        | AccessMode::MultiNodeMultiWriter => false,
    }
}

/// The other users of the volumes of an allocation that is to be bound, for which all have to be on one node.
fn mates(context: &Context, object: &Allocation) -> Vec<Arc<Allocation>> {
    let stays = |s: &AllocationStatus| {
        !s.node_name.is_empty() && place::placed(placed(context, object, s)) != Place::Anew
    };
    if object.status.as_ref().is_some_and(stays) {
        return Vec::new();
    }
    let world = &context.world;
    let namespace = object.namespace().unwrap_or_default();
    let shared = object.spec.volumes.iter().filter(|v| {
        let claim = world.claims.get(&(namespace.clone(), v.claim_name.clone()));
        claim.and_then(|claim| volume_of(world, &claim)).is_some_and(|volume| shared_on_one_node(&volume))
    });
    let users = shared.flat_map(|v| world.allocations.by(&format!("claim:{namespace}/{}", v.claim_name)));
    users.filter(|user| user.uid() != object.uid()).collect()
}

/// Where another user of such a volume was bound, before it holds it.
fn met_on(context: &Context, object: &Allocation, claim: &VolumeClaim, volume: &Volume) -> Option<String> {
    if !shared_on_one_node(volume) {
        return None;
    }
    let key = format!("claim:{}/{}", claim.namespace().unwrap_or_default(), claim.name_any());
    let bound = |user: &Arc<Allocation>| {
        let status = user.status.as_ref()?;
        let over = status.phase.is_some_and(AllocationPhase::terminal);
        let bound = !status.node_name.is_empty() && !status.evicted;
        let there = !over && bound && !node_off(context, &status.node_name);
        there.then(|| status.node_name.clone())
    };
    let users = context.world.allocations.by(&key).into_iter().filter(|user| user.uid() != object.uid());
    users.filter_map(|user| bound(&user)).min()
}

/// The only node that will do for a volume that is there.
fn held_on(volume: &Volume) -> Option<String> {
    let holder =
        volume.status.as_ref().and_then(|s| s.holders.first()).filter(|_| shared_on_one_node(volume));
    let local = volume.spec.source.home().filter(|_| reachable_from(volume).is_empty());
    holder.map(|h| h.node_name.clone()).or(local.map(ToOwned::to_owned))
}

/// Where a volume can be reached from; anywhere when empty.
pub(super) fn reachable_from(volume: &Volume) -> Vec<crate::api::meta::Segments> {
    let seen = volume.status.as_ref().map(|s| s.topology.clone()).unwrap_or_default();
    let told = volume.spec.source.existing.as_ref().map(|e| e.topology.clone()).unwrap_or_default();
    if seen.is_empty() { told } else { seen }
}

fn serving_nodes(context: &Context, plugin: &str, instances: &Instances) -> Vec<NodePlugin> {
    let refused = context.refusals.of(plugin);
    let of = |instance: &Arc<crate::api::PluginInstance>| {
        let (node, status) = (&instance.spec.node_name, instance.status.as_ref());
        let max_volumes = status.map_or(0, |s| s.max_volumes);
        let volumes = || context.world.attachments.count(&format!("node:{node}/{plugin}"));
        NodePlugin {
            node: node.clone(),
            topology: status.map(|s| s.topology.clone()).unwrap_or_default(),
            max_volumes,
            // Where there is no limit nobody asks.
            volumes: if max_volumes > 0 { volumes() } else { 0 },
            refused: refused.contains(node),
            room: None,
        }
    };
    instances.healthy(Service::Node).map(of).collect()
}

/// Every node, with what is on it now.
fn nodes(context: &Context) -> Vec<Node> {
    let world = &context.world;
    let mut nodes = world.found.places(world).to_vec();
    let loads = world.allocations.counts(nodes.iter().map(|node| format!("node:{}", node.name)));
    nodes.iter_mut().zip(loads).for_each(|(node, load)| node.load = load);
    nodes
}

fn conditions(
    context: &Context,
    object: &Allocation,
    status: &AllocationStatus,
    placed: (Truth, &str, &str),
    ready: &Reason,
) -> Vec<Condition> {
    let generation = object.metadata.generation;
    let placed = Condition::new("Placed", placed.0, placed.1, placed.2).of_generation(generation);
    let ready =
        Condition::new(READY, Truth::False, ready.word(), ready.to_string()).of_generation(generation);
    let with_placed = with_condition(context, &status.conditions, placed);
    with_condition(context, &with_placed, ready)
}

fn bound(
    context: &Context,
    object: &Allocation,
    status: &AllocationStatus,
    node: String,
) -> AllocationStatus {
    let message = format!("runs on node \"{node}\"");
    let placed = (Truth::True, "Placed", message.as_str());
    // Its node knows of no holder on another one: whose turn it is is said here, in the write that is made anyway.
    let held = object.spec.volumes.iter().find_map(|v| {
        let claim =
            context.world.claims.get(&(object.namespace().unwrap_or_default(), v.claim_name.clone()))?;
        held(&*volume_of(&context.world, &claim)?, object, &v.claim_name, &node)
    });
    let why = held.unwrap_or(Reason::VolumesNotReady);
    let conditions = conditions(context, object, status, placed, &why);
    // What another node said of it before does not speak of this one.
    AllocationStatus {
        node_name: node,
        phase: Some(AllocationPhase::WaitingVolumes),
        conditions,
        ..AllocationStatus::default()
    }
}

fn waiting(
    context: &Context,
    object: &Allocation,
    status: &AllocationStatus,
    why: &Reason,
) -> AllocationStatus {
    let message = why.to_string();
    let placed = (Truth::False, why.word(), message.as_str());
    let phase = if *why == Reason::Stopped { AllocationPhase::Stopped } else { AllocationPhase::Pending };
    AllocationStatus {
        phase: Some(phase),
        conditions: conditions(context, object, status, placed, why),
        ..AllocationStatus::default()
    }
}
