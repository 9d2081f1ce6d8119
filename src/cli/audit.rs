//! What backends list, beside what is known here: all that does not fit.
//!
//! A list is no view of one moment (CO-CTRL-65): what it leaves out may be there, and is told as something to look at again. What is known
//! here is read before and after the lists, so that nothing is named that was made or deleted meanwhile.
use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use serde::Serialize;

use crate::api::audit::{BackendSnapshot, BackendVolume};
use crate::api::meta::Rung;
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
            | What::Unwell => false,
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
        let of_it = of_it.filter(its);
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
        } else if !volume.abnormal.is_empty() {
            found.insert(finding(What::Unwell, handle, volume.abnormal.clone()));
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
        known.snapshots.iter().filter(|s| plugin(s) == list.plugin).filter(its).cloned().collect()
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
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A handle, and the nodes that it is listed with.
    type Entry<'a> = (&'a str, Option<&'a [&'a str]>);
    /// A list, and what is told of it.
    type Case<'a> = (&'a [Entry<'a>], &'a [(What, &'a str)]);

    fn volume(name: &str, handle: &str, exists: &str) -> Volume {
        let mut status = json!({ "controller": { "nodeName": "a", "epoch": 1 } });
        if !handle.is_empty() {
            (status["handle"], status["exists"]) = (json!(handle), json!(exists));
        }
        let value: Value = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": name },
            "spec": { "plugin": "p", "accessModes": ["SingleNodeWriter"],
                "source": { "create": { "name": name, "nodeName": "a", "requiredBytes": 1 } } }, "status": status });
        serde_json::from_value(value).unwrap()
    }

    fn attachment(handle: &str, node_id: &str, attached: &str) -> VolumeAttachment {
        let value = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
            "metadata": { "name": format!("att-{handle}") },
            "spec": { "volume": "v", "volumeUid": "u", "claim": { "namespace": "d", "name": "c", "uid": "c" },
                "nodeName": "a", "nodeId": node_id, "attachRequired": true, "stageRequired": false, "plugin": "p",
                "handle": handle, "capability": { "accessMode": "SingleNodeWriter", "volumeMode": "Filesystem" },
                "allocations": [] },
            "status": { "controller": { "attached": attached, "epoch": 1 } } });
        serde_json::from_value(value).unwrap()
    }

    fn listed(volumes: &[Entry<'_>]) -> Listed<BackendVolume> {
        let volume = |(handle, nodes): &Entry<'_>| BackendVolume {
            handle: (*handle).to_owned(),
            node_ids: nodes.map(|nodes| nodes.iter().map(|id| (*id).to_owned()).collect()),
            ..BackendVolume::default()
        };
        Listed {
            plugin: "p".into(),
            node: String::new(),
            entries: volumes.iter().map(volume).collect(),
            ..Listed::default()
        }
    }

    fn known(volumes: &[Volume], attachments: &[VolumeAttachment]) -> Known {
        Known { volumes: volumes.to_vec(), attachments: attachments.to_vec(), ..Known::default() }
    }

    fn lists(volumes: Listed<BackendVolume>) -> Lists {
        Lists { volumes: vec![volumes], snapshots: Vec::new() }
    }

    fn words(listed: Listed<BackendVolume>, before: &Known, after: &Known) -> Vec<(What, String)> {
        let all = findings(&lists(listed), before, after);
        all.into_iter().map(|found| (found.what, found.subject)).collect()
    }

    /// Obligation CO-CTRL-65.
    #[test]
    fn what_fits_is_not_told() {
        let all = known(&[volume("v", "h", "Up")], &[attachment("h", "id-a", "Up")]);
        assert_eq!(words(listed(&[("h", Some(&["id-a"])), ("h", Some(&["id-a"]))]), &all, &all), []);
        assert_eq!(words(listed(&[("h", None)]), &all, &all), [], "nothing is read out of what is not told");
        let attaching = known(&[volume("v", "h", "Up")], &[attachment("h", "id-a", "Unknown")]);
        for nodes in [[].as_slice(), &["id-a"]] {
            assert_eq!(words(listed(&[("h", Some(nodes))]), &attaching, &attaching), []);
        }
    }

    #[test]
    fn each_thing_that_does_not_fit_is_told() {
        let all = known(&[volume("v", "h", "Up")], &[attachment("h", "id-a", "Up")]);
        let cases: [Case<'_>; 5] = [
            (&[("h", None), ("x", None)], &[(What::Unknown, "x")]),
            (&[], &[(What::NotListed, "h")]),
            (&[("h", Some(&[]))], &[(What::NotAttached, "h")]),
            (&[("h", Some(&["id-a", "id-b"]))], &[(What::Attached, "h")]),
            (&[("h", Some(&["id-b"]))], &[(What::Attached, "h"), (What::NotAttached, "h")]),
        ];
        for (list, expected) in cases {
            let expected: Vec<_> =
                expected.iter().map(|(what, handle)| (*what, (*handle).to_owned())).collect();
            assert_eq!(words(listed(list), &all, &all), expected, "{list:?}");
        }
        let mut unwell = listed(&[("h", None)]);
        unwell.entries[0].abnormal = "a disk is gone".into();
        assert_eq!(words(unwell, &all, &all), [(What::Unwell, "h".to_owned())]);
    }

    #[test]
    fn what_comes_or_goes_meanwhile_is_not_told() {
        let (none, one) =
            (Known::default(), known(&[volume("v", "h", "Up")], &[attachment("h", "id-a", "Up")]));
        for (before, after) in [(&none, &one), (&one, &none)] {
            for list in [listed(&[]), listed(&[("h", Some(&["id-a"]))])] {
                assert_eq!(words(list, before, after), [], "{before:?}");
            }
        }
        let deleting = known(&[volume("v", "h", "Unknown")], &[]);
        assert_eq!(words(listed(&[]), &deleting, &deleting), [], "it may be gone already");
        let mut going = known(&[volume("v", "h", "Up")], &[]);
        going.volumes[0].metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(words(listed(&[]), &going, &going), [], "and is about to be said to be");
    }

    #[test]
    fn what_is_being_made_may_be_what_is_listed() {
        let making = known(&[volume("v", "", "")], &[]);
        let found = findings(&lists(listed(&[("x", None)])), &making, &making);
        assert_eq!(found[0].what, What::Unclear);
        for (attempting, what) in [(true, What::Unclear), (false, What::Unknown)] {
            let mut refused = making.clone();
            let status = refused.volumes[0].status.as_mut().unwrap();
            (status.exists, status.attempting) = (Some(Rung::Down), attempting);
            assert_eq!(words(listed(&[("x", None)]), &refused, &refused), [(what, "x".to_owned())]);
        }
        // What is made where another node alone knows it stands in no list of this one.
        for (node, what) in [("a", What::Unclear), ("b", What::Unknown)] {
            let list = Listed { node: node.into(), ..listed(&[("x", None)]) };
            assert_eq!(words(list, &making, &making), [(what, "x".to_owned())], "{node}");
        }
        let mut waiting = making.clone();
        waiting.volumes[0].status.as_mut().unwrap().controller = None;
        assert_eq!(words(listed(&[("x", None)]), &waiting, &waiting), [(What::Unknown, "x".to_owned())]);
        assert!(found[0].details.contains("volume/v, which is being made"), "{found:?}");
    }

    /// It may never have been there: then nothing was ever seen of it.
    #[test]
    fn a_volume_that_was_there_before_is_looked_for_in_any_case() {
        for exists in ["Up", "Unknown", "Down"] {
            let mut all = known(&[volume("v", "h", exists)], &[]);
            all.volumes[0].spec.source =
                serde_json::from_value(json!({ "existing": { "handle": "h" } })).unwrap();
            assert_eq!(words(listed(&[]), &all, &all), [(What::NotListed, "h".to_owned())], "{exists}");
            all.volumes[0].status = None;
            assert_eq!(words(listed(&[]), &all, &all).len(), 1);
            assert_eq!(words(listed(&[("h", None)]), &all, &all), []);
        }
    }

    fn snapshot(name: &str, source: Value, status: Value) -> Snapshot {
        let value = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot",
            "metadata": { "namespace": "n", "name": name, "uid": name }, "spec": { "source": source }, "status": status });
        serde_json::from_value(value).unwrap()
    }

    fn cut(name: &str, handle: &str, node: &str, more: &Value) -> Snapshot {
        let mut status = json!({ "of": { "plugin": "p", "nodeName": node }, "controller": { "nodeName": "a", "epoch": 1 },
            "handle": handle, "exists": "Up", "ready": true });
        for (key, value) in more.as_object().unwrap() {
            status[key] = value.clone();
        }
        snapshot(name, json!({ "claimName": "c" }), status)
    }

    fn told_of(handles: &[&str], node: &str, before: &[Snapshot], after: &[Snapshot]) -> Vec<(What, String)> {
        let entry = |handle: &&str| BackendSnapshot { handle: (*handle).to_owned(), ..Default::default() };
        let entries = handles.iter().map(entry).collect();
        let secrets = [String::new()].into();
        let snapshots =
            vec![Listed { plugin: "p".into(), node: node.into(), entries, secrets, ..Listed::default() }];
        let known = |snapshots: &[Snapshot]| Known { snapshots: snapshots.to_vec(), ..Known::default() };
        let all = findings(&Lists { volumes: Vec::new(), snapshots }, &known(before), &known(after));
        all.into_iter().map(|found| (found.what, found.subject)).collect()
    }

    #[test]
    fn snapshots_are_compared_likewise() {
        type Case<'a> = (&'a [&'a str], Vec<Snapshot>, &'a [(What, &'a str)]);
        let ready = cut("s", "h", "", &json!({}));
        let group = snapshot(
            "g",
            json!({ "selector": {} }),
            json!({ "of": { "plugin": "p" }, "handle": "g", "exists": "Up", "ready": true,
                "members": [{ "handle": "m1" }, { "handle": "m2" }] }),
        );
        let registered = snapshot("r", json!({ "handle": "r", "plugin": "p" }), json!({}));
        let foreign = snapshot("f", json!({ "handle": "f", "plugin": "q" }), json!({}));
        let (unknown, gone) = (What::UnknownSnapshot, What::SnapshotNotListed);
        let cases: [Case<'_>; 9] = [
            (&["h", "h"], vec![ready.clone()], &[]),
            (&["h", "x"], vec![ready.clone()], &[(unknown, "x")]),
            (&[], vec![ready], &[(gone, "h")]),
            (&["m1", "m2"], vec![group.clone()], &[]),
            (&["m1", "g"], vec![group], &[(unknown, "g"), (gone, "m2")]),
            (&["r"], vec![registered.clone()], &[]),
            (&[], vec![registered], &[(gone, "r")]),
            (&["f"], vec![foreign.clone()], &[(unknown, "f")]),
            (&[], vec![foreign], &[]),
        ];
        for (listed, known, expected) in cases {
            let expected: Vec<_> = expected.iter().map(|(what, id)| (*what, (*id).to_owned())).collect();
            assert_eq!(told_of(listed, "", &known, &known), expected, "{listed:?} {known:?}");
        }
    }

    #[test]
    fn snapshots_that_come_or_go_or_are_not_ready_are_none_that_are_missed() {
        let ready = [cut("s", "h", "a", &json!({}))];
        for (before, after) in [(&ready[..], &[][..]), (&[][..], &ready[..])] {
            assert_eq!(told_of(&["h"], "", before, after), []);
            assert_eq!(told_of(&[], "", before, after), []);
        }
        let mut going = ready.clone();
        going[0].metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(told_of(&[], "", &going, &going), []);
        assert_eq!(told_of(&["h"], "", &going, &going), [], "it is somebody's still");
        for more in [json!({ "ready": false }), json!({ "exists": "Unknown" }), json!({ "exists": "Down" })] {
            let one = [cut("s", "h", "", &more)];
            assert_eq!(told_of(&[], "", &one, &one), [], "{more}");
        }
        assert_eq!(told_of(&[], "b", &ready, &ready), [], "another node's list");
        assert_eq!(told_of(&[], "a", &ready, &ready).len(), 1);
        let making = [cut("s", "", "", &json!({ "exists": "Unknown" }))];
        assert_eq!(told_of(&["x"], "", &making, &making), [(What::UnclearSnapshot, "x".to_owned())]);
        let refused = [cut("s", "", "", &json!({ "exists": "Down" }))];
        assert_eq!(told_of(&["x"], "", &refused, &refused), [(What::UnknownSnapshot, "x".to_owned())]);
        let waiting = [cut("s", "", "", &json!({ "exists": null, "controller": null }))];
        assert_eq!(told_of(&["x"], "", &waiting, &waiting), [(What::UnknownSnapshot, "x".to_owned())]);
    }

    #[test]
    fn a_snapshot_is_missed_where_its_own_secret_was_asked_with() {
        let of = |secret: &str| {
            let mut one = cut(if secret.is_empty() { "bare" } else { secret }, "h", "", &json!({}));
            let of = one.status.as_mut().unwrap().of.as_mut().unwrap();
            of.secret = (!secret.is_empty())
                .then(|| serde_json::from_value(json!({ "namespace": "n", "name": secret })).unwrap());
            one
        };
        for (has, asked_with, missed, unlooked_for) in [
            ("s", vec!["n/s"], 1, None),
            ("s", vec!["n/other", "n/s"], 1, None),
            ("s", vec!["n/other"], 0, Some("plugin/p was not asked with its Secret n/s")),
            ("s", vec![], 0, Some("plugin/p was not asked with its Secret n/s")),
            ("", vec![""], 1, None),
            ("", vec!["n/s"], 0, Some("plugin/p was not asked without a Secret")),
        ] {
            let known = Known { snapshots: vec![of(has)], ..Known::default() };
            let mut list: Listed<BackendSnapshot> = Listed {
                plugin: "p".into(),
                secrets: asked_with.iter().map(|secret| (*secret).to_owned()).collect(),
                ..Listed::default()
            };
            let lists = |list: &Listed<_>| Lists { volumes: Vec::new(), snapshots: vec![list.clone()] };
            assert_eq!(findings(&lists(&list), &known, &known).len(), missed, "{has} {asked_with:?}");
            let told = unlooked(&[list.clone()], &known);
            assert_eq!(told.first().map(|(_, why)| why.as_str()), unlooked_for, "{has} {asked_with:?}");
            // What is listed all the same fits.
            list.entries = vec![BackendSnapshot { handle: "h".into(), ..Default::default() }];
            assert_eq!(findings(&lists(&list), &known, &known), []);
            assert_eq!(unlooked(&[list], &known), []);
        }
    }

    #[test]
    fn it_is_told_what_a_snapshot_is_of() {
        let entry: BackendSnapshot =
            serde_json::from_value(json!({ "handle": "x", "source": "vol", "group": "g",
            "time": "2026-01-02T03:04:05Z" }))
            .unwrap();
        let all = "cut 2026-01-02 03:04:05 UTC of volume \"vol\" of group \"g\"; no Snapshot has this handle";
        assert_eq!(unknown_snapshot(&entry, &BTreeSet::new()), all);
        let bare = BackendSnapshot { handle: "x".into(), ..Default::default() };
        assert_eq!(unknown_snapshot(&bare, &BTreeSet::new()), "no Snapshot has this handle");
        let making = BTreeSet::from(["snapshot/s in n".to_owned()]);
        let told = unknown_snapshot(&bare, &making);
        assert!(told.ends_with("it may be that of snapshot/s in n, which is being made"), "{told}");
    }

    #[test]
    fn what_one_node_knows_alone_is_another_volume_on_another() {
        let all = known(&[volume("v", "h", "Up")], &[]);
        for (node, expected) in [("a", vec![]), ("b", vec![(What::Unknown, "h".to_owned())]), ("", vec![])] {
            let list = Listed { node: node.into(), ..listed(&[("h", None)]) };
            assert_eq!(words(list, &all, &all), expected, "{node}");
        }
        let ready = [cut("s", "h", "a", &json!({}))];
        for (node, expected) in [("a", vec![]), ("b", vec![(What::UnknownSnapshot, "h".to_owned())])] {
            assert_eq!(told_of(&["h"], node, &ready, &ready), expected, "{node}");
        }
    }

    #[test]
    fn a_list_of_one_node_says_nothing_of_anothers() {
        let all = known(&[volume("v", "h", "Up")], &[]);
        for (node, expected) in [("a", 1), ("b", 0)] {
            let list = Listed { node: node.into(), ..listed(&[]) };
            assert_eq!(words(list, &all, &all).len(), expected, "{node}");
        }
    }

    #[test]
    fn what_is_told_stood_there_twice() {
        let found = |what, subject: &str| Finding {
            what,
            of: "p".into(),
            node: String::new(),
            subject: subject.into(),
            details: String::new(),
        };
        let first =
            [found(What::Unclear, "x"), found(What::UnknownSnapshot, "s"), found(What::NotListed, "h")];
        let second =
            [found(What::Unknown, "x"), found(What::UnknownSnapshot, "t"), found(What::NotListed, "h")];
        let both: BTreeSet<Whose> = [false, true].map(|of| ("p".to_owned(), String::new(), of)).into();
        let volumes: BTreeSet<Whose> = [("p".to_owned(), String::new(), false)].into();
        let of = |had: &BTreeSet<Whose>, has: &BTreeSet<Whose>| {
            let of = |found: &[Finding]| found.to_vec();
            let all = confirmed((of(&first), had), (of(&second), has));
            all.into_iter().map(|found| (found.what, found.subject)).collect::<Vec<_>>()
        };
        let word = |what, subject: &str| (what, subject.to_owned());
        let (x, h) = (word(What::Unknown, "x"), word(What::NotListed, "h"));
        assert_eq!(of(&both, &both), [x.clone(), h.clone()]);
        // What could be asked for once only is told as it was then.
        let (s, t) = (word(What::UnknownSnapshot, "s"), word(What::UnknownSnapshot, "t"));
        assert_eq!(of(&both, &volumes), [x.clone(), h.clone(), s]);
        assert_eq!(of(&volumes, &both), [x, h, t]);
    }

    #[test]
    fn nodes_that_have_volumes_alone_are_known() {
        let mut all = known(&[volume("v", "h", "Up")], &[]);
        all.snapshots = vec![cut("s", "h", "b", &json!({})), cut("t", "i", "", &json!({}))];
        assert_eq!(all.homes("p"), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert_eq!(all.homes("q"), BTreeSet::new());
    }

    #[test]
    fn mounts_without_a_record_are_told_with_their_node() {
        let agent = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "NodeAgent", "metadata": { "name": "a" },
            "spec": {}, "status": { "leftovers": ["/t/staging/x"] } });
        let all = Known { agents: vec![serde_json::from_value(agent).unwrap()], ..Known::default() };
        let found = findings(&Lists::default(), &all, &all);
        assert_eq!((found[0].what, &*found[0].of, &*found[0].subject), (What::Mount, "a", "/t/staging/x"));
    }
}
