//! What one simulated machine holds: directories, mounts, files, tasks, sockets. It outlives the daemon, and only some of
//! it outlives a boot.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wharfline::sys::kernel::{
    DeviceId, FileKind, KernelError, MountFacts, MountId, MountRow, PathFacts, Present,
};
use wharfline::sys::process::{ExitRecord, Outcome, TaskState};

use crate::universe::below;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    /// What is mounted: the volume's handle, or nothing for the tree itself.
    pub volume: String,
    pub read_only: bool,
}

/// One file, as far as it is durable and as whoever reads it now sees it.
#[derive(Debug, Default)]
pub struct File {
    pub durable: Vec<u8>,
    pub seen: Vec<u8>,
}

/// One task under its shim.
pub struct Task {
    pub state: TaskState,
    pub argv: Vec<String>,
    /// Socket that it serves, if it is a plugin.
    pub socket: Option<PathBuf>,
    /// Mounts that were moved in.
    pub clones: Vec<u64>,
    pub ends_at: Option<(Duration, Outcome)>,
    pub stopped: bool,
    pub exit: watch::Sender<Option<ExitRecord>>,
    /// Its shim was killed: nobody knows.
    pub lost: watch::Sender<bool>,
    /// The machine was switched off: whatever the records say, nothing runs.
    pub dead: bool,
}

impl Task {
    pub fn runs(&self) -> bool {
        self.exit.borrow().is_none() && !self.dead
    }

    /// Whether its directory may be used again.
    pub fn taken(&self) -> bool {
        self.exit.borrow().is_none()
    }
}

/// A plugin's socket that is served.
#[derive(Clone, Debug)]
pub struct Served {
    pub plugin: String,
    /// Its number on the node.
    pub process: u16,
    pub down: CancellationToken,
}

/// One machine.
pub struct NodeState {
    pub name: String,
    pub boot: u64,
    pub booted: Duration,
    /// A person has said of one of its boots that it is dead.
    pub fenced: bool,
    pub directories: BTreeMap<PathBuf, u64>,
    pub mounts: BTreeMap<PathBuf, Vec<Mount>>,
    /// When the last mount of a path went away.
    pub unmounted: BTreeMap<PathBuf, Duration>,
    pub files: BTreeMap<PathBuf, File>,
    pub locks: BTreeSet<PathBuf>,
    pub tasks: BTreeMap<PathBuf, Task>,
    /// Clones that were not moved in yet, by descriptor.
    pub clones: BTreeMap<i32, u64>,
    pub sockets: BTreeMap<PathBuf, Served>,
    /// By handle.
    devices: BTreeMap<String, u32>,
    next: u64,
    processes: u16,
    /// Tells the plugins' hosts which of their processes run.
    pub plugins: watch::Sender<u64>,
}

impl NodeState {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            boot: 1,
            booted: Duration::ZERO,
            fenced: false,
            directories: BTreeMap::new(),
            mounts: BTreeMap::new(),
            unmounted: BTreeMap::new(),
            files: BTreeMap::new(),
            locks: BTreeSet::new(),
            tasks: BTreeMap::new(),
            clones: BTreeMap::new(),
            sockets: BTreeMap::new(),
            devices: BTreeMap::new(),
            next: 100,
            processes: 0,
            plugins: watch::Sender::new(0),
        }
    }

    pub fn data_dir(name: &str) -> PathBuf {
        PathBuf::from(format!("/sim/{name}"))
    }

    pub fn tree(&self) -> PathBuf {
        Self::data_dir(&self.name).join("volumes")
    }

    /// Where the shim of a task keeps its books.
    pub fn task_directory(&self, allocation: &str, task: &str) -> PathBuf {
        Self::data_dir(&self.name).join("tasks").join(format!("{allocation}.{task}"))
    }

    pub fn boot_id(&self) -> String {
        format!("boot-{}-of-{}", self.boot, self.name)
    }

    /// The number of the next process of a plugin.
    pub fn next_process(&mut self) -> u16 {
        self.processes += 1;
        self.processes
    }

    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The machine loses power: mounts, tasks and what was not synced are gone.
    pub fn reboot(&mut self, now: Duration) {
        self.boot += 1;
        self.booted = now;
        self.mounts.clear();
        self.locks.clear();
        self.clones.clear();
        // The records of the shims stay on the disk; the processes do not.
        for task in self.tasks.values_mut().filter(|task| task.runs()) {
            task.lost.send_replace(true);
            task.dead = true;
        }
        for served in std::mem::take(&mut self.sockets).into_values() {
            served.down.cancel();
        }
        for file in self.files.values_mut() {
            // What was written since the last sync may be there or not, up to any byte.
            let common = file.durable.len().min(file.seen.len());
            if file.seen.starts_with(&file.durable[..common]) && file.seen.len() > file.durable.len() {
                let more = file.seen.len() - file.durable.len();
                let kept = usize::try_from(below(more as u64 + 1)).unwrap();
                file.seen.truncate(file.durable.len() + kept);
            } else {
                file.seen = file.durable.clone();
            }
            file.durable = file.seen.clone();
        }
    }

    /// Its disk is made anew: what was not mounted, and every record of what was, is gone as well. Only after
    /// [`Self::reboot`].
    pub fn reimage(&mut self) {
        self.directories.clear();
        self.files.clear();
        self.tasks.clear();
    }

    /// Lets everything end whose time has come.
    pub fn tick(&mut self, now: Duration) -> Vec<String> {
        let mut told = Vec::new();
        let boot_id = self.boot_id();
        for (directory, task) in &mut self.tasks {
            let Some((at, outcome)) = task.ends_at.clone() else { continue };
            if at > now || !task.taken() {
                continue;
            }
            told.push(format!("{}: task {} ends: {outcome:?}", self.name, directory.display()));
            if let Some(socket) = &task.socket
                && let Some(served) = self.sockets.remove(socket)
            {
                served.down.cancel();
            }
            let millis = i64::try_from(now.as_millis()).unwrap();
            task.exit.send_replace(Some(ExitRecord {
                outcome,
                started_ms: task.state.started_ms,
                finished_ms: millis,
                oom: false,
                stopped: task.stopped,
                boot_id: boot_id.clone(),
                wrote: None,
            }));
        }
        told
    }

    pub fn device(&mut self, volume: &str) -> DeviceId {
        let next = u32::try_from(self.devices.len()).unwrap() + 1;
        let minor = *self.devices.entry(volume.to_owned()).or_insert(next);
        DeviceId { major: 7, minor }
    }

    pub fn top(&self, path: &Path) -> Option<&Mount> {
        self.mounts.get(path).and_then(|stack| stack.last())
    }

    /// What is at a path.
    pub fn facts(&mut self, path: &Path) -> PathFacts {
        let Some(inode) = self.directories.get(path).copied() else {
            let missing = path.ancestors().take_while(|at| !self.directories.contains_key(*at)).count();
            return PathFacts::Absent { missing: missing.max(1) };
        };
        let mount = self.top(path).cloned();
        let device = match &mount {
            Some(mount) => self.device(&mount.volume.clone()),
            None => DeviceId { major: 8, minor: 1 },
        };
        PathFacts::Present(Present {
            kind: FileKind::Directory,
            device,
            inode: if mount.is_some() { 2 } else { inode },
            mount: mount.map(|mount| MountFacts {
                id: MountId(mount.id),
                device,
                magic: 0xef53,
                fs_type: Some("sim".to_owned()),
                root: Some("/".to_owned()),
                read_only: mount.read_only,
            }),
        })
    }

    pub fn make_directories(&mut self, path: &Path) {
        let missing: Vec<_> =
            path.ancestors().filter(|at| !self.directories.contains_key(*at)).map(Path::to_owned).collect();
        for at in missing {
            let inode = self.number();
            self.directories.insert(at, inode);
        }
    }

    pub fn has_children(&self, path: &Path) -> bool {
        self.directories.keys().any(|at| at.parent() == Some(path))
    }

    pub fn mount(&mut self, volume: &str, at: &Path, read_only: bool) -> u64 {
        let id = self.number();
        let mount = Mount { id, volume: volume.to_owned(), read_only };
        self.mounts.entry(at.to_owned()).or_default().push(mount);
        id
    }

    pub fn unmount(&mut self, at: &Path, now: Duration) -> Option<Mount> {
        let stack = self.mounts.get_mut(at)?;
        let mount = stack.pop();
        if stack.is_empty() {
            self.mounts.remove(at);
            self.unmounted.insert(at.to_owned(), now);
        }
        mount
    }

    pub fn table(&mut self) -> Vec<MountRow> {
        let all: Vec<_> =
            self.mounts.iter().flat_map(|(at, s)| s.iter().map(move |m| (at.clone(), m.clone()))).collect();
        let row = |(at, mount): (PathBuf, Mount)| MountRow {
            id: MountId(mount.id),
            parent: MountId(1),
            device: self.device(&mount.volume),
            root: PathBuf::from("/"),
            mount_point: at,
            fs_type: "sim".to_owned(),
            source: None,
            read_only: mount.read_only,
            peer_group: 0,
            master: 0,
        };
        all.into_iter().map(row).collect()
    }

    /// The volume of a mount that is there.
    pub fn volume_of(&self, mount: u64) -> Option<&str> {
        let all = self.mounts.values().flatten();
        all.into_iter().find(|there| there.id == mount).map(|there| &*there.volume)
    }

    /// Tasks that may still write through this mount or a clone of it.
    pub fn users_of(&self, mount: u64) -> Vec<String> {
        let uses = |task: &&(&PathBuf, &Task)| task.1.runs() && task.1.clones.contains(&mount);
        let all: Vec<_> = self.tasks.iter().collect();
        all.iter().filter(uses).map(|(directory, _)| directory.display().to_string()).collect()
    }
}

pub fn not_found(path: &Path) -> KernelError {
    KernelError::NotFound { path: path.to_owned() }
}
