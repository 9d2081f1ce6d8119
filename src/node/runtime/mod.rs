//! How tasks are run: one seam, and a runtime behind it for each way.
//!
//! | runtime | runs a task |
//! |---|---|
//! | [`external`] | not at all: something else does, of which only the socket is known |
//! | [`process`] | as a process of the host, under a shim |
//! | [`oci`] | as a container of runc, under a shim |
//! | [`containerd`] | as the same container, made by containerd, under a shim |
//! | [`systemd`] | as a process of the host, under a shim, both in a unit of systemd's |
//!
//! The truth about a task is outside of this process and survives it, so every call may be repeated, and a daemon that knows
//! nothing adopts what is there. What every runtime must do is a suite that runs on each of them (`tests/runtime`).
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::context::{Machine, Options};
use crate::api::allocation::Task;
use crate::api::node_agent::MissingRuntime;
use crate::api::runtime as manifest;
use crate::plan::container::{Fault, PluginPart};
use crate::plan::supervise::Obstacle;
use crate::sys::containers::Lack;
use crate::sys::kernel::DeviceId;
use crate::sys::process::{ExitRecord, ProcessError};

pub mod containerd;
pub mod external;
pub mod oci;
mod preparations;
pub mod process;
mod shimmed;
pub mod systemd;

pub use preparations::Grants;
pub use shimmed::Shimmed;

/// Which runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// Something else runs it.
    External,
    /// A process of the host.
    Process,
    /// A container.
    Oci,
    /// A process of the host in a unit of systemd's.
    Systemd,
    /// A container of containerd's.
    Containerd,
}

impl Kind {
    /// Every one that this program has.
    pub const ALL: [Self; 5] = [Self::External, Self::Process, Self::Oci, Self::Systemd, Self::Containerd];

    /// The one that a task names; none if it is not built into this program.
    pub fn of(runtime: &manifest::Runtime) -> Option<Self> {
        let word = runtime.word()?;
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// Its word in manifests, in the NodeAgent's status and in the journal.
    pub fn word(self) -> &'static str {
        match self {
            Self::External => "external",
            Self::Process => "process",
            Self::Oci => "oci",
            Self::Systemd => "systemd",
            Self::Containerd => "containerd",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What `${NAME}` stands for in what a person wrote.
pub type Variables = BTreeMap<&'static str, String>;

/// One task of one allocation, and where its records and logs are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The allocation's uid.
    pub allocation: String,
    /// The task's name.
    pub task: String,
    /// The directory of its records.
    pub directory: PathBuf,
    /// The directory of its logs.
    pub logs: PathBuf,
}

impl Place {
    /// That of a task, beneath a data directory.
    pub fn new(data_dir: &Path, allocation: &str, task: &str) -> Self {
        Self {
            allocation: allocation.to_owned(),
            task: task.to_owned(),
            directory: data_dir.join("tasks").join(format!("{allocation}.{task}")),
            logs: data_dir.join("logs").join(allocation).join(task),
        }
    }
}

/// A volume of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeAt {
    /// Where the task finds it.
    pub path: PathBuf,
    /// Whether its writes are refused.
    pub read_only: bool,
    /// A block device instead of a file system.
    pub block: bool,
    /// The number of that device.
    pub device: Option<DeviceId>,
}

/// What is to be run. All of it was checked.
#[derive(Debug)]
pub struct Order<'a> {
    /// Whose task it is.
    pub place: &'a Place,
    /// The allocation, as `NAMESPACE/NAME`.
    pub name: String,
    /// The task as its person wrote it.
    pub task: &'a Task,
    /// What `${NAME}` stands for in it.
    pub variables: Variables,
    /// Its environment, without what the runtime adds by itself.
    pub env: BTreeMap<String, String>,
    /// Between the signal to end and the one that nothing survives.
    pub grace: Duration,
    /// Its volumes; the i-th is made of the i-th clone.
    pub volumes: Vec<VolumeAt>,
    /// That it serves a plugin.
    pub plugin: Option<PluginPart>,
}

/// Whether a task could be started now, its volumes aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// Nothing else is needed.
    Ready,
    /// Something has to be made first: [`Runtime::prepare`].
    Unprepared,
    /// That is under way.
    Preparing,
    /// So it is once more; the last try failed for this reason.
    Retrying(Obstacle, String),
    /// It could not be made, for this reason. Another try may do better.
    Failed(Obstacle, String),
    /// It cannot be started, whatever is tried.
    Unusable(Obstacle, String),
}

/// What came of making what a start needs; what a person should know of it, if anything.
pub type Outcome = Result<Option<String>, (Obstacle, String)>;

/// A task that is to be started.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// The task.
    pub task: &'a Task,
    /// Whether only who is trusted could write it.
    pub trusted: bool,
    /// The digest of the image that it was started from last.
    pub former: Option<&'a str>,
}

/// Called when a preparation is over.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A way to run tasks.
#[async_trait]
pub trait Runtime: Send + Sync + fmt::Debug {
    /// Which one it is.
    fn kind(&self) -> Kind;

    /// Whether it runs the task, starts it again, prepares its socket and has its logs; else something else does.
    fn runs(&self) -> bool {
        true
    }

    /// Where the socket of a task that serves a plugin is: at `own`, unless something else makes it elsewhere.
    fn socket(&self, _: &Task, own: PathBuf, _: &Variables) -> PathBuf {
        own
    }

    /// What a driver is told of its socket.
    fn endpoint(&self, _: &Task, socket: &Path) -> String {
        format!("unix://{}", socket.display())
    }

    /// Whether a task could be started now. Never waits. With the task it is said whether only who is trusted could write
    /// it.
    fn readiness(&self, _: &Place, _: (&Task, bool)) -> Readiness {
        Readiness::Ready
    }

    /// Begins to make what a task needs before its start, beside whoever asks; `wake` is called when that is over.
    fn prepare(&self, _: &Place, _: Wish<'_>, _: &Variables, _: Wake) {}

    /// Whether there may be what was made for tasks and nothing uses any more: [`Runtime::collect`] comes next.
    fn owes(&self) -> bool {
        false
    }

    /// How the last preparation ended; told once.
    fn prepared(&self, _: &Place) -> Option<Outcome> {
        None
    }

    /// The digest of the image that a task was started from last, if it is known.
    fn image(&self, _: &Place) -> Option<String> {
        None
    }

    /// The digest of the image that a task is started from next, if it is ready.
    fn next_image(&self, _: &Place) -> Option<String> {
        None
    }

    /// Nobody starts tasks of this allocation any more: what was or is being made for that goes. With it is said whether
    /// any had run, which may have been under an earlier daemon.
    fn let_go(&self, _: &str, _: bool) {}

    /// What the machine lacked when it was last looked at.
    fn lack(&self) -> Option<Lack> {
        None
    }

    /// Looks at the machine again.
    async fn look(&self) -> Option<Lack> {
        None
    }

    /// Removes, beside whoever asks, layers of images that are neither among these nor held for a task.
    fn collect(&self, _: BTreeSet<PathBuf>) {}

    /// Gives up what is under way beside, and returns when it has ended.
    async fn join(&self) {}

    /// Starts a task and returns when its program runs. `clones[i]` becomes `order.volumes[i]`. None may be running or lost
    /// at its place. After an error only [`Runtime::adopt`] says what is there.
    async fn start(&self, order: &Order<'_>, clones: Vec<OwnedFd>) -> Result<Arc<dyn Running>, RuntimeError>;

    /// Takes over what is at a place.
    async fn adopt(&self, place: &Place) -> Result<Found, RuntimeError>;

    /// Kills every process of a lost task and returns when none is left, with their number. Then its end is on record.
    async fn clear(&self, place: &Place) -> Result<usize, RuntimeError>;

    /// Removes the records and logs of a task that is over or never began.
    async fn forget(&self, place: &Place) -> Result<(), RuntimeError>;

    /// Removes what was made for tasks of which there are no records; of what has processes is only told.
    async fn sweep(&self) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// The places of which there are records, for a daemon that has lost its journal.
    async fn list(&self) -> Result<Vec<Place>, RuntimeError>;
}

/// One running task. Dropping it leaves the task alone.
#[async_trait]
pub trait Running: Send + Sync + fmt::Debug {
    /// Returns when no process of the task is left, or when nobody can say any more. May be called again, and by many.
    async fn wait(&self) -> Result<Ended, RuntimeError>;

    /// Asks it to end, and kills all of it after `grace`. Returns at once; asked again, the earlier end counts.
    fn stop(&self, grace: Option<Duration>) -> Result<Asked, RuntimeError>;

    /// The layers of its image, which must stay.
    fn layers(&self) -> &[PathBuf] {
        &[]
    }
}

/// What came of asking a task to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// [`Running::wait`] tells its end.
    EndComes,
    /// There is no end that we could see: it is out of service from now on.
    Over,
}

/// How a wait ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// Nothing of the task is left.
    Exited(ExitRecord),
    /// Nobody can say what is left of it: [`Runtime::clear`] comes next.
    Lost,
    /// It was asked to end, and there is no end that we could see.
    LetGo,
}

/// What is at a place.
#[derive(Debug)]
pub enum Found {
    /// It runs.
    Running(Arc<dyn Running>),
    /// It ended and nothing of it is left.
    Exited(ExitRecord),
    /// Nobody can say what is left of it: [`Runtime::clear`] comes next.
    Lost,
    /// There is no trace of it.
    NeverStarted,
}

/// Why a task could not be started, adopted, cleared or forgotten.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The task names a runtime that this program does not have.
    #[error("this node's wharfline does not have the task's runtime; {}", instead(.usable))]
    Unknown {
        /// What may be used.
        usable: Vec<String>,
    },
    /// The node does not allow it.
    #[error(
        "this node does not allow the runtime \"{kind}\"; {}, or start the node with `--runtime {kind}` besides, or with \
         it in `runtimes` of its configuration",
        instead(.usable)
    )]
    NotAllowed {
        /// The one that was asked for.
        kind: Kind,
        /// What may be used.
        usable: Vec<String>,
    },
    /// What it needs was not made before its start, or for an earlier one.
    #[error("its image is not ready")]
    Unprepared,
    /// There is no such container.
    #[error(transparent)]
    Container(#[from] Fault),
    /// The container cannot be written down.
    #[error("its container cannot be written down")]
    Document(#[source] serde_json::Error),
    /// A block volume that is no device.
    #[error("the device of its volume at {} is not known", path.display())]
    NoDevice {
        /// Where it would be.
        path: PathBuf,
    },
    /// There is no place for its logs.
    #[error("its logs have no place: {0}")]
    Logs(String),
    /// A process of the host could not be handled.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

fn instead(usable: &[String]) -> String {
    if usable.is_empty() {
        return "it allows none".to_owned();
    }
    format!("choose one of these: {}", usable.join(", "))
}

/// The runtimes of this node.
#[derive(Debug)]
pub struct Runtimes {
    all: BTreeMap<Kind, Arc<dyn Runtime>>,
    allowed: Vec<Kind>,
}

impl Runtimes {
    /// Those that this program has, on this machine.
    pub fn new(machine: &Machine, options: &Options) -> Self {
        let Options { data_dir, run_dir, .. } = options;
        let (processes, files) = (Arc::clone(&machine.processes), Arc::clone(&machine.files));
        let shimmed = Shimmed::new(processes, files, data_dir, run_dir);
        let containers = (machine.containers.clone(), options.containers.clone());
        let oci = Arc::new(oci::Oci::new(shimmed.clone(), containers.0, run_dir, containers.1));
        let make = |kind| -> Arc<dyn Runtime> {
            let shimmed = shimmed.clone();
            let process = || process::Process::new(shimmed.clone(), vec![data_dir.clone(), run_dir.clone()]);
            match kind {
                Kind::External => Arc::new(external::External),
                Kind::Process => Arc::new(process()),
                Kind::Systemd => Arc::new(systemd::Systemd::new(process(), machine.units.clone())),
                Kind::Oci => Arc::<oci::Oci>::clone(&oci),
                Kind::Containerd => {
                    let there = machine.containerd.clone();
                    let random = Arc::clone(&machine.random);
                    Arc::new(containerd::Containerd::new(Arc::clone(&oci), shimmed, there, random))
                }
            }
        };
        let allowed = |kind: &Kind| options.runtimes.iter().any(|allowed| allowed == kind.word());
        Self {
            all: Kind::ALL.map(|kind| (kind, make(kind))).into(),
            allowed: Kind::ALL.into_iter().filter(allowed).collect(),
        }
    }

    /// One of them, be it allowed or not: what was started once is looked after until its end.
    pub fn get(&self, kind: Kind) -> &Arc<dyn Runtime> {
        &self.all[&kind]
    }

    /// The one to start a task with.
    pub fn allowed(&self, runtime: &manifest::Runtime) -> Result<&Arc<dyn Runtime>, RuntimeError> {
        match Kind::of(runtime) {
            None => Err(RuntimeError::Unknown { usable: self.usable() }),
            Some(kind) if !self.allowed.contains(&kind) => {
                Err(RuntimeError::NotAllowed { kind, usable: self.usable() })
            }
            Some(kind) => Ok(self.get(kind)),
        }
    }

    /// Whether a task could be started now, its volumes aside. Never waits. What the node's own configuration refuses is
    /// so until its daemon is started with another one.
    pub fn readiness(&self, place: &Place, (task, trusted): (&Task, bool)) -> Readiness {
        match self.allowed(&task.runtime) {
            Ok(of) => of.readiness(place, (task, trusted)),
            Err(error) => Readiness::Unusable(Obstacle::NotAllowed, error.to_string()),
        }
    }

    /// The digest of the image that a task was started from last, if it is known.
    pub fn image(&self, place: &Place, runtime: &manifest::Runtime) -> Option<String> {
        Kind::of(runtime).and_then(|kind| self.get(kind).image(place))
    }

    /// The words of those that tasks may be started with: allowed, and there.
    pub fn usable(&self) -> Vec<String> {
        let there = self.allowed.iter().filter(|kind| self.get(**kind).lack().is_none());
        there.map(|kind| kind.word().to_owned()).collect()
    }

    /// Those that are allowed and lack something.
    pub fn missing(&self) -> Vec<MissingRuntime> {
        let lacking = self.allowed.iter().filter_map(|kind| Some((kind, self.get(*kind).lack()?)));
        lacking
            .map(|(kind, lack)| MissingRuntime { name: kind.word().to_owned(), message: lack.to_string() })
            .collect()
    }

    /// Looks at the machine again: whether something that is allowed is lacking and may come.
    pub async fn look(&self) -> bool {
        let mut lacking = false;
        for kind in &self.allowed {
            let lack = self.get(*kind).look().await;
            lacking |= lack.is_some_and(|lack| lack.may_end());
        }
        lacking
    }

    /// Gives up what is under way beside, and returns when it has ended.
    pub async fn join(&self) {
        for runtime in self.all() {
            runtime.join().await;
        }
    }

    /// Whether a runtime of ours runs this task, and not something else.
    pub fn runs(&self, runtime: &manifest::Runtime) -> bool {
        Kind::of(runtime).is_some_and(|kind| self.get(kind).runs())
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<dyn Runtime>> {
        self.all.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_task_names_one_runtime() {
        for (runtime, kind) in [
            (json!({ "process": { "command": ["a"] } }), Some(Kind::Process)),
            (json!({ "external": { "socket": "/a" } }), Some(Kind::External)),
            (json!({ "oci": { "archive": "/a" } }), Some(Kind::Oci)),
            (json!({ "systemd": { "command": ["a"] } }), Some(Kind::Systemd)),
            (json!({ "containerd": { "archive": "/a" } }), Some(Kind::Containerd)),
            (json!({}), None),
        ] {
            let told: manifest::Runtime = serde_json::from_value(runtime.clone()).unwrap();
            assert_eq!(Kind::of(&told), kind, "{runtime}");
            if let Some(kind) = kind {
                assert_eq!(serde_json::to_value(kind).unwrap(), json!(kind.word()));
                assert!(runtime.get(kind.word()).is_some());
            }
        }
    }
}
