//! The CSI driver `dir.csi.wharfline.dev`: a volume is a directory of this node, published by a bind mount.
//!
//! It serves Identity, Controller and Node over a unix socket. There is no attach, no staging, no quota: a size is a
//! promise that is counted, not enforced. Volumes are reachable on their own node only, as their topology says.
//! State is on disk and in the kernel alone, so the process may be killed at any moment. It starts no other process,
//! never follows a symbolic link inside a volume, and removes nothing outside its own data directory but the
//! directories it made as targets.
mod controller;
mod identity;
mod mounts;
mod node;
mod publish;
mod record;
mod refusal;
mod remove;
mod request;
mod volumes;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Response, Status};

pub use self::refusal::Refusal;
use self::volumes::Volumes;
use super::authority::AnyAuthority;
use super::endpoint::{Endpoint, EndpointError, socket_path};
use crate::csi::proto;
use crate::csi::proto::controller_server::ControllerServer;
use crate::csi::proto::identity_server::IdentityServer;
use crate::csi::proto::node_server::NodeServer;

/// What the driver calls itself.
pub const NAME: &str = "dir.csi.wharfline.dev";
/// The one topology key; its value is the node id.
pub const TOPOLOGY_KEY: &str = "dir.csi.wharfline.dev/node";

/// Calls that one client may have under way; further ones wait on its connection.
const CALLS_PER_CONNECTION: usize = 64;
/// How long calls under way may take to end after the order to stop.
const DRAIN: Duration = Duration::from_secs(5);
/// Longest value of a topology segment, in bytes.
const LONGEST_NODE_ID: usize = 63;

/// Which services an instance serves. All instances report the same capabilities, as the contract wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Identity and Controller.
    Controller,
    /// Identity and Node.
    Node,
    /// All three.
    All,
}

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

/// Why an instance does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The node id cannot be a topology value.
    #[error(
        "node id {0:?} is not 1 to {LONGEST_NODE_ID} letters, digits, '-', '_' or '.', with a letter or digit \
         at both ends"
    )]
    NodeId(String),
    /// There is no socket to serve on.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The data directory cannot be used.
    #[error("the data directory cannot be used")]
    Data(#[from] Refusal),
}

/// Why an instance stops before it is told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The runtime does not take the socket.
    #[error("cannot serve on the socket")]
    Socket(#[from] std::io::Error),
    /// The server broke.
    #[error("the server broke")]
    Server(#[from] tonic::transport::Error),
}

/// An instance that listens. Calls are answered while [`Server::run`] runs; until then they wait.
#[derive(Debug)]
pub struct Server {
    endpoint: Endpoint,
    driver: Driver,
    mode: Mode,
}

impl Server {
    /// Prepares the data directory, finishes deletions that were cut short, and listens.
    ///
    /// # Errors
    /// See [`StartError`]; nothing listens then.
    pub fn bind(settings: &Settings) -> Result<Self, StartError> {
        if !is_segment(&settings.node_id) {
            return Err(StartError::NodeId(settings.node_id.clone()));
        }
        let path = socket_path(&settings.endpoint)?;
        let volumes = Volumes::open(&settings.data_dir, &settings.node_id)?;
        let fs_type = volumes.fs_type()?;
        // Last, because a socket says that the driver is ready to be asked.
        let endpoint = Endpoint::bind(&path)?;
        let core = Core { node_id: settings.node_id.clone(), fs_type, volumes };
        Ok(Self { endpoint, driver: Driver { core: Arc::new(core) }, mode: settings.mode })
    }

    /// Serves until `stop` is ready, then lets calls under way end for at most five seconds. The socket is removed.
    ///
    /// # Errors
    /// When the runtime cannot take the socket or the server breaks.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let listener = UnixListener::from_std(self.endpoint.listener()?)?;
        let (controller, node) = match self.mode {
            Mode::Controller => (true, false),
            Mode::Node => (false, true),
            Mode::All => (true, true),
        };
        let driver = self.driver;
        tracing::info!(socket = %self.endpoint.path().display(), node = driver.core.node_id, "listening");
        let (stopping, stopped) = tokio::sync::oneshot::channel();
        let connections = UnixListenerStream::new(listener).map_ok(AnyAuthority::new);
        let serving = tonic::transport::Server::builder()
            .concurrency_limit_per_connection(CALLS_PER_CONNECTION)
            .add_service(IdentityServer::new(driver.clone()))
            .add_optional_service(controller.then(|| ControllerServer::new(driver.clone())))
            .add_optional_service(node.then(|| NodeServer::new(driver.clone())))
            .serve_with_incoming_shutdown(connections, async {
                stop.await;
                let _ = stopping.send(());
            });
        let overdue = async {
            let _ = stopped.await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            end = serving => end?,
            () = overdue => tracing::warn!("calls were still under way at the end"),
        }
        Ok(())
    }
}

/// The services, one type for the three of them.
#[derive(Clone, Debug)]
struct Driver {
    core: Arc<Core>,
}

#[derive(Debug)]
struct Core {
    node_id: String,
    /// The type of the file system below the data directory.
    fs_type: String,
    volumes: Volumes,
}

impl Driver {
    /// Does `work` where it may block. It goes on to its end even if the caller has gone; until then its volume
    /// is locked.
    async fn off_the_runtime<T, F>(&self, work: F) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        F: FnOnce(&Core) -> Result<T, Refusal> + Send + 'static,
    {
        let core = Arc::clone(&self.core);
        let done = tokio::task::spawn_blocking(move || work(&core)).await;
        let done = done.map_err(|_| Status::internal("the call broke down; see the log of the driver"))?;
        done.map(Response::new).map_err(|refusal| {
            let status = Status::from(refusal);
            tracing::debug!(code = ?status.code(), message = status.message(), "refused");
            status
        })
    }
}

impl Core {
    fn topology(&self) -> proto::Topology {
        proto::Topology { segments: [(TOPOLOGY_KEY.to_owned(), self.node_id.clone())].into() }
    }
}

fn is_segment(id: &str) -> bool {
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends = [id.bytes().next(), id.bytes().last()];
    id.len() <= LONGEST_NODE_ID
        && id.bytes().all(|byte| inner(&byte))
        && ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_id_is_a_topology_value() {
        for good in ["a", "node-1", "N_1.example", &"x".repeat(63)] {
            assert!(is_segment(good), "{good}");
        }
        for bad in ["", "-a", "a-", "a/b", "a b", "ä", &"x".repeat(64)] {
            assert!(!is_segment(bad), "{bad}");
        }
    }
}
