//! Allocations bound here: their tasks started and stopped by `plan::supervise`, and what their status says.
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use kube::{Resource, ResourceExt};

mod plugins;
mod prepare;
mod serving;
mod start;
mod status;

use super::context::{Key, Node};
use super::events::{Tone, about_allocation, part};
use super::journal::{Change, Entry, InstanceEntry, TaskEntry, task_key};
use super::mounts::{healing, stopping};
use super::registry::{Instance, InstanceKey, Progress};
use super::runtime::{Asked, Kind};
use super::supervisor::{
    Fault, HEALTH_TIMEOUT, PROCESS_ENDED, instance_object, step as instance_step, tell as tell_edge,
};
use super::tasks::exit_message;
use crate::api::Allocation;
use crate::api::allocation::{RestartPolicy, Task, TaskEvent, wrote_last};
use crate::api::meta::{ObjectRef, Time};
use crate::api::plugin::HEALTH_TIMED_OUT;
use crate::api::quantity;
use crate::plan::supervise::{self, Healing, Loss, Process, Step, Traceless, Wanted};
use crate::plan::{Next, Reason};
use crate::sys::process::{ExitRecord, Outcome};
use plugins::{Care, drain, keep_watch, patience, watch_over, withdraw, withdraw_stopped};
pub use plugins::{admit, forget_bad_runs, note_unwell, refuse, register};
pub(super) use prepare::note as runtime_note;
use start::{NotStarted, publications, start};

/// The reason of a task's event that tells of its end.
const EXITED: &str = "Exited";
/// Why a task is not started at once: it did not run, or not on.
const RUN: &str = "run";
/// The grace of a task that names none.
const GRACE: Duration = Duration::from_secs(10);

/// Brings one allocation as far as it goes.
pub async fn reconcile(node: &Arc<Node>, uid: &str) -> Option<Duration> {
    if !node.synced() {
        return None;
    }
    match node.caches.allocations.one(uid) {
        Some(allocation) => bound(node, &allocation).await,
        None => gone(node, uid).await,
    }
}

/// The object is gone or bound elsewhere: whatever of it is left here ends, and is forgotten.
async fn gone(node: &Arc<Node>, uid: &str) -> Option<Duration> {
    let entries: Vec<_> = node.journal.tasks().into_iter().filter(|t| t.allocation.uid == uid).collect();
    // A process may run without a record: the journal was lost.
    let mut names = node.tasks.names(uid);
    names.extend(entries.iter().map(|e| e.task.clone()));
    names.sort();
    names.dedup();
    let needed = entries.iter().any(|entry| entry.plugin.as_ref().is_some_and(|p| is_needed(node, uid, p)));
    let wanted = supervise::unwanted(needed);
    for name in &names {
        let start = (false, supervise::Readiness::Ready);
        match supervise::next(wanted, seen(node, uid, name, RestartPolicy::Never, start)) {
            Next::Do(Step::Clear) => {
                if let Err(error) = node.clear_task(uid, name).await {
                    tracing::warn!(uid, error = &error as &dyn std::error::Error, "leftovers not cleared");
                    return Some(node.retry.failed(&format!("task/{uid}/clear"), "clear".to_owned()));
                }
                // What was adopted late is to be stopped.
                node.queue.wake(Key::Allocation(uid.to_owned()));
            }
            // Looked at again when the calls that are under way there have ended.
            Next::Do(Step::Stop) if drain(node, uid, name) > 0 => {}
            Next::Do(Step::Stop) => {
                // Nobody knows any more what grace it was to have, but it was started with that.
                let _seen_below = node.stop_task(uid, name, None);
            }
            Next::Converged if needed => {
                let entry = entries.iter().find(|e| e.task == *name);
                if let Some(plugin) = entry.and_then(|entry| entry.plugin.as_ref()) {
                    let key = InstanceKey { allocation: uid.to_owned(), task: name.clone() };
                    if node.registry.resume(&key) {
                        node.queue.wake(Key::Plugin(plugin.plugin.clone()));
                    }
                    // Nobody could start it again: it is not killed for being slow.
                    let care = Care { ours: false, health_timeout: HEALTH_TIMEOUT, grace: GRACE };
                    watch_over(node, (uid, name), plugin, care);
                }
            }
            Next::Do(Step::Prepare | Step::Start | Step::Restart) | Next::Wait(_) | Next::Converged => {}
        }
    }
    if !node.tasks.idle(uid) {
        return None;
    }
    let mut changes = Vec::new();
    for name in &names {
        if let Err(error) = node.forget_task(uid, name).await {
            tracing::warn!(uid, error = &error as &dyn std::error::Error, "task's records not removed");
        }
        let entry = entries.iter().find(|e| e.task == *name);
        withdraw(node, uid, name, entry.and_then(|e| e.plugin.as_ref())).await;
        changes.push(Change::Forget(task_key(uid, name)));
    }
    if node.journal.commit(changes).await.is_ok() {
        node.tasks.forget(uid);
        node.forget_written(uid);
        node.untold.lock().unwrap_or_else(PoisonError::into_inner).settled(uid);
        node.retry.forget(&format!("task/{uid}"));
        node.events.gone(&format!("task/{uid}/"));
        node.notes.gone(&format!("task/{uid}"));
    }
    prepare::let_go(node, uid, !names.is_empty());
    // Once: a volume that cannot go yet wakes this allocation each time that it is looked at.
    if !names.is_empty() {
        wake_volumes(node, uid);
    }
    None
}

/// Whether volumes here can be taken down by this instance alone.
fn is_needed(node: &Node, uid: &str, instance: &InstanceEntry) -> bool {
    let plugin = &instance.plugin;
    supervise::is_needed(supervise::Orphan {
        serves_nodes: instance.role.node(),
        volumes_up: node.journal.attachments().iter().any(|a| a.plugin == *plugin),
        another_here: node.registry.others(plugin, uid).iter().any(Instance::makes_node_calls),
    })
}

/// The instances of a plugin that run on although their allocations are gone are looked at: they may go now.
pub fn wake_orphans(node: &Node, plugin: &str) {
    for task in node.journal.tasks() {
        let uid = task.allocation.uid;
        if task.plugin.is_some_and(|p| p.plugin == plugin) && !node.caches.allocations.has(&uid) {
            node.queue.wake(Key::Allocation(uid));
        }
    }
}

async fn bound(node: &Arc<Node>, allocation: &Allocation) -> Option<Duration> {
    let uid = allocation.uid().unwrap_or_default();
    let served = serving::as_served(node, allocation);
    let held = serving::held(allocation, &served);
    let allocation = &*served;
    let plugin = allocation.spec.tasks.iter().any(|t| t.csi_plugin.is_some());
    let (wanted, let_go) = wanted(node, allocation, plugin);
    let mut again: Option<Duration> = None;
    let idle_before = node.tasks.idle(&uid);
    let healing = healing(node, allocation);
    tell_of_healing(node, allocation, &healing);
    for task in &allocation.spec.tasks {
        let of_it = supervise::wanted_of(wanted, task.csi_plugin.is_some(), let_go);
        let delay = run_task(node, allocation, task, (of_it, &healing)).await;
        again = [again, delay].into_iter().flatten().min();
    }
    // Only when that is news: a volume that cannot go yet wakes this allocation each time that it is looked at.
    if node.tasks.idle(&uid) && !idle_before {
        wake_volumes(node, &uid);
    }
    let mut told = status::status(node, allocation, wanted);
    let note = serving::needed(node, allocation).or(held).or_else(|| serving::refused(allocation));
    told.note(note.or_else(|| serving::unwell(node, allocation)));
    if told.nothing_begun(allocation) {
        return again;
    }
    let left = status::only_a_moment(node, allocation, &told);
    let left = left.or_else(|| status::only_attached(node, allocation, &told));
    if let Some(left) = left.or_else(|| status::only_progress(node, allocation, &told)) {
        return Some(again.map_or(left, |again| again.min(left)));
    }
    let part = if told.is_farewell() { &status::FAREWELL } else { &status::NODE };
    let written = node.write_status(allocation, part, &told).await;
    [again, node.after_write(&format!("alloc/{uid}/report"), written)].into_iter().flatten().min()
}

/// Once when it begins, and once when it is over.
fn tell_of_healing(node: &Node, allocation: &Allocation, healing: &BTreeMap<String, Healing>) {
    let uid = allocation.uid().unwrap_or_default();
    let (step, taken) = (format!("task/{uid}/heal"), format!("task/{uid}/taken"));
    let note =
        "the tasks that mount a volume of it are ended, so that it can be mounted anew, as onStaleMount says";
    match healing.values().max().unwrap_or(&Healing::None) {
        Healing::None => {
            let note = "its volume is mounted anew, and its tasks start";
            node.events.over(about(allocation), &step, ("Remounted", "Remount", note));
            node.events.gone(&taken);
        }
        Healing::Wait => {}
        Healing::End => node.events.failed(about(allocation), &step, "Remounting", "Remount", note),
        Healing::Taken => {
            let note = "the tasks that mount a volume of it are ended: it was taken from them, for this node was said to be off, or its \
                        attachment is gone";
            node.events.failed(about(allocation), &taken, "VolumeTaken", "Run", note);
        }
    }
}

/// What is asked of a task by the volumes that it mounts, and by which of them.
fn of_task<'a>(
    healing: &'a BTreeMap<String, Healing>,
    allocation: &Allocation,
    task: &Task,
) -> (Healing, &'a str) {
    let mounted = |name: &str| task.volume_mounts.iter().any(|mount| mount.name == name);
    // At a path of the machine any of them may have it.
    let at_host = |name: &str| {
        let mut volumes = allocation.spec.volumes.iter();
        task.csi_plugin.is_none() && volumes.any(|v| v.name == name && !v.host_path.is_empty())
    };
    let concerns = |name: &str, asked: Healing| mounted(name) || asked == Healing::Taken && at_host(name);
    let asked = healing.iter().filter(|(name, asked)| concerns(name, **asked));
    let asked = asked.map(|(name, healing)| (*healing, name.as_str()));
    asked.max_by_key(|(healing, _)| *healing).unwrap_or((Healing::None, ""))
}

/// What is wanted of the allocation, and whether it is to stop, whatever became of its tasks.
fn wanted(node: &Node, allocation: &Allocation, plugin: bool) -> (Wanted, bool) {
    let uid = allocation.uid().unwrap_or_default();
    let stop = if plugin {
        let asked = allocation.meta().deletion_timestamp.is_some() || allocation.spec.stop || node.stopped();
        asked && allocation.status.as_ref().is_some_and(|status| status.plugin_released)
    } else {
        stopping(node, allocation)
    };
    let tasks: Vec<_> =
        allocation.spec.tasks.iter().map(|t| (node.tasks.process(&uid, &t.name), t.restarts())).collect();
    (supervise::wanted(stop, &tasks), stop)
}

fn seen(
    node: &Node,
    uid: &str,
    task: &str,
    policy: RestartPolicy,
    (volumes_ready, runtime): (bool, supervise::Readiness),
) -> supervise::Seen {
    supervise::Seen {
        process: node.tasks.process(uid, task),
        policy,
        volumes_ready,
        runtime,
        pause_over: node.retry.remaining(&step(uid, task)).is_none(),
        outdated: false,
    }
}

/// The step of running a task, of which [`Retry`](super::retry::Retry) counts the failures.
fn step(uid: &str, task: &str) -> String {
    format!("task/{uid}/{task}")
}

/// Has the next end of a task count beside those before this daemon began.
pub fn restore(node: &Node, entry: &TaskEntry) {
    node.retry.restore(&step(&entry.allocation.uid, &entry.task), RUN.to_owned(), entry.failures);
    if entry.plugin.as_ref().is_some_and(|plugin| plugin.unwell) {
        node.tasks.set_unwell(&entry.allocation.uid, &entry.task);
    }
}

async fn run_task(
    node: &Arc<Node>,
    allocation: &Allocation,
    task: &Task,
    (wanted, healing): (Wanted, &BTreeMap<String, Healing>),
) -> Option<Duration> {
    let uid = allocation.uid().unwrap_or_default();
    let step_name = step(&uid, &task.name);
    recall(node, allocation, task);
    // What ends from here on was not counted, and is started again only after the next look has done so.
    let process = node.tasks.process(&uid, &task.name);
    count_exit(node, allocation, task, &step_name);
    remember(node, allocation, task).await;
    prepare::count(node, allocation, task);
    let (healing, healed) = of_task(healing, allocation, task);
    let volumes = healing == Healing::None && publications(node, allocation, task).is_some();
    let ready = (volumes, prepare::readiness(node, allocation, task));
    let outdated = serving::is_outdated(node, &uid, task);
    let now = supervise::while_healing(wanted, healing);
    let what = supervise::Seen { process, outdated, ..seen(node, &uid, &task.name, task.restarts(), ready) };
    let next = supervise::next(now, what);
    if outdated && next != Next::Do(Step::Stop) {
        keep_watch(node, allocation, task);
    }
    let again = prepare::keep_note(node, allocation, task, &next);
    match next {
        Next::Converged => {
            // One that still ends runs from what was made for it.
            if wanted == Wanted::Stopped && node.tasks.idle(&uid) {
                prepare::let_go(node, &uid, false);
            }
            if wanted == Wanted::Stopped {
                withdraw_stopped(node, &uid, task).await;
            }
            keep_watch(node, allocation, task);
            None
        }
        Next::Wait(Reason::Backoff) => node.retry.remaining(&step_name),
        Next::Wait(_) => again,
        Next::Do(Step::Prepare) => prepare::begin(node, allocation, task),
        Next::Do(step @ (Step::Start | Step::Restart)) => {
            started(node, allocation, task, (&step_name, step == Step::Restart)).await
        }
        Next::Do(Step::Stop) => {
            // What was asked of it ends there: what comes next goes to another one.
            let calls = if task.csi_plugin.is_some() { drain(node, &uid, &task.name) } else { 0 };
            if calls > 0 {
                let message = "is asked to end when the calls that are under way there have ended";
                node.tasks.lasts(&uid, &task.name, event(node, "Draining", message));
                return None;
            }
            let why = why_asked_to_end(wanted, (healing, healed), outdated);
            let killed = format!("; what is left of it is killed after {} s", grace(task).as_secs_f64());
            node.tasks.event(&uid, &task.name, event(node, "Stopping", &(why + &killed)));
            if node.stop_task(&uid, &task.name, Some(grace(task))) == Asked::Over {
                withdraw(node, &uid, &task.name, plugins::entry(node, &uid, task).as_ref()).await;
            }
            None
        }
        Next::Do(Step::Clear) => match node.clear_task(&uid, &task.name).await {
            Ok(()) => {
                node.retry.succeeded(&format!("{step_name}/clear"));
                node.queue.wake(Key::Allocation(uid));
                None
            }
            Err(error) => {
                node.tasks.event(&uid, &task.name, event(node, "ClearFailed", &error.to_string()));
                Some(node.retry.failed(&format!("{step_name}/clear"), "clear".to_owned()))
            }
        },
    }
}

fn why_asked_to_end(wanted: Wanted, (healing, volume): (Healing, &str), outdated: bool) -> String {
    match healing {
        Healing::End if wanted == Wanted::Running => {
            format!("asked to end, so that volume {volume} can be mounted anew, as onStaleMount says")
        }
        Healing::Taken if wanted == Wanted::Running => {
            format!("asked to end: volume {volume} was taken from it")
        }
        _ if outdated => "asked to end: its csiPlugin block changed".to_owned(),
        _ => "asked to end".to_owned(),
    }
}

/// Starts a task, and says when it is to be tried again.
async fn started(
    node: &Arc<Node>,
    allocation: &Allocation,
    task: &Task,
    (step_name, again): (&str, bool),
) -> Option<Duration> {
    match start(node, allocation, task, again).await {
        Ok(()) => {
            node.events.recovered(about_task(allocation, task), step_name, "Run");
            keep_watch(node, allocation, task);
            None
        }
        // The shim wrote down why the program did not run: that is an end like any other.
        Err(_) if count_exit(node, allocation, task, step_name) => node.retry.remaining(step_name),
        // Its runtime could not say so, and it runs all the same.
        Err(failed)
            if node.tasks.process(&allocation.uid().unwrap_or_default(), &task.name) == Process::Running =>
        {
            let (name, message) = (allocation.name_any(), failed.message);
            tracing::warn!(
                allocation = name,
                task = task.name,
                message,
                "task runs, though its start failed"
            );
            keep_watch(node, allocation, task);
            None
        }
        Err(NotStarted { word, message }) => {
            let uid = allocation.uid().unwrap_or_default();
            tracing::warn!(allocation = allocation.name_any(), task = task.name, message, "task not started");
            if node.tasks.process(&uid, &task.name) == Process::Absent {
                start::never_began(node, &uid, &task.name).await;
            }
            node.tasks.event(&uid, &task.name, event(node, word, &message));
            let note = format!("task {}: {message}", task.name);
            node.events.failed(about_task(allocation, task), step_name, "TaskNotStarted", "Run", &note);
            let pause = node.retry.failed(step_name, RUN.to_owned());
            node.tasks.wait_until(&uid, &task.name, node.later(pause));
            Some(pause)
        }
    }
}

fn reference(allocation: &Allocation) -> ObjectRef {
    ObjectRef {
        namespace: allocation.namespace().unwrap_or_default(),
        name: allocation.name_any(),
        uid: allocation.uid().unwrap_or_default(),
    }
}

fn about(allocation: &Allocation) -> k8s_openapi::api::core::v1::ObjectReference {
    about_allocation(&reference(allocation))
}

fn about_task(allocation: &Allocation, task: &Task) -> k8s_openapi::api::core::v1::ObjectReference {
    part(about(allocation), "tasks", &task.name)
}

fn event(node: &Node, reason: &str, message: &str) -> TaskEvent {
    TaskEvent { time: node.now(), reason: reason.to_owned(), message: message.to_owned() }
}

fn grace(task: &Task) -> Duration {
    task.stop_grace_period.as_deref().and_then(quantity::duration).unwrap_or(GRACE)
}

/// Takes a task of which this machine has no trace for ended, where it had begun before.
fn recall(node: &Node, allocation: &Allocation, task: &Task) {
    let uid = allocation.uid().unwrap_or_default();
    if node.tasks.process(&uid, &task.name) != Process::Absent {
        return;
    }
    let boot = node.journal.look(|all| match all.get(&task_key(&uid, &task.name)) {
        Some(Entry::Task(entry)) => Some(entry.boot.clone()),
        Some(_) | None => None,
    });
    let lost = match boot {
        // The record of its start is written after this entry, and need not have reached the disk.
        Some(boot) if !boot.is_empty() && boot != node.boot_id => Loss::Power,
        Some(_) => return,
        None if node.amnesia => Loss::Disk,
        None => Loss::None,
    };
    let status = allocation.status.as_ref();
    let told = status.and_then(|s| s.tasks.iter().find(|t| t.name == task.name));
    let ended = supervise::ended_before(Traceless {
        policy: task.restarts(),
        phase: status.and_then(|s| s.phase),
        state: told.map(|t| t.state),
        code: told.and_then(|t| t.exit_code),
        lost,
    });
    if let Some(process) = ended {
        node.tasks.ended_before(&uid, &task.name, process);
        let message = match lost {
            Loss::Power => "this machine went down as it was started; whether it began is not known",
            Loss::Disk | Loss::None => {
                "it had begun before this machine lost its disk; how it ended is not known"
            }
        };
        if process == (Process::Exited { ok: false }) {
            node.tasks.event(&uid, &task.name, event(node, "Lost", message));
        }
    }
}

/// A process that runs without a record, because the journal was lost, gets one.
async fn remember(node: &Node, allocation: &Allocation, task: &Task) {
    let uid = allocation.uid().unwrap_or_default();
    let key = task_key(&uid, &task.name);
    let known = node.journal.look(|all| all.contains_key(&key));
    if known || node.tasks.process(&uid, &task.name) == Process::Absent {
        return;
    }
    let restarts = allocation.status.as_ref().and_then(|s| s.tasks.iter().find(|t| t.name == task.name));
    let entry = TaskEntry {
        allocation: reference(allocation),
        task: task.name.clone(),
        restarts: restarts.map_or(0, |t| t.restarts),
        plugin: plugins::entry(node, &uid, task),
        runtime: Kind::of(&task.runtime),
        image: None,
        failures: 0,
        boot: node.boot_id.clone(),
    };
    // A journal that cannot be written ends the daemon.
    let _ended = node.journal.put(Entry::Task(entry)).await;
}

/// Counts each end of a task once: it lengthens the pause before the next start, and a plugin's end is deregistered.
/// Returns whether there was one to count.
fn count_exit(node: &Arc<Node>, allocation: &Allocation, task: &Task, step: &str) -> bool {
    let uid = &allocation.uid().unwrap_or_default();
    let Some(record) = node.tasks.exit(uid, &task.name) else { return false };
    if !node.tasks.count_once(uid, &task.name, record.finished_ms) {
        return false;
    }
    let key = InstanceKey { allocation: uid.to_owned(), task: task.name.clone() };
    let fault = node.registry.get(&key).and_then(|instance| instance.progress.fault);
    let ran = record.finished_ms - record.started_ms;
    // Said of an earlier run it says nothing of one that ended sooner.
    let plugin = task.csi_plugin.as_ref();
    let waited = plugin.is_some_and(|p| u128::try_from(ran).unwrap_or(0) >= patience(p).as_millis());
    let timed_out = fault.filter(|(word, _)| waited && word == HEALTH_TIMED_OUT);
    // However long its healthTimeout is: one that was never ready did not run well.
    let ran_well = supervise::ran_well(ran, node.options.long_run, timed_out.is_some());
    if ran_well {
        node.retry.succeeded(step);
    }
    let mut pause = node.retry.failed(step, RUN.to_owned());
    if node.tasks.is_quiet(uid, &task.name) {
        // It ended before this daemon began, or while it did: the pause began then.
        let since = node.now().0.as_millisecond().saturating_sub(record.finished_ms);
        pause = pause.saturating_sub(Duration::from_millis(u64::try_from(since).unwrap_or(0)));
        node.retry.block(step, pause);
    }
    node.tasks.wait_until(uid, &task.name, node.later(pause));
    let unwell = node.tasks.is_unwell(uid, &task.name);
    let why = timed_out.as_ref().filter(|_| unwell).map(|(_, why)| format!(": {why}")).unwrap_or_default();
    let message = format!("{}{why}", exit_message(&record));
    tracing::info!(allocation = allocation.name_any(), task = task.name, message, "task is over");
    tell_of_end(node, allocation, task, (&record, &message));
    if task.csi_plugin.is_some() {
        let asked = record.stopped && !unwell;
        instance_ended(node, &key, (timed_out, ran_well, asked), &message);
    }
    true
}

/// The process of an instance is over: `message` says how. Its healthTimeout was over before, if that is why.
fn instance_ended(
    node: &Node,
    key: &InstanceKey,
    (timed_out, ran_well, asked): (Option<Fault>, bool, bool),
    message: &str,
) {
    node.supervisors.stop(key);
    let registered = node.registry.get(key);
    if let Some(instance) = &registered {
        instance.client.forget_owed();
        // What waited for its end goes on at another one.
        node.queue.wake(Key::Plugin(instance.plugin.clone()));
    }
    let last = node.tasks.last_words(&key.allocation, &key.task).unwrap_or_default();
    let wrote = wrote_last(&last);
    let ended = || (PROCESS_ENDED.into(), format!("its process {message}{wrote}"));
    let timed_out = timed_out.map(|(word, why)| (word, format!("{why}{wrote}")));
    let fault = timed_out.unwrap_or_else(ended);
    // That its connection ended is not told besides.
    let was_well = node.registry.take_held(key, Duration::ZERO).is_some();
    let changed = node.registry.progress(key, |p| {
        let bad_runs = supervise::bad_runs(p.bad_runs, ran_well, asked);
        let (fingerprint, last_end) = (p.fingerprint.take(), fault.1.clone());
        *p = Progress { fingerprint, fault: Some(fault), bad_runs, last_end, ..Progress::default() };
    });
    if let Some((before, after)) = changed.filter(|(before, after)| before != after) {
        // Its end may be seen here before its supervisor sees anything.
        if let Some(instance) = registered {
            // One that was admitted as something else meanwhile is not what has ended.
            let object = instance_object(node, key).filter(|object| object.spec.plugin == instance.plugin);
            if was_well || before.healthy_since.is_some() {
                tell_edge(node, object.as_deref(), (key, &instance.plugin), &after);
            } else if let Some(object) =
                object.filter(|_| !asked && !node.tasks.is_quiet(&key.allocation, &key.task))
            {
                // That it took too long is told already.
                let step = instance_step(key, PROCESS_ENDED);
                if let Some((word, sentence)) = after.fault.filter(|(word, _)| word == PROCESS_ENDED) {
                    node.events.failed(object.object_ref(&()), &step, &word, "Start", &sentence);
                }
            }
        }
        node.queue.wake(Key::Instance(key.clone()));
    }
}

/// Unless an earlier daemon did; that it was not told before is no reason to tell it as of now.
fn tell_of_end(node: &Node, allocation: &Allocation, task: &Task, (record, message): (&ExitRecord, &str)) {
    let uid = &allocation.uid().unwrap_or_default();
    let finished = jiff::Timestamp::from_millisecond(record.finished_ms).unwrap_or(node.now().0);
    let tasks = allocation.status.iter().flat_map(|status| &status.tasks);
    let known = tasks.filter(|known| known.name == task.name).flat_map(|known| &known.events);
    let found = node.tasks.is_quiet(uid, &task.name);
    // An earlier run ended before.
    if found && known.into_iter().any(|known| known.reason == EXITED && known.time.0 >= finished) {
        return;
    }
    let time = if found { Time(finished) } else { node.now() };
    let end = TaskEvent { time, reason: EXITED.to_owned(), message: message.to_owned() };
    node.tasks.event(uid, &task.name, end);
    let unwell = node.tasks.is_unwell(uid, &task.name);
    let well = (record.outcome == Outcome::Code(0) || record.stopped) && !unwell && !record.oom;
    let tone = if well { Tone::Normal } else { Tone::Warning };
    let note = format!("task {} {message}", task.name);
    let reason =
        if matches!(record.outcome, Outcome::NotStarted(_)) { "TaskNotStarted" } else { "TaskExited" };
    node.events.tell(about_task(allocation, task), tone, reason, "Run", &note);
}

/// Has every volume that is published for an allocation looked at.
pub fn wake_volumes(node: &Node, uid: &str) {
    for publication in node.journal.publications_of(uid) {
        if let Some(attachment) = node.journal.attachment(&publication.attachment) {
            node.queue.wake(Key::Mount(attachment.volume));
        }
    }
}
