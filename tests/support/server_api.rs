//! A server within the test and plain requests to it, without a connection.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use futures::StreamExt;
use http::{HeaderMap, Method, Request, StatusCode};
use serde_json::{Value, json};
use tower::ServiceExt;
use wharfline::api::{Cell, Column, FieldErrors, KindDefinition};
use wharfline::server::{Identity, SealingKey, Server, ServerOptions};
use wharfline::store::embedded::{EmbeddedStore, MemoryDisk, Options};
use wharfline::store::{Rev, Store};

/// The collection of gadgets in namespace `default`.
pub(crate) const GADGETS: &str = "/apis/test.dev/v1/namespaces/default/gadgets";

/// The columns of gadgets.
const COLUMNS: &[Column] = &[
    Column { name: "NODE", kind: "string", wide: false, cell: Cell::Path(".spec.nodeName") },
    Column { name: "MODES", kind: "string", wide: true, cell: Cell::Path(".spec.modes[*]") },
    Column {
        name: "READY",
        kind: "string",
        wide: false,
        cell: Cell::Computed(".status.phase", |gadget| match gadget["status"]["phase"].as_str() {
            Some(phase) => json!(phase),
            None => json!("Waiting"),
        }),
    },
];

/// A kind of the test's own: namespaced, with status, defaults, a union and rules.
pub(crate) fn gadget() -> KindDefinition {
    KindDefinition {
        group: "test.dev",
        version: "v1",
        kind: "Gadget",
        plural: "gadgets",
        singular: "gadget",
        short_names: &["gd"],
        namespaced: true,
        has_status: true,
        schema: json!({
            "type": "object",
            "required": ["spec"],
            "properties": {
                "spec": {
                    "type": "object",
                    "description": "What is wanted of a gadget.",
                    "required": ["plugin"],
                    "properties": {
                        "plugin": { "type": "string", "minLength": 1 },
                        "size": { "type": "integer", "minimum": 1, "default": 1 },
                        "mode": { "type": "string", "enum": ["Block", "Filesystem"], "default": "Filesystem" },
                        "modes": { "type": "array", "items": { "type": "string" } },
                        "nodeName": { "type": "string" },
                        "parameters": { "type": "object", "additionalProperties": { "type": "string" } }
                    }
                },
                "status": {
                    "type": "object",
                    "properties": {
                        "phase": { "type": "string" },
                        "seen": { "type": "integer" },
                        "conditions": {
                            "type": "array",
                            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
                            "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true }
                        }
                    }
                }
            }
        }),
        columns: COLUMNS,
        selectable: &["spec.nodeName", "status.phase"],
        nodes: &[],
        finalizer: None,
        amend: |_, _| {},
        default: |_| {},
        reserved: |_| None,
        late: |_, _| None,
        goes: |_| false,
        over: |_| false,
        validate: |new, old| {
            let mut faults = FieldErrors::new();
            if new["spec"]["plugin"] == "forbidden" {
                faults.invalid("spec.plugin", "Invalid value: \"forbidden\": choose another");
            }
            if old.is_some_and(|old| old["spec"]["plugin"] != new["spec"]["plugin"]) {
                faults.forbidden("spec.plugin", "Forbidden: may not be changed");
            }
            faults.into_vec()
        },
    }
}

/// A kind like [`gadget`] whose objects get a finalizer at admission, and lose it with the word that they are over.
pub(crate) fn held() -> KindDefinition {
    KindDefinition {
        kind: "Held",
        plural: "helds",
        singular: "held",
        short_names: &[],
        nodes: &[],
        finalizer: Some("test.dev/hold"),
        goes: |held| held["status"]["phase"] == "Going" || held["status"]["phase"] == "Over at once",
        over: |held| held["status"]["phase"].as_str().is_some_and(|phase| phase.starts_with("Over")),
        ..gadget()
    }
}

/// The usual options, with a clock that stands and randomness that repeats from test to test.
pub(crate) fn options() -> ServerOptions {
    let state = AtomicU64::new(7);
    let mut options = ServerOptions::new(SealingKey::new(&[9; 32]));
    options.now = Arc::new(|| "2024-05-01T10:00:00Z".parse().unwrap());
    options.random = Arc::new(move |bytes| {
        for byte in bytes {
            let next = state.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
            *byte = u8::try_from((next ^ (next >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56).unwrap();
        }
    });
    options.bookmark_interval = Duration::from_millis(50);
    options
}

/// A server over a store in memory.
pub(crate) struct Fixture {
    /// The store.
    pub(crate) store: Arc<EmbeddedStore>,
    /// The server.
    pub(crate) server: Server,
}

impl Fixture {
    /// How many writes the store has seen.
    pub(crate) async fn writes(&self) -> u64 {
        self.store.revision().await.unwrap().0
    }

    /// Makes the store forget all history.
    pub(crate) async fn compact(&self) {
        self.store.compact(Rev(self.writes().await)).await.unwrap();
    }

    /// Another server over the same store, as after a restart.
    pub(crate) fn restarted(&self) -> Server {
        let store: Arc<dyn Store> = Arc::<EmbeddedStore>::clone(&self.store);
        Server::new(store, vec![gadget(), held()], options())
    }
}

/// An empty store in memory.
pub(crate) fn store() -> Arc<EmbeddedStore> {
    Arc::new(EmbeddedStore::inline(MemoryDisk::default(), Options::default()).unwrap())
}

/// A server with the test kinds, bootstrapped.
pub(crate) async fn fixture() -> Fixture {
    let store = store();
    let shared: Arc<dyn Store> = Arc::<EmbeddedStore>::clone(&store);
    let server = Server::new(shared, vec![gadget(), held()], options());
    server.bootstrap().await.unwrap();
    Fixture { store, server }
}

/// One answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The HTTP code.
    pub(crate) code: u16,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The body as JSON; null if it is none.
    pub(crate) body: Value,
}

impl Answer {
    /// A part of the body by JSON pointer; null if it is not there.
    pub(crate) fn at(&self, pointer: &str) -> &Value {
        self.body.pointer(pointer).unwrap_or(&Value::Null)
    }

    /// The body's message.
    pub(crate) fn message(&self) -> &str {
        self.at("/message").as_str().unwrap_or_default()
    }

    /// The resourceVersion in the body.
    pub(crate) fn version(&self) -> u64 {
        self.at("/metadata/resourceVersion").as_str().unwrap().parse().unwrap()
    }

    /// Code and reason of a refusal.
    pub(crate) fn refusal(&self) -> (u16, &str) {
        (self.code, self.at("/reason").as_str().unwrap_or_default())
    }
}

/// What a request carries beside method and path.
#[derive(Default, Clone)]
pub(crate) struct With {
    /// Content type of the body; JSON unless given.
    pub(crate) content_type: Option<&'static str>,
    /// Accept header.
    pub(crate) accept: Option<&'static str>,
    /// Who asks; the admin unless given.
    pub(crate) identity: Option<Identity>,
}

/// A request's response with its body still to be read.
pub(crate) async fn send(
    server: &Server,
    method: Method,
    path: &str,
    body: Option<Vec<u8>>,
    with: With,
) -> http::Response<Body> {
    let kind = with.content_type.unwrap_or("application/json");
    let mut request = Request::builder().method(method).uri(path).header("content-type", kind);
    if let Some(accept) = with.accept {
        request = request.header("accept", accept);
    }
    let request = request
        .extension(with.identity.unwrap_or_else(Identity::admin))
        .body(Body::from(body.unwrap_or_default()))
        .unwrap();
    server.router().oneshot(request).await.unwrap()
}

/// A request and its whole answer.
pub(crate) async fn ask(
    server: &Server,
    method: Method,
    path: &str,
    body: Option<Value>,
    with: With,
) -> Answer {
    let body = body.map(|body| body.to_string().into_bytes());
    read(send(server, method, path, body, with).await).await
}

/// Reads a response to its end.
pub(crate) async fn read(response: http::Response<Body>) -> Answer {
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, 64 << 20).await.unwrap();
    let body = serde_json::from_slice(&bytes).unwrap_or_default();
    Answer { code: parts.status.as_u16(), headers: parts.headers, body }
}

/// GET.
pub(crate) async fn get(server: &Server, path: &str) -> Answer {
    ask(server, Method::GET, path, None, With::default()).await
}

/// POST.
pub(crate) async fn post(server: &Server, path: &str, body: Value) -> Answer {
    ask(server, Method::POST, path, Some(body), With::default()).await
}

/// PUT.
pub(crate) async fn put(server: &Server, path: &str, body: Value) -> Answer {
    ask(server, Method::PUT, path, Some(body), With::default()).await
}

/// PATCH with a merge patch.
pub(crate) async fn merge(server: &Server, path: &str, body: Value) -> Answer {
    patch(server, path, body, "application/merge-patch+json").await
}

/// PATCH of any type.
pub(crate) async fn patch(server: &Server, path: &str, body: Value, kind: &'static str) -> Answer {
    let with = With { content_type: Some(kind), ..With::default() };
    ask(server, Method::PATCH, path, Some(body), with).await
}

/// DELETE.
pub(crate) async fn delete(server: &Server, path: &str, body: Option<Value>) -> Answer {
    ask(server, Method::DELETE, path, body, With::default()).await
}

/// A gadget that is in order.
pub(crate) fn a_gadget(name: &str) -> Value {
    json!({
        "apiVersion": "test.dev/v1", "kind": "Gadget",
        "metadata": { "name": name },
        "spec": { "plugin": "dir" }
    })
}

/// An open watch.
pub(crate) struct Lines {
    stream: axum::body::BodyDataStream,
    rest: Vec<u8>,
}

impl Lines {
    /// What a watch answers.
    pub(crate) fn of(response: http::Response<Body>) -> Self {
        Self { stream: response.into_body().into_data_stream(), rest: Vec::new() }
    }

    /// The next event; none at the end of the stream. Fails after ten seconds of silence.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let chunk = tokio::time::timeout(Duration::from_secs(10), self.stream.next());
            self.rest.extend(chunk.await.expect("the watch is silent")?.unwrap());
        }
    }

    /// The next event that is no bookmark, as `TYPE name`.
    pub(crate) async fn told(&mut self) -> String {
        loop {
            let event = self.next().await.expect("the watch has ended");
            if event["type"] != "BOOKMARK" {
                let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
                return format!("{} {name}", event["type"].as_str().unwrap());
            }
        }
    }
}

/// Opens a watch, which must be granted.
pub(crate) async fn watch(server: &Server, path: &str) -> Lines {
    let joint = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{joint}watch=true");
    let response = send(server, Method::GET, &path, None, With::default()).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    Lines::of(response)
}
