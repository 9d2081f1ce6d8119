//! Volumes: who makes their controller calls, where they stand, and when their object goes.
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource as _, ResourceExt};
use serde_json::{Value, json};

use super::context::Context;
use super::drive::Outcome;
use super::facts::{deleting, uid, with_condition};
use super::ledger::PATIENCE;
use super::nodes::pulse;
use super::world::{World, namespace_or_default};
use super::write::Failure;
use super::{hosts, snapshots};
use crate::api::claim::ClaimPhase;
use crate::api::meta::{
    AsSeen, Call, HANDLE_OF_ANOTHER, HANDLE_SHARED, Host, KEPT_LATE, ObjectRef, READY, Rung, Truth,
    Unrenewed, is_of_another, is_true, may_be_stale,
};
use crate::api::{Snapshot, Volume, VolumeClaim, VolumeStatus};
use crate::plan::Reason;
use crate::plan::handle::{self, Twin, Whose};
use crate::plan::host::{self, Decision};
use crate::plan::volume::{self, Claim, Facts, Farewell, Late};

/// The volume as what another write goes by.
pub(super) fn as_seen(object: &Volume) -> AsSeen {
    let plural = Volume::plural(&()).into_owned();
    AsSeen { plural, name: object.name_any(), version: object.resource_version() }
}

/// One look at one volume.
pub(crate) async fn reconcile(object: Arc<Volume>, context: Arc<Context>) -> Outcome {
    let status = object.status.clone().unwrap_or_default();
    // Before anybody else is made host of what is not there any more.
    if deleting(&*object) {
        let facts = looked_at(&context, &object, &status, None);
        if volume::gone(&facts) {
            return let_go(&context, &object, &facts).await;
        }
    }
    let doubt = match enter(&context, &object, &status).await? {
        Entered::Now => return Ok(None),
        Entered::Before { doubt } => doubt,
    };
    // Before it is judged.
    let silent = status.calling_host().map(|host| context.unrenewed(&host.node_name));
    let (mut decision, again) = hosts::of_volume(&context, &object, &status);
    if volume::is_asked_off(&looked_at(&context, &object, &status, None)) {
        decision = host::asked_off(status.controller.as_ref(), status.asked_to_release);
    }
    let again = [again, doubt.then_some(PATIENCE)].into_iter().flatten().min();
    let waits = match &decision {
        Decision::Wait(reason) if status.calling_host().is_none() => Some(reason),
        _ => None,
    };
    // Who was neither asked to let go nor has done so is judged by its silence.
    let replaced = silent.filter(|_| matches!(decision, Decision::Assign(_)));
    let mut new = status.clone();
    match &decision {
        Decision::Assign(host) => {
            new.controller = Some(host.clone());
            new.asked_to_release = None;
        }
        Decision::AskToRelease => new.asked_to_release = status.controller.as_ref().map(|host| host.epoch),
        Decision::TakeBack => new.asked_to_release = None,
        Decision::Keep | Decision::Wait(_) | Decision::Unneeded => {}
    }
    let told = (new.controller != status.controller) || (new.asked_to_release != status.asked_to_release);
    let facts = looked_at(&context, &object, &new, waits);
    if volume::gone(&facts) {
        return let_go(&context, &object, &facts).await;
    }
    if volume::unwanted(&facts) && claim_is_gone(&context, &object).await? {
        context.delete_as_seen(&*object).await?;
        return Ok(None);
    }
    let (phase, condition) = volume::standing(&facts);
    let word = Word::of(&context.world, &object, &facts);
    let passing = volume::is_passing(status.phase, phase, &condition.reason);
    if !told && let Some(left) = unsaid(&context, &object, &facts, passing && word != Word::Awaited) {
        return Ok(Some(again.map_or(left, |again| again.min(left))));
    }
    let condition = condition.of_generation(object.metadata.generation);
    let mut conditions = with_condition(&context, &status.conditions, condition);
    match volume::shared(&facts) {
        Some(shared) => conditions = with_condition(&context, &conditions, shared),
        None => conditions.retain(|c| c.kind != HANDLE_SHARED),
    }
    new.phase = Some(phase);
    new.conditions = conditions;
    if word == Word::Awaited || word == Word::Free && (told || new != status) {
        // Our cache has all that was written of any Volume before this handle: that was looked at for the condition.
        new.handle_checked.clone_from(&status.handle);
    }
    say(&context, &object, (new, told), replaced).await?;
    Ok(again)
}

/// Writes what a volume says, if it says something else; who is `told` to be its host, or is asked, by compare-and-swap.
async fn say(
    context: &Context,
    object: &Volume,
    (new, told): (VolumeStatus, bool),
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
        let checked = Some(&new.handle_checked).filter(|handle| !handle.is_empty());
        let mut patch = json!({ "status": { "phase": new.phase, "conditions": new.conditions, "handleChecked": checked } });
        if new.handle_checked != status.handle_checked {
            // It is said of this very state: nobody else's word on the handle is overwritten.
            patch["metadata"] = json!({ "resourceVersion": object.metadata.resource_version });
        }
        context.merge(object, patch).await?;
    }
    Ok(())
}

/// Whether it can be said whose the handle of a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// Not yet.
    Unsaid,
    /// It goes with the next write.
    Free,
    /// Its host waits for it.
    Awaited,
}

impl Word {
    fn of(world: &World, object: &Volume, facts: &Facts<'_>) -> Self {
        let status = object.status.as_ref();
        let [handle, checked] = [status.map(|s| &s.handle), status.map(|s| &s.handle_checked)];
        let named = handle.is_some_and(|handle| !handle.is_empty());
        match whose(world, object) {
            Some(Whose::Unsaid | Whose::Stale) => Self::Unsaid,
            // What it is filled from waits for it, too.
            _ if handle != checked
                && (volume::waits_for_word(facts, named) || object.unfinished().is_some()) =>
            {
                Self::Awaited
            }
            _ => Self::Free,
        }
    }
}

/// How long nothing is said of a volume: of what is `passing`, and to who is refused, for the other one knows of it first: nothing is
/// deleted under it from then on.
fn unsaid(context: &Context, object: &Volume, facts: &Facts<'_>, passing: bool) -> Option<Duration> {
    // Of what was registered nothing is deleted.
    let first = facts.before.as_ref().filter(|_| !facts.deleting && !is_given(object));
    let first = first.and_then(|first| context.world.volumes.named(first));
    if first.is_some_and(|first| is_given(&first) && !knows_of_another(&first)) {
        return Some(PATIENCE);
    }
    context.soon(object).filter(|_| passing)
}

/// Removes the finalizer, and tells what stays at the backend.
async fn let_go(context: &Context, object: &Volume, facts: &Facts<'_>) -> Outcome {
    let plugin = &object.spec.plugin;
    let handle = object.status.as_ref().map(|status| status.handle.as_str()).unwrap_or_default();
    let told = match volume::farewell(facts, !handle.is_empty()) {
        Farewell::None => object.status.as_ref().and_then(|s| not_made(plugin, &s.calls, "volumes")),
        Farewell::Kept => {
            let node = object.spec.source.home().map(|node| format!(" of node {node}")).unwrap_or_default();
            let sentence = format!(
                "its data stays with plugin \"{plugin}\"{node} as \"{handle}\", and can be used again: wharfline volume adopt"
            );
            Some(("Kept", sentence))
        }
        Farewell::KeptInDoubt => {
            let sentence = in_doubt(
                (plugin, "made it", "volumes"),
                handle,
                facts.late.is_doubt(Some(volume::exists(facts))),
            );
            Some(("KeptInDoubt", sentence))
        }
        Farewell::Deleted => Some(("Deleted", too_late(plugin, handle))),
        Farewell::Anothers => {
            let other = facts.anothers.as_deref().unwrap_or_default();
            let sentence = format!(
                "nothing was deleted at plugin \"{plugin}\": its handle \"{handle}\" is that of {other}"
            );
            Some((HANDLE_OF_ANOTHER, sentence))
        }
    };
    if let Some((reason, sentence)) = told {
        let about = ObjectRef { namespace: String::new(), name: object.name_any(), uid: uid(object) };
        context.tell::<Volume>(&about, reason, &sentence).await;
    }
    context.release(object).await?;
    Ok(None)
}

/// What a volume that is about to be made says from the start, if there is anything.
pub(super) fn first_status(context: &Context, object: &Volume) -> Option<VolumeStatus> {
    let host = hosts::first(context, object)?;
    let mut status = VolumeStatus { controller: Some(host), ..VolumeStatus::default() };
    let (phase, condition) = volume::standing(&gather(&context.world, object, &status, None));
    // It is the first generation.
    status.conditions = with_condition(context, &[], condition.of_generation(Some(1)));
    status.phase = Some(phase);
    Some(status)
}

/// Adds to a status that is written anyway that the volume can be used, if that is so and not said yet.
pub(super) fn add_ready(context: &Context, object: &mut Volume) {
    let status = object.status.clone().unwrap_or_default();
    let facts = gather(&context.world, object, &status, None);
    let (phase, condition) = volume::standing(&facts);
    if condition.status != Truth::True || status.phase == Some(phase) {
        return;
    }
    let condition = condition.of_generation(object.metadata.generation);
    let conditions = with_condition(context, &status.conditions, condition);
    let status = object.status.get_or_insert_default();
    (status.phase, status.conditions) = (Some(phase), conditions);
    // It is ready: so it is its own.
    status.handle_checked.clone_from(&status.handle);
}

/// Whether all that is being made of a volume is named in it.
enum Entered {
    /// It was written just now.
    Now,
    /// It was; some of it may be gone all the same.
    Before { doubt: bool },
}

/// Names in a volume what is being made of it, and nothing else.
async fn enter(context: &Context, object: &Volume, status: &VolumeStatus) -> Result<Entered, Failure> {
    let copies = copies(&context.world, object, status);
    let (cut, doubt) = snapshots(context, object, status).await?;
    if copies == status.copies && cut == status.snapshots {
        return Ok(Entered::Before { doubt });
    }
    // On this very state: who decided on it that nothing is made of this volume is refused then.
    let metadata = json!({ "resourceVersion": object.metadata.resource_version });
    let copies = Some(&copies).filter(|copies| !copies.is_empty());
    let status = json!({ "copies": copies, "snapshots": Some(&cut).filter(|cut| !cut.is_empty()) });
    context.merge(object, json!({ "metadata": metadata, "status": status })).await?;
    Ok(Entered::Now)
}

/// What is named as being filled from this volume. One that is on its way out takes no new ones.
fn copies(world: &World, object: &Volume, status: &VolumeStatus) -> Vec<String> {
    let mut copies: Vec<_> =
        world.volumes.by(&format!("copy:{}", uid(object))).iter().map(|copy| copy.name_any()).collect();
    copies.retain(|copy| !deleting(object) || status.copies.contains(copy));
    copies
}

/// What is named as being cut of this volume, and whether that is in doubt: what our cache does not show is asked for at the
/// server, for it may only be late.
async fn snapshots(
    context: &Context,
    object: &Volume,
    status: &VolumeStatus,
) -> Result<(Vec<ObjectRef>, bool), Failure> {
    let mut cut = snapshots::of_volume(&context.world, object);
    cut.retain(|one| !deleting(object) || status.snapshots.contains(one));
    let mut doubt = false;
    // It was entered once it was known what it is cut of: one without that is as our cache had it before.
    let known = |snapshot: &Snapshot| snapshot.status.as_ref().is_some_and(|status| status.of.is_some());
    let unseen = |one: &&ObjectRef| {
        let found = context.world.snapshots.get(&(one.namespace.clone(), one.name.clone()));
        found.is_none_or(|found| uid(&*found) != one.uid || !known(&found))
    };
    for one in status.snapshots.iter().filter(unseen) {
        let path = Snapshot::url_path(&(), Some(&one.namespace));
        let found: Option<Value> = context.read(&path, &one.name).await?;
        if found.is_some_and(|found| found["metadata"]["uid"].as_str() == Some(&one.uid)) {
            cut.push(one.clone());
            doubt = true;
        }
    }
    cut.sort();
    Ok((cut, doubt))
}

/// Why a volume that is filled from another, or from a snapshot, gets no host yet.
pub(super) fn held_back(world: &World, object: &Volume) -> Option<Reason> {
    let content = object.spec.source.create.as_ref()?.content.as_ref()?;
    if let Some((namespace, name)) = content.snapshot.split_once('/') {
        let source = world.snapshots.get(&(namespace.to_owned(), name.to_owned()));
        let source = source.filter(|source| uid(&**source) == content.uid);
        let named = |source: &Snapshot| {
            source.status.as_ref().is_some_and(|status| status.copies.contains(&object.name_any()))
        };
        let seen = source.map(|source| (deleting(&*source), named(&source)));
        return volume::held_back("Snapshot", name, seen);
    }
    let source = world.volumes.named(&content.volume).filter(|source| uid(&**source) == content.uid);
    let named = |source: &Volume| {
        source.status.as_ref().is_some_and(|status| status.copies.contains(&object.name_any()))
    };
    volume::held_back("Volume", &content.volume, source.map(|source| (deleting(&*source), named(&source))))
}

/// Something that is being made of a volume, for people.
fn made_of(status: &VolumeStatus) -> Option<String> {
    let snapshot = status.snapshots.first().map(|one| format!("snapshot {}/{}", one.namespace, one.name));
    status.copies.first().map(|copy| format!("volume \"{copy}\"")).or(snapshot)
}

/// Asks the server itself for the claim: a cache that shows none may be older than the volume.
async fn claim_is_gone(context: &Context, object: &Volume) -> Result<bool, Failure> {
    let Some(of) = &object.spec.claim_ref else { return Ok(false) };
    let path = VolumeClaim::url_path(&(), Some(namespace_or_default(&of.namespace)));
    let found: Option<Value> = context.read(&path, &of.name).await?;
    Ok(found.is_none_or(|claim| claim["metadata"]["uid"].as_str() != Some(&of.uid)))
}

/// Whether it can be used: its condition says so, or will by the facts, one write later. To wait for that write would put
/// it in every claim's way.
pub(crate) fn ready(world: &World, object: &Volume) -> bool {
    let status = object.status.clone().unwrap_or_default();
    let facts = gather(world, object, &status, Some(&Reason::NoHost));
    let said = is_true(&status.conditions, READY) && facts.before.is_none();
    said || volume::standing(&facts).1.status == Truth::True
}

fn gather<'a>(
    world: &World,
    object: &'a Volume,
    status: &'a VolumeStatus,
    no_host: Option<&'a Reason>,
) -> Facts<'a> {
    let mut facts = alone(world, object, status, no_host);
    let place = |object: &Volume, facts: &Facts<'_>| {
        let born = object.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let ready = object.status.as_ref().is_some_and(|status| is_true(&status.conditions, READY));
        (volume::rank(facts, ready), born, uid(object))
    };
    let own = place(object, &facts);
    let other_one = |twin| {
        let name = first_of(world, object, twin).map(|first| format!("volume \"{}\"", first.name_any()));
        Some(name.unwrap_or_else(|| "another volume".to_owned()))
    };
    match whose(world, object) {
        Some(Whose::Anothers) => {
            facts.anothers = other_one(Twin::Keeps);
            return facts;
        }
        Some(Whose::Unsaid) => {
            let leaving = first_of(world, object, Twin::Leaving);
            facts.leaves = leaving.is_some();
            let which = if facts.leaves { Twin::Leaving } else { Twin::Younger };
            facts.ending = other_one(which);
            return facts;
        }
        Some(Whose::Stale) => {
            facts.stale = true;
            return facts;
        }
        Some(Whose::Own) | None => {}
    }
    let mut first = None;
    // Of what was given its handle and is not said to be its own, that is said first.
    for other in others(world, object).filter(|other| !is_given(other) || said(other) == Some(Whose::Own)) {
        let status = other.status.clone().unwrap_or_default();
        let theirs = alone(world, &other, &status, None);
        if !theirs.deleting || theirs.kept {
            facts.shared = Some(other.name_any());
        }
        let place = place(&other, &theirs);
        // Nothing is used that may be deleted under it.
        let unaware = !is_given(object) && is_given(&other) && !knows_of_another(&other);
        // Nor of what its plugin may be deleting, though it is kept by now.
        let late = deleting(&*other)
            && other.annotations().contains_key(KEPT_LATE)
            && other.status.as_ref().is_some_and(|status| status.controller.is_some());
        if (place < own || unaware || late && !volume::keeps_its_place(own.0))
            && first.as_ref().is_none_or(|(before, _)| place < *before)
        {
            first = Some((place, other.name_any()));
        }
    }
    facts.before = first.map(|(_, name)| name);
    facts
}

/// Whether its plugin gave it its handle, or is to.
fn is_given(object: &Volume) -> bool {
    object.spec.source.create.is_some()
}

/// The Volumes of its handle, but for those that were given what is another's: these are nothing to the plugin.
fn others(world: &World, object: &Volume) -> impl Iterator<Item = Arc<Volume>> {
    world.twins(object).into_iter().filter(|other| said(other) != Some(Whose::Anothers))
}

/// What was said of whose the handle is that a Volume was given.
fn said(object: &Volume) -> Option<Whose> {
    let status = object.status.as_ref().filter(|status| !status.handle.is_empty())?;
    if is_of_another(&status.conditions) {
        return Some(Whose::Anothers);
    }
    status.is_said_own().then_some(Whose::Own)
}

/// Whose the handle is that its plugin gave it; nothing for one that was there before, or has none.
fn whose(world: &World, object: &Volume) -> Option<Whose> {
    let given = is_given(object) && object.status.as_ref().is_some_and(|s| !s.handle.is_empty());
    let twins = || others(world, object).filter_map(|other| twin(object, &other));
    let conditions = object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    given.then(|| handle::whose(said(object), conditions, twins()))
}

/// What another Volume of its handle is to one of which nothing is said yet.
fn twin(object: &Volume, other: &Volume) -> Option<Twin> {
    let born =
        |volume: &Volume| (volume.metadata.creation_timestamp.as_ref().map(|time| time.0), uid(volume));
    handle::twin(handle::Other {
        registered: !is_given(other),
        said: said(other),
        older: born(other) < born(object),
        leaving: deleting(other) && !other.spec.is_kept() && other.status.as_ref().is_none_or(is_left_alone),
        gone: other.status.as_ref().and_then(|status| status.exists) == Some(Rung::Down),
        stale: other.status.as_ref().is_some_and(|status| may_be_stale(&status.conditions)),
    })
}

/// Whether nothing is made of it and nobody has it: then its host deletes it.
fn is_left_alone(status: &VolumeStatus) -> bool {
    status.holders.is_empty() && status.copies.is_empty() && status.snapshots.is_empty()
}

/// The first Volume of its handle that is this to it.
fn first_of(world: &World, object: &Volume, wanted: Twin) -> Option<Arc<Volume>> {
    others(world, object).find(|other| twin(object, other) == Some(wanted))
}

/// Whether it was told that another one has its handle, or goes anyway.
fn knows_of_another(object: &Volume) -> bool {
    let told = object.status.as_ref().is_some_and(|status| is_true(&status.conditions, HANDLE_SHARED));
    told || deleting(object)
}

/// What decides, without a look at other Volumes of the handle.
fn alone<'a>(
    world: &World,
    object: &'a Volume,
    status: &'a VolumeStatus,
    no_host: Option<&'a Reason>,
) -> Facts<'a> {
    let claim = match &object.spec.claim_ref {
        Some(of) if !of.uid.is_empty() => {
            let name = (namespace_or_default(&of.namespace).to_owned(), of.name.clone());
            let found = world.claims.get(&name).filter(|c| c.metadata.uid.as_deref() == Some(&of.uid));
            let has = |claim: &VolumeClaim| {
                claim.status.as_ref().is_some_and(|status| {
                    status.phase == Some(ClaimPhase::Bound) && status.volume_name == object.name_any()
                })
            };
            match found.as_deref() {
                None => Claim::Gone,
                Some(claim) if has(claim) => Claim::Bound,
                Some(_) => Claim::Live,
            }
        }
        Some(_) | None => Claim::None,
    };
    let attached = world.attachments.count(&format!("volume:{}", object.name_any())) > 0;
    Facts {
        deleting: deleting(object),
        source: volume::Source::of(&object.spec.source),
        kept: object.spec.is_kept(),
        claim,
        host: status.controller.as_ref(),
        no_host,
        exists: status.exists.map(|rung| (rung, status.observed_epoch)),
        attempting: status.attempting,
        provisioning: status.provisioning.as_ref(),
        held: attached || !status.holders.is_empty(),
        copy: made_of(status),
        before: None,
        shared: None,
        anothers: None,
        ending: None,
        leaves: false,
        stale: false,
        late: Late::No,
    }
}

/// What decides, and whether its deletion may have begun although it is kept by now.
fn looked_at<'a>(
    context: &Context,
    object: &'a Volume,
    status: &'a VolumeStatus,
    no_host: Option<&'a Reason>,
) -> Facts<'a> {
    let mut facts = gather(&context.world, object, status, no_host);
    let named = facts.kept && is_given(object) && status.controller.is_some() && !status.handle.is_empty();
    facts.late = late(context, object, (named, status.calling_host()));
    facts
}

/// Whether the deletion of an object may have begun at its backend; `kept` and named by now. Who may be `calling` stands or is lost.
pub(super) fn late<K: kube::Resource<DynamicType = ()>>(
    context: &Context,
    object: &K,
    (kept, calling): (bool, Option<&Host>),
) -> Late {
    let marked = kept && deleting(object) && object.annotations().contains_key(KEPT_LATE);
    // Most are not, and nobody need be looked for.
    let calling = calling.filter(|_| marked).map(|host| pulse(context, &host.node_name).0);
    Late::of(marked, calling)
}

/// What is told of one that goes and is kept, without anybody knowing whether it is there.
pub(super) fn in_doubt((plugin, made, listed): (&str, &str, &str), handle: &str, late: bool) -> String {
    if handle.is_empty() {
        return format!(
            "plugin \"{plugin}\" did not say whether it {made}: its backend may keep one; wharfline volume audit {plugin} names it where \
             the plugin lists {listed}"
        );
    }
    if !late {
        return format!(
            "another one of its handle was being deleted, and \"{handle}\" may have gone with that; wharfline volume audit {plugin} names it, if \
             it is there, where the plugin lists {listed}"
        );
    }
    format!(
        "it was to be deleted before it was to be kept, and plugin \"{plugin}\" did not say whether that was done: it may have \"{handle}\" \
         still; wharfline volume audit {plugin} names it where the plugin lists {listed}"
    )
}

/// What is told of one that goes as one that was never made, where its plugin did not say so clearly.
pub(super) fn not_made(plugin: &str, calls: &[Call], listed: &str) -> Option<(&'static str, String)> {
    let Call { method, code, .. } = volume::vague(calls)?;
    let sentence = format!(
        "plugin \"{plugin}\" refused {method} with {code}, which is taken for \"not made\"; if it was made all the same, wharfline volume \
         audit {plugin} names it where the plugin lists {listed}"
    );
    Some(("TakenForNotMade", sentence))
}

/// What is told of one that goes and was deleted before it was to be kept.
pub(super) fn too_late(plugin: &str, handle: &str) -> String {
    format!("plugin \"{plugin}\" had deleted \"{handle}\" when it was to be kept: what was in it is gone")
}
