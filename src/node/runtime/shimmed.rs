//! Tasks under shims ([`crate::sys::process`]): all that is the same for a process and for a container.
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::RwLock;

use super::{Asked, Ended, Found, Order, Place, Running, RuntimeError};
use crate::sys;
use crate::sys::files::Files;
use crate::sys::process::{Adopted, LogSpec, Processes, TaskMount, TaskSpec};

/// Each log file, and how many.
const LOG: (u64, u32) = (10 << 20, 3);

/// The tasks beneath a data directory.
#[derive(Debug, Clone)]
pub struct Shimmed {
    processes: Arc<dyn Processes>,
    files: Arc<dyn Files>,
    data_dir: PathBuf,
    /// The cgroup beneath which each has its own.
    cgroups: String,
    /// Held by all who may be about to make one there; nobody removes it meanwhile.
    starts: Arc<RwLock<()>>,
}

/// One task under its shim.
#[derive(Debug)]
struct UnderShim {
    task: Box<dyn sys::process::Task>,
    of: Shimmed,
}

impl Shimmed {
    /// Their records and logs lie beneath `data_dir`; the name of `run_dir` tells this node from others on the machine.
    pub fn new(
        processes: Arc<dyn Processes>,
        files: Arc<dyn Files>,
        data_dir: &Path,
        run_dir: &Path,
    ) -> Self {
        let name = run_dir.file_name().unwrap_or_default().to_string_lossy();
        let cgroups = format!("/wharfline/{name}");
        Self { processes, files, data_dir: data_dir.to_owned(), cgroups, starts: Arc::default() }
    }

    /// The directory of the records of tasks.
    pub(super) fn tasks(&self) -> PathBuf {
        self.data_dir.join("tasks")
    }

    /// What tells this node from others on the machine.
    pub(super) fn node(&self) -> &str {
        self.cgroups.rsplit('/').next().unwrap_or_default()
    }

    /// The path of a task's own cgroup.
    pub(super) fn cgroup(&self, place: &Place) -> String {
        format!("{}/{}.{}", self.cgroups, place.allocation, place.task)
    }

    pub(super) async fn start(
        &self,
        place: &Place,
        spec: &TaskSpec,
        clones: Vec<OwnedFd>,
    ) -> Result<Arc<dyn Running>, RuntimeError> {
        // Makes the directory; the shim opens the file by itself.
        let opened = self.files.open_append(&spec.logs.stdout).await;
        drop(opened.map_err(|error| RuntimeError::Logs(error.to_string()))?);
        let _making = self.starts.read().await;
        let task = self.processes.start(&place.directory, spec, clones).await?;
        Ok(Arc::new(UnderShim { task, of: self.clone() }))
    }

    pub(super) async fn adopt(&self, place: &Place) -> Result<Found, RuntimeError> {
        Ok(match self.processes.adopt(&place.directory).await? {
            Adopted::Running(task) => Found::Running(Arc::new(UnderShim { task, of: self.clone() })),
            Adopted::Exited(record) => Found::Exited(record),
            Adopted::Lost(_) => Found::Lost,
            Adopted::NeverStarted => Found::NeverStarted,
        })
    }

    pub(super) async fn clear(&self, place: &Place) -> Result<usize, RuntimeError> {
        Ok(self.processes.clear_leftovers(&place.directory).await?)
    }

    pub(super) async fn forget(&self, place: &Place) -> Result<(), RuntimeError> {
        self.processes.forget(&place.directory, &logs(place)).await?;
        self.tidy().await;
        Ok(())
    }

    /// Has the cgroup above those of tasks go with the last of them.
    async fn tidy(&self) {
        // While another one starts there is one in it soon.
        let Ok(_nobody_makes) = self.starts.try_write() else { return };
        if let Err(error) = self.processes.remove_if_empty(&self.cgroups).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "a cgroup that may be empty was left");
        }
    }

    pub(super) async fn sweep(&self) -> Result<(), RuntimeError> {
        let found = self.processes.remove_orphans(&self.cgroups, &self.tasks()).await?;
        if !found.removed.is_empty() || !found.occupied.is_empty() {
            tracing::warn!(removed = ?found.removed, occupied = ?found.occupied, "cgroups of no task");
        }
        Ok(())
    }

    pub(super) async fn list(&self) -> Result<Vec<Place>, RuntimeError> {
        let directories = self.processes.list(&self.tasks()).await?;
        let place = |directory: &PathBuf| {
            let name = directory.file_name()?.to_string_lossy().into_owned();
            let (allocation, task) = name.split_once('.')?;
            Some(Place::new(&self.data_dir, allocation, task))
        };
        Ok(directories.iter().filter_map(place).collect())
    }
}

/// Where a task's output goes.
pub(super) fn logs(place: &Place) -> LogSpec {
    LogSpec {
        stdout: place.logs.join("stdout.log"),
        stderr: place.logs.join("stderr.log"),
        max_bytes: LOG.0,
        files: LOG.1,
    }
}

/// The volumes of an order as a shim is told them.
pub(super) fn mounts(order: &Order<'_>) -> Vec<TaskMount> {
    let mount = |volume: &super::VolumeAt| TaskMount {
        fd: -1,
        path: volume.path.clone(),
        read_only: volume.read_only,
        block: volume.block,
    };
    order.volumes.iter().map(mount).collect()
}

/// The pause between the signal to end and the last one, in milliseconds.
pub(super) fn grace(order: &Order<'_>) -> u64 {
    u64::try_from(order.grace.as_millis()).unwrap_or(u64::MAX)
}

#[async_trait]
impl Running for UnderShim {
    async fn wait(&self) -> Result<Ended, RuntimeError> {
        Ok(match self.task.wait().await? {
            sys::process::Ended::Exited(record) => {
                self.of.tidy().await;
                Ended::Exited(record)
            }
            sys::process::Ended::Lost => Ended::Lost,
        })
    }

    fn stop(&self, grace: Option<Duration>) -> Result<Asked, RuntimeError> {
        self.task.stop(grace)?;
        Ok(Asked::EndComes)
    }

    fn layers(&self) -> &[PathBuf] {
        self.task.state().container.as_ref().map_or(&[], |container| container.layers.as_slice())
    }
}
