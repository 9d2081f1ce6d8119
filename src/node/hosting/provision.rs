//! CreateVolume, ValidateVolumeCapabilities and DeleteVolume of the volumes whose host this node is.
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};

use super::super::context::Node;
use super::super::events::Tone;
use super::super::journal::{Change, CreateEntry, Entry};
use super::super::mounts::{BLOCKED, in_words};
use super::super::requests;
use super::super::writes::{Guard, Part};
use super::{
    Attempt, Blocked, Serving, announced, call, expand, look_again, lookup, modify, serving, settle,
};
use crate::api::attributes::Modification;
use crate::api::claim::ClaimPhase;
use crate::api::definitions::VOLUME_PART;
use crate::api::meta::{Call, Condition, Host, Map, ReclaimPolicy, Rung, Segments, Time, is_of_another};
use crate::api::quantity;
use crate::api::volume::{BEGUN_ANEW, CLAIM_GOES, CreateSource, Expansion, NO_ROOM};
use crate::api::{Volume, VolumeAttachment, VolumeClaim, VolumeStatus};
use crate::csi::{self, check};
use crate::plan::handle::Sole;
use crate::plan::{Next, Reason, provision, release};

/// The fields of a Volume's status that its host writes.
pub(super) const HOST: Part =
    Part { name: "host", fields: VOLUME_PART, epoch: Some(&["observedEpoch"]), guard: Guard::Any };
/// The same for the word that the volume is not there and no create is under way, which late would take back that one is; and for
/// what is about to be asked for, which is asked as the object says it now.
pub(super) const NEWEST: Part = Part { guard: Guard::Newest, ..HOST };

/// The same for the word that its host lets go of it, which is an answer: once the question is taken back it is late; and for what
/// keeps users out, which is said as long as there are none.
pub(super) const SEEN: Part = Part { guard: Guard::Seen, ..HOST };

/// The host's part of a Volume's status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct HostPart {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exists: Option<Rung>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) handle: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) context: Map,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) capacity: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) topology: Vec<Segments>,
    pub(super) calls: Vec<Call>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_attempt_time: Option<Time>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) attempting: bool,
    pub(super) observed_epoch: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) released_epoch: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) provisioning: Option<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expansion: Option<Expansion>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) modification: Option<Modification>,
}

impl HostPart {
    pub(super) fn of(status: &VolumeStatus) -> Self {
        Self {
            exists: status.exists,
            handle: status.handle.clone(),
            context: status.context.clone(),
            capacity: status.capacity.clone(),
            topology: status.topology.clone(),
            calls: status.calls.clone(),
            next_attempt_time: status.next_attempt_time,
            attempting: status.attempting,
            observed_epoch: status.observed_epoch,
            released_epoch: Some(status.released_epoch).filter(|epoch| *epoch != 0),
            provisioning: status.provisioning.clone(),
            expansion: status.expansion.clone(),
            modification: status.modification.clone(),
        }
    }

    fn word(&self) -> provision::Word {
        let Self { exists, observed_epoch: epoch, attempting, .. } = *self;
        provision::Word { exists, epoch, attempting }
    }
}

fn wanted(volume: &Volume) -> provision::Wanted {
    let create = volume.spec.source.create.is_some();
    match (volume.meta().deletion_timestamp.is_some(), create, volume.spec.reclaim_policy) {
        (false, _, _) => provision::Wanted::Present,
        (true, true, ReclaimPolicy::Delete) => provision::Wanted::Deleted,
        (true, false, _) | (true, true, ReclaimPolicy::Retain) => provision::Wanted::Forgotten,
    }
}

/// What this host has said under this epoch, if it was not seen written yet. Whether it has let go is only what the server has.
fn said(node: &Node, volume: &Volume, host: &Host) -> Option<HostPart> {
    let uid = volume.uid().unwrap_or_default();
    let said = node.said::<HostPart>(&uid, &HOST).filter(|said| said.observed_epoch == host.epoch)?;
    let released_epoch = volume.status.as_ref().map(|status| status.released_epoch);
    Some(HostPart { released_epoch: released_epoch.filter(|epoch| *epoch != 0), ..said })
}

fn existence(node: &Node, volume: &Volume, host: &Host, part: &HostPart) -> Rung {
    let released = volume.status.as_ref().map_or(0, |status| status.released_epoch);
    let begun = node.journal.create_attempted(&volume.uid().unwrap_or_default());
    let known = provision::Known { epoch: host.epoch, released, begun };
    provision::exists(wanted(volume), known, part.word())
}

/// Writes the host's part, and says when to try again if it could not be written.
pub(super) async fn write(node: &Arc<Node>, volume: &Volume, part: &HostPart) -> Option<Duration> {
    let absent = part.exists == Some(Rung::Down) && !part.attempting;
    let written = node.write_status(volume, if absent { &NEWEST } else { &HOST }, part).await;
    node.after_write(&format!("vol/{}/report", volume.uid().unwrap_or_default()), written)
}

/// On the word of this host that the volume is not there its object may go: before a create is made all the same, that
/// word is taken back. False if the server does not have it so: then there is no call.
async fn announce(node: &Arc<Node>, volume: &Volume, epoch: i64, part: &mut HostPart) -> bool {
    let shown = volume.status.as_ref().map(HostPart::of).unwrap_or_default();
    let answered = node.answered::<_, HostPart>(volume, &HOST).unwrap_or_default();
    if !provision::must_announce(epoch, [part.word(), shown.word(), answered.word()]) {
        return true;
    }
    part.attempting = true;
    let written = node.assert_status(volume, &NEWEST, part).await;
    let stands = matches!(written, Ok(true));
    node.after_write(&format!("vol/{}/report", volume.uid().unwrap_or_default()), written.map(drop));
    stands
}

/// Says that no call about the volume is under way here, and that none follows under this epoch. With it goes what was
/// learned of the volume and could not be written yet, and that nothing was ever attempted, if that is sure.
pub(super) async fn let_go(node: &Arc<Node>, volume: &Volume, host: &Host) -> Option<Duration> {
    let status = volume.status.clone().unwrap_or_default();
    let uid = volume.uid().unwrap_or_default();
    let mut part = said(node, volume, host).unwrap_or_else(|| HostPart::of(&status));
    if part.exists.is_some() {
        part.exists = Some(existence(node, volume, host, &part));
        // An earlier daemon may have asked for its deletion.
        if volume.meta().deletion_timestamp.is_some()
            && part.exists == Some(Rung::Up)
            && node.doubts.inherited(&uid)
        {
            part.exists = Some(Rung::Unknown);
        }
    } else if volume.spec.source.create.is_some() && !attempted(node, &uid, host) {
        part.exists = Some(Rung::Down);
        part.provisioning = None;
    }
    part.observed_epoch = host.epoch;
    part.released_epoch = Some(host.epoch);
    (part.next_attempt_time, part.attempting) = (None, false);
    let written = node.write_status(volume, &SEEN, &part).await;
    node.after_write(&format!("vol/{uid}/report"), written)
}

/// Whether a create of a volume of which nothing was ever said may have begun.
fn attempted(node: &Node, uid: &str, host: &Host) -> bool {
    let forgotten = node.amnesia && node.doubts.inherited(uid);
    host.epoch > 1 || forgotten || node.journal.create_attempted(uid)
}

/// What is seen of a volume. One that was never asked for is not there, and is not made for the sake of being deleted.
fn seen(node: &Node, volume: &Volume, host: &Host, before: &HostPart) -> provision::Seen {
    let status = volume.status.clone().unwrap_or_default();
    let never = wanted(volume) == provision::Wanted::Deleted
        && before.exists.is_none()
        && !attempted(node, &volume.uid().unwrap_or_default(), host);
    provision::Seen {
        exists: if never { Rung::Down } else { existence(node, volume, host, before) },
        handle_known: !before.handle.is_empty(),
        held: !status.holders.is_empty() || is_attached(node, volume),
        copied: !(status.copies.is_empty() && status.snapshots.is_empty()),
        sole: Sole::of(
            &status.conditions,
            // Of one that has no handle yet: a word on what it had before would be late for what it gets.
            status.handle_checked == before.handle,
        ),
    }
}

/// Whether somebody has the volume that this one is a copy of.
fn source_used(node: &Node, volume: &Volume) -> Option<bool> {
    let content = volume.spec.source.create.as_ref()?.content.as_ref()?;
    is_used(node, &content.volume, &content.uid)
}

/// Whether somebody has a volume that this node is host of. What a driver refuses to make of a volume in use, it may make when that
/// has changed.
pub(super) fn is_used(node: &Node, name: &str, uid: &str) -> Option<bool> {
    let volume = node.caches.volumes.one(name).filter(|volume| volume.uid().as_deref() == Some(uid))?;
    let held = volume.status.as_ref().is_some_and(|status| !status.holders.is_empty());
    Some(held || is_attached(node, &volume))
}

/// Whether it is, or may be, attached to a node by calls of this host. One that was fenced may be so without a holder; and nobody
/// would detach it once the volume is gone.
fn is_attached(node: &Node, volume: &Volume) -> bool {
    let uid = volume.uid().unwrap_or_default();
    let may_be = |a: &VolumeAttachment| {
        let said = a.status.as_ref().and_then(|s| s.controller.as_ref()).map(|c| (c.attached, c.epoch));
        let epoch = a.spec.host.as_ref().map(|host| host.epoch);
        let attached = release::attached(a.meta().deletion_timestamp.is_some(), epoch, said);
        a.spec.attach_required && !a.spec.allocations.is_empty() && attached != Rung::Down
    };
    let attachments = node.caches.hosted.of(&volume.name_any());
    attachments.iter().any(|a| a.spec.volume_uid == uid && may_be(a))
}

pub(super) async fn step(node: &Arc<Node>, volume: &Volume, lease: &csi::Lease) -> Option<Duration> {
    let status = volume.status.clone().unwrap_or_default();
    let host = status.controller.as_ref().filter(|h| h.node_name == node.options.name)?;
    let uid = volume.uid().unwrap_or_default();
    let key = format!("vol/{uid}");
    let create = volume.spec.source.create.is_some();
    let source = if create { provision::Source::Create } else { provision::Source::Existing };
    let wanted = wanted(volume);
    let said = said(node, volume, host);
    let before = said.clone().unwrap_or_else(|| HostPart::of(&status));
    let seen = seen(node, volume, host, &before);
    let generation = volume.meta().generation.unwrap_or_default();
    // What cannot grow while it is used may when that is over (CO-CTRL-111), and so it is with what is made of what is used.
    let used = (volume.spec.size.map(|_| seen.held), source_used(node, volume));
    let told = volume.annotations().contains_key(CLAIM_GOES);
    node.retry.renew(&key, &format!("{generation}/{wanted:?}/{}/{used:?}/{told}", host.epoch));
    let step = match provision::next(wanted, source, seen) {
        Next::Do(step) => step,
        Next::Converged
            if (wanted, seen.exists) == (provision::Wanted::Present, Rung::Up)
                && may_change(volume, &before)
                && !is_of_another(&status.conditions) =>
        {
            // What could not be written before is written now, whatever is still to be done.
            let unwritten = if let Some(said) = &said { write(node, volume, said).await } else { None };
            let known = expand::Known { host, before, held: seen.held, holders: &status.holders };
            match Box::pin(change(node, volume, lease, known)).await {
                Some(again) => return [again, unwritten].into_iter().flatten().min(),
                None => return unwritten,
            }
        }
        // What could not be written before is written now.
        Next::Wait(_) | Next::Converged => {
            let absent = (wanted, create, seen.exists) == (provision::Wanted::Deleted, true, Rung::Down);
            let part = if absent { nothing_there(before, host) } else { said? };
            return write(node, volume, &part).await;
        }
    };
    let retry = format!("{key}/{step:?}");
    if let Some(left) = node.retry.remaining(&retry) {
        let unwritten = if let Some(said) = &said { write(node, volume, said).await } else { None };
        return Some(unwritten.map_or(left, |again| again.min(left)));
    }
    let mut part = before.clone();
    // Whatever becomes of the step: another epoch's word is not repeated under this one's.
    part.exists = before.exists.map(|_| seen.exists);
    part.observed_epoch = host.epoch;
    let outcome = if Node::may_host(lease, &node.caches.volumes) {
        carry_out(node, volume, step, (&retry, lease), &mut part, host.epoch).await
    } else {
        Err(Blocked::Wait(Reason::LeaseNotRenewed))
    };
    let about = (retry.as_str(), volume.object_ref(&()), action(step));
    let leaving = wanted != provision::Wanted::Present || step == provision::Step::Undo;
    let delay = settle(node, about, leaving, &outcome);
    if matches!(outcome, Err(Blocked::Unannounced)) {
        return node.retry.remaining(&format!("{key}/report")).or(delay);
    }
    part.calls = node.calls.get(&key, &before.calls);
    if Blocked::is_unsent(&outcome) {
        look_again(node, &volume.name_any(), &outcome);
    } else {
        part.provisioning = told_of(volume, step, outcome, before.provisioning.as_ref());
        // A call that was made has ended.
        part.attempting = false;
        part.next_attempt_time = delay.filter(|d| *d < BLOCKED / 2).map(|d| node.later(d));
    }
    [delay, write(node, volume, &part).await].into_iter().flatten().min()
}

/// What is said of an outcome.
fn told_of(
    volume: &Volume,
    step: provision::Step,
    outcome: Result<(), Blocked>,
    before: Option<&Condition>,
) -> Option<Condition> {
    let full = matches!(&outcome, Err(Blocked::Call(failure)) if failure.is_exhausted());
    let mut condition = match outcome {
        Err(blocked) => blocked.condition(volume.meta().generation),
        // What did not fit is told for longer than until it is undone.
        Ok(()) if step == provision::Step::Undo => return before.cloned(),
        Ok(()) => return None,
    };
    if full && step == provision::Step::Create {
        NO_ROOM.clone_into(&mut condition.reason);
    }
    if let Some(before) = before {
        condition.last_transition_time = before.last_transition_time;
    }
    Some(condition)
}

/// Whether it shall have another size or other attributes, or has had.
fn may_change(volume: &Volume, before: &HostPart) -> bool {
    volume.spec.size.is_some()
        || before.expansion.is_some()
        || volume.spec.attributes.is_some()
        || before.modification.is_some()
}

/// Gives a volume that is there the attributes and the size that it shall have, one after the other. None if there is nothing to
/// do about either.
async fn change(
    node: &Arc<Node>,
    volume: &Volume,
    lease: &csi::Lease,
    mut known: expand::Known<'_>,
) -> Option<Option<Duration>> {
    let later = match modify::step(node, volume, lease, &known).await {
        // The word of it wakes the next look.
        modify::Looked::Done(again) => return Some(again),
        modify::Looked::Waits(again, part) => {
            known.before = *part;
            again
        }
        modify::Looked::Later(left) => Some(left),
        modify::Looked::Nothing => None,
    };
    let grown = if volume.spec.size.is_some() || known.before.expansion.is_some() {
        expand::step(node, volume, lease, known).await
    } else {
        None
    };
    match (grown, later) {
        (Some(again), later) => Some([again, later].into_iter().flatten().min()),
        (None, Some(later)) => Some(Some(later)),
        (None, None) => None,
    }
}

/// The last word of a host about a volume that is not there and is not wanted: nothing follows.
fn nothing_there(before: HostPart, host: &Host) -> HostPart {
    HostPart {
        exists: Some(Rung::Down),
        observed_epoch: host.epoch,
        attempting: false,
        next_attempt_time: None,
        ..before
    }
}

async fn carry_out(
    node: &Arc<Node>,
    volume: &Volume,
    step: provision::Step,
    (retry, lease): (&str, &csi::Lease),
    part: &mut HostPart,
    epoch: i64,
) -> Result<(), Blocked> {
    match step {
        provision::Step::Create => create(node, volume, (retry, lease), part, epoch).await,
        provision::Step::Validate => validate(node, volume, (retry, lease), part).await,
        provision::Step::Undo | provision::Step::Delete => {
            delete(node, volume, step, (retry, lease), part).await
        }
        provision::Step::Forget => {
            part.exists = Some(Rung::Unknown);
            part.handle.clear();
            Ok(())
        }
    }
}

async fn create(
    node: &Arc<Node>,
    volume: &Volume,
    (retry, lease): (&str, &csi::Lease),
    part: &mut HostPart,
    epoch: i64,
) -> Result<(), Blocked> {
    let Some(source) = &volume.spec.source.create else { return Ok(()) };
    let plugin = serving(node, &volume.spec.plugin, &source.name)?;
    if !plugin.controller.create_delete_volume {
        let plugin = volume.spec.plugin.clone();
        return Err(Blocked::Wait(Reason::PluginLacks { plugin, capability: "CREATE_DELETE_VOLUME" }));
    }
    may_fill(volume, source, &plugin)?;
    // It was refused, nothing is in doubt, and there is nothing that it could be filled from any more.
    if part.exists == Some(Rung::Down)
        && node.retry.attempt(retry) > 1
        && let Some(content) = &source.content
        && let Some(reason) = lookup::gone(node, content).await
    {
        return Err(Blocked::Wait(reason));
    }
    may_attribute(volume, source, &plugin)?;
    let uid = volume.uid().unwrap_or_default();
    let key = format!("vol/{uid}");
    let asker = format!("volumes/{}", volume.name_any());
    let secrets =
        node.secrets(&asker, volume.spec.secrets.provision.as_ref()).await.map_err(Blocked::Wait)?;
    // The very first attempt, or the first since it is known not to be there: then, and only then, does a refusal say that
    // nothing was made.
    let never = epoch == 1 && part.exists.is_none() || part.exists == Some(Rung::Down);
    let fresh = never && !node.journal.create_attempted(&uid);
    if !announce(node, volume, epoch, part).await {
        return Err(Blocked::Unannounced);
    }
    let attempted = Entry::Create(CreateEntry { volume: volume.name_any(), uid: uid.clone() });
    if node.journal.put(attempted).await.is_err() {
        return Err(Blocked::Wait(Reason::LeaseNotRenewed));
    }
    let mut request =
        requests::create(&volume.spec, source, secrets.clone(), plugin.controller.single_node_multi_writer);
    if planted!("another-name") && node.retry.attempt(retry) > 1 {
        request.name.push_str("-again");
    }
    let asked = request.clone();
    let about = &volume.object_ref(&());
    let names = Attempt { key: &key, volume: &uid, step: retry, serving: &plugin, lease, about };
    match call(node, names, "CreateVolume", |terms| plugin.client.create_volume(request, terms)).await {
        Ok(made) => {
            if let Err(fault) = check::created(&asked, &made) {
                // It may be another Volume's: it is deleted once the controllers have said that it is not (CO-CTRL-09).
                part.exists = Some(Rung::Unknown);
                part.handle = made.volume_id;
                return Err(Blocked::Answer(format!(
                    "the plugin made a volume that does not fit, which is deleted again unless it is another's: {fault}"
                )));
            }
            keep(part, source, made);
            tracing::info!(volume = volume.name_any(), handle = part.handle, "created");
            Ok(())
        }
        Err(failure) => {
            if fresh && !failure.is_uncertain() {
                if !failure.is_unsent() {
                    part.exists = Some(Rung::Down);
                }
                let _ = node.journal.commit(vec![Change::Forget(format!("create/{uid}"))]).await;
            } else if !failure.is_unsent() {
                part.exists = Some(Rung::Unknown);
            }
            let failure = lookup::of_source(node, source.content.as_ref(), failure).await;
            Err(Blocked::Call(requests::naming(failure, volume.spec.secrets.provision.as_ref())))
        }
    }
}

/// What was made, as it is kept.
fn keep(part: &mut HostPart, source: &CreateSource, made: csi::proto::Volume) {
    part.exists = Some(Rung::Up);
    part.handle = made.volume_id;
    let given = source.attributes.clone();
    let given = given.map(|has| Modification { has: Some(has), ..Modification::default() });
    part.modification = given.or(part.modification.take());
    part.context = made.volume_context;
    part.capacity =
        if made.capacity_bytes == 0 { String::new() } else { quantity::display(made.capacity_bytes) };
    // An idempotent repetition may leave the topology out; the first answer stays (Q1). A place without a segment is everywhere,
    // and says no more than no place.
    let says = made.accessible_topology.iter().all(|place| !place.segments.is_empty());
    if says && !made.accessible_topology.is_empty() {
        part.topology = made.accessible_topology.into_iter().map(|t| t.segments).collect();
    }
}

/// A plugin is asked to fill a volume only from what it says it can. One that may have begun to is asked to the end.
fn may_fill(volume: &Volume, source: &CreateSource, plugin: &Serving) -> Result<(), Blocked> {
    let leaving = volume.meta().deletion_timestamp.is_some();
    let can = &plugin.controller;
    let (able, capability) = match &source.content {
        None => return Ok(()),
        Some(content) if content.snapshot.is_empty() => (can.clone_volume, "CLONE_VOLUME"),
        Some(_) => (can.create_delete_snapshot, "CREATE_DELETE_SNAPSHOT"),
    };
    if leaving || able {
        return Ok(());
    }
    let plugin = volume.spec.plugin.clone();
    Err(Blocked::Wait(Reason::PluginLacks { plugin, capability }))
}

/// The same of attributes that can be changed (CO-CTRL-04).
fn may_attribute(volume: &Volume, source: &CreateSource, plugin: &Serving) -> Result<(), Blocked> {
    let leaving = volume.meta().deletion_timestamp.is_some();
    if source.attributes.is_none() || plugin.controller.modify_volume || leaving {
        return Ok(());
    }
    let plugin = volume.spec.plugin.clone();
    Err(Blocked::Wait(Reason::PluginLacks { plugin, capability: "MODIFY_VOLUME" }))
}

/// As an event says it.
fn action(step: provision::Step) -> &'static str {
    match step {
        provision::Step::Create | provision::Step::Forget => "CreateVolume",
        provision::Step::Validate => "ValidateVolume",
        provision::Step::Undo | provision::Step::Delete => "DeleteVolume",
    }
}

async fn validate(
    node: &Arc<Node>,
    volume: &Volume,
    (retry, lease): (&str, &csi::Lease),
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let Some(source) = &volume.spec.source.existing else { return Ok(()) };
    let plugin = serving(node, &volume.spec.plugin, &source.handle)?;
    let asker = format!("volumes/{}", volume.name_any());
    let secrets =
        node.secrets(&asker, volume.spec.secrets.provision.as_ref()).await.map_err(Blocked::Wait)?;
    let uid = volume.uid().unwrap_or_default();
    let key = format!("vol/{uid}");
    let request = requests::validate(
        &volume.spec,
        &source.handle,
        &source.context,
        secrets,
        requests::Modes::of(plugin.controller.single_node_multi_writer),
    );
    let asked = request.clone();
    let about = &volume.object_ref(&());
    let names = Attempt { key: &key, volume: &uid, step: retry, serving: &plugin, lease, about };
    let answer = call(node, names, "ValidateVolumeCapabilities", |terms| {
        plugin.client.validate_volume_capabilities(request, terms)
    })
    .await;
    match answer {
        Ok(answer) => match check::confirmation(&asked, &answer) {
            check::Confirmation::Confirmed => {}
            // That is no refusal (CO-CTRL-57).
            check::Confirmation::NotConfirmed(why) => {
                let note = format!("the plugin did not confirm that the volume can be used so: {why}");
                let action = action(provision::Step::Validate);
                node.events.tell(about.clone(), Tone::Warning, "NotConfirmed", action, &note);
            }
            check::Confirmation::Contradicted(field) => {
                let message = format!(
                    "the plugin confirmed another {field} than the one asked for; correct the volume's"
                );
                return Err(Blocked::Answer(message));
            }
        },
        // Seen in the field although the call is mandatory: no word is no refusal (CO-CTRL-60).
        Err(failure) if failure.is_unimplemented() => {}
        Err(failure) => {
            let failure = lookup::of_volume(node, names, (&volume.name_any(), &source.handle), failure).await;
            return Err(Blocked::Call(requests::naming(failure, volume.spec.secrets.provision.as_ref())));
        }
    }
    part.exists = Some(Rung::Up);
    part.handle.clone_from(&source.handle);
    part.context.clone_from(&source.context);
    part.topology.clone_from(&source.topology);
    // What it has grown to since counts more.
    if part.capacity.is_empty() {
        part.capacity.clone_from(&source.capacity);
    }
    Ok(())
}

/// The data of a claim that nobody asked to delete stays, whatever was asked of its Volume: the server itself is asked,
/// for nothing brings it back.
async fn still_claimed(node: &Node, volume: &Volume) -> Result<(), Reason> {
    let Some(of) = volume.spec.claim_ref.as_ref().filter(|_| !planted!("claim-unasked")) else {
        return Ok(());
    };
    let name = format!("claim {}/{}", of.namespace, of.name);
    match node.claim(&of.namespace, &of.name).await {
        Ok(Some(claim)) if claim.uid().as_deref() == Some(&of.uid) => match claim.meta().deletion_timestamp {
            Some(_) => Ok(()),
            None if volume.annotations().contains_key(BEGUN_ANEW) && !is_bound(&claim) => Ok(()),
            None => Err(Reason::InUse { by: name }),
        },
        Ok(_) => Ok(()),
        Err(error) => {
            let why = in_words(&error);
            Err(Reason::InUse { by: format!("{name}, which could not be read: {why}") })
        }
    }
}

fn is_bound(claim: &VolumeClaim) -> bool {
    let phase = claim.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(ClaimPhase::Bound | ClaimPhase::Lost))
}

async fn delete(
    node: &Arc<Node>,
    volume: &Volume,
    step: provision::Step,
    (retry, lease): (&str, &csi::Lease),
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let plugin = serving(node, &volume.spec.plugin, &part.handle)?;
    if step == provision::Step::Delete {
        still_claimed(node, volume).await.map_err(Blocked::Wait)?;
    }
    let uid = volume.uid().unwrap_or_default();
    let key = format!("vol/{uid}");
    let asker = format!("volumes/{}", volume.name_any());
    let secret = volume.spec.secrets.provision.as_ref();
    let secrets = node.secrets_to_undo(&asker, secret).await.map_err(Blocked::Wait)?;
    let shown = volume.status.as_ref().map(HostPart::of).unwrap_or_default();
    let names_it = |said: &HostPart| said.handle == part.handle;
    announced(node, (volume, &HOST, &key), (&shown, part), names_it).await?;
    if planted!("deletion-is-slow") {
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    let request = requests::delete(&part.handle, secrets);
    let about = &volume.object_ref(&());
    let names = Attempt { key: &key, volume: &uid, step: retry, serving: &plugin, lease, about };
    match call(node, names, "DeleteVolume", |terms| plugin.client.delete_volume(request, terms)).await {
        Ok(_) => {
            part.exists = Some(Rung::Down);
            tracing::info!(volume = volume.name_any(), handle = part.handle, "deleted");
            if step == provision::Step::Undo {
                part.handle.clear();
            }
            if node.journal.create_attempted(&uid) {
                let _ = node.journal.commit(vec![Change::Forget(format!("create/{uid}"))]).await;
            }
            Ok(())
        }
        Err(failure) => {
            // Of one that was not in doubt a refusal says that it is there.
            if !(failure.is_unsent() || failure.keeps() && part.exists == Some(Rung::Up)) {
                part.exists = Some(Rung::Unknown);
            }
            let failure = lookup::of_volume(node, names, (&volume.name_any(), &part.handle), failure).await;
            Err(Blocked::Call(requests::naming(failure, volume.spec.secrets.provision.as_ref())))
        }
    }
}
