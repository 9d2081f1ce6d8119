//! Terms of leadership: whoever leads the controllers writes under its term, and once another's has begun it writes nothing.
//!
//! The lease says who should lead; a leader that was paused may believe so for too long. Its writes name the revision at
//! which it wrote [`LEADER`], and the store refuses them once that was written again.
use std::sync::Arc;

use bytes::Bytes;

use super::access::SYSTEM;
use super::{Identity, Inner, Server};
use crate::api::meta::{AsSeen, Unrenewed};
use crate::api::{GROUP, VERSION};
use crate::store::{Expect, LEADER, Rev, Store, StoreError, Unwritten};

/// The term of a request, as an extension of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Term(pub(crate) Rev);

/// Why a term did not begin.
#[derive(Debug, thiserror::Error)]
pub enum NotLed {
    /// A later turn of the lease has begun its term: wait for the lease again.
    #[error("another leads already: its lease has changed hands {latest} times, this one's {turn}")]
    Later {
        /// The turn that was begun.
        latest: u64,
        /// The turn that asked.
        turn: u64,
    },
    /// The store did not take it: try again.
    #[error("the term could not begin: {0}")]
    Store(#[from] StoreError),
}

impl Server {
    /// Begins the term of who has the lease in its `turn`-th change of hands: a client of the controllers whose writes are
    /// refused from the moment at which another's term begins.
    ///
    /// # Errors
    /// When a later turn has begun, or the store cannot be written.
    pub async fn lead(&self, turn: u64) -> Result<kube::Client, NotLed> {
        let term = Term(begin(&*self.inner.objects.store, turn).await?);
        Ok(self.client_with(move |extensions| {
            extensions.insert(Identity::controllers());
            extensions.insert(term);
        }))
    }
}

impl Inner {
    /// The same of a lease in the words of the store.
    pub(crate) fn unwritten(&self, lease: &Unrenewed) -> Option<Arc<Unwritten>> {
        let leases = self.registry.find("coordination.k8s.io", "v1", "leases")?;
        Some(unwritten(leases.key(Some(SYSTEM), &lease.node), lease.version.as_deref()))
    }

    /// The same of another object.
    pub(crate) fn as_seen(&self, seen: &AsSeen) -> Option<Arc<Unwritten>> {
        let resource = self.registry.find(GROUP, VERSION, &seen.plural)?;
        Some(unwritten(resource.key(None, &seen.name), seen.version.as_deref()))
    }
}

fn unwritten(key: String, version: Option<&str>) -> Arc<Unwritten> {
    // What is no revision was never written, and nothing goes by it.
    let rev = version.map(|version| Rev(version.parse().unwrap_or_default()));
    Arc::new(Unwritten { key: key.into(), rev })
}

async fn begin(store: &dyn Store, turn: u64) -> Result<Rev, NotLed> {
    loop {
        let (found, _) = store.get(LEADER).await?;
        let latest = found.as_ref().and_then(|kv| std::str::from_utf8(&kv.value).ok()?.parse::<u64>().ok());
        if let Some(latest) = latest.filter(|latest| *latest > turn) {
            return Err(NotLed::Later { latest, turn });
        }
        let expect = found.map_or(Expect::Absent, |kv| Expect::Rev(kv.mod_revision));
        match store.put(LEADER, Bytes::from(turn.to_string()), expect).await {
            Err(StoreError::Conflict { .. }) => {}
            done => return Ok(done?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::embedded::{EmbeddedStore, MemoryDisk, Options};

    #[tokio::test]
    async fn a_term_ends_all_before_it_and_none_after_it() {
        let store = EmbeddedStore::open_memory(MemoryDisk::default(), Options::default()).unwrap();
        let first = begin(&store, 3).await.unwrap();
        let led = |term| Expect::Led { rev: None, term: Some(term), also: None };
        store.put(b"/a", Bytes::new(), led(first)).await.unwrap();
        let second = begin(&store, 4).await.unwrap();
        assert!(matches!(store.put(b"/b", Bytes::new(), led(first)).await, Err(StoreError::Deposed)));
        // The first one wakes up and would begin.
        let late = begin(&store, 3).await;
        assert!(matches!(late, Err(NotLed::Later { latest: 4, turn: 3 })), "{late:?}");
        store.put(b"/c", Bytes::new(), led(second)).await.unwrap();
        // Who holds the lease still, and had given up for a while, begins again.
        let again = begin(&store, 4).await.unwrap();
        assert!(matches!(store.put(b"/d", Bytes::new(), led(second)).await, Err(StoreError::Deposed)));
        store.put(b"/d", Bytes::new(), led(again)).await.unwrap();
    }
}
