//! Starts a task: its volumes cloned, its socket prepared, its runtime asked.
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kube::ResourceExt;

use super::super::caches::full_name;
use super::super::context::{Key, Node, substitute};
use super::super::events::Tone;
use super::super::journal::{Entry, PublicationEntry, TaskEntry, publication_key, task_key};
use super::super::mounts::{TARGET, chain, tenure};
use super::super::runtime::{Order, Place, Runtime, VolumeAt};
use super::plugins::{self, prepare, register, socket, withdraw};
use super::{about_task, event, grace, reference, serving, step};
use crate::api::Allocation;
use crate::api::allocation::{Task, VolumeMount};
use crate::plan::container::PluginPart;
use crate::plan::mount::Level;
use crate::plan::release::Tenure;
use crate::sys::kernel::{FileKind, KernelError, Present};
use crate::sys::path::{Place as At, SubPath, TreePath};

/// Every publication that the allocation has by a grant that stands, if all are up that a task waits for. One that serves a plugin mounts none, and
/// waits for none.
pub(super) fn publications(
    node: &Node,
    allocation: &Allocation,
    task: &Task,
) -> Option<BTreeMap<String, PublicationEntry>> {
    let uid = allocation.uid().unwrap_or_default();
    let up: BTreeMap<_, _> = node
        .journal
        .publications_of(&uid)
        .into_iter()
        .filter(|p| p.level == Level::Up && tenure(node, p) == Tenure::Stands)
        .map(|p| (p.name.clone(), p))
        .collect();
    let mut wanted = allocation.spec.volumes.iter();
    (task.csi_plugin.is_some() || wanted.all(|v| up.contains_key(&v.name))).then_some(up)
}

/// Why a task was not started.
pub(super) struct NotStarted {
    /// In one word, for conditions and events.
    pub(super) word: &'static str,
    /// In a sentence.
    pub(super) message: String,
}

/// A start that was not made, or of which the runtime says that it failed.
const START_FAILED: &str = "StartFailed";
/// What a subPath names is no directory within its volume.
const SUB_PATH_UNUSABLE: &str = "SubPathUnusable";
/// Both, which a person may have to mend.
pub(super) const FAILED_STARTS: [&str; 2] = [START_FAILED, SUB_PATH_UNUSABLE];

impl From<String> for NotStarted {
    fn from(message: String) -> Self {
        Self { word: START_FAILED, message }
    }
}

impl From<&str> for NotStarted {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

pub(super) async fn start(
    node: &Arc<Node>,
    allocation: &Allocation,
    task: &Task,
    again: bool,
) -> Result<(), NotStarted> {
    let uid = allocation.uid().unwrap_or_default();
    let before = node.tasks.process(&uid, &task.name);
    // From here on the allocation is not idle: an unpublish that begins now sees that.
    node.tasks.starting(&uid, &task.name);
    let result = start_marked(node, allocation, task, again).await;
    if result.is_err() {
        node.tasks.not_started(&uid, &task.name, before);
    }
    result
}

pub(super) async fn start_marked(
    node: &Arc<Node>,
    allocation: &Allocation,
    task: &Task,
    again: bool,
) -> Result<(), NotStarted> {
    let uid = allocation.uid().unwrap_or_default();
    let runtime = node.runtimes.allowed(&task.runtime).map_err(|error| error.to_string())?;
    let volumes = publications(node, allocation, task).ok_or("a volume went away")?;
    let instance = plugins::entry(node, &uid, task);
    if let Some(instance) = instance.as_ref().filter(|_| !runtime.runs()) {
        plugins::elsewhere(node, &instance.socket)?;
    }
    let restarts = restarts(node, &uid, &task.name) + u32::from(again);
    let entry = TaskEntry {
        allocation: reference(allocation),
        task: task.name.clone(),
        restarts,
        plugin: instance.clone(),
        runtime: Some(runtime.kind()),
        image: runtime.next_image(&node.place(&uid, &task.name)),
        failures: node.retry.attempt(&step(&uid, &task.name)) - 1,
        boot: node.boot_id.clone(),
    };
    // What it was until now is nobody's any more.
    let former = serving::former(node, &uid, &task.name);
    let other = former.filter(|former| instance.as_ref().is_some_and(|i| i.plugin != former.plugin));
    withdraw(node, &uid, &task.name, other.as_ref()).await;
    node.journal.put(Entry::Task(entry)).await.map_err(|e| e.to_string())?;
    if let Some(instance) = &instance {
        if runtime.runs() {
            prepare(node, &instance.socket).await?;
        }
        register(node, &uid, &task.name, instance)?;
        plugins::catch_up(node, &uid, &task.name).await;
    }
    let place = node.place(&uid, &task.name);
    let (order, clones) = order(node, allocation, (task, &**runtime), &place, &volumes).await?;
    node.start_task(runtime, &order, clones).await.map_err(|e| e.to_string())?;
    if !runtime.runs() {
        return Ok(());
    }
    let (reason, message) = if again { ("Restarted", "started again") } else { ("Started", "started") };
    node.tasks.event(&uid, &task.name, event(node, reason, message));
    let note = format!("task {} {message}", task.name);
    node.events.tell(about_task(allocation, task), Tone::Normal, &format!("Task{reason}"), "Run", &note);
    tracing::info!(allocation = allocation.name_any(), task = task.name, restarts, "task started");
    Ok(())
}

/// Nothing of it is there after a start that failed: should the machine go down now, it has not begun.
pub(super) async fn never_began(node: &Node, uid: &str, task: &str) {
    let key = task_key(uid, task);
    let forgotten = node.journal.edit(&key, |entry| match entry {
        Entry::Task(entry) => !std::mem::take(&mut entry.boot).is_empty(),
        _ => false,
    });
    // A journal that cannot be written ends the daemon.
    let _ended = forgotten.await;
}

/// What was published is not there any more, or something else is: it is in doubt, and published again.
async fn publish_again(node: &Node, publication: &PublicationEntry) {
    let key = publication_key(&publication.attachment, &publication.allocation.uid, &publication.name);
    let doubted = node.journal.edit(&key, |entry| match entry {
        Entry::Publication(known) if known == publication => {
            known.level = Level::Rising;
            true
        }
        // It is something else by now.
        _ => false,
    });
    // A journal that cannot be written ends the daemon.
    let _ended = doubted.await;
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

/// A clone of a volume, or of the directory of it that is asked for. A directory that is missing is made, unless the task
/// may not write.
async fn clone(
    node: &Node,
    target: &TreePath,
    verified: &Present,
    (mount, read_only): (&VolumeMount, bool),
) -> Result<OwnedFd, (Option<KernelError>, NotStarted)> {
    let kernel = &node.machine.kernel;
    if mount.sub_path.is_empty() {
        return kernel.clone_mount(target, verified).await.map_err(|error| {
            let sentence = chain(&error);
            (Some(error), sentence.into())
        });
    }
    let said = |error: &dyn std::fmt::Display| {
        let message = format!("volume {}, subPath \"{}\": {error}", mount.name, mount.sub_path);
        NotStarted { word: SUB_PATH_UNUSABLE, message }
    };
    if verified.mount.is_none() || matches!(verified.kind, FileKind::Block(_)) {
        return Err((None, said(&"a block volume has no directories; leave subPath out")));
    }
    let within = SubPath::new(&mount.sub_path, !read_only).map_err(|error| (None, said(&error)))?;
    kernel.clone_directory(target, verified, &within).await.map_err(|error| {
        let sentence = match &error {
            KernelError::Outside { .. } => {
                said(&"leads through a link, or to another mount; name the directory itself")
            }
            KernelError::NotFound { .. } => {
                said(&"is not there, and is not made for a mount that is readOnly")
            }
            KernelError::Refused { source, .. } if source.kind() == ErrorKind::NotADirectory => {
                said(&"is a file or leads through one; a subPath is a directory")
            }
            other => NotStarted { word: START_FAILED, ..said(&chain(other)) },
        };
        (Some(error), sentence)
    })
}

async fn order<'a>(
    node: &Arc<Node>,
    allocation: &Allocation,
    (task, runtime): (&'a Task, &dyn Runtime),
    place: &'a Place,
    published: &BTreeMap<String, PublicationEntry>,
) -> Result<(Order<'a>, Vec<OwnedFd>), NotStarted> {
    let uid = allocation.uid().unwrap_or_default();
    let plugin = plugin_part(node, &uid, task);
    let endpoint = plugin.as_ref().map(|_| runtime.endpoint(task, &socket(node, &uid, task)));
    let variables = node.variables(endpoint.as_deref().unwrap_or_default());
    let mut env = BTreeMap::from([("NODE_NAME".to_owned(), node.options.name.clone())]);
    env.extend(endpoint.map(|endpoint| ("CSI_ENDPOINT".to_owned(), endpoint)));
    env.extend(task.env.iter().map(|(k, v)| (k.clone(), substitute(v, &variables))));
    let (mut volumes, mut clones) = (Vec::new(), Vec::new());
    for mount in &task.volume_mounts {
        let publication =
            published.get(&mount.name).ok_or_else(|| format!("volume {} is not published", mount.name))?;
        let verified = publication.verified.as_ref().ok_or("a publication was never verified")?;
        let target =
            TreePath::new(["publish", publication.directory.as_str(), TARGET]).map_err(|e| e.to_string())?;
        let read_only = mount.read_only || publication.read_only;
        match clone(node, &target, verified, (mount, read_only)).await {
            Ok(clone) => clones.push(clone),
            Err((error, sentence)) => {
                if matches!(error, Some(KernelError::Changed { .. })) {
                    publish_again(node, publication).await;
                }
                return Err(sentence);
            }
        }
        volumes.push(VolumeAt {
            path: PathBuf::from(&mount.mount_path),
            read_only,
            block: verified.mount.is_none() || matches!(verified.kind, FileKind::Block(_)),
            device: match verified.kind {
                FileKind::Block(device) => Some(device),
                FileKind::Directory | FileKind::File | FileKind::Other => None,
            },
        });
    }
    let (name, grace) = (full_name(allocation), grace(task));
    Ok((Order { place, name, task, variables, env, grace, volumes, plugin }, clones))
}

/// What a task that serves a plugin has beyond others.
fn plugin_part(node: &Node, uid: &str, task: &Task) -> Option<PluginPart> {
    let plugin = task.csi_plugin.as_ref()?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    Some(PluginPart {
        role: plugin.role,
        socket_directory: socket(node, uid, task).parent().map(text).unwrap_or_default(),
        mount_dir: plugin.mount_dir.clone(),
        tree: text(&node.machine.kernel.absolute(&At::Tree(TreePath::root()))),
        stage_publish_base_dir: plugin.stage_publish_base_dir.clone(),
    })
}
