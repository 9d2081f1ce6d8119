//! The work queue: keys in, one handler at a time per key, many keys at once.
//!
//! A key woken while its handler runs is run once more afterwards. A handler may ask to be run again after a while; an
//! earlier wake-up runs it earlier. The set of keys is the bound of the queue. What woke a key is not kept.
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long handlers that run at the end may go on.
const LAST_HANDLERS: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    /// To be run from this moment on.
    Due(Instant),
    /// Its handler runs; whether it was woken meanwhile.
    Running { woken: bool },
}

/// The queue; clones share it.
#[derive(Debug)]
pub struct Queue<K> {
    slots: Arc<Mutex<HashMap<K, Slot>>>,
    changed: Arc<Notify>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { slots: Arc::clone(&self.slots), changed: Arc::clone(&self.changed) }
    }
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { slots: Arc::default(), changed: Arc::default() }
    }
}

impl<K: Eq + Hash + Clone + Send + std::fmt::Debug + 'static> Queue<K> {
    /// Has the key's handler run as soon as it can.
    pub fn wake(&self, key: K) {
        let now = Instant::now();
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        match slots.get_mut(&key) {
            Some(Slot::Running { woken }) => *woken = true,
            Some(slot @ Slot::Due(_)) => *slot = Slot::Due(now),
            None => {
                slots.insert(key, Slot::Due(now));
            }
        }
        drop(slots);
        self.changed.notify_one();
    }

    /// Runs handlers until `stop`, then gives those that run a moment. A handler returns when it wants to be run again.
    pub async fn run<F, Fut>(&self, stop: CancellationToken, handler: F)
    where
        F: Fn(K) -> Fut,
        Fut: Future<Output = Option<Duration>> + Send + 'static,
    {
        let mut running: JoinSet<(K, Option<Duration>)> = JoinSet::new();
        loop {
            let (due, next) = self.take_due();
            for key in due {
                let work = handler(key.clone());
                running.spawn(async move {
                    let start = Instant::now();
                    let again = work.await;
                    tracing::trace!(target: "life", ?key, took = ?start.elapsed(), ?again, "worked on");
                    (key, again)
                });
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.changed.notified() => {}
                Some(done) = running.join_next() => {
                    // A handler that panicked ends the daemon: its key would stay stuck for ever.
                    let (key, again) = done.expect("a handler of the work queue panicked");
                    self.finished(&key, again);
                }
                () = sleep_until(next) => {}
            }
        }
        // A handler may be dropped at any await; a call that hangs must not hold up the end.
        let _ended =
            tokio::time::timeout(LAST_HANDLERS, async { while running.join_next().await.is_some() {} }).await;
        running.shutdown().await;
    }

    fn take_due(&self) -> (Vec<K>, Option<Instant>) {
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        let mut due = Vec::new();
        for (key, slot) in self.slots.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            match slot {
                Slot::Due(at) if *at <= now => {
                    *slot = Slot::Running { woken: false };
                    due.push(key.clone());
                }
                Slot::Due(at) => next = Some(next.map_or(*at, |n| n.min(*at))),
                Slot::Running { .. } => {}
            }
        }
        (due, next)
    }

    fn finished(&self, key: &K, again: Option<Duration>) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let woken = matches!(slots.get(key), Some(Slot::Running { woken: true }));
        match (woken, again) {
            (true, _) => slots.insert(key.clone(), Slot::Due(Instant::now())),
            (false, Some(delay)) => slots.insert(key.clone(), Slot::Due(Instant::now() + delay)),
            (false, None) => slots.remove(key),
        };
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
