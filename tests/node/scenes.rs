//! Scenarios of plugins that need nothing but a plugin and a daemon.
use std::path::PathBuf;

use serde_json::{Value, json};
use wharfline::api::Allocation;
use wharfline::csi::Rpc;

use crate::support::node::{NODE, NODE_ID, Rig, Special, condition, uid};
use crate::support::scripted::{Answer, Backend, Config, Effects, Gate, Scripted, Site};

/// Obligation CO-PLUG-16.
/// Scenarios A21, Q3. What has a number that nobody knows is left out; what is told anew is told at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_has_the_capabilities_that_were_told_and_no_others() {
    let few = Config {
        services: vec![1, 2],
        expansion: vec![1],
        controller: vec![1, 2],
        node: vec![0, 1, 97],
        ..Config::full()
    };
    let mut rig = Rig::new(few).await;
    let told = |i: &Value| {
        let mut words = serde_json::from_value::<Vec<String>>(i["status"]["capabilities"].clone()).unwrap();
        words.sort();
        words
    };
    let first = [
        "controller/CREATE_DELETE_VOLUME",
        "controller/PUBLISH_UNPUBLISH_VOLUME",
        "node/STAGE_UNSTAGE_VOLUME",
        "plugin/CONTROLLER_SERVICE",
        "plugin/VOLUME_ACCESSIBILITY_CONSTRAINTS",
        "plugin/VOLUME_EXPANSION_ONLINE",
    ];
    let instance = serde_json::to_value(rig.ready().await).unwrap();
    assert_eq!(told(&instance), first);
    rig.plugin.kill().await;
    rig.backend.configure(|config| {
        config.services = vec![1, 3];
        config.group = vec![1];
        config.expansion = vec![2, 96];
        config.controller = vec![1, 9];
        config.node = vec![2];
    });
    rig.plugin.serve();
    let second = [
        "controller/CREATE_DELETE_VOLUME",
        "controller/EXPAND_VOLUME",
        "group-controller/CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
        "node/GET_VOLUME_STATS",
        "plugin/CONTROLLER_SERVICE",
        "plugin/GROUP_CONTROLLER_SERVICE",
        "plugin/VOLUME_EXPANSION_OFFLINE",
    ];
    rig.world.until(&rig.instances, "p", "the new ones alone", |i| told(i) == second).await;
    rig.ready().await;
    rig.finish().await;
}

/// Another volume of a plugin, with an allocation that uses it.
async fn one_more(rig: &Rig, name: &str, plugin: &str) -> Allocation {
    let special = Special { spec: json!({ "plugin": plugin }), ..Special::default() };
    let volume = rig.ask(name, &special).await;
    let status = rig.volume_up(name).await.status.unwrap();
    let app = rig.alloc(name, json!({ "volumes": [{ "name": "data", "claimName": name }] })).await;
    let spec = json!({ "volume": name, "volumeUid": uid(&volume), "nodeName": NODE, "plugin": plugin,
        "claim": { "namespace": "default", "name": name, "uid": "c" }, "host": { "nodeName": NODE, "epoch": 1 },
        "attachRequired": true, "stageRequired": true, "handle": status.handle, "volumeContext": status.context,
        "nodeId": NODE_ID, "allocations": [uid(&app)], "capability": { "accessMode": "SingleNodeWriter" } });
    let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
        "metadata": { "name": name }, "spec": spec });
    rig.world.create(&rig.attachments, object).await;
    app
}

async fn end_one(rig: &Rig, name: &str) {
    rig.end_alloc(name).await;
    rig.world.delete(&rig.attachments, name).await;
    let gone = |a: &Value| {
        a["status"]["node"]["releasedUID"] == a["metadata"]["uid"]
            && a["status"]["controller"]["attached"] == "Down"
    };
    rig.world.until(&rig.attachments, name, "released and detached", gone).await;
    rig.world.let_go(&rig.attachments, name).await;
    rig.end_volume(name).await;
}

/// Scenario B113.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_that_hangs_delays_no_other_volume_and_no_other_plugin() {
    let rig = Rig::new(Config::full()).await;
    let socket = rig.files.path().join("second.sock");
    let mut second = Scripted::start(&rig.backend, Site::new(NODE_ID), &socket);
    rig.register_as("second", "q", socket).await;
    rig.world.until(&rig.instances, "q", "ready", |i| condition(i, "Ready", "True")).await;
    let app = rig.user("app").await;
    rig.ask("vol-1", &Special::default()).await;
    let handle = rig.volume_up("vol-1").await.status.unwrap().handle;
    let gate = Gate::new();
    rig.backend.next_for(Rpc::NodePublishVolume, &handle, Answer::honest().hang(&gate));
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.in_flight(Rpc::NodePublishVolume, 1).await;
    for (name, plugin) in [("same", "scripted"), ("another", "second")] {
        one_more(&rig, name, plugin).await;
        rig.published(name).await;
        end_one(&rig, name).await;
    }
    let waiting = serde_json::to_value(rig.allocs.get("app").await.unwrap()).unwrap();
    assert_ne!(waiting["status"]["volumes"][0]["published"], "Up");
    gate.open();
    rig.published("app").await;
    rig.end_all().await;
    second.stop().await;
    rig.release_plugin("q").await;
    rig.finish().await;
}

/// Obligation CO-GEN-12: what two plugins call alike are two volumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_is_its_plugins_own() {
    let rig = Rig::new(Config::full()).await;
    let effects = Effects::Mounts(rig.files.path().join("others"));
    let others = Backend::new(Config { name: "other.csi.example".into(), effects, ..Config::full() });
    let socket = rig.files.path().join("second.sock");
    let mut second = Scripted::start(&others, Site::new(NODE_ID), &socket);
    rig.register_as("second", "q", socket).await;
    rig.world.until(&rig.instances, "q", "ready", |i| condition(i, "Ready", "True")).await;
    let app = rig.user("app").await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let gate = Gate::new();
    rig.backend.next(Rpc::NodeStageVolume, Answer::honest().hang(&gate));
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.in_flight(Rpc::NodeStageVolume, 1).await;
    one_more(&rig, "another", "second").await;
    rig.published("another").await;
    assert_eq!(rig.backend.volumes(), others.volumes());
    gate.open();
    rig.published("app").await;
    assert_eq!(rig.mounted().len(), 4, "two that are staged and published: {:?}", rig.mounted());
    end_one(&rig, "another").await;
    rig.published("app").await;
    assert_eq!((rig.mounted().len(), rig.count(Rpc::NodeUnpublishVolume)), (2, 0));
    others.assert_clean();
    rig.end_all().await;
    second.stop().await;
    rig.release_plugin("q").await;
    rig.finish().await;
}

/// Scenario A54: while no daemon ran, somebody mounted something else at the path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn something_else_at_the_path_is_not_taken_for_the_volume() {
    let mut rig = Rig::new(Config::full()).await;
    let app = rig.running().await;
    let path = PathBuf::from(&app.status.unwrap().volumes[0].path);
    std::fs::write(path.join("mark"), "x").unwrap();
    rig.stop().await;
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &path, "tmpfs", flags, None).unwrap();
    rig.start().await;
    let doubted = |a: &Value| a["status"]["volumes"][0]["published"] != "Up";
    rig.world.until(&rig.allocs, "app", "not the volume", doubted).await;
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).unwrap();
    rig.published("app").await;
    assert!(path.join("mark").exists(), "what is published is not the volume");
    rig.end_all().await;
    rig.finish().await;
}

/// Scenario A15: the journal names a socket of before the boot, at which nobody will ever listen again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_of_before_the_boot_is_not_asked_and_who_comes_in_its_place_is() {
    let mut rig = Rig::new(Config::full()).await;
    rig.stop().await;
    rig.plugin.kill().await;
    rig.backend.reboot(NODE_ID);
    let dead = rig.plugin.socket().to_owned();
    assert!(std::os::unix::net::UnixStream::connect(&dead).is_err() && dead.exists());
    rig.start().await;
    rig.not_ready("ProbeFailed").await;
    let app = rig.user("app").await;
    rig.plugin.serve();
    rig.ready().await;
    rig.give(&[&app], &Special::default()).await;
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

/// Scenario A53.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_users_over_a_replaced_plugin_one_leaves_and_the_other_stays() {
    let shared = Special { mode: Some("SingleNodeMultiWriter"), ..Special::default() };
    let mut rig = Rig::new(Config::full()).await;
    let (app, next) = (rig.user("app").await, rig.user("next").await);
    rig.give(&[&app, &next], &shared).await;
    rig.published("app").await;
    let path = PathBuf::from(&rig.published("next").await.status.unwrap().volumes[0].path);
    std::fs::write(path.join("mark"), "x").unwrap();
    rig.plugin.kill().await;
    rig.backend.configure(|c| c.vendor_version = "2.0.0".into());
    rig.plugin.serve();
    let newer = |i: &Value| i["status"]["provider"]["version"] == "2.0.0" && condition(i, "Ready", "True");
    rig.world.until(&rig.instances, "p", "the new version", newer).await;
    rig.end_alloc("app").await;
    assert_eq!((rig.count(Rpc::NodeUnpublishVolume), rig.count(Rpc::NodeUnstageVolume)), (1, 0));
    assert_eq!((rig.count(Rpc::NodePublishVolume), rig.count(Rpc::NodeStageVolume)), (2, 1));
    assert!(path.join("mark").exists(), "the other one has lost its volume");
    rig.end_alloc("next").await;
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligations CO-PLUG-05, CO-IDEN-06, CO-IDEN-07.
/// Scenarios Q5, Q6: a socket that answers, a Probe that says ready and a plugin that can say who it is are three things.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_far_a_plugin_has_come_is_seen_and_it_is_asked_on_until_it_answers() {
    use wharfline::csi::Code;
    let mut rig = Rig::idle(Config::full()).await;
    let failing = [
        (Rpc::GetPluginInfo, Code::Unavailable, "GetPluginInfoFailed", "True"),
        (Rpc::NodeGetInfo, Code::Internal, "NodeGetInfoFailed", "True"),
        (Rpc::Probe, Code::FailedPrecondition, "ProbeFailed", "False"),
    ];
    for (rpc, code, ..) in failing {
        rig.backend.always(rpc, Answer::fail(code, "the backend is away"));
    }
    rig.start().await;
    rig.register().await;
    // The last of them first: who is not ready is asked nothing else.
    for (rpc, _, reason, probed) in [failing[2], failing[0], failing[1]] {
        let stands = |i: &Value| {
            let of = |kind: &str, status: &str| condition(i, kind, status);
            let says = crate::support::node::condition_reason(i, "Fingerprinted") == Some(reason);
            says && of("Connected", "True") && of("Probed", probed) && of("Ready", "False")
        };
        rig.world.until(&rig.instances, "p", reason, stands).await;
        let asked = rig.count(rpc);
        rig.called(rpc, asked + 2).await;
        rig.backend.honest(rpc);
    }
    rig.ready().await;
    rig.finish().await;
}
