//! A cgroup for each task: its limits, its processes, and whom the kernel killed for want of memory.
//!
//! The kernel shows cgroups as directories, in one tree (v2) or in one for each controller (v1). A task's *leaf* is
//! one path, the same in every tree that it needs. Trees are looked for where all distributions mount them:
//!
//! ```text
//! v2        /sys/fs/cgroup
//! hybrid    /sys/fs/cgroup/NAME for each controller of v1, /sys/fs/cgroup/unified for v2
//! v1        /sys/fs/cgroup/NAME
//! ```
//! A controller is taken from the v2 tree if it is there, else from its own. The v2 tree, where there is one, is used
//! even without controllers: it can kill all of a leaf at once.
//!
//! Where systemd runs the task's unit, the unit's cgroup and its limits are systemd's ([`unit`]).
//!
//! Tried in earnest: hybrid. Of v2 alone only the layout is tested, on plain files. Nothing is decided here of when
//! a leaf is made or who is killed.
mod devices;
mod unit;

use crate::sys::ffi::{self, Fork};
use crate::sys::kernel::DeviceId;
use crate::sys::proc;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MOUNTED: &str = "/sys/fs/cgroup";
/// The length of the period, in microseconds, of which a task gets its share of the processors.
const PERIOD: u64 = 100_000;
/// How long a leaf may be busy after its last process ended: the kernel lets go of one a moment later.
const LINGER: Duration = Duration::from_secs(2);
/// How often one is tried to be made.
const TRIES: usize = 4;
/// Between two tries to remove one.
const AGAIN: Duration = Duration::from_millis(2);

/// Where a task's processes are counted, and what they may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// The leaf, from the root of each tree, such as `/wharfline/NODE/ALLOCATION.TASK`: no other task has it. All
    /// that is in it is killed with the task.
    pub path: String,
    /// With any of these a task without its leaf does not start; without one it starts where its shim is.
    #[serde(default)]
    pub limits: Limits,
}

/// What the processes of one task may use together; what is not given is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory in bytes, with what the kernel keeps for them of files; swap is not counted. Beyond it one of them is
    /// killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Thousandths of one processor; 10 at least, which is the kernel's own bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<u64>,
    /// How many processes and threads there may be at once. Beyond it a fork fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
}

impl Limits {
    /// Whether anything is limited.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// Leaves of which no task is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Those that were empty: they are gone. Names beneath the parent.
    pub removed: Vec<String>,
    /// Those that were left alone, with the numbers of their living processes; none when the kernel itself says that
    /// it is busy.
    pub occupied: Vec<(String, Vec<i32>)>,
}

/// What is wrong with the path of a leaf, if anything.
pub(crate) fn fault_of(path: &str) -> Option<&'static str> {
    let parts: Vec<&str> = path.split('/').collect();
    if parts.first() != Some(&"") || parts.len() < 3 {
        return Some("is not an absolute path of two names or more");
    }
    let bad = |part: &&str| matches!(*part, "" | "." | "..") || part.chars().any(char::is_control);
    parts[1..].iter().any(bad).then_some("is not a plain path")
}

/// What a cgroup can count or limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Memory,
    Cpu,
    Pids,
    /// Of v1 alone; v2 has programs for it.
    Devices,
}

impl Controller {
    const ALL: [Self; 4] = [Self::Memory, Self::Cpu, Self::Pids, Self::Devices];

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::Devices => "devices",
        }
    }
}

/// What a new process has to join by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The whole leaf.
    All,
    /// It was born in the part of v2.
    ButV2,
}

/// Which tree a directory is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tree {
    V2,
    V1(Controller),
    /// One that nothing here makes a directory in; what runs containers does.
    Other,
}

/// The trees of a machine.
#[derive(Debug)]
pub(crate) struct Trees {
    mounted: PathBuf,
    v2: Option<PathBuf>,
}

impl Trees {
    /// Those of this machine.
    pub(crate) fn here() -> Self {
        Self::at(Path::new(MOUNTED))
    }

    fn at(mounted: &Path) -> Self {
        let places = [mounted.to_owned(), mounted.join("unified")];
        let v2 = places.into_iter().find(|place| place.join("cgroup.controllers").exists());
        Self { mounted: mounted.to_owned(), v2 }
    }

    /// The root of a controller's own tree.
    fn v1(&self, controller: Controller) -> Option<PathBuf> {
        if self.v2.as_ref() == Some(&self.mounted) {
            return None;
        }
        // `cpu` is a link to `cpu,cpuacct` in some places, and missing in others.
        let names = [controller.name(), "cpu,cpuacct"];
        let names = if controller == Controller::Cpu { &names[..] } else { &names[..1] };
        names.iter().map(|name| self.mounted.join(name)).find(|tree| tree.join("cgroup.procs").exists())
    }

    /// Where a controller is.
    fn of(&self, controller: Controller) -> Option<Tree> {
        if self.v2.as_deref().is_some_and(|tree| lists(tree, "cgroup.controllers", controller)) {
            return Some(Tree::V2);
        }
        self.v1(controller).map(|_| Tree::V1(controller))
    }

    fn root(&self, tree: Tree) -> Option<PathBuf> {
        match tree {
            Tree::V2 => self.v2.clone(),
            Tree::V1(controller) => self.v1(controller),
            Tree::Other => None,
        }
    }

    /// Every tree, once.
    fn all(&self) -> Vec<(Tree, PathBuf)> {
        let trees = [Tree::V2].into_iter().chain(Controller::ALL.map(Tree::V1));
        let mut all: Vec<_> = trees.filter_map(|tree| Some((tree, self.root(tree)?))).collect();
        if self.v2.as_ref() == Some(&self.mounted) {
            return all; // what is beneath it is its own
        }
        // A link is another name of one that is there.
        let known: Vec<_> = all.iter().filter_map(|(_, root)| root.canonicalize().ok()).collect();
        // Without them a leaf lacks parts, but none of its processes: each of these is in a part that we make, too.
        let others = children(&self.mounted)
            .unwrap_or_default()
            .into_iter()
            .filter(|root| root.join("cgroup.procs").exists());
        all.extend(others.filter(|root| !known.contains(root)).map(|root| (Tree::Other, root)));
        all
    }
}

fn lists(directory: &Path, file: &str, controller: Controller) -> bool {
    let words = std::fs::read_to_string(directory.join(file)).unwrap_or_default();
    words.split_ascii_whitespace().any(|word| word == controller.name())
}

/// One task's directories, those that there are.
#[derive(Debug)]
pub(crate) struct Leaf {
    path: String,
    parts: Vec<(Tree, PathBuf)>,
    /// That it has to do with a unit of systemd's.
    unit: Option<unit::Unit>,
    /// That it only counts processes: where one cannot join it, it runs without.
    bare: bool,
}

impl Leaf {
    /// What there is of the leaf at a path.
    pub(crate) fn find(trees: &Trees, path: &str) -> Self {
        let parts = trees.all().into_iter().map(|(tree, root)| (tree, beneath(&root, path)));
        let parts = parts.filter(|(_, directory)| directory.is_dir()).collect();
        Self { path: path.to_owned(), parts, unit: None, bare: false }
    }

    /// Makes a leaf with its limits, and with devices that may be read and not written. What an earlier run left
    /// there is removed, unless processes are in it. Or says in one sentence why not; then nothing of it is left.
    pub(crate) fn make(trees: &Trees, wanted: &Cgroup, read_only: &[DeviceId]) -> Result<Self, String> {
        Self::make_way(trees, &wanted.path)?;
        let bare = !wanted.limits.any() && read_only.is_empty();
        let mut leaf = Self { path: wanted.path.clone(), parts: Vec::new(), unit: None, bare };
        match leaf.build(trees, wanted.limits, read_only) {
            Ok(()) => Ok(leaf),
            Err(reason) => {
                leaf.remove().ok();
                Err(reason)
            }
        }
    }

    /// Removes what an earlier run left at a path; refused while processes are in it.
    pub(crate) fn make_way(trees: &Trees, path: &str) -> Result<(), String> {
        let old = Self::find(trees, path);
        old.remove().map_err(|error| match old.members() {
            Ok(pids) if !pids.is_empty() => format!("the cgroup {path} has processes already: {pids:?}"),
            Ok(_) | Err(_) => format!("remove the old cgroup {path}: {error}"),
        })
    }

    fn build(&mut self, trees: &Trees, limits: Limits, read_only: &[DeviceId]) -> Result<(), String> {
        let needed = [
            (Controller::Memory, limits.memory_bytes.is_some()),
            (Controller::Cpu, limits.cpu_millis.is_some()),
            (Controller::Pids, limits.pids.is_some()),
        ];
        // Memory with any of them: its count says whom the kernel killed. Where nothing is asked for, only the processes are
        // counted, in one directory.
        let bare = self.bare;
        let mut of_v2 = Vec::new();
        for (controller, must) in
            needed.into_iter().filter(|(c, must)| *must || !bare && *c == Controller::Memory)
        {
            match trees.of(controller) {
                Some(Tree::V2) => of_v2.push((controller, must)),
                Some(tree @ (Tree::V1(_) | Tree::Other)) => self.add(trees, tree, &[])?,
                None if must => {
                    return Err(format!("limit {}: this machine has no such cgroups", controller.name()));
                }
                None => {}
            }
        }
        if trees.v2.is_some() {
            self.add(trees, Tree::V2, &of_v2)?;
        } else if bare {
            use Controller::{Cpu, Devices, Memory, Pids};
            let mut of_v1 = [Pids, Devices, Cpu, Memory].into_iter().filter(|one| trees.v1(*one).is_some());
            if let Some(controller) = of_v1.next() {
                self.add(trees, Tree::V1(controller), &[])?;
            }
        }
        self.limit(trees, limits)?;
        self.deny_writes(trees, read_only)?;
        if self.parts.is_empty() {
            return Err("this machine has no cgroups".to_owned());
        }
        Ok(())
    }

    /// Makes the directory in one tree, and in v2 has these controllers reach it.
    fn add(&mut self, trees: &Trees, tree: Tree, controllers: &[(Controller, bool)]) -> Result<(), String> {
        let Some(root) = trees.root(tree) else { return Ok(()) };
        let mut made = self.directory(&root, controllers);
        // Another daemon may take away what is empty above it.
        for _ in 1..TRIES {
            if !matches!(&made, Err((_, io::ErrorKind::NotFound))) {
                break;
            }
            made = self.directory(&root, controllers);
        }
        let at = made.map_err(|(reason, _)| reason)?;
        // The v2 part first: processes are named and killed there.
        let index = if tree == Tree::V2 { 0 } else { self.parts.len() };
        self.parts.insert(index, (tree, at));
        Ok(())
    }

    /// Makes the directory beneath a root, and those above it, or says why not, in words and in kind.
    fn directory(
        &self,
        root: &Path,
        controllers: &[(Controller, bool)],
    ) -> Result<PathBuf, (String, io::ErrorKind)> {
        let mut at = root.to_owned();
        for name in self.path.split('/').filter(|name| !name.is_empty()) {
            for (controller, must) in controllers {
                match enable(&at, *controller) {
                    Err(error) if *must => {
                        let name = controller.name();
                        let reason = format!("use the controller {name} beneath {}: {error}", at.display());
                        return Err((reason, error.kind()));
                    }
                    Ok(()) | Err(_) => {}
                }
            }
            at.push(name);
            match std::fs::create_dir(&at) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err((format!("make the cgroup {}: {error}", at.display()), error.kind()));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(at)
    }

    fn limit(&self, trees: &Trees, limits: Limits) -> Result<(), String> {
        use Controller::{Cpu, Memory, Pids};
        if let Some(bytes) = limits.memory_bytes {
            self.set(trees, Memory, ["memory.max", "memory.limit_in_bytes"], &bytes.to_string())?;
        }
        if let Some(pids) = limits.pids {
            self.set(trees, Pids, ["pids.max", "pids.max"], &pids.to_string())?;
        }
        let Some(millis) = limits.cpu_millis else { return Ok(()) };
        let share = millis.saturating_mul(PERIOD / 1000);
        if trees.of(Cpu) == Some(Tree::V2) {
            return self.set(trees, Cpu, ["cpu.max"; 2], &format!("{share} {PERIOD}"));
        }
        self.set(trees, Cpu, ["cpu.cfs_period_us"; 2], &PERIOD.to_string())?;
        self.set(trees, Cpu, ["cpu.cfs_quota_us"; 2], &share.to_string())
    }

    /// Writes one limit, to the file of v2 or that of v1.
    fn set(
        &self,
        trees: &Trees,
        controller: Controller,
        files: [&str; 2],
        value: &str,
    ) -> Result<(), String> {
        let tree = trees.of(controller).unwrap_or(Tree::V2);
        let file = if tree == Tree::V2 { files[0] } else { files[1] };
        let directory = self.part(tree).ok_or_else(|| format!("no cgroup of {}", controller.name()))?;
        write(&directory.join(file), value)
            .map_err(|error| format!("limit {} to {value}: {error}", controller.name()))
    }

    /// Lets nobody in the leaf open these block devices to write, by whatever node.
    fn deny_writes(&mut self, trees: &Trees, devices: &[DeviceId]) -> Result<(), String> {
        if devices.is_empty() {
            return Ok(());
        }
        let by_program = match self.part(Tree::V2) {
            Some(directory) => devices::deny_writes(directory, devices),
            None => Err(io::ErrorKind::Unsupported.into()),
        };
        let Err(error) = by_program else { return Ok(()) };
        let tree = Tree::V1(Controller::Devices);
        if trees.root(tree).is_none() {
            return Err(format!("this machine cannot keep a block volume read-only: {error}"));
        }
        self.add(trees, tree, &[])?;
        let deny = self.part(tree).unwrap_or(Path::new("/")).join("devices.deny");
        let rule = |device: &DeviceId| format!("b {}:{} w", device.major, device.minor);
        let written = devices.iter().try_for_each(|device| write(&deny, &rule(device)));
        written.map_err(|error| format!("keep a block volume read-only: {error}"))
    }

    fn part(&self, wanted: Tree) -> Option<&Path> {
        self.parts.iter().find(|(tree, _)| *tree == wanted).map(|(_, directory)| directory.as_path())
    }

    /// The path, for the record: that of the unit, if it is in one.
    pub(crate) fn path(&self) -> &str {
        self.unit.as_ref().map_or(&self.path, |unit| &unit.path)
    }

    /// Forks into its part of v2, if it has one and the kernel can: to move a process there afterwards stops every
    /// fork of the machine, and takes some ten milliseconds. The child has to [`Leaf::join`] what is said.
    pub(crate) fn fork(&self) -> io::Result<(Fork, Rest)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Some(directory) = self.part(Tree::V2)
            && let Ok(directory) = rustix::fs::open(directory, flags, Mode::empty())
            && let Ok(forked) = ffi::fork_into(directory.as_fd())
        {
            return Ok((forked, Rest::ButV2));
        }
        Ok((ffi::fork()?, Rest::All))
    }

    /// Puts this process into it, which must have one thread. One that only counts is done without where that cannot be: in a
    /// namespace that shows more of the tree than it may use.
    pub(crate) fn join(&self, rest: Rest) -> io::Result<()> {
        let mut left = self.parts.iter().filter(|(tree, _)| rest == Rest::All || *tree != Tree::V2);
        let joined = left.try_for_each(|(tree, directory)| {
            // Of v1 the file for threads: the other one stops every fork on the machine for a moment.
            let file = if *tree == Tree::V2 { "cgroup.procs" } else { "tasks" };
            write(&directory.join(file), "0")
        });
        if self.bare { Ok(()) } else { joined }
    }

    /// The living processes in it and beneath it. An error when that is not known.
    pub(crate) fn members(&self) -> io::Result<Vec<i32>> {
        let mut pids = BTreeSet::new();
        for (_, part) in &self.parts {
            for directory in walk(part)? {
                let list = listed(&directory)?;
                pids.extend(list.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|&pid| pid > 0));
            }
        }
        let mut living = Vec::new();
        for pid in pids {
            if proc::find(pid)?.is_some_and(|stat| !stat.zombie) {
                living.push(pid);
            }
        }
        Ok(living)
    }

    /// How many processes in it the kernel killed for want of memory; none when it does not count them.
    pub(crate) fn oom_kills(&self) -> Option<u64> {
        let unit = self.unit.as_ref().and_then(|unit| unit.memory.as_ref());
        let counted = |tree| match unit {
            Some((counts, directory)) => Some(directory.as_path()).filter(|_| *counts == tree),
            None => self.part(tree),
        };
        if let Some(directory) = counted(Tree::V1(Controller::Memory)) {
            // Each cgroup counts its own.
            let counts =
                walk(directory).ok()?.into_iter().filter_map(|at| oom_kill(&at.join("memory.oom_control")));
            return counts.reduce(|sum, count| sum + count);
        }
        oom_kill(&counted(Tree::V2)?.join("memory.events"))
    }

    /// Sends SIGKILL to all that is in it: at once where v2 can, so that no fork gets away. What is frozen dies when it
    /// is thawed. An error when there may be some that it did not reach.
    pub(crate) fn kill(&self) -> io::Result<()> {
        if let Some(directory) = self.part(Tree::V2) {
            // Linux before 5.14 has no such file.
            write(&directory.join("cgroup.kill"), "1").ok();
        }
        let killed = self.kill_each();
        for (_, part) in &self.parts {
            let files = walk(part)?.into_iter().map(|at| at.join("freezer.state"));
            for freezer in files.filter(|file| file.exists()) {
                write(&freezer, "THAWED").ok();
            }
        }
        killed
    }

    fn kill_each(&self) -> io::Result<()> {
        for pid in self.members()? {
            let Some(stat) = proc::find(pid)? else { continue };
            if let Some(pidfd) = proc::open(stat.id)? {
                proc::send(&pidfd, Signal::KILL).ok();
            }
        }
        Ok(())
    }

    /// Removes it with all beneath it; refused while a process is in it, after a moment for one that is just ending.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.remove_after(|| {})
    }

    /// Kills what is in it and removes it; what does not die in time stays, and its leaf.
    pub(crate) fn clear(&self) -> io::Result<()> {
        // One that was not reached keeps it from being removed.
        self.kill().ok();
        self.remove_after(|| drop(self.kill()))
    }

    /// Tries to remove it, and again each time after `meanwhile`.
    fn remove_after(&self, meanwhile: impl Fn()) -> io::Result<()> {
        let until = Instant::now() + LINGER;
        loop {
            match self.try_remove() {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < until => {
                    // The kernel tells nobody when it lets go of the last one.
                    std::thread::sleep(AGAIN);
                    meanwhile();
                }
                other => return other,
            }
        }
    }

    fn try_remove(&self) -> io::Result<()> {
        // What is systemd's own, systemd removes.
        let kept = usize::from(self.unit.as_ref().is_some_and(|unit| unit.path == self.path));
        for (_, directory) in &self.parts {
            for inner in walk(directory)?.into_iter().skip(kept).rev() {
                match rustix::fs::rmdir(&inner) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }
}

/// Removes the leaves beneath `parent` that are named like no directory of `tasks` and have no process.
pub(crate) fn remove_orphans(trees: &Trees, parent: &str, tasks: &Path) -> io::Result<Orphans> {
    let mut names = BTreeSet::new();
    for (_, root) in trees.all() {
        let children = children(&beneath(&root, parent))?;
        names.extend(children.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())));
    }
    let mut orphans = Orphans::default();
    // The directories are looked at after the leaves: a task that begins meanwhile has made its directory first.
    for name in names {
        if tasks.join(&name).try_exists()? {
            continue;
        }
        let leaf = Leaf::find(trees, &format!("{parent}/{name}"));
        match leaf.members()? {
            pids if pids.is_empty() && leaf.remove().is_ok() => orphans.removed.push(name),
            pids => orphans.occupied.push((name, pids)),
        }
    }
    remove_if_empty(trees, parent);
    Ok(orphans)
}

/// Removes a cgroup in each tree in which there is none beneath it. Whoever needs it makes it again.
pub(crate) fn remove_if_empty(trees: &Trees, parent: &str) {
    for (_, root) in trees.all() {
        let _not_empty = std::fs::remove_dir(beneath(&root, parent));
    }
}

fn beneath(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn enable(directory: &Path, controller: Controller) -> io::Result<()> {
    if lists(directory, "cgroup.subtree_control", controller) {
        return Ok(());
    }
    write(&directory.join("cgroup.subtree_control"), &format!("+{}", controller.name()))
}

fn oom_kill(file: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Writes a word to a file of the kernel's, which does not make any. In tests the files are plain.
fn write(file: &Path, word: &str) -> io::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(cfg!(test))
        .truncate(cfg!(test))
        .open(file)?
        .write_all(word.as_bytes())
}

/// What a cgroup's list of its processes says. One that just went away has none; one of threads alone names none, those
/// above it do.
fn listed(directory: &Path) -> io::Result<String> {
    match std::fs::read_to_string(directory.join("cgroup.procs")) {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP)) =>
        {
            Ok(String::new())
        }
        other => other,
    }
}

/// A directory and all beneath it, each before what is in it; nothing when it is not there.
fn walk(directory: &Path) -> io::Result<Vec<PathBuf>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = vec![directory.to_owned()];
    let mut at = 0;
    while let Some(next) = found.get(at) {
        let inner = children(next)?;
        found.extend(inner);
        at += 1;
    }
    Ok(found)
}

/// The directories in a directory; none when it is not there, or goes meanwhile.
fn children(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let read = || -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        Ok(found)
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

#[cfg(test)]
mod tests;
