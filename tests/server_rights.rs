//! Who may do what: every role on every resource against the table in `server_rights.txt`, users and their tokens, floods,
//! and what the audit log says of it.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
mod support {
    pub(crate) mod server_api;
    pub(crate) mod server_store;
}

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use base64::Engine as _;
use http::{Method, Request};
use serde_json::{Value, json};
use support::server_api::*;
use tower::ServiceExt as _;
use wharfline::api::definitions;
use wharfline::api::token::UserToken;
use wharfline::server::{EDITORS, Identity, Limits, Pki, Seating, Server, ServerOptions, VIEWERS};

/// A person with a role.
fn person(group: &str) -> Identity {
    let key = Some("k".to_owned());
    Identity { user: "p".to_owned(), groups: vec![group.to_owned()], key }
}

/// The resources that are served, with their verbs, as `group/version`, name, whether they are in namespaces.
async fn resources(server: &Server) -> Vec<(String, String, bool)> {
    let mut all = Vec::new();
    let groups = get(server, "/apis").await.body["groups"].as_array().unwrap().clone();
    let versions =
        groups.iter().map(|g| format!("/apis/{}", g["preferredVersion"]["groupVersion"].as_str().unwrap()));
    for path in std::iter::once("/api/v1".to_owned()).chain(versions) {
        let list = get(server, &path).await.body;
        for resource in list["resources"].as_array().unwrap() {
            // What is only made, such as a review, belongs to whoever asks.
            if resource["verbs"].as_array().unwrap().iter().any(|verb| verb == "list" || verb == "get") {
                let namespaced = resource["namespaced"] == true;
                all.push((path.clone(), resource["name"].as_str().unwrap().to_owned(), namespaced));
            }
        }
    }
    all
}

/// A collection without what all have in common.
fn short(collection: &str) -> &str {
    collection.strip_prefix("/apis/").or(collection.strip_prefix("/api/")).unwrap()
}

/// The letters of the verbs that an identity is not forbidden, in one place.
async fn rights(server: &Server, who: &Identity, collection: &str, status: bool) -> String {
    let object = format!("{collection}/x{}", if status { "/status" } else { "" });
    let merge = "application/merge-patch+json";
    let mut letters = String::new();
    for (letter, method, path, kind) in [
        ('g', Method::GET, object.clone(), "application/json"),
        ('l', Method::GET, collection.to_owned(), "application/json"),
        ('w', Method::GET, format!("{collection}?watch=true"), "application/json"),
        ('c', Method::POST, collection.to_owned(), "application/json"),
        ('u', Method::PUT, object.clone(), "application/json"),
        ('p', Method::PATCH, object.clone(), merge),
        ('d', Method::DELETE, object.clone(), "application/json"),
        ('D', Method::DELETE, collection.to_owned(), "application/json"),
    ] {
        if status && !matches!(letter, 'g' | 'u' | 'p') {
            continue;
        }
        let with = With { content_type: Some(kind), identity: Some(who.clone()), ..With::default() };
        let body = (method != Method::GET && method != Method::DELETE).then(|| b"{}".to_vec());
        let response = send(server, method.clone(), &path, body, with).await;
        let code = response.status().as_u16();
        assert!(code != 401 && code < 500, "{method} {path}: {code}");
        // Some things nobody may: that is not for lack of rights.
        let forbidden = code == 403 && read(response).await.message().contains("User \"");
        if !forbidden && code != 405 {
            letters.push(letter);
        }
    }
    if letters.is_empty() { "-".to_owned() } else { letters }
}

/// What is served beside the resources.
const PATHS: [&str; 8] = [
    "/healthz",
    "/version",
    "/api",
    "/apis",
    "/openapi/v3",
    "/metrics",
    "/bootstrap/v1/tokens",
    "/bootstrap/v1/backup",
];

/// Whether an identity may read a path or post to it.
async fn path_rights(server: &Server, who: &Identity, path: &str) -> String {
    let mut letters = String::new();
    for (letter, method) in [('g', Method::GET), ('c', Method::POST)] {
        let body = (method == Method::POST).then(|| b"{}".to_vec());
        let kind = Some("application/json");
        let with = With { content_type: kind, identity: Some(who.clone()), ..With::default() };
        let code = send(server, method, path, body, with).await.status().as_u16();
        assert!(code != 401 && code < 500, "{path}: {code}");
        if code != 403 && code != 405 {
            letters.push(letter);
        }
    }
    if letters.is_empty() { "-".to_owned() } else { letters }
}

/// Scenario A39.
#[tokio::test]
async fn every_role_has_the_rights_of_the_table_and_no_other() {
    let store: Arc<dyn wharfline::store::Store> = store();
    let server = Server::new(store, definitions(), options());
    server.bootstrap().await.unwrap();
    let node = Identity::node("n").with_key(Some("k".to_owned()));
    let nobody = Identity { user: "p".to_owned(), groups: Vec::new(), key: Some("k".to_owned()) };
    let roles = [person(VIEWERS), person(EDITORS), node, nobody];
    let admin = Identity::admin().with_key(Some("k".to_owned()));
    let mut table = String::from(
        "# What each role may ask for: g get, l list, w watch, c create, u update, p patch, d delete, D deletecollection.\n\
         # An administrator may everything that a resource has. A node's further limits are by object: src/server/rights.rs.\n\
         # Written by the test; UPDATE_RIGHTS=1 writes it anew.\n",
    );
    writeln!(table, "{:<62} {:<9} {:<9} {:<9} {:<9}", "resource", "view", "edit", "node", "no role").unwrap();
    for (version, resource, namespaced) in resources(&server).await {
        let (plural, status) = match resource.split_once('/') {
            Some((plural, _)) => (plural, true),
            None => (resource.as_str(), false),
        };
        let places = match namespaced {
            true if status => vec!["namespaces/default/"],
            true => vec!["", "namespaces/default/", "namespaces/wharfline-system/"],
            false => vec![""],
        };
        for place in places {
            let collection = format!("{version}/{place}{plural}");
            // Without a namespace there is only the list.
            if place.is_empty() && namespaced {
                let mut row = String::new();
                for who in &roles {
                    let with = With { identity: Some(who.clone()), ..With::default() };
                    let code = ask(&server, Method::GET, &collection, None, with).await.code;
                    write!(row, " {:<9}", if code == 200 { "l" } else { "-" }).unwrap();
                }
                writeln!(table, "{:<62}{}", short(&collection), row.trim_end()).unwrap();
                continue;
            }
            let mut row = String::new();
            for who in &roles {
                write!(row, " {:<9}", rights(&server, who, &collection, status).await).unwrap();
            }
            let all = rights(&server, &admin, &collection, status).await;
            let has = if status { "gup" } else { "glwcupdD" };
            let read_only = ["glw"].contains(&all.as_str());
            assert!(all == has || read_only, "{collection}: an administrator may {all}");
            let name = format!("{}{}", short(&collection), if status { "/status" } else { "" });
            writeln!(table, "{name:<62}{}", row.trim_end()).unwrap();
        }
    }
    for path in PATHS {
        let mut row = String::new();
        for who in &roles {
            write!(row, " {:<9}", path_rights(&server, who, path).await).unwrap();
        }
        let all = path_rights(&server, &admin, path).await;
        assert!(all == "g" || all == "c", "{path}: an administrator may {all}");
        writeln!(table, "{path:<62}{}", row.trim_end()).unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server_rights.txt");
    if std::env::var_os("UPDATE_RIGHTS").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let wanted = std::fs::read_to_string(path).unwrap();
    for (is, should) in table.lines().zip(wanted.lines()) {
        assert_eq!(is, should);
    }
    assert_eq!(table.lines().count(), wanted.lines().count());
    server.shutdown().await;
}

/// What is kept of a token.
fn hash(token: &UserToken) -> String {
    base64::engine::general_purpose::STANDARD
        .encode(ring::digest::digest(&ring::digest::SHA256, token.secret.as_bytes()))
}

/// A server whose users are known by tokens, with its audit log.
struct Guarded {
    server: Server,
    log: Arc<Mutex<Vec<String>>>,
    _keys: tempfile::TempDir,
}

async fn guarded(seating: Seating) -> Guarded {
    guarded_with(ServerOptions { seating, ..options() }).await
}

async fn guarded_with(options: ServerOptions) -> Guarded {
    let keys = tempfile::tempdir().unwrap();
    let pki = Pki::load_or_create(keys.path(), jiff::Timestamp::now(), &|bytes| bytes.fill(5)).unwrap();
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let lines = Arc::clone(&log);
    let options = ServerOptions {
        signer: Some(Arc::new(pki)),
        audit: Some(Arc::new(move |line| lines.lock().unwrap().push(line))),
        ..options
    };
    let server = Server::new(store(), definitions(), options);
    server.bootstrap().await.unwrap();
    Guarded { server, log, _keys: keys }
}

impl Guarded {
    /// Makes a user; its token.
    async fn user(&self, name: &str, role: &str, expires: &str) -> UserToken {
        let token = UserToken { name: name.to_owned(), secret: "s3cr3t".repeat(6) };
        let object = json!({
            "metadata": { "name": format!("user-{name}") }, "type": "wharfline.dev/user",
            "stringData": { "hash": hash(&token), "role": role, "expires": expires },
        });
        let made = post(&self.server, "/api/v1/namespaces/wharfline-system/secrets", object).await;
        assert_eq!(made.code, 201, "{}", made.message());
        token
    }

    async fn ask(&self, token: &str, method: Method, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {token}")).body(body).unwrap();
        read(self.server.router().oneshot(request).await.unwrap()).await
    }

    /// `user verb resource/name code` of each line.
    fn audited(&self) -> Vec<String> {
        let lines = self.log.lock().unwrap();
        let line = |line: &String| {
            let line: Value = serde_json::from_str(line).unwrap();
            let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
            let (who, verb) = (text(&line["user"]["username"]), text(&line["verb"]));
            let about =
                format!("{}/{}", text(&line["objectRef"]["resource"]), text(&line["objectRef"]["name"]));
            format!("{who} {verb} {about} {}", line["responseStatus"]["code"])
        };
        lines.iter().map(line).collect()
    }
}

const CLAIMS: &str = "/apis/wharfline.dev/v1alpha1/namespaces/default/volumeclaims";
const FOREVER: &str = "2099-01-01T00:00:00Z";

/// What a plugin has may be of another namespace: by its handle only an administrator brings it into one.
#[tokio::test]
async fn who_writes_in_a_namespace_names_no_snapshot_of_a_plugin_there() {
    let guarded = guarded(Seating::default()).await;
    let editor = guarded.user("ed", "edit", FOREVER).await.to_string();
    let admin = guarded.user("adam", "admin", FOREVER).await.to_string();
    let path = "/apis/wharfline.dev/v1alpha1/namespaces/default/snapshots";
    let snapshot = |name: &str, source: Value| {
        json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot", "metadata": { "name": name },
            "spec": { "source": source } })
    };
    let foreign = snapshot("foreign", json!({ "handle": "snap-of-others", "plugin": "p" }));
    let made = guarded.ask(&editor, Method::POST, path, foreign.clone()).await;
    assert_eq!(made.refusal(), (403, "Forbidden"));
    assert!(
        made.message().contains("spec.source.handle") && made.message().contains("User \"ed\""),
        "{}",
        made.message()
    );
    let own = snapshot("own", json!({ "claimName": "c" }));
    assert_eq!(guarded.ask(&editor, Method::POST, path, own).await.code, 201);
    assert_eq!(guarded.ask(&admin, Method::POST, path, foreign).await.code, 201);
}

#[tokio::test]
async fn a_user_has_its_role_until_it_is_taken_away() {
    let guarded = guarded(Seating::default()).await;
    let viewer = guarded.user("vera", "view", FOREVER).await.to_string();
    let editor = guarded.user("ed", "edit", FOREVER).await.to_string();
    let claim = json!({
        "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClaim", "metadata": { "name": "c" },
        "spec": { "volumeClassName": "none", "accessModes": ["SingleNodeWriter"],
            "resources": { "requests": { "storage": "1Gi" } } },
    });
    let made = guarded.ask(&viewer, Method::POST, CLAIMS, claim.clone()).await;
    assert_eq!(made.refusal(), (403, "Forbidden"));
    assert!(
        made.message().contains("User \"vera\" cannot create resource \"volumeclaims\""),
        "{}",
        made.message()
    );
    let made = guarded.ask(&editor, Method::POST, CLAIMS, claim).await;
    assert_eq!(made.code, 201, "{}", made.message());
    assert_eq!(
        guarded.ask(&viewer, Method::GET, CLAIMS, Value::Null).await.body["items"][0]["metadata"]["name"],
        "c"
    );
    // A watch that is open ends with the user, and the next request is refused.
    let request =
        Request::get(format!("{CLAIMS}?watch=true")).header("authorization", format!("Bearer {viewer}"));
    let watch = guarded.server.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(watch.status(), 200);
    let secret = "/api/v1/namespaces/wharfline-system/secrets/user-vera";
    assert_eq!(delete(&guarded.server, secret, None).await.code, 200);
    let end = axum::body::to_bytes(watch.into_body(), 1 << 20);
    assert!(tokio::time::timeout(std::time::Duration::from_secs(10), end).await.is_ok(), "the watch goes on");
    assert_eq!(guarded.ask(&viewer, Method::GET, CLAIMS, Value::Null).await.refusal(), (401, "Unauthorized"));
    // Another role is another user: what was known of the one before does not count.
    let patch = json!({ "stringData": { "role": "view" } });
    assert_eq!(
        merge(&guarded.server, "/api/v1/namespaces/wharfline-system/secrets/user-ed", patch).await.code,
        200
    );
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while guarded.ask(&editor, Method::DELETE, &format!("{CLAIMS}/c"), Value::Null).await.code != 403 {
        assert!(std::time::Instant::now() < deadline, "the old role stands");
        tokio::task::yield_now().await;
    }
    guarded.server.shutdown().await;
}

#[tokio::test]
async fn a_token_that_is_wrong_or_old_or_misplaced_is_refused_and_noted() {
    let guarded = guarded(Seating::default()).await;
    let good = guarded.user("vera", "view", FOREVER).await;
    let old = guarded.user("old", "admin", "2020-01-01T00:00:00Z").await.to_string();
    let odd = guarded.user("odd", "king", FOREVER).await.to_string();
    // A Secret of that name that is no user, and one that is a user's elsewhere.
    let foreign = json!({ "metadata": { "name": "user-eve" }, "type": "wharfline.dev/user",
        "stringData": { "hash": hash(&good), "role": "admin", "expires": FOREVER } });
    assert_eq!(post(&guarded.server, "/api/v1/namespaces/default/secrets", foreign.clone()).await.code, 201);
    let mut opaque = foreign;
    opaque["metadata"]["name"] = json!("user-mal");
    opaque["type"] = json!("Opaque");
    assert_eq!(post(&guarded.server, "/api/v1/namespaces/wharfline-system/secrets", opaque).await.code, 201);
    let with = |name: &str| UserToken { name: name.to_owned(), secret: good.secret.clone() }.to_string();
    let wrong = UserToken { name: "vera".to_owned(), secret: "0".repeat(36) }.to_string();
    guarded.log.lock().unwrap().clear();
    let unknown = "the token is not known here";
    for (token, why) in [
        (wrong.clone(), unknown),
        (with("nobody"), unknown),
        (with("eve"), unknown),
        (with("mal"), unknown),
        (odd, unknown),
        ("nonsense".to_owned(), unknown),
        (format!("{good}x"), unknown),
        (old, "the token of user \"old\" has expired"),
        // Who was let in once is still held to the token.
        (good.to_string(), ""),
        (wrong, unknown),
    ] {
        let answer = guarded.ask(&token, Method::GET, CLAIMS, Value::Null).await;
        let expected = if why.is_empty() { 200 } else { 401 };
        assert_eq!(answer.code, expected, "{token}");
        assert!(answer.message().contains(why), "{token}: {}", answer.message());
    }
    let audited = guarded.audited();
    assert_eq!(audited.len(), 9, "{audited:#?}");
    assert!(audited.iter().all(|line| line == "system:anonymous list volumeclaims/- 401"), "{audited:#?}");
    let log = guarded.log.lock().unwrap().concat();
    assert!(!log.contains(&good.secret) && !log.contains(&hash(&good)), "a token is in the log");
    guarded.server.shutdown().await;
}

#[tokio::test]
async fn the_audit_log_says_who_wrote_what_and_never_what_was_written() {
    let guarded = guarded(Seating::default()).await;
    let editor = guarded.user("ed", "edit", FOREVER).await.to_string();
    guarded.log.lock().unwrap().clear();
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "key": "hunter2hunter2" } });
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(guarded.ask(&editor, Method::POST, secrets, secret).await.code, 201);
    let bad = json!({ "metadata": { "name": "s" }, "data": { "key": "hunter2 is no base 64" } });
    assert_eq!(guarded.ask(&editor, Method::PUT, &format!("{secrets}/s"), bad).await.code, 422);
    assert_eq!(guarded.ask(&editor, Method::GET, &format!("{secrets}/s"), Value::Null).await.code, 200);
    let system = "/api/v1/namespaces/wharfline-system/secrets";
    assert_eq!(guarded.ask(&editor, Method::GET, system, Value::Null).await.code, 403);
    assert_eq!(guarded.ask(&editor, Method::DELETE, &format!("{secrets}/s"), Value::Null).await.code, 200);
    let audited = guarded.audited();
    let expected = [
        "ed create secrets/- 201",
        "ed update secrets/s 422",
        "ed list secrets/- 403",
        "ed delete secrets/s 200",
    ];
    assert_eq!(audited, expected);
    assert!(!guarded.log.lock().unwrap().concat().contains("hunter2"));
    guarded.server.shutdown().await;
}

#[tokio::test]
async fn an_open_watch_ends_with_its_token() {
    let guarded = guarded(Seating::default()).await;
    // The server's clock stands still; how long a watch lasts is real time.
    let user = guarded.user("brief", "view", "2024-05-01T10:00:00.2Z").await.to_string();
    let request =
        Request::get(format!("{CLAIMS}?watch=true")).header("authorization", format!("Bearer {user}"));
    let watch = guarded.server.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(watch.status(), 200);
    let end = axum::body::to_bytes(watch.into_body(), 1 << 20);
    assert!(tokio::time::timeout(std::time::Duration::from_secs(10), end).await.is_ok(), "the watch goes on");
    guarded.server.shutdown().await;
}

#[tokio::test]
async fn what_one_sends_has_its_place_in_memory_and_leaves_others_theirs() {
    let bodies = Seating { seats: 4, each: 2, waiting: 1 };
    let limits = Limits { bodies, ..Limits::default() };
    let guarded = guarded_with(ServerOptions { limits, ..options() }).await;
    let flood = guarded.user("flo", "edit", FOREVER).await.to_string();
    let other = guarded.user("ed", "edit", FOREVER).await.to_string();
    let path = "/api/v1/namespaces/default/configmaps";
    let never_sent = || {
        let body = Body::from_stream(futures::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {flood}")).body(body).unwrap();
        guarded.server.router().oneshot(request)
    };
    // Whose length is not named takes all that one may have.
    let mut held = Box::pin(never_sent());
    let mut waits = Box::pin(never_sent());
    assert!(futures::poll!(held.as_mut()).is_pending() && futures::poll!(waits.as_mut()).is_pending());
    let named = |name: &str| json!({ "metadata": { "name": name } });
    assert_eq!(guarded.ask(&flood, Method::POST, path, named("a")).await.code, 429);
    assert_eq!(guarded.ask(&other, Method::POST, path, named("b")).await.code, 201);
    assert_eq!(guarded.ask(&flood, Method::GET, path, Value::Null).await.code, 200, "reading takes no place");
    drop((held, waits));
    assert_eq!(guarded.ask(&flood, Method::POST, path, named("a")).await.code, 201);
    guarded.server.shutdown().await;
}

/// A store whose creation of one object hangs, so that its request keeps its seat.
async fn stuck(seating: Seating) -> Server {
    let meddled = support::server_store::Meddled::new(store(), |method, key| {
        let stuck = method == "put" && key.ends_with(b"/stuck");
        if stuck { support::server_store::Fate::Hangs } else { support::server_store::Fate::Done }
    });
    let server = Server::new(meddled, definitions(), ServerOptions { seating, ..options() });
    server.bootstrap().await.unwrap();
    server
}

#[tokio::test]
async fn a_flood_of_one_is_refused_and_delays_nobody_else() {
    let server = stuck(Seating { seats: 2, each: 1, waiting: 3 }).await;
    let config = |name: &str| json!({ "metadata": { "name": name } }).to_string().into_bytes();
    let path = "/api/v1/namespaces/default/configmaps";
    let asks = |name: &str, who: Identity| {
        let with = With { identity: Some(who), ..With::default() };
        send(&server, Method::POST, path, Some(config(name)), with)
    };
    let flood = person(EDITORS);
    let mut held = Box::pin(asks("stuck", flood.clone()));
    assert!(futures::poll!(held.as_mut()).is_pending());
    let mut waiting: Vec<_> = (0..3).map(|n| Box::pin(asks(&format!("a{n}"), flood.clone()))).collect();
    for one in &mut waiting {
        assert!(futures::poll!(one.as_mut()).is_pending(), "it waits behind its own");
    }
    let refused = asks("b", flood).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    let other = Identity { user: "other".to_owned(), ..person(EDITORS) };
    assert_eq!(asks("c", other).await.status(), 201, "others have their seat");
    assert_eq!(asks("d", Identity::controllers()).await.status(), 201, "the server's own parts need none");
    // Whose request is given up makes room.
    drop(held);
    for one in waiting {
        assert_eq!(one.await.status(), 201);
    }
    server.shutdown().await;
}

#[tokio::test]
async fn a_leader_that_was_replaced_writes_nothing_more() {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
    let fixture = fixture().await;
    let config = |name: &str| ConfigMap {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    let of = |client: kube::Client| Api::<ConfigMap>::namespaced(client, "default");
    let first = of(fixture.server.lead(7).await.unwrap());
    let made = first.create(&PostParams::default(), &config("a")).await.unwrap();
    let second = of(fixture.server.lead(9).await.unwrap());
    let before = fixture.writes().await;
    let patch = Patch::Merge(json!({ "data": { "k": "v" } }));
    let refused = [
        first.create(&PostParams::default(), &config("b")).await.map(drop),
        first.patch("a", &PatchParams::default(), &patch).await.map(drop),
        first
            .replace(
                "a",
                &PostParams::default(),
                &ConfigMap { data: Some([("k".into(), "w".into())].into()), ..made },
            )
            .await
            .map(drop),
        first.delete("a", &DeleteParams::default()).await.map(drop),
    ];
    for refusal in refused {
        let Err(kube::Error::Api(status)) = refusal else { panic!("it was done") };
        assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
        assert!(status.message.contains("another server runs the controllers"), "{}", status.message);
    }
    assert_eq!(fixture.writes().await, before);
    assert!(first.get("a").await.is_ok(), "it may read");
    second.patch("a", &PatchParams::default(), &patch).await.unwrap();
    second.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(fixture.server.lead(8).await.is_err(), "an earlier turn of the lease begins nothing");
    fixture.server.shutdown().await;
}

/// What the controllers say beside the wire: the uid of what they make, what has to be as it was seen, and that a status ends its
/// object. Of anybody else it counts for nothing.
#[tokio::test]
async fn what_the_controllers_say_beside_the_wire_is_heard_of_them_alone() {
    use kube::api::PostParams;
    use wharfline::api::meta::{AsSeen, WithEnd, WithUid};
    let store = store();
    let shared: Arc<dyn wharfline::store::Store> = Arc::<_>::clone(&store) as _;
    let fixture = Fixture { store, server: Server::new(shared, definitions(), options()) };
    fixture.server.bootstrap().await.unwrap();
    let group = "/apis/wharfline.dev/v1alpha1";
    let volume = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume", "metadata": { "name": "v" },
        "spec": { "plugin": "p", "accessModes": ["SingleNodeWriter"], "source": { "existing": { "handle": "h" } } } });
    let made = post(&fixture.server, &format!("{group}/volumes"), volume).await;
    let version = made.at("/metadata/resourceVersion").as_str().unwrap().to_owned();
    let seen = |plural: &str, version: Option<&str>| AsSeen {
        plural: plural.to_owned(),
        name: "v".to_owned(),
        version: version.map(str::to_owned),
    };
    let make = |identity: Identity, name: &str, seen: AsSeen| {
        let class = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClass",
            "metadata": { "name": name }, "spec": { "plugin": "p" } });
        let body = serde_json::to_vec(&class).unwrap();
        let path = format!("{group}/volumeclasses");
        let mut request = kube::core::Request::new(path).create(&PostParams::default(), body).unwrap();
        request.extensions_mut().insert(WithUid(format!("uid-of-{name}")));
        request.extensions_mut().insert(seen);
        let client = fixture.server.client(identity);
        async move { client.request::<Value>(request).await }
    };
    let one = make(Identity::controllers(), "one", seen("volumes", Some(&version))).await.unwrap();
    assert_eq!(one["metadata"]["uid"], "uid-of-one");
    make(Identity::controllers(), "two", seen("volumeattachments", None))
        .await
        .expect("there is none of the name");
    for (plural, version) in [("volumes", Some("1")), ("volumes", None), ("volumeattachments", Some("1"))] {
        let refused = make(Identity::controllers(), "three", seen(plural, version)).await;
        assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 409), "{refused:?}");
    }
    let other = make(Identity::admin(), "other", seen("volumes", Some("1"))).await.unwrap();
    assert_ne!(other["metadata"]["uid"], "uid-of-other");

    for (identity, ends) in [(Identity::admin(), false), (Identity::controllers(), true)] {
        let found = get(&fixture.server, &format!("{group}/volumes/v")).await;
        let mut body = found.body.clone();
        body["status"] = json!({ "phase": if ends { "Releasing" } else { "Ready" } });
        let body = serde_json::to_vec(&body).unwrap();
        let at = kube::core::Request::new(format!("{group}/volumes"));
        let mut request = at.replace_subresource("status", "v", &PostParams::default(), body).unwrap();
        request.extensions_mut().insert(WithEnd);
        let before = fixture.writes().await;
        let said: Value = fixture.server.client(identity).request(request).await.unwrap();
        assert_eq!(said["metadata"]["deletionTimestamp"].is_string(), ends);
        assert_eq!(said["metadata"]["generation"], if ends { 2 } else { 1 });
        assert_eq!(fixture.writes().await, before + 1, "one write");
    }
    fixture.server.shutdown().await;
}

#[tokio::test]
async fn a_write_that_goes_by_a_silent_lease_ends_when_that_is_renewed() {
    use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Api, ObjectMeta, PostParams};
    use wharfline::api::meta::Unrenewed;
    let fixture = fixture().await;
    let client = wharfline::run::patience::patient(fixture.server.lead(1).await.unwrap());
    let leases = Api::<Lease>::namespaced(client.clone(), "wharfline-system");
    let configs = Api::<ConfigMap>::namespaced(client.clone(), "default");
    let named = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let lease = Lease { metadata: named("n"), ..Lease::default() };
    let lease = leases.create(&PostParams::default(), &lease).await.unwrap();
    let config = ConfigMap { metadata: named("a"), ..ConfigMap::default() };
    let config = configs.create(&PostParams::default(), &config).await.unwrap();
    let write = |config: &ConfigMap, value: &str, node: &str, version: Option<String>| {
        let config = ConfigMap { data: Some([("k".into(), value.into())].into()), ..config.clone() };
        let path = "/api/v1/namespaces/default/configmaps";
        let body = serde_json::to_vec(&config).unwrap();
        let mut request = kube::core::Request::new(path).replace("a", &PostParams::default(), body).unwrap();
        request.extensions_mut().insert(Unrenewed { node: node.to_owned(), version });
        let client = client.clone();
        async move { client.request::<ConfigMap>(request).await }
    };
    let silent = lease.metadata.resource_version.clone();
    let written = write(&config, "1", "n", silent.clone()).await.expect("it is as it was seen");
    let written = write(&written, "2", "none", None).await.expect("it has none still");
    let spec = LeaseSpec { holder_identity: Some("n".into()), ..LeaseSpec::default() };
    let renewed = Lease { spec: Some(spec), ..lease };
    let renewed = leases.replace("n", &PostParams::default(), &renewed).await.unwrap();
    let before = fixture.writes().await;
    for (node, version) in [("n", silent), ("n", None), ("none", Some("1".into())), ("n", Some("x".into()))] {
        let Err(kube::Error::Api(refusal)) = write(&written, "3", node, version.clone()).await else {
            panic!("{node} {version:?}: it was done");
        };
        assert_eq!((refusal.code, refusal.reason.as_str()), (409, "Conflict"), "{node} {version:?}");
        assert!(refusal.message.contains("written since"), "{}", refusal.message);
    }
    assert_eq!(fixture.writes().await, before);
    write(&written, "3", "n", renewed.metadata.resource_version).await.expect("it was looked at anew");
    fixture.server.shutdown().await;
}
