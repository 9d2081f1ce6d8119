//! When to send which signal: a decision over plain values, without clock or process.
//!
//! ```text
//! Running --stop--> Asked --grace over--> Killing --> (none left: over)
//!    \---main gone---^
//! ```
//! SIGTERM goes to the main process's group while the main process lives, to everything left once it is gone.
//! SIGKILL goes to everything, again after each death, because a death may show what it had started. Of deaths that are
//! seen together, once.

/// Milliseconds of a clock that never goes back.
pub(crate) type Millis = u64;

/// Which signal to send now; of several that are due, the last one of these does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    /// None.
    Wait,
    /// SIGTERM to the main process's group.
    TermMain,
    /// SIGTERM to all that is left.
    TermLeft,
    /// SIGKILL to all that is left.
    KillLeft,
}

/// Where a task is on its way down.
#[derive(Debug)]
pub(crate) struct Ladder {
    grace: Millis,
    main_gone: bool,
    terminated: bool,
    stop_asked: bool,
    kill_at: Option<Millis>,
    killing: bool,
}

impl Ladder {
    /// A running task with this time between SIGTERM and SIGKILL.
    pub(crate) fn new(grace: Millis) -> Self {
        Self { grace, main_gone: false, terminated: false, stop_asked: false, kill_at: None, killing: false }
    }

    /// Whether somebody asked for a stop.
    pub(crate) fn stop_asked(&self) -> bool {
        self.stop_asked
    }

    /// Somebody asks for a stop, with a grace of their own or the task's. The earliest end asked for counts.
    pub(crate) fn stop(&mut self, grace: Option<Millis>, now: Millis) -> Act {
        self.stop_asked = true;
        self.end(grace, now)
    }

    /// It is ended by one who has no say in whether it shall run: that is an end like any other.
    pub(crate) fn end(&mut self, grace: Option<Millis>, now: Millis) -> Act {
        let first = !self.terminated && !self.main_gone;
        self.terminated = true;
        self.kill_by(now.saturating_add(grace.unwrap_or(self.grace)));
        match self.tick(now) {
            Act::Wait if first => Act::TermMain,
            act => act,
        }
    }

    /// The main process is gone.
    pub(crate) fn main_gone(&mut self, now: Millis) -> Act {
        self.main_gone = true;
        self.kill_by(now.saturating_add(self.grace));
        if self.killing { Act::KillLeft } else { Act::TermLeft }
    }

    /// Some other process of the task is gone.
    pub(crate) fn other_gone(&self) -> Act {
        if self.killing { Act::KillLeft } else { Act::Wait }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Millis) -> Act {
        if self.killing || self.kill_at.is_none_or(|at| now < at) {
            return Act::Wait;
        }
        self.killing = true;
        Act::KillLeft
    }

    /// When to call [`Ladder::tick`]; none when only an event can change anything.
    pub(crate) fn wakes_at(&self) -> Option<Millis> {
        if self.killing { None } else { self.kill_at }
    }

    fn kill_by(&mut self, at: Millis) {
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_terminates_then_kills_then_kills_again() {
        let mut ladder = Ladder::new(100);
        assert_eq!(ladder.wakes_at(), None);
        assert_eq!(ladder.stop(None, 5), Act::TermMain);
        assert_eq!(ladder.wakes_at(), Some(105));
        assert_eq!(ladder.tick(104), Act::Wait);
        assert_eq!(ladder.other_gone(), Act::Wait);
        assert_eq!(ladder.tick(105), Act::KillLeft);
        assert_eq!(ladder.wakes_at(), None);
        assert_eq!(ladder.tick(200), Act::Wait, "once by time");
        assert_eq!(ladder.other_gone(), Act::KillLeft, "again after each death");
        assert_eq!(ladder.main_gone(300), Act::KillLeft);
        assert!(ladder.stop_asked());
    }

    #[test]
    fn who_ends_it_from_elsewhere_asks_for_no_stop() {
        let mut ladder = Ladder::new(100);
        assert_eq!(ladder.end(None, 5), Act::TermMain);
        assert_eq!((ladder.wakes_at(), ladder.stop_asked()), (Some(105), false));
        assert_eq!(ladder.stop(Some(50), 10), Act::Wait, "it has had its SIGTERM");
        assert_eq!((ladder.wakes_at(), ladder.stop_asked()), (Some(60), true));
    }

    #[test]
    fn when_the_main_process_ends_by_itself_the_rest_is_treated_alike() {
        let mut ladder = Ladder::new(100);
        assert_eq!(ladder.main_gone(10), Act::TermLeft);
        assert!(!ladder.stop_asked());
        assert_eq!(ladder.stop(None, 50), Act::Wait, "they have had their SIGTERM");
        assert_eq!(ladder.wakes_at(), Some(110), "and the first end counts");
        assert_eq!(ladder.tick(110), Act::KillLeft);
    }

    #[test]
    fn the_earliest_end_counts_and_no_grace_is_at_once() {
        let mut ladder = Ladder::new(100);
        assert_eq!(ladder.stop(Some(1000), 0), Act::TermMain);
        assert_eq!(ladder.stop(Some(50), 10), Act::Wait);
        assert_eq!(ladder.wakes_at(), Some(60));
        assert_eq!(ladder.stop(Some(1000), 20), Act::Wait);
        assert_eq!(ladder.wakes_at(), Some(60));
        assert_eq!(ladder.stop(Some(0), 30), Act::KillLeft);
        assert_eq!(Ladder::new(100).stop(Some(0), 1), Act::KillLeft);
    }

    #[test]
    fn a_main_process_that_ends_in_its_grace_leaves_the_rest_the_same_end() {
        let mut ladder = Ladder::new(100);
        assert_eq!(ladder.stop(None, 0), Act::TermMain);
        assert_eq!(ladder.main_gone(40), Act::TermLeft);
        assert_eq!(ladder.wakes_at(), Some(100));
    }
}
