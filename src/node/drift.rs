//! Attachments of this host that their backend has given up by itself: looked for in what plugins list that tell where their volumes are
//! attached (LIST_VOLUMES_PUBLISHED_NODES), and asked for again.
//!
//! Nobody tells of it, so it is looked for by the clock, at an instance that makes the calls of something attached. Nothing is done here:
//! the attachment's own handler asks, in its turn, and with the same request as before. A key of its own in the queue: a list that hangs
//! holds up nothing else.
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::{Resource, ResourceExt};
use tokio::time::Instant;

use super::context::{Key, Node};
use super::events::Tone;
use super::hosting::attach::{CONTROLLER, ControllerPart};
use super::registry::{Instance, InstanceKey};
use crate::api::VolumeAttachment;
use crate::api::meta::Rung;
use crate::csi::{Failure, Terms, check, proto};
use crate::plan::drift::{self, Listed};

/// Heartbeats from one list to the next.
const BEATS: u32 = 2;
/// Volumes asked for in one call.
const PAGE: i32 = 500;

/// What is remembered between lists.
#[derive(Debug, Default)]
pub struct Drift(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When an instance was asked last, or could be for the first time.
    asked: HashMap<InstanceKey, Instant>,
    /// By the uid of the attachment: in how many lists it was missing.
    missed: HashMap<String, u32>,
    /// Those that are to be asked for again, by uid.
    again: HashSet<String>,
}

impl Drift {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an attachment that is up by all records is to be asked for again.
    pub fn is_again(&self, uid: &str) -> bool {
        self.state().again.contains(uid)
    }

    /// It was asked for, or is not wanted any more.
    pub fn asked(&self, uid: &str) {
        self.state().again.remove(uid);
    }
}

/// Whether an instance may be asked; woken with each report of it.
pub(super) fn concerns(node: &Node, key: &InstanceKey) -> bool {
    able(node, key).is_some() && !node.drift.state().asked.contains_key(key)
}

/// Looks at what an instance lists, if it is time.
pub(super) async fn look(node: &Arc<Node>, key: &InstanceKey) -> Option<Duration> {
    let Some(instance) = able(node, key) else {
        node.drift.state().asked.remove(key);
        return None;
    };
    let pause = node.options.heartbeat * BEATS;
    let now = Instant::now();
    let left = {
        let mut state = node.drift.state();
        let at = *state.asked.entry(key.clone()).or_insert(now);
        (at + pause).saturating_duration_since(now)
    };
    if !left.is_zero() {
        return Some(left);
    }
    let attached = attached(node, &instance.plugin);
    node.drift.state().missed.retain(|uid, _| node.caches.hosted.has(uid));
    if !attached.is_empty() {
        match list(node, &instance, &attached).await {
            Ok(listed) => {
                for (attachment, listed) in attached.iter().zip(listed) {
                    note(node, attachment, listed);
                }
            }
            Err(failure) => {
                tracing::debug!(plugin = instance.plugin, %failure, "where volumes are attached is not told");
            }
        }
    }
    node.drift.state().asked.insert(key.clone(), Instant::now());
    Some(pause)
}

/// The instance, if it tells where volumes are attached.
fn able(node: &Node, key: &InstanceKey) -> Option<Instance> {
    let instance = node.registry.get(key)?;
    let well = instance.admitted && !instance.draining && instance.progress.healthy_since.is_some();
    let can = instance.progress.fingerprint.as_ref().map(|known| known.controller).unwrap_or_default();
    let tells = can.list_volumes && can.list_volumes_published_nodes && can.publish_unpublish_volume;
    (well && tells && instance.role.controller()).then_some(instance)
}

/// What this host has attached and is to stay so.
fn attached(node: &Node, plugin: &str) -> Vec<Arc<VolumeAttachment>> {
    let up = |a: &Arc<VolumeAttachment>| {
        let Some(host) = a.spec.host.as_ref().filter(|host| host.node_name == node.options.name) else {
            return false;
        };
        let said = node
            .said::<ControllerPart>(&a.uid().unwrap_or_default(), &CONTROLLER)
            .map(|said| said.controller);
        let known = said.or_else(|| a.status.as_ref()?.controller.clone());
        a.spec.plugin == plugin
            && a.spec.attach_required
            && a.meta().deletion_timestamp.is_none()
            && known.is_some_and(|known| known.attached == Rung::Up && known.epoch == host.epoch)
    };
    node.caches.hosted.all().into_iter().filter(up).collect()
}

/// What the list says of each of these.
async fn list(
    node: &Node,
    instance: &Instance,
    attached: &[Arc<VolumeAttachment>],
) -> Result<Vec<Listed>, String> {
    let can = instance.progress.fingerprint.as_ref().map(|known| known.controller).unwrap_or_default();
    let deadline = node.deadline(&instance.plugin, "ListVolumes");
    let handles: HashSet<&str> = attached.iter().map(|a| a.spec.handle.as_str()).collect();
    let mut nodes: HashMap<String, HashSet<String>> = HashMap::new();
    let mut pages = check::Pages::from("");
    loop {
        let request =
            proto::ListVolumesRequest { max_entries: PAGE, starting_token: pages.token().to_owned() };
        let alpha = node.alpha(&instance.plugin);
        let terms = Terms { deadline, attempt: 1, lease: None, gate: None, alpha };
        match instance.client.list_volumes(request, terms).await {
            Ok(answer) => {
                for entry in &answer.entries {
                    let Ok(volume) = check::listed(entry) else { continue };
                    let told = entry.status.as_ref().map(|status| status.published_node_ids.as_slice());
                    if let Some(told) = check::published_nodes(&can, told)
                        .filter(|_| handles.contains(volume.volume_id.as_str()))
                    {
                        // One that is listed twice is where either says.
                        nodes.entry(volume.volume_id.clone()).or_default().extend(told.iter().cloned());
                    }
                }
                let more = pages.took(&answer.next_token, answer.entries.len(), PAGE);
                if !more.map_err(|fault| format!("ListVolumes: {fault}"))? {
                    break;
                }
            }
            Err(failure) if failure.is_aborted() && pages.restart().is_ok() => nodes.clear(),
            Err(failure) => return Err(Failure::to_string(&failure)),
        }
    }
    let of = |a: &Arc<VolumeAttachment>| match nodes.get(&a.spec.handle) {
        None => Listed::Nothing,
        Some(told) if told.contains(&a.spec.node_id) => Listed::There,
        Some(_) => Listed::Missing,
    };
    Ok(attached.iter().map(of).collect())
}

/// Remembers what a list says of an attachment, and has it asked for again where that is due.
fn note(node: &Node, attachment: &VolumeAttachment, listed: Listed) {
    let uid = attachment.uid().unwrap_or_default();
    let again = {
        let mut state = node.drift.state();
        let (missed, again) = drift::after(state.missed.get(&uid).copied().unwrap_or_default(), listed);
        match missed {
            0 => state.missed.remove(&uid),
            missed => state.missed.insert(uid.clone(), missed),
        };
        if again {
            state.again.insert(uid);
        }
        again
    };
    if again {
        let spec = &attachment.spec;
        let note = format!(
            "plugin \"{}\" lists the volume as not attached to node \"{}\", though nobody here detached it; it is attached again",
            spec.plugin, spec.node_name
        );
        node.events.tell(attachment.object_ref(&()), Tone::Warning, "AttachmentMissing", "Attach", &note);
        node.queue.wake(Key::Host(spec.volume.clone()));
    }
}
