//! The shim of a task in a unit of systemd's waits at its door: the daemon has systemd put it into the unit, and says so on
//! the shim's standard input. Nothing of the task is begun before.
use crate::sys::ffi::{self, Standard};
use crate::sys::shim::container::NotBegun;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;

/// That it is in its unit. Anything else is a sentence that says why not.
pub(crate) const INSIDE: &[u8] = b"inside\n";
/// As much of a sentence as is read.
pub(crate) const LONGEST: usize = 2048;

/// Waits for the daemon's word.
pub(crate) fn admitted(signals: &OwnedFd) -> Result<(), NotBegun> {
    let word = hear(signals).map_err(|error| format!("hear of its unit: {error}"))?;
    // The other end is closed by now, and what the task inherits is none of this.
    if let Ok(nothing) = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        ffi::redirect(&nothing, Standard::Input).ok();
    }
    match word {
        Some(word) if word == INSIDE => Ok(()),
        // The daemon is gone, or ends us: that is no end of the task's own.
        None => Err(NotBegun::Stopped),
        Some(word) if word.is_empty() => Err(NotBegun::Stopped),
        Some(word) => Err(String::from_utf8_lossy(&word).trim().to_owned().into()),
    }
}

/// What is said until the end; none when a signal came instead.
fn hear(signals: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let input = rustix::stdio::stdin();
    let mut fds = [PollFd::new(&input, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
    let mut text = vec![0_u8; LONGEST];
    let mut length = 0;
    loop {
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        if !fds[1].revents().is_empty() {
            return Ok(None);
        }
        match rustix::io::read(input, &mut text[length..]) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(0) => break,
            Ok(count) => length += count,
        }
    }
    text.truncate(length);
    Ok(Some(text))
}
