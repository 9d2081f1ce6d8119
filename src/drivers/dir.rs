//! The CSI driver `dir.csi.wharfline.dev`: a volume is a directory of this node, published by a bind mount.
//!
//! There is no quota: a size is a promise that is counted, not enforced, and so a volume grows by a larger promise. What is
//! used of it is what is used of the file system below, and so are its statistics.
//!
//! **A snapshot is a copy** of the directory, file by file, by sharing the blocks of each where the file system can. It is
//! not taken at one moment: who writes meanwhile may be in it with one file as it was and another as it is.
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::Mode as FileMode;

use super::homes::open_beneath;
pub use super::local::Settings;
use super::local::{self, Backing, DATA, Purpose};
use super::refusal::Refusal;
use super::request::Size;
pub use super::service::{Mode, ServeError, StartError};
use super::stats::{self, Usage};
use crate::sys::real::copy_tree;

/// What the driver calls itself.
pub const NAME: &str = "dir.csi.wharfline.dev";
/// The one topology key; its value is the node id.
pub const TOPOLOGY_KEY: &str = "dir.csi.wharfline.dev/node";

/// An instance that listens. Calls are answered while [`Server::run`] runs; until then they wait.
#[derive(Debug)]
pub struct Server(local::Server<Directories>);

impl Server {
    /// Prepares the data directory, finishes deletions that were cut short, and listens.
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

/// Plain directories.
#[derive(Debug)]
enum Directories {}

impl Backing for Directories {
    const NAME: &'static str = NAME;
    const TOPOLOGY_KEY: &'static str = TOPOLOGY_KEY;

    fn check(_: &Path) -> Result<(), Refusal> {
        Ok(())
    }

    fn prepare(_: &OwnedFd) -> io::Result<()> {
        Ok(())
    }

    fn capacity(size: Size) -> Result<u64, Refusal> {
        Ok(size.required)
    }

    fn make(home: &OwnedFd, _: u64) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(home, DATA, FileMode::from_raw_mode(0o755))?)
    }

    fn copy(data: &OwnedFd, home: &OwnedFd, purpose: Purpose) -> io::Result<()> {
        Self::make(home, 0)?;
        let copy = open_beneath(home, DATA)?;
        effect!("csi copy {purpose:?}: begun");
        match copy_tree::directory(data, &copy) {
            Err(rustix::io::Errno::XDEV) => {
                Err(io::Error::other("something is mounted in the volume; a copy cannot hold it"))
            }
            other => Ok(other?),
        }
    }

    fn clear(_: &OwnedFd) -> io::Result<()> {
        Ok(())
    }

    fn grow(_: &OwnedFd, _: u64) -> io::Result<()> {
        Ok(())
    }

    /// What volumes have written already counts twice, as used and as promised: the answer errs on the safe side and
    /// costs no walk through the data.
    fn owed(_: &OwnedFd, capacity: u64) -> u64 {
        capacity
    }

    fn usage(data: &OwnedFd) -> io::Result<Usage> {
        stats::bytes(data)
    }

    fn entries(data: &OwnedFd) -> io::Result<Option<Usage>> {
        stats::entries(data)
    }
}
