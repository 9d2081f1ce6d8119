//! A root of its own for one task, so that a mount path need not exist on the host.
//!
//! In a new mount namespace of which nothing comes back, the root is a small read-only tmpfs in which every entry
//! of the host's `/` is bound, recursively, and symbolic links are copied. A directory that a mount path needs
//! and the host lacks is made in that tmpfs: the directories above it are *opened up*, which means made anew
//! there, with their entries bound one by one. Nothing is ever made on the host.
//!
//! Runs in the task's process between fork and exec; that process has one thread.
use crate::sys::ffi::{self, MountAttributes, mount_setattr};
use crate::sys::kernel::{Access, DeviceId, FileKind};
use crate::sys::process::{TaskMount, TaskSpec};
use crate::sys::real::mounts;
use crate::sys::shim::places::{self, Inner, Located, inside};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags, UnmountFlags};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Entries of one directory that are bound one by one; more would slow the whole machine.
const ENTRIES: usize = 4096;

/// Why a task has no root of its own: one sentence for a person.
pub(crate) type Fault = String;

pub(super) fn fault(action: &str, path: &Path) -> impl Fn(Errno) -> Fault {
    move |errno| format!("{action} {}: {}", path.display(), std::io::Error::from(errno))
}

/// Gives this process its own mounts. `clones[i]` is moved to `spec.mounts[i]`.
pub(crate) fn enter(spec: &TaskSpec, clones: Vec<OwnedFd>) -> Result<(), Fault> {
    let top = Path::new("/");
    ffi::unshare_mounts().map_err(|error| format!("unshare the mounts: {error}"))?;
    let old = handle(top).map_err(fault("open", top))?;
    let slave = MountAttributes { propagation: libc::MS_SLAVE, ..MountAttributes::default() };
    mount_setattr(&old, true, slave).map_err(|error| format!("make the mounts private: {error}"))?;
    for path in &spec.hide {
        release(path);
    }

    let mounts: Vec<(&TaskMount, OwnedFd)> = spec.mounts.iter().zip(clones).collect();
    let paths: Vec<&Path> = mounts.iter().map(|(mount, _)| mount.path.as_path()).collect();
    let targets = places::targets(&old, &paths)?;
    let places = outermost(&mounts, &targets)?;

    let root = tmpfs("8m", "755").map_err(fault("make a tmpfs for", top))?;
    // On top of `/`: from here on paths still mean the old root, and descriptors the new one.
    mounts::attach(&root, &old).map_err(fault("attach the new root at", top))?;
    Assembly { opened: opened(&places), hidden: spec.hide.iter().map(PathBuf::as_path).collect() }
        .fill(&root, top)?;
    for place in &places {
        make(&root, place)?;
    }
    pivot(&root, &old).map_err(fault("change to the new root at", top))?;

    let mut hide: Vec<&PathBuf> = spec.hide.iter().collect();
    hide.sort_by_key(|path| path.components().count());
    for path in hide {
        cover(path)?;
    }
    let mut all: Vec<_> = mounts.iter().zip(targets.iter().map(Located::whole)).collect();
    // What lies in another one comes after it.
    all.sort_by_key(|(_, at)| at.components().count());
    for ((mount, clone), at) in all {
        place_mount(mount, clone, &at)?;
    }
    // Read-only, so that what a task writes outside its volumes is refused and not lost in memory.
    let new = handle(top).map_err(fault("open", top))?;
    mounts::set_access(&new, Access::ReadOnly).map_err(fault("protect", top))
}

/// Detaches what is mounted at a hidden path in this namespace, so that the task does not hold it.
fn release(path: &Path) {
    for _ in 0..16 {
        if rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_err() {
            return;
        }
    }
}

/// Where one mount goes, links of the host resolved.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    at: Located,
    block: bool,
}

/// Finds where the mounts go; those inside another mount are left out: what they need is made in that.
fn outermost(mounts: &[(&TaskMount, OwnedFd)], targets: &[Located]) -> Result<Vec<Place>, Fault> {
    let mut places: Vec<Place> = Vec::new();
    for ((mount, _), target) in mounts.iter().zip(targets) {
        let whole = target.whole();
        let forbidden = [Path::new("/proc"), Path::new("/sys")];
        if whole == Path::new("/") || forbidden.iter().any(|kernel| whole.starts_with(kernel)) {
            return Err(format!("mount path {}: not possible there", mount.path.display()));
        }
        match places::outer(&whole, targets) {
            None => places.push(Place { at: target.clone(), block: mount.block }),
            Some(outer) => {
                let (volume, root) = &mounts[outer];
                let beneath = targets[outer].whole();
                let rest = whole.strip_prefix(&beneath).unwrap_or(&whole);
                let inner = if mount.block { Inner::File } else { Inner::Directory };
                places::make_in((volume, root), rest, (&mount.path, inner))?;
            }
        }
    }
    Ok(places)
}

/// The directories to open up: all above what is missing.
fn opened(places: &[Place]) -> BTreeSet<PathBuf> {
    let lacking = places.iter().map(|place| &place.at).filter(|at| !at.missing.as_os_str().is_empty());
    let above = lacking.flat_map(|at| at.existing.ancestors().map(Path::to_owned));
    above.chain([PathBuf::from("/")]).collect()
}

/// Fills a new root from the old one.
struct Assembly<'a> {
    opened: BTreeSet<PathBuf>,
    hidden: BTreeSet<&'a Path>,
}

impl Assembly<'_> {
    /// Fills `into` with the entries of the host's directory `from`.
    fn fill(&self, into: &OwnedFd, from: &Path) -> Result<(), Fault> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let directory = rustix::fs::openat(CWD, from, flags, Mode::empty()).map_err(fault("open", from))?;
        let entries = Dir::read_from(&directory).map_err(fault("read", from))?;
        for (count, entry) in entries.enumerate() {
            let entry = entry.map_err(fault("read", from))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if count > ENTRIES {
                return Err(format!("{}: too many entries to bind one by one", from.display()));
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let Ok(seen) = stat(&directory, name) else { continue };
                    FileType::from_raw_mode(seen.st_mode)
                }
                known => known,
            };
            self.entry(into, &directory, &from.join(name), (name, kind))?;
        }
        Ok(())
    }

    /// Binds one entry. Its kind comes from the directory that lists it: to ask the entry itself could hang, if
    /// it is the mount point of a dead file system.
    fn entry(
        &self,
        into: &OwnedFd,
        directory: &OwnedFd,
        from: &Path,
        (name, kind): (&OsStr, FileType),
    ) -> Result<(), Fault> {
        let step = fault("bind", from);
        match kind {
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(directory, name, Vec::new()).map_err(&step)?;
                rustix::fs::symlinkat(target.as_c_str(), into, name).map_err(&step)
            }
            FileType::Directory => {
                rustix::fs::mkdirat(into, name, Mode::RWXU).map_err(&step)?;
                let made = openat(into, name).map_err(&step)?;
                if self.opened.contains(from) {
                    let seen = stat(directory, name).map_err(&step)?;
                    let inner = open_up(made, &seen).map_err(&step)?;
                    self.fill(&inner, from)
                } else if self.hidden.contains(from) {
                    Ok(())
                } else {
                    bind(directory, name, &made).map_err(step)
                }
            }
            FileType::RegularFile
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {
                let made = make_file(into, name).map_err(&step)?;
                bind(directory, name, &made).map_err(step)
            }
        }
    }
}

fn stat(directory: &OwnedFd, name: &OsStr) -> Result<rustix::fs::Stat, Errno> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
}

/// Makes a new directory of the root look like the host's. One that everybody may write to (`/tmp`) becomes a
/// writable tmpfs of its own: programs rely on it.
fn open_up(made: OwnedFd, seen: &rustix::fs::Stat) -> Result<OwnedFd, Errno> {
    let bits = seen.st_mode & 0o7777;
    let inner = if bits & 0o1002 == 0o1002 {
        let own = tmpfs("64m", "1777")?;
        mounts::attach(&own, &made)?;
        own
    } else {
        made
    };
    rustix::fs::chownat(
        &inner,
        c"",
        Some(Uid::from_raw(seen.st_uid)),
        Some(Gid::from_raw(seen.st_gid)),
        AtFlags::EMPTY_PATH,
    )?;
    rustix::fs::chmodat(&inner, c".", Mode::from_raw_mode(bits), AtFlags::empty())?;
    Ok(inner)
}

/// Binds an entry of a host directory, with all that is mounted beneath it. What vanished or cannot be bound is
/// left out: an empty stand-in remains.
fn bind(directory: &OwnedFd, name: &OsStr, onto: &OwnedFd) -> Result<(), Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::AT_NO_AUTOMOUNT;
    match rustix::mount::open_tree(directory, name, flags) {
        Ok(tree) => mounts::attach(&tree, onto),
        Err(Errno::NOENT | Errno::INVAL | Errno::ACCESS | Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Makes what is missing of a place in the new root.
fn make(root: &OwnedFd, place: &Place) -> Result<(), Fault> {
    let (whole, existing) = (place.at.whole(), &place.at.existing);
    let step = fault("make the mount path", &whole);
    let mut at = confined(root, existing.strip_prefix("/").unwrap_or(existing)).map_err(&step)?;
    let names: Vec<&OsStr> = place.at.missing.iter().collect();
    for (index, name) in names.iter().enumerate() {
        if place.block && index + 1 == names.len() {
            make_file(&at, name).map_err(&step)?;
            break;
        }
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
        match rustix::fs::mkdirat(&at, *name, mode) {
            // Two mounts may share the directories above them.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(step(errno)),
        }
        at = openat(&at, name).map_err(&step)?;
    }
    Ok(())
}

/// Makes the new root this process's only one.
fn pivot(root: &OwnedFd, old: &OwnedFd) -> Result<(), Errno> {
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(".", ".")?;
    // Both are at `/` now, the old one on top; stand in it so that `.` means it.
    rustix::process::fchdir(old)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}

/// Puts an empty directory over a path, if it is there.
fn cover(path: &Path) -> Result<(), Fault> {
    let step = fault("hide", path);
    let root = handle(Path::new("/")).map_err(&step)?;
    let target = match inside(&root, path) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.map_err(&step)?,
    };
    let empty = tmpfs("4k", "755").map_err(&step)?;
    mounts::set_access(&empty, Access::ReadOnly).map_err(&step)?;
    mounts::attach(&empty, &target).map_err(step)
}

/// Moves a verified mount to its place, which no link is on the way to.
fn place_mount(mount: &TaskMount, clone: &OwnedFd, at: &Path) -> Result<(), Fault> {
    let root = handle(Path::new("/")).map_err(fault("open", Path::new("/")))?;
    let target = confined(&root, at.strip_prefix("/").unwrap_or(at));
    attach_volume(mount, clone, &target.map_err(fault("mount the volume at", &mount.path))?)
}

/// Puts a verified mount on what the handle refers to, with no more rights than the task has.
pub(super) fn attach_volume(mount: &TaskMount, clone: &OwnedFd, target: &OwnedFd) -> Result<(), Fault> {
    let step = fault("mount the volume at", &mount.path);
    let kind =
        if mount.block { FileKind::Block(DeviceId { major: 0, minor: 0 }) } else { FileKind::Directory };
    let access = if mount.read_only { Access::ReadOnly } else { Access::ReadWrite };
    mounts::restrict(clone, kind, access).map_err(&step)?;
    let seen = rustix::fs::fstat(target).map_err(&step)?;
    let is_directory = rustix::fs::FileType::from_raw_mode(seen.st_mode).is_dir();
    match (mount.block, is_directory) {
        (false, true) | (true, false) => {}
        (false, false) => {
            return Err(format!(
                "mount path {}: no directory, which a volume is mounted at",
                mount.path.display()
            ));
        }
        (true, true) => {
            return Err(format!(
                "mount path {}: a directory, and a block device is mounted at a file",
                mount.path.display()
            ));
        }
    }
    mounts::attach(clone, target).map_err(step)
}

/// A new tmpfs, not attached anywhere.
pub(super) fn tmpfs(size: &str, mode: &str) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(context.as_fd(), "source", "wharfline")?;
    rustix::mount::fsconfig_set_string(context.as_fd(), "size", size)?;
    rustix::mount::fsconfig_set_string(context.as_fd(), "mode", mode)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

const HANDLE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

pub(super) fn handle(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, HANDLE, Mode::empty())
}

/// Opens a path in the new root, which has no links on the way.
fn confined(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(root, path, HANDLE, Mode::empty(), resolve)
}

pub(super) fn openat(directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, name, HANDLE | OFlags::NOFOLLOW, Mode::empty())
}

pub(super) fn make_file(directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?;
    openat(directory, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(existing: &str, missing: &str) -> Located {
        Located { existing: existing.into(), missing: missing.into() }
    }

    #[test]
    fn only_what_is_above_a_missing_path_is_opened_up() {
        let places =
            [at("/srv", "a/b"), at("/etc/ssl", ""), at("/", "data")].map(|at| Place { at, block: false });
        let expected = ["/", "/srv"].map(PathBuf::from);
        assert_eq!(opened(&places), BTreeSet::from(expected));
    }

    #[test]
    fn some_places_are_refused() {
        let top = || handle(Path::new("/")).unwrap();
        for bad in ["/", "/proc", "/proc/x", "/sys/fs/no"] {
            let mount = TaskMount { fd: -1, path: bad.into(), read_only: false, block: false };
            let targets = places::targets(&top(), &[&mount.path]).unwrap();
            assert!(outermost(&[(&mount, top())], &targets).is_err(), "{bad}");
        }
    }
}
