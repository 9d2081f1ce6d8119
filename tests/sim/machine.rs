//! The simulated machine behind the daemon's traits.
use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use rand::Rng as _;
use tokio::sync::watch;
use wharfline::csi::{self, Connection, Connector, SocketPathError};
use wharfline::node::{AtSocket, Dial, Machine};
use wharfline::sys::files::{AppendFile, FileError, FileLock};
use wharfline::sys::kernel::{
    Access, Checked, Given, KernelError, KernelFacts, MountId, MountRow, PathFacts, Prepared, Present,
    Removed,
};
use wharfline::sys::path::{HostPath, Place, SubPath, TreePath};
use wharfline::sys::process::{
    Adopted, Ended, ExitRecord, LogSpec, Outcome, ProcessError, ProcessId, Task as TaskHandle, TaskSpec,
    TaskState,
};
use wharfline::sys::watch::{DirEvent, WatchError};
use wharfline::sys::{Clock, Files, Kernel, Processes, Random, Watches};

use crate::network;
use crate::state::{File, NodeState, Served, Task, not_found};
use crate::universe::{Universe, below};

/// One node's machine; a clone is the same one.
#[derive(Clone)]
pub struct SimMachine {
    pub universe: Arc<Universe>,
    pub node: String,
}

impl std::fmt::Debug for SimMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "machine of {}", self.node)
    }
}

impl SimMachine {
    /// Everything that the daemon asks of it.
    pub fn parts(&self) -> Machine {
        let this = Arc::new(self.clone());
        Machine {
            kernel: this.clone(),
            processes: this.clone(),
            files: this.clone(),
            watches: this.clone(),
            clock: this.clone(),
            random: this.clone(),
            dial: this,
            containers: None,
            units: None,
            containerd: None,
        }
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut NodeState) -> T) -> T {
        look(self.universe.look().nodes.get_mut(&self.node).expect("every node has a machine"))
    }

    fn now_of_run(&self) -> Duration {
        self.universe.look().now
    }

    async fn gate(&self, what: &str) {
        self.universe.gate(&self.node, what).await;
    }

    /// Carries out a change, with a gate on both sides of it.
    async fn change<T>(&self, what: String, work: impl FnOnce(&mut NodeState) -> T) -> T {
        self.gate(&what).await;
        let done = self.with(work);
        self.gate(&format!("{what}: done")).await;
        done
    }

    fn path(&self, place: &Place) -> PathBuf {
        match place {
            Place::Tree(path) => path
                .components()
                .iter()
                .fold(NodeState::data_dir(&self.node).join("volumes"), |at, part| at.join(part)),
            Place::Host(path) => path.absolute(),
        }
    }
}

#[async_trait]
impl Kernel for SimMachine {
    async fn facts(&self) -> Result<KernelFacts, KernelError> {
        Ok(KernelFacts {
            boot_id: self.with(|node| node.boot_id()),
            release: "simulated".to_owned(),
            may_mount: true,
            statmount: true,
        })
    }

    async fn prepare_tree(&self) -> Result<Prepared, KernelError> {
        let tree = self.with(|node| node.tree());
        if self.with(|node| node.top(&tree).is_some()) {
            return Ok(Prepared::Found);
        }
        self.change("prepare the tree".to_owned(), |node| {
            node.make_directories(&tree);
            node.mount("", &tree, false);
        })
        .await;
        Ok(Prepared::Made)
    }

    async fn undo_tree(&self) -> Result<(), KernelError> {
        let tree = self.with(|node| node.tree());
        let now = self.now_of_run();
        self.with(|node| node.unmount(&tree, now));
        Ok(())
    }

    fn absolute(&self, place: &Place) -> PathBuf {
        self.path(place)
    }

    async fn make_dir(&self, path: &TreePath) -> Result<(), KernelError> {
        let at = self.path(&Place::Tree(path.clone()));
        if !self.with(|node| node.directories.contains_key(&at)) {
            self.change(format!("mkdir {}", at.display()), |node| node.make_directories(&at)).await;
        }
        Ok(())
    }

    async fn remove(&self, path: &TreePath) -> Result<Removed, KernelError> {
        let at = self.path(&Place::Tree(path.clone()));
        if !self.with(|node| node.directories.contains_key(&at)) {
            return Ok(Removed::Absent);
        }
        self.change(format!("rmdir {}", at.display()), |node| {
            if node.top(&at).is_some() {
                return Err(KernelError::IsMountPoint { path: at.clone() });
            }
            if node.has_children(&at) {
                return Err(KernelError::NotEmpty { path: at.clone() });
            }
            node.directories.remove(&at);
            Ok(Removed::Removed)
        })
        .await
        .inspect_err(|error| {
            // A machine refuses that; whoever asks for it does not know what he removes.
            self.universe.look().violated(format!("S7: removal of what is no empty directory: {error}"));
        })
    }

    async fn list(&self, path: &TreePath) -> Result<Vec<String>, KernelError> {
        let at = self.path(&Place::Tree(path.clone()));
        let name = |child: &PathBuf| child.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(self.with(|node| {
            node.directories.keys().filter(|child| child.parent() == Some(&at)).filter_map(name).collect()
        }))
    }

    async fn mount_facts(&self, place: &Place) -> Result<PathFacts, KernelError> {
        let at = self.path(place);
        Ok(self.with(|node| node.facts(&at)))
    }

    async fn mount_table(&self) -> Result<Vec<MountRow>, KernelError> {
        Ok(self.with(NodeState::table))
    }

    async fn check_mount(&self, place: &Place) -> Result<Checked, KernelError> {
        self.mount_facts(place).await.map(Checked::Alive)
    }

    async fn mounts_among(&self, ids: &HashSet<MountId>) -> Result<Option<HashSet<MountId>>, KernelError> {
        let there = self.with(NodeState::table).into_iter().map(|row| row.id);
        Ok(Some(there.filter(|id| ids.contains(id)).collect()))
    }

    async fn mounts_since(&self, id: MountId) -> Result<Option<Vec<MountRow>>, KernelError> {
        // Parents come in any order.
        let mut rows = self.with(NodeState::table);
        let parents: HashSet<_> = rows.iter().filter(|row| row.id >= id).map(|row| row.parent).collect();
        rows.retain(|row| row.id >= id || parents.contains(&row.id));
        Ok(Some(rows))
    }

    async fn mount_changes(&self) -> Result<BoxStream<'static, ()>, KernelError> {
        // Nobody unmounts anything here but the daemon and its plugins.
        Ok(futures::stream::pending().boxed())
    }

    async fn unmount(&self, place: &Place, expected: MountId) -> Result<(), KernelError> {
        let (at, now) = (self.path(place), self.now_of_run());
        let mut used = Vec::new();
        let done = self.change(format!("unmount {}", at.display()), |node| match node.top(&at) {
            None => Ok(()),
            Some(mount) if mount.id != expected.0 => Err(KernelError::Changed { path: at.clone() }),
            Some(mount) => {
                used = node.users_of(mount.id);
                node.unmount(&at, now);
                Ok(())
            }
        });
        let done = done.await;
        if !used.is_empty() {
            self.universe.look().violated(format!("S3: {} is unmounted under {used:?}", at.display()));
        }
        done
    }

    async fn clone_directory(
        &self,
        path: &TreePath,
        verified: &Present,
        _: &SubPath,
    ) -> Result<OwnedFd, KernelError> {
        self.clone_mount(path, verified).await
    }

    async fn clone_mount(&self, path: &TreePath, verified: &Present) -> Result<OwnedFd, KernelError> {
        let at = self.path(&Place::Tree(path.clone()));
        self.with(|node| {
            let (facts, top) = (node.facts(&at), node.top(&at).cloned());
            let (PathFacts::Present(present), Some(mount)) = (facts, top) else { return Err(not_found(&at)) };
            if present != *verified {
                return Err(KernelError::Changed { path: at.clone() });
            }
            // Any descriptor will do: only its number is looked at.
            let file = std::fs::File::open("/dev/null").map_err(|source| KernelError::Refused {
                action: "open",
                path: at.clone(),
                source,
            })?;
            node.clones.insert(file.as_raw_fd(), mount.id);
            Ok(file.into())
        })
    }

    async fn give_to_group(&self, _: &TreePath, _: &Present, _: u32) -> Result<Given, KernelError> {
        Ok(Given::default())
    }
    async fn publish_at_host(
        &self,
        from: &TreePath,
        verified: &Present,
        at: &HostPath,
        access: Access,
    ) -> Result<(), KernelError> {
        let (from, at) = (self.path(&Place::Tree(from.clone())), at.absolute());
        self.change(format!("publish at {}", at.display()), |node| {
            let Some(source) = node.top(&from).cloned() else { return Err(not_found(&from)) };
            if node.facts(&from) != PathFacts::Present(verified.clone()) {
                return Err(KernelError::Changed { path: from.clone() });
            }
            if let Some(there) = node.top(&at) {
                let same = there.volume == source.volume;
                return if same { Ok(()) } else { Err(KernelError::Occupied { path: at.clone() }) };
            }
            node.make_directories(&at);
            node.mount(&source.volume, &at, access == Access::ReadOnly);
            Ok(())
        })
        .await
    }

    async fn unpublish_at_host(
        &self,
        at: &HostPath,
        _verified: &Present,
        made: usize,
    ) -> Result<(), KernelError> {
        let (at, now) = (at.absolute(), self.now_of_run());
        self.change(format!("unpublish at {}", at.display()), |node| {
            node.unmount(&at, now);
            for path in at.ancestors().take(made) {
                if !node.has_children(path) {
                    node.directories.remove(path);
                }
            }
            Ok(())
        })
        .await
    }
}

#[derive(Debug)]
struct Append {
    machine: SimMachine,
    path: PathBuf,
}

impl Append {
    fn file<T>(&self, look: impl FnOnce(&mut File) -> T) -> T {
        self.machine.with(|node| look(node.files.entry(self.path.clone()).or_default()))
    }
}

#[async_trait]
impl AppendFile for Append {
    async fn append(&mut self, bytes: Vec<u8>) -> Result<(), FileError> {
        self.machine.gate(&format!("append {} bytes to {}", bytes.len(), self.path.display())).await;
        self.file(|file| file.seen.extend_from_slice(&bytes));
        Ok(())
    }

    async fn sync(&mut self) -> Result<(), FileError> {
        let what = format!("sync {}", self.path.display());
        self.machine.gate(&what).await;
        self.file(|file| file.durable = file.seen.clone());
        self.machine.gate(&format!("{what}: done")).await;
        Ok(())
    }

    async fn read_all(&mut self) -> Result<Vec<u8>, FileError> {
        Ok(self.file(|file| file.seen.clone()))
    }

    async fn replace_atomically(&mut self, content: Vec<u8>) -> Result<(), FileError> {
        self.machine.replace(&self.path.clone(), content).await
    }
}

#[derive(Debug)]
struct Lock {
    machine: SimMachine,
    path: PathBuf,
    boot: u64,
}

impl FileLock for Lock {}

impl Drop for Lock {
    fn drop(&mut self) {
        self.machine.with(|node| {
            // The lock of an earlier boot went with that boot.
            if node.boot == self.boot {
                node.locks.remove(&self.path);
            }
        });
    }
}

#[async_trait]
impl Files for SimMachine {
    async fn open_append(&self, path: &Path) -> Result<Box<dyn AppendFile>, FileError> {
        self.with(|node| {
            node.files.entry(path.to_owned()).or_default();
        });
        Ok(Box::new(Append { machine: self.clone(), path: path.to_owned() }))
    }

    async fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, FileError> {
        Ok(self.with(|node| node.files.get(path).map(|file| file.seen.clone())))
    }

    async fn replace(&self, path: &Path, content: Vec<u8>) -> Result<(), FileError> {
        self.change(format!("replace {}", path.display()), |node| {
            let file = File { durable: content.clone(), seen: content };
            node.files.insert(path.to_owned(), file);
        })
        .await;
        Ok(())
    }

    async fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>, FileError> {
        let boot = self.with(|node| node.locks.insert(path.to_owned()).then_some(node.boot));
        let Some(boot) = boot else { return Err(FileError::Locked { path: path.to_owned() }) };
        Ok(Box::new(Lock { machine: self.clone(), path: path.to_owned(), boot }))
    }
}

/// The handle of one task.
#[derive(Debug)]
struct Handle {
    machine: SimMachine,
    directory: PathBuf,
    state: TaskState,
    exit: watch::Receiver<Option<ExitRecord>>,
    lost: watch::Receiver<bool>,
}

#[async_trait]
impl TaskHandle for Handle {
    fn state(&self) -> &TaskState {
        &self.state
    }

    async fn wait(&self) -> Result<Ended, ProcessError> {
        let (mut exit, mut lost) = (self.exit.clone(), self.lost.clone());
        tokio::select! {
            biased;
            ended = exit.wait_for(Option::is_some) => match ended {
                Ok(record) => Ok(Ended::Exited(record.clone().expect("waited for"))),
                Err(_) => Ok(Ended::Lost),
            },
            _ = lost.wait_for(|lost| *lost) => Ok(Ended::Lost),
        }
    }

    fn stop(&self, grace: Option<Duration>) -> Result<(), ProcessError> {
        let grace = grace.unwrap_or(Duration::from_secs(10));
        let what = format!("stop {}", self.directory.display());
        if self.machine.universe.doomed(&self.machine.node, &what) {
            return Ok(());
        }
        let now = self.machine.now_of_run();
        self.machine.with(|node| {
            let Some(task) = node.tasks.get_mut(&self.directory) else { return };
            task.stopped = true;
            // Some obey at once, some after a while, some only to SIGKILL.
            let (after, outcome) = match below(4) {
                0 => (grace, Outcome::Signal(9)),
                1 => (grace / 4, Outcome::Code(0)),
                _ => (Duration::from_millis(below(50)), Outcome::Signal(15)),
            };
            let end = now + after;
            if task.ends_at.as_ref().is_none_or(|(at, _)| *at > end) {
                task.ends_at = Some((end, outcome));
            }
        });
        Ok(())
    }

    fn signal(&self, _signal: i32) -> Result<(), ProcessError> {
        Ok(())
    }
}

impl SimMachine {
    fn handle(&self, directory: &Path, task: &Task) -> Box<dyn TaskHandle> {
        Box::new(Handle {
            machine: self.clone(),
            directory: directory.to_owned(),
            state: task.state.clone(),
            exit: task.exit.subscribe(),
            lost: task.lost.subscribe(),
        })
    }

    fn new_task(&self, spec: &TaskSpec, clones: Vec<u64>) -> Task {
        let now = self.now_of_run();
        let (pid, boot_id) = self.with(|node| (i32::try_from(node.number()).unwrap(), node.boot_id()));
        let id = |pid| ProcessId { pid, start_time: u64::try_from(now.as_millis()).unwrap() };
        let socket = spec.env.get("CSI_ENDPOINT").and_then(|e| e.strip_prefix("unix://")).map(PathBuf::from);
        let ends_at = match spec.argv.first().map(String::as_str) {
            Some("finish") => Some((now + Duration::from_millis(200 + below(800)), Outcome::Code(0))),
            _ => None,
        };
        Task {
            state: TaskState {
                boot_id,
                shim: id(pid),
                task: id(pid + 100_000),
                namespace: None,
                cookie: format!("{pid}"),
                started_ms: i64::try_from(now.as_millis()).unwrap(),
                cgroup: None,
                unit: None,
                container: None,
            },
            argv: spec.argv.clone(),
            socket,
            clones,
            ends_at,
            stopped: false,
            exit: watch::Sender::new(None),
            lost: watch::Sender::new(false),
            dead: false,
        }
    }
}

#[async_trait]
impl Processes for SimMachine {
    async fn start(
        &self,
        directory: &Path,
        spec: &TaskSpec,
        clones: Vec<OwnedFd>,
    ) -> Result<Box<dyn TaskHandle>, ProcessError> {
        let what = format!("start {} in {}", spec.argv.join(" "), directory.display());
        self.gate(&what).await;
        let moved: Vec<u64> =
            self.with(|node| clones.iter().map(|fd| node.clones[&fd.as_raw_fd()]).collect());
        drop(clones);
        if self.with(|node| node.tasks.get(directory).is_some_and(Task::taken)) {
            return Err(ProcessError::Taken { directory: directory.to_owned() });
        }
        let task = self.new_task(spec, moved);
        let handle = self.handle(directory, &task);
        let word = spec.argv.first().cloned().unwrap_or_default();
        *self.universe.look().started.entry(word).or_default() += 1;
        self.with(|node| {
            if let (Some(socket), [first, plugin, ..]) = (&task.socket, &task.argv[..])
                && first == "plugin"
            {
                let down = tokio_util::sync::CancellationToken::new();
                let served = Served { plugin: plugin.clone(), process: node.next_process(), down };
                node.sockets.insert(socket.clone(), served);
                node.plugins.send_modify(|version| *version += 1);
            }
            node.tasks.insert(directory.to_owned(), task);
        });
        self.gate(&format!("{what}: done")).await;
        Ok(handle)
    }

    async fn adopt(&self, directory: &Path) -> Result<Adopted, ProcessError> {
        let universe = self.universe.look();
        let Some(task) = universe.nodes[&self.node].tasks.get(directory) else {
            return Ok(Adopted::NeverStarted);
        };
        if let Some(record) = task.exit.borrow().clone() {
            return Ok(Adopted::Exited(record));
        }
        if *task.lost.borrow() {
            return Ok(Adopted::Lost(task.state.clone()));
        }
        Ok(Adopted::Running(self.handle(directory, task)))
    }

    async fn clear_leftovers(&self, directory: &Path) -> Result<usize, ProcessError> {
        let now = self.now_of_run();
        self.change(format!("clear {}", directory.display()), |node| {
            if let Some(task) = node.tasks.get_mut(directory) {
                task.ends_at = Some((now, Outcome::Lost));
            }
            node.tick(now);
        })
        .await;
        Ok(1)
    }

    async fn list(&self, root: &Path) -> Result<Vec<PathBuf>, ProcessError> {
        Ok(self.with(|node| node.tasks.keys().filter(|at| at.parent() == Some(root)).cloned().collect()))
    }

    async fn forget(&self, directory: &Path, _: &LogSpec) -> Result<(), ProcessError> {
        self.change(format!("forget {}", directory.display()), |node| {
            if node.tasks.get(directory).is_some_and(Task::taken) {
                return Err(ProcessError::Taken { directory: directory.to_owned() });
            }
            node.tasks.remove(directory);
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl Watches for SimMachine {
    async fn appeared(&self, directory: &Path, name: &str) -> Result<(), WatchError> {
        let socket = directory.join(name);
        let mut changed = self.universe.sockets.subscribe();
        loop {
            changed.borrow_and_update();
            if self.with(|node| node.sockets.contains_key(&socket)) {
                return Ok(());
            }
            if changed.changed().await.is_err() {
                return Err(WatchError::Gone { path: directory.to_owned() });
            }
        }
    }

    async fn changes(&self, directory: &Path) -> Result<BoxStream<'static, DirEvent>, WatchError> {
        let (machine, directory) = (self.clone(), directory.to_owned());
        let names = move |machine: &SimMachine| -> BTreeMap<String, ()> {
            let name = |at: &PathBuf| at.file_name().map(|n| (n.to_string_lossy().into_owned(), ()));
            machine.with(|n| {
                n.sockets.keys().filter(|at| at.parent() == Some(&directory)).filter_map(name).collect()
            })
        };
        let changed = self.universe.sockets.subscribe();
        let before = names(&machine);
        let state = (machine, changed, before, std::collections::VecDeque::new(), names);
        let events =
            futures::stream::unfold(state, |(machine, mut changed, before, mut queue, names)| async move {
                let mut before = before;
                loop {
                    if let Some(event) = queue.pop_front() {
                        return Some((event, (machine, changed, before, queue, names)));
                    }
                    changed.changed().await.ok()?;
                    let now = names(&machine);
                    queue.extend(
                        before.keys().filter(|n| !now.contains_key(*n)).cloned().map(DirEvent::Vanished),
                    );
                    queue.extend(
                        now.keys().filter(|n| !before.contains_key(*n)).cloned().map(DirEvent::Appeared),
                    );
                    before = now;
                }
            });
        Ok(events.boxed())
    }
}

impl Clock for SimMachine {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }
}

impl Random for SimMachine {
    fn fill(&self, buffer: &mut [u8]) {
        mad_turmoil::rand::get_rng().fill_bytes(buffer);
    }
}

#[async_trait]
impl Dial for SimMachine {
    async fn prepare(&self, _socket: &Path) -> std::io::Result<()> {
        Ok(())
    }

    async fn discard(&self, _socket: &Path) {}

    async fn look(&self, socket: &Path) -> AtSocket {
        let served = self.with(|node| node.sockets.contains_key(socket));
        if served { AtSocket::Socket } else { AtSocket::Nothing }
    }

    fn plugin(&self, socket: &Path, options: csi::PluginOptions) -> Result<csi::Plugin, SocketPathError> {
        let connector = PluginConnector { machine: self.clone(), socket: socket.to_owned() };
        Ok(csi::Plugin::new(connector, options))
    }
}

struct PluginConnector {
    machine: SimMachine,
    socket: PathBuf,
}

#[async_trait]
impl Connector for PluginConnector {
    async fn connect(&self) -> std::io::Result<Box<dyn Connection>> {
        let served = self.machine.with(|node| node.sockets.get(&self.socket).cloned());
        let Some(served) = served else { return Err(std::io::ErrorKind::NotFound.into()) };
        network::to_plugin(&self.machine.node, served.process).await
    }
}
