//! Writing: a batch of requests becomes one frame of the write-ahead log, durable before anyone sees it or is answered,
//! and one commit of the engine in memory. The checkpoint makes the engine's own file durable.
//!
//! Within a batch each request sees those before it. A request that is refused changes nothing and uses no
//! revision; a batch of which nothing remains is not committed. If the engine fails, the whole batch failed:
//! certainly when the commit was not reached, with unknown outcome when it was.
use std::sync::Arc;

use bytes::Bytes;
use redb::{ReadableTable, Table, WriteTransaction};

use super::Durability;
use super::core::Core;
use super::fault::Fault;
use super::record::{self, COMPACTED, GENERATION, KV, LOG, META, REVISION};
use super::wal::{Frame, Wal};
use crate::store::{Event, Expect, Kv, LEADER, OfKey, Rev, StoreError};

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
    /// The last checkpoint failed, and nothing was written since: another would fail too.
    stuck: bool,
}

impl Writer {
    pub(super) fn new(core: Arc<Core>, durability: Durability) -> Self {
        // A kill may have come between a compaction and the end of its trimming.
        Writer { core, durability, trim_owed: true, stuck: false }
    }

    /// One answer per request, in order.
    pub(super) fn commit(&mut self, requests: Vec<Request>) -> Vec<Answer> {
        let count = requests.len();
        let failed = |error: StoreError| vec![Err(error); count];
        if let Err(fault) = self.core.recover() {
            return failed(fault.not_done());
        }
        match self.attempt(requests) {
            Ok((answers, events)) => {
                self.stuck &= events.is_empty();
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

    /// Whether the next pause should be used for a checkpoint.
    pub(super) fn checkpoint_due(&self) -> bool {
        !self.stuck && self.core.wal().as_ref().is_some_and(Wal::worth_a_checkpoint)
    }

    /// Makes durable in the engine's file what is only in the log. It takes some milliseconds, so it is for when
    /// nobody waits.
    pub(super) fn checkpoint(&mut self) {
        let done = self.begin().and_then(|txn| match self.core.wal().as_mut() {
            Some(wal) => checkpoint(txn, wal),
            None => Err(Fault::NotOpen),
        });
        self.stuck = done.is_err();
        if let Err(fault) = done {
            self.reopen(&fault);
        }
    }

    fn attempt(&mut self, requests: Vec<Request>) -> Result<(Vec<Answer>, Vec<Event>), Stage> {
        let txn = self.begin()?;
        let mut batch = Batch::open(&txn)?;
        let mut frame = Frame::new(batch.rev());
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let before = frame.len();
            frame.add(&request);
            let answer = batch.apply(request)?;
            if answer.is_err() {
                frame.cut(before);
            }
            answers.push(answer);
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
            self.make_durable(txn, frame, &names).map_err(Stage::InCommit)?;
            for name in &names {
                effect!("{name}: committed");
            }
            self.trim_owed |= compacted;
        }
        Ok((answers, events))
    }

    /// Commits to the log, then to the engine; to the engine's file if the log has no room.
    fn make_durable(&self, txn: WriteTransaction, frame: Frame, names: &[String]) -> Result<(), Fault> {
        if self.durability == Durability::Relaxed {
            return Ok(txn.commit()?);
        }
        let mut wal = self.core.wal();
        let wal = wal.as_mut().ok_or(Fault::NotOpen)?;
        if !wal.append(frame).map_err(Fault::Log)? {
            return checkpoint(txn, wal);
        }
        for name in names {
            effect!("{name}: logged");
        }
        Ok(txn.commit()?)
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
        txn.set_durability(redb::Durability::None)?;
        Ok(txn)
    }
}

/// Commits to the engine's file, with the state of every page, so that it need not be read whole after a kill. From
/// then on nothing that is in the log counts.
fn checkpoint(mut txn: WriteTransaction, wal: &mut Wal) -> Result<(), Fault> {
    txn.open_table(META)?.insert(GENERATION, wal.next_generation())?;
    txn.set_durability(redb::Durability::Immediate)?;
    txn.set_quick_repair(true);
    effect!("checkpoint");
    txn.commit()?;
    effect!("checkpoint: committed");
    wal.restart();
    Ok(())
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

/// What a batch changed.
pub(super) struct Done {
    events: Vec<Event>,
    compacted: bool,
}

/// Changes on their way into the engine.
pub(super) struct Batch<'txn> {
    kv: Table<'txn, &'static [u8], &'static [u8]>,
    log: Table<'txn, u64, &'static [u8]>,
    meta: Table<'txn, &'static str, u64>,
    rev: Rev,
    compacted: Rev,
    done: Done,
}

impl<'txn> Batch<'txn> {
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self, Fault> {
        let meta = txn.open_table(META)?;
        let number = |name: &str| -> Result<Rev, Fault> { Ok(Rev(meta.get(name)?.map_or(0, |n| n.value()))) };
        let (rev, compacted) = (number(REVISION)?, number(COMPACTED)?);
        let done = Done { events: Vec::new(), compacted: false };
        Ok(Batch { kv: txn.open_table(KV)?, log: txn.open_table(LOG)?, meta, rev, compacted, done })
    }

    /// The revision of the last change.
    pub(super) fn rev(&self) -> Rev {
        self.rev
    }

    /// The outer error fails the batch, the inner one refuses this request.
    pub(super) fn apply(&mut self, request: Request) -> Result<Answer, Fault> {
        match request {
            Request::Put { key, value, expect } => self.put(key, value, expect),
            Request::Delete { key, expect } => self.delete(key, expect),
            Request::Compact { rev } => Ok(self.compact(rev)),
        }
    }

    fn put(&mut self, key: Bytes, value: Bytes, expect: Expect) -> Result<Answer, Fault> {
        if let Some(refused) = self.stands_against(&expect)? {
            return Ok(Err(refused));
        }
        let prev = self.get(&key)?;
        if !holds(&expect, prev.as_ref()) {
            return Ok(Err(StoreError::Conflict { current: prev }));
        }
        let rev = self.rev.next();
        let create_revision = prev.as_ref().map_or(rev, |prev| prev.create_revision);
        let kv = Kv { key, value, create_revision, mod_revision: rev };
        self.kv.insert(&*kv.key, record::encode_kv(&kv).as_slice())?;
        self.note(Event::Put { kv, prev }).map(Ok)
    }

    fn delete(&mut self, key: Bytes, expect: Expect) -> Result<Answer, Fault> {
        if let Some(refused) = self.stands_against(&expect)? {
            return Ok(Err(refused));
        }
        let current = self.get(&key)?;
        let prev = match current {
            Some(prev) if holds(&expect, Some(&prev)) => prev,
            current => return Ok(Err(StoreError::Conflict { current })),
        };
        self.kv.remove(&*key)?;
        self.note(Event::Delete { key, rev: self.rev.next(), prev }).map(Ok)
    }

    /// What other keys have to say against a write: another leads, or what it goes by was written since.
    fn stands_against(&self, expect: &Expect) -> Result<Option<StoreError>, Fault> {
        let written = |key: &Bytes| Ok::<_, Fault>(self.get(key)?.map(|kv| kv.mod_revision));
        if expect.term().is_some() && written(&Bytes::from_static(LEADER))? != expect.term() {
            return Ok(Some(StoreError::Deposed));
        }
        match expect.also() {
            Some(also) if written(&also.key)? != also.rev => Ok(Some(StoreError::Overtaken)),
            Some(_) | None => Ok(None),
        }
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
        insist!(self.rev == event.rev());
        if let Some(record) = record::encode_log(&event) {
            self.log.insert(self.rev.0, record.as_slice())?;
        }
        self.done.events.push(event.clone());
        Ok(Some(event))
    }

    pub(super) fn finish(mut self) -> Result<Done, Fault> {
        if !self.done.events.is_empty() {
            self.meta.insert(REVISION, self.rev.0)?;
        }
        if self.done.compacted {
            self.meta.insert(COMPACTED, self.compacted.0)?;
        }
        Ok(self.done)
    }
}

fn holds(expect: &Expect, current: Option<&Kv>) -> bool {
    match expect.of_key() {
        OfKey::Any => true,
        OfKey::Absent => current.is_none(),
        OfKey::Rev(rev) => current.is_some_and(|kv| kv.mod_revision == rev),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::embedded::disk::Disk;
    use crate::store::embedded::memory::MemoryDisk;
    use crate::store::embedded::wal::CAPACITY;

    fn writer() -> (MemoryDisk, Writer) {
        let disk = MemoryDisk::default();
        let core = Core::open(Disk::Memory(disk.clone()), 1 << 20).unwrap();
        (disk, Writer::new(Arc::new(core), Durability::Synced))
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
    fn however_it_is_killed_it_opens_unread_with_all_that_was_answered() {
        let (disk, mut writer) = writer();
        let mut answered = 0;
        let killed = |answered: u64| {
            let disk = disk.copy();
            assert!(!disk.needs_check());
            let core = Core::open(Disk::Memory(disk), 1 << 20).unwrap();
            assert_eq!(core.snapshot().unwrap().rev, Rev(answered));
        };
        for _ in 0..3 {
            for _ in 0..3 {
                writer.commit(vec![put("/a", Expect::Any), put("/b", Expect::Any)]);
                answered += 2;
                killed(answered);
            }
            writer.checkpoint();
            killed(answered);
        }
        // More than the log can take.
        let large = Request::Put {
            key: Bytes::from_static(b"/c"),
            value: vec![7; CAPACITY].into(),
            expect: Expect::Any,
        };
        assert!(writer.commit(vec![large])[0].is_ok());
        killed(answered + 1);
    }

    #[test]
    fn a_checkpoint_that_failed_is_not_tried_again_before_a_write() {
        let (disk, mut writer) = writer();
        let half = |n: u8| Request::Put {
            key: Bytes::from(vec![b'/', n]),
            value: vec![7; CAPACITY / 3].into(),
            expect: Expect::Any,
        };
        assert!(writer.commit(vec![half(b'a')])[0].is_ok());
        assert!(writer.checkpoint_due());
        disk.cut_after(0);
        writer.checkpoint();
        disk.cut_after(u64::MAX);
        writer.core.recover().unwrap();
        assert!(writer.core.wal().as_ref().unwrap().worth_a_checkpoint(), "the log is as long as before");
        assert!(!writer.checkpoint_due());
        assert_eq!(writer.core.snapshot().unwrap().rev, Rev(1));
        assert!(writer.commit(vec![half(b'b')])[0].is_ok());
        assert!(writer.checkpoint_due());
        writer.checkpoint();
        assert!(!writer.checkpoint_due() && !writer.stuck);
    }

    #[test]
    fn a_commit_is_one_sync() {
        let (disk, mut writer) = writer();
        for n in 1..=9 {
            let before = disk.syncs();
            writer.commit(vec![put("/a", Expect::Any)]);
            assert_eq!(disk.syncs() - before, 1, "commit {n}");
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
