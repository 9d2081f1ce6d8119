//! The files of a volume are given to a group, so that whoever is in it may use them.
//!
//! From the leaves to the root, which comes last: a root that has the group says that everything beneath it was given, however
//! often the walk was broken off before. Nothing on the way is followed: no link, and no mount.
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RawMode, ResolveFlags, Stat};
use rustix::io::Errno;

/// What the group may do with files and directories; what is made in a directory later has its group.
const FILES: RawMode = 0o660;
const DIRECTORIES: RawMode = 0o2770;
/// Each is open while what is in it is walked.
const DEEPEST: usize = 4096;

const ONLY_IN_IT: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// The same on a thread of its own, which ends soon after this was dropped.
pub(crate) async fn give_aside(root: OwnedFd, group: u32) -> Result<u64, Errno> {
    let stop = Dropped::default();
    let (seen, (answer, answered)) = (Arc::clone(&stop.0), tokio::sync::oneshot::channel());
    let thread = std::thread::Builder::new().name("group".to_owned());
    // Whoever asked may have gone.
    let begun = thread.spawn(move || answer.send(give(&root, group, &seen)).unwrap_or(()));
    begun.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    answered.await.unwrap_or(Err(Errno::CANCELED))
}

/// Says that nobody waits any more.
#[derive(Default)]
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gives everything in a directory to the group, unless the directory itself has it. Returns how many things were changed.
/// [`Errno::CANCELED`] once it is to stop, [`Errno::NAMETOOLONG`] where it is deeper than can be walked.
pub(crate) fn give(root: &OwnedFd, group: u32, stop: &AtomicBool) -> Result<u64, Errno> {
    let seen = rustix::fs::fstat(root)?;
    if seen.st_gid == group && Mode::from_raw_mode(seen.st_mode).contains(Mode::from_raw_mode(DIRECTORIES)) {
        return Ok(0);
    }
    let mut changed = 0;
    let mut way = vec![opened(root, Path::new("."))?];
    while let Some((directory, entries)) = way.last_mut() {
        if stop.load(Ordering::Relaxed) {
            return Err(Errno::CANCELED);
        }
        let Some(entry) = entries.next() else {
            let Some((directory, _)) = way.pop() else { break };
            changed += u64::from(give_one(&directory, group)?);
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        let handle = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match rustix::fs::openat2(&*directory, name, handle, Mode::empty(), ONLY_IN_IT) {
            Ok(found) => found,
            // It went away, or something else is mounted there.
            Err(Errno::NOENT | Errno::XDEV) => continue,
            Err(errno) => return Err(errno),
        };
        if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) == FileType::Directory {
            if way.len() == DEEPEST {
                return Err(Errno::NAMETOOLONG);
            }
            way.push(opened(&found, Path::new("."))?);
        } else {
            changed += u64::from(give_one(&found, group)?);
        }
    }
    Ok(changed)
}

/// A directory, and what is in it.
fn opened(at: &OwnedFd, path: &Path) -> Result<(OwnedFd, Dir), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(at, path, flags, Mode::empty())?;
    let entries = Dir::read_from(&directory)?;
    Ok((directory, entries))
}

/// Whether anything had to be changed.
fn give_one(handle: &OwnedFd, group: u32) -> Result<bool, Errno> {
    let seen = rustix::fs::fstat(handle)?;
    let kind = FileType::from_raw_mode(seen.st_mode);
    let foreign = seen.st_gid != group;
    if foreign {
        let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(handle, "", None, Some(Gid::from_raw(group)), flags)?;
    }
    // A link has no mode of its own.
    if kind == FileType::Symlink {
        return Ok(foreign);
    }
    // The change of the group may have taken bits away.
    let now = if foreign { rustix::fs::fstat(handle)? } else { seen };
    let mode = wanted(&now, kind);
    let less = mode != Mode::from_raw_mode(now.st_mode);
    if less {
        // The handle need not be one for reading.
        rustix::fs::chmodat(CWD, format!("/proc/self/fd/{}", handle.as_raw_fd()), mode, AtFlags::empty())?;
    }
    Ok(foreign || less)
}

fn wanted(seen: &Stat, kind: FileType) -> Mode {
    let more = if kind == FileType::Directory { DIRECTORIES } else { FILES };
    Mode::from_raw_mode(seen.st_mode | more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    const GROUP: u32 = 54_321;

    fn walk(root: &Path) -> Result<u64, Errno> {
        give(&fs::File::open(root).unwrap().into(), GROUP, &AtomicBool::new(false))
    }

    fn seen(path: &Path) -> (u32, u32) {
        let found = fs::symlink_metadata(path).unwrap();
        (found.gid(), found.mode() & 0o7777)
    }

    #[test]
    fn everything_is_given_and_nothing_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let (root, outside) = (place.path().join("v"), place.path().join("outside"));
        fs::create_dir_all(root.join("a/b")).unwrap();
        for (path, mode) in [("a/b/private", 0o600), ("a/tool", 0o4755), ("read", 0o444)] {
            fs::write(root.join(path), "").unwrap();
            fs::set_permissions(root.join(path), Permissions::from_mode(mode)).unwrap();
        }
        fs::write(&outside, "").unwrap();
        fs::set_permissions(&outside, Permissions::from_mode(0o600)).unwrap();
        symlink(&outside, root.join("link")).unwrap();
        symlink(place.path(), root.join("a/up")).unwrap();
        let before = seen(&outside);
        assert_eq!(walk(&root), Ok(8));
        for (path, mode) in [("a/b/private", 0o660), ("read", 0o664)] {
            assert_eq!(seen(&root.join(path)), (GROUP, mode), "{path}");
        }
        for path in ["", "a", "a/b"] {
            let (group, mode) = seen(&root.join(path));
            assert_eq!((group, mode & DIRECTORIES), (GROUP, DIRECTORIES), "{path}");
        }
        // Nobody becomes somebody else by it.
        assert_eq!(seen(&root.join("a/tool")), (GROUP, 0o775));
        assert_eq!(seen(&root.join("link")).0, GROUP);
        assert_eq!(seen(&outside), before);
        assert_ne!(seen(place.path()).0, GROUP);
        // What has it is not walked again, whatever is in it.
        fs::write(root.join("new"), "").unwrap();
        fs::set_permissions(root.join("new"), Permissions::from_mode(0o600)).unwrap();
        assert_eq!(walk(&root), Ok(0));
        assert_eq!(seen(&root.join("new")), (GROUP, 0o600), "its group comes from its directory");
    }

    #[test]
    fn a_walk_that_was_broken_off_is_made_again() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("a")).unwrap();
        fs::write(place.path().join("a/file"), "").unwrap();
        let root = fs::File::open(place.path()).unwrap().into();
        assert_eq!(give(&root, GROUP, &AtomicBool::new(true)), Err(Errno::CANCELED));
        // Only what is in it was given.
        std::os::unix::fs::chown(place.path().join("a"), None, Some(GROUP)).unwrap();
        assert!(walk(place.path()).unwrap() > 0);
        assert_eq!(seen(&place.path().join("a/file")).0, GROUP);
        assert_eq!(walk(place.path()), Ok(0));
    }
}
