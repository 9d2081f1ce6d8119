//! One controller: its queue worked off, several objects side by side and each once at a time, and back-off that belongs
//! to (object, cause).
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::cache::{Name, name_of};
use super::context::Context;
use super::queue::Queue;
use super::world::Cached;
use super::write::Failure;
use crate::plan::backoff::{self, Failing};

/// How many objects of one controller are looked at side by side.
const CONCURRENCY: usize = 32;

/// What a look at an object ends with: when to look again if nothing changes, or why a write did not happen.
pub(crate) type Outcome = Result<Option<Duration>, Failure>;

/// Why it failed, and for which generation of the spec.
type Cause = (String, Option<i64>);

#[derive(Default)]
struct Retry(Mutex<HashMap<Name, Failing<Cause>>>);

impl Retry {
    /// How long to wait still; a changed spec is tried at once.
    fn remaining(&self, name: &Name, generation: Option<i64>, now: Duration) -> Option<Duration> {
        let failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let record = failing.get(name).filter(|record| record.cause.1 == generation)?;
        backoff::remaining(record, now)
    }

    fn failed(&self, name: &Name, cause: Cause, now: Duration, jitter: u8) -> Duration {
        let mut failing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let record = backoff::failed(failing.get(name), cause, now, jitter);
        let wait = record.due.saturating_sub(now);
        failing.insert(name.clone(), record);
        wait
    }

    fn succeeded(&self, name: &Name) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// Runs one controller until it is dropped.
pub(crate) async fn drive<K, F, Fut>(name: &'static str, context: Arc<Context>, queue: Queue<K>, reconcile: F)
where
    K: Cached,
    F: Fn(Arc<K>, Arc<Context>) -> Fut,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    let retry = Retry::default();
    let mut looks = FuturesUnordered::new();
    loop {
        while looks.len() < CONCURRENCY
            && let Some(key) = queue.take()
        {
            let Some(object) = K::cache(&context.world).get(&key) else {
                // The object is gone: so is the memory of its failures.
                retry.succeeded(&key);
                queue.done(key, None);
                continue;
            };
            let look = look(name, object, Arc::clone(&context), &retry, &reconcile);
            looks.push(async move { (key, look.await) });
        }
        tokio::select! {
            Some((key, again)) = looks.next() => queue.done(key, again),
            () = queue.due(), if looks.len() < CONCURRENCY => {}
        }
    }
}

async fn look<K, F, Fut>(
    controller: &'static str,
    object: Arc<K>,
    context: Arc<Context>,
    retry: &Retry,
    reconcile: &F,
) -> Option<Duration>
where
    K: Cached,
    F: Fn(Arc<K>, Arc<Context>) -> Fut,
    Fut: Future<Output = Outcome>,
{
    let (name, generation) = (name_of(&*object), object.meta().generation);
    let held = context.behind::<K>(&name);
    if let Some(wait) = held.or_else(|| retry.remaining(&name, generation, context.monotonic())) {
        let behind = held.is_some();
        tracing::trace!(target: "life", controller, name = name.1, behind, ?wait, "held back");
        return Some(wait);
    }
    let start = tokio::time::Instant::now();
    let outcome = reconcile(object, Arc::clone(&context)).await;
    tracing::trace!(target: "life", controller, name = name.1, took = ?start.elapsed(), ?outcome, "look");
    match outcome {
        Ok(again) => {
            retry.succeeded(&name);
            again
        }
        // The newer state is on its way into the cache and brings us back.
        Err(Failure::Conflict | Failure::Gone) => Some(super::ledger::PATIENCE),
        Err(Failure::Unsaid(wait)) => Some(wait),
        Err(failure) => {
            let cause = (failure.cause(), generation);
            let wait = retry.failed(&name, cause, context.monotonic(), (context.options.jitter)());
            tracing::warn!(controller, namespace = name.0, name = name.1, error = %failure, ?wait, "write failed");
            (!planted!("refusal-is-final")).then_some(wait)
        }
    }
}
