//! The GroupController service: snapshots of several volumes at one moment.
use super::super::capabilities::GroupControllerCapabilities;
use super::super::check;
use super::super::failure::Failure;
use super::super::plugin::{Plugin, Terms};
use super::super::proto;
use super::super::rpc::Rpc;
use super::{Answer, usable};

impl Plugin {
    /// What the group controller service can do.
    pub async fn group_controller_get_capabilities(
        &self,
        terms: impl Into<Terms>,
    ) -> Answer<GroupControllerCapabilities> {
        let reply = self.call(proto::GroupControllerGetCapabilitiesRequest {}, terms).await?;
        Ok(GroupControllerCapabilities::from(&reply))
    }

    /// Takes a snapshot of each volume, or says how far those are that were taken under this name. Waits for its name and
    /// for all its volumes, and holds none of them while it waits for another. An OK that holds no usable group is uncertain.
    /// Compare with [`check::group_taken`].
    pub async fn create_volume_group_snapshot(
        &self,
        request: proto::CreateVolumeGroupSnapshotRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::VolumeGroupSnapshot> {
        let judge = |reply: &proto::CreateVolumeGroupSnapshotResponse| {
            usable(Rpc::CreateVolumeGroupSnapshot, check::group(reply.group_snapshot.as_ref()))
        };
        let reply = self.call_checked(request, terms, judge).await?;
        reply.group_snapshot.ok_or_else(|| nothing(Rpc::CreateVolumeGroupSnapshot))
    }

    /// Deletes a group with all its snapshots, which the request has to name. Waits for streams about them.
    pub async fn delete_volume_group_snapshot(
        &self,
        request: proto::DeleteVolumeGroupSnapshotRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::DeleteVolumeGroupSnapshotResponse> {
        self.call(request, terms).await
    }

    /// What the plugin knows of a group. Only when nobody else is at it ([`Failure::is_busy`]).
    pub async fn get_volume_group_snapshot(
        &self,
        request: proto::GetVolumeGroupSnapshotRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::VolumeGroupSnapshot> {
        let asked = proto::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: request.group_snapshot_id.clone(),
            ..Default::default()
        };
        let judge = |reply: &proto::GetVolumeGroupSnapshotResponse| {
            usable(Rpc::GetVolumeGroupSnapshot, check::group_got(&asked, reply.group_snapshot.as_ref()))
        };
        let reply = self.call_checked(request, terms, judge).await?;
        reply.group_snapshot.ok_or_else(|| nothing(Rpc::GetVolumeGroupSnapshot))
    }
}

fn nothing(rpc: Rpc) -> Failure {
    Failure::unusable(rpc, &check::Fault::Nothing { what: "group snapshot" })
}
