//! The child of the shim that has containerd make a container, and stays for as long as that lives.
//!
//! ```text
//! shim --fork--> client --API--> containerd --> containerd-shim-runc-v2 --> stand-in, becomes `runc create`
//! ```
//! containerd gives its runtime no descriptors, but the volumes of a task are descriptors, and so is its output. So what
//! is called as runc is a stand-in ([`super::stand_in`]) that takes them from the client, through `/proc`, and makes the
//! stage as under the runtime `oci`. Nothing of a container is ever mounted where the host sees it.
//!
//! The client is small while the container runs: it has the pidfd of the first process, which tells its end at once,
//! and no connection. What it is asked by signals it hands on. It asks containerd again for how that process ended, and
//! ends like it; whether containerd was started anew meanwhile does not matter. The container's processes are not our
//! children: none of them is left once the cgroup is empty, to which the shim sees.
use crate::sys::SHIM;
use crate::sys::cgroup::Leaf;
use crate::sys::containerd::{Containerd, ContainerdError, Through};
use crate::sys::ffi::{self, Disposition, Fork, Signals, Standard};
use crate::sys::proc;
use crate::sys::process::{ContainerSpec, Outcome};
use crate::sys::real::containerd::{RealContainerd, Wanted};
use crate::sys::shim::launch::{Launched, OURSELVES, READY, failed, strings};
use crate::sys::shim::record::{self, Order, Read, SPEC};
use crate::sys::shim::stage::DOCUMENT;
use crate::sys::shim::{container, stand_in, supervise};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde_json::Value;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The words of the client's two lives, after the task's directory, and of the one that cleans up, after the socket.
pub(crate) const CREATE: &str = "create";
pub(crate) const AWAIT: &str = "await";
pub(crate) const REMOVE: &str = "remove";
/// How long containerd may take for all that makes a container: shorter than the shim waits, which then hears why.
const MADE: Duration = Duration::from_secs(17);
/// How long containerd is asked how a process ended.
const ASK: Duration = Duration::from_secs(10);
/// How long a process may take to be stopped.
const STOPS: Duration = Duration::from_secs(1);
/// The first pause before it is asked again, or anything that could not be looked at.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a moment is in which something may have come into the cgroup.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// By this one the client ends when nobody can say how the container did.
const UNKNOWN: i32 = libc::SIGUSR2;
/// What a status adds to the number of a signal.
const BY_SIGNAL: i32 = 128;

/// The client's first life: makes the container, starts it, and says so; never returns.
pub(super) fn create(directory: &Path, tell: i32) -> ! {
    let Some(tell) = ffi::inherited(tell) else { ffi::exit_now(127) };
    let said = |reason: &str| {
        rustix::io::write(&tell, &failed(reason)).ok();
        ffi::exit_now(127)
    };
    let (id, main) = match make(directory) {
        Ok(made) => made,
        Err(reason) => said(&reason),
    };
    // Whatever the shim sends from here on is for the container, and waits until somebody hands it on.
    if handed_on().block_only().is_err() || ffi::inherit_number(main.as_raw_fd()).is_err() {
        said("prepare to wait for the container");
    }
    ffi::set_disposition(libc::SIGCHLD, Disposition::Default);
    rustix::io::write(&tell, &[READY]).ok();
    drop(tell);
    // The other life begins with an empty memory, and without the volumes.
    ffi::close_all_but(&[main.as_raw_fd()]);
    // If this fails, the shim sees our end, and kills what is in the cgroup.
    drop(become_us(&[&directory.to_string_lossy(), AWAIT, &id, &main.as_raw_fd().to_string()]));
    ffi::exit_now(127)
}

/// The client's second life: waits for the container's end; never returns.
pub(super) fn wait(directory: &Path, id: &str, main: i32) -> ! {
    let Some(main) = ffi::inherited(main) else { ffi::exit_now(127) };
    ffi::give_back_read_only_pages();
    if until_gone(&main).is_err() {
        ffi::exit_now(127);
    }
    match status(directory, id) {
        Some(status) => ffi::exit_now(status),
        None => {
            ffi::set_disposition(UNKNOWN, Disposition::Default);
            Signals::new(&[]).block_only().ok();
            ffi::send_signal(rustix::process::getpid().as_raw_nonzero().get(), UNKNOWN).ok();
            ffi::exit_now(127)
        }
    }
}

/// Has what containerd remembers of a container removed, by a process that outlives the shim. If it cannot, it is found by
/// the task's directory later.
pub(crate) fn remove(container: &ContainerSpec) {
    let Some(through) = &container.through else { return };
    // It closes when that process is no copy of the shim any more, and holds none of its descriptors, the lock least.
    let Ok((closed, open)) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC) else { return };
    match ffi::fork() {
        Ok(Fork::Parent(_)) => {
            drop(open);
            let mut fds = [PollFd::new(&closed, PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&container::DIE)).ok();
        }
        Ok(Fork::Child) => {
            rustix::process::setsid().ok();
            // Whoever waits for the shim's last word waits for an end of its output, not for containerd.
            silence();
            let socket = through.socket.to_string_lossy();
            let called = container.root.join(&container.id);
            drop(become_us(&[&socket, REMOVE, &called.to_string_lossy()]));
            ffi::exit_now(127)
        }
        Err(_) => {}
    }
}

/// The life of that process; never returns.
pub(super) fn forget(socket: &Path, called: &Path) -> ! {
    let client = RealContainerd::new(socket.to_owned());
    let id = called.file_name().unwrap_or_default().to_string_lossy();
    match runtime().map(|runtime| runtime.block_on(client.remove(&id))) {
        Ok(Ok(())) => {
            // That of one that containerd was never told of.
            stand_in::remove(called);
            ffi::exit_now(0)
        }
        Ok(Err(_)) | Err(_) => ffi::exit_now(1),
    }
}

/// How the container ended, from how its client did.
pub(crate) fn outcome(client: Outcome) -> Outcome {
    match client {
        // What containerd says of one that a signal killed; a program that exits with such a number looks the same.
        Outcome::Code(code) if code > BY_SIGNAL && code - BY_SIGNAL <= libc::SIGRTMAX() => {
            Outcome::Signal(code - BY_SIGNAL)
        }
        Outcome::Signal(UNKNOWN) => Outcome::Lost,
        other => other,
    }
}

/// Sees to it that nothing is left of a start whose client is dead. Whoever makes the container for containerd has our
/// pipes from the client, and so has the container; once nobody has them, nobody is at work, and nobody can begin, for
/// that needs the client. False if that does not come in time.
pub(crate) fn is_over(launched: &Launched, leaf: Option<&Leaf>) -> bool {
    let until = supervise::now() + u64::try_from(container::DIE.tv_sec).unwrap_or_default() * 1000;
    let mut pipes: Vec<&OwnedFd> =
        [Some(&launched.stdout), launched.stderr.as_ref()].into_iter().flatten().collect();
    let mut buffer = [0; 4096];
    while supervise::now() < until {
        // Of a container that is being made; runc says that it failed then, and ends.
        if let Some(leaf) = leaf {
            leaf.kill().ok();
        }
        // Not blocking: an end is 0, nothing yet an error.
        pipes.retain(|pipe| !matches!(rustix::io::read(pipe, &mut buffer), Ok(0)));
        if pipes.is_empty() {
            return true;
        }
        let mut fds: Vec<PollFd<'_>> = pipes.iter().map(|pipe| PollFd::new(*pipe, PollFlags::IN)).collect();
        rustix::event::poll(&mut fds, Some(&AGAIN)).ok();
    }
    false
}

/// Kills what is left of a container, and returns when nothing is.
pub(crate) fn clear(leaf: &Leaf) {
    while leaf.clear().is_err() {
        match leaf.members() {
            Ok(pids) if pids.is_empty() => return,
            Ok(_) => {}
            // Nobody knows.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn make(directory: &Path) -> Result<(String, OwnedFd), String> {
    let container = spec(directory)?;
    let Some(through) = &container.through else {
        return Err("it is no container of containerd's".to_owned());
    };
    let document = shown(directory)?;
    let client = RealContainerd::new(through.socket.clone());
    let made = async {
        client.remove_of(directory, &container.root).await.map_err(|error| error.to_string())?;
        let link = stand_in::place(&container, directory)?;
        let wanted = Wanted { id: &container.id, directory, labels: &through.labels, document, runc: &link };
        made(&client, &wanted).await
    };
    // A clock is there only once it is begun.
    let made = runtime()?.block_on(async { timeout(MADE, made).await });
    // What containerd has of one that failed, the shim has removed.
    let late = |_| format!("containerd did not make it within {} s", MADE.as_secs());
    made.map_err(late)?.map(|main| (container.id.clone(), main))
}

async fn made(client: &RealContainerd, wanted: &Wanted<'_>) -> Result<OwnedFd, String> {
    let pid = client.create(wanted).await.map_err(|error| told(&error))?;
    // It waits, so the number is its own.
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("containerd named no process")?;
    let main = pidfd_open(pid, PidfdFlags::empty())
        .map_err(|errno| format!("the container's first process died while it was prepared: {errno}"))?;
    match client.start(wanted.id).await {
        Ok(()) => Ok(main),
        Err(ContainerdError::InDoubt { .. }) if ran_or_never_will(pid, &main).await => Ok(main),
        Err(error) => Err(told(&error)),
    }
}

/// Whether a container whose start was asked for, without an answer, has begun; one that has not is killed. One that is
/// gone has begun, for what waits does not end by itself.
async fn ran_or_never_will(pid: Pid, main: &OwnedFd) -> bool {
    let number = pid.as_raw_nonzero().get();
    let stopped = async {
        // So it does not begin in the moment after it was looked at.
        proc::send(main, Signal::STOP)?;
        while !proc::is_stopped(number)? {
            sleep(Duration::from_millis(1)).await;
        }
        io::Result::Ok(())
    };
    let stopped = timeout(STOPS, stopped).await;
    if !lives(main) {
        return true;
    }
    let begun = container::has_begun(number);
    let next = if begun { Signal::CONT } else { Signal::KILL };
    // Of one that cannot even be stopped, what it has done is not known.
    proc::send(main, next).ok();
    begun || !matches!(stopped, Ok(Ok(())))
}

/// What went wrong, without the words that containerd and its shim put around those of runc and of the stand-in.
fn told(error: &ContainerdError) -> String {
    let text = error.to_string();
    let inner = ["OCI runtime create failed: ", "OCI runtime start failed: "]
        .iter()
        .find_map(|before| text.split_once(before))
        .map(|(_, after)| after.strip_suffix(": unknown").unwrap_or(after).to_owned());
    inner.unwrap_or(text)
}

fn spec(directory: &Path) -> Result<ContainerSpec, String> {
    let path = directory.join(SPEC);
    let read: io::Result<Read<Order>> = record::read(&path);
    match read {
        Ok(Read::Found(order)) => order.task.container.ok_or_else(|| "it is no container".to_owned()),
        Ok(Read::Absent) => Err(format!("{}: it is not there", path.display())),
        Ok(Read::Bad(error)) => Err(format!("{}: {error}", path.display())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// The document as containerd keeps it on disk: without the environment, in which there may be secrets.
fn shown(directory: &Path) -> Result<Vec<u8>, String> {
    let path = directory.join(DOCUMENT);
    let bad = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read(&path).map_err(|error| bad(&error))?;
    let mut document: Value = serde_json::from_slice(&text).map_err(|error| bad(&error))?;
    if let Some(process) = document.get_mut("process").and_then(Value::as_object_mut) {
        process.insert("env".to_owned(), Value::Array(Vec::new()));
    }
    serde_json::to_vec(&document).map_err(|error| bad(&error))
}

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| format!("prepare to speak to containerd: {error}"))
}

/// Every signal that a container may be sent.
fn handed_on() -> Signals {
    let kept = [libc::SIGKILL, libc::SIGSTOP, libc::SIGCHLD];
    Signals::new(&(1..=libc::SIGRTMAX()).filter(|signal| !kept.contains(signal)).collect::<Vec<_>>())
}

/// Turns this process into this program once more, small, and without an environment. Returns only with the reason why not.
fn become_us(words: &[&str]) -> io::Error {
    let words = [OURSELVES, SHIM].iter().chain(words).map(|word| (*word).to_owned()).collect();
    match strings(words) {
        Ok(argv) => ffi::execveat(rustix::fs::CWD, c"/proc/self/exe", &argv, &[]),
        Err(error) => error.into(),
    }
}

/// Leaves what this process has for input and output.
fn silence() {
    if let Ok(nothing) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        for standard in [Standard::Input, Standard::Output, Standard::Error] {
            ffi::redirect(&nothing, standard).ok();
        }
    }
}

/// Waits until the container's first process is gone, and hands on what comes meanwhile.
fn until_gone(main: &OwnedFd) -> io::Result<()> {
    let awaited = handed_on();
    awaited.block_only()?;
    let signals = awaited.descriptor()?;
    loop {
        let mut fds = [PollFd::new(main, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let gone = !fds[0].revents().is_empty();
        while let Some(arrived) = ffi::next_signal(&signals)? {
            // One that is gone hears nothing.
            ffi::pidfd_queue(main, arrived.signal, arrived.number.unwrap_or_default()).ok();
        }
        if gone {
            return Ok(());
        }
    }
}

/// How the container's first process ended; none if nobody says so in time.
fn status(directory: &Path, id: &str) -> Option<i32> {
    let Through { socket, .. } = spec(directory).ok()?.through?;
    let client = RealContainerd::new(socket);
    runtime().ok()?.block_on(async {
        let asked = async {
            let mut pause = PAUSE;
            loop {
                match client.ended(id).await {
                    Ok(status) => return i32::try_from(status).ok(),
                    Err(ContainerdError::Absent { .. }) => return None,
                    // It is being started anew, perhaps.
                    Err(_) => sleep(pause).await,
                }
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        };
        timeout(ASK, asked).await.ok().flatten()
    })
}

/// Whether somebody lives, by number and time of birth.
pub(crate) fn lives(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(0))
}

/// The client of a task that is being made, if it lives.
pub(crate) fn client(id: crate::sys::process::ProcessId) -> io::Result<Option<OwnedFd>> {
    Ok(proc::open(id)?.filter(lives))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_ended_as_its_client_says() {
        for (client, container) in [
            (Outcome::Code(0), Outcome::Code(0)),
            (Outcome::Code(127), Outcome::Code(127)),
            (Outcome::Code(128), Outcome::Code(128)),
            (Outcome::Code(137), Outcome::Signal(9)),
            (Outcome::Code(143), Outcome::Signal(15)),
            (Outcome::Code(192), Outcome::Signal(64)),
            (Outcome::Code(193), Outcome::Code(193)),
            (Outcome::Code(255), Outcome::Code(255)),
            (Outcome::Signal(9), Outcome::Signal(9)),
            (Outcome::Signal(12), Outcome::Lost),
            (Outcome::Lost, Outcome::Lost),
        ] {
            assert_eq!(outcome(client.clone()), container, "{client:?}");
        }
    }

    #[test]
    fn of_what_containerd_says_the_words_of_runc_count() {
        let told =
            |said: &str| told(&ContainerdError::Refused { call: "make the task", said: said.to_owned() });
        let whole =
            "failed to create shim task: OCI runtime create failed: exec: \"/no\": no such file: unknown";
        assert_eq!(told(whole), "exec: \"/no\": no such file");
        assert_eq!(told("no such runtime"), "containerd: make the task: no such runtime");
    }
}
