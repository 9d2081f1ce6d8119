//! The plugins of every node: scripted ones, which keep book of what was asked of them.
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wharfline::csi::Rpc;
use wharfline::csi::proto::controller_service_capability::rpc::Type as Can;
use wharfline::csi::proto::group_controller_service_capability::rpc::Type as GroupCan;
use wharfline::csi::proto::node_service_capability::rpc::Type as NodeCan;
use wharfline::csi::proto::plugin_capability::service::Type as Service;
use wharfline::csi::proto::plugin_capability::volume_expansion::Type as Expansion;
use wharfline::sys::process::Outcome;

use crate::network::{Listening, PLUGINS};
use crate::state::{NodeState, Served};
use crate::support::scripted::{Answer, Ask, Backend, Config, Effects, Hands, Site, Witness, serve};
use crate::universe::{Universe, below, chance};

/// The storage systems, by plugin.
pub type Backends = BTreeMap<String, Arc<Backend>>;

/// `alpha` attaches and stages, takes snapshots, alone and in groups, fills volumes from them and from others, and has volumes grow and change while they
/// are used; `beta` does none of that, and its volumes stay on the node that made them.
pub fn backends(universe: &Arc<Universe>) -> Backends {
    let effects = Effects::Simulated(Arc::new(SimHands(Arc::clone(universe))));
    let mut alpha = Config {
        name: "alpha.csi.example".into(),
        effects: effects.clone(),
        pace,
        works_on: WORKS_ON,
        clock,
        ready_after: 2,
        expansion: vec![Expansion::Online as i32],
        node_expansion: true,
        ..Config::full()
    };
    let more = [
        Can::CreateDeleteSnapshot,
        Can::ListSnapshots,
        Can::PublishReadonly,
        Can::CloneVolume,
        Can::ExpandVolume,
        Can::ModifyVolume,
    ];
    alpha.controller.extend(more.map(|can| can as i32));
    alpha.node.push(NodeCan::ExpandVolume as i32);
    alpha.services.push(Service::GroupControllerService as i32);
    alpha.group.push(GroupCan::CreateDeleteGetVolumeGroupSnapshot as i32);
    let mut beta =
        Config { name: "beta.csi.example".into(), effects, pace, ..Config::without_attach_and_stage() };
    beta.services.push(Service::VolumeAccessibilityConstraints as i32);
    [("alpha", alpha), ("beta", beta)].map(|(name, config)| (name.to_owned(), Backend::new(config))).into()
}

/// Hosts have clocks of their own, which begin when they do.
fn clock() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}

/// A call whose deadline has passed may go on so long after it began.
const WORKS_ON: Duration = Duration::from_secs(6);

/// Calls take time, or no two of them could ever meet.
fn pace() -> Duration {
    if chance(500) { Duration::ZERO } else { Duration::from_millis(below(120)) }
}

/// What a plugin calls a node.
pub fn node_id(node: &str) -> String {
    format!("id-of-{node}")
}

/// The instance of a plugin on a node.
pub fn site(universe: &Arc<Universe>, plugin: &str, node: &str, process: u16) -> Site {
    let mut site = Site::new(&node_id(node));
    if plugin == "beta" {
        site.topology = BTreeMap::from([("beta/node".to_owned(), node.to_owned())]);
    }
    let (this, name, wanted) = (Arc::clone(universe), node.to_owned(), plugin.to_owned());
    site.on_exit = Some(Arc::new(move || kill(&this, &name, &wanted, Some(process))));
    site.witness = Some(Arc::new(SimWitness {
        universe: Arc::clone(universe),
        node: node.to_owned(),
        plugin: plugin.to_owned(),
    }));
    site
}

/// Kills the processes of a plugin that run, or one of them.
pub fn kill(universe: &Universe, node: &str, plugin: &str, process: Option<u16>) {
    let mut inner = universe.look();
    let now = inner.now;
    let Some(state) = inner.nodes.get_mut(node) else { return };
    for task in state.tasks.values_mut().filter(|task| task.runs()) {
        let served = task.socket.as_ref().and_then(|socket| state.sockets.get(socket));
        let it = |served: &Served| process.is_none_or(|process| served.process == process);
        let of_plugin =
            task.argv.first().is_some_and(|a| a == "plugin") && task.argv.get(1).is_some_and(|a| a == plugin);
        if of_plugin && served.map_or(process.is_none(), it) {
            task.ends_at = Some((now, Outcome::Signal(9)));
            if let Some(served) = served {
                served.down.cancel();
            }
        }
    }
}

/// The software of the host that a node's plugins run on: serves whichever of their processes run.
pub async fn host(universe: Arc<Universe>, node: String, backends: Backends) -> turmoil::Result {
    let all = PLUGINS.map(|plugin| {
        let backend = Arc::clone(&backends[plugin]);
        instances(Arc::clone(&universe), node.clone(), plugin, backend)
    });
    let ended = futures::future::join_all(all).await;
    ended.into_iter().collect::<io::Result<Vec<()>>>()?;
    Ok(())
}

/// Serves each process of a plugin on a node for as long as it runs.
async fn instances(
    universe: Arc<Universe>,
    node: String,
    plugin: &'static str,
    backend: Arc<Backend>,
) -> io::Result<()> {
    let mut started = universe.look().nodes[&node].plugins.subscribe();
    let mut known = std::collections::BTreeSet::new();
    loop {
        started.borrow_and_update();
        let new: Vec<Served> = {
            let inner = universe.look();
            let served = inner.nodes[&node].sockets.values();
            let of_it = served.filter(|s| s.plugin == plugin && !s.down.is_cancelled());
            of_it.filter(|s| known.insert(s.process)).cloned().collect()
        };
        for served in new {
            let listening = Listening::on(served.process).await?;
            let (universe, backend, node) = (Arc::clone(&universe), Arc::clone(&backend), node.clone());
            universe.note(&format!("{node}: plugin {plugin} listens"));
            universe.sockets.send_modify(|version| *version += 1);
            tokio::spawn(async move {
                let site = site(&universe, plugin, &node, served.process);
                serve::serve(backend, site, listening, served.down).await;
                universe.note(&format!("{node}: plugin {plugin} is gone"));
                universe.sockets.send_modify(|version| *version += 1);
            });
        }
        let _lives = started.changed().await;
    }
}

/// What plugins do to the simulated machines.
struct SimHands(Arc<Universe>);

impl std::fmt::Debug for SimHands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("hands")
    }
}

impl SimHands {
    /// Every path that a plugin gets lies in the directory of its node.
    fn on<T>(&self, path: &str, work: impl FnOnce(&mut NodeState, &Path) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.0.look();
        let node = path.split('/').nth(2).unwrap_or_default().to_owned();
        let Some(state) = inner.nodes.get_mut(&node) else {
            inner.violated(format!("a plugin was given the path {path}"));
            return Err(io::ErrorKind::NotFound.into());
        };
        work(state, Path::new(path))
    }
}

impl Hands for SimHands {
    fn mount(&self, volume: &str, at: &str, read_only: bool) -> io::Result<()> {
        self.on(at, |node, at| {
            if !node.directories.contains_key(at) {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("{} is not there", at.display()),
                ));
            }
            node.mount(volume, at, read_only);
            Ok(())
        })
    }

    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.on(path, |node, path| {
            let parent = path.parent().is_some_and(|parent| node.directories.contains_key(parent));
            if !parent {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("{}: no parent", path.display()),
                ));
            }
            node.make_directories(path);
            Ok(())
        })
    }

    fn unmount(&self, at: &str) -> io::Result<()> {
        let now = self.0.look().now;
        let users = self.on(at, |node, at| {
            Ok(node.unmount(at, now).map(|mount| node.users_of(mount.id)).unwrap_or_default())
        })?;
        if !users.is_empty() {
            self.0.look().violated(format!("S3: {at} is unmounted while {users:?} may write to it"));
        }
        Ok(())
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        self.on(path, |node, path| {
            if node.top(path).is_some() || node.has_children(path) {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            node.directories.remove(path);
            Ok(())
        })
    }
}

/// Sees every call of one instance.
struct SimWitness {
    universe: Arc<Universe>,
    node: String,
    plugin: String,
}

impl Witness for SimWitness {
    fn arrived(&self, number: usize, ask: &Ask) {
        let Some(about) = ask.subject().filter(|_| ask.rpc() != Rpc::GetSnapshot) else { return };
        let what = format!("{}#{number} {} {about} arrives", self.plugin, ask.rpc());
        // The plugin does what it was asked, whatever becomes of the daemon now.
        let _killed = self.universe.doomed(&self.node, &what);
        let mut inner = self.universe.look();
        if let Some(what) = crate::intent::missing(&inner, &self.plugin, &self.node, ask) {
            inner.violated(format!("rule 1: {} #{number} on {}: {what}", ask.rpc(), self.node));
        }
        if ask.rpc() == Rpc::DeleteVolume {
            let handle = ask.volume().unwrap_or_default();
            if let Some(claim) = crate::checks::claim_that_uses(&inner, &self.plugin, handle) {
                inner.violated(format!("S2: DeleteVolume {handle} while claim {claim} has it"));
            }
            if let Some(snapshot) = crate::checks::snapshot_of(&inner, &self.plugin, handle) {
                inner.violated(format!(
                    "S2: DeleteVolume {handle} while snapshot {snapshot} may be being cut"
                ));
            }
            if let Some(copy) = crate::checks::copy_of(&inner, &self.plugin, "volume", handle) {
                inner.violated(format!("S2: DeleteVolume {handle} while {copy} may be being filled from it"));
            }
        }
        if let Ask::DeleteSnapshot(request) = ask
            && let Some(copy) = crate::checks::copy_of(&inner, &self.plugin, "snapshot", &request.snapshot_id)
        {
            let handle = &request.snapshot_id;
            inner.violated(format!("S2: DeleteSnapshot {handle} while {copy} may be being filled from it"));
        }
    }

    /// What is refused at first, and made all the same, is left behind if its claim goes then; no claim does, but for these.
    fn prompt(&self, ask: &Ask) -> Option<Answer> {
        let Ask::CreateVolume(request) = ask else { return None };
        request.parameters.contains_key("one").then(Answer::honest)
    }

    fn performed(&self, number: usize, ask: &Ask, done: bool) {
        if ask.subject().is_none() {
            return;
        }
        if let Ask::DeleteVolume(request) = ask {
            let (handle, mut inner) = (&request.volume_id, self.universe.look());
            if done && crate::checks::is_said_to_stay(&inner, &self.plugin, handle) {
                inner.violated(format!("S2: DeleteVolume {handle} is done, and it was said to stay"));
            }
        }
        let end = if done { "done" } else { "refused" };
        let what = format!("{}#{number} {} {end}", self.plugin, ask.rpc());
        let _killed = self.universe.doomed(&self.node, &what);
    }
}

/// How long a plugin takes at most, unless it hangs.
pub const SLOW: Duration = Duration::from_millis(400);
