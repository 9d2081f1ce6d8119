//! Starts a task: its volumes cloned, its socket prepared, its shim launched.
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use kube::ResourceExt;

use super::super::context::{Key, Node, substitute};
use super::super::events::Tone;
use super::super::journal::{Entry, PublicationEntry, TaskEntry, task_key};
use super::super::mounts::TARGET;
use super::plugins::{self, prepare, register, socket};
use super::{about, event, grace, reference};
use crate::api::Allocation;
use crate::api::allocation::Task;
use crate::plan::mount::Level;
use crate::plan::supervise::Process;
use crate::sys::kernel::{FileKind, KernelError};
use crate::sys::path::TreePath;
use crate::sys::process::{LogSpec, TaskMount, TaskSpec};

/// Each log file, and how many.
const LOG: (u64, u32) = (10 << 20, 3);

/// Every publication that the allocation needs, if all are up and wanted.
pub(super) fn publications(
    node: &Node,
    allocation: &Allocation,
) -> Option<BTreeMap<String, PublicationEntry>> {
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

pub(super) async fn start(
    node: &Arc<Node>,
    allocation: &Allocation,
    task: &Task,
    again: bool,
) -> Result<(), String> {
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

pub(super) async fn start_marked(
    node: &Arc<Node>,
    allocation: &Allocation,
    task: &Task,
    again: bool,
) -> Result<(), String> {
    let uid = allocation.uid().unwrap_or_default();
    let volumes = publications(node, allocation).ok_or("a volume went away")?;
    let instance = plugins::entry(node, &uid, task);
    let restarts = restarts(node, &uid, &task.name) + u32::from(again);
    let entry = TaskEntry {
        allocation: reference(allocation),
        task: task.name.clone(),
        restarts,
        plugin: instance.clone(),
    };
    node.journal.put(Entry::Task(entry)).await.map_err(|e| e.to_string())?;
    if let Some(instance) = &instance {
        if task.runtime.external.is_none() {
            prepare(node, &instance.socket).await?;
        }
        register(node, &uid, &task.name, instance)?;
    }
    if task.runtime.external.is_some() {
        node.tasks.set_external(&uid, &task.name);
        return Ok(());
    }
    if !node.options.runtimes.iter().any(|r| r == "process") {
        return Err(
            "this node does not allow the runtime \"process\"; its file lists what it does".to_owned()
        );
    }
    let (spec, clones) = task_spec(node, allocation, task, &volumes).await?;
    // Makes the directory; the shim opens the file by itself.
    drop(node.machine.files.open_append(&spec.logs.stdout).await.map_err(|e| e.to_string())?);
    node.start_task(&uid, &task.name, &spec, clones).await.map_err(|e| e.to_string())?;
    let (reason, message) = if again { ("Restarted", "started again") } else { ("Started", "started") };
    node.tasks.event(&uid, &task.name, event(node, reason, message));
    let note = format!("task {} {message}", task.name);
    node.events.tell(about(allocation), Tone::Normal, &format!("Task{reason}"), "Run", &note);
    tracing::info!(allocation = allocation.name_any(), task = task.name, restarts, "task started");
    Ok(())
}

/// What was published is not there any more, or something else is: it is in doubt, and published again.
async fn publish_again(node: &Node, publication: &PublicationEntry) {
    let doubted = PublicationEntry { level: Level::Rising, ..publication.clone() };
    // A journal that cannot be written ends the daemon.
    let _ended = node.journal.put(Entry::Publication(doubted)).await;
    if let Some(attachment) = node.journal.attachment(&publication.attachment) {
        node.queue.wake(Key::Mount(attachment.volume));
    }
}

pub(super) fn restarts(node: &Node, uid: &str, task: &str) -> u32 {
    node.journal.look(|all| match all.get(&task_key(uid, task)) {
        Some(Entry::Task(entry)) => entry.restarts,
        _ => 0,
    })
}

pub(super) async fn task_spec(
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
        match node.machine.kernel.clone_mount(&target, verified).await {
            Ok(clone) => clones.push(clone),
            Err(error) => {
                if matches!(error, KernelError::Changed { .. }) {
                    publish_again(node, publication).await;
                }
                return Err(error.to_string());
            }
        }
        mounts.push(TaskMount {
            fd: -1,
            path: PathBuf::from(&mount.mount_path),
            read_only: mount.read_only || publication.read_only,
            block: verified.mount.is_none() || matches!(verified.kind, FileKind::Block(_)),
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
