//! One plugin on one socket: how a call is made, limited, judged and reported.
//!
//! A call about a volume first waits for its turn, then runs under its deadline, which goes to the plugin as
//! `grpc-timeout` and is kept here too. Its result is OK, or a [`Failure`] of one class; its end is reported to the
//! observer. Never retries, and never reads a code: that is [`failure`]'s.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::uri::PathAndQuery;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::confided::{Confided, Told};
use super::connector::Connector;
use super::failure::Failure;
use super::gates::Alpha;
use super::line::{Counts, Line};
use super::observer::{InFlight, Observer};
use super::owed::{About, Asked, Owed};
use super::rpc::{Question, Rpc, Unary};
use super::turns::{Key, Manner, Turn, Turns};
use super::witness;

/// The largest answer read. `ListVolumes` of a large backend needs more than the 4 MiB that are usual.
const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// The longest that a call which only reads may take, whatever its terms say: meanwhile others about the same volume,
/// snapshot or group wait. Statistics of a file server that is gone come never.
pub const LONGEST_READ: Duration = Duration::from_secs(5);

/// Under what terms one attempt is made.
#[derive(Clone, Debug)]
pub struct Terms {
    /// How long an answer is waited for, from sending. Waiting for a turn is not counted.
    pub deadline: Duration,
    /// Which attempt this is, from 1; only reported.
    pub attempt: u32,
    /// The lease without which it is not sent: it may run out while the call waits for its turn.
    pub lease: Option<Lease>,
    /// Who lets it through when its turn has come.
    pub gate: Option<Arc<dyn Gate>>,
    /// Whether what the contract calls alpha may be sent, even where the plugin's options do not say so.
    pub alpha: Alpha,
}

/// Lets a call about a volume through to one process of a driver, or not. The process is chosen before the call waits for
/// its turn, and may be the wrong one by then.
#[async_trait]
pub trait Gate: fmt::Debug + Send + Sync {
    /// Whether it may be sent. The call counts as under way while this is asked, and nobody else is asked about the volume.
    /// `changes` is false of a call that only reads: whatever becomes of it, nothing is owed to it.
    async fn open(&self, changes: bool) -> bool;

    /// The plugin is done with a call that changes something, and said so. Never asked of one that only reads: that says
    /// nothing of another one that may be under way still.
    async fn over(&self);
}

/// A right that ends by itself. It is over for good once it was not renewed in time: whoever renews later has another.
#[derive(Clone, Debug)]
pub struct Lease {
    /// How it stands now.
    pub tenure: watch::Receiver<Tenure>,
    /// How long it lasts from its last renewal.
    pub lasts: Duration,
    /// The unbroken run of renewals that this one is of.
    pub term: u64,
}

/// How a lease stands. Both are told at once: who hears of a new term finds it renewed, and who holds one of the term
/// before never does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tenure {
    /// The present unbroken run of renewals, from 1; 0 before the first.
    pub term: u64,
    /// When it was last renewed.
    pub renewed: Option<Instant>,
}

impl Lease {
    /// Whether it lasts still.
    pub fn is_valid(&self) -> bool {
        let tenure = *self.tenure.borrow();
        tenure.term == self.term && tenure.renewed.is_some_and(|at| at.elapsed() < self.lasts)
    }
}

impl From<Duration> for Terms {
    fn from(deadline: Duration) -> Self {
        Self { deadline, attempt: 1, lease: None, gate: None, alpha: Alpha::Off }
    }
}

/// What a [`Plugin`] needs beside its connector.
#[derive(Clone)]
pub struct PluginOptions {
    /// How long one connection may take.
    pub connect_timeout: Duration,
    /// Told of each call when it ends.
    pub observer: Option<Arc<dyn Observer>>,
    /// Whom its calls take turns with: another process of the same driver may know the same volumes.
    pub turns: Turns,
    /// What is kept out of its answers: another process of the same driver may know the same secrets.
    pub confided: Confided,
    /// Whether what the contract calls alpha is sent.
    pub alpha: Alpha,
}

impl Default for PluginOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            observer: None,
            turns: Turns::default(),
            confided: Confided::default(),
            alpha: Alpha::Off,
        }
    }
}

/// A plugin reached through one connector. Clones share everything.
#[derive(Clone)]
pub struct Plugin {
    shared: Arc<Shared>,
}

struct Shared {
    connector: Arc<dyn Connector>,
    connect_timeout: Duration,
    calls: Line,
    /// Probes travel apart: one oversized error text or protocol fault ends all calls of a connection.
    probes: Line,
    turns: Turns,
    own_turns: Turns,
    owed: Arc<Owed>,
    alpha: Alpha,
    observer: Option<Arc<dyn Observer>>,
    counts: Counts,
    vouched: watch::Sender<Option<u64>>,
    confided: Confided,
    /// It was ever sent a secret.
    was_confided: AtomicBool,
}

impl Plugin {
    /// A plugin that is connected to when it is first called. Does no I/O.
    pub fn new(connector: impl Connector, options: PluginOptions) -> Self {
        let connector: Arc<dyn Connector> = Arc::new(connector);
        let counts = Counts::default();
        let line = || Line::new(Arc::clone(&connector), options.connect_timeout, counts.clone());
        let (calls, probes) = (line(), line());
        Self {
            shared: Arc::new(Shared {
                connector,
                connect_timeout: options.connect_timeout,
                calls,
                probes,
                turns: options.turns,
                own_turns: Turns::default(),
                owed: Arc::default(),
                alpha: options.alpha,
                observer: options.observer,
                counts,
                vouched: watch::Sender::new(None),
                confided: options.confided,
                was_confided: AtomicBool::new(false),
            }),
        }
    }

    /// How often a connection had to be made anew. A change means that the plugin may be another process, even
    /// another version: whoever relies on its identity and capabilities reads them again. One restart can count
    /// twice, since probes have a connection of their own.
    pub fn reconnects(&self) -> watch::Receiver<u64> {
        self.shared.counts.reconnects.subscribe()
    }

    /// How many connections are over. A change is the first sign that the plugin may be gone, and no more than that:
    /// ask it.
    pub fn ends(&self) -> watch::Receiver<u64> {
        self.shared.counts.ends.subscribe()
    }

    /// Whether the other end has taken a connection and not ended it since; that it says anything is not said by that.
    pub fn is_connected(&self) -> bool {
        self.shared.counts.open.load(Ordering::Relaxed) > 0
    }

    /// Whether it may be at work on a call about this volume, by handle or name, that was given up without its answer.
    pub fn owes(&self, volume: &str) -> bool {
        self.shared.owed.has(&About::Volume(volume.to_owned()))
    }

    /// The same of a snapshot, by id or name.
    pub fn owes_snapshot(&self, snapshot: &str) -> bool {
        self.shared.owed.has(&About::Snapshot(snapshot.to_owned()))
    }

    /// The same of a group snapshot, by id or name.
    pub fn owes_group_snapshot(&self, group: &str) -> bool {
        self.shared.owed.has(&About::Group(group.to_owned()))
    }

    /// An earlier daemon asked it about the volume and heard no answer, as far as is known. `until` when it is done with that
    /// at the latest, where that is known.
    pub fn owe(&self, volume: &str, until: Option<Instant>) {
        self.shared.owed.inherit(volume, until);
    }

    /// Its process is gone, and what it was doing with it.
    pub fn forget_owed(&self) {
        self.shared.owed.forget();
    }

    /// Whether it was ever sent a secret: what its process prints may hold it.
    pub fn was_confided(&self) -> bool {
        self.shared.was_confided.load(Ordering::Relaxed)
    }

    /// How many calls about volumes are under way.
    pub fn under_way(&self) -> watch::Receiver<usize> {
        self.shared.owed.under_way()
    }

    /// Says that this driver was at the other end after so many connections were over ([`Self::ends`], read before it was
    /// asked). From the first time on, a call about a volume is sent only while that is still so. Another driver in the
    /// same place would answer OK to the deletion of what it never knew.
    /// Returns whether it is still so now.
    pub fn vouch(&self, ends: u64) -> bool {
        self.shared.vouched.send_replace(Some(ends));
        self.is_vouched()
    }

    /// Whether what was vouched for is still so, or nobody ever did.
    pub fn is_vouched(&self) -> bool {
        self.shared.vouched.borrow().is_none_or(|ends| ends == *self.shared.counts.ends.borrow())
    }

    /// Lets go of the connections, for another socket is at the path: calls under way end on them, all others go to it.
    pub fn hang_up(&self) {
        // No count of ends is ever this.
        self.shared.vouched.send_modify(|vouched| *vouched = vouched.map(|_| u64::MAX));
        self.shared.calls.hang_up();
        self.shared.probes.hang_up();
    }

    /// One attempt over the connection for calls.
    pub(crate) async fn call<Q: Unary>(
        &self,
        request: Q,
        terms: impl Into<Terms>,
    ) -> Result<Q::Reply, Failure> {
        self.attempt(&self.shared.calls, request, terms.into(), |_| Ok(())).await
    }

    /// Like [`call`](Self::call), with a check without which an OK is worth nothing.
    pub(crate) async fn call_checked<Q: Unary>(
        &self,
        request: Q,
        terms: impl Into<Terms>,
        check: impl FnOnce(&Q::Reply) -> Result<(), Failure> + Send,
    ) -> Result<Q::Reply, Failure> {
        self.attempt(&self.shared.calls, request, terms.into(), check).await
    }

    /// One attempt over the connection for probes.
    pub(crate) async fn call_apart<Q: Unary>(
        &self,
        request: Q,
        terms: impl Into<Terms>,
    ) -> Result<Q::Reply, Failure> {
        self.attempt(&self.shared.probes, request, terms.into(), |_| Ok(())).await
    }

    /// Whether what the contract calls alpha is sent in such a call.
    pub(crate) fn alpha(&self, terms: &Terms) -> Alpha {
        if terms.alpha == Alpha::On { Alpha::On } else { self.shared.alpha }
    }

    /// What is kept out of the answer to a request with these secrets.
    pub(crate) fn tell(&self, secrets: Option<&BTreeMap<String, String>>) -> Told {
        self.shared.confided.tell(secrets)
    }

    /// A connection of its own, whose end says nothing of the others: for what is read for long, or not fast enough.
    pub(crate) fn line_apart(&self) -> Line {
        Line::new(Arc::clone(&self.shared.connector), self.shared.connect_timeout, Counts::default())
    }

    /// Waits until the call may be sent, or says why it is not.
    pub(crate) async fn admit<Q: Question>(&self, request: &Q, terms: &Terms) -> Result<Admitted, Failure> {
        if Q::RPC.is_alpha() && self.alpha(terms) == Alpha::Off {
            return Err(Failure::switched_off(Q::RPC));
        }
        let asked = Instant::now();
        let keys = request.keys();
        let subject = keys.first().and_then(Key::subject).map(str::to_owned);
        // Each process is asked for itself how it is.
        let table = if keys.contains(&Key::Readiness) { &self.shared.own_turns } else { &self.shared.turns };
        let Some(turns) = table.take(&keys, Q::MANNER).await else {
            return Err(Failure::busy(Q::RPC));
        };
        self.may_send(Q::RPC, terms, subject.as_deref())?;
        let about = keys.iter().filter_map(About::of).collect::<Vec<_>>();
        let mut asked_of = subject.is_some().then(|| self.shared.owed.begin(about));
        // Counted before it is asked: who drains the process sees either this call, or that it is turned away.
        if let Some(gate) = &terms.gate
            && !gate.open(Q::MANNER == Manner::Alone).await
        {
            asked_of.iter_mut().for_each(Asked::not_sent);
            return Err(Failure::turned_away(Q::RPC));
        }
        // It may have stayed there for a moment.
        if terms.gate.is_some()
            && let Err(failure) = self.may_send(Q::RPC, terms, subject.as_deref())
        {
            asked_of.iter_mut().for_each(Asked::not_sent);
            return Err(failure);
        }
        if Q::MANNER != Manner::Alone {
            // Whatever became of it, it has changed nothing.
            asked_of.iter_mut().for_each(Asked::not_sent);
        }
        if request.secrets().is_some_and(|secrets| !secrets.is_empty()) {
            self.shared.was_confided.store(true, Ordering::Relaxed);
        }
        let call = InFlight::new(self.shared.observer.clone(), Q::RPC, subject, terms.attempt, asked);
        Ok(Admitted { call, asked_of, asked, _turns: turns })
    }

    /// Not waited for here: what the caller decided on may be over by then.
    fn may_send(&self, rpc: Rpc, terms: &Terms, subject: Option<&str>) -> Result<(), Failure> {
        if subject.is_some() && !self.is_vouched() {
            return Err(Failure::unvouched(rpc));
        }
        if terms.lease.as_ref().is_some_and(|lease| !lease.is_valid()) {
            return Err(Failure::too_late(rpc));
        }
        Ok(())
    }

    async fn attempt<Q: Unary>(
        &self,
        line: &Line,
        request: Q,
        terms: Terms,
        check: impl FnOnce(&Q::Reply) -> Result<(), Failure>,
    ) -> Result<Q::Reply, Failure> {
        let mut admitted = self.admit(&request, &terms).await?;
        let deadline = match Q::MANNER {
            Manner::IfFree => terms.deadline.min(LONGEST_READ),
            Manner::Alone | Manner::Beside => terms.deadline,
        };
        effect!("{}", Q::RPC.name());
        let told = self.tell(request.secrets());
        let result = exchange(line, request, &told, deadline).await.and_then(|mut reply| {
            check(&reply).map_err(|failure| told.of_answer(failure))?;
            told.kept_out(&mut reply);
            Ok(reply)
        });
        effect!("{}: answered", Q::RPC.name());
        let took = admitted.asked.elapsed();
        tracing::trace!(target: "life", rpc = ?Q::RPC, ?took, ok = result.is_ok(), "call");
        admitted.call.end(result.as_ref().map(|_| ()));
        if let Some(asked_of) = &mut admitted.asked_of
            && Q::MANNER == Manner::Alone
            && result.as_ref().err().is_none_or(Failure::is_over)
        {
            asked_of.answered();
            if let Some(gate) = &terms.gate {
                gate.over().await;
            }
        }
        result
    }
}

/// A call that may be sent. Dropped, it is over; who waits for its turn goes last of all.
pub(crate) struct Admitted {
    pub(crate) call: InFlight,
    asked_of: Option<Asked>,
    asked: Instant,
    _turns: Vec<Turn>,
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin")
            .field("reconnects", &*self.shared.counts.reconnects.borrow())
            .finish_non_exhaustive()
    }
}

/// Sends one request and waits for what comes of it.
async fn exchange<Q: Unary>(
    line: &Line,
    request: Q,
    told: &Told,
    deadline: Duration,
) -> Result<Q::Reply, Failure> {
    let carried = request.secrets().is_some_and(|secrets| !secrets.is_empty());
    let mut request = Request::new(request);
    request.set_timeout(deadline);
    // We never compress; a plugin may all the same.
    let mut client = Grpc::new(line.channel())
        .max_decoding_message_size(MAX_ANSWER)
        .accept_compressed(CompressionEncoding::Gzip);
    let answer = async {
        client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        let codec = ProstCodec::<Q, Q::Reply>::default();
        client.unary(request, PathAndQuery::from_static(Q::RPC.path()), codec).await
    };
    match tokio::time::timeout(deadline, answer).await {
        Err(_) => Err(Failure::deadline(Q::RPC, deadline)),
        Ok(Err(status)) => Err(Failure::from_status(Q::RPC, &status, told).of_request(carried)),
        Ok(Ok(reply)) if witness::peer_code(reply.metadata()) == Some(Code::Ok) => Ok(reply.into_inner()),
        Ok(Ok(_)) => Err(Failure::unconfirmed(Q::RPC)),
    }
}
