//! The whole cluster: a server, the controllers, three daemons, their plugins, and people, each on a host of its own.
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use turmoil::Sim;
use wharfline::node::{self, Options};
use wharfline::run::join;
use wharfline::run::patience::patient;
use wharfline::server::{Identity, SealingKey, Server, ServerOptions};
use wharfline::store::embedded::MemoryDisk;
use wharfline::store::{KeepPolicy, run_compactor};
use wharfline::{api, controllers};

use crate::checks;
use crate::etcd::Etcd;
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

/// What the cluster stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One server with its own store, the controllers beside it.
    Alone,
    /// So many servers over an etcd, one of which leads the controllers.
    Several(usize),
}

impl Layout {
    /// That of a history by its number: half of them have several servers.
    pub fn of(seed: u64) -> Self {
        match (seed / 8) % 4 {
            1 => Self::Several(2),
            3 => Self::Several(3),
            _ => Self::Alone,
        }
    }

    fn servers(self) -> Vec<String> {
        match self {
            Self::Alone => vec![SERVER.to_owned()],
            Self::Several(count) => (1..=count).map(|n| format!("{SERVER}-{n}")).collect(),
        }
    }
}

/// How long nobody leads after a leader died.
const LEADERSHIP: Duration = Duration::from_secs(10);

/// A cluster and the hand that moves it on.
pub struct Cluster {
    pub sim: Sim<'static>,
    pub universe: Arc<Universe>,
    pub backends: Backends,
    pub desk: Arc<Desk>,
    /// What the server's store lies on, where it is alone.
    disk: MemoryDisk,
    /// What several have.
    pub etcd: Option<Arc<Etcd>>,
    pub servers: Vec<String>,
    /// Hosts that are down, and when they come back.
    down: BTreeMap<String, Duration>,
}

/// The kinds, made once: a server that starts again in the same process has the same.
fn definitions() -> Vec<api::KindDefinition> {
    static MADE: OnceLock<Vec<api::KindDefinition>> = OnceLock::new();
    MADE.get_or_init(api::definitions).clone()
}

/// Little history, so that it is often too short.
const KEEP: KeepPolicy =
    KeepPolicy { age: Duration::from_secs(3), revisions: 40, every: Duration::from_secs(1) };

fn server_options() -> ServerOptions {
    let random = |bytes: &mut [u8]| rand::Rng::fill_bytes(&mut *mad_turmoil::rand::get_rng(), bytes);
    ServerOptions { random: Arc::new(random), ..ServerOptions::new(SealingKey::new(&[7; 32])) }
}

fn controllers_options() -> controllers::Options {
    let uid = || {
        let mut bytes = [0; 16];
        rand::Rng::fill_bytes(&mut *mad_turmoil::rand::get_rng(), &mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    };
    controllers::Options {
        uid: Arc::new(uid),
        jitter: Arc::new(|| u8::try_from(below(256)).unwrap_or(0)),
        longest_call: 2 * CALL_DEADLINE,
        // Shorter than what a plugin that died takes to come back, so that hosts are asked to let go of what they have.
        instance_patience: Duration::from_millis(500),
        ..controllers::Options::default()
    }
}

/// Makes what exists from the start, however often the store fails.
async fn begin(server: &Server) {
    loop {
        let mut made = server.bootstrap().await.is_ok();
        for node in NODES {
            made = made && join::join(server, node, false).await.is_ok();
        }
        if made {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Runs the controllers while this server leads.
async fn control(universe: &Arc<Universe>, name: &str, server: &Server) -> Result<(), controllers::Error> {
    let client = patient(server.client(Identity::controllers()));
    let me = format!("{name}_{:08x}", below(1 << 32));
    let begin = |turn| {
        universe.note(&format!("{name}: leads in turn {turn}"));
        server.lead(turn)
    };
    let work = |client: kube::Client, ending: CancellationToken| {
        let client = patient(network::inside(universe, name, client));
        controllers::run(client, controllers_options(), async move { ending.cancelled().await })
    };
    let candidate = controllers::Candidate::new(client, me, controllers_options(), LEADERSHIP);
    candidate.run(CancellationToken::new(), begin, work).await
}

impl Cluster {
    pub fn new(seed: u64, layout: Layout) -> Self {
        let universe = Universe::new();
        let servers = layout.servers();
        let backends = plugins::backends(&universe);
        {
            let mut inner = universe.look();
            inner.nodes = NODES.map(|name| (name.to_owned(), NodeState::new(name))).into();
            inner.backends = backends.clone();
            inner.servers.clone_from(&servers);
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
        let etcd = match layout {
            Layout::Alone => {
                Self::server(&mut sim, &universe, &disk);
                Self::controllers(&mut sim, &universe, CONTROLLERS);
                Self::controllers(&mut sim, &universe, RIVAL);
                sim.crash(RIVAL);
                None
            }
            Layout::Several(_) => {
                let etcd = Etcd::new(&universe, &servers);
                for name in &servers {
                    Self::one_of_several(&mut sim, &universe, &etcd, name);
                }
                Some(etcd)
            }
        };
        for name in NODES {
            Self::daemon(&mut sim, &universe, name);
            let (shared, all) = (Arc::clone(&universe), backends.clone());
            sim.host(plugin_host(name), move || {
                plugins::host(Arc::clone(&shared), name.to_owned(), all.clone())
            });
        }
        let (shared, people) = (Arc::clone(&universe), Arc::clone(&desk));
        sim.host(PEOPLE, move || people::host(Arc::clone(&shared), Arc::clone(&people)));
        Self { sim, universe, backends, desk, disk, etcd, servers, down: BTreeMap::new() }
    }

    fn server(sim: &mut Sim<'static>, universe: &Arc<Universe>, disk: &MemoryDisk) {
        let (shared, disk) = (Arc::clone(universe), disk.clone());
        sim.host(SERVER, move || {
            let (shared, disk) = (Arc::clone(&shared), disk.clone());
            async move {
                let store = Arc::new(Observed::open(&shared, SERVER, &disk)?);
                store.learn().await?;
                let server = Server::new(store.clone(), definitions(), server_options());
                server.bootstrap().await?;
                for node in NODES {
                    join::join(&server, node, false).await?;
                }
                tokio::spawn(run_compactor(store, KEEP));
                network::serve(server).await?;
                Ok(())
            }
        });
    }

    /// What `wharfline server` is over an etcd.
    fn one_of_several(sim: &mut Sim<'static>, universe: &Arc<Universe>, etcd: &Arc<Etcd>, name: &str) {
        let (universe, etcd, name) = (Arc::clone(universe), Arc::clone(etcd), name.to_owned());
        sim.host(name.clone(), move || {
            let (universe, etcd, name) = (Arc::clone(&universe), Arc::clone(&etcd), name.clone());
            async move {
                let inner = etcd.store(&name).await?;
                let moved = inner.moved();
                let store = Arc::new(Observed::of_etcd(&universe, &name, inner));
                let server = Server::new(
                    store.clone(),
                    definitions(),
                    ServerOptions { mirror: true, ..server_options() },
                );
                tokio::select! {
                    () = begin(&server) => {}
                    () = moved.cancelled() => {}
                }
                tokio::spawn(run_compactor(store, KEEP));
                tokio::spawn(network::serve(server.clone()));
                tokio::select! {
                    ended = control(&universe, &name, &server) => ended?,
                    () = moved.cancelled() => {}
                }
                // Whoever started it ends all of it, and starts it again.
                universe.note(&format!("{name}: etcd has another history: it ends"));
                universe.look().doomed.insert(name);
                std::future::pending().await
            }
        });
    }

    fn controllers(sim: &mut Sim<'static>, universe: &Arc<Universe>, name: &'static str) {
        let shared = Arc::clone(universe);
        sim.host(name, move || {
            let client = network::client(&shared, name, "controllers");
            async move { Ok(controllers::run(client, controllers_options(), std::future::pending()).await?) }
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
                let options = Options {
                    host_paths: vec!["/srv".into()],
                    longest_call: 2 * CALL_DEADLINE,
                    ..join::options(name, data, run)
                };
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
        if let Some(etcd) = &self.etcd {
            etcd.step(now);
        }
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

    /// The same, and it comes back with an empty disk, under its name.
    pub fn reimage(&mut self, node: &str, away: Duration) {
        self.reboot(node, away);
        if let Some(state) = self.universe.look().nodes.get_mut(node) {
            state.reimage();
        }
        self.universe.note(&format!("{node} gets a new disk"));
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
        self.universe.look().rivals = runs;
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
