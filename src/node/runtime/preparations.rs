//! What containers need before they are started: an image with its layers unpacked, runc, paths and devices of the node.
//! Made beside the queue, for a reconcile must not wait for it: a stop would not be seen for minutes.
//!
//! ```text
//! nothing --begin--> Preparing --made--> Ready --take--> Used
//!    Failed, Used --begin--> Preparing --not made, or panicked--> Failed
//! ```
//! Each start looks at the archive again; what was read and has not changed is there at once. The image of the last start
//! is held for as long as its allocation is here.
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::super::mounts::chain;
use super::{Outcome, Place, Readiness, Wake};
use crate::api::runtime::OciRuntime;
use crate::plan::container::{Device, Forbidden, Trust, Whose, gate};
use crate::plan::supervise::Obstacle;
use crate::sys::containers::{Astray, Containers, DeviceNode, Equipment, Image, Lack};
use crate::sys::image::{Digest, ImageError};

/// What this node's own configuration allows containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grants {
    /// Images lie beneath one of these.
    pub image_dirs: Vec<PathBuf>,
    /// Paths of the node that a container is given lie beneath one of these.
    pub bind_paths: Vec<PathBuf>,
    /// Whether what reaches beyond a container is allowed.
    pub trust: Trust,
}

impl Grants {
    /// Images from the usual directory, and nothing else.
    pub fn usual(data_dir: &Path) -> Self {
        Self {
            image_dirs: vec![data_dir.join("image-archives")],
            bind_paths: Vec::new(),
            trust: Trust::Confined,
        }
    }
}

/// All that a container needs of its machine.
#[derive(Debug, Clone)]
pub(super) struct Made {
    /// Its block; paths of the node are without links.
    pub(super) oci: OciRuntime,
    /// The nodes of its devices.
    pub(super) devices: Vec<Device>,
    pub(super) equipment: Equipment,
    pub(super) image: Arc<Image>,
    /// What a person should know of it.
    pub(super) note: Option<String>,
}

/// What is to be made.
#[derive(Debug)]
pub(super) struct Wanting {
    /// The task's block.
    pub(super) oci: OciRuntime,
    pub(super) whose: Whose,
    /// The image that it was started from last: where its archive is gone, that is good enough.
    pub(super) former: Option<Digest>,
    /// Who makes the container, if it is not runc alone.
    pub(super) by: Option<Arc<dyn crate::sys::Containerd>>,
}

/// The preparations of one node.
#[derive(Debug)]
pub(super) struct Preparations {
    shared: Arc<Shared>,
    tracker: TaskTracker,
    stop: CancellationToken,
    // However the daemon ends: what it began ends too.
    _guard: DropGuard,
}

#[derive(Debug)]
struct Shared {
    containers: Arc<dyn Containers>,
    grants: Grants,
    all: Mutex<BTreeMap<Named, Entry>>,
    tickets: AtomicU64,
    /// What the machine lacked when it was last looked at.
    lack: Mutex<Option<Lack>>,
    /// There may be layers that nothing uses any more: an earlier daemon left them, or what used them has gone.
    owed: AtomicBool,
}

/// An allocation and a task of it.
type Named = (String, String);

/// What was made for one task.
#[derive(Debug)]
struct Entry {
    state: State,
    /// Which preparation the state is of.
    ticket: u64,
    /// Its end was not told yet.
    news: bool,
    /// The image that was started last.
    image: Option<Arc<Image>>,
    /// Ends the preparation with the entry.
    _guard: DropGuard,
}

#[derive(Debug)]
enum State {
    /// With what the last try failed of.
    Preparing(Option<Failure>),
    Ready(Box<Made>),
    Used,
    Failed(Failure),
}

/// Why something could not be made.
type Failure = (Obstacle, String);

impl Preparations {
    pub(super) fn new(containers: Arc<dyn Containers>, grants: Grants) -> Self {
        let shared = Shared {
            containers,
            grants,
            all: Mutex::default(),
            tickets: AtomicU64::default(),
            // Not looked at yet.
            lack: Mutex::new(Some(Lack::NoAnswer)),
            owed: AtomicBool::new(true),
        };
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        Self { shared: Arc::new(shared), tracker: TaskTracker::new(), stop, _guard: guard }
    }

    /// What the node's own configuration refuses is neither begun nor tried again. Where a path lies is another matter: that
    /// may change, be it by a link.
    pub(super) fn readiness(&self, place: &Place, oci: Option<&OciRuntime>, whose: Whose) -> Readiness {
        if let Some(Err(forbidden)) = oci.map(|oci| self.shared.allows(oci, whose)) {
            return Readiness::Unusable(Obstacle::NotAllowed, forbidden.to_string());
        }
        match self.shared.all().get(&named(place)).map(|entry| &entry.state) {
            None | Some(State::Used) => Readiness::Unprepared,
            Some(State::Preparing(None)) => Readiness::Preparing,
            Some(State::Preparing(Some((obstacle, why)))) => Readiness::Retrying(*obstacle, why.clone()),
            Some(State::Ready(_)) => Readiness::Ready,
            Some(State::Failed((obstacle, why))) => Readiness::Failed(*obstacle, why.clone()),
        }
    }

    /// Begins, unless that is under way.
    pub(super) fn begin(&self, place: &Place, asked: Wanting, wake: Wake) {
        let cancelled = CancellationToken::new();
        let ticket = self.shared.tickets.fetch_add(1, Ordering::Relaxed);
        {
            let mut all = self.shared.all();
            if all.get(&named(place)).is_some_and(|entry| matches!(entry.state, State::Preparing(_))) {
                return;
            }
            let former = all.remove(&named(place)).map(|entry| (entry.state, entry.image));
            let (last, image) = match former {
                // What comes before the image takes no time: when that lacks no more, there is something to wait for.
                Some((State::Failed(last), image)) => {
                    (Some(last).filter(|last| last.0 == Obstacle::Image), image)
                }
                Some((State::Preparing(_) | State::Ready(_) | State::Used, image)) => (None, image),
                None => (None, None),
            };
            self.shared.owed.store(true, Ordering::Relaxed);
            let guard = cancelled.clone().drop_guard();
            let state = State::Preparing(last);
            let entry = Entry { state, ticket, news: false, image, _guard: guard };
            all.insert(named(place), entry);
        }
        let (shared, stop, named) = (Arc::clone(&self.shared), self.stop.clone(), named(place));
        self.tracker.spawn(async move {
            let made = tokio::select! {
                biased; // nobody wants it any more, be it there or not
                () = stop.cancelled() => return,
                () = cancelled.cancelled() => return,
                made = shared.made(asked) => made,
            };
            if shared.over(&named, ticket, made) {
                wake();
            }
        });
    }

    /// How the last preparation ended, told once.
    pub(super) fn outcome(&self, place: &Place) -> Option<Outcome> {
        let mut all = self.shared.all();
        let entry = all.get_mut(&named(place))?;
        if !std::mem::take(&mut entry.news) {
            return None;
        }
        Some(match &entry.state {
            State::Failed(failure) => Err(failure.clone()),
            State::Ready(made) => Ok(made.note.clone()),
            State::Preparing(_) | State::Used => Ok(None),
        })
    }

    /// What was made, for the one start that it was made for.
    pub(super) fn take(&self, place: &Place) -> Option<Made> {
        let mut all = self.shared.all();
        let entry = all.get_mut(&named(place))?;
        match std::mem::replace(&mut entry.state, State::Used) {
            State::Ready(made) => {
                entry.image = Some(Arc::clone(&made.image));
                Some(*made)
            }
            other @ (State::Preparing(_) | State::Used | State::Failed(_)) => {
                entry.state = other;
                None
            }
        }
    }

    /// The image that a task was started from last.
    pub(super) fn image(&self, place: &Place) -> Option<String> {
        let all = self.shared.all();
        all.get(&named(place)).and_then(|entry| entry.image.as_ref()).map(|image| image.id.to_string())
    }

    /// The image that a task is started from next.
    pub(super) fn next_image(&self, place: &Place) -> Option<String> {
        match &self.shared.all().get(&named(place))?.state {
            State::Ready(made) => Some(made.image.id.to_string()),
            State::Preparing(_) | State::Used | State::Failed(_) => None,
        }
    }

    /// Nobody starts tasks of this allocation any more. One that an earlier daemon started is not known here.
    pub(super) fn let_go(&self, allocation: &str, had_run: bool) {
        let mut all = self.shared.all();
        let before = all.len();
        all.retain(|(of, _), _| of != allocation);
        self.shared.owed.fetch_or(had_run || all.len() < before, Ordering::Relaxed);
    }

    /// Whether there may be what nothing uses any more.
    pub(super) fn owes(&self) -> bool {
        self.shared.owed.load(Ordering::Relaxed)
    }

    /// Removes what none of these uses, nor anything that is being prepared or was prepared.
    pub(super) fn collect(&self, used: BTreeSet<PathBuf>) {
        let (shared, stop) = (Arc::clone(&self.shared), self.stop.clone());
        shared.owed.store(false, Ordering::Relaxed);
        self.tracker.spawn(async move {
            let removed = tokio::select! {
                () = stop.cancelled() => return,
                removed = shared.containers.remove_unused(used) => removed,
            };
            match removed {
                Ok(0) => {}
                Ok(layers) => tracing::info!(layers, "layers of images that nothing uses are gone"),
                Err(error) => {
                    shared.owed.store(true, Ordering::Relaxed);
                    tracing::warn!(error = chain(&error), "layers of images not removed");
                }
            }
        });
    }

    /// Looks at the machine again; what it lacks, if anything.
    pub(super) async fn look(&self) -> Option<Lack> {
        self.shared.check().await.err()
    }

    /// What the machine lacked when it was looked at last.
    pub(super) fn lack(&self) -> Option<Lack> {
        self.shared.lack.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives up what is under way, and waits until that is over.
    pub(super) async fn join(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl Shared {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Named, Entry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what came of a preparation, unless nobody wants it any more.
    fn over(&self, named: &Named, ticket: u64, made: Result<Made, Failure>) -> bool {
        let mut all = self.all();
        let Some(entry) = all.get_mut(named).filter(|entry| entry.ticket == ticket) else { return false };
        entry.news = true;
        entry.state = match made {
            Ok(made) => State::Ready(Box::new(made)),
            Err(failure) => State::Failed(failure),
        };
        true
    }

    async fn check(&self) -> Result<Equipment, Lack> {
        let found = self.containers.check().await;
        *self.lack.lock().unwrap_or_else(PoisonError::into_inner) = found.as_ref().err().cloned();
        found
    }

    fn allows(&self, oci: &OciRuntime, whose: Whose) -> Result<(), Forbidden> {
        gate(oci, whose, self.grants.trust, !self.grants.bind_paths.is_empty())
    }

    /// As [`Shared::make`]. A panic in it is a failure like others: nobody else would end the wait.
    async fn made(&self, asked: Wanting) -> Result<Made, Failure> {
        let made = AssertUnwindSafe(self.make(asked)).catch_unwind().await;
        made.unwrap_or_else(|panic| {
            let said =
                panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
            let said = said.unwrap_or("nothing is known of it");
            tracing::error!(panic = said, "the preparation of a container broke off");
            Err((Obstacle::Image, format!("a fault of wharfline's own broke off reading the image: {said}")))
        })
    }

    async fn make(&self, asked: Wanting) -> Result<Made, Failure> {
        let Wanting { mut oci, whose, former, by } = asked;
        self.allows(&oci, whose).map_err(|error| (Obstacle::NotAllowed, error.to_string()))?;
        let Grants { image_dirs, bind_paths, .. } = &self.grants;
        let equipment = self.check().await.map_err(|lack| (Obstacle::Missing, lack.to_string()))?;
        if let Some(by) = by {
            by.check().await.map_err(|lack| (Obstacle::Missing, lack.to_string()))?;
        }
        for (i, host) in oci.host_paths.iter_mut().enumerate() {
            let field = format!("hostPaths[{i}].path");
            host.path = self.resolved(&host.path, bind_paths, &field).await?;
        }
        let mut devices = Vec::new();
        for path in &oci.devices {
            let node = self.containers.device(Path::new(path)).await;
            let node = node.map_err(|error| (Obstacle::Image, format!("devices: {error}")))?;
            devices.push(device(path, &node));
        }
        let (image, note) = self.image(&oci, image_dirs, former.as_ref()).await?;
        Ok(Made { oci, devices, equipment, image, note })
    }

    /// The image of the archive, or, where there is none any more, the one of the last start.
    async fn image(
        &self,
        oci: &OciRuntime,
        image_dirs: &[PathBuf],
        former: Option<&Digest>,
    ) -> Result<(Arc<Image>, Option<String>), Failure> {
        let archive = Path::new(&oci.archive);
        let reference = Some(oci.image.as_str()).filter(|name| !name.is_empty());
        let (gone, failure) = match self.containers.resolve(archive, image_dirs).await {
            Ok(real) => match self.containers.image(&real, reference).await {
                Ok(image) => return Ok((image, None)),
                Err(error) => {
                    (matches!(error, ImageError::NotFound { .. }), (Obstacle::Image, chain(&error)))
                }
            },
            Err(error) => (is_missing(&error), astray(&error, "archive")),
        };
        let Some(id) = former.filter(|_| gone) else { return Err(failure) };
        let image = self.containers.kept(id).await.ok_or(failure)?;
        let note = format!("there is no {} any more: its last image, {id}, is unpacked still", oci.archive);
        Ok((image, Some(note)))
    }

    async fn resolved(&self, path: &str, allowed: &[PathBuf], field: &str) -> Result<String, Failure> {
        let real = self.containers.resolve(Path::new(path), allowed).await;
        let real = real.map_err(|error| astray(&error, field))?;
        real.into_os_string().into_string().map_err(|real| {
            (Obstacle::Image, format!("{field}: {} is not UTF-8", Path::new(&real).display()))
        })
    }
}

fn is_missing(error: &Astray) -> bool {
    matches!(error, Astray::Refused { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}

fn astray(error: &Astray, field: &str) -> Failure {
    match error {
        Astray::Outside { .. } => {
            (Obstacle::NotAllowed, format!("this node does not allow {field}: {error}"))
        }
        Astray::Refused { .. } => (Obstacle::Image, format!("{field}: {error}")),
    }
}

fn named(place: &Place) -> Named {
    (place.allocation.clone(), place.task.clone())
}

fn device(path: &str, node: &DeviceNode) -> Device {
    Device {
        path: path.to_owned(),
        r#type: if node.block { "b" } else { "c" }.to_owned(),
        major: node.id.major,
        minor: node.id.minor,
        file_mode: node.mode,
        uid: node.owner.0,
        gid: node.owner.1,
    }
}

#[cfg(test)]
pub(super) mod tests;
