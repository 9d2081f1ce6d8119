//! Connections: TLS, who the client is, HTTP/1.1; each connection is a task that this module joins.
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{HangUp, Identity, Server};

/// How long a client may take for the TLS handshake.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// How long a connection may take for the head of a request, or be idle between two.
const HEAD_DEADLINE: Duration = Duration::from_secs(90);
/// How long whoever has not asked anything yet may take for it once the server is told to stop.
const FIRST: Duration = Duration::from_millis(300);
/// How long requests may go on once the server is told to stop; watches end at once.
const DRAIN_DEADLINE: Duration = Duration::from_secs(3);

/// Serves until `shutdown`, then lets running requests end and returns when every connection is closed.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    server: Server,
    shutdown: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(server.inner.options.limits.connections));
    let acceptor = TlsAcceptor::from(tls);
    // Made once: each one made has tables of its own.
    let router = server.router();
    let mut connections = JoinSet::new();
    loop {
        let next = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                note(ended);
                continue;
            }
            next = accept(&listener, &slots) => next,
        };
        match next {
            Ok((stream, slot)) => {
                let (server, router) = (server.clone(), router.clone());
                let connection = Connection { server, router, shutdown: shutdown.clone(), slot };
                connections.spawn(connection.run(stream, acceptor.clone()));
            }
            Err(error) => {
                // Out of file descriptors, most likely: the pause lets others close.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    let drained = async {
        while let Some(ended) = connections.join_next().await {
            note(ended);
        }
    };
    if tokio::time::timeout(DRAIN_DEADLINE, drained).await.is_err() {
        connections.shutdown().await;
    }
}

fn note(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection panicked");
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let closed = |_| std::io::Error::other("no connection slots");
    let slot = Arc::clone(slots).acquire_owned().await.map_err(closed)?;
    let (stream, _) = listener.accept().await?;
    // Without this a small answer waits for the client's delayed acknowledgement, some 40 ms.
    stream.set_nodelay(true)?;
    Ok((stream, slot))
}

struct Connection {
    server: Server,
    router: Router,
    shutdown: CancellationToken,
    slot: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(self, stream: TcpStream, acceptor: TlsAcceptor) {
        let peer_address = stream.peer_addr().ok();
        let address = peer_address.map(|address| address.ip().to_string()).unwrap_or_default();
        // In boxes, so that a connection that only waits is small.
        let greeted = Box::pin(self.greet(stream, &acceptor, &address)).await;
        let Some((stream, identity)) = greeted else { return };
        drop(acceptor);
        // Who is known counts as himself, wherever he is, and needs none of the places of those who are not.
        let inner = &self.server.inner;
        let place = match &identity {
            Some(identity) => inner.known.take(&identity.user),
            None => inner.strange.take(&address),
        };
        let Some(place) = place else {
            let user = identity.map(|identity| identity.user);
            tracing::debug!(address, user, "too many connections");
            return;
        };
        let asked = Arc::new(AtomicBool::new(false));
        let asks = Arc::clone(&asked);
        let router = self.router.clone();
        let hang_up = HangUp::of(self.shutdown.clone());
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            asks.store(true, Ordering::Relaxed);
            if let Some(identity) = &identity {
                request.extensions_mut().insert(identity.clone());
            }
            request.extensions_mut().insert(hang_up.clone());
            if let Some(address) = peer_address {
                request.extensions_mut().insert(address);
            }
            let router = router.clone();
            async move {
                let answered: Result<_, Infallible> =
                    router.oneshot(request.map(axum::body::Body::new)).await;
                answered
            }
        });
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.shutdown.cancelled() => {
                // Who has only just connected is about to ask, and would not know whether it was heard.
                let first = tokio::time::timeout(FIRST, connection.as_mut());
                match if asked.load(Ordering::Relaxed) { None } else { first.await.ok() } {
                    Some(ended) => ended,
                    None => {
                        connection.as_mut().graceful_shutdown();
                        connection.await
                    }
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended early");
        }
        drop((place, self.slot));
    }

    /// The handshake, and whom it shows.
    async fn greet(
        &self,
        stream: TcpStream,
        acceptor: &TlsAcceptor,
        address: &str,
    ) -> Option<(Box<TlsStream<TcpStream>>, Option<Identity>)> {
        let Some(_greeted) = self.server.inner.greeted.take(address) else {
            tracing::debug!(address, "too many connections that do not say who they are yet");
            return None;
        };
        let stream = match tokio::time::timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await.ok()? {
            Ok(stream) => Box::new(stream),
            Err(error) => {
                tracing::debug!(%error, "TLS handshake refused");
                return None;
            }
        };
        let peer = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        match peer.map(identity) {
            None => Some((stream, None)),
            Some(Some(identity)) => Some((stream, Some(identity))),
            Some(None) => {
                tracing::debug!("a client certificate names nobody");
                None
            }
        }
    }
}

/// Who a certificate of our client authority speaks for: its common name, and its organisations as groups.
fn identity(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = parsed.subject();
    let mut names = subject.iter_common_name();
    let user = names.next()?.as_str().ok()?.to_owned();
    if user.is_empty() || names.next().is_some() {
        return None;
    }
    let groups = subject.iter_organization().map(|group| group.as_str().ok().map(str::to_owned));
    let key = Some(super::pki::key_hash(parsed.public_key().raw));
    Some(Identity { user, groups: groups.collect::<Option<_>>()?, key })
}
