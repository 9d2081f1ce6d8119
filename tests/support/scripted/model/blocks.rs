//! The SnapshotMetadata service: its streams, as lists of messages.
use prost::Message as _;
use wharfline::csi::proto::plugin_capability::service::Type as Service;
use wharfline::csi::{Code, proto};

use super::rules;
use super::{Bench, Model, Refusal};

/// So many blocks are in a message where the caller does not say.
const USUAL: usize = 2;

impl Model {
    /// A snapshot that a stream may be about, and the bytes of its volume.
    fn readable(&self, bench: &mut Bench<'_>, field: &str, id: &str) -> Result<&proto::Snapshot, Refusal> {
        rules::alpha(bench, "the SnapshotMetadata service")?;
        let there = bench.config.has_service(Service::SnapshotMetadataService);
        bench.demand(there, Code::Unimplemented, "SNAPSHOT_METADATA_SERVICE is not reported")?;
        rules::text(bench, field, id)?;
        let Some(taken) = self.snapshots.get(id) else {
            return Err(Refusal::new(Code::NotFound, format!("no snapshot {id}")));
        };
        bench.demand(taken.ready_after == 0, Code::FailedPrecondition, "the snapshot is not ready")?;
        Ok(&taken.snapshot)
    }

    pub(super) fn allocated(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::GetMetadataAllocatedRequest,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        let capacity = self.readable(bench, "snapshot_id", &request.snapshot_id)?.size_bytes;
        let ranges = bench.config.allocated.clone();
        let parts = parts(bench, &ranges, capacity, (request.starting_offset, request.max_results))?;
        let message = |part: Vec<proto::BlockMetadata>| proto::GetMetadataAllocatedResponse {
            block_metadata_type: kind(&ranges),
            volume_capacity_bytes: capacity,
            block_metadata: part,
        };
        Ok(parts.into_iter().map(|part| message(part).encode_to_vec()).collect())
    }

    pub(super) fn delta(
        &mut self,
        bench: &mut Bench<'_>,
        request: &proto::GetMetadataDeltaRequest,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        let base = self.readable(bench, "base_snapshot_id", &request.base_snapshot_id)?.clone();
        let target = self.readable(bench, "target_snapshot_id", &request.target_snapshot_id)?;
        let of_one = base.source_volume_id == target.source_volume_id;
        bench.demand(of_one, Code::InvalidArgument, "the snapshots are of two volumes")?;
        let seconds = |snapshot: &proto::Snapshot| snapshot.creation_time.map(|time| time.seconds);
        let later = seconds(target) > seconds(&base);
        bench.demand(later, Code::InvalidArgument, "the target is not the later one")?;
        let Some(ranges) = bench.config.changed.clone() else {
            return Err(Refusal::new(Code::FailedPrecondition, "changes are not tracked"));
        };
        let capacity = target.size_bytes;
        let parts = parts(bench, &ranges, capacity, (request.starting_offset, request.max_results))?;
        let message = |part: Vec<proto::BlockMetadata>| proto::GetMetadataDeltaResponse {
            block_metadata_type: kind(&ranges),
            volume_capacity_bytes: capacity,
            block_metadata: part,
        };
        Ok(parts.into_iter().map(|part| message(part).encode_to_vec()).collect())
    }
}

fn kind(ranges: &[(i64, i64)]) -> i32 {
    let fixed = ranges.windows(2).all(|pair| pair[0].1 == pair[1].1);
    let kind =
        if fixed { proto::BlockMetadataType::FixedLength } else { proto::BlockMetadataType::VariableLength };
    kind as i32
}

/// What ends behind the offset, in messages of so many.
fn parts(
    bench: &mut Bench<'_>,
    ranges: &[(i64, i64)],
    capacity: i64,
    (from, most): (i64, i32),
) -> Result<Vec<Vec<proto::BlockMetadata>>, Refusal> {
    bench.demand(most >= 0, Code::InvalidArgument, "max_results is negative")?;
    bench.demand(from >= 0, Code::OutOfRange, "starting_offset is negative")?;
    if from > capacity {
        return Err(Refusal::new(Code::OutOfRange, "starting_offset lies beyond the volume"));
    }
    let blocks = ranges.iter().filter(|(offset, size)| offset + size > from);
    let blocks = blocks.map(|(byte_offset, size_bytes)| proto::BlockMetadata {
        byte_offset: *byte_offset,
        size_bytes: *size_bytes,
    });
    let most = usize::try_from(most).ok().filter(|most| *most > 0).unwrap_or(USUAL);
    Ok(blocks.collect::<Vec<_>>().chunks(most).map(<[_]>::to_vec).collect())
}
