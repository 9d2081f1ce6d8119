//! HTTP and gRPC over the simulated network, and what can go wrong on the way.
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body as AxumBody;
use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection as Connects};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tower::{Service, ServiceExt};
use turmoil::net::{TcpListener, TcpStream};
use wharfline::api::meta::{AsSeen, Unrenewed, WithEnd, WithUid};
use wharfline::csi::Connection;
use wharfline::run::patience::patient;
use wharfline::run::servers::Servers;
use wharfline::server::{Identity, Server};

use crate::checks;
use crate::sight::Sight;
use crate::support::scripted::serve::Accept;
use crate::universe::{Universe, below, chance};

/// Where people sit.
pub const PEOPLE: &str = "people";
/// Where the API is: one server, or the first of several with a number behind it.
pub const SERVER: &str = "server";
const API_PORT: u16 = 7443;
/// Says who asks. The certificate does that in life.
const USER: &str = "x-simulated-user";
/// What a write of the controllers goes by.
const SILENT: &str = "x-simulated-silent";
/// Another object that it goes by.
const SEEN: &str = "x-seen";
/// In the place of a version: it is not there. A value that ended with a blank would arrive without it.
const NONE: &str = "-";
/// The uid of what is made.
const UID: &str = "x-uid";
/// That the end is asked for with a status.
const END: &str = "x-end";
/// The node's part of its own plugins' host, by plugin.
pub const PLUGINS: [&str; 2] = ["alpha", "beta"];

/// The faults of one host's way to the API.
#[derive(Clone)]
pub struct Link {
    /// So many replies in a thousand are lost after the request was carried out.
    pub lost_replies: u64,
    /// So many requests in a thousand are answered with 503 or 429 and not carried out.
    pub refused: u64,
    /// Watches tell nothing while this is set; later they tell everything.
    pub stalled: watch::Sender<bool>,
    /// Every watch of a lower number breaks.
    pub cut: watch::Sender<u64>,
    /// So many watches and further list pages are told that their revision is too old.
    pub gone: u64,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            lost_replies: 0,
            refused: 0,
            stalled: watch::Sender::new(false),
            cut: watch::Sender::new(0),
            gone: 0,
        }
    }
}

/// The name of the host that a node's plugins run on.
pub fn plugin_host(node: &str) -> String {
    format!("plugins-of-{node}")
}

/// Where a process of a plugin listens: each has a number on its node.
fn port(process: u16) -> u16 {
    9000 + process
}

/// A connection from a daemon to a plugin's process of its own node.
pub async fn to_plugin(node: &str, process: u16) -> io::Result<Box<dyn Connection>> {
    let stream = TcpStream::connect((plugin_host(node), port(process))).await?;
    Ok(Box::new(stream))
}

/// What a plugin's process listens on.
pub struct Listening(TcpListener);

impl Listening {
    pub async fn on(process: u16) -> io::Result<Self> {
        Ok(Self(TcpListener::bind(("0.0.0.0", port(process))).await?))
    }
}

#[async_trait]
impl Accept for Listening {
    async fn accept(&mut self) -> io::Result<Box<dyn Connection>> {
        let (stream, _) = self.0.accept().await?;
        Ok(Box::new(stream))
    }
}

/// Serves the API until the host ends.
pub async fn serve(server: Server) -> io::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", API_PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let router = server.router();
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let router = router.clone();
                async move {
                    let mut request = request.map(AxumBody::new);
                    if let Some(user) = request.headers().get(USER).and_then(|u| u.to_str().ok()) {
                        let identity = identity(user);
                        request.extensions_mut().insert(identity);
                    }
                    hear(&mut request);
                    let answered: Result<_, Infallible> = router.oneshot(request).await;
                    answered
                }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new());
            // A connection that breaks is the caller's business.
            let _ended = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// What the controllers say beside the wire, which within one process are extensions of the request, as headers.
fn say(request: &mut Request<kube::client::Body>) -> io::Result<()> {
    let mut said = Vec::new();
    if let Some(Unrenewed { node, version }) = request.extensions().get() {
        said.push((SILENT, format!("{node} {}", version.as_deref().unwrap_or(NONE))));
    }
    if let Some(AsSeen { plural, name, version }) = request.extensions().get() {
        said.push((SEEN, format!("{plural}/{name} {}", version.as_deref().unwrap_or(NONE))));
    }
    if let Some(WithUid(uid)) = request.extensions().get() {
        said.push((UID, uid.clone()));
    }
    if request.extensions().get::<WithEnd>().is_some() {
        said.push((END, "yes".to_owned()));
    }
    for (header, said) in said {
        request.headers_mut().insert(header, said.parse().map_err(io::Error::other)?);
    }
    Ok(())
}

/// The other end of [`say`].
fn hear<B>(request: &mut Request<B>) {
    let said = |header| request.headers().get(header).and_then(|value| value.to_str().ok());
    let seen = |header| {
        // What is said and not understood would be a guard that is lost on the way.
        let (what, version) = said(header)?.split_once(' ').expect("a name and a version");
        Some((what.to_owned(), (version != NONE).then(|| version.to_owned())))
    };
    let silent = seen(SILENT).map(|(node, version)| Unrenewed { node, version });
    let other = seen(SEEN).map(|(what, version)| {
        let (plural, name) = what.split_once('/').expect("a kind and a name");
        AsSeen { plural: plural.to_owned(), name: name.to_owned(), version }
    });
    let uid = said(UID).map(|uid| WithUid(uid.to_owned()));
    let ends = said(END).map(|_| WithEnd);
    let extensions = request.extensions_mut();
    silent.map(|silent| extensions.insert(silent));
    other.map(|other| extensions.insert(other));
    uid.map(|uid| extensions.insert(uid));
    ends.map(|ends| extensions.insert(ends));
}

fn identity(user: &str) -> Identity {
    match user.strip_prefix("node:") {
        Some(node) => Identity::node(node),
        None if user == "controllers" => Identity::controllers(),
        None => Identity::admin(),
    }
}

/// A stream that hyper's client can use.
struct Stream(TcpStream);

impl Connects for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[derive(Clone)]
struct ToServer(String);

impl Service<Uri> for ToServer {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let server = self.0.clone();
        Box::pin(async move {
            let connecting =
                tokio::time::timeout(Duration::from_secs(3), TcpStream::connect((server, API_PORT)));
            let stream = connecting.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            Ok(TokioIo::new(Stream(stream)))
        })
    }
}

type Frames = futures::stream::BoxStream<'static, io::Result<Frame<Bytes>>>;
type Answer = Response<StreamBody<Frames>>;

/// A client of the API for the process that runs on `host`: of one server, or of whichever of several answers.
pub fn client(universe: &Arc<Universe>, host: &str, user: &str) -> kube::Client {
    let names = universe.look().servers.clone();
    let mut clients: Vec<_> = names.iter().map(|server| one(universe, host, server, user)).collect();
    match clients.len() {
        1 => patient(clients.remove(0)),
        _ => {
            let servers = Arc::new(Servers::default());
            // Not everybody begins with the same one.
            let first = below(clients.len() as u64);
            clients.rotate_left(usize::try_from(first).unwrap_or(0));
            servers.set(clients);
            patient(servers.client())
        }
    }
}

fn one(universe: &Arc<Universe>, host: &str, server: &str, user: &str) -> kube::Client {
    let http: Client<ToServer, kube::client::Body> = Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .build(ToServer(server.to_owned()));
    let (host, server, user) = (host.to_owned(), server.to_owned(), user.to_owned());
    let way = Way { universe: Arc::clone(universe), host, server, user, http };
    let service = tower::service_fn(move |request| {
        let way = way.clone();
        async move { way.send(request).await }
    });
    kube::Client::new(service, "default")
}

/// The same client, whose changes are effects of `host`: for what asks its own server.
pub fn inside(universe: &Arc<Universe>, host: &str, client: kube::Client) -> kube::Client {
    let (universe, host) = (Arc::clone(universe), host.to_owned());
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (client, universe, host) = (client.clone(), Arc::clone(&universe), host.clone());
        async move {
            if request.method() == Method::GET {
                return client.send(request).await;
            }
            let what = format!("{} {}", request.method(), request.uri());
            universe.gate(&host, &what).await;
            let answer = client.send(request).await?;
            checks::asked(&mut universe.look(), &host, &what);
            universe.gate(&host, &format!("{what}: {}", answer.status().as_u16())).await;
            Ok(answer)
        }
    });
    kube::Client::new(service, "default")
}

#[derive(Clone)]
struct Way {
    universe: Arc<Universe>,
    host: String,
    server: String,
    user: String,
    http: Client<ToServer, kube::client::Body>,
}

impl Way {
    async fn send(&self, mut request: Request<kube::client::Body>) -> io::Result<Answer> {
        let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let changes = request.method() != Method::GET;
        let what = format!("{} {path}", request.method());
        let watch = path.contains("watch=true");
        if let Some(answer) = self.turned_away(changes, watch) {
            return Ok(answer);
        }
        // What people do is no effect of ours.
        let ours = self.host != PEOPLE;
        if changes && ours {
            self.universe.gate(&self.host, &what).await;
        }
        let uri = format!("http://{}:{API_PORT}{path}", self.server);
        *request.uri_mut() = uri.parse().map_err(io::Error::other)?;
        say(&mut request)?;
        request.headers_mut().insert(USER, self.user.parse().map_err(io::Error::other)?);
        let answer = self.http.request(request).await.map_err(io::Error::other)?;
        if changes {
            let answer = answer.map(whole);
            if self.unlucky(|link| link.lost_replies) {
                self.universe.note(&format!("{}: reply lost: {what}", self.host));
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if ours {
                checks::asked(&mut self.universe.look(), &self.host, &what);
                self.universe.gate(&self.host, &format!("{what}: {}", answer.status().as_u16())).await;
            }
            return Ok(answer);
        }
        let sight = if answer.status().is_success() { Sight::of(&self.host, &path) } else { None };
        Ok(answer.map(|body| if watch { self.watching(body, sight) } else { whole(body) }))
    }

    fn unlucky(&self, rate: impl Fn(&Link) -> u64) -> bool {
        let rate = self.universe.look().links.get(&self.host).map(rate);
        rate.is_some_and(|rate| rate > 0 && chance(rate))
    }

    /// What the API answers when it is too busy, or too far on.
    fn turned_away(&self, changes: bool, watch: bool) -> Option<Answer> {
        if watch {
            let mut inner = self.universe.look();
            let link = inner.links.get_mut(&self.host)?;
            if link.gone > 0 {
                link.gone -= 1;
                let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","message":"too old","code":410}"#;
                return Some(short(StatusCode::GONE, body));
            }
        }
        if changes && self.unlucky(|link| link.refused) {
            let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","message":"busy","code":429}"#;
            return Some(short(StatusCode::TOO_MANY_REQUESTS, body));
        }
        None
    }

    /// A watch, which can be stalled and cut.
    fn watching(&self, body: Incoming, sight: Option<Sight>) -> StreamBody<Frames> {
        let (stalled, cut) = {
            let mut inner = self.universe.look();
            let link = inner.links.entry(self.host.clone()).or_default();
            (link.stalled.subscribe(), link.cut.subscribe())
        };
        let born = *cut.borrow();
        let state = (body, stalled, cut, sight, Arc::clone(&self.universe));
        let frames = futures::stream::unfold(state, move |state| async move {
            let (mut body, mut stalled, mut cut, mut sight, universe) = state;
            let frame = tokio::select! {
                biased;
                _ = cut.wait_for(|now| *now > born) => Some(Err(io::ErrorKind::ConnectionReset.into())),
                frame = body.frame() => frame.map(|frame| frame.map_err(io::Error::other)),
            };
            let frame = frame?;
            if let (Some(sight), Ok(frame)) = (&mut sight, &frame)
                && let Some(bytes) = frame.data_ref()
            {
                sight.read(&universe, bytes);
            }
            // What stalls is told later, in order; what is cut meanwhile is never told.
            tokio::select! {
                biased;
                _ = cut.wait_for(|now| *now > born) => return None,
                _ = stalled.wait_for(|stalled| !*stalled) => {}
            }
            Some((frame, (body, stalled, cut, sight, universe)))
        });
        StreamBody::new(frames.boxed())
    }
}

fn short(status: StatusCode, body: &'static str) -> Answer {
    let frame = Ok(Frame::data(Bytes::from_static(body.as_bytes())));
    let frames: Frames = futures::stream::iter([frame]).boxed();
    let mut answer = Response::new(StreamBody::new(frames));
    *answer.status_mut() = status;
    answer
}

fn whole(body: Incoming) -> StreamBody<Frames> {
    let frames = futures::stream::unfold(body, |mut body| async move {
        let frame = body.frame().await?.map_err(io::Error::other);
        Some((frame, body))
    });
    StreamBody::new(frames.boxed())
}
