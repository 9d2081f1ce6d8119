//! Processes as `/proc` shows them, and pidfds that cannot hit a later process with the same number.
//!
//! That a process is gone is said by two errors alone. Whoever has no descriptors or no memory left to look with knows
//! nothing, and is told so: taken for an absence, that would leave a process running that nobody looks for any more.
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
    /// It ended, with all its threads, and waits to be reaped.
    pub(crate) zombie: bool,
    /// A signal has stopped it.
    pub(crate) stopped: bool,
}

/// Reads one process; an error when there is none.
pub(crate) fn stat(pid: i32) -> io::Result<Stat> {
    at(&format!("/proc/{pid}/stat"))
}

/// Reads one process; none when it is gone.
pub(crate) fn find(pid: i32) -> io::Result<Option<Stat>> {
    unless_gone(stat(pid))
}

/// What was found of a process; none when it is gone.
fn unless_gone<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The same of what shows only to those with power over the process. What is withheld is no sign of anything, and stays
/// withheld however often one asks.
fn unless_withheld<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match unless_gone(looked) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        other => other,
    }
}

/// Whether a signal has stopped all threads of a process.
pub(crate) fn is_stopped(pid: i32) -> io::Result<bool> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = thread?.path().join("stat");
        // One that ended meanwhile does nothing more.
        if unless_gone(at(&stat.to_string_lossy()))?.is_some_and(|stat| !stat.stopped) {
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
        // While a thread of it lives, it may be at work in the kernel although the first one has ended.
        zombie: matches!(*fields.first()?, "Z" | "X") && fields.get(17)?.parse::<u32>().ok()? < 2,
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
            found.extend(find(pid)?);
        }
    }
    Ok(found)
}

/// A living process, and how it was called.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) id: ProcessId,
    pub(crate) process: OwnedFd,
    line: Vec<u8>,
}

impl Called {
    /// Its arguments, the program's name first.
    pub(crate) fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.line.split(|&byte| byte == 0)
    }

    /// Whether this is one of its arguments.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.words().any(|argument| argument == word.as_bytes())
    }

    /// The argument behind this one.
    pub(crate) fn after(&self, word: &str) -> Option<&str> {
        let behind = self.words().skip_while(|argument| *argument != word.as_bytes()).nth(1)?;
        std::str::from_utf8(behind).ok()
    }
}

/// The living processes whose command line has each of these words.
pub(crate) fn called_with(words: &[&str]) -> io::Result<Vec<Called>> {
    let mut found = Vec::new();
    for Stat { id, .. } in all()? {
        let line = unless_gone(std::fs::read(format!("/proc/{}/cmdline", id.pid)))?.unwrap_or_default();
        let has = |word: &&str| line.split(|&byte| byte == 0).any(|argument| argument == word.as_bytes());
        if words.iter().all(has) {
            found.extend(open(id)?.map(|process| Called { id, process, line }));
        }
    }
    Ok(found)
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
pub(crate) fn open(id: ProcessId) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(id.pid) else { return Ok(None) };
    let opened = pidfd_open(pid, PidfdFlags::empty());
    // The number is looked up again after the descriptor holds the process: same start, same process. Where there is no
    // descriptor, the number may be that of another one's thread by now.
    match find(id.pid)? {
        Some(stat) if stat.id == id => Ok(Some(opened?)),
        Some(_) | None => Ok(None),
    }
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

/// The same; none when the process is gone, or withholds it from us.
pub(crate) fn find_mount_namespace(pid: i32) -> io::Result<Option<MountNamespace>> {
    unless_withheld(mount_namespace(pid))
}

/// Whether the environment that the process was started with has this entry, such as `NAME=value`. One that is gone, or
/// withholds it from us, has not.
pub(crate) fn has_environment(pid: i32, entry: &str) -> io::Result<bool> {
    let environment = unless_withheld(std::fs::read(format!("/proc/{pid}/environ")))?.unwrap_or_default();
    Ok(environment.split(|&byte| byte == 0).any(|variable| variable == entry.as_bytes()))
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
    fn who_has_a_thread_that_lives_has_not_ended() {
        for (state, threads, ended) in
            [("Z", 0, true), ("Z", 1, true), ("Z", 2, false), ("X", 1, true), ("S", 1, false)]
        {
            let line =
                format!("42 (a) {state} 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 {threads} 18 4711 20 21");
            assert_eq!(parse(line.as_bytes()).unwrap().zombie, ended, "{line}");
        }
    }

    #[test]
    fn this_process_is_found_and_is_no_other() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let seen = stat(pid).unwrap();
        assert!(open(seen.id).unwrap().is_some());
        assert!(open(ProcessId { start_time: seen.id.start_time + 1, ..seen.id }).unwrap().is_none());
        assert!(open(ProcessId { pid: i32::MAX, ..seen.id }).unwrap().is_none());
        assert!(descendants(seen.parent).unwrap().contains(&seen.id));
    }

    #[test]
    fn two_errors_alone_say_that_a_process_is_gone() {
        let looked = |errno| unless_gone::<()>(Err(io::Error::from_raw_os_error(errno)));
        for gone in [libc::ENOENT, libc::ESRCH] {
            assert!(matches!(looked(gone), Ok(None)), "{gone}");
        }
        for unknown in
            [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EIO, libc::EACCES, libc::EPERM, libc::EINVAL]
        {
            assert_eq!(looked(unknown).unwrap_err().raw_os_error(), Some(unknown));
        }
        let unreadable = unless_gone::<()>(Err(io::ErrorKind::InvalidData.into()));
        assert!(unreadable.is_err(), "no error of the kernel's");
        for (errno, known) in
            [(libc::EACCES, true), (libc::EPERM, true), (libc::ESRCH, true), (libc::EMFILE, false)]
        {
            let looked = unless_withheld::<()>(Err(io::Error::from_raw_os_error(errno)));
            assert_eq!(looked.is_ok(), known, "{errno}");
        }
    }

    /// In a process of its own: the limit would be that of other tests, too.
    #[test]
    fn without_descriptors_no_process_is_gone() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const ALONE: &str = "WHARFLINE_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "sys::proc::tests::without_descriptors_no_process_is_gone";
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let run = again.args(["--exact", name]).env(ALONE, "1").output().unwrap();
            let said = String::from_utf8_lossy(&run.stdout);
            assert!(run.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let seen = stat(i32::try_from(std::process::id()).unwrap()).unwrap();
        let next = rustix::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").unwrap());
        let next = u64::try_from(next).unwrap();
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        for room in 0..2 {
            setrlimit(Resource::Nofile, Rlimit { current: Some(next + room), maximum }).unwrap();
            let (all, opened) = (all().map(drop), open(seen.id).map(drop));
            let (called, family) = (called_with(&["x"]).map(drop), descendants(seen.parent).map(drop));
            setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
            for looked in [all, opened, called, family] {
                assert_eq!(looked.unwrap_err().raw_os_error(), Some(libc::EMFILE), "{room}");
            }
        }
    }

    /// A thread's number is no process: neither now, nor where a process had it before.
    #[test]
    fn a_thread_is_no_process_and_no_fault() {
        let (number, told) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            number.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            wait.recv().ok();
        });
        let pid = told.recv().unwrap();
        assert!(open(ProcessId { pid, start_time: 1 }).unwrap().is_none());
        drop(go);
        thread.join().unwrap();
    }
}
