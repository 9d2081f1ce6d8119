//! What every driver here is served by: one socket, the services of its mode, calls that may block off the runtime.
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Response, Status};

use super::authority::AnyAuthority;
use super::endpoint::{Endpoint, EndpointError};
use super::faults;
use super::refusal::Refusal;
use crate::csi::proto::controller_server::{Controller, ControllerServer};
use crate::csi::proto::identity_server::IdentityServer;
use crate::csi::proto::node_server::{Node, NodeServer};
use crate::csi::proto::plugin_capability::service::Type as Offered;

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

impl Mode {
    /// Whether the Controller service is served.
    pub(super) fn controls(self) -> bool {
        match self {
            Self::Controller | Self::All => true,
            Self::Node => false,
        }
    }

    /// Whether the Node service is served.
    pub(super) fn is_on_a_node(self) -> bool {
        match self {
            Self::Node | Self::All => true,
            Self::Controller => false,
        }
    }
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
    /// The topology cannot be a topology value.
    #[error(
        "topology {0:?} is not 1 to {LONGEST_NODE_ID} letters, digits, '-', '_' or '.', with a letter or digit \
         at both ends"
    )]
    Topology(String),
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

/// What one driver is, beside what it answers as controller and as node.
pub(super) trait Core: Send + Sync + std::fmt::Debug + 'static {
    /// What the driver calls itself.
    const NAME: &'static str;

    /// What it offers in general, beside growing volumes while they are in use.
    fn offered(&self) -> Vec<Offered>;

    /// Whether it can serve now: its data is there.
    fn probe(&self) -> Result<(), Refusal>;
}

/// The services, one type for the three of them.
#[derive(Debug)]
pub(super) struct Driver<C> {
    pub(super) core: Arc<C>,
}

impl<C> Clone for Driver<C> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core) }
    }
}

impl<C: Core> Driver<C> {
    pub(super) fn new(core: C) -> Self {
        Self { core: Arc::new(core) }
    }

    /// Does `work` where it may block. It goes on to its end even if the caller has gone; until then its volume
    /// is locked.
    pub(super) async fn off_the_runtime<T, F>(&self, work: F) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        F: FnOnce(&C) -> Result<T, Refusal> + Send + 'static,
    {
        let fate = faults::fate();
        if let Some(status) = fate.before {
            return Err(status);
        }
        let core = Arc::clone(&self.core);
        let done = tokio::task::spawn_blocking(move || work(&core)).await;
        let done = done.map_err(|_| Status::internal("the call broke down; see the log of the driver"))?;
        let answer = done.map(Response::new).map_err(|refusal| {
            let status = Status::from(refusal);
            tracing::debug!(code = ?status.code(), message = status.message(), "refused");
            status
        });
        match fate.after {
            Some(status) => Err(status),
            None => answer,
        }
    }
}

/// Serves until `stop` is ready, then lets calls under way end for at most five seconds. The socket is removed.
pub(super) async fn serve<C: Core>(
    endpoint: Endpoint,
    driver: Driver<C>,
    mode: Mode,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError>
where
    Driver<C>: Controller + Node,
{
    let listener = UnixListener::from_std(endpoint.listener()?)?;
    tracing::info!(socket = %endpoint.path().display(), driver = C::NAME, "listening");
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let connections = UnixListenerStream::new(listener).map_ok(AnyAuthority::new);
    let serving = tonic::transport::Server::builder()
        .concurrency_limit_per_connection(CALLS_PER_CONNECTION)
        .add_service(IdentityServer::new(driver.clone()))
        .add_optional_service(mode.controls().then(|| ControllerServer::new(driver.clone())))
        .add_optional_service(mode.is_on_a_node().then(|| NodeServer::new(driver.clone())))
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

/// Refuses a node id that could be no topology value; what remains is also a safe file name.
pub(super) fn check_node_id(id: &str) -> Result<(), StartError> {
    if is_segment(id) { Ok(()) } else { Err(StartError::NodeId(id.to_owned())) }
}

/// Refuses what could be no topology value.
pub(super) fn check_topology(value: &str) -> Result<(), StartError> {
    if is_segment(value) { Ok(()) } else { Err(StartError::Topology(value.to_owned())) }
}

/// Whether this can be the value of a topology segment.
pub(super) fn is_segment(id: &str) -> bool {
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
