//! What a daemon makes of its machine when it starts: what is mounted, what runs, what was attempted.
//!
//! Nothing is torn down here: what contradicts the journal is in doubt, and what nobody knows is reported.
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, PoisonError};

use kube::ResourceExt;

use super::allocations;
use super::context::Node;
use super::daemon::Error;
use super::events::{Tone, about_allocation, about_attachment, part};
use super::journal::{
    AttachmentEntry, Change, CreateEntry, Entry, HostPublication, JournalError, PublicationEntry,
};
use super::mounts::{TARGET, allowed_host_path, hash, staging_name};
use super::runtime::RuntimeError;
use crate::api::meta::{ObjectRef, Rung};
use crate::api::{Volume, VolumeAttachment};
use crate::plan::mount::Level;
use crate::plan::supervise::Process;
use crate::sys::kernel::{MountRow, Present};
use crate::sys::path::{Place, TreePath};

/// How many leftovers are reported.
const LEFTOVERS: usize = 32;

/// A publication or a stage that the kernel does not show as it was seen is in doubt, whatever the journal says.
pub(super) async fn doubt_missing_mounts(node: &Node, table: &[MountRow]) -> Result<(), JournalError> {
    let mut mounted: HashMap<&Path, Vec<&MountRow>> = HashMap::new();
    for row in table {
        mounted.entry(&row.mount_point).or_default().push(row);
    }
    // What somebody mounted over it is told of, and left alone.
    let is_there = |path: TreePath, verified: &Present| {
        let path = node.machine.kernel.absolute(&Place::Tree(path));
        let there = mounted.get(path.as_path()).into_iter().flatten().any(|row| row.shows(verified));
        there && !planted!("staged-again")
    };
    let (mut changes, mut told) = (Vec::new(), Vec::new());
    node.journal.look(|all| {
        for entry in all.values() {
            if let Entry::Attachment(a) = entry
                && a.staged == Level::Up
                && let Some(seen) = a.seen.as_ref().filter(|seen| seen.mount.is_some())
                && let Ok(staging) = TreePath::new(["staging", a.staging.as_str()])
                && !is_there(staging, seen)
            {
                let mut doubted = a.clone();
                doubted.staged = Level::Rising;
                let note = gone(&a.volume, "staging path", "staged again before it is used");
                told.push((about_attachment(&a.name, &a.uid), note));
                changes.push(Change::Put(Entry::Attachment(doubted)));
            }
            if let Entry::Publication(p) = entry
                && p.level == Level::Up
                && let Some(verified) = p.verified.as_ref().filter(|verified| verified.mount.is_some())
                && let Ok(target) = TreePath::new(["publish", p.directory.as_str(), TARGET])
                && !is_there(target, verified)
            {
                let mut doubted = p.clone();
                doubted.level = Level::Rising;
                let volume = match all.get(&format!("attachment/{}", p.attachment)) {
                    Some(Entry::Attachment(a)) => a.volume.as_str(),
                    _ => "",
                };
                let about = part(about_allocation(&p.allocation), "volumes", &p.name);
                told.push((about, gone(volume, "target path", "published again if it is still wanted")));
                changes.push(Change::Put(Entry::Publication(doubted)));
            }
        }
    });
    if !changes.is_empty() {
        tracing::warn!(count = changes.len(), "what was mounted for volumes is not mounted any more");
    }
    node.journal.commit(changes).await?;
    for (about, note) in told {
        node.events.tell(about, Tone::Warning, "MountLost", "Check", &note);
    }
    Ok(())
}

fn gone(volume: &str, place: &str, then: &str) -> String {
    format!(
        "volume \"{volume}\": what was mounted at its {place} was gone when this daemon began; it is {then}"
    )
}

/// Mounts beneath our tree that no record owns: reported, never touched.
pub(super) fn note_leftovers(node: &Node, table: &[MountRow]) {
    let root = node.machine.kernel.absolute(&Place::Tree(TreePath::root()));
    let owned: HashSet<String> = node.journal.look(|all| {
        all.values()
            .filter_map(|entry| match entry {
                Entry::Attachment(a) => Some(format!("staging/{}", a.staging)),
                Entry::Publication(p) => Some(format!("publish/{}", p.directory)),
                Entry::Task(_) | Entry::Create(_) | Entry::Asked(_) | Entry::Store(_) => None,
            })
            .collect()
    });
    let beneath = |row: &MountRow| {
        let rest = row.mount_point.strip_prefix(&root).ok()?;
        let first_two: Vec<_> = rest.components().take(2).map(|c| c.as_os_str().to_string_lossy()).collect();
        let name = first_two.join("/");
        (!name.is_empty() && !owned.contains(&name)).then(|| row.mount_point.to_string_lossy().into_owned())
    };
    let found: Vec<_> = table.iter().filter_map(beneath).take(LEFTOVERS).collect();
    if !found.is_empty() {
        tracing::warn!(?found, "mounts that no record owns");
    }
    *node.sightings.leftovers.lock().unwrap_or_else(PoisonError::into_inner) = found;
}

/// Takes over what runs here. Fails where the journal was lost and nobody can say what runs: then nothing may be done that
/// takes it for nothing.
pub(super) async fn adopt(node: &Arc<Node>) -> Result<(), RuntimeError> {
    for entry in node.journal.tasks() {
        let uid = &entry.allocation.uid;
        if entry.plugin.is_some() {
            node.tasks.guard(uid, &entry.task);
        }
        node.adopt_task(uid, &entry.task).await;
        allocations::restore(node, &entry);
        if let Some(plugin) = &entry.plugin
            && let Err(message) = allocations::register(node, uid, &entry.task, plugin)
        {
            tracing::warn!(plugin = plugin.plugin, message, "instance not restored");
        }
    }
    // Tasks that run without a record: the journal was lost. They are known again, and end if nobody wants them.
    for runtime in node.runtimes.all() {
        if let Err(error) = runtime.sweep().await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what former tasks left was not looked for"
            );
        }
        let places = match runtime.list().await {
            Ok(places) => places,
            Err(error) if node.amnesia => return Err(error),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "tasks without a record were not looked for");
                continue;
            }
        };
        for place in places {
            if node.tasks.process(&place.allocation, &place.task) == Process::Absent {
                node.tasks.guard(&place.allocation, &place.task);
                node.adopt_task(&place.allocation, &place.task).await;
            }
        }
    }
    Ok(())
}

/// What the API says may be up here and no record knows is put into the journal as in doubt, and so its reverse is owed.
///
/// With a journal that can be trusted there is no such thing. Without one whatever was not said to be down may be up.
pub(super) async fn rebuild(node: &Node) -> Result<(), Error> {
    let mut changes = Vec::new();
    for object in node.caches.attachments.all() {
        let uid = object.uid().unwrap_or_default();
        let said = object.status.as_ref().and_then(|s| s.node.as_ref());
        if node.journal.attachment(&uid).is_some() || said.is_some_and(|s| s.released_uid == uid) {
            continue;
        }
        let spec = &object.spec;
        let doubt = said.map_or(node.amnesia, |s| node.amnesia || s.staged != Rung::Down);
        let staged = if spec.stage_required && doubt { Level::Rising } else { Level::Down };
        let publications = doubted_publications(node, &uid, &object);
        if staged == Level::Down && publications.is_empty() {
            continue;
        }
        changes.push(Change::Put(Entry::Attachment(AttachmentEntry {
            uid: uid.clone(),
            name: object.name_any(),
            volume: spec.volume.clone(),
            plugin: spec.plugin.clone(),
            handle: spec.handle.clone(),
            capability: spec.capability.clone(),
            stage_required: spec.stage_required,
            staging: staging_name(&spec.plugin, &spec.handle),
            newer_modes: None,
            modes: None,
            mount_group: None,
            staged,
            seen: None,
            expanded: said.map_or(0, |s| s.expanded_bytes),
            tried: None,
            closed: said.is_some_and(|s| s.closed),
            released: false,
        })));
        changes.extend(publications);
    }
    if !changes.is_empty() {
        tracing::warn!(count = changes.len(), "the journal did not know what may be up; it is in doubt now");
    }
    if node.amnesia {
        // A create that this node may have begun: a refusal that comes later says nothing about it.
        for volume in node.caches.volumes.all().iter().filter(|volume| may_have_begun(volume)) {
            let (volume, uid) = (volume.name_any(), volume.uid().unwrap_or_default());
            changes.push(Change::Put(Entry::Create(CreateEntry { volume, uid })));
        }
        changes.push(Change::Rebuilt);
    }
    Ok(node.journal.commit(changes).await?)
}

/// Whether the host of a volume may have begun to create it, by what it wrote itself.
fn may_have_begun(volume: &Volume) -> bool {
    let Some(status) = &volume.status else { return true };
    let epoch = status.controller.as_ref().map_or(0, |host| host.epoch);
    match status.exists {
        None => true,
        // Of what an earlier host said is not there nothing is said before a create.
        Some(Rung::Down) => status.attempting || status.observed_epoch != epoch,
        Some(Rung::Up | Rung::Unknown) => false,
    }
}

fn doubted_publications(node: &Node, uid: &str, object: &VolumeAttachment) -> Vec<Change> {
    let claim = &object.spec.claim;
    let mut changes = Vec::new();
    for allocation in node.caches.allocations.all() {
        let holder = allocation.uid().unwrap_or_default();
        if allocation.namespace().as_deref() != Some(claim.namespace.as_str()) {
            continue;
        }
        let said = allocation.status.as_ref().map(|s| s.volumes.as_slice()).unwrap_or_default();
        let listed = node.amnesia && object.spec.allocations.contains(&holder);
        for volume in allocation.spec.volumes.iter().filter(|v| v.claim_name == claim.name) {
            let up = |s: &&crate::api::allocation::VolumePublication| s.name == volume.name;
            if !listed && said.iter().find(up).is_none_or(|s| s.published == Rung::Down) {
                continue;
            }
            let host = allowed_host_path(node, &volume.host_path).ok().flatten();
            changes.push(Change::Put(Entry::Publication(PublicationEntry {
                attachment: uid.to_owned(),
                allocation: ObjectRef {
                    namespace: claim.namespace.clone(),
                    name: allocation.name_any(),
                    uid: holder.clone(),
                },
                name: volume.name.clone(),
                directory: hash(&[uid, &holder, &volume.name]),
                read_only: volume.read_only,
                level: Level::Rising,
                verified: None,
                host: host.map(|h| HostPublication {
                    allowed: h.allowed().to_owned(),
                    path: h.absolute(),
                    made: 0,
                }),
            })));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_create_may_have_begun_unless_its_host_says_otherwise_itself() {
        for (exists, attempting, observed, wanted) in [
            (json!(null), false, 0, true),
            (json!("Down"), false, 2, false),
            (json!("Down"), true, 2, true),
            (json!("Down"), false, 1, true),
            (json!("Up"), false, 1, false),
            (json!("Unknown"), true, 2, false),
        ] {
            let volume = json!({ "metadata": { "name": "v" }, "spec": { "plugin": "p", "accessModes": [], "source": {} },
                "status": { "controller": { "nodeName": "n", "epoch": 2 }, "exists": exists,
                    "attempting": attempting, "observedEpoch": observed } });
            let volume: Volume = serde_json::from_value(volume).unwrap();
            assert_eq!(may_have_begun(&volume), wanted, "{:?}", volume.status);
        }
    }
}
