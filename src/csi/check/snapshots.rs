//! Snapshots, alone and in groups.
use std::collections::BTreeSet;

use super::super::proto::{
    CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest, Snapshot,
    VolumeGroupSnapshot,
};
use super::{Fault, MAX_VOLUME_ID, cut, printable};

const SNAPSHOT: &str = "snapshot";
const GROUP: &str = "group snapshot";

/// A snapshot of an answer, taken by itself. Its time is REQUIRED, and left out by some drivers all the same: that is
/// taken. A size of zero is "not known".
pub fn snapshot(snapshot: Option<&Snapshot>) -> Result<&Snapshot, Fault> {
    let snapshot = snapshot.ok_or(Fault::Nothing { what: SNAPSHOT })?;
    id(SNAPSHOT, &snapshot.snapshot_id)?;
    if snapshot.size_bytes < 0 {
        return Err(Fault::NegativeSize { bytes: snapshot.size_bytes });
    }
    time(SNAPSHOT, snapshot.creation_time.as_ref())?;
    Ok(snapshot)
}

/// A snapshot against the request that took it. It exists, whatever is wrong with it, and has to be deleted.
pub fn snapshot_taken(request: &CreateSnapshotRequest, taken: &Snapshot) -> Result<(), Fault> {
    same("source volume", &request.source_volume_id, &taken.source_volume_id)
}

/// A snapshot that was asked for by its id.
pub fn snapshot_got<'a>(asked: &str, got: Option<&'a Snapshot>) -> Result<&'a Snapshot, Fault> {
    let got = snapshot(got)?;
    same(SNAPSHOT, asked, &got.snapshot_id)?;
    Ok(got)
}

/// An entry of a list that was asked for with these filters, each of which may be empty.
pub fn snapshot_listed<'a>(
    source_volume: &str,
    snapshot_id: &str,
    entry: Option<&'a Snapshot>,
) -> Result<&'a Snapshot, Fault> {
    let entry = snapshot(entry)?;
    if !source_volume.is_empty() {
        same("source volume", source_volume, &entry.source_volume_id)?;
    }
    if !snapshot_id.is_empty() {
        same(SNAPSHOT, snapshot_id, &entry.snapshot_id)?;
    }
    Ok(entry)
}

/// A group snapshot of an answer, taken by itself: each member is of it, and none is there twice.
pub fn group(group: Option<&VolumeGroupSnapshot>) -> Result<&VolumeGroupSnapshot, Fault> {
    let group = group.ok_or(Fault::Nothing { what: GROUP })?;
    id(GROUP, &group.group_snapshot_id)?;
    time(GROUP, group.creation_time.as_ref())?;
    if group.snapshots.is_empty() {
        return Err(Fault::WrongMembers { why: "there are none" });
    }
    let mut seen = BTreeSet::new();
    for member in &group.snapshots {
        snapshot(Some(member))?;
        if member.group_snapshot_id != group.group_snapshot_id {
            return Err(Fault::WrongMembers { why: "one is not said to be of this group" });
        }
        if !seen.insert(&member.snapshot_id) {
            return Err(Fault::WrongMembers { why: "one is there twice" });
        }
    }
    Ok(group)
}

/// A group snapshot against the request that took it: one snapshot of each volume. It exists, whatever is wrong with it.
pub fn group_taken(
    request: &CreateVolumeGroupSnapshotRequest,
    taken: &VolumeGroupSnapshot,
) -> Result<(), Fault> {
    let wanted = request.source_volume_ids.iter().collect::<BTreeSet<_>>();
    let sources = taken.snapshots.iter().map(|member| &member.source_volume_id).collect::<BTreeSet<_>>();
    if wanted == sources && taken.snapshots.len() == wanted.len() {
        Ok(())
    } else {
        Err(Fault::WrongMembers { why: "they are not one of each volume that was asked for" })
    }
}

/// A group snapshot that was asked for by its id and those of its members.
pub fn group_got<'a>(
    asked: &GetVolumeGroupSnapshotRequest,
    got: Option<&'a VolumeGroupSnapshot>,
) -> Result<&'a VolumeGroupSnapshot, Fault> {
    let got = group(got)?;
    same(GROUP, &asked.group_snapshot_id, &got.group_snapshot_id)?;
    Ok(got)
}

/// Whether all of a group can be used: its own word counts for nothing while a member is not ready.
pub fn group_is_ready(group: &VolumeGroupSnapshot) -> bool {
    group.ready_to_use && group.snapshots.iter().all(|member| member.ready_to_use)
}

fn id(what: &'static str, id: &str) -> Result<(), Fault> {
    if id.is_empty() {
        return Err(Fault::NoId { what });
    }
    if id.len() > MAX_VOLUME_ID {
        return Err(Fault::IdTooLong { what, length: id.len() });
    }
    printable(what, id)
}

fn time(what: &'static str, time: Option<&prost_types::Timestamp>) -> Result<(), Fault> {
    /// 9999-12-31T23:59:59Z, where the type of the contract ends.
    const LAST: i64 = 253_402_300_799;
    match time {
        Some(time) if !(0..=LAST).contains(&time.seconds) || !(0..1_000_000_000).contains(&time.nanos) => {
            Err(Fault::IllegalTime { what, seconds: time.seconds, nanos: time.nanos })
        }
        Some(_) | None => Ok(()),
    }
}

fn same(what: &'static str, asked: &str, told: &str) -> Result<(), Fault> {
    if asked == told { Ok(()) } else { Err(Fault::AnotherOne { what, told: cut(told) }) }
}

pub(super) fn same_volume(asked: &str, told: &str) -> Result<(), Fault> {
    same("volume", asked, told)
}
