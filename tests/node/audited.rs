//! What a plugin's backend has, asked for by a person at an instance of it.
use std::collections::BTreeMap;

use serde_json::{Value, json};
use wharfline::api::Snapshot;
use wharfline::csi::{Code, Rpc, proto};

use crate::support::node::{NODE, NODE_ID, Rig, Special};
use crate::support::scripted::{Answer, Ask, Config, Gate};

const LIST: Rpc = Rpc::ListVolumes;
/// The instance of the rig.
const OWN: &str = "p";

async fn ask(rig: &Rig, question: Value) {
    rig.world.patch(&rig.instances, OWN, json!({ "spec": { "audit": question } })).await;
}

/// The answer to a question.
async fn answered(rig: &Rig, id: &str, token: &str) -> Value {
    let says = |i: &Value| {
        let told = &i["status"]["audit"];
        told["id"] == id && told["startingToken"].as_str().unwrap_or_default() == token
    };
    let instance = rig.world.until(&rig.instances, OWN, "answered", says).await;
    serde_json::to_value(instance).unwrap()["status"]["audit"].clone()
}

async fn forgotten(rig: &Rig) {
    ask(rig, Value::Null).await;
    rig.world.until(&rig.instances, OWN, "forgotten", |i| i["status"]["audit"].is_null()).await;
}

fn handles(answer: &Value) -> Vec<&str> {
    answer["volumes"].as_array().into_iter().flatten().map(|v| v["handle"].as_str().unwrap()).collect()
}

/// Part of obligation CO-CTRL-67.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_backend_has_is_told_once_and_only_while_somebody_asks() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.backend.add_volume("stray", BTreeMap::from([("pool".to_owned(), "x".to_owned())]));
    ask(&rig, json!({ "id": "1" })).await;
    let answer = answered(&rig, "1", "").await;
    assert_eq!(handles(&answer), ["backend/0001", "stray"]);
    let [ours, stray] = [&answer["volumes"][0], &answer["volumes"][1]];
    assert_eq!(ours["nodeIds"], json!([NODE_ID]), "{ours}");
    assert_eq!((&stray["nodeIds"], &stray["context"]), (&json!([]), &json!({ "pool": "x" })), "{stray}");
    assert!(answer["time"].is_string() && answer["nextToken"].is_null() && answer["message"].is_null());
    // It is told still, and not asked for again, by the next daemon either.
    rig.stop().await;
    rig.start().await;
    rig.ready().await;
    assert_eq!(rig.count(LIST), 1);
    ask(&rig, json!({ "id": "2" })).await;
    answered(&rig, "2", "").await;
    assert_eq!(rig.count(LIST), 2);
    forgotten(&rig).await;
    let instance = rig.ready().await;
    assert_eq!(instance.status.unwrap().node_id, NODE_ID, "all else stands");
    rig.end_all().await;
    rig.finish().await;
}

/// Obligations CO-CTRL-65, CO-CTRL-66.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_is_told_in_pages_and_begun_anew_when_its_token_is_lost() {
    let rig = Rig::new(Config::full()).await;
    let large = BTreeMap::from([("about".to_owned(), "x".repeat(3_000))]);
    for number in 0..150 {
        rig.backend.add_volume(&format!("v-{number:03}"), large.clone());
    }
    ask(&rig, json!({ "id": "1", "startingToken": "" })).await;
    let first = answered(&rig, "1", "").await;
    let token = first["nextToken"].as_str().unwrap().to_owned();
    ask(&rig, json!({ "id": "1", "startingToken": token })).await;
    let second = answered(&rig, "1", &token).await;
    let all = [handles(&first), handles(&second)].concat();
    let expected: Vec<String> = (0..150).map(|number| format!("v-{number:03}")).collect();
    assert_eq!((handles(&first).len(), all), (100, expected.iter().map(String::as_str).collect()));
    assert_eq!(second["nextToken"], Value::Null);
    // A page that goes on where another has ended is none without that one.
    rig.backend.next(LIST, Answer::fail(Code::Aborted, "which token?"));
    ask(&rig, json!({ "id": "2", "startingToken": token })).await;
    let told = answered(&rig, "2", &token).await;
    let message = told["message"].as_str().unwrap();
    assert!(message.contains("which token?") && message.contains("begun anew"), "{message}");
    for number in 0..150 {
        rig.backend.add_volume(&format!("v-{number:03}"), BTreeMap::new());
    }
    let page = |token: &str, handle: &str| {
        let volume = proto::Volume { volume_id: handle.to_owned(), ..Default::default() };
        let entry = proto::list_volumes_response::Entry { volume: Some(volume), status: None };
        Answer::reply(&proto::ListVolumesResponse { entries: vec![entry], next_token: token.to_owned() })
    };
    for answer in
        [page("t", "old"), Answer::fail(Code::Aborted, "which token?"), page("u", "a"), page("", "b")]
    {
        rig.backend.next(LIST, answer);
    }
    ask(&rig, json!({ "id": "3", "startingToken": "" })).await;
    assert_eq!(handles(&answered(&rig, "3", "").await), ["a", "b"]);
    let tokens = |ask: Ask| match ask {
        Ask::ListVolumes(of) => of.starting_token,
        other => panic!("{other:?}"),
    };
    let asked: Vec<_> = rig.backend.calls_of(LIST).into_iter().map(|call| tokens(call.ask)).collect();
    assert_eq!(asked[asked.len() - 4..], ["", "t", "", "u"]);
    forgotten(&rig).await;
    rig.finish().await;
}

/// An answer goes through the API, which takes no more than so much at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_with_much_to_say_are_told_in_answers_that_fit() {
    let rig = Rig::new(Config::full()).await;
    let large = BTreeMap::from([("about".to_owned(), "x".repeat(20_000))]);
    let mut expected = Vec::new();
    for (letter, count, context) in [("v", 150, BTreeMap::new()), ("w", 60, large)] {
        for number in 0..count {
            expected.push(format!("{letter}-{number:03}"));
            rig.backend.add_volume(&format!("{letter}-{number:03}"), context.clone());
        }
    }
    let (mut token, mut found, mut answers) = (String::new(), Vec::new(), 0);
    loop {
        ask(&rig, json!({ "id": "1", "startingToken": token })).await;
        let answer = answered(&rig, "1", &token).await;
        assert_eq!(answer["message"], Value::Null);
        assert!(answer.to_string().len() < 1 << 20);
        found.extend(handles(&answer).into_iter().map(str::to_owned));
        answers += 1;
        match answer["nextToken"].as_str() {
            Some(next) => next.clone_into(&mut token),
            None => break,
        }
    }
    assert_eq!(found, expected);
    assert!(answers > 2, "{answers}");
    forgotten(&rig).await;
    rig.finish().await;
}

/// A snapshot that was there before, whose calls are made here with a Secret.
async fn with_secret(rig: &Rig, name: &str, secret: &str) {
    let secret = json!({ "namespace": "default", "name": secret });
    there(rig, name, json!({ "plugin": "scripted", "secret": secret })).await;
}

async fn there(rig: &Rig, name: &str, of: Value) {
    let snapshots: kube::Api<Snapshot> = rig.world.namespaced();
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot", "metadata": { "name": name },
        "spec": { "source": { "handle": format!("{name}/9"), "plugin": "scripted" } } });
    rig.world.create(&snapshots, object).await;
    let status = json!({ "of": of, "controller": { "nodeName": NODE, "epoch": 1 } });
    rig.world.status(&snapshots, name, status).await;
    rig.world.until(&snapshots, name, "looked for", |s| s["status"]["taking"].is_object()).await;
}

async fn without(rig: &Rig, name: &str) {
    let snapshots: kube::Api<Snapshot> = rig.world.namespaced();
    rig.world.delete(&snapshots, name).await;
    rig.world.let_go(&snapshots, name).await;
}

/// The questions for pages of snapshots: with which token and which secrets.
fn audits(rig: &Rig) -> Vec<(String, BTreeMap<String, String>)> {
    let of = |ask: Ask| match ask {
        Ask::ListSnapshots(of) if of.max_entries > 0 => Some((of.starting_token, of.secrets)),
        _ => None,
    };
    rig.backend.calls_of(Rpc::ListSnapshots).into_iter().filter_map(|call| of(call.ask)).collect()
}

/// A plugin may list those of one account alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_are_listed_with_each_secret_of_theirs() {
    let mut config = Config::full();
    config.controller.extend([5, 6]);
    let rig = Rig::new(config).await;
    rig.secret("keys", "one").await;
    rig.secret("other", "two").await;
    // "gone" is no Secret any more: those of the others are listed all the same.
    for (name, secret) in [("a", "other"), ("b", "keys"), ("c", "keys")] {
        with_secret(&rig, name, secret).await;
    }
    let snapshots: kube::Api<Snapshot> = rig.world.namespaced();
    let gone =
        json!({ "of": { "plugin": "scripted", "secret": { "namespace": "default", "name": "gone" } } });
    rig.world.status(&snapshots, "c", gone).await;
    let (mut token, mut told) = (String::new(), Vec::new());
    loop {
        ask(&rig, json!({ "id": "1", "list": "Snapshots", "startingToken": token })).await;
        let answer = answered(&rig, "1", &token).await;
        assert_eq!(answer["message"], Value::Null);
        told.push((answer["secret"].clone(), answer["unlisted"].clone()));
        match answer["nextToken"].as_str() {
            Some(next) => next.clone_into(&mut token),
            None => break,
        }
    }
    let unread = told.remove(0);
    assert_eq!(unread.0, "default/gone");
    assert!(unread.1.as_str().unwrap().contains("default/gone"), "{unread:?}");
    assert_eq!(told, [(json!("default/keys"), Value::Null), (json!("default/other"), Value::Null)]);
    let secrets = |password: &str| BTreeMap::from([("password".to_owned(), password.to_owned())]);
    assert_eq!(audits(&rig), [(String::new(), secrets("one")), (String::new(), secrets("two"))]);
    // One that is gone in the middle of its list says so, and another's is not to be had by its name.
    ask(&rig, json!({ "id": "2", "list": "Snapshots", "startingToken": "default/none t" })).await;
    let middle = answered(&rig, "2", "default/none t").await;
    assert_eq!((&middle["secret"], &middle["nextToken"]), (&json!("default/none"), &json!("default/other ")));
    assert!(middle["unlisted"].as_str().unwrap().contains("any more"), "{middle}");
    assert_eq!(audits(&rig).len(), 2);
    // One that the plugin refuses hides nothing of the others.
    rig.backend.next(Rpc::ListSnapshots, Answer::fail(Code::Unauthenticated, "it was revoked"));
    ask(&rig, json!({ "id": "4", "list": "Snapshots", "startingToken": "default/keys " })).await;
    let refused = answered(&rig, "4", "default/keys ").await;
    assert_eq!(
        (&refused["secret"], &refused["nextToken"]),
        (&json!("default/keys"), &json!("default/other "))
    );
    assert!(refused["unlisted"].as_str().unwrap().contains("it was revoked"), "{refused}");
    assert_eq!(refused["message"], Value::Null);
    ask(&rig, json!({ "id": "3", "list": "Snapshots", "startingToken": "default/x " })).await;
    let last = answered(&rig, "3", "default/x ").await;
    assert_eq!(
        (&last["secret"], &last["snapshots"], &last["message"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    // Of those that have none it is asked without, too.
    there(&rig, "d", json!({ "plugin": "scripted" })).await;
    ask(&rig, json!({ "id": "5", "list": "Snapshots", "startingToken": "" })).await;
    let bare = answered(&rig, "5", "").await;
    assert_eq!((&bare["secret"], &bare["nextToken"]), (&json!(""), &json!("default/gone ")));
    assert_eq!(audits(&rig).last().unwrap(), &(String::new(), BTreeMap::new()));
    forgotten(&rig).await;
    for name in ["a", "b", "c", "d"] {
        without(&rig, name).await;
    }
    rig.finish().await;
}

/// What there is for snapshots: a Secret of one of theirs, if the plugin may want one.
///
/// Obligation CO-CTRL-100.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_are_listed_likewise() {
    let mut config = Config::full();
    // CREATE_DELETE_SNAPSHOT and LIST_SNAPSHOTS.
    config.controller.extend([5, 6]);
    let rig = Rig::new(config).await;
    let page = |token: &str, id: &str| {
        let snapshot = proto::Snapshot {
            snapshot_id: id.to_owned(),
            source_volume_id: "backend/0001".to_owned(),
            size_bytes: 1 << 20,
            creation_time: Some(prost_types::Timestamp { seconds: 1_700_000_000, nanos: 0 }),
            ready_to_use: true,
            group_snapshot_id: "g".to_owned(),
        };
        let entry = proto::list_snapshots_response::Entry { snapshot: Some(snapshot) };
        Answer::reply(&proto::ListSnapshotsResponse { entries: vec![entry], next_token: token.to_owned() })
    };
    let ask_again = async |id: &str| {
        for answer in
            [page("t", "old"), Answer::fail(Code::Aborted, "which token?"), page("u", "a"), page("", "b")]
        {
            rig.backend.next(Rpc::ListSnapshots, answer);
        }
        ask(&rig, json!({ "id": id, "list": "Snapshots" })).await;
        answered(&rig, id, "").await
    };
    let answer = ask_again("1").await;
    assert_eq!(answer["list"], "Snapshots");
    let told = |id: &str| {
        json!({ "handle": id, "source": "backend/0001", "group": "g",
            "size": "1Mi", "time": "2023-11-14T22:13:20.000000Z" })
    };
    assert_eq!((&answer["snapshots"], &answer["volumes"]), (&json!([told("a"), told("b")]), &Value::Null));
    assert_eq!(answer["secret"], "");
    // Once a snapshot is made here with a Secret, that one is used.
    rig.secret("keys", "s3cret").await;
    with_secret(&rig, "snap", "keys").await;
    assert_eq!(ask_again("2").await["secret"], "default/keys");
    let secrets = BTreeMap::from([("password".to_owned(), "s3cret".to_owned())]);
    let with = |secrets: &BTreeMap<_, _>| ["", "t", "", "u"].map(|token| (token.to_owned(), secrets.clone()));
    assert_eq!(audits(&rig), [with(&BTreeMap::new()), with(&secrets)].concat());
    forgotten(&rig).await;
    without(&rig, "snap").await;
    rig.finish().await;
    let rig = Rig::new(Config::full()).await;
    ask(&rig, json!({ "id": "1", "list": "Snapshots" })).await;
    let told = answered(&rig, "1", "").await;
    assert!(told["message"].as_str().unwrap().contains("LIST_SNAPSHOTS"), "{told}");
    assert_eq!(rig.count(Rpc::ListSnapshots), 0);
    rig.finish().await;
}

/// Obligation CO-CTRL-65: who does not list is not asked. What cannot be told is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_there_is_no_list_is_told() {
    let rig = Rig::new(Config::without_attach_and_stage()).await;
    ask(&rig, json!({ "id": "1" })).await;
    let told = answered(&rig, "1", "").await;
    assert!(told["message"].as_str().unwrap().contains("LIST_VOLUMES"), "{told}");
    assert_eq!(rig.count(LIST), 0);
    rig.finish().await;
    let rig = Rig::new(Config::full()).await;
    rig.backend.next(LIST, Answer::fail(Code::Internal, "the array is away"));
    ask(&rig, json!({ "id": "1" })).await;
    let told = answered(&rig, "1", "").await;
    assert!(told["message"].as_str().unwrap().contains("INTERNAL: the array is away"), "{told}");
    forgotten(&rig).await;
    rig.finish().await;
}

/// One that never answers is a matter of who asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_hangs_holds_up_nobody() {
    let rig = Rig::new(Config::full()).await;
    let gate = Gate::new();
    rig.backend.next(LIST, Answer::honest().hang(&gate));
    ask(&rig, json!({ "id": "1" })).await;
    rig.in_flight(LIST, 1).await;
    rig.running().await;
    rig.ask("vol-2", &Special::default()).await;
    rig.volume_up("vol-2").await;
    assert_eq!(rig.count(LIST), 1, "and it is not asked beside that");
    gate.open();
    answered(&rig, "1", "").await;
    forgotten(&rig).await;
    rig.end_all().await;
    rig.end_volume("vol-2").await;
    rig.finish().await;
}
