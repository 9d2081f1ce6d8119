//! The real binary is killed at a named effect of the quickstart's life, and its successor goes on from there.
//!
//! The names are those that `WHARFLINE_EFFECTS` records; the simulation goes through all effects, these are the ones
//! at which something is begun and not yet known to be done. Asserted of each: the task was started once (it adds a line
//! to a file each time), there is one backend volume, no call is made again but the one that was under way, and nothing
//! is left at the end.
use std::path::PathBuf;

use crate::quickstart::{QUICKSTART, greeting};
use crate::rig::{Rig, until};

/// When the process is killed.
#[derive(Clone, Copy, PartialEq)]
enum During {
    Up,
    Down,
}
use During::{Down, Up};

/// The calls that change something, and how often each was made, in both lives together.
const MUTATING: [&str; 4] = ["CreateVolume", "NodePublishVolume", "NodeUnpublishVolume", "DeleteVolume"];

struct Life {
    rig: Rig,
    effects: PathBuf,
}

impl Life {
    fn new() -> Self {
        let rig = Rig::new();
        let effects = rig.data.path().with_extension("effects");
        Self { rig, effects }
    }

    fn start(&mut self, kill_at: Option<&str>) {
        let effects = self.effects.to_str().unwrap().to_owned();
        let mut variables = vec![("WHARFLINE_EFFECTS", effects.as_str())];
        variables.extend(kill_at.map(|at| ("WHARFLINE_KILL_AT", at)));
        self.rig.up_under(&variables);
    }

    fn times(&self, effect: &str) -> usize {
        std::fs::read_to_string(&self.effects).unwrap().lines().filter(|line| *line == effect).count()
    }

    /// The command line's answer does not matter: its server may be killed under it.
    fn attempt(&self, args: &[&str]) {
        let file = self.rig.data.path().with_extension("yaml");
        std::fs::write(&file, QUICKSTART).unwrap();
        let _whatever_it_said =
            self.rig.command(args).arg("-f").arg(file).stderr(std::process::Stdio::null()).output().unwrap();
    }

    fn runs(&self) {
        self.rig.apply(QUICKSTART);
        self.rig.wait_ready("allocation/hello");
        self.rig.wait_ready("plugin/dir");
        assert_eq!(greeting(&self.rig), "hello from wharfline\n", "the task was started more than once");
        let volumes = self.rig.data.path().join("drivers/dir/volumes");
        assert_eq!(std::fs::read_dir(volumes).unwrap().count(), 1, "backend volumes");
    }

    fn ends(&mut self) {
        let file = self.rig.data.path().with_extension("yaml");
        self.rig.run(&["delete", "--ignore-not-found", "-f", file.to_str().unwrap()]);
        for kind in
            ["plugins", "plugininstances", "volumeclaims", "volumes", "volumeattachments", "allocations"]
        {
            until(&format!("no {kind} are left"), || self.rig.list(kind).is_empty());
        }
        let volumes = self.rig.data.path().join("drivers/dir/volumes");
        assert_eq!(std::fs::read_dir(volumes).unwrap().count(), 0, "a backend volume is left");
        self.rig.terminate();
        self.rig.run(&["down"]);
        self.rig.assert_nothing_left();
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.effects);
    }
}

/// One life with a kill in it; `again` is the call that may be made a second time.
fn life(during: During, kill_at: &str, again: Option<&str>) {
    let mut life = Life::new();
    life.start(Some(kill_at));
    if during == Up {
        life.attempt(&["apply"]);
    } else {
        life.runs();
        life.attempt(&["delete", "--timeout", "30s"]);
    }
    life.rig.killed();
    life.start(None);
    if during == Up {
        life.runs();
    }
    life.ends();
    for call in MUTATING {
        let (seen, most) = (life.times(call), if again == Some(call) { 2 } else { 1 });
        assert!((1..=most).contains(&seen), "{call} was made {seen} times, at most {most} wanted");
    }
}

macro_rules! killed {
    ($($test:ident: $during:expr, $at:literal, $again:expr;)+) => {$(
        #[test]
        fn $test() {
            life($during, $at, $again);
        }
    )+};
}

killed! {
    once_the_claim_is_stored: Up, "put volumeclaims: committed#1", None;
    before_the_plugin_is_started: Up, "start task#1", None;
    before_the_plugins_start_is_known: Up, "start task: shim#1", None;
    once_the_volume_is_named: Up, "put volumes: committed#1", None;
    before_the_intent_is_on_disk: Up, "journal append: done#3", None;
    before_the_volume_is_created: Up, "CreateVolume#1", Some("CreateVolume");
    before_the_created_volume_is_recorded: Up, "CreateVolume: answered#1", Some("CreateVolume");
    once_the_attachment_is_stored: Up, "put volumeattachments: committed#1", None;
    once_the_targets_parent_is_made: Up, "make directory: done#1", None;
    before_the_volume_is_published: Up, "NodePublishVolume#1", Some("NodePublishVolume");
    before_the_publication_is_recorded: Up, "NodePublishVolume: answered#1", Some("NodePublishVolume");
    before_the_task_is_started: Up, "start task#2", None;
    before_the_tasks_start_is_known: Up, "start task: shim#2", None;
    before_the_running_task_is_told_of: Up, "start task: done#2", None;
    before_the_volume_is_unpublished: Down, "NodeUnpublishVolume#1", Some("NodeUnpublishVolume");
    before_the_unpublication_is_recorded: Down, "NodeUnpublishVolume: answered#1", Some("NodeUnpublishVolume");
    once_the_target_is_removed: Down, "remove directory: done#1", Some("NodeUnpublishVolume");
    before_the_volume_is_deleted: Down, "DeleteVolume#1", Some("DeleteVolume");
    before_the_deletion_is_recorded: Down, "DeleteVolume: answered#1", Some("DeleteVolume");
    before_the_attachment_goes: Down, "delete volumeattachments#1", None;
    before_the_volume_goes: Down, "delete volumes#1", Some("DeleteVolume");
    once_the_volume_is_gone: Down, "delete volumes: committed#1", None;
}
