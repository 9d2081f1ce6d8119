//! The volumes of this node: a directory each, and what is promised of the disk.
//!
//! `D/volumes/<id>/data/` is what is mounted, `D/snapshots/<id>/data/` what a snapshot kept; the rest is as
//! [`homes`](crate::drivers::homes) has it.
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;

use super::{Backing, DATA, Purpose, mounts};
use crate::drivers::homes::{self, All, EPHEMERAL, Homes, VOLUMES, open_beneath};
use crate::drivers::publish::Ledger;
use crate::drivers::record::{self, Publications};
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{self, Size, Source, VolumeId};
use crate::drivers::snapshots::{self, Cut, Snapshots};

/// The record of a volume.
pub(super) type Record = record::Record<Publications>;
/// One volume that no other call can touch meanwhile.
pub(super) type Locked = homes::Locked<Publications>;

/// The data directory of one node.
#[derive(Debug)]
pub(super) struct Volumes<B> {
    pub(super) homes: Homes<Publications>,
    /// Those that are there while they are published.
    pub(super) ephemeral: Homes<Publications>,
    pub(super) snapshots: Snapshots,
    node: String,
    backing: PhantomData<fn() -> B>,
}

/// What a new volume is made from.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) size: Size,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) source: Option<Source>,
    /// Whether the requirement of the request includes this node.
    pub(super) here: Placement,
}

/// What a request says about where the volume may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// Nothing.
    Anywhere,
    /// Here is one of the places.
    Here,
    /// Here is not among them.
    Elsewhere,
}

/// Bytes of the file system below the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) total: u64,
    /// Free and not promised to any volume.
    pub(super) available: u64,
}

impl<B: Backing> Volumes<B> {
    /// Makes the directories that are missing and finishes what was cut short.
    pub(super) fn open(root: &Path, node: &str) -> Result<Self, Refusal> {
        B::check(root)?;
        let homes = Homes::open(root, &VOLUMES, Some(B::clear))?;
        B::prepare(&homes.directory()?).map_err(Refusal::failed("prepare", homes.root()))?;
        let ephemeral = Homes::open(homes.root(), &EPHEMERAL, Some(B::clear))?;
        let snapshots = snapshots::open(homes.root(), Some(B::clear))?;
        Ok(Self { homes, ephemeral, snapshots, node: node.to_owned(), backing: PhantomData })
    }

    /// Whether the data directory is there; the type of its file system.
    pub(super) fn fs_type(&self) -> Result<String, Refusal> {
        let volumes = self.homes.directory()?;
        mounts::fs_type(volumes).map_err(Refusal::failed("look at", self.homes.root()))
    }

    /// What can be promised now.
    pub(super) fn room(&self) -> Result<Room, Refusal> {
        self.room_within(&self.homes.lock_all()?)
    }

    /// What is left beside these volumes and the ephemeral ones.
    fn room_within(&self, all: &All<'_, Publications>) -> Result<Room, Refusal> {
        self.room_beside([all, &self.ephemeral.lock_all()?])
    }

    /// What is left beside all of these.
    pub(super) fn room_beside(&self, all: [&All<'_, Publications>; 2]) -> Result<Room, Refusal> {
        let room = self.homes.room()?;
        let homes = [&self.homes, &self.ephemeral].into_iter().zip(all);
        let promised = homes.flat_map(|(homes, all)| {
            let made = all.records.iter().map(|record| Self::owed(homes, record));
            made.chain(all.drafts.iter().map(|record| record.capacity))
        });
        let promised = promised.fold(0_u64, u64::saturating_add);
        Ok(Room { total: room.total, available: room.free.saturating_sub(promised) })
    }

    fn owed(homes: &Homes<Publications>, record: &Record) -> u64 {
        let data = homes.home(&record.id).ok().flatten();
        let data = data.and_then(|home| open_beneath(&home, DATA).ok());
        data.map_or(record.capacity, |data| B::owed(&data, record.capacity))
    }

    /// The id of what has this name here.
    pub(super) fn id(&self, name: &str) -> VolumeId {
        VolumeId::of(&self.node, self.homes.root(), name)
    }

    /// Why so many bytes cannot be had now.
    pub(super) fn no_room(&self, required: u64, room: Room) -> Refusal {
        Refusal::NoRoom { required, available: room.available, place: format!("node {}", self.node) }
    }

    /// The volume of this name, made if there is none. A repeated request gets the same one.
    pub(super) fn create(&self, wanted: &Wanted<'_>) -> Result<Record, Refusal> {
        // One at a time, or two would be promised the same bytes.
        let all = self.homes.lock_all()?;
        if let Some(record) = all.records.iter().find(|record| record.name == wanted.name) {
            return compatible(record, wanted).map(|()| record.clone());
        }
        if wanted.here == Placement::Elsewhere {
            return Err(Refusal::Elsewhere { node: self.node.clone() });
        }
        let id = self.id(wanted.name);
        let record = |capacity| {
            let record = Record::new(id, wanted.name, capacity, wanted.parameters.clone());
            Record { source: wanted.source.clone(), ..record }
        };
        let Some(source) = &wanted.source else {
            let capacity = self.promise(wanted, B::capacity(wanted.size)?, self.room_within(&all)?)?;
            let draft = all.begin(record(capacity))?;
            B::make(&draft.home, capacity).map_err(Refusal::failed("make the data of", &draft.path()))?;
            return draft.place_in(&all);
        };
        // Nobody changes or removes it until the copy is whole.
        let held = self.held(source)?.ok_or_else(|| source.missing())?;
        let size = request::size_from(wanted.size, held.capacity())?;
        let capacity = self.promise(wanted, B::capacity(size)?, self.room_within(&all)?)?;
        let draft = all.begin(record(capacity))?;
        // The copy may take its time, and others are made meanwhile.
        drop(all);
        B::copy(&held.data()?, &draft.home, Purpose::Volume(capacity))
            .map_err(Refusal::failed("make the data of", &draft.path()))?;
        draft.place()
    }

    fn held(&self, source: &Source) -> Result<Option<Held>, Refusal> {
        Ok(match source {
            Source::Snapshot(id) => self.snapshots.share(id)?.map(Held::Snapshot),
            Source::Volume(id) => self.homes.lock(id)?.map(Held::Volume),
        })
    }

    fn promise(&self, wanted: &Wanted<'_>, required: u64, room: Room) -> Result<u64, Refusal> {
        let place = || format!("node {}", self.node);
        // Where the caller named places, another one may be larger: then the place is at fault, not the range.
        if required > room.total && wanted.here == Placement::Anywhere {
            Err(Refusal::TooLarge { required, total: room.total, place: place() })
        } else if required > room.available {
            Err(Refusal::NoRoom { required, available: room.available, place: place() })
        } else {
            Ok(required)
        }
    }

    /// The snapshot of this name, taken if there is none. A repeated request gets the same one.
    pub(super) fn snapshot(&self, wanted: &snapshots::Wanted<'_>) -> Result<record::Record<Cut>, Refusal> {
        let all = self.snapshots.lock_all()?;
        if let Some(known) = snapshots::known(&all, wanted)? {
            return Ok(known);
        }
        let missing = || Refusal::NoVolume { volume: wanted.source.as_str().to_owned() };
        let volume = self.homes.lock(&wanted.source)?.ok_or_else(missing)?;
        let record = snapshots::record(self.homes.root(), wanted, volume.record.capacity);
        let draft = all.begin(record)?;
        drop(all);
        let data = open_data(&volume.home, &volume.path)?;
        B::copy(&data, &draft.home, Purpose::Snapshot)
            .map_err(Refusal::failed("take the snapshot", &draft.path()))?;
        draft.place()
    }

    /// Lets a volume have more bytes. As many already is success.
    pub(super) fn expand(&self, id: &VolumeId, size: Size) -> Result<Record, Refusal> {
        // All of them, or two would be promised the same bytes.
        let all = self.homes.lock_all()?;
        let missing = || Refusal::NoVolume { volume: id.as_str().to_owned() };
        let mut locked = self.homes.lock(id)?.ok_or_else(missing)?;
        if let Some(capacity) = request::grown(id, size, locked.record.capacity)? {
            let (room, place) = (self.room_within(&all)?, || format!("node {}", self.node));
            let more = capacity - locked.record.capacity;
            if capacity > room.total {
                return Err(Refusal::TooLarge { required: capacity, total: room.total, place: place() });
            }
            if more > room.available {
                return Err(Refusal::NoRoom { required: more, available: room.available, place: place() });
            }
            locked.record.capacity = capacity;
            effect!("csi expand");
            locked.save()?;
            locked.sync()?;
            effect!("csi expand: recorded");
            tracing::info!(volume = id.as_str(), capacity, "expanded");
        }
        // Also where an earlier call was cut short.
        let data = open_data(&locked.home, &locked.path)?;
        B::grow(&data, locked.record.capacity).map_err(Refusal::failed("grow", &locked.path))?;
        effect!("csi expand: done");
        Ok(locked.record)
    }

    /// Removes a volume with its data. One that is not there, or no more, is success.
    pub(super) fn delete(&self, id: &VolumeId) -> Result<(), Refusal> {
        self.homes.delete(id, is_unused)
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

    fn data(&self) -> Result<OwnedFd, Refusal> {
        match self {
            Self::Snapshot(snapshot) => open_data(&snapshot.home, &snapshot.path),
            Self::Volume(volume) => open_data(&volume.home, &volume.path),
        }
    }
}

/// The directory that is mounted, in a home whose path is for messages.
pub(super) fn open_data(home: &OwnedFd, path: &Path) -> Result<OwnedFd, Refusal> {
    match open_beneath(home, DATA) {
        Ok(data) => Ok(data),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
            Err(Refusal::Gone { path: path.join(DATA), lost: "it held the data of the volume" })
        }
        Err(error) => Err(Refusal::failed("open", &path.join(DATA))(error)),
    }
}

impl Ledger for Locked {
    fn publications(&self) -> &Publications {
        &self.record.state
    }

    fn publications_mut(&mut self) -> &mut Publications {
        &mut self.record.state
    }

    fn save(&self) -> Result<(), Refusal> {
        homes::Locked::save(self)
    }
}

/// Refuses while the volume is mounted anywhere that this process can see.
pub(super) fn is_unused(volume: &Locked) -> Result<(), Refusal> {
    let id = &volume.record.id;
    let uses = mounts::uses(id, &volume.home).map_err(Refusal::failed("read the mounts of", &volume.path))?;
    match uses.first() {
        None => Ok(()),
        Some(place) => {
            let by = format!("mounted at {}", place.display());
            Err(Refusal::InUse { volume: id.as_str().to_owned(), by })
        }
    }
}

/// Whether the volume is what the request would have made.
fn compatible(record: &Record, wanted: &Wanted<'_>) -> Result<(), Refusal> {
    let taken = |what| Err(Refusal::NameTaken { kind: "volume", name: wanted.name.to_owned(), what });
    if record.source != wanted.source {
        taken("source")
    } else if !wanted.size.allows(record.capacity) {
        taken("capacity")
    } else if record.parameters != wanted.parameters {
        taken("set of parameters")
    } else if wanted.here == Placement::Elsewhere {
        taken("topology")
    } else {
        Ok(())
    }
}
