//! Processes as `/proc` shows them, and pidfds that cannot hit a later process with the same number.
use crate::sys::process::{MountNamespace, ProcessId};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;

/// What `/proc/PID/stat` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) id: ProcessId,
    pub(crate) parent: i32,
    pub(crate) session: i32,
    /// It ended and waits to be reaped.
    pub(crate) zombie: bool,
    /// A signal has stopped it.
    pub(crate) stopped: bool,
}

/// Reads one process; an error when there is none.
pub(crate) fn stat(pid: i32) -> io::Result<Stat> {
    at(&format!("/proc/{pid}/stat"))
}

/// Whether a signal has stopped all threads of a process.
pub(crate) fn is_stopped(pid: i32) -> io::Result<bool> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = thread?.path().join("stat");
        // One that ended meanwhile does nothing more.
        if at(&stat.to_string_lossy()).is_ok_and(|stat| !stat.stopped) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn at(path: &str) -> io::Result<Stat> {
    let line = std::fs::read(path)?;
    parse(&line).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable /proc/PID/stat"))
}

/// `PID (NAME) STATE PPID PGRP SESSION …`, field 22 the start; the name may hold anything, `) (` too.
fn parse(line: &[u8]) -> Option<Stat> {
    let line = std::str::from_utf8(line.get(..line.iter().position(|&b| b == b'(')?)?).ok().zip(
        line.iter()
            .rposition(|&byte| byte == b')')
            .and_then(|end| std::str::from_utf8(&line[end + 1..]).ok()),
    );
    let (pid, rest) = line?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        id: ProcessId { pid: pid.trim().parse().ok()?, start_time: fields.get(19)?.parse().ok()? },
        zombie: matches!(*fields.first()?, "Z" | "X"),
        stopped: matches!(*fields.first()?, "T" | "t"),
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
    })
}

/// Every process there is; those that end meanwhile may be missing.
pub(crate) fn all() -> io::Result<Vec<Stat>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) {
            found.extend(stat(pid).ok());
        }
    }
    Ok(found)
}

/// The living processes whose command line has each of these words.
pub(crate) fn called_with(words: &[&str]) -> io::Result<Vec<OwnedFd>> {
    let has = |stat: &Stat| {
        let line = std::fs::read(format!("/proc/{}/cmdline", stat.id.pid)).unwrap_or_default();
        words.iter().all(|word| line.split(|&byte| byte == 0).any(|argument| argument == word.as_bytes()))
    };
    Ok(all()?.iter().filter(|stat| has(stat)).filter_map(|stat| open(stat.id)).collect())
}

/// The living descendants of a process, parents before children.
pub(crate) fn descendants(of: i32) -> io::Result<Vec<ProcessId>> {
    let all = all()?;
    let mut family = vec![of];
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        family.extend(all.iter().filter(|stat| stat.parent == parent).map(|stat| stat.id.pid));
        at += 1;
        if family.len() > all.len() + 1 {
            break; // numbers were reused while we read; the next look will be right
        }
    }
    let is_living = |stat: &&Stat| !stat.zombie && family[1..].contains(&stat.id.pid);
    Ok(all.iter().filter(is_living).map(|stat| stat.id).collect())
}

/// A pidfd of exactly this process; none when it is gone.
pub(crate) fn open(id: ProcessId) -> Option<OwnedFd> {
    let fd = pidfd_open(Pid::from_raw(id.pid)?, PidfdFlags::empty()).ok()?;
    // The number is looked up again after the descriptor holds the process: same start, same process.
    (stat(id.pid).ok()?.id == id).then_some(fd)
}

/// Sends a signal; success when the process is gone already.
pub(crate) fn send(pidfd: impl AsFd, signal: Signal) -> io::Result<()> {
    match pidfd_send_signal(pidfd, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The mount namespace of a process.
pub(crate) fn mount_namespace(pid: i32) -> io::Result<MountNamespace> {
    let file = std::fs::File::open(format!("/proc/{pid}/ns/mnt"))?;
    let inode = rustix::fs::fstat(&file)?.st_ino;
    Ok(MountNamespace { inode, unique: crate::sys::ffi::mount_namespace_id(&file).ok() })
}

/// Whether the environment that the process was started with has this entry, such as `NAME=value`.
pub(crate) fn has_environment(pid: i32, entry: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|variable| variable == entry.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_the_rest_of_the_line() {
        let line = b"42 (a) R 7 (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        let seen = parse(line).unwrap();
        assert_eq!(seen.id, ProcessId { pid: 42, start_time: 4711 });
        assert_eq!((seen.parent, seen.session, seen.zombie), (1, 3, false));
        for bad in [&b""[..], b"42", b"42 (x) S", b"(", b")", b"42 ) ( S 1"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn this_process_is_found_and_is_no_other() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let seen = stat(pid).unwrap();
        assert!(open(seen.id).is_some());
        assert!(open(ProcessId { start_time: seen.id.start_time + 1, ..seen.id }).is_none());
        assert!(descendants(seen.parent).unwrap().contains(&seen.id));
    }
}
