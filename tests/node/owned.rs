//! The group that a claim names: told to the driver, or given the files by the node.
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use serde_json::{Value, json};
use wharfline::csi::Rpc;
use wharfline::csi::proto::volume_capability::AccessType;
use wharfline::csi::proto::{self, VolumeCapability};

use crate::stale::home;
use crate::support::node::{Rig, Special, condition_message, condition_reason, ungiving};
use crate::support::scripted::{Ask, Config};

const GROUP: u32 = 54_321;
/// VOLUME_MOUNT_GROUP of the node service.
const MOUNT_GROUP: i32 = 6;

fn of_group(more: &Value) -> Special {
    let mut attachment = json!({ "fsGroup": GROUP,
        "capability": { "accessMode": "SingleNodeWriter", "fsType": "ext4" } });
    json_patch::merge(&mut attachment, more);
    Special { attachment, ..Special::default() }
}

/// The volume is there with a private file in it, and is attached for `app`.
async fn given(rig: &Rig, special: &Special) -> std::path::PathBuf {
    let app = rig.user("app").await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let file = home(rig, "vol-1").await.join("file");
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    rig.attach("vol-1", &[&app], special).await;
    file
}

fn group_of(capability: Option<&VolumeCapability>) -> String {
    match capability.and_then(|capability| capability.access_type.as_ref()) {
        Some(AccessType::Mount(mount)) => mount.volume_mount_group.clone(),
        other => panic!("{other:?}"),
    }
}

/// The groups that the driver was told, at attaching, staging and publishing.
fn told(rig: &Rig) -> Vec<(Rpc, String)> {
    let capability = |ask: &Ask| match ask {
        Ask::ControllerPublishVolume(proto::ControllerPublishVolumeRequest { volume_capability, .. })
        | Ask::NodeStageVolume(proto::NodeStageVolumeRequest { volume_capability, .. })
        | Ask::NodePublishVolume(proto::NodePublishVolumeRequest { volume_capability, .. }) => {
            group_of(volume_capability.as_ref())
        }
        other => panic!("{other:?}"),
    };
    let rpcs = [Rpc::ControllerPublishVolume, Rpc::NodeStageVolume, Rpc::NodePublishVolume];
    let calls = rpcs.into_iter().flat_map(|rpc| rig.backend.calls_of(rpc));
    calls.map(|call| (call.rpc, capability(&call.ask))).collect()
}

fn seen(path: &Path) -> (u32, u32) {
    let found = std::fs::metadata(path).unwrap();
    (found.gid(), found.mode() & 0o7777)
}

/// Scenario B84.
/// Obligation CO-GEN-19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_mounts_for_a_group_is_told_it_and_nobody_else_touches_an_owner() {
    let mut config = Config::full();
    config.node.push(MOUNT_GROUP);
    let mut rig = Rig::new(config).await;
    rig.plugin_object(json!({ "fsGroupPolicy": "File" })).await;
    let file = given(&rig, &of_group(&json!({}))).await;
    let before = (seen(&file), seen(file.parent().unwrap()));
    rig.published("app").await;
    let group = GROUP.to_string();
    // Whoever attaches it need not know what the driver can on the node.
    let wanted = [
        (Rpc::ControllerPublishVolume, String::new()),
        (Rpc::NodeStageVolume, group.clone()),
        (Rpc::NodePublishVolume, group.clone()),
    ];
    assert_eq!(told(&rig), wanted);
    assert_eq!((seen(&file), seen(file.parent().unwrap())), before);
    // The same in a call that is made anew by another daemon.
    rig.stop().await;
    for row in rig.mounted().into_iter().filter(|row| row.contains("/publish/")) {
        rustix::mount::unmount(row, rustix::mount::UnmountFlags::empty()).unwrap();
    }
    rig.start().await;
    rig.called(Rpc::NodePublishVolume, 2).await;
    assert_eq!(told(&rig).last(), Some(&(Rpc::NodePublishVolume, group)));
    rig.end_all().await;
    rig.finish().await;
}

/// Scenario B82.
/// Part of obligation CO-GEN-19: a driver that cannot is told nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_driver_cannot_the_node_gives_the_files_as_the_policy_says() {
    for (policy, mode, given_to_it) in [
        (json!({}), json!({}), true),
        (json!({ "fsGroupPolicy": "None" }), json!({}), false),
        (json!({}), json!({ "capability": { "fsType": null } }), false),
        (json!({ "fsGroupPolicy": "File" }), json!({ "capability": { "fsType": null } }), true),
        (json!({ "fsGroupPolicy": "File" }), json!({ "fsGroup": null }), false),
    ] {
        let case = format!("{policy} {mode}");
        let rig = Rig::new(Config::full()).await;
        rig.plugin_object(policy).await;
        let file = given(&rig, &of_group(&mode)).await;
        let before = seen(&file);
        rig.published("app").await;
        assert!(told(&rig).iter().all(|(_, group)| group.is_empty()), "{case}");
        if given_to_it {
            assert_eq!(seen(&file), (GROUP, 0o660), "{case}");
            let (group, mode) = seen(file.parent().unwrap());
            assert_eq!((group, mode & 0o2770), (GROUP, 0o2770), "{case}");
        } else {
            assert_eq!(seen(&file), before, "{case}");
            if mode["fsGroup"] != Value::Null || mode.get("fsGroup").is_none() {
                rig.told("FsGroupNotApplied", "fsGroupPolicy of its Plugin").await;
            }
        }
        rig.end_all().await;
        rig.finish().await;
    }
}

/// No task begins with files that it may not use; why is told, and it goes on by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_cannot_be_given_keep_the_tasks_waiting() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.wrap = ungiving;
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let ungiven = rig.place.data.path().join("ungiven");
    std::fs::write(&ungiven, "").unwrap();
    let file = given(&rig, &of_group(&json!({}))).await;
    let refused = |a: &Value| condition_reason(a, "VolumesReady") == Some("FsGroupNotSet");
    let app = rig.world.until(&rig.allocs, "app", "refused", refused).await;
    let app = serde_json::to_value(app).unwrap();
    let said = condition_message(&app, "VolumesReady").unwrap();
    assert!(said.contains("54321") && said.contains("read-only"), "{said}");
    assert_ne!(app["status"]["phase"], "Running");
    std::fs::remove_file(&ungiven).unwrap();
    rig.published("app").await;
    assert_eq!(seen(&file).0, GROUP);
    rig.end_all().await;
    rig.finish().await;
}

/// It takes as long as there are many files, and nobody has to guess what is going on, or to wait for its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_walk_that_takes_long_is_told_and_ends_with_its_user() {
    let mut rig = Rig::idle(Config::full()).await;
    rig.wrap = ungiving;
    rig.start().await;
    rig.register().await;
    rig.ready().await;
    let walking = rig.place.data.path().join("walking");
    std::fs::write(&walking, "").unwrap();
    let file = given(&rig, &of_group(&json!({}))).await;
    let under_way = |a: &Value| condition_reason(a, "VolumesReady") == Some("FsGroupUnderWay");
    let app = rig.world.until(&rig.allocs, "app", "told", under_way).await;
    let app = serde_json::to_value(app).unwrap();
    assert!(condition_message(&app, "VolumesReady").unwrap().contains("being given to group 54321"));
    rig.told("FsGroupUnderWay", "being given to group 54321").await;
    let staged = |a: &Value| a["status"]["node"]["staged"] == "Up";
    rig.world.until(&rig.attachments, "att-1", "staged, which is told meanwhile", staged).await;
    rig.end_alloc("app").await;
    assert!(walking.exists());
    assert_ne!(seen(&file).0, GROUP);
    rig.end_attachment().await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
}

/// A file that cannot be given is no reason to keep the others from their tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_stays_as_it_is_is_told_and_the_task_starts() {
    let rig = Rig::new(Config::full()).await;
    let app = rig.user("app").await;
    rig.ask("vol-1", &Special::default()).await;
    rig.volume_up("vol-1").await;
    let home = home(&rig, "vol-1").await;
    let [fixed, free] = ["fixed", "free"].map(|name| home.join(name));
    for file in [&fixed, &free] {
        std::fs::write(file, "").unwrap();
    }
    let handle = std::fs::File::open(&fixed).unwrap();
    let flags = rustix::fs::ioctl_getflags(&handle).unwrap();
    rustix::fs::ioctl_setflags(&handle, flags | rustix::fs::IFlags::IMMUTABLE).unwrap();
    rig.attach("vol-1", &[&app], &of_group(&json!({}))).await;
    rig.published("app").await;
    rig.told("FsGroupNotApplied", "1 of them cannot be given to group 54321").await;
    rustix::fs::ioctl_setflags(&handle, flags).unwrap();
    assert_eq!(seen(&free).0, GROUP);
    assert_ne!(seen(&fixed).0, GROUP);
    rig.end_all().await;
    rig.finish().await;
}
