//! The CSI driver `btrfs.csi.wharfline.dev`: a volume is a subvolume of a btrfs file system of this node, published by a
//! bind mount.
//!
//! **Its size is a limit** that btrfs enforces (a qgroup's, on what the subvolume refers to): who writes more gets EDQUOT.
//! Counting is turned on for the whole file system when a driver starts on it. A volume grows by a higher limit.
//!
//! **A snapshot is a read-only subvolume**, taken at one moment whatever its size, and a volume from one, or from another
//! volume, is a subvolume that shares with it what neither has changed. Each counts what it refers to in full.
//!
//! A subvolume that a user makes inside of a volume has no limit, is in no snapshot and no clone, as btrfs has it, and goes
//! with the volume. All is asked of the kernel; no other program is started.
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode as FileMode, OFlags};

use super::homes::open_beneath;
pub use super::local::Settings;
use super::local::{self, Backing, DATA, Purpose, fs_type};
use super::refusal::Refusal;
use super::request::Size;
pub use super::service::{Mode, ServeError, StartError};
use super::stats::{self, Usage};
use crate::sys::real::btrfs;

/// What the driver calls itself.
pub const NAME: &str = "btrfs.csi.wharfline.dev";
/// The one topology key; its value is the node id.
pub const TOPOLOGY_KEY: &str = "btrfs.csi.wharfline.dev/node";

const NAME_OF_DATA: &std::ffi::CStr = c"data";
/// An empty subvolume refers to 16 KiB already.
const LEAST: u64 = 1 << 20;
/// For a request that names no size.
const USUAL: u64 = 1 << 30;

/// An instance that listens. Calls are answered while [`Server::run`] runs; until then they wait.
#[derive(Debug)]
pub struct Server(local::Server<Subvolumes>);

impl Server {
    /// Prepares the data directory, which has to be on btrfs, finishes what was cut short, and listens.
    ///
    /// # Errors
    /// See [`StartError`]; nothing listens then.
    pub fn bind(settings: &Settings) -> Result<Self, StartError> {
        local::Server::bind(settings).map(Self)
    }

    /// Serves until `stop` is ready, then lets calls under way end for at most five seconds. The socket is removed.
    ///
    /// # Errors
    /// When the runtime cannot take the socket or the server breaks.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        self.0.run(stop).await
    }
}

/// Subvolumes of btrfs.
#[derive(Debug)]
enum Subvolumes {}

impl Backing for Subvolumes {
    const NAME: &'static str = NAME;
    const TOPOLOGY_KEY: &'static str = TOPOLOGY_KEY;

    fn check(root: &Path) -> Result<(), Refusal> {
        let mut there = root;
        let directory = loop {
            match rustix::fs::open(there, OFlags::PATH | OFlags::CLOEXEC, FileMode::empty()) {
                Err(rustix::io::Errno::NOENT) => match there.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => there = parent,
                    Some(_) | None => there = Path::new("."),
                },
                other => break other.map_err(Refusal::failed("open", there))?,
            }
        };
        let failed = || Refusal::failed("look at", there);
        if btrfs::is_btrfs(&directory).map_err(failed())? {
            return Ok(());
        }
        let found = fs_type(&directory).map_err(failed())?;
        Err(Refusal::WrongFileSystem { path: there.to_owned(), found, wanted: "btrfs" })
    }

    fn prepare(directory: &OwnedFd) -> io::Result<()> {
        btrfs::enable_quota(directory)
    }

    fn capacity(size: Size) -> Result<u64, Refusal> {
        let limit = size.limit.unwrap_or(u64::MAX);
        let wanted = if size.required == 0 { USUAL.min(limit) } else { size.required };
        let capacity = wanted.max(LEAST);
        if capacity > limit { Err(Refusal::BelowLeast { least: capacity, limit }) } else { Ok(capacity) }
    }

    fn make(home: &OwnedFd, capacity: u64) -> io::Result<()> {
        btrfs::create(home, NAME_OF_DATA)?;
        effect!("csi subvolume: made");
        btrfs::limit(open_beneath(home, DATA)?, capacity)
    }

    fn copy(data: &OwnedFd, home: &OwnedFd, purpose: Purpose) -> io::Result<()> {
        // What programs have written is in it, synced by them or not.
        rustix::fs::syncfs(data)?;
        btrfs::snapshot(data, home, NAME_OF_DATA, purpose == Purpose::Snapshot)?;
        effect!("csi subvolume: copied");
        match purpose {
            Purpose::Snapshot => Ok(()),
            Purpose::Volume(capacity) => btrfs::limit(open_beneath(home, DATA)?, capacity),
        }
    }

    fn clear(home: &OwnedFd) -> io::Result<()> {
        btrfs::remove(home, NAME_OF_DATA)
    }

    fn grow(data: &OwnedFd, capacity: u64) -> io::Result<()> {
        btrfs::limit(data, capacity)
    }

    fn owed(data: &OwnedFd, capacity: u64) -> u64 {
        let used = btrfs::counted(data).ok().flatten().map_or(0, |counted| counted.used);
        capacity.saturating_sub(used)
    }

    fn usage(data: &OwnedFd) -> io::Result<Usage> {
        let below = stats::bytes(data)?;
        Ok(match btrfs::counted(data)? {
            Some(btrfs::Counted { used, limit: Some(limit) }) => {
                let available = limit.saturating_sub(used).min(below.available);
                Usage { total: limit, used, available }
            }
            Some(btrfs::Counted { used, limit: None }) => Usage { used, ..below },
            None => below,
        })
    }

    /// btrfs makes inodes as they are needed and counts none.
    fn entries(_: &OwnedFd) -> io::Result<Option<Usage>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let size = |required, limit: u64| Size { required, limit: (limit > 0).then_some(limit) };
        for (asked, made) in [
            (size(0, 0), USUAL),
            (size(0, 5 << 20), 5 << 20),
            (size(1, 0), LEAST),
            (size(7 << 30, 0), 7 << 30),
            (size(LEAST, LEAST), LEAST),
        ] {
            assert_eq!(Subvolumes::capacity(asked).unwrap(), made, "{asked:?}");
        }
        for asked in [size(0, LEAST - 1), size(1, 4096)] {
            assert!(matches!(Subvolumes::capacity(asked), Err(Refusal::BelowLeast { .. })), "{asked:?}");
        }
    }
}
