//! `wharfline node`: the node daemon of a machine that joined a cluster.
#![allow(clippy::print_stdout)] // the line that says that it is ready
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::asks::Asks;
use super::enroll::{Membership, host_and_port};
use super::patience::patient;
use super::servers::Servers;
use super::up::{host_name, named, prepare, stop_on_signal};
use super::vacancy::look;
use super::{allows, figures, join, machine};
use crate::api::token::JoinToken;
use crate::node::{self, Blocks, Looked, Prepared};
use crate::sys::process::Adopted;

/// Where in the data directory a node keeps who it is.
pub(super) const IDENTITY: &str = "identity";
/// Between two tries to renew the certificate.
const AGAIN: Duration = Duration::from_secs(600);
/// Between two looks at the clock, which a machine that slept has moved.
const LOOK: Duration = Duration::from_secs(3600);

/// Arguments of `wharfline node`; the data directory is a flag of every command.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The servers of the cluster, as https://HOST:PORT; needed at the first start
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub server: Vec<String>,
    /// A join token of `wharfline token create`; needed at the first start
    #[arg(long, env = "WHARFLINE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub token: Option<String>,
    /// This node's name at its first start; the host name in lower case when not given
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// What the node allows
    #[command(flatten)]
    pub allows: allows::Args,
    /// What it tells of itself in figures
    #[command(flatten)]
    pub figures: figures::Args,
}

/// Runs until SIGTERM or SIGINT. Workloads and mounts stay as they are.
///
/// # Errors
/// One line that says what was in the way: a token that is not known, a server that cannot be reached, a data directory in
/// use, a missing capability to mount.
pub fn main(args: &Args, data_dir: &Path) -> anyhow::Result<()> {
    super::log();
    crate::effect::arm()?;
    for server in &args.server {
        host_and_port(server)?;
    }
    let token = args.token.as_deref().map(str::parse::<JoinToken>).transpose().context("--token")?;
    let given = args.name.as_deref().map(|name| named(name, "--name")).transpose()?;
    let data_dir = prepare(data_dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let signals = tokio::spawn(stop_on_signal(stop.clone())?);
        let result = run(args, &data_dir, (token, given), stop).await;
        signals.abort();
        result
    })
}

async fn run(
    args: &Args,
    data_dir: &Path,
    (token, given): (Option<JoinToken>, Option<String>),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let directory = data_dir.join(IDENTITY);
    if data_dir.join("store.redb").exists() {
        return Err(anyhow!(
            "{} is a server's, or of `wharfline up`; give another --data-dir",
            data_dir.display()
        ));
    }
    // The machine first: what runs here belongs to a name, and a token is for a machine that can be a node.
    let allows = args.allows.allows(data_dir)?;
    let told = args.figures.listen().await?;
    let blocks = Blocks::default();
    let options = join::options_of(data_dir, &allows, (&args.figures, &told), &blocks);
    let machine = machine::machine(data_dir, &allows.containerd)?;
    let kernel = Arc::clone(&machine.kernel);
    let looked = look(machine, options).await?;
    let asks = Asks::listen(data_dir, blocks)?;
    let known = Membership::load(&directory)?;
    let had = known.as_ref().map(|known| known.name().to_owned());
    let had = had.or_else(|| looked.journal().store().map(|store| store.node));
    if let (Some(had), Some(given)) = (&had, &given)
        && had != given
    {
        return Err(anyhow!("--name {given}: this data directory is node \"{had}\"; leave the flag out"));
    }
    let name = match had.or(given) {
        Some(name) => name,
        None => named(&host_name(), "--name")?,
    };
    let mut membership = match enter(args, (known, token), (&directory, &name)).await {
        Ok(membership) => membership,
        Err(error) => {
            // A machine that did not get in is left as it was.
            let unused = looked.journal().attachments().is_empty() && looked.journal().tasks().is_empty();
            drop(looked);
            if unused {
                kernel.undo_tree().await?;
            }
            return Err(error);
        }
    };
    let servers = Arc::new(Servers::default());
    servers.set(membership.clients().await?);
    let client = patient(servers.client());
    let looked = looked.named(&name);
    let (tell, ready) = oneshot::channel();
    let daemon = Prepared::new(looked, client, stop.clone()).await?.run(tell);
    tokio::pin!(daemon);
    let announce = async {
        if ready.await.is_ok() {
            println!("ready {name}");
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = &mut daemon => Ok(result?),
        () = announce => Ok(()),
        () = told.serve() => Ok(()),
        () = asks.serve() => Ok(()),
        error = stay(&mut membership, &servers) => {
            stop.cancel();
            daemon.await?;
            Err(error)
        }
    }
}

/// This machine's place in the cluster: the one that it has, or a new one by a token.
async fn enter(
    args: &Args,
    (known, token): (Option<Membership>, Option<JoinToken>),
    (directory, name): (&Path, &str),
) -> anyhow::Result<Membership> {
    let fresh = "give --server https://HOST:PORT and a --token of `wharfline token create`";
    if let Some(mut known) = known {
        known.ask_at(&args.server);
        let ended = known.renewal(Timestamp::now())?.is_none();
        let member = if ended { Ok(false) } else { known.is_member().await };
        match (member, &token) {
            (Ok(true), _) => return Ok(known),
            // What is up goes on without a server.
            (Err(error), _) => {
                tracing::warn!("no server has answered yet: {error:#}");
                return Ok(known);
            }
            (Ok(false), Some(_)) => {}
            (Ok(false), None) => {
                let why = if ended {
                    "its certificate has ended"
                } else {
                    "it was removed, or its name given away"
                };
                return Err(anyhow!("this machine is no member of its cluster any more ({why}); {fresh}"));
            }
        }
    }
    match token {
        Some(token) if !args.server.is_empty() => {
            Membership::join(directory, &args.server, &token, name).await.context("not joined")
        }
        _ => Err(anyhow!("this machine has not joined yet; {fresh}")),
    }
}

/// What `wharfline down` found on the data directory of a node.
pub(super) enum Left {
    /// It undid what the daemon made of the machine.
    Undone,
    /// Something is up, and no cluster takes it down: the machine is no member any more.
    ToItself,
}

/// `wharfline down` on the data directory of a node: what is up there is taken down by the cluster, so nothing may be; what
/// the daemon itself made of the machine goes.
pub(super) async fn leave(member: &mut Membership, data_dir: &Path) -> anyhow::Result<Left> {
    let name = member.name().to_owned();
    let way = format!(
        "`wharfline drain {name}` and `wharfline delete node {name}`: let them end, stop the daemon, and run this again"
    );
    let allows = allows::Args::default().allows(data_dir)?;
    let machine = machine::machine(data_dir, &allows.containerd)?;
    let (kernel, processes) = (Arc::clone(&machine.kernel), Arc::clone(&machine.processes));
    let containerd = machine.containerd.clone();
    let options = join::options(&name, data_dir.to_owned(), machine::run_dir(data_dir));
    let looked = match Looked::at(machine, options).await {
        Err(node::Error::InUse(_)) => {
            return Err(anyhow!("the daemon of node \"{name}\" runs here: take it out, {way}"));
        }
        looked => looked?,
    };
    let volumes = looked.journal().attachments().len();
    // What runs counts, not what is on record: a daemon that was stopped at once had no time to cross it out.
    let mut tasks = 0;
    for directory in processes.list(&data_dir.join("tasks")).await? {
        match processes.adopt(&directory).await? {
            Adopted::Running(_) | Adopted::Lost(_) => tasks += 1,
            Adopted::Exited(_) | Adopted::NeverStarted => {}
        }
    }
    drop(looked);
    if volumes + tasks > 0 {
        let up = format!("up on node \"{name}\": volumes {volumes}, tasks {tasks}");
        let unasked = match member.is_member().await {
            Ok(false) => {
                println!(
                    "{up}; this machine is no member of its cluster any more, and takes down what it knows itself"
                );
                Membership::forget(&data_dir.join(IDENTITY))?;
                return Ok(Left::ToItself);
            }
            Ok(true) => {
                return Err(anyhow!(
                    "{up}; start the daemon again and take the node out, {way}. A Node that is deleted while its daemon is not heard is \
                     taken for a machine that is off, and others get its volumes"
                ));
            }
            Err(error) => format!("{error:#}"),
        };
        return Err(anyhow!(
            "{up}; start the daemon again and take the node out, {way}. No server says whether it still is a member ({unasked}): of one that is none take the directory {} away; \
             then this goes by what the machine knows itself",
            data_dir.join(IDENTITY).display()
        ));
    }
    machine::leave(&*kernel, containerd, data_dir).await?;
    Membership::forget(&data_dir.join(IDENTITY))?;
    println!("down");
    Ok(Left::Undone)
}

/// Renews the certificate for as long as there is one. Returns why it cannot.
async fn stay(membership: &mut Membership, servers: &Servers) -> anyhow::Error {
    loop {
        let wait = match membership.renewal(Timestamp::now()) {
            Ok(Some(wait)) => wait,
            Ok(None) => return anyhow!("this node's certificate has ended; give --server and a new --token"),
            Err(error) => return error,
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait.min(LOOK)).await;
            continue;
        }
        let renewed = async {
            membership.renew().await?;
            servers.set(membership.clients().await?);
            Ok::<_, anyhow::Error>(())
        };
        if let Err(error) = renewed.await {
            tracing::warn!("the certificate was not renewed: {error:#}");
            tokio::time::sleep(AGAIN).await;
        }
    }
}
