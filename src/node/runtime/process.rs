//! The task is a process of the host, under a shim ([`super::shimmed`]).
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use super::super::context::substitute;
use super::shimmed::{self, Shimmed};
use super::{Found, Kind, Order, Place, Running, Runtime, RuntimeError};
use crate::plan;
use crate::sys::cgroup::{Cgroup, Limits};
use crate::sys::process::{Identity, PATH, TaskSpec};
use crate::sys::units::UnitSpec;

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

    /// Its cgroup. What a task leaves behind whose shim was killed is found there, whatever it gave up of what else tells whose it
    /// is: on its volume it would write beside the next one.
    fn cgroup(&self, order: &Order<'_>) -> Cgroup {
        Cgroup { path: self.shimmed.cgroup(order.place), limits: limits(order) }
    }

    /// Its unit, where systemd has the limits.
    pub(super) fn unit(&self, order: &Order<'_>) -> UnitSpec {
        let Place { allocation, task, .. } = order.place;
        let node = order.variables.get("NODE_NAME").map_or("", String::as_str);
        UnitSpec {
            name: plan::unit::name(self.shimmed.node(), allocation, task),
            slice: plan::unit::SLICE.to_owned(),
            description: plan::unit::description(node, &order.name, task),
            limits: limits(order),
            stop_after_ms: plan::unit::stop_after_ms(shimmed::grace(order)),
        }
    }

    /// What is run, without what bounds it.
    pub(super) fn spec(&self, order: &Order<'_>) -> TaskSpec {
        let process = order.task.runtime.on_host().cloned().unwrap_or_default();
        let plugin = order.task.csi_plugin.is_some();
        let mut env = BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]);
        env.extend(order.env.clone());
        let identity = Identity {
            user: process.user,
            groups: process.groups,
            add: process.capabilities.add,
            drop: process.capabilities.drop,
        };
        TaskSpec {
            argv: process.command.iter().map(|arg| substitute(arg, &order.variables)).collect(),
            env,
            cwd: PathBuf::from(if process.working_dir.is_empty() { "/" } else { &process.working_dir }),
            logs: shimmed::logs(order.place),
            grace_ms: shimmed::grace(order),
            private_mounts: !plugin,
            mounts: shimmed::mounts(order),
            hide: if plugin { Vec::new() } else { self.hide.clone() },
            cgroup: None,
            unit: None,
            identity: Some(identity).filter(|identity| *identity != Identity::default()),
            container: None,
        }
    }

    /// Starts what a spec says.
    pub(super) async fn run(
        &self,
        place: &Place,
        spec: &TaskSpec,
        clones: Vec<OwnedFd>,
    ) -> Result<Arc<dyn Running>, RuntimeError> {
        self.shimmed.start(place, spec, clones).await
    }
}

/// What a task's processes may take together.
fn limits(order: &Order<'_>) -> Limits {
    let limits = &order.task.resources.limits;
    Limits {
        memory_bytes: limits.memory_bytes(),
        cpu_millis: limits.cpu_millis(),
        pids: limits.pid_count().and_then(|count| u32::try_from(count).ok()),
    }
}

#[async_trait]
impl Runtime for Process {
    fn kind(&self) -> Kind {
        Kind::Process
    }

    async fn start(&self, order: &Order<'_>, clones: Vec<OwnedFd>) -> Result<Arc<dyn Running>, RuntimeError> {
        let spec = TaskSpec { cgroup: Some(self.cgroup(order)), ..self.spec(order) };
        self.run(order.place, &spec, clones).await
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
