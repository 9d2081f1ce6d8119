//! Simulated nodes: what a daemon says to the server, from one process and without a machine.
//!
//! Each has a certificate of its own, takes and renews its lease as a daemon does, watches what a daemon watches, and
//! writes what a daemon writes once a driver has answered that it is done, which this driver always has. It knows no
//! failure and no way down, and keeps no journal: it is the server that is measured.
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use wharfline::run::join::LEASE;
use wharfline::server::{Issued, KEY};

use super::report::ms;
use super::served::Served;
use super::wire::{Caller, Door, JSON, MERGE, OURS};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/wharfline-system/leases";
/// How many nodes are made at once.
const JOINING: usize = 16;
/// Before a watch that ended is opened again.
const AGAIN: Duration = Duration::from_millis(100);

/// What a daemon watches: the kind, and the field that is its node's name.
const WATCHES: [(&str, &str); 5] = [
    ("volumes", "status.controller.nodeName"),
    ("volumeattachments", "spec.host.nodeName"),
    ("volumeattachments", "spec.nodeName"),
    ("allocations", "status.nodeName"),
    ("plugininstances", "spec.nodeName"),
];

/// A node that has joined.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) door: Door,
}

type Beats = Arc<Mutex<Vec<f64>>>;

/// Nodes at work. They stop with this value.
pub(crate) struct Fleet {
    tasks: JoinSet<()>,
    /// How often a watch ended that should not have.
    pub(crate) lost_watches: Arc<AtomicU64>,
    /// How long each renewal of a lease took, in milliseconds.
    pub(crate) beats: Beats,
}

/// What is stored of a node's key, as its certificate has it.
fn key_of(issued: &Issued) -> String {
    let (_, pem) = x509_parser::pem::parse_x509_pem(issued.certificate.as_bytes()).unwrap();
    let digest = ring::digest::digest(&ring::digest::SHA256, pem.parse_x509().unwrap().public_key().raw);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes nodes of these names; the first so many bear the label `driver`.
pub(crate) async fn members(served: &Served, names: &[String], labelled: usize) -> Vec<Member> {
    let mut members = Vec::new();
    for chunk in names.chunks(names.len().div_ceil(JOINING)) {
        let start = names.iter().position(|name| *name == chunk[0]).unwrap();
        let (url, authority) = (served.url.clone(), served.pki.ca_pem().to_owned());
        let issued: Vec<Issued> = chunk.iter().map(|name| served.pki.issue_node(name).unwrap()).collect();
        let (names, mut admin) = (chunk.to_vec(), served.admin.caller());
        members.push(tokio::spawn(async move {
            let mut made = Vec::new();
            for (n, (name, issued)) in names.into_iter().zip(issued).enumerate() {
                let labels = if start + n < labelled { json!({ "driver": "yes" }) } else { json!({}) };
                let meta = json!({ "name": name, "labels": labels, "annotations": { KEY: key_of(&issued) } });
                let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": meta });
                admin.done(Method::POST, "/api/v1/nodes", Some((JSON, &node))).await;
                let agent = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "NodeAgent",
                    "metadata": { "name": name }, "spec": {} });
                admin.done(Method::POST, &format!("{OURS}/nodeagents"), Some((JSON, &agent))).await;
                made.push(Member { door: Door::new(&url, &authority, &issued), name });
            }
            made
        }));
    }
    let mut all = Vec::new();
    for made in members {
        all.extend(made.await.unwrap());
    }
    all
}

impl Fleet {
    /// Lets them renew their leases, and `working` of them do all that nodes do.
    pub(crate) fn start(members: &[Member], working: usize) -> Self {
        let mut fleet = Self { tasks: JoinSet::new(), lost_watches: Arc::default(), beats: Beats::default() };
        let period = LEASE / 3;
        for (n, member) in members.iter().enumerate() {
            let at = period.mul_f64(n as f64 / members.len() as f64);
            fleet.tasks.spawn(live(member.clone(), at, Arc::clone(&fleet.beats)));
            if n >= working {
                continue;
            }
            let (tell, told) = mpsc::unbounded_channel();
            for (kind, (plural, field)) in WATCHES.iter().enumerate() {
                let path = format!("{OURS}/{plural}?watch=true&fieldSelector={field}%3D{}", member.name);
                let lost = Arc::clone(&fleet.lost_watches);
                fleet.tasks.spawn(follow(member.door.clone(), path, (kind, tell.clone()), lost));
            }
            fleet.tasks.spawn(work(member.clone(), told));
        }
        fleet
    }
}

/// Says that the node is there, and goes on saying so.
async fn live(member: Member, at: Duration, beats: Beats) {
    let (mut caller, name) = (member.door.caller(), &member.name);
    let now = stamp();
    let ready = condition("Ready", "Running", &now);
    let status = json!({ "status": { "incarnation": name, "bootId": format!("boot-{name}"), "kernel": "6.1.0",
        "version": "0.1.0", "runtimes": ["external", "process"], "hostPaths": ["/srv", "/mnt"],
        "leftovers": [], "stopped": false, "conditions": [ready] } });
    patch(&mut caller, &format!("{OURS}/nodeagents/{name}/status"), &status).await;
    let spec =
        || json!({ "holderIdentity": name, "leaseDurationSeconds": LEASE.as_secs(), "renewTime": stamp() });
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name },
        "spec": spec() });
    let path = format!("{LEASES}/{name}");
    let mut lease = loop {
        match caller.ask(Method::POST, LEASES, Some((JSON, &lease))).await {
            Some(answer) if answer.good() => break answer.value(),
            // In doubt: as a daemon, it looks what stands there.
            _ => match caller.ask(Method::GET, &path, None).await {
                Some(read) if read.good() => break read.value(),
                _ => tokio::time::sleep(AGAIN).await,
            },
        }
    };
    let mut beat = tokio::time::interval_at(tokio::time::Instant::now() + at, LEASE / 3);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        beat.tick().await;
        lease["spec"] = spec();
        let sent = Instant::now();
        match caller.ask(Method::PUT, &path, Some((JSON, &lease))).await {
            Some(answer) if answer.good() => {
                beats.lock().unwrap().push(ms(sent.elapsed()));
                lease = answer.value();
            }
            // In doubt: as a daemon, it looks what stands there.
            _ => {
                if let Some(read) = caller.ask(Method::GET, &path, None).await
                    && read.good()
                {
                    lease = read.value();
                }
            }
        }
    }
}

/// Hands on what a watch shows; opens it again when it ends.
async fn follow(
    door: Door,
    path: String,
    (kind, tell): (usize, mpsc::UnboundedSender<(usize, Bytes)>),
    lost: Arc<AtomicU64>,
) {
    loop {
        if let Some(mut lines) = door.watch(&path).await {
            while let Some(line) = lines.next().await {
                if tell.send((kind, line)).is_err() {
                    return;
                }
            }
            lost.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The part of a daemon that acts on what it sees.
struct Worker {
    name: String,
    caller: Caller,
    /// What was said already, for what the watch shows may be older.
    said: HashSet<String>,
    /// Allocations that were seen here, by uid.
    allocations: HashMap<String, Value>,
    /// Attachments that are up here for allocations that were not seen yet, by their uids.
    early: HashMap<String, Value>,
}

async fn work(member: Member, mut told: mpsc::UnboundedReceiver<(usize, Bytes)>) {
    let mut worker = Worker {
        caller: member.door.caller(),
        name: member.name,
        said: HashSet::new(),
        allocations: HashMap::new(),
        early: HashMap::new(),
    };
    while let Some((kind, line)) = told.recv().await {
        let event: Value = serde_json::from_slice(&line).unwrap_or_default();
        let object = &event["object"];
        if !matches!(event["type"].as_str(), Some("ADDED" | "MODIFIED")) || is_leaving(object) {
            continue;
        }
        match kind {
            0 => worker.create(object).await,
            1 => worker.attach(object).await,
            2 => worker.stage(object).await,
            3 => worker.allocation(object).await,
            _ => worker.register(object).await,
        }
    }
}

fn is_leaving(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn stamp() -> String {
    format!("{:.6}", Timestamp::now())
}

fn condition(kind: &str, reason: &str, now: &str) -> Value {
    json!({ "type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now })
}

fn call(method: &str) -> Value {
    json!({ "method": method, "code": "OK", "startTime": stamp(), "durationMillis": 0, "attempt": 1 })
}

/// Writes until the server has it, as a daemon does.
async fn patch(caller: &mut Caller, path: &str, status: &Value) {
    loop {
        match caller.ask(Method::PATCH, path, Some((MERGE, status))).await {
            // What is gone or decided otherwise since is not for this node any more.
            Some(answer) if answer.good() || matches!(answer.code, 404 | 409) => return,
            Some(answer) if (400..500).contains(&answer.code) && answer.code != 429 => {
                panic!("{path}: {}", String::from_utf8_lossy(&answer.body))
            }
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
}

impl Worker {
    async fn say(&mut self, plural: &str, object: &Value, what: &str, status: &Value) {
        if self.said.insert(format!("{} {what}", text(object, "/metadata/uid"))) {
            let name = text(object, "/metadata/name");
            let path = match text(object, "/metadata/namespace") {
                "" => format!("{OURS}/{plural}/{name}/status"),
                namespace => format!("{OURS}/namespaces/{namespace}/{plural}/{name}/status"),
            };
            patch(&mut self.caller, &path, &json!({ "status": status })).await;
        }
    }

    async fn create(&mut self, volume: &Value) {
        let status = &volume["status"];
        if status["exists"] == "Up" {
            return;
        }
        let epoch = &status["controller"]["epoch"];
        let part = json!({ "exists": "Up", "handle": text(volume, "/metadata/name"), "capacity": "1Mi",
            "calls": [call("CreateVolume")], "observedEpoch": epoch });
        self.say("volumes", volume, &format!("exists {epoch}"), &part).await;
    }

    async fn attach(&mut self, attachment: &Value) {
        let (spec, said) = (&attachment["spec"], &attachment["status"]["controller"]);
        let used = spec["allocations"].as_array().is_some_and(|all| !all.is_empty());
        let epoch = &spec["host"]["epoch"];
        if !used || (said["attached"] == "Up" && said["epoch"] == *epoch) {
            return;
        }
        let part = json!({ "controller": { "attached": "Up", "epoch": epoch,
            "calls": [call("ControllerPublishVolume")] } });
        self.say("volumeattachments", attachment, &format!("attached {epoch}"), &part).await;
    }

    async fn stage(&mut self, attachment: &Value) {
        if attachment["status"]["controller"]["attached"] != "Up" {
            return;
        }
        let now = stamp();
        let part = json!({ "node": { "staged": "Up", "closed": false,
                "calls": [call("NodeStageVolume"), call("NodePublishVolume")] },
            "conditions": [condition("Ready", "Ready", &now)] });
        self.say("volumeattachments", attachment, "staged", &part).await;
        for uid in
            attachment["spec"]["allocations"].as_array().into_iter().flatten().filter_map(Value::as_str)
        {
            match self.allocations.get(uid).cloned() {
                Some(allocation) => self.publish(&allocation, attachment).await,
                None => drop(self.early.insert(uid.to_owned(), attachment.clone())),
            }
        }
    }

    async fn publish(&mut self, allocation: &Value, attachment: &Value) {
        let now = stamp();
        let mut conditions = allocation["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|known| known["type"] == "Placed");
        conditions.push(condition("VolumesReady", "Published", &now));
        conditions.push(condition("Ready", "Running", &now));
        let volume = &allocation["spec"]["volumes"][0]["name"];
        let path = format!("/var/lib/wharfline/volumes/publish/{}", text(allocation, "/metadata/uid"));
        let volumes = json!([{ "name": volume, "volume": attachment["spec"]["volume"], "published": "Up", "path": path }]);
        let part = json!({ "phase": "Running", "volumes": volumes, "conditions": conditions });
        self.say("allocations", allocation, "published", &part).await;
    }

    async fn allocation(&mut self, allocation: &Value) {
        let uid = text(allocation, "/metadata/uid");
        if !allocation["spec"]["tasks"].as_array().is_none_or(Vec::is_empty) {
            let now = stamp();
            let placed = allocation["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let mut conditions: Vec<_> =
                placed.into_iter().filter(|known| known["type"] == "Placed").collect();
            conditions.push(condition("Ready", "Running", &now));
            let part = json!({ "phase": "Running", "tasks": [{ "name": "plugin", "state": "Running" }],
                "conditions": conditions });
            self.say("allocations", allocation, "running", &part).await;
            return;
        }
        if let Some(attachment) = self.early.remove(uid) {
            self.publish(allocation, &attachment).await;
        }
        self.allocations.insert(uid.to_owned(), allocation.clone());
    }

    async fn register(&mut self, instance: &Value) {
        let now = stamp();
        let conditions: Vec<_> = ["Connected", "Probed", "Fingerprinted", "Ready"]
            .iter()
            .map(|kind| condition(kind, kind, &now))
            .collect();
        let part = json!({ "provider": { "name": "null.csi.example", "version": "1" }, "nodeId": self.name,
            "capabilities": ["plugin/CONTROLLER_SERVICE", "controller/CREATE_DELETE_VOLUME",
                "controller/PUBLISH_UNPUBLISH_VOLUME", "node/STAGE_UNSTAGE_VOLUME"],
            "since": now, "conditions": conditions });
        self.say("plugininstances", instance, "ready", &part).await;
    }
}

/// Waits until the driver is ready on so many nodes.
pub(crate) async fn driver_ready(admin: &mut Caller, nodes: usize) {
    let wait = async {
        loop {
            let plugin = admin.done(Method::GET, &format!("{OURS}/plugins/null"), None).await;
            if plugin["status"]["nodes"]["healthy"] == json!(nodes) {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("the driver never got ready");
}
