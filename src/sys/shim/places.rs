//! Where the mounts of a task go in its root.
//!
//! A path is taken as the root's own links have it, so that two mounts that come to one place are told apart from two that
//! do not, and one that lies in another comes after it. What a mount needs in the volume that it lies in is made there, as a
//! `subPath` is; no link in a volume leads anywhere, for its users may have put there what they like.
use crate::sys::process::TaskMount;
use crate::sys::real::open;
use crate::sys::shim::root::{Fault, fault, make_file, openat};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A path in a root, the links of that root resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Located {
    /// The longest part that exists.
    pub(super) existing: PathBuf,
    /// The rest.
    pub(super) missing: PathBuf,
}

impl Located {
    pub(super) fn whole(&self) -> PathBuf {
        if self.missing.as_os_str().is_empty() {
            self.existing.clone()
        } else {
            self.existing.join(&self.missing)
        }
    }
}

/// Splits a path into the part that exists in a root, with its links resolved, and the rest.
pub(super) fn locate(root: &OwnedFd, path: &Path) -> Result<Located, Fault> {
    let top = name_of(root)?;
    let mut existing = path;
    let mut missing = PathBuf::new();
    loop {
        match inside(root, existing) {
            Ok(found) => {
                let real = name_of(&found)?;
                let beneath = real.strip_prefix(&top).unwrap_or(&real);
                return Ok(Located { existing: Path::new("/").join(beneath), missing });
            }
            Err(Errno::NOENT) => {
                let (Some(parent), Some(name)) = (existing.parent(), existing.file_name()) else {
                    return Err(format!("mount path {}: not found", path.display()));
                };
                missing =
                    if missing.as_os_str().is_empty() { name.into() } else { Path::new(name).join(missing) };
                existing = parent;
            }
            Err(errno) => return Err(fault("look for the mount path", path)(errno)),
        }
    }
}

/// Where each of these paths is, in the root or in what is mounted at another of them. No two are at one place.
pub(super) fn targets(root: &OwnedFd, paths: &[&Path]) -> Result<Vec<Located>, Fault> {
    let alone = paths.iter().map(|path| locate(root, path)).collect::<Result<Vec<_>, _>>()?;
    let mut found: Vec<Located> = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let target = beneath_another(root, path, &alone)?.unwrap_or_else(|| alone[index].clone());
        if let Some(first) = found.iter().position(|first| first.whole() == target.whole()) {
            let (path, first) = (path.display(), paths[first].display());
            return Err(format!(
                "mount path {path}: by a link it is {first}, where something is mounted already"
            ));
        }
        found.push(target);
    }
    Ok(found)
}

/// Where a path is whose way leads to a place at which something is mounted: from there on it is a path of that.
fn beneath_another(root: &OwnedFd, path: &Path, places: &[Located]) -> Result<Option<Located>, Fault> {
    let mut above: Vec<&Path> = path.ancestors().skip(1).filter(|above| *above != Path::new("/")).collect();
    above.reverse();
    for above in above {
        let at = locate(root, above)?;
        if places.iter().any(|place| place.whole() == at.whole()) {
            let rest = path.strip_prefix(above).unwrap_or(path);
            return Ok(Some(Located { existing: at.existing, missing: at.missing.join(rest) }));
        }
    }
    Ok(None)
}

/// Which of these places a place lies in, the innermost.
pub(super) fn outer(target: &Path, places: &[Located]) -> Option<usize> {
    let lies_in = |place: &PathBuf| target != place && target.starts_with(place);
    let all = places.iter().map(Located::whole).enumerate().filter(|(_, place)| lies_in(place));
    all.max_by_key(|(_, place)| place.components().count()).map(|(index, _)| index)
}

/// What is mounted in a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inner {
    Directory,
    File,
}

/// Makes what a mount at `rest` of a volume needs there, which it has at its own root. `path` is where it is wanted.
pub(super) fn make_in(
    (volume, root): (&TaskMount, &OwnedFd),
    rest: &Path,
    (path, inner): (&Path, Inner),
) -> Result<(), Fault> {
    let (path, at, shown) = (path.display(), volume.path.display(), rest.display());
    if volume.block {
        return Err(format!(
            "mount path {path}: the volume at {at} is a block device, in which nothing is mounted"
        ));
    }
    let mut parts: Vec<String> = rest.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let file = match inner {
        Inner::Directory => None,
        Inner::File => parts.pop(),
    };
    let made = root.try_clone().map_err(|_| Errno::MFILE).and_then(|root| {
        let directory = open::within(root, &parts, !volume.read_only)?;
        match file {
            Some(file) => file_in(&directory, OsStr::new(&file), !volume.read_only),
            None => Ok(()),
        }
    });
    made.map_err(|errno| match errno {
        Errno::NOENT => format!(
            "mount path {path}: {shown} is not there in the volume at {at}, and is not made in one that is read-only"
        ),
        Errno::LOOP | Errno::XDEV | Errno::NOTDIR => {
            format!("mount path {path}: {shown} in the volume at {at} leads through a link, or is no directory")
        }
        errno => format!("make {shown} in the volume at {at}: {}", std::io::Error::from(errno)),
    })
}

fn file_in(directory: &OwnedFd, name: &OsStr, make: bool) -> Result<(), Errno> {
    match openat(directory, name) {
        Ok(found) => {
            let kind = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
            if kind == rustix::fs::FileType::RegularFile { Ok(()) } else { Err(Errno::NOTDIR) }
        }
        Err(Errno::NOENT) if make => make_file(directory, name).map(drop),
        Err(errno) => Err(errno),
    }
}

/// Opens a path of a root; links are followed, inside that root.
pub(super) fn inside(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// The path by which this process sees what a handle refers to.
fn name_of(handle: impl AsFd) -> Result<PathBuf, Fault> {
    let link = format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd());
    std::fs::read_link(&link).map_err(|error| format!("{link}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// `/real` and a link to it.
    fn root() -> (tempfile::TempDir, OwnedFd) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("real/there")).unwrap();
        symlink("/real", directory.path().join("link")).unwrap();
        let root = std::fs::File::open(directory.path()).unwrap();
        (directory, root.into())
    }

    #[test]
    fn links_are_resolved_in_their_root_and_the_missing_part_is_found() {
        let (_directory, root) = root();
        for (path, existing, missing) in
            [("/link/x/y", "/real", "x/y"), ("/link/there", "/real/there", ""), ("/new", "/", "new")]
        {
            let wanted = Located { existing: existing.into(), missing: missing.into() };
            assert_eq!(locate(&root, Path::new(path)), Ok(wanted), "{path}");
        }
    }

    #[test]
    fn two_paths_of_one_place_are_refused_and_what_lies_in_a_volume_is_a_path_of_it() {
        let (_directory, root) = root();
        let at = |paths: &[&str]| {
            let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
            targets(&root, &paths).map(|all| all.iter().map(Located::whole).collect::<Vec<_>>())
        };
        let error = at(&["/link/x", "/real/x"]).unwrap_err();
        assert!(error.contains("/real/x") && error.contains("/link/x"), "{error}");
        let places = |all: &[&str]| Ok(all.iter().map(PathBuf::from).collect());
        assert_eq!(at(&["/real/there/in", "/link"]), places(&["/real/there/in", "/real"]));
        // Not what the root has beneath the place of the volume.
        let (directory, root) = self::root();
        symlink("/new", directory.path().join("real/out")).unwrap();
        let paths = [Path::new("/link"), Path::new("/real/out/x")];
        let found = targets(&root, &paths).unwrap();
        assert_eq!(found[1].whole(), Path::new("/real/out/x"), "the volume's own, and no link of the root");
        assert_eq!((outer(&found[1].whole(), &found), outer(&found[0].whole(), &found)), (Some(0), None));
    }
}
