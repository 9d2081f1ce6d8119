//! Plugins that come late, go, return as others, or say what they must not.
use std::collections::BTreeSet;

use kube::Api;
use serde_json::{Value, json};
use wharfline::csi::proto::{CreateVolumeResponse, Volume};
use wharfline::csi::{Code, Rpc};

use crate::support::node::{NODE_ID, Rig, Special, condition};
use crate::support::scripted::{Answer, Config, Gate, Logged, Scripted, Site};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_is_not_there_is_waited_for_and_used_within_a_second() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.plugin.stop().await;
    rig.start().await;
    rig.register().await;
    rig.ask("vol-1", &Special::default()).await;
    let waits = |v: &Value| v["status"]["provisioning"]["reason"] == "PluginNotReady";
    rig.world.until(&rig.volumes, "vol-1", "waiting for the plugin", waits).await;
    assert!(rig.backend.calls().is_empty());
    let came = tokio::time::Instant::now();
    rig.plugin.serve();
    rig.volume_up("vol-1").await;
    let called = rig.backend.calls_of(Rpc::CreateVolume)[0].started;
    assert!(called - came < std::time::Duration::from_secs(1), "{:?}", called - came);
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_where_the_socket_should_be_is_told() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.plugin.stop().await;
    let socket = rig.plugin.socket().to_owned();
    rig.start().await;
    rig.register().await;
    let clear = || {
        std::fs::remove_file(&socket).or_else(|_| std::fs::remove_dir(&socket)).ok();
        assert!(!socket.exists());
    };
    for (make, reason, says) in [
        ("nothing", "NoSocket", "nothing is there yet"),
        ("directory", "NotASocket", "a directory"),
        ("file", "NotASocket", "a regular file"),
        ("silence", "ProbeFailed", "nobody answers"),
    ] {
        clear();
        match make {
            "directory" => std::fs::create_dir(&socket).unwrap(),
            "file" => std::fs::write(&socket, "x").unwrap(),
            "silence" => drop(std::os::unix::net::UnixListener::bind(&socket).unwrap()),
            _ => {}
        }
        let (path, told) =
            (socket.display().to_string(), |c: &Value| c["message"].as_str().unwrap_or_default().to_owned());
        let holds = |i: &Value| {
            let all = i["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let of = |kind: &str| all.iter().find(|c| c["type"] == kind).cloned().unwrap_or_default();
            ["Connected", "Ready"].iter().all(|kind| {
                let condition = of(kind);
                condition["reason"] == reason
                    && told(&condition).contains(says)
                    && told(&condition).contains(&path)
            })
        };
        rig.world.until(&rig.instances, "p", says, holds).await;
    }
    clear();
    rig.plugin.serve();
    rig.ready().await;
    let events = rig.events_until("PluginHealthy").await;
    assert_eq!(events.iter().filter(|(reason, _)| reason == "NoSocket").count(), 1, "{events:?}");
    rig.finish().await;
}

/// Obligations CO-ERR-02, CO-ERR-13, CO-ERR-14, CO-PLUG-16.
/// Scenarios B114, Q12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_killed_in_a_call_gets_the_same_call_when_it_is_back() {
    let mut rig = Rig::new(Config::full()).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::NodeStageVolume, Answer::honest().after_effect().hang(&gate));
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    rig.in_flight(Rpc::NodeStageVolume, 1).await;
    rig.plugin.kill().await;
    rig.plugin.serve();
    rig.published("app").await;
    let calls = rig.backend.calls_of(Rpc::NodeStageVolume);
    assert!(calls.len() >= 2 && calls.windows(2).all(|w| w[0].ask == w[1].ask));
    rig.end_all().await;
    rig.finish().await;
}

/// Obligations CO-PLUG-16, CO-IDEN-02.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_returns_as_another_version_is_read_anew_and_mounts_are_left_alone() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    let (calls, mounts) = (rig.backend.order(), rig.mounted());
    rig.plugin.kill().await;
    rig.backend.configure(|c| c.vendor_version = "2.0.0".into());
    rig.plugin.serve();
    let newer = |i: &Value| i["status"]["provider"]["version"] == "2.0.0";
    rig.world.until(&rig.instances, "p", "the new version", newer).await;
    rig.ready().await;
    assert_eq!((rig.backend.order(), rig.mounted()), (calls, mounts));
    rig.end_all().await;
    rig.finish().await;
}

/// Obligation CO-PLUG-05.
/// Scenarios A3, B112. Until it says that it is ready, it is asked for no volume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_is_not_ready_is_asked_again() {
    let mut rig = Rig::idle(Config { ready: Some(false), ..Config::full() }).await;
    rig.start().await;
    rig.register().await;
    rig.not_ready("Starting").await;
    rig.ask("vol-1", &Special::default()).await;
    let probes = rig.count(Rpc::Probe);
    rig.called(Rpc::Probe, probes + 2).await;
    assert_eq!(rig.count(Rpc::CreateVolume), 0);
    rig.backend.configure(|c| c.ready = Some(true));
    rig.volume_up("vol-1").await;
    rig.ready().await;
    assert_eq!(rig.count(Rpc::CreateVolume), 1);
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-PLUG-17.
/// Scenario A55. A target that was not unpublished when the daemon and its plugin went is unpublished once both are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_unpublished_is_when_daemon_and_plugin_are_back() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    for _ in 0..2 {
        rig.backend.next(Rpc::NodeUnpublishVolume, Answer::fail(Code::Internal, "target is busy"));
    }
    rig.world.delete(&rig.allocs, "app").await;
    rig.called(Rpc::NodeUnpublishVolume, 1).await;
    let mounted = rig.mounted();
    rig.plugin.kill().await;
    rig.kill().await;
    rig.start().await;
    let away = |i: &Value| condition(i, "Connected", "False");
    rig.world.until(&rig.instances, "p", "it is away", away).await;
    assert_eq!(rig.mounted(), mounted, "it is still there, and nobody else takes it down");
    rig.plugin.serve();
    rig.ready().await;
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    assert!(rig.count(Rpc::NodeUnpublishVolume) >= 2);
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

async fn refused(config: Config, node_id: &str, reason: &str) {
    refused_at(config, Site::new(node_id), reason).await;
}

async fn refused_at(config: Config, site: Site, reason: &str) {
    let mut rig = Rig::idle(config).await;
    rig.plugin.kill().await;
    let socket = rig.plugin.socket().to_owned();
    rig.plugin = Scripted::start(&rig.backend, site, socket);
    rig.start().await;
    rig.register().await;
    rig.not_ready(reason).await;
    rig.ask("vol-1", &Special::default()).await;
    let waits = |v: &Value| v["status"]["provisioning"]["reason"] == "PluginNotReady";
    rig.world.until(&rig.volumes, "vol-1", "not served", waits).await;
    assert_eq!(rig.count(Rpc::CreateVolume), 0);
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    rig.finish().await;
}

/// Obligation CO-IDEN-01.
/// Scenarios A4, A5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_breaks_the_rules_is_not_used_and_the_reason_is_told() {
    refused(Config { name: String::new(), ..Config::full() }, NODE_ID, "IllegalPluginName").await;
    refused(Config { name: "under_score/slash".into(), ..Config::full() }, NODE_ID, "IllegalPluginName")
        .await;
    refused(Config::full(), "", "IllegalNodeID").await;
    refused(Config { max_volumes: -1, ..Config::full() }, NODE_ID, "IllegalVolumeLimit").await;
}

/// Obligation CO-NODE-11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_plugin_calls_its_node_has_a_length_and_is_kept_with_its_limit_and_place() {
    for (node_id, max_volumes, reason) in [
        ("n".repeat(257), 0, "IllegalNodeID"),
        (String::new(), 0, "IllegalNodeID"),
        (NODE_ID.to_owned(), -1, "IllegalVolumeLimit"),
    ] {
        refused(Config { max_volumes, ..Config::full() }, &node_id, reason).await;
    }
    let mut rig = Rig::idle(Config { max_volumes: 7, ..Config::full() }).await;
    rig.plugin.kill().await;
    let (most, socket) = ("n".repeat(256), rig.plugin.socket().to_owned());
    let topology = std::iter::once(("rack.example/zone".to_owned(), "z-1".to_owned())).collect();
    rig.plugin = Scripted::start(&rig.backend, Site { topology, ..Site::new(&most) }, socket);
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    // Neither it nor the daemon that asked it is there any more.
    rig.plugin.stop().await;
    rig.not_ready("NoSocket").await;
    rig.kill().await;
    rig.start().await;
    rig.ask("vol-1", &Special::default()).await;
    let waits = |v: &Value| v["status"]["provisioning"]["reason"] == "PluginNotReady";
    rig.world.until(&rig.volumes, "vol-1", "waiting for the plugin", waits).await;
    let kept = serde_json::to_value(rig.instances.get("p").await.unwrap()).unwrap()["status"].clone();
    assert_eq!((&kept["nodeId"], &kept["maxVolumes"]), (&json!(most), &json!(7)));
    assert_eq!(kept["topology"], json!({ "rack.example/zone": "z-1" }));
    rig.plugin.serve();
    rig.volume_up("vol-1").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-NODE-12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_is_told_in_another_form_is_not_believed() {
    for (key, value) in [("a b", "c"), ("Up.example/zone", "c"), ("zone", "a/b")] {
        let topology = std::iter::once((key.to_owned(), value.to_owned())).collect();
        refused_at(Config::full(), Site { topology, ..Site::new(NODE_ID) }, "IllegalTopology").await;
    }
}

/// Obligation CO-NODE-10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_tells_nothing_of_its_node_serves_unless_it_attaches() {
    let mute = || Answer::fail(Code::Unimplemented, "no such call");
    let mut rig = Rig::idle(Config::without_attach_and_stage()).await;
    rig.backend.always(Rpc::NodeGetInfo, mute());
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    assert_eq!(rig.count(Rpc::NodeGetInfo), 1, "before anything is placed there");
    rig.running().await;
    rig.end_all().await;
    rig.finish().await;
    let mut rig = Rig::idle(Config::full()).await;
    rig.backend.always(Rpc::NodeGetInfo, mute());
    rig.start().await;
    rig.register().await;
    rig.not_ready("NodeGetInfoFailed").await;
    rig.backend.honest(Rpc::NodeGetInfo);
    rig.ready().await;
    rig.finish().await;
    let mut rig = Rig::idle(Config::full()).await;
    rig.backend.always(Rpc::NodeGetCapabilities, mute());
    rig.start().await;
    rig.register().await;
    let told = serde_json::to_value(rig.not_ready("NoNodeService").await).unwrap().to_string();
    assert!(told.contains("the driver has no node service, which its role asks for"), "{told}");
    rig.backend.honest(Rpc::NodeGetCapabilities);
    rig.ready().await;
    rig.finish().await;
}

/// Obligation CO-NODE-02: what was done is undone, by the record of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_staged_is_unstaged_though_its_driver_says_no_more_that_it_stages() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.plugin.kill().await;
    rig.backend.configure(|c| {
        c.vendor_version = "2.0.0".into();
        c.node.clear();
    });
    rig.plugin.serve();
    let newer = |i: &Value| i["status"]["provider"]["version"] == "2.0.0" && condition(i, "Ready", "True");
    rig.world.until(&rig.instances, "p", "the new version", newer).await;
    rig.kill().await;
    rig.start().await;
    rig.ready().await;
    rig.end_all().await;
    assert_eq!((rig.count(Rpc::NodeStageVolume), rig.count(Rpc::NodeUnstageVolume)), (1, 1));
    rig.finish().await;
}

/// It is that volume's alone: all others, and who is to come by them, go on.
/// Obligation CO-CTRL-08.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_without_an_id_is_held_against_nothing_but_that_volume() {
    let rig = Rig::new(Config::full()).await;
    let nameless = CreateVolumeResponse { volume: Some(Volume::default()) };
    rig.backend.always(Rpc::CreateVolume, Answer::reply(&nameless));
    rig.ask("vol-1", &Special::default()).await;
    let failed = |v: &Value| v["status"]["provisioning"]["reason"] == "CreateVolumeUncertain";
    let told = rig.world.until(&rig.volumes, "vol-1", "told", failed).await.status.unwrap();
    let said = told.provisioning.unwrap().message;
    assert!(said.contains("the volume has no id") && said.contains("must be corrected"), "{said}");
    rig.ready().await;
    rig.backend.honest(Rpc::CreateVolume);
    rig.volume_up("vol-1").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-IDEN-01.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_driver_than_the_one_wanted_is_not_used_until_the_wish_changes() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.plugin_object(json!({ "driverName": "other.csi.example" })).await;
    rig.start().await;
    rig.register().await;
    rig.not_ready("OtherDriver").await;
    let plugins: kube::Api<wharfline::api::Plugin> = rig.world.all();
    rig.world.patch(&plugins, "scripted", json!({ "spec": { "driverName": "scripted.csi.example" } })).await;
    rig.ready().await;
    rig.finish().await;
}

/// The wish, and whose driver the volumes are of, hold for what is connected already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_is_not_wanted_any_more_is_let_go_while_it_serves() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.plugin_object(json!({})).await;
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let plugins: kube::Api<wharfline::api::Plugin> = rig.world.all();
    for (name, takes) in [("other.csi.example", false), ("scripted.csi.example", true)] {
        let status = json!({ "status": { "driverName": name } });
        let patch = kube::api::Patch::Merge(&status);
        plugins.patch_status("scripted", &kube::api::PatchParams::default(), &patch).await.unwrap();
        if takes {
            rig.ready().await;
        } else {
            rig.not_ready("OtherDriver").await;
        }
    }
    rig.finish().await;
}

/// Obligation CO-IDEN-02.
/// Any driver answers OK to the deletion of an id that it never knew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_driver_than_that_of_the_volumes_is_not_asked_anything_about_them() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.plugin_object(json!({})).await;
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    // As the plugins controller does with the first volume.
    let plugins: kube::Api<wharfline::api::Plugin> = rig.world.all();
    let status = json!({ "status": { "driverName": "scripted.csi.example" } });
    let patch = kube::api::Patch::Merge(&status);
    plugins.patch_status("scripted", &kube::api::PatchParams::default(), &patch).await.unwrap();
    rig.plugin.kill().await;
    rig.backend.configure(|c| c.name = "other.csi.example".into());
    rig.plugin.serve();
    rig.world.delete(&rig.volumes, "vol-1").await;
    rig.not_ready("OtherDriver").await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 0);
    rig.plugin.kill().await;
    rig.backend.configure(|c| c.name = "scripted.csi.example".into());
    rig.plugin.serve();
    rig.world.until(&rig.volumes, "vol-1", "deleted", |v| v["status"]["exists"] == "Down").await;
    rig.world.let_go(&rig.volumes, "vol-1").await;
    assert_eq!(rig.count(Rpc::DeleteVolume), 1);
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_listens_at_the_path_now_is_asked_while_the_one_before_still_serves() {
    let rig = Rig::new(Config::full()).await;
    let newer = Scripted::start(&rig.backend, Site::new("i-newer"), rig.plugin.socket());
    is_asked(rig, newer).await;
}

/// The one that took the path is known, and all of them go.
async fn is_asked(mut rig: Rig, mut newer: Scripted) {
    let newer_id = |i: &Value| i["status"]["nodeId"] == "i-newer";
    rig.world.until(&rig.instances, "p", "the newer one", newer_id).await;
    newer.stop().await;
    rig.plugin.kill().await;
    rig.plugin.serve();
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_replaced_while_the_one_before_is_asked_is_not_missed() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.plugin_object(json!({})).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::NodeGetInfo, Answer::honest().hang(&gate));
    rig.start().await;
    rig.register().await;
    let asked = |calls: &[Logged]| calls.iter().any(|c| c.ask.rpc() == Rpc::NodeGetInfo);
    rig.backend.until("it is asked", asked).await;
    let newer = Scripted::start(&rig.backend, Site::new("i-newer"), rig.plugin.socket());
    gate.open();
    is_asked(rig, newer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_healthy_instance_serves_and_the_older_takes_over() {
    let rig = Rig::new(Config::full()).await;
    let served = |name: &str| {
        let calls = rig.backend.calls_of(Rpc::CreateVolume);
        calls.into_iter().find(|c| c.ask.volume() == Some(name)).unwrap().node
    };
    rig.ask("one", &Special::default()).await;
    rig.volume_up("one").await;
    assert_eq!(served("one"), NODE_ID);
    let socket = rig.files.path().join("second.sock");
    let mut second = Scripted::start(&rig.backend, Site::new("i-second"), &socket);
    rig.register_as("scripted", "q", socket).await;
    rig.world
        .until(&rig.instances, "q", "ready", |i| crate::support::node::condition(i, "Ready", "True"))
        .await;
    rig.ask("two", &Special::default()).await;
    rig.volume_up("two").await;
    assert_eq!(served("two"), "i-second");
    second.stop().await;
    rig.world
        .until(&rig.instances, "q", "not ready", |i| crate::support::node::condition(i, "Ready", "False"))
        .await;
    rig.ask("three", &Special::default()).await;
    rig.volume_up("three").await;
    assert_eq!(served("three"), NODE_ID);
    for name in ["one", "two", "three"] {
        rig.end_volume(name).await;
    }
    rig.release_plugin("q").await;
    rig.finish().await;
}

/// Obligation CO-GEN-34: what became of it is in doubt, so that the same is asked, and not before the first has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_process_died_is_made_again_at_another_one() {
    let rig = Rig::new(Config::full()).await;
    let socket = rig.files.path().join("second.sock");
    let mut second = Scripted::start(&rig.backend, Site::new("i-second"), &socket);
    rig.register_as("scripted", "q", socket).await;
    rig.world.until(&rig.instances, "q", "ready", |i| condition(i, "Ready", "True")).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().after_effect().hang(&gate));
    rig.ask("one", &Special::default()).await;
    rig.in_flight(Rpc::CreateVolume, 1).await;
    second.stop().await;
    rig.volume_up("one").await;
    let calls = rig.backend.calls_of(Rpc::CreateVolume);
    let asked: Vec<_> = calls.iter().map(|call| call.node.as_str()).collect();
    assert_eq!(asked, ["i-second", NODE_ID]);
    assert_eq!(calls[0].ask, calls[1].ask);
    assert!(calls[0].ended.is_some_and(|(ended, _)| ended <= calls[1].started), "{calls:?}");
    rig.end_volume("one").await;
    rig.release_plugin("q").await;
    rig.finish().await;
}

/// Over which connection each of these calls came: two processes of one driver say the same of the node.
fn over(rig: &Rig, rpc: Rpc) -> Vec<u64> {
    rig.backend.calls_of(rpc).into_iter().map(|call| call.connection).collect()
}

/// Another process of the driver, which is used for what is new from now on.
async fn another(rig: &Rig) -> Scripted {
    let socket = rig.files.path().join("second.sock");
    let second = Scripted::start(&rig.backend, Site::new(NODE_ID), &socket);
    rig.register_as("scripted", "q", socket).await;
    rig.world.until(&rig.instances, "q", "ready", |i| condition(i, "Ready", "True")).await;
    rig.ask("two", &Special::default()).await;
    rig.volume_up("two").await;
    second
}

/// The first process of the driver stops, for the other one is there.
async fn stop_first(rig: &Rig) {
    rig.world.delete(&rig.allocs, "p").await;
    rig.world.status(&rig.allocs, "p", json!({ "pluginReleased": true })).await;
}

async fn first_is(rig: &Rig, phase: &str) {
    rig.world.until(&rig.allocs, "p", phase, |a| a["status"]["phase"] == phase).await;
}

/// The first one comes back, as every test leaves it.
async fn first_again(rig: Rig) {
    rig.world.let_go(&rig.allocs, "p").await;
    let instances: Api<wharfline::api::PluginInstance> = rig.world.all();
    rig.world.delete(&instances, "p").await;
    rig.register().await;
    rig.ready().await;
    rig.release_plugin("q").await;
    rig.finish().await;
}

/// A call that was given up may be at work still in the process that got it, of which another one knows nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_asked_about_a_volume_is_asked_on_until_it_answers() {
    let rig = Rig::new(Config::full()).await;
    rig.deadline(Rpc::NodeStageVolume, "1s").await;
    let gate = Gate::new();
    rig.backend.always(Rpc::NodeStageVolume, Answer::honest().hang(&gate));
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    rig.in_flight(Rpc::NodeStageVolume, 1).await;
    let second = another(&rig).await;
    let (first, next) = (over(&rig, Rpc::NodeStageVolume)[0], over(&rig, Rpc::CreateVolume)[1]);
    assert_ne!(first, next, "what is new goes to the new one");
    rig.in_flight(Rpc::NodeStageVolume, 3).await;
    gate.open();
    rig.published("app").await;
    let staged = over(&rig, Rpc::NodeStageVolume);
    assert!(staged.iter().all(|connection| *connection == first), "{staged:?}");
    assert_eq!(over(&rig, Rpc::NodePublishVolume), [next], "it has answered");
    stop_first(&rig).await;
    first_is(&rig, "Stopped").await;
    rig.end_volume("two").await;
    rig.end_all().await;
    assert_eq!(over(&rig, Rpc::NodeUnstageVolume), [next], "the one that is there takes it down");
    drop(second);
    first_again(rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_under_way_ends_where_it_was_sent_before_its_plugin_stops() {
    let rig = Rig::new(Config::full()).await;
    let gate = Gate::new();
    rig.backend.next(Rpc::CreateVolume, Answer::honest().hang(&gate));
    rig.ask("one", &Special::default()).await;
    rig.in_flight(Rpc::CreateVolume, 1).await;
    let second = another(&rig).await;
    stop_first(&rig).await;
    first_is(&rig, "Stopping").await;
    // Time for a stop that would not wait: another volume comes and goes.
    rig.end_volume("two").await;
    first_is(&rig, "Stopping").await;
    gate.open();
    rig.volume_up("one").await;
    first_is(&rig, "Stopped").await;
    assert_eq!(rig.count(Rpc::CreateVolume), 2, "once each");
    rig.end_volume("one").await;
    drop(second);
    first_again(rig).await;
}

/// Go's servers close a connection that is old, whatever is going on, and some drivers compress.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_compresses_and_closes_each_connection_serves_like_any_other() {
    let rig = Rig::new(Config { gzip: true, goes_away: true, ..Config::full() }).await;
    let since = |i: &Value| {
        i["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| c["lastTransitionTime"].clone())
            .collect::<Vec<_>>()
    };
    let before = since(&serde_json::to_value(rig.ready().await).unwrap());
    // Not even an end in the middle of the question makes it unwell.
    rig.backend.next(Rpc::Probe, Answer::cut());
    rig.running().await;
    rig.end_all().await;
    let connections: BTreeSet<_> = rig.backend.calls().iter().map(|c| c.connection).collect();
    assert!(connections.len() > 5, "{connections:?}");
    assert_eq!(since(&serde_json::to_value(rig.ready().await).unwrap()), before, "it was ready all the time");
    // A call that crosses the end of its connection may be in doubt and is repeated; the plugin is well all the time.
    let events = rig.events_until("PluginHealthy").await;
    let unwell = |reason: &str| reason.starts_with("Plugin") && reason != "PluginHealthy";
    assert!(!events.iter().any(|(reason, _)| unwell(reason)), "{events:?}");
    rig.finish().await;
}

/// Whoever may make allocations may call one a plugin; it gets no volume and no secret before the controllers admit it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_was_not_admitted_is_asked_who_it_is_and_no_more() {
    let mut rig = Rig::new(Config::full()).await;
    let socket = rig.files.path().join("second.sock");
    let mut second = Scripted::start(&rig.backend, Site::new("i-second"), &socket);
    let alloc = rig.serve_as("scripted", "q", socket).await;
    let known =
        |calls: &[Logged]| calls.iter().any(|c| c.node == "i-second" && c.ask.rpc() == Rpc::NodeGetInfo);
    rig.backend.until("it is known", known).await;
    let served = |rig: &Rig, name: &str| {
        let calls = rig.backend.calls_of(Rpc::CreateVolume);
        calls.into_iter().find(|c| c.ask.volume() == Some(name)).unwrap().node
    };
    // The newest healthy instance serves: this one would.
    for name in ["one", "two", "three"] {
        rig.ask(name, &Special::default()).await;
        rig.volume_up(name).await;
        assert_eq!(served(&rig, name), NODE_ID);
    }
    rig.admit_as("scripted", "q", &alloc).await;
    let ready = |i: &Value| crate::support::node::condition(i, "Ready", "True");
    rig.world.until(&rig.instances, "q", "ready", ready).await;
    rig.ask("four", &Special::default()).await;
    rig.volume_up("four").await;
    assert_eq!(served(&rig, "four"), "i-second");
    // What was allowed is taken back, and a restarted daemon does not think otherwise.
    rig.world.delete(&rig.instances, "q").await;
    let mut names: Vec<_> = ["one", "two", "three", "four"].map(str::to_owned).into();
    loop {
        let name = format!("five-{}", names.len());
        rig.ask(&name, &Special::default()).await;
        rig.volume_up(&name).await;
        names.push(name);
        if served(&rig, &names[names.len() - 1]) == NODE_ID {
            break;
        }
        assert!(names.len() < 200, "it serves on");
    }
    rig.kill().await;
    rig.start().await;
    for name in ["six", "seven", "eight"] {
        rig.ask(name, &Special::default()).await;
        rig.volume_up(name).await;
        assert_eq!(served(&rig, name), NODE_ID);
        names.push(name.to_owned());
    }
    for name in &names {
        rig.end_volume(name).await;
    }
    second.stop().await;
    rig.release_plugin("q").await;
    rig.kill().await;
    rig.start().await;
    rig.finish().await;
}

/// Obligation CO-PLUG-20.
/// Its finalizer was taken off by force. Nothing else could take down what it has brought up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_nobody_wants_any_more_serves_until_its_volumes_are_down() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.world.delete(&rig.allocs, "p").await;
    rig.world.let_go(&rig.allocs, "p").await;
    rig.kill().await;
    rig.start().await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    assert_eq!((rig.count(Rpc::NodeUnpublishVolume), rig.count(Rpc::NodeUnstageVolume)), (1, 1));
    rig.world.until(&rig.instances, "p", "out of service", |i| !condition(i, "Ready", "True")).await;
    rig.world.delete(&rig.instances, "p").await;
    rig.register().await;
    rig.ready().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_nobody_wants_any_more_makes_way_for_another() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.world.delete(&rig.allocs, "p").await;
    rig.world.let_go(&rig.allocs, "p").await;
    rig.register_as("scripted", "p2", rig.plugin.socket().to_owned()).await;
    rig.world.until(&rig.instances, "p2", "ready", |i| condition(i, "Ready", "True")).await;
    rig.world.until(&rig.instances, "p", "out of service", |i| !condition(i, "Ready", "True")).await;
    rig.end_all().await;
    rig.release_plugin("p2").await;
    rig.world.delete(&rig.instances, "p").await;
    rig.register().await;
    rig.finish().await;
}

/// Neither one that was never admitted nor one that is not well can take down what the orphan has brought up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_nobody_wants_any_more_makes_no_way_for_one_that_could_not_do_its_work() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    let socket = rig.files.path().join("second.sock");
    let mut second = Scripted::start(&rig.backend, Site::new("i-second"), &socket);
    let alloc = rig.serve_as("scripted", "q", socket).await;
    let known =
        |calls: &[Logged]| calls.iter().any(|c| c.node == "i-second" && c.ask.rpc() == Rpc::NodeGetInfo);
    rig.backend.until("it is known", known).await;
    rig.register_as("scripted", "r", rig.files.path().join("nobody.sock")).await;
    rig.world.until(&rig.instances, "r", "not there", |i| condition(i, "Ready", "False")).await;
    rig.world.delete(&rig.allocs, "p").await;
    rig.world.let_go(&rig.allocs, "p").await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    assert_eq!((rig.count(Rpc::NodeUnpublishVolume), rig.count(Rpc::NodeUnstageVolume)), (1, 1));
    rig.world.until(&rig.instances, "p", "out of service", |i| !condition(i, "Ready", "True")).await;
    rig.world.delete(&rig.instances, "p").await;
    rig.admit_as("scripted", "q", &alloc).await;
    rig.world.until(&rig.instances, "q", "ready", |i| condition(i, "Ready", "True")).await;
    rig.end_volume("vol-1").await;
    rig.release_plugin("r").await;
    rig.release_plugin("q").await;
    second.stop().await;
    rig.register().await;
    rig.finish().await;
}
