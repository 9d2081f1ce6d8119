//! Runs a program to its end, or to a deadline.
use crate::sys::ffi::before_exec;
use crate::sys::real::forks;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// As much of what a program said as is kept.
const LONGEST_WORDS: u64 = 2048;

/// How a program ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// By itself.
    Exited {
        /// With this status.
        status: ExitStatus,
        /// The beginning of its standard error.
        words: String,
    },
    /// The deadline passed, and it was killed.
    Killed,
}

/// The program called `name` in the first of the directories of a search path that has one.
pub(crate) fn find(name: &str, search: &OsStr) -> Option<PathBuf> {
    let mut paths = std::env::split_paths(search).filter(|dir| dir.is_absolute()).map(|dir| dir.join(name));
    paths.find(|path| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file())
}

/// Runs a program with these arguments and no input. It does not outlive this process.
pub(crate) fn run(program: &Path, arguments: &[OsString], deadline: Duration) -> io::Result<Ended> {
    // Not a pipe: a program that says more than one holds would never end.
    let mut errors = std::fs::File::from(rustix::fs::memfd_create(c"errors", MemfdFlags::CLOEXEC)?);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors.try_clone()?);
    before_exec(&mut command, || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
    let mut child = forks::spawn(&mut command)?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let ended = pid
        .ok_or_else(|| io::Error::other("the process has no number"))
        .and_then(|pid| ends_within(pid, deadline));
    if !matches!(ended, Ok(true)) {
        // It is our child and not reaped yet, so its number is its own.
        child.kill()?;
    }
    let status = child.wait()?;
    if !ended? {
        return Ok(Ended::Killed);
    }
    let mut words = Vec::new();
    errors.rewind()?;
    errors.take(LONGEST_WORDS).read_to_end(&mut words)?;
    Ok(Ended::Exited { status, words: String::from_utf8_lossy(&words).trim().to_owned() })
}

fn ends_within(pid: Pid, deadline: Duration) -> io::Result<bool> {
    let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let end = std::time::Instant::now() + deadline;
    loop {
        let left = end.saturating_duration_since(std::time::Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match rustix::event::poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, deadline: Duration) -> Ended {
        let shell = find("sh", OsStr::new("relative:/nowhere:/usr/bin:/bin")).unwrap();
        run(&shell, &["-c".into(), script.into()], deadline).unwrap()
    }

    #[test]
    fn what_it_says_and_how_it_ends() {
        let Ended::Exited { status, words } = shell("echo no >&2; echo out; exit 3", Duration::from_secs(30))
        else {
            panic!("it was killed");
        };
        assert_eq!((status.code(), words.as_str()), (Some(3), "no"));
        let Ended::Exited { words, .. } =
            shell("head -c 300000 /dev/zero | tr '\\0' x >&2", Duration::from_secs(30))
        else {
            panic!("it was killed");
        };
        assert_eq!(words.len(), 2048);
    }

    #[test]
    fn one_that_does_not_end_is_killed() {
        assert!(matches!(shell("exec sleep 1000", Duration::from_millis(50)), Ended::Killed));
        assert_eq!(find("no-such-program", OsStr::new("/usr/bin")), None);
    }
}
