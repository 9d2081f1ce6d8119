//! The small process that every task runs under: it starts the task, keeps its output, stops it, and reports its
//! end when no process of it is left.
//!
//! It lives in a session of its own and outlives the daemon. It has one thread, no runtime and no network, and
//! waits in one `poll`. It stays in the host's mount namespace; only the task gets mounts of its own, so that
//! these are gone with the task's last process, before the end is reported. See [`crate::sys::process`] for the
//! files that it reads and writes.
pub(crate) mod container;
pub(crate) mod ladder;
mod launch;
pub(crate) mod logs;
mod oom;
mod ordinary;
mod places;
pub(crate) mod record;
mod root;
pub(crate) mod stage;
pub(crate) mod stand_in;
mod supervise;
pub(crate) mod through;
pub(crate) mod unit;
mod user;

use crate::sys::SHIM;
use crate::sys::cgroup::{Leaf, Trees};
use crate::sys::ffi::{self, Disposition, Signals, Standard};
use crate::sys::kernel::DeviceId;
use crate::sys::proc;
use crate::sys::process::{ContainerState, ExitRecord, Outcome, TaskSpec, TaskState, Wrote};
use crate::sys::real::boot_id;
use container::NotBegun;
use ladder::{Ladder, Millis};
use launch::{Launched, News, Wanted};
use logs::RotatedLog;
use record::{EXIT, Keep, LOCK, Order, Read, SPEC, STATE};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use supervise::{Asks, FromElsewhere, Stream, Supervised};

/// What the shim says on its standard output once the task's program runs.
pub(crate) const STARTED: &[u8] = b"started\n";

/// Does what this process is there for, if it was not started to be spoken to: a shim, its client of containerd, or what
/// containerd takes for runc.
pub fn entered(arguments: &[OsString]) -> Option<ExitCode> {
    let (name, rest) = arguments.split_first()?;
    if let Some(link) = stand_in::called_for(name) {
        return Some(stand_in::run(&link, rest));
    }
    let (first, rest) = rest.split_first()?;
    if first != SHIM {
        return None;
    }
    let number = |word: &OsString| word.to_str().and_then(|word| word.parse().ok());
    let known = match rest {
        [directory] => return Some(run(Path::new(directory))),
        [directory, word, tell] if word == through::CREATE => {
            number(tell).map(|tell| through::create(Path::new(directory), tell))
        }
        [directory, word, id, main] if word == through::AWAIT => {
            id.to_str().zip(number(main)).map(|(id, main)| through::wait(Path::new(directory), id, main))
        }
        [socket, word, called] if word == through::REMOVE => {
            through::forget(Path::new(socket), Path::new(called))
        }
        _ => None,
    };
    Some(known.unwrap_or(ExitCode::from(2)))
}

/// Runs the task that `directory` describes, to its end. Standard output gets [`STARTED`] or one line that says
/// why not; then it is closed.
pub fn run(directory: &Path) -> ExitCode {
    match Shim::begin(directory).and_then(Shim::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(format!("{}: {error}\n", directory.display()).as_bytes());
            ExitCode::FAILURE
        }
    }
}

struct Shim<'a> {
    directory: &'a Path,
    order: Order,
    boot_id: String,
    signals: OwnedFd,
    clones: Vec<OwnedFd>,
    /// Made before the task's first process, removed after its last one.
    leaf: Option<Leaf>,
    /// Of a start that failed something goes on that is no descendant of ours.
    abroad: bool,
    started_ms: i64,
    /// Of the whole machine, when the task began.
    oom_kills: u64,
    /// Held until this process ends; its being held says that we live.
    _lock: OwnedFd,
}

impl<'a> Shim<'a> {
    /// Becomes a shim: session, signals, descriptors, lock, and the order read.
    fn begin(directory: &'a Path) -> io::Result<Self> {
        // Fails when the daemon has done it already.
        rustix::process::setsid().ok();
        rustix::process::chdir("/")?;
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGPIPE, libc::SIGTSTP] {
            ffi::set_disposition(signal, Disposition::Ignore);
        }
        let awaited = Signals::new(&[libc::SIGTERM, libc::SIGCHLD, ffi::stop_signal()]);
        awaited.block_only()?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        rustix::thread::set_name(c"wharfline-shim").ok();

        let order: Order = match record::read(&directory.join(SPEC))? {
            Read::Found(order) => order,
            Read::Absent => return Err(io::Error::from(io::ErrorKind::NotFound)),
            Read::Bad(error) => return Err(error.into()),
        };
        let wanted: Vec<i32> = order.task.mounts.iter().map(|mount| mount.fd).collect();
        ffi::close_all_but(&wanted.iter().copied().chain(order.lock).collect::<Vec<_>>());
        let take = |fd: i32| {
            let fd = ffi::inherited(fd).ok_or(io::Error::from(rustix::io::Errno::BADF))?;
            ffi::set_inherited(fd.as_fd(), false).map(|()| fd)
        };
        let lock = order.lock.map_or_else(|| lock(directory), take)?;
        let clones = wanted.into_iter().map(take).collect::<io::Result<_>>()?;
        Ok(Self {
            directory,
            boot_id: boot_id()?,
            signals: awaited.descriptor()?,
            clones,
            leaf: None,
            abroad: false,
            started_ms: wall_clock(),
            oom_kills: oom_kills(),
            _lock: lock,
            order,
        })
    }

    /// Runs the task to its end.
    fn run(mut self) -> io::Result<()> {
        let clones = std::mem::take(&mut self.clones);
        let streams = match self.start(clones) {
            Ok(started) => started,
            Err(not_begun) => {
                let stopped = not_begun == NotBegun::Stopped;
                let reason = not_begun.reason();
                if let Err(error) = self.leave_nothing() {
                    // Without a record of an end it is lost, and cleared by whoever finds it.
                    return Err(io::Error::other(format!("{reason}; {error}")));
                }
                self.finish(Outcome::NotStarted(reason.clone()), stopped, Wrote::default())?;
                report(reason.as_bytes());
                return Ok(());
            }
        };
        let (main, streams) = streams;
        ffi::give_back_read_only_pages();
        report(STARTED);
        let ladder = Ladder::new(self.order.task.grace_ms);
        let signals = self.signals.try_clone()?;
        let asks = match &self.order.task.container {
            Some(container) if container.through.is_some() => Asks::Client(container.stop_signal),
            Some(container) => Asks::Main(container.stop_signal),
            None => Asks::Group,
        };
        let in_unit = self.order.task.unit.is_some();
        let from_elsewhere = if in_unit { FromElsewhere::End } else { FromElsewhere::Stop };
        let leaf = self.leaf.as_ref();
        let mut supervised = Supervised { main, asks, signals, streams, ladder, from_elsewhere, leaf };
        let outcome = supervised.until_none_is_left()?;
        let wrote = supervised.wrote();
        let outcome = if self.through() { through::outcome(outcome) } else { outcome };
        self.finish(outcome, supervised.ladder.stop_asked(), wrote)
    }

    /// Whether it is a container that containerd makes.
    fn through(&self) -> bool {
        self.order.task.container.as_ref().is_some_and(|container| container.through.is_some())
    }

    fn wanted(&self) -> Wanted<'_> {
        Wanted { directory: self.directory, spec: &self.order.task, cookie: &self.order.cookie }
    }

    /// Starts the program, or says in one sentence why not; then nothing of it is left.
    fn start(&mut self, clones: Vec<OwnedFd>) -> Result<(i32, Vec<Stream>), NotBegun> {
        let spec = &self.order.task;
        if spec.unit.is_some() {
            unit::admitted(&self.signals)?;
        }
        let (log, other) = open_logs(spec)?;
        match (&spec.container, &spec.cgroup) {
            (None, _) => self.leaf = leaf(spec, &clones)?,
            (Some(_), None) => {}
            // runc makes it.
            (Some(_), Some(cgroup)) => Leaf::make_way(&Trees::here(), &cgroup.path)?,
        }
        let until = supervise::now() + container::START;
        let launched = launch::launch(self.wanted(), self.leaf.as_ref(), clones)
            .map_err(|error| format!("fork: {error}"))?;
        let main = match self.accompany(&launched, until) {
            Ok(()) => self.past_creation(launched.pid, until),
            Err(reason) => {
                abandon(launched.pid);
                if self.through() {
                    let leaf = self.cgroup().map(|path| Leaf::find(&Trees::here(), path));
                    self.abroad = !through::is_over(&launched, leaf.as_ref());
                }
                Err(reason)
            }
        };
        let main = main?;
        let mut streams = vec![Stream { pipe: Some(launched.stdout), log }];
        streams.extend(launched.stderr.zip(other).map(|(pipe, log)| Stream { pipe: Some(pipe), log }));
        Ok((main, streams))
    }

    /// Who the main process is: the child itself, or the first one of the container that the child made.
    fn past_creation(&mut self, child: i32, until: Millis) -> Result<i32, NotBegun> {
        let Some(container) = self.wanted().container() else { return Ok(child) };
        if self.through() {
            // The client stays.
            self.leaf = self.cgroup().map(|path| Leaf::find(&Trees::here(), path));
            return Ok(child);
        }
        let main = container.created(child, &self.signals, until)?;
        let cgroup = self.order.task.cgroup.as_ref();
        let leaf = cgroup.map(|cgroup| Leaf::find(&Trees::here(), &cgroup.path));
        self.record(main).map_err(|error| format!("record the task: {error}"))?;
        container.start(main, until)?;
        self.leaf = leaf;
        Ok(main)
    }

    /// Kills whatever a container that did not start has left. An error when some of it does not die.
    fn leave_nothing(&mut self) -> io::Result<()> {
        if self.wanted().container().is_none() {
            return Ok(());
        }
        if self.abroad {
            return Err(io::Error::other("what containerd began of it does not end"));
        }
        let leaf = || self.cgroup().map(|path| Leaf::find(&Trees::here(), path));
        let mut signals = [PollFd::new(&self.signals, PollFlags::IN)];
        loop {
            // One that was not reached lives, and is waited for below.
            if let Some(leaf) = leaf() {
                leaf.kill().ok();
            }
            supervise::signal_all(Signal::KILL).ok();
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => match rustix::event::poll(&mut signals, Some(&container::DIE)) {
                    Ok(0) => return Err(io::Error::other("what was begun of it does not die")),
                    Ok(_) => while ffi::next_signal(&self.signals)?.is_some() {},
                    Err(errno) if errno == Errno::INTR => {}
                    Err(errno) => return Err(errno.into()),
                },
                Err(_) => break, // ECHILD: as their reaper we have all of them
            }
        }
        let leaf = leaf();
        // What is in it came from elsewhere; it is removed at the end, as that of any task.
        self.leaf = leaf;
        Ok(())
    }

    /// The path of the task's cgroup: one that it has, or that its container is given.
    fn cgroup(&self) -> Option<&str> {
        let of_container = self.order.task.cgroup.as_ref().filter(|_| self.order.task.container.is_some());
        self.leaf.as_ref().map(Leaf::path).or(of_container.map(|cgroup| cgroup.path.as_str()))
    }

    /// Sees the child through its preparation; records who it is before it runs the program.
    fn accompany(&self, launched: &Launched, until: Millis) -> Result<(), NotBegun> {
        let news = |launched: &Launched| {
            launched.news(&self.signals, until).map_err(|error| format!("hear of the task: {error}"))
        };
        match news(launched)? {
            News::Ready => {}
            News::Failed(reason) => return Err(reason.into()),
            News::Silent if self.leaf.as_ref().and_then(Leaf::oom_kills).is_some_and(|kills| kills > 0) => {
                let reason = "killed while it was prepared: its memory limit is too low";
                return Err(reason.to_owned().into());
            }
            News::Silent => return Err("the task died while it was prepared".to_owned().into()),
            News::Interrupted => return Err(NotBegun::Stopped),
            News::Late => {
                let reason = format!("it was not prepared within {} s", container::START / 1000);
                return Err(reason.into());
            }
        }
        self.record(launched.pid).map_err(|error| format!("record the task: {error}"))?;
        launched.release().map_err(|error| format!("release the task: {error}"))?;
        if self.through() {
            return self.until_it_runs(launched, until);
        }
        match news(launched)? {
            News::Failed(reason) => Err(reason.into()),
            // Whatever came meanwhile is met in the loop.
            News::Silent | News::Ready | News::Interrupted | News::Late => Ok(()),
        }
    }

    /// Waits for the word that containerd has started it.
    fn until_it_runs(&self, launched: &Launched, until: Millis) -> Result<(), NotBegun> {
        loop {
            match launched.news(&self.signals, until).map_err(|error| format!("hear of the task: {error}"))? {
                News::Ready => return Ok(()),
                News::Failed(reason) => return Err(reason.into()),
                News::Silent => return Err("the task died while containerd made it".to_owned().into()),
                News::Late => {
                    let reason = format!("containerd did not make it within {} s", container::START / 1000);
                    return Err(reason.into());
                }
                News::Interrupted
                    if container::is_asked_to_stop(&self.signals).map_err(|e| e.to_string())? =>
                {
                    return Err(NotBegun::Stopped);
                }
                News::Interrupted => {}
            }
        }
    }

    fn record(&self, pid: i32) -> io::Result<()> {
        let ourselves = rustix::process::getpid().as_raw_nonzero().get();
        // The client of containerd is in the machine's own.
        let private = self.order.task.private_mounts && !self.through();
        let state = TaskState {
            boot_id: self.boot_id.clone(),
            shim: proc::stat(ourselves)?.id,
            task: proc::stat(pid)?.id,
            namespace: if private { Some(proc::mount_namespace(pid)?) } else { None },
            cookie: self.order.cookie.clone(),
            started_ms: self.started_ms,
            cgroup: self.cgroup().map(str::to_owned),
            unit: self.order.task.unit.as_ref().map(|unit| unit.name.clone()),
            container: self.wanted().container().map(|container| ContainerState {
                remembered: container.remembered(),
                called_by: self.through().then(|| stand_in::called_by(container.spec)),
                layers: container.spec.layers.clone(),
            }),
        };
        record::write(self.directory, STATE, &state, Keep::ThisBoot)
    }

    /// The main process, as it was recorded.
    fn recorded(&self) -> Option<i32> {
        match record::read::<TaskState>(&self.directory.join(STATE)) {
            Ok(Read::Found(state)) => Some(state.task.pid),
            Ok(Read::Absent | Read::Bad(_)) | Err(_) => None,
        }
    }

    fn finish(&self, outcome: Outcome, stopped: bool, wrote: Wrote) -> io::Result<()> {
        let killed = outcome == Outcome::Signal(libc::SIGKILL);
        let oom = match self.leaf.as_ref().and_then(Leaf::oom_kills) {
            Some(kills) => kills > 0,
            // Since it began others may have been killed for want of memory, and this one by a person.
            None => killed && oom_kills() > self.oom_kills && self.recorded().is_some_and(oom::was_killed),
        };
        if let Some(leaf) = &self.leaf {
            // What is in it came from elsewhere, for we have no child left. One that does not go is an orphan.
            leaf.clear().ok();
            if self.through() {
                // None of its processes is our child.
                through::clear(leaf);
            }
        }
        if let Some(container) = self.wanted().container() {
            container.forget();
        }
        let exit = ExitRecord {
            oom: oom && !stopped,
            outcome,
            started_ms: self.started_ms,
            finished_ms: wall_clock(),
            stopped,
            boot_id: self.boot_id.clone(),
            wrote: Some(wrote),
        };
        record::write(self.directory, EXIT, &exit, Keep::Always)
    }
}

/// The task's cgroup, if it can have one, or why it cannot run without.
fn leaf(spec: &TaskSpec, clones: &[OwnedFd]) -> Result<Option<Leaf>, String> {
    let read_only = read_only_devices(spec, clones).map_err(|error| format!("look at a volume: {error}"))?;
    if let Some(unit) = &spec.unit {
        return Leaf::in_unit(&Trees::here(), (&unit.name, unit.limits), &read_only).map(Some);
    }
    let Some(wanted) = &spec.cgroup else {
        let refused = "a block volume cannot be kept read-only without a cgroup";
        return if read_only.is_empty() { Ok(None) } else { Err(refused.to_owned()) };
    };
    let make = || Leaf::make(&Trees::here(), wanted, &read_only);
    match make() {
        Ok(leaf) => Ok(Some(leaf)),
        Err(reason) if wanted.limits.any() || !read_only.is_empty() => Err(reason),
        Err(reason) => match Leaf::find(&Trees::here(), &wanted.path).members() {
            // What was in its way may have ended since.
            Ok(there) if there.is_empty() => Ok(make().ok()),
            // What is in it is of an earlier run of this very task, or may be: beside that nothing begins.
            Ok(_) | Err(_) => Err(reason),
        },
    }
}

/// The block devices that no mount of the task may write.
fn read_only_devices(spec: &TaskSpec, clones: &[OwnedFd]) -> io::Result<Vec<DeviceId>> {
    let mut devices = Vec::new();
    for (mount, clone) in spec.mounts.iter().zip(clones).filter(|(mount, _)| mount.block) {
        let seen = rustix::fs::fstat(clone)?;
        if FileType::from_raw_mode(seen.st_mode) == FileType::BlockDevice {
            let [major, minor] = [rustix::fs::major(seen.st_rdev), rustix::fs::minor(seen.st_rdev)];
            devices.push((DeviceId { major, minor }, mount.read_only));
        }
    }
    let writable: Vec<DeviceId> =
        devices.iter().filter(|(_, read_only)| !read_only).map(|(device, _)| *device).collect();
    devices.retain(|(device, _)| !writable.contains(device));
    Ok(devices.into_iter().map(|(device, _)| device).collect())
}

fn lock(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::open(directory.join(LOCK), flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// The log of standard output, and that of standard error if it is another.
fn open_logs(spec: &TaskSpec) -> Result<(RotatedLog, Option<RotatedLog>), String> {
    let open = |path: &Path| {
        RotatedLog::open(path, &spec.logs)
            .map_err(|error| format!("open the log {}: {error}", path.display()))
    };
    let other = if spec.logs.stdout == spec.logs.stderr { None } else { Some(open(&spec.logs.stderr)?) };
    Ok((open(&spec.logs.stdout)?, other))
}

/// Kills a child that has not run its program, and waits for its end.
fn abandon(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        rustix::process::kill_process(pid, Signal::KILL).ok();
        loop {
            match rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }
}

/// Says something on standard output and closes it: the daemon may be gone, which changes nothing.
fn report(words: &[u8]) {
    rustix::io::write(rustix::stdio::stdout(), words).ok();
    if let Ok(nothing) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        for standard in [Standard::Output, Standard::Error] {
            ffi::redirect(&nothing, standard).ok();
        }
    }
}

fn wall_clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// How many processes this kernel has killed for want of memory since it booted.
fn oom_kills() -> u64 {
    let counts = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = counts.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}
