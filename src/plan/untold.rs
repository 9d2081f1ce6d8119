//! What is not worth a write of its own while it is new: mostly it is over, or told with something else, before anybody could
//! read it.
use std::collections::HashMap;
use std::ops::Sub;
use std::time::Duration;

use super::Reason;
use crate::api::allocation::AllocationPhase;
use crate::api::meta::Rung;

/// Since when something is so that is not told, by the uid of whom it is about.
#[derive(Debug, Clone)]
pub struct Untold<T>(HashMap<String, T>);

impl<T> Default for Untold<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Copy + Sub<T, Output = Duration>> Untold<T> {
    /// How long to wait yet with a word that is there now; absent when it is time, and then it begins anew.
    pub fn left(&mut self, uid: &str, now: T, moment: Duration) -> Option<Duration> {
        let since = *self.0.entry(uid.to_owned()).or_insert(now);
        let left = moment.checked_sub(now - since).filter(|left| !left.is_zero());
        if left.is_none() {
            self.settled(uid);
        }
        left
    }

    /// How long to wait yet with a word for which [`Untold::left`] said so.
    pub fn waits(&self, uid: &str, now: T, moment: Duration) -> Option<Duration> {
        let since = *self.0.get(uid)?;
        moment.checked_sub(now - since).filter(|left| !left.is_zero())
    }

    /// It is not so any more, or it is told.
    pub fn settled(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Forgets whatever is of one whose uid the keys begin with.
    pub fn forget_of(&mut self, prefix: &str) {
        self.0.retain(|key, _| !key.starts_with(prefix));
    }

    /// Forgets what nobody asked about for so long: of what is gone nobody says so.
    pub fn forget_older(&mut self, now: T, than: Duration) {
        self.0.retain(|_, since| now - *since < than);
    }
}

/// Whether the word that a node has let a volume go may wait for the word that it is detached there: both are one machine's,
/// and the second follows at once. Going up it is not so: nothing follows from an answer before it is written (CO-GEN-27),
/// and the journal, which knows what was let go, does not know what was attached.
pub fn detach_follows(attachment: &Following) -> bool {
    let Following { host_is_node, attach_required, used, leaving, attached, released } = *attachment;
    host_is_node && attach_required && used && leaving && released && attached != Rung::Down
}

/// What [`detach_follows`] goes by.
#[derive(Debug, Clone, Copy)]
pub struct Following {
    /// The machine that makes its controller calls is the one that it is for.
    pub host_is_node: bool,
    /// Its plugin attaches.
    pub attach_required: bool,
    /// Somebody was let in.
    pub used: bool,
    /// It is being deleted.
    pub leaving: bool,
    /// What its host says.
    pub attached: Rung,
    /// Its node has nothing of it any more.
    pub released: bool,
}

/// Whether the word that an allocation is on its way down may wait: it was not told before, and nothing goes wrong. `volumes` is
/// what is said of its volumes: whether they are all there, and else one word.
pub fn is_passing(
    phase: AllocationPhase,
    last: Option<AllocationPhase>,
    volumes: Option<(bool, &str)>,
) -> bool {
    let usual = |word: &str| {
        [Reason::VolumesNotReady, Reason::NotAttached, Reason::TasksRunning].iter().any(|r| r.word() == word)
    };
    let well = volumes.is_none_or(|(there, word)| there || usual(word));
    phase == AllocationPhase::Stopping && last != Some(AllocationPhase::Stopping) && well
}

/// Whether the word that one that is being deleted has ended may wait for its attachments to go: it was not told before.
pub fn is_ended(phase: AllocationPhase, last: Option<AllocationPhase>) -> bool {
    phase.terminal() && !last.is_some_and(AllocationPhase::terminal)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_new_waits_for_its_moment_and_what_was_told_begins_anew() {
        let at = |millis| Duration::from_millis(millis);
        let mut untold = Untold::<Duration>::default();
        assert_eq!(untold.left("a", at(0), SECOND), Some(SECOND));
        assert_eq!(untold.left("a", at(400), SECOND), Some(at(600)));
        assert_eq!(untold.left("b", at(400), SECOND), Some(SECOND), "each by itself");
        assert_eq!(untold.left("a", at(1000), SECOND), None, "it is told now");
        assert_eq!(untold.waits("a", at(1000), SECOND), None);
        assert_eq!(untold.left("a", at(1001), SECOND), Some(SECOND), "the next news");
        assert_eq!(untold.waits("a", at(1401), SECOND), Some(at(600)));
        assert_eq!(untold.waits("a", at(2001), SECOND), None);
        untold.settled("a");
        assert_eq!(untold.left("a", at(1500), SECOND), Some(SECOND));
        untold.forget_older(at(1600), SECOND);
        assert_eq!(untold.0.keys().collect::<Vec<_>>(), ["a"]);
        untold.left("a/part", at(1600), SECOND);
        untold.forget_of("a/");
        assert_eq!(untold.0.keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn that_a_volume_is_let_go_waits_only_while_the_same_machine_is_about_to_detach_it() {
        use Rung::{Down, Unknown, Up};
        let leaves = Following {
            host_is_node: true,
            attach_required: true,
            used: true,
            leaving: true,
            attached: Up,
            released: true,
        };
        for (case, wanted) in [
            (leaves, true),
            (Following { attached: Unknown, ..leaves }, true),
            (Following { attached: Down, ..leaves }, false),
            (Following { released: false, ..leaves }, false),
            (Following { leaving: false, ..leaves }, false),
            (Following { host_is_node: false, ..leaves }, false),
            (Following { attach_required: false, ..leaves }, false),
            (Following { used: false, ..leaves }, false),
        ] {
            assert_eq!(detach_follows(&case), wanted, "{case:?}");
        }
    }

    #[test]
    fn that_it_has_ended_waits_only_if_it_is_news() {
        use AllocationPhase::{Complete, Failed, Running, Stopped, Stopping};
        for (phase, last, wanted) in [
            (Stopped, Some(Running), true),
            (Stopped, None, true),
            (Failed, Some(Stopping), true),
            (Stopped, Some(Stopped), false),
            (Complete, Some(Complete), false),
            (Stopping, Some(Running), false),
        ] {
            assert_eq!(is_ended(phase, last), wanted, "{phase:?} after {last:?}");
        }
    }

    #[test]
    fn only_the_first_word_of_a_way_down_on_which_all_is_well_may_wait() {
        use AllocationPhase::{Running, Stopped, Stopping};
        for (phase, last, volumes, wanted) in [
            (Stopping, Some(Running), Some((true, "")), true),
            (Stopping, Some(Running), None, true),
            (Stopping, None, Some((false, "VolumesNotReady")), true),
            (Stopping, Some(Running), Some((false, "TasksRunning")), true),
            (Stopping, Some(Running), Some((false, "INTERNAL")), false),
            (Stopping, Some(Running), Some((false, "PluginNotReady")), false),
            (Stopping, Some(Stopping), Some((true, "")), false),
            (Stopped, Some(Running), Some((true, "")), false),
            (Running, Some(Stopping), Some((true, "")), false),
        ] {
            assert_eq!(is_passing(phase, last, volumes), wanted, "{phase:?} {last:?} {volumes:?}");
        }
    }
}
