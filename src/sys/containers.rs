//! What a machine has for containers: runc, images, devices, and the paths that containers are given.
//!
//! Images are named by their layers' directories, which overlayfs takes as they are. Nothing is run here: a container is
//! a task like others ([`crate::sys::process`]).
use crate::sys::image::{Config, Digest, ImageError};
use crate::sys::kernel::DeviceId;
use async_trait::async_trait;
use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a machine is asked before a container is started. Every call may take long: nobody who must be quick awaits it.
#[async_trait]
pub trait Containers: Send + Sync + fmt::Debug {
    /// What containers are run with, looked for anew each time.
    async fn check(&self) -> Result<Equipment, Lack>;

    /// The image of this name (or the only one) at a path without links. It is read and its layers are unpacked, which may
    /// take minutes, unless what lies there is what was read the last time and somebody still has it.
    async fn image(&self, archive: &Path, reference: Option<&str>) -> Result<Arc<Image>, ImageError>;

    /// The image of this digest, if it was read once and its layers are there still, whatever became of the archive.
    async fn kept(&self, id: &Digest) -> Option<Arc<Image>> {
        let _nothing_is_kept = id;
        None
    }

    /// Removes the layers that are neither in `used` nor of an [`Image`] that lives; how many those were.
    async fn remove_unused(&self, used: BTreeSet<PathBuf>) -> Result<usize, ImageError>;

    /// A path as it is without links, if that lies at or beneath one of `allowed`, which may be links themselves.
    async fn resolve(&self, path: &Path, allowed: &[PathBuf]) -> Result<PathBuf, Astray>;

    /// The device at a path, through links.
    async fn device(&self, path: &Path) -> Result<DeviceNode, NoDevice>;
}

/// An image whose layers are there. They stay at least as long as this lives.
pub struct Image {
    /// The digest of its configuration.
    pub id: Digest,
    /// What it says of how it wants to be run.
    pub config: Config,
    /// The directories of its layers, lowest first.
    pub layers: Vec<PathBuf>,
    _hold: Box<dyn Any + Send + Sync>,
}

impl Image {
    /// Of these layers, which stay as long as `hold` lives.
    pub fn new(id: Digest, config: Config, layers: Vec<PathBuf>, hold: impl Any + Send + Sync) -> Self {
        Self { id, config, layers, _hold: Box::new(hold) }
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("id", &self.id).field("layers", &self.layers).finish_non_exhaustive()
    }
}

/// What containers are run with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Equipment {
    /// The program runc.
    pub runc: PathBuf,
    /// The capabilities that can be given away, by the kernel's numbers.
    pub capabilities: BTreeSet<u8>,
    /// The machine's name.
    pub hostname: String,
    /// How its cgroups are laid out.
    pub cgroups: Layout,
    /// Whether there is a /etc/resolv.conf.
    pub resolv_conf: bool,
    /// Whether there is a /etc/hosts.
    pub hosts: bool,
}

/// How the cgroups of a machine are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One tree for each controller.
    V1,
    /// So, with a tree of the second version beside them.
    Hybrid,
    /// One tree.
    V2,
}

/// A device as a path of the machine shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNode {
    /// A block device, else a character device.
    pub block: bool,
    /// Its number.
    pub id: DeviceId,
    /// Who may do what.
    pub mode: u32,
    /// Its owner, and the owner's group.
    pub owner: (u32, u32),
}

/// Why a runtime can run nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    /// No such program.
    #[error("runc is not installed; it was looked for in {}", listed(looked))]
    Runc {
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// The kernel cannot put layers together.
    #[error("the kernel has no overlay file system, neither built in nor as a module")]
    Overlay,
    /// The machine did not answer.
    #[error("this machine did not say in time whether it has runc")]
    NoAnswer,
    /// The daemon was started without.
    #[error("this daemon runs no containers")]
    Absent,
    /// Something else is PID 1, and will be.
    #[error("systemd is not PID 1 of this machine")]
    OtherInit,
    /// It is PID 1, and its manager does not answer.
    #[error("systemd does not answer: {said}")]
    Manager {
        /// What came instead.
        said: String,
    },
    /// containerd does not answer.
    #[error("{said}")]
    Containerd {
        /// What came instead.
        said: String,
    },
}

impl Lack {
    /// Whether what is lacking may come while the daemon runs.
    pub fn may_end(&self) -> bool {
        match self {
            Self::Runc { .. }
            | Self::Overlay
            | Self::NoAnswer
            | Self::Manager { .. }
            | Self::Containerd { .. } => true,
            Self::Absent | Self::OtherInit => false,
        }
    }
}

/// Why a path is not used.
#[derive(Debug, thiserror::Error)]
pub enum Astray {
    /// It is not where it may be. Whether anything is there is not said.
    #[error("{} is not beneath {}", path.display(), listed(allowed))]
    Outside {
        /// The path.
        path: PathBuf,
        /// Where it may be.
        allowed: Vec<PathBuf>,
    },
    /// The kernel said no.
    #[error("{}: {source}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// Why there is no such device.
#[derive(Debug, thiserror::Error)]
pub enum NoDevice {
    /// Something else is there.
    #[error("{} is no device", path.display())]
    Other {
        /// The path.
        path: PathBuf,
    },
    /// The kernel said no.
    #[error("{}: {source}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

fn listed(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy()).collect();
    if paths.is_empty() { "any directory: none is allowed".to_owned() } else { paths.join(", ") }
}
