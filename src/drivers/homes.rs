//! The volumes on disk, a directory each, and the snapshots in the same way.
//!
//! ```text
//! D/volumes/<id>/volume.json     the record
//! D/volumes/<id>/...             the data, as a driver lays it out
//! D/trash/<id>/                  deleted, its data not yet all removed
//! D/trash/<id>.new/              being made
//! D/snapshots/<id>/snapshot.json and so on, with D/trash-of-snapshots
//! D/ephemeral/<id>/volume.json   of what is there while it is published, with D/trash-of-ephemeral
//! ```
//! A volume exists exactly while its directory is under `volumes`; it gets there and leaves by one rename. Several drivers
//! may serve one data directory: they exclude each other by `flock`, on `volumes` while it is decided that one is made, on
//! a volume's own directory for everything else. `D` is opened anew each time, so that a disk that went away is noticed
//! instead of written beside.
use std::ffi::CString;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::record::{self, Record};
use super::refusal::Refusal;
use super::request::VolumeId;
use crate::sys::remove;

mod draft;

/// Where a kind of things is.
#[derive(Debug)]
pub(super) struct Layout {
    /// What one of them is called.
    kind: &'static str,
    /// The directory of all that exist.
    homes: &'static str,
    /// That of those that exist no more, or not yet.
    trash: &'static str,
    /// The file that tells of one of them.
    record: &'static str,
    lost: &'static str,
}

/// Of volumes.
pub(super) const VOLUMES: Layout = Layout {
    kind: "volume",
    homes: "volumes",
    trash: "trash",
    record: "volume.json",
    lost: "it held all volumes of this driver",
};

/// Of volumes that are there while they are published.
pub(super) const EPHEMERAL: Layout = Layout {
    kind: "ephemeral volume",
    homes: "ephemeral",
    trash: "trash-of-ephemeral",
    record: "volume.json",
    lost: "it held all ephemeral volumes of this driver",
};

/// Of snapshots.
pub(super) const SNAPSHOTS: Layout = Layout {
    kind: "snapshot",
    homes: "snapshots",
    trash: "trash-of-snapshots",
    record: "snapshot.json",
    lost: "it held all snapshots of this driver",
};

/// Removes what of the data in a home cannot be removed as files. Nothing there is success.
pub(super) type Clear = fn(&OwnedFd) -> std::io::Result<()>;

/// What a driver adds to the record of a volume.
pub(super) trait State: Serialize + DeserializeOwned + Clone + Debug + Default {}

impl<S: Serialize + DeserializeOwned + Clone + Debug + Default> State for S {}

/// The volumes of one data directory.
#[derive(Debug)]
pub(super) struct Homes<S> {
    root: PathBuf,
    layout: &'static Layout,
    clear: Option<Clear>,
    state: PhantomData<fn() -> S>,
}

/// One volume that no other call can touch meanwhile.
#[derive(Debug)]
pub(super) struct Locked<S> {
    pub(super) record: Record<S>,
    /// `D/volumes/<id>`; the lock is on this descriptor.
    pub(super) home: Held,
    pub(super) path: PathBuf,
    layout: &'static Layout,
}

/// All volumes, while none can be made and none counted by another call.
#[derive(Debug)]
pub(super) struct All<'a, S> {
    homes: &'a Homes<S>,
    /// `D/volumes`; the lock is on this descriptor.
    volumes: Held,
    pub(super) records: Vec<Record<S>>,
    /// Of those that other calls are making now.
    pub(super) drafts: Vec<Record<S>>,
}

/// Bytes of the file system below the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) total: u64,
    pub(super) free: u64,
}

impl<S: State> Homes<S> {
    /// Makes the directories that are missing and finishes deletions that were cut short.
    /// `clear` is for data that is more than files.
    pub(super) fn open(root: &Path, layout: &'static Layout, clear: Option<Clear>) -> Result<Self, Refusal> {
        make_root(root).map_err(Refusal::failed("make", root))?;
        let root = root.canonicalize().map_err(Refusal::failed("find", root))?;
        for name in [layout.homes, layout.trash] {
            make_directory(&root.join(name))?;
        }
        let homes = Self { root, layout, clear, state: PhantomData };
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
        self.open_directory(self.layout.homes)
    }

    fn trash(&self) -> Result<OwnedFd, Refusal> {
        self.open_directory(self.layout.trash)
    }

    fn open_directory(&self, name: &str) -> Result<OwnedFd, Refusal> {
        let path = self.root.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(dir) => Ok(dir),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                Err(Refusal::Gone { path, lost: self.layout.lost })
            }
            Err(error) => Err(Refusal::failed("open", &path)(error)),
        }
    }

    /// The directory of a volume, if there is one.
    pub(super) fn home_path(&self, id: &VolumeId) -> PathBuf {
        self.root.join(self.layout.homes).join(id.as_str())
    }

    /// The record of a volume, without waiting for a call that changes it.
    pub(super) fn find(&self, id: &VolumeId) -> Result<Option<Record<S>>, Refusal> {
        self.find_in(&self.directory()?, id)
    }

    /// The open directory of a volume, if there is one, without waiting for a call that changes it.
    pub(super) fn home(&self, id: &VolumeId) -> Result<Option<OwnedFd>, Refusal> {
        match open_beneath(&self.directory()?, id.as_str()) {
            Ok(home) => Ok(Some(home)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Refusal::failed("open", &self.home_path(id))(error)),
        }
    }

    fn find_in(&self, volumes: &OwnedFd, id: &VolumeId) -> Result<Option<Record<S>>, Refusal> {
        match open_beneath(volumes, id.as_str()) {
            Ok(home) => record::read(home, self.layout.record, || self.home_path(id)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Refusal::failed("open", &self.home_path(id))(error)),
        }
    }

    /// The record of a volume for a list: one that was deleted meanwhile, or whose record only a person can mend, does
    /// not stop the list.
    pub(super) fn find_or_warn(&self, id: &VolumeId) -> Option<Record<S>> {
        self.find(id).unwrap_or_else(|error| {
            tracing::warn!(kind = self.layout.kind, id = id.as_str(), ?error, "not listed");
            None
        })
    }

    /// The volume for this call alone; [`Refusal::Pending`] while another call has it.
    pub(super) fn lock(&self, id: &VolumeId) -> Result<Option<Locked<S>>, Refusal> {
        self.lock_as(id, FlockOperation::NonBlockingLockExclusive)
    }

    /// The volume for this call and others that only read it.
    pub(super) fn share(&self, id: &VolumeId) -> Result<Option<Locked<S>>, Refusal> {
        self.lock_as(id, FlockOperation::NonBlockingLockShared)
    }

    fn lock_as(&self, id: &VolumeId, how: FlockOperation) -> Result<Option<Locked<S>>, Refusal> {
        let path = self.home_path(id);
        let volumes = self.directory()?;
        let home = match open_beneath(&volumes, id.as_str()) {
            Ok(home) => home,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Refusal::failed("open", &path)(error)),
        };
        let home = self.held(home, id, &path, how)?;
        // It may have been deleted, and even made anew, between the two steps.
        if !same_entry(&volumes, id.as_str(), &home).map_err(Refusal::failed("look at", &path))? {
            return Err(self.pending(id));
        }
        let layout = self.layout;
        let record: Option<Record<S>> = record::read(&home, layout.record, || path.clone())?;
        Ok(record.map(|record| Locked { record, home, path, layout }))
    }

    fn pending(&self, id: &VolumeId) -> Refusal {
        Refusal::Pending { kind: self.layout.kind, id: id.as_str().to_owned() }
    }

    fn held(&self, home: OwnedFd, id: &VolumeId, path: &Path, how: FlockOperation) -> Result<Held, Refusal> {
        match rustix::fs::flock(&home, how) {
            Ok(()) => Ok(Held(home)),
            Err(Errno::WOULDBLOCK) => Err(self.pending(id)),
            Err(error) => Err(Refusal::failed("lock", path)(error)),
        }
    }

    /// Ids of all volumes, in order.
    pub(super) fn ids(&self) -> Result<Vec<VolumeId>, Refusal> {
        self.ids_in(&self.directory()?)
    }

    fn ids_in(&self, volumes: &OwnedFd) -> Result<Vec<VolumeId>, Refusal> {
        let path = self.root.join(self.layout.homes);
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
                Err(error) => tracing::warn!(kind = self.layout.kind, id = id.as_str(), ?error, "left out"),
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
        let drafts = self.drafts()?;
        Ok(All { homes: self, volumes, records, drafts })
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
            let (volumes, trash) = (self.directory()?, self.trash()?);
            self.remove_trash(&trash, id)?; // an older one that had the same name
            let failed = |step| Refusal::failed(step, &volume.path);
            rustix::fs::renameat(&volumes, id.as_str(), &trash, id.as_str()).map_err(failed("retire"))?;
            rustix::fs::fsync(&volumes).map_err(failed("sync"))?;
            effect!("csi delete: retired");
            tracing::info!(kind = self.layout.kind, id = id.as_str(), name = volume.record.name, "deleted");
            let removed = self.remove(&trash, &volume.home, id.as_str());
            return removed.map_err(Refusal::failed("remove the data of", &volume.path));
        }
        // Also what an earlier call retired and could not remove in full.
        self.remove_trash(&self.trash()?, id)
    }

    fn remove_trash(&self, trash: &OwnedFd, id: &VolumeId) -> Result<(), Refusal> {
        self.remove_entry(trash, id, id.as_str())
    }

    /// Removes an entry of the trash that no other call is at work on.
    fn remove_entry(&self, trash: &OwnedFd, id: &VolumeId, entry: &str) -> Result<(), Refusal> {
        let path = self.root.join(self.layout.trash).join(entry);
        let held = match open_beneath(trash, entry) {
            Ok(home) => self.held(home, id, &path, FlockOperation::NonBlockingLockExclusive)?,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(Refusal::failed("open", &path)(error)),
        };
        self.remove(trash, &held, entry).map_err(Refusal::failed("remove", &path))
    }

    fn remove(&self, trash: &OwnedFd, home: &OwnedFd, entry: &str) -> std::io::Result<()> {
        if let Some(clear) = self.clear {
            clear(home)?;
        }
        Ok(remove::directory(trash, &name(entry))?)
    }

    /// Finishes what an earlier process left half done. A failure stops nothing: the next start tries again.
    fn sweep(&self) -> Result<(), Refusal> {
        // No volume is being made by another driver meanwhile.
        let _all = self.lock_all()?;
        let trash = self.trash()?;
        let failed = || Refusal::failed("read", &self.root);
        for entry in rustix::fs::Dir::read_from(&trash).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            let Ok(text) = entry.file_name().to_str() else { continue };
            let id = VolumeId::parse(text.strip_suffix(draft::SUFFIX).unwrap_or(text));
            let Some(id) = id else { continue };
            match self.remove_entry(&trash, &id, text) {
                Ok(()) => tracing::info!(entry = text, "removed what an earlier call left"),
                // Another driver on this directory is making or removing it now.
                Err(Refusal::Pending { .. }) => {}
                Err(error) => tracing::warn!(entry = text, ?error, "not removed yet"),
            }
        }
        Ok(())
    }
}

impl<S: State> Locked<S> {
    /// Writes the record. It survives a power cut only once [`Locked::sync`] was called too.
    pub(super) fn save(&self) -> Result<(), Refusal> {
        record::write(&self.home, self.layout.record, &self.record, || self.path.clone())
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
