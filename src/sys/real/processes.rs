//! [`RealProcesses`]: tasks under shims of this machine.
//!
//! The lock of a task's directory is taken here and handed to the shim through fork and exec, so there is no
//! moment in which a shim lives and its lock is free. Ends are seen by pidfd; nothing is asked again and again.
use crate::sys::cgroup::{self, Leaf, Orphans, Trees};
use crate::sys::ffi;
use crate::sys::proc;
use crate::sys::process::{
    Adopted, Ended, ExitRecord, LogSpec, Outcome, ProcessError, Processes, Task, TaskSpec, TaskState,
};
use crate::sys::random::{Random, RealRandom};
use crate::sys::real::pool::{Pool, Unanswered};
use crate::sys::real::task_files::{self, Found};
use crate::sys::real::watches::RealWatches;
use crate::sys::real::{boot_id, forks, leftovers, units};
use crate::sys::shim::STARTED;
use crate::sys::shim::record::{EXIT, Keep};
use crate::sys::shim::unit::{INSIDE, LONGEST};
use crate::sys::units::UnitSpec;
use crate::sys::watch::Watches;
use async_trait::async_trait;
use futures::StreamExt;
use rustix::fd::{AsFd, OwnedFd};
use rustix::pipe::PipeFlags;
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open};
use std::collections::HashSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout, timeout_at};

/// How long a shim may take until its task's program runs.
const START: Duration = Duration::from_secs(30);
/// How long leftovers may take to die after SIGKILL.
const DIE: Duration = Duration::from_secs(30);

/// Runs tasks under shims of this machine.
#[derive(Debug, Clone)]
pub struct RealProcesses {
    program: PathBuf,
    pool: Pool,
    start: Duration,
    /// Whether what containers wrote is being removed.
    emptying: Arc<AtomicBool>,
}

impl RealProcesses {
    /// Shims are the running binary itself, even after an upgrade took its name. Files are read on this pool.
    pub fn new(pool: Pool) -> Self {
        Self::with_program("/proc/self/exe".into(), pool)
    }

    /// Shims are this program, started with the arguments `shim DIRECTORY`.
    pub fn with_program(program: PathBuf, pool: Pool) -> Self {
        Self { program, pool, start: START, emptying: Arc::default() }
    }

    /// With another limit for a shim to get its task's program running; half a minute is the default.
    #[must_use]
    pub fn with_start_limit(mut self, limit: Duration) -> Self {
        self.start = limit;
        self
    }

    async fn ask<T: Send + 'static>(
        &self,
        directory: &Path,
        work: impl FnOnce(&Path) -> Result<T, ProcessError> + Send + 'static,
    ) -> Result<T, ProcessError> {
        ask(&self.pool, directory, work).await
    }

    /// Has what was put aside beneath `tasks` removed, beside everything else: it may take minutes, and nobody waits.
    fn empty_trash(&self, tasks: &Path) {
        let tasks = tasks.to_owned();
        if self.emptying.swap(true, Ordering::AcqRel) {
            return;
        }
        let emptying = Arc::clone(&self.emptying);
        let work = move || {
            // What comes meanwhile is removed with what comes next, or at the next start of the daemon.
            if let Err(error) = task_files::empty_trash(&tasks) {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(tasks = %tasks.display(), error, "what containers wrote is not removed yet");
            }
            emptying.store(false, Ordering::Release);
        };
        // A thread of its own: the end of the daemon does not wait for it.
        if std::thread::Builder::new().name("trash".to_owned()).spawn(work).is_err() {
            self.emptying.store(false, Ordering::Release);
        }
    }

    /// What is in the directory; none when that changes in this moment.
    async fn look(&self, directory: &Path) -> Result<Option<Adopted>, ProcessError> {
        Ok(match self.ask(directory, task_files::find).await? {
            Found::NeverStarted => Some(Adopted::NeverStarted),
            Found::Exited(record) => Some(Adopted::Exited(record)),
            Found::Lost(state) => Some(Adopted::Lost(state)),
            Found::Running(state) => match proc::open(state.shim)
                .map_err(|error| refused("look for the shim of", directory, error))?
            {
                Some(pidfd) => {
                    let task = RealTask::new(directory, state, pidfd, self.pool.clone())?;
                    Some(Adopted::Running(Box::new(task)))
                }
                // It is gone; its files say how once the lock is free.
                None => None,
            },
            // It was started a moment ago.
            Found::Starting => None,
        })
    }

    /// Hears from a new shim whether the task's program runs.
    async fn hear(&self, directory: &Path, shim: Spawned) -> Result<RealTask, ProcessError> {
        let refused = |source| refused("hear from the shim of", directory, source);
        let mut report = pipe::Receiver::from_owned_fd(shim.report).map_err(refused)?;
        let mut words = Vec::new();
        let heard = async {
            // Bounded: a shim says one line.
            (&mut report).take(8192).read_to_end(&mut words).await
        };
        match timeout(self.start, heard).await {
            Err(_) => {
                // What it waits for may never come, and what it has prepared dies with it.
                proc::send(&shim.pidfd, Signal::KILL).map_err(refused)?;
                let pidfd = ffi::readable(shim.pidfd).map_err(refused)?;
                drop(timeout(DIE, gone(&pidfd)).await);
                return Err(ProcessError::NoAnswer { directory: directory.to_owned() });
            }
            Ok(read) => drop(read.map_err(refused)?),
        }
        if words == STARTED {
            let state = self.ask(directory, task_files::state).await?;
            return RealTask::new(directory, state, shim.pidfd, self.pool.clone());
        }
        let pidfd = ffi::readable(shim.pidfd).map_err(refused)?;
        match timeout(self.start, gone(&pidfd)).await {
            Err(_) => Err(ProcessError::NoAnswer { directory: directory.to_owned() }),
            Ok(gone) => {
                gone.map_err(refused)?;
                Err(ProcessError::NotStarted(String::from_utf8_lossy(&words).trim().to_owned()))
            }
        }
    }
}

#[async_trait]
impl Processes for RealProcesses {
    async fn start(
        &self,
        directory: &Path,
        spec: &TaskSpec,
        clones: Vec<OwnedFd>,
    ) -> Result<Box<dyn Task>, ProcessError> {
        task_files::check(spec, clones.len())?;
        let (spec, program, unit) = (spec.clone(), self.program.clone(), spec.unit.clone());
        effect!("start task");
        let spawned = self.ask(directory, move |directory| {
            let shim = spawn(&program, directory, spec, &clones)?;
            Ok((shim, task_files::trash_beside(directory)))
        });
        let (mut shim, trash) = spawned.await?;
        if let Some(tasks) = trash {
            self.empty_trash(&tasks);
        }
        effect!("start task: shim");
        if let (Some(unit), Some(door)) = (unit, shim.door.take()) {
            admit(&unit, shim.pid, door)
                .await
                .map_err(|error| refused("speak to the shim of", directory, error))?;
            effect!("start task: unit");
        }
        let task = self.hear(directory, shim).await?;
        effect!("start task: done");
        Ok(Box::new(task))
    }

    async fn adopt(&self, directory: &Path) -> Result<Adopted, ProcessError> {
        if let Some(adopted) = self.look(directory).await? {
            return Ok(adopted);
        }
        // A shim begins or ends in this moment: whatever it does next shows in its directory, the release of
        // its lock too (a file that was open for writing is closed).
        let watches = RealWatches::new(self.pool.clone());
        let mut changes = watches
            .changes(directory)
            .await
            .map_err(|error| refused("watch", directory, io::Error::other(error)))?;
        let deadline = Instant::now() + START;
        loop {
            if let Some(adopted) = self.look(directory).await? {
                return Ok(adopted);
            }
            match timeout_at(deadline, changes.next()).await {
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => {
                    return Err(ProcessError::NoAnswer { directory: directory.to_owned() });
                }
            }
        }
    }

    async fn clear_leftovers(&self, directory: &Path) -> Result<usize, ProcessError> {
        let state = match self.ask(directory, task_files::find).await? {
            Found::Lost(state) => state,
            Found::NeverStarted | Found::Exited(_) => return Ok(0),
            Found::Starting | Found::Running(_) => {
                return Err(ProcessError::Taken { directory: directory.to_owned() });
            }
        };
        let deadline = Instant::now() + DIE;
        let mut killed = HashSet::new();
        loop {
            let sought = state.clone();
            let found = self.ask(directory, move |path| {
                leftovers::find(&sought).map_err(|e| refused("look for what is left of", path, e))
            });
            let found = found.await?;
            if found.is_empty() {
                break;
            }
            killed.extend(found.iter().map(|(id, _)| *id));
            let sought = state.clone();
            // All at once where the kernel can, so that what they start meanwhile dies too.
            let leaf = self.ask(directory, move |_| {
                // Whether some of them were missed, the next look says.
                if let Some(leaf) = leftovers::leaf(&sought) {
                    leaf.kill().ok();
                }
                Ok(())
            });
            leaf.await?;
            kill(directory, found, deadline).await?;
        }
        self.ask(directory, move |directory| record_lost(directory, &state)).await?;
        Ok(killed.len())
    }

    async fn list(&self, root: &Path) -> Result<Vec<PathBuf>, ProcessError> {
        self.empty_trash(root);
        self.ask(root, task_files::list).await
    }

    async fn forget(&self, directory: &Path, logs: &LogSpec) -> Result<(), ProcessError> {
        let logs = logs.clone();
        let forgotten = self.ask(directory, move |directory| {
            task_files::forget(directory, &logs)?;
            Ok(task_files::trash_beside(directory))
        });
        if let Some(tasks) = forgotten.await? {
            self.empty_trash(&tasks);
        }
        Ok(())
    }

    async fn remove_orphans(&self, parent: &str, tasks: &Path) -> Result<Orphans, ProcessError> {
        let parent = parent.to_owned();
        let remove = move |tasks: &Path| {
            cgroup::remove_orphans(&Trees::here(), &parent, tasks)
                .map_err(|error| refused("look for cgroups without a task in", tasks, error))
        };
        self.ask(tasks, remove).await
    }

    async fn remove_if_empty(&self, parent: &str) -> Result<(), ProcessError> {
        let parent = parent.to_owned();
        let remove = move |_: &Path| {
            cgroup::remove_if_empty(&Trees::here(), &parent);
            Ok(())
        };
        self.ask(Path::new("/sys/fs/cgroup"), remove).await
    }
}

async fn ask<T: Send + 'static>(
    pool: &Pool,
    directory: &Path,
    work: impl FnOnce(&Path) -> Result<T, ProcessError> + Send + 'static,
) -> Result<T, ProcessError> {
    let owned = directory.to_owned();
    match pool.run(directory, move || work(&owned)).await {
        Ok(answer) => answer,
        Err(Unanswered::Hung | Unanswered::Overloaded) => {
            Err(ProcessError::NoAnswer { directory: directory.to_owned() })
        }
    }
}

pub(crate) fn refused(action: &'static str, path: &Path, source: impl Into<io::Error>) -> ProcessError {
    ProcessError::Refused { action, path: path.to_owned(), source: source.into() }
}

/// A shim that was just started.
struct Spawned {
    pid: i32,
    pidfd: OwnedFd,
    report: OwnedFd,
    /// Where one that waits for its unit hears of it.
    door: Option<OwnedFd>,
}

/// Has systemd put a shim into its unit, and tells the shim what came of it.
async fn admit(unit: &UnitSpec, pid: i32, door: OwnedFd) -> io::Result<()> {
    let sentence = match units::enclose(unit, pid).await {
        Ok(()) => INSIDE.to_vec(),
        Err(why) => why.into_bytes(),
    };
    match rustix::io::write(&door, &sentence[..sentence.len().min(LONGEST)]) {
        // It is gone; what it said says why.
        Ok(_) | Err(rustix::io::Errno::PIPE) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Writes the order and starts the shim with the lock and the clones.
fn spawn(
    program: &Path,
    directory: &Path,
    spec: TaskSpec,
    clones: &[OwnedFd],
) -> Result<Spawned, ProcessError> {
    let waits = spec.unit.is_some();
    let lock = task_files::begin(directory, spec, clones, RealRandom.token())?;
    let fail = |source: io::Error| refused("start the shim of", directory, source);
    let (report, told) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|errno| fail(errno.into()))?;
    rustix::fs::fcntl_setfl(&report, rustix::fs::OFlags::NONBLOCK).map_err(|errno| fail(errno.into()))?;
    let (input, door) = if waits {
        let (input, door) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|errno| fail(errno.into()))?;
        (Stdio::from(input), Some(door))
    } else {
        (Stdio::null(), None)
    };
    let mut command = Command::new(program);
    command
        .arg0("wharfline")
        .arg(crate::sys::SHIM)
        .arg(directory)
        .env_clear()
        .current_dir("/")
        .stdin(input)
        .stdout(Stdio::from(told.try_clone().map_err(fail)?))
        .stderr(Stdio::from(told));
    let numbers: Vec<i32> = task_files::numbers(&lock, clones);
    ffi::before_exec(&mut command, move || {
        rustix::process::setsid()?;
        numbers.iter().try_for_each(|&number| ffi::inherit_number(number))
    });
    let child = forks::spawn(&mut command).map_err(fail)?;
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    // Only this process reaps it, so the number is still its own.
    let pid = pid.ok_or_else(|| fail(io::ErrorKind::InvalidData.into()))?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| fail(errno.into()))?;
    Ok(Spawned { pid: pid.as_raw_nonzero().get(), pidfd, report, door })
}

/// Waits until a process is gone, and reaps it if it is ours.
async fn gone(pidfd: &AsyncFd<OwnedFd>) -> io::Result<()> {
    // Readable means gone, forever: readiness is never cleared.
    drop(pidfd.readable().await?);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    // ECHILD: adopted, and reaped by whoever is its parent now.
    rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options).ok();
    Ok(())
}

async fn kill(
    directory: &Path,
    found: Vec<leftovers::Leftover>,
    deadline: Instant,
) -> Result<(), ProcessError> {
    let fail = |source| refused("kill what is left of", directory, source);
    let mut dying = Vec::new();
    for (id, pidfd) in found {
        proc::send(&pidfd, Signal::KILL).map_err(fail)?;
        dying.push((id.pid, ffi::readable(pidfd).map_err(fail)?));
    }
    let mut still = Vec::new();
    for (pid, pidfd) in dying {
        match timeout_at(deadline, gone(&pidfd)).await {
            Ok(gone) => gone.map_err(fail)?,
            Err(_) => still.push(pid),
        }
    }
    if still.is_empty() { Ok(()) } else { Err(ProcessError::StillThere { pids: still }) }
}

fn record_lost(directory: &Path, state: &TaskState) -> Result<(), ProcessError> {
    let boot_id = boot_id().map_err(|error| refused("read the boot id for", directory, error))?;
    // The path of another boot's cgroup may be anybody's now.
    let leaf = leftovers::leaf(state).filter(|_| boot_id == state.boot_id);
    let oom = leaf.as_ref().and_then(Leaf::oom_kills).is_some_and(|kills| kills > 0);
    if let Some(leaf) = leaf {
        // One that does not go is removed with the task's records, or as an orphan.
        leaf.remove().ok();
    }
    if let Some(container) = &state.container {
        crate::sys::remove::tree(&container.remembered).ok();
    }
    let record = ExitRecord {
        outcome: Outcome::Lost,
        started_ms: state.started_ms,
        finished_ms: jiff::Timestamp::now().as_millisecond(),
        oom,
        stopped: false,
        boot_id,
        wrote: None,
    };
    let written = crate::sys::shim::record::write(directory, EXIT, &record, Keep::Always);
    written.map_err(|error| refused("record the end of", directory, error))
}

/// A running task, by the pidfd of its shim.
#[derive(Debug)]
struct RealTask {
    directory: PathBuf,
    state: TaskState,
    shim: AsyncFd<OwnedFd>,
    pool: Pool,
}

impl RealTask {
    fn new(directory: &Path, state: TaskState, pidfd: OwnedFd, pool: Pool) -> Result<Self, ProcessError> {
        let shim = ffi::readable(pidfd).map_err(|error| refused("watch the shim of", directory, error))?;
        Ok(Self { directory: directory.to_owned(), state, shim, pool })
    }
}

#[async_trait]
impl Task for RealTask {
    fn state(&self) -> &TaskState {
        &self.state
    }

    async fn wait(&self) -> Result<Ended, ProcessError> {
        gone(&self.shim).await.map_err(|error| refused("watch the shim of", &self.directory, error))?;
        let record = ask(&self.pool, &self.directory, task_files::exit).await?;
        Ok(record.map_or(Ended::Lost, Ended::Exited))
    }

    fn stop(&self, grace: Option<Duration>) -> Result<(), ProcessError> {
        // What is no number of milliseconds is the task's own.
        let grace = grace.map_or(-1, |grace| i32::try_from(grace.as_millis()).unwrap_or(i32::MAX));
        match ffi::pidfd_queue(&self.shim, ffi::stop_signal(), grace) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                Err(refused("stop", &self.directory, error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn signal(&self, signal: i32) -> Result<(), ProcessError> {
        let bad = || ProcessError::BadSpec(format!("{signal} is no signal"));
        let signal = Signal::from_named_raw(signal).ok_or_else(bad)?;
        let refused = |error| refused("signal", &self.directory, error);
        match proc::open(self.state.task).map_err(refused)? {
            None => Ok(()),
            Some(task) => proc::send(&task, signal).map_err(refused),
        }
    }
}
