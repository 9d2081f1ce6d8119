//! A disk made of memory, for tests and for simulation: it can be opened again, and it can be full.
use std::io;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redb::backends::InMemoryBackend;
use redb::{BackendError, StorageBackend};

/// Memory that outlives the stores opened on it one after another.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<State>);

#[derive(Debug)]
struct State {
    bytes: InMemoryBackend,
    wal: Mutex<Vec<u8>>,
    capacity: AtomicU64,
    operations_left: AtomicU64,
    syncs: AtomicU64,
    in_use: AtomicBool,
}

impl Default for State {
    fn default() -> Self {
        State {
            bytes: InMemoryBackend::new(),
            wal: Mutex::default(),
            capacity: AtomicU64::new(u64::MAX),
            operations_left: AtomicU64::new(u64::MAX),
            syncs: AtomicU64::new(0),
            in_use: AtomicBool::new(false),
        }
    }
}

impl MemoryDisk {
    /// How many bytes are in use, free space within the store included.
    pub fn used(&self) -> u64 {
        self.0.bytes.len().unwrap_or(0)
    }

    /// How often it was synced.
    pub fn syncs(&self) -> u64 {
        self.0.syncs.load(Ordering::Acquire)
    }

    /// From now on the disk is full at this many bytes; what it holds already stays.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.capacity.store(bytes, Ordering::Release);
    }

    /// After so many more changes and syncs all others fail, as if the process had been killed there.
    /// `u64::MAX` lifts it.
    pub fn cut_after(&self, operations: u64) {
        self.0.operations_left.store(operations, Ordering::Release);
    }

    /// What a kill now would leave.
    #[cfg(test)]
    pub(super) fn copy(&self) -> Self {
        let copy = MemoryDisk::default();
        let mut bytes = vec![0; usize::try_from(self.used()).unwrap()];
        self.0.bytes.read(0, &mut bytes).unwrap();
        copy.0.bytes.set_len(self.used()).unwrap();
        copy.0.bytes.write(0, &bytes).unwrap();
        *copy.0.wal.lock().unwrap() = self.wal();
        copy
    }

    /// Whether opening it as it is now, as after a kill, takes reading all of it.
    #[cfg(test)]
    pub(super) fn needs_check(&self) -> bool {
        let asked = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&asked);
        let opened = redb::Builder::new()
            .set_repair_callback(move |_| told.store(true, Ordering::Release))
            .create_with_backend(OpenMemory::new(&self.copy()));
        assert!(opened.is_ok(), "{opened:?}");
        asked.load(Ordering::Acquire)
    }

    /// The content of the write-ahead log; what was never written is missing at its end.
    pub(super) fn wal(&self) -> Vec<u8> {
        self.0.wal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes to the write-ahead log, whose room is taken from the beginning, and syncs it.
    pub(super) fn write_wal(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        self.operate()?;
        {
            let mut wal = self.0.wal.lock().unwrap_or_else(PoisonError::into_inner);
            let end = at + bytes.len();
            if wal.len() < end {
                wal.resize(end, 0);
            }
            wal[at..end].copy_from_slice(bytes);
        }
        self.operate()?;
        self.0.syncs.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn room_for(&self, end: u64) -> io::Result<()> {
        if end > self.0.capacity.load(Ordering::Acquire) && end > self.used() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn operate(&self) -> io::Result<()> {
        let one_less = |left| match left {
            u64::MAX => Some(u64::MAX),
            left => u64::checked_sub(left, 1),
        };
        let done = self.0.operations_left.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
        done.map(drop).map_err(|_| io::Error::other("the disk was cut off"))
    }
}

/// One opening of a memory disk. Holds the lock that it took itself, and no other.
#[derive(Debug)]
pub(super) struct OpenMemory {
    disk: MemoryDisk,
    locked: AtomicBool,
}

impl OpenMemory {
    pub(super) fn new(disk: &MemoryDisk) -> Self {
        OpenMemory { disk: disk.clone(), locked: AtomicBool::new(false) }
    }

    fn unlock(&self) {
        if self.locked.swap(false, Ordering::AcqRel) {
            self.disk.0.in_use.store(false, Ordering::Release);
        }
    }
}

impl StorageBackend for OpenMemory {
    fn len(&self) -> io::Result<u64> {
        self.disk.0.bytes.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.0.bytes.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.operate()?;
        self.disk.room_for(len)?;
        self.disk.0.bytes.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.disk.operate()?;
        self.disk.0.syncs.fetch_add(1, Ordering::AcqRel);
        self.disk.0.bytes.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.operate()?;
        self.disk.0.bytes.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.unlock();
        Ok(())
    }
    // The whole or nothing, which is all that the engine needs of a store with one writer.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        if !matches!(start, Bound::Unbounded | Bound::Included(0)) || end != Bound::Unbounded {
            return Err(BackendError::Unsupported);
        }
        let taken = !self.disk.0.in_use.swap(true, Ordering::AcqRel);
        self.locked.fetch_or(taken, Ordering::AcqRel);
        Ok(taken)
    }
    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        self.unlock();
        Ok(())
    }
}
