//! A machine with one runtime, and one task's place on it.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use serde_json::json;
use tokio::sync::Notify;
use wharfline::api::allocation::Task;
use wharfline::api::plugin::Role;
use wharfline::node::runtime::containerd::{Containerd, Reached};
use wharfline::node::runtime::oci::Oci;
use wharfline::node::runtime::process::Process;
use wharfline::node::runtime::systemd::Systemd;
use wharfline::node::runtime::{
    Ended, Grants, Kind, Order, Place, Readiness, Running, Runtime, RuntimeError, Shimmed, VolumeAt, Wish,
};
use wharfline::plan::container::{PluginPart, Trust};
use wharfline::sys::kernel::{FileKind, KernelError, PathFacts, Present};
use wharfline::sys::path::{SubPath, TreePath};
use wharfline::sys::process::ExitRecord;
use wharfline::sys::random::RealRandom;
use wharfline::sys::real::{RealContainers, RealFiles, RealKernel, RealUnits, RealWatches};
use wharfline::sys::{Kernel, Watches};

use crate::its::{self, RunsIn};
use crate::made::save_busybox;
use crate::support::{Host, Propagation, soon};

/// The image of containers, in the host's directory.
const IMAGE: &str = "image.tar";

/// Which runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    Process,
    Oci,
    Systemd,
    Containerd,
}

impl Flavour {
    /// Whether tasks are containers.
    pub(crate) fn is_container(self) -> bool {
        matches!(self, Self::Oci | Self::Containerd)
    }
}

/// A volume that is published on the machine.
pub(crate) struct Volume {
    path: TreePath,
    present: Present,
}

/// What is to be run, and with which volumes.
pub(crate) struct Wanted<'a> {
    pub(crate) task: Task,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) grace: Duration,
    pub(crate) volumes: Vec<(&'a Volume, VolumeAt)>,
    /// The directory of the last volume that is mounted instead of its root.
    pub(crate) within: Option<SubPath>,
    /// That it serves a plugin.
    pub(crate) plugin: Option<PluginPart>,
}

/// A machine with one runtime.
pub(crate) struct Machine {
    pub(crate) host: Host,
    pub(crate) kernel: RealKernel,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// What finds tasks without a journal, whatever runs them.
    pub(crate) finder: Arc<dyn Runtime>,
    pub(crate) place: Place,
    /// The one that makes its containers.
    pub(crate) containerd: Option<its::Containerd>,
    /// Every task has it at `/here`.
    here: Volume,
}

fn at(path: &str) -> VolumeAt {
    VolumeAt { path: path.into(), read_only: false, block: false, device: None }
}

/// A file system of the volume at this path of a task.
pub(crate) fn mounted<'a>(volume: &'a Volume, path: &str) -> (&'a Volume, VolumeAt) {
    (volume, at(path))
}

/// How a task ended.
pub(crate) async fn exited(task: &dyn Running) -> ExitRecord {
    match soon(task.wait()).await.unwrap() {
        Ended::Exited(record) => record,
        ended @ (Ended::Lost | Ended::LetGo) => panic!("{ended:?}"),
    }
}

impl Machine {
    pub(crate) async fn new(flavour: Flavour) -> Self {
        Self::with_root(flavour, Propagation::Private).await
    }

    pub(crate) async fn with_root(flavour: Flavour, propagation: Propagation) -> Self {
        let host = Host::with_root(propagation);
        let kernel = host.kernel();
        kernel.prepare_tree().await.unwrap();
        let directory = host.data.join("here");
        std::fs::create_dir(&directory).unwrap();
        let path = TreePath::new(["publish", "here", "target"]).unwrap();
        kernel.make_dir(&path).await.unwrap();
        mount_bind(&directory, kernel.absolute(&path.clone().into())).unwrap();
        let here = published(&kernel, path).await;
        let data = host.data.join("daemon");
        // Its name is that of no other test's.
        let run_dir = host.data.clone();
        let files = Arc::new(RealFiles::new(host.pool.clone()));
        let shimmed = Shimmed::new(Arc::new(host.processes()), files, &data, &run_dir);
        let mut containerd = None;
        let hide = vec![data.clone(), kernel.absolute(&TreePath::root().into())];
        let runtime: Arc<dyn Runtime> = match flavour {
            Flavour::Process => Arc::new(Process::new(shimmed.clone(), hide.clone())),
            Flavour::Systemd => {
                let units = RealUnits::booted().expect("systemd is PID 1");
                let process = Process::new(shimmed.clone(), hide.clone());
                Arc::new(Systemd::new(process, Some(Arc::new(units))))
            }
            Flavour::Oci | Flavour::Containerd => {
                save_busybox(&host.data.join(IMAGE));
                let (image_dirs, bind_paths) = (vec![host.data.clone()], Vec::new());
                let grants = Grants { image_dirs, bind_paths, trust: Trust::Confined };
                let containers = Arc::new(RealContainers::new(&data));
                let oci = Arc::new(Oci::new(shimmed.clone(), Some(containers), &run_dir, grants));
                if flavour == Flavour::Oci {
                    oci
                } else {
                    let its =
                        containerd.insert(its::Containerd::start(&host.data.join("c"), RunsIn::Own).await);
                    let there: Reached = (Arc::new(its.client()), its.socket());
                    Arc::new(Containerd::new(oci, shimmed.clone(), Some(there), Arc::new(RealRandom)))
                }
            }
        };
        let (place, finder) = (Place::new(&data, "6e3f", "main"), Process::new(shimmed, hide));
        Self { host, kernel, runtime, finder: Arc::new(finder), place, containerd, here }
    }

    /// An empty file system as a volume.
    pub(crate) async fn volume(&self, name: &str) -> Volume {
        let path = TreePath::new(["publish", name, "target"]).unwrap();
        self.kernel.make_dir(&path).await.unwrap();
        mount("none", self.kernel.absolute(&path.clone().into()), "tmpfs", MountFlags::empty(), None)
            .unwrap();
        published(&self.kernel, path).await
    }

    /// What is on this device as a volume.
    pub(crate) async fn formatted(&self, name: &str, device: &str) -> Volume {
        let path = TreePath::new(["publish", name, "target"]).unwrap();
        self.kernel.make_dir(&path).await.unwrap();
        mount(device, self.kernel.absolute(&path.clone().into()), "ext4", MountFlags::empty(), None).unwrap();
        published(&self.kernel, path).await
    }

    /// What the host has at this file, a device say, as a volume.
    pub(crate) async fn bound(&self, name: &str, file: &Path) -> Volume {
        let path = TreePath::new(["publish", name, "target"]).unwrap();
        self.kernel.make_dir(&path.parent().unwrap()).await.unwrap();
        let target = self.kernel.absolute(&path.clone().into());
        std::fs::write(&target, "").unwrap();
        mount_bind(file, &target).unwrap();
        published(&self.kernel, path).await
    }

    /// Where the host sees a volume.
    pub(crate) fn seen(&self, volume: &Volume) -> PathBuf {
        self.kernel.absolute(&volume.path.clone().into())
    }

    /// Why a directory of a volume cannot be mounted.
    pub(crate) async fn refused(&self, volume: &Volume, within: &SubPath) -> KernelError {
        self.kernel.clone_directory(&volume.path, &volume.present, within).await.unwrap_err()
    }

    /// Takes a volume away from the host.
    pub(crate) async fn unmount(&self, volume: &Volume) {
        let id = volume.present.mount.as_ref().unwrap().id;
        self.kernel.unmount(&volume.path.clone().into(), id).await.unwrap();
    }

    /// A task of this shell script, with `$HERE` as a directory that is ours, too.
    pub(crate) fn script(&self, script: &str) -> Wanted<'_> {
        // Its name for itself is the host's directory, by which what a failed test leaves is found.
        self.program(&["/bin/sh", "-c", script, self.host.data.to_str().unwrap()])
    }

    /// A task of this program.
    pub(crate) fn program(&self, command: &[&str]) -> Wanted<'_> {
        let mut runtime = json!({ "command": command });
        if matches!(self.runtime.kind(), Kind::Oci | Kind::Containerd) {
            runtime["archive"] = json!(self.host.data.join(IMAGE));
        }
        let task = json!({ "name": self.place.task, "runtime": { self.runtime.kind().word(): runtime } });
        Wanted {
            task: serde_json::from_value(task).unwrap(),
            env: BTreeMap::from([("HERE".to_owned(), "/here".to_owned())]),
            grace: Duration::from_secs(10),
            volumes: vec![mounted(&self.here, "/here")],
            within: None,
            plugin: None,
        }
    }

    /// A driver of this shell script, with its socket's directory as `$SOCKETS` and the tree of volumes as `$TREE`.
    pub(crate) fn driver(&self, script: &str) -> Wanted<'_> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let sockets = self.host.data.join("sockets");
        std::fs::create_dir_all(&sockets).unwrap();
        let tree = self.kernel.absolute(&TreePath::root().into());
        let mut wanted = self.script(script);
        // A driver that is a process sees what the machine sees.
        if matches!(self.runtime.kind(), Kind::Process | Kind::Systemd) {
            wanted.volumes.clear();
            wanted.env.insert("HERE".to_owned(), text(&self.host.data.join("here")));
        }
        let serves = json!({ "pluginName": "p", "role": "Node" });
        wanted.task.csi_plugin = Some(serde_json::from_value(serves).unwrap());
        wanted.env.insert("SOCKETS".to_owned(), text(&sockets));
        wanted.env.insert("TREE".to_owned(), text(&tree));
        wanted.plugin = Some(PluginPart {
            role: Role::Node,
            socket_directory: text(&sockets),
            mount_dir: String::new(),
            tree: text(&tree),
            stage_publish_base_dir: String::new(),
        });
        wanted
    }

    pub(crate) async fn try_start(&self, wanted: &Wanted<'_>) -> Result<Arc<dyn Running>, RuntimeError> {
        let mut clones = Vec::new();
        for (n, (volume, _)) in (1..).zip(&wanted.volumes) {
            let last = n == wanted.volumes.len();
            let clone = match wanted.within.as_ref().filter(|_| last) {
                None => self.kernel.clone_mount(&volume.path, &volume.present).await,
                Some(within) => self.kernel.clone_directory(&volume.path, &volume.present, within).await,
            };
            clones.push(clone.unwrap());
        }
        let volumes = wanted.volumes.iter().map(|(volume, at)| {
            let device = match volume.present.kind {
                FileKind::Block(device) => Some(device),
                FileKind::Directory | FileKind::File | FileKind::Other => None,
            };
            VolumeAt { device, ..at.clone() }
        });
        let order = Order {
            place: &self.place,
            name: "default/app".to_owned(),
            task: &wanted.task,
            variables: BTreeMap::new(),
            env: wanted.env.clone(),
            grace: wanted.grace,
            volumes: volumes.collect(),
            plugin: wanted.plugin.clone(),
        };
        self.prepared(&wanted.task).await;
        self.runtime.start(&order, clones).await
    }

    /// Has all made that a start needs.
    pub(crate) async fn prepared(&self, task: &Task) {
        // What serves a plugin here was written by the controllers.
        let trusted = task.csi_plugin.is_some();
        loop {
            match self.runtime.readiness(&self.place, (task, trusted)) {
                Readiness::Ready => return,
                Readiness::Unprepared => {}
                not => panic!("{not:?}"),
            }
            let over = Arc::new(Notify::new());
            let told = Arc::clone(&over);
            self.runtime.prepare(
                &self.place,
                Wish { task, trusted, former: None },
                &BTreeMap::new(),
                Arc::new(move || told.notify_one()),
            );
            soon(over.notified()).await;
        }
    }

    pub(crate) async fn start(&self, wanted: &Wanted<'_>) -> Arc<dyn Running> {
        self.try_start(wanted).await.unwrap()
    }

    /// Runs a script to its end; its exit record and its standard output.
    pub(crate) async fn run(&self, wanted: &Wanted<'_>) -> (ExitRecord, String) {
        let record = exited(&*self.start(wanted).await).await;
        (record, self.log("stdout"))
    }

    /// A log of the task.
    pub(crate) fn log(&self, stream: &str) -> String {
        std::fs::read_to_string(self.place.logs.join(format!("{stream}.log"))).unwrap_or_default()
    }

    /// Waits until the task has made a file in `$HERE`.
    pub(crate) async fn written(&self, name: &str) -> String {
        let watches = RealWatches::new(self.host.pool.clone());
        let here = self.host.data.join("here");
        soon(watches.appeared(&here, name)).await.unwrap();
        std::fs::read_to_string(here.join(name)).unwrap()
    }

    /// What the shim wrote of a task that runs: the numbers of the shim and of the task's first process.
    pub(crate) fn pids(&self) -> (i32, i32) {
        let text = std::fs::read(self.place.directory.join("state.json")).unwrap();
        let state: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let pid = |of: &str| i32::try_from(state[of]["pid"].as_i64().unwrap()).unwrap();
        (pid("shim"), pid("task"))
    }

    /// All is as it was.
    pub(crate) async fn end(self) {
        self.runtime.forget(&self.place).await.unwrap();
        assert!(!self.place.directory.exists());
        self.finder.sweep().await.unwrap();
        assert!(self.finder.list().await.unwrap().is_empty());
        let Self { host, kernel, containerd, here, .. } = self;
        if let Some(containerd) = containerd {
            containerd.end().await;
        }
        let left = || {
            let beneath = std::fs::read_dir(host.data.join("runc")).into_iter().flatten();
            beneath.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
        };
        let removed = async {
            // Of a task that has ended, a process of its own removes it.
            while !left().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        let removed = tokio::time::timeout(Duration::from_secs(30), removed).await;
        removed.unwrap_or_else(|_| panic!("left of what runc remembers: {:?}", left()));
        unmount(kernel.absolute(&here.path.clone().into()), UnmountFlags::empty()).unwrap();
        kernel.undo_tree().await.unwrap();
        host.assert_clean();
    }
}

async fn published(kernel: &RealKernel, path: TreePath) -> Volume {
    let PathFacts::Present(present) = kernel.mount_facts(&path.clone().into()).await.unwrap() else {
        panic!("it is mounted")
    };
    Volume { path, present }
}
