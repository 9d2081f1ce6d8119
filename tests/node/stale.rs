//! Mounts that die or go while they are up are told, and touched by nobody.
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use serde_json::{Value, json};
use wharfline::csi::Rpc;
use wharfline::node::supervisor::HEARTBEAT;

use crate::support::fuse::{FILE, Fuse};
use crate::support::node::{Rig, Special, condition, condition_reason, forgetful, until};
use crate::support::scripted::Config;

/// Where the backend has the files of a volume that is up.
pub(crate) async fn home(rig: &Rig, volume: &str) -> PathBuf {
    let volume = rig.volumes.get(volume).await.unwrap();
    rig.files.path().join("volumes").join(volume.status.unwrap().handle.replace('/', "-"))
}

/// A task that has the volume at `/data` and writes `done` there once somebody has put `go` beside it.
fn task() -> Value {
    let script = "while ! test -e /data/go; do sleep 0.05; done; echo yes > /data/done; exec sleep infinity";
    json!({ "volumes": [{ "name": "data", "claimName": "data" }],
        "tasks": [{ "name": "t", "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
            "runtime": { "process": { "command": ["/bin/sh", "-c", script] } } }] })
}

pub(crate) fn volumes_ready(reason: &'static str) -> impl Fn(&Value) -> bool {
    move |a| condition_reason(a, "VolumesReady") == Some(reason)
}

pub(crate) fn well(a: &Value) -> bool {
    condition(a, "VolumesReady", "True")
        && a["status"]["volumes"][0]["published"] == "Up"
        && a["status"]["volumes"][0]["path"].is_string()
}

pub(crate) fn message(object: &Value, kind: &str) -> String {
    let all = object["status"]["conditions"].as_array().unwrap();
    all.iter().find(|c| c["type"] == kind).unwrap()["message"].as_str().unwrap().to_owned()
}

async fn json(rig: &Rig, name: &str) -> Value {
    serde_json::to_value(rig.allocs.get(name).await.unwrap()).unwrap()
}

/// An allocation with its volume at a path of the host, and that path.
async fn at_host(heartbeat: Duration) -> (Rig, PathBuf) {
    let mut rig = Rig::idle(Config::full()).await;
    let allowed = rig.files.path().join("host");
    std::fs::create_dir_all(&allowed).unwrap();
    rig.options.host_paths = vec![allowed.clone()];
    rig.options.heartbeat = heartbeat;
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let path = allowed.join("data");
    let mut spec = task();
    spec["volumes"][0]["hostPath"] = json!(path);
    let app = rig.alloc("app", spec).await;
    rig.give(&[&app], &Special::default()).await;
    rig.published("app").await;
    (rig, path)
}

/// The driver ends and comes back, which its supervisor sees at once.
async fn restart_plugin(rig: &mut Rig) {
    rig.plugin.stop().await;
    rig.not_ready("NoSocket").await;
    rig.plugin.serve();
    rig.ready().await;
}

pub(crate) async fn count(rig: &Rig, reason: &str) -> usize {
    rig.events_until(reason).await.iter().filter(|(r, _)| r == reason).count()
}

/// Scenario B117.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fuse_mount_that_died_with_its_driver_is_told_and_touched_by_nobody() {
    let mut rig = Rig::new(Config::full()).await;
    let app = rig.alloc("app", task()).await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let mut fuse = Fuse::mount(&home(&rig, "vol-1").await);
    rig.attach("vol-1", &[&app], &Special::default()).await;
    let path = PathBuf::from(&rig.published("app").await.status.unwrap().volumes[0].path);
    assert_eq!(std::fs::read(path.join(FILE.0)).unwrap(), FILE.1);
    let calls = rig.backend.order();
    fuse.kill();
    rig.plugin.stop().await;
    let app = rig.world.until(&rig.allocs, "app", "stale", volumes_ready("MountStale")).await;
    let app = serde_json::to_value(app).unwrap();
    let said = message(&app, "VolumesReady");
    for word in ["\"vol-1\"", "ENOTCONN", path.to_str().unwrap(), "plugin \"scripted\""] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let volume = &app["status"]["volumes"][0];
    assert_eq!((&volume["published"], volume["path"].as_str()), (&json!("Unknown"), None));
    assert_eq!(condition_reason(&app, "Ready"), Some("MountStale"), "its tasks get errors");
    assert_eq!(
        (&app["status"]["phase"], &app["status"]["tasks"][0]["state"]),
        (&json!("Running"), &json!("Running"))
    );
    let told = |a: &Value| {
        a["status"]["node"]["reason"] == "MountStale"
            && a["status"]["node"]["staged"] == "Unknown"
            && condition(a, "Ready", "False")
    };
    rig.world.until(&rig.attachments, "att-1", "stale", told).await;
    rig.plugin.serve();
    rig.ready().await;
    // A new daemon does not say for a moment that all is well.
    let status = "/apis/wharfline.dev/v1alpha1/namespaces/default/allocations/app/status";
    let written = rig.link.patches(status);
    assert!(written > 0);
    rig.kill().await;
    rig.start().await;
    rig.ready().await;
    assert_eq!(rig.link.patches(status), written);
    let app = json(&rig, "app").await;
    assert_eq!(condition_reason(&app, "VolumesReady"), Some("MountStale"));
    assert_eq!(app["status"]["tasks"][0]["restarts"].as_u64().unwrap_or(0), 0);
    assert_eq!(rig.backend.order(), calls, "nobody called for it");
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    fuse.finish();
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// And its return, too; each change once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unmount_behind_the_daemons_back_is_seen_while_it_runs() {
    let rig = Rig::new(Config::full()).await;
    let path = rig.running().await.status.unwrap().volumes[0].path.clone();
    let staging = rig.mounted().into_iter().find(|p| p.contains("/staging/")).unwrap();
    let calls = rig.backend.order();
    unmount(&path, UnmountFlags::DETACH).unwrap();
    let app = rig.world.until(&rig.allocs, "app", "lost", volumes_ready("MountLost")).await;
    let app = serde_json::to_value(app).unwrap();
    assert_eq!(app["status"]["volumes"][0]["published"], "Unknown");
    assert!(message(&app, "VolumesReady").contains(&path), "{app:#}");
    assert_eq!(condition_reason(&app, "Ready"), Some("MountLost"), "without tasks its path is all there is");
    assert_eq!(app["status"]["phase"], "Running");
    // Something else in its place is as bad as nothing.
    mount_bind(rig.files.path(), &path).unwrap();
    let other = |a: &Value| message(a, "VolumesReady").contains("is not what was mounted there");
    rig.world.until(&rig.allocs, "app", "told of the other", other).await;
    unmount(&path, UnmountFlags::empty()).unwrap();
    let home = home(&rig, "vol-1").await;
    mount_bind(&home, &path).unwrap();
    rig.world.until(&rig.allocs, "app", "well again", well).await;
    assert_eq!((count(&rig, "MountLost").await, count(&rig, "MountWell").await), (1, 1));
    unmount(&staging, UnmountFlags::DETACH).unwrap();
    let lost = |a: &Value| a["status"]["node"]["reason"] == "MountLost" && condition(a, "Ready", "False");
    rig.world.until(&rig.attachments, "att-1", "lost", lost).await;
    assert!(well(&json(&rig, "app").await), "what is published from it stays");
    mount_bind(&home, &staging).unwrap();
    let again = |a: &Value| a["status"]["node"]["staged"] == "Up" && condition(a, "Ready", "True");
    rig.world.until(&rig.attachments, "att-1", "well again", again).await;
    assert_eq!(rig.backend.order(), calls, "nobody called for it");
    rig.end_all().await;
    rig.finish().await;
}

/// The kernel does not say for a moment which mounts there are, and nothing else hints at it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unmount_is_seen_though_the_mounts_could_not_be_listed_when_it_was_heard_of() {
    let mut rig = Rig::idle(Config::full()).await;
    (rig.wrap, rig.options.heartbeat) = (forgetful, Duration::from_secs(3600));
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let path = rig.running().await.status.unwrap().volumes[0].path.clone();
    let tree = std::path::Path::new(&path).ancestors().find(|at| at.join("publish").is_dir()).unwrap();
    let unlisted = tree.with_file_name("unlisted");
    std::fs::write(&unlisted, "").unwrap();
    unmount(&path, UnmountFlags::DETACH).unwrap();
    // Once for what was mounted just before, and once for this: no third time is for anything but that it failed.
    until(|| std::fs::read(&unlisted).is_ok_and(|asked| asked.len() >= 3), "they are to be listed").await;
    std::fs::remove_file(&unlisted).unwrap();
    rig.world.until(&rig.allocs, "app", "lost", volumes_ready("MountLost")).await;
    mount_bind(&home(&rig, "vol-1").await, &path).unwrap();
    rig.world.until(&rig.allocs, "app", "well again", well).await;
    rig.end_all().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_keeps_its_own_mount_when_the_one_of_the_host_is_taken_away() {
    let rig = Rig::new(Config::full()).await;
    let app = rig.alloc("app", task()).await;
    rig.give(&[&app], &Special::default()).await;
    let path = rig.published("app").await.status.unwrap().volumes[0].path.clone();
    let home = home(&rig, "vol-1").await;
    unmount(&path, UnmountFlags::DETACH).unwrap();
    let app = rig.world.until(&rig.allocs, "app", "lost", volumes_ready("MountLost")).await;
    let app = serde_json::to_value(app).unwrap();
    assert!(message(&app, "VolumesReady").contains("tasks that run keep their own mount"), "{app:#}");
    assert!(condition(&app, "Ready", "True"), "it runs as before: {app:#}");
    std::fs::write(home.join("go"), "").unwrap();
    until(|| home.join("done").exists(), "the task reads and writes its volume").await;
    assert_eq!((rig.count(Rpc::NodePublishVolume), rig.count(Rpc::NodeUnpublishVolume)), (1, 0));
    rig.end_all().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_was_taken_away_from_its_path_of_the_host_is_missed() {
    let (rig, path) = at_host(HEARTBEAT).await;
    unmount(&path, UnmountFlags::empty()).unwrap();
    let app = rig.world.until(&rig.allocs, "app", "lost", volumes_ready("MountLost")).await;
    let app = serde_json::to_value(app).unwrap();
    assert!(message(&app, "VolumesReady").contains(path.to_str().unwrap()), "{app:#}");
    assert_eq!(condition_reason(&app, "Ready"), Some("MountLost"), "who goes by the path misses it");
    mount_bind(home(&rig, "vol-1").await, &path).unwrap();
    rig.world.until(&rig.allocs, "app", "well again", well).await;
    rig.end_all().await;
    rig.finish().await;
}

/// It is theirs: it is told where it is and what to do, and the way down goes on once it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_mounted_over_a_path_of_the_host_is_named_while_it_is_in_the_way_down() {
    // That something came over it no change of the table tells: the mount of ours is there still.
    let (rig, path) = at_host(Duration::from_millis(100)).await;
    rustix::mount::mount("none", &path, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    rig.world.until(&rig.allocs, "app", "lost", volumes_ready("MountLost")).await;
    rig.world.delete(&rig.allocs, "app").await;
    let said = format!("something else is mounted over the volume at {}: unmount it there", path.display());
    let named = |a: &Value| message(a, "Ready").contains(&said);
    rig.world.until(&rig.allocs, "app", "what is in the way", named).await;
    let again = |a: &Value| {
        let here = &a["status"]["node"];
        here["reason"] == "ForeignMount" && here["nextAttemptTime"].is_string()
    };
    rig.world.until(&rig.attachments, "att-1", "when it is tried again", again).await;
    assert_eq!(
        rig.count(Rpc::NodeUnpublishVolume),
        0,
        "the driver is asked once nothing of it is at the host"
    );
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "what is theirs was unmounted");
    unmount(&path, UnmountFlags::empty()).unwrap();
    rig.world.until(&rig.allocs, "app", "taken down", |a| a["status"]["phase"] == "Stopped").await;
    assert!(!path.exists(), "the directory was made for the volume");
    assert_eq!(rig.count(Rpc::NodeUnpublishVolume), 1);
    rig.end_all().await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_does_not_answer_keeps_no_other_from_being_looked_at() {
    let mut rig = Rig::new(Config::full()).await;
    let app = rig.user("app").await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let mut fuse = Fuse::mount(&home(&rig, "vol-1").await);
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.published("app").await;
    let other = rig.alloc("other", json!({ "volumes": [{ "name": "data", "claimName": "other" }] })).await;
    rig.give_second(&other).await;
    let path = rig.published("other").await.status.unwrap().volumes[0].path.clone();
    fuse.hold();
    restart_plugin(&mut rig).await;
    unmount(&path, UnmountFlags::DETACH).unwrap();
    rig.world.until(&rig.allocs, "other", "lost", volumes_ready("MountLost")).await;
    assert!(well(&json(&rig, "app").await), "its look still waits");
    // Nor anything else.
    rig.world.delete(&rig.allocs, "other").await;
    rig.world.until(&rig.allocs, "other", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    assert!(well(&json(&rig, "app").await), "its look still waits");
    let app = rig.world.until(&rig.allocs, "app", "silent", volumes_ready("MountSilent")).await;
    assert_eq!(serde_json::to_value(app).unwrap()["status"]["volumes"][0]["published"], "Unknown");
    fuse.go_on();
    rig.world.until(&rig.allocs, "app", "well again", well).await;
    rig.world.let_go(&rig.allocs, "other").await;
    rig.end_second_volume().await;
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    fuse.finish();
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

pub(crate) fn done(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_went_away_under_its_file_system_is_told() {
    let mut rig = Rig::new(Config::full()).await;
    let app = rig.user("app").await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let (image, home) = (rig.files.path().join("image"), home(&rig, "vol-1").await);
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let (disk, at) = (image.to_str().unwrap(), home.to_str().unwrap());
    done("mkfs.ext4", &["-q", disk]);
    done("mount", &["-o", "loop", disk, at]);
    rig.attach("vol-1", &[&app], &Special::default()).await;
    rig.published("app").await;
    // A loop device cannot be taken away while it is mounted; one without a size is as near as it gets.
    let device = done("losetup", &["-n", "-O", "NAME", "-j", disk]);
    std::fs::File::options().write(true).open(&image).unwrap().set_len(0).unwrap();
    done("losetup", &["-c", &device]);
    restart_plugin(&mut rig).await;
    let app = rig.world.until(&rig.allocs, "app", "stale", volumes_ready("MountStale")).await;
    let said = message(&serde_json::to_value(app).unwrap(), "VolumesReady");
    assert!(said.contains("device") && said.contains("went away"), "{said}");
    rig.end_alloc("app").await;
    rig.end_attachment().await;
    done("umount", &[at]);
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// Many volumes may be directories of one tmpfs, one overlay or one export of NFS: the device alone tells nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_directory_of_the_same_file_system_is_not_the_volume() {
    let mut rig = Rig::new(Config::full()).await;
    rig.on_tmpfs();
    let path = rig.running().await.status.unwrap().volumes[0].path.clone();
    let other = home(&rig, "vol-1").await.with_file_name("other");
    std::fs::create_dir(&other).unwrap();
    unmount(&path, UnmountFlags::DETACH).unwrap();
    mount_bind(&other, &path).unwrap();
    let lost = |a: &Value| {
        condition_reason(a, "VolumesReady") == Some("MountLost")
            && message(a, "VolumesReady").contains("is not what was mounted there")
    };
    rig.world.until(&rig.allocs, "app", "told of the other", lost).await;
    // Nor does the next daemon take it for the volume, whatever the driver says.
    rig.kill().await;
    rig.start().await;
    rig.world.until(&rig.allocs, "app", "not published", volumes_ready("NotMounted")).await;
    assert_ne!(json(&rig, "app").await["status"]["volumes"][0]["published"], "Up");
    unmount(&path, UnmountFlags::empty()).unwrap();
    rig.world.until(&rig.allocs, "app", "published anew", well).await;
    rig.end_all().await;
    rig.off_tmpfs();
    rig.finish().await;
}
