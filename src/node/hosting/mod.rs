//! Volumes whose host this node is: created, deleted, attached, detached.
//!
//! Every controller call of a volume, its attachments' included, is made here and one at a time. The intent is the object
//! itself, which has a finalizer; whether a create was ever attempted stands in the journal too, because a later refusal
//! does not undo an earlier attempt whose outcome nobody knows (CO-GEN-32). Without a valid lease no call is started.
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

pub(super) mod attach;
mod doubts;
mod expand;
mod groups;
mod lookup;
mod modify;
mod provision;
mod snapshots;

pub use doubts::{Doubts, callable};

use super::context::{Key, Node};
use super::mounts::{BLOCKED, reason_word, sentence};
use super::objects::ObjectApi;
use super::registry::{Fingerprint, InstanceKey};
use super::requests;
use super::room;
use super::writes::Part;
use crate::api::Volume;
use crate::api::meta::{Condition, Host, Truth};
use crate::csi::{self, Failure, Gate, Remedy, Terms};
use crate::plan::registry::Service;
use crate::plan::{Reason, host};

/// Brings one hosted volume and its attachments as far as they go.
pub async fn reconcile(node: &Arc<Node>, name: &str) -> Option<Duration> {
    if !node.synced() {
        return None;
    }
    node.lanes.begin(name);
    let again = look_at(node, name).await;
    for volume in node.lanes.end(name) {
        node.queue.wake(Key::Host(volume));
    }
    again
}

async fn look_at(node: &Arc<Node>, name: &str) -> Option<Duration> {
    // Taken before the caches are read: under a later one another node may be host of what they showed.
    let lease = node.lease();
    let mut again: Option<Duration> = None;
    if let Some(volume) = node.caches.volumes.one(name) {
        if let Some(host) = asked_to_release(&volume) {
            let uid = volume.uid().unwrap_or_default();
            // This look is the only one at the volume, so nobody here waits for a call about it.
            let again = match node.doubts.left(&uid) {
                Some(left) => Some(left),
                None => provision::let_go(node, &volume, host).await,
            };
            if !planted!("let-go-and-on") {
                // What is owed to an earlier volume of the name is no matter of this one.
                let others = node.caches.hosted.of(name).into_iter().filter(|a| a.spec.volume_uid != uid);
                let mut next = again;
                for attachment in others {
                    next = [next, attach::step(node, &attachment, &lease).await].into_iter().flatten().min();
                }
                return [next, pictures(node, name, &lease).await].into_iter().flatten().min();
            }
        }
        again = provision::step(node, &volume, &lease).await;
    }
    for attachment in node.caches.hosted.of(name) {
        let delay = attach::step(node, &attachment, &lease).await;
        again = [again, delay].into_iter().flatten().min();
    }
    again = [again, pictures(node, name, &lease).await].into_iter().flatten().min();
    again.filter(|d| *d < BLOCKED / 2)
}

/// The snapshots that are worked on under this name.
async fn pictures(node: &Arc<Node>, name: &str, lease: &csi::Lease) -> Option<Duration> {
    let mut again: Option<Duration> = None;
    for snapshot in node.caches.snapshots.of(name) {
        let delay = snapshots::step(node, (name, &snapshot.uid().unwrap_or_default()), lease).await;
        again = [again, delay].into_iter().flatten().min();
    }
    again
}

/// The host that was asked to let go of the volume: it makes no call under its epoch any more, also once it has said so.
fn asked_to_release(volume: &Volume) -> Option<&Host> {
    let status = volume.status.as_ref()?;
    let host = status.controller.as_ref()?;
    host::rests(host, status.asked_to_release, status.released_epoch).then_some(host)
}

/// How long what was not sent waits, if nothing wakes it before.
pub(in crate::node) const UNSENT: Duration = Duration::from_secs(1);

/// Why a step did not succeed.
enum Blocked {
    Wait(Reason),
    Call(Failure),
    /// It was there with other arguments and came down; the forward call is made again.
    Undone(Failure),
    Answer(String),
    /// The server could not be told that a call is about to be made.
    Unannounced,
}

impl Blocked {
    /// Nothing was tried: what was said before stands. A word about it, with the time of the next attempt, would be a
    /// change of the object that wakes its host at once.
    fn is_unsent(outcome: &Result<(), Self>) -> bool {
        match outcome {
            Err(Self::Call(failure)) => failure.is_unsent(),
            Err(Self::Unannounced) => true,
            Ok(()) | Err(Self::Wait(_) | Self::Undone(_) | Self::Answer(_)) => false,
        }
    }

    fn condition(&self, generation: Option<i64>) -> Condition {
        self.condition_of("Provisioned", generation)
    }

    fn condition_of(&self, kind: &str, generation: Option<i64>) -> Condition {
        let (word, sentence) = match self {
            Self::Wait(reason) => (reason.word().to_owned(), reason.to_string()),
            Self::Call(failure) => (reason_word(failure), sentence(failure)),
            Self::Undone(failure) => (reason_word(failure), failure.to_string()),
            Self::Answer(message) => ("UnusableAnswer".to_owned(), message.clone()),
            Self::Unannounced => {
                ("NotWritten".to_owned(), "the server cannot be told of the call".to_owned())
            }
        };
        Condition::new(kind, Truth::False, &word, sentence).of_generation(generation)
    }
}

/// Nothing was sent: who wanted it looks again at once where another process may be asked, else when a driver has said who
/// it is.
fn look_again(node: &Node, volume: &str, outcome: &Result<(), Blocked>) {
    let key = Key::Host(volume.to_owned());
    match outcome {
        Err(Blocked::Call(failure)) if failure.is_turned_away() => node.queue.wake(key),
        Ok(())
        | Err(
            Blocked::Call(_)
            | Blocked::Wait(_)
            | Blocked::Undone(_)
            | Blocked::Answer(_)
            | Blocked::Unannounced,
        ) => node.not_sent(key),
    }
}

/// Sees to it that what has to be at the server before a call is there: `wanted`, unless what it shows or last answered `holds`
/// already. `key` is what the object is remembered under.
async fn announced<K, T>(
    node: &Node,
    (object, part, key): (&K, &Part, &str),
    said: (&T, &T),
    holds: impl Fn(&T) -> bool,
) -> Result<(), Blocked>
where
    K: ObjectApi + kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
    T: Serialize + DeserializeOwned,
{
    if planted!("asked-before-said") {
        return Ok(());
    }
    let written = node.ensure_status(object, part, said, holds).await;
    let stands = matches!(written, Ok(true));
    node.after_write(&format!("{key}/report"), written.map(drop));
    if stands { Ok(()) } else { Err(Blocked::Unannounced) }
}

/// Counts what came of a step, tells of its edges, and says when to try again if time alone may help. What is `leaving`
/// gets no other request ever, so the same one is tried again, whatever was said to it.
fn settle(
    node: &Node,
    (step, about, action): (&str, ObjectReference, &str),
    leaving: bool,
    outcome: &Result<(), Blocked>,
) -> Option<Duration> {
    match outcome {
        Ok(()) => node.events.recovered(about, step, action),
        Err(Blocked::Wait(_)) => {}
        Err(_) if Blocked::is_unsent(outcome) => {}
        Err(Blocked::Unannounced) => {}
        Err(blocked @ (Blocked::Call(_) | Blocked::Undone(_) | Blocked::Answer(_))) => {
            let condition = blocked.condition(None);
            node.events.failed(about, step, &condition.reason, action, &condition.message);
        }
    }
    match outcome {
        Ok(()) => {
            node.retry.succeeded(step);
            None
        }
        // Woken by the lease, the plugin's registration, or (Secrets and claims, which a node does not watch) by time.
        Err(Blocked::Wait(
            reason @ (Reason::SecretMissing { .. }
            | Reason::SecretUnreadable { .. }
            | Reason::InUse { .. }
            | Reason::SnapshotProcessing
            | Reason::SnapshotNotFound { .. }),
        )) => Some(node.retry.failed(step, reason.word().to_owned())),
        Err(Blocked::Wait(_)) => None,
        // The next term asks for new lists, or the driver says who it is: each wakes it, and this if neither does.
        Err(_) if Blocked::is_unsent(outcome) => Some(UNSENT),
        Err(Blocked::Call(failure)) => {
            let delay = node.retry.failed(step, failure.code_name().to_owned());
            match failure.remedy() {
                Remedy::Repeat | Remedy::RepairSecrets => Some(delay),
                Remedy::ChangeInput | Remedy::Unsupported if leaving => Some(delay),
                Remedy::ChangeInput | Remedy::Unsupported => {
                    node.retry.block(step, BLOCKED);
                    None
                }
            }
        }
        Err(Blocked::Unannounced) => Some(UNSENT),
        Err(Blocked::Undone(failure)) => Some(node.retry.failed(step, failure.code_name().to_owned())),
        Err(Blocked::Answer(_)) => {
            let delay = node.retry.failed(step, "answer".to_owned());
            if leaving {
                return Some(delay);
            }
            node.retry.block(step, BLOCKED);
            None
        }
    }
}

#[derive(Clone)]
struct Serving {
    /// The Plugin.
    name: String,
    key: InstanceKey,
    gate: Arc<dyn Gate>,
    client: csi::Plugin,
    controller: csi::ControllerCapabilities,
    /// Whether it pictures several volumes at one moment.
    groups: bool,
}

fn serving(node: &Node, plugin: &str, volume: &str) -> Result<Serving, Blocked> {
    match node.registry.serving_volume(plugin, Service::Controller, volume) {
        Some((key, instance)) => {
            let known = instance.progress.fingerprint;
            // It may have had one when the volume was begun (CO-IDEN-03).
            if known.as_ref().is_some_and(|known| !known.plugin.services.controller_service) {
                let plugin = plugin.to_owned();
                return Err(Blocked::Wait(Reason::PluginLacks { plugin, capability: "CONTROLLER_SERVICE" }));
            }
            let groups = known.as_ref().is_some_and(can_group);
            let controller = known.map(|known| known.controller).unwrap_or_default();
            let gate = node.gate(key.clone(), (plugin, Service::Controller), volume);
            Ok(Serving { name: plugin.to_owned(), key, gate, client: instance.client, controller, groups })
        }
        None => Err(Blocked::Wait(Reason::PluginNotReady {
            plugin: plugin.to_owned(),
            node: node.options.name.clone(),
        })),
    }
}

/// Whether a driver pictures several volumes at one moment (CO-GRP-01).
fn can_group(known: &Fingerprint) -> bool {
    known.plugin.services.group_controller_service && known.group.create_delete_get_volume_group_snapshot
}

/// Who makes a call about all these volumes: whoever was asked about one of them and may be at work on it still, else who
/// serves. Where two processes may be at work, each on another one, nobody can be asked about both, and nobody says when
/// that is over: it is tried again, at growing pauses.
fn serving_all(node: &Node, plugin: &str, volumes: &[&str]) -> Result<Serving, Blocked> {
    let service = Service::Controller;
    let mut chosen: Option<Serving> = None;
    for volume in volumes.iter().filter(|volume| node.registry.is_asked(plugin, service, volume)) {
        let asked = serving(node, plugin, volume)?;
        if chosen.is_some_and(|other| other.key != asked.key) {
            let by = "calls that may be under way at two processes of its driver".to_owned();
            return Err(Blocked::Wait(Reason::InUse { by }));
        }
        chosen = Some(asked);
    }
    let serving = match chosen {
        Some(asked) => asked,
        None => serving(node, plugin, volumes.first().copied().unwrap_or_default())?,
    };
    let gate = node.gate_of_all(&serving.key, (plugin, service), volumes);
    Ok(Serving { gate, ..serving })
}

/// What a call is made for.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    /// What it is remembered under.
    key: &'a str,
    /// The uid of the volume that it is about.
    volume: &'a str,
    step: &'a str,
    serving: &'a Serving,
    lease: &'a csi::Lease,
    about: &'a ObjectReference,
}

/// One call that may change something, measured and remembered; in doubt for as long as the plugin may be at work on it.
async fn call<T, F>(
    node: &Node,
    attempt: Attempt<'_>,
    method: &'static str,
    make: impl FnOnce(Terms) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let began = Instant::now();
    let result = measured(node, attempt, method, make).await;
    room::note(node, &attempt.serving.key, method, &result);
    node.doubts.ended((attempt.volume, attempt.key), began, &result);
    result
}

/// One call, measured and remembered.
async fn measured<T, F>(
    node: &Node,
    Attempt { key, step, serving, lease, about, .. }: Attempt<'_>,
    method: &'static str,
    make: impl FnOnce(Terms) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let attempt = node.retry.attempt(step);
    let started = node.now();
    let lease = Some(lease.clone());
    let deadline = node.deadline(&serving.name, method);
    let gate = Some(Arc::clone(&serving.gate));
    let answer = make(Terms { deadline, attempt, lease, gate, alpha: node.alpha(&serving.name) });
    let result = node.events.follow(Some(about.clone()), (method, deadline), answer).await;
    if !result.as_ref().is_err_and(Failure::is_unsent) {
        node.calls.add(key, requests::call(method, &result, attempt, started, node.now()));
    }
    result
}
