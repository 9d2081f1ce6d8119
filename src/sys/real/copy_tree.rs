//! Copies a directory with everything in it: owners, modes, times, extended attributes, hard links, symbolic links, holes
//! and special files.
//!
//! Everything is reached from two open directories, beneath them, without following a symbolic link and without entering
//! another mount. Any depth takes the same few descriptors: a directory is opened by its way from the top. What goes
//! away while it is copied is left out.
use crate::sys::real::copies;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, RawMode, ResolveFlags, Stat, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::ffi::{CStr, CString};

/// The longest way that the kernel is given at once; it takes 4095 bytes.
const LONGEST_WAY: usize = 2048;
/// The most bytes of a list of extended attributes, and of the value of one.
const LONGEST_ATTRIBUTE: usize = 64 << 10;

/// Fills the empty directory `to` with what is in `from`, and makes its own attributes the same. It is on disk then.
pub(crate) fn directory(from: &OwnedFd, to: &OwnedFd) -> Result<()> {
    let mut copy = Copy {
        from,
        to,
        directories: vec![Place { parent: 0, name: CString::default() }],
        links: HashMap::new(),
        list: vec![0; LONGEST_ATTRIBUTE],
        value: vec![0; LONGEST_ATTRIBUTE],
    };
    let mut at = 0;
    while at < copy.directories.len() {
        copy.entries(at)?;
        at += 1;
    }
    // Last, and those inside first: what is made in a directory changes its times, and a mode may forbid it.
    for at in (0..copy.directories.len()).rev() {
        copy.attributes_of_directory(at)?;
    }
    rustix::fs::syncfs(to)
}

/// An entry of a directory that is known by its number.
struct Place {
    parent: usize,
    name: CString,
}

struct Copy<'a> {
    from: &'a OwnedFd,
    to: &'a OwnedFd,
    /// The top, and then every directory that was found, after the one that it is in.
    directories: Vec<Place>,
    /// Files with several names, by device and inode, and where the first of them was put.
    links: HashMap<(u64, u64), Place>,
    list: Vec<u8>,
    value: Vec<u8>,
}

impl Copy<'_> {
    /// The way from the top to a directory, in pieces that the kernel takes.
    fn way(&self, mut at: usize) -> Vec<CString> {
        let mut names = Vec::new();
        while at != 0 {
            names.push(self.directories[at].name.as_bytes());
            at = self.directories[at].parent;
        }
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        for name in names.into_iter().rev() {
            match pieces.last_mut() {
                Some(piece) if piece.len() + name.len() < LONGEST_WAY => {
                    piece.push(b'/');
                    piece.extend_from_slice(name);
                }
                Some(_) | None => pieces.push(name.to_vec()),
            }
        }
        // Names that the kernel gave have no NUL in them.
        pieces.into_iter().map(|piece| CString::new(piece).unwrap_or_default()).collect()
    }

    fn open(&self, top: &OwnedFd, at: usize) -> Result<OwnedFd> {
        let mut open = beneath(top, c".", OFlags::DIRECTORY)?;
        for piece in self.way(at) {
            open = beneath(&open, &piece, OFlags::DIRECTORY)?;
        }
        Ok(open)
    }

    fn entries(&mut self, at: usize) -> Result<()> {
        let from = match self.open(self.from, at) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if at != 0 => return Ok(()),
            other => other?,
        };
        let to = self.open(self.to, at)?;
        for entry in Dir::read_from(&from)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            match self.entry(at, (&from, &to), name) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Copies one entry. ENOENT when it is gone; what was begun of it stays, as what a file that shrinks has.
    fn entry(&mut self, at: usize, (from, to): (&OwnedFd, &OwnedFd), name: &CStr) -> Result<()> {
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            rustix::fs::mkdirat(to, name, Mode::RWXU)?;
            self.directories.push(Place { parent: at, name: name.to_owned() });
            return Ok(());
        }
        let key = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1
            && let Some(first) = self.links.get(&key)
        {
            let directory = self.open(self.to, first.parent)?;
            return rustix::fs::linkat(&directory, &first.name, to, name, AtFlags::empty());
        }
        match kind {
            FileType::RegularFile => self.file(from, to, name)?,
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&target, to, name)?;
                self.attributes_by_name((from, to), name, &stat)?;
            }
            _ => {
                let mode = Mode::from_raw_mode(stat.st_mode);
                rustix::fs::mknodat(to, name, kind, mode, stat.st_rdev)?;
                self.attributes_by_name((from, to), name, &stat)?;
            }
        }
        if stat.st_nlink > 1 {
            self.links.insert(key, Place { parent: at, name: name.to_owned() });
        }
        Ok(())
    }

    fn file(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> Result<()> {
        // A fifo that took its place meanwhile does not hold this up.
        let from = match beneath(from, name, OFlags::NONBLOCK) {
            Err(Errno::LOOP | Errno::NXIO) => return Err(Errno::NOENT),
            other => other?,
        };
        let stat = rustix::fs::fstat(&from)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::NOENT);
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        copies::file(&from, &to, length)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        self.attributes(&from, &to, &stat)
    }

    fn attributes_of_directory(&mut self, at: usize) -> Result<()> {
        let from = match self.open(self.from, at) {
            // Gone meanwhile: what was copied of it is kept with the mode that it got.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            other => other?,
        };
        let to = self.open(self.to, at)?;
        let stat = rustix::fs::fstat(&from)?;
        self.attributes(&from, &to, &stat)
    }

    /// In this order: a new owner takes set-uid bits and capabilities away, and a list of access rights changes the mode.
    fn attributes(&mut self, from: &OwnedFd, to: &OwnedFd, stat: &Stat) -> Result<()> {
        rustix::fs::fchown(to, Some(owner(stat)), Some(group(stat)))?;
        rustix::fs::fchmod(to, permissions(stat.st_mode))?;
        let count = rustix::fs::flistxattr(from, &mut self.list[..])?;
        for name in names(&self.list[..count]) {
            let length = match rustix::fs::fgetxattr(from, name, &mut self.value[..]) {
                Err(Errno::NODATA) => continue,
                other => other?,
            };
            rustix::fs::fsetxattr(to, name, &self.value[..length], XattrFlags::empty())?;
        }
        rustix::fs::futimens(to, &times(stat))
    }

    /// For what cannot be opened. Nobody else knows of the copy, so its name leads to what was made under it.
    fn attributes_by_name(
        &mut self,
        (from, to): (&OwnedFd, &OwnedFd),
        name: &CStr,
        stat: &Stat,
    ) -> Result<()> {
        let at = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(to, name, Some(owner(stat)), Some(group(stat)), at)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            rustix::fs::chmodat(to, name, permissions(stat.st_mode), AtFlags::empty())?;
        }
        let (source, copy) = (by_descriptor(from, name), by_descriptor(to, name));
        let count = rustix::fs::llistxattr(&source, &mut self.list[..])?;
        for attribute in names(&self.list[..count]) {
            let length = rustix::fs::lgetxattr(&source, attribute, &mut self.value[..])?;
            rustix::fs::lsetxattr(&copy, attribute, &self.value[..length], XattrFlags::empty())?;
        }
        rustix::fs::utimensat(to, name, &times(stat), at)
    }
}

/// Opens what is beneath a directory to be read, and nothing that a link leads to or that is mounted there (EXDEV).
fn beneath(directory: impl AsFd, way: &CStr, flags: OFlags) -> Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::CLOEXEC;
    let stay = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(directory, way, flags, Mode::empty(), stay)
}

/// A path to an entry, for calls that take nothing else.
fn by_descriptor(directory: &OwnedFd, name: &CStr) -> CString {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes());
    CString::new(path).unwrap_or_default()
}

fn names(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&byte| byte == 0).filter(|name| !name.is_empty())
}

fn owner(stat: &Stat) -> Uid {
    Uid::from_raw(stat.st_uid)
}

fn group(stat: &Stat) -> Gid {
    Gid::from_raw(stat.st_gid)
}

fn permissions(mode: RawMode) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

#[cfg(test)]
mod tests;
