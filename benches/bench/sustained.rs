//! B2: claims one after the other, many at once, each up to a volume that is published on one of a hundred simulated
//! nodes, by a driver that answers at once; against what the same etcd takes from its own clients.
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::etcd::{self, Etcd};
use super::fleet::{Fleet, driver_ready, members};
use super::idle::Usage;
use super::report::{Report, Row, Target};
use super::served::{Served, allocation, claim, null_plugin, revision};
use super::stack::DEADLINE;
use super::wire::{Door, JSON, OURS, has};

/// How many claims, how many of them at once, and on how many nodes.
const CLAIMS: usize = 10_000;
const AT_ONCE: usize = 64;
const NODES: usize = 100;
/// A figure is taken of each so many.
const EACH: usize = 2_000;
/// How many writers etcd has of its own.
const WRITERS: usize = 256;
const FLOOR: Duration = Duration::from_secs(4);

/// Who waits for which allocation.
type Waiting = Arc<Mutex<HashMap<String, oneshot::Sender<()>>>>;

pub(crate) async fn measure(report: &mut Report) {
    let before = etcd::puts(WRITERS, FLOOR).await;
    let etcd = Etcd::start(1).await;
    let served = Served::start(&etcd.store());
    let mut admin = served.admin.caller();
    let names: Vec<String> = (0..NODES).map(|n| format!("n{n:03}")).collect();
    let fleet = Fleet::start(&members(&served, &names, 0).await, NODES);
    null_plugin(&mut admin, &json!({ "everyNode": {} })).await;
    driver_ready(&mut admin, NODES).await;

    let waiting = Waiting::default();
    let seen = tokio::spawn(published(served.admin.clone(), Arc::clone(&waiting)));
    let pids = [("server", served.pid()), ("etcd", etcd.pid(0)), ("nodes", std::process::id())];
    let cpu = || pids.map(|(_, pid)| Usage::of(pid).cpu);
    let used = cpu();
    let (mut claims, mut rates, mut per_claim) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..CLAIMS / EACH {
        let (written, start) = (revision(&mut admin).await, Instant::now());
        all(&served.admin, round * EACH, &waiting).await;
        let seconds = start.elapsed().as_secs_f64();
        let writes = (revision(&mut admin).await - written) as f64;
        claims.push(EACH as f64 / seconds);
        rates.push(writes / seconds);
        per_claim.push(writes / EACH as f64);
    }
    seen.abort();
    let cpu: Vec<_> = pids
        .iter()
        .zip(cpu().iter().zip(used))
        .map(|((name, _), (now, then))| json!([name, now - then]))
        .collect();
    let usage = Usage::of(served.pid());
    drop((fleet, served, etcd));
    let after = etcd::puts(WRITERS, FLOOR).await;
    let more = json!({ "claims": CLAIMS, "inFlight": AT_ONCE, "nodes": NODES, "cpuSeconds": cpu,
        "etcdPutsBefore": before.rate, "etcdPutsAfter": after.rate, "serverResidentMb": usage.resident });
    report.add(Row {
        // The better of the two: what the disk or others took from one of them is not to our credit.
        floor: Some(before.rate.max(after.rate)),
        target: Some(Target::AtLeast(0.15)),
        more,
        ..Row::new("B2", format!("writes, of etcd's own puts by {WRITERS} writers"), "/s", rates)
    });
    report.add(Row::new("B2", format!("claims, {AT_ONCE} in flight, {NODES} nodes"), "/s", claims));
    report.add(Row::new("B2", "writes per claim, asked for to published", "", per_claim));
    report.add(Row::new("B2", format!("server resident after {CLAIMS} claims"), "MB", vec![usage.resident]));
}

/// Takes claims up, so many at once.
async fn all(admin: &Door, first: usize, waiting: &Waiting) {
    let next = Arc::new(AtomicUsize::new(first));
    let mut workers = Vec::new();
    for _ in 0..AT_ONCE {
        let (next, waiting, mut caller) = (Arc::clone(&next), Arc::clone(waiting), admin.caller());
        workers.push(tokio::spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= first + EACH {
                    return;
                }
                let name = format!("c{n:05}");
                let (tell, told) = oneshot::channel();
                waiting.lock().unwrap().insert(name.clone(), tell);
                for (plural, object) in [("volumeclaims", claim(&name)), ("allocations", allocation(&name))] {
                    let path = format!("{OURS}/namespaces/default/{plural}");
                    caller.done(Method::POST, &path, Some((JSON, &object))).await;
                }
                let done = tokio::time::timeout(DEADLINE, told).await;
                done.unwrap_or_else(|_| panic!("{name} was never published")).unwrap();
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
}

/// Tells who waits what was published.
async fn published(admin: Door, waiting: Waiting) {
    let path = format!("{OURS}/namespaces/default/allocations?watch=true");
    let mut lines = admin.watch(&path).await.unwrap();
    while let Some(line) = lines.next().await {
        if has(&line, "\"published\":\"Up\"") {
            let event: Value = serde_json::from_slice(&line).unwrap();
            let name = event["object"]["metadata"]["name"].as_str().unwrap();
            if let Some(tell) = waiting.lock().unwrap().remove(name) {
                // Nobody waits any longer: that was a panic elsewhere.
                let _ = tell.send(());
            }
        }
    }
    panic!("the watch ended");
}
