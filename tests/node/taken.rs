//! What an allocation had and lost to others while its daemon was away: nothing runs on with it, and nothing begins on it.
use serde_json::{Value, json};
use wharfline::api::meta::Rung;
use wharfline::csi::Rpc;

use crate::support::node::{Rig, Special, condition_reason, until};
use crate::support::scripted::Config;

/// A task that says that it began, and goes on until it is told to end; and one beside it that has nothing of the volume, and is left
/// alone.
fn task(rig: &Rig) -> Value {
    let place = rig.files.path().display();
    let script = format!("echo up >> {place}/begun; while [ ! -e {place}/end ]; do sleep 0.02; done");
    let beside = format!("echo up >> {place}/beside; while :; do sleep 0.05; done");
    json!({ "volumes": [{ "name": "data", "claimName": "data" }],
        "tasks": [{ "name": "t", "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            "runtime": { "process": { "command": ["/bin/sh", "-c", script] } } },
            { "name": "beside", "runtime": { "process": { "command": ["/bin/sh", "-c", beside] } } }] })
}

fn begun(rig: &Rig) -> usize {
    std::fs::read_to_string(rig.files.path().join("begun")).unwrap_or_default().lines().count()
}

async fn started(rig: &Rig) {
    let spec = task(rig);
    let app = rig.alloc("app", spec).await;
    rig.give(&[&app], &Special::default()).await;
    rig.published("app").await;
    until(|| begun(rig) == 1, "it runs").await;
}

/// It is let in anew, and runs again.
async fn again(rig: &Rig) {
    let app = rig.allocs.get("app").await.unwrap();
    rig.attach("vol-1", &[&app], &Special::default()).await;
    until(|| begun(rig) == 2, "it runs again").await;
    rig.published("app").await;
}

async fn finish(rig: Rig) {
    let beside = std::fs::read_to_string(rig.files.path().join("beside")).unwrap();
    assert_eq!(beside.lines().count(), 1, "it was left alone");
    rig.end_all().await;
    rig.finish().await;
}

/// The daemon was away, its node said to be off, and what it had given to others; then the allocation is placed here once more, before
/// the daemon has looked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_fenced_and_is_placed_here_again_ends_before_it_begins_anew() {
    for removed in [false, true] {
        // Nobody detaches it beneath the task, as a host elsewhere would.
        let mut rig = Rig::new(Config::without_attach_and_stage()).await;
        started(&rig).await;
        rig.kill().await;
        let before = rig.backend.order().len();
        rig.world.patch(&rig.attachments, "att-1", json!({ "spec": { "fenced": true } })).await;
        rig.world.delete(&rig.attachments, "att-1").await;
        if removed {
            rig.world.let_go(&rig.attachments, "att-1").await;
        }
        rig.start().await;
        rig.called(Rpc::NodeUnpublishVolume, 1).await;
        let waits = |a: &Value| {
            let status = &a["status"];
            status["volumes"][0]["published"] == "Down" && status["tasks"][0]["state"] == "Restarting"
        };
        rig.world.until(&rig.allocs, "app", "waits", waits).await;
        if !removed {
            rig.detached().await;
        }
        assert_eq!(rig.backend.order()[before..], ["NodeUnpublishVolume"], "{removed}");
        assert_eq!(begun(&rig), 1, "{removed}: it was not begun on what it lost");
        let told = rig.events_until("VolumeTaken").await;
        let taken = told.iter().filter(|(reason, _)| reason == "VolumeTaken").count();
        assert_eq!(taken, 1, "{told:?}");
        again(&rig).await;
        rig.events_until("TaskRestarted").await;
        assert_eq!(rig.times_told("Remounted", &rig.allocs.get("app").await.unwrap()).await, 0);
        finish(rig).await;
    }
}

/// The same while the daemon looks on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_fenced_under_a_running_daemon_ends() {
    let rig = Rig::new(Config::without_attach_and_stage()).await;
    started(&rig).await;
    rig.world.patch(&rig.attachments, "att-1", json!({ "spec": { "fenced": true } })).await;
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.detached().await;
    assert_eq!(begun(&rig), 1);
    again(&rig).await;
    finish(rig).await;
}

/// At a path of the machine any of its tasks may have it, and all of them end before it goes from there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_from_a_path_of_the_machine_ends_every_task() {
    let mut rig = Rig::new(Config::without_attach_and_stage()).await;
    rig.stop().await;
    let allowed = rig.files.path().join("srv");
    std::fs::create_dir(&allowed).unwrap();
    rig.options.host_paths = vec![allowed.clone()];
    rig.start().await;
    let (place, at) = (rig.files.path().display().to_string(), allowed.join("data"));
    // It takes its time to end, and says whether the volume was where it uses it all the while.
    let script = format!(
        "cd {at} || exit 1; echo up >> {place}/begun; \
         trap 'sleep 0.3; grep -q \" {at} \" /proc/{daemon}/mountinfo && echo yes > {place}/ended; exit 0' TERM; \
         while :; do sleep 0.02; done",
        at = at.display(),
        daemon = std::process::id()
    );
    let spec = json!({ "volumes": [{ "name": "data", "claimName": "data", "hostPath": at }],
        "tasks": [{ "name": "t", "runtime": { "process": { "command": ["/bin/sh", "-c", script] } } }] });
    let app = rig.alloc("app", spec).await;
    rig.give(&[&app], &Special::default()).await;
    rig.published("app").await;
    until(|| begun(&rig) == 1, "it runs").await;
    rig.world.patch(&rig.attachments, "att-1", json!({ "spec": { "fenced": true } })).await;
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.detached().await;
    assert!(rig.files.path().join("ended").exists(), "it had the volume until it ended");
    assert_eq!((begun(&rig), rig.count(Rpc::NodeUnpublishVolume)), (1, 1));
    rig.end_alloc("app").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Nobody else has it: its tasks run on for as long as they do, and are not begun again on what is let go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_begins_on_what_is_being_let_go() {
    let mut rig = Rig::new(Config::full()).await;
    started(&rig).await;
    rig.plugin.stop().await;
    rig.not_ready("NoSocket").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    let waits = |a: &Value| a["status"]["node"]["message"].as_str().is_some_and(|m| m.contains("no process"));
    rig.world.until(&rig.attachments, "att-1", "waits for its task", waits).await;
    assert_eq!(begun(&rig), 1);
    let end = rig.files.path().join("end");
    std::fs::write(&end, "").unwrap();
    let over = |a: &Value| !a["status"]["tasks"][0]["nextAttemptTime"].is_null();
    let app = rig.world.until(&rig.allocs, "app", "it has ended", over).await;
    std::fs::remove_file(end).unwrap();
    let next = app.status.unwrap().tasks[0].next_attempt_time.unwrap();
    let says = |a: &Value| condition_reason(a, "VolumesReady") == Some("PluginNotReady");
    let app = rig.world.until(&rig.allocs, "app", "says what its volume waits for", says).await;
    assert_eq!(app.status.unwrap().volumes[0].published, Rung::Up);
    until(|| jiff::Timestamp::now() > next.0 + jiff::SignedDuration::from_secs(1), "its pause is over").await;
    rig.plugin.serve();
    rig.detached().await;
    assert_eq!(begun(&rig), 1, "it was not begun on what is let go");
    again(&rig).await;
    finish(rig).await;
}
