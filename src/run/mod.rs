//! The commands that run something: wiring.
#![allow(clippy::print_stderr)] // these are commands too
use std::process::ExitCode;

pub mod csi;
pub mod join;
pub mod machine;

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
