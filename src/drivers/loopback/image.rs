//! The data of a volume: one sparse file, blank until somebody writes to it.
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::volumes::LEAST;
use crate::drivers::refusal::Refusal;
use crate::sys::real::copies::Way;

/// The file in the directory of a volume.
pub(super) const IMAGE: &str = "image";
/// What mkfs.xfs demands.
const LEAST_XFS: u64 = 300 << 20;
/// What mkfs.btrfs demands, which is 109 MiB and 16 KiB, with some room to be used.
const LEAST_BTRFS: u64 = 128 << 20;

/// A file system that can be made and mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FsType {
    Ext4,
    Xfs,
    Btrfs,
}

impl FsType {
    /// By its name; with none, the usual one.
    pub(super) fn parse(name: &str) -> Option<Self> {
        match name {
            "" | "ext4" => Some(Self::Ext4),
            "xfs" => Some(Self::Xfs),
            "btrfs" => Some(Self::Btrfs),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The smallest size that its mkfs takes.
    pub(super) fn least(self) -> u64 {
        match self {
            Self::Ext4 => LEAST,
            Self::Xfs => LEAST_XFS,
            Self::Btrfs => LEAST_BTRFS,
        }
    }

    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Ext4 => "mkfs.ext4",
            Self::Xfs => "mkfs.xfs",
            Self::Btrfs => "mkfs.btrfs",
        }
    }

    /// Quiet, and without the blocks that ext4 keeps back for root.
    pub(super) fn arguments(self, image: &Path) -> Vec<OsString> {
        let options: &[&str] = match self {
            Self::Ext4 => &["-q", "-F", "-m", "0"],
            Self::Xfs | Self::Btrfs => &["-q"],
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
    (65_600, b"_BHRfS_M", Content::Filesystem(FsType::Btrfs)),
];
const HEAD: usize = 65_608;

/// Makes the blank image of a new volume in its directory.
pub(super) fn make(home: &OwnedFd, capacity: u64) -> io::Result<()> {
    blank(home, IMAGE, capacity)?.sync_all()
}

pub(super) fn blank(home: &OwnedFd, name: &str, capacity: u64) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(home, name, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&file, capacity)?;
    Ok(File::from(file))
}

/// Makes an image of `capacity` bytes in the directory `home`; `fill` puts what is no blank into it.
pub(super) fn make_from(
    home: &OwnedFd,
    capacity: u64,
    fill: impl FnOnce(&File) -> Result<Way, Refusal>,
) -> Result<Way, Refusal> {
    let failed = || Refusal::failed("make a copy of the", Path::new(IMAGE));
    let file = blank(home, IMAGE, 0).map_err(failed())?;
    let way = fill(&file)?;
    file.set_len(capacity).map_err(failed())?;
    file.sync_all().map_err(failed())?;
    Ok(way)
}

/// Makes the image in the directory `home` as large as its volume is, if it is smaller.
pub(super) fn settle_size(home: &OwnedFd, path: &Path, capacity: u64) -> Result<(), Refusal> {
    let image = open(home, path, false)?;
    let failed = || Refusal::failed("grow the image in", path);
    let has = rustix::fs::fstat(&image).map_err(failed())?.st_size;
    if u64::try_from(has).is_ok_and(|has| has < capacity) {
        rustix::fs::ftruncate(&image, capacity).map_err(failed())?;
        rustix::fs::fsync(&image).map_err(failed())?;
        effect!("csi image: grown");
    }
    Ok(())
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

/// Bytes that the file system in an image of that kind has, by its own word.
pub(super) fn filesystem_bytes(image: &OwnedFd, fs: FsType) -> io::Result<u64> {
    let file = File::from(image.try_clone()?);
    let mut head = vec![0; HEAD + 64];
    file.read_exact_at(&mut head, 0)?;
    let bytes = |at: usize, count: usize| head[at..at + count].iter().map(|&byte| u64::from(byte));
    let little = |at, count| bytes(at, count).rev().fold(0_u64, |sum, byte| sum << 8 | byte);
    let big = |at, count| bytes(at, count).fold(0_u64, |sum, byte| sum << 8 | byte);
    Ok(match fs {
        // s_blocks_count, whose upper half counts with the feature 64bit alone, and s_log_block_size.
        FsType::Ext4 => {
            let upper = if little(1024 + 0x60, 4) & 0x80 == 0 { 0 } else { little(1024 + 0x150, 4) };
            (upper << 32 | little(1024 + 4, 4)) << (10 + little(1024 + 0x18, 4).min(6))
        }
        // sb_dblocks, sb_blocksize.
        FsType::Xfs => big(8, 8).saturating_mul(big(4, 4)),
        // total_bytes
        FsType::Btrfs => little(65_536 + 0x70, 8),
    })
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
