//! Tasks that serve a plugin: their sockets, their place in the registry, their supervisors.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;

use super::super::context::{Key, Node};
use super::super::journal::{Entry, InstanceEntry, TaskEntry, task_key};
use super::super::mounts::hash;
use super::super::registry::{Instance, InstanceKey, Progress};
use super::super::runtime::Kind;
use super::super::supervisor::{HEALTH_TIMEOUT, Watched, tell};
use super::{grace, wake_orphans};
use crate::api::allocation::{CsiPlugin, Task};
use crate::api::meta::Time;
use crate::api::quantity;
use crate::api::{Allocation, PluginInstance};
use crate::csi;
use crate::plan::supervise::Process;

/// Where the socket of an instance is that is run here: in a directory of its own.
fn own_socket(node: &Node, uid: &str, task: &str) -> PathBuf {
    node.options.run_dir.join(&hash(&["instance", uid, task])[..12]).join("csi.sock")
}

/// Where the instance's socket is: a directory of its own, or where something else made it.
pub(super) fn socket(node: &Node, uid: &str, task: &Task) -> PathBuf {
    let own = own_socket(node, uid, &task.name);
    match Kind::of(&task.runtime) {
        Some(kind) => node.runtimes.get(kind).socket(task, own, &node.variables("")),
        None => own,
    }
}

/// What something else runs has its socket anywhere but where those are that are made, and removed, here.
pub(super) fn elsewhere(node: &Node, socket: &Path) -> Result<(), String> {
    let run_dir = &node.options.run_dir;
    if !socket.starts_with(run_dir) {
        return Ok(());
    }
    Err(format!(
        "its socket {} lies beneath {}, where the sockets are of the plugins that are run here; have it listen elsewhere",
        socket.display(),
        run_dir.display()
    ))
}

/// What the journal keeps of a task that serves a plugin.
pub(super) fn entry(node: &Node, uid: &str, task: &Task) -> Option<InstanceEntry> {
    task.csi_plugin.as_ref().map(|plugin| {
        let (admitted, born) = admitted(node, uid, &task.name, &plugin.plugin_name);
        let socket = socket(node, uid, task);
        let block = Some(plugin.clone());
        let key = InstanceKey { allocation: uid.to_owned(), task: task.name.clone() };
        let known = node.registry.get(&key).filter(|instance| instance.plugin == plugin.plugin_name);
        InstanceEntry {
            plugin: plugin.plugin_name.clone(),
            role: plugin.role,
            socket,
            admitted,
            born,
            block,
            bad_runs: known.map_or(0, |instance| instance.progress.bad_runs),
            unwell: false,
        }
    })
}

/// Whether the controllers admitted the instance, as far as is known, and when: that it once was counts, so that what it
/// has made can be taken down without the server.
fn admitted(node: &Node, uid: &str, task: &str, plugin: &str) -> (bool, Option<Time>) {
    let key = InstanceKey { allocation: uid.to_owned(), task: task.to_owned() };
    let known = node.registry.get(&key).filter(|instance| instance.plugin == plugin && instance.admitted);
    let object = node.caches.instances.one(&format!("{uid}/{task}"));
    let object = object.filter(|object| object.spec.plugin == plugin);
    let born = object.as_ref().and_then(|object| born(object));
    (known.is_some() || object.is_some(), born.or(known.and_then(|instance| instance.born)))
}

fn born(object: &PluginInstance) -> Option<Time> {
    object.metadata.creation_timestamp.as_ref().map(|time| Time(time.0))
}

/// Has the journal keep of an instance what became known since its task was started; `change` says whether it is news.
async fn remember(node: &Node, key: &InstanceKey, change: impl FnOnce(&mut InstanceEntry) -> bool) {
    let at = task_key(&key.allocation, &key.task);
    let changed = node.journal.edit(&at, |entry| match entry {
        Entry::Task(TaskEntry { plugin: Some(instance), .. }) => change(instance),
        _ => false,
    });
    // A journal that cannot be written ends the daemon.
    let _ended = changed.await;
}

fn set_admitted(kept: &mut InstanceEntry, born: Option<Time>) -> bool {
    let news = !kept.admitted || kept.born != born;
    (kept.admitted, kept.born) = (true, born);
    news
}

/// Keeps of an instance what became known while its task's record was written.
pub(super) async fn catch_up(node: &Node, uid: &str, task: &str) {
    let key = InstanceKey { allocation: uid.to_owned(), task: task.to_owned() };
    remember(node, &key, |kept| match admitted(node, uid, task, &kept.plugin) {
        (true, born) if !kept.admitted => set_admitted(kept, born),
        _ => false,
    })
    .await;
}

/// It has been well for so long that what was before says nothing any more.
pub async fn forget_bad_runs(node: &Node, key: &InstanceKey) {
    let had = node.registry.progress(key, |p| (p.bad_runs, p.last_end) = (0, String::new()));
    if had.is_some_and(|(before, _)| before.bad_runs > 0) {
        remember(node, key, |kept| std::mem::take(&mut kept.bad_runs) > 0).await;
    }
}

/// It is about to be asked to end because it is not well: that is no end that anybody wanted, also to the next daemon.
pub async fn note_unwell(node: &Node, key: &InstanceKey) {
    let at = task_key(&key.allocation, &key.task);
    let noted = node.journal.edit_now(&at, |entry| match entry {
        Entry::Task(TaskEntry { plugin: Some(kept), .. }) => !std::mem::replace(&mut kept.unwell, true),
        _ => false,
    });
    // A journal that cannot be written ends the daemon.
    let _ended = noted.await;
}

/// Its PluginInstance is there: it may be called from now on, after a restart too.
pub async fn admit(node: &Arc<Node>, key: &InstanceKey, object: &PluginInstance) {
    let (plugin, born) = (object.spec.plugin.as_str(), born(object));
    let news = node.registry.admit(key, plugin, born);
    // It may have been admitted when it was registered: the journal knows it from here alone.
    remember(node, key, |kept| kept.plugin == plugin && set_admitted(kept, born)).await;
    if news {
        node.queue.wake(Key::Plugin(plugin.to_owned()));
    }
    if let Some(progress) = node.registry.to_tell(key) {
        tell(node, Some(object), (key, plugin), &progress);
    }
}

/// Its PluginInstance is gone though its allocation is not: the controllers do not admit it any more.
pub async fn refuse(node: &Arc<Node>, key: &InstanceKey) {
    if !node.synced() || !node.caches.allocations.has(&key.allocation) {
        return;
    }
    let Some(plugin) = node.registry.refuse(key) else { return };
    remember(node, key, |kept| std::mem::replace(&mut kept.admitted, false)).await;
    node.queue.wake(Key::Plugin(plugin));
}

/// Makes the directory of a socket.
pub(super) async fn prepare(node: &Node, socket: &Path) -> Result<(), String> {
    node.machine.dial.prepare(socket).await.map_err(|e| format!("{}: {e}", socket.display()))
}

/// Puts an instance into the registry; the same again changes nothing.
pub fn register(node: &Arc<Node>, uid: &str, task: &str, entry: &InstanceEntry) -> Result<(), String> {
    let shared = node.registry.shared(&entry.plugin);
    let options = csi::PluginOptions {
        turns: shared.turns,
        confided: shared.confided,
        observer: Some(node.tally.observer(&entry.plugin)),
        ..csi::PluginOptions::default()
    };
    let client = node.machine.dial.plugin(&entry.socket, options).map_err(|e| e.to_string())?;
    let key = InstanceKey { allocation: uid.to_owned(), task: task.to_owned() };
    let (known, born) = admitted(node, uid, task, &entry.plugin);
    node.registry.register(
        key.clone(),
        Instance {
            plugin: entry.plugin.clone(),
            role: entry.role,
            socket: entry.socket.clone(),
            client,
            admitted: entry.admitted || known,
            born: born.or(entry.born),
            view: entry.view(),
            ours: entry.socket == own_socket(node, uid, task),
            draining: false,
            untold: false,
            held: None,
            progress: Progress { bad_runs: entry.bad_runs, ..Progress::default() },
        },
    );
    node.queue.wake(Key::Instance(key));
    wake_orphans(node, &entry.plugin);
    Ok(())
}

/// A task that was stopped serves nothing any more. One that is not registered was taken out already.
pub(super) async fn withdraw_stopped(node: &Arc<Node>, uid: &str, task: &Task) {
    let key = InstanceKey { allocation: uid.to_owned(), task: task.name.clone() };
    if node.registry.get(&key).is_some() && node.tasks.process(uid, &task.name).idle() {
        withdraw(node, uid, &task.name, entry(node, uid, task).as_ref()).await;
    }
}

/// Takes an instance out of the registry and removes the directory of its socket, if that was made here.
pub(super) async fn withdraw(node: &Arc<Node>, uid: &str, task: &str, plugin: Option<&InstanceEntry>) {
    let Some(entry) = plugin else { return };
    let key = InstanceKey { allocation: uid.to_owned(), task: task.to_owned() };
    node.supervisors.stop(&key);
    if let Some(plugin) = node.registry.deregister(&key) {
        node.queue.wake(Key::Plugin(plugin));
    }
    if entry.socket == own_socket(node, uid, task) {
        node.machine.dial.discard(&entry.socket).await;
    }
    node.queue.wake(Key::Instance(key));
}

/// Keeps new calls from a task's instance, and says how many are under way there. The allocation is looked at again when
/// they have ended; each has its deadline.
pub(super) fn drain(node: &Arc<Node>, uid: &str, task: &str) -> usize {
    let key = InstanceKey { allocation: uid.to_owned(), task: task.to_owned() };
    let Some(instance) = node.registry.drain(&key) else { return 0 };
    let calls = instance.client.under_way();
    let under_way = *calls.borrow();
    if under_way > 0 {
        node.tasks.wait_for_calls(node, uid, calls);
    }
    under_way
}

/// A running plugin instance has a supervisor.
pub(super) fn keep_watch(node: &Arc<Node>, allocation: &Allocation, task: &Task) {
    let Some(plugin) = &task.csi_plugin else { return };
    let uid = allocation.uid().unwrap_or_default();
    let key = InstanceKey { allocation: uid.clone(), task: task.name.clone() };
    let runs = node.tasks.process(&uid, &task.name) == Process::Running;
    if runs && node.registry.resume(&key) {
        node.queue.wake(Key::Plugin(plugin.plugin_name.clone()));
    }
    if let Some(entry) = entry(node, &uid, task) {
        let (ours, health_timeout) = (node.runtimes.runs(&task.runtime), patience(plugin));
        watch_over(node, (&uid, &task.name), &entry, Care { ours, health_timeout, grace: grace(task) });
    }
}

/// How long an instance may take to be ready.
pub(super) fn patience(plugin: &CsiPlugin) -> Duration {
    plugin.health_timeout.as_deref().and_then(quantity::duration).unwrap_or(HEALTH_TIMEOUT)
}

/// How an instance is looked after.
pub(super) struct Care {
    /// It is to be ended when it stays silent, so that it is started again.
    pub(super) ours: bool,
    /// After so long.
    pub(super) health_timeout: Duration,
    /// It then has so long to end.
    pub(super) grace: Duration,
}

/// As [`keep_watch`], for what is known from the journal alone.
pub(super) fn watch_over(node: &Arc<Node>, (uid, task): (&str, &str), entry: &InstanceEntry, care: Care) {
    if node.tasks.process(uid, task) != Process::Running {
        return;
    }
    let key = InstanceKey { allocation: uid.to_owned(), task: task.to_owned() };
    if node.registry.get(&key).is_none() && register(node, uid, task, entry).is_err() {
        return;
    }
    let Care { ours, health_timeout, grace } = care;
    node.supervisors.ensure(node, Watched { key, ours, health_timeout, grace });
}
