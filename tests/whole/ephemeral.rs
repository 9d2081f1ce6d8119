//! A volume that is there while its allocation is, with the real driver.
use std::path::{Path, PathBuf};

use crate::rig::{Rig, until};
use crate::scene::{path, phase};

/// The directories that the driver has for such volumes.
fn homes(rig: &Rig) -> Vec<PathBuf> {
    let all = std::fs::read_dir(rig.data.path().join("drivers/dir/ephemeral")).unwrap();
    all.map(|entry| entry.unwrap().path()).collect()
}

/// Scenario B90.
#[test]
fn an_ephemeral_volume_comes_and_goes_with_its_allocation() {
    let mut rig = Rig::new();
    rig.up();
    rig.apply(include_str!("../../manifests/ephemeral.yaml"));
    rig.wait_ready("allocation/build");
    let file = || Path::new(&path(&rig, "build")).join("began");
    until("the task has written", || file().exists());
    let began = std::fs::read_to_string(file()).unwrap();
    assert_eq!(homes(&rig).len(), 1);
    let volume = rig.list("volumes").remove(0);
    assert!(volume["status"]["controller"].is_null(), "nobody made it");
    // A daemon that is killed and comes back leaves it alone.
    let mounts = rig.mounts();
    rig.kill();
    rig.up();
    rig.wait_ready("allocation/build");
    assert_eq!(rig.mounts(), mounts);
    let file = || Path::new(&path(&rig, "build")).join("began");
    assert_eq!(std::fs::read_to_string(file()).unwrap(), began);
    // Audited, it is nobody's orphan.
    rig.run(&["volume", "audit"]);
    // Stopped and started again it begins empty.
    let stop = |stop: &str| {
        rig.run(&["patch", "allocation", "build", "-p", &format!("{{\"spec\":{{\"stop\":{stop}}}}}")])
    };
    stop("true");
    until("it is stopped", || phase(&rig, "build") == "Stopped");
    until("its data is gone", || homes(&rig).is_empty());
    stop("false");
    until("it runs again", || phase(&rig, "build") == "Running");
    until("the task has written", || file().exists());
    rig.run(&["delete", "allocation", "build"]);
    until("nothing of it is left", || rig.list("volumes").is_empty() && rig.list("volumeclaims").is_empty());
    assert!(homes(&rig).is_empty());
    rig.run(&["delete", "plugin", "dir"]);
    until("no plugin is left", || rig.list("plugins").is_empty() && rig.list("allocations").is_empty());
    rig.terminate();
    rig.run(&["down"]);
    rig.assert_nothing_left();
}
