//! The watch cache: one watch of the store, whose changes stand on one lane per resource.
//!
//! Watchers read the lanes at their own pace and are woken by a revision number; there is no queue per
//! watcher. Who falls so far behind that its place is gone from the lane reads the store's own history.
//! A change is opened and encoded once, whoever reads it.
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use backon::BackoffBuilder;
use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::mirror::Mirror;
use super::objects::Objects;
use super::resource::{Nature, ROOT, Resource};
use super::selector::Traits;
use super::status::Refusal;
use crate::store::{Event, Kv, Rev, Store, StoreError};

/// The most bytes of changes that all lanes hold together.
const BUDGET: usize = 8 << 20;
/// The most changes that all lanes hold together.
const MOST: usize = 8192;
/// How many keys are read at once where all of them are.
const PAGE: usize = 500;
/// How many changes a watcher takes at once.
const BATCH: usize = 128;

/// One write as watchers see it.
pub(crate) struct Change {
    /// The revision of the write.
    pub(crate) rev: Rev,
    /// The key written.
    pub(crate) key: Bytes,
    /// The object after it; none when it was deleted.
    pub(crate) new: Option<Side>,
    /// The object before it; none when it was made.
    pub(crate) old: Option<Side>,
}

/// One state of an object, opened when first asked for.
pub(crate) struct Side {
    kv: Kv,
    rev: Rev,
    // Core form, and the form of events.k8s.io.
    views: [OnceLock<Result<View, Refusal>>; 2],
}

/// One state of an object as one resource shows it.
pub(crate) struct View {
    /// Its JSON, with the revision of the change.
    pub(crate) json: Bytes,
    traits: OnceLock<Traits>,
}

impl Side {
    fn new(kv: Kv, rev: Rev) -> Self {
        Self { kv, rev, views: [const { OnceLock::new() }; 2] }
    }

    /// The state as this resource shows it.
    pub(crate) fn view(&self, objects: &Objects, resource: &Resource) -> Result<&View, Refusal> {
        let slot = usize::from(resource.nature == Nature::NewEvent);
        let open = || {
            let stored = objects.open(resource, &self.kv)?;
            Ok(View { json: stored.json_at(resource, self.rev)?, traits: OnceLock::new() })
        };
        self.views[slot].get_or_init(open).as_ref().map_err(Clone::clone)
    }
}

impl View {
    /// What selectors match against.
    pub(crate) fn traits(&self, resource: &Resource) -> &Traits {
        self.traits.get_or_init(|| Traits::read(&self.json, resource.kind.selectable))
    }
}

impl Change {
    /// A change from the store's event; none for progress.
    pub(crate) fn of(event: Event) -> Option<Self> {
        match event {
            Event::Put { kv, prev } => {
                let rev = kv.mod_revision;
                let (key, old) = (kv.key.clone(), prev.map(|kv| Side::new(kv, rev)));
                Some(Self { rev, key, new: Some(Side::new(kv, rev)), old })
            }
            Event::Delete { key, rev, prev } => {
                Some(Self { rev, key, new: None, old: Some(Side::new(prev, rev)) })
            }
            Event::Progress(_) => None,
        }
    }

    fn size(&self) -> usize {
        let sides = [&self.new, &self.old].into_iter().flatten();
        // Twice the value: it may come to be held encoded as well.
        sides.map(|side| 2 * side.kv.value.len()).sum::<usize>() + self.key.len() + 256
    }
}

/// What a watcher finds on a lane.
pub(crate) enum Taken {
    /// Changes after its place, in order.
    Changes(Vec<Arc<Change>>),
    /// Nothing: everything up to this revision has been seen.
    Nothing(Rev),
    /// Its place is no longer on the lane.
    TooOld,
}

struct Lane {
    ring: Mutex<Ring>,
    news: watch::Sender<u64>,
}

struct Ring {
    changes: VecDeque<Arc<Change>>,
    /// Every change after this revision is here.
    floor: Rev,
}

/// The lanes.
pub(crate) struct Hub {
    lanes: Vec<Lane>,
    /// Everything up to this revision is on the lanes.
    position: AtomicU64,
    ready: watch::Sender<bool>,
    /// Whether the store is being followed now.
    follows: AtomicBool,
    /// What the store holds, where that is kept.
    mirror: Option<Arc<Mirror>>,
}

impl Hub {
    /// Empty lanes.
    pub(crate) fn new(lanes: usize, mirror: Option<Arc<Mirror>>) -> Self {
        let lane = || Lane {
            ring: Mutex::new(Ring { changes: VecDeque::new(), floor: Rev(u64::MAX) }),
            news: watch::Sender::new(0),
        };
        let lanes = std::iter::repeat_with(lane).take(lanes).collect();
        Self {
            lanes,
            position: AtomicU64::new(0),
            ready: watch::Sender::new(false),
            follows: AtomicBool::new(false),
            mirror,
        }
    }

    /// Waits until the store is being followed.
    pub(crate) async fn ready(&self) {
        // The sender lives as long as we do, so this cannot fail.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Whether the store is being followed now: if not, nobody can be told that there is no news.
    pub(crate) fn follows(&self) -> bool {
        self.follows.load(Ordering::Acquire)
    }

    /// The revision up to which everything is on the lanes.
    pub(crate) fn position(&self) -> Rev {
        Rev(self.position.load(Ordering::Acquire))
    }

    /// Wakes when a lane gets a change.
    pub(crate) fn news(&self, lane: usize) -> watch::Receiver<u64> {
        self.lanes[lane].news.subscribe()
    }

    /// Whether a watcher at this place finds all that follows on the lane.
    pub(crate) fn covers(&self, lane: usize, after: Rev) -> bool {
        self.ring(lane).floor <= after || planted!("too-old-unsaid")
    }

    /// What stands on the lane after a place.
    pub(crate) fn take(&self, lane: usize, after: Rev) -> Taken {
        // Read before the ring: every change up to it is then on the lane.
        let position = self.position();
        let ring = self.ring(lane);
        if ring.floor > after && !planted!("too-old-unsaid") {
            return Taken::TooOld;
        }
        let from = ring.changes.partition_point(|change| change.rev <= after);
        if from == ring.changes.len() {
            return Taken::Nothing(position.max(after));
        }
        let skipped = if planted!("changes-skipped") { ring.changes.len() - from - 1 } else { 0 };
        Taken::Changes(ring.changes.range(from..).skip(skipped).take(BATCH).cloned().collect())
    }

    fn ring(&self, lane: usize) -> MutexGuard<'_, Ring> {
        self.lanes[lane].ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the store until told to stop.
    pub(crate) async fn follow(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        prefixes: Vec<(String, usize)>,
        stop: CancellationToken,
    ) {
        let mut keeper = Keeper { hub: &self, prefixes, order: VecDeque::new(), held: 0 };
        let _ = stop.run_until_cancelled(keeper.run(&*store)).await;
    }
}

/// The one writer of the lanes.
struct Keeper<'a> {
    hub: &'a Hub,
    prefixes: Vec<(String, usize)>,
    /// Lane and size of every change held, oldest first.
    order: VecDeque<(usize, usize)>,
    held: usize,
}

impl Keeper<'_> {
    async fn run(&mut self, store: &dyn Store) {
        let delays = || {
            let delays = backon::ExponentialBuilder::default();
            let (least, most) = (Duration::from_millis(100), Duration::from_secs(10));
            delays.with_min_delay(least).with_max_delay(most).without_max_times().build()
        };
        let mut delay = delays();
        let mut at = None;
        loop {
            let before = at;
            let error = self.session(store, &mut at).await;
            let followed = self.hub.follows.swap(false, Ordering::AcqRel);
            match error {
                // What was lost cannot be told to anyone: everybody whose place is older lists again.
                StoreError::Compacted { .. } | StoreError::Future { .. } => at = None,
                StoreError::TooSlow { .. } => {}
                StoreError::Conflict { .. }
                | StoreError::Deposed
                | StoreError::Unavailable { .. }
                | StoreError::TooLarge { .. }
                | StoreError::Corrupt { .. } => {
                    if followed || at.is_none() {
                        tracing::warn!(error = &error as &dyn std::error::Error, "the store is not followed");
                    }
                }
            }
            if at > before {
                delay = delays();
            } else {
                tokio::time::sleep(delay.next().unwrap_or_default()).await;
            }
        }
    }

    /// Watches from `at` (none: from now, with empty lanes) until the watch fails.
    async fn session(&mut self, store: &dyn Store, at: &mut Option<Rev>) -> StoreError {
        let from = match *at {
            Some(rev) => rev,
            None => match self.beginning(store).await {
                Ok(rev) => {
                    self.clear(rev);
                    *at = Some(rev);
                    rev
                }
                Err(error) => return error,
            },
        };
        let mut watch = match store.watch(ROOT.as_bytes(), from).await {
            Ok(watch) => watch,
            Err(error) => return error,
        };
        self.hub.ready.send_replace(true);
        self.hub.follows.store(true, Ordering::Release);
        loop {
            match watch.next().await {
                Some(Ok(event)) => {
                    *at = Some(event.rev());
                    if let Some(mirror) = &self.hub.mirror {
                        mirror.note(&event);
                    }
                    self.lay(event);
                }
                Some(Err(error)) => return error,
                None => {
                    let (delivered, current) = (at.unwrap_or_default(), self.hub.position());
                    return StoreError::TooSlow { delivered, current };
                }
            }
        }
    }

    async fn beginning(&self, store: &dyn Store) -> Result<Rev, StoreError> {
        match &self.hub.mirror {
            Some(mirror) => mirror.fill(store, ROOT.as_bytes(), PAGE).await,
            None => store.revision().await,
        }
    }

    fn clear(&mut self, rev: Rev) {
        self.order.clear();
        self.held = 0;
        for lane in 0..self.hub.lanes.len() {
            let mut ring = self.hub.ring(lane);
            ring.changes.clear();
            ring.floor = rev;
        }
        self.advance(rev);
        for lane in &self.hub.lanes {
            lane.news.send_replace(rev.0);
        }
    }

    fn lay(&mut self, event: Event) {
        let rev = event.rev();
        let place = Change::of(event).and_then(|change| {
            let found = self.prefixes.iter().find(|(prefix, _)| change.key.starts_with(prefix.as_bytes()));
            found.map(|(_, lane)| (*lane, change))
        });
        let Some((lane, change)) = place else {
            self.advance(rev);
            return;
        };
        let size = change.size();
        self.hub.ring(lane).changes.push_back(Arc::new(change));
        self.order.push_back((lane, size));
        self.held += size;
        while self.held > BUDGET || self.order.len() > MOST {
            let Some((oldest, size)) = self.order.pop_front() else { break };
            self.held -= size;
            let mut ring = self.hub.ring(oldest);
            if let Some(gone) = ring.changes.pop_front() {
                ring.floor = gone.rev;
            }
        }
        self.advance(rev);
        self.hub.lanes[lane].news.send_replace(rev.0);
    }

    fn advance(&self, rev: Rev) {
        self.hub.position.store(rev.0, Ordering::Release);
    }
}
