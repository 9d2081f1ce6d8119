//! Memory and processor time of what is idle: the quickstart runs, and nobody asks anything.
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::PostParams;
use serde_json::{Value, json};
use wharfline::api::{API_VERSION, VolumeClaim, VolumeClass};

use super::report::{Report, Row, Target};
use super::stack::{Stack, World, client};

/// How long nothing happens.
const IDLE: Duration = Duration::from_secs(60);
/// What a start leaves to do settles in this time.
const SETTLE: Duration = Duration::from_secs(15);
/// Ticks of a second in /proc, whatever the kernel's own are.
const TICKS: f64 = 100.0;
const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/quickstart.yaml");

pub(crate) async fn measure(report: &mut Report) {
    let mut whole = Stack::new();
    whole.up();
    quickstart(&whole).await;
    let apart = Stack::new();
    let server = half("as-server", apart.data.path());
    let node = half("as-node", apart.data.path());
    quickstart(&apart).await;
    let shims: Vec<u32> = shims(whole.data.path());

    tokio::time::sleep(SETTLE).await;
    let processes =
        [("up, all in one", whole.pid()), ("server half", server.0.id()), ("node half", node.0.id())];
    let before: Vec<Usage> = processes.iter().map(|(_, pid)| Usage::of(*pid)).collect();
    let (start, revision) = (Instant::now(), revision(&whole).await);
    tokio::time::sleep(IDLE).await;
    let seconds = start.elapsed().as_secs_f64();
    let after: Vec<Usage> = processes.iter().map(|(_, pid)| Usage::of(*pid)).collect();
    let writes = self::revision(&whole).await - revision;

    for ((name, _), (before, after)) in processes.iter().zip(before.iter().zip(&after)) {
        let percent = (after.cpu - before.cpu) / seconds * 100.0;
        let (memory, share) = match *name {
            "server half" => (Some(60.0), None),
            "node half" => (Some(25.0), Some(0.3)),
            _ => (None, Some(0.3)),
        };
        let wakes = (after.switches - before.switches) / seconds;
        let more =
            json!({ "wakesPerSecond": wakes, "anonymousMb": after.anonymous, "threads": after.threads });
        report.add(Row {
            target: memory.map(Target::Value),
            more: more.clone(),
            ..Row::new("idle", format!("{name}: resident"), "MB", vec![after.resident])
        });
        report.add(Row::new("idle", format!("{name}: of that anonymous"), "MB", vec![after.anonymous]));
        report.add(Row {
            target: share.map(Target::Value),
            more,
            ..Row::new("idle", format!("{name}: share of a core, 60 s"), "%", vec![percent])
        });
        report.add(Row::new("idle", format!("{name}: wake-ups"), "/s", vec![wakes]));
    }
    let memory: Vec<Usage> = shims.iter().map(|pid| Usage::of(*pid)).collect();
    let each = |value: fn(&Usage) -> f64| memory.iter().map(value).collect::<Vec<_>>();
    report.add(Row::new("idle", "a shim: resident", "MB", each(|usage| usage.resident)));
    report.add(Row::new("idle", "a shim: of that anonymous", "MB", each(|usage| usage.anonymous)));
    report.add(Row::new("idle", "store writes", "/min", vec![writes / seconds * 60.0]));

    whole.end();
    drop((node, server));
    apart.end();
}

/// How many claims wait.
const WAITING: usize = 10_000;

/// The same with claims that wait, half of them for a plugin that is not there, half for their first user.
pub(crate) async fn waiting(report: &mut Report) {
    let mut stack = Stack::new();
    stack.up();
    let client = stack.client().await;
    let classes: kube::Api<VolumeClass> = kube::Api::all(client.clone());
    for (name, mode) in CLASSES {
        let class = json!({ "apiVersion": API_VERSION, "kind": "VolumeClass", "metadata": { "name": name },
            "spec": { "plugin": "none", "volumeBindingMode": mode } });
        classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
    }
    let claims: kube::Api<VolumeClaim> = kube::Api::namespaced(client, "default");
    futures::stream::iter(0..WAITING)
        .for_each_concurrent(64, |number| {
            let (class, _) = CLASSES[number % 2];
            let claim = json!({ "apiVersion": API_VERSION, "kind": "VolumeClaim",
                "metadata": { "name": format!("c{number:05}") },
                "spec": { "volumeClassName": class, "accessModes": ["SingleNodeWriter"],
                    "resources": { "requests": { "storage": "1Mi" } } } });
            let claim: VolumeClaim = serde_json::from_value(claim).unwrap();
            let claims = &claims;
            async move { drop(claims.create(&PostParams::default(), &claim).await.unwrap()) }
        })
        .await;
    tokio::time::sleep(SETTLE).await;
    let (start, before, from) = (Instant::now(), Usage::of(stack.pid()), revision(&stack).await);
    tokio::time::sleep(IDLE).await;
    let (seconds, after, to) =
        (start.elapsed().as_secs_f64(), Usage::of(stack.pid()), revision(&stack).await);
    let percent = (after.cpu - before.cpu) / seconds * 100.0;
    report.add(Row {
        target: Some(Target::Value(0.3)),
        more: json!({ "claims": WAITING, "residentMb": after.resident }),
        ..Row::new("waiting", format!("up, {WAITING} claims wait: share of a core, 60 s"), "%", vec![percent])
    });
    report.add(Row::new("waiting", "store writes", "/min", vec![(to - from) / seconds * 60.0]));
    stack.end();
}

/// The classes of claims that wait.
const CLASSES: [(&str, &str); 2] = [("at-once", "Immediate"), ("late", "WaitForFirstConsumer")];

/// Applies the quickstart and waits until its volume is published.
async fn quickstart(stack: &Stack) {
    assert!(stack.command(&["apply", "-f", MANIFEST]).status().unwrap().success());
    let world = World::new(stack.client().await);
    world.published.all_are(&["hello".to_owned()], &1).await;
}

async fn revision(stack: &Stack) -> f64 {
    let client = client(&stack.data.path().join("kubeconfig")).await;
    let claims: kube::Api<wharfline::api::VolumeClaim> = kube::Api::all(client);
    let list = claims.list(&kube::api::ListParams::default()).await.unwrap();
    list.metadata.resource_version.unwrap().parse().unwrap()
}

/// A child that ends with its owner.
struct Half(Child);

impl Drop for Half {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This program as one half of Wharfline, once it is ready.
fn half(role: &str, data: &Path) -> Half {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(role)
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "ready", "{role}");
    Half(child)
}

/// The shims of a data directory: their command line names a directory of a task.
/// The shims of the tasks beneath a data directory.
pub(crate) fn shims(data: &Path) -> Vec<u32> {
    let wanted = data.join("tasks");
    let named = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        words.get(1) == Some(&&b"shim"[..])
            && String::from_utf8_lossy(&line).contains(wanted.to_str().unwrap())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(named).collect()
}

/// What a process has used.
#[derive(Debug)]
pub(crate) struct Usage {
    /// Seconds, of user and kernel.
    pub(crate) cpu: f64,
    /// Megabytes.
    pub(crate) resident: f64,
    /// Megabytes that no file backs.
    pub(crate) anonymous: f64,
    /// Times that a thread of it gave up the processor by itself.
    switches: f64,
    threads: Value,
}

impl Usage {
    /// What a process has used up to now.
    pub(crate) fn of(pid: u32) -> Self {
        let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, key: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(key));
            let value = line.and_then(|line| line.split_whitespace().nth(1));
            value.and_then(|value| value.parse().ok()).unwrap_or_default()
        };
        let stat = read(format!("/proc/{pid}/stat"));
        let fields: Vec<f64> = stat
            .rsplit_once(") ")
            .map(|(_, rest)| rest.split(' ').map(|word| word.parse().unwrap_or_default()).collect())
            .unwrap_or_default();
        let status = read(format!("/proc/{pid}/status"));
        let threads: Vec<_> =
            std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().collect();
        let one = |entry: &std::fs::DirEntry| {
            let text = read(format!("{}/status", entry.path().display()));
            let name = text.lines().next().unwrap_or_default().replace("Name:\t", "");
            (name, field(&text, "voluntary_ctxt_switches"))
        };
        let each: Vec<_> = threads.iter().map(one).collect();
        Self {
            cpu: (fields[11] + fields[12]) / TICKS,
            resident: field(&status, "VmRSS") / 1e3 * 1.024,
            anonymous: field(&status, "RssAnon") / 1e3 * 1.024,
            switches: each.iter().map(|(_, count)| count).sum(),
            threads: json!(each),
        }
    }
}
