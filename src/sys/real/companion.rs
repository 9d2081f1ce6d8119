//! A program that runs beside this one: it is told signals, its end is seen, and it does not outlive this process.
use crate::sys::ffi::{self, before_exec};
use crate::sys::proc;
use crate::sys::real::forks;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use std::io;
use std::process::{Child, Command, ExitStatus};
use tokio::io::unix::AsyncFd;

/// The program. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Companion {
    child: Child,
    /// Can be read once it has ended.
    end: AsyncFd<OwnedFd>,
}

impl Companion {
    /// Starts it. It is killed when the calling thread ends, which must be one that lasts.
    pub(crate) fn start(mut command: Command) -> io::Result<Self> {
        before_exec(&mut command, || {
            Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
        });
        let mut child = forks::spawn(&mut command)?;
        match Self::watch(&child) {
            Ok(end) => Ok(Self { child, end }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    fn watch(child: &Child) -> io::Result<AsyncFd<OwnedFd>> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the process has no number"))?;
        // It is our child and not reaped yet, so its number is its own.
        ffi::readable(pidfd_open(pid, PidfdFlags::empty())?)
    }

    /// Tells it a signal; nothing when it is gone already.
    pub(crate) fn tell(&self, signal: Signal) -> io::Result<()> {
        proc::send(self.end.get_ref(), signal)
    }

    /// How it has ended, once it has.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        // It stays readable, so the readiness is not cleared and whoever asks again is answered at once.
        self.end.readable().await?.retain_ready();
        self.child.wait()
    }

    /// Kills it, if it runs, and waits for its end.
    pub(crate) fn kill(&mut self) -> io::Result<ExitStatus> {
        self.tell(Signal::KILL)?;
        self.child.wait()
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // It has ended already, or nobody is left to be told.
        let _ = self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::time::Duration;

    fn shell(script: &str) -> Companion {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Companion::start(command).unwrap()
    }

    async fn end(companion: &mut Companion) -> ExitStatus {
        let ended = tokio::time::timeout(Duration::from_secs(20), companion.ended());
        ended.await.expect("it ends").unwrap()
    }

    #[tokio::test]
    async fn its_end_is_seen() {
        let mut companion = shell("exit 3");
        assert_eq!(end(&mut companion).await.code(), Some(3));
        assert_eq!(end(&mut companion).await.code(), Some(3), "and again");
        companion.tell(Signal::TERM).unwrap();
        assert_eq!(companion.kill().unwrap().code(), Some(3));
    }

    #[tokio::test]
    async fn signals_reach_it() {
        let mut companion = shell("exec sleep 1000");
        companion.tell(Signal::TERM).unwrap();
        assert_eq!(end(&mut companion).await.signal(), Some(15));
        let mut companion = shell("exec sleep 1000");
        assert_eq!(companion.kill().unwrap().signal(), Some(9));
    }
}
