//! What every handler of the daemon shares, and the names of things on this machine.
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node as CoreNode, Secret};
use kube::{Api, Resource, ResourceExt};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::asked::{Asked, AskedOfAll};
use super::blocks::Listed;
use super::caches::Cache;
use super::events::Events;
use super::hosting::Doubts;
use super::journal::Journal;
use super::lanes::Lanes;
use super::queue::Queue;
use super::registry::{InstanceKey, Registry};
use super::requests::Secrets;
use super::retry::Retry;
use super::runtime::containerd::Reached;
use super::runtime::{Grants, Runtimes, Variables};
use super::supervisor::Supervisors;
use super::tasks::Tasks;
use super::turns::Turns;
use super::writes::{Said, Written};
use crate::api::meta::{CALLS_KEPT, Call, SecretRef, Time};
use crate::api::plugin::FsGroupPolicy;
use crate::api::snapshot::SnapshotOf;
use crate::api::validate::CSI_MAP_MAX;
use crate::api::{
    Allocation, NodeAgent, Plugin, PluginInstance, Snapshot, Volume, VolumeAttachment, VolumeClaim,
};
use crate::csi::{self, Alpha, SocketPathError, Tenure};
use crate::plan::Reason;
use crate::plan::marks::STOPPED;
use crate::plan::registry::Service;
use crate::plan::untold::Untold;
use crate::sys::{Clock, Containers, Files, Kernel, Processes, Random, Units, Watches};

/// Everything this machine is asked, each behind a trait with a real and a simulated form.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Mounts and paths.
    pub kernel: Arc<dyn Kernel>,
    /// Tasks under shims.
    pub processes: Arc<dyn Processes>,
    /// Durable files.
    pub files: Arc<dyn Files>,
    /// Sockets that appear.
    pub watches: Arc<dyn Watches>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// Plugin sockets.
    pub dial: Arc<dyn Dial>,
    /// What containers need; none where this daemon runs no containers.
    pub containers: Option<Arc<dyn Containers>>,
    /// The systemd that is PID 1; none where something else is.
    pub units: Option<Arc<dyn Units>>,
    /// The containerd that may be there, and where; none where this daemon runs no containers.
    pub containerd: Option<Reached>,
}

/// What is where a plugin's socket should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtSocket {
    /// Nothing yet.
    Nothing,
    /// A socket, whoever answers on it.
    Socket,
    /// Something else: "a directory".
    Other(&'static str),
}

/// Tells a socket from every other one that was at its path: device, inode, and when that came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketId(pub [u64; 4]);

/// How plugin sockets are prepared and reached.
#[async_trait]
pub trait Dial: Send + Sync + std::fmt::Debug {
    /// Makes the directory of a socket (0700) and removes a socket that a former instance left there.
    async fn prepare(&self, socket: &Path) -> std::io::Result<()>;
    /// Removes the directory of a socket. What cannot be removed is left: the next start replaces it.
    async fn discard(&self, socket: &Path);
    /// What is at the path of a socket.
    async fn look(&self, socket: &Path) -> AtSocket;
    /// Which file is at the path of a socket; none while there is none, or where nobody can tell.
    async fn which(&self, _: &Path) -> Option<SocketId> {
        None
    }
    /// A plugin behind a socket; connects when it is first called.
    fn plugin(&self, socket: &Path, options: csi::PluginOptions) -> Result<csi::Plugin, SocketPathError>;
}

/// How the daemon is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// The node's name.
    pub name: String,
    /// Journal, volumes' tree, tasks, logs.
    pub data_dir: PathBuf,
    /// Plugin sockets: `/run/wharfline/<hash of the data directory>`.
    pub run_dir: PathBuf,
    /// Directories beneath which volumes may be published on the host.
    pub host_paths: Vec<PathBuf>,
    /// The runtimes that may be used here.
    pub runtimes: Vec<String>,
    /// What containers may have.
    pub containers: Grants,
    /// How long the lease lasts; renewed three times in that time.
    pub lease: Duration,
    /// Between two Probes of a plugin that is well.
    pub heartbeat: Duration,
    /// Between two Probes of a plugin that is not ready: first and longest.
    pub probe_pause: (Duration, Duration),
    /// A task that ran for so long starts again with the first pause, and a plugin is called steady.
    pub long_run: Duration,
    /// Between two measurements of how full volumes are; none are made where it is absent.
    pub stats_period: Option<Duration>,
    /// What tells how it stands here.
    pub figures: super::figures::Figures,
    /// Who is asked about the blocks of snapshots.
    pub blocks: super::blocks::Blocks,
    /// At the latest so long after a controller call began the plugin is done with it.
    pub longest_call: Duration,
    /// What was brought up for another store than the server's is taken down, and not a reason to refuse the start.
    pub any_store: bool,
}

/// What the work queue works on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// One volume on this node.
    Mount(String),
    /// One volume whose host this node is.
    Host(String),
    /// One allocation, by uid.
    Allocation(String),
    /// The status of one plugin instance.
    Instance(InstanceKey),
    /// What one plugin instance is asked of its backend.
    Audit(InstanceKey),
    /// How much room the backend of one plugin instance has.
    Room(InstanceKey),
    /// What one plugin instance lists of what is attached.
    Drift(InstanceKey),
    /// Everything that uses a plugin: its health changed.
    Plugin(String),
    /// The NodeAgent's status.
    Agent,
}

/// The objects that concern this node.
#[derive(Debug)]
pub struct Caches {
    /// Bound here, by uid.
    pub allocations: Arc<Cache<Allocation>>,
    /// On this node, by volume, `claim:<namespace>/<name>`, `user:<uid of an allocation>` and
    /// `handle:<plugin>/<handle>`.
    pub attachments: Arc<Cache<VolumeAttachment>>,
    /// Whose host this is, by volume.
    pub hosted: Arc<Cache<VolumeAttachment>>,
    /// Whose host this is, by name.
    pub volumes: Arc<Cache<Volume>>,
    /// Whose host this is, by [`snapshot_word`], and of several volumes by `of:<uid of each>` until they can be used.
    pub snapshots: Arc<Cache<Snapshot>>,
    /// On this node, by allocation uid and task.
    pub instances: Arc<Cache<PluginInstance>>,
    /// All, by name.
    pub plugins: Arc<Cache<Plugin>>,
    /// This node, by name.
    pub node: Arc<Cache<CoreNode>>,
    /// What is said of this node, by name.
    pub agent: Arc<Cache<NodeAgent>>,
}

impl Caches {
    /// Empty caches with their indexes.
    pub fn new() -> Self {
        Self {
            allocations: Arc::new(Cache::new(allocation_words)),
            attachments: Arc::new(Cache::new(attachment_words)),
            hosted: Arc::new(Cache::new(|a| vec![a.spec.volume.clone()])),
            volumes: Arc::new(Cache::new(volume_words)),
            snapshots: Arc::new(Cache::new(snapshot_words)),
            instances: Arc::new(Cache::new(|i| vec![format!("{}/{}", i.spec.allocation.uid, i.spec.task)])),
            plugins: Arc::new(Cache::new(|p| vec![p.name_any()])),
            node: Arc::new(Cache::new(|n| vec![n.name_any()])),
            agent: Arc::new(Cache::new(|a| vec![a.name_any()])),
        }
    }
}

/// By itself, and by the claims that it uses.
fn allocation_words(allocation: &Allocation) -> Vec<String> {
    let namespace = allocation.namespace().unwrap_or_default();
    let claims = allocation.spec.volumes.iter().map(|v| format!("claim:{namespace}/{}", v.claim_name));
    let mut words: Vec<_> = allocation.uid().into_iter().chain(claims).collect();
    // Two volumes of one claim are one word.
    words.sort();
    words.dedup();
    words
}

/// By volume, by claim, by who may use it, and by what it is to the plugin.
fn attachment_words(attachment: &VolumeAttachment) -> Vec<String> {
    let spec = &attachment.spec;
    let claim = format!("claim:{}/{}", spec.claim.namespace, spec.claim.name);
    let users = spec.allocations.iter().map(|uid| format!("user:{uid}"));
    users.chain([spec.volume.clone(), claim, handle_word(&spec.plugin, &spec.handle)]).collect()
}

/// The word for what is one volume to a plugin.
pub fn handle_word(plugin: &str, handle: &str) -> String {
    format!("handle:{plugin}/{handle}")
}

/// What a snapshot is worked on with: its volume, of which it is one more matter until it can be used; then, or where it was
/// there before, itself.
pub fn snapshot_word(snapshot: &Snapshot) -> String {
    let status = snapshot.status.as_ref().filter(|status| !status.ready);
    let of = status.and_then(|status| status.of.as_ref());
    match of.map(|of| of.volume.as_str()).filter(|volume| !volume.is_empty()) {
        Some(volume) => volume.to_owned(),
        // No name of a Volume has such a letter.
        None => format!("snapshot/{}/{}", snapshot.namespace().unwrap_or_default(), snapshot.name_any()),
    }
}

/// Its name, and the uid of what it is filled from.
fn volume_words(volume: &Volume) -> Vec<String> {
    let content = volume.spec.source.create.as_ref().and_then(|create| create.content.as_ref());
    let from = content.map(|content| format!("from:{}", content.uid));
    [volume.name_any()].into_iter().chain(from).collect()
}

fn snapshot_words(snapshot: &Snapshot) -> Vec<String> {
    let status = snapshot.status.as_ref().filter(|status| snapshot.is_group() && !status.ready);
    let of = status.and_then(|status| status.of.as_ref());
    let volumes = of.into_iter().flat_map(SnapshotOf::uids).map(|uid| format!("of:{uid}"));
    volumes.chain([snapshot_word(snapshot)]).collect()
}

impl Default for Caches {
    fn default() -> Self {
        Self::new()
    }
}

/// What every handler shares.
#[derive(Debug)]
pub struct Node {
    /// How the daemon is set up.
    pub options: Options,
    /// The machine.
    pub machine: Machine,
    /// The API.
    pub client: NodeClient,
    /// What was attempted.
    pub journal: Journal,
    /// Plugin instances.
    pub registry: Registry,
    /// What to do next.
    pub queue: Queue<Key>,
    /// When again.
    pub retry: Retry,
    /// What the API says.
    pub caches: Caches,
    /// The processes.
    pub tasks: Tasks,
    /// Who looks after plugin instances.
    pub supervisors: Supervisors,
    /// Controller calls that may still be at work.
    pub doubts: Doubts,
    /// The snapshots whose blocks are being listed.
    pub listed: Listed,
    /// Whose turn it is to be attached or detached.
    pub lanes: Lanes,
    /// Allocations that are on their way down, and parts of attachments that go with another part's next write.
    pub untold: Mutex<Untold<Instant>>,
    /// This boot.
    pub boot_id: String,
    /// How this node's lease stands.
    pub tenure: watch::Sender<Tenure>,
    /// Every watch had its first complete list.
    pub synced: AtomicBool,
    /// Why something waits or fails: by key, a word and a sentence. Shown in status, never decided on.
    pub notes: Notes,
    /// The last calls, by key.
    pub calls: Calls,
    /// What happened, for people.
    pub events: Events,
    /// No journal was found at the start, or a damaged one: what stands in no record may have been attempted.
    pub amnesia: bool,
    /// One step at a time per staging directory.
    pub turns: Turns,
    /// What was seen of mounts beyond what the journal says.
    pub sightings: super::mounts::Sightings,
    /// How full volumes are, as it was measured last.
    pub usages: super::mounts::Usages,
    /// How many calls were made of plugins, and how long they took.
    pub tally: super::tally::Tally,
    /// When plugins were asked how much room there is.
    pub rooms: super::room::Rooms,
    /// What plugins list as not attached that is.
    pub drift: super::drift::Drift,
    /// How tasks are run here.
    pub runtimes: Runtimes,
    /// Ends the daemon; workloads and mounts stay.
    pub stop: CancellationToken,
    /// What this daemon last wrote of an object, by uid and part.
    pub(super) written: Mutex<HashMap<String, Written>>,
    /// What it last had to say of it, written or not.
    pub(super) said: Mutex<HashMap<String, Said>>,
    /// Whose calls were not sent because their driver has to say first who it is.
    unsent: Mutex<BTreeSet<Key>>,
}

/// The API as this node. Wrapped because a client has no useful `Debug`.
#[derive(Clone)]
pub struct NodeClient(pub kube::Client);

impl std::fmt::Debug for NodeClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeClient")
    }
}

/// Words and sentences by key, and when the next attempt is due.
#[derive(Debug, Default)]
pub struct Notes(Mutex<HashMap<String, (Note, Kind)>>);

/// What a note is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Of something that failed: it stands until that succeeds.
    Failure,
    /// Of something that is waited for: it is over once anything is done.
    Wait,
}

/// A word, a sentence, and when the next attempt is due.
pub type Note = (String, String, Option<Time>);

impl Notes {
    /// Sets a note.
    pub fn set(&self, key: &str, word: &str, sentence: &str, next: Option<Time>) {
        let note = (word.to_owned(), sentence.to_owned(), next);
        self.all().insert(key.to_owned(), (note, Kind::Failure));
    }
    /// Sets a note from a reason.
    pub fn wait(&self, key: &str, reason: &Reason) {
        let note = (reason.word().to_owned(), reason.to_string(), None);
        self.all().insert(key.to_owned(), (note, Kind::Wait));
    }
    /// A step is made: what was waited for has come, and is removed. Whether there was any.
    pub fn begun(&self, key: &str) -> bool {
        let mut all = self.all();
        all.get(key).is_some_and(|(_, kind)| *kind == Kind::Wait) && all.remove(key).is_some()
    }
    /// Removes a note.
    pub fn clear(&self, key: &str) {
        self.all().remove(key);
    }
    /// Removes all notes of an object, whose keys begin with its own and a slash.
    pub fn gone(&self, object: &str) {
        let of_object = |key: &str| key.strip_prefix(object).is_some_and(|rest| rest.starts_with('/'));
        self.all().retain(|key, _| !of_object(key));
    }
    /// The note, empty if there is none.
    pub fn get(&self, key: &str) -> Note {
        self.all().get(key).map(|(note, _)| note.clone()).unwrap_or_default()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, (Note, Kind)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last calls by key.
#[derive(Debug, Default)]
pub struct Calls(Mutex<HashMap<String, VecDeque<Call>>>);

impl Calls {
    /// Adds one; the oldest goes. A repetition with the same result replaces the one before.
    pub fn add(&self, key: &str, call: Call) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let list = all.entry(key.to_owned()).or_default();
        if call.code != "OK" && list.back().is_some_and(|last| same(last, &call)) {
            list.pop_back();
        }
        list.push_back(call);
        while list.len() > CALLS_KEPT {
            list.pop_front();
        }
    }
    /// The calls, oldest first; those in `before` come first when nothing is known here yet.
    pub fn get(&self, key: &str, before: &[Call]) -> Vec<Call> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key) {
            None => before.to_vec(),
            Some(list) => {
                let first = list.front().map(|c| c.start_time);
                // What a repetition replaced in the list is not taken from the status again.
                let replaced = |c: &Call| list.front().is_some_and(|f| c.code != "OK" && same(c, f));
                let older = before.iter().filter(|c| Some(c.start_time) < first && !replaced(c));
                let mut all: Vec<_> = older.chain(list.iter()).cloned().collect();
                let surplus = all.len().saturating_sub(CALLS_KEPT);
                all.drain(..surplus);
                all
            }
        }
    }
    /// Forgets them.
    pub fn clear(&self, key: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// The same call with the same result.
fn same(a: &Call, b: &Call) -> bool {
    a.method == b.method && a.code == b.code && a.message == b.message
}

/// What a fresh daemon is made of.
pub struct Parts {
    /// How the daemon is set up.
    pub options: Options,
    /// The machine.
    pub machine: Machine,
    /// The API.
    pub client: kube::Client,
    /// What was attempted.
    pub journal: Journal,
    /// This boot.
    pub boot_id: String,
    /// Where events are left.
    pub events: Events,
    /// No trustworthy journal was found.
    pub amnesia: bool,
    /// Ends the daemon.
    pub stop: CancellationToken,
}

impl Node {
    /// A daemon that knows nothing yet.
    pub fn new(parts: Parts) -> Self {
        let retry = Retry::new(Arc::clone(&parts.machine.random));
        Self {
            doubts: Doubts::new(parts.options.longest_call),
            lanes: Lanes::default(),
            untold: Mutex::default(),
            runtimes: Runtimes::new(&parts.machine, &parts.options),
            options: parts.options,
            machine: parts.machine,
            client: NodeClient(parts.client),
            journal: parts.journal,
            registry: Registry::default(),
            queue: Queue::default(),
            listed: Listed::default(),
            retry,
            caches: Caches::new(),
            tasks: Tasks::default(),
            supervisors: Supervisors::default(),
            boot_id: parts.boot_id,
            events: parts.events,
            amnesia: parts.amnesia,
            turns: Turns::default(),
            sightings: super::mounts::Sightings::default(),
            usages: super::mounts::Usages::default(),
            rooms: super::room::Rooms::default(),
            drift: super::drift::Drift::default(),
            tally: super::tally::Tally::default(),
            stop: parts.stop,
            tenure: watch::Sender::default(),
            synced: AtomicBool::new(false),
            notes: Notes::default(),
            calls: Calls::default(),
            written: Mutex::default(),
            said: Mutex::default(),
            unsent: Mutex::default(),
        }
    }

    /// The time now, as exact as statuses carry it: what comes back from the API compares equal.
    pub fn now(&self) -> Time {
        let now = self.machine.clock.now();
        Time(jiff::Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now))
    }

    /// The time after so long.
    pub fn later(&self, delay: Duration) -> Time {
        let now = self.now().0;
        Time(jiff::SignedDuration::try_from(delay).map_or(now, |d| now.saturating_add(d).unwrap_or(now)))
    }

    /// Whether every watch had its first complete list.
    pub fn synced(&self) -> bool {
        self.synced.load(Ordering::Acquire)
    }

    /// Whether the lease was renewed in time.
    pub fn lease_valid(&self) -> bool {
        self.lease().is_valid()
    }

    /// This node's lease as it is now. Who goes by what a cache shows takes it before looking there.
    pub fn lease(&self) -> csi::Lease {
        let tenure = self.tenure.subscribe();
        let term = tenure.borrow().term;
        csi::Lease { tenure, lasts: self.options.lease, term }
    }

    /// Whether this node may start controller calls of what this cache shows it to be host of. While its lease had run out
    /// another may have become host: what was known before this term counts no more.
    pub fn may_host<K: Resource>(lease: &csi::Lease, cache: &Cache<K>) -> bool {
        lease.is_valid() && *cache.listed().borrow() >= lease.term
    }

    /// The lease was renewed, as of then.
    pub fn renewed_at(&self, at: Instant) {
        let next = u64::from(!self.lease_valid());
        self.tenure.send_modify(|tenure| {
            tenure.term += next;
            tenure.renewed = Some(at);
        });
    }

    /// Whether `wharfline down` marked the node.
    pub fn stopped(&self) -> bool {
        self.caches.node.one(&self.options.name).is_some_and(|node| node.annotations().contains_key(STOPPED))
    }

    /// The deadline of an RPC of a plugin: the Plugin's own, else 2 min for node calls, 60 s for controller calls. No
    /// controller call gets more than a replaced host's last one is waited for.
    pub fn deadline(&self, plugin: &str, rpc: &str) -> Duration {
        let own =
            self.caches.plugins.one(plugin).and_then(|p| {
                p.spec.deadlines.get(rpc).and_then(|text| crate::api::quantity::duration(text))
            });
        let longest = crate::api::plugin::LONGEST_CONTROLLER_CALL;
        if rpc.starts_with("Node") {
            own.unwrap_or(Duration::from_secs(120))
        } else {
            own.unwrap_or(Duration::from_secs(60)).min(longest)
        }
    }

    /// What a Plugin says about the groups of files.
    pub fn fs_group_policy(&self, plugin: &str) -> FsGroupPolicy {
        self.caches.plugins.one(plugin).map(|plugin| plugin.spec.fs_group_policy).unwrap_or_default()
    }

    /// Whether what CSI calls alpha is used with a plugin, as its Plugin says now.
    pub fn alpha(&self, plugin: &str) -> Alpha {
        let on = self.caches.plugins.one(plugin).is_some_and(|plugin| plugin.spec.alpha);
        if on { Alpha::On } else { Alpha::Off }
    }

    /// The content of a Secret, read now, for a call that begins something. `None` reference = no secrets.
    /// `asker` is the object that refers to it, as `volumes/NAME`: only for such a one does the server give it.
    pub async fn secrets(&self, asker: &str, reference: Option<&SecretRef>) -> Result<Secrets, Reason> {
        let secrets = self.secrets_to_undo(asker, reference).await?;
        let bytes: usize = secrets.iter().map(|(key, value)| key.len() + value.len()).sum();
        if let (Some(SecretRef { namespace, name }), true) = (reference, bytes > CSI_MAP_MAX) {
            let why = format!(
                "it has {bytes} bytes, and CSI allows {CSI_MAP_MAX}; leave in it what the plugin needs"
            );
            return Err(Reason::SecretUnreadable { secret: format!("{namespace}/{name}"), why });
        }
        Ok(secrets)
    }

    /// The same for a call that undoes something, which is not held up by how much there is in the Secret by now.
    pub async fn secrets_to_undo(
        &self,
        asker: &str,
        reference: Option<&SecretRef>,
    ) -> Result<Secrets, Reason> {
        let Some(SecretRef { namespace, name }) = reference else { return Ok(Secrets::new()) };
        let secret = || format!("{namespace}/{name}");
        let unreadable = |why: String| Reason::SecretUnreadable { secret: secret(), why };
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}?for={asker}");
        let request =
            http::Request::get(path).body(Vec::new()).map_err(|error| unreadable(error.to_string()))?;
        let read = tokio::time::timeout(API_DEADLINE, self.client.0.request::<Secret>(request)).await;
        let answer = read.map_err(|_| unreadable(format!("no answer within {API_DEADLINE:?}")))?;
        let found = answer.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 404 => Reason::SecretMissing { secret: secret() },
            error => unreadable(error.to_string()),
        })?;
        let text = |(key, bytes): (String, k8s_openapi::ByteString)| match String::from_utf8(bytes.0) {
            Ok(value) => Ok((key, value)),
            Err(_) => {
                Err(unreadable(format!("its key \"{key}\" is not UTF-8 text, which CSI wants of secrets")))
            }
        };
        found.data.unwrap_or_default().into_iter().map(text).collect()
    }

    /// Lets a call about a volume through to the process that was chosen for it.
    pub(super) fn gate(
        &self,
        of: InstanceKey,
        (plugin, service): (&str, Service),
        volume: &str,
    ) -> Arc<dyn csi::Gate> {
        Arc::new(self.asked(of, (plugin, service), volume))
    }

    /// The same for a call about several volumes.
    pub(super) fn gate_of_all(
        &self,
        of: &InstanceKey,
        (plugin, service): (&str, Service),
        volumes: &[&str],
    ) -> Arc<dyn csi::Gate> {
        let each = volumes.iter().map(|volume| self.asked(of.clone(), (plugin, service), volume));
        Arc::new(AskedOfAll(each.collect()))
    }

    fn asked(&self, of: InstanceKey, (plugin, service): (&str, Service), volume: &str) -> Asked {
        let (registry, journal) = (self.registry.clone(), self.journal.clone());
        let (plugin, volume) = (plugin.to_owned(), volume.to_owned());
        Asked { registry, journal, plugin, service, of, volume }
    }

    /// A call was not sent: whoever wanted it is woken when a driver has said who it is.
    pub fn not_sent(&self, who: Key) {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner).insert(who);
    }

    /// A driver has said who it is.
    pub fn vouched(&self) {
        let waiting = std::mem::take(&mut *self.unsent.lock().unwrap_or_else(PoisonError::into_inner));
        for who in waiting {
            self.queue.wake(who);
        }
    }

    /// A Volume as the server itself has it, for what no cache of this node can tell: that it is gone.
    pub async fn volume(&self, name: &str) -> Result<Option<Volume>, kube::Error> {
        let api: Api<Volume> = Api::all(self.client.0.clone());
        let read = tokio::time::timeout(API_DEADLINE, api.get_opt(name)).await;
        read.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into())))
    }

    /// An attachment as the server itself has it.
    pub async fn attachment(&self, name: &str) -> Result<Option<VolumeAttachment>, kube::Error> {
        let api: Api<VolumeAttachment> = Api::all(self.client.0.clone());
        let read = tokio::time::timeout(API_DEADLINE, api.get_opt(name)).await;
        read.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into())))
    }

    /// A claim as the server itself has it.
    pub async fn claim(&self, namespace: &str, name: &str) -> Result<Option<VolumeClaim>, kube::Error> {
        let api: Api<VolumeClaim> = Api::namespaced(self.client.0.clone(), namespace);
        let read = tokio::time::timeout(API_DEADLINE, api.get_opt(name)).await;
        read.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into())))
    }

    /// The Snapshot `namespace/name` as the server itself has it.
    pub async fn snapshot(&self, full_name: &str) -> Result<Option<Snapshot>, kube::Error> {
        let (namespace, name) = full_name.split_once('/').unwrap_or(("default", full_name));
        let api: Api<Snapshot> = Api::namespaced(self.client.0.clone(), namespace);
        let read = tokio::time::timeout(API_DEADLINE, api.get_opt(name)).await;
        read.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into())))
    }

    /// The variables that stand in commands, environments and socket paths.
    pub fn variables(&self, endpoint: &str) -> Variables {
        BTreeMap::from([
            ("NODE_NAME", self.options.name.clone()),
            ("DATA_DIR", self.options.data_dir.to_string_lossy().into_owned()),
            ("CSI_ENDPOINT", endpoint.to_owned()),
            ("CSI_SOCKET", endpoint.strip_prefix("unix://").unwrap_or(endpoint).to_owned()),
        ])
    }
}

/// How long one request to the API may take.
pub const API_DEADLINE: Duration = Duration::from_secs(10);

/// Replaces `${NAME}` by its value and `$$` by a dollar sign; everything else stays, shell variables too.
pub fn substitute(text: &str, variables: &Variables) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('{').and_then(|r| r.split_once('}')).map(|(name, _)| name);
        match name.and_then(|name| variables.get(name).map(|value| (name, value))) {
            Some((name, value)) => {
                out.push_str(value);
                rest = &rest[name.len() + 2..];
            }
            None => out.push('$'),
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_and_nothing_else() {
        let vars = BTreeMap::from([("NODE_NAME", "n1".to_owned())]);
        for (text, wanted) in [
            ("a-${NODE_NAME}-b", "a-n1-b"),
            ("$NODE_NAME ${HOME} $$ $", "$NODE_NAME ${HOME} $ $"),
            ("$${NODE_NAME}", "${NODE_NAME}"),
            ("${NODE_NAME", "${NODE_NAME"),
        ] {
            assert_eq!(substitute(text, &vars), wanted);
        }
    }
}
