//! What we wrote and have not seen yet, so that nothing is decided on a cache older than our own last write.
//!
//! Kept in memory only: after a restart the caches start from a fresh list.
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::{Resource, ResourceExt};
use tokio::time::Instant;

use super::cache::{Cache, Kind, Name, name_of};

/// After so long a write that never showed up is no longer waited for: its object was deleted in the meantime.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The version of an object that is gone.
const GONE: u64 = u64::MAX;

type Key = (&'static str, Name);

#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    unseen: HashMap<Key, Entry>,
    /// At which version objects ended whose end was seen, and the order: an answer may come after that.
    ends: HashMap<Key, (u64, Instant)>,
    order: VecDeque<(Key, Instant)>,
}

impl Entries {
    fn ended(&mut self, key: &Key, at: u64) {
        let now = Instant::now();
        let old = self.order.partition_point(|(_, seen)| now - *seen > PATIENCE);
        for (old, seen) in self.order.drain(..old) {
            if self.ends.get(&old).is_some_and(|(_, last)| *last == seen) {
                self.ends.remove(&old);
            }
        }
        self.ends.insert(key.clone(), (at, now));
        self.order.push_back((key.clone(), now));
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    version: u64,
    written: Instant,
}

impl Ledger {
    /// Records that `object` is the answer to a write.
    pub(crate) fn wrote<K: Kind>(&self, cache: &Cache<K>, object: &K) {
        let (name, version) = (name_of(object), version(object));
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: the watcher puts an object into the cache first and clears the entry afterwards.
        let unseen = cache.get(&name).is_none_or(|seen| self::version(&*seen) < version);
        let key = (kind::<K>(), name);
        // Its end may have been seen before the answer came.
        if unseen && entries.ends.get(&key).is_none_or(|(ended, _)| *ended < version) {
            entries.unseen.insert(key, Entry { version, written: Instant::now() });
        }
    }

    /// Records that an object was asked to go and may be gone by now.
    pub(crate) fn ended<K: Kind>(&self, cache: &Cache<K>, name: Name) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.get(&name).is_some() {
            entries.unseen.insert((kind::<K>(), name), Entry { version: GONE, written: Instant::now() });
        }
    }

    /// Records that the watcher has seen this state of an object, which is its end if there is none after it.
    pub(crate) fn saw<K: Kind>(&self, object: &K, end: bool) {
        let key = (kind::<K>(), name_of(object));
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = |entry: &Entry| entry.version <= version(object) || end && entry.version == GONE;
        if entries.unseen.get(&key).is_some_and(seen) {
            entries.unseen.remove(&key);
        }
        if end {
            entries.ended(&key, version(object));
        }
    }

    /// How long to wait at most until the cache shows what we wrote last; absent when it does already.
    pub(crate) fn behind<K: Kind>(&self, name: &Name) -> Option<Duration> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind::<K>(), name.clone());
        let waited = entries.unseen.get(&key)?.written.elapsed();
        let left = PATIENCE.checked_sub(waited).filter(|left| !left.is_zero());
        if left.is_none() {
            entries.unseen.remove(&key);
        }
        left
    }
}

fn kind<K: Resource<DynamicType = ()>>() -> &'static str {
    std::any::type_name::<K>()
}

/// The object's revision. Versions are revisions of our own store and may be compared.
pub(crate) fn version<K: ResourceExt>(object: &K) -> u64 {
    object.resource_version().and_then(|v| v.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::watcher::Event;

    fn object(version: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some("a".into());
        object.metadata.resource_version = Some(version.into());
        object
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_waited_for_until_it_is_seen() {
        let (cache, mut writer) = Cache::<ConfigMap>::new();
        let ledger = Ledger::default();
        let name = (String::new(), "a".to_owned());
        let behind = || ledger.behind::<ConfigMap>(&name).is_some();
        cache.apply(&mut writer, &Event::Apply(object("5")));
        ledger.wrote(&cache, &object("5"));
        assert!(!behind(), "a write that changed nothing, or was seen already");
        ledger.wrote(&cache, &object("7"));
        assert!(behind());
        ledger.saw(&object("6"), false);
        assert!(behind(), "an older state");
        ledger.saw(&object("7"), false);
        assert!(!behind());
        ledger.ended(&cache, name.clone());
        ledger.saw(&object("8"), false);
        assert!(behind(), "its end has not been seen");
        ledger.saw(&object("8"), true);
        assert!(!behind());
        ledger.wrote(&cache, &object("9"));
        tokio::time::advance(PATIENCE).await;
        assert!(!behind(), "not for ever");
    }

    /// Another's word may end an object while our own write to it is answered.
    #[tokio::test(start_paused = true)]
    async fn what_was_seen_to_end_is_not_waited_for() {
        let (cache, mut writer) = Cache::<ConfigMap>::new();
        let ledger = Ledger::default();
        let name = (String::new(), "a".to_owned());
        let behind = || ledger.behind::<ConfigMap>(&name).is_some();
        cache.apply(&mut writer, &Event::Apply(object("5")));
        cache.apply(&mut writer, &Event::Delete(object("8")));
        ledger.saw(&object("8"), true);
        ledger.wrote(&cache, &object("7"));
        assert!(!behind(), "it came before its end");
        ledger.wrote(&cache, &object("9"));
        assert!(behind(), "another one of the name");
        // Ends are forgotten, and a later one of the name is not.
        tokio::time::advance(PATIENCE / 2).await;
        ledger.saw(&object("10"), true);
        tokio::time::advance(PATIENCE / 2 + Duration::from_secs(1)).await;
        let mut other = object("11");
        other.metadata.name = Some("b".into());
        ledger.saw(&other, true);
        let count = || ledger.0.lock().unwrap().ends.len();
        assert_eq!(count(), 2);
        tokio::time::advance(PATIENCE).await;
        ledger.saw(&other, true);
        assert_eq!(count(), 1);
    }
}
