//! File systems grow while they are mounted, each by a request to the kernel; ext4, where this process may not do that, when
//! it is staged ([`format`](super::format)).
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::thread::CapabilitySet;

use super::image::FsType;
use crate::sys::real::btrfs;
use crate::sys::real::filesystems::{xfs_geometry, xfs_grow};

/// Bytes at the end of a volume that a file system may leave unused: none of them makes a block group of its own of so
/// little.
const SLACK: u64 = 1 << 20;

/// Whether a file system of `has` bytes has not grown to the `capacity` of its volume.
pub(super) fn is_small(has: u64, capacity: u64) -> bool {
    has.saturating_add(SLACK) <= capacity
}

/// Whether a file system can grow while it is mounted. For ext4 the kernel asks for a right that containers may lack.
pub(super) fn is_online(fs: FsType) -> bool {
    match fs {
        FsType::Ext4 => rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE)),
        FsType::Xfs | FsType::Btrfs => true,
    }
}

/// The root of a mount that may be nowhere yet, opened to be asked.
pub(super) fn root(mount: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(mount, c".", flags, Mode::empty())?)
}

/// Lets the file system with this root have all of a device of `bytes` bytes. All of it already is success.
pub(super) fn filesystem(fs: FsType, root: impl AsFd, bytes: u64) -> io::Result<()> {
    match fs {
        FsType::Ext4 => {
            let block = rustix::fs::fstatvfs(&root)?.f_bsize;
            Ok(rustix::fs::ext4_ioc_resize_fs(root, bytes / block.max(1))?)
        }
        FsType::Xfs => {
            let geometry = xfs_geometry(&root)?;
            let blocks = bytes / u64::from(geometry.block_size).max(1);
            if blocks > geometry.blocks { xfs_grow(root, blocks, geometry.most_inodes) } else { Ok(()) }
        }
        FsType::Btrfs => btrfs::grow(root),
    }
}
