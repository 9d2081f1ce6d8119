//! The CSI driver `dir.csi.wharfline.dev`: a volume is a directory of this node, published by a bind mount.
//!
//! It serves Identity, Controller and Node over a unix socket. There is no attach, no staging, no quota: a size is a
//! promise that is counted, not enforced. Volumes are reachable on their own node only, as their topology says.
//! State is on disk and in the kernel alone, so the process may be killed at any moment. It starts no other process,
//! never follows a symbolic link inside a volume, and removes nothing outside its own data directory but the
//! directories it made as targets.
mod controller;
mod mounts;
mod node;
mod publish;
mod volumes;

use std::future::Future;
use std::path::PathBuf;

use self::volumes::Volumes;
use super::endpoint::{Endpoint, socket_path};
use super::refusal::Refusal;
use super::request::{Capability, MOUNT_OPTIONS, Offer};
use super::service::{self, Driver, check_node_id};
pub use super::service::{Mode, ServeError, StartError};
use crate::csi::proto;
use crate::csi::proto::plugin_capability::service::Type as Offered;

/// What the driver calls itself.
pub const NAME: &str = "dir.csi.wharfline.dev";
/// The one topology key; its value is the node id.
pub const TOPOLOGY_KEY: &str = "dir.csi.wharfline.dev/node";

/// What an instance is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `unix:///path/to.sock`; the directory must exist.
    pub endpoint: String,
    /// What NodeGetInfo answers; also the topology segment, hence at most 63 letters, digits, `-`, `_`, `.`.
    pub node_id: String,
    /// Where the volumes live; made when missing.
    pub data_dir: PathBuf,
    /// Which services to serve.
    pub mode: Mode,
}

/// An instance that listens. Calls are answered while [`Server::run`] runs; until then they wait.
#[derive(Debug)]
pub struct Server {
    endpoint: Endpoint,
    driver: Driver<Core>,
    mode: Mode,
}

impl Server {
    /// Prepares the data directory, finishes deletions that were cut short, and listens.
    ///
    /// # Errors
    /// See [`StartError`]; nothing listens then.
    pub fn bind(settings: &Settings) -> Result<Self, StartError> {
        check_node_id(&settings.node_id)?;
        let path = socket_path(&settings.endpoint)?;
        let volumes = Volumes::open(&settings.data_dir, &settings.node_id)?;
        let fs_type = volumes.fs_type()?;
        // Last, because a socket says that the driver is ready to be asked.
        let endpoint = Endpoint::bind(&path)?;
        let core = Core { node_id: settings.node_id.clone(), fs_type, volumes };
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
    /// The type of the file system below the data directory.
    fs_type: String,
    volumes: Volumes,
}

impl Core {
    fn topology(&self) -> proto::Topology {
        proto::Topology { segments: [(TOPOLOGY_KEY.to_owned(), self.node_id.clone())].into() }
    }
}

impl service::Core for Core {
    const NAME: &'static str = NAME;
    const OFFERED: &'static [Offered] =
        &[Offered::ControllerService, Offered::VolumeAccessibilityConstraints];

    fn probe(&self) -> Result<(), Refusal> {
        self.volumes.fs_type().map(drop)
    }
}

/// One node is all that a directory can serve, and the file system below it is the only one to be had.
impl Offer for Core {
    fn includes(&self, capability: &Capability) -> Result<(), String> {
        if capability.mode.is_for_nodes() {
            let name = capability.mode.name();
            return Err(format!("access mode {name} is not supported: a directory is on one node"));
        }
        if capability.block {
            return Err("block volumes are not supported: a directory is no device".into());
        }
        if !capability.fs_type.is_empty() && capability.fs_type != self.fs_type {
            let (asked, here) = (&capability.fs_type, &self.fs_type);
            return Err(format!("fs_type {asked:?} is not supported: the data directory is on {here}"));
        }
        Ok(())
    }

    fn mount_options(&self) -> &'static [&'static str] {
        &MOUNT_OPTIONS
    }
}
