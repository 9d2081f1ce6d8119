//! The backend's volume, as its host sees it.
//!
//! ```text
//!            Create / Validate            Delete
//!   Down ───────────────────────▶ Up ───────────────▶ Down
//!     ╲                         ╱   ╲               ╱
//!      ╲──────▶ Unknown ───────╱     ╲─▶ Unknown ──╱
//! ```
//! A create that was ever in doubt is repeated by name until it answers, and only then deleted by the handle it gave
//! (csi-obligations part 7, way 1): so nothing leaks.
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
    /// Whether another Volume has the same plugin and handle: deleting this one would delete that one's data.
    pub shared: bool,
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// CreateVolume with the frozen request.
    Create,
    /// ValidateVolumeCapabilities for one that existed.
    Validate,
    /// DeleteVolume by handle.
    Delete,
}

/// Whether the backend has the volume, as the host of this epoch knows: of what an earlier host said only that it is up
/// is taken, while it is wanted, for nobody deletes what nobody asked to delete; and the last word of the one that let go
/// last, for nobody called since.
pub fn exists(wanted: Wanted, epoch: i64, released: i64, said: Option<(Rung, i64)>) -> Rung {
    match said {
        Some((rung, of)) if of == epoch || of == released && released + 1 == epoch => rung,
        Some((Rung::Up, _)) if wanted == Wanted::Present => Rung::Up,
        Some(_) | None => Rung::Unknown,
    }
}

/// The next step for one volume.
pub fn next(wanted: Wanted, source: Source, seen: Seen) -> Next<Step> {
    use Rung::{Down, Unknown, Up};
    if wanted != Wanted::Present && seen.held && !(planted!("deleted-in-use") && seen.handle_known) {
        return Next::Wait(Reason::InUse { by: "an allocation or a node that may still have it".to_owned() });
    }
    match (wanted, source, seen.exists) {
        (Wanted::Present, _, Up)
        | (Wanted::Forgotten, _, _)
        | (Wanted::Deleted, Source::Existing, _)
        | (Wanted::Deleted, Source::Create, Down) => Next::Converged,
        (Wanted::Present, Source::Create, Down | Unknown) => Next::Do(Step::Create),
        (Wanted::Present, Source::Existing, Down | Unknown) => Next::Do(Step::Validate),
        (Wanted::Deleted, Source::Create, Up | Unknown) if seen.handle_known && seen.shared => {
            Next::Wait(Reason::InUse { by: "another volume of the same handle".to_owned() })
        }
        (Wanted::Deleted, Source::Create, Up | Unknown) if seen.handle_known => Next::Do(Step::Delete),
        (Wanted::Deleted, Source::Create, Up | Unknown) => Next::Do(Step::Create),
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
            Step::Delete => Seen { exists: Rung::Down, ..seen },
        }
    }

    #[test]
    fn every_state_converges_in_two_steps() {
        for wanted in [Wanted::Present, Wanted::Deleted, Wanted::Forgotten] {
            for source in [Source::Create, Source::Existing] {
                for exists in RUNGS {
                    for handle_known in [false, true] {
                        let mut seen = Seen { exists, handle_known, held: false, shared: false };
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

    #[test]
    fn another_epochs_word_is_doubt_but_for_what_is_up_and_wanted() {
        for wanted in [Wanted::Present, Wanted::Deleted, Wanted::Forgotten] {
            assert_eq!(exists(wanted, 2, 0, None), Rung::Unknown);
            for rung in RUNGS {
                assert_eq!(exists(wanted, 2, 0, Some((rung, 2))), rung);
                let stays = wanted == Wanted::Present && rung == Rung::Up;
                let expected = if stays { Rung::Up } else { Rung::Unknown };
                assert_eq!(exists(wanted, 2, 0, Some((rung, 1))), expected, "{wanted:?} {rung:?}");
                assert_eq!(exists(wanted, 2, 1, Some((rung, 1))), rung, "the last word of who let go");
                assert_eq!(exists(wanted, 3, 1, Some((rung, 1))), expected, "another may have called since");
            }
        }
    }

    #[test]
    fn nothing_held_is_ever_deleted() {
        for exists in RUNGS {
            for handle_known in [false, true] {
                for wanted in [Wanted::Deleted, Wanted::Forgotten] {
                    let seen = Seen { exists, handle_known, held: true, shared: false };
                    assert!(matches!(next(wanted, Source::Create, seen), Next::Wait(_)));
                }
            }
        }
    }

    #[test]
    fn a_create_in_doubt_is_replayed_before_it_is_deleted() {
        let seen = Seen { exists: Rung::Unknown, handle_known: false, held: false, shared: false };
        assert_eq!(next(Wanted::Deleted, Source::Create, seen), Next::Do(Step::Create));
    }

    #[test]
    fn nothing_is_deleted_whose_handle_another_volume_has() {
        for exists in RUNGS {
            for handle_known in [false, true] {
                for wanted in [Wanted::Present, Wanted::Deleted, Wanted::Forgotten] {
                    let seen = Seen { exists, handle_known, held: false, shared: true };
                    let (step, alone) = (next(wanted, Source::Create, seen), Seen { shared: false, ..seen });
                    let before = next(wanted, Source::Create, alone);
                    if before == Next::Do(Step::Delete) {
                        assert!(matches!(step, Next::Wait(_)), "{seen:?}");
                    } else {
                        assert_eq!(step, before, "{seen:?}");
                    }
                }
            }
        }
    }
}
