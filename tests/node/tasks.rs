//! Tasks: how they end, when they are started again, and that no volume goes before their last process.
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wharfline::api::allocation::{AllocationPhase, TaskState};
use wharfline::api::meta::Rung;
use wharfline::csi::Rpc;

use crate::support::node::{
    Rig, Special, condition_message, condition_reason, mute, rebooted, reluctant, uid, until,
};
use crate::support::scripted::{Answer, Ask, Config, Gate};

fn with_volume(policy: &str, script: &str) -> Value {
    json!({ "volumes": [{ "name": "data", "claimName": "data" }],
        "tasks": [{ "name": "t", "restartPolicy": policy, "stopGracePeriod": "1s",
            "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            "runtime": { "process": { "command": ["/bin/sh", "-c", script] } } }] })
}

async fn given(script: &str, policy: &str) -> (Rig, wharfline::api::Allocation) {
    let rig = Rig::new(Config::full()).await;
    let app = rig.alloc("app", with_volume(policy, script)).await;
    rig.give(&[&app], &Special::default()).await;
    (rig, app)
}

/// The allocation ends by itself and its volume is released, though nobody deleted it.
async fn ends(script: &str, policy: &str, phase: AllocationPhase, code: i32, restarts: u32) {
    let (rig, _) = given(script, policy).await;
    let word = format!("{phase:?}");
    let over = |a: &Value| a["status"]["phase"] == word && a["status"]["volumes"][0]["published"] == "Down";
    let app = rig.world.until(&rig.allocs, "app", &word, over).await;
    let task = app.status.unwrap().tasks[0].clone();
    assert_eq!((task.exit_code, task.restarts, task.state), (Some(code), restarts, TaskState::Exited));
    assert!(task.events.iter().any(|e| e.reason == "Exited"));
    assert_eq!((rig.count(Rpc::NodePublishVolume), rig.count(Rpc::NodeUnpublishVolume)), (1, 1));
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario A48.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_by_its_policy_releases_its_volumes() {
    ends("exit 3", "Never", AllocationPhase::Failed, 3, 0).await;
    ends("exit 0", "Never", AllocationPhase::Complete, 0, 0).await;
    ends("kill -9 $$$$", "Never", AllocationPhase::Failed, 137, 0).await;
    let second_time = "test -f /data/been && exit 0; touch /data/been; exit 5";
    ends(second_time, "OnFailure", AllocationPhase::Complete, 0, 1).await;
}

/// A program that is not there: each attempt is an end of the task, with a pause that grows as for any other end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_is_missing_is_tried_at_growing_intervals() {
    let began = Instant::now();
    let rig = Rig::new(Config::full()).await;
    let mut spec = with_volume("Always", "");
    spec["tasks"][0]["runtime"]["process"]["command"] = json!(["/bin/no-such-program"]);
    let app = rig.alloc("app", spec).await;
    rig.give(&[&app], &Special::default()).await;
    let tried = |a: &Value| a["status"]["tasks"][0]["restarts"].as_u64().is_some_and(|n| n >= 4);
    let app = rig.world.until(&rig.allocs, "app", "tried five times", tried).await;
    // A quarter, half, one and two seconds, of which chance takes a quarter at most.
    assert!(began.elapsed() >= Duration::from_millis(2810), "five attempts in {:?}", began.elapsed());
    let status = app.status.unwrap();
    let ready = status.conditions.iter().find(|c| c.kind == "Ready").unwrap();
    assert!(ready.message.contains("/bin/no-such-program: No such file"), "{}", ready.message);
    assert_eq!(status.tasks[0].exit_code, Some(127));
    rig.end_all().await;
    rig.finish().await;
}

/// What is refused before anything was started has a place for what it would have written all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_refused_leaves_no_logs_behind() {
    let rig = Rig::new(Config::full()).await;
    let data = rig.place.data.path();
    let mut spec = with_volume("Always", "");
    spec["tasks"][0]["volumeMounts"][0]["mountPath"] = json!(data.join("x"));
    let app = rig.alloc("app", spec).await;
    rig.give(&[&app], &Special::default()).await;
    let refused = |a: &Value| {
        let events = a["status"]["tasks"][0]["events"].as_array();
        events.is_some_and(|all| all.iter().any(|event| event["reason"] == "StartFailed"))
    };
    rig.world.until(&rig.allocs, "app", "refused", refused).await;
    let logs = data.join("logs").join(uid(&app));
    assert!(logs.exists());
    rig.end_all().await;
    until(|| !logs.exists(), "its logs are gone").await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_loop_is_seen_with_its_pause_and_keeps_its_volume() {
    let (rig, _) = given("exit 7", "Always").await;
    let looping = |a: &Value| {
        let task = &a["status"]["tasks"][0];
        task["state"] == "Restarting" && task["restarts"].as_u64().is_some_and(|n| n >= 2)
    };
    let app = rig.world.until(&rig.allocs, "app", "restarting", looping).await;
    let status = app.status.unwrap();
    assert_eq!(status.phase, Some(AllocationPhase::Restarting));
    let ready = status.conditions.iter().find(|c| c.kind == "Ready").unwrap();
    assert_eq!(ready.reason, "Restarting");
    assert!(ready.message.contains("code 7"), "{}", ready.message);
    assert_eq!(status.volumes[0].published, Rung::Up);
    assert_eq!((rig.count(Rpc::NodePublishVolume), rig.count(Rpc::NodeUnpublishVolume)), (1, 0));
    rig.end_all().await;
    rig.finish().await;
}

/// A daemon that is started again and again would else start what fails as often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pauses_of_a_crash_loop_grow_on_with_the_next_daemon_and_begin_at_the_end() {
    let (mut rig, _) = given("exit 7", "Always").await;
    let is_over = |a: &Value, restarts: u64| {
        let task = &a["status"]["tasks"][0];
        task["state"] == "Restarting" && task["restarts"] == restarts && task["nextAttemptTime"].is_string()
    };
    let fifth = rig.world.until(&rig.allocs, "app", "over for the fifth time", |a| is_over(a, 4)).await;
    rig.kill().await;
    let ended = |app: wharfline::api::Allocation| {
        let task = app.status.unwrap().tasks.remove(0);
        let end = task.events.iter().rfind(|event| event.reason == "Exited").unwrap().time.0;
        (end, task.next_attempt_time.map(|time| time.0.duration_since(end)))
    };
    let (end, pause) = ended(fifth);
    let fifth_pause = jiff::SignedDuration::from_secs(3)..=jiff::SignedDuration::from_millis(4050);
    assert!(pause.is_some_and(|pause| fifth_pause.contains(&pause)), "{pause:?}");
    // Long enough for a pause that began with the daemon to end too late.
    let late = jiff::SignedDuration::from_millis(2500);
    until(|| jiff::Timestamp::now().duration_since(end) > late, "some of the pause is over").await;
    rig.start().await;
    let told = |a: &Value| is_over(a, 4) && a["status"]["tasks"][0]["nextAttemptTime"] != Value::Null;
    rig.world.until(&rig.allocs, "app", "found by the next daemon", told).await;
    let again = |a: &Value| a["status"]["tasks"][0]["restarts"] == 5;
    let sixth = rig.world.until(&rig.allocs, "app", "started again", again).await;
    let events = sixth.status.unwrap().tasks.remove(0).events;
    let started = events.iter().rfind(|event| event.reason == "Restarted").unwrap().time.0;
    let pause = started.duration_since(end);
    // It is read, found and started by a new daemon: that takes a while, but no second.
    let longest = jiff::SignedDuration::from_millis(5000);
    assert!((*fifth_pause.start()..longest).contains(&pause), "{pause:?}");
    rig.end_all().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_ignores_sigterm_is_killed_after_its_grace() {
    let (rig, _) = given("trap '' TERM; echo up > /data/up; while :; do sleep 1; done", "Always").await;
    let app = rig.published("app").await;
    let file = std::path::Path::new(&app.status.unwrap().volumes[0].path).join("up");
    until(|| file.exists(), "the trap is set").await;
    let asked = Instant::now();
    rig.world.delete(&rig.allocs, "app").await;
    let stopped = rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    // The grace that it names, and neither none nor the usual ten seconds.
    let took = asked.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(8), "{took:?}");
    let task = stopped.status.unwrap().tasks.remove(0);
    assert_eq!(task.exit_code, Some(137));
    let asked = task.events.iter().find(|event| event.reason == "Stopping").unwrap();
    assert_eq!(asked.message, "asked to end; what is left of it is killed after 1 s");
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Its object is gone, and with that what it says of its grace; the task was started with that all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_object_is_gone_has_the_grace_that_it_was_started_with() {
    let mut rig = Rig::new(Config::full()).await;
    let up = rig.files.path().join("up");
    let script = format!("trap '' TERM; echo up > {}; while :; do sleep 0.1; done", up.display());
    let task = json!({ "tasks": [{ "name": "t", "stopGracePeriod": "1s",
        "runtime": { "process": { "command": ["/bin/sh", "-c", script] } } }] });
    let app = rig.alloc("app", task).await;
    until(|| up.exists(), "the trap is set").await;
    let before = pids(&rig, &app);
    // Its daemon never sees that it is to be deleted, only that it is not there.
    rig.stop().await;
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.let_go(&rig.allocs, "app").await;
    let asked = Instant::now();
    rig.start().await;
    until(|| !alive(before.0) && !alive(before.1), "it is killed").await;
    let took = asked.elapsed();
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(8), "{took:?}");
    rig.finish().await;
}

/// Its runtime starts it and cannot say so: what runs is no task that was not started, and nothing is unpublished under it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_runs_although_its_start_failed_is_known_to_run() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.wrap = mute;
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let app = rig.alloc("app", with_volume("Always", "exec sleep infinity")).await;
    rig.give(&[&app], &Special::default()).await;
    rig.world.until(&rig.allocs, "app", "running", |a| a["status"]["phase"] == "Running").await;
    let before = pids(&rig, &app);
    // It goes through a stop as any other does.
    let gate = Gate::new();
    rig.backend.next(Rpc::NodeUnpublishVolume, Answer::honest().hang(&gate));
    rig.world.delete(&rig.allocs, "app").await;
    rig.in_flight(Rpc::NodeUnpublishVolume, 1).await;
    assert!(!alive(before.0) && !alive(before.1), "it had ended before its volume was unpublished");
    gate.open();
    let stopped = rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    assert_eq!(stopped.status.unwrap().tasks[0].restarts, 0);
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

fn pids(rig: &Rig, app: &wharfline::api::Allocation) -> (i64, i64) {
    let path = rig.place.data.path().join(format!("tasks/{}.t/state.json", uid(app)));
    let state: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    (state["shim"]["pid"].as_i64().unwrap(), state["task"]["pid"].as_i64().unwrap())
}

fn alive(pid: i64) -> bool {
    // A zombie that nobody has waited for is no process any more.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_shim_is_cleared_up_after_and_its_task_started_again() {
    let (rig, app) = given("echo $$$$ >> /data/starts; exec sleep infinity", "Always").await;
    rig.published("app").await;
    let (shim, task) = pids(&rig, &app);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(shim).unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let again =
        |a: &Value| a["status"]["tasks"][0]["restarts"] == 1 && a["status"]["tasks"][0]["state"] == "Running";
    rig.world.until(&rig.allocs, "app", "started again", again).await;
    assert!(!alive(task), "the first one is gone");
    assert_ne!(pids(&rig, &app).1, task);
    assert_eq!((rig.count(Rpc::NodePublishVolume), rig.count(Rpc::NodeUnpublishVolume)), (1, 0));
    rig.end_all().await;
    rig.finish().await;
}

/// The shim lives, and the daemon does not learn so at once: it asks again, and nothing is started twice or forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_could_not_be_adopted_at_first_is_adopted_later() {
    for wanted in [true, false] {
        let (mut rig, app) = given("exec sleep infinity", "Always").await;
        rig.published("app").await;
        let before = pids(&rig, &app);
        rig.stop().await;
        if !wanted {
            rig.world.delete(&rig.allocs, "app").await;
            rig.world.let_go(&rig.allocs, "app").await;
        }
        rig.wrap = reluctant;
        rig.start().await;
        if wanted {
            let running = |a: &Value| {
                let task = &a["status"]["tasks"][0];
                task["state"] == "Running" && a["status"]["phase"] == "Running"
            };
            rig.world.until(&rig.allocs, "app", "running again", running).await;
            assert_eq!(pids(&rig, &app), before);
            assert!(alive(before.0) && alive(before.1));
            rig.end_alloc("app").await;
        } else {
            until(|| !alive(before.0) && !alive(before.1), "the task that nobody wants has ended").await;
        }
        rig.end_attachment().await;
        rig.end_volume("vol-1").await;
        rig.finish().await;
    }
}

/// Obligation CO-NODE-60.
/// The task's main process ends, and a daemon of its own that holds the volume does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_volume_is_unpublished_before_the_last_process_is_gone() {
    let script = "(setsid sh -c 'trap \"\" TERM; exec 3>/data/held; echo $$$$ > /data/pid; \
                  while :; do sleep 1; done' &) ; exec sleep infinity";
    let (rig, _) = given(script, "Always").await;
    let app = rig.published("app").await;
    let path = std::path::PathBuf::from(&app.status.unwrap().volumes[0].path).join("pid");
    let read = || std::fs::read_to_string(&path).ok().and_then(|s| s.trim().parse::<i64>().ok());
    until(|| read().is_some(), "the daemon has begun").await;
    let daemon = read().unwrap();
    let gate = Gate::new();
    rig.backend.next(Rpc::NodeUnpublishVolume, Answer::honest().hang(&gate));
    rig.world.delete(&rig.allocs, "app").await;
    rig.in_flight(Rpc::NodeUnpublishVolume, 1).await;
    assert!(!alive(daemon), "it lived when the call came");
    gate.open();
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    let of = |rpc| rig.backend.calls_of(rpc).remove(0).ask;
    let (published, unpublished) = (of(Rpc::NodePublishVolume), of(Rpc::NodeUnpublishVolume));
    let (Ask::NodePublishVolume(published), Ask::NodeUnpublishVolume(unpublished)) = (published, unpublished)
    else {
        panic!("other requests")
    };
    assert_eq!(
        (unpublished.volume_id, unpublished.target_path),
        (published.volume_id, published.target_path)
    );
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// A drain that is called off in the middle: what was told to end did not end by itself, so that it runs again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_told_to_leave_and_may_stay_runs_again() {
    let (rig, _) = given("echo run >> /data/runs; exec sleep 1000", "Never").await;
    rig.published("app").await;
    rig.world.status(&rig.allocs, "app", json!({ "evicted": true })).await;
    let left = |a: &Value| a["status"]["phase"] == "Stopped" && a["status"]["tasks"][0]["exitCode"] == 143;
    rig.world.until(&rig.allocs, "app", "Stopped", left).await;
    rig.world.status(&rig.allocs, "app", json!({ "evicted": false })).await;
    rig.published("app").await;
    assert_eq!((rig.count(Rpc::NodePublishVolume), rig.count(Rpc::NodeUnpublishVolume)), (2, 1));
    rig.end_all().await;
    rig.finish().await;
}

/// The journal says that it was about to be started, and the record of its start never reached the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_shall_run_once_is_not_started_again_after_a_power_failure() {
    let mut rig = Rig::new(Config::full()).await;
    let runs = |name: &str| rig.files.path().join(name);
    let script = |name: &str| format!("echo run >> {}; exec sleep infinity", runs(name).display());
    let once = rig.alloc("once", json!({ "tasks": [task("t", "Never", &script("once"))] })).await;
    let ever = rig.alloc("ever", json!({ "tasks": [task("t", "Always", &script("ever"))] })).await;
    let (once_runs, ever_runs) = (runs("once"), runs("ever"));
    let count = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default().lines().count();
    until(|| count(&once_runs) == 1 && count(&ever_runs) == 1, "both run").await;
    let running = |a: &Value| a["status"]["phase"] == "Running";
    for name in ["once", "ever"] {
        rig.world.until(&rig.allocs, name, "Running", running).await;
    }
    rig.kill().await;
    for app in [&once, &ever] {
        for pid in <[i64; 2]>::from(pids(&rig, app)) {
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        std::fs::remove_dir_all(rig.place.data.path().join(format!("tasks/{}.t", uid(app)))).unwrap();
    }
    rig.wrap = rebooted;
    rig.start().await;
    let failed = rig.world.until(&rig.allocs, "once", "Failed", |a| a["status"]["phase"] == "Failed").await;
    let told = failed.status.unwrap().tasks[0].events.clone();
    assert!(
        told.iter().any(|event| event.reason == "Lost" && event.message.contains("went down")),
        "{told:?}"
    );
    until(|| count(&ever_runs) == 2, "what is always to run runs again").await;
    assert_eq!(count(&once_runs), 1);
    for name in ["once", "ever"] {
        gone(&rig, name).await;
    }
    rig.finish().await;
}

/// A start that failed before there was a process: that is no run, whatever the machine does next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_started_has_not_run_after_a_reboot() {
    let mut rig = Rig::new(Config::full()).await;
    let runs = rig.files.path().join("runs");
    let mut spec = with_volume("Never", &format!("echo run >> {}; exec sleep infinity", runs.display()));
    spec["tasks"][0]["volumeMounts"][0]["subPath"] = json!("a");
    let app = rig.alloc("app", spec).await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    // What is there is a file, and no directory.
    let mut homes = std::fs::read_dir(rig.files.path().join("volumes")).unwrap();
    let part = homes.next().unwrap().unwrap().path().join("a");
    std::fs::write(&part, "").unwrap();
    rig.attach("vol-1", &[&app], &Special::default()).await;
    let refused = |a: &Value| condition_reason(a, "Ready") == Some("SubPathUnusable");
    rig.world.until(&rig.allocs, "app", "refused", refused).await;
    rig.stop().await;
    std::fs::remove_file(&part).unwrap();
    rig.wrap = rebooted;
    rig.start().await;
    rig.published("app").await;
    until(|| runs.exists(), "it has run").await;
    rig.end_all().await;
    rig.finish().await;
}

fn task(name: &str, policy: &str, script: &str) -> Value {
    json!({ "name": name, "restartPolicy": policy,
        "runtime": { "process": { "command": ["/bin/sh", "-c", script] } } })
}

/// The allocation is deleted and leaves nothing.
async fn gone(rig: &Rig, name: &str) {
    rig.world.delete(&rig.allocs, name).await;
    let over = |a: &Value| {
        let phase = a["status"]["phase"].as_str();
        phase.is_some_and(|phase| ["Stopped", "Failed", "Complete"].contains(&phase))
    };
    rig.world.until(&rig.allocs, name, "over", over).await;
    rig.world.let_go(&rig.allocs, name).await;
}

/// Each has its own line, though reason and allocation are the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_tasks_each_start_is_told() {
    let rig = Rig::new(Config::full()).await;
    let script = "exec sleep infinity";
    rig.alloc("app", json!({ "tasks": [task("first", "Always", script), task("second", "Always", script)] }))
        .await;
    rig.told("TaskStarted", "task first started").await;
    rig.told("TaskStarted", "task second started").await;
    gone(&rig, "app").await;
    rig.finish().await;
}

/// When it ended is when it ended, and a daemon that finds it again has no news.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_told_once_however_often_the_daemon_dies() {
    let mut rig = Rig::new(Config::full()).await;
    let (go, waits) = (rig.files.path().join("go"), "while ! test -e $GO; do sleep 0.05; done; exit 4");
    let waits = waits.replace("$GO", go.to_str().unwrap());
    let app = rig.alloc("app", json!({ "tasks": [task("t", "Never", "exit 4")] })).await;
    let late = rig.alloc("late", json!({ "tasks": [task("t", "Never", &waits)] })).await;
    let failed = |a: &Value| a["status"]["phase"] == "Failed";
    let before = rig.world.until(&rig.allocs, "app", "failed", failed).await.status.unwrap().tasks;
    rig.world.until(&rig.allocs, "late", "runs", |a| a["status"]["phase"] == "Running").await;
    rig.told("TaskExited", "code 4").await;
    rig.kill().await;
    // Meanwhile the other one ends.
    std::fs::write(&go, "").unwrap();
    let record = rig.place.data.path().join(format!("tasks/{}.t/exit.json", uid(&late)));
    until(|| record.exists(), "its end is written").await;
    let ended = jiff::Timestamp::now();
    rig.start().await;
    let told = rig.world.until(&rig.allocs, "late", "failed", failed).await.status.unwrap().tasks;
    let end = told[0].events.iter().find(|e| e.reason == "Exited").unwrap();
    assert!(end.time.0 <= ended, "told as of {} and not of {ended}", end.time.0);
    rig.kill().await;
    rig.start().await;
    // What is begun now is begun after the others were looked at.
    rig.alloc("marker", json!({ "tasks": [task("t", "Never", "exit 0")] })).await;
    rig.world.until(&rig.allocs, "marker", "complete", |a| a["status"]["phase"] == "Complete").await;
    rig.told("TaskExited", "code 0").await;
    let after = rig.allocs.get("app").await.unwrap().status.unwrap().tasks;
    assert_eq!(after[0].events, before[0].events);
    let late = rig.allocs.get("late").await.unwrap().status.unwrap().tasks;
    assert_eq!(late[0].events, told[0].events);
    assert_eq!(rig.times_told("TaskExited", &app).await, 1);
    for name in ["app", "late", "marker"] {
        gone(&rig, name).await;
    }
    rig.finish().await;
}

/// What was confided to a process of an earlier daemon is nothing that one of this daemon was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_driver_wrote_is_told_again_once_this_daemon_has_started_it() {
    let mut rig = Rig::new(Config::full()).await;
    let mut driver = task("plugin", "Always", "echo config file is missing >&2; exit 1");
    driver["csiPlugin"] = json!({ "pluginName": "other", "role": "Monolith" });
    let alloc = rig.alloc("driver", json!({ "tasks": [driver] })).await;
    rig.admit_as("other", "driver", &alloc).await;
    let told = |a: &Value| a["status"]["tasks"][0]["lastOutput"] == "config file is missing";
    rig.world.until(&rig.allocs, "driver", "told", told).await;
    rig.kill().await;
    rig.start().await;
    let again =
        |a: &Value| a["status"]["tasks"][0]["lastOutput"].as_str().is_some_and(|l| l.contains("not shown"));
    rig.world.until(&rig.allocs, "driver", "what an earlier one wrote is not told", again).await;
    rig.world.until(&rig.allocs, "driver", "told again", told).await;
    rig.release_plugin("driver").await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_the_node_does_not_allow_is_named_with_what_may_be_used() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.options.runtimes = vec!["external".to_owned()];
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    rig.alloc("app", json!({ "tasks": [task("t", "Always", "exec sleep infinity")] })).await;
    let told = |a: &Value| condition_reason(a, "Ready") == Some("RuntimeNotAllowed");
    let app = rig.world.until(&rig.allocs, "app", "refused", told).await;
    let app = serde_json::to_value(app).unwrap();
    let said = condition_message(&app, "Ready").unwrap();
    assert!(said.contains("task t: this node does not allow the runtime \"process\"; "), "{said}");
    // It waits for no volume, and nothing of it ran.
    assert_eq!(
        (&app["status"]["phase"], &app["status"]["tasks"][0]["state"]),
        (&json!("Starting"), &json!("Pending"))
    );
    gone(&rig, "app").await;
    rig.finish().await;
}
