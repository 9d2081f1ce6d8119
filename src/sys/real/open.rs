//! Opening paths so that nothing on the way can lead elsewhere.
use crate::sys::kernel::KernelError;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, StatxFlags, Uid};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Nothing on the way may be a symbolic or magic link, or lead above the start.
const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
const HANDLE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
/// Without `NOFOLLOW`: a link in the place of a directory is then told from a file there.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC).union(OFlags::DIRECTORY);

/// What the kernel said, as what the caller may do.
pub(crate) fn failure(action: &'static str, path: &Path, errno: Errno) -> KernelError {
    let path = path.to_owned();
    match errno {
        Errno::NOENT => KernelError::NotFound { path },
        Errno::LOOP | Errno::XDEV => KernelError::Outside { path },
        other => KernelError::Refused { action, path, source: other.into() },
    }
}

/// The same for what `std` says.
pub(crate) fn io_failure(action: &'static str, path: &Path, error: std::io::Error) -> KernelError {
    match Errno::from_io_error(&error) {
        Some(errno) => failure(action, path, errno),
        None => KernelError::Refused { action, path: path.to_owned(), source: error },
    }
}

/// A path split into the directory to start from and the rest, which is walked without following any link.
#[derive(Debug)]
pub(crate) struct Confined {
    start: OwnedFd,
    beneath: PathBuf,
    /// For messages.
    pub(crate) absolute: PathBuf,
}

impl Confined {
    /// `start` is trusted: it is a path of the daemon or of the operator. `beneath` is not.
    pub(crate) fn open(start: &Path, beneath: PathBuf) -> Result<Self, KernelError> {
        let fd = rustix::fs::openat2(CWD, start, DIRECTORY, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
            .map_err(|errno| failure("open", start, errno))?;
        Ok(Self { start: fd, absolute: start.join(&beneath), beneath })
    }

    /// A handle on what is there, a symbolic link itself included. Follows mounts, opens no device.
    pub(crate) fn handle(&self) -> Result<OwnedFd, Errno> {
        openat2(&self.start, &self.beneath, HANDLE, Mode::empty())
    }

    /// The directory that holds it, and its name there.
    pub(crate) fn parent(&self) -> Result<(OwnedFd, &Path), Errno> {
        let name = self.beneath.file_name().map(Path::new).ok_or(Errno::INVAL)?;
        let parent = match self.beneath.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        Ok((openat2(&self.start, parent, DIRECTORY, Mode::empty())?, name))
    }

    /// The directory itself, for reading its names.
    pub(crate) fn directory(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.start, &self.beneath, flags, Mode::empty())
    }

    /// How many components at the end are missing; 0 when it is there.
    pub(crate) fn missing(&self) -> Result<usize, Errno> {
        let mut beneath = self.beneath.as_path();
        let mut missing = 0;
        while !beneath.as_os_str().is_empty() {
            match openat2(&self.start, beneath, HANDLE, Mode::empty()) {
                Ok(_) => break,
                Err(Errno::NOENT) => missing += 1,
                Err(errno) => return Err(errno),
            }
            beneath = beneath.parent().unwrap_or(Path::new(""));
        }
        Ok(missing)
    }

    /// Makes the directories (of this mode) that are missing on the way, all but the last `leave` components.
    pub(crate) fn make_directories(&self, mode: Mode, leave: usize) -> Result<(), Errno> {
        let components: Vec<_> = self.beneath.components().collect();
        let wanted = components.len().saturating_sub(leave);
        let mut at = PathBuf::new();
        for component in &components[..wanted] {
            let parent = if at.as_os_str().is_empty() { Path::new(".") } else { &at };
            let parent = openat2(&self.start, parent, DIRECTORY, Mode::empty())?;
            match rustix::fs::mkdirat(&parent, component.as_os_str(), mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            at.push(component);
        }
        // What was there already must be a directory.
        let last = if at.as_os_str().is_empty() { Path::new(".") } else { &at };
        openat2(&self.start, last, DIRECTORY, Mode::empty()).map(drop)
    }
}

/// A directory within a volume, reached from a handle on the volume's root part by part. Each part that is missing is made,
/// if that is asked for, with the owner, the group and the mode of the directory that it is made in: who may use the volume may
/// use it.
pub(crate) fn within(volume: OwnedFd, parts: &[String], make: bool) -> Result<OwnedFd, Errno> {
    let mut at = volume;
    for part in parts {
        let made = make && make_within(&at, part)?;
        let flags = CONFINED.union(ResolveFlags::NO_XDEV);
        if made {
            let read = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
            like(&rustix::fs::openat2(&at, part.as_str(), read, Mode::empty(), flags)?, &at)?;
        }
        at = rustix::fs::openat2(&at, part.as_str(), DIRECTORY, Mode::empty(), flags)?;
    }
    Ok(at)
}

/// Whether it was not there.
fn make_within(at: &OwnedFd, part: &str) -> Result<bool, Errno> {
    match rustix::fs::mkdirat(at, part, Mode::from_raw_mode(0o700)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Gives a directory the owner, the group and the mode of another one. A file system that knows no owners is left as it is.
fn like(new: &OwnedFd, old: &OwnedFd) -> Result<(), Errno> {
    let old = statx(old, StatxFlags::UID | StatxFlags::GID | StatxFlags::MODE)?;
    let (owner, group) = (Some(Uid::from_raw(old.stx_uid)), Some(Gid::from_raw(old.stx_gid)));
    for changed in [
        rustix::fs::fchown(new, owner, group),
        rustix::fs::fchmod(new, Mode::from_raw_mode(u32::from(old.stx_mode) & 0o7777)),
    ] {
        match changed {
            Ok(()) | Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Opens beneath `start` without following any link. Tries again when a rename elsewhere disturbed the walk.
pub(crate) fn openat2(start: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    for _ in 0..8 {
        match rustix::fs::openat2(start.as_fd(), path, flags, mode, CONFINED) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

/// Has the file system itself say that what the handle refers to is there, whatever was kept of it.
pub(crate) fn ask_anew(fd: impl AsFd) -> Result<(), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(fd, c"", flags, StatxFlags::BASIC_STATS).map(drop)
}

/// What `statx` says of a handle, without asking a remote file system again.
pub(crate) fn statx(fd: impl AsFd, wanted: StatxFlags) -> Result<rustix::fs::Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(fd, c"", flags, wanted)
}
