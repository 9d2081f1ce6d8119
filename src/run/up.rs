//! `wharfline up`: server, controllers and node daemon in one process on the embedded store, in the foreground.
#![allow(clippy::print_stdout)] // the line that says that it is ready
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use futures::FutureExt as _;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::asks::Asks;
use super::audit::Audit;
use super::vacancy::{self, look, once_vacant};
use super::{allows, borrowed, cluster, down, figures, join, machine};
use crate::node::journal::Journal;
use crate::node::runtime::containerd::Reached;
use crate::node::{Blocks, Looked};
use crate::server::{Identity, Limits, Pki, Server, ServerOptions, serve, write_private};
use crate::store::Store;
use crate::store::embedded::{EmbeddedStore, Options as StoreOptions};
use crate::store::{KeepPolicy, run_compactor};
use crate::sys::{Kernel, Random as _, open_files, random::RealRandom};

/// What names the node.
const FLAG: &str = "--node-name";

/// Arguments of `wharfline up`; the data directory is a flag of every command.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where the API listens; its certificate is for this address, localhost and the node's name
    #[arg(long, default_value = "127.0.0.1:7443", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// This node's name at its first start; the host name in lower case when not given
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
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
/// One line that says what was in the way: a data directory or port in use, a missing capability to mount.
pub fn main(args: &Args, data_dir: &Path) -> anyhow::Result<()> {
    super::log();
    crate::effect::arm()?;
    let data_dir = prepare(data_dir)?;
    let allows = args.allows.allows(&data_dir)?;
    let given = args.node_name.as_deref().map(|name| named(name, FLAG)).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let signals = tokio::spawn(stop_on_signal(stop.clone())?);
        let up = Up::open(args, (given, allows), data_dir).await;
        let result = match up {
            Ok(up) => Box::pin(up.run(stop)).await,
            Err(error) => Err(error),
        };
        signals.abort();
        result
    })
}

/// The data directory, made if missing, for root alone.
pub(super) fn prepare(data_dir: &Path) -> anyhow::Result<PathBuf> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let whole = std::path::absolute(data_dir)?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&whole)
        .with_context(|| format!("data directory {} cannot be made", whole.display()))?;
    // The kernel shows mounts at their real path.
    let real =
        std::fs::canonicalize(&whole).with_context(|| format!("data directory {}", whole.display()))?;
    borrowed::clear(&real).with_context(|| format!("what `down` has left in {}", real.display()))?;
    Ok(real)
}

/// Where clients on this machine reach what listens at this address.
pub(super) fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// This node's name: the one that it has had from its first start. Under another one its daemon would find nothing that
/// is wanted of it, and take down all that runs.
///
/// The node's own record goes before the store: that may be lost.
async fn node_name(server: &Server, journal: &Journal, given: Option<String>) -> anyhow::Result<String> {
    let had = match journal.store() {
        Some(store) => Some(store.node),
        None => join::local_node(&server.client(Identity::controllers())).await?,
    };
    match (had, given) {
        (Some(had), Some(given)) if had != given => Err(anyhow!(
            "--node-name {given}: this data directory is node \"{had}\"; leave the flag out, or take node \"{had}\" down \
             first and give another --data-dir"
        )),
        (Some(had), _) => Ok(had),
        (None, Some(given)) => Ok(given),
        (None, None) => named(&host_name(), FLAG),
    }
}

/// What the machine calls itself, in lower case.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_lowercase()
}

/// A name that a node can have.
pub(super) fn named(name: &str, flag: &str) -> anyhow::Result<String> {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let inner = !name.starts_with(['-', '.']) && !name.ends_with(['-', '.']);
    if name.is_empty() || name.len() > 63 || !name.bytes().all(allowed) || !inner {
        return Err(anyhow!(
            "\"{name}\" is no node name: 1 to 63 of a-z, 0-9, '-' and '.'; give one with {flag}"
        ));
    }
    Ok(name.to_owned())
}

/// Cancels the token on SIGTERM or SIGINT.
pub(super) fn stop_on_signal(stop: CancellationToken) -> anyhow::Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        stop.cancel();
    })
}

/// The store and the server over it.
pub(super) struct Core {
    /// The store, for the compactor.
    pub(super) store: Arc<dyn Store>,
    /// The server.
    pub(super) server: Server,
    /// Its keys.
    pub(super) pki: Arc<Pki>,
    /// Its audit log.
    pub(super) audit: Audit,
}

impl Core {
    /// Opens the store and makes what the server needs at its first start, but for what is in the store itself:
    /// that is [`Server::bootstrap`].
    pub(super) fn open(data_dir: &Path) -> anyhow::Result<Self> {
        let store = EmbeddedStore::open(&data_dir.join("store.redb"), StoreOptions::default())
            .with_context(|| format!("data directory {}", data_dir.display()))?;
        tracing::trace!(target: "life", "store opened");
        let store: Arc<dyn Store> = Arc::new(store);
        let pki =
            Pki::load_or_create(&data_dir.join("pki"), Timestamp::now(), &|bytes| RealRandom.fill(bytes))?;
        tracing::trace!(target: "life", "keys read");
        let pki = Arc::new(pki);
        let audit = Audit::open(data_dir)?;
        let options = server_options(&pki, &audit);
        let server = Server::new(Arc::clone(&store), crate::api::definitions(), options);
        Ok(Self { store, server, pki, audit })
    }
}

/// What a server of these keys takes that writes this audit log.
pub(super) fn server_options(pki: &Arc<Pki>, audit: &Audit) -> ServerOptions {
    let (signer, audit) = (Some(Arc::clone(pki)), Some(audit.sink()));
    let mut limits = Limits::default();
    // The other half is for the store, the log, and what a node beside it needs.
    let most = usize::try_from(open_files::limit() / 2).unwrap_or(usize::MAX);
    limits.connections = limits.connections.min(most);
    limits.connections_each = limits.connections_each.min(limits.connections / 4).max(1);
    ServerOptions { signer, limits, audit, ..ServerOptions::new(pki.sealing()) }
}

/// Everything opened, nothing running yet.
struct Up {
    name: String,
    data_dir: PathBuf,
    kernel: Arc<dyn Kernel>,
    containerd: Option<Reached>,
    looked: Looked,
    listener: TcpListener,
    address: SocketAddr,
    pki: Arc<Pki>,
    store: Arc<dyn Store>,
    server: Server,
    told: figures::Told,
    asks: Asks,
    _audit: Audit,
}

impl Up {
    async fn open(
        args: &Args,
        (given, allows): (Option<String>, allows::Allows),
        data_dir: PathBuf,
    ) -> anyhow::Result<Self> {
        let listen = args.listen;
        super::enroll::refuse_member(&data_dir)?;
        let Core { store, server, pki, audit } = once_vacant(async || Core::open(&data_dir)).await?;
        let listener = vacancy::listen(listen, "--listen").await?;
        let address = listener.local_addr()?;
        let told = args.figures.listen().await?;
        let machine = machine::machine(&data_dir, &allows.containerd)?;
        let (kernel, containerd) = (Arc::clone(&machine.kernel), machine.containerd.clone());
        let blocks = Blocks::default();
        let options = join::options_of(&data_dir, &allows, (&args.figures, &told), &blocks);
        // The machine and the store know nothing of one another.
        let (begun, looked) = tokio::join!(server.bootstrap(), look(machine, options));
        begun?;
        tracing::trace!(target: "life", "store bootstrapped");
        let looked = looked?;
        let asks = Asks::listen(&data_dir, blocks)?;
        let name = node_name(&server, looked.journal(), given).await?;
        join::join(&server, &name, false).await.context("the node's own objects could not be written")?;
        tracing::trace!(target: "life", "joined");
        let looked = looked.named(&name);
        Ok(Self {
            name,
            data_dir,
            kernel,
            containerd,
            looked,
            listener,
            address,
            pki,
            store,
            server,
            told,
            asks,
            _audit: audit,
        })
    }

    async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let url = format!("https://{}", reachable(self.address));
        let tls = self.pki.server_config(&[reachable(self.address).ip().to_string(), self.name.clone()])?;
        let kubeconfig = self.pki.admin_kubeconfig(&url, &[])?;
        write_private(&self.data_dir.join("kubeconfig"), &kubeconfig)?;
        let serving = tokio::spawn(serve(self.listener, tls, self.server.clone(), stop.clone()));
        let telling = tokio::spawn(async { tokio::join!(self.told.serve(), self.asks.serve()) });
        let compactor = tokio::spawn(run_compactor(self.store, KeepPolicy::default()));
        let (tell, ready) = oneshot::channel();
        let announce = async {
            if ready.await.is_ok() {
                println!("ready {url}");
            }
            std::future::pending().await
        };
        let taken_down = down::taken_down(self.server.client(Identity::controllers()), &self.name);
        let rejoin = join::rejoin(self.server.client(Identity::controllers()), &self.name).boxed();
        let running = stop.child_token();
        let cluster = cluster::run(&self.server, self.looked, tell, running.clone());
        tokio::pin!(cluster);
        let mut down = false;
        let result = tokio::select! {
            result = &mut cluster => result,
            never = announce => never,
            never = rejoin => match never {},
            result = taken_down => {
                down = result.is_ok();
                running.cancel();
                cluster.await
            }
        };
        stop.cancel();
        compactor.abort();
        telling.abort();
        serving.await?;
        self.server.shutdown().await;
        result?;
        if down {
            machine::leave(&*self.kernel, self.containerd, &self.data_dir).await?;
        }
        Ok(())
    }
}
