//! The journal: what is read back, what is durable when.
use super::*;
use crate::sys::files::FileLock;

fn task(name: &str, restarts: u32) -> Entry {
    Entry::Task(TaskEntry {
        allocation: ObjectRef { namespace: "d".into(), name: "a".into(), uid: "u".into() },
        task: name.into(),
        restarts,
        plugin: None,
        runtime: Some(Kind::Process),
        image: None,
        failures: 0,
        boot: "b".into(),
    })
}

/// A task that serves a plugin, as it is written today.
fn instance() -> TaskEntry {
    TaskEntry {
        allocation: ObjectRef { namespace: "d".into(), name: "a".into(), uid: "u".into() },
        task: "driver".into(),
        restarts: 2,
        plugin: Some(InstanceEntry {
            plugin: "p".into(),
            role: Role::Monolith,
            socket: PathBuf::from("/run/w/1/csi.sock"),
            admitted: false,
            born: Some(Time("2026-11-20T10:00:00Z".parse().unwrap())),
            block: None,
            bad_runs: 0,
            unwell: false,
        }),
        runtime: Some(Kind::Process),
        image: None,
        failures: 0,
        boot: String::new(),
    }
}

/// A later version has to read these bytes. One that writes others says so here.
#[test]
fn what_is_kept_of_a_plugins_task_is_what_it_was() {
    let bytes = r#"{"task":{"allocation":{"namespace":"d","name":"a","uid":"u"},"task":"driver","restarts":2,"plugin":{"plugin":"p","role":"Monolith","socket":"/run/w/1/csi.sock","admitted":false,"born":"2026-11-20T10:00:00.000000Z"},"runtime":"process"}}"#;
    let entry = Entry::Task(instance());
    assert_eq!(serde_json::to_string(&entry).unwrap(), bytes);
    assert_eq!(serde_json::from_str::<Entry>(bytes).unwrap(), entry);
}

/// Since what came to no good end is counted on by the next daemon.
#[test]
fn what_is_kept_of_failures_is_what_it_was() {
    let bytes = r#"{"task":{"allocation":{"namespace":"d","name":"a","uid":"u"},"task":"driver","restarts":2,"plugin":{"plugin":"p","role":"Monolith","socket":"/run/w/1/csi.sock","admitted":false,"born":"2026-11-20T10:00:00.000000Z","badRuns":3},"runtime":"process","failures":4}}"#;
    let mut entry = instance();
    entry.failures = 4;
    if let Some(plugin) = &mut entry.plugin {
        plugin.bad_runs = 3;
    }
    let entry = Entry::Task(entry);
    assert_eq!(serde_json::to_string(&entry).unwrap(), bytes);
    assert_eq!(serde_json::from_str::<Entry>(bytes).unwrap(), entry);
}

/// Since the block is kept that it was started with.
#[test]
fn what_is_kept_of_a_csi_plugin_block_is_what_it_was() {
    let bytes = r#"{"task":{"allocation":{"namespace":"d","name":"a","uid":"u"},"task":"driver","restarts":2,"plugin":{"plugin":"p","role":"Monolith","socket":"/run/w/1/csi.sock","admitted":false,"born":"2026-11-20T10:00:00.000000Z","block":{"pluginName":"p","role":"Monolith","mountDir":"/csi","healthTimeout":"30s"}},"runtime":"process"}}"#;
    let mut entry = instance();
    if let Some(plugin) = &mut entry.plugin {
        plugin.block = Some(CsiPlugin {
            plugin_name: "p".to_owned(),
            role: Role::Monolith,
            mount_dir: "/csi".to_owned(),
            stage_publish_base_dir: String::new(),
            health_timeout: Some("30s".to_owned()),
        });
    }
    assert_eq!(entry.plugin.as_ref().and_then(InstanceEntry::view), None);
    let entry = Entry::Task(entry);
    assert_eq!(serde_json::to_string(&entry).unwrap(), bytes);
    assert_eq!(serde_json::from_str::<Entry>(bytes).unwrap(), entry);
    let elsewhere =
        bytes.replace(r#""mountDir":"/csi""#, r#""mountDir":"/csi","stagePublishBaseDir":"/data""#);
    let Entry::Task(entry) = serde_json::from_str(&elsewhere).unwrap() else { panic!("{elsewhere}") };
    assert_eq!(entry.plugin.and_then(|plugin| plugin.view()), Some(PathBuf::from("/data")));
}

/// The same for a container: without its archive it is started from the image of its last start.
#[test]
fn what_is_kept_of_a_containers_image_is_what_it_was() {
    let Entry::Task(mut entry) = task("web", 1) else { panic!("a task") };
    (entry.runtime, entry.image) = (Some(Kind::Oci), Some("sha256:0f".into()));
    let bytes = r#"{"task":{"allocation":{"namespace":"d","name":"a","uid":"u"},"task":"web","restarts":1,"plugin":null,"runtime":"oci","image":"sha256:0f","boot":"b"}}"#;
    assert_eq!(serde_json::to_string(&Entry::Task(entry.clone())).unwrap(), bytes);
    assert_eq!(serde_json::from_str::<Entry>(bytes).unwrap(), Entry::Task(entry));
}

/// The same for who was asked about a volume.
#[test]
fn what_is_kept_of_who_was_asked_is_what_it_was() {
    let bytes = r#"{"asked":{"plugin":"p","volume":"h-1","allocation":"u","task":"driver"}}"#;
    let [plugin, volume, allocation, task] = ["p", "h-1", "u", "driver"].map(str::to_owned);
    let entry = Entry::Asked(AskedEntry { plugin, volume, allocation, task });
    assert_eq!(serde_json::to_string(&entry).unwrap(), bytes);
    assert_eq!(serde_json::from_str::<Entry>(bytes).unwrap(), entry);
    assert_eq!(entry.key(), "asked/p/h-1");
}

/// Journals of before it was kept how a task is run, and before it was kept who was admitted, and when.
#[test]
fn what_an_older_daemon_kept_of_a_task_is_understood() {
    let plugin =
        |more: &str| format!(r#""plugin":{{"plugin":"p","role":"Node","socket":"/srv/csi.sock"{more}}}"#);
    let elsewhere = plugin("");
    let ours = plugin(r#","admitted":false"#).replace("/srv", "/run/w/1");
    for (rest, kind, admitted) in [
        (r#""plugin":null"#, Kind::Process, None),
        (r#""restarts":0"#, Kind::Process, None),
        (elsewhere.as_str(), Kind::External, Some(true)),
        (ours.as_str(), Kind::Process, Some(false)),
    ] {
        let before = r#"{"task":{"allocation":{"namespace":"d","name":"a","uid":"u"},"task":"t","#;
        let restarts = if rest.contains("restarts") { "" } else { r#","restarts":1"# };
        let text = format!("{before}{rest}{restarts}}}}}");
        let Entry::Task(entry) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        assert_eq!(entry.runtime, None);
        assert_eq!(entry.kind(Path::new("/run/w")), kind, "{text}");
        assert_eq!(entry.plugin.map(|p| p.admitted), admitted, "{text}");
    }
    // What it says of itself counts.
    let moved = TaskEntry { runtime: Some(Kind::External), ..instance() };
    assert_eq!(moved.kind(Path::new("/run/w")), Kind::External);
}

fn content() -> Vec<u8> {
    let mut bytes = whole("i", "b", false, [task("x", 1)].iter());
    frame(&mut bytes, &Frame::Change(Change::Put(task("y", 2))));
    frame(&mut bytes, &Frame::Change(Change::Put(task("x", 3))));
    frame(&mut bytes, &Frame::Change(Change::Forget(task_key("u", "y"))));
    bytes
}

#[test]
fn what_was_written_is_read() {
    let read = read(Path::new("j"), &content()).unwrap();
    assert_eq!(read.header, Some(("i".into(), "b".into())));
    assert_eq!(read.entries.into_values().collect::<Vec<_>>(), [task("x", 3)]);
    assert!(!read.torn);
}

/// Scenario B124.
#[test]
fn every_torn_tail_and_every_flipped_bit_leaves_a_whole_prefix() {
    let content = content();
    let wholes: Vec<_> = {
        let mut states = vec![BTreeMap::new()];
        let mut rest = content.as_slice();
        while let Some((body, next)) = next_frame(rest) {
            let mut state = states.last().unwrap().clone();
            if let Frame::Change(change) = serde_json::from_slice(body).unwrap() {
                apply(&mut state, change);
            }
            states.push(state);
            rest = next;
        }
        states
    };
    for cut in 0..content.len() {
        let read = read(Path::new("j"), &content[..cut]).unwrap();
        assert!(wholes.contains(&read.entries), "cut at {cut}");
    }
    let last_frame = {
        let mut alone = Vec::new();
        frame(&mut alone, &Frame::Change(Change::Forget(task_key("u", "y"))));
        alone.len()
    };
    for bit in 0..content.len() * 8 {
        let mut damaged = content.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let read = read(Path::new("j"), &damaged).unwrap();
        assert!(wholes.contains(&read.entries) && read.torn, "bit {bit}");
        // What comes after the damage is missed, unless nothing did.
        let last = bit / 8 >= content.len() - last_frame;
        assert!(read.header.is_none() || read.amnesia != last, "bit {bit}");
    }
}

#[test]
fn a_whole_frame_that_cannot_be_understood_is_a_loss() {
    let mut bytes = whole("i", "b", false, [task("x", 1)].iter());
    let body = br#"{"change":{"put":{"riddle":{}}}}"#;
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
    bytes.extend_from_slice(body);
    for more in [false, true] {
        if more {
            frame(&mut bytes, &Frame::Change(Change::Put(task("y", 1))));
        }
        let read = read(Path::new("j"), &bytes).unwrap();
        assert!(read.torn && read.amnesia && read.entries.len() == 1);
    }
}

#[test]
fn entries_are_found_by_volume_and_allocation() {
    let attachment = |uid: &str, volume: &str, staged| {
        Entry::Attachment(AttachmentEntry {
            uid: uid.into(),
            name: uid.into(),
            volume: volume.into(),
            plugin: "p".into(),
            handle: volume.into(),
            capability: serde_json::from_str(r#"{"accessMode":"SingleNodeWriter"}"#).unwrap(),
            stage_required: true,
            staging: "s".into(),
            newer_modes: None,
            modes: None,
            mount_group: None,
            staged,
            seen: None,
            expanded: 0,
            tried: None,
            closed: false,
            released: false,
        })
    };
    let mut image = Image::new(BTreeMap::from([("x".into(), attachment("a", "v", Level::Down))]));
    image.apply(Change::Put(attachment("a", "v", Level::Up)));
    image.apply(Change::Put(attachment("b", "v", Level::Down)));
    image.apply(Change::Put(attachment("c", "w", Level::Down)));
    let staged = |image: &Image, volume| -> Vec<_> {
        let entries = image.of(&image.of_volume, volume).filter_map(Entry::as_attachment);
        entries.map(|a| (a.uid.clone(), a.staged)).collect()
    };
    assert_eq!(staged(&image, "v"), [("a".into(), Level::Up), ("b".into(), Level::Down)]);
    assert_eq!(image.of(&image.of_staging, "s").count(), 3);
    for key in ["attachment/a", "attachment/b", "attachment/c", "attachment/c"] {
        image.apply(Change::Forget(key.into()));
    }
    assert!(
        image.entries.is_empty() && image.of_volume.is_empty() && image.of_staging.is_empty(),
        "an empty word is not kept"
    );
}

/// A file that notes what each sync made durable.
#[derive(Debug, Default)]
struct Noted(Arc<Mutex<Vec<Vec<u8>>>>);

/// Holds what a predecessor has written; notes what is asked of its file.
#[derive(Debug)]
struct Found(Vec<u8>, Arc<Mutex<Vec<&'static str>>>);

#[async_trait::async_trait]
impl Files for Found {
    async fn open_append(&self, _: &Path) -> Result<Box<dyn AppendFile>, FileError> {
        Ok(Box::new(Found(self.0.clone(), Arc::clone(&self.1))))
    }
    async fn read(&self, _: &Path) -> Result<Option<Vec<u8>>, FileError> {
        Ok(None)
    }
    async fn replace(&self, _: &Path, _: Vec<u8>) -> Result<(), FileError> {
        Ok(())
    }
    async fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>, FileError> {
        Err(FileError::Locked { path: path.to_owned() })
    }
}

#[async_trait::async_trait]
impl AppendFile for Found {
    async fn append(&mut self, _: Vec<u8>) -> Result<(), FileError> {
        self.1.lock().unwrap().push("append");
        Ok(())
    }
    async fn sync(&mut self) -> Result<(), FileError> {
        self.1.lock().unwrap().push("sync");
        Ok(())
    }
    async fn read_all(&mut self) -> Result<Vec<u8>, FileError> {
        Ok(self.0.clone())
    }
    async fn replace_atomically(&mut self, _: Vec<u8>) -> Result<(), FileError> {
        self.1.lock().unwrap().push("replace");
        Ok(())
    }
}

#[tokio::test]
async fn what_a_killed_predecessor_wrote_is_durable_before_it_is_relied_on() {
    let whole = content();
    let torn = whole[..whole.len() - 1].to_vec();
    let mut old = Vec::new();
    let (version, incarnation, boot_id) = (VERSION - 1, "i".to_owned(), "b".to_owned());
    frame(&mut old, &Frame::Header { version, incarnation, boot_id, amnesia: false });
    for (found, boot, done) in [
        (whole.clone(), "b", "sync"),
        (whole, "next boot", "replace"),
        (torn, "b", "replace"),
        // Before a frame is added that an older program does not know.
        (old, "b", "replace"),
        (Vec::new(), "b", "replace"),
    ] {
        let asked = Arc::default();
        let files = Found(found, Arc::clone(&asked));
        let opened = Journal::open(&files, Path::new("j"), boot, || "new".into()).await.unwrap();
        assert_eq!(*asked.lock().unwrap(), [done]);
        drop(opened.journal);
        opened.writer.await.unwrap();
    }
}

#[async_trait::async_trait]
impl AppendFile for Noted {
    async fn append(&mut self, bytes: Vec<u8>) -> Result<(), FileError> {
        self.0.lock().unwrap().push(bytes);
        Ok(())
    }
    async fn sync(&mut self) -> Result<(), FileError> {
        Ok(())
    }
    async fn read_all(&mut self) -> Result<Vec<u8>, FileError> {
        Ok(Vec::new())
    }
    async fn replace_atomically(&mut self, _: Vec<u8>) -> Result<(), FileError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_goes_with_the_intent_that_follows_or_soon_by_itself() {
    let synced = Arc::default();
    let (requests, waiting) = mpsc::channel(BATCH);
    let image = Shared::default();
    let journal = Journal { image: Arc::clone(&image), requests };
    let writer = tokio::spawn(write(Box::new(Noted(Arc::clone(&synced))), waiting, image));
    let syncs = || -> Vec<Vec<String>> {
        let change = |body: &[u8]| match serde_json::from_slice(body).unwrap() {
            Frame::Change(Change::Put(Entry::Task(task))) => format!("{} {}", task.task, task.restarts),
            _ => String::new(),
        };
        let each = |mut rest: &[u8]| {
            let mut changes = Vec::new();
            while let Some((body, next)) = next_frame(rest) {
                changes.push(change(body));
                rest = next;
            }
            changes
        };
        synced.lock().unwrap().iter().map(|bytes: &Vec<u8>| each(bytes)).collect()
    };
    let restarts = || journal.look(|all| all.values().filter_map(Entry::as_task).map(|t| t.restarts).sum());
    journal.put_soon(task("x", 1)).await.unwrap();
    assert_eq!((restarts(), syncs().len()), (1_u32, 0), "seen at once, durable later");
    journal.put(task("y", 2)).await.unwrap();
    assert_eq!((restarts(), syncs()), (3, vec![vec!["x 1".to_owned(), "y 2".to_owned()]]));
    journal.put_soon(task("x", 4)).await.unwrap();
    tokio::time::sleep(SOON * 2).await;
    assert_eq!((restarts(), syncs().pop()), (6, Some(vec!["x 4".to_owned()])), "nothing followed");
    let before = Instant::now();
    journal.put_beside(task("x", 7)).await.unwrap();
    assert_eq!(restarts(), 9, "seen at once");
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        (Instant::now(), syncs().pop()),
        (before, Some(vec!["x 7".to_owned()])),
        "and not kept waiting"
    );
    journal.put_soon(task("x", 5)).await.unwrap();
    drop(journal);
    writer.await.unwrap();
    assert_eq!(syncs().pop(), Some(vec!["x 5".to_owned()]), "nor at the end");
}

/// What the test looks at: how often the one task was started again.
fn restarts_of(journal: &Journal) -> u32 {
    journal.look(|all| all.values().filter_map(Entry::as_task).map(|t| t.restarts).sum())
}

fn noting() -> (Journal, Arc<Mutex<Vec<Vec<u8>>>>) {
    let synced = Arc::default();
    let (requests, waiting) = mpsc::channel(BATCH);
    let image = Shared::default();
    tokio::spawn(write(Box::new(Noted(Arc::clone(&synced))), waiting, Arc::clone(&image)));
    (Journal { image, requests }, synced)
}

fn once_more(entry: &mut Entry) -> bool {
    if let Entry::Task(task) = entry {
        task.restarts += 10;
    }
    matches!(entry, Entry::Task(task) if task.restarts < 100)
}

#[tokio::test(start_paused = true)]
async fn what_is_edited_is_what_was_put_last_and_it_is_seen_no_sooner() {
    let (journal, synced) = noting();
    let key = task("x", 0).key();
    journal.edit(&key, once_more).await.unwrap();
    assert_eq!((restarts_of(&journal), synced.lock().unwrap().len()), (0, 0), "there is nothing to edit");
    journal.put(task("x", 1)).await.unwrap();
    journal.edit(&key, once_more).await.unwrap();
    assert_eq!(restarts_of(&journal), 11, "seen at once");
    // Beside a put of which nothing is durable, or seen, yet.
    let edited = async {
        journal.edit(&key, once_more).await.unwrap();
        journal.edit(&key, once_more).await.unwrap();
        restarts_of(&journal)
    };
    let (put, seen) = futures::join!(journal.put(task("x", 2)), edited);
    put.unwrap();
    assert_eq!(seen, 11, "neither the put nor what changes it");
    tokio::time::sleep(SOON * 2).await;
    assert_eq!(restarts_of(&journal), 22);
    let last = |synced: &[Vec<u8>]| {
        let mut rest = synced.concat();
        let mut last = None;
        while let Some((body, next)) = next_frame(&rest) {
            last = Some(serde_json::from_slice::<Frame>(body).unwrap());
            rest = next.to_vec();
        }
        match last {
            Some(Frame::Change(Change::Put(Entry::Task(task)))) => task.restarts,
            _ => 0,
        }
    };
    assert_eq!(last(&synced.lock().unwrap()), 22, "and so it is read by the next daemon");
    // What somebody waits for is durable then.
    journal.edit_now(&key, once_more).await.unwrap();
    assert_eq!((restarts_of(&journal), last(&synced.lock().unwrap())), (32, 32));
    journal.put(task("x", 95)).await.unwrap();
    journal.edit_now(&key, once_more).await.unwrap();
    journal.edit(&key, once_more).await.unwrap();
    tokio::time::sleep(SOON * 2).await;
    assert_eq!((restarts_of(&journal), last(&synced.lock().unwrap())), (95, 95), "it said that it did not");
}

#[tokio::test(start_paused = true)]
async fn what_was_forgotten_is_not_edited_and_what_is_shown_at_once_stays() {
    let (journal, _synced) = noting();
    let key = task("x", 0).key();
    journal.put(task("x", 1)).await.unwrap();
    let (forgotten, edited) =
        futures::join!(journal.commit(vec![Change::Forget(key.clone())]), journal.edit(&key, once_more));
    forgotten.unwrap();
    edited.unwrap();
    tokio::time::sleep(SOON * 2).await;
    assert_eq!(restarts_of(&journal), 0);
    // What was put before is durable later, and not the last word.
    let (put, soon) = futures::join!(journal.put(task("x", 3)), journal.put_soon(task("x", 4)));
    put.unwrap();
    soon.unwrap();
    tokio::time::sleep(SOON * 2).await;
    assert_eq!(restarts_of(&journal), 4);
}

#[test]
fn a_lost_journal_stays_lost_until_it_is_rebuilt() {
    let mut bytes = whole("i", "b", true, std::iter::empty());
    frame(&mut bytes, &Frame::Change(Change::Put(task("x", 1))));
    assert!(read(Path::new("j"), &bytes).unwrap().amnesia, "a crash before the end of rebuilding");
    frame(&mut bytes, &Frame::Change(Change::Rebuilt));
    assert!(!read(Path::new("j"), &bytes).unwrap().amnesia);
}

#[test]
fn a_later_format_is_refused() {
    let mut bytes = Vec::new();
    let header = Frame::Header {
        version: VERSION + 1,
        incarnation: String::new(),
        boot_id: String::new(),
        amnesia: false,
    };
    frame(&mut bytes, &header);
    assert!(matches!(read(Path::new("j"), &bytes), Err(JournalError::TooNew { .. })));
}
