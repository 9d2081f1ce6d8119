//! Snapshots: what they are of, who makes their calls, where they stand, and when their object goes. docs/design/snapshots.md.
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource as _, ResourceExt};
use serde_json::{Value, json};

use super::cache::name_of;
use super::claims::{class_of, owner, usable, volume_of};
use super::context::Context;
use super::drive::Outcome;
use super::facts::{Instances, deleting, uid, with_condition};
use super::groups;
use super::hosts::{self, Hosted};
use super::ledger::PATIENCE;
use super::volumes::{in_doubt, late, not_made, too_late};
use super::world::{World, snapshot_words};
use super::write::Failure;
use crate::api::meta::{
    Condition, HANDLE_OF_ANOTHER, HANDLE_SHARED, ObjectRef, READY, Rung, Truth, Unrenewed, is_of_another,
    is_true, may_be_stale,
};
use crate::api::plugin::{ControllerScope, capability};
use crate::api::snapshot::SnapshotOf;
use crate::api::{Snapshot, SnapshotStatus, Volume, VolumeClaim, VolumeClass};
use crate::plan::Reason;
use crate::plan::claim::{Owner, RELEASING, SOURCE_NOT_READY};
use crate::plan::handle::{self, Twin, Whose};
use crate::plan::host::{Decision, asked_off};
use crate::plan::registry::Service;
use crate::plan::snapshot::{self as plan, Facts, Source, TAKING, Wanted};
use crate::plan::volume::{self, Farewell, Late};

/// One look at one snapshot.
pub(crate) async fn reconcile(object: Arc<Snapshot>, context: Arc<Context>) -> Outcome {
    let status = object.status.clone().unwrap_or_default();
    let asked_on = asked_on(&context, &object, &status);
    let anothers = anothers(&context.world, &object);
    let unused = not_to_be_used(&context.world, &object);
    let stale = unused == Some(NotUsed::Stale);
    let (ending, leaves) = match &unused {
        Some(NotUsed::Ending { other, leaves }) => (Some(other.as_str()), *leaves),
        Some(NotUsed::Stale) | None => (None, false),
    };
    let late = late_of(&context, &object, &status);
    let known = facts(&object, &status, (None, asked_on));
    let all = Facts { anothers: anothers.as_deref(), ending, leaves, stale, late, ..known };
    if plan::gone(&all) {
        tell_what_stays(&context, &object, &all).await;
        context.release(&*object).await?;
        return Ok(None);
    }
    let (copies, doubt) = copies(&context, &object, &status).await?;
    if copies != status.copies {
        let metadata = json!({ "resourceVersion": object.metadata.resource_version });
        let copies = Some(&copies).filter(|copies| !copies.is_empty());
        context.merge(&*object, json!({ "metadata": metadata, "status": { "copies": copies } })).await?;
        return Ok(None);
    }
    // Before it is judged.
    let silent = status.calling_host().map(|host| context.unrenewed(&host.node_name));
    let (new, waits, again) = match source(&context.world, &object, &status) {
        Err(reason) => (status.clone(), Some(reason), None),
        Ok(Some(of)) => {
            let mut object = (*object).clone();
            object.status = Some(SnapshotStatus { of: Some(of), ..status });
            context.replace_status(&object).await?;
            return Ok(None);
        }
        Ok(None) => host(&context, &object, &status, plan::is_asked_off(&all)),
    };
    let moves = new.controller != status.controller;
    let told = moves || new.asked_to_release != status.asked_to_release;
    let again = [again, doubt.then_some(PATIENCE), asked_on].into_iter().flatten().min();
    let word = ending.is_none() && !stale;
    let facts = facts(&object, &new, (waits.as_ref(), asked_on));
    let all = Facts { anothers: anothers.as_deref(), ending, leaves, stale, late, ..facts };
    let condition = plan::standing(&all);
    let other =
        told_of_handle(&all).or_else(|| shared(&context.world, &object).map(|other| handle::shared(&other)));
    let checked: Vec<_> = new.known_by().map(str::to_owned).collect();
    let awaited =
        word && status.handles_checked != checked && plan::waits_for_word(&all, !checked.is_empty());
    if [RELEASING, SOURCE_NOT_READY, TAKING].contains(&condition.reason.as_str())
        && !(told || awaited)
        && other.is_none()
        && let Some(left) = context.soon(&*object)
    {
        return Ok(Some(again.map_or(left, |again| again.min(left))));
    }
    let condition = condition.of_generation(object.metadata.generation);
    let mut conditions = with_condition(&context, &status.conditions, condition);
    match other {
        Some(other) => conditions = with_condition(&context, &conditions, other),
        None => conditions.retain(|condition| condition.kind != HANDLE_SHARED),
    }
    // Our cache has all that was written of any Snapshot before these handles: that was looked at for the condition.
    let says = word && (awaited || told || conditions != status.conditions);
    let checked = if says { checked } else { status.handles_checked.clone() };
    let new = SnapshotStatus { conditions, handles_checked: checked, ..new };
    // Who was neither asked to let go nor has done so is judged by its silence.
    let replaced = silent.filter(|_| moves);
    say(&context, &object, (new, told), replaced).await?;
    Ok(again)
}

/// The condition `HandleShared` of one that is not used by what is known of its handle.
fn told_of_handle(facts: &Facts<'_>) -> Option<Condition> {
    match (facts.anothers, facts.ending) {
        (Some(of), _) => Some(handle::anothers(of)),
        (None, Some(of)) if facts.leaves => Some(handle::ending(of)),
        (None, _) => facts.stale.then(handle::ended),
    }
}

/// Writes what a snapshot says, if it says something else; who is `told` to be its host, or is asked, by compare-and-swap.
async fn say(
    context: &Context,
    object: &Snapshot,
    (new, told): (SnapshotStatus, bool),
    replaced: Option<Unrenewed>,
) -> Result<(), Failure> {
    let status = object.status.clone().unwrap_or_default();
    if told {
        let mut object = object.clone();
        object.status = Some(new);
        match replaced {
            Some(silent) => context.replace_while(&object, silent).await?,
            None => context.replace_status(&object).await?,
        };
    } else if new != status {
        let checked = Some(&new.handles_checked).filter(|checked| !checked.is_empty());
        let mut patch = json!({ "status": { "conditions": new.conditions, "handlesChecked": checked } });
        if new.handles_checked != status.handles_checked {
            // It is said of this very state: nobody else's word on the handles is overwritten.
            patch["metadata"] = json!({ "resourceVersion": object.metadata.resource_version });
        }
        context.merge(object, patch).await?;
    }
    Ok(())
}

/// How long it is still to be found out what came of one that is kept. A driver that never says it keeps no object for ever: then
/// the backend may have one that only an audit names.
fn asked_on(context: &Context, object: &Snapshot, status: &SnapshotStatus) -> Option<Duration> {
    const MOST: Duration = Duration::from_secs(120);
    if is_named(object, status) || !deleting(object) || status.exists != Some(Rung::Unknown) {
        return None;
    }
    let since = context.world.snapshots.age(&name_of(object)).unwrap_or_default();
    MOST.checked_sub(since).filter(|left| !left.is_zero())
}

/// Tells of one that goes what stays at the backend.
async fn tell_what_stays(context: &Context, object: &Snapshot, facts: &Facts<'_>) {
    let status = object.status.clone().unwrap_or_default();
    let plugin = status.of.as_ref().map(|of| of.plugin.as_str()).unwrap_or_default();
    let how = (object.is_cut(), is_named(object, &status));
    let (reason, sentence) = match plan::farewell(facts, how) {
        Farewell::None => match not_made(plugin, &status.calls, "snapshots") {
            Some(told) => told,
            None => return,
        },
        Farewell::Anothers => {
            let (handle, other) = (&status.handle, facts.anothers.unwrap_or_default());
            let (whose, rest) = if object.is_group() {
                ("its handle, or that of a member, in", "; wharfline volume audit names what stays")
            } else {
                ("its handle", "")
            };
            let sentence = format!(
                "nothing was deleted at plugin \"{plugin}\": {whose} \"{handle}\" is that of {other}{rest}"
            );
            (HANDLE_OF_ANOTHER, sentence)
        }
        Farewell::Kept => {
            let (what, again) = if object.is_group() {
                ("group ", "")
            } else {
                ("", ", and can be used again: wharfline snapshot adopt")
            };
            ("Kept", format!("it stays with plugin \"{plugin}\" as {what}\"{}\"{again}", status.handle))
        }
        Farewell::KeptInDoubt => (
            "KeptInDoubt",
            in_doubt((plugin, "made it", "snapshots"), &status.handle, facts.late.is_doubt(facts.exists)),
        ),
        Farewell::Deleted => ("Deleted", too_late(plugin, &status.handle)),
    };
    context.tell::<Snapshot>(&reference(object), reason, &sentence).await;
}

/// Whether its deletion may have begun although it is kept by now.
fn late_of(context: &Context, object: &Snapshot, status: &SnapshotStatus) -> Late {
    let wanted = Wanted::of(deleting(object), object.is_cut(), object.spec.deletion_policy);
    let named = object.is_cut() && !status.handle.is_empty() && status.controller.is_some();
    late(context, object, (named && wanted == Wanted::Forgotten, status.calling_host()))
}

/// Whether it is known what the plugin calls it.
fn is_named(object: &Snapshot, status: &SnapshotStatus) -> bool {
    !status.handle.is_empty() || !object.is_cut()
}

fn facts<'a>(
    object: &Snapshot,
    status: &'a SnapshotStatus,
    (waits, asked_on): (Option<&'a Reason>, Option<Duration>),
) -> Facts<'a> {
    Facts {
        deleting: deleting(object),
        wanted: Wanted::of(deleting(object), object.is_cut(), object.spec.deletion_policy),
        exists: status.exists,
        known: asked_on.is_none(),
        ready: status.ready,
        copy: status.copies.first().map(String::as_str),
        anothers: None,
        ending: None,
        leaves: false,
        stale: false,
        late: Late::No,
        waits,
        taking: status.taking.as_ref().filter(|told| told.status != Truth::True),
    }
}

/// What is named as being filled from this snapshot, and whether that is in doubt. One that is on its way out takes no new ones.
/// What our cache does not show is asked for at the server: it may only be late.
async fn copies(
    context: &Context,
    object: &Snapshot,
    status: &SnapshotStatus,
) -> Result<(Vec<String>, bool), Failure> {
    let world = &context.world;
    let mut copies: Vec<_> =
        world.volumes.by(&format!("copy:{}", uid(object))).iter().map(|copy| copy.name_any()).collect();
    copies.retain(|copy| !deleting(object) || status.copies.contains(copy));
    let mut doubt = false;
    for name in status.copies.iter().filter(|name| world.volumes.named(name).is_none()) {
        let found: Option<Value> = context.read(&Volume::url_path(&(), None), name).await?;
        if found.is_some() {
            copies.push(name.clone());
            doubt = true;
        }
    }
    copies.sort();
    Ok((copies, doubt))
}

/// What is to be frozen; nothing when that is done.
fn source(world: &World, object: &Snapshot, status: &SnapshotStatus) -> Result<Option<SnapshotOf>, Reason> {
    if status.of.is_some() || deleting(object) {
        return Ok(None);
    }
    if !object.is_cut() {
        return there(world, object).map(Some);
    }
    if let Some(selector) = &object.spec.source.selector {
        return groups::source(world, object, selector).map(Some);
    }
    let name = &object.spec.source.claim_name;
    let (claim, volume) = pictured(world, &name_of(object).0, name)?;
    let plugin = &volume.spec.plugin;
    let instances = Instances::of(world, plugin);
    if instances.nodes(Service::Controller).len() > 0
        && !instances.all_can(Service::Controller, capability::SNAPSHOT)
    {
        return Err(Reason::PluginLacks { plugin: plugin.clone(), capability: "CREATE_DELETE_SNAPSHOT" });
    }
    let named = &object.spec.volume_class_name;
    let class =
        if named.is_empty() { class_behind(world, &claim, &volume)? } else { settings(world, named)? };
    // The parameters are those of a driver: another plugin's say nothing to it.
    let class = class.filter(|class| class.spec.plugin == *plugin);
    if class.is_none() && !named.is_empty() {
        let details = format!("class \"{named}\" is not of its plugin \"{plugin}\"; choose one that is");
        return Err(Reason::SourceMismatch { from: format!("claim \"{name}\""), details });
    }
    let asked_with = settings_for(&volume, class.as_deref(), named);
    Ok(Some(SnapshotOf {
        plugin: plugin.clone(),
        volume: volume.name_any(),
        uid: uid(&*volume),
        handle: handle(&volume),
        volume_mode: Some(volume.spec.volume_mode),
        node_name: volume.spec.source.home().unwrap_or_default().to_owned(),
        ..asked_with
    }))
}

/// The claim of this name and its volume, if that can be pictured.
pub(super) fn pictured(
    world: &World,
    namespace: &str,
    name: &str,
) -> Result<(Arc<VolumeClaim>, Arc<Volume>), Reason> {
    let claim = world.claims.get(&(namespace.to_owned(), name.to_owned()));
    let volume = claim.as_ref().and_then(|claim| {
        volume_of(world, claim).filter(|volume| owner(world, claim, volume) == Owner::Mine)
    });
    let state = match (claim, volume) {
        (None, _) => Source::Missing(name.to_owned()),
        (Some(claim), _) if deleting(&*claim) => Source::Leaving("VolumeClaim", name.to_owned()),
        (Some(_), None) => Source::NotReady("it has no volume yet".to_owned()),
        (Some(_), Some(volume)) if deleting(&*volume) => Source::Leaving("Volume", volume.name_any()),
        (Some(_), Some(volume)) if volume.spec.source.ephemeral.is_some() => {
            Source::NotReady("it is ephemeral, and nothing can be made of such a one".to_owned())
        }
        (Some(claim), Some(volume)) if handle(&volume).is_empty() || !usable(world, &claim, &volume) => {
            Source::NotReady(format!("its volume \"{}\" cannot be used yet", volume.name_any()))
        }
        (Some(claim), Some(volume)) => return Ok((claim, volume)),
    };
    Err(plan::held_up(name, state))
}

/// What the plugin calls the volume; empty while nobody knows.
pub(super) fn handle(volume: &Volume) -> String {
    volume.status.as_ref().map(|status| status.handle.clone()).unwrap_or_default()
}

/// What is to be frozen of one that was there before.
fn there(world: &World, object: &Snapshot) -> Result<SnapshotOf, Reason> {
    let source = &object.spec.source;
    let class = settings(world, &object.spec.volume_class_name)?;
    if let Some(class) = class.as_ref().filter(|class| class.spec.plugin != source.plugin) {
        let details = format!("class \"{}\" is not of it; choose one that is", class.name_any());
        return Err(Reason::SourceMismatch { from: format!("plugin \"{}\"", source.plugin), details });
    }
    if let Some(other) = before(world, object) {
        return Err(Reason::SnapshotShared { other });
    }
    let missing = || Reason::NotFound { kind: "Plugin", name: source.plugin.clone() };
    let plugin = world.plugins.named(&source.plugin).ok_or_else(missing)?;
    if plugin.spec.controller_scope == ControllerScope::Node && source.node_name.is_empty() {
        return Err(Reason::NodeNotNamed { plugin: source.plugin.clone() });
    }
    Ok(SnapshotOf {
        plugin: source.plugin.clone(),
        node_name: source.node_name.clone(),
        ..with_settings(class.as_deref())
    })
}

/// Another Snapshot that is the same to the plugin, if that one comes first.
fn before(world: &World, object: &Snapshot) -> Option<String> {
    let place = |snapshot: &Snapshot| {
        let status = snapshot.status.as_ref();
        let taken_up = status.is_some_and(|status| status.of.is_some());
        let ready = status.is_some_and(|status| is_true(&status.conditions, READY));
        let born = snapshot.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (plan::rank(snapshot.is_cut(), taken_up, ready), born, uid(snapshot))
    };
    let first = others(world, object).filter(|twin| place(twin) < place(object));
    first.min_by_key(|twin| place(twin)).map(|first| in_words(&first))
}

/// Whose handle a Snapshot has that was cut for its object, if that is another's: it is never used.
pub(super) fn anothers(world: &World, object: &Snapshot) -> Option<String> {
    (whose(world, object) == Whose::Anothers).then(|| first_of(world, object, Twin::Keeps))
}

/// Why a Snapshot is not used, though nobody else has what it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotUsed {
    /// Of another one of its handle it is to be said first, or that `leaves`.
    Ending { other: String, leaves: bool },
    /// That has gone, and it is asked for once more.
    Stale,
}

/// The same, if that is so.
pub(super) fn not_to_be_used(world: &World, object: &Snapshot) -> Option<NotUsed> {
    match whose(world, object) {
        Whose::Own | Whose::Anothers => None,
        Whose::Stale => Some(NotUsed::Stale),
        Whose::Unsaid => {
            let leaves = others(world, object).any(|other| twin(object, &other) == Some(Twin::Leaving));
            let which = if leaves { Twin::Leaving } else { Twin::Younger };
            Some(NotUsed::Ending { other: first_of(world, object, which), leaves })
        }
    }
}

/// The first Snapshot of its handle that is this to it.
fn first_of(world: &World, object: &Snapshot, wanted: Twin) -> String {
    let first = others(world, object).find(|other| twin(object, other) == Some(wanted));
    first.map_or_else(|| "another one".to_owned(), |first| in_words(&first))
}

/// The Snapshots that are the same to the plugin as this one, or of which one picture is, itself left out.
fn twins(world: &World, object: &Snapshot) -> Vec<Arc<Snapshot>> {
    let plugin = plugin_of(object).unwrap_or_default();
    let mut all: Vec<_> = snapshot_words(object).iter().flat_map(|word| world.snapshots.by(word)).collect();
    all.retain(|twin| uid(&**twin) != uid(object) && !world.are_apart(plugin, twin.home(), object.home()));
    all
}

/// The same, but for those that were given what is another's: these are nothing to the plugin.
fn others(world: &World, object: &Snapshot) -> impl Iterator<Item = Arc<Snapshot>> {
    twins(world, object).into_iter().filter(|other| said(other) != Some(Whose::Anothers))
}

/// What was said of whose the handles are that a Snapshot was given.
fn said(object: &Snapshot) -> Option<Whose> {
    let status = object.status.as_ref().filter(|status| object.is_cut() && !status.handle.is_empty())?;
    if is_of_another(&status.conditions) {
        return Some(Whose::Anothers);
    }
    status.is_said_own().then_some(Whose::Own)
}

/// Whose the handles are that its plugin gave it. One that was there before is what a person says.
fn whose(world: &World, object: &Snapshot) -> Whose {
    if !object.is_cut() {
        return Whose::Own;
    }
    let twins = others(world, object).filter_map(|other| twin(object, &other));
    // What was said of a handle that it had before is no matter of the next one.
    let named = object.status.as_ref().filter(|status| !status.handle.is_empty());
    let conditions = named.map(|status| status.conditions.as_slice()).unwrap_or_default();
    handle::whose(said(object), conditions, twins)
}

/// What another Snapshot of its handle is to one of which nothing is said yet. Of those that were registered the one that was taken up
/// counts.
fn twin(object: &Snapshot, other: &Snapshot) -> Option<Twin> {
    let born = |one: &Snapshot| (one.metadata.creation_timestamp.as_ref().map(|time| time.0), uid(one));
    let status = other.status.as_ref();
    if !other.is_cut() && status.is_none_or(|status| status.of.is_none()) {
        return None;
    }
    let wanted = Wanted::of(deleting(other), other.is_cut(), other.spec.deletion_policy);
    handle::twin(handle::Other {
        registered: !other.is_cut(),
        said: said(other),
        older: born(other) < born(object),
        leaving: wanted == Wanted::Deleted && status.is_none_or(|status| status.copies.is_empty()),
        gone: status.and_then(|status| status.exists) == Some(Rung::Down),
        stale: status.is_some_and(|status| may_be_stale(&status.conditions)),
    })
}

/// Another Snapshot that is the same to the plugin, and would lose its data with this one. One that a person registered is that, too, while
/// this one is used in its place.
fn shared(world: &World, object: &Snapshot) -> Option<String> {
    let loses = |twin: &Arc<Snapshot>| {
        let wanted = Wanted::of(deleting(&**twin), twin.is_cut(), twin.spec.deletion_policy);
        // Of what was cut and is not said to be its own, that is said first.
        let taken_up = twin.status.as_ref().is_some_and(|status| status.of.is_some());
        let has = if twin.is_cut() { said(twin) == Some(Whose::Own) } else { taken_up || object.is_cut() };
        has && wanted != Wanted::Deleted
    };
    others(world, object).find(loses).map(|twin| in_words(&twin))
}

fn plugin_of(object: &Snapshot) -> Option<&str> {
    let of = object.status.as_ref().and_then(|status| status.of.as_ref());
    if object.is_cut() { of.map(|of| of.plugin.as_str()) } else { Some(&object.spec.source.plugin) }
}

fn in_words(snapshot: &Snapshot) -> String {
    let (namespace, name) = name_of(snapshot);
    format!("snapshot {namespace}/{name}")
}

/// The class whose parameters count for a snapshot that names none: that which the claim names, or, of a volume that was made
/// for it, the default one. One that is missing is waited for: a snapshot without its parameters would be another one.
pub(super) fn class_behind(
    world: &World,
    claim: &VolumeClaim,
    volume: &Volume,
) -> Result<Option<Arc<VolumeClass>>, Reason> {
    if !claim.spec.volume_class_name.is_empty() {
        return settings(world, &claim.spec.volume_class_name);
    }
    Ok(volume.spec.source.create.as_ref().and_then(|_| class_of(world, claim)))
}

/// The class that a snapshot names itself; none where it names none.
pub(super) fn settings(world: &World, name: &str) -> Result<Option<Arc<VolumeClass>>, Reason> {
    if name.is_empty() {
        return Ok(None);
    }
    let found = world.classes.named(name);
    found.map(Some).ok_or_else(|| Reason::NotFound { kind: "VolumeClass", name: name.to_owned() })
}

/// What a volume is pictured with: the parameters of the class, and its Secret where the snapshot names that class itself. A
/// volume has its own Secrets for life, whatever became of its class.
pub(super) fn settings_for(volume: &Volume, class: Option<&VolumeClass>, named: &str) -> SnapshotOf {
    let asked_with = with_settings(class);
    let own = volume.spec.secrets.snapshot.clone();
    SnapshotOf { secret: if named.is_empty() { own } else { asked_with.secret }, ..asked_with }
}

fn with_settings(class: Option<&VolumeClass>) -> SnapshotOf {
    SnapshotOf {
        parameters: class.map(|class| class.spec.snapshot_parameters.clone()).unwrap_or_default(),
        secret: class.and_then(|class| class.spec.secrets.snapshot.clone()),
        ..SnapshotOf::default()
    }
}

/// Who shall make its calls, why nobody does, and when to ask again.
fn host(
    context: &Context,
    object: &Snapshot,
    status: &SnapshotStatus,
    off: bool,
) -> (SnapshotStatus, Option<Reason>, Option<std::time::Duration>) {
    let Some(of) = &status.of else { return (status.clone(), Some(Reason::NoHost), None) };
    let volume = context.world.volumes.named(&of.volume).filter(|volume| uid(&**volume) == of.uid);
    let current = status.controller.as_ref();
    if object.is_cut() && current.is_none() {
        let held = of.volumes().find_map(|(name, volume)| held_back(&context.world, object, (name, volume)));
        if held.is_some() {
            return (status.clone(), held, None);
        }
    }
    // Until it is ready its calls are about its volume as well.
    let over = deleting(object) && status.exists == Some(crate::api::meta::Rung::Down);
    let with_volume = object.is_cut() && !status.ready && !over;
    let its =
        volume.as_ref().filter(|_| with_volume).and_then(|v| v.status.as_ref()?.calling_host().cloned());
    let pinned = its.as_ref().map(|host| host.node_name.as_str());
    let only = pinned.or(Some(of.node_name.as_str())).filter(|node| !node.is_empty());
    let (decision, again) = hosts::decide(
        context,
        &Hosted {
            plugin: &of.plugin,
            deleting: deleting(object),
            current,
            calling: status.calling_host(),
            asked: status.asked_to_release,
            released: status.released_epoch,
            only,
            follows: pinned.is_some(),
            preferred: groups::preferred(&context.world, object, of),
            needed: true,
        },
    );
    let decision = if off { asked_off(current, status.asked_to_release) } else { decision };
    let mut new = status.clone();
    let mut waits = None;
    match decision {
        Decision::Assign(host) => {
            new.controller = Some(host);
            new.asked_to_release = None;
        }
        Decision::AskToRelease => new.asked_to_release = current.map(|host| host.epoch),
        Decision::TakeBack => new.asked_to_release = None,
        Decision::Wait(reason) if status.calling_host().is_none() => waits = Some(reason),
        Decision::Keep | Decision::Wait(_) | Decision::Unneeded => {}
    }
    (new, waits, again)
}

/// Why nobody makes calls for it yet: this volume is to name it, so that nobody deletes that under it.
fn held_back(world: &World, object: &Snapshot, (name, volume): (&str, &str)) -> Option<Reason> {
    let source = world.volumes.named(name).filter(|source| uid(&**source) == volume);
    let named = |source: &Volume| {
        source.status.as_ref().is_some_and(|s| s.snapshots.iter().any(|one| one.uid == uid(object)))
    };
    volume::held_back("Volume", name, source.map(|source| (deleting(&*source), named(&source))))
}

/// The Snapshots that are being cut of this volume, for its status: their names and uids.
pub(super) fn of_volume(world: &World, volume: &Volume) -> Vec<ObjectRef> {
    let cut = world.snapshots.by(&format!("cut:{}", uid(volume)));
    cut.iter().map(|snapshot| reference(snapshot)).collect()
}

/// How a snapshot is named elsewhere.
pub(super) fn reference(snapshot: &Snapshot) -> ObjectRef {
    let (namespace, name) = name_of(snapshot);
    ObjectRef { namespace, name, uid: uid(snapshot) }
}
