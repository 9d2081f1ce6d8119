//! Watches, line by line, and kube-runtime unmodified on the server within the process.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
mod support {
    pub(crate) mod server_api;
}

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use http::Method;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Event as Finalizer, finalizer};
use kube::runtime::reflector::store::Writer;
use kube::runtime::{Controller, WatchStreamExt, reflector, watcher};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use support::server_api::*;
use wharfline::server::{Identity, Server};
use wharfline::store::{Expect, Store};

fn one(name: &str) -> String {
    format!("{GADGETS}/{name}")
}

/// Fails the test when what is awaited does not come.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it did not come in time")
}

/// Scenario A37.
#[tokio::test]
async fn a_watch_without_version_begins_with_what_exists() {
    let f = fixture().await;
    post(&f.server, GADGETS, a_gadget("a")).await;
    for start in [String::new(), "?resourceVersion=0".to_owned()] {
        let mut lines = watch(&f.server, &format!("{GADGETS}{start}")).await;
        assert_eq!(lines.told().await, "ADDED a");
    }
    let mut lines = watch(&f.server, GADGETS).await;
    lines.told().await;
    merge(&f.server, &one("a"), json!({ "spec": { "size": 2 } })).await;
    post(&f.server, GADGETS, a_gadget("b")).await;
    delete(&f.server, &one("a"), None).await;
    assert_eq!(lines.told().await, "MODIFIED a");
    assert_eq!(lines.told().await, "ADDED b");
    let gone = lines.next().await.unwrap();
    assert_eq!((&gone["type"], &gone["object"]["spec"]["size"]), (&json!("DELETED"), &json!(2)));
    let revision = gone["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(revision, f.writes().await.to_string(), "the deletion's own revision");
}

#[tokio::test]
async fn a_watch_from_a_version_replays_what_came_after() {
    let f = fixture().await;
    let first = post(&f.server, GADGETS, a_gadget("a")).await;
    post(&f.server, GADGETS, a_gadget("b")).await;
    delete(&f.server, &one("a"), None).await;
    let mut lines = watch(&f.server, &format!("{GADGETS}?resourceVersion={}", first.version())).await;
    assert_eq!(lines.told().await, "ADDED b");
    assert_eq!(lines.told().await, "DELETED a");
    // Of a history that is no more: told in the stream, for on a refused watch clients do not list anew.
    let mut lines = watch(&f.server, &format!("{GADGETS}?resourceVersion=99999")).await;
    let error = lines.next().await.unwrap();
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert!(lines.next().await.is_none());
}

#[tokio::test]
async fn history_older_than_the_server_comes_from_the_store() {
    let f = fixture().await;
    let first = post(&f.server, GADGETS, a_gadget("a")).await;
    post(&f.server, GADGETS, a_gadget("b")).await;
    let later = f.restarted();
    let mut lines = watch(&later, &format!("{GADGETS}?resourceVersion={}", first.version())).await;
    assert_eq!(lines.told().await, "ADDED b");
    post(&f.server, GADGETS, a_gadget("c")).await;
    assert_eq!(lines.told().await, "ADDED c");
    post(&later, GADGETS, a_gadget("d")).await;
    assert_eq!(lines.told().await, "ADDED d", "from the shelf again");
}

#[tokio::test]
async fn a_filtered_watch_sees_objects_enter_and_leave() {
    let f = fixture().await;
    post(&f.server, GADGETS, a_gadget("a")).await;
    let mut by_field = watch(&f.server, &format!("{GADGETS}?fieldSelector=spec.nodeName%3Dn1")).await;
    let mut by_label = watch(&f.server, &format!("{GADGETS}?labelSelector=team%3Dx")).await;
    let mut by_name = watch(&f.server, &format!("{GADGETS}?fieldSelector=metadata.name%3Db")).await;
    merge(&f.server, &one("a"), json!({ "spec": { "nodeName": "n1" } })).await;
    merge(&f.server, &one("a"), json!({ "spec": { "size": 2 } })).await;
    let left = merge(&f.server, &one("a"), json!({ "spec": { "nodeName": "n2" } })).await;
    assert_eq!(by_field.told().await, "ADDED a");
    assert_eq!(by_field.told().await, "MODIFIED a");
    let event = by_field.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(event["object"]["spec"]["nodeName"], "n1", "as last seen");
    assert_eq!(event["object"]["metadata"]["resourceVersion"], left.version().to_string());
    merge(&f.server, &one("a"), json!({ "metadata": { "labels": { "team": "x" } } })).await;
    delete(&f.server, &one("a"), None).await;
    assert_eq!(by_label.told().await, "ADDED a");
    assert_eq!(by_label.told().await, "DELETED a");
    post(&f.server, GADGETS, a_gadget("b")).await;
    assert_eq!(by_name.told().await, "ADDED b", "nothing was heard of a");
}

/// Scenario A37.
#[tokio::test]
async fn watches_keep_to_their_namespace() {
    let f = fixture().await;
    let mut here = watch(&f.server, GADGETS).await;
    let mut all = watch(&f.server, "/apis/test.dev/v1/gadgets").await;
    let elsewhere = "/apis/test.dev/v1/namespaces/wharfline-system/gadgets";
    post(&f.server, elsewhere, a_gadget("x")).await;
    post(&f.server, GADGETS, a_gadget("a")).await;
    assert_eq!(here.told().await, "ADDED a");
    assert_eq!(all.told().await, "ADDED x");
    assert_eq!(all.told().await, "ADDED a");
}

#[tokio::test]
async fn bookmarks_come_when_allowed_and_carry_the_newest_revision() {
    let f = fixture().await;
    let made = post(&f.server, GADGETS, a_gadget("a")).await;
    let from = made.version();
    let path = format!("{GADGETS}?allowWatchBookmarks=true&resourceVersion={from}");
    let mut lines = watch(&f.server, &path).await;
    let configs = "/api/v1/namespaces/default/configmaps";
    let other = post(&f.server, configs, json!({ "metadata": { "name": "c" } })).await;
    let mut seen = 0;
    while seen < other.version() {
        let event = lines.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("BOOKMARK"), &json!("Gadget")));
        seen = event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    }
    // A second without bookmarks: the deletion is the first it hears.
    let mut plain = watch(&f.server, &format!("{GADGETS}?resourceVersion={from}")).await;
    let second = lines.next().await.unwrap();
    assert_eq!(second["type"], "BOOKMARK");
    delete(&f.server, &one("a"), None).await;
    assert_eq!(plain.next().await.unwrap()["type"], "DELETED");
}

#[tokio::test]
async fn initial_events_end_with_an_annotated_bookmark() {
    let f = fixture().await;
    post(&f.server, GADGETS, a_gadget("a")).await;
    let path = format!("{GADGETS}?sendInitialEvents=true&allowWatchBookmarks=true");
    let refused = get(&f.server, &format!("{path}&watch=true")).await;
    assert_eq!(refused.refusal(), (422, "Invalid"));
    let mut lines = watch(&f.server, &format!("{path}&resourceVersionMatch=NotOlderThan")).await;
    assert_eq!(lines.told().await, "ADDED a");
    let end = lines.next().await.unwrap();
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let quiet = format!("{GADGETS}?sendInitialEvents=false&resourceVersionMatch=NotOlderThan");
    let mut lines = watch(&f.server, &quiet).await;
    post(&f.server, GADGETS, a_gadget("b")).await;
    assert_eq!(lines.told().await, "ADDED b");
}

#[tokio::test]
async fn a_compacted_watch_is_an_error_in_the_stream() {
    let f = fixture().await;
    let made = post(&f.server, GADGETS, a_gadget("a")).await;
    for size in 2..5 {
        merge(&f.server, &one("a"), json!({ "spec": { "size": size } })).await;
    }
    f.compact().await;
    let later = f.restarted();
    let mut lines = watch(&later, &format!("{GADGETS}?resourceVersion={}", made.version())).await;
    let error = lines.next().await.unwrap();
    assert_eq!(error["type"], "ERROR");
    assert_eq!((&error["object"]["code"], &error["object"]["reason"]), (&json!(410), &json!("Expired")));
    assert!(lines.next().await.is_none(), "and the end");
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_at_its_timeout_and_at_shutdown() {
    let f = fixture().await;
    let mut lines = watch(&f.server, &format!("{GADGETS}?timeoutSeconds=3")).await;
    let begin = tokio::time::Instant::now();
    assert!(lines.next().await.is_none());
    assert_eq!(begin.elapsed().as_secs(), 3);
    let mut marked = watch(&f.server, &format!("{GADGETS}?timeoutSeconds=1&allowWatchBookmarks=true")).await;
    let mut last = Value::Null;
    while let Some(event) = marked.next().await {
        last = event;
    }
    assert_eq!(last["type"], "BOOKMARK", "the last word is where to go on");
    let mut open = watch(&f.server, GADGETS).await;
    f.server.shutdown().await;
    assert!(open.next().await.is_none());
}

#[tokio::test]
async fn the_number_of_watches_is_limited() {
    let mut options = options();
    options.limits.watches = 1;
    let server = Server::new(store(), vec![gadget()], options);
    server.bootstrap().await.unwrap();
    let path = format!("{GADGETS}?watch=true");
    let asks = || {
        let with =
            With { identity: Some(Identity::admin().with_key(Some("k".to_owned()))), ..With::default() };
        send(&server, Method::GET, &path, None, with)
    };
    let first = asks().await;
    assert_eq!(first.status(), 200);
    let refused = read(asks().await).await;
    assert_eq!(refused.refusal(), (429, "TooManyRequests"));
    assert_eq!(refused.headers["retry-after"], "5");
    drop(first);
    assert_eq!(asks().await.status(), 200);
}

#[tokio::test]
async fn one_identity_cannot_take_all_watches() {
    let mut options = options();
    options.limits.watches_each = 2;
    let server = Server::new(store(), vec![gadget()], options);
    server.bootstrap().await.unwrap();
    let path = format!("{GADGETS}?watch=true");
    let asks = |user: &str| {
        let identity = Identity { user: user.to_owned(), ..Identity::admin().with_key(Some("k".to_owned())) };
        let with = With { identity: Some(identity), ..With::default() };
        send(&server, Method::GET, &path, None, with)
    };
    let held = [asks("a").await, asks("a").await];
    assert!(held.iter().all(|answer| answer.status() == 200));
    assert_eq!(asks("a").await.status(), 429);
    assert_eq!(asks("b").await.status(), 200);
    drop(held);
    assert_eq!(asks("a").await.status(), 200);
    let of_its_own = With { identity: Some(Identity::controllers()), ..With::default() };
    let mut own = Vec::new();
    for _ in 0..3 {
        own.push(send(&server, Method::GET, &path, None, of_its_own.clone()).await);
    }
    assert!(own.iter().all(|answer| answer.status() == 200), "the server's own parts are not counted");
}

#[tokio::test]
async fn tables_and_metadata_are_watched_too() {
    let f = fixture().await;
    post(&f.server, GADGETS, a_gadget("a")).await;
    for (form, kind) in [("Table", "Table"), ("PartialObjectMetadata", "PartialObjectMetadata")] {
        let accept = format!("application/json;as={form};v=v1;g=meta.k8s.io").leak();
        let with = With { accept: Some(accept), ..With::default() };
        let response = send(&f.server, Method::GET, &format!("{GADGETS}?watch=1"), None, with).await;
        let mut body = response.into_body().into_data_stream();
        let event: Value = serde_json::from_slice(&body.next().await.unwrap().unwrap()).unwrap();
        assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("ADDED"), &json!(kind)));
    }
}

// From here on: kube-runtime.

fn resource() -> ApiResource {
    ApiResource {
        group: "test.dev".to_owned(),
        version: "v1".to_owned(),
        api_version: "test.dev/v1".to_owned(),
        kind: "Gadget".to_owned(),
        plural: "gadgets".to_owned(),
    }
}

fn gadgets(client: &Client) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), "default", &resource())
}

fn dynamic(name: &str) -> DynamicObject {
    serde_json::from_value(a_gadget(name)).unwrap()
}

fn names(store: &reflector::Store<DynamicObject>) -> BTreeSet<String> {
    store.state().iter().map(|object| object.name_any()).collect()
}

#[tokio::test]
async fn a_client_does_everything_without_a_connection() {
    let f = fixture().await;
    let api = gadgets(&f.server.client(Identity::admin()));
    let made = api.create(&PostParams::default(), &dynamic("a")).await.unwrap();
    let patch = Patch::Merge(json!({ "spec": { "size": 2 } }));
    api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    let stale = api.replace("a", &PostParams::default(), &made).await.unwrap_err();
    assert!(matches!(stale, kube::Error::Api(status) if status.is_conflict()));
    let status = Patch::Merge(json!({ "status": { "phase": "Ready" } }));
    api.patch_status("a", &PatchParams::default(), &status).await.unwrap();
    assert_eq!(api.get_status("a").await.unwrap().data["status"]["phase"], "Ready");
    assert_eq!(api.get_metadata("a").await.unwrap().name_any(), "a");
    assert_eq!(api.list(&ListParams::default().fields("status.phase=Ready")).await.unwrap().items.len(), 1);
    assert_eq!(api.list_metadata(&ListParams::default()).await.unwrap().items.len(), 1);
    let deleted = api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    assert_eq!(deleted.left().unwrap().items.len(), 1);
    assert!(api.get_opt("a").await.unwrap().is_none());
}

#[tokio::test]
async fn reflectors_follow_by_list_and_by_streaming_list() {
    let f = fixture().await;
    let api = gadgets(&f.server.client(Identity::admin()));
    for name in ["a", "b", "c"] {
        api.create(&PostParams::default(), &dynamic(name)).await.unwrap();
    }
    for config in [watcher::Config::default().page_size(2), watcher::Config::default().streaming_lists()] {
        let writer = Writer::new(resource());
        let store = writer.as_reader();
        let mut stream = std::pin::pin!(watcher(api.clone(), config).reflect(writer));
        while names(&store) != BTreeSet::from(["a", "b", "c"].map(str::to_owned)) {
            soon(stream.try_next()).await.unwrap();
        }
        api.delete("b", &DeleteParams::default()).await.unwrap();
        while names(&store).contains("b") {
            soon(stream.try_next()).await.unwrap();
        }
        api.create(&PostParams::default(), &dynamic("b")).await.unwrap();
        while !names(&store).contains("b") {
            soon(stream.try_next()).await.unwrap();
        }
    }
}

/// A client of whichever server stands in the slot.
fn client_of(slot: &Arc<Mutex<Server>>) -> Client {
    let slot = Arc::clone(slot);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let router = slot.lock().unwrap().router();
        let mut request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(Identity::admin());
        tower::ServiceExt::oneshot(router, request)
    });
    Client::new(service, "default")
}

#[tokio::test]
async fn a_watcher_lists_again_after_compaction() {
    let f = fixture().await;
    let slot = Arc::new(Mutex::new(f.server.clone()));
    let api = gadgets(&client_of(&slot));
    api.create(&PostParams::default(), &dynamic("a")).await.unwrap();
    let mut stream = std::pin::pin!(watcher(api, watcher::Config::default()));
    let (mut listed, mut errors) = (0, 0);
    while listed < 2 {
        match soon(stream.next()).await.unwrap() {
            Ok(watcher::Event::InitDone) => {
                listed += 1;
                // Before its watch begins its revision is compacted, and the server starts anew.
                merge(&f.server, &one("a"), json!({ "spec": { "size": 2 } })).await;
                merge(&f.server, &one("a"), json!({ "spec": { "size": 3 } })).await;
                f.compact().await;
                *slot.lock().unwrap() = f.restarted();
            }
            Ok(_) => {}
            Err(watcher::Error::WatchError(status)) => {
                assert_eq!(status.code, 410);
                errors += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(errors, 1, "one error was shown, then it listed again");
}

#[tokio::test]
async fn a_controller_with_finalizer_makes_and_cleans_up() {
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Failed(String);
    struct Context {
        api: Api<DynamicObject>,
        applied: AtomicUsize,
        cleaned: AtomicUsize,
    }
    async fn reconcile(object: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, Failed> {
        let api = &context.api;
        let seen = &context;
        finalizer(api, "test.dev/cleanup", object, |event| async move {
            match event {
                Finalizer::Apply(object) => {
                    seen.applied.fetch_add(1, Ordering::Relaxed);
                    let patch = Patch::Merge(json!({ "status": { "phase": "Ready" } }));
                    api.patch_status(&object.name_any(), &PatchParams::default(), &patch).await?;
                }
                Finalizer::Cleanup(_) => {
                    seen.cleaned.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok::<_, kube::Error>(Action::await_change())
        })
        .await
        .map_err(|e| Failed(e.to_string()))
    }
    let f = fixture().await;
    let api = gadgets(&f.server.client(Identity::controllers()));
    let context = Arc::new(Context { api: api.clone(), applied: 0.into(), cleaned: 0.into() });
    let controller = Controller::new_with(api.clone(), watcher::Config::default(), resource());
    let run = controller.run(reconcile, |_, error, _| panic!("{error}"), Arc::clone(&context));
    let task = tokio::spawn(run.for_each(|_| async {}));
    for number in 0..10 {
        api.create(&PostParams::default(), &dynamic(&format!("g{number}"))).await.unwrap();
    }
    let ready = kube::runtime::wait::await_condition(api.clone(), "g9", |object: Option<&DynamicObject>| {
        object.is_some_and(|object| object.data["status"]["phase"] == "Ready")
    });
    soon(ready).await.unwrap();
    for number in 0..10 {
        let name = format!("g{number}");
        let uid = api.get(&name).await.unwrap().uid().unwrap();
        api.delete(&name, &DeleteParams::default()).await.unwrap();
        let deleted = kube::runtime::conditions::is_deleted(&uid);
        soon(kube::runtime::wait::await_condition(api.clone(), &name, deleted)).await.unwrap();
    }
    assert_eq!(context.cleaned.load(Ordering::Relaxed), 10);
    assert!(context.applied.load(Ordering::Relaxed) >= 10);
    assert!(api.list(&ListParams::default()).await.unwrap().items.is_empty());
    task.abort();
}

#[tokio::test]
async fn the_recorder_writes_events_that_core_clients_read() {
    let f = fixture().await;
    let client = f.server.client(Identity::controllers());
    let object = gadgets(&client).create(&PostParams::default(), &dynamic("a")).await.unwrap();
    let reporter = Reporter { controller: "test".into(), instance: Some("one".into()) };
    let recorder = Recorder::new(client.clone(), reporter);
    let event = Event {
        type_: EventType::Normal,
        reason: "Made".into(),
        note: Some("it is there".into()),
        action: "Make".into(),
        secondary: None,
    };
    let reference = object.object_ref(&resource());
    recorder.publish(&event, &reference).await.unwrap();
    recorder.publish(&event, &reference).await.unwrap();
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(client, "default");
    let selector = format!("involvedObject.uid={}", object.uid().unwrap());
    let found = events.list(&ListParams::default().fields(&selector)).await.unwrap();
    assert_eq!(found.items.len(), 1);
    assert_eq!(found.items[0].message.as_deref(), Some("it is there"));
    assert_eq!(found.items[0].series.as_ref().unwrap().count, Some(2));
}

/// Random writes by several clients; in the end every follower knows exactly what the store knows.
#[tokio::test]
async fn every_follower_ends_with_what_the_store_holds() {
    let f = fixture().await;
    let client = f.server.client(Identity::admin());
    let api = gadgets(&client);
    let mut stores = Vec::new();
    let mut tasks = Vec::new();
    for config in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
        watcher::Config::default().fields("spec.nodeName=n1"),
        watcher::Config::default().labels("team=x"),
    ] {
        let writer = Writer::new(resource());
        stores.push(writer.as_reader());
        let follow = watcher(api.clone(), config).default_backoff().reflect(writer);
        tasks.push(tokio::spawn(follow.touched_objects().for_each(|_| async {})));
    }
    let write = |who: u64| {
        let server = f.server.clone();
        async move {
            let mut state = who;
            for _ in 0..120 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let name = format!("g{}", (state >> 33) % 7);
                let node = format!("n{}", (state >> 40) % 2);
                let team = ["x", "y"][usize::try_from((state >> 45) % 2).unwrap()];
                let patch =
                    json!({ "metadata": { "labels": { "team": team } }, "spec": { "nodeName": node } });
                match (state >> 50) % 4 {
                    0 => drop(post(&server, GADGETS, a_gadget(&name)).await),
                    1 => drop(delete(&server, &one(&name), None).await),
                    _ => drop(merge(&server, &one(&name), patch).await),
                }
                tokio::task::yield_now().await;
            }
        }
    };
    futures::future::join_all((1..4).map(|who| tokio::spawn(write(who)))).await;
    let versions = |objects: Vec<DynamicObject>| -> BTreeMap<String, String> {
        objects.into_iter().map(|o| (o.name_any(), o.resource_version().unwrap())).collect()
    };
    let selectors = [("", ""), ("", ""), ("spec.nodeName=n1", ""), ("", "team=x")];
    for (store, (fields, labels)) in stores.iter().zip(selectors) {
        let list = api.list(&ListParams::default().fields(fields).labels(labels)).await.unwrap();
        let expected = versions(list.items);
        let caught_up = async {
            while versions(store.state().iter().map(|o| (**o).clone()).collect()) != expected {
                tokio::task::yield_now().await;
            }
        };
        soon(caught_up).await;
    }
    for task in tasks {
        task.abort();
    }
}

/// As a node watches for its name: what becomes of others is nothing to it, and it is not left behind by that.
#[tokio::test]
async fn who_watches_for_one_value_keeps_its_place_whatever_happens_to_others() {
    let fixture = fixture().await;
    let of = |name: &str, node: &str| {
        let mut gadget = a_gadget(name);
        gadget["spec"]["nodeName"] = json!(node);
        gadget
    };
    post(&fixture.server, GADGETS, of("other", "n2")).await;
    let mut mine = watch(&fixture.server, &format!("{GADGETS}?fieldSelector=spec.nodeName%3Dn1")).await;
    let mut both = watch(&fixture.server, &format!("{GADGETS}?fieldSelector=spec.nodeName%3Dn2")).await;
    assert_eq!(both.told().await, "ADDED other");
    // More than the server holds of the past.
    let key = b"/wharfline/test.dev/gadgets/default/other";
    let value = fixture.store.get(key).await.unwrap().0.unwrap().value;
    for _ in 0..8_300 {
        fixture.store.put(key, value.clone(), Expect::Any).await.unwrap();
    }
    fixture.compact().await;
    post(&fixture.server, GADGETS, of("own", "n1")).await;
    assert_eq!(mine.told().await, "ADDED own");
    // What comes and what goes is told in both places.
    let moved = json!({ "spec": { "nodeName": "n1" } });
    assert_eq!(merge(&fixture.server, &format!("{GADGETS}/other"), moved).await.code, 200);
    assert_eq!(mine.told().await, "ADDED other");
    let mut late = watch(&fixture.server, &format!("{GADGETS}?fieldSelector=spec.nodeName%3Dn1")).await;
    assert_eq!((late.told().await, late.told().await), ("ADDED other".to_owned(), "ADDED own".to_owned()));
    let back = json!({ "spec": { "nodeName": "n3" } });
    assert_eq!(merge(&fixture.server, &format!("{GADGETS}/own"), back).await.code, 200);
    assert_eq!((mine.told().await, late.told().await), ("DELETED own".to_owned(), "DELETED own".to_owned()));
}
