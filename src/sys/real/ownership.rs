//! The files of a volume are given to a group, so that whoever is in it may use them.
//!
//! From the leaves to the root, which comes last: a root that has the group and the setgid bit says that everything beneath it
//! was given, and it loses that bit before anything is. However often the walk was broken off, and for whatever group, it is made
//! again. Nothing on the way is followed: no link, and no mount. What the file system does not let go stays as it is.
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RawMode, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::sys::kernel::Given;

/// What the group may do with files and directories; what is made in a directory later has its group.
const FILES: RawMode = 0o660;
const DIRECTORIES: RawMode = 0o2770;
/// Each is open while what is in it is walked; what is deeper stays as it is.
const DEEPEST: usize = 128;

const ONLY_IN_IT: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

impl Given {
    fn count(&mut self, changed: Result<bool, Errno>) -> Result<(), Errno> {
        match changed {
            Ok(changed) => self.changed += u64::from(changed),
            Err(Errno::PERM | Errno::ACCESS | Errno::ROFS | Errno::OPNOTSUPP) => self.left += 1,
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}

/// The same on a thread of its own, which ends soon after this was dropped.
pub(crate) async fn give_aside(root: OwnedFd, group: u32) -> Result<Given, Errno> {
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

/// Gives everything in a directory to the group, unless the directory itself has it. [`Errno::CANCELED`] once it is to stop.
pub(crate) fn give(root: &OwnedFd, group: u32, stop: &AtomicBool) -> Result<Given, Errno> {
    let seen = rustix::fs::fstat(root)?;
    let mut given = Given::default();
    if seen.st_gid == group && Mode::from_raw_mode(seen.st_mode).contains(Mode::from_raw_mode(DIRECTORIES)) {
        return Ok(given);
    }
    // While files are of several groups it says of none that they are.
    let mode = Mode::from_raw_mode(seen.st_mode);
    if mode.contains(Mode::SGID) {
        given.count(set_mode(root, mode.difference(Mode::SGID)).map(|()| false))?;
    }
    let mut way = vec![opened(root)?];
    while let Some(directory) = way.last_mut() {
        if stop.load(Ordering::Relaxed) {
            return Err(Errno::CANCELED);
        }
        let Some(entry) = directory.next() else {
            let Some(directory) = way.pop() else { break };
            given.count(give_one(directory.fd()?, group))?;
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        let handle = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match rustix::fs::openat2(directory.fd()?, name, handle, Mode::empty(), ONLY_IN_IT) {
            Ok(found) => found,
            // It went away, or something else is mounted there.
            Err(Errno::NOENT | Errno::XDEV) => continue,
            Err(errno) => return Err(errno),
        };
        if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != FileType::Directory {
            given.count(give_one(found.as_fd(), group))?;
        } else if way.len() < DEEPEST {
            way.push(opened(&found)?);
        } else {
            given.left += 1;
        }
    }
    Ok(given)
}

/// What is in a directory, by one descriptor.
fn opened(at: &OwnedFd) -> Result<Dir, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Dir::new(rustix::fs::openat(at, ".", flags, Mode::empty())?)
}

/// The handle need not be one for reading.
fn set_mode(handle: impl AsFd, mode: Mode) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    rustix::fs::chmodat(CWD, path, mode, AtFlags::empty())
}

/// Whether anything had to be changed.
fn give_one(handle: BorrowedFd<'_>, group: u32) -> Result<bool, Errno> {
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
        set_mode(handle, mode)?;
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
    use std::path::Path;

    const GROUP: u32 = 54_321;

    fn walk_for(root: &Path, group: u32) -> Result<Given, Errno> {
        give(&fs::File::open(root).unwrap().into(), group, &AtomicBool::new(false))
    }

    fn walk(root: &Path) -> Result<u64, Errno> {
        walk_for(root, GROUP).map(|given| {
            assert_eq!(given.left, 0);
            given.changed
        })
    }

    fn seen(path: &Path) -> (u32, u32) {
        let found = fs::symlink_metadata(path).unwrap();
        (found.gid(), found.mode() & 0o7777)
    }

    /// Scenario B83.
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

    /// The root had the group before that one, and would say that all have it.
    #[test]
    fn a_walk_for_another_group_that_was_broken_off_leaves_no_root_that_says_all_was_given() {
        let place = tempfile::tempdir().unwrap();
        for file in ["a", "b"] {
            fs::write(place.path().join(file), "").unwrap();
        }
        assert!(walk(place.path()).unwrap() > 0);
        let root = fs::File::open(place.path()).unwrap().into();
        assert_eq!(give(&root, 7, &AtomicBool::new(true)), Err(Errno::CANCELED));
        std::os::unix::fs::chown(place.path().join("a"), None, Some(7)).unwrap();
        assert!(walk(place.path()).unwrap() > 0);
        let (group, mode) = seen(place.path());
        assert_eq!((seen(&place.path().join("a")).0, group, mode & DIRECTORIES), (GROUP, GROUP, DIRECTORIES));
    }

    #[test]
    fn what_is_mounted_in_it_is_not_touched() {
        use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
        let place = tempfile::tempdir().unwrap();
        let inner = place.path().join("inner");
        fs::create_dir(&inner).unwrap();
        mount("none", &inner, "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(inner.join("file"), "").unwrap();
        let walked = walk(place.path());
        let (root, file) = (seen(&inner), seen(&inner.join("file")));
        unmount(&inner, UnmountFlags::empty()).unwrap();
        assert_eq!(walked, Ok(1), "the directory alone");
        assert_ne!((root.0, file.0), (GROUP, GROUP));
        assert_ne!(seen(&inner).0, GROUP, "what lies beneath a mount is none of it");
    }

    #[test]
    fn what_cannot_be_given_is_left_and_counted() {
        // Not every memory file system knows the mark.
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        for file in ["fixed", "free"] {
            fs::write(place.path().join(file), "").unwrap();
        }
        let fixed = fs::File::open(place.path().join("fixed")).unwrap();
        let flags = rustix::fs::ioctl_getflags(&fixed).unwrap();
        rustix::fs::ioctl_setflags(&fixed, flags | rustix::fs::IFlags::IMMUTABLE).unwrap();
        let walked = walk_for(place.path(), GROUP);
        rustix::fs::ioctl_setflags(&fixed, flags).unwrap();
        assert_eq!(walked, Ok(Given { changed: 2, left: 1 }));
        assert_eq!(seen(&place.path().join("free")).0, GROUP);
        assert_ne!(seen(&place.path().join("fixed")).0, GROUP);
    }

    #[test]
    fn what_is_too_deep_is_left_and_takes_no_more_descriptors_than_levels() {
        let place = tempfile::tempdir().unwrap();
        let mut at = rustix::fs::open(place.path(), OFlags::PATH, Mode::empty()).unwrap();
        for _ in 0..DEEPEST + 3 {
            rustix::fs::mkdirat(&at, "d", Mode::from_raw_mode(0o700)).unwrap();
            at = rustix::fs::openat(&at, "d", OFlags::PATH, Mode::empty()).unwrap();
        }
        // The root is one of them.
        assert_eq!(walk_for(place.path(), GROUP), Ok(Given { changed: DEEPEST as u64, left: 1 }));
    }
}
