//! The daemon as a service of systemd, with a driver and a task in units of their own: inside of a container that systemd
//! boots.
use std::process::Command;

use serde_json::Value;

use crate::booted;
use crate::quickstart::{QUICKSTART, greeting, volume_calls};
use crate::rig::{Rig, WHARFLINE, until};

/// What is shipped.
const SERVICE: &str = include_str!("../../deploy/wharfline.service");

fn systemctl(args: &[&str]) -> String {
    let output = Command::new("systemctl").arg("--no-pager").args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The units of tasks, by name.
fn units() -> Vec<String> {
    let lines = systemctl(&["list-units", "--plain", "--no-legend", "wharfline-*.scope"]);
    let mut units: Vec<_> = lines.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    units.sort();
    units
}

fn property(unit: &str, name: &str) -> String {
    systemctl(&["show", "--value", "-p", name, unit])
}

/// The numbers of all processes of a unit.
fn pids(unit: &str) -> Vec<String> {
    let path = format!("/sys/fs/cgroup/unified{}", property(unit, "ControlGroup"));
    let lists =
        [path.clone(), format!("{path}/task")].map(|at| std::fs::read_to_string(at + "/cgroup.procs"));
    lists.into_iter().flat_map(|list| list.unwrap().lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// How the service ends what is in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// As systemd does when nothing is said: all of it.
    All,
    /// As it is shipped.
    AsShipped,
}

/// Runs the daemon as a service, with these lines beyond what is shipped.
fn service(rig: &Rig, ends: Ends, more: &str) {
    let data = rig.data.path().to_str().unwrap();
    let command =
        format!("ExecStart={WHARFLINE} up --data-dir {data} --listen 127.0.0.1:0 --node-name node-a");
    let says_how = |line: &str| line.starts_with("KillMode=") || line.starts_with("Delegate=");
    let of_ours = |line: &&str| ends == Ends::AsShipped || !says_how(line);
    let lines = SERVICE.lines().filter(of_ours);
    let lines: Vec<_> =
        lines.map(|line| if line.starts_with("ExecStart=") { command.as_str() } else { line }).collect();
    let log = format!("[Service]\nStandardError=append:{data}.log\n{more}");
    std::fs::create_dir_all("/etc/systemd/system/wharfline.service.d").unwrap();
    std::fs::write("/etc/systemd/system/wharfline.service.d/log.conf", log).unwrap();
    std::fs::write("/etc/systemd/system/wharfline.service", lines.join("\n")).unwrap();
    systemctl(&["daemon-reload"]);
}

fn is_up(rig: &Rig) {
    until("the daemon serves", || rig.try_run(&["get", "nodes"]).status.success());
}

fn task(rig: &Rig) -> Value {
    rig.get("allocation", "hello")["status"]["tasks"][0].clone()
}

/// Scenario B119.
#[test]
fn a_service_that_is_restarted_leaves_its_tasks_alone() {
    if !booted::inside() {
        return booted::again_inside("systemd::a_service_that_is_restarted_leaves_its_tasks_alone");
    }
    let rig = Rig::new();
    service(&rig, Ends::All, "");
    systemctl(&["start", "wharfline.service"]);
    is_up(&rig);
    assert_eq!(property("wharfline.service", "KillMode"), "control-group");
    let limited = "      resources: { limits: { memory: 64Mi, pids: \"16\" } }\n      volumeMounts:";
    let manifest = QUICKSTART.replace("process:", "systemd:").replace("      volumeMounts:", limited);
    rig.apply(&manifest);
    rig.wait_ready("allocation/hello");
    assert_eq!(greeting(&rig), "hello from wharfline\n");
    let agent = rig.get("nodeagent", "node-a");
    assert!(agent["status"]["runtimes"].as_array().unwrap().contains(&"systemd".into()), "{agent}");

    let before = units();
    let found = |word: &str| -> String {
        let is = |unit: &&String| property(unit, "Description").contains(word);
        before.iter().find(is).unwrap_or_else(|| panic!("no unit of {word}: {before:?}")).clone()
    };
    let (driver, writer) = (
        found("Wharfline task plugin of allocation wharfline-system/"),
        found("Wharfline task writer of allocation default/hello on node node-a"),
    );
    assert_eq!(before.len(), 2);
    for (name, value) in [("MemoryMax", "67108864"), ("TasksMax", "17"), ("Slice", "wharfline.slice")] {
        assert_eq!(property(&writer, name), value, "{name}");
    }
    assert!(systemctl(&["status", &writer]).contains("sleep infinity"));
    let all = || (units(), pids(&driver), pids(&writer), rig.mounts(), volume_calls(&rig), task(&rig));
    let running = all();

    // All of the service is killed, and nothing else.
    systemctl(&["restart", "wharfline.service"]);
    is_up(&rig);
    rig.wait_ready("allocation/hello");
    rig.wait_ready("plugin/dir");
    assert_eq!(all(), running, "nothing of them was started again, no mount was touched, no call made");
    systemctl(&["kill", "--signal=KILL", "wharfline.service"]);
    until("it was started again", || property("wharfline.service", "NRestarts") != "0");
    is_up(&rig);
    rig.wait_ready("plugin/dir");
    assert_eq!(all(), running);

    // A unit that somebody stops is a task that ended, and its policy says what comes next.
    systemctl(&["stop", &writer]);
    until("the task was started again", || task(&rig)["restarts"] == 1 && task(&rig)["state"] == "Running");
    assert_eq!(task(&rig)["exitCode"], 143, "{}", task(&rig));
    assert_eq!(units(), before, "under the same name");
    assert_ne!(pids(&writer), running.2);

    rig.run(&["delete", "allocation/hello", "volumeclaim/data", "volumeclass/dir", "plugin/dir"]);
    until("no unit is left", || units().is_empty());
    for kind in ["volumes", "volumeattachments", "allocations", "plugininstances", "plugins"] {
        until(&format!("no {kind} are left"), || rig.list(kind).is_empty());
    }
    assert_eq!(systemctl(&["list-units", "--failed", "--plain", "--no-legend"]), "");
    systemctl(&["stop", "wharfline.service"]);
    rig.run(&["down"]);
    rig.assert_nothing_left();
}

/// The shims of tasks of the runtime `process` live in the service's own cgroup, and a task ends with its shim.
#[test]
fn the_service_as_it_is_shipped_leaves_processes_alone() {
    if !booted::inside() {
        return booted::again_inside("systemd::the_service_as_it_is_shipped_leaves_processes_alone");
    }
    let rig = Rig::new();
    service(&rig, Ends::AsShipped, "");
    systemctl(&["start", "wharfline.service"]);
    is_up(&rig);
    rig.apply(QUICKSTART);
    rig.wait_ready("allocation/hello");
    assert_eq!(greeting(&rig), "hello from wharfline\n");
    let processes = || -> Vec<String> {
        rig.processes().into_iter().filter(|p| !p.contains(" up ") && !p.contains("--kubeconfig")).collect()
    };
    let all = || (processes(), rig.mounts(), volume_calls(&rig), task(&rig));
    let running = all();
    assert!(running.0.len() >= 3, "{running:?}");
    systemctl(&["restart", "wharfline.service"]);
    is_up(&rig);
    rig.wait_ready("allocation/hello");
    rig.wait_ready("plugin/dir");
    assert_eq!(all(), running);
    assert_eq!(units(), Vec::<String>::new());
    rig.run(&["down", "--delete-volumes"]);
    systemctl(&["stop", "wharfline.service"]);
    rig.assert_nothing_left();
}

/// Killed while a task is on its way into its unit, with all that is in the service: its successor starts the task once.
#[cfg(feature = "kill-points")]
#[test]
fn a_service_that_is_killed_while_a_task_enters_its_unit_starts_it_once() {
    if !booted::inside() {
        return booted::again_inside(
            "systemd::a_service_that_is_killed_while_a_task_enters_its_unit_starts_it_once",
        );
    }
    // The driver is the first; its successor finds it, so that it is not killed again.
    for at in ["start task#2", "start task: shim#2", "start task: unit#2", "start task: done#2"] {
        let rig = Rig::new();
        service(&rig, Ends::All, &format!("Environment=\"WHARFLINE_KILL_AT={at}\"\nRestartSec=100ms\n"));
        systemctl(&["start", "wharfline.service"]);
        is_up(&rig);
        rig.apply(&QUICKSTART.replace("process:", "systemd:"));
        until("it was killed", || property("wharfline.service", "NRestarts") == "1");
        is_up(&rig);
        rig.wait_ready("allocation/hello");
        rig.wait_ready("plugin/dir");
        assert_eq!(greeting(&rig), "hello from wharfline\n", "{at}: the task ran more than once");
        assert_eq!(units().len(), 2, "{at}");
        rig.run(&["delete", "allocation/hello", "volumeclaim/data", "volumeclass/dir", "plugin/dir"]);
        until("no unit is left", || units().is_empty());
        for kind in ["volumes", "volumeattachments", "allocations", "plugininstances", "plugins"] {
            until(&format!("no {kind} are left"), || rig.list(kind).is_empty());
        }
        systemctl(&["stop", "wharfline.service"]);
        rig.run(&["down"]);
        rig.assert_nothing_left();
    }
}
