//! The task is a process of the host, under a shim, as [`super::process`] runs it. Both are in a transient unit of systemd's,
//! beside the daemon's own: whatever becomes of that one, they stay. The unit has the limits, and is gone with the task.
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::process::Process;
use super::{Found, Kind, Order, Place, Readiness, Running, Runtime, RuntimeError};
use crate::api::allocation::Task;
use crate::plan::supervise::Obstacle;
use crate::sys::Units;
use crate::sys::containers::Lack;
use crate::sys::process::TaskSpec;

/// The runtime `systemd`.
#[derive(Debug)]
pub struct Systemd {
    process: Process,
    /// None: it is not PID 1 here.
    units: Option<Arc<dyn Units>>,
    /// What was lacking when the manager was last asked.
    lack: Mutex<Option<Lack>>,
}

impl Systemd {
    /// Tasks as this one runs them, in units of that systemd. Those that were started once are looked after without it, too.
    pub fn new(process: Process, units: Option<Arc<dyn Units>>) -> Self {
        let lack = if units.is_some() { None } else { Some(Lack::OtherInit) };
        Self { process, units, lack: Mutex::new(lack) }
    }

    fn spec(&self, order: &Order<'_>) -> TaskSpec {
        TaskSpec { unit: Some(self.process.unit(order)), ..self.process.spec(order) }
    }
}

#[async_trait]
impl Runtime for Systemd {
    fn kind(&self) -> Kind {
        Kind::Systemd
    }

    /// A manager that does not answer now may do so when it is asked for a unit: only another one is final.
    fn readiness(&self, _: &Place, _: (&Task, bool)) -> Readiness {
        match self.lack().filter(|lack| !lack.may_end()) {
            Some(lack) => Readiness::Unusable(Obstacle::Missing, lack.to_string()),
            None => Readiness::Ready,
        }
    }

    fn lack(&self) -> Option<Lack> {
        self.lack.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn look(&self) -> Option<Lack> {
        let Some(units) = &self.units else { return self.lack() };
        let lack = units.check().await.err();
        self.lack.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&lack);
        lack
    }

    async fn start(&self, order: &Order<'_>, clones: Vec<OwnedFd>) -> Result<Arc<dyn Running>, RuntimeError> {
        self.process.run(order.place, &self.spec(order), clones).await
    }

    async fn adopt(&self, place: &Place) -> Result<Found, RuntimeError> {
        self.process.adopt(place).await
    }

    async fn clear(&self, place: &Place) -> Result<usize, RuntimeError> {
        self.process.clear(place).await
    }

    async fn forget(&self, place: &Place) -> Result<(), RuntimeError> {
        self.process.forget(place).await
    }

    /// One without a journal is found by the runtime `process`: its records say what it is.
    async fn list(&self) -> Result<Vec<Place>, RuntimeError> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests;
