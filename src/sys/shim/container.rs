//! A container's way from the child that staged it to its first process, which becomes the shim's own child.
//!
//! runc runs twice and stays for nothing: `create` makes the container with its first process, which waits, and
//! ends; `start` lets that one go on. Whatever fails in between, the caller kills all that descends from the shim
//! and all in the container's cgroup; what runc remembers is removed here, and runc itself is not needed for it.
use crate::sys::ffi::{self, Disposition, Fork, Signals, Standard};
use crate::sys::proc;
use crate::sys::process::ContainerSpec;
use crate::sys::shim::launch::{die_with, strings};
use crate::sys::shim::stage::STAGE;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitOptions, WaitStatus, pidfd_open};
use std::io;
use std::path::{Path, PathBuf};

/// Where runc writes the number of the container's first process.
pub(crate) const PID: &str = "pid";
/// What runc says, a line of JSON each.
pub(crate) const LOG: &str = "runc.log";
/// Of what runc says, the last bytes that are looked at.
const TAIL: usize = 16 * 1024;
/// How long it may take until the first process goes on.
const START: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

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

    /// The command line that makes it, once its stage is there.
    pub(crate) fn create(&self) -> Vec<String> {
        let [stage, pid] = [STAGE, PID].map(|name| self.directory.join(name).display().to_string());
        self.runc(&["create", "--bundle", &stage, "--pid-file", &pid, &self.spec.id])
    }

    fn runc(&self, arguments: &[&str]) -> Vec<String> {
        let [runc, root, log] = [&self.spec.runc, &self.spec.root, &self.directory.join(LOG)]
            .map(|path| path.display().to_string());
        let global = [runc.as_str(), "--root", &root, "--log", &log, "--log-format", "json"];
        global.into_iter().chain(arguments.iter().copied()).map(str::to_owned).collect()
    }

    /// Sees the creation through, and says who the container's first process is. A signal that asks for a stop ends it.
    pub(crate) fn created(&self, creator: i32, signals: &OwnedFd) -> Result<i32, String> {
        let status = until_gone(creator, Some(signals), None)?;
        if status.exit_status() != Some(0) {
            return Err(self.reason("make the container"));
        }
        let path = self.directory.join(PID);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let ourselves = rustix::process::getpid().as_raw_nonzero().get();
        let ours = |pid: &i32| proc::stat(*pid).is_ok_and(|stat| stat.parent == ourselves);
        let pid = text.trim().parse().ok().filter(ours);
        pid.ok_or_else(|| "the container's first process died while it was prepared".to_owned())
    }

    /// Lets the first process go on.
    pub(crate) fn start(&self) -> Result<(), String> {
        let ourselves = rustix::process::getpid();
        let fail = |error: io::Error| format!("start the container: {error}");
        let starter = match ffi::fork().map_err(fail)? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                // Nobody is told why: its end is enough.
                drop(become_program(&self.runc(&["start", &self.spec.id]), ourselves));
                ffi::exit_now(127)
            }
        };
        let status = until_gone(starter, None, Some(START))?;
        if status.exit_status() == Some(0) { Ok(()) } else { Err(self.reason("start the container")) }
    }

    /// What runc said last, else that it did not do this.
    fn reason(&self, action: &str) -> String {
        let text = std::fs::read(self.directory.join(LOG)).unwrap_or_default();
        let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(TAIL)..]).into_owned();
        said(&tail).unwrap_or_else(|| format!("{action}: runc did not, and did not say why"))
    }
}

/// What runc remembers of a container.
pub(crate) fn remembered(spec: &ContainerSpec) -> PathBuf {
    spec.root.join(&spec.id)
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
fn until_gone(child: i32, signals: Option<&OwnedFd>, limit: Option<Timespec>) -> Result<WaitStatus, String> {
    let fail = |error: io::Error| format!("wait for runc: {error}");
    let pid = Pid::from_raw(child).ok_or_else(|| fail(io::ErrorKind::InvalidInput.into()))?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| fail(errno.into()))?;
    loop {
        let fds = [Some(&pidfd), signals].into_iter().flatten();
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        match rustix::event::poll(&mut fds, limit.as_ref()) {
            Ok(0) => return Err("runc did not answer in time".to_owned()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(fail(errno.into())),
        }
        if !fds[0].revents().is_empty() {
            let reaped = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            let (_, status) = reaped.map_err(|errno| fail(errno.into()))?.ok_or("runc is not gone")?;
            return Ok(status);
        }
        let asked = signals.map_or(Ok(false), |signals| is_asked_to_stop(signals.as_fd())).map_err(fail)?;
        if asked {
            return Err("stopped before it ran".to_owned());
        }
    }
}

/// Takes the signals that came; that a child ended shows by itself.
fn is_asked_to_stop(signals: impl AsFd) -> io::Result<bool> {
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
