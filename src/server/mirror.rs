//! What the store held last: long lists are read here, and people read it while the store cannot be reached.
//!
//! It is filled and kept true by whoever follows the store (`hub`). It may be behind: another server may have written since.
//! So a list waits until it has come to where the store says it is (`source`). As a [`Store`] it is what was: nothing is
//! decided by that, no node and no controller is told of it, and people are told how old it is.
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use super::source::{self, Asked, Next};
use crate::store::{Event, Expect, Kv, Outcome, Page, Rev, Store, StoreError, Watch};

/// The last that was seen of a store.
#[derive(Default)]
pub(crate) struct Mirror {
    state: RwLock<State>,
    /// How far it has come, and whether it is kept true now.
    place: watch::Sender<(u64, bool)>,
    /// Where it stood when somebody waited for it in vain.
    late: AtomicU64,
}

/// A part of what is held.
pub(crate) struct Part<'a> {
    /// What its keys begin with.
    pub(crate) range: &'a str,
    /// They sort behind this one.
    pub(crate) after: Option<&'a [u8]>,
    /// The most that is told of it.
    pub(crate) limit: usize,
}

#[derive(Default)]
struct State {
    /// Everything up to here is in it; none while it is being filled.
    rev: Option<Rev>,
    /// Whether it is kept true now.
    followed: bool,
    kvs: BTreeSet<ByKey>,
}

/// What is under a key, in the order of the keys.
struct ByKey(Kv);

impl Borrow<[u8]> for ByKey {
    fn borrow(&self) -> &[u8] {
        &self.0.key
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ByKey {}

impl Mirror {
    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in everything anew, as of one revision, which is returned.
    pub(crate) async fn fill(
        &self,
        store: &dyn Store,
        prefix: &[u8],
        page: usize,
    ) -> Result<Rev, StoreError> {
        let (mut kvs, mut at, mut after) = (BTreeSet::new(), None, None);
        loop {
            let found = store.list(prefix, after.as_deref(), page, at).await?;
            after = found.kvs.last().map(|kv| kv.key.clone());
            kvs.extend(found.kvs.into_iter().map(ByKey));
            at = Some(found.rev);
            if !found.more {
                *self.changed() = State { rev: at, followed: false, kvs };
                return Ok(found.rev);
            }
        }
    }

    /// Takes in all that one revision changed. What was before is then had once by the events and those that came earlier.
    /// False when the store had something else there before: what is held is then not what it holds.
    pub(crate) fn note(&self, events: &mut [Event]) -> bool {
        let Some(rev) = events.last().map(Event::rev) else { return true };
        let mut state = self.changed();
        let mut same = true;
        for event in events {
            let (old, prev) = match event {
                Event::Put { kv, prev } => (state.kvs.replace(ByKey(kv.clone())), prev.as_mut()),
                Event::Delete { key, prev, .. } => (state.kvs.take::<[u8]>(key), Some(prev)),
                Event::Progress(_) => continue,
            };
            same &= match (old, prev) {
                (Some(ByKey(old)), Some(prev)) => share(prev, old),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
        }
        state.rev = Some(rev);
        let followed = state.followed;
        drop(state);
        self.place.send_replace((rev.0, followed));
        same
    }

    /// Keeps whether it is kept true.
    pub(crate) fn follow(&self, follows: bool) {
        let mut state = self.changed();
        state.followed = follows;
        let rev = state.rev.unwrap_or_default();
        drop(state);
        self.place.send_replace((rev.0, follows));
    }

    /// Waits until everything up to a revision is in it, or it is not kept true any more; not for longer than `patience`,
    /// and not at all where somebody waited in vain and it has not moved since. Whether it is worth another look.
    pub(crate) async fn reached(&self, rev: Rev, patience: Duration) -> bool {
        let mut places = self.place.subscribe();
        let (now, _) = *places.borrow_and_update();
        if now < rev.0 && self.late.load(Relaxed) == now {
            return false;
        }
        let reached = places.wait_for(|(place, followed)| *place >= rev.0 || !followed);
        if tokio::time::timeout(patience, reached).await.is_ok() {
            return true;
        }
        self.late.store(self.place.borrow().0, Relaxed);
        false
    }

    /// A part of it, all at one revision, if that is what a list asked for; else what is to be done first.
    pub(crate) fn look(&self, asked: Asked, part: &Part<'_>) -> Result<Page, Next> {
        let state = self.state();
        let held = state.rev.filter(|_| state.followed);
        match (source::next(asked, held), held) {
            (Next::Held, Some(rev)) => {
                let mut found = state.range(part.range.as_bytes(), part.after);
                let kvs = found.by_ref().take(part.limit).cloned().collect();
                let more = found.next().is_some();
                Ok(Page { kvs, rev, more, left: (!more).then_some(0) })
            }
            (next, _) => Err(next),
        }
    }

    /// Up to which revision it knows everything.
    pub(crate) fn position(&self) -> Option<Rev> {
        self.state().rev
    }
}

impl State {
    /// What begins with a prefix and sorts behind a key.
    fn range<'a>(&'a self, prefix: &'a [u8], after: Option<&[u8]>) -> impl Iterator<Item = &'a Kv> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            Some(_) | None => Bound::Included(prefix),
        };
        let found = self.kvs.range::<[u8], _>((from, Bound::Unbounded)).map(|ByKey(kv)| kv);
        found.take_while(move |kv| kv.key.starts_with(prefix))
    }
}

/// Lets the same bytes be had once; false when they are not the same.
fn share(one: &mut Kv, other: Kv) -> bool {
    let same = *one == other;
    if same {
        *one = other;
    }
    same
}

/// It is no store to be written.
fn away() -> StoreError {
    let source = Arc::new(std::io::Error::other("the store cannot be reached"));
    StoreError::Unavailable { outcome: Outcome::NotDone, source }
}

#[async_trait]
impl Store for Mirror {
    async fn revision(&self) -> Result<Rev, StoreError> {
        self.position().ok_or_else(away)
    }

    async fn get(&self, key: &[u8]) -> Result<(Option<Kv>, Rev), StoreError> {
        let state = self.state();
        let rev = state.rev.ok_or_else(away)?;
        Ok((state.kvs.get(key).map(|ByKey(kv)| kv.clone()), rev))
    }

    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        at: Option<Rev>,
    ) -> Result<Page, StoreError> {
        let state = self.state();
        let rev = state.rev.ok_or_else(away)?;
        match at {
            Some(at) if at < rev => return Err(StoreError::Compacted { at: rev }),
            Some(at) if at > rev => return Err(StoreError::Future { current: rev }),
            Some(_) | None => {}
        }
        let mut found = state.range(prefix, after);
        let kvs = found.by_ref().take(limit).cloned().collect();
        let left = found.count();
        Ok(Page { kvs, rev, more: left > 0, left: Some(left) })
    }

    async fn put(&self, _: &[u8], _: Bytes, _: Expect) -> Result<Rev, StoreError> {
        Err(away())
    }

    async fn delete(&self, _: &[u8], _: Expect) -> Result<(Rev, Kv), StoreError> {
        Err(away())
    }

    async fn watch(&self, _: &[u8], _: Rev) -> Result<Watch, StoreError> {
        Err(away())
    }

    async fn compact(&self, _: Rev) -> Result<(), StoreError> {
        Err(away())
    }

    async fn compacted(&self) -> Result<Rev, StoreError> {
        self.revision().await
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;
    use crate::store::embedded::{EmbeddedStore, MemoryDisk, Options};

    async fn same(mirror: &Mirror, store: &EmbeddedStore) {
        for prefix in [&b"/a/"[..], b"/a/3", b"/b/", b"/"] {
            for limit in [1, 3, usize::MAX] {
                let mut after: Option<Bytes> = None;
                loop {
                    let [one, other] = [
                        mirror.list(prefix, after.as_deref(), limit, None).await.unwrap(),
                        store.list(prefix, after.as_deref(), limit, None).await.unwrap(),
                    ];
                    assert_eq!((one.rev, one.more), (other.rev, other.more), "{prefix:?} {limit}");
                    let rest = mirror.list(prefix, one.kvs.last().map(|kv| &*kv.key), usize::MAX, None).await;
                    assert!(!one.more || one.left == Some(rest.unwrap().kvs.len()));
                    assert!(one.kvs == other.kvs);
                    after = one.kvs.last().map(|kv| kv.key.clone());
                    if !one.more {
                        break;
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn it_answers_as_the_store_did() {
        let store = EmbeddedStore::open_memory(MemoryDisk::default(), Options::default()).unwrap();
        let mirror = Mirror::default();
        assert!(mirror.get(b"/a/1").await.is_err() && mirror.list(b"/", None, 1, None).await.is_err());
        for n in 0..7 {
            store.put(format!("/a/{n}").as_bytes(), Bytes::from(vec![n]), Expect::Any).await.unwrap();
        }
        let rev = mirror.fill(&store, b"/", 3).await.unwrap();
        assert_eq!((mirror.position(), rev), (Some(Rev(7)), Rev(7)));
        same(&mirror, &store).await;
        let mut watch = store.watch(b"/", rev).await.unwrap();
        store.put(b"/a/3", Bytes::from_static(b"new"), Expect::Any).await.unwrap();
        store.put(b"/b/1", Bytes::new(), Expect::Any).await.unwrap();
        store.delete(b"/a/5", Expect::Any).await.unwrap();
        while mirror.position() < Some(Rev(10)) {
            assert!(mirror.note(&mut [watch.next().await.unwrap().unwrap()]));
        }
        same(&mirror, &store).await;
        let other = Kv {
            key: Bytes::from_static(b"/a/5"),
            value: Bytes::new(),
            create_revision: Rev(9),
            mod_revision: Rev(9),
        };
        let unheard = Event::Delete { key: other.key.clone(), rev: Rev(10), prev: other };
        assert!(!mirror.note(&mut [unheard]), "the store had what is not held");
        let part = Part { range: "/a/", after: Some(b"/a/2"), limit: 2 };
        let told = |asked| mirror.look(asked, &part).map(|page| (page.kvs.len(), page.more, page.rev));
        assert_eq!(told(Asked::At(Rev(10))), Err(Next::Store), "it is not followed");
        mirror.follow(true);
        assert_eq!(told(Asked::At(Rev(10))), Ok((2, true, Rev(10))));
        assert_eq!(told(Asked::Newest { told: Some(Rev(11)) }), Err(Next::Wait(Rev(11))));
        assert!(mirror.reached(Rev(10), Duration::from_secs(9)).await);
        assert_eq!(mirror.get(b"/a/3").await.unwrap().0.unwrap().value, &b"new"[..]);
        assert!(mirror.get(b"/a/5").await.unwrap().0.is_none());
        let at = |rev| mirror.list(b"/", None, 1, Some(Rev(rev)));
        assert!(matches!(at(9).await, Err(StoreError::Compacted { .. })));
        assert!(matches!(at(11).await, Err(StoreError::Future { .. })));
        assert!(at(10).await.is_ok());
        let written = mirror.put(b"/a/1", Bytes::new(), Expect::Any).await;
        assert!(matches!(written, Err(StoreError::Unavailable { outcome: Outcome::NotDone, .. })));
    }
}
