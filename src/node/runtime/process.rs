//! The task is a process of the host, under a shim ([`super::shimmed`]).
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use super::super::context::substitute;
use super::shimmed::{self, Shimmed};
use super::{Found, Kind, Order, Place, Running, Runtime, RuntimeError};
use crate::sys::cgroup::{Cgroup, Limits};
use crate::sys::process::{Identity, PATH, TaskSpec};

/// The runtime `process`.
#[derive(Debug)]
pub struct Process {
    shimmed: Shimmed,
    /// What no workload sees.
    hide: Vec<PathBuf>,
}

impl Process {
    /// No workload sees what is in `hide`.
    pub fn new(shimmed: Shimmed, hide: Vec<PathBuf>) -> Self {
        Self { shimmed, hide }
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
        let path = self.shimmed.cgroup(order.place);
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
        let (cgroup, identity) = self.bounds(order);
        TaskSpec {
            argv: process.command.iter().map(|arg| substitute(arg, &order.variables)).collect(),
            env,
            cwd: PathBuf::from(if process.working_dir.is_empty() { "/" } else { &process.working_dir }),
            logs: shimmed::logs(order.place),
            grace_ms: shimmed::grace(order),
            private_mounts: !plugin,
            mounts: shimmed::mounts(order),
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

    async fn start(&self, order: &Order<'_>, clones: Vec<OwnedFd>) -> Result<Arc<dyn Running>, RuntimeError> {
        self.shimmed.start(order.place, &self.spec(order), clones).await
    }

    async fn adopt(&self, place: &Place) -> Result<Found, RuntimeError> {
        self.shimmed.adopt(place).await
    }

    async fn clear(&self, place: &Place) -> Result<usize, RuntimeError> {
        self.shimmed.clear(place).await
    }

    async fn forget(&self, place: &Place) -> Result<(), RuntimeError> {
        self.shimmed.forget(place).await
    }

    async fn sweep(&self) -> Result<(), RuntimeError> {
        self.shimmed.sweep().await
    }

    async fn list(&self) -> Result<Vec<Place>, RuntimeError> {
        self.shimmed.list().await
    }
}
