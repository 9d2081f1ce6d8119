//! The work queue: keys in, one handler at a time per key, many keys at once.
//!
//! A key woken while its handler runs is run once more afterwards. A handler may ask to be run again after a while; an
//! earlier wake-up runs it earlier. The set of keys is the bound of the queue. What woke a key is not kept.
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::plan::keys::Keys;

/// How long handlers that run at the end may go on.
const LAST_HANDLERS: Duration = Duration::from_secs(1);

/// The queue; clones share it.
#[derive(Debug)]
pub struct Queue<K> {
    keys: Arc<Mutex<Keys<K, Instant>>>,
    changed: Arc<Notify>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { keys: Arc::clone(&self.keys), changed: Arc::clone(&self.changed) }
    }
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { keys: Arc::default(), changed: Arc::default() }
    }
}

impl<K: Ord + Clone + Send + std::fmt::Debug + 'static> Queue<K> {
    /// Has the key's handler run as soon as it can.
    pub fn wake(&self, key: K) {
        if self.keys().wake(key) {
            self.changed.notify_one();
        }
    }

    /// Runs handlers until `stop`, then gives those that run a moment. A handler returns when it wants to be run again.
    pub async fn run<F, Fut>(&self, stop: CancellationToken, handler: F)
    where
        F: Fn(K) -> Fut,
        Fut: Future<Output = Option<Duration>> + Send + 'static,
    {
        let mut running: JoinSet<(K, Option<Duration>)> = JoinSet::new();
        loop {
            while let Some(key) = self.due() {
                let work = handler(key.clone());
                running.spawn(async move {
                    let start = Instant::now();
                    let again = work.await;
                    tracing::trace!(target: "life", ?key, took = ?start.elapsed(), ?again, "worked on");
                    (key, again)
                });
            }
            let next = self.keys().next(Instant::now());
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.changed.notified() => {}
                Some(done) = running.join_next() => {
                    // A handler that panicked ends the daemon: its key would stay stuck for ever.
                    let (key, again) = done.expect("a handler of the work queue panicked");
                    self.keys().done(key, again.map(|delay| Instant::now() + delay));
                }
                () = sleep_until(next) => {}
            }
        }
        // A handler may be dropped at any await; a call that hangs must not hold up the end.
        let _ended =
            tokio::time::timeout(LAST_HANDLERS, async { while running.join_next().await.is_some() {} }).await;
        running.shutdown().await;
    }

    fn due(&self) -> Option<K> {
        let mut keys = self.keys();
        let key = keys.take(Instant::now());
        if planted!("calls-side-by-side")
            && let Some(key) = &key
        {
            keys.done(key.clone(), None);
        }
        key
    }

    fn keys(&self) -> MutexGuard<'_, Keys<K, Instant>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    struct Harness {
        queue: Queue<u32>,
        stop: CancellationToken,
        started: mpsc::UnboundedReceiver<u32>,
        release: mpsc::UnboundedSender<Option<Duration>>,
        task: tokio::task::JoinHandle<()>,
    }

    /// Handlers say that they started, and end when the test says so.
    fn harness() -> Harness {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        let (tell, started) = mpsc::unbounded_channel();
        let (release, released) = mpsc::unbounded_channel();
        let released = Arc::new(tokio::sync::Mutex::new(released));
        let (inner, token) = (queue.clone(), stop.clone());
        let task = tokio::spawn(async move {
            inner
                .run(token, |key: u32| {
                    let (tell, released) = (tell.clone(), Arc::clone(&released));
                    async move {
                        tell.send(key).unwrap();
                        released.lock().await.recv().await.unwrap()
                    }
                })
                .await;
        });
        Harness { queue, stop, started, release, task }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_woken_while_it_runs_runs_once_more_and_never_twice_at_once() {
        let mut h = harness();
        h.queue.wake(1);
        assert_eq!(h.started.recv().await, Some(1));
        h.queue.wake(1);
        h.queue.wake(1);
        tokio::task::yield_now().await;
        assert!(h.started.try_recv().is_err(), "not beside itself");
        h.release.send(None).unwrap();
        assert_eq!(h.started.recv().await, Some(1));
        h.release.send(None).unwrap();
        h.queue.wake(2);
        assert_eq!(h.started.recv().await, Some(2), "and not a third time");
        h.release.send(None).unwrap();
        h.stop.cancel();
        h.task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_passes_unless_somebody_wakes_it() {
        let mut h = harness();
        h.queue.wake(7);
        h.started.recv().await;
        let before = Instant::now();
        h.release.send(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(h.started.recv().await, Some(7));
        assert!(before.elapsed() >= Duration::from_secs(60));
        h.release.send(Some(Duration::from_secs(60))).unwrap();
        tokio::task::yield_now().await;
        let before = Instant::now();
        h.queue.wake(7);
        h.started.recv().await;
        assert!(before.elapsed() < Duration::from_secs(1));
        h.release.send(None).unwrap();
        h.stop.cancel();
        h.task.await.unwrap();
    }
}
