//! What the kernel shows at a target path, and the two things done there: a volume's directory is put on it or taken off.
//!
//! Everything is done relative to a descriptor of the target's parent, so that a path swapped meanwhile changes nothing,
//! and no symbolic link is followed at the target itself. Nothing here is recursive and nothing but an empty directory
//! is ever removed.
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatVfsMountFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use super::refusal::Refusal;
use super::request::{Capability, TargetPath, VolumeId};
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

/// What is at a target path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// No such entry.
    Nothing,
    /// A directory on which nothing is mounted.
    Directory,
    /// The volume's directory is mounted there.
    Volume(Access),
    /// Something else is mounted there.
    Foreign,
    /// A file, a symbolic link or something odder.
    NoDirectory,
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

    /// What is there now. `data` is the volume's directory where it can be opened.
    pub(super) fn look(&self, volume: &VolumeId, data: Option<&OwnedFd>) -> Result<Seen, Refusal> {
        let failed = Refusal::failed("look at", self.target.as_path());
        self.seen(volume, data).map_err(failed)
    }

    fn seen(&self, volume: &VolumeId, data: Option<&OwnedFd>) -> io::Result<Seen> {
        let at = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let here = match rustix::fs::statx(&self.parent, self.target.leaf(), at, FIELDS) {
            Ok(here) => here,
            Err(Errno::NOENT) => return Ok(Seen::Nothing),
            Err(error) => return Err(error.into()),
        };
        if !here.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            let directory = rustix::fs::FileType::from_raw_mode(here.stx_mode.into()).is_dir();
            return Ok(if directory { Seen::Directory } else { Seen::NoDirectory });
        }
        let same = match data {
            Some(data) => {
                identity(&here) == identity(&rustix::fs::statx(data, c"", AtFlags::EMPTY_PATH, FIELDS)?)
            }
            // The directory is gone but its mount is not: the kernel still knows where it came from.
            None => root_of_mount(here.stx_mnt_id)?.is_some_and(|root| is_data_of(volume, &root)),
        };
        if !same {
            return Ok(Seen::Foreign);
        }
        let flags = rustix::fs::fstatvfs(self.open_leaf()?)?.f_flag;
        let read_only = flags.contains(StatVfsMountFlags::RDONLY);
        Ok(Seen::Volume(if read_only { Access::ReadOnly } else { Access::ReadWrite }))
    }

    /// Puts the directory `data` on the target, which is an empty directory or nothing yet. After a failure anything
    /// may be there.
    pub(super) fn mount(
        &self,
        data: &OwnedFd,
        capability: &Capability,
        access: Access,
    ) -> Result<(), Refusal> {
        let path = self.target.as_path();
        match rustix::fs::mkdirat(&self.parent, self.target.leaf(), Mode::from_raw_mode(0o750)) {
            Ok(()) => {}
            Err(Errno::EXIST) if self.is_empty()? => {}
            Err(Errno::EXIST) => {
                let problem = "it is a directory with files in it";
                return Err(Refusal::BadTarget { target: path.to_owned(), problem });
            }
            Err(error) => return Err(Refusal::failed("make directory", path)(error)),
        }
        self.attach(data, capability, access).map_err(Refusal::failed("mount on", path))
    }

    fn attach(&self, data: &OwnedFd, capability: &Capability, access: Access) -> rustix::io::Result<()> {
        let detached = mounts::clone(data)?;
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

    /// Takes the volume off the target: nothing happens where it is not mounted.
    pub(super) fn unmount(&self, volume: &VolumeId, data: Option<&OwnedFd>) -> Result<Seen, Refusal> {
        for _ in 0..DEEPEST_STACK {
            let seen = self.look(volume, data)?;
            if !matches!(seen, Seen::Volume(_)) {
                return Ok(seen);
            }
            match mounts::unmount(&self.parent, self.target.leaf()) {
                Ok(()) => {}
                Err(Errno::BUSY) => {
                    let by = format!("{} is busy", self.target.as_path().display());
                    return Err(Refusal::InUse { volume: volume.as_str().to_owned(), by });
                }
                Err(error) => return Err(Refusal::failed("unmount", self.target.as_path())(error)),
            }
        }
        self.look(volume, data)
    }

    /// Removes the directory at the target, unless there is something in it: then it is not what we made.
    pub(super) fn remove(&self) -> Result<(), Refusal> {
        match rustix::fs::unlinkat(&self.parent, self.target.leaf(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                let target = self.target.as_path().display();
                tracing::warn!(%target, "left in place: nothing is mounted there, but it holds files");
                Ok(())
            }
            Err(error) => Err(Refusal::failed("remove directory", self.target.as_path())(error)),
        }
    }

    /// Whether anything at all is mounted at the target.
    pub(super) fn is_mount_point(&self) -> Result<bool, Refusal> {
        let at = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        match rustix::fs::statx(&self.parent, self.target.leaf(), at, FIELDS) {
            Ok(here) => Ok(here.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(Refusal::failed("look at", self.target.as_path())(error)),
        }
    }

    fn is_empty(&self) -> Result<bool, Refusal> {
        let failed = || Refusal::failed("read directory", self.target.as_path());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let leaf = rustix::fs::openat(&self.parent, self.target.leaf(), flags, Mode::empty());
        let mut entries = rustix::fs::Dir::new(leaf.map_err(failed())?).map_err(failed())?;
        let dots = |name: &std::ffi::CStr| name == c"." || name == c"..";
        Ok(!entries.any(|entry| entry.is_ok_and(|entry| !dots(entry.file_name()))))
    }

    fn open_leaf(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.parent, self.target.leaf(), flags, Mode::empty())
    }
}

const FIELDS: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::MNT_ID);

fn identity(file: &Statx) -> (u32, u32, u64) {
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
fn table() -> io::Result<Vec<MountRow>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    parse_mountinfo(&table).map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))
}

fn root_of_mount(id: u64) -> io::Result<Option<PathBuf>> {
    Ok(table()?.into_iter().find(|mount| mount.id == MountId(id)).map(|mount| mount.root))
}

/// Whether the root of a mount is the data directory of `volume` or lies inside it, even if it is deleted.
fn is_data_of(volume: &VolumeId, root: &Path) -> bool {
    let parts = root.iter().collect::<Vec<_>>();
    parts.windows(2).any(|pair| pair[0] == volume.as_str() && pair[1] == "data")
}

/// Where the data of `volume` is mounted in this mount namespace, and what is mounted inside its directory `home`.
pub(super) fn uses(volume: &VolumeId, home: impl AsFd) -> io::Result<Vec<PathBuf>> {
    let home = std::fs::read_link(format!("/proc/self/fd/{}", home.as_fd().as_raw_fd()))?;
    let used = |mount: &MountRow| is_data_of(volume, &mount.root) || mount.mount_point.starts_with(&home);
    Ok(table()?.into_iter().filter(used).map(|mount| mount.mount_point).collect())
}

/// The type of the file system that `dir` is on.
pub(super) fn fs_type(dir: impl AsFd) -> io::Result<String> {
    let here = rustix::fs::statx(dir, c"", AtFlags::EMPTY_PATH, FIELDS)?;
    let mount = table()?.into_iter().find(|mount| mount.id == MountId(here.stx_mnt_id));
    Ok(mount.map(|mount| mount.fs_type).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_of_the_data_is_known_by_its_root() {
        let id = VolumeId::parse("0123456789abcdef0123").unwrap();
        for ours in ["/d/volumes/0123456789abcdef0123/data", "/0123456789abcdef0123/data//deleted"] {
            assert!(is_data_of(&id, Path::new(ours)), "{ours}");
        }
        assert!(is_data_of(&id, Path::new("/d/volumes/0123456789abcdef0123/data/sub/path")));
        for other in ["/", "/0123456789abcdef0123/database", "/0123456789abcdef0124/data"] {
            assert!(!is_data_of(&id, Path::new(other)), "{other}");
        }
    }
}
