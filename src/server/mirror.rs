//! What the store held last, to be read by people while it cannot be reached.
//!
//! It is filled and kept true by whoever follows the store (`hub`). It may be behind: another server may have written since.
//! So nothing is decided by it, no node and no controller is told of it, and people are told how old it is.
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use crate::store::{Event, Expect, Kv, Outcome, Page, Rev, Store, StoreError, Watch};

/// The last that was seen of a store.
#[derive(Default)]
pub(crate) struct Mirror {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Everything up to here is in it; none while it is being filled.
    rev: Option<Rev>,
    kvs: BTreeMap<Bytes, Kv>,
}

impl Mirror {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in everything anew, as of one revision, which is returned.
    pub(crate) async fn fill(
        &self,
        store: &dyn Store,
        prefix: &[u8],
        page: usize,
    ) -> Result<Rev, StoreError> {
        let (mut kvs, mut at, mut after) = (BTreeMap::new(), None, None);
        loop {
            let found = store.list(prefix, after.as_deref(), page, at).await?;
            after = found.kvs.last().map(|kv| kv.key.clone());
            kvs.extend(found.kvs.into_iter().map(|kv| (kv.key.clone(), kv)));
            at = Some(found.rev);
            if !found.more {
                *self.state() = State { rev: at, kvs };
                return Ok(found.rev);
            }
        }
    }

    /// Takes in one change more.
    pub(crate) fn note(&self, event: &Event) {
        let mut state = self.state();
        match event {
            Event::Put { kv, .. } => drop(state.kvs.insert(kv.key.clone(), kv.clone())),
            Event::Delete { key, .. } => drop(state.kvs.remove(key)),
            Event::Progress(_) => {}
        }
        state.rev = Some(event.rev());
    }

    /// Up to which revision it knows everything.
    pub(crate) fn position(&self) -> Option<Rev> {
        self.state().rev
    }
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
        Ok((state.kvs.get(key).cloned(), rev))
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
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            Some(_) | None => Bound::Included(prefix),
        };
        let mut found = state.kvs.range::<[u8], _>((from, Bound::Unbounded)).map(|(_, kv)| kv);
        let mut kvs = Vec::new();
        while let Some(kv) = found.next().filter(|kv| kv.key.starts_with(prefix)) {
            if kvs.len() == limit {
                return Ok(Page { kvs, rev, more: true });
            }
            kvs.push(kv.clone());
        }
        Ok(Page { kvs, rev, more: false })
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
            mirror.note(&watch.next().await.unwrap().unwrap());
        }
        same(&mirror, &store).await;
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
