//! HTTP/2 for the scripted plugin, by hand: a gRPC server cannot be made to break the protocol.
use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use wharfline::csi::{Code, Connection};

use super::ask::Ask;
use super::backend::{Backend, Ending, Site, Wire};
use super::log::End;
use super::script::{Last, Parts};

/// Where connections come from.
#[async_trait]
pub trait Accept: Send + 'static {
    /// The next one.
    async fn accept(&mut self) -> io::Result<Box<dyn Connection>>;
}

#[async_trait]
impl Accept for tokio::net::UnixListener {
    async fn accept(&mut self) -> io::Result<Box<dyn Connection>> {
        let (stream, _) = tokio::net::UnixListener::accept(self).await?;
        Ok(Box::new(stream))
    }
}

type Frames = Pin<Box<dyn futures::Stream<Item = io::Result<Frame<Bytes>>> + Send>>;
type Answered = Response<StreamBody<Frames>>;

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Serves `backend` as the instance `site` until `down` is cancelled; then every connection is closed at once.
pub async fn serve(backend: Arc<Backend>, site: Site, mut listener: impl Accept, down: CancellationToken) {
    let site = Arc::new(site);
    let open = TaskTracker::new();
    loop {
        let connection = tokio::select! {
            biased;
            () = down.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok(connection) = connection else { break };
        let (backend, site, down) = (Arc::clone(&backend), Arc::clone(&site), down.clone());
        open.spawn(async move {
            let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
            let cut = down.child_token();
            let away = CancellationToken::new();
            let service = service_fn({
                let (cut, away) = (cut.clone(), away.clone());
                move |request| {
                    let call = Call {
                        backend: Arc::clone(&backend),
                        site: Arc::clone(&site),
                        number,
                        down: down.clone(),
                        cut: cut.clone(),
                        away: away.clone(),
                    };
                    async move { Ok::<_, Infallible>(call.answer(request).await) }
                }
            });
            let mut serving = std::pin::pin!(
                http2::Builder::new(TokioExecutor::new())
                    .max_header_list_size(1 << 20)
                    .serve_connection(TokioIo::new(connection), service)
            );
            loop {
                tokio::select! {
                    biased;
                    () = cut.cancelled() => break,
                    // A connection that breaks is the caller's business, or the script's.
                    _ended = serving.as_mut() => break,
                    () = away.cancelled(), if !away.is_cancelled() => {}
                }
                serving.as_mut().graceful_shutdown();
            }
            cut.cancel();
        });
    }
    drop(listener);
    open.close();
    open.wait().await;
}

/// One call's surroundings.
struct Call {
    backend: Arc<Backend>,
    site: Arc<Site>,
    number: u64,
    down: CancellationToken,
    cut: CancellationToken,
    /// The connection is closed once this call is answered.
    away: CancellationToken,
}

impl Call {
    async fn answer(self, request: Request<Incoming>) -> Answered {
        let cut = self.cut.clone();
        let rpc = Ask::rpc_of(request.uri().path());
        let of_volume = rpc.is_some_and(|rpc| matches!(rpc.name().split_once("Volume"), Some((_, ""))));
        let ending = tokio::select! {
            biased;
            // Handlers run in tasks of their own, which a closed connection does not end by itself.
            () = cut.cancelled() => Ending::Cut,
            ending = self.ending(request) => ending,
        };
        match ending {
            Ending::Reply(message) => {
                if of_volume && self.backend.goes_away() || self.backend.hangs_up() {
                    self.away.cancel();
                }
                let gzip = self.backend.gzips();
                let message = if gzip { framed(1, &gzipped(&message)) } else { framed(0, &message) };
                let mut answer = respond(vec![Ok(Frame::data(message)), Ok(status(0, ""))]);
                if gzip {
                    answer.headers_mut().insert("grpc-encoding", HeaderValue::from_static("gzip"));
                }
                answer
            }
            Ending::Stream { number, parts } => {
                let running = Running { backend: Arc::clone(&self.backend), number, how: End::Left };
                streaming(running, parts, self.cut.clone())
            }
            Ending::Status { code, message } => trailers_only(code, &message),
            Ending::BrokenDetails { code, message } => {
                let mut answer = trailers_only(code as i32, &message);
                let broken = HeaderValue::from_static("this is %% not base64");
                answer.headers_mut().insert("grpc-status-details-bin", broken);
                answer
            }
            Ending::Oversize(bytes) => {
                let mut head = BytesMut::from(&[0u8][..]);
                head.put_u32(bytes);
                respond(vec![Ok(Frame::data(head.freeze())), Ok(status(0, ""))])
            }
            Ending::NoStatus => respond(vec![Ok(Frame::data(framed(0, &[])))]),
            Ending::Http(code) => {
                let mut answer = respond(Vec::new());
                *answer.status_mut() = http::StatusCode::from_u16(code).expect("a test names a real status");
                answer
            }
            Ending::Cut => {
                self.cut.cancel();
                std::future::pending().await
            }
            Ending::Exit => {
                match &self.site.on_exit {
                    Some(exit) => exit(),
                    None => self.down.cancel(),
                }
                std::future::pending().await
            }
        }
    }

    async fn ending(&self, request: Request<Incoming>) -> Ending {
        let (head, body) = request.into_parts();
        let text =
            |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let wire = Wire {
            authority: head.uri.authority().map(ToString::to_string).unwrap_or_default(),
            timeout: text("grpc-timeout"),
            connection: self.number,
        };
        let Some(rpc) = Ask::rpc_of(head.uri.path()) else {
            let message = format!("unknown method {}", head.uri.path());
            return Ending::Status { code: Code::Unimplemented as i32, message };
        };
        match body.collect().await.map(http_body_util::Collected::to_bytes) {
            Ok(bytes) if bytes.len() >= 5 => self.backend.handle(&self.site, rpc, &bytes[5..], wire).await,
            Ok(_) | Err(_) => Ending::Cut,
        }
    }
}

/// A stream under way. Dropped before its end, it books that the caller has gone.
struct Running {
    backend: Arc<Backend>,
    number: usize,
    how: End,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.backend.finished(self.number, self.how);
    }
}

/// Sends a stream, as fast as it is read.
fn streaming(running: Running, parts: Parts, cut: CancellationToken) -> Answered {
    let Parts { messages, pause, gate, last } = parts;
    let frames = futures::stream::unfold(
        (running, messages.into_iter().enumerate(), Some(last)),
        move |(mut running, mut messages, last)| {
            let (gate, cut) = (gate.clone(), cut.clone());
            async move {
                if let Some((at, message)) = messages.next() {
                    if at > 0 && !pause.is_zero() {
                        tokio::time::sleep(pause).await;
                    }
                    return Some((Ok(Frame::data(framed(0, &message))), (running, messages, last)));
                }
                let last = last?;
                if let Some(gate) = &gate {
                    gate.passed().await;
                }
                running.how = match &last {
                    Last::Ok => End::Answered(Code::Ok),
                    Last::Fail(code, _) => End::Answered(*code),
                    Last::NoStatus => End::Broken,
                    Last::Cut => End::Gone,
                };
                match last {
                    Last::Ok => Some((Ok(status(0, "")), (running, messages, None))),
                    Last::Fail(code, text) => {
                        Some((Ok(status(code as i32, &text)), (running, messages, None)))
                    }
                    Last::NoStatus => None,
                    Last::Cut => {
                        // What came before is on its way first: the connection writes while this one waits.
                        for _ in 0..100 {
                            tokio::task::yield_now().await;
                        }
                        cut.cancel();
                        std::future::pending().await
                    }
                }
            }
        },
    );
    respond_with(Box::pin(frames))
}

fn respond(frames: Vec<io::Result<Frame<Bytes>>>) -> Answered {
    respond_with(Box::pin(futures::stream::iter(frames)))
}

fn respond_with(frames: Frames) -> Answered {
    let mut answer = Response::new(StreamBody::new(frames));
    answer.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    answer
}

fn trailers_only(code: i32, message: &str) -> Answered {
    let mut answer = respond(Vec::new());
    answer.headers_mut().extend(status_headers(code, message));
    answer
}

fn status(code: i32, message: &str) -> Frame<Bytes> {
    Frame::trailers(status_headers(code, message))
}

fn status_headers(code: i32, message: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", HeaderValue::from(code));
    // Percent-encoding of what a header cannot carry, as gRPC wants it.
    let encoded = message.bytes().fold(String::new(), |mut text, byte| {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => {
                let _infallible = write!(text, "%{byte:02X}");
            }
        }
        text
    });
    headers.insert("grpc-message", HeaderValue::from_str(&encoded).expect("encoded texts are plain"));
    headers
}

fn gzipped(message: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(message).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}

/// A message with the five bytes that gRPC puts before it, the first of which says whether it is compressed.
fn framed(compressed: u8, message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(message.len() + 5);
    bytes.put_u8(compressed);
    bytes.put_u32(u32::try_from(message.len()).expect("a test's message is small"));
    bytes.put_slice(message);
    bytes.freeze()
}
