//! Server, controllers and node daemon in one process, put together.
//!
//! The controllers and the daemon speak to the server through clients that never leave the process, each with its own
//! identity, so that the same rules hold for them as over the wire.
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::patience::patient;
use crate::controllers;
use crate::node::{self, Looked};
use crate::server::{Identity, Server};

/// Why the parts could not be put together, or one of them ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The daemon ended.
    #[error("node daemon")]
    Node(#[from] node::Error),
    /// The controllers ended.
    #[error("controllers")]
    Controllers(#[from] controllers::Error),
}

/// Runs controllers and the daemon of this machine on a server until `stop`, or until one of them fails.
pub async fn run(
    server: &Server,
    looked: Looked,
    ready: oneshot::Sender<()>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let node_client = patient(server.client(Identity::node(&looked.options().name)));
    let ending = stop.child_token();
    let control = controllers::Options {
        now: Arc::new(jiff::Timestamp::now),
        lease_duration: looked.options().lease,
        ..controllers::Options::default()
    };
    // The machine first: listing all there is for the controllers would take its processors.
    let daemon = node::Prepared::new(looked, node_client, ending.clone()).await?.run(ready);
    let shutdown = ending.clone();
    let client = patient(server.client(Identity::controllers()));
    let controllers = controllers::run(client, control, async move {
        shutdown.cancelled().await;
    });
    tokio::pin!(controllers, daemon);
    // Whoever ends first ends the other, and is waited for.
    let (first, rest) = tokio::select! {
        result = &mut controllers => {
            ending.cancel();
            (result.map_err(Error::from), daemon.await.map_err(Error::from))
        }
        result = &mut daemon => {
            ending.cancel();
            (result.map_err(Error::from), controllers.await.map_err(Error::from))
        }
    };
    first.and(rest)
}
