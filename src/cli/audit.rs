//! What backends list, beside what is known here: all that does not fit.
//!
//! A list is no view of one moment (CO-CTRL-65): what it leaves out may be there, and is told as something to look at again. What is known
//! here is read before and after the lists, so that nothing is named that was made or deleted meanwhile.
use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use serde::Serialize;

use crate::api::audit::{BackendSnapshot, BackendVolume};
use crate::api::meta::{Rung, is_of_another};
use crate::api::quantity;
use crate::api::snapshot::SnapshotStatus;
use crate::api::{NodeAgent, Snapshot, Volume, VolumeAttachment, VolumeStatus};

/// What one instance of a plugin listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listed<T> {
    /// The plugin.
    pub(crate) plugin: String,
    /// The only node whose volumes it knows; empty where it knows all.
    pub(crate) node: String,
    /// The list. A thing may stand in it twice.
    pub(crate) entries: Vec<T>,
    /// Of snapshots: the Secrets that they were listed with, as `namespace/name`; an empty one where none went with the call.
    pub(crate) secrets: BTreeSet<String>,
    /// Of snapshots: the Secrets with which not all could be listed, each with why.
    pub(crate) refused: BTreeMap<String, String>,
}

/// All that was listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lists {
    pub(crate) volumes: Vec<Listed<BackendVolume>>,
    pub(crate) snapshots: Vec<Listed<BackendSnapshot>>,
}

/// What is known here at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    pub(crate) volumes: Vec<Volume>,
    pub(crate) snapshots: Vec<Snapshot>,
    pub(crate) attachments: Vec<VolumeAttachment>,
    pub(crate) agents: Vec<NodeAgent>,
}

impl Known {
    /// The nodes that alone know some of a plugin's volumes or snapshots.
    pub(crate) fn homes(&self, plugin: &str) -> BTreeSet<String> {
        let volumes = self.volumes.iter().filter(|v| v.spec.plugin == plugin).map(|v| node(v).to_owned());
        let snapshots =
            self.snapshots.iter().filter(|s| self::plugin(s) == plugin).map(|s| home(s).to_owned());
        let all = volumes.chain(snapshots);
        all.filter(|node| !node.is_empty()).collect()
    }

    /// The Secrets of a plugin's Snapshots, each with the nodes that make the calls of one: these may read it. An empty one stands for
    /// those that have none.
    pub(crate) fn secrets(&self, plugin: &str) -> BTreeMap<String, BTreeSet<String>> {
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for snapshot in self.snapshots.iter().filter(|s| self::plugin(s) == plugin) {
            let host = snapshot.status.as_ref().and_then(SnapshotStatus::calling_host);
            all.entry(secret(snapshot)).or_default().extend(host.map(|host| host.node_name.clone()));
        }
        all
    }
}

/// What does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) enum What {
    /// The backend has it, and no Volume has its handle.
    Unknown,
    /// The same, while a Volume is being made of which nobody knows the handle yet.
    Unclear,
    /// A Volume has it, and the backend did not list it.
    NotListed,
    /// The backend has it attached to a node, and no attachment says so.
    Attached,
    /// An attachment says that it is attached, and the backend does not.
    NotAttached,
    /// Something is wrong with it, by its plugin's word.
    Unwell,
    /// The backend lists it with less room than its Volume says.
    Smaller,
    /// The backend has a snapshot, and no Snapshot has its handle.
    UnknownSnapshot,
    /// The same, while a Snapshot is being made of which nobody knows the handle yet.
    UnclearSnapshot,
    /// A Snapshot has it, and the backend did not list it.
    SnapshotNotListed,
    /// A mount in a node's tree that no record owns.
    Mount,
}

/// One thing that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct Finding {
    pub(crate) what: What,
    /// The plugin; of a mount, its node.
    pub(crate) of: String,
    /// The only node that knows it; empty where all know it, and of a mount.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) node: String,
    /// The handle; of a mount, its path.
    pub(crate) subject: String,
    pub(crate) details: String,
}

/// Everything that does not fit, in order.
pub(crate) fn findings(lists: &Lists, before: &Known, after: &Known) -> Vec<Finding> {
    let mut found = BTreeSet::new();
    for list in &lists.volumes {
        of_list(list, before, after, &mut found);
    }
    for list in &lists.snapshots {
        of_snapshots(list, before, after, &mut found);
    }
    for agent in &after.agents {
        let paths = agent.status.iter().flat_map(|status| &status.leftovers);
        found.extend(paths.map(|path| Finding {
            what: What::Mount,
            of: agent.name_any(),
            node: String::new(),
            subject: path.clone(),
            details:
                "no record owned it when the node's daemon began; unmount it once nobody uses it".to_owned(),
        }));
    }
    found.into_iter().collect()
}

/// A list: its plugin, the only node that it is of, and whether it is of snapshots.
pub(crate) type Whose = (String, String, bool);

impl Lists {
    /// Whose lists there are.
    pub(crate) fn whose(&self) -> BTreeSet<Whose> {
        let volumes = self.volumes.iter().map(|list| (list.plugin.clone(), list.node.clone(), false));
        let snapshots = self.snapshots.iter().map(|list| (list.plugin.clone(), list.node.clone(), true));
        volumes.chain(snapshots).collect()
    }
}

impl Finding {
    /// The list that it comes from; none of a mount.
    fn whose(&self) -> Option<Whose> {
        let of_snapshot = match self.what {
            What::Mount => return None,
            What::UnknownSnapshot | What::UnclearSnapshot | What::SnapshotNotListed => true,
            What::Unknown
            | What::Unclear
            | What::NotListed
            | What::Attached
            | What::NotAttached
            | What::Unwell
            | What::Smaller => false,
        };
        Some((self.of.clone(), self.node.clone(), of_snapshot))
    }
}

/// What does not fit at two looks, as the second one has it: what came and went in the middle of one fits, and no list is of one moment.
/// What only one of them could ask for is told as that one has it. With each look comes whose lists it had.
pub(crate) fn confirmed(
    (first, had): (Vec<Finding>, &BTreeSet<Whose>),
    (second, has): (Vec<Finding>, &BTreeSet<Whose>),
) -> Vec<Finding> {
    let kind = |what: What| match what {
        What::Unclear => What::Unknown,
        What::UnclearSnapshot => What::UnknownSnapshot,
        what => what,
    };
    let same = |a: &Finding, b: &Finding| {
        // A volume that moves is between two nodes at one look, and between two others at the next.
        let place = |f: &Finding| {
            let moves = matches!(f.what, What::Attached | What::NotAttached);
            moves.then(|| f.details.clone())
        };
        let of = |f: &Finding| (kind(f.what), f.of.clone(), f.node.clone(), f.subject.clone(), place(f));
        of(a) == of(b)
    };
    let once =
        |found: &Finding, other: &BTreeSet<Whose>| found.whose().is_some_and(|of| !other.contains(&of));
    let mut all: BTreeSet<_> = first.iter().filter(|found| once(found, has)).cloned().collect();
    let twice = |found: &Finding| first.iter().any(|before| same(before, found));
    all.extend(second.into_iter().filter(|found| once(found, had) || twice(found)));
    all.into_iter().collect()
}

/// What the plugin calls a volume; empty while nobody knows.
fn handle(volume: &Volume) -> &str {
    let told = volume.status.as_ref().map(|status| status.handle.as_str()).unwrap_or_default();
    let before = volume.spec.source.told().map(|(handle, _)| handle);
    if told.is_empty() { before.unwrap_or_default() } else { told }
}

/// The only node that knows it; empty where all do.
fn node(volume: &Volume) -> &str {
    volume.spec.source.home().unwrap_or_default()
}

fn of_list(list: &Listed<BackendVolume>, before: &Known, after: &Known, found: &mut BTreeSet<Finding>) {
    let finding = |what, subject: &str, details: String| Finding {
        what,
        of: list.plugin.clone(),
        node: list.node.clone(),
        subject: subject.to_owned(),
        details,
    };
    // Where each node knows its own alone, the same handle is another volume on another one.
    let its = |v: &&Volume| list.node.is_empty() || node(v).is_empty() || node(v) == list.node;
    let ours = |known: &'_ Known| -> BTreeMap<String, Volume> {
        let of_it = known.volumes.iter().filter(|v| v.spec.plugin == list.plugin && !handle(v).is_empty());
        let of_it =
            of_it.filter(|v| !v.status.as_ref().is_some_and(|s| is_of_another(&s.conditions))).filter(its);
        of_it.map(|volume| (handle(volume).to_owned(), volume.clone())).collect()
    };
    let (earlier, later) = (ours(before), ours(after));
    let under_way = [before, after].into_iter().flat_map(|known| &known.volumes);
    // Without a host nobody was ever asked for it, and what was refused is not there.
    let asked_for = |v: &Volume| {
        let refused = |status: &VolumeStatus| status.exists == Some(Rung::Down) && !status.attempting;
        v.status.as_ref().is_some_and(|status| status.controller.is_some() && !refused(status))
    };
    let under_way =
        under_way.filter(|v| v.spec.plugin == list.plugin && handle(v).is_empty() && asked_for(v));
    let under_way: BTreeSet<String> = under_way.filter(its).map(ResourceExt::name_any).collect();
    let listed: BTreeMap<&str, &BackendVolume> =
        list.entries.iter().map(|volume| (volume.handle.as_str(), volume)).collect();
    for (handle, volume) in &listed {
        if !earlier.contains_key(*handle) && !later.contains_key(*handle) {
            let what = if under_way.is_empty() { What::Unknown } else { What::Unclear };
            found.insert(finding(what, handle, unknown(volume, &under_way)));
            continue;
        }
        if !volume.abnormal.is_empty() {
            found.insert(finding(What::Unwell, handle, volume.abnormal.clone()));
        }
        // One that grows meanwhile was listed before or after that.
        if let (Some(before), Some(after)) = (earlier.get(*handle), later.get(*handle))
            && before.bytes() == after.bytes()
            && let Some(details) = smaller(volume, after)
        {
            found.insert(finding(What::Smaller, handle, details));
        }
    }
    for (handle, volume) in later.iter().filter(|(handle, _)| earlier.contains_key(*handle)) {
        let up = volume.status.as_ref().is_some_and(|status| status.exists == Some(Rung::Up));
        // One that was there before is looked for at the backend, which may never have had it.
        let there =
            (up || volume.spec.source.existing.is_some()) && volume.metadata.deletion_timestamp.is_none();
        let its = list.node.is_empty() || node(volume) == list.node;
        if there && its && !listed.contains_key(handle.as_str()) {
            found.insert(finding(What::NotListed, handle, not_listed("volume", &volume.name_any())));
        }
    }
    attached(list, &listed, (before, after), found);
}

/// What a Volume says of its size, where its backend lists less.
fn smaller(listed: &BackendVolume, volume: &Volume) -> Option<String> {
    let (listed, said) = (quantity::bytes(&listed.size).ok()?, volume.bytes()?);
    let name = volume.name_any();
    (listed < said).then(|| {
        format!(
            "the backend lists it with {}, and volume/{name} says {}",
            quantity::display(listed),
            quantity::display(said)
        )
    })
}

fn not_listed(kind: &str, name: &str) -> String {
    format!("the backend did not list {kind}/{name}; look again, a list may leave something out")
}

/// A Snapshot, by what its plugin calls it. Of several volumes, each picture.
fn pictures(snapshot: &Snapshot) -> Vec<&str> {
    let status = snapshot.status.as_ref();
    let members: Vec<_> = status.iter().flat_map(|s| &s.members).map(|m| m.handle.as_str()).collect();
    if snapshot.is_group() {
        return members;
    }
    let told = status.map(|status| status.handle.as_str()).filter(|handle| !handle.is_empty());
    let handle = told.unwrap_or(&snapshot.spec.source.handle);
    if handle.is_empty() { Vec::new() } else { vec![handle] }
}

fn label(snapshot: &Snapshot) -> String {
    format!("snapshot/{} in {}", snapshot.name_any(), snapshot.namespace().unwrap_or_default())
}

fn plugin(snapshot: &Snapshot) -> String {
    let of = snapshot.status.as_ref().and_then(|status| status.of.as_ref()).map(|of| of.plugin.clone());
    of.unwrap_or_else(|| snapshot.spec.source.plugin.clone())
}

/// The only node that knows it; empty where all do.
fn home(snapshot: &Snapshot) -> &str {
    snapshot.home().unwrap_or_default()
}

/// The Secret of its calls, as `namespace/name`; empty without one.
fn secret(snapshot: &Snapshot) -> String {
    let of = snapshot.status.as_ref().and_then(|status| status.of.as_ref());
    let secret = of.and_then(|of| of.secret.as_ref());
    secret.map(|secret| format!("{}/{}", secret.namespace, secret.name)).unwrap_or_default()
}

/// Whether the backend should list it there, asked with its Secret.
fn is_missed<T>(snapshot: &Snapshot, list: &Listed<T>) -> bool {
    let status = snapshot.status.clone().unwrap_or_default();
    // What is not ready yet need not be listed.
    let there = !snapshot.is_cut() || (status.exists == Some(Rung::Up) && status.ready);
    let its = plugin(snapshot) == list.plugin && (list.node.is_empty() || home(snapshot) == list.node);
    there && its && snapshot.metadata.deletion_timestamp.is_none()
}

/// The Snapshots that were neither listed nor looked for, each with why: a plugin may list those of one account alone.
pub(crate) fn unlooked(lists: &[Listed<BackendSnapshot>], known: &Known) -> Vec<(String, String)> {
    // Several nodes may have been asked, each with its Secrets.
    let mut all: BTreeMap<(&str, &str), Listed<BackendSnapshot>> = BTreeMap::new();
    for list in lists {
        let empty = || Listed { plugin: list.plugin.clone(), node: list.node.clone(), ..Listed::default() };
        let whole = all.entry((&list.plugin, &list.node)).or_insert_with(empty);
        whole.entries.extend(list.entries.iter().cloned());
        whole.secrets.extend(list.secrets.iter().cloned());
        whole.refused.extend(list.refused.clone());
    }
    let of = |list: &Listed<BackendSnapshot>| {
        let listed: BTreeSet<&str> = list.entries.iter().map(|entry| entry.handle.as_str()).collect();
        let of_it =
            known.snapshots.iter().filter(|s| is_missed(s, list) && !list.secrets.contains(&secret(s)));
        let unseen = of_it.filter(|s| pictures(s).iter().any(|handle| !listed.contains(handle)));
        let told = |s: &Snapshot| {
            let (plugin, secret) = (&list.plugin, secret(s));
            let why = match list.refused.get(&secret) {
                Some(why) if secret.is_empty() => {
                    format!("plugin/{plugin} did not list without a Secret: {why}")
                }
                Some(why) => format!("plugin/{plugin} did not list with its Secret {secret}: {why}"),
                None if secret.is_empty() => format!("plugin/{plugin} was not asked without a Secret"),
                None => format!("plugin/{plugin} was not asked with its Secret {secret}"),
            };
            (label(s), why)
        };
        unseen.map(told).collect::<Vec<_>>()
    };
    all.values().flat_map(of).collect()
}

fn of_snapshots(
    list: &Listed<BackendSnapshot>,
    before: &Known,
    after: &Known,
    found: &mut BTreeSet<Finding>,
) {
    let mut tell = |what, subject: &str, details: String| {
        let (of, node) = (list.plugin.clone(), list.node.clone());
        found.insert(Finding { what, of, node, subject: subject.to_owned(), details });
    };
    let its = |s: &&Snapshot| list.node.is_empty() || home(s).is_empty() || home(s) == list.node;
    let ours = |known: &'_ Known| -> Vec<Snapshot> {
        let of_it = known.snapshots.iter().filter(|s| plugin(s) == list.plugin).filter(its);
        // What is another's is nothing that this one has.
        of_it.filter(|s| !s.status.as_ref().is_some_and(|s| is_of_another(&s.conditions))).cloned().collect()
    };
    let (earlier, later) = (ours(before), ours(after));
    let known: BTreeSet<&str> = earlier.iter().chain(&later).flat_map(pictures).collect();
    // Without a host nobody was ever asked for it.
    let asked_for = |s: &Snapshot| {
        let refused = |status: &SnapshotStatus| status.exists == Some(Rung::Down);
        s.status.as_ref().is_some_and(|status| status.controller.is_some() && !refused(status))
    };
    let making = |s: &&Snapshot| s.is_cut() && pictures(s).is_empty() && asked_for(s);
    let under_way: BTreeSet<String> = earlier.iter().chain(&later).filter(making).map(label).collect();
    let listed: BTreeMap<&str, &BackendSnapshot> =
        list.entries.iter().map(|snapshot| (snapshot.handle.as_str(), snapshot)).collect();
    for (handle, snapshot) in listed.iter().filter(|(handle, _)| !known.contains(*handle)) {
        let what = if under_way.is_empty() { What::UnknownSnapshot } else { What::UnclearSnapshot };
        tell(what, handle, unknown_snapshot(snapshot, &under_way));
    }
    let uids: BTreeSet<_> = earlier.iter().filter_map(ResourceExt::uid).collect();
    for snapshot in later.iter().filter(|s| s.uid().is_some_and(|uid| uids.contains(&uid))) {
        if is_missed(snapshot, list) && list.secrets.contains(&secret(snapshot)) {
            for handle in pictures(snapshot).into_iter().filter(|handle| !listed.contains_key(handle)) {
                tell(What::SnapshotNotListed, handle, not_listed("snapshot", &snapshot.name_any()));
            }
        }
    }
}

fn unknown_snapshot(snapshot: &BackendSnapshot, under_way: &BTreeSet<String>) -> String {
    let cut = snapshot.time.as_ref().map(|time| format!("cut {}", time.0.strftime("%F %T UTC")));
    let of = |what: &str, id: &str| (!id.is_empty()).then(|| format!("of {what} \"{id}\""));
    let about = [cut, of("volume", &snapshot.source), of("group", &snapshot.group)];
    let about: Vec<_> = about.into_iter().flatten().collect();
    let about = if about.is_empty() { String::new() } else { format!("{}; ", about.join(" ")) };
    let unknown = format!("{about}no Snapshot has this handle");
    if under_way.is_empty() {
        return unknown;
    }
    let names: Vec<_> = under_way.iter().map(String::as_str).collect();
    format!("{unknown}; it may be that of {}, which is being made", names.join(" or "))
}

fn unknown(volume: &BackendVolume, under_way: &BTreeSet<String>) -> String {
    let size = if volume.size.is_empty() { String::new() } else { format!("{}; ", volume.size) };
    if under_way.is_empty() {
        return format!("{size}no Volume has this handle");
    }
    let names: Vec<_> = under_way.iter().map(|name| format!("volume/{name}")).collect();
    format!("{size}no Volume has this handle; it may be that of {}, which is being made", names.join(" or "))
}

/// Where the plugin tells to which nodes its volumes are attached.
fn attached(
    list: &Listed<BackendVolume>,
    listed: &BTreeMap<&str, &BackendVolume>,
    (before, after): (&Known, &Known),
    found: &mut BTreeSet<Finding>,
) {
    let of_it = |known: &Known| -> BTreeMap<(String, String), VolumeAttachment> {
        let homes: BTreeMap<String, &str> = known.volumes.iter().map(|v| (v.name_any(), node(v))).collect();
        let home = |a: &VolumeAttachment| homes.get(&a.spec.volume).copied().unwrap_or_default();
        let its = |a: &&VolumeAttachment| list.node.is_empty() || home(a).is_empty() || home(a) == list.node;
        let all = known.attachments.iter().filter(|a| a.spec.plugin == list.plugin && a.spec.attach_required);
        let all = all.filter(its);
        all.map(|a| ((a.spec.handle.clone(), a.spec.node_id.clone()), a.clone())).collect()
    };
    let (earlier, later) = (of_it(before), of_it(after));
    let finding = |what, handle: &str, details| Finding {
        what,
        of: list.plugin.clone(),
        node: list.node.clone(),
        subject: handle.to_owned(),
        details,
    };
    for (handle, volume) in listed {
        for id in volume.node_ids.iter().flatten() {
            let key = ((*handle).to_owned(), id.clone());
            if !earlier.contains_key(&key) && !later.contains_key(&key) {
                let details =
                    format!("the backend has it attached to \"{id}\", and no VolumeAttachment does");
                found.insert(finding(What::Attached, handle, details));
            }
        }
    }
    for (key, attachment) in later.iter().filter(|(key, _)| earlier.contains_key(*key)) {
        let up = |a: &VolumeAttachment| {
            a.status.as_ref().and_then(|s| s.controller.as_ref()).is_some_and(|c| c.attached == Rung::Up)
        };
        let told = listed.get(key.0.as_str()).and_then(|volume| volume.node_ids.as_ref());
        let was = earlier.get(key).is_some_and(up);
        if was && up(attachment) && told.is_some_and(|ids| !ids.contains(&key.1)) {
            let details = format!(
                "volumeattachment/{} says that it is attached to {}, and the backend does not",
                attachment.name_any(),
                attachment.spec.node_name
            );
            found.insert(finding(What::NotAttached, &key.0, details));
        }
    }
}

#[cfg(test)]
mod tests;
