//! The backend's volume, as its host sees it.
//!
//! ```text
//!            Create / Validate            Delete
//!   Down ───────────────────────▶ Up ───────────────▶ Down
//!     ╲                         ╱   ╲               ╱
//!      ╲──────▶ Unknown ───────╱     ╲─▶ Unknown ──╱
//! ```
//! A create that was ever in doubt is repeated by name until it answers, and only then deleted by the handle it gave
//! (csi-obligations part 7, way 1): so nothing leaks. What it answered with and does not fit is Unknown with a handle, and is deleted
//! before it can be asked for again, unless that handle is another one's.
use super::handle::Sole;
use super::{Next, Reason};
use crate::api::meta::Rung;

/// What shall become of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// It shall exist.
    Present,
    /// It shall be deleted at the backend.
    Deleted,
    /// Its object goes, the backend's volume stays.
    Forgotten,
}

/// Where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// CreateVolume makes it.
    Create,
    /// It was there before us.
    Existing,
}

/// What is seen of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Whether the backend has it.
    pub exists: Rung,
    /// Whether its handle is recorded.
    pub handle_known: bool,
    /// Whether anything holds or may hold it.
    pub held: bool,
    /// Whether a copy or a snapshot is being made of it.
    pub copied: bool,
    /// Whether another Volume has the same plugin and handle: deleting this one would delete that one's data. Unsaid also where
    /// it has no handle, and the word on one that it had before is still there.
    pub sole: Sole,
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// CreateVolume with the frozen request.
    Create,
    /// ValidateVolumeCapabilities for one that existed.
    Validate,
    /// DeleteVolume of what the plugin made instead.
    Undo,
    /// DeleteVolume by handle.
    Delete,
    /// No call: what it answered with stands for nothing, perhaps, and it is asked again.
    Forget,
}

/// What hosts wrote of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Word {
    /// Whether the backend has it.
    pub exists: Option<Rung>,
    /// The epoch of the host that said so.
    pub epoch: i64,
    /// Whether that host took its word back, because a create follows or is under way.
    pub attempting: bool,
}

impl Word {
    /// It is not there, and nothing will make it.
    fn absent(self) -> bool {
        self.exists == Some(Rung::Down) && !self.attempting
    }
}

/// What the host of this epoch knows beside the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// Its epoch.
    pub epoch: i64,
    /// The last epoch whose host let go, with its last word; 0 for none.
    pub released: i64,
    /// Whether its journal has a create that began: after the word that the volume is not there, perhaps, and without one.
    pub begun: bool,
}

/// Whether the backend has the volume, as the host of this epoch knows. Of what an earlier host said this is taken:
/// - that it is up, while it is wanted: nobody deletes what nobody asked to delete;
/// - the last word of the one that let go last: nobody called since;
/// - of the one before, however it was lost, that it is not there and nothing is under way: it would have taken that word
///   back before a call, by a write that is refused once there is another host.
pub fn exists(wanted: Wanted, known: Known, said: Word) -> Rung {
    let Known { epoch, released, begun } = known;
    let last = said.epoch + 1 == epoch;
    let rung = match said.exists {
        Some(rung) if said.epoch == epoch || last && said.epoch == released => rung,
        Some(Rung::Down) if last && said.absent() => Rung::Down,
        Some(Rung::Up) if wanted == Wanted::Present => Rung::Up,
        Some(Rung::Down | Rung::Unknown | Rung::Up) | None => Rung::Unknown,
    };
    if begun && rung == Rung::Down { Rung::Unknown } else { rung }
}

/// Whether a create must be announced first: if the object may go on what this host said, was seen to have said, or had
/// answered by the server.
pub fn must_announce(epoch: i64, words: [Word; 3]) -> bool {
    words.iter().any(|word| word.exists == Some(Rung::Down) && word.epoch == epoch)
}

/// The next step for one volume.
pub fn next(wanted: Wanted, source: Source, seen: Seen) -> Next<Step> {
    use Rung::{Down, Unknown, Up};
    if wanted != Wanted::Present && seen.held && !(planted!("deleted-in-use") && seen.handle_known) {
        return Next::Wait(Reason::InUse { by: "an allocation or a node that may still have it".to_owned() });
    }
    // A word on the handle that it had before could be taken for one on that which it is given now.
    let create = || match (seen.handle_known, seen.sole) {
        (false, Sole::Unsaid | Sole::Stale) => Next::Wait(Reason::HandleUnchecked),
        (false, Sole::Yes | Sole::No) | (true, _) => Next::Do(Step::Create),
    };
    let stale = seen.handle_known && seen.sole == Sole::Stale && !seen.held;
    match (wanted, source, seen.exists) {
        (Wanted::Present | Wanted::Deleted, Source::Create, Up | Unknown) if stale => Next::Do(Step::Forget),
        (Wanted::Present, _, Up)
        | (Wanted::Forgotten, _, _)
        | (Wanted::Deleted, Source::Existing, _)
        | (Wanted::Deleted, Source::Create, Down) => Next::Converged,
        (Wanted::Present, Source::Create, Unknown) if seen.handle_known && !seen.held => match seen.sole {
            Sole::Unsaid | Sole::Stale => Next::Wait(Reason::HandleUnchecked),
            Sole::Yes => Next::Do(Step::Undo),
            Sole::No => Next::Wait(Reason::InUse { by: "another volume of the same handle".to_owned() }),
        },
        (Wanted::Present, Source::Create, Down | Unknown) => create(),
        (Wanted::Present, Source::Existing, Down | Unknown) => Next::Do(Step::Validate),
        (Wanted::Deleted, Source::Create, Up | Unknown) if seen.handle_known && seen.sole == Sole::No => {
            Next::Wait(Reason::InUse { by: "another volume of the same handle".to_owned() })
        }
        (Wanted::Deleted, Source::Create, Up | Unknown) if seen.handle_known && seen.copied => {
            Next::Wait(Reason::InUse { by: "what is being made of it".to_owned() })
        }
        (Wanted::Deleted, Source::Create, Up | Unknown) if seen.handle_known => match seen.sole {
            Sole::Yes => Next::Do(Step::Delete),
            Sole::Unsaid | Sole::Stale | Sole::No => Next::Wait(Reason::HandleUnchecked),
        },
        (Wanted::Deleted, Source::Create, Up | Unknown) => create(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNGS: [Rung; 3] = [Rung::Down, Rung::Unknown, Rung::Up];

    /// What an OK of the step leaves behind.
    fn after(step: Step, seen: Seen) -> Seen {
        match step {
            Step::Create | Step::Validate => Seen { exists: Rung::Up, handle_known: true, ..seen },
            Step::Undo => Seen { exists: Rung::Down, handle_known: false, ..seen },
            Step::Delete => Seen { exists: Rung::Down, ..seen },
            // The controllers take their word back.
            Step::Forget => Seen { exists: Rung::Unknown, handle_known: false, sole: Sole::Yes, ..seen },
        }
    }

    #[test]
    fn every_state_converges_in_two_steps() {
        for wanted in [Wanted::Present, Wanted::Deleted, Wanted::Forgotten] {
            for source in [Source::Create, Source::Existing] {
                for exists in RUNGS {
                    for handle_known in [false, true] {
                        let mut seen =
                            Seen { exists, handle_known, held: false, copied: false, sole: Sole::Yes };
                        let mut steps = 0;
                        while let Next::Do(step) = next(wanted, source, seen) {
                            seen = after(step, seen);
                            steps += 1;
                            assert!(steps <= 2, "{wanted:?} {source:?} {exists:?} {handle_known}");
                        }
                        assert_eq!(next(wanted, source, seen), Next::Converged);
                        if wanted == Wanted::Deleted && source == Source::Create {
                            assert_eq!(seen.exists, Rung::Down);
                        }
                    }
                }
            }
        }
    }

    /// Of what it then is asked again: whether it is wanted or not.
    #[test]
    fn what_may_have_gone_with_another_one_is_asked_for_again_before_it_is_used_or_deleted() {
        for exists in [Rung::Up, Rung::Unknown] {
            for wanted in [Wanted::Present, Wanted::Deleted] {
                let given =
                    Seen { exists, handle_known: true, held: false, copied: false, sole: Sole::Stale };
                assert_eq!(next(wanted, Source::Create, given), Next::Do(Step::Forget));
                let forgotten = after(Step::Forget, given);
                let late = Seen { sole: Sole::Stale, ..forgotten };
                assert!(matches!(next(wanted, Source::Create, late), Next::Wait(_)), "the word is old");
                assert_eq!(next(wanted, Source::Create, forgotten), Next::Do(Step::Create));
            }
        }
    }

    #[test]
    fn another_epochs_word_is_doubt_but_for_what_nothing_can_have_changed() {
        for wanted in [Wanted::Present, Wanted::Deleted, Wanted::Forgotten] {
            for begun in [false, true] {
                for attempting in [false, true] {
                    let doubted = |rung| if begun && rung == Rung::Down { Rung::Unknown } else { rung };
                    let seen = |epoch, released, exists: Option<Rung>, of| {
                        let said = Word { exists, epoch: of, attempting };
                        super::exists(wanted, Known { epoch, released, begun }, said)
                    };
                    assert_eq!(seen(2, 0, None, 0), Rung::Unknown);
                    assert_eq!(seen(1, 0, None, 0), Rung::Unknown, "no host said anything");
                    for rung in RUNGS {
                        let case = format!("{wanted:?} {rung:?} begun: {begun} attempting: {attempting}");
                        assert_eq!(seen(2, 0, Some(rung), 2), doubted(rung), "its own: {case}");
                        assert_eq!(seen(2, 1, Some(rung), 1), doubted(rung), "of who let go: {case}");
                        let older = match (wanted, rung) {
                            (Wanted::Present, Rung::Up) => Rung::Up,
                            _ => Rung::Unknown,
                        };
                        let last = match (rung, attempting) {
                            (Rung::Down, false) => doubted(Rung::Down),
                            _ => older,
                        };
                        assert_eq!(seen(2, 0, Some(rung), 1), last, "of who was lost: {case}");
                        assert_eq!(seen(3, 1, Some(rung), 1), older, "another called since: {case}");
                        assert_eq!(seen(3, 0, Some(rung), 1), older, "another called since: {case}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_create_is_announced_where_its_object_could_go_on_the_hosts_word() {
        for rung in [None, Some(Rung::Down), Some(Rung::Unknown), Some(Rung::Up)] {
            for (of, attempting) in [(1, false), (1, true), (2, false), (2, true), (3, false)] {
                let word = Word { exists: rung, epoch: of, attempting };
                for place in 0..3 {
                    let mut words = [Word::default(); 3];
                    words[place] = word;
                    assert_eq!(must_announce(2, words), rung == Some(Rung::Down) && of == 2, "{words:?}");
                }
            }
        }
    }

    #[test]
    fn nothing_held_is_ever_deleted() {
        for exists in RUNGS {
            for handle_known in [false, true] {
                for wanted in [Wanted::Deleted, Wanted::Forgotten] {
                    let seen = Seen { exists, handle_known, held: true, copied: false, sole: Sole::Yes };
                    assert!(matches!(next(wanted, Source::Create, seen), Next::Wait(_)));
                }
            }
        }
    }

    #[test]
    fn a_create_in_doubt_is_replayed_before_it_is_deleted() {
        let seen =
            Seen { exists: Rung::Unknown, handle_known: false, held: false, copied: false, sole: Sole::Yes };
        assert_eq!(next(Wanted::Deleted, Source::Create, seen), Next::Do(Step::Create));
    }

    /// Part of obligation CO-CTRL-05.
    #[test]
    fn nothing_is_deleted_whose_handle_another_volume_has_or_that_is_being_copied() {
        for exists in RUNGS {
            for (handle_known, copied) in [(false, false), (false, true), (true, false), (true, true)] {
                for wanted in [Wanted::Present, Wanted::Deleted, Wanted::Forgotten] {
                    for sole in [Sole::Unsaid, Sole::Yes, Sole::No, Sole::Stale] {
                        let seen = Seen { exists, handle_known, held: false, copied, sole };
                        let alone = Seen { copied: false, sole: Sole::Yes, ..seen };
                        let step = next(wanted, Source::Create, seen);
                        if sole == Sole::Stale
                            && handle_known
                            && exists != Rung::Down
                            && wanted != Wanted::Forgotten
                        {
                            assert_eq!(step, Next::Do(Step::Forget), "{seen:?}");
                            continue;
                        }
                        match next(wanted, Source::Create, alone) {
                            Next::Do(Step::Create) if sole == Sole::Stale && !handle_known => {
                                assert_eq!(step, Next::Wait(Reason::HandleUnchecked), "{seen:?}");
                            }
                            Next::Do(Step::Delete) if seen != alone => {
                                assert!(matches!(step, Next::Wait(_)), "{seen:?}");
                            }
                            Next::Do(Step::Undo) if sole == Sole::Unsaid => {
                                assert_eq!(step, Next::Wait(Reason::HandleUnchecked), "{seen:?}");
                            }
                            Next::Do(Step::Create) if sole == Sole::Unsaid && !handle_known => {
                                assert_eq!(step, Next::Wait(Reason::HandleUnchecked), "{seen:?}");
                            }
                            Next::Do(Step::Undo) if sole == Sole::No => {
                                assert!(matches!(step, Next::Wait(Reason::InUse { .. })), "{seen:?}");
                            }
                            same @ (Next::Do(_) | Next::Wait(_) | Next::Converged) => {
                                assert_eq!(step, same, "{seen:?}");
                            }
                        }
                    }
                }
            }
        }
    }

    /// Obligation CO-CTRL-09.
    #[test]
    fn what_does_not_fit_is_undone_and_asked_for_again() {
        let answered =
            Seen { exists: Rung::Unknown, handle_known: true, held: false, copied: false, sole: Sole::Yes };
        assert_eq!(next(Wanted::Present, Source::Create, answered), Next::Do(Step::Undo));
        let undone = after(Step::Undo, answered);
        assert_eq!(next(Wanted::Present, Source::Create, undone), Next::Do(Step::Create));
        let held = Seen { held: true, ..answered };
        assert_eq!(next(Wanted::Present, Source::Create, held), Next::Do(Step::Create), "somebody has it");
    }
}
