//! What a plugin's supervisor goes by: what it is told meanwhile, what it cannot watch, and whose fault an end was.
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use serde_json::{Value, json};
use wharfline::api::Plugin;
use wharfline::csi::{Code, Rpc};
use wharfline::node::Machine;
use wharfline::sys::Watches;
use wharfline::sys::watch::{DirEvent, WatchError};

use crate::changed::change;
use crate::duties::{answered, restarts};
use crate::instances::{driver, end_own, own_instance, ready, told, user_of_own};
use crate::support::node::{NODE_ID, Rig, condition, condition_message, condition_reason, uid, until};
use crate::support::scripted::{Answer, Config, Gate, Scripted, Site};

/// Whether the process of a task that was started here is there.
fn runs(rig: &Rig, allocation: &str) -> bool {
    let state = rig.place.data.path().join(format!("tasks/{allocation}.plugin/state.json"));
    let Ok(state) = std::fs::read(state) else { return false };
    let state: Value = serde_json::from_slice(&state).unwrap();
    std::path::Path::new(&format!("/proc/{}", state["task"]["pid"])).exists()
}

/// Until it was asked so often again that the timeout is over: at pauses from 50 ms, each twice the one before, up to 1 s.
async fn time_passes(rig: &Rig, rpc: Rpc, times: usize) {
    let asked = rig.count(rpc);
    rig.called(rpc, asked + times).await;
}

/// Nobody could start it again, so it is not ended, although it was to be when its supervisor began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphan_is_not_ended_for_being_slow_while_it_has_volumes() {
    let mut rig = Rig::idle(Config::without_attach_and_stage()).await;
    rig.start().await;
    let (mut plugin, _) = answered(&rig, "1s").await;
    ready(&rig, "own", "True").await;
    user_of_own(&rig).await;
    let alloc = uid(&rig.allocs.get("own").await.unwrap());
    rig.world.delete(&rig.allocs, "own").await;
    rig.world.let_go(&rig.allocs, "own").await;
    rig.backend.always(Rpc::Probe, Answer::fail(Code::Internal, "slow"));
    plugin.kill().await;
    plugin.serve();
    ready(&rig, "own", "False").await;
    time_passes(&rig, Rpc::Probe, 7).await;
    assert!(runs(&rig, &alloc), "it was ended, and its volumes have no driver any more");
    rig.backend.honest(Rpc::Probe);
    ready(&rig, "own", "True").await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    until(|| !runs(&rig, &alloc), "it ends with its last volume").await;
    rig.world.delete(&rig.instances, "own").await;
    let (_again, _) = answered(&rig, "20s").await;
    ready(&rig, "own", "True").await;
    rig.end_volume("vol-1").await;
    end_own(&rig).await;
}

/// A changed healthTimeout is in force for the process that runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_timeout_is_given_to_who_is_waited_for_already() {
    let mut rig = Rig::idle(Config { ready: Some(false), ..Config::full() }).await;
    rig.start().await;
    let (_plugin, _) = answered(&rig, "3s").await;
    ready(&rig, "own", "False").await;
    change(&rig, json!({ "healthTimeout": "10m" })).await;
    time_passes(&rig, Rpc::Probe, 10).await;
    assert_eq!(restarts(&rig).await, 0, "the former timeout was in force");
    change(&rig, json!({ "healthTimeout": "500ms" })).await;
    let once = |a: &Value| a["status"]["tasks"][0]["restarts"].as_i64() >= Some(1);
    rig.world.until(&rig.allocs, "own", "started again", once).await;
    end_own(&rig).await;
}

/// To be started again mends no name: what a driver answers and is refused for is told, and its process left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_of_another_name_is_left_alone_until_the_wish_changes() {
    let mut rig = Rig::idle(Config::full()).await;
    let plugins: kube::Api<Plugin> = rig.world.all();
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin", "metadata": { "name": "own" },
        "spec": { "driverName": "scripted.csi.example" } });
    rig.world.create(&plugins, object).await;
    rig.start().await;
    let (_plugin, _) = answered(&rig, "1s").await;
    ready(&rig, "own", "True").await;
    rig.world.patch(&plugins, "own", json!({ "spec": { "driverName": "typo.csi.example" } })).await;
    let other = |i: &Value| condition_reason(i, "Ready") == Some("OtherDriver");
    let told = rig.world.until(&rig.instances, "own", "refused", other).await;
    let said = serde_json::to_value(&told).unwrap();
    assert!(condition(&said, "Connected", "True") && condition(&said, "Probed", "True"), "{said:#}");
    time_passes(&rig, Rpc::GetPluginInfo, 6).await;
    assert_eq!(restarts(&rig).await, 0, "it was started again for its name");
    let after = rig.instances.get("own").await.unwrap();
    assert_eq!(after.metadata.resource_version, told.metadata.resource_version, "{:?}", after.status);
    rig.world.patch(&plugins, "own", json!({ "spec": { "driverName": "scripted.csi.example" } })).await;
    let put_right = tokio::time::Instant::now();
    ready(&rig, "own", "True").await;
    assert!(put_right.elapsed() < std::time::Duration::from_secs(2), "it was not asked at once");
    end_own(&rig).await;
}

/// It is told while it is refused for the first time, too, and once however often it is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_of_another_name_from_the_first_on_is_told_once_as_an_event() {
    let mut rig = Rig::idle(Config { goes_away: true, ..Config::full() }).await;
    rig.plugin_object(json!({ "driverName": "typo.csi.example" })).await;
    rig.start().await;
    rig.register().await;
    rig.not_ready("OtherDriver").await;
    let events = rig.events_until("OtherDriver").await;
    assert!(
        events.iter().any(|(_, note)| note.contains("spec.driverName wants \"typo.csi.example\"")),
        "{events:?}"
    );
    // At growing pauses, though it closes its connection after each call: from 50 ms, each twice the one before.
    rig.called(Rpc::GetPluginInfo, 8).await;
    let asked = rig.backend.calls_of(Rpc::GetPluginInfo);
    let gaps: Vec<_> = asked.windows(2).map(|w| w[1].started - w[0].started).collect();
    assert!(gaps.iter().any(|gap| *gap >= std::time::Duration::from_millis(1600)), "{gaps:?}");
    assert_eq!(told(&rig, "p", "OtherDriver").await, 1);
    let plugins: kube::Api<Plugin> = rig.world.all();
    rig.world.patch(&plugins, "scripted", json!({ "spec": { "driverName": "scripted.csi.example" } })).await;
    rig.ready().await;
    rig.finish().await;
}

/// Who answers the next call nobody could tell, so it is called no driver that is ready; and it is asked at growing pauses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_ends_each_connection_is_not_ready_and_told_why() {
    let mut rig = Rig::idle(Config { hangs_up: true, ..Config::full() }).await;
    rig.start().await;
    rig.register().await;
    rig.not_ready("ConnectionsEnd").await;
    rig.called(Rpc::GetPluginInfo, 8).await;
    let asked = rig.backend.calls_of(Rpc::GetPluginInfo);
    let gaps: Vec<_> = asked.windows(2).map(|w| w[1].started - w[0].started).collect();
    assert!(gaps.iter().any(|gap| *gap >= std::time::Duration::from_millis(800)), "{gaps:?}");
    rig.backend.configure(|config| config.hangs_up = false);
    rig.ready().await;
    rig.finish().await;
}

/// The wish changes in the middle of the questions, when it is neither well nor refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_is_refused_while_it_is_asked_who_it_is_does_not_serve() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.plugin_object(json!({ "driverName": "scripted.csi.example" })).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::NodeGetInfo, Answer::honest().hang(&gate));
    rig.start().await;
    rig.register().await;
    rig.in_flight(Rpc::NodeGetInfo, 1).await;
    let plugins: kube::Api<Plugin> = rig.world.all();
    rig.world.patch(&plugins, "scripted", json!({ "spec": { "driverName": "typo.csi.example" } })).await;
    // What the daemon is told after it has seen that.
    let second = rig.files.path().join("second.sock");
    rig.register_as("other", "q", second.clone()).await;
    let known = |i: &Value| condition_reason(i, "Ready") == Some("NoSocket");
    rig.world.until(&rig.instances, "q", "known", known).await;
    gate.open();
    rig.not_ready("OtherDriver").await;
    rig.world.patch(&plugins, "scripted", json!({ "spec": { "driverName": "scripted.csi.example" } })).await;
    rig.ready().await;
    rig.release_plugin("q").await;
    rig.finish().await;
}

/// While it is started again and does not say that it is ready, that it took too long stands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_never_says_ready_is_told_so_all_the_time() {
    let mut rig = Rig::idle(Config { ready: Some(false), ..Config::full() }).await;
    rig.start().await;
    let (mut plugin, at) = answered(&rig, "1s").await;
    let late = |i: &Value| condition_reason(i, "Ready") == Some("HealthTimeout");
    rig.world.until(&rig.instances, "own", "too late", late).await;
    let events = kube::runtime::watcher(rig.instances.clone(), kube::runtime::watcher::Config::default());
    let (seen, stop) =
        (Arc::<std::sync::Mutex<Vec<Value>>>::default(), tokio::sync::oneshot::channel::<()>());
    let watching = tokio::spawn({
        let seen = Arc::clone(&seen);
        events.take_until(stop.1).for_each(move |event| {
            let object = match event.unwrap() {
                kube::runtime::watcher::Event::Apply(object)
                | kube::runtime::watcher::Event::InitApply(object) => Some(object),
                _ => None,
            };
            seen.lock().unwrap().extend(object.map(|object| serde_json::to_value(object).unwrap()));
            std::future::ready(())
        })
    });
    for again in 1..=2 {
        plugin.kill().await;
        until(|| at.exists(), "it runs again").await;
        std::fs::remove_file(&at).unwrap();
        let asked = rig.count(Rpc::Probe);
        plugin.serve();
        rig.called(Rpc::Probe, asked + 1).await;
        let restarted = |a: &Value| a["status"]["tasks"][0]["restarts"].as_i64() > Some(again);
        rig.world.until(&rig.allocs, "own", "started again", restarted).await;
    }
    let instance = serde_json::to_value(rig.instances.get("own").await.unwrap()).unwrap();
    let why = "within 1 s Probe did not say ready (the plugin answers that it is not ready yet)";
    assert!(condition_message(&instance, "Ready").is_some_and(|m| m.contains(why)), "{instance:#}");
    drop(stop.0);
    watching.await.unwrap();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let reasons: Vec<_> = seen.iter().map(|i| condition_reason(i, "Ready")).collect();
    assert!(reasons.iter().all(|reason| *reason == Some("HealthTimeout")), "{reasons:?}");
    end_own(&rig).await;
}

/// A kernel that has no watch to give.
#[derive(Debug)]
struct Exhausted;

#[async_trait]
impl Watches for Exhausted {
    async fn appeared(&self, directory: &std::path::Path, _: &str) -> Result<(), WatchError> {
        let source = std::io::Error::from_raw_os_error(24);
        Err(WatchError::Refused { path: directory.to_owned(), source })
    }

    async fn changes(&self, directory: &std::path::Path) -> Result<BoxStream<'static, DirEvent>, WatchError> {
        let source = std::io::Error::from_raw_os_error(24);
        Err(WatchError::Refused { path: directory.to_owned(), source })
    }
}

/// Without a watch, who is there is found all the same, who comes later too, and neither is started again for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_without_watches_costs_no_plugin_its_life() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    let (_plugin, _) = answered(&rig, "3s").await;
    ready(&rig, "own", "True").await;
    rig.stop().await;
    rig.wrap = |machine| Machine { watches: Arc::new(Exhausted), ..machine };
    rig.plugin.stop().await;
    let probed = rig.count(Rpc::Probe);
    rig.start().await;
    rig.called(Rpc::Probe, probed + 1).await;
    rig.register().await;
    let unseen = |i: &Value| {
        let says = condition_message(i, "Ready").is_some_and(|m| m.contains("cannot be watched"));
        condition_reason(i, "Ready") == Some("WatchRefused") && says
    };
    rig.world.until(&rig.instances, "p", "not watched", unseen).await;
    rig.plugin.serve();
    rig.ready().await;
    assert!(condition(&ready(&rig, "own", "True").await, "Connected", "True"));
    assert_eq!(restarts(&rig).await, 0);
    end_own(&rig).await;
    rig.finish().await;
}

/// Issue: the last lines of its log, and in the allocation why it ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_driver_without_a_socket_wrote_is_told_with_its_end() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    let script = "echo 'FATAL cannot bind my socket: no license' >&2; exec sleep infinity";
    own_instance(&rig, json!(["/bin/sh", "-c", script]), "500ms").await;
    let why = "within 0.5 s its socket did not answer";
    let told_why = |a: &Value| {
        let task = &a["status"]["tasks"][0];
        let events = task["events"].as_array().cloned().unwrap_or_default();
        let unhealthy = |e: &&Value| e["reason"] == "Unhealthy" && e["message"].to_string().contains(why);
        let wrote = task["lastOutput"].as_str().is_some_and(|output| output.contains("FATAL cannot bind"));
        let ready = condition_message(a, "Ready").unwrap_or_default();
        wrote && events.iter().any(|e| unhealthy(&e)) && ready.contains(why)
    };
    rig.world.until(&rig.allocs, "own", "told why it ended", told_why).await;
    let says = |i: &Value| {
        let message = condition_message(i, "Ready").unwrap_or_default();
        let all = message.contains(why) && message.contains("wrote last: FATAL cannot bind");
        condition_reason(i, "Ready") == Some("HealthTimeout") && all
    };
    rig.world.until(&rig.instances, "own", "its last words", says).await;
    // It runs again, and is still not what it should be.
    let runs =
        |a: &Value| a["status"]["phase"] == "Running" && a["status"]["tasks"][0]["restarts"] != json!(0);
    let running = rig.world.until(&rig.allocs, "own", "runs again", runs).await;
    let running = serde_json::to_value(running).unwrap();
    assert!(condition_message(&running, "Ready").is_some_and(|m| m.contains(why)), "{running:#}");
    let events: kube::Api<k8s_openapi::api::events::v1::Event> = kube::Api::all(rig.world.0.clone());
    let warned = |e: &k8s_openapi::api::events::v1::Event| {
        let of_task = e.reason.as_deref() == Some("TaskExited") && e.type_.as_deref() == Some("Warning");
        of_task && e.note.as_deref().is_some_and(|note| note.contains(why))
    };
    let mut again = tokio::time::interval(std::time::Duration::from_millis(10));
    let end = tokio::time::Instant::now() + crate::support::node::DEADLINE;
    while !events.list(&kube::api::ListParams::default()).await.unwrap().iter().any(warned) {
        assert!(tokio::time::Instant::now() < end, "no warning of its end");
        again.tick().await;
    }
    end_own(&rig).await;
}

/// It ends while no daemon is there: that nobody asked for its end but its health is known to the next one, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_ended_for_its_health_is_not_taken_for_stopped_by_the_next_daemon() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    let command = json!(["/bin/sh", "-c", "trap '' TERM; exec sleep infinity"]);
    let task = json!({ "name": "plugin", "runtime": { "process": { "command": command } }, "stopGracePeriod": "2s",
        "csiPlugin": { "pluginName": "own", "role": "Monolith", "healthTimeout": "300ms" } });
    let alloc = rig.alloc("own", json!({ "tasks": [task] })).await;
    rig.admit_as("own", "own", &alloc).await;
    let ends = |a: &Value| a["status"]["tasks"][0]["state"] == "Stopping";
    rig.world.until(&rig.allocs, "own", "it is ended", ends).await;
    rig.kill().await;
    // The next one would end it for its health once more.
    let record = rig.place.data.path().join(format!("tasks/{}.plugin/exit.json", uid(&alloc)));
    until(|| record.exists(), "its shim has killed it").await;
    rig.start().await;
    let ended = |a: &Value| a["status"]["tasks"][0]["exitCode"] == 137;
    rig.world.until(&rig.allocs, "own", "killed", ended).await;
    // What was asked to end is told without a warning.
    let warned = |e: &k8s_openapi::api::events::v1::Event| {
        e.reason.as_deref() == Some("TaskExited") && e.type_.as_deref() == Some("Warning")
    };
    let events: kube::Api<k8s_openapi::api::events::v1::Event> = kube::Api::all(rig.world.0.clone());
    let ends = |e: &k8s_openapi::api::events::v1::Event| e.reason.as_deref() == Some("TaskExited");
    let mut again = tokio::time::interval(std::time::Duration::from_millis(10));
    let end = tokio::time::Instant::now() + crate::support::node::DEADLINE;
    let told = loop {
        let all = events.list(&kube::api::ListParams::default()).await.unwrap().items;
        if all.iter().any(ends) {
            break all;
        }
        assert!(tokio::time::Instant::now() < end, "its end was not told");
        again.tick().await;
    };
    assert!(told.iter().filter(|e| ends(e)).all(warned), "{told:#?}");
    end_own(&rig).await;
}

/// It is given the time to end that its task says, and no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_ended_for_its_health_has_the_grace_of_its_task() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    let command = json!(["/bin/sh", "-c", "trap '' TERM; exec sleep infinity"]);
    let task = json!({ "name": "plugin", "runtime": { "process": { "command": command } }, "stopGracePeriod": "100ms",
        "csiPlugin": { "pluginName": "own", "role": "Monolith", "healthTimeout": "300ms" } });
    let alloc = rig.alloc("own", json!({ "tasks": [task] })).await;
    rig.admit_as("own", "own", &alloc).await;
    let ended = |a: &Value| a["status"]["tasks"][0]["exitCode"] == 137;
    let record = rig.place.data.path().join(format!("tasks/{}.plugin/exit.json", uid(&alloc)));
    let mut ran = None;
    until(
        || {
            ran = std::fs::read(&record).ok().and_then(|r| serde_json::from_slice::<Value>(&r).ok());
            ran.is_some()
        },
        "it was killed",
    )
    .await;
    let ran = ran.unwrap();
    let took = ran["finished_ms"].as_i64().unwrap() - ran["started_ms"].as_i64().unwrap();
    assert!((400..4_000).contains(&took), "{ran}");
    rig.world.until(&rig.allocs, "own", "killed", ended).await;
    end_own(&rig).await;
}

/// A stopped one has no directory and no place in the registry, and comes back when it is wanted again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_instance_leaves_nothing_and_is_back_when_it_is_wanted() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    own_instance(&rig, json!(["/bin/sh", "-c", format!("exec {}", driver(&rig))]), "20s").await;
    ready(&rig, "own", "True").await;
    let sockets = || std::fs::read_dir(&rig.place.run).map_or(0, Iterator::count);
    assert_eq!(sockets(), 1);
    rig.world.patch(&rig.allocs, "own", json!({ "spec": { "stop": true } })).await;
    rig.world.status(&rig.allocs, "own", json!({ "pluginReleased": true })).await;
    let stopped =
        |i: &Value| condition_reason(i, "Ready") == Some("Stopped") && condition(i, "Connected", "False");
    rig.world.until(&rig.instances, "own", "stopped", stopped).await;
    until(|| sockets() == 0, "its directory is gone").await;
    rig.world.patch(&rig.allocs, "own", json!({ "spec": { "stop": false } })).await;
    rig.world.status(&rig.allocs, "own", json!({ "pluginReleased": false })).await;
    ready(&rig, "own", "True").await;
    end_own(&rig).await;
    until(|| sockets() == 0, "its directory is gone again").await;
}

/// The socket of another one, or the directory above all of them, is no place for what something else runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_something_else_runs_has_its_socket_elsewhere() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    own_instance(&rig, json!(["/bin/sh", "-c", format!("exec {}", driver(&rig))]), "20s").await;
    ready(&rig, "own", "True").await;
    let mut there = std::fs::read_dir(&rig.place.run).unwrap();
    let theirs = there.next().unwrap().unwrap().path().join("csi.sock");
    for (name, socket) in [("above", rig.place.run.join("mine.sock")), ("theirs", theirs.clone())] {
        let alloc = rig.serve_as("mine", name, socket).await;
        rig.admit_as("mine", name, &alloc).await;
        let refused = |a: &Value| a["status"].to_string().contains("have it listen elsewhere");
        rig.world.until(&rig.allocs, name, "refused", refused).await;
        rig.release_plugin(name).await;
        rig.world.delete(&rig.instances, name).await;
        assert!(theirs.exists(), "{name}: the directory of another one is gone");
    }
    rig.stop().await;
    rig.start().await;
    ready(&rig, "own", "True").await;
    assert_eq!(restarts(&rig).await, 0);
    end_own(&rig).await;
}

/// It was taken before such a place was refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_was_not_made_here_is_not_removed() {
    let mut rig = Rig::idle(Config::full()).await;
    let run = rig.files.path().join("run");
    std::fs::create_dir_all(run.join("another")).unwrap();
    let socket = run.join("mine.sock");
    let mut mine = Scripted::start(&rig.backend, Site::new(NODE_ID), &socket);
    rig.start().await;
    rig.register_as("mine", "mine", socket).await;
    ready(&rig, "mine", "True").await;
    rig.stop().await;
    rig.options.run_dir.clone_from(&run);
    rig.start().await;
    ready(&rig, "mine", "True").await;
    rig.release_plugin("mine").await;
    rig.world.delete(&rig.instances, "mine").await;
    rig.stop().await;
    assert!(run.join("another").exists(), "all directories of sockets are gone");
    mine.stop().await;
}

/// Over a connection that stays: only the heartbeat can see it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_sees_who_falls_ill_and_each_edge_is_told_once() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.options.heartbeat = std::time::Duration::from_millis(100);
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let probed = rig.count(Rpc::Probe);
    rig.called(Rpc::Probe, probed + 3).await;
    for edge in 1..=2 {
        let sick = format!("sick for the {edge}. time");
        rig.backend.always(Rpc::Probe, Answer::fail(Code::FailedPrecondition, &sick));
        let unwell = |i: &Value| condition(i, "Ready", "False") && i["status"].to_string().contains(&sick);
        rig.world.until(&rig.instances, "p", "unwell", unwell).await;
        // It is asked on, and that is nothing new.
        let probed = rig.count(Rpc::Probe);
        rig.called(Rpc::Probe, probed + 3).await;
        rig.backend.honest(Rpc::Probe);
        rig.ready().await;
        let counts = async || (told(&rig, "p", "ProbeFailed").await, told(&rig, "p", "PluginHealthy").await);
        let mut again = tokio::time::interval(std::time::Duration::from_millis(10));
        let end = tokio::time::Instant::now() + crate::support::node::DEADLINE;
        while counts().await != (edge, edge + 1) {
            assert!(tokio::time::Instant::now() < end, "{:?}", counts().await);
            again.tick().await;
        }
    }
    let connections: std::collections::BTreeSet<_> =
        rig.backend.calls_of(Rpc::Probe).iter().map(|call| call.connection).collect();
    assert_eq!(connections.len(), 1, "it had no other sign than its answers");
    let others = rig.backend.calls().iter().filter(|call| call.rpc == Rpc::NodeGetInfo).count();
    assert_eq!(others, 3, "at the start and at each return, and not with each heartbeat");
    rig.finish().await;
}

/// Obligation CO-IDEN-08: one that is well is asked whether it is once a heartbeat, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_well_is_probed_once_a_heartbeat() {
    let heartbeat = std::time::Duration::from_millis(400);
    let mut rig = Rig::idle(Config::full()).await;
    rig.options.heartbeat = heartbeat;
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let probed = rig.count(Rpc::Probe);
    let before = rig.backend.calls().len();
    rig.called(Rpc::Probe, probed + 5).await;
    let calls = rig.backend.calls().split_off(before);
    assert!(calls.iter().all(|call| call.rpc == Rpc::Probe), "{calls:?}");
    // A beat may come late, and then the next one is the sooner after it.
    let most = heartbeat * u32::try_from(calls.len() - 1).unwrap();
    let took = calls[calls.len() - 1].started - calls[0].started;
    assert!(took + heartbeat / 2 >= most, "{took:?} for {} beats: {calls:?}", calls.len() - 1);
    rig.finish().await;
}

/// A driver may be faster than the controllers, which make the object that it is told of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_is_well_before_it_is_admitted_is_told_of_once_it_is() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    let alloc = rig.serve_as("scripted", "p", rig.plugin.socket().to_owned()).await;
    rig.called(Rpc::NodeGetInfo, 1).await;
    // That it is known by then is seen by what its allocation says.
    let serves = |a: &Value| a["status"]["phase"] == "Running";
    rig.world.until(&rig.allocs, "p", "runs", serves).await;
    rig.admit_as("scripted", "p", &alloc).await;
    rig.ready().await;
    rig.events_until("PluginHealthy").await;
    assert_eq!(told(&rig, "p", "PluginHealthy").await, 1);
    rig.finish().await;
}

/// As `held` is: the allocation runs, and says what it does not do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_controllers_refuse_stands_in_what_the_allocation_says() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    for refusal in ["task plugin serves nobody: Plugin \"scripted\" takes no instances", ""] {
        rig.world.status(&rig.allocs, "p", json!({ "pluginRefused": refusal })).await;
        let says = |a: &Value| {
            condition(a, "Ready", "True") && condition_message(a, "Ready").unwrap_or_default() == refusal
        };
        rig.world.until(&rig.allocs, "p", refusal, says).await;
    }
    rig.finish().await;
}
