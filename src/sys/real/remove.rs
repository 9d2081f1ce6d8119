//! Removing a tree of files that somebody else filled, such as what a container wrote.
//!
//! It may be as deep and as full as they liked, and they may still be at it: no link is followed, nothing that is
//! mounted in it is entered, and neither memory nor descriptors grow with its depth.
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::path::Path;

/// How far down it goes before it takes what is there up to the top.
const DEPTH: usize = 32;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Removes a directory with all that is in it; nothing when it is not there. Refused with `XDEV` where something is
/// mounted in it: what is beneath stays, the rest may be gone.
pub(crate) fn tree(path: &Path) -> Result<(), Errno> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let name = CString::new(name.as_encoded_bytes()).map_err(|_| Errno::INVAL)?;
    let parent = match rustix::fs::open(parent, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    match open(&parent, &name) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return gone(rustix::fs::unlinkat(&parent, &name, AtFlags::empty()));
        }
        Err(errno) => return Err(errno),
        Ok(top) => {
            let mut raised = 0;
            while empty(&top, &top, DEPTH, &mut raised)? {}
        }
    }
    gone(rustix::fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR))
}

fn open(directory: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(directory, name, DIRECTORY, Mode::empty(), resolve)
}

/// Whoever removed it first.
fn gone(done: Result<(), Errno>) -> Result<(), Errno> {
    match done {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Empties a directory; true when something was taken up to the top, which has to be emptied once more.
fn empty(top: &OwnedFd, directory: &OwnedFd, depth: usize, raised: &mut u64) -> Result<bool, Errno> {
    let mut again = false;
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            // What POSIX and what Linux says of a directory.
            Err(Errno::PERM | Errno::ISDIR) => {}
            Err(errno) => return Err(errno),
        }
        if depth == 0 {
            raise(top, directory, name, raised)?;
            again = true;
            continue;
        }
        match open(directory, name) {
            Ok(inner) => again |= empty(top, &inner, depth - 1, raised)?,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(errno),
        }
        match gone(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)) {
            // Somebody still writes there.
            Err(Errno::NOTEMPTY) if again => {}
            other => other?,
        }
    }
    Ok(again)
}

/// Takes a directory up to the top, by a name that nothing there has.
fn raise(top: &OwnedFd, directory: &OwnedFd, name: &CStr, raised: &mut u64) -> Result<(), Errno> {
    loop {
        *raised += 1;
        let there = CString::new(format!("raised-{raised}")).map_err(|_| Errno::INVAL)?;
        match rustix::fs::renameat_with(directory, name, top, &there, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return gone(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn all_of_it_goes_and_nothing_that_it_points_at() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("tree/a/b")).unwrap();
        fs::create_dir(at("kept")).unwrap();
        fs::write(at("kept/file"), "").unwrap();
        fs::write(at("tree/a/file"), "").unwrap();
        symlink(at("kept"), at("tree/a/link")).unwrap();
        symlink("../../kept", at("tree/a/b/link")).unwrap();
        tree(&at("tree")).unwrap();
        assert!(!at("tree").exists());
        assert!(at("kept/file").exists());
        tree(&at("tree")).unwrap();
        tree(&at("no/such")).unwrap();
        symlink("kept", at("itself")).unwrap();
        tree(&at("itself")).unwrap();
        assert!(!at("itself").is_symlink());
        assert!(at("kept/file").exists());
    }

    #[test]
    fn depth_costs_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("tree");
        fs::create_dir(&top).unwrap();
        let mut at = rustix::fs::open(&top, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, c"down", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&at, c"beside", Mode::RWXU).unwrap();
            at = open(&at, c"down").unwrap();
        }
        drop(at);
        fs::create_dir(top.join("raised-1")).unwrap();
        tree(&top).unwrap();
        assert!(!top.exists());
    }
}
