//! The volumes on disk, a directory each.
//!
//! ```text
//! D/volumes/<id>/volume.json   the record
//! D/volumes/<id>/...           the data, as a driver lays it out
//! D/trash/<id>/                deleted, its data not yet all removed
//! D/trash/<id>.new/            being made
//! ```
//! A volume exists exactly while its directory is under `volumes`; it gets there and leaves by one rename. Several drivers
//! may serve one data directory: they exclude each other by `flock`, on `volumes` while one is made, on a volume's own
//! directory for everything else. `D` is opened anew each time, so that a disk that went away is noticed instead of
//! written beside.
use std::ffi::CString;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::record::{self, Record, VOLUME};
use super::refusal::Refusal;
use super::request::VolumeId;
use crate::sys::remove;

const VOLUMES: &str = "volumes";
const TRASH: &str = "trash";
const LOST: &str = "it held all volumes of this driver";

/// What a driver adds to the record of a volume.
pub(super) trait State: Serialize + DeserializeOwned + Clone + Debug + Default {}

impl<S: Serialize + DeserializeOwned + Clone + Debug + Default> State for S {}

/// The volumes of one data directory.
#[derive(Debug)]
pub(super) struct Homes<S> {
    root: PathBuf,
    state: PhantomData<fn() -> S>,
}

/// One volume that no other call can touch meanwhile.
#[derive(Debug)]
pub(super) struct Locked<S> {
    pub(super) record: Record<S>,
    /// `D/volumes/<id>`; the lock is on this descriptor.
    pub(super) home: Held,
    pub(super) path: PathBuf,
}

/// All volumes, while none can be made and none counted by another call.
#[derive(Debug)]
pub(super) struct All<'a, S> {
    homes: &'a Homes<S>,
    /// `D/volumes`; the lock is on this descriptor.
    volumes: Held,
    pub(super) records: Vec<Record<S>>,
}

/// Bytes of the file system below the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) total: u64,
    pub(super) free: u64,
}

impl<S: State> Homes<S> {
    /// Makes the directories that are missing and finishes deletions that were cut short.
    pub(super) fn open(root: &Path) -> Result<Self, Refusal> {
        make_root(root).map_err(Refusal::failed("make", root))?;
        let root = root.canonicalize().map_err(Refusal::failed("find", root))?;
        for name in [VOLUMES, TRASH] {
            make_directory(&root.join(name))?;
        }
        let homes = Self { root, state: PhantomData };
        homes.directory()?;
        homes.sweep()?;
        Ok(homes)
    }

    /// The data directory, without links.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// `D/volumes`, if it is there.
    pub(super) fn directory(&self) -> Result<OwnedFd, Refusal> {
        self.open_directory(VOLUMES)
    }

    fn open_directory(&self, name: &str) -> Result<OwnedFd, Refusal> {
        let path = self.root.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(dir) => Ok(dir),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Err(Refusal::Gone { path, lost: LOST }),
            Err(error) => Err(Refusal::failed("open", &path)(error)),
        }
    }

    /// The directory of a volume, if there is one.
    pub(super) fn home_path(&self, id: &VolumeId) -> PathBuf {
        self.root.join(VOLUMES).join(id.as_str())
    }

    /// The record of a volume, without waiting for a call that changes it.
    pub(super) fn find(&self, id: &VolumeId) -> Result<Option<Record<S>>, Refusal> {
        self.find_in(&self.directory()?, id)
    }

    fn find_in(&self, volumes: &OwnedFd, id: &VolumeId) -> Result<Option<Record<S>>, Refusal> {
        match open_beneath(volumes, id.as_str()) {
            Ok(home) => record::read(home, VOLUME, || self.home_path(id)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Refusal::failed("open", &self.home_path(id))(error)),
        }
    }

    /// The record of a volume for a list: one that was deleted meanwhile, or whose record only a person can mend, does
    /// not stop the list.
    pub(super) fn find_or_warn(&self, id: &VolumeId) -> Option<Record<S>> {
        self.find(id).unwrap_or_else(|error| {
            tracing::warn!(volume = id.as_str(), ?error, "not listed");
            None
        })
    }

    /// The volume for this call alone; [`Refusal::Pending`] while another call has it.
    pub(super) fn lock(&self, id: &VolumeId) -> Result<Option<Locked<S>>, Refusal> {
        let path = self.home_path(id);
        let volumes = self.directory()?;
        let home = match open_beneath(&volumes, id.as_str()) {
            Ok(home) => home,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Refusal::failed("open", &path)(error)),
        };
        let home = lock(home, id, &path)?;
        // It may have been deleted, and even made anew, between the two steps.
        if !same_entry(&volumes, id.as_str(), &home).map_err(Refusal::failed("look at", &path))? {
            return Err(Refusal::Pending { volume: id.as_str().to_owned() });
        }
        let record: Option<Record<S>> = record::read(&home, VOLUME, || path.clone())?;
        Ok(record.map(|record| Locked { record, home, path }))
    }

    /// Ids of all volumes, in order.
    pub(super) fn ids(&self) -> Result<Vec<VolumeId>, Refusal> {
        self.ids_in(&self.directory()?)
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
    fn records(&self, volumes: &OwnedFd) -> Result<Vec<Record<S>>, Refusal> {
        let mut records = Vec::new();
        for id in self.ids_in(volumes)? {
            match self.find_in(volumes, &id) {
                Ok(record) => records.extend(record),
                Err(error) => tracing::warn!(volume = id.as_str(), ?error, "left out"),
            }
        }
        Ok(records)
    }

    /// All volumes for this call alone. The wait for it is a few syncs long.
    pub(super) fn lock_all(&self) -> Result<All<'_, S>, Refusal> {
        let volumes = self.directory()?;
        rustix::fs::flock(&volumes, FlockOperation::LockExclusive)
            .map_err(Refusal::failed("lock", &self.root))?;
        let volumes = Held(volumes);
        let records = self.records(&volumes)?;
        Ok(All { homes: self, volumes, records })
    }

    /// All records as they are now.
    pub(super) fn all(&self) -> Result<Vec<Record<S>>, Refusal> {
        self.records(&self.directory()?)
    }

    /// What is free on the disk, whoever it is promised to.
    pub(super) fn room(&self) -> Result<Room, Refusal> {
        let fs = rustix::fs::fstatvfs(self.directory()?).map_err(Refusal::failed("look at", &self.root))?;
        Ok(Room {
            total: fs.f_blocks.saturating_mul(fs.f_frsize),
            free: fs.f_bavail.saturating_mul(fs.f_frsize),
        })
    }

    /// Removes a volume with its data, unless `is_unused` refuses. One that is not there, or no more, is success.
    pub(super) fn delete(
        &self,
        id: &VolumeId,
        is_unused: impl FnOnce(&Locked<S>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if let Some(volume) = self.lock(id)? {
            is_unused(&volume)?;
            let (volumes, trash) = (self.directory()?, self.open_directory(TRASH)?);
            self.remove_trash(&trash, id)?; // an older one that had the same name
            let failed = |step| Refusal::failed(step, &volume.path);
            rustix::fs::renameat(&volumes, id.as_str(), &trash, id.as_str()).map_err(failed("retire"))?;
            rustix::fs::fsync(&volumes).map_err(failed("sync"))?;
            tracing::info!(volume = id.as_str(), name = volume.record.name, "deleted");
            let trashed = remove::directory(&trash, &name(id.as_str()));
            return trashed.map_err(failed("remove the data of"));
        }
        // Also what an earlier call retired and could not remove in full.
        self.remove_trash(&self.open_directory(TRASH)?, id)
    }

    fn remove_trash(&self, trash: &OwnedFd, id: &VolumeId) -> Result<(), Refusal> {
        let path = self.root.join(TRASH).join(id.as_str());
        let _held = match open_beneath(trash, id.as_str()) {
            Ok(home) => lock(home, id, &path)?,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(Refusal::failed("open", &path)(error)),
        };
        remove::directory(trash, &name(id.as_str())).map_err(Refusal::failed("remove", &path))
    }

    /// Finishes what an earlier process left half done. A failure stops nothing: the next start tries again.
    fn sweep(&self) -> Result<(), Refusal> {
        // No volume is being made by another driver meanwhile.
        let _all = self.lock_all()?;
        let trash = self.open_directory(TRASH)?;
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

impl<S: State> All<'_, S> {
    /// Makes a volume. `fill` puts the data into its directory, which nobody sees before it is complete.
    pub(super) fn make(
        &self,
        record: &Record<S>,
        fill: impl FnOnce(&OwnedFd) -> std::io::Result<()>,
    ) -> Result<(), Refusal> {
        let trash = self.homes.open_directory(TRASH)?;
        let path = self.homes.home_path(&record.id);
        let failed = |step| Refusal::failed(step, &path);
        let draft = format!("{}.new", record.id.as_str());
        // What an attempt that was cut short left behind.
        remove::directory(&trash, &name(&draft)).map_err(failed("clear the draft of"))?;
        rustix::fs::mkdirat(&trash, &draft, Mode::RWXU).map_err(failed("make"))?;
        let home = open_beneath(&trash, &draft).map_err(failed("open"))?;
        fill(&home).map_err(Refusal::failed("make the data of", &path))?;
        record::write(&home, VOLUME, record, || path.clone())?;
        rustix::fs::fsync(&home).map_err(failed("sync"))?;
        let (volumes, id) = (&self.volumes, record.id.as_str());
        rustix::fs::renameat(&trash, &draft, volumes, id).map_err(failed("place"))?;
        rustix::fs::fsync(volumes).map_err(failed("sync"))
    }
}

impl<S: State> Locked<S> {
    /// Writes the record. It survives a power cut only once [`Locked::sync`] was called too.
    pub(super) fn save(&self) -> Result<(), Refusal> {
        record::write(&self.home, VOLUME, &self.record, || self.path.clone())
    }

    /// Makes what was written last.
    pub(super) fn sync(&self) -> Result<(), Refusal> {
        rustix::fs::fsync(&self.home).map_err(Refusal::failed("sync", &self.path))
    }
}

/// Makes the data directory, private to its owner. Its parents must be there or may be made too.
fn make_root(root: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root)
}

/// Makes one directory, private to its owner, if it is missing.
pub(super) fn make_directory(path: &Path) -> Result<(), Refusal> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(Refusal::failed("make", path)(error)),
    }
}

/// Opens a directory in another one, and nothing that a link leads to.
pub(super) fn open_beneath(parent: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let stay = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), stay)
}

/// A directory that this call has locked. It is unlocked before it is closed: a program that another call is just starting
/// has a copy of the descriptor for a moment, and the lock would last as long.
#[derive(Debug)]
pub(super) struct Held(OwnedFd);

impl std::ops::Deref for Held {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(error) = rustix::fs::flock(&self.0, FlockOperation::Unlock) {
            tracing::warn!(%error, "a volume stays locked until its directory is closed");
        }
    }
}

fn lock(home: OwnedFd, id: &VolumeId, path: &Path) -> Result<Held, Refusal> {
    match rustix::fs::flock(&home, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Held(home)),
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
