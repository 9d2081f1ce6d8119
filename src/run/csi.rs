//! `wharfline csi`: the built-in CSI drivers as processes of their own.
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use tokio::signal::unix::{SignalKind, signal};

use crate::drivers::dir;

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
    Dir(DirArgs),
}

/// Arguments of `wharfline csi dir`.
#[derive(Clone, Debug, clap::Args)]
pub struct DirArgs {
    /// Socket to serve on, unix:///path/to.sock; its directory must exist
    #[arg(long, env = "CSI_ENDPOINT", value_name = "URL")]
    pub endpoint: String,
    /// Id of this node, which is also its topology value
    #[arg(long, env = "NODE_NAME", value_name = "ID")]
    pub node_id: String,
    /// Directory for the volumes; made when missing
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Services to serve beside Identity
    #[arg(long, value_enum, default_value_t = dir::Mode::All)]
    pub mode: dir::Mode,
}

/// Serves until SIGTERM or SIGINT. Mounts and volumes stay as they are.
///
/// # Errors
/// When the arguments, the data directory or the socket cannot be used.
pub fn main(args: Args) -> anyhow::Result<()> {
    super::log();
    let Driver::Dir(args) = args.driver;
    let settings = dir::Settings {
        endpoint: args.endpoint,
        node_id: args.node_id,
        data_dir: args.data_dir,
        mode: args.mode,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()
        .context("cannot start the runtime")?;
    let served = runtime.block_on(async {
        // Before the socket exists, so that a stop that comes at once is not missed.
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let server = dir::Server::bind(&settings)?;
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        Ok(server.run(stop).await?)
    });
    runtime.shutdown_timeout(LAST_CALLS);
    served
}
