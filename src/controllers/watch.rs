//! One watcher per kind: fills the cache, then wakes the controllers that the change concerns.
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{Config, Event, ExponentialBackoff};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::oneshot;

use super::context::Context;
use super::wake::Wakes;

/// Watches one kind until it is dropped. `ready` fires after the first complete list; nobody else may wait on the store.
pub(crate) async fn watch<K: Wakes>(
    context: Arc<Context>,
    mut writer: Writer<K>,
    api: Api<K>,
    ready: oneshot::Sender<()>,
) {
    let mut ready = Some(ready);
    let backoff = backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(5))
        .without_max_times();
    let events = watcher(api, Config::default()).backoff(ExponentialBackoff::from(backoff));
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => slim(event),
            Err(error) => {
                tracing::warn!(kind = std::any::type_name::<K>(), %error, "watch interrupted");
                continue;
            }
        };
        for (old, new) in K::cache(&context.world).apply(&mut writer, &event) {
            let state = match (&event, &old, &new) {
                (Event::Delete(last), _, None) => Some(last),
                (_, _, Some(new)) => Some(&**new),
                (_, Some(old), None) => Some(&**old),
                (_, None, None) => None,
            };
            if let Some(state) = state {
                let (kind, name, rev) = (K::kind(&()), state.name_any(), state.resource_version());
                tracing::trace!(target: "life", %kind, name, rev, "controllers see");
                context.saw(state, new.is_none());
            }
            K::changed(&context, old.as_deref(), new.as_deref());
        }
        if matches!(event, Event::InitDone)
            && let Some(ready) = ready.take()
        {
            // The receiver is gone only when the whole is being shut down.
            ready.send(()).ok();
        }
    }
}

/// The event without what no controller asks: who manages which field is the longest part of most objects in memory.
/// Whoever writes an object back without it leaves it as it stands.
fn slim<K: Wakes>(mut event: Event<K>) -> Event<K> {
    match &mut event {
        Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => {
            object.meta_mut().managed_fields = None;
        }
        Event::Init | Event::InitDone => {}
    }
    event
}
