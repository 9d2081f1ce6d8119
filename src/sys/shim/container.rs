//! A container's way from the child that staged it to its first process, which becomes the shim's own child.
//!
//! runc runs twice and stays for nothing: `create` makes the container with its first process, which waits, and
//! ends; `start` lets that one go on. Whatever fails in between, the caller kills all that descends from the shim
//! and all in the container's cgroup; what runc remembers is removed here, and runc itself is not needed for it.
use crate::sys::SHIM;
use crate::sys::ffi::{self, Disposition, Fork, Signals, Standard};
use crate::sys::proc;
use crate::sys::process::ContainerSpec;
use crate::sys::remove;
use crate::sys::shim::ladder::Millis;
use crate::sys::shim::launch::{OURSELVES, die_with, strings};
use crate::sys::shim::stage::{RUNC, STAGE};
use crate::sys::shim::{supervise, through};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, pidfd_open};
use std::io;
use std::path::{Path, PathBuf};

/// Where runc writes the number of the container's first process.
const PID: &str = "pid";
/// In the directory of what runc remembers, a name that no container has.
const NOTHING: &str = ".none";
/// What runc says, a line of JSON each.
const LOG: &str = "log";
/// Of what runc says, the last bytes that are looked at.
const TAIL: usize = 16 * 1024;
/// How long a task may take until it runs, its container be made and started. The daemon, if there is one, gives up later.
pub(super) const START: Millis = 20_000;
/// How long whatever was killed may take to be gone.
pub(super) const DIE: Timespec = Timespec { tv_sec: 8, tv_nsec: 0 };

/// Why there is nothing that runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotBegun {
    /// This went wrong.
    Failed(String),
    /// Somebody asked for a stop.
    Stopped,
}

impl From<String> for NotBegun {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl NotBegun {
    /// In a sentence.
    pub(crate) fn reason(self) -> String {
        match self {
            Self::Failed(reason) => reason,
            Self::Stopped => "stopped before it ran".to_owned(),
        }
    }
}

/// A task that is a container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Container<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) spec: &'a ContainerSpec,
}

impl Container<'_> {
    /// What runc remembers of it.
    pub(crate) fn remembered(&self) -> PathBuf {
        remembered(self.spec)
    }

    /// Removes that; what containerd remembers beside us, so that whoever waits for the end has it at once. What is left
    /// of it is gone after a boot, and removed before the next start.
    pub(crate) fn forget(&self) {
        if self.spec.through.is_some() {
            through::remove(self.spec);
        }
        remove::tree(&self.remembered()).ok();
    }

    /// The command line that makes it, once its stage is there; or ours, which has containerd make it, and says at `tell`
    /// when it runs.
    pub(crate) fn create(&self, tell: i32) -> Vec<String> {
        if self.spec.through.is_some() {
            let directory = self.directory.to_string_lossy();
            let words = [OURSELVES, SHIM, &directory, through::CREATE, &tell.to_string()];
            return words.map(str::to_owned).into();
        }
        let stage = self.directory.join(STAGE).display().to_string();
        let pid = self.directory.join(RUNC).join(PID).display().to_string();
        self.runc(&["create", "--bundle", &stage, "--pid-file", &pid, &self.spec.id])
    }

    fn runc(&self, arguments: &[&str]) -> Vec<String> {
        let [runc, root, log] =
            [&self.spec.runc, &self.spec.root, &self.log()].map(|path| path.display().to_string());
        let global = [runc.as_str(), "--root", &root, "--log", &log, "--log-format", "json"];
        global.into_iter().chain(arguments.iter().copied()).map(str::to_owned).collect()
    }

    fn log(&self) -> PathBuf {
        self.directory.join(RUNC).join(LOG)
    }

    /// Sees the creation through, and says who the container's first process is. A signal that asks for a stop ends it.
    pub(crate) fn created(&self, creator: i32, signals: &OwnedFd, until: Millis) -> Result<i32, NotBegun> {
        let status = until_gone("make the container", creator, (Some(signals), until))?;
        if status.exit_status() != Some(0) {
            return Err(self.reason("make the container", status).into());
        }
        let path = self.directory.join(RUNC).join(PID);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let ourselves = rustix::process::getpid().as_raw_nonzero().get();
        let died = || "the container's first process died while it was prepared".to_owned();
        let pid = text.trim().parse().map_err(|_| died())?;
        let found =
            proc::find(pid).map_err(|error| format!("look at the container's first process: {error}"))?;
        match found {
            Some(stat) if stat.parent == ourselves => Ok(pid),
            Some(_) | None => Err(died().into()),
        }
    }

    /// Lets the first process go on.
    pub(crate) fn start(&self, main: i32, until: Millis) -> Result<(), NotBegun> {
        let ourselves = rustix::process::getpid();
        let fail = |error: io::Error| format!("start the container: {error}");
        // What was said of its creation is no word about its start.
        std::fs::remove_file(self.log()).ok();
        let starter = match ffi::fork().map_err(fail)? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                // Nobody is told why: its end is enough.
                drop(become_program(&self.runc(&["start", &self.spec.id]), ourselves));
                ffi::exit_now(127)
            }
        };
        match until_gone("start the container", starter, (None, until)) {
            Ok(status) if status.exit_status() == Some(0) => Ok(()),
            // What runs has begun, whatever became of runc: its own end is told.
            Ok(_) | Err(_) if has_begun(main) => Ok(()),
            Ok(status) => Err(self.reason("start the container", status).into()),
            Err(reason) => Err(reason),
        }
    }

    /// What runc said last, else how it ended without having done this.
    fn reason(&self, action: &str, status: WaitStatus) -> String {
        let text = std::fs::read(self.log()).unwrap_or_default();
        let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(TAIL)..]).into_owned();
        let ended = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("exited with {code}"),
            (None, Some(signal)) => format!("was killed by signal {signal}"),
            (None, None) => "ended".to_owned(),
        };
        said(&tail).unwrap_or_else(|| format!("{action}: runc {ended} and did not say why"))
    }
}

/// Whether a container's first process is its program, and not runc in wait any more.
pub(super) fn has_begun(main: i32) -> bool {
    let command = std::fs::read(format!("/proc/{main}/cmdline")).unwrap_or_default();
    !command.is_empty() && !command.ends_with(b"runc\0init\0")
}

/// What runc remembers of a container; nothing that we know of one that containerd makes.
pub(crate) fn remembered(spec: &ContainerSpec) -> PathBuf {
    let name = if spec.through.is_some() { NOTHING } else { &spec.id };
    spec.root.join(name)
}

/// The last error in a log of runc's.
fn said(log: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Line {
        level: String,
        msg: String,
    }
    let lines = log.lines().rev().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let mut errors = lines.filter(|line| matches!(line.level.as_str(), "error" | "fatal"));
    errors.next().map(|line| line.msg)
}

/// Waits for a child's end, reaps it and says how it ended. Else the reason why nobody waits any longer.
fn until_gone(
    action: &str,
    child: i32,
    (signals, until): (Option<&OwnedFd>, Millis),
) -> Result<WaitStatus, NotBegun> {
    let fail = |error: io::Error| format!("wait for runc: {error}");
    let pid = Pid::from_raw(child).ok_or_else(|| fail(io::ErrorKind::InvalidInput.into()))?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| fail(errno.into()))?;
    loop {
        let fds = [Some(&pidfd), signals].into_iter().flatten();
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match rustix::event::poll(&mut fds, Some(&supervise::left(until))) {
            Ok(0) => return Err(format!("{action}: runc did not within {} s", START / 1000).into()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(fail(errno.into()).into()),
        }
        if !fds[0].revents().is_empty() {
            let reaped = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            let gone = reaped.map_err(|errno| fail(errno.into()))?;
            return gone
                .map(|(_, status)| status)
                .ok_or_else(|| fail(io::ErrorKind::InvalidData.into()).into());
        }
        let asked = signals.map_or(Ok(false), |signals| is_asked_to_stop(signals.as_fd())).map_err(fail)?;
        if asked {
            return Err(NotBegun::Stopped);
        }
    }
}

/// Takes the signals that came; that a child ended shows by itself.
pub(super) fn is_asked_to_stop(signals: impl AsFd) -> io::Result<bool> {
    let mut asked = false;
    while let Some(arrived) = ffi::next_signal(&signals)? {
        asked |= arrived.signal == libc::SIGTERM || arrived.signal == ffi::stop_signal();
    }
    Ok(asked)
}

/// Turns a child of the shim into a program that says nothing. Returns only with the reason why not.
fn become_program(argv: &[String], shim: Pid) -> io::Result<()> {
    die_with(shim)?;
    for signal in 1..=libc::SIGRTMAX() {
        ffi::set_disposition(signal, Disposition::Default);
    }
    let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for standard in [Standard::Input, Standard::Output, Standard::Error] {
        ffi::redirect(&nothing, standard)?;
    }
    Signals::new(&[]).block_only()?;
    let argv = strings(argv.to_vec())?;
    let Some(program) = argv.first() else { return Err(io::ErrorKind::InvalidInput.into()) };
    Err(ffi::execveat(CWD, program, &argv, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_runc_says_the_last_error_counts() {
        let log = r#"{"level":"warning","msg":"a","time":"t"}
{"level":"error","msg":"runc create failed: exec: \"/no\": stat /no: no such file","time":"t"}
{"level":"warning","msg":"b"}
half a li"#;
        assert_eq!(said(log).as_deref(), Some("runc create failed: exec: \"/no\": stat /no: no such file"));
        assert_eq!(said("{}\n{\"level\":\"info\",\"msg\":\"x\"}\n"), None);
    }
}
