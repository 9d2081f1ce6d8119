//! The tasks of allocations: started, adopted, watched to their end.
//!
//! Holds what is known of each task now; the truth is with its runtime. One watcher per running task waits for its end and
//! wakes its allocation.
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::allocations::wake_volumes;
use super::context::{Key, Node};
use super::journal::{Entry, task_key};
use super::registry::InstanceKey;
use super::runtime::{Asked, Ended, Found, Kind, Order, Place, Running, Runtime, RuntimeError};
use crate::api::allocation::{DID_NOT_START, TASK_EVENTS_KEPT, TaskEvent};
use crate::api::meta::Time;
use crate::plan::last_words;
use crate::plan::supervise::Process;
use crate::sys::files::Tail;
use crate::sys::process::{ExitRecord, Outcome, ProcessError, Wrote};

/// The word for the event of a task that is ended because it is not well.
const UNHEALTHY: &str = "Unhealthy";

/// How long a log may take to say what a task wrote last.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// In place of what a driver wrote that was sent secrets.
const NOT_TOLD: &str = "(not shown: it may hold secrets that the driver was given; see its logs on the node)";

/// What is known of one task's process.
#[derive(Debug, Clone)]
struct Slot {
    process: Process,
    handle: Option<Arc<dyn Running>>,
    exit: Option<ExitRecord>,
}

impl Slot {
    fn of(process: Process) -> Self {
        Self { process, handle: None, exit: None }
    }
}

/// The processes of this node, by allocation uid and task.
#[derive(Debug, Default)]
pub struct Tasks {
    slots: Mutex<HashMap<String, BTreeMap<String, Slot>>>,
    events: Mutex<HashMap<String, Vec<TaskEvent>>>,
    counted: Mutex<HashMap<String, i64>>,
    /// The last lines of those that ended here, and when they are started again.
    last_words: Mutex<HashMap<String, String>>,
    /// Those that are ended because they are not well, until they are started again.
    unwell: Mutex<HashSet<String>>,
    /// Those that an earlier daemon may have sent secrets.
    guarded: Mutex<HashSet<String>>,
    next_attempts: Mutex<HashMap<String, Time>>,
    /// The allocations that wait for the calls of their plugins to end.
    draining: Arc<Mutex<HashSet<String>>>,
    watchers: TaskTracker,
}

impl Tasks {
    /// What is known of a task's process.
    pub fn process(&self, allocation: &str, task: &str) -> Process {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.get(allocation).and_then(|t| t.get(task)).map_or(Process::Absent, |slot| slot.process)
    }

    /// How it ended, if it did.
    pub fn exit(&self, allocation: &str, task: &str) -> Option<ExitRecord> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.get(allocation).and_then(|t| t.get(task)).and_then(|slot| slot.exit.clone())
    }

    /// Whether no process of the allocation can be left.
    pub fn idle(&self, allocation: &str) -> bool {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        planted!("idle-unasked")
            || slots.get(allocation).is_none_or(|tasks| tasks.values().all(|slot| slot.process.idle()))
    }

    /// Whether no process of those of its tasks can be left.
    pub fn idle_of(&self, allocation: &str, task: impl Fn(&str) -> bool) -> bool {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = slots.get(allocation).into_iter().flatten();
        planted!("idle-unasked") || all.all(|(name, slot)| slot.process.idle() || !task(name))
    }

    /// Whether no process of any allocation can be left.
    pub fn all_idle(&self) -> bool {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.values().flat_map(BTreeMap::values).all(|slot| slot.process.idle())
    }

    /// The layers of images that tasks run from; none while of some task nobody can say what is left.
    pub fn layers(&self) -> Option<BTreeSet<PathBuf>> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = BTreeSet::new();
        for slot in slots.values().flat_map(BTreeMap::values).filter(|slot| !slot.process.idle()) {
            all.extend(slot.handle.as_ref()?.layers().iter().cloned());
        }
        Some(all)
    }

    /// The tasks of an allocation that were ever started here.
    pub fn names(&self, allocation: &str) -> Vec<String> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.get(allocation).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// Every allocation with a task that was ever started here.
    pub fn allocations(&self) -> Vec<String> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Says that a process is about to be started; from now on the allocation is not idle.
    pub fn starting(&self, allocation: &str, task: &str) {
        self.unwell.lock().unwrap_or_else(PoisonError::into_inner).remove(&task_key(allocation, task));
        self.set(allocation, task, Slot::of(Process::Running));
    }

    /// The start was given up. What was found to run all the same, or to have ended, stands.
    pub fn not_started(&self, allocation: &str, task: &str, before: Process) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get_mut(allocation).and_then(|tasks| tasks.get_mut(task));
        if let Some(slot) = slot.filter(|slot| slot.process == Process::Running && slot.handle.is_none()) {
            *slot = Slot::of(before);
        }
    }

    /// It ended before this machine lost every trace of it.
    pub fn ended_before(&self, allocation: &str, task: &str, process: Process) {
        self.set(allocation, task, Slot::of(process));
    }

    /// Forgets everything of an allocation that is gone.
    pub fn forget(&self, allocation: &str) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).remove(allocation);
        let prefix = task_key(allocation, "");
        let of_it = |key: &String| key.starts_with(&prefix);
        self.events.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| !of_it(key));
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| !of_it(key));
        self.last_words.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| !of_it(key));
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner).retain(|key| !of_it(key));
        self.unwell.lock().unwrap_or_else(PoisonError::into_inner).retain(|key| !of_it(key));
        self.next_attempts.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| !of_it(key));
    }

    /// Something happened to a task.
    pub fn event(&self, allocation: &str, task: &str, event: TaskEvent) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let list = events.entry(task_key(allocation, task)).or_default();
        if list.last().is_some_and(|last| last.reason == event.reason && last.message == event.message) {
            list.pop();
        }
        list.push(event);
        let surplus = list.len().saturating_sub(TASK_EVENTS_KEPT);
        list.drain(..surplus);
    }

    /// Adds something that lasts: the same again changes nothing, or its own news would bring the next look, for ever.
    pub fn lasts(&self, allocation: &str, task: &str, event: TaskEvent) {
        let known = {
            let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            let last = events.get(&task_key(allocation, task)).and_then(|list| list.last());
            last.is_some_and(|last| last.reason == event.reason && last.message == event.message)
        };
        if !known {
            self.event(allocation, task, event);
        }
    }

    /// The last things that happened to a task, oldest first; `before` is what its status said when this daemon began.
    pub fn events(&self, allocation: &str, task: &str, before: &[TaskEvent]) -> Vec<TaskEvent> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let own = events.get(&task_key(allocation, task)).map(Vec::as_slice).unwrap_or_default();
        let first = own.first().map(|e| e.time);
        let older = before.iter().filter(|e| first.is_none_or(|first| e.time < first));
        let mut all: Vec<_> = older.chain(own).cloned().collect();
        let surplus = all.len().saturating_sub(TASK_EVENTS_KEPT);
        all.drain(..surplus);
        all
    }

    /// An earlier daemon may have sent this one secrets: what it writes is told to nobody, until another process is started.
    pub fn guard(&self, allocation: &str, task: &str) {
        let mut all = self.guarded.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(task_key(allocation, task));
    }

    fn unguard(&self, allocation: &str, task: &str) {
        let mut all = self.guarded.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&task_key(allocation, task));
    }

    fn is_guarded(&self, allocation: &str, task: &str) -> bool {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner).contains(&task_key(allocation, task))
    }

    /// It ends, or has ended, because it was not well.
    pub fn set_unwell(&self, allocation: &str, task: &str) {
        self.unwell.lock().unwrap_or_else(PoisonError::into_inner).insert(task_key(allocation, task));
    }

    /// Whether it ends, or has ended, because it was not well: nobody else asked for that.
    pub fn is_unwell(&self, allocation: &str, task: &str) -> bool {
        self.unwell.lock().unwrap_or_else(PoisonError::into_inner).contains(&task_key(allocation, task))
    }

    /// What a task wrote last before its last end; none when it did not end since this daemon began.
    pub fn last_words(&self, allocation: &str, task: &str) -> Option<String> {
        let all = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&task_key(allocation, task)).cloned()
    }

    /// When a task is started again, if it waits for that.
    pub fn next_attempt(&self, allocation: &str, task: &str) -> Option<Time> {
        let all = self.next_attempts.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&task_key(allocation, task)).copied()
    }

    /// A task is not started before this time.
    pub fn wait_until(&self, allocation: &str, task: &str, time: Time) {
        let mut all = self.next_attempts.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(task_key(allocation, task), time);
    }

    /// Whether nothing has happened to a task since this daemon began.
    pub fn is_quiet(&self, allocation: &str, task: &str) -> bool {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.get(&task_key(allocation, task)).is_none_or(Vec::is_empty)
    }

    /// Whether the end at this time is seen for the first time.
    pub fn count_once(&self, allocation: &str, task: &str, finished_ms: i64) -> bool {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.insert(task_key(allocation, task), finished_ms) != Some(finished_ms)
    }

    /// Has an allocation looked at when no call is under way any more. Asked again while it waits, nothing changes.
    pub fn wait_for_calls(&self, node: &Arc<Node>, allocation: &str, mut calls: watch::Receiver<usize>) {
        let waits = || self.draining.lock().unwrap_or_else(PoisonError::into_inner);
        if !waits().insert(allocation.to_owned()) {
            return;
        }
        let (draining, stop) = (Arc::clone(&self.draining), node.stop.clone());
        let (node, allocation) = (Arc::downgrade(node), allocation.to_owned());
        self.watchers.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = calls.wait_for(|calls| *calls == 0) => {}
            }
            // Gone before the look, which may find that it has to wait once more.
            draining.lock().unwrap_or_else(PoisonError::into_inner).remove(&allocation);
            if let Some(node) = node.upgrade() {
                node.queue.wake(Key::Allocation(allocation));
            }
        });
    }

    /// Waits for the watchers to end; they end when the daemon stops.
    pub async fn join(&self) {
        self.watchers.close();
        self.watchers.wait().await;
    }

    fn set(&self, allocation: &str, task: &str, slot: Slot) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.entry(allocation.to_owned()).or_default().insert(task.to_owned(), slot);
    }

    fn handle(&self, allocation: &str, task: &str) -> Option<Arc<dyn Running>> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.get(allocation)?.get(task)?.handle.clone()
    }
}

impl Node {
    /// Where a task's records and logs are.
    pub fn place(&self, allocation: &str, task: &str) -> Place {
        Place::new(&self.options.data_dir, allocation, task)
    }

    /// The runtime of a task that was started here, by the journal. One without a record is taken for what leaves records of
    /// its own.
    fn runtime_of(&self, allocation: &str, task: &str) -> &Arc<dyn Runtime> {
        let kind = self.journal.look(|all| match all.get(&task_key(allocation, task)) {
            Some(Entry::Task(entry)) => entry.kind(&self.options.run_dir),
            _ => Kind::Process,
        });
        self.runtimes.get(kind)
    }

    /// Starts a task. [`Tasks::starting`] was called before, and the journal has it.
    pub async fn start_task(
        self: &Arc<Self>,
        runtime: &Arc<dyn Runtime>,
        order: &Order<'_>,
        clones: Vec<OwnedFd>,
    ) -> Result<(), RuntimeError> {
        let Place { allocation, task, .. } = order.place;
        match runtime.start(order, clones).await {
            Ok(handle) => {
                // What this process is told, this daemon knows of.
                self.tasks.unguard(allocation, task);
                self.watch_task(allocation, task, handle);
                if runtime.lack().is_some() {
                    // It is there again, and others may come for it.
                    self.queue.wake(Key::Agent);
                }
                Ok(())
            }
            Err(error) => {
                // What its machine lacks may be why, and others need not come for it.
                self.queue.wake(Key::Agent);
                // It may run or not: the runtime's records say which.
                self.adopt_task(allocation, task).await;
                Err(error)
            }
        }
    }

    /// Takes over what is there of a task.
    pub async fn adopt_task(self: &Arc<Self>, allocation: &str, task: &str) {
        let found = self.runtime_of(allocation, task).adopt(&self.place(allocation, task)).await;
        let slot = match found {
            Ok(Found::Running(handle)) => return self.watch_task(allocation, task, handle),
            Ok(Found::Exited(record)) => {
                self.hear_last_words(&self.place(allocation, task), &record).await;
                exited(record)
            }
            Ok(Found::Lost) => Slot::of(Process::Lost),
            Ok(Found::NeverStarted) => Slot::of(Process::Absent),
            Err(error) => {
                tracing::error!(
                    allocation,
                    task,
                    error = &error as &dyn std::error::Error,
                    "task not adopted"
                );
                // Not knowing is not absence: nothing is unmounted under it.
                Slot::of(Process::Lost)
            }
        };
        self.tasks.set(allocation, task, slot);
    }

    fn watch_task(self: &Arc<Self>, allocation: &str, task: &str, handle: Arc<dyn Running>) {
        let slot = Slot { handle: Some(Arc::clone(&handle)), ..Slot::of(Process::Running) };
        self.tasks.set(allocation, task, slot);
        let stop = self.stop.clone();
        let (node, allocation, task) = (Arc::downgrade(self), allocation.to_owned(), task.to_owned());
        self.tasks.watchers.spawn(async move {
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = handle.wait() => ended,
            };
            let Some(node) = node.upgrade() else { return };
            let slot = match ended {
                Ok(Ended::Exited(record)) => {
                    node.hear_last_words(&node.place(&allocation, &task), &record).await;
                    exited(record)
                }
                Ok(Ended::Lost) | Err(_) => Slot::of(Process::Lost),
                // Who asked it to end has said so already.
                Ok(Ended::LetGo) => return,
            };
            tracing::info!(allocation, task, process = ?slot.process, "task ended");
            node.tasks.set(&allocation, &task, slot);
            node.queue.wake(Key::Allocation(allocation.clone()));
            wake_volumes(&node, &allocation);
        });
    }

    /// Keeps what a task that failed wrote last. It is told with its end, so it must not hold that up for long.
    async fn hear_last_words(&self, place: &Place, record: &ExitRecord) {
        let unwell = self.tasks.is_unwell(&place.allocation, &place.task);
        let failed = unwell
            || !record.stopped
                && match record.outcome {
                    Outcome::Code(code) => code != 0,
                    Outcome::Signal(_) => true,
                    // What is in the logs is of an earlier run.
                    Outcome::NotStarted(_) | Outcome::Lost => false,
                };
        let wrote = |of: fn(Wrote) -> u64| record.wrote.map_or(last_words::TAIL, of).min(last_words::TAIL);
        let tail = async |name, bytes| {
            // What lies before that is an earlier run's.
            if bytes == 0 {
                return Tail::default();
            }
            // The clock of file systems is a little late.
            let since = record.started_ms - 10;
            let log = place.logs.join(name);
            let read = self.machine.files.tail(&log, since, bytes);
            tokio::time::timeout(LAST_WORDS, read).await.ok().and_then(Result::ok).unwrap_or_default()
        };
        let key = InstanceKey { allocation: place.allocation.clone(), task: place.task.clone() };
        let confided = self.tasks.is_guarded(&place.allocation, &place.task)
            || self.registry.get(&key).is_some_and(|instance| instance.client.was_confided());
        let words = if failed && confided {
            NOT_TOLD.to_owned()
        } else if failed {
            // Written to in the same moment, what is wrong stands last.
            let mut outputs = [
                tail("stdout.log", wrote(|wrote| wrote.stdout)).await,
                tail("stderr.log", wrote(|wrote| wrote.stderr)).await,
            ];
            outputs.sort_by_key(|output| output.written_ns);
            last_words::last_words(outputs.each_ref().map(|output| output.bytes.as_slice()))
        } else {
            String::new()
        };
        let mut all = self.tasks.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(task_key(&place.allocation, &place.task), words);
    }

    /// Asks a task to end, with the grace that it was started with where none is given; its end is seen by its watcher, unless
    /// it is over at once.
    pub fn stop_task(&self, allocation: &str, task: &str, grace: Option<Duration>) -> Asked {
        let Some(handle) = self.tasks.handle(allocation, task) else { return Asked::EndComes };
        let asked = handle.stop(grace).unwrap_or_else(|error| {
            tracing::warn!(allocation, task, error = &error as &dyn std::error::Error, "stop not sent");
            Asked::EndComes
        });
        let process = match asked {
            Asked::EndComes => Process::Stopping,
            Asked::Over => Process::Stopped,
        };
        let mut slots = self.tasks.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get_mut(allocation).and_then(|t| t.get_mut(task))
            && slot.process == Process::Running
        {
            slot.process = process;
        }
        asked
    }

    /// Ends a plugin that was not ready in time, so that it is started again; what is wrong with it stands in the registry.
    pub async fn end_unwell(&self, key: &InstanceKey, grace: Duration) {
        let (allocation, task) = (&key.allocation, &key.task);
        let fault = self.registry.get(key).and_then(|instance| instance.progress.fault);
        let (_, message) = fault.unwrap_or_default();
        // First, and durable: its end may be seen before this returns, or by another daemon.
        super::allocations::note_unwell(self, key).await;
        self.tasks.set_unwell(allocation, task);
        let event = TaskEvent { time: self.now(), reason: UNHEALTHY.to_owned(), message };
        self.tasks.event(allocation, task, event);
        self.stop_task(allocation, task, Some(grace));
        self.queue.wake(Key::Allocation(allocation.clone()));
    }

    /// Kills what is left of a lost task. One that runs after all was not adopted when it should have been: it is now.
    pub async fn clear_task(self: &Arc<Self>, allocation: &str, task: &str) -> Result<(), RuntimeError> {
        let place = self.place(allocation, task);
        let cleared = self.runtime_of(allocation, task).clear(&place).await;
        match &cleared {
            Ok(_) | Err(RuntimeError::Process(ProcessError::Taken { .. })) => {
                self.adopt_task(allocation, task).await;
            }
            Err(_) => {}
        }
        if self.tasks.process(allocation, task) != Process::Lost {
            return Ok(());
        }
        // Nothing is known of it still: to be tried again, after a while.
        let unknown = || ProcessError::NoAnswer { directory: place.directory }.into();
        Err(cleared.err().unwrap_or_else(unknown))
    }

    /// Removes the records of a task that is over.
    pub async fn forget_task(&self, allocation: &str, task: &str) -> Result<(), RuntimeError> {
        self.runtime_of(allocation, task).forget(&self.place(allocation, task)).await
    }
}

fn exited(record: ExitRecord) -> Slot {
    let process = if record.stopped {
        Process::Stopped
    } else {
        Process::Exited { ok: record.outcome == Outcome::Code(0) }
    };
    Slot { exit: Some(record), ..Slot::of(process) }
}

/// The exit code that people know: 128 plus the signal for a killed one.
pub fn exit_code(record: &ExitRecord) -> Option<i32> {
    match &record.outcome {
        Outcome::Code(code) => Some(*code),
        Outcome::Signal(signal) => Some(128 + signal),
        Outcome::NotStarted(_) => Some(127),
        Outcome::Lost => None,
    }
}

/// How it ended, in a sentence.
pub fn exit_message(record: &ExitRecord) -> String {
    let seconds = (record.finished_ms - record.started_ms).max(0) / 1000;
    let oom = if record.oom { ", probably out of memory" } else { "" };
    match &record.outcome {
        Outcome::Code(0) if record.oom => {
            format!(
                "exited with code 0 after {seconds} s, but one of its processes was killed for want of memory"
            )
        }
        Outcome::Code(0) => format!("exited with code 0 after {seconds} s"),
        // The kernel may have killed what the main process waited for.
        Outcome::Code(code) => format!("exited with code {code} after {seconds} s{oom}"),
        Outcome::Signal(signal) => format!("killed by signal {signal} after {seconds} s{oom}"),
        Outcome::NotStarted(why) => format!("{DID_NOT_START}: {why}"),
        Outcome::Lost => "ended with its shim, which was killed; what was left of it is gone".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_for_want_of_memory_says_so_whoever_was_killed() {
        let told = |outcome: Outcome, oom: bool| {
            let (started_ms, finished_ms, boot_id) = (0, 2000, String::new());
            exit_message(&ExitRecord {
                outcome,
                started_ms,
                finished_ms,
                oom,
                stopped: false,
                boot_id,
                wrote: None,
            })
        };
        for (outcome, message) in [
            (
                Outcome::Code(0),
                "exited with code 0 after 2 s, but one of its processes was killed for want of memory",
            ),
            (Outcome::Code(137), "exited with code 137 after 2 s, probably out of memory"),
            (Outcome::Signal(9), "killed by signal 9 after 2 s, probably out of memory"),
        ] {
            assert_eq!(told(outcome, true), message);
        }
        assert_eq!(told(Outcome::Code(3), false), "exited with code 3 after 2 s");
        assert_eq!(told(Outcome::Code(0), false), "exited with code 0 after 2 s");
    }
}
