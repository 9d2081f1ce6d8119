//! What goes wrong, when, and how it is mended.
use std::time::Duration;

use wharfline::csi::{Code, Rpc, proto};
use wharfline::sys::process::Outcome;

use crate::cluster::{CALL_DEADLINE, CONTROLLERS, Cluster, NODES, RIVAL};
use crate::network::{Link, PLUGINS, SERVER};
use crate::plugins::{self, SLOW};
use crate::support::scripted::Answer;
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
}

const KINDS: [Kind; 14] = [
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
];

enum Mend {
    Repair(String),
    Link(String, fn(&mut Link)),
    Rival,
}

/// What is still to go wrong and to be mended.
pub struct Faults {
    kinds: Vec<Kind>,
    planned: Vec<Duration>,
    mending: Vec<(Duration, Mend)>,
}

fn millis(from: u64, more: u64) -> Duration {
    Duration::from_millis(from + below(more))
}

fn client_host() -> &'static str {
    pick(&[NODES[0], NODES[1], NODES[2], CONTROLLERS, RIVAL])
}

fn process_host() -> &'static str {
    pick(&[NODES[0], NODES[1], NODES[2], CONTROLLERS, SERVER])
}

impl Faults {
    /// Kinds for this run, drawn anew.
    pub fn new() -> Self {
        let mut kinds: Vec<_> = KINDS.into_iter().filter(|_| chance(450)).collect();
        if kinds.is_empty() {
            kinds.push(pick(&KINDS));
        }
        Self { kinds, planned: Vec::new(), mending: Vec::new() }
    }

    pub fn describe(&self) -> String {
        format!("{:?}", self.kinds)
    }

    /// So many faults between two times.
    pub fn plan(&mut self, count: u64, from: Duration, until: Duration) {
        let span = u64::try_from(until.saturating_sub(from).as_millis()).unwrap();
        self.planned.extend((0..count).map(|_| from + Duration::from_millis(below(span))));
        self.planned.sort();
        self.planned.reverse();
    }

    /// Does what is due.
    pub fn step(&mut self, cluster: &mut Cluster) {
        let now = cluster.now();
        while self.planned.last().is_some_and(|at| *at <= now) {
            self.planned.pop();
            let kind = pick(&self.kinds);
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
        cluster.restart_all();
        for backend in cluster.backends.values() {
            for rpc in MUTATING {
                backend.honest(rpc);
            }
        }
    }

    fn mend(cluster: &mut Cluster, mend: Mend) {
        match mend {
            Mend::Repair(host) => {
                cluster.universe.note(&format!("{host} reaches the server again"));
                cluster.sim.repair(host, SERVER);
            }
            Mend::Link(host, change) => {
                if let Some(link) = cluster.universe.look().links.get_mut(&host) {
                    change(link);
                }
            }
            Mend::Rival => cluster.rival(false),
        }
    }

    fn link(&mut self, cluster: &Cluster, what: &str, worse: impl FnOnce(&mut Link), better: fn(&mut Link)) {
        let (host, away) = (client_host().to_owned(), millis(200, 6000));
        cluster.universe.note(&format!("{host}: {what} for {away:?}"));
        if let Some(link) = cluster.universe.look().links.get_mut(&host) {
            worse(link);
        }
        self.mending.push((cluster.now() + away, Mend::Link(host, better)));
    }

    fn inject(&mut self, cluster: &mut Cluster, kind: Kind) {
        match kind {
            Kind::Crash => cluster.crash(process_host(), millis(100, 4000)),
            Kind::CrashAtEffect => {
                let crash = CrashAt { host: Some(process_host().to_owned()), left: 1 + below(40) };
                cluster.universe.look().crash_at = Some(crash);
            }
            Kind::Reboot => cluster.reboot(pick(&NODES), millis(500, 15_000)),
            Kind::PluginDies => plugins::kill(&cluster.universe, pick(&NODES), pick(&PLUGINS)),
            Kind::TaskDies => task_dies(cluster),
            Kind::Partition => {
                let (host, away) = (client_host(), millis(300, 15_000));
                cluster.universe.note(&format!("{host} does not reach the server for {away:?}"));
                cluster.sim.partition(host, SERVER);
                self.mending.push((cluster.now() + away, Mend::Repair(host.to_owned())));
            }
            Kind::OneWay => {
                let (host, away) = (client_host(), millis(300, 8000));
                let (from, to) = if chance(500) { (host, SERVER) } else { (SERVER, host) };
                cluster.universe.note(&format!("nothing gets from {from} to {to} for {away:?}"));
                cluster.sim.partition_oneway(from, to);
                self.mending.push((cluster.now() + away, Mend::Repair(host.to_owned())));
            }
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
            Kind::Gone => self.link(
                cluster,
                "watches break and have to list anew",
                |l| {
                    l.gone += 1 + below(8);
                    l.cut.send_modify(|n| *n += 1);
                },
                |l| l.gone = 0,
            ),
            Kind::Answers => bad_answer(cluster),
            Kind::Rival => {
                cluster.rival(true);
                self.mending.push((cluster.now() + millis(500, 12_000), Mend::Rival));
            }
        }
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

fn bad_answer(cluster: &Cluster) {
    let (plugin, rpc) = (pick(&PLUGINS), pick(&MUTATING));
    let codes = [
        Code::Unavailable,
        Code::DeadlineExceeded,
        Code::Aborted,
        Code::Internal,
        Code::ResourceExhausted,
        Code::Unknown,
        Code::Cancelled,
    ];
    // These three have an effect that the daemon can look for: it believes no OK about them.
    let seen = [Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume, Rpc::NodeUnstageVolume];
    let answer = match below(8) {
        0 => Answer::fail(pick(&codes), "no"),
        1 => Answer::fail(pick(&codes), "done, and yet").after_effect(),
        2 => Answer::cut(),
        3 => Answer::cut().after_effect(),
        4 => Answer::exit().after_effect(),
        5 => Answer::honest().delay(SLOW),
        // OK, and nothing is done.
        6 if seen.contains(&rpc) => Answer::reply(&proto::NodePublishVolumeResponse {}),
        _ => Answer::honest().delay(CALL_DEADLINE + SLOW).late(),
    };
    cluster.universe.note(&format!("plugin {plugin}: the next {rpc} gets {answer:?}"));
    cluster.backends[plugin].next(rpc, answer);
}
