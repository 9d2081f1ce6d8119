//! What containerd remembers of tasks that are over, which it could not be told to forget: it is told when it answers again.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex as Turn;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::sys::Containerd;

/// How long the first pause between two tries is; each next one is twice as long, up to the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// The directories of such tasks. While there are none, nothing is done.
#[derive(Debug)]
pub(super) struct Left {
    shared: Arc<Shared>,
    tracker: TaskTracker,
    stop: CancellationToken,
    // However the daemon ends: what it began ends too.
    _guard: DropGuard,
}

#[derive(Debug, Default)]
struct Shared(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    /// Each with a turn, held by who removes what is there, or takes it out for a task that starts at that place once more.
    of: BTreeMap<PathBuf, Arc<Turn<()>>>,
    /// Somebody goes through them again and again until there are none.
    under_way: bool,
}

impl Left {
    pub(super) fn new() -> Self {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        Self { shared: Arc::default(), tracker: TaskTracker::new(), stop, _guard: guard }
    }

    /// Has it removed as soon as `containerd` does it; what its containers were called by is beneath `root`.
    pub(super) fn owe(&self, directory: &Path, containerd: &Arc<dyn Containerd>, root: &Path) {
        let mut all = self.shared.all();
        all.of.entry(directory.to_owned()).or_default();
        if std::mem::replace(&mut all.under_way, true) {
            return;
        }
        drop(all);
        let (shared, containerd, root) = (Arc::clone(&self.shared), Arc::clone(containerd), root.to_owned());
        let removed = async move { shared.remove(containerd.as_ref(), &root).await };
        let stop = self.stop.clone();
        self.tracker.spawn(async move { stop.run_until_cancelled(removed).await });
    }

    /// A task starts at this place, and has removed itself what was there before; returns when nothing is removed there any
    /// more by us.
    pub(super) async fn spare(&self, directory: &Path) {
        if let Some(turn) = self.shared.turn(directory) {
            let _turn = turn.lock().await;
            self.shared.done(directory);
        }
    }

    /// Gives up, and returns when nothing is under way any more.
    pub(super) async fn join(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

impl Shared {
    async fn remove(&self, containerd: &dyn Containerd, root: &Path) {
        let mut pause = FIRST;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST);
            let each: Vec<_> = self.all().of.keys().cloned().collect();
            for directory in each {
                let Some(turn) = self.turn(&directory) else { continue };
                let _turn = turn.lock().await;
                if self.turn(&directory).is_none() {
                    continue;
                }
                match containerd.remove_of(&directory, root).await {
                    Ok(()) => self.done(&directory),
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::debug!(directory = %directory.display(), error, "containerd remembers a container that is over");
                    }
                }
            }
            // Looked at under the lock under which the next one is owed.
            let mut all = self.all();
            if all.of.is_empty() {
                all.under_way = false;
                return;
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, directory: &Path) -> Option<Arc<Turn<()>>> {
        self.all().of.get(directory).cloned()
    }

    fn done(&self, directory: &Path) {
        self.all().of.remove(directory);
    }
}
