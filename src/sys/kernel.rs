//! What this machine's kernel is asked about mounts and paths.
//!
//! Every call may touch a path of a hung file system; each therefore runs off the caller's task, has a deadline,
//! and answers [`KernelError::Hung`] when it passes. Nothing here recurses into a directory to delete.
use crate::sys::path::{HostPath, Place, SubPath, TreePath};
use async_trait::async_trait;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The mounts and paths of one node daemon: its own tree, and publications at paths that the operator allows.
#[async_trait]
pub trait Kernel: Send + Sync + fmt::Debug {
    /// What is constant until the next boot or exec.
    async fn facts(&self) -> Result<KernelFacts, KernelError>;

    /// Makes the tree, if it is not there yet: a directory of root alone (0700) that is a shared mount of its
    /// own, so that what plugins mount in their namespaces is seen here. What is mounted beneath it stays.
    async fn prepare_tree(&self) -> Result<Prepared, KernelError>;

    /// Undoes the shared mount of [`Kernel::prepare_tree`]; the directory stays. [`KernelError::InUse`] while
    /// anything is mounted beneath it. No shared mount there is success.
    async fn undo_tree(&self) -> Result<(), KernelError>;

    /// The absolute path, as a plugin or a person is told it. Asks nobody.
    fn absolute(&self, place: &Place) -> PathBuf;

    /// Makes a directory (0700) and those above it, as far as they are missing.
    async fn make_dir(&self, path: &TreePath) -> Result<(), KernelError>;

    /// Removes one empty directory, empty regular file or device node: never what is a mount point
    /// ([`KernelError::IsMountPoint`]) or has content ([`KernelError::NotEmpty`]), never more than the one.
    async fn remove(&self, path: &TreePath) -> Result<Removed, KernelError>;

    /// The names in a directory of the tree, in no order. Names that are not of the alphabet are left out: they
    /// are not ours. An absent directory has none.
    async fn list(&self, path: &TreePath) -> Result<Vec<String>, KernelError>;

    /// What is at the path now. Reads no mount table.
    async fn mount_facts(&self, place: &Place) -> Result<PathFacts, KernelError>;

    /// Every mount that this process sees. For starting up only: it costs time in proportion to the machine.
    async fn mount_table(&self) -> Result<Vec<MountRow>, KernelError>;

    /// Asks what is mounted at the path whether it is alive. On threads of its own with a short deadline: what hangs
    /// keeps no other call waiting.
    async fn check_mount(&self, place: &Place) -> Result<Checked, KernelError>;

    /// Those of these mounts that are there still; none where the kernel tells it in the whole table alone. Asks no file
    /// system, and costs time in proportion to what is asked for.
    async fn mounts_among(&self, ids: &HashSet<MountId>) -> Result<Option<HashSet<MountId>>, KernelError>;

    /// This mount, those that came after it, and what each of them is mounted on; none where the kernel does not tell which
    /// came first. Costs time in proportion to what came after it.
    async fn mounts_since(&self, id: MountId) -> Result<Option<Vec<MountRow>>, KernelError>;

    /// Tells from now on that mounts came or went, whichever; those that come close together may be told once.
    async fn mount_changes(&self) -> Result<BoxStream<'static, ()>, KernelError>;

    /// Unmounts the mount with this id, which must be the topmost at the path; [`KernelError::Changed`] when it
    /// is another, [`KernelError::InUse`] when the kernel refuses. Nothing mounted there is success.
    async fn unmount(&self, place: &Place, expected: MountId) -> Result<(), KernelError>;

    /// A detached, private clone of what is at the path, to be handed to a task. [`KernelError::Changed`] when it
    /// is no longer what `verified` says (mount, device, file system and inode are compared on the same
    /// descriptor that is cloned).
    async fn clone_mount(&self, path: &TreePath, verified: &Present) -> Result<OwnedFd, KernelError>;

    /// The same of one directory of it. Its parts are made (0755) where they are missing and may be; none may be a link or
    /// another mount ([`KernelError::Outside`]), as the volume's users may have put there what they like.
    async fn clone_directory(
        &self,
        path: &TreePath,
        verified: &Present,
        within: &SubPath,
    ) -> Result<OwnedFd, KernelError>;

    /// Gives the files of what is at the path to the group, which may read and write them then, the root last; nothing when the
    /// root has the group. Follows no link and no other mount. [`KernelError::Changed`] when it is no longer what `verified`
    /// says. What the file system does not let go is left. Takes as long as there are files, whatever the usual deadline is; who drops it ends
    /// it, and it begins anew.
    async fn give_to_group(
        &self,
        path: &TreePath,
        verified: &Present,
        group: u32,
    ) -> Result<Given, KernelError>;

    /// Mounts a clone of what is at `from` at `at`: nosuid, nodev (unless it is a block device), read-only when
    /// asked. Makes the missing directories (or the file, for a block device) beneath the allowed directory.
    /// The same thing mounted there already is success; anything else is [`KernelError::Occupied`].
    async fn publish_at_host(
        &self,
        from: &TreePath,
        verified: &Present,
        at: &HostPath,
        access: Access,
    ) -> Result<(), KernelError>;

    /// Undoes [`Kernel::publish_at_host`]: unmounts it if it shows what was `verified`, then removes the last `made`
    /// components of the path as far as they are empty. `made` is what [`PathFacts::Absent`] said before the
    /// publication. A mount of somebody else's stays; [`KernelError::Changed`] when ours is beneath it.
    async fn unpublish_at_host(
        &self,
        at: &HostPath,
        verified: &Present,
        made: usize,
    ) -> Result<(), KernelError>;
}

/// Bind mounts, as the built-in drivers make them at paths that an orchestrator gives them.
#[async_trait]
pub trait Binds: Send + Sync + fmt::Debug {
    /// Binds `source` onto `target`, which must exist and be of the same kind (directory or not). The new mount
    /// shows everywhere the target's parent mount is shared with.
    async fn bind(&self, source: &Path, target: &Path, access: Access) -> Result<(), KernelError>;

    /// Unmounts what is mounted at `target`; `false` when nothing was.
    async fn unbind(&self, target: &Path) -> Result<bool, KernelError>;

    /// What is at the path now. `Absent::missing` counts as for [`Kernel::mount_facts`].
    async fn path_facts(&self, path: &Path) -> Result<PathFacts, KernelError>;
}

/// Whether what is mounted may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Access {
    /// Reading and writing.
    ReadWrite,
    /// Reading alone, whatever the file system allows.
    ReadOnly,
}

/// Whether [`Kernel::prepare_tree`] had to make the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepared {
    /// The mount was made now.
    Made,
    /// A former daemon left it, with whatever is mounted beneath.
    Found,
}

/// What [`Kernel::remove`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It was there and is gone.
    Removed,
    /// It was not there.
    Absent,
}

/// What is constant until the next boot or exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFacts {
    /// `/proc/sys/kernel/random/boot_id`: a new one at each boot.
    pub boot_id: String,
    /// The kernel's release, such as `6.1.0-28-amd64`.
    pub release: String,
    /// Whether this process may mount (`CAP_SYS_ADMIN` is effective).
    pub may_mount: bool,
    /// Whether mounts are asked about with `statmount` (Linux 6.8), else with `statx` and `statfs`.
    pub statmount: bool,
}

/// A mount's id. With `statmount` unique until the next boot, else reused when a mount goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MountId(pub u64);

/// A device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceId {
    /// The driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// What kind of thing an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A block device with this number.
    Block(DeviceId),
    /// A character device, socket, fifo or symbolic link (which is never followed).
    Other,
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathFacts {
    /// Nothing; this many components at its end are missing.
    Absent {
        /// At least 1.
        missing: usize,
    },
    /// Something.
    Present(Present),
}

impl PathFacts {
    /// The mount, if the path is a mount point.
    pub fn mount(&self) -> Option<&MountFacts> {
        match self {
            Self::Absent { .. } => None,
            Self::Present(present) => present.mount.as_ref(),
        }
    }
}

/// What is at a path that exists: the inode, and the mount if the path is a mount point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Present {
    /// What kind of thing.
    pub kind: FileKind,
    /// The device of the file system that the inode is in.
    pub device: DeviceId,
    /// The inode's number.
    pub inode: u64,
    /// Set when the path is a mount point (the root of a mount).
    pub mount: Option<MountFacts>,
}

/// The kinds of file systems whose roots may get another number when their servers have answered: FUSE, NFS, SMB.
const NUMBERED_ANEW: [u64; 4] = [0x6573_5546, 0x6969, 0xff53_4d42, 0xfe53_4d42];

impl Present {
    /// Whether it shows what was verified, by the same mount or another one: the same device, or the same directory of the
    /// same file system. Of one file system there may be many volumes.
    pub fn shows(&self, verified: &Self) -> bool {
        if let (FileKind::Block(is), FileKind::Block(was)) = (self.kind, verified.kind) {
            return is == was;
        }
        let (Some(is), Some(was)) = (&self.mount, &verified.mount) else { return false };
        if self.kind != verified.kind || is.device != was.device {
            return false;
        }
        match (&is.root, &was.root) {
            // The ids that come with a root are used once. Its directory may have another name by now.
            (Some(_), Some(_)) if is.id == was.id => true,
            (Some(is), Some(was)) if is != was => false,
            // What has no device may number its root anew, and its path has told.
            (Some(_), Some(_)) if verified.device.major == 0 => true,
            (None, _) | (_, None) if NUMBERED_ANEW.contains(&was.magic) => true,
            (Some(_) | None, _) => self.inode == verified.inode,
        }
    }
}

/// What [`Kernel::check_mount`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked {
    /// It answers, and is this.
    Alive(PathFacts),
    /// It does not do what it is there for.
    Dead(Dead),
}

/// How a mounted file system or device is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dead {
    /// Its server has gone: ENOTCONN, ECONNABORTED, ECONNRESET, ESHUTDOWN.
    NoServer,
    /// Its server does not know it any more: ESTALE.
    Unknown,
    /// It answers EIO.
    Failing,
    /// Its server cannot be reached: EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ECONNREFUSED, ETIMEDOUT.
    Unreachable,
    /// Its device is gone or has no size, or the file system was shut down, as the kernel does when a device goes.
    NoDevice,
    /// The directory or file that is mounted there was deleted in its file system.
    Deleted,
}

/// The topmost mount at a mount point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountFacts {
    /// Which mount.
    pub id: MountId,
    /// The device of its superblock (of btrfs, not the one that `stat` shows).
    pub device: DeviceId,
    /// The kernel's number for the kind of file system (`statfs`), such as `0xef53` for ext2 to ext4.
    pub magic: u64,
    /// The name of the kind, such as `xfs`; known with `statmount` only.
    pub fs_type: Option<String>,
    /// What of the file system is mounted, as a path in it; known with `statmount` only.
    pub root: Option<String>,
    /// True when the mount or the file system refuses writes.
    pub read_only: bool,
}

/// One row of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountRow {
    /// Which mount; comparable with [`MountFacts::id`].
    pub id: MountId,
    /// The mount that it is mounted on.
    pub parent: MountId,
    /// The device of its superblock.
    pub device: DeviceId,
    /// What of the file system is mounted, as a path in it.
    pub root: PathBuf,
    /// Where, as this process sees it.
    pub mount_point: PathBuf,
    /// The name of the kind of file system.
    pub fs_type: String,
    /// What was mounted, such as `/dev/loop0`; none when the kernel does not say.
    pub source: Option<String>,
    /// True when the mount or the file system refuses writes.
    pub read_only: bool,
    /// The group of mounts beneath each of which appears what is mounted beneath one; 0 when it is in none.
    pub peer_group: u64,
    /// The group of mounts beneath which has to be mounted what is to appear beneath this one; 0 when there is none.
    pub master: u64,
}

impl MountRow {
    /// Whether it shows what was verified, as [`Present::shows`]; where roots are not known, by the file system alone.
    pub fn shows(&self, verified: &Present) -> bool {
        let Some(was) = &verified.mount else { return self.device == verified.device };
        let same = |root: &String| self.id == was.id || self.root.to_string_lossy() == root.as_str();
        self.device == was.device && was.root.as_ref().is_none_or(same)
    }
}

/// The mounts that `top` was mounted over, at the very same place.
pub fn beneath(table: &[MountRow], top: MountId) -> impl Iterator<Item = &MountRow> {
    let row = |id: MountId| table.iter().find(move |row| row.id == id);
    std::iter::successors(row(top), move |above| {
        row(above.parent).filter(|below| below.mount_point == above.mount_point && below.id != above.id)
    })
    .skip(1)
}

/// What became of the files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Given {
    /// How many were changed.
    pub changed: u64,
    /// How many could not be: they are on a server that does not let root, marked as immutable, or too deep.
    pub left: u64,
}

/// Why the kernel could not be asked or would not do it, by what the caller may do.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Run as root with `CAP_SYS_ADMIN`.
    #[error("this process may not mount: it needs root with CAP_SYS_ADMIN")]
    MayNotMount,
    /// The deadline passed, or a former call on this path still hangs. Whether it took effect is unknown: look
    /// again later.
    #[error("{}: the file system does not answer", path.display())]
    Hung {
        /// The path that was asked about.
        path: PathBuf,
    },
    /// Too many calls hang already; this one was not tried. Try again later.
    #[error("{}: not tried, too many path calls are under way", path.display())]
    Overloaded {
        /// The path that was to be asked about.
        path: PathBuf,
    },
    /// Something still uses the mount. Find what, or wait.
    #[error("{}: in use", path.display())]
    InUse {
        /// The mount point.
        path: PathBuf,
    },
    /// Not removed: it has content, and content is never deleted.
    #[error("{}: not empty", path.display())]
    NotEmpty {
        /// The directory or file.
        path: PathBuf,
    },
    /// Not removed: it is a mount point.
    #[error("{}: is a mount point", path.display())]
    IsMountPoint {
        /// The mount point.
        path: PathBuf,
    },
    /// What is there is not what was verified. Look again.
    #[error("{}: not what was verified before", path.display())]
    Changed {
        /// The path.
        path: PathBuf,
    },
    /// Something else is there: a mount of others, a directory with content, or the wrong kind of inode.
    #[error("{}: taken by something else", path.display())]
    Occupied {
        /// The path.
        path: PathBuf,
    },
    /// There is a symbolic link on the way, or the way leads out of the directory. Nothing was done.
    #[error("{}: refused, a symbolic link is on the way or it leads outside", path.display())]
    Outside {
        /// The path.
        path: PathBuf,
    },
    /// Nothing is there.
    #[error("{}: not found", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// The kernel refused for another reason.
    #[error("{action} {}", path.display())]
    Refused {
        /// What was tried.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}
