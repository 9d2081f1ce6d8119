//! What a directory is made of: the one thing in which the drivers of this kind differ.
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::drivers::refusal::Refusal;
use crate::drivers::request::Size;
use crate::drivers::stats::Usage;

/// The directory in the home of a volume or snapshot that holds its data.
pub(in crate::drivers) const DATA: &str = "data";

/// What a copy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::drivers) enum Purpose {
    /// A snapshot, in which nothing changes any more.
    Snapshot,
    /// A volume of so many bytes.
    Volume(u64),
}

/// How one driver makes, copies, limits and removes the directory [`DATA`] in a home. No type has a value: what is told
/// here is the same for all volumes of a driver.
pub(in crate::drivers) trait Backing: Send + Sync + Debug + 'static {
    /// What the driver calls itself.
    const NAME: &'static str;
    /// The one topology key; its value is the node id.
    const TOPOLOGY_KEY: &'static str;

    /// Refuses a place for the data directory that will not do, before anything is made there.
    fn check(root: &Path) -> Result<(), Refusal>;

    /// Prepares a data directory that is there.
    fn prepare(directory: &OwnedFd) -> io::Result<()>;

    /// Bytes to promise for what is asked for.
    fn capacity(size: Size) -> Result<u64, Refusal>;

    /// Makes an empty one.
    fn make(home: &OwnedFd, capacity: u64) -> io::Result<()>;

    /// Makes one with what is in `data`.
    fn copy(data: &OwnedFd, home: &OwnedFd, purpose: Purpose) -> io::Result<()>;

    /// Removes it as far as that takes more than removing files. None there is success.
    fn clear(home: &OwnedFd) -> io::Result<()>;

    /// Lets it grow to so many bytes. So many already is success.
    fn grow(data: &OwnedFd, capacity: u64) -> io::Result<()>;

    /// Of the bytes that were promised to a volume, those that it has not taken yet.
    fn owed(data: &OwnedFd, capacity: u64) -> u64;

    /// What of it is used, in bytes.
    fn usage(data: &OwnedFd) -> io::Result<Usage>;

    /// Entries that are used, where the file system counts them.
    fn entries(data: &OwnedFd) -> io::Result<Option<Usage>>;
}
