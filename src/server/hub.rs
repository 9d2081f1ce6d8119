//! The watch cache: one watch of the store, whose changes stand on one lane per resource.
//!
//! Watchers read the lanes at their own pace and are woken by a revision number; there is no queue per
//! watcher. Who falls so far behind that its place is gone from the lane reads the store's own history.
//! A change is opened and encoded once, whoever reads it.
//!
//! Who watches for one value of a field, as every node does for its name, stands in a room of the lane: there is what
//! concerns that value alone, and nobody in it is woken by anything else.
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use backon::BackoffBuilder;
use bytes::Bytes;
use futures::stream::Peekable;
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::mirror::Mirror;
use super::objects::{Objects, Stored};
use super::resource::{Nature, ROOT, Resource};
use super::selector::Traits;
use super::status::Refusal;
use crate::store::{Event, Kv, Rev, Store, StoreError, Watch};

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
    // Core form, and the form of events.k8s.io; most are never asked for.
    views: [OnceLock<Box<Result<View, Refusal>>>; 2],
    /// What selectors match against; shared by the change that made this state and the one that ended it.
    traits: Arc<[OnceLock<Traits>; 2]>,
}

/// One state of an object as one resource shows it.
pub(crate) struct View {
    /// Its JSON, with the revision of the change.
    pub(crate) json: Bytes,
}

impl Side {
    fn new(kv: Kv, rev: Rev) -> Self {
        Self { kv, rev, views: [const { OnceLock::new() }; 2], traits: Arc::default() }
    }

    /// Takes over what is known of this state from the change that made it.
    fn follow(&mut self, last: &Self) {
        if last.kv == self.kv {
            self.kv = last.kv.clone();
            self.traits = Arc::clone(&last.traits);
        }
    }

    /// The state as it is stored.
    pub(crate) fn stored(&self, objects: &Objects, resource: &Resource) -> Result<Stored, Refusal> {
        objects.open(resource, &self.kv)
    }

    /// The state as this resource shows it.
    pub(crate) fn view(&self, objects: &Objects, resource: &Resource) -> Result<&View, Refusal> {
        let open = || {
            let stored = objects.open(resource, &self.kv)?;
            Ok(View { json: stored.json_at(resource, self.rev)? })
        };
        let view: &Result<View, Refusal> = self.views[slot(resource)].get_or_init(|| Box::new(open()));
        view.as_ref().map_err(Clone::clone)
    }

    /// What selectors match against.
    pub(crate) fn traits(&self, objects: &Objects, resource: &Resource) -> Result<&Traits, Refusal> {
        let known = &self.traits[slot(resource)];
        if let Some(known) = known.get() {
            return Ok(known);
        }
        let stored = objects.open(resource, &self.kv)?;
        let nothing = |_| Traits::of(&serde_json::Value::Null, resource.kind.selectable);
        Ok(known.get_or_init(|| stored.traits(resource).unwrap_or_else(nothing)))
    }
}

/// Where the form that a resource shows lies.
fn slot(resource: &Resource) -> usize {
    usize::from(resource.nature == Nature::NewEvent)
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
    /// The last of them of each key.
    newest: HashMap<Bytes, Arc<Change>>,
    /// By field and value.
    rooms: BTreeMap<&'static str, HashMap<String, Room>>,
    /// Every change after this revision is here.
    floor: Rev,
}

/// The changes of a lane that concern one value of a field.
struct Room {
    changes: VecDeque<Arc<Change>>,
    /// Every change after this revision is here: what never came in needs no place, however long ago it was.
    floor: Rev,
    news: watch::Sender<u64>,
    /// How many watchers are in it.
    listeners: usize,
}

impl Room {
    fn drop(&mut self, rev: Rev) {
        if self.changes.front().is_some_and(|first| first.rev == rev) {
            self.changes.pop_front();
            self.floor = rev;
        }
    }
}

/// A field and the value that a watcher is after.
pub(crate) type Wanted = (&'static str, String);

/// A watcher's place at a lane.
pub(crate) struct Ear {
    hub: Arc<Hub>,
    lane: usize,
    room: Option<Wanted>,
    news: watch::Receiver<u64>,
}

impl Ear {
    /// Whatever came up to now is known.
    pub(crate) fn listen(&mut self) {
        self.news.mark_unchanged();
    }

    /// Wakes at the next change; false when there will be none.
    pub(crate) async fn news(&mut self) -> bool {
        self.news.changed().await.is_ok()
    }

    /// What there is after a place.
    pub(crate) fn take(&self, after: Rev) -> Taken {
        self.hub.taken(self.lane, self.room.as_ref(), after)
    }

    /// Whether all that follows after a place is found here.
    pub(crate) fn covers(&self, after: Rev) -> bool {
        let ring = self.hub.ring(self.lane);
        let room = self.room.as_ref().and_then(|wanted| ring.room(wanted));
        room.map_or(ring.floor, |room| room.floor) <= after || planted!("too-old-unsaid")
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let Some((field, value)) = &self.room else { return };
        let mut ring = self.hub.ring(self.lane);
        let Some(rooms) = ring.rooms.get_mut(field) else { return };
        if let Some(room) = rooms.get_mut(value) {
            room.listeners -= 1;
            if room.listeners == 0 {
                rooms.remove(value);
            }
        }
        if rooms.is_empty() {
            ring.rooms.remove(field);
        }
    }
}

/// The values that a field has before and after a change.
fn values<'a>(
    change: &'a Change,
    field: &str,
    (objects, resource): (&Objects, &Resource),
) -> [Option<&'a str>; 2] {
    // What cannot be read concerns nobody here: whoever watches without a selector is told that it cannot.
    let value = |side: &'a Option<Side>| {
        let traits = side.as_ref()?.traits(objects, resource).ok()?;
        Some(traits.fields.get(field).map_or("", String::as_str))
    };
    let (is, was) = (value(&change.new), value(&change.old));
    [is, was.filter(|was| Some(*was) != is)]
}

impl Ring {
    fn room(&self, (field, value): &Wanted) -> Option<&Room> {
        self.rooms.get(field)?.get(value)
    }

    /// Puts a change in its place, and tells whose news it is.
    fn push(
        &mut self,
        mut change: Change,
        of: (&Objects, &Resource),
        concerned: &mut Vec<watch::Sender<u64>>,
    ) {
        let made = self.newest.get(&change.key).and_then(|last| last.new.as_ref());
        if let (Some(old), Some(made)) = (&mut change.old, made) {
            old.follow(made);
        }
        let change = Arc::new(change);
        for (field, rooms) in &mut self.rooms {
            for value in values(&change, field, of).into_iter().flatten() {
                if let Some(room) = rooms.get_mut(value) {
                    room.changes.push_back(Arc::clone(&change));
                    concerned.push(room.news.clone());
                }
            }
        }
        self.newest.insert(change.key.clone(), Arc::clone(&change));
        self.changes.push_back(change);
    }

    fn drop_oldest(&mut self, of: (&Objects, &Resource)) {
        let Some(gone) = self.changes.pop_front() else { return };
        self.floor = gone.rev;
        for (field, rooms) in &mut self.rooms {
            for value in values(&gone, field, of).into_iter().flatten() {
                if let Some(room) = rooms.get_mut(value) {
                    room.drop(gone.rev);
                }
            }
        }
        if self.newest.get(&gone.key).is_some_and(|last| last.rev == gone.rev) {
            self.newest.remove(&gone.key);
        }
    }
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
            ring: Mutex::new(Ring {
                changes: VecDeque::new(),
                newest: HashMap::new(),
                rooms: BTreeMap::new(),
                floor: Rev(u64::MAX),
            }),
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

    /// What stands on the lane after a place.
    pub(crate) fn take(&self, lane: usize, after: Rev) -> Taken {
        self.taken(lane, None, after)
    }

    fn taken(&self, lane: usize, room: Option<&Wanted>, after: Rev) -> Taken {
        // Read before the ring: every change up to it is then on the lane.
        let position = self.position();
        let ring = self.ring(lane);
        let room = room.and_then(|wanted| ring.room(wanted));
        let (changes, floor) = room.map_or((&ring.changes, ring.floor), |room| (&room.changes, room.floor));
        if floor > after && !planted!("too-old-unsaid") {
            return Taken::TooOld;
        }
        let from = changes.partition_point(|change| change.rev <= after);
        // What another's transaction wrote at one revision is told as a whole, once all of it is here.
        let known = changes.partition_point(|change| change.rev <= position);
        let mut to = known.min(from + BATCH);
        while to < known && changes[to].rev == changes[to - 1].rev {
            to += 1;
        }
        if from >= to {
            return Taken::Nothing(position.max(after));
        }
        let skipped = if planted!("changes-skipped") { changes.len() - from - 1 } else { 0 };
        Taken::Changes(changes.range(from..to).skip(skipped).cloned().collect())
    }

    /// A place at a lane: for all that comes, or for what concerns one value of a field.
    pub(crate) fn ear(
        self: &Arc<Self>,
        (resource, objects): (&Resource, &Objects),
        wanted: Option<Wanted>,
    ) -> Ear {
        let lane = resource.lane;
        let news = match &wanted {
            None => self.news(lane),
            Some((field, value)) => self.enter((resource, objects), field, value),
        };
        Ear { hub: Arc::clone(self), lane, room: wanted, news }
    }

    fn enter(
        &self,
        (resource, objects): (&Resource, &Objects),
        field: &'static str,
        value: &str,
    ) -> watch::Receiver<u64> {
        let mut ring = self.ring(resource.lane);
        let Ring { rooms, changes, floor, .. } = &mut *ring;
        let room = rooms.entry(field).or_default().entry(value.to_owned()).or_insert_with(|| {
            let concerns =
                |change: &&Arc<Change>| values(change, field, (objects, resource)).contains(&Some(value));
            let changes = changes.iter().filter(concerns).cloned().collect();
            Room { changes, floor: *floor, news: watch::Sender::new(0), listeners: 0 }
        });
        room.listeners += 1;
        room.news.subscribe()
    }

    /// The last change of a key, if it stands on the lane. There may be newer ones that are not known here yet.
    pub(crate) fn newest(&self, lane: usize, key: &str) -> Option<Arc<Change>> {
        self.ring(lane).newest.get(key.as_bytes()).cloned()
    }

    fn ring(&self, lane: usize) -> MutexGuard<'_, Ring> {
        self.lanes[lane].ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the store until told to stop.
    pub(crate) async fn follow(
        self: Arc<Self>,
        objects: Arc<Objects>,
        resources: Vec<Arc<Resource>>,
        stop: CancellationToken,
    ) {
        let store = &*objects.store;
        let mut keeper = Keeper { hub: &self, objects: &objects, resources, order: VecDeque::new(), held: 0 };
        let _ = stop.run_until_cancelled(keeper.run(store)).await;
    }
}

/// The one writer of the lanes.
struct Keeper<'a> {
    hub: &'a Hub,
    objects: &'a Objects,
    resources: Vec<Arc<Resource>>,
    /// Resource and size of every change held, oldest first.
    order: VecDeque<(Arc<Resource>, usize)>,
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
            if let Some(mirror) = &self.hub.mirror {
                mirror.follow(false);
            }
            match error {
                // What was lost cannot be told to anyone: everybody whose place is older lists again.
                StoreError::Compacted { .. } | StoreError::Future { .. } => at = None,
                StoreError::TooSlow { .. } => {}
                StoreError::Conflict { .. }
                | StoreError::Deposed
                | StoreError::Overtaken
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
            Ok(watch) => watch.peekable(),
            Err(error) => return error,
        };
        self.hub.ready.send_replace(true);
        self.hub.follows.store(true, Ordering::Release);
        if let Some(mirror) = &self.hub.mirror {
            mirror.follow(true);
        }
        loop {
            match watch.next().await {
                Some(Ok(event)) => {
                    let rev = event.rev();
                    let mut events = together(event, &mut watch);
                    if let Some(mirror) = &self.hub.mirror
                        && !mirror.note(&mut events)
                    {
                        tracing::error!(
                            "what is held is not what the store had before revision {rev}: it is read anew"
                        );
                        return StoreError::Compacted { at: rev };
                    }
                    self.lay(rev, events);
                    *at = Some(rev);
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
            ring.newest.clear();
            for room in ring.rooms.values_mut().flat_map(HashMap::values_mut) {
                room.changes.clear();
                room.floor = rev;
            }
            ring.floor = rev;
        }
        self.advance(rev);
        for (lane, news) in self.hub.lanes.iter().map(|lane| &lane.news).enumerate() {
            news.send_replace(rev.0);
            let ring = self.hub.ring(lane);
            for room in ring.rooms.values().flat_map(HashMap::values) {
                room.news.send_replace(rev.0);
            }
        }
    }

    /// Puts all that one revision changed on the lanes, and then tells of it.
    fn lay(&mut self, rev: Rev, events: Vec<Event>) {
        let mut concerned = Vec::new();
        for change in events.into_iter().filter_map(Change::of) {
            let Some(resource) = self.resources.iter().find(|r| change.key.starts_with(r.prefix.as_bytes()))
            else {
                continue;
            };
            let (resource, size) = (Arc::clone(resource), change.size());
            self.hub.ring(resource.lane).push(change, (self.objects, &resource), &mut concerned);
            concerned.push(self.hub.lanes[resource.lane].news.clone());
            self.order.push_back((resource, size));
            self.held += size;
        }
        while self.held > BUDGET || self.order.len() > MOST {
            let Some((oldest, size)) = self.order.pop_front() else { break };
            self.held -= size;
            self.hub.ring(oldest.lane).drop_oldest((self.objects, &oldest));
        }
        self.advance(rev);
        for news in concerned {
            news.send_replace(rev.0);
        }
    }

    fn advance(&self, rev: Rev) {
        self.hub.position.store(rev.0, Ordering::Release);
    }
}

/// The event with what else its revision changed: another's transaction may write several keys at once, which come together.
fn together(first: Event, watch: &mut Peekable<Watch>) -> Vec<Event> {
    let rev = first.rev();
    let mut events = vec![first];
    let same = |next: &Result<Event, StoreError>| next.as_ref().is_ok_and(|next| next.rev() == rev);
    while let Some(Some(Ok(next))) = std::pin::Pin::new(&mut *watch).next_if(same).now_or_never() {
        events.push(next);
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::api::definitions;
    use crate::server::{SealingKey, Server, ServerOptions};
    use crate::store::embedded::{EmbeddedStore, MemoryDisk, Options};

    fn put(key: &str, rev: u64) -> Event {
        let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::new());
        let kv = Kv { key, value, create_revision: Rev(rev), mod_revision: Rev(rev) };
        Event::Put { kv, prev: None }
    }

    #[tokio::test]
    async fn what_one_revision_wrote_is_taken_in_together() {
        let events = [put("a", 5), put("b", 5), put("c", 5), put("a", 6), Event::Progress(Rev(6))];
        let watch: Watch = futures::stream::iter(events.map(Ok)).chain(futures::stream::pending()).boxed();
        let mut watch = watch.peekable();
        for expected in [vec![5, 5, 5], vec![6, 6]] {
            let first = watch.next().await.unwrap().unwrap();
            let taken: Vec<_> = together(first, &mut watch).iter().map(|event| event.rev().0).collect();
            assert_eq!(taken, expected);
        }
    }

    /// A transaction of another client of etcd, of more objects than a watcher takes at once.
    #[tokio::test]
    async fn what_one_revision_wrote_is_told_as_a_whole_and_not_before_it_is_all_there() {
        let store = EmbeddedStore::open_memory(MemoryDisk::default(), Options::default()).unwrap();
        let options = ServerOptions::new(SealingKey::new(&[7; 32]));
        let server = Server::new(Arc::new(store), definitions(), options);
        let resources = server.inner.registry.all().to_vec();
        let one = Arc::clone(server.inner.registry.find("", "v1", "configmaps").unwrap());
        let (hub, objects) = (Hub::new(server.inner.registry.lanes(), None), &server.inner.objects);
        let mut keeper = Keeper { hub: &hub, objects, resources, order: VecDeque::new(), held: 0 };
        keeper.clear(Rev(4));
        let key = |n: usize| format!("{}default/c{n:04}", one.prefix);
        // One of them is there, and who looks now must not think that it had the revision.
        let first = Change::of(put(&key(0), 5)).unwrap();
        hub.ring(one.lane).push(first, (objects, &one), &mut Vec::new());
        assert!(matches!(hub.take(one.lane, Rev(4)), Taken::Nothing(Rev(4))));
        let mut news = hub.news(one.lane);
        keeper.lay(Rev(5), (1..3 * BATCH).map(|n| put(&key(n), 5)).collect());
        keeper.lay(Rev(6), vec![put(&key(0), 6)]);
        assert!(news.has_changed().unwrap() && *news.borrow_and_update() == 6);
        let Taken::Changes(changes) = hub.take(one.lane, Rev(4)) else { panic!("nothing is told") };
        assert_eq!(changes.iter().filter(|change| change.rev == Rev(5)).count(), 3 * BATCH);
        let Taken::Changes(changes) = hub.take(one.lane, Rev(5)) else { panic!("nothing is told") };
        assert_eq!(changes.len(), 1);
        server.shutdown().await;
    }
}
