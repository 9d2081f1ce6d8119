//! Arguments and wiring only.
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use wharfline::{cli, run};

#[global_allocator]
static ALLOCATOR: run::Allocator = run::Allocator;

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
    /// Run the API and the controllers of a cluster, over etcd or an embedded store
    Server(run::server::Args),
    /// Run the node daemon of a machine that joins a cluster
    Node(run::node::Args),
    /// Take down what `up` left: tasks, mounts, plugins; with a running `up` or without one
    Down(run::down::Args),
    /// Fill an empty store from a file of `backup`; no server may run on it
    Restore(run::moving::RestoreArgs),
    /// Move an embedded store to etcd; no server may run on either
    Migrate(run::moving::MigrateArgs),
    /// Serve one of the built-in CSI drivers, or stand before any one and misbehave
    Csi(run::csi::Args),
    /// Examine CSI drivers
    Plugin(run::plugin::Args),
}

fn main() -> ExitCode {
    // Before anything else is touched: a shim stays small.
    if let Some(ended) = wharfline::sys::shim::entered(&std::env::args_os().collect::<Vec<_>>()) {
        return ended;
    }
    let Arguments { options, command } = Arguments::parse();
    match command {
        Command::Client(command) => cli::run(&options, &command),
        Command::Up(args) => run::report(run::up::main(&args, &options.data_dir)),
        Command::Server(args) => run::report(run::server::main(&args, &options.data_dir)),
        Command::Node(args) => run::report(run::node::main(&args, &options.data_dir)),
        Command::Down(args) => run::report(run::down::main(&args, &options.data_dir)),
        Command::Restore(args) => run::report(run::moving::restore(&args, &options.data_dir)),
        Command::Migrate(args) => run::report(run::moving::migrate(&args, &options.data_dir)),
        Command::Csi(args) => run::report(run::csi::main(args)),
        Command::Plugin(args) => run::plugin::main(&args),
    }
}
