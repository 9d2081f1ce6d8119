//! The etcd backend: keys, revisions, transactions and watches are etcd's own.
//!
//! ```text
//! put, delete ─ one transaction: compare, write, else read ─┐
//! get, list, revision, compact ─────────────────────────────┼─ one balanced channel to all endpoints
//! watch ─ every write of the whole etcd, from one stream ───┘
//! ```
//! A watch follows all keys, not only its prefix: every revision of etcd then shows up in it, so that a revision that
//! is left out or told twice is noticed, and how far the watch has come is known without asking. That wants an etcd of
//! our own; what others write into it only costs time.
//!
//! It never repeats a write that may have been sent, and never takes the local member's word for the cluster's (all reads
//! are linearizable). It serves one cluster: when another id answers (a restored backup, or members of several clusters),
//! it fails for good and says so ([`EtcdStore::moved`]), for what its users hold is of another history. So it does when an
//! answer is of an older state than one that had come before it was asked for: all its reads are linearizable, so that a
//! revision that goes down is a fault of etcd, or a loss.
//!
//! An etcd that nobody wrote to is at revision 1, not 0.
mod failure;
mod track;
mod version;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::{
    Certificate, Channel, Client, Compare, CompareOp, ConnectOptions, GetOptions, GetResponse, Identity,
    KeyValue, KvClient, ResponseHeader, TlsOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use tokio_util::sync::CancellationToken;

use self::failure::{Asked, Told};
pub use self::version::{Trust, Version, trust, trusted};
use super::{Expect, KEY_LIMIT, Kv, LEADER, OfKey, Page, Rev, Store, StoreError, VALUE_LIMIT, Watch};

/// Keys asked for at once.
const PAGE: usize = 500;
/// Longest answer taken, in bytes: a page of the longest values.
const ANSWER_LIMIT: usize = (PAGE + 1) * (VALUE_LIMIT + KEY_LIMIT);
/// How long connecting to one endpoint may take.
const CONNECT: Duration = Duration::from_secs(2);
/// A connection that is silent for so long is asked whether it lives: etcd takes it ill more often than each 5 s.
const SILENT: Duration = Duration::from_secs(6);
/// How long it may take for the answer to that.
const ALIVE: Duration = Duration::from_secs(4);
/// The revision of an etcd to which nothing was ever written.
const FIRST: Rev = Rev(1);

/// Where etcd is and how it is spoken to.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `HOST:PORT` of every member.
    pub endpoints: Vec<String>,
    /// What every key begins with in etcd; empty for nothing.
    pub root: Vec<u8>,
    /// For members that want TLS.
    pub tls: Option<Tls>,
}

/// How to know the members, and how they know us.
#[derive(Clone, Default)]
pub struct Tls {
    /// The CA of the members' certificates, as PEM.
    pub ca: Vec<u8>,
    /// Our certificate and its key, as PEM, where they want one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

// The key is nobody's business.
impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("identity", &self.identity.is_some()).finish_non_exhaustive()
    }
}

/// A store in etcd. Cloning is cheap: clones share their connections.
#[derive(Clone)]
pub struct EtcdStore {
    client: Client,
    shared: Arc<Shared>,
    way: Way,
}

/// Makes a connection to etcd that is not one of its client's own: that of a simulated network.
pub type Dial = Arc<dyn Fn() -> Channel + Send + Sync>;

/// How etcd is reached.
#[derive(Clone)]
enum Way {
    Endpoints(ConnectOptions),
    Dial(ConnectOptions, Dial),
}

impl Way {
    async fn client(&self, endpoints: &[String]) -> Result<Client, StoreError> {
        let client = match self {
            Self::Endpoints(options) => Client::connect(endpoints, Some(options.clone())).await,
            Self::Dial(options, dial) => Client::from_channel(dial(), Some(options.clone())).await,
        };
        client.map_err(|error| failure::failed(error, Asked::Read))
    }

    fn options(&self) -> &ConnectOptions {
        match self {
            Self::Endpoints(options) | Self::Dial(options, _) => options,
        }
    }
}

/// One member as it tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its address.
    pub endpoint: String,
    /// Its version.
    pub version: String,
    /// The cluster that it is of.
    pub cluster: u64,
}

struct Shared {
    root: Vec<u8>,
    endpoints: Vec<String>,
    /// Cancelled when another cluster answered, or an older state.
    moved: CancellationToken,
    /// The revision behind which events were missing last.
    missing: AtomicU64,
    /// How often a call that found nobody to connect to is made.
    tries: usize,
    /// The one cluster that may answer; a restored one has another id. Zero: none answered yet.
    cluster: AtomicU64,
    /// The compaction is known to be here or above.
    compacted: AtomicU64,
    /// The latest revision that an answer told.
    newest: AtomicU64,
}

impl EtcdStore {
    /// A store behind these endpoints. Nothing is asked of them yet.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] for an address, a CA or a key that cannot be read.
    pub async fn connect(options: Options) -> Result<Self, StoreError> {
        let mut connect = usual();
        if let Some(tls) = options.tls {
            let mut given = TlsOptions::new().ca_certificate(Certificate::from_pem(tls.ca));
            if let Some((certificate, key)) = tls.identity {
                given = given.identity(Identity::from_pem(certificate, key));
            }
            connect = connect.with_tls(given);
        }
        Self::by(Way::Endpoints(connect), options.endpoints, options.root).await
    }

    /// A store that is reached by connections made so, which are spread over the members as ours are.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn over(dial: Dial, members: Vec<String>) -> Result<Self, StoreError> {
        Self::by(Way::Dial(usual(), dial), members, Vec::new()).await
    }

    async fn by(way: Way, endpoints: Vec<String>, root: Vec<u8>) -> Result<Self, StoreError> {
        // The balance among endpoints hands calls to dead ones, too.
        let tries = 3 * endpoints.len();
        let client = way.client(&endpoints).await?;
        let shared = Shared {
            root,
            endpoints,
            moved: CancellationToken::new(),
            missing: AtomicU64::new(0),
            tries,
            cluster: AtomicU64::new(0),
            compacted: AtomicU64::new(0),
            newest: AtomicU64::new(0),
        };
        Ok(Self { client, shared: Arc::new(shared), way })
    }

    /// Cancelled when another cluster has answered than the first one, or an older state than before: nothing that is known
    /// of the store holds any more.
    pub fn moved(&self) -> CancellationToken {
        self.shared.moved.clone()
    }

    /// What each member that answers tells of itself.
    pub async fn members(&self) -> Vec<Member> {
        let asked = self.shared.endpoints.iter().map(|endpoint| async move {
            let client = Client::connect([endpoint], Some(self.way.options().clone())).await.ok()?;
            let mut client = client.maintenance_client();
            let status = tokio::time::timeout(CONNECT, client.status()).await.ok()?.ok()?;
            let cluster = status.header().map(ResponseHeader::cluster_id)?;
            Some(Member { endpoint: endpoint.clone(), version: status.version().to_owned(), cluster })
        });
        futures::future::join_all(asked).await.into_iter().flatten().collect()
    }

    /// A client with a connection of its own: a watch that nobody reads holds up nothing else.
    async fn apart(&self) -> Result<Client, StoreError> {
        self.way.client(&self.shared.endpoints).await
    }

    fn kv(&self) -> KvClient {
        self.client
            .kv_client()
            .max_decoding_message_size(ANSWER_LIMIT)
            .max_encoding_message_size(ANSWER_LIMIT)
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.shared.root, key].concat()
    }

    /// The revision of an answer, which must be of the one cluster.
    fn rev(&self, header: Option<&ResponseHeader>) -> Result<Rev, StoreError> {
        let header = header.ok_or_else(|| failure::corrupt("an answer has no header"))?;
        let (now, first) = (header.cluster_id(), &self.shared.cluster);
        let known = first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        if known.is_err_and(|known| known != now) {
            self.shared.moved.cancel();
        }
        if self.shared.moved.is_cancelled() {
            return Err(failure::moved());
        }
        Ok(rev(header.revision()))
    }

    /// The latest revision of which we had been told when something was asked.
    fn newest(&self) -> Rev {
        Rev(self.shared.newest.load(Ordering::Relaxed))
    }

    /// The revision of an answer to what was asked when we had been told of `before`: etcd does not go back.
    fn rev_after(&self, before: Rev, header: Option<&ResponseHeader>) -> Result<Rev, StoreError> {
        let now = self.rev(header)?;
        if now < before {
            tracing::error!("etcd went back from revision {before} to {now}");
            self.shared.moved.cancel();
            return Err(failure::moved());
        }
        self.shared.newest.fetch_max(now.0, Ordering::Relaxed);
        Ok(now)
    }

    /// Nothing is written to another cluster knowingly.
    fn standing(&self) -> Result<(), StoreError> {
        if self.shared.moved.is_cancelled() { Err(failure::cut(failure::MOVED.to_owned())) } else { Ok(()) }
    }

    /// Makes a call until a member has taken it: what was not even sent, or was turned away by one that has no leader, may be
    /// sent to another one.
    async fn sent<T, F>(&self, call: impl Fn() -> F) -> Result<T, etcd_client::Error>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let mut tries = 1;
        loop {
            match call().await {
                Err(error) if tries < self.shared.tries && failure::may_go_elsewhere(&error) => tries += 1,
                done => return done,
            }
        }
    }

    async fn range(&self, key: Vec<u8>, options: GetOptions) -> Result<GetResponse, etcd_client::Error> {
        self.sent(|| {
            let (mut kv, key, options) = (self.kv(), key.clone(), options.clone());
            async move { kv.get(key, Some(options)).await }
        })
        .await
    }

    async fn transact(&self, txn: Txn) -> Result<TxnResponse, StoreError> {
        self.standing()?;
        let done = self.sent(|| {
            let (mut kv, txn) = (self.kv(), txn.clone());
            async move { kv.txn(txn).await }
        });
        done.await.map_err(|error| failure::failed(error, Asked::Write))
    }

    /// Whether the state at a revision can still be told, and what the store is at.
    async fn reach(&self, at: Rev) -> Result<Rev, StoreError> {
        let options = GetOptions::new().with_count_only().with_revision(signed(at.max(FIRST)));
        let before = self.newest();
        match self.range(self.key(b"?"), options).await {
            Ok(answer) => self.rev_after(before, answer.header()),
            Err(error) => Err(self.pinned(error).await),
        }
    }

    /// Why a read at a revision failed.
    async fn pinned(&self, error: etcd_client::Error) -> StoreError {
        let answer = match Told::of(&error) {
            Told::Compacted => self.compacted().await.map(|at| StoreError::Compacted { at }),
            Told::Future => self.revision().await.map(|current| StoreError::Future { current }),
            Told::Else => Ok(failure::failed(error, Asked::Read)),
        };
        answer.unwrap_or_else(|error| error)
    }

    /// One page, of at most as many keys as etcd is asked for at once.
    async fn page(
        &self,
        from: Vec<u8>,
        end: Vec<u8>,
        limit: usize,
        at: Option<Rev>,
    ) -> Result<Page, StoreError> {
        // No limit is what etcd takes for nought.
        let asked = limit.clamp(1, PAGE);
        let mut options =
            GetOptions::new().with_range(end).with_limit(i64::try_from(asked).unwrap_or(i64::MAX));
        if let Some(at) = at {
            options = options.with_revision(signed(at.max(FIRST)));
        }
        let before = self.newest();
        let mut answer = match self.range(from, options).await {
            Ok(answer) => answer,
            Err(error) => return Err(self.pinned(error).await),
        };
        let now = self.rev_after(before, answer.header())?;
        let more = answer.more() || (limit == 0 && !answer.kvs().is_empty());
        // It counts what is in the range, not what is in the answer.
        let count = usize::try_from(answer.count()).ok();
        let kvs = answer.take_kvs();
        let kvs: Vec<_> = kvs.into_iter().take(limit).map(|kv| self.ours(kv)).collect::<Result<_, _>>()?;
        let left = count.and_then(|count| count.checked_sub(kvs.len()));
        Ok(Page { kvs, rev: at.unwrap_or(now), more, left })
    }

    fn ours(&self, kv: KeyValue) -> Result<Kv, StoreError> {
        kv_of(kv, self.shared.root.len())
    }

    /// Writes if what is expected holds, else reads what is there.
    async fn write(
        &self,
        key: Vec<u8>,
        (compare, expect): (Option<Compare>, &Expect),
        write: Vec<TxnOp>,
    ) -> Result<(Rev, Option<Kv>), StoreError> {
        // Other keys that must be as they were, in the order in which their words count.
        let led = expect.term().map(|term| (self.key(LEADER), Some(term)));
        let also = expect.also().map(|also| (self.key(&also.key), also.rev));
        let others: Vec<_> = led.into_iter().chain(also).collect();
        let holds =
            others.iter().map(|(key, rev)| rev.map_or_else(|| absent(key), |rev| written_at(key, rev)));
        let compare: Vec<Compare> = compare.into_iter().chain(holds).collect();
        let mut reads = vec![TxnOp::get(key, None)];
        reads.extend(others.iter().map(|(key, _)| TxnOp::get(key.clone(), None)));
        let before = self.newest();
        let answer = self.transact(Txn::new().when(compare).and_then(write).or_else(reads)).await?;
        let now = self.rev_after(before, answer.header())?;
        let done = answer.succeeded();
        let mut found = answer.op_responses().into_iter().filter_map(|answer| match answer {
            TxnOpResponse::Get(mut read) => Some(read.take_kvs().pop().map(|kv| self.ours(kv)).transpose()),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
        });
        let current = found.next().transpose()?.flatten();
        if done {
            return Ok((now, current));
        }
        let mut is_as_expected = |rev: Option<Rev>| {
            let read = found.next().transpose()?.flatten();
            Ok::<_, StoreError>(read.map(|kv| kv.mod_revision) == rev)
        };
        if expect.term().is_some() && !is_as_expected(expect.term())? {
            return Err(StoreError::Deposed);
        }
        match expect.also() {
            Some(also) if !is_as_expected(also.rev)? => Err(StoreError::Overtaken),
            Some(_) | None => Err(StoreError::Conflict { current }),
        }
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn revision(&self) -> Result<Rev, StoreError> {
        let before = self.newest();
        let answer = self.range(self.key(b"?"), GetOptions::new().with_count_only()).await;
        self.rev_after(before, answer.map_err(|error| failure::failed(error, Asked::Read))?.header())
    }

    async fn get(&self, key: &[u8]) -> Result<(Option<Kv>, Rev), StoreError> {
        let before = self.newest();
        let answer = self.range(self.key(key), GetOptions::new()).await;
        let mut answer = answer.map_err(|error| failure::failed(error, Asked::Read))?;
        let rev = self.rev_after(before, answer.header())?;
        let found = answer.take_kvs().pop().map(|kv| self.ours(kv)).transpose()?;
        Ok((found, rev))
    }

    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        at: Option<Rev>,
    ) -> Result<Page, StoreError> {
        let first = self.key(prefix);
        let end = prefix_end(&first);
        // The least key behind another one is that one and a zero byte.
        let behind = |key: &[u8]| [&self.key(key), [0].as_slice()].concat();
        let from = after.map_or_else(|| first.clone(), |after| behind(after).max(first.clone()));
        if end.as_slice() != [0] && from >= end {
            let rev = match at {
                Some(at) => self.reach(at).await.map(|_| at)?,
                None => self.revision().await?,
            };
            return Ok(Page { kvs: Vec::new(), rev, more: false, left: Some(0) });
        }
        let mut page = self.page(from, end.clone(), limit, at).await?;
        while page.more && page.kvs.len() < limit {
            let Some(last) = page.kvs.last() else { break };
            let next =
                self.page(behind(&last.key), end.clone(), limit - page.kvs.len(), Some(page.rev)).await?;
            (page.more, page.left) = (next.more, next.left);
            page.kvs.extend(next.kvs);
        }
        Ok(page)
    }

    async fn put(&self, key: &[u8], value: Bytes, expect: Expect) -> Result<Rev, StoreError> {
        super::within(key, KEY_LIMIT)?;
        super::within(&value, VALUE_LIMIT)?;
        let key = self.key(key);
        let compare = match expect.of_key() {
            OfKey::Rev(rev) => Some(written_at(&key, rev)),
            OfKey::Absent => Some(absent(&key)),
            OfKey::Any => None,
        };
        let put = vec![TxnOp::put(key.clone(), value, None)];
        self.write(key, (compare, &expect), put).await.map(|(rev, _)| rev)
    }

    async fn delete(&self, key: &[u8], expect: Expect) -> Result<(Rev, Kv), StoreError> {
        let key = self.key(key);
        let compare = match expect.of_key() {
            OfKey::Rev(rev) => written_at(&key, rev),
            // Nobody deletes what is not there, so this holds of nothing.
            OfKey::Absent => Compare::create_revision(key.clone(), CompareOp::Less, 0),
            OfKey::Any => Compare::create_revision(key.clone(), CompareOp::Greater, 0),
        };
        let delete = vec![TxnOp::get(key.clone(), None), TxnOp::delete(key.clone(), None)];
        match self.write(key, (Some(compare), &expect), delete).await? {
            (rev, Some(prev)) => Ok((rev, prev)),
            (_, None) => Err(StoreError::Conflict { current: None }),
        }
    }

    async fn watch(&self, prefix: &[u8], after: Rev) -> Result<Watch, StoreError> {
        let after = after.max(FIRST);
        let now = self.reach(after).await?;
        watch::follow(self.clone(), self.key(prefix), after, now).await
    }

    async fn compact(&self, rev: Rev) -> Result<(), StoreError> {
        if rev == Rev::ZERO {
            return Ok(());
        }
        self.standing()?;
        let done = self.sent(|| {
            let mut kv = self.kv();
            async move { kv.compact(signed(rev), None).await }
        });
        match done.await {
            Ok(_) => {
                self.shared.compacted.fetch_max(rev.0, Ordering::Relaxed);
                Ok(())
            }
            Err(error) if Told::of(&error) == Told::Compacted => Ok(()),
            Err(error) => Err(self.pinned(error).await),
        }
    }

    /// etcd tells nobody where it is compacted, but refuses to read below: the edge is searched.
    async fn compacted(&self) -> Result<Rev, StoreError> {
        let now = self.revision().await?;
        let mut low = self.shared.compacted.load(Ordering::Relaxed).clamp(FIRST.0, now.0);
        // `high` can be read; `low` can only if the edge is there.
        let (mut high, mut step) = (now.0, 0);
        while low < high {
            let middle = if step == 0 { low } else { low + (high - low) / 2 };
            step += 1;
            if self.readable(Rev(middle)).await? { high = middle } else { low = middle + 1 }
        }
        self.shared.compacted.fetch_max(high, Ordering::Relaxed);
        // Of the first revision there is nothing that could be forgotten.
        Ok(if high <= FIRST.0 { Rev::ZERO } else { Rev(high) })
    }
}

impl EtcdStore {
    async fn readable(&self, at: Rev) -> Result<bool, StoreError> {
        let options = GetOptions::new().with_count_only().with_revision(signed(at));
        match self.range(self.key(b"?"), options).await {
            Ok(_) => Ok(true),
            Err(error) if Told::of(&error) == Told::Compacted => Ok(false),
            Err(error) => Err(failure::failed(error, Asked::Read)),
        }
    }
}

/// How every connection is made.
fn usual() -> ConnectOptions {
    ConnectOptions::new()
        .with_connect_timeout(CONNECT)
        .with_keep_alive(SILENT, ALIVE)
        .with_tcp_keepalive(SILENT)
        .with_require_leader(true)
}

/// The key does not exist.
fn absent(key: &[u8]) -> Compare {
    Compare::create_revision(key.to_vec(), CompareOp::Equal, 0)
}

/// Holds of a key that was last written at this revision. What is not there was written at none, not at nought.
fn written_at(key: &[u8], rev: Rev) -> Compare {
    let wanted = if rev == Rev::ZERO { -1 } else { signed(rev) };
    Compare::mod_revision(key, CompareOp::Equal, wanted)
}

/// The first key behind all that begin with `prefix`; etcd's own sign for "no end" if there is none.
fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    match prefix.iter().rposition(|byte| *byte != u8::MAX) {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            end
        }
        None => vec![0],
    }
}

fn kv_of(kv: KeyValue, root: usize) -> Result<Kv, StoreError> {
    let (create_revision, mod_revision) = (rev(kv.create_revision()), rev(kv.mod_revision()));
    let (key, value) = kv.into_key_value();
    let key = Bytes::from(key);
    if key.len() < root {
        return Err(failure::corrupt("a key is outside of the root"));
    }
    Ok(Kv { key: key.slice(root..), value: Bytes::from(value), create_revision, mod_revision })
}

/// etcd counts with a sign and never goes below nought.
fn rev(revision: i64) -> Rev {
    Rev(u64::try_from(revision).unwrap_or_default())
}

fn signed(rev: Rev) -> i64 {
    i64::try_from(rev.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body::Frame;
    use http_body_util::StreamBody;
    use tonic::body::Body;
    use tower::util::BoxCloneSyncService;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    /// A member that answers each read with nothing, at a revision below 128.
    fn answer(revision: u8) -> http::Response<Body> {
        // A RangeResponse with its header: cluster 1 and the revision. Before it, what gRPC says of it.
        let message = Bytes::from(vec![0, 0, 0, 0, 6, 0x0a, 4, 0x08, 1, 0x18, revision]);
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
        let frames = [Ok::<_, tonic::Status>(Frame::data(message)), Ok(Frame::trailers(trailers))];
        let mut answer = http::Response::new(Body::new(StreamBody::new(futures::stream::iter(frames))));
        answer.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
        answer
    }

    #[tokio::test]
    async fn who_is_told_an_older_state_ends() {
        let next = Arc::new(AtomicU64::new(0));
        let dial: Dial = Arc::new(move || {
            let next = Arc::clone(&next);
            let service = service_fn(move |_: http::Request<Body>| {
                let n = next.fetch_add(1, Ordering::Relaxed);
                async move { Ok::<_, Infallible>(answer([7, 9, 9, 8, 10][usize::try_from(n).unwrap()])) }
            });
            Channel::Custom(BoxCloneSyncService::new(service.map_err(Into::into)))
        });
        let store = EtcdStore::over(dial, vec!["a:1".to_owned()]).await.unwrap();
        for told in [7, 9, 9] {
            assert_eq!(store.revision().await.unwrap(), Rev(told));
            assert!(!store.moved().is_cancelled());
        }
        for _ in 0..2 {
            assert!(matches!(store.revision().await, Err(StoreError::Unavailable { .. })));
            assert!(store.moved().is_cancelled());
        }
    }

    #[test]
    fn the_end_of_a_prefix_is_the_first_key_behind_it() {
        for (prefix, end) in [
            (b"/a/".as_slice(), b"/a0".as_slice()),
            (b"/a\xff", b"/b"),
            (b"a\xff\xff", b"b"),
            (b"\xff\xff", b"\0"),
            (b"", b"\0"),
        ] {
            assert_eq!(prefix_end(prefix), end, "{prefix:?}");
        }
    }
}
