//! The store of a simulated server, looked at from outside: every commit is an effect, and is held against the truth; in an
//! etcd, at the etcd.
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;
use wharfline::store::embedded::{EmbeddedStore, MemoryDisk, OpenError, Options};
use wharfline::store::etcd::EtcdStore;
use wharfline::store::{Expect, Kv, Page, Rev, Store, StoreError, Watch};

use crate::checks;
use crate::universe::{Inner, Objects, Universe, kind};

pub struct Observed<S> {
    inner: S,
    universe: Arc<Universe>,
    /// Of which server.
    host: String,
    /// Whether commits are noted here: nobody else sees them.
    alone: bool,
}

impl Observed<EtcdStore> {
    pub fn of_etcd(universe: &Arc<Universe>, host: &str, inner: EtcdStore) -> Self {
        Self { inner, universe: Arc::clone(universe), host: host.to_owned(), alone: false }
    }
}

impl Observed<EmbeddedStore> {
    pub fn open(universe: &Arc<Universe>, host: &str, disk: &MemoryDisk) -> Result<Self, OpenError> {
        let inner = EmbeddedStore::inline(disk.clone(), Options::default())?;
        Ok(Self { inner, universe: Arc::clone(universe), host: host.to_owned(), alone: true })
    }

    /// Learns what the store holds: a server that was killed may have written something that nobody noted.
    pub async fn learn(&self) -> Result<(), StoreError> {
        let page = self.inner.list(b"", None, usize::MAX, None).await?;
        let object = |kv: &Kv| serde_json::from_slice(&kv.value).ok();
        let name = |kv: &Kv| String::from_utf8_lossy(&kv.key).into_owned();
        let all = page.kvs.iter().filter_map(|kv| object(kv).map(|object| (name(kv), object)));
        let mut objects = Objects::default();
        for (name, object) in all.filter(|(name, _)| !is_lease(name)) {
            objects.insert(&name, Arc::new(object));
        }
        let mut inner = self.universe.look();
        inner.objects = objects;
        for what in checks::lost(&inner) {
            inner.violated(what);
        }
        Ok(())
    }
}

impl Inner {
    fn wrote(&mut self, what: String, object: Option<Arc<Value>>) {
        self.writes += 1;
        self.last_writes.push_back((self.now, what, object));
        if self.last_writes.len() > LAST_WRITES {
            self.last_writes.pop_front();
        }
    }

    /// Commits are noted a moment after they are made, and not always in their order.
    fn newer(&mut self, name: &str, rev: u64) -> bool {
        self.commits.entry(kind(name).to_owned()).or_default().insert(rev);
        let last = self.revisions.entry(name.to_owned()).or_default();
        let newer = *last < rev;
        *last = rev.max(*last);
        newer
    }

    pub fn put(&mut self, name: &str, object: Option<Value>, rev: u64, made: bool) {
        let object = object.map(Arc::new);
        self.wrote(format!("put {name}"), object.clone());
        let newer = self.newer(name, rev);
        if let Some(object) = object.filter(|_| newer) {
            let before = self.objects.insert(name, object).filter(|_| !made);
            checks::stored(self, name, before.as_deref(), rev);
        }
    }

    pub fn deleted(&mut self, name: &str, rev: u64) {
        self.wrote(format!("delete {name}"), None);
        if self.newer(name, rev)
            && let Some(object) = self.objects.remove(name)
        {
            checks::removed(self, name, &object);
        }
    }
}

/// How many writes are kept for whoever has to explain them.
const LAST_WRITES: usize = 12;

/// Leases change all the time.
pub fn is_lease(key: &str) -> bool {
    key.contains("/leases/")
}

#[async_trait]
impl<S: Store> Store for Observed<S> {
    async fn revision(&self) -> Result<Rev, StoreError> {
        self.inner.revision().await
    }

    async fn get(&self, key: &[u8]) -> Result<(Option<Kv>, Rev), StoreError> {
        self.inner.get(key).await
    }

    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        at: Option<Rev>,
    ) -> Result<Page, StoreError> {
        self.inner.list(prefix, after, limit, at).await
    }

    async fn put(&self, key: &[u8], value: Bytes, expect: Expect) -> Result<Rev, StoreError> {
        let name = String::from_utf8_lossy(key).into_owned();
        if is_lease(&name) {
            return self.inner.put(key, value, expect).await;
        }
        let object: Option<Value> = if self.alone { serde_json::from_slice(&value).ok() } else { None };
        self.universe.gate(&self.host, &format!("put {name}")).await;
        let made = expect == Expect::Absent;
        let rev = self.inner.put(key, value, expect).await?;
        if self.alone {
            self.universe.look().put(&name, object, rev.0, made);
        }
        self.universe.gate(&self.host, &format!("put {name}: {}", rev.0)).await;
        Ok(rev)
    }

    async fn delete(&self, key: &[u8], expect: Expect) -> Result<(Rev, Kv), StoreError> {
        let name = String::from_utf8_lossy(key).into_owned();
        self.universe.gate(&self.host, &format!("delete {name}")).await;
        let gone = self.inner.delete(key, expect).await?;
        if self.alone {
            self.universe.look().deleted(&name, gone.0.0);
        }
        self.universe.gate(&self.host, &format!("delete {name}: {}", gone.0.0)).await;
        Ok(gone)
    }

    async fn watch(&self, prefix: &[u8], after: Rev) -> Result<Watch, StoreError> {
        self.inner.watch(prefix, after).await
    }

    async fn compact(&self, rev: Rev) -> Result<(), StoreError> {
        self.inner.compact(rev).await
    }

    async fn compacted(&self) -> Result<Rev, StoreError> {
        self.inner.compacted().await
    }
}
