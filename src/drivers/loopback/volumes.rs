//! The volumes of a backend: what is promised of the disk, and to which nodes they are attached.
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::attachment::{Attachment, Attachments, Next};
use super::image;
use super::{cut, device};
use crate::drivers::homes::{self, All, Homes, VOLUMES};
use crate::drivers::record;
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{self, Size, Source, VolumeId};
use crate::drivers::snapshots::{self, Cut, Snapshots};
use crate::sys::real::copies::Way;

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
    pub(super) snapshots: Snapshots,
}

/// What a new volume is made from.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) size: Size,
    /// The smallest size that serves the capabilities asked for.
    pub(super) least: u64,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) source: Option<Source>,
    /// Whether the requirement of the request, if it has one, includes this backend.
    pub(super) here: bool,
}

/// Bytes of the file system below the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) total: u64,
    /// Free, and not still to be written by any volume.
    pub(super) available: u64,
}

impl Volumes {
    /// Makes the directories that are missing and finishes what was cut short.
    pub(super) fn open(root: &Path) -> Result<Self, Refusal> {
        let homes = Homes::open(root, &VOLUMES, None)?;
        let snapshots = snapshots::open(homes.root(), None)?;
        let volumes = Self { homes, snapshots };
        for id in volumes.homes.ids()? {
            match volumes.lock(&id) {
                // Another driver on this directory has it, and so knows of it.
                Ok(_) | Err(Refusal::Pending { .. }) => {}
                Err(error) => tracing::warn!(volume = id.as_str(), ?error, "not looked at"),
            }
        }
        Ok(volumes)
    }

    /// The volume for this call alone, if there is one, with what a driver that was killed left frozen of it thawed.
    pub(super) fn lock(&self, id: &VolumeId) -> Result<Option<Locked>, Refusal> {
        let locked = self.homes.lock(id)?;
        if let Some(locked) = &locked {
            cut::settle(locked)?;
        }
        Ok(locked)
    }

    /// What can be promised now.
    pub(super) fn room(&self) -> Result<Room, Refusal> {
        self.room_beside(&self.homes.lock_all()?)
    }

    /// Images are sparse: what a volume has written is used already, the rest of it is owed. What it shares with another
    /// one is not its own yet.
    fn room_beside(&self, all: &All<'_, Attachments>) -> Result<Room, Refusal> {
        let room = self.homes.room()?;
        let owed = all.records.iter().map(|record| {
            let used = if record.state.shares { 0 } else { self.used(&record.id) };
            record.capacity.saturating_sub(used)
        });
        let drafts = all.drafts.iter().map(|record| record.capacity);
        let owed = owed.chain(drafts).fold(0_u64, u64::saturating_add);
        Ok(Room { total: room.total, available: room.free.saturating_sub(owed) / BLOCK * BLOCK })
    }

    fn used(&self, id: &VolumeId) -> u64 {
        image::used(&self.homes.home_path(id)).unwrap_or(0)
    }

    fn place(&self) -> String {
        format!("data directory {}", self.homes.root().display())
    }

    fn check_room(&self, total: u64, more: u64, room: Room) -> Result<(), Refusal> {
        if total > room.total {
            Err(Refusal::TooLarge { required: total, total: room.total, place: self.place() })
        } else if more > room.available {
            Err(Refusal::NoRoom { required: more, available: room.available, place: self.place() })
        } else {
            Ok(())
        }
    }

    /// The volume of this name, made if there is none. A repeated request gets the same one.
    pub(super) fn create(&self, wanted: &Wanted<'_>, node: &str) -> Result<Record, Refusal> {
        // One at a time, or two would be promised the same bytes.
        let all = self.homes.lock_all()?;
        if let Some(record) = all.records.iter().find(|record| record.name == wanted.name) {
            return compatible(record, wanted).map(|()| record.clone());
        }
        if !wanted.here {
            return Err(Refusal::Elsewhere { node: node.to_owned() });
        }
        // Nobody changes or removes it until the copy is whole.
        let held = match &wanted.source {
            None => None,
            Some(source) => Some(self.held(source)?.ok_or_else(|| source.missing())?),
        };
        let size =
            held.as_ref().map_or(Ok(wanted.size), |held| request::size_from(wanted.size, held.capacity()))?;
        let capacity = fit(size, wanted.least)?;
        self.check_room(capacity, capacity, self.room_beside(&all)?)?;
        let id = VolumeId::of("", self.homes.root(), wanted.name);
        let mut record = Record::new(id, wanted.name, capacity, wanted.parameters.clone());
        record.source.clone_from(&wanted.source);
        let mut draft = all.begin(record)?;
        let Some(held) = held else {
            image::make(&draft.home, capacity).map_err(Refusal::failed("make the data of", &draft.path()))?;
            return draft.place_in(&all);
        };
        // The copy may take its time, and others are made meanwhile.
        drop(all);
        draft.record.state.shares = held.copy(&draft.home, capacity)? == Way::Shared;
        draft.place()
    }

    fn held(&self, source: &Source) -> Result<Option<Held>, Refusal> {
        Ok(match source {
            Source::Snapshot(id) => self.snapshots.share(id)?.map(Held::Snapshot),
            Source::Volume(id) => self.lock(id)?.map(Held::Volume),
        })
    }

    /// The snapshot of this name, taken if there is none. A repeated request gets the same one.
    pub(super) fn snapshot(&self, wanted: &snapshots::Wanted<'_>) -> Result<record::Record<Cut>, Refusal> {
        let all = self.snapshots.lock_all()?;
        if let Some(known) = snapshots::known(&all, wanted)? {
            return Ok(known);
        }
        let missing = || Refusal::NoVolume { volume: wanted.source.as_str().to_owned() };
        let mut volume = self.lock(&wanted.source)?.ok_or_else(missing)?;
        let capacity = volume.record.capacity;
        let draft = all.begin(snapshots::record(self.homes.root(), wanted, capacity))?;
        drop(all);
        let may_copy = || {
            let used = self.used(&volume.record.id);
            self.check_room(used, used, self.room()?)
        };
        if cut::copy(&volume, &draft.home, capacity, may_copy)? == Way::Shared {
            shares(&mut volume)?;
        }
        draft.place()
    }

    /// Lets a volume have more bytes. As many already is success.
    pub(super) fn expand(&self, id: &VolumeId, size: Size) -> Result<Record, Refusal> {
        // All of them, or two would be promised the same bytes.
        let all = self.homes.lock_all()?;
        let missing = || Refusal::NoVolume { volume: id.as_str().to_owned() };
        let mut locked = self.lock(id)?.ok_or_else(missing)?;
        if request::grown(id, size, locked.record.capacity)?.is_some() {
            let capacity = fit(size, LEAST)?;
            let more = capacity - locked.record.capacity;
            self.check_room(capacity, more, self.room_beside(&all)?)?;
            locked.record.capacity = capacity;
            effect!("csi expand");
            locked.save()?;
            locked.sync()?;
            effect!("csi expand: recorded");
            tracing::info!(volume = id.as_str(), capacity, "expanded");
        }
        // Also where an earlier call was cut short.
        image::settle_size(&locked.home, &locked.path, locked.record.capacity)?;
        effect!("csi expand: done");
        Ok(locked.record)
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
        let mut locked = self.lock(id)?.ok_or_else(missing)?;
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
        let Some(mut locked) = self.lock(id)? else { return Ok(()) };
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

/// What a volume is made from, while it cannot go away.
enum Held {
    Snapshot(homes::Locked<Cut>),
    Volume(Locked),
}

impl Held {
    fn capacity(&self) -> u64 {
        match self {
            Self::Snapshot(snapshot) => snapshot.record.capacity,
            Self::Volume(volume) => volume.record.capacity,
        }
    }

    fn copy(self, home: &OwnedFd, capacity: u64) -> Result<Way, Refusal> {
        match self {
            Self::Snapshot(snapshot) => {
                let image = image::open(&snapshot.home, &snapshot.path, true)?;
                cut::restore(&image, (&snapshot.path, snapshot.record.capacity), home, capacity)
            }
            Self::Volume(mut volume) => {
                // All of it is promised already.
                let way = cut::copy(&volume, home, capacity, || Ok(()))?;
                if way == Way::Shared {
                    shares(&mut volume)?;
                }
                Ok(way)
            }
        }
    }
}

/// Remembers that the volume has blocks that are another's too, before anybody else knows of that one.
fn shares(volume: &mut Locked) -> Result<(), Refusal> {
    if volume.record.state.shares {
        return Ok(());
    }
    volume.record.state.shares = true;
    volume.save()?;
    volume.sync()
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
    let taken = |what| Err(Refusal::NameTaken { kind: "volume", name: wanted.name.to_owned(), what });
    if record.source != wanted.source {
        taken("source")
    } else if !wanted.here {
        taken("topology")
    } else if !wanted.size.allows(record.capacity) || record.capacity < wanted.least {
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
