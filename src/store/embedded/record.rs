//! How keys and history lie in the file: the tables, and the bytes of their values. Pure.
//!
//! | table | key | value |
//! |---|---|---|
//! | `kv` | key | create revision, mod revision, value |
//! | `log` | revision | what was written and what was there before |
//! | `meta` | name | a number |
//!
//! A log record is `tag:u8 create:u64 prev_create:u64 prev_mod:u64 key_len:u32 prev_len:u32 key prev value`,
//! little endian. It carries the old value, so that a deletion can say what is gone and an older state can be
//! read by walking the log backwards.
use bytes::Bytes;
use redb::TableDefinition;

use crate::store::{Event, Kv, Rev};

/// Key to [`Kv`], without its key.
pub(super) const KV: TableDefinition<&[u8], &[u8]> = TableDefinition::new("kv");
/// Revision to [`Event`], without its revision.
pub(super) const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");
/// The store's own numbers.
pub(super) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

/// In `meta`: the layout described above; a program that knows only a lower one keeps its hands off.
pub(super) const SCHEMA: &str = "schema";
/// In `meta`: the revision of the last write.
pub(super) const REVISION: &str = "revision";
/// In `meta`: the revision last compacted at.
pub(super) const COMPACTED: &str = "compacted";

/// In `meta`: how many checkpoints there were; frames of the write-ahead log count only in theirs.
pub(super) const GENERATION: &str = "generation";

/// The layout that this program reads and writes.
pub(super) const SCHEMA_LEVEL: u64 = 2;
/// The same layout, before there was a write-ahead log.
pub(super) const WITHOUT_LOG: u64 = 1;

const CREATED: u8 = 0;
const UPDATED: u8 = 1;
const DELETED: u8 = 2;
const LOG_HEAD: usize = 1 + 8 + 8 + 8 + 4 + 4;

/// A record that does not have the form above.
#[derive(Debug, thiserror::Error)]
#[error("malformed {table} record of {len} bytes")]
pub(super) struct Malformed {
    table: &'static str,
    len: usize,
}

pub(super) fn encode_kv(kv: &Kv) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + kv.value.len());
    out.extend_from_slice(&kv.create_revision.0.to_le_bytes());
    out.extend_from_slice(&kv.mod_revision.0.to_le_bytes());
    out.extend_from_slice(&kv.value);
    out
}

pub(super) fn decode_kv(key: Bytes, record: &[u8]) -> Result<Kv, Malformed> {
    let mut rest = record;
    let fields = (|| Some((take_u64(&mut rest)?, take_u64(&mut rest)?)))();
    let (create, modified) = fields.ok_or(Malformed { table: "kv", len: record.len() })?;
    Ok(Kv {
        key,
        value: Bytes::copy_from_slice(rest),
        create_revision: Rev(create),
        mod_revision: Rev(modified),
    })
}

/// The record of a write; `None` for progress, which is not one.
pub(super) fn encode_log(event: &Event) -> Option<Vec<u8>> {
    let (tag, create, key, prev, value): (u8, Rev, &[u8], Option<&Kv>, &[u8]) = match event {
        Event::Put { kv, prev: None } => (CREATED, kv.create_revision, &kv.key, None, &kv.value),
        Event::Put { kv, prev: Some(prev) } => (UPDATED, kv.create_revision, &kv.key, Some(prev), &kv.value),
        Event::Delete { key, prev, .. } => (DELETED, prev.create_revision, key, Some(prev), &[]),
        Event::Progress(_) => return None,
    };
    let prev_value: &[u8] = prev.map_or(&[], |kv| &kv.value);
    let mut out = Vec::with_capacity(LOG_HEAD + key.len() + prev_value.len() + value.len());
    out.push(tag);
    out.extend_from_slice(&create.0.to_le_bytes());
    out.extend_from_slice(&prev.map_or(0, |kv| kv.create_revision.0).to_le_bytes());
    out.extend_from_slice(&prev.map_or(0, |kv| kv.mod_revision.0).to_le_bytes());
    out.extend_from_slice(&len32(key).to_le_bytes());
    out.extend_from_slice(&len32(prev_value).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(prev_value);
    out.extend_from_slice(value);
    Some(out)
}

/// A log record, not yet copied out of the file's page.
pub(super) struct LogRecord<'a> {
    rev: Rev,
    tag: u8,
    create: Rev,
    prev_create: Rev,
    prev_mod: Rev,
    pub(super) key: &'a [u8],
    prev_value: &'a [u8],
    value: &'a [u8],
}

impl<'a> LogRecord<'a> {
    pub(super) fn parse(rev: u64, record: &'a [u8]) -> Result<Self, Malformed> {
        parse_log(rev, record).ok_or(Malformed { table: "log", len: record.len() })
    }

    /// The bytes of both values: what [`Self::event`] will copy.
    pub(super) fn weight(&self) -> usize {
        self.key.len() + self.prev_value.len() + self.value.len()
    }

    /// The key as it was before this write.
    pub(super) fn prev(&self, key: Bytes) -> Option<Kv> {
        (self.tag != CREATED).then(|| Kv {
            key,
            value: Bytes::copy_from_slice(self.prev_value),
            create_revision: self.prev_create,
            mod_revision: self.prev_mod,
        })
    }

    pub(super) fn event(&self) -> Event {
        let key = Bytes::copy_from_slice(self.key);
        let prev = self.prev(key.clone());
        match prev {
            Some(prev) if self.tag == DELETED => Event::Delete { key, rev: self.rev, prev },
            prev => Event::Put {
                kv: Kv {
                    key,
                    value: Bytes::copy_from_slice(self.value),
                    create_revision: self.create,
                    mod_revision: self.rev,
                },
                prev,
            },
        }
    }
}

fn parse_log(rev: u64, record: &[u8]) -> Option<LogRecord<'_>> {
    let mut rest = record;
    let tag = *take(&mut rest, 1)?.first()?;
    if !matches!(tag, CREATED | UPDATED | DELETED) {
        return None;
    }
    let create = Rev(take_u64(&mut rest)?);
    let prev_create = Rev(take_u64(&mut rest)?);
    let prev_mod = Rev(take_u64(&mut rest)?);
    let key_len = take_len(&mut rest)?;
    let prev_len = take_len(&mut rest)?;
    let key = take(&mut rest, key_len)?;
    let prev_value = take(&mut rest, prev_len)?;
    Some(LogRecord { rev: Rev(rev), tag, create, prev_create, prev_mod, key, prev_value, value: rest })
}

pub(super) fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

pub(super) fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(rest, 8)?.try_into().ok()?))
}

pub(super) fn take_len(rest: &mut &[u8]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?)).ok()
}

pub(super) fn len32(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("keys and values are limited to far less than 4 GiB")
}

/// The first key after all keys that begin with `prefix`; `None` if there is none, as after `[0xFF]`.
pub(super) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(value: &'static [u8], create: u64, modified: u64) -> Kv {
        Kv {
            key: Bytes::from_static(b"/a"),
            value: Bytes::from_static(value),
            create_revision: Rev(create),
            mod_revision: Rev(modified),
        }
    }

    #[test]
    fn records_come_back_as_they_went_in() {
        let events = [
            Event::Put { kv: kv(b"one", 7, 7), prev: None },
            Event::Put { kv: kv(b"", 7, 9), prev: Some(kv(b"one", 7, 7)) },
            Event::Delete { key: Bytes::from_static(b"/a"), rev: Rev(12), prev: kv(b"", 7, 9) },
        ];
        for event in events {
            let record = encode_log(&event).unwrap();
            assert_eq!(LogRecord::parse(event.rev().0, &record).unwrap().event(), event);
        }
        let one = kv(b"one", 7, 9);
        assert_eq!(decode_kv(one.key.clone(), &encode_kv(&one)).unwrap(), one);
        assert!(encode_log(&Event::Progress(Rev(3))).is_none());
    }

    #[test]
    fn cut_and_unknown_records_are_refused() {
        let event = Event::Put { kv: kv(b"two", 7, 9), prev: Some(kv(b"one", 7, 7)) };
        let record = encode_log(&event).unwrap();
        let fixed = record.len() - b"two".len();
        for len in 0..fixed {
            assert!(LogRecord::parse(9, &record[..len]).is_err(), "{len} bytes");
        }
        let mut unknown = record;
        unknown[0] = 3;
        assert!(LogRecord::parse(9, &unknown).is_err());
        assert!(decode_kv(Bytes::new(), &[0; 15]).is_err());
    }

    #[test]
    fn a_prefix_ends_before_its_next_sibling() {
        let cases: [(&[u8], Option<&[u8]>); 5] = [
            (b"/a/", Some(b"/a0")),
            (b"a\xff", Some(b"b")),
            (b"a\xff\xff", Some(b"b")),
            (b"\xff\xff", None),
            (b"", None),
        ];
        for (prefix, end) in cases {
            assert_eq!(prefix_end(prefix).as_deref(), end, "{prefix:?}");
        }
    }
}
