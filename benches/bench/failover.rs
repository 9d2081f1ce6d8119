//! B13: a machine goes off with half of the volumes, and a person fences it: how long until what was published there is
//! published on another one, and what that writes.
//!
//! The two nodes are real daemons, each with processes and mounts of its own that end together, as a machine's do.
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::fleet::driver_ready;
use super::report::{Report, Row, Target};
use super::served::{Served, allocation, claim, create};
use super::stack::wharfline;
use super::wire::{Caller, Door, MERGE, OURS};

const ROUNDS: usize = 3;
const VOLUMES: usize = 40;
/// What is written late, such as a condition, is written in this time.
const SETTLE: Duration = Duration::from_secs(3);
const LOST: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(5);

/// A machine. Its power goes off with this value.
struct Machine(Child);

impl Machine {
    fn start(name: &str, served: &Served, place: &Path) -> Self {
        let token = Command::new(wharfline())
            .arg("--kubeconfig")
            .arg(served.kubeconfig())
            .args(["token", "create"])
            .output();
        let token = String::from_utf8(token.unwrap().stdout).unwrap();
        let log = std::fs::File::create(place.join(format!("{name}.log"))).unwrap();
        let mut child = Command::new("unshare")
            .args(["--fork", "--pid", "--mount", "--mount-proc", "--kill-child"])
            .arg(wharfline())
            .args(["node", "--server", &served.url, "--token", token.trim(), "--name", name, "--data-dir"])
            .arg(place.join(name))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let log = || std::fs::read_to_string(place.join(format!("{name}.log"))).unwrap_or_default();
        assert!(line.starts_with("ready "), "{name} is not ready\n{}", log());
        Self(child)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have gone off already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What changed since the fence: how often each object was written.
type Written = Arc<Mutex<BTreeMap<String, usize>>>;

/// What one fence cost.
struct Cost {
    seconds: f64,
    per_volume: f64,
    besides: usize,
}

pub(crate) async fn measure(report: &mut Report) {
    let mut costs = Vec::new();
    for _ in 0..ROUNDS {
        costs.push(once().await);
    }
    let each = |of: fn(&Cost) -> f64| costs.iter().map(of).collect::<Vec<_>>();
    report.add(Row {
        target: Some(Target::Value(5.0)),
        more: json!({ "volumes": VOLUMES, "nodes": 2 }),
        ..Row::new(
            "B13",
            format!("fence to {} volumes published elsewhere", VOLUMES / 2),
            "s",
            each(|c| c.seconds),
        )
    });
    report.add(Row::new("B13", "writes per volume that moved", "", each(|c| c.per_volume)));
    report.add(Row {
        target: Some(Target::Value(0.0)),
        ..Row::new("B13", "writes to what did not move", "", each(|c| c.besides as f64))
    });
}

async fn once() -> Cost {
    let served = Served::start("embedded");
    let place = tempfile::Builder::new().prefix("wfm").tempdir_in("/var/tmp").unwrap();
    let mut admin = served.admin.caller();
    let mut machines: BTreeMap<&str, Machine> = BTreeMap::new();
    for name in ["n0", "n1"] {
        machines.insert(name, Machine::start(name, &served, place.path()));
    }
    driver(&mut admin, place.path()).await;
    driver_ready(&mut admin, 2).await;
    for n in 0..VOLUMES {
        let name = format!("c{n:02}");
        let mut user = allocation(&name);
        user["spec"]["onNodeLost"] = json!("Rebind");
        create(&mut admin, "namespaces/default/volumeclaims", &claim(&name)).await;
        create(&mut admin, "namespaces/default/allocations", &user).await;
    }
    let all = until(&mut admin, "everything is published", |all| {
        all.values().filter(|u| is_up(u)).count() == VOLUMES
    })
    .await;
    let lost = "n0";
    let users: BTreeSet<String> =
        all.iter().filter(|(_, u)| u["status"]["nodeName"] == lost).map(|(n, _)| n.clone()).collect();
    assert!(users.len() > 1 && users.len() < VOLUMES, "{} of {VOLUMES} are on one node", users.len());
    let moved = concerned(&mut admin, lost, &users).await;
    machines.remove(lost);
    silent(&mut admin, lost).await;
    // Nothing but the fence sets anything going.
    tokio::time::sleep(SETTLE).await;

    let (written, mut watches) = (Written::default(), JoinSet::new());
    for plural in ["volumes", "volumeattachments", "volumeclaims", "allocations"] {
        count(&served.admin, &mut admin, plural, (&written, &mut watches)).await;
    }
    let agent = admin.done(Method::GET, &format!("{OURS}/nodeagents/{lost}"), None).await;
    let taint = json!({ "spec": { "taints": [{ "key": "wharfline.dev/out-of-service",
        "value": agent["status"]["bootId"], "effect": "NoExecute" }] } });
    let fenced = Instant::now();
    admin.done(Method::PATCH, &format!("/api/v1/nodes/{lost}"), Some((MERGE, &taint))).await;
    let elsewhere = |u: &Value| is_up(u) && u["status"]["nodeName"] != lost;
    until(&mut admin, "it is published elsewhere", |all| users.iter().all(|name| elsewhere(&all[name])))
        .await;
    let seconds = fenced.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    drop(watches);
    // An attachment on the new node belongs to what moved there.
    let attachments = list(&mut admin, "volumeattachments").await;
    let of = |name: &str| {
        attachments.iter().find(|a| a["metadata"]["name"] == name).map(|a| a["spec"]["volume"].as_str())
    };
    let written = written.lock().unwrap().clone();
    let belongs = |key: &String| {
        let name = key.split_once('/').unwrap().1;
        moved.contains(name) || of(name).flatten().is_some_and(|volume| moved.contains(volume))
    };
    let besides: Vec<_> = written.iter().filter(|(key, _)| !belongs(key)).collect();
    if !besides.is_empty() {
        println!("written although it did not move: {besides:?}");
    }
    let besides = besides.into_iter().map(|(_, times)| times).sum();
    let total: usize = written.values().sum();
    Cost { seconds, per_volume: (total - besides) as f64 / users.len() as f64, besides }
}

/// The driver of this program on every node, over one place.
async fn driver(admin: &mut Caller, place: &Path) {
    let volumes = place.join("backend");
    let program = std::env::current_exe().unwrap();
    let command = json!([program, "as-plugin", "${CSI_ENDPOINT}", volumes, "quick", "${NODE_NAME}"]);
    let plugin = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "Plugin", "metadata": { "name": "null" },
        "spec": { "instances": [{ "name": "all", "role": "Monolith", "placement": { "everyNode": {} },
            "runtime": { "process": { "command": command } } }] } });
    create(admin, "plugins", &plugin).await;
    let class = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClass", "metadata": { "name": "null" },
        "spec": { "plugin": "null", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate" } });
    create(admin, "volumeclasses", &class).await;
}

fn is_up(user: &Value) -> bool {
    user["status"]["volumes"][0]["published"] == "Up"
}

async fn list(admin: &mut Caller, plural: &str) -> Vec<Value> {
    let mut list = admin.done(Method::GET, &format!("{OURS}/{plural}"), None).await;
    list["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
}

/// Waits until something holds of the allocations of people.
async fn until(
    admin: &mut Caller,
    what: &str,
    holds: impl Fn(&BTreeMap<String, Value>) -> bool,
) -> BTreeMap<String, Value> {
    let end = Instant::now() + LOST;
    loop {
        let all = list(admin, "namespaces/default/allocations").await;
        let all = all
            .into_iter()
            .map(|user| (user["metadata"]["name"].as_str().unwrap().to_owned(), user))
            .collect();
        if holds(&all) {
            return all;
        }
        assert!(Instant::now() < end, "never came true: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// The names of all that a lost node has a part in: what is used there, and what it makes the calls of.
async fn concerned(admin: &mut Caller, lost: &str, users: &BTreeSet<String>) -> BTreeSet<String> {
    let mut all = users.clone();
    for volume in list(admin, "volumes").await {
        let claim = volume["spec"]["claimRef"]["name"].as_str().unwrap_or_default();
        if users.contains(claim) || volume["status"]["controller"]["nodeName"] == lost {
            all.insert(volume["metadata"]["name"].as_str().unwrap().to_owned());
        }
    }
    for attachment in list(admin, "volumeattachments").await {
        if all.contains(attachment["spec"]["volume"].as_str().unwrap()) {
            all.insert(attachment["metadata"]["name"].as_str().unwrap().to_owned());
        }
    }
    all
}

/// Waits until the server has noticed that a node says nothing any more.
async fn silent(admin: &mut Caller, node: &str) {
    let end = Instant::now() + LOST;
    loop {
        let node = admin.done(Method::GET, &format!("/api/v1/nodes/{node}"), None).await;
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|c| c["type"] == "Ready" && c["status"] != "True") {
            return;
        }
        assert!(Instant::now() < end, "the node was never missed");
        tokio::time::sleep(LOOK).await;
    }
}

/// Counts the writes of one kind from now on.
async fn count(
    door: &Door,
    admin: &mut Caller,
    plural: &'static str,
    (written, watches): (&Written, &mut JoinSet<()>),
) {
    let now = super::served::revision(admin).await;
    let mut lines = door.watch(&format!("{OURS}/{plural}?watch=true&resourceVersion={now}")).await.unwrap();
    let written = Arc::clone(written);
    watches.spawn(async move {
        while let Some(line) = lines.next().await {
            let event: Value = serde_json::from_slice(&line).unwrap();
            let meta = &event["object"]["metadata"];
            // What plugins run in is not what fails over.
            if event["type"] != "BOOKMARK" && meta["namespace"] != "wharfline-system" {
                let key = format!("{plural}/{}", meta["name"].as_str().unwrap_or_default());
                *written.lock().unwrap().entry(key).or_default() += 1;
            }
        }
    });
}
