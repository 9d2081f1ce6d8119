//! `wharfline server`: the API and the controllers, over etcd or the embedded store, without a node.
#![allow(clippy::print_stdout)] // the line that says that it is ready
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::audit::Audit;
use super::join::LEASE;
use super::patience::patient;
use super::up::{self, prepare, reachable, stop_on_signal};
use super::vacancy::{self, Occupied, once_vacant};
use crate::controllers::{self, Candidate};
use crate::server::{BootstrapError, Identity, Pki, Server, serve, write_private};
use crate::store::embedded::{EmbeddedStore, Options as EmbeddedOptions};
use crate::store::{KeepPolicy, Store, run_compactor};
use crate::sys::{Random as _, random::RealRandom};

/// How long nobody leads the controllers after a leading server died.
const LEADERSHIP: Duration = Duration::from_secs(10);
/// Between two looks at a store that does not answer yet.
const AGAIN: Duration = Duration::from_secs(1);

/// Arguments of `wharfline server`; the data directory is a flag of every command.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where the API listens
    #[arg(long, default_value = "127.0.0.1:7443", value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// How clients reach this server, for its certificate and kubeconfig; may be given several times
    #[arg(long, value_name = "HOST:PORT")]
    pub advertise: Vec<String>,
    /// How clients reach another server of the cluster, for the kubeconfig; may be given several times
    #[arg(long, value_name = "HOST:PORT")]
    pub peer: Vec<String>,
    /// Authorities and sealing key, the same on every server of a cluster; D/pki when not given
    #[arg(long, value_name = "DIR")]
    pub pki_dir: Option<PathBuf>,
    /// Where the objects are: `embedded`, or etcd://HOST:PORT[,HOST:PORT…]
    #[arg(long, default_value = "embedded", value_name = "STORE", value_parser = place)]
    pub store: Place,
    /// How etcd is spoken to.
    #[command(flatten)]
    pub tls: EtcdTls,
}

/// How etcd is spoken to.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct EtcdTls {
    /// The CA of etcd's certificates
    #[arg(long, value_name = "FILE")]
    pub etcd_ca: Option<PathBuf>,
    /// This server's certificate for etcd
    #[arg(long, value_name = "FILE", requires = "etcd_key", requires = "etcd_ca")]
    pub etcd_cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub etcd_key: Option<PathBuf>,
}

/// Where the objects are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the data directory.
    Embedded,
    /// In an etcd with these members, `HOST:PORT` each.
    Etcd(Vec<String>),
}

/// Reads a `--store`.
pub(super) fn place(text: &str) -> Result<Place, String> {
    let wanted = "write `embedded` or etcd://HOST:PORT[,HOST:PORT…]";
    if text == "embedded" {
        return Ok(Place::Embedded);
    }
    let Some(members) = text.strip_prefix("etcd://") else { return Err(wanted.to_owned()) };
    let members: Vec<String> = members.split(',').map(|m| m.trim_end_matches('/').to_owned()).collect();
    match members.iter().find(|member| !is_address(member)) {
        Some(member) => Err(format!("\"{member}\" is not HOST:PORT; {wanted}")),
        None => Ok(Place::Etcd(members)),
    }
}

fn is_address(text: &str) -> bool {
    let port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    text.rsplit_once(':')
        .is_some_and(|(host, end)| !host.is_empty() && !host.contains(['/', '@', ' ']) && port(end))
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// One line that says what was in the way: a port in use, a store that other keys sealed.
pub fn main(args: &Args, data_dir: &Path) -> anyhow::Result<()> {
    super::log();
    crate::effect::arm()?;
    for (flag, addresses) in [("advertise", &args.advertise), ("peer", &args.peer)] {
        if let Some(wrong) = addresses.iter().find(|address| !is_address(address)) {
            return Err(anyhow!("--{flag} {wrong}: write HOST:PORT"));
        }
    }
    let data_dir = prepare(data_dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let signals = tokio::spawn(stop_on_signal(stop.clone())?);
        let result = Box::pin(run(args, &data_dir, stop)).await;
        signals.abort();
        result
    })
}

async fn run(args: &Args, data_dir: &Path, stop: CancellationToken) -> anyhow::Result<()> {
    let listen = args.listen;
    super::enroll::refuse_member(data_dir)?;
    // Two on one directory would write one kubeconfig.
    let _lock = once_vacant(async || lock(data_dir)).await?;
    let pki_dir = args.pki_dir.clone().unwrap_or_else(|| data_dir.join("pki"));
    let pki = Pki::load_or_create(&pki_dir, Timestamp::now(), &|bytes| RealRandom.fill(bytes))?;
    let pki = Arc::new(pki);
    let listener = vacancy::listen(listen, "--listen").await?;
    let address = listener.local_addr()?;
    let (store, etcd) = once_vacant(async || open(&args.store, &args.tls, data_dir).await).await?;
    let audit = Audit::open(data_dir)?;
    // Each connection is a file, and a thousand nodes have several each.
    crate::sys::open_files::raise_limit();
    let mut options = up::server_options(&pki, &audit);
    // A store on this machine is away when the machine is.
    options.mirror = matches!(args.store, Place::Etcd(_));
    let server = Server::new(Arc::clone(&store), crate::api::definitions(), options);
    if !begun(&server, &stop).await? {
        server.shutdown().await;
        return Ok(());
    }
    etcd.looked_at().await?;
    let local = reachable(address);
    let url = match args.advertise.first() {
        Some(advertised) => format!("https://{advertised}"),
        None => format!("https://{local}"),
    };
    let peers: Vec<String> = args.peer.iter().map(|address| format!("https://{address}")).collect();
    let hosts = args.advertise.iter().filter_map(|a| a.rsplit_once(':')).map(|(host, _)| host);
    let hosts = hosts.map(|host| host.trim_matches(['[', ']']).to_owned());
    let tls =
        pki.server_config(&hosts.chain([local.ip().to_string(), up::host_name()]).collect::<Vec<_>>())?;
    write_private(&data_dir.join("kubeconfig"), &pki.admin_kubeconfig(&url, &peers)?)?;
    write_private(&data_dir.join("ca.crt"), pki.ca_pem())?;
    let serving = tokio::spawn(serve(listener, tls, server.clone(), stop.clone()));
    let compactor = tokio::spawn(run_compactor(store, KeepPolicy::default()));
    println!("ready {url}");
    let result = tokio::select! {
        result = control(args, &server, stop.clone()) => result.context("controllers"),
        error = etcd.moved() => Err(error),
    };
    stop.cancel();
    compactor.abort();
    serving.await?;
    server.shutdown().await;
    result
}

/// Keeps other servers from the directory, as long as what is returned lives.
pub(super) fn lock(data_dir: &Path) -> anyhow::Result<std::fs::File> {
    let path = data_dir.join("server.lock");
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| path.display().to_string())?;
    file.try_lock().map_err(|_| Occupied(data_dir.to_owned()))?;
    Ok(file)
}

/// Runs the controllers: always where this is the only server, else while it leads.
async fn control(args: &Args, server: &Server, stop: CancellationToken) -> Result<(), controllers::Error> {
    let options = controllers::Options { lease_duration: LEASE, ..controllers::Options::default() };
    let work = |client: kube::Client, ending: CancellationToken| {
        controllers::run(patient(client), options.clone(), async move { ending.cancelled().await })
    };
    let client = server.client(Identity::controllers());
    match args.store {
        Place::Embedded => work(client, stop).await,
        Place::Etcd(_) => {
            let me = format!("{}_{}", up::host_name(), RealRandom.token());
            // What it writes as a candidate is the lease, which is nobody's yet.
            let begin = |turn| server.lead(turn);
            Candidate::new(patient(client), me, options.clone(), LEADERSHIP).run(stop, begin, work).await
        }
    }
}

/// Makes what exists from the start, waiting for a store that does not answer yet; whether it did before `stop`.
async fn begun(server: &Server, stop: &CancellationToken) -> anyhow::Result<bool> {
    loop {
        match stop.run_until_cancelled(server.bootstrap()).await {
            None => return Ok(false),
            Some(Ok(())) => return Ok(true),
            Some(Err(error @ BootstrapError::Unfinished)) => return Err(error.into()),
            Some(Err(error @ BootstrapError::OtherSealingKey { .. })) => {
                return Err(anyhow!(error).context("give this server the --pki-dir of the others"));
            }
            Some(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "waits for the store");
            }
        }
        if stop.run_until_cancelled(tokio::time::sleep(AGAIN)).await.is_none() {
            return Ok(false);
        }
    }
}

/// Opens a store; the embedded one is in `data_dir`.
pub(super) async fn open(
    place: &Place,
    tls: &EtcdTls,
    data_dir: &Path,
) -> anyhow::Result<(Arc<dyn Store>, Etcd)> {
    match place {
        Place::Embedded => {
            let store = EmbeddedStore::open(&data_dir.join("store.redb"), EmbeddedOptions::default());
            let store = store.with_context(|| format!("data directory {}", data_dir.display()))?;
            Ok((Arc::new(store), Etcd::default()))
        }
        Place::Etcd(members) => in_etcd(tls, members).await,
    }
}

/// The etcd beneath the store, if there is one.
#[derive(Default)]
pub(super) struct Etcd {
    #[cfg(feature = "etcd")]
    store: Option<crate::store::etcd::EtcdStore>,
}

#[cfg(feature = "etcd")]
impl Etcd {
    /// Warns of members with known faults; refuses members of several clusters.
    pub(super) async fn looked_at(&self) -> anyhow::Result<()> {
        use crate::store::etcd::{Trust, trust, trusted};
        let Some(store) = &self.store else { return Ok(()) };
        let members = store.members().await;
        let mut told = Vec::new();
        for member in &members {
            if let Some(other) = members.iter().find(|other| other.cluster != member.cluster) {
                let (one, two) = (&member.endpoint, &other.endpoint);
                return Err(anyhow!("--store: {one} and {two} are members of two different etcd clusters"));
            }
            let version = &member.version;
            if trust(version) != Trust::Trusted && !told.contains(version) {
                tracing::warn!("etcd {version} has known faults, or is not known; use {}", trusted());
                told.push(version.clone());
            }
        }
        Ok(())
    }

    /// Waits until another cluster answers than at the start, or an older state.
    async fn moved(&self) -> anyhow::Error {
        match &self.store {
            Some(store) => store.moved().cancelled().await,
            None => std::future::pending().await,
        }
        anyhow!(
            "etcd answers as another cluster than at the start, or with an older state (a restored backup?); start this \
             server again"
        )
    }
}

#[cfg(not(feature = "etcd"))]
impl Etcd {
    pub(super) async fn looked_at(&self) -> anyhow::Result<()> {
        Ok(())
    }

    async fn moved(&self) -> anyhow::Error {
        std::future::pending().await
    }
}

#[cfg(feature = "etcd")]
async fn in_etcd(tls: &EtcdTls, members: &[String]) -> anyhow::Result<(Arc<dyn Store>, Etcd)> {
    use crate::store::etcd::{EtcdStore, Options, Tls};
    let read = |path: &Option<PathBuf>| {
        let file = |path: &PathBuf| std::fs::read(path).with_context(|| path.display().to_string());
        path.as_ref().map(file).transpose()
    };
    let identity = read(&tls.etcd_cert)?.zip(read(&tls.etcd_key)?);
    let tls = read(&tls.etcd_ca)?.map(|ca| Tls { ca, identity });
    let store = EtcdStore::connect(Options { endpoints: members.to_vec(), root: Vec::new(), tls });
    let store = store.await.context("--store")?;
    Ok((Arc::new(store.clone()), Etcd { store: Some(store) }))
}

#[cfg(not(feature = "etcd"))]
async fn in_etcd(_: &EtcdTls, _: &[String]) -> anyhow::Result<(Arc<dyn Store>, Etcd)> {
    Err(anyhow!("--store: this program was built without etcd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_read() {
        let etcd = |members: &[&str]| Ok(Place::Etcd(members.iter().map(|m| (*m).to_owned()).collect()));
        assert_eq!(place("embedded"), Ok(Place::Embedded));
        assert_eq!(place("etcd://a:2379"), etcd(&["a:2379"]));
        assert_eq!(place("etcd://10.0.0.1:1,[::1]:2"), etcd(&["10.0.0.1:1", "[::1]:2"]));
        for wrong in
            ["", "etcd", "etcd://", "etcd://a", "etcd://a:0", "etcd://a:1,", "http://a:1", "etcd://u@a:1"]
        {
            assert!(place(wrong).unwrap_err().contains("write `embedded`"), "{wrong}");
        }
    }
}
