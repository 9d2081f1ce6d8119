//! Controller calls that may still be at work in the plugin, although nobody here waits for them: they ended without the
//! plugin's word, or were begun before this daemon was.
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::csi::Failure;

/// Until when, by the volume's uid. In memory only: what an earlier daemon began is in doubt by [`Doubts::begin_with`].
#[derive(Debug)]
pub struct Doubts {
    longest_call: Duration,
    until: Mutex<HashMap<String, Instant>>,
    inherited: Mutex<HashSet<String>>,
    released: Mutex<HashMap<String, i64>>,
    untouched: Mutex<HashMap<String, i64>>,
}

impl Doubts {
    /// Nothing is in doubt. A plugin is done with a call at the latest so long after it began.
    pub fn new(longest_call: Duration) -> Self {
        Self {
            longest_call,
            until: Mutex::default(),
            inherited: Mutex::default(),
            released: Mutex::default(),
            untouched: Mutex::default(),
        }
    }

    /// The volumes of which this node was host when its daemon began.
    pub fn begin_with(&self, volumes: impl IntoIterator<Item = String>) {
        let until = Instant::now() + self.longest_call;
        let inherited: HashSet<String> = volumes.into_iter().collect();
        self.all().extend(inherited.iter().map(|uid| (uid.clone(), until)));
        *self.inherited.lock().unwrap_or_else(PoisonError::into_inner) = inherited;
    }

    /// From now on no call is made about the volume under this epoch.
    pub(super) fn let_go(&self, volume: &str, epoch: i64) {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).insert(volume.to_owned(), epoch);
    }

    /// Whether this node let go of the volume under this epoch: what names it as host still is old, also when the Volume is
    /// gone by now, and the attachment alone tells who detaches.
    pub(super) fn has_let_go(&self, volume: &str, epoch: i64) -> bool {
        let released = self.released.lock().unwrap_or_else(PoisonError::into_inner);
        released.get(volume).is_some_and(|last| epoch <= *last)
    }

    /// The server was told that a snapshot may be asked for under this epoch, and nothing was sent yet.
    pub(super) fn set_untouched(&self, snapshot: &str, epoch: i64) {
        self.untouched.lock().unwrap_or_else(PoisonError::into_inner).insert(snapshot.to_owned(), epoch);
    }

    /// Something was sent.
    pub(super) fn set_touched(&self, snapshot: &str) {
        self.untouched.lock().unwrap_or_else(PoisonError::into_inner).remove(snapshot);
    }

    /// Whether nothing was sent of what the server was told of under this epoch. In between another node may have been host.
    pub(super) fn is_untouched(&self, snapshot: &str, epoch: i64) -> bool {
        self.untouched.lock().unwrap_or_else(PoisonError::into_inner).get(snapshot) == Some(&epoch)
    }

    /// Whether an earlier daemon may have made calls about it in the name of this node.
    pub(super) fn inherited(&self, volume: &str) -> bool {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner).contains(volume)
    }

    /// A call about the volume, begun then, has ended so.
    pub(super) fn ended<T>(&self, volume: &str, began: Instant, result: &Result<T, Failure>) {
        match result {
            // Nothing was sent, which says nothing of an earlier one.
            Err(failure) if failure.is_unsent() => {}
            Err(failure) if !failure.is_answer() => {
                self.all().insert(volume.to_owned(), began + self.longest_call);
            }
            // It says that it is at work on an earlier one.
            Err(failure) if failure.is_aborted() => {
                self.all().insert(volume.to_owned(), Instant::now() + self.longest_call);
            }
            Ok(_) | Err(_) => {
                self.all().remove(volume);
            }
        }
    }

    /// How long the plugin may still be at work on the volume.
    pub(super) fn left(&self, volume: &str) -> Option<Duration> {
        let mut all = self.all();
        let left = all.get(volume)?.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        if left.is_none() {
            all.remove(volume);
        }
        left
    }

    /// The volume is gone, or is another node's.
    pub fn forget(&self, volume: &str) {
        self.all().remove(volume);
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner).remove(volume);
        self.untouched.lock().unwrap_or_else(PoisonError::into_inner).remove(volume);
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
