//! The node's own record of what it attempted: written before a call and after it, read back before anything else.
//!
//! One file, appended to. Each frame is `length (u32 LE), crc32 (u32 LE), JSON`. The first frame is the header with the
//! version. A torn tail ends the reading: it was never acknowledged. Damage with whole frames behind it is said, and the
//! daemon goes on as without a journal. Many changes that wait at the same time share one fdatasync. Never holds a secret. Never decides anything.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

mod image;

use super::requests::Modes;
use super::runtime::Kind;
use crate::api::allocation::CsiPlugin;
use crate::api::meta::{Capability, ObjectRef, Time};
use crate::api::plugin::Role;
use crate::plan::expand::Tried;
use crate::plan::mount::Level;
use crate::plan::view;
use crate::sys::Files;
use crate::sys::files::{AppendFile, FileError};
use crate::sys::kernel::Present;
use image::{Image, Turn};

/// The version of the format. A journal of a later one is refused.
const VERSION: u32 = 3;
/// Frames above this are damage, not data.
const FRAME_MAX: usize = 1 << 20;
/// The file is rewritten at start when it holds this many frames more than it has entries.
const SLACK: usize = 1024;
/// The key of the one [`StoreEntry`].
const STORE: &str = "store";
/// How many changes may wait for one sync.
const BATCH: usize = 256;
/// How long an outcome may wait for something that is written along with it.
const SOON: Duration = Duration::from_millis(5);

/// One remembered thing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Entry {
    /// One volume on this node.
    Attachment(AttachmentEntry),
    /// One publication of it.
    Publication(PublicationEntry),
    /// One task.
    Task(TaskEntry),
    /// A create that was attempted by this node as host: its outcome may be unknown.
    Create(CreateEntry),
    /// Which of several processes of a driver was asked about a volume last, and has not answered as far as is known.
    Asked(AskedEntry),
    /// Whose word all the others go back to. There is one.
    Store(StoreEntry),
}

/// One volume on this node, with all that undoing needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentEntry {
    /// The VolumeAttachment's uid.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// The Volume.
    pub volume: String,
    /// The Plugin.
    pub plugin: String,
    /// The plugin's id of the volume.
    pub handle: String,
    /// How it is used.
    pub capability: Capability,
    /// Whether NodeStage was in force when it came up.
    pub stage_required: bool,
    /// The directory beneath the tree.
    pub staging: String,
    /// What an earlier version kept in the place of `modes`: whether the first call here used the newer ones, beside
    /// SINGLE_NODE_WRITER. Later ones do as it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_modes: Option<bool>,
    /// The words about one node that it is asked in; absent before the first call, and where `newer_modes` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modes: Option<Modes>,
    /// Whether the driver mounts it for the group: the same at stage and publish. Absent in journals of before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_group: Option<bool>,
    /// Where staging stands.
    pub staged: Level,
    /// What was at the staging path after NodeStage; a plugin need not mount there.
    #[serde(default)]
    pub seen: Option<Present>,
    /// The size that NodeExpandVolume was last answered OK for, in bytes; 0 = it never was.
    #[serde(default)]
    pub expanded: i64,
    /// The last expansion since it was staged that did not succeed.
    #[serde(default)]
    pub tried: Option<Tried>,
    /// Never staged again under this uid.
    pub closed: bool,
    /// The release was reported.
    pub released: bool,
}

/// One publication.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PublicationEntry {
    /// The VolumeAttachment's uid.
    pub attachment: String,
    /// The allocation.
    pub allocation: ObjectRef,
    /// The allocation's name for the volume.
    pub name: String,
    /// The directory beneath the tree that holds the target.
    pub directory: String,
    /// Whether it is read only.
    pub read_only: bool,
    /// Where it stands.
    pub level: Level,
    /// What was verified there.
    #[serde(default)]
    pub verified: Option<Present>,
    /// The publication on the host, if asked for.
    #[serde(default)]
    pub host: Option<HostPublication>,
}

/// A publication at a path that people look at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPublication {
    /// The directory that the node allows.
    pub allowed: PathBuf,
    /// The whole path.
    pub path: PathBuf,
    /// How many components at its end we made.
    pub made: usize,
}

/// One task of an allocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskEntry {
    /// The allocation.
    pub allocation: ObjectRef,
    /// The task's name.
    pub task: String,
    /// How often it was started again.
    pub restarts: u32,
    /// Set when it serves a plugin.
    #[serde(default)]
    pub plugin: Option<InstanceEntry>,
    /// How it is run. Absent in journals of before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Kind>,
    /// The digest of the image that it was started from last, if it is a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// How many starts in a row before this one came to no good end: the pause after its own end goes by it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// During which boot of the machine it was started last. Absent in journals of before this was kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot: String,
}

impl TaskEntry {
    /// How it is run. Where that was not kept, something else ran what had its socket outside of the sockets' directory.
    pub fn kind(&self, run_dir: &Path) -> Kind {
        let elsewhere = self.plugin.as_ref().is_some_and(|plugin| !plugin.socket.starts_with(run_dir));
        self.runtime.unwrap_or(if elsewhere { Kind::External } else { Kind::Process })
    }
}

/// A plugin instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceEntry {
    /// The Plugin.
    pub plugin: String,
    /// Which services.
    pub role: Role,
    /// Its socket.
    pub socket: PathBuf,
    /// Whether its PluginInstance was seen: the controllers admitted it. Absent in journals of before this was kept.
    #[serde(default = "admitted")]
    pub admitted: bool,
    /// When its PluginInstance was made, if it was seen. Absent in journals of before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born: Option<Time>,
    /// The csiPlugin block that its process was started with. Absent in journals of before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<CsiPlugin>,
    /// How many of its runs in a row did not go well, before this one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bad_runs: u32,
    /// It was asked to end because it was not well.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unwell: bool,
}

impl InstanceEntry {
    /// Where it has the tree of volumes; none: where the node has it, as before there was another place.
    pub fn view(&self) -> Option<PathBuf> {
        self.block.as_ref().and_then(view::of)
    }
}

fn admitted() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A create that was attempted here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateEntry {
    /// The Volume.
    pub volume: String,
    /// Its uid.
    pub uid: String,
}

/// A call about a volume that one of several processes of its driver got. Where there is one process alone, nothing is
/// written: it is the one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AskedEntry {
    /// The Plugin.
    pub plugin: String,
    /// The volume, by handle or name.
    pub volume: String,
    /// The process: the allocation's uid.
    pub allocation: String,
    /// Its task.
    pub task: String,
}

/// The server's store that this node works for, told by its uid of the namespace of the system.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreEntry {
    /// The namespace's uid: a store that was lost and made anew has another.
    pub uid: String,
    /// This node's name in it.
    pub node: String,
}

impl Entry {
    /// What tells it from all others; a later entry with the same key replaces it.
    pub fn key(&self) -> String {
        match self {
            Self::Attachment(a) => format!("attachment/{}", a.uid),
            Self::Publication(p) => publication_key(&p.attachment, &p.allocation.uid, &p.name),
            Self::Task(t) => task_key(&t.allocation.uid, &t.task),
            Self::Create(c) => format!("create/{}", c.uid),
            Self::Asked(a) => asked_key(&a.plugin, &a.volume),
            Self::Store(_) => STORE.to_owned(),
        }
    }
}

/// The key of a publication.
pub fn publication_key(attachment: &str, allocation: &str, name: &str) -> String {
    format!("publication/{attachment}/{allocation}/{name}")
}

/// The key of who was asked about a volume.
pub fn asked_key(plugin: &str, volume: &str) -> String {
    format!("asked/{plugin}/{volume}")
}

/// The key of a task.
pub fn task_key(allocation: &str, task: &str) -> String {
    format!("task/{allocation}/{task}")
}

/// One change of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Change {
    /// Put or replace.
    Put(Entry),
    /// Forget the entry with this key.
    Forget(String),
    /// What a lost journal held is in it again, as far as anybody knows.
    Rebuilt,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Frame {
    Header {
        version: u32,
        incarnation: String,
        boot_id: String,
        /// Its predecessor was lost and nothing was rebuilt yet.
        #[serde(default)]
        amnesia: bool,
    },
    Change(Change),
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be read or written.
    #[error("journal")]
    File(#[from] FileError),
    /// It was written by a later version; use that one.
    #[error("{}: written by a later version of wharfline (format {version}, this one reads {VERSION})", path.display())]
    TooNew {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
    /// The writer ended; the daemon must stop.
    #[error("the journal is closed")]
    Closed,
}

/// What was read at start.
#[derive(Debug)]
pub struct Opened {
    /// The journal.
    pub journal: Journal,
    /// Its writer, which the caller must join.
    pub writer: tokio::task::JoinHandle<()>,
    /// Tells this installation from another of the same name.
    pub incarnation: String,
    /// The machine booted since the journal was written.
    pub rebooted: bool,
    /// There was none, or its beginning could not be read.
    pub lost: bool,
}

type Shared = Arc<Mutex<Image>>;

struct Request {
    changes: Vec<Change>,
    /// They are seen when they are durable; absent when the image has them already.
    turn: Option<Turn>,
    /// Absent when nobody waits for it.
    done: Option<oneshot::Sender<Result<(), FileError>>>,
    /// It may lie here for a little while.
    may_wait: bool,
}

/// A handle on the journal; clones share it.
#[derive(Debug, Clone)]
pub struct Journal {
    image: Shared,
    requests: mpsc::Sender<Request>,
}

impl Journal {
    /// Opens the file, reads what is whole, rewrites it when it has grown, and starts the writer.
    pub async fn open(
        files: &dyn Files,
        path: &Path,
        boot_id: &str,
        new_incarnation: impl FnOnce() -> String,
    ) -> Result<Opened, JournalError> {
        let mut file = files.open_append(path).await?;
        let content = file.read_all().await?;
        let read = read(path, &content)?;
        let lost = read.header.is_none() || read.amnesia;
        let (incarnation, old_boot) = read.header.unwrap_or_else(|| (new_incarnation(), boot_id.to_owned()));
        let rebooted = old_boot != boot_id;
        let mut entries = read.entries;
        if rebooted {
            entries.values_mut().for_each(forget_mounts);
            // No process is left either.
            entries.retain(|_, entry| !matches!(entry, Entry::Asked(_)));
        }
        if read.torn && lost && !content.is_empty() {
            let (path, kept) = (path.display(), entries.len());
            tracing::error!(
                %path,
                kept,
                "the journal was damaged: what it held after that is found again from mounts, tasks and the server"
            );
        }
        if lost || rebooted || read.torn || read.version < VERSION || read.frames > entries.len() + SLACK {
            file.replace_atomically(whole(&incarnation, boot_id, lost, entries.values())).await?;
        } else {
            // A predecessor that was killed may have written what it never made durable: an intent is relied on only
            // when it is.
            file.sync().await?;
        }
        let image: Shared = Arc::new(Mutex::new(Image::new(entries)));
        let (requests, waiting) = mpsc::channel(BATCH);
        let writer = tokio::spawn(write(file, waiting, Arc::clone(&image)));
        Ok(Opened { journal: Self { image, requests }, writer, incarnation, rebooted, lost })
    }

    /// What the journal of a daemon that does not run now says.
    pub async fn entries(files: &dyn Files, path: &Path) -> Result<Vec<Entry>, JournalError> {
        let content = files.open_append(path).await?.read_all().await?;
        Ok(read(path, &content)?.entries.into_values().collect())
    }

    /// Makes changes durable, then visible. All or none of them.
    pub async fn commit(&self, changes: Vec<Change>) -> Result<(), JournalError> {
        if changes.is_empty() {
            return Ok(());
        }
        let (done, written) = oneshot::channel();
        self.hand(|image| {
            let turn = Some(image.await_all(&changes));
            Some(Request { changes, turn, done: Some(done), may_wait: false })
        })
        .await?;
        Ok(written.await.map_err(|_| JournalError::Closed)??)
    }

    /// Hands a request on to the writer. What is written has the order in which the image was asked.
    async fn hand(&self, request: impl FnOnce(&mut Image) -> Option<Request>) -> Result<(), JournalError> {
        let place = self.requests.reserve().await.map_err(|_| JournalError::Closed)?;
        let mut image = self.lock();
        if let Some(request) = request(&mut image) {
            place.send(request);
        }
        Ok(())
    }

    /// Changes the entry with this key as it was put last, be it durable yet or not, if there is one; `change` says whether
    /// it did. What was put before and is not seen yet is seen no sooner for that. Durable as what [`Self::put_soon`] puts.
    pub async fn edit(&self, key: &str, change: impl FnOnce(&mut Entry) -> bool) -> Result<(), JournalError> {
        self.hand(|image| {
            let (changes, turn) = image.edited(key, change)?;
            Some(Request { changes, turn, done: None, may_wait: true })
        })
        .await
    }

    /// The same, and waits until it is durable.
    pub async fn edit_now(
        &self,
        key: &str,
        change: impl FnOnce(&mut Entry) -> bool,
    ) -> Result<(), JournalError> {
        let (done, written) = oneshot::channel();
        let mut changed = false;
        self.hand(|image| {
            let (changes, turn) = image.edited(key, change)?;
            changed = true;
            Some(Request { changes, turn, done: Some(done), may_wait: false })
        })
        .await?;
        if changed { Ok(written.await.map_err(|_| JournalError::Closed)??) } else { Ok(()) }
    }

    /// Puts one entry.
    pub async fn put(&self, entry: Entry) -> Result<(), JournalError> {
        self.commit(vec![Change::Put(entry)]).await
    }

    /// Puts the outcome of a call, visible at once and durable with whatever is written next, which is soon: for an
    /// outcome after which another intent follows. Until then a crash leaves the call in doubt, as it did before the
    /// outcome was known.
    pub async fn put_soon(&self, entry: Entry) -> Result<(), JournalError> {
        self.put_ahead(entry, true).await
    }

    /// As [`Self::put_soon`], for the last outcome of several: it is written without delay, beside what the caller goes on
    /// to do. What is put after it is never durable before it.
    pub async fn put_beside(&self, entry: Entry) -> Result<(), JournalError> {
        self.put_ahead(entry, false).await
    }

    /// Forgets an entry as [`Self::put_soon`] puts one.
    pub async fn forget_soon(&self, key: String) -> Result<(), JournalError> {
        self.ahead(Change::Forget(key), true).await
    }

    async fn put_ahead(&self, entry: Entry, may_wait: bool) -> Result<(), JournalError> {
        self.ahead(Change::Put(entry), may_wait).await
    }

    async fn ahead(&self, change: Change, may_wait: bool) -> Result<(), JournalError> {
        let changes = vec![change];
        self.hand(|image| {
            image.show_at_once(&changes);
            Some(Request { changes, turn: None, done: None, may_wait })
        })
        .await
    }

    /// Looks at the entries under a short lock.
    pub fn look<T>(&self, view: impl FnOnce(&BTreeMap<String, Entry>) -> T) -> T {
        view(&self.lock().entries)
    }

    fn lock(&self) -> MutexGuard<'_, Image> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The attachment with this uid.
    pub fn attachment(&self, uid: &str) -> Option<AttachmentEntry> {
        self.look(|all| match all.get(&format!("attachment/{uid}")) {
            Some(Entry::Attachment(entry)) => Some(entry.clone()),
            _ => None,
        })
    }

    /// Every attachment.
    pub fn attachments(&self) -> Vec<AttachmentEntry> {
        self.look(|all| all.values().filter_map(Entry::as_attachment).cloned().collect())
    }

    /// Every attachment of one Volume.
    pub fn attachments_of(&self, volume: &str) -> Vec<AttachmentEntry> {
        let image = self.lock();
        image.of(&image.of_volume, volume).filter_map(Entry::as_attachment).cloned().collect()
    }

    /// Every attachment with this staging directory.
    pub fn attachments_at(&self, staging: &str) -> Vec<AttachmentEntry> {
        let image = self.lock();
        image.of(&image.of_staging, staging).filter_map(Entry::as_attachment).cloned().collect()
    }

    /// Every publication of one attachment.
    pub fn publications(&self, attachment: &str) -> Vec<PublicationEntry> {
        let prefix = format!("publication/{attachment}/");
        self.look(|all| {
            all.range(prefix.clone()..)
                .take_while(|(key, _)| key.starts_with(&prefix))
                .filter_map(|(_, entry)| entry.as_publication())
                .cloned()
                .collect()
        })
    }

    /// Every publication for one allocation.
    pub fn publications_of(&self, allocation: &str) -> Vec<PublicationEntry> {
        let image = self.lock();
        image.of(&image.of_allocation, allocation).filter_map(Entry::as_publication).cloned().collect()
    }

    /// Every task.
    pub fn tasks(&self) -> Vec<TaskEntry> {
        self.look(|all| all.values().filter_map(Entry::as_task).cloned().collect())
    }

    /// Every process of several that was asked about a volume.
    pub fn asked(&self) -> Vec<AskedEntry> {
        self.look(|all| all.values().filter_map(Entry::as_asked).cloned().collect())
    }

    /// Which of several processes was asked about this volume.
    pub fn asked_about(&self, plugin: &str, volume: &str) -> Option<AskedEntry> {
        self.look(|all| all.get(&asked_key(plugin, volume)).and_then(Entry::as_asked).cloned())
    }

    /// The store that all this was done for, if it is known.
    pub fn store(&self) -> Option<StoreEntry> {
        self.look(|all| match all.get(STORE) {
            Some(Entry::Store(entry)) => Some(entry.clone()),
            _ => None,
        })
    }

    /// Whether a create of this volume was attempted from here.
    pub fn create_attempted(&self, uid: &str) -> bool {
        self.look(|all| all.contains_key(&format!("create/{uid}")))
    }
}

impl Entry {
    fn as_attachment(&self) -> Option<&AttachmentEntry> {
        match self {
            Self::Attachment(entry) => Some(entry),
            Self::Publication(_) | Self::Task(_) | Self::Create(_) | Self::Asked(_) | Self::Store(_) => None,
        }
    }
    pub(super) fn as_publication(&self) -> Option<&PublicationEntry> {
        match self {
            Self::Publication(entry) => Some(entry),
            Self::Attachment(_) | Self::Task(_) | Self::Create(_) | Self::Asked(_) | Self::Store(_) => None,
        }
    }
    fn as_task(&self) -> Option<&TaskEntry> {
        match self {
            Self::Task(entry) => Some(entry),
            Self::Attachment(_)
            | Self::Publication(_)
            | Self::Create(_)
            | Self::Asked(_)
            | Self::Store(_) => None,
        }
    }
    fn as_asked(&self) -> Option<&AskedEntry> {
        match self {
            Self::Asked(entry) => Some(entry),
            Self::Attachment(_) | Self::Publication(_) | Self::Task(_) | Self::Create(_) | Self::Store(_) => {
                None
            }
        }
    }
}

/// After a boot no mount is left, but the reverse calls are owed still: Up is in doubt.
fn forget_mounts(entry: &mut Entry) {
    match entry {
        Entry::Attachment(a) if a.staged == Level::Up => a.staged = Level::Rising,
        Entry::Publication(p) if p.level == Level::Up => p.level = Level::Rising,
        Entry::Attachment(_)
        | Entry::Publication(_)
        | Entry::Task(_)
        | Entry::Create(_)
        | Entry::Asked(_)
        | Entry::Store(_) => {}
    }
}

async fn write(mut file: Box<dyn AppendFile>, mut waiting: mpsc::Receiver<Request>, image: Shared) {
    let mut batch: Vec<Request> = Vec::with_capacity(BATCH);
    // Until when what nobody waits for may lie here.
    let mut due = None;
    loop {
        let more = match due {
            None => waiting.recv_many(&mut batch, BATCH).await,
            Some(due) => {
                let more = tokio::time::timeout_at(due, waiting.recv_many(&mut batch, BATCH)).await;
                more.unwrap_or_default()
            }
        };
        if more == 0 && due.is_none() {
            return;
        }
        let is_due = due.is_some_and(|due| Instant::now() >= due);
        if more > 0 && !is_due && batch.iter().all(|request| request.may_wait) {
            due = due.or_else(|| Some(Instant::now() + SOON));
            continue;
        }
        let mut bytes = Vec::new();
        for change in batch.iter().flat_map(|request| &request.changes) {
            frame(&mut bytes, &Frame::Change(change.clone()));
        }
        due = None;
        let start = Instant::now();
        if let Err(error) = file.append_durably(bytes).await {
            // After a failed sync nothing may be assumed of the file: every waiter fails, and so does the daemon.
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "journal not written; the daemon stops"
            );
            return;
        }
        tracing::trace!(target: "life", requests = batch.len(), took = ?start.elapsed(), "journal");
        {
            let mut image = image.lock().unwrap_or_else(PoisonError::into_inner);
            for request in &batch {
                if let Some(turn) = request.turn {
                    image.show(turn, &request.changes);
                }
            }
        }
        for done in batch.drain(..).filter_map(|request| request.done) {
            let _ = done.send(Ok(()));
        }
    }
}

fn apply(image: &mut BTreeMap<String, Entry>, change: Change) {
    match change {
        Change::Put(entry) => {
            image.insert(entry.key(), entry);
        }
        Change::Forget(key) => {
            image.remove(&key);
        }
        Change::Rebuilt => {}
    }
}

fn frame(bytes: &mut Vec<u8>, frame: &Frame) {
    let body = serde_json::to_vec(frame).expect("journal entries have string keys and no custom serializer");
    let length = u32::try_from(body.len()).expect("an entry is far below 4 GiB");
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
}

fn whole<'a>(
    incarnation: &str,
    boot_id: &str,
    amnesia: bool,
    entries: impl Iterator<Item = &'a Entry>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = Frame::Header {
        version: VERSION,
        incarnation: incarnation.to_owned(),
        boot_id: boot_id.to_owned(),
        amnesia,
    };
    frame(&mut bytes, &header);
    for entry in entries {
        frame(&mut bytes, &Frame::Change(Change::Put(entry.clone())));
    }
    bytes
}

struct Read {
    header: Option<(String, String)>,
    version: u32,
    entries: BTreeMap<String, Entry>,
    frames: usize,
    torn: bool,
    amnesia: bool,
}

fn read(path: &Path, content: &[u8]) -> Result<Read, JournalError> {
    let mut read = Read {
        header: None,
        version: VERSION,
        entries: BTreeMap::new(),
        frames: 0,
        torn: false,
        amnesia: false,
    };
    let mut rest = content;
    while !rest.is_empty() {
        let Some((body, next)) = next_frame(rest) else {
            read.torn = true;
            // A torn tail was never acknowledged. What is followed by a whole frame was, and is lost.
            read.amnesia |= (1..rest.len()).any(|at| next_frame(&rest[at..]).is_some());
            break;
        };
        let parsed: Frame = match serde_json::from_slice(body) {
            Ok(parsed) => parsed,
            Err(_) => {
                // Whole, and so acknowledged, but not to be understood: it and what follows is lost. A later version
                // that writes frames which this one does not know says so in its header.
                read.torn = true;
                read.amnesia = true;
                break;
            }
        };
        rest = next;
        read.frames += 1;
        match parsed {
            Frame::Header { version, .. } if version > VERSION => {
                return Err(JournalError::TooNew { path: path.to_owned(), version });
            }
            Frame::Header { version, incarnation, boot_id, amnesia } => {
                read.version = version;
                read.header = Some((incarnation, boot_id));
                read.amnesia = amnesia;
            }
            Frame::Change(_) if read.header.is_none() => {
                read.torn = true;
                break;
            }
            Frame::Change(Change::Rebuilt) => read.amnesia = false,
            Frame::Change(change) => apply(&mut read.entries, change),
        }
    }
    Ok(read)
}

fn next_frame(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, tail) = rest.split_at_checked(8)?;
    let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let crc = u32::from_le_bytes(head[4..].try_into().ok()?);
    // No frame is empty: zeros are what a torn write may leave.
    if length == 0 || length > FRAME_MAX {
        return None;
    }
    let (body, next) = tail.split_at_checked(length)?;
    (crc32fast::hash(body) == crc).then_some((body, next))
}

#[cfg(test)]
mod tests;
