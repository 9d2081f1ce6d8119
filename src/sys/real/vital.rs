//! Whether what is mounted is alive, and that mounts came or went.
use crate::sys::ffi;
use crate::sys::kernel::{Checked, Dead, DeviceId, FileKind, KernelError, PathFacts, Present};
use crate::sys::real::facts::{self, Asking};
use crate::sys::real::open::{Confined, ask_anew, failure};
use crate::sys::real::table;
use futures::stream::{BoxStream, StreamExt};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::Interest;

/// The mount table of whoever opens it.
pub(crate) const TABLE: &str = "/proc/thread-self/mountinfo";
/// Every block device that there is, by its number.
const DEVICES: &str = "/sys/dev/block";

/// Asks what is at the path whether it is alive. May hang.
pub(crate) fn check(confined: &Confined, asking: Asking) -> Result<Checked, KernelError> {
    let asked = |errno| match (errno, dead(errno)) {
        (_, Some(dead)) => Ok(Checked::Dead(dead)),
        (Errno::NOENT, None) => Ok(Checked::Alive(PathFacts::Absent { missing: 1 })),
        (other, None) => Err(failure("check the mount at", &confined.absolute, other)),
    };
    // The handle keeps the mount busy: it goes before anything that does not need it.
    let seen = confined.handle().and_then(|handle| {
        let seen = facts::present(&handle, asking)?;
        // What was kept of a file system answers for it long after its end.
        ask_anew(&handle)?;
        let deleted = is_deleted(&handle, &seen, asking);
        Ok((seen, deleted))
    });
    match seen {
        Ok((_, true)) => Ok(Checked::Dead(Dead::Deleted)),
        Ok((seen, false)) if has_no_device(&seen, asking) => Ok(Checked::Dead(Dead::NoDevice)),
        Ok((seen, false)) => Ok(Checked::Alive(PathFacts::Present(seen))),
        Err(errno) => asked(errno),
    }
}

/// What an error says of the file system, if it says that it is dead.
fn dead(errno: Errno) -> Option<Dead> {
    match errno {
        Errno::NOTCONN | Errno::CONNABORTED | Errno::CONNRESET | Errno::SHUTDOWN => Some(Dead::NoServer),
        Errno::STALE => Some(Dead::Unknown),
        Errno::IO => Some(Dead::Failing),
        Errno::HOSTDOWN
        | Errno::HOSTUNREACH
        | Errno::NETDOWN
        | Errno::NETUNREACH
        | Errno::CONNREFUSED
        | Errno::TIMEDOUT => Some(Dead::Unreachable),
        Errno::NODEV | Errno::NXIO => Some(Dead::NoDevice),
        _ => None,
    }
}

/// Whether what is mounted has no name any more in its file system. There are some that count no names at all, so that is asked
/// of the kernel, too.
fn is_deleted(handle: &OwnedFd, seen: &Present, asking: Asking) -> bool {
    let nameless = rustix::fs::fstat(handle).is_ok_and(|stat| stat.st_nlink == 0);
    let Some(mount) = seen.mount.as_ref().filter(|_| nameless) else { return false };
    let rows = table::read(asking).unwrap_or_default();
    rows.iter().any(|row| row.id == mount.id && row.root.to_string_lossy().ends_with("//deleted"))
}

/// A local file system answers from what it has in memory when its device is gone.
fn has_no_device(seen: &Present, asking: Asking) -> bool {
    let device = match (seen.kind, &seen.mount) {
        (FileKind::Block(device), _) => Some(device),
        (FileKind::Directory | FileKind::File | FileKind::Other, mount) => mount.as_ref().map(|m| m.device),
    };
    let shut_down = match (asking, &seen.mount) {
        (Asking::Statmount, Some(mount)) => facts::is_shut_down(mount.id.0),
        (Asking::Statmount, None) | (Asking::Statfs, _) => false,
    };
    shut_down || device.is_some_and(|device| is_gone(Path::new(DEVICES), device))
}

/// Whether a block device is gone, or has no size, as a loop device that lost its file or a disk that was taken out.
fn is_gone(devices: &Path, device: DeviceId) -> bool {
    // File systems without a device of their own have a number of this kind. And where `/sys` is not mounted nobody knows.
    if device.major == 0 || !devices.exists() {
        return false;
    }
    let size: PathBuf = devices.join(device.to_string()).join("size");
    match std::fs::read_to_string(size) {
        Ok(sectors) => sectors.trim() == "0",
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The changes of an open mount table. Nothing is read: the kernel marks it as changed.
pub(crate) fn changes(table: OwnedFd) -> io::Result<BoxStream<'static, ()>> {
    let table = ffi::urgent(table)?;
    let next = |table: tokio::io::unix::AsyncFd<OwnedFd>| async move {
        let mut ready = table.ready(Interest::PRIORITY).await.ok()?;
        ready.clear_ready();
        drop(ready);
        Some(((), table))
    };
    Ok(futures::stream::unfold(table, next).boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors of FUSE, of NFS mounted soft, and of SMB. To be refused is not to be dead.
    #[test]
    fn each_error_of_a_dead_file_system_is_known() {
        for (errno, wanted) in [
            (Errno::NOTCONN, Some(Dead::NoServer)),
            (Errno::SHUTDOWN, Some(Dead::NoServer)),
            (Errno::STALE, Some(Dead::Unknown)),
            (Errno::IO, Some(Dead::Failing)),
            (Errno::HOSTDOWN, Some(Dead::Unreachable)),
            (Errno::TIMEDOUT, Some(Dead::Unreachable)),
            (Errno::NODEV, Some(Dead::NoDevice)),
            (Errno::ACCESS, None),
            (Errno::NOENT, None),
        ] {
            assert_eq!(dead(errno), wanted, "{errno:?}");
        }
    }

    #[test]
    fn a_device_without_an_entry_or_a_size_is_gone() {
        let sys = tempfile::tempdir().unwrap();
        let device = |major, minor| DeviceId { major, minor };
        for (number, size) in [("7:1", "0\n"), ("7:2", "2048\n")] {
            std::fs::create_dir(sys.path().join(number)).unwrap();
            std::fs::write(sys.path().join(number).join("size"), size).unwrap();
        }
        let gone = |major, minor| is_gone(sys.path(), device(major, minor));
        assert_eq!([gone(7, 1), gone(7, 2), gone(7, 3), gone(0, 40)], [true, false, true, false]);
        assert!(!is_gone(&sys.path().join("none"), device(7, 3)), "without /sys nobody knows");
    }
}
