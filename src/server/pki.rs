//! The two authorities of a cluster, kept in one directory: one signs the server, one signs its clients.
//!
//! Made at the first start; several servers share the directory's contents. Private keys are files of mode 0600
//! in a directory of mode 0700. Serves no connection; see `listen`.
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use super::Identity;
use super::access::{ADMINS, NODES};
use super::seal::{SealError, SealingKey, hex};

const DAY: Duration = Duration::from_secs(86_400);
/// How long an authority lasts.
const AUTHORITY_LIFE: Duration = Duration::from_secs(20 * 365 * 86_400);
/// How long the server's own certificate lasts; a new one is made at each start.
const SERVER_LIFE: Duration = Duration::from_secs(5 * 365 * 86_400);
/// How long the administrator's certificate lasts; a new one is made at each start.
const ADMIN_LIFE: Duration = Duration::from_secs(365 * 86_400);
/// How long a node's certificate lasts; the node renews it at two thirds of its life.
pub const NODE_LIFE: Duration = Duration::from_secs(30 * 86_400);

/// Why keys or certificates could not be had.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written: look at the directory's owner and mode.
    #[error("{path}")]
    File {
        /// The file.
        path: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// An authority's certificate is there without its key: restore the key, or remove both.
    #[error("{certificate} has no key beside it; restore it or remove both")]
    KeyMissing {
        /// The certificate's file.
        certificate: String,
    },
    /// A certificate could not be made or read.
    #[error("certificate of {what}")]
    Certificate {
        /// Whose.
        what: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// The TLS library refused the keys.
    #[error("TLS set-up")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The sealing key could not be had.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// A node's name is not one.
    #[error("{name:?} is not a node name: lower case letters, digits, '-' and '.', at most 253")]
    NodeName {
        /// What was given.
        name: String,
    },
}

/// One authority: what it signs with and what others trust.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

/// A certificate with its private key, both PEM. No `Debug`: the key is secret.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

/// The authorities of a cluster and its sealing key.
pub struct Pki {
    serving: Authority,
    clients: Authority,
    sealing: SealingKey,
    now: Timestamp,
}

impl Pki {
    /// Reads the directory, or fills it at the first start. `random` makes the sealing key.
    pub fn load_or_create(
        directory: &Path,
        now: Timestamp,
        random: &dyn Fn(&mut [u8]),
    ) -> Result<Self, PkiError> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|source| file_error(directory, source))?;
        Ok(Self {
            serving: authority(directory, "serving", now)?,
            clients: authority(directory, "client", now)?,
            sealing: SealingKey::load_or_create(&directory.join("sealing.key"), random)?,
            now,
        })
    }

    /// The key that seals Secrets.
    pub fn sealing(&self) -> SealingKey {
        self.sealing.clone()
    }

    /// What clients must trust to know the server, as PEM.
    pub fn ca_pem(&self) -> &str {
        &self.serving.pem
    }

    /// SHA-256 of the serving authority's certificate, in hexadecimal, as a join token carries it.
    pub fn ca_hash(&self) -> String {
        hex(ring::digest::digest(&ring::digest::SHA256, &self.serving.certificate).as_ref())
    }

    /// The server's side of TLS, with a fresh certificate for these addresses and names beside the local ones.
    /// A client may come without a certificate; with one it must be of our client authority.
    pub fn server_config(&self, hosts: &[String]) -> Result<Arc<ServerConfig>, PkiError> {
        let mut names: Vec<SanType> = Vec::new();
        let local = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        for host in hosts.iter().chain(&local) {
            let name = match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(host.as_str().try_into().map_err(failed("server"))?),
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut params = self.params("wharfline", &[], SERVER_LIFE)?;
        params.subject_alt_names = names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().map_err(failed("server"))?;
        let certificate = params.signed_by(&key, &self.serving.issuer).map_err(failed("server"))?;
        // The authority is sent along, so that who joins can check it against the hash in its token.
        let chain = vec![certificate.der().clone(), self.serving.certificate.clone()];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let tls = |error: Box<dyn std::error::Error + Send + Sync>| PkiError::Tls(error);
        let mut roots = RootCertStore::empty();
        roots.add(self.clients.certificate.clone()).map_err(|e| tls(e.into()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|e| tls(e.into()))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| tls(e.into()))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|e| tls(e.into()))?;
        Ok(Arc::new(config))
    }

    /// A certificate for the local administrator.
    pub fn issue_admin(&self) -> Result<Issued, PkiError> {
        let admin = Identity::admin();
        self.issue(&admin.user, &[ADMINS], ADMIN_LIFE)
    }

    /// A certificate for the daemon of a node, with a key made here.
    pub fn issue_node(&self, name: &str) -> Result<Issued, PkiError> {
        check_node_name(name)?;
        self.issue(&Identity::node(name).user, &[NODES], NODE_LIFE)
    }

    /// A certificate from `now` for the daemon of a node whose key stays with it: the request's key, our subject.
    pub fn sign_node(&self, name: &str, request_pem: &str, now: Timestamp) -> Result<String, PkiError> {
        check_node_name(name)?;
        let request = request_der(request_pem)?;
        let request = CertificateSigningRequestParams::from_der(&request.into()).map_err(failed(name))?;
        let mut params = self.params(&Identity::node(name).user, &[NODES], NODE_LIFE)?;
        lasting(&mut params, now, NODE_LIFE);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let signed = params.signed_by(&request.public_key, &self.clients.issuer).map_err(failed(name))?;
        Ok(signed.pem())
    }

    /// The hash of the key for which a certificate is requested; the request must be signed with it.
    pub fn requested_key(&self, request_pem: &str) -> Result<String, PkiError> {
        let failed = failed("the request");
        let der = request_der(request_pem)?;
        // This checks the signature.
        CertificateSigningRequestParams::from_der(&der.clone().into()).map_err(&failed)?;
        let unread = |_| failed(rcgen::Error::CouldNotParseCertificationRequest);
        let (_, request) = X509CertificationRequest::from_der(&der).map_err(unread)?;
        Ok(key_hash(request.certification_request_info.subject_pki.raw))
    }

    /// A kubeconfig with the administrator's certificate for the server at `url`.
    pub fn admin_kubeconfig(&self, url: &str, others: &[String]) -> Result<String, PkiError> {
        let admin = self.issue_admin()?;
        Ok(kubeconfig((url, others), &self.serving.pem, &admin))
    }

    fn issue(&self, user: &str, groups: &[&str], life: Duration) -> Result<Issued, PkiError> {
        let mut params = self.params(user, groups, life)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().map_err(failed(user))?;
        let certificate = params.signed_by(&key, &self.clients.issuer).map_err(failed(user))?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    fn params(&self, user: &str, groups: &[&str], life: Duration) -> Result<CertificateParams, PkiError> {
        let mut params = CertificateParams::new(Vec::new()).map_err(failed(user))?;
        params.distinguished_name = subject(user, groups);
        params.serial_number = Some(serial(user)?);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        lasting(&mut params, self.now, life);
        Ok(params)
    }
}

/// The one request of a PEM text; nothing may be around it, lest two readers find two requests.
fn request_der(pem: &str) -> Result<Vec<u8>, PkiError> {
    let unread = || failed("the request")(rcgen::Error::CouldNotParseCertificationRequest);
    let label = "CERTIFICATE REQUEST";
    let inner = pem.trim().strip_prefix(&format!("-----BEGIN {label}-----"));
    let inner =
        inner.and_then(|rest| rest.strip_suffix(&format!("-----END {label}-----"))).ok_or_else(unread)?;
    let text: String = inner.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    STANDARD.decode(text).map_err(|_| unread())
}

/// SHA-256 of a public key as a certificate holds it (`SubjectPublicKeyInfo`, DER), in hexadecimal.
pub(crate) fn key_hash(public_key: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, public_key).as_ref())
}

/// Writes a file of mode 0600 in one piece: who reads it finds the old one or the new one.
pub fn write_private(path: &Path, text: &str) -> Result<(), PkiError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let written = || -> std::io::Result<()> {
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    written().map_err(|source| file_error(path, source))
}

/// A kubeconfig of one cluster, with the URL of a server and those of others, and one user; everything is inside, no other file is needed.
pub fn kubeconfig((url, others): (&str, &[String]), ca_pem: &str, client: &Issued) -> String {
    // Other clients pass over what they do not know.
    let others = match others {
        [] => String::new(),
        others => format!(
            "extensions:\n    - name: wharfline.dev/servers\n      extension: {{\"servers\": [\"{}\"]}}\n    ",
            others.join("\", \"")
        ),
    };
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: wharfline\n  cluster:\n    server: {url}\n    {others}\
         certificate-authority-data: {}\nusers:\n- name: wharfline-admin\n  user:\n    client-certificate-data: {}\n    \
         client-key-data: {}\ncontexts:\n- name: wharfline\n  context:\n    cluster: wharfline\n    \
         user: wharfline-admin\n    namespace: default\ncurrent-context: wharfline\n",
        STANDARD.encode(ca_pem),
        STANDARD.encode(&client.certificate),
        STANDARD.encode(&client.key),
    )
}

fn check_node_name(name: &str) -> Result<(), PkiError> {
    if crate::api::validate::is_subdomain(name, 253) {
        Ok(())
    } else {
        Err(PkiError::NodeName { name: name.to_owned() })
    }
}

/// Reads an authority or makes it. The key is written before the certificate: a key alone signed nothing yet.
fn authority(directory: &Path, role: &str, now: Timestamp) -> Result<Authority, PkiError> {
    let (certificate, key) =
        (directory.join(format!("{role}-ca.crt")), directory.join(format!("{role}-ca.key")));
    if let Some(pem) = read(&certificate)? {
        let key = read(&key)?
            .ok_or_else(|| PkiError::KeyMissing { certificate: certificate.display().to_string() })?;
        let key = KeyPair::from_pem(&key).map_err(failed(role))?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(failed(role))?;
        let der = rustls::pki_types::pem::PemObject::from_pem_slice(pem.as_bytes());
        let der = der.map_err(|e: rustls::pki_types::pem::Error| PkiError::Tls(Box::new(e)))?;
        return Ok(Authority { issuer, certificate: der, pem });
    }
    let pair = KeyPair::generate().map_err(failed(role))?;
    let mut params = CertificateParams::new(Vec::new()).map_err(failed(role))?;
    params.distinguished_name = subject(&format!("wharfline {role} authority"), &[]);
    params.serial_number = Some(serial(role)?);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    lasting(&mut params, now, AUTHORITY_LIFE);
    let made = params.self_signed(&pair).map_err(failed(role))?;
    write_private(&key, &pair.serialize_pem())?;
    write_private(&certificate, &made.pem())?;
    let (der, pem) = (made.der().clone(), made.pem());
    Ok(Authority { issuer: Issuer::new(params, pair), certificate: der, pem })
}

fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(file_error(path, source)),
    }
}

fn file_error(path: &Path, source: std::io::Error) -> PkiError {
    PkiError::File { path: path.display().to_string(), source }
}

fn failed(what: &str) -> impl Fn(rcgen::Error) -> PkiError + use<> {
    let what = what.to_owned();
    move |source| PkiError::Certificate { what: what.clone(), source }
}

fn subject(user: &str, groups: &[&str]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for group in groups {
        name.push(DnType::OrganizationName, *group);
    }
    name.push(DnType::CommonName, user);
    name
}

/// A random serial number, so that one certificate can be told from the next of the same key.
fn serial(what: &str) -> Result<SerialNumber, PkiError> {
    let mut bytes = [0; 16];
    let random = ring::rand::SystemRandom::new();
    ring::rand::SecureRandom::fill(&random, &mut bytes)
        .map_err(|_| failed(what)(rcgen::Error::RingUnspecified))?;
    bytes[0] &= 0x7f;
    Ok(SerialNumber::from_slice(&bytes))
}

/// From a day ago, as clocks differ, for `life`.
fn lasting(params: &mut CertificateParams, now: Timestamp, life: Duration) {
    let now = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or_default());
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(DAY);
    params.not_after = epoch + now + life;
}
