//! Snapshots: what their driver is asked, again and again the same until they are ready, and what it is not asked.
use std::time::Duration;

use kube::Api;
use serde_json::{Value, json};
use wharfline::api::Snapshot;
use wharfline::csi::{Code, Plugin, PluginOptions, Rpc, UnixConnector, proto};

use crate::support::node::{NODE, Rig, Special, uid, until};
use crate::support::scripted::{Answer, Ask, Config, Gate};

const TAKE: Rpc = Rpc::CreateSnapshot;
const LIST: Rpc = Rpc::ListSnapshots;
const DELETE: Rpc = Rpc::DeleteSnapshot;
/// CREATE_DELETE_SNAPSHOT and LIST_SNAPSHOTS of the controller service.
const CAN: i32 = 5;
const LISTS: i32 = 6;
/// GET_SNAPSHOT of the controller service.
const GETS: i32 = 15;

fn picturing() -> Config {
    let mut config = Config::full();
    config.controller.extend([CAN, LISTS]);
    config
}

/// The driver, asked past the daemon.
fn client(rig: &Rig) -> Plugin {
    Plugin::new(UnixConnector::new(rig.plugin.socket()).unwrap(), PluginOptions::default())
}

struct Scene {
    rig: Rig,
    snapshots: Api<Snapshot>,
}

impl Scene {
    /// A volume `vol-1` that is there.
    async fn new(config: Config) -> Self {
        let rig = Rig::new(config).await;
        rig.ask("vol-1", &Special::default()).await;
        rig.volume_up("vol-1").await;
        let snapshots = rig.world.namespaced();
        Self { rig, snapshots }
    }

    /// A Snapshot as its controller has it, with this node as its host.
    async fn ask(&self, spec: Value, of: Value) -> Snapshot {
        let made = self.make(spec).await;
        self.host(of).await;
        made
    }

    async fn make(&self, spec: Value) -> Snapshot {
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot",
            "metadata": { "name": "snap" }, "spec": spec });
        self.rig.world.create(&self.snapshots, object).await
    }

    async fn host(&self, of: Value) {
        let status = json!({ "of": of, "controller": { "nodeName": NODE, "epoch": 1 } });
        self.rig.world.status(&self.snapshots, "snap", status).await;
    }

    /// Its volume names the snapshot, or none.
    async fn enter(&self, snapshot: Option<&Snapshot>) {
        let entry = |one| json!({ "namespace": "default", "name": "snap", "uid": uid(one) });
        let entries: Vec<_> = snapshot.into_iter().map(entry).collect();
        self.rig.world.status(&self.rig.volumes, "vol-1", json!({ "snapshots": entries })).await;
    }

    /// One of `vol-1`, which names it.
    async fn take(&self, more: Value) -> Snapshot {
        let made = self.make(json!({ "source": { "claimName": "data" } })).await;
        self.enter(Some(&made)).await;
        self.host(self.of(more).await).await;
        made
    }

    async fn of(&self, more: Value) -> Value {
        let volume = self.rig.volumes.get("vol-1").await.unwrap();
        let handle = volume.status.clone().unwrap().handle;
        let mut of =
            json!({ "plugin": "scripted", "volume": "vol-1", "uid": uid(&volume), "handle": handle });
        of.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of
    }

    async fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let found = self.rig.world.until(&self.snapshots, "snap", what, holds).await;
        serde_json::to_value(found).unwrap()
    }

    async fn ready(&self) -> Value {
        self.until("ready", |s| s["status"]["ready"] == true).await
    }

    async fn told(&self, reason: &str) -> Value {
        self.until(reason, |s| s["status"]["taking"]["reason"] == reason).await
    }

    fn taken(&self) -> Vec<proto::CreateSnapshotRequest> {
        let take = |ask: Ask| match ask {
            Ask::CreateSnapshot(of) => of,
            other => panic!("{other:?}"),
        };
        self.rig.backend.calls_of(TAKE).into_iter().map(|call| take(call.ask)).collect()
    }

    /// It is deleted, and its host says that it is not there.
    async fn deleted(&self) {
        self.rig.world.delete(&self.snapshots, "snap").await;
        self.until("deleted", |s| s["status"]["exists"] == "Down").await;
        self.rig.world.let_go(&self.snapshots, "snap").await;
    }

    async fn end(self) {
        self.enter(None).await;
        self.rig.end_volume("vol-1").await;
        self.rig.finish().await;
    }
}

/// Scenario A73.
/// Obligations CO-CTRL-85, CO-CTRL-86, CO-CTRL-88.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_asked_for_alike_until_it_is_ready_and_kept_through_restarts() {
    let mut config = picturing();
    config.ready_after = 3;
    let mut scene = Scene::new(config).await;
    scene.rig.secret("keys", "s3cret").await;
    let more =
        json!({ "parameters": { "tier": "cold" }, "secret": { "namespace": "default", "name": "keys" } });
    let made = scene.take(more).await;
    scene.until("cut", |s| s["status"]["exists"] == "Up").await;
    scene.rig.stop().await;
    scene.rig.start().await;
    scene.rig.ready().await;
    let ready = scene.ready().await;
    let status = &ready["status"];
    assert_eq!((&status["handle"], &status["size"]), (&json!("snap/0002"), &json!("1Mi")), "{status}");
    assert!(status["creationTime"].as_str().unwrap().starts_with("2023-11-14T22:13:22"), "{status}");
    let all = scene.taken();
    assert!(all.len() == 4 && all.iter().all(|one| *one == all[0]), "{all:?}");
    let golden = proto::CreateSnapshotRequest {
        source_volume_id: "backend/0001".to_owned(),
        name: format!("snap-{}", uid(&made)),
        secrets: [("password".to_owned(), "s3cret".to_owned())].into(),
        parameters: [("tier".to_owned(), "cold".to_owned())].into(),
    };
    assert_eq!(all[0], golden);
    scene.rig.stop().await;
    scene.rig.start().await;
    scene.rig.ready().await;
    scene.deleted().await;
    let deleted = Ask::DeleteSnapshot(proto::DeleteSnapshotRequest {
        snapshot_id: "snap/0002".to_owned(),
        secrets: golden.secrets,
    });
    assert_eq!(scene.rig.backend.calls_of(DELETE).into_iter().map(|c| c.ask).collect::<Vec<_>>(), [deleted]);
    assert_eq!(scene.taken().len(), 4, "what is there is not asked for again");
    scene.end().await;
}

/// What was said at the server stands there: a call that could not be sent is not announced again at each look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_whose_call_is_not_sent_is_announced_once() {
    let scene = Scene::new(Config { goes_away: true, ..picturing() }).await;
    let gate = scene.rig.unvouched().await;
    scene.take(json!({})).await;
    scene.until("announced", |s| s["status"]["exists"] == "Unknown").await;
    let announced = tokio::time::Instant::now();
    until(|| announced.elapsed() > Duration::from_millis(2_500), "it has been looked at again twice").await;
    let path = "/apis/wharfline.dev/v1alpha1/namespaces/default/snapshots/snap/status";
    assert_eq!((scene.taken().len(), scene.rig.link.patches(path)), (0, 1));
    gate.open();
    scene.ready().await;
    scene.deleted().await;
    scene.rig.end_volume("last").await;
    scene.end().await;
}

/// Nor is there anything to find out of one that was never asked for, though it was announced: also one to be kept goes at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_announced_and_never_asked_for_is_said_to_be_none() {
    let scene = Scene::new(Config { goes_away: true, ..picturing() }).await;
    let gate = scene.rig.unvouched().await;
    let made = scene.make(json!({ "source": { "claimName": "data" }, "deletionPolicy": "Retain" })).await;
    scene.enter(Some(&made)).await;
    scene.host(scene.of(json!({})).await).await;
    scene.until("announced", |s| s["status"]["exists"] == "Unknown").await;
    scene.deleted().await;
    assert_eq!(scene.taken().len(), 0);
    gate.open();
    scene.rig.end_volume("last").await;
    scene.end().await;
}

/// Scenario B97: what may have been cut is found out, and then deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_in_doubt_leaves_nothing_behind() {
    for effect in [false, true] {
        let mut scene = Scene::new(picturing()).await;
        scene.rig.deadline(TAKE, "1s").await;
        let gate = Gate::new();
        let answer =
            if effect { Answer::honest().after_effect() } else { Answer::fail(Code::Internal, "broken") };
        scene.rig.backend.next(TAKE, answer.hang(&gate));
        scene.take(json!({})).await;
        scene.rig.in_flight(TAKE, 1).await;
        scene.until("said before it is asked", |s| s["status"]["exists"] == "Unknown").await;
        scene.rig.world.delete(&scene.snapshots, "snap").await;
        scene.rig.kill().await;
        gate.open();
        scene.rig.start().await;
        scene.rig.ready().await;
        scene.until("deleted", |s| s["status"]["exists"] == "Down").await;
        scene.rig.world.let_go(&scene.snapshots, "snap").await;
        let all = scene.taken();
        assert!(all.len() > 1 && all.iter().all(|one| *one == all[0]), "{all:?}");
        assert_eq!(scene.rig.count(DELETE), 1);
        scene.end().await;
    }
}

/// So it is with one that is to be kept: nobody finds again what has no name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_is_known_by_its_handle_before_its_object_goes() {
    // It is not ready for long, which keeps nothing up.
    let mut scene = Scene::new(Config { ready_after: 100, ..picturing() }).await;
    scene.rig.deadline(TAKE, "1s").await;
    let gate = Gate::new();
    scene.rig.backend.next(TAKE, Answer::honest().after_effect().hang(&gate));
    let made = scene.make(json!({ "source": { "claimName": "data" }, "deletionPolicy": "Retain" })).await;
    scene.enter(Some(&made)).await;
    scene.host(scene.of(json!({})).await).await;
    scene.rig.in_flight(TAKE, 1).await;
    scene.until("said before it is asked", |s| s["status"]["exists"] == "Unknown").await;
    scene.rig.world.delete(&scene.snapshots, "snap").await;
    scene.rig.kill().await;
    gate.open();
    scene.rig.start().await;
    scene.rig.ready().await;
    let known = scene.until("known", |s| s["status"]["exists"] == "Up").await;
    scene.rig.world.let_go(&scene.snapshots, "snap").await;
    assert_eq!((scene.rig.count(DELETE), scene.rig.backend.snapshots().len()), (0, 1), "it is kept");
    let snapshot_id = known["status"]["handle"].as_str().unwrap().to_owned();
    let request = proto::DeleteSnapshotRequest { snapshot_id, ..Default::default() };
    client(&scene.rig).delete_snapshot(request, Duration::from_secs(5)).await.unwrap();
    scene.end().await;
}

/// Obligations CO-CTRL-90, CO-CTRL-91, CO-CTRL-92.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_told_and_only_what_may_pass_is_asked_again() {
    for (code, again) in [
        (Code::AlreadyExists, false),
        (Code::ResourceExhausted, false),
        (Code::InvalidArgument, false),
        (Code::Aborted, true),
        (Code::Internal, true),
        (Code::NotFound, true),
    ] {
        let scene = Scene::new(picturing()).await;
        scene.rig.backend.next(TAKE, Answer::fail(code, "no"));
        scene.take(json!({})).await;
        if again {
            scene.ready().await;
            assert_eq!(scene.taken().len(), 2, "{code:?}");
        } else {
            let told = scene.told("CreateSnapshotFailed").await;
            assert_eq!(told["status"]["exists"], "Down", "it was the first attempt");
            assert_eq!(told["status"]["nextAttemptTime"], Value::Null, "{told}");
            assert_eq!(scene.taken().len(), 1, "{code:?}");
        }
        scene.deleted().await;
        assert_eq!(scene.rig.count(DELETE), usize::from(again), "{code:?}");
        scene.end().await;
    }
}

/// Whoever comes after this daemon knows what was cut by what the server has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_deleted_before_the_server_knows_its_handle() {
    let scene = Scene::new(picturing()).await;
    let (taking, deleting) = (Gate::new(), Gate::new());
    scene.rig.backend.next(TAKE, Answer::honest().hang(&taking));
    scene.rig.backend.next(DELETE, Answer::honest().hang(&deleting));
    scene.take(json!({})).await;
    scene.rig.in_flight(TAKE, 1).await;
    scene.rig.world.delete(&scene.snapshots, "snap").await;
    scene.rig.link.cut();
    taking.open();
    scene.rig.called(TAKE, 1).await;
    let deaf = tokio::time::Instant::now();
    until(|| deaf.elapsed() > Duration::from_millis(700), "two reports have failed").await;
    assert_eq!(scene.rig.count(DELETE), 0);
    scene.rig.link.mend();
    scene.rig.in_flight(DELETE, 1).await;
    let now = serde_json::to_value(scene.snapshots.get("snap").await.unwrap()).unwrap();
    assert_eq!(now["status"]["handle"], "snap/0002");
    deleting.open();
    scene.until("deleted", |s| s["status"]["exists"] == "Down").await;
    scene.rig.world.let_go(&scene.snapshots, "snap").await;
    scene.end().await;
}

/// The driver may be at work on it still, and would have it again afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_still_be_being_cut_is_not_deleted_beside_that() {
    let mut config = picturing();
    config.ready_after = 1_000;
    let mut scene = Scene::new(config).await;
    scene.rig.stop().await;
    scene.rig.options.longest_call = Duration::from_secs(4);
    scene.rig.start().await;
    scene.rig.ready().await;
    scene.rig.deadline(TAKE, "1s").await;
    scene.take(json!({})).await;
    scene.until("cut", |s| s["status"]["exists"] == "Up").await;
    let gate = Gate::new();
    scene.rig.backend.always(TAKE, Answer::honest().after_effect().hang(&gate));
    scene.told("CreateSnapshotUncertain").await;
    let began = scene.rig.backend.calls_of(TAKE).last().unwrap().started;
    scene.rig.world.delete(&scene.snapshots, "snap").await;
    scene.rig.called(DELETE, 1).await;
    let deleted = scene.rig.backend.calls_of(DELETE).remove(0);
    assert!(deleted.started >= began + scene.rig.options.longest_call, "{:?}", deleted.started - began);
    gate.open();
    scene.rig.backend.honest(TAKE);
    scene.until("deleted", |s| s["status"]["exists"] == "Down").await;
    scene.rig.world.let_go(&scene.snapshots, "snap").await;
    scene.end().await;
}

/// Obligation CO-CTRL-89: what is cut and cannot be made ready is deleted by its handle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_fails_after_it_was_cut_is_deleted_by_its_handle() {
    let mut config = picturing();
    config.ready_after = 100;
    let scene = Scene::new(config).await;
    scene.take(json!({})).await;
    scene.until("cut", |s| s["status"]["exists"] == "Up").await;
    scene.rig.backend.always(TAKE, Answer::fail(Code::Internal, "upload failed"));
    scene.told("CreateSnapshotFailed").await;
    scene.deleted().await;
    assert_eq!(scene.rig.count(DELETE), 1);
    scene.rig.backend.honest(TAKE);
    scene.end().await;
}

/// Obligations CO-CTRL-96, CO-CTRL-97.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_is_repeated_unless_it_is_of_a_group() {
    for code in [Code::FailedPrecondition, Code::Aborted, Code::Internal] {
        let scene = Scene::new(picturing()).await;
        scene.take(json!({})).await;
        scene.ready().await;
        scene.rig.backend.next(DELETE, Answer::fail(code, "not now"));
        scene.deleted().await;
        assert_eq!(scene.rig.count(DELETE), 2, "{code:?}");
        scene.end().await;
    }
    let scene = Scene::new(picturing()).await;
    scene.take(json!({})).await;
    scene.ready().await;
    scene.rig.backend.next(DELETE, Answer::fail(Code::InvalidArgument, "it is of a group"));
    scene.rig.world.delete(&scene.snapshots, "snap").await;
    scene.told("DeleteSnapshotFailed").await;
    assert_eq!(scene.rig.count(DELETE), 1, "not again by itself");
    // Left there, it goes.
    scene.rig.world.patch(&scene.snapshots, "snap", json!({ "spec": { "deletionPolicy": "Retain" } })).await;
    scene.rig.world.let_go(&scene.snapshots, "snap").await;
    let request = proto::DeleteSnapshotRequest { snapshot_id: "snap/0002".to_owned(), ..Default::default() };
    client(&scene.rig).delete_snapshot(request, std::time::Duration::from_secs(5)).await.unwrap();
    scene.end().await;
}

/// Obligation CO-CTRL-100.
/// Part of obligation CO-CTRL-95.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_was_there_is_looked_for_and_never_deleted() {
    for lists in [true, false] {
        let mut config = picturing();
        config.controller.retain(|can| lists || *can != LISTS);
        let scene = Scene::new(config).await;
        let request = proto::CreateSnapshotRequest {
            source_volume_id: "backend/0001".to_owned(),
            name: "by hand".to_owned(),
            ..Default::default()
        };
        let client = client(&scene.rig);
        let taken = client.create_snapshot(request, std::time::Duration::from_secs(5)).await.unwrap();
        let source = json!({ "handle": taken.snapshot_id, "plugin": "scripted" });
        scene.ask(json!({ "source": source }), json!({ "plugin": "scripted" })).await;
        let ready = scene.ready().await;
        assert_eq!(ready["status"]["handle"], taken.snapshot_id.as_str());
        let size = if lists { json!("1Mi") } else { Value::Null };
        assert_eq!((scene.rig.count(LIST), &ready["status"]["size"]), (usize::from(lists), &size));
        for call in scene.rig.backend.calls_of(LIST) {
            let Ask::ListSnapshots(of) = call.ask else { panic!() };
            let filter = (of.snapshot_id.as_str(), of.source_volume_id.as_str(), of.starting_token.as_str());
            assert_eq!(filter, (taken.snapshot_id.as_str(), "", ""));
        }
        scene.rig.world.delete(&scene.snapshots, "snap").await;
        scene.rig.world.let_go(&scene.snapshots, "snap").await;
        let before = scene.taken().len();
        let request = proto::DeleteSnapshotRequest { snapshot_id: taken.snapshot_id, ..Default::default() };
        client.delete_snapshot(request, std::time::Duration::from_secs(5)).await.unwrap();
        assert_eq!((before, scene.rig.count(DELETE)), (1, 1), "both by hand");
        scene.end().await;
    }
}

/// Scenario Q7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_asked_for_by_whatever_its_driver_calls_it() {
    let handle = format!("../s/#&=' x{}", "s".repeat(117));
    assert_eq!(handle.len(), 128);
    let scene = Scene::new(picturing()).await;
    let snapshot = proto::Snapshot {
        snapshot_id: handle.clone(),
        source_volume_id: "backend/0001".to_owned(),
        size_bytes: 1 << 20,
        ready_to_use: true,
        ..Default::default()
    };
    let entries = vec![proto::list_snapshots_response::Entry { snapshot: Some(snapshot) }];
    let found = proto::ListSnapshotsResponse { entries, next_token: String::new() };
    scene.rig.backend.next(LIST, Answer::reply(&proto::ListSnapshotsResponse::default()));
    scene.rig.backend.always(LIST, Answer::reply(&found));
    let source = json!({ "handle": handle, "plugin": "scripted" });
    scene.ask(json!({ "source": source }), json!({ "plugin": "scripted" })).await;
    let told = scene.told("SnapshotNotFound").await;
    let said = told["status"]["taking"]["message"].as_str().unwrap().to_owned();
    assert!(said.contains(&format!("\"{handle}\"")), "{said}");
    assert_eq!(scene.ready().await["status"]["handle"], handle.as_str());
    for call in scene.rig.backend.calls_of(LIST) {
        let Ask::ListSnapshots(asked) = call.ask else { panic!("another request") };
        assert_eq!(asked.snapshot_id, handle);
    }
    scene.rig.world.delete(&scene.snapshots, "snap").await;
    scene.rig.world.let_go(&scene.snapshots, "snap").await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_takes_none_is_asked_for_none() {
    let scene = Scene::new(Config::full()).await;
    scene.take(json!({})).await;
    scene.told("PluginLacksCapability").await;
    assert_eq!(scene.taken().len(), 0);
    let now = serde_json::to_value(scene.snapshots.get("snap").await.unwrap()).unwrap();
    assert_eq!(now["status"]["exists"], Value::Null, "it goes without a word of its host");
    scene.rig.world.delete(&scene.snapshots, "snap").await;
    scene.rig.world.let_go(&scene.snapshots, "snap").await;
    scene.end().await;
}

/// Scenario B99: a volume that is being pictured stays, whoever deleted it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_not_deleted_under_its_snapshot() {
    let scene = Scene::new(picturing()).await;
    let gate = Gate::new();
    scene.rig.backend.next(TAKE, Answer::honest().after_effect().hang(&gate));
    scene.take(json!({})).await;
    scene.rig.in_flight(TAKE, 1).await;
    scene.rig.world.delete(&scene.rig.volumes, "vol-1").await;
    gate.open();
    scene.ready().await;
    // It was woken before this one was asked for.
    scene.rig.ask("vol-2", &Special::default()).await;
    scene.rig.volume_up("vol-2").await;
    assert_eq!(scene.rig.count(Rpc::DeleteVolume), 0);
    scene.enter(None).await;
    let gone = |v: &Value| v["status"]["exists"] == "Down";
    scene.rig.world.until(&scene.rig.volumes, "vol-1", "deleted", gone).await;
    scene.rig.world.let_go(&scene.rig.volumes, "vol-1").await;
    // It needs its volume no more.
    scene.deleted().await;
    scene.rig.end_volume("vol-2").await;
    scene.rig.finish().await;
}

/// Nobody may have decided to delete the volume on a state in which it names no snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_cut_before_its_volume_names_it() {
    let scene = Scene::new(picturing()).await;
    scene.rig.backend.next(TAKE, Answer::fail(Code::InvalidArgument, "such a tier there is not"));
    let made = scene.ask(json!({ "source": { "claimName": "data" } }), scene.of(json!({})).await).await;
    // What this node does after it has seen the snapshot: so it did look at that, and asked nothing.
    scene.rig.ask("vol-2", &Special::default()).await;
    scene.rig.volume_up("vol-2").await;
    assert_eq!(scene.taken().len(), 0);
    let now = serde_json::to_value(scene.snapshots.get("snap").await.unwrap()).unwrap();
    assert_eq!(now["status"]["exists"], Value::Null, "{now}");
    scene.enter(Some(&made)).await;
    scene.told("CreateSnapshotFailed").await;
    let change = json!({ "spec": { "deletionPolicy": "Retain" } });
    scene.rig.world.patch(&scene.snapshots, "snap", change).await;
    let ready = scene.ready().await;
    assert_eq!((scene.taken().len(), &ready["status"]["nextAttemptTime"]), (2, &Value::Null), "{ready}");
    let change = json!({ "spec": { "deletionPolicy": "Delete" } });
    scene.rig.world.patch(&scene.snapshots, "snap", change).await;
    scene.deleted().await;
    scene.rig.end_volume("vol-2").await;
    scene.end().await;
}

/// A Node goes when nothing is left to be asked there: what can be used has no part in its volume any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ready_snapshot_is_worked_on_whatever_its_volume_waits_for() {
    let scene = Scene::new(picturing()).await;
    scene.take(json!({})).await;
    scene.ready().await;
    scene.rig.world.status(&scene.rig.volumes, "vol-1", json!({ "askedToRelease": 1 })).await;
    let released = |v: &Value| v["status"]["releasedEpoch"] == 1;
    scene.rig.world.until(&scene.rig.volumes, "vol-1", "let go", released).await;
    scene.rig.world.delete(&scene.snapshots, "snap").await;
    scene.until("deleted", |s| s["status"]["exists"] == "Down").await;
    scene.rig.world.status(&scene.snapshots, "snap", json!({ "askedToRelease": 1 })).await;
    scene.until("let go", |s| s["status"]["releasedEpoch"] == 1).await;
    scene.rig.world.let_go(&scene.snapshots, "snap").await;
    let host = json!({ "askedToRelease": null, "controller": { "nodeName": NODE, "epoch": 2 } });
    scene.rig.world.status(&scene.rig.volumes, "vol-1", host).await;
    scene.end().await;
}

/// While its volume is let go of, one that is being cut is asked for no more; it goes to the volume's next host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_ready_waits_for_its_volumes_host_and_is_asked_for_by_the_next() {
    let mut config = picturing();
    config.ready_after = 1_000;
    config.controller.retain(|can| *can != LISTS);
    let scene = Scene::new(config).await;
    scene.take(json!({})).await;
    scene.until("cut", |s| s["status"]["exists"] == "Up").await;
    scene.rig.world.status(&scene.rig.volumes, "vol-1", json!({ "askedToRelease": 1 })).await;
    scene.told("VolumeNotHere").await;
    scene.rig.world.status(&scene.snapshots, "snap", json!({ "askedToRelease": 1 })).await;
    scene.until("let go", |s| s["status"]["releasedEpoch"] == 1).await;
    let asked = scene.taken().len();
    let host = json!({ "askedToRelease": null, "controller": { "nodeName": NODE, "epoch": 2 } });
    scene.rig.world.status(&scene.rig.volumes, "vol-1", host.clone()).await;
    scene.rig.world.status(&scene.snapshots, "snap", host).await;
    scene.rig.called(TAKE, asked + 1).await;
    scene.deleted().await;
    scene.end().await;
}

/// The one that was told first would be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_keeps_the_id_that_it_was_told_first() {
    let mut config = picturing();
    config.ready_after = 2;
    let scene = Scene::new(config).await;
    let made = scene.take(json!({})).await;
    let cut = scene.until("cut", |s| s["status"]["exists"] == "Up").await;
    let other = proto::Snapshot {
        snapshot_id: "another/1".to_owned(),
        source_volume_id: "backend/0001".to_owned(),
        ready_to_use: true,
        ..Default::default()
    };
    scene.rig.backend.next(TAKE, Answer::reply(&proto::CreateSnapshotResponse { snapshot: Some(other) }));
    let told = scene.told("UnusableAnswer").await;
    let (handle, ready) = (&told["status"]["handle"], &told["status"]["ready"]);
    assert_eq!((handle, ready), (&cut["status"]["handle"], &json!(false)), "{}", uid(&made));
    scene.deleted().await;
    let Ask::DeleteSnapshot(gone) = scene.rig.backend.calls_of(DELETE).remove(0).ask else { panic!() };
    assert_eq!(cut["status"]["handle"], gone.snapshot_id.as_str());
    scene.end().await;
}

/// Obligation CO-CTRL-101.
/// Where what is alpha is on, it alone is asked for. That it is not found is told, and no word that it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_snapshot_is_asked_for_where_that_may_be() {
    const GET: Rpc = Rpc::GetSnapshot;
    for alpha in [true, false] {
        let mut config = Config { alpha, ..picturing() };
        config.controller.push(GETS);
        let mut rig = Rig::idle(config).await;
        rig.plugin_object(json!({ "alpha": alpha })).await;
        rig.start().await;
        rig.register().await;
        rig.ready().await;
        rig.ask("vol-1", &Special::default()).await;
        rig.volume_up("vol-1").await;
        let snapshots = rig.world.namespaced();
        let scene = Scene { rig, snapshots };
        let client = client(&scene.rig);
        let request = proto::CreateSnapshotRequest {
            source_volume_id: "backend/0001".to_owned(),
            name: "by hand".to_owned(),
            ..Default::default()
        };
        let taken = client.create_snapshot(request, Duration::from_secs(5)).await.unwrap();
        for _ in 0..if alpha { 2 } else { 0 } {
            scene.rig.backend.next(GET, Answer::fail(Code::NotFound, "what is that?"));
        }
        let source = json!({ "handle": taken.snapshot_id, "plugin": "scripted" });
        scene.ask(json!({ "source": source }), json!({ "plugin": "scripted" })).await;
        if alpha {
            let told = scene.told("SnapshotNotFound").await;
            assert!(
                told["metadata"]["deletionTimestamp"].is_null() && told["status"]["exists"] != "Down",
                "{told}"
            );
        }
        let ready = scene.ready().await;
        assert_eq!(
            (&ready["status"]["size"], &ready["status"]["handle"]),
            (&json!("1Mi"), &json!(taken.snapshot_id))
        );
        let counts = (scene.rig.count(GET), scene.rig.count(LIST));
        assert_eq!(counts, if alpha { (3, 0) } else { (0, 1) });
        scene.rig.world.delete(&scene.snapshots, "snap").await;
        scene.rig.world.let_go(&scene.snapshots, "snap").await;
        let request = proto::DeleteSnapshotRequest { snapshot_id: taken.snapshot_id, ..Default::default() };
        client.delete_snapshot(request, Duration::from_secs(5)).await.unwrap();
        scene.end().await;
    }
}

/// Obligation CO-CTRL-95.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_of_something_else_is_deleted_again_but_not_out_of_a_group() {
    for group in ["", "group/1"] {
        let scene = Scene::new(picturing()).await;
        let other = proto::Snapshot {
            snapshot_id: "other/1".to_owned(),
            source_volume_id: "other".to_owned(),
            group_snapshot_id: group.to_owned(),
            ready_to_use: true,
            ..Default::default()
        };
        let answer = proto::CreateSnapshotResponse { snapshot: Some(other) };
        scene.rig.backend.next(TAKE, Answer::reply(&answer));
        scene.rig.world.speak_of_handles(false);
        scene.take(json!({})).await;
        let told = scene.told("UnusableAnswer").await;
        let message = told["status"]["taking"]["message"].as_str().unwrap();
        assert!(message.contains("source volume"), "{message}");
        assert_eq!(told["status"]["ready"], false);
        // It may be another's, which the controllers know.
        assert_eq!((scene.rig.count(DELETE), &told["status"]["exists"]), (0, &json!("Unknown")));
        assert_eq!(told["status"]["handle"], "other/1");
        scene.rig.world.speak_of_handles(true);
        if group.is_empty() {
            let undone = scene.until("deleted again", |s| s["status"]["handle"].is_null()).await;
            assert_eq!(undone["status"]["exists"], "Down");
            assert_eq!(undone["status"]["taking"]["message"], message, "it is told on");
            assert_eq!((scene.rig.count(TAKE), scene.rig.count(DELETE)), (1, 1));
            // It is asked for once more, when the word on what it was called is taken back.
            scene.until("free", |s| s["status"]["handlesChecked"].is_null()).await;
            scene
                .rig
                .world
                .patch(&scene.snapshots, "snap", json!({ "spec": { "deletionPolicy": "Retain" } }))
                .await;
            scene.ready().await;
            scene
                .rig
                .world
                .patch(&scene.snapshots, "snap", json!({ "spec": { "deletionPolicy": "Delete" } }))
                .await;
            scene.deleted().await;
            assert_eq!(scene.rig.count(DELETE), 2);
        } else {
            assert_eq!(told["status"]["groupID"], group);
            scene.rig.world.delete(&scene.snapshots, "snap").await;
            let told = scene.told("PartOfGroup").await;
            assert_eq!(told["status"]["exists"], "Unknown", "{told}");
            let change = json!({ "spec": { "deletionPolicy": "Retain" } });
            scene.rig.world.patch(&scene.snapshots, "snap", change).await;
            scene.rig.world.let_go(&scene.snapshots, "snap").await;
            assert_eq!(scene.rig.count(DELETE), 0);
        }
        scene.end().await;
    }
}

/// Its controller sees the handles of all. What it says of those that it had before counts no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_is_deleted_on_the_word_that_it_is_no_others() {
    let scene = Scene::new(picturing()).await;
    let (world, snapshots) = (&scene.rig.world, &scene.snapshots);
    world.speak_of_handles(false);
    scene.take(json!({})).await;
    scene.ready().await;
    world.status(snapshots, "snap", json!({ "handlesChecked": ["another/1"] })).await;
    world.delete(snapshots, "snap").await;
    // What this node does after it has seen the deletion: so it did look at that, and asked nothing.
    scene.rig.ask("vol-2", &Special::default()).await;
    scene.rig.volume_up("vol-2").await;
    assert_eq!(scene.rig.count(DELETE), 0);
    let shared = json!([{ "type": "HandleShared", "status": "True", "reason": "HandleShared", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    world.status(snapshots, "snap", json!({ "conditions": shared })).await;
    world.speak_of_handles(true);
    scene.told("InUse").await;
    assert_eq!(scene.rig.count(DELETE), 0);
    world.status(snapshots, "snap", json!({ "conditions": [] })).await;
    scene.until("deleted", |s| s["status"]["exists"] == "Down").await;
    world.let_go(snapshots, "snap").await;
    scene.rig.end_volume("vol-2").await;
    scene.end().await;
}

/// What was made first would be lost at its backend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_not_ready_keeps_its_handle_whatever_is_answered_next() {
    let mut config = picturing();
    config.ready_after = 2;
    config.controller.retain(|can| *can != LISTS);
    let scene = Scene::new(config).await;
    scene.take(json!({})).await;
    let cut = scene.until("cut", |s| s["status"]["exists"] == "Up").await;
    let other = proto::Snapshot {
        snapshot_id: "other/1".to_owned(),
        source_volume_id: "other".to_owned(),
        ready_to_use: true,
        ..Default::default()
    };
    scene.rig.backend.always(TAKE, Answer::reply(&proto::CreateSnapshotResponse { snapshot: Some(other) }));
    let told = scene.told("UnusableAnswer").await;
    assert_eq!(told["status"]["handle"], cut["status"]["handle"]);
    assert_eq!((&told["status"]["exists"], scene.rig.count(DELETE)), (&json!("Up"), 0));
    scene.deleted().await;
    assert_eq!(scene.rig.count(DELETE), 1);
    scene.end().await;
}
