//! A host for one test, and a task on it.
use rustix::mount::{MountPropagationFlags as Flags, mount_change};
use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;
use wharfline::sys::Processes;
use wharfline::sys::process::{Ended, ExitRecord, LogSpec, Outcome, Task, TaskMount, TaskSpec};
use wharfline::sys::real::{Pool, RealKernel, RealProcesses, parse_mountinfo};

const DEADLINE: Duration = Duration::from_secs(30);

/// Waits for what must come.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what).await.expect("it comes within half a minute")
}

/// How the host's root mount propagates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Private,
    Shared,
}

/// A host of its own: the calling thread's mount namespace, and a data directory.
pub(crate) struct Host {
    pub(crate) pool: Pool,
    /// Canonical.
    pub(crate) data: PathBuf,
    directory: Option<tempfile::TempDir>,
    before: Vec<String>,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self::with_root(Propagation::Private)
    }

    pub(crate) fn with_root(propagation: Propagation) -> Self {
        // Of this thread alone, and of the threads and processes that it starts.
        #[expect(
            deprecated,
            reason = "unsound with FILES only; the other one is unsafe, which tests are not"
        )]
        rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNS).expect("tests of sys need root");
        mount_change("/", Flags::REC | Flags::PRIVATE).unwrap();
        if propagation == Propagation::Shared {
            mount_change("/", Flags::REC | Flags::SHARED).unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().canonicalize().unwrap();
        let pool = Pool::new(16, Duration::from_secs(20));
        Self { pool, data, directory: Some(directory), before: table() }
    }

    pub(crate) fn kernel(&self) -> RealKernel {
        RealKernel::open(&self.data, self.pool.clone()).unwrap()
    }

    pub(crate) fn processes(&self) -> RealProcesses {
        RealProcesses::with_program(env!("CARGO_BIN_EXE_wharfline").into(), self.pool.clone())
    }

    pub(crate) fn task_directory(&self) -> PathBuf {
        self.data.join("tasks/one")
    }

    pub(crate) fn logs(&self) -> LogSpec {
        let log = |name: &str| self.data.join(name);
        LogSpec { stdout: log("out"), stderr: log("err"), max_bytes: 1 << 20, files: 2 }
    }

    /// A task of this shell script.
    pub(crate) fn script(&self, script: &str) -> TaskSpec {
        TaskSpec {
            argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            env: BTreeMap::from([("HERE".to_owned(), self.data.to_str().unwrap().to_owned())]),
            cwd: "/".into(),
            logs: self.logs(),
            grace_ms: 10_000,
            private_mounts: false,
            mounts: Vec::new(),
            hide: Vec::new(),
            cgroup: None,
            unit: None,
            identity: None,
            container: None,
        }
    }

    pub(crate) async fn start(&self, spec: &TaskSpec, clones: Vec<OwnedFd>) -> Box<dyn Task> {
        self.processes().start(&self.task_directory(), spec, clones).await.unwrap()
    }

    /// Runs a script to its end; its exit record and its standard output and error.
    pub(crate) async fn run(&self, spec: &TaskSpec, clones: Vec<OwnedFd>) -> (ExitRecord, String) {
        let record = exited(&*self.start(spec, clones).await).await;
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        (record, read(&spec.logs.stdout) + &read(&spec.logs.stderr))
    }

    /// Waits until a task has written the file.
    pub(crate) async fn written(&self, name: &str) -> String {
        use wharfline::sys::Watches;
        let watches = wharfline::sys::real::RealWatches::new(self.pool.clone());
        soon(watches.appeared(&self.data, name)).await.unwrap();
        std::fs::read_to_string(self.data.join(name)).unwrap()
    }

    /// The mount table is as it was.
    pub(crate) fn assert_clean(&self) {
        assert_nothing_new(&self.before);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The namespace and its mounts go with the thread; the processes would stay.
            kill_all_that_name(self.data.to_str().unwrap_or_default());
            // Never delete through a mount that a failed test left.
            std::mem::forget(self.directory.take());
        }
    }
}

/// Kills what was started for a host: its directory is in the arguments or in the environment.
fn kill_all_that_name(directory: &str) {
    use rustix::process::{Pid, Signal, kill_process};
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let names = |file: &str| {
            let text = std::fs::read(entry.path().join(file)).unwrap_or_default();
            String::from_utf8_lossy(&text).contains(directory)
        };
        if let Some(pid) = pid.filter(|_| names("cmdline") || names("environ")) {
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

/// The mount table of this thread, without the numbers that differ from time to time.
pub(crate) fn table() -> Vec<String> {
    let content = std::fs::read("/proc/thread-self/mountinfo").unwrap();
    let rows = parse_mountinfo(&content).unwrap();
    rows.iter().map(|row| format!("{:?}", (&row.mount_point, &row.root, &row.fs_type, row.device))).collect()
}

/// Nothing is mounted here that was not before. What other tests had mounted when this namespace was made may go: with the
/// directory beneath it a mount goes from every namespace.
pub(crate) fn assert_nothing_new(before: &[String]) {
    let mut known = before.to_vec();
    let new: Vec<String> = table()
        .into_iter()
        .filter(|row| match known.iter().position(|old| old == row) {
            Some(at) => {
                known.swap_remove(at);
                false
            }
            None => true,
        })
        .collect();
    assert_eq!(new, Vec::<String>::new());
}

pub(crate) async fn exited(task: &dyn Task) -> ExitRecord {
    match soon(task.wait()).await.unwrap() {
        Ended::Exited(record) => record,
        Ended::Lost => panic!("the shim left no record"),
    }
}

pub(crate) async fn ended(task: &dyn Task) -> Outcome {
    exited(task).await.outcome
}

/// Whether a process with this number lives; a zombie does not.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Waits until the process with this number is gone.
pub(crate) async fn gone(pid: &str) {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    if let Ok(pidfd) = pidfd_open(Pid::from_raw(pid.trim().parse().unwrap()).unwrap(), PidfdFlags::empty()) {
        let wait = move || {
            let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
            let limit = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&limit)).unwrap()
        };
        assert_eq!(tokio::task::spawn_blocking(wait).await.unwrap(), 1, "{pid} lives on");
    }
}

pub(crate) fn mount_at(path: impl Into<PathBuf>) -> TaskMount {
    TaskMount { fd: -1, path: path.into(), read_only: false, block: false }
}

/// A file system whose server never answers.
pub(crate) struct Dead(
    #[expect(dead_code, reason = "its being closed makes the kernel give up")] std::fs::File,
);

impl Dead {
    pub(crate) fn mount(at: &Path) -> Self {
        let server = std::fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("dead", at, "fuse", rustix::mount::MountFlags::empty(), options.as_c_str())
            .unwrap();
        Self(server)
    }
}
