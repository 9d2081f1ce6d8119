//! Snapshots of single volumes, and what is in them.
use super::super::check;
use super::super::failure::Failure;
use super::super::plugin::{Plugin, Terms};
use super::super::proto;
use super::super::rpc::Rpc;
use super::super::stream::{BlockStream, Interrupted, StreamTerms};
use super::{Answer, usable};

impl Plugin {
    /// Takes a snapshot, or says how far one is that was taken under this name: until it is ready, the identical request is
    /// repeated. Waits for its volume and for its name. An OK that holds no usable snapshot is uncertain. Compare with
    /// [`check::snapshot_taken`].
    pub async fn create_snapshot(
        &self,
        request: proto::CreateSnapshotRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::Snapshot> {
        let judge = |reply: &proto::CreateSnapshotResponse| {
            usable(Rpc::CreateSnapshot, check::snapshot(reply.snapshot.as_ref()))
        };
        let reply = self.call_checked(request, terms, judge).await?;
        reply.snapshot.ok_or_else(|| nothing(Rpc::CreateSnapshot))
    }

    /// Deletes a snapshot, which must be none of a group. Waits for streams about it.
    pub async fn delete_snapshot(
        &self,
        request: proto::DeleteSnapshotRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::DeleteSnapshotResponse> {
        self.call(request, terms).await
    }

    /// One page of the plugin's snapshots; [`Pages`](check::Pages) finds the way through all of them. Judge each with
    /// [`check::snapshot_listed`].
    pub async fn list_snapshots(
        &self,
        request: proto::ListSnapshotsRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::ListSnapshotsResponse> {
        self.call(request, terms).await
    }

    /// What the plugin knows of one snapshot. Alpha, and only when nobody else is at the snapshot
    /// ([`Failure::is_busy`]).
    pub async fn get_snapshot(
        &self,
        request: proto::GetSnapshotRequest,
        terms: impl Into<Terms>,
    ) -> Answer<proto::Snapshot> {
        let asked = request.snapshot_id.clone();
        let judge = |reply: &proto::GetSnapshotResponse| {
            usable(Rpc::GetSnapshot, check::snapshot_got(&asked, reply.snapshot.as_ref()))
        };
        let reply = self.call_checked(request, terms, judge).await?;
        reply.snapshot.ok_or_else(|| nothing(Rpc::GetSnapshot))
    }

    /// Which blocks of a snapshot hold something. Alpha. Whoever asks keeps the snapshot from being deleted between two
    /// streams; while one lasts, deleting it waits.
    pub async fn get_metadata_allocated(
        &self,
        request: proto::GetMetadataAllocatedRequest,
        terms: StreamTerms,
    ) -> Result<BlockStream, Interrupted> {
        let asked = (request.starting_offset, request.max_results);
        self.open(request, asked, terms).await
    }

    /// Which blocks differ between two snapshots of a volume, of which the target is the later one. Alpha. When the plugin
    /// keeps no account of changes, the failure's advice is to copy the whole.
    pub async fn get_metadata_delta(
        &self,
        request: proto::GetMetadataDeltaRequest,
        terms: StreamTerms,
    ) -> Result<BlockStream, Interrupted> {
        let asked = (request.starting_offset, request.max_results);
        self.open(request, asked, terms).await
    }
}

fn nothing(rpc: Rpc) -> Failure {
    Failure::unusable(rpc, &check::Fault::Nothing { what: "snapshot" })
}
