//! STORAGE: revisioned keys.
//!
//! A [`Store`] holds byte strings under byte-string keys. Every successful write of one key raises the
//! store's one revision by exactly one, and that revision is the event number of the write: there is one
//! event per revision, in order, with no gap. All exclusive decisions are compare-and-swap writes of one key.
//!
//! What it never does: it never looks into a value, never writes two keys at once, never expires a key,
//! and never repeats a write whose outcome it does not know.
//!
//! [`embedded`] keeps one file on this machine, `etcd` (a feature, on by default) is a client of etcd. Every backend
//! passes the one suite in `tests/store.rs`.
pub mod archive;
mod compactor;
pub mod embedded;
mod error;
#[cfg(feature = "etcd")]
pub mod etcd;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

pub use compactor::{History, KeepPolicy, run_compactor};
pub use error::{Outcome, Source, StoreError};

/// Longest value in bytes that [`Store::put`] takes; one byte more is [`StoreError::TooLarge`].
pub const VALUE_LIMIT: usize = 1024 * 1024;

/// Longest key in bytes that [`Store::put`] takes.
pub const KEY_LIMIT: usize = 2048;

/// The number of one write, counted from 1 over the whole store. [`Rev::ZERO`] is the empty store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rev(pub u64);

impl Rev {
    /// The revision of a store to which nothing was ever written.
    pub const ZERO: Rev = Rev(0);

    /// The revision of the write after this one.
    #[must_use]
    pub const fn next(self) -> Rev {
        Rev(self.0 + 1)
    }
}

impl fmt::Display for Rev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One key as it was written at one revision.
#[derive(Clone, PartialEq, Eq)]
pub struct Kv {
    /// The key; keys are ordered byte by byte.
    pub key: Bytes,
    /// What was last put under the key.
    pub value: Bytes,
    /// The write that made the key. Kept over updates; a key that was deleted and made again gets a new one.
    pub create_revision: Rev,
    /// The write that this value came from.
    pub mod_revision: Rev,
}

// Values may be sealed secrets, and a conflict carries one into logs: say how long, never what.
impl fmt::Debug for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kv")
            .field("key", &self.key)
            .field("value_len", &self.value.len())
            .field("create_revision", &self.create_revision.0)
            .field("mod_revision", &self.mod_revision.0)
            .finish()
    }
}

/// What must hold of a key for a write to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Write whatever is there. A delete still wants a key to delete.
    Any,
    /// The key does not exist.
    Absent,
    /// The key exists and its `mod_revision` is this one.
    Rev(Rev),
    /// The key is so, and [`LEADER`] was last written at `term`; if that was written since: [`StoreError::Deposed`].
    Led {
        /// The key's `mod_revision`; `None`: it does not exist.
        rev: Option<Rev>,
        /// The revision at which the writer became leader; `None`: there is but one that could lead.
        term: Option<Rev>,
        /// What else the writer went by; if that was written since: [`StoreError::Overtaken`].
        also: Option<Arc<Unwritten>>,
    },
}

/// Another key that nobody wrote since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    /// The key.
    pub key: Bytes,
    /// Its `mod_revision`; `None`: it does not exist.
    pub rev: Option<Rev>,
}

impl Expect {
    /// What is expected of the key itself.
    pub(crate) fn of_key(&self) -> OfKey {
        match self {
            Self::Any => OfKey::Any,
            Self::Rev(rev) | Self::Led { rev: Some(rev), .. } => OfKey::Rev(*rev),
            Self::Absent | Self::Led { rev: None, .. } => OfKey::Absent,
        }
    }

    /// The term in which this must be written.
    pub(crate) fn term(&self) -> Option<Rev> {
        match self {
            Self::Led { term, .. } => *term,
            Self::Any | Self::Absent | Self::Rev(_) => None,
        }
    }

    /// The other key that must not have been written.
    pub(crate) fn also(&self) -> Option<&Unwritten> {
        match self {
            Self::Led { also, .. } => also.as_deref(),
            Self::Any | Self::Absent | Self::Rev(_) => None,
        }
    }
}

/// What is expected of the key that is written.
#[derive(Clone, Copy)]
pub(crate) enum OfKey {
    /// Anything.
    Any,
    /// That it does not exist.
    Absent,
    /// That this was its last write.
    Rev(Rev),
}

/// The key that a leader writes when it begins. Writes of a leader name the revision of its own, so that one which was
/// replaced without knowing writes nothing more.
pub const LEADER: &[u8] = b"/wharfline/meta/leader";

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// In byte order of their keys.
    pub kvs: Vec<Kv>,
    /// The revision at which all of it was true: ask for it as `at` to get the next page of the same state.
    pub rev: Rev,
    /// Whether keys of the prefix follow after the last one of this page.
    pub more: bool,
    /// How many follow, where the store tells it with the page.
    pub left: Option<usize>,
}

/// What a watch says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A key was made or updated, at `kv.mod_revision`.
    Put {
        /// The key after the write.
        kv: Kv,
        /// The key before the write; `None` when the write made it.
        prev: Option<Kv>,
    },
    /// A key was deleted.
    Delete {
        /// The key that is gone.
        key: Bytes,
        /// The revision of the deletion.
        rev: Rev,
        /// The key before the deletion.
        prev: Kv,
    },
    /// Everything of the prefix up to and including this revision has been delivered. Said once when the
    /// replay has caught up, and again whenever writes outside the prefix have raised the revision.
    Progress(Rev),
}

impl Event {
    /// The revision of the write, or the one that progress reached.
    pub const fn rev(&self) -> Rev {
        match self {
            Event::Put { kv, .. } => kv.mod_revision,
            Event::Delete { rev, .. } | Event::Progress(rev) => *rev,
        }
    }

    /// The key that was written; `None` for progress.
    pub const fn key(&self) -> Option<&Bytes> {
        match self {
            Event::Put { kv, .. } => Some(&kv.key),
            Event::Delete { key, .. } => Some(key),
            Event::Progress(_) => None,
        }
    }
}

/// The events of a prefix, strictly rising in revision (a progress may repeat the one before it). After
/// the first `Err` the stream ends: watch again after the last revision seen, or list anew.
pub type Watch = BoxStream<'static, Result<Event, StoreError>>;

/// Revisioned keys. All methods may be dropped at any await; a write may then have been done.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The revision of the last write, by anyone, that was acknowledged before this call.
    async fn revision(&self) -> Result<Rev, StoreError>;

    /// One key, and the revision at which that was true. Sees every write acknowledged before the call.
    async fn get(&self, key: &[u8]) -> Result<(Option<Kv>, Rev), StoreError>;

    /// Keys that begin with `prefix`, sort after `after`, at most `limit` of them (`usize::MAX`: all), as of
    /// revision `at` or now. Errors: [`StoreError::Compacted`] and [`StoreError::Future`] for `at`.
    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        at: Option<Rev>,
    ) -> Result<Page, StoreError>;

    /// Writes a key and returns the revision of the write. Errors: [`StoreError::Conflict`] with what is
    /// there, [`StoreError::TooLarge`]; neither uses up a revision.
    async fn put(&self, key: &[u8], value: Bytes, expect: Expect) -> Result<Rev, StoreError>;

    /// Deletes a key; returns the revision of the deletion and what was there. A key that does not exist,
    /// and [`Expect::Absent`], are a [`StoreError::Conflict`].
    async fn delete(&self, key: &[u8], expect: Expect) -> Result<(Rev, Kv), StoreError>;

    /// Every write to keys of `prefix` with a revision above `after`, past ones first, then as they come.
    /// A watch after the revision of a list misses nothing. Errors, here or later in the stream:
    /// [`StoreError::Compacted`] if `after` is below the compaction revision (exactly at it works),
    /// [`StoreError::Future`] if nothing was written at `after` yet, [`StoreError::TooSlow`].
    async fn watch(&self, prefix: &[u8], after: Rev) -> Result<Watch, StoreError>;

    /// Forgets all history below `rev`: lists at it and watches after it still work, older ones do not. At or
    /// below the present compaction revision it does nothing. Error: [`StoreError::Future`].
    async fn compact(&self, rev: Rev) -> Result<(), StoreError>;

    /// The revision last compacted at; [`Rev::ZERO`] if none was.
    async fn compacted(&self) -> Result<Rev, StoreError>;
}

fn within(bytes: &[u8], limit: usize) -> Result<(), StoreError> {
    if bytes.len() > limit {
        return Err(StoreError::TooLarge { size: bytes.len(), limit });
    }
    Ok(())
}
