//! What is done about mounts that are not well, where who uses them asks for it (`onStaleMount`): the tasks that mount them
//! end, then the ladder of `plan::mount` comes down and goes up anew.
//!
//! What was seen decides, and is memory: a daemon that begins looks anew, and goes on with what is not well still.
use std::collections::BTreeMap;

use kube::ResourceExt;

use super::super::context::Node;
use super::unit::{gather, tenure};
use crate::api::Allocation;
use crate::api::allocation::OnStaleMount;
use crate::plan::mount::{Level, Seen, Step};
use crate::plan::registry::Service;
use crate::plan::release::Tenure;
use crate::plan::stale::Cure;
use crate::plan::supervise::Healing;

/// What the volumes of an allocation that were taken from it, or are not well, ask of the tasks that mount them, by the allocation's
/// names for them. For one that is not well nothing ends before the plugin is: until then nothing would be won.
pub fn healing(node: &Node, allocation: &Allocation) -> BTreeMap<String, Healing> {
    let uid = allocation.uid().unwrap_or_default();
    let mut found = unwell(node, allocation, &uid);
    let there = node.journal.publications_of(&uid).into_iter().filter(|entry| entry.level != Level::Down);
    let taken = there.filter(|entry| tenure(node, entry) == Tenure::Taken);
    found.extend(taken.map(|entry| (entry.name, Healing::Taken)));
    found
}

fn unwell(node: &Node, allocation: &Allocation, uid: &str) -> BTreeMap<String, Healing> {
    let asks = |name: &str| {
        let of = allocation.spec.volumes.iter().find(|volume| volume.name == name);
        of.is_some_and(|volume| volume.on_stale_mount != OnStaleMount::None)
    };
    let mut found = BTreeMap::new();
    if !allocation.spec.volumes.iter().any(|volume| asks(&volume.name)) {
        return found;
    }
    for entry in node.journal.publications_of(uid) {
        if !asks(&entry.name) || node.sightings.publication(&entry).is_none() {
            continue;
        }
        let Some(attachment) = node.journal.attachment(&entry.attachment) else { continue };
        let anew =
            gather(node, &attachment.volume).iter().filter(|unit| unit.uid == entry.attachment).any(|unit| {
                let (_, cures) = unit.cures(node);
                let mut users = unit.users.iter().zip(cures);
                users.any(|(user, cure)| cure == Cure::Anew && user.entry.as_ref() == Some(&entry))
            });
        if anew {
            let (plugin, handle) = (&attachment.plugin, &attachment.handle);
            let well = node.registry.serving_volume(plugin, Service::Node, handle).is_some();
            found.insert(entry.name, if well { Healing::End } else { Healing::Wait });
        }
    }
    found
}

/// Whether a step is made for mounts that are not well, and not for what is wanted of the volume.
pub(super) fn cures(step: Step, seen: &Seen) -> bool {
    match step {
        Step::Unpublish(i) => {
            seen.publications[i].level == Level::Up && seen.publications[i].cure == Cure::Anew
        }
        Step::Publish(i) => seen.publications[i].level == Level::Up,
        Step::Close | Step::Stage | Step::Unstage | Step::PassOn | Step::Release | Step::Expand => false,
    }
}
