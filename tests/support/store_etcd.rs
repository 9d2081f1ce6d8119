//! What the store in etcd promises beyond the suite: what others write, members that die, backups.
#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{Client, Txn, TxnOp};
use futures::StreamExt as _;
use wharfline::store::{Event, Expect, Outcome, Rev, Store, StoreError, Watch};

use super::etcd::Etcd;
use super::in_time;
use super::store_suite::{Shared, all, put, watch};

async fn shared(etcd: &Etcd) -> Shared {
    Arc::new(etcd.store().await)
}

async fn next(events: &mut Watch) -> Result<Event, StoreError> {
    events.next().await.expect("the watch says something")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_write_is_progress() {
    in_time(Box::pin(async {
        let etcd = Etcd::start(1).await;
        let store = shared(&etcd).await;
        let start = put(&store, "/k", "1").await;
        let mut events = watch(&store, "/", start).await;
        assert_eq!(next(&mut events).await.unwrap(), Event::Progress(start));
        let mut foreign = Client::connect(etcd.endpoints(), None).await.unwrap();
        // Two keys beside ours in one revision, and one that only begins as ours do.
        let txn = [TxnOp::put("/a", "1", None), TxnOp::put("/b", "1", None), TxnOp::put("/suit", "1", None)];
        foreign.txn(Txn::new().and_then(txn)).await.unwrap();
        assert_eq!(next(&mut events).await.unwrap(), Event::Progress(start.next()));
        assert_eq!(all(&store, "", None).await, ["/k=1"]);
        let set = put(&store, "/k", "2").await;
        assert_eq!(set, start.next().next());
        assert_eq!(next(&mut events).await.unwrap().rev(), set);

        // Among ours, several at once: told in order, none left out.
        let txn = [TxnOp::put("/suite/x", "1", None), TxnOp::put("/suite/y", "1", None)];
        foreign.txn(Txn::new().and_then(txn)).await.unwrap();
        for key in ["/x", "/y"] {
            let event = next(&mut events).await.unwrap();
            assert_eq!((event.key().unwrap().as_ref(), event.rev()), (key.as_bytes(), set.next()));
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_compact_is_noticed() {
    in_time(Box::pin(async {
        let etcd = Etcd::start(1).await;
        let store = shared(&etcd).await;
        for n in 0..200 {
            put(&store, "/k", &n.to_string()).await;
        }
        assert_eq!(store.compacted().await.unwrap(), Rev::ZERO);
        for edge in [2, 3, 57, 200, 201] {
            etcd.etcdctl(&["compaction", &edge.to_string()]);
            assert_eq!(store.compacted().await.unwrap(), Rev(edge));
            let error = store.list(b"/", None, 9, Some(Rev(edge - 1))).await.unwrap_err();
            assert!(matches!(error, StoreError::Compacted { at } if at == Rev(edge)), "{error:?}");
            store.list(b"/", None, 9, Some(Rev(edge))).await.unwrap();
        }
        // Another that knows nothing finds the same.
        assert_eq!(shared(&etcd).await.compacted().await.unwrap(), Rev(201));
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_member_killed_nothing_acknowledged_is_lost() {
    in_time(Box::pin(async {
        let mut etcd = Etcd::start(3).await;
        let store = shared(&etcd).await;
        let start = store.revision().await.unwrap();
        let writer = tokio::spawn(count_up(store.clone(), 300));
        let watcher = tokio::spawn(follow(store.clone(), start));
        let leader = etcd.leader().await;
        etcd.kill(leader);
        let counts = writer.await.unwrap();
        etcd.run(leader);
        etcd.ready().await;
        let end = put(&store, "/end", "1").await;
        // One value for each revision, each as it was acknowledged.
        let seen = watcher.await.unwrap();
        assert_eq!(seen.keys().next_back(), Some(&end));
        for (rev, value) in &counts.acknowledged {
            assert_eq!(seen.get(rev), Some(value), "{rev}");
        }
        let written = seen.len() - 1;
        let most = counts.acknowledged.len() + counts.in_doubt;
        assert!((counts.acknowledged.len()..=most).contains(&written), "{written} of at most {most}");
        assert_eq!(
            all(&store, "/n", None).await,
            [format!("/n={written}")],
            "no count was lost or done twice"
        );
    }))
    .await;
}

struct Counts {
    acknowledged: BTreeMap<Rev, String>,
    in_doubt: usize,
}

/// Counts a key up so many times, by compare-and-swap, reading anew whenever it does not know.
async fn count_up(store: Shared, times: usize) -> Counts {
    let mut counts = Counts { acknowledged: BTreeMap::new(), in_doubt: 0 };
    let mut n = 0;
    while n < times {
        let Ok(read) = tokio::time::timeout(Duration::from_secs(2), store.get(b"/n")).await else { continue };
        let Ok((found, _)) = read else { continue };
        let (before, expect) = match found {
            Some(kv) => (String::from_utf8_lossy(&kv.value).parse().unwrap(), Expect::Rev(kv.mod_revision)),
            None => (0, Expect::Absent),
        };
        n = before;
        let value = (before + 1).to_string();
        let write = store.put(b"/n", Bytes::from(value.clone()), expect);
        match tokio::time::timeout(Duration::from_secs(2), write).await {
            Ok(Ok(rev)) => {
                counts.acknowledged.insert(rev, value);
            }
            Ok(Err(
                StoreError::Conflict { .. } | StoreError::Unavailable { outcome: Outcome::NotDone, .. },
            )) => {}
            Err(_) | Ok(Err(StoreError::Unavailable { outcome: Outcome::Unknown, .. })) => {
                counts.in_doubt += 1;
            }
            Ok(Err(other)) => panic!("{other:?}"),
        }
    }
    counts
}

/// Everything that is written until `/end`, by one watch after the other.
async fn follow(store: Shared, after: Rev) -> BTreeMap<Rev, String> {
    let (mut seen, mut at) = (BTreeMap::new(), after);
    loop {
        let Ok(mut events) = store.watch(b"/", at).await else { continue };
        while let Some(Ok(event)) = events.next().await {
            assert!(event.rev() >= at, "{event:?} after {at}");
            at = event.rev();
            if let Event::Put { kv, .. } = event {
                let before = seen.insert(at, String::from_utf8_lossy(&kv.value).into_owned());
                assert_eq!(before, None, "{at} was told twice");
                if kv.key == b"/end".as_slice() {
                    return seen;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nothing_is_written_and_then_it_goes_on() {
    in_time(Box::pin(async {
        let mut etcd = Etcd::start(3).await;
        let store = shared(&etcd).await;
        let before = put(&store, "/k", "1").await;
        let mut events = watch(&store, "/", before).await;
        assert_eq!(next(&mut events).await.unwrap(), Event::Progress(before));
        let leader = etcd.leader().await;
        let other = (leader + 1) % 3;
        etcd.kill(leader);
        etcd.kill(other);
        let write = store.put(b"/k", Bytes::from_static(b"2"), Expect::Rev(before));
        let doubtful = match tokio::time::timeout(Duration::from_secs(3), write).await {
            Ok(Err(StoreError::Unavailable { outcome, .. })) => outcome == Outcome::Unknown,
            Err(_) => true,
            Ok(done) => panic!("{done:?}"),
        };
        etcd.run(leader);
        etcd.run(other);
        etcd.ready().await;
        let (found, _) = store.get(b"/k").await.unwrap();
        let found = found.unwrap();
        assert!(found.value == b"1".as_slice() || doubtful && found.value == b"2".as_slice(), "{found:?}");
        // Either the watch went on, or it ended with an error and can be taken up where it was.
        let set = put(&store, "/k", "3").await;
        let mut at = before;
        while at < set {
            match events.next().await {
                Some(Ok(event)) => at = event.rev(),
                Some(Err(StoreError::Unavailable { .. })) | None => {
                    events = watch(&store, "/", at).await;
                }
                Some(Err(other)) => panic!("{other:?}"),
            }
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_is_another_history() {
    in_time(Box::pin(async {
        let mut etcd = Etcd::start(1).await;
        let shared_store = etcd.store().await;
        let store: Shared = Arc::new(shared_store.clone());
        put(&store, "/k", "kept").await;
        let backup = etcd.backup();
        for n in 0..20 {
            put(&store, "/k", &n.to_string()).await;
        }
        let lost = store.revision().await.unwrap();
        let mut events = watch(&store, "/", lost).await;
        assert_eq!(next(&mut events).await.unwrap(), Event::Progress(lost));
        etcd.restore(&backup).await;
        let end = next(&mut events).await.expect_err("an event of another history");
        assert!(matches!(end, StoreError::Unavailable { .. }), "{end:?}");
        // What a store of the old history is asked fails, and says why to whoever can start anew.
        let told = shared_store.moved();
        in_time(async {
            while !told.is_cancelled() {
                assert!(
                    store.watch(b"/", lost).await.is_err(),
                    "a place in the old history was taken for one in the new"
                );
            }
        })
        .await;
        let refused = store.put(b"/k", Bytes::new(), Expect::Any).await.unwrap_err();
        assert!(matches!(refused, StoreError::Unavailable { outcome: Outcome::NotDone, .. }), "{refused:?}");
        let store = shared(&etcd).await;
        assert!(matches!(store.watch(b"/", lost).await.err(), Some(StoreError::Future { .. })));
        assert_eq!(all(&store, "/", None).await, ["/k=kept"]);
        let set = put(&store, "/k", "new").await;
        assert!(set < lost);
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_is_not_there_is_an_error_at_once() {
    let options = wharfline::store::etcd::Options {
        endpoints: vec!["127.0.0.1:1".into()],
        ..wharfline::store::etcd::Options::default()
    };
    let store = wharfline::store::etcd::EtcdStore::connect(options).await.unwrap();
    let error = in_time(store.put(b"/k", Bytes::new(), Expect::Any)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { outcome: Outcome::NotDone, .. }), "{error:?}");
    assert_eq!(in_time(store.members()).await, []);
}
