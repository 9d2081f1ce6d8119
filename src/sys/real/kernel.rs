//! [`RealKernel`]: the [`Kernel`] of this machine.
use crate::sys::kernel::{
    Access, Checked, FileKind, Given, Kernel, KernelError, KernelFacts, MountId, MountRow, PathFacts,
    Prepared, Present, Removed,
};
use crate::sys::path::{HostPath, Place, SubPath, TreePath};
use crate::sys::real::facts::{self, Asking};
use crate::sys::real::open::{self, Confined, failure, io_failure};
use crate::sys::real::pool::{Pool, Unanswered};
use crate::sys::real::{host, mounts, ownership, table, tree, vital};
use async_trait::async_trait;
use futures::stream::BoxStream;
use rustix::fs::{AtFlags, FileType, Mode};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Directories of the tree are root's alone.
const PRIVATE: Mode = Mode::RWXU;
/// Threads for looks at mounts that may be dead, and how long one may take: what lives answers at once.
const CHECKS: (usize, Duration) = (16, Duration::from_secs(5));

/// Mounts and paths of this machine, beneath one tree.
#[derive(Debug, Clone)]
pub struct RealKernel {
    tree: PathBuf,
    asking: Asking,
    pool: Pool,
    /// For looks at mounts that may be dead.
    checks: Pool,
}

impl RealKernel {
    /// The tree is `volumes` in the data directory, which must exist; links on the way to it are resolved now.
    pub fn open(data_directory: &Path, pool: Pool) -> Result<Self, KernelError> {
        let data = std::fs::canonicalize(data_directory)
            .map_err(|error| io_failure("open the data directory", data_directory, error))?;
        let checks = Pool::new(CHECKS.0, CHECKS.1);
        Ok(Self { tree: data.join("volumes"), asking: facts::probe(), pool, checks })
    }

    /// As on a kernel without `statmount`, which every caller must also do with.
    #[must_use]
    pub fn without_statmount(mut self) -> Self {
        self.asking = Asking::Statfs;
        self
    }

    /// The absolute path of the tree.
    pub fn tree(&self) -> &Path {
        &self.tree
    }

    fn confined(&self, place: &Place) -> Result<Confined, KernelError> {
        match place {
            Place::Tree(path) => Confined::open(&self.tree, path.relative()),
            Place::Host(path) => Confined::open(path.allowed(), path.beneath().to_owned()),
        }
    }

    /// Runs `work` on the pool, as a call about `path`.
    async fn ask<T: Send + 'static>(
        &self,
        path: PathBuf,
        work: impl FnOnce(&Self) -> Result<T, KernelError> + Send + 'static,
    ) -> Result<T, KernelError> {
        self.ask_on(&self.pool, path, work).await
    }

    async fn ask_on<T: Send + 'static>(
        &self,
        pool: &Pool,
        path: PathBuf,
        work: impl FnOnce(&Self) -> Result<T, KernelError> + Send + 'static,
    ) -> Result<T, KernelError> {
        let this = self.clone();
        match pool.run(&path, move || work(&this)).await {
            Ok(answer) => answer,
            Err(Unanswered::Hung) => Err(KernelError::Hung { path }),
            Err(Unanswered::Overloaded) => Err(KernelError::Overloaded { path }),
        }
    }
}

#[async_trait]
impl Kernel for RealKernel {
    async fn facts(&self) -> Result<KernelFacts, KernelError> {
        self.ask("/proc".into(), |this| {
            Ok(KernelFacts {
                boot_id: super::boot_id()
                    .map_err(|e| io_failure("read the boot id", Path::new("/proc"), e))?,
                release: rustix::system::uname().release().to_string_lossy().into_owned(),
                may_mount: tree::may_mount(),
                statmount: this.asking == Asking::Statmount,
            })
        })
        .await
    }

    async fn prepare_tree(&self) -> Result<Prepared, KernelError> {
        self.ask(self.tree.clone(), |this| tree::prepare(&this.tree, this.asking)).await
    }

    async fn undo_tree(&self) -> Result<(), KernelError> {
        self.ask(self.tree.clone(), |this| tree::undo(&this.tree, this.asking)).await
    }

    fn absolute(&self, place: &Place) -> PathBuf {
        match place {
            Place::Tree(path) => path.components().iter().fold(self.tree.clone(), |at, part| at.join(part)),
            Place::Host(path) => path.absolute(),
        }
    }

    async fn make_dir(&self, path: &TreePath) -> Result<(), KernelError> {
        let place = Place::Tree(path.clone());
        let absolute = self.absolute(&place);
        self.ask(absolute, move |this| {
            let confined = this.confined(&place)?;
            effect!("make directory");
            let made = confined.make_directories(PRIVATE, 0);
            effect!("make directory: done");
            made.map_err(|errno| failure("make the directory", &confined.absolute, errno))
        })
        .await
    }

    async fn remove(&self, path: &TreePath) -> Result<Removed, KernelError> {
        let place = Place::Tree(path.clone());
        self.ask(self.absolute(&place), move |this| {
            effect!("remove directory");
            let removed = remove(&this.confined(&place)?, this.asking);
            effect!("remove directory: done");
            match removed {
                Err(KernelError::NotFound { .. }) => Ok(Removed::Absent),
                Err(error) => Err(error),
                Ok(()) => Ok(Removed::Removed),
            }
        })
        .await
    }

    async fn list(&self, path: &TreePath) -> Result<Vec<String>, KernelError> {
        let path = path.clone();
        self.ask(self.absolute(&Place::Tree(path.clone())), move |this| {
            let confined = this.confined(&Place::Tree(path.clone()))?;
            match names(&confined, &path) {
                Ok(names) => Ok(names),
                Err(Errno::NOENT) => Ok(Vec::new()),
                Err(errno) => Err(failure("list", &confined.absolute, errno)),
            }
        })
        .await
    }

    async fn mount_facts(&self, place: &Place) -> Result<PathFacts, KernelError> {
        let place = place.clone();
        self.ask(self.absolute(&place), move |this| look(&this.confined(&place)?, this.asking)).await
    }

    async fn mount_table(&self) -> Result<Vec<MountRow>, KernelError> {
        let path = Path::new("/proc/self/mountinfo");
        self.ask(path.to_owned(), move |this| {
            table::read(this.asking).map_err(|error| io_failure("read the mount table", path, error))
        })
        .await
    }

    async fn check_mount(&self, place: &Place) -> Result<Checked, KernelError> {
        let place = place.clone();
        let path = self.absolute(&place);
        self.ask_on(&self.checks, path, move |this| vital::check(&this.confined(&place)?, this.asking)).await
    }

    async fn mounts_among(&self, ids: &HashSet<MountId>) -> Result<Option<HashSet<MountId>>, KernelError> {
        let (path, ids) = (Path::new(vital::TABLE), ids.clone());
        self.ask(path.to_owned(), move |this| {
            table::among(this.asking, ids).map_err(|error| io_failure("ask for mounts", path, error))
        })
        .await
    }

    async fn mounts_since(&self, id: MountId) -> Result<Option<Vec<MountRow>>, KernelError> {
        let path = Path::new(vital::TABLE);
        self.ask(path.to_owned(), move |this| {
            table::since(this.asking, id).map_err(|error| io_failure("list the mounts", path, error))
        })
        .await
    }

    async fn mount_changes(&self) -> Result<BoxStream<'static, ()>, KernelError> {
        let path = Path::new(vital::TABLE);
        let refused = |error| io_failure("watch the mount table", path, error);
        // On a thread of the pool, whose mount namespace is this process's.
        let table = self.ask(path.to_owned(), move |_| std::fs::File::open(path).map_err(refused)).await?;
        vital::changes(table.into()).map_err(refused)
    }

    async fn unmount(&self, place: &Place, expected: MountId) -> Result<(), KernelError> {
        let place = place.clone();
        self.ask(self.absolute(&place), move |this| {
            let confined = this.confined(&place)?;
            match look(&confined, this.asking)?.mount() {
                None => Ok(()),
                Some(mount) if mount.id != expected => {
                    Err(KernelError::Changed { path: confined.absolute.clone() })
                }
                Some(_) => {
                    effect!("unmount");
                    let unmounted = unmount(&confined);
                    effect!("unmount: done");
                    unmounted
                }
            }
        })
        .await
    }

    async fn clone_mount(&self, path: &TreePath, verified: &Present) -> Result<OwnedFd, KernelError> {
        let (place, verified) = (Place::Tree(path.clone()), verified.clone());
        self.ask(self.absolute(&place), move |this| {
            clone_verified(&this.confined(&place)?, &verified, this.asking)
        })
        .await
    }

    async fn clone_directory(
        &self,
        path: &TreePath,
        verified: &Present,
        within: &SubPath,
    ) -> Result<OwnedFd, KernelError> {
        let (place, verified, within) = (Place::Tree(path.clone()), verified.clone(), within.clone());
        self.ask(self.absolute(&place), move |this| {
            let confined = this.confined(&place)?;
            let volume = verified_handle(&confined, &verified, this.asking)?;
            let path = confined.absolute.join(within.parts().join("/"));
            let directory = open::within(volume, within.parts(), within.makes());
            clone_of(&directory.map_err(|errno| failure("open", &path, errno))?, &path)
        })
        .await
    }

    async fn give_to_group(
        &self,
        path: &TreePath,
        verified: &Present,
        group: u32,
    ) -> Result<Given, KernelError> {
        let (place, verified) = (Place::Tree(path.clone()), verified.clone());
        let absolute = self.absolute(&place);
        let root = self
            .ask(absolute.clone(), move |this| {
                verified_handle(&this.confined(&place)?, &verified, this.asking)
            })
            .await?;
        let given = ownership::give_aside(root, group).await;
        given.map_err(|errno| failure("give a group the files of", &absolute, errno))
    }

    async fn publish_at_host(
        &self,
        from: &TreePath,
        verified: &Present,
        at: &HostPath,
        access: Access,
    ) -> Result<(), KernelError> {
        let (from, at) = (Place::Tree(from.clone()), Place::Host(at.clone()));
        let verified = verified.clone();
        self.ask(self.absolute(&at), move |this| {
            let clone = clone_verified(&this.confined(&from)?, &verified, this.asking)?;
            mounts::restrict(&clone, verified.kind, access)
                .map_err(|errno| failure("restrict the clone of", &this.absolute(&from), errno))?;
            effect!("publish at host");
            let published = host::publish(&this.confined(&at)?, &clone, &verified, this.asking);
            effect!("publish at host: done");
            published
        })
        .await
    }

    async fn unpublish_at_host(
        &self,
        at: &HostPath,
        verified: &Present,
        made: usize,
    ) -> Result<(), KernelError> {
        let (place, at, verified) = (Place::Host(at.clone()), at.clone(), verified.clone());
        self.ask(self.absolute(&place), move |this| {
            effect!("unpublish at host");
            let unpublished = host::unpublish(&at, &verified, made, this.asking);
            effect!("unpublish at host: done");
            unpublished
        })
        .await
    }
}

/// What is at a path.
pub(crate) fn look(confined: &Confined, asking: Asking) -> Result<PathFacts, KernelError> {
    let ask = |errno| failure("look at", &confined.absolute, errno);
    match confined.handle() {
        Ok(handle) => Ok(PathFacts::Present(facts::present(&handle, asking).map_err(ask)?)),
        Err(Errno::NOENT) => Ok(PathFacts::Absent { missing: confined.missing().map_err(ask)?.max(1) }),
        Err(errno) => Err(ask(errno)),
    }
}

/// Unmounts the topmost mount at a path.
pub(crate) fn unmount(confined: &Confined) -> Result<(), KernelError> {
    let path = &confined.absolute;
    let (parent, name) = confined.parent().map_err(|errno| failure("unmount", path, errno))?;
    match mounts::unmount(&parent, name) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(KernelError::InUse { path: path.clone() }),
        Err(Errno::PERM) => Err(KernelError::MayNotMount),
        Err(errno) => Err(failure("unmount", path, errno)),
    }
}

/// Removes one directory, empty file or device node.
pub(crate) fn remove(confined: &Confined, asking: Asking) -> Result<(), KernelError> {
    let path = &confined.absolute;
    let refuse = |errno| match errno {
        Errno::BUSY => KernelError::IsMountPoint { path: path.clone() },
        Errno::NOTEMPTY | Errno::EXIST => KernelError::NotEmpty { path: path.clone() },
        other => failure("remove", path, other),
    };
    let handle = confined.handle().map_err(refuse)?;
    let seen = facts::present(&handle, asking).map_err(refuse)?;
    if seen.mount.is_some() {
        return Err(KernelError::IsMountPoint { path: path.clone() });
    }
    let flags = match seen.kind {
        FileKind::Directory => AtFlags::REMOVEDIR,
        FileKind::Block(_) => AtFlags::empty(),
        FileKind::File if rustix::fs::fstat(&handle).map_err(refuse)?.st_size == 0 => AtFlags::empty(),
        FileKind::File => return Err(KernelError::NotEmpty { path: path.clone() }),
        FileKind::Other => return Err(KernelError::Occupied { path: path.clone() }),
    };
    let (parent, name) = confined.parent().map_err(refuse)?;
    // The kernel itself refuses a mount point here (EBUSY) and a directory with content.
    rustix::fs::unlinkat(&parent, name, flags).map_err(refuse)
}

/// A clone of what is there, if that is what was verified.
fn clone_verified(confined: &Confined, verified: &Present, asking: Asking) -> Result<OwnedFd, KernelError> {
    clone_of(&verified_handle(confined, verified, asking)?, &confined.absolute)
}

fn verified_handle(confined: &Confined, verified: &Present, asking: Asking) -> Result<OwnedFd, KernelError> {
    let path = &confined.absolute;
    let handle = confined.handle().map_err(|errno| failure("open", path, errno))?;
    let seen = facts::present(&handle, asking).map_err(|errno| failure("look at", path, errno))?;
    // A directory that is no mount point is what lies beneath a volume that is not mounted.
    if seen != *verified || (seen.kind == FileKind::Directory && seen.mount.is_none()) {
        return Err(KernelError::Changed { path: path.clone() });
    }
    Ok(handle)
}

fn clone_of(handle: &OwnedFd, path: &Path) -> Result<OwnedFd, KernelError> {
    mounts::clone(handle).map_err(|errno| match errno {
        Errno::PERM => KernelError::MayNotMount,
        other => failure("clone the mount", path, other),
    })
}

fn names(confined: &Confined, path: &TreePath) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(confined.directory()?)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if entry.file_type() != FileType::Symlink && path.join(name.as_ref()).is_ok() {
            names.push(name.into_owned());
        }
    }
    Ok(names)
}
