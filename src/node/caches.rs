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

use crate::csi::Tenure;

/// Objects of one kind, found by the words of its index.
pub struct Cache<K> {
    index: fn(&K) -> Vec<String>,
    inner: Mutex<Inner<K>>,
    ready: watch::Sender<bool>,
    /// In which term of the lease the newest complete list was asked for.
    listed: watch::Sender<u64>,
}

struct Inner<K> {
    by_uid: HashMap<String, Arc<K>>,
    by_word: HashMap<String, Vec<String>>,
    /// The uid of the object that has a name now.
    by_name: HashMap<String, String>,
    /// Objects of a list under way.
    listing: Option<HashMap<String, Arc<K>>>,
}

/// One object as it was and as it is.
type Change<K> = (Option<Arc<K>>, Option<Arc<K>>);

impl<K> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

impl<K: Resource> Cache<K> {
    /// An empty one.
    pub fn new(index: fn(&K) -> Vec<String>) -> Self {
        let inner =
            Inner { by_uid: HashMap::new(), by_word: HashMap::new(), by_name: HashMap::new(), listing: None };
        let (ready, listed) = (watch::Sender::new(false), watch::Sender::new(0));
        Self { index, inner: Mutex::new(inner), ready, listed }
    }

    /// The objects with this word in their index.
    pub fn of(&self, word: &str) -> Vec<Arc<K>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let uids = inner.by_word.get(word).map(Vec::as_slice).unwrap_or_default();
        uids.iter().filter_map(|uid| inner.by_uid.get(uid).cloned()).collect()
    }

    /// The first object with this word in its index.
    pub fn one(&self, word: &str) -> Option<Arc<K>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let uids = inner.by_word.get(word).map(Vec::as_slice).unwrap_or_default();
        uids.iter().find_map(|uid| inner.by_uid.get(uid).cloned())
    }

    /// The object with this uid.
    pub fn get(&self, uid: &str) -> Option<Arc<K>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).by_uid.get(uid).cloned()
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

    /// In which term of the lease the newest complete list was asked for.
    pub fn listed(&self) -> watch::Receiver<u64> {
        self.listed.subscribe()
    }

    /// Takes in one event and returns what it changed.
    fn take(&self, event: Event<K>) -> Vec<Change<K>> {
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
                let mut old = std::mem::take(&mut inner.by_uid);
                inner.by_word.clear();
                inner.by_name.clear();
                let mut changes: Vec<_> =
                    new.iter().map(|(uid, object)| (old.remove(uid), Some(Arc::clone(object)))).collect();
                changes.extend(old.into_values().map(|gone| (Some(gone), None)));
                for object in new.into_values() {
                    inner.put(object, self.index);
                }
                drop(inner);
                self.ready.send_replace(true);
                changes
            }
            Event::Apply(object) => {
                let object = Arc::new(object);
                let old = inner.put(Arc::clone(&object), self.index);
                vec![(old, Some(object))]
            }
            Event::Delete(object) => {
                let old = inner.remove(&uid(&object), self.index);
                old.into_iter().map(|old| (Some(old), None)).collect()
            }
        }
    }
}

impl<K: Resource> Inner<K> {
    /// Puts an object in the place of its former state, which is returned.
    fn put(&mut self, object: Arc<K>, index: fn(&K) -> Vec<String>) -> Option<Arc<K>> {
        let uid = uid(&*object);
        let words = index(&object);
        // Most changes are of a status that no word comes from.
        if let Some(there) = self.by_uid.get_mut(&uid)
            && index(there) == words
        {
            return Some(std::mem::replace(there, object));
        }
        let old = self.remove(&uid, index);
        for word in words {
            self.by_word.entry(word).or_default().push(uid.clone());
        }
        let before = self.by_name.insert(full_name(&*object), uid.clone());
        self.by_uid.insert(uid, object);
        // An object that took the name of another: the other is gone, though nobody said so.
        if let Some(gone) = before {
            self.remove(&gone, index);
        }
        old
    }

    fn remove(&mut self, uid: &str, index: fn(&K) -> Vec<String>) -> Option<Arc<K>> {
        let old = self.by_uid.remove(uid)?;
        for word in index(&old) {
            if let Some(uids) = self.by_word.get_mut(&word) {
                uids.retain(|u| u != uid);
                if uids.is_empty() {
                    self.by_word.remove(&word);
                }
            }
        }
        let name = full_name(&*old);
        if self.by_name.get(&name).is_some_and(|of| of == uid) {
            self.by_name.remove(&name);
        }
        Some(old)
    }
}

fn uid<K: Resource>(object: &K) -> String {
    object.meta().uid.clone().unwrap_or_default()
}

/// Keeps a cache current until `stop`; tells of each object as it was and as it is. With every new term of the lease it
/// asks for a new list, where `terms` are given.
pub async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    cache: Arc<Cache<K>>,
    mut terms: Option<watch::Receiver<Tenure>>,
    stop: CancellationToken,
    changed: impl Fn(Option<&K>, Option<&K>),
) where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
{
    // Before the first term nothing may be gone by.
    if let Some(terms) = &mut terms {
        tokio::select! {
            () = stop.cancelled() => return,
            first = terms.wait_for(|tenure| tenure.term > 0) => if first.is_err() { return },
        }
    }
    let mut backoff = Pause::default();
    loop {
        let term = terms.as_ref().map_or(0, |terms| terms.borrow().term);
        let mut events = watcher::watcher(api.clone(), config.clone()).boxed();
        loop {
            let event = tokio::select! {
                () = stop.cancelled() => return,
                () = next_term(&mut terms, term) => break,
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    backoff = Pause::default();
                    if let Event::Apply(o) | Event::Delete(o) = &event {
                        tracing::trace!(target: "life", name = o.name_any(), rev = o.resource_version(), "node sees");
                    }
                    let complete = matches!(event, Event::InitDone);
                    let changes = cache.take(event);
                    // Whoever is woken by it may go by it.
                    if complete {
                        cache.listed.send_replace(term);
                    }
                    for (old, new) in changes {
                        changed(old.as_deref(), new.as_deref());
                    }
                }
                Some(Err(error)) => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "watch interrupted");
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = next_term(&mut terms, term) => break,
                        () = tokio::time::sleep(backoff.next()) => {}
                    }
                }
                None => return,
            }
        }
    }
}

async fn next_term(terms: &mut Option<watch::Receiver<Tenure>>, term: u64) {
    let over = match terms {
        Some(terms) => terms.wait_for(|tenure| tenure.term != term).await.is_err(),
        None => true,
    };
    if over {
        std::future::pending::<()>().await;
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

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn object(uid: &str, name: &str, colors: &[&str]) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.uid = Some(uid.into());
        object.metadata.name = Some(name.into());
        object.metadata.finalizers = Some(colors.iter().map(|&c| c.to_owned()).collect());
        object
    }

    fn cache() -> Cache<ConfigMap> {
        Cache::new(|object| object.finalizers().to_vec())
    }

    fn uids(cache: &Cache<ConfigMap>, word: &str) -> Vec<String> {
        let mut uids: Vec<_> = cache.of(word).iter().map(|o| uid(&**o)).collect();
        uids.sort();
        uids
    }

    #[test]
    fn objects_are_found_by_every_word_of_their_present_state() {
        let cache = cache();
        cache.take(Event::Apply(object("1", "a", &["red", "round"])));
        cache.take(Event::Apply(object("2", "b", &["red"])));
        assert_eq!(
            (uids(&cache, "red"), uids(&cache, "round")),
            (vec!["1".into(), "2".into()], vec!["1".into()])
        );
        let told = cache.take(Event::Apply(object("1", "a", &["blue"])));
        assert!(matches!(&told[..], [(Some(_), Some(_))]), "the state before it, and the present one");
        assert_eq!((uids(&cache, "red"), uids(&cache, "blue")), (vec!["2".into()], vec!["1".into()]));
        cache.take(Event::Delete(object("2", "b", &[])));
        assert_eq!((uids(&cache, "red"), cache.has("2"), cache.one("blue").is_some()), (vec![], false, true));
    }

    #[test]
    fn who_takes_a_name_ends_the_one_that_had_it() {
        let cache = cache();
        cache.take(Event::Apply(object("1", "a", &["red"])));
        cache.take(Event::Apply(object("2", "a", &["red"])));
        assert_eq!((uids(&cache, "red"), cache.has("1")), (vec!["2".into()], false));
        cache.take(Event::Delete(object("1", "a", &[])));
        assert_eq!(uids(&cache, "red"), ["2"], "a late word about the old one changes nothing");
    }

    #[test]
    fn a_new_list_replaces_all_and_tells_of_what_is_gone() {
        let cache = cache();
        cache.take(Event::Apply(object("1", "a", &["red"])));
        cache.take(Event::Init);
        cache.take(Event::InitApply(object("2", "b", &["red"])));
        assert_eq!(uids(&cache, "red"), ["1"], "nothing is lost in the middle of a list");
        let told = cache.take(Event::InitDone);
        let uid = |object: &Option<Arc<ConfigMap>>| object.as_ref().map(|o| super::uid(&**o));
        let told: Vec<_> = told.iter().map(|(old, new)| (uid(old), uid(new))).collect();
        assert_eq!(told, [(None, Some("2".to_owned())), (Some("1".to_owned()), None)]);
        assert_eq!(uids(&cache, "red"), ["2"]);
    }

    /// A server with one object, which is made anew for each list and of which no watch ever tells.
    fn lists() -> kube::Client {
        use http_body::Frame;
        use http_body_util::StreamBody;
        use std::sync::atomic::{AtomicU64, Ordering};

        let lists = Arc::new(AtomicU64::new(0));
        kube::Client::new(
            tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                let frames = if watch {
                    futures::stream::pending().boxed()
                } else {
                    let n = lists.fetch_add(1, Ordering::Relaxed) + 1;
                    let items = [object(&n.to_string(), "a", &["red"])];
                    let list = serde_json::json!({ "kind": "ConfigMapList", "apiVersion": "v1",
                        "metadata": { "resourceVersion": n.to_string() }, "items": items });
                    let frame = Ok::<_, std::io::Error>(Frame::data(bytes::Bytes::from(list.to_string())));
                    futures::stream::iter([frame]).boxed()
                };
                std::future::ready(Ok::<_, std::io::Error>(http::Response::new(StreamBody::new(frames))))
            }),
            "default",
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_term_of_the_lease_asks_for_a_new_list() {
        let (cache, terms, stop) =
            (Arc::new(cache()), watch::Sender::<Tenure>::default(), CancellationToken::new());
        let (api, config) = (Api::all(lists()), watcher::Config::default());
        let of = Some(terms.subscribe());
        let follows = tokio::spawn(follow(api, config, Arc::clone(&cache), of, stop.clone(), |_, _| {}));
        let mut listed = cache.listed();
        let patience = std::time::Duration::from_secs(60);
        for term in 1..4 {
            terms.send_modify(|tenure| tenure.term = term);
            let seen = tokio::time::timeout(patience, listed.wait_for(|of| *of >= term)).await;
            assert_eq!(*seen.expect("a list in this term").expect("the cache is there"), term);
            assert_eq!(uids(&cache, "red"), [term.to_string()], "what was known before is gone");
        }
        stop.cancel();
        follows.await.expect("it ends");
    }
}
