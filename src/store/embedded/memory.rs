//! A disk made of memory, for tests and for simulation: it can be opened again, and it can be full.
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redb::backends::InMemoryBackend;
use redb::{BackendError, StorageBackend};

/// Memory that outlives the stores opened on it one after another: a disk for tests and simulation.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk(Arc<MemoryDiskState>);

#[derive(Debug)]
struct MemoryDiskState {
    bytes: InMemoryBackend,
    capacity: AtomicU64,
    in_use: AtomicBool,
}

impl Default for MemoryDiskState {
    fn default() -> Self {
        let bytes = InMemoryBackend::new();
        MemoryDiskState { bytes, capacity: AtomicU64::new(u64::MAX), in_use: AtomicBool::new(false) }
    }
}

impl MemoryDisk {
    /// How many bytes are in use, free space within the store included.
    pub fn used(&self) -> u64 {
        self.0.bytes.len().unwrap_or(0)
    }

    /// From now on the disk is full at this many bytes; what it holds already stays.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.capacity.store(bytes, Ordering::Release);
    }

    fn room_for(&self, end: u64) -> io::Result<()> {
        if end > self.0.capacity.load(Ordering::Acquire) && end > self.used() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
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
        self.disk.room_for(len)?;
        self.disk.0.bytes.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.disk.0.bytes.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
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
