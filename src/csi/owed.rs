//! What a plugin was asked about volumes and has not answered: it may be at work on it still.
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

/// The calls of one plugin.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    under_way: watch::Sender<usize>,
    /// Volumes whose last call was given up. The end of a connection says nothing of it: drivers close those that are old.
    /// With the moment at which the plugin is done with it at the latest, where that is known.
    given_up: Mutex<HashMap<String, Option<Instant>>>,
    /// How many processes are gone: what one of them was asked is no matter of the next one.
    gone: AtomicU64,
}

impl Owed {
    /// A call is sent now.
    pub(crate) fn begin(&self, volume: String) -> Asked<'_> {
        self.under_way.send_modify(|calls| *calls += 1);
        Asked { owed: self, volume, process: self.gone.load(Ordering::Acquire), end: End::GivenUp }
    }

    /// How many calls are under way.
    pub(crate) fn under_way(&self) -> watch::Receiver<usize> {
        self.under_way.subscribe()
    }

    /// Whether the plugin may be at work on a call about the volume that was given up.
    pub(crate) fn has(&self, volume: &str) -> bool {
        self.given_up().get(volume).is_some_and(|until| until.is_none_or(|until| Instant::now() < until))
    }

    /// A daemon before this one gave up a call about the volume, or may have.
    pub(crate) fn inherit(&self, volume: &str, until: Option<Instant>) {
        self.given_up().entry(volume.to_owned()).or_insert(until);
    }

    /// The process is gone, and what it was doing with it.
    pub(crate) fn forget(&self) {
        let mut given_up = self.given_up();
        self.gone.fetch_add(1, Ordering::AcqRel);
        given_up.clear();
    }

    fn given_up(&self) -> MutexGuard<'_, HashMap<String, Option<Instant>>> {
        // Nothing panics while the lock is held; were it to, the table would still be whole.
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call under way. Dropped without a word it was given up.
pub(crate) struct Asked<'a> {
    owed: &'a Owed,
    volume: String,
    process: u64,
    end: End,
}

/// What came of a call.
#[derive(Debug, Clone, Copy)]
enum End {
    GivenUp,
    Answered,
    NotSent,
}

impl Asked<'_> {
    /// The plugin is done with the call, and says so.
    pub(crate) fn answered(&mut self) {
        self.end = End::Answered;
    }

    /// It was not sent in the end, which says nothing of an earlier one.
    pub(crate) fn not_sent(&mut self) {
        self.end = End::NotSent;
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let volume = std::mem::take(&mut self.volume);
        let mut given_up = self.owed.given_up();
        match self.end {
            End::Answered => {
                given_up.remove(&volume);
            }
            End::GivenUp if self.process == self.owed.gone.load(Ordering::Acquire) => {
                given_up.insert(volume, None);
            }
            End::GivenUp | End::NotSent => {}
        }
        drop(given_up);
        self.owed.under_way.send_modify(|calls| *calls -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_given_up_is_owed_until_an_answer_or_the_end_of_the_process() {
        let owed = Owed::default();
        let calls = owed.under_way();
        let first = owed.begin("a".to_owned());
        let mut second = owed.begin("b".to_owned());
        assert_eq!(*calls.borrow(), 2);
        assert!(!owed.has("a"), "it may be answered yet");
        second.answered();
        drop((first, second));
        assert_eq!(*calls.borrow(), 0);
        assert_eq!((owed.has("a"), owed.has("b")), (true, false));
        owed.begin("a".to_owned()).answered();
        assert!(!owed.has("a"), "answered when asked again");
        drop(owed.begin("a".to_owned()));
        assert!(owed.has("a"));
        let late = owed.begin("b".to_owned());
        owed.forget();
        drop(late);
        assert!(!owed.has("a") && !owed.has("b"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_earlier_daemon_gave_up_is_owed_for_as_long_as_is_known() {
        let owed = Owed::default();
        let until = Instant::now() + Duration::from_secs(5);
        owed.inherit("a", Some(until));
        owed.inherit("b", None);
        owed.inherit("b", Some(until));
        owed.begin("a".to_owned()).not_sent();
        assert!(owed.has("a") && owed.has("b"), "what was not sent answers nothing");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!((owed.has("a"), owed.has("b")), (false, true));
        owed.begin("b".to_owned()).not_sent();
        owed.begin("c".to_owned()).not_sent();
        assert_eq!((owed.has("b"), owed.has("c")), (true, false));
        owed.begin("b".to_owned()).answered();
        assert!(!owed.has("b"));
    }
}
