//! What the journal says now, where to find it there, and what it is about to say.
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{Change, Entry};

/// When a change was handed on that is seen once it is durable. Later ones have higher numbers.
pub(super) type Turn = u64;

/// What the journal says now, and where to find it.
#[derive(Debug, Default)]
pub(super) struct Image {
    pub(super) entries: BTreeMap<String, Entry>,
    /// Keys of the attachments of a Volume.
    pub(super) of_volume: HashMap<String, BTreeSet<String>>,
    /// Keys of the attachments with one staging directory.
    pub(super) of_staging: HashMap<String, BTreeSet<String>>,
    /// Keys of the publications for an allocation.
    pub(super) of_allocation: HashMap<String, BTreeSet<String>>,
    /// What was handed on and is not durable yet, by key and turn.
    awaited: HashMap<String, BTreeMap<Turn, Change>>,
    turns: Turn,
}

impl Image {
    pub(super) fn new(entries: BTreeMap<String, Entry>) -> Self {
        let mut image = Self::default();
        for entry in entries.into_values() {
            image.put(entry);
        }
        image
    }

    fn put(&mut self, entry: Entry) {
        let key = entry.key();
        // What an entry is about is part of its key, or never changes: the index stays right.
        match &entry {
            Entry::Attachment(a) => {
                self.of_volume.entry(a.volume.clone()).or_default().insert(key.clone());
                self.of_staging.entry(a.staging.clone()).or_default().insert(key.clone());
            }
            Entry::Publication(p) => {
                self.of_allocation.entry(p.allocation.uid.clone()).or_default().insert(key.clone());
            }
            Entry::Task(_) | Entry::Create(_) | Entry::Asked(_) | Entry::Store(_) => {}
        }
        self.entries.insert(key, entry);
    }

    /// Remembers changes that are seen when they are durable, and when they were handed on.
    pub(super) fn await_all(&mut self, changes: &[Change]) -> Turn {
        self.turns += 1;
        for change in changes {
            if let Some(key) = key_of(change) {
                self.awaited.entry(key).or_default().insert(self.turns, change.clone());
            }
        }
        self.turns
    }

    /// Shows changes that were handed on in this turn and are durable now. What was shown since is newer, and stays.
    pub(super) fn show(&mut self, turn: Turn, changes: &[Change]) {
        for change in changes {
            let Some(key) = key_of(change) else { continue };
            let Some(awaited) = self.awaited.get_mut(&key) else { continue };
            let is_awaited = awaited.remove(&turn).is_some();
            if awaited.is_empty() {
                self.awaited.remove(&key);
            }
            if is_awaited {
                self.apply(change.clone());
            }
        }
    }

    /// Shows changes that are not durable yet, in place of all that was handed on before them.
    pub(super) fn show_at_once(&mut self, changes: &[Change]) {
        for change in changes {
            if let Some(key) = key_of(change) {
                self.awaited.remove(&key);
            }
            self.apply(change.clone());
        }
    }

    /// Whether something was handed on about this key that is not seen yet.
    pub(super) fn awaits(&self, key: &str) -> bool {
        self.awaited.contains_key(key)
    }

    /// The entry with this key as it was put last, seen or not.
    pub(super) fn last(&self, key: &str) -> Option<&Entry> {
        match self.awaited.get(key).and_then(|turns| turns.values().next_back()) {
            Some(Change::Put(entry)) => Some(entry),
            Some(Change::Forget(_) | Change::Rebuilt) => None,
            None => self.entries.get(key),
        }
    }

    /// The changes that bring a changed entry, as it was put last, and their turn; none if it is not there, or not changed.
    pub(super) fn edited(
        &mut self,
        key: &str,
        change: impl FnOnce(&mut Entry) -> bool,
    ) -> Option<(Vec<Change>, Option<Turn>)> {
        let mut entry = self.last(key)?.clone();
        if !change(&mut entry) {
            return None;
        }
        let changes = vec![Change::Put(entry)];
        let turn = self.awaits(key).then(|| self.await_all(&changes));
        if turn.is_none() {
            self.show_at_once(&changes);
        }
        Some((changes, turn))
    }

    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Put(entry) => self.put(entry),
            Change::Forget(key) => self.forget(&key),
            Change::Rebuilt => {}
        }
    }

    fn forget(&mut self, key: &str) {
        match self.entries.remove(key) {
            Some(Entry::Attachment(a)) => {
                unindex(&mut self.of_volume, &a.volume, key);
                unindex(&mut self.of_staging, &a.staging, key);
            }
            Some(Entry::Publication(p)) => unindex(&mut self.of_allocation, &p.allocation.uid, key),
            Some(Entry::Task(_) | Entry::Create(_) | Entry::Asked(_) | Entry::Store(_)) | None => {}
        }
    }

    /// The entries under one word of an index.
    pub(super) fn of<'a>(
        &'a self,
        index: &'a HashMap<String, BTreeSet<String>>,
        word: &str,
    ) -> impl Iterator<Item = &'a Entry> {
        index.get(word).into_iter().flatten().filter_map(|key| self.entries.get(key))
    }
}

/// What a change is about.
fn key_of(change: &Change) -> Option<String> {
    match change {
        Change::Put(entry) => Some(entry.key()),
        Change::Forget(key) => Some(key.clone()),
        Change::Rebuilt => None,
    }
}

/// Takes one key from under a word of an index.
fn unindex(index: &mut HashMap<String, BTreeSet<String>>, word: &str, key: &str) {
    if let Some(keys) = index.get_mut(word) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(word);
        }
    }
}
