//! The suite under systemd, and what a unit has beyond it: all of it inside of one container that systemd boots.
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use wharfline::node::runtime::{Asked, Ended, Found};
use wharfline::sys::process::Outcome;

use crate::booted;
use crate::fixture::{Flavour, Machine, exited};
use crate::suite::{self, kill};
use crate::support::{gone, soon};

/// The runs at a time: they wait more than they work.
const AT_ONCE: usize = 4;

/// A case by its name.
type Case = (&'static str, fn());

fn run(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(case);
}

macro_rules! systemd_cases {
    ($($case:ident,)*) => {
        /// All that every runtime must do.
        const SUITE: &[Case] = &[$((stringify!($case), || run(suite::$case(Flavour::Systemd))),)*];
    };
}
suite::for_each_case!(systemd_cases);

/// What there is of units alone.
const OF_UNITS: &[Case] = &[
    ("the_unit_says_whose_it_is_and_has_its_limits", || run(the_unit_says_whose_it_is_and_has_its_limits())),
    ("a_stop_by_systemctl_is_an_end_by_a_signal", || run(a_stop_by_systemctl_is_an_end_by_a_signal())),
    ("one_that_is_deaf_to_systemctl_is_killed", || run(one_that_is_deaf_to_systemctl_is_killed())),
    ("a_unit_of_that_name_does_not_block_a_start", || run(a_unit_of_that_name_does_not_block_a_start())),
    ("the_unit_of_a_lost_task_goes_with_it", || run(the_unit_of_a_lost_task_goes_with_it())),
    ("a_task_that_never_ran_leaves_no_unit", || run(a_task_that_never_ran_leaves_no_unit())),
];

/// The one case that a process of this binary shall run.
const CASE: &str = "WHARFLINE_TEST_CASE";

/// Every case, each in a process of its own, as other tests are. As one test: a container for each would take as long as the
/// case.
#[test]
fn every_case_in_a_container_that_systemd_boots() {
    const NAME: &str = "systemd::every_case_in_a_container_that_systemd_boots";
    if !booted::inside() {
        return booted::again_inside(NAME);
    }
    let all = || SUITE.iter().chain(OF_UNITS);
    if let Ok(wanted) = std::env::var(CASE) {
        let (_, case) = all().find(|(name, _)| *name == wanted).unwrap();
        return case();
    }
    let left: Mutex<Vec<&str>> = Mutex::new(all().rev().map(|(name, _)| *name).collect());
    let failed: Mutex<Vec<String>> = Mutex::default();
    let next = || left.lock().unwrap().pop();
    let work = || {
        while let Some(case) = next() {
            let mut run = Command::new(std::env::current_exe().unwrap());
            let run = run.args(["--exact", NAME, "--nocapture"]).env(CASE, case).output().unwrap();
            if !run.status.success() {
                let said = String::from_utf8_lossy(&run.stderr).into_owned();
                failed.lock().unwrap().push(format!("-- {case} --\n{said}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
    let left = systemctl(&["list-units", "--all", "--plain", "--no-legend", "wharfline-*.scope"]);
    assert_eq!(left, "", "no unit is left");
}

fn systemctl(args: &[&str]) -> String {
    let output = Command::new("systemctl").arg("--no-pager").args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The name of the unit of a machine's task.
fn unit(machine: &Machine) -> String {
    let node = machine.host.data.file_name().unwrap().to_str().unwrap();
    wharfline::plan::unit::name(node, &machine.place.allocation, &machine.place.task)
}

fn property(unit: &str, name: &str) -> String {
    systemctl(&["show", "--value", "-p", name, unit])
}

/// Waits until systemd knows nothing of a unit: it sees the end of its last process by itself.
async fn unloaded(unit: &str) {
    soon(async {
        while property(unit, "LoadState") != "not-found" {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

const WAITS: &str = ": > $HERE/ready; while :; do sleep 60; done";

async fn the_unit_says_whose_it_is_and_has_its_limits() {
    let machine = Machine::new(Flavour::Systemd).await;
    let mut wanted = machine.script(WAITS);
    let limits = &mut wanted.task.resources.limits;
    (limits.memory, limits.cpu, limits.pids) = ("64Mi".to_owned(), "1500m".to_owned(), "20".to_owned());
    let task = machine.start(&wanted).await;
    machine.written("ready").await;
    let unit = unit(&machine);
    for (name, value) in [
        ("ActiveState", "active"),
        ("Description", "Wharfline task main of allocation default/app on node "),
        ("Slice", "wharfline.slice"),
        ("MemoryMax", "67108864"),
        ("CPUQuotaPerSecUSec", "1.500000s"),
        ("TasksMax", "21"),
        ("Delegate", "yes"),
        ("CollectMode", "inactive-or-failed"),
        ("TimeoutStopUSec", "20s"),
    ] {
        assert_eq!(property(&unit, name), value.trim(), "{name}");
    }
    // The shim beside its task, and neither where this process is.
    let (shim, main) = machine.pids();
    let at = |pid: &str| {
        let lines = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        lines.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned()
    };
    assert_eq!(at(&shim.to_string()), format!("/wharfline.slice/{unit}"));
    assert_eq!(at(&main.to_string()), format!("/wharfline.slice/{unit}/task"));
    assert!(at("self").ends_with("wharfline-test.service"), "{}", at("self"));
    task.stop(Some(Duration::from_secs(30))).unwrap();
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped), (Outcome::Signal(15), true));
    unloaded(&unit).await;
    machine.end().await;
}

async fn a_stop_by_systemctl_is_an_end_by_a_signal() {
    let machine = Machine::new(Flavour::Systemd).await;
    let task = machine.start(&machine.script(WAITS)).await;
    machine.written("ready").await;
    let unit = unit(&machine);
    systemctl(&["stop", &unit]);
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped, record.oom), (Outcome::Signal(15), false, false));
    unloaded(&unit).await;
    // What follows from it is the daemon's to decide: the place serves again.
    let (record, _) = machine.run(&machine.script("exit 3")).await;
    assert_eq!(record.outcome, Outcome::Code(3));
    machine.end().await;
}

async fn one_that_is_deaf_to_systemctl_is_killed() {
    let machine = Machine::new(Flavour::Systemd).await;
    let mut wanted = machine.script(&format!("trap '' TERM; (setsid sleep 60) & {WAITS}"));
    wanted.grace = Duration::from_millis(50);
    let task = machine.start(&wanted).await;
    machine.written("ready").await;
    systemctl(&["stop", "--no-block", &unit(&machine)]);
    let record = exited(&*task).await;
    assert_eq!(
        (record.outcome, record.stopped),
        (Outcome::Signal(9), false),
        "by the shim, which lives to tell"
    );
    machine.end().await;
}

async fn a_unit_of_that_name_does_not_block_a_start() {
    let machine = Machine::new(Flavour::Systemd).await;
    let unit = unit(&machine);
    for round in 0..3 {
        unloaded(&unit).await;
        // What somebody else has put there, or a shim that was killed before it wrote a word.
        let mut other = Command::new("systemd-run")
            .args([
                "--scope",
                "--quiet",
                "--unit",
                &unit,
                "sh",
                "-c",
                "trap '' TERM; sleep 1000 & wait; wait",
            ])
            // When this case fails, nobody waits for it.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        soon(async {
            while property(&unit, "ActiveState") != "active" {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let (record, _) = machine.run(&machine.script("exit 4")).await;
        assert_eq!(record.outcome, Outcome::Code(4), "{round}");
        assert!(!other.wait().unwrap().success(), "it was there, and was killed");
    }
    // Nor does one that is just going: each begins the moment that the last one was told to be over.
    for _ in 0..10 {
        let (record, _) = machine.run(&machine.script("exit 5")).await;
        assert_eq!(record.outcome, Outcome::Code(5));
    }
    unloaded(&unit).await;
    machine.end().await;
}

async fn the_unit_of_a_lost_task_goes_with_it() {
    let machine = Machine::new(Flavour::Systemd).await;
    // It hides from every other sign: the session, the environment, the mounts.
    let wanted = machine.script(&format!(
        "nsenter --mount=/proc/1/ns/mnt env -i setsid sh -c \
         'cd {}; echo $$$$ > f; mv f fled; cd /; exec sleep 60' & wait",
        machine.host.data.join("here").display()
    ));
    let task = machine.start(&wanted).await;
    let fled = machine.written("fled").await;
    let unit = unit(&machine);
    kill(machine.pids().0);
    assert_eq!(soon(task.wait()).await.unwrap(), Ended::Lost);
    assert_eq!(property(&unit, "ActiveState"), "active", "the fled one is in it still");
    assert!(soon(machine.runtime.clear(&machine.place)).await.unwrap() >= 1);
    gone(&fled).await;
    unloaded(&unit).await;
    assert!(matches!(machine.runtime.adopt(&machine.place).await.unwrap(), Found::Exited(_)));
    machine.end().await;
}

async fn a_task_that_never_ran_leaves_no_unit() {
    let machine = Machine::new(Flavour::Systemd).await;
    let error = machine.try_start(&machine.program(&["/no/such/program"])).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/program"), "{error}");
    unloaded(&unit(&machine)).await;
    // One whose unit systemd refuses says so.
    let mut wanted = machine.script("exit 0");
    "4Mi".clone_into(&mut wanted.task.resources.limits.memory);
    let task = machine.start(&wanted).await;
    assert_eq!(task.stop(Some(Duration::ZERO)).unwrap(), Asked::EndComes);
    exited(&*task).await;
    machine.end().await;
}
