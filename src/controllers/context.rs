//! What every controller is given: the caches, the queues, the writing end, the clocks.
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace, Node};
use kube::api::{DeleteParams, Preconditions};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::cache::{Kind, Name, name_of};
use super::hosts::Absences;
use super::ledger::Ledger;
use super::nodes::renewal;
use super::plugins::{Changing, Leaving, Settling};
use super::queue::Queue;
use super::tell::Teller;
use super::world::{Cached, World};
use super::write::{Failure, Writable, Write};
use crate::api::definitions::FINALIZER;
use crate::api::meta::{AsSeen, Time, Unrenewed, WithEnd, WithStatus, WithUid};
use crate::api::node_agent::LEASE_BOOT;
use crate::api::{
    Allocation, Plugin, PluginInstance, Snapshot, SnapshotSchedule, Volume, VolumeAttachment, VolumeClaim,
};
use crate::plan::place::{CLOSED_MOST, closed_for};
use crate::plan::untold::Untold;

/// The namespace of leases and of the allocations that plugins run in.
pub const SYSTEM_NAMESPACE: &str = "wharfline-system";

/// How soon the same is said of an object again that another has unsaid.
const SAID_AGAIN: Duration = Duration::from_secs(1);

/// How long no attachment of a volume is chosen after that failed again and again.
const CONTESTED: Duration = Duration::from_secs(10);

/// What takes less than this is not told.
const SOON: Duration = Duration::from_secs(1);

/// What the controllers are told from outside. Monotonic time is tokio's, so that a test may pause it.
#[derive(Clone)]
pub struct Options {
    /// The wall clock, for what people read.
    pub now: Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>,
    /// A random byte, to spread retries.
    pub jitter: Arc<dyn Fn() -> u8 + Send + Sync>,
    /// A uid that nobody has, and will have.
    pub uid: Arc<dyn Fn() -> uuid::Uuid + Send + Sync>,
    /// How long a node's lease lasts without renewal, on the controllers' own clock.
    pub lease_duration: Duration,
    /// The longest CSI call that a node may have begun while its lease stood.
    pub longest_call: Duration,
    /// How long a living host's controller instance may be away before the host is asked to let go of its volumes.
    pub instance_patience: Duration,
    /// The namespace of leases and of the plugins' own allocations.
    pub system_namespace: String,
    /// Whether the server is in the same process, and hears what is said beside the wire: then an attachment is made with who is
    /// let in.
    pub in_process: bool,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("lease_duration", &self.lease_duration)
            .field("longest_call", &self.longest_call)
            .field("instance_patience", &self.instance_patience)
            .field("system_namespace", &self.system_namespace)
            .field("in_process", &self.in_process)
            .finish_non_exhaustive()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            now: Arc::new(jiff::Timestamp::now),
            jitter: Arc::new(|| uuid::Uuid::new_v4().as_bytes()[0]),
            uid: Arc::new(uuid::Uuid::new_v4),
            lease_duration: Duration::from_secs(10),
            longest_call: crate::api::plugin::LONGEST_CONTROLLER_CALL + Duration::from_secs(30),
            instance_patience: Duration::from_secs(30),
            system_namespace: SYSTEM_NAMESPACE.to_owned(),
            in_process: true,
        }
    }
}

/// One queue per controller.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    pub(crate) plugins: Queue<Plugin>,
    pub(crate) plugin_tasks: Queue<Allocation>,
    pub(crate) instances: Queue<PluginInstance>,
    pub(crate) nodes: Queue<Node>,
    pub(crate) claims: Queue<VolumeClaim>,
    pub(crate) placement: Queue<Allocation>,
    pub(crate) volumes: Queue<Volume>,
    pub(crate) snapshots: Queue<Snapshot>,
    pub(crate) schedules: Queue<SnapshotSchedule>,
    pub(crate) holders: Queue<Volume>,
    pub(crate) attachments: Queue<VolumeAttachment>,
    pub(crate) allocations: Queue<Allocation>,
    pub(crate) events: Queue<Event>,
    pub(crate) namespaces: Queue<Namespace>,
}

/// What every controller is given.
pub(crate) struct Context {
    pub(crate) world: World,
    pub(crate) queues: Queues,
    pub(crate) options: Options,
    write: Write,
    teller: Teller,
    ledger: Ledger,
    leases: Mutex<HashMap<String, Renewal>>,
    /// What was written of which part of a status, a moment ago.
    said: Mutex<HashMap<String, (Words, Instant)>>,
    started: Instant,
    pub(crate) absences: Absences,
    /// Of which boots of nodes it is seen that they were said to be off, and since which version of the Node.
    fenced: Mutex<HashMap<String, (String, u64)>>,
    pub(crate) leaving: Leaving,
    /// Tasks whose csiPlugin block changed, and that volumes need as they were.
    pub(crate) changing: Changing,
    /// Since when plugins' instances are healthy.
    pub(crate) settling: Settling,
    /// Where a plugin refused to attach one more volume.
    pub(crate) refusals: Refusals,
    /// Where plugins had no room for another volume.
    pub(crate) full: Full,
    /// Volumes of which we could not make an attachment that we had chosen.
    contested: Mutex<Untold<Instant>>,
    /// News of claims and volumes that wait a moment for more.
    untold: Mutex<Untold<Instant>>,
    /// Held while an allocation is placed that shares a volume with others of the same node.
    pub(crate) sharing: tokio::sync::Mutex<()>,
}

/// What a status says.
type Words = Map<String, Value>;

/// Nodes where a plugin refused to attach one more volume, and when. A driver may count what it does not tell of, and says
/// nothing once there is room: after a while ([`closed_for`]), or when a volume of it has left the node, it is asked again. In
/// memory only: new controllers ask again.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<(String, String), Refusal>>);

/// The last such word, and the uids of the attachments of which it was said.
#[derive(Debug)]
struct Refusal {
    at: Instant,
    /// For how long it closes the node.
    lasts: Duration,
    of: HashSet<String>,
}

impl Refusal {
    fn left(&self) -> Option<Duration> {
        self.lasts.checked_sub(self.at.elapsed()).filter(|left| !left.is_zero())
    }

    /// Whether the next one is judged by it.
    fn counts(&self) -> bool {
        self.at.elapsed() < self.lasts + CLOSED_MOST
    }
}

impl Refusals {
    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Refusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its plugin refused this attachment just now.
    pub(crate) fn note(&self, attachment: &VolumeAttachment) {
        let key = (attachment.spec.plugin.clone(), attachment.spec.node_name.clone());
        let mut all = self.all();
        let before = all.get(&key).map(|refusal| (refusal.lasts, refusal.at.elapsed()));
        let (at, lasts) = (Instant::now(), closed_for(before));
        let refusal = all.entry(key).or_insert_with(|| Refusal { at, lasts, of: HashSet::new() });
        (refusal.at, refusal.lasts) = (at, lasts);
        refusal.of.extend(attachment.metadata.uid.clone());
    }

    /// This attachment is gone. Whether there may be room now: there is no more after one that never had any.
    pub(crate) fn gone(&self, attachment: &VolumeAttachment) -> bool {
        let key = (attachment.spec.plugin.clone(), attachment.spec.node_name.clone());
        let mut all = self.all();
        let uid = attachment.metadata.uid.clone().unwrap_or_default();
        let never_there = all.get_mut(&key).is_some_and(|refusal| refusal.of.remove(&uid));
        !never_there && all.remove(&key).is_some()
    }

    /// The nodes where the plugin is not asked now.
    pub(crate) fn of(&self, plugin: &str) -> BTreeSet<String> {
        let all = self.all();
        let refused = all.iter().filter(|((of, _), refusal)| of == plugin && refusal.left().is_some());
        refused.map(|((_, node), _)| node.clone()).collect()
    }

    /// When the first of these words is over.
    pub(crate) fn next(&self) -> Option<Duration> {
        let mut all = self.all();
        all.retain(|_, refusal| refusal.counts());
        all.values().filter_map(Refusal::left).min()
    }

    /// This attachment is not refused any more; `up` if it is there after all. Whether nothing is left of the word: all of whom it
    /// was said are there.
    pub(crate) fn attached(&self, attachment: &VolumeAttachment, up: bool) -> bool {
        let key = (attachment.spec.plugin.clone(), attachment.spec.node_name.clone());
        let mut all = self.all();
        let Some(refusal) = all.get_mut(&key) else { return false };
        let was = refusal.of.remove(attachment.metadata.uid.as_deref().unwrap_or_default());
        let over = up && was && refusal.of.is_empty();
        over && all.remove(&key).is_some()
    }
}

/// Nodes for which a plugin had no room, and when. What makes room nobody says: after [`CLOSED_MOST`] it is asked again. In
/// memory only: new controllers ask again.
#[derive(Debug, Default)]
pub(crate) struct Full(Mutex<HashMap<(String, String), Instant>>);

impl Full {
    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Instant>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, at| at.elapsed() < CLOSED_MOST);
        all
    }

    /// The plugin had no room there just now.
    pub(crate) fn note(&self, plugin: &str, node: &str) {
        self.all().insert((plugin.to_owned(), node.to_owned()), Instant::now());
    }

    /// The nodes for which it is not asked now.
    pub(crate) fn of(&self, plugin: &str) -> BTreeSet<String> {
        self.all().keys().filter(|(of, _)| of == plugin).map(|(_, node)| node.clone()).collect()
    }

    /// When the first of these words is over.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.all().values().map(|at| CLOSED_MOST.saturating_sub(at.elapsed())).min()
    }
}

/// The last renewal of a lease that was seen.
#[derive(Debug, Clone)]
struct Renewal {
    version: String,
    /// The `resourceVersion` of the lease that was seen last with it.
    object: Option<String>,
    /// The same as it was when the renewal was seen first: a lease can be touched without being renewed.
    renewed: Option<u64>,
    seen: Instant,
    /// How old it was when the server itself was asked last, and had no newer one.
    asked_at: Option<Duration>,
    /// Who holds the lease: an incarnation of the node's daemon.
    holder: String,
    /// Under which boot of the node that was, if it says so.
    boot: Option<String>,
    /// It came after another one that we saw. What is seen first may be the last word of one who is off.
    again: bool,
}

impl Context {
    /// Nothing known yet.
    pub(crate) fn new(world: World, client: kube::Client, options: Options) -> Self {
        Self {
            world,
            queues: Queues::default(),
            options,
            write: Write::new(client.clone()),
            teller: Teller::new(client),
            ledger: Ledger::default(),
            leases: Mutex::default(),
            said: Mutex::default(),
            started: Instant::now(),
            absences: Absences::default(),
            fenced: Mutex::default(),
            leaving: Leaving::default(),
            changing: Changing::default(),
            settling: Settling::default(),
            refusals: Refusals::default(),
            full: Full::default(),
            untold: Mutex::default(),
            contested: Mutex::default(),
            sharing: tokio::sync::Mutex::default(),
        }
    }

    /// The writer of events.
    pub(crate) fn teller(&self) -> &Teller {
        &self.teller
    }

    /// The time as people read it.
    pub(crate) fn now(&self) -> Time {
        Time((self.options.now)())
    }

    /// The version of a Node in which the word that this boot of it is off was seen first; `said` is that boot and the version that is
    /// seen now, where the word stands.
    pub(crate) fn said_off_since(&self, node: &str, said: Option<(String, u64)>) -> Option<u64> {
        let mut all = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((boot, version)) = said else {
            all.remove(node);
            return None;
        };
        let known = all.entry(node.to_owned()).or_insert_with(|| (boot.clone(), version));
        if known.0 != boot {
            *known = (boot, version);
        }
        Some(known.1)
    }

    /// The controllers' own clock.
    pub(crate) fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }

    /// Notes that a node's lease was seen so.
    pub(crate) fn lease_seen(&self, node: &str, lease: &Lease) {
        self.lease_known(node, lease, None);
    }

    /// Notes that the server itself, asked when the lease was so old, has it so.
    pub(crate) fn lease_asked(&self, node: &str, lease: &Lease, age: Duration) {
        self.lease_known(node, lease, Some(age));
    }

    fn lease_known(&self, node: &str, lease: &Lease, asked_at: Option<Duration>) {
        let (version, object) = (renewal(lease), lease.metadata.resource_version.clone());
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        match leases.get_mut(node).filter(|renewal| renewal.version == version) {
            Some(renewal) => {
                renewal.object = object;
                renewal.asked_at = asked_at.or(renewal.asked_at);
            }
            None => {
                let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
                let (seen, holder) = (Instant::now(), holder.unwrap_or_default());
                let again = leases.contains_key(node);
                let renewed = object.as_ref().and_then(|object| object.parse().ok());
                let boot = lease.metadata.annotations.as_ref().and_then(|all| all.get(LEASE_BOOT).cloned());
                let renewal = Renewal { version, object, renewed, seen, asked_at: None, holder, boot, again };
                leases.insert(node.to_owned(), renewal);
            }
        }
    }

    /// Notes that a node's lease is gone.
    pub(crate) fn lease_gone(&self, node: &str) {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }

    /// How long ago a node's lease was renewed, and how old it was when the server was asked; absent when it has none.
    pub(crate) fn lease_age(&self, node: &str) -> Option<(Duration, Option<Duration>)> {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.get(node).map(|renewal| (renewal.seen.elapsed(), renewal.asked_at))
    }

    /// The version that a node's lease has by its last renewal; absent when it has none.
    pub(crate) fn lease_version(&self, node: &str) -> Option<u64> {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.get(node)?.renewed
    }

    /// Who renewed a node's lease last, and whether that was seen to happen; absent when it has none.
    pub(crate) fn lease_holder(&self, node: &str) -> Option<(String, bool)> {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.get(node).map(|renewal| (renewal.holder.clone(), renewal.again))
    }

    /// Under which boot of a node its lease was renewed last, if that says so.
    pub(crate) fn lease_boot(&self, node: &str) -> Option<String> {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.get(node)?.boot.clone()
    }

    /// The silence that is known of a node: as its lease was seen last. Taken before what is decided by it, for it may be heard meanwhile.
    pub(crate) fn unrenewed(&self, node: &str) -> Unrenewed {
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let version = leases.get(node).and_then(|renewal| renewal.object.clone());
        Unrenewed { node: node.to_owned(), version }
    }

    /// How long the controllers have been looking.
    pub(crate) fn looking_for(&self) -> Duration {
        self.started.elapsed()
    }

    /// Notes that the watcher saw this state of an object, or that this was its last one.
    pub(crate) fn saw<K: Kind>(&self, object: &K, end: bool) {
        self.ledger.saw(object, end);
    }

    /// How long to wait at most until the cache shows our own last write to the object.
    pub(crate) fn behind<K: Kind>(&self, name: &Name) -> Option<Duration> {
        self.ledger.behind::<K>(name)
    }

    /// How long not to write of an object what goes on by itself: mostly it is over before anybody could read it.
    /// Absent once that is worth a write.
    pub(crate) fn soon<K: Cached>(&self, object: &K) -> Option<Duration> {
        let age = K::cache(&self.world).age(&name_of(object))?;
        SOON.checked_sub(age).filter(|left| !left.is_zero())
    }

    /// How long to wait with news that mostly come together with others: that a claim has other users than it names, or is in
    /// use yet while it goes; that a volume that goes has no holder. Absent once that is worth a write, or is no news.
    pub(crate) fn untold(&self, key: &str, is_news: bool) -> Option<Duration> {
        let mut all = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        all.forget_older(Instant::now(), 10 * SOON);
        if is_news {
            return all.left(key, Instant::now(), SOON);
        }
        all.settled(key);
        None
    }

    /// Notes that we could not make an attachment that we had chosen. Once, because something else of the volume was written
    /// meanwhile, that is nothing.
    pub(crate) fn contest(&self, volume: &str, for_sure: bool) {
        let (now, again) = (Instant::now(), format!("{volume}/again"));
        let mut all = self.contested.lock().unwrap_or_else(PoisonError::into_inner);
        all.forget_older(now, CONTESTED);
        if for_sure || all.waits(volume, now, CONTESTED).is_some() {
            all.left(&again, now, CONTESTED);
        }
        all.left(volume, now, CONTESTED);
    }

    /// Whether that was so again and again. Of two who know nothing of each other each would undo what the other has chosen; what is
    /// made first and granted then serves both, and of what is refused nothing is written.
    pub(crate) fn is_contested(&self, volume: &str) -> bool {
        let all = self.contested.lock().unwrap_or_else(PoisonError::into_inner);
        all.waits(&format!("{volume}/again"), Instant::now(), CONTESTED).is_some()
    }

    /// A new uid.
    pub(crate) fn new_uid(&self) -> String {
        (self.options.uid)().to_string()
    }

    /// Creates an object. What writes one returns it as the server has it.
    pub(crate) async fn create<K: Cached + Writable>(&self, object: &K) -> Result<K, Failure> {
        self.write.create((K::cache(&self.world), &self.ledger), object, |_| {}).await
    }

    /// The same under this uid, as long as another object is as it was seen: else a conflict.
    pub(crate) async fn create_as<K: Cached + Writable>(
        &self,
        object: &K,
        uid: String,
        seen: AsSeen,
    ) -> Result<K, Failure> {
        let tell = |extensions: &mut http::Extensions| {
            extensions.insert(WithUid(uid));
            extensions.insert(seen);
        };
        self.write.create((K::cache(&self.world), &self.ledger), object, tell).await
    }

    /// Creates an object that keeps the status that it bears.
    pub(crate) async fn create_with_status<K: Cached + Writable>(&self, object: &K) -> Result<K, Failure> {
        let tell = |extensions: &mut http::Extensions| {
            extensions.insert(WithStatus);
        };
        self.write.create((K::cache(&self.world), &self.ledger), object, tell).await
    }

    /// Merges `patch` into an object, under its status if it has a `status` key. A status that was written a moment ago and
    /// unsaid since waits: another leader, or a node, sees things otherwise for now, and the two must not answer each
    /// other as fast as they can.
    pub(crate) async fn merge<K: Cached + Writable>(&self, object: &K, patch: Value) -> Result<K, Failure> {
        let Some(words) = patch.get("status").and_then(words) else {
            return self.write.merge((K::cache(&self.world), &self.ledger), object, (patch, |_| {})).await;
        };
        // Each controller writes fields of its own.
        let fields = words.keys().map(String::as_str).collect::<Vec<_>>().join(",");
        let key = format!("{}/{fields}", object.meta().uid.as_deref().unwrap_or_default());
        let said = || self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said().retain(|_, (_, at)| at.elapsed() < SAID_AGAIN);
        if let Some((_, at)) = said().get(&key).filter(|(last, _)| *last == words) {
            return Err(Failure::Unsaid(SAID_AGAIN.saturating_sub(at.elapsed())));
        }
        let merged = self.write.merge((K::cache(&self.world), &self.ledger), object, (patch, |_| {})).await?;
        said().insert(key, (words, Instant::now()));
        Ok(merged)
    }

    /// Merges what is not of the status, as long as `silent` says nothing: else a conflict.
    pub(crate) async fn merge_while<K: Cached + Writable>(
        &self,
        object: &K,
        patch: Value,
        silent: Unrenewed,
    ) -> Result<K, Failure> {
        let tell = |extensions: &mut http::Extensions| drop(extensions.insert(silent));
        self.write.merge((K::cache(&self.world), &self.ledger), object, (patch, tell)).await
    }

    /// Replaces the status by compare-and-swap.
    pub(crate) async fn replace_status<K: Cached + Writable>(&self, object: &K) -> Result<K, Failure> {
        self.write.replace_status((K::cache(&self.world), &self.ledger), object, |_| {}).await
    }

    /// The same as long as another object is as it was seen, else a conflict; and where that `ends` this one, asks for its end.
    /// Whether the server heard that, the answer says.
    pub(crate) async fn replace_status_as<K: Cached + Writable>(
        &self,
        object: &K,
        seen: Option<AsSeen>,
        ends: bool,
    ) -> Result<K, Failure> {
        let tell = |extensions: &mut http::Extensions| {
            seen.map(|seen| extensions.insert(seen));
            ends.then(|| extensions.insert(WithEnd));
        };
        self.write.replace_status((K::cache(&self.world), &self.ledger), object, tell).await
    }

    /// The same as long as `silent` says nothing: else a conflict.
    pub(crate) async fn replace_while<K: Cached + Writable>(
        &self,
        object: &K,
        silent: Unrenewed,
    ) -> Result<K, Failure> {
        let tell = |extensions: &mut http::Extensions| drop(extensions.insert(silent));
        self.write.replace_status((K::cache(&self.world), &self.ledger), object, tell).await
    }

    /// Asks for the end of this very object.
    pub(crate) async fn delete<K: Cached>(&self, object: &K) -> Result<(), Failure> {
        self.write.delete((K::cache(&self.world), &self.ledger), object, DeleteParams::background()).await
    }

    /// The same, if nobody has written it since: what decides may have been changed a moment ago.
    pub(crate) async fn delete_as_seen<K: Cached>(&self, object: &K) -> Result<(), Failure> {
        let seen = Preconditions { uid: None, resource_version: object.meta().resource_version.clone() };
        let params = DeleteParams { preconditions: Some(seen), ..DeleteParams::background() };
        self.write.delete((K::cache(&self.world), &self.ledger), object, params).await
    }

    /// The same, after the end of everything that it owns.
    pub(crate) async fn delete_last<K: Cached>(&self, object: &K) -> Result<(), Failure> {
        self.write.delete((K::cache(&self.world), &self.ledger), object, DeleteParams::foreground()).await
    }

    /// Removes our finalizer by compare-and-swap.
    pub(crate) async fn release<K: Cached>(&self, object: &K) -> Result<(), Failure> {
        self.release_from(object, FINALIZER).await
    }

    /// The same as long as something else is as it was `seen`: else a conflict.
    pub(crate) async fn release_while<K: Cached>(
        &self,
        object: &K,
        seen: Option<AsSeen>,
    ) -> Result<(), Failure> {
        let tell = |extensions: &mut http::Extensions| drop(seen.map(|seen| extensions.insert(seen)));
        self.write.release((K::cache(&self.world), &self.ledger), object, (FINALIZER, tell)).await
    }

    /// The same as long as `silent` says nothing: else a conflict.
    pub(crate) async fn release_unrenewed<K: Cached>(
        &self,
        object: &K,
        silent: Unrenewed,
    ) -> Result<(), Failure> {
        let tell = |extensions: &mut http::Extensions| drop(extensions.insert(silent));
        self.write.release((K::cache(&self.world), &self.ledger), object, (FINALIZER, tell)).await
    }

    /// Removes one finalizer by compare-and-swap.
    pub(crate) async fn release_from<K: Cached>(&self, object: &K, finalizer: &str) -> Result<(), Failure> {
        let nothing = |_: &mut http::Extensions| {};
        self.write.release((K::cache(&self.world), &self.ledger), object, (finalizer, nothing)).await
    }

    /// Reads an object from the API itself, for the few decisions that no cache may take.
    pub(crate) async fn read<T: DeserializeOwned>(
        &self,
        path: &str,
        name: &str,
    ) -> Result<Option<T>, Failure> {
        self.write.read(path, name).await
    }
}

/// A status without the times of its conditions.
fn words(status: &Value) -> Option<Words> {
    let mut words = status.as_object()?.clone();
    for condition in words.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        condition["lastTransitionTime"] = Value::Null;
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::place::CLOSED_FIRST;

    fn attachment(uid: &str) -> VolumeAttachment {
        let spec = json!({ "volume": "v", "volumeUid": "v", "claim": { "namespace": "d", "name": "c" }, "nodeName": "n",
            "plugin": "p", "handle": "h", "attachRequired": true, "stageRequired": true, "capability": { "accessMode": "SingleNodeWriter" } });
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
            "metadata": { "name": uid, "uid": uid }, "spec": spec });
        serde_json::from_value(object).unwrap()
    }

    /// A passing refusal is over once all are attached that it was said of; what fails otherwise since says nothing of it.
    #[tokio::test(start_paused = true)]
    async fn a_node_is_open_again_when_those_are_attached_that_were_refused() {
        let (one, two) = (attachment("one"), attachment("two"));
        let refusals = Refusals::default();
        refusals.note(&one);
        refusals.note(&two);
        assert_eq!(refusals.of("p").len(), 1);
        assert!(!refusals.attached(&one, true), "the other one was refused, too");
        assert!(!refusals.attached(&attachment("stranger"), true));
        assert_eq!(refusals.of("p").len(), 1);
        assert!(refusals.attached(&two, true));
        assert!(refusals.of("p").is_empty());
        refusals.note(&one);
        assert!(!refusals.attached(&one, false));
        assert_eq!(refusals.of("p").len(), 1);
        tokio::time::advance(CLOSED_FIRST).await;
        assert!(refusals.of("p").is_empty() && refusals.next().is_none());
        // Refused again, it is closed for longer.
        refusals.note(&two);
        tokio::time::advance(CLOSED_FIRST).await;
        assert_eq!(refusals.next(), Some(CLOSED_FIRST));
    }
}
