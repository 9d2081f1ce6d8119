//! The daemon from its start to its end.
//!
//! First the machine, then the API: the lock, the tree, the journal, what is mounted, what runs; only then are watches
//! opened, and only when every one had its first complete list does anything begin. Ending leaves workloads and mounts
//! as they are.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::agent::{self, Identity, Refused};
use super::context::{Key, Machine, Node, Options, Parts};
use super::events::{self, Events, Happened};
use super::journal::{Journal, JournalError, Opened};
use super::runtime::RuntimeError;
use super::{allocations, asked, audit, drift, hosting, instances, mounts, recover, room, watches};
use crate::sys::files::{FileError, FileLock};
use crate::sys::kernel::{KernelError, KernelFacts, MountRow};

/// How long the journal may take to write what it was given last.
const LAST_WRITES: Duration = Duration::from_secs(5);

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
    /// The journal was lost, and so nobody knows what runs here.
    #[error("what runs here cannot be told, and the journal of it was lost")]
    Runtime(#[from] RuntimeError),
    /// Nothing may be done here in the name of this node.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A part that must live as long as the daemon ended.
    #[error("a part of the daemon ended by itself: {0}")]
    Ended(&'static str),
}

/// Runs the daemon until `stop`. `ready` is told once everything is adopted and every watch had its first list.
///
/// Boxed, so that it is compiled here once and not again in every program that runs it.
pub fn run(
    client: kube::Client,
    machine: Machine,
    options: Options,
    ready: oneshot::Sender<()>,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(life(client, machine, options, ready, stop))
}

async fn life(
    client: kube::Client,
    machine: Machine,
    options: Options,
    ready: oneshot::Sender<()>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let looked = Looked::at(machine, options).await?;
    Prepared::new(looked, client, stop).await?.run(ready).await
}

/// What a daemon finds on its machine, before it needs anybody to tell it to.
pub struct Looked {
    machine: Machine,
    options: Options,
    facts: KernelFacts,
    opened: Opened,
    table: Vec<MountRow>,
    lock: Box<dyn FileLock>,
}

impl std::fmt::Debug for Looked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Looked").finish_non_exhaustive()
    }
}

impl Looked {
    /// Looks at the machine: the lock, the tree, the journal, what is mounted.
    pub async fn at(machine: Machine, options: Options) -> Result<Self, Error> {
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
        tracing::trace!(target: "life", "tree prepared");
        let path = options.data_dir.join("journal");
        let random = Arc::clone(&machine.random);
        let opened = Journal::open(&*machine.files, &path, &facts.boot_id, || random.token()).await?;
        if opened.rebooted {
            tracing::info!("the machine booted since: every mount is in doubt");
        }
        tracing::trace!(target: "life", "journal read");
        let table = machine.kernel.mount_table().await?;
        tracing::trace!(target: "life", "mounts read");
        Ok(Self { machine, options, facts, opened, table, lock })
    }

    /// The node's own record: a lost store is known by it, and what it had this machine do.
    pub fn journal(&self) -> &Journal {
        &self.opened.journal
    }

    /// The same under this node's name, which nothing up to here has asked for.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.options.name);
        self
    }

    /// How the daemon is set up.
    pub fn options(&self) -> &Options {
        &self.options
    }
}

/// A daemon that knows its machine again and has asked the API nothing yet.
pub struct Prepared {
    started: Started,
    stop: CancellationToken,
    // However this ends, even dropped at an await: what it spawned ends too.
    _guard: DropGuard,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").finish_non_exhaustive()
    }
}

impl Prepared {
    /// Knows again what runs there. A cancelled `stop` ends the daemon.
    pub async fn new(looked: Looked, client: kube::Client, stop: CancellationToken) -> Result<Self, Error> {
        let guard = stop.clone().drop_guard();
        let started = Started::start(looked, client, stop.clone()).await?;
        Ok(Self { started, stop, _guard: guard })
    }

    /// Runs it, as [`run`] does.
    pub async fn run(self, ready: oneshot::Sender<()>) -> Result<(), Error> {
        let Self { started: Started { node, identity, mut writer, told }, stop, _guard } = self;
        let result = serve(&node, &identity, ready, &mut writer, told).await;
        stop.cancel();
        node.tasks.join().await;
        node.supervisors.join().await;
        node.runtimes.join().await;
        drop(node);
        // The lock is the writer's: no other daemon opens the journal before the last line of this one is in it.
        if !writer.is_finished() {
            let _ended = tokio::time::timeout(LAST_WRITES, writer).await;
        }
        result
    }
}

struct Started {
    node: Arc<Node>,
    identity: Identity,
    writer: JoinHandle<()>,
    told: mpsc::Receiver<Happened>,
}

impl Started {
    async fn start(looked: Looked, client: kube::Client, stop: CancellationToken) -> Result<Self, Error> {
        let Looked { machine, options, facts, opened, table, lock } = looked;
        let Opened { journal, writer, incarnation, rebooted: _, lost } = opened;
        let writer = tokio::spawn(async move {
            let _lock = lock;
            // A writer that panicked has ended like any other: the daemon stops.
            let _ended = writer.await;
        });
        let (events, told) = Events::new();
        let parts =
            Parts { options, machine, client, journal, boot_id: facts.boot_id, events, amnesia: lost, stop };
        let node = Arc::new(Node::new(parts));
        node.options.figures.of(&node);
        node.options.blocks.of(&node);
        recover::doubt_missing_mounts(&node, &table).await?;
        recover::adopt(&node).await?;
        let (mounts, known) = (table.len(), node.journal.look(std::collections::BTreeMap::len));
        tracing::info!(mounts, known, "state rebuilt");
        let identity = Identity { incarnation, kernel: facts.release };
        Ok(Self { node, identity, writer, told })
    }
}

async fn serve(
    node: &Arc<Node>,
    identity: &Identity,
    ready: oneshot::Sender<()>,
    writer: &mut JoinHandle<()>,
    told: mpsc::Receiver<Happened>,
) -> Result<(), Error> {
    let mut following: JoinSet<()> = JoinSet::new();
    watches::open_watches(node, &mut following);
    let (client, name, stop) = (node.client.0.clone(), node.options.name.clone(), node.stop.clone());
    following.spawn(events::write(client, name, told, stop));
    following.spawn(mounts::health::follow(Arc::clone(node)));
    following.spawn(mounts::usage::follow(Arc::clone(node)));
    let mut lease = tokio::spawn(agent::renew(Arc::clone(node), identity.incarnation.clone()));
    let begin = begin(node, ready);
    let mut going = false;
    let result = {
        let work = work(node, identity);
        tokio::pin!(work, begin);
        let mut over = false;
        let result = loop {
            tokio::select! {
                () = node.stop.cancelled() => break Ok(()),
                _ = &mut *writer => break Err(Error::Ended("journal")),
                _ = following.join_next() => {
                    break if node.stop.is_cancelled() { Ok(()) } else { Err(Error::Ended("watch")) };
                }
                ended = &mut lease => match ended {
                    Ok(Ok(())) => break Ok(()),
                    Ok(Err(refused)) => break Err(refused.into()),
                    Err(_) => break Err(Error::Ended("lease")),
                },
                result = &mut begin, if !going => match result {
                    Ok(()) => going = true,
                    Err(error) => break Err(error),
                },
                () = &mut work => {
                    over = true;
                    break Ok(());
                }
            }
        };
        node.stop.cancel();
        // A future that has ended must not be polled again.
        if !over {
            work.await;
        }
        result
    };
    lease.abort();
    following.join_all().await;
    result
}

/// Waits for every first list, then lets everything go.
async fn begin(node: &Arc<Node>, ready: oneshot::Sender<()>) -> Result<(), Error> {
    let caches = &node.caches;
    let all = [
        caches.allocations.ready(),
        caches.attachments.ready(),
        caches.hosted.ready(),
        caches.volumes.ready(),
        caches.snapshots.ready(),
        caches.instances.ready(),
        caches.plugins.ready(),
        caches.node.ready(),
        caches.agent.ready(),
    ];
    for mut one in all {
        if one.wait_for(|ready| *ready).await.is_err() {
            return Err(Error::Ended("watch"));
        }
    }
    // Nothing is touched under a name that another daemon may have: the lease says whose it is.
    if node.tenure.subscribe().wait_for(|tenure| tenure.term > 0).await.is_err() {
        return Err(Error::Ended("lease"));
    }
    node.doubts.begin_with(hosting::callable(
        &caches.volumes.all(),
        &caches.hosted.all(),
        &caches.snapshots.all(),
    ));
    recover::rebuild(node).await?;
    let table = node.machine.kernel.mount_table().await?;
    recover::note_leftovers(node, &table);
    asked::restore(node).await?;
    node.sightings.first().await;
    node.synced.store(true, Ordering::Release);
    watches::wake_all(node);
    let _ = ready.send(());
    Ok(())
}

/// Runs the queue.
async fn work(node: &Arc<Node>, identity: &Identity) {
    let identity = Arc::new(identity.clone());
    node.queue
        .run(node.stop.clone(), |key| {
            let (node, identity) = (Arc::clone(node), Arc::clone(&identity));
            let work: BoxFuture<'static, Option<Duration>> = Box::pin(async move {
                match key {
                    Key::Mount(volume) => {
                        let again = mounts::reconcile(&node, &volume).await;
                        if node.stopped() {
                            node.queue.wake(Key::Agent);
                        }
                        again
                    }
                    Key::Host(volume) => hosting::reconcile(&node, &volume).await,
                    Key::Allocation(uid) => {
                        let again = allocations::reconcile(&node, &uid).await;
                        if node.stopped() {
                            node.queue.wake(Key::Agent);
                        }
                        again
                    }
                    Key::Instance(key) => instances::report(&node, &key).await,
                    Key::Audit(key) => audit::answer(&node, &key).await,
                    Key::Room(key) => room::answer(&node, &key).await,
                    Key::Drift(key) => drift::look(&node, &key).await,
                    Key::Plugin(plugin) => {
                        watches::plugin_changed(&node, &plugin);
                        None
                    }
                    Key::Agent => agent::report(&node, &identity).await,
                }
            });
            work
        })
        .await;
}
