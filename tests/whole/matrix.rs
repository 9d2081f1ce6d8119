//! SIGKILL to the daemon, a plugin and a task, in every order: what was not killed is not touched, what was comes back,
//! and the volume is mounted all the time.
use std::collections::BTreeMap;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::containerd;
use crate::containers::Driver;
use crate::its::{Containerd, RunsIn};
use crate::quickstart::{greeting, started, volume_calls};
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

/// A process of the task that an allocation named like this runs: its own, or its shim's; none between two runs.
fn pid(rig: &Rig, allocation: &str, whose: &str) -> Option<i32> {
    let all = rig.list("allocations");
    let named = |a: &&Value| a["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(allocation));
    let uid = all.iter().find(named).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
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
}

impl As {
    fn up(self, rig: &mut Rig) {
        match self {
            Self::Processes => rig.up(),
            Self::Containers | Self::Containerds => Driver::Lent.up(rig),
        }
    }

    fn started(self, rig: &Rig) {
        match self {
            Self::Processes => started(rig),
            Self::Containers => from(rig, &Driver::Lent.manifest()),
            Self::Containerds => from(rig, &containerd::manifest()),
        }
    }
}

fn from(rig: &Rig, manifest: &str) {
    rig.apply(manifest);
    rig.wait_ready("allocation/hello");
    assert_eq!(greeting(rig), "hello from wharfline\n");
}

fn killed_in_this_order(run: As, order: &[Victim]) {
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
    let shims = pids(&rig, "shim");
    let found: Vec<(Victim, i32)> = order
        .iter()
        .map(|&victim| match victim {
            Daemon => (victim, 0),
            Plugin => (victim, before["dir"]),
            Task => (victim, before["hello"]),
            PluginsShim => (victim, shims["dir"]),
            TasksShim => (victim, shims["hello"]),
        })
        .collect();
    for (victim, pid) in found {
        match victim {
            Daemon => rig.kill(),
            Plugin | Task | PluginsShim | TasksShim => {
                kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
            }
        }
    }
    if order.contains(&Daemon) {
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
        killed_in_this_order(As::Processes, &[victim]);
    }
}

#[test]
fn two_of_daemon_plugin_and_task_are_killed_in_either_order() {
    for (one, other) in [(Daemon, Plugin), (Daemon, Task), (Plugin, Task)] {
        killed_in_this_order(As::Processes, &[one, other]);
        killed_in_this_order(As::Processes, &[other, one]);
    }
}

fn every_order(run: As, [a, b, c]: [Victim; 3]) {
    for order in [[a, b, c], [a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]] {
        killed_in_this_order(run, &order);
    }
}

#[test]
fn daemon_plugin_and_task_are_killed_in_every_order() {
    every_order(As::Processes, [Daemon, Plugin, Task]);
}

#[test]
fn the_daemon_and_the_shims_are_killed_in_every_order() {
    every_order(As::Processes, [Daemon, PluginsShim, TasksShim]);
}

#[test]
fn one_of_daemon_driver_and_task_is_killed_where_they_are_containers() {
    for victim in [Daemon, Plugin, Task, PluginsShim, TasksShim] {
        killed_in_this_order(As::Containers, &[victim]);
    }
}

#[test]
fn the_daemon_and_the_shims_of_containers_are_killed_in_every_order() {
    every_order(As::Containers, [Daemon, PluginsShim, TasksShim]);
}

#[test]
fn one_of_daemon_driver_and_task_is_killed_where_they_are_containerds() {
    for victim in [Daemon, Plugin, Task, PluginsShim, TasksShim] {
        killed_in_this_order(As::Containerds, &[victim]);
    }
}

#[test]
fn the_daemon_and_the_shims_of_containerds_containers_are_killed_in_every_order() {
    every_order(As::Containerds, [Daemon, PluginsShim, TasksShim]);
}
