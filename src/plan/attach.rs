//! ControllerPublish and its reverse, as the volume's host sees one attachment.
//!
//! ```text
//!   Down ──ControllerPublish──▶ Up ──(released or fenced) ControllerUnpublish──▶ Down
//! ```
//! A rung that is not required counts as passed in both directions. Nothing is attached before somebody was let in, for
//! until then nobody is known to hold the volume.
use super::{Next, Reason, Wanted};
use crate::api::meta::Rung;

/// What is seen of one attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Whether the plugin attaches at all, as copied at creation.
    pub required: bool,
    /// The rung, as [`super::release::attached`] has it for this host's epoch.
    pub attached: Rung,
    /// Whether anybody was let in.
    pub used: bool,
    /// The node has said that it has nothing of the volume, or a fence stands for that word.
    pub let_go: bool,
    /// The node it is attached to.
    pub node: String,
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// ControllerPublishVolume.
    Attach,
    /// ControllerUnpublishVolume.
    Detach,
}

/// The next step for one attachment.
pub fn next(wanted: Wanted, seen: &Seen) -> Next<Step> {
    use Rung::{Down, Unknown, Up};
    match (wanted, seen.required, seen.attached) {
        (Wanted::Present, true, Up) | (Wanted::Present | Wanted::Absent, false, _) => Next::Converged,
        (Wanted::Present, true, Down | Unknown) if seen.used => Next::Do(Step::Attach),
        (Wanted::Present, true, Down | Unknown) => Next::Converged,
        (Wanted::Absent, true, Down) => Next::Converged,
        // Nobody was ever let in, so it was never attempted; the object may go at any moment, and no call after it.
        (Wanted::Absent, true, Unknown) if !seen.used => Next::Converged,
        (Wanted::Absent, true, Up | Unknown) if seen.let_go => Next::Do(Step::Detach),
        (Wanted::Absent, true, Up | Unknown) => Next::Wait(Reason::NotReleased { node: seen.node.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> impl Iterator<Item = (Wanted, Seen)> {
        let wanted = [Wanted::Present, Wanted::Absent];
        wanted.into_iter().flat_map(|wanted| {
            [Rung::Down, Rung::Unknown, Rung::Up].into_iter().flat_map(move |attached| {
                (0..8_u8).map(move |bits| {
                    let (required, let_go, used) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
                    (wanted, Seen { required, attached, used, let_go, node: "n".into() })
                })
            })
        })
    }

    #[test]
    fn one_step_at_most_leads_to_what_is_wanted() {
        for (wanted, mut seen) in states() {
            match next(wanted, &seen) {
                Next::Do(Step::Attach) => seen.attached = Rung::Up,
                Next::Do(Step::Detach) => seen.attached = Rung::Down,
                Next::Wait(_) | Next::Converged => continue,
            }
            assert_eq!(next(wanted, &seen), Next::Converged, "{wanted:?} {seen:?}");
        }
    }

    #[test]
    fn nothing_is_detached_before_the_node_let_go() {
        for (wanted, seen) in states().filter(|(_, seen)| !seen.let_go) {
            assert_ne!(next(wanted, &seen), Next::Do(Step::Detach), "{seen:?}");
        }
    }

    #[test]
    fn nothing_is_detached_to_which_nobody_was_let_in() {
        for (wanted, seen) in states().filter(|(_, seen)| !seen.used && seen.attached != Rung::Up) {
            assert_ne!(next(wanted, &seen), Next::Do(Step::Detach), "{seen:?}");
        }
    }

    #[test]
    fn nothing_is_attached_before_somebody_was_let_in() {
        for (wanted, seen) in states().filter(|(_, seen)| !seen.used) {
            assert_ne!(next(wanted, &seen), Next::Do(Step::Attach), "{seen:?}");
        }
    }

    #[test]
    fn nothing_is_called_where_nothing_is_required() {
        for (wanted, seen) in states().filter(|(_, seen)| !seen.required) {
            assert_eq!(next(wanted, &seen), Next::Converged);
        }
    }
}
