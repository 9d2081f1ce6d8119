//! ControllerExpandVolume of the volumes whose host this node is. docs/design/expansion.md.
//!
//! What is asked for stands at the server before the call, and goes from there with its final answer: whoever is host after
//! this one asks for the same (CO-CTRL-108).
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource, ResourceExt};

use super::super::context::Node;
use super::super::mounts::BLOCKED;
use super::super::requests;
use super::provision::{HostPart, NEWEST, SEEN, write};
use super::{Attempt, Blocked, announced, call, look_again, lookup, serving, settle};
use crate::api::Volume;
use crate::api::meta::Host;
use crate::api::quantity;
use crate::api::volume::{Expansion, Holder, WantedSize};
use crate::csi;
use crate::plan::expand::{self, Hosted, Step};
use crate::plan::registry::Service;
use crate::plan::{Next, Reason};

/// What is known of the volume under this epoch.
pub(super) struct Known<'a> {
    pub(super) host: &'a Host,
    /// The host's part as it was said or stands.
    pub(super) before: HostPart,
    /// Whether anything holds or may hold the volume.
    pub(super) held: bool,
    /// Who does.
    pub(super) holders: &'a [Holder],
}

/// Brings one volume to the size that it shall have. None if there is nothing to do about it.
pub(super) async fn step(
    node: &Arc<Node>,
    volume: &Volume,
    lease: &csi::Lease,
    known: Known<'_>,
) -> Option<Option<Duration>> {
    let Known { host, before, held, holders } = known;
    let expansion = before.expansion.clone().unwrap_or_default();
    let known = node.registry.serving(&volume.spec.plugin, Service::Controller);
    let when = known.and_then(|instance| instance.progress.fingerprint).map(|print| print.plugin.expansion);
    // A plugin that says neither may do both: its answer tells.
    let online = when.is_none_or(|when| when.online || !when.offline);
    let seen = Hosted {
        wanted: volume.spec.size,
        capacity: quantity::bytes(&before.capacity).unwrap_or(0),
        asked: expansion.asked,
        online,
        held,
    };
    let key = format!("vol/{}", volume.uid().unwrap_or_default());
    let mut part = HostPart { observed_epoch: host.epoch, ..before.clone() };
    let asked = match expand::hosted(&seen) {
        // What was refused is not asked for any more.
        Next::Converged if expansion.condition.is_some() => {
            part.expansion = Some(Expansion { condition: None, ..expansion });
            return Some(write(node, volume, &part).await);
        }
        Next::Converged => return None,
        Next::Wait(_) => {
            let reason = Reason::InUse { by: names(holders) };
            part.expansion.get_or_insert_default().condition =
                Some(Blocked::Wait(reason).condition_of("Expanded", volume.meta().generation));
            return Some(write(node, volume, &part).await);
        }
        Next::Do(Step::Ask(size) | Step::Expand(size)) => size,
    };
    // Another size is another question: what was said of one holds up no other.
    let retry = format!("{key}/Expand/{}", asked.required_bytes);
    if let Some(left) = node.retry.remaining(&retry) {
        return Some(Some(left));
    }
    let outcome = if Node::may_host(lease, &node.caches.volumes) {
        ask(node, volume, (&key, &retry, lease), (asked, !online), &mut part).await
    } else {
        Err(Blocked::Wait(Reason::LeaseNotRenewed))
    };
    let about = (retry.as_str(), volume.object_ref(&()), "ExpandVolume");
    let mut delay = settle(node, about, false, &outcome);
    // It cannot while it is in use: asked again when that has changed (CO-CTRL-111).
    let cannot_now =
        held && matches!(&outcome, Err(Blocked::Call(failure)) if failure.is_failed_precondition());
    if cannot_now {
        node.retry.block(&retry, BLOCKED);
        delay = None;
    }
    if matches!(outcome, Err(Blocked::Unannounced)) {
        return Some(delay);
    }
    part.calls = node.calls.get(&key, &before.calls);
    if Blocked::is_unsent(&outcome) {
        look_again(node, &volume.name_any(), &outcome);
    } else {
        let mut condition =
            outcome.err().map(|blocked| blocked.condition_of("Expanded", volume.meta().generation));
        if let Some(condition) = condition.as_mut().filter(|_| cannot_now) {
            let users = users(holders);
            condition.message.push_str("; asked again once it is let go by ");
            condition.message.push_str(if users.is_empty() { "who uses it" } else { &users });
        }
        let expansion = part.expansion.get_or_insert_default();
        expansion.condition = condition;
        part.next_attempt_time = delay.filter(|d| *d < BLOCKED / 2).map(|d| node.later(d));
    }
    Some([delay, write(node, volume, &part).await].into_iter().flatten().min())
}

/// Those who have to let go of a volume before it grows, and why.
fn names(holders: &[Holder]) -> String {
    format!("{}, and its plugin expands volumes only while nobody does", users(holders))
}

fn users(holders: &[Holder]) -> String {
    let name = |holder: &Holder| {
        format!(
            "allocation {}/{} on {}",
            holder.allocation.namespace, holder.allocation.name, holder.node_name
        )
    };
    let names: Vec<_> = holders.iter().map(name).collect();
    names.join(", ")
}

/// In which words it was attached, or else made (CO-CTRL-105).
fn attached_with(node: &Node, volume: &Volume, can: bool) -> requests::Modes {
    let attachments = node.caches.hosted.of(&volume.name_any());
    let attached = attachments.iter().find_map(|object| object.spec.newer_modes);
    let made = volume.spec.source.create.as_ref().and_then(|create| create.newer_modes);
    requests::Modes::frozen(attached.map(|frozen| frozen.controller).or(made), can)
}

/// Says what is asked for, asks, and puts into the host's part what came of it.
async fn ask(
    node: &Arc<Node>,
    volume: &Volume,
    (key, retry, lease): (&str, &str, &csi::Lease),
    (size, offline): (WantedSize, bool),
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let plugin = serving(node, &volume.spec.plugin, &part.handle)?;
    if !plugin.controller.expand_volume {
        let plugin = volume.spec.plugin.clone();
        return Err(Blocked::Wait(Reason::PluginLacks { plugin, capability: "EXPAND_VOLUME" }));
    }
    let asker = format!("volumes/{}", volume.name_any());
    let secrets =
        node.secrets(&asker, volume.spec.secrets.controller_expand.as_ref()).await.map_err(Blocked::Wait)?;
    let expansion = part.expansion.get_or_insert_default();
    expansion.asked = Some(size);
    // What was begun while nobody used it may be under way still, whatever its plugin can do by now.
    expansion.offline |= offline;
    let offline = expansion.offline;
    let shown = volume.status.as_ref().map(HostPart::of).unwrap_or_default();
    let stands = |said: &HostPart| {
        let said = said.expansion.as_ref();
        said.is_some_and(|said| said.asked == Some(size) && said.offline == offline)
    };
    // Whoever was granted it since it was seen wins.
    let said = if offline { &SEEN } else { &NEWEST };
    announced(node, (volume, said, key), (&shown, part), stands).await?;
    let newer_modes = attached_with(node, volume, plugin.controller.single_node_multi_writer);
    let request = requests::expand(&volume.spec, &part.handle, size, secrets, newer_modes);
    let (about, uid) = (&volume.object_ref(&()), volume.uid().unwrap_or_default());
    let names = Attempt { key, volume: &uid, step: retry, serving: &plugin, lease, about };
    let answer = call(node, names, "ControllerExpandVolume", |terms| {
        plugin.client.controller_expand_volume(request, terms)
    })
    .await;
    let expansion = part.expansion.get_or_insert_default();
    match answer {
        Ok(answer) => {
            (expansion.asked, expansion.offline) = (None, false);
            if answer.node_expansion_required {
                expansion.node_bytes = expansion.node_bytes.max(size.required_bytes);
            }
            part.capacity = quantity::display(answer.bytes);
            tracing::info!(volume = volume.name_any(), capacity = part.capacity, "expanded");
            Ok(())
        }
        Err(failure) => {
            if !failure.is_uncertain() && !failure.is_unsent() {
                (expansion.asked, expansion.offline) = (None, false);
            }
            let failure = lookup::of_volume(node, names, (&volume.name_any(), &part.handle), failure).await;
            let secret = volume.spec.secrets.controller_expand.as_ref();
            Err(Blocked::Call(requests::naming(failure, secret)))
        }
    }
}
