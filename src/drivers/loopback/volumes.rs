//! The volumes of a backend: what is promised of the disk, and to which nodes they are attached.
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::attachment::{Attachment, Attachments, Next};
use super::device;
use super::image;
use crate::drivers::homes::{self, Homes};
use crate::drivers::record;
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{Size, VolumeId};

/// The record of a volume.
pub(super) type Record = record::Record<Attachments>;
/// One volume that no other call can touch meanwhile.
pub(super) type Locked = homes::Locked<Attachments>;

const MIB: u64 = 1 << 20;
/// What a file system of any kind here has room to be.
pub(super) const LEAST: u64 = 4 * MIB;
/// For a request that names no size.
const USUAL: u64 = 1024 * MIB;
/// Sizes are multiples of it: the largest block of the file systems here.
const BLOCK: u64 = 4096;

/// The data directory that all nodes share.
#[derive(Debug)]
pub(super) struct Volumes {
    pub(super) homes: Homes<Attachments>,
}

/// What a new volume is made from.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) size: Size,
    /// The smallest size that serves the capabilities asked for.
    pub(super) least: u64,
    pub(super) parameters: BTreeMap<String, String>,
}

/// Bytes of the file system below the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) total: u64,
    /// Free, and not still to be written by any volume.
    pub(super) available: u64,
}

impl Volumes {
    /// Makes the directories that are missing and finishes deletions that were cut short.
    pub(super) fn open(root: &Path) -> Result<Self, Refusal> {
        Ok(Self { homes: Homes::open(root)? })
    }

    /// What can be promised now.
    pub(super) fn room(&self) -> Result<Room, Refusal> {
        self.room_beside(&self.homes.all()?)
    }

    /// Images are sparse: what a volume has written is used already, the rest of it is owed.
    fn room_beside(&self, records: &[Record]) -> Result<Room, Refusal> {
        let room = self.homes.room()?;
        let owed = records.iter().fold(0_u64, |sum, record| {
            let used = image::used(&self.homes.home_path(&record.id)).unwrap_or(0);
            sum.saturating_add(record.capacity.saturating_sub(used))
        });
        Ok(Room { total: room.total, available: room.free.saturating_sub(owed) / BLOCK * BLOCK })
    }

    /// The volume of this name, made if there is none. A repeated request gets the same one.
    pub(super) fn create(&self, wanted: &Wanted<'_>) -> Result<Record, Refusal> {
        // One at a time, or two would be promised the same bytes.
        let all = self.homes.lock_all()?;
        if let Some(record) = all.records.iter().find(|record| record.name == wanted.name) {
            return compatible(record, wanted).map(|()| record.clone());
        }
        let capacity = fit(wanted.size, wanted.least)?;
        let room = self.room_beside(&all.records)?;
        let place = || format!("data directory {}", self.homes.root().display());
        if capacity > room.total {
            return Err(Refusal::TooLarge { required: capacity, total: room.total, place: place() });
        }
        if capacity > room.available {
            return Err(Refusal::NoRoom { required: capacity, available: room.available, place: place() });
        }
        let id = VolumeId::of("", self.homes.root(), wanted.name);
        let record = Record::new(id, wanted.name, capacity, wanted.parameters.clone());
        all.make(&record, |home| image::make(home, capacity))?;
        tracing::info!(volume = record.id.as_str(), name = record.name, capacity, "created");
        Ok(record)
    }

    /// Removes a volume with its data. One that is not there, or no more, is success.
    pub(super) fn delete(&self, id: &VolumeId) -> Result<(), Refusal> {
        self.homes.delete(id, is_unused)
    }

    /// Attaches a volume to a node that takes at most `limit`, and says what the node must be told. The token of
    /// `asked` becomes that of a new attachment; an attachment that is there keeps its own.
    pub(super) fn attach(
        &self,
        id: &VolumeId,
        asked: &Attachment,
        limit: u16,
    ) -> Result<Attachment, Refusal> {
        // All of them, or two calls would both take the last place on the node.
        let all = self.homes.lock_all()?;
        let missing = || Refusal::NoVolume { volume: id.as_str().to_owned() };
        let mut locked = self.homes.lock(id)?.ok_or_else(missing)?;
        match locked.record.state.next(id, asked)? {
            Next::Attached => {
                let known = locked.record.state.on(&asked.node).cloned();
                return Ok(known.unwrap_or_else(|| asked.clone()));
            }
            Next::Attach => {}
        }
        let there = all.records.iter().filter(|record| record.state.on(&asked.node).is_some()).count();
        if there >= usize::from(limit) {
            return Err(Refusal::NodeFull { node: asked.node.clone(), limit: limit.into() });
        }
        locked.record.state.attachments.push(asked.clone());
        effect!("csi attach");
        locked.save()?;
        locked.sync()?;
        effect!("csi attach: done");
        tracing::info!(volume = id.as_str(), node = asked.node, read_only = asked.is_read_only(), "attached");
        Ok(asked.clone())
    }

    /// Ends the attachment to a node, or to all of them. None there is success.
    pub(super) fn detach(&self, id: &VolumeId, node: Option<&str>) -> Result<(), Refusal> {
        let Some(mut locked) = self.homes.lock(id)? else { return Ok(()) };
        let goes = |attachment: &Attachment| node.is_none_or(|node| attachment.node == node);
        let all = std::mem::take(&mut locked.record.state.attachments);
        let (gone, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(goes);
        if gone.is_empty() {
            return Ok(());
        }
        locked.record.state.attachments = kept;
        locked.save()?;
        locked.sync()?;
        effect!("csi detach: done");
        for attachment in gone {
            let (volume, node) = (id.as_str(), attachment.node.as_str());
            match device::of_attachment(id, &attachment)? {
                None => tracing::info!(volume, node, "detached"),
                // A fence does this; the node still has its device, and nobody else gets one until it is gone.
                Some(device) => {
                    tracing::warn!(volume, node, device = %device.path.display(), "detached while staged");
                }
            }
        }
        Ok(())
    }
}

impl Locked {
    /// The data of the volume.
    pub(super) fn image(&self, read_only: bool) -> Result<OwnedFd, Refusal> {
        image::open(&self.home, &self.path, read_only)
    }
}

/// The size for a request. None named is the usual one, if that is allowed.
fn fit(size: Size, least: u64) -> Result<u64, Refusal> {
    let limit = size.limit.unwrap_or(u64::MAX);
    let wanted = if size.required == 0 { USUAL.min(limit / BLOCK * BLOCK) } else { size.required };
    let capacity = wanted.max(least).checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
    if capacity > limit { Err(Refusal::BelowLeast { least: capacity, limit }) } else { Ok(capacity) }
}

/// Refuses while the volume is attached, or its image is behind any device of this machine.
fn is_unused(volume: &Locked) -> Result<(), Refusal> {
    let id = &volume.record.id;
    let in_use = |by| Err(Refusal::InUse { volume: id.as_str().to_owned(), by });
    if let Some(attachment) = volume.record.state.attachments.first() {
        return in_use(format!("attached to node {}", attachment.node));
    }
    match device::all(id)?.first() {
        None => Ok(()),
        Some(device) => in_use(format!("{} shows it", device.path.display())),
    }
}

/// Whether the volume is what the request would have made.
fn compatible(record: &Record, wanted: &Wanted<'_>) -> Result<(), Refusal> {
    let taken = |what| Err(Refusal::NameTaken { name: wanted.name.to_owned(), what });
    if !wanted.size.allows(record.capacity) || record.capacity < wanted.least {
        taken("capacity")
    } else if record.parameters != wanted.parameters {
        taken("set of parameters")
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let xfs = 300 * MIB;
        let size = |required, limit: u64| Size { required, limit: (limit > 0).then_some(limit) };
        for (asked, least, made) in [
            (size(0, 0), LEAST, USUAL),
            (size(0, 64 * MIB), LEAST, 64 * MIB),
            (size(0, 64 * MIB + 1), LEAST, 64 * MIB),
            (size(1, 0), LEAST, LEAST),
            (size(1, 0), xfs, xfs),
            (size(0, 0), xfs, USUAL),
            (size(0, 400 * MIB), xfs, 400 * MIB),
            (size(64 * MIB + 1, 0), LEAST, 64 * MIB + BLOCK),
            (size(64 * MIB, 64 * MIB), LEAST, 64 * MIB),
            (size(10 * MIB, xfs), xfs, xfs),
        ] {
            assert_eq!(fit(asked, least).unwrap(), made, "{asked:?}");
        }
        for (asked, least) in [
            (size(0, LEAST - 1), LEAST),
            (size(0, xfs - 1), xfs),
            (size(64 * MIB + 1, 64 * MIB + 1), LEAST),
            (size(u64::MAX, u64::MAX - 1), LEAST),
        ] {
            assert!(matches!(fit(asked, least), Err(Refusal::BelowLeast { .. })), "{asked:?}");
        }
    }
}
