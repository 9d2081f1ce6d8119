//! `wharfline down`: takes down what `up` left on this machine, through a running `up` or without one.
//!
//! It edits no spec. The node is marked stopped; the same controllers and the same daemon that brought everything up
//! then take it down in mirror order, plugins last. The next `up` clears the mark.
#![allow(clippy::print_stdout)] // says what it does
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Node as CoreNode};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::await_condition;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::borrowed::{Borrowed, is_free};
use super::enroll::Membership;
use super::given::Given;
use super::node::Left;
use super::up::{Core, prepare, stop_on_signal};
use super::vacancy::look;
use super::{allows, cluster, join, machine, node};
use crate::api::allocation::AllocationPhase;
use crate::api::{Allocation, NodeAgent, Snapshot, Volume, VolumeClaim};
use crate::cli::why::{EVENTS, Explanation, Kind, Objects, Subject, explain};
use crate::node::Options;
use crate::node::journal::{AttachmentEntry, Entry, Journal};
use crate::plan::marks::STOPPED;
use crate::plan::snapshot::Wanted;
use crate::server::Identity;
use crate::store::embedded::OpenError;
use crate::sys::process::{Adopted, Processes};

/// Where the plugins' own allocations are: they stop last, by their controller.
const SYSTEM: &str = "wharfline-system";
/// How long what is left may be asked for.
const ASK: Duration = Duration::from_secs(5);
/// Between two looks at an `up` that begins or ends.
const AWHILE: Duration = Duration::from_millis(50);
/// How many objects that are left are named.
const NAMED: usize = 10;
/// What to do when it took too long.
const AGAIN: &str = "what began goes on: run it again, with a longer --timeout if it only needs time";

/// Arguments of `wharfline down`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Delete allocations, claims, snapshots and volumes first; what is kept (Retain, or adopted) stays at its backend, all else goes with what is in it
    #[arg(long)]
    pub delete_volumes: bool,
    /// On a machine that is no member of a cluster any more: objects in YAML, such as the Plugin that has to run once more to take down its volumes
    #[arg(long, value_name = "FILE")]
    pub apply: Vec<PathBuf>,
    /// How long to wait, such as 90s or 5m
    #[arg(long, default_value = "3m", value_parser = duration)]
    pub timeout: Duration,
    /// What the node allows where no `up` runs: plugins that have to run once more need what that one was given.
    #[command(flatten)]
    pub allows: allows::Args,
}

fn duration(text: &str) -> Result<Duration, String> {
    crate::api::quantity::duration(text).ok_or_else(|| "write 90s, 5m or 500ms".to_owned())
}

/// Takes everything down.
///
/// # Errors
/// When something does not come down in time: then it says what.
pub fn main(args: &Args, data_dir: &Path) -> anyhow::Result<()> {
    super::log();
    if !data_dir.join("store.redb").exists() && !data_dir.join("journal").exists() {
        println!("nothing to take down: {} holds neither store nor journal", data_dir.display());
        return Ok(());
    }
    let data_dir = prepare(data_dir)?;
    let given = Given::read(&args.apply)?;
    // A store is `up`'s, whatever else lies here.
    let stored = data_dir.join("store.redb").exists();
    let mut member = if stored { None } else { Membership::load(&data_dir.join(node::IDENTITY))? };
    if stored {
        given.refuse_beside_a_store()?;
    }
    let asked = Asked { args, given: &given };
    let mut borrowed = None;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let signals = tokio::spawn(stop_on_signal(stop.clone())?);
        let whole = args.timeout + args.timeout / 2 + ASK + Duration::from_secs(10);
        let work = async {
            let left = match &mut member {
                Some(member) => node::leave(member, &data_dir).await?,
                None => Left::ToItself,
            };
            match left {
                Left::Undone => Ok(()),
                Left::ToItself => Box::pin(run(asked, &data_dir, &mut borrowed, stop.clone())).await,
            }
        };
        let work = tokio::time::timeout(whole, work);
        let result = tokio::select! {
            result = work => result.unwrap_or_else(|_| Err(anyhow!("not everything came down in time; {AGAIN}"))),
            () = stop.cancelled() => Err(anyhow!("interrupted; run it again to go on")),
        };
        signals.abort();
        // Also where it could not be done: whose machine comes back to a cluster is no server.
        let ended = borrowed.map_or(Ok(()), Borrowed::end);
        result.and(ended.with_context(|| format!("what was made for this alone in {}", data_dir.display())))
    })
}

/// What is to be done.
#[derive(Clone, Copy)]
struct Asked<'a> {
    args: &'a Args,
    /// What the store that is made for this is given.
    given: &'a Given,
}

/// How long nobody need be told what is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

async fn run(
    asked: Asked<'_>,
    data_dir: &Path,
    borrowed: &mut Option<Borrowed>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (began, end) = (tokio::time::Instant::now(), tokio::time::Instant::now() + asked.args.timeout);
    let mut again = tokio::time::interval(AWHILE);
    let mut told = false;
    loop {
        again.tick().await;
        let done = match open(data_dir, borrowed) {
            Err(error) if in_use(&error) && !asked.given.is_empty() => {
                return Err(anyhow!(
                    "--apply: an `up` runs here: `wharfline apply`, and come back without it"
                ));
            }
            Err(error) if in_use(&error) => through_up(asked.args, data_dir).await,
            opened => {
                let opened = opened?;
                if borrowed.is_none() {
                    asked.given.refuse_beside_a_store()?;
                }
                let asked = Alone { asked, stored: borrowed.is_none() };
                return Box::pin(alone(asked, data_dir, opened, stop)).await;
            }
        };
        // One that begins or ends does not answer. In a moment it does, or the directory is free.
        match done {
            Err(error) if is_away(&error) && tokio::time::Instant::now() < end => {
                // One that ends because it was asked to is gone in a moment, and nothing to speak of.
                if began.elapsed() > PATIENCE && !std::mem::replace(&mut told, true) {
                    println!("waiting for the `up` that has {}: {error:#}", data_dir.display());
                }
            }
            done => return done,
        }
    }
}

/// The machine's own store, or one that is `borrowed` where it has none.
fn open(data_dir: &Path, borrowed: &mut Option<Borrowed>) -> anyhow::Result<Core> {
    if !data_dir.join("store.redb").exists() {
        *borrowed = Borrowed::begin(data_dir)?;
    }
    Core::open(borrowed.as_ref().map_or(data_dir, Borrowed::directory))
}

/// What is to be done where nothing runs.
#[derive(Clone, Copy)]
struct Alone<'a> {
    asked: Asked<'a>,
    /// The machine has a store of its own.
    stored: bool,
}

/// Whether there was nobody to ask.
fn is_away(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref() {
        Some(kube::Error::Api(_)) => false,
        Some(_) => true,
        None => cause.is::<NotThere>() || cause.is::<kube::config::KubeconfigError>(),
    })
}

/// An `up` has the directory, and has not got so far.
#[derive(Debug, thiserror::Error)]
#[error("the `up` that has the directory knows no node yet")]
struct NotThere;

fn in_use(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(OpenError::InUse { .. })))
}

/// Nothing runs: the same parts are started here, for as long as it takes.
async fn alone(alone: Alone<'_>, data_dir: &Path, core: Core, stop: CancellationToken) -> anyhow::Result<()> {
    let Alone { asked: Asked { args, given }, stored } = alone;
    core.server.bootstrap().await?;
    let client = core.server.client(Identity::controllers());
    // Plugins that have to run once more run as they did, by the word of the node's file and the flags.
    let allows = args.allows.allows(data_dir)?;
    let machine = machine::machine(data_dir, &allows.containerd)?;
    let kernel = std::sync::Arc::clone(&machine.kernel);
    let (files, processes) =
        (std::sync::Arc::clone(&machine.files), std::sync::Arc::clone(&machine.processes));
    let containerd = machine.containerd.clone();
    let looked = look(machine, options_of(allows, data_dir)).await?;
    let journal = looked.journal();
    let Some(name) = node_name(&client).await?.or_else(|| known_name(journal)) else {
        println!("nothing to take down: no node has joined");
        drop(looked);
        return Ok(kernel.undo_tree().await?);
    };
    let name = journal.store().map_or(name, |store| store.node);
    if journal.attachments().is_empty()
        && is_down(args, &client, &name).await?
        && none_runs(&*processes, &data_dir.join(machine::TASKS)).await?
    {
        drop(looked);
        machine::leave(&*kernel, containerd, data_dir).await?;
        println!("down");
        return Ok(());
    }
    let unknown = unknown(journal, &client).await?;
    let looked = looked.named(&name);
    // With volumes to delete, or given what was lost, plugins have to run once more before they stop.
    join::join(&core.server, &name, !args.delete_volumes && given.is_empty()).await?;
    let (tell, ready) = oneshot::channel();
    let running = stop.child_token();
    let cluster = cluster::run(&core.server, looked, tell, running.clone());
    let work = async {
        ready.await.context("the daemon did not start")?;
        if !given.is_empty() {
            let journal = data_dir.join("journal");
            let work = given.work(&client, &*files, &journal);
            // What can be taken down without them is, too.
            tokio::time::timeout(args.timeout / 2, work).await.unwrap_or(Ok(()))?;
        }
        in_time(args, client, &name).await
    };
    tokio::pin!(cluster);
    tokio::select! {
        ended = &mut cluster => {
            ended?;
            return Err(anyhow!("the daemon ended before everything was down"));
        }
        result = work => {
            running.cancel();
            cluster.await?;
            if result.as_ref().is_err_and(|error| matches!(error.downcast_ref(), Some(Late { said: false }))) {
                let entries = Journal::entries(&*files, &data_dir.join("journal")).await?;
                for line in up_still(&entries, stored) {
                    println!("left: {line}");
                }
            }
            result?;
        }
    }
    core.server.shutdown().await;
    machine::leave(&*kernel, containerd, data_dir).await?;
    ended(args, &unknown)
}

/// Says that all is down, and what was not deleted.
fn ended(args: &Args, unknown: &[AttachmentEntry]) -> anyhow::Result<()> {
    for volume in unknown {
        let (name, plugin, handle) = (&volume.volume, &volume.plugin, &volume.handle);
        println!("not deleted: volume \"{name}\", which plugin \"{plugin}\" calls \"{handle}\"");
    }
    println!("down");
    match unknown.len() {
        0 => Ok(()),
        _ if !args.delete_volumes => Ok(()),
        count => Err(anyhow!(
            "{count} volumes were taken down here, but not deleted: the store that knew them is lost. Put it back and \
             run this again, or delete them by the plugin's own means"
        )),
    }
}

/// The usual options of a daemon that works for whatever store it had, and allows this.
fn options_of(allows: allows::Allows, data_dir: &Path) -> Options {
    Options {
        any_store: true,
        host_paths: allows.host_paths,
        containers: allows.containers,
        runtimes: allows.runtimes,
        ..join::options("", data_dir.to_owned(), machine::run_dir(data_dir))
    }
}

/// Whether all that was to go had gone already, by the last word of the one that took it down: nothing is begun anew for it.
async fn is_down(args: &Args, client: &Client, name: &str) -> anyhow::Result<bool> {
    let nodes: Api<CoreNode> = Api::all(client.clone());
    let agents: Api<NodeAgent> = Api::all(client.clone());
    let marked = nodes.get_opt(name).await?.is_some_and(|node| node.annotations().contains_key(STOPPED));
    let stopped = agents.get_opt(name).await?.is_some_and(|agent| agent.status.is_some_and(|s| s.stopped));
    if !marked || !stopped || !args.delete_volumes {
        return Ok(marked && stopped);
    }
    let all = gather(client).await?;
    let users = all.allocations.iter().any(|a| a.namespace().as_deref() != Some(SYSTEM));
    Ok(!users && all.claims.is_empty() && all.snapshots.is_empty() && all.volumes.is_empty())
}

/// Whether every task that was ever started has ended and left nothing: that the node was stopped may have been said before it was
/// started again.
async fn none_runs(processes: &dyn Processes, tasks: &Path) -> anyhow::Result<bool> {
    for directory in processes.list(tasks).await? {
        match processes.adopt(&directory).await? {
            Adopted::Exited(_) | Adopted::NeverStarted => {}
            Adopted::Running(_) | Adopted::Lost(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// The node's name without the server: the one that it had, or, with something on record, the machine's.
fn known_name(journal: &Journal) -> Option<String> {
    let used = !journal.attachments().is_empty() || !journal.tasks().is_empty();
    journal.store().map(|store| store.node).or_else(|| used.then(super::up::host_name))
}

/// The volumes that are up here for another store than this one.
async fn unknown(journal: &Journal, client: &Client) -> anyhow::Result<Vec<AttachmentEntry>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let now = namespaces.get(SYSTEM).await?.uid();
    let other = journal.store().is_some_and(|had| Some(had.uid) != now);
    Ok(if other { journal.attachments() } else { Vec::new() })
}

/// A line per volume that the journal says is up here: for what the server knows nothing of.
fn up_still(entries: &[Entry], stored: bool) -> Vec<String> {
    let serves = |entry: &Entry, plugin: &str| match entry {
        Entry::Task(task) => task.plugin.as_ref().is_some_and(|p| p.plugin == plugin),
        _ => false,
    };
    let line = |entry: &Entry| {
        let Entry::Attachment(AttachmentEntry { volume: name, plugin, .. }) = entry else { return None };
        let runs = entries.iter().any(|entry| serves(entry, plugin));
        let then = if runs {
            "which has not done it yet: look whether it runs and answers".to_owned()
        } else if stored {
            format!("which does not run here any more: `wharfline up`, apply plugin/{plugin}, and come back")
        } else {
            "which does not run here any more: give its Plugin with `wharfline down --apply FILE`, or let the machine join its cluster \
             again on this data directory"
                .to_owned()
        };
        Some(format!("volume \"{name}\" is to be taken down by its plugin \"{plugin}\", {then}"))
    };
    named(entries.iter().filter_map(line).collect())
}

/// An `up` has the directory: it is asked over its own API, and ends by itself when all is down.
async fn through_up(args: &Args, data_dir: &Path) -> anyhow::Result<()> {
    let path = data_dir.join("kubeconfig");
    let kubeconfig = Kubeconfig::read_from(&path).with_context(|| format!("{}", path.display()))?;
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // kube would repeat what is in doubt (504).
    config.default_retry = false;
    let client = Client::try_from(config)?;
    let nodes: Api<CoreNode> = Api::all(client.clone());
    let joined = !nodes.list(&ListParams::default()).await?.items.is_empty();
    let name = match node_name(&client).await? {
        Some(name) => name,
        None if joined => {
            return Err(anyhow!(
                "{} is a server's: it has no node of its own to take down",
                data_dir.display()
            ));
        }
        None => return Err(NotThere.into()),
    };
    // It ends as soon as it is down; whether its last word reaches us does not matter, its lock does.
    let asked = in_time(args, client, &name).await;
    if asked.as_ref().is_err_and(anyhow::Error::is::<Late>) {
        return asked;
    }
    let mut again = tokio::time::interval(AWHILE);
    for _ in 0..200 {
        again.tick().await;
        if is_free(data_dir) {
            // If it ended before it was down, the rest is done without it.
            return asked.map(|()| println!("down"));
        }
    }
    asked.and(Err(anyhow!("everything is down, but the running `up` did not end")))
}

async fn node_name(client: &Client) -> anyhow::Result<Option<String>> {
    Ok(join::local_node(client).await?)
}

/// Not everything came down.
#[derive(Debug, thiserror::Error)]
#[error("not everything came down in time; {AGAIN}")]
struct Late {
    /// What is left was said.
    said: bool,
}

/// Takes down within the time that a person gives, or says what is left then.
async fn in_time(args: &Args, client: Client, name: &str) -> anyhow::Result<()> {
    let work = take_down(client.clone(), name, args.delete_volumes);
    if let Ok(result) = tokio::time::timeout(args.timeout, work).await {
        return result;
    }
    let objects = tokio::time::timeout(ASK, gather(&client)).await;
    let left = objects.ok().and_then(Result::ok).map(|objects| left(&objects)).unwrap_or_default();
    for line in &left {
        println!("left: {line}");
    }
    Err(Late { said: !left.is_empty() }.into())
}

async fn gather(client: &Client) -> Result<Objects, kube::Error> {
    async fn all<K>(client: &Client, parameters: &ListParams) -> Result<Vec<K>, kube::Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        Ok(Api::<K>::all(client.clone()).list(parameters).await?.items)
    }
    let every = &ListParams::default();
    Ok(Objects {
        plugins: all(client, every).await?,
        instances: all(client, every).await?,
        classes: all(client, every).await?,
        claims: all(client, every).await?,
        volumes: all(client, every).await?,
        snapshots: all(client, every).await?,
        schedules: all(client, every).await?,
        attachments: all(client, every).await?,
        allocations: all(client, every).await?,
        nodes: all(client, every).await?,
        events: all(client, &every.clone().fields(EVENTS)).await?,
    })
}

/// A line per object that has not come down, with the cause of each that is being deleted.
fn left(objects: &Objects) -> Vec<String> {
    let up = |a: &&Allocation| {
        let phase = a.status.as_ref().and_then(|s| s.phase);
        let over = phase.is_none_or(|p| p.terminal() || p == AllocationPhase::Stopped);
        a.metadata.deletion_timestamp.is_some() || !over && phase != Some(AllocationPhase::Pending)
    };
    let of = |kind, namespace: Option<String>, name: String| {
        Subject::namespaced(kind, &namespace.unwrap_or_default(), &name)
    };
    let mut subjects = Vec::new();
    subjects.extend(
        objects.allocations.iter().filter(up).map(|o| of(Kind::Allocation, o.namespace(), o.name_any())),
    );
    let claims = objects.claims.iter().filter(|o| o.metadata.deletion_timestamp.is_some());
    subjects.extend(claims.map(|o| of(Kind::Claim, o.namespace(), o.name_any())));
    let volumes = objects.volumes.iter().filter(|o| o.metadata.deletion_timestamp.is_some());
    subjects.extend(volumes.map(|o| of(Kind::Volume, None, o.name_any())));
    let snapshots = objects.snapshots.iter().filter(|o| o.metadata.deletion_timestamp.is_some());
    subjects.extend(snapshots.map(|o| of(Kind::Snapshot, o.namespace(), o.name_any())));
    subjects.extend(objects.attachments.iter().map(|o| of(Kind::Attachment, None, o.name_any())));
    let line = |subject: &Subject| {
        let Explanation { tree, root, .. } = explain(objects, subject)?;
        // That the node is taken down is what was asked for, and no cause.
        let root = root.filter(|root| root.subject != tree.subject && root.subject.kind != Kind::Node);
        let because = root.map(|root| format!("; it waits for {}: {}", root.subject.words(""), root.text));
        Some(format!("{}: {}{}", subject.words(""), tree.text, because.unwrap_or_default()))
    };
    named(subjects.iter().filter_map(line).collect())
}

/// The first of many.
fn named(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(NAMED);
    lines.truncate(NAMED);
    lines.extend((more > 0).then(|| format!("and {more} more")));
    lines
}

async fn take_down(client: Client, name: &str, delete_volumes: bool) -> anyhow::Result<()> {
    if delete_volumes {
        let allocations = |a: &Allocation| a.namespace().as_deref() != Some(SYSTEM);
        // One that serves a plugin ends after the volumes of that, and may have volumes of another one itself.
        ask_for_end(&client, allocations).await?;
        ask_for_end::<VolumeClaim>(&client, |_| true).await?;
        // A driver may keep a volume for its snapshots, or a snapshot for the volumes that began with it.
        ask_for_end::<Snapshot>(&client, |_| true).await?;
        // Now, for such a one may have a claim that waits for it, and be held by a volume that no claim takes along.
        ask_for_end::<Volume>(&client, |_| true).await?;
        gone::<VolumeClaim>(&client, |_| true).await?;
        // One that was being made for a claim when the others were asked.
        ask_for_end::<Volume>(&client, |v| v.metadata.deletion_timestamp.is_none()).await?;
        gone::<Volume>(&client, |_| true).await?;
        gone::<Snapshot>(&client, |_| true).await?;
        gone(&client, allocations).await?;
    }
    let nodes: Api<CoreNode> = Api::all(client.clone());
    let mark = serde_json::json!({ "metadata": { "annotations": { STOPPED: "true" } } });
    let mut again = tokio::time::interval(AWHILE);
    loop {
        again.tick().await;
        match nodes.patch(name, &PatchParams::default(), &Patch::Merge(&mark)).await {
            // It was deleted; a running `up` joins again in a moment.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            done => break drop(done?),
        }
    }
    taken_down(client, name).await
}

/// What is deleted.
trait Ends {
    /// Whether what it is of outlives it.
    fn is_kept(&self) -> bool {
        false
    }
}

impl Ends for Allocation {}
impl Ends for VolumeClaim {}

impl Ends for Volume {
    fn is_kept(&self) -> bool {
        self.spec.is_kept()
    }
}

impl Ends for Snapshot {
    fn is_kept(&self) -> bool {
        Wanted::of(true, self.is_cut(), self.spec.deletion_policy) == Wanted::Forgotten
    }
}

/// Deletes every object of a kind that `chosen` picks. It may go on for as long as something needs it.
async fn ask_for_end<K>(client: &Client, chosen: fn(&K) -> bool) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    K: crate::node::objects::ObjectApi + Ends,
{
    let all: Api<K> = Api::all(client.clone());
    for object in all.list(&ListParams::default()).await?.items.iter().filter(|o| chosen(o)) {
        let rest = if object.is_kept() { ", which is kept at its backend" } else { "" };
        println!("deleting {}/{}{rest}", K::kind(&()).to_lowercase(), object.name_any());
        match K::api(client.clone(), object).delete(&object.name_any(), &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => drop(other?),
        }
    }
    Ok(())
}

/// Waits until no object of a kind is left that `chosen` picks.
async fn gone<K>(client: &Client, chosen: fn(&K) -> bool) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let all: Api<K> = Api::all(client.clone());
    let mut left: std::collections::HashSet<String> = std::collections::HashSet::new();
    let mut events = watcher::watcher(all, watcher::Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let uid = |o: &K| o.uid().unwrap_or_default();
        let mut whole = true;
        match event? {
            watcher::Event::Init => {
                left.clear();
                whole = false;
            }
            watcher::Event::InitApply(object) => {
                left.extend(chosen(&object).then(|| uid(&object)));
                whole = false;
            }
            watcher::Event::Apply(object) => left.extend(chosen(&object).then(|| uid(&object))),
            watcher::Event::Delete(object) => {
                left.remove(&uid(&object));
            }
            watcher::Event::InitDone => {}
        }
        if whole && left.is_empty() {
            return Ok(());
        }
    }
    Err(anyhow!("the watch ended"))
}

/// Returns once the node is marked stopped and its daemon says that nothing is left.
pub(super) async fn taken_down(client: Client, name: &str) -> anyhow::Result<()> {
    let nodes: Api<CoreNode> = Api::all(client.clone());
    await_condition(nodes, name, |node: Option<&CoreNode>| {
        node.is_some_and(|n| n.annotations().contains_key(STOPPED))
    })
    .await?;
    let agents: Api<NodeAgent> = Api::all(client);
    let stopped =
        |agent: Option<&NodeAgent>| agent.and_then(|a| a.status.as_ref()).is_some_and(|s| s.stopped);
    await_condition(agents, name, stopped).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_left_is_named_with_its_cause() {
        let objects = Objects {
            allocations: serde_json::from_value(json!([
                {
                    "metadata": { "namespace": "shop", "name": "web" },
                    "spec": { "tasks": [] }, "status": { "nodeName": "a", "phase": "Running" },
                },
                {
                    "metadata": { "namespace": "shop", "name": "done" },
                    "spec": { "tasks": [] }, "status": { "nodeName": "a", "phase": "Stopped" },
                },
                { "metadata": { "namespace": "shop", "name": "never" }, "spec": { "tasks": [] } },
            ]))
            .unwrap(),
            claims: serde_json::from_value(json!([{
                "metadata": { "namespace": "shop", "name": "data", "deletionTimestamp": "2026-01-01T00:00:00Z" },
                "spec": { "accessModes": ["SingleNodeWriter"] }, "status": { "volumeName": "vol" },
            }]))
            .unwrap(),
            volumes: serde_json::from_value(json!([{
                "metadata": { "name": "vol", "deletionTimestamp": "2026-01-01T00:00:00Z" },
                "spec": { "plugin": "p", "accessModes": ["SingleNodeWriter"], "source": { "existing": { "handle": "h" } } },
                "status": { "provisioning":
                    { "type": "Provisioned", "status": "False", "reason": "DeleteFailed", "message": "has snapshots" } },
            }]))
            .unwrap(),
            plugins: serde_json::from_value(json!([{ "metadata": { "name": "p" }, "spec": {} }])).unwrap(),
            instances: serde_json::from_value(json!([{
                "metadata": { "name": "p-a" },
                "spec": { "plugin": "p", "role": "Monolith", "nodeName": "a", "task": "t",
                    "allocation": { "namespace": "wharfline-system", "name": "p-a" } },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
            }]))
            .unwrap(),
            ..Objects::default()
        };
        assert_eq!(
            left(&objects),
            [
                "allocation/web -n shop: Running on a",
                "volumeclaim/data -n shop: being deleted; it waits for volume/vol: being deleted: has snapshots",
                "volume/vol: being deleted: has snapshots",
            ]
        );
    }
}
