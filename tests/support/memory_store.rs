//! A store in memory with the semantics of the trait, for tests of what stands above it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::watch;
use wharfline::store::{Event, Expect, Kv, Page, Rev, Store, StoreError, Watch};

#[derive(Default)]
struct State {
    kvs: BTreeMap<Bytes, Kv>,
    /// The event of revision `n` stands at `n - 1`.
    log: Vec<Event>,
    compacted: Rev,
}

/// The store.
pub(crate) struct MemoryStore {
    state: std::sync::Arc<Mutex<State>>,
    news: watch::Sender<u64>,
}

impl MemoryStore {
    /// An empty store.
    pub(crate) fn new() -> Self {
        Self { state: std::sync::Arc::default(), news: watch::Sender::new(0) }
    }

    /// Every value ever written, one after another.
    pub(crate) fn all_bytes(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for event in &self.lock().log {
            if let Event::Put { kv, .. } = event {
                all.extend_from_slice(&kv.value);
            }
        }
        all
    }

    /// How many writes there were.
    pub(crate) fn writes(&self) -> usize {
        self.lock().log.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn rev(&self) -> Rev {
        Rev(self.log.len() as u64)
    }

    fn check(&self, key: &[u8], expect: Expect) -> Result<Option<Kv>, StoreError> {
        let current = self.kvs.get(key).cloned();
        let good = match expect {
            Expect::Any => true,
            Expect::Absent => current.is_none(),
            Expect::Rev(rev) => current.as_ref().is_some_and(|kv| kv.mod_revision == rev),
        };
        if good { Ok(current) } else { Err(StoreError::Conflict { current }) }
    }

    /// The keys as they were at `rev`.
    fn at(&self, rev: Rev) -> BTreeMap<Bytes, Kv> {
        let mut kvs = self.kvs.clone();
        for event in self.log[usize::try_from(rev.0).unwrap()..].iter().rev() {
            match event {
                Event::Put { kv, prev } => match prev {
                    Some(prev) => drop(kvs.insert(kv.key.clone(), prev.clone())),
                    None => drop(kvs.remove(&kv.key)),
                },
                Event::Delete { key, prev, .. } => drop(kvs.insert(key.clone(), prev.clone())),
                Event::Progress(_) => {}
            }
        }
        kvs
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn revision(&self) -> Result<Rev, StoreError> {
        Ok(self.lock().rev())
    }

    async fn get(&self, key: &[u8]) -> Result<(Option<Kv>, Rev), StoreError> {
        let state = self.lock();
        Ok((state.kvs.get(key).cloned(), state.rev()))
    }

    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        at: Option<Rev>,
    ) -> Result<Page, StoreError> {
        let state = self.lock();
        let rev = at.unwrap_or(state.rev());
        if rev > state.rev() {
            return Err(StoreError::Future { current: state.rev() });
        }
        if rev < state.compacted {
            return Err(StoreError::Compacted { at: state.compacted });
        }
        let kvs = state.at(rev);
        let chosen = kvs.into_values().filter(|kv| kv.key.starts_with(prefix));
        let mut chosen = chosen.filter(|kv| after.is_none_or(|after| &kv.key[..] > after));
        let kvs: Vec<Kv> = chosen.by_ref().take(limit).collect();
        Ok(Page { kvs, rev, more: chosen.next().is_some() })
    }

    async fn put(&self, key: &[u8], value: Bytes, expect: Expect) -> Result<Rev, StoreError> {
        let mut state = self.lock();
        let prev = state.check(key, expect)?;
        let rev = state.rev().next();
        let key = Bytes::copy_from_slice(key);
        let create_revision = prev.as_ref().map_or(rev, |kv| kv.create_revision);
        let kv = Kv { key: key.clone(), value, create_revision, mod_revision: rev };
        state.kvs.insert(key, kv.clone());
        state.log.push(Event::Put { kv, prev });
        self.news.send_replace(rev.0);
        Ok(rev)
    }

    async fn delete(&self, key: &[u8], expect: Expect) -> Result<(Rev, Kv), StoreError> {
        let mut state = self.lock();
        let prev = state.check(key, expect)?.ok_or(StoreError::Conflict { current: None })?;
        let rev = state.rev().next();
        state.kvs.remove(key);
        state.log.push(Event::Delete { key: Bytes::copy_from_slice(key), rev, prev: prev.clone() });
        self.news.send_replace(rev.0);
        Ok((rev, prev))
    }

    async fn watch(&self, prefix: &[u8], after: Rev) -> Result<Watch, StoreError> {
        let state = self.lock();
        if after < state.compacted {
            return Err(StoreError::Compacted { at: state.compacted });
        }
        if after > state.rev() {
            return Err(StoreError::Future { current: state.rev() });
        }
        let from = (std::sync::Arc::clone(&self.state), self.news.subscribe(), prefix.to_vec(), after, false);
        let events =
            futures::stream::unfold(from, |(state, mut news, prefix, mut at, mut told)| async move {
                loop {
                    let next = {
                        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
                        news.mark_unchanged();
                        let rest = &state.log[usize::try_from(at.0).unwrap()..];
                        let found =
                            rest.iter().find(|event| event.key().unwrap().starts_with(&prefix)).cloned();
                        let end = state.rev();
                        match found {
                            Some(event) => Some(event),
                            None if !told || end > at => Some(Event::Progress(end)),
                            None => None,
                        }
                    };
                    if let Some(event) = next {
                        told = matches!(event, Event::Progress(_));
                        at = event.rev();
                        return Some((Ok(event), (state, news, prefix, at, told)));
                    }
                    if news.changed().await.is_err() {
                        return None;
                    }
                }
            });
        Ok(events.boxed())
    }

    async fn compact(&self, rev: Rev) -> Result<(), StoreError> {
        let mut state = self.lock();
        if rev > state.rev() {
            return Err(StoreError::Future { current: state.rev() });
        }
        state.compacted = state.compacted.max(rev);
        Ok(())
    }

    async fn compacted(&self) -> Result<Rev, StoreError> {
        Ok(self.lock().compacted)
    }
}

impl MemoryStore {
    /// Compacts at the newest revision.
    pub(crate) async fn compact_all(&self) {
        let rev = self.revision().await.unwrap();
        self.compact(rev).await.unwrap();
    }
}
