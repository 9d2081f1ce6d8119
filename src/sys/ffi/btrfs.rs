//! Requests that btrfs alone knows: subvolumes, and what their quota counts.
use super::check;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ffi::CStr;
use std::io;

/// `_IOW(0x94, 3, struct btrfs_ioctl_vol_args)`
const RESIZE: u64 = 0x5000_9403;
/// `_IOW(0x94, 15, struct btrfs_ioctl_vol_args)`
const SNAP_DESTROY: u64 = 0x5000_940f;
/// `_IOWR(0x94, 17, struct btrfs_ioctl_search_args)`
const TREE_SEARCH: u64 = 0xd000_9411;
/// `_IOWR(0x94, 18, struct btrfs_ioctl_ino_lookup_args)`
const INO_LOOKUP: u64 = 0xd000_9412;
/// `_IOW(0x94, 23, struct btrfs_ioctl_vol_args_v2)`
const SNAP_CREATE_V2: u64 = 0x5000_9417;
/// `_IOW(0x94, 24, struct btrfs_ioctl_vol_args_v2)`
const SUBVOL_CREATE_V2: u64 = 0x5000_9418;
/// `_IOWR(0x94, 40, struct btrfs_ioctl_quota_ctl_args)`
const QUOTA_CTL: u64 = 0xc010_9428;
/// `_IOW(0x94, 42, struct btrfs_ioctl_qgroup_create_args)`
const QGROUP_CREATE: u64 = 0x4010_942a;
/// `_IOR(0x94, 43, struct btrfs_ioctl_qgroup_limit_args)`
const QGROUP_LIMIT: u64 = 0x8030_942b;
/// `_IOW(0x94, 63, struct btrfs_ioctl_vol_args_v2)`
const SNAP_DESTROY_V2: u64 = 0x5000_943f;

/// The inode of the root of every subvolume.
const ROOT_INODE: u64 = 256;
const READ_ONLY: u64 = 1 << 1;
const BY_ID: u64 = 1 << 4;
/// All requests but those of quotas have this many bytes.
const ARGUMENTS: usize = 4096;
/// The search key, and what comes before each item that was found.
const KEY: usize = 104;
const HEADER: usize = 32;

/// One item of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    /// Its key.
    pub(crate) object: u64,
    /// Of the key, too.
    pub(crate) offset: u64,
    /// What stands there.
    pub(crate) bytes: Vec<u8>,
}

/// Which items of a tree are looked for: all of one kind between two keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search {
    /// Of which tree.
    pub(crate) tree: u64,
    /// Of what kind.
    pub(crate) kind: u32,
    /// The first and the last object.
    pub(crate) objects: (u64, u64),
    /// The first and the last offset.
    pub(crate) offsets: (u64, u64),
}

/// What the kernel reads and writes; aligned as its structs are.
#[repr(C, align(8))]
struct Arguments([u8; ARGUMENTS]);

impl Arguments {
    fn new() -> Self {
        Self([0; ARGUMENTS])
    }

    /// With a name behind the number of a descriptor, as `struct btrfs_ioctl_vol_args` has it.
    fn named(name: &CStr) -> io::Result<Self> {
        let mut arguments = Self::new();
        arguments.name(8, name)?;
        Ok(arguments)
    }

    /// `struct btrfs_ioctl_vol_args_v2`: a descriptor, a transaction, flags, four more numbers, a name.
    fn second(source: Option<BorrowedFd<'_>>, flags: u64, name: &CStr) -> io::Result<Self> {
        let mut arguments = Self::new();
        let number = source.map_or(0, |source| i64::from(source.as_raw_fd()));
        arguments.put(0, number.cast_unsigned());
        arguments.put(16, flags);
        arguments.name(56, name)?;
        Ok(arguments)
    }

    fn put(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    fn name(&mut self, at: usize, name: &CStr) -> io::Result<()> {
        let name = name.to_bytes_with_nul();
        let room = self.0[at..].get_mut(..name.len()).ok_or(io::ErrorKind::InvalidFilename)?;
        room.copy_from_slice(name);
        Ok(())
    }

    fn word(&self, at: usize) -> u64 {
        word(&self.0, at)
    }

    fn ask(&mut self, fd: impl AsFd, request: u64) -> io::Result<()> {
        // SAFETY: each of the requests that are sent so reads and writes at most 4096 bytes through the pointer, which is
        // how long the array is; the descriptors whose numbers are in it are borrowed by the callers.
        let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request as _, self.0.as_mut_ptr()) };
        check(result.into()).map(drop)
    }
}

/// Sends a request whose struct is all of `words`.
fn ask(fd: impl AsFd, request: u64, words: &mut [u64]) -> io::Result<()> {
    // SAFETY: the callers below give as many words as the struct of their request has.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request as _, words.as_mut_ptr()) };
    check(result.into()).map(drop)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// Grows the file system that a file is in to all of its one device.
pub(crate) fn grow(file: impl AsFd) -> io::Result<()> {
    Arguments::named(c"max")?.ask(file, RESIZE)
}

/// Makes an empty subvolume called `name` in a directory.
pub(crate) fn create(directory: impl AsFd, name: &CStr) -> io::Result<()> {
    Arguments::second(None, 0, name)?.ask(directory, SUBVOL_CREATE_V2)
}

/// Makes a subvolume called `name` in a directory that shows what `source` shows now.
pub(crate) fn snapshot(
    source: impl AsFd,
    directory: impl AsFd,
    name: &CStr,
    read_only: bool,
) -> io::Result<()> {
    let flags = if read_only { READ_ONLY } else { 0 };
    Arguments::second(Some(source.as_fd()), flags, name)?.ask(directory, SNAP_CREATE_V2)
}

/// Removes the subvolume called `name` in a directory, with everything in it. ENOTEMPTY while it holds other ones.
pub(crate) fn destroy(directory: impl AsFd, name: &CStr) -> io::Result<()> {
    Arguments::named(name)?.ask(directory, SNAP_DESTROY)
}

/// Removes the subvolume with this id from the file system that `directory` is in (Linux 5.7).
pub(crate) fn destroy_by_id(directory: impl AsFd, id: u64) -> io::Result<()> {
    let mut arguments = Arguments::second(None, BY_ID, c"")?;
    arguments.put(56, id);
    arguments.ask(directory, SNAP_DESTROY_V2)
}

/// The id of the subvolume that a file is in.
pub(crate) fn subvolume_id(file: impl AsFd) -> io::Result<u64> {
    let mut arguments = Arguments::new();
    arguments.put(8, ROOT_INODE);
    arguments.ask(file, INO_LOOKUP)?;
    Ok(arguments.word(0))
}

/// Turns on that each subvolume is counted, if it is not yet.
pub(crate) fn enable_quota(file: impl AsFd) -> io::Result<()> {
    // struct btrfs_ioctl_quota_ctl_args: what to do, what is.
    ask(file, QUOTA_CTL, &mut [1, 0])
}

/// The most bytes that the subvolume that a file is in may refer to.
pub(crate) fn limit(file: impl AsFd, bytes: u64) -> io::Result<()> {
    // struct btrfs_ioctl_qgroup_limit_args: the group, 0 for that of the subvolume; which of the limits; max_rfer,
    // max_excl, rsv_rfer, rsv_excl.
    ask(file, QGROUP_LIMIT, &mut [0, 1, bytes, 0, 0, 0])
}

/// Forgets the count of a subvolume that is gone.
pub(crate) fn forget_count(file: impl AsFd, id: u64) -> io::Result<()> {
    ask(file, QGROUP_CREATE, &mut [0, id])
}

/// The items that are looked for, in the file system of a file.
pub(crate) fn search(file: impl AsFd, wanted: Search) -> io::Result<Vec<Item>> {
    let mut found: Vec<Item> = Vec::new();
    let (mut object, mut offset) = (wanted.objects.0, wanted.offsets.0);
    loop {
        // struct btrfs_ioctl_search_key: the tree; objects, offsets, transactions from and to; kinds from and to and the
        // most items, 4 bytes each.
        let mut arguments = Arguments::new();
        let words = [wanted.tree, object, wanted.objects.1, offset, wanted.offsets.1, 0, u64::MAX];
        for (at, value) in words.into_iter().enumerate() {
            arguments.put(at * 8, value);
        }
        let kinds = u64::from(wanted.kind);
        for (at, value) in [(56, kinds), (60, kinds), (64, u64::from(u32::MAX))] {
            let value = u32::try_from(value).unwrap_or(u32::MAX);
            arguments.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        arguments.ask(&file, TREE_SEARCH)?;
        let count = u32::from_ne_bytes(arguments.0[64..68].try_into().unwrap_or_default());
        let batch = items(&arguments.0[KEY..], count);
        let Some((last_object, last_offset, _, _)) = batch.last().copied() else { return Ok(found) };
        // Keys are compared as a whole, so what is between two of them may be of another kind or out of range.
        found.extend(
            batch
                .iter()
                .filter(|(object, offset, kind, _)| {
                    *kind == wanted.kind
                        && (wanted.objects.0..=wanted.objects.1).contains(object)
                        && (wanted.offsets.0..=wanted.offsets.1).contains(offset)
                })
                .map(|(object, offset, _, bytes)| Item {
                    object: *object,
                    offset: *offset,
                    bytes: bytes.to_vec(),
                }),
        );
        (object, offset) = match last_offset.checked_add(1) {
            Some(next) => (last_object, next),
            None if last_object < wanted.objects.1 => (last_object + 1, 0),
            None => return Ok(found),
        };
    }
}

/// Object, offset, kind and content of each item behind the key of a search.
fn items(bytes: &[u8], count: u32) -> Vec<(u64, u64, u32, &[u8])> {
    let mut found = Vec::new();
    let mut at = 0;
    for _ in 0..count {
        // struct btrfs_ioctl_search_header: transid, objectid, offset; type and len, 4 bytes each.
        let (object, offset, both) = (word(bytes, at + 8), word(bytes, at + 16), word(bytes, at + 24));
        let halves = both.to_ne_bytes();
        let half = |at: usize| u32::from_ne_bytes(halves[at..at + 4].try_into().unwrap_or_default());
        let length = usize::try_from(half(4)).unwrap_or(usize::MAX);
        let Some(content) = bytes.get(at + HEADER..).and_then(|rest| rest.get(..length)) else { break };
        found.push((object, offset, half(0), content));
        at += HEADER + length;
    }
    found
}
