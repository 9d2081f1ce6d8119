//! A driver whose container has the tree of volumes at another path: it is told that path alone, and people the node's.
use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::watch;
use wharfline::csi::{Rpc, proto};
use wharfline::node::Machine;
use wharfline::plan::container::Trust;
use wharfline::sys::containers::{Astray, DeviceNode, Equipment, Image, Lack, Layout, NoDevice};
use wharfline::sys::image::{Config as ImageConfig, Digest, ImageError, Platform};
use wharfline::sys::process::{
    Adopted, Ended, ExitRecord, LogSpec, Outcome, ProcessError, ProcessId, Task, TaskSpec, TaskState,
};
use wharfline::sys::{Containers, Processes};

use crate::support::node::{NODE, NODE_ID, Rig, condition, until};
use crate::support::scripted::{Answer, Ask, Config, Scripted, Site};

/// A machine with images that are there at once.
#[derive(Debug)]
struct Imaged;

#[async_trait]
impl Containers for Imaged {
    async fn check(&self) -> Result<Equipment, Lack> {
        Ok(Equipment {
            runc: "/nowhere/runc".into(),
            capabilities: (0..41).collect(),
            hostname: NODE.to_owned(),
            cgroups: Layout::V2,
            resolv_conf: false,
            hosts: false,
        })
    }
    async fn image(&self, _: &Path, _: Option<&str>) -> Result<Arc<Image>, ImageError> {
        let config = ImageConfig {
            platform: Platform::here(),
            entrypoint: vec!["/driver".to_owned()],
            cmd: Vec::new(),
            env: Vec::new(),
            working_dir: "/".to_owned(),
            user: None,
            stop_signal: None,
            diff_ids: Vec::new(),
        };
        Ok(Arc::new(Image::new(Digest::of(b"image"), config, vec!["/nowhere/layer".into()], ())))
    }
    async fn remove_unused(&self, _: BTreeSet<PathBuf>) -> Result<usize, ImageError> {
        Ok(0)
    }
    async fn resolve(&self, path: &Path, _: &[PathBuf]) -> Result<PathBuf, Astray> {
        Ok(path.to_owned())
    }
    async fn device(&self, path: &Path) -> Result<DeviceNode, NoDevice> {
        Err(NoDevice::Other { path: path.to_owned() })
    }
}

/// A container without a process: of what it would have mounted it has the tree alone, at the path of its document, in
/// this test's own namespace.
#[derive(Debug)]
struct Container {
    state: TaskState,
    socket: PathBuf,
    tree: PathBuf,
    ended: watch::Sender<bool>,
}

/// The containers by their directories: they outlive their daemon.
static ALL: LazyLock<Mutex<HashMap<PathBuf, Arc<Container>>>> = LazyLock::new(Mutex::default);

fn container(directory: &Path) -> Option<Arc<Container>> {
    ALL.lock().unwrap().get(directory).cloned()
}

impl Container {
    fn begin(spec: &TaskSpec) -> Self {
        let of = spec.container.as_ref().unwrap();
        let document: Value = serde_json::from_str(&of.document).unwrap();
        let mounts = document["mounts"].as_array().unwrap();
        let path = |mount: &Value, field: &str| PathBuf::from(mount[field].as_str().unwrap());
        let lent = |mount: &&Value| path(mount, "source").ends_with("stage/s/0");
        let tree = path(mounts.iter().find(lent).unwrap(), "destination");
        let socket = path(mounts.iter().find(|mount| mount["destination"] == "/sock").unwrap(), "source");
        std::fs::create_dir_all(&tree).unwrap();
        rustix::mount::mount_bind_recursive(&of.shares[0].path, &tree).unwrap();
        let nobody = ProcessId { pid: 0, start_time: 0 };
        let state = TaskState {
            boot_id: String::new(),
            shim: nobody,
            task: nobody,
            namespace: None,
            cookie: String::new(),
            started_ms: 1,
            cgroup: None,
            container: None,
            unit: None,
        };
        Self { state, socket: socket.join("csi.sock"), tree, ended: watch::Sender::new(false) }
    }

    fn end(&self) {
        if !self.ended.send_replace(true) {
            rustix::mount::unmount(&self.tree, rustix::mount::UnmountFlags::empty()).unwrap();
        }
    }

    fn record() -> ExitRecord {
        ExitRecord {
            outcome: Outcome::Code(0),
            started_ms: 1,
            finished_ms: 2,
            oom: false,
            stopped: true,
            boot_id: String::new(),
            wrote: None,
        }
    }
}

#[derive(Debug)]
struct Handle(Arc<Container>);

#[async_trait]
impl Task for Handle {
    fn state(&self) -> &TaskState {
        &self.0.state
    }
    async fn wait(&self) -> Result<Ended, ProcessError> {
        self.0.ended.subscribe().wait_for(|ended| *ended).await.unwrap();
        Ok(Ended::Exited(Container::record()))
    }
    fn stop(&self, _: Option<Duration>) -> Result<(), ProcessError> {
        self.0.end();
        Ok(())
    }
    fn signal(&self, _: i32) -> Result<(), ProcessError> {
        Ok(())
    }
}

#[derive(Debug)]
struct Played(Arc<dyn Processes>);

#[async_trait]
impl Processes for Played {
    async fn start(
        &self,
        directory: &Path,
        spec: &TaskSpec,
        _: Vec<OwnedFd>,
    ) -> Result<Box<dyn Task>, ProcessError> {
        let made = Arc::new(Container::begin(spec));
        ALL.lock().unwrap().insert(directory.to_owned(), Arc::clone(&made));
        Ok(Box::new(Handle(made)))
    }
    async fn adopt(&self, directory: &Path) -> Result<Adopted, ProcessError> {
        match container(directory) {
            Some(it) if *it.ended.borrow() => Ok(Adopted::Exited(Container::record())),
            Some(it) => Ok(Adopted::Running(Box::new(Handle(it)))),
            None => self.0.adopt(directory).await,
        }
    }
    async fn clear_leftovers(&self, directory: &Path) -> Result<usize, ProcessError> {
        self.0.clear_leftovers(directory).await
    }
    async fn list(&self, root: &Path) -> Result<Vec<PathBuf>, ProcessError> {
        self.0.list(root).await
    }
    async fn forget(&self, directory: &Path, logs: &LogSpec) -> Result<(), ProcessError> {
        self.0.forget(directory, logs).await
    }
}

fn played(machine: Machine) -> Machine {
    let processes = Arc::new(Played(Arc::clone(&machine.processes)));
    Machine { processes, containers: Some(Arc::new(Imaged)), ..machine }
}

/// A task that serves the plugin from a container that has the tree at `base`; its driver answers.
async fn driver(rig: &Rig, name: &str, base: &Path) -> Scripted {
    let task = json!({ "name": "plugin", "runtime": { "oci": { "archive": "/driver.tar" } },
        "csiPlugin": { "pluginName": "scripted", "role": "Monolith", "mountDir": "/sock",
            "stagePublishBaseDir": base } });
    let alloc = rig.alloc(name, json!({ "tasks": [task] })).await;
    rig.admit_as("scripted", name, &alloc).await;
    let uid = alloc.metadata.uid.unwrap();
    let directory = rig.place.data.path().join("tasks").join(format!("{uid}.plugin"));
    until(|| container(&directory).is_some(), "the container runs").await;
    let socket = container(&directory).unwrap().socket.clone();
    let serving = Scripted::start(&rig.backend, Site::new(NODE_ID), socket);
    rig.world.until(&rig.instances, name, "ready", |i| condition(i, "Ready", "True")).await;
    serving
}

async fn rig(config: Config) -> Rig {
    let mut rig = Rig::idle(config).await;
    rig.wrap = played;
    rig.options.containers.trust = Trust::Privileged;
    rig.start().await;
    rig
}

/// Every path of a request, with its call.
fn told(rig: &Rig) -> Vec<(&'static str, PathBuf)> {
    let rpcs =
        [Rpc::NodeStageVolume, Rpc::NodePublishVolume, Rpc::NodeUnpublishVolume, Rpc::NodeUnstageVolume];
    let mut calls: Vec<_> = rpcs.into_iter().flat_map(|rpc| rig.backend.calls_of(rpc)).collect();
    calls.sort_by_key(|call| call.number);
    let mut all = Vec::new();
    for call in calls {
        let paths = match &call.ask {
            Ask::NodeStageVolume(r) => vec![&r.staging_target_path],
            Ask::NodeUnstageVolume(r) => vec![&r.staging_target_path],
            Ask::NodePublishVolume(r) => vec![&r.staging_target_path, &r.target_path],
            Ask::NodeUnpublishVolume(r) => vec![&r.target_path],
            _ => Vec::new(),
        };
        all.extend(paths.into_iter().map(|path| (call.rpc.name(), PathBuf::from(path))));
    }
    all
}

/// CO-PLUG-11: each path of a request is one of the driver's own root, after a restart of the daemon too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_is_told_the_paths_of_its_own_root() {
    let mut rig = rig(Config::full()).await;
    let base = rig.files.path().join("inside");
    let driver = driver(&rig, "p", &base).await;
    let app = rig.running().await;
    let shown =
        serde_json::to_value(&app).unwrap()["status"]["volumes"][0]["path"].as_str().map(PathBuf::from);
    let shown = shown.unwrap();
    assert!(shown.starts_with(rig.tree("publish")), "people are told the node's path: {shown:?}");

    // What the journal keeps of it is all that the next daemon has when it goes on.
    rig.kill().await;
    rig.start().await;
    rig.ready().await;
    assert_eq!(told(&rig).len(), 3, "nothing is called again");
    rig.end_all().await;
    let all = told(&rig);
    let calls: Vec<_> = all.iter().map(|(rpc, _)| *rpc).collect();
    let wanted = ["NodeStageVolume", "NodePublishVolume", "NodePublishVolume", "NodeUnpublishVolume"];
    assert_eq!(calls, [&wanted[..], &["NodeUnstageVolume"]].concat());
    let places = [("staging", &[0, 1, 4][..]), ("publish", &[2, 3])];
    for (tree, at) in places {
        let first = &all[at[0]].1;
        assert!(first.starts_with(base.join(tree)), "{all:?}");
        assert!(at.iter().all(|at| all[*at].1 == *first), "{all:?}");
    }
    assert_eq!(rig.tree("publish").join(all[2].1.strip_prefix(base.join("publish")).unwrap()), shown);
    rig.finish().await;
    drop(driver);
}

/// A mount that a driver leaves behind is told by the path where a person finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_are_told_the_paths_of_the_node() {
    let rig = rig(Config::full()).await;
    let base = rig.files.path().join("inside");
    let driver = driver(&rig, "p", &base).await;
    rig.running().await;
    rig.backend.always(Rpc::NodeUnpublishVolume, Answer::reply(&proto::NodeUnpublishVolumeResponse {}));
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.delete(&rig.attachments, "att-1").await;
    let told = |a: &Value| a["status"]["node"]["reason"] == "StillMounted";
    let told = rig.world.until(&rig.attachments, "att-1", "StillMounted", told).await;
    let told = serde_json::to_value(&told).unwrap()["status"].to_string();
    let node = rig.tree("publish").to_string_lossy().into_owned();
    assert!(told.contains(&node) && !told.contains(base.to_str().unwrap()), "{told}");
    rig.backend.honest(Rpc::NodeUnpublishVolume);
    rig.detached().await;
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.end_volume("vol-1").await;
    rig.finish().await;
    drop(driver);
}
