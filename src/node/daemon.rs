//! The daemon from its start to its end.
//!
//! First the machine, then the API: the lock, the tree, the journal, what is mounted, what runs; only then are watches
//! opened, and only when every one had its first complete list does anything begin. Ending leaves workloads and mounts
//! as they are.
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::agent::{self, Identity, Impostor};
use super::caches::{Cache, follow};
use super::context::{Key, Machine, Node, Options, Parts};
use super::journal::{AttachmentEntry, Change, Entry, Journal, JournalError, Opened};
use super::mounts::{TARGET, hash};
use super::registry::{InstanceKey, Progress};
use super::{allocations, hosting, mounts};
use crate::api::meta::{Condition, READY, Rung, Truth, set_condition};
use crate::api::{PluginInstanceStatus, VolumeAttachment};
use crate::plan::mount::Level;
use crate::sys::files::{FileError, FileLock};
use crate::sys::kernel::{KernelError, MountRow};
use crate::sys::path::{Place, TreePath};

/// How long one watch lasts before it is opened anew, in seconds.
const WATCH: u32 = 60;

/// Why the daemon ended or did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another daemon has the data directory.
    #[error("another wharfline runs on this data directory")]
    InUse(#[source] FileError),
    /// The kernel said no.
    #[error("this machine cannot be used")]
    Kernel(#[from] KernelError),
    /// The journal cannot be used.
    #[error("the journal cannot be used")]
    Journal(#[from] JournalError),
    /// A file cannot be used.
    #[error("the data directory cannot be used")]
    File(#[from] FileError),
    /// Another daemon lives under this node's name.
    #[error(transparent)]
    Impostor(#[from] Impostor),
    /// A part that must live as long as the daemon ended.
    #[error("a part of the daemon ended by itself: {0}")]
    Ended(&'static str),
}

/// Runs the daemon until `stop`. `ready` is told once everything is adopted and every watch had its first list.
pub async fn run(
    client: kube::Client,
    machine: Machine,
    options: Options,
    ready: oneshot::Sender<()>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let started = Started::start(client, machine, options, stop.clone()).await?;
    let Started { node, identity, lost, writer, _lock } = started;
    let result = serve(&node, &identity, lost, ready, writer).await;
    stop.cancel();
    node.tasks.join().await;
    node.supervisors.join().await;
    result
}

struct Started {
    node: Arc<Node>,
    identity: Identity,
    lost: bool,
    writer: tokio::task::JoinHandle<()>,
    _lock: Box<dyn FileLock>,
}

impl Started {
    async fn start(
        client: kube::Client,
        machine: Machine,
        options: Options,
        stop: CancellationToken,
    ) -> Result<Self, Error> {
        let lock =
            machine.files.lock(&options.data_dir.join("node.lock")).await.map_err(|error| match error {
                FileError::Locked { .. } => Error::InUse(error),
                FileError::Hung { .. } | FileError::Io { .. } => Error::File(error),
            })?;
        let facts = machine.kernel.facts().await?;
        if !facts.may_mount {
            return Err(KernelError::MayNotMount.into());
        }
        machine.kernel.prepare_tree().await?;
        let path = options.data_dir.join("journal");
        let random = Arc::clone(&machine.random);
        let Opened { journal, writer, incarnation, rebooted, lost } =
            Journal::open(&*machine.files, &path, &facts.boot_id, || random.token()).await?;
        if rebooted {
            tracing::info!("the machine booted since: every mount is in doubt");
        }
        let parts = Parts { options, machine, client, journal, boot_id: facts.boot_id, stop };
        let node = Arc::new(Node::new(parts));
        let table = node.machine.kernel.mount_table().await?;
        doubt_missing_mounts(&node, &table).await?;
        let leftovers = leftovers(&node, &table);
        adopt(&node).await;
        let identity = Identity { incarnation, kernel: facts.release, leftovers };
        Ok(Self { node, identity, lost, writer, _lock: lock })
    }
}

/// A publication that the kernel does not show is in doubt, whatever the journal says.
async fn doubt_missing_mounts(node: &Node, table: &[MountRow]) -> Result<(), Error> {
    let mounted: HashSet<_> = table.iter().map(|row| row.mount_point.clone()).collect();
    let mut changes = Vec::new();
    node.journal.look(|all| {
        for entry in all.values() {
            if let Entry::Publication(p) = entry
                && p.level == Level::Up
                && p.verified.as_ref().is_some_and(|v| v.mount.is_some())
                && let Ok(target) = TreePath::new(["publish", p.directory.as_str(), TARGET])
                && !mounted.contains(&node.machine.kernel.absolute(&Place::Tree(target)))
            {
                let mut doubted = p.clone();
                doubted.level = Level::Rising;
                changes.push(Change::Put(Entry::Publication(doubted)));
            }
        }
    });
    if !changes.is_empty() {
        tracing::warn!(count = changes.len(), "publications are not mounted any more");
    }
    Ok(node.journal.commit(changes).await?)
}

/// Mounts beneath our tree that no record owns: reported, never touched.
fn leftovers(node: &Node, table: &[MountRow]) -> Vec<String> {
    let root = node.machine.kernel.absolute(&Place::Tree(TreePath::root()));
    let owned: HashSet<String> = node.journal.look(|all| {
        all.values()
            .filter_map(|entry| match entry {
                Entry::Attachment(a) => Some(format!("staging/{}", a.staging)),
                Entry::Publication(p) => Some(format!("publish/{}", p.directory)),
                Entry::Task(_) | Entry::Create(_) => None,
            })
            .collect()
    });
    let beneath = |row: &MountRow| {
        let rest = row.mount_point.strip_prefix(&root).ok()?;
        let first_two: Vec<_> = rest.components().take(2).map(|c| c.as_os_str().to_string_lossy()).collect();
        let name = first_two.join("/");
        (!name.is_empty() && !owned.contains(&name)).then(|| row.mount_point.to_string_lossy().into_owned())
    };
    table.iter().filter_map(beneath).take(32).collect()
}

async fn adopt(node: &Arc<Node>) {
    for entry in node.journal.tasks() {
        let uid = &entry.allocation.uid;
        let external = entry.plugin.as_ref().is_some_and(|p| !p.socket.starts_with(&node.options.run_dir));
        if external {
            node.tasks.set_external(uid, &entry.task, true);
        } else {
            node.adopt_task(uid, &entry.task).await;
        }
        if let Some(plugin) = &entry.plugin
            && let Err(message) = allocations::register(node, uid, &entry.task, plugin)
        {
            tracing::warn!(plugin = plugin.plugin, message, "instance not restored");
        }
    }
    // Tasks that run without a record: the journal was lost. They are known again, and end if nobody wants them.
    let root = node.options.data_dir.join("tasks");
    for directory in node.machine.processes.list(&root).await.unwrap_or_default() {
        let name = directory.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if let Some((uid, task)) = name.split_once('.')
            && node.tasks.process(uid, task) == crate::plan::supervise::Process::Absent
        {
            node.adopt_task(uid, task).await;
        }
    }
}

async fn serve(
    node: &Arc<Node>,
    identity: &Identity,
    lost: bool,
    ready: oneshot::Sender<()>,
    mut writer: tokio::task::JoinHandle<()>,
) -> Result<(), Error> {
    let mut watches: JoinSet<()> = JoinSet::new();
    open_watches(node, &mut watches);
    let mut lease = tokio::spawn(agent::renew(Arc::clone(node), identity.incarnation.clone()));
    let work = work(node, identity);
    let begin = begin(node, lost, ready);
    tokio::pin!(work, begin);
    let (mut going, mut done) = (false, false);
    let result = loop {
        tokio::select! {
            () = node.stop.cancelled() => break Ok(()),
            _ = &mut writer => break Err(Error::Ended("journal")),
            _ = watches.join_next() => break if node.stop.is_cancelled() { Ok(()) } else { Err(Error::Ended("watch")) },
            ended = &mut lease => match ended {
                Ok(Ok(())) => break Ok(()),
                Ok(Err(impostor)) => break Err(impostor.into()),
                Err(_) => break Err(Error::Ended("lease")),
            },
            result = &mut begin, if !going => match result {
                Ok(()) => going = true,
                Err(error) => break Err(error),
            },
            () = &mut work, if !done => done = true,
        }
    };
    node.stop.cancel();
    if !done {
        work.await;
    }
    lease.abort();
    watches.join_all().await;
    result
}

/// Waits for every first list, then lets everything go.
async fn begin(node: &Arc<Node>, lost: bool, ready: oneshot::Sender<()>) -> Result<(), Error> {
    let caches = &node.caches;
    let all = [
        caches.allocations.ready(),
        caches.attachments.ready(),
        caches.hosted.ready(),
        caches.volumes.ready(),
        caches.instances.ready(),
        caches.plugins.ready(),
        caches.node.ready(),
    ];
    for mut one in all {
        if one.wait_for(|ready| *ready).await.is_err() {
            return Err(Error::Ended("watch"));
        }
    }
    if lost {
        rebuild(node).await?;
    }
    node.synced.store(true, Ordering::Release);
    wake_all(node);
    let _ = ready.send(());
    Ok(())
}

/// A lost journal is rebuilt from this node's attachments: what they say may be up is in doubt, and owed.
async fn rebuild(node: &Node) -> Result<(), Error> {
    let mut changes = Vec::new();
    for object in node.caches.attachments.all() {
        let said = object.status.as_ref().and_then(|s| s.node.as_ref());
        let Some(said) = said.filter(|s| s.released_uid.is_empty()) else { continue };
        let spec = &object.spec;
        let uid = object.uid().unwrap_or_default();
        changes.push(Change::Put(Entry::Attachment(AttachmentEntry {
            uid: uid.clone(),
            name: object.name_any(),
            volume: spec.volume.clone(),
            plugin: spec.plugin.clone(),
            handle: spec.handle.clone(),
            capability: spec.capability.clone(),
            stage_required: spec.stage_required,
            staging: hash(&["staging", &spec.plugin, &spec.handle]),
            staged: if spec.stage_required && said.staged != Rung::Down {
                Level::Rising
            } else {
                Level::Down
            },
            closed: said.closed,
            released: false,
        })));
        changes.extend(doubted_publications(node, &uid, &spec.claim));
    }
    Ok(node.journal.commit(changes).await?)
}

fn doubted_publications(node: &Node, attachment: &str, claim: &crate::api::meta::ObjectRef) -> Vec<Change> {
    let mut changes = Vec::new();
    for allocation in node.caches.allocations.all() {
        let uid = allocation.uid().unwrap_or_default();
        if allocation.namespace().as_deref() != Some(claim.namespace.as_str()) {
            continue;
        }
        let said = allocation.status.as_ref().map(|s| s.volumes.as_slice()).unwrap_or_default();
        for volume in allocation.spec.volumes.iter().filter(|v| v.claim_name == claim.name) {
            if said.iter().any(|s| s.name == volume.name && s.published != Rung::Down) {
                changes.push(Change::Put(Entry::Publication(super::journal::PublicationEntry {
                    attachment: attachment.to_owned(),
                    allocation: crate::api::meta::ObjectRef {
                        namespace: claim.namespace.clone(),
                        name: allocation.name_any(),
                        uid: uid.clone(),
                    },
                    name: volume.name.clone(),
                    directory: hash(&[attachment, &uid, &volume.name]),
                    read_only: volume.read_only,
                    level: Level::Rising,
                    verified: None,
                    host: None,
                })));
            }
        }
    }
    changes
}

/// Everything that could need a hand gets one.
pub fn wake_all(node: &Node) {
    let wake = |key| node.queue.wake(key);
    node.caches.attachments.all().iter().for_each(|a| wake(Key::Mount(a.spec.volume.clone())));
    node.journal.attachments().into_iter().for_each(|a| wake(Key::Mount(a.volume)));
    node.caches.hosted.all().iter().for_each(|a| wake(Key::Host(a.spec.volume.clone())));
    node.caches.volumes.all().iter().for_each(|v| wake(Key::Host(v.name_any())));
    node.caches.allocations.all().iter().for_each(|a| wake(Key::Allocation(a.uid().unwrap_or_default())));
    node.journal.tasks().into_iter().for_each(|t| wake(Key::Allocation(t.allocation.uid)));
    node.tasks.allocations().into_iter().for_each(|uid| wake(Key::Allocation(uid)));
    wake(Key::Agent);
}

/// Opens one watch; `field` must be this node's name in what it shows.
fn open<K>(
    node: &Arc<Node>,
    watches: &mut JoinSet<()>,
    field: Option<&str>,
    cache: &Arc<Cache<K>>,
    concerned: fn(&Arc<Node>, &K),
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let mut config = watcher::Config::default().timeout(WATCH);
    if let Some(field) = field {
        config = config.fields(&format!("{field}={}", node.options.name));
    }
    let (api, cache, stop) = (Api::all(node.client.0.clone()), Arc::clone(cache), node.stop.clone());
    let node = Arc::clone(node);
    watches.spawn(async move { follow(api, config, cache, stop, |object| concerned(&node, object)).await });
}

fn open_watches(node: &Arc<Node>, watches: &mut JoinSet<()>) {
    let caches = &node.caches;
    open(node, watches, Some("status.nodeName"), &caches.allocations, |node, a| {
        let uid = a.uid().unwrap_or_default();
        let holds = |t: &&Arc<VolumeAttachment>| t.spec.allocations.contains(&uid);
        for attachment in node.caches.attachments.all().iter().filter(holds) {
            node.queue.wake(Key::Mount(attachment.spec.volume.clone()));
        }
        allocations::wake_volumes(node, &uid);
        node.queue.wake(Key::Allocation(uid));
    });
    open(node, watches, Some("spec.nodeName"), &caches.attachments, |node, a| {
        node.queue.wake(Key::Mount(a.spec.volume.clone()));
    });
    open(node, watches, Some("spec.host.nodeName"), &caches.hosted, |node, a| {
        node.queue.wake(Key::Host(a.spec.volume.clone()));
    });
    open(node, watches, Some("status.controller.nodeName"), &caches.volumes, |node, v| {
        node.queue.wake(Key::Host(v.name_any()));
    });
    open(node, watches, Some("spec.nodeName"), &caches.instances, |node, i| {
        let (allocation, task) = (i.spec.allocation.uid.clone(), i.spec.task.clone());
        node.queue.wake(Key::Instance(InstanceKey { allocation, task }));
    });
    open(node, watches, None, &caches.plugins, |node, p| node.queue.wake(Key::Plugin(p.name_any())));
    // Whether the node is marked stopped concerns everything on it.
    open(node, watches, Some("metadata.name"), &caches.node, |node, _| wake_all(node));
}

/// Runs the queue.
async fn work(node: &Arc<Node>, identity: &Identity) {
    let identity = Arc::new(identity.clone());
    node.queue
        .run(node.stop.clone(), |key| {
            let (node, identity) = (Arc::clone(node), Arc::clone(&identity));
            let work: BoxFuture<'static, Option<Duration>> = Box::pin(async move {
                match key {
                    Key::Mount(volume) => mounts::reconcile(&node, &volume).await,
                    Key::Host(volume) => hosting::reconcile(&node, &volume).await,
                    Key::Allocation(uid) => {
                        let again = allocations::reconcile(&node, &uid).await;
                        if node.stopped() {
                            node.queue.wake(Key::Agent);
                        }
                        again
                    }
                    Key::Instance(key) => report_instance(&node, &key).await,
                    Key::Plugin(plugin) => {
                        plugin_changed(&node, &plugin);
                        None
                    }
                    Key::Agent => agent::report(&node, &identity).await,
                }
            });
            work
        })
        .await;
}

/// A plugin's health or object changed: everything that waits for it is tried at once.
fn plugin_changed(node: &Node, plugin: &str) {
    for object in node.caches.attachments.all().iter().filter(|a| a.spec.plugin == plugin) {
        node.retry.forget(&format!("att/{}", object.uid().unwrap_or_default()));
        node.queue.wake(Key::Mount(object.spec.volume.clone()));
    }
    for entry in node.journal.attachments().into_iter().filter(|a| a.plugin == plugin) {
        node.retry.forget(&format!("att/{}", entry.uid));
        node.queue.wake(Key::Mount(entry.volume));
    }
    for object in node.caches.hosted.all().iter().filter(|a| a.spec.plugin == plugin) {
        node.retry.forget(&format!("host/{}", object.uid().unwrap_or_default()));
        node.queue.wake(Key::Host(object.spec.volume.clone()));
    }
    for volume in node.caches.volumes.all().iter().filter(|v| v.spec.plugin == plugin) {
        node.retry.forget(&format!("vol/{}", volume.uid().unwrap_or_default()));
        node.queue.wake(Key::Host(volume.name_any()));
    }
}

async fn report_instance(node: &Arc<Node>, key: &InstanceKey) -> Option<Duration> {
    let object = node.caches.instances.one(&format!("{}/{}", key.allocation, key.task))?;
    let progress = node.registry.get(key).map(|i| i.progress).unwrap_or_default();
    let before = object.status.clone().unwrap_or_default();
    let status = instance_status(node, &progress, &before, object.meta().generation);
    let result = node.write_status(&*object, "node", &status).await;
    node.after_write(&format!("pi/{}/{}/report", key.allocation, key.task), result)
}

fn instance_status(
    node: &Node,
    progress: &Progress,
    before: &PluginInstanceStatus,
    generation: Option<i64>,
) -> PluginInstanceStatus {
    let found = progress.fingerprint.clone();
    let mut conditions = before.conditions.clone();
    let (word, message) = progress.fault.clone().unwrap_or_else(|| ("Starting".into(), String::new()));
    let healthy = progress.healthy_since.is_some();
    let steps = [
        ("Connected", progress.connected),
        ("Probed", progress.probed),
        ("Fingerprinted", healthy),
        (READY, healthy),
    ];
    for (kind, holds) in steps {
        let condition = if holds {
            Condition::new(kind, Truth::True, kind, "")
        } else {
            Condition::new(kind, Truth::False, &word, message.clone())
        };
        set_condition(&mut conditions, condition.of_generation(generation), node.now());
    }
    let mut status = PluginInstanceStatus { since: progress.healthy_since, conditions, ..before.clone() };
    if let Some(found) = found {
        status.capabilities = capability_words(&found);
        status.provider = Some(found.provider);
        status.node_id = found.node_id;
        status.max_volumes = found.max_volumes;
        status.topology = found.topology;
    }
    status
}

fn capability_words(found: &super::registry::Fingerprint) -> Vec<String> {
    let word = |service: &'static str| move |name: &'static str| format!("{service}/{name}");
    let mut words: Vec<String> = found.plugin.services.names().into_iter().map(word("plugin")).collect();
    words.extend(found.controller.names().into_iter().map(word("controller")));
    words.extend(found.node.names().into_iter().map(word("node")));
    words
}
