//! The commands that run something: wiring.
#![allow(clippy::print_stderr)] // these are commands too
use std::io::IsTerminal as _;
use std::process::ExitCode;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

pub mod allows;
mod asks;
mod audit;
mod borrowed;
pub mod cluster;
pub mod csi;
pub mod down;
mod enroll;
pub mod figures;
mod given;
pub mod join;
pub mod machine;
pub mod moving;
pub mod node;
pub mod patience;
pub mod plugin;
pub mod server;
pub mod servers;
pub mod up;
mod vacancy;

/// The allocator of the program, and the word by which it is started as a shim.
pub use crate::sys::{Allocator, SHIM};

/// The exit code of a command, with its failure on one line of standard error.
pub fn report(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Sends log lines to standard error; `WHARFLINE_LOG` chooses them, as in `debug` or `wharfline=debug,kube=info`.
pub fn log() {
    let asked = std::env::var("WHARFLINE_LOG").ok().and_then(|text| text.parse().ok());
    // What a client says of a request that failed, whoever made the request says better.
    let usual = [
        ("kube", LevelFilter::WARN),
        ("kube_client", LevelFilter::OFF),
        ("tower", LevelFilter::WARN),
        ("hyper", LevelFilter::WARN),
    ];
    // By target and level alone: choosing by fields and spans, which nobody does here, needs regular expressions.
    let filter: Targets =
        asked.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO).with_targets(usual));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    // A second call, as in a test, changes nothing.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
}
