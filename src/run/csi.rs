//! `wharfline csi`: the built-in CSI drivers as processes of their own.
use std::ffi::OsString;
use std::future::Future;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::cli::manifest;
use crate::drivers::{btrfs, chaos, dir, loopback};
use crate::sys::Random as _;
use crate::sys::random::RealRandom;

/// Threads for calls that touch the disk; more calls than that wait.
const BLOCKING_THREADS: usize = 16;
/// How long a call that hangs in the kernel may hold up the end of the process.
const LAST_CALLS: std::time::Duration = std::time::Duration::from_secs(1);

/// Arguments of `wharfline csi`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Which driver to serve.
    #[command(subcommand)]
    pub driver: Driver,
}

/// The built-in drivers.
#[derive(Clone, Debug, Subcommand)]
pub enum Driver {
    /// Serve dir.csi.wharfline.dev: a volume is a directory of this node, published by a bind mount
    Dir(CommonArgs),
    /// Serve loop.csi.wharfline.dev: a volume is a sparse file, attached to a node as a loop device; ext4, xfs, btrfs
    /// or raw
    Loop(LoopArgs),
    /// Serve btrfs.csi.wharfline.dev: a volume is a subvolume of this node's btrfs, with an enforced size
    Btrfs(CommonArgs),
    /// Stand before any driver, and do to calls what a script says: delays, codes, lost answers, crashes, lies
    Chaos(ChaosArgs),
}

/// Arguments of each driver; all there are of `wharfline csi dir` and `wharfline csi btrfs`.
#[derive(Clone, Debug, clap::Args)]
pub struct CommonArgs {
    /// Socket to serve on, unix:///path/to.sock; its directory must exist
    #[arg(long, env = "CSI_ENDPOINT", value_name = "URL")]
    pub endpoint: String,
    /// Id of this node
    #[arg(long, env = "NODE_NAME", value_name = "ID")]
    pub node_id: String,
    /// Directory for the volumes; made when missing
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Services to serve beside Identity
    #[arg(long, value_enum, default_value_t = dir::Mode::All)]
    pub mode: dir::Mode,
}

/// Arguments of `wharfline csi loop`. All instances on one data directory serve one backend.
#[derive(Clone, Debug, clap::Args)]
pub struct LoopArgs {
    /// What each driver takes.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Volumes that may be attached to this node at a time
    #[arg(long, value_name = "N", default_value_t = loopback::DEFAULT_LIMIT,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub max_volumes_per_node: u16,
    /// Name of this backend where the nodes of one plugin are on several machines: volumes are for its nodes alone
    #[arg(long, value_name = "NAME")]
    pub topology: Option<String>,
}

/// Arguments of `wharfline csi chaos`.
#[derive(Clone, Debug, clap::Args)]
pub struct ChaosArgs {
    /// Socket to serve on, unix:///path/to.sock; its directory must exist
    #[arg(long, env = "CSI_ENDPOINT", value_name = "URL")]
    pub endpoint: String,
    /// Socket of the driver; not needed with a COMMAND, which gets one of its own
    #[arg(long, value_name = "URL")]
    pub driver: Option<String>,
    /// What to do to which calls; read anew on SIGHUP. Without one, calls are only told of
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// Where chance begins, instead of what the script says, or anywhere
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Start the driver as well: it finds its socket in CSI_ENDPOINT
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Serves until SIGTERM or SIGINT. Mounts and volumes stay as they are.
///
/// # Errors
/// When the arguments, the data directory or the socket cannot be used.
pub fn main(args: Args) -> anyhow::Result<()> {
    super::log();
    crate::effect::arm()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .context("cannot start the runtime")?;
    let served = runtime.block_on(async {
        // Before the socket exists, so that a stop that comes at once is not missed.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        match args.driver {
            Driver::Dir(args) => Ok(dir::Server::bind(&dir_settings(args))?.run(stop).await?),
            Driver::Btrfs(args) => Ok(btrfs::Server::bind(&dir_settings(args))?.run(stop).await?),
            Driver::Loop(args) => Ok(loopback::Server::bind(&loop_settings(args))?.run(stop).await?),
            Driver::Chaos(args) => misbehave(args, stop).await,
        }
    });
    runtime.shutdown_timeout(LAST_CALLS);
    served
}

fn dir_settings(args: CommonArgs) -> dir::Settings {
    let CommonArgs { endpoint, node_id, data_dir, mode } = args;
    dir::Settings { endpoint, node_id, data_dir, mode }
}

fn loop_settings(args: LoopArgs) -> loopback::Settings {
    let CommonArgs { endpoint, node_id, data_dir, mode } = args.common;
    // Administrators' programs are not on everybody's path.
    let programs = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    let max_volumes = args.max_volumes_per_node;
    let topology = args.topology;
    loopback::Settings { endpoint, node_id, data_dir, mode, max_volumes, programs, topology }
}

/// Serves as `wharfline csi chaos`.
async fn misbehave(args: ChaosArgs, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let ChaosArgs { endpoint, driver, script: file, seed, command } = args;
    // Before anything else: a SIGHUP that comes at once would end the process.
    let hangup = signal(SignalKind::hangup())?;
    let script = file.as_deref().map(read_script).transpose()?.unwrap_or_default();
    let begin = beginning(seed, &script);
    let settings = chaos::Settings { endpoint, driver, command, script, seed: begin };
    let mut stop = std::pin::pin!(stop);
    let server = tokio::select! {
        biased;
        () = &mut stop => return Ok(()),
        started = chaos::Server::start(settings) => started?,
    };
    let (sender, scripts) = mpsc::channel(1);
    tokio::select! {
        served = server.run(stop, scripts) => Ok(served?),
        never = reread(hangup, file, seed, sender) => match never {},
    }
}

/// Reads the script anew at each SIGHUP. One that cannot be is told of, and the one before stays.
async fn reread(
    mut hangup: Signal,
    file: Option<PathBuf>,
    seed: Option<u64>,
    scripts: mpsc::Sender<(chaos::Script, u64)>,
) -> std::convert::Infallible {
    loop {
        hangup.recv().await;
        let Some(file) = &file else { continue };
        match read_script(file) {
            Ok(script) => {
                let begin = beginning(seed, &script);
                // It is taken as long as calls are.
                let _ = scripts.send((script, begin)).await;
            }
            Err(error) => tracing::error!(error = format!("{error:#}"), "the script before stays"),
        }
    }
}

/// Where chance begins: what a person said, the script, or anywhere.
fn beginning(asked: Option<u64>, script: &chaos::Script) -> u64 {
    asked.or(script.seed).unwrap_or_else(|| RealRandom.below(1 << 32))
}

fn read_script(file: &Path) -> anyhow::Result<chaos::Script> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).with_context(|| format!("the script {name} cannot be read"))?;
    let value = manifest::parse_value(&text, &name)?;
    chaos::Script::read(&value).with_context(|| format!("the script {name} is not used"))
}
