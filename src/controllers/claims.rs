//! Claims: the Volume of a claim is made, found and let go; the claim says where it stands.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::cache::name_of;
use super::context::Context;
use super::drive::Outcome;
use super::facts::{Instances, deleting, uid, with_condition};
use super::ledger::PATIENCE;
use super::plugins::room;
use super::world::{World, namespace_or_default};
use super::write::Failure;
use super::{expansions, modifications};
use super::{sources, volumes};
use crate::api::allocation::{AllocationPhase, VolumePublication};
use crate::api::attributes::MODIFIED;
use crate::api::claim::{ClaimPhase, Ephemeral};
use crate::api::class::VolumeBindingMode;
use crate::api::meta::{
    AccessMode, Condition, ObjectRef, READY, Rung, SecretRef, SecretRefs, Segments, Truth, VolumeMode,
    is_of_another, is_true,
};
use crate::api::plugin::{ControllerScope, LifecycleMode, capability};
use crate::api::quantity;
use crate::api::volume::{
    BEGUN_ANEW, CLAIM_GOES, CreateSource, EPHEMERAL, EXPANDED, EphemeralSource, NO_ROOM, VolumeSource,
};
use crate::api::{Volume, VolumeClaim, VolumeClaimStatus, VolumeClass, VolumeSpec};
use crate::plan::Reason;
use crate::plan::claim::{self as plan, Class, Facts, Owner, Plugin, Step, Verdict, Wish};
use crate::plan::expand::Claimed;
use crate::plan::place;
use crate::plan::registry::Service;

/// One look at one claim.
pub(crate) async fn reconcile(object: Arc<VolumeClaim>, context: Arc<Context>) -> Outcome {
    let class = class_of(&context.world, &object);
    let volume = volume_of(&context.world, &object);
    let plugin = plugin_named(&object, class.as_deref());
    let source = if volume.is_none() { sources::of(&context.world, &object, plugin) } else { None };
    let facts = gather(&context.world, &object, (volume.as_deref(), class.as_deref()), source.as_ref());
    let verdict = plan::next(&facts);
    let size = volume
        .as_deref()
        .filter(|_| verdict.phase == ClaimPhase::Bound)
        .map(|volume| expansions::look(&context, &object, volume, class.as_deref()));
    let attributes = volume
        .as_deref()
        .filter(|_| verdict.phase == ClaimPhase::Bound)
        .map(|volume| modifications::look(&context.world, &object, volume));
    match (&verdict.step, &volume, &class) {
        (Some(Step::Create { node }), _, class) => {
            return begin(&context, &object, (class.as_deref(), node), source.as_ref()).await;
        }
        (Some(Step::Adopt), Some(volume), _) => {
            // On this very state, and nothing else of it: what a person left empty is not to be taken for a change.
            let metadata = json!({ "resourceVersion": volume.metadata.resource_version });
            let spec = json!({ "claimRef": reference(&*object) });
            context.merge(&**volume, json!({ "metadata": metadata, "spec": spec })).await?;
            return Ok(None);
        }
        (Some(Step::Release), volume, _) => {
            // Nobody holds what is kept, as long as it is as it was seen.
            let mine =
                volume.as_deref().filter(|volume| owner(&context.world, &object, volume) == Owner::Mine);
            let seen = mine.map(volumes::as_seen);
            context.release_while(&*object, seen).await?;
            return Ok(None);
        }
        (Some(Step::DeleteVolume), Some(volume), _) => {
            if let Some(wait) = context.behind::<Volume>(&name_of(&**volume)) {
                return Ok(Some(wait));
            }
            if !deleting(&*object) && sources::is_there(&context, volume).await? {
                return Ok(Some(PATIENCE));
            }
            context.delete_as_seen(&**volume).await?;
        }
        (Some(Step::Tell), Some(volume), _) => return tell_host(&context, &object, volume).await,
        (Some(Step::BeginAnew), Some(volume), _) => {
            return begin_anew(&context, &object, (volume, class.as_deref())).await;
        }
        (Some(_) | None, _, _) => {}
    }
    if let (Some(wanted), Some(volume)) = (attributes.as_ref().and_then(|look| look.set.as_ref()), &volume) {
        modifications::set(&context, &object, volume, wanted).await?;
        return Ok(None);
    }
    if let (Some(true), Some(volume)) = (attributes.as_ref().map(|look| look.unset), &volume) {
        modifications::unset(&context, volume).await?;
        return Ok(None);
    }
    if let (Some(Claimed::Set(wanted)), Some(volume)) = (size.as_ref().map(|size| &size.claimed), &volume) {
        expansions::set(&context, volume, *wanted).await?;
    }
    if let Some(left) = early(&context, &object, volume.as_deref(), &verdict) {
        return Ok(Some(left));
    }
    match status(&context, &object, volume.as_deref(), (&verdict, size.as_ref(), attributes.as_ref())) {
        Some(News { users: Some(left), .. }) => Ok(Some(left)),
        Some(News { status, .. }) => {
            context.merge(&*object, json!({ "status": status })).await?;
            Ok(None)
        }
        None => Ok(None),
    }
}

/// Has the host of a volume that was deleted before its claim ask for the claim again, which goes now.
async fn tell_host(context: &Context, claim: &VolumeClaim, volume: &Volume) -> Outcome {
    let metadata = json!({ "annotations": { CLAIM_GOES: claim.name_any() } });
    context.merge(volume, json!({ "metadata": metadata })).await.map(|_: Volume| ())?;
    Ok(None)
}

/// When the volume of a claim is deleted that nobody holds any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// Not by its claim, which is not going, or leaves it.
    Not,
    /// Once those are over who use the claim by their own word.
    AfterUsers,
    /// At once.
    Now,
}

/// When this volume, as it will be once nobody holds it, is deleted because of its claim.
pub(super) fn ends(world: &World, claim: &VolumeClaim, volume: &Volume) -> Ends {
    let class = class_of(world, claim);
    let mut facts = gather(world, claim, (Some(volume), class.as_deref()), None);
    let deleted = |facts: &Facts| facts.deleting && plan::next(facts).step == Some(Step::DeleteVolume);
    if deleted(&facts) {
        return Ends::Now;
    }
    facts.users.clear();
    if deleted(&facts) { Ends::AfterUsers } else { Ends::Not }
}

/// How long to wait with a word on what mostly goes on by itself before anybody could read it.
fn early(
    context: &Context,
    claim: &VolumeClaim,
    volume: Option<&Volume>,
    verdict: &Verdict,
) -> Option<Duration> {
    let (word, _) = verdict.ready.as_ref().err()?;
    match volume {
        Some(volume) if [plan::PROVISIONING, plan::BINDING].contains(&word.as_str()) => context.soon(volume),
        // Whoever uses it is mostly made with it.
        None if word == Reason::WaitingForFirstConsumer.word() => context.soon(claim),
        Some(_) | None => None,
    }
}

/// Makes the Volume of a claim for which a node is about to be selected, if its controller would by then; absent if not.
pub(super) async fn begin_selected(
    context: &Context,
    claim: &VolumeClaim,
) -> Result<Option<Option<Duration>>, Failure> {
    let (world, class) = (&context.world, class_of(&context.world, claim));
    let source = sources::of(world, claim, plugin_named(claim, class.as_deref()));
    let verdict = plan::next(&gather(world, claim, (None, class.as_deref()), source.as_ref()));
    let Some(Step::Create { node }) = &verdict.step else { return Ok(None) };
    begin(context, claim, (class.as_deref(), node), source.as_ref()).await.map(Some)
}

/// Makes the Volume of a claim.
async fn begin(
    context: &Context,
    claim: &VolumeClaim,
    (class, node): (Option<&VolumeClass>, &str),
    source: Option<&sources::Found>,
) -> Outcome {
    let mut volume = match (&claim.spec.ephemeral, class) {
        (Some(ephemeral), _) => ephemeral_volume(claim, ephemeral),
        (None, Some(class)) => new_volume(&context.world, claim, (class, node), source),
        (None, None) => return Ok(None),
    };
    if let Some(wait) = context.behind::<Volume>(&name_of(&volume)) {
        return Ok(Some(wait));
    }
    volume.status = volumes::first_status(context, &volume);
    match volume.status {
        Some(_) => context.create_with_status(&volume).await?,
        None => context.create(&volume).await?,
    };
    Ok(None)
}

/// Says that another volume is made in the place of this one, and then deletes it: its host may have begun to make it
/// meanwhile, and has to know that the claim keeps it no longer.
async fn begin_anew(
    context: &Context,
    claim: &VolumeClaim,
    (volume, class): (&Arc<Volume>, Option<&VolumeClass>),
) -> Outcome {
    if let Some(wait) = context.behind::<Volume>(&name_of(&**volume)) {
        return Ok(Some(wait));
    }
    if volume.annotations().contains_key(BEGUN_ANEW) {
        context.delete_as_seen(&**volume).await?;
        return Ok(None);
    }
    let (node, name) = (selected(claim, Some(volume)).to_owned(), volume.name_any());
    let at = volume.spec.source.create.as_ref().map(|create| create.node_name.clone()).unwrap_or_default();
    let told = if asks_otherwise(claim, (volume, class)) {
        let sentence = format!(
            "volume \"{name}\" was refused and never made; another one is asked for in its place, as this claim and its \
             class say by now"
        );
        Some(("BegunAnew", sentence))
    } else if node.is_empty() {
        Some((
            NO_ROOM,
            format!("there is no room for its volume on node \"{at}\"; it is made elsewhere instead"),
        ))
    } else {
        // It was told when another node was chosen.
        None
    };
    if let Some((reason, sentence)) = told {
        context.tell::<VolumeClaim>(&reference(claim), reason, &sentence).await;
    }
    let metadata =
        json!({ "resourceVersion": volume.metadata.resource_version, "annotations": { BEGUN_ANEW: node } });
    context.merge(&**volume, json!({ "metadata": metadata })).await?;
    Ok(None)
}

/// Whether the volume can be used, and the claim is bound to it or will be as soon as that is written.
pub(crate) fn usable(world: &World, claim: &VolumeClaim, volume: &Volume) -> bool {
    let ready = volumes::ready(world, volume);
    let bound = || claim.status.as_ref().is_some_and(|s| is_true(&s.conditions, READY));
    ready && (bound() || plan::next(&gather(world, claim, (Some(volume), None), None)).ready.is_ok())
}

pub(super) fn reference<K: ResourceExt>(object: &K) -> ObjectRef {
    ObjectRef { namespace: object.namespace().unwrap_or_default(), name: object.name_any(), uid: uid(object) }
}

/// The class that a claim names, or the default one; of several the newest, as Kubernetes has it. An ephemeral one has none.
pub(crate) fn class_of(world: &World, claim: &VolumeClaim) -> Option<Arc<VolumeClass>> {
    if claim.spec.ephemeral.is_some() {
        return None;
    }
    if !claim.spec.volume_class_name.is_empty() {
        return world.classes.named(&claim.spec.volume_class_name);
    }
    let born = |c: &Arc<VolumeClass>| (c.metadata.creation_timestamp.as_ref().map(|t| t.0), c.name_any());
    world.classes.all().into_iter().filter(|c| c.spec.default).max_by_key(born)
}

/// The volume that a claim names, or the last one made for it.
pub(crate) fn volume_of(world: &World, claim: &VolumeClaim) -> Option<Arc<Volume>> {
    if !claim.spec.volume_name.is_empty() {
        return world.volumes.named(&claim.spec.volume_name);
    }
    let (namespace, name) = name_of(claim);
    let made = world.volumes.by(&format!("claim:{namespace}/{name}"));
    let of_it = |v: &Arc<Volume>| {
        let owner = v.spec.claim_ref.as_ref().map(|c| c.uid.as_str());
        v.spec.source.existing.is_none() && owner == Some(&uid(claim))
    };
    made.into_iter().filter(of_it).max_by_key(|v| series_of(&v.name_any()))
}

/// The node of a claim's first consumer: the one that was chosen last, or that its volume was begun for; empty if there is none.
pub(crate) fn selected<'a>(claim: &'a VolumeClaim, volume: Option<&'a Volume>) -> &'a str {
    let chosen = claim.status.as_ref().map(|status| status.selected_node.as_str());
    let begun =
        volume.and_then(|volume| volume.spec.source.create.as_ref()).map(|c| c.selected_node.as_str());
    [chosen, begun].into_iter().flatten().find(|node| !node.is_empty()).unwrap_or_default()
}

fn series_of(volume: &str) -> u32 {
    volume.rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn gather(
    world: &World,
    claim: &VolumeClaim,
    (volume, class): (Option<&Volume>, Option<&VolumeClass>),
    source: Option<&sources::Found>,
) -> Facts {
    let status = claim.status.clone().unwrap_or_default();
    let plugin_name = plugin_named(claim, class).to_owned();
    let instances = Instances::of(world, &plugin_name);
    let selected = selected(claim, volume);
    let serves_there = instances.serving(Service::Node, selected).is_some();
    let wanted_class = &claim.spec.volume_class_name;
    let wish = Wish {
        bytes: requested(claim).unwrap_or(0),
        limit: limit(claim).unwrap_or(0),
        block: claim.spec.volume_mode == VolumeMode::Block,
        allowed: class.map(|c| c.spec.allowed_topologies.clone()).unwrap_or_default(),
        here: segments(&instances, selected),
    };
    Facts {
        deleting: deleting(claim),
        users: users(world, claim, volume),
        source: source.map(|found| found.source.clone()),
        wish,
        attributes: class.and_then(|c| modifications::from_the_start(world, claim, &c.spec.plugin).err()),
        copies: volume.map(|volume| sources::copies(world, volume)).unwrap_or_default(),
        named: claim.spec.volume_name.clone(),
        volume: volume.map(|v| plan::Volume {
            superseded: v.is_refused()
                && (is_displaced(world, claim, (v, class)) || asks_otherwise(claim, (v, class))),
            ..known(world, claim, v)
        }),
        phase: status.phase,
        had: status.volume_name,
        selected: (selected.to_owned(), serves_there),
        class: Class {
            name: if wanted_class.is_empty() { "default".to_owned() } else { wanted_class.clone() },
            found: class.is_some(),
            late: class.is_some_and(late),
            plugin: plugin_of(world, claim, (&plugin_name, class), &instances),
            plugin_name,
        },
        ephemeral: claim.spec.ephemeral.is_some(),
    }
}

/// Allocations that have the claim's volume.
fn users(world: &World, claim: &VolumeClaim, volume: Option<&Volume>) -> Vec<String> {
    let (namespace, name) = name_of(claim);
    // Another claim's users are none of this one's, though it names that volume, too.
    let volume = volume.filter(|volume| owner(world, claim, volume) == Owner::Mine);
    let holders = volume.and_then(|v| v.status.as_ref()).map(|s| s.holders.as_slice()).unwrap_or_default();
    // With those of whom nothing more is known.
    let mut users: BTreeSet<_> =
        holders.iter().map(|h| format!("{}/{}", h.allocation.namespace, h.allocation.name)).collect();
    for allocation in world.allocations.by(&format!("claim:{namespace}/{name}")) {
        let Some(status) = &allocation.status else { continue };
        let named = |v: &VolumePublication| {
            // What is there of another claim of this name, which is gone, is none of its.
            let its = v.volume.is_empty() || volume.is_none_or(|volume| volume.name_any() == v.volume);
            its && allocation.spec.volumes.iter().any(|of| of.name == v.name && of.claim_name == name)
        };
        let consumer = plan::Consumer {
            over: status.phase.is_some_and(AllocationPhase::terminal),
            holds: holders.iter().any(|h| h.allocation.uid == uid(&*allocation)),
            there: status.volumes.iter().any(|v| named(v) && v.published != Rung::Down),
        };
        if plan::has(consumer) {
            users.insert(format!("{namespace}/{}", allocation.name_any()));
        }
    }
    users.into_iter().collect()
}

fn known(world: &World, claim: &VolumeClaim, volume: &Volume) -> plan::Volume {
    let status = volume.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().find(|c| c.kind == READY);
    let word = if deleting(volume) { plan::RELEASING } else { plan::PROVISIONING };
    let default = || (word.to_owned(), format!("waits for volume \"{}\"", volume.name_any()));
    plan::Volume {
        name: volume.name_any(),
        owner: owner(world, claim, volume),
        mismatch: mismatch(claim, volume),
        ready: volumes::ready(world, volume),
        why: ready
            .filter(|c| c.status != Truth::True && !plan::UNDER_WAY.contains(&c.reason.as_str()))
            .map_or_else(default, |c| (c.reason.clone(), c.message.clone())),
        deleting: deleting(volume),
        told: volume.annotations().contains_key(CLAIM_GOES),
        kept: volume.spec.is_kept(),
        unfillable: status.controller.is_none() && sources::is_gone(world, volume),
        superseded: false,
        anothers: is_of_another(&status.conditions),
    }
}

/// Whether there was no room for it where it was asked for, and by now another place is chosen; of one that is not made for a
/// user, whether by its plugin's word there is room elsewhere.
fn is_displaced(
    world: &World,
    claim: &VolumeClaim,
    (volume, class): (&Volume, Option<&VolumeClass>),
) -> bool {
    if !volume.has_no_room() {
        return false;
    }
    let selected = selected(claim, Some(volume));
    if !selected.is_empty() {
        return !is_asked_for_at(world, volume, selected);
    }
    let Some(class) = class.filter(|class| !late(class)) else { return false };
    let create = volume.spec.source.create.as_ref().filter(|create| create.content.is_none());
    let Some(create) = create.filter(|create| !create.node_name.is_empty()) else { return false };
    let instances = Instances::of(world, &class.spec.plugin);
    let room_at = |node: &str| least_room(&instances, class, node);
    let lacks = |room: i64| room < create.required_bytes;
    room_at(&create.node_name).is_some_and(lacks)
        && candidates(class, &instances).any(|node| room_at(node).is_some_and(|room| !lacks(room)))
}

/// The nodes whose instances may make a volume of the class.
fn candidates<'a>(class: &'a VolumeClass, instances: &'a Instances) -> impl Iterator<Item = &'a str> {
    let allowed = &class.spec.allowed_topologies;
    let fits = move |node: &&str| allowed.is_empty() || place::reaches(allowed, &segments(instances, node));
    instances.nodes(Service::Controller).filter(fits)
}

/// How many bytes one volume of the class can have that is made on this node, by its plugin's word.
fn least_room(instances: &Instances, class: &VolumeClass, node: &str) -> Option<i64> {
    let room = room(instances, true, &class.name_any(), node)?;
    room.available_bytes.into_iter().chain(room.largest_bytes).min()
}

/// Whether the claim says another size by now than what the volume was asked for with, or another class stands in the place of
/// the one that it was made from: nothing else of a claim or a class can change.
fn asks_otherwise(claim: &VolumeClaim, (volume, class): (&Volume, Option<&VolumeClass>)) -> bool {
    let (Some(create), Some(class)) = (&volume.spec.source.create, class) else { return false };
    let same_size = requested(claim).is_none_or(|bytes| bytes == create.required_bytes)
        && limit(claim).unwrap_or(0) == create.limit_bytes;
    let same_class =
        (&volume.spec.plugin, &create.parameters) == (&class.spec.plugin, &class.spec.parameters);
    !(same_size && same_class)
}

pub(super) fn owner(world: &World, claim: &VolumeClaim, volume: &Volume) -> Owner {
    let Some(of) = &volume.spec.claim_ref else { return Owner::Free };
    let (namespace, name) = name_of(claim);
    let by_name = namespace_or_default(&of.namespace) == namespace && of.name == name;
    if !by_name {
        return Owner::Other(format!("{}/{}", namespace_or_default(&of.namespace), of.name));
    }
    if of.uid == uid(claim) {
        return Owner::Mine;
    }
    let held = volume.status.as_ref().is_some_and(|s| !s.holders.is_empty());
    let attached = world.attachments.count(&format!("volume:{}", volume.name_any())) > 0;
    // An earlier claim of this name is gone, or there is none yet: the name in the reference is what a person wrote.
    if held || attached { Owner::Other(format!("{namespace}/{name} (an earlier one)")) } else { Owner::Free }
}

/// What the claim asks for and the volume is not.
fn mismatch(claim: &VolumeClaim, volume: &Volume) -> String {
    let mut faults = Vec::new();
    if let Some(mode) = claim.spec.access_modes.iter().find(|m| !volume.spec.access_modes.contains(m)) {
        faults.push(format!("it has no access mode {mode:?}"));
    }
    if claim.spec.volume_mode != volume.spec.volume_mode {
        faults.push(format!("its mode is {:?}", volume.spec.volume_mode));
    }
    // One that is bound may ask for more, and is given it.
    let bound = claim
        .status
        .as_ref()
        .is_some_and(|s| s.volume_name == volume.name_any() && s.phase == Some(ClaimPhase::Bound));
    if let (Some(wanted), Some(has), false) =
        (requested(claim), volume.bytes(), bound || volume.spec.source.create.is_some())
        && has < wanted
    {
        faults.push(format!("it has {}", quantity::display(has)));
    }
    faults.join(", ")
}

pub(super) fn requested(claim: &VolumeClaim) -> Option<i64> {
    claim.spec.resources.requests.as_ref().and_then(|s| quantity::bytes(&s.storage).ok())
}

pub(super) fn late(class: &VolumeClass) -> bool {
    class.spec.volume_binding_mode == VolumeBindingMode::WaitForFirstConsumer
}

fn limit(claim: &VolumeClaim) -> Option<i64> {
    claim.spec.resources.limits.as_ref().and_then(|s| quantity::bytes(&s.storage).ok())
}

/// The plugin of a claim for which a volume is made.
pub(super) fn plugin_named<'a>(claim: &'a VolumeClaim, class: Option<&'a VolumeClass>) -> &'a str {
    let ephemeral = claim.spec.ephemeral.as_ref().map(|ephemeral| ephemeral.plugin.as_str());
    ephemeral.or(class.map(|class| class.spec.plugin.as_str())).unwrap_or_default()
}

fn plugin_of(
    world: &World,
    claim: &VolumeClaim,
    (name, class): (&str, Option<&VolumeClass>),
    instances: &Instances,
) -> Option<Plugin> {
    let plugin = world.plugins.named(name)?;
    let load = |node: &str| {
        let hosted = world.volumes.by(&format!("host:{node}"));
        hosted.iter().filter(|v| v.spec.plugin == name).count()
    };
    let bytes = requested(claim).unwrap_or(0);
    let nodes = class.filter(|_| plugin.spec.controller_scope == ControllerScope::Node).map(|class| {
        let lacks = |node: &str| least_room(instances, class, node).is_some_and(|least| least < bytes);
        let all: Vec<_> = candidates(class, instances).map(|node| (node.to_owned(), load(node))).collect();
        // What plugins say of their room may be old news: where all lack it, the usual one is asked.
        let roomy: Vec<_> = all.iter().filter(|(node, _)| !lacks(node)).cloned().collect();
        if roomy.is_empty() || late(class) { all } else { roomy }
    });
    Some(Plugin {
        deleting: deleting(&*plugin),
        serves: instances.nodes(Service::Controller).len() > 0,
        creates: instances.all_can(Service::Controller, capability::CREATE_DELETE),
        lives: plan::Lives {
            persistent: plugin.spec.serves(LifecycleMode::Persistent),
            ephemeral: plugin.spec.serves(LifecycleMode::Ephemeral),
        },
        places: places(&plugin, instances),
        nodes,
    })
}

/// The places of the plugin's healthy instances, if what it makes has one: with `controllerScope: Node` where it is made, else
/// where it is asked for by its topology.
fn places(plugin: &crate::api::Plugin, instances: &Instances) -> Option<Vec<(String, Segments)>> {
    let local = plugin.spec.controller_scope == ControllerScope::Node;
    if !local && !instances.all_can(Service::Controller, capability::TOPOLOGY) {
        return None;
    }
    let service = if local { Service::Controller } else { Service::Node };
    Some(instances.nodes(service).map(|node| (node.to_owned(), segments(instances, node))).collect())
}

/// What the plugin's instance on a node reports of its place.
pub(super) fn segments(instances: &Instances, node: &str) -> Segments {
    let instance = instances.serving(Service::Node, node);
    instance.and_then(|i| i.status.as_ref()).map(|s| s.topology.clone()).unwrap_or_default()
}

/// Whether the volume is asked for where this node can use it; so it is when nothing is asked of the place.
pub(super) fn is_asked_for_at(world: &World, volume: &Volume, node: &str) -> bool {
    let Some(create) = &volume.spec.source.create else { return true };
    if !create.node_name.is_empty() {
        return create.node_name == node;
    }
    let here = segments(&Instances::of(world, &volume.spec.plugin), node);
    create.requisite.is_empty() || here.is_empty() || create.requisite.contains(&here)
}

/// The name of the next volume that is made for a claim.
fn next_name(claim: &VolumeClaim) -> String {
    let series = claim.status.as_ref().map_or(0, |status| status.series);
    format!("vol-{}-{}", uid(claim), series + 1)
}

/// The Volume that is there only while it is published, with everything that NodePublishVolume will be sent, frozen. It has one
/// user at a time, as in Kubernetes.
fn ephemeral_volume(claim: &VolumeClaim, of: &Ephemeral) -> Volume {
    let name = next_name(claim);
    let mut context = of.attributes.clone();
    context.insert(EPHEMERAL.to_owned(), "true".to_owned());
    // It begins as in Kubernetes.
    let handle = format!("csi-{name}");
    let secret = Some(&of.node_publish_secret_name).filter(|name| !name.is_empty());
    let namespace = claim.namespace().unwrap_or_default();
    let node_publish = secret.map(|name| SecretRef { namespace, name: name.clone() });
    Volume {
        metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
        spec: VolumeSpec {
            plugin: of.plugin.clone(),
            source: VolumeSource {
                ephemeral: Some(EphemeralSource { handle, context }),
                ..VolumeSource::default()
            },
            access_modes: vec![AccessMode::SingleNodeWriter],
            volume_mode: VolumeMode::Filesystem,
            fs_type: of.fs_type.clone(),
            mount_options: of.mount_options.clone(),
            secrets: SecretRefs { node_publish, ..SecretRefs::default() },
            claim_ref: Some(reference(claim)),
            ..VolumeSpec::default()
        },
        status: None,
    }
}

/// The Volume with everything that CreateVolume will be sent, frozen.
fn new_volume(
    world: &World,
    claim: &VolumeClaim,
    (class, node): (&VolumeClass, &str),
    source: Option<&sources::Found>,
) -> Volume {
    let status = claim.status.clone().unwrap_or_default();
    let name = next_name(claim);
    // Whether it can have them was looked at when it was decided to make it.
    let attributes = modifications::from_the_start(world, claim, &class.spec.plugin).unwrap_or_default();
    let instances = Instances::of(world, &class.spec.plugin);
    let selected = if node.is_empty() { &status.selected_node } else { node };
    let here = Some(segments(&instances, selected)).filter(|s| !s.is_empty());
    let topology = instances.all_can(Service::Controller, capability::TOPOLOGY);
    let (requisite, preferred) = if topology {
        // What is filled from another volume is made where that one is.
        let reached = source.and_then(sources::Found::origin).map(|origin| &origin.topology);
        let allowed = reached.filter(|terms| !terms.is_empty()).unwrap_or(&class.spec.allowed_topologies);
        place::requirement(allowed, here.as_ref(), &instances.topologies())
    } else {
        (Vec::new(), Vec::new())
    };
    let create = CreateSource {
        name: name.clone(),
        required_bytes: requested(claim).or(source.map(|found| found.bytes)).unwrap_or(0),
        limit_bytes: limit(claim).unwrap_or(0),
        parameters: class.spec.parameters.clone(),
        attributes: attributes.clone(),
        requisite,
        preferred,
        node_name: node.to_owned(),
        selected_node: status.selected_node.clone(),
        content: source.map(|found| found.content.clone()),
        newer_modes: Some(instances.all_can(Service::Controller, capability::CONTROLLER_MULTI_WRITER)),
    };
    Volume {
        metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
        spec: VolumeSpec {
            plugin: class.spec.plugin.clone(),
            source: VolumeSource { create: Some(create), ..VolumeSource::default() },
            access_modes: claim.spec.access_modes.clone(),
            volume_mode: claim.spec.volume_mode,
            fs_type: class.spec.fs_type.clone(),
            mount_options: class.spec.mount_options.clone(),
            secrets: class.spec.secrets.clone(),
            reclaim_policy: class.spec.reclaim_policy,
            claim_ref: Some(reference(claim)),
            size: None,
            attributes,
        },
        status: None,
    }
}

/// What is to be written of a claim.
struct News {
    status: Value,
    /// It is nothing but who uses it, and that has changed just now: it need not be in the way of what they wait for, and whoever
    /// has left may take the claim along. Or that it is in use by those who are about to leave with it.
    users: Option<Duration>,
}

/// The part of the status that is to be written, if any.
fn status(
    context: &Context,
    claim: &VolumeClaim,
    volume: Option<&Volume>,
    (verdict, size, attributes): (&Verdict, Option<&expansions::Look>, Option<&modifications::Look>),
) -> Option<News> {
    let old = claim.status.clone().unwrap_or_default();
    let smooth =
        verdict.step.is_some() || matches!(&verdict.ready, Err((word, _)) if word == plan::RELEASING);
    if deleting(claim) && smooth {
        return None;
    }
    let mut new = old.clone();
    new.phase = Some(verdict.phase);
    if let Some(volume) = volume.filter(|v| owner(&context.world, claim, v) == Owner::Mine) {
        new.volume_name = volume.name_any();
        match size {
            Some(size) => (new.capacity, new.allocated) = (size.capacity.clone(), size.allocated.clone()),
            None => new.capacity = volume.status.as_ref().map(|s| s.capacity.clone()).unwrap_or_default(),
        }
        if verdict.ready.is_ok() {
            // Until then another node may be chosen.
            selected(claim, Some(volume)).clone_into(&mut new.selected_node);
        }
        if volume.spec.source.existing.is_none() && claim.spec.volume_name.is_empty() {
            new.series = old.series.max(series_of(&new.volume_name));
        }
    }
    let (namespace, name) = name_of(claim);
    let by = context.world.allocations.by(&format!("claim:{namespace}/{name}"));
    new.used_by = by
        .iter()
        .map(|a| ObjectRef { namespace: namespace.clone(), name: a.name_any(), uid: uid(&**a) })
        .collect();
    let condition = match &verdict.ready {
        Ok(()) => Condition::new(READY, Truth::True, "Bound", "has a volume that can be used"),
        Err((reason, message)) => Condition::new(READY, Truth::False, reason, message),
    };
    let condition = condition.of_generation(claim.metadata.generation);
    new.conditions = with_condition(context, &old.conditions, condition);
    let told = [
        (EXPANDED, size.and_then(|size| size.condition.clone())),
        (MODIFIED, attributes.and_then(|look| look.condition.clone())),
    ];
    for (kind, condition) in told {
        match condition.map(|condition| condition.of_generation(claim.metadata.generation)) {
            Some(condition) => new.conditions = with_condition(context, &new.conditions, condition),
            None => new.conditions.retain(|condition| condition.kind != kind),
        }
    }
    new.volume_attributes_class_name = match attributes {
        Some(look) => look.has.clone(),
        None => new.volume_attributes_class_name,
    };
    // Who waits for a claim with them is written with the next news, and who is about to leave it after a moment.
    let users_only = VolumeClaimStatus { used_by: old.used_by.clone(), ..new.clone() } == old;
    let nothing = users_only && (new.used_by == old.used_by || verdict.phase != ClaimPhase::Bound);
    let last = old.conditions.iter().find(|condition| condition.kind == READY);
    let passing = plan::is_passing(verdict, last.map(|last| last.reason.as_str()), deleting(claim));
    let left = context.untold(&uid(claim), users_only && !nothing || passing);
    if nothing {
        return None;
    }
    let mut status = json!({
        "phase": new.phase, "volumeName": new.volume_name, "series": new.series, "capacity": new.capacity,
        "allocated": Some(&new.allocated).filter(|size| !size.is_empty()),
        "volumeAttributesClassName":
            Some(&new.volume_attributes_class_name).filter(|name| !name.is_empty()),
        "usedBy": new.used_by, "conditions": new.conditions,
    });
    if new.selected_node != old.selected_node {
        status["selectedNode"] = json!(new.selected_node);
    }
    Some(News { status, users: left })
}
