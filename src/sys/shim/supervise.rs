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

/// How long a moment is after which what could not be looked at is looked at again.
const AGAIN: Millis = 100;
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
        let mut missed = Act::Wait;
        loop {
            // First, because the task may have ended before its signal could be seen.
            match reaped(&mut self.ladder, self.main, &mut outcome, next_end) {
                Reaped::None => break,
                Reaped::Some(act) => missed = self.carry_out(act.max(missed)),
            }
            self.wait(missed)?;
            while let Some(arrived) = ffi::next_signal(&self.signals)? {
                missed = missed.max(self.arrived(arrived));
            }
            for stream in &mut self.streams {
                stream.pump(&mut buffer, 1);
            }
            let act = self.ladder.tick(now());
            missed = self.carry_out(act.max(missed));
        }
        for stream in &mut self.streams {
            // Whoever still holds the other end is no process of the task: its words are not waited for.
            stream.pump(&mut buffer, 1024);
        }
        Ok(outcome.unwrap_or(Outcome::Lost))
    }

    /// Waits for a signal, output or the time to act; not long, if an act has missed somebody.
    fn wait(&self, missed: Act) -> io::Result<()> {
        let pipes = self.streams.iter().filter_map(|stream| stream.pipe.as_ref());
        let mut fds: Vec<PollFd<'_>> =
            [&self.signals].into_iter().chain(pipes).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let again = if missed == Act::Wait { None } else { Some(now() + AGAIN) };
        let timeout = self.ladder.wakes_at().into_iter().chain(again).min().map(left);
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// What there is still to do of it.
    fn arrived(&mut self, arrived: Arrived) -> Act {
        let grace = arrived.number.and_then(|number| Millis::try_from(number).ok());
        let act = if arrived.signal == ffi::stop_signal() {
            self.ladder.stop(grace, now())
        } else if arrived.signal == libc::SIGTERM {
            match self.from_elsewhere {
                FromElsewhere::Stop => self.ladder.stop(grace, now()),
                FromElsewhere::End => self.ladder.end(grace, now()),
            }
        } else {
            return Act::Wait;
        };
        self.carry_out(act)
    }

    /// What there is still to do of it: the act again where somebody could not be looked for, else nothing.
    fn carry_out(&self, act: Act) -> Act {
        let done = match act {
            Act::Wait => Ok(()),
            // The main process is not reaped yet, so its number and its group's are its own.
            Act::TermMain => match self.asks {
                Asks::Group => {
                    if let Some(group) = Pid::from_raw(self.main) {
                        rustix::process::kill_process_group(group, Signal::TERM).ok();
                    }
                    Ok(())
                }
                Asks::Main(signal) | Asks::Client(signal) => {
                    ffi::send_signal(self.main, signal).ok();
                    Ok(())
                }
            },
            Act::TermLeft => signal_all(Signal::TERM),
            Act::KillLeft => {
                let in_leaf = self.leaf.map_or(Ok(()), Leaf::kill);
                if self.leaf.is_none() || !matches!(self.asks, Asks::Client(_)) {
                    in_leaf.and(signal_all(Signal::KILL))
                } else {
                    in_leaf
                }
            }
        };
        done.map_or(act, |()| Act::Wait)
    }
}

/// What came of reaping.
#[derive(Debug, PartialEq, Eq)]
enum Reaped {
    /// There is nothing left to wait for.
    None,
    /// Something lives. This is to be done about all that ended.
    Some(Act),
}

/// Reaps whatever has ended. An act looks through all processes of the machine, so it is carried out once for thousands that
/// died together.
fn reaped(
    ladder: &mut Ladder,
    main: i32,
    outcome: &mut Option<Outcome>,
    mut next: impl FnMut() -> Result<Option<(i32, Outcome)>, Errno>,
) -> Reaped {
    let mut due = Act::Wait;
    loop {
        match next() {
            Ok(Some((pid, how))) if pid == main => {
                *outcome = Some(how);
                due = due.max(ladder.main_gone(now()));
            }
            Ok(Some(_)) => due = due.max(ladder.other_gone()),
            Ok(None) => return Reaped::Some(due),
            Err(Errno::INTR) => {}
            Err(_) => return Reaped::None, // ECHILD: no child, and as their reaper we have all of them
        }
    }
}

/// The next child that has ended, and how; none when none has.
fn next_end() -> Result<Option<(i32, Outcome)>, Errno> {
    let ended_one = rustix::process::wait(WaitOptions::NOHANG)?;
    Ok(ended_one.map(|(pid, status)| (pid.as_raw_nonzero().get(), ended(status))))
}

/// Sends it to every descendant of this process. An error when there may be some that it did not reach.
pub(super) fn signal_all(signal: Signal) -> io::Result<()> {
    let ourselves = rustix::process::getpid().as_raw_nonzero().get();
    let mut reached = Ok(());
    for id in proc::descendants(ourselves)? {
        match proc::open(id) {
            Ok(Some(pidfd)) => {
                // One that cannot be signalled will be met again after the next death.
                proc::send(&pidfd, signal).ok();
            }
            Ok(None) => {}
            Err(error) => reached = Err(error),
        }
    }
    reached
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

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: i32 = 7;

    /// Reaps these, in turn, and then meets what is said.
    fn reap(ladder: &mut Ladder, ends: &[i32], then: Result<(), Errno>) -> (Reaped, Option<Outcome>) {
        let (mut ends, mut outcome) = (ends.iter(), None);
        let next = || match ends.next() {
            Some(&pid) => Ok(Some((pid, Outcome::Code(pid)))),
            None => then.map(|()| None),
        };
        (reaped(ladder, MAIN, &mut outcome, next), outcome)
    }

    /// An act looks through all of `/proc`.
    #[test]
    fn for_all_that_died_together_there_is_one_act() {
        let mut ladder = Ladder::new(0);
        assert_eq!(ladder.stop(None, 0), Act::KillLeft);
        let mut many: Vec<i32> = (1000..6000).collect();
        assert_eq!(reap(&mut ladder, &many, Ok(())), (Reaped::Some(Act::KillLeft), None));
        many.insert(2000, MAIN);
        let main_too = reap(&mut ladder, &many, Ok(()));
        assert_eq!(main_too, (Reaped::Some(Act::KillLeft), Some(Outcome::Code(MAIN))));
        assert_eq!(reap(&mut ladder, &[], Ok(())), (Reaped::Some(Act::Wait), None), "nobody died");
        assert_eq!(reap(&mut ladder, &many[..9], Err(Errno::CHILD)).0, Reaped::None, "nobody is left");
    }

    #[test]
    fn the_strongest_act_is_the_one() {
        let mut ladder = Ladder::new(1 << 40);
        assert_eq!(reap(&mut ladder, &[1, 2], Ok(())).0, Reaped::Some(Act::Wait), "it runs");
        for ends in [[1, MAIN, 2], [MAIN, 1, 2], [1, 2, MAIN]] {
            let mut ladder = Ladder::new(1 << 40);
            assert_eq!(reap(&mut ladder, &ends, Ok(())).0, Reaped::Some(Act::TermLeft), "{ends:?}");
        }
        assert!(Act::Wait < Act::TermMain && Act::TermMain < Act::TermLeft && Act::TermLeft < Act::KillLeft);
    }
}
