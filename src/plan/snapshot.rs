//! The backend's snapshot, as its host sees it, and where a Snapshot stands. docs/design/snapshots.md.
//!
//! ```text
//!         Take (said before: Unknown)         Take, until ready        Delete
//!   - ───────────────────────────────▶ Up, cut ───────────────▶ ready ───────▶ Down
//!    ╲──▶ Unknown: Take again ────────╱      Unknown, handle known: Undo, Delete ──╱
//! ```
use super::handle::Sole;
use super::volume::{Farewell, KEEPING, KEEPING_WORDS, Late};
use super::{Next, Reason};
use crate::api::meta::{Condition, READY, ReclaimPolicy, Rung, Truth};

/// What shall become of the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// It shall be there and ready.
    Present,
    /// It shall be deleted at the backend.
    Deleted,
    /// Its object goes, the backend's snapshot stays.
    Forgotten,
}

impl Wanted {
    /// What is wanted of the backend for an object: whether that is being deleted, whether the snapshot was cut for it, and what
    /// becomes of it then.
    pub fn of(deleting: bool, cut: bool, policy: ReclaimPolicy) -> Self {
        match (deleting, cut, policy) {
            (false, _, _) => Self::Present,
            (true, true, ReclaimPolicy::Delete) => Self::Deleted,
            (true, false, _) | (true, true, ReclaimPolicy::Retain) => Self::Forgotten,
        }
    }
}

/// What a host sees of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// It is cut for its object; else it was there before.
    pub cut: bool,
    /// Whether the backend has it; none: nothing was ever asked.
    pub exists: Option<Rung>,
    /// Whether its handle is recorded.
    pub handle_known: bool,
    /// Whether it can be used.
    pub ready: bool,
    /// Whether a volume is being filled from it.
    pub used: bool,
    /// Whether its blocks are being listed here.
    pub listed: bool,
    /// Whether it is of a group, which alone can be deleted.
    pub grouped: bool,
    /// Whether another Snapshot has the same plugin and handle: deleting this one would delete that one's data. Unsaid also where
    /// it has no handle, and the word on one that it had before is still there.
    pub sole: Sole,
    /// Whether its volume is this node's to make calls for.
    pub at_source: bool,
    /// Whether the plugin lists snapshots.
    pub lists: bool,
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// CreateSnapshot with the frozen request.
    Take,
    /// ListSnapshots by its handle.
    Find,
    /// DeleteSnapshot of what the plugin cut instead.
    Undo,
    /// DeleteSnapshot by its handle.
    Delete,
    /// No call: what it answered with stands for nothing, perhaps, and it is asked again.
    Forget,
}

/// The next step of a host.
pub fn next(wanted: Wanted, seen: Seen) -> Next<Step> {
    use Rung::{Down, Unknown, Up};
    let take = || match (seen.handle_known, seen.sole) {
        // A word on what it was called before could be taken for one on what it is called then.
        (false, Sole::Unsaid | Sole::Stale) => Next::Wait(Reason::HandleUnchecked),
        _ if seen.at_source => Next::Do(Step::Take),
        _ => Next::Wait(Reason::VolumeNotHere),
    };
    let shared = || Next::Wait(Reason::InUse { by: "another snapshot of the same handle".to_owned() });
    let stale = seen.cut && seen.handle_known && seen.sole == Sole::Stale && !seen.used;
    match (wanted, seen.exists) {
        (Wanted::Present | Wanted::Deleted, Some(Unknown | Up)) if stale => Next::Do(Step::Forget),
        // Nobody could find again what is kept and has no name.
        (Wanted::Forgotten, Some(Unknown)) if seen.cut && !seen.handle_known => take(),
        (Wanted::Forgotten, _) | (Wanted::Deleted, None | Some(Down)) => Next::Converged,
        (Wanted::Present, Some(Up)) if seen.ready => Next::Converged,
        (Wanted::Present, _) if !seen.cut => Next::Do(Step::Find),
        // What is of a group goes with that alone.
        (Wanted::Present, Some(Unknown)) if seen.handle_known && !seen.grouped => match seen.sole {
            Sole::Unsaid | Sole::Stale => Next::Wait(Reason::HandleUnchecked),
            Sole::Yes => Next::Do(Step::Undo),
            Sole::No => shared(),
        },
        // Its volume may be gone, or another node's: what is cut already can be listed.
        (Wanted::Present, Some(Up)) if !seen.at_source && seen.lists => Next::Do(Step::Find),
        (Wanted::Present, _) => take(),
        (Wanted::Deleted, Some(Unknown | Up)) if !seen.handle_known => take(),
        (Wanted::Deleted, Some(Unknown | Up)) if seen.sole == Sole::No => shared(),
        (Wanted::Deleted, Some(Unknown | Up)) if seen.used => {
            Next::Wait(Reason::InUse { by: "a volume that is being filled from it".to_owned() })
        }
        // Who reads it by them reads what is there.
        (Wanted::Deleted, Some(Unknown | Up)) if seen.listed => {
            Next::Wait(Reason::InUse { by: "a list of its blocks (`wharfline snapshot blocks`)".to_owned() })
        }
        (Wanted::Deleted, Some(Unknown | Up)) if seen.grouped => Next::Wait(Reason::PartOfGroup),
        (Wanted::Deleted, Some(Unknown | Up)) => match seen.sole {
            Sole::Yes => Next::Do(Step::Delete),
            Sole::Unsaid | Sole::Stale | Sole::No => Next::Wait(Reason::HandleUnchecked),
        },
    }
}

/// What a host goes by of what was said of a snapshot before: of one that is `deleting` the word of a host that was lost is none, for that may
/// have asked for its deletion. `said` is of the epoch `of`, and the last one that let go was `released`.
pub fn known(deleting: bool, said: Option<Rung>, (of, released, epoch): (i64, i64, i64)) -> Option<Rung> {
    let counts = of == epoch || of == released && of + 1 == epoch;
    match said {
        Some(Rung::Up) if deleting && !counts => Some(Rung::Unknown),
        said => said,
    }
}

/// Everything that decides where a Snapshot stands.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// Its object is being deleted.
    pub deleting: bool,
    /// What is wanted of the backend.
    pub wanted: Wanted,
    /// What the host said of it.
    pub exists: Option<Rung>,
    /// Whether its handle is recorded, or it was there before, or that was asked for long enough.
    pub known: bool,
    /// Whether it can be used.
    pub ready: bool,
    /// A volume that is being filled from it.
    pub copy: Option<&'a str>,
    /// Whose handle its plugin gave it, as `snapshot NAMESPACE/NAME`: it is not used, and goes without a call.
    pub anothers: Option<&'a str>,
    /// What has the handle, too, and is being deleted: it is not used before that has ended.
    pub ending: Option<&'a str>,
    /// That is being deleted, and what this one was given may go with it.
    pub leaves: bool,
    /// That has ended, and what it was given may have gone with it.
    pub stale: bool,
    /// Whether its deletion may have begun at the backend, and it is kept by now.
    pub late: Late,
    /// Why nothing is asked yet: no source, no host.
    pub waits: Option<&'a Reason>,
    /// The host's word on a failure or wait.
    pub taking: Option<&'a Condition>,
}

/// Whether its finalizer may be removed. Before the first call the host has the server know that it may have asked, so that
/// what says nothing of it was never asked for. What is kept is known first: it is found again by its handle alone.
pub fn gone(facts: &Facts<'_>) -> bool {
    let absent = matches!(facts.exists, None | Some(Rung::Down));
    let doubtful = facts.exists == Some(Rung::Unknown) && !facts.known;
    let stays = facts.wanted == Wanted::Forgotten && facts.late != Late::UnderWay || facts.anothers.is_some();
    let kept = stays && facts.copy.is_none() && !doubtful;
    facts.deleting && (absent || kept)
}

/// Whether all that its object waits for is what its host knows of its deletion: it is asked to let go.
pub fn is_asked_off(facts: &Facts<'_>) -> bool {
    facts.late == Late::UnderWay && !gone(facts) && gone(&Facts { late: Late::Said, ..facts.clone() })
}

/// What is told of one that goes, whether it was `cut` for its object, and `named` when it is known how its plugin calls it.
pub fn farewell(facts: &Facts<'_>, (cut, named): (bool, bool)) -> Farewell {
    let doubt = facts.late.is_doubt(facts.exists) || facts.leaves || facts.stale;
    match (facts.wanted, facts.exists, named) {
        (_, Some(Rung::Up | Rung::Unknown), _) if facts.anothers.is_some() => Farewell::Anothers,
        (Wanted::Forgotten, Some(Rung::Down), _) if facts.late != Late::No => Farewell::Deleted,
        (Wanted::Present | Wanted::Deleted, _, _) | (_, None | Some(Rung::Down), _) => Farewell::None,
        // Whoever registered it has it written down.
        _ if !cut => Farewell::None,
        (Wanted::Forgotten, Some(Rung::Up | Rung::Unknown), true) if doubt => Farewell::KeptInDoubt,
        (Wanted::Forgotten, Some(Rung::Up | Rung::Unknown), true) => Farewell::Kept,
        (Wanted::Forgotten, Some(Rung::Up | Rung::Unknown), false) => Farewell::KeptInDoubt,
    }
}

/// Whether the host of a Snapshot waits for the word on its handles, which else goes with the next write: of one that is to be deleted, of
/// one that the plugin answered with and that does not fit, and, where it has none any more, that the word is taken back.
pub fn waits_for_word(facts: &Facts<'_>, named: bool) -> bool {
    match facts.exists {
        _ if !named => true,
        Some(Rung::Unknown) => facts.wanted != Wanted::Forgotten,
        Some(Rung::Up) => facts.wanted == Wanted::Deleted,
        Some(Rung::Down) | None => false,
    }
}

/// The `Ready` condition, without generation and time.
pub fn standing(facts: &Facts<'_>) -> Condition {
    let not_ready = |reason: &str, message: &str| Condition::new(READY, Truth::False, reason, message);
    let ending = facts.ending.map(|other| Reason::HandleEnding { other: other.to_owned() });
    if facts.deleting {
        return match (facts.taking, facts.copy) {
            (_, Some(copy)) => {
                let message =
                    format!("waits until volume \"{copy}\", which is filled from it, is made or deleted");
                not_ready("InUse", &message)
            }
            _ if is_asked_off(facts) => not_ready(KEEPING, KEEPING_WORDS),
            (Some(told), None) => not_ready(&told.reason, &told.message),
            (None, None) => match ending.filter(|_| facts.wanted == Wanted::Deleted) {
                Some(reason) => not_ready(reason.word(), &reason.to_string()),
                None => not_ready(super::claim::RELEASING, "is being deleted"),
            },
        };
    }
    if let Some(other) = facts.anothers {
        let reason = Reason::GivenTwice { other: other.to_owned() };
        return not_ready(reason.word(), &reason.to_string());
    }
    if let Some(reason) = ending.or(facts.stale.then_some(Reason::HandleEnded)) {
        return not_ready(reason.word(), &reason.to_string());
    }
    match (facts.ready, facts.taking, facts.waits) {
        (true, _, _) => Condition::new(READY, Truth::True, "Ready", "claims can be filled from it"),
        (false, Some(told), _) => not_ready(&told.reason, &told.message),
        (false, None, Some(reason)) => not_ready(reason.word(), &reason.to_string()),
        (false, None, None) => not_ready(TAKING, "is being taken"),
    }
}

/// It goes on by itself.
pub const TAKING: &str = "Taking";

/// Which of several Snapshots of one plugin and handle may be used: the one with the lowest rank, of these the oldest. One that
/// was cut for its object is that object's, and who was ready stays so, however late another one comes by its handle; of those that
/// were there before one that was taken up already stays so.
pub fn rank(cut: bool, taken_up: bool, ready: bool) -> u8 {
    match (cut, taken_up, ready) {
        (true, _, true) => 0,
        (true, _, false) => 1,
        (false, true, _) => 2,
        (false, false, _) => 3,
    }
}

/// Why a claim's volume is nothing that a snapshot can be taken of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// There is no claim of that name.
    Missing(String),
    /// It, or its volume, is on its way out: kind, name.
    Leaving(&'static str, String),
    /// It has no volume that could be used.
    NotReady(String),
}

/// Why nothing can be frozen yet.
pub fn held_up(claim: &str, source: Source) -> Reason {
    match source {
        Source::Missing(name) => Reason::NotFound { kind: "VolumeClaim", name },
        Source::Leaving(kind, name) => Reason::BeingDeleted { kind, name },
        Source::NotReady(why) => Reason::SourceNotReady { from: format!("claim \"{claim}\""), why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOLE: [Sole; 4] = [Sole::Unsaid, Sole::Yes, Sole::No, Sole::Stale];
    const ALL: [Option<Rung>; 4] = [None, Some(Rung::Down), Some(Rung::Unknown), Some(Rung::Up)];

    fn seen(exists: Option<Rung>, handle_known: bool, ready: bool) -> Seen {
        Seen {
            cut: true,
            exists,
            handle_known,
            ready,
            used: false,
            listed: false,
            grouped: false,
            sole: Sole::Yes,
            at_source: true,
            lists: false,
        }
    }

    fn every() -> Vec<Seen> {
        let mut all = Vec::new();
        for exists in ALL {
            for (bits, sole) in (0..=255_u8).flat_map(|bits| SOLE.map(|sole| (bits, sole))) {
                all.push(Seen {
                    cut: bits & 1 != 0,
                    exists,
                    handle_known: bits & 2 != 0,
                    ready: bits & 4 != 0,
                    used: bits & 8 != 0,
                    grouped: bits & 16 != 0,
                    at_source: bits & 32 != 0,
                    lists: bits & 64 != 0,
                    listed: bits & 128 != 0,
                    sole,
                });
            }
        }
        all
    }

    /// What an OK of the step leaves behind.
    fn after(step: Step, seen: Seen) -> Seen {
        match step {
            Step::Take | Step::Find => {
                Seen { exists: Some(Rung::Up), handle_known: true, ready: true, ..seen }
            }
            Step::Undo => Seen { exists: Some(Rung::Down), handle_known: false, ready: false, ..seen },
            Step::Delete => Seen { exists: Some(Rung::Down), ..seen },
            // The controllers take their word back.
            Step::Forget => Seen {
                exists: Some(Rung::Unknown),
                handle_known: false,
                ready: false,
                grouped: false,
                sole: Sole::Yes,
                ..seen
            },
        }
    }

    #[test]
    fn only_what_was_cut_and_is_not_to_stay_is_deleted() {
        use ReclaimPolicy::{Delete, Retain};
        for (deleting, cut, policy, wanted) in [
            (false, true, Delete, Wanted::Present),
            (false, false, Retain, Wanted::Present),
            (true, true, Delete, Wanted::Deleted),
            (true, true, Retain, Wanted::Forgotten),
            (true, false, Delete, Wanted::Forgotten),
            (true, false, Retain, Wanted::Forgotten),
        ] {
            assert_eq!(Wanted::of(deleting, cut, policy), wanted, "{deleting} {cut} {policy:?}");
        }
    }

    #[test]
    fn every_state_converges_in_two_steps_or_says_why_not() {
        for wanted in [Wanted::Present, Wanted::Deleted, Wanted::Forgotten] {
            for first in every() {
                let mut seen = first;
                let mut steps = 0;
                while let Next::Do(step) = next(wanted, seen) {
                    seen = after(step, seen);
                    steps += 1;
                    assert!(steps <= 3, "{wanted:?} {first:?}");
                }
                match next(wanted, seen) {
                    Next::Converged if wanted == Wanted::Deleted => {
                        assert!(matches!(seen.exists, None | Some(Rung::Down)), "{first:?}");
                    }
                    Next::Converged if wanted == Wanted::Present => assert!(seen.ready, "{first:?}"),
                    Next::Wait(_) => {
                        assert!(
                            seen.used
                                || seen.listed && wanted == Wanted::Deleted
                                || seen.grouped
                                || seen.sole != Sole::Yes
                                || !seen.at_source,
                            "{first:?}"
                        );
                    }
                    Next::Converged | Next::Do(_) => {}
                }
            }
        }
    }

    /// Part of obligation CO-CTRL-95.
    #[test]
    fn nothing_is_deleted_that_is_used_grouped_or_not_ours() {
        for seen in every() {
            assert_ne!(next(Wanted::Forgotten, seen), Next::Do(Step::Delete));
            assert_ne!(next(Wanted::Present, seen), Next::Do(Step::Delete));
            for wanted in [Wanted::Present, Wanted::Deleted, Wanted::Forgotten] {
                let undone = next(wanted, seen) == Next::Do(Step::Undo);
                let unfit =
                    seen.cut && seen.exists == Some(Rung::Unknown) && seen.handle_known && !seen.grouped;
                assert_eq!(undone, wanted == Wanted::Present && unfit && seen.sole == Sole::Yes, "{seen:?}");
            }
            if seen.used || seen.listed || seen.grouped || seen.sole != Sole::Yes {
                assert_ne!(next(Wanted::Deleted, seen), Next::Do(Step::Delete), "{seen:?}");
            }
            if !seen.at_source || !seen.cut {
                assert_ne!(next(Wanted::Present, seen), Next::Do(Step::Take), "{seen:?}");
            }
        }
    }

    #[test]
    fn what_may_have_been_cut_is_found_out_before_it_is_deleted() {
        let doubted = seen(Some(Rung::Unknown), false, false);
        assert_eq!(next(Wanted::Deleted, doubted), Next::Do(Step::Take));
        assert_eq!(next(Wanted::Forgotten, doubted), Next::Do(Step::Take), "what is kept has a name");
        for known in [Seen { handle_known: true, ..doubted }, Seen { cut: false, ..doubted }] {
            assert_eq!(next(Wanted::Forgotten, known), Next::Converged);
        }
        assert_eq!(next(Wanted::Deleted, Seen { handle_known: true, ..doubted }), Next::Do(Step::Delete));
        assert_eq!(next(Wanted::Deleted, seen(None, false, false)), Next::Converged);
        let cut = Seen { at_source: false, lists: true, ..seen(Some(Rung::Up), true, false) };
        assert_eq!(next(Wanted::Present, cut), Next::Do(Step::Find));
        assert!(matches!(next(Wanted::Present, Seen { lists: false, ..cut }), Next::Wait(_)));
    }

    #[test]
    fn what_is_kept_is_said_with_its_handle_or_that_nobody_knows_it() {
        for wanted in [Wanted::Present, Wanted::Deleted, Wanted::Forgotten] {
            for exists in ALL {
                let may_be = [Some(Rung::Up), Some(Rung::Unknown)].contains(&exists);
                for (cut, named, said) in [
                    (true, true, Farewell::Kept),
                    (true, false, Farewell::KeptInDoubt),
                    (false, true, Farewell::None),
                ] {
                    let said = if wanted == Wanted::Forgotten && may_be { said } else { Farewell::None };
                    let case = format!("{wanted:?} {exists:?} {cut} {named}");
                    let facts = facts_of(wanted, exists);
                    assert_eq!(farewell(&facts, (cut, named)), said, "{case}");
                    let anothers = if may_be { Farewell::Anothers } else { Farewell::None };
                    let other = Facts { anothers: Some("snapshot d/first"), ..facts.clone() };
                    assert_eq!(farewell(&other, (cut, named)), anothers, "{case}");
                    for doubtful in [Facts { stale: true, ..facts.clone() }, Facts { leaves: true, ..facts }]
                    {
                        let said = if said == Farewell::Kept { Farewell::KeptInDoubt } else { said };
                        assert_eq!(farewell(&doubtful, (cut, named)), said, "{case}");
                    }
                }
            }
        }
    }

    #[test]
    fn it_goes_when_nothing_is_left_or_all_is_to_stay() {
        for deleting in [false, true] {
            for wanted in [Wanted::Present, Wanted::Deleted, Wanted::Forgotten] {
                for exists in ALL {
                    for (copy, known) in
                        [(None, false), (None, true), (Some("vol-1"), false), (Some("vol-1"), true)]
                    {
                        let facts = Facts {
                            deleting,
                            wanted,
                            exists,
                            known,
                            ready: false,
                            copy,
                            anothers: None,
                            ending: None,
                            leaves: false,
                            stale: false,
                            late: Late::No,
                            waits: None,
                            taking: None,
                        };
                        let absent = matches!(exists, None | Some(Rung::Down));
                        let doubtful = exists == Some(Rung::Unknown) && !known;
                        let kept = wanted == Wanted::Forgotten && copy.is_none() && !doubtful;
                        assert_eq!(gone(&facts), deleting && (absent || kept), "{facts:?}");
                        let anothers = Facts { anothers: Some("snapshot d/first"), ..facts.clone() };
                        let left = absent || copy.is_none() && !doubtful;
                        assert_eq!(gone(&anothers), deleting && left, "{facts:?}");
                        let word = standing(&facts).reason;
                        let expected = match (deleting, copy) {
                            (true, Some(_)) => "InUse",
                            (true, None) => "Releasing",
                            (false, _) => "Taking",
                        };
                        assert_eq!(word, expected);
                    }
                }
            }
        }
    }

    #[test]
    fn of_one_that_goes_the_word_of_a_lost_host_is_none() {
        for said in ALL {
            for (of, released, epoch, counts) in
                [(2, 0, 2, true), (1, 1, 2, true), (1, 0, 2, false), (1, 1, 3, false), (2, 1, 3, false)]
            {
                let doubted = if said == Some(Rung::Up) { Some(Rung::Unknown) } else { said };
                assert_eq!(known(true, said, (of, released, epoch)), if counts { said } else { doubted });
                assert_eq!(known(false, said, (of, released, epoch)), said);
            }
        }
    }

    fn facts_of(wanted: Wanted, exists: Option<Rung>) -> Facts<'static> {
        Facts {
            deleting: wanted != Wanted::Present,
            wanted,
            exists,
            known: true,
            ready: false,
            copy: None,
            anothers: None,
            ending: None,
            leaves: false,
            stale: false,
            late: Late::No,
            waits: None,
            taking: None,
        }
    }

    #[test]
    fn a_word_is_waited_for_by_who_deletes_and_while_an_old_one_is_there() {
        for wanted in [Wanted::Present, Wanted::Deleted, Wanted::Forgotten] {
            for exists in ALL {
                let waits = match exists {
                    Some(Rung::Unknown) => wanted != Wanted::Forgotten,
                    Some(Rung::Up) => wanted == Wanted::Deleted,
                    Some(Rung::Down) | None => false,
                };
                assert_eq!(waits_for_word(&facts_of(wanted, exists), true), waits, "{wanted:?} {exists:?}");
                assert!(waits_for_word(&facts_of(wanted, exists), false), "{wanted:?} {exists:?}");
            }
        }
    }

    #[test]
    fn of_one_handle_what_was_cut_and_is_ready_comes_first() {
        let order = [(true, true, true), (true, true, false), (false, true, false), (false, false, false)];
        let ranks = order.map(|(cut, taken_up, ready)| rank(cut, taken_up, ready));
        assert!(ranks.is_sorted_by(|one, next| one < next), "{ranks:?}");
        assert_eq!(rank(false, true, true), rank(false, true, false), "the second was never taken up");
    }

    #[test]
    fn what_it_waits_for_is_told() {
        let (why, full) = (Reason::NoHost, Condition::new("Taken", Truth::False, "Full", "no room"));
        let facts = Facts { known: false, waits: Some(&why), ..facts_of(Wanted::Present, None) };
        assert_eq!(standing(&facts).reason, "NoHost");
        let told = Facts { taking: Some(&full), ..facts.clone() };
        assert_eq!(standing(&told).reason, "Full");
        assert_eq!(standing(&Facts { ready: true, ..told.clone() }).status, Truth::True);
        assert_eq!(standing(&Facts { deleting: true, ..told.clone() }).reason, "Full");
        let ready = Facts { ready: true, ..told };
        let first = Some("snapshot d/first");
        for (second, word) in [
            (Facts { anothers: first, ..ready.clone() }, "HandleShared"),
            (Facts { ending: first, ..ready.clone() }, "HandleEnding"),
            (
                Facts { ending: first, deleting: true, wanted: Wanted::Deleted, taking: None, ..ready },
                "HandleEnding",
            ),
        ] {
            let condition = standing(&second);
            assert_eq!((condition.status, condition.reason.as_str()), (Truth::False, word));
            assert!(condition.message.contains("snapshot d/first"), "{condition:?}");
            assert_eq!(standing(&Facts { deleting: true, taking: Some(&full), ..second }).reason, "Full");
        }
        for (source, word) in [
            (Source::Missing("c".into()), "NotFound"),
            (Source::Leaving("Volume", "v".into()), "BeingDeleted"),
            (Source::NotReady("none".into()), "SourceNotReady"),
        ] {
            assert_eq!(held_up("c", source).word(), word);
        }
    }
}
