//! What goes wrong, when, and how it is mended.
use std::time::Duration;

use wharfline::csi::{Code, Rpc, proto};
use wharfline::run::join::LEASE;
use wharfline::sys::process::Outcome;

use crate::cluster::{CALL_DEADLINE, CONTROLLERS, Cluster, NODES, RIVAL};
use crate::etcd::{Etcd, Health, Wrong};
use crate::network::{Link, PLUGINS};
use crate::people::Wish;
use crate::plugins::{self, SLOW};
use crate::support::scripted::{Answer, Logged};
use crate::universe::{CrashAt, below, chance, pick};

/// The kinds of faults; each seed has some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Crash,
    CrashAtEffect,
    Reboot,
    PluginDies,
    TaskDies,
    Partition,
    OneWay,
    LostReplies,
    Refused,
    Stalled,
    Cut,
    Gone,
    Answers,
    Rival,
    /// A machine is switched off for long, and a person says so.
    Fenced,
    /// A person says so of a machine that runs on: only its daemon is away.
    Mistaken,
    /// A machine gets a new disk and comes back under its name.
    Reimaged,
    /// An OK for nothing.
    Lie,
    /// A volume or a snapshot is made, changed or deleted, and the answer does not say so.
    DoubtVolume,
    /// The same for an attachment.
    DoubtAttachment,
    /// It takes its time.
    Slow,
    /// Two sets of controllers, until everything is mended.
    Both,
    /// It hangs until the caller gives up, and is done then.
    Hang,
    /// A node is out of reach for so long that others take over what it is host of.
    Away,
    /// The etcd under several servers decides nothing, or is away.
    Etcd,
    /// It loses answers.
    EtcdReplies,
    /// One server does not reach it, for so long that another leads.
    ServerAlone,
    /// Its watches lose events, repeat them, go back or tell them in another order.
    EtcdWatches,
    /// A read of it tells an older state.
    EtcdBack,
    /// Its history is forgotten under those who read it.
    EtcdCompacted,
    /// It is restored from a backup.
    EtcdRestored,
}

const OF_ETCD: [Kind; 7] = [
    Kind::Etcd,
    Kind::EtcdReplies,
    Kind::ServerAlone,
    Kind::EtcdWatches,
    Kind::EtcdBack,
    Kind::EtcdCompacted,
    Kind::EtcdRestored,
];

const KINDS: [Kind; 16] = [
    Kind::Crash,
    Kind::CrashAtEffect,
    Kind::Reboot,
    Kind::PluginDies,
    Kind::TaskDies,
    Kind::Partition,
    Kind::OneWay,
    Kind::LostReplies,
    Kind::Refused,
    Kind::Stalled,
    Kind::Cut,
    Kind::Gone,
    Kind::Answers,
    Kind::Rival,
    Kind::Fenced,
    Kind::Reimaged,
];

/// After which nothing runs on a machine.
const OFF: [Kind; 3] = [Kind::Reboot, Kind::Fenced, Kind::Reimaged];

enum Mend {
    Repair(String),
    Link(String, fn(&mut Link)),
    Rival,
    Etcd,
    EtcdReplies,
    ServerAlone(String),
    Fence(&'static str, Option<String>),
    /// The same of a machine that is not off.
    Mistake(&'static str),
}

/// What is still to go wrong and to be mended.
pub struct Faults {
    kinds: Vec<Kind>,
    /// What the plugins of this run do all the time: one answer of many is of this kind, since what follows from it
    /// wants the same call to go wrong at the right moment.
    habit: Option<Kind>,
    /// The next one last.
    planned: Vec<(Duration, Kind)>,
    mending: Vec<(Duration, Mend)>,
}

/// How often a habit shows.
const HABIT: Duration = Duration::from_millis(250);

/// Longer than a lease and the longest call together.
pub const AWAY: Duration = Duration::from_secs(26);

fn millis(from: u64, more: u64) -> Duration {
    Duration::from_millis(from + below(more))
}

/// Whose way to the API is bad. Where there are several servers, the controllers run in one of them.
fn client_host(cluster: &Cluster) -> &'static str {
    match cluster.etcd {
        None => pick(&[NODES[0], NODES[1], NODES[2], CONTROLLERS, RIVAL]),
        Some(_) => pick(&NODES),
    }
}

fn process_host(cluster: &Cluster) -> String {
    let mut hosts: Vec<String> = NODES.map(str::to_owned).into();
    hosts.extend(cluster.servers.iter().cloned());
    if cluster.etcd.is_none() {
        hosts.push(CONTROLLERS.to_owned());
    }
    pick(&hosts)
}

impl Faults {
    /// Kinds for this run, drawn anew; every other run has a habit.
    pub fn new(seed: u64, several: bool) -> Self {
        // Two leaders are made by a server that is alone, where there are several.
        let all: Vec<Kind> = if several {
            KINDS.into_iter().filter(|kind| *kind != Kind::Rival).chain(OF_ETCD).collect()
        } else {
            KINDS.into()
        };
        let mut kinds: Vec<_> = all.iter().copied().filter(|_| chance(450)).collect();
        // A machine that loses power has no task left that could go on with what it lost.
        let mistaken = seed % 8 == 6;
        kinds.retain(|kind| !mistaken || !OFF.contains(kind));
        if kinds.is_empty() {
            kinds.push(if mistaken { Kind::Crash } else { pick(&all) });
        }
        let habit = match seed % 8 {
            1 => Some(Kind::Lie),
            2 => Some(Kind::Slow),
            3 => Some(Kind::DoubtVolume),
            4 if several => Some(Kind::EtcdWatches),
            4 => Some(Kind::Both),
            5 => Some(Kind::Hang),
            _ if mistaken => Some(Kind::Mistaken),
            7 => Some(Kind::DoubtAttachment),
            _ => None,
        };
        Self { kinds, habit, planned: Vec::new(), mending: Vec::new() }
    }

    pub fn describe(&self) -> String {
        format!("{:?}, habit {:?}", self.kinds, self.habit)
    }

    /// Whether people take a machine that runs for one that is off.
    pub fn mistaken(&self) -> bool {
        self.habit == Some(Kind::Mistaken)
    }

    /// So many faults between two times.
    pub fn plan(&mut self, count: u64, from: Duration, until: Duration) {
        let span = u64::try_from(until.saturating_sub(from).as_millis()).unwrap();
        self.planned
            .extend((0..count).map(|_| (from + Duration::from_millis(below(span)), pick(&self.kinds))));
        self.habitual(from, until);
        self.planned.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    }

    fn habitual(&mut self, from: Duration, until: Duration) {
        let Some(habit) = self.habit else { return };
        match habit {
            Kind::Both => {
                self.planned.push((from, habit));
                return;
            }
            Kind::Mistaken => return,
            _ => {}
        }
        // A server whose watch was wrong begins anew, and must get to do something between two times.
        let pause = if habit == Kind::EtcdWatches { 8 * HABIT } else { HABIT };
        let times = std::iter::successors(Some(from), |at| Some(*at + pause)).take_while(|at| *at < until);
        self.planned.extend(times.map(|at| (at, habit)));
    }

    /// Whether a node goes away for long in this run. Where calls hang, the last that it began as a host may run still
    /// when its volumes could have another one; where people are mistaken, others have its volumes when it is back.
    /// `planned` is until when faults are planned already.
    pub fn away(&mut self, from: Duration, planned: Duration) -> bool {
        match self.habit {
            Some(Kind::Hang) => {
                self.planned.push((from, Kind::Away));
                self.habitual(planned, from + LEASE + CALL_DEADLINE);
            }
            Some(Kind::Mistaken) => self.planned.push((from, Kind::Mistaken)),
            _ => return false,
        }
        self.planned.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        true
    }

    /// Does what is due.
    pub fn step(&mut self, cluster: &mut Cluster) {
        let now = cluster.now();
        while let Some((_, kind)) = self.planned.pop_if(|(at, _)| *at <= now) {
            self.inject(cluster, kind);
        }
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.mending).into_iter().partition(|(at, _)| *at <= now);
        self.mending = later;
        for (_, mend) in due {
            Self::mend(cluster, mend);
        }
    }

    /// Everything is well from now on.
    pub fn heal(&mut self, cluster: &mut Cluster) {
        cluster.universe.note("everything is mended");
        self.planned.clear();
        for (_, mend) in std::mem::take(&mut self.mending) {
            Self::mend(cluster, mend);
        }
        cluster.universe.look().crash_at = None;
        of_etcd(cluster, Etcd::heal);
        cluster.restart_all();
        for backend in cluster.backends.values() {
            for rpc in MUTATING.into_iter().chain(BESIDE) {
                backend.honest(rpc);
            }
        }
    }

    fn mend(cluster: &mut Cluster, mend: Mend) {
        match mend {
            Mend::Repair(host) => {
                cluster.universe.note(&format!("{host} reaches the server again"));
                for server in &cluster.servers {
                    cluster.sim.repair(&*host, &**server);
                }
            }
            Mend::Link(host, change) => {
                if let Some(link) = cluster.universe.look().links.get_mut(&host) {
                    change(link);
                }
            }
            Mend::Rival => cluster.rival(false),
            Mend::Fence(node, boot) => cluster.desk.ask(Wish::Fence { node: node.to_owned(), boot }),
            Mend::Mistake(node) => mistake(cluster, node),
            Mend::Etcd => of_etcd(cluster, |etcd| etcd.health(Health::Well)),
            Mend::EtcdReplies => of_etcd(cluster, |etcd| etcd.lose_replies(0)),
            Mend::ServerAlone(server) => of_etcd(cluster, |etcd| etcd.cut(&server, false)),
        }
    }

    fn link(&mut self, cluster: &Cluster, what: &str, worse: impl FnOnce(&mut Link), better: fn(&mut Link)) {
        let (host, away) = (client_host(cluster).to_owned(), millis(200, 6000));
        cluster.universe.note(&format!("{host}: {what} for {away:?}"));
        if let Some(link) = cluster.universe.look().links.get_mut(&host) {
            worse(link);
        }
        self.mending.push((cluster.now() + away, Mend::Link(host, better)));
    }

    fn inject(&mut self, cluster: &mut Cluster, kind: Kind) {
        match kind {
            Kind::Crash => cluster.crash(&process_host(cluster), millis(100, 4000)),
            Kind::CrashAtEffect => {
                let crash = CrashAt { host: Some(process_host(cluster)), left: 1 + below(40) };
                cluster.universe.look().crash_at = Some(crash);
            }
            Kind::Reboot => cluster.reboot(pick(&NODES), millis(500, 15_000)),
            Kind::Reimaged => cluster.reimage(pick(&NODES), millis(500, 15_000)),
            Kind::Fenced => self.fence(cluster),
            Kind::Mistaken => self.take_for_off(cluster),
            Kind::PluginDies => plugins::kill(&cluster.universe, pick(&NODES), pick(&PLUGINS), None),
            Kind::TaskDies => task_dies(cluster),
            Kind::Partition => {
                let (host, away) = (client_host(cluster), millis(300, 15_000));
                self.cut_off(cluster, host, away, chance(500));
            }
            Kind::OneWay => {
                let (host, away) = (client_host(cluster), millis(300, 8000));
                let server = pick(&cluster.servers);
                let (from, to) = if chance(500) { (host, &*server) } else { (&*server, host) };
                cluster.universe.note(&format!("nothing gets from {from} to {to} for {away:?}"));
                cluster.sim.partition_oneway(from, to);
                self.mending.push((cluster.now() + away, Mend::Repair(host.to_owned())));
            }
            Kind::LostReplies | Kind::Refused | Kind::Stalled | Kind::Cut | Kind::Gone => {
                self.bad_link(cluster, kind);
            }
            Kind::Both => {
                cluster.rival(true);
                self.mending.push((Duration::MAX, Mend::Rival));
            }
            Kind::Away => {
                self.cut_off(cluster, last_host(cluster), AWAY, true);
            }
            Kind::Etcd
            | Kind::EtcdReplies
            | Kind::ServerAlone
            | Kind::EtcdWatches
            | Kind::EtcdBack
            | Kind::EtcdCompacted
            | Kind::EtcdRestored => self.etcd(cluster, kind),
            Kind::Rival => self.rival(cluster),
            Kind::Lie
            | Kind::DoubtVolume
            | Kind::DoubtAttachment
            | Kind::Slow
            | Kind::Hang
            | Kind::Answers => {
                misbehave(cluster, kind);
            }
        }
    }

    /// A bad way from a client to the API.
    fn bad_link(&mut self, cluster: &Cluster, kind: Kind) {
        match kind {
            Kind::LostReplies => {
                self.link(cluster, "replies are lost", |l| l.lost_replies = 300, |l| l.lost_replies = 0);
            }
            Kind::Refused => self.link(cluster, "writes are refused", |l| l.refused = 400, |l| l.refused = 0),
            Kind::Stalled => self.link(
                cluster,
                "watches stall",
                |l| {
                    l.stalled.send_replace(true);
                },
                |l| {
                    l.stalled.send_replace(false);
                },
            ),
            Kind::Cut => self.link(cluster, "watches break", |l| l.cut.send_modify(|n| *n += 1), |_| {}),
            _ => self.link(
                cluster,
                "watches break and have to list anew",
                |l| {
                    l.gone += 1 + below(8);
                    l.cut.send_modify(|n| *n += 1);
                },
                |l| l.gone = 0,
            ),
        }
    }

    /// A host reaches no server any more, or not one of several.
    fn cut_off(&mut self, cluster: &mut Cluster, host: &str, away: Duration, all: bool) {
        let one = pick(&cluster.servers);
        for server in cluster.servers.iter().filter(|server| all || **server == one) {
            cluster.universe.note(&format!("{host} does not reach {server} for {away:?}"));
            cluster.sim.partition(host, &**server);
        }
        self.mending.push((cluster.now() + away, Mend::Repair(host.to_owned())));
    }

    /// A person who saw that a machine is off says so, and takes it back once it runs again.
    fn fence(&mut self, cluster: &mut Cluster) {
        let (node, now, away) = (pick(&NODES), cluster.now(), millis(12_000, 12_000));
        let dead = match cluster.universe.look().nodes.get_mut(node) {
            Some(state) => {
                state.fenced = true;
                state.boot_id()
            }
            None => return,
        };
        cluster.reboot(node, away);
        self.mending.push((now + millis(500, 4000), Mend::Fence(node, Some(dead))));
        self.mending.push((now + away + millis(1000, 4000), Mend::Fence(node, None)));
    }

    /// A person takes a machine whose daemon is away for one that is off, and sees later that it is not.
    fn take_for_off(&mut self, cluster: &mut Cluster) {
        let (node, now, away) = (busiest(cluster), cluster.now(), millis(15_000, 9000));
        cluster.crash(node, away);
        self.mending.push((now + millis(1000, 12_000), Mend::Mistake(node)));
        self.mending.push((now + away + millis(1000, 4000), Mend::Fence(node, None)));
    }

    fn etcd(&mut self, cluster: &mut Cluster, kind: Kind) {
        let Some(etcd) = cluster.etcd.clone() else { return };
        let now = cluster.now();
        match kind {
            Kind::Etcd => {
                etcd.health(pick(&[Health::NoLeader, Health::Stuck, Health::Down]));
                self.mending.push((now + millis(200, 9000), Mend::Etcd));
            }
            Kind::EtcdReplies => {
                etcd.lose_replies(150);
                self.mending.push((now + millis(200, 4000), Mend::EtcdReplies));
            }
            Kind::ServerAlone => {
                let server = pick(&cluster.servers);
                etcd.cut(&server, true);
                self.mending.push((now + millis(1000, 18_000), Mend::ServerAlone(server)));
            }
            Kind::EtcdWatches => {
                let wrong = pick(&[Wrong::Lost, Wrong::Twice, Wrong::Back, Wrong::Misordered]);
                etcd.watches_go_wrong(wrong, 1 + below(3));
            }
            Kind::EtcdBack => etcd.go_back(1 + i64::try_from(below(20)).unwrap_or(0)),
            Kind::EtcdCompacted => etcd.compact(),
            _ => etcd.restore(),
        }
    }

    fn rival(&mut self, cluster: &mut Cluster) {
        cluster.rival(true);
        let (now, for_long) = (cluster.now(), millis(500, 12_000));
        self.mending.push((now + for_long, Mend::Rival));
        if chance(500) {
            // Why they were taken for dead: they hear nothing for a while, and then act on what they knew.
            if let Some(link) = cluster.universe.look().links.get(CONTROLLERS) {
                link.stalled.send_replace(true);
            }
            let hear = |link: &mut Link| {
                link.stalled.send_replace(false);
            };
            self.mending.push((now + for_long / 2, Mend::Link(CONTROLLERS.to_owned(), hear)));
        }
    }
}

/// The node with the most tasks that have a volume.
fn busiest(cluster: &Cluster) -> &'static str {
    let inner = cluster.universe.look();
    let tasks = |node: &&str| {
        let all = inner.nodes.get(*node).map(|state| state.tasks.values());
        all.into_iter().flatten().filter(|task| task.runs() && !task.clones.is_empty()).count()
    };
    NODES.into_iter().max_by_key(|node| tasks(node)).unwrap_or(NODES[0])
}

/// Says that the boot in which a machine is now is dead. Whatever is detached by that was in use.
fn mistake(cluster: &Cluster, node: &str) {
    let Some(boot) = cluster.universe.look().nodes.get_mut(node).map(|state| {
        state.fenced = true;
        state.boot_id()
    }) else {
        return;
    };
    for backend in cluster.backends.values() {
        backend.fence(&plugins::node_id(node));
    }
    cluster.desk.ask(Wish::Fence { node: node.to_owned(), boot: Some(boot) });
}

fn of_etcd(cluster: &Cluster, work: impl FnOnce(&Etcd)) {
    if let Some(etcd) = &cluster.etcd {
        work(etcd);
    }
}

/// What plugins do wrong, now and then or all the time.
fn misbehave(cluster: &Cluster, kind: Kind) {
    match kind {
        Kind::Lie => next_gets(cluster, pick(&LOOKED_FOR), lie()),
        Kind::DoubtVolume => {
            let rpc = if chance(500) { pick(&[Rpc::CreateVolume, Rpc::DeleteVolume]) } else { pick(&BESIDE) };
            next_gets(cluster, rpc, done_and_yet(rpc));
        }
        Kind::DoubtAttachment => {
            // Nearly all of them: whoever goes meanwhile goes while nobody knows whether it is attached.
            for rpc in [Rpc::ControllerPublishVolume, Rpc::ControllerUnpublishVolume] {
                cluster.backends["alpha"].next(rpc, done_and_yet(rpc));
            }
        }
        Kind::Slow => {
            next_gets(cluster, changing(), Answer::honest().delay(millis(200, 2000)));
        }
        Kind::Hang => next_gets(cluster, pick(&OF_THE_CONTROLLER), hang()),
        _ => bad_answer(cluster),
    }
}

/// The calls that change something.
pub const MUTATING: [Rpc; 8] = [
    Rpc::CreateVolume,
    Rpc::DeleteVolume,
    Rpc::ControllerPublishVolume,
    Rpc::ControllerUnpublishVolume,
    Rpc::NodeStageVolume,
    Rpc::NodeUnstageVolume,
    Rpc::NodePublishVolume,
    Rpc::NodeUnpublishVolume,
];

/// The same of what is done beside the users of a volume.
const BESIDE: [Rpc; 6] = [
    Rpc::CreateSnapshot,
    Rpc::DeleteSnapshot,
    Rpc::CreateVolumeGroupSnapshot,
    Rpc::DeleteVolumeGroupSnapshot,
    Rpc::ControllerExpandVolume,
    Rpc::ControllerModifyVolume,
];

fn changing() -> Rpc {
    if chance(300) { pick(&BESIDE) } else { pick(&MUTATING) }
}

fn task_dies(cluster: &Cluster) {
    let mut inner = cluster.universe.look();
    let now = inner.now;
    let Some(node) = inner.nodes.get_mut(pick(&NODES)) else { return };
    let running: Vec<_> =
        node.tasks.iter().filter(|(_, t)| t.runs() && t.argv[0] == "run").map(|(at, _)| at.clone()).collect();
    if running.is_empty() {
        return;
    }
    let at = pick(&running);
    let Some(task) = node.tasks.get_mut(&at) else { return };
    if chance(300) {
        // The shim alone: what it ran may run on.
        task.lost.send_replace(true);
        inner.note(&format!("the shim of {} is killed", at.display()));
    } else {
        task.ends_at = Some((now, Outcome::Signal(9)));
        inner.note(&format!("task {} is killed", at.display()));
    }
}

/// These have an effect that the daemon can look for: it believes no OK about them.
const LOOKED_FOR: [Rpc; 3] = [Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume, Rpc::NodeUnstageVolume];

/// Of these nothing is seen but the answer.
const OF_THE_CONTROLLER: [Rpc; 10] = [
    Rpc::CreateVolume,
    Rpc::DeleteVolume,
    Rpc::ControllerPublishVolume,
    Rpc::ControllerUnpublishVolume,
    Rpc::CreateSnapshot,
    Rpc::DeleteSnapshot,
    Rpc::CreateVolumeGroupSnapshot,
    Rpc::DeleteVolumeGroupSnapshot,
    Rpc::ControllerExpandVolume,
    Rpc::ControllerModifyVolume,
];

/// OK, and nothing is done.
fn lie() -> Answer {
    Answer::reply(&proto::NodePublishVolumeResponse {})
}

fn done_and_yet(rpc: Rpc) -> Answer {
    // A first refusal is believed: nothing was cut. Who says so of what was leaves that behind when it is deleted meanwhile.
    // So is that there is no room for a volume, which may be made elsewhere then (CO-CTRL-16).
    let code = match rpc {
        Rpc::CreateSnapshot | Rpc::CreateVolumeGroupSnapshot => pick(&GOES_ON),
        Rpc::CreateVolume => pick(&OF_NO_ROOM_NOTHING),
        _ => pick(&CODES),
    };
    if chance(500) { Answer::cut() } else { Answer::fail(code, "done, and yet") }.after_effect()
}

/// What is no refusal.
const GOES_ON: [Code; 4] = [Code::Unavailable, Code::DeadlineExceeded, Code::Aborted, Code::Cancelled];

/// What does not say that there is no room.
const OF_NO_ROOM_NOTHING: [Code; 6] = [
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::Aborted,
    Code::Internal,
    Code::Unknown,
    Code::Cancelled,
];

/// The node whose plugin got a controller call last.
fn last_host(cluster: &Cluster) -> &'static str {
    let controller = |call: &&Logged| OF_THE_CONTROLLER.contains(&call.rpc);
    let calls = cluster.backends["alpha"].calls();
    let last = calls.iter().rev().find(controller).map(|call| call.node.clone());
    NODES.into_iter().find(|node| last.as_ref() == Some(&plugins::node_id(node))).unwrap_or(NODES[0])
}

fn hang() -> Answer {
    Answer::honest().delay(CALL_DEADLINE + SLOW).late()
}

const CODES: [Code; 7] = [
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::Aborted,
    Code::Internal,
    Code::ResourceExhausted,
    Code::Unknown,
    Code::Cancelled,
];

/// That there is no room for a snapshot is believed, and a person is waited for (CO-CTRL-92): none comes here.
fn code(rpc: Rpc) -> Code {
    loop {
        let code = pick(&CODES);
        if (rpc, code) != (Rpc::CreateSnapshot, Code::ResourceExhausted) {
            return code;
        }
    }
}

fn bad_answer(cluster: &Cluster) {
    let rpc = changing();
    let answer = match below(8) {
        0 => Answer::fail(code(rpc), "no"),
        1 | 3 => done_and_yet(rpc),
        2 => Answer::cut(),
        4 => Answer::exit().after_effect(),
        5 => Answer::honest().delay(SLOW),
        6 if LOOKED_FOR.contains(&rpc) => lie(),
        _ => hang(),
    };
    next_gets(cluster, rpc, answer);
}

fn next_gets(cluster: &Cluster, rpc: Rpc, answer: Answer) {
    let plugin = pick(&PLUGINS);
    cluster.universe.note(&format!("plugin {plugin}: the next {rpc} gets {answer:?}"));
    cluster.backends[plugin].next(rpc, answer);
}
