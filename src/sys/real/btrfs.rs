//! Subvolumes of btrfs: made, copied in an instant, counted, limited, removed with what is in them.
use crate::sys::ffi::btrfs::{self, Search};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;

pub(crate) use btrfs::{create, enable_quota, grow, limit, snapshot};

/// What `statfs` calls it.
const MAGIC: u64 = 0x9123_683e;
const ROOT_TREE: u64 = 1;
const QUOTA_TREE: u64 = 8;
/// Kinds of items: which subvolume is in which, what a subvolume refers to, and how much it may.
const ROOT_REF: u32 = 156;
const QGROUP_INFO: u32 = 242;
const QGROUP_LIMIT: u32 = 244;

/// What is counted of a subvolume, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    /// What it refers to, shared with others or not, as of the last commit.
    pub(crate) used: u64,
    /// What it may refer to, if there is a limit.
    pub(crate) limit: Option<u64>,
}

/// Whether a file is on btrfs.
pub(crate) fn is_btrfs(file: impl AsFd) -> io::Result<bool> {
    // The field is signed on some architectures.
    Ok(u64::try_from(rustix::fs::fstatfs(file)?.f_type).is_ok_and(|kind| kind == MAGIC))
}

/// The count of the subvolume that a file is in; none while nothing is counted on this file system.
pub(crate) fn counted(file: impl AsFd) -> io::Result<Option<Counted>> {
    let id = btrfs::subvolume_id(&file)?;
    let of = |kind| Search { tree: QUOTA_TREE, kind, objects: (0, 0), offsets: (id, id) };
    let words = |kind| match btrfs::search(&file, of(kind)) {
        Ok(items) => Ok(items.first().map(|item| [number(&item.bytes, 0), number(&item.bytes, 8)])),
        Err(error) if is(&error, Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    };
    let Some([_, used]) = words(QGROUP_INFO)? else { return Ok(None) };
    // Of the limits only that of what it refers to is ever set here: flag 1.
    let limit = words(QGROUP_LIMIT)?.filter(|[flags, _]| flags & 1 != 0).map(|[_, most]| most);
    Ok(Some(Counted { used, limit }))
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Removes the subvolume called `name` in a directory with everything in it, the subvolumes that a user made there
/// included. None there is success.
pub(crate) fn remove(directory: &OwnedFd, name: &CStr) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let subvolume = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Ok(subvolume) => subvolume,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let id = btrfs::subvolume_id(&subvolume)?;
    drop(subvolume);
    for inner in inside(directory, id)? {
        btrfs::destroy_by_id(directory, inner)?;
        forget(directory, inner);
    }
    match btrfs::destroy(directory, name) {
        Err(error) if is(&error, Errno::NOENT) => return Ok(()),
        other => other?,
    }
    forget(directory, id);
    Ok(())
}

/// The subvolumes in a subvolume, those that are inside of others first.
fn inside(directory: &OwnedFd, id: u64) -> io::Result<Vec<u64>> {
    let mut found = vec![id];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        let search =
            Search { tree: ROOT_TREE, kind: ROOT_REF, objects: (parent, parent), offsets: (0, u64::MAX) };
        found.extend(btrfs::search(directory, search)?.into_iter().map(|item| item.offset));
        at += 1;
    }
    found.remove(0);
    found.reverse();
    Ok(found)
}

/// Newer kernels do this themselves once all of the subvolume is gone, and refuse it until then.
fn forget(directory: &OwnedFd, id: u64) {
    if let Err(error) = btrfs::forget_count(directory, id) {
        tracing::debug!(id, %error, "the count of a subvolume that is gone is left to the kernel");
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}
