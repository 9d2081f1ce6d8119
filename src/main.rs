//! Arguments and wiring only.
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use wharfline::cli;

/// Gives CSI volumes to machines that run no Kubernetes
#[derive(Parser)]
#[command(name = "wharfline", version, subcommand_required = true, arg_required_else_help = true)]
struct Arguments {
    #[command(flatten)]
    options: cli::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Client(cli::Command),
}

fn main() -> ExitCode {
    let Arguments { options, command } = Arguments::parse();
    match command {
        Command::Client(command) => cli::run(&options, &command),
    }
}
