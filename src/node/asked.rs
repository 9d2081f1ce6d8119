//! Which process of a driver is asked about a volume: chosen before the call waits for its turn, looked at once more when
//! the turn has come, and known again after a restart.
//!
//! Who is the only process of its driver here needs no record: what an earlier daemon asked without one it asked the process
//! that is the oldest now. So a record is written where there are several, which is while one replaces another.
use std::collections::BTreeSet;

use async_trait::async_trait;
use tokio::time::Instant;

use super::context::Node;
use super::journal::{AskedEntry, Change, Entry, Journal, JournalError, asked_key};
use super::registry::{InstanceKey, Registry};
use crate::csi::Gate;
use crate::plan::mount::Level;
use crate::plan::registry::Service;
use crate::plan::supervise::Process;

/// A call about a volume, and the process that was chosen for it.
#[derive(Debug)]
pub(super) struct Asked {
    /// Where the processes are known.
    pub(super) registry: Registry,
    /// Where it is kept which of them was asked.
    pub(super) journal: Journal,
    /// The Plugin.
    pub(super) plugin: String,
    /// What kind of call it is.
    pub(super) service: Service,
    /// The process.
    pub(super) of: InstanceKey,
    /// The volume, by handle or name.
    pub(super) volume: String,
}

/// A call about several volumes: let through where it may be made about each.
#[derive(Debug)]
pub(super) struct AskedOfAll(pub(super) Vec<Asked>);

#[async_trait]
impl Gate for AskedOfAll {
    async fn open(&self, changes: bool) -> bool {
        if !self.0.iter().all(Asked::is_allowed) {
            return false;
        }
        let entries = self.0.iter().filter(|_| changes).filter_map(Asked::entry);
        let puts: Vec<_> = entries.map(|entry| Change::Put(Entry::Asked(entry))).collect();
        let Some(first) = self.0.first() else { return true };
        // A journal that cannot be written ends the daemon.
        first.journal.commit(puts).await.is_ok()
    }

    async fn over(&self) {
        for one in &self.0 {
            one.over().await;
        }
    }
}

impl Asked {
    fn is_allowed(&self) -> bool {
        self.registry.may_ask(&self.of, (&self.plugin, self.service), &self.volume)
    }

    /// What is to be kept before the call; none if it is, or if there is nobody else to ask.
    fn entry(&self) -> Option<AskedEntry> {
        let entry = AskedEntry {
            plugin: self.plugin.clone(),
            volume: self.volume.clone(),
            allocation: self.of.allocation.clone(),
            task: self.of.task.clone(),
        };
        let known = self.journal.asked_about(&self.plugin, &self.volume);
        let several = self.registry.of(&self.plugin).len() > 1;
        (known.as_ref() != Some(&entry) && (known.is_some() || several)).then_some(entry)
    }
}

#[async_trait]
impl Gate for Asked {
    async fn open(&self, changes: bool) -> bool {
        if !self.is_allowed() {
            return false;
        }
        let Some(entry) = self.entry().filter(|_| changes) else { return true };
        // A journal that cannot be written ends the daemon.
        self.journal.put(Entry::Asked(entry)).await.is_ok()
    }

    async fn over(&self) {
        if self.journal.asked_about(&self.plugin, &self.volume).is_some() {
            let _ended = self.journal.forget_soon(asked_key(&self.plugin, &self.volume)).await;
        }
    }
}

/// Says of the processes that run what earlier daemons asked of them, before anything is asked: another process of the
/// driver knows nothing of it.
pub(super) async fn restore(node: &Node) -> Result<(), JournalError> {
    let runs = |key: &InstanceKey| node.tasks.process(&key.allocation, &key.task) == Process::Running;
    let mut gone = Vec::new();
    for entry in node.journal.asked() {
        let key = InstanceKey { allocation: entry.allocation, task: entry.task };
        match node.registry.get(&key).filter(|_| runs(&key)) {
            Some(instance) => instance.client.owe(&entry.volume, None),
            None => gone.push(Change::Forget(asked_key(&entry.plugin, &entry.volume))),
        }
    }
    let oldest = |plugin: &str, service| {
        let all = node.registry.by_age(plugin, service);
        all.into_iter().find(|(key, _)| runs(key)).map(|(_, instance)| instance.client)
    };
    let unknown = |plugin: &str, volume: &str| node.journal.asked_about(plugin, volume).is_none();
    for (plugin, handle) in in_doubt(node) {
        if let Some(client) = oldest(&plugin, Service::Node).filter(|_| unknown(&plugin, &handle)) {
            client.owe(&handle, None);
        }
    }
    // Of these no record tells whether a call was under way: one that was is over after so long.
    let until = Instant::now() + node.options.longest_call;
    for (plugin, volume) in hosted(node) {
        if let Some(client) = oldest(&plugin, Service::Controller).filter(|_| unknown(&plugin, &volume)) {
            client.owe(&volume, Some(until));
        }
    }
    node.journal.commit(gone).await
}

/// Volumes about which a node call may have been under way, by plugin and handle.
fn in_doubt(node: &Node) -> BTreeSet<(String, String)> {
    let open = |level: Level| matches!(level, Level::Rising | Level::Sinking);
    let all = node.journal.attachments().into_iter();
    let doubted =
        all.filter(|a| open(a.staged) || node.journal.publications(&a.uid).iter().any(|p| open(p.level)));
    doubted.map(|attachment| (attachment.plugin, attachment.handle)).collect()
}

/// The volumes that this node may make controller calls about, by plugin, and name or handle.
fn hosted(node: &Node) -> BTreeSet<(String, String)> {
    let mut all = BTreeSet::new();
    for volume in node.caches.volumes.all() {
        let name = volume.spec.source.create.as_ref().map(|source| source.name.clone());
        let told = volume.spec.source.told().map(|(handle, _)| handle.to_owned());
        let handle = volume.status.as_ref().map(|status| status.handle.clone());
        let words = [name, told, handle].into_iter().flatten().filter(|word| !word.is_empty());
        all.extend(words.map(|word| (volume.spec.plugin.clone(), word)));
    }
    for snapshot in node.caches.snapshots.all() {
        let Some((status, of)) = snapshot.status.as_ref().and_then(|s| Some((s, s.of.as_ref()?))) else {
            continue;
        };
        let words = [&of.handle, &status.handle, &snapshot.spec.source.handle].into_iter();
        all.extend(words.filter(|word| !word.is_empty()).map(|word| (of.plugin.clone(), word.clone())));
    }
    for attachment in node.caches.hosted.all() {
        all.insert((attachment.spec.plugin.clone(), attachment.spec.handle.clone()));
    }
    all
}
