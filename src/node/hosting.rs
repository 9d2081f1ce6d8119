//! Volumes whose host this node is: created, deleted, attached, detached.
//!
//! Every controller call of a volume, its attachments' included, is made here and one at a time. The intent is the object
//! itself, which has a finalizer; whether a create was ever attempted stands in the journal too, because a later refusal
//! does not undo an earlier attempt whose outcome nobody knows (CO-GEN-32). Without a valid lease no call is started.
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource, ResourceExt};
use serde::Serialize;

use super::context::Node;
use super::journal::{Change, CreateEntry, Entry};
use super::mounts::{BLOCKED, reason_word};
use super::requests;
use crate::api::meta::{Call, Condition, Map, ReclaimPolicy, Rung, Segments, Time, Truth};
use crate::api::quantity;
use crate::api::volume::AttachStatus;
use crate::api::{Volume, VolumeAttachment, VolumeStatus};
use crate::csi::{self, Failure, Remedy, Terms, check};
use crate::plan::registry::Service;
use crate::plan::{Next, Reason, Wanted, attach, provision};

/// The host's part of a Volume's status.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct HostPart {
    #[serde(skip_serializing_if = "Option::is_none")]
    exists: Option<Rung>,
    #[serde(skip_serializing_if = "String::is_empty")]
    handle: String,
    #[serde(skip_serializing_if = "Map::is_empty")]
    context: Map,
    #[serde(skip_serializing_if = "String::is_empty")]
    capacity: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    topology: Vec<Segments>,
    calls: Vec<Call>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_attempt_time: Option<Time>,
    observed_epoch: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    provisioning: Option<Condition>,
}

impl HostPart {
    fn of(status: &VolumeStatus) -> Self {
        Self {
            exists: status.exists,
            handle: status.handle.clone(),
            context: status.context.clone(),
            capacity: status.capacity.clone(),
            topology: status.topology.clone(),
            calls: status.calls.clone(),
            next_attempt_time: None,
            observed_epoch: status.observed_epoch,
            provisioning: status.provisioning.clone(),
        }
    }
}

/// Brings one hosted volume and its attachments as far as they go.
pub async fn reconcile(node: &Arc<Node>, name: &str) -> Option<Duration> {
    if !node.synced() {
        return None;
    }
    let mut again: Option<Duration> = None;
    if let Some(volume) = node.caches.volumes.one(name) {
        again = provision_step(node, &volume).await;
    }
    for attachment in node.caches.hosted.of(name) {
        let delay = attach_step(node, &attachment).await;
        again = [again, delay].into_iter().flatten().min();
    }
    again.filter(|d| *d < BLOCKED / 2)
}

async fn provision_step(node: &Arc<Node>, volume: &Volume) -> Option<Duration> {
    let status = volume.status.clone().unwrap_or_default();
    let host = status.controller.as_ref().filter(|h| h.node_name == node.options.name)?;
    let uid = volume.uid().unwrap_or_default();
    let key = format!("vol/{uid}");
    let create = volume.spec.source.create.is_some();
    let source = if create { provision::Source::Create } else { provision::Source::Existing };
    let wanted = match (volume.meta().deletion_timestamp.is_some(), create, volume.spec.reclaim_policy) {
        (false, _, _) => provision::Wanted::Present,
        (true, true, ReclaimPolicy::Delete) => provision::Wanted::Deleted,
        (true, false, _) | (true, true, ReclaimPolicy::Retain) => provision::Wanted::Forgotten,
    };
    let seen = provision::Seen {
        exists: status.exists.unwrap_or(Rung::Unknown),
        handle_known: !status.handle.is_empty(),
        held: !status.holders.is_empty(),
    };
    let step = match provision::next(wanted, source, seen) {
        Next::Do(step) => step,
        Next::Wait(_) | Next::Converged => return None,
    };
    let retry = format!("{key}/{step:?}");
    if let Some(left) = node.retry.remaining(&retry) {
        return Some(left);
    }
    let mut part = HostPart::of(&status);
    part.observed_epoch = host.epoch;
    let outcome = if node.lease_valid() {
        carry_out(node, volume, step, &retry, &mut part, host.epoch).await
    } else {
        Err(Blocked::Wait(Reason::LeaseNotRenewed))
    };
    let delay = settle(node, &retry, &outcome);
    part.calls = node.calls.get(&key, &status.calls);
    part.provisioning = outcome.err().map(|blocked| blocked.condition(volume.meta().generation));
    if let (Some(condition), Some(before)) = (&mut part.provisioning, &status.provisioning) {
        condition.last_transition_time = before.last_transition_time;
    }
    part.next_attempt_time = delay.filter(|d| *d < BLOCKED / 2).map(|d| later(node, d));
    let written = node.write_status(volume, "host", &part).await;
    [delay, node.after_write(&format!("{key}/report"), written)].into_iter().flatten().min()
}

/// Why a step did not succeed.
enum Blocked {
    Wait(Reason),
    Call(Failure),
    Answer(String),
}

impl Blocked {
    fn condition(&self, generation: Option<i64>) -> Condition {
        let (word, sentence) = match self {
            Self::Wait(reason) => (reason.word().to_owned(), reason.to_string()),
            Self::Call(failure) => (reason_word(failure), failure.to_string()),
            Self::Answer(message) => ("UnusableAnswer".to_owned(), message.clone()),
        };
        Condition::new("Provisioned", Truth::False, &word, sentence).of_generation(generation)
    }
}

fn settle(node: &Node, step: &str, outcome: &Result<(), Blocked>) -> Option<Duration> {
    match outcome {
        Ok(()) => {
            node.retry.succeeded(step);
            None
        }
        // Woken by the lease, the plugin's registration, or (secrets) by time.
        Err(Blocked::Wait(reason @ (Reason::SecretMissing { .. } | Reason::LeaseNotRenewed))) => {
            Some(node.retry.failed(step, reason.word().to_owned()))
        }
        Err(Blocked::Wait(_)) => None,
        Err(Blocked::Call(failure)) => {
            let delay = node.retry.failed(step, failure.code_name().to_owned());
            match failure.remedy() {
                Remedy::Repeat | Remedy::RepairSecrets => Some(delay),
                Remedy::ChangeInput | Remedy::Unsupported => {
                    node.retry.block(step, BLOCKED);
                    None
                }
            }
        }
        Err(Blocked::Answer(_)) => {
            node.retry.failed(step, "answer".to_owned());
            node.retry.block(step, BLOCKED);
            None
        }
    }
}

struct Serving {
    client: csi::Plugin,
    controller: csi::ControllerCapabilities,
}

fn serving(node: &Node, plugin: &str) -> Result<Serving, Blocked> {
    match node.registry.serving(plugin, Service::Controller) {
        Some(instance) => {
            let controller = instance.progress.fingerprint.map(|f| f.controller).unwrap_or_default();
            Ok(Serving { client: instance.client, controller })
        }
        None => Err(Blocked::Wait(Reason::PluginNotReady {
            plugin: plugin.to_owned(),
            node: node.options.name.clone(),
        })),
    }
}

/// One call, measured and remembered under `key`.
async fn call<T, F>(
    node: &Node,
    (key, step, plugin): (&str, &str, &str),
    method: &'static str,
    make: impl FnOnce(Terms) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let attempt = node.retry.attempt(step);
    let started = node.now();
    let result = make(Terms { deadline: node.deadline(plugin, method), attempt }).await;
    node.calls.add(key, requests::call(method, &result, attempt, started, node.now()));
    result
}

async fn carry_out(
    node: &Arc<Node>,
    volume: &Volume,
    step: provision::Step,
    retry: &str,
    part: &mut HostPart,
    epoch: i64,
) -> Result<(), Blocked> {
    match step {
        provision::Step::Create => create(node, volume, retry, part, epoch).await,
        provision::Step::Validate => validate(node, volume, retry, part).await,
        provision::Step::Delete => delete(node, volume, retry, part).await,
    }
}

async fn create(
    node: &Arc<Node>,
    volume: &Volume,
    retry: &str,
    part: &mut HostPart,
    epoch: i64,
) -> Result<(), Blocked> {
    let Some(source) = &volume.spec.source.create else { return Ok(()) };
    let plugin = serving(node, &volume.spec.plugin)?;
    if !plugin.controller.create_delete_volume {
        let plugin = volume.spec.plugin.clone();
        return Err(Blocked::Wait(Reason::PluginLacks { plugin, capability: "CREATE_DELETE_VOLUME" }));
    }
    let uid = volume.uid().unwrap_or_default();
    let key = format!("vol/{uid}");
    let secrets = node.secrets(volume.spec.secrets.provision.as_ref()).await.map_err(Blocked::Wait)?;
    // The very first attempt of the first host: then, and only then, does a refusal say that nothing was made.
    let fresh =
        epoch == 1 && !node.journal.create_attempted(&uid) && part.exists.is_none_or(|e| e == Rung::Down);
    let attempted = Entry::Create(CreateEntry { volume: volume.name_any(), uid: uid.clone() });
    if node.journal.put(attempted).await.is_err() {
        return Err(Blocked::Wait(Reason::LeaseNotRenewed));
    }
    let request =
        requests::create(&volume.spec, source, secrets.clone(), plugin.controller.single_node_multi_writer);
    let asked = request.clone();
    let names = (key.as_str(), retry, volume.spec.plugin.as_str());
    match call(node, names, "CreateVolume", |terms| plugin.client.create_volume(request, terms)).await {
        Ok(made) => {
            if let Err(fault) = check::created(&asked, &made) {
                return undo_create(node, &plugin, names, (&made.volume_id, secrets), part, &fault).await;
            }
            part.exists = Some(Rung::Up);
            part.handle = made.volume_id;
            part.context = made.volume_context;
            part.capacity =
                if made.capacity_bytes == 0 { String::new() } else { quantity::display(made.capacity_bytes) };
            // An idempotent repetition may leave the topology out; the first answer stays (Q1).
            if !made.accessible_topology.is_empty() {
                part.topology = made.accessible_topology.into_iter().map(|t| t.segments).collect();
            }
            tracing::info!(volume = volume.name_any(), handle = part.handle, "created");
            Ok(())
        }
        Err(failure) => {
            if fresh && !failure.is_uncertain() {
                part.exists = Some(Rung::Down);
                let _ = node.journal.commit(vec![Change::Forget(format!("create/{uid}"))]).await;
            } else {
                part.exists = Some(Rung::Unknown);
            }
            Err(Blocked::Call(failure))
        }
    }
}

/// The plugin made something else than was asked: it is deleted again, and the claim says so (CO-CTRL-09).
async fn undo_create(
    node: &Arc<Node>,
    plugin: &Serving,
    names: (&str, &str, &str),
    (handle, secrets): (&str, requests::Secrets),
    part: &mut HostPart,
    fault: &check::Fault,
) -> Result<(), Blocked> {
    let request = requests::delete(handle, secrets);
    match call(node, names, "DeleteVolume", |terms| plugin.client.delete_volume(request, terms)).await {
        Ok(_) => {
            part.exists = Some(Rung::Down);
            part.handle = String::new();
            Err(Blocked::Answer(format!(
                "the plugin made a volume that does not fit and it was deleted again: {fault}"
            )))
        }
        Err(failure) => {
            part.exists = Some(Rung::Unknown);
            handle.clone_into(&mut part.handle);
            Err(Blocked::Call(failure))
        }
    }
}

async fn validate(
    node: &Arc<Node>,
    volume: &Volume,
    retry: &str,
    part: &mut HostPart,
) -> Result<(), Blocked> {
    let Some(source) = &volume.spec.source.existing else { return Ok(()) };
    let plugin = serving(node, &volume.spec.plugin)?;
    let secrets = node.secrets(volume.spec.secrets.provision.as_ref()).await.map_err(Blocked::Wait)?;
    let key = format!("vol/{}", volume.uid().unwrap_or_default());
    let request = requests::validate(
        &volume.spec,
        &source.handle,
        &source.context,
        secrets,
        plugin.controller.single_node_multi_writer,
    );
    let asked = request.clone();
    let names = (key.as_str(), retry, volume.spec.plugin.as_str());
    let answer = call(node, names, "ValidateVolumeCapabilities", |terms| {
        plugin.client.validate_volume_capabilities(request, terms)
    })
    .await;
    match answer {
        Ok(answer) => {
            if check::confirmation(&asked, &answer) == check::Confirmation::Contradicted {
                let message =
                    "the plugin confirmed other capabilities than those asked for; correct the volume's";
                return Err(Blocked::Answer(message.to_owned()));
            }
        }
        // Seen in the field although the call is mandatory: no word is no refusal (CO-CTRL-60).
        Err(failure) if failure.is_unimplemented() => {}
        Err(failure) => return Err(Blocked::Call(failure)),
    }
    part.exists = Some(Rung::Up);
    part.handle.clone_from(&source.handle);
    part.context.clone_from(&source.context);
    part.topology.clone_from(&source.topology);
    Ok(())
}

async fn delete(node: &Arc<Node>, volume: &Volume, retry: &str, part: &mut HostPart) -> Result<(), Blocked> {
    let plugin = serving(node, &volume.spec.plugin)?;
    let uid = volume.uid().unwrap_or_default();
    let key = format!("vol/{uid}");
    let secrets = node.secrets(volume.spec.secrets.provision.as_ref()).await.map_err(Blocked::Wait)?;
    let request = requests::delete(&part.handle, secrets);
    let names = (key.as_str(), retry, volume.spec.plugin.as_str());
    match call(node, names, "DeleteVolume", |terms| plugin.client.delete_volume(request, terms)).await {
        Ok(_) => {
            part.exists = Some(Rung::Down);
            tracing::info!(volume = volume.name_any(), handle = part.handle, "deleted");
            if node.journal.create_attempted(&uid) {
                let _ = node.journal.commit(vec![Change::Forget(format!("create/{uid}"))]).await;
            }
            Ok(())
        }
        Err(failure) => {
            part.exists = Some(Rung::Unknown);
            Err(Blocked::Call(failure))
        }
    }
}

/// The host's part of an attachment's status.
#[derive(Serialize)]
struct ControllerPart {
    controller: AttachStatus,
}

async fn attach_step(node: &Arc<Node>, object: &VolumeAttachment) -> Option<Duration> {
    let host = object.spec.host.as_ref().filter(|h| h.node_name == node.options.name)?;
    let key = format!("host/{}", object.uid().unwrap_or_default());
    let before = object.status.as_ref().and_then(|s| s.controller.clone()).unwrap_or_default();
    let current =
        object.status.as_ref().is_some_and(|s| s.controller.is_some()) && before.epoch == host.epoch;
    let released = object.status.as_ref().and_then(|s| s.node.as_ref()).map(|n| n.released_uid.as_str());
    let wanted = if object.meta().deletion_timestamp.is_some() { Wanted::Absent } else { Wanted::Present };
    let seen = attach::Seen {
        required: object.spec.attach_required,
        attached: if current { before.attached } else { Rung::Unknown },
        let_go: object.spec.fenced || (object.uid().as_deref() == released && released.is_some()),
        node: object.spec.node_name.clone(),
    };
    let step = match attach::next(wanted, &seen) {
        Next::Do(step) => step,
        Next::Wait(_) | Next::Converged => return None,
    };
    let retry = format!("{key}/{step:?}");
    if let Some(left) = node.retry.remaining(&retry) {
        return Some(left);
    }
    let mut status = AttachStatus { attached: seen.attached, epoch: host.epoch, ..before.clone() };
    let outcome = if node.lease_valid() {
        attach_or_detach(node, object, step, (&key, &retry), &mut status).await
    } else {
        Err(Blocked::Wait(Reason::LeaseNotRenewed))
    };
    let delay = settle(node, &retry, &outcome);
    status.calls = node.calls.get(&key, &before.calls);
    let condition = outcome.err().map(|blocked| blocked.condition(None));
    status.reason = condition.as_ref().map(|c| c.reason.clone()).unwrap_or_default();
    status.message = condition.map(|c| c.message).unwrap_or_default();
    status.next_attempt_time = delay.filter(|d| *d < BLOCKED / 2).map(|d| later(node, d));
    let written = node.write_status(object, "controller", &ControllerPart { controller: status }).await;
    [delay, node.after_write(&format!("{key}/report"), written)].into_iter().flatten().min()
}

async fn attach_or_detach(
    node: &Arc<Node>,
    object: &VolumeAttachment,
    step: attach::Step,
    (key, retry): (&str, &str),
    status: &mut AttachStatus,
) -> Result<(), Blocked> {
    let spec = &object.spec;
    let plugin = serving(node, &spec.plugin)?;
    if spec.node_id.is_empty() {
        return Err(Blocked::Answer(
            "the plugin reported no id for the node; a call without one would detach everywhere".to_owned(),
        ));
    }
    let secrets = node.secrets(spec.secrets.controller_publish.as_ref()).await.map_err(Blocked::Wait)?;
    let names = (key, retry, spec.plugin.as_str());
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
                    tracing::info!(volume = spec.volume, node = spec.node_name, "attached");
                    Ok(())
                }
                Err(failure) => {
                    status.attached = Rung::Unknown;
                    if failure.is_already_exists() {
                        // Attached with other arguments by a record that is gone: it comes down first (CO-CTRL-38).
                        let undone = call(node, names, "ControllerUnpublishVolume", |terms| {
                            plugin.client.controller_unpublish_volume(detach, terms)
                        })
                        .await;
                        if undone.is_ok() {
                            return Err(Blocked::Wait(Reason::NotAttached));
                        }
                    }
                    Err(Blocked::Call(failure))
                }
            }
        }
        attach::Step::Detach => {
            let answer = call(node, names, "ControllerUnpublishVolume", |terms| {
                plugin.client.controller_unpublish_volume(detach, terms)
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
                    status.attached = Rung::Unknown;
                    Err(Blocked::Call(failure))
                }
            }
        }
    }
}

fn later(node: &Node, delay: Duration) -> Time {
    let now = node.now().0;
    Time(jiff::SignedDuration::try_from(delay).map_or(now, |d| now.saturating_add(d).unwrap_or(now)))
}
