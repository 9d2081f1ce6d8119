//! Turns: who wants to change an object reads, decides and writes before the next one does.
//!
//! The store's compare-and-swap is what keeps writes right, here and among several servers. Turns only keep
//! writers of one server from beating each other again and again: the queue is fair, so each gets through.
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::status::Refusal;

/// How long a writer waits for its turn; each turn is a few store calls long.
const DEADLINE: Duration = Duration::from_secs(10);
/// How many objects can be changed at once, if no two share a queue by chance.
const QUEUES: usize = 256;

/// The queues.
pub(crate) struct Turns {
    queues: Vec<Semaphore>,
}

impl Turns {
    /// Empty queues.
    pub(crate) fn new() -> Self {
        Self { queues: std::iter::repeat_with(|| Semaphore::new(1)).take(QUEUES).collect() }
    }

    /// Waits for the turn to change the object under `key`.
    pub(crate) async fn of(&self, key: &str) -> Result<SemaphorePermit<'_>, Refusal> {
        // The default hasher is the same in every run, which a simulation needs.
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let place = usize::try_from(hasher.finish() % QUEUES as u64).unwrap_or_default();
        let late = || Refusal::unavailable("too many writers of this object at once");
        match tokio::time::timeout(DEADLINE, self.queues[place].acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(late()),
        }
    }
}
