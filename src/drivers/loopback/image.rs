//! The data of a volume: one sparse file, blank until somebody writes to it.
//!
//! A file system is made in a second file, which then takes the name of the blank one. Whatever stops it in between, the
//! image is blank or whole.
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::volumes::LEAST;
use crate::drivers::refusal::Refusal;
use crate::sys::real::program::{self, Ended};

/// The file in the directory of a volume.
pub(super) const IMAGE: &str = "image";
/// What is being formatted.
const DRAFT: &str = "image.new";
/// Longer than any image takes, shorter than callers wait.
const FORMAT_DEADLINE: Duration = Duration::from_secs(100);
/// What mkfs.xfs demands.
const LEAST_XFS: u64 = 300 << 20;

/// A file system that can be made and mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FsType {
    Ext4,
    Xfs,
}

impl FsType {
    /// By its name; with none, the usual one.
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "" | "ext4" => Some(Self::Ext4),
            "xfs" => Some(Self::Xfs),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// The smallest size that its mkfs takes.
    pub(super) fn least(self) -> u64 {
        match self {
            Self::Ext4 => LEAST,
            Self::Xfs => LEAST_XFS,
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Ext4 => "mkfs.ext4",
            Self::Xfs => "mkfs.xfs",
        }
    }

    /// Quiet, and without the blocks that ext4 keeps back for root.
    fn arguments(self, image: &Path) -> Vec<OsString> {
        let options: &[&str] = match self {
            Self::Ext4 => &["-q", "-F", "-m", "0"],
            Self::Xfs => &["-q"],
        };
        options.iter().map(OsString::from).chain([image.as_os_str().to_owned()]).collect()
    }
}

/// What an image holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing but zeros.
    Blank,
    /// A file system of ours.
    Filesystem(FsType),
    /// Something else that has a name.
    Other(&'static str),
    /// Something.
    Unknown,
}

/// What an image begins with, where, and what it is then.
const SIGNATURES: &[(usize, &[u8], Content)] = &[
    (0, b"XFSB", Content::Filesystem(FsType::Xfs)),
    (0, b"LUKS\xba\xbe", Content::Other("a LUKS container")),
    (0, b"hsqs", Content::Other("squashfs")),
    (510, b"\x55\xaa", Content::Other("a boot sector or partition table")),
    (512, b"EFI PART", Content::Other("a partition table")),
    (512, b"LABELONE", Content::Other("an LVM physical volume")),
    (1024, b"\xe2\xe1\xf5\xe0", Content::Other("erofs")),
    // Of ext2 to ext4, all of which the kernel mounts as ext4.
    (1080, b"\x53\xef", Content::Filesystem(FsType::Ext4)),
    (4086, b"SWAPSPACE2", Content::Other("swap space")),
    (65_600, b"_BHRfS_M", Content::Other("btrfs")),
];
const HEAD: usize = 65_608;

/// Makes the blank image of a new volume in its directory.
pub(super) fn make(home: &OwnedFd, capacity: u64) -> io::Result<()> {
    blank(home, IMAGE, capacity)?.sync_all()
}

fn blank(home: &OwnedFd, name: &str, capacity: u64) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(home, name, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&file, capacity)?;
    Ok(File::from(file))
}

/// Opens the image in the directory `home`, whose path is for messages.
pub(super) fn open(home: &OwnedFd, path: &Path, read_only: bool) -> Result<OwnedFd, Refusal> {
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    match rustix::fs::openat(home, IMAGE, access | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(image) => Ok(image),
        Err(Errno::NOENT) => {
            Err(Refusal::Gone { path: path.join(IMAGE), lost: "it held the data of the volume" })
        }
        Err(error) => Err(Refusal::failed("open", &path.join(IMAGE))(error)),
    }
}

/// Bytes of the disk that the image in the directory `home` takes.
pub(super) fn used(home: &Path) -> io::Result<u64> {
    Ok(std::fs::symlink_metadata(home.join(IMAGE))?.blocks().saturating_mul(512))
}

/// What is in an image.
pub(super) fn probe(image: &OwnedFd) -> io::Result<Content> {
    let file = File::from(image.try_clone()?);
    let mut head = vec![0; HEAD];
    let mut read = 0;
    while read < HEAD {
        match file.read_at(&mut head[read..], read as u64)? {
            0 => break,
            count => read += count,
        }
    }
    for (at, magic, content) in SIGNATURES {
        if head[*at..].starts_with(magic) {
            return Ok(*content);
        }
    }
    Ok(if is_blank(&file)? { Content::Blank } else { Content::Unknown })
}

/// Whether there is nothing but holes and zeros. Ends at the first byte that is none.
fn is_blank(file: &File) -> io::Result<bool> {
    let mut bytes = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(true), // holes to the end
            Err(error) => return Err(error.into()),
        };
        match file.read_at(&mut bytes, at)? {
            0 => return Ok(true),
            count if bytes[..count].iter().any(|&byte| byte != 0) => return Ok(false),
            count => at += count as u64,
        }
    }
}

/// The directory of a volume whose blank image gets a file system.
pub(super) struct Formatting<'a> {
    pub(super) volume: &'a str,
    pub(super) home: &'a OwnedFd,
    pub(super) path: &'a Path,
    pub(super) capacity: u64,
    /// Where programs are looked for.
    pub(super) programs: &'a OsStr,
}

impl Formatting<'_> {
    /// Puts an image with an empty file system in the place of the blank one, behind which no device may be.
    pub(super) fn format(&self, fs: FsType) -> Result<(), Refusal> {
        if self.capacity < fs.least() {
            let problem = format!("has {} bytes; {} needs {} at least", self.capacity, fs.name(), fs.least());
            return Err(Refusal::Unfit { volume: self.volume.to_owned(), problem });
        }
        self.remove_draft().map_err(self.failed("remove"))?;
        let draft = blank(self.home, DRAFT, self.capacity).map_err(self.failed("make"))?;
        let made = self.run(fs).and_then(|()| self.take_over(&draft, fs));
        if made.is_err() {
            // It would be removed before the next attempt too.
            let _kept = self.remove_draft();
        }
        made
    }

    fn failed<E: Into<io::Error>>(&self, step: &'static str) -> impl FnOnce(E) -> Refusal {
        move |error| Refusal::failed(step, &self.path.join(DRAFT))(error)
    }

    fn remove_draft(&self) -> rustix::io::Result<()> {
        match rustix::fs::unlinkat(self.home, DRAFT, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn run(&self, fs: FsType) -> Result<(), Refusal> {
        let name = fs.program();
        let refused = |problem| Err(Refusal::Program { program: name, problem });
        let Some(program): Option<PathBuf> = program::find(name, self.programs) else {
            let searched = self.programs.display();
            return refused(format!(
                "it is in none of the directories {searched}; is its package installed?"
            ));
        };
        let started = std::time::Instant::now();
        effect!("csi format");
        let ended = program::run(&program, &fs.arguments(&self.path.join(DRAFT)), FORMAT_DEADLINE);
        effect!("csi format: made");
        match ended {
            Ok(Ended::Exited { status, .. }) if status.success() => {
                let millis = started.elapsed().as_millis();
                tracing::info!(volume = self.volume, fs_type = fs.name(), millis, "formatted");
                Ok(())
            }
            Ok(Ended::Exited { status, words }) => refused(format!("{status}: {words}")),
            Ok(Ended::Killed) => refused(format!("killed after {} s", FORMAT_DEADLINE.as_secs())),
            Err(error) => Err(Refusal::failed("run", &program)(error)),
        }
    }

    fn take_over(&self, draft: &File, fs: FsType) -> Result<(), Refusal> {
        let copy = draft.try_clone().map_err(self.failed("open"))?;
        let whole = draft.metadata().map_err(self.failed("look at"))?.len() == self.capacity
            && probe(&copy.into()).map_err(self.failed("read"))? == Content::Filesystem(fs);
        if !whole {
            let problem = format!("it left no {} of the size of the volume", fs.name());
            return Err(Refusal::Program { program: fs.program(), problem });
        }
        draft.sync_all().map_err(self.failed("sync"))?;
        rustix::fs::renameat(self.home, DRAFT, self.home, IMAGE).map_err(self.failed("rename"))?;
        effect!("csi format: in place");
        rustix::fs::fsync(self.home).map_err(self.failed("sync"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(writes: &[(u64, &[u8])]) -> OwnedFd {
        let file = tempfile::tempfile().unwrap();
        file.set_len(LEAST).unwrap();
        for (at, bytes) in writes {
            file.write_at(bytes, *at).unwrap();
        }
        file.into()
    }

    #[test]
    fn only_zeros_are_blank() {
        assert_eq!(probe(&image(&[])).unwrap(), Content::Blank);
        assert_eq!(probe(&image(&[(0, &[0; 10_000]), (1 << 21, &[0; 5000])])).unwrap(), Content::Blank);
        for at in [0, 100_000, LEAST - 1] {
            assert_eq!(probe(&image(&[(at, b"x")])).unwrap(), Content::Unknown, "at {at}");
        }
        let empty = tempfile::tempfile().unwrap();
        assert_eq!(probe(&empty.into()).unwrap(), Content::Blank);
    }

    #[test]
    fn what_has_a_name_is_called_by_it() {
        for (at, magic, content) in SIGNATURES {
            assert_eq!(probe(&image(&[(*at as u64, magic)])).unwrap(), *content);
            assert_ne!(probe(&image(&[(*at as u64 + 1, magic)])).unwrap(), Content::Blank);
        }
    }
}
