//! One plugin instance, from its socket to its heartbeat.
//!
//! ```text
//!  socket appears ▶ Connected ▶ Probe says ready ▶ Probed ▶ fingerprint ▶ Fingerprinted = healthy
//!        ▲                                                         │ reconnect, failed heartbeat, socket gone
//!        └─────────────────────────────────────────────────────────┘
//! ```
//! Three states that people see apart. `ready: false` is no fault. An instance that is not ready within its
//! healthTimeout is started again by its allocation. Not one that answers and is refused for what it says, such as another
//! name than the Plugin wants: to be started again would not mend that.
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use kube::Resource;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod doorway;
mod edge;

use super::context::{AtSocket, Node};
use super::registry::{Fingerprint, Instance, InstanceKey, Progress};
use crate::api::PluginInstance;
use crate::api::plugin::{BEGINS, HEALTH_TIMED_OUT, OTHER_DRIVER, Provider, Role};
use crate::csi::{self, Failure, Readiness, check};
use crate::sys::watch::DirEvent;
use doorway::{Doorway, next_socket};
pub(super) use edge::tell;
use edge::{ENDING, change, known_well_since, tell_of_connection, unanswered, unwell};

/// How long Identity and Get* calls may take.
const ASK: Duration = Duration::from_secs(15);
/// How long a Probe may take.
const PROBE: Duration = Duration::from_secs(5);
/// Between two heartbeats, if the options do not say otherwise.
pub const HEARTBEAT: Duration = Duration::from_secs(30);
/// After so many heartbeats a plugin that limits its node's volumes is asked again for the limit: 10 minutes.
const BEATS_PER_LIMIT: u32 = 20;
/// Between two questions for the limit because an attachment was refused.
const LIMIT_PAUSE: Duration = Duration::from_secs(5);
/// Between two probes of a plugin that is not ready, first and longest, if the options do not say otherwise.
pub const PROBE_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long a socket may be missing before anything is said of it.
const MOMENT: Duration = Duration::from_secs(1);
/// The word for an instance whose process is over.
pub(super) const PROCESS_ENDED: &str = "ProcessEnded";
/// The word for a socket that is missing.
const NO_SOCKET: &str = BEGINS[0];
/// Longer than any daemon runs.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The default of `healthTimeout`.
pub const HEALTH_TIMEOUT: Duration = Duration::from_secs(30);
/// The word for a socket that nobody tells of, because its directory cannot be watched.
const WATCH_REFUSED: &str = "WatchRefused";

/// What one supervisor looks after. All but the key may change while it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// The instance.
    pub key: InstanceKey,
    /// Whether the process is ours to start again.
    pub ours: bool,
    /// How long it may take to become ready.
    pub health_timeout: Duration,
    /// From SIGTERM to SIGKILL, when it is ended to be started again.
    pub grace: Duration,
}

/// A supervisor, and how it is told.
#[derive(Debug)]
struct Running {
    stop: CancellationToken,
    watched: watch::Sender<Watched>,
    /// The instance is to be asked again: for the node's limit, or who it is if it was refused for that.
    ask: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
}

/// The supervisors of this node, one per running instance.
#[derive(Debug, Default)]
pub struct Supervisors(Mutex<HashMap<InstanceKey, Running>>);

impl Supervisors {
    /// Starts a supervisor, or tells the one that looks after the instance already what is new.
    pub fn ensure(&self, node: &Arc<Node>, watched: Watched) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = all.get(&watched.key).filter(|running| !running.task.is_finished()) {
            running.watched.send_if_modified(|known| {
                *known != watched && {
                    *known = watched;
                    true
                }
            });
            return;
        }
        let (key, stop, ask) = (watched.key.clone(), CancellationToken::new(), Arc::new(Notify::new()));
        let (tell, told) = watch::channel(watched);
        let task = tokio::spawn(supervise(Arc::clone(node), told, stop.clone(), Arc::clone(&ask)));
        all.insert(key, Running { stop, watched: tell, ask, task });
    }

    /// Has the healthy instances of a plugin asked again for the node's limit.
    pub fn ask_again(&self, node: &Node, plugin: &str) {
        let keys = node.registry.keys_of(plugin);
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().filter_map(|key| all.get(key)).for_each(|running| running.ask.notify_one());
    }

    /// Has an instance that was refused for what it says asked again.
    fn ask_who(&self, key: &InstanceKey) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(key).into_iter().for_each(|running| running.ask.notify_one());
    }

    /// Ends the supervisor of an instance, if it has one.
    pub fn stop(&self, key: &InstanceKey) {
        if let Some(running) = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key) {
            running.stop.cancel();
        }
    }

    /// Waits for all; they end with the daemon.
    pub async fn join(&self) {
        let all: Vec<_> = self.0.lock().unwrap_or_else(PoisonError::into_inner).drain().collect();
        for (_, running) in all {
            running.stop.cancel();
            let _ = running.task.await;
        }
    }
}

/// Looks after one instance until `stop`. Returns early when the instance must be started again.
async fn supervise(
    node: Arc<Node>,
    watched: watch::Receiver<Watched>,
    stop: CancellationToken,
    ask: Arc<Notify>,
) {
    let work = run(&node, watched, &ask);
    tokio::select! {
        // Who was told to stop writes nothing more.
        biased;
        () = stop.cancelled() => {}
        () = node.stop.cancelled() => {}
        () = work => {}
    }
}

async fn run(node: &Arc<Node>, mut watched: watch::Receiver<Watched>, ask: &Notify) {
    let (mut since, mut doorway) = (Instant::now(), None);
    let mut pause = PROBE_PAUSE.0;
    loop {
        let mut patience = watched.clone();
        let met = tokio::select! {
            met = become_ready(node, &watched, doorway.take()) => met,
            () = too_long(&mut patience, since) => {
                let watched = watched.borrow_and_update().clone();
                note_timeout(node, &watched);
                node.end_unwell(&watched.key, watched.grace).await;
                return;
            }
        };
        let now = watched.borrow_and_update().clone();
        doorway = match met {
            Met::Ready(doorway) => {
                pause = PROBE_PAUSE.0;
                stay_healthy(node, &now, doorway, ask).await
            }
            Met::Refused(doorway) => {
                let doorway = wait_for_news(node, &now, doorway, (ask, pause)).await;
                pause = (pause * 2).min(node.options.heartbeat);
                doorway
            }
        };
        since = Instant::now();
    }
}

/// Returns when an instance of ours was not ready for its whole healthTimeout, whatever that is by then.
async fn too_long(watched: &mut watch::Receiver<Watched>, since: Instant) {
    loop {
        let now = watched.borrow_and_update().clone();
        // What something else runs is waited for without end: it is not ours to start again.
        let patience = if now.ours { now.health_timeout } else { FOREVER };
        tokio::select! {
            () = tokio::time::sleep_until(since + patience) => return,
            // Nobody tells it anything more once it is stopped.
            changed = watched.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
        }
    }
}

/// It is started again, and what it was waited for is told, once until it is ready.
fn note_timeout(node: &Node, watched: &Watched) {
    let patience = watched.health_timeout.as_secs_f64();
    let mut sentence = String::new();
    let taken = node.registry.get(&watched.key).is_some_and(|instance| instance.client.is_connected());
    change(node, watched, |p| {
        let missing = match (p.connected, p.probed) {
            (_, true) => "it did not say what it is",
            (true, false) => "Probe did not say ready",
            // What is no CSI driver at all, or one that hangs, listens as well.
            (false, false) if taken => "it took the connection and did not answer",
            (false, false) => "its socket did not answer",
        };
        let last = p.latest.take().or_else(|| p.fault.take().filter(|(word, _)| word != HEALTH_TIMED_OUT));
        let last = last.map(|(_, last)| format!(" ({last})")).unwrap_or_default();
        sentence = format!("within {patience} s {missing}{last}; it is started again");
        p.fault = Some((HEALTH_TIMED_OUT.to_owned(), sentence.clone()));
    });
    tracing::warn!(instance = ?watched.key, sentence, "plugin not ready in time");
    if let Some(object) = instance_object(node, &watched.key) {
        let step = step(&watched.key, HEALTH_TIMED_OUT);
        node.events.failed(object.object_ref(&()), &step, HEALTH_TIMED_OUT, "Start", &sentence);
    }
}

pub(super) fn instance_object(node: &Node, key: &InstanceKey) -> Option<Arc<PluginInstance>> {
    node.caches.instances.one(&format!("{}/{}", key.allocation, key.task))
}

/// After so many rounds of questions at whose end nobody was connected any more it is no chance.
const UNVOUCHED: u32 = 3;
/// What is said of a driver then.
const CONNECTIONS_END: &str = "ConnectionsEnd";

/// What came of asking an instance who it is.
enum Met {
    /// It has said who it is and that it is ready.
    Ready(Doorway),
    /// It has answered, and may not be called for what it said.
    Refused(Doorway),
}

/// Why an instance may not be called.
enum Unready {
    /// It did not answer as it has to: it is asked again, and started again when that takes too long.
    Unwell(Fault),
    /// It answered, and is refused for what it said.
    Refused(Fault),
}

impl From<Fault> for Unready {
    fn from(fault: Fault) -> Self {
        Self::Unwell(fault)
    }
}

/// Returns when the instance has answered. `before`: what was watched up to now.
async fn become_ready(
    node: &Arc<Node>,
    watched: &watch::Receiver<Watched>,
    mut before: Option<Doorway>,
) -> Met {
    let mut pause = node.options.probe_pause.0;
    let (mut renewed, mut unvouched) = (false, 0);
    let key = watched.borrow().key.clone();
    loop {
        let Some(instance) = node.registry.get(&key) else { return std::future::pending().await };
        socket_there(node, watched, &instance.socket).await;
        let watched = &watched.borrow().clone();
        let doorway = Doorway::watch(node, &instance.socket).await;
        renewed |= before.as_ref().is_some_and(|before| before.renewed);
        if before.take().is_some_and(|before| before.replaced(&doorway)) {
            renewed = true;
            instance.client.hang_up();
        }
        let ends = *instance.client.ends().borrow();
        let answer = fingerprint(node, watched, &instance.client).await;
        // Its Plugin may have changed while it was asked.
        let answer = answer.and_then(|found| {
            let taken = of_plugin(node, &instance.plugin, &found.provider.name);
            taken.map(|()| found).map_err(Unready::Refused)
        });
        match answer {
            // It answered, but who is connected now may be another: mostly that ended by chance, and it is asked once more.
            Ok(_) if !instance.client.vouch(ends) => {
                unvouched += 1;
                if unvouched >= UNVOUCHED {
                    let sentence = "each of its connections ends after a call or two, and so nobody can tell who would \
                                    answer the next one; it has to keep them open";
                    change(node, watched, |p| blame(p, watched, (CONNECTIONS_END.into(), sentence.into())));
                }
            }
            Ok(found) => {
                let before = (&instance, if renewed { Asked::Another } else { Asked::TheSame });
                well(node, watched, before, (ends, found));
                return Met::Ready(doorway);
            }
            Err(Unready::Refused(fault)) => {
                note_refused(node, watched, &instance.progress, fault);
                return Met::Refused(doorway);
            }
            Err(Unready::Unwell((word, sentence))) if word == "NotASocket" => {
                note_fault(node, watched, (word, sentence));
            }
            Err(Unready::Unwell(fault)) => unanswered(node, watched, |p| blame(p, watched, fault)),
        }
        tell_of_connection(node, watched, ENDING);
        before = Some(pause_before(&instance, node, doorway, &mut pause).await);
    }
}

/// Waits until the instance is asked once more: when another socket comes there it is somebody else who is asked, at once.
async fn pause_before(
    instance: &Instance,
    node: &Arc<Node>,
    mut doorway: Doorway,
    pause: &mut Duration,
) -> Doorway {
    // However often one comes.
    let soonest = Instant::now() + PROBE_PAUSE.0;
    tokio::select! {
        () = tokio::time::sleep(*pause) => *pause = (*pause * 2).min(node.options.probe_pause.1),
        () = doorway.renews(node, &instance.socket) => {
            instance.client.hang_up();
            tokio::time::sleep_until(soonest).await;
            *pause = node.options.probe_pause.0;
        }
    }
    doorway
}

/// Who has answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Who was asked before, if anybody was.
    TheSame,
    /// It may be another process, even another driver.
    Another,
}

/// Writes down that an instance may be called. `before`: as it was when it was asked; `ends`: of its connections up to then.
fn well(
    node: &Node,
    watched: &Watched,
    (before, asked): (&Instance, Asked),
    (ends, found): (u64, Fingerprint),
) {
    let name = found.provider.name.clone();
    // To a daemon that has just begun it is new; nobody need be told if it was well before.
    let known = instance_object(node, &watched.key).and_then(|object| known_well_since(&object));
    let known = known.filter(|_| before.progress.is_undecided() && asked == Asked::TheSame);
    let now = known.unwrap_or_else(|| node.now());
    // First: who is woken by the change calls at once.
    let _still = before.client.vouch(ends);
    change(node, watched, |p| {
        p.connected = true;
        p.probed = true;
        p.fingerprint = Some(found);
        // Who only closed a connection was healthy all the time, and nobody need be told.
        p.healthy_since = p.healthy_since.filter(|_| asked == Asked::TheSame).or(Some(now));
        (p.fault, p.latest) = (None, None);
    });
    // A Plugin that changed in this very moment found it neither well nor refused.
    if of_plugin(node, &before.plugin, &name).is_err() {
        before.client.hang_up();
    }
    node.vouched();
    node.events.gone(&step(&watched.key, ""));
}

/// Writes down why an instance that has answered may not be called, and tells it once. `before`: as it was when it was asked.
fn note_refused(node: &Node, watched: &Watched, before: &Progress, fault: Fault) {
    tell_of_connection(node, watched, Duration::ZERO);
    let (word, sentence) = fault.clone();
    change(node, watched, |p| {
        (p.healthy_since, p.latest) = (None, None);
        p.fault = Some(fault);
    });
    let Some(object) = instance_object(node, &watched.key) else { return };
    let step = step(&watched.key, &word);
    if before.healthy_since.is_some() {
        // That was told as the end of its health.
        node.events.known(&step);
    } else {
        node.events.failed(object.object_ref(&()), &step, &word, "Probe", &sentence);
    }
}

/// What is wrong with an instance now. That it took too long says more, and stays while it is started again.
fn blame(p: &mut Progress, watched: &Watched, fault: Fault) {
    p.healthy_since = None;
    if watched.ours && p.fault.as_ref().is_some_and(|(word, _)| word == HEALTH_TIMED_OUT) {
        p.latest = Some(fault);
    } else {
        (p.fault, p.latest) = (Some(fault), None);
    }
}

/// Returns when an instance that was refused may say something else: another one listens in its place, its Plugin changed,
/// or the pause is over.
async fn wait_for_news(
    node: &Arc<Node>,
    watched: &Watched,
    mut doorway: Doorway,
    (ask, pause): (&Notify, Duration),
) -> Option<Doorway> {
    let instance = node.registry.get(&watched.key)?;
    tokio::select! {
        () = doorway.renews(node, &instance.socket) => instance.client.hang_up(),
        // That its connection ended is no news: there are drivers that close each one after a call.
        () = ask.notified() => {}
        () = tokio::time::sleep(pause) => {}
    }
    Some(doorway)
}

/// Waits for the socket, and says so when that takes longer than a moment.
async fn socket_there(node: &Arc<Node>, watched: &watch::Receiver<Watched>, socket: &Path) {
    let (tell, mut refused) = watch::channel(None);
    let there = doorway::wait_for_socket(node, socket, &tell);
    tokio::pin!(there);
    // Said before the time is up, whatever that is: an instance that took too long is told of with this.
    let moment = MOMENT.min(watched.borrow().health_timeout / 2);
    let (mut told, mut due) = (None, Instant::now() + moment);
    loop {
        tokio::select! {
            biased;
            () = &mut there => return,
            () = tokio::time::sleep_until(due) => {}
            // Whether its directory is watched is told anew when that changes.
            _ = refused.changed(), if told.is_some() => {}
        }
        let why = refused.borrow_and_update().clone();
        let fault = why.map_or_else(|| no_socket(socket), |why| watch_refused(socket, &why));
        if told.as_ref() != Some(&fault) {
            told = note_fault(node, &watched.borrow(), fault.clone()).then_some(fault);
        }
        due = Instant::now() + if told.is_some() { FOREVER } else { moment };
    }
}

/// Writes down what is wrong before an instance was ever ready, and tells it once as an event. False while there is no
/// object to tell it of.
fn note_fault(node: &Node, watched: &Watched, fault: Fault) -> bool {
    tell_of_connection(node, watched, Duration::ZERO);
    let (word, sentence) = fault.clone();
    change(node, watched, |p| {
        p.connected = false;
        p.probed = false;
        blame(p, watched, fault);
    });
    if watched.ours {
        // It is started again if it takes too long, and that is told then.
        return true;
    }
    let Some(object) = instance_object(node, &watched.key) else { return false };
    node.events.failed(object.object_ref(&()), &step(&watched.key, &word), &word, "Connect", &sentence);
    true
}

/// What an event about a missing socket is remembered by.
pub(super) fn step(key: &InstanceKey, word: &str) -> String {
    format!("pi/{}/{}/{word}", key.allocation, key.task)
}

fn no_socket(socket: &Path) -> Fault {
    let sentence = format!("waits for the plugin's socket {}: nothing is there yet", socket.display());
    (NO_SOCKET.to_owned(), sentence)
}

fn watch_refused(socket: &Path, why: &str) -> Fault {
    let sentence = format!(
        "waits for the plugin's socket {}: nothing is there yet, and its directory cannot be watched ({why}), so it is looked \
         for once a second",
        socket.display()
    );
    (WATCH_REFUSED.to_owned(), sentence)
}

/// What a failed Probe means. Without a connection, what is at the socket's path says more than the call.
async fn probe_fault(node: &Node, watched: &Watched, failure: Failure) -> Fault {
    let Some(instance) = node.registry.get(&watched.key).filter(|_| failure.is_disconnected()) else {
        return call_fault(BEGINS[1])(failure);
    };
    let socket = &instance.socket;
    match node.machine.dial.look(socket).await {
        AtSocket::Nothing => no_socket(socket),
        AtSocket::Other(what) => {
            let sentence = format!("at the path of the plugin's socket, {}, is {what}", socket.display());
            ("NotASocket".to_owned(), sentence)
        }
        AtSocket::Socket => {
            let sentence = format!("nobody answers on the plugin's socket {}: {failure}", socket.display());
            (BEGINS[1].to_owned(), sentence)
        }
    }
}

/// What is wrong with an instance: one CamelCase word, and a sentence.
pub(super) type Fault = (String, String);

fn call_fault(word: &str) -> impl FnOnce(Failure) -> Fault + '_ {
    move |failure| (word.to_owned(), failure.to_string())
}

fn check_fault(fault: &check::Fault) -> Unready {
    Unready::Refused((fault.reason().to_owned(), format!("{fault}; the driver must be corrected")))
}

/// The Plugin changed: an instance of a driver that it does not take, or no more, is asked again who it is. Until it has
/// answered, no call about a volume goes to it.
pub(super) fn look_again(node: &Node, plugin: &str) {
    for key in node.registry.keys_of(plugin) {
        let Some(instance) = node.registry.get(&key) else { continue };
        let progress = instance.progress;
        if progress.fault.as_ref().is_some_and(|(word, _)| word == OTHER_DRIVER) {
            node.supervisors.ask_who(&key);
        }
        let known = progress.fingerprint.filter(|_| progress.healthy_since.is_some());
        if known.is_some_and(|known| of_plugin(node, plugin, &known.provider.name).is_err()) {
            instance.client.hang_up();
        }
    }
}

/// Whether the Plugin takes this driver now: by the name in its spec, or else by that of the driver of its volumes.
fn of_plugin(node: &Node, plugin: &str, name: &str) -> Result<(), Fault> {
    let Some(plugin) = node.caches.plugins.one(plugin) else { return Ok(()) };
    let wanted = &plugin.spec.driver_name;
    let known = plugin.status.as_ref().map(|s| s.driver_name.as_str()).unwrap_or_default();
    let why = match (wanted.as_str(), known) {
        ("", "") => return Ok(()),
        ("", known) if known == name => return Ok(()),
        ("", known) => format!(
            "the volumes of this Plugin are of the driver \"{known}\": bring that one back, or make another Plugin for \
             this one"
        ),
        (wanted, _) if wanted == name => return Ok(()),
        (wanted, _) => format!("spec.driverName wants \"{wanted}\""),
    };
    Err((OTHER_DRIVER.into(), format!("the driver calls itself \"{name}\", {why}")))
}

/// Asks, and again if the connection had ended meanwhile: the other end may only have closed it. Twice again, as a driver
/// that closes each connection after a call may do so to the second question, too.
async fn ask<T, F>(question: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    for _ in 0..2 {
        match question().await {
            Err(failure) if failure.is_disconnected() => {}
            answer => return answer,
        }
    }
    question().await
}

/// What its node service can do. Whoever has one has this call.
async fn node_capabilities(client: &csi::Plugin) -> Result<csi::NodeCapabilities, Fault> {
    match ask(|| client.node_get_capabilities(ASK)).await {
        Err(failure) if failure.is_unimplemented() => {
            let sentence = "the driver has no node service, which its role asks for: NodeGetCapabilities is UNIMPLEMENTED";
            Err(("NoNodeService".to_owned(), sentence.to_owned()))
        }
        other => other.map_err(call_fault("NodeGetCapabilitiesFailed")),
    }
}

/// Asks an instance everything that is kept about it, in the order that CSI wants (CO-PLUG-05).
async fn fingerprint(
    node: &Arc<Node>,
    watched: &Watched,
    client: &csi::Plugin,
) -> Result<Fingerprint, Unready> {
    let readiness = match ask(|| client.probe(PROBE)).await {
        Ok(readiness) => readiness,
        Err(failure) => {
            change(node, watched, |p| {
                p.connected = !failure.is_disconnected();
                p.probed = false;
            });
            return Err(probe_fault(node, watched, failure).await.into());
        }
    };
    change(node, watched, |p| p.connected = true);
    if readiness == Readiness::Starting {
        change(node, watched, |p| p.probed = false);
        let fault: Fault = ("Starting".into(), "the plugin answers that it is not ready yet".into());
        return Err(fault.into());
    }
    change(node, watched, |p| p.probed = true);
    let info = ask(|| client.get_plugin_info(ASK)).await.map_err(call_fault("GetPluginInfoFailed"))?;
    check::plugin_info(&info).map_err(|fault| check_fault(&fault))?;
    if let Some(instance) = node.registry.get(&watched.key) {
        of_plugin(node, &instance.plugin, &info.name).map_err(Unready::Refused)?;
    }
    let mut found = Fingerprint {
        provider: Provider { name: info.name, version: info.vendor_version },
        plugin: ask(|| client.get_plugin_capabilities(ASK))
            .await
            .map_err(call_fault("GetPluginCapabilitiesFailed"))?,
        ..Fingerprint::default()
    };
    let role = node.registry.get(&watched.key).map(|i| i.role);
    if role.is_some_and(Role::controller) && found.plugin.services.controller_service {
        found.controller = ask(|| client.controller_get_capabilities(ASK))
            .await
            .map_err(call_fault("ControllerGetCapabilitiesFailed"))?;
    }
    if role.is_some_and(Role::controller) && found.plugin.services.group_controller_service {
        found.group = match ask(|| client.group_controller_get_capabilities(ASK)).await {
            // It says that it has the service and has not: that takes nothing from those who want no groups.
            Err(failure) if failure.is_unimplemented() => csi::GroupControllerCapabilities::default(),
            other => other.map_err(call_fault("GroupControllerGetCapabilitiesFailed"))?,
        };
    }
    if role.is_some_and(Role::node) {
        found.node = node_capabilities(client).await?;
        match ask(|| client.node_get_info(ASK)).await {
            Ok(info) => {
                check::node_info(&info).map_err(|fault| check_fault(&fault))?;
                found.node_id = info.node_id;
                found.max_volumes = info.max_volumes_per_node;
                found.topology = info.accessible_topology.map(|t| t.segments).unwrap_or_default();
            }
            // Only plugins that attach must have it (CO-NODE-10).
            Err(failure) if failure.is_unimplemented() && !found.controller.publish_unpublish_volume => {}
            Err(failure) => return Err(call_fault("NodeGetInfoFailed")(failure).into()),
        }
    }
    Ok(found)
}

/// Returns when the instance has to be looked at anew.
async fn stay_healthy(
    node: &Arc<Node>,
    watched: &Watched,
    mut doorway: Doorway,
    ask_again: &Notify,
) -> Option<Doorway> {
    let instance = node.registry.get(&watched.key)?;
    let mut reconnects = instance.client.reconnects();
    reconnects.mark_unchanged();
    let mut ends = instance.client.ends();
    ends.mark_unchanged();
    if !instance.client.is_vouched() {
        // A connection ended while it was asked.
        tokio::time::sleep(PROBE_PAUSE.0).await;
        return Some(doorway);
    }
    let period = node.options.heartbeat;
    let mut beat = tokio::time::interval_at(Instant::now() + period, period);
    let limited = instance.progress.fingerprint.is_some_and(|found| found.max_volumes > 0);
    let (mut anew, mut beats, mut limit_asked) = (false, 0, None);
    loop {
        tokio::select! {
            _ = reconnects.changed() => return Some(doorway),
            // It may be another process, even another driver.
            _ = ends.changed() => anew = true,
            event = doorway.changes.next() => match event {
                // Whoever listens there now is another, even while the old one still serves.
                Some(DirEvent::Appeared(new)) if new == doorway.name => {
                    instance.client.hang_up();
                    (anew, doorway.renewed) = (true, true);
                }
                // The new one may have been among the events that were lost.
                Some(DirEvent::Overflow) => if doorway.is_another(node, &instance.socket).await {
                    instance.client.hang_up();
                    (anew, doorway.renewed) = (true, true);
                },
                Some(DirEvent::Vanished(gone)) if gone == doorway.name => {}
                // Whoever is connected may serve on. Who comes to the path now is another.
                Some(DirEvent::Gone) | None => doorway.changes = next_socket(node, &instance.socket),
                Some(_) => continue,
            },
            () = ask_again.notified() => {
                if limit_asked.is_none_or(|at: Instant| at.elapsed() >= LIMIT_PAUSE) {
                    limit_asked = Some(Instant::now());
                    if ask_limit(node, watched, &instance.client).await {
                        return Some(doorway);
                    }
                }
                continue;
            }
            _ = beat.tick() => {
                beats += 1;
                if limited && beats % BEATS_PER_LIMIT == 0 && ask_limit(node, watched, &instance.client).await {
                    return Some(doorway);
                }
            }
        }
        match ask(|| instance.client.probe(PROBE)).await {
            Ok(Readiness::Ready) if anew => return Some(doorway),
            Ok(Readiness::Ready) => node.sightings.look_at(&instance.plugin),
            Ok(Readiness::Starting) => {
                let sentence = "the plugin answers that it is not ready";
                unhealthy(node, watched, ("Starting".into(), sentence.into()));
                return Some(doorway);
            }
            Err(failure) => {
                let alone = failure.is_disconnected();
                let fault = probe_fault(node, watched, failure).await;
                if alone {
                    unanswered(node, watched, |p| unwell(p, fault));
                } else {
                    unhealthy(node, watched, fault);
                }
                return Some(doorway);
            }
        }
    }
}

/// Asks a healthy instance again how many volumes its node can have. One that does not answer keeps its word: whether it is
/// well is for Probe to say. True if it calls its node otherwise than it did: then everything is asked anew.
async fn ask_limit(node: &Node, watched: &Watched, client: &csi::Plugin) -> bool {
    let info = match client.node_get_info(ASK).await {
        Ok(info) if check::node_info(&info).is_ok() => info,
        Ok(_) => return false,
        Err(error) => {
            tracing::debug!(%error, "the limit of the node is not known anew");
            return false;
        }
    };
    let mut renamed = false;
    change(node, watched, |p| {
        let Some(known) = p.fingerprint.as_mut() else { return };
        renamed = known.node_id != info.node_id;
        if !renamed {
            known.max_volumes = info.max_volumes_per_node;
        }
    });
    renamed
}

fn unhealthy(node: &Node, watched: &Watched, fault: Fault) {
    change(node, watched, |p| unwell(p, fault));
}
