//! One seed in this process, or many, each in a process of its own.
use std::collections::VecDeque;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::cluster::Cluster;
use crate::scenario::Run;

/// One history. Its record's hash tells whether a repetition was the same.
pub fn one(seed: u64, show: bool) -> ExitCode {
    if std::env::var_os("SIM_LOG").is_some() {
        tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_env("SIM_LOG")).without_time().init();
    }
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    let _clocks = mad_turmoil::time::SimClocksGuard::init();
    let cluster = Cluster::new(seed);
    cluster.universe.look().record.shown = show;
    let mut run = Run::new(cluster);
    // One in ten has no faults: there the bounds are tight. One in eight also waits to see that nothing is written.
    let (calm, quiet) = (seed % 10 == 0, seed % 8 == 0);
    let result = run.sixty(calm, quiet);
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
            if !show {
                println!("last lines of the record:\n{}", inner.record.tail());
            }
            if show {
                inner.objects.iter().for_each(|(key, object)| println!("object {key} {object}"));
            }
            drop(inner);
            println!("faults: {}\nseed {seed}: {why}", if calm { "none".to_owned() } else { run.kinds() });
            ExitCode::FAILURE
        }
    }
}

/// Many seeds, as many at a time as there are cores.
pub fn many(from: u64, count: u64) -> ExitCode {
    let program = std::env::current_exe().expect("this program");
    let start = Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut waiting: VecDeque<u64> = (from..from + count).collect();
    let mut running: VecDeque<(u64, Child)> = VecDeque::new();
    let mut failed = Vec::new();
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < cores
            && let Some(seed) = waiting.pop_front()
        {
            let child = Command::new(&program)
                .args(["--seed", &seed.to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program can be started");
            running.push_back((seed, child));
        }
        let Some((seed, child)) = running.pop_front() else { break };
        let output = child.wait_with_output().expect("a child can be waited for");
        if !output.status.success() {
            println!("{}", String::from_utf8_lossy(&output.stdout));
            failed.push(seed);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{count} seeds in {seconds:.1} s on {cores} cores; failed: {failed:?}");
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("see one again: make sim SEED={}", failed[0]);
    ExitCode::FAILURE
}
