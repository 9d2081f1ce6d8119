//! What the kernel shows at a target path, and the two things done there: a volume is put on it or taken off. What is put
//! there is a mount that the caller made, of a directory or of a device node.
//!
//! Everything is done relative to a descriptor of the target's parent, so that a path swapped meanwhile changes nothing,
//! and no symbolic link is followed at the target itself. Nothing here is recursive and nothing but an empty directory
//! or an empty file is ever removed.
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatVfsMountFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use super::refusal::Refusal;
use super::request::{Capability, TargetPath};
use crate::sys::kernel::{Access, MountId, MountRow};
use crate::sys::real::{mounts, parse_mountinfo};

/// Mounts of ours on top of each other that one unpublish takes off; more than one means that somebody else mounted too.
const DEEPEST_STACK: usize = 16;

/// A target path with its parent held open.
#[derive(Debug)]
pub(super) struct Spot<'a> {
    target: &'a TargetPath,
    parent: OwnedFd,
}

/// The volume that is looked for.
pub(super) struct Sought<'a> {
    pub(super) volume: &'a str,
    /// Whether the root of a mount is the volume's.
    pub(super) is_here: &'a dyn Fn(&Statx) -> io::Result<bool>,
    /// The same of one that is not, by what the mount table says of it: its file system does not answer any more, or the volume is
    /// on another one by now.
    pub(super) is_its: &'a dyn Fn(&MountRow) -> bool,
}

/// What a mount goes onto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaf {
    /// An empty directory.
    Directory,
    /// An empty file.
    File,
}

/// What is at a target path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// No such entry.
    Nothing,
    /// A directory on which nothing is mounted.
    Directory,
    /// A regular file on which nothing is mounted.
    File,
    /// The volume is mounted there.
    Volume(Access),
    /// The volume is mounted there as it was once: from a file system that does not answer any more, or is not in use any more.
    Dead,
    /// Something else is mounted there.
    Foreign,
    /// A symbolic link or something odder.
    Odd,
}

impl<'a> Spot<'a> {
    /// Opens the parent; `None` when there is none, and so nothing at the target.
    pub(super) fn open(target: &'a TargetPath) -> Result<Option<Self>, Refusal> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(target.parent(), flags, Mode::empty()) {
            Ok(parent) => Ok(Some(Self { target, parent })),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(Refusal::failed("open", target.parent())(error)),
        }
    }

    /// What is there now.
    pub(super) fn look(&self, sought: &Sought<'_>) -> Result<Seen, Refusal> {
        let failed = Refusal::failed("look at", self.target.as_path());
        self.seen(sought).map_err(failed)
    }

    fn seen(&self, sought: &Sought<'_>) -> io::Result<Seen> {
        let at = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let here = match rustix::fs::statx(&self.parent, self.target.leaf(), at, FIELDS) {
            Ok(here) => here,
            Err(Errno::NOENT) => return Ok(Seen::Nothing),
            Err(error) if DEAD.contains(&error) => return self.dead(sought, error),
            Err(error) => return Err(error.into()),
        };
        if !here.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            return Ok(match FileType::from_raw_mode(here.stx_mode.into()) {
                FileType::Directory => Seen::Directory,
                FileType::RegularFile => Seen::File,
                _ => Seen::Odd,
            });
        }
        if !(sought.is_here)(&here)? {
            return former(sought, MountId(here.stx_mnt_id));
        }
        let flags = rustix::fs::fstatvfs(self.open_leaf()?)?.f_flag;
        let read_only = flags.contains(StatVfsMountFlags::RDONLY);
        Ok(Seen::Volume(if read_only { Access::ReadOnly } else { Access::ReadWrite }))
    }

    /// What is there where the file system says nothing but that: as of a FUSE driver that has died, a server that does not know
    /// its files any more, a device that has gone. Which mount it is can be told without it.
    fn dead(&self, sought: &Sought<'_>, error: Errno) -> io::Result<Seen> {
        let mount = |fd: &OwnedFd| {
            let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
            let id = told.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
            id.map(MountId).ok_or(io::Error::from(error))
        };
        let id = mount(&self.open_leaf()?)?;
        // It is what the target lies on that does not answer.
        if id == mount(&self.parent)? {
            return Err(error.into());
        }
        former(sought, id)
    }

    /// Puts a clone of the mount that `source` is in on the target, which is an empty directory or file, or nothing yet.
    /// After a failure anything may be there.
    pub(super) fn mount(
        &self,
        source: &OwnedFd,
        leaf: Leaf,
        capability: &Capability,
        access: Access,
    ) -> Result<(), Refusal> {
        let path = self.target.as_path();
        let mode = Mode::from_raw_mode(0o750);
        let made = match leaf {
            Leaf::Directory => rustix::fs::mkdirat(&self.parent, self.target.leaf(), mode),
            Leaf::File => self.make_file(),
        };
        match made {
            Ok(()) => {}
            Err(Errno::EXIST) if self.is_empty(leaf)? => {}
            Err(Errno::EXIST) => {
                let problem = match leaf {
                    Leaf::Directory => "it is a directory with files in it",
                    Leaf::File => "it is a file with something in it",
                };
                return Err(Refusal::BadTarget { target: path.to_owned(), problem });
            }
            Err(error) => return Err(Refusal::failed("make", path)(error)),
        }
        self.attach(source, capability, access).map_err(Refusal::failed("mount on", path))
    }

    fn make_file(&self) -> rustix::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::openat(&self.parent, self.target.leaf(), flags, Mode::RUSR | Mode::WUSR).map(drop)
    }

    fn attach(&self, source: &OwnedFd, capability: &Capability, access: Access) -> rustix::io::Result<()> {
        let detached = mounts::clone(source)?;
        // Before it can be seen anywhere: where the target's parent is shared, other namespaces get it as it is now.
        if access == Access::ReadOnly {
            mounts::set_access(&detached, access)?;
        }
        mounts::attach(&detached, self.open_leaf()?)?;
        let options = options(capability);
        if options.is_empty() {
            return Ok(());
        }
        // The descriptor is the mount itself now, whatever the path leads to meanwhile.
        let mounted = format!("/proc/self/fd/{}", detached.as_raw_fd());
        mount_remount(mounted, MountFlags::BIND | present_options(&detached)? | options, c"")
    }

    /// Puts a mount that is nowhere yet on the target, a directory that is there.
    pub(super) fn put(&self, mount: &OwnedFd) -> Result<(), Refusal> {
        let put = self.open_leaf().and_then(|leaf| mounts::attach(mount, leaf));
        put.map_err(Refusal::failed("mount on", self.target.as_path()))
    }

    /// Takes the volume off the target: nothing happens where it is not mounted.
    pub(super) fn unmount(&self, sought: &Sought<'_>) -> Result<Seen, Refusal> {
        for _ in 0..DEEPEST_STACK {
            let seen = self.look(sought)?;
            if !matches!(seen, Seen::Volume(_) | Seen::Dead) {
                return Ok(seen);
            }
            match mounts::unmount(&self.parent, self.target.leaf()) {
                Ok(()) => {}
                Err(Errno::BUSY) => {
                    let by = format!("{} is busy", self.target.as_path().display());
                    return Err(Refusal::InUse { volume: sought.volume.to_owned(), by });
                }
                Err(error) => return Err(Refusal::failed("unmount", self.target.as_path())(error)),
            }
        }
        self.look(sought)
    }

    /// Removes the directory or file at the target, unless there is something in it: then it is not what we made.
    pub(super) fn remove(&self, leaf: Leaf) -> Result<(), Refusal> {
        let flags = match leaf {
            Leaf::Directory => AtFlags::REMOVEDIR,
            Leaf::File if self.is_empty(leaf)? => AtFlags::empty(),
            Leaf::File => {
                self.warn_of_content();
                return Ok(());
            }
        };
        match rustix::fs::unlinkat(&self.parent, self.target.leaf(), flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                self.warn_of_content();
                Ok(())
            }
            Err(error) => Err(Refusal::failed("remove", self.target.as_path())(error)),
        }
    }

    fn warn_of_content(&self) {
        let target = self.target.as_path().display();
        tracing::warn!(%target, "left in place: nothing is mounted there, but it holds something");
    }

    /// Whether anything at all is mounted at the target.
    pub(super) fn is_mount_point(&self) -> Result<bool, Refusal> {
        let at = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        match rustix::fs::statx(&self.parent, self.target.leaf(), at, FIELDS) {
            Ok(here) => Ok(here.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
            Err(Errno::NOENT) => Ok(false),
            // A directory answers where nothing is mounted.
            Err(error) if DEAD.contains(&error) => Ok(true),
            Err(error) => Err(Refusal::failed("look at", self.target.as_path())(error)),
        }
    }

    fn is_empty(&self, leaf: Leaf) -> Result<bool, Refusal> {
        let failed = || Refusal::failed("read", self.target.as_path());
        match leaf {
            Leaf::File => {
                let at = AtFlags::SYMLINK_NOFOLLOW;
                let stat = rustix::fs::statat(&self.parent, self.target.leaf(), at).map_err(failed())?;
                let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
                Ok(regular && stat.st_size == 0)
            }
            Leaf::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let leaf = rustix::fs::openat(&self.parent, self.target.leaf(), flags, Mode::empty());
                let mut entries = rustix::fs::Dir::new(leaf.map_err(failed())?).map_err(failed())?;
                let dots = |name: &std::ffi::CStr| name == c"." || name == c"..";
                Ok(!entries.any(|entry| entry.is_ok_and(|entry| !dots(entry.file_name()))))
            }
        }
    }

    /// The topmost thing at the target, which may be a mount.
    pub(super) fn open_leaf(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.parent, self.target.leaf(), flags, Mode::empty())
    }
}

/// What a mount is that is not the volume as it is now.
fn former(sought: &Sought<'_>, id: MountId) -> io::Result<Seen> {
    let row = table()?.into_iter().find(|row| row.id == id);
    Ok(if row.is_some_and(|row| (sought.is_its)(&row)) { Seen::Dead } else { Seen::Foreign })
}

pub(super) const FIELDS: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::MNT_ID);

/// What a file system says of its root that does not answer any more.
const DEAD: [Errno; 4] = [Errno::NOTCONN, Errno::STALE, Errno::IO, Errno::HOSTDOWN];

/// What tells one file from another.
pub(super) fn identity(file: &Statx) -> (u32, u32, u64) {
    (file.stx_dev_major, file.stx_dev_minor, file.stx_ino)
}

/// What the mount is to forbid beyond writing, which was decided before.
fn options(capability: &Capability) -> MountFlags {
    let option = |name: &String| match name.as_str() {
        "nosuid" => MountFlags::NOSUID,
        "nodev" => MountFlags::NODEV,
        "noexec" => MountFlags::NOEXEC,
        "noatime" => MountFlags::NOATIME,
        "nodiratime" => MountFlags::NODIRATIME,
        "relatime" => MountFlags::RELATIME,
        _ => MountFlags::empty(),
    };
    capability.mount_flags.iter().map(option).collect()
}

/// What the mount has already, as a clone of that of the data directory: a remount drops what it does not repeat.
fn present_options(mount: &OwnedFd) -> rustix::io::Result<MountFlags> {
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let seen = rustix::fs::fstatvfs(mount)?.f_flag;
    Ok(pairs.into_iter().filter(|(shown, _)| seen.contains(*shown)).map(|(_, flag)| flag).collect())
}

/// The mount table of this process.
pub(super) fn table() -> io::Result<Vec<MountRow>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    parse_mountinfo(&table).map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))
}
