//! What the drivers have in common whose volume is a directory of this node, published by a bind mount.
//!
//! They serve Identity, Controller and Node over a unix socket. There is no attach and no staging. Volumes are reachable on
//! their own node only, as their topology says. State is on disk and in the kernel alone, so the process may be killed at
//! any moment. It starts no other process, never follows a symbolic link inside a volume, and removes nothing outside its
//! own data directory but the directories it made as targets.
mod backing;
mod controller;
mod ephemeral;
mod mounts;
mod node;
mod publish;
mod volumes;

use std::future::Future;
use std::path::PathBuf;

pub(super) use self::backing::{Backing, DATA, Purpose};
pub(super) use self::mounts::fs_type;
use self::volumes::Volumes;
use super::endpoint::{Endpoint, socket_path};
use super::refusal::Refusal;
use super::request::{Capability, MOUNT_OPTIONS, Offer};
use super::service::{self, Driver, Mode, ServeError, StartError, check_node_id};
use crate::csi::proto;
use crate::csi::proto::plugin_capability::service::Type as Offered;

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

/// An instance that listens.
#[derive(Debug)]
pub(super) struct Server<B> {
    endpoint: Endpoint,
    driver: Driver<Core<B>>,
    mode: Mode,
}

impl<B: Backing> Server<B> {
    /// Prepares the data directory, finishes what was cut short, and listens.
    pub(super) fn bind(settings: &Settings) -> Result<Self, StartError> {
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
    pub(super) async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        service::serve(self.endpoint, self.driver, self.mode, stop).await
    }
}

#[derive(Debug)]
struct Core<B> {
    node_id: String,
    /// The type of the file system below the data directory.
    fs_type: String,
    volumes: Volumes<B>,
}

impl<B: Backing> Core<B> {
    fn topology(&self) -> proto::Topology {
        proto::Topology { segments: [(B::TOPOLOGY_KEY.to_owned(), self.node_id.clone())].into() }
    }
}

impl<B: Backing> service::Core for Core<B> {
    const NAME: &'static str = B::NAME;

    fn offered(&self) -> Vec<Offered> {
        vec![Offered::ControllerService, Offered::VolumeAccessibilityConstraints]
    }

    fn probe(&self) -> Result<(), Refusal> {
        self.volumes.fs_type().map(drop)
    }
}

/// One node is all that a directory can serve, and the file system below it is the only one to be had.
impl<B: Backing> Offer for Core<B> {
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
