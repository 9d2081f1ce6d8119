//! The write-ahead log: what was answered and is not yet durable in the engine's own file.
//!
//! A durable commit of the engine writes several pages and makes a new file state durable. One frame written over zeros,
//! in a file that never changes its length, costs a third of that. So a batch is made durable here, and in the engine
//! only in memory; when the log is full, or nobody waits, one durable commit of the engine, the checkpoint, makes all of it
//! durable there and begins the log anew, without writing to it: frames of an earlier generation do not count.
//!
//! | bytes | a frame |
//! |---|---|
//! | 4, 4 | length and crc32 of what follows |
//! | 8 | the generation: how many checkpoints went before |
//! | 8 | the revision on which it builds |
//! | ... | its changes: `tag:u8`, and `key_len:u32 value_len:u32 key value`, `key_len:u32 key`, or `rev:u64` |
//!
//! Numbers are little endian. Eight zeros follow the last frame, so that nothing that lay there before is read as one. A
//! torn frame was never answered and ends the reading.
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::commit::Request;
use super::memory::MemoryDisk;
use super::record::{len32, take, take_len, take_u64};
use crate::store::{Expect, Rev};

/// The length of the log in bytes. A batch that does not fit is a checkpoint by itself.
pub(super) const CAPACITY: usize = 1 << 20;
/// A log that is fuller than this is worth a checkpoint in a pause.
const WORTH: usize = CAPACITY / 4;
/// Length, checksum, generation, revision.
const HEAD: usize = 4 + 4 + 8 + 8;
/// What follows the last frame.
const END: [u8; 8] = [0; 8];

const PUT: u8 = 1;
const DELETE: u8 = 2;
const COMPACT: u8 = 3;

/// Where the log lies.
#[derive(Debug)]
pub(super) enum Place {
    /// A file of [`CAPACITY`] bytes, and the note that a sync of this store failed.
    File(File, Arc<AtomicBool>),
    Memory(MemoryDisk),
}

impl Place {
    /// Makes an empty log, whole and durable; the name is durable once the directory is.
    pub(super) fn make(path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all_at(&vec![0; CAPACITY], 0)?;
        file.sync_all()
    }

    /// Whether anything was ever written to a log at this path. A making that was interrupted leaves zeros.
    pub(super) fn was_used(path: &Path) -> bool {
        std::fs::read(path).is_ok_and(|content| content.iter().any(|byte| *byte != 0))
    }

    pub(super) fn open(path: &Path, sync_failed: &Arc<AtomicBool>) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let len = file.metadata()?.len();
        if len != CAPACITY as u64 {
            let what = format!("it has {len} bytes instead of {CAPACITY}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(Place::File(file, sync_failed.clone()))
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        match self {
            Place::File(file, _) => {
                let mut content = vec![0; CAPACITY];
                file.read_exact_at(&mut content, 0)?;
                Ok(content)
            }
            Place::Memory(disk) => Ok(disk.wal()),
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        match self {
            Place::File(file, sync_failed) => {
                file.write_all_at(bytes, at as u64)?;
                file.sync_data().inspect_err(|_| sync_failed.store(true, Ordering::Release))
            }
            Place::Memory(disk) => disk.write_wal(at, bytes),
        }
    }
}

/// The log of an open store.
#[derive(Debug)]
pub(super) struct Wal {
    place: Place,
    generation: u64,
    /// Where the next frame goes.
    end: usize,
}

/// What a log held.
pub(super) type Logged = Vec<(Rev, Vec<Request>)>;

impl Wal {
    /// Reads what the log holds of this generation: each batch with the revision on which it builds. It is durable when
    /// this returns. Whoever wrote it may have ended before its sync, or because that failed, and pages that were read
    /// back say nothing of the disk: so it is written once more.
    pub(super) fn open(place: Place, generation: u64) -> io::Result<(Self, Logged)> {
        let mut content = place.read()?;
        let (mut logged, mut end) = (Vec::new(), 0);
        while let Some((base, requests, next)) = parse(&content, end, generation) {
            logged.push((base, requests));
            end = next;
        }
        if end > 0 {
            content.truncate(end);
            content.extend_from_slice(&END);
            place.write(0, &content)?;
        }
        Ok((Wal { place, generation, end }, logged))
    }

    /// Makes a batch durable. False, and nothing done, if there is no room for it.
    pub(super) fn append(&mut self, batch: Frame) -> io::Result<bool> {
        let frame = batch.seal(self.generation);
        if self.end + frame.len() > CAPACITY {
            return Ok(false);
        }
        self.place.write(self.end, &frame)?;
        self.end += frame.len() - END.len();
        Ok(true)
    }

    /// The generation after this one.
    pub(super) fn next_generation(&self) -> u64 {
        self.generation + 1
    }

    /// The engine has everything: what is here counts no more.
    pub(super) fn restart(&mut self) {
        self.generation += 1;
        self.end = 0;
    }

    /// Whether a pause should be used for a checkpoint.
    pub(super) fn worth_a_checkpoint(&self) -> bool {
        self.end > WORTH
    }
}

/// A batch on its way into the log.
pub(super) struct Frame(Vec<u8>);

impl Frame {
    pub(super) fn new(base: Rev) -> Self {
        let mut bytes = vec![0; HEAD];
        bytes[16..HEAD].copy_from_slice(&base.0.to_le_bytes());
        Frame(bytes)
    }

    /// Its length now, for [`Self::cut`].
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes back what was added since it had this length.
    pub(super) fn cut(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Adds a change. What was expected before it is not kept: it was so.
    pub(super) fn add(&mut self, request: &Request) {
        match request {
            Request::Put { key, value, .. } => {
                self.0.push(PUT);
                self.0.extend_from_slice(&len32(key).to_le_bytes());
                self.0.extend_from_slice(&len32(value).to_le_bytes());
                self.0.extend_from_slice(key);
                self.0.extend_from_slice(value);
            }
            Request::Delete { key, .. } => {
                self.0.push(DELETE);
                self.0.extend_from_slice(&len32(key).to_le_bytes());
                self.0.extend_from_slice(key);
            }
            Request::Compact { rev } => {
                self.0.push(COMPACT);
                self.0.extend_from_slice(&rev.0.to_le_bytes());
            }
        }
    }

    fn seal(mut self, generation: u64) -> Vec<u8> {
        self.0[8..16].copy_from_slice(&generation.to_le_bytes());
        let (len, crc) = (len32(&self.0[8..]), crc32fast::hash(&self.0[8..]));
        self.0[..4].copy_from_slice(&len.to_le_bytes());
        self.0[4..8].copy_from_slice(&crc.to_le_bytes());
        self.0.extend_from_slice(&END);
        self.0
    }
}

/// The frame at `at`, if a whole one of this generation lies there, and where the next would begin.
fn parse(content: &[u8], at: usize, generation: u64) -> Option<(Rev, Vec<Request>, usize)> {
    let mut rest = content.get(at..)?;
    let len = take_len(&mut rest)?;
    let crc = u32::from_le_bytes(take(&mut rest, 4)?.try_into().ok()?);
    let mut body = take(&mut rest, len)?;
    if body.is_empty() || crc32fast::hash(body) != crc || take_u64(&mut body)? != generation {
        return None;
    }
    let base = Rev(take_u64(&mut body)?);
    let mut requests = Vec::new();
    while !body.is_empty() {
        requests.push(change(&mut body)?);
    }
    Some((base, requests, at + 8 + len))
}

fn change(rest: &mut &[u8]) -> Option<Request> {
    match *take(rest, 1)?.first()? {
        PUT => {
            let (key, value) = (take_len(rest)?, take_len(rest)?);
            let key = Bytes::copy_from_slice(take(rest, key)?);
            let value = Bytes::copy_from_slice(take(rest, value)?);
            Some(Request::Put { key, value, expect: Expect::Any })
        }
        DELETE => {
            let key = take_len(rest)?;
            Some(Request::Delete { key: Bytes::copy_from_slice(take(rest, key)?), expect: Expect::Any })
        }
        COMPACT => Some(Request::Compact { rev: Rev(take_u64(rest)?) }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &'static str, value: &'static str) -> Request {
        let (key, value) = (Bytes::from_static(key.as_bytes()), Bytes::from_static(value.as_bytes()));
        Request::Put { key, value, expect: Expect::Any }
    }

    fn append(wal: &mut Wal, base: u64, requests: &[Request]) -> bool {
        let mut frame = Frame::new(Rev(base));
        for request in requests {
            frame.add(request);
        }
        wal.append(frame).unwrap()
    }

    fn read(disk: &MemoryDisk, generation: u64) -> (Wal, String) {
        let (wal, logged) = Wal::open(Place::Memory(disk.clone()), generation).unwrap();
        let told = logged.iter().map(|(base, requests)| {
            let told = requests.iter().map(|request| match request {
                Request::Put { key, value, .. } => format!("{key:?}={value:?}"),
                Request::Delete { key, .. } => format!("-{key:?}"),
                Request::Compact { rev } => format!("compact {rev}"),
            });
            format!("{base}: {}", told.collect::<Vec<_>>().join(", "))
        });
        (wal, told.collect::<Vec<_>>().join("; "))
    }

    #[test]
    fn batches_come_back_as_they_went_in() {
        let disk = MemoryDisk::default();
        let (mut wal, nothing) = read(&disk, 7);
        assert_eq!(nothing, "");
        let delete = Request::Delete { key: Bytes::from_static(b"/a"), expect: Expect::Rev(Rev(4)) };
        assert!(append(&mut wal, 4, &[put("/a", "1"), put("/b", "")]));
        assert!(append(&mut wal, 6, &[delete, Request::Compact { rev: Rev(5) }]));
        let whole = r#"4: b"/a"=b"1", b"/b"=b""; 6: -b"/a", compact 5"#;
        let (mut wal, found) = read(&disk, 7);
        assert_eq!(found, whole);
        assert_eq!(disk.syncs(), 3, "two frames, and what was read");
        // It goes on behind them.
        assert!(append(&mut wal, 7, &[put("/c", "3")]));
        assert_eq!(read(&disk, 7).1, format!(r#"{whole}; 7: b"/c"=b"3""#));
        assert_eq!(read(&disk, 8).1, "");
    }

    #[test]
    fn nothing_of_an_earlier_generation_counts() {
        let disk = MemoryDisk::default();
        let (mut wal, _) = read(&disk, 0);
        for base in 0..9 {
            append(&mut wal, base, &[put("/a", "1")]);
        }
        wal.restart();
        append(&mut wal, 9, &[put("/a", "2")]);
        assert_eq!(read(&disk, 1).1, r#"9: b"/a"=b"2""#);
    }

    #[test]
    fn a_value_that_looks_like_a_frame_is_none() {
        let disk = MemoryDisk::default();
        let (mut wal, _) = read(&disk, 0);
        append(&mut wal, 3, &[put("/a", "x")]);
        // A value of the first generation, so placed that in the second it lies just behind the last frame.
        let mut forged = Frame::new(Rev(4));
        forged.add(&put("/forged", "y"));
        let key = Bytes::from_static(b"/a");
        let overhead = HEAD + 1 + 4 + 4 + key.len();
        let at = wal.end;
        let mut value = vec![0; at - overhead];
        value.extend(forged.seal(1));
        wal.end = 0;
        let mut frame = Frame::new(Rev(3));
        frame.add(&Request::Put { key, value: value.into(), expect: Expect::Any });
        assert!(wal.append(frame).unwrap());
        wal.restart();
        assert!(parse(&disk.wal(), at, 1).is_some(), "it is not placed well");
        append(&mut wal, 3, &[put("/a", "x")]);
        assert_eq!(wal.end, at);
        assert_eq!(read(&disk, 1).1, r#"3: b"/a"=b"x""#);
    }

    #[test]
    fn a_torn_frame_ends_the_reading() {
        let disk = MemoryDisk::default();
        let (mut wal, _) = read(&disk, 0);
        append(&mut wal, 0, &[put("/a", "1")]);
        let first = wal.end;
        append(&mut wal, 1, &[put("/b", "2")]);
        let whole = disk.wal();
        for cut in first..wal.end {
            let mut torn = whole[..cut].to_vec();
            torn.resize(CAPACITY, 0);
            assert!(parse(&torn, 0, 0).is_some());
            assert!(parse(&torn, first, 0).is_none(), "torn at {cut}");
            let mut flipped = whole.clone();
            flipped[cut] ^= 1;
            assert!(parse(&flipped, first, 0).is_none(), "a bit flipped at {cut}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_whole() {
        let disk = MemoryDisk::default();
        let (mut wal, _) = read(&disk, 0);
        let mut base = 0;
        let large = Bytes::from(vec![b'x'; CAPACITY / 5]);
        let mut large = |wal: &mut Wal| {
            let mut frame = Frame::new(Rev(base));
            frame.add(&Request::Put { key: large.clone(), value: Bytes::new(), expect: Expect::Any });
            base += 1;
            wal.append(frame).unwrap()
        };
        assert!(!wal.worth_a_checkpoint());
        assert_eq!([large(&mut wal), large(&mut wal)], [true, true]);
        assert!(wal.worth_a_checkpoint());
        assert_eq!([large(&mut wal), large(&mut wal), large(&mut wal)], [true, true, false]);
        assert!(append(&mut wal, 4, &[put("/a", "1")]));
        assert!(read(&disk, 0).1.ends_with(r#"; 4: b"/a"=b"1""#));
    }
}
