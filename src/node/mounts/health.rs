//! What became of the mounts of volumes while they are up: looked at when something hints at it, and shown.
//!
//! ```text
//!  the mount table changed ──┐
//!  a plugin's health changed ├▶ a moment ▶ who is suspect ▶ one look each, side by side ▶ seen ▶ status, event
//!  its heartbeat ────────────┘                                    ▲ silent, or not asked      │
//!                                                                 └───────────────────────────┘
//! ```
//! No handler of the queue waits for a look, and no look for another. What was seen is kept in memory alone and is about
//! what the journal says is up. What is done about it, if anybody asks for that, `healing` says.
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque, hash_map};
use std::future::pending;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource, ResourceExt};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::super::context::{Key, Node};
use super::super::events::{Tone, about_allocation, part};
use super::super::journal::{AttachmentEntry, Entry, PublicationEntry};
use super::TARGET;
use super::look::{self, Found};
use crate::api::allocation::OnStaleMount;
use crate::plan::mount::Level;
use crate::plan::registry::Service;
use crate::plan::stale::{self, Health, Look, Mount, sentence, settle};
use crate::sys::kernel::{KernelError, MountId, Present};
use crate::sys::path::{HostPath, Place, TreePath};

/// Hints that come so close together are one.
const MOMENT: Duration = Duration::from_millis(50);
/// When a mount is looked at again that did not answer, or could not be asked.
const AGAIN: Duration = Duration::from_secs(5);
/// Between two looks at everything because something changed somewhere.
const SWEEP: Duration = Duration::from_secs(5);
/// Looks at once: as many as there are threads for them, so that none waits for one.
const AT_ONCE: usize = 16;
/// How long a call waits for looks at what it takes down.
const LOOKED: Duration = Duration::from_millis(200);
/// How long a start waits for the first looks, so that it says of no dead mount that it is up. What is slower is shown later.
const FIRST: Duration = Duration::from_millis(500);

/// What was seen of mounts beyond what the journal says.
#[derive(Debug, Default)]
pub struct Sightings {
    /// Mounts in our tree that no record owns, as they were found at the start.
    pub leftovers: Mutex<Vec<String>>,
    seen: Mutex<HashMap<String, Seen>>,
    asked: Mutex<Asked>,
    wake: Notify,
    first: watch::Sender<bool>,
    /// The kernel does not say which mounts there are.
    blind: AtomicBool,
    /// How many looks at the mounts of an entry are under way: each holds its mount for a moment, and an unmount in that
    /// moment would be refused.
    under_way: watch::Sender<BTreeMap<String, usize>>,
}

/// The mounts of one entry of the journal.
#[derive(Debug, Default)]
struct Seen {
    own: Option<Sighting>,
    at_host: Option<Sighting>,
}

#[derive(Debug)]
struct Sighting {
    /// What the entry said was verified: of another one this says nothing.
    of: Present,
    id: Option<MountId>,
    look: Option<Look>,
}

/// Whose mounts are to be looked at.
#[derive(Debug, Default)]
struct Asked {
    all: bool,
    plugins: BTreeSet<String>,
    /// Mounts came or went.
    changed: bool,
    /// Those of which nothing is known, or that were silent.
    unsure: bool,
}

/// One mount to look at.
struct Subject {
    key: String,
    mount: Mount,
    place: Place,
    of: Present,
    volume: String,
    plugin: String,
    who: Who,
}

/// Whose status tells of it.
enum Who {
    Attachment { uid: String },
    Allocation { of: crate::api::meta::ObjectRef, name: String },
}

impl Seen {
    fn slot(&mut self, mount: Mount) -> &mut Option<Sighting> {
        match mount {
            Mount::Staging | Mount::Target => &mut self.own,
            Mount::AtHost => &mut self.at_host,
        }
    }

    fn get(&self, mount: Mount) -> Option<&Sighting> {
        match mount {
            Mount::Staging | Mount::Target => self.own.as_ref(),
            Mount::AtHost => self.at_host.as_ref(),
        }
    }

    /// What is wrong with those mounts, and with which.
    fn worst(&self, mounts: &[(Mount, Present)]) -> Option<(Mount, Look)> {
        stale::worst(mounts.iter().filter_map(|(mount, of)| {
            let sighting = self.get(*mount).filter(|sighting| sighting.of == *of)?;
            sighting.look.map(|look| (*mount, look))
        }))
    }

    /// What is told of those mounts: nothing before each was looked at, for the worst may be seen last.
    fn health(&self, mounts: &[(Mount, Present)]) -> Option<Health> {
        let looked = |(mount, of): &(Mount, Present)| self.get(*mount).is_some_and(|seen| seen.of == *of);
        let worst = self.worst(mounts).filter(|_| mounts.iter().all(looked));
        worst.map(|(_, look)| look.health())
    }
}

/// A look that is under way.
struct UnderWay<'a> {
    sightings: &'a Sightings,
    key: &'a str,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.sightings.under_way.send_modify(|all| {
            let left = all.get_mut(self.key).map(|count| {
                *count -= 1;
                *count
            });
            if left == Some(0) {
                all.remove(self.key);
            }
        });
    }
}

impl Sightings {
    /// Waits until nobody looks at the mounts of an entry, which the journal says to be on its way down: from then on
    /// nobody begins. A look that hangs is not waited for.
    pub(super) async fn quiet(&self, key: &str) {
        let mut under_way = self.under_way.subscribe();
        let quiet = under_way.wait_for(|all| !all.contains_key(key));
        let _hangs = tokio::time::timeout(LOOKED, quiet).await;
    }

    fn begin<'a>(&'a self, key: &'a str) -> UnderWay<'a> {
        self.under_way.send_modify(|all| *all.entry(key.to_owned()).or_default() += 1);
        UnderWay { sightings: self, key }
    }

    /// The mounts of a plugin's volumes are looked at: its health changed, or it gave a sign of life.
    pub fn look_at(&self, plugin: &str) {
        self.ask(|asked| asked.plugins.extend([plugin.to_owned()]));
    }

    /// What is wrong with the staging mount, if it is up by its record.
    pub fn staging(&self, entry: &AttachmentEntry) -> Option<Look> {
        let found = mounts_of(&Entry::Attachment(entry.clone()));
        self.unwell(&format!("attachment/{}", entry.uid), &found).map(|(_, look)| look)
    }

    /// What is wrong with the mounts of a publication, if it is up by its record, and with which.
    pub fn publication(&self, entry: &PublicationEntry) -> Option<(Mount, Look)> {
        let entry = Entry::Publication(entry.clone());
        self.unwell(&entry.key(), &mounts_of(&entry))
    }

    fn unwell(&self, key: &str, mounts: &[(Mount, Present)]) -> Option<(Mount, Look)> {
        self.seen().get(key)?.worst(mounts)
    }

    /// What was seen of the mounts of an entry says nothing any more: they were made anew.
    pub(super) fn forget(&self, key: &str) {
        self.seen().remove(key);
    }

    /// Waits for the first looks, but not for what hangs.
    pub async fn first(&self) {
        let mut first = self.first.subscribe();
        let _slow = tokio::time::timeout(FIRST, first.wait_for(|done| *done)).await;
    }

    /// The mounts that were seen last.
    fn ids(&self) -> HashSet<MountId> {
        let seen = self.seen();
        let sightings = seen.values().flat_map(|seen| [&seen.own, &seen.at_host]).flatten();
        sightings.filter_map(|sighting| sighting.id).collect()
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, what: impl FnOnce(&mut Asked)) {
        self.hold(what);
        self.wake.notify_one();
    }

    /// Asks along with what is asked next.
    fn hold(&self, what: impl FnOnce(&mut Asked)) {
        what(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// How long hints are gathered. Where it cannot be told which mounts went, each change makes all of them suspect.
    fn pause(&self) -> Duration {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let all_for_one = asked.changed && !asked.all && !asked.unsure && asked.plugins.is_empty();
        if all_for_one && self.blind.load(Ordering::Relaxed) { SWEEP } else { MOMENT }
    }

    fn take_asked(&self) -> Asked {
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Looks at mounts when something hints that they may not be well, until the daemon ends.
pub(crate) async fn follow(node: Arc<Node>) {
    let mut changes = match node.machine.kernel.mount_changes().await {
        Ok(changes) => changes,
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "the mount table cannot be watched");
            futures::stream::pending().boxed()
        }
    };
    let sightings = &node.sightings;
    sightings.ask(|asked| asked.all = true);
    let (mut due, mut again) = (Some(Instant::now()), None);
    let mut waiting: VecDeque<Subject> = VecDeque::new();
    // Those that are waited for or under way, and whether something hinted at them since they began.
    let mut asked = HashMap::new();
    let (mut looks, mut unasked) = (FuturesUnordered::new(), Vec::new());
    let period = node.options.heartbeat;
    let mut beat = tokio::time::interval_at(Instant::now() + period, period);
    loop {
        while looks.len() < AT_ONCE
            && let Some(subject) = waiting.pop_front()
        {
            asked.insert((subject.key.clone(), subject.mount), false);
            looks.push(look_at(&node, subject));
        }
        let done = due.is_none() && looks.is_empty();
        sightings.first.send_if_modified(|first| done && !std::mem::replace(first, true));
        tokio::select! {
            () = node.stop.cancelled() => return,
            told = changes.next() => match told {
                Some(()) => sightings.ask(|asked| asked.changed = true),
                None => changes = futures::stream::pending().boxed(),
            },
            () = sightings.wake.notified() => due = due.or(Some(Instant::now() + sightings.pause())),
            _ = beat.tick() => hint_at_unwell(&node),
            () = reached(again) => {
                again = None;
                waiting.extend(unasked.drain(..));
                sightings.ask(|asked| asked.unsure = true);
            }
            () = reached(due) => {
                due = None;
                let (suspects, listed) = suspects(&node, sightings.take_asked()).await;
                if !listed {
                    // With the next hint, or then.
                    sightings.hold(|asked| asked.changed = true);
                    again = again.or(Some(Instant::now() + AGAIN));
                }
                line_up(suspects, &mut asked, &mut waiting);
            }
            Some((subject, found)) = looks.next() => {
                let overloaded = matches!(&found, Err(KernelError::Overloaded { .. }));
                let (id, found) = found.unwrap_or_else(|error| look::failed(&error));
                let silent = found.is_some_and(|look| look.health() == Health::Silent);
                if silent || overloaded {
                    again = again.or(Some(Instant::now() + AGAIN));
                }
                record(&node, &subject, id, found);
                let hinted = asked.remove(&(subject.key.clone(), subject.mount)).unwrap_or_default();
                if overloaded {
                    asked.insert((subject.key.clone(), subject.mount), false);
                    unasked.push(subject);
                } else if hinted && !silent {
                    asked.insert((subject.key.clone(), subject.mount), false);
                    waiting.push_back(subject);
                }
            }
        }
    }
}

/// Has those waited for that are not yet; of the others something hinted at them once more.
fn line_up(
    suspects: Vec<Subject>,
    asked: &mut HashMap<(String, Mount), bool>,
    waiting: &mut VecDeque<Subject>,
) {
    for subject in suspects {
        match asked.entry((subject.key.clone(), subject.mount)) {
            hash_map::Entry::Occupied(mut hinted) => drop(hinted.insert(true)),
            hash_map::Entry::Vacant(place) => {
                place.insert(false);
                waiting.push_back(subject);
            }
        }
    }
}

/// Asks for a look at the mounts of plugins that are not well.
fn hint_at_unwell(node: &Node) {
    let well = |plugin: &str| node.registry.serving(plugin, Service::Node).is_some();
    let unwell = node.journal.look(|all| without_heartbeat(all.values(), well));
    if !unwell.is_empty() {
        node.sightings.ask(|asked| asked.plugins.extend(unwell));
    }
}

/// The plugins that have something up here and are not well: no heartbeat of theirs hints at their mounts, which may die
/// all the same.
fn without_heartbeat<'a>(
    entries: impl IntoIterator<Item = &'a Entry>,
    well: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let plugins = entries.into_iter().filter_map(|entry| match entry {
        Entry::Attachment(attachment) => Some(&attachment.plugin),
        Entry::Publication(_) | Entry::Task(_) | Entry::Create(_) | Entry::Asked(_) | Entry::Store(_) => None,
    });
    let plugins: BTreeSet<_> = plugins.collect();
    plugins.into_iter().filter(|plugin| !well(plugin)).cloned().collect()
}

async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => pending().await,
    }
}

/// The mounts that an entry says are up, and what was verified there.
fn mounts_of(entry: &Entry) -> Vec<(Mount, Present)> {
    match entry {
        Entry::Attachment(a) if a.staged == Level::Up => {
            // A plugin need not mount anything there.
            let mounted = a.seen.iter().filter(|seen| seen.mount.is_some());
            mounted.map(|seen| (Mount::Staging, seen.clone())).collect()
        }
        Entry::Publication(p) if p.level == Level::Up => {
            let mounts = [Some(Mount::Target), p.host.as_ref().map(|_| Mount::AtHost)];
            let verified = |mount| p.verified.clone().map(|verified| (mount, verified));
            mounts.into_iter().flatten().filter_map(verified).collect()
        }
        Entry::Attachment(_)
        | Entry::Publication(_)
        | Entry::Task(_)
        | Entry::Create(_)
        | Entry::Asked(_)
        | Entry::Store(_) => Vec::new(),
    }
}

/// Whose mounts are to be looked at, and whether that could be found out.
async fn suspects(node: &Node, mut asked: Asked) -> (Vec<Subject>, bool) {
    let (mut all, mut listed, mut ids) = (None, true, HashSet::new());
    if asked.changed {
        ids = node.sightings.ids();
        match node.machine.kernel.mounts_among(&ids).await {
            Ok(found) => {
                node.sightings.blind.store(found.is_none(), Ordering::Relaxed);
                all = found;
            }
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "the mounts could not be listed");
                (asked.changed, listed) = (false, false);
            }
        }
    }
    let suspects = node.journal.look(|entries| {
        let mut seen = node.sightings.seen();
        seen.retain(|key, _| entries.contains_key(key));
        let mut suspects = Vec::new();
        for (key, entry) in entries {
            for (mount, of) in mounts_of(entry) {
                let known = seen.get(key).and_then(|seen| seen.get(mount)).filter(|known| known.of == of);
                let last = known.and_then(|known| known.look);
                let there = all.as_ref().map(|all| match known.and_then(|known| known.id) {
                    Some(id) => all.contains(&id) || !ids.contains(&id),
                    // It is no mount, or was one without a number.
                    None => true,
                });
                let unsure = last.is_none_or(|look| look.health() == Health::Silent);
                let hinted = asked.all
                    || asked.unsure && unsure
                    || asked.changed && stale::suspect(last, there)
                    || plugin_of(entries, entry).is_some_and(|plugin| asked.plugins.contains(plugin));
                if hinted {
                    suspects.extend(subject(entries, (key, entry), mount, of));
                }
            }
        }
        suspects
    });
    (suspects, listed)
}

fn attachment_of<'a>(entries: &'a BTreeMap<String, Entry>, entry: &'a Entry) -> Option<&'a AttachmentEntry> {
    let of = match entry {
        Entry::Publication(p) => entries.get(&format!("attachment/{}", p.attachment))?,
        Entry::Attachment(_) | Entry::Task(_) | Entry::Create(_) | Entry::Asked(_) | Entry::Store(_) => entry,
    };
    match of {
        Entry::Attachment(attachment) => Some(attachment),
        Entry::Publication(_) | Entry::Task(_) | Entry::Create(_) | Entry::Asked(_) | Entry::Store(_) => None,
    }
}

fn plugin_of<'a>(entries: &'a BTreeMap<String, Entry>, entry: &'a Entry) -> Option<&'a String> {
    attachment_of(entries, entry).map(|attachment| &attachment.plugin)
}

fn subject(
    entries: &BTreeMap<String, Entry>,
    (key, entry): (&str, &Entry),
    mount: Mount,
    of: Present,
) -> Option<Subject> {
    let attachment = attachment_of(entries, entry)?;
    let (place, who) = match entry {
        Entry::Attachment(a) => (place_of_staging(a)?, Who::Attachment { uid: a.uid.clone() }),
        Entry::Publication(p) => {
            (place_of(p, mount)?, Who::Allocation { of: p.allocation.clone(), name: p.name.clone() })
        }
        Entry::Task(_) | Entry::Create(_) | Entry::Asked(_) | Entry::Store(_) => return None,
    };
    let (volume, plugin) = (attachment.volume.clone(), attachment.plugin.clone());
    Some(Subject { key: key.to_owned(), mount, place, of, volume, plugin, who })
}

fn place_of_staging(entry: &AttachmentEntry) -> Option<Place> {
    TreePath::new(["staging", entry.staging.as_str()]).ok().map(Place::Tree)
}

fn place_of(entry: &PublicationEntry, mount: Mount) -> Option<Place> {
    match (mount, &entry.host) {
        (Mount::AtHost, Some(host)) => HostPath::new(&host.allowed, &host.path).ok().map(Place::Host),
        (Mount::Staging | Mount::Target | Mount::AtHost, _) => {
            TreePath::new(["publish", entry.directory.as_str(), TARGET]).ok().map(Place::Tree)
        }
    }
}

async fn look_at(node: &Node, subject: Subject) -> (Subject, Result<Found, KernelError>) {
    // Begun first, then asked whether it is up still: who takes it down says that first, and then waits for looks.
    let under_way = node.sightings.begin(&subject.key);
    let found = if is_up(node, &subject) {
        node.machine.kernel.check_mount(&subject.place).await
    } else {
        // Of no account any more.
        Err(KernelError::NotFound { path: PathBuf::new() })
    };
    drop(under_way);
    let found = match found {
        Ok(checked) => Ok(look::read(node, checked, &subject.of).await),
        Err(error) => Err(error),
    };
    (subject, found)
}

/// Whether the journal still says of it what it said when it became suspect.
fn is_up(node: &Node, subject: &Subject) -> bool {
    node.journal.look(|entries| {
        let entry = entries.get(&subject.key);
        entry.is_some_and(|entry| mounts_of(entry).contains(&(subject.mount, subject.of.clone())))
    })
}

/// Keeps what was seen, if it is about what the journal says still, and tells who has to know.
fn record(node: &Node, subject: &Subject, id: Option<MountId>, found: Option<Look>) {
    // It is on its way down, or was made anew: what was seen is nobody's fault.
    if !is_up(node, subject) {
        return;
    }
    let mounts = node.journal.look(|all| all.get(&subject.key).map(mounts_of)).unwrap_or_default();
    let (before, after, told, worst) = {
        let mut seen = node.sightings.seen();
        let seen = seen.entry(subject.key.clone()).or_default();
        let told = seen.health(&mounts);
        let slot = seen.slot(subject.mount);
        let before = slot.as_ref().and_then(|sighting| sighting.look);
        let known = slot.as_ref().filter(|sighting| sighting.of == subject.of).and_then(|s| s.look);
        let after = settle(known, found);
        *slot = Some(Sighting { of: subject.of.clone(), id, look: after });
        (before.unwrap_or(Look::Well), after, told, seen.health(&mounts))
    };
    if let Some(after) = after.filter(|after| *after != before) {
        tracing::info!(volume = subject.volume, mount = ?subject.mount, ?before, ?after, "a mount changed");
        // Who uses it is looked at after it.
        node.queue.wake(Key::Mount(subject.volume.clone()));
        if let Who::Allocation { of, .. } = &subject.who {
            node.queue.wake(Key::Allocation(of.uid.clone()));
        }
    }
    if told != worst {
        tell(node, subject);
    }
}

/// One event for each change of health, which is that of the worst mount.
fn tell(node: &Node, subject: &Subject) {
    let Some(about) = about(node, subject) else { return };
    let entry = node.journal.look(|all| all.get(&subject.key).cloned());
    let trouble = match &entry {
        Some(Entry::Attachment(entry)) => staging_trouble(node, entry),
        Some(Entry::Publication(entry)) => {
            publication_trouble(node, entry).map(|(_, health, note)| (health, note))
        }
        Some(Entry::Task(_) | Entry::Create(_) | Entry::Asked(_) | Entry::Store(_)) | None => None,
    };
    match trouble.and_then(|(health, note)| Some((health.word()?, note))) {
        Some((word, note)) => node.events.tell(about, Tone::Warning, word, "Check", &note),
        None => {
            let path = node.machine.kernel.absolute(&subject.place);
            let nothing = (subject.plugin.as_str(), OnStaleMount::None);
            let text = sentence(subject.mount, Look::Well, &path.to_string_lossy(), nothing);
            let note = format!("volume \"{}\": {text}", subject.volume);
            node.events.tell(about, Tone::Normal, "MountWell", "Check", &note);
        }
    }
}

fn about(node: &Node, subject: &Subject) -> Option<ObjectReference> {
    match &subject.who {
        Who::Allocation { of, name } => Some(part(about_allocation(of), "volumes", name)),
        Who::Attachment { uid } => {
            let objects = node.caches.attachments.of(&subject.volume);
            let object = objects.into_iter().find(|object| object.uid().as_ref() == Some(uid))?;
            Some(object.object_ref(&()))
        }
    }
}

/// What is told of a staging mount that is not well: a word and a sentence.
pub(crate) fn staging_trouble(node: &Node, entry: &AttachmentEntry) -> Option<(Health, String)> {
    let look = node.sightings.staging(entry)?;
    let path = node.machine.kernel.absolute(&place_of_staging(entry)?);
    let asked = asked_of_all(node, &entry.uid);
    let text = sentence(Mount::Staging, look, &path.to_string_lossy(), (&entry.plugin, asked));
    Some((look.health(), format!("volume \"{}\": {text}", entry.volume)))
}

/// What all who have it published here ask for; none where one asks for nothing, who then holds it as it is.
fn asked_of_all(node: &Node, attachment: &str) -> OnStaleMount {
    let users = node.journal.publications(attachment);
    let mut each = users.iter().map(|user| policy(node, &user.allocation.uid, &user.name));
    let Some(first) = each.next() else { return OnStaleMount::None };
    each.fold(first, |all, one| if one == OnStaleMount::None { one } else { all })
}

/// What an allocation asks for when the mounts of a volume of it die or go.
fn policy(node: &Node, allocation: &str, volume: &str) -> OnStaleMount {
    let allocation = node.caches.allocations.one(allocation);
    let of = allocation.iter().flat_map(|a| &a.spec.volumes).find(|v| v.name == volume);
    of.map(|volume| volume.on_stale_mount).unwrap_or_default()
}

/// What is told of a publication whose mounts are not well, and which of them is not.
pub(crate) fn publication_trouble(node: &Node, entry: &PublicationEntry) -> Option<(Mount, Health, String)> {
    let (mount, look) = node.sightings.publication(entry)?;
    let attachment = node.journal.attachment(&entry.attachment)?;
    let path = node.machine.kernel.absolute(&place_of(entry, mount)?);
    let policy = policy(node, &entry.allocation.uid, &entry.name);
    let text = sentence(mount, look, &path.to_string_lossy(), (&attachment.plugin, policy));
    Some((mount, look.health(), format!("volume \"{}\": {text}", attachment.volume)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_heartbeat_hints_at_is_looked_at_all_the_same() {
        let of = |uid: &str, plugin: &str| {
            Entry::Attachment(AttachmentEntry {
                uid: uid.to_owned(),
                name: uid.to_owned(),
                volume: format!("vol-{uid}"),
                plugin: plugin.to_owned(),
                handle: "h".to_owned(),
                capability: serde_json::from_str(r#"{"accessMode":"SingleNodeWriter"}"#).unwrap(),
                stage_required: true,
                staging: "s".to_owned(),
                newer_modes: None,
                modes: None,
                mount_group: None,
                staged: Level::Up,
                seen: None,
                expanded: 0,
                tried: None,
                closed: false,
                released: false,
            })
        };
        let entries = [of("1", "well"), of("2", "dead"), of("3", "dead"), of("4", "gone")];
        let found = without_heartbeat(&entries, |plugin| plugin == "well");
        assert_eq!(found, BTreeSet::from(["dead", "gone"].map(str::to_owned)));
    }
}
