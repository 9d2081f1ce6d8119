//! What every request has to keep to.
use wharfline::csi::Code;
use wharfline::csi::proto::VolumeCapability;
use wharfline::csi::proto::volume_capability::AccessType;
use wharfline::csi::proto::volume_capability::access_mode::Mode;

use super::{Bench, Map, Refusal};

/// The modes of volumes that may be on several nodes.
pub(in super::super) const MULTI_NODE: &[i32] = &[
    Mode::MultiNodeReaderOnly as i32,
    Mode::MultiNodeSingleWriter as i32,
    Mode::MultiNodeMultiWriter as i32,
];

pub(super) fn mode(capability: &VolumeCapability) -> i32 {
    capability.access_mode.as_ref().map_or(0, |mode| mode.mode)
}

/// Whether one node may publish the volume at several targets.
pub(super) fn several_targets(capability: &VolumeCapability) -> bool {
    let mode = mode(capability);
    MULTI_NODE.contains(&mode) || mode == Mode::SingleNodeMultiWriter as i32
}

/// A required text of limited length.
pub(super) fn text(bench: &mut Bench<'_>, field: &str, value: &str) -> Result<(), Refusal> {
    bench.demand(!value.is_empty(), Code::InvalidArgument, &format!("{field} is missing"))?;
    bench.demand(value.len() <= 256, Code::InvalidArgument, &format!("{field} has {} bytes", value.len()))
}

/// A required absolute path; no plugin needs to take more than 128 bytes.
pub(super) fn path(bench: &mut Bench<'_>, field: &str, value: &str) -> Result<(), Refusal> {
    bench.demand(!value.is_empty(), Code::InvalidArgument, &format!("{field} is missing"))?;
    bench.demand(value.starts_with('/'), Code::InvalidArgument, &format!("{field} is not absolute"))?;
    bench.demand(value.len() <= 128, Code::InvalidArgument, &format!("{field} has {} bytes", value.len()))
}

/// A map within the limit of the specification.
pub(super) fn map(bench: &mut Bench<'_>, field: &str, entries: &Map) -> Result<(), Refusal> {
    let length = entries.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
    bench.demand(length <= 4096, Code::InvalidArgument, &format!("{field} has {length} bytes"))
}

/// A complete capability. `several_writers` is what the side asked reports of `SINGLE_NODE_MULTI_WRITER`.
pub(super) fn capability(
    bench: &mut Bench<'_>,
    capability: Option<&VolumeCapability>,
    several_writers: bool,
) -> Result<(), Refusal> {
    let Some(capability) = capability else {
        return Err(bench.violated(Code::InvalidArgument, "volume_capability is missing"));
    };
    bench.demand(capability.access_type.is_some(), Code::InvalidArgument, "access_type is missing")?;
    let mode = mode(capability);
    bench.demand(
        Mode::try_from(mode).is_ok_and(|mode| mode != Mode::Unknown),
        Code::InvalidArgument,
        "access_mode is missing",
    )?;
    let split = mode == Mode::SingleNodeSingleWriter as i32 || mode == Mode::SingleNodeMultiWriter as i32;
    bench.demand(
        several_writers || !split,
        Code::InvalidArgument,
        "an access mode of SINGLE_NODE_MULTI_WRITER is used, which is not reported",
    )?;
    if let Some(AccessType::Mount(mount)) = &capability.access_type {
        let flags = mount.mount_flags.iter().map(String::len).sum::<usize>();
        bench.demand(flags <= 4096, Code::InvalidArgument, "mount_flags are too long")?;
    }
    Ok(())
}

/// What the contract calls alpha is sent only by a caller who may.
pub(super) fn alpha(bench: &mut Bench<'_>, what: &str) -> Result<(), Refusal> {
    let may = bench.config.alpha;
    bench.demand(may, Code::Unimplemented, &format!("{what}: alpha, and that is switched off"))
}

/// A required range of sizes: at least one bound, none negative, in order.
pub(super) fn range(
    bench: &mut Bench<'_>,
    range: Option<&wharfline::csi::proto::CapacityRange>,
) -> Result<(i64, i64), Refusal> {
    let (required, limit) = range.map_or((0, 0), |range| (range.required_bytes, range.limit_bytes));
    let sane =
        required >= 0 && limit >= 0 && (required > 0 || limit > 0) && (limit == 0 || limit >= required);
    bench.demand(sane, Code::InvalidArgument, "capacity_range is missing or makes no sense")?;
    Ok((required, limit))
}

/// One page of `ids`, and the token of the next.
pub(super) fn page<'a>(
    bench: &mut Bench<'_>,
    token: &str,
    most: i32,
    ids: &'a [String],
) -> Result<(&'a [String], String), Refusal> {
    let most = usize::try_from(most);
    bench.demand(most.is_ok(), Code::InvalidArgument, "max_entries is negative")?;
    let from = if token.is_empty() { Some(0) } else { token.parse().ok() };
    let Some(rest) = from.and_then(|from: usize| ids.get(from..)) else {
        return Err(Refusal::new(Code::Aborted, "no such token"));
    };
    let most = most.ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
    let page = &rest[..rest.len().min(most)];
    let end = ids.len() - rest.len() + page.len();
    Ok((page, if end < ids.len() { end.to_string() } else { String::new() }))
}
