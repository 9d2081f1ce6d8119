//! An etcd under several servers, and what goes wrong with it.
//!
//! It speaks etcd's gRPC to the product's own client of etcd, over a channel that is ours: what is simulated begins where
//! the bytes of a request leave that client. Every commit is held against the truth here, where it is made.
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use etcd_client::Channel;
use futures::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use prost::Message;
use serde_json::Value;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::{Code, ConnectError, Status};
use tower::BoxError;
use tower::util::BoxCloneSyncService;
use wharfline::store::etcd::{Dial, EtcdStore};

use crate::etcd_wire::{
    CompactionRequest, Event, RangeRequest, TxnRequest, WatchRequest, WatchResponse, Written,
};
use crate::mvcc::{COMPACTED, Change, Mvcc};
use crate::store::is_lease;
use crate::universe::{Universe, below, chance};

/// After so long without a word a connection is given up, as the client's keepalive does.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// After so long etcd itself gives a proposal up.
const PROPOSAL: Duration = Duration::from_secs(5);
/// Events told at once.
const BATCH: usize = 100;

type Answer = http::Response<Body>;

/// How the whole of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Its members have lost each other, and say so.
    NoLeader,
    /// Nothing is decided: a proposal times out, and may have been taken, or be taken yet.
    Stuck,
    /// Nobody is there.
    Down,
}

/// What a watch does wrong: faults that etcd had, and mended in 3.4.24 to 3.5.13.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Events are left out.
    Lost,
    /// Events come twice.
    Twice,
    /// It goes back in time, and comes again.
    Back,
    /// Later ones come first.
    Misordered,
}

struct Inner {
    mvcc: Mvcc,
    /// Whether a server's way to it is cut.
    cuts: BTreeMap<String, watch::Sender<bool>>,
    wrong: VecDeque<Wrong>,
    /// So many answers in a thousand are lost after the request was carried out.
    lost_replies: u64,
    /// The next read tells a state so many revisions old.
    stale: i64,
    /// Proposals that are taken yet, whoever has given them up.
    late: Vec<(Duration, TxnRequest)>,
}

pub struct Etcd {
    universe: Arc<Universe>,
    inner: Mutex<Inner>,
    news: watch::Sender<i64>,
    health: watch::Sender<Health>,
}

impl Etcd {
    pub fn new(universe: &Arc<Universe>, servers: &[String]) -> Arc<Self> {
        let inner = Inner {
            mvcc: Mvcc::new(),
            cuts: servers.iter().map(|server| (server.clone(), watch::Sender::new(false))).collect(),
            wrong: VecDeque::new(),
            lost_replies: 0,
            stale: 0,
            late: Vec::new(),
        };
        Arc::new(Self {
            universe: Arc::clone(universe),
            inner: Mutex::new(inner),
            news: watch::Sender::new(1),
            health: watch::Sender::new(Health::Well),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The product's own client of it, on the host of a server.
    pub async fn store(self: &Arc<Self>, server: &str) -> Result<EtcdStore, wharfline::store::StoreError> {
        let (etcd, server) = (Arc::clone(self), server.to_owned());
        let dial: Dial = Arc::new(move || {
            let (etcd, server) = (Arc::clone(&etcd), server.clone());
            let service = tower::service_fn(move |request: http::Request<Body>| {
                let (etcd, server) = (Arc::clone(&etcd), server.clone());
                async move { etcd.answer(&server, request).await }
            });
            Channel::Custom(BoxCloneSyncService::new(service))
        });
        let members = ["etcd-1", "etcd-2", "etcd-3"].map(str::to_owned);
        EtcdStore::over(dial, members.to_vec()).await
    }

    pub fn health(&self, health: Health) {
        self.universe.note(&format!("etcd: {health:?}"));
        self.health.send_replace(health);
    }

    pub fn cut(&self, server: &str, cut: bool) {
        self.universe.note(&format!("etcd: {server} is {}", if cut { "cut off" } else { "heard again" }));
        if let Some(way) = self.inner().cuts.get(server) {
            way.send_replace(cut);
        }
    }

    pub fn lose_replies(&self, per_mille: u64) {
        self.inner().lost_replies = per_mille;
    }

    /// The next answers of watches are wrong so.
    pub fn watches_go_wrong(&self, wrong: Wrong, times: u64) {
        self.universe.note(&format!("etcd: watches: {wrong:?}, {times} times"));
        self.inner().wrong.extend((0..times).map(|_| wrong));
    }

    /// The next read tells of an older state.
    pub fn go_back(&self, by: i64) {
        self.universe.note(&format!("etcd: a read goes back by {by}"));
        self.inner().stale = by;
    }

    /// All history is forgotten, under whoever reads it.
    pub fn compact(&self) {
        let mut inner = self.inner();
        let now = inner.mvcc.revision;
        self.universe.note(&format!("etcd: compacted at {now}: {:?}", inner.mvcc.compact(now)));
    }

    /// It is restored from a backup of this moment: another cluster.
    pub fn restore(&self) {
        let mut inner = self.inner();
        inner.mvcc.restore();
        inner.late.clear();
        self.universe.note(&format!("etcd: restored, at revision {}", inner.mvcc.revision));
        self.news.send_replace(inner.mvcc.revision);
    }

    /// Everything is well from now on.
    pub fn heal(&self) {
        self.health.send_replace(Health::Well);
        let mut inner = self.inner();
        inner.cuts.values().for_each(|cut| {
            cut.send_replace(false);
        });
        (inner.lost_replies, inner.stale) = (0, 0);
        inner.wrong.clear();
    }

    /// What was on its way for long arrives.
    pub fn step(&self, now: Duration) {
        if self.inner().late.is_empty() {
            return;
        }
        let mut inner = self.inner();
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut inner.late).into_iter().partition(|(at, _)| *at <= now);
        inner.late = later;
        for (_, txn) in due {
            self.universe.note("etcd: a late proposal is taken");
            self.commit(&mut inner, &txn);
        }
    }

    fn commit(&self, inner: &mut Inner, txn: &TxnRequest) -> Bytes {
        let (answer, changes) = inner.mvcc.txn(txn);
        for change in &changes {
            self.note(change);
        }
        if !changes.is_empty() {
            self.news.send_replace(inner.mvcc.revision);
        }
        framed(&answer)
    }

    fn note(&self, change: &Change) {
        let name = String::from_utf8_lossy(&change.key).into_owned();
        if is_lease(&name) {
            return;
        }
        let revision = u64::try_from(change.revision).unwrap_or_default();
        let mut universe = self.universe.look();
        match &change.new {
            Some(kv) => {
                let object: Option<Value> = serde_json::from_slice(&kv.value).ok();
                universe.put(&name, object, revision, change.old.is_none());
            }
            None => universe.deleted(&name, revision),
        }
    }

    async fn answer(self: Arc<Self>, server: &str, request: http::Request<Body>) -> Result<Answer, BoxError> {
        let path = request.uri().path().to_owned();
        let mut body = request.into_body();
        let asked = first(&mut body).await?;
        self.way(server).await?;
        pause().await;
        match &*path {
            "/etcdserverpb.Watch/Watch" => Arc::clone(&self).watch(server, asked, body),
            "/etcdserverpb.KV/Txn" => self.txn(server, TxnRequest::decode(asked)?).await,
            "/etcdserverpb.KV/Range" => self.read(server, &RangeRequest::decode(asked)?).await,
            "/etcdserverpb.KV/Compact" => {
                let at = CompactionRequest::decode(asked)?.revision;
                let mut inner = self.inner();
                Ok(match inner.mvcc.compact(at) {
                    Ok(()) => one(framed(&Written { header: Some(inner.mvcc.header()) })),
                    Err(why) => refused(Code::OutOfRange, why),
                })
            }
            other => Ok(refused(Code::Unimplemented, other)),
        }
    }

    /// The way there, and a member that answers.
    async fn way(&self, server: &str) -> Result<(), BoxError> {
        let cut = self.inner().cuts.get(server).map(watch::Sender::subscribe);
        if let Some(mut cut) = cut
            && *cut.borrow()
        {
            // What was sent waits for the way until the connection is given up; nothing arrived until then.
            let heard = tokio::time::timeout(KEEPALIVE, cut.wait_for(|cut| !*cut)).await;
            if heard.is_err() {
                let late: BoxError = Box::new(io::Error::from(io::ErrorKind::TimedOut));
                return Err(if chance(500) { Box::new(ConnectError(late)) } else { broken() });
            }
        }
        match *self.health.borrow() {
            Health::Well | Health::Stuck => Ok(()),
            Health::NoLeader => Err(Box::new(no_leader())),
            Health::Down => {
                let refused: BoxError = Box::new(io::Error::from(io::ErrorKind::ConnectionRefused));
                Err(Box::new(ConnectError(refused)))
            }
        }
    }

    async fn txn(&self, server: &str, txn: TxnRequest) -> Result<Answer, BoxError> {
        if *self.health.borrow() == Health::Stuck {
            if chance(500) {
                let at = self.universe.look().now + Duration::from_millis(below(8000));
                self.inner().late.push((at, txn));
            }
            tokio::time::sleep(PROPOSAL).await;
            return Ok(refused(Code::Unavailable, "etcdserver: request timed out"));
        }
        let (answer, lost) = {
            let mut inner = self.inner();
            (self.commit(&mut inner, &txn), inner.lost_replies)
        };
        self.back(server, lost, answer).await
    }

    async fn read(&self, server: &str, range: &RangeRequest) -> Result<Answer, BoxError> {
        if *self.health.borrow() == Health::Stuck {
            tokio::time::sleep(PROPOSAL).await;
            return Ok(refused(Code::Unavailable, "etcdserver: request timed out"));
        }
        let (answer, lost) = {
            let mut inner = self.inner();
            let answer = match std::mem::take(&mut inner.stale) {
                0 => inner.mvcc.range(range),
                by => inner.mvcc.earlier(by).range(range),
            };
            (answer, inner.lost_replies)
        };
        match answer {
            Ok(answer) => self.back(server, lost, framed(&answer)).await,
            Err(why) => Ok(refused(Code::OutOfRange, why)),
        }
    }

    /// The way back of an answer.
    async fn back(&self, server: &str, lost: u64, answer: Bytes) -> Result<Answer, BoxError> {
        pause().await;
        if lost > 0 && chance(lost) {
            self.universe.note(&format!("etcd: an answer to {server} is lost"));
            return Err(broken());
        }
        let cut = self.inner().cuts.get(server).is_some_and(|cut| *cut.borrow());
        if cut {
            self.way(server).await.map_err(|_| broken())?;
        }
        Ok(one(answer))
    }

    fn watch(self: Arc<Self>, server: &str, asked: Bytes, body: Body) -> Result<Answer, BoxError> {
        let create = WatchRequest::decode(asked)?.create_request.ok_or("a watch begins with its creation")?;
        let inner = self.inner();
        let (header, cluster) = (inner.mvcc.header(), inner.mvcc.cluster);
        let cut = inner.cuts.get(server).map(watch::Sender::subscribe).ok_or("a server is known")?;
        drop(inner);
        let created = WatchResponse { header: Some(header), created: true, ..WatchResponse::default() };
        let watching = Watching {
            at: create.start_revision - 1,
            cluster,
            news: self.news.subscribe(),
            health: self.health.subscribe(),
            cut,
            etcd: self,
            _asked: body,
        };
        let more = futures::stream::unfold(Some(watching), |watching| async move {
            let mut watching = watching?;
            let told = watching.next().await;
            let over = told.as_ref().map_or(true, |answer| answer.canceled);
            let frame = told.map(|answer| Frame::data(framed(&answer)));
            Some((frame, (!over).then_some(watching)))
        });
        let begun = futures::stream::iter([Ok(Frame::data(framed(&created)))]);
        Ok(response(Body::new(StreamBody::new(begun.chain(more).boxed()))))
    }
}

/// One watch of all keys.
struct Watching {
    etcd: Arc<Etcd>,
    /// Everything up to here was told.
    at: i64,
    cluster: u64,
    news: watch::Receiver<i64>,
    health: watch::Receiver<Health>,
    cut: watch::Receiver<bool>,
    _asked: Body,
}

impl Watching {
    async fn next(&mut self) -> Result<WatchResponse, Status> {
        loop {
            let at = self.at;
            tokio::select! {
                biased;
                health = self.health.wait_for(|health| matches!(health, Health::NoLeader | Health::Down)) => {
                    let down = health.is_ok_and(|health| *health == Health::Down);
                    return Err(if down { Status::unavailable("the connection was reset") } else { no_leader() });
                }
                _ = self.cut.wait_for(|cut| *cut) => {}
                _ = self.news.wait_for(|now| *now > at) => {}
            }
            if *self.cut.borrow() {
                let heard = tokio::time::timeout(KEEPALIVE, self.cut.wait_for(|cut| !*cut)).await;
                if heard.is_err() {
                    return Err(Status::unavailable("keep-alive timed out"));
                }
                continue;
            }
            pause().await;
            if let Some(answer) = self.told()? {
                return Ok(answer);
            }
        }
    }

    /// What is told next, if it is not lost.
    fn told(&mut self) -> Result<Option<WatchResponse>, Status> {
        let mut inner = self.etcd.inner();
        if inner.mvcc.cluster != self.cluster {
            return Err(Status::unavailable("the connection was reset"));
        }
        let header = Some(inner.mvcc.header());
        if self.at + 1 < inner.mvcc.compacted {
            let compact_revision = inner.mvcc.compacted;
            return Ok(Some(WatchResponse {
                header,
                canceled: true,
                compact_revision,
                ..WatchResponse::default()
            }));
        }
        let mut events = inner.mvcc.after(self.at, BATCH);
        let Some(last) = events.last().and_then(|event| event.kv.as_ref()) else { return Ok(None) };
        let before = std::mem::replace(&mut self.at, last.mod_revision);
        let wrong = inner.wrong.pop_front();
        match wrong {
            None => {}
            Some(Wrong::Lost) => events.truncate(events.len() / 2),
            Some(Wrong::Twice) => events.extend(events.clone()),
            Some(Wrong::Back) => {
                let again = inner.mvcc.after(before - 5, BATCH);
                events.extend(again);
            }
            Some(Wrong::Misordered) => events.reverse(),
        }
        if let Some(wrong) = wrong {
            let revisions: Vec<_> = events.iter().map(revision).collect();
            self.etcd.universe.note(&format!("etcd: a watch tells {revisions:?} after {before}: {wrong:?}"));
        }
        Ok((!events.is_empty()).then(|| WatchResponse { header, events, ..WatchResponse::default() }))
    }
}

fn revision(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

/// On the way.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(below(5))).await;
}

fn no_leader() -> Status {
    Status::unavailable("etcdserver: no leader")
}

/// The connection broke: nobody knows what was done.
fn broken() -> BoxError {
    Box::new(Status::unavailable("the connection was reset"))
}

/// The first message of a request.
async fn first(body: &mut Body) -> Result<Bytes, BoxError> {
    let mut all = BytesMut::new();
    loop {
        if all.len() >= HEAD {
            let length = usize::try_from(u32::from_be_bytes([all[1], all[2], all[3], all[4]]))?;
            if all.len() >= HEAD + length {
                return Ok(all.freeze().slice(HEAD..HEAD + length));
            }
        }
        let frame = body.frame().await.ok_or("a request has a message")??;
        all.extend_from_slice(frame.data_ref().ok_or("a request has no trailers")?);
    }
}

/// Before each message: whether it is compressed, and its length.
const HEAD: usize = 5;

fn framed(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEAD + message.encoded_len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.encoded_len()).expect("a message is short"));
    message.encode(&mut bytes).expect("there is room for it");
    bytes.freeze()
}

fn response(body: Body) -> Answer {
    let mut answer = http::Response::new(body);
    answer.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    answer
}

/// One message and an OK.
fn one(message: Bytes) -> Answer {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let frames = [Ok::<_, Status>(Frame::data(message)), Ok(Frame::trailers(trailers))];
    response(Body::new(StreamBody::new(futures::stream::iter(frames))))
}

fn refused(code: Code, why: &str) -> Answer {
    assert!(code != Code::OutOfRange || why.starts_with("etcdserver: mvcc:"), "{COMPACTED}");
    Status::new(code, why).into_http()
}
