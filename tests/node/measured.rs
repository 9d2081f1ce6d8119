//! How full volumes are: measured in rounds beside everything else, and told when a person would read something else from it.
use std::time::Duration;

use serde_json::{Value, json};
use wharfline::csi::{Code, Rpc, proto};
use wharfline::node::{FigureNames, Figures};

use crate::support::node::{Rig, condition, condition_message, uid, until};
use crate::support::scripted::{Answer, Ask, Config, Gate, Logged};

const STATS: Rpc = Rpc::NodeGetVolumeStats;
/// GET_VOLUME_STATS and VOLUME_CONDITION of the node service.
const TELLS_FIGURES: i32 = 2;
const TELLS_HEALTH: i32 = 4;

fn telling(capabilities: &[i32]) -> Config {
    let mut config = Config::full();
    config.node.retain(|can| ![TELLS_FIGURES, TELLS_HEALTH].contains(can));
    config.node.extend(capabilities);
    config
}

/// A daemon whose rounds follow one another closely.
async fn measuring(config: Config) -> Rig {
    let mut rig = Rig::idle(config).await;
    rig.options.stats_period = Some(Duration::from_millis(50));
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    rig
}

fn filled(used: i64, available: i64) -> proto::NodeGetVolumeStatsResponse {
    let total = used + available;
    let usage = proto::VolumeUsage { available, total, used, unit: 1 };
    proto::NodeGetVolumeStatsResponse { usage: vec![usage], volume_condition: None }
}

/// It was asked so many times more.
async fn rounds(rig: &Rig, more: usize) {
    let so_far = rig.count(STATS);
    rig.called(STATS, so_far + more).await;
}

async fn shows(rig: &Rig, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    serde_json::to_value(rig.world.until(&rig.attachments, "att-1", what, holds).await).unwrap()
}

async fn end(rig: Rig) {
    rig.end_all().await;
    rig.finish().await;
}

/// Obligation CO-NODE-70.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_up_is_measured_and_told_when_it_has_moved() {
    let rig = measuring(telling(&[TELLS_FIGURES])).await;
    rig.backend.instead(STATS, Answer::reply(&filled(100, 900)));
    rig.running().await;
    let used = |bytes: i64| move |a: &Value| a["status"]["node"]["usage"]["bytes"]["used"] == bytes;
    let told = shows(&rig, "measured", used(100)).await;
    assert!(told["status"]["node"]["usage"]["time"].is_string(), "{told}");
    let publish = rig.backend.calls_of(Rpc::NodePublishVolume).remove(0).ask;
    let Ask::NodePublishVolume(publish) = publish else { panic!("{publish:?}") };
    let golden = proto::NodeGetVolumeStatsRequest {
        volume_id: publish.volume_id,
        volume_path: publish.target_path,
        staging_target_path: publish.staging_target_path,
    };
    // At first it may have been staged alone.
    let last = rig.backend.calls_of(STATS).pop().unwrap().ask;
    assert_eq!(last, Ask::NodeGetVolumeStats(golden));
    // A little more is no news, and no write.
    rig.backend.instead(STATS, Answer::reply(&filled(149, 851)));
    rounds(&rig, 3).await;
    let now = shows(&rig, "as before", |_| true).await;
    assert_eq!(now["metadata"]["resourceVersion"], told["metadata"]["resourceVersion"]);
    rig.backend.instead(STATS, Answer::reply(&filled(150, 850)));
    shows(&rig, "moved", used(150)).await;
    rig.backend.instead(STATS, Answer::reply(&filled(1000, 0)));
    shows(&rig, "full", used(1000)).await;
    end(rig).await;
}

/// Obligation CO-NODE-70.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_tells_nothing_is_not_asked() {
    let mut rig = measuring(telling(&[])).await;
    let app = rig.running().await;
    // What is told is told by who can: the same driver in its next version.
    let figures = rig.options.figures.clone();
    until(|| figures.text(FigureNames::Own).contains("wharfline_mounts{node=\"node-a\"} 1\n"), "one mount")
        .await;
    assert!(!figures.text(FigureNames::Own).contains("wharfline_volume_"));
    rig.stop().await;
    assert_eq!(figures.text(FigureNames::Own), "", "the daemon has ended");
    assert_eq!(rig.count(STATS), 0);
    rig.options.figures = Figures::default();
    rig.backend.configure(|config| config.node.push(TELLS_FIGURES));
    rig.start().await;
    rig.called(STATS, 1).await;
    assert_eq!(uid(&rig.published("app").await), uid(&app));
    let metrics = rig.options.figures.clone();
    let line = "\nkubelet_volume_stats_capacity_bytes{namespace=\"default\",persistentvolumeclaim=\"data\"} ";
    until(|| metrics.text(FigureNames::AndKubelets).contains(line), line).await;
    let text = metrics.text(FigureNames::Own);
    assert!(text.contains("\nwharfline_plugin_up{plugin=\"scripted\",role=\"Monolith\","), "{text}");
    let calls = |method: &str, code: &str| {
        format!(
            "wharfline_csi_call_seconds_count{{plugin=\"scripted\",method=\"{method}\",code=\"{code}\",node=\"node-a\"}} "
        )
    };
    assert!(
        text.contains(&calls("NodeGetVolumeStats", "OK")) && text.contains(&calls("Probe", "OK")),
        "{text}"
    );
    end(rig).await;
}

/// Obligation CO-NODE-71.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_measurement_that_hangs_holds_up_its_volume_for_one_deadline_and_no_other() {
    let rig = measuring(telling(&[TELLS_FIGURES])).await;
    rig.deadline(STATS, "2s").await;
    rig.running().await;
    let other = rig.alloc("second", json!({ "volumes": [{ "name": "data", "claimName": "other" }] })).await;
    rig.give_second(&other).await;
    rig.world.until(&rig.allocs, "second", "runs", |a| a["status"]["phase"] == "Running").await;
    let handle = |of: &Value| of["spec"]["handle"].as_str().unwrap().to_owned();
    let hangs = handle(&shows(&rig, "there", |_| true).await);
    let gate = Gate::new();
    rig.backend.next_for(STATS, &hangs, Answer::honest().hang(&gate));
    let asked_of = |rig: &Rig, hangs: &str| {
        let of = |ask: &Ask| matches!(ask, Ask::NodeGetVolumeStats(of) if of.volume_id == hangs);
        rig.backend.calls_of(STATS).into_iter().filter(|call| of(&call.ask)).collect::<Vec<_>>()
    };
    until(|| asked_of(&rig, &hangs).last().is_some_and(Logged::in_flight), "it hangs").await;
    // The other one comes down meanwhile.
    rig.end_second().await;
    assert!(asked_of(&rig, &hangs).last().unwrap().in_flight(), "the other volume waited for it");
    // The call does not end by itself, and its own volume comes down for all that.
    rig.end_alloc("app").await;
    gate.open();
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Obligation CO-NODE-72.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_that_make_no_sense_are_not_told() {
    let rig = measuring(telling(&[TELLS_FIGURES])).await;
    let entry = |unit: i32, total: i64, used: i64| proto::VolumeUsage { available: 1, total, used, unit };
    let strange = proto::NodeGetVolumeStatsResponse {
        usage: vec![entry(99, 10, 1), entry(1, -5, 1), entry(1, 10, -1), entry(2, 7, 6)],
        volume_condition: None,
    };
    rig.backend.instead(STATS, Answer::reply(&strange));
    rig.running().await;
    let told = shows(&rig, "inodes", |a| a["status"]["node"]["usage"]["inodes"]["used"] == 6).await;
    assert_eq!(told["status"]["node"]["usage"]["bytes"], Value::Null, "{told}");
    // A driver may have nothing to tell at all.
    rig.backend.instead(STATS, Answer::reply(&proto::NodeGetVolumeStatsResponse::default()));
    shows(&rig, "nothing", |a| a["status"]["node"]["usage"].is_null()).await;
    end(rig).await;
}

/// Obligation CO-NODE-73.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_its_driver_does_not_find_is_told_of_and_left_alone() {
    let mut rig = measuring(telling(&[TELLS_FIGURES])).await;
    rig.running().await;
    rounds(&rig, 1).await;
    rig.backend.instead(STATS, Answer::fail(Code::NotFound, "no such volume, request 1"));
    let unknown = |a: &Value| condition(a, "VolumeHealthy", "Unknown");
    let told = shows(&rig, "not found", unknown).await;
    let message = condition_message(&told, "VolumeHealthy").unwrap();
    assert!(message.contains("NOT_FOUND") && message.contains("no such volume"), "{message}");
    // Another daemon goes on from what the status says.
    rig.kill().await;
    rig.options.figures = Figures::default();
    rig.backend.instead(STATS, Answer::fail(Code::NotFound, "no such volume, request 2"));
    rig.start().await;
    rounds(&rig, 3).await;
    let now = shows(&rig, "as before", |_| true).await;
    assert_eq!(condition_message(&now, "VolumeHealthy"), Some(message));
    rig.published("app").await;
    assert_eq!((rig.count(Rpc::NodeUnpublishVolume), rig.count(Rpc::NodeUnstageVolume)), (0, 0));
    rig.backend.honest(STATS);
    shows(&rig, "found", |a| condition_message(a, "VolumeHealthy").is_none()).await;
    end(rig).await;
}

/// Obligation CO-CTRL-69: nothing is done because of it.
/// Obligations CO-H13-02, CO-H13-04.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_its_driver_says_is_unwell_is_shown_and_used_on() {
    let mut rig = measuring(telling(&[TELLS_FIGURES, TELLS_HEALTH])).await;
    rig.running().await;
    shows(&rig, "well", |a| condition(a, "VolumeHealthy", "True")).await;
    let handle = rig.backend.volumes().remove(0);
    rig.backend.configure(|config| {
        config.ill.insert(handle.clone(), "two of three disks are gone".to_owned());
    });
    let told = shows(&rig, "unwell", |a| condition(a, "VolumeHealthy", "False")).await;
    assert_eq!(condition_message(&told, "VolumeHealthy"), Some("two of three disks are gone"));
    assert!(condition(&told, "Ready", "True"), "{told}");
    rig.events_until("VolumeAbnormal").await;
    rig.published("app").await;
    // A list without it, or in which it is well, is no word about it.
    rig.backend.next(Rpc::ListVolumes, Answer::reply(&proto::ListVolumesResponse::default()));
    for id in ["1", "2"] {
        rig.world.patch(&rig.instances, "p", json!({ "spec": { "audit": { "id": id } } })).await;
        let answered = |i: &Value| i["status"]["audit"]["id"] == id;
        rig.world.until(&rig.instances, "p", "listed", answered).await;
    }
    rounds(&rig, 2).await;
    let told = shows(&rig, "unwell", |_| true).await;
    assert!(condition(&told, "VolumeHealthy", "False"), "{told}");
    rig.world.patch(&rig.instances, "p", json!({ "spec": { "audit": null } })).await;
    let down = [Rpc::NodeUnpublishVolume, Rpc::NodeUnstageVolume, Rpc::ControllerUnpublishVolume];
    assert!(down.into_iter().all(|rpc| rig.count(rpc) == 0), "nothing is done because of it");
    // The next daemon tells it no second time, and tells when it is over.
    rig.kill().await;
    rig.options.figures = Figures::default();
    rig.start().await;
    rounds(&rig, 3).await;
    rig.backend.configure(|config| config.ill.clear());
    shows(&rig, "well again", |a| condition(a, "VolumeHealthy", "True")).await;
    let told = rig.events_until("VolumeWell").await;
    assert_eq!(told.iter().filter(|(reason, _)| reason == "VolumeAbnormal").count(), 1, "{told:?}");
    end(rig).await;
}

/// Obligation CO-GEN-30.
/// How a volume is is alpha by itself: a driver that tells nothing else of volumes is asked where that is switched on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_tells_only_how_volumes_are_is_asked_where_alpha_is_on() {
    let mut config = telling(&[TELLS_HEALTH]);
    config.alpha = true;
    let rig = measuring(config).await;
    rig.running().await;
    let figures = rig.options.figures.clone();
    until(|| figures.text(FigureNames::Own).contains("wharfline_mounts{"), "the daemon works").await;
    assert_eq!(rig.count(STATS), 0);
    rig.plugin_object(json!({ "alpha": true })).await;
    shows(&rig, "well", |a| condition(a, "VolumeHealthy", "True")).await;
    let plugins: kube::Api<wharfline::api::Plugin> = rig.world.all();
    rig.world.patch(&plugins, "scripted", json!({ "spec": { "alpha": false } })).await;
    shows(&rig, "untold", |a| condition_message(a, "VolumeHealthy").is_none()).await;
    end(rig).await;
}

/// Obligation CO-H13-03.
/// A driver of a later version says with fields and numbers that nobody knows how its volume is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_later_driver_says_of_health_is_left_out_and_does_no_harm() {
    let rig = measuring(telling(&[TELLS_FIGURES, TELLS_HEALTH])).await;
    // Behind the figures, field 9: a message in which field 1 is the number 99 and field 2 a text.
    let later = [0x4a, 0x06, 0x08, 99, 0x12, 0x02, b'h', b'i'];
    let bytes = [&prost::Message::encode_to_vec(&filled(100, 900))[..], &later].concat();
    rig.backend.instead(STATS, Answer::raw(bytes));
    rig.running().await;
    let told = shows(&rig, "measured", |a| a["status"]["node"]["usage"]["bytes"]["used"] == 100).await;
    assert!(!told.to_string().contains("VolumeHealthy"), "{told}");
    rounds(&rig, 2).await;
    rig.published("app").await;
    rig.backend.honest(STATS);
    shows(&rig, "well", |a| condition(a, "VolumeHealthy", "True")).await;
    end(rig).await;
}

/// Obligation CO-H13-05.
/// How a volume is is asked once it is up: who asks it of one that cannot be staged neither meets another call nor has anything
/// undone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_whose_stage_fails_is_not_asked_how_it_is() {
    let rig = measuring(telling(&[TELLS_FIGURES, TELLS_HEALTH])).await;
    for _ in 0..4 {
        rig.backend.next(Rpc::NodeStageVolume, Answer::fail(Code::Internal, "not now"));
    }
    rig.running().await;
    rounds(&rig, 2).await;
    let calls = rig.backend.calls();
    let at = |rpc: Rpc| calls.iter().position(|call| call.rpc == rpc).unwrap();
    let staged = calls.iter().rposition(|call| call.rpc == Rpc::NodeStageVolume).unwrap();
    assert!(at(STATS) > staged, "{:?}", rig.backend.order());
    assert_eq!((rig.count(Rpc::NodeStageVolume), rig.count(Rpc::NodeUnstageVolume)), (5, 0));
    end(rig).await;
}

/// What a driver said once is not kept for true when it says nothing any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_tells_nothing_any_more_leaves_nothing_told() {
    let mut rig = measuring(telling(&[TELLS_FIGURES, TELLS_HEALTH])).await;
    rig.running().await;
    let told = |a: &Value| a["status"]["node"]["usage"]["bytes"].is_object();
    shows(&rig, "told", |a| told(a) && condition(a, "VolumeHealthy", "True")).await;
    rig.stop().await;
    rig.options.figures = Figures::default();
    rig.backend.configure(|config| config.node.retain(|can| ![TELLS_FIGURES, TELLS_HEALTH].contains(can)));
    rig.start().await;
    shows(&rig, "untold", |a| !told(a) && condition_message(a, "VolumeHealthy").is_none()).await;
    rig.published("app").await;
    // Nor is it kept where nothing is measured.
    rig.stop().await;
    rig.backend.configure(|config| config.node.push(TELLS_FIGURES));
    rig.options.figures = Figures::default();
    rig.start().await;
    shows(&rig, "told again", told).await;
    rig.stop().await;
    (rig.options.figures, rig.options.stats_period) = (Figures::default(), None);
    rig.start().await;
    shows(&rig, "untold again", |a| !told(a)).await;
    end(rig).await;
}

/// Obligation CO-NODE-71.
/// What is over in a moment says nothing of a volume; what says something else each time is told by what it says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passing_answers_are_no_word_about_a_volume() {
    let rig = measuring(telling(&[TELLS_FIGURES])).await;
    rig.backend.instead(STATS, Answer::reply(&filled(100, 900)));
    rig.running().await;
    let told = shows(&rig, "told", |a| a["status"]["node"]["usage"]["bytes"]["used"] == 100).await;
    for code in [Code::Aborted, Code::Unavailable] {
        rig.backend.instead(STATS, Answer::fail(code, "in a moment"));
        rounds(&rig, 2).await;
        let now = shows(&rig, "as before", |_| true).await;
        assert_eq!(now["metadata"]["resourceVersion"], told["metadata"]["resourceVersion"], "{code:?}");
    }
    for (code, word) in [(Code::NotFound, "NotFound"), (Code::Internal, "Internal")] {
        rig.backend.instead(STATS, Answer::fail(code, "no"));
        let said =
            |a: &Value| a["status"]["conditions"].to_string().contains(&format!("\"reason\":\"{word}\""));
        shows(&rig, word, |a| condition(a, "VolumeHealthy", "Unknown") && said(a)).await;
    }
    end(rig).await;
}
