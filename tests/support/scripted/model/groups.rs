//! The GroupController service.
use wharfline::csi::proto::group_controller_service_capability::rpc::Type as Can;
use wharfline::csi::proto::plugin_capability::service::Type as Service;
use wharfline::csi::{Code, proto};

use super::rules;
use super::{Bench, Map, Model, Refusal, Taken, TakenGroup};

pub(super) fn demand_service(bench: &mut Bench<'_>) -> Result<(), Refusal> {
    let there = bench.config.has_service(Service::GroupControllerService);
    bench.demand(there, Code::Unimplemented, "GROUP_CONTROLLER_SERVICE is not reported")
}

fn demand(bench: &mut Bench<'_>) -> Result<(), Refusal> {
    demand_service(bench)?;
    let can = Can::CreateDeleteGetVolumeGroupSnapshot;
    let there = bench.config.group_can(can);
    bench.demand(there, Code::Unimplemented, &format!("{} is not reported", can.as_str_name()))
}

impl Model {
    /// The id of the group that was taken under this name.
    pub(super) fn group_named(&self, name: &str) -> Option<String> {
        self.groups.iter().find(|(_, group)| group.request.name == name).map(|(id, _)| id.clone())
    }

    fn told_group(&self, id: &str) -> Option<proto::VolumeGroupSnapshot> {
        let group = self.groups.get(id)?;
        let snapshots = group.members.iter().filter_map(|member| self.told(member)).collect::<Vec<_>>();
        Some(proto::VolumeGroupSnapshot {
            group_snapshot_id: id.to_owned(),
            creation_time: snapshots.first().and_then(|first| first.creation_time),
            ready_to_use: group.ready_after == 0,
            snapshots,
        })
    }

    pub(super) fn create_group(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::CreateVolumeGroupSnapshotRequest,
    ) -> Result<proto::CreateVolumeGroupSnapshotResponse, Refusal> {
        demand(bench)?;
        rules::text(bench, "name", &request.name)?;
        bench.demand(request.name.len() <= 128, Code::InvalidArgument, "name is too long")?;
        let some = !request.source_volume_ids.is_empty();
        bench.demand(some, Code::InvalidArgument, "source_volume_ids are missing")?;
        rules::map(bench, "parameters", &request.parameters)?;
        rules::map(bench, "secrets", &request.secrets)?;
        let frozen = proto::CreateVolumeGroupSnapshotRequest { secrets: Map::new(), ..request.clone() };
        if let Some(id) = self.group_named(&request.name) {
            let group = self.groups.get_mut(&id).expect("it was found");
            let same = group.request == frozen;
            bench.demand(same, Code::AlreadyExists, "the name is that of another request")?;
            group.ready_after = group.ready_after.saturating_sub(1);
            for member in &group.members {
                let ready_after = group.ready_after;
                self.snapshots.entry(member.clone()).and_modify(|taken| taken.ready_after = ready_after);
            }
            return Ok(proto::CreateVolumeGroupSnapshotResponse { group_snapshot: self.told_group(&id) });
        }
        if let Some(unknown) = request.source_volume_ids.iter().find(|id| !self.volumes.contains_key(*id)) {
            return Err(Refusal::new(Code::NotFound, format!("no volume {unknown}")));
        }
        self.made += 1;
        let (id, ready_after) = (format!("group/{:04}", self.made), bench.config.ready_after);
        let mut members = Vec::new();
        for volume in &request.source_volume_ids {
            let snapshot = self.cut(volume, &id);
            members.push(snapshot.snapshot_id.clone());
            self.snapshots
                .insert(snapshot.snapshot_id.clone(), Taken { request: None, snapshot, ready_after });
        }
        self.groups.insert(id.clone(), TakenGroup { request: frozen, members, ready_after });
        Ok(proto::CreateVolumeGroupSnapshotResponse { group_snapshot: self.told_group(&id) })
    }

    /// The request names all members of the group, and no others.
    fn check_members(&self, bench: &mut Bench<'_>, id: &str, named: &[String]) -> Result<(), Refusal> {
        rules::text(bench, "group_snapshot_id", id)?;
        bench.demand(!named.is_empty(), Code::InvalidArgument, "snapshot_ids are missing")?;
        let Some(group) = self.groups.get(id) else { return Ok(()) };
        let sorted = |ids: &[String]| {
            let mut ids = ids.to_vec();
            ids.sort();
            ids
        };
        let same = sorted(&group.members) == sorted(named);
        bench.demand(same, Code::InvalidArgument, "snapshot_ids are not those of the group")
    }

    pub(super) fn delete_group(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::DeleteVolumeGroupSnapshotRequest,
    ) -> Result<proto::DeleteVolumeGroupSnapshotResponse, Refusal> {
        demand(bench)?;
        rules::map(bench, "secrets", &request.secrets)?;
        self.check_members(bench, &request.group_snapshot_id, &request.snapshot_ids)?;
        if let Some(group) = self.groups.remove(&request.group_snapshot_id) {
            self.snapshots.retain(|id, _| !group.members.contains(id));
        }
        Ok(proto::DeleteVolumeGroupSnapshotResponse {})
    }

    pub(super) fn get_group(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::GetVolumeGroupSnapshotRequest,
    ) -> Result<proto::GetVolumeGroupSnapshotResponse, Refusal> {
        demand(bench)?;
        rules::map(bench, "secrets", &request.secrets)?;
        self.check_members(bench, &request.group_snapshot_id, &request.snapshot_ids)?;
        match self.told_group(&request.group_snapshot_id) {
            None => Err(Refusal::new(Code::NotFound, format!("no group {}", request.group_snapshot_id))),
            group_snapshot => Ok(proto::GetVolumeGroupSnapshotResponse { group_snapshot }),
        }
    }
}
