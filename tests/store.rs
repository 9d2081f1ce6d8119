//! The store: one suite over every backend, then what the embedded one promises beyond it.
// The cases are tests, though the lint cannot see it: a macro makes them so.
#![allow(clippy::unwrap_used)]
use std::sync::Arc;
use std::time::Duration;

use wharfline::store::embedded::{Durability, EmbeddedStore, MemoryDisk, Options};

#[cfg(feature = "etcd")]
#[path = "support/etcd.rs"]
mod etcd;
#[path = "support/store_embedded.rs"]
mod store_embedded;
#[cfg(feature = "etcd")]
#[path = "support/store_etcd.rs"]
mod store_etcd;
#[path = "support/store_kill.rs"]
mod store_kill;
#[path = "support/store_model.rs"]
mod store_model;
#[path = "support/store_suite.rs"]
mod store_suite;

use store_suite::Shared;

/// Far longer than any case takes; a case that hangs fails here.
const DEADLINE: Duration = Duration::from_secs(60);

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work).await.expect("the case ends in time")
}

fn relaxed() -> Options {
    Options { durability: Durability::Relaxed, ..Options::default() }
}

/// On a file, each write synced.
macro_rules! durable_cases {
    ($($case:ident,)*) => { mod durable { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            let dir = tempfile::tempdir().unwrap();
            let options = wharfline::store::embedded::Options::default();
            let store = super::EmbeddedStore::open(&dir.path().join("store"), options).unwrap();
            super::in_time(super::store_suite::$case(super::Arc::new(store))).await;
        }
    )* } };
}
store_suite::for_each_case!(durable_cases);

/// In memory, behind the writer's thread.
macro_rules! memory_cases {
    ($($case:ident,)*) => { mod memory { $(
        #[tokio::test]
        async fn $case() {
            let store = super::EmbeddedStore::open_memory(super::MemoryDisk::default(), super::relaxed());
            super::in_time(super::store_suite::$case(super::Arc::new(store.unwrap()))).await;
        }
    )* } };
}
store_suite::for_each_case!(memory_cases);

/// In the caller's task, on paused time: a wait that nothing can end fails at once.
macro_rules! inline_cases {
    ($($case:ident,)*) => { mod inline { $(
        #[tokio::test(start_paused = true)]
        async fn $case() {
            super::in_time(super::store_suite::$case(super::inline())).await;
        }
    )* } };
}
store_suite::for_each_case!(inline_cases);

fn inline() -> Shared {
    Arc::new(EmbeddedStore::inline(MemoryDisk::default(), relaxed()).expect("memory can be opened"))
}

/// In a real etcd of its own, of one member and of three.
macro_rules! etcd_cases {
    ($($case:ident,)*) => {
        #[cfg(feature = "etcd")]
        mod etcd_of_one { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let etcd = super::etcd::Etcd::start(1).await;
                super::in_time(super::store_suite::$case(super::Arc::new(etcd.store().await))).await;
            }
        )* }
        #[cfg(feature = "etcd")]
        mod etcd_of_three { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let etcd = super::etcd::Etcd::calm(3).await;
                super::in_time(super::store_suite::$case(super::Arc::new(etcd.store().await))).await;
            }
        )* }
    };
}
store_suite::for_each_case!(etcd_cases);
