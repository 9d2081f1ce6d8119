//! [`RealBinds`]: bind mounts for the built-in drivers.
use crate::sys::kernel::{Access, Binds, FileKind, KernelError, PathFacts};
use crate::sys::real::facts::{self, Asking};
use crate::sys::real::kernel::{look, unmount};
use crate::sys::real::mounts;
use crate::sys::real::open::{Confined, failure};
use crate::sys::real::pool::{Pool, Unanswered};
use async_trait::async_trait;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Bind mounts at paths that an orchestrator gives. Those are trusted on the way (they may pass through links of
/// the machine, such as `/var/run`), but their last component is never followed.
#[derive(Debug, Clone)]
pub struct RealBinds {
    asking: Asking,
    pool: Pool,
}

impl RealBinds {
    /// Calls run on this pool.
    pub fn new(pool: Pool) -> Self {
        Self { asking: facts::probe(), pool }
    }

    async fn ask<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(&Path, Asking) -> Result<T, KernelError> + Send + 'static,
    ) -> Result<T, KernelError> {
        let (owned, asking): (PathBuf, _) = (path.to_owned(), self.asking);
        match self.pool.run(path, move || work(&owned, asking)).await {
            Ok(answer) => answer,
            Err(Unanswered::Hung) => Err(KernelError::Hung { path: path.to_owned() }),
            Err(Unanswered::Overloaded) => Err(KernelError::Overloaded { path: path.to_owned() }),
        }
    }
}

#[async_trait]
impl Binds for RealBinds {
    async fn bind(&self, source: &Path, target: &Path, access: Access) -> Result<(), KernelError> {
        let source = source.to_owned();
        self.ask(target, move |target, asking| bind(&source, target, access, asking)).await
    }

    async fn unbind(&self, target: &Path) -> Result<bool, KernelError> {
        self.ask(target, |target, asking| {
            let confined = match confined(target) {
                Err(KernelError::NotFound { .. }) => return Ok(false),
                other => other?,
            };
            if look(&confined, asking)?.mount().is_none() {
                return Ok(false);
            }
            unmount(&confined).map(|()| true)
        })
        .await
    }

    async fn path_facts(&self, path: &Path) -> Result<PathFacts, KernelError> {
        self.ask(path, |path, asking| match confined(path) {
            Ok(confined) => look(&confined, asking),
            Err(KernelError::NotFound { .. }) => Ok(PathFacts::Absent { missing: missing(path) }),
            Err(other) => Err(other),
        })
        .await
    }
}

fn bind(source: &Path, target: &Path, access: Access, asking: Asking) -> Result<(), KernelError> {
    let from = handle(source)?;
    let onto = handle(target)?;
    let kind = |fd: &OwnedFd, path| facts::present(fd, asking).map_err(|e| failure("look at", path, e));
    let (what, place) = (kind(&from, source)?.kind, kind(&onto, target)?.kind);
    let fits = match (what, place) {
        (FileKind::Directory, FileKind::Directory)
        | (FileKind::File | FileKind::Block(_), FileKind::File | FileKind::Block(_)) => true,
        (FileKind::Directory | FileKind::File | FileKind::Block(_) | FileKind::Other, _) => false,
    };
    if !fits {
        return Err(KernelError::Occupied { path: target.to_owned() });
    }
    let fail = |errno| match errno {
        Errno::PERM => KernelError::MayNotMount,
        other => failure("bind at", target, other),
    };
    let clone = mounts::clone(&from).map_err(fail)?;
    if access == Access::ReadOnly {
        mounts::set_access(&clone, access).map_err(fail)?;
    }
    mounts::attach(&clone, &onto).map_err(fail)
}

fn handle(path: &Path) -> Result<OwnedFd, KernelError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
        .map_err(|errno| failure("open", path, errno))
}

/// The path with its directory opened, to look at the last component alone.
fn confined(path: &Path) -> Result<Confined, KernelError> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Confined::open(parent, name.into()),
        (None | Some(_), _) => Err(failure("open", path, Errno::INVAL)),
    }
}

fn missing(path: &Path) -> usize {
    path.ancestors().take_while(|ancestor| std::fs::symlink_metadata(ancestor).is_err()).count()
}
