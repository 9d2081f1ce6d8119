//! How this machine becomes a node of a cluster, and stays one: its key, its certificate, the servers it knows.
//!
//! The key is made here and never leaves. The server is known by the hash in the token before anything is sent to it,
//! afterwards by the authority that it showed then.
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rcgen::{CertificateParams, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::api::token::JoinToken;
use crate::server::{Issued, kubeconfig, write_private};

/// How long asking one server for a certificate may take.
const DEADLINE: Duration = Duration::from_secs(15);
/// The longest answer taken.
const LONGEST: usize = 64 << 10;

/// What a node knows of its cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    name: String,
    servers: Vec<String>,
}

/// This machine's place in a cluster.
pub(super) struct Membership {
    directory: PathBuf,
    record: Record,
    authority: String,
    certificate: String,
    key: String,
}

impl Membership {
    /// What an earlier start kept; none before the first join.
    pub(super) fn load(directory: &Path) -> anyhow::Result<Option<Self>> {
        let read = |name: &str| {
            let path = directory.join(name);
            match std::fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error).with_context(|| path.display().to_string()),
            }
        };
        let parts = (read("node.json")?, read("ca.crt")?, read("node.crt")?, read("node.key")?);
        let (Some(record), Some(authority), Some(certificate), Some(key)) = parts else { return Ok(None) };
        let record = serde_json::from_str(&record)
            .with_context(|| directory.join("node.json").display().to_string())?;
        Ok(Some(Self { directory: directory.to_owned(), record, authority, certificate, key }))
    }

    /// Joins with a token. A second try with the same token and directory gets the same place.
    pub(super) async fn join(
        directory: &Path,
        servers: &[String],
        token: &JoinToken,
        name: &str,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        let path = directory.join("node.key");
        // Kept before it is shown to anybody: the token then answers to it again.
        let key = match std::fs::read_to_string(&path) {
            Ok(key) => key,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let key = KeyPair::generate()?.serialize_pem();
                write_private(&path, &key)?;
                key
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let known = Arc::new(ByHash::new(&token.authority)?);
        let tls = ClientConfig::builder_with_provider(Arc::clone(&known.provider))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(known.clone())
            .with_no_client_auth();
        let request = request(name, &key)?;
        let bearer = Some(token.bearer());
        let certificate = ask_any(servers, name, &request, Arc::new(tls), bearer.as_deref()).await?;
        let authority = known.authority().ok_or_else(|| anyhow!("the server showed no authority"))?;
        let record = Record { name: name.to_owned(), servers: servers.to_vec() };
        let directory = directory.to_owned();
        let joined = Self { directory, record, authority: pem(&authority), certificate, key };
        joined.keep()?;
        Ok(joined)
    }

    /// The node's name.
    pub(super) fn name(&self) -> &str {
        &self.record.name
    }

    /// Asks other servers than before, and remembers them once one of them knows this node.
    pub(super) fn ask_at(&mut self, servers: &[String]) {
        if !servers.is_empty() {
            self.record.servers = servers.to_vec();
        }
    }

    /// Forgets the cluster: the next start has to join anew.
    pub(super) fn forget(directory: &Path) -> anyhow::Result<()> {
        for name in ["node.json", "node.crt", "ca.crt", "node.key"] {
            let path = directory.join(name);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| path.display().to_string());
                }
                Ok(()) | Err(_) => {}
            }
        }
        let _left = std::fs::remove_dir(directory);
        Ok(())
    }

    /// Gets a fresh certificate for the same key.
    pub(super) async fn renew(&mut self) -> anyhow::Result<()> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.as_bytes())?)?;
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)?;
        let request = request(self.name(), &self.key)?;
        self.certificate = ask_any(&self.record.servers, self.name(), &request, Arc::new(tls), None).await?;
        // One that cannot be kept serves as long as this process does.
        if let Err(error) = self.keep() {
            tracing::warn!("the renewed certificate was not kept: {error:#}");
        }
        Ok(())
    }

    /// Whether the servers still know this node by its key; an error when none can be asked.
    pub(super) async fn is_member(&mut self) -> anyhow::Result<bool> {
        match self.renew().await {
            Ok(()) => Ok(true),
            Err(error) if error.downcast_ref().is_some_and(Refused::is_of_no_member) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// When the certificate is to be renewed: after two thirds of its life. None: it has ended.
    pub(super) fn renewal(&self, now: Timestamp) -> anyhow::Result<Option<Duration>> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(self.certificate.as_bytes())?;
        let certificate = pem.parse_x509()?;
        let validity = certificate.validity();
        let (from, until) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        let now = now.as_second();
        if now >= until {
            return Ok(None);
        }
        let due = from + (until - from) / 3 * 2;
        Ok(Some(Duration::from_secs(u64::try_from(due - now).unwrap_or(0))))
    }

    /// A client of each server.
    pub(super) async fn clients(&self) -> anyhow::Result<Vec<kube::Client>> {
        let mut clients = Vec::new();
        for server in &self.record.servers {
            let issued = Issued { certificate: self.certificate.clone(), key: self.key.clone() };
            let text = kubeconfig((server, &[]), &self.authority, &issued);
            let read = Kubeconfig::from_yaml(&text)?;
            let mut config =
                kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
            // kube would repeat what is in doubt (504); another server is tried at once instead.
            config.default_retry = false;
            clients.push(kube::Client::try_from(config)?);
        }
        Ok(clients)
    }

    fn keep(&self) -> anyhow::Result<()> {
        let file = |name: &str| self.directory.join(name);
        write_private(&file("ca.crt"), &self.authority)?;
        write_private(&file("node.crt"), &self.certificate)?;
        write_private(&file("node.json"), &serde_json::to_string_pretty(&self.record)?)?;
        Ok(())
    }
}

/// A certificate request for this key. The server decides what the certificate says.
fn request(name: &str, key: &str) -> anyhow::Result<String> {
    let key = KeyPair::from_pem(key)?;
    let params = CertificateParams::new(vec![name.to_owned()])?;
    Ok(params.serialize_request(&key)?.pem()?)
}

/// Asks one server after the other, until one gives a certificate or says why it does not.
async fn ask_any(
    servers: &[String],
    name: &str,
    request: &str,
    tls: Arc<ClientConfig>,
    bearer: Option<&str>,
) -> anyhow::Result<String> {
    let mut last = anyhow!("no server was named");
    for server in servers {
        let asked = ask(server, name, request, Arc::clone(&tls), bearer);
        match tokio::time::timeout(DEADLINE, asked).await {
            Ok(Ok(Ok(certificate))) => return Ok(certificate),
            Ok(Ok(Err(refused))) => return Err(refused.into()),
            Ok(Err(error)) => last = error.context(format!("server {server}")),
            Err(_) => last = anyhow!("server {server} did not answer in time"),
        }
    }
    Err(last)
}

/// A server said no, and will again.
#[derive(Debug, thiserror::Error)]
#[error("the server refused: {message}")]
struct Refused {
    code: StatusCode,
    message: String,
}

impl Refused {
    /// Whether it says that the key is none of a member's; anything else may be the word of who stands between.
    fn is_of_no_member(&self) -> bool {
        [StatusCode::UNAUTHORIZED, StatusCode::CONFLICT].contains(&self.code)
    }
}

/// Refuses a directory of a machine that joined a cluster: other commands would write into it.
pub(super) fn refuse_member(data_dir: &Path) -> anyhow::Result<()> {
    match Membership::load(&data_dir.join(super::node::IDENTITY))? {
        Some(member) if !data_dir.join("store.redb").exists() => {
            let name = member.name();
            Err(anyhow!("{} is node \"{name}\" of a cluster; give another --data-dir", data_dir.display()))
        }
        Some(_) | None => Ok(()),
    }
}

/// The certificate, or the server's own words.
async fn ask(
    server: &str,
    name: &str,
    request: &str,
    tls: Arc<ClientConfig>,
    bearer: Option<&str>,
) -> anyhow::Result<Result<String, Refused>> {
    let (host, port) = host_and_port(server)?;
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    let verified = ServerName::try_from(host.clone()).map_err(|_| anyhow!("\"{host}\" is not a host"))?;
    let stream = TlsConnector::from(tls).connect(verified, stream).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut builder = Request::post(format!("/bootstrap/v1/nodes/{name}/certificate"))
        .header(header::HOST, format!("{host}:{port}"))
        .header(header::CONTENT_TYPE, "application/x-pem-file");
    if let Some(bearer) = bearer {
        builder = builder.header(header::AUTHORIZATION, format!("Bearer {bearer}"));
    }
    let answer =
        sender.send_request(builder.body(Full::new(Bytes::copy_from_slice(request.as_bytes())))?).await?;
    let code = answer.status();
    let body = Limited::new(answer.into_body(), LONGEST).collect().await;
    let body = body.map_err(|error| anyhow!(error))?.to_bytes();
    connection.abort();
    let text = String::from_utf8_lossy(&body).into_owned();
    if code == StatusCode::OK {
        return Ok(Ok(text));
    }
    let status: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let message = status["message"].as_str().unwrap_or("no reason given");
    // What passes by itself is for another server, or for later.
    if code.is_server_error() || code == StatusCode::TOO_MANY_REQUESTS {
        return Err(anyhow!("{code}: {message}"));
    }
    Ok(Err(Refused { code, message: message.to_owned() }))
}

/// Reads `https://HOST:PORT`.
pub(super) fn host_and_port(server: &str) -> anyhow::Result<(String, u16)> {
    let wrong = || anyhow!("--server {server}: write https://HOST:PORT");
    let rest = server.strip_prefix("https://").ok_or_else(wrong)?.trim_end_matches('/');
    let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
    let host = host.trim_matches(['[', ']']);
    let port = port.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong)?;
    if host.is_empty() || host.contains('/') {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

fn pem(certificate: &[u8]) -> String {
    let text = STANDARD.encode(certificate);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned());
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.collect::<Vec<_>>().join("\n")
    )
}

/// Trusts a server whose chain ends at the authority of this hash, and for its own name only.
#[derive(Debug)]
struct ByHash {
    hash: Vec<u8>,
    provider: Arc<CryptoProvider>,
    authority: Mutex<Option<CertificateDer<'static>>>,
}

impl ByHash {
    fn new(hash: &str) -> anyhow::Result<Self> {
        let digits = |at: usize| hash.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
        let hash = (0..hash.len()).step_by(2).map(digits).collect::<Option<_>>();
        Ok(Self {
            hash: hash.ok_or_else(|| anyhow!("the token names no authority"))?,
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            authority: Mutex::default(),
        })
    }

    fn authority(&self) -> Option<CertificateDer<'static>> {
        self.authority.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ServerCertVerifier for ByHash {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let hashed = |certificate: &&CertificateDer<'_>| {
            ring::digest::digest(&ring::digest::SHA256, certificate).as_ref() == self.hash
        };
        let authority = intermediates.iter().find(hashed).ok_or_else(|| {
            rustls::Error::General(
                "the server's authority is not the one that the token names: this is another server, or an old token"
                    .to_owned(),
            )
        })?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
                .build()
                .map_err(|error| rustls::Error::General(error.to_string()))?;
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        *self.authority.lock().unwrap_or_else(PoisonError::into_inner) = Some(authority.clone().into_owned());
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who believes another word takes down what a member has.
    #[test]
    fn only_a_server_says_that_a_machine_is_no_member() {
        for (code, said) in [
            (StatusCode::UNAUTHORIZED, true),
            (StatusCode::CONFLICT, true),
            (StatusCode::BAD_REQUEST, false),
            (StatusCode::FORBIDDEN, false),
            (StatusCode::NOT_FOUND, false),
            (StatusCode::METHOD_NOT_ALLOWED, false),
            (StatusCode::PROXY_AUTHENTICATION_REQUIRED, false),
        ] {
            assert_eq!(Refused { code, message: String::new() }.is_of_no_member(), said, "{code}");
        }
    }

    #[test]
    fn servers_are_read() {
        assert_eq!(host_and_port("https://a.b:1").unwrap(), ("a.b".into(), 1));
        assert_eq!(host_and_port("https://[::1]:7443/").unwrap(), ("::1".into(), 7443));
        for wrong in ["", "a:1", "http://a:1", "https://a", "https://:1", "https://a:0", "https://a/b:1"] {
            let error = host_and_port(wrong).unwrap_err().to_string();
            assert!(error.contains("write https://HOST:PORT"), "{wrong}: {error}");
        }
    }
}
