//! What readers, watchers and the one writer share.
//!
//! The engine fails for good on an I/O error (a full disk); the writer then drops it and opens it again on
//! the next write. Until then everything is Unavailable.
use std::sync::{PoisonError, RwLock};

use redb::{Database, WriteTransaction};
use tokio::sync::watch;

use super::disk::{Disk, OpenError};
use super::fault::Fault;
use super::recent::Recent;
use super::snapshot::{ChunkLimit, Snapshot};
use crate::store::{Event, Rev, StoreError};

pub(super) struct Core {
    disk: Disk,
    cache_bytes: usize,
    db: RwLock<Option<Database>>,
    recent: Recent,
    /// The last revision whose events can be read; watchers wait on it. It may lag behind a snapshot for a
    /// moment, never run ahead of one.
    published: watch::Sender<Rev>,
}

impl Core {
    pub(super) fn open(disk: Disk, cache_bytes: usize) -> Result<Self, OpenError> {
        let db = disk.open(cache_bytes)?;
        let core = Core {
            disk,
            cache_bytes,
            db: RwLock::new(Some(db)),
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
        *self.db.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.recent.clear();
    }

    /// Opens the engine again if it was abandoned, and publishes what turned out to be written.
    pub(super) fn recover(&self) -> Result<(), Fault> {
        if self.db.read().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let db = self.disk.open(self.cache_bytes).map_err(Fault::Reopen)?;
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
