//! Mounting by descriptors: clone, restrict, attach, detach. No path is looked up twice.
use crate::sys::ffi::{MountAttributes, mount_setattr};
use crate::sys::kernel::{Access, FileKind};
use crate::sys::real::forks;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use std::path::Path;

const RDONLY: u64 = 0x1;
const NOSUID: u64 = 0x2;
const NODEV: u64 = 0x4;
const SHARED: u64 = libc::MS_SHARED;
const PRIVATE: u64 = libc::MS_PRIVATE;

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// A detached clone of the one mount that the handle is in, beginning at the handle. Private: what happens in it
/// is seen nowhere else.
pub(crate) fn clone(handle: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let clone = rustix::mount::open_tree(handle, c"", flags)?;
    set_propagation(&clone, PRIVATE)?;
    Ok(clone)
}

/// Takes rights away from a mount: set-uid programs always, devices unless the mount is one, writing if asked.
pub(crate) fn restrict(mount: impl AsFd, kind: FileKind, access: Access) -> Result<(), Errno> {
    let nodev = match kind {
        FileKind::Block(_) => 0,
        FileKind::Directory | FileKind::File | FileKind::Other => NODEV,
    };
    let rdonly = match access {
        Access::ReadOnly => RDONLY,
        Access::ReadWrite => 0,
    };
    let attributes = MountAttributes { set: NOSUID | nodev | rdonly, ..MountAttributes::default() };
    mount_setattr(mount, false, attributes).map_err(|error| errno(&error))
}

/// Makes one mount refuse writes, or not.
pub(crate) fn set_access(mount: impl AsFd, access: Access) -> Result<(), Errno> {
    let attributes = match access {
        Access::ReadOnly => MountAttributes { set: RDONLY, ..MountAttributes::default() },
        Access::ReadWrite => MountAttributes { clear: RDONLY, ..MountAttributes::default() },
    };
    mount_setattr(mount, false, attributes).map_err(|error| errno(&error))
}

/// Shares one mount: what is mounted beneath it from now on shows wherever it is shared with.
pub(crate) fn share(mount: impl AsFd) -> Result<(), Errno> {
    set_propagation(mount, SHARED)
}

fn set_propagation(mount: impl AsFd, propagation: u64) -> Result<(), Errno> {
    let attributes = MountAttributes { propagation, ..MountAttributes::default() };
    mount_setattr(mount, false, attributes).map_err(|error| errno(&error))
}

/// Attaches a detached mount on top of what the handle refers to.
pub(crate) fn attach(mount: impl AsFd, onto: impl AsFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", onto, c"", flags)
}

/// Unmounts what is topmost at `name` in the directory. Refused while it is in use; never lazy.
pub(crate) fn unmount(directory: impl AsFd, name: &Path) -> Result<(), Errno> {
    // By the directory's descriptor: a handle on the mount itself would keep it in use.
    let path = Path::new("/proc/self/fd").join(directory.as_fd().as_raw_fd().to_string()).join(name);
    // A process that is just being started may have it from us, for a moment.
    forks::retried(|| rustix::mount::unmount(&path, UnmountFlags::NOFOLLOW))
}

/// Why a file system could not be mounted, with what the kernel said about it beyond the number.
#[derive(Debug)]
pub(crate) struct NotMounted {
    pub(crate) errno: Errno,
    pub(crate) words: String,
}

/// A new mount, nowhere yet, of the file system on a block device. `options` are its own, each `name` or `name=value`.
pub(crate) fn filesystem(
    fs_type: &str,
    device: &Path,
    options: &[&str],
    access: Access,
) -> Result<OwnedFd, NotMounted> {
    let silent = |errno| NotMounted { errno, words: String::new() };
    let context = rustix::mount::fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC).map_err(silent)?;
    let made = configure(&context, device, options, access)
        .and_then(|()| rustix::mount::fsconfig_create(&context))
        .and_then(|()| {
            let flags = FsMountFlags::FSMOUNT_CLOEXEC;
            rustix::mount::fsmount(&context, flags, MountAttrFlags::empty())
        });
    made.map_err(|errno| NotMounted { errno, words: words(&context) })
}

fn configure(context: &OwnedFd, device: &Path, options: &[&str], access: Access) -> Result<(), Errno> {
    rustix::mount::fsconfig_set_string(context, "source", device)?;
    if access == Access::ReadOnly {
        rustix::mount::fsconfig_set_flag(context, "ro")?;
    }
    for option in options {
        match option.split_once('=') {
            Some((name, value)) => rustix::mount::fsconfig_set_string(context, name, value)?,
            None => rustix::mount::fsconfig_set_flag(context, *option)?,
        }
    }
    Ok(())
}

/// What the kernel left to be read: lines of a kind, a blank and the text.
fn words(context: &OwnedFd) -> String {
    let mut lines = Vec::new();
    let mut line = [0; 256];
    while let Ok(count) = rustix::io::read(context, &mut line)
        && count > 0
        && lines.len() < 8
    {
        let text = String::from_utf8_lossy(&line[..count]);
        lines.push(text.split_once(' ').map_or(text.as_ref(), |(_, text)| text).trim().to_owned());
    }
    lines.join("; ")
}
