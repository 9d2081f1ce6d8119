//! ControllerPublish and ControllerUnpublish of the volumes whose host this node is.
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};

use super::super::context::{Key, Node};
use super::super::lanes::{Queued, Turned};
use super::super::mounts::{BLOCKED, NODE};
use super::super::requests;
use super::super::writes::{Guard, Part};
use super::{Attempt, Blocked, UNSENT, asked_to_release, call, look_again, lookup, serving, settle};
use crate::api::definitions::HOSTED_PART;
use crate::api::meta::{Map, Rung};
use crate::api::volume::{ATTACH_LIMIT, AttachStatus, VolumeAttachmentSpec};
use crate::api::{Volume, VolumeAttachment};
use crate::csi::{self, proto};
use crate::plan::widths::Turn;
use crate::plan::{Next, Reason, Wanted, attach, release};

/// A turn that comes within this time is waited for without a word.
const UNTOLD: Duration = Duration::from_secs(5);

/// The fields of an attachment's status that its host writes.
pub(in crate::node) const CONTROLLER: Part = Part {
    name: "controller",
    fields: HOSTED_PART,
    epoch: Some(&["controller", "epoch"]),
    guard: Guard::Any,
};

/// The host's part of an attachment's status.
#[derive(Serialize, Deserialize)]
pub(in crate::node) struct ControllerPart {
    pub(in crate::node) controller: AttachStatus,
}

/// Whether the Volume itself names this node with the epoch of its attachment. The host is decided on the Volume; the
/// attachment is told a moment later, and in that moment still names the host before, who may just be back. Of a Volume
/// that is gone, taken off by force, the attachment alone still tells who has to detach, and the server is asked whether it
/// does: this node may have let go since, and another one be told of it. The error is when to ask again.
async fn same_host(
    node: &Node,
    object: &VolumeAttachment,
    step: attach::Step,
    lease: &csi::Lease,
) -> Result<bool, Duration> {
    // Without a valid lease nothing is called anyway, and that is to be told.
    if !lease.is_valid() {
        return Ok(true);
    }
    if !Node::may_host(lease, &node.caches.volumes) {
        return Ok(false);
    }
    let host_of = |v: &Volume| v.status.as_ref().and_then(|s| s.controller.clone());
    let same = |v: &Volume| {
        let may = asked_to_release(v).is_none() || planted!("let-go-and-on");
        host_of(v) == object.spec.host && may
    };
    let of_attachment = |v: &Volume| v.metadata.uid.as_deref() == Some(&object.spec.volume_uid);
    if let Some(volume) = node.caches.volumes.one(&object.spec.volume).filter(|v| of_attachment(v)) {
        return Ok(same(&volume));
    }
    // It is another's, or gone.
    match node.volume(&object.spec.volume).await {
        Ok(Some(volume)) if of_attachment(&volume) => Ok(same(&volume)),
        Ok(_) if step == attach::Step::Attach => Ok(false),
        Ok(_) => match node.attachment(&object.name_any()).await {
            Ok(now) => {
                Ok(now.is_some_and(|now| now.uid() == object.uid() && now.spec.host == object.spec.host))
            }
            Err(_) => Err(UNSENT),
        },
        // It is there, and this node has no part in it.
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(false),
        Err(_) => Err(UNSENT),
    }
}

pub(super) async fn step(
    node: &Arc<Node>,
    object: &VolumeAttachment,
    lease: &csi::Lease,
) -> Option<Duration> {
    let host = object.spec.host.as_ref().filter(|h| h.node_name == node.options.name)?;
    let key = format!("host/{}", object.uid().unwrap_or_default());
    let uid = object.uid().unwrap_or_default();
    // It went while another attachment of its volume was looked at, and what was said of it is forgotten.
    if !node.caches.hosted.has(&uid) {
        return None;
    }
    let said = node.said::<ControllerPart>(&uid, &CONTROLLER).filter(|s| s.controller.epoch == host.epoch);
    let seen = object.status.as_ref().and_then(|s| s.controller.clone());
    let before = said.as_ref().map(|s| s.controller.clone()).or(seen);
    let word = before.as_ref().map(|s| (s.attached, s.epoch));
    let before = before.unwrap_or_default();
    let let_go = has_let_go(node, object, &uid);
    let going = object.meta().deletion_timestamp.is_some() || let_go;
    let wanted = if going { Wanted::Absent } else { Wanted::Present };
    let attached = release::attached(wanted == Wanted::Absent, Some(host.epoch), word);
    let seen = attach::Seen {
        required: object.spec.attach_required,
        attached: if is_gone(node, &uid, (wanted, attached)) { Rung::Unknown } else { attached },
        used: !object.spec.allocations.is_empty(),
        let_go: object.spec.fenced || let_go,
        node: object.spec.node_name.clone(),
    };
    // Once it goes, who asked for that is no news.
    let generation = object.meta().generation.filter(|_| wanted == Wanted::Present).unwrap_or_default();
    node.retry.renew(&key, &format!("{generation}/{wanted:?}/{}", host.epoch));
    let step = match attach::next(wanted, &seen) {
        Next::Do(step) => step,
        // What could not be written before is written now.
        Next::Wait(_) | Next::Converged => {
            let written = node.write_status(object, &CONTROLLER, &said?).await;
            return node.after_write(&format!("{key}/report"), written);
        }
    };
    let retry = format!("{key}/{step:?}");
    if let Some(left) = node.retry.remaining(&retry) {
        return Some(left);
    }
    match same_host(node, object, step, lease).await {
        Ok(true) => {}
        // One of the two is behind; what it shows next brings us back.
        Ok(false) => return None,
        Err(wait) => return Some(wait),
    }
    // Nothing more is known before the call has an answer.
    let mut status = AttachStatus { attached, epoch: host.epoch, ..before.clone() };
    let outcome = match in_turn(node, object, step, (&key, &retry, lease), &mut status).await {
        Ok(outcome) => outcome,
        Err(left) => return Some(left),
    };
    let about = (retry.as_str(), object.object_ref(&()), action(step));
    let delay = settle(node, about, wanted == Wanted::Absent, &outcome);
    status.calls = node.calls.get(&key, &before.calls);
    if Blocked::is_unsent(&outcome) {
        look_again(node, &object.spec.volume, &outcome);
    } else {
        node.drift.asked(&uid);
        let full = matches!(&outcome, Err(Blocked::Call(failure)) if failure.is_exhausted());
        let condition = outcome.err().map(|blocked| blocked.condition(None));
        status.reason = condition.as_ref().map(|c| c.reason.clone()).unwrap_or_default();
        if full && step == attach::Step::Attach {
            ATTACH_LIMIT.clone_into(&mut status.reason);
        }
        status.message = condition.map(|c| c.message).unwrap_or_default();
        status.next_attempt_time = delay.filter(|d| *d < BLOCKED / 2).map(|d| node.later(d));
    }
    [delay, say(node, object, &key, status).await].into_iter().flatten().min()
}

/// Writes the host's part, and says when to try again if it could not be written.
async fn say(
    node: &Arc<Node>,
    object: &VolumeAttachment,
    key: &str,
    status: AttachStatus,
) -> Option<Duration> {
    let part = ControllerPart { controller: status };
    let written = node.write_both(object, (&CONTROLLER, &part), &NODE).await;
    // What is used here, too, need not wait until the watch has shown it.
    if written.is_ok() && object.spec.node_name == node.options.name {
        node.queue.wake(Key::Mount(object.spec.volume.clone()));
    }
    node.after_write(&format!("{key}/report"), written)
}

/// Whether its plugin lists it as not attached, though it is up by all records and shall be.
fn is_gone(node: &Node, uid: &str, (wanted, attached): (Wanted, Rung)) -> bool {
    let again = node.drift.is_again(uid);
    let gone = again && wanted == Wanted::Present && attached == Rung::Up;
    if again && !gone {
        node.drift.asked(uid);
    }
    gone
}

/// Whether the node has said that it has nothing of it any more. This one need not have told the server: what it says it
/// has written down.
fn has_let_go(node: &Node, object: &VolumeAttachment, uid: &str) -> bool {
    let told = object.status.as_ref().and_then(|status| status.node.as_ref());
    let here = object.spec.node_name == node.options.name;
    told.is_some_and(|told| told.released_uid == uid && !uid.is_empty())
        || here && node.journal.attachment(uid).is_some_and(|entry| entry.released)
}

/// What came of the step, or of the wait for its turn; the error is how long that goes on without a word.
async fn in_turn(
    node: &Arc<Node>,
    object: &VolumeAttachment,
    step: attach::Step,
    names: (&str, &str, &csi::Lease),
    status: &mut AttachStatus,
) -> Result<Result<(), Blocked>, Duration> {
    if !Node::may_host(names.2, &node.caches.hosted) {
        return Ok(Err(Blocked::Wait(Reason::LeaseNotRenewed)));
    }
    let turn = Turned::of(node, object);
    let outcome = attach_or_detach(node, object, step, names, (&turn, status)).await;
    turn.end();
    match turn.queued().filter(|_| Blocked::is_unsent(&outcome)) {
        None => Ok(outcome),
        Some(queued) => match UNTOLD.checked_sub(queued.since.elapsed()).filter(|left| !left.is_zero()) {
            Some(left) => Err(left),
            None => Ok(Err(Blocked::Wait(not_in_turn(object, queued)))),
        },
    }
}

/// Why it waits, in words that stay the same while it does.
fn not_in_turn(object: &VolumeAttachment, Queued { turn, widths, .. }: Queued) -> Reason {
    let (field, most, node) = match turn {
        Turn::FullInAll => ("attaches", widths.in_all, String::new()),
        Turn::FullNode | Turn::Now => ("attachesPerNode", widths.per_node, object.spec.node_name.clone()),
    };
    Reason::NotInTurn { plugin: object.spec.plugin.clone(), field, most, node }
}

/// As an event says it.
fn action(step: attach::Step) -> &'static str {
    match step {
        attach::Step::Attach => "Attach",
        attach::Step::Detach => "Detach",
    }
}

/// Whether the node has staged or published anything under it: then a task may be using what is attached.
fn touched(node: &Node, object: &VolumeAttachment) -> bool {
    if node.journal.attachment(&object.uid().unwrap_or_default()).is_some_and(|entry| !entry.released) {
        return true;
    }
    let node = object.status.as_ref().and_then(|status| status.node.as_ref());
    node.is_some_and(|node| {
        let calls = ["NodeStageVolume", "NodePublishVolume"];
        node.staged != Rung::Down || node.calls.iter().any(|call| calls.contains(&call.method.as_str()))
    })
}

async fn secrets(
    node: &Node,
    object: &VolumeAttachment,
    step: attach::Step,
) -> Result<requests::Secrets, Reason> {
    let asker = format!("volumeattachments/{}", object.name_any());
    let secret = object.spec.secrets.controller_publish.as_ref();
    match step {
        attach::Step::Attach => node.secrets(&asker, secret).await,
        attach::Step::Detach => node.secrets_to_undo(&asker, secret).await,
    }
}

async fn attach_or_detach(
    node: &Arc<Node>,
    object: &VolumeAttachment,
    step: attach::Step,
    (key, retry, lease): (&str, &str, &csi::Lease),
    (turn, status): (&Arc<Turned>, &mut AttachStatus),
) -> Result<(), Blocked> {
    let spec = &object.spec;
    let mut plugin = serving(node, &spec.plugin, &spec.handle)?;
    plugin.gate = turn.before(plugin.gate);
    if spec.node_id.is_empty() {
        return Err(Blocked::Answer(
            "the plugin reported no id for the node; a call without one would detach everywhere".to_owned(),
        ));
    }
    let secrets = secrets(node, object, step).await.map_err(Blocked::Wait)?;
    let about = &object.object_ref(&());
    let volume = &spec.volume_uid;
    let names = Attempt { key, volume, step: retry, serving: &plugin, lease, about };
    let detach = requests::detach(spec, secrets.clone());
    match step {
        attach::Step::Attach => {
            let request = requests::attach(spec, secrets, plugin.controller);
            let answer = call(node, names, "ControllerPublishVolume", |terms| {
                plugin.client.controller_publish_volume(request, terms)
            })
            .await;
            match answer {
                Ok(reply) => {
                    status.attached = Rung::Up;
                    status.publish_context = reply.publish_context;
                    if planted!("context-lost") {
                        status.publish_context.pop_first();
                    }
                    tracing::info!(volume = spec.volume, node = spec.node_name, "attached");
                    Ok(())
                }
                Err(failure) if failure.is_unsent() => Err(Blocked::Call(failure)),
                Err(failure) => {
                    status.attached = if planted!("doubt-is-no") { Rung::Down } else { Rung::Unknown };
                    if failure.is_already_exists() && !touched(node, object) {
                        // Attached with other arguments by a record that is gone: it comes down first (CO-CTRL-38), in the
                        // same turn.
                        let undone = call(node, names, "ControllerUnpublishVolume", |terms| {
                            plugin.client.controller_unpublish_volume(detach, terms)
                        })
                        .await;
                        // What kept it from coming down is what has to end; the refusal itself would block for good.
                        undone.map_err(Blocked::Call)?;
                        status.publish_context = Map::new();
                        return Err(Blocked::Undone(failure));
                    }
                    turn.end();
                    let failure = lookup::of_volume(node, names, (&spec.volume, &spec.handle), failure).await;
                    Err(Blocked::Call(requests::naming(failure, spec.secrets.controller_publish.as_ref())))
                }
            }
        }
        attach::Step::Detach => detached(node, names, spec, detach, (turn, status)).await,
    }
}

async fn detached(
    node: &Node,
    names: Attempt<'_>,
    spec: &VolumeAttachmentSpec,
    request: proto::ControllerUnpublishVolumeRequest,
    (turn, status): (&Arc<Turned>, &mut AttachStatus),
) -> Result<(), Blocked> {
    let answer = call(node, names, "ControllerUnpublishVolume", |terms| {
        names.serving.client.controller_unpublish_volume(request, terms)
    })
    .await;
    match answer {
        Ok(_) => {
            status.attached = Rung::Down;
            status.publish_context = Map::new();
            tracing::info!(volume = spec.volume, node = spec.node_name, "detached");
            Ok(())
        }
        Err(failure) => {
            if !failure.is_unsent() {
                status.attached = Rung::Unknown;
            }
            turn.end();
            let failure = lookup::of_volume(node, names, (&spec.volume, &spec.handle), failure).await;
            Err(Blocked::Call(requests::naming(failure, spec.secrets.controller_publish.as_ref())))
        }
    }
}
