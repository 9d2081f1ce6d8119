//! What the embedded store promises beyond the suite: opening, failing disks, slow watchers, compaction.
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use wharfline::store::embedded::{Durability, EmbeddedStore, MemoryDisk, OpenError, Options};
use wharfline::store::{Event, Expect, KeepPolicy, Outcome, Rev, StoreError, Watch, run_compactor};

use super::store_suite::{Shared, all, put, watch};
use super::{in_time, inline, relaxed};

fn open(path: &Path) -> Shared {
    Arc::new(EmbeddedStore::open(path, Options::default()).expect("the store can be opened"))
}

fn refused(path: &Path) -> OpenError {
    match EmbeddedStore::open(path, Options::default()) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error,
    }
}

async fn next(events: &mut Watch) -> Result<Event, StoreError> {
    in_time(events.next()).await.expect("an error comes before the end")
}

#[tokio::test]
async fn reopening_keeps_data_revision_history_and_compaction() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = open(&path);
    for n in 1..=5 {
        put(&store, "/k/a", &n.to_string()).await;
    }
    store.delete(b"/k/a", Expect::Any).await.unwrap();
    put(&store, "/k/b", "1").await;
    store.compact(Rev(4)).await.unwrap();
    drop(store);

    let store = open(&path);
    assert_eq!(store.revision().await.unwrap(), Rev(7));
    assert_eq!(store.compacted().await.unwrap(), Rev(4));
    assert_eq!(all(&store, "/k/", None).await, ["/k/b=1"]);
    assert_eq!(all(&store, "/k/", Some(Rev(5))).await, ["/k/a=5"]);
    let seen: Vec<_> =
        watch(&store, "/k/", Rev(4)).await.take(4).map(|event| event.unwrap().rev().0).collect().await;
    assert_eq!(seen, [5, 6, 7, 7]);
    assert_eq!(put(&store, "/k/b", "2").await, Rev(8));
    assert_eq!(store.get(b"/k/b").await.unwrap().0.unwrap().create_revision, Rev(7));
}

#[test]
fn a_store_in_use_is_refused_until_it_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = open(&path);
    let error = refused(&path);
    assert!(matches!(&error, OpenError::InUse { path: told } if *told == path), "{error:?}");
    assert_eq!(error.to_string(), format!("{} is in use by another process", path.display()));
    drop(store);
    drop(open(&path));

    let disk = MemoryDisk::default();
    let store = EmbeddedStore::inline(disk.clone(), relaxed()).unwrap();
    for _ in 0..2 {
        assert!(matches!(EmbeddedStore::inline(disk.clone(), relaxed()), Err(OpenError::InUse { .. })));
    }
    drop(store);
    EmbeddedStore::inline(disk, relaxed()).unwrap();
}

#[test]
fn the_file_is_for_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir.path().join("store")));
    let mut names = Vec::new();
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
        names.push(entry.file_name());
    }
    names.sort();
    assert_eq!(names, ["store", "store.lock", "store.wal"]);
}

/// Writes another schema level into a store that is not open.
fn set_schema(path: &Path, level: u64) {
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    let db = redb::Database::open(path).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(meta).unwrap().insert("schema", level).unwrap();
    txn.commit().unwrap();
}

#[test]
fn a_newer_schema_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    drop(open(&path));
    set_schema(&path, 3);
    for _ in 0..2 {
        let error = refused(&path);
        assert!(matches!(error, OpenError::SchemaTooNew { found: 3, known: 2 }), "{error:?}");
    }
}

#[tokio::test]
async fn a_store_of_before_the_log_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = open(&path);
    put(&store, "/k/a", "1").await;
    drop(store);
    set_schema(&path, 1);
    fs::remove_file(dir.path().join("store.wal")).unwrap();
    let store = open(&path);
    assert_eq!(put(&store, "/k/a", "2").await, Rev(2));
    drop(store);
    assert_eq!(all(&open(&path), "/k/", None).await, ["/k/a=2"]);
}

#[test]
fn a_store_without_its_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, log) = (dir.path().join("store"), dir.path().join("store.wal"));
    drop(open(&path));
    let whole = fs::read(&log).unwrap();
    for damage in [None, Some(&whole[..5000])] {
        match damage {
            None => fs::remove_file(&log).unwrap(),
            Some(part) => fs::write(&log, part).unwrap(),
        }
        for _ in 0..2 {
            let error = refused(&path);
            assert!(matches!(error, OpenError::Corrupt { .. }), "{error:?}");
            assert!(error.to_string().contains("store.wal"), "{error}");
        }
    }
    fs::write(&log, whole).unwrap();
    drop(open(&path));
}

#[test]
fn what_is_not_a_store_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    drop(open(&whole));
    let whole = fs::read(whole).unwrap();
    let foreign = dir.path().join("foreign");
    drop(redb::Database::create(&foreign).unwrap());
    let cases = [
        ("empty", Vec::new()),
        ("text", b"apiVersion: v1\n".repeat(1000)),
        ("zeros", vec![0; 1 << 20]),
        ("half", whole[..whole.len() / 2].to_vec()),
        ("head", whole[..512].to_vec()),
        ("foreign", fs::read(foreign).unwrap()),
    ];
    for (name, bytes) in cases {
        let path = dir.path().join(name);
        fs::write(&path, &bytes).unwrap();
        let error = refused(&path);
        assert!(matches!(error, OpenError::Corrupt { .. }), "{name}: {error:?}");
        // The engine notes in a file of its own that it was open; anything else is not touched.
        assert!(name == "foreign" || fs::read(&path).unwrap() == bytes, "{name} was changed");
    }
    let error = refused(&dir.path().join("no/such/directory/store"));
    assert!(matches!(error, OpenError::Io { .. }), "{error:?}");
}

#[test]
fn an_unfinished_first_start_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    fs::write(dir.path().join("store.new"), vec![0; 5000]).unwrap();
    drop(open(&path));
    assert!(!dir.path().join("store.new").exists());
}

#[tokio::test]
async fn dropping_the_store_ends_its_watches_and_finishes_its_writes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = open(&path);
    let now = put(&store, "/k", "1").await;
    let mut events = watch(&store, "/", now).await;
    assert_eq!(next(&mut events).await.unwrap(), Event::Progress(now));
    // In the queue, with nobody waiting for the answer.
    let mut write = Box::pin(put(&store, "/k", "2"));
    let answered = futures::poll!(&mut write).is_ready();
    drop(write);
    drop(store);
    let first = next(&mut events).await;
    let end = match first {
        Ok(event) => {
            assert_eq!(event.rev(), now.next());
            next(&mut events).await
        }
        error => error,
    };
    assert!(matches!(end, Err(StoreError::Unavailable { outcome: Outcome::NotDone, .. })), "{end:?}");
    assert!(events.next().await.is_none());
    assert_eq!(all(&open(&path), "/", None).await, ["/k=2"], "answered: {answered}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_watcher_is_cut_and_can_go_on_where_it_was() {
    let options = Options { watch_lag: 500, ..relaxed() };
    let store: Shared = Arc::new(EmbeddedStore::inline(MemoryDisk::default(), options).unwrap());
    let start = put(&store, "/k", "0").await;
    let mut events = watch(&store, "/", start).await;
    assert_eq!(next(&mut events).await.unwrap(), Event::Progress(start));
    for n in 0..500 {
        put(&store, "/k", &n.to_string()).await;
    }
    assert_eq!(next(&mut events).await.unwrap().rev(), start.next());
    for n in 0..400 {
        put(&store, "/k", &n.to_string()).await;
    }
    let mut last = start.next();
    let cut = loop {
        match next(&mut events).await {
            Ok(event) => {
                assert_eq!(event.rev(), last.next());
                last = event.rev();
            }
            Err(error) => break error,
        }
    };
    let now = store.revision().await.unwrap();
    assert!(
        matches!(cut, StoreError::TooSlow { delivered, current } if delivered == last && current == now),
        "{cut:?}"
    );
    assert!(events.next().await.is_none());
    // What it held is one chunk, and a replay may be as long as it likes.
    assert!(last.0 - start.0 <= 256, "{last} after {start}");
    let mut again = watch(&store, "/", last).await;
    while last < now {
        let event = next(&mut again).await.unwrap();
        assert_eq!(event.rev(), last.next());
        last = event.rev();
    }
}

#[tokio::test(start_paused = true)]
async fn compacted_history_gives_its_room_back() {
    let disk = MemoryDisk::default();
    let store: Shared = Arc::new(EmbeddedStore::inline(disk.clone(), Options::default()).unwrap());
    let value = "x".repeat(2048);
    let mut grown = 0;
    for round in 0..12 {
        for n in 0..60 {
            put(&store, &format!("/k/{}", n % 10), &value).await;
        }
        store.compact(store.revision().await.unwrap()).await.unwrap();
        if round == 0 {
            grown = disk.used();
        }
    }
    assert!(disk.used() <= grown * 2, "{} after {grown}", disk.used());
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_refuses_writes_and_recovers() {
    let disk = MemoryDisk::default();
    let store: Shared = Arc::new(EmbeddedStore::inline(disk.clone(), Options::default()).unwrap());
    let start = put(&store, "/k/first", "1").await;
    let mut events = watch(&store, "/k/", start).await;
    assert_eq!(next(&mut events).await.unwrap(), Event::Progress(start));
    disk.set_capacity(disk.used());
    let large = Bytes::from(vec![7; 300_000]);
    let mut done = Vec::new();
    let error = loop {
        let key = format!("/k/{:04}", done.len());
        match store.put(key.as_bytes(), large.clone(), Expect::Absent).await {
            Ok(_) => done.push(key),
            Err(error) => break error,
        }
        assert!(done.len() < 1000, "the disk is never full");
    };
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    let again = store.put(b"/k/more", large.clone(), Expect::Any).await.unwrap_err();
    assert!(matches!(again, StoreError::Unavailable { .. }), "{again:?}");
    let read = store.list(b"/k/0", None, usize::MAX, None).await.unwrap();
    assert!(read.kvs.len() >= done.len());

    disk.set_capacity(u64::MAX);
    let last = put(&store, "/k/last", "1").await;
    let mut seen = start;
    while seen < last {
        let event = next(&mut events).await.unwrap();
        assert_eq!(event.rev(), seen.next());
        seen = event.rev();
    }
    assert_eq!(last.0 - start.0 - 1, read.kvs.len() as u64);
}

/// One step of [`a_cut_at_every_disk_operation_loses_nothing_acknowledged`].
async fn scripted(store: &Shared, step: u64) -> Result<(), StoreError> {
    let key = format!("/k/{}", step % 3);
    match step {
        4 => store.delete(b"/k/0", Expect::Any).await.map(drop),
        5 => store.compact(Rev(3)).await,
        // The log takes three of these; the fourth is a checkpoint.
        9 | 14..=24 => {
            store.put(key.as_bytes(), Bytes::from(vec![b'x'; 300_000]), Expect::Any).await.map(drop)
        }
        _ => store.put(key.as_bytes(), Bytes::from(step.to_string()), Expect::Any).await.map(drop),
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_at_every_disk_operation_loses_nothing_acknowledged() {
    const STEPS: u64 = 30;
    let open = |disk: &MemoryDisk| -> Result<Shared, OpenError> {
        Ok(Arc::new(EmbeddedStore::inline(disk.clone(), Options::default())?))
    };
    // The state and the revision after each step, from a run without faults.
    let reference = inline();
    let mut wanted = vec![(Rev::ZERO, Vec::new())];
    for step in 0..STEPS {
        scripted(&reference, step).await.unwrap();
        wanted.push((reference.revision().await.unwrap(), all(&reference, "/", None).await));
    }

    let (mut whole_runs, mut cut_runs) = (0, 0);
    for cut in 0.. {
        let disk = MemoryDisk::default();
        let store = open(&disk).unwrap();
        disk.cut_after(cut);
        let (mut acknowledged, mut outcome) = (0, None);
        for step in 0..STEPS {
            match scripted(&store, step).await {
                Ok(()) if outcome.is_none() => acknowledged += 1,
                Ok(()) => panic!("a write was done after the cut"),
                Err(StoreError::Unavailable { outcome: told, .. }) => outcome = outcome.or(Some(told)),
                Err(other) => panic!("{other:?}"),
            }
        }
        drop(store);
        // The cut meets the next start too, and then a start that is let through.
        disk.cut_after(cut % 7);
        drop(open(&disk));
        disk.cut_after(u64::MAX);
        let store = open(&disk).unwrap();
        let found = (store.revision().await.unwrap(), all(&store, "/", None).await);
        let in_doubt = usize::from(outcome == Some(Outcome::Unknown));
        let allowed = &wanted[acknowledged..=acknowledged + in_doubt];
        assert!(allowed.contains(&found), "cut {cut}: {found:?} is none of {allowed:?}");
        assert_eq!(put(&store, "/next", "1").await, found.0.next());
        match outcome {
            Some(_) => cut_runs += 1,
            None => whole_runs += 1,
        }
        if whole_runs == 20 {
            break;
        }
    }
    assert!(cut_runs > 50, "{cut_runs}");
}

#[tokio::test(start_paused = true)]
async fn the_compactor_keeps_what_the_policy_says() {
    let store = inline();
    let policy = KeepPolicy { age: Duration::from_secs(300), revisions: 10, every: Duration::from_secs(60) };
    let compactor = tokio::spawn(run_compactor(store.clone(), policy));
    // One write every ten seconds: 30 revisions are 300 s.
    let mut compacted = Vec::new();
    for n in 1..=120_u64 {
        pass(Duration::from_secs(10)).await;
        put(&store, "/k", &n.to_string()).await;
        if n % 30 == 0 {
            compacted.push(store.compacted().await.unwrap().0);
        }
    }
    // Aged at least 300 s, at most a look more.
    for (looked, compacted) in [30_u64, 60, 90, 120].into_iter().zip(compacted) {
        let aged = looked.saturating_sub(30);
        assert!((aged.saturating_sub(6)..=aged).contains(&compacted), "{compacted} of {looked}");
    }
    // A quiet store keeps its newest ten for ever.
    pass(Duration::from_secs(3600)).await;
    assert_eq!(store.compacted().await.unwrap(), Rev(110));
    compactor.abort();
    assert!(compactor.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn many_waiting_writes_share_few_commits() {
    let disk = MemoryDisk::default();
    let options = Options { durability: Durability::Synced, ..Options::default() };
    let store: Shared = Arc::new(EmbeddedStore::open_memory(disk.clone(), options).unwrap());
    put(&store, "/k", "1").await;
    let before = disk.syncs();
    put(&store, "/k", "2").await;
    let one_commit = disk.syncs() - before;
    let writes: Vec<_> = (0..2000)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { put(&store, &format!("/k/{n}"), "1").await })
        })
        .collect();
    for write in writes {
        write.await.unwrap();
    }
    let commits = (disk.syncs() - before) / one_commit;
    assert!(commits < 500, "{commits} commits for 2000 writes");
}

/// Lets simulated time pass: the clock is paused, so this takes none, and whatever is due in it happens.
async fn pass(time: Duration) {
    let _passed = tokio::time::timeout(time, std::future::pending::<()>()).await;
}
