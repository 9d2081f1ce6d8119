//! Where the bytes lie: a file under a lock, or memory. Opening, making and checking the file.
//!
//! A new file is made aside and renamed when it is whole, so that a kill at any moment of a first start
//! leaves nothing that the next start cannot use; its write-ahead log lies beside it before it has its name. It never
//! repairs beyond what the engine does by itself, and never removes a file that holds data.
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{BackendError, Builder, Database, DatabaseError, ReadableDatabase, StorageBackend};

use super::fault::Fault;
use super::memory::{MemoryDisk, OpenMemory};
use super::record::{COMPACTED, KV, LOG, META, REVISION, SCHEMA, SCHEMA_LEVEL, WITHOUT_LOG};
use super::wal::Place;
use crate::store::Source;

/// Why a store could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another store of this one, has it: stop that one, or use another directory.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The store's file.
        path: PathBuf,
    },
    /// A newer program has written it: use that one. Its content was not touched.
    #[error("the store has schema level {found}, this program knows {known} only")]
    SchemaTooNew {
        /// The level in the store.
        found: u64,
        /// The highest level that this program knows.
        known: u64,
    },
    /// It is not a store of ours, or broken: restore from a backup. Its content was not touched.
    #[error("{place} is not a readable store")]
    Corrupt {
        /// The store's file.
        place: String,
        /// Why.
        #[source]
        source: Source,
    },
    /// The file cannot be made, read or written: permissions, space, the disk.
    #[error("cannot open {place}")]
    Io {
        /// The store's file.
        place: String,
        /// Why.
        #[source]
        source: Source,
    },
}

/// A file that remembers whether a sync of it ever failed: after that nobody knows what the disk holds,
/// whatever reading it says, so that only a new process may open it again.
#[derive(Debug)]
struct SyncedFile {
    file: FileBackend,
    sync_failed: Arc<AtomicBool>,
}

impl StorageBackend for SyncedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data().inspect_err(|_| self.sync_failed.store(true, Ordering::Release))
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
    // Our own lock file excludes others; the engine's lock stays on as a second one.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }
    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }
    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }
    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

/// A place that can be opened, and opened again after a failure. Holds the lock as long as it lives.
#[derive(Debug)]
pub(super) enum Disk {
    File { path: PathBuf, _lock: File, sync_failed: Arc<AtomicBool> },
    Memory(MemoryDisk),
}

impl Disk {
    /// Takes the lock and makes the file if there is none.
    pub(super) fn file(path: &Path, cache_bytes: usize) -> Result<Self, OpenError> {
        let place = || path.display().to_string();
        let lock = lock(path).map_err(|error| match error {
            TryLockError::WouldBlock => OpenError::InUse { path: path.to_owned() },
            TryLockError::Error(error) => OpenError::Io { place: place(), source: Arc::new(error) },
        })?;
        let disk =
            Disk::File { path: path.to_owned(), _lock: lock, sync_failed: Arc::new(AtomicBool::new(false)) };
        match path.try_exists() {
            Ok(true) => {}
            Ok(false) => {
                let log = beside(path, ".wal");
                if Place::was_used(&log) {
                    // Made anew it would be lost, and with it the newest writes of a store that may be put back.
                    let error =
                        io::Error::other("its log is there, and the rest is not: put it back beside the log");
                    return Err(OpenError::Corrupt { place: place(), source: Arc::new(error) });
                }
                make(path, cache_bytes).map_err(|error| disk.open_error(error))?;
            }
            Err(error) => return Err(OpenError::Io { place: place(), source: Arc::new(error) }),
        }
        Ok(disk)
    }

    /// Opens the engine and checks that what lies there is ours.
    pub(super) fn open(&self, cache_bytes: usize) -> Result<Database, OpenError> {
        let opened = match self {
            Disk::File { path, sync_failed, .. } => {
                if sync_failed.load(Ordering::Acquire) {
                    Err(io::Error::other("a sync failed: only a new process may open it again").into())
                } else {
                    open_file(path, cache_bytes, sync_failed)
                }
            }
            Disk::Memory(disk) => open_memory(disk, cache_bytes),
        };
        let db = opened.map_err(|error| self.open_error(error))?;
        let level = schema_level(&db).map_err(|error| self.corrupt(Arc::new(error)))?;
        match level {
            Some(SCHEMA_LEVEL) => Ok(db),
            Some(WITHOUT_LOG) => {
                self.raise(&db)?;
                Ok(db)
            }
            Some(found) if found > SCHEMA_LEVEL => {
                Err(OpenError::SchemaTooNew { found, known: SCHEMA_LEVEL })
            }
            Some(_) | None => Err(self.corrupt(Arc::new(io::Error::other("it carries no schema level")))),
        }
    }

    /// The write-ahead log of an opened store.
    pub(super) fn wal(&self) -> Result<Place, OpenError> {
        match self {
            Disk::Memory(disk) => Ok(Place::Memory(disk.clone())),
            Disk::File { path, sync_failed, .. } => {
                let log = beside(path, ".wal");
                Place::open(&log, sync_failed).map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::InvalidData => OpenError::Corrupt {
                        place: format!("{}, the newest part of the store,", log.display()),
                        source: Arc::new(error),
                    },
                    _ => OpenError::Io { place: log.display().to_string(), source: Arc::new(error) },
                })
            }
        }
    }

    /// Gives a store of before there was one its write-ahead log. A program of then would not read it, so from here on
    /// it refuses the store.
    fn raise(&self, db: &Database) -> Result<(), OpenError> {
        let io = |error: io::Error| OpenError::Io { place: self.place(), source: Arc::new(error) };
        if let Disk::File { path, .. } = self {
            Place::make(&beside(path, ".wal")).and_then(|()| sync_directory(path)).map_err(io)?;
        }
        let raise = || -> Result<(), redb::Error> {
            let txn = db.begin_write()?;
            txn.open_table(META)?.insert(SCHEMA, SCHEMA_LEVEL)?;
            Ok(txn.commit()?)
        };
        raise().map_err(|error| self.open_error(into_database_error(error)))
    }

    fn place(&self) -> String {
        match self {
            Disk::File { path, .. } => path.display().to_string(),
            Disk::Memory(_) => "memory".to_owned(),
        }
    }

    /// For a file that opened and then could not be read.
    pub(super) fn unreadable(&self, fault: Fault) -> OpenError {
        self.corrupt(Arc::new(fault))
    }

    fn corrupt(&self, source: Source) -> OpenError {
        OpenError::Corrupt { place: self.place(), source }
    }

    fn open_error(&self, error: DatabaseError) -> OpenError {
        use redb::StorageError::{Corrupted, Io};
        match error {
            DatabaseError::DatabaseAlreadyOpen => OpenError::InUse { path: self.place().into() },
            DatabaseError::Storage(Io(error)) if error.kind() != io::ErrorKind::InvalidData => {
                OpenError::Io { place: self.place(), source: Arc::new(error) }
            }
            DatabaseError::Storage(Io(_) | Corrupted(_)) | DatabaseError::UpgradeRequired(_) => {
                self.corrupt(Arc::new(error))
            }
            other => OpenError::Io { place: self.place(), source: Arc::new(other) },
        }
    }
}

/// The file beside the store whose name ends so.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

fn lock(path: &Path) -> Result<File, TryLockError> {
    let file =
        private().create(true).truncate(false).open(beside(path, ".lock")).map_err(TryLockError::Error)?;
    file.try_lock()?;
    Ok(file)
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

/// Makes an empty store aside and renames it into place. The caller holds the lock.
fn make(path: &Path, cache_bytes: usize) -> Result<(), DatabaseError> {
    Place::make(&beside(path, ".wal"))?;
    let aside = beside(path, ".new");
    let file = private().create(true).truncate(true).open(&aside)?;
    let db = Builder::new().set_cache_size(cache_bytes).create_file(file)?;
    initialise(&db).map_err(into_database_error)?;
    drop(db);
    File::open(&aside)?.sync_all()?;
    fs::rename(&aside, path)?;
    Ok(sync_directory(path)?)
}

fn open_file(path: &Path, cache: usize, sync_failed: &Arc<AtomicBool>) -> Result<Database, DatabaseError> {
    let file = private().open(path)?;
    if file.metadata()?.len() == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty").into());
    }
    let backend = SyncedFile { file: FileBackend::new(file)?, sync_failed: sync_failed.clone() };
    Builder::new().set_cache_size(cache).create_with_backend(backend)
}

fn open_memory(disk: &MemoryDisk, cache: usize) -> Result<Database, DatabaseError> {
    let new = disk.used() == 0;
    let db = Builder::new().set_cache_size(cache).create_with_backend(OpenMemory::new(disk))?;
    if new {
        initialise(&db).map_err(into_database_error)?;
    }
    Ok(db)
}

fn initialise(db: &Database) -> Result<(), redb::Error> {
    let mut txn = db.begin_write()?;
    txn.set_quick_repair(true);
    txn.open_table(KV)?;
    txn.open_table(LOG)?;
    {
        let mut meta = txn.open_table(META)?;
        meta.insert(SCHEMA, SCHEMA_LEVEL)?;
        meta.insert(REVISION, 0)?;
        meta.insert(COMPACTED, 0)?;
    }
    Ok(txn.commit()?)
}

fn schema_level(db: &Database) -> Result<Option<u64>, redb::Error> {
    let txn = db.begin_read()?;
    let meta = match txn.open_table(META) {
        Ok(meta) => meta,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(meta.get(SCHEMA)?.map(|level| level.value()))
}

fn into_database_error(error: redb::Error) -> DatabaseError {
    match error {
        redb::Error::Io(error) => error.into(),
        other => io::Error::other(other).into(),
    }
}
