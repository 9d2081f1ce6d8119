//! The whole cluster in one process on simulated time; `make sim` runs it, one process per seed.
//!
//! The real server, the real controllers and three real daemons, over a simulated network (turmoil), simulated clocks
//! and randomness (mad-turmoil), simulated machines (`sim/machine.rs`) and scripted plugins. One seed is one history; the
//! same seed is the same history, bit for bit.
//!
//! ```text
//! sim --seeds 500 [--from 1]          a kill at every effect of one life, then many seeds, each in a process of its own
//! sim --lives | --only-seeds ...      the first part of that, the second part
//! sim --seed 7 [--show]               one history; with every line of its record
//! sim --life                          one claim's life: its effects
//! ... --several                       that life with two servers over an etcd
//! sim --life-killed-at 9 [--show]     the same with a process killed at the ninth of them
//! sim --planted [NAME]                plants faults (feature `planted`), each of which must be found
//! ... --with NAME                     one history or life with this fault planted
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr)] // this is a program for people
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test that cannot go on fails
#![allow(missing_docs, unreachable_pub)]

#[path = "sim/checks.rs"]
mod checks;
#[path = "sim/cluster.rs"]
mod cluster;
#[path = "sim/etcd.rs"]
mod etcd;
#[path = "sim/etcd_wire.rs"]
mod etcd_wire;
#[path = "sim/faults.rs"]
mod faults;
#[path = "sim/intent.rs"]
mod intent;
#[path = "sim/machine.rs"]
mod machine;
#[path = "sim/mvcc.rs"]
mod mvcc;
#[path = "sim/network.rs"]
mod network;
#[path = "sim/people.rs"]
mod people;
#[path = "sim/planted.rs"]
mod planted;
#[path = "sim/plugins.rs"]
mod plugins;
#[path = "sim/runner.rs"]
mod runner;
#[path = "sim/scenario.rs"]
mod scenario;
#[path = "sim/sight.rs"]
mod sight;
#[path = "sim/state.rs"]
mod state;
#[path = "sim/store.rs"]
mod store;
#[path = "sim/support.rs"]
mod support;
#[path = "sim/universe.rs"]
mod universe;

use std::process::ExitCode;

use cluster::Layout;

/// The profile of a history is flat; malloc is among its largest entries.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| {
        let at = arguments.iter().position(|a| a == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    let flag = |name: &str| arguments.iter().any(|a| a == name);
    let word = |name: &str| {
        let at = arguments.iter().position(|a| a == name)?;
        arguments.get(at + 1).map(String::as_str)
    };
    if let Some(fault) = word("--with") {
        wharfline::planted::arm(fault);
    }
    if flag("--planted") {
        return planted::all(word("--planted"));
    }
    if let Some(seed) = number("--seed") {
        return runner::one(seed, flag("--show"));
    }
    if flag("--life") || number("--life-killed-at").is_some() {
        let layout = if flag(runner::SEVERAL) { Layout::Several(2) } else { Layout::Alone };
        return runner::life(number("--life-killed-at"), flag("--show"), layout);
    }
    let seeds = || runner::many(number("--from").unwrap_or(1), number("--seeds").unwrap_or(500));
    if flag("--lives") {
        return runner::every_effect();
    }
    if flag("--only-seeds") {
        return seeds();
    }
    let (effects, seeds) = (runner::every_effect(), seeds());
    if effects == ExitCode::SUCCESS { seeds } else { effects }
}
