//! `make bench`: the floors of this machine, what Wharfline makes of them, and the ratios.
//!
//! A figure means nothing beside the disk and the processor that it was taken on, so each run measures its floors
//! first and again at the end, and every figure is told as a ratio to them. A run on a machine that does other work
//! says that it does not count. Nothing of a run stays but `target/bench/<commit>.json`.
//!
//! | part | what it measures |
//! |---|---|
//! | [`floors`] | fdatasync, etcd put, bind mount, unix gRPC, watch hop, process start |
//! | [`claim`] | B1: overhead of one claim |
//! | [`burst`] | B4: 100 volumes on one node, against the raw driver loop of [`raw`] |
//! | [`bound`] | B3: whole lives at the pace of a slow driver; B16: nine plugins beside one that hangs |
//! | [`scale`] | B10: what a life writes; B12: what a publication costs among 10,000 mounts |
//! | [`restart`] | B5: SIGKILL and restart with 1,000 published volumes |
//! | [`cold`] | B17: empty directory to the first published volume |
//! | [`sustained`] | B2: 10,000 claims on 100 simulated nodes ([`fleet`]), in writes per second against etcd's own |
//! | [`crowd`] | B7, B14: memory and times to answer with 10,000 volumes and claims and 1,000 simulated nodes |
//! | [`fanout`] | B8: one change told to 1,000 watchers, against one buffer to 1,000 streams |
//! | [`leader`] | B9: the leader of three etcds killed, against a client of etcd beside it |
//! | [`failover`] | B13: from the fence of a machine to its volumes on another one, and what that writes |
//! | [`life`] | plugins: from a socket to a claim, from a death to the status, 50 of them at a restart, calls when idle |
//! | [`idle`] | resident memory and idle processor time of the whole, the two halves and the shims; and with claims that wait |
//! | [`binary`] | B20: size and crates |
//!
//! Arguments choose parts by name; without any all are run. The same program also serves as the `bind` plugin and as
//! either half of Wharfline, in processes of their own.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss)] // a failed measurement is a panic
use std::process::ExitCode;

#[path = "bench/binary.rs"]
mod binary;
#[path = "bench/bound.rs"]
mod bound;
#[path = "bench/burst.rs"]
mod burst;
#[path = "bench/claim.rs"]
mod claim;
#[path = "bench/cold.rs"]
mod cold;
#[path = "bench/crowd.rs"]
mod crowd;
#[path = "bench/etcd.rs"]
mod etcd;
#[path = "bench/failover.rs"]
mod failover;
#[path = "bench/fanout.rs"]
mod fanout;
#[path = "bench/fleet.rs"]
mod fleet;
#[path = "bench/floors.rs"]
mod floors;
#[path = "bench/halves.rs"]
mod halves;
#[path = "bench/idle.rs"]
mod idle;
#[path = "bench/leader.rs"]
mod leader;
#[path = "bench/life.rs"]
mod life;
#[path = "bench/plugin.rs"]
mod plugin;
#[path = "bench/raw.rs"]
mod raw;
#[path = "bench/report.rs"]
mod report;
#[path = "bench/restart.rs"]
mod restart;
#[path = "bench/scale.rs"]
mod scale;
#[path = "bench/served.rs"]
mod served;
#[path = "bench/stack.rs"]
mod stack;
#[path = "bench/sustained.rs"]
mod sustained;
#[path = "bench/wire.rs"]
mod wire;

use floors::Floors;
use report::Report;

// As the program that is measured has it.
#[global_allocator]
static ALLOCATOR: wharfline::sys::Allocator = wharfline::sys::Allocator;

/// How often a workload is measured; median and best are told.
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["as-plugin", socket, volumes, manner] => plugin::serve(socket, volumes, manner, None),
        ["as-plugin", socket, volumes, manner, node] => plugin::serve(socket, volumes, manner, Some(node)),
        ["as-server", data] => halves::server(data),
        ["as-node", data] => halves::node(data),
        parts => return measure(parts),
    }
    ExitCode::SUCCESS
}

/// Returns on SIGINT or SIGTERM.
async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

fn measure(parts: &[&str]) -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        println!("NOT ROOT: volumes are mounted here, so this needs root: sudo -E make bench");
        return ExitCode::FAILURE;
    }
    let wanted = |part: &str| parts.is_empty() || parts.contains(&part);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut report = Report::default();
    let all = async {
        let before = Floors::measure().await;
        println!("{before}");
        if wanted("B20") {
            binary::measure(&mut report);
        }
        if wanted("B17") {
            cold::measure(&mut report).await;
        }
        if wanted("B1") {
            claim::measure(&mut report, &before).await;
        }
        if wanted("B4") {
            burst::measure(&mut report).await;
        }
        if wanted("B3") {
            bound::paced(&mut report).await;
        }
        if wanted("B10") {
            scale::written(&mut report).await;
        }
        if wanted("B12") {
            scale::among_mounts(&mut report).await;
        }
        if wanted("B16") {
            bound::beside_a_hung_one(&mut report).await;
        }
        if wanted("B5") {
            restart::measure(&mut report).await;
        }
        if wanted("plugins") {
            life::measure(&mut report).await;
        }
        if wanted("idle") {
            idle::measure(&mut report).await;
        }
        if wanted("waiting") {
            idle::waiting(&mut report).await;
        }
        cluster(&mut report, &wanted).await;
        let after = Floors::measure().await;
        report.finish(&before, &after);
    };
    runtime.block_on(async {
        tokio::select! {
            () = all => ExitCode::SUCCESS,
            // What was started is dropped, and takes everything of it along.
            () = told_to_end() => ExitCode::FAILURE,
        }
    })
}

/// The parts that are about many nodes and several processes.
async fn cluster(report: &mut Report, wanted: &impl Fn(&str) -> bool) {
    if wanted("B8") {
        fanout::measure(report).await;
    }
    if wanted("B13") {
        failover::measure(report).await;
    }
    if etcd::program().is_none() {
        println!("NOT MEASURED without etcd on the path: B2, B7, B9, B14");
        return;
    }
    if wanted("B7") || wanted("B14") {
        crowd::measure(report, (wanted("B7"), wanted("B14"))).await;
    }
    if wanted("B2") {
        sustained::measure(report).await;
    }
    if wanted("B9") {
        leader::measure(report).await;
    }
}
