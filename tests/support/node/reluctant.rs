//! A machine that does not say at first what became of its tasks.
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use wharfline::node::Machine;
use wharfline::sys::Processes;
use wharfline::sys::process::{Adopted, ProcessError, Task, TaskSpec};

/// The machine, whose first answers about tasks come too late.
pub fn reluctant(machine: Machine) -> Machine {
    let processes = Reluctant { inner: Arc::clone(&machine.processes), refusals: AtomicUsize::new(2) };
    Machine { processes: Arc::new(processes), ..machine }
}

#[derive(Debug)]
struct Reluctant {
    inner: Arc<dyn Processes>,
    refusals: AtomicUsize,
}

#[async_trait]
impl Processes for Reluctant {
    async fn start(
        &self,
        directory: &Path,
        spec: &TaskSpec,
        clones: Vec<OwnedFd>,
    ) -> Result<Box<dyn Task>, ProcessError> {
        self.inner.start(directory, spec, clones).await
    }
    async fn adopt(&self, directory: &Path) -> Result<Adopted, ProcessError> {
        let left = |left: usize| left.checked_sub(1);
        if self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            return Err(ProcessError::NoAnswer { directory: directory.to_owned() });
        }
        self.inner.adopt(directory).await
    }
    async fn clear_leftovers(&self, directory: &Path) -> Result<usize, ProcessError> {
        self.inner.clear_leftovers(directory).await
    }
    async fn list(&self, root: &Path) -> Result<Vec<PathBuf>, ProcessError> {
        self.inner.list(root).await
    }
    async fn forget(&self, directory: &Path) -> Result<(), ProcessError> {
        self.inner.forget(directory).await
    }
}
