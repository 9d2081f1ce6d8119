//! What an instance has come to is written down, and told where it becomes well or ceases to be.
use std::time::Duration;

use kube::Resource;

use super::super::context::{Key, Node};
use super::super::events::Tone;
use super::super::registry::{Fingerprint, InstanceKey, Progress};
use super::{Fault, Watched, instance_object};
use crate::api::PluginInstance;
use crate::api::meta::{READY, Time, is_true};
use crate::plan::supervise::Process;

/// For so long the end of a connection to a process of ours may be news of the end of the process, of which more is known.
pub(super) const ENDING: Duration = Duration::from_secs(1);

/// Changes the instance's progress and wakes whoever cares.
pub(super) fn change(node: &Node, watched: &Watched, change: impl FnOnce(&mut Progress)) {
    changed(node, watched, false, change);
}

/// Nobody answers at an instance that may have been well. If we run it, that is told once it is known whether it has ended.
pub(super) fn unanswered(node: &Node, watched: &Watched, change: impl FnOnce(&mut Progress)) {
    changed(node, watched, true, change);
}

/// What an instance that may not be called any more has come to.
pub(super) fn unwell(p: &mut Progress, fault: Fault) {
    p.healthy_since = None;
    p.probed = false;
    p.fault = Some(fault);
}

fn changed(node: &Node, watched: &Watched, ending: bool, change: impl FnOnce(&mut Progress)) {
    // As it was before anybody could report the change: what is written after it says "well since" with the same time.
    let object = instance_object(node, &watched.key);
    let Some((before, after)) = node.registry.progress(&watched.key, change) else { return };
    if before == after {
        return;
    }
    node.queue.wake(Key::Instance(watched.key.clone()));
    if before.trouble() != after.trouble() {
        node.queue.wake(Key::Allocation(watched.key.allocation.clone()));
    }
    // How many volumes the node can have is for who places them: nobody is asked earlier because of it (CO-CTRL-40).
    let unlimited = |p: &Progress| p.fingerprint.clone().map(|known| Fingerprint { max_volumes: 0, ..known });
    let told = before.healthy_since != after.healthy_since || unlimited(&before) != unlimited(&after);
    if told && let Some(instance) = node.registry.get(&watched.key) {
        tracing::info!(plugin = instance.plugin, healthy = after.healthy_since.is_some(), "plugin instance");
        if before.healthy_since.is_some() != after.healthy_since.is_some() {
            // Its end may be known already, and not counted.
            let asked = is_asked(node, &watched.key);
            if ending && watched.ours && !asked && after.healthy_since.is_none() {
                node.registry.hold(&watched.key, &after);
            } else {
                tell_of_connection(node, watched, Duration::ZERO);
                tell(node, object.as_deref(), (&watched.key, &instance.plugin), &after);
            }
        }
        node.queue.wake(Key::Plugin(instance.plugin));
    }
}

/// Tells of the end of a connection that was no end of the process: [`ENDING`] says for how long that may turn out.
pub(super) fn tell_of_connection(node: &Node, watched: &Watched, age: Duration) {
    let Some((word, sentence)) = node.registry.take_held(&watched.key, age) else { return };
    if let Some(object) = instance_object(node, &watched.key) {
        node.events.tell(object.object_ref(&()), Tone::Warning, &word, "Probe", &sentence);
    }
}

/// One event per edge of health, about the PluginInstance as it was before the edge.
pub(crate) fn tell(
    node: &Node,
    object: Option<&PluginInstance>,
    (key, plugin): (&InstanceKey, &str),
    now: &Progress,
) {
    // A driver may be faster than the controllers: it is told once it can be.
    let Some(object) = object else { return node.registry.not_told(key) };
    let about = object.object_ref(&());
    let asked = is_asked(node, key);
    match &now.fault {
        // An earlier daemon told it.
        _ if now.healthy_since.is_some() && known_well_since(object) == now.healthy_since => {}
        _ if now.healthy_since.is_some() => {
            let note = format!("plugin {plugin} is healthy here");
            node.events.tell(about, Tone::Normal, "PluginHealthy", "Probe", &note);
        }
        // What was asked to end is no failure of it.
        _ if asked => {
            let note = format!("plugin {plugin} ends here, as it was asked to");
            node.events.tell(about, Tone::Normal, "PluginStopped", "Stop", &note);
        }
        Some((word, sentence)) => node.events.tell(about, Tone::Warning, word, "Probe", sentence),
        None => node.events.tell(about, Tone::Warning, "PluginUnhealthy", "Probe", "it may not be called"),
    }
}

/// Whether its process ends because it was told to.
fn is_asked(node: &Node, key: &InstanceKey) -> bool {
    matches!(node.tasks.process(&key.allocation, &key.task), Process::Stopping | Process::Stopped)
}

/// Since when an instance is well that was when its status was written last.
pub(super) fn known_well_since(object: &PluginInstance) -> Option<Time> {
    let status = object.status.as_ref()?;
    status.since.filter(|_| is_true(&status.conditions, READY))
}
