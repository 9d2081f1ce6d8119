//! Random histories against a model: whatever is written, deleted, compacted and cut off, each watcher's
//! replica ends equal to the store, and every state that can still be listed is told as it was.
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use proptest::prelude::*;
use wharfline::store::embedded::{Durability, EmbeddedStore, MemoryDisk, Options};
use wharfline::store::{Event, Expect, Kv, Rev, StoreError, Watch};

use super::store_suite::Shared;

const KEYS: [&str; 6] = ["/k/a", "/k/b", "/k/b/c", "/k/", "/ka", "/other"];
const PREFIX: &str = "/k/";
/// Small, so that watchers are cut for slowness too.
const LAG: u64 = 12;

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: usize,
        value: u8,
        expect: Choice,
    },
    Delete {
        key: usize,
        expect: Choice,
    },
    /// So many revisions below the present one.
    Compact {
        below: u64,
    },
    /// A watcher takes up to so many events.
    Read {
        watcher: usize,
        events: usize,
    },
    /// A watcher loses its connection and watches again after what it saw last.
    Reconnect {
        watcher: usize,
    },
    /// The process ends and starts again.
    Reopen,
}

#[derive(Clone, Copy, Debug)]
enum Choice {
    Any,
    Absent,
    Present,
    Stale,
}

fn step() -> impl Strategy<Value = Step> {
    let choice = prop_oneof![
        4 => Just(Choice::Any), 1 => Just(Choice::Absent), 2 => Just(Choice::Present), 1 => Just(Choice::Stale)
    ];
    let key = 0..KEYS.len();
    prop_oneof![
        12 => (key.clone(), any::<u8>(), choice.clone())
            .prop_map(|(key, value, expect)| Step::Put { key, value, expect }),
        5 => (key, choice).prop_map(|(key, expect)| Step::Delete { key, expect }),
        1 => (0..20_u64).prop_map(|below| Step::Compact { below }),
        6 => (0..3_usize, 1..6_usize).prop_map(|(watcher, events)| Step::Read { watcher, events }),
        1 => (0..3_usize).prop_map(|watcher| Step::Reconnect { watcher }),
        1 => Just(Step::Reopen),
    ]
}

type State = BTreeMap<Bytes, Kv>;

struct World {
    disk: MemoryDisk,
    store: Option<Shared>,
    /// The state after each revision, from the empty store on.
    states: Vec<State>,
    compacted: Rev,
    watchers: Vec<Replica>,
}

/// A watcher and what it believes.
#[derive(Default)]
struct Replica {
    events: Option<Watch>,
    state: State,
    seen: Rev,
}

impl World {
    fn new() -> Self {
        let disk = MemoryDisk::default();
        let store = Some(open(&disk));
        let watchers = (0..3).map(|_| Replica::default()).collect();
        World { disk, store, states: vec![State::new()], compacted: Rev::ZERO, watchers }
    }

    fn store(&self) -> &Shared {
        self.store.as_ref().expect("the store is open between steps")
    }

    fn now(&self) -> (&State, Rev) {
        let state = self.states.last().expect("the empty state is always there");
        (state, Rev(self.states.len() as u64 - 1))
    }

    async fn take(&mut self, step: &Step) {
        match *step {
            Step::Put { key, value, expect } => self.put(KEYS[key], value, expect).await,
            Step::Delete { key, expect } => self.delete(KEYS[key], expect).await,
            Step::Compact { below } => {
                let at = Rev(self.now().1.0.saturating_sub(below));
                self.store().compact(at).await.expect("the revision is in the past");
                self.compacted = self.compacted.max(at);
            }
            Step::Read { watcher, events } => {
                let store = self.store().clone();
                self.watchers[watcher].read(&store, Until::Events(events)).await;
            }
            Step::Reconnect { watcher } => self.watchers[watcher].events = None,
            Step::Reopen => {
                self.store = None;
                self.store = Some(open(&self.disk));
            }
        }
    }

    /// What the model expects of a conditional write, and the condition for the store.
    fn choose(&self, key: &str, choice: Choice) -> (Expect, bool, Option<Kv>) {
        let current = self.now().0.get(key.as_bytes()).cloned();
        let modified = current.as_ref().map_or(Rev::ZERO, |kv| kv.mod_revision);
        let (expect, holds) = match choice {
            Choice::Any => (Expect::Any, true),
            Choice::Absent => (Expect::Absent, current.is_none()),
            Choice::Present => (Expect::Rev(modified), current.is_some()),
            Choice::Stale => (Expect::Rev(Rev(modified.0.saturating_sub(1))), false),
        };
        (expect, holds, current)
    }

    async fn put(&mut self, key: &'static str, value: u8, choice: Choice) {
        let (expect, holds, current) = self.choose(key, choice);
        let value = Bytes::from(vec![value; usize::from(value)]);
        let done = self.store().put(key.as_bytes(), value.clone(), expect).await;
        if !holds {
            return assert_conflict(done.map(|_| ()), current.as_ref());
        }
        let (state, now) = self.now();
        let (mut state, rev) = (state.clone(), now.next());
        assert_eq!(done.expect("the condition holds"), rev);
        let key = Bytes::from_static(key.as_bytes());
        let create_revision = current.map_or(rev, |kv| kv.create_revision);
        state.insert(key.clone(), Kv { key, value, create_revision, mod_revision: rev });
        self.states.push(state);
    }

    async fn delete(&mut self, key: &'static str, choice: Choice) {
        let (expect, holds, current) = self.choose(key, choice);
        let done = self.store().delete(key.as_bytes(), expect).await;
        let Some(gone) = current.clone().filter(|_| holds && !matches!(choice, Choice::Absent)) else {
            return assert_conflict(done.map(|_| ()), current.as_ref());
        };
        let (state, now) = self.now();
        let (mut state, rev) = (state.clone(), now.next());
        assert_eq!(done.expect("the condition holds"), (rev, gone));
        state.remove(key.as_bytes());
        self.states.push(state);
    }

    async fn check(&mut self) {
        let (state, now) = self.now();
        let (wanted, store) = (under_prefix(state), self.store().clone());
        for watcher in &mut self.watchers {
            watcher.read(&store, Until::Revision(now)).await;
            assert_eq!(watcher.state, wanted);
        }
        assert_eq!(store.compacted().await.expect("reading works"), self.compacted);
        for (at, state) in self.states.iter().enumerate() {
            let at = Rev(at as u64);
            let listed = list_in_pages(&store, at).await;
            if at < self.compacted {
                assert!(matches!(listed, Err(StoreError::Compacted { .. })), "{listed:?}");
            } else {
                let wanted: Vec<Kv> = under_prefix(state).into_values().collect();
                assert_eq!(listed.expect("the revision is not compacted"), wanted, "at {at}");
            }
        }
    }
}

enum Until {
    Events(usize),
    Revision(Rev),
}

impl Replica {
    async fn read(&mut self, store: &Shared, until: Until) {
        let mut taken = 0;
        loop {
            let enough = match until {
                Until::Events(events) => taken >= events,
                Until::Revision(rev) => self.seen >= rev && self.events.is_some(),
            };
            if enough {
                return;
            }
            let Some(event) = self.next(store, &until).await else { return };
            taken += 1;
            self.apply(event);
        }
    }

    /// The next event; `None` when a watcher that only wants some has seen all there are.
    async fn next(&mut self, store: &Shared, until: &Until) -> Option<Event> {
        loop {
            let Some(events) = &mut self.events else {
                self.connect(store).await;
                continue;
            };
            let next = match until {
                Until::Revision(_) => events.next().await,
                Until::Events(_) => match futures::poll!(events.next()) {
                    std::task::Poll::Ready(next) => next,
                    std::task::Poll::Pending => return None,
                },
            };
            match next {
                Some(Ok(event)) => return Some(event),
                // Cut, or the store was closed: what was seen stays seen.
                Some(Err(
                    StoreError::TooSlow { .. }
                    | StoreError::Compacted { .. }
                    | StoreError::Unavailable { .. },
                )) => self.events = None,
                Some(Err(other)) => panic!("{other:?}"),
                None => panic!("the stream ended without an error"),
            }
        }
    }

    async fn connect(&mut self, store: &Shared) {
        match store.watch(PREFIX.as_bytes(), self.seen).await {
            Ok(events) => self.events = Some(events),
            Err(StoreError::Compacted { .. }) => {
                let page =
                    store.list(PREFIX.as_bytes(), None, usize::MAX, None).await.expect("listing works");
                self.state = page.kvs.into_iter().map(|kv| (kv.key.clone(), kv)).collect();
                self.seen = page.rev;
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Progress(rev) => {
                assert!(rev >= self.seen);
                self.seen = rev;
            }
            Event::Put { kv, prev } => {
                assert!(kv.mod_revision > self.seen && kv.key.starts_with(PREFIX.as_bytes()));
                self.seen = kv.mod_revision;
                assert_eq!(self.state.insert(kv.key.clone(), kv), prev);
            }
            Event::Delete { key, rev, prev } => {
                assert!(rev > self.seen);
                self.seen = rev;
                assert_eq!(self.state.remove(&key), Some(prev));
            }
        }
    }
}

fn open(disk: &MemoryDisk) -> Shared {
    let options = Options { durability: Durability::Synced, watch_lag: LAG, ..Options::default() };
    Arc::new(EmbeddedStore::inline(disk.clone(), options).expect("the disk holds a store"))
}

fn assert_conflict(done: Result<(), StoreError>, wanted: Option<&Kv>) {
    match done {
        Err(StoreError::Conflict { current }) => assert_eq!(current.as_ref(), wanted),
        other => panic!("not a conflict: {other:?}"),
    }
}

fn under_prefix(state: &State) -> State {
    let under = state.iter().filter(|(key, _)| key.starts_with(PREFIX.as_bytes()));
    under.map(|(key, kv)| (key.clone(), kv.clone())).collect()
}

async fn list_in_pages(store: &Shared, at: Rev) -> Result<Vec<Kv>, StoreError> {
    let mut kvs: Vec<Kv> = Vec::new();
    loop {
        let after = kvs.last().map(|kv| kv.key.clone());
        let page = store.list(PREFIX.as_bytes(), after.as_deref(), 1, Some(at)).await?;
        kvs.extend(page.kvs);
        if !page.more {
            return Ok(kvs);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn replicas_equal_the_store(steps in proptest::collection::vec(step(), 1..150)) {
        let runtime = tokio::runtime::Builder::new_current_thread().start_paused(true).enable_time().build();
        runtime.expect("a runtime can be built").block_on(async {
            let mut world = World::new();
            for step in &steps {
                world.take(step).await;
            }
            world.check().await;
        });
    }
}
