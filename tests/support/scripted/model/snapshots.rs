//! Snapshots of single volumes.
use wharfline::csi::proto::controller_service_capability::rpc::Type as Can;
use wharfline::csi::{Code, proto};

use super::controller::demand;
use super::rules;
use super::{Bench, Map, Model, Refusal, Taken};

/// When the first snapshot was taken; each later one a second after the one before.
const FIRST: i64 = 1_700_000_000;

impl Model {
    /// The id of the snapshot that was taken under this name.
    pub fn snapshot_named(&self, name: &str) -> Option<String> {
        let named = |taken: &Taken| taken.request.as_ref().is_some_and(|request| request.name == name);
        self.snapshots.iter().find(|(_, taken)| named(taken)).map(|(id, _)| id.clone())
    }

    /// Cuts a snapshot of a volume that is there.
    pub(super) fn cut(&mut self, volume: &str, group: &str) -> proto::Snapshot {
        self.made += 1;
        let made = i64::try_from(self.made).expect("few are made");
        proto::Snapshot {
            size_bytes: self.volumes[volume].capacity,
            snapshot_id: format!("snap/{made:04}"),
            source_volume_id: volume.to_owned(),
            creation_time: Some(prost_types::Timestamp { seconds: FIRST + made, nanos: 0 }),
            ready_to_use: false,
            group_snapshot_id: group.to_owned(),
        }
    }

    /// A snapshot as it is told now.
    pub(super) fn told(&self, id: &str) -> Option<proto::Snapshot> {
        let taken = self.snapshots.get(id)?;
        Some(proto::Snapshot { ready_to_use: taken.ready_after == 0, ..taken.snapshot.clone() })
    }

    pub(super) fn create_snapshot(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::CreateSnapshotRequest,
    ) -> Result<proto::CreateSnapshotResponse, Refusal> {
        demand(bench, Can::CreateDeleteSnapshot)?;
        rules::text(bench, "source_volume_id", &request.source_volume_id)?;
        rules::text(bench, "name", &request.name)?;
        bench.demand(request.name.len() <= 128, Code::InvalidArgument, "name is too long")?;
        rules::map(bench, "parameters", &request.parameters)?;
        rules::map(bench, "secrets", &request.secrets)?;
        let frozen = proto::CreateSnapshotRequest { secrets: Map::new(), ..request.clone() };
        let id = match self.snapshot_named(&request.name) {
            Some(id) => {
                let taken = self.snapshots.get_mut(&id).expect("it was found");
                let same = taken.request.as_ref() == Some(&frozen);
                bench.demand(same, Code::AlreadyExists, "the name is that of another request")?;
                taken.ready_after = taken.ready_after.saturating_sub(1);
                id
            }
            None => {
                if !self.volumes.contains_key(&request.source_volume_id) {
                    return Err(Refusal::new(Code::NotFound, "there is no such volume"));
                }
                let snapshot = self.cut(&request.source_volume_id, "");
                let id = snapshot.snapshot_id.clone();
                let ready_after = bench.config.ready_after;
                self.snapshots.insert(id.clone(), Taken { request: Some(frozen), snapshot, ready_after });
                id
            }
        };
        Ok(proto::CreateSnapshotResponse { snapshot: self.told(&id) })
    }

    pub(super) fn delete_snapshot(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::DeleteSnapshotRequest,
    ) -> Result<proto::DeleteSnapshotResponse, Refusal> {
        demand(bench, Can::CreateDeleteSnapshot)?;
        rules::text(bench, "snapshot_id", &request.snapshot_id)?;
        rules::map(bench, "secrets", &request.secrets)?;
        if let Some(taken) = self.snapshots.get(&request.snapshot_id) {
            let alone = taken.snapshot.group_snapshot_id.is_empty();
            bench.demand(alone, Code::InvalidArgument, "the snapshot is part of a group")?;
        }
        self.snapshots.remove(&request.snapshot_id);
        Ok(proto::DeleteSnapshotResponse {})
    }

    pub(super) fn list_snapshots(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::ListSnapshotsRequest,
    ) -> Result<proto::ListSnapshotsResponse, Refusal> {
        use proto::list_snapshots_response::Entry;
        demand(bench, Can::ListSnapshots)?;
        rules::map(bench, "secrets", &request.secrets)?;
        let fits = |filter: &str, value: &str| filter.is_empty() || filter == value;
        let wanted = self.snapshots.values().map(|taken| &taken.snapshot).filter(|snapshot| {
            fits(&request.source_volume_id, &snapshot.source_volume_id)
                && fits(&request.snapshot_id, &snapshot.snapshot_id)
        });
        let wanted = wanted.map(|snapshot| snapshot.snapshot_id.clone()).collect::<Vec<_>>();
        let (page, next_token) = rules::page(bench, &request.starting_token, request.max_entries, &wanted)?;
        let entries = page.iter().map(|id| Entry { snapshot: self.told(id) }).collect();
        Ok(proto::ListSnapshotsResponse { entries, next_token })
    }

    pub(super) fn get_snapshot(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::GetSnapshotRequest,
    ) -> Result<proto::GetSnapshotResponse, Refusal> {
        rules::alpha(bench, "GetSnapshot")?;
        demand(bench, Can::GetSnapshot)?;
        rules::text(bench, "snapshot_id", &request.snapshot_id)?;
        match self.told(&request.snapshot_id) {
            None => Err(Refusal::new(Code::NotFound, format!("no snapshot {}", request.snapshot_id))),
            snapshot => Ok(proto::GetSnapshotResponse { snapshot }),
        }
    }
}
