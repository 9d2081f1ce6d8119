//! The embedded backend: a file on this machine and its write-ahead log, or memory, through `redb`.
//!
//! ```text
//! put, delete, compact ─ queue ─ one writer ─ one frame of the log per batch ─ engine ─┬─ answers
//!                                                                                      └─ published revision ─ watches
//! get, list, watch ───── snapshots of the engine, or the newest events in memory
//! ```
//! It never answers a write before it is on the disk ([`Durability::Synced`]), never blocks a runtime on a long
//! read, and holds no more than its cache, its queue and a bounded piece of history in memory.
mod commit;
mod core;
mod disk;
mod fault;
mod memory;
mod queue;
mod recent;
mod record;
mod snapshot;
mod wal;
mod watch;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use self::commit::{Answer, Request, Writer};
use self::core::Core;
use self::disk::Disk;
pub use self::disk::OpenError;
use self::fault::Fault;
pub use self::memory::MemoryDisk;
use self::queue::Queue;
use self::snapshot::Wanted;
use self::watch::Follower;
use super::{Event, Expect, KEY_LIMIT, Kv, Page, Rev, Store, StoreError, VALUE_LIMIT, Watch, within};

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When it would survive a loss of power.
    Synced,
    /// At once; a crash may lose it. For tests.
    Relaxed,
}

/// How an embedded store behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When a write counts as done.
    pub durability: Durability,
    /// Bytes of the file kept in memory.
    pub cache_bytes: usize,
    /// A watch that had caught up and then fell this many revisions behind is cut with
    /// [`StoreError::TooSlow`]: whoever is that late is served better by a list.
    pub watch_lag: u64,
}

impl Default for Options {
    fn default() -> Self {
        let unsynced = planted!("acknowledged-unsynced");
        let durability = if unsynced { Durability::Relaxed } else { Durability::Synced };
        Options { durability, cache_bytes: 4 * 1024 * 1024, watch_lag: 10_000 }
    }
}

/// The embedded store. Dropping it finishes the writes already taken, ends all watches and frees the file.
pub struct EmbeddedStore {
    core: Arc<Core>,
    writing: Writing,
    reading: Reading,
    watch_lag: u64,
}

enum Writing {
    Queued(Queue),
    Inline(Mutex<Writer>),
}

/// Where reads that may take long are done.
#[derive(Clone, Copy)]
enum Reading {
    BlockingPool,
    Caller,
}

impl Reading {
    async fn run<T, F>(self, core: Arc<Core>, read: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Core) -> Result<T, StoreError> + Send + 'static,
    {
        match self {
            Reading::Caller => read(&core),
            Reading::BlockingPool => {
                let done = tokio::task::spawn_blocking(move || read(&core)).await;
                done.map_err(|_| Fault::Closed)?
            }
        }
    }
}

impl EmbeddedStore {
    /// Opens or makes the store in the file `path`, with `path.wal` and `path.lock` beside it. Blocks, after a crash amid
    /// writes for as long as checking the whole file takes; starts the writer's thread. Its calls need a tokio runtime whose
    /// time is not paused.
    pub fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        let core = Core::open(Disk::file(path, options.cache_bytes)?, options.cache_bytes)?;
        Self::queued(core, options)
    }

    /// As [`Self::open`], in memory.
    pub fn open_memory(disk: MemoryDisk, options: Options) -> Result<Self, OpenError> {
        Self::queued(Core::open(Disk::Memory(disk), options.cache_bytes)?, options)
    }

    /// In memory, with every write done in the caller's task: no thread, no clock, no randomness, so that a
    /// simulation on one current-thread runtime with paused time replays the same each time. A caller may be
    /// dropped just before or just after its write, as it may with the others.
    pub fn inline(disk: MemoryDisk, options: Options) -> Result<Self, OpenError> {
        let core = Arc::new(Core::open(Disk::Memory(disk), options.cache_bytes)?);
        let writer = Mutex::new(Writer::new(core.clone(), options.durability));
        let watch_lag = options.watch_lag;
        Ok(EmbeddedStore { core, writing: Writing::Inline(writer), reading: Reading::Caller, watch_lag })
    }

    fn queued(core: Core, options: Options) -> Result<Self, OpenError> {
        let core = Arc::new(core);
        let queue = Queue::start(Writer::new(core.clone(), options.durability))?;
        let watch_lag = options.watch_lag;
        Ok(EmbeddedStore { core, writing: Writing::Queued(queue), reading: Reading::BlockingPool, watch_lag })
    }

    async fn write(&self, request: Request) -> Answer {
        match &self.writing {
            Writing::Queued(queue) => queue.write(request).await,
            Writing::Inline(writer) => {
                tokio::task::yield_now().await;
                let answer = write_now(&mut writer.lock().unwrap_or_else(PoisonError::into_inner), request);
                tokio::task::yield_now().await;
                answer
            }
        }
    }
}

fn write_now(writer: &mut Writer, request: Request) -> Answer {
    let answer = writer.commit(vec![request]).pop();
    while writer.trim() {}
    answer.unwrap_or_else(|| Err(Fault::Closed.in_doubt()))
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn revision(&self) -> Result<Rev, StoreError> {
        Ok(self.core.snapshot()?.rev)
    }

    // One key takes a few microseconds: less than handing it to another thread.
    async fn get(&self, key: &[u8]) -> Result<(Option<Kv>, Rev), StoreError> {
        let snapshot = self.core.snapshot()?;
        Ok((snapshot.get(key)?, snapshot.rev))
    }

    async fn list(
        &self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        at: Option<Rev>,
    ) -> Result<Page, StoreError> {
        let wanted = Wanted { prefix: prefix.to_vec(), after: after.map(<[u8]>::to_vec), limit, at };
        self.reading.run(self.core.clone(), move |core| core.snapshot()?.list(&wanted)).await
    }

    async fn put(&self, key: &[u8], value: Bytes, expect: Expect) -> Result<Rev, StoreError> {
        within(key, KEY_LIMIT)?;
        within(&value, VALUE_LIMIT)?;
        let written = self.write(Request::Put { key: Bytes::copy_from_slice(key), value, expect }).await?;
        written.map(|event| event.rev()).ok_or_else(|| Fault::Closed.in_doubt())
    }

    async fn delete(&self, key: &[u8], expect: Expect) -> Result<(Rev, Kv), StoreError> {
        match self.write(Request::Delete { key: Bytes::copy_from_slice(key), expect }).await? {
            Some(Event::Delete { rev, prev, .. }) => Ok((rev, prev)),
            Some(Event::Put { .. } | Event::Progress(_)) | None => Err(Fault::Closed.in_doubt()),
        }
    }

    async fn watch(&self, prefix: &[u8], after: Rev) -> Result<Watch, StoreError> {
        self.core.snapshot()?.reachable(after)?;
        Ok(Follower::new(&self.core, self.reading, prefix, after, self.watch_lag).into_stream())
    }

    async fn compact(&self, rev: Rev) -> Result<(), StoreError> {
        self.write(Request::Compact { rev }).await.map(|_| ())
    }

    async fn compacted(&self) -> Result<Rev, StoreError> {
        Ok(self.core.snapshot()?.compacted)
    }
}
