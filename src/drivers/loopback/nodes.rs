//! The nodes of a backend: each makes itself known in the data directory when it starts.
//!
//! A controller that was started first knows a node as soon as it has. A node that is gone stays known until its
//! directory is removed: what is attached to it must still be detached.
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::drivers::homes::make_directory;
use crate::drivers::record::{self, FORMAT};
use crate::drivers::refusal::Refusal;
use crate::drivers::service::is_segment;

const NODES: &str = "nodes";
const FILE: &str = "node.json";

/// The directory of all nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    root: PathBuf,
}

/// What a node says of itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Node {
    format: u32,
    id: String,
    /// Volumes that may be attached to it at a time.
    pub(super) max_volumes: u16,
}

impl Nodes {
    pub(super) fn open(data: &Path) -> Result<Self, Refusal> {
        let root = data.join(NODES);
        make_directory(&root)?;
        Ok(Self { root })
    }

    /// Makes a node known, or known anew.
    pub(super) fn announce(&self, id: &str, max_volumes: u16) -> Result<(), Refusal> {
        let path = self.root.join(id);
        make_directory(&path)?;
        let node = Node { format: FORMAT, id: id.to_owned(), max_volumes };
        let home = self.home(id)?.ok_or_else(|| Refusal::NoNode { node: id.to_owned() })?;
        record::write(&home, FILE, &node, || path.clone())?;
        rustix::fs::fsync(&home).map_err(Refusal::failed("sync", &path))
    }

    /// A node that made itself known.
    pub(super) fn find(&self, id: &str) -> Result<Node, Refusal> {
        let unknown = || Refusal::NoNode { node: id.to_owned() };
        let home = self.home(id)?.ok_or_else(unknown)?;
        record::read(home, FILE, || self.path(id))?.ok_or_else(unknown)
    }

    /// The directory of a node; none when there is no such node.
    pub(super) fn home(&self, id: &str) -> Result<Option<OwnedFd>, Refusal> {
        // Anything else is no file name.
        if !is_segment(id) {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(self.path(id), flags, Mode::empty()) {
            Ok(home) => Ok(Some(home)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(Refusal::failed("open", &self.path(id))(error)),
        }
    }

    /// Where that directory is.
    pub(super) fn path(&self, id: &str) -> PathBuf {
        self.root.join(id)
    }
}
