//! B8: one change told to 1,000 watchers, against one buffer written to 1,000 streams; and one change that a thousand
//! watchers look for elsewhere, told to the one that waits for it.
use std::time::{Duration, Instant};

use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::report::{Report, Row, Target, median, ms};
use super::served::{Served, create};
use super::wire::{Door, MERGE, OURS, has};

const WATCHERS: usize = 1_000;
/// How many changes are told.
const CHANGES: usize = 60;
/// What an object carries beside its head, so that a change has about 1 KiB.
const BALLAST: usize = 600;
/// Between two changes: nothing of the one before is under way.
const PAUSE: Duration = Duration::from_millis(50);
const LOST: Duration = Duration::from_secs(20);

pub(crate) async fn measure(report: &mut Report) {
    let raw = raw().await;
    let served = Served::start("embedded");
    let mut admin = served.admin.caller();
    let note = "x".repeat(BALLAST);
    for n in 0..=WATCHERS {
        let class = json!({ "apiVersion": "wharfline.dev/v1alpha1", "kind": "VolumeClass",
            "metadata": { "name": format!("c{n}"), "annotations": { "note": note } }, "spec": { "plugin": "none" } });
        create(&mut admin, "volumeclasses", &class).await;
    }
    let from = super::served::revision(&mut admin).await;
    let everything = told(&served.admin, from, |_| String::new(), WATCHERS).await;
    let from = super::served::revision(&mut admin).await;
    let by_name = |n: usize| format!("&fieldSelector=metadata.name%3Dc{n}");
    let one = told(&served.admin, from, by_name, 1).await;
    let from = super::served::revision(&mut admin).await;
    let alone = single(&served.admin, from).await;
    let more =
        json!({ "watchers": WATCHERS, "rawMs": raw, "p99Ms": last(&everything), "rawP99Ms": last(&raw) });
    report.add(Row {
        floor: Some(median(&raw)),
        target: Some(Target::Ratio(2.0)),
        more,
        ..Row::new("B8", format!("asked for to the last of {WATCHERS} watchers"), "ms", everything)
    });
    report.add(Row {
        floor: Some(median(&alone)),
        target: Some(Target::Ratio(1.5)),
        ..Row::new("B8", format!("sent to the one of {WATCHERS} that it is for"), "ms", one)
    });
}

fn last(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() * 99 / 100]
}

/// One shared buffer to so many streams over loopback, until each has it.
async fn raw() -> Vec<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (heard, mut ears) = mpsc::unbounded_channel();
    let (mut streams, mut readers) = (Vec::new(), JoinSet::new());
    for _ in 0..WATCHERS {
        let (here, there) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut here, (there, _)) = (here.unwrap(), there.unwrap());
        there.set_nodelay(true).unwrap();
        streams.push(there);
        let heard = heard.clone();
        readers.spawn(async move {
            let mut bytes = [0; 1024];
            while here.read_exact(&mut bytes).await.is_ok() {
                heard.send(Instant::now()).unwrap();
            }
        });
    }
    let (object, mut times) = ([7; 1024], Vec::new());
    for _ in 0..CHANGES {
        let start = Instant::now();
        for stream in &mut streams {
            stream.write_all(&object).await.unwrap();
        }
        times.push(ms(latest(&mut ears, WATCHERS).await.duration_since(start)));
        tokio::time::sleep(PAUSE).await;
    }
    times
}

/// When the last of so many heard.
async fn latest(ears: &mut mpsc::UnboundedReceiver<Instant>, many: usize) -> Instant {
    let mut last = None;
    for _ in 0..many {
        let heard = tokio::time::timeout(LOST, ears.recv()).await.expect("not all were told").unwrap();
        last = last.max(Some(heard));
    }
    last.unwrap()
}

/// Changes one object again and again under the eyes of 1,000 watchers of which `hear` hear of it: from its
/// acknowledgement to the last of them, or from its sending where there is one only.
async fn told(admin: &Door, from: u64, selector: impl Fn(usize) -> String, hear: usize) -> Vec<f64> {
    let (heard, mut ears) = mpsc::unbounded_channel();
    let mut watches = JoinSet::new();
    for n in 0..WATCHERS {
        let path = format!("{OURS}/volumeclasses?watch=true&resourceVersion={from}{}", selector(n));
        let (mut lines, heard) = (admin.watch(&path).await.unwrap(), heard.clone());
        watches.spawn(async move {
            while let Some(line) = lines.next().await {
                assert!(has(&line[..32.min(line.len())], "MODIFIED"), "{}", String::from_utf8_lossy(&line));
                heard.send(Instant::now()).unwrap();
            }
        });
    }
    changes(admin, &mut ears, hear).await
}

/// The same with nobody else there.
async fn single(admin: &Door, from: u64) -> Vec<f64> {
    let (heard, mut ears) = mpsc::unbounded_channel();
    let mut lines =
        admin.watch(&format!("{OURS}/volumeclasses?watch=true&resourceVersion={from}")).await.unwrap();
    let watch = tokio::spawn(async move {
        while lines.next().await.is_some() {
            heard.send(Instant::now()).unwrap();
        }
    });
    let times = changes(admin, &mut ears, 1).await;
    watch.abort();
    times
}

async fn changes(admin: &Door, ears: &mut mpsc::UnboundedReceiver<Instant>, hear: usize) -> Vec<f64> {
    let (mut caller, mut times) = (admin.caller(), Vec::new());
    for n in 0..CHANGES {
        let patch = json!({ "metadata": { "labels": { "change": format!("{n}-{hear}") } } });
        let sent = Instant::now();
        // From the request on: on few cores the acknowledgement waits behind what the watchers are told.
        caller.done(Method::PATCH, &format!("{OURS}/volumeclasses/c7"), Some((MERGE, &patch))).await;
        times.push(ms(latest(ears, hear).await.duration_since(sent)));
        tokio::time::sleep(PAUSE).await;
    }
    times
}
