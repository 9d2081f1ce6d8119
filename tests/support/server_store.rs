//! A store with a test's hand in between: calls can fail, hang, or have something happen before them, and events can wait.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::watch;
use wharfline::store::embedded::EmbeddedStore;
use wharfline::store::{Expect, Kv, Outcome, Page, Rev, Store, StoreError, Watch};

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is done.
    Done,
    /// It fails, and says whether it may have been done.
    Unavailable(Outcome),
    /// It never answers.
    Hangs,
    /// Others have their turn first.
    Later,
    /// First a key is deleted.
    After(Vec<u8>),
}

type Decide = Box<dyn FnMut(&'static str, &[u8]) -> Fate + Send>;

/// The store.
pub(crate) struct Meddled {
    inner: Arc<EmbeddedStore>,
    decide: Mutex<Decide>,
    /// Whether watches tell what happens.
    pub(crate) tells: watch::Sender<bool>,
}

impl Meddled {
    /// A store whose calls meet the fate that `decide` gives them, by method and key or prefix.
    pub(crate) fn new(
        inner: Arc<EmbeddedStore>,
        decide: impl FnMut(&'static str, &[u8]) -> Fate + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner, decide: Mutex::new(Box::new(decide)), tells: watch::Sender::new(true) })
    }

    async fn before(&self, method: &'static str, key: &[u8]) -> Result<(), StoreError> {
        let fate = (self.decide.lock().unwrap())(method, key);
        match fate {
            Fate::Done => Ok(()),
            Fate::Unavailable(outcome) => {
                let source = Arc::new(std::io::Error::other("the test's hand"));
                Err(StoreError::Unavailable { outcome, source })
            }
            Fate::Hangs => std::future::pending().await,
            Fate::Later => {
                tokio::task::yield_now().await;
                Ok(())
            }
            Fate::After(key) => {
                self.inner.delete(&key, Expect::Any).await.unwrap();
                Ok(())
            }
        }
    }
}

#[async_trait]
impl Store for Meddled {
    async fn revision(&self) -> Result<Rev, StoreError> {
        self.before("revision", b"").await?;
        self.inner.revision().await
    }

    async fn get(&self, key: &[u8]) -> Result<(Option<Kv>, Rev), StoreError> {
        self.before("get", key).await?;
        self.inner.get(key).await
    }

    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        at: Option<Rev>,
    ) -> Result<Page, StoreError> {
        self.before(if after.is_some() { "next page" } else { "list" }, prefix).await?;
        self.inner.list(prefix, after, limit, at).await
    }

    async fn put(&self, key: &[u8], value: Bytes, expect: Expect) -> Result<Rev, StoreError> {
        self.before("put", key).await?;
        self.inner.put(key, value, expect).await
    }

    async fn delete(&self, key: &[u8], expect: Expect) -> Result<(Rev, Kv), StoreError> {
        self.before("delete", key).await?;
        self.inner.delete(key, expect).await
    }

    async fn watch(&self, prefix: &[u8], after: Rev) -> Result<Watch, StoreError> {
        self.before("watch", prefix).await?;
        let tells = self.tells.subscribe();
        let events = self.inner.watch(prefix, after).await?.then(move |event| {
            let mut tells = tells.clone();
            async move {
                let _ = tells.wait_for(|tells| *tells).await;
                event
            }
        });
        Ok(events.boxed())
    }

    async fn compact(&self, rev: Rev) -> Result<(), StoreError> {
        self.inner.compact(rev).await
    }

    async fn compacted(&self) -> Result<Rev, StoreError> {
        self.inner.compacted().await
    }
}
