//! What one look at a mount has shown, of what was verified there.
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
            let table = node.machine.kernel.mount_table().await.unwrap_or_default();
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
