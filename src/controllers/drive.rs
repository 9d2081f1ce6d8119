//! One controller: kube-runtime's applier over its own queue, and back-off that belongs to (object, cause).
//!
//! kube-runtime's error policy is never used: a failure is turned into a delay before it gets there.
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::controller::{Action, Config, applier};

use super::cache::{Name, name_of};
use super::context::Context;
use super::queue::Queue;
use super::world::Cached;
use super::write::Failure;
use crate::plan::backoff::{self, Failing};

/// How many objects of one controller are looked at side by side.
const CONCURRENCY: u16 = 32;

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

/// Runs one controller until it is dropped. Returns only if its queue ends, which it does not.
pub(crate) async fn drive<K, F, Fut>(name: &'static str, context: Arc<Context>, queue: Queue<K>, reconcile: F)
where
    K: Cached,
    F: Fn(Arc<K>, Arc<Context>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Outcome> + Send + 'static,
{
    let retry = Arc::new(Retry::default());
    let store = K::cache(&context.world).store();
    let forget = Arc::clone(&retry);
    let look = move |object: Arc<K>, context: Arc<Context>| {
        let (retry, reconcile) = (Arc::clone(&retry), reconcile.clone());
        Box::pin(async move { Ok::<_, Infallible>(look(name, object, context, &retry, reconcile).await) })
    };
    let policy = |_: Arc<K>, never: &Infallible, _: Arc<Context>| match *never {};
    applier(look, policy, context, store, queue.requests(), Config::default().concurrency(CONCURRENCY))
        .for_each(|result| {
            // The object is gone: so is the memory of its failures.
            if let Err(kube::runtime::controller::Error::ObjectNotFound(gone)) = result {
                forget.succeeded(&(gone.namespace.unwrap_or_default(), gone.name));
            }
            std::future::ready(())
        })
        .await;
}

async fn look<K, F, Fut>(
    controller: &'static str,
    object: Arc<K>,
    context: Arc<Context>,
    retry: &Retry,
    reconcile: F,
) -> Action
where
    K: Cached,
    F: Fn(Arc<K>, Arc<Context>) -> Fut,
    Fut: Future<Output = Outcome>,
{
    let (name, generation) = (name_of(&*object), object.meta().generation);
    if let Some(wait) = context.behind::<K>(&name) {
        return Action::requeue(wait);
    }
    if let Some(wait) = retry.remaining(&name, generation, context.monotonic()) {
        return Action::requeue(wait);
    }
    match reconcile(object, Arc::clone(&context)).await {
        Ok(again) => {
            retry.succeeded(&name);
            again.map_or_else(Action::await_change, Action::requeue)
        }
        // The newer state is on its way into the cache and brings us back.
        Err(Failure::Conflict | Failure::Gone) => Action::requeue(super::ledger::PATIENCE),
        Err(failure) => {
            let cause = (failure.cause(), generation);
            let wait = retry.failed(&name, cause, context.monotonic(), (context.options.jitter)());
            tracing::warn!(controller, namespace = name.0, name = name.1, error = %failure, ?wait, "write failed");
            Action::requeue(wait)
        }
    }
}
