//! Snapshots of several volumes at one moment: one call for all of them, and what keeps others off meanwhile.
use kube::Api;
use serde_json::{Value, json};
use wharfline::api::Snapshot;
use wharfline::csi::{Code, Rpc, proto};

use crate::asked::second;
use crate::support::node::{NODE, Rig, Special, uid, until};
use crate::support::scripted::{Answer, Ask, Config, Gate};

const TAKE: Rpc = Rpc::CreateVolumeGroupSnapshot;
const GET: Rpc = Rpc::GetVolumeGroupSnapshot;
const DELETE: Rpc = Rpc::DeleteVolumeGroupSnapshot;
/// GROUP_CONTROLLER_SERVICE of the plugin.
const GROUPS: i32 = 3;
/// CREATE_DELETE_SNAPSHOT and LIST_SNAPSHOTS of the controller service.
const CAN: i32 = 5;
const LISTS: i32 = 6;

fn grouping() -> Config {
    let mut config = Config::full();
    config.services.push(GROUPS);
    config.group.push(1);
    config.controller.push(CAN);
    config
}

struct Scene {
    rig: Rig,
    snapshots: Api<Snapshot>,
}

impl Scene {
    /// Volumes `vol-1` and `vol-2` that are there.
    async fn new(config: Config) -> Self {
        let rig = Rig::new(config).await;
        for name in ["vol-1", "vol-2"] {
            rig.ask(name, &Special::default()).await;
            rig.volume_up(name).await;
        }
        let snapshots = rig.world.namespaced();
        Self { rig, snapshots }
    }

    async fn make(&self) -> Snapshot {
        let spec = json!({ "source": { "selector": { "matchLabels": { "app": "db" } } } });
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot",
            "metadata": { "name": "snap" }, "spec": spec });
        self.rig.world.create(&self.snapshots, object).await
    }

    /// One volume names the snapshot, or none.
    async fn enter(&self, volume: &str, snapshot: Option<&Snapshot>) {
        let entry = |one| json!({ "namespace": "default", "name": "snap", "uid": uid(one) });
        let entries: Vec<_> = snapshot.into_iter().map(entry).collect();
        self.rig.world.status(&self.rig.volumes, volume, json!({ "snapshots": entries })).await;
    }

    async fn host(&self, more: Value) {
        let mut members = Vec::new();
        for (claim, name) in [("one", "vol-1"), ("two", "vol-2")] {
            let volume = self.rig.volumes.get(name).await.unwrap();
            let handle = volume.status.clone().unwrap().handle;
            members
                .push(json!({ "claimName": claim, "volume": name, "uid": uid(&volume), "handle": handle }));
        }
        let mut of = json!({ "plugin": "scripted", "members": members });
        of.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let status = json!({ "of": of, "controller": { "nodeName": NODE, "epoch": 1 } });
        self.rig.world.status(&self.snapshots, "snap", status).await;
    }

    /// One of both volumes, which name it, with this node as its host.
    async fn take(&self, more: Value) -> Snapshot {
        let made = self.make().await;
        self.enter("vol-1", Some(&made)).await;
        self.enter("vol-2", Some(&made)).await;
        self.host(more).await;
        made
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

    fn asked(&self, rpc: Rpc) -> Vec<Ask> {
        self.rig.backend.calls_of(rpc).into_iter().map(|call| call.ask).collect()
    }

    fn deletions(&self) -> Vec<(String, Vec<String>)> {
        let request = |ask: Ask| match ask {
            Ask::DeleteVolumeGroupSnapshot(of) => (of.group_snapshot_id, of.snapshot_ids),
            other => panic!("{other:?}"),
        };
        self.asked(DELETE).into_iter().map(request).collect()
    }

    /// It is deleted, and its host says that it is not there.
    async fn deleted(&self) {
        self.rig.world.delete(&self.snapshots, "snap").await;
        self.gone().await;
    }

    async fn gone(&self) {
        let down = self.until("deleted", |s| s["status"]["exists"] == "Down").await;
        assert_eq!(down["status"]["members"], Value::Null, "{down}");
        self.rig.world.let_go(&self.snapshots, "snap").await;
    }

    async fn end(self) {
        for volume in ["vol-1", "vol-2"] {
            self.enter(volume, None).await;
            self.rig.end_volume(volume).await;
        }
        self.rig.finish().await;
    }
}

fn strings<const N: usize>(list: [&str; N]) -> Vec<String> {
    list.map(str::to_owned).to_vec()
}

/// Obligations CO-GRP-03, CO-GRP-04.
/// Part of obligation CO-GRP-02.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_asked_for_alike_until_all_of_it_is_ready_and_deleted_by_all_its_members() {
    let mut config = grouping();
    config.ready_after = 3;
    let mut scene = Scene::new(config).await;
    scene.rig.secret("keys", "s3cret").await;
    let more =
        json!({ "parameters": { "tier": "cold" }, "secret": { "namespace": "default", "name": "keys" } });
    let made = scene.take(more).await;
    let cut = scene.until("cut", |s| s["status"]["exists"] == "Up").await;
    assert_eq!(cut["status"]["ready"], false, "{cut}");
    scene.rig.stop().await;
    scene.rig.start().await;
    scene.rig.ready().await;
    let ready = scene.ready().await;
    let status = &ready["status"];
    let members = json!([
        { "claimName": "one", "handle": "snap/0004", "size": "1Mi" },
        { "claimName": "two", "handle": "snap/0005", "size": "1Mi" },
    ]);
    assert_eq!((&status["handle"], &status["members"]), (&json!("group/0003"), &members), "{status}");
    assert!(status["creationTime"].as_str().unwrap().starts_with("2023-11-14T22:13:2"), "{status}");
    let golden = proto::CreateVolumeGroupSnapshotRequest {
        name: format!("snap-{}", uid(&made)),
        source_volume_ids: strings(["backend/0001", "backend/0002"]),
        secrets: [("password".to_owned(), "s3cret".to_owned())].into(),
        parameters: [("tier".to_owned(), "cold".to_owned())].into(),
    };
    let all = scene.asked(TAKE);
    let golden = Ask::CreateVolumeGroupSnapshot(golden);
    assert!(all.len() == 4 && all.iter().all(|one| *one == golden), "{all:?}");
    scene.rig.stop().await;
    scene.rig.start().await;
    scene.rig.ready().await;
    scene.deleted().await;
    let deleted = Ask::DeleteVolumeGroupSnapshot(proto::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: "group/0003".to_owned(),
        snapshot_ids: strings(["snap/0004", "snap/0005"]),
        secrets: [("password".to_owned(), "s3cret".to_owned())].into(),
    });
    assert_eq!(scene.asked(DELETE), [deleted]);
    assert_eq!(scene.asked(TAKE).len(), 4, "what is there is not asked for again");
    assert_eq!(scene.rig.backend.snapshots().len(), 0);
    scene.end().await;
}

/// The group's own word counts for nothing while one of its members is not ready.
/// Part of obligation CO-GRP-03.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_with_a_member_that_is_not_ready_is_not() {
    let scene = Scene::new(grouping()).await;
    let member = |id: &str, of: &str, ready_to_use: bool| proto::Snapshot {
        snapshot_id: id.to_owned(),
        source_volume_id: of.to_owned(),
        group_snapshot_id: "group/0003".to_owned(),
        ready_to_use,
        ..Default::default()
    };
    let group = proto::VolumeGroupSnapshot {
        group_snapshot_id: "group/0003".to_owned(),
        snapshots: vec![
            member("snap/0004", "backend/0001", true),
            member("snap/0005", "backend/0002", false),
        ],
        ready_to_use: true,
        ..Default::default()
    };
    let reply = proto::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(group) };
    scene.rig.backend.next(TAKE, Answer::reply(&reply).after_effect());
    scene.take(json!({})).await;
    scene.ready().await;
    assert_eq!(scene.asked(TAKE).len(), 2);
    scene.deleted().await;
    scene.end().await;
}

/// Obligation CO-GRP-01.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_takes_no_groups_is_asked_for_none() {
    for (service, capability) in [(false, true), (true, false)] {
        let mut config = grouping();
        config.services.retain(|one| service || *one != GROUPS);
        config.group.retain(|_| capability);
        let scene = Scene::new(config).await;
        scene.take(json!({})).await;
        scene.told("PluginLacksCapability").await;
        let asked = [TAKE, GET, DELETE].map(|rpc| scene.rig.count(rpc));
        assert_eq!(asked, [0, 0, 0]);
        let probed = scene.rig.count(Rpc::GroupControllerGetCapabilities);
        assert_eq!(probed > 0, service, "only a service that is there is asked");
        scene.rig.world.delete(&scene.snapshots, "snap").await;
        scene.rig.world.let_go(&scene.snapshots, "snap").await;
        scene.end().await;
    }
    // One that does is asked what it can before anything else of the service.
    let scene = Scene::new(grouping()).await;
    scene.take(json!({})).await;
    scene.ready().await;
    let calls = scene.rig.backend.calls();
    let at = |rpc: Rpc| calls.iter().position(|call| call.rpc == rpc).unwrap();
    assert!(at(Rpc::GroupControllerGetCapabilities) < at(TAKE));
    scene.deleted().await;
    scene.end().await;
}

/// Nothing else is asked about one of the volumes while they are pictured, and nobody lets go of one.
/// Obligation CO-GRP-02.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_volumes_of_a_group_are_kept_from_others_meanwhile() {
    let scene = Scene::new(grouping()).await;
    let gate = Gate::new();
    scene.rig.backend.next(TAKE, Answer::honest().hang(&gate));
    scene.take(json!({})).await;
    scene.rig.in_flight(TAKE, 1).await;
    // One volume shall go, and the other have another host.
    scene.enter("vol-1", None).await;
    scene.rig.world.delete(&scene.rig.volumes, "vol-1").await;
    scene.rig.world.status(&scene.rig.volumes, "vol-2", json!({ "askedToRelease": 1 })).await;
    // What this node does after it has seen both.
    scene.rig.ask("vol-3", &Special::default()).await;
    scene.rig.volume_up("vol-3").await;
    assert_eq!(scene.rig.count(Rpc::DeleteVolume), 0, "it is being pictured");
    let other = serde_json::to_value(scene.rig.volumes.get("vol-2").await.unwrap()).unwrap();
    assert_eq!(other["status"]["releasedEpoch"], Value::Null, "{other}");
    gate.open();
    scene.rig.called(Rpc::DeleteVolume, 1).await;
    let released = |v: &Value| v["status"]["releasedEpoch"] == 1;
    scene.rig.world.until(&scene.rig.volumes, "vol-2", "let go", released).await;
    let began = scene.rig.backend.calls_of(Rpc::DeleteVolume)[0].started;
    let ended = scene.rig.backend.calls_of(TAKE)[0].ended.unwrap().0;
    assert!(began >= ended, "one call at a time about a volume");
    let down = |v: &Value| v["status"]["exists"] == "Down";
    scene.rig.world.until(&scene.rig.volumes, "vol-1", "deleted", down).await;
    scene.rig.world.let_go(&scene.rig.volumes, "vol-1").await;
    let host = json!({ "askedToRelease": null, "controller": { "nodeName": NODE, "epoch": 2 } });
    scene.rig.world.status(&scene.rig.volumes, "vol-2", host).await;
    scene.deleted().await;
    scene.enter("vol-2", None).await;
    for volume in ["vol-2", "vol-3"] {
        scene.rig.end_volume(volume).await;
    }
    scene.rig.finish().await;
}

/// Nobody may have decided to delete one of the volumes on a state in which it names no snapshot; nor is anything cut of a
/// volume whose calls another node makes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_group_is_cut_before_each_volume_names_it_and_has_this_host() {
    let scene = Scene::new(grouping()).await;
    let made = scene.make().await;
    scene.enter("vol-1", Some(&made)).await;
    scene.host(json!({})).await;
    // What this node does after it has seen the snapshot: so it did look at that, and asked nothing.
    scene.rig.ask("vol-3", &Special::default()).await;
    scene.rig.volume_up("vol-3").await;
    assert_eq!(scene.rig.count(TAKE), 0);
    scene.rig.end_volume("vol-3").await;
    scene.rig.world.status(&scene.rig.volumes, "vol-2", json!({ "askedToRelease": 1 })).await;
    let released = |v: &Value| v["status"]["releasedEpoch"] == 1;
    scene.rig.world.until(&scene.rig.volumes, "vol-2", "let go", released).await;
    scene.enter("vol-2", Some(&made)).await;
    scene.told("VolumeNotHere").await;
    assert_eq!(scene.rig.count(TAKE), 0);
    let host = json!({ "askedToRelease": null, "controller": { "nodeName": NODE, "epoch": 2 } });
    scene.rig.world.status(&scene.rig.volumes, "vol-2", host).await;
    scene.ready().await;
    assert_eq!(scene.rig.count(TAKE), 1);
    scene.deleted().await;
    scene.end().await;
}

/// What was not sent is in no doubt: nobody waits for it who lets go of one of the volumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_whose_call_is_not_sent_holds_no_volume() {
    let scene = Scene::new(Config { goes_away: true, ..grouping() }).await;
    let gate = scene.rig.unvouched().await;
    scene.take(json!({})).await;
    scene.until("announced", |s| s["status"]["exists"] == "Unknown").await;
    // What this node does after it has tried.
    scene.rig.world.patch(&scene.snapshots, "snap", json!({ "spec": { "deletionPolicy": "Retain" } })).await;
    scene.rig.world.status(&scene.rig.volumes, "vol-2", json!({ "askedToRelease": 1 })).await;
    let released = |v: &Value| v["status"]["releasedEpoch"] == 1;
    scene.rig.world.until(&scene.rig.volumes, "vol-2", "let go", released).await;
    assert_eq!(scene.rig.count(TAKE), 0);
    gate.open();
    scene.told("VolumeNotHere").await;
    let host = json!({ "askedToRelease": null, "controller": { "nodeName": NODE, "epoch": 2 } });
    scene.rig.world.status(&scene.rig.volumes, "vol-2", host).await;
    scene.ready().await;
    scene.rig.world.patch(&scene.snapshots, "snap", json!({ "spec": { "deletionPolicy": "Delete" } })).await;
    scene.deleted().await;
    scene.rig.end_volume("last").await;
    scene.end().await;
}

/// A snapshot of one of the volumes alone.
async fn alone(scene: &Scene, name: &str, volume: &str) {
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Snapshot",
        "metadata": { "name": name }, "spec": { "source": { "claimName": "data" } } });
    let made = scene.rig.world.create(&scene.snapshots, object).await;
    let entry = json!({ "namespace": "default", "name": name, "uid": uid(&made) });
    scene.rig.world.status(&scene.rig.volumes, volume, json!({ "snapshots": [entry] })).await;
    let of = scene.rig.volumes.get(volume).await.unwrap();
    let handle = of.status.clone().unwrap().handle;
    let of = json!({ "plugin": "scripted", "volume": volume, "uid": uid(&of), "handle": handle });
    let status = json!({ "of": of, "controller": { "nodeName": NODE, "epoch": 1 } });
    scene.rig.world.status(&scene.snapshots, name, status).await;
}

/// Two processes of the driver may be at work, each on one of the volumes: nobody can be asked about both before that is over.
/// Part of obligation CO-GRP-02.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_waits_while_two_processes_may_be_at_work_on_its_volumes() {
    let scene = Scene::new(grouping()).await;
    let rpc = Rpc::CreateSnapshot;
    scene.rig.deadline(rpc, "1s").await;
    let gate = Gate::new();
    scene.rig.backend.always(rpc, Answer::honest().hang(&gate));
    alone(&scene, "one", "vol-1").await;
    scene.rig.in_flight(rpc, 1).await;
    let second = second(&scene.rig).await;
    alone(&scene, "two", "vol-2").await;
    until(|| second.count(&scene.rig, rpc) > 0, "the second one is asked about the other volume").await;
    scene.take(json!({})).await;
    let told = scene.told("InUse").await;
    assert!(told["status"]["taking"]["message"].to_string().contains("two processes"), "{told}");
    assert_eq!(scene.rig.count(TAKE), 0);
    scene.rig.backend.honest(rpc);
    gate.open();
    scene.ready().await;
    assert_eq!(scene.rig.count(TAKE), 1);
    scene.deleted().await;
    for name in ["one", "two"] {
        scene.rig.world.delete(&scene.snapshots, name).await;
        let down = |s: &Value| s["status"]["exists"] == "Down";
        scene.rig.world.until(&scene.snapshots, name, "deleted", down).await;
        scene.rig.world.let_go(&scene.snapshots, name).await;
    }
    scene.end().await;
    drop(second);
}

/// Obligation CO-GRP-05: each code is told, and only what may pass by itself is asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_a_group_are_told() {
    for (code, again) in [
        (Code::AlreadyExists, false),
        (Code::FailedPrecondition, false),
        (Code::ResourceExhausted, false),
        (Code::InvalidArgument, false),
        (Code::NotFound, true),
        (Code::Aborted, true),
        (Code::Internal, true),
        (Code::Unavailable, true),
    ] {
        let scene = Scene::new(grouping()).await;
        scene.rig.backend.next(TAKE, Answer::fail(code, "no"));
        scene.take(json!({})).await;
        if again {
            scene.ready().await;
            assert_eq!(scene.asked(TAKE).len(), 2, "{code:?}");
        } else {
            let told = scene.told("CreateVolumeGroupSnapshotFailed").await;
            assert_eq!(told["status"]["exists"], "Down", "it was the first attempt");
            assert_eq!(told["status"]["nextAttemptTime"], Value::Null, "{told}");
            assert_eq!(scene.asked(TAKE).len(), 1, "{code:?}");
            // Once something has changed it is asked for again.
            let change = json!({ "spec": { "deletionPolicy": "Retain" } });
            scene.rig.world.patch(&scene.snapshots, "snap", change).await;
            scene.ready().await;
            let change = json!({ "spec": { "deletionPolicy": "Delete" } });
            scene.rig.world.patch(&scene.snapshots, "snap", change).await;
        }
        scene.deleted().await;
        assert_eq!(scene.rig.count(DELETE), 1, "{code:?}");
        scene.end().await;
    }
}

/// Obligation CO-GRP-06: what may have been cut is found out by the same call, and then deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_in_doubt_leaves_nothing_behind() {
    for effect in [false, true] {
        let mut scene = Scene::new(grouping()).await;
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
        scene.gone().await;
        let all = scene.asked(TAKE);
        assert!(all.len() > 1 && all.iter().all(|one| *one == all[0]), "{all:?}");
        assert_eq!(scene.rig.count(DELETE), 1);
        assert_eq!(scene.rig.backend.snapshots().len(), 0);
        scene.end().await;
    }
}

/// Obligation CO-GRP-10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_of_a_group_is_repeated_until_it_is_answered() {
    for answer in [
        Answer::cut().after_effect(),
        Answer::fail(Code::FailedPrecondition, "in use"),
        Answer::fail(Code::Aborted, "busy"),
        Answer::fail(Code::Internal, "broken"),
    ] {
        let scene = Scene::new(grouping()).await;
        scene.take(json!({})).await;
        scene.ready().await;
        scene.rig.backend.next(DELETE, answer);
        let gate = Gate::new();
        scene.rig.backend.next(DELETE, Answer::honest().hang(&gate));
        scene.rig.world.delete(&scene.snapshots, "snap").await;
        scene.rig.in_flight(DELETE, 2).await;
        let doubted = scene.until("in doubt", |s| s["status"]["exists"] == "Unknown").await;
        let kept = doubted["status"]["members"].as_array().map(Vec::len);
        assert_eq!(kept, Some(2), "they are known until it is answered: {doubted}");
        gate.open();
        scene.gone().await;
        let all = scene.deletions();
        let wanted = ("group/0003".to_owned(), strings(["snap/0004", "snap/0005"]));
        assert_eq!(all, [wanted.clone(), wanted]);
        scene.end().await;
    }
}

/// Where the plugin counts other snapshots to the group than it told, it is asked which, and all of them are deleted.
/// Obligations CO-GRP-11, CO-GRP-20.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_not_right_are_asked_for() {
    // How GetVolumeGroupSnapshot fares first, and whether the plugin lists snapshots.
    for (got, lists) in [
        (None, false),
        (Some(Code::NotFound), false),
        (Some(Code::InvalidArgument), true),
        (Some(Code::InvalidArgument), false),
    ] {
        let mut config = grouping();
        config.controller.extend(lists.then_some(LISTS));
        let scene = Scene::new(config).await;
        scene.take(json!({})).await;
        scene.ready().await;
        let members = strings(["snap/0004", "snap/0005", "snap/0009"]);
        let wrong = Answer::fail(Code::InvalidArgument, "snapshot_ids are not those of the group");
        let mut entries = Vec::new();
        for (id, of) in [("snap/0004", "backend/0001"), ("snap/0005", "backend/0002"), ("snap/0009", "other")]
        {
            entries.push(proto::Snapshot {
                snapshot_id: id.to_owned(),
                source_volume_id: of.to_owned(),
                group_snapshot_id: "group/0003".to_owned(),
                ready_to_use: true,
                ..Default::default()
            });
        }
        let group = proto::VolumeGroupSnapshot {
            group_snapshot_id: "group/0003".to_owned(),
            snapshots: entries.clone(),
            ready_to_use: true,
            ..Default::default()
        };
        let three = Answer::reply(&proto::GetVolumeGroupSnapshotResponse { group_snapshot: Some(group) });
        let of_another = proto::Snapshot { group_snapshot_id: "group/0001".to_owned(), ..entries[0].clone() };
        let entry = |snapshot| proto::list_snapshots_response::Entry { snapshot: Some(snapshot) };
        let listed = proto::ListSnapshotsResponse {
            entries: entries.into_iter().chain([of_another]).map(entry).collect(),
            next_token: String::new(),
        };
        if lists {
            scene.rig.backend.next(Rpc::ListSnapshots, Answer::reply(&listed));
        }
        scene.rig.backend.next(DELETE, wrong);
        if let Some(code) = got {
            scene.rig.backend.next(GET, Answer::fail(code, "no"));
        }
        if !lists && got == Some(Code::InvalidArgument) {
            // Neither tells: it stays, and is told.
            scene.rig.world.delete(&scene.snapshots, "snap").await;
            let told = scene.told("GetVolumeGroupSnapshotFailed").await;
            assert_eq!(told["status"]["exists"], "Unknown", "{told}");
            scene.rig.called(DELETE, 2).await;
            scene.gone().await;
            scene.end().await;
            continue;
        }
        scene.rig.backend.next(GET, three);
        if got == Some(Code::NotFound) {
            // That it is not found is no word that it is gone.
            let again = Answer::fail(Code::InvalidArgument, "snapshot_ids are not those of the group");
            scene.rig.backend.next(DELETE, again);
        }
        scene.rig.backend.next(DELETE, Answer::reply(&proto::DeleteVolumeGroupSnapshotResponse {}));
        scene.rig.world.delete(&scene.snapshots, "snap").await;
        if got == Some(Code::NotFound) {
            let told = scene.told("SnapshotNotFound").await;
            assert_eq!(told["status"]["exists"], "Unknown", "{told}");
        }
        scene.gone().await;
        let last = scene.deletions().pop().unwrap();
        assert_eq!(last, ("group/0003".to_owned(), members.clone()));
        let asked = scene.asked(GET).into_iter().map(|ask| match ask {
            Ask::GetVolumeGroupSnapshot(of) => (of.group_snapshot_id, of.snapshot_ids),
            other => panic!("{other:?}"),
        });
        let asked: Vec<_> = asked.collect();
        let known = ("group/0003".to_owned(), strings(["snap/0004", "snap/0005"]));
        let right = ("group/0003".to_owned(), members);
        let wanted = match got {
            None => vec![known],
            Some(Code::InvalidArgument) => vec![known, right],
            Some(_) => vec![known.clone(), known],
        };
        assert_eq!(asked, wanted, "{got:?}");
        // The honest driver still has what it made.
        let request = proto::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: "group/0003".to_owned(),
            snapshot_ids: strings(["snap/0004", "snap/0005"]),
            ..Default::default()
        };
        let client = wharfline::csi::Plugin::new(
            wharfline::csi::UnixConnector::new(scene.rig.plugin.socket()).unwrap(),
            wharfline::csi::PluginOptions::default(),
        );
        let patience = std::time::Duration::from_secs(5);
        client.delete_volume_group_snapshot(request, patience).await.unwrap();
        scene.end().await;
    }
}

/// A group that is cut, and whose volumes have another host by now, is looked for there; what was asked for again elsewhere
/// would be another call about volumes that are not this node's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_cut_is_looked_for_where_its_volumes_are_not() {
    let mut config = grouping();
    config.ready_after = 1_000;
    let scene = Scene::new(config).await;
    scene.take(json!({})).await;
    scene.until("cut", |s| s["status"]["exists"] == "Up").await;
    scene.rig.world.status(&scene.rig.volumes, "vol-2", json!({ "askedToRelease": 1 })).await;
    let released = |v: &Value| v["status"]["releasedEpoch"] == 1;
    scene.rig.world.until(&scene.rig.volumes, "vol-2", "let go", released).await;
    scene.rig.called(GET, 1).await;
    let asked = scene.rig.count(TAKE);
    scene.rig.called(GET, 2).await;
    assert_eq!(scene.rig.count(TAKE), asked);
    let host = json!({ "askedToRelease": null, "controller": { "nodeName": NODE, "epoch": 2 } });
    scene.rig.world.status(&scene.rig.volumes, "vol-2", host).await;
    scene.rig.called(TAKE, asked + 1).await;
    scene.deleted().await;
    scene.end().await;
}

/// A driver that pictured other volumes than it was asked for: that is deleted again, and told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_other_volumes_is_deleted_again() {
    for deletes in [true, false] {
        let scene = Scene::new(grouping()).await;
        let member = |id: &str, of: &str| proto::Snapshot {
            snapshot_id: id.to_owned(),
            source_volume_id: of.to_owned(),
            group_snapshot_id: "group/0009".to_owned(),
            ready_to_use: true,
            ..Default::default()
        };
        let group = proto::VolumeGroupSnapshot {
            group_snapshot_id: "group/0009".to_owned(),
            snapshots: vec![member("snap/0001", "backend/0001"), member("snap/0002", "other")],
            ready_to_use: true,
            ..Default::default()
        };
        let reply = proto::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(group) };
        scene.rig.backend.next(TAKE, Answer::reply(&reply));
        if !deletes {
            scene.rig.backend.next(DELETE, Answer::fail(Code::Internal, "not now"));
        }
        scene.take(json!({})).await;
        if deletes {
            scene.until("deleted again", |s| s["status"]["exists"] == "Down").await;
            scene.told("UnusableAnswer").await;
        } else {
            scene.told("DeleteVolumeGroupSnapshotFailed").await;
        }
        let wanted = ("group/0009".to_owned(), strings(["snap/0001", "snap/0002"]));
        assert_eq!(scene.deletions()[0], wanted);
        scene.deleted().await;
        assert_eq!(scene.rig.backend.snapshots().len(), 0);
        scene.end().await;
    }
}
