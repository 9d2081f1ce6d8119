//! Mounts that died or went while they were up, made anew where their user asks for it.
use std::path::PathBuf;

use rustix::mount::{UnmountFlags, unmount};
use serde_json::{Value, json};
use wharfline::csi::Rpc;

use crate::stale::{count, home, message, volumes_ready, well};
use crate::support::fuse::{FILE, Fuse};
use crate::support::node::{NODE_ID, Rig, Special, uid, until};
use crate::support::scripted::{Answer, Ask, Config, Gate};

/// A task that has the volume at `/data`, writes that it began, and takes its time to end.
fn task(rig: &Rig, policy: &str) -> Value {
    let place = rig.files.path().display();
    let script = format!(
        "trap 'sleep 0.3; echo yes > {place}/ended; exit 0' TERM; cat /data/{0} > /dev/null || exit 1; \
         echo up >> {place}/begun; while :; do sleep 0.05; done",
        FILE.0
    );
    json!({ "volumes": [{ "name": "data", "claimName": "data", "onStaleMount": policy }],
        "tasks": [{ "name": "t", "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            "runtime": { "process": { "command": ["/bin/sh", "-c", script] } } }] })
}

/// The volume is a FUSE file system, whose driver ends with it.
async fn with_fuse(rig: &Rig, spec: Value) -> Fuse {
    let app = rig.alloc("app", spec).await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let fuse = Fuse::mount(&home(rig, "vol-1").await);
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.published("app").await;
    fuse
}

/// The driver ends with what it served, and comes back with another server for the same files.
async fn dies(rig: &mut Rig, mut fuse: Fuse) -> Fuse {
    fuse.kill();
    rig.plugin.stop().await;
    rig.world.until(&rig.allocs, "app", "stale", volumes_ready("MountStale")).await;
    rig.not_ready("NoSocket").await;
    fuse.finish();
    let fuse = Fuse::mount(&home(rig, "vol-1").await);
    rig.plugin.serve();
    fuse
}

async fn path(rig: &Rig) -> PathBuf {
    let app = rig.world.until(&rig.allocs, "app", "well again", well).await;
    PathBuf::from(&app.status.unwrap().volumes[0].path)
}

async fn finish(rig: Rig, fuse: Option<Fuse>) {
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    if let Some(fuse) = fuse {
        fuse.finish();
    }
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

const ANEW: [&str; 4] = ["NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume"];

async fn a_dead_volume_is_mounted_anew_under_its_task(policy: &str) {
    let mut rig = Rig::new(Config::full()).await;
    let spec = task(&rig, policy);
    let fuse = with_fuse(&rig, spec).await;
    let (ended, begun) = (rig.files.path().join("ended"), rig.files.path().join("begun"));
    until(|| begun.exists(), "the task runs").await;
    let calls = rig.backend.order().len();
    let gate = Gate::new();
    rig.backend.next(Rpc::NodeUnpublishVolume, Answer::honest().hang(&gate));
    let fuse = dies(&mut rig, fuse).await;
    rig.in_flight(Rpc::NodeUnpublishVolume, 1).await;
    assert!(ended.exists(), "nothing is unmounted under a task");
    gate.open();
    let path = path(&rig).await;
    assert_eq!(std::fs::read(path.join(FILE.0)).unwrap(), FILE.1);
    until(|| std::fs::read_to_string(&begun).is_ok_and(|b| b == "up\nup\n"), "it runs again").await;
    assert_eq!(rig.backend.order()[calls..], ANEW);
    let running = |a: &Value| {
        a["status"]["phase"] == "Running"
            && a["status"]["tasks"][0]["state"] == "Running"
            && a["status"]["tasks"][0]["restarts"] == 1
    };
    rig.world.until(&rig.allocs, "app", "runs again", running).await;
    assert_eq!(count(&rig, "Remounting").await, 1);
    let told = rig.events_until("Remounted").await;
    assert!(told.iter().all(|(reason, _)| reason != "Recovered"), "nothing has failed: {told:?}");
    let events = rig.allocs.get("app").await.unwrap().status.unwrap().tasks[0].events.clone();
    let why = events.iter().find(|event| event.reason == "Stopping").unwrap();
    assert!(why.message.contains("volume data") && why.message.contains("onStaleMount"), "{why:?}");
    finish(rig, Some(fuse)).await;
}

/// Scenarios B117, Q18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_with_its_driver_is_mounted_anew_and_its_tasks_start_again() {
    for policy in ["Remount", "Restart"] {
        Box::pin(a_dead_volume_is_mounted_anew_under_its_task(policy)).await;
    }
}

/// Before the driver is back nothing is won by ending anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_without_tasks_is_mounted_anew_once_its_driver_is_back() {
    let mut rig = Rig::new(Config::full()).await;
    let spec = json!({ "volumes": [{ "name": "data", "claimName": "data", "onStaleMount": "Remount" }] });
    let mut fuse = with_fuse(&rig, spec).await;
    let calls = rig.backend.order().len();
    fuse.kill();
    rig.plugin.stop().await;
    let app = rig.world.until(&rig.allocs, "app", "stale", volumes_ready("MountStale")).await;
    let said = message(&serde_json::to_value(app).unwrap(), "VolumesReady");
    assert!(said.contains("ENOTCONN") && said.contains("as onStaleMount says"), "{said}");
    // Another daemon goes on with it.
    rig.kill().await;
    rig.start().await;
    fuse.finish();
    let fuse = Fuse::mount(&home(&rig, "vol-1").await);
    rig.plugin.serve();
    let path = path(&rig).await;
    assert_eq!(std::fs::read(path.join(FILE.0)).unwrap(), FILE.1);
    assert_eq!(rig.backend.order()[calls..], ANEW);
    finish(rig, Some(fuse)).await;
}

/// One who asked for nothing holds what is staged: nothing is done for the other, and no task is ended for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_asks_for_nothing_keeps_a_dead_stage_as_it_is() {
    let mut rig = Rig::new(Config::full()).await;
    let [app, other] = [("app", "Remount"), ("other", "None")].map(|(name, policy)| {
        (name, json!({ "volumes": [{ "name": "data", "claimName": "data", "onStaleMount": policy }] }))
    });
    let app = rig.alloc(app.0, app.1).await;
    let other = rig.alloc(other.0, other.1).await;
    rig.ask("vol-1", &Special { mode: Some("MultiNodeMultiWriter"), ..Special::default() }).await;
    rig.volume_up("vol-1").await;
    let mut fuse = Fuse::mount(&home(&rig, "vol-1").await);
    let special = Special { mode: Some("MultiNodeMultiWriter"), ..Special::default() };
    rig.attach("vol-1", &[&app, &other], &special).await;
    let own = rig.published("app").await.status.unwrap().volumes[0].path.clone();
    rig.published("other").await;
    let calls = rig.backend.order().len();
    fuse.kill();
    rig.plugin.stop().await;
    for name in ["app", "other"] {
        rig.world.until(&rig.allocs, name, "stale", volumes_ready("MountStale")).await;
    }
    fuse.finish();
    let fuse = Fuse::mount(&home(&rig, "vol-1").await);
    rig.plugin.serve();
    rig.ready().await;
    // A new look at all of them changes nothing, and one who comes now waits.
    rig.kill().await;
    rig.start().await;
    rig.ready().await;
    let spec = json!({ "volumes": [{ "name": "data", "claimName": "data", "onStaleMount": "Remount" }] });
    let new = rig.alloc("new", spec).await;
    let uids = [uid(&app), uid(&other), uid(&new)];
    rig.world.patch(&rig.attachments, "att-1", json!({ "spec": { "allocations": uids } })).await;
    rig.world.until(&rig.allocs, "new", "waits", volumes_ready("StageDead")).await;
    // Who looked at the stage just before it died may have taken down what was to be mounted anew from it, and that alone.
    let early = rig.backend.order().len() - calls;
    let targets = rig.backend.calls_of(Rpc::NodeUnpublishVolume).into_iter().map(|call| match call.ask {
        Ask::NodeUnpublishVolume(of) => of.target_path,
        other => panic!("{other:?}"),
    });
    let targets: Vec<_> = targets.collect();
    assert!(targets.len() == early && targets.iter().all(|target| *target == own), "{targets:?} {own}");
    rig.end_alloc("new").await;
    rig.end_alloc("other").await;
    let path = path(&rig).await;
    assert_eq!(std::fs::read(path.join(FILE.0)).unwrap(), FILE.1);
    let rest = &rig.backend.order()[calls + early..];
    assert!(rest.ends_with(&ANEW[1..]) && rest.len() <= ANEW.len() + 1, "{rest:?}");
    finish(rig, Some(fuse)).await;
}

/// To a driver that goes by what it remembers the volume comes down first, which needs that nobody uses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_does_not_look_is_asked_to_unpublish_first() {
    let rig = Rig::new(Config::full()).await;
    let spec = json!({ "volumes": [{ "name": "data", "claimName": "data", "onStaleMount": "Remount" }] });
    let fuse = with_fuse(&rig, spec).await;
    let before = path(&rig).await;
    unmount(&before, UnmountFlags::DETACH).unwrap();
    rig.called(Rpc::NodePublishVolume, 3).await;
    let after = path(&rig).await;
    assert_eq!(std::fs::read(after.join(FILE.0)).unwrap(), FILE.1);
    assert_eq!((rig.count(Rpc::NodeUnpublishVolume), rig.count(Rpc::NodeStageVolume)), (1, 1));
    finish(rig, Some(fuse)).await;
}

/// A task has a mount of its own, which an unmount beside it does not touch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_unmounted_is_published_again_with_or_without_a_restart() {
    for (policy, restarts) in [("Remount", 0), ("Restart", 1)] {
        let rig = Rig::new(Config::full()).await;
        let spec = task(&rig, policy);
        let fuse = with_fuse(&rig, spec).await;
        let begun = rig.files.path().join("begun");
        until(|| begun.exists(), "the task runs").await;
        let before = path(&rig).await;
        if restarts == 0 {
            rig.backend.forget_publications(NODE_ID);
        }
        unmount(&before, UnmountFlags::DETACH).unwrap();
        if restarts == 0 {
            // The driver makes it anew.
            std::fs::remove_dir(&before).unwrap();
        }
        rig.called(Rpc::NodePublishVolume, 2).await;
        let after = path(&rig).await;
        assert_eq!(std::fs::read(after.join(FILE.0)).unwrap(), FILE.1);
        let runs = |a: &Value| {
            a["status"]["tasks"][0]["state"] == "Running"
                && a["status"]["tasks"][0]["restarts"].as_i64().unwrap_or(0) == restarts
        };
        rig.world.until(&rig.allocs, "app", "runs", runs).await;
        assert_eq!(rig.count(Rpc::NodeUnpublishVolume), usize::try_from(restarts).unwrap(), "{policy}");
        assert_eq!(rig.count(Rpc::NodeStageVolume), 1, "{policy}");
        assert_eq!(rig.files.path().join("ended").exists(), restarts > 0, "{policy}");
        finish(rig, Some(fuse)).await;
    }
}

/// Of a file system that is dead no mount is well: that one of them is gone, too, changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_volume_whose_path_of_the_host_was_taken_away_is_told_as_dead_and_mounted_anew() {
    let mut rig = Rig::idle(Config::full()).await;
    let allowed = rig.files.path().join("host");
    std::fs::create_dir_all(&allowed).unwrap();
    rig.options.host_paths = vec![allowed.clone()];
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let mut spec = task(&rig, "Remount");
    let at = allowed.join("data");
    spec["volumes"][0]["hostPath"] = json!(at);
    let mut fuse = with_fuse(&rig, spec).await;
    let begun = rig.files.path().join("begun");
    until(|| begun.exists(), "the task runs").await;
    let calls = rig.backend.order().len();
    fuse.kill();
    rig.plugin.stop().await;
    rig.world.until(&rig.allocs, "app", "stale", volumes_ready("MountStale")).await;
    unmount(&at, UnmountFlags::DETACH).unwrap();
    // The next daemon has looked at both before it does anything.
    rig.kill().await;
    rig.start().await;
    fuse.finish();
    let fuse = Fuse::mount(&home(&rig, "vol-1").await);
    rig.plugin.serve();
    let path = path(&rig).await;
    assert_eq!((&path, std::fs::read(path.join(FILE.0)).unwrap().as_slice()), (&at, FILE.1));
    until(|| std::fs::read_to_string(&begun).is_ok_and(|b| b == "up\nup\n"), "it runs again").await;
    assert_eq!(rig.backend.order()[calls..], ANEW);
    let told = rig.events_until("Remounting").await;
    assert!(!told.iter().any(|(reason, _)| reason == "MountLost"), "{told:?}");
    finish(rig, Some(fuse)).await;
}

/// What is on top is theirs: the volume beneath it is well, and nothing is done for as long as they stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_mounted_over_a_volume_is_told_and_left_alone() {
    for policy in ["Remount", "Restart"] {
        let mut rig = Rig::new(Config::full()).await;
        let spec = task(&rig, policy);
        let fuse = with_fuse(&rig, spec).await;
        let begun = rig.files.path().join("begun");
        until(|| begun.exists(), "the task runs").await;
        let path = path(&rig).await;
        let calls = rig.backend.order();
        let none = rustix::mount::MountFlags::empty();
        rustix::mount::mount("theirs", &path, "tmpfs", none, None).unwrap();
        // The mount beneath is where it was: it is seen at a heartbeat, or by the next daemon.
        rig.kill().await;
        rig.start().await;
        let app = rig.world.until(&rig.allocs, "app", "lost", volumes_ready("MountLost")).await;
        let said = message(&serde_json::to_value(app).unwrap(), "VolumesReady");
        assert!(said.contains("mounted over") && said.contains("keep their own mount"), "{said}");
        rig.ready().await;
        unmount(&path, UnmountFlags::empty()).unwrap();
        rig.world.until(&rig.allocs, "app", "well again", well).await;
        assert_eq!(rig.backend.order(), calls, "{policy}");
        assert!(!rig.files.path().join("ended").exists(), "{policy}: a task was ended for it");
        finish(rig, Some(fuse)).await;
    }
}

/// Who has no mount of the dead volume is not ended for it: neither a driver, nor a task beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_tasks_that_mount_a_dead_volume_are_ended_for_it() {
    let mut rig = Rig::new(Config::full()).await;
    let mut spec = task(&rig, "Remount");
    let runs = json!({ "process": { "command": ["/bin/sleep", "infinity"] } });
    let tasks = spec["tasks"].as_array_mut().unwrap();
    tasks.push(json!({ "name": "beside", "runtime": runs }));
    tasks.push(json!({ "name": "driver", "runtime": runs,
        "csiPlugin": { "pluginName": "other", "role": "Monolith", "healthTimeout": "10m" } }));
    let fuse = with_fuse(&rig, spec).await;
    let (begun, calls) = (rig.files.path().join("begun"), rig.backend.order().len());
    let all = |a: &Value| (0..3).all(|n| a["status"]["tasks"][n]["state"] == "Running");
    rig.world.until(&rig.allocs, "app", "all run", all).await;
    let fuse = dies(&mut rig, fuse).await;
    let path = path(&rig).await;
    assert_eq!(std::fs::read(path.join(FILE.0)).unwrap(), FILE.1);
    until(|| std::fs::read_to_string(&begun).is_ok_and(|b| b == "up\nup\n"), "it runs again").await;
    assert_eq!(rig.backend.order()[calls..], ANEW);
    let app = rig.world.until(&rig.allocs, "app", "all run again", all).await;
    let tasks = app.status.unwrap().tasks;
    assert_eq!(tasks.iter().map(|task| task.restarts).collect::<Vec<_>>(), [1, 0, 0]);
    for task in &tasks[1..] {
        assert!(task.events.iter().all(|event| event.reason == "Started"), "{task:?}");
    }
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.status(&rig.allocs, "app", json!({ "pluginReleased": true })).await;
    finish(rig, Some(fuse)).await;
}
