//! From the shim to the task's program: fork, the child's preparation, exec.
//!
//! The child waits for a word of the shim before it replaces itself, so that the record of who it is stands
//! first. It dies with the shim: a task without one could not be found, stopped or reported.
use crate::sys::cgroup::{Leaf, Rest};
use crate::sys::ffi::{self, Disposition, Fork, Signals, Standard};
use crate::sys::process::{PATH, TaskSpec};
use crate::sys::shim::container::Container;
use crate::sys::shim::ladder::Millis;
use crate::sys::shim::record::COOKIE;
use crate::sys::shim::{ordinary, root, stage, supervise, user};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal};
use std::ffi::{CString, NulError};
use std::io;
use std::path::Path;

/// The name under which the running binary is found.
pub(super) const OURSELVES: &str = "wharfline";
pub(crate) const READY: u8 = b'R';
const FAILED: u8 = b'E';

/// A child that is prepared or being prepared.
pub(crate) struct Launched {
    pub(crate) pid: i32,
    /// What it prints.
    pub(crate) stdout: OwnedFd,
    /// The same for errors; none when both go to one log.
    pub(crate) stderr: Option<OwnedFd>,
    /// Says how far it is.
    news: OwnedFd,
    /// Takes the word to go on.
    release: OwnedFd,
}

/// What the child says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It is prepared and waits.
    Ready,
    /// It said nothing more: it runs the program now, or it died.
    Silent,
    /// It could not go on.
    Failed(String),
    /// A signal came for the shim meanwhile.
    Interrupted,
    /// It says nothing.
    Late,
}

/// That something could not go on, as it is said to the shim.
pub(crate) fn failed(reason: &str) -> Vec<u8> {
    [&[FAILED], reason.as_bytes()].concat()
}

/// A task as its shim knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) directory: &'a Path,
    pub(crate) spec: &'a TaskSpec,
    pub(crate) cookie: &'a str,
}

impl<'a> Wanted<'a> {
    /// The container that it is, if it is one.
    pub(crate) fn container(&self) -> Option<Container<'a>> {
        let directory = self.directory;
        self.spec.container.as_ref().map(|spec| Container { directory, spec })
    }
}

/// Forks. The child joins the leaf first of all. The clones are moved into its mounts and closed here.
pub(crate) fn launch(wanted: Wanted<'_>, leaf: Option<&Leaf>, clones: Vec<OwnedFd>) -> io::Result<Launched> {
    let spec = wanted.spec;
    let (news, tell) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let (go, release) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let (stdout, stdout_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let one = spec.logs.stdout == spec.logs.stderr;
    let (stderr, stderr_end) = if one {
        (None, stdout_end.try_clone()?)
    } else {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        (Some(read), write)
    };
    for end in [Some(&stdout), stderr.as_ref()].into_iter().flatten() {
        rustix::fs::fcntl_setfl(end, OFlags::NONBLOCK)?;
    }
    // The running file itself, even after an upgrade took its name, and even if the task cannot see it.
    let ourselves = rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let shim = rustix::process::getpid();
    let (forked, rest) = leaf.map_or_else(|| Ok((ffi::fork()?, Rest::All)), Leaf::fork)?;
    match forked {
        Fork::Parent(pid) => Ok(Launched { pid, stdout, stderr, news, release }),
        Fork::Child => {
            drop((news, release, stdout, stderr));
            let child = Child { wanted, leaf: leaf.map(|leaf| (leaf, rest)), tell, go, ourselves };
            let message = child.run(shim, clones, &stdout_end, &stderr_end);
            // Nobody is left to tell when this fails.
            rustix::io::write(&child.tell, &failed(&message)).ok();
            ffi::exit_now(127)
        }
    }
}

impl Launched {
    /// Waits for what the child says next, or for a signal to the shim, until then.
    pub(crate) fn news(&self, signals: &OwnedFd, until: Millis) -> io::Result<News> {
        let mut fds = [PollFd::new(&self.news, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        loop {
            match rustix::event::poll(&mut fds, Some(&supervise::left(until))) {
                Ok(0) => return Ok(News::Late),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        if fds[0].revents().is_empty() {
            return Ok(News::Interrupted);
        }
        let mut text = [0_u8; 4096];
        let mut length = 0;
        loop {
            match rustix::io::read(&self.news, &mut text[length..]) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(0) => break,
                Ok(count) => length += count,
            }
            if text[0] == READY || length == text.len() {
                break;
            }
        }
        Ok(match text[..length].split_first() {
            None => News::Silent,
            Some((&READY, _)) => News::Ready,
            Some((_, message)) => News::Failed(String::from_utf8_lossy(message).into_owned()),
        })
    }

    /// Lets the child run its program.
    pub(crate) fn release(&self) -> io::Result<()> {
        Ok(rustix::io::write(&self.release, b"g").map(drop)?)
    }
}

struct Child<'a> {
    wanted: Wanted<'a>,
    leaf: Option<(&'a Leaf, Rest)>,
    tell: OwnedFd,
    go: OwnedFd,
    ourselves: OwnedFd,
}

impl Child<'_> {
    /// Returns only with the reason why the program does not run.
    fn run(&self, shim: Pid, clones: Vec<OwnedFd>, stdout: &OwnedFd, stderr: &OwnedFd) -> String {
        if let Err(error) = settle(shim, stdout, stderr) {
            return format!("prepare the process: {error}");
        }
        if let Some(Err(error)) = self.leaf.map(|(leaf, rest)| leaf.join(rest)) {
            return format!("join the cgroup: {error}");
        }
        let container = self.wanted.container();
        let through = container.is_some_and(|container| container.spec.through.is_some());
        // With the client of containerd the container ends: it is kept like the shim, and what is called as runc is not.
        if !through {
            ordinary::become_ordinary();
        }
        let prepared = match container {
            // What is called as runc makes its stage, out of these.
            Some(_) if through => self.hand_on(clones),
            Some(container) => {
                let handed = (self.wanted.cookie, clones);
                stage::prepare(self.wanted.directory, self.wanted.spec, container.spec, handed)
            }
            None => self.take_its_place(shim, clones, [stdout, stderr]),
        };
        if let Err(fault) = prepared {
            return fault;
        }
        if rustix::io::write(&self.tell, &[READY]).is_err() || !self.released() {
            ffi::exit_now(127);
        }
        self.exec()
    }

    /// Makes this process what the task's program will find: its root, its user, its directory.
    fn take_its_place(&self, shim: Pid, clones: Vec<OwnedFd>, output: [&OwnedFd; 2]) -> Result<(), String> {
        let spec = self.wanted.spec;
        // Before the task's own mounts, which may cover the files with the names.
        let who = spec.identity.as_ref().map(user::look_up).transpose()?;
        if spec.private_mounts {
            root::enter(spec, clones)?;
        }
        if let Some(who) = who {
            // Its output can be opened by name, as `/dev/stderr`, only by the owner.
            for pipe in output {
                rustix::fs::fchown(pipe, Some(who.uid()), None).ok();
            }
            user::take_on(&who)?;
            // The kernel forgets this when the user changes.
            die_with(shim).map_err(|error| format!("prepare the process: {error}"))?;
        }
        rustix::process::chdir(&spec.cwd)
            .map_err(|errno| format!("change to {}: {}", spec.cwd.display(), io::Error::from(errno)))
    }

    /// Leaves the volumes, and the way to tell the shim, to the program.
    fn hand_on(&self, clones: Vec<OwnedFd>) -> Result<(), String> {
        for clone in clones.into_iter().map(IntoRawFd::into_raw_fd).chain([self.tell.as_raw_fd()]) {
            ffi::inherit_number(clone).map_err(|error| format!("hand on the volumes: {error}"))?;
        }
        Ok(())
    }

    /// Waits for the shim's word; its death is none.
    fn released(&self) -> bool {
        let mut word = [0_u8; 1];
        loop {
            match rustix::io::read(&self.go, &mut word) {
                Err(Errno::INTR) => {}
                other => return other == Ok(1),
            }
        }
    }

    /// What this process becomes, and its environment.
    fn program(&self) -> (Vec<String>, Vec<String>) {
        let own = format!("{COOKIE}={}", self.wanted.cookie);
        let spec = self.wanted.spec;
        if let Some(container) = self.wanted.container() {
            return (container.create(self.tell.as_raw_fd()), vec![format!("PATH={PATH}"), own]);
        }
        let variables = spec.env.iter().filter(|(name, _)| *name != COOKIE);
        let env = variables.map(|(name, value)| format!("{name}={value}")).chain([own]);
        (spec.argv.clone(), env.collect())
    }

    fn exec(&self) -> String {
        let (command, env) = self.program();
        let (Ok(argv), Ok(env)) = (strings(command.clone()), strings(env)) else {
            return "an argument or a variable holds a zero byte".to_owned();
        };
        let Some(program) = command.first() else {
            return "there is no program to run".to_owned();
        };
        if let Err(error) = Signals::new(&[]).block_only() {
            return format!("unblock signals: {error}");
        }
        let error = if program == OURSELVES {
            ffi::execveat(self.ourselves.as_fd(), c"", &argv, &env)
        } else if program.contains('/') {
            ffi::execveat(CWD, &argv[0], &argv, &env)
        } else {
            self.search(program, &argv, &env)
        };
        format!("run {program}: {error}")
    }

    /// Tries the directories of `PATH`, as a shell does.
    fn search(&self, program: &str, argv: &[CString], env: &[CString]) -> io::Error {
        let path = self.wanted.spec.env.get("PATH").map_or(PATH, String::as_str);
        let mut worst = io::Error::from(Errno::NOENT);
        for directory in path.split(':').filter(|directory| !directory.is_empty()) {
            let file = Path::new(directory).join(program);
            let Ok(file) = CString::new(file.into_os_string().into_encoded_bytes()) else { continue };
            let error = ffi::execveat(CWD, &file, argv, env);
            if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) {
                worst = error;
            }
        }
        worst
    }
}

/// As the kernel wants them.
pub(super) fn strings(texts: Vec<String>) -> Result<Vec<CString>, NulError> {
    texts.into_iter().map(CString::new).collect()
}

/// Has the kernel kill this process when the shim dies.
pub(super) fn die_with(shim: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != Some(shim) {
        ffi::exit_now(127); // it died before we asked to die with it
    }
    Ok(())
}

/// Own process group, death with the shim, ordinary signals, input from nowhere, output to the shim.
fn settle(shim: Pid, stdout: &OwnedFd, stderr: &OwnedFd) -> io::Result<()> {
    die_with(shim)?;
    rustix::process::setpgid(None, None)?;
    for signal in 1..=libc::SIGRTMAX() {
        ffi::set_disposition(signal, Disposition::Default);
    }
    let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    ffi::redirect(&nothing, Standard::Input)?;
    ffi::redirect(stdout, Standard::Output)?;
    ffi::redirect(stderr, Standard::Error)?;
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    Ok(())
}
