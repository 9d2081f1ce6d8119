//! One seed in this process, or many, each in a process of its own.
use std::collections::VecDeque;
use std::process::{Child, Command, ExitCode, Stdio};

use rand::SeedableRng;
use rand::rngs::StdRng;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cluster::{Cluster, Layout};
use crate::scenario::Run;
use crate::universe::Inner;

/// How long one history may take. Most take a second.
pub const DEADLINE: &str = "120";

fn prepare(seed: u64, layout: Layout) -> (mad_turmoil::time::SimClocksGuard, Cluster) {
    if let Ok(asked) = std::env::var("SIM_LOG") {
        let filter: Targets = asked.parse().expect("SIM_LOG is levels by target");
        let lines = tracing_subscriber::fmt::layer().without_time();
        tracing_subscriber::registry().with(filter).with(lines).init();
    }
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    let clocks = mad_turmoil::time::SimClocksGuard::init();
    (clocks, Cluster::new(seed, layout))
}

/// One history. Its record's hash tells whether a repetition was the same.
pub fn one(seed: u64, show: bool) -> ExitCode {
    let (_clocks, cluster) = prepare(seed, Layout::of(seed));
    cluster.universe.look().record.shown = show;
    let mut run = Run::new(cluster, seed);
    // One in ten has no faults: there the bounds are tight. One in eight also waits to see that nothing is written.
    let (calm, quiet) = (seed.is_multiple_of(10), seed.is_multiple_of(8));
    let result = run.seventy(calm, quiet);
    let kinds = if calm { "none".to_owned() } else { run.kinds() };
    let inner = run.cluster.universe.look();
    let (hash, lines) = (inner.record.hash(), inner.record.lines);
    match result {
        Ok(report) => {
            println!(
                "seed {seed} ok hash {hash} lines {lines} writes {} simulated {:?} up after {:?} away after {:?}",
                inner.writes, report.simulated, report.up_after, report.away_after
            );
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("seed {seed} FAILED hash {hash}");
            tell(&inner, show);
            println!("faults: {kinds}\nseed {seed}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// What helps to understand a failure.
fn tell(inner: &Inner, show: bool) {
    if show {
        inner.objects.iter().for_each(|(key, object)| println!("object {key} {object}"));
    } else {
        println!("last lines of the record:\n{}", inner.record.tail());
    }
}

/// The seed of the one life that is lived again and again.
const LIFE: u64 = 1;

/// One claim's life, with a process killed at one of its effects; prints the effects when none is.
pub fn life(crash: Option<u64>, show: bool, layout: Layout) -> ExitCode {
    let (_clocks, cluster) = prepare(LIFE, layout);
    cluster.universe.look().record.shown = show;
    let mut run = Run::new(cluster, LIFE);
    let result = run.life(crash);
    let inner = run.cluster.universe.look();
    match result {
        Ok(effects) if crash.is_none() => {
            for effect in effects {
                println!("{effect}");
            }
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(why) => {
            tell(&inner, show);
            println!("killed at effect {crash:?}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// A process is killed at every effect of one claim's life, each in a life of its own.
pub fn every_effect() -> ExitCode {
    let mut jobs = Vec::new();
    for way in [None, Some(SEVERAL)] {
        let Some(effects) = effects(way) else { return ExitCode::FAILURE };
        let name = way.unwrap_or("one server");
        let kill = |(n, effect): (u64, String)| (format!("{n} ({name}: {effect})"), killed_at(n, way));
        jobs.extend((1..).zip(effects).map(kill));
    }
    children("kills, one at each effect of a life", jobs)
}

/// Chooses the life with several servers.
pub const SEVERAL: &str = "--several";

/// The arguments of a life with a kill.
pub fn killed_at(n: u64, way: Option<&str>) -> Vec<String> {
    ["--life-killed-at", &n.to_string()].into_iter().chain(way).map(str::to_owned).collect()
}

/// The effects of the life.
pub fn effects(way: Option<&str>) -> Option<Vec<String>> {
    let program = std::env::current_exe().expect("this program");
    let listed = Command::new(program).arg("--life").args(way).output().expect("this program can be started");
    let effects: Vec<String> = String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect();
    if listed.status.success() && !effects.is_empty() {
        return Some(effects);
    }
    println!("the life without a kill failed:\n{}", effects.join("\n"));
    None
}

/// One seed of so many is run twice, and must come out the same.
const TWICE: u64 = 50;

/// Many seeds.
pub fn many(from: u64, count: u64) -> ExitCode {
    let job = |seed: u64| (seed.to_string(), vec!["--seed".to_owned(), seed.to_string()]);
    let seeds = children("seeds", (from..from + count).map(job).collect());
    let repeated: Vec<u64> = (from..from + count).filter(|seed| seed % TWICE == 2).collect();
    let different = repeated.iter().filter(|seed| !same(**seed)).count();
    println!("{} seeds run twice more; different: {different}", repeated.len());
    if different == 0 { seeds } else { ExitCode::FAILURE }
}

/// Whether two runs of a seed are the same.
fn same(seed: u64) -> bool {
    let program = std::env::current_exe().expect("this program");
    let run = || {
        let seed = seed.to_string();
        let mut child = Command::new("timeout");
        child.args([DEADLINE]).arg(&program).args(["--seed", &seed]).stdout(Stdio::piped());
        child.spawn().expect("timeout is part of every Linux")
    };
    let told =
        [run(), run()].map(|child| child.wait_with_output().expect("a child can be waited for").stdout);
    let [one, other] = told.map(|stdout| String::from_utf8_lossy(&stdout).into_owned());
    if one != other {
        println!("seed {seed} is not the same twice:\n{one}{other}");
    }
    one == other
}

/// Seconds since the boot. The clocks of this program stand still: they are the simulation's.
pub fn uptime() -> f64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split(' ').next().and_then(|seconds| seconds.parse().ok()).unwrap_or(0.0)
}

/// Runs this program with each of these arguments, as many at a time as there are cores.
fn children(what: &str, jobs: Vec<(String, Vec<String>)>) -> ExitCode {
    let program = std::env::current_exe().expect("this program");
    let (start, count) = (uptime(), jobs.len());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut waiting: VecDeque<_> = jobs.into();
    let mut running: VecDeque<(String, Child)> = VecDeque::new();
    let mut failed = Vec::new();
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < cores
            && let Some((name, arguments)) = waiting.pop_front()
        {
            // A history that never ends is a fault like another.
            let mut child = Command::new("timeout");
            child.arg(DEADLINE).arg(&program).args(&arguments).stdout(Stdio::piped());
            running.push_back((name, child.spawn().expect("timeout is part of every Linux")));
        }
        let Some((name, child)) = running.pop_front() else { break };
        let output = child.wait_with_output().expect("a child can be waited for");
        if !output.status.success() {
            println!("{name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stdout));
            failed.push(name);
        }
    }
    let seconds = uptime() - start;
    println!("{count} {what} in {seconds:.1} s on {cores} cores; failed: {}", failed.len());
    for name in &failed {
        println!("  failed: {name}");
    }
    if failed.is_empty() && count > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
