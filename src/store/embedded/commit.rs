//! Writing: a batch of requests becomes one commit of the engine, durable before anyone is answered.
//!
//! Within a batch each request sees those before it. A request that is refused changes nothing and uses no
//! revision; a batch of which nothing remains is not committed. If the engine fails, the whole batch failed:
//! certainly when the commit was not reached, with unknown outcome when it was.
use std::sync::Arc;

use bytes::Bytes;
use redb::{Durability, ReadableTable, Table, WriteTransaction};

use super::core::Core;
use super::fault::Fault;
use super::record::{self, COMPACTED, KV, LOG, META, REVISION};
use crate::store::{Event, Expect, Kv, Rev, StoreError};

/// Most requests that share a commit.
pub(super) const BATCH: usize = 256;
/// Most log records that one commit forgets, so that compaction does not hold up writes.
const TRIM: u64 = 1024;

/// One write.
pub(super) enum Request {
    Put { key: Bytes, value: Bytes, expect: Expect },
    Delete { key: Bytes, expect: Expect },
    Compact { rev: Rev },
}

/// What was written; `None` for a compaction.
pub(super) type Answer = Result<Option<Event>, StoreError>;

/// The only one who writes.
pub(super) struct Writer {
    core: Arc<Core>,
    durability: Durability,
    /// History below the compaction revision may still be lying there.
    trim_owed: bool,
    /// The last commit says of every page whether it is in use, so that whoever opens the file after a kill need
    /// not read all of it to know.
    settled: bool,
}

impl Writer {
    pub(super) fn new(core: Arc<Core>, durability: Durability) -> Self {
        // A kill may have come between a compaction and the end of its trimming.
        Writer { core, durability, trim_owed: true, settled: false }
    }

    /// One answer per request, in order.
    pub(super) fn commit(&mut self, requests: Vec<Request>) -> Vec<Answer> {
        self.write(requests, false)
    }

    /// As [`Self::commit`], and a settled store stays settled. It takes one sync more.
    pub(super) fn commit_settled(&mut self, requests: Vec<Request>) -> Vec<Answer> {
        self.write(requests, self.settled)
    }

    fn write(&mut self, requests: Vec<Request>, settled: bool) -> Vec<Answer> {
        let count = requests.len();
        let failed = |error: StoreError| vec![Err(error); count];
        if let Err(fault) = self.core.recover() {
            return failed(fault.not_done());
        }
        match self.attempt(requests, settled) {
            Ok((answers, events)) => {
                self.core.publish(events);
                answers
            }
            Err(Stage::BeforeCommit(fault)) => {
                self.reopen(&fault);
                failed(fault.not_done())
            }
            Err(Stage::InCommit(fault)) => {
                self.reopen(&fault);
                failed(fault.in_doubt())
            }
        }
    }

    /// Forgets a piece of what was compacted; true if there is more to forget.
    pub(super) fn trim(&mut self) -> bool {
        if self.trim_owed {
            // After a failure the next compaction takes it up again.
            self.trim_owed = self.trim_piece().unwrap_or_else(|fault| {
                self.reopen(&fault);
                false
            });
        }
        self.trim_owed
    }

    /// Whether a kill now would leave a file that has to be read whole before it can be used again.
    pub(super) fn unsettled(&self) -> bool {
        !self.settled && matches!(self.durability, Durability::Immediate)
    }

    /// Commits nothing but the state of every page. It takes one sync more than another commit, so it is for
    /// when nobody waits.
    pub(super) fn settle(&mut self) {
        // After a failure the next write opens the file anew, and unsettles it.
        self.settled = true;
        if let Err(fault) = self.settle_now() {
            self.reopen(&fault);
        }
    }

    fn settle_now(&self) -> Result<(), Fault> {
        let mut txn = self.begin()?;
        txn.set_quick_repair(true);
        Ok(txn.commit()?)
    }

    fn attempt(&mut self, requests: Vec<Request>, settled: bool) -> Result<(Vec<Answer>, Vec<Event>), Stage> {
        let mut txn = self.begin()?;
        txn.set_quick_repair(settled);
        let mut batch = Batch::open(&txn)?;
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(batch.apply(request)?);
        }
        let Done { events, compacted } = batch.finish()?;
        let names: Vec<String> =
            if cfg!(feature = "kill-points") { events.iter().map(name_of).collect() } else { Vec::new() };
        if events.is_empty() && !compacted {
            txn.abort().map_err(Fault::from)?;
        } else {
            for name in &names {
                effect!("{name}");
            }
            self.settled = settled;
            txn.commit().map_err(|error| Stage::InCommit(error.into()))?;
            for name in &names {
                effect!("{name}: committed");
            }
            self.trim_owed |= compacted;
        }
        Ok((answers, events))
    }

    fn trim_piece(&mut self) -> Result<bool, Fault> {
        let txn = self.begin()?;
        let compacted = txn.open_table(META)?.get(COMPACTED)?.map_or(0, |rev| rev.value());
        let first = txn.open_table(LOG)?.first()?.map(|(rev, _)| rev.value());
        let Some(first) = first.filter(|first| *first <= compacted) else {
            txn.abort()?;
            return Ok(false);
        };
        let last = compacted.min(first.saturating_add(TRIM - 1));
        txn.open_table(LOG)?.retain_in(first..=last, |_, _| false)?;
        self.settled = false;
        txn.commit()?;
        Ok(last < compacted)
    }

    /// The engine failed: it is of no more use, and is opened anew, at once or else before the next write.
    fn reopen(&self, cause: &Fault) {
        tracing::error!(cause = cause as &dyn std::error::Error, "the store's file failed");
        self.core.abandon();
        if let Err(fault) = self.core.recover() {
            tracing::error!(cause = &fault as &dyn std::error::Error, "the store stays unavailable");
        }
    }

    fn begin(&self) -> Result<WriteTransaction, Fault> {
        let mut txn = self.core.begin_write()?;
        txn.set_durability(self.durability)?;
        Ok(txn)
    }
}

/// A write by its kind, which a key has in fourth place: names differ from run to run.
fn name_of(event: &Event) -> String {
    let verb = if matches!(event, Event::Delete { .. }) { "delete" } else { "put" };
    let key = String::from_utf8_lossy(event.key().map_or(&[][..], |key| key));
    format!("{verb} {}", key.split('/').nth(3).unwrap_or(&key))
}

/// How far a failed batch got.
enum Stage {
    BeforeCommit(Fault),
    InCommit(Fault),
}

impl From<Fault> for Stage {
    fn from(fault: Fault) -> Self {
        Stage::BeforeCommit(fault)
    }
}

struct Done {
    events: Vec<Event>,
    compacted: bool,
}

struct Batch<'txn> {
    kv: Table<'txn, &'static [u8], &'static [u8]>,
    log: Table<'txn, u64, &'static [u8]>,
    meta: Table<'txn, &'static str, u64>,
    rev: Rev,
    compacted: Rev,
    done: Done,
}

impl<'txn> Batch<'txn> {
    fn open(txn: &'txn WriteTransaction) -> Result<Self, Fault> {
        let meta = txn.open_table(META)?;
        let number = |name: &str| -> Result<Rev, Fault> { Ok(Rev(meta.get(name)?.map_or(0, |n| n.value()))) };
        let (rev, compacted) = (number(REVISION)?, number(COMPACTED)?);
        let done = Done { events: Vec::new(), compacted: false };
        Ok(Batch { kv: txn.open_table(KV)?, log: txn.open_table(LOG)?, meta, rev, compacted, done })
    }

    /// The outer error fails the batch, the inner one refuses this request.
    fn apply(&mut self, request: Request) -> Result<Answer, Fault> {
        match request {
            Request::Put { key, value, expect } => self.put(key, value, expect),
            Request::Delete { key, expect } => self.delete(key, expect),
            Request::Compact { rev } => Ok(self.compact(rev)),
        }
    }

    fn put(&mut self, key: Bytes, value: Bytes, expect: Expect) -> Result<Answer, Fault> {
        let prev = self.get(&key)?;
        if !holds(expect, prev.as_ref()) {
            return Ok(Err(StoreError::Conflict { current: prev }));
        }
        let rev = self.rev.next();
        let create_revision = prev.as_ref().map_or(rev, |prev| prev.create_revision);
        let kv = Kv { key, value, create_revision, mod_revision: rev };
        self.kv.insert(&*kv.key, record::encode_kv(&kv).as_slice())?;
        self.note(Event::Put { kv, prev }).map(Ok)
    }

    fn delete(&mut self, key: Bytes, expect: Expect) -> Result<Answer, Fault> {
        let current = self.get(&key)?;
        let prev = match current {
            Some(prev) if holds(expect, Some(&prev)) => prev,
            current => return Ok(Err(StoreError::Conflict { current })),
        };
        self.kv.remove(&*key)?;
        self.note(Event::Delete { key, rev: self.rev.next(), prev }).map(Ok)
    }

    fn compact(&mut self, rev: Rev) -> Answer {
        if rev > self.rev {
            return Err(StoreError::Future { current: self.rev });
        }
        if rev > self.compacted {
            self.compacted = rev;
            self.done.compacted = true;
        }
        Ok(None)
    }

    fn get(&self, key: &Bytes) -> Result<Option<Kv>, Fault> {
        match self.kv.get(&**key)? {
            Some(found) => Ok(Some(record::decode_kv(key.clone(), found.value())?)),
            None => Ok(None),
        }
    }

    fn note(&mut self, event: Event) -> Result<Option<Event>, Fault> {
        self.rev = self.rev.next();
        debug_assert_eq!(self.rev, event.rev());
        if let Some(record) = record::encode_log(&event) {
            self.log.insert(self.rev.0, record.as_slice())?;
        }
        self.done.events.push(event.clone());
        Ok(Some(event))
    }

    fn finish(mut self) -> Result<Done, Fault> {
        if !self.done.events.is_empty() {
            self.meta.insert(REVISION, self.rev.0)?;
        }
        if self.done.compacted {
            self.meta.insert(COMPACTED, self.compacted.0)?;
        }
        Ok(self.done)
    }
}

fn holds(expect: Expect, current: Option<&Kv>) -> bool {
    match expect {
        Expect::Any => true,
        Expect::Absent => current.is_none(),
        Expect::Rev(rev) => current.is_some_and(|kv| kv.mod_revision == rev),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::embedded::disk::Disk;
    use crate::store::embedded::memory::MemoryDisk;

    fn writer() -> (MemoryDisk, Writer) {
        let disk = MemoryDisk::default();
        let core = Core::open(Disk::Memory(disk.clone()), 1 << 20).unwrap();
        (disk, Writer::new(Arc::new(core), Durability::Immediate))
    }

    fn put(key: &'static str, expect: Expect) -> Request {
        Request::Put { key: Bytes::from_static(key.as_bytes()), value: Bytes::from_static(b"v"), expect }
    }

    #[test]
    fn requests_of_a_batch_see_those_before_them() {
        let (_, mut writer) = writer();
        let answers = writer.commit(vec![
            put("/a", Expect::Absent),
            put("/a", Expect::Absent),
            put("/a", Expect::Rev(Rev(1))),
            Request::Delete { key: Bytes::from_static(b"/a"), expect: Expect::Rev(Rev(1)) },
            Request::Delete { key: Bytes::from_static(b"/a"), expect: Expect::Rev(Rev(2)) },
            Request::Compact { rev: Rev(4) },
            Request::Compact { rev: Rev(3) },
            put("/a", Expect::Absent),
        ]);
        let told: Vec<_> = answers
            .into_iter()
            .map(|answer| match answer {
                Ok(event) => format!("{:?}", event.map(|event| event.rev().0)),
                Err(StoreError::Conflict { current }) => {
                    format!("conflict with {:?}", current.map(|kv| kv.mod_revision.0))
                }
                Err(StoreError::Future { current }) => format!("still at {current}"),
                Err(other) => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            told,
            [
                "Some(1)",
                "conflict with Some(1)",
                "Some(2)",
                "conflict with Some(2)",
                "Some(3)",
                "still at 3",
                "None",
                "Some(4)"
            ]
        );
    }

    #[test]
    fn a_batch_is_one_commit_and_a_refused_one_is_none() {
        let (disk, mut writer) = writer();
        while writer.trim() {}
        let syncs = |writer: &mut Writer, requests| {
            let before = disk.syncs();
            writer.commit(requests);
            disk.syncs() - before
        };
        let one = syncs(&mut writer, vec![put("/0", Expect::Absent)]);
        assert!(one > 0);
        let many = (0..BATCH).map(|_| put("/0", Expect::Any)).collect();
        assert_eq!(syncs(&mut writer, many), one);
        assert_eq!(syncs(&mut writer, vec![put("/0", Expect::Absent), put("/1", Expect::Rev(Rev(1)))]), 0);
    }

    #[test]
    fn a_settled_store_opens_unread_and_the_next_write_unsettles_it() {
        let (disk, mut writer) = writer();
        for _ in 0..2 {
            writer.commit(vec![put("/a", Expect::Any)]);
            assert!(writer.unsettled() && disk.needs_check());
            writer.settle();
            assert!(!writer.unsettled() && !disk.needs_check());
            writer.commit_settled(vec![put("/a", Expect::Any)]);
            assert!(!writer.unsettled() && !disk.needs_check());
        }
    }

    #[test]
    fn forgetting_takes_one_piece_at_a_time() {
        let (_, mut writer) = writer();
        let last = TRIM * 2 + 1;
        writer.commit((0..last).map(|_| put("/0", Expect::Any)).collect());
        writer.commit(vec![Request::Compact { rev: Rev(last) }]);
        assert_eq!([writer.trim(), writer.trim(), writer.trim(), writer.trim()], [true, true, false, false]);
    }
}
