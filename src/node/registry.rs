//! The plugin instances of this node: which socket, what it can do, whether it may be called.
//!
//! Handles live in the journal with their task, so a restarted daemon knows them before it judges any consumer. The
//! newest healthy instance serves; older ones stay and take over at once. No lock is held while waiting, and nobody is
//! told of a change by a queue that could fill: whoever cares is woken by key.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::supervisor::Fault;
use crate::api::meta::{Segments, Time};
use crate::api::plugin::{HEALTH_TIMED_OUT, Provider, Role};
use crate::csi;
use crate::plan::registry::{self, Asked, Service};

/// What tells an instance from all others: the allocation's uid and the task.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceKey {
    /// The allocation's uid.
    pub allocation: String,
    /// The task.
    pub task: String,
}

/// What an instance says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fingerprint {
    /// GetPluginInfo.
    pub provider: Provider,
    /// GetPluginCapabilities.
    pub plugin: csi::PluginCapabilities,
    /// ControllerGetCapabilities.
    pub controller: csi::ControllerCapabilities,
    /// GroupControllerGetCapabilities.
    pub group: csi::GroupControllerCapabilities,
    /// NodeGetCapabilities.
    pub node: csi::NodeCapabilities,
    /// NodeGetInfo: what it calls this node.
    pub node_id: String,
    /// NodeGetInfo: how many volumes; 0 = no limit known.
    pub max_volumes: i64,
    /// NodeGetInfo: where the node is.
    pub topology: Segments,
}

/// How far an instance has come.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// Its socket answers.
    pub connected: bool,
    /// Probe says ready.
    pub probed: bool,
    /// What it says of itself; kept while it is away.
    pub fingerprint: Option<Fingerprint>,
    /// Since when it may be called.
    pub healthy_since: Option<Time>,
    /// What is wrong: a word and a sentence.
    pub fault: Option<(String, String)>,
    /// What was wrong when it was looked at last, while `fault` says that it took too long.
    pub latest: Option<(String, String)>,
    /// How many of its runs in a row did not go well.
    pub bad_runs: u32,
    /// How the last of those ended.
    pub last_end: String,
}

impl Progress {
    /// Neither is it known to be well nor what is wrong.
    pub fn is_undecided(&self) -> bool {
        self.healthy_since.is_none() && self.fault.is_none()
    }

    /// What is wrong with it that is not over in a moment: it was not ready in time, or it answers and is not taken for what
    /// it says.
    pub fn trouble(&self) -> Option<&str> {
        let (word, sentence) = self.fault.as_ref().filter(|_| self.healthy_since.is_none())?;
        (word == HEALTH_TIMED_OUT || self.probed).then_some(sentence)
    }
}

/// One registered instance.
#[derive(Debug, Clone)]
pub struct Instance {
    /// The Plugin.
    pub plugin: String,
    /// Which services.
    pub role: Role,
    /// Its socket.
    pub socket: PathBuf,
    /// The channel to it.
    pub client: csi::Plugin,
    /// Whether the controllers admitted it; one that they did not is asked who it is, and called for nothing else.
    pub admitted: bool,
    /// When its PluginInstance was made, which tells the newer of two.
    pub born: Option<Time>,
    /// Where it has the tree of volumes; none: where the node has it.
    pub view: Option<PathBuf>,
    /// Its process is run here, so that its end is seen.
    pub ours: bool,
    /// Its task is about to be stopped: it gets no call any more, and ends those that it has.
    pub draining: bool,
    /// How far it has come.
    pub progress: Progress,
    /// It has become well, or ceased to be, while there was no PluginInstance to tell it of.
    pub untold: bool,
    /// What is told of the end of its connection, unless its process has ended with that; and since when that is known.
    pub held: Option<(Fault, Instant)>,
}

impl Instance {
    /// What counts of it for a call about a volume.
    fn process(&self, volume: &str) -> registry::Process {
        let well = self.admitted && !self.draining && self.progress.healthy_since.is_some();
        let awaited = self.ours || self.progress.is_undecided();
        let owes = self.client.owes(volume) || self.client.owes_snapshot(volume);
        registry::Process { well, awaited, owes }
    }

    /// Whether it makes node calls now, so that what another one has brought up can be taken down by it.
    pub fn makes_node_calls(&self) -> bool {
        self.role.node() && self.admitted && !self.draining && self.progress.healthy_since.is_some()
    }

    fn serves(&self, plugin: &str, service: Service) -> bool {
        let role = match service {
            Service::Controller => self.role.controller(),
            Service::Node => self.role.node(),
        };
        role && self.plugin == plugin
    }
}

/// The registry: the instances, and what those of each plugin share. Clones share it.
#[derive(Debug, Default, Clone)]
pub struct Registry(Arc<Mutex<BTreeMap<InstanceKey, Instance>>>, Arc<Mutex<BTreeMap<String, Shared>>>);

/// What all instances of a plugin here have in common.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// Whom its calls take turns with.
    pub turns: csi::Turns,
    /// What was sent to it in confidence.
    pub confided: csi::Confided,
}

impl Registry {
    /// Adds an instance, or replaces one whose socket, role or view changed. The same again changes nothing.
    pub fn register(&self, key: InstanceKey, instance: Instance) -> bool {
        let mut all = self.all();
        let same = |old: &Instance| {
            (&old.socket, old.role, &old.plugin, &old.view)
                == (&instance.socket, instance.role, &instance.plugin, &instance.view)
        };
        if let Some(known) = all.get_mut(&key).filter(|old| same(old)) {
            // It is started again.
            known.draining = false;
            return false;
        }
        all.insert(key, instance);
        true
    }

    /// Removes an instance and returns its plugin; one that is not there changes nothing.
    pub fn deregister(&self, key: &InstanceKey) -> Option<String> {
        self.all().remove(key).map(|i| i.plugin)
    }

    /// Notes that an instance of this plugin was admitted, and when; whether that is news.
    pub fn admit(&self, key: &InstanceKey, plugin: &str, born: Option<Time>) -> bool {
        let mut all = self.all();
        let waiting = all.get_mut(key).filter(|i| i.plugin == plugin && (!i.admitted || i.born != born));
        waiting.map(|instance| (instance.admitted, instance.born) = (true, born)).is_some()
    }

    /// There is no PluginInstance yet to tell of it.
    pub fn not_told(&self, key: &InstanceKey) {
        if let Some(instance) = self.all().get_mut(key) {
            instance.untold = true;
        }
    }

    /// How far an instance has come of which something is to be told still, now that it can be.
    pub fn to_tell(&self, key: &InstanceKey) -> Option<Progress> {
        let mut all = self.all();
        let instance = all.get_mut(key).filter(|instance| instance.untold)?;
        instance.untold = false;
        Some(instance.progress.clone())
    }

    /// Its connection has ended, and it may turn out that its process has; not if that was written down meanwhile.
    pub fn hold(&self, key: &InstanceKey, now: &Progress) {
        let mut all = self.all();
        let Some(instance) = all.get_mut(key).filter(|instance| instance.progress == *now) else { return };
        instance.held = now.fault.clone().map(|fault| (fault, Instant::now()));
    }

    /// What was to be told of its connection for so long, if it was not told.
    pub fn take_held(&self, key: &InstanceKey, age: Duration) -> Option<Fault> {
        let mut all = self.all();
        let held = &mut all.get_mut(key)?.held;
        held.take_if(|(_, since)| since.elapsed() >= age).map(|(fault, _)| fault)
    }

    /// Takes the admission of an instance back; returns its plugin if that is news.
    pub fn refuse(&self, key: &InstanceKey) -> Option<String> {
        let mut all = self.all();
        let admitted = all.get_mut(key).filter(|instance| instance.admitted)?;
        admitted.admitted = false;
        Some(admitted.plugin.clone())
    }

    /// Changes the progress of an instance; returns it before and after, if the instance is there.
    pub fn progress(
        &self,
        key: &InstanceKey,
        change: impl FnOnce(&mut Progress),
    ) -> Option<(Progress, Progress)> {
        let mut all = self.all();
        let progress = &mut all.get_mut(key)?.progress;
        let before = progress.clone();
        change(progress);
        Some((before, progress.clone()))
    }

    /// The instances of a plugin here.
    pub fn of(&self, plugin: &str) -> Vec<Instance> {
        let all = self.all();
        all.values().filter(|i| i.plugin == plugin).cloned().collect()
    }

    /// Every instance here.
    pub fn everything(&self) -> Vec<(InstanceKey, Instance)> {
        self.all().iter().map(|(key, instance)| (key.clone(), instance.clone())).collect()
    }

    /// Their keys.
    pub fn keys_of(&self, plugin: &str) -> Vec<InstanceKey> {
        let all = self.all();
        all.iter().filter(|(_, i)| i.plugin == plugin).map(|(key, _)| key.clone()).collect()
    }

    /// The instances of a plugin here, but for those of one allocation.
    pub fn others(&self, plugin: &str, allocation: &str) -> Vec<Instance> {
        let all = self.all();
        let other = |(key, i): &(&InstanceKey, &Instance)| i.plugin == plugin && key.allocation != allocation;
        all.iter().filter(other).map(|(_, instance)| instance.clone()).collect()
    }

    /// The instance, if it is registered.
    pub fn get(&self, key: &InstanceKey) -> Option<Instance> {
        self.all().get(key).cloned()
    }

    /// The instance that serves a plugin here.
    pub fn serving(&self, plugin: &str, service: Service) -> Option<Instance> {
        self.serving_key(plugin, service).and_then(|key| self.get(&key))
    }

    /// The instance that makes a call about a volume, by handle or name: the one that serves. But one that was asked about
    /// it already and may be at work on that still is asked on, for another process of the driver knows nothing of it; if
    /// that one is not well or about to stop, nobody is asked until its process is gone.
    pub fn serving_volume(
        &self,
        plugin: &str,
        service: Service,
        volume: &str,
    ) -> Option<(InstanceKey, Instance)> {
        let asked = {
            let all = self.all();
            let of_it: Vec<_> = all.iter().filter(|(_, i)| i.serves(plugin, service)).collect();
            let processes: Vec<_> = of_it.iter().map(|(_, instance)| instance.process(volume)).collect();
            match registry::asked(&processes) {
                Asked::Again(at) => Some(Some((of_it[at].0.clone(), of_it[at].1.clone()))),
                Asked::Nobody => Some(None),
                Asked::Serving => None,
            }
        };
        if let Some(asked) = asked {
            return asked;
        }
        let key = self.serving_key(plugin, service)?;
        self.get(&key).map(|instance| (key, instance))
    }

    /// Whether an instance was asked about a volume and may be at work on that still.
    pub fn is_asked(&self, plugin: &str, service: Service, volume: &str) -> bool {
        let all = self.all();
        let of_it = all.values().filter(|instance| instance.serves(plugin, service));
        let processes: Vec<_> = of_it.map(|instance| instance.process(volume)).collect();
        registry::asked(&processes) != Asked::Serving
    }

    /// Whether an instance that was chosen for a call about a volume may be asked still, now that its turn has come.
    pub fn may_ask(&self, key: &InstanceKey, (plugin, service): (&str, Service), volume: &str) -> bool {
        let all = self.all();
        let of_it: Vec<_> = all.iter().filter(|(_, i)| i.serves(plugin, service)).collect();
        let processes: Vec<_> = of_it.iter().map(|(_, instance)| instance.process(volume)).collect();
        let chosen = of_it.iter().position(|(one, _)| *one == key);
        chosen.is_some_and(|chosen| registry::may_ask(&processes, chosen))
    }

    /// The instances of a plugin with a service here, the oldest first.
    pub fn by_age(&self, plugin: &str, service: Service) -> Vec<(InstanceKey, Instance)> {
        let all = self.all();
        let of_it = all.iter().filter(|(_, i)| i.serves(plugin, service));
        let mut list: Vec<_> = of_it.map(|(key, instance)| (key.clone(), instance.clone())).collect();
        list.sort_by_key(|(_, instance)| (instance.born.is_none(), instance.born));
        list
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<InstanceKey, Instance>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An instance shall run on; whether that is news.
    pub fn resume(&self, key: &InstanceKey) -> bool {
        let mut all = self.all();
        all.get_mut(key).is_some_and(|instance| std::mem::take(&mut instance.draining))
    }

    /// From now on an instance gets no call.
    pub fn drain(&self, key: &InstanceKey) -> Option<Instance> {
        let mut all = self.all();
        let instance = all.get_mut(key)?;
        instance.draining = true;
        Some(instance.clone())
    }

    /// What the instances of a plugin here have in common.
    pub fn shared(&self, plugin: &str) -> Shared {
        let mut all = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        // An instance that is gone may have a call under way still. When that is over, too, nothing is kept of its plugin.
        all.retain(|name, shared| name == plugin || shared.turns.is_shared());
        all.entry(plugin.to_owned()).or_default().clone()
    }

    /// Its key.
    pub fn serving_key(&self, plugin: &str, service: Service) -> Option<InstanceKey> {
        let all = self.all();
        let of_plugin: Vec<_> =
            all.iter().filter(|(_, i)| i.plugin == plugin && i.admitted && !i.draining).collect();
        let list: Vec<_> = of_plugin
            .iter()
            .enumerate()
            .map(|(n, (_, i))| registry::Instance {
                id: format!("{n:06}"),
                role: i.role,
                node: String::new(),
                born: i.born,
                healthy_since: i.progress.healthy_since,
                node_id: String::new(),
            })
            .collect();
        let chosen = registry::serving(&list, service, "")?;
        let at = list.iter().position(|i| i.id == chosen.id)?;
        Some(of_plugin[at].0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> InstanceKey {
        InstanceKey { allocation: format!("a{n}"), task: "plugin".into() }
    }

    fn instance(socket: &str) -> Instance {
        let connector = csi::UnixConnector::new(socket).unwrap();
        Instance {
            plugin: "p".into(),
            role: Role::Monolith,
            socket: socket.into(),
            client: csi::Plugin::new(connector, csi::PluginOptions::default()),
            admitted: true,
            born: None,
            view: None,
            ours: true,
            draining: false,
            untold: false,
            held: None,
            progress: Progress::default(),
        }
    }

    fn healthy(registry: &Registry, n: u32, second: i64) {
        let since = Time(jiff::Timestamp::from_second(second).unwrap());
        registry.progress(&key(n), |p| p.healthy_since = Some(since)).unwrap();
    }

    fn serves(registry: &Registry) -> Option<PathBuf> {
        registry.serving("p", Service::Node).map(|i| i.socket)
    }

    #[tokio::test]
    async fn the_newest_serves_and_the_older_takes_over_at_once() {
        let registry = Registry::default();
        assert!(registry.register(key(1), instance("/a.sock")));
        assert_eq!(serves(&registry), None, "registered is not healthy");
        healthy(&registry, 1, 1);
        assert!(registry.register(key(2), instance("/b.sock")));
        healthy(&registry, 2, 2);
        assert_eq!(serves(&registry), Some("/b.sock".into()));
        assert_eq!(registry.deregister(&key(2)), Some("p".into()));
        assert_eq!(serves(&registry), Some("/a.sock".into()));
    }

    #[tokio::test]
    async fn one_that_drains_serves_no_more_unless_it_runs_on() {
        let registry = Registry::default();
        for n in [1, 2] {
            registry.register(key(n), instance(&format!("/{n}.sock")));
            healthy(&registry, n, i64::from(n));
        }
        assert!(registry.drain(&key(2)).is_some() && registry.drain(&key(9)).is_none());
        assert_eq!(serves(&registry), Some("/1.sock".into()));
        registry.drain(&key(1));
        assert_eq!(serves(&registry), None);
        assert!(registry.resume(&key(1)) && !registry.resume(&key(1)));
        assert_eq!(serves(&registry), Some("/1.sock".into()));
        registry.register(key(2), instance("/2.sock"));
        assert_eq!(serves(&registry), Some("/2.sock".into()), "it was started again");
    }

    /// Scenarios A11, A12.
    #[tokio::test]
    async fn an_unknown_instance_takes_nobody_along() {
        let registry = Registry::default();
        assert_eq!(registry.deregister(&key(9)), None, "before any registration");
        registry.register(key(1), instance("/a.sock"));
        healthy(&registry, 1, 1);
        assert_eq!(registry.deregister(&key(9)), None);
        assert_eq!(serves(&registry), Some("/a.sock".into()));
    }

    #[tokio::test]
    async fn what_the_instances_of_a_plugin_share_is_kept_while_anybody_can_call_it() {
        let registry = Registry::default();
        let kept = |registry: &Registry| registry.1.lock().unwrap().keys().cloned().collect::<Vec<_>>();
        let called = registry.shared("called");
        for n in 0..20 {
            drop(registry.shared(&format!("p{n}")));
        }
        assert_eq!(kept(&registry), ["called", "p19"]);
        drop(called);
        drop(registry.shared("p19"));
        assert_eq!(kept(&registry), ["p19"]);
    }

    /// Scenario A13.
    #[tokio::test]
    async fn a_burst_ends_with_what_came_last() {
        let registry = Registry::default();
        for n in 0..20 {
            assert!(registry.register(key(1), instance(&format!("/{n}.sock"))));
            assert!(!registry.register(key(1), instance(&format!("/{n}.sock"))), "the same again");
            assert!(registry.deregister(&key(1)).is_some());
        }
        registry.register(key(1), instance("/last.sock"));
        healthy(&registry, 1, 1);
        assert_eq!(serves(&registry), Some("/last.sock".into()));
    }
}
