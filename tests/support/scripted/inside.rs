//! Connections inside the process: no socket, so that time may be simulated.
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use wharfline::csi::{Connection, Connector};

use super::backend::{Backend, Site};
use super::serve::{Accept, serve};

struct Inside(mpsc::UnboundedReceiver<tokio::io::DuplexStream>);

#[async_trait]
impl Accept for Inside {
    async fn accept(&mut self) -> io::Result<Box<dyn Connection>> {
        match self.0.recv().await {
            Some(stream) => Ok(Box::new(stream)),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// Connects to an instance that listens inside the process.
#[derive(Debug)]
pub struct Dial(mpsc::UnboundedSender<tokio::io::DuplexStream>);

#[async_trait]
impl Connector for Dial {
    async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        self.0.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(Box::new(ours))
    }
}

/// Serves `backend` as `site` until the connector is dropped, or `down` is cancelled.
pub fn inside(backend: &Arc<Backend>, site: Site, down: CancellationToken) -> (Dial, JoinHandle<()>) {
    let (dial, listener) = mpsc::unbounded_channel();
    let serving = tokio::spawn(serve(Arc::clone(backend), site, Inside(listener), down));
    (Dial(dial), serving)
}
