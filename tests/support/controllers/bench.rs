//! The real server and the real controllers in one process, with eyes on every object and on every write.
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use http::Request;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher::{self, watcher};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wharfline::api::meta::AsSeen;
use wharfline::controllers::{self, Options};
use wharfline::server::{Identity, Server};

use crate::fake::{Behaviour, FakeNode, Ledger};
use crate::support::server_api::options;
use wharfline::store::embedded::{EmbeddedStore, MemoryDisk};

/// What time it is for the controllers when a test begins.
pub(crate) const NOW: &str = "2024-05-01T10:00:00Z";

/// Far beyond what any step takes, in the time of the test.
const DEADLINE: Duration = Duration::from_secs(600);

/// Kind, plural, whether in namespaces, whether ours.
pub(crate) const KINDS: &[(&str, &str, bool, bool)] = &[
    ("Plugin", "plugins", false, true),
    ("PluginInstance", "plugininstances", false, true),
    ("VolumeClass", "volumeclasses", false, true),
    ("VolumeAttributesClass", "volumeattributesclasses", false, true),
    ("VolumeClaim", "volumeclaims", true, true),
    ("Volume", "volumes", false, true),
    ("Snapshot", "snapshots", true, true),
    ("SnapshotSchedule", "snapshotschedules", true, true),
    ("VolumeAttachment", "volumeattachments", false, true),
    ("Allocation", "allocations", true, true),
    ("NodeAgent", "nodeagents", false, true),
    ("Node", "nodes", false, false),
    ("Event", "events", true, false),
    ("Namespace", "namespaces", false, false),
    ("ConfigMap", "configmaps", true, false),
];

/// Plural, namespace (empty for none), name.
pub(crate) type Key = (String, String, String);

/// Everything that there is, as a watcher sees it.
#[derive(Clone)]
pub(crate) struct Seen {
    objects: Arc<Mutex<BTreeMap<Key, Value>>>,
    news: watch::Sender<u64>,
}

impl Seen {
    fn new() -> Self {
        Self { objects: Arc::default(), news: watch::Sender::new(0) }
    }

    fn put(&self, key: Key, object: Option<Value>) {
        let mut objects = self.objects.lock().unwrap();
        match object {
            Some(object) => objects.insert(key, object),
            None => objects.remove(&key),
        };
        drop(objects);
        self.news.send_modify(|n| *n += 1);
    }

    /// One object; null when there is none.
    pub(crate) fn get(&self, plural: &str, namespace: &str, name: &str) -> Value {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.objects.lock().unwrap().get(&key).cloned().unwrap_or_default()
    }

    /// All objects of a kind.
    pub(crate) fn all(&self, plural: &str) -> Vec<Value> {
        let objects = self.objects.lock().unwrap();
        objects.iter().filter(|(key, _)| key.0 == plural).map(|(_, object)| object.clone()).collect()
    }

    /// The only object of a kind; null when there is none or more than one.
    pub(crate) fn only(&self, plural: &str) -> Value {
        let mut all = self.all(plural);
        if all.len() == 1 { all.remove(0) } else { Value::Null }
    }

    /// Tells when anything has changed.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }
}

/// The namespace and name of an object.
pub(crate) fn key_of(plural: &str, object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (plural.to_owned(), text("namespace"), text("name"))
}

/// Where an object is found.
pub(crate) fn path_of(key: &Key) -> String {
    let (.., ours) = KINDS.iter().find(|(_, plural, ..)| *plural == key.0).expect("a kind of the bench");
    let root = if *ours { "/apis/wharfline.dev/v1alpha1" } else { "/api/v1" };
    let namespace = if key.1.is_empty() { String::new() } else { format!("/namespaces/{}", key.1) };
    format!("{root}{namespace}/{}/{}", key.0, key.2)
}

/// One request; the answer's code and body.
pub(crate) async fn ask(
    client: &kube::Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> (u16, Value) {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let bytes = body.map(|b| serde_json::to_vec(b).unwrap()).unwrap_or_default();
    let request =
        Request::builder().method(method).uri(path).header("content-type", kind).body(bytes).unwrap();
    match client.request::<Value>(request).await {
        Ok(answer) => (200, answer),
        Err(kube::Error::Api(status)) => (status.code, json!({ "message": status.message })),
        Err(error) => panic!("{method} {path}: {error}"),
    }
}

/// One write of the controllers: method, path and body.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Value,
    /// The answer's code; 0 before there is one.
    pub(crate) code: u16,
    /// What has to be as it was seen.
    pub(crate) goes_by: Option<AsSeen>,
}

/// Among the delays: how long a write is on its way.
pub(crate) const WRITES: &str = "writes";

/// By how much the controllers see changes later, by the plural of the kind.
type Delays = Arc<Mutex<BTreeMap<&'static str, Duration>>>;

/// The end of a path, and what a write to it waits for.
type Held = Arc<Mutex<Option<(String, CancellationToken)>>>;

/// The whole.
pub(crate) struct Bench {
    pub(crate) seen: Seen,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) admin: kube::Client,
    writes: Arc<Mutex<Vec<Write>>>,
    server: Server,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    controllers: CancellationToken,
    running: Option<Running>,
    behaviours: BTreeMap<String, watch::Sender<Behaviour>>,
    /// After how many more writes the controllers are killed; 0 = never.
    fuse: Arc<Mutex<usize>>,
    delays: Delays,
    /// Of what nothing new is taken, by the plural of the kind; empty for nothing.
    refused: Arc<Mutex<&'static str>>,
    /// What writes to what ends so wait for on their way.
    held: Held,
    /// More controllers beside the first ones.
    others: Vec<Running>,
    /// When the test began.
    born: tokio::time::Instant,
    /// Whether the controllers say what they can beside the wire.
    in_process: bool,
}

type Running = tokio::task::JoinHandle<Result<(), controllers::Error>>;

impl Bench {
    /// A server with controllers and these nodes, each ready.
    pub(crate) async fn new(nodes: &[&str]) -> Self {
        Self::with(nodes, Behaviour::default()).await
    }

    /// The same with nodes that behave so.
    pub(crate) async fn with(nodes: &[&str], behaviour: Behaviour) -> Self {
        let mut options = options();
        // The server's clock goes with the time of the test: who was there first is seen by it.
        let (begin, start) = ((options.now)(), tokio::time::Instant::now());
        options.now = Arc::new(move || {
            begin + jiff::SignedDuration::try_from(start.elapsed()).expect("a test is short")
        });
        options.bookmark_interval = Duration::from_secs(60);
        let server = Server::new(
            Arc::new(
                EmbeddedStore::inline(MemoryDisk::default(), wharfline::store::embedded::Options::default())
                    .unwrap(),
            ),
            wharfline::api::definitions(),
            options,
        );
        server.bootstrap().await.unwrap();
        let mut bench = Self {
            seen: Seen::new(),
            ledger: Arc::default(),
            admin: server.client(Identity::admin()),
            writes: Arc::default(),
            server,
            tasks: JoinSet::new(),
            stop: CancellationToken::new(),
            controllers: CancellationToken::new(),
            running: None,
            behaviours: BTreeMap::new(),
            fuse: Arc::default(),
            delays: Arc::default(),
            refused: Arc::default(),
            held: Arc::default(),
            others: Vec::new(),
            born: tokio::time::Instant::now(),
            in_process: true,
        };
        bench.watch();
        bench.start();
        for node in nodes {
            bench.join(node, behaviour.clone()).await;
        }
        for node in nodes {
            let ready = |seen: &Seen| condition(&seen.get("nodes", "", node), "Ready")["status"] == "True";
            bench.until("the node is ready", ready).await;
        }
        bench
    }

    fn watch(&mut self) {
        for (kind, plural, _, ours) in KINDS {
            let (group, version) = if *ours { ("wharfline.dev", "v1alpha1") } else { ("", "v1") };
            let gvk = GroupVersionKind::gvk(group, version, kind);
            let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
            let api = Api::<DynamicObject>::all_with(self.admin.clone(), &resource);
            let (seen, stop) = (self.seen.clone(), self.stop.clone());
            self.tasks.spawn(async move {
                let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
                while let Some(event) = tokio::select! {
                    event = events.next() => event,
                    () = stop.cancelled() => None,
                } {
                    let value = |o: &DynamicObject| serde_json::to_value(o).unwrap();
                    match event.unwrap() {
                        watcher::Event::Apply(o) | watcher::Event::InitApply(o) => {
                            let object = value(&o);
                            seen.put(key_of(plural, &object), Some(object));
                        }
                        watcher::Event::Delete(o) => seen.put(key_of(plural, &value(&o)), None),
                        watcher::Event::Init | watcher::Event::InitDone => {}
                    }
                }
            });
        }
    }

    /// Starts the controllers.
    pub(crate) fn start(&mut self) {
        self.controllers = CancellationToken::new();
        self.running = Some(self.run(&self.delays));
    }

    /// Starts more controllers, as if two were leaders, which see changes of these kinds so much later.
    pub(crate) fn start_others(&mut self, delays: &[(&'static str, Duration)]) {
        let delays = Arc::new(Mutex::new(delays.iter().copied().collect()));
        let running = self.run(&delays);
        self.others.push(running);
    }

    fn run(&self, delays: &Delays) -> Running {
        let inner = self.server.client(Identity::controllers());
        let shared =
            (Arc::clone(&self.writes), Arc::clone(&self.fuse), self.controllers.clone(), Arc::clone(delays));
        let (refused, held) = (Arc::clone(&self.refused), Arc::clone(&self.held));
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (inner, (writes, fuse, kill, delays)) = (inner.clone(), shared.clone());
            let (refused, held) = (Arc::clone(&refused), Arc::clone(&held));
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect_bytes().await.expect("the body of a request is at hand");
                let (method, path) = (parts.method.to_string(), parts.uri.path().to_owned());
                let watched = parts.uri.query().is_some_and(|q| q.contains("watch=")).then(|| path.clone());
                let write = (method != "GET").then(|| {
                    let body = serde_json::from_slice(&bytes).unwrap_or_default();
                    let mut writes = writes.lock().unwrap();
                    let goes_by = parts.extensions.get().cloned();
                    writes.push(Write { method, path, body, code: 0, goes_by });
                    writes.len() - 1
                });
                let latency = delays.lock().unwrap().get(WRITES).copied().filter(|_| write.is_some());
                if let Some(latency) = latency {
                    let _sent = tokio::time::timeout(latency, std::future::pending::<()>()).await;
                }
                let held = held.lock().unwrap().clone();
                if let Some((_, let_go)) = held.filter(|(end, _)| parts.uri.path().ends_with(end)) {
                    let_go.cancelled().await;
                }
                let of = parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
                let taken = parts.method != "POST" || of != *refused.lock().unwrap();
                let request = Request::from_parts(parts, kube::client::Body::from(bytes.to_vec()));
                let answer = if taken { inner.send(request).await } else { Ok(refusal()) };
                if let (Some(write), Ok(answer)) = (write, &answer) {
                    writes.lock().unwrap()[write].code = answer.status().as_u16();
                }
                if write.is_some() && burn(&fuse) {
                    // The write has happened and nobody hears of it.
                    kill.cancel();
                    std::future::pending::<()>().await;
                }
                Ok::<_, kube::Error>(match watched {
                    Some(path) => answer?.map(|body| late(body, path, delays)),
                    None => answer?.map(BodyExt::boxed_unsync),
                })
            }
        });
        let client = kube::Client::new(service, "default");
        let (begin, born): (jiff::Timestamp, _) = (NOW.parse().unwrap(), self.born);
        let now = move || begin + jiff::SignedDuration::try_from(born.elapsed()).expect("a test is short");
        let in_process = self.in_process;
        let options =
            Options { now: Arc::new(now), jitter: Arc::new(|| 0), in_process, ..Options::default() };
        let stop = self.controllers.clone();
        tokio::spawn(controllers::run(client, options, async move { stop.cancelled().await }))
    }

    /// From now on the controllers say nothing beside the wire.
    pub(crate) async fn apart(&mut self) {
        self.stop().await;
        self.in_process = false;
        self.start();
    }

    /// From now on the controllers see changes of a kind so much later.
    pub(crate) fn delay(&self, plural: &'static str, by: Duration) {
        self.delays.lock().unwrap().insert(plural, by);
    }

    /// From now on what the controllers read of what ends so, or write to it, is on its way until this is cancelled.
    pub(crate) fn hold(&self, end: &str) -> CancellationToken {
        let let_go = CancellationToken::new();
        *self.held.lock().unwrap() = Some((end.to_owned(), let_go.clone()));
        let_go
    }

    /// From now on the controllers are refused every new object of a kind; of none with an empty name.
    pub(crate) fn refuse(&self, plural: &'static str) {
        *self.refused.lock().unwrap() = plural;
    }

    /// Stops the controllers.
    pub(crate) async fn stop(&mut self) {
        self.controllers.cancel();
        for running in self.running.take().into_iter().chain(self.others.drain(..)) {
            running.await.unwrap().unwrap();
        }
    }

    /// Kills the controllers after so many more writes.
    pub(crate) fn kill_after(&self, writes: usize) {
        *self.fuse.lock().unwrap() = writes;
    }

    /// Starts the controllers again if they were killed; waits a while for that to happen.
    pub(crate) async fn restart_if_killed(&mut self) -> bool {
        let died = tokio::time::timeout(Duration::from_secs(5), self.controllers.cancelled()).await.is_ok();
        if died {
            self.stop().await;
            self.start();
        }
        died
    }

    /// A volume that a person registers exists before anybody asks for it.
    pub(crate) fn ledger_exists(&self, volume: &str) {
        self.ledger.create(volume);
    }

    /// Adds a node with its daemon.
    pub(crate) async fn join(&mut self, name: &str, behaviour: Behaviour) {
        self.make("nodes", json!({ "metadata": { "name": name, "labels": { "name": name } } })).await;
        self.make("nodeagents", json!({ "metadata": { "name": name }, "spec": {} })).await;
        let (sender, receiver) = watch::channel(behaviour);
        self.behaviours.insert(name.to_owned(), sender);
        let node = FakeNode {
            name: name.to_owned(),
            client: self.server.client(Identity::node(name)),
            seen: self.seen.clone(),
            ledger: Arc::clone(&self.ledger),
            behaviour: receiver,
        };
        self.tasks.spawn(node.run(self.stop.clone()));
    }

    /// Changes how a node behaves.
    pub(crate) fn behave(&self, node: &str, change: impl FnOnce(&mut Behaviour)) {
        self.behaviours[node].send_modify(change);
    }

    /// Creates an object, which must be granted.
    pub(crate) async fn make(&self, plural: &str, object: Value) {
        let mut object = object;
        let (kind, _, namespaced, ours) = KINDS.iter().find(|(_, p, ..)| *p == plural).unwrap();
        object["kind"] = json!(kind);
        object["apiVersion"] = json!(if *ours { "wharfline.dev/v1alpha1" } else { "v1" });
        if *namespaced && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = json!("default");
        }
        let key = key_of(plural, &object);
        let path = path_of(&key);
        let (code, answer) = ask(&self.admin, "POST", path.rsplit_once('/').unwrap().0, Some(&object)).await;
        assert_eq!(code, 200, "{answer}");
    }

    /// Merges into an object; its status when the patch has one.
    pub(crate) async fn patch(&self, plural: &str, namespace: &str, name: &str, patch: Value) {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        let part = if patch.get("status").is_some() { "/status" } else { "" };
        let (code, answer) =
            ask(&self.admin, "PATCH", &format!("{}{part}", path_of(&key)), Some(&patch)).await;
        assert_eq!(code, 200, "{answer}");
    }

    /// Deletes an object, which must be there.
    pub(crate) async fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        let (code, answer) = ask(&self.admin, "DELETE", &path_of(&key), None).await;
        assert_eq!(code, 200, "{answer}");
    }

    /// Somebody deletes a node's lease.
    pub(crate) async fn delete_lease(&self, node: &str) {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/wharfline-system/leases/{node}");
        let (code, answer) = ask(&self.admin, "DELETE", &path, None).await;
        assert_eq!(code, 200, "{answer}");
    }

    /// Waits until this is true of what is seen.
    pub(crate) async fn until(&self, what: &str, test: impl Fn(&Seen) -> bool) {
        let mut news = self.seen.news();
        let waiting = async {
            while !test(&self.seen) {
                news.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(DEADLINE, waiting).await.is_err() {
            let mut all = String::new();
            for (key, object) in self.seen.objects.lock().unwrap().iter().filter(|(k, _)| k.0 != "namespaces")
            {
                let _ =
                    writeln!(all, "{key:?} {} {}", object["metadata"]["deletionTimestamp"], object["status"]);
            }
            panic!("never: {what}\n{all}\n{:#?}", self.ledger.calls());
        }
    }

    /// Lets everything settle, then lets a long time pass; every write of the controllers in that time.
    pub(crate) async fn quiet(&self) -> Vec<Write> {
        pass(2).await;
        let before = self.writes().len();
        pass(120).await;
        self.writes().split_off(before)
    }

    /// Every write of the controllers so far.
    pub(crate) fn writes(&self) -> Vec<Write> {
        self.writes.lock().unwrap().clone()
    }

    /// Ends everything; the controllers must not have ended by themselves.
    pub(crate) async fn end(mut self) {
        assert!(
            self.running.as_ref().is_none_or(|r| !r.is_finished()),
            "the controllers ended by themselves"
        );
        self.stop().await;
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.server.shutdown().await;
        self.ledger.check_end();
    }
}

/// What the server says of an object that it does not take.
fn refusal() -> http::Response<kube::client::Body> {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422,
        "message": "spec.tasks[0].env[A=B]: cannot be the name of a variable" });
    let body = kube::client::Body::from(serde_json::to_vec(&status).unwrap());
    http::Response::builder().status(422).header("content-type", "application/json").body(body).unwrap()
}

type Body = UnsyncBoxBody<bytes::Bytes, kube::Error>;

/// The body of a watch, whose events come as much later as is asked for when they happen.
fn late(body: kube::client::Body, path: String, delays: Delays) -> Body {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut frames = BodyStream::new(body);
        while let Some(frame) = frames.next().await {
            let plural = path.rsplit('/').next().unwrap_or_default();
            let delay = delays.lock().unwrap().get(plural).copied().unwrap_or_default();
            if sender.send((tokio::time::Instant::now() + delay, frame)).is_err() {
                return;
            }
        }
    });
    let frames = futures::stream::unfold(receiver, |mut receiver| async {
        let (due, frame) = receiver.recv().await?;
        let _due = tokio::time::timeout_at(due, std::future::pending::<()>()).await;
        Some((frame, receiver))
    });
    StreamBody::new(frames).boxed_unsync()
}

/// Whether this write is the last one.
fn burn(fuse: &Mutex<usize>) -> bool {
    let mut left = fuse.lock().unwrap();
    let last = *left == 1;
    *left = left.saturating_sub(1);
    last
}

/// A condition of an object; null when it has none.
pub(crate) fn condition(object: &Value, kind: &str) -> Value {
    let list = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    list.into_iter().find(|c| c["type"] == kind).unwrap_or_default()
}

/// Lets simulated time pass: the clock is paused, so this takes none, and whatever is due in it happens.
pub(crate) async fn pass(seconds: u64) {
    pass_millis(seconds * 1000).await;
}

/// The same for shorter times.
pub(crate) async fn pass_millis(millis: u64) {
    let _passed = tokio::time::timeout(Duration::from_millis(millis), std::future::pending::<()>()).await;
}
