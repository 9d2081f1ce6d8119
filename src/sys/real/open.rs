//! Opening paths so that nothing on the way can lead elsewhere.
use crate::sys::kernel::KernelError;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, ResolveFlags, StatxFlags, Uid};
use rustix::io::Errno;
use std::hash::{DefaultHasher, Hash, Hasher};
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
        at = match open_within(&at, part, DIRECTORY) {
            Err(Errno::NOENT) if make => {
                make_within(&at, part)?;
                open_within(&at, part, DIRECTORY)?
            }
            opened => opened?,
        };
    }
    Ok(at)
}

fn open_within(at: &OwnedFd, part: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(at, part, flags, Mode::empty(), CONFINED.union(ResolveFlags::NO_XDEV))
}

/// Makes a directory whole: were it at its place before it is as it shall be, a crash would leave it so for good.
fn make_within(at: &OwnedFd, part: &str) -> Result<(), Errno> {
    let draft = draft_of(part);
    // One that a crash left, or that another call is making: whichever of them is first has the place.
    match rustix::fs::mkdirat(at, &*draft, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let read = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
    match open_within(at, &draft, read) {
        Ok(new) => like(&new, at)?,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    let put = match rustix::fs::renameat_with(at, &*draft, at, part, RenameFlags::NOREPLACE) {
        // NFS has no such rename. What came meanwhile is replaced while it is an empty directory, and otherwise stays.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(at, &*draft, at, part),
        put => put,
    };
    match put {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {
            match rustix::fs::unlinkat(at, &*draft, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(errno) => Err(errno),
            }
        }
        Err(errno) => Err(errno),
    }
}

/// What a directory is called while it is made: the same for each attempt, and of a length that any file system takes.
fn draft_of(part: &str) -> String {
    let mut hasher = DefaultHasher::new();
    part.hash(&mut hasher);
    format!(".wharfline-{:016x}", hasher.finish())
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A crash before it is whole leaves nothing at its place, and the next attempt makes it whole.
    #[test]
    fn a_directory_in_a_volume_is_at_its_place_when_it_is_as_it_shall_be() {
        let volume = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        std::fs::set_permissions(volume.path(), std::fs::Permissions::from_mode(0o2775)).unwrap();
        let open = || rustix::fs::open(volume.path(), DIRECTORY, Mode::empty()).unwrap();
        let names = |at: &Path| {
            let mut names: Vec<_> = at.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let long = "x".repeat(255);
        for part in ["app", &long] {
            let left = volume.path().join(draft_of(part));
            std::fs::create_dir(&left).unwrap();
            std::fs::set_permissions(&left, std::fs::Permissions::from_mode(0o700)).unwrap();
            within(open(), &[part.to_owned(), "data".to_owned()], true).unwrap();
            assert_eq!(
                (mode(&volume.path().join(part)), names(&volume.path().join(part))),
                (0o2775, vec!["data".into()])
            );
            assert_eq!(mode(&volume.path().join(part).join("data")), 0o2775);
        }
        assert_eq!(names(volume.path()), ["app", &long], "something is left");
        // Who came first has the place.
        std::fs::set_permissions(volume.path().join("app"), std::fs::Permissions::from_mode(0o711)).unwrap();
        make_within(&open(), "app").unwrap();
        assert_eq!((mode(&volume.path().join("app")), names(volume.path()).len()), (0o711, 2));
        assert_eq!(within(open(), &["none".to_owned()], false).unwrap_err(), Errno::NOENT);
    }
}
