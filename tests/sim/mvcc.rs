//! What an etcd holds: keys with revisions, their history back to the compaction. Values only.
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use bytes::Bytes;

use crate::etcd_wire::{
    Compare, Event, KeyValue, PutRequest, RangeRequest, RangeResponse, Request, RequestOp, Response,
    ResponseHeader, ResponseOp, TxnRequest, TxnResponse, Wanted, Written,
};

type Keys = BTreeMap<Bytes, KeyValue>;

/// The sentences by which etcd's clients know these.
pub const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
pub const FUTURE: &str = "etcdserver: mvcc: required revision is a future revision";

/// One change, with what was there before.
#[derive(Clone)]
pub struct Change {
    pub revision: i64,
    pub key: Bytes,
    pub new: Option<KeyValue>,
    pub old: Option<KeyValue>,
}

pub struct Mvcc {
    pub cluster: u64,
    pub revision: i64,
    pub compacted: i64,
    keys: Keys,
    /// From the compaction on.
    log: VecDeque<Change>,
}

impl Mvcc {
    pub fn new() -> Self {
        Self { cluster: 1, revision: 1, compacted: 0, keys: Keys::new(), log: VecDeque::new() }
    }

    pub fn header(&self) -> ResponseHeader {
        ResponseHeader { cluster_id: self.cluster, member_id: 1, revision: self.revision }
    }

    pub fn range(&self, asked: &RangeRequest) -> Result<RangeResponse, &'static str> {
        let at = if asked.revision <= 0 { self.revision } else { asked.revision };
        if at > self.revision {
            return Err(FUTURE);
        }
        if at < self.compacted {
            return Err(COMPACTED);
        }
        let keys = self.at(at);
        let end = match asked.range_end.as_ref() {
            b"" => Bound::Included(asked.key.clone()),
            [0] => Bound::Unbounded,
            end => Bound::Excluded(Bytes::copy_from_slice(end)),
        };
        let found: Vec<&KeyValue> =
            keys.range((Bound::Included(asked.key.clone()), end)).map(|(_, kv)| kv).collect();
        let count = found.len();
        let most = if asked.limit <= 0 { count } else { usize::try_from(asked.limit).unwrap_or(count) };
        let kvs = if asked.count_only { Vec::new() } else { found.into_iter().take(most).cloned().collect() };
        let count_of = i64::try_from(count).unwrap_or(i64::MAX);
        Ok(RangeResponse { header: Some(self.header()), kvs, more: count > most, count: count_of })
    }

    fn at(&self, revision: i64) -> Cow<'_, Keys> {
        if revision == self.revision {
            return Cow::Borrowed(&self.keys);
        }
        let mut keys = self.keys.clone();
        for change in self.log.iter().rev().take_while(|change| change.revision > revision) {
            match &change.old {
                Some(old) => keys.insert(change.key.clone(), old.clone()),
                None => keys.remove(&change.key),
            };
        }
        Cow::Owned(keys)
    }

    /// What this was so many revisions ago, as far as it is known.
    pub fn earlier(&self, by: i64) -> Self {
        let revision = (self.revision - by).max(self.compacted).max(1);
        let keys = self.at(revision).into_owned();
        let log = self.log.iter().take_while(|change| change.revision <= revision).cloned().collect();
        Self { cluster: self.cluster, revision, compacted: self.compacted, keys, log }
    }

    /// The answer, and the changes made.
    pub fn txn(&mut self, txn: &TxnRequest) -> (TxnResponse, Vec<Change>) {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        let wanted = if succeeded { &txn.success } else { &txn.failure };
        let mut changes = Vec::new();
        let responses =
            wanted.iter().map(|op| ResponseOp { response: self.carry_out(op, &mut changes) }).collect();
        if !changes.is_empty() {
            self.revision += 1;
            self.log.extend(changes.iter().cloned());
        }
        (TxnResponse { header: Some(self.header()), succeeded, responses }, changes)
    }

    fn holds(&self, compare: &Compare) -> bool {
        let there = self.keys.get(&compare.key);
        let (seen, wanted) = match compare.wanted {
            Some(Wanted::CreateRevision(wanted)) => (there.map_or(0, |kv| kv.create_revision), wanted),
            Some(Wanted::ModRevision(wanted)) => (there.map_or(0, |kv| kv.mod_revision), wanted),
            None => (there.map_or(0, |kv| kv.mod_revision), 0),
        };
        match compare.result {
            0 => seen == wanted,
            1 => seen > wanted,
            _ => seen < wanted,
        }
    }

    fn carry_out(&mut self, op: &RequestOp, changes: &mut Vec<Change>) -> Option<Response> {
        let header = Some(ResponseHeader { revision: self.revision + 1, ..self.header() });
        Some(match op.request.as_ref()? {
            Request::Range(range) => Response::Range(self.range(range).unwrap_or_default()),
            Request::Put(put) => {
                changes.push(self.put(put));
                Response::Put(Written { header })
            }
            Request::Delete(delete) => {
                if let Some(old) = self.keys.remove(&delete.key) {
                    let (revision, key) = (self.revision + 1, delete.key.clone());
                    changes.push(Change { revision, key, new: None, old: Some(old) });
                }
                Response::Delete(Written { header })
            }
        })
    }

    fn put(&mut self, put: &PutRequest) -> Change {
        let revision = self.revision + 1;
        let old = self.keys.get(&put.key).cloned();
        let new = KeyValue {
            key: put.key.clone(),
            create_revision: old.as_ref().map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: old.as_ref().map_or(0, |kv| kv.version) + 1,
            value: put.value.clone(),
        };
        self.keys.insert(put.key.clone(), new.clone());
        Change { revision, key: put.key.clone(), new: Some(new), old }
    }

    pub fn compact(&mut self, at: i64) -> Result<(), &'static str> {
        if at <= self.compacted {
            return Err(COMPACTED);
        }
        if at > self.revision {
            return Err(FUTURE);
        }
        self.compacted = at;
        while self.log.front().is_some_and(|change| change.revision < at) {
            self.log.pop_front();
        }
        Ok(())
    }

    /// Changes behind a revision, as a watch tells them.
    pub fn after(&self, revision: i64, most: usize) -> Vec<Event> {
        let from = self.log.partition_point(|change| change.revision <= revision);
        self.log.iter().skip(from).take(most).map(|change| self.event(change)).collect()
    }

    fn event(&self, change: &Change) -> Event {
        // What was before can be told as long as the revision before can be read.
        let prev_kv = change.old.clone().filter(|_| change.revision > self.compacted);
        let gone =
            || KeyValue { key: change.key.clone(), mod_revision: change.revision, ..KeyValue::default() };
        let kind = i32::from(change.new.is_none());
        Event { kind, kv: Some(change.new.clone().unwrap_or_else(gone)), prev_kv }
    }

    /// Restored from a backup of this moment into a new cluster: revisions go on far above, and no history is known.
    pub fn restore(&mut self) {
        self.cluster += 1;
        self.revision += 1000;
        self.compacted = self.revision;
        self.log.clear();
    }
}
