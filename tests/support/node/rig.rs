//! A daemon, a server and one scripted plugin beside them; the test plays the controllers.
use std::path::PathBuf;
use std::sync::Arc;

use kube::Api;
use serde_json::{Value, json};
use wharfline::api::{Allocation, NodeAgent, PluginInstance, Volume, VolumeAttachment};
use wharfline::csi::Rpc;
use wharfline::node::{Machine, Options};
use wharfline::server::Server;

use super::link::Link;
use super::{Daemon, NODE, Place, World, mounts_beneath, server, uid};
use crate::support::scripted::{Answer, Backend, Config, Effects, Gate, Logged, Scripted, Site};

/// What the plugin calls this node: not the node's name.
pub const NODE_ID: &str = "i-0123";

/// Everything that one test needs.
pub struct Rig {
    pub place: Place,
    pub server: Server,
    pub link: Link,
    pub world: World,
    pub backend: Arc<Backend>,
    pub plugin: Scripted,
    pub daemon: Option<Daemon>,
    /// The backend's files and the plugin's socket.
    pub files: tempfile::TempDir,
    pub allocs: Api<Allocation>,
    pub volumes: Api<Volume>,
    pub attachments: Api<VolumeAttachment>,
    pub instances: Api<PluginInstance>,
    pub agents: Api<NodeAgent>,
    attaches: bool,
    stages: bool,
    /// What the machine is wrapped in.
    pub wrap: fn(Machine) -> Machine,
    pub options: Options,
}

/// What makes a volume special; the rest is usual.
#[derive(Default)]
pub struct Special {
    pub spec: Value,
    pub mode: Option<&'static str>,
    pub secrets: Value,
    /// What of its attachment is special.
    pub attachment: Value,
}

impl Rig {
    /// Everything is there but the daemon and the plugin's registration; the plugin runs.
    pub async fn idle(mut config: Config) -> Self {
        let files = tempfile::Builder::new().prefix("wfb").tempdir_in("/var/tmp").unwrap();
        config.effects = Effects::Mounts(files.path().join("volumes"));
        let attaches = config.controller.contains(&2);
        let stages = config.node.contains(&1);
        let backend = Backend::new(config);
        let socket = files.path().join("csi.sock");
        let plugin = Scripted::start(&backend, Site::new(NODE_ID), socket);
        let (place, server) = (Place::new(), server().await);
        let world = World::new(&server);
        let options = place.options();
        Self {
            link: Link::default(),
            allocs: world.namespaced(),
            volumes: world.all(),
            attachments: world.all(),
            instances: world.all(),
            agents: world.all(),
            place,
            server,
            world,
            backend,
            plugin,
            daemon: None,
            files,
            attaches,
            stages,
            wrap: |machine| machine,
            options,
        }
    }

    /// The daemon runs and the plugin is ready.
    pub async fn new(config: Config) -> Self {
        let mut rig = Self::idle(config).await;
        rig.start().await;
        rig.register().await;
        rig.ready().await;
        rig
    }

    /// Starts the daemon.
    pub async fn start(&mut self) {
        self.daemon = Some(self.boot().await);
    }

    /// A daemon that the caller keeps.
    pub async fn boot(&self) -> Daemon {
        let machine = (self.wrap)(self.place.machine());
        let client = self.link.client(&self.server, NODE);
        Daemon::start_with(client, machine, self.options.clone()).await
    }

    /// The Plugin object, with a deadline for one call.
    pub async fn deadline(&self, rpc: Rpc, deadline: &str) {
        self.plugin_object(json!({ "deadlines": { rpc.name(): deadline } })).await;
    }

    pub async fn plugin_object(&self, spec: Value) {
        let api: Api<wharfline::api::Plugin> = self.world.all();
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin",
            "metadata": { "name": "scripted" }, "spec": spec });
        self.world.create(&api, object).await;
    }

    /// Ends it in order.
    pub async fn stop(&mut self) {
        self.daemon.take().unwrap().stop().await;
    }

    /// Ends it at once.
    pub async fn kill(&mut self) {
        self.daemon.take().unwrap().kill().await;
    }

    /// What placement and the plugins controller do for a plugin that something else runs.
    pub async fn register(&self) {
        self.register_as("scripted", "p", self.plugin.socket().to_owned()).await;
    }

    pub async fn register_as(&self, plugin: &str, name: &str, socket: PathBuf) {
        let alloc = self.serve_as(plugin, name, socket).await;
        self.admit_as(plugin, name, &alloc).await;
    }

    /// An allocation that says that it serves the plugin.
    pub async fn serve_as(&self, plugin: &str, name: &str, socket: PathBuf) -> Allocation {
        let task = json!({ "name": "plugin", "runtime": { "external": { "socket": socket } },
            "csiPlugin": { "pluginName": plugin, "role": "Monolith" } });
        self.alloc(name, json!({ "tasks": [task] })).await
    }

    /// What the plugins controller makes of one that may.
    pub async fn admit_as(&self, plugin: &str, name: &str, alloc: &Allocation) {
        self.world
            .create(
                &self.instances,
                json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "PluginInstance",
                "metadata": { "name": name },
                "spec": { "plugin": plugin, "role": "Monolith", "nodeName": NODE, "task": "plugin",
                    "allocation": { "namespace": "default", "name": name, "uid": uid(alloc) } } }),
            )
            .await;
    }

    pub async fn ready(&self) -> PluginInstance {
        self.world.until(&self.instances, "p", "ready", |i| condition(i, "Ready", "True")).await
    }

    pub async fn not_ready(&self, reason: &str) -> PluginInstance {
        let holds =
            |i: &Value| condition_reason(i, "Ready") == Some(reason) && condition(i, "Ready", "False");
        self.world.until(&self.instances, "p", reason, holds).await
    }

    /// An allocation bound to this node.
    pub async fn alloc(&self, name: &str, spec: Value) -> Allocation {
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
            "metadata": { "name": name }, "spec": spec });
        let made = self.world.create(&self.allocs, object).await;
        self.world.status(&self.allocs, name, json!({ "nodeName": NODE })).await;
        made
    }

    /// An allocation without tasks that keeps a claim mounted.
    pub async fn user(&self, name: &str) -> Allocation {
        self.alloc(name, json!({ "volumes": [{ "name": "data", "claimName": "data" }] })).await
    }

    /// A volume asked for, with this node as its host.
    pub async fn ask(&self, name: &str, special: &Special) -> Volume {
        let mut spec = json!({ "plugin": "scripted", "accessModes": [special.mode.unwrap_or("SingleNodeWriter")],
            "source": { "create": { "name": name, "requiredBytes": 1 << 20 } } });
        merge(&mut spec, &special.spec);
        if special.secrets.is_object() {
            spec["secrets"] = special.secrets.clone();
        }
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Volume",
            "metadata": { "name": name }, "spec": spec });
        let volume = self.world.create(&self.volumes, object).await;
        self.world
            .status(&self.volumes, name, json!({ "controller": { "nodeName": NODE, "epoch": 1 } }))
            .await;
        volume
    }

    pub async fn volume_up(&self, name: &str) -> Volume {
        self.world.until(&self.volumes, name, "made", |v| v["status"]["exists"] == "Up").await
    }

    /// The attachment `att-1` of a volume that is up.
    pub async fn attach(
        &self,
        volume: &str,
        allocations: &[&Allocation],
        special: &Special,
    ) -> VolumeAttachment {
        let volume = self.volumes.get(volume).await.unwrap();
        let status = volume.status.clone().unwrap();
        let uids: Vec<_> = allocations.iter().map(|a| uid(*a)).collect();
        let mut spec = json!({ "volume": volume.metadata.name, "volumeUid": uid(&volume), "nodeName": NODE,
            "plugin": "scripted", "claim": { "namespace": "default", "name": "data", "uid": "c" },
            "host": { "nodeName": NODE, "epoch": 1 }, "attachRequired": self.attaches,
            "stageRequired": self.stages, "handle": status.handle, "volumeContext": status.context,
            "nodeId": NODE_ID, "allocations": uids,
            "capability": { "accessMode": special.mode.unwrap_or("SingleNodeWriter") } });
        if special.secrets.is_object() {
            spec["secrets"] = special.secrets.clone();
        }
        merge(&mut spec, &special.attachment);
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
            "metadata": { "name": "att-1" }, "spec": spec });
        self.world.create(&self.attachments, object).await
    }

    /// Another volume like that of `att-1`, attached as `att-2` for the claim `other`.
    pub async fn give_second(&self, user: &Allocation) {
        self.ask("vol-2", &Special::default()).await;
        let volume = self.volume_up("vol-2").await;
        let first = self.attachments.get("att-1").await.unwrap();
        let mut spec = serde_json::to_value(&first.spec).unwrap();
        let changed = json!({ "volume": "vol-2", "volumeUid": uid(&volume), "allocations": [uid(user)],
            "handle": volume.status.clone().unwrap().handle,
            "claim": { "namespace": "default", "name": "other", "uid": "c2" } });
        merge(&mut spec, &changed);
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeAttachment",
            "metadata": { "name": "att-2" }, "spec": spec });
        let _made: VolumeAttachment = self.world.create(&self.attachments, object).await;
    }

    /// The allocation `second` and the volume that it has go.
    pub async fn end_second(&self) {
        self.end_alloc("second").await;
        self.end_second_volume().await;
    }

    pub async fn end_second_volume(&self) {
        self.world.delete(&self.attachments, "att-2").await;
        let attaches = self.attaches;
        let down = move |a: &Value| {
            a["status"]["node"]["releasedUID"] == a["metadata"]["uid"]
                && (!attaches || a["status"]["controller"]["attached"] == "Down")
        };
        self.world.until(&self.attachments, "att-2", "released and detached", down).await;
        self.world.let_go(&self.attachments, "att-2").await;
        self.end_volume("vol-2").await;
    }

    /// What volumes are made from now on are directories of one tmpfs.
    pub fn on_tmpfs(&self) {
        let at = self.files.path().join("volumes");
        std::fs::create_dir_all(&at).unwrap();
        rustix::mount::mount("volumes", at, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    }

    /// The end of [`Rig::on_tmpfs`].
    pub fn off_tmpfs(&self) {
        let at = self.files.path().join("volumes");
        rustix::mount::unmount(at, rustix::mount::UnmountFlags::empty()).unwrap();
    }

    /// A volume made and attached for the allocations; not waited for beyond its creation.
    pub async fn give(&self, allocations: &[&Allocation], special: &Special) {
        self.ask("vol-1", special).await;
        self.volume_up("vol-1").await;
        self.attach("vol-1", allocations, special).await;
    }

    /// One allocation `app` that has its volume.
    pub async fn running(&self) -> Allocation {
        let app = self.user("app").await;
        self.give(&[&app], &Special::default()).await;
        self.published("app").await
    }

    pub async fn published(&self, name: &str) -> Allocation {
        let holds =
            |a: &Value| a["status"]["phase"] == "Running" && a["status"]["volumes"][0]["published"] == "Up";
        self.world.until(&self.allocs, name, "published", holds).await
    }

    /// The allocation is deleted and this node has nothing of it any more.
    pub async fn end_alloc(&self, name: &str) {
        self.world.delete(&self.allocs, name).await;
        self.world.until(&self.allocs, name, "stopped", |a| a["status"]["phase"] == "Stopped").await;
        self.world.let_go(&self.allocs, name).await;
    }

    /// The allocation is stopped, and may be started again: its volume stays here until it is asked for.
    pub async fn stop_alloc(&self, name: &str) {
        self.world.patch(&self.allocs, name, json!({ "spec": { "stop": true } })).await;
        self.world.until(&self.allocs, name, "stopped", |a| a["status"]["phase"] == "Stopped").await;
    }

    /// The attachment is deleted, released and detached.
    pub async fn end_attachment(&self) {
        self.world.delete(&self.attachments, "att-1").await;
        self.detached().await;
    }

    pub async fn detached(&self) {
        let attaches = self.attaches;
        let holds = move |a: &Value| {
            a["status"]["node"]["releasedUID"] == a["metadata"]["uid"]
                && (!attaches || a["status"]["controller"]["attached"] == "Down")
        };
        self.world.until(&self.attachments, "att-1", "released and detached", holds).await;
        self.world.let_go(&self.attachments, "att-1").await;
    }

    /// The allocation and the attachment are deleted, and the plugin's node half is done.
    pub async fn end_node_part(&self) {
        self.world.delete(&self.allocs, "app").await;
        self.world.delete(&self.attachments, "att-1").await;
        self.called(Rpc::NodeUnstageVolume, 1).await;
    }

    pub async fn end_volume(&self, name: &str) {
        self.world.delete(&self.volumes, name).await;
        let gone = |v: &Value| v["status"]["exists"] == "Down" && v["status"]["attempting"].is_null();
        self.world.until(&self.volumes, name, "deleted", gone).await;
        self.world.let_go(&self.volumes, name).await;
    }

    /// A volume whose object was taken off by force is found again by its name, so that nothing is left of the test.
    pub async fn end_lost_volume(&self, name: &str) {
        self.ask(name, &Special::default()).await;
        self.volume_up(name).await;
        self.end_volume(name).await;
    }

    /// Everything that [`Rig::running`] made is taken away again.
    pub async fn end_all(&self) {
        self.end_alloc("app").await;
        self.end_attachment().await;
        self.end_volume("vol-1").await;
    }

    /// The plugin's registration goes, the daemon ends, and nothing at all is left.
    pub async fn finish(mut self) {
        self.release_plugin("p").await;
        self.stop().await;
        self.backend.assert_clean();
        self.place.clear();
        for tree in ["staging", "publish"] {
            let left = std::fs::read_dir(self.place.data.path().join("volumes").join(tree));
            assert_eq!(left.map_or(0, Iterator::count), 0, "directories left in {tree}");
        }
        assert_eq!(mounts_beneath(self.files.path()), Vec::<String>::new());
    }

    pub async fn release_plugin(&self, name: &str) {
        self.world.delete(&self.allocs, name).await;
        self.world.status(&self.allocs, name, json!({ "pluginReleased": true })).await;
        self.world.until(&self.allocs, name, "stopped", |a| a["status"]["phase"] == "Stopped").await;
        self.world.let_go(&self.allocs, name).await;
    }

    /// How often this was called.
    pub fn count(&self, rpc: Rpc) -> usize {
        self.backend.calls_of(rpc).len()
    }

    /// The connection of a driver that `goes_away` has ended, and it has not said again who it is until the gate opens: no call
    /// about a volume is sent to it. It leaves the volume `last`.
    pub async fn unvouched(&self) -> Gate {
        let (gate, asked) = (Gate::new(), self.count(Rpc::GetPluginInfo));
        self.backend.next(Rpc::GetPluginInfo, Answer::honest().hang(&gate));
        // Its answer ends the connection, unless that has ended already.
        self.ask("last", &Special::default()).await;
        self.in_flight(Rpc::GetPluginInfo, asked + 1).await;
        gate
    }

    /// Waits until a call is in flight for the n-th time, from 1.
    pub async fn in_flight(&self, rpc: Rpc, n: usize) {
        let wanted =
            |log: &[Logged]| log.iter().filter(|c| c.rpc == rpc).nth(n - 1).is_some_and(Logged::in_flight);
        self.backend.until(&format!("{rpc} {n} in flight"), wanted).await;
    }

    /// Waits until this was called so often.
    pub async fn called(&self, rpc: Rpc, n: usize) {
        let wanted = |log: &[Logged]| log.iter().filter(|c| c.rpc == rpc && !c.in_flight()).count() >= n;
        self.backend.until(&format!("{rpc} called {n} times"), wanted).await;
    }

    pub fn tree(&self, path: &str) -> PathBuf {
        self.place.data.path().join("volumes").join(path)
    }

    /// What is mounted in the daemon's tree, the tree itself left out.
    pub fn mounted(&self) -> Vec<String> {
        let tree = self.place.data.path().join("volumes");
        mounts_beneath(&tree).into_iter().filter(|p| *p != tree.to_string_lossy()).collect()
    }

    /// Reason and note of all events, once there is one with this reason.
    pub async fn events_until(&self, reason: &str) -> Vec<(String, String)> {
        let api: Api<k8s_openapi::api::events::v1::Event> = Api::all(self.world.0.clone());
        let end = tokio::time::Instant::now() + super::DEADLINE;
        let mut again = tokio::time::interval(std::time::Duration::from_millis(10));
        loop {
            let list = api.list(&kube::api::ListParams::default()).await.unwrap();
            let found: Vec<_> = list
                .into_iter()
                .map(|e| (e.reason.unwrap_or_default(), e.note.unwrap_or_default()))
                .collect();
            if found.iter().any(|(r, _)| r == reason) {
                return found;
            }
            assert!(tokio::time::Instant::now() < end, "no event {reason}: {found:?}");
            again.tick().await;
        }
    }

    /// How often the event with this reason was told of an object.
    pub async fn times_told(&self, reason: &str, of: &Allocation) -> i32 {
        let api: Api<k8s_openapi::api::events::v1::Event> = Api::all(self.world.0.clone());
        let all = api.list(&kube::api::ListParams::default()).await.unwrap().items;
        let of_it = all.iter().filter(|e| e.reason.as_deref() == Some(reason)).filter(|e| {
            e.regarding.as_ref().and_then(|regarding| regarding.uid.as_deref()) == Some(uid(of).as_str())
        });
        of_it.map(|e| e.series.as_ref().map_or(1, |series| series.count)).sum()
    }

    /// Waits for an event with this reason and words of its note.
    pub async fn told(&self, reason: &str, words: &str) {
        let api: Api<k8s_openapi::api::events::v1::Event> = Api::all(self.world.0.clone());
        let end = tokio::time::Instant::now() + super::DEADLINE;
        let mut again = tokio::time::interval(std::time::Duration::from_millis(10));
        loop {
            let all = api.list(&kube::api::ListParams::default()).await.unwrap().items;
            let is = |e: &k8s_openapi::api::events::v1::Event| {
                e.reason.as_deref() == Some(reason)
                    && e.note.as_ref().is_some_and(|note| note.contains(words))
            };
            if all.iter().any(is) {
                return;
            }
            assert!(tokio::time::Instant::now() < end, "no event {reason} with \"{words}\": {all:#?}");
            again.tick().await;
        }
    }

    /// A Secret in the default namespace.
    pub async fn secret(&self, name: &str, value: &str) {
        let api: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(self.world.0.clone(), "default");
        let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "stringData": { "password": value } });
        let object: k8s_openapi::api::core::v1::Secret = serde_json::from_value(object).unwrap();
        api.create(&kube::api::PostParams::default(), &object).await.unwrap();
    }
}

impl Drop for Rig {
    /// A test that failed leaves mounts and tasks; they would outlive it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            end_tasks(self.place.data.path());
        }
        let mut left = mounts_beneath(self.place.data.path());
        left.extend(mounts_beneath(self.files.path()));
        for point in left.iter().rev() {
            let _gone = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Kills the shims and tasks whose records are still there.
fn end_tasks(data: &std::path::Path) {
    let tasks = std::fs::read_dir(data.join("tasks")).into_iter().flatten().flatten().map(|task| task.path());
    // One that has ended has given its number back.
    let running = tasks.filter(|task| !task.join("exit.json").exists());
    for state in running.filter_map(|task| std::fs::read(task.join("state.json")).ok()) {
        let Ok(state) = serde_json::from_slice::<Value>(&state) else { continue };
        for who in ["shim", "task"] {
            let pid = state[who]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                // It may have ended by itself.
                let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// Whether a condition has this status.
pub fn condition(object: &Value, kind: &str, status: &str) -> bool {
    find(object, kind).is_some_and(|c| c["status"] == status)
}

/// The reason of a condition.
pub fn condition_reason<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    find(object, kind).and_then(|c| c["reason"].as_str())
}

/// The sentence of a condition.
pub fn condition_message<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    find(object, kind).and_then(|c| c["message"].as_str())
}

fn find<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind)
}

fn merge(into: &mut Value, from: &Value) {
    if let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) {
        for (key, value) in from {
            into.insert(key.clone(), value.clone());
        }
    }
}
