//! The whole ladder, up and down, with a plugin that attaches and stages and with one that does neither.
use serde_json::{Value, json};
use wharfline::csi::Rpc;
use wharfline::csi::proto::volume_capability::AccessMode;
use wharfline::csi::proto::volume_capability::access_mode::Mode;

use crate::support::node::{Rig, Special};
use crate::support::scripted::{Answer, Ask, Config, Gate};

const UP: [&str; 4] = ["CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"];
const DOWN: [&str; 4] =
    ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume", "DeleteVolume"];

/// Scenarios B26, B36, B61.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_climbs_every_rung_and_comes_down_in_mirror_order() {
    let rig = Rig::new(Config::full()).await;
    let app = rig.running().await;
    assert_eq!(rig.backend.order(), UP);
    let path = app.status.unwrap().volumes[0].path.clone();
    assert_eq!(rig.mounted().len(), 2, "staged and published: {:?}", rig.mounted());
    assert!(rig.mounted().contains(&path));
    let staged = rig.world.until(&rig.attachments, "att-1", "ready", |a| {
        a["status"]["node"]["staged"] == "Up" && crate::support::node::condition(a, "Ready", "True")
    });
    staged.await;
    rig.end_all().await;
    assert_eq!(rig.backend.order(), UP.iter().chain(&DOWN).copied().collect::<Vec<_>>());
    rig.finish().await;
}

/// How the capabilities of a driver are numbered: of controllers CREATE_DELETE_VOLUME and PUBLISH_UNPUBLISH_VOLUME, of nodes
/// STAGE_UNSTAGE_VOLUME.
const CREATES: i32 = 1;
const ATTACHES: i32 = 2;
const STAGES: i32 = 1;

/// Scenario B71.
/// Obligation CO-GEN-15: the four lives that CSI draws, with drivers that say no word more than their life needs. What a driver
/// did not say that it can is a violation to it, a field as well as a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_life_has_the_calls_of_its_driver_and_no_others() {
    for (controller, node) in [
        (vec![CREATES, ATTACHES], vec![STAGES]),
        (vec![CREATES, ATTACHES], vec![]),
        (vec![CREATES], vec![STAGES]),
        (vec![CREATES], vec![]),
    ] {
        let (attaches, stages) = (controller.contains(&ATTACHES), node.contains(&STAGES));
        let config = Config { controller, node, ..Config::full() };
        let mut rig = Rig::idle(config).await;
        rig.start().await;
        rig.register().await;
        rig.ready().await;
        let app = rig.user("app").await;
        let special = Special { mode: Some("SingleNodeSingleWriter"), ..Special::default() };
        rig.give(&[&app], &special).await;
        rig.published("app").await;
        rig.end_all().await;
        let belongs = |name: &&&str| match **name {
            "ControllerPublishVolume" | "ControllerUnpublishVolume" => attaches,
            "NodeStageVolume" | "NodeUnstageVolume" => stages,
            _ => true,
        };
        let wanted: Vec<_> = UP.iter().chain(&DOWN).filter(belongs).copied().collect();
        assert_eq!(rig.backend.order(), wanted);
        let mode = Some(AccessMode { mode: Mode::SingleNodeWriter.into() });
        let capability = |ask: &Ask| match ask {
            Ask::CreateVolume(of) => of.volume_capabilities.first().cloned(),
            Ask::ControllerPublishVolume(of) => of.volume_capability.clone(),
            Ask::NodeStageVolume(of) => of.volume_capability.clone(),
            Ask::NodePublishVolume(of) => of.volume_capability.clone(),
            _ => None,
        };
        let asked = rig.backend.calls().into_iter().filter_map(|call| capability(&call.ask));
        assert!(asked.clone().count() >= 2 && asked.into_iter().all(|one| one.access_mode == mode));
        for call in rig.backend.calls() {
            match call.ask {
                Ask::CreateVolume(of) => {
                    assert!(of.accessibility_requirements.is_none() && of.mutable_parameters.is_empty());
                }
                Ask::NodePublishVolume(of) => {
                    assert_eq!(
                        (of.staging_target_path.is_empty(), of.publish_context.is_empty()),
                        (!stages, !attaches)
                    );
                }
                _ => {}
            }
        }
        rig.finish().await;
    }
}

/// Scenario B37.
/// Obligation CO-GEN-14.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_without_attach_and_stage_gets_neither() {
    let rig = Rig::new(Config::without_attach_and_stage()).await;
    rig.running().await;
    rig.end_all().await;
    let wanted = ["CreateVolume", "NodePublishVolume", "NodeUnpublishVolume", "DeleteVolume"];
    assert_eq!(rig.backend.order(), wanted);
    rig.finish().await;
}

/// Scenarios A58, A64, B36, Q10.
/// Obligation CO-GEN-16.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_and_contexts_are_as_csi_wants_them_when_the_calls_arrive() {
    let rig = Rig::new(Config::full()).await;
    let (staging, publishing) = (Gate::new(), Gate::new());
    rig.backend.next(Rpc::NodeStageVolume, Answer::honest().hang(&staging));
    rig.backend.next(Rpc::NodePublishVolume, Answer::honest().hang(&publishing));
    let app = rig.user("app").await;
    rig.give(&[&app], &Special::default()).await;
    rig.in_flight(Rpc::NodeStageVolume, 1).await;
    let Ask::NodeStageVolume(stage) = rig.backend.calls_of(Rpc::NodeStageVolume)[0].ask.clone() else {
        panic!("another request");
    };
    let place = std::path::Path::new(&stage.staging_target_path);
    assert!(place.is_dir() && std::fs::read_dir(place).unwrap().next().is_none(), "empty and there");
    assert_eq!(stage.volume_context, Config::full().volume_context);
    assert!(stage.publish_context.contains_key("device"));
    assert!(stage.staging_target_path.len() <= 128);
    staging.open();
    rig.in_flight(Rpc::NodePublishVolume, 1).await;
    let Ask::NodePublishVolume(publish) = rig.backend.calls_of(Rpc::NodePublishVolume)[0].ask.clone() else {
        panic!("another request");
    };
    let target = std::path::Path::new(&publish.target_path);
    assert!(!target.exists(), "the target is the plugin's to make");
    assert!(target.parent().unwrap().is_dir(), "its parent is ours");
    assert!(publish.target_path.len() <= 128);
    assert_eq!(publish.staging_target_path, stage.staging_target_path);
    assert_eq!(publish.volume_capability, stage.volume_capability);
    assert_eq!(publish.publish_context, stage.publish_context);
    assert_eq!(publish.volume_context, stage.volume_context);
    publishing.open();
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

async fn two_users(restart: bool) {
    let shared = Special { mode: Some("SingleNodeMultiWriter"), ..Special::default() };
    let mut rig = Rig::new(Config::full()).await;
    let (app, other) = (rig.user("app").await, rig.user("other").await);
    rig.give(&[&app, &other], &shared).await;
    rig.published("app").await;
    rig.published("other").await;
    assert_eq!((rig.count(Rpc::NodeStageVolume), rig.count(Rpc::NodePublishVolume)), (1, 2));
    if restart {
        rig.kill().await;
        rig.start().await;
    }
    rig.end_alloc("other").await;
    rig.published("app").await;
    assert_eq!((rig.count(Rpc::NodeUnpublishVolume), rig.count(Rpc::NodeUnstageVolume)), (1, 0));
    assert_eq!((rig.count(Rpc::NodeStageVolume), rig.count(Rpc::NodePublishVolume)), (1, 2));
    assert_eq!(rig.mounted().len(), 2, "staged and one user");
    rig.end_all().await;
    assert_eq!((rig.count(Rpc::NodeUnpublishVolume), rig.count(Rpc::NodeUnstageVolume)), (2, 1));
    rig.finish().await;
}

/// Scenarios A49, A50, B61, B70.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_users_share_one_stage_and_the_last_one_out_unstages() {
    two_users(false).await;
}

/// Scenario A52.
/// What a counter in memory gets wrong (nomad issue 25813).
/// Obligation CO-GEN-29.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_users_are_still_two_after_a_restart() {
    two_users(true).await;
}

/// Scenarios A44, B75.
/// Obligations CO-GEN-16, CO-CTRL-32.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_reads_and_the_volume_keeps_its_mode() {
    let rig = Rig::new(Config::full()).await;
    let volumes = json!([{ "name": "data", "claimName": "data", "readOnly": true }]);
    let app = rig.alloc("app", json!({ "volumes": volumes })).await;
    rig.give(&[&app], &Special::default()).await;
    let app = rig.published("app").await;
    let Ask::NodePublishVolume(publish) = rig.backend.calls_of(Rpc::NodePublishVolume)[0].ask.clone() else {
        panic!("another request");
    };
    assert!(publish.readonly);
    let Ask::ControllerPublishVolume(attach) =
        rig.backend.calls_of(Rpc::ControllerPublishVolume)[0].ask.clone()
    else {
        panic!("another request");
    };
    assert!(!attach.readonly, "the controller has no PUBLISH_READONLY");
    assert_eq!(attach.volume_capability, publish.volume_capability);
    let path = std::path::PathBuf::from(&app.status.unwrap().volumes[0].path);
    assert!(std::fs::write(path.join("x"), "x").is_err());
    rig.end_all().await;
    rig.finish().await;
}

/// Scenarios B43, B76.
/// A second user of a volume that only one may have: it waits, and says who has it, whoever came first to the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_held_volume_names_its_holder() {
    for early in [false, true] {
        let rig = Rig::new(Config::full()).await;
        if early {
            let app = rig.user("app").await;
            rig.user("second").await;
            rig.give(&[&app], &Special::default()).await;
            rig.published("app").await;
        } else {
            rig.running().await;
            rig.user("second").await;
        }
        let held = |kind: &'static str| {
            move |c: &Value| c["type"] == kind && c["reason"] == "HeldElsewhere" && c["status"] == "False"
        };
        let waiting = rig
            .world
            .until(&rig.allocs, "second", "waiting for the holder", |a| {
                let all = a["status"]["conditions"].as_array().cloned().unwrap_or_default();
                all.iter().any(held("Ready")) && all.iter().any(held("VolumesReady"))
            })
            .await;
        let status = waiting.status.unwrap();
        let ready = status.conditions.iter().find(|c| c.kind == "Ready").unwrap();
        assert_eq!(
            ready.message,
            "volume \"vol-1\" is held by allocation \"default/app\" on node \"node-a\", \
             which has to end or be deleted first"
        );
        assert_eq!(rig.backend.calls_of(Rpc::NodePublishVolume).len(), 1);
        rig.end_alloc("second").await;
        rig.end_all().await;
        rig.finish().await;
    }
}
