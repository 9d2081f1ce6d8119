//! Tasks in cgroups of their own.
use crate::support::{Host, exited, gone, lives, mount_at, soon};
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use wharfline::sys::cgroup::{Cgroup, Limits, Orphans};
use wharfline::sys::kernel::PathFacts;
use wharfline::sys::path::TreePath;
use wharfline::sys::process::{Adopted, Ended, Outcome, ProcessError, Task, TaskSpec};
use wharfline::sys::{Kernel, Processes};

/// Cgroups of one test; removed when dropped.
pub(crate) struct Parent(String);

impl Parent {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        Self(format!("/wharfline-test-{}-{number}", std::process::id()))
    }

    pub(crate) fn leaf(&self, limits: Limits) -> Cgroup {
        Cgroup { path: format!("{}/one", self.0), limits }
    }

    /// A script in the leaf `one`.
    fn script(&self, host: &Host, script: &str, limits: Limits) -> TaskSpec {
        let mut spec = host.script(script);
        spec.cgroup = Some(self.leaf(limits));
        spec
    }

    /// The directories of a leaf, in whichever trees it has one.
    pub(crate) fn directories(&self, name: &str) -> Vec<PathBuf> {
        trees().map(|tree| tree.join(&self.0[1..]).join(name)).filter(|path| path.is_dir()).collect()
    }

    /// Makes a leaf in each tree by hand.
    pub(crate) fn make(&self, name: &str) {
        for tree in trees().filter(|tree| tree.join("cgroup.procs").exists()) {
            std::fs::create_dir_all(tree.join(&self.0[1..]).join(name)).unwrap();
        }
    }

    /// A process that is no task's, in the leaf.
    pub(crate) fn stranger(&self, name: &str) -> Stranger {
        let nothing = std::process::Stdio::null;
        let sleep = Command::new("sleep").arg("1000").stdout(nothing()).stderr(nothing()).spawn();
        let stranger = Stranger(sleep.unwrap());
        let directories = self.directories(name);
        assert!(!directories.is_empty());
        // One of the tree of processors takes nobody before it was told which.
        for directory in directories.iter().filter(|directory| !directory.join("cpuset.cpus").exists()) {
            std::fs::write(directory.join("cgroup.procs"), stranger.0.id().to_string()).unwrap();
        }
        stranger
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        for parent in trees().map(|tree| tree.join(&self.0[1..])) {
            let entries = std::fs::read_dir(&parent).into_iter().flatten().flatten();
            for leaf in entries.map(|entry| entry.path()).filter(|path| path.is_dir()) {
                // Of a test that failed: nothing else is ever in these.
                let members = std::fs::read_to_string(leaf.join("cgroup.procs")).unwrap_or_default();
                for pid in members.lines().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
                    rustix::process::kill_process(pid, Signal::KILL).ok();
                }
                let mut tries = 0..1000;
                while std::fs::remove_dir(&leaf).is_err() && leaf.exists() && tries.next().is_some() {
                    std::thread::yield_now();
                }
            }
            std::fs::remove_dir(parent).ok();
        }
    }
}

pub(crate) struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Where a task's cgroups may be.
fn trees() -> impl Iterator<Item = PathBuf> {
    let names = [
        "",
        "unified",
        "memory",
        "pids",
        "cpu",
        "devices",
        "blkio",
        "cpuacct",
        "cpuset",
        "freezer",
        "hugetlb",
        "misc",
        "net_cls",
        "net_prio",
        "perf_event",
        "rdma",
        "systemd",
    ];
    names.map(|name| Path::new("/sys/fs/cgroup").join(name)).into_iter()
}

pub(crate) const NONE: Limits = Limits { memory_bytes: None, cpu_millis: None, pids: None };
const LITTLE: Limits = Limits { memory_bytes: Some(32 << 20), ..NONE };
/// Wants far more memory than [`LITTLE`].
const GREEDY: &str = "dd if=/dev/zero of=/dev/null bs=200M count=1 2> /dev/null";

pub(crate) fn kill_shim(task: &dyn Task) {
    let shim = Pid::from_raw(task.state().shim.pid).unwrap();
    rustix::process::kill_process(shim, Signal::KILL).unwrap();
}

#[tokio::test]
async fn all_of_a_task_is_in_its_leaf_from_the_first_moment_and_no_leaf_is_left() {
    let (host, parent) = (Host::new(), Parent::new());
    for limits in [NONE, Limits { memory_bytes: Some(1 << 30), cpu_millis: Some(1500), pids: Some(100) }] {
        let spec = parent.script(&host, "cat /proc/self/cgroup; : > $HERE/ready; exec sleep 1000", limits);
        let task = host.start(&spec, vec![]).await;
        let path = spec.cgroup.as_ref().unwrap().path.clone();
        assert_eq!(task.state().cgroup.as_ref(), Some(&path));
        let main = task.state().task.pid.to_string();
        host.written("ready").await;
        let directories = parent.directories("one");
        assert!(!directories.is_empty());
        for directory in &directories {
            let members = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap();
            assert!(members.lines().any(|pid| pid == main), "{}: {members}", directory.display());
            let shim = task.state().shim.pid.to_string();
            assert!(!members.lines().any(|pid| pid == shim), "the shim is not limited");
        }
        task.stop(Some(Duration::ZERO)).unwrap();
        exited(&*task).await;
        assert!(parent.directories("one").is_empty());
        let said = std::fs::read_to_string(host.data.join("out")).unwrap();
        assert!(said.lines().filter(|line| line.ends_with(&path)).count() >= 1, "{said}");
        std::fs::remove_file(host.data.join("ready")).unwrap();
    }
    let mut spec = parent.script(&host, "", NONE);
    spec.argv = vec!["/no/such/program".to_owned()];
    let error = host.processes().start(&host.task_directory(), &spec, vec![]).await.unwrap_err();
    assert!(matches!(error, ProcessError::NotStarted(_)), "{error}");
    assert!(parent.directories("one").is_empty());
}

#[tokio::test]
async fn a_limit_of_processes_is_in_force() {
    let (host, parent) = (Host::new(), Parent::new());
    let script = "sleep 1000 & sleep 1000 & sleep 1000 & echo four; exit 0";
    let limits = Limits { pids: Some(3), ..NONE };
    let (record, output) = host.run(&parent.script(&host, script, limits), vec![]).await;
    assert!(record.outcome != Outcome::Code(0) && !output.contains("four"), "{record:?} {output}");
    let limits = Limits { pids: Some(4), ..NONE };
    let (record, output) = host.run(&parent.script(&host, script, limits), vec![]).await;
    assert_eq!(record.outcome, Outcome::Code(0), "{output}");
    assert!(output.contains("four"), "{output}");
}

#[tokio::test]
async fn a_limit_of_processor_time_is_in_force() {
    let (host, parent) = (Host::new(), Parent::new());
    let files = format!("/sys/fs/cgroup{0}/one/cpu.stat /sys/fs/cgroup/cpu{0}/one/cpu.stat", parent.0);
    // Ends only once the kernel has held it back.
    let script = format!("while ! cat {files} 2> /dev/null | grep -q 'nr_throttled [1-9]'; do :; done");
    let limits = Limits { cpu_millis: Some(100), ..NONE };
    let task = host.start(&parent.script(&host, &script, limits), vec![]).await;
    assert_eq!(exited(&*task).await.outcome, Outcome::Code(0));
}

#[tokio::test]
async fn a_task_killed_for_want_of_memory_is_told_from_one_that_was_killed() {
    let (host, parent, other) = (Host::new(), Parent::new(), Host::new());
    let waiting = other.script("while [ ! -e $HERE/go ]; do sleep 0.01; done; kill -9 $$");
    let cgroup = Cgroup { path: format!("{}/other", parent.0), limits: NONE };
    let waiting = TaskSpec { cgroup: Some(cgroup), ..waiting };
    let bystander = other.start(&waiting, vec![]).await;
    let (record, _) = host.run(&parent.script(&host, &format!("exec {GREEDY}"), LITTLE), vec![]).await;
    assert_eq!((record.outcome, record.oom, record.stopped), (Outcome::Signal(9), true, false));
    let (record, _) = host.run(&parent.script(&host, &format!("{GREEDY}; exit 7"), LITTLE), vec![]).await;
    assert_eq!((record.outcome, record.oom), (Outcome::Code(7), true), "a child of it was killed");
    // Its machine saw kills for want of memory while it ran; it was killed by somebody.
    std::fs::write(other.data.join("go"), "").unwrap();
    let record = exited(&*bystander).await;
    assert_eq!((record.outcome, record.oom), (Outcome::Signal(9), false));
}

#[tokio::test]
async fn an_adopted_task_that_is_killed_for_want_of_memory_says_so() {
    let (host, parent) = (Host::new(), Parent::new());
    let script = format!("while [ ! -e $HERE/go ]; do sleep 0.01; done; exec {GREEDY}");
    drop(host.start(&parent.script(&host, &script, LITTLE), vec![]).await);
    let Adopted::Running(task) = host.processes().adopt(&host.task_directory()).await.unwrap() else {
        panic!("it runs")
    };
    std::fs::write(host.data.join("go"), "").unwrap();
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.oom), (Outcome::Signal(9), true));
    assert!(parent.directories("one").is_empty());
}

#[tokio::test]
async fn what_fled_in_every_way_is_found_by_the_leaf_of_a_lost_shim() {
    let (host, parent) = (Host::new(), Parent::new());
    // Forked twice, own session, no environment; nothing but the leaf tells whose it is.
    let script = "(env -i setsid sh -c 'echo $$ > $1/fled.new; mv $1/fled.new $1/fled; exec sleep 1000' x $HERE &) ; \
        while :; do sleep 60; done";
    let spec = parent.script(&host, script, NONE);
    let task = host.start(&spec, vec![]).await;
    let fled = host.written("fled").await;
    kill_shim(&*task);
    assert_eq!(soon(task.wait()).await.unwrap(), Ended::Lost);
    let processes = host.processes();
    assert!(matches!(processes.adopt(&host.task_directory()).await.unwrap(), Adopted::Lost(_)));
    assert!(lives(&fled) && !parent.directories("one").is_empty());
    let cleared = soon(processes.clear_leftovers(&host.task_directory())).await.unwrap();
    assert!(cleared >= 1 && !lives(&fled), "{cleared}");
    assert!(parent.directories("one").is_empty());
    assert_eq!(host.run(&spec_of_exit(&parent, &host), vec![]).await.0.outcome, Outcome::Code(3));
}

fn spec_of_exit(parent: &Parent, host: &Host) -> TaskSpec {
    parent.script(host, "exit 3", LITTLE)
}

#[tokio::test]
async fn a_stop_kills_all_that_is_in_the_leaf() {
    let (host, parent) = (Host::new(), Parent::new());
    let spec = parent.script(&host, "trap '' TERM; : > $HERE/ready; while :; do sleep 60; done", NONE);
    let task = host.start(&spec, vec![]).await;
    host.written("ready").await;
    let stranger = parent.stranger("one");
    task.stop(Some(Duration::ZERO)).unwrap();
    let record = exited(&*task).await;
    assert_eq!((record.outcome, record.stopped, record.oom), (Outcome::Signal(9), true, false));
    assert!(parent.directories("one").is_empty());
    gone(&stranger.0.id().to_string()).await;
}

#[tokio::test]
async fn a_leaf_that_cannot_be_made_matters_only_with_limits() {
    let (host, parent) = (Host::new(), Parent::new());
    let mut spec = parent.script(&host, "exit 3", NONE);
    spec.cgroup.as_mut().unwrap().path = format!("{}/{}", parent.0, "x".repeat(5000));
    let task = host.start(&spec, vec![]).await;
    assert!(task.state().cgroup.is_none());
    assert_eq!(exited(&*task).await.outcome, Outcome::Code(3));
    spec.cgroup.as_mut().unwrap().limits = LITTLE;
    let error = host.processes().start(&host.task_directory(), &spec, vec![]).await.unwrap_err();
    assert!(matches!(&error, ProcessError::NotStarted(why) if why.contains("make the cgroup")), "{error}");
}

#[tokio::test]
async fn a_leaf_with_a_process_in_it_is_nobodys_to_take() {
    let (host, parent) = (Host::new(), Parent::new());
    parent.make("one");
    let mut stranger = parent.stranger("one");
    let spec = spec_of_exit(&parent, &host);
    let error = host.processes().start(&host.task_directory(), &spec, vec![]).await.unwrap_err();
    let pid = stranger.0.id().to_string();
    assert!(matches!(&error, ProcessError::NotStarted(why) if why.contains(&pid)), "{error}");
    assert!(stranger.0.try_wait().unwrap().is_none(), "it lives");
    drop(stranger);
    // An empty one is what an earlier run left.
    assert_eq!(host.run(&spec, vec![]).await.0.outcome, Outcome::Code(3));
    assert!(parent.directories("one").is_empty());
}

#[tokio::test]
async fn what_a_shim_left_that_had_not_said_who_it_is_goes_with_the_records() {
    let (host, parent) = (Host::new(), Parent::new());
    host.run(&spec_of_exit(&parent, &host), vec![]).await;
    let directory = host.task_directory();
    for name in ["state.json", "exit.json"] {
        std::fs::remove_file(directory.join(name)).unwrap();
    }
    parent.make("one");
    assert!(matches!(host.processes().adopt(&directory).await.unwrap(), Adopted::NeverStarted));
    host.processes().forget(&directory, &host.logs()).await.unwrap();
    assert!(parent.directories("one").is_empty() && !directory.exists());
}

#[tokio::test]
async fn a_cgroup_that_cannot_be_is_refused_before_anything_is_done() {
    let host = Host::new();
    let limits = |memory_bytes, cpu_millis, pids| Limits { memory_bytes, cpu_millis, pids };
    for (path, limits) in [
        ("/one", NONE),
        ("a/b", NONE),
        ("/a/../b", NONE),
        ("/a//b", NONE),
        ("/a/b", limits(Some(0), None, None)),
        ("/a/b", limits(None, Some(9), None)),
        ("/a/b", limits(None, None, Some(0))),
    ] {
        let mut spec = host.script("exit 0");
        spec.cgroup = Some(Cgroup { path: path.to_owned(), limits });
        let error = host.processes().start(&host.task_directory(), &spec, vec![]).await.unwrap_err();
        assert!(matches!(error, ProcessError::BadSpec(_)), "{path}: {error}");
    }
}

#[tokio::test]
async fn orphan_leaves_are_removed_and_those_with_processes_are_told_of() {
    let (host, parent) = (Host::new(), Parent::new());
    let tasks = host.data.join("tasks");
    std::fs::create_dir_all(tasks.join("known")).unwrap();
    for name in ["known", "empty", "occupied"] {
        parent.make(name);
    }
    let mut stranger = parent.stranger("occupied");
    let pid = i32::try_from(stranger.0.id()).unwrap();
    let found = host.processes().remove_orphans(&parent.0, &tasks).await.unwrap();
    let occupied = vec![("occupied".to_owned(), vec![pid])];
    assert_eq!(found, Orphans { removed: vec!["empty".to_owned()], occupied });
    assert!(stranger.0.try_wait().unwrap().is_none(), "it lives");
    assert!(parent.directories("empty").is_empty() && !parent.directories("known").is_empty());
    drop(stranger);
    let found = host.processes().remove_orphans(&parent.0, &tasks).await.unwrap();
    assert_eq!(found, Orphans { removed: vec!["occupied".to_owned()], occupied: vec![] });
    // The one above them goes when none is in it any more.
    for left in [true, false] {
        host.processes().remove_if_empty(&parent.0).await.unwrap();
        assert_eq!(!parent.directories("").is_empty(), left);
        for directory in parent.directories("known") {
            std::fs::remove_dir(directory).unwrap();
        }
    }
    let nothing = host.processes().remove_orphans("/no-such/parent", &tasks).await.unwrap();
    assert_eq!(nothing, Orphans::default());
}

/// A loop device of one MiB; taken apart when dropped.
struct Device(String);

impl Device {
    fn new(image: &Path) -> Self {
        std::fs::File::create(image).unwrap().set_len(1 << 20).unwrap();
        let output = Command::new("losetup").args(["-f", "--show"]).arg(image).output().unwrap();
        Self(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        Command::new("losetup").args(["-d", &self.0]).status().ok();
    }
}

#[tokio::test]
async fn a_read_only_block_volume_takes_no_writes_by_any_node() {
    let (host, parent) = (Host::new(), Parent::new());
    let kernel = host.kernel();
    kernel.prepare_tree().await.unwrap();
    let device = Device::new(&host.data.join("image"));
    let path = TreePath::new(["vol-1", "device"]).unwrap();
    kernel.make_dir(&path.parent().unwrap()).await.unwrap();
    let target = kernel.absolute(&path.clone().into());
    std::fs::write(&target, "").unwrap();
    rustix::mount::mount_bind(&device.0, &target).unwrap();
    let PathFacts::Present(present) = kernel.mount_facts(&path.clone().into()).await.unwrap() else {
        panic!("it is mounted")
    };
    let script = format!(
        "for node in /dev/wharf-volume {0}; do head -c 4096 $node > /dev/null && echo read; \
         (echo x 1<> $node) 2> /dev/null && echo written; done; echo x > /dev/null && echo null",
        device.0
    );
    for (read_only, output) in [(true, "read\nread\nnull\n"), (false, "read\nwritten\nread\nwritten\nnull\n")]
    {
        let mut spec = parent.script(&host, &script, NONE);
        spec.private_mounts = true;
        spec.mounts = vec![mount_at("/dev/wharf-volume")];
        (spec.mounts[0].block, spec.mounts[0].read_only) = (true, read_only);
        let clone = kernel.clone_mount(&path, &present).await.unwrap();
        let (_, said) = host.run(&spec, vec![clone]).await;
        assert_eq!(said, output, "read-only: {read_only}");
        std::fs::remove_file(host.data.join("out")).unwrap();
        if read_only {
            spec.cgroup = None;
            let clone = kernel.clone_mount(&path, &present).await.unwrap();
            let started = host.processes().start(&host.task_directory(), &spec, vec![clone]).await;
            let error = started.unwrap_err().to_string();
            assert!(error.contains("read-only without a cgroup"), "{error}");
        }
    }
    kernel.unmount(&path.into(), present.mount.unwrap().id).await.unwrap();
    kernel.undo_tree().await.unwrap();
    host.assert_clean();
}
