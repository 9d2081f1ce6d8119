//! A small client of the API: one connection, one request at a time, no types.
//!
//! Many clients are played here on the processors that the server has, too: what they cost would be measured along.
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use wharfline::server::Issued;

/// Where the kinds of ours are.
pub(crate) const OURS: &str = "/apis/wharfline.dev/v1alpha1";
/// What a body is of.
pub(crate) const JSON: &str = "application/json";
/// The same for a change of some fields.
pub(crate) const MERGE: &str = "application/merge-patch+json";

/// A server and who comes to it.
#[derive(Clone)]
pub(crate) struct Door {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
}

impl Door {
    /// The door of `https://ADDRESS` for the owner of a certificate.
    pub(crate) fn new(url: &str, authority: &str, issued: &Issued) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let certificate = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)
            .unwrap();
        let address = url.strip_prefix("https://").unwrap().parse().unwrap();
        Self { address, tls: Arc::new(tls) }
    }

    async fn connect(&self) -> Option<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(self.address).await.ok()?;
        stream.set_nodelay(true).ok()?;
        let name = ServerName::IpAddress(self.address.ip().into());
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await.ok()?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        // It ends with its sender and with its body.
        tokio::spawn(connection);
        Some(sender)
    }

    /// A caller with a connection of its own, made when first needed.
    pub(crate) fn caller(&self) -> Caller {
        Caller { door: self.clone(), sender: None }
    }

    /// Opens a watch; none when the server is not there or does not want to.
    pub(crate) async fn watch(&self, path: &str) -> Option<Lines> {
        let mut sender = self.connect().await?;
        let answer = sender.send_request(request(&Method::GET, path, None)).await.ok()?;
        let body = answer.status().is_success().then(|| answer.into_body())?;
        Some(Lines { body, buffer: BytesMut::new(), _sender: sender })
    }
}

fn request(method: &Method, path: &str, body: Option<(&str, Bytes)>) -> Request<Full<Bytes>> {
    let builder = Request::builder().method(method).uri(path).header(header::HOST, "server");
    match body {
        None => builder.body(Full::default()).unwrap(),
        Some((kind, bytes)) => builder.header(header::CONTENT_TYPE, kind).body(Full::new(bytes)).unwrap(),
    }
}

/// What was answered.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn good(&self) -> bool {
        (200..300).contains(&self.code)
    }

    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// One who asks, one thing after the other.
pub(crate) struct Caller {
    door: Door,
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Caller {
    /// Asks; none when no answer came.
    pub(crate) async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Option<Answer> {
        let body = body.map(|(kind, value)| (kind, Bytes::from(value.to_string())));
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.door.connect().await?,
        };
        sender.ready().await.ok()?;
        let answer = sender.send_request(request(&method, path, body)).await.ok()?;
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        self.sender = Some(sender);
        Some(Answer { code, body })
    }

    /// Asks for what must be done; its answer.
    pub(crate) async fn done(&mut self, method: Method, path: &str, body: Option<(&str, &Value)>) -> Value {
        let answer = self.ask(method.clone(), path, body).await;
        let answer = answer.unwrap_or_else(|| panic!("{method} {path}: no answer"));
        let said = String::from_utf8_lossy(&answer.body);
        assert!(answer.good(), "{method} {path}: {} {said}", answer.code);
        answer.value()
    }
}

/// The lines of a watch.
pub(crate) struct Lines {
    body: Incoming,
    buffer: BytesMut,
    _sender: SendRequest<Full<Bytes>>,
}

impl Lines {
    /// The next line; none at the end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let mut looked = 0;
        loop {
            if let Some(end) = self.buffer[looked..].iter().position(|byte| *byte == b'\n') {
                return Some(self.buffer.split_to(looked + end + 1).freeze());
            }
            looked = self.buffer.len();
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}

/// Whether a line of a watch is of a change that has this in it.
pub(crate) fn has(line: &[u8], word: &str) -> bool {
    line.windows(word.len()).any(|at| at == word.as_bytes())
}
