//! What every backend of the store must do: one list of cases, each on a fresh store.
//!
//! Cases count revisions from wherever the store is, so that they also fit a shared server. Add a case to
//! [`for_each_case`] and it runs on every backend.
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use wharfline::store::{
    Event, Expect, KEY_LIMIT, Kv, LEADER, Rev, Store, StoreError, Unwritten, VALUE_LIMIT, Watch,
};

/// Calls the macro `$run` with the names of all cases.
macro_rules! for_each_case {
    ($run:ident) => {
        $run! {
            an_empty_store_has_nothing_and_says_when,
            create_is_exclusive_and_returns_what_is_there,
            refused_writes_use_no_revision,
            each_write_raises_the_revision_by_one,
            compare_and_swap_wants_the_last_write,
            any_writes_over_anything,
            create_revision_is_kept_until_the_key_is_made_again,
            delete_returns_what_was_there,
            delete_of_what_is_not_there_is_a_conflict,
            keys_and_values_may_be_empty_or_any_bytes,
            list_is_in_byte_order,
            prefixes_do_not_leak_into_siblings,
            pages_end_where_the_prefix_ends,
            pages_are_pinned_to_their_revision,
            an_old_state_is_told_as_it_was,
            the_future_is_refused,
            replay_has_all_writes_of_the_prefix_in_order,
            events_carry_what_was_before,
            writes_are_delivered_as_they_come,
            progress_ends_the_replay_and_follows_other_keys,
            a_watch_after_a_list_misses_nothing,
            every_revision_is_one_event_under_concurrency,
            concurrent_increments_lose_nothing,
            history_below_the_compaction_is_gone,
            history_at_the_compaction_is_whole,
            compaction_changes_no_state_and_never_goes_back,
            a_watch_overtaken_by_compaction_is_cut,
            values_up_to_the_limit_are_taken,
            more_than_four_mebibytes_are_listed_and_watched,
            a_dropped_call_leaves_all_or_nothing,
            who_leads_no_longer_writes_nothing,
            a_write_that_goes_by_another_key_ends_with_that_keys_next_write,
        }
    };
}
pub(crate) use for_each_case;

/// A store as the cases see it.
pub(crate) type Shared = Arc<dyn Store>;

pub(crate) async fn put(store: &Shared, key: &str, value: &str) -> Rev {
    put_if(store, key, value, Expect::Any).await.expect("an unconditional put is done")
}

async fn put_if(store: &Shared, key: &str, value: &str, expect: Expect) -> Result<Rev, StoreError> {
    store.put(key.as_bytes(), Bytes::copy_from_slice(value.as_bytes()), expect).await
}

async fn delete(store: &Shared, key: &str) -> Rev {
    store.delete(key.as_bytes(), Expect::Any).await.expect("the key is there to delete").0
}

async fn get(store: &Shared, key: &str) -> Option<Kv> {
    store.get(key.as_bytes()).await.expect("reading works").0
}

async fn revision(store: &Shared) -> Rev {
    store.revision().await.expect("reading works")
}

/// `key=value` of everything under `prefix`.
pub(crate) async fn all(store: &Shared, prefix: &str, at: Option<Rev>) -> Vec<String> {
    let page = store.list(prefix.as_bytes(), None, usize::MAX, at).await.expect("the revision can be listed");
    assert!(!page.more);
    page.kvs.iter().map(shown).collect()
}

fn shown(kv: &Kv) -> String {
    format!("{}={}", String::from_utf8_lossy(&kv.key), String::from_utf8_lossy(&kv.value))
}

fn conflict(error: StoreError) -> Option<Kv> {
    match error {
        StoreError::Conflict { current } => current,
        other => panic!("not a conflict: {other:?}"),
    }
}

async fn refused_watch(store: &Shared, after: Rev) -> StoreError {
    match store.watch(b"/", after).await {
        Ok(_) => panic!("the watch after {after} was not refused"),
        Err(error) => error,
    }
}

pub(crate) async fn watch(store: &Shared, prefix: &str, after: Rev) -> Watch {
    store.watch(prefix.as_bytes(), after).await.expect("the watch can begin")
}

/// The next write, progress passed over.
async fn next_write(events: &mut Watch) -> Event {
    loop {
        match events.next().await.expect("the watch goes on").expect("the watch has no error") {
            Event::Progress(_) => {}
            event => return event,
        }
    }
}

/// All writes up to the revision `until`, which must be reached by a write or by progress.
async fn writes_until(events: &mut Watch, until: Rev) -> Vec<Event> {
    let mut seen = Vec::new();
    loop {
        let event = events.next().await.expect("the watch goes on").expect("the watch has no error");
        let reached = event.rev();
        if !matches!(event, Event::Progress(_)) {
            seen.push(event);
        }
        if reached >= until {
            return seen;
        }
    }
}

fn told(event: &Event) -> String {
    match event {
        Event::Put { kv, prev } => match prev {
            None => format!("make {}", shown(kv)),
            Some(prev) => format!("set {} after {}", shown(kv), shown(prev)),
        },
        Event::Delete { prev, .. } => format!("delete {}", shown(prev)),
        Event::Progress(_) => "progress".to_owned(),
    }
}

pub(crate) async fn an_empty_store_has_nothing_and_says_when(store: Shared) {
    let (found, at) = store.get(b"/none").await.unwrap();
    assert_eq!((found, at), (None, revision(&store).await));
    let page = store.list(b"/", None, 10, None).await.unwrap();
    assert_eq!((page.kvs.len(), page.rev, page.more), (0, at, false));
    let first = put(&store, "/none", "1").await;
    let (found, at) = store.get(b"/none").await.unwrap();
    assert_eq!((found.unwrap().mod_revision, at), (first, first));
}

pub(crate) async fn create_is_exclusive_and_returns_what_is_there(store: Shared) {
    let made = put_if(&store, "/a", "one", Expect::Absent).await.unwrap();
    let current = conflict(put_if(&store, "/a", "two", Expect::Absent).await.unwrap_err()).unwrap();
    assert_eq!(shown(&current), "/a=one");
    assert_eq!((current.create_revision, current.mod_revision), (made, made));
    assert_eq!(get(&store, "/a").await, Some(current));
}

pub(crate) async fn refused_writes_use_no_revision(store: Shared) {
    let before = put(&store, "/a", "one").await;
    put_if(&store, "/a", "two", Expect::Absent).await.unwrap_err();
    put_if(&store, "/a", "two", Expect::Rev(Rev(before.0 + 7))).await.unwrap_err();
    put_if(&store, "/b", "two", Expect::Rev(before)).await.unwrap_err();
    store.delete(b"/b", Expect::Any).await.unwrap_err();
    store.delete(b"/a", Expect::Rev(before.next())).await.unwrap_err();
    store.put(b"/c", Bytes::from(vec![0; VALUE_LIMIT + 1]), Expect::Any).await.unwrap_err();
    assert_eq!(revision(&store).await, before);
    assert_eq!(put(&store, "/c", "three").await, before.next());
}

pub(crate) async fn each_write_raises_the_revision_by_one(store: Shared) {
    let mut last = revision(&store).await;
    for round in 0..5 {
        assert_eq!(put(&store, "/a", &round.to_string()).await, last.next());
        assert_eq!(put(&store, "/b", "same").await, last.next().next());
        assert_eq!(delete(&store, "/b").await, last.next().next().next());
        last = revision(&store).await;
        assert_eq!(get(&store, "/a").await.unwrap().mod_revision.0 + 2, last.0);
    }
}

pub(crate) async fn compare_and_swap_wants_the_last_write(store: Shared) {
    let one = put(&store, "/a", "one").await;
    let two = put_if(&store, "/a", "two", Expect::Rev(one)).await.unwrap();
    let current = conflict(put_if(&store, "/a", "three", Expect::Rev(one)).await.unwrap_err()).unwrap();
    assert_eq!((shown(&current), current.mod_revision), ("/a=two".to_owned(), two));
    let current = conflict(store.delete(b"/a", Expect::Rev(one)).await.unwrap_err()).unwrap();
    assert_eq!(current.mod_revision, two);
    assert_eq!(conflict(put_if(&store, "/b", "one", Expect::Rev(one)).await.unwrap_err()), None);
    assert_eq!(conflict(put_if(&store, "/b", "one", Expect::Rev(Rev::ZERO)).await.unwrap_err()), None);
    store.delete(b"/a", Expect::Rev(two)).await.unwrap();
    assert_eq!(conflict(put_if(&store, "/a", "three", Expect::Rev(two)).await.unwrap_err()), None);
}

pub(crate) async fn any_writes_over_anything(store: Shared) {
    put(&store, "/a", "one").await;
    put(&store, "/a", "two").await;
    assert_eq!(all(&store, "/", None).await, ["/a=two"]);
    delete(&store, "/a").await;
    put(&store, "/a", "three").await;
    assert_eq!(all(&store, "/", None).await, ["/a=three"]);
}

pub(crate) async fn create_revision_is_kept_until_the_key_is_made_again(store: Shared) {
    let made = put(&store, "/a", "one").await;
    let set = put(&store, "/a", "two").await;
    let kv = get(&store, "/a").await.unwrap();
    assert_eq!((kv.create_revision, kv.mod_revision), (made, set));
    delete(&store, "/a").await;
    let again = put_if(&store, "/a", "three", Expect::Absent).await.unwrap();
    let kv = get(&store, "/a").await.unwrap();
    assert_eq!((kv.create_revision, kv.mod_revision), (again, again));
}

pub(crate) async fn delete_returns_what_was_there(store: Shared) {
    let made = put(&store, "/a", "one").await;
    let set = put(&store, "/a", "two").await;
    let (rev, prev) = store.delete(b"/a", Expect::Rev(set)).await.unwrap();
    assert_eq!(rev, set.next());
    assert_eq!(shown(&prev), "/a=two");
    assert_eq!((prev.create_revision, prev.mod_revision), (made, set));
    assert_eq!(get(&store, "/a").await, None);
}

pub(crate) async fn delete_of_what_is_not_there_is_a_conflict(store: Shared) {
    for expect in [Expect::Any, Expect::Absent, Expect::Rev(Rev(1))] {
        assert_eq!(conflict(store.delete(b"/a", expect.clone()).await.unwrap_err()), None, "{expect:?}");
    }
    put(&store, "/a", "one").await;
    let current = conflict(store.delete(b"/a", Expect::Absent).await.unwrap_err()).unwrap();
    assert_eq!(shown(&current), "/a=one");
}

pub(crate) async fn keys_and_values_may_be_empty_or_any_bytes(store: Shared) {
    let bytes: Bytes = (0..=255).collect();
    let before = revision(&store).await;
    store.put(b"", Bytes::new(), Expect::Absent).await.unwrap();
    store.put(&bytes, bytes.clone(), Expect::Absent).await.unwrap();
    assert_eq!(store.get(b"").await.unwrap().0.unwrap().value, Bytes::new());
    assert_eq!(store.get(&bytes).await.unwrap().0.unwrap().value, bytes);
    assert_eq!(store.list(b"", None, 9, None).await.unwrap().kvs.len(), 2);
    let mut events = watch(&store, "", before).await;
    let seen = writes_until(&mut events, Rev(before.0 + 2)).await;
    assert_eq!(seen.iter().filter_map(Event::key).collect::<Vec<_>>(), [&Bytes::new(), &bytes]);
}

pub(crate) async fn list_is_in_byte_order(store: Shared) {
    for key in ["/k/b", "/k/a/z", "/k/a", "/k/Z", "/k/a-b", "/k/ä", "/k/a0"] {
        put(&store, key, "").await;
    }
    assert_eq!(
        all(&store, "/k/", None).await,
        ["/k/Z=", "/k/a=", "/k/a-b=", "/k/a/z=", "/k/a0=", "/k/b=", "/k/ä="]
    );
}

pub(crate) async fn prefixes_do_not_leak_into_siblings(store: Shared) {
    let before = revision(&store).await;
    let keys: [&[u8]; 9] =
        [b"/a", b"/a/", b"/a/1", b"/a0", b"/ab/1", b"/a/\xff", b"/a/\xff\xff", b"/a/\xff/1", b"/b"];
    for key in keys {
        store.put(key, Bytes::new(), Expect::Absent).await.unwrap();
    }
    let under: [(&[u8], &[&[u8]]); 5] = [
        (b"/a/", &[b"/a/", b"/a/1", b"/a/\xff", b"/a/\xff/1", b"/a/\xff\xff"]),
        (b"/ab/", &[b"/ab/1"]),
        (b"/a/\xff", &[b"/a/\xff", b"/a/\xff/1", b"/a/\xff\xff"]),
        (b"/a/\xff\xff", &[b"/a/\xff\xff"]),
        (b"/c", &[]),
    ];
    let end = revision(&store).await;
    for (prefix, wanted) in under {
        let page = store.list(prefix, None, usize::MAX, None).await.unwrap();
        let listed: Vec<&[u8]> = page.kvs.iter().map(|kv| &*kv.key).collect();
        assert_eq!(listed, wanted, "listing {prefix:?}");
        let mut events = store.watch(prefix, before).await.unwrap();
        let seen = writes_until(&mut events, end).await;
        let mut watched: Vec<&[u8]> = seen.iter().filter_map(|event| event.key().map(|key| &**key)).collect();
        watched.sort_unstable();
        assert_eq!(watched, wanted, "watching {prefix:?}");
    }
    // A prefix that no key can follow.
    store.put(b"\xff\xff", Bytes::new(), Expect::Absent).await.unwrap();
    assert_eq!(store.list(b"\xff", None, 9, None).await.unwrap().kvs.len(), 1);
}

pub(crate) async fn pages_end_where_the_prefix_ends(store: Shared) {
    for key in ["/a/1", "/k/1", "/k/2", "/k/3", "/l/1"] {
        put(&store, key, "").await;
    }
    let cases: [(Option<&str>, usize, &[&str], bool); 9] = [
        (None, 3, &["/k/1", "/k/2", "/k/3"], false),
        (None, 2, &["/k/1", "/k/2"], true),
        (None, 0, &[], true),
        (Some("/k/1"), 1, &["/k/2"], true),
        (Some("/k/2"), 1, &["/k/3"], false),
        (Some("/k/3"), 1, &[], false),
        (Some("/k/15"), 9, &["/k/2", "/k/3"], false), // the key may be gone meanwhile
        (Some("/a"), 9, &["/k/1", "/k/2", "/k/3"], false),
        (Some("/l/0"), 9, &[], false),
    ];
    for (after, limit, keys, more) in cases {
        let page = store.list(b"/k/", after.map(str::as_bytes), limit, None).await.unwrap();
        let listed: Vec<&[u8]> = page.kvs.iter().map(|kv| &*kv.key).collect();
        let wanted: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        assert_eq!((listed, page.more), (wanted, more), "after {after:?} limit {limit}");
        if let (Some(left), None) = (page.left, after) {
            assert_eq!(left, 3 - keys.len(), "limit {limit}");
        }
        assert!(page.more || page.left.is_none_or(|left| left == 0));
    }
}

pub(crate) async fn pages_are_pinned_to_their_revision(store: Shared) {
    for n in 0..10 {
        put(&store, &format!("/k/{n}"), "old").await;
    }
    let mut page = store.list(b"/k/", None, 3, None).await.unwrap();
    let at = page.rev;
    let mut listed: Vec<String> = page.kvs.iter().map(shown).collect();
    let mut round = 0;
    while page.more {
        // Behind, in and before the page to come: made, set, deleted and made again.
        put(&store, &format!("/k/{round}5"), "new").await;
        put(&store, "/k/9", "new").await;
        delete(&store, &format!("/k/{}", 8 - round)).await;
        put(&store, &format!("/k/{}", 8 - round), "new").await;
        delete(&store, &format!("/k/{round}")).await;
        round += 1;
        let after = page.kvs.last().unwrap().key.clone();
        page = store.list(b"/k/", Some(&after), 3, Some(at)).await.unwrap();
        assert_eq!(page.rev, at);
        listed.extend(page.kvs.iter().map(shown));
        assert!(page.left.is_none_or(|left| left == 10 - listed.len()), "as of that revision");
    }
    assert_eq!(round, 3);
    assert_eq!(listed, (0..10).map(|n| format!("/k/{n}=old")).collect::<Vec<_>>());
}

pub(crate) async fn an_old_state_is_told_as_it_was(store: Shared) {
    let mut states = vec![(revision(&store).await, Vec::new())];
    let steps =
        [("/k/a", "1"), ("/k/b", "1"), ("/k/a", "2"), ("/k/b", ""), ("/x", "1"), ("/k/b", "2"), ("/k/a", "")];
    for (key, value) in steps {
        let rev = match value {
            "" => delete(&store, key).await,
            value => put(&store, key, value).await,
        };
        states.push((rev, all(&store, "/k/", None).await));
    }
    assert_eq!(states[3].1, ["/k/a=2", "/k/b=1"]);
    assert_eq!(states[7].1, ["/k/b=2"]);
    for (at, state) in &states {
        assert_eq!(all(&store, "/k/", Some(*at)).await, *state, "at {at}");
        let first = store.list(b"/k/", None, 1, Some(*at)).await.unwrap();
        assert_eq!((first.kvs.len(), first.more), (state.len().min(1), state.len() > 1), "first of {at}");
    }
    let made = store.list(b"/k/", None, 1, Some(states[3].0)).await.unwrap().kvs.remove(0);
    assert_eq!((made.create_revision, made.mod_revision), (states[1].0, states[3].0));
}

pub(crate) async fn the_future_is_refused(store: Shared) {
    let now = put(&store, "/a", "one").await;
    let errors = [
        store.list(b"/", None, 9, Some(now.next())).await.unwrap_err(),
        refused_watch(&store, now.next()).await,
        store.compact(now.next()).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, StoreError::Future { current } if current == now), "{error:?}");
    }
    assert_eq!(store.list(b"/", None, 9, Some(now)).await.unwrap().kvs.len(), 1);
}

pub(crate) async fn replay_has_all_writes_of_the_prefix_in_order(store: Shared) {
    let before = revision(&store).await;
    for n in 0..6 {
        put(&store, &format!("/k/{}", 5 - n), "1").await;
        put(&store, "/other", "1").await;
    }
    delete(&store, "/k/3").await;
    let end = put(&store, "/k/9", "1").await;
    let mut events = watch(&store, "/k/", before).await;
    let seen = writes_until(&mut events, end).await;
    let keys: Vec<_> = seen.iter().map(told).collect();
    assert_eq!(
        keys,
        [
            "make /k/5=1",
            "make /k/4=1",
            "make /k/3=1",
            "make /k/2=1",
            "make /k/1=1",
            "make /k/0=1",
            "delete /k/3=1",
            "make /k/9=1"
        ]
    );
    assert!(seen.is_sorted_by(|one, two| one.rev() < two.rev()));
    let mut later = watch(&store, "/k/", seen[5].rev()).await;
    assert_eq!(writes_until(&mut later, end).await, seen[6..]);
}

pub(crate) async fn events_carry_what_was_before(store: Shared) {
    let before = revision(&store).await;
    let made = put(&store, "/k", "one").await;
    let set = put(&store, "/k", "two").await;
    let gone = delete(&store, "/k").await;
    let again = put(&store, "/k", "three").await;
    let mut events = watch(&store, "/k", before).await;
    let seen = writes_until(&mut events, again).await;
    let kv = |value: &'static str, create_revision, mod_revision| Kv {
        key: Bytes::from_static(b"/k"),
        value: Bytes::from_static(value.as_bytes()),
        create_revision,
        mod_revision,
    };
    let (one, two) = (kv("one", made, made), kv("two", made, set));
    assert_eq!(
        seen,
        [
            Event::Put { kv: one.clone(), prev: None },
            Event::Put { kv: two.clone(), prev: Some(one) },
            Event::Delete { key: two.key.clone(), rev: gone, prev: two },
            Event::Put { kv: kv("three", again, again), prev: None },
        ]
    );
}

pub(crate) async fn writes_are_delivered_as_they_come(store: Shared) {
    let now = put(&store, "/k/0", "old").await;
    let mut one = watch(&store, "/k/", now).await;
    let mut two = watch(&store, "/", now).await;
    for n in 1..20 {
        let rev = put(&store, &format!("/k/{n}"), "1").await;
        assert_eq!(next_write(&mut one).await.rev(), rev);
        assert_eq!(next_write(&mut two).await.rev(), rev);
    }
    let rev = delete(&store, "/k/7").await;
    assert_eq!(next_write(&mut one).await.rev(), rev);
    assert_eq!(told(&next_write(&mut two).await), "delete /k/7=1");
}

pub(crate) async fn progress_ends_the_replay_and_follows_other_keys(store: Shared) {
    let one = put(&store, "/k/1", "1").await;
    let two = put(&store, "/other", "1").await;
    let mut events = watch(&store, "/k/", Rev(one.0 - 1)).await;
    assert_eq!(events.next().await.unwrap().unwrap().rev(), one);
    assert_eq!(events.next().await.unwrap().unwrap(), Event::Progress(two));
    let three = put(&store, "/other", "2").await;
    assert_eq!(events.next().await.unwrap().unwrap(), Event::Progress(three));
    let four = put(&store, "/k/1", "2").await;
    assert_eq!(told(&events.next().await.unwrap().unwrap()), "set /k/1=2 after /k/1=1");
    // Nothing was written since: a new watch has nothing to replay and says so at once.
    let mut late = watch(&store, "/k/", four).await;
    assert_eq!(late.next().await.unwrap().unwrap(), Event::Progress(four));
}

pub(crate) async fn a_watch_after_a_list_misses_nothing(store: Shared) {
    for round in 0_u32..60 {
        let writer = tokio::spawn({
            let store = store.clone();
            async move {
                for n in 0..8 {
                    put(&store, &format!("/k/{n}"), &round.to_string()).await;
                    for _ in 0..round % 7 {
                        tokio::task::yield_now().await;
                    }
                }
                revision(&store).await
            }
        });
        for _ in 0..round % 11 {
            tokio::task::yield_now().await;
        }
        let page = store.list(b"/k/", None, usize::MAX, None).await.unwrap();
        for _ in 0..round % 5 {
            tokio::task::yield_now().await;
        }
        let mut events = watch(&store, "/k/", page.rev).await;
        let mut last = page.rev;
        let end = writer.await.unwrap();
        while last < end {
            // Nothing but these keys is written, so a gap in the revisions is a write that was missed.
            match events.next().await.unwrap().unwrap() {
                Event::Progress(rev) => assert_eq!(rev, last),
                event => {
                    assert_eq!(event.rev(), last.next());
                    last = event.rev();
                }
            }
        }
    }
}

pub(crate) async fn every_revision_is_one_event_under_concurrency(store: Shared) {
    let before = revision(&store).await;
    let watchers: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut events = watch(&store, "", before).await;
                writes_until(&mut events, Rev(before.0 + 200)).await
            })
        })
        .collect();
    let writers: Vec<_> = (0..10)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in 0..10 {
                    put(&store, &format!("/k/{}", (task + n) % 4), &format!("{task}.{n}")).await;
                    put(&store, &format!("/k/{task}"), &format!("{task}.{n}")).await;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(revision(&store).await, Rev(before.0 + 200));
    let mut first: Option<Vec<Event>> = None;
    for watcher in watchers {
        let seen = watcher.await.unwrap();
        let revs: Vec<u64> = seen.iter().map(|event| event.rev().0).collect();
        assert_eq!(revs, (before.0 + 1..=before.0 + 200).collect::<Vec<_>>());
        assert_eq!(*first.get_or_insert_with(|| seen.clone()), seen);
    }
}

pub(crate) async fn concurrent_increments_lose_nothing(store: Shared) {
    put(&store, "/count", "0").await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..25 {
                    let mut kv = get(&store, "/count").await.unwrap();
                    loop {
                        let count: u32 = std::str::from_utf8(&kv.value).unwrap().parse().unwrap();
                        let next = (count + 1).to_string();
                        match put_if(&store, "/count", &next, Expect::Rev(kv.mod_revision)).await {
                            Ok(_) => break,
                            Err(error) => kv = conflict(error).unwrap(),
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(all(&store, "/count", None).await, ["/count=200"]);
}

/// Five writes of `/k`, compacted at the third: its revision.
async fn compacted_at_the_third(store: &Shared) -> Rev {
    let first = put(store, "/k", "1").await;
    put(store, "/k", "2").await;
    let third = put(store, "/k", "3").await;
    delete(store, "/k").await;
    put(store, "/k", "5").await;
    assert_eq!(all(store, "/k", Some(first)).await, ["/k=1"]);
    store.compact(third).await.expect("the revision is in the past");
    third
}

pub(crate) async fn history_below_the_compaction_is_gone(store: Shared) {
    let at = compacted_at_the_third(&store).await;
    let below = Rev(at.0 - 1);
    let errors =
        [store.list(b"/", None, 9, Some(below)).await.unwrap_err(), refused_watch(&store, below).await];
    for error in errors {
        assert!(matches!(error, StoreError::Compacted { at: told } if told == at), "{error:?}");
    }
}

pub(crate) async fn history_at_the_compaction_is_whole(store: Shared) {
    let at = compacted_at_the_third(&store).await;
    assert_eq!(all(&store, "/", Some(at)).await, ["/k=3"]);
    assert_eq!(all(&store, "/", Some(at.next())).await, Vec::<String>::new());
    let mut events = watch(&store, "/", at).await;
    let seen = writes_until(&mut events, Rev(at.0 + 2)).await;
    assert_eq!(seen.iter().map(told).collect::<Vec<_>>(), ["delete /k=3", "make /k=5"]);
}

pub(crate) async fn compaction_changes_no_state_and_never_goes_back(store: Shared) {
    let at = compacted_at_the_third(&store).await;
    let end = revision(&store).await;
    assert_eq!(store.compacted().await.unwrap(), at);
    store.compact(Rev(at.0 - 1)).await.unwrap();
    store.compact(at).await.unwrap();
    assert_eq!(store.compacted().await.unwrap(), at);
    assert_eq!(revision(&store).await, end);
    assert_eq!(all(&store, "/", None).await, ["/k=5"]);
    store.compact(end).await.unwrap();
    assert_eq!(store.compacted().await.unwrap(), end);
    assert_eq!(all(&store, "/", Some(end)).await, ["/k=5"]);
    let mut events = watch(&store, "/", end).await;
    assert_eq!(put(&store, "/k", "6").await, end.next());
    assert_eq!(told(&next_write(&mut events).await), "set /k=6 after /k=5");
}

pub(crate) async fn a_watch_overtaken_by_compaction_is_cut(store: Shared) {
    let before = put(&store, "/k", "0").await;
    let mut events = watch(&store, "/", before).await;
    assert_eq!(events.next().await.unwrap().unwrap(), Event::Progress(before));
    // More than a backend may have read ahead or keep in memory.
    let large = "x".repeat(64 * 1024);
    futures::future::join_all((0..64).map(|_| put(&store, "/k", &large))).await;
    let at = revision(&store).await;
    store.compact(at).await.unwrap();
    let mut last = before;
    loop {
        match events.next().await.expect("an error comes before the end") {
            Ok(event) => {
                assert_eq!(event.rev(), last.next());
                last = event.rev();
            }
            Err(StoreError::Compacted { at: told }) => break assert_eq!(told, at),
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(events.next().await.is_none());
    assert!(last < at);
}

pub(crate) async fn values_up_to_the_limit_are_taken(store: Shared) {
    let before = revision(&store).await;
    let largest = Bytes::from(vec![7; VALUE_LIMIT]);
    for _ in 0..2 {
        store.put(b"/k", largest.clone(), Expect::Any).await.unwrap();
    }
    assert_eq!(get(&store, "/k").await.unwrap().value, largest);
    let mut events = watch(&store, "/", before).await;
    let seen = writes_until(&mut events, Rev(before.0 + 2)).await;
    assert!(
        matches!(&seen[1], Event::Put { kv, prev: Some(prev) } if kv.value == largest && prev.value == largest)
    );
    let over = store.put(b"/k", Bytes::from(vec![7; VALUE_LIMIT + 1]), Expect::Any).await.unwrap_err();
    assert!(
        matches!(over, StoreError::TooLarge { size, limit } if size == limit + 1 && limit == VALUE_LIMIT)
    );
    let key = vec![b'k'; KEY_LIMIT];
    store.put(&key, Bytes::new(), Expect::Absent).await.unwrap();
    let over = store.put(&[&key[..], b"k"].concat(), Bytes::new(), Expect::Absent).await.unwrap_err();
    assert!(matches!(over, StoreError::TooLarge { limit: KEY_LIMIT, .. }));
}

pub(crate) async fn more_than_four_mebibytes_are_listed_and_watched(store: Shared) {
    let before = revision(&store).await;
    let value = Bytes::from(vec![7; 16 * 1024]);
    let writes: Vec<_> = (0..400)
        .map(|n| {
            let (store, value) = (store.clone(), value.clone());
            tokio::spawn(
                async move { store.put(format!("/k/{n:03}").as_bytes(), value, Expect::Absent).await },
            )
        })
        .collect();
    for write in writes {
        write.await.unwrap().unwrap();
    }
    for at in [None, Some(revision(&store).await)] {
        let page = store.list(b"/k/", None, usize::MAX, at).await.unwrap();
        assert_eq!(page.kvs.len(), 400);
        assert!(page.kvs.iter().all(|kv| kv.value == value));
    }
    let mut events = watch(&store, "/k/", before).await;
    let seen = writes_until(&mut events, Rev(before.0 + 400)).await;
    assert_eq!(seen.len(), 400);
    assert!(seen.iter().all(|event| matches!(event, Event::Put { kv, .. } if kv.value == value)));
}

pub(crate) async fn a_dropped_call_leaves_all_or_nothing(store: Shared) {
    let before = revision(&store).await;
    for polls in 0..20 {
        let mut write = Box::pin(put(&store, "/k", "dropped"));
        for _ in 0..polls % 5 {
            if futures::poll!(&mut write).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(write);
        put(&store, "/done", &polls.to_string()).await;
    }
    let end = revision(&store).await;
    let mut events = watch(&store, "", before).await;
    let seen = writes_until(&mut events, end).await;
    assert_eq!(seen.len() as u64, end.0 - before.0);
    assert_eq!(seen.iter().filter(|event| event.key().is_some_and(|key| key == "/done")).count(), 20);
}

pub(crate) async fn a_write_that_goes_by_another_key_ends_with_that_keys_next_write(store: Shared) {
    let leader = std::str::from_utf8(LEADER).expect("it is text");
    let term = put(&store, leader, "a").await;
    let by_of = |term, rev, key: &'static str, seen| {
        let also = Unwritten { key: Bytes::from_static(key.as_bytes()), rev: seen };
        Expect::Led { rev, term, also: Some(Arc::new(also)) }
    };
    let by = |rev, key, seen| by_of(Some(term), rev, key, seen);
    let lease = put(&store, "/lease", "1").await;
    let made =
        put_if(&store, "/by", "1", by(None, "/lease", Some(lease))).await.expect("it is as it was seen");
    let changed =
        put_if(&store, "/by", "2", by(Some(made), "/none", None)).await.expect("it is not there still");
    let renewed = put(&store, "/lease", "2").await;
    let before = revision(&store).await;
    let cases = [
        (Some(changed), "/lease", Some(lease)),
        (Some(changed), "/lease", None),
        (Some(changed), "/none", Some(lease)),
        // Its own key is not as expected either.
        (Some(made), "/lease", Some(lease)),
        (None, "/lease", Some(lease)),
    ];
    for (rev, key, seen) in cases {
        let late = put_if(&store, "/by", "3", by(rev, key, seen)).await.expect_err("it was written");
        assert!(matches!(late, StoreError::Overtaken), "{rev:?} {key} {seen:?}: {late:?}");
        let late = store.delete(b"/by", by(rev, key, seen)).await.expect_err("it was written");
        assert!(matches!(late, StoreError::Overtaken), "delete {rev:?} {key} {seen:?}: {late:?}");
    }
    let stale = put_if(&store, "/by", "3", by(Some(made), "/lease", Some(renewed))).await;
    assert_eq!(conflict(stale.expect_err("it was changed")).map(|kv| kv.mod_revision), Some(changed));
    // Where but one could lead, only the other key counts.
    let late = put_if(&store, "/by", "3", by_of(None, Some(changed), "/lease", Some(lease))).await;
    assert!(matches!(late, Err(StoreError::Overtaken)), "{late:?}");
    let changed = put_if(&store, "/by", "3", by_of(None, Some(changed), "/lease", Some(renewed))).await;
    let changed = changed.expect("it is as it was seen");
    // Who leads is asked first: a leader that is none learns that, whatever else is so.
    put(&store, leader, "b").await;
    let deposed = put_if(&store, "/by", "3", by(Some(changed), "/lease", Some(lease))).await;
    assert!(matches!(deposed, Err(StoreError::Deposed)), "{deposed:?}");
    assert_eq!(revision(&store).await.0, before.0 + 2, "a refused write uses no revision");
    assert_eq!(get(&store, "/by").await.map(|kv| kv.mod_revision), Some(changed));
}

pub(crate) async fn who_leads_no_longer_writes_nothing(store: Shared) {
    let leader = std::str::from_utf8(LEADER).expect("it is text");
    let first = put(&store, leader, "a").await;
    let led = |rev, term| Expect::Led { rev, term: Some(term), also: None };
    let made = put_if(&store, "/led", "1", led(None, first)).await.expect("the leader makes it");
    let exists = put_if(&store, "/led", "2", led(None, first)).await.expect_err("it is there");
    assert_eq!(conflict(exists).map(|kv| kv.mod_revision), Some(made));
    let changed = put_if(&store, "/led", "2", led(Some(made), first)).await.expect("the leader changes it");
    let stale = put_if(&store, "/led", "3", led(Some(made), first)).await.expect_err("it was changed");
    assert_eq!(conflict(stale).map(|kv| kv.mod_revision), Some(changed));
    let second = put(&store, leader, "b").await;
    let before = revision(&store).await;
    for (key, rev) in [("/led", Some(changed)), ("/led", None), ("/new", None), ("/led", Some(made))] {
        let deposed = put_if(&store, key, "4", led(rev, first)).await.expect_err("another leads");
        assert!(matches!(deposed, StoreError::Deposed), "{key} {rev:?}: {deposed:?}");
        let deposed = store.delete(key.as_bytes(), led(rev, first)).await.expect_err("another leads");
        assert!(matches!(deposed, StoreError::Deposed), "delete {key} {rev:?}: {deposed:?}");
    }
    assert_eq!(revision(&store).await, before, "a refused write uses no revision");
    assert_eq!(get(&store, "/led").await.map(|kv| kv.mod_revision), Some(changed));
    // Others write as ever, and the new leader goes on.
    let other = put_if(&store, "/led", "5", Expect::Rev(changed)).await.expect("no leader is needed");
    let (_, gone) = store.delete(b"/led", led(Some(other), second)).await.expect("the new leader deletes it");
    assert_eq!(gone.mod_revision, other);
    let gone = store.delete(b"/led", led(Some(other), second)).await.expect_err("it is gone");
    assert_eq!(conflict(gone), None);
    // Without any leader nobody is it.
    delete(&store, leader).await;
    let deposed = put_if(&store, "/led", "6", led(None, second)).await.expect_err("nobody leads");
    assert!(matches!(deposed, StoreError::Deposed), "{deposed:?}");
}
