//! Plugin instances that are tasks of ours: late, never ready, in a crash loop; and what a restarted daemon says of them.
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use wharfline::api::Allocation;
use wharfline::csi::Rpc;

use crate::support::node::{
    NODE, NODE_ID, Rig, Special, condition, condition_message, condition_reason, uid,
};
use crate::support::scripted::{Config, Scripted, Site};

const WHARFLINE: &str = env!("CARGO_BIN_EXE_wharfline");

/// An instance of the plugin `own` that runs as a task of this node.
pub(crate) async fn own_instance(rig: &Rig, command: Value, health_timeout: &str) -> Allocation {
    let task = json!({ "name": "plugin", "runtime": { "process": { "command": command } },
        "csiPlugin": { "pluginName": "own", "role": "Monolith", "healthTimeout": health_timeout } });
    let alloc = rig.alloc("own", json!({ "tasks": [task] })).await;
    rig.admit_as("own", "own", &alloc).await;
    alloc
}

pub(crate) async fn end_own(rig: &Rig) {
    rig.world.delete(&rig.allocs, "own").await;
    rig.world.status(&rig.allocs, "own", json!({ "pluginReleased": true })).await;
    rig.world.until(&rig.allocs, "own", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "own").await;
    rig.world.delete(&rig.instances, "own").await;
}

pub(crate) async fn ready(rig: &Rig, name: &str, truth: &str) -> Value {
    let holds = |i: &Value| condition(i, "Ready", truth);
    serde_json::to_value(rig.world.until(&rig.instances, name, truth, holds).await).unwrap()
}

/// How often a reason was told of an object.
pub(crate) async fn told(rig: &Rig, name: &str, reason: &str) -> i32 {
    told_if(rig, name, |event| event.reason.as_deref() == Some(reason)).await
}

/// How often anything was told of an object that is what is asked for.
async fn told_if(
    rig: &Rig,
    name: &str,
    wanted: impl Fn(&k8s_openapi::api::events::v1::Event) -> bool,
) -> i32 {
    let api: kube::Api<k8s_openapi::api::events::v1::Event> = kube::Api::all(rig.world.0.clone());
    let all = api.list(&kube::api::ListParams::default()).await.unwrap();
    let of_it = |e: &&k8s_openapi::api::events::v1::Event| {
        wanted(e) && e.regarding.as_ref().is_some_and(|about| about.name.as_deref() == Some(name))
    };
    all.iter().filter(of_it).map(|e| e.series.as_ref().map_or(1, |series| series.count)).sum()
}

pub(crate) fn driver(rig: &Rig) -> String {
    format!("{WHARFLINE} csi dir --data-dir {}/drivers/dir", rig.place.data.path().display())
}

/// Obligation CO-PLUG-05.
/// Scenario A1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_whose_socket_comes_late_is_not_started_again() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    let late = format!(
        "while [ ! -e {0}/now ]; do sleep 0.1; done; exec {1}",
        rig.files.path().display(),
        driver(&rig)
    );
    own_instance(&rig, json!(["/bin/sh", "-c", late]), "20s").await;
    let waits = |i: &Value| condition_reason(i, "Connected") == Some("NoSocket");
    rig.world.until(&rig.instances, "own", "waits for its socket", waits).await;
    std::fs::write(rig.files.path().join("now"), "").unwrap();
    ready(&rig, "own", "True").await;
    let alloc = serde_json::to_value(rig.allocs.get("own").await.unwrap()).unwrap();
    assert_eq!(alloc["status"]["tasks"][0]["restarts"].as_i64().unwrap_or_default(), 0);
    assert_eq!(told(&rig, "own", "HealthTimeout").await, 0);
    end_own(&rig).await;
}

/// Obligation CO-PLUG-15.
/// Scenario A2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_is_never_ready_is_started_again_and_the_timeout_is_told_once() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    own_instance(&rig, json!(["/bin/sh", "-c", "exec sleep infinity"]), "300ms").await;
    let twice = |a: &Value| a["status"]["tasks"][0]["restarts"].as_i64() >= Some(2);
    rig.world.until(&rig.allocs, "own", "started again", twice).await;
    let instance = serde_json::to_value(rig.instances.get("own").await.unwrap()).unwrap();
    assert_eq!(condition_reason(&instance, "Ready"), Some("HealthTimeout"));
    let events = rig.events_until("HealthTimeout").await;
    let (_, note) = events.iter().find(|(reason, _)| reason == "HealthTimeout").unwrap();
    assert!(
        note.contains("within 0.3 s its socket did not answer") && note.contains("started again"),
        "{note}"
    );
    assert_eq!(told(&rig, "own", "HealthTimeout").await, 1);
    end_own(&rig).await;
}

/// One allocation with one volume of the plugin `own`, and a task in it.
pub(crate) async fn user_of_own(rig: &Rig) -> Value {
    let own = Special { spec: json!({ "plugin": "own" }), ..Special::default() };
    let volume = rig.ask("vol-1", &own).await;
    let status = rig.volume_up("vol-1").await.status.unwrap();
    let (handle, context) = (status.handle, status.context);
    let task = json!({ "name": "task", "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        "runtime": { "process": { "command": ["/bin/sh", "-c", "echo up >> /data/log && exec sleep infinity"] } } });
    let app = rig
        .alloc("app", json!({ "volumes": [{ "name": "data", "claimName": "data" }], "tasks": [task] }))
        .await;
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
        "metadata": { "name": "att-1" },
        "spec": { "volume": "vol-1", "volumeUid": uid(&volume), "nodeName": NODE, "plugin": "own",
            "claim": { "namespace": "default", "name": "data", "uid": "c" },
            "host": { "nodeName": NODE, "epoch": 1 }, "attachRequired": false, "stageRequired": false,
            "handle": handle, "volumeContext": context, "nodeId": NODE, "allocations": [uid(&app)],
            "capability": { "accessMode": "SingleNodeWriter" } } });
    rig.world.create(&rig.attachments, object).await;
    serde_json::to_value(rig.published("app").await).unwrap()
}

/// Scenarios A17, Q12: what it leaves at its socket is no obstacle to the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_in_a_crash_loop_leaves_its_users_alone_and_each_edge_is_told_once() {
    const CRASHES: i32 = 3;
    let mut rig = Rig::idle(Config::without_attach_and_stage()).await;
    rig.start().await;
    let die = rig.files.path().join("die");
    let until_told = format!(
        "{} & P=$!; while [ ! -e {die} ]; do sleep 0.05; done; rm {die}; kill -9 $P; exit 1",
        driver(&rig),
        die = die.display()
    );
    own_instance(&rig, json!(["/bin/sh", "-c", until_told]), "20s").await;
    ready(&rig, "own", "True").await;
    let app = user_of_own(&rig).await;
    for _ in 0..CRASHES {
        std::fs::write(&die, "").unwrap();
        ready(&rig, "own", "False").await;
        ready(&rig, "own", "True").await;
    }
    let after = serde_json::to_value(rig.allocs.get("app").await.unwrap()).unwrap();
    assert_eq!(after["status"], app["status"], "its user was disturbed");
    let path = app["status"]["volumes"][0]["path"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(format!("{path}/log")).unwrap(), "up\n");
    let mut again = tokio::time::interval(Duration::from_millis(10));
    while told(&rig, "own", "PluginHealthy").await < CRASHES + 1 {
        again.tick().await;
    }
    assert_eq!(told(&rig, "own", "PluginHealthy").await, CRASHES + 1);
    // Whatever of its end is seen first: the process, the connection, the socket.
    let unwell = |event: &k8s_openapi::api::events::v1::Event| {
        let kind = event.regarding.as_ref().and_then(|about| about.kind.as_deref());
        kind == Some("PluginInstance") && event.type_.as_deref() == Some("Warning")
    };
    assert_eq!(told_if(&rig, "own", unwell).await, CRASHES);
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    end_own(&rig).await;
    // An end that was asked for is no failure.
    while told(&rig, "own", "PluginStopped").await < 1 {
        again.tick().await;
    }
    assert_eq!(told_if(&rig, "own", unwell).await, CRASHES);
}

/// Scenario A14: what is known of a plugin that went on running is said by a restarted daemon, too, and is no news.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_daemon_finds_its_plugins_as_they_were_and_says_nothing_new() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.plugin.stop().await;
    rig.start().await;
    rig.register().await;
    rig.not_ready("NoSocket").await;
    rig.plugin.serve();
    rig.ready().await;
    rig.running().await;
    rig.events_until("PluginHealthy").await;
    let before = rig.instances.get("p").await.unwrap();
    let asked = rig.backend.calls_of(Rpc::Probe).len();
    rig.stop().await;
    rig.start().await;
    rig.called(Rpc::Probe, asked + 1).await;
    // Whatever it had to say of the plugin, it says before it uses it.
    rig.end_all().await;
    rig.running().await;
    let after = rig.instances.get("p").await.unwrap();
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version, "{:?}", after.status);
    rig.end_all().await;
    // What is told later comes later.
    rig.plugin.stop().await;
    rig.not_ready("NoSocket").await;
    let mut again = tokio::time::interval(Duration::from_millis(10));
    while told(&rig, "p", "NoSocket").await + told(&rig, "p", "ProbeFailed").await < 2 {
        again.tick().await;
    }
    assert_eq!(told(&rig, "p", "PluginHealthy").await, 1);
    rig.finish().await;
}

/// Its first driver runs on, connected, in a directory that is not at the path any more: the next one there is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_to_the_path_of_a_directory_that_was_moved_away_is_asked() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    let (place, away) = (rig.files.path().join("ext"), rig.files.path().join("ext.old"));
    let socket = place.join("csi.sock");
    std::fs::create_dir(&place).unwrap();
    let _first = Scripted::start(&rig.backend, Site::new("i-first"), &socket);
    rig.register_as("scripted", "q", socket.clone()).await;
    let called =
        |id: &'static str| move |i: &Value| i["status"]["nodeId"] == id && condition(i, "Ready", "True");
    rig.world.until(&rig.instances, "q", "the first serves", called("i-first")).await;
    let probed = rig.count(Rpc::Probe);
    std::fs::rename(&place, &away).unwrap();
    rig.called(Rpc::Probe, probed + 1).await;
    let serving = serde_json::to_value(rig.instances.get("q").await.unwrap()).unwrap();
    assert!(called("i-first")(&serving), "who is connected serves on: {serving}");
    std::fs::create_dir(&place).unwrap();
    let _second = Scripted::start(&rig.backend, Site::new("i-second"), &socket);
    rig.world.until(&rig.instances, "q", "the second serves", called("i-second")).await;
    rig.release_plugin("q").await;
    rig.world.delete(&rig.instances, "q").await;
    rig.stop().await;
}

/// Scenarios A9, A10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_instance_that_was_unwell_for_a_moment_does_not_take_over() {
    let mut rig = Rig::new(Config::full()).await;
    let served = |rig: &Rig, name: &str| {
        let calls = rig.backend.calls_of(Rpc::CreateVolume);
        calls.into_iter().find(|c| c.ask.volume() == Some(name)).unwrap().node
    };
    // The order is that of the objects, whose times are whole seconds.
    let born = rig.instances.get("p").await.unwrap().metadata.creation_timestamp.unwrap().0;
    let mut again = tokio::time::interval(Duration::from_millis(10));
    while jiff::Timestamp::now().as_second() <= born.as_second() {
        again.tick().await;
    }
    let socket = rig.files.path().join("second.sock");
    let mut second = Scripted::start(&rig.backend, Site::new("i-second"), &socket);
    rig.register_as("scripted", "q", socket).await;
    ready(&rig, "q", "True").await;
    rig.plugin.kill().await;
    ready(&rig, "p", "False").await;
    rig.plugin.serve();
    ready(&rig, "p", "True").await;
    rig.ask("one", &Special::default()).await;
    rig.volume_up("one").await;
    assert_eq!(served(&rig, "one"), "i-second", "the older one took over");

    // A restarted daemon knows the order, too, before it has seen any object.
    rig.stop().await;
    rig.start().await;
    let mut names = Vec::new();
    // Until it has asked the newer one, the older one serves.
    loop {
        let name = format!("two-{}", names.len());
        rig.ask(&name, &Special::default()).await;
        rig.volume_up(&name).await;
        names.push(name);
        if served(&rig, &names[names.len() - 1]) == "i-second" {
            break;
        }
        assert!(names.len() < 200, "the order was lost");
    }

    let left = tokio::time::Instant::now();
    second.kill().await;
    rig.ask("three", &Special::default()).await;
    rig.volume_up("three").await;
    assert_eq!(served(&rig, "three"), NODE_ID);
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
    names.extend(["one", "three"].map(str::to_owned));
    for name in &names {
        rig.end_volume(name).await;
    }
    rig.release_plugin("q").await;
    rig.finish().await;
}

/// The plugin `own` of a driver that writes its pid down, and ends with a word each time when a file comes, which this returns.
async fn mortal(rig: &Rig) -> PathBuf {
    let die = rig.files.path().join("die");
    let until_told = format!(
        "{} & P=$!; echo $P > {die}.pid; while [ ! -e {die} ]; do sleep 0.05; done; rm {die}; kill -9 $P; \
         echo out of luck >&2; exit 3",
        driver(rig),
        die = die.display()
    );
    own_instance(rig, json!(["/bin/sh", "-c", until_told]), "20s").await;
    die
}

/// What is said of a driver that did not answer for a while, though it ran; it goes on then.
async fn silenced(rig: &Rig, die: &std::path::Path) -> Value {
    let pid = std::fs::read_to_string(die.with_extension("pid")).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let silent = ready(rig, "own", "False").await;
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    silent
}

/// It is well in between, and nobody who looks then is told that all is fine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_gets_ready_and_dies_again_is_not_steady_before_it_has_run_on() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.options.long_run = Duration::from_secs(5);
    rig.start().await;
    let die = mortal(&rig).await;
    let of_steady = |i: &Value| condition_reason(i, "Steady").map(str::to_owned);
    for _ in 0..2 {
        let well = ready(&rig, "own", "True").await;
        assert_eq!(of_steady(&well), None, "it has ended once at most: {well:#}");
        std::fs::write(&die, "").unwrap();
        ready(&rig, "own", "False").await;
    }
    let well = ready(&rig, "own", "True").await;
    assert_eq!(of_steady(&well).as_deref(), Some("CrashLoop"), "{well:#}");
    let said = condition_message(&well, "Steady").unwrap();
    let parts =
        ["none of its last 2 runs went well", "exited with code 3", "it wrote last: ", " | out of luck"];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    // The next daemon has not seen it end.
    rig.stop().await;
    rig.start().await;
    let steady = |i: &Value| of_steady(i).as_deref() == Some("Steady") && condition(i, "Steady", "True");
    let steady = rig.world.until(&rig.instances, "own", "steady", steady).await;
    let since = steady.status.as_ref().and_then(|status| status.since).unwrap();
    let conditions = steady.status.unwrap().conditions;
    let told = conditions.iter().find(|c| c.kind == "Steady").and_then(|c| c.last_transition_time).unwrap();
    assert!(told.0 >= since.0 + rig.options.long_run, "it was called steady after {:#}", told.0 - since.0);
    // It ends once since, and gets up again: neither of both is a third end in a row.
    std::fs::write(&die, "").unwrap();
    for truth in ["False", "True"] {
        let once = ready(&rig, "own", truth).await;
        assert!(condition(&once, "Steady", "True"), "it ended once since: {once:#}");
    }
    end_own(&rig).await;
}

/// Each of two daemons sees one end, and that makes two in a row; once it was steady, the next daemon has heard of none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ends_of_a_driver_that_two_daemons_saw_are_counted_together_until_it_was_steady() {
    let mut rig = Rig::idle(Config::full()).await;
    (rig.options.long_run, rig.options.heartbeat) = (Duration::from_secs(4), Duration::from_millis(100));
    rig.start().await;
    let die = mortal(&rig).await;
    ready(&rig, "own", "True").await;
    std::fs::write(&die, "").unwrap();
    ready(&rig, "own", "False").await;
    ready(&rig, "own", "True").await;
    rig.kill().await;
    rig.start().await;
    std::fs::write(&die, "").unwrap();
    ready(&rig, "own", "False").await;
    let well = ready(&rig, "own", "True").await;
    assert_eq!(condition_reason(&well, "Steady"), Some("CrashLoop"), "{well:#}");
    // The next one has it from the one before, with how it ended.
    rig.kill().await;
    rig.start().await;
    rig.world.until(&rig.instances, "own", "steady", |i| condition(i, "Steady", "True")).await;
    rig.kill().await;
    rig.start().await;
    let silent = silenced(&rig, &die).await;
    assert!(condition(&silent, "Steady", "True"), "it has not ended since: {silent:#}");
    std::fs::write(&die, "").unwrap();
    for truth in ["False", "True"] {
        let once = ready(&rig, "own", truth).await;
        assert!(condition(&once, "Steady", "True"), "it ended once since: {once:#}");
    }
    end_own(&rig).await;
}

/// Ends from before are none of now: long after them a driver does not answer for a while, and ends by nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_is_steady_again_stays_so_when_it_does_not_answer_for_once() {
    let mut rig = Rig::idle(Config::full()).await;
    (rig.options.long_run, rig.options.heartbeat) = (Duration::from_secs(4), Duration::from_millis(100));
    rig.start().await;
    let die = mortal(&rig).await;
    for _ in 0..2 {
        ready(&rig, "own", "True").await;
        std::fs::write(&die, "").unwrap();
        ready(&rig, "own", "False").await;
    }
    rig.world.until(&rig.instances, "own", "in a loop", |i| condition(i, "Steady", "False")).await;
    rig.world.until(&rig.instances, "own", "steady", |i| condition(i, "Steady", "True")).await;
    let silent = silenced(&rig, &die).await;
    assert!(condition(&silent, "Steady", "True"), "it has not ended: {silent:#}");
    let back = ready(&rig, "own", "True").await;
    assert!(condition(&back, "Steady", "True"), "{back:#}");
    end_own(&rig).await;
}

/// What is told of an instance, of which its process says more than its connection.
async fn said_of(rig: &Rig, name: &str) -> Vec<(String, String)> {
    let api: kube::Api<k8s_openapi::api::events::v1::Event> = kube::Api::all(rig.world.0.clone());
    let all = api.list(&kube::api::ListParams::default()).await.unwrap().items;
    let of_it = |e: &k8s_openapi::api::events::v1::Event| {
        e.regarding
            .as_ref()
            .is_some_and(|o| o.kind.as_deref() == Some("PluginInstance") && o.name.as_deref() == Some(name))
    };
    let words =
        |e: k8s_openapi::api::events::v1::Event| (e.reason.unwrap_or_default(), e.note.unwrap_or_default());
    all.into_iter().filter(of_it).map(words).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_driver_is_told_as_that_and_not_as_the_end_of_its_connection() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    let die = mortal(&rig).await;
    for _ in 0..3 {
        ready(&rig, "own", "True").await;
        std::fs::write(&die, "").unwrap();
        ready(&rig, "own", "False").await;
    }
    ready(&rig, "own", "True").await;
    let events = said_of(&rig, "own").await;
    assert!(
        events.iter().all(|(word, _)| ["ProcessEnded", "PluginHealthy"].contains(&word.as_str())),
        "{events:?}"
    );
    assert!(
        events.iter().any(|(word, note)| word == "ProcessEnded" && note.contains("exited with code 3")),
        "{events:?}"
    );
    // It runs on, and whoever is connected is let down.
    let pid = std::fs::read_to_string(die.with_extension("pid")).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    rig.events_until("ProbeFailed").await;
    end_own(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_never_came_up_is_told_of_once() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.start().await;
    own_instance(&rig, json!(["/no/such/driver"]), "20s").await;
    let restarts = |a: &Value| a["status"]["tasks"][0]["restarts"].as_u64().is_some_and(|n| n >= 2);
    rig.world.until(&rig.allocs, "own", "started again and again", restarts).await;
    rig.events_until("ProcessEnded").await;
    let events = said_of(&rig, "own").await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(events[0].1.contains("/no/such/driver: No such file"), "{events:?}");
    end_own(&rig).await;
}
