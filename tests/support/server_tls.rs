//! A server behind TLS on a loopback port, with its keys in a directory of the test's own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use wharfline::api::KindDefinition;
use wharfline::server::{Issued, Limits, Pki, Server, ServerOptions, serve, write_private};
use wharfline::store::embedded::{EmbeddedStore, MemoryDisk, Options};

/// The running server.
pub(crate) struct Tls {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) pki: Pki,
    pub(crate) server: Server,
    pub(crate) port: u16,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Tls {
    /// Starts a server of these kinds on a free port.
    pub(crate) async fn start(kinds: Vec<KindDefinition>) -> Self {
        Self::limited(kinds, Limits::default()).await
    }

    /// The same with limits of its own.
    pub(crate) async fn limited(kinds: Vec<KindDefinition>, limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::load_or_create(&directory.path().join("pki"), jiff::Timestamp::now(), &|bytes| {
            bytes.fill(5);
        });
        let pki = pki.unwrap();
        let store = EmbeddedStore::open_memory(MemoryDisk::default(), Options::default()).unwrap();
        let mut options = ServerOptions::new(pki.sealing());
        options.bookmark_interval = Duration::from_millis(200);
        options.limits = limits;
        let server = Server::new(Arc::new(store), kinds, options);
        server.bootstrap().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let config = pki.server_config(&["127.0.0.1".to_owned()]).unwrap();
        let task = tokio::spawn(serve(listener, config, server.clone(), stop.clone()));
        Self { directory, pki, server, port, stop, task }
    }

    /// The server's address.
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Writes the administrator's kubeconfig and returns its path.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        let path = self.directory.path().join("kubeconfig");
        write_private(&path, &self.pki.admin_kubeconfig(&self.url(), &[]).unwrap()).unwrap();
        path
    }

    /// Sends one request on a connection of its own; the code and the body. An error is a connection refused by TLS.
    pub(crate) async fn raw(
        &self,
        client: Option<&Issued>,
        (method, path): (&str, &str),
    ) -> std::io::Result<(u16, String)> {
        let mut stream = self.connect(client).await?;
        let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await.unwrap()?;
        let answer = String::from_utf8(answer).unwrap();
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        code.zip(body).ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
    }

    /// A TLS connection that trusts this server, with or without a client certificate.
    pub(crate) async fn connect(
        &self,
        client: Option<&Issued>,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pki.ca_pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match client {
            None => config.with_no_client_auth(),
            Some(issued) => {
                let certificate = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Stops the listener and waits for it.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(10), self.task).await.expect("it stops").unwrap();
        self.server.shutdown().await;
    }
}
