//! The server over a store that fails, hangs and changes in the middle.
#![allow(dead_code, reason = "the support is shared with other tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
mod support {
    pub(crate) mod server_api;
    pub(crate) mod server_store;
}

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::Method;
use serde_json::{Value, json};
use support::server_api::*;
use support::server_store::{Fate, Meddled};
use wharfline::server::{Identity, KEY as NODE_KEY, Pki, Server, ServerOptions};
use wharfline::store::embedded::EmbeddedStore;
use wharfline::store::{Expect, Outcome, Store};

const KEY: &[u8] = b"/wharfline/test.dev/gadgets/default/a";

/// A server whose store fails in the given way once `on`, and the switch.
async fn faulty(method: &'static str, fate: Fate) -> (Server, Arc<AtomicBool>) {
    let on = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&on);
    let store = Meddled::new(store(), move |called, _| {
        if called == method && switch.load(Ordering::Relaxed) { fate.clone() } else { Fate::Done }
    });
    let server = Server::new(store, vec![gadget()], options());
    server.bootstrap().await.unwrap();
    assert_eq!(post(&server, GADGETS, a_gadget("a")).await.code, 201);
    on.store(true, Ordering::Relaxed);
    (server, on)
}

#[tokio::test(start_paused = true)]
async fn what_certainly_was_not_done_may_be_repeated_and_what_may_have_been_may_not() {
    let patch = || json!({ "spec": { "size": 7 } });
    let path = format!("{GADGETS}/a");
    let not_done = Fate::Unavailable(Outcome::NotDone);
    for (fate, code) in [(not_done, 503), (Fate::Unavailable(Outcome::Unknown), 504), (Fate::Hangs, 504)] {
        let (server, on) = faulty("put", fate.clone()).await;
        for answer in [merge(&server, &path, patch()).await, post(&server, GADGETS, a_gadget("b")).await] {
            assert_eq!(answer.code, code, "{fate:?}");
            assert_eq!(answer.headers.contains_key("retry-after"), code == 503, "{fate:?}");
        }
        on.store(false, Ordering::Relaxed);
        assert_eq!(merge(&server, &path, patch()).await.at("/spec/size"), 7, "the turn was given back");
    }
    let (server, _) = faulty("delete", Fate::Hangs).await;
    assert_eq!(delete(&server, &path, None).await.refusal(), (504, "Timeout"));
}

#[tokio::test(start_paused = true)]
async fn reads_of_a_store_that_does_not_answer_are_refused_in_time() {
    for (method, path) in [("get", format!("{GADGETS}/a")), ("list", GADGETS.to_owned())] {
        for fate in [Fate::Hangs, Fate::Unavailable(Outcome::NotDone)] {
            let (server, _) = faulty(method, fate).await;
            let refused = get(&server, &path).await;
            assert_eq!(refused.refusal(), (503, "ServiceUnavailable"));
            assert_eq!(refused.headers["retry-after"], "1");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_follow_its_store_is_not_ready_until_it_can() {
    let down = Arc::new(AtomicBool::new(true));
    let switch = Arc::clone(&down);
    let store = Meddled::new(store(), move |called, _| match called {
        "watch" if switch.load(Ordering::Relaxed) => Fate::Unavailable(Outcome::NotDone),
        _ => Fate::Done,
    });
    let server = Server::new(store, vec![gadget()], options());
    server.bootstrap().await.unwrap();
    assert_eq!(get(&server, "/readyz").await.code, 503);
    assert_eq!(get(&server, "/healthz").await.code, 200);
    assert_eq!(get(&server, &format!("{GADGETS}?watch=true")).await.code, 503);
    down.store(false, Ordering::Relaxed);
    let mut lines = watch(&server, GADGETS).await;
    assert_eq!(get(&server, "/readyz").await.code, 200);
    post(&server, GADGETS, a_gadget("a")).await;
    assert_eq!(lines.told().await, "ADDED a");
}

#[tokio::test]
async fn a_long_list_is_of_one_revision() {
    let store = store();
    let pages = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&pages);
    let meddled = Meddled::new(Arc::clone(&store), move |called, _| match called {
        "next page" if seen.fetch_add(1, Ordering::Relaxed) == 0 => {
            Fate::After(b"/wharfline/test.dev/gadgets/default/g0600".to_vec())
        }
        _ => Fate::Done,
    });
    let server = Server::new(meddled, vec![gadget()], options());
    server.bootstrap().await.unwrap();
    for number in 0..620 {
        post(&server, GADGETS, a_gadget(&format!("g{number:04}"))).await;
    }
    let list = get(&server, GADGETS).await;
    assert_eq!(list.at("/items").as_array().unwrap().len(), 620, "as it was at the first page");
    assert_eq!(pages.load(Ordering::Relaxed), 1);
    let mut lines = watch(&server, &format!("{GADGETS}?resourceVersion={}", list.version())).await;
    assert_eq!(lines.told().await, "DELETED g0600", "and a watch from there misses nothing");
}

/// Another server writes between our read and our write: we decide again, unless the client named a version.
#[tokio::test]
async fn a_conflict_is_decided_again_on_what_is_there_then() {
    let store = store();
    let turn = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&turn);
    let meddled = Meddled::new(Arc::clone(&store), move |called, key| {
        let first = called == "put" && key == KEY && count.fetch_add(1, Ordering::Relaxed) == 1;
        if first { Fate::After(KEY.to_vec()) } else { Fate::Done }
    });
    let server = Server::new(meddled, vec![gadget()], options());
    server.bootstrap().await.unwrap();
    post(&server, GADGETS, a_gadget("a")).await;
    let gone = merge(&server, &format!("{GADGETS}/a"), json!({ "spec": { "size": 2 } })).await;
    assert_eq!(gone.refusal(), (404, "NotFound"), "deleted by another in between");
    assert_eq!(turn.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn damaged_objects_are_refused_and_others_are_not() {
    let f = fixture().await;
    post(&f.server, GADGETS, a_gadget("b")).await;
    let any = wharfline::store::Expect::Any;
    wharfline::store::Store::put(&*f.store, KEY, bytes::Bytes::from_static(b"\xff{"), any).await.unwrap();
    assert_eq!(get(&f.server, &format!("{GADGETS}/a")).await.refusal(), (500, "InternalError"));
    assert_eq!(get(&f.server, &format!("{GADGETS}/b")).await.code, 200);
    let list = get(&f.server, GADGETS).await;
    assert_eq!((list.code, list.at("/items")), (500, &Value::Null));
}

/// A newer version may refuse what an older one took: what is stored can still be labelled, let go and mended.
#[tokio::test(start_paused = true)]
async fn a_stored_spec_that_newer_rules_refuse_stands_in_the_way_of_nothing_else() {
    let fixture = fixture().await;
    let path = format!("{GADGETS}/a");
    let mut gadget = a_gadget("a");
    gadget["metadata"]["finalizers"] = json!(["test.dev/guard"]);
    assert_eq!(post(&fixture.server, GADGETS, gadget).await.code, 201);
    let (stored, _) = fixture.store.get(KEY).await.unwrap();
    let mut old: Value = serde_json::from_slice(&stored.unwrap().value).unwrap();
    old["spec"]["plugin"] = json!("forbidden");
    fixture.store.put(KEY, serde_json::to_vec(&old).unwrap().into(), Expect::Any).await.unwrap();
    let server = fixture.restarted();

    let labelled = merge(&server, &path, json!({ "metadata": { "labels": { "a": "b" } } })).await;
    assert_eq!(labelled.code, 200, "{}", labelled.message());
    let bad = merge(&server, &path, json!({ "metadata": { "labels": { "a": "not a value" } } })).await;
    assert_eq!(bad.code, 422, "other faults are still faults");
    let status = merge(&server, &format!("{path}/status"), json!({ "status": { "seen": 1 } })).await;
    assert_eq!(status.code, 200, "{}", status.message());
    let changed = merge(&server, &path, json!({ "spec": { "size": 7 } })).await;
    assert_eq!(changed.code, 422, "who changes the spec mends it");
    assert!(changed.message().contains("spec.plugin"), "{}", changed.message());
    assert_eq!(delete(&server, &path, None).await.code, 200);
    let let_go = merge(&server, &path, json!({ "metadata": { "finalizers": null } })).await;
    assert_eq!(let_go.code, 200, "{}", let_go.message());
    assert_eq!(get(&server, &path).await.code, 404);
}

#[tokio::test]
async fn a_status_of_a_former_host_or_a_former_object_comes_too_late() {
    let server = Server::new(store(), wharfline::api::definitions(), options());
    server.bootstrap().await.unwrap();
    let volumes = "/apis/wharfline.dev/v1alpha1/volumes";
    let made = post(
        &server,
        volumes,
        json!({
            "metadata": { "name": "v" },
            "spec": { "plugin": "p", "accessModes": ["SingleNodeWriter"], "source": { "existing": { "handle": "h" } } },
        }),
    );
    let uid = made.await.at("/metadata/uid").clone();
    assert!(uid.is_string());
    let status = format!("{volumes}/v/status");
    let host = |epoch: i64| json!({ "status": { "controller": { "nodeName": "n", "epoch": epoch } } });
    let word = |uid: &Value, epoch: i64, exists: &str| json!({ "metadata": { "uid": uid }, "status": { "exists": exists, "observedEpoch": epoch } });
    for (patch, code) in [
        (host(1), 200),
        (word(&uid, 1, "Unknown"), 200),
        (host(2), 200),
        (word(&uid, 1, "Up"), 409),
        (word(&uid, 2, "Unknown"), 200),
        (word(&uid, 1, "Up"), 409),
        (word(&json!("another"), 2, "Up"), 409),
        (word(&uid, 2, "Up"), 200),
    ] {
        let answer = merge(&server, &status, patch.clone()).await;
        assert_eq!(answer.code, code, "{patch}: {}", answer.body);
    }
    assert_eq!(get(&server, &format!("{volumes}/v")).await.at("/status/exists"), "Up");
}

#[tokio::test]
async fn while_the_store_is_away_people_read_what_it_held_last() {
    let away = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&away);
    let mut followed = false;
    let store = Meddled::new(store(), move |called, _| {
        // The one watch is held from before: it tells of nothing.
        let first = called == "watch" && !std::mem::replace(&mut followed, true);
        let fails = switch.load(Ordering::Relaxed) && !first;
        if fails { Fate::Unavailable(Outcome::NotDone) } else { Fate::Done }
    });
    let options = ServerOptions { mirror: true, ..options() };
    let server = Server::new(store, vec![gadget()], options);
    server.bootstrap().await.unwrap();
    for name in ["a", "b"] {
        assert_eq!(post(&server, GADGETS, a_gadget(name)).await.code, 201);
    }
    let person = || Identity { user: "p".to_owned(), ..Identity::admin().with_key(Some("k".to_owned())) };
    let asking = async |who: Identity, path: String, headers: &[(&str, &str)]| {
        let mut request = http::Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request = request.body(axum::body::Body::empty()).unwrap();
        request.extensions_mut().insert(who);
        read(tower::ServiceExt::oneshot(server.router(), request).await.unwrap()).await
    };
    let read = async |who, path| asking(who, path, &[("user-agent", "kubectl/v1.32.4 (linux/amd64)")]).await;
    let (one, all) = (format!("{GADGETS}/b"), GADGETS.to_owned());
    let fresh = [read(person(), one.clone()).await, read(person(), all.clone()).await];
    assert!(fresh.iter().all(|answer| answer.code == 200 && !answer.headers.contains_key("warning")));
    // What is followed comes a moment later.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        away.store(true, Ordering::Relaxed);
        if read(person(), one.clone()).await.code == 200 {
            break;
        }
        away.store(false, Ordering::Relaxed);
        assert!(std::time::Instant::now() < end, "it is not followed");
        tokio::task::yield_now().await;
    }
    for (path, fresh) in [(one.clone(), &fresh[0]), (all.clone(), &fresh[1])] {
        let old = read(person(), path.clone()).await;
        assert_eq!((old.code, &old.body), (200, &fresh.body), "{path}");
        let warning = old.headers["warning"].to_str().unwrap();
        assert!(
            warning.starts_with("299 - \"the store cannot be reached; this is what it held at revision ")
        );
        let ours = asking(person(), path.clone(), &[("wharfline-last-known", "yes")]).await;
        assert!(ours.code == 200 && ours.headers.contains_key("warning"));
        // Whoever acts on what it reads is told nothing old.
        assert_eq!(read(Identity::controllers(), path.clone()).await.code, 503);
        assert_eq!(asking(person(), path, &[("user-agent", "operator/1")]).await.code, 503);
    }
    assert_eq!(read(person(), format!("{GADGETS}/c")).await.code, 503, "it may be there by now");
    let paged = read(person(), format!("{GADGETS}?limit=1")).await;
    let token = paged.at("/metadata/continue").as_str().unwrap().to_owned();
    let rest = read(person(), format!("{GADGETS}?limit=1&continue={token}")).await;
    assert_eq!(rest.at("/items/0/metadata/name"), "b");
    let refused = merge(&server, &one, json!({ "spec": { "size": 7 } })).await;
    assert_eq!((refused.code, refused.headers["retry-after"].to_str().unwrap()), (503, "1"));
    away.store(false, Ordering::Relaxed);
    let back = read(person(), one.clone()).await;
    assert!(back.code == 200 && !back.headers.contains_key("warning"));
    server.shutdown().await;
}

/// A daemon opens all its watches at once, and the first time each of them makes the server read its Node.
#[tokio::test]
async fn the_first_requests_of_a_node_do_not_put_one_another_out() {
    let keys = tempfile::tempdir().unwrap();
    let pki = Pki::load_or_create(keys.path(), jiff::Timestamp::now(), &|bytes| bytes.fill(1)).unwrap();
    let store = Meddled::new(store(), |called, _| if called == "get" { Fate::Later } else { Fate::Done });
    let with_keys = ServerOptions { signer: Some(Arc::new(pki)), ..options() };
    let server = Server::new(store, wharfline::api::definitions(), with_keys);
    server.bootstrap().await.unwrap();
    let node = json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n", "annotations": { NODE_KEY: "k" } } });
    assert_eq!(post(&server, "/api/v1/nodes", node).await.code, 201);
    let path = "/api/v1/nodes?watch=true&fieldSelector=metadata.name%3Dn";
    let who = Identity::node("n").with_key(Some("k".to_owned()));
    let asked = (0..8).map(|_| {
        let with = With { identity: Some(who.clone()), ..With::default() };
        send(&server, Method::GET, path, None, with)
    });
    let opened = futures::future::join_all(asked).await;
    let label = json!({ "metadata": { "labels": { "seen": "yes" } } });
    assert_eq!(merge(&server, "/api/v1/nodes/n", label).await.code, 200);
    for response in opened {
        assert_eq!(response.status(), 200);
        let mut lines = Lines::of(response);
        assert_eq!((lines.told().await, lines.told().await), ("ADDED n".to_owned(), "MODIFIED n".to_owned()));
    }
}

const ON_N1: &str = "/apis/test.dev/v1/namespaces/default/gadgets?fieldSelector=spec.nodeName%3Dn1";

/// A server that holds what its store has, and how often it listed that.
async fn holding() -> (Arc<EmbeddedStore>, Arc<Meddled>, Server, Arc<AtomicUsize>) {
    let (inner, lists) = (store(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&lists);
    let store = Meddled::new(Arc::clone(&inner), move |called, _| {
        count.fetch_add(usize::from(matches!(called, "list" | "next page")), Ordering::Relaxed);
        Fate::Done
    });
    let options = ServerOptions { mirror: true, ..options() };
    let shared: Arc<dyn Store> = Arc::<Meddled>::clone(&store);
    let server = Server::new(shared, vec![gadget()], options);
    server.bootstrap().await.unwrap();
    for (number, node) in ["n1", "n2", "n1", "n2", "n1"].iter().enumerate() {
        let mut gadget = a_gadget(&format!("g{number}"));
        gadget["spec"]["nodeName"] = json!(node);
        assert_eq!(post(&server, GADGETS, gadget).await.code, 201);
    }
    loop {
        lists.store(0, Ordering::Relaxed);
        assert_eq!(names(&get(&server, ON_N1).await), ["g0", "g2", "g4"]);
        if lists.load(Ordering::Relaxed) == 0 {
            return (inner, store, server, lists);
        }
        tokio::task::yield_now().await;
    }
}

fn names(list: &support::server_api::Answer) -> Vec<String> {
    let items = list.at("/items").as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Writes past the server, as another one does.
async fn beside(store: &EmbeddedStore, name: &str, node: &str) -> u64 {
    let (key, other) =
        (format!("/wharfline/test.dev/gadgets/default/{name}"), "/wharfline/test.dev/gadgets/default/g0");
    let (kv, _) = store.get(other.as_bytes()).await.unwrap();
    let mut object: Value = serde_json::from_slice(&kv.unwrap().value).unwrap();
    object["metadata"]["name"] = json!(name);
    object["spec"]["nodeName"] = json!(node);
    store.put(key.as_bytes(), object.to_string().into(), Expect::Any).await.unwrap().0
}

#[tokio::test]
async fn a_list_from_memory_has_all_that_was_acknowledged_before() {
    let (store, _, server, lists) = holding().await;
    for turn in 0..100 {
        let node = if turn % 3 == 0 { "n2" } else { "n1" };
        let written = beside(&store, "g1", node).await;
        let (list, all) = (get(&server, ON_N1).await, get(&server, GADGETS).await);
        assert!(list.version() >= written && all.version() >= written);
        assert_eq!(names(&list).contains(&"g1".to_owned()), node == "n1", "{turn}");
        assert_eq!(all.at("/items/1/spec/nodeName"), node);
        assert_eq!(all.at("/items/1/metadata/resourceVersion"), &json!(written.to_string()));
    }
    assert_eq!(lists.load(Ordering::Relaxed), 0);
    let beyond = get(&server, &format!("{ON_N1}&resourceVersion=99999")).await;
    assert_eq!(beyond.refusal(), (504, "Timeout"));
}

#[tokio::test(start_paused = true)]
async fn what_is_held_is_not_told_before_it_has_come_to_where_the_store_is() {
    let (store, meddled, server, lists) = holding().await;
    meddled.tells.send_replace(false);
    beside(&store, "late", "n1").await;
    let asked = server.clone();
    let told = tokio::spawn(async move { get(&asked, ON_N1).await });
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert!(!told.is_finished());
    meddled.tells.send_replace(true);
    assert_eq!(names(&told.await.unwrap()), ["g0", "g2", "g4", "late"]);
    assert_eq!(lists.load(Ordering::Relaxed), 0);
    // Where it does not come in time, the store is asked; and at once by whoever comes then.
    meddled.tells.send_replace(false);
    beside(&store, "later", "n1").await;
    assert_eq!(names(&get(&server, ON_N1).await), ["g0", "g2", "g4", "late", "later"]);
    assert_eq!(lists.swap(0, Ordering::Relaxed), 1);
    let before = tokio::time::Instant::now();
    assert_eq!(names(&get(&server, ON_N1).await), ["g0", "g2", "g4", "late", "later"]);
    assert_eq!((lists.load(Ordering::Relaxed), before.elapsed()), (1, std::time::Duration::ZERO));
}

#[tokio::test]
async fn pages_of_what_is_held_are_of_one_revision() {
    let (store, _, server, lists) = holding().await;
    let page = async |token: &Value| {
        let token = token.as_str().unwrap();
        get(&server, &format!("{ON_N1}&limit=1&continue={token}")).await
    };
    let first = get(&server, &format!("{ON_N1}&limit=1")).await;
    let second = page(first.at("/metadata/continue")).await;
    assert_eq!((names(&first), names(&second)), (vec!["g0".to_owned()], vec!["g2".to_owned()]));
    assert_eq!(lists.load(Ordering::Relaxed), 0, "nothing was written meanwhile");
    beside(&store, "g3", "n1").await;
    let third = page(second.at("/metadata/continue")).await;
    assert_eq!((names(&third), third.version()), (vec!["g4".to_owned()], first.version()));
    assert!(lists.load(Ordering::Relaxed) > 0, "only the store knows what was");
    let exact = format!("{ON_N1}&resourceVersionMatch=Exact&resourceVersion={}", first.version());
    assert_eq!(names(&get(&server, &exact).await), ["g0", "g2", "g4"]);
    store.compact(store.revision().await.unwrap()).await.unwrap();
    assert_eq!(get(&server, &exact).await.refusal(), (410, "Expired"));
    assert_eq!(page(first.at("/metadata/continue")).await.refusal(), (410, "Expired"));
    assert_eq!(names(&get(&server, ON_N1).await), ["g0", "g2", "g3", "g4"]);
}

#[tokio::test]
async fn a_watch_that_begins_with_what_is_held_misses_nothing_after_it() {
    let (store, meddled, server, lists) = holding().await;
    let mut lines = watch(&server, ON_N1).await;
    beside(&store, "g1", "n1").await;
    let mut told = Vec::new();
    for _ in 0..4 {
        told.push(lines.told().await);
    }
    assert_eq!(told, ["ADDED g0", "ADDED g2", "ADDED g4", "ADDED g1"]);
    assert_eq!(lists.load(Ordering::Relaxed), 0);
    drop(meddled);
}

/// Each of them costs the store a watch of its own.
#[tokio::test]
async fn only_so_many_watches_are_told_what_the_store_alone_remembers() {
    let f = fixture().await;
    let start = post(&f.server, GADGETS, a_gadget("a")).await.version() - 1;
    post(&f.server, GADGETS, a_gadget("b")).await;
    let store: Arc<dyn Store> = Arc::<EmbeddedStore>::clone(&f.store);
    let later = Server::new(store, vec![gadget()], ServerOptions { mirror: true, ..options() });
    let path = format!("{GADGETS}?resourceVersion={start}");
    let mut open = Vec::new();
    // None of them all: these are of one identity.
    for _ in 0..8 {
        let mut lines = watch(&later, &path).await;
        assert_eq!(lines.told().await, "ADDED a");
        open.push(lines);
    }
    let mut refused = watch(&later, &path).await;
    let line = refused.next().await.unwrap();
    assert_eq!((&line["type"], &line["object"]["code"]), (&json!("ERROR"), &json!(410)));
    drop(open);
    assert_eq!(watch(&later, &path).await.told().await, "ADDED a");
}
