//! The keys that a controller has to look at.
//!
//! kube-runtime's own scheduler rounds every start up to a full millisecond, which a claim would pay at each step of its
//! way; here a key that is woken starts at once.
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::cache::{Kind, Name};
use crate::plan::keys::Keys;

/// The queue of one controller.
#[derive(Debug)]
pub(crate) struct Queue<K>(Arc<Inner>, PhantomData<fn() -> K>);

#[derive(Debug, Default)]
struct Inner {
    keys: Mutex<Keys<Name, Instant>>,
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
        if self.keys().wake(name) {
            self.0.woken.notify_one();
        }
    }

    /// Asks for a look at these objects.
    pub(crate) fn add_all(&self, names: impl IntoIterator<Item = Name>) {
        names.into_iter().for_each(|name| self.add(name));
    }

    /// The next key to look at, if one is due; it is not given out again before [`Queue::done`].
    pub(crate) fn take(&self) -> Option<Name> {
        self.keys().take(Instant::now())
    }

    /// The look at a key is over; look again after a while, if so wanted and nobody wakes it earlier.
    pub(crate) fn done(&self, name: Name, again: Option<Duration>) {
        self.keys().done(name, again.and_then(|wait| Instant::now().checked_add(wait)));
    }

    /// Returns when a key may be due. There is one waiter.
    pub(crate) async fn due(&self) {
        let next = self.keys().next(Instant::now());
        let woken = self.0.woken.notified();
        match next {
            // A timer would round this up to a full millisecond.
            Some(at) if at <= Instant::now() => {}
            Some(at) => drop(tokio::time::timeout_at(at, woken).await),
            None => woken.await,
        }
    }

    fn keys(&self) -> MutexGuard<'_, Keys<Name, Instant>> {
        self.0.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        (String::new(), text.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_woken_is_due_without_any_time_passing() {
        let queue = Queue::<k8s_openapi::api::core::v1::ConfigMap>::default();
        let start = Instant::now();
        queue.add(name("a"));
        queue.due().await;
        assert_eq!((queue.take(), start.elapsed()), (Some(name("a")), Duration::ZERO));
        queue.done(name("a"), Some(Duration::from_millis(5)));
        // A wake-up that was served already may be told once more.
        while queue.take().is_none() {
            queue.due().await;
        }
        assert!(start.elapsed() >= Duration::from_millis(5));
    }
}
