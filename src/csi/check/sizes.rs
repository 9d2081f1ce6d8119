//! What a volume has grown to.
use super::super::proto::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, NodeExpandVolumeRequest,
    NodeExpandVolumeResponse,
};
use super::Fault;

/// What `ControllerExpandVolume` came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expanded {
    /// What the volume has now, in bytes.
    pub bytes: i64,
    /// `NodeExpandVolume` is owed wherever it is used, if the node service has that.
    pub node_expansion_required: bool,
}

/// The answer of `ControllerExpandVolume`. Its capacity is REQUIRED: zero is no answer.
pub fn expanded(
    request: &ControllerExpandVolumeRequest,
    answer: &ControllerExpandVolumeResponse,
) -> Result<Expanded, Fault> {
    let bytes = answer.capacity_bytes;
    within(request.capacity_range.as_ref(), bytes)?;
    Ok(Expanded { bytes, node_expansion_required: answer.node_expansion_required })
}

/// The answer of `NodeExpandVolume`: what the volume has now, or none where the plugin does not say. That is no fault, and
/// no size of zero.
pub fn node_expanded(
    request: &NodeExpandVolumeRequest,
    answer: &NodeExpandVolumeResponse,
) -> Result<Option<i64>, Fault> {
    match answer.capacity_bytes {
        0 => Ok(None),
        bytes => within(request.capacity_range.as_ref(), bytes).map(|()| Some(bytes)),
    }
}

fn within(range: Option<&CapacityRange>, bytes: i64) -> Result<(), Fault> {
    if bytes < 0 {
        return Err(Fault::NegativeCapacity { bytes });
    }
    let (required, limit) = range.map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
    if bytes < required || bytes == 0 || (limit != 0 && bytes > limit) {
        return Err(Fault::CapacityOutOfRange { bytes, required, limit });
    }
    Ok(())
}

/// A range of bytes for people.
pub(super) fn range(required: i64, limit: i64) -> String {
    match (required, limit) {
        (required, 0) => format!("{required} at least"),
        (0, limit) => format!("{limit} at most"),
        (required, limit) if required == limit => format!("{required}, no less and no more"),
        (required, limit) => format!("{required} at least and {limit} at most"),
    }
}
