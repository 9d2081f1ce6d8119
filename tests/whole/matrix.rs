//! SIGKILL to the daemon, a plugin and a task, in every order: what was not killed is not touched, what was comes back,
//! and the volume is mounted all the time. One falls while what the one before brought about is under way, or was seen, or is
//! being mended by the next daemon.
use std::collections::BTreeMap;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::booted;
use crate::containerd;
use crate::containers::Driver;
use crate::its::{Containerd, RunsIn};
use crate::quickstart::{QUICKSTART, greeting, started, volume_calls};
use crate::rig::{Rig, until};

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Daemon,
    Plugin,
    Task,
    PluginsShim,
    TasksShim,
}

use Victim::{Daemon, Plugin, PluginsShim, Task, TasksShim};

/// When the next one is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// At once.
    AtOnce,
    /// When it was seen what followed from the one before: by the daemon if it lives, else by its process being gone.
    Seen,
    /// So, and before the last one the daemon is back.
    Back,
}

use Then::{AtOnce, Back, Seen};

/// The allocation named like this.
fn allocation(rig: &Rig, name: &str) -> Value {
    let named = |a: &Value| a["metadata"]["name"].as_str().is_some_and(|full| full.starts_with(name));
    rig.list("allocations").into_iter().find(named).unwrap()
}

/// What changes when a task falls: its starts and state, and of the plugin when it last became ready or ceased to be.
fn standing(rig: &Rig, name: &str) -> (Value, Value, Value) {
    let task = allocation(rig, name)["status"]["tasks"][0].clone();
    let instances = if name == "dir" { rig.list("plugininstances") } else { Vec::new() };
    let ready = instances.first().map(|instance| crate::scene::condition(instance, "Ready"));
    (task["restarts"].clone(), task["state"].clone(), ready.unwrap_or_default()["lastTransitionTime"].clone())
}

/// A process of the task that an allocation named like this runs: its own, or its shim's; none between two runs.
fn pid(rig: &Rig, allocation: &str, whose: &str) -> Option<i32> {
    let uid = self::allocation(rig, allocation)["metadata"]["uid"].as_str().unwrap().to_owned();
    let tasks = std::fs::read_dir(rig.data.path().join("tasks")).unwrap().flatten();
    let directory = tasks.map(|entry| entry.path()).find(|path| path.to_str().unwrap().contains(&uid))?;
    let state: Value = serde_json::from_slice(&std::fs::read(directory.join("state.json")).ok()?).unwrap();
    i32::try_from(state[whose]["pid"].as_i64()?).ok()
}

/// Those of the task and of the plugin.
fn pids(rig: &Rig, whose: &str) -> BTreeMap<&'static str, i32> {
    ["hello", "dir"].map(|name| (name, pid(rig, name, whose).unwrap())).into()
}

/// How the two are run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    Processes,
    Containers,
    /// Of a containerd that goes on.
    Containerds,
    /// In units of systemd's.
    Units,
}

impl As {
    fn up(self, rig: &mut Rig) {
        match self {
            Self::Processes | Self::Units => rig.up(),
            Self::Containers | Self::Containerds => Driver::Lent.up(rig),
        }
    }

    fn started(self, rig: &Rig) {
        match self {
            Self::Processes => started(rig),
            Self::Containers => from(rig, &Driver::Lent.manifest()),
            Self::Containerds => from(rig, &containerd::manifest()),
            Self::Units => from(rig, &QUICKSTART.replace("process:", "systemd:")),
        }
    }
}

fn from(rig: &Rig, manifest: &str) {
    rig.apply(manifest);
    rig.wait_ready("allocation/hello");
    assert_eq!(greeting(rig), "hello from wharfline\n");
}

/// Waits for what follows from a kill of this task's process or shim, which was `pid`.
fn follows(rig: &Rig, name: &str, pid: i32, before: &(Value, Value, Value)) {
    if !rig.is_up() {
        // A process that nobody has waited for yet has no command any more.
        let gone = || std::fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |line| line.is_empty());
        return until(&format!("{name} is gone"), gone);
    }
    until(&format!("it is seen that {name} fell"), || {
        let now = standing(rig, name);
        let fell = now.0 != before.0 || now.1 != before.1;
        // That it is not ready is seen of each plugin, however soon the next process is.
        fell && (name != "dir" || now.2 != before.2)
    });
}

fn killed_in_this_order(run: As, order: &[Victim], then: Then) {
    let mut rig = Rig::new();
    let directory = tempfile::tempdir().unwrap();
    let its = (run == As::Containerds).then(|| {
        let its = containerd::wait(Containerd::start(directory.path(), RunsIn::Machine));
        containerd::node_file(&rig, &its.socket());
        its
    });
    run.up(&mut rig);
    run.started(&rig);
    let (mounts, calls, before) = (rig.mounts(), volume_calls(&rig), pids(&rig, "task"));
    let (shims, stood) = (pids(&rig, "shim"), ["hello", "dir"].map(|name| (name, standing(&rig, name))));
    let stood = BTreeMap::from(stood);
    for (at, &victim) in order.iter().enumerate() {
        let last = at + 1 == order.len();
        if last && then == Back && !rig.is_up() {
            run.up(&mut rig);
        }
        let (name, pid) = match victim {
            Daemon => {
                rig.kill();
                continue;
            }
            Plugin => ("dir", before["dir"]),
            Task => ("hello", before["hello"]),
            PluginsShim => ("dir", shims["dir"]),
            TasksShim => ("hello", shims["hello"]),
        };
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        if then != AtOnce && !last {
            follows(&rig, name, pid, &stood[name]);
        }
    }
    if !rig.is_up() {
        run.up(&mut rig);
    }
    let [plugin_fell, task_fell] =
        [[Plugin, PluginsShim], [Task, TasksShim]].map(|ways| ways.iter().any(|way| order.contains(way)));
    let lives = |pid: i32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    let told = |name: &str, fell: bool| {
        until(&format!("{order:?}: {name} runs"), || {
            pid(&rig, name, "task").is_some_and(|now| (now != before[name]) == fell && lives(now))
        });
    };
    told("hello", task_fell);
    told("dir", plugin_fell);
    rig.wait_ready("plugin/dir");
    rig.wait_ready("allocation/hello");
    let lines = 1 + usize::from(task_fell);
    until(&format!("{order:?}: {lines} greetings"), || greeting(&rig).lines().count() == lines);
    assert_eq!(rig.mounts(), mounts, "{order:?}: a mount was touched");
    assert_eq!(volume_calls(&rig), calls, "{order:?}: a call was made");
    rig.run(&["down", "--delete-volumes"]);
    rig.ended();
    rig.assert_nothing_left();
    if let Some(its) = its {
        let left = its.ctr("wharfline", &["containers", "list", "--quiet"]);
        assert_eq!(left.trim(), "", "{order:?}");
    }
}

#[test]
fn one_of_daemon_plugin_and_task_is_killed() {
    for victim in [Daemon, Plugin, Task, PluginsShim, TasksShim] {
        killed_in_this_order(As::Processes, &[victim], AtOnce);
    }
}

#[test]
fn two_of_daemon_plugin_and_task_are_killed_in_either_order() {
    for (one, other) in [(Daemon, Plugin), (Daemon, Task), (Plugin, Task)] {
        killed_in_this_order(As::Processes, &[one, other], AtOnce);
        killed_in_this_order(As::Processes, &[other, one], AtOnce);
    }
}

fn every_order(run: As, [a, b, c]: [Victim; 3], then: Then) {
    for order in [[a, b, c], [a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]] {
        // The daemon cannot be back before it falls.
        if then != Back || order[2] != Daemon {
            killed_in_this_order(run, &order, then);
        }
    }
}

#[test]
fn daemon_plugin_and_task_are_killed_in_every_order() {
    every_order(As::Processes, [Daemon, Plugin, Task], Seen);
}

#[test]
fn the_last_of_daemon_plugin_and_task_is_killed_when_the_daemon_is_back() {
    every_order(As::Processes, [Daemon, Plugin, Task], Back);
}

#[test]
fn the_daemon_and_the_shims_are_killed_in_every_order() {
    every_order(As::Processes, [Daemon, PluginsShim, TasksShim], Seen);
}

#[test]
fn one_of_daemon_driver_and_task_is_killed_where_they_are_containers() {
    for victim in [Daemon, Plugin, Task, PluginsShim, TasksShim] {
        killed_in_this_order(As::Containers, &[victim], AtOnce);
    }
}

#[test]
fn daemon_driver_and_task_are_killed_in_every_order_where_they_are_containers() {
    every_order(As::Containers, [Daemon, Plugin, Task], Seen);
}

#[test]
fn the_daemon_and_the_shims_of_containers_are_killed_in_every_order() {
    every_order(As::Containers, [Daemon, PluginsShim, TasksShim], AtOnce);
}

#[test]
fn one_of_daemon_driver_and_task_is_killed_where_they_are_containerds() {
    for victim in [Daemon, Plugin, Task, PluginsShim, TasksShim] {
        killed_in_this_order(As::Containerds, &[victim], AtOnce);
    }
}

#[test]
fn daemon_driver_and_task_are_killed_in_every_order_where_they_are_containerds() {
    every_order(As::Containerds, [Daemon, Plugin, Task], Seen);
}

#[test]
fn the_daemon_and_the_shims_of_containerds_containers_are_killed_in_every_order() {
    every_order(As::Containerds, [Daemon, PluginsShim, TasksShim], AtOnce);
}

/// Inside of a container that systemd boots, as a process beside it: as its service the daemon is started again at once.
#[test]
fn daemon_driver_and_task_are_killed_in_every_order_where_they_are_units() {
    if !booted::inside() {
        return booted::again_inside(
            "matrix::daemon_driver_and_task_are_killed_in_every_order_where_they_are_units",
        );
    }
    every_order(As::Units, [Daemon, Plugin, Task], Seen);
}
