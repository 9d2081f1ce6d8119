//! The files of a task's directory, as the shim and the daemon both know them.
use crate::sys::process::TaskSpec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What to run; written by the daemon.
pub(crate) const SPEC: &str = "spec.json";
/// Who runs; written by the shim.
pub(crate) const STATE: &str = "state.json";
/// How it ended; written by the shim.
pub(crate) const EXIT: &str = "exit.json";
/// Locked while the shim lives.
pub(crate) const LOCK: &str = "lock";
/// The variable in a task's environment by which its processes are known.
pub(crate) const COOKIE: &str = "WHARFLINE_TASK";

/// The content of `spec.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The locked descriptor that the shim inherits; without one it locks the file itself.
    pub(crate) lock: Option<i32>,
    /// A random word.
    pub(crate) cookie: String,
    /// What to run.
    pub(crate) task: TaskSpec,
}

/// What is read of a record.
pub(crate) enum Read<T> {
    /// This.
    Found(T),
    /// No file, or an empty one, which only a power failure leaves.
    Absent,
    /// Something else.
    Bad(serde_json::Error),
}

/// Reads a record.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Read<T>> {
    let content = match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Read::Absent),
        other => other?,
    };
    if content.is_empty() {
        return Ok(Read::Absent);
    }
    Ok(serde_json::from_slice(&content).map_or_else(Read::Bad, Read::Found))
}

/// Whether a record must be there after a power failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// It speaks of a process, so it means nothing after the next boot.
    ThisBoot,
    /// Durable on return.
    Always,
}

/// Writes a record so that a reader sees the old or the new one, whole.
pub(crate) fn write<T: Serialize>(directory: &Path, name: &str, record: &T, keep: Keep) -> io::Result<()> {
    let content = serde_json::to_vec(record)?;
    replace(directory, name, &content, keep)
}

/// Writes a file so that a reader sees the old or the new one, whole.
pub(crate) fn replace(directory: &Path, name: &str, content: &[u8], keep: Keep) -> io::Result<()> {
    let temporary = directory.join(format!("{name}.new"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    if keep == Keep::Always {
        file.sync_all()?;
    }
    std::fs::rename(&temporary, directory.join(name))?;
    if keep == Keep::Always {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}
