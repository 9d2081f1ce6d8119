//! What the controllers know: one reflector store per kind with an index beside it.
//!
//! A cache is filled by one watcher (see `watch`) and read by everybody. It never asks the API.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use tokio::time::Instant;

use super::queue::Queue;

/// What can be kept in a cache.
pub(crate) trait Kind:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// The words under which the object is found, such as `plugin:dir`.
    fn index(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Namespace and name. The namespace is empty for kinds of the whole cluster.
pub(crate) type Name = (String, String);

/// The name of an object.
pub(crate) fn name_of<K: ResourceExt>(object: &K) -> Name {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The reference that kube-runtime knows an object by.
pub(crate) fn reference<K: Resource<DynamicType = ()>>(name: &Name) -> ObjectRef<K> {
    let reference = ObjectRef::new(&name.1);
    if name.0.is_empty() { reference } else { reference.within(&name.0) }
}

#[derive(Debug, Default)]
struct Index {
    by_word: HashMap<Arc<str>, Names>,
    known: HashMap<Arc<Name>, Known>,
}

/// The objects under one word, in the order of their names. Mostly it is one, for which a set would be large.
#[derive(Debug)]
enum Names {
    One(Arc<Name>),
    Many(BTreeSet<Arc<Name>>),
}

/// One object in the index.
#[derive(Debug)]
struct Known {
    words: Vec<Arc<str>>,
    uid: Option<String>,
    /// Whether it is being deleted.
    going: bool,
    /// Since when it is seen as it is: there, or being deleted.
    since: Instant,
}

impl Names {
    fn iter(&self) -> impl Iterator<Item = &Arc<Name>> {
        let (one, many) = match self {
            Self::One(name) => (Some(name), None),
            Self::Many(names) => (None, Some(names)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(names) => names.len(),
        }
    }

    fn add(&mut self, name: Arc<Name>) {
        match self {
            Self::One(first) => *self = Self::Many([Arc::clone(first), name].into()),
            Self::Many(names) => drop(names.insert(name)),
        }
    }
}

impl Index {
    /// Takes an object from under its words.
    fn unlist(&mut self, name: &Arc<Name>, words: &[Arc<str>]) {
        for word in words {
            let Some(names) = self.by_word.get_mut(word) else { continue };
            let left = match names {
                Names::One(one) => usize::from(one != name),
                Names::Many(names) => {
                    names.remove(name);
                    names.len()
                }
            };
            if left == 0 {
                self.by_word.remove(word);
            }
        }
    }

    fn forget(&mut self, name: &Name) {
        if let Some((name, known)) = self.known.remove_entry(name) {
            self.unlist(&name, &known.words);
        }
    }

    fn insert<K: Kind>(&mut self, name: &Name, object: &K) {
        let meta = object.meta();
        let (uid, going) = (meta.uid.clone(), meta.deletion_timestamp.is_some());
        let mut words = object.index();
        words.extend(object.owner_references().iter().map(|owner| format!("owner:{}", owner.uid)));
        let new = || Known { words: Vec::new(), uid: None, going: false, since: Instant::now() };
        let (name, mut known) =
            self.known.remove_entry(name).unwrap_or_else(|| (Arc::new(name.clone()), new()));
        if known.uid != uid || known.going != going {
            (known.uid, known.going, known.since) = (uid, going, Instant::now());
        }
        // Most changes are of a status that no word comes from.
        if !known.words.iter().map(|word| &**word).eq(words.iter().map(String::as_str)) {
            self.unlist(&name, &known.words);
            known.words = words.into_iter().map(|word| self.list(word, &name)).collect();
        }
        self.known.insert(name, known);
    }

    /// Puts an object under a word.
    fn list(&mut self, word: String, name: &Arc<Name>) -> Arc<str> {
        if let Some((word, _)) = self.by_word.get_key_value(word.as_str()) {
            let word = Arc::clone(word);
            if let Some(names) = self.by_word.get_mut(&word) {
                names.add(Arc::clone(name));
            }
            return word;
        }
        let word: Arc<str> = word.into();
        self.by_word.insert(Arc::clone(&word), Names::One(Arc::clone(name)));
        word
    }
}

/// Everything known of one kind.
#[derive(Debug)]
pub(crate) struct Cache<K: Kind> {
    store: Store<K>,
    index: Mutex<Index>,
    changes: AtomicU64,
    /// Objects whose owners are to be looked at.
    pub(crate) dependents: Queue<K>,
}

/// The old and the new state of one object.
pub(crate) type Change<K> = (Option<Arc<K>>, Option<Arc<K>>);

impl<K: Kind> Cache<K> {
    /// An empty cache and the end that fills it.
    pub(crate) fn new() -> (Self, Writer<K>) {
        let writer = Writer::default();
        let (store, dependents) = (writer.as_reader(), Queue::default());
        (Self { store, index: Mutex::default(), changes: AtomicU64::new(0), dependents }, writer)
    }

    /// Another number after every change: what was made of the cache before is as good as new while it is the same.
    pub(crate) fn version(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// An object of the whole cluster.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<K>> {
        self.store.get(&ObjectRef::new(name))
    }

    /// An object.
    pub(crate) fn get(&self, name: &Name) -> Option<Arc<K>> {
        self.store.get(&reference(name))
    }

    /// Every object, in the order of their names: the store's own differs from run to run, and with it what comes first.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        let mut all = self.store.state();
        all.sort_by_cached_key(|object| name_of(&**object));
        all
    }

    /// How long an object has been seen as it is: there, or being deleted.
    pub(crate) fn age(&self, name: &Name) -> Option<Duration> {
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        index.known.get(name).map(|known| known.since.elapsed())
    }

    /// The objects under one word of the index, in the order of their names.
    pub(crate) fn by(&self, word: &str) -> Vec<Arc<K>> {
        self.names(word).iter().filter_map(|name| self.get(name)).collect()
    }

    /// The names under one word of the index, in order.
    pub(crate) fn names(&self, word: &str) -> Vec<Name> {
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        index.by_word.get(word).into_iter().flat_map(Names::iter).map(|name| (**name).clone()).collect()
    }

    /// How many objects are under one word of the index.
    pub(crate) fn count(&self, word: &str) -> usize {
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        index.by_word.get(word).map_or(0, Names::len)
    }

    /// The same of several words, at one look.
    pub(crate) fn counts(&self, words: impl Iterator<Item = String>) -> Vec<usize> {
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        words.map(|word| index.by_word.get(word.as_str()).map_or(0, Names::len)).collect()
    }

    /// Takes in one event of the watcher and says what changed. Called by the one watcher only.
    pub(crate) fn apply(&self, writer: &mut Writer<K>, event: &Event<K>) -> Vec<Change<K>> {
        match event {
            Event::Apply(object) => {
                let name = name_of(object);
                let old = self.get(&name);
                writer.apply_watcher_event(event);
                self.change(|index| index.insert(&name, object));
                vec![(old, self.get(&name))]
            }
            Event::Delete(object) => {
                let name = name_of(object);
                let old = self.get(&name);
                writer.apply_watcher_event(event);
                self.change(|index| index.forget(&name));
                vec![(Some(old.unwrap_or_else(|| Arc::new(object.clone()))), None)]
            }
            Event::Init | Event::InitApply(_) => {
                writer.apply_watcher_event(event);
                Vec::new()
            }
            Event::InitDone => {
                let before: BTreeMap<_, _> = self.all().into_iter().map(|o| (name_of(&*o), o)).collect();
                // Who sees the new objects finds all of them by the index.
                let after = self.change(|index| {
                    writer.apply_watcher_event(event);
                    let after: BTreeMap<_, _> = self.all().into_iter().map(|o| (name_of(&*o), o)).collect();
                    let gone = |name: &&Arc<Name>| !after.contains_key(&***name);
                    let gone: Vec<_> = index.known.keys().filter(gone).cloned().collect();
                    for name in gone {
                        index.forget(&name);
                    }
                    for (name, object) in &after {
                        index.insert(name, &**object);
                    }
                    after
                });
                let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
                let pair = |name: &&Name| (before.get(*name).cloned(), after.get(*name).cloned());
                let version = |o: &Option<Arc<K>>| o.as_ref().map(|o| o.resource_version());
                let changed = |(old, new): &Change<K>| version(old) != version(new);
                names.iter().map(pair).filter(changed).collect()
            }
        }
    }

    fn change<T>(&self, edit: impl FnOnce(&mut Index) -> T) -> T {
        let edited = edit(&mut self.index.lock().unwrap_or_else(PoisonError::into_inner));
        self.changes.fetch_add(1, Ordering::AcqRel);
        edited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    impl Kind for ConfigMap {
        fn index(&self) -> Vec<String> {
            self.data.iter().flatten().map(|(k, v)| format!("{k}:{v}")).collect()
        }
    }

    fn object(name: &str, version: &str, color: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.into());
        object.metadata.namespace = Some("d".into());
        object.metadata.resource_version = Some(version.into());
        object.data = Some([("color".to_owned(), color.to_owned())].into());
        object
    }

    fn names(cache: &Cache<ConfigMap>, word: &str) -> Vec<String> {
        cache.by(word).iter().map(|o| o.name_any()).collect()
    }

    #[test]
    fn the_index_follows_the_store() {
        let (cache, mut writer) = Cache::<ConfigMap>::new();
        let mut apply = |event| cache.apply(&mut writer, &event);
        apply(Event::Apply(object("a", "1", "red")));
        apply(Event::Apply(object("b", "2", "red")));
        assert_eq!(names(&cache, "color:red"), ["a", "b"]);
        for n in 0..9 {
            apply(Event::Apply(object(&format!("c{n}"), "2", "green")));
        }
        assert!(cache.all().is_sorted_by_key(|o| o.name_any()));
        let changes = apply(Event::Apply(object("a", "3", "blue")));
        assert_eq!(changes.len(), 1);
        assert!(changes[0].0.is_some() && changes[0].1.is_some());
        assert_eq!(
            (names(&cache, "color:red"), names(&cache, "color:blue")),
            (vec!["b".into()], vec!["a".into()])
        );
        let changes = apply(Event::Delete(object("a", "4", "blue")));
        assert!(changes[0].1.is_none() && names(&cache, "color:blue").is_empty());
    }

    #[test]
    fn a_new_list_tells_only_what_differs() {
        let (cache, mut writer) = Cache::<ConfigMap>::new();
        let mut apply = |event| cache.apply(&mut writer, &event);
        for (name, version) in [("a", "1"), ("b", "2"), ("c", "3")] {
            apply(Event::Apply(object(name, version, "red")));
        }
        apply(Event::Init);
        apply(Event::InitApply(object("a", "1", "red")));
        apply(Event::InitApply(object("b", "9", "blue")));
        assert_eq!(names(&cache, "color:red"), ["a", "b", "c"], "nothing is lost in the middle of a list");
        let changes = apply(Event::InitDone);
        assert_eq!(changes.len(), 2, "b changed, c is gone");
        assert_eq!(
            (names(&cache, "color:red"), names(&cache, "color:blue")),
            (vec!["a".into()], vec!["b".into()])
        );
    }
}
