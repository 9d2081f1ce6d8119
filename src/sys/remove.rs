//! Removes a directory with everything in it, and nothing else.
//!
//! Everything is reached from one open directory, one component at a time, without following a symbolic link and
//! without entering another mount. Directories inside directories are first moved up to the top, so that any depth
//! takes the same few descriptors and no recursion. It can be stopped at any point and started again.
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};

/// Removes the entry `name` of `parent`, a directory with whatever is in it. None there is success.
pub(crate) fn directory(parent: impl AsFd, name: &CStr) -> Result<()> {
    let top = match open(&parent, name) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut moved = 0;
    while empty(&top, &mut moved)? {}
    done(rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR))
}

/// Removes what is at a path, whatever it is, without following it. None there is success.
pub(crate) fn tree(path: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let name = CString::new(name.as_encoded_bytes()).map_err(|_| Errno::INVAL)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match rustix::fs::open(parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    match directory(&parent, &name) {
        Err(Errno::NOTDIR | Errno::LOOP) => done(rustix::fs::unlinkat(&parent, &name, AtFlags::empty())),
        other => other,
    }
}

/// One pass over `top`; `true` when there was anything in it.
fn empty(top: &OwnedFd, moved: &mut u64) -> Result<bool> {
    let mut any = false;
    for (name, kind) in entries(top)? {
        any = true;
        if kind == FileType::Directory {
            flatten(top, &name, moved)?;
        } else {
            done(rustix::fs::unlinkat(top, &name, AtFlags::empty()))?;
        }
    }
    Ok(any)
}

/// Removes the directory `name` of `top` after moving the directories in it up into `top`.
fn flatten(top: &OwnedFd, name: &CStr, moved: &mut u64) -> Result<()> {
    let inner = match open(top, name) {
        // Somebody else removes it too.
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    loop {
        let batch = entries(&inner)?;
        if batch.is_empty() {
            break;
        }
        for (child, kind) in batch {
            if kind == FileType::Directory {
                lift(&inner, &child, top, moved)?;
            } else {
                done(rustix::fs::unlinkat(&inner, &child, AtFlags::empty()))?;
            }
        }
    }
    done(rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR))
}

fn lift(from: &OwnedFd, child: &CStr, top: &OwnedFd, moved: &mut u64) -> Result<()> {
    loop {
        let new = CString::new(format!(".lifted-{moved}")).unwrap_or_default();
        *moved += 1;
        let flags = rustix::fs::RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(from, child, top, &new, flags) {
            // Taken by a file of the volume, or by an earlier attempt that was stopped.
            Err(Errno::EXIST) => {}
            result => return done(result),
        }
    }
}

fn open(parent: impl AsFd, name: &CStr) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let stay = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), stay)
}

/// Every entry with its kind. Read in full first, because what is read is about to change.
fn entries(dir: &OwnedFd) -> Result<Vec<(CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let kind = match entry.file_type() {
            // Some file systems do not say it in the directory.
            FileType::Unknown => {
                let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(stat.st_mode)
            }
            kind => kind,
        };
        found.push((name.to_owned(), kind));
        if found.len() == BATCH {
            break;
        }
    }
    Ok(found)
}

/// Entries held in memory at a time; the rest follow in the next pass.
const BATCH: usize = 4096;

fn done(result: Result<()>) -> Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn remove(parent: &Path, name: &CStr) -> Result<()> {
        let parent = rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        directory(parent, name)
    }

    #[test]
    fn what_is_at_a_path_goes_whatever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("kept/in")).unwrap();
        std::fs::create_dir_all(at("tree/in/it")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        symlink("kept", at("link")).unwrap();
        for name in ["tree", "file", "link", "tree", "no/such"] {
            tree(&at(name)).unwrap();
            assert!(!at(name).exists() && !at(name).is_symlink(), "{name}");
        }
        assert!(at("kept/in").is_dir());
    }

    #[test]
    fn a_tree_goes_and_what_its_links_point_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::create_dir_all(outside.join("kept")).unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir_all(tree.join("a/b/c")).unwrap();
        for at in ["", "a", "a/b", "a/b/c"] {
            std::fs::write(tree.join(at).join("file"), "x").unwrap();
            symlink(&outside, tree.join(at).join("link")).unwrap();
        }
        std::fs::write(tree.join(".lifted-0"), "a name of ours").unwrap();
        remove(dir.path(), c"tree").unwrap();
        assert!(!tree.exists());
        assert!(outside.join("kept").exists());
        remove(dir.path(), c"tree").unwrap();
    }

    #[test]
    fn a_link_in_the_place_of_the_directory_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::create_dir_all(outside.join("kept")).unwrap();
        symlink(&outside, dir.path().join("tree")).unwrap();
        assert!(remove(dir.path(), c"tree").is_err());
        assert!(outside.join("kept").exists());
    }

    #[test]
    fn depth_and_width_cost_no_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let mut deep = rustix::fs::open(dir.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        rustix::fs::mkdirat(&deep, c"tree", Mode::RWXU).unwrap();
        deep = open(&deep, c"tree").unwrap();
        for _ in 0..1500 {
            rustix::fs::mkdirat(&deep, c"d", Mode::RWXU).unwrap();
            deep = open(&deep, c"d").unwrap();
        }
        for file in 0..BATCH + 10 {
            std::fs::write(dir.path().join(format!("tree/d/{file}")), "").unwrap();
        }
        remove(dir.path(), c"tree").unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
