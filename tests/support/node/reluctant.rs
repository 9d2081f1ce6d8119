//! A machine that does not say at first what became of its tasks.
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use wharfline::node::Machine;
use wharfline::sys::Processes;
use wharfline::sys::process::{Adopted, LogSpec, ProcessError, Task, TaskSpec};

/// The machine, whose first answers about tasks come too late.
pub fn reluctant(machine: Machine) -> Machine {
    with(machine, |of| of.refusals = AtomicUsize::new(2))
}

/// The machine, which starts the first task and does not say so.
pub fn mute(machine: Machine) -> Machine {
    with(machine, |of| of.mute = AtomicUsize::new(1))
}

/// The machine, which cannot say what runs.
pub fn blind(machine: Machine) -> Machine {
    with(machine, |of| of.blind = true)
}

fn with(machine: Machine, change: impl FnOnce(&mut Reluctant)) -> Machine {
    let (refusals, mute) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut processes = Reluctant { inner: Arc::clone(&machine.processes), refusals, mute, blind: false };
    change(&mut processes);
    Machine { processes: Arc::new(processes), ..machine }
}

/// Whether one of those is left.
fn take(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left: usize| left.checked_sub(1)).is_ok()
}

#[derive(Debug)]
struct Reluctant {
    inner: Arc<dyn Processes>,
    refusals: AtomicUsize,
    mute: AtomicUsize,
    blind: bool,
}

#[async_trait]
impl Processes for Reluctant {
    async fn start(
        &self,
        directory: &Path,
        spec: &TaskSpec,
        clones: Vec<OwnedFd>,
    ) -> Result<Box<dyn Task>, ProcessError> {
        let started = self.inner.start(directory, spec, clones).await;
        if take(&self.mute) {
            return Err(ProcessError::NoAnswer { directory: directory.to_owned() });
        }
        started
    }
    async fn adopt(&self, directory: &Path) -> Result<Adopted, ProcessError> {
        if take(&self.refusals) {
            return Err(ProcessError::NoAnswer { directory: directory.to_owned() });
        }
        self.inner.adopt(directory).await
    }
    async fn clear_leftovers(&self, directory: &Path) -> Result<usize, ProcessError> {
        self.inner.clear_leftovers(directory).await
    }
    async fn list(&self, root: &Path) -> Result<Vec<PathBuf>, ProcessError> {
        if self.blind {
            return Err(ProcessError::NoAnswer { directory: root.to_owned() });
        }
        self.inner.list(root).await
    }
    async fn forget(&self, directory: &Path, logs: &LogSpec) -> Result<(), ProcessError> {
        self.inner.forget(directory, logs).await
    }
}
