//! The calls about snapshots of several volumes at one moment. docs/design/snapshots.md, "Groups".
//!
//! A group is worked on by itself, beside the looks at its volumes: that a call about it is one about each of them is what
//! [`Doubts`](super::Doubts) tells whoever lets go of one, and the plugin's turns whoever asks about one.
use std::collections::BTreeSet;
use std::sync::Arc;

use kube::{Resource, ResourceExt};
use tokio::time::Instant;

use super::super::context::{Key, Node};
use super::super::requests;
use super::snapshots::{HOST, HostPart, Look, are_here, is_checked, not_taken};
use super::{Attempt, Blocked, Serving, announced, asked_to_release, call};
use crate::api::meta::Rung;
use crate::api::quantity;
use crate::api::snapshot::Member;
use crate::csi::proto;
use crate::csi::{Advice, Failure, check};
use crate::plan::Reason;
use crate::plan::group::{self, Told};

/// As an event says it.
pub(super) const CREATE: &str = "CreateVolumeGroupSnapshot";
/// The same of looking for one.
pub(super) const GET: &str = "GetVolumeGroupSnapshot";
/// The same of deleting one.
pub(super) const DELETE: &str = "DeleteVolumeGroupSnapshot";

/// Takes in what the plugin says of a group.
fn told(part: &mut HostPart, look: &Look<'_>, group: &proto::VolumeGroupSnapshot) {
    part.exists = Some(Rung::Up);
    part.handle.clone_from(&group.group_snapshot_id);
    part.ready = check::group_is_ready(group);
    part.members = members(look, &group.snapshots);
    part.creation_time = part.creation_time.or(requests::time(group.creation_time));
}

fn members(look: &Look<'_>, told: &[proto::Snapshot]) -> Vec<Member> {
    let size = |bytes: i64| if bytes == 0 { String::new() } else { quantity::display(bytes) };
    let told = told.iter().map(|one| Told {
        handle: one.snapshot_id.clone(),
        source: one.source_volume_id.clone(),
        size: size(one.size_bytes),
    });
    group::members(&look.of.members, &told.collect::<Vec<_>>())
}

fn ids(members: &[Member]) -> BTreeSet<&str> {
    members.iter().map(|member| member.handle.as_str()).collect()
}

/// That a call is also about each of the volumes, from before it until it has ended.
struct Begun<'a> {
    node: &'a Arc<Node>,
    look: &'a Look<'a>,
    at: Instant,
    /// Until when an earlier call about each was in doubt.
    before: Vec<Option<Instant>>,
}

impl<'a> Begun<'a> {
    /// Nobody lets go of a volume from now on, and none was let go of before; else there is no call.
    fn new(node: &'a Arc<Node>, look: &'a Look<'a>) -> Result<Self, Blocked> {
        let before = look.of.uids().map(|uid| node.doubts.begin(uid, &look.key)).collect();
        let begun = Self { node, look, at: Instant::now(), before };
        if are_here(node, look.of) {
            return Ok(begun);
        }
        begun.not_sent();
        Err(Blocked::Wait(Reason::VolumeNotHere))
    }

    /// Nothing is in doubt that was not before.
    fn not_sent(&self) {
        for (uid, before) in self.look.of.uids().zip(&self.before) {
            self.node.doubts.unbegin(uid, &self.look.key, *before);
        }
    }

    fn ended<T>(self, answer: &Result<T, Failure>) {
        if answer.as_ref().is_err_and(Failure::is_unsent) {
            self.not_sent();
        }
        for (name, uid) in self.look.of.volumes() {
            self.node.doubts.ended((uid, &self.look.key), self.at, answer);
            // Who lets go of it waited for this.
            if self.node.caches.volumes.one(name).is_some_and(|volume| asked_to_release(&volume).is_some()) {
                self.node.queue.wake(Key::Host(name.to_owned()));
            }
        }
    }
}

/// CreateVolumeGroupSnapshot with the frozen request; `first`: nothing was asked before.
pub(super) async fn take(
    node: &Arc<Node>,
    look: &Look<'_>,
    (retry, first): (&str, bool),
    (plugin, secrets): (&Serving, requests::Secrets),
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let uid = look.snapshot.uid().unwrap_or_default();
    let request = requests::group(look.of, &uid, secrets.clone());
    let asked = request.clone();
    let about = &look.snapshot.object_ref(&());
    let names = look.attempt(&uid, (retry, plugin), about);
    let begun = Begun::new(node, look)?;
    let create = |terms| plugin.client.create_volume_group_snapshot(request, terms);
    let answer = call(node, names, CREATE, create).await;
    begun.ended(&answer);
    if !answer.as_ref().is_err_and(Failure::is_unsent) {
        node.doubts.set_touched(&uid);
    }
    let taken = match answer {
        Ok(taken) => taken,
        Err(failure) => return Err(not_taken(look, first, part, failure)),
    };
    if let Err(fault) = check::group_taken(&asked, &taken) {
        return Err(does_not_fit(look, &taken, part, &fault));
    }
    let now = members(look, &taken.snapshots);
    let before = (part.handle.as_str(), ids(&part.members));
    if !part.handle.is_empty() && before != (taken.group_snapshot_id.as_str(), ids(&now)) {
        let message = format!(
            "the plugin says now that it is \"{}\" with {:?}, and said \"{}\" with {:?} before",
            taken.group_snapshot_id,
            ids(&now),
            before.0,
            before.1
        );
        return Err(Blocked::Answer(message));
    }
    told(part, look, &taken);
    tracing::info!(
        snapshot = look.snapshot.name_any(),
        handle = part.handle,
        members = part.members.len(),
        ready = part.ready,
        "cut"
    );
    if part.ready { Ok(()) } else { Err(Blocked::Wait(Reason::SnapshotProcessing)) }
}

/// The plugin pictured something else than was asked: it is deleted again unless it is another's, as one picture is.
fn does_not_fit(
    look: &Look<'_>,
    taken: &proto::VolumeGroupSnapshot,
    part: &mut HostPart,
    fault: &check::Fault,
) -> Blocked {
    let told = "the plugin answered with a group of snapshots that does not fit";
    if !part.handle.is_empty() {
        return Blocked::Answer(format!(
            "{told}; what it cut before is \"{}\" and stays: {fault}",
            part.handle
        ));
    }
    part.exists = Some(Rung::Unknown);
    part.handle.clone_from(&taken.group_snapshot_id);
    part.members = members(look, &taken.snapshots);
    Blocked::Answer(format!("{told}; it is deleted again unless it is another's: {fault}"))
}

/// What the plugin says of one that was cut, whoever makes the calls of its volumes by now.
pub(super) async fn find(
    node: &Arc<Node>,
    look: &Look<'_>,
    retry: &str,
    (plugin, secrets): (&Serving, requests::Secrets),
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let uid = look.snapshot.uid().unwrap_or_default();
    let about = &look.snapshot.object_ref(&());
    let names = look.attempt(&uid, (retry, plugin), about);
    let group = get(node, look, (names, secrets), part).await?;
    told(part, look, &group);
    if part.ready { Ok(()) } else { Err(Blocked::Wait(Reason::SnapshotProcessing)) }
}

/// GetVolumeGroupSnapshot with what is known of the members; where the plugin knows others, with those that it lists as of
/// this group (CO-GRP-20). Not to be found is no word that it is gone.
async fn get(
    node: &Arc<Node>,
    look: &Look<'_>,
    (names, secrets): (Attempt<'_>, requests::Secrets),
    part: &HostPart,
) -> Result<proto::VolumeGroupSnapshot, Blocked> {
    let client = &names.serving.client;
    let known: Vec<_> = part.members.iter().map(|member| member.handle.clone()).collect();
    let request = |snapshot_ids: Vec<String>| proto::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: part.handle.clone(),
        snapshot_ids,
        secrets: secrets.clone(),
    };
    let first = request(known.clone());
    let answer = call(node, names, GET, |terms| client.get_volume_group_snapshot(first, terms)).await;
    let failure = match answer {
        Ok(group) => return Ok(group),
        Err(failure) if failure.is_not_found() => {
            return Err(Blocked::Wait(Reason::SnapshotNotFound { handle: part.handle.clone() }));
        }
        Err(failure) => requests::naming(failure, look.of.secret.as_ref()),
    };
    if failure.advice() != Advice::CorrectMembers || !names.serving.controller.list_snapshots {
        return Err(Blocked::Call(failure));
    }
    let listed = listed(node, names, (&part.handle, &secrets)).await?;
    if listed.is_empty() || listed == known.iter().cloned().collect() {
        return Err(Blocked::Call(failure));
    }
    let second = request(listed.into_iter().collect());
    let answer = call(node, names, GET, |terms| client.get_volume_group_snapshot(second, terms)).await;
    answer.map_err(|failure| Blocked::Call(requests::naming(failure, look.of.secret.as_ref())))
}

/// The snapshots that the plugin lists as of this group.
async fn listed(
    node: &Arc<Node>,
    names: Attempt<'_>,
    (group, secrets): (&str, &requests::Secrets),
) -> Result<BTreeSet<String>, Blocked> {
    let client = &names.serving.client;
    let (mut pages, mut of_it) = (check::Pages::new(), BTreeSet::new());
    loop {
        let request = requests::list_snapshot("", pages.token(), secrets.clone());
        let page =
            match call(node, names, "ListSnapshots", |terms| client.list_snapshots(request, terms)).await {
                Ok(page) => page,
                Err(failure) if failure.is_aborted() && pages.restart().is_ok() => {
                    of_it.clear();
                    continue;
                }
                Err(failure) => return Err(Blocked::Call(failure)),
            };
        let entries = page.entries.iter().filter_map(|entry| entry.snapshot.as_ref());
        of_it.extend(entries.filter(|one| one.group_snapshot_id == group).map(|one| one.snapshot_id.clone()));
        match pages.took(&page.next_token, page.entries.len(), 0) {
            Ok(true) => {}
            Ok(false) => return Ok(of_it),
            Err(fault) => return Err(Blocked::Answer(format!("ListSnapshots: {fault}"))),
        }
    }
}

/// DeleteVolumeGroupSnapshot with all members that are known; where the plugin knows others it is asked which, and once more.
pub(super) async fn delete(
    node: &Arc<Node>,
    look: &Look<'_>,
    retry: &str,
    (plugin, secrets): (&Serving, requests::Secrets),
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let uid = look.snapshot.uid().unwrap_or_default();
    let about = &look.snapshot.object_ref(&());
    let names = look.attempt(&uid, (retry, plugin), about);
    let mut corrected = false;
    loop {
        stands(node, look, part).await?;
        let request = proto::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: part.handle.clone(),
            snapshot_ids: part.members.iter().map(|member| member.handle.clone()).collect(),
            secrets: secrets.clone(),
        };
        let delete = |terms| plugin.client.delete_volume_group_snapshot(request, terms);
        let Err(failure) = call(node, names, DELETE, delete).await else {
            (part.exists, part.ready) = (Some(Rung::Down), false);
            part.members.clear();
            tracing::info!(snapshot = look.snapshot.name_any(), handle = part.handle, "deleted");
            return Ok(());
        };
        if !failure.is_unsent() {
            part.exists = Some(Rung::Unknown);
        }
        if failure.advice() == Advice::CorrectMembers && !corrected {
            corrected = true;
            let group = get(node, look, (names, secrets.clone()), part).await?;
            let now = members(look, &group.snapshots);
            if ids(&now) != ids(&part.members) {
                part.members = now;
                if !is_checked(look, part) {
                    return Err(Blocked::Wait(Reason::HandleUnchecked));
                }
                continue;
            }
        }
        return Err(Blocked::Call(requests::naming(failure, look.of.secret.as_ref())));
    }
}

/// Before they are deleted the server has what they are called (CO-GRP-04).
async fn stands(node: &Arc<Node>, look: &Look<'_>, part: &HostPart) -> Result<(), Blocked> {
    let shown = look.snapshot.status.as_ref().map(HostPart::of).unwrap_or_default();
    let names_it = |said: &HostPart| said.handle == part.handle && ids(&said.members) == ids(&part.members);
    announced(node, (look.snapshot, &HOST, &look.key), (&shown, part), names_it).await
}
