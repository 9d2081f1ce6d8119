//! The commands that run something: wiring.
#![allow(clippy::print_stderr)] // these are commands too
use std::io::IsTerminal as _;
use std::process::ExitCode;

pub mod cluster;
pub mod csi;
pub mod down;
pub mod join;
pub mod machine;
pub mod patience;
pub mod up;

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
    let filter = tracing_subscriber::EnvFilter::try_from_env("WHARFLINE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,kube=warn,tower=warn,hyper=warn"));
    // A second call, as in a test, changes nothing.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
}
