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
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::process::{
        ExitRecord, LogSpec, MountNamespace, Outcome, ProcessId, TaskMount, TaskState, Wrote,
    };
    use std::fmt::Debug;

    /// Other daemons wrote these bytes and will read ours: an older one, a newer one.
    fn written<T: Serialize + DeserializeOwned + PartialEq + Debug>(record: &T, bytes: &str) {
        assert_eq!(serde_json::to_string(record).unwrap(), bytes);
        assert_eq!(serde_json::from_str::<T>(bytes).unwrap(), *record);
    }

    fn task() -> TaskSpec {
        TaskSpec {
            argv: vec!["/bin/sh".to_owned(), "-c".to_owned()],
            env: [("HERE".to_owned(), "/srv".to_owned())].into(),
            cwd: "/".into(),
            logs: LogSpec { stdout: "/l/out".into(), stderr: "/l/err".into(), max_bytes: 4096, files: 2 },
            grace_ms: 30_000,
            private_mounts: true,
            mounts: vec![TaskMount { fd: 7, path: "/data".into(), read_only: true, block: false }],
            hide: vec!["/var/lib/wharfline".into()],
            cgroup: None,
            unit: None,
            identity: None,
            container: None,
        }
    }

    #[test]
    fn an_order_is_the_bytes_that_it_always_was() {
        let bytes = concat!(
            r#"{"lock":5,"cookie":"word","task":{"argv":["/bin/sh","-c"],"env":{"HERE":"/srv"},"cwd":"/","#,
            r#""logs":{"stdout":"/l/out","stderr":"/l/err","max_bytes":4096,"files":2},"grace_ms":30000,"#,
            r#""private_mounts":true,"mounts":[{"fd":7,"path":"/data","read_only":true,"block":false}],"#,
            r#""hide":["/var/lib/wharfline"]}}"#,
        );
        written(&Order { lock: Some(5), cookie: "word".to_owned(), task: task() }, bytes);
    }

    #[test]
    fn a_state_is_the_bytes_that_it_always_was() {
        let mut state = TaskState {
            boot_id: "boot".to_owned(),
            shim: ProcessId { pid: 10, start_time: 100 },
            task: ProcessId { pid: 11, start_time: 101 },
            namespace: Some(MountNamespace { inode: 4_026_531_841, unique: Some(9) }),
            cookie: "word".to_owned(),
            started_ms: 1_700_000_000_000,
            cgroup: None,
            unit: None,
            container: None,
        };
        let rest = r#""cookie":"word","started_ms":1700000000000}"#;
        let ids = r#""shim":{"pid":10,"start_time":100},"task":{"pid":11,"start_time":101},"#;
        let begin = format!("{{\"boot_id\":\"boot\",{ids}");
        let namespace = r#""namespace":{"inode":4026531841,"unique":9},"#;
        written(&state, &format!("{begin}{namespace}{rest}"));
        state.namespace = None;
        written(&state, &format!("{begin}\"namespace\":null,{rest}"));
    }

    #[test]
    fn an_end_is_the_bytes_that_it_always_was() {
        for (outcome, bytes) in [
            (Outcome::Code(7), r#"{"code":7}"#),
            (Outcome::Signal(9), r#"{"signal":9}"#),
            (Outcome::NotStarted("why".to_owned()), r#"{"notStarted":"why"}"#),
            (Outcome::Lost, r#""lost""#),
        ] {
            let end = ExitRecord {
                outcome,
                started_ms: 1,
                finished_ms: 2,
                oom: true,
                stopped: false,
                boot_id: "boot".to_owned(),
                wrote: None,
            };
            let rest = r#""started_ms":1,"finished_ms":2,"oom":true,"stopped":false,"boot_id":"boot"}"#;
            written(&end, &format!("{{\"outcome\":{bytes},{rest}"));
            let wrote = Some(Wrote { stdout: 3, stderr: 4 });
            let more = rest.replace('}', r#","wrote":{"stdout":3,"stderr":4}}"#);
            written(&ExitRecord { wrote, ..end }, &format!("{{\"outcome\":{bytes},{more}"));
        }
    }
}
