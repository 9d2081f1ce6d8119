//! CreateSnapshot, ListSnapshots and DeleteSnapshot of the snapshots whose host this node is. docs/design/snapshots.md.
//!
//! That it may have been asked for stands at the server before the first call. Calls are made within the look at the
//! snapshot's volume, which is the only one at it: so there is one call at a time about both.
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};

use super::super::context::{Node, snapshot_word};
use super::super::mounts::BLOCKED;
use super::super::requests;
use super::super::writes::{Guard, Part};
use super::provision::is_used;
use super::{
    Attempt, Blocked, Serving, announced, asked_to_release, call, can_group, groups, look_again, serving,
    serving_all, settle,
};
use crate::api::definitions::SNAPSHOT_PART;
use crate::api::meta::{Call, Condition, Host, Rung, Time};
use crate::api::quantity;
use crate::api::snapshot::{Member, SnapshotOf, SnapshotStatus, known_by};
use crate::api::{Snapshot, VolumeStatus};
use crate::csi::proto;
use crate::csi::{self, Advice, Failure, check};
use crate::plan::handle::Sole;
use crate::plan::registry::Service;
use crate::plan::snapshot::{self as plan, Seen, Step, Wanted};
use crate::plan::{Next, Reason, host, volume};

/// The fields of a Snapshot's status that its host writes.
pub(super) const HOST: Part =
    Part { name: "snapshot", fields: SNAPSHOT_PART, epoch: Some(&["observedEpoch"]), guard: Guard::Any };
/// The same for the word that it is not there, and for the first that it may be: late, one would take back that it may be asked
/// for, and the other say so of what is on its way out.
const NEWEST: Part = Part { guard: Guard::Newest, ..HOST };

/// The same for the word that its host lets go of it, which is an answer: once the question is taken back it is late.
const LET_GO: Part = Part { guard: Guard::Seen, ..HOST };

/// The host's part of a Snapshot's status.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct HostPart {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exists: Option<Rung>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) handle: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) members: Vec<Member>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) size: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) creation_time: Option<Time>,
    pub(super) ready: bool,
    #[serde(rename = "groupID", skip_serializing_if = "String::is_empty")]
    pub(super) group_id: String,
    pub(super) calls: Vec<Call>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_attempt_time: Option<Time>,
    pub(super) observed_epoch: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) released_epoch: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) taking: Option<Condition>,
}

impl HostPart {
    pub(super) fn of(status: &SnapshotStatus) -> Self {
        Self {
            exists: status.exists,
            handle: status.handle.clone(),
            members: status.members.clone(),
            size: status.size.clone(),
            creation_time: status.creation_time,
            ready: status.ready,
            group_id: status.group_id.clone(),
            calls: status.calls.clone(),
            next_attempt_time: status.next_attempt_time,
            observed_epoch: status.observed_epoch,
            released_epoch: Some(status.released_epoch).filter(|epoch| *epoch != 0),
            taking: status.taking.clone(),
        }
    }

    /// What is said of one that was deleted again.
    fn taken_back(&self) -> Self {
        Self {
            exists: Some(Rung::Down),
            observed_epoch: self.observed_epoch,
            released_epoch: self.released_epoch,
            ..Self::default()
        }
    }

    /// Takes in what the plugin says of it. What was said before stays where it says nothing.
    fn told(&mut self, snapshot: &proto::Snapshot) {
        self.exists = Some(Rung::Up);
        self.handle.clone_from(&snapshot.snapshot_id);
        self.ready = snapshot.ready_to_use;
        if snapshot.size_bytes != 0 {
            self.size = quantity::display(snapshot.size_bytes);
        }
        self.creation_time = self.creation_time.or(requests::time(snapshot.creation_time));
        if !snapshot.group_snapshot_id.is_empty() {
            self.group_id.clone_from(&snapshot.group_snapshot_id);
        }
    }
}

/// One snapshot and what its host goes by.
pub(super) struct Look<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) of: &'a SnapshotOf,
    host: &'a Host,
    /// What it is remembered under.
    pub(super) key: String,
    pub(super) lease: &'a csi::Lease,
    /// The server was told that it may be there, and nothing was sent since.
    announced: bool,
}

impl Look<'_> {
    /// A call for it, about the object of this uid.
    pub(super) fn attempt<'b>(
        &'b self,
        volume: &'b str,
        (step, serving): (&'b str, &'b Serving),
        about: &'b ObjectReference,
    ) -> Attempt<'b> {
        Attempt { key: &self.key, volume, step, serving, lease: self.lease, about }
    }
}

/// Brings one snapshot as far as it goes. One that is worked on under another name by now is left to the look at that.
pub(super) async fn step(
    node: &Arc<Node>,
    (name, uid): (&str, &str),
    lease: &csi::Lease,
) -> Option<Duration> {
    // Its name changes when it is ready, and the looks at both could meet.
    let _turn = node.turns.take(&format!("snap/{uid}")).await;
    // As it is now: what was done for others before it may have taken long.
    let snapshot = &*node.caches.snapshots.get(uid).filter(|snapshot| snapshot_word(snapshot) == name)?;
    let status = snapshot.status.clone().unwrap_or_default();
    let host = status.controller.as_ref().filter(|h| h.node_name == node.options.name)?;
    let of = status.of.as_ref()?;
    let said = said(node, uid, (host, &status));
    let mut before = said.clone().unwrap_or_else(|| HostPart::of(&status));
    let epochs = (before.observed_epoch, status.released_epoch, host.epoch);
    before.exists = plan::known(snapshot.meta().deletion_timestamp.is_some(), before.exists, epochs);
    // Nothing was sent of what was said: that it may be stands at the server all the same.
    let announced = before.exists == Some(Rung::Unknown) && node.doubts.is_untouched(uid, host.epoch);
    if announced {
        before.exists = Some(Rung::Down);
    }
    let look = Look { snapshot, of, host, key: format!("snap/{uid}"), lease, announced };
    if host::rests(host, status.asked_to_release, status.released_epoch) {
        return let_go(node, &look, before).await;
    }
    let deleting = snapshot.meta().deletion_timestamp.is_some();
    let wanted = Wanted::of(deleting, snapshot.is_cut(), snapshot.spec.deletion_policy);
    let seen = seen(node, &look, &before);
    let generation = snapshot.meta().generation.unwrap_or_default();
    let used: Vec<_> = of.volumes().map(|(name, uid)| is_used(node, name, uid)).collect();
    let by = (host.epoch, seen.at_source && !seen.ready, used);
    node.retry.renew(&look.key, &format!("{generation}/{wanted:?}/{by:?}"));
    let step = match plan::next(wanted, seen) {
        Next::Do(step) => step,
        // What could not be written before is written now.
        Next::Wait(Reason::HandleUnchecked) => return write(node, &look, &said?).await,
        Next::Wait(reason) => {
            let taking = Blocked::Wait(reason).condition_of(TAKEN, snapshot.meta().generation);
            let part = HostPart { observed_epoch: host.epoch, taking: Some(taking), ..before };
            return write(node, &look, &part).await;
        }
        Next::Converged if unsaid(wanted, before.exists) => {
            let part = HostPart { observed_epoch: host.epoch, ..before };
            return write(node, &look, &part).await;
        }
        Next::Converged => return write(node, &look, &said?).await,
    };
    // What may still be being cut is not deleted beside that.
    if matches!(step, Step::Undo | Step::Delete)
        && !before.ready
        && let Some(left) = of.uids().filter_map(|uid| node.doubts.left(uid)).max()
    {
        return Some(left);
    }
    let retry = format!("{}/{step:?}", look.key);
    if let Some(left) = node.retry.remaining(&retry) {
        let unwritten = if let Some(said) = &said { write(node, &look, said).await } else { None };
        return Some(unwritten.map_or(left, |again| again.min(left)));
    }
    let mut part = HostPart { observed_epoch: host.epoch, ..before.clone() };
    let outcome = if Node::may_host(lease, &node.caches.snapshots) {
        carry_out(node, &look, (step, &retry), &mut part).await
    } else {
        Err(Blocked::Wait(Reason::LeaseNotRenewed))
    };
    record(node, &look, (step, &retry, wanted), outcome, (part, &before)).await
}

/// What this host has said under this epoch, if it was not seen written yet. Whether it has let go is only what the server has.
fn said(node: &Node, uid: &str, (host, status): (&Host, &SnapshotStatus)) -> Option<HostPart> {
    let said = node.said::<HostPart>(uid, &HOST).filter(|said| said.observed_epoch == host.epoch)?;
    Some(HostPart { released_epoch: Some(status.released_epoch).filter(|epoch| *epoch != 0), ..said })
}

/// Why the first call is not made yet: its volumes are to name it, so that nobody deletes them under it (plan::volume).
fn held_back(node: &Node, look: &Look<'_>) -> Option<Reason> {
    look.of.volumes().find_map(|of| held_back_by(node, look, of))
}

fn held_back_by(node: &Node, look: &Look<'_>, (name, of): (&str, &str)) -> Option<Reason> {
    let uid = look.snapshot.uid();
    let volume = node.caches.volumes.one(name).filter(|v| v.uid().as_deref() == Some(of));
    let source = volume.map(|volume| {
        let names = |status: &VolumeStatus| status.snapshots.iter().any(|one| Some(&one.uid) == uid.as_ref());
        (volume.metadata.deletion_timestamp.is_some(), volume.status.as_ref().is_some_and(names))
    });
    volume::held_back("Volume", name, source)
}

/// Whether the server may not have what was found of one that goes: that it is deleted, or was never asked for.
fn unsaid(wanted: Wanted, exists: Option<Rung>) -> bool {
    match wanted {
        Wanted::Present => false,
        Wanted::Deleted => exists.is_some(),
        Wanted::Forgotten => exists == Some(Rung::Down),
    }
}

const TAKEN: &str = "Taken";

/// Says what came of a step, and when it is tried again.
async fn record(
    node: &Arc<Node>,
    look: &Look<'_>,
    (step, retry, wanted): (Step, &str, Wanted),
    outcome: Result<(), Blocked>,
    (mut part, before): (HostPart, &HostPart),
) -> Option<Duration> {
    let grouped = matches!(&outcome, Err(Blocked::Call(failure)) if failure.advice() == Advice::DeleteGroup);
    let about = (retry, look.snapshot.object_ref(&()), action(step, look.snapshot.is_group()));
    let delay = settle(node, about, (wanted != Wanted::Present || step == Step::Undo) && !grouped, &outcome);
    if matches!(outcome, Err(Blocked::Unannounced)) {
        return node.retry.remaining(&format!("{}/report", look.key)).or(delay);
    }
    let processing = matches!(outcome, Err(Blocked::Wait(Reason::SnapshotProcessing)));
    // Its volume is on its way here with its name in it.
    if matches!(outcome, Err(Blocked::Wait(Reason::SourceNotReady { .. }))) {
        return None;
    }
    // That it is not ready yet is no news, however often it is said.
    if !processing || part.exists != before.exists {
        part.calls = node.calls.get(&look.key, &before.calls);
    }
    if Blocked::is_unsent(&outcome) {
        look_again(node, &snapshot_word(look.snapshot), &outcome);
    } else {
        let generation = look.snapshot.meta().generation;
        // What did not fit is told for longer than until it is undone.
        let stays = step == Step::Undo && outcome.is_ok();
        let told = outcome.err().map(|blocked| blocked.condition_of(TAKEN, generation));
        part.taking = told.or_else(|| before.taking.clone().filter(|_| stays));
        if let (Some(condition), Some(before)) = (&mut part.taking, &before.taking) {
            condition.last_transition_time = before.last_transition_time;
        }
        let next = delay.filter(|d| *d < BLOCKED / 2 && !processing).map(|d| node.later(d));
        part.next_attempt_time = next;
    }
    [delay, write(node, look, &part).await].into_iter().flatten().min()
}

/// Says that no call about it is under way here, and that none follows under this epoch.
async fn let_go(node: &Arc<Node>, look: &Look<'_>, before: HostPart) -> Option<Duration> {
    let uid = look.snapshot.uid().unwrap_or_default();
    // Who makes its calls next does not know of it. Its end has it looked at again.
    if node.listed.end(&uid) {
        return None;
    }
    // As long as it is not ready its calls are about its volume, too.
    let of_volumes = look.of.uids().filter(|_| !before.ready).filter_map(|of| node.doubts.left(of));
    let left = of_volumes.chain(node.doubts.left(&uid)).max();
    if left.is_some() {
        return left;
    }
    let epoch = look.host.epoch;
    let mut before = before;
    // An earlier daemon may have asked for its deletion.
    if look.snapshot.meta().deletion_timestamp.is_some()
        && before.exists == Some(Rung::Up)
        && node.doubts.inherited(&uid)
    {
        before.exists = Some(Rung::Unknown);
    }
    let part =
        HostPart { observed_epoch: epoch, released_epoch: Some(epoch), next_attempt_time: None, ..before };
    let written = node.write_status(look.snapshot, &LET_GO, &part).await;
    node.after_write(&format!("{}/report", look.key), written)
}

fn seen(node: &Node, look: &Look<'_>, before: &HostPart) -> Seen {
    let status = look.snapshot.status.as_ref();
    let instance = node.registry.serving(&look.of.plugin, Service::Controller);
    let known = instance.and_then(|instance| instance.progress.fingerprint);
    let groups = known.as_ref().is_some_and(can_group);
    Seen {
        cut: look.snapshot.is_cut(),
        exists: before.exists,
        handle_known: !before.handle.is_empty(),
        ready: before.ready,
        used: status.is_some_and(|status| !status.copies.is_empty()),
        listed: node.listed.has(&look.of.plugin, known_by(&before.handle, &before.members)),
        grouped: !before.group_id.is_empty(),
        sole: Sole::of(
            status.map(|status| status.conditions.as_slice()).unwrap_or_default(),
            // Of one that has no handle yet: a word on what it had before would be late for what it gets.
            if before.handle.is_empty() {
                status.is_none_or(|status| status.handles_checked.is_empty())
            } else {
                is_checked(look, before)
            },
        ),
        at_source: are_here(node, look.of),
        lists: known.is_some_and(|known| {
            if look.snapshot.is_group() {
                return groups;
            }
            known.controller.list_snapshots || gets(node, &look.of.plugin, known.controller)
        }),
    }
}

/// Whether the controllers have compared all that its plugin knows it by with what it knows others by.
pub(super) fn is_checked(look: &Look<'_>, part: &HostPart) -> bool {
    let status = look.snapshot.status.as_ref();
    status.is_some_and(|status| status.has_checked(known_by(&part.handle, &part.members)))
}

/// Whether this node makes the calls of all volumes that it is of, and goes on doing so.
pub(super) fn are_here(node: &Node, of: &SnapshotOf) -> bool {
    let here = |(name, uid): (&str, &str)| {
        let volume = node.caches.volumes.one(name).filter(|v| v.uid().as_deref() == Some(uid));
        volume.is_some_and(|volume| asked_to_release(&volume).is_none())
    };
    of.volumes().next().is_some() && of.volumes().all(here)
}

async fn write(node: &Arc<Node>, look: &Look<'_>, part: &HostPart) -> Option<Duration> {
    let absent = part.exists == Some(Rung::Down);
    let written = node.write_status(look.snapshot, if absent { &NEWEST } else { &HOST }, part).await;
    node.after_write(&format!("{}/report", look.key), written)
}

/// As an event says it.
fn action(step: Step, group: bool) -> &'static str {
    match (step, group) {
        (Step::Take | Step::Forget, false) => "CreateSnapshot",
        (Step::Find, false) => "ListSnapshots",
        (Step::Undo | Step::Delete, false) => "DeleteSnapshot",
        (Step::Take | Step::Forget, true) => groups::CREATE,
        (Step::Find, true) => groups::GET,
        (Step::Undo | Step::Delete, true) => groups::DELETE,
    }
}

async fn carry_out(
    node: &Arc<Node>,
    look: &Look<'_>,
    (step, retry): (Step, &str),
    part: &mut HostPart,
) -> Result<(), Blocked> {
    if step == Step::Forget {
        *part = HostPart { exists: Some(Rung::Unknown), ..part.taken_back() };
        return Ok(());
    }
    // As long as it may be being cut that is a matter of its volume, afterwards of itself.
    let about = match (part.ready || look.of.handle.is_empty(), part.handle.as_str()) {
        (true, "") => look.snapshot.spec.source.handle.clone(),
        (true, handle) => handle.to_owned(),
        (false, _) => look.of.handle.clone(),
    };
    let volumes: Vec<_> = look.of.members.iter().map(|member| member.handle.as_str()).collect();
    let plugin = if look.snapshot.is_group() && !part.ready {
        serving_all(node, &look.of.plugin, &volumes)?
    } else {
        serving(node, &look.of.plugin, &about)?
    };
    let asker =
        format!("snapshots/{}/{}", look.snapshot.namespace().unwrap_or_default(), look.snapshot.name_any());
    let secret = look.of.secret.as_ref();
    let secrets = match step {
        Step::Undo | Step::Delete => node.secrets_to_undo(&asker, secret).await,
        Step::Take | Step::Find | Step::Forget => node.secrets(&asker, secret).await,
    };
    let secrets = secrets.map_err(Blocked::Wait)?;
    // Groups are rare, and do not make every step's future larger.
    let done = match (step, look.snapshot.is_group()) {
        (Step::Take | Step::Forget, _) => take(node, look, retry, (&plugin, secrets), part).await,
        (Step::Find, false) => find(node, look, retry, (&plugin, secrets), part).await,
        (Step::Undo | Step::Delete, false) => delete(node, look, retry, (&plugin, secrets), part).await,
        (Step::Find, true) => Box::pin(groups::find(node, look, retry, (&plugin, secrets), part)).await,
        (Step::Undo | Step::Delete, true) => {
            Box::pin(groups::delete(node, look, retry, (&plugin, secrets), part)).await
        }
    };
    if step == Step::Undo && done.is_ok() {
        *part = part.taken_back();
    }
    done
}

/// Before the first call the server has it that one may have been made. False if it has not: then there is none.
async fn announce(node: &Arc<Node>, look: &Look<'_>, part: &mut HostPart) -> bool {
    let may_be = |exists: Option<Rung>| matches!(exists, Some(Rung::Unknown | Rung::Up));
    let shown = look.snapshot.status.as_ref().and_then(|status| status.exists);
    let answered = node.answered::<_, HostPart>(look.snapshot, &HOST).map(|answer| answer.exists);
    if (may_be(part.exists) || look.announced) && may_be(shown) && answered.is_none_or(may_be) {
        part.exists = part.exists.filter(|rung| *rung != Rung::Down).or(Some(Rung::Unknown));
        return true;
    }
    part.exists = Some(part.exists.filter(|rung| *rung == Rung::Up).unwrap_or(Rung::Unknown));
    // On this very state: one that is being deleted meanwhile may need its volume no more.
    let written = node.assert_status(look.snapshot, &NEWEST, part).await;
    let stands = matches!(written, Ok(true));
    node.after_write(&format!("{}/report", look.key), written.map(drop));
    stands
}

/// What has to be so before it is asked for; `first`: nothing was asked before.
async fn prepare(
    node: &Arc<Node>,
    look: &Look<'_>,
    plugin: &Serving,
    (uid, first): (&str, bool),
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let (can, capability) = if look.snapshot.is_group() {
        (plugin.groups, "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT")
    } else {
        (plugin.controller.create_delete_snapshot, "CREATE_DELETE_SNAPSHOT")
    };
    if first && !can {
        let plugin = plugin.name.clone();
        return Err(Blocked::Wait(Reason::PluginLacks { plugin, capability }));
    }
    if !Node::may_host(look.lease, &node.caches.volumes) {
        return Err(Blocked::Wait(Reason::LeaseNotRenewed));
    }
    if first {
        if let Some(reason) = held_back(node, look) {
            return Err(Blocked::Wait(reason));
        }
        node.doubts.set_untouched(uid, look.host.epoch);
    }
    if announce(node, look, part).await { Ok(()) } else { Err(Blocked::Unannounced) }
}

async fn take(
    node: &Arc<Node>,
    look: &Look<'_>,
    retry: &str,
    (plugin, secrets): (&Serving, requests::Secrets),
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let uid = look.snapshot.uid().unwrap_or_default();
    let first = matches!(part.exists, None | Some(Rung::Down));
    prepare(node, look, plugin, (&uid, first), part).await?;
    if look.snapshot.is_group() {
        return Box::pin(groups::take(node, look, (retry, first), (plugin, secrets), part)).await;
    }
    let request = requests::snapshot(look.of, &uid, secrets);
    let asked = request.clone();
    let about = &look.snapshot.object_ref(&());
    // It is about the volume as well: who lets go of that waits for it.
    let names = look.attempt(&look.of.uid, (retry, plugin), about);
    let answer =
        call(node, names, "CreateSnapshot", |terms| plugin.client.create_snapshot(request, terms)).await;
    if !answer.as_ref().is_err_and(Failure::is_unsent) {
        node.doubts.set_touched(&uid);
    }
    match answer {
        Ok(taken) => {
            if let Err(fault) = check::snapshot_taken(&asked, &taken) {
                return Err(does_not_fit(&taken, part, &fault));
            }
            if !part.handle.is_empty() && part.handle != taken.snapshot_id {
                let (now, before) = (&taken.snapshot_id, &part.handle);
                let message = format!("the plugin calls it \"{now}\" now and called it \"{before}\" before");
                return Err(Blocked::Answer(message));
            }
            part.told(&taken);
            tracing::info!(
                snapshot = look.snapshot.name_any(),
                handle = part.handle,
                ready = part.ready,
                "cut"
            );
            if part.ready { Ok(()) } else { Err(Blocked::Wait(Reason::SnapshotProcessing)) }
        }
        Err(failure) => Err(not_taken(look, first, part, failure)),
    }
}

/// What follows from the failure of a call that takes a snapshot, of one volume or of several.
pub(super) fn not_taken(look: &Look<'_>, first: bool, part: &mut HostPart, failure: Failure) -> Blocked {
    // The very first attempt: then, and only then, does a refusal say that nothing was cut.
    if first && !failure.is_unsent() && !failure.is_uncertain() {
        part.exists = Some(Rung::Down);
    }
    Blocked::Call(requests::naming(failure, look.of.secret.as_ref()))
}

/// The plugin answered with something else than was asked. It may be another Snapshot's, which the controllers know: the Snapshot says so,
/// and it is deleted again once they have said that nobody else has it. One whose handle is known keeps that: what was made first would
/// be lost. Of a group nothing is deleted alone (CO-CTRL-95).
fn does_not_fit(taken: &proto::Snapshot, part: &mut HostPart, fault: &check::Fault) -> Blocked {
    let told = "the plugin answered with a snapshot that does not fit";
    if !part.handle.is_empty() {
        return Blocked::Answer(format!(
            "{told}; what it cut before is \"{}\" and stays: {fault}",
            part.handle
        ));
    }
    part.exists = Some(Rung::Unknown);
    (part.handle, part.group_id) = (taken.snapshot_id.clone(), taken.group_snapshot_id.clone());
    let then = if part.group_id.is_empty() {
        "it is deleted again unless it is another's"
    } else {
        "it is of a group, with which alone it could be deleted"
    };
    Blocked::Answer(format!("{told}; {then}: {fault}"))
}

/// Whether the plugin can be asked for one snapshot: that is alpha.
fn gets(node: &Node, plugin: &str, can: csi::ControllerCapabilities) -> bool {
    can.get_snapshot && node.alpha(plugin) == csi::Alpha::On
}

/// Looks for one by its handle. Where the plugin can only list them, among all; where it cannot do that either, one that was
/// there is taken as it is.
async fn find(
    node: &Arc<Node>,
    look: &Look<'_>,
    retry: &str,
    (plugin, secrets): (&Serving, requests::Secrets),
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let spec = &look.snapshot.spec.source;
    let handle = if part.handle.is_empty() { spec.handle.clone() } else { part.handle.clone() };
    let gets = gets(node, &plugin.name, plugin.controller);
    if !(plugin.controller.list_snapshots || gets) {
        (part.exists, part.handle, part.ready) = (Some(Rung::Up), handle, true);
        return Ok(());
    }
    let uid = look.snapshot.uid().unwrap_or_default();
    let about = &look.snapshot.object_ref(&());
    let names = look.attempt(&uid, (retry, plugin), about);
    if gets {
        let request = proto::GetSnapshotRequest { snapshot_id: handle.clone(), secrets };
        let got = call(node, names, "GetSnapshot", |terms| plugin.client.get_snapshot(request, terms)).await;
        return match got {
            Ok(got) => {
                part.told(&got);
                if part.ready { Ok(()) } else { Err(Blocked::Wait(Reason::SnapshotProcessing)) }
            }
            // No word that it is gone (CO-CTRL-101).
            Err(failure) if failure.is_not_found() => Err(Blocked::Wait(Reason::SnapshotNotFound { handle })),
            Err(failure) => Err(Blocked::Call(requests::naming(failure, look.of.secret.as_ref()))),
        };
    }
    let mut pages = check::Pages::new();
    loop {
        let request = requests::list_snapshot(&handle, pages.token(), secrets.clone());
        let answer =
            call(node, names, "ListSnapshots", |terms| plugin.client.list_snapshots(request, terms)).await;
        let page = match answer {
            Ok(page) => page,
            Err(failure) if failure.is_aborted() && pages.restart().is_ok() => continue,
            Err(failure) => {
                let secret = look.of.secret.as_ref();
                return Err(Blocked::Call(requests::naming(failure, secret)));
            }
        };
        let fits = |snapshot: &&proto::Snapshot| snapshot.snapshot_id == handle;
        let entries = page.entries.iter().filter_map(|entry| entry.snapshot.as_ref());
        if let Some(found) = entries.into_iter().find(fits) {
            let unusable = |fault: check::Fault| Blocked::Answer(format!("ListSnapshots: {fault}"));
            part.told(check::snapshot_listed("", &handle, Some(found)).map_err(unusable)?);
            return if part.ready { Ok(()) } else { Err(Blocked::Wait(Reason::SnapshotProcessing)) };
        }
        match pages.took(&page.next_token, page.entries.len(), 0) {
            Ok(true) => {}
            Ok(false) => return Err(Blocked::Wait(Reason::SnapshotNotFound { handle })),
            Err(fault) => return Err(Blocked::Answer(format!("ListSnapshots: {fault}"))),
        }
    }
}

async fn delete(
    node: &Arc<Node>,
    look: &Look<'_>,
    retry: &str,
    (plugin, secrets): (&Serving, requests::Secrets),
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let shown = look.snapshot.status.as_ref().map(HostPart::of).unwrap_or_default();
    let names_it = |said: &HostPart| said.handle == part.handle;
    announced(node, (look.snapshot, &HOST, &look.key), (&shown, part), names_it).await?;
    let uid = look.snapshot.uid().unwrap_or_default();
    let request = proto::DeleteSnapshotRequest { snapshot_id: part.handle.clone(), secrets };
    let about = &look.snapshot.object_ref(&());
    let names = look.attempt(&uid, (retry, plugin), about);
    match call(node, names, "DeleteSnapshot", |terms| plugin.client.delete_snapshot(request, terms)).await {
        Ok(_) => {
            (part.exists, part.ready) = (Some(Rung::Down), false);
            tracing::info!(snapshot = look.snapshot.name_any(), handle = part.handle, "deleted");
            Ok(())
        }
        Err(failure) => {
            // Of one that was not in doubt a refusal says that it is there.
            if !(failure.is_unsent() || failure.keeps() && part.exists == Some(Rung::Up)) {
                part.exists = Some(Rung::Unknown);
            }
            Err(Blocked::Call(requests::naming(failure, look.of.secret.as_ref())))
        }
    }
}
