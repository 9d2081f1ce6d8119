//! containerd, as far as it is asked: containers of ours in a namespace of its own, found again by their labels.
use crate::sys::containers::Lack;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// Where containerd is, unless somebody says otherwise.
pub const SOCKET: &str = "/run/containerd/containerd.sock";
/// The namespace of ours in it. What is in any other is never looked at.
pub const NAMESPACE: &str = "wharfline";

/// What the containerd of a machine is asked. Every call has a deadline; one that is repeated does no harm.
#[async_trait]
pub trait Containerd: Send + Sync + fmt::Debug {
    /// Whether it answers.
    async fn check(&self) -> Result<(), Lack>;

    /// The containers of ours, in no order.
    async fn list(&self) -> Result<Vec<Contained>, ContainerdError>;

    /// The directories of the tasks whose containers are called by something beneath `root` still. It is not asked for that.
    async fn called_for(&self, root: &Path) -> Vec<PathBuf>;

    /// The names of containers of ours that it does not have, and for which its own program runs all the same: it starts
    /// one for each container, and forgets one whose start was broken off.
    async fn strays(&self) -> Result<Vec<String>, ContainerdError>;

    /// Kills what runs in a container and removes it, with what was started for it; success when there is none of this name.
    async fn remove(&self, id: &str) -> Result<(), ContainerdError>;

    /// The same with each that was made for the task of this directory, and with what they were called by beneath `root`.
    async fn remove_of(&self, directory: &Path, root: &Path) -> Result<(), ContainerdError>;
}

/// A container of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contained {
    /// Its name.
    pub id: String,
    /// The directory of the task that it was made for.
    pub directory: PathBuf,
    /// Whether it has a process.
    pub runs: bool,
}

/// What a shim is told of the containerd that makes its container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Through {
    /// Its socket.
    pub socket: PathBuf,
    /// What is written on the container beside what finds it again: the names of node, allocation and task.
    pub labels: Vec<(String, String)>,
}

/// Why containerd did not do what it was asked to, by what the caller may do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContainerdError {
    /// It was not asked: nothing has happened. It may be there later.
    #[error("containerd does not answer at {}: {said}", socket.display())]
    Unreachable {
        /// Where it was looked for.
        socket: PathBuf,
        /// What came instead.
        said: String,
    },
    /// Nobody knows whether it did: ask what is there.
    #[error("containerd: {call}: outcome unknown: {said}")]
    InDoubt {
        /// What it was asked.
        call: &'static str,
        /// What came instead of an answer.
        said: String,
    },
    /// There is no such thing.
    #[error("containerd: {call}: not found: {said}")]
    Absent {
        /// What it was asked.
        call: &'static str,
        /// Its words.
        said: String,
    },
    /// It did not do it.
    #[error("containerd: {call}: {said}")]
    Refused {
        /// What it was asked.
        call: &'static str,
        /// Its words.
        said: String,
    },
}

impl Contained {
    /// Whether it was made for a task beneath this directory of tasks.
    pub fn is_beneath(&self, tasks: &Path) -> bool {
        self.directory.parent() == Some(tasks)
    }
}
