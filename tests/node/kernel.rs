//! The kernel decides: what a plugin claims is looked at, what nobody knows is left alone.
use serde_json::{Value, json};
use wharfline::csi::{Rpc, proto};

use crate::support::node::{Rig, Special, condition_message, condition_reason, mounts_beneath, rebooted};
use crate::support::scripted::{Answer, Config, Gate, Logged};

/// Scenario B73.
/// Obligation CO-NODE-50.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ok_without_a_mount_starts_no_task() {
    let rig = Rig::new(Config::full()).await;
    rig.backend.always(Rpc::NodePublishVolume, Answer::reply(&proto::NodePublishVolumeResponse {}));
    let app = rig
        .alloc(
            "app",
            json!({ "volumes": [{ "name": "data", "claimName": "data" }],
                "tasks": [{ "name": "t", "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                    "runtime": { "process": { "command": ["/bin/sleep", "infinity"] } } }] }),
        )
        .await;
    rig.give(&[&app], &Special::default()).await;
    let told = |a: &Value| condition_reason(a, "VolumesReady") == Some("NotMounted");
    let app = rig.world.until(&rig.allocs, "app", "NotMounted", told).await;
    let status = app.status.unwrap();
    assert_eq!(status.tasks[0].state, wharfline::api::allocation::TaskState::Pending);
    assert_ne!(status.volumes[0].published, wharfline::api::meta::Rung::Up);
    assert!(status.volumes[0].path.is_empty());
    rig.backend.honest(Rpc::NodePublishVolume);
    rig.published("app").await;
    rig.end_all().await;
    rig.finish().await;
}

/// Obligation CO-NODE-50: a directory is mounted where a block device was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_thing_than_was_asked_for_is_told_and_comes_down_again() {
    let rig = Rig::new(Config::without_attach_and_stage()).await;
    let app = rig.user("app").await;
    let block = json!({ "capability": { "accessMode": "SingleNodeWriter", "volumeMode": "Block" } });
    rig.give(&[&app], &Special { attachment: block, ..Special::default() }).await;
    let told = |a: &Value| {
        condition_reason(a, "VolumesReady") == Some("NotMounted")
            && condition_message(a, "VolumesReady").is_some_and(|m| m.contains("no block device"))
    };
    let app = rig.world.until(&rig.allocs, "app", "NotMounted", told).await;
    assert!(app.status.unwrap().volumes[0].path.is_empty());
    rig.end_all().await;
    assert_eq!(rig.count(Rpc::NodeUnpublishVolume), 1);
    rig.finish().await;
}

/// Obligation CO-NODE-36.
/// Whoever mounted it from there uses it, perhaps: it stays staged and attached, why is told, and it goes on by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_mounted_from_the_staging_path_is_not_unstaged() {
    let rig = Rig::new(Config::full()).await;
    let app = rig.user("app").await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    // A file system with a device of its own, which the driver has mounted before it is asked to stage.
    let (image, home) = (rig.files.path().join("image"), crate::stale::home(&rig, "vol-1").await);
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    crate::stale::done("mkfs.ext4", &["-q", image.to_str().unwrap()]);
    crate::stale::done("mount", &["-o", "loop", image.to_str().unwrap(), home.to_str().unwrap()]);
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.published("app").await;
    let staging = rig.mounted().into_iter().find(|path| path.contains("/staging/")).unwrap();
    let stray = rig.files.path().join("stray");
    std::fs::create_dir(&stray).unwrap();
    rustix::mount::mount_bind(&staging, &stray).unwrap();
    rig.end_alloc("app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    if rig.place.machine().kernel.facts().await.unwrap().statmount {
        let told = |a: &Value| {
            let node = &a["status"]["node"];
            let said = node["message"].as_str().unwrap_or_default();
            node["reason"] == "MountedElsewhere" && said.contains(stray.to_str().unwrap())
        };
        let held = rig.world.until(&rig.attachments, "att-1", "told", told).await;
        assert!(held.status.unwrap().node.unwrap().next_attempt_time.is_some());
        assert_eq!((rig.count(Rpc::NodeUnstageVolume), rig.count(Rpc::ControllerUnpublishVolume)), (0, 0));
    }
    rustix::mount::unmount(&stray, rustix::mount::UnmountFlags::empty()).unwrap();
    rig.detached().await;
    crate::stale::done("umount", &[home.to_str().unwrap()]);
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario B66.
/// Obligation CO-NODE-23: nobody says that it was staged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_is_at_the_staging_path_already_is_no_stage() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    let home = crate::stale::home(&rig, "vol-1").await;
    let staging = rig.mounted().into_iter().find(|p| p.contains("/staging/")).unwrap();
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    std::fs::create_dir_all(&staging).unwrap();
    rustix::mount::mount_bind(&home, &staging).unwrap();
    // It would mount there, too.
    rig.backend.configure(|config| config.bare_staging = true);
    let app = rig.user("app").await;
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.published("app").await;
    assert_eq!(rig.count(Rpc::NodeStageVolume), 2);
    rig.stop_alloc("app").await;
    rustix::mount::unmount(&staging, rustix::mount::UnmountFlags::empty()).unwrap();
    rig.end_attachment().await;
    rig.end_alloc("app").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario A57.
/// Obligation CO-NODE-62.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_is_unpublished_though_somebody_took_its_path_away() {
    let rig = Rig::new(Config::full()).await;
    let path = std::path::PathBuf::from(&rig.running().await.status.unwrap().volumes[0].path);
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    std::fs::remove_dir(&path).unwrap();
    std::fs::remove_dir(path.parent().unwrap()).unwrap();
    rig.end_all().await;
    assert_eq!(rig.count(Rpc::NodeUnpublishVolume), 1);
    rig.finish().await;
}

/// Scenario A56.
/// Part of obligation CO-NODE-61.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unpublish_that_left_the_mount_is_repeated_and_nothing_is_unstaged() {
    let rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.backend.always(Rpc::NodeUnpublishVolume, Answer::reply(&proto::NodeUnpublishVolumeResponse {}));
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    let told = |a: &Value| a["status"]["node"]["reason"] == "StillMounted";
    rig.world.until(&rig.attachments, "att-1", "StillMounted", told).await;
    rig.called(Rpc::NodeUnpublishVolume, 3).await;
    assert_eq!((rig.count(Rpc::NodeUnstageVolume), rig.count(Rpc::ControllerUnpublishVolume)), (0, 0));
    rig.backend.honest(Rpc::NodeUnpublishVolume);
    rig.detached().await;
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Scenario B74.
/// The driver says that it is done, and somebody has put something where it had mounted: that stays, and why nothing goes on is
/// told until a person has taken it away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_where_the_volume_was_mounted_is_not_deleted() {
    let rig = Rig::new(Config::full()).await;
    let path = std::path::PathBuf::from(&rig.running().await.status.unwrap().volumes[0].path);
    let (gate, done) = (Gate::new(), proto::NodeUnpublishVolumeResponse {});
    rig.backend.next(Rpc::NodeUnpublishVolume, Answer::reply(&done).hang(&gate));
    rig.backend.always(Rpc::NodeUnpublishVolume, Answer::reply(&done));
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    rig.in_flight(Rpc::NodeUnpublishVolume, 1).await;
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    let theirs = path.join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::fs::write(theirs.join("precious"), "precious").unwrap();
    gate.open();
    let told = |a: &Value| {
        let node = &a["status"]["node"];
        let said = node["message"].as_str().unwrap_or_default();
        node["reason"] == "KernelRefused"
            && said.contains(path.to_str().unwrap())
            && said.contains("not empty")
    };
    rig.world.until(&rig.attachments, "att-1", "told", told).await;
    rig.called(Rpc::NodeUnpublishVolume, 3).await;
    // With the next call the one before is over, and all that followed from it.
    let last = Gate::new();
    rig.backend.instead(Rpc::NodeUnpublishVolume, Answer::honest().hang(&last));
    let asked = |call: &Logged| call.rpc == Rpc::NodeUnpublishVolume && call.in_flight();
    rig.backend.until("it is asked once more", |log| log.iter().any(asked)).await;
    assert_eq!(std::fs::read_to_string(theirs.join("precious")).unwrap(), "precious");
    assert_eq!((rig.count(Rpc::NodeUnstageVolume), rig.count(Rpc::ControllerUnpublishVolume)), (0, 0));
    std::fs::remove_dir_all(&theirs).unwrap();
    last.open();
    rig.detached().await;
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_mount_is_reported_and_left_alone() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.stop().await;
    let (source, place) = (rig.files.path().join("theirs"), rig.tree("publish/stranger"));
    std::fs::create_dir_all(&source).unwrap();
    std::fs::create_dir_all(&place).unwrap();
    rustix::mount::mount_bind(&source, &place).unwrap();
    rig.start().await;
    let name = place.to_string_lossy().into_owned();
    let told = |a: &Value| a["status"]["leftovers"] == json!([name]);
    rig.world.until(&rig.agents, crate::support::node::NODE, "leftovers", told).await;
    rig.end_all().await;
    assert_eq!(rig.mounted(), std::slice::from_ref(&name), "still there");
    rig.stop().await;
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()).unwrap();
    std::fs::remove_dir(&place).unwrap();
    rig.start().await;
    let told = |a: &Value| a["status"]["leftovers"].is_null();
    rig.world.until(&rig.agents, crate::support::node::NODE, "no leftovers", told).await;
    rig.finish().await;
}

async fn at_host(read_only: bool) {
    let mut rig = Rig::idle(Config::full()).await;
    let allowed = rig.files.path().join("host");
    std::fs::create_dir_all(&allowed).unwrap();
    rig.options.host_paths = vec![allowed.clone()];
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let path = allowed.join("a/b");
    let volumes = json!([{ "name": "data", "claimName": "data", "hostPath": path, "readOnly": read_only }]);
    let app = rig.alloc("app", json!({ "volumes": volumes })).await;
    rig.give(&[&app], &Special::default()).await;
    let app = rig.published("app").await;
    assert_eq!(app.status.unwrap().volumes[0].path, path.to_string_lossy());
    let written = std::fs::write(path.join("x"), "x");
    assert_eq!(written.is_err(), read_only);
    rig.kill().await;
    rig.start().await;
    rig.published("app").await;
    assert_eq!(rig.count(Rpc::NodePublishVolume), 1);
    rig.end_all().await;
    assert!(allowed.is_dir() && !allowed.join("a").exists(), "what we made is gone, no more");
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_at_a_path_of_the_host() {
    at_host(false).await;
    at_host(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_the_node_does_not_allow_is_refused() {
    let rig = Rig::new(Config::full()).await;
    let outside = rig.files.path().join("outside");
    let app = rig
        .alloc("app", json!({ "volumes": [{ "name": "data", "claimName": "data", "hostPath": outside }] }))
        .await;
    rig.give(&[&app], &Special::default()).await;
    let told = |a: &Value| condition_reason(a, "VolumesReady") == Some("HostPathNotAllowed");
    rig.world.until(&rig.allocs, "app", "refused", told).await;
    assert_eq!(rig.count(Rpc::NodePublishVolume), 0);
    assert!(!outside.exists());
    // That is not what the next one waits for.
    rig.user("second").await;
    let held = |a: &Value| condition_reason(a, "VolumesReady") == Some("HeldElsewhere");
    rig.world.until(&rig.allocs, "second", "told who has it", held).await;
    rig.end_alloc("second").await;
    rig.end_all().await;
    rig.finish().await;
}

/// What one user asks for and does not get is told to that one, and holds up no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_shares_a_volume_does_not_wait_for_one_who_asks_for_what_is_not_allowed() {
    let shared = Special { mode: Some("SingleNodeMultiWriter"), ..Special::default() };
    let rig = Rig::new(Config::full()).await;
    let outside = rig.files.path().join("outside");
    let volumes = json!([{ "name": "data", "claimName": "data", "hostPath": outside }]);
    let bad = rig.alloc("app", json!({ "volumes": volumes })).await;
    let good = rig.user("good").await;
    rig.give(&[&bad, &good], &shared).await;
    let told = |a: &Value| condition_reason(a, "VolumesReady") == Some("HostPathNotAllowed");
    rig.world.until(&rig.allocs, "app", "refused", told).await;
    let good = rig.published("good").await;
    assert!(
        !serde_json::to_string(&good.status).unwrap().contains("outside"),
        "told of the other's: {good:?}"
    );
    // Nor does one who goes.
    rig.end_alloc("good").await;
    assert_eq!((rig.count(Rpc::NodePublishVolume), rig.count(Rpc::NodeUnpublishVolume)), (1, 1));
    rig.end_all().await;
    rig.finish().await;
}

/// As when the disk that belongs there is not mounted yet: it is told, and tried again without anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_beneath_an_allowed_directory_that_is_missing_waits_for_it() {
    let mut rig = Rig::idle(Config::full()).await;
    let allowed = rig.files.path().join("host");
    rig.options.host_paths = vec![allowed.clone()];
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let path = allowed.join("a");
    let spec = json!({ "volumes": [{ "name": "data", "claimName": "data", "hostPath": path }] });
    let app = rig.alloc("app", spec).await;
    rig.give(&[&app], &Special::default()).await;
    let told = |a: &Value| condition_reason(a, "VolumesReady") == Some("HostPathMissing");
    let told = serde_json::to_value(rig.world.until(&rig.allocs, "app", "told", told).await).unwrap();
    let said = condition_message(&told, "VolumesReady").unwrap();
    assert!(said.contains(path.to_str().unwrap()) && said.contains("make it"), "{said}");
    assert!(!allowed.exists(), "it is the operator's");
    std::fs::create_dir(&allowed).unwrap();
    rig.published("app").await;
    assert_eq!(mounts_beneath(&allowed), [path.to_string_lossy()]);
    rig.end_all().await;
    rig.finish().await;
}

/// Nothing was mounted behind the link, so nothing has to be undone there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_behind_a_link_is_refused_and_comes_down_with_the_link_in_place() {
    let mut rig = Rig::idle(Config::full()).await;
    let allowed = rig.files.path().join("host");
    std::fs::create_dir_all(&allowed).unwrap();
    std::os::unix::fs::symlink(rig.files.path(), allowed.join("link")).unwrap();
    rig.options.host_paths = vec![allowed.clone()];
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let path = allowed.join("link/foo");
    let spec = json!({ "volumes": [{ "name": "data", "claimName": "data", "hostPath": path }] });
    let app = rig.alloc("app", spec).await;
    rig.give(&[&app], &Special::default()).await;
    let told = |a: &Value| a["status"].to_string().contains("symbolic link");
    rig.world.until(&rig.allocs, "app", "refused", told).await;
    rig.end_all().await;
    assert!(!rig.files.path().join("foo").exists());
    rig.finish().await;
}

/// A rig whose node allows one directory of the host.
async fn allowing() -> (Rig, std::path::PathBuf) {
    let mut rig = Rig::idle(Config::full()).await;
    let allowed = rig.files.path().join("host");
    std::fs::create_dir_all(&allowed).unwrap();
    rig.options.host_paths = vec![allowed.clone()];
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    (rig, allowed)
}

/// Nothing of ours was ever there, so nothing keeps the allocation from going.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_somebody_else_has_a_mount_at_is_refused_and_left_alone() {
    let (rig, allowed) = allowing().await;
    let path = allowed.join("foreign");
    std::fs::create_dir(&path).unwrap();
    let none = rustix::mount::MountFlags::empty();
    rustix::mount::mount("theirs", &path, "tmpfs", none, None).unwrap();
    let spec = json!({ "volumes": [{ "name": "data", "claimName": "data", "hostPath": path }] });
    let app = rig.alloc("app", spec).await;
    rig.give(&[&app], &Special::default()).await;
    let told = |a: &Value| a["status"].to_string().contains("there is something already");
    rig.world.until(&rig.allocs, "app", "refused", told).await;
    let events: kube::Api<k8s_openapi::api::core::v1::Event> = kube::Api::all(rig.world.0.clone());
    rig.events_until("HostPathOccupied").await;
    let events = events.list(&kube::api::ListParams::default()).await.unwrap().items;
    let told = events.iter().find(|event| event.reason.as_deref() == Some("HostPathOccupied")).unwrap();
    assert_eq!(told.involved_object.kind.as_deref(), Some("Allocation"), "whose path it is");
    rig.end_all().await;
    assert_eq!(mounts_beneath(&allowed), [path.to_string_lossy()], "theirs stays");
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).unwrap();
    rig.finish().await;
}

/// Directories of one file system without a device, so that the device tells nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_another_volume_has_is_refused_and_taken_once_it_is_free() {
    let (rig, allowed) = allowing().await;
    rig.on_tmpfs();
    let path = allowed.join("data");
    let at = |claim: &str, path: &std::path::Path| json!({ "volumes": [{ "name": "data", "claimName": claim, "hostPath": path }] });
    let app = rig.alloc("app", at("data", &path)).await;
    rig.give(&[&app], &Special::default()).await;
    rig.published("app").await;
    std::fs::write(path.join("mark"), "first").unwrap();
    for wanted in [path.clone(), path.join("inner"), allowed.clone().join("data/")] {
        let second = rig.alloc("second", at("other", &wanted)).await;
        rig.give_second(&second).await;
        let taken = |a: &Value| condition_reason(a, "VolumesReady") == Some("HostPathTaken");
        let told = rig.world.until(&rig.allocs, "second", "told who has it", taken).await;
        let told = serde_json::to_value(told).unwrap();
        let said = condition_message(&told, "VolumesReady").unwrap();
        assert!(
            said.contains("allocation \"default/app\"") && said.contains(path.to_str().unwrap()),
            "{said}"
        );
        assert_ne!(told["status"]["volumes"][0]["published"], "Up");
        assert_eq!(rig.count(Rpc::NodePublishVolume), 1, "nobody is called for it");
        rig.end_second().await;
        assert!(path.join("mark").exists(), "the first one's mount was taken away");
    }
    let second = rig.alloc("second", at("other", &path)).await;
    rig.give_second(&second).await;
    let taken = |a: &Value| condition_reason(a, "VolumesReady") == Some("HostPathTaken");
    rig.world.until(&rig.allocs, "second", "waits", taken).await;
    rig.end_all().await;
    rig.published("second").await;
    assert!(path.is_dir() && !path.join("mark").exists());
    rig.end_second().await;
    rig.off_tmpfs();
    rig.finish().await;
}

/// What the daemon keeps must not be covered by a volume, nor lie in one that a task may write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_in_or_above_the_daemons_own_directories_is_refused() {
    let mut rig = Rig::idle(Config::full()).await;
    let data = rig.options.data_dir.clone();
    let above = data.parent().unwrap().to_owned();
    rig.options.host_paths = vec![above.parent().unwrap().to_owned()];
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let own = [data.join("volumes/staging"), data.clone(), above, rig.options.run_dir.join("x")];
    for path in own {
        let spec = json!({ "volumes": [{ "name": "data", "claimName": "data", "hostPath": path }] });
        let app = rig.alloc("app", spec).await;
        rig.give(&[&app], &Special::default()).await;
        let told = |a: &Value| condition_reason(a, "VolumesReady") == Some("HostPathNotAllowed");
        let app = rig.world.until(&rig.allocs, "app", "refused", told).await;
        let said = serde_json::to_string(&app.status).unwrap();
        assert!(said.contains("daemon's own"), "{path:?}: {said}");
        rig.end_all().await;
    }
    assert_eq!(rig.count(Rpc::NodePublishVolume), 0);
    rig.finish().await;
}

/// Who shares the volume is in order, and is not told for ever of somebody who gave up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trouble_of_who_stopped_asking_is_told_no_more() {
    let (rig, _) = allowing().await;
    let app = rig.user("app").await;
    let volumes = json!([{ "name": "data", "claimName": "data", "hostPath": "/nowhere/allowed" }]);
    let second = rig.alloc("second", json!({ "volumes": volumes })).await;
    rig.give(&[&app, &second], &Special { mode: Some("SingleNodeMultiWriter"), ..Special::default() }).await;
    rig.published("app").await;
    let told = |a: &Value| condition_reason(a, "Ready") == Some("HostPathNotAllowed");
    rig.world.until(&rig.attachments, "att-1", "told of the second one", told).await;
    rig.world.patch(&rig.allocs, "second", json!({ "spec": { "stop": true } })).await;
    let well = |a: &Value| condition_reason(a, "Ready") == Some("Ready");
    rig.world.until(&rig.attachments, "att-1", "told no more", well).await;
    rig.end_alloc("second").await;
    rig.end_all().await;
    rig.finish().await;
}

/// Scenario B123.
/// A new boot: no mount is left, and everything that was up is made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_boot_everything_is_made_again() {
    let mut rig = Rig::new(Config::full()).await;
    rig.running().await;
    rig.stop().await;
    rig.backend.reboot(crate::support::node::NODE_ID);
    for row in rig.mounted() {
        let _gone = rustix::mount::unmount(row, rustix::mount::UnmountFlags::empty());
    }
    // The plugin's target directory does not survive in /run-like trees; on disk it does, empty.
    for directory in std::fs::read_dir(rig.tree("publish")).unwrap() {
        let _gone = std::fs::remove_dir(directory.unwrap().path().join("target"));
    }
    rig.wrap = rebooted;
    rig.start().await;
    rig.called(Rpc::NodePublishVolume, 2).await;
    rig.published("app").await;
    assert_eq!((rig.count(Rpc::NodeStageVolume), rig.count(Rpc::NodePublishVolume)), (2, 2));
    assert_eq!(rig.count(Rpc::ControllerPublishVolume), 1, "the attachment is not the node's to make again");
    rig.end_all().await;
    rig.finish().await;
}
