//! What an allocation's status says of its tasks and volumes.
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::super::caches::full_name;
use super::super::context::Node;
use super::super::journal::PublicationEntry;
use super::super::mounts::health::publication_trouble;
use super::super::mounts::{TARGET, has_to_stop, is_going, stopping, tenure, user_note};
use super::super::tasks::exit_code;
use super::super::writes::{Guard, Part};
use super::prepare::{self, note};
use super::serving;

use super::start::{FAILED_STARTS, restarts};
use crate::api::allocation::{
    AllocationPhase, AllocationStatus, AllocationVolume, EVICTED, RestartPolicy, Task, TaskState, TaskStatus,
    VolumePublication,
};
use crate::api::definitions::ALLOCATION_PART;
use crate::api::meta::{AccessMode, Condition, READY, Rung, Time, Truth, set_condition};
use crate::api::volume::ATTACH_LIMIT;
use crate::api::{Allocation, VolumeAttachment};
use crate::plan::Reason;
use crate::plan::mount::Level;
use crate::plan::release::Tenure;
use crate::plan::stale::{Mount, Users};
use crate::plan::supervise::{self, Process, Wanted};
use crate::plan::untold;
use crate::sys::path::{Place, TreePath};

/// The fields of an allocation's status that its node writes.
pub(super) const NODE: Part = Part { name: "node", fields: ALLOCATION_PART, epoch: None, guard: Guard::Any };
/// The same for the word that it has left, as it was told to: late, after the allocation was bound here again and told to
/// leave again, it would pass for the second answer.
pub(super) const FAREWELL: Part = Part { guard: Guard::Seen, ..NODE };

/// The word of a volume that another allocation has.
const HELD: &str = "HeldElsewhere";

/// How often it is told how many of several volumes are up, or down, so far: each time all of them are written.
const PROGRESS: Duration = Duration::from_millis(200);
/// What takes less than this on the way down is not told.
const MOMENT: Duration = Duration::from_millis(300);

/// The node's part of an allocation's status.
#[derive(Serialize, Deserialize)]
pub(super) struct NodePart {
    phase: AllocationPhase,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    released: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    volumes: Vec<VolumePublication>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tasks: Vec<TaskStatus>,
    conditions: Vec<Condition>,
}

/// The conditions of such a part.
#[derive(Deserialize)]
struct ConditionsPart {
    conditions: Vec<Condition>,
}

impl NodePart {
    /// It says that the allocation has left, as it was told to.
    pub(super) fn is_farewell(&self) -> bool {
        self.conditions.iter().any(|c| c.kind == READY && c.reason == EVICTED)
    }

    /// Adds to an allocation that is ready what of its manifest is not in force yet.
    pub(super) fn note(&mut self, held: Option<String>) {
        let ready = self.conditions.iter_mut().find(|c| c.kind == READY && c.status == Truth::True);
        if let Some((condition, held)) = ready.zip(held) {
            condition.message = held;
        }
    }

    /// It waits for its volumes, as placement has said, and there is nothing to add yet: not worth a write.
    pub(super) fn nothing_begun(&self, allocation: &Allocation) -> bool {
        const UNDER_WAY: [Reason; 2] = [Reason::VolumesNotReady, Reason::NotAttached];
        let nothing = AllocationStatus::default();
        let before = allocation.status.as_ref().unwrap_or(&nothing);
        // Placement said who has the volume. Once it is here, that is over.
        let held = before.conditions.iter().any(|c| c.kind == READY && c.reason == HELD);
        if held && self.volumes.iter().any(|v| !v.volume.is_empty()) {
            return false;
        }
        let unsaid = before.phase == Some(self.phase) && before.volumes.is_empty() && before.tasks.is_empty();
        let why = self.conditions.iter().find(|c| c.kind == "VolumesReady");
        self.phase == AllocationPhase::WaitingVolumes
            && unsaid
            && self.volumes.iter().all(|v| v.published == Rung::Down)
            && self.tasks.iter().all(|t| t.state == TaskState::Pending && t.events.is_empty())
            && why.is_some_and(|c| UNDER_WAY.iter().any(|reason| reason.word() == c.reason))
    }
}

/// How long to wait with a word that says nothing new but that one more of the volumes is up, or down.
pub(super) fn only_progress(node: &Node, allocation: &Allocation, told: &NodePart) -> Option<Duration> {
    let since = node.written_at(allocation, &NODE)?.elapsed();
    let nothing = AllocationStatus::default();
    let before = allocation.status.as_ref().unwrap_or(&nothing);
    let same = match node.answered::<_, NodePart>(allocation, &NODE) {
        Some(last) => {
            (last.phase, &last.tasks, &last.conditions) == (told.phase, &told.tasks, &told.conditions)
        }
        None => {
            (before.phase, &before.tasks, &before.conditions)
                == (Some(told.phase), &told.tasks, &told.conditions)
        }
    };
    let under_way = matches!(told.phase, AllocationPhase::WaitingVolumes | AllocationPhase::Stopping);
    PROGRESS.checked_sub(since).filter(|left| under_way && same && !left.is_zero())
}

/// How long to wait with the word that it is on its way down: mostly it is down before anybody could read that.
pub(super) fn only_a_moment(node: &Node, allocation: &Allocation, told: &NodePart) -> Option<Duration> {
    let uid = allocation.uid().unwrap_or_default();
    let last = node.answered::<_, NodePart>(allocation, &NODE).map(|last| last.phase);
    let last = last.or_else(|| allocation.status.as_ref()?.phase);
    let volumes = told.conditions.iter().find(|condition| condition.kind == "VolumesReady");
    let volumes = volumes.map(|told| (told.status == Truth::True, told.reason.as_str()));
    let mut untold = node.untold.lock().unwrap_or_else(PoisonError::into_inner);
    if untold::is_passing(told.phase, last, volumes) {
        return untold.left(&uid, Instant::now(), MOMENT);
    }
    untold.settled(&uid);
    None
}

/// How long to wait with the word that one that is being deleted has ended: its attachments go, and when they are gone it goes
/// with that word.
pub(super) fn only_attached(node: &Node, allocation: &Allocation, told: &NodePart) -> Option<Duration> {
    let uid = allocation.uid().unwrap_or_default();
    let last = node.answered::<_, NodePart>(allocation, &NODE).map(|last| last.phase);
    let last = last.or_else(|| allocation.status.as_ref()?.phase);
    let attachments = node.caches.attachments.of(&format!("user:{uid}"));
    let leaving = allocation.meta().deletion_timestamp.is_some() && !serving::serves(allocation);
    let mut untold = node.untold.lock().unwrap_or_else(PoisonError::into_inner);
    let key = format!("{uid}/released");
    let going = !attachments.is_empty() && attachments.iter().all(|a| is_going(node, a));
    if leaving && going && untold::is_ended(told.phase, last) {
        return untold.left(&key, Instant::now(), MOMENT);
    }
    untold.settled(&key);
    None
}

/// Whether one that is being deleted has ended and no attachment here lets it in. One that serves goes when its plugin's
/// controller says so.
fn is_released(node: &Node, allocation: &Allocation, told: &NodePart) -> bool {
    let uid = allocation.uid().unwrap_or_default();
    let said = AllocationStatus {
        phase: Some(told.phase),
        volumes: told.volumes.clone(),
        tasks: told.tasks.clone(),
        ..AllocationStatus::default()
    };
    allocation.meta().deletion_timestamp.is_some()
        && !serving::serves(allocation)
        && said.ended()
        && node.caches.attachments.one(&format!("user:{uid}")).is_none()
}

pub(super) fn status(node: &Node, allocation: &Allocation, wanted: Wanted) -> NodePart {
    let uid = allocation.uid().unwrap_or_default();
    let nothing = AllocationStatus::default();
    let before = allocation.status.as_ref().unwrap_or(&nothing);
    let published = node.journal.publications_of(&uid);
    let mut notes = Vec::new();
    let mut volumes: Vec<_> = allocation
        .spec
        .volumes
        .iter()
        .map(|v| volume_status(node, allocation, v, &published, &mut notes))
        .collect();
    let ready = volumes.iter().all(|v| v.published == Rung::Up);
    // Only now: what was published stays so for the tasks, whatever became of its mount.
    let troubles = troubles(node, allocation, &mut volumes, &published);
    let tasks: Vec<_> = allocation
        .spec
        .tasks
        .iter()
        .map(|t| {
            let known = before.tasks.iter().find(|k| k.name == t.name);
            task_status(node, &uid, t, (wanted, known))
        })
        .collect();
    let processes: Vec<_> =
        allocation.spec.tasks.iter().map(|t| (node.tasks.process(&uid, &t.name), t.restarts())).collect();
    let over = before.phase.filter(|p| matches!(p, AllocationPhase::Complete | AllocationPhase::Failed));
    let phase = match over {
        // What ended stays ended; its volumes are released all the same.
        Some(phase) => phase,
        None => supervise::phase(wanted, ready, published.is_empty(), &processes),
    };
    let phase = match (phase, supervise::wanted(false, &processes)) {
        (AllocationPhase::Stopping | AllocationPhase::Stopped, Wanted::Stopped)
            if allocation.meta().deletion_timestamp.is_none()
                && !has_to_stop(allocation)
                && !node.stopped() =>
        {
            AllocationPhase::Failed
        }
        (phase, _) => phase,
    };
    // Of what this node wrote itself the cache may know nothing yet: a condition that has not changed since keeps its time.
    let mut conditions = node
        .answered::<_, ConditionsPart>(allocation, &NODE)
        .map_or_else(|| before.conditions.clone(), |written| written.conditions);
    let generation = allocation.meta().generation;
    notes.extend(obstacle(before, &volumes));
    let let_go = let_go(node, phase, &published);
    let may_begin = ready && let_go.is_none();
    notes.extend(let_go);
    let (word, message) = notes.into_iter().next().unwrap_or_default();
    let volumes_ready = volumes_ready(may_begin, (&word, &message), troubles.first());
    set_condition(&mut conditions, volumes_ready.of_generation(generation), node.now());
    if !spoken_for(node, phase, &conditions) {
        let why = match phase {
            AllocationPhase::Stopped if before.evicted => {
                (EVICTED.to_owned(), "it was told to leave its node, and has".to_owned())
            }
            AllocationPhase::Running if let Some(trouble) = troubles.iter().find(|trouble| trouble.hurts) => {
                (trouble.word.to_owned(), trouble.message.clone())
            }
            _ => {
                let failed = supervise::culprit(&processes).and_then(|at| tasks.get(at));
                ready_message(phase, (&word, &message), waits(node, allocation), (&tasks, failed))
            }
        };
        // A task that is on its way up again is not ready, though its allocation runs.
        let truth = if matches!(why.0.as_str(), "Running" | "Complete") { Truth::True } else { Truth::False };
        let ready = Condition::new(READY, truth, &why.0, why.1).of_generation(generation);
        set_condition(&mut conditions, ready, node.now());
    }
    let mut told = NodePart { phase, released: false, volumes, tasks, conditions };
    told.released = is_released(node, allocation, &told);
    told
}

/// Without an attachment nothing is known here: the controllers say why there is none.
fn obstacle(before: &AllocationStatus, volumes: &[VolumePublication]) -> Option<(String, String)> {
    let unattached = !volumes.is_empty() && volumes.iter().all(|v| v.volume.is_empty());
    let obstacle = before.obstacle.as_ref().filter(|_| unattached);
    obstacle.map(|obstacle| (obstacle.reason.clone(), obstacle.message.clone()))
}

/// Why tasks that are to run wait, though all is published: they are not begun on what is being let go.
fn let_go(node: &Node, phase: AllocationPhase, published: &[PublicationEntry]) -> Option<(String, String)> {
    let begins = matches!(phase, AllocationPhase::Starting | AllocationPhase::Restarting);
    let goes = begins && published.iter().any(|entry| tenure(node, entry) != Tenure::Stands);
    let reason = Reason::NotReleased { node: node.options.name.clone() };
    goes.then(|| (reason.word().to_owned(), reason.to_string()))
}

fn volumes_ready(published: bool, (word, message): (&str, &str), trouble: Option<&Trouble>) -> Condition {
    let waits = Reason::VolumesNotReady;
    let (truth, word, message) = match (published, trouble) {
        (true, None) => (Truth::True, "Published", ""),
        (true, Some(trouble)) => (Truth::False, trouble.word, trouble.message.as_str()),
        (false, _) if word.is_empty() => (Truth::False, waits.word(), &*waits.to_string()),
        (false, _) => (Truth::False, word, message),
    };
    Condition::new("VolumesReady", truth, word, message)
}

/// A volume whose mounts are not well any more.
struct Trouble {
    word: &'static str,
    message: String,
    /// Whether who uses the volume now is hurt by it.
    hurts: bool,
}

/// What is published by the record and not well by what was seen. It is not said to be up.
fn troubles(
    node: &Node,
    allocation: &Allocation,
    volumes: &mut [VolumePublication],
    published: &[PublicationEntry],
) -> Vec<Trouble> {
    let mut troubles = Vec::new();
    for volume in volumes {
        let entry = published.iter().find(|p| p.name == volume.name);
        let Some((entry, trouble)) = entry.and_then(|e| publication_trouble(node, e).map(|found| (e, found)))
        else {
            continue;
        };
        let (mount, health, message) = trouble;
        let Some(word) = health.word() else { continue };
        let users = match (mount, &entry.host) {
            (Mount::AtHost, _) => Users::Path,
            (Mount::Staging | Mount::Target, None) if allocation.spec.tasks.is_empty() => Users::Path,
            (Mount::Staging | Mount::Target, _) => Users::Tasks,
        };
        volume.published = health.rung(volume.published);
        volume.path.clear();
        troubles.push(Trouble { word, message, hurts: health.hurts(users) });
    }
    troubles
}

/// Whether what the controllers wrote of it stands: it failed with its node, and that is why; or its node seems lost to
/// them, and would still while its lease is not renewed.
fn spoken_for(node: &Node, phase: AllocationPhase, conditions: &[Condition]) -> bool {
    let said = conditions.iter().find(|c| c.kind == READY).map(|c| c.reason.as_str());
    match said {
        Some("NodeLost") => phase == AllocationPhase::Failed,
        Some("NoFence") => !node.lease_valid(),
        Some(_) | None => false,
    }
}

/// What a task waits for that its runtime cannot start, and when that is tried again.
fn waits(node: &Node, allocation: &Allocation) -> Option<(String, String)> {
    let uid = allocation.uid().unwrap_or_default();
    allocation.spec.tasks.iter().find_map(|task| {
        let (word, sentence, next) = node.notes.get(&note(&uid, &task.name));
        let second = |time: Time| time.0.round(jiff::Unit::Second).unwrap_or(time.0);
        let again = next.map(|time| format!("; tried again at {}", second(time))).unwrap_or_default();
        (!word.is_empty()).then(|| (word, format!("task {}: {sentence}{again}", task.name)))
    })
}

pub(super) fn ready_message(
    phase: AllocationPhase,
    (word, message): (&str, &str),
    waits: Option<(String, String)>,
    (tasks, failed): (&[TaskStatus], Option<&TaskStatus>),
) -> (String, String) {
    let told = |t: &TaskStatus| t.events.last().map(|e| format!("task {}: {}", t.name, e.message));
    let last = || tasks.iter().filter_map(told).next_back();
    let of = |state| tasks.iter().find(|t| t.state == state).and_then(told);
    let restarting = || of(TaskState::Lost).or_else(|| of(TaskState::Restarting));
    match phase {
        AllocationPhase::Running => ("Running".into(), String::new()),
        AllocationPhase::Restarting if let Some(waits) = waits => waits,
        AllocationPhase::Restarting => ("Restarting".into(), restarting().or_else(last).unwrap_or_default()),
        AllocationPhase::Complete => ("Complete".into(), String::new()),
        AllocationPhase::Failed => {
            ("TaskFailed".into(), failed.and_then(told).or_else(last).unwrap_or_default())
        }
        AllocationPhase::Pending | AllocationPhase::WaitingVolumes if !word.is_empty() => {
            (word.to_owned(), message.to_owned())
        }
        AllocationPhase::Pending | AllocationPhase::WaitingVolumes | AllocationPhase::Starting
            if let Some(waits) = waits =>
        {
            waits
        }
        AllocationPhase::Pending | AllocationPhase::WaitingVolumes => {
            let start = last().filter(|m| !m.is_empty());
            ("Waiting".into(), start.unwrap_or_else(|| Reason::VolumesNotReady.to_string()))
        }
        AllocationPhase::Starting => {
            let word = |task: &TaskStatus| {
                let reason = task.events.last()?.reason.clone();
                Some(reason).filter(|reason| FAILED_STARTS.contains(&reason.as_str()))
            };
            let failed = tasks.iter().find_map(|task| Some((word(task)?, told(task)?)));
            failed.unwrap_or_else(|| {
                let start = last().filter(|m| !m.is_empty());
                ("Starting".into(), start.unwrap_or_else(|| "its tasks are about to start".to_owned()))
            })
        }
        AllocationPhase::Stopping => (
            "Stopping".into(),
            if message.is_empty() {
                "its tasks end, then its volumes are unpublished".into()
            } else {
                message.to_owned()
            },
        ),
        AllocationPhase::Stopped => ("Stopped".into(), String::new()),
    }
}

pub(super) fn volume_status(
    node: &Node,
    allocation: &Allocation,
    volume: &AllocationVolume,
    published: &[PublicationEntry],
    notes: &mut Vec<(String, String)>,
) -> VolumePublication {
    let namespace = allocation.namespace().unwrap_or_default();
    let uid = allocation.uid().unwrap_or_default();
    let attachments = node.caches.attachments.of(&format!("claim:{namespace}/{}", volume.claim_name));
    // While an old attachment leaves, the one that names this allocation is the one that counts.
    let attachment = attachments
        .into_iter()
        .max_by_key(|a| (a.spec.allocations.contains(&uid), a.meta().deletion_timestamp.is_none()));
    let entry = published.iter().find(|p| p.name == volume.name);
    if let Some(attachment) = &attachment {
        let of = attachment.uid().unwrap_or_default();
        let own = node.notes.get(&user_note(&of, &uid, &volume.name));
        let (word, message, _) = if own.0.is_empty() { node.notes.get(&format!("att/{of}")) } else { own };
        let held = held_by_another(node, &uid, attachment);
        // While one has the volume that is not about to leave, what that one waits for is no matter of this one.
        if let Some((reason, true)) = &held {
            notes.push((reason.word().to_owned(), reason.to_string()));
        } else if attachment.refused() {
            let said =
                attachment.status.as_ref().and_then(|s| s.controller.as_ref()).map(|c| c.message.clone());
            notes.push((ATTACH_LIMIT.to_owned(), said.unwrap_or_default()));
        } else if !word.is_empty() {
            notes.push((word, message));
        } else if let Some((reason, _)) = held {
            notes.push((reason.word().to_owned(), reason.to_string()));
        }
    }
    let target = entry.and_then(|e| TreePath::new(["publish", e.directory.as_str(), TARGET]).ok());
    let path = match (entry.and_then(|e| e.host.as_ref()), target) {
        (Some(host), _) => host.path.to_string_lossy().into_owned(),
        (None, Some(target)) => {
            node.machine.kernel.absolute(&Place::Tree(target)).to_string_lossy().into_owned()
        }
        (None, None) => String::new(),
    };
    let early = planted!("told-before-the-kernel");
    VolumePublication {
        name: volume.name.clone(),
        volume: attachment.map(|a| a.spec.volume.clone()).unwrap_or_default(),
        published: entry.map_or(Rung::Down, |e| if early { Rung::Up } else { e.level.rung() }),
        path: if entry.is_some_and(|e| early || e.level == Level::Up) { path } else { String::new() },
        calls: Vec::new(),
    }
}

/// Why the volume is not for this allocation, though it is on this node: somebody else holds it. Whether that one stays.
fn held_by_another(node: &Node, uid: &str, attachment: &VolumeAttachment) -> Option<(Reason, bool)> {
    let holders = &attachment.spec.allocations;
    if holders.is_empty() || holders.iter().any(|h| h == uid) {
        return None;
    }
    // Who is gone for good stays listed; the last one let in is the one in the way. Beside readers it is one that writes.
    let there: Vec<_> = holders.iter().rev().filter_map(|h| node.caches.allocations.one(h)).collect();
    let claim = &attachment.spec.claim.name;
    let writes = |a: &&Arc<Allocation>| {
        a.spec.volumes.iter().any(|volume| volume.claim_name == *claim && !volume.read_only)
    };
    let one_writes = attachment.spec.capability.access_mode == AccessMode::MultiNodeSingleWriter;
    let writer = there.iter().find(writes).filter(|_| one_writes && !attachment.spec.read_only);
    let holder = writer.or(there.first()).cloned();
    let stays = holder.as_ref().is_some_and(|h| !stopping(node, h));
    let reason = Reason::HeldElsewhere {
        volume: attachment.spec.volume.clone(),
        holder: holder.map(|h| full_name(&*h)).unwrap_or_default(),
        node: node.options.name.clone(),
    };
    Some((reason, stays))
}

pub(super) fn task_status(
    node: &Node,
    uid: &str,
    task: &Task,
    (wanted, known): (Wanted, Option<&TaskStatus>),
) -> TaskStatus {
    let state = match node.tasks.process(uid, &task.name) {
        Process::Absent => TaskState::Pending,
        Process::Running => TaskState::Running,
        Process::Stopping => TaskState::Stopping,
        Process::Lost => TaskState::Lost,
        process @ (Process::Stopped | Process::Exited { .. }) => {
            let again = match (process, task.restarts()) {
                (Process::Exited { ok }, RestartPolicy::OnFailure) => !ok,
                (Process::Exited { .. }, RestartPolicy::Never) => false,
                _ => true,
            };
            if again
                && wanted == Wanted::Running
                && node.retry.remaining(&format!("task/{uid}/{}", task.name)).is_some()
            {
                TaskState::Restarting
            } else {
                TaskState::Exited
            }
        }
    };
    let waits = matches!(state, TaskState::Pending | TaskState::Restarting)
        && node.retry.remaining(&format!("task/{uid}/{}", task.name)).is_some();
    TaskStatus {
        name: task.name.clone(),
        state,
        next_attempt_time: if waits {
            node.tasks.next_attempt(uid, &task.name)
        } else {
            prepare::next_attempt(node, uid, task)
        },
        last_output: node
            .tasks
            .last_words(uid, &task.name)
            .or_else(|| known.map(|k| k.last_output.clone()))
            .unwrap_or_default(),
        restarts: restarts(node, uid, &task.name),
        // An end without a code is not told with that of an earlier one.
        exit_code: match node.tasks.exit(uid, &task.name) {
            Some(ended) => exit_code(&ended),
            None => known.and_then(|k| k.exit_code),
        },
        image: node
            .runtimes
            .image(&node.place(uid, &task.name), &task.runtime)
            .or(known.map(|k| k.image.clone()))
            .unwrap_or_default(),
        events: node.tasks.events(uid, &task.name, known.map(|k| k.events.as_slice()).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::allocation::TaskEvent;

    /// What is said is of the task of which the reason is.
    #[test]
    fn the_task_that_could_not_be_started_tells_why() {
        let task = |name: &str, reason: &str, message: &str| TaskStatus {
            name: name.to_owned(),
            events: vec![TaskEvent {
                time: Time("2026-11-28T00:00:00Z".parse().unwrap()),
                reason: reason.to_owned(),
                message: message.to_owned(),
            }],
            ..TaskStatus::default()
        };
        let said =
            |tasks: &[TaskStatus]| ready_message(AllocationPhase::Starting, ("", ""), None, (tasks, None));
        let unusable = task("a", "SubPathUnusable", "x is no directory");
        let started = task("b", "Started", "started");
        let is = |word: &str, message: &str| (word.to_owned(), message.to_owned());
        let wanted = is("SubPathUnusable", "task a: x is no directory");
        assert_eq!(said(&[unusable.clone(), started.clone()]), wanted);
        assert_eq!(said(&[started.clone(), unusable]), wanted);
        assert_eq!(said(&[started]), is("Starting", "task b: started"));
        assert_eq!(said(&[]), is("Starting", "its tasks are about to start"));
    }
}
