//! What a person reads as events: each thing that happened, as it happened, also after somebody deleted what was told before.
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wharfline::csi::{Code, Rpc};
use wharfline::node::events::{Events, Tone, write};
use wharfline::server::Server;

use crate::support::node::{DEADLINE, Link, NODE, Rig, World, server, uid};
use crate::support::scripted::{Answer, Config};

/// Events of a node that does nothing else.
struct Bench {
    events: Events,
    link: Link,
    world: World,
    stop: CancellationToken,
    writer: tokio::task::JoinHandle<()>,
    _server: Server,
}

impl Bench {
    async fn new() -> Self {
        let (server, link, stop) = (server().await, Link::default(), CancellationToken::new());
        let (events, waiting) = Events::new();
        let client = link.client(&server, NODE);
        let writer = tokio::spawn(write(client, NODE.to_owned(), waiting, stop.clone()));
        Self { events, link, world: World::new(&server), stop, writer, _server: server }
    }

    fn tell(&self, note: &str) {
        let about = ObjectReference {
            kind: Some("Allocation".to_owned()),
            namespace: Some("default".to_owned()),
            name: Some("app".to_owned()),
            uid: Some("1".to_owned()),
            ..ObjectReference::default()
        };
        self.events.tell(about, Tone::Warning, "TaskExited", "Run", note);
    }

    /// Waits until these are the events, whatever their order.
    async fn are(&self, expected: &[(i32, &str)]) {
        are(&self.world, "TaskExited", expected).await;
    }

    async fn end(self) {
        self.stop.cancel();
        self.writer.await.unwrap();
    }
}

/// Waits until these are the counts and notes of the events with this reason.
async fn are(world: &World, reason: &str, expected: &[(i32, &str)]) {
    let mut expected: Vec<_> = expected.iter().map(|(count, note)| (*count, (*note).to_owned())).collect();
    expected.sort();
    let end = tokio::time::Instant::now() + DEADLINE;
    let mut again = tokio::time::interval(std::time::Duration::from_millis(10));
    loop {
        let all = world.all::<Event>().list(&ListParams::default()).await.unwrap();
        let told = all.into_iter().filter(|e| e.reason.as_deref() == Some(reason));
        let mut told: Vec<_> =
            told.map(|e| (e.series.map_or(1, |series| series.count), e.note.unwrap_or_default())).collect();
        told.sort();
        if told == expected {
            return;
        }
        assert!(tokio::time::Instant::now() < end, "{told:#?}, not {expected:#?}");
        again.tick().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_were_deleted_are_made_anew_by_what_comes_later() {
    let bench = Bench::new().await;
    bench.tell("killed by signal 9 after 63 s");
    bench.tell("killed by signal 9 after 4 s");
    bench.are(&[(2, "killed by signal 9 after 4 s")]).await;
    let api = bench.world.namespaced::<Event>();
    api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    bench.tell("killed by signal 9 after 5 s");
    bench.are(&[(1, "killed by signal 9 after 5 s")]).await;
    bench.tell("killed by signal 9 after 6 s");
    bench.are(&[(2, "killed by signal 9 after 6 s")]).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_counted_together_where_numbers_alone_differ() {
    let bench = Bench::new().await;
    let lost = "ended with its shim, which was killed; what was left of it is gone";
    let before = bench.link.requests();
    for note in ["killed by signal 9 after 63 s", lost, "killed by signal 9 after 0.5 s", lost, lost] {
        bench.tell(note);
    }
    bench.are(&[(2, "killed by signal 9 after 0.5 s"), (3, lost)]).await;
    assert_eq!(bench.link.requests() - before, 5, "one write each");
    bench.end().await;
}

/// Nothing is lost or untrue then but the count: the newest event takes what comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_with_another_word_each_time_do_not_fill_the_server() {
    let bench = Bench::new().await;
    let words: Vec<_> = ('a'..='z').map(|letter| format!("request {letter} failed")).collect();
    for word in &words {
        bench.tell(word);
    }
    let mut expected: Vec<_> = words[..7].iter().map(|word| (1, word.as_str())).collect();
    expected.push((19, &words[25]));
    bench.are(&expected).await;
    bench.end().await;
}

/// A task that is killed, and then its shim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_of_each_way_in_which_a_task_ended() {
    let rig = Rig::new(Config::full()).await;
    let task = json!({ "name": "t", "restartPolicy": "Always",
        "runtime": { "process": { "command": ["/bin/sh", "-c", "exec sleep infinity"] } } });
    let app = rig.alloc("app", json!({ "tasks": [task] })).await;
    for (restarts, who, words) in
        [(0, "task", "killed by signal 9"), (1, "shim", "ended with its shim, which was killed")]
    {
        let runs = |a: &Value| {
            let task = &a["status"]["tasks"][0];
            task["state"] == "Running" && task["restarts"].as_i64().unwrap_or_default() == restarts
        };
        rig.world.until(&rig.allocs, "app", "running", runs).await;
        let path = rig.place.data.path().join(format!("tasks/{}.t/state.json", uid(&app)));
        let state: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let pid = i32::try_from(state[who]["pid"].as_i64().unwrap()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        rig.told("TaskExited", words).await;
    }
    rig.told("TaskExited", "killed by signal 9").await;
    rig.world.delete(&rig.allocs, "app").await;
    rig.world.until(&rig.allocs, "app", "stopped", |a| a["status"]["phase"] == "Stopped").await;
    rig.world.let_go(&rig.allocs, "app").await;
    rig.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_when_a_step_fails_otherwise_than_before() {
    let rig = Rig::new(Config::full()).await;
    for words in ["pool is away", "pool is away", "disk 7 is bad", "disk 8 is bad"] {
        rig.backend.next(Rpc::NodeStageVolume, Answer::fail(Code::Internal, words));
    }
    rig.running().await;
    rig.told("NodeStageVolumeFailed", "pool is away").await;
    rig.told("NodeStageVolumeFailed", "disk 7 is bad").await;
    rig.end_all().await;
    let events = rig.events_until("Recovered").await;
    let count = |reason: &str| events.iter().filter(|(r, _)| r == reason).count();
    assert_eq!((count("NodeStageVolumeFailed"), count("Recovered")), (2, 1), "{events:?}");
    rig.finish().await;
}
