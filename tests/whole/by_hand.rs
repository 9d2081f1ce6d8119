//! `manifests/plugin-as-task.yaml`: a driver that a person runs as a task, and who uses it.
use crate::rig::Rig;

const PLUGIN_AS_TASK: &str = include_str!("../../manifests/plugin-as-task.yaml");

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
