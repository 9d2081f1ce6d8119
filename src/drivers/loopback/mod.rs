//! The CSI driver `loop.csi.wharfline.dev`: a volume is a sparse file, attached to a node as a loop device.
//!
//! Controllers and nodes meet in one data directory, `D`, and nowhere else: whoever is started on the same `D` serves
//! the same volumes, and all of it is one machine, whose kernel has the last word.
//!
//! ```text
//! D/volumes/<id>/volume.json   the record of a volume, with the nodes that it is attached to
//! D/volumes/<id>/image         its data
//! D/nodes/<node>/node.json     what a node says of itself: its limit
//! D/nodes/<node>/<id>.json     what is staged and published there
//! ```
//! **Attaching** writes a line into the record and gives out a token, without which, or with that of an attachment that
//! is over, nothing is staged. **Staging** puts the file behind a loop device, whose label in the kernel says volume, node
//! and token. So a driver that was killed at any moment finds what it made by asking the kernel, two nodes on one machine
//! do not take each other's devices for their own, and a device that another node still holds is seen before a second one
//! is made: no file system is ever mounted twice. A loop device with a file system goes away by itself with its last
//! mount; no crash leaks it.
//!
//! **A file system is made in a new file**, which takes the place of the blank one when it is complete. So there is no
//! half-made one to be recognised and repaired after a crash, and a `mkfs` that outlived its driver would write into a
//! file that nobody sees. What is not blank is never formatted.
//!
//! Several nodes may have one block volume (`MULTI_NODE_*`), each through a device of its own: as with any shared disk,
//! their page caches differ, and what is written by one is surely seen by another only past them (O_DIRECT).
//!
//! What this driver cannot do: take a device away from a node that uses it. `ControllerUnpublishVolume` ends the token,
//! not the mount; until the node is unstaged or the machine restarted, no other node gets to stage the volume.
//!
//! **A volume grows** in its record and its image first. A node has its device look at the image again, and its file system
//! take what is new, both while they are in use; and a file system that is smaller than its volume when it is staged is
//! grown then.
//!
//! **A snapshot is a copy** of the image (`D/snapshots/<id>/image`), and so is a volume from one or from another volume.
mod attachment;
mod controller;
mod cut;
mod device;
mod expand;
mod format;
mod grow;
mod image;
mod node;
mod nodes;
mod publish;
mod stage;
mod volumes;

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;

use self::image::FsType;
use self::nodes::Nodes;
use self::volumes::Volumes;
use super::endpoint::{Endpoint, socket_path};
use super::refusal::Refusal;
use super::request::{Capability, Offer};
use super::service::{self, Driver, check_node_id, check_topology};
pub use super::service::{Mode, ServeError, StartError};
use crate::csi::proto;
use crate::csi::proto::plugin_capability::service::Type as Offered;

/// What the driver calls itself.
pub const NAME: &str = "loop.csi.wharfline.dev";
/// The key of the publish context whose value is the token of the attachment.
pub const TOKEN_KEY: &str = "attachment";
/// The key of the publish context whose value is the path of the image beneath the data directory.
pub const IMAGE_KEY: &str = "image";
/// The one topology key, where there are several backends.
pub const TOPOLOGY_KEY: &str = "loop.csi.wharfline.dev/backend";
/// Volumes attached to one node at a time, unless it is started with another number.
pub const DEFAULT_LIMIT: u16 = 128;

/// The mount flags that are known. What concerns no particular file system is set at the target, the rest when staging.
const MOUNT_OPTIONS: [&str; 12] = [
    "ro",
    "rw",
    "nosuid",
    "nodev",
    "noexec",
    "noatime",
    "nodiratime",
    "relatime",
    "discard",
    "sync",
    "dirsync",
    "lazytime",
];

/// What an instance is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `unix:///path/to.sock`; the directory must exist.
    pub endpoint: String,
    /// What NodeGetInfo answers: at most 63 letters, digits, `-`, `_`, `.`.
    pub node_id: String,
    /// What all instances of one backend share; made when missing.
    pub data_dir: PathBuf,
    /// Which services to serve.
    pub mode: Mode,
    /// Volumes that may be attached to this node at a time.
    pub max_volumes: u16,
    /// Where `mkfs.ext4`, `mkfs.xfs` and `mkfs.btrfs` are looked for, as in `PATH`.
    pub programs: OsString,
    /// What tells this backend from those of other machines, if there are any: the value of [`TOPOLOGY_KEY`].
    pub topology: Option<String>,
}

/// An instance that listens. Calls are answered while [`Server::run`] runs; until then they wait.
#[derive(Debug)]
pub struct Server {
    endpoint: Endpoint,
    driver: Driver<Core>,
    mode: Mode,
}

impl Server {
    /// Prepares the data directory, makes the node known there, and listens.
    ///
    /// # Errors
    /// See [`StartError`]; nothing listens then.
    pub fn bind(settings: &Settings) -> Result<Self, StartError> {
        check_node_id(&settings.node_id)?;
        settings.topology.as_deref().map_or(Ok(()), check_topology)?;
        let path = socket_path(&settings.endpoint)?;
        let volumes = Volumes::open(&settings.data_dir)?;
        let nodes = Nodes::open(volumes.homes.root())?;
        if settings.mode.is_on_a_node() {
            nodes.announce(&settings.node_id, settings.max_volumes)?;
        }
        // Last, because a socket says that the driver is ready to be asked.
        let endpoint = Endpoint::bind(&path)?;
        let core = Core {
            node_id: settings.node_id.clone(),
            max_volumes: settings.max_volumes,
            programs: settings.programs.clone(),
            topology: settings.topology.clone(),
            volumes,
            nodes,
        };
        Ok(Self { endpoint, driver: Driver::new(core), mode: settings.mode })
    }

    /// Serves until `stop` is ready, then lets calls under way end for at most five seconds. The socket is removed.
    ///
    /// # Errors
    /// When the runtime cannot take the socket or the server breaks.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        service::serve(self.endpoint, self.driver, self.mode, stop).await
    }
}

#[derive(Debug)]
struct Core {
    node_id: String,
    max_volumes: u16,
    programs: OsString,
    topology: Option<String>,
    volumes: Volumes,
    nodes: Nodes,
}

impl Core {
    /// Where its volumes can be reached; none where there is no other place.
    fn topology(&self) -> Option<proto::Topology> {
        let segment = |value: &String| [(TOPOLOGY_KEY.to_owned(), value.clone())].into();
        self.topology.as_ref().map(|value| proto::Topology { segments: segment(value) })
    }
}

impl service::Core for Core {
    const NAME: &'static str = NAME;

    fn offered(&self) -> Vec<Offered> {
        let constraints = self.topology.as_ref().map(|_| Offered::VolumeAccessibilityConstraints);
        [Offered::ControllerService].into_iter().chain(constraints).collect()
    }

    fn probe(&self) -> Result<(), Refusal> {
        self.volumes.homes.directory().map(drop)
    }
}

impl Offer for Core {
    fn includes(&self, capability: &Capability) -> Result<(), String> {
        if capability.mode.is_for_nodes() && !capability.block {
            let name = capability.mode.name();
            return Err(format!(
                "access mode {name} is for block volumes alone: a file system is on one node"
            ));
        }
        match FsType::parse(&capability.fs_type) {
            Some(_) => Ok(()),
            None => {
                Err(format!("fs_type {:?} is not supported: ext4, xfs and btrfs are", capability.fs_type))
            }
        }
    }

    fn mount_options(&self) -> &'static [&'static str] {
        &MOUNT_OPTIONS
    }
}
