//! What can go wrong beneath the embedded backend, and what that means for the caller.
use std::sync::Arc;

use super::disk::OpenError;
use super::record::Malformed;
use crate::store::{Outcome, Rev, StoreError};

/// A failure below. Becomes a [`StoreError`] where it leaves the backend.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The engine refused or failed.
    #[error("the storage engine failed")]
    Engine(#[source] redb::Error),
    /// The write-ahead log could not be written.
    #[error("the write-ahead log failed")]
    Log(#[source] std::io::Error),
    /// A record cannot be read.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A revision that must be in the log is not.
    #[error("revision {rev} is missing from the history")]
    HistoryGap { rev: Rev },
    /// The file failed before and is not open at the moment.
    #[error("the store's file is not open after a failure")]
    NotOpen,
    /// It could not be opened again after a failure.
    #[error("the store's file could not be opened again")]
    Reopen(#[source] OpenError),
    /// The store was dropped.
    #[error("the store is closed")]
    Closed,
    /// The writer gave no answer in time.
    #[error("no answer from the store's writer in time")]
    Silent,
}

impl Fault {
    /// The error for a call that certainly changed nothing.
    pub(super) fn not_done(self) -> StoreError {
        self.into_error(Outcome::NotDone)
    }

    /// The error for a write of which we cannot say whether it was done.
    pub(super) fn in_doubt(self) -> StoreError {
        self.into_error(Outcome::Unknown)
    }

    fn into_error(self, outcome: Outcome) -> StoreError {
        match self {
            Fault::Engine(redb::Error::Corrupted(_)) | Fault::Malformed(_) | Fault::HistoryGap { .. } => {
                StoreError::Corrupt { source: Arc::new(self) }
            }
            Fault::Engine(_)
            | Fault::Log(_)
            | Fault::NotOpen
            | Fault::Reopen(_)
            | Fault::Closed
            | Fault::Silent => StoreError::Unavailable { outcome, source: Arc::new(self) },
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        fault.not_done()
    }
}

macro_rules! from_engine {
    ($($error:ty),*) => {$(
        impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                Fault::Engine(error.into())
            }
        }
    )*};
}
from_engine!(
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    redb::CommitError,
    redb::SetDurabilityError
);
