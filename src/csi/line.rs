//! One warm HTTP/2 channel to a plugin, and the count of its reconnects.
//!
//! A channel is made at the first call, connects when it is used, and connects again by itself after the plugin went
//! away. Never sends keepalive pings: a Go server drops an idle connection for them.
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tonic::transport::Endpoint;
use tower::Service;

use super::connector::{Connection, Connector};
use super::witness::Witnessed;

/// `:authority` of every call. A socket path there makes Rust and .NET servers reset the stream.
const ORIGIN: &str = "http://localhost";
/// Error texts travel in trailers; above the peer's limit the real code is lost, or the whole connection.
const MAX_HEADER_LIST: u32 = 1024 * 1024;
/// Calls that may wait for a connection at one time.
const WAITING_CALLS: usize = 1024;

/// The connections of one plugin, over all its channels. Clones count the same.
#[derive(Clone, Default)]
pub(crate) struct Counts {
    /// Those after the first of a channel.
    pub(crate) reconnects: watch::Sender<u64>,
    /// Those that are over.
    pub(crate) ends: watch::Sender<u64>,
    /// Those that the other end has taken and nobody has ended.
    pub(crate) open: Arc<AtomicUsize>,
}

/// A lazily made channel.
pub(crate) struct Line {
    dial: Dial,
    channel: Mutex<Option<Witnessed>>,
}

impl Line {
    /// A channel over `connector`, whose connections are counted in `counts`.
    pub(crate) fn new(connector: Arc<dyn Connector>, connect_timeout: Duration, counts: Counts) -> Self {
        let connected = Arc::new(AtomicBool::new(false));
        let dial = Dial { connector, connect_timeout, connected, counts };
        Self { dial, channel: Mutex::default() }
    }

    /// The channel, made now if this is the first use. Needs a tokio runtime.
    pub(crate) fn channel(&self) -> Witnessed {
        let make = || {
            let endpoint = Endpoint::from_static(ORIGIN)
                .http2_max_header_list_size(MAX_HEADER_LIST)
                .buffer_size(WAITING_CALLS);
            Witnessed::new(endpoint.connect_with_connector_lazy(self.dial.clone()))
        };
        self.made().get_or_insert_with(make).clone()
    }

    /// Lets go of the channel: calls under way end on it, the next one connects anew.
    pub(crate) fn hang_up(&self) {
        self.made().take();
    }

    fn made(&self) -> MutexGuard<'_, Option<Witnessed>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connector in the form that tonic wants, with a time limit and a count.
#[derive(Clone)]
struct Dial {
    connector: Arc<dyn Connector>,
    connect_timeout: Duration,
    connected: Arc<AtomicBool>,
    counts: Counts,
}

/// A connection whose end is counted: HTTP/2 reads all the time, so it drops it as soon as the plugin is gone.
struct Counted {
    connection: Box<dyn Connection>,
    counts: Counts,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
        self.counts.ends.send_modify(|count| *count += 1);
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(cx, into)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Counted>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let dial = self.clone();
        Box::pin(async move {
            let connecting = tokio::time::timeout(dial.connect_timeout, dial.connector.connect());
            let connection = connecting.await.map_err(|_| {
                io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no connection within {:?}", dial.connect_timeout),
                )
            })??;
            if dial.connected.swap(true, Ordering::Relaxed) {
                dial.counts.reconnects.send_modify(|count| *count += 1);
            }
            dial.counts.open.fetch_add(1, Ordering::Relaxed);
            Ok(TokioIo::new(Counted { connection, counts: dial.counts }))
        })
    }
}
