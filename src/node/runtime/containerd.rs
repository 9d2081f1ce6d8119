//! The task is a container that containerd makes, under a shim ([`super::shimmed`]): the same container as under
//! [`super::oci`], of the same image. containerd calls runc, has the container's first process for a child, and says how that
//! ended; output, limits, stop and records are the shim's, and what containerd remembers goes with it. If that failed, it goes
//! with what else is forgotten of the task, or before the next start, or when containerd answers again ([`left`]), or when a
//! daemon begins.
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use self::left::Left;
use super::oci::Oci;
use super::shimmed::Shimmed;
use super::{
    Found, Kind, Order, Outcome, Place, Readiness, Running, Runtime, RuntimeError, Variables, Wake, Wish,
};
use crate::api::allocation::Task;
use crate::plan::containerd::{self as plan, Leftover, Seen};
use crate::plan::supervise::Obstacle;
use crate::sys;
use crate::sys::Random;
use crate::sys::containerd::Through;
use crate::sys::containers::Lack;
use crate::sys::process::TaskSpec;

mod left;

/// The containerd of a machine, and where it is.
pub type Reached = (Arc<dyn sys::Containerd>, PathBuf);

/// The runtime `containerd`.
#[derive(Debug)]
pub struct Containerd {
    oci: Arc<Oci>,
    shimmed: Shimmed,
    /// None: this daemon runs no containers.
    there: Option<Reached>,
    random: Arc<dyn Random>,
    /// What was lacking when it was last asked.
    lack: Mutex<Option<Lack>>,
    left: Left,
}

impl Containerd {
    /// Containers as `oci` makes them, through that containerd. Those that were started once are looked after without it,
    /// too.
    pub fn new(oci: Arc<Oci>, shimmed: Shimmed, there: Option<Reached>, random: Arc<dyn Random>) -> Self {
        let lack = if there.is_some() { None } else { Some(Lack::Absent) };
        Self { oci, shimmed, there, random, lack: Mutex::new(lack), left: Left::new() }
    }

    fn spec(&self, order: &Order<'_>) -> Result<TaskSpec, RuntimeError> {
        let mut spec = self.oci.taken(order)?;
        if let (Some(container), Some((_, socket))) = (&mut spec.container, &self.there) {
            let node = order.variables.get("NODE_NAME").map_or("", String::as_str);
            let (uid, task) = (order.place.allocation.as_str(), order.place.task.as_str());
            container.id = plan::name(&order.name, task, &self.random.token());
            let labels = plan::labels(node, (&order.name, uid), task);
            container.through = Some(Through { socket: socket.clone(), labels });
        }
        Ok(spec)
    }

    /// Removes what containerd remembers of the containers of a place at which nothing runs; returns whether it is owed now.
    async fn remove(&self, place: &Place) -> bool {
        let Some((containerd, _)) = &self.there else { return false };
        let removed = containerd.remove_of(&place.directory, &self.oci.root()).await;
        if let Err(error) = &removed {
            let error = error as &dyn std::error::Error;
            tracing::warn!(task = place.task, error, "containerd remembers a container that is over");
        }
        removed.is_err()
    }
}

#[async_trait]
impl Runtime for Containerd {
    fn kind(&self) -> Kind {
        Kind::Containerd
    }

    fn endpoint(&self, task: &Task, socket: &Path) -> String {
        self.oci.endpoint(task, socket)
    }

    fn readiness(&self, place: &Place, wanted: (&Task, bool)) -> Readiness {
        match self.lack().filter(|lack| !lack.may_end()) {
            Some(lack) => Readiness::Unusable(Obstacle::Missing, lack.to_string()),
            None => self.oci.readiness(place, wanted),
        }
    }

    fn prepare(&self, place: &Place, wish: Wish<'_>, variables: &Variables, wake: Wake) {
        let of = self.there.as_ref().map(|(of, _)| Arc::clone(of));
        self.oci.prepare_for(place, (wish, of), variables, wake);
    }

    fn prepared(&self, place: &Place) -> Option<Outcome> {
        self.oci.prepared(place)
    }

    fn image(&self, place: &Place) -> Option<String> {
        self.oci.image(place)
    }

    fn next_image(&self, place: &Place) -> Option<String> {
        self.oci.next_image(place)
    }

    // What is prepared, and the layers of images, are those of `oci`, and it cares for them: `owes`, `let_go`, `collect`.

    fn collect(&self, _: BTreeSet<PathBuf>) {}

    fn lack(&self) -> Option<Lack> {
        self.lack.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn look(&self) -> Option<Lack> {
        let lack = match &self.there {
            None => Some(Lack::Absent),
            Some((of, _)) => match self.oci.look().await {
                Some(lack) => Some(lack),
                None => of.check().await.err(),
            },
        };
        self.lack.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&lack);
        lack
    }

    async fn start(&self, order: &Order<'_>, clones: Vec<OwnedFd>) -> Result<Arc<dyn Running>, RuntimeError> {
        let spec = self.spec(order)?;
        self.left.spare(&order.place.directory).await;
        self.shimmed.start(order.place, &spec, clones).await
    }

    async fn adopt(&self, place: &Place) -> Result<Found, RuntimeError> {
        self.shimmed.adopt(place).await
    }

    async fn clear(&self, place: &Place) -> Result<usize, RuntimeError> {
        let killed = self.shimmed.clear(place).await?;
        self.remove(place).await;
        Ok(killed)
    }

    async fn forget(&self, place: &Place) -> Result<(), RuntimeError> {
        self.shimmed.forget(place).await?;
        if self.remove(place).await
            && let Some((containerd, _)) = &self.there
        {
            self.left.owe(&place.directory, containerd, &self.oci.root());
        }
        Ok(())
    }

    async fn join(&self) {
        self.left.join().await;
    }

    async fn sweep(&self) -> Result<(), RuntimeError> {
        let Some((containerd, _)) = &self.there else { return Ok(()) };
        let root = self.oci.root();
        // What an earlier daemon could not have it forget.
        for directory in containerd.called_for(&root).await.iter().filter(|directory| !directory.exists()) {
            self.left.owe(directory, containerd, &root);
        }
        let found = match containerd.list().await {
            Ok(found) => found,
            Err(error) => {
                // Where there is none, there is nothing of ours in it.
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "containerd was not looked through"
                );
                return Ok(());
            }
        };
        let tasks = self.shimmed.tasks();
        for container in found {
            let known = container.directory.exists();
            let (ours, runs) = (container.is_beneath(&tasks), container.runs);
            match plan::leftover(Seen { ours, known, runs }) {
                Leftover::Leave => {}
                Leftover::Tell => tracing::warn!(container = container.id, "a container of no task runs"),
                Leftover::Remove => match containerd.remove(&container.id).await {
                    Ok(()) => tracing::warn!(container = container.id, "removed a container of no task"),
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(container = container.id, error, "a container of no task is left");
                    }
                },
            }
        }
        let strays = containerd.strays().await.unwrap_or_default();
        // Each may take its time.
        let removals = strays.iter().map(|id| async move { (id, containerd.remove(id).await) });
        for (id, removed) in futures::future::join_all(removals).await {
            // Its removal tells what it kills.
            if let Err(error) = removed {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(container = id, error, "a shim of no container is left");
            }
        }
        Ok(())
    }

    /// One without a journal is found by the runtime `process`: its records say what it is.
    async fn list(&self) -> Result<Vec<Place>, RuntimeError> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests;
