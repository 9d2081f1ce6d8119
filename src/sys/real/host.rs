//! Publications at paths that the operator allows, for systemd units, virtual machines and people.
//!
//! Others may write in those directories, so nothing is done by name that was checked by name: every step works
//! on a handle that was opened without following a link.
use crate::sys::kernel::{FileKind, KernelError, PathFacts, Present, beneath};
use crate::sys::path::HostPath;
use crate::sys::real::facts::{self, Asking};
use crate::sys::real::kernel::{look, remove, unmount};
use crate::sys::real::open::{Confined, failure, io_failure};
use crate::sys::real::{mounts, table};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

/// Attaches the clone at the path, making what is missing.
pub(crate) fn publish(
    at: &Confined,
    clone: &OwnedFd,
    verified: &Present,
    asking: Asking,
) -> Result<(), KernelError> {
    let path = &at.absolute;
    let fail = |errno| failure("publish at", path, errno);
    let occupied = || KernelError::Occupied { path: path.clone() };
    match look(at, asking)? {
        PathFacts::Present(seen) if same(&seen, verified) => return Ok(()),
        PathFacts::Present(seen) if seen.mount.is_some() => return Err(occupied()),
        PathFacts::Present(_) => {}
        PathFacts::Absent { .. } => make(at, verified.kind).map_err(fail)?,
    }
    let target = at.handle().map_err(fail)?;
    let seen = facts::present(&target, asking).map_err(fail)?;
    let fits = match (verified.kind, seen.kind) {
        (FileKind::Directory, FileKind::Directory) => is_empty(at).map_err(fail)?,
        (FileKind::Block(_), FileKind::File) => rustix::fs::fstat(&target).map_err(fail)?.st_size == 0,
        (FileKind::Directory | FileKind::Block(_) | FileKind::File | FileKind::Other, _) => false,
    };
    if !fits || seen.mount.is_some() {
        return Err(occupied());
    }
    mounts::attach(clone, &target).map_err(fail)
}

/// Unmounts the path if it shows what was published, and removes what was made for it.
pub(crate) fn unpublish(
    at: &HostPath,
    verified: &Present,
    made: usize,
    asking: Asking,
) -> Result<(), KernelError> {
    let confined = match Confined::open(at.allowed(), at.beneath().to_owned()) {
        Err(KernelError::NotFound { .. }) => return Ok(()),
        other => other?,
    };
    match look(&confined, asking)? {
        PathFacts::Present(seen) if same(&seen, verified) => unmount(&confined)?,
        PathFacts::Present(Present { mount: Some(top), .. }) => {
            let failed = |error| io_failure("read the mount table for", &confined.absolute, error);
            let table = table::read(asking).map_err(failed)?;
            if beneath(&table, top.id).any(|row| row.shows(verified)) {
                return Err(KernelError::Changed { path: confined.absolute });
            }
        }
        PathFacts::Present(_) | PathFacts::Absent { .. } => {}
    }
    let mut beneath = at.beneath();
    for _ in 0..made {
        let confined = Confined::open(at.allowed(), beneath.to_owned())?;
        match remove(&confined, asking) {
            Ok(()) | Err(KernelError::NotFound { .. }) => {}
            // Somebody uses it by now: theirs.
            Err(KernelError::NotEmpty { .. } | KernelError::IsMountPoint { .. }) => break,
            Err(other) => return Err(other),
        }
        match beneath.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => beneath = parent,
            Some(_) | None => break,
        }
    }
    Ok(())
}

/// Whether this is a mount of what was verified; the mount's own id differs for each clone.
fn same(seen: &Present, verified: &Present) -> bool {
    seen.mount.is_some() && seen.shows(verified)
}

fn make(at: &Confined, kind: FileKind) -> Result<(), Errno> {
    let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
    if kind == FileKind::Directory {
        return at.make_directories(mode, 0);
    }
    at.make_directories(mode, 1)?;
    let (parent, name) = at.parent()?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&parent, name, flags, Mode::RUSR | Mode::WUSR).map(drop)
}

fn is_empty(at: &Confined) -> Result<bool, Errno> {
    for entry in rustix::fs::Dir::new(at.directory()?)? {
        let entry = entry?;
        let name = Path::new(entry.file_name().to_str().unwrap_or("?")).as_os_str().to_owned();
        if name != "." && name != ".." {
            return Ok(false);
        }
    }
    Ok(true)
}
