//! The Kubernetes API over the store: routes, discovery, verbs, watch, patch, admission, tables, access.
//!
//! Everything is driven by [`KindDefinition`]s; there is no code per kind of ours. The server never makes a
//! CSI call and never decides what should become of a volume: it checks, stores and tells.
//!
//! Way of a request: `handle` (`identify`, route, `access`, a seat of `seats`) → `read`, `write`, `delete` or `watch` → `admission`
//! and `patch` (values only) → `objects` (the store). One task, `hub`, follows the store and feeds every watch.
mod access;
mod admission;
mod age;
mod apply;
mod audit;
mod backup;
mod body;
mod core_kinds;
mod delete;
mod discovery;
mod events;
mod fixed;
mod handle;
mod hub;
mod identify;
mod joining;
mod jsonpath;
mod lead;
mod listen;
mod members;
mod meta;
mod metrics;
mod mirror;
mod objects;
mod openapi;
mod patch;
mod path;
mod pki;
mod protobuf;
mod query;
mod read;
mod resource;
mod reviews;
mod rights;
mod route;
mod schema;
mod seal;
mod seats;
mod selector;
mod shares;
mod source;
mod status;
mod strategic;
mod suggest;
mod table;
mod turns;
mod watch;
mod words;
mod write;
mod yaml;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use jiff::Timestamp;
use ring::rand::SecureRandom;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt;

pub use access::{ADMINS, CONTROLLERS, EDITORS, Identity, NODES, VIEWERS};
pub use audit::AuditSink;
pub use joining::{KEY, LOCAL};
pub use lead::NotLed;
pub use listen::serve;
pub use pki::{Issued, NODE_LIFE, Pki, PkiError, kubeconfig, write_private};
pub use seal::{SealError, SealingKey};
pub use seats::Seating;
pub use shares::Limits;

use crate::api::KindDefinition;
use crate::api::token::USER_PREFIX;
use crate::store::Store;
use crate::store::archive::UNFINISHED;
use admission::{Stamp, Submitted};
use audit::Strangers;
use fixed::Fixed;
use hub::Hub;
use identify::{NodeKey, User};
use members::{Members, Membership};
use metrics::Metrics;
use mirror::Mirror;
use objects::{Objects, WriteError};
use openapi::Documents;
use query::FieldValidation;
use resource::{ROOT, Registry, Resource};
use seal::hex;
use seats::Seats;
use shares::Shares;
use status::Refusal;
use turns::Turns;

/// How many machines may be joining at once; more get 429.
const JOINING: usize = 8;
/// How many that show something new are looked up at once; more wait, and get 429 after a while.
const LOOKING: usize = 16;
/// How many watches at once are told what the store alone remembers, each of which costs it a watch; more list anew.
const REPLAYS: usize = 32;
/// How many of them one identity may have.
const REPLAYS_EACH: usize = 8;
/// The namespaces that exist from the start.
pub const NAMESPACES: [&str; 2] = ["default", "wharfline-system"];

/// The wall clock.
pub type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;
/// The source of randomness: fills the slice.
pub type Random = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// What the server takes from its surroundings, so that a whole cluster can be simulated.
#[derive(Clone)]
pub struct ServerOptions {
    /// The wall clock.
    pub now: Now,
    /// The source of randomness, for uids, name suffixes and nonces.
    pub random: Random,
    /// The key that seals Secrets.
    pub sealing: SealingKey,
    /// How often an idle watch that allows bookmarks gets one. 5 s.
    pub bookmark_interval: Duration,
    /// How long a watch lasts that names no timeout. 30 min.
    pub watch_timeout: Duration,
    /// What signs the certificates of nodes that join; without it none can.
    pub signer: Option<Arc<Pki>>,
    /// How many requests are worked on at once, and how many of one identity.
    pub seating: Seating,
    /// What may be open at once.
    pub limits: Limits,
    /// Whether what the store holds is kept in memory as well: long lists are read there, and people read it while the store
    /// cannot be reached.
    pub mirror: bool,
    /// Where the audit log goes; without it there is none.
    pub audit: Option<AuditSink>,
}

impl ServerOptions {
    /// The real clock, the system's randomness, and the usual limits.
    pub fn new(sealing: SealingKey) -> Self {
        let system = ring::rand::SystemRandom::new();
        Self {
            now: Arc::new(Timestamp::now),
            random: Arc::new(move |bytes| {
                system.fill(bytes).expect("the kernel gives random bytes once it has booted");
            }),
            sealing,
            bookmark_interval: Duration::from_secs(5),
            watch_timeout: Duration::from_secs(30 * 60),
            signer: None,
            seating: Seating::default(),
            limits: Limits::default(),
            mirror: false,
            audit: None,
        }
    }
}

/// Why the server cannot serve from this store.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The store was sealed with another key: give the server the key file of its peers.
    #[error("the store is sealed with key {found}, this server has key {ours}")]
    OtherSealingKey {
        /// Id of the store's key.
        found: String,
        /// Id of ours.
        ours: String,
    },
    /// Somebody fills the store from a backup or another store, or was interrupted at it: let it end, or do it again.
    #[error(
        "the store is being filled (restore or migrate) or that was interrupted: run the same command again"
    )]
    Unfinished,
    /// The store did not take the first objects: try again, or look at the store.
    #[error("the first objects could not be written: {reason}")]
    Store {
        /// What the server said.
        reason: String,
    },
}

/// The API server. A clone is the same server.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Registry,
    objects: Arc<Objects>,
    /// What the store held last; only read, and only by people.
    last: Option<Objects>,
    hub: Arc<Hub>,
    documents: Documents,
    metrics: Metrics,
    options: ServerOptions,
    nodes: Option<Arc<Members<NodeKey>>>,
    users: Option<Arc<Members<User>>>,
    seats: Arc<Seats>,
    strangers: Strangers,
    joining: Semaphore,
    looking: Semaphore,
    watches: Arc<Shares>,
    /// Watches that are told what the store alone remembers; no bound where lists are read there, too.
    replays: Option<Arc<Shares>>,
    /// Connections whose certificate is known, by its user.
    known: Arc<Shares>,
    /// Connections that show none, by address.
    strange: Arc<Shares>,
    /// Connections that have not shown yet who they are, by address.
    greeted: Arc<Shares>,
    bodies: Arc<Seats>,
    /// Those of nodes, which others must not hold up.
    node_bodies: Arc<Seats>,
    turns: Turns,
    closing: CancellationToken,
    follower: Mutex<Option<JoinHandle<()>>>,
    // Ends the follower when the last clone goes without a shutdown.
    _guard: DropGuard,
}

impl Server {
    /// A server of these kinds, beside the core kinds, over this store. Must be called within a tokio
    /// runtime: it starts the task that follows the store.
    pub fn new(store: Arc<dyn Store>, definitions: Vec<KindDefinition>, options: ServerOptions) -> Self {
        let fixed = Arc::new(Fixed::of(&definitions));
        let registry = Registry::new(definitions);
        let closing = CancellationToken::new();
        let limits = options.limits;
        let mirror = options.mirror.then(|| Arc::new(Mirror::default()));
        let hub = Arc::new(Hub::new(registry.lanes(), mirror.clone()));
        let objects = |store: Arc<dyn Store>, mirror| Objects {
            store,
            mirror,
            sealing: options.sealing.clone(),
            random: Arc::clone(&options.random),
            fixed: Arc::clone(&fixed),
            answers: AtomicBool::new(true),
        };
        let last = mirror.clone().map(|mirror| objects(mirror, None));
        let objects = Arc::new(objects(store, mirror));
        let resources = registry.all().to_vec();
        let follow = Arc::clone(&hub).follow(Arc::clone(&objects), resources, closing.clone());
        let (mut nodes, mut users) = (None, None);
        if options.signer.is_some() {
            let parts = (&hub, &objects, &closing);
            nodes = registry.nodes().map(|kind| followed(parts, kind, kind.prefix.clone()));
            users = registry.find("", "v1", "secrets").map(|kind| {
                let prefix = kind.key(Some(access::SYSTEM), USER_PREFIX);
                followed(parts, kind, prefix)
            });
        }
        Self {
            inner: Arc::new(Inner {
                documents: Documents::default(),
                metrics: Metrics::default(),
                registry,
                objects,
                last,
                nodes,
                users,
                seats: Seats::new(options.seating),
                strangers: Strangers::default(),
                joining: Semaphore::new(JOINING),
                looking: Semaphore::new(LOOKING),
                hub,
                watches: Shares::new(limits.watches, limits.watches_each),
                replays: options.mirror.then(|| Shares::new(REPLAYS, REPLAYS_EACH)),
                // Together no more than all: whoever is not known cannot take the places of those who are.
                known: Shares::new(limits.connections / 2, limits.connections_each),
                strange: Shares::new(limits.connections / 4, limits.connections_each),
                greeted: Shares::new(limits.connections / 4, limits.connections_each),
                bodies: Seats::new(limits.bodies),
                node_bodies: Seats::new(limits.bodies),
                turns: Turns::new(),
                options,
                follower: Mutex::new(Some(tokio::spawn(follow))),
                _guard: closing.clone().drop_guard(),
                closing,
            }),
        }
    }

    /// The routes. A request must carry its [`Identity`] as an extension, else it is anonymous.
    pub fn router(&self) -> Router {
        Router::new().fallback(entry).with_state(self.clone())
    }

    /// A client that speaks to this server within the process, as `identity`, without a connection.
    pub fn client(&self, identity: Identity) -> kube::Client {
        self.client_with(move |extensions| {
            extensions.insert(identity.clone());
        })
    }

    /// A client within the process whose requests carry what `equip` gives them.
    fn client_with(
        &self,
        equip: impl Fn(&mut http::Extensions) + Clone + Send + Sync + 'static,
    ) -> kube::Client {
        let service = self.router().into_service::<axum::body::Body>();
        let service = service.map_request(move |request: http::Request<kube::client::Body>| {
            let mut request = request.map(axum::body::Body::new);
            equip(request.extensions_mut());
            request
        });
        kube::Client::new(service, NAMESPACES[0])
    }

    /// Makes what exists from the start, and refuses a store that other keys have sealed. May be repeated.
    pub async fn bootstrap(&self) -> Result<(), BootstrapError> {
        let failed = |error: crate::store::StoreError| BootstrapError::Store { reason: error.to_string() };
        let (mark, _) = self.inner.objects.store.get(UNFINISHED).await.map_err(failed)?;
        if mark.is_some() {
            return Err(BootstrapError::Unfinished);
        }
        self.claim_sealing().await?;
        for name in NAMESPACES {
            self.make_namespace(name).await?;
        }
        Ok(())
    }

    /// Ends all watches and the task that follows the store. Requests that come later find no news.
    pub async fn shutdown(&self) {
        self.inner.closing.cancel();
        let task = self.inner.follower.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the watch cache had failed");
        }
    }

    async fn claim_sealing(&self) -> Result<(), BootstrapError> {
        let ours = self.inner.options.sealing.id();
        let key = format!("{ROOT}meta/sealing-key-id");
        let store = &self.inner.objects.store;
        let value = bytes::Bytes::from(ours.clone());
        let found = match store.put(key.as_bytes(), value, crate::store::Expect::Absent).await {
            Ok(_) => return Ok(()),
            Err(crate::store::StoreError::Conflict { current: Some(kv) }) => kv.value,
            Err(error) => return Err(BootstrapError::Store { reason: error.to_string() }),
        };
        let found = String::from_utf8_lossy(&found).into_owned();
        if found == ours { Ok(()) } else { Err(BootstrapError::OtherSealingKey { found, ours }) }
    }

    async fn make_namespace(&self, name: &str) -> Result<(), BootstrapError> {
        let failed = |refusal: Refusal| BootstrapError::Store { reason: refusal.message };
        let Some(resource) = self.inner.registry.namespaces() else { return Ok(()) };
        let submitted = Submitted {
            object: json!({ "metadata": { "name": name } }),
            duplicates: Vec::new(),
            validation: FieldValidation::Ignore,
        };
        let admitted = admission::create(resource, None, submitted, &self.inner.stamp()).map_err(failed)?;
        let key = resource.key(None, name);
        let expect = crate::store::Expect::Absent;
        match self.inner.objects.put(resource, &key, &admitted.object, expect).await {
            Ok(_) | Err(WriteError::Conflict(_)) => Ok(()),
            Err(WriteError::Refused(refusal)) => Err(failed(refusal)),
        }
    }
}

/// Members of one kind, followed until `closing`.
fn followed<M: Membership>(
    (hub, objects, closing): (&Arc<Hub>, &Arc<Objects>, &CancellationToken),
    resource: &Arc<Resource>,
    prefix: String,
) -> Arc<Members<M>> {
    let members = Arc::new(Members::new(Arc::clone(resource), prefix));
    let parts = (Arc::clone(hub), Arc::clone(objects), Arc::clone(&members));
    tokio::spawn(members::follow(parts, closing.clone()));
    members
}

impl Inner {
    fn now(&self) -> Timestamp {
        (self.options.now)()
    }

    /// What the server gives a new object.
    fn stamp(&self) -> Stamp {
        // The letters of Kubernetes' suffixes: no vowels, no digits that read as letters.
        const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
        let bytes: [u8; 16] = random_bytes(&self.options.random);
        let letters: [u8; 5] = random_bytes(&self.options.random);
        Stamp {
            now: self.now(),
            uid: uuid::Builder::from_random_bytes(bytes).into_uuid().to_string(),
            suffix: letters.iter().map(|b| char::from(LETTERS[usize::from(*b) % LETTERS.len()])).collect(),
        }
    }
}

fn random_bytes<const N: usize>(random: &Random) -> [u8; N] {
    let mut bytes = [0; N];
    random(&mut bytes);
    bytes
}

/// Ends the watches of a connection whose listener closes, or whose node is removed, as an extension of its requests.
#[derive(Clone, Default)]
struct HangUp {
    listener: CancellationToken,
    member: Option<CancellationToken>,
    /// When the token of the request expires.
    expires: Option<Timestamp>,
}

impl HangUp {
    fn of(listener: CancellationToken) -> Self {
        Self { listener, ..Self::default() }
    }

    /// Whether who asks was taken out.
    fn is_out(&self) -> bool {
        self.member.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    fn is_cancelled(&self) -> bool {
        self.listener.is_cancelled() || self.member.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    async fn cancelled(&self) {
        let member = async {
            match &self.member {
                Some(member) => member.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.listener.cancelled() => {}
            () = member => {}
        }
    }
}

async fn entry(State(server): State<Server>, request: Request) -> axum::response::Response {
    handle::answer(server, request).await
}
