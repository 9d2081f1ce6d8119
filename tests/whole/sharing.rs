//! Several users of one volume, several volumes of one driver, and calls that fail, hang or kill it.
use std::path::Path;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;
use wharfline::csi::Rpc;

use crate::rig::{Rig, until};
use crate::scene::{
    allocation_of, apply, claim, class, condition, events, finish, handle, instance, kill, path, phase,
    plugin, starts, told, used, user,
};
use crate::scripted::steered::{Call, Steered};

/// The names of calls and how they ended.
fn ends(calls: &[Call]) -> Vec<String> {
    calls.iter().map(|call| call.over.as_ref().map_or("none".to_owned(), |(_, how)| how.clone())).collect()
}

/// Before anything is claimed.
fn what_could_not_be_mounted_is_refused(rig: &Rig, driver: &Steered) {
    let mut wrong = user("wrong", "c");
    wrong["spec"]["tasks"][0]["volumeMounts"] =
        json!([{ "name": "data", "mountPath": "/data" }, { "name": "data", "mountPath": "/data" }]);
    let file = rig.data.path().with_extension("yaml");
    std::fs::write(&file, wrong.to_string()).unwrap();
    let refused = rig.try_run(&["apply", "-f", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("spec.tasks[0].volumeMounts[1].mountPath"), "{said}");
    // What something else runs has its mounts from nobody here.
    let mut elsewhere = user("wrong", "c");
    elsewhere["spec"]["tasks"][0]["runtime"] = json!({ "external": { "socket": "/run/elsewhere.sock" } });
    std::fs::write(&file, elsewhere.to_string()).unwrap();
    let refused = rig.try_run(&["apply", "-f", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("spec.tasks[0].runtime.external"), "{said}");
    let claimed = rig.get("volumeclaim", "c");
    for field in ["volumeName", "selectedNode"] {
        assert_eq!(claimed["status"][field].as_str().unwrap_or_default(), "", "{field}");
    }
    assert_eq!(driver.order(), Vec::<String>::new());
}

/// What was mounted, staged and attached for it is undone, and no call was about another volume.
fn the_last_one_leaves(rig: &Rig, driver: &Steered, volume: &str) {
    let before = driver.order().len();
    rig.run(&["delete", "allocation", "three"]);
    until("it is detached", || rig.list("volumeattachments").is_empty());
    let last = ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"];
    assert_eq!(driver.order()[before..], last);
    assert!(
        driver.calls()[..]
            .iter()
            .filter(|call| !call.volume.is_empty() && call.rpc != "CreateVolume")
            .all(|call| call.volume == volume)
    );
}

/// Scenarios A49, A50, A51, A52, A75, B115, Q9, R1.
/// The driver insists on shared mounts, and answers ABORTED and then UNKNOWN to the first stages and publications.
#[test]
fn users_share_one_stage_whatever_is_aborted_and_whoever_leaves() {
    let (driver, mut rig) = (Steered::new(), Rig::new());
    rig.up();
    driver.profile("it", &json!({ "sharedOnly": true }));
    for rpc in [Rpc::NodeStageVolume, Rpc::NodePublishVolume] {
        driver.next(rpc, &json!({ "fail": 10 }));
        driver.next(rpc, &json!({ "fail": 2 }));
    }
    apply(
        &rig,
        &[plugin("p", &driver, "it", &json!({})), class("p"), claim("c", "p", "SingleNodeMultiWriter")],
    );
    rig.wait_ready("plugin/p");

    what_could_not_be_mounted_is_refused(&rig, &driver);

    // Two at once.
    apply(&rig, &[user("one", "c"), user("two", "c")]);
    for name in ["one", "two"] {
        rig.wait_ready(&format!("allocation/{name}"));
        until(&format!("{name} runs"), || starts(&rig, name) == 1);
        let status = rig.get("allocation", name)["status"].clone();
        assert_eq!(status["tasks"][0]["restarts"].as_u64().unwrap_or(0), 0, "{status}");
    }
    assert_eq!(ends(&driver.calls_of(Rpc::NodeStageVolume)), ["Aborted", "Unknown", "Ok"], "one stage");
    assert_eq!(
        ends(&driver.calls_of(Rpc::NodePublishVolume)),
        ["Aborted", "Unknown", "Ok", "Ok"],
        "two publications"
    );
    let attachment = rig.list("volumeattachments").remove(0);
    let (volume, paths) = (handle(&rig, "c"), [path(&rig, "one"), path(&rig, "two")]);

    // One leaves after a restart of the daemon.
    let calls = driver.order();
    rig.kill();
    rig.up();
    rig.wait_ready("plugin/p");
    rig.run(&["delete", "allocation", "one"]);
    assert_eq!(driver.order(), [&calls[..], &["NodeUnpublishVolume".to_owned()]].concat());
    assert_eq!(driver.calls_of(Rpc::NodeUnpublishVolume)[0].path, paths[0]);
    assert!(rig.mounts().iter().any(|mount| mount.ends_with(&paths[1])), "the other's is there");
    assert_eq!((starts(&rig, "two"), phase(&rig, "two").as_str()), (1, "Running"));

    // The other one leaves while a third one gets no further than between stage and publication.
    driver.next(Rpc::NodePublishVolume, &json!({ "fail": 14, "forever": true }));
    apply(&rig, &[user("three", "c")]);
    let failed = || -> Vec<Call> { driver.calls_of(Rpc::NodePublishVolume).split_off(4) };
    until("it is tried", || !failed().is_empty());
    rig.run(&["delete", "allocation", "two"]);
    // Nobody asks for it: it is called again by itself, later each time.
    until("it is tried again and again", || failed().len() >= 5);
    let times: Vec<u64> = failed().iter().map(|call| call.came).collect();
    assert!(times[4] - times[3] > times[1] - times[0], "{times:?}");
    assert!(failed().windows(2).all(|pair| pair[0].request == pair[1].request), "the same call");
    let why = rig.run(&["why", "allocation/three"]);
    assert!(why.contains("UNAVAILABLE"), "{why}");
    assert_eq!(phase(&rig, "three"), "WaitingVolumes");
    assert_eq!(driver.calls_of(Rpc::NodeUnstageVolume).len(), 0);
    assert_eq!(driver.calls_of(Rpc::ControllerUnpublishVolume).len(), 0);
    assert_eq!(rig.list("volumeattachments")[0]["metadata"]["uid"], attachment["metadata"]["uid"]);
    driver.honest(Rpc::NodePublishVolume);
    rig.wait_ready("allocation/three");
    assert_eq!(driver.calls_of(Rpc::NodeStageVolume).len(), 3);

    // A plugin stays while there is a volume of it, and says which.
    rig.run(&["delete", "plugin", "p", "--wait=false"]);
    let name = rig.list("volumes")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    until("it says what holds it", || {
        rig.run(&["why", "plugin/p"]).contains(&format!("in use by volume {name}"))
    });
    let held = instance(&rig, "p");
    assert_eq!(condition(&held, "Ready")["status"], "True");

    the_last_one_leaves(&rig, &driver, &volume);
    finish(rig, &[&driver]);
}

/// Scenarios A6, A66, B113, R1.
/// What was given up is asked again, by itself and one at a time.
#[test]
fn a_publication_that_hangs_delays_no_other_volume_and_no_other_plugin() {
    let (driver, other, mut rig) = (Steered::new(), Steered::new(), Rig::new());
    rig.up();
    driver.profile("it", &json!({}));
    other.profile("it", &json!({ "maxVolumes": 1 }));
    let mut slow = plugin("p", &driver, "it", &json!({}));
    slow["spec"]["deadlines"] = json!({ "NodePublishVolume": "1s" });
    driver
        .next(Rpc::NodePublishVolume, &json!({ "hang": "stuck", "forever": true, "volume": "backend/0001" }));
    apply(&rig, &[slow, class("p"), plugin("q", &other, "it", &json!({})), class("q")]);
    apply(&rig, &used("stuck", "p"));
    let stuck = || -> Vec<Call> {
        let mut all = driver.calls_of(Rpc::NodePublishVolume);
        all.retain(|call| call.volume == "backend/0001");
        all
    };
    until("it hangs", || stuck().first().is_some_and(|call| call.over.is_none()));
    apply(&rig, &[used("quick", "p"), used("third", "p"), used("far", "q")].concat());
    for name in ["quick", "third", "far"] {
        rig.wait_ready(&format!("allocation/{name}"));
    }
    assert_ne!(phase(&rig, "stuck"), "Running");
    until("it is asked again", || stuck().len() >= 3);
    let mut all = stuck();
    all.pop();
    // Each was given up before the next one came, and all are the same.
    assert!(ends(&all).iter().all(|how| how == "Left"), "{all:?}");
    assert!(
        all.windows(2).all(|pair| pair[0].request == pair[1].request && pair[0].process == pair[1].process)
    );
    assert_eq!(condition(&instance(&rig, "p"), "Ready")["status"], "True");
    assert!(rig.run(&["why", "allocation/stuck"]).contains("NodePublishVolume"));
    driver.open("stuck");
    rig.wait_ready("allocation/stuck");
    until("it runs", || starts(&rig, "stuck") == 1);
    driver.honest(Rpc::NodePublishVolume);

    // The other driver's node takes one volume and no more; the first one's any number.
    apply(&rig, &used("over", "q"));
    let full = || rig.run(&["why", "allocation/over"]);
    until("it is told that there is no room", || full().contains("has its limit of 1 volumes"));
    assert_eq!(other.calls_of(Rpc::ControllerPublishVolume).len(), 1);
    assert!(rig.get("allocation", "over")["status"]["nodeName"].is_null());
    rig.run(&["delete", "allocation", "far"]);
    rig.wait_ready("allocation/over");
    finish(rig, &[&driver, &other]);
}

/// Scenarios A17, B114, Q12.
/// Each driver dies once in the call that it is there for, before or after what it does; one dies again and again.
#[test]
fn a_driver_that_dies_in_a_call_gets_the_same_call_and_its_users_do_not_notice() {
    let cases = [
        ("creates", Rpc::CreateVolume, true),
        ("attaches", Rpc::ControllerPublishVolume, true),
        ("stages", Rpc::NodeStageVolume, true),
        ("stages-not", Rpc::NodeStageVolume, false),
        ("publishes", Rpc::NodePublishVolume, true),
        ("publishes-not", Rpc::NodePublishVolume, false),
        ("unpublishes", Rpc::NodeUnpublishVolume, true),
        ("unstages-not", Rpc::NodeUnstageVolume, false),
        ("detaches", Rpc::ControllerUnpublishVolume, true),
        ("deletes", Rpc::DeleteVolume, true),
    ];
    let all: Vec<_> = cases.into_iter().map(|case| (case, Steered::new())).collect();
    let mut rig = Rig::new();
    rig.up();
    let mut objects = Vec::new();
    for ((name, rpc, done), driver) in &all {
        driver.profile("it", &json!({}));
        driver.next(*rpc, &json!({ "exit": true, "afterEffect": done }));
        objects.extend([plugin(name, driver, "it", &json!({})), class(name)]);
        objects.extend(used(name, name));
    }
    apply(&rig, &objects);
    for ((name, ..), _) in &all {
        rig.wait_ready(&format!("allocation/{name}"));
        until(&format!("{name}: its user runs"), || starts(&rig, name) == 1);
    }

    // One of them dies again and again while it is used, and leaves its socket.
    let (looping, used_by) = ("deletes", rig.get("allocation", "deletes")["status"].clone());
    let mounts = rig.mounts();
    let ready = |status: &str| condition(&instance(&rig, looping), "Ready")["status"] == status;
    for _ in 0..3 {
        kill(&rig, &allocation_of(&rig, &instance(&rig, looping)));
        until("it is not ready", || ready("False"));
        until("it is ready", || ready("True"));
    }
    assert_eq!(rig.get("allocation", looping)["status"], used_by, "its user was disturbed");
    assert_eq!(rig.mounts(), mounts);
    let of = instance(&rig, looping);
    until("each edge was told", || told(&rig, &of, "PluginHealthy") == 4);
    let unwell =
        || events(&rig, &of).iter().filter(|(why, ..)| why != "PluginHealthy").map(|(.., n)| n).sum::<u64>();
    until("each edge was told once", || unwell() == 3);

    rig.run(&["delete", "allocation", "-n", "default", "--all"]);
    rig.run(&["delete", "volumeclaim", "--all"]);
    for ((name, rpc, _), driver) in &all {
        until(&format!("{name}: no volume is left"), || {
            driver.calls_of(Rpc::DeleteVolume).iter().any(|c| c.over.is_some())
        });
        let calls = driver.calls_of(*rpc);
        assert_eq!(ends(&calls), ["Gone", "Ok"], "{name}: {calls:#?}");
        assert_eq!(calls[0].request, calls[1].request, "{name}");
        assert_ne!(calls[0].process, calls[1].process, "{name}");
        let others =
            driver.calls().into_iter().filter(|call| !call.volume.is_empty() && call.rpc != rpc.name());
        let others: Vec<_> = others.map(|call| call.rpc).collect();
        assert_eq!(others.len(), 7, "{name}: each other call once: {others:?}");
    }
    finish(rig, &all.iter().map(|(_, driver)| driver).collect::<Vec<_>>());
}

fn is_mounted(rig: &Rig, at: &str) -> bool {
    rig.mounts().iter().any(|mount| mount.split(' ').nth(1) == Some(at))
}

/// Scenarios A14, A54, A55, R2.
#[test]
fn a_daemon_that_comes_back_knows_its_plugins_and_looks_at_each_mount() {
    let (driver, mut rig) = (Steered::new(), Rig::new());
    rig.up();
    driver.profile("it", &json!({}));
    apply(&rig, &[plugin("p", &driver, "it", &json!({})), class("p")]);
    let names = ["kept", "gone", "other"];
    apply(&rig, &names.map(|name| used(name, "p")).concat());
    for name in names {
        rig.wait_ready(&format!("allocation/{name}"));
        until("it runs", || starts(&rig, name) == 1);
    }
    let [kept, gone, other] = names.map(|name| path(&rig, name));
    let [kept_volume, gone_volume, other_volume] = names.map(|name| handle(&rig, name));
    until("it was told that it is well", || told(&rig, &instance(&rig, "p"), "PluginHealthy") == 1);
    let (known, calls) = (instance(&rig, "p"), driver.calls().len());
    let user = rig.get("allocation", "kept")["status"].clone();

    rig.kill();
    unmount(&gone, UnmountFlags::DETACH).unwrap();
    mount("none", &other, "tmpfs", MountFlags::empty(), None).unwrap();
    rig.up();
    let published = |name: &str| rig.get("allocation", name)["status"]["volumes"][0]["published"].clone();
    let covered =
        |rig: &Rig| condition(&rig.get("allocation", "other"), "VolumesReady")["reason"] == "MountLost";
    until("what lies above the volume is seen", || published("other") != "Up" && covered(&rig));
    until("what is gone is there again", || is_mounted(&rig, &gone) && published("gone") == "Up");
    assert!(Path::new(&gone).join("gone").exists());
    let since = || driver.calls().split_off(calls);
    let about = |volume: &str| -> Vec<String> {
        since().into_iter().filter(|call| call.volume == volume).map(|call| call.rpc).collect()
    };
    assert_eq!(about(&kept_volume), Vec::<String>::new(), "what is in place is not touched");
    assert!(about(&gone_volume).contains(&"NodePublishVolume".to_owned()), "{:?}", about(&gone_volume));
    assert!(!about(&gone_volume).contains(&"NodeStageVolume".to_owned()), "its stage was there");
    unmount(&other, UnmountFlags::empty()).unwrap();
    until("it is the volume again", || published("other") == "Up");
    assert!(Path::new(&other).join("other").exists());
    assert!(!about(&other_volume).contains(&"NodeUnstageVolume".to_owned()));
    assert_eq!(rig.get("allocation", "kept")["status"], user);

    // The plugin is what it was, and nobody is told anything.
    let again = instance(&rig, "p");
    assert_eq!(again["metadata"]["resourceVersion"], known["metadata"]["resourceVersion"], "{again}");
    assert_eq!(told(&rig, &again, "PluginHealthy"), 1);
    assert_eq!(since()[0].rpc, "Probe");
    assert!(!rig.log().contains("panicked"));

    // An unmount that fails, and neither the daemon nor the driver survives it.
    driver.next(Rpc::NodeUnpublishVolume, &json!({ "fail": 13, "forever": true }));
    rig.run(&["delete", "allocation", "kept", "--wait=false"]);
    until("it fails", || about(&kept_volume).contains(&"NodeUnpublishVolume".to_owned()));
    let why = rig.run(&["why", "allocation/kept"]);
    assert!(why.contains("NodeUnpublishVolume") && why.contains("INTERNAL"), "{why}");
    let process = allocation_of(&rig, &instance(&rig, "p"));
    rig.kill();
    kill(&rig, &process);
    driver.honest(Rpc::NodeUnpublishVolume);
    assert!(is_mounted(&rig, &kept));
    rig.up();
    until("it is gone", || !rig.list("allocations").iter().any(|a| a["metadata"]["name"] == "kept"));
    assert!(!is_mounted(&rig, &kept));
    let undone = driver.calls_of(Rpc::NodeUnpublishVolume).pop().unwrap();
    assert_eq!((undone.volume, undone.over.map(|(_, how)| how)), (kept_volume, Some("Ok".to_owned())));
    assert!(is_mounted(&rig, &gone) && is_mounted(&rig, &other));
    finish(rig, &[&driver]);
}

/// Scenarios B117, Q18.
/// A driver in the way of each read dies: by the policy of each user nothing is done, or it is mounted anew and the task
/// starts again.
#[test]
fn what_a_driver_served_dies_with_it_and_is_healed_for_those_who_want_it() {
    let all: Vec<_> =
        ["None", "Remount", "Restart"].map(|policy| (policy, policy.to_lowercase(), Steered::new())).into();
    let mut rig = Rig::new();
    rig.up();
    let mut objects = Vec::new();
    for (policy, name, driver) in &all {
        driver.profile("it", &json!({ "servesFiles": true }));
        let [claim, mut user] = used(name, name);
        user["spec"]["volumes"][0]["onStaleMount"] = json!(policy);
        let script = format!("cat /data/{} && exec sleep infinity", crate::fuse::FILE.0);
        user["spec"]["tasks"][0]["runtime"]["process"]["command"] = json!(["/bin/sh", "-c", script]);
        objects.extend([plugin(name, driver, "it", &json!({})), class(name), claim, user]);
    }
    apply(&rig, &objects);
    let calls: Vec<_> = all
        .iter()
        .map(|(_, name, driver)| {
            rig.wait_ready(&format!("allocation/{name}"));
            until("it has read", || rig.run(&["logs", name]).contains("from userspace"));
            driver.order().len()
        })
        .collect();
    let task = |name: &str| rig.get("allocation", name)["status"]["tasks"][0].clone();
    for (_, name, _) in &all {
        kill(&rig, &allocation_of(&rig, &instance(&rig, name)));
    }
    for ((policy, name, driver), calls) in all.iter().zip(calls) {
        if *policy == "None" {
            let stale = || condition(&rig.get("allocation", name), "VolumesReady");
            until("that it is dead is told", || stale()["reason"] == "MountStale");
            assert!(stale()["message"].as_str().unwrap().contains("ENOTCONN"), "{}", stale());
            rig.wait_ready(&format!("plugin/{name}"));
            continue;
        }
        until(&format!("{name}: it runs again"), || {
            let now = task(name);
            now["restarts"] == 1 && now["state"] == "Running" && rig.run(&["logs", name]).lines().count() == 2
        });
        rig.wait_ready(&format!("allocation/{name}"));
        let anew = ["NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume"];
        assert_eq!(driver.order()[calls..], anew, "{name}");
        let read = std::fs::read(Path::new(&path(&rig, name)).join(crate::fuse::FILE.0)).unwrap();
        assert_eq!(read, crate::fuse::FILE.1);
    }
    let (_, name, driver) = &all[0];
    assert_eq!(task(name)["restarts"].as_u64().unwrap_or(0), 0);
    assert_eq!(driver.order().last().unwrap(), "NodePublishVolume", "it is touched by nobody");
    finish(rig, &all.iter().map(|(.., driver)| driver).collect::<Vec<_>>());
}
