//! What becomes of a Node object: when one that is deleted goes, and when the word that its machine is off is disproved.
//!
//! That a Node is gone frees what it had. So a deletion is the word that the machine is off only where nobody heard it any
//! more when that was said; of one that was heard it asks for its taking out, and a silence that comes later frees nothing.
use super::host::HostNode;

/// The reason of the `Ready` condition of a Node that fell silent after it had been deleted.
pub const SILENT_SINCE_DELETED: &str = "SilentSinceDeleted";
/// The same of one whose lease is not there: it never took one, or somebody deleted it.
pub const NO_LEASE: &str = "NoLease";

/// What a person said by deleting a Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// It is not deleted.
    None,
    /// That it is to be taken out: it was heard then, or may have been.
    TakeOut,
    /// That it is off: its Node said by then that it is not heard.
    Off,
}

/// What the deletion of a Node says, by its `Ready` condition (status and reason) as it stands now.
pub fn deletion(deleting: bool, ready: Option<(&str, &str)>) -> Deletion {
    match (deleting, ready) {
        (false, _) => Deletion::None,
        // Of one that never had a lease nothing else can be said: see `Leaving::booted`.
        (true, Some(("Unknown", reason))) if ![SILENT_SINCE_DELETED, NO_LEASE].contains(&reason) => {
            Deletion::Off
        }
        (true, _) => Deletion::TakeOut,
    }
}

/// Everything that decides whether a Node's finalizer may be removed.
#[derive(Debug, Clone, Copy)]
pub struct Leaving {
    /// What its deletion says.
    pub deletion: Deletion,
    /// Whether its daemon is heard.
    pub state: HostNode,
    /// Nothing is placed or attached there, and it makes no calls for anything that others can go on with.
    pub unused: bool,
    /// An operator's fence stands against its last boot.
    pub fenced: bool,
    /// Its daemon's last word was that it took everything down.
    pub stopped: bool,
    /// It told its boot at least once. Of one that never did, nothing else can be said than that it is deleted.
    pub booted: bool,
}

/// Whether a deleted Node may go, and with it everything that it had.
pub fn goes(node: Leaving) -> bool {
    let off = node.fenced || node.stopped || !node.booted;
    match (node.deletion, node.state) {
        (Deletion::None, _) => false,
        (Deletion::TakeOut | Deletion::Off, HostNode::Alive) => node.unused,
        (Deletion::TakeOut, HostNode::Silent | HostNode::Gone) => node.unused || off,
        (Deletion::Off, HostNode::Silent | HostNode::Gone) => true,
    }
}

/// Whether `Ready` stays as it is although the lease is no older than it lasts: it says that the node is not `heard` (its condition's
/// status and reason), and no renewal of it was seen to come. Controllers that begin find the lease of one that is off as its last word left it, and
/// know its age only after a while.
pub fn unheard(ready: Option<(&str, &str)>, renewed: bool) -> bool {
    matches!(ready, Some(("Unknown", reason)) if reason != NO_LEASE) && !renewed
}

/// Whether the word that the present boot of a node is off is disproved: its lease was renewed after that. Both are versions of the
/// store, `said` that of the Node when the word was first seen on it. `told` says that whoever renews the lease is who told that boot: a
/// machine that begins anew renews before it says so.
///
/// Believed, the next silence of the daemon alone would pass for the end of the machine.
pub fn disproved(said: Option<u64>, renewed: Option<u64>, told: bool) -> bool {
    told && said.zip(renewed).is_some_and(|(said, renewed)| renewed > said)
}

#[cfg(test)]
mod tests {
    use HostNode::{Alive, Gone, Silent};

    use super::*;

    #[test]
    fn a_deletion_says_that_a_machine_is_off_only_where_it_was_silent_before() {
        for (deleting, ready, wanted) in [
            (false, Some(("Unknown", "LeaseNotRenewed")), Deletion::None),
            (true, Some(("Unknown", "LeaseNotRenewed")), Deletion::Off),
            (true, Some(("Unknown", NO_LEASE)), Deletion::TakeOut),
            (true, Some(("Unknown", SILENT_SINCE_DELETED)), Deletion::TakeOut),
            (true, Some(("True", "LeaseRenewed")), Deletion::TakeOut),
            (true, Some(("False", "NodeStopped")), Deletion::TakeOut),
            (true, None, Deletion::TakeOut),
        ] {
            assert_eq!(deletion(deleting, ready), wanted, "{deleting} {ready:?}");
        }
    }

    #[test]
    fn a_deleted_node_goes_when_nothing_can_be_up_there_any_more() {
        let node = Leaving {
            deletion: Deletion::TakeOut,
            state: Silent,
            unused: false,
            fenced: false,
            stopped: false,
            booted: true,
        };
        for state in [Alive, Silent, Gone] {
            let node = Leaving { state, ..node };
            let silent = state != Alive;
            assert!(!goes(node), "{state:?}");
            assert!(!goes(Leaving { deletion: Deletion::None, unused: true, ..node }), "{state:?}");
            assert!(goes(Leaving { unused: true, ..node }), "{state:?}");
            for off in [
                Leaving { deletion: Deletion::Off, ..node },
                Leaving { fenced: true, ..node },
                Leaving { stopped: true, ..node },
                Leaving { booted: false, ..node },
            ] {
                assert_eq!(goes(off), silent, "{off:?}");
            }
        }
    }

    #[test]
    fn a_lease_that_is_only_found_does_not_say_that_its_node_is_heard_again() {
        for (ready, renewed, wanted) in [
            (Some(("Unknown", "LeaseNotRenewed")), false, true),
            (Some(("Unknown", SILENT_SINCE_DELETED)), false, true),
            (Some(("Unknown", "LeaseNotRenewed")), true, false),
            // It took its first one.
            (Some(("Unknown", NO_LEASE)), false, false),
            (Some(("True", "LeaseRenewed")), false, false),
            (Some(("False", "NodeStopped")), false, false),
            (None, false, false),
        ] {
            assert_eq!(unheard(ready, renewed), wanted, "{ready:?} {renewed}");
        }
    }

    #[test]
    fn a_fence_is_disproved_by_a_renewal_that_came_after_it() {
        for (said, renewed, told, wanted) in [
            (None, Some(9), true, false),
            (Some(5), None, true, false),
            // It was on its way when that was said.
            (Some(5), Some(4), true, false),
            (Some(5), Some(6), true, true),
            // The boot that is heard is another one, and has not said so yet.
            (Some(5), Some(6), false, false),
        ] {
            assert_eq!(disproved(said, renewed, told), wanted, "{said:?} {renewed:?} {told}");
        }
    }
}
