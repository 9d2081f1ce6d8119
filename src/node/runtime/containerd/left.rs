//! What containerd remembers of tasks that are over, which it could not be told to forget: it is told when it answers again.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex as Turns;
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
struct Shared {
    all: Mutex<BTreeSet<PathBuf>>,
    /// Held by who removes what is in there, or takes something out for a task that starts at that place once more.
    turns: Turns<()>,
}

impl Left {
    pub(super) fn new() -> Self {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        Self { shared: Arc::default(), tracker: TaskTracker::new(), stop, _guard: guard }
    }

    /// Has it removed as soon as `containerd` does it; what its containers were called by is beneath `root`.
    pub(super) fn owe(&self, directory: &Path, containerd: &Arc<dyn Containerd>, root: &Path) {
        let mut all = self.shared.all.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = !all.is_empty();
        all.insert(directory.to_owned());
        if under_way {
            return;
        }
        let (shared, containerd, root) = (Arc::clone(&self.shared), Arc::clone(containerd), root.to_owned());
        let removed = async move { shared.remove(containerd.as_ref(), &root).await };
        let stop = self.stop.clone();
        self.tracker.spawn(async move { stop.run_until_cancelled(removed).await });
    }

    /// A task starts at this place, and has removed itself what was there before; returns when nothing is removed there any
    /// more by us.
    pub(super) async fn spare(&self, directory: &Path) {
        if self.shared.has(directory) {
            let _turn = self.shared.turns.lock().await;
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
            for directory in self.snapshot() {
                let _turn = self.turns.lock().await;
                if !self.has(&directory) {
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
            if self.all.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                return;
            }
        }
    }

    fn snapshot(&self) -> BTreeSet<PathBuf> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn has(&self, directory: &Path) -> bool {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).contains(directory)
    }

    fn done(&self, directory: &Path) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(directory);
    }
}
