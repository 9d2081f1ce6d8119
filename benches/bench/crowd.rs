//! B7 and B14: a server with 10,000 volumes and claims and 1,000 nodes that renew their leases and watch: what it
//! holds in memory, and how long it takes to answer meanwhile.
//!
//! One claim goes all the way to its volume; the others are its copies, written into etcd.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};
use futures::StreamExt;
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::etcd::{self, Etcd};
use super::fleet::{Fleet, Member, driver_ready, members};
use super::idle::Usage;
use super::report::{Report, Row, Target, median, ms};
use super::served::{Served, claim, create, null_plugin, revision};
use super::wire::{Caller, Door, JSON, MERGE, OURS};

const VOLUMES: usize = 10_000;
const NODES: usize = 1_000;
/// What a start and a fill leave to do settles in this time.
const SETTLE: Duration = Duration::from_secs(10);
/// How long answers are timed.
const TIMED: Duration = Duration::from_secs(45);
/// Between two rounds of a person's requests, four of which write: 20 writes in a second.
const PACE: Duration = Duration::from_millis(200);
/// How many objects a page of a list has.
const PAGE: usize = 100;
const CLAIMS: &str = "/apis/wharfline.dev/v1alpha1/namespaces/default/volumeclaims";

pub(crate) async fn measure(report: &mut Report, (memory, latency): (bool, bool)) {
    let floor = etcd::puts(1, Duration::from_secs(4)).await;
    let etcd = Etcd::start(1).await;
    let served = Served::start(&etcd.store());
    let mut admin = served.admin.caller();
    let names: Vec<String> = (0..NODES).map(|n| format!("n{n:04}")).collect();
    let nodes = members(&served, &names, 1).await;
    let fleet = Fleet::start(&nodes, 1);
    null_plugin(&mut admin, &json!({ "nodeSelector": { "driver": "yes" } })).await;
    driver_ready(&mut admin, 1).await;
    let before = Usage::of(served.pid()).resident;
    let bytes = fill(&etcd.client().await, &mut admin).await;
    let watched = watch(&nodes, &mut admin).await;
    tokio::time::sleep(SETTLE).await;
    if memory {
        let (mut resident, mut anonymous) = (Vec::new(), Vec::new());
        for _ in 0..super::ROUNDS {
            let usage = Usage::of(served.pid());
            resident.push(usage.resident);
            anonymous.push(usage.anonymous);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let more = json!({ "volumes": VOLUMES, "claims": VOLUMES, "nodes": NODES, "watchers": watched.len(),
            "objectBytesMb": bytes as f64 / 1e6, "beforeMb": before,
            "etcdMb": Usage::of(etcd.pid(0)).resident });
        let what = format!("server: {VOLUMES} volumes, claims, {NODES} nodes, watchers");
        report.add(Row { target: Some(Target::Value(150.0)), more, ..Row::new("B7", what, "MB", resident) });
        report.add(Row::new("B7", "of that anonymous", "MB", anonymous));
    }
    if latency {
        answers(report, &served, (&fleet, floor.p99)).await;
    }
    drop((watched, fleet));
}

/// Makes one claim and its volume, and as many copies of both as are wanted; how many bytes they have.
async fn fill(client: &Client, admin: &mut Caller) -> usize {
    create(admin, "namespaces/default/volumeclaims", &claim("template")).await;
    let wait = async {
        loop {
            let made = admin.done(Method::GET, &format!("{CLAIMS}/template"), None).await;
            if made["status"]["phase"] == "Bound" {
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                return (text(&made["metadata"]["uid"]), text(&made["status"]["volumeName"]));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (claim, volume) =
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the first claim was never bound");
    // What comes last, such as the volume's own condition, is copied, too.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let made = admin.done(Method::GET, &format!("{OURS}/volumes/{volume}"), None).await;
    let uid = made["metadata"]["uid"].as_str().unwrap().to_owned();
    let all = client.kv_client().get("/wharfline/", Some(GetOptions::new().with_prefix())).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let pairs = all.kvs().iter().map(|kv| (text(kv.key()), text(kv.value())));
    let ends = ["/template".to_owned(), format!("/{volume}")];
    let templates: Vec<_> = pairs.filter(|(key, _)| ends.iter().any(|end| key.ends_with(end))).collect();
    assert_eq!(templates.len(), 2, "the claim and its volume");
    let size: usize = templates.iter().map(|(key, value)| key.len() + value.len()).sum();
    futures::stream::iter(1..VOLUMES)
        .for_each_concurrent(64, |n| {
            let changes = [
                (claim.clone(), format!("{n:08x}-0000-4000-8000-00000000000c")),
                (uid.clone(), format!("{n:08x}-0000-4000-8000-00000000000a")),
                ("template".to_owned(), format!("c{n:05}")),
            ];
            let copy =
                |text: &str| changes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
            let copies: Vec<_> = templates.iter().map(|(key, value)| (copy(key), copy(value))).collect();
            let mut client = client.kv_client();
            async move {
                for (key, value) in copies {
                    client.put(key, value, None).await.unwrap();
                }
            }
        })
        .await;
    size * VOLUMES
}

/// One watch of every node, from now on.
async fn watch(nodes: &[Member], admin: &mut Caller) -> JoinSet<()> {
    let now = revision(admin).await;
    let mut watches = JoinSet::new();
    for node in nodes {
        let selector = format!("fieldSelector=status.controller.nodeName%3D{}", node.name);
        let path =
            format!("{OURS}/volumes?watch=true&allowWatchBookmarks=true&resourceVersion={now}&{selector}");
        let mut lines = node.door.watch(&path).await.unwrap();
        watches.spawn(async move { while lines.next().await.is_some() {} });
    }
    watches
}

type Times = Arc<Mutex<BTreeMap<&'static str, Vec<f64>>>>;

async fn answers(report: &mut Report, served: &Served, (fleet, floor): (&Fleet, f64)) {
    fleet.beats.lock().unwrap().clear();
    let (times, start, cpu) = (Times::default(), Instant::now(), Usage::of(served.pid()).cpu);
    let mut people = JoinSet::new();
    let mut pace = tokio::time::interval(PACE);
    for n in 0.. {
        pace.tick().await;
        if start.elapsed() > TIMED {
            break;
        }
        people.spawn(person(served.admin.clone(), n, Arc::clone(&times)));
    }
    while let Some(done) = people.join_next().await {
        done.unwrap();
    }
    let cpu = (Usage::of(served.pid()).cpu - cpu) / start.elapsed().as_secs_f64();
    let beats = std::mem::take(&mut *fleet.beats.lock().unwrap());
    let rate = beats.len() as f64 / start.elapsed().as_secs_f64();
    times.lock().unwrap().insert("renew a lease", beats);
    for (verb, mut all) in std::mem::take(&mut *times.lock().unwrap()) {
        all.sort_by(f64::total_cmp);
        let more = json!({ "samples": all.len(), "p50": median(&all), "max": all.last(), "serverCores": cpu,
            "leasesPerSecond": rate, "seconds": TIMED.as_secs() });
        report.add(Row {
            floor: Some(floor),
            target: Some(Target::Value(20.0)),
            more,
            ..Row::new(
                "B14",
                format!("{verb}: p99, floor one etcd put's"),
                "ms",
                vec![all[all.len() * 99 / 100]],
            )
        });
    }
}

/// One claim's life in the hands of a person, each request timed.
async fn person(admin: Door, n: usize, times: Times) {
    let (mut caller, name) = (admin.caller(), format!("p{n}"));
    // The handshake is not what is timed.
    caller.done(Method::GET, "/version", None).await;
    let path = format!("{CLAIMS}/{name}");
    let mut object = claim(&name);
    object["spec"]["volumeClassName"] = json!("none");
    ask(&mut caller, &times, ("create", Method::POST, CLAIMS), Some((JSON, &object))).await;
    let label = json!({ "metadata": { "labels": { "seen": "yes" } } });
    ask(&mut caller, &times, ("patch", Method::PATCH, &path), Some((MERGE, &label))).await;
    let mut object = ask(&mut caller, &times, ("get", Method::GET, &path), None).await;
    object["metadata"]["labels"]["seen"] = json!("twice");
    ask(&mut caller, &times, ("update", Method::PUT, &path), Some((JSON, &object))).await;
    let list = format!("{CLAIMS}?limit={PAGE}");
    ask(&mut caller, &times, ("list 100", Method::GET, &list), None).await;
    ask(&mut caller, &times, ("delete", Method::DELETE, &path), None).await;
}

async fn ask(
    caller: &mut Caller,
    times: &Times,
    (verb, method, path): (&'static str, Method, &str),
    body: Option<(&str, &Value)>,
) -> Value {
    let sent = Instant::now();
    let answer = caller.ask(method, path, body).await.expect("an answer");
    let took = ms(sent.elapsed());
    // A controller may have been there in between.
    assert!(answer.good() || answer.code == 409, "{verb}: {} {}", answer.code, answer.value());
    times.lock().unwrap().entry(verb).or_default().push(took);
    answer.value()
}
