//! A real `wharfline up` on a directory of its own, a client, and watches that tell when.
use std::collections::HashMap;
use std::fmt::Debug;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use wharfline::api::meta::Rung;
use wharfline::api::{Allocation, PluginInstance, VolumeClaim, VolumeClass};

use super::plugin::Plugin;

/// How long anything may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(300);

/// The binary that is measured: the release build that `make bench` names, else the one built with this program.
pub(crate) fn wharfline() -> PathBuf {
    std::env::var_os("WHARFLINE_BIN")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_wharfline")), PathBuf::from)
}

/// One data directory and the `up` on it.
pub(crate) struct Stack {
    pub(crate) data: tempfile::TempDir,
    up: Option<Child>,
}

impl Stack {
    /// An empty directory.
    pub(crate) fn new() -> Self {
        Self { data: tempfile::Builder::new().prefix("wfl").tempdir_in("/var/tmp").unwrap(), up: None }
    }

    fn log_path(&self) -> PathBuf {
        self.data.path().with_extension("log")
    }

    /// What `up` logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// `up`, until it says that it is ready.
    pub(crate) fn up(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log_path()).unwrap();
        let mut up = Command::new(wharfline())
            .arg("up")
            .arg("--data-dir")
            .arg(self.data.path())
            .args(["--listen", "127.0.0.1:0", "--node-name", "bench"])
            .env("NO_COLOR", "1") // times are read from its log
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(up.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.up = Some(up);
        assert!(line.starts_with("ready "), "not ready: {line:?}\n{}", self.log());
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.up.as_ref().unwrap().id()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut up = self.up.take().unwrap();
        up.kill().unwrap();
        up.wait().unwrap();
    }

    /// The command line on this directory.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(wharfline());
        command.arg("--kubeconfig").arg(self.data.path().join("kubeconfig"));
        command.arg("--data-dir").arg(self.data.path()).args(args).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// A client as the administrator.
    pub(crate) async fn client(&self) -> kube::Client {
        client(&self.data.path().join("kubeconfig")).await
    }

    /// The stack with a `bind` plugin registered and ready, and a class that makes volumes at once.
    pub(crate) async fn with_plugin(plugin: &Plugin) -> (Self, World) {
        let mut stack = Self::new();
        stack.up();
        let world = World::new(stack.client().await);
        world.register("bind", plugin).await;
        world.plugin_ready().await;
        (stack, world)
    }

    /// Everything down and away.
    pub(crate) fn end(mut self) {
        let down =
            self.command(&["down", "--delete-volumes", "--timeout", "4m"]).stderr(Stdio::null()).status();
        if let Some(mut up) = self.up.take() {
            if !down.as_ref().is_ok_and(std::process::ExitStatus::success) {
                let _ = up.kill();
            }
            let _ = up.wait();
        }
        assert!(down.unwrap().success(), "not everything came down\n{}", self.log());
    }
}

impl Drop for Stack {
    /// A measurement that failed leaves nothing either.
    fn drop(&mut self) {
        if let Some(mut up) = self.up.take() {
            let _ = up.kill();
            let _ = up.wait();
            let _ = self
                .command(&["down", "--delete-volumes", "--timeout", "20s"])
                .stderr(Stdio::null())
                .status();
            unmount_beneath(self.data.path());
        }
        let _ = std::fs::remove_file(self.log_path());
    }
}

/// Takes away whatever is mounted beneath a directory, the last mount first.
pub(crate) fn unmount_beneath(directory: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    let ours: Vec<_> = points.filter(|point| Path::new(point).starts_with(directory)).collect();
    for point in ours.iter().rev() {
        let _ = rustix::mount::unmount(*point, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A client from a kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> kube::Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    kube::Client::try_from(config).unwrap()
}

/// What a client makes and sees.
pub(crate) struct World {
    pub(crate) client: kube::Client,
    pub(crate) claims: Api<VolumeClaim>,
    pub(crate) allocations: Api<Allocation>,
    /// How many volumes of an allocation are published.
    pub(crate) published: Seen<usize>,
    /// Whether a claim is bound.
    pub(crate) bound: Seen<bool>,
    /// Names of the volumes that exist.
    pub(crate) volumes: Seen<()>,
}

impl World {
    /// Watches what is waited for.
    pub(crate) fn new(client: kube::Client) -> Self {
        let claims: Api<VolumeClaim> = Api::namespaced(client.clone(), "default");
        let allocations: Api<Allocation> = Api::namespaced(client.clone(), "default");
        Self {
            published: Seen::follow(allocations.clone(), |allocation: &Allocation| {
                let status = allocation.status.as_ref();
                status.map_or(0, |s| s.volumes.iter().filter(|v| v.published == Rung::Up).count())
            }),
            bound: Seen::follow(claims.clone(), |claim: &VolumeClaim| {
                let status = serde_json::to_value(&claim.status).unwrap();
                status["phase"] == "Bound"
            }),
            volumes: Seen::follow(Api::<wharfline::api::Volume>::all(client.clone()), |_| ()),
            claims,
            allocations,
            client,
        }
    }

    /// Makes an object.
    pub(crate) async fn create<K>(&self, api: &Api<K>, object: Value) -> K
    where
        K: Resource + Clone + DeserializeOwned + Serialize + Debug,
        K::DynamicType: Default,
    {
        let object: K = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap()
    }

    /// A Plugin of this name on every node, and a class of it that makes volumes at once.
    pub(crate) async fn register(&self, name: &str, plugin: &Plugin) {
        let instance = json!({ "name": "all", "role": "Monolith", "placement": { "everyNode": {} },
            "runtime": { "external": { "socket": plugin.socket } } });
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin", "metadata": { "name": name },
            "spec": { "instances": [instance] } });
        self.create(&Api::<wharfline::api::Plugin>::all(self.client.clone()), object).await;
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClass",
            "metadata": { "name": name },
            "spec": { "plugin": name, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate" } });
        self.create(&Api::<VolumeClass>::all(self.client.clone()), object).await;
    }

    /// Waits until an instance of the plugin is ready.
    pub(crate) async fn plugin_ready(&self) {
        let instances: Api<PluginInstance> = Api::all(self.client.clone());
        let ready = Seen::follow(instances, |instance: &PluginInstance| {
            let conditions = instance.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
            wharfline::api::meta::is_true(conditions, "Ready")
        });
        ready.until(|all| all.values().any(|(ready, _)| *ready)).await;
    }

    /// Makes a claim.
    pub(crate) async fn claim(&self, name: &str) {
        self.claim_of("bind", name).await;
    }

    /// Makes a claim of a class.
    pub(crate) async fn claim_of(&self, class: &str, name: &str) {
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClaim",
            "metadata": { "name": name },
            "spec": { "volumeClassName": class, "accessModes": ["SingleNodeWriter"],
                "resources": { "requests": { "storage": "1Mi" } } } });
        self.create(&self.claims, object).await;
    }

    /// Makes an allocation without tasks that uses these claims.
    pub(crate) async fn allocation(&self, name: &str, claims: &[String]) {
        let volumes: Vec<_> =
            claims.iter().map(|claim| json!({ "name": claim, "claimName": claim })).collect();
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
            "metadata": { "name": name }, "spec": { "volumes": volumes } });
        self.create(&self.allocations, object).await;
    }

    /// Makes claims, as many as there are names, and waits until they are bound.
    pub(crate) async fn claims_bound(&self, names: &[String]) {
        futures::stream::iter(names).for_each_concurrent(16, |name| self.claim(name)).await;
        self.bound.until(|all| names.iter().all(|name| all.get(name).is_some_and(|(bound, _)| *bound))).await;
    }

    /// Deletes allocations and claims and waits until they and their volumes are gone.
    pub(crate) async fn clear(&self, allocations: &[String], claims: &[String]) {
        let params = DeleteParams::default();
        for name in allocations {
            self.allocations.delete(name, &params).await.unwrap();
        }
        for name in claims {
            self.claims.delete(name, &params).await.unwrap();
        }
        self.published.until(|all| allocations.iter().all(|name| !all.contains_key(name))).await;
        self.bound.until(|all| claims.iter().all(|name| !all.contains_key(name))).await;
        self.volumes.until(HashMap::is_empty).await;
    }
}

/// What a watch showed of each object, and when it did so.
type States<T> = HashMap<String, (T, Instant)>;

/// A watch that remembers one thing of each object.
pub(crate) struct Seen<T> {
    states: Arc<Mutex<States<T>>>,
    changes: watch::Receiver<u64>,
    task: tokio::task::JoinHandle<()>,
}

impl<T> Drop for Seen<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<T: Clone + PartialEq + Send + 'static> Seen<T> {
    /// Begins to watch.
    pub(crate) fn follow<K>(api: Api<K>, state: fn(&K) -> T) -> Self
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let states: Arc<Mutex<States<T>>> = Arc::default();
        let (tell, changes) = watch::channel(0);
        let kept = Arc::clone(&states);
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                let now = Instant::now();
                let mut states = kept.lock().unwrap();
                match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => {
                        let new = state(&object);
                        let name = object.name_any();
                        if states.get(&name).is_none_or(|(old, _)| *old != new) {
                            states.insert(name, (new, now));
                        }
                    }
                    Ok(Event::Delete(object)) => {
                        states.remove(&object.name_any());
                    }
                    Ok(Event::Init | Event::InitDone) | Err(_) => {}
                }
                drop(states);
                tell.send_modify(|version| *version += 1);
            }
        });
        Self { states, changes, task }
    }

    /// Waits until what was seen is as wanted.
    pub(crate) async fn until(&self, holds: impl Fn(&States<T>) -> bool) {
        let mut changes = self.changes.clone();
        let wait = async {
            loop {
                changes.borrow_and_update();
                if holds(&self.states.lock().unwrap()) {
                    return;
                }
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("what is waited for never came");
    }

    /// Waits until these objects are in this state, and says when the last of them got there.
    pub(crate) async fn all_are(&self, names: &[String], wanted: &T) -> Instant {
        self.until(|all| names.iter().all(|name| all.get(name).is_some_and(|(seen, _)| seen == wanted)))
            .await;
        let states = self.states.lock().unwrap();
        names.iter().map(|name| states[name].1).max().unwrap()
    }
}
