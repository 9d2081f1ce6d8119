//! Arguments and wiring only.
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use wharfline::{cli, run};

/// Objects are made of many small pieces of JSON that one thread makes and another drops: with the system's allocator a
/// burst of volumes took 1.4 times as long.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    /// Run everything in this process, on an embedded store: the way to begin
    Up(run::up::Args),
    /// Take down what `up` left: tasks, mounts, plugins; with a running `up` or without one
    Down(run::down::Args),
    /// Serve one of the built-in CSI drivers
    Csi(run::csi::Args),
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() == Some(OsStr::new("shim")) {
        // Before anything else is touched: a shim stays small.
        return match (arguments.next(), arguments.next()) {
            (Some(directory), None) => wharfline::sys::shim::run(Path::new(&directory)),
            _ => ExitCode::from(2),
        };
    }
    let Arguments { options, command } = Arguments::parse();
    match command {
        Command::Client(command) => cli::run(&options, &command),
        Command::Up(args) => run::report(run::up::main(&args, &options.data_dir)),
        Command::Down(args) => run::report(run::down::main(&args, &options.data_dir)),
        Command::Csi(args) => run::report(run::csi::main(args)),
    }
}
