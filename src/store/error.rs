//! What a caller of the store may do next when a call failed.
use std::sync::Arc;

use super::{Kv, Rev};

/// The error beneath one of ours; shared because one failed commit answers many callers.
pub type Source = Arc<dyn std::error::Error + Send + Sync>;

/// Whether a write that failed was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Certainly not: the same call may be repeated.
    NotDone,
    /// It may have been, or may yet be: read the key again before anything else, never repeat blindly.
    Unknown,
}

/// A failed call. A variant says what the caller may do next.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The key is not as expected: decide anew from what is there.
    #[error("the key is not as expected: {}", found(current.as_ref()))]
    Conflict {
        /// The key as it is; `None` if it does not exist.
        current: Option<Kv>,
    },
    /// Another leads since: stop leading. Nothing was written.
    #[error("another leads since this writer's term began")]
    Deposed,
    /// Another key that the write went by was written since: decide anew. Nothing was written.
    #[error("what the write went by was written since")]
    Overtaken,
    /// That history is forgotten: list anew, then watch after the list's revision.
    #[error("history is compacted at revision {at}")]
    Compacted {
        /// The compaction revision.
        at: Rev,
    },
    /// The revision was never given out (or was lost with a restored backup): list anew.
    #[error("the revision is in the future, the store is at {current}")]
    Future {
        /// The revision of the store.
        current: Rev,
    },
    /// The watch fell too far behind and was cut: watch again after the last revision seen, or list anew.
    #[error("the watch stands at revision {delivered}, too far behind {current}")]
    TooSlow {
        /// Everything up to here was delivered.
        delivered: Rev,
        /// The revision of the store.
        current: Rev,
    },
    /// The store cannot be reached or written now: try later, minding the outcome.
    #[error("the store is unavailable ({})", told(*outcome))]
    Unavailable {
        /// Whether the write was done; reads are always [`Outcome::NotDone`].
        outcome: Outcome,
        /// Why.
        #[source]
        source: Source,
    },
    /// The key or the value is over its limit: report it, never repeat.
    #[error("{size} bytes are over the limit of {limit}")]
    TooLarge {
        /// Bytes given.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// What the store holds cannot be understood: stop, and restore from a backup.
    #[error("the store is corrupt")]
    Corrupt {
        /// Why.
        #[source]
        source: Source,
    },
}

fn found(current: Option<&Kv>) -> String {
    current.map_or_else(
        || "it does not exist".to_owned(),
        |kv| format!("it was last written at revision {}", kv.mod_revision),
    )
}

const fn told(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NotDone => "not done",
        Outcome::Unknown => "outcome unknown",
    }
}
