//! Members of a layer made as files, in the form that overlayfs takes as a lower directory.
//!
//! Each path is walked from a handle on the layer's directory, and no link is followed on the way. Character and block
//! devices are left out: a runtime makes those that a container may have, and a device 0:0 would be a whiteout.
use super::archive::{Archive, Input, Kind, Member, read_fault};
use super::error::Fault;
use crate::sys::real::open::openat2;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The longest path, and the longest name in it.
const PATH: usize = 4095;
const NAME: usize = 255;
/// The most components of a path.
const DEPTH: usize = 128;
/// The most bytes of paths that are kept while a layer is unpacked.
const KEPT: usize = 32 << 20;

/// What overlayfs asks a directory to know that nothing of the layers below shows in it.
const OPAQUE: &str = "trusted.overlay.opaque";
/// On the directory of a layer whose archive does not say what the root is like.
const ROOT_UNSAID: &str = "trusted.wharfline.root-unsaid";
/// What begins so stands for something that the layers below have and this one has not.
const WHITEOUT: &[u8] = b".wh.";
/// In a directory of which nothing of the layers below shows.
const WHITEOUT_ALL: &[u8] = b".wh..wh..opq";
/// Other things that aufs once kept for itself.
const WHITEOUT_OWN: &[u8] = b".wh..wh.";

/// Without `NOFOLLOW`: a link in the place of a directory is then told from a file there, and is not followed either.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const TIMES_OF_LINK: AtFlags = AtFlags::SYMLINK_NOFOLLOW;

/// A fault, and the path of the member that has it.
pub(crate) struct Bad {
    pub(crate) entry: String,
    pub(crate) fault: Fault,
}

/// What may still be made.
pub(crate) struct Room<'a> {
    pub(crate) entries: &'a mut u64,
    /// The length of a file; holes are not read, so nothing else counts them.
    pub(crate) longest: u64,
}

/// Makes the members of an archive beneath a directory.
pub(crate) fn unpack<R: Input>(archive: &mut Archive<R>, root: &OwnedFd, room: Room<'_>) -> Result<(), Bad> {
    let mut layer = Unpacking { root, room, times: BTreeMap::new(), kept: 0, tells_root: false };
    loop {
        let member = archive.next().map_err(|fault| Bad { entry: String::new(), fault })?;
        let Some(member) = member else { break };
        layer.add(archive, &member).map_err(|fault| {
            // It comes from outside, and ends up in messages.
            let start = &member.path[..member.path.len().min(200)];
            Bad { entry: String::from_utf8_lossy(start).escape_debug().to_string(), fault }
        })?;
    }
    let whole = |fault| Bad { entry: String::new(), fault };
    if !layer.tells_root {
        leave_root(root).map_err(|errno| whole(Fault::Write(errno.into())))?;
    }
    layer.set_times().map_err(whole)
}

/// A layer that says nothing of the root leaves it as the layers below have it; by itself it is as any directory that an
/// archive does not name.
fn leave_root(root: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fchmod(root, Mode::from_raw_mode(0o755))?;
    rustix::fs::fsetxattr(root, ROOT_UNSAID, b"y", XattrFlags::empty())
}

/// Whether a layer's directory says what the root of the image is like. overlayfs takes the root from the layer on top.
pub(crate) fn tells_root(layer: &Path) -> Result<bool, Errno> {
    let mut value = [0; 1];
    match rustix::fs::getxattr(layer, ROOT_UNSAID, &mut value[..]) {
        Ok(_) | Err(Errno::RANGE) => Ok(false),
        Err(Errno::NODATA) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Whether a layer's directory says that nothing of the layers below shows. overlayfs does not look for it there.
pub(crate) fn hides_all(root: &OwnedFd) -> Result<bool, Errno> {
    let mut value = [0; 1];
    match rustix::fs::fgetxattr(root, OPAQUE, &mut value[..]) {
        Ok(1) => Ok(value == *b"y"),
        Ok(_) | Err(Errno::NODATA | Errno::RANGE) => Ok(false),
        Err(errno) => Err(errno),
    }
}

struct Unpacking<'a> {
    root: &'a OwnedFd,
    room: Room<'a>,
    /// Of directories: each file made in them would change theirs.
    times: BTreeMap<PathBuf, Timestamps>,
    /// How long all of those paths are.
    kept: usize,
    /// The archive says what the layer's directory itself is like.
    tells_root: bool,
}

impl Unpacking<'_> {
    fn add<R: Input>(&mut self, archive: &mut Archive<R>, member: &Member) -> Result<(), Fault> {
        self.count()?;
        if member.size > self.room.longest {
            return Err(Fault::Limit("bytes"));
        }
        let path = components(&member.path)?;
        let Some((name, around)) = path.split_last() else {
            // The layer's directory itself.
            let Kind::Directory = member.kind else { return Err(Fault::Path) };
            set_all(self.root, member)?;
            self.tells_root = true;
            return self.keep_time(PathBuf::new(), member);
        };
        if path.iter().any(|part| part.starts_with(WHITEOUT_OWN) && *part != WHITEOUT_ALL) {
            return Ok(());
        }
        if around.iter().any(|part| part.starts_with(WHITEOUT)) {
            return Err(Fault::Whiteout);
        }
        if *name == WHITEOUT_ALL {
            return Ok(hide_all(&self.directory(around)?)?);
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return self.hide(around, hidden);
        }
        if member.kind == Kind::Device {
            return Ok(());
        }
        let target = match member.kind {
            Kind::HardLink => Some(self.target(&member.link, &path)?),
            _ => None,
        };
        let parent = self.directory(around)?;
        let name = OsStr::from_bytes(name);
        let was = make_room(&parent, name, member.kind)?;
        match member.kind {
            Kind::Directory => {
                if was != Some(FileType::Directory) {
                    rustix::fs::mkdirat(&parent, name, Mode::RWXU)?;
                }
                let made = openat2(&parent, Path::new(name), DIRECTORY, Mode::empty())?;
                if was == Some(FileType::CharacterDevice) {
                    hide_all(&made)?;
                }
                set_all(&made, member)?;
                self.keep_time(joined(&path), member)?;
            }
            Kind::File => make_file(archive, &parent, name, member)?,
            Kind::HardLink => {
                if let Some((around, target)) = target {
                    rustix::fs::linkat(around, target, &parent, name, AtFlags::empty())?;
                }
            }
            Kind::SymbolicLink => make_link(&parent, name, member)?,
            Kind::Fifo => make_fifo(&parent, name, member)?,
            Kind::Device => {}
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), Fault> {
        *self.room.entries = self.room.entries.checked_sub(1).ok_or(Fault::Limit("entries"))?;
        Ok(())
    }

    /// A handle on a directory that is made as far as it is not there.
    fn directory(&mut self, path: &[&[u8]]) -> Result<OwnedFd, Fault> {
        if path.is_empty() {
            return self.root.try_clone().map_err(Fault::Write);
        }
        match openat2(self.root, &joined(path), DIRECTORY, Mode::empty()) {
            Ok(found) => return Ok(found),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => return Err(on_the_way(errno)),
        }
        let mut at = self.root.try_clone().map_err(Fault::Write)?;
        for part in path {
            let name = Path::new(OsStr::from_bytes(part));
            at = match openat2(&at, name, DIRECTORY, Mode::empty()) {
                Ok(found) => found,
                Err(Errno::NOENT | Errno::NOTDIR) => self.make_directory(&at, name)?,
                Err(errno) => return Err(on_the_way(errno)),
            };
        }
        Ok(at)
    }

    /// A directory that the archive does not name, or names later.
    fn make_directory(&mut self, parent: &OwnedFd, name: &Path) -> Result<OwnedFd, Fault> {
        self.count()?;
        let was = kind_of(parent, name.as_os_str())?;
        match was {
            None => {}
            Some(FileType::CharacterDevice) => rustix::fs::unlinkat(parent, name, AtFlags::empty())?,
            Some(_) => return Err(Fault::NotADirectory),
        }
        rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
        let made = openat2(parent, name, DIRECTORY, Mode::empty())?;
        rustix::fs::fchmod(&made, Mode::from_raw_mode(0o755))?;
        if was.is_some() {
            hide_all(&made)?;
        }
        Ok(made)
    }

    /// Hides what the layers below have of this name.
    fn hide(&mut self, around: &[&[u8]], name: &[u8]) -> Result<(), Fault> {
        if matches!(name, b"" | b"." | b"..") {
            return Err(Fault::Whiteout);
        }
        let (parent, name) = (self.directory(around)?, OsStr::from_bytes(name));
        match kind_of(&parent, name)? {
            None => {
                let mode = Mode::empty();
                Ok(rustix::fs::mknodat(&parent, name, FileType::CharacterDevice, mode, 0)?)
            }
            // What this layer itself has of that name stays, in whatever order they come.
            Some(FileType::Directory) => {
                Ok(hide_all(&openat2(&parent, Path::new(name), DIRECTORY, Mode::empty())?)?)
            }
            Some(_) => Ok(()),
        }
    }

    /// The file of this layer that a hard link leads to: its directory and its name there.
    fn target<'b>(&self, link: &'b [u8], own: &[&[u8]]) -> Result<(OwnedFd, &'b OsStr), Fault> {
        let none = || Fault::LinkTarget(String::from_utf8_lossy(link).escape_debug().to_string());
        let path = components(link)?;
        let (name, around) = path.split_last().ok_or_else(none)?;
        // Making room for the link would take its target away.
        if path == own {
            return Err(none());
        }
        let around = if around.is_empty() { PathBuf::from(".") } else { joined(around) };
        let parent = match openat2(self.root, &around, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => return Err(none()),
            other => other.map_err(on_the_way)?,
        };
        let name = OsStr::from_bytes(name);
        match kind_of(&parent, name)? {
            Some(FileType::RegularFile | FileType::Symlink | FileType::Fifo) => Ok((parent, name)),
            _ => Err(none()),
        }
    }

    fn keep_time(&mut self, path: PathBuf, member: &Member) -> Result<(), Fault> {
        self.kept += path.as_os_str().len();
        if self.kept > KEPT {
            return Err(Fault::Limit("directories"));
        }
        self.times.insert(path, times(member));
        Ok(())
    }

    fn set_times(&self) -> Result<(), Fault> {
        for (path, times) in &self.times {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            match openat2(self.root, path, DIRECTORY, Mode::empty()) {
                Ok(directory) => rustix::fs::futimens(&directory, times)?,
                // A later member took its place.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

/// The names on the way. A leading `/` is the layer's own root.
fn components(path: &[u8]) -> Result<Vec<&[u8]>, Fault> {
    if path.is_empty() || path.contains(&0) {
        return Err(Fault::Path);
    }
    let parts: Vec<_> =
        path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    if parts.contains(&&b".."[..]) {
        return Err(Fault::Path);
    }
    if path.len() > PATH || parts.len() > DEPTH || parts.iter().any(|part| part.len() > NAME) {
        return Err(Fault::TooDeep);
    }
    Ok(parts)
}

fn joined(parts: &[&[u8]]) -> PathBuf {
    parts.iter().map(|part| OsStr::from_bytes(part)).collect()
}

fn on_the_way(errno: Errno) -> Fault {
    match errno {
        Errno::LOOP => Fault::ThroughLink,
        Errno::NOTDIR => Fault::NotADirectory,
        other => other.into(),
    }
}

/// Takes away what a member replaces, and says what was there. A directory stays where one is wanted.
fn make_room(parent: &OwnedFd, name: &OsStr, kind: Kind) -> Result<Option<FileType>, Fault> {
    let was = kind_of(parent, name)?;
    match (was, kind) {
        (None, _) | (Some(FileType::Directory), Kind::Directory) => {}
        (Some(FileType::Directory), _) => {
            // The number of the handle, so that the way is not walked anew; the name itself is not followed.
            let path = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name);
            std::fs::remove_dir_all(path).map_err(Fault::Write)?;
        }
        (Some(_), _) => rustix::fs::unlinkat(parent, name, AtFlags::empty())?,
    }
    Ok(was)
}

fn kind_of(parent: &OwnedFd, name: &OsStr) -> Result<Option<FileType>, Errno> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(Stat { st_mode, .. }) => Ok(Some(FileType::from_raw_mode(st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn hide_all(directory: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fsetxattr(directory, OPAQUE, b"y", XattrFlags::empty())
}

fn make_file<R: Input>(
    archive: &mut Archive<R>,
    parent: &OwnedFd,
    name: &OsStr,
    member: &Member,
) -> Result<(), Fault> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat2(parent, Path::new(name), flags, Mode::RUSR | Mode::WUSR)?);
    for &(offset, length) in &member.pieces {
        file.seek(SeekFrom::Start(offset)).map_err(Fault::Write)?;
        copy(archive, &mut file, length)?;
    }
    file.set_len(member.size).map_err(Fault::Write)?;
    set_all(&file, member)?;
    Ok(rustix::fs::futimens(&file, &times(member))?)
}

/// As `io::copy`, but it tells an archive that cannot be read from a disk that cannot be written.
fn copy(from: &mut impl Read, to: &mut File, length: u64) -> Result<(), Fault> {
    let (mut left, mut buffer) = (length, vec![0; 64 * 1024]);
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let count = match from.read(&mut buffer[..most]) {
            Ok(0) => return Err(Fault::Truncated),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(read_fault(error)),
        };
        io::Write::write_all(to, &buffer[..count]).map_err(Fault::Write)?;
        left -= count as u64;
    }
    Ok(())
}

fn make_link(parent: &OwnedFd, name: &OsStr, member: &Member) -> Result<(), Fault> {
    if member.link.is_empty() || member.link.len() > PATH || member.link.contains(&0) {
        return Err(Fault::LinkTarget(String::from_utf8_lossy(&member.link).chars().take(200).collect()));
    }
    rustix::fs::symlinkat(OsStr::from_bytes(&member.link), parent, name)?;
    let (uid, gid) = owner(member);
    rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(rustix::fs::utimensat(parent, name, &times(member), TIMES_OF_LINK)?)
}

fn make_fifo(parent: &OwnedFd, name: &OsStr, member: &Member) -> Result<(), Fault> {
    rustix::fs::mknodat(parent, name, FileType::Fifo, Mode::RUSR, 0)?;
    let (uid, gid) = owner(member);
    rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::chmodat(parent, name, Mode::from_raw_mode(member.mode), AtFlags::empty())?;
    Ok(rustix::fs::utimensat(parent, name, &times(member), TIMES_OF_LINK)?)
}

/// Owner, mode and attributes, in this order: a change of owner takes away setuid and capabilities.
fn set_all(file: impl AsFd, member: &Member) -> Result<(), Fault> {
    let (uid, gid) = owner(member);
    rustix::fs::fchown(&file, uid, gid)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(member.mode))?;
    for (name, value) in member.xattrs.iter().filter(|(name, _)| is_wanted(name)) {
        match rustix::fs::fsetxattr(&file, name.as_slice(), value, XattrFlags::empty()) {
            // Not every file system keeps all of them.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Attributes that an image may bring. Those of overlayfs would let a layer show other files than its own; those of
/// security modules belong to the machine; default access lists would pass on to what is made later.
fn is_wanted(name: &[u8]) -> bool {
    let user = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    (user || name == b"security.capability") && !name.contains(&0)
}

fn owner(member: &Member) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(member.uid)), Some(Gid::from_raw(member.gid)))
}

fn times(member: &Member) -> Timestamps {
    let time = Timespec { tv_sec: member.mtime.0, tv_nsec: member.mtime.1.into() };
    Timestamps { last_access: time, last_modification: time }
}
