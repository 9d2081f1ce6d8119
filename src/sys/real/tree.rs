//! The daemon's tree: a directory of root's alone that is a shared mount of its own.
//!
//! Shared, so that a mount that a plugin makes in a namespace of its own shows here; of its own, so that nothing
//! of it reaches the peers of the file system that the data directory is in.
use crate::sys::kernel::{KernelError, MountId, Prepared};
use crate::sys::real::facts::{self, Asking};
use crate::sys::real::kernel::unmount;
use crate::sys::real::open::{Confined, failure};
use crate::sys::real::{mounts, table};
use rustix::fd::OwnedFd;
use rustix::fs::Mode;
use rustix::io::Errno;
use std::path::Path;

/// `CAP_SYS_ADMIN`
const SYS_ADMIN: u32 = 21;

/// Whether this process may mount.
pub(crate) fn may_mount() -> bool {
    let effective = rustix::thread::capabilities(None).map(|sets| sets.effective.bits());
    effective.is_ok_and(|bits| bits & (1 << SYS_ADMIN) != 0)
}

/// Makes the tree as far as it is not there.
pub(crate) fn prepare(tree: &Path, asking: Asking) -> Result<Prepared, KernelError> {
    if !may_mount() {
        return Err(KernelError::MayNotMount);
    }
    let fail = |errno| failure("prepare the tree", tree, errno);
    let confined = confined(tree)?;
    confined.make_directories(Mode::RWXU, 0).map_err(fail)?;
    let directory = confined.directory().map_err(fail)?;
    let owner = rustix::fs::fstat(&directory).map_err(fail)?;
    if (owner.st_uid, owner.st_gid) != (0, 0) {
        rustix::fs::fchown(&directory, Some(rustix::fs::Uid::ROOT), Some(rustix::fs::Gid::ROOT))
            .map_err(fail)?;
    }
    if owner.st_mode & 0o7777 != 0o700 {
        rustix::fs::fchmod(&directory, Mode::RWXU).map_err(fail)?;
    }
    if is_ours(&directory, asking).map_err(fail)? {
        mounts::share(&directory).map_err(fail)?;
        return Ok(Prepared::Found);
    }
    // Private before it is attached: a clone of a shared mount would pass on everything to its peers.
    let clone = mounts::clone(&directory).map_err(fail)?;
    mounts::attach(&clone, &directory).map_err(fail)?;
    mounts::share(&clone).map_err(fail)?;
    Ok(Prepared::Made)
}

/// Undoes the mount.
pub(crate) fn undo(tree: &Path, asking: Asking) -> Result<(), KernelError> {
    let confined = match confined(tree) {
        Err(KernelError::NotFound { .. }) => return Ok(()),
        other => other?,
    };
    let ours = match confined.handle() {
        Err(Errno::NOENT) => return Ok(()),
        Ok(handle) => is_ours(&handle, asking),
        Err(errno) => Err(errno),
    };
    if ours.map_err(|errno| failure("look at", tree, errno))? { unmount(&confined) } else { Ok(()) }
}

/// Whether what is mounted there is a bind of the directory itself, and not a file system of the operator's own:
/// then it shows what the mount beneath it shows at that place. Reads the mount table: for start and end only.
fn is_ours(directory: &OwnedFd, asking: Asking) -> Result<bool, Errno> {
    let Some(mount) = facts::present(directory, asking)?.mount else { return Ok(false) };
    let rows = table::read(asking).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let row = |id: MountId| rows.iter().find(|row| row.id == id);
    let Some((top, beneath)) = row(mount.id).and_then(|top| Some((top, row(top.parent)?))) else {
        return Ok(false);
    };
    let shown = top.mount_point.strip_prefix(&beneath.mount_point).map(|rest| beneath.root.join(rest));
    Ok(top.device == beneath.device && shown.is_ok_and(|shown| shown == top.root))
}

fn confined(tree: &Path) -> Result<Confined, KernelError> {
    let (Some(around), Some(name)) = (tree.parent(), tree.file_name()) else {
        return Err(failure("open", tree, Errno::INVAL));
    };
    Confined::open(around, name.into())
}
