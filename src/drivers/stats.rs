//! What is used of a file system, as the kernel counts it and as it is told.
use std::io;
use std::os::fd::AsFd;

use super::listing::wire;
use super::refusal::Refusal;
use super::request::{self, TargetPath, VolumeId};
use crate::csi::proto;
use crate::csi::proto::volume_usage::Unit;

/// How much there is, of bytes or of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) total: u64,
    pub(super) used: u64,
    pub(super) available: u64,
}

/// Reads what a NodeGetVolumeStats is about. An id that cannot be one of this driver is that of no volume.
pub(super) fn asked(asked: &proto::NodeGetVolumeStatsRequest) -> Result<(VolumeId, TargetPath), Refusal> {
    let id = request::volume_id(&asked.volume_id)?;
    let path = request::path("volume_path", &asked.volume_path)?;
    let id = id.ok_or_else(|| Refusal::NoVolume { volume: asked.volume_id.clone() })?;
    Ok((id, path))
}

/// Bytes of the file system that a file is in.
pub(super) fn bytes(file: impl AsFd) -> io::Result<Usage> {
    let fs = rustix::fs::fstatvfs(file)?;
    let bytes = |blocks: u64| blocks.saturating_mul(fs.f_frsize);
    Ok(Usage {
        total: bytes(fs.f_blocks),
        used: bytes(fs.f_blocks.saturating_sub(fs.f_bfree)),
        available: bytes(fs.f_bavail),
    })
}

/// Inodes of the file system that a file is in; none where they are not counted.
pub(super) fn entries(file: impl AsFd) -> io::Result<Option<Usage>> {
    let fs = rustix::fs::fstatvfs(file)?;
    let counted =
        Usage { total: fs.f_files, used: fs.f_files.saturating_sub(fs.f_ffree), available: fs.f_favail };
    Ok((fs.f_files > 0).then_some(counted))
}

/// The answer of a file system.
pub(super) fn answer(bytes: Usage, entries: Option<Usage>) -> proto::NodeGetVolumeStatsResponse {
    let usage = [Some((bytes, Unit::Bytes)), entries.map(|entries| (entries, Unit::Inodes))];
    let usage = usage.into_iter().flatten().map(|(usage, unit)| proto::VolumeUsage {
        available: wire(usage.available),
        total: wire(usage.total),
        used: wire(usage.used),
        unit: unit.into(),
    });
    proto::NodeGetVolumeStatsResponse { usage: usage.collect(), volume_condition: None }
}

/// The answer of a device, of whose bytes nobody knows which are used.
pub(super) fn of_device(total: u64) -> proto::NodeGetVolumeStatsResponse {
    let usage = proto::VolumeUsage { total: wire(total), unit: Unit::Bytes.into(), ..Default::default() };
    proto::NodeGetVolumeStatsResponse { usage: vec![usage], volume_condition: None }
}
