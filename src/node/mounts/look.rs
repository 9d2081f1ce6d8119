//! What one look at a mount has shown, of what was verified there.
use rustix::io::Errno;

use super::super::context::Node;
use crate::plan::stale::Look;
use crate::sys::kernel::{Checked, Dead, KernelError, MountId, PathFacts, Present, beneath};

/// Which mount is there, and what was seen; none of what is not known.
pub(super) type Found = (Option<MountId>, Option<Look>);

/// What is there means for what was verified. The same file system mounted anew is as good.
pub(super) async fn read(node: &Node, checked: Checked, of: &Present) -> Found {
    let present = match checked {
        Checked::Alive(PathFacts::Present(present)) => present,
        Checked::Alive(PathFacts::Absent { .. }) => return (None, Some(Look::Nothing)),
        Checked::Dead(dead) => return (None, Some(of_dead(dead))),
    };
    match (&of.mount, &present.mount) {
        (Some(_), None) => (None, Some(Look::Nothing)),
        (Some(_), Some(is)) if present.shows(of) => (Some(is.id), Some(Look::Well)),
        (None, _) if of.kind == present.kind => (None, Some(Look::Well)),
        (Some(_), Some(top)) => {
            // Which of the two it is decides whether it is mended.
            let Ok(table) = node.machine.kernel.mount_table().await else { return (None, None) };
            let covered = beneath(&table, top.id).any(|row| row.shows(of));
            (None, Some(if covered { Look::Covered } else { Look::Other }))
        }
        (None, _) => (None, Some(Look::Other)),
    }
}

fn of_dead(dead: Dead) -> Look {
    match dead {
        Dead::NoServer => Look::NoServer,
        Dead::Unknown => Look::Unknown,
        Dead::Failing => Look::Failing,
        Dead::Unreachable => Look::Unreachable,
        Dead::NoDevice => Look::NoDevice,
        Dead::Deleted => Look::Deleted,
    }
}

/// What a look that failed has shown.
pub(super) fn failed(error: &KernelError) -> Found {
    let look = match error {
        KernelError::NotFound { .. } => Look::Nothing,
        // The way there leads elsewhere by now.
        KernelError::Outside { .. } => Look::Other,
        KernelError::Hung { .. } => Look::Silent,
        // Nobody was asked.
        KernelError::Overloaded { .. } => return (None, None),
        // This process lacks what asking takes, which says nothing of the mount.
        KernelError::Refused { source, .. } if is_shortage(source) => return (None, None),
        KernelError::MayNotMount
        | KernelError::InUse { .. }
        | KernelError::NotEmpty { .. }
        | KernelError::IsMountPoint { .. }
        | KernelError::Changed { .. }
        | KernelError::Occupied { .. }
        | KernelError::Refused { .. } => {
            tracing::debug!(error = error as &dyn std::error::Error, "a mount could not be looked at");
            Look::Refused
        }
    };
    (None, Some(look))
}

fn is_shortage(error: &std::io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn what_this_process_lacks_says_nothing_of_a_mount() {
        let refused = |source: Errno| {
            failed(&KernelError::Refused { action: "open", path: PathBuf::from("p"), source: source.into() })
        };
        for shortage in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN] {
            assert_eq!(refused(shortage), (None, None), "{shortage}");
        }
        for told in [Errno::ACCESS, Errno::PERM, Errno::INVAL] {
            assert_eq!(refused(told), (None, Some(Look::Refused)), "{told}");
        }
        assert_eq!(failed(&KernelError::Overloaded { path: PathBuf::from("p") }), (None, None));
        assert_eq!(failed(&KernelError::Hung { path: PathBuf::from("p") }), (None, Some(Look::Silent)));
    }
}
