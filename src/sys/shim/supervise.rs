//! The shim's one loop: signals, output, time; until no process of the task is left.
use crate::sys::cgroup::Leaf;
use crate::sys::ffi::{self, Arrived};
use crate::sys::proc;
use crate::sys::process::{Outcome, Wrote};
use crate::sys::shim::ladder::{Act, Ladder, Millis};
use crate::sys::shim::logs::RotatedLog;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use rustix::time::{ClockId, clock_gettime};
use std::io;

/// Read at once from a task's output.
const CHUNK: usize = 16 * 1024;

/// One pipe and the log that it fills.
pub(crate) struct Stream {
    pub(crate) pipe: Option<OwnedFd>,
    pub(crate) log: RotatedLog,
}

/// Who is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// The main process's group, by SIGTERM.
    Group,
    /// The main process alone, by this signal.
    Main(i32),
    /// The client of containerd, which hands this signal on. It alone learns how the task ended, so where all of the task
    /// is in a cgroup it is not killed with it.
    Client(i32),
}

/// What a SIGTERM to the shim means, which is not the daemon's way to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FromElsewhere {
    /// Somebody wants the task stopped.
    Stop,
    /// Somebody stops its unit: an end that the task's policy decides of.
    End,
}

/// A task that runs.
pub(crate) struct Supervised<'a> {
    pub(crate) main: i32,
    pub(crate) asks: Asks,
    pub(crate) signals: OwnedFd,
    pub(crate) streams: Vec<Stream>,
    pub(crate) ladder: Ladder,
    pub(crate) from_elsewhere: FromElsewhere,
    pub(crate) leaf: Option<&'a Leaf>,
}

/// Milliseconds of a clock that never goes back.
pub(crate) fn now() -> Millis {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}

/// What is left until then.
pub(crate) fn left(until: Millis) -> Timespec {
    let left = until.saturating_sub(now());
    Timespec {
        tv_sec: i64::try_from(left / 1000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(left % 1000 * 1_000_000).unwrap_or(0),
    }
}

impl Supervised<'_> {
    /// How much the task wrote so far. Without a second log both outputs go to the first.
    pub(crate) fn wrote(&self) -> Wrote {
        let of = |stream: &Stream| stream.log.wrote();
        let stdout = self.streams.first().map_or(0, of);
        Wrote { stdout, stderr: self.streams.get(1).map_or(stdout, of) }
    }

    /// Returns when no process of the task is left, with how the main one ended.
    pub(crate) fn until_none_is_left(&mut self) -> io::Result<Outcome> {
        let mut outcome = None;
        let mut buffer = vec![0; CHUNK];
        loop {
            // First, because the task may have ended before its signal could be seen.
            if self.reap(&mut outcome) {
                break;
            }
            self.wait()?;
            while let Some(arrived) = ffi::next_signal(&self.signals)? {
                self.arrived(arrived);
            }
            for stream in &mut self.streams {
                stream.pump(&mut buffer, 1);
            }
            let act = self.ladder.tick(now());
            self.carry_out(act);
        }
        for stream in &mut self.streams {
            // Whoever still holds the other end is no process of the task: its words are not waited for.
            stream.pump(&mut buffer, 1024);
        }
        Ok(outcome.unwrap_or(Outcome::Lost))
    }

    /// Waits for a signal, output or the time to act.
    fn wait(&self) -> io::Result<()> {
        let pipes = self.streams.iter().filter_map(|stream| stream.pipe.as_ref());
        let mut fds: Vec<PollFd<'_>> =
            [&self.signals].into_iter().chain(pipes).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = self.ladder.wakes_at().map(left);
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn arrived(&mut self, arrived: Arrived) {
        let grace = arrived.number.and_then(|number| Millis::try_from(number).ok());
        let act = if arrived.signal == ffi::stop_signal() {
            self.ladder.stop(grace, now())
        } else if arrived.signal == libc::SIGTERM {
            match self.from_elsewhere {
                FromElsewhere::Stop => self.ladder.stop(grace, now()),
                FromElsewhere::End => self.ladder.end(grace, now()),
            }
        } else {
            return;
        };
        self.carry_out(act);
    }

    /// Reaps whatever ended; true when there is nothing left to wait for.
    fn reap(&mut self, outcome: &mut Option<Outcome>) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == self.main => {
                    *outcome = Some(ended(status));
                    let act = self.ladder.main_gone(now());
                    self.carry_out(act);
                }
                Ok(Some(_)) => {
                    let act = self.ladder.other_gone();
                    self.carry_out(act);
                }
                Ok(None) => return false,
                Err(Errno::INTR) => {}
                Err(_) => return true, // ECHILD: no child, and as their reaper we have all of them
            }
        }
    }

    fn carry_out(&self, act: Act) {
        match act {
            Act::Wait => {}
            // The main process is not reaped yet, so its number and its group's are its own.
            Act::TermMain => match self.asks {
                Asks::Group => {
                    if let Some(group) = Pid::from_raw(self.main) {
                        rustix::process::kill_process_group(group, Signal::TERM).ok();
                    }
                }
                Asks::Main(signal) | Asks::Client(signal) => drop(ffi::send_signal(self.main, signal)),
            },
            Act::TermLeft => signal_all(Signal::TERM),
            Act::KillLeft => {
                if let Some(leaf) = self.leaf {
                    leaf.kill();
                }
                if self.leaf.is_none() || !matches!(self.asks, Asks::Client(_)) {
                    signal_all(Signal::KILL);
                }
            }
        }
    }
}

/// Sends it to every descendant of this process.
pub(super) fn signal_all(signal: Signal) {
    let ourselves = rustix::process::getpid().as_raw_nonzero().get();
    for id in proc::descendants(ourselves).unwrap_or_default() {
        if let Some(pidfd) = proc::open(id) {
            // One that cannot be signalled will be met again after the next death.
            proc::send(&pidfd, signal).ok();
        }
    }
}

fn ended(status: WaitStatus) -> Outcome {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Outcome::Code(code),
        (None, Some(signal)) => Outcome::Signal(signal),
        (None, None) => Outcome::Lost, // not asked for, so it cannot come
    }
}

impl Stream {
    /// Moves output to the log, at most `rounds` times the buffer.
    fn pump(&mut self, buffer: &mut [u8], rounds: usize) {
        for _ in 0..rounds {
            let Some(pipe) = &self.pipe else { return };
            match rustix::io::read(pipe, &mut *buffer) {
                Ok(0) => self.pipe = None,
                Ok(count) => self.log.append(&buffer[..count]),
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => self.pipe = None,
            }
        }
    }
}
