//! `manifests/plugin-as-task.yaml`: a driver that a person runs as a task, and who uses it.
use crate::rig::Rig;

const PLUGIN_AS_TASK: &str = include_str!("../../manifests/plugin-as-task.yaml");
const QUICKSTART: &str = include_str!("../../manifests/quickstart.yaml");

/// Through a running `up`, and without one. The driver is needed until its volumes are gone.
#[test]
fn down_takes_the_volumes_of_a_driver_before_the_driver() {
    for runs in [true, false] {
        let mut rig = Rig::new();
        rig.up();
        rig.apply(PLUGIN_AS_TASK);
        rig.wait_ready("allocation/user");
        let volumes = rig.data.path().join("drivers/by-hand/volumes");
        assert_eq!(std::fs::read_dir(&volumes).unwrap().count(), 1);
        if !runs {
            rig.terminate();
        }
        rig.run(&["down", "--delete-volumes", "--timeout", "60s"]);
        if runs {
            rig.ended();
        }
        assert_eq!(std::fs::read_dir(&volumes).unwrap().count(), 0, "a backend volume is left");
        rig.assert_nothing_left();
    }
}

/// A driver of a person that has a volume of another driver, and a volume that no claim takes along: each waits for the end
/// of the other, unless both are asked for.
#[test]
fn down_takes_a_kept_volume_from_a_driver_that_has_one_of_another_driver() {
    let mut rig = Rig::new();
    rig.up();
    let kept = PLUGIN_AS_TASK.replace("plugin: dir-by-hand", "plugin: dir-by-hand\n  reclaimPolicy: Retain");
    let other = "  volumes:\n    - name: other\n      claimName: other\n  tasks:\n    - name: driver";
    rig.apply(&kept.replacen("  tasks:\n    - name: driver", other, 1));
    let (other, _user) = QUICKSTART.rsplit_once("---\n").unwrap();
    rig.apply(&other.replace("name: data", "name: other"));
    rig.wait_ready("allocation/user");
    let volumes = rig.data.path().join("drivers/by-hand/volumes");
    rig.run(&["down", "--delete-volumes", "--timeout", "60s"]);
    rig.ended();
    assert_eq!(std::fs::read_dir(&volumes).unwrap().count(), 1, "what is kept is gone");
    std::fs::remove_dir_all(&volumes).unwrap();
    rig.assert_nothing_left();
}
