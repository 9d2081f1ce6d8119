//! B9: the leader of three etcds is killed, again and again, while claims are made and served: for how long nothing is
//! acknowledged here, and for how long not to a client of etcd itself beside it; and whether anything that was is lost.
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::etcd::Etcd;
use super::fleet::{Fleet, driver_ready, members};
use super::report::{Report, Row, Target, median, ms};
use super::served::{Served, claim, null_plugin};
use super::wire::{Caller, Door, JSON, OURS, has};

const KILLS: usize = 10;
const NODES: usize = 4;
/// Between two writes of each of the two. More claims than two processors can serve beside three etcds would only queue.
const PACE: Duration = Duration::from_millis(40);
/// How long all goes well before a kill, and after it.
const QUIET: Duration = Duration::from_millis(1500);
const LOST: Duration = Duration::from_secs(60);
const CLAIMS: &str = "/apis/wharfline.dev/v1alpha1/namespaces/default/volumeclaims";

/// What was acknowledged, and when.
type Acknowledged = Arc<Mutex<Vec<(Instant, String)>>>;

/// When each claim was seen to be bound.
type Bound = Arc<Mutex<HashMap<String, Instant>>>;

pub(crate) async fn measure(report: &mut Report) {
    let mut etcd = Etcd::start(3).await;
    let served = Served::start(&etcd.store());
    let mut admin = served.admin.caller();
    let names: Vec<String> = (0..NODES).map(|n| format!("n{n}")).collect();
    let fleet = Fleet::start(&members(&served, &names, 0).await, NODES);
    null_plugin(&mut admin, &json!({ "everyNode": {} })).await;
    driver_ready(&mut admin, NODES).await;
    let lost_before = fleet.lost_watches.load(std::sync::atomic::Ordering::Relaxed);

    let seen = Bound::default();
    let watching = tokio::spawn(watch(served.admin.clone(), Arc::clone(&seen)));
    let (ours, raw, stop) = (Acknowledged::default(), Acknowledged::default(), CancellationToken::new());
    let writers = [
        tokio::spawn(claims(served.admin.clone(), Arc::clone(&ours), stop.clone())),
        tokio::spawn(puts(etcd.client().await, Arc::clone(&raw), stop.clone())),
    ];
    tokio::time::sleep(QUIET).await;
    let (mut gaps, mut floors, mut ratios, mut converged) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..KILLS {
        let leader = etcd.leader().await;
        let killed = Instant::now();
        etcd.kill(leader);
        let (gap, floor) = tokio::join!(gap(&ours, killed), gap(&raw, killed));
        let back = killed + gap.1;
        converged.push(ms(bound(&seen, &ours, back).await));
        let (gap, floor) = (ms(gap.0), ms(floor.0));
        gaps.push(gap);
        floors.push(floor);
        ratios.push(gap / floor);
        etcd.run(leader, "existing");
        etcd.ready().await;
        tokio::time::sleep(QUIET).await;
    }
    stop.cancel();
    for writer in writers {
        writer.await.unwrap();
    }
    watching.abort();
    let lost = missing(&mut admin, &ours).await;
    let watches = fleet.lost_watches.load(std::sync::atomic::Ordering::Relaxed) - lost_before;
    let acknowledged = ours.lock().unwrap().len();
    let rate = 1.0 / PACE.as_secs_f64();
    let more = json!({ "kills": KILLS, "etcdMs": floors, "ratios": ratios, "acknowledged": acknowledged,
        "perSecond": rate });
    report.add(Row {
        floor: Some(median(&floors)),
        target: Some(Target::Ratio(1.3)),
        more,
        ..Row::new(
            "B9",
            format!("etcd's leader killed at {rate} claims/s: nothing acknowledged for"),
            "ms",
            gaps,
        )
    });
    report.add(Row {
        target: Some(Target::Value(2000.0)),
        ..Row::new("B9", "first acknowledged to all before it bound", "ms", converged)
    });
    report.add(Row {
        target: Some(Target::Value(0.0)),
        ..Row::new("B9", format!("lost, of {acknowledged} acknowledged claims"), "", vec![lost as f64])
    });
    report.add(Row {
        target: Some(Target::Value(0.0)),
        ..Row::new("B9", "watches of nodes that broke", "", vec![watches as f64])
    });
}

/// A claim every so often, each by whoever has nothing to do, until told to stop.
async fn claims(admin: Door, acknowledged: Acknowledged, stop: CancellationToken) {
    let idle: Arc<Mutex<Vec<Caller>>> = Arc::default();
    every(stop, |n| {
        let (idle, admin, acknowledged) = (Arc::clone(&idle), admin.clone(), Arc::clone(&acknowledged));
        async move {
            let free = idle.lock().unwrap().pop();
            let mut caller = free.unwrap_or_else(|| admin.caller());
            let name = format!("c{n:05}");
            let answer = caller.ask(Method::POST, CLAIMS, Some((JSON, &claim(&name)))).await;
            if answer.is_some_and(|answer| answer.code == 201) {
                acknowledged.lock().unwrap().push((Instant::now(), name));
            }
            idle.lock().unwrap().push(caller);
        }
    })
    .await;
}

/// The same of puts by a client of etcd.
async fn puts(client: etcd_client::Client, acknowledged: Acknowledged, stop: CancellationToken) {
    every(stop, |n| {
        let (mut client, acknowledged) = (client.kv_client(), Arc::clone(&acknowledged));
        async move {
            let name = format!("beside/{n:05}");
            if client.put(name.clone(), vec![7; 1024], None).await.is_ok() {
                acknowledged.lock().unwrap().push((Instant::now(), name));
            }
        }
    })
    .await;
}

async fn every<F: Future<Output = ()> + Send + 'static>(stop: CancellationToken, work: impl Fn(usize) -> F) {
    let (mut pace, mut tasks) = (tokio::time::interval(PACE), JoinSet::new());
    for n in 0.. {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = pace.tick() => drop(tasks.spawn(work(n))),
        }
        while tasks.try_join_next().is_some() {}
    }
    tasks.join_all().await;
}

/// The longest time between two acknowledgements from a moment on, once they come regularly again; and when it ended, after
/// that moment.
async fn gap(acknowledged: &Acknowledged, from: Instant) -> (Duration, Duration) {
    let end = Instant::now() + LOST;
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let times: Vec<Instant> = {
            let all = acknowledged.lock().unwrap();
            let first = all.iter().rposition(|(at, _)| *at < from).unwrap_or_default();
            all[first..].iter().map(|(at, _)| *at).collect()
        };
        let gaps = times.windows(2).map(|pair| (pair[1].duration_since(pair[0]), pair[1]));
        if let Some((gap, until)) = gaps.max_by_key(|(gap, _)| *gap)
            && until.elapsed() > QUIET
            && gap > Duration::from_millis(200)
        {
            return (gap, until.duration_since(from));
        }
        assert!(Instant::now() < end, "writes did not come back");
    }
}

/// Waits until every claim that was acknowledged before a moment is bound; how long after it the last one was.
async fn bound(seen: &Bound, acknowledged: &Acknowledged, before: Instant) -> Duration {
    let wanted: Vec<String> = {
        let all = acknowledged.lock().unwrap();
        all.iter().filter(|(at, _)| *at <= before).map(|(_, name)| name.clone()).collect()
    };
    let end = Instant::now() + LOST;
    loop {
        let last: Option<Vec<Instant>> = {
            let seen = seen.lock().unwrap();
            wanted.iter().map(|name| seen.get(name).copied()).collect()
        };
        if let Some(last) = last.and_then(|all| all.into_iter().max()) {
            return last.saturating_duration_since(before);
        }
        if Instant::now() > end {
            let missing: Vec<_> =
                wanted.iter().filter(|name| !seen.lock().unwrap().contains_key(*name)).collect();
            panic!("of {} acknowledged claims these were not bound: {missing:?}", wanted.len());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Notes when each claim was seen to be bound.
async fn watch(admin: Door, seen: Bound) {
    loop {
        let mut lines = admin.watch(&format!("{CLAIMS}?watch=true")).await.expect("a watch");
        while let Some(line) = lines.next().await {
            let now = Instant::now();
            if has(&line, "\"phase\":\"Bound\"") {
                let event: Value = serde_json::from_slice(&line).unwrap();
                let name = event["object"]["metadata"]["name"].as_str().unwrap().to_owned();
                seen.lock().unwrap().entry(name).or_insert(now);
            }
        }
    }
}

async fn list(admin: &mut Caller) -> Vec<Value> {
    let mut list = admin.done(Method::GET, &format!("{OURS}/volumeclaims"), None).await;
    list["items"].as_array_mut().map(std::mem::take).unwrap_or_default()
}

/// How many of those that were acknowledged are not there.
async fn missing(admin: &mut Caller, acknowledged: &Acknowledged) -> usize {
    let there: BTreeSet<String> = list(admin)
        .await
        .iter()
        .filter_map(|claim| claim["metadata"]["name"].as_str().map(str::to_owned))
        .collect();
    let all = acknowledged.lock().unwrap();
    all.iter().filter(|(_, name)| !there.contains(name)).count()
}
