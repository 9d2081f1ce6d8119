//! ControllerModifyVolume of the volumes whose host this node is. docs/volumes.md.
//!
//! What is asked for stands at the server before the call, and goes from there with its final answer: whoever is host after
//! this one asks for the same (CO-CTRL-77).
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource, ResourceExt};

use super::super::context::Node;
use super::super::mounts::BLOCKED;
use super::super::requests;
use super::expand::Known;
use super::provision::{HOST, HostPart, write};
use super::{Attempt, Blocked, announced, call, look_again, lookup, serving, settle};
use crate::api::Volume;
use crate::api::attributes::{Attributes, MODIFIED, Modification};
use crate::csi;
use crate::plan::modify::{self, Ended, Hosted, Step};
use crate::plan::{Next, Reason};

/// What came of a look at the attributes of a volume.
pub(super) enum Looked {
    /// Nothing is to be done about them, or not before something changes.
    Nothing,
    /// Something is, after so long.
    Later(Duration),
    /// It waits, and says so in this part; when to look again, if nothing wakes it before.
    Waits(Option<Duration>, Box<HostPart>),
    /// Something was done; when to look again, if nothing wakes it before.
    Done(Option<Duration>),
}

/// Gives one volume the attributes that it shall have.
pub(super) async fn step(node: &Arc<Node>, volume: &Volume, lease: &csi::Lease, known: &Known<'_>) -> Looked {
    let Known { host, before, .. } = known;
    let modification = before.modification.clone().unwrap_or_default();
    let seen = Hosted {
        wanted: volume.spec.attributes.as_ref(),
        has: modification.sure(),
        asked: modification.asked.as_ref(),
    };
    let key = format!("vol/{}", volume.uid().unwrap_or_default());
    let mut part = HostPart { observed_epoch: host.epoch, ..before.clone() };
    let asked = match modify::hosted(&seen) {
        // What was refused is not asked for any more.
        Next::Converged if modification.condition.is_some() => {
            part.modification = Some(Modification { condition: None, ..modification });
            return Looked::Done(write(node, volume, &part).await);
        }
        Next::Converged | Next::Wait(_) => return Looked::Nothing,
        Next::Do(Step::Ask(attributes) | Step::Modify(attributes)) => attributes.clone(),
    };
    // Another class is another question: what was said of one holds up no other.
    let retry = format!("{key}/Modify/{}", asked.class_name);
    if let Some(left) = node.retry.remaining(&retry) {
        return if left < BLOCKED / 2 { Looked::Later(left) } else { Looked::Nothing };
    }
    let outcome = if Node::may_host(lease, &node.caches.volumes) {
        ask(node, volume, (&key, &retry, lease), asked, &mut part).await
    } else {
        Err(Blocked::Wait(Reason::LeaseNotRenewed))
    };
    let waits = matches!(outcome, Err(Blocked::Wait(_)));
    let about = (retry.as_str(), volume.object_ref(&()), "ModifyVolume");
    let delay = settle(node, about, false, &outcome);
    if matches!(outcome, Err(Blocked::Unannounced)) {
        return Looked::Done(delay);
    }
    part.calls = node.calls.get(&key, &before.calls);
    if Blocked::is_unsent(&outcome) {
        look_again(node, &volume.name_any(), &outcome);
    } else {
        let condition = outcome.err().map(|blocked| blocked.condition_of(MODIFIED, volume.meta().generation));
        part.modification.get_or_insert_default().condition = condition;
        part.next_attempt_time = delay.filter(|d| *d < BLOCKED / 2).map(|d| node.later(d));
    }
    let again = [delay, write(node, volume, &part).await].into_iter().flatten().min();
    if waits { Looked::Waits(again, Box::new(part)) } else { Looked::Done(again) }
}

/// What stands at the server as being asked for, as far as is known.
fn asked_by(volume: &Volume, node: &Node) -> Option<Attributes> {
    let answered = node.answered::<_, HostPart>(volume, &HOST);
    let shown = || volume.status.as_ref()?.modification.clone();
    answered.map_or_else(shown, |part| part.modification)?.asked
}

/// Says what is asked for, asks, and puts into the host's part what came of it.
async fn ask(
    node: &Arc<Node>,
    volume: &Volume,
    (key, retry, lease): (&str, &str, &csi::Lease),
    attributes: Attributes,
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let plugin = serving(node, &volume.spec.plugin, &part.handle)?;
    if !plugin.controller.modify_volume {
        let plugin = volume.spec.plugin.clone();
        return Err(Blocked::Wait(Reason::PluginLacks { plugin, capability: "MODIFY_VOLUME" }));
    }
    let asker = format!("volumes/{}", volume.name_any());
    let secrets =
        node.secrets(&asker, volume.spec.secrets.controller_modify.as_ref()).await.map_err(Blocked::Wait)?;
    let modification = part.modification.get_or_insert_default();
    // An earlier attempt may have done it.
    modification.doubted |= asked_by(volume, node) == Some(attributes.clone());
    modification.asked = Some(attributes.clone());
    let shown = volume.status.as_ref().map(HostPart::of).unwrap_or_default();
    let asked = |said: &HostPart| {
        said.modification.as_ref().is_some_and(|change| change.asked.as_ref() == Some(&attributes))
    };
    announced(node, (volume, &HOST, key), (&shown, part), asked).await?;
    let request = requests::modify(&part.handle, &attributes, secrets);
    let (about, uid) = (&volume.object_ref(&()), volume.uid().unwrap_or_default());
    let names = Attempt { key, volume: &uid, step: retry, serving: &plugin, lease, about };
    let answer = call(node, names, "ControllerModifyVolume", |terms| {
        plugin.client.controller_modify_volume(request, terms)
    })
    .await;
    let modification = part.modification.get_or_insert_default();
    match answer {
        Ok(_) => {
            tracing::info!(volume = volume.name_any(), class = attributes.class_name, "modified");
            *modification = Modification { has: Some(attributes), ..Modification::default() };
            Ok(())
        }
        Err(failure) => {
            let ended = match (failure.is_unsent(), failure.is_uncertain()) {
                (true, _) => Ended::Unsent,
                (false, true) => Ended::InDoubt,
                (false, false) => Ended::Refused { nothing_applied: failure.is_invalid_argument() },
            };
            let (again, doubted) = modify::after(modification.doubted, ended);
            modification.doubted = doubted;
            modification.asked = modification.asked.take().filter(|_| again);
            let failure = lookup::of_volume(node, names, (&volume.name_any(), &part.handle), failure).await;
            let secret = volume.spec.secrets.controller_modify.as_ref();
            Err(Blocked::Call(requests::naming(failure, secret)))
        }
    }
}
