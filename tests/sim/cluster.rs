//! The whole cluster: a server, the controllers, three daemons, their plugins, and people, each on a host of its own.
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use turmoil::Sim;
use wharfline::node::{self, Options};
use wharfline::run::join;
use wharfline::server::{SealingKey, Server, ServerOptions};
use wharfline::store::embedded::MemoryDisk;
use wharfline::store::{KeepPolicy, run_compactor};
use wharfline::{api, controllers};

use crate::checks;
use crate::machine::SimMachine;
use crate::network::{self, Link, PEOPLE, SERVER, plugin_host};
use crate::people::{self, Desk};
use crate::plugins::{self, Backends, node_id};
use crate::state::NodeState;
use crate::store::Observed;
use crate::universe::{Universe, below};

/// The machines.
pub const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];
/// Where the controllers run.
pub const CONTROLLERS: &str = "controllers";
/// Where others run beside them for a while: somebody took them for dead.
pub const RIVAL: &str = "rival";
/// One step of time.
const TICK: Duration = Duration::from_millis(20);
/// The deadline of every CSI call, so that a run need not wait long for one that hangs.
pub const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// A cluster and the hand that moves it on.
pub struct Cluster {
    pub sim: Sim<'static>,
    pub universe: Arc<Universe>,
    pub backends: Backends,
    pub desk: Arc<Desk>,
    /// What the server's store lies on.
    disk: MemoryDisk,
    /// Hosts that are down, and when they come back.
    down: BTreeMap<String, Duration>,
}

/// The kinds, made once: a server that starts again in the same process has the same.
fn definitions() -> Vec<api::KindDefinition> {
    static MADE: OnceLock<Vec<api::KindDefinition>> = OnceLock::new();
    MADE.get_or_init(api::definitions).clone()
}

impl Cluster {
    pub fn new(seed: u64) -> Self {
        let universe = Universe::new();
        let backends = plugins::backends(&universe);
        {
            let mut inner = universe.look();
            inner.nodes = NODES.map(|name| (name.to_owned(), NodeState::new(name))).into();
            inner.backends = backends.clone();
            let hosts = NODES.iter().chain([&CONTROLLERS, &RIVAL, &PEOPLE]);
            inner.links = hosts.map(|host| ((*host).to_owned(), Link::default())).collect();
        }
        let mut sim = turmoil::Builder::new()
            .tick_duration(TICK)
            .min_message_latency(Duration::ZERO)
            .max_message_latency(Duration::from_millis(20))
            .simulation_duration(Duration::from_secs(24 * 3600))
            .epoch(std::time::UNIX_EPOCH)
            .tcp_capacity(1 << 14)
            .rng_seed(seed)
            .build();
        let desk = Arc::new(Desk::default());
        let disk = MemoryDisk::default();
        Self::server(&mut sim, &universe, &disk);
        Self::controllers(&mut sim, &universe, CONTROLLERS);
        Self::controllers(&mut sim, &universe, RIVAL);
        sim.crash(RIVAL);
        for name in NODES {
            Self::daemon(&mut sim, &universe, name);
            let (shared, all) = (Arc::clone(&universe), backends.clone());
            sim.host(plugin_host(name), move || {
                plugins::host(Arc::clone(&shared), name.to_owned(), all.clone())
            });
        }
        let (shared, people) = (Arc::clone(&universe), Arc::clone(&desk));
        sim.host(PEOPLE, move || people::host(Arc::clone(&shared), Arc::clone(&people)));
        Self { sim, universe, backends, desk, disk, down: BTreeMap::new() }
    }

    fn server(sim: &mut Sim<'static>, universe: &Arc<Universe>, disk: &MemoryDisk) {
        let (shared, disk) = (Arc::clone(universe), disk.clone());
        sim.host(SERVER, move || {
            let (shared, disk) = (Arc::clone(&shared), disk.clone());
            async move {
                let store = Arc::new(Observed::open(&shared, &disk)?);
                store.learn().await?;
                let options = ServerOptions {
                    random: Arc::new(|bytes| {
                        rand::Rng::fill_bytes(&mut *mad_turmoil::rand::get_rng(), bytes);
                    }),
                    ..ServerOptions::new(SealingKey::new(&[7; 32]))
                };
                let server = Server::new(store.clone(), definitions(), options);
                server.bootstrap().await?;
                for node in NODES {
                    join::join(&server, node, false).await?;
                }
                let keep =
                    KeepPolicy { age: Duration::from_secs(3), revisions: 40, every: Duration::from_secs(1) };
                tokio::spawn(run_compactor(store, keep));
                network::serve(server).await?;
                Ok(())
            }
        });
    }

    fn controllers(sim: &mut Sim<'static>, universe: &Arc<Universe>, name: &'static str) {
        let shared = Arc::clone(universe);
        sim.host(name, move || {
            let client = network::client(&shared, name, "controllers");
            let options = controllers::Options {
                jitter: Arc::new(|| u8::try_from(below(256)).unwrap_or(0)),
                longest_call: 2 * CALL_DEADLINE,
                ..controllers::Options::default()
            };
            async move { Ok(controllers::run(client, options, std::future::pending()).await?) }
        });
    }

    fn daemon(sim: &mut Sim<'static>, universe: &Arc<Universe>, name: &'static str) {
        let shared = Arc::clone(universe);
        sim.host(name, move || {
            let universe = Arc::clone(&shared);
            async move {
                let machine = SimMachine { universe: Arc::clone(&universe), node: name.to_owned() };
                let data = NodeState::data_dir(name);
                let run = data.join("run");
                let options = Options { host_paths: vec!["/srv".into()], ..join::options(name, data, run) };
                // Whoever started it starts it again, as systemd would.
                loop {
                    let client = network::client(&universe, name, &format!("node:{name}"));
                    let (tell, _ready) = oneshot::channel();
                    let stop = CancellationToken::new();
                    let ended = node::run(client, machine.parts(), options.clone(), tell, stop).await;
                    universe.note(&format!("{name}: the daemon ended: {ended:?}"));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        });
    }

    pub fn now(&self) -> Duration {
        self.sim.elapsed()
    }

    /// One step of time, with all that is due in it, and everything that must never be so.
    pub fn step(&mut self) -> Result<(), String> {
        let now = self.sim.elapsed();
        self.universe.look().now = now;
        let due: Vec<_> =
            self.down.iter().filter(|(_, at)| **at <= now).map(|(host, _)| host.clone()).collect();
        for host in &due {
            self.restart(host);
        }
        let told: Vec<_> = {
            let mut inner = self.universe.look();
            let told: Vec<_> = inner.nodes.values_mut().flat_map(|node| node.tick(now)).collect();
            for line in &told {
                inner.note(line);
            }
            told
        };
        if !told.is_empty() {
            self.universe.sockets.send_modify(|version| *version += 1);
        }
        self.sim.step().map_err(|error| format!("a host ended: {error}"))?;
        let doomed = std::mem::take(&mut self.universe.look().doomed);
        for host in doomed {
            self.crash(&host, Duration::from_millis(200 + below(1500)));
        }
        checks::step(&self.universe, &self.backends)
    }

    /// Kills the process of a host; it is started again after a while.
    pub fn crash(&mut self, host: &str, away: Duration) {
        if self.down.contains_key(host) {
            return;
        }
        self.universe.note(&format!("{host} is killed, for {away:?}"));
        if host == SERVER {
            // Ending a host drops what it holds, and a store that is dropped writes down what it has in memory. One that
            // is killed does not.
            self.disk.cut_after(0);
        }
        self.sim.crash(host.to_owned());
        self.down.insert(host.to_owned(), self.now() + away);
    }

    /// Switches a machine off, and on again after a while.
    pub fn reboot(&mut self, node: &str, away: Duration) {
        let plugins = plugin_host(node);
        self.crash(&plugins, away);
        self.crash(node, away);
        let now = self.now();
        if let Some(state) = self.universe.look().nodes.get_mut(node) {
            state.reboot(now);
        }
        for backend in self.backends.values() {
            backend.reboot(&node_id(node));
        }
        self.universe.note(&format!("{node} is switched off"));
    }

    fn restart(&mut self, host: &str) {
        self.down.remove(host);
        if host == SERVER {
            self.disk.cut_after(u64::MAX);
        }
        self.universe.note(&format!("{host} is started"));
        self.sim.bounce(host.to_owned());
    }

    /// Starts a second set of controllers, or ends it.
    pub fn rival(&mut self, runs: bool) {
        self.universe.note(if runs { "rival controllers start" } else { "rival controllers end" });
        self.sim.crash(RIVAL);
        if runs {
            self.sim.bounce(RIVAL);
        }
    }

    /// Starts whatever is down.
    pub fn restart_all(&mut self) {
        let all: Vec<_> = self.down.keys().cloned().collect();
        for host in &all {
            self.restart(host);
        }
    }
}
