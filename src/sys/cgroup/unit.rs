//! A task in a unit of systemd's. The unit's cgroup is made, limited and removed by systemd, which alone writes to it;
//! what is beneath is delegated. There the task has a leaf of its own, beside its shim:
//!
//! ```text
//! …/wharfline.slice/NAME.scope        systemd's: the limits, the count of whom the kernel killed; the shim
//! …/wharfline.slice/NAME.scope/task   ours, in the v2 tree alone: killed at once, and what devices it may open
//! ```
use super::{Controller, Leaf, Limits, Tree, Trees, beneath};
use crate::sys::kernel::DeviceId;
use std::path::PathBuf;

/// The name of the task's own leaf.
const TASK: &str = "task";
/// Where the kernel says in which cgroups this process is.
const OURS: &str = "/proc/self/cgroup";

/// What a leaf has to do with a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unit {
    /// The path of the unit's cgroup.
    pub(super) path: String,
    /// Where its memory is counted.
    pub(super) memory: Option<(Tree, PathBuf)>,
}

impl Leaf {
    /// Makes the leaf of a task whose shim, this process, systemd has put into the unit of this name; with devices that may
    /// be read and not written. Or says in one sentence why not: systemd itself passes over a limit that the machine
    /// cannot keep.
    pub(crate) fn in_unit(
        trees: &Trees,
        (name, limits): (&str, Limits),
        read_only: &[DeviceId],
    ) -> Result<Self, String> {
        let ours = std::fs::read_to_string(OURS).map_err(|error| format!("read {OURS}: {error}"))?;
        let path = place(&ours, trees.v2.is_some()).ok_or("this machine has no cgroups of systemd's")?;
        if path.rsplit('/').next() != Some(name) {
            return Err(format!("systemd has its shim in {path}, not in {name}"));
        }
        Self::beneath_unit(trees, path, limits, read_only)
    }

    pub(super) fn beneath_unit(
        trees: &Trees,
        path: &str,
        limits: Limits,
        read_only: &[DeviceId],
    ) -> Result<Self, String> {
        let directory = |controller| {
            let tree = trees.of(controller)?;
            Some((tree, beneath(&trees.root(tree)?, path)))
        };
        in_force(limits, directory)?;
        let unit = Unit { path: path.to_owned(), memory: directory(Controller::Memory) };
        let mut leaf =
            Self { path: format!("{path}/{TASK}"), parts: Vec::new(), unit: Some(unit), bare: false };
        let made = match trees.v2 {
            Some(_) => leaf.add(trees, Tree::V2, &[]),
            None => Ok(()),
        };
        if let Err(reason) = made.and_then(|()| leaf.deny_writes(trees, read_only)) {
            leaf.remove().ok();
            return Err(reason);
        }
        Ok(leaf)
    }

    /// What there is of the cgroup of a unit, its task's leaf included. It is not removed: systemd does that once nothing is
    /// in it.
    pub(crate) fn of_unit(trees: &Trees, path: &str) -> Self {
        let unit = Unit { path: path.to_owned(), memory: None };
        Self { unit: Some(unit), ..Self::find(trees, path) }
    }
}

/// In which cgroup systemd has the process that the lines of the kernel are of.
fn place(lines: &str, v2: bool) -> Option<&str> {
    let tree = if v2 { "" } else { "name=systemd" };
    lines.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        (controllers == tree).then_some(path)
    })
}

/// Whether each limit stands in the unit's cgroup.
fn in_force(limits: Limits, directory: impl Fn(Controller) -> Option<(Tree, PathBuf)>) -> Result<(), String> {
    let Limits { memory_bytes, cpu_millis, pids } = limits;
    // Its shim is counted among its processes. The share of the processors is rounded.
    let pids = pids.map(|pids| u64::from(pids) + 1);
    for (controller, files, most) in [
        (Controller::Memory, ["memory.max", "memory.limit_in_bytes"], memory_bytes),
        (Controller::Cpu, ["cpu.max", "cpu.cfs_quota_us"], cpu_millis.map(|_| u64::MAX)),
        (Controller::Pids, ["pids.max", "pids.max"], pids),
    ] {
        let Some(most) = most else { continue };
        let stands = directory(controller).and_then(|(tree, at)| {
            let file = if tree == Tree::V2 { files[0] } else { files[1] };
            let text = std::fs::read_to_string(at.join(file)).ok()?;
            text.split_ascii_whitespace().next()?.parse::<u64>().ok()
        });
        if stands.is_none_or(|stands| stands > most) {
            return Err(format!("limit {}: systemd cannot keep that limit here", controller.name()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_where_systemd_counts_it() {
        let hybrid = "4:memory:/m\n1:name=systemd:/a.scope\n0::/b.scope\n";
        assert_eq!(place(hybrid, true), Some("/b.scope"));
        assert_eq!(place(hybrid, false), Some("/a.scope"));
        assert_eq!(place("0::/x:y.scope\n", true), Some("/x:y.scope"));
        assert_eq!(place("4:memory:/m\n", true), None);
        assert_eq!(place("", false), None);
    }

    const LIMITS: Limits = Limits { memory_bytes: Some(8192), cpu_millis: Some(500), pids: Some(7) };
    const UNIT: &str = "/w.slice/u.scope";

    fn mounted(files: &[(&str, &str)]) -> (tempfile::TempDir, Trees) {
        let directory = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let file = directory.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let trees = Trees::at(directory.path());
        (directory, trees)
    }

    #[test]
    fn a_limit_that_systemd_did_not_set_is_told() {
        let good = [
            ("cgroup.controllers", "cpu memory pids\n"),
            ("w.slice/u.scope/memory.max", "8192\n"),
            ("w.slice/u.scope/cpu.max", "50000 100000\n"),
            ("w.slice/u.scope/pids.max", "8\n"),
        ];
        let (_directory, trees) = mounted(&good);
        assert!(Leaf::beneath_unit(&trees, UNIT, LIMITS, &[]).is_ok());
        for (at, bad) in [(1, "max\n"), (1, "16384\n"), (2, "max 100000\n"), (3, "9\n"), (3, "max\n")] {
            let mut files = good;
            files[at].1 = bad;
            let (_directory, trees) = mounted(&files);
            let error = Leaf::beneath_unit(&trees, UNIT, LIMITS, &[]).unwrap_err();
            assert!(error.contains("systemd cannot keep that limit"), "{error}");
            assert!(Leaf::beneath_unit(&trees, UNIT, Limits::default(), &[]).is_ok(), "what is not wanted");
        }
        let (_directory, trees) = mounted(&good[..1]);
        assert!(Leaf::beneath_unit(&trees, UNIT, LIMITS, &[]).is_err(), "nothing stands there");
    }

    #[test]
    fn the_task_has_a_leaf_beneath_and_the_unit_itself_is_left_alone() {
        let (directory, trees) = mounted(&[
            ("memory/cgroup.procs", ""),
            ("memory/w.slice/u.scope/memory.oom_control", "oom_kill_disable 0\noom_kill 3\n"),
            ("unified/cgroup.controllers", "\n"),
            ("unified/w.slice/u.scope/x", ""),
        ]);
        let leaf = Leaf::beneath_unit(&trees, UNIT, Limits::default(), &[]).unwrap();
        let task = directory.path().join("unified/w.slice/u.scope/task");
        assert!(task.is_dir() && !directory.path().join("memory/w.slice/u.scope/task").exists());
        assert_eq!((leaf.path(), leaf.oom_kills()), (UNIT, Some(3)));
        let unit = Leaf::of_unit(&trees, UNIT);
        assert_eq!((unit.path(), unit.oom_kills()), (UNIT, Some(3)));
        leaf.remove().unwrap();
        assert!(!task.exists());
        Leaf::beneath_unit(&trees, UNIT, Limits::default(), &[]).unwrap();
        unit.remove().unwrap();
        assert!(!task.exists() && directory.path().join("unified/w.slice/u.scope").is_dir());
    }
}
