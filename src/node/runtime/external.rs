//! Something else runs the task: systemd, another orchestrator, a person. It is taken as running from its start to its stop.
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::super::context::substitute;
use super::{Asked, Ended, Found, Kind, Order, Place, Running, Runtime, RuntimeError, Variables};
use crate::api::allocation::Task;

/// The runtime `external`.
#[derive(Debug)]
pub struct External;

/// A task of which only the socket is known.
#[derive(Debug, Default)]
struct Assumed {
    let_go: CancellationToken,
}

#[async_trait]
impl Runtime for External {
    fn kind(&self) -> Kind {
        Kind::External
    }

    fn runs(&self) -> bool {
        false
    }

    fn socket(&self, task: &Task, own: PathBuf, variables: &Variables) -> PathBuf {
        task.runtime.external.as_ref().map_or(own, |e| PathBuf::from(substitute(&e.socket, variables)))
    }

    async fn start(&self, _: &Order<'_>, _: Vec<OwnedFd>) -> Result<Arc<dyn Running>, RuntimeError> {
        Ok(Arc::new(Assumed::default()))
    }

    async fn adopt(&self, _: &Place) -> Result<Found, RuntimeError> {
        Ok(Found::Running(Arc::new(Assumed::default())))
    }

    async fn clear(&self, _: &Place) -> Result<usize, RuntimeError> {
        Ok(0)
    }

    async fn forget(&self, _: &Place) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Place>, RuntimeError> {
        Ok(Vec::new())
    }
}

#[async_trait]
impl Running for Assumed {
    async fn wait(&self) -> Result<Ended, RuntimeError> {
        self.let_go.cancelled().await;
        Ok(Ended::LetGo)
    }

    fn stop(&self, _: Option<Duration>) -> Result<Asked, RuntimeError> {
        self.let_go.cancel();
        Ok(Asked::Over)
    }
}
