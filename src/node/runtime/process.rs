//! The task is a process of the host, under a shim ([`crate::sys::process`]).
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::super::context::substitute;
use super::{Asked, Ended, Found, Kind, Order, Place, Running, Runtime, RuntimeError, Variables};
use crate::api::allocation::Task;
use crate::sys;
use crate::sys::cgroup::{Cgroup, Limits};
use crate::sys::files::Files;
use crate::sys::process::{Adopted, Identity, LogSpec, Processes, TaskMount, TaskSpec};

/// Each log file, and how many.
const LOG: (u64, u32) = (10 << 20, 3);
/// Where programs are looked for, unless the task says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The runtime `process`.
#[derive(Debug)]
pub struct Process {
    processes: Arc<dyn Processes>,
    files: Arc<dyn Files>,
    data_dir: PathBuf,
    /// What no workload sees.
    hide: Vec<PathBuf>,
    /// The cgroup beneath which a task gets one of its own, if it needs one.
    cgroups: String,
}

/// A task under its shim.
#[derive(Debug)]
struct Shimmed(Box<dyn sys::process::Task>);

impl Process {
    /// With its records and logs beneath `data_dir`; no workload sees that or `run_dir`, whose name tells this node from
    /// others on the machine.
    pub fn new(
        processes: Arc<dyn Processes>,
        files: Arc<dyn Files>,
        data_dir: &Path,
        (run_dir, hide): (&Path, Vec<PathBuf>),
    ) -> Self {
        let name = run_dir.file_name().unwrap_or_default().to_string_lossy();
        let cgroups = format!("/wharfline/{name}");
        Self { processes, files, data_dir: data_dir.to_owned(), hide, cgroups }
    }

    /// What tells who it is and what it may take. A cgroup costs a few directories: only a task that needs one has it.
    fn bounds(&self, order: &Order<'_>) -> (Option<Cgroup>, Option<Identity>) {
        let limits = &order.task.resources.limits;
        let limits = Limits {
            memory_bytes: limits.memory_bytes(),
            cpu_millis: limits.cpu_millis(),
            pids: limits.pid_count().and_then(|count| u32::try_from(count).ok()),
        };
        // Nothing else keeps a task from writing to a device.
        let refuses = order.volumes.iter().any(|volume| volume.block && volume.read_only);
        let Place { allocation, task, .. } = order.place;
        let path = format!("{}/{allocation}.{task}", self.cgroups);
        let cgroup = (limits.any() || refuses).then_some(Cgroup { path, limits });
        let process = order.task.runtime.process.clone().unwrap_or_default();
        let identity = Identity {
            user: process.user,
            groups: process.groups,
            add: process.capabilities.add,
            drop: process.capabilities.drop,
        };
        let identity = Some(identity).filter(|identity| *identity != Identity::default());
        (cgroup, identity)
    }

    fn spec(&self, order: &Order<'_>) -> TaskSpec {
        let process = order.task.runtime.process.clone().unwrap_or_default();
        let plugin = order.task.csi_plugin.is_some();
        let mut env = BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]);
        env.extend(order.env.clone());
        let mount = |volume: &super::VolumeAt| TaskMount {
            fd: -1,
            path: volume.path.clone(),
            read_only: volume.read_only,
            block: volume.block,
        };
        let (cgroup, identity) = self.bounds(order);
        TaskSpec {
            argv: process.command.iter().map(|arg| substitute(arg, &order.variables)).collect(),
            env,
            cwd: PathBuf::from(if process.working_dir.is_empty() { "/" } else { &process.working_dir }),
            logs: LogSpec {
                stdout: order.place.logs.join("stdout.log"),
                stderr: order.place.logs.join("stderr.log"),
                max_bytes: LOG.0,
                files: LOG.1,
            },
            grace_ms: u64::try_from(order.grace.as_millis()).unwrap_or(u64::MAX),
            private_mounts: !plugin,
            mounts: order.volumes.iter().map(mount).collect(),
            hide: if plugin { Vec::new() } else { self.hide.clone() },
            cgroup,
            identity,
            container: None,
        }
    }
}

#[async_trait]
impl Runtime for Process {
    fn kind(&self) -> Kind {
        Kind::Process
    }

    fn runs(&self) -> bool {
        true
    }

    fn socket(&self, _: &Task, own: PathBuf, _: &Variables) -> PathBuf {
        own
    }

    async fn start(&self, order: &Order<'_>, clones: Vec<OwnedFd>) -> Result<Arc<dyn Running>, RuntimeError> {
        let spec = self.spec(order);
        // Makes the directory; the shim opens the file by itself.
        let opened = self.files.open_append(&spec.logs.stdout).await;
        drop(opened.map_err(|error| RuntimeError::Logs(error.to_string()))?);
        let task = self.processes.start(&order.place.directory, &spec, clones).await?;
        Ok(Arc::new(Shimmed(task)))
    }

    async fn adopt(&self, place: &Place) -> Result<Found, RuntimeError> {
        Ok(match self.processes.adopt(&place.directory).await? {
            Adopted::Running(task) => Found::Running(Arc::new(Shimmed(task))),
            Adopted::Exited(record) => Found::Exited(record),
            Adopted::Lost(_) => Found::Lost,
            Adopted::NeverStarted => Found::NeverStarted,
        })
    }

    async fn clear(&self, place: &Place) -> Result<usize, RuntimeError> {
        Ok(self.processes.clear_leftovers(&place.directory).await?)
    }

    async fn forget(&self, place: &Place) -> Result<(), RuntimeError> {
        Ok(self.processes.forget(&place.directory).await?)
    }

    async fn sweep(&self) -> Result<(), RuntimeError> {
        let found = self.processes.remove_orphans(&self.cgroups, &self.data_dir.join("tasks")).await?;
        if !found.removed.is_empty() || !found.occupied.is_empty() {
            tracing::warn!(removed = ?found.removed, occupied = ?found.occupied, "cgroups of no task");
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Place>, RuntimeError> {
        let directories = self.processes.list(&self.data_dir.join("tasks")).await?;
        let place = |directory: &PathBuf| {
            let name = directory.file_name()?.to_string_lossy().into_owned();
            let (allocation, task) = name.split_once('.')?;
            Some(Place::new(&self.data_dir, allocation, task))
        };
        Ok(directories.iter().filter_map(place).collect())
    }
}

#[async_trait]
impl Running for Shimmed {
    async fn wait(&self) -> Result<Ended, RuntimeError> {
        Ok(match self.0.wait().await? {
            sys::process::Ended::Exited(record) => Ended::Exited(record),
            sys::process::Ended::Lost => Ended::Lost,
        })
    }

    fn stop(&self, grace: Duration) -> Result<Asked, RuntimeError> {
        self.0.stop(grace)?;
        Ok(Asked::EndComes)
    }
}
