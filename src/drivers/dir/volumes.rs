//! The volumes of this node: a directory each, and what is promised of the disk.
//!
//! `D/volumes/<id>/data/` is what is mounted; the rest is as [`homes`](crate::drivers::homes) has it.
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;

use super::mounts;
use crate::drivers::homes::{self, Homes, open_beneath};
use crate::drivers::publish::Ledger;
use crate::drivers::record::{self, Publications};
use crate::drivers::refusal::Refusal;
use crate::drivers::request::{Size, VolumeId};

const DATA: &str = "data";

/// The record of a volume.
pub(super) type Record = record::Record<Publications>;
/// One volume that no other call can touch meanwhile.
pub(super) type Locked = homes::Locked<Publications>;

/// The data directory of one node.
#[derive(Debug)]
pub(super) struct Volumes {
    pub(super) homes: Homes<Publications>,
    node: String,
}

/// What a new volume is made from.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) size: Size,
    pub(super) parameters: BTreeMap<String, String>,
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

impl Volumes {
    /// Makes the directories that are missing and finishes deletions that were cut short.
    pub(super) fn open(root: &Path, node: &str) -> Result<Self, Refusal> {
        Ok(Self { homes: Homes::open(root)?, node: node.to_owned() })
    }

    /// Whether the data directory is there; the type of its file system.
    pub(super) fn fs_type(&self) -> Result<String, Refusal> {
        let volumes = self.homes.directory()?;
        mounts::fs_type(volumes).map_err(Refusal::failed("look at", self.homes.root()))
    }

    /// What can be promised now.
    pub(super) fn room(&self) -> Result<Room, Refusal> {
        self.room_beside(&self.homes.all()?)
    }

    fn room_beside(&self, records: &[Record]) -> Result<Room, Refusal> {
        let room = self.homes.room()?;
        // What volumes have written already counts twice, as used and as promised: the answer errs on the safe side
        // and costs no walk through the data.
        let promised = records.iter().fold(0_u64, |sum, record| sum.saturating_add(record.capacity));
        Ok(Room { total: room.total, available: room.free.saturating_sub(promised) })
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
        let capacity = self.promise(wanted, self.room_beside(&all.records)?)?;
        let id = VolumeId::of(&self.node, self.homes.root(), wanted.name);
        let record = Record::new(id, wanted.name, capacity, wanted.parameters.clone());
        all.make(&record, |home| Ok(rustix::fs::mkdirat(home, DATA, Mode::from_raw_mode(0o755))?))?;
        tracing::info!(volume = record.id.as_str(), name = record.name, capacity, "created");
        Ok(record)
    }

    fn promise(&self, wanted: &Wanted<'_>, room: Room) -> Result<u64, Refusal> {
        let (required, place) = (wanted.size.required, format!("node {}", self.node));
        // Where the caller named places, another one may be larger: then the place is at fault, not the range.
        if required > room.total && wanted.here == Placement::Anywhere {
            Err(Refusal::TooLarge { required, total: room.total, place })
        } else if required > room.available {
            Err(Refusal::NoRoom { required, available: room.available, place })
        } else {
            Ok(required)
        }
    }

    /// Removes a volume with its data. One that is not there, or no more, is success.
    pub(super) fn delete(&self, id: &VolumeId) -> Result<(), Refusal> {
        self.homes.delete(id, is_unused)
    }
}

impl Locked {
    /// The directory that is mounted.
    pub(super) fn data(&self) -> Result<OwnedFd, Refusal> {
        let path = || self.path.join(DATA);
        match open_beneath(&self.home, DATA) {
            Ok(data) => Ok(data),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                Err(Refusal::Gone { path: path(), lost: "it held the data of the volume" })
            }
            Err(error) => Err(Refusal::failed("open", &path())(error)),
        }
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
fn is_unused(volume: &Locked) -> Result<(), Refusal> {
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
    let taken = |what| Err(Refusal::NameTaken { name: wanted.name.to_owned(), what });
    if !wanted.size.allows(record.capacity) {
        taken("capacity")
    } else if record.parameters != wanted.parameters {
        taken("set of parameters")
    } else if wanted.here == Placement::Elsewhere {
        taken("topology")
    } else {
        Ok(())
    }
}
