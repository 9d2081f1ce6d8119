//! What a plugin was asked about volumes and snapshots and has not answered: it may be at work on it still.
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use super::turns::Key;

/// What a call is about. A thing goes by its name until it has an id, and callers ask for either.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum About {
    /// A volume, by handle or name.
    Volume(String),
    /// A snapshot, by id or name.
    Snapshot(String),
    /// A group snapshot, by id or name.
    Group(String),
}

impl About {
    /// What somebody who holds the turn of `key` calls about.
    pub(crate) fn of(key: &Key) -> Option<Self> {
        match key {
            Key::Volume(name) | Key::Name(name) => Some(Self::Volume(name.clone())),
            Key::Snapshot(name) | Key::SnapshotName(name) => Some(Self::Snapshot(name.clone())),
            Key::Group(name) | Key::GroupName(name) => Some(Self::Group(name.clone())),
            Key::Readiness => None,
        }
    }
}

/// The calls of one plugin.
#[derive(Debug, Default)]
pub(crate) struct Owed {
    under_way: watch::Sender<usize>,
    /// What the last call was given up about. The end of a connection says nothing of it: drivers close those that are old.
    /// With the moment at which the plugin is done with it at the latest, where that is known.
    given_up: Mutex<HashMap<About, Option<Instant>>>,
    /// How many processes are gone: what one of them was asked is no matter of the next one.
    gone: AtomicU64,
}

impl Owed {
    /// A call is sent now.
    pub(crate) fn begin(self: &Arc<Self>, about: Vec<About>) -> Asked {
        self.under_way.send_modify(|calls| *calls += 1);
        let process = self.gone.load(Ordering::Acquire);
        Asked { owed: Arc::clone(self), about, process, end: End::GivenUp }
    }

    /// How many calls are under way.
    pub(crate) fn under_way(&self) -> watch::Receiver<usize> {
        self.under_way.subscribe()
    }

    /// Whether the plugin may be at work on a call about this that was given up.
    pub(crate) fn has(&self, about: &About) -> bool {
        self.given_up().get(about).is_some_and(|until| until.is_none_or(|until| Instant::now() < until))
    }

    /// A daemon before this one gave up a call about the volume, or may have.
    pub(crate) fn inherit(&self, volume: &str, until: Option<Instant>) {
        self.given_up().entry(About::Volume(volume.to_owned())).or_insert(until);
    }

    /// The process is gone, and what it was doing with it.
    pub(crate) fn forget(&self) {
        let mut given_up = self.given_up();
        self.gone.fetch_add(1, Ordering::AcqRel);
        given_up.clear();
    }

    fn given_up(&self) -> MutexGuard<'_, HashMap<About, Option<Instant>>> {
        // Nothing panics while the lock is held; were it to, the table would still be whole.
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call under way. Dropped without a word it was given up.
pub(crate) struct Asked {
    owed: Arc<Owed>,
    about: Vec<About>,
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

impl Asked {
    /// The plugin is done with the call, and says so.
    pub(crate) fn answered(&mut self) {
        self.end = End::Answered;
    }

    /// It was not sent in the end, or only reads: that says nothing of an earlier one.
    pub(crate) fn not_sent(&mut self) {
        self.end = End::NotSent;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let about = std::mem::take(&mut self.about);
        let mut given_up = self.owed.given_up();
        match self.end {
            End::Answered => given_up.retain(|owed, _| !about.contains(owed)),
            End::GivenUp if self.process == self.owed.gone.load(Ordering::Acquire) => {
                given_up.extend(about.into_iter().map(|about| (about, None)));
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

    fn volume(name: &str) -> Vec<About> {
        vec![About::Volume(name.to_owned())]
    }

    fn has(owed: &Owed, name: &str) -> bool {
        owed.has(&About::Volume(name.to_owned()))
    }

    #[test]
    fn what_was_given_up_is_owed_until_an_answer_or_the_end_of_the_process() {
        let owed = Arc::new(Owed::default());
        let calls = owed.under_way();
        let first = owed.begin(volume("a"));
        let mut second = owed.begin(volume("b"));
        assert_eq!(*calls.borrow(), 2);
        assert!(!has(&owed, "a"), "it may be answered yet");
        second.answered();
        drop((first, second));
        assert_eq!(*calls.borrow(), 0);
        assert_eq!((has(&owed, "a"), has(&owed, "b")), (true, false));
        owed.begin(volume("a")).answered();
        assert!(!has(&owed, "a"), "answered when asked again");
        drop(owed.begin(volume("a")));
        assert!(has(&owed, "a"));
        let late = owed.begin(volume("b"));
        owed.forget();
        drop(late);
        assert!(!has(&owed, "a") && !has(&owed, "b"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_earlier_daemon_gave_up_is_owed_for_as_long_as_is_known() {
        let owed = Arc::new(Owed::default());
        let until = Instant::now() + Duration::from_secs(5);
        owed.inherit("a", Some(until));
        owed.inherit("b", None);
        owed.inherit("b", Some(until));
        owed.begin(volume("a")).not_sent();
        assert!(has(&owed, "a") && has(&owed, "b"), "what was not sent answers nothing");
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!((has(&owed, "a"), has(&owed, "b")), (false, true));
        owed.begin(volume("b")).not_sent();
        owed.begin(volume("c")).not_sent();
        assert_eq!((has(&owed, "b"), has(&owed, "c")), (true, false));
        owed.begin(volume("b")).answered();
        assert!(!has(&owed, "b"));
    }

    #[test]
    fn a_snapshot_is_not_the_volume_of_the_same_id_and_a_call_may_be_about_both() {
        let owed = Arc::new(Owed::default());
        let snapshot = About::of(&Key::SnapshotName("a".to_owned())).unwrap();
        drop(owed.begin(vec![snapshot.clone()]));
        assert!(owed.has(&snapshot) && !has(&owed, "a"));
        drop(owed.begin([volume("a"), volume("b")].concat()));
        assert!(has(&owed, "a") && has(&owed, "b"));
        owed.begin(vec![snapshot.clone(), About::Volume("a".to_owned())]).answered();
        assert!(!owed.has(&snapshot) && !has(&owed, "a") && has(&owed, "b"));
        assert_eq!(About::of(&Key::Readiness), None);
    }
}
