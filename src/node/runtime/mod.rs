//! How tasks are run: one seam, and a runtime behind it for each way.
//!
//! | runtime | runs a task |
//! |---|---|
//! | [`external`] | not at all: something else does, of which only the socket is known |
//! | [`process`] | as a process of the host, under a shim |
//!
//! The truth about a task is outside of this process and survives it, so every call may be repeated, and a daemon that knows
//! nothing adopts what is there. What every runtime must do is a suite that runs on each of them (`tests/runtime`).
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::context::{Machine, Options};
use crate::api::allocation::Task;
use crate::api::runtime as manifest;
use crate::sys::process::{ExitRecord, ProcessError};

pub mod external;
pub mod process;

/// Which runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// Something else runs it.
    External,
    /// A process of the host.
    Process,
}

impl Kind {
    /// Every one that this program has.
    pub const ALL: [Self; 2] = [Self::External, Self::Process];

    /// The one that a task names; none if it is not built into this program.
    pub fn of(runtime: &manifest::Runtime) -> Option<Self> {
        let named = |kind: &Self| match kind {
            Self::External => runtime.external.is_some(),
            Self::Process => runtime.process.is_some(),
        };
        Self::ALL.into_iter().find(named)
    }

    /// Its word in manifests, in the NodeAgent's status and in the journal.
    pub fn word(self) -> &'static str {
        match self {
            Self::External => "external",
            Self::Process => "process",
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
}

/// What is to be run. All of it was checked.
#[derive(Debug)]
pub struct Order<'a> {
    /// Whose task it is.
    pub place: &'a Place,
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
}

/// A way to run tasks.
#[async_trait]
pub trait Runtime: Send + Sync + fmt::Debug {
    /// Which one it is.
    fn kind(&self) -> Kind;

    /// Whether it runs the task, starts it again, prepares its socket and has its logs; else something else does.
    fn runs(&self) -> bool;

    /// Where the socket of a task that serves a plugin is: at `own`, unless something else makes it elsewhere.
    fn socket(&self, task: &Task, own: PathBuf, variables: &Variables) -> PathBuf;

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
    fn stop(&self, grace: Duration) -> Result<Asked, RuntimeError>;
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
    #[error("this node does not allow the runtime \"{kind}\"; {}", instead(.usable))]
    NotAllowed {
        /// The one that was asked for.
        kind: Kind,
        /// What may be used.
        usable: Vec<String>,
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
        let make = |kind| -> Arc<dyn Runtime> {
            match kind {
                Kind::External => Arc::new(external::External),
                Kind::Process => Arc::new(process::Process::new(
                    Arc::clone(&machine.processes),
                    Arc::clone(&machine.files),
                    &options.data_dir,
                    (&options.run_dir, vec![options.data_dir.clone(), options.run_dir.clone()]),
                )),
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

    /// The words of those that tasks may be started with.
    pub fn usable(&self) -> Vec<String> {
        self.allowed.iter().map(|kind| kind.word().to_owned()).collect()
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
            (json!({ "containerd": {} }), None),
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
