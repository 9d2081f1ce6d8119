//! How far a watch has come, and whether etcd's next word fits: the pure part of a watch.
use super::super::Rev;

/// What to do with one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It is the next one.
    Next,
    /// It was told before: leave it out. etcd before 3.4.24 and 3.5.8 repeats events, and goes back in time.
    Repeated,
    /// Revisions between were left out: the watch has to begin again where it was. etcd before 3.4.31 and 3.5.13 loses
    /// events after a compaction, later ones on the compaction revision.
    Missing,
}

/// The place of a watch of all keys: every revision has an event, so the next one is known.
#[derive(Debug)]
pub(super) struct Track {
    /// Everything up to here came.
    seen: Rev,
    /// The key that came last, at `seen`.
    last: Vec<u8>,
    /// The place that readers were told of.
    told: Rev,
    /// The end of what had been written before the watch began; none once it was reached.
    replay: Option<Rev>,
}

impl Track {
    /// A watch after `after` of a store that is at `now`.
    pub(super) fn new(after: Rev, now: Rev) -> Self {
        Self { seen: after, last: Vec::new(), told: after, replay: Some(now) }
    }

    /// Everything up to here came.
    pub(super) fn seen(&self) -> Rev {
        self.seen
    }

    /// Takes the next event.
    pub(super) fn take(&mut self, rev: Rev, key: &[u8]) -> Fit {
        // Another's transaction may write several keys at one revision; ours never do.
        let beside = rev == self.seen && !self.last.is_empty() && self.last != key;
        if rev <= self.seen && !beside && !planted!("repeated-events-told") {
            return Fit::Repeated;
        }
        if rev > self.seen.next() && !planted!("lost-events-unseen") {
            return Fit::Missing;
        }
        self.seen = rev;
        self.last.clear();
        self.last.extend_from_slice(key);
        Fit::Next
    }

    /// Readers got an event of this revision.
    pub(super) fn tell(&mut self, rev: Rev) {
        self.told = rev;
    }

    /// Whether readers have to be told how far the watch is, now that there is nothing more to give them: at the end of
    /// the replay, and when other keys were written since.
    pub(super) fn progress(&mut self) -> Option<Rev> {
        let caught_up = self.replay.is_some_and(|end| self.seen >= end);
        if caught_up {
            self.replay = None;
        }
        let behind = self.replay.is_none() && self.told < self.seen;
        (caught_up || behind).then(|| {
            self.told = self.seen;
            self.seen
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_revision_comes_once_and_in_order() {
        let mut track = Track::new(Rev(5), Rev(7));
        for (rev, key, wanted) in [
            (5, "a", Fit::Repeated), // before its beginning
            (6, "a", Fit::Next),
            (6, "a", Fit::Repeated),
            (6, "b", Fit::Next), // another's transaction
            (4, "c", Fit::Repeated),
            (8, "c", Fit::Missing),
            (7, "c", Fit::Next),
            (8, "c", Fit::Next),
        ] {
            assert_eq!(track.take(Rev(rev), key.as_bytes()), wanted, "{rev} {key}");
        }
        assert_eq!(track.seen(), Rev(8));
    }

    #[test]
    fn progress_is_told_at_the_end_of_the_replay_and_when_others_write() {
        let mut track = Track::new(Rev(5), Rev(7));
        assert_eq!(track.progress(), None);
        track.take(Rev(6), b"other");
        assert_eq!(track.progress(), None, "still replaying");
        track.take(Rev(7), b"ours");
        track.tell(Rev(7));
        assert_eq!(track.progress(), Some(Rev(7)));
        assert_eq!(track.progress(), None);
        track.take(Rev(8), b"ours");
        track.tell(Rev(8));
        assert_eq!(track.progress(), None, "the event said it");
        track.take(Rev(9), b"other");
        assert_eq!(track.progress(), Some(Rev(9)));

        let mut nothing = Track::new(Rev(5), Rev(5));
        assert_eq!(nothing.progress(), Some(Rev(5)));
        assert_eq!(nothing.progress(), None);
    }
}
