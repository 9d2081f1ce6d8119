//! The two halves of Wharfline, each in a process of its own, joined by TLS: what `up` has in one.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use wharfline::run::{join, machine};
use wharfline::server::{Identity, Pki, Server, ServerOptions, kubeconfig, serve, write_private};
use wharfline::store::embedded::{EmbeddedStore, Options};
use wharfline::store::{KeepPolicy, Store, run_compactor};
use wharfline::sys::real::{Pool, RealProcesses};
use wharfline::sys::{Random, random::RealRandom};
use wharfline::{controllers, node};

use super::stack::{client, wharfline};

/// The node's name.
const NODE: &str = "bench";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Store, API server and controllers, until it is killed.
pub(crate) fn server(data: &str) {
    let data = Path::new(data);
    runtime().block_on(async {
        let store = EmbeddedStore::open(&data.join("store.redb"), Options::default()).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let random = |bytes: &mut [u8]| RealRandom.fill(bytes);
        let pki = Pki::load_or_create(&data.join("pki"), jiff::Timestamp::now(), &random).unwrap();
        let options = ServerOptions::new(pki.sealing());
        let server = Server::new(Arc::clone(&store), wharfline::api::definitions(), options);
        server.bootstrap().await.unwrap();
        join::join(&server, NODE, false).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let tls = pki.server_config(&[]).unwrap();
        let node = kubeconfig((&url, &[]), pki.ca_pem(), &pki.issue_node(NODE).unwrap());
        write_private(&data.join("kubeconfig"), &pki.admin_kubeconfig(&url, &[]).unwrap()).unwrap();
        write_private(&data.join("node.kubeconfig"), &node).unwrap();
        drop(pki);
        let never = CancellationToken::new();
        tokio::spawn(serve(listener, tls, server.clone(), never));
        tokio::spawn(run_compactor(store, KeepPolicy::default()));
        println!("ready");
        let options = controllers::Options { lease_duration: join::LEASE, ..controllers::Options::default() };
        let client = server.client(Identity::controllers());
        controllers::run(client, options, std::future::pending()).await.unwrap();
    });
}

/// The node daemon, until it is killed.
pub(crate) fn node(data: &str) {
    let data = PathBuf::from(data);
    runtime().block_on(async {
        let client = client(&data.join("node.kubeconfig")).await;
        let pool = Pool::new(8, std::time::Duration::from_secs(20));
        let processes = Arc::new(RealProcesses::with_program(wharfline(), pool));
        let machine =
            node::Machine { processes, ..machine::machine(&data, std::path::Path::new("/nowhere")).unwrap() };
        let options = join::options(NODE, data.clone(), machine::run_dir(&data));
        let (tell, ready) = oneshot::channel();
        tokio::spawn(async {
            ready.await.unwrap();
            println!("ready");
        });
        node::run(client, machine, options, tell, CancellationToken::new()).await.unwrap();
    });
}
