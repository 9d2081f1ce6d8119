//! A real process, killed in the middle of a write load, again and again on one file.
//!
//! The child is this test binary, told by the environment where to write. It reports each write once it is
//! acknowledged; whatever it reported before it died must be there afterwards.
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use wharfline::store::embedded::{EmbeddedStore, OpenError, Options};
use wharfline::store::{Event, Expect, Rev};

use super::in_time;
use super::store_suite::Shared;

const PATH: &str = "WHARFLINE_TEST_STORE_TO_KILL";
const TASKS: u64 = 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_while_writing_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut revisions = HashSet::new();
    let mut acks = Vec::new();
    for (round, reports) in [1, 0, 2, 40, 150, 0, 400, 3, 1000].into_iter().enumerate() {
        let mut child = Writing::start(&path);
        let mut new = child.reports(reports);
        if round == 0 {
            let refused = EmbeddedStore::open(&path, Options::default());
            assert!(matches!(refused, Err(OpenError::InUse { .. })));
        }
        new.extend(child.kill());
        assert!(new.len() >= reports);
        for ack in new {
            assert!(revisions.insert(ack.rev), "revision {} was given out twice", ack.rev);
            acks.push(ack);
        }
        // In every other round the next child meets what the killed one left.
        if round % 2 == 0 {
            in_time(check(&path, &acks)).await;
        }
    }
    assert!(acks.len() > 1500);
}

#[test]
fn a_process_killed_while_making_the_file_leaves_a_usable_place() {
    for round in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let mut child = Writing::start(&path);
        child.await_opening();
        // A little later each time, by doing some work rather than by waiting for time to pass.
        for _ in 0..round * 40 {
            std::fs::metadata(dir.path()).unwrap();
        }
        child.kill();
        drop(EmbeddedStore::open(&path, Options::default()).unwrap());
    }
}

/// An acknowledged write.
#[derive(Clone, Copy, Debug)]
struct Ack {
    task: u64,
    /// What was put; `None` for a deletion.
    count: Option<u64>,
    rev: u64,
}

impl Ack {
    fn parse(line: &str) -> Option<Ack> {
        let mut fields = line.split(' ');
        let task = fields.next()?.parse().ok()?;
        let count = fields.next()?;
        let rev = fields.next()?.parse().ok()?;
        Some(Ack { task, count: count.parse().ok(), rev })
    }
}

struct Writing {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Writing {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this binary has a path"))
            .args(["--exact", "store_kill::the_writing_process", "--nocapture"])
            .env(PATH, path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this binary can be started");
        let lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        Writing { child, lines }
    }

    fn await_opening(&mut self) {
        let line = self.lines.next().expect("it says so first").expect("the pipe is read");
        assert_eq!(line, "opening");
    }

    fn reports(&mut self, count: usize) -> Vec<Ack> {
        let lines = self.lines.by_ref().map(|line| line.expect("the pipe is read"));
        lines.filter_map(|line| Ack::parse(&line)).take(count).collect()
    }

    /// Kills it and returns what it had reported until then.
    fn kill(mut self) -> Vec<Ack> {
        self.child.kill().expect("it runs until it is killed");
        let status = self.child.wait().expect("it can be waited for");
        assert_eq!(status.code(), None, "it ended by itself");
        self.reports(usize::MAX)
    }
}

/// Not a test: does nothing unless started by the tests above.
#[test]
fn the_writing_process() {
    let Some(path) = std::env::var_os(PATH) else { return };
    say("opening");
    let store = EmbeddedStore::open(Path::new(&path), Options::default()).expect("the store can be opened");
    let store: Shared = Arc::new(store);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
    runtime.expect("a runtime can be built").block_on(async {
        let start = store.revision().await.expect("reading works").0;
        let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(write(store.clone(), task, start))).collect();
        futures::future::join_all(tasks).await;
    });
}

async fn write(store: Shared, task: u64, start: u64) {
    let key = format!("/t/{task}");
    for n in 0.. {
        let count = start + n;
        let rev = if n % 7 == 6 {
            let gone = store.delete(key.as_bytes(), Expect::Any).await.expect("it was put before");
            say(&format!("{task} gone {}", gone.0));
            gone.0
        } else {
            let mut value = count.to_string().into_bytes();
            value.resize(20 + usize::try_from(n % 50).expect("it is small") * 100, b' ');
            let rev = store.put(key.as_bytes(), Bytes::from(value), Expect::Any).await;
            let rev = rev.expect("an unconditional put is done");
            say(&format!("{task} {count} {rev}"));
            rev
        };
        if task == 0 && n % 40 == 39 {
            store.compact(Rev(rev.0.saturating_sub(100))).await.expect("the revision is in the past");
        }
    }
}

/// One line in one write, so that a kill cuts no line and lines of tasks do not mix.
fn say(line: &str) {
    let line = format!("{line}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("the pipe is open");
}

async fn check(path: &Path, acks: &[Ack]) {
    let store: Shared =
        Arc::new(EmbeddedStore::open(path, Options::default()).expect("the store can be opened"));
    let (now, compacted) = (store.revision().await.unwrap(), store.compacted().await.unwrap());
    let mut history = BTreeMap::new();
    let mut events = store.watch(b"/t/", compacted).await.unwrap();
    while history.len() < usize::try_from(now.0 - compacted.0).unwrap() {
        let event = events.next().await.unwrap().unwrap();
        history.insert(event.rev().0, event);
    }
    let mut last: BTreeMap<u64, Ack> = BTreeMap::new();
    for ack in acks {
        assert!(ack.rev <= now.0, "{ack:?} is lost, the store is at {now}");
        if ack.rev > compacted.0 {
            assert_eq!(written(&history[&ack.rev]), (ack.task, ack.count), "{ack:?}");
        }
        let newest = last.entry(ack.task).or_insert(*ack);
        if ack.rev > newest.rev {
            *newest = *ack;
        }
    }
    for ack in last.into_values() {
        let key = format!("/t/{}", ack.task);
        let unreported = history.range(ack.rev + 1..).any(|(_, event)| written(event).0 == ack.task);
        let current = store.get(key.as_bytes()).await.unwrap().0;
        if !unreported {
            assert_eq!(current.map(|kv| kv.mod_revision.0), ack.count.map(|_| ack.rev), "{ack:?}");
        }
    }
}

fn written(event: &Event) -> (u64, Option<u64>) {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let key = event.key().expect("only writes are in the history");
    let task = text(key).trim_start_matches("/t/").parse().expect("the key names the task");
    match event {
        Event::Put { kv, .. } => (task, Some(text(&kv.value).parse().expect("the value is a count"))),
        Event::Delete { .. } => (task, None),
        Event::Progress(_) => panic!("only writes are in the history"),
    }
}
