//! The task is a container that runc makes, under a shim ([`super::shimmed`]): what it is, is decided in
//! [`crate::plan::container`], and what it needs is made before its start ([`super::preparations`]).
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use super::super::context::substitute;
use super::preparations::{Grants, Made, Preparations, Wanting};
use super::shimmed::{self, Shimmed};
use super::{
    Found, Kind, Order, Outcome, Place, Readiness, Running, Runtime, RuntimeError, Variables, Wake, Wish,
};
use crate::api::allocation::Task;
use crate::api::capability::Capability;
use crate::plan::container::Whose;
use crate::plan::container::{
    self, Cgroups, Container, ImageSays, Limits, MachineSays, Owner, Share, UserWanted, VolumeAt, VolumeKind,
    Wanted,
};
use crate::plan::supervise::Obstacle;
use crate::sys;
use crate::sys::cgroup::Cgroup;
use crate::sys::containers::{Containers, Equipment, Lack, Layout};
use crate::sys::image::Config;
use crate::sys::process::{ContainerShare, ContainerSpec, Identity, TaskSpec};

/// The file of a plugin's socket, in its directory.
const SOCKET: &str = "csi.sock";
/// Where a container's root and volumes are made, in its task's directory.
const STAGE: &str = "stage";
/// Where runc keeps what it knows, in the node's directory that goes with a boot.
const RUNC: &str = "runc";

/// The runtime `oci`.
#[derive(Debug)]
pub struct Oci {
    shimmed: Shimmed,
    run_dir: PathBuf,
    /// None: this daemon runs no containers.
    preparations: Option<Preparations>,
}

impl Oci {
    /// With what is found by `containers`, as far as `grants` go. Containers that were started once are looked after
    /// without `containers`, too.
    pub fn new(
        shimmed: Shimmed,
        containers: Option<Arc<dyn Containers>>,
        run_dir: &Path,
        grants: Grants,
    ) -> Self {
        let preparations = containers.map(|containers| Preparations::new(containers, grants));
        Self { shimmed, run_dir: run_dir.to_owned(), preparations }
    }

    /// Where what runc remembers of containers lies.
    pub(super) fn root(&self) -> PathBuf {
        self.run_dir.join(RUNC)
    }

    /// What a shim is told of the container that was prepared at a place, once.
    pub(super) fn taken(&self, order: &Order<'_>) -> Result<TaskSpec, RuntimeError> {
        let made = self.preparations.as_ref().and_then(|preparations| preparations.take(order.place));
        self.spec(order, &made.ok_or(RuntimeError::Unprepared)?)
    }

    /// [`Runtime::prepare`], for a container that this containerd makes, if any does.
    pub(super) fn prepare_for(
        &self,
        place: &Place,
        (wish, by): (Wish<'_>, Option<Arc<dyn sys::Containerd>>),
        variables: &Variables,
        wake: Wake,
    ) {
        let Wish { task, trusted, former } = wish;
        if let Some(preparations) = &self.preparations {
            let mut oci = task.runtime.container().cloned().unwrap_or_default();
            oci.archive = substitute(&oci.archive, variables);
            for host in &mut oci.host_paths {
                host.path = substitute(&host.path, variables);
            }
            let former = former.and_then(|digest| digest.parse().ok());
            preparations.begin(place, Wanting { oci, whose: whose(task, trusted), former, by }, wake);
        }
    }

    fn spec(&self, order: &Order<'_>, made: &Made) -> Result<TaskSpec, RuntimeError> {
        let place = order.place;
        let container = self.container(order, made)?;
        let Container { document, user, shares, stop_signal } = container;
        Ok(TaskSpec {
            argv: document.process.args.clone(),
            // It is in the document, which is not kept beyond the start.
            env: BTreeMap::new(),
            cwd: PathBuf::from("/"),
            logs: shimmed::logs(place),
            grace_ms: shimmed::grace(order),
            private_mounts: true,
            mounts: shimmed::mounts(order),
            hide: Vec::new(),
            // Its limits are the document's.
            cgroup: Some(Cgroup { path: self.shimmed.cgroup(place), limits: sys::cgroup::Limits::default() }),
            unit: None,
            identity: Some(identity(user)),
            container: Some(ContainerSpec {
                runc: made.equipment.runc.clone(),
                root: self.root(),
                id: format!("{}.{}", place.allocation, place.task),
                layers: made.image.layers.clone(),
                shares: shares.into_iter().map(share).collect(),
                stop_signal,
                through: None,
                document: serde_json::to_string(&document).map_err(RuntimeError::Document)?,
            }),
        })
    }

    fn container(&self, order: &Order<'_>, made: &Made) -> Result<Container, RuntimeError> {
        let replaced = |words: &[String]| -> Vec<String> {
            words.iter().map(|word| substitute(word, &order.variables)).collect()
        };
        let (command, args) = (replaced(&made.oci.command), replaced(&made.oci.args));
        let volumes: Vec<_> = order.volumes.iter().map(volume).collect::<Result<_, _>>()?;
        let (image, machine) = (says(&made.image.config), machine(&made.equipment));
        let stage = order.place.directory.join(STAGE);
        let wanted = Wanted {
            oci: &made.oci,
            command: &command,
            args: &args,
            env: &order.env,
            image: &image,
            limits: Limits::from(&order.task.resources.limits),
            volumes: &volumes,
            devices: &made.devices,
            plugin: order.plugin.as_ref(),
            machine: &machine,
            owner: Owner {
                node: order.variables.get("NODE_NAME").map_or("", String::as_str),
                allocation: &order.name,
                task: &order.place.task,
            },
            stage: &stage.to_string_lossy(),
            cgroup: &self.shimmed.cgroup(order.place),
        };
        Ok(container::container(&wanted)?)
    }
}

fn whose(task: &Task, trusted: bool) -> Whose {
    Whose::of(task.csi_plugin.as_ref().map(|plugin| plugin.role), trusted)
}

fn share(share: Share) -> ContainerShare {
    let Share { path, both_ways, resolved } = share;
    ContainerShare { path: path.into(), both_ways, resolved }
}

fn volume(volume: &super::VolumeAt) -> Result<VolumeAt, RuntimeError> {
    let kind = match (volume.block, volume.device) {
        (false, _) => VolumeKind::Filesystem,
        (true, Some(device)) => VolumeKind::Block { major: device.major, minor: device.minor },
        (true, None) => return Err(RuntimeError::NoDevice { path: volume.path.clone() }),
    };
    Ok(VolumeAt { path: volume.path.to_string_lossy().into_owned(), read_only: volume.read_only, kind })
}

fn identity(wanted: UserWanted) -> Identity {
    let user = match (wanted.user, wanted.group) {
        (None, _) => String::new(),
        (Some(user), None) => user,
        (Some(user), Some(group)) => format!("{user}:{group}"),
    };
    Identity { user, groups: wanted.groups, ..Identity::default() }
}

fn says(config: &Config) -> ImageSays {
    ImageSays {
        entrypoint: config.entrypoint.clone(),
        cmd: config.cmd.clone(),
        env: config.env.clone(),
        working_dir: config.working_dir.clone(),
        user: config.user.as_ref().map(|user| (user.user.clone(), user.group.clone())),
        stop_signal: config.stop_signal,
    }
}

fn machine(equipment: &Equipment) -> MachineSays {
    MachineSays {
        capabilities: equipment.capabilities.iter().filter_map(|n| Capability::numbered(*n)).collect(),
        hostname: equipment.hostname.clone(),
        cgroups: match equipment.cgroups {
            Layout::V1 => Cgroups::V1,
            Layout::Hybrid => Cgroups::Hybrid,
            Layout::V2 => Cgroups::V2,
        },
        resolv_conf: equipment.resolv_conf,
        hosts: equipment.hosts,
    }
}

#[async_trait]
impl Runtime for Oci {
    fn kind(&self) -> Kind {
        Kind::Oci
    }

    fn endpoint(&self, task: &Task, socket: &Path) -> String {
        let mount_dir = task.csi_plugin.as_ref().map_or("", |plugin| plugin.mount_dir.as_str());
        let inside = if mount_dir.is_empty() { socket.to_owned() } else { Path::new(mount_dir).join(SOCKET) };
        format!("unix://{}", inside.display())
    }

    fn readiness(&self, place: &Place, (task, trusted): (&Task, bool)) -> Readiness {
        match &self.preparations {
            Some(preparations) => {
                preparations.readiness(place, task.runtime.container(), whose(task, trusted))
            }
            None => Readiness::Unusable(Obstacle::Missing, Lack::Absent.to_string()),
        }
    }

    fn prepare(&self, place: &Place, wish: Wish<'_>, variables: &Variables, wake: Wake) {
        self.prepare_for(place, (wish, None), variables, wake);
    }

    fn prepared(&self, place: &Place) -> Option<Outcome> {
        self.preparations.as_ref()?.outcome(place)
    }

    fn image(&self, place: &Place) -> Option<String> {
        self.preparations.as_ref()?.image(place)
    }

    fn next_image(&self, place: &Place) -> Option<String> {
        self.preparations.as_ref()?.next_image(place)
    }

    fn owes(&self) -> bool {
        self.preparations.as_ref().is_some_and(Preparations::owes)
    }

    fn let_go(&self, allocation: &str, had_run: bool) {
        if let Some(preparations) = &self.preparations {
            preparations.let_go(allocation, had_run);
        }
    }

    fn lack(&self) -> Option<Lack> {
        self.preparations.as_ref().map_or(Some(Lack::Absent), Preparations::lack)
    }

    async fn look(&self) -> Option<Lack> {
        match &self.preparations {
            Some(preparations) => preparations.look().await,
            None => Some(Lack::Absent),
        }
    }

    fn collect(&self, used: BTreeSet<PathBuf>) {
        if let Some(preparations) = &self.preparations {
            preparations.collect(used);
        }
    }

    async fn join(&self) {
        if let Some(preparations) = &self.preparations {
            preparations.join().await;
        }
    }

    async fn start(&self, order: &Order<'_>, clones: Vec<OwnedFd>) -> Result<Arc<dyn Running>, RuntimeError> {
        self.shimmed.start(order.place, &self.taken(order)?, clones).await
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

    /// One without a journal is found by the runtime `process`: its records say what it is.
    async fn list(&self) -> Result<Vec<Place>, RuntimeError> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests;
