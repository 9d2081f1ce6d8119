//! Snapshots: what is remembered of one, and the calls about them that ask nothing of the data.
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use prost_types::Timestamp;
use serde::{Deserialize, Serialize};

use super::homes::{All, Clear, Homes, SNAPSHOTS};
use super::listing::{self, wire};
use super::record::Record;
use super::refusal::Refusal;
use super::request::{self, VolumeId};
use crate::csi::proto;

/// What is remembered of a snapshot beside its name and size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cut {
    /// The id of the volume that it is of.
    pub(super) volume: String,
    /// When it was taken, since 1970.
    seconds: i64,
    nanoseconds: i32,
}

/// The snapshots of one data directory.
pub(super) type Snapshots = Homes<Cut>;

/// A snapshot that is asked for.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) source: VolumeId,
}

/// Makes the directories that are missing and finishes what was cut short.
pub(super) fn open(root: &Path, clear: Option<Clear>) -> Result<Snapshots, Refusal> {
    Homes::open(root, &SNAPSHOTS, clear)
}

/// Reads a request for a snapshot.
pub(super) fn wanted(asked: &proto::CreateSnapshotRequest) -> Result<Wanted<'_>, Refusal> {
    let name = request::name(&asked.name)?;
    let field = "source_volume_id";
    if asked.source_volume_id.is_empty() {
        return Err(Refusal::Invalid { field, problem: "is missing".into() });
    }
    request::no_parameters("parameters", asked.parameters.keys())?;
    let source = VolumeId::parse(&asked.source_volume_id);
    let source = source.ok_or_else(|| Refusal::NoVolume { volume: asked.source_volume_id.clone() })?;
    Ok(Wanted { name, source })
}

/// The snapshot of this name, if there is one. The name with another source is taken.
pub(super) fn known(all: &All<'_, Cut>, wanted: &Wanted<'_>) -> Result<Option<Record<Cut>>, Refusal> {
    match all.records.iter().find(|record| record.name == wanted.name) {
        Some(record) if record.state.volume != wanted.source.as_str() => {
            Err(Refusal::NameTaken { kind: "snapshot", name: wanted.name.to_owned(), what: "source" })
        }
        known => Ok(known.cloned()),
    }
}

/// The record of a snapshot that is taken now, of a volume of so many bytes.
pub(super) fn record(root: &Path, wanted: &Wanted<'_>, capacity: u64) -> Record<Cut> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut record =
        Record::<Cut>::new(VolumeId::of("snapshot", root, wanted.name), wanted.name, capacity, [].into());
    record.state = Cut {
        volume: wanted.source.as_str().to_owned(),
        seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: i32::try_from(now.subsec_nanos()).unwrap_or(0),
    };
    record
}

/// A snapshot as it is told. One that is told of can be used: it was whole before it got its place.
pub(super) fn describe(record: &Record<Cut>) -> proto::Snapshot {
    proto::Snapshot {
        size_bytes: wire(record.capacity),
        snapshot_id: record.id.as_str().to_owned(),
        source_volume_id: record.state.volume.clone(),
        creation_time: Some(Timestamp { seconds: record.state.seconds, nanos: record.state.nanoseconds }),
        ready_to_use: true,
        group_snapshot_id: String::new(),
    }
}

/// Removes a snapshot. One that is not there is success; one that a volume is being made from is at work.
pub(super) fn delete(
    snapshots: &Snapshots,
    asked: &proto::DeleteSnapshotRequest,
) -> Result<proto::DeleteSnapshotResponse, Refusal> {
    // What cannot be an id of ours names no snapshot, and no snapshot is what the caller wants.
    if let Some(id) = request::snapshot_id(&asked.snapshot_id)? {
        snapshots.delete(&id, |_| Ok(()))?;
    }
    Ok(proto::DeleteSnapshotResponse {})
}

/// A page of the snapshots that are asked for. An id that names nothing is an empty list.
pub(super) fn list(
    snapshots: &Snapshots,
    asked: &proto::ListSnapshotsRequest,
) -> Result<proto::ListSnapshotsResponse, Refusal> {
    let mut ids = snapshots.ids()?;
    if !asked.snapshot_id.is_empty() {
        ids.retain(|id| id.as_str() == asked.snapshot_id);
    }
    if !asked.source_volume_id.is_empty() {
        // Before it is cut into pages, or a page would be shorter than it may be.
        let of = |record: Record<Cut>| record.state.volume == asked.source_volume_id;
        ids.retain(|id| snapshots.find_or_warn(id).is_some_and(of));
    }
    let (page, next_token) = listing::page(&ids, asked.max_entries, &asked.starting_token)?;
    let entry =
        |record: Record<Cut>| proto::list_snapshots_response::Entry { snapshot: Some(describe(&record)) };
    let entries = page.into_iter().filter_map(|id| snapshots.find_or_warn(id)).map(entry).collect();
    Ok(proto::ListSnapshotsResponse { entries, next_token })
}

/// One snapshot.
pub(super) fn get(
    snapshots: &Snapshots,
    asked: &proto::GetSnapshotRequest,
) -> Result<proto::GetSnapshotResponse, Refusal> {
    let missing = || Refusal::NoSnapshot { snapshot: asked.snapshot_id.clone() };
    let id = request::snapshot_id(&asked.snapshot_id)?.ok_or_else(missing)?;
    let record = snapshots.find(&id)?.ok_or_else(missing)?;
    Ok(proto::GetSnapshotResponse { snapshot: Some(describe(&record)) })
}
