//! The volumes on disk.
//!
//! ```text
//! D/volumes/<id>/volume.json   the record
//! D/volumes/<id>/data/         what is mounted
//! D/trash/<id>/                deleted, its data not yet all removed
//! D/trash/<id>.new/            being made
//! ```
//! A volume exists exactly while its directory is under `volumes`; it gets there and leaves by one rename. Two drivers
//! may serve one data directory (a controller and a node): they exclude each other by `flock`, on `volumes` while one is
//! made, on a volume's own directory for everything else. `D` is opened anew each time, so that a disk that went away
//! is noticed instead of written beside.
use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::record::Record;
use super::refusal::Refusal;
use super::request::{Size, VolumeId};
use super::{mounts, remove};

const VOLUMES: &str = "volumes";
const TRASH: &str = "trash";
const DATA: &str = "data";
const LOST: &str = "it held all volumes of this driver";

/// The data directory of one node.
#[derive(Debug)]
pub(super) struct Volumes {
    root: PathBuf,
    node: String,
}

/// One volume that no other call can touch meanwhile.
#[derive(Debug)]
pub(super) struct Locked {
    pub(super) record: Record,
    /// `D/volumes/<id>`; the lock is on this descriptor.
    home: OwnedFd,
    path: PathBuf,
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
        make_root(root).map_err(Refusal::failed("make", root))?;
        let root = root.canonicalize().map_err(Refusal::failed("find", root))?;
        for name in [VOLUMES, TRASH] {
            let path = root.join(name);
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(Refusal::failed("make", &path)(error)),
            }
        }
        let volumes = Self { root, node: node.to_owned() };
        volumes.directory(VOLUMES)?;
        volumes.sweep()?;
        Ok(volumes)
    }

    fn directory(&self, name: &str) -> Result<OwnedFd, Refusal> {
        let path = self.root.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(dir) => Ok(dir),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Err(Refusal::Gone { path, lost: LOST }),
            Err(error) => Err(Refusal::failed("open", &path)(error)),
        }
    }

    fn home_path(&self, id: &VolumeId) -> PathBuf {
        self.root.join(VOLUMES).join(id.as_str())
    }

    /// Whether the data directory is there; the type of its file system.
    pub(super) fn fs_type(&self) -> Result<String, Refusal> {
        let volumes = self.directory(VOLUMES)?;
        mounts::fs_type(volumes).map_err(Refusal::failed("look at", &self.root))
    }

    /// The record of a volume, without waiting for a call that changes it.
    pub(super) fn find(&self, id: &VolumeId) -> Result<Option<Record>, Refusal> {
        self.find_in(&self.directory(VOLUMES)?, id)
    }

    fn find_in(&self, volumes: &OwnedFd, id: &VolumeId) -> Result<Option<Record>, Refusal> {
        match open_beneath(volumes, id.as_str()) {
            Ok(home) => Record::read(home, || self.home_path(id)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Refusal::failed("open", &self.home_path(id))(error)),
        }
    }

    /// The volume for this call alone; [`Refusal::Pending`] while another call has it.
    pub(super) fn lock(&self, id: &VolumeId) -> Result<Option<Locked>, Refusal> {
        let path = self.home_path(id);
        let volumes = self.directory(VOLUMES)?;
        let home = match open_beneath(&volumes, id.as_str()) {
            Ok(home) => home,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Refusal::failed("open", &path)(error)),
        };
        lock(&home, id, &path)?;
        // It may have been deleted, and even made anew, between the two steps.
        if !same_entry(&volumes, id.as_str(), &home).map_err(Refusal::failed("look at", &path))? {
            return Err(Refusal::Pending { volume: id.as_str().to_owned() });
        }
        let record = Record::read(&home, || path.clone())?;
        Ok(record.map(|record| Locked { record, home, path }))
    }

    /// Ids of all volumes, in order.
    pub(super) fn ids(&self) -> Result<Vec<VolumeId>, Refusal> {
        self.ids_in(&self.directory(VOLUMES)?)
    }

    fn ids_in(&self, volumes: &OwnedFd) -> Result<Vec<VolumeId>, Refusal> {
        let path = self.root.join(VOLUMES);
        let mut ids = Vec::new();
        for entry in rustix::fs::Dir::read_from(volumes).map_err(Refusal::failed("read", &path))? {
            let entry = entry.map_err(Refusal::failed("read", &path))?;
            ids.extend(entry.file_name().to_str().ok().and_then(VolumeId::parse));
        }
        ids.sort_unstable();
        Ok(ids)
    }

    /// The records of all volumes. One that cannot be read is left out, with a warning: it must not stop the others.
    fn records(&self, volumes: &OwnedFd) -> Result<Vec<Record>, Refusal> {
        let mut records = Vec::new();
        for id in self.ids_in(volumes)? {
            match self.find_in(volumes, &id) {
                Ok(record) => records.extend(record),
                Err(error) => tracing::warn!(volume = id.as_str(), ?error, "left out"),
            }
        }
        Ok(records)
    }

    /// What can be promised now.
    pub(super) fn room(&self) -> Result<Room, Refusal> {
        let volumes = self.directory(VOLUMES)?;
        let records = self.records(&volumes)?;
        self.room_beside(&volumes, &records)
    }

    fn room_beside(&self, volumes: &OwnedFd, records: &[Record]) -> Result<Room, Refusal> {
        let fs = rustix::fs::fstatvfs(volumes).map_err(Refusal::failed("look at", &self.root))?;
        // What volumes have written already counts twice, as used and as promised: the answer errs on the safe side
        // and costs no walk through the data.
        let promised = records.iter().fold(0_u64, |sum, record| sum.saturating_add(record.capacity));
        let free = fs.f_bavail.saturating_mul(fs.f_frsize);
        Ok(Room { total: fs.f_blocks.saturating_mul(fs.f_frsize), available: free.saturating_sub(promised) })
    }

    /// The volume of this name, made if there is none. A repeated request gets the same one.
    pub(super) fn create(&self, wanted: &Wanted<'_>) -> Result<Record, Refusal> {
        let volumes = self.directory(VOLUMES)?;
        // One at a time, or two would be promised the same bytes; the wait is a few syncs long.
        rustix::fs::flock(&volumes, FlockOperation::LockExclusive)
            .map_err(Refusal::failed("lock", &self.root))?;
        let records = self.records(&volumes)?;
        if let Some(record) = records.iter().find(|record| record.name == wanted.name) {
            return compatible(record, wanted).map(|()| record.clone());
        }
        if wanted.here == Placement::Elsewhere {
            return Err(Refusal::Elsewhere { node: self.node.clone() });
        }
        let capacity = self.promise(wanted, self.room_beside(&volumes, &records)?)?;
        let id = VolumeId::of(&self.node, &self.root, wanted.name);
        let record = Record::new(id, wanted.name, capacity, wanted.parameters.clone());
        self.make(&volumes, &record)?;
        tracing::info!(volume = record.id.as_str(), name = record.name, capacity, "created");
        Ok(record)
    }

    fn promise(&self, wanted: &Wanted<'_>, room: Room) -> Result<u64, Refusal> {
        let (required, node) = (wanted.size.required, self.node.clone());
        // Where the caller named places, another one may be larger: then the place is at fault, not the range.
        if required > room.total && wanted.here == Placement::Anywhere {
            Err(Refusal::TooLarge { required, total: room.total, node })
        } else if required > room.available {
            Err(Refusal::NoRoom { required, available: room.available, node })
        } else {
            Ok(required)
        }
    }

    fn make(&self, volumes: &OwnedFd, record: &Record) -> Result<(), Refusal> {
        let trash = self.directory(TRASH)?;
        let path = self.home_path(&record.id);
        let failed = |step| Refusal::failed(step, &path);
        let draft = format!("{}.new", record.id.as_str());
        // What an attempt that was cut short left behind.
        remove::directory(&trash, &name(&draft)).map_err(failed("clear the draft of"))?;
        rustix::fs::mkdirat(&trash, &draft, Mode::RWXU).map_err(failed("make"))?;
        let home = open_beneath(&trash, &draft).map_err(failed("open"))?;
        rustix::fs::mkdirat(&home, DATA, Mode::from_raw_mode(0o755)).map_err(failed("make the data of"))?;
        record.write(&home, || path.clone())?;
        rustix::fs::fsync(&home).map_err(failed("sync"))?;
        rustix::fs::renameat(&trash, &draft, volumes, record.id.as_str()).map_err(failed("place"))?;
        rustix::fs::fsync(volumes).map_err(failed("sync"))
    }

    /// Removes a volume with its data. One that is not there, or no more, is success.
    pub(super) fn delete(&self, id: &VolumeId) -> Result<(), Refusal> {
        if let Some(volume) = self.lock(id)? {
            volume.is_unused()?;
            let (volumes, trash) = (self.directory(VOLUMES)?, self.directory(TRASH)?);
            self.remove_trash(&trash, id)?; // an older one that had the same name
            let failed = |step| Refusal::failed(step, &volume.path);
            rustix::fs::renameat(&volumes, id.as_str(), &trash, id.as_str()).map_err(failed("retire"))?;
            rustix::fs::fsync(&volumes).map_err(failed("sync"))?;
            tracing::info!(volume = id.as_str(), name = volume.record.name, "deleted");
            let trashed = remove::directory(&trash, &name(id.as_str()));
            return trashed.map_err(failed("remove the data of"));
        }
        // Also what an earlier call retired and could not remove in full.
        self.remove_trash(&self.directory(TRASH)?, id)
    }

    fn remove_trash(&self, trash: &OwnedFd, id: &VolumeId) -> Result<(), Refusal> {
        let path = self.root.join(TRASH).join(id.as_str());
        match open_beneath(trash, id.as_str()) {
            Ok(home) => lock(&home, id, &path)?,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(Refusal::failed("open", &path)(error)),
        }
        remove::directory(trash, &name(id.as_str())).map_err(Refusal::failed("remove", &path))
    }

    /// Finishes what an earlier process left half done. A failure stops nothing: the next start tries again.
    fn sweep(&self) -> Result<(), Refusal> {
        // No volume is being made by another driver meanwhile.
        let volumes = self.directory(VOLUMES)?;
        rustix::fs::flock(&volumes, FlockOperation::LockExclusive)
            .map_err(Refusal::failed("lock", &self.root))?;
        let trash = self.directory(TRASH)?;
        let failed = || Refusal::failed("read", &self.root);
        for entry in rustix::fs::Dir::read_from(&trash).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let Ok(text) = entry.file_name().to_str() else { continue };
            let swept = match (VolumeId::parse(text), text.strip_suffix(".new").and_then(VolumeId::parse)) {
                (Some(id), _) => self.remove_trash(&trash, &id),
                (None, Some(_)) => remove::directory(&trash, entry.file_name()).map_err(failed()),
                (None, None) => continue,
            };
            match swept {
                Ok(()) => tracing::info!(entry = text, "removed what an earlier deletion left"),
                Err(error) => tracing::warn!(entry = text, ?error, "deleted volume not removed yet"),
            }
        }
        Ok(())
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

    /// Makes the changes to the record last.
    pub(super) fn save(&self) -> Result<(), Refusal> {
        self.record.write(&self.home, || self.path.clone())
    }

    /// Refuses while the volume is mounted anywhere that this process can see.
    fn is_unused(&self) -> Result<(), Refusal> {
        let id = &self.record.id;
        let uses = mounts::uses(id, &self.home).map_err(Refusal::failed("read the mounts of", &self.path))?;
        match uses.first() {
            None => Ok(()),
            Some(place) => {
                let by = format!("mounted at {}", place.display());
                Err(Refusal::InUse { volume: id.as_str().to_owned(), by })
            }
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

/// Makes the data directory, private to its owner. Its parents must be there or may be made too.
fn make_root(root: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root)
}

fn open_beneath(parent: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let stay = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), stay)
}

fn lock(home: &OwnedFd, id: &VolumeId, path: &Path) -> Result<(), Refusal> {
    match rustix::fs::flock(home, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(Refusal::Pending { volume: id.as_str().to_owned() }),
        Err(error) => Err(Refusal::failed("lock", path)(error)),
    }
}

fn same_entry(parent: &OwnedFd, name: &str, open: &OwnedFd) -> rustix::io::Result<bool> {
    let open = rustix::fs::fstat(open)?;
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(entry) => Ok((entry.st_dev, entry.st_ino) == (open.st_dev, open.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Names here are ids with a suffix at most, so there is no NUL in them.
fn name(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}
