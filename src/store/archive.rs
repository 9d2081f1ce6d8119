//! A store in a file, and one store's content in another.
//!
//! A file is lines of JSON: what it is and the revision of it all, one line per key, and an end with the number of keys and a
//! digest of everything before. Secrets are in it as they are in the store, sealed. Writing into a store takes a while and may
//! be interrupted: a mark stands there as long, by which servers refuse it and the same source goes on.
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use super::{Expect, LEADER, Rev, Store, StoreError};

/// Where everything is.
pub const ROOT: &[u8] = b"/wharfline/";
/// The mark of a store that is being written; its value names the source.
pub const UNFINISHED: &[u8] = b"/wharfline/meta/unfinished";
/// What is written over and over to raise the revision.
const RAISED: &[u8] = b"/wharfline/meta/raised";
/// The format's version.
const FORMAT: u32 = 1;
/// How many keys are read at once.
const PAGE: usize = 100;
/// How many writes are under way at once.
const WRITES: usize = 64;
/// After how many raises their history is forgotten.
const RAISES: u64 = 10_000;

/// One key.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
}

/// One line of a file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum Line {
    Backup { format: u32, revision: u64 },
    Entry { key: String, value: String },
    End { keys: u64, sha256: String },
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Damage {
    /// It begins otherwise.
    #[error("it is no backup of wharfline")]
    Foreign,
    /// It is of a later version.
    #[error("it has format {0}, this program knows {FORMAT}: use a newer one")]
    Format(u32),
    /// A line cannot be read.
    #[error("line {0} cannot be read")]
    Unreadable(u64),
    /// Something is missing or changed.
    #[error("it is not whole: {0}")]
    Incomplete(&'static str),
}

/// Writes the lines of a file.
pub struct Writer {
    digest: Context,
    keys: u64,
}

impl Writer {
    /// The writer, and the first line, of the state at this revision.
    pub fn begin(revision: Rev) -> (Self, Vec<u8>) {
        let mut writer = Self { digest: Context::new(&SHA256), keys: 0 };
        let first = writer.line(&Line::Backup { format: FORMAT, revision: revision.0 });
        (writer, first)
    }

    /// The line of one key; keys are text.
    pub fn entry(&mut self, entry: &Entry) -> Vec<u8> {
        self.keys += 1;
        let key = String::from_utf8_lossy(&entry.key).into_owned();
        self.line(&Line::Entry { key, value: STANDARD.encode(&entry.value) })
    }

    /// The last line.
    pub fn end(mut self) -> Vec<u8> {
        let sha256 = hex(self.digest.clone().finish().as_ref());
        let keys = self.keys;
        self.line(&Line::End { keys, sha256 })
    }

    fn line(&mut self, line: &Line) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(line).unwrap_or_default();
        bytes.push(b'\n');
        self.digest.update(&bytes);
        bytes
    }
}

/// Reads the lines of a file, one after another.
pub struct Reader {
    digest: Context,
    lines: u64,
    keys: u64,
    revision: Option<Rev>,
    ended: Option<String>,
}

/// What a file turned out to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The revision of the state.
    pub revision: Rev,
    /// How many keys.
    pub keys: u64,
    /// The digest in hexadecimal, by which the file is known.
    pub sha256: String,
}

impl Default for Reader {
    fn default() -> Self {
        Self { digest: Context::new(&SHA256), lines: 0, keys: 0, revision: None, ended: None }
    }
}

impl Reader {
    /// Takes one line, with its end; the key in it.
    ///
    /// # Errors
    /// When the line is not what must stand there.
    pub fn line(&mut self, bytes: &[u8]) -> Result<Option<Entry>, Damage> {
        self.lines += 1;
        if self.ended.is_some() {
            return Err(Damage::Incomplete("something stands behind its end"));
        }
        let unreadable = if self.lines == 1 { Damage::Foreign } else { Damage::Unreadable(self.lines) };
        let Ok(line) = serde_json::from_slice::<Line>(bytes) else { return Err(unreadable) };
        let mut entry = None;
        match line {
            Line::Backup { format, revision } if self.lines == 1 => {
                if format != FORMAT {
                    return Err(Damage::Format(format));
                }
                self.revision = Some(Rev(revision));
            }
            Line::Entry { key, value } if self.lines > 1 && key.as_bytes().starts_with(ROOT) => {
                let value = STANDARD.decode(value).map_err(|_| Damage::Unreadable(self.lines))?;
                self.keys += 1;
                entry = Some(Entry { key: key.into(), value: value.into() });
            }
            Line::End { keys, sha256 } if self.lines > 1 => {
                if keys != self.keys || sha256 != hex(self.digest.clone().finish().as_ref()) {
                    return Err(Damage::Incomplete("it was changed, or lines are missing"));
                }
                self.ended = Some(sha256);
            }
            _ => return Err(unreadable),
        }
        self.digest.update(bytes);
        Ok(entry)
    }

    /// What was read, if it was all.
    ///
    /// # Errors
    /// When the end did not come.
    pub fn summary(self) -> Result<Summary, Damage> {
        match (self.revision, self.ended) {
            (Some(revision), Some(sha256)) => Ok(Summary { revision, keys: self.keys, sha256 }),
            _ => Err(Damage::Incomplete("its end is missing")),
        }
    }
}

/// Everything in a store as of one revision, page by page; what belongs to one running cluster is left out.
pub fn entries(store: &dyn Store, at: Rev) -> stream::BoxStream<'_, Result<Vec<Entry>, StoreError>> {
    let pages = stream::try_unfold(Some(None::<Bytes>), move |after| async move {
        let Some(after) = after else { return Ok(None) };
        let page = store.list(ROOT, after.as_deref(), PAGE, Some(at)).await?;
        let next = page.kvs.last().filter(|_| page.more).map(|kv| Some(kv.key.clone()));
        let kept = page.kvs.into_iter().filter(|kv| ![LEADER, UNFINISHED, RAISED].contains(&&*kv.key));
        let entries = kept.map(|kv| Entry { key: kv.key, value: kv.value }).collect();
        Ok::<_, StoreError>(Some((entries, next)))
    });
    pages.boxed()
}

/// Why a store was not filled.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// There are objects in it: only an empty store is filled.
    #[error("the store is not empty")]
    NotEmpty,
    /// Another has begun to fill the store meanwhile, or a server to use it: let the other end.
    #[error("somebody else writes to the store: another restore or migrate, or a server; let only one run")]
    Another,
    /// The store failed; the same call goes on from there.
    #[error(transparent)]
    Store(StoreError),
    /// The source failed.
    #[error("{0}")]
    Source(String),
}

impl From<StoreError> for FillError {
    fn from(error: StoreError) -> Self {
        if matches!(error, StoreError::Deposed) { Self::Another } else { Self::Store(error) }
    }
}

/// Begins to fill an empty store from a source of this name, or goes on if it was begun from the same. The revision is raised
/// to `floor` before anything is written, so that no version which a client may know from before comes again. What comes back is the term under which it is filled: whoever begins later
/// ends it.
pub async fn begin(store: &dyn Store, source: &str, floor: Rev) -> Result<Rev, FillError> {
    let (leader, _) = store.get(LEADER).await?;
    let (mark, _) = store.get(UNFINISHED).await?;
    match mark {
        Some(mark) if mark.value == source.as_bytes() => {}
        Some(_) => return Err(FillError::NotEmpty),
        None if store.list(ROOT, None, 1, None).await?.kvs.is_empty() => {
            match store.put(UNFINISHED, Bytes::from(source.to_owned()), Expect::Absent).await {
                Ok(_) => {}
                Err(StoreError::Conflict { .. }) => return Err(FillError::Another),
                Err(error) => return Err(error.into()),
            }
        }
        None => return Err(FillError::NotEmpty),
    }
    // No turn of a lease comes before it.
    let as_seen = leader.map_or(Expect::Absent, |kv| Expect::Rev(kv.mod_revision));
    let term = match store.put(LEADER, Bytes::from_static(b"0"), as_seen).await {
        Err(StoreError::Conflict { .. }) => return Err(FillError::Another),
        done => done?,
    };
    // Whoever ended before that has left a store that is in use.
    if store.get(UNFINISHED).await?.0.is_none_or(|mark| mark.value != source.as_bytes()) {
        return Err(FillError::Another);
    }
    loop {
        let now = store.revision().await?;
        let left = floor.0.saturating_sub(now.0).min(RAISES);
        if left == 0 {
            return Ok(term);
        }
        stream::iter(0..left)
            .map(Ok::<_, FillError>)
            .try_for_each_concurrent(WRITES, |_| async move {
                store.put(RAISED, Bytes::new(), Expect::Any).await?;
                Ok(())
            })
            .await?;
        // Its history would fill the store.
        store.compact(store.revision().await?).await?;
    }
}

/// Writes entries under a term, many at once.
pub async fn fill(
    store: &dyn Store,
    term: Rev,
    entries: impl Iterator<Item = Result<Entry, FillError>> + Send,
) -> Result<(), FillError> {
    stream::iter(entries)
        .try_for_each_concurrent(WRITES, |entry| async move {
            match store
                .put(&entry.key, entry.value.clone(), Expect::Led { rev: None, term: Some(term), also: None })
                .await
            {
                Ok(_) => Ok(()),
                // An attempt before this one wrote it.
                Err(StoreError::Conflict { current: Some(kv) }) if kv.value == entry.value => Ok(()),
                Err(StoreError::Conflict { .. }) => Err(FillError::Another),
                Err(error) => Err(error.into()),
            }
        })
        .await
}

/// Ends: forgets all history and, at last, takes the mark off. The revision then.
pub async fn finish(store: &dyn Store, term: Rev) -> Result<Rev, FillError> {
    match store.delete(RAISED, Expect::Any).await {
        Ok(_) | Err(StoreError::Conflict { current: None }) => {}
        Err(error) => return Err(error.into()),
    }
    store.compact(store.revision().await?).await?;
    let (Some(mark), _) = store.get(UNFINISHED).await? else { return Err(FillError::Another) };
    match store
        .delete(UNFINISHED, Expect::Led { rev: Some(mark.mod_revision), term: Some(term), also: None })
        .await
    {
        Ok((end, _)) => Ok(end),
        Err(StoreError::Conflict { .. }) => Err(FillError::Another),
        Err(error) => Err(error.into()),
    }
}

/// Everything in a store, for comparison.
pub async fn all(store: &dyn Store) -> Result<BTreeMap<Bytes, Bytes>, StoreError> {
    let at = store.revision().await?;
    let pages: Vec<Vec<Entry>> = entries(store, at).try_collect().await?;
    Ok(pages.into_iter().flatten().map(|entry| (entry.key, entry.value)).collect())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::embedded::{EmbeddedStore, MemoryDisk, Options};

    fn store() -> EmbeddedStore {
        EmbeddedStore::open_memory(MemoryDisk::default(), Options::default()).unwrap()
    }

    async fn file(store: &dyn Store) -> Vec<Vec<u8>> {
        let at = store.revision().await.unwrap();
        let (mut writer, first) = Writer::begin(at);
        let mut lines = vec![first];
        let pages: Vec<Vec<Entry>> = entries(store, at).try_collect().await.unwrap();
        lines.extend(pages.into_iter().flatten().map(|entry| writer.entry(&entry)));
        lines.push(writer.end());
        lines
    }

    fn read(lines: &[Vec<u8>]) -> Result<(Vec<Entry>, Summary), Damage> {
        let mut reader = Reader::default();
        let entries: Result<Vec<_>, _> = lines.iter().map(|line| reader.line(line)).collect();
        Ok((entries?.into_iter().flatten().collect(), reader.summary()?))
    }

    #[tokio::test]
    async fn what_was_in_a_store_is_in_the_other_and_no_revision_comes_twice() {
        let one = store();
        for n in 0..1203 {
            let key = format!("/wharfline/core/configmaps/default/c{n:04}");
            one.put(key.as_bytes(), Bytes::from(vec![0, 255, b'\n', 7]), Expect::Any).await.unwrap();
        }
        one.put(LEADER, Bytes::from_static(b"7"), Expect::Any).await.unwrap();
        one.put(b"/else/where", Bytes::new(), Expect::Any).await.unwrap();
        let lines = file(&one).await;
        let (entries, summary) = read(&lines).unwrap();
        assert_eq!((summary.keys, summary.revision), (1203, Rev(1205)));
        let (two, floor) = (store(), Rev(5000));
        let source = || entries.iter().cloned().map(Ok);
        let first = begin(&two, "file a", floor).await.unwrap();
        fill(&two, first, source().take(500)).await.unwrap();
        // It was interrupted there. Another source has no business here, the same one goes on.
        assert!(matches!(begin(&two, "file b", floor).await, Err(FillError::NotEmpty)));
        let term = begin(&two, "file a", floor).await.unwrap();
        // The first goes on beside it: it writes nothing more, and does not end what the other has not ended.
        assert!(matches!(fill(&two, first, source().skip(500)).await, Err(FillError::Another)));
        assert!(matches!(finish(&two, first).await, Err(FillError::Another)));
        fill(&two, term, source()).await.unwrap();
        let end = finish(&two, term).await.unwrap();
        assert!(end >= Rev(5000) && two.compacted().await.unwrap().next() == end, "{end}");
        let mut expected = all(&one).await.unwrap();
        assert_eq!(expected.remove(&b"/else/where"[..]), None);
        assert_eq!(all(&two).await.unwrap(), expected);
        let kept = two.list(ROOT, None, usize::MAX, None).await.unwrap().kvs;
        let mut kept = kept.iter().filter(|kv| *kv.key != *LEADER);
        assert!(kept.all(|kv| kv.mod_revision > floor), "an old version comes again");
        assert!(matches!(begin(&two, "file a", floor).await, Err(FillError::NotEmpty)), "it is finished");
    }

    #[tokio::test]
    async fn a_damaged_file_is_told_from_a_whole_one() {
        let one = store();
        for n in 0..3 {
            let key = format!("/wharfline/x/{n}");
            one.put(key.as_bytes(), Bytes::from_static(b"v"), Expect::Any).await.unwrap();
        }
        let lines = file(&one).await;
        assert!(read(&lines).is_ok());
        let with = |change: fn(&mut Vec<Vec<u8>>)| {
            let mut lines = lines.clone();
            change(&mut lines);
            read(&lines).map(|_| ()).unwrap_err()
        };
        assert_eq!(with(|l| drop(l.pop())), Damage::Incomplete("its end is missing"));
        assert_eq!(with(|l| drop(l.remove(2))), Damage::Incomplete("it was changed, or lines are missing"));
        assert_eq!(with(|l| l.swap(1, 2)), Damage::Incomplete("it was changed, or lines are missing"));
        assert_eq!(with(|l| l[2].truncate(20)), Damage::Unreadable(3));
        assert_eq!(with(|l| l.insert(0, b"{}\n".to_vec())), Damage::Foreign);
        assert_eq!(with(|l| l.push(l[1].clone())), Damage::Incomplete("something stands behind its end"));
        assert_eq!(
            with(|l| l[0] = b"{\"backup\":{\"format\":2,\"revision\":1}}\n".to_vec()),
            Damage::Format(2)
        );
        assert_eq!(
            with(|l| l[1] = b"{\"entry\":{\"key\":\"/etc/x\",\"value\":\"\"}}\n".to_vec()),
            Damage::Unreadable(2)
        );
        assert_eq!(with(Vec::clear), Damage::Incomplete("its end is missing"));
    }
}
