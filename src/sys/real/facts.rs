//! What one handle refers to: the inode, and the mount when it is the root of one.
//!
//! Reads no mount table: `statx` names the mount, `statmount` (Linux 6.8) or `statfs` describes it.
use crate::sys::ffi;
use crate::sys::kernel::{DeviceId, FileKind, MountFacts, MountId, MountRow, Present};
use crate::sys::real::open::statx;
use rustix::fd::AsFd;
use rustix::fs::{FileType, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// `STATX_MNT_ID_UNIQUE`: ids that are not reused (Linux 6.8, together with `statmount`).
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// The largest answer of `statmount` that is taken: two paths of the longest kind and the rest.
const LARGEST: usize = 64 * 1024;

/// How this kernel is asked about a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asking {
    /// `statmount`, with ids that are unique until the next boot.
    Statmount,
    /// `statx` and `statfs`, with ids that are reused.
    Statfs,
}

/// Finds out how this kernel can be asked.
pub(crate) fn probe() -> Asking {
    let root = rustix::fs::openat(
        rustix::fs::CWD,
        "/",
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let id = root.and_then(|root| statx(&root, MNT_ID_UNIQUE));
    match id {
        Ok(id) if id.stx_mask & MNT_ID_UNIQUE.bits() != 0 && described(id.stx_mnt_id).is_ok() => {
            Asking::Statmount
        }
        Ok(_) | Err(_) => Asking::Statfs,
    }
}

/// What the handle refers to.
pub(crate) fn present(fd: impl AsFd, asking: Asking) -> Result<Present, Errno> {
    let id = match asking {
        Asking::Statmount => MNT_ID_UNIQUE,
        Asking::Statfs => StatxFlags::MNT_ID,
    };
    let seen = statx(fd.as_fd(), StatxFlags::TYPE | StatxFlags::INO | id)?;
    let is_root = seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let kind = match FileType::from_raw_mode(seen.stx_mode.into()) {
        FileType::Directory => FileKind::Directory,
        FileType::RegularFile => FileKind::File,
        FileType::BlockDevice => {
            FileKind::Block(DeviceId { major: seen.stx_rdev_major, minor: seen.stx_rdev_minor })
        }
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::Unknown => FileKind::Other,
    };
    let device = DeviceId { major: seen.stx_dev_major, minor: seen.stx_dev_minor };
    let mount = match (is_root, asking) {
        (false, _) => None,
        (true, Asking::Statmount) => Some(described(seen.stx_mnt_id)?.facts),
        (true, Asking::Statfs) => {
            let answer = rustix::fs::fstatfs(fd.as_fd())?;
            Some(MountFacts {
                id: MountId(seen.stx_mnt_id),
                device,
                magic: magic(answer.f_type),
                fs_type: None,
                root: None,
                read_only: u64::try_from(answer.f_flags).unwrap_or(0) & libc::ST_RDONLY != 0,
            })
        }
    };
    Ok(Present { kind, device, inode: seen.stx_ino, mount })
}

/// `f_type` is signed on some machines; the number is 32 bits wide on all.
fn magic(f_type: i64) -> u64 {
    u64::from_ne_bytes(f_type.to_ne_bytes()) & 0xffff_ffff
}

/// What `statmount` says of one mount.
pub(crate) struct Described {
    pub(crate) facts: MountFacts,
    parent: MountId,
    mount_point: PathBuf,
    root: PathBuf,
    source: Option<String>,
    peer_group: u64,
    master: u64,
}

impl Described {
    /// As a row of the mount table.
    pub(crate) fn row(self) -> MountRow {
        MountRow {
            id: self.facts.id,
            parent: self.parent,
            device: self.facts.device,
            root: self.root,
            mount_point: self.mount_point,
            fs_type: self.facts.fs_type.unwrap_or_default(),
            source: self.source,
            read_only: self.facts.read_only,
            peer_group: self.peer_group,
            master: self.master,
        }
    }
}

// `STATMOUNT_*`: which fields are wanted and which were given.
const SB_BASIC: u64 = 0x1;
const MNT_BASIC: u64 = 0x2;
const MNT_ROOT: u64 = 0x8;
const MNT_POINT: u64 = 0x10;
const FS_TYPE: u64 = 0x20;
const SB_SOURCE: u64 = 0x200;
const MNT_OPTS: u64 = 0x80;
const WANTED: u64 = SB_BASIC | MNT_BASIC | MNT_ROOT | MNT_POINT | FS_TYPE | SB_SOURCE;
/// Where the strings begin in `struct statmount`.
const STRINGS: usize = 512;

/// Asks `statmount` about the mount with this unique id.
pub(crate) fn described(id: u64) -> Result<Described, Errno> {
    let mut buffer = vec![0_u64; 256];
    loop {
        match ffi::statmount(id, WANTED, &mut buffer) {
            Ok(()) => return Answer(&buffer).read(),
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                if errno != Errno::OVERFLOW || buffer.len() * 8 >= LARGEST {
                    return Err(errno);
                }
                buffer.resize(buffer.len() * 4, 0);
            }
        }
    }
}

/// Whether this process sees a mount with this unique id.
pub(crate) fn is_there(id: u64) -> Result<bool, Errno> {
    let mut buffer = [0_u64; 256];
    match ffi::statmount(id, MNT_BASIC, &mut buffer).map_err(|error| Errno::from_io_error(&error)) {
        Ok(()) => Ok(true),
        Err(Some(Errno::NOENT)) => Ok(false),
        Err(errno) => Err(errno.unwrap_or(Errno::IO)),
    }
}

/// Whether the file system of the mount with this unique id was shut down: ext4 says so nowhere else. False where the
/// kernel does not tell (before Linux 6.11), and of file systems that do not say.
pub(crate) fn is_shut_down(id: u64) -> bool {
    // Options are at most a page.
    let mut buffer = vec![0_u64; 1024];
    let options = match ffi::statmount(id, MNT_OPTS, &mut buffer) {
        Ok(()) => Answer(&buffer).string(MNT_OPTS, 4),
        Err(_) => None,
    };
    options.is_some_and(|options| options.as_bytes().split(|&b| b == b',').any(|one| one == b"shutdown"))
}

/// A `struct statmount` as the kernel wrote it.
struct Answer<'a>(&'a [u64]);

impl Answer<'_> {
    fn wide(&self, at: usize) -> u64 {
        self.0[at / 8]
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = self.0[at / 8].to_ne_bytes();
        let at = at % 8;
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    /// The string whose offset stands at `at`, if its field was given.
    fn string(&self, field: u64, at: usize) -> Option<OsString> {
        if self.wide(8) & field == 0 {
            return None;
        }
        let start = STRINGS.checked_add(usize::try_from(self.word(at)).ok()?)?;
        let mut bytes = self.0.iter().skip(start / 8).flat_map(|word| word.to_ne_bytes()).skip(start % 8);
        let mut text = Vec::new();
        // The room behind it is large, and not looked at: this is done for each mount at a start.
        loop {
            match bytes.next()? {
                0 => return Some(OsString::from_vec(text)),
                byte => text.push(byte),
            }
        }
    }

    fn read(&self) -> Result<Described, Errno> {
        if self.wide(8) & (SB_BASIC | MNT_BASIC) != (SB_BASIC | MNT_BASIC) {
            return Err(Errno::OPNOTSUPP);
        }
        let text = |string: Option<OsString>| string.map(|s| s.to_string_lossy().into_owned());
        let root = self.string(MNT_ROOT, 104);
        let read_only = self.word(32) & 1 != 0 || self.wide(64) & 1 != 0;
        Ok(Described {
            parent: MountId(self.wide(48)),
            mount_point: self.string(MNT_POINT, 108).unwrap_or_default().into(),
            root: root.clone().unwrap_or_default().into(),
            source: text(self.string(SB_SOURCE, 124)),
            peer_group: self.wide(80),
            master: self.wide(88),
            facts: MountFacts {
                id: MountId(self.wide(40)),
                device: DeviceId { major: self.word(16), minor: self.word(20) },
                magic: self.wide(24),
                fs_type: text(self.string(FS_TYPE, 36)),
                root: text(root),
                read_only,
            },
        })
    }
}
