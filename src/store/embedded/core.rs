//! What readers, watchers and the one writer share.
//!
//! The engine fails for good on an I/O error (a full disk); the writer then drops it and opens it again on
//! the next write. Until then everything is Unavailable.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use redb::{Database, Durability, ReadableDatabase, WriteTransaction};
use tokio::sync::watch;

use super::commit::Batch;
use super::disk::{Disk, OpenError};
use super::fault::Fault;
use super::recent::Recent;
use super::record::{GENERATION, META};
use super::snapshot::{ChunkLimit, Snapshot};
use super::wal::{Logged, Wal};
use crate::store::{Event, Rev, StoreError};

pub(super) struct Core {
    disk: Disk,
    cache_bytes: usize,
    db: RwLock<Option<Database>>,
    /// The writer's; it belongs to the engine that is open.
    wal: Mutex<Option<Wal>>,
    recent: Recent,
    /// The last revision whose events can be read; watchers wait on it. It may lag behind a snapshot for a
    /// moment, never run ahead of one.
    published: watch::Sender<Rev>,
}

impl Core {
    pub(super) fn open(disk: Disk, cache_bytes: usize) -> Result<Self, OpenError> {
        let (db, wal) = open(&disk, cache_bytes)?;
        let core = Core {
            disk,
            cache_bytes,
            db: RwLock::new(Some(db)),
            wal: Mutex::new(Some(wal)),
            recent: Recent::default(),
            published: watch::Sender::new(Rev::ZERO),
        };
        core.republish()?;
        Ok(core)
    }

    pub(super) fn snapshot(&self) -> Result<Snapshot, Fault> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        Snapshot::take(db.as_ref().ok_or(Fault::NotOpen)?)
    }

    pub(super) fn begin_write(&self) -> Result<WriteTransaction, Fault> {
        let db = self.db.read().unwrap_or_else(PoisonError::into_inner);
        Ok(db.as_ref().ok_or(Fault::NotOpen)?.begin_write()?)
    }

    /// The write-ahead log, of which there is one as long as the engine is open.
    pub(super) fn wal(&self) -> MutexGuard<'_, Option<Wal>> {
        self.wal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Rev> {
        self.published.subscribe()
    }

    /// Tells the watchers of writes that are now durable.
    pub(super) fn publish(&self, events: Vec<Event>) {
        if let Some(last) = events.last().map(Event::rev) {
            self.recent.append(events);
            self.published.send_replace(last);
        }
    }

    /// The writes above `after`, from memory if they are recent, else from the log.
    pub(super) fn history(
        &self,
        prefix: &[u8],
        after: Rev,
        limit: ChunkLimit,
    ) -> Result<(Vec<Event>, Rev), StoreError> {
        match self.recent(prefix, after, limit) {
            Some(found) => Ok(found),
            None => self.snapshot()?.history(prefix, after, limit),
        }
    }

    /// The same, if memory reaches back so far.
    pub(super) fn recent(&self, prefix: &[u8], after: Rev, limit: ChunkLimit) -> Option<(Vec<Event>, Rev)> {
        self.recent.after(prefix, after, limit)
    }

    /// After a failed write: nothing in memory is to be trusted any more.
    pub(super) fn abandon(&self) {
        *self.wal() = None;
        *self.db.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.recent.clear();
    }

    /// Opens the engine again if it was abandoned, and publishes what turned out to be written.
    pub(super) fn recover(&self) -> Result<(), Fault> {
        if self.db.read().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let (db, wal) = open(&self.disk, self.cache_bytes).map_err(Fault::Reopen)?;
        *self.wal() = Some(wal);
        *self.db.write().unwrap_or_else(PoisonError::into_inner) = Some(db);
        self.republish().map_err(Fault::Reopen)
    }

    fn republish(&self) -> Result<(), OpenError> {
        let snapshot = self.snapshot().map_err(|fault| self.disk.unreadable(fault))?;
        self.recent.clear();
        self.published.send_replace(snapshot.rev);
        Ok(())
    }
}

/// Opens the engine and gives it what only the write-ahead log has.
fn open(disk: &Disk, cache_bytes: usize) -> Result<(Database, Wal), OpenError> {
    let db = disk.open(cache_bytes)?;
    let place = disk.wal()?;
    let generation = generation(&db).map_err(|fault| disk.unreadable(fault))?;
    let (wal, logged) = Wal::open(place, generation)
        .map_err(|error| OpenError::Io { place: "the write-ahead log".into(), source: Arc::new(error) })?;
    replay(&db, logged).map_err(|fault| disk.unreadable(fault))?;
    Ok((db, wal))
}

fn generation(db: &Database) -> Result<u64, Fault> {
    let meta = db.begin_read()?.open_table(META)?;
    Ok(meta.get(GENERATION)?.map_or(0, |generation| generation.value()))
}

/// Applies the batches that the engine has not. It may have some: it makes durable what it has when it is closed.
fn replay(db: &Database, logged: Logged) -> Result<(), Fault> {
    if logged.is_empty() {
        return Ok(());
    }
    let mut txn = db.begin_write()?;
    txn.set_durability(Durability::None)?;
    let mut batch = Batch::open(&txn)?;
    for (base, requests) in logged {
        if base > batch.rev() {
            return Err(Fault::HistoryGap { rev: batch.rev().next() });
        }
        if base == batch.rev() {
            for request in requests {
                // It was possible once, on the same state.
                let _same = batch.apply(request)?;
            }
        }
    }
    batch.finish()?;
    Ok(txn.commit()?)
}
