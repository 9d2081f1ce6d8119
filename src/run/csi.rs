//! `wharfline csi`: the built-in CSI drivers as processes of their own.
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use tokio::signal::unix::{SignalKind, signal};

use crate::drivers::{btrfs, dir, loopback};

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
