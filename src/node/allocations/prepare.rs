//! What a task needs before its start and its runtime makes beside the queue, such as the layers of its image: begun,
//! counted, told.
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use super::super::agent::SYSTEM;
use super::super::context::{Key, Node};
use super::super::events::Tone;
use super::super::journal::{Entry, task_key};
use super::super::registry::InstanceKey;
use super::super::runtime::{Readiness, Wake, Wish};
use super::{about_task, event};
use crate::api::Allocation;
use crate::api::allocation::Task;
use crate::api::meta::Time;
use crate::plan::supervise::{self, Obstacle};
use crate::plan::{Next, Reason};

/// What takes longer than this is told as a wait.
const TOLD: Duration = Duration::from_millis(300);

/// The word for a start without an archive.
const ARCHIVE_GONE: &str = "ArchiveGone";

fn step(uid: &str, task: &Task) -> String {
    format!("task/{uid}/{}/prepare", task.name)
}

/// Whether only the controllers could write it, or who was trusted by a person with the whole cluster.
fn trusted(allocation: &Allocation) -> bool {
    allocation.namespace().as_deref() == Some(SYSTEM)
}

/// Whether its runtime could start a task. What could not be made is made anew when its pause is over.
pub(super) fn readiness(node: &Node, allocation: &Allocation, task: &Task) -> supervise::Readiness {
    let uid = &allocation.uid().unwrap_or_default();
    let paused = || node.retry.remaining(&step(uid, task)).is_some();
    match node.runtimes.readiness(&node.place(uid, &task.name), (task, trusted(allocation))) {
        Readiness::Ready => supervise::Readiness::Ready,
        Readiness::Unprepared => supervise::Readiness::Unprepared,
        Readiness::Preparing => supervise::Readiness::Preparing,
        Readiness::Retrying(obstacle, _) => supervise::Readiness::Retrying(obstacle),
        Readiness::Failed(obstacle, _) if paused() => supervise::Readiness::Unusable(obstacle),
        Readiness::Failed(..) => supervise::Readiness::Unprepared,
        Readiness::Unusable(obstacle, _) => supervise::Readiness::Unusable(obstacle),
    }
}

/// Begins. The allocation is looked at again when it is over, and once before, so that a long wait is told.
pub(super) fn begin(node: &Arc<Node>, allocation: &Allocation, task: &Task) -> Option<Duration> {
    let uid = &allocation.uid().unwrap_or_default();
    let runtime = node.runtimes.allowed(&task.runtime).ok()?;
    let (weak, key) = (Arc::downgrade(node), Key::Allocation(uid.to_owned()));
    let wake: Wake = Arc::new(move || {
        if let Some(node) = weak.upgrade() {
            node.queue.wake(key.clone());
        }
    });
    let former = node.journal.look(|all| match all.get(&task_key(uid, &task.name)) {
        Some(Entry::Task(entry)) => entry.image.clone(),
        _ => None,
    });
    let wish = Wish { task, trusted: trusted(allocation), former: former.as_deref() };
    runtime.prepare(&node.place(uid, &task.name), wish, &node.variables(""), wake);
    Some(TOLD)
}

/// Counts each end of it once: one that failed lengthens the pause before the next try.
pub(super) fn count(node: &Arc<Node>, allocation: &Allocation, task: &Task) {
    let uid = allocation.uid().unwrap_or_default();
    let Ok(runtime) = node.runtimes.allowed(&task.runtime) else { return };
    let step = step(&uid, task);
    match runtime.prepared(&node.place(&uid, &task.name)) {
        None => {}
        Some(Ok(note)) => {
            node.retry.succeeded(&step);
            if runtime.lack().is_some() {
                // It is there again, and others may come for it.
                node.queue.wake(Key::Agent);
            }
            node.events.recovered(about_task(allocation, task), &step, "Run");
            if let Some(note) = note {
                node.tasks.event(&uid, &task.name, event(node, ARCHIVE_GONE, &note));
                let note = format!("task {}: {note}", task.name);
                node.events.tell(about_task(allocation, task), Tone::Warning, ARCHIVE_GONE, "Run", &note);
            }
        }
        Some(Err((obstacle, why))) => {
            let delay = node.retry.failed(&step, obstacle.reason().word().to_owned());
            if obstacle == Obstacle::Missing {
                node.queue.wake(Key::Agent);
            }
            tell(node, allocation, task, (obstacle, &why), Some(delay));
        }
    }
}

/// Why a task waits that has an obstacle; told once for each.
fn tell(
    node: &Arc<Node>,
    allocation: &Allocation,
    task: &Task,
    (obstacle, why): (Obstacle, &str),
    again: Option<Duration>,
) {
    let uid = allocation.uid().unwrap_or_default();
    let (key, word) = (note(&uid, &task.name), obstacle.reason().word());
    let (known, sentence, _) = node.notes.get(&key);
    node.notes.set(&key, word, why, again.map(|delay| node.later(delay)));
    if (known.as_str(), sentence.as_str()) == (word, why) {
        return;
    }
    tracing::warn!(allocation = allocation.name_any(), task = task.name, reason = word, why, "task waits");
    if task.csi_plugin.is_some() {
        node.queue.wake(Key::Instance(InstanceKey { allocation: uid.clone(), task: task.name.clone() }));
    }
    node.tasks.event(&uid, &task.name, event(node, word, why));
    node.events.failed(
        about_task(allocation, task),
        &step(&uid, task),
        word,
        "Run",
        &format!("task {}: {why}", task.name),
    );
}

/// Keeps why the task waits, if it is for its runtime, and when it is tried again.
pub(super) fn keep_note(
    node: &Arc<Node>,
    allocation: &Allocation,
    task: &Task,
    next: &Next<supervise::Step>,
) -> Option<Duration> {
    let uid = allocation.uid().unwrap_or_default();
    let key = note(&uid, &task.name);
    match next {
        Next::Wait(reason @ Reason::ImageNotReady) => {
            node.notes.wait(&key, reason);
            None
        }
        Next::Wait(Reason::ImageUnusable | Reason::RuntimeMissing | Reason::RuntimeNotAllowed) => {
            match node.runtimes.readiness(&node.place(&uid, &task.name), (task, trusted(allocation))) {
                // Nothing but another daemon or another allocation changes that.
                Readiness::Unusable(obstacle, why) => tell(node, allocation, task, (obstacle, &why), None),
                // It is being tried again right now.
                Readiness::Retrying(obstacle, why) => {
                    node.notes.set(&key, obstacle.reason().word(), &why, None);
                }
                Readiness::Ready | Readiness::Unprepared | Readiness::Preparing | Readiness::Failed(..) => {}
            }
            node.retry.remaining(&step(&uid, task))
        }
        // Its volumes are told of first; it goes on meanwhile.
        Next::Wait(Reason::VolumesNotReady) => node.retry.remaining(&step(&uid, task)),
        // What was said of the last try stands until this one is over.
        Next::Do(supervise::Step::Prepare) => None,
        Next::Do(_) | Next::Wait(_) | Next::Converged => {
            node.notes.clear(&key);
            None
        }
    }
}

/// When what a task waits for is tried again, if that is known.
pub(super) fn next_attempt(node: &Node, uid: &str, task: &Task) -> Option<Time> {
    let (_, _, next) = node.notes.get(&note(uid, &task.name));
    next.filter(|_| node.retry.remaining(&step(uid, task)).is_some())
}

/// The note of why a task waits for its runtime.
pub(in crate::node) fn note(uid: &str, task: &str) -> String {
    format!("task/{uid}/{task}/runtime")
}

/// None of this allocation's tasks runs or shall run any more: what was made for that goes, with all else that nothing uses.
/// Of a task of which nobody can say what is left, nobody knows what it uses: then it goes another time.
pub(super) fn let_go(node: &Node, uid: &str, had_run: bool) {
    for runtime in node.runtimes.all() {
        runtime.let_go(uid, had_run);
    }
    if !node.runtimes.all().any(|runtime| runtime.owes()) {
        return;
    }
    let Some(used) = node.tasks.layers() else { return };
    for runtime in node.runtimes.all().filter(|runtime| runtime.owes()) {
        runtime.collect(used.clone());
    }
}
