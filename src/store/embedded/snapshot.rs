//! Reading: one consistent state of the file, however long the reading takes and whatever is written meanwhile.
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use redb::{AccessGuard, Database, ReadOnlyTable, ReadableDatabase};

use super::fault::Fault;
use super::record::{self, COMPACTED, KV, LOG, LogRecord, META, REVISION};
use crate::store::{Event, Kv, Page, Rev, StoreError};

/// A state of the store.
pub(super) struct Snapshot {
    kv: ReadOnlyTable<&'static [u8], &'static [u8]>,
    log: ReadOnlyTable<u64, &'static [u8]>,
    /// The revision of the last write in it.
    pub(super) rev: Rev,
    /// History up to here is gone.
    pub(super) compacted: Rev,
}

/// What a list wants.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) prefix: Vec<u8>,
    pub(super) after: Option<Vec<u8>>,
    pub(super) limit: usize,
    pub(super) at: Option<Rev>,
}

/// Where a chunk of history ends: by revisions looked at, and by bytes copied out (the last one may go over).
#[derive(Clone, Copy)]
pub(super) struct ChunkLimit {
    pub(super) revisions: u64,
    pub(super) bytes: usize,
}

type Entry<'a> = (AccessGuard<'a, &'static [u8]>, AccessGuard<'a, &'static [u8]>);

impl Snapshot {
    pub(super) fn take(db: &Database) -> Result<Self, Fault> {
        let txn = db.begin_read()?;
        let meta = txn.open_table(META)?;
        let number = |name: &str| -> Result<Rev, Fault> { Ok(Rev(meta.get(name)?.map_or(0, |n| n.value()))) };
        Ok(Snapshot {
            rev: number(REVISION)?,
            compacted: number(COMPACTED)?,
            kv: txn.open_table(KV)?,
            log: txn.open_table(LOG)?,
        })
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Kv>, Fault> {
        match self.kv.get(key)? {
            Some(found) => Ok(Some(record::decode_kv(Bytes::copy_from_slice(key), found.value())?)),
            None => Ok(None),
        }
    }

    pub(super) fn list(&self, wanted: &Wanted) -> Result<Page, StoreError> {
        let at = wanted.at.unwrap_or(self.rev);
        self.reachable(at)?;
        let Some(bounds) = bounds(wanted) else {
            return Ok(Page { kvs: Vec::new(), rev: at, more: false, left: Some(0) });
        };
        let changed = if at < self.rev { self.changed_since(at, &bounds)? } else { BTreeMap::new() };
        Ok(self.page(at, wanted.limit, &bounds, changed)?)
    }

    /// Refuses a revision whose state this snapshot cannot tell.
    pub(super) fn reachable(&self, at: Rev) -> Result<(), StoreError> {
        if at > self.rev {
            return Err(StoreError::Future { current: self.rev });
        }
        if at < self.compacted {
            return Err(StoreError::Compacted { at: self.compacted });
        }
        Ok(())
    }

    /// The writes above `after` to keys of `prefix`, oldest first, as far as `limit` goes, and the revision up
    /// to which that is all of them.
    pub(super) fn history(
        &self,
        prefix: &[u8],
        after: Rev,
        limit: ChunkLimit,
    ) -> Result<(Vec<Event>, Rev), StoreError> {
        self.reachable(after)?;
        let last = Rev(after.0.saturating_add(limit.revisions)).min(self.rev);
        let (mut events, mut weight, mut expected) = (Vec::new(), 0, after.next());
        for entry in self.log.range(after.0 + 1..=last.0).map_err(Fault::from)? {
            let (rev, found) = entry.map_err(Fault::from)?;
            if rev.value() != expected.0 {
                return Err(Fault::HistoryGap { rev: expected }.into());
            }
            expected = expected.next();
            let record = LogRecord::parse(rev.value(), found.value()).map_err(Fault::from)?;
            if record.key.starts_with(prefix) {
                weight += record.weight();
                events.push(record.event());
                if weight >= limit.bytes {
                    return Ok((events, Rev(rev.value())));
                }
            }
        }
        if expected <= last {
            return Err(Fault::HistoryGap { rev: expected }.into());
        }
        Ok((events, last))
    }

    /// Keys written after `at`, each with the first such write: its record tells the state at `at`. Holds
    /// keys only, so that a long history costs little memory.
    fn changed_since(&self, at: Rev, bounds: &Bounds) -> Result<BTreeMap<Vec<u8>, u64>, Fault> {
        let mut changed = BTreeMap::new();
        for entry in self.log.range(at.0 + 1..=self.rev.0)?.rev() {
            let (rev, found) = entry?;
            let record = LogRecord::parse(rev.value(), found.value())?;
            if bounds.contain(record.key) {
                changed.insert(record.key.to_vec(), rev.value());
            }
        }
        Ok(changed)
    }

    /// Merges the present keys with those changed since; where both have a key, the log knows better.
    fn page(
        &self,
        at: Rev,
        limit: usize,
        bounds: &Bounds,
        changed: BTreeMap<Vec<u8>, u64>,
    ) -> Result<Page, Fault> {
        let mut present = self.kv.range::<&[u8]>(bounds.as_range())?.peekable();
        let mut changed = changed.into_iter().peekable();
        let mut kvs = Vec::new();
        loop {
            let kv = match next_of(&mut present, &mut changed) {
                None => return Ok(Page { kvs, rev: at, more: false, left: Some(0) }),
                Some(Source::Present) => match present.next().transpose()? {
                    Some((key, found)) => {
                        Some(record::decode_kv(Bytes::copy_from_slice(key.value()), found.value())?)
                    }
                    None => None,
                },
                Some(Source::Changed { also_present }) => {
                    if also_present {
                        present.next().transpose()?;
                    }
                    match changed.next() {
                        Some((key, rev)) => self.before(key, rev)?,
                        None => None,
                    }
                }
            };
            let Some(kv) = kv else { continue };
            if kvs.len() == limit {
                return Ok(Page { kvs, rev: at, more: true, left: None });
            }
            kvs.push(kv);
        }
    }

    /// The key as it was just before the write at `rev`.
    fn before(&self, key: Vec<u8>, rev: u64) -> Result<Option<Kv>, Fault> {
        match self.log.get(rev)? {
            Some(found) => Ok(LogRecord::parse(rev, found.value())?.prev(key.into())),
            None => Err(Fault::HistoryGap { rev: Rev(rev) }),
        }
    }
}

enum Source {
    Present,
    Changed { also_present: bool },
}

/// Which side of the merge has the smaller next key. An unreadable entry counts as present, to be met there.
fn next_of<'a, P, C>(present: &mut Peekable<P>, changed: &mut Peekable<C>) -> Option<Source>
where
    P: Iterator<Item = Result<Entry<'a>, redb::StorageError>>,
    C: Iterator<Item = (Vec<u8>, u64)>,
{
    match (present.peek(), changed.peek()) {
        (None, None) => None,
        (None, Some(_)) => Some(Source::Changed { also_present: false }),
        (Some(_), None) | (Some(Err(_)), Some(_)) => Some(Source::Present),
        (Some(Ok((key, _))), Some((other, _))) => Some(match key.value().cmp(other) {
            Ordering::Less => Source::Present,
            Ordering::Equal => Source::Changed { also_present: true },
            Ordering::Greater => Source::Changed { also_present: false },
        }),
    }
}

/// A range of keys that is not empty.
struct Bounds {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
}

/// `None` when no key can match.
fn bounds(wanted: &Wanted) -> Option<Bounds> {
    let to = record::prefix_end(&wanted.prefix);
    let from = match &wanted.after {
        Some(after) if *after >= wanted.prefix => Bound::Excluded(after.clone()),
        Some(_) | None => Bound::Included(wanted.prefix.clone()),
    };
    if let (Bound::Excluded(from), Some(to)) = (&from, &to)
        && from >= to
    {
        return None;
    }
    Some(Bounds { from, to: to.map_or(Bound::Unbounded, Bound::Excluded) })
}

impl Bounds {
    fn as_range(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (self.from.as_ref().map(Vec::as_slice), self.to.as_ref().map(Vec::as_slice))
    }

    fn contain(&self, key: &[u8]) -> bool {
        RangeBounds::<[u8]>::contains(&self.as_range(), key)
    }
}
