//! Allocations bound here: their tasks started and stopped by `plan::supervise`, and what their status says.
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::{Resource, ResourceExt};
use serde::Serialize;

use super::context::{Key, Node, substitute};
use super::journal::{Change, Entry, InstanceEntry, PublicationEntry, TaskEntry, task_key};
use super::mounts::{TARGET, hash, stopping};
use super::registry::{Instance, InstanceKey, Progress};
use super::supervisor::{HEALTH_TIMEOUT, Watched};
use super::tasks::{exit_code, exit_message};
use crate::api::allocation::{
    AllocationPhase, RestartPolicy, Task, TaskEvent, TaskState, TaskStatus, VolumePublication,
};
use crate::api::meta::{Condition, ObjectRef, READY, Rung, Truth, set_condition};
use crate::api::{Allocation, quantity};
use crate::csi;
use crate::plan::mount::Level;
use crate::plan::supervise::{self, Process, Step, Wanted};
use crate::plan::{Next, Reason};
use crate::sys::path::{Place, TreePath};
use crate::sys::process::{LogSpec, TaskMount, TaskSpec};

/// The grace of a task that names none.
const GRACE: Duration = Duration::from_secs(10);
/// A task that ran for so long starts again with the first delay.
const LONG_RUN_MS: i64 = 60_000;
/// Each log file, and how many.
const LOG: (u64, u32) = (10 << 20, 3);

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
    for entry in &entries {
        match supervise::next(Wanted::Stopped, seen(node, uid, &entry.task, RestartPolicy::Never, false)) {
            Next::Do(Step::Clear) => {
                if let Err(error) = node.clear_task(uid, &entry.task).await {
                    tracing::warn!(uid, error = &error as &dyn std::error::Error, "leftovers not cleared");
                    return Some(node.retry.failed(&format!("task/{uid}/clear"), "clear".to_owned()));
                }
            }
            Next::Do(Step::Stop) => node.stop_task(uid, &entry.task, GRACE),
            Next::Do(Step::Start | Step::Restart) | Next::Wait(_) | Next::Converged => {}
        }
    }
    if !node.tasks.idle(uid) {
        return None;
    }
    let mut changes = Vec::new();
    for entry in &entries {
        let directory = node.task_directory(uid, &entry.task);
        if let Err(error) = node.machine.processes.forget(&directory).await {
            tracing::warn!(uid, error = &error as &dyn std::error::Error, "task's records not removed");
        }
        withdraw(node, uid, &entry.task, entry.plugin.as_ref());
        changes.push(Change::Forget(task_key(uid, &entry.task)));
    }
    if node.journal.commit(changes).await.is_ok() {
        node.tasks.forget(uid);
        node.forget_written(uid);
        node.retry.forget(&format!("task/{uid}"));
    }
    wake_volumes(node, uid);
    None
}

async fn bound(node: &Arc<Node>, allocation: &Allocation) -> Option<Duration> {
    let uid = allocation.uid().unwrap_or_default();
    let plugin = allocation.spec.tasks.iter().any(|t| t.csi_plugin.is_some());
    let wanted = wanted(node, allocation, plugin);
    let mut again: Option<Duration> = None;
    let idle_before = node.tasks.idle(&uid);
    for task in &allocation.spec.tasks {
        let delay = run_task(node, allocation, task, wanted).await;
        again = [again, delay].into_iter().flatten().min();
    }
    if node.tasks.idle(&uid) && (!idle_before || wanted == Wanted::Stopped) {
        wake_volumes(node, &uid);
    }
    let written = node.write_status(allocation, "node", &status(node, allocation, wanted)).await;
    [again, node.after_write(&format!("alloc/{uid}/report"), written)].into_iter().flatten().min()
}

fn wanted(node: &Node, allocation: &Allocation, plugin: bool) -> Wanted {
    let uid = allocation.uid().unwrap_or_default();
    let status = allocation.status.clone().unwrap_or_default();
    let stop = if plugin {
        let asked = allocation.meta().deletion_timestamp.is_some() || allocation.spec.stop || node.stopped();
        asked && status.plugin_released
    } else {
        stopping(node, allocation)
    };
    let tasks: Vec<_> =
        allocation.spec.tasks.iter().map(|t| (node.tasks.process(&uid, &t.name), t.restart_policy)).collect();
    supervise::wanted(stop, &tasks)
}

fn seen(node: &Node, uid: &str, task: &str, policy: RestartPolicy, volumes_ready: bool) -> supervise::Seen {
    supervise::Seen {
        process: node.tasks.process(uid, task),
        policy,
        volumes_ready,
        pause_over: node.retry.remaining(&format!("task/{uid}/{task}")).is_none(),
    }
}

async fn run_task(
    node: &Arc<Node>,
    allocation: &Allocation,
    task: &Task,
    wanted: Wanted,
) -> Option<Duration> {
    let uid = allocation.uid().unwrap_or_default();
    let step_name = format!("task/{uid}/{}", task.name);
    count_exit(node, &uid, task, &step_name);
    let ready = publications(node, allocation).is_some();
    match supervise::next(wanted, seen(node, &uid, &task.name, task.restart_policy, ready)) {
        Next::Converged => {
            keep_watch(node, allocation, task);
            None
        }
        Next::Wait(Reason::Backoff) => node.retry.remaining(&step_name),
        Next::Wait(_) => None,
        Next::Do(step @ (Step::Start | Step::Restart)) => {
            match start(node, allocation, task, step == Step::Restart).await {
                Ok(()) => {
                    keep_watch(node, allocation, task);
                    None
                }
                Err(message) => {
                    tracing::warn!(
                        allocation = allocation.name_any(),
                        task = task.name,
                        message,
                        "task not started"
                    );
                    node.tasks.event(&uid, &task.name, event(node, "StartFailed", &message));
                    Some(node.retry.failed(&step_name, "start".to_owned()))
                }
            }
        }
        Next::Do(Step::Stop) => {
            node.tasks.event(&uid, &task.name, event(node, "Stopping", "asked to end"));
            node.stop_task(&uid, &task.name, grace(task));
            None
        }
        Next::Do(Step::Clear) => match node.clear_task(&uid, &task.name).await {
            Ok(()) => {
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

fn event(node: &Node, reason: &str, message: &str) -> TaskEvent {
    TaskEvent { time: node.now(), reason: reason.to_owned(), message: message.to_owned() }
}

fn grace(task: &Task) -> Duration {
    task.stop_grace_period.as_deref().and_then(quantity::duration).unwrap_or(GRACE)
}

/// Counts each end of a task once: it lengthens the pause before the next start, and a plugin's end is deregistered.
fn count_exit(node: &Arc<Node>, uid: &str, task: &Task, step: &str) {
    let Some(record) = node.tasks.exit(uid, &task.name) else { return };
    if !node.tasks.count_once(uid, &task.name, record.finished_ms) {
        return;
    }
    if record.finished_ms - record.started_ms >= LONG_RUN_MS {
        node.retry.succeeded(step);
    }
    node.retry.failed(step, "exit".to_owned());
    node.tasks.event(uid, &task.name, event(node, "Exited", &exit_message(&record)));
    if task.csi_plugin.is_some() {
        let key = InstanceKey { allocation: uid.to_owned(), task: task.name.clone() };
        node.supervisors.stop(&key);
        let message = exit_message(&record);
        let changed = node.registry.progress(&key, |p| {
            *p = Progress {
                fingerprint: p.fingerprint.take(),
                fault: Some(("ProcessEnded".into(), format!("its process {message}"))),
                ..Progress::default()
            };
        });
        if changed.is_some_and(|(before, after)| before != after) {
            node.queue.wake(Key::Instance(key));
        }
    }
}

/// Every publication that the allocation needs, if all are up and wanted.
fn publications(node: &Node, allocation: &Allocation) -> Option<BTreeMap<String, PublicationEntry>> {
    let uid = allocation.uid().unwrap_or_default();
    let up: BTreeMap<_, _> = node
        .journal
        .publications_of(&uid)
        .into_iter()
        .filter(|p| p.level == Level::Up)
        .map(|p| (p.name.clone(), p))
        .collect();
    allocation.spec.volumes.iter().all(|v| up.contains_key(&v.name)).then_some(up)
}

async fn start(node: &Arc<Node>, allocation: &Allocation, task: &Task, again: bool) -> Result<(), String> {
    let uid = allocation.uid().unwrap_or_default();
    let before = node.tasks.process(&uid, &task.name);
    // From here on the allocation is not idle: an unpublish that begins now sees that.
    node.tasks.starting(&uid, &task.name);
    let result = start_marked(node, allocation, task, again).await;
    if result.is_err() && node.tasks.process(&uid, &task.name) == Process::Running {
        node.tasks.not_started(&uid, &task.name, before);
    }
    result
}

async fn start_marked(
    node: &Arc<Node>,
    allocation: &Allocation,
    task: &Task,
    again: bool,
) -> Result<(), String> {
    let uid = allocation.uid().unwrap_or_default();
    let volumes = publications(node, allocation).ok_or("a volume went away")?;
    let socket = socket(node, &uid, task);
    let instance = task.csi_plugin.as_ref().map(|p| InstanceEntry {
        plugin: p.plugin_name.clone(),
        role: p.role,
        socket: socket.clone(),
    });
    let restarts = restarts(node, &uid, &task.name) + u32::from(again);
    let entry = TaskEntry {
        allocation: ObjectRef {
            namespace: allocation.namespace().unwrap_or_default(),
            name: allocation.name_any(),
            uid: uid.clone(),
        },
        task: task.name.clone(),
        restarts,
        plugin: instance.clone(),
    };
    node.journal.put(Entry::Task(entry)).await.map_err(|e| e.to_string())?;
    if let Some(instance) = &instance {
        if task.runtime.external.is_none() {
            node.machine.dial.prepare(&socket).map_err(|e| format!("{}: {e}", socket.display()))?;
        }
        register(node, &uid, &task.name, instance)?;
    }
    if task.runtime.external.is_some() {
        node.tasks.set_external(&uid, &task.name, true);
        return Ok(());
    }
    if !node.options.runtimes.iter().any(|r| r == "process") {
        return Err(
            "this node does not allow the runtime \"process\"; its file lists what it does".to_owned()
        );
    }
    let (spec, clones) = task_spec(node, allocation, task, &volumes).await?;
    let log = node.machine.files.open_append(&spec.logs.stdout).await.map_err(|e| e.to_string())?;
    drop(log);
    node.start_task(&uid, &task.name, &spec, clones).await.map_err(|e| e.to_string())?;
    let (reason, message) = if again { ("Restarted", "started again") } else { ("Started", "started") };
    node.tasks.event(&uid, &task.name, event(node, reason, message));
    tracing::info!(allocation = allocation.name_any(), task = task.name, restarts, "task started");
    Ok(())
}

fn restarts(node: &Node, uid: &str, task: &str) -> u32 {
    node.journal.look(|all| match all.get(&task_key(uid, task)) {
        Some(Entry::Task(entry)) => entry.restarts,
        _ => 0,
    })
}

async fn task_spec(
    node: &Arc<Node>,
    allocation: &Allocation,
    task: &Task,
    volumes: &BTreeMap<String, PublicationEntry>,
) -> Result<(TaskSpec, Vec<OwnedFd>), String> {
    let uid = allocation.uid().unwrap_or_default();
    let process = task.runtime.process.clone().unwrap_or_default();
    let plugin = task.csi_plugin.is_some();
    let endpoint =
        if plugin { format!("unix://{}", socket(node, &uid, task).display()) } else { String::new() };
    let variables = node.variables(&endpoint);
    let mut env = BTreeMap::from([
        ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("NODE_NAME".to_owned(), node.options.name.clone()),
    ]);
    if plugin {
        env.insert("CSI_ENDPOINT".to_owned(), endpoint);
    }
    env.extend(task.env.iter().map(|(k, v)| (k.clone(), substitute(v, &variables))));
    let (mut mounts, mut clones) = (Vec::new(), Vec::new());
    for mount in &task.volume_mounts {
        let publication =
            volumes.get(&mount.name).ok_or_else(|| format!("volume {} is not published", mount.name))?;
        let verified = publication.verified.as_ref().ok_or("a publication was never verified")?;
        let target =
            TreePath::new(["publish", publication.directory.as_str(), TARGET]).map_err(|e| e.to_string())?;
        let clone = node.machine.kernel.clone_mount(&target, verified).await.map_err(|e| e.to_string())?;
        clones.push(clone);
        mounts.push(TaskMount {
            fd: -1,
            path: PathBuf::from(&mount.mount_path),
            read_only: mount.read_only || publication.read_only,
            block: verified.mount.is_none()
                || matches!(verified.kind, crate::sys::kernel::FileKind::Block(_)),
        });
    }
    let logs = node.log_directory(&uid, &task.name);
    let spec = TaskSpec {
        argv: process.command.iter().map(|arg| substitute(arg, &variables)).collect(),
        env,
        cwd: PathBuf::from(if process.working_dir.is_empty() { "/" } else { &process.working_dir }),
        logs: LogSpec {
            stdout: logs.join("stdout.log"),
            stderr: logs.join("stderr.log"),
            max_bytes: LOG.0,
            files: LOG.1,
        },
        grace_ms: u64::try_from(grace(task).as_millis()).unwrap_or(u64::MAX),
        private_mounts: !plugin,
        mounts,
        hide: if plugin {
            Vec::new()
        } else {
            vec![node.options.data_dir.clone(), node.options.run_dir.clone()]
        },
    };
    Ok((spec, clones))
}

/// Where the instance's socket is: a directory of its own, or where something else made it.
fn socket(node: &Node, uid: &str, task: &Task) -> PathBuf {
    match &task.runtime.external {
        Some(external) => PathBuf::from(substitute(&external.socket, &node.variables(""))),
        None => node.options.run_dir.join(&hash(&["instance", uid, &task.name])[..12]).join("csi.sock"),
    }
}

/// Puts an instance into the registry; the same again changes nothing.
pub fn register(node: &Arc<Node>, uid: &str, task: &str, entry: &InstanceEntry) -> Result<(), String> {
    let client =
        node.machine.dial.plugin(&entry.socket, csi::PluginOptions::default()).map_err(|e| e.to_string())?;
    let key = InstanceKey { allocation: uid.to_owned(), task: task.to_owned() };
    node.registry.register(
        key.clone(),
        Instance {
            plugin: entry.plugin.clone(),
            role: entry.role,
            socket: entry.socket.clone(),
            client,
            progress: Progress::default(),
        },
    );
    node.queue.wake(Key::Instance(key));
    Ok(())
}

/// Takes an instance out of the registry and removes its socket's directory.
fn withdraw(node: &Arc<Node>, uid: &str, task: &str, plugin: Option<&InstanceEntry>) {
    let Some(entry) = plugin else { return };
    let key = InstanceKey { allocation: uid.to_owned(), task: task.to_owned() };
    node.supervisors.stop(&key);
    if let Some(plugin) = node.registry.deregister(&key) {
        node.queue.wake(Key::Plugin(plugin));
    }
    if entry.socket.starts_with(&node.options.run_dir) {
        node.machine.dial.discard(&entry.socket);
    }
    node.queue.wake(Key::Instance(key));
}

/// A running plugin instance has a supervisor.
fn keep_watch(node: &Arc<Node>, allocation: &Allocation, task: &Task) {
    let Some(plugin) = &task.csi_plugin else { return };
    let uid = allocation.uid().unwrap_or_default();
    if node.tasks.process(&uid, &task.name) != Process::Running {
        return;
    }
    let key = InstanceKey { allocation: uid.clone(), task: task.name.clone() };
    if node.registry.get(&key).is_none() {
        let entry = InstanceEntry {
            plugin: plugin.plugin_name.clone(),
            role: plugin.role,
            socket: socket(node, &uid, task),
        };
        if register(node, &uid, &task.name, &entry).is_err() {
            return;
        }
    }
    let driver_name =
        node.caches.plugins.one(&plugin.plugin_name).map(|p| p.spec.driver_name.clone()).unwrap_or_default();
    let watched = Watched {
        key,
        driver_name,
        ours: task.runtime.external.is_none(),
        health_timeout: plugin
            .health_timeout
            .as_deref()
            .and_then(quantity::duration)
            .unwrap_or(HEALTH_TIMEOUT),
    };
    node.supervisors.ensure(node, watched);
}

/// Has every volume that is published for an allocation looked at.
pub fn wake_volumes(node: &Node, uid: &str) {
    for publication in node.journal.publications_of(uid) {
        if let Some(attachment) = node.journal.attachment(&publication.attachment) {
            node.queue.wake(Key::Mount(attachment.volume));
        }
    }
}

/// The node's part of an allocation's status.
#[derive(Serialize)]
struct NodePart {
    phase: AllocationPhase,
    volumes: Vec<VolumePublication>,
    tasks: Vec<TaskStatus>,
    conditions: Vec<Condition>,
}

fn status(node: &Node, allocation: &Allocation, wanted: Wanted) -> NodePart {
    let uid = allocation.uid().unwrap_or_default();
    let before = allocation.status.clone().unwrap_or_default();
    let published = node.journal.publications_of(&uid);
    let mut notes = Vec::new();
    let volumes: Vec<_> = allocation
        .spec
        .volumes
        .iter()
        .map(|v| volume_status(node, allocation, v, &published, &mut notes))
        .collect();
    let tasks: Vec<_> = allocation
        .spec
        .tasks
        .iter()
        .map(|t| {
            let known = before.tasks.iter().find(|k| k.name == t.name);
            task_status(node, &uid, t, known)
        })
        .collect();
    let processes: Vec<_> =
        allocation.spec.tasks.iter().map(|t| (node.tasks.process(&uid, &t.name), t.restart_policy)).collect();
    let ready = volumes.iter().all(|v| v.published == Rung::Up);
    let gone = published.is_empty();
    let over = before.phase.filter(|p| matches!(p, AllocationPhase::Complete | AllocationPhase::Failed));
    let phase = match over {
        // What ended stays ended; its volumes are released all the same.
        Some(phase) => phase,
        None => supervise::phase(wanted, ready, gone, &processes),
    };
    let phase = match (phase, supervise::wanted(false, &processes)) {
        (AllocationPhase::Stopping | AllocationPhase::Stopped, Wanted::Stopped)
            if allocation.meta().deletion_timestamp.is_none() && !allocation.spec.stop && !node.stopped() =>
        {
            AllocationPhase::Failed
        }
        (phase, _) => phase,
    };
    let mut conditions = before.conditions;
    let generation = allocation.meta().generation;
    let (word, message) = notes.into_iter().next().unwrap_or_default();
    let volumes_ready = if ready {
        Condition::new("VolumesReady", Truth::True, "Published", "")
    } else if word.is_empty() {
        let reason = Reason::VolumesNotReady;
        Condition::new("VolumesReady", Truth::False, reason.word(), reason.to_string())
    } else {
        Condition::new("VolumesReady", Truth::False, &word, message.clone())
    };
    set_condition(&mut conditions, volumes_ready.of_generation(generation), node.now());
    let truth = if matches!(phase, AllocationPhase::Running | AllocationPhase::Complete) {
        Truth::True
    } else {
        Truth::False
    };
    let why = ready_message(phase, &word, &message, &tasks);
    set_condition(
        &mut conditions,
        Condition::new(READY, truth, &why.0, why.1).of_generation(generation),
        node.now(),
    );
    NodePart { phase, volumes, tasks, conditions }
}

fn ready_message(
    phase: AllocationPhase,
    word: &str,
    message: &str,
    tasks: &[TaskStatus],
) -> (String, String) {
    let last = || {
        tasks
            .iter()
            .filter_map(|t| t.events.last().map(|e| format!("task {}: {}", t.name, e.message)))
            .next_back()
    };
    match phase {
        AllocationPhase::Running if tasks.iter().all(|t| t.state == TaskState::Running) => {
            ("Running".into(), String::new())
        }
        AllocationPhase::Running => ("Restarting".into(), last().unwrap_or_default()),
        AllocationPhase::Complete => ("Complete".into(), String::new()),
        AllocationPhase::Failed => ("TaskFailed".into(), last().unwrap_or_default()),
        AllocationPhase::Pending | AllocationPhase::WaitingVolumes if !word.is_empty() => {
            (word.to_owned(), message.to_owned())
        }
        AllocationPhase::Pending | AllocationPhase::WaitingVolumes => {
            let start = last().filter(|m| !m.is_empty());
            ("Waiting".into(), start.unwrap_or_else(|| Reason::VolumesNotReady.to_string()))
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

fn volume_status(
    node: &Node,
    allocation: &Allocation,
    volume: &crate::api::allocation::AllocationVolume,
    published: &[PublicationEntry],
    notes: &mut Vec<(String, String)>,
) -> VolumePublication {
    let namespace = allocation.namespace().unwrap_or_default();
    let of_claim = |c: &ObjectRef| c.name == volume.claim_name && c.namespace == namespace;
    let attachment = node.caches.attachments.all().into_iter().find(|a| of_claim(&a.spec.claim));
    let entry = published.iter().find(|p| p.name == volume.name);
    if let Some(attachment) = &attachment {
        let found = node.notes.get(&format!("att/{}", attachment.uid().unwrap_or_default()));
        if !found.0.is_empty() {
            notes.push(found);
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
    VolumePublication {
        name: volume.name.clone(),
        volume: attachment.map(|a| a.spec.volume.clone()).unwrap_or_default(),
        published: entry.map_or(Rung::Down, |e| e.level.rung()),
        path: if entry.is_some_and(|e| e.level == Level::Up) { path } else { String::new() },
        calls: Vec::new(),
    }
}

fn task_status(node: &Node, uid: &str, task: &Task, known: Option<&TaskStatus>) -> TaskStatus {
    let state = match node.tasks.process(uid, &task.name) {
        Process::Absent => TaskState::Pending,
        Process::Running => TaskState::Running,
        Process::Stopping => TaskState::Stopping,
        Process::Lost => TaskState::Stopping,
        Process::Exited { ok } => {
            let again = task.restart_policy == RestartPolicy::Always
                || (task.restart_policy == RestartPolicy::OnFailure && !ok);
            if again && node.retry.remaining(&format!("task/{uid}/{}", task.name)).is_some() {
                TaskState::Restarting
            } else {
                TaskState::Exited
            }
        }
    };
    TaskStatus {
        name: task.name.clone(),
        state,
        restarts: restarts(node, uid, &task.name),
        exit_code: node
            .tasks
            .exit(uid, &task.name)
            .as_ref()
            .and_then(exit_code)
            .or(known.and_then(|k| k.exit_code)),
        events: node.tasks.events(uid, &task.name, known.map(|k| k.events.as_slice()).unwrap_or_default()),
    }
}
