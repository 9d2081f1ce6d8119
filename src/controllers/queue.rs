//! The keys that a controller has to look at. A key stands in it once, so it is bounded by the number of objects.
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use futures::Stream;
use kube::runtime::controller::ReconcileRequest;
use tokio::sync::Notify;

use super::cache::{Kind, Name, reference};

/// The queue of one controller.
#[derive(Debug)]
pub(crate) struct Queue<K>(Arc<Inner>, PhantomData<fn() -> K>);

#[derive(Debug, Default)]
struct Inner {
    names: Mutex<BTreeSet<Name>>,
    woken: Notify,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self(Arc::default(), PhantomData)
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), PhantomData)
    }
}

impl<K: Kind> Queue<K> {
    /// Asks for a look at this object.
    pub(crate) fn add(&self, name: Name) {
        let new = self.0.names.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
        if new {
            self.0.woken.notify_one();
        }
    }

    /// Asks for a look at these objects.
    pub(crate) fn add_all(&self, names: impl IntoIterator<Item = Name>) {
        names.into_iter().for_each(|name| self.add(name));
    }

    /// What kube-runtime reads. There is one reader.
    pub(crate) fn requests(self) -> impl Stream<Item = Result<ReconcileRequest<K>, Infallible>> + Send {
        futures::stream::unfold(self, |queue| async move {
            let name = queue.0.next().await;
            Some((Ok(ReconcileRequest::from(reference::<K>(&name))), queue))
        })
    }
}

impl Inner {
    async fn next(&self) -> Name {
        loop {
            if let Some(name) = self.names.lock().unwrap_or_else(PoisonError::into_inner).pop_first() {
                return name;
            }
            self.woken.notified().await;
        }
    }
}
