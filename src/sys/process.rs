//! Tasks under their shims: started, adopted, stopped, and what is left of them found.
//!
//! A task lives in a directory of its own: `spec.json` (written here), `state.json` (written by the shim before
//! the task runs), `exit.json` (written by the shim when no process is left), `lock` (held by the shim for as
//! long as it lives). The files alone say what is the case, so any later daemon can go on:
//!
//! ```text
//!                lock held              -> Running (adopted by pidfd)
//!                lock free, exit.json   -> Exited
//!                lock free, state.json  -> Lost: clear the leftovers, which writes exit.json
//!                lock free, neither     -> NeverStarted
//! ```
//! Tasks outlive the daemon. Nothing here restarts anything.
use crate::sys::cgroup::{Cgroup, Orphans};
use crate::sys::containerd::Through;
use crate::sys::units::UnitSpec;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Runs tasks under shims.
#[async_trait]
pub trait Processes: Send + Sync + fmt::Debug {
    /// Starts a task in `directory`, which is made (0700) if missing and must not hold a running or lost one
    /// ([`ProcessError::Taken`]); records of one that exited are removed. `clones[i]` is what `mounts[i]` of the
    /// spec moves in. Returns when the task's program runs; then the shim and the task outlive this process. A
    /// shim that does not get there in time is killed ([`ProcessError::NoAnswer`]).
    async fn start(
        &self,
        directory: &Path,
        spec: &TaskSpec,
        clones: Vec<OwnedFd>,
    ) -> Result<Box<dyn Task>, ProcessError>;

    /// Takes over what is in `directory`.
    async fn adopt(&self, directory: &Path) -> Result<Adopted, ProcessError>;

    /// Kills every process that a lost shim left behind and returns when none is left, with their number; then
    /// `exit.json` says [`Outcome::Lost`]. [`ProcessError::StillThere`] when some do not die in time.
    async fn clear_leftovers(&self, directory: &Path) -> Result<usize, ProcessError>;

    /// The directories of tasks directly beneath `root`, in no order; none when it is missing.
    async fn list(&self, root: &Path) -> Result<Vec<PathBuf>, ProcessError>;

    /// Removes the records and logs of an exited or never started task, file by file, and its directory if
    /// that is then empty. `logs`: where they are if it has no record that says so.
    /// [`ProcessError::Taken`] when it is running or lost.
    async fn forget(&self, directory: &Path, logs: &LogSpec) -> Result<(), ProcessError>;

    /// Removes the cgroups directly beneath `parent` (such as `/wharfline/NODE`) that are named like no directory
    /// of `tasks` and have no process. One that has some is only told of: nobody knows whose they are. Where there
    /// are no cgroups, nothing is found.
    async fn remove_orphans(&self, parent: &str, tasks: &Path) -> Result<Orphans, ProcessError> {
        let _nowhere = (parent, tasks);
        Ok(Orphans::default())
    }

    /// Removes the cgroup above those of tasks if there is none in it any more. None may be about to be made in it.
    async fn remove_if_empty(&self, parent: &str) -> Result<(), ProcessError> {
        let _nowhere = parent;
        Ok(())
    }
}

/// Where programs are looked for, unless somebody says otherwise. Containers have the same (`plan::container`).
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// One running task. Dropping it leaves the task alone.
#[async_trait]
pub trait Task: Send + Sync + fmt::Debug {
    /// What the shim wrote when it started the task.
    fn state(&self) -> &TaskState;

    /// Returns when the shim is gone: with the exit record, which says that no process is left, or with
    /// [`Ended::Lost`] when it died without one. May be called again and by many.
    async fn wait(&self) -> Result<Ended, ProcessError>;

    /// Asks the shim to stop the task: SIGTERM, and SIGKILL to everything left after `grace`. Returns at once;
    /// the end is seen by [`Task::wait`]. Asked again, the earlier end counts. Success when it is gone already.
    fn stop(&self, grace: Option<Duration>) -> Result<(), ProcessError>;

    /// Sends the task's main process a signal, such as SIGHUP; nothing when it is gone.
    fn signal(&self, signal: i32) -> Result<(), ProcessError>;
}

/// What runs, written to `spec.json`. Its `Debug` shows no value of the environment: some are secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Program and arguments; not empty. `wharfline` alone is the running binary; a name without a slash is
    /// looked for in the `PATH` of `env`.
    pub argv: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub env: BTreeMap<String, String>,
    /// Where it starts, in its own root.
    pub cwd: PathBuf,
    /// Where its output goes.
    pub logs: LogSpec,
    /// Between SIGTERM and SIGKILL, unless a stop says otherwise; in milliseconds.
    pub grace_ms: u64,
    /// Whether the task gets mounts of its own. Plugins do not: what they mount must be seen here.
    pub private_mounts: bool,
    /// What is moved in; only with `private_mounts`.
    pub mounts: Vec<TaskMount>,
    /// Directories that the task does not see: in their place is an empty one. Only with `private_mounts`. A
    /// mount point among them is detached in the task's namespace, so that it is not held there.
    pub hide: Vec<PathBuf>,
    /// Where its processes are counted and limited. Without limits it is best effort: a machine without cgroups runs
    /// the task all the same. With a read-only block volume it is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Cgroup>,
    /// The unit of systemd's that it and its shim run in, which has its limits; then it has no cgroup of its own, and is no
    /// container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitSpec>,
    /// Who it runs as; the daemon's own user, groups and capabilities without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// That it is a container. Then [`TaskSpec::argv`] only says what its document says, [`TaskSpec::env`] is not
    /// looked at, the i-th mount is found at `v/i` of its stage, the names of its identity are those of its own files, and its
    /// capabilities, devices and limits are the document's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerSpec>,
}

impl fmt::Debug for TaskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskSpec")
            .field("argv", &self.argv)
            .field("env", &self.env.keys())
            .field("cwd", &self.cwd)
            .field("logs", &self.logs)
            .field("grace_ms", &self.grace_ms)
            .field("private_mounts", &self.private_mounts)
            .field("mounts", &self.mounts)
            .field("hide", &self.hide)
            .field("cgroup", &self.cgroup)
            .field("unit", &self.unit)
            .field("identity", &self.identity)
            .field("container", &self.container)
            .finish()
    }
}

/// A container: the layers of an image, run by runc. Its `Debug` does not show the document, which holds the environment.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// The program runc.
    pub runc: PathBuf,
    /// The directory in which runc keeps what it knows; of this node alone, and gone after a boot.
    pub root: PathBuf,
    /// The container's name there, one plain word.
    pub id: String,
    /// The directories of the layers, lowest first; one at least.
    pub layers: Vec<PathBuf>,
    /// What of the host it sees; the i-th is found at `s/i` of the stage.
    pub shares: Vec<ContainerShare>,
    /// The number of the signal that asks the main process to end; it alone gets it.
    pub stop_signal: i32,
    /// That containerd makes it, by calling runc; [`ContainerSpec::id`] is its name there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Through>,
    /// What runc is told, its `config.json`, but for the numbers of the user and the cookie. Its root is `rootfs` of
    /// the stage, which is the directory `stage` in the task's. Kept in a file of its own until it is used.
    #[serde(skip)]
    pub document: String,
}

/// A path of the host in a container, with all that is mounted in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerShare {
    /// Absolute.
    pub path: PathBuf,
    /// It has to be a shared mount: what is mounted in it on either side is seen on the other.
    pub both_ways: bool,
    /// No link may lie on its way.
    pub resolved: bool,
}

impl fmt::Debug for ContainerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerSpec")
            .field("runc", &self.runc)
            .field("root", &self.root)
            .field("id", &self.id)
            .field("layers", &self.layers)
            .field("shares", &self.shares)
            .field("stop_signal", &self.stop_signal)
            .field("through", &self.through)
            .finish_non_exhaustive()
    }
}

/// Who a task's processes are. Names are looked up when it starts, in the files `/etc/passwd` and `/etc/group` of the
/// machine alone (no LDAP, no sssd); what is not there is a start that fails with its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// `USER` or `USER:GROUP`, each a name or a number; root when empty. Without a group it has those of the user, the
    /// further ones too, and a user that no file knows is refused; with one it has that group.
    pub user: String,
    /// Further groups, by name or number.
    pub groups: Vec<String>,
    /// Capabilities by name without `CAP_`, or `ALL`, added after `drop`. One that the daemon does not have is
    /// refused by name. To another user than root they are given as ambient ones, which its programs keep.
    pub add: Vec<String>,
    /// Capabilities taken away, likewise: root begins with all that the daemon has, others with none. What is left is
    /// the bound for set-uid programs, too.
    pub drop: Vec<String>,
}

/// Where a task's output goes, bounded on disk by `max_bytes * files` for each distinct path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSpec {
    /// Standard output; older files are `PATH.1`, `PATH.2` and so on. The directory must exist.
    pub stdout: PathBuf,
    /// Standard error; the same path as `stdout` keeps the order of both.
    pub stderr: PathBuf,
    /// A file is rotated before it grows beyond this; 4 KiB at least.
    pub max_bytes: u64,
    /// How many files are kept, the current one included; 1 at least.
    pub files: u32,
}

/// One verified mount that is moved into the task's namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskMount {
    /// The descriptor in the shim; filled in by `start`.
    pub fd: i32,
    /// Where, absolute, in the task's root; it need not exist on the host.
    pub path: PathBuf,
    /// Whether writes are refused. Of a block device by the task's cgroup, wherever its node is found, unless
    /// another mount of the same task may write it.
    pub read_only: bool,
    /// A block device (its node is bound, devices work) instead of a file system (nodev).
    pub block: bool,
}

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// The number.
    pub pid: i32,
    /// `/proc/PID/stat` field 22: clock ticks between boot and the process's start.
    pub start_time: u64,
}

/// A mount namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountNamespace {
    /// The inode of `/proc/PID/ns/mnt`; reused by later namespaces.
    pub inode: u64,
    /// Never reused until the next boot; Linux 6.11 and later.
    pub unique: Option<u64>,
}

/// What the shim wrote before the task ran, `state.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskState {
    /// The boot that all the numbers belong to.
    pub boot_id: String,
    /// The shim; its pid is also the id of the session that it leads.
    pub shim: ProcessId,
    /// The task's main process.
    pub task: ProcessId,
    /// The task's own mount namespace; none without `private_mounts`.
    pub namespace: Option<MountNamespace>,
    /// A random word in the environment of the task (`WHARFLINE_TASK`), by which its processes are known too.
    pub cookie: String,
    /// When it started, milliseconds since 1970.
    pub started_ms: i64,
    /// The path of its cgroup, if it has one; that of its unit, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The name of its unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// What was made for it as a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerState>,
}

/// What there is of a container beside its processes and cgroups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerState {
    /// What runc remembers of it.
    pub remembered: PathBuf,
    /// By what containerd calls runc for it; none when it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called_by: Option<PathBuf>,
    /// The layers that it runs from.
    pub layers: Vec<PathBuf>,
}

/// How a task ended, `exit.json`: no process of it is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// How the main process ended.
    pub outcome: Outcome,
    /// When it started, milliseconds since 1970.
    pub started_ms: i64,
    /// When the last process was gone, milliseconds since 1970.
    pub finished_ms: i64,
    /// True when the kernel killed a process of the task for want of memory and nobody had asked for a stop. Of a
    /// task without a cgroup it is a hint: its main process was killed while the machine's count of such kills rose.
    pub oom: bool,
    /// True when somebody had asked for a stop before it ended.
    pub stopped: bool,
    /// The boot that it ran in.
    pub boot_id: String,
    /// How much it wrote. Absent where nobody knows: in records of older shims, and of a shim that was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrote: Option<Wrote>,
}

/// How many bytes one run of a task added to its logs, older files of them included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrote {
    /// To that of standard output.
    pub stdout: u64,
    /// To that of standard error, which may be the same.
    pub stderr: u64,
}

/// How a main process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// It never ran, for this reason.
    NotStarted(String),
    /// Its shim was killed; how it ended is not known.
    Lost,
}

/// What was found in a task's directory.
#[derive(Debug)]
pub enum Adopted {
    /// It runs; this is its handle.
    Running(Box<dyn Task>),
    /// It ended and nothing of it is left.
    Exited(ExitRecord),
    /// Its shim is gone without an exit record: [`Processes::clear_leftovers`] comes next.
    Lost(TaskState),
    /// There is no trace of a process.
    NeverStarted,
}

/// How a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Nothing of the task is left.
    Exited(ExitRecord),
    /// The shim is gone without an exit record: [`Processes::clear_leftovers`] comes next.
    Lost,
}

/// Why a task could not be started, adopted or stopped, by what the caller may do.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// A running or lost task is in the directory: adopt it.
    #[error("{}: a task is there already", directory.display())]
    Taken {
        /// The task's directory.
        directory: PathBuf,
    },
    /// The shim could not run the program: nothing is left of it, and the record says the same.
    #[error("the task did not start: {0}")]
    NotStarted(String),
    /// No answer in time; the task may or may not run: adopt it.
    #[error("{}: the shim does not answer", directory.display())]
    NoAnswer {
        /// The task's directory.
        directory: PathBuf,
    },
    /// Processes that do not die, by number.
    #[error("still there after SIGKILL: {pids:?}")]
    StillThere {
        /// Their numbers.
        pids: Vec<i32>,
    },
    /// A record cannot be understood: a person must look.
    #[error("{}: unreadable record", path.display())]
    BadRecord {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The spec cannot be carried out.
    #[error("spec refused: {0}")]
    BadSpec(String),
    /// The kernel said no.
    #[error("{action} {}", path.display())]
    Refused {
        /// What was tried.
        action: &'static str,
        /// The file, directory or program.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}
