//! What the API says about this node, kept current by watches and looked up by one index per kind.
//!
//! Each watch asks for this node's objects alone. Nothing is torn down before every watch had its first complete list:
//! a partial picture is not a wish.
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Objects of one kind, found by one index.
pub struct Cache<K> {
    index: fn(&K) -> String,
    inner: Mutex<Inner<K>>,
    ready: watch::Sender<bool>,
}

struct Inner<K> {
    by_uid: HashMap<String, Arc<K>>,
    by_index: HashMap<String, Vec<String>>,
    /// Objects of a list under way.
    listing: Option<HashMap<String, Arc<K>>>,
}

impl<K> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl<K: Resource> Cache<K> {
    /// An empty one.
    pub fn new(index: fn(&K) -> String) -> Self {
        let inner = Inner { by_uid: HashMap::new(), by_index: HashMap::new(), listing: None };
        Self { index, inner: Mutex::new(inner), ready: watch::Sender::new(false) }
    }

    /// The objects with this index.
    pub fn of(&self, index: &str) -> Vec<Arc<K>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let uids = inner.by_index.get(index).map(Vec::as_slice).unwrap_or_default();
        uids.iter().filter_map(|uid| inner.by_uid.get(uid).cloned()).collect()
    }

    /// The first object with this index.
    pub fn one(&self, index: &str) -> Option<Arc<K>> {
        self.of(index).into_iter().next()
    }

    /// Whether the object with this uid is there.
    pub fn has(&self, uid: &str) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).by_uid.contains_key(uid)
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).by_uid.values().cloned().collect()
    }

    /// Whether the first complete list is in.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Takes in one event and returns the objects that it concerns.
    fn take(&self, event: Event<K>) -> Vec<Arc<K>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Init => {
                inner.listing = Some(HashMap::new());
                Vec::new()
            }
            Event::InitApply(object) => {
                if let Some(listing) = &mut inner.listing {
                    listing.insert(uid(&object), Arc::new(object));
                }
                Vec::new()
            }
            Event::InitDone => {
                let new = inner.listing.take().unwrap_or_default();
                let old = std::mem::replace(&mut inner.by_uid, new);
                let gone = old.into_iter().filter(|(uid, _)| !inner.by_uid.contains_key(uid)).map(|(_, o)| o);
                let mut concerned: Vec<_> = gone.collect();
                concerned.extend(inner.by_uid.values().cloned());
                inner.rebuild(self.index);
                drop(inner);
                self.ready.send_replace(true);
                concerned
            }
            Event::Apply(object) => {
                let object = Arc::new(object);
                let old = inner.by_uid.insert(uid(&*object), Arc::clone(&object));
                // An object that took the name of another: the other is gone, though nobody said so.
                inner.by_uid.retain(|_, o| !same_name(&**o, &*object) || uid(&**o) == uid(&*object));
                inner.rebuild_if_moved(old.as_deref(), &object, self.index);
                old.into_iter().chain([object]).collect()
            }
            Event::Delete(object) => {
                let old = inner.by_uid.remove(&uid(&object));
                if let Some(old) = &old {
                    let index = (self.index)(old);
                    let gone = uid(&**old);
                    if let Some(uids) = inner.by_index.get_mut(&index) {
                        uids.retain(|u| *u != gone);
                        if uids.is_empty() {
                            inner.by_index.remove(&index);
                        }
                    }
                }
                old.into_iter().collect()
            }
        }
    }
}

impl<K: Resource> Inner<K> {
    fn rebuild(&mut self, index: fn(&K) -> String) {
        self.by_index.clear();
        for (uid, object) in &self.by_uid {
            self.by_index.entry(index(object)).or_default().push(uid.clone());
        }
    }

    fn rebuild_if_moved(&mut self, old: Option<&K>, new: &Arc<K>, index: fn(&K) -> String) {
        match old {
            Some(old) if index(old) == index(new) => {}
            Some(_) => self.rebuild(index),
            None => {
                let uids = self.by_index.entry(index(new)).or_default();
                uids.push(uid(&**new));
                uids.retain(|u| self.by_uid.contains_key(u));
            }
        }
    }
}

fn uid<K: Resource>(object: &K) -> String {
    object.meta().uid.clone().unwrap_or_default()
}

fn same_name<K: Resource>(a: &K, b: &K) -> bool {
    a.meta().name == b.meta().name && a.meta().namespace == b.meta().namespace
}

/// Keeps a cache current until `stop`; tells of each object that an event concerns.
pub async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    cache: Arc<Cache<K>>,
    stop: CancellationToken,
    concerned: impl Fn(&K),
) where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    let mut backoff = Pause::default();
    let mut events = watcher::watcher(api, config).boxed();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            Some(Ok(event)) => {
                backoff = Pause::default();
                for object in cache.take(event) {
                    concerned(&object);
                }
            }
            Some(Err(error)) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "watch interrupted");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(backoff.next()) => {}
                }
            }
            None => return,
        }
    }
}

/// 50 ms to 5 s: a node that lost its server shall find it soon (reliability 1.4).
#[derive(Debug, Default)]
struct Pause(u32);

impl Pause {
    fn next(&mut self) -> std::time::Duration {
        self.0 = (self.0 + 1).min(8);
        std::time::Duration::from_millis(25 << self.0).min(std::time::Duration::from_secs(5))
    }
}

/// `namespace/name`, or the name alone.
pub fn full_name<K: Resource>(object: &K) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}
