//! How much room the backend of a plugin has for volumes (GetCapacity), as the controllers ask it at one of its instances.
//!
//! Asked when the question is new, when the plugin has come anew, and after a volume was made, deleted or expanded there, once
//! a heartbeat at most; never by the clock. A key of its own in the queue: an answer that hangs holds up nothing else. Nothing is refused
//! because of an answer: placement prefers nodes by it, and CreateVolume tells the truth.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::context::{Key, Node};
use super::registry::{Instance, InstanceKey};
use super::writes::{Guard, Part};
use crate::api::PluginInstance;
use crate::api::definitions::ROOM_PART;
use crate::api::meta::Time;
use crate::api::room::{Room, RoomQuestion};
use crate::csi::{Failure, Terms, check, proto};

const ROOM: Part = Part { name: "rooms", fields: ROOM_PART, epoch: None, guard: Guard::Any };

/// The field of the status that this file writes.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct RoomField {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rooms: Vec<Room>,
}

/// When instances were asked last, and whether something has happened since.
#[derive(Debug, Default)]
pub struct Rooms(Mutex<HashMap<InstanceKey, Asked>>);

#[derive(Debug)]
struct Asked {
    at: Instant,
    questions: Vec<RoomQuestion>,
    /// Since when the instance was well.
    since: Option<Time>,
    stale: bool,
}

impl Rooms {
    /// How long to wait before an instance is asked these questions, where between two times is such a pause; none where it was
    /// asked them and nothing has happened since.
    fn due(
        &self,
        key: &InstanceKey,
        (questions, since): (&[RoomQuestion], Option<Time>),
        pause: Duration,
    ) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(key) {
            Some(asked) if asked.questions == questions && asked.since == since => {
                asked.stale.then(|| pause.saturating_sub(asked.at.elapsed()))
            }
            Some(_) | None => Some(Duration::ZERO),
        }
    }

    fn asked(&self, key: &InstanceKey, questions: Vec<RoomQuestion>, since: Option<Time>) {
        let asked = Asked { at: Instant::now(), questions, since, stale: false };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), asked);
    }

    fn forget(&self, key: &InstanceKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Notes that what an instance answered is old news; whether it was ever asked.
    fn outdated(&self, key: &InstanceKey) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = all.get_mut(key);
        asked.map(|asked| asked.stale = true).is_some()
    }
}

/// Whether an instance is asked something, or tells an answer still.
pub(super) fn concerns(instance: &PluginInstance) -> bool {
    !instance.spec.rooms.is_empty() || instance.status.as_ref().is_some_and(|status| !status.rooms.is_empty())
}

/// A call at this instance ended that takes room or gives it back, or found none.
pub(super) fn note<T>(node: &Node, key: &InstanceKey, method: &str, result: &Result<T, Failure>) {
    let moves = ["CreateVolume", "DeleteVolume", "ControllerExpandVolume"].contains(&method);
    let says = match result {
        Ok(_) => true,
        Err(failure) => failure.is_exhausted(),
    };
    if moves && says && node.rooms.outdated(key) {
        node.queue.wake(Key::Room(key.clone()));
    }
}

/// Asks what an instance is to be asked, if it is time, and tells what has changed.
pub(super) async fn answer(node: &Arc<Node>, key: &InstanceKey) -> Option<Duration> {
    let object = node.caches.instances.one(&format!("{}/{}", key.allocation, key.task))?;
    let questions = &object.spec.rooms;
    let told = object.status.as_ref().map(|status| status.rooms.clone()).unwrap_or_default();
    if questions.is_empty() {
        node.rooms.forget(key);
        return if told.is_empty() { None } else { write(node, key, &object, RoomField::default()).await };
    }
    let instance = able(node, key)?;
    // Many volumes may be made at once.
    let pause = node.options.heartbeat;
    match node.rooms.due(key, (questions, instance.progress.healthy_since), pause) {
        Some(Duration::ZERO) => {}
        Some(later) => return Some(later),
        // What could not be written before is written now.
        None => {
            let said = node.said::<RoomField>(&object.uid().unwrap_or_default(), &ROOM)?;
            return write(node, key, &object, said).await;
        }
    }
    node.rooms.asked(key, questions.clone(), instance.progress.healthy_since);
    let mut rooms = Vec::new();
    for question in questions {
        let room = ask(node, &object, &instance, question).await;
        let before = told.iter().find(|told| told.answers(question));
        rooms.push(before.filter(|before| room.is_like(before)).cloned().unwrap_or(room));
    }
    write(node, key, &object, RoomField { rooms }).await
}

async fn write(
    node: &Arc<Node>,
    key: &InstanceKey,
    object: &PluginInstance,
    field: RoomField,
) -> Option<Duration> {
    let written = node.write_status(object, &ROOM, &field).await;
    node.after_write(&format!("pi/{}/{}/rooms", key.allocation, key.task), written)
}

/// The instance, if it can be asked.
fn able(node: &Node, key: &InstanceKey) -> Option<Instance> {
    let instance = node.registry.get(key)?;
    let well = instance.admitted && !instance.draining && instance.progress.healthy_since.is_some();
    let known = instance.progress.fingerprint.as_ref();
    let can = known.is_some_and(|known| known.controller.get_capacity);
    (well && can && instance.role.controller()).then_some(instance)
}

async fn ask(node: &Node, object: &PluginInstance, instance: &Instance, question: &RoomQuestion) -> Room {
    let RoomQuestion { class, parameters, segments } = question.clone();
    let place = (!segments.is_empty()).then(|| proto::Topology { segments: segments.clone() });
    // What a claim will do with its volume nobody knows yet.
    let request =
        proto::GetCapacityRequest { volume_capabilities: Vec::new(), parameters, accessible_topology: place };
    let deadline = node.deadline(&instance.plugin, "GetCapacity");
    let terms = Terms { deadline, attempt: 1, lease: None, gate: None, alpha: node.alpha(&instance.plugin) };
    let call = instance.client.get_capacity(request, terms);
    let answer = node.events.follow(Some(object.object_ref(&())), ("GetCapacity", deadline), call).await;
    let said = answer.map_err(|failure: Failure| failure.to_string());
    let room = said.and_then(|answer| check::room(&answer).map_err(|fault| format!("GetCapacity: {fault}")));
    let time = Some(node.now());
    match room {
        Ok(room) => Room {
            class,
            segments,
            available_bytes: Some(room.available),
            largest_bytes: room.largest,
            time,
            message: String::new(),
        },
        Err(message) => Room { class, segments, time, message, ..Room::default() },
    }
}
