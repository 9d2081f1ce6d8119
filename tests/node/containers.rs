//! Tasks of the runtime `oci` before their start: nothing waits for an image but the task that needs it.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::watch;
use wharfline::api::{Allocation, NodeAgent};
use wharfline::node::Machine;
use wharfline::server::Server;
use wharfline::sys::Containers;
use wharfline::sys::containers::{Astray, DeviceNode, Equipment, Image, Lack, Layout, NoDevice};
use wharfline::sys::image::ImageError;

use crate::support::node::{
    DEADLINE, Daemon, NODE, Place, World, condition_message, condition_reason, server, until,
};

/// A machine that never gets an image ready, or says that there is none.
#[derive(Debug, Default)]
struct Slow {
    asked: Mutex<Vec<PathBuf>>,
    /// Whether images are missing instead.
    missing: watch::Sender<bool>,
    runc: watch::Sender<bool>,
    collected: Mutex<u32>,
}

#[async_trait]
impl Containers for Slow {
    async fn check(&self) -> Result<Equipment, Lack> {
        if !*self.runc.borrow() {
            return Err(Lack::Runc { looked: vec!["/nowhere".into()] });
        }
        Ok(Equipment {
            runc: "/nowhere/runc".into(),
            capabilities: BTreeSet::new(),
            hostname: NODE.to_owned(),
            cgroups: Layout::V2,
            resolv_conf: false,
            hosts: false,
        })
    }

    async fn image(&self, archive: &Path, _: Option<&str>) -> Result<Arc<Image>, ImageError> {
        self.asked.lock().unwrap().push(archive.to_owned());
        self.missing.subscribe().wait_for(|missing| *missing).await.unwrap();
        Err(ImageError::NotFound { image: archive.to_owned() })
    }

    async fn remove_unused(&self, _: BTreeSet<PathBuf>) -> Result<usize, ImageError> {
        *self.collected.lock().unwrap() += 1;
        Ok(0)
    }

    async fn resolve(&self, path: &Path, _: &[PathBuf]) -> Result<PathBuf, Astray> {
        Ok(path.to_owned())
    }

    async fn device(&self, path: &Path) -> Result<DeviceNode, NoDevice> {
        Err(NoDevice::Other { path: path.to_owned() })
    }
}

struct Bench {
    place: Place,
    world: World,
    machine: Arc<Slow>,
    daemon: Daemon,
    _server: Server,
}

impl Bench {
    async fn new(runc: bool) -> Self {
        let (place, server, machine) = (Place::new(), server().await, Arc::new(Slow::default()));
        machine.runc.send_replace(runc);
        let parts =
            Machine { containers: Some(machine.clone()), units: None, containerd: None, ..place.machine() };
        let daemon = Daemon::start_on(&server, parts, place.options()).await;
        Self { place, world: World::new(&server), machine, daemon, _server: server }
    }

    async fn given(&self, name: &str, runtime: Value) {
        let object = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation", "metadata": { "name": name },
            "spec": { "tasks": [{ "name": "t", "stopGracePeriod": "1s", "runtime": runtime }] } });
        let api = self.world.namespaced::<Allocation>();
        self.world.create(&api, object).await;
        self.world.status(&api, name, json!({ "nodeName": NODE })).await;
    }

    async fn container(&self, name: &str, fields: Value) {
        let mut oci = json!({ "archive": "${DATA_DIR}/image-archives/app.tar" });
        oci.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.given(name, json!({ "oci": oci })).await;
    }

    /// The sentence with which an allocation says so.
    async fn told(&self, name: &str, reason: &str) -> String {
        let told = |a: &Value| condition_reason(a, "Ready") == Some(reason);
        let found = self.world.until(&self.world.namespaced::<Allocation>(), name, reason, told).await;
        let conditions = found.status.unwrap().conditions;
        conditions.into_iter().find(|c| c.kind == "Ready").unwrap().message
    }

    async fn end(self, names: &[&str]) {
        let api = self.world.namespaced::<Allocation>();
        for name in names {
            self.world.delete(&api, name).await;
            self.world.until(&api, name, "stopped", |a| a["status"]["phase"] == "Stopped").await;
            self.world.let_go(&api, name).await;
        }
        self.daemon.stop().await;
        self.place.clear();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_waits_for_its_image_and_nothing_else_does() {
    let bench = Bench::new(true).await;
    bench.container("slow", json!({})).await;
    let told = bench.told("slow", "ImageNotReady").await;
    assert_eq!(told, "task t: waits until its image is unpacked");
    let archive = bench.place.data.path().join("image-archives/app.tar");
    assert_eq!(*bench.machine.asked.lock().unwrap(), [archive]);
    let script = json!({ "process": { "command": ["/bin/sh", "-c", "sleep 1000"] } });
    bench.given("beside", script).await;
    bench.told("beside", "Running").await;
    // Its image is still not there: it stops all the same, and its daemon ends.
    bench.machine.missing.send_replace(false);
    let machine = Arc::clone(&bench.machine);
    let api = bench.world.namespaced::<Allocation>();
    bench.world.delete(&api, "slow").await;
    bench.world.until(&api, "slow", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    bench.world.let_go(&api, "slow").await;
    bench.container("last", json!({})).await;
    bench.told("last", "ImageNotReady").await;
    bench.end(&["beside", "last"]).await;
    assert!(
        *machine.collected.lock().unwrap() >= 1,
        "layers are looked through when an allocation is forgotten"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_cannot_be_used_is_told_and_read_again() {
    let bench = Bench::new(true).await;
    bench.machine.missing.send_replace(true);
    bench.container("app", json!({})).await;
    let told = bench.told("app", "ImageUnusable").await;
    assert!(told.contains("there is no such file") && told.contains("tried again at"), "{told}");
    let api = bench.world.namespaced::<Allocation>();
    let paused = |a: &Value| a["status"]["tasks"][0]["nextAttemptTime"].is_string();
    bench.world.until(&api, "app", "to be tried again", paused).await;
    let machine = Arc::clone(&bench.machine);
    until(|| machine.asked.lock().unwrap().len() >= 3, "read three times").await;
    // One that takes long: what is known of the image stays told, and nothing else.
    bench.machine.missing.send_replace(false);
    let trying = |a: &Value| condition_message(a, "Ready").is_some_and(|m| !m.contains("tried again at"));
    let trying = bench.world.until(&api, "app", "being tried again", trying).await;
    let trying = serde_json::to_value(&trying).unwrap();
    assert_eq!(condition_reason(&trying, "Ready"), Some("ImageUnusable"), "{trying}");
    assert!(condition_message(&trying, "Ready").unwrap().contains("there is no such file"), "{trying}");
    assert!(!paused(&trying), "{trying}");
    bench.end(&["app"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_of_each_reason_for_which_a_task_waits() {
    let bench = Bench::new(false).await;
    bench.machine.missing.send_replace(true);
    bench.container("app", json!({})).await;
    bench.told("app", "RuntimeMissing").await;
    bench.machine.runc.send_replace(true);
    bench.told("app", "ImageUnusable").await;
    let api = bench.world.all::<k8s_openapi::api::events::v1::Event>();
    let reasons = ["RuntimeMissing", "ImageUnusable"];
    let end = tokio::time::Instant::now() + DEADLINE;
    let mut again = tokio::time::interval(std::time::Duration::from_millis(10));
    loop {
        let told = api.list(&kube::api::ListParams::default()).await.unwrap().items;
        let is = |reason: &&str| told.iter().any(|event| event.reason.as_deref() == Some(*reason));
        if reasons.iter().all(is) {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "{told:#?}");
        again.tick().await;
    }
    bench.end(&["app"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_node_lacks_or_does_not_allow_is_told_and_seen() {
    let bench = Bench::new(false).await;
    let agents = bench.world.all::<NodeAgent>();
    let without = |a: &Value| a["status"]["runtimes"] == json!(["external", "process"]);
    let agent = bench.world.until(&agents, NODE, "without oci", without).await;
    let missing = agent.status.unwrap().missing_runtimes;
    let oci = missing.iter().find(|one| one.name == "oci").map(|one| one.message.as_str());
    assert_eq!(oci, Some("runc is not installed; it was looked for in /nowhere"), "{missing:?}");
    bench.container("app", json!({})).await;
    let told = bench.told("app", "RuntimeMissing").await;
    assert!(told.contains("runc is not installed; it was looked for in /nowhere"), "{told}");
    bench.machine.runc.send_replace(true);
    bench.told("app", "ImageNotReady").await;
    bench.given("unit", json!({ "systemd": { "command": ["/bin/true"] } })).await;
    let told = bench.told("unit", "RuntimeMissing").await;
    assert!(told.contains("systemd is not PID 1 of this machine"), "{told}");
    for (name, fields) in [
        ("privileged", json!({ "privileged": true })),
        ("devices", json!({ "devices": ["/dev/fuse"] })),
        ("paths", json!({ "hostPaths": [{ "path": "/srv/x", "mountPath": "/x" }] })),
    ] {
        let field = fields.as_object().unwrap().keys().next().unwrap().clone();
        bench.container(name, fields).await;
        let told = bench.told(name, "RuntimeNotAllowed").await;
        assert!(told.contains(&format!("does not allow {field}")), "{told}");
        // Nothing but another configuration of the node changes that.
        assert!(!told.contains("tried again at"), "{told}");
    }
    bench.end(&["app", "unit", "privileged", "devices", "paths"]).await;
}
