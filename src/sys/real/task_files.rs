//! What the files of a task's directory say, and their making and removal.
use crate::sys::cgroup::{self, Cgroup, Leaf, Limits, Trees};
use crate::sys::process::{ContainerSpec, ExitRecord, LogSpec, ProcessError, TaskSpec, TaskState};
use crate::sys::random::{Random, RealRandom};
use crate::sys::real::boot_id;
use crate::sys::real::processes::refused;
use crate::sys::shim::container::remembered;
use crate::sys::shim::logs::rotated;
use crate::sys::shim::record::{self, EXIT, Keep, LOCK, Order, Read, SPEC, STATE};
use crate::sys::shim::stage::{DOCUMENT, RUNC, STAGE, UPPER, WORK, WRITES};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// What is the case with a task; see [`crate::sys::process`].
pub(crate) enum Found {
    /// A shim holds the lock and has not written who it is.
    Starting,
    /// A shim holds the lock.
    Running(TaskState),
    /// The lock is free and the end is on record.
    Exited(ExitRecord),
    /// The lock is free and there is no end on record.
    Lost(TaskState),
    /// No process ever was.
    NeverStarted,
}

/// Looks at a task's directory.
pub(crate) fn find(directory: &Path) -> Result<Found, ProcessError> {
    let held = is_held(directory).map_err(|error| refused("look at", directory, error))?;
    // The lock first: a shim that ends between the two has written its record before it let go.
    match (held, read(directory, EXIT)?, read(directory, STATE)?) {
        (true, _, None) => Ok(Found::Starting),
        (true, _, Some(state)) => Ok(Found::Running(state)),
        (false, Some(exit), _) => Ok(Found::Exited(exit)),
        (false, None, Some(state)) => Ok(Found::Lost(state)),
        (false, None, None) => Ok(Found::NeverStarted),
    }
}

/// Who runs there; it must be on record.
pub(crate) fn state(directory: &Path) -> Result<TaskState, ProcessError> {
    read(directory, STATE)?.ok_or_else(|| refused("read the state of", directory, io::ErrorKind::NotFound))
}

/// How it ended, if that is on record.
pub(crate) fn exit(directory: &Path) -> Result<Option<ExitRecord>, ProcessError> {
    read(directory, EXIT)
}

fn read<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<Option<T>, ProcessError> {
    let path = directory.join(name);
    match record::read(&path) {
        Ok(Read::Found(record)) => Ok(Some(record)),
        Ok(Read::Absent) => Ok(None),
        Ok(Read::Bad(source)) => Err(ProcessError::BadRecord { path, source }),
        Err(error) => Err(refused("read", &path, error)),
    }
}

/// Whether a shim lives.
fn is_held(directory: &Path) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match rustix::fs::open(directory.join(LOCK), flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(false),
        other => other?,
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes the lock; none when a shim holds it.
fn take(directory: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(directory.join(LOCK), flags, Mode::RUSR | Mode::WUSR)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Takes the lock, removes the records of a former run, and writes the order.
pub(crate) fn begin(
    directory: &Path,
    mut task: TaskSpec,
    clones: &[OwnedFd],
    cookie: String,
) -> Result<OwnedFd, ProcessError> {
    let fail = |error| refused("prepare", directory, error);
    let taken = || ProcessError::Taken { directory: directory.to_owned() };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(fail)?;
    let lock = take(directory).map_err(fail)?.ok_or_else(taken)?;
    let (exit, state) = (exit(directory)?, read::<TaskState>(directory, STATE)?);
    // That of a unit is systemd's.
    let of_ours = |state: &&TaskState| state.unit.is_none();
    let old_leaf = state.as_ref().filter(of_ours).and_then(|state| state.cgroup.clone());
    // Of another boot nothing is left, so there is nothing to clear.
    if let (None, Some(lost)) = (exit, state)
        && lost.boot_id == boot_id().map_err(fail)?
    {
        return Err(taken());
    }
    if let Some(old) = old_leaf {
        remove_leaf(&old);
    }
    remove_container(directory, task.container.as_ref()).map_err(fail)?;
    // The state goes first: the end alone says that nothing is left, the state alone would say that it is lost.
    for name in [STATE, EXIT] {
        remove(&directory.join(name)).map_err(fail)?;
    }
    for (mount, clone) in task.mounts.iter_mut().zip(clones) {
        mount.fd = clone.as_raw_fd();
    }
    if let Some(container) = &task.container {
        make_container(directory, container).map_err(fail)?;
    }
    let order = Order { lock: Some(lock.as_raw_fd()), cookie, task };
    record::write(directory, SPEC, &order, Keep::ThisBoot).map_err(fail)?;
    Ok(lock)
}

/// Removes what is left of a cgroup whose task is over: its shim did, if it could.
fn remove_leaf(path: &str) {
    // One that has processes is nobody's task: an orphan, which is told of.
    Leaf::find(&Trees::here(), path).remove().ok();
}

/// Makes what a container's stage needs.
fn make_container(directory: &Path, container: &ContainerSpec) -> io::Result<()> {
    let writes = directory.join(WRITES);
    let own = [directory.join(STAGE), directory.join(RUNC), writes.join(UPPER), writes.join(WORK)];
    for inner in own.iter().chain([&container.root]) {
        DirBuilder::new().recursive(true).mode(0o700).create(inner)?;
    }
    record::replace(directory, DOCUMENT, container.document.as_bytes(), Keep::ThisBoot)
}

/// Removes what was made for an earlier container: what it wrote, and what runc remembers, which its shim has removed
/// if it could.
fn remove_container(directory: &Path, container: Option<&ContainerSpec>) -> io::Result<()> {
    if let Some(container) = container {
        crate::sys::remove::tree(&remembered(container))?;
    }
    for name in [STAGE, RUNC] {
        crate::sys::remove::tree(&directory.join(name))?;
    }
    throw_away(directory)?;
    remove(&directory.join(DOCUMENT))?;
    remove(&directory.join(format!("{DOCUMENT}.new")))?;
    Ok(())
}

/// Where what containers wrote waits for its removal, among the directories of tasks.
const TRASH: &str = ".trash";

/// Puts what a container wrote aside: it may be more than can be removed while somebody waits.
fn throw_away(directory: &Path) -> io::Result<()> {
    let writes = directory.join(WRITES);
    if !writes.try_exists()? {
        return Ok(());
    }
    let (Some(tasks), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let (trash, token) = (tasks.join(TRASH), RealRandom.token());
    let aside = trash.join(format!("{}.{token}", name.display()));
    let put = || {
        DirBuilder::new().recursive(true).mode(0o700).create(&trash)?;
        std::fs::rename(&writes, &aside)
    };
    match put() {
        // It was emptied, and removed, in this moment.
        Err(error) if error.kind() == io::ErrorKind::NotFound => put(),
        other => other,
    }
}

/// The directory of all tasks, if what was put aside of this one or another waits there.
pub(crate) fn trash_beside(directory: &Path) -> Option<PathBuf> {
    directory.parent().filter(|tasks| tasks.join(TRASH).exists()).map(Path::to_owned)
}

/// Removes what was put aside beneath `tasks`, which may take long.
pub(crate) fn empty_trash(tasks: &Path) -> io::Result<()> {
    Ok(crate::sys::remove::tree(&tasks.join(TRASH))?)
}

/// The numbers of what a shim inherits.
pub(crate) fn numbers(lock: &OwnedFd, clones: &[OwnedFd]) -> Vec<i32> {
    [lock].into_iter().chain(clones).map(AsRawFd::as_raw_fd).collect()
}

/// Whether a spec can be carried out.
pub(crate) fn check(spec: &TaskSpec, clones: usize) -> Result<(), ProcessError> {
    let bad = |what: String| Err(ProcessError::BadSpec(what));
    if spec.argv.first().is_none_or(String::is_empty) {
        return bad("there is no program to run".to_owned());
    }
    if spec.mounts.len() != clones {
        return bad(format!("{} mounts and {clones} clones", spec.mounts.len()));
    }
    if !(spec.private_mounts || spec.mounts.is_empty() && spec.hide.is_empty()) {
        return bad("mounts and hidden paths need private mounts".to_owned());
    }
    if let Some(cgroup) = &spec.cgroup {
        check_cgroup(cgroup)?;
    }
    if let Some(container) = &spec.container {
        check_container(spec, container)?;
    }
    if spec.unit.is_some() && (spec.cgroup.is_some() || spec.container.is_some()) {
        return bad("a task in a unit has no cgroup of its own and is no container".to_owned());
    }
    let mounts = spec.mounts.iter().map(|mount| &mount.path);
    let fixed = [&spec.cwd, &spec.logs.stdout, &spec.logs.stderr];
    for path in mounts.clone().chain(&spec.hide).chain(fixed) {
        if !is_plain(path) {
            return bad(format!("{} is not an absolute path without `..`", path.display()));
        }
    }
    for path in mounts {
        if let Some(hidden) = spec.hide.iter().find(|hidden| path.starts_with(hidden)) {
            return bad(format!(
                "mount path {} is inside {}, which is hidden",
                path.display(),
                hidden.display()
            ));
        }
    }
    Ok(())
}

fn check_container(spec: &TaskSpec, container: &ContainerSpec) -> Result<(), ProcessError> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
    let word = |id: &str| {
        let first = id.bytes().next();
        first.is_some_and(|byte| byte.is_ascii_alphanumeric()) && id.bytes().all(inner)
    };
    let shares = || container.shares.iter().map(|share| &share.path);
    let paths = || [&container.runc, &container.root].into_iter().chain(&container.layers).chain(shares());
    let fault = if let Some(path) = paths().find(|path| !is_plain(path)) {
        format!("{} is not an absolute path without `..`", path.display())
    } else if container.layers.is_empty() {
        "a container has one layer at least".to_owned()
    } else if !word(&container.id) {
        format!("{:?} cannot be the name of a container", container.id)
    } else if spec.cgroup.is_none() || !spec.private_mounts || !spec.hide.is_empty() {
        "a container has a cgroup and mounts of its own, and sees nothing that could be hidden".to_owned()
    } else {
        return Ok(());
    };
    Err(ProcessError::BadSpec(fault))
}

fn is_plain(path: &Path) -> bool {
    let part = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute() && path.components().all(part)
}

fn check_cgroup(cgroup: &Cgroup) -> Result<(), ProcessError> {
    let Limits { memory_bytes, cpu_millis, pids } = cgroup.limits;
    let fault = if let Some(fault) = cgroup::fault_of(&cgroup.path) {
        format!("cgroup {} {fault}", cgroup.path)
    } else if memory_bytes == Some(0) || pids == Some(0) || cpu_millis.is_some_and(|millis| millis < 10) {
        format!("{:?}: nothing can run within", cgroup.limits)
    } else {
        return Ok(());
    };
    Err(ProcessError::BadSpec(fault))
}

/// The directories beneath `root` that hold a task.
pub(crate) fn list(root: &Path) -> Result<Vec<PathBuf>, ProcessError> {
    let entries = match std::fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|error| refused("list", root, error))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| refused("list", root, error))?.path();
        if [LOCK, SPEC].iter().any(|name| path.join(name).is_file()) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Removes the files of a task that is over. `logs`: where its logs are if it has no spec.
pub(crate) fn forget(directory: &Path, logs: &LogSpec) -> Result<(), ProcessError> {
    let fail = |error| refused("remove the records of", directory, error);
    let taken = || ProcessError::Taken { directory: directory.to_owned() };
    if !directory.exists() {
        return remove_logs(logs).map_err(fail);
    }
    let _lock = take(directory).map_err(fail)?.ok_or_else(taken)?;
    if read::<TaskState>(directory, STATE)?.is_some() && exit(directory)?.is_none() {
        return Err(taken());
    }
    let order = read::<Order>(directory, SPEC)?;
    let container = order.as_ref().and_then(|order| order.task.container.as_ref());
    remove_container(directory, container).map_err(fail)?;
    if let Some(order) = &order {
        // By the spec: a shim that was killed before it wrote who it is has made it all the same.
        if let Some(cgroup) = &order.task.cgroup {
            remove_leaf(&cgroup.path);
        }
    }
    remove_logs(order.as_ref().map_or(logs, |order| &order.task.logs)).map_err(fail)?;
    // The end goes after the state: while it stands, nothing is lost. The lock goes last.
    for name in [STATE, EXIT, SPEC, LOCK] {
        remove(&directory.join(format!("{name}.new"))).map_err(fail)?;
        remove(&directory.join(name)).map_err(fail)?;
    }
    match rustix::fs::rmdir(directory) {
        Ok(()) | Err(Errno::NOTEMPTY | Errno::NOENT) => Ok(()),
        Err(errno) => Err(fail(errno.into())),
    }
}

fn remove_logs(logs: &LogSpec) -> io::Result<()> {
    for log in [&logs.stdout, &logs.stderr] {
        let mut older = 0;
        // Beyond the number of this spec there may be more, of an earlier one.
        while remove(&rotated(log, older))? || older <= logs.files {
            older += 1;
        }
        // Its directory and the allocation's, which other tasks may still use.
        for directory in log.ancestors().skip(1).take(2) {
            match rustix::fs::rmdir(directory) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(_in_use) => break,
            }
        }
    }
    Ok(())
}

/// Removes a file; false when there was none.
fn remove(path: &Path) -> io::Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
