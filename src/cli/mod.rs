//! The commands that speak to the API.
//!
//! kubectl's words and flags over any Kubernetes client's protocol: nothing here knows the store, a controller or
//! CSI. [`run`] is the program's side: kubeconfig, terminal, exit code. [`execute`] is the same without a process,
//! for tests.
use std::process::ExitCode;

pub mod age;
pub mod args;
mod audit;
mod commands;
pub mod failure;
pub mod jsonpath;
pub mod kinds;
mod kubeconfig;
mod log_files;
pub mod manifest;
pub mod merge;
mod output;
mod servers;
mod session;
pub mod table;
mod wire;

pub use args::{Command, Options};
use commands::edit::Which;
pub use failure::{Exit, Failure};
use session::Session;
pub use session::Terminal;

/// Runs one command as the process that was called: its kubeconfig, its terminal, its exit code.
pub fn run(options: &Options, command: &Command) -> ExitCode {
    let terminal = Terminal {
        input: &mut std::io::stdin().lock(),
        out: &mut std::io::stdout().lock(),
        err: &mut std::io::stderr().lock(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let exit = match runtime {
        Ok(runtime) => runtime.block_on(connect_and_execute(options, command, terminal)),
        Err(error) => {
            writeln!(
                terminal.err,
                "{}",
                Failure::failed("the runtime cannot start").because(error.to_string())
            )
            .ok();
            Exit::Failed
        }
    };
    ExitCode::from(exit.code())
}

async fn connect_and_execute(options: &Options, command: &Command, mut terminal: Terminal<'_>) -> Exit {
    if let Command::Version(args) = command
        && args.client
    {
        return commands::about::client_version(args, &mut terminal);
    }
    let client = match kubeconfig::Places::of(options).choose() {
        Ok(path) => kubeconfig::client(&path).await,
        Err(failure) => Err(failure),
    };
    match client {
        Ok(client) => execute(client, options, command, terminal).await,
        Err(failure) => {
            writeln!(terminal.err, "{failure}").ok();
            failure.exit
        }
    }
}

/// Runs one command with a client that is there already.
pub async fn execute(
    client: kube::Client,
    options: &Options,
    command: &Command,
    terminal: Terminal<'_>,
) -> Exit {
    let mut session = Session::new(client, terminal, options);
    if matches!(command, Command::Get(_) | Command::Describe(_) | Command::Why(_) | Command::Events(_)) {
        session.wire.take_last_known();
    }
    let outcome = match command {
        Command::Apply(args) => commands::apply::run(&mut session, args).await,
        Command::Get(args) => commands::get::run(&mut session, args).await,
        Command::Describe(args) => commands::describe::run(&mut session, args).await,
        Command::Delete(args) => commands::delete::run(&mut session, args).await,
        Command::Wait(args) => commands::wait::run(&mut session, args).await,
        Command::Events(args) => commands::events::run(&mut session, args).await,
        Command::Logs(args) => commands::logs::run(&mut session, args).await,
        Command::Why(args) => commands::why::run(&mut session, args).await,
        Command::Patch(args) => commands::edit::patch(&mut session, args).await,
        Command::Label(args) => commands::edit::pairs(&mut session, args, Which::Labels).await,
        Command::Annotate(args) => commands::edit::pairs(&mut session, args, Which::Annotations).await,
        Command::Taint(args) => commands::taint::run(&mut session, args).await,
        Command::Cordon(args) => commands::edit::cordon(&mut session, args, true).await,
        Command::Uncordon(args) => commands::edit::cordon(&mut session, args, false).await,
        Command::Drain(args) => Box::pin(commands::drain::run(&mut session, args)).await,
        Command::Snapshot(args) => Box::pin(commands::snapshot::run(&mut session, args)).await,
        Command::Volume(args) => Box::pin(commands::volume::run(&mut session, args)).await,
        Command::Token(args) => commands::token::run(&mut session, args).await,
        Command::Backup(args) => commands::backup::run(&mut session, args).await,
        Command::User(args) => commands::user::run(&mut session, args).await,
        Command::ApiResources(args) => commands::about::api_resources(&mut session, args).await,
        Command::Version(args) => commands::about::version(&mut session, args).await,
    };
    if let Err(failure) = outcome {
        session.report(&failure);
    }
    session.terminal.out.flush().ok();
    for warning in session.wire.told() {
        session.note(format_args!("warning: {warning}"));
    }
    session.worst()
}
pub mod why;
