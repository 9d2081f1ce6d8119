//! An instance as a process of its own, for tests in which Wharfline itself starts, kills and starts it again.
//!
//! All that a test says to it and hears of it are files of one directory, for a process that is killed hears and tells
//! nothing else:
//!
//! | file | what it is |
//! |---|---|
//! | `NAME.json` | what the driver says of itself when it is run as `NAME`; read again at each call |
//! | `answers/RPC/N.json` | the answers that the next calls get, each taken by whoever is asked first |
//! | `gates/NAME` | what waits for this gate may go on |
//! | `calls` | a line for each call that came, was done, and is over |
//! | `faults` | what was done against the rules of CSI |
//! | `volumes` | the files of the volumes, mounted where they are staged and published |
//!
//! The processes that use one directory are the instances of one driver: each knows from `calls` what the others did.
use std::fs;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wharfline::csi::{Code, Rpc, proto};

use super::ask::Ask;
use super::backend::{Backend, Site, Witness};
use super::config::{Config, Effects};
use super::log::End;
use super::script::{Answer, Gate};
use super::serve::serve;

/// The variable that names the directory. Without it [`run_if_asked`] does nothing.
pub const DIRECTORY: &str = "WHARFLINE_STEERED";
/// The variable that names what the driver is run as.
pub const AS: &str = "WHARFLINE_STEERED_AS";
/// How often a gate is looked at that somebody waits for.
const LOOK: Duration = Duration::from_millis(5);

/// Milliseconds of the clock that all processes of the machine share.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).expect("time goes on")
}

/// Serves as the environment says, until it is killed; returns at once where that says nothing. `files` mounts, on the
/// directory of a volume, a file system that this process serves and that dies with it: for a driver that says `servesFiles`.
pub fn run_if_asked(files: fn(&Path)) {
    let (Some(directory), Ok(name)) = (std::env::var_os(DIRECTORY), std::env::var(AS)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("threads can be had").block_on(run(PathBuf::from(directory), name, files));
}

async fn run(directory: PathBuf, name: String, files: fn(&Path)) {
    let endpoint = std::env::var("CSI_ENDPOINT").expect("a driver is told its socket");
    let socket = PathBuf::from(endpoint.trim_start_matches("unix://"));
    let profile = Profile::read(&directory, &name).expect("the test has written it");
    let listens = profile.text("listens").unwrap_or("at once").to_owned();
    match listens.split_once(' ') {
        Some(("behind", gate)) => opened(&directory, gate).await,
        Some(_) | None if listens == "never" => std::future::pending().await,
        Some(_) | None => {}
    }
    // What a former process left there Wharfline has removed.
    let listener = tokio::net::UnixListener::bind(&socket).expect("nothing is in its place");
    if listens == "silent" {
        let mut taken = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            taken.push(connection);
        }
    }
    let (config, mut site) = profile.of(&directory);
    let backend = Backend::new(config);
    site.on_exit = Some(Arc::new(|| {
        let _never_returns =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }));
    // Numbers of processes come again, in another boot of the machine at the latest.
    let process = format!("{}-{}", std::process::id(), now());
    let book = Book { directory, name, process, files, read: Mutex::default(), faults: Mutex::default() };
    site.witness = Some(Arc::new(book));
    serve(backend, site, listener, CancellationToken::new()).await;
}

async fn opened(directory: &Path, gate: &str) {
    let gate = directory.join("gates").join(gate);
    while !gate.exists() {
        tokio::time::sleep(LOOK).await;
    }
}

/// What a driver says of itself: what a test wrote, and else what [`Config::full`] says.
struct Profile(Value);

impl Profile {
    /// None while it is being written.
    fn read(directory: &Path, name: &str) -> Option<Self> {
        let text = fs::read(directory.join(format!("{name}.json"))).ok()?;
        serde_json::from_slice(&text).ok().map(Self)
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.0[field].as_str()
    }

    fn is(&self, field: &str) -> bool {
        self.0[field] == true
    }

    fn of(&self, directory: &Path) -> (Config, Site) {
        let mut config = Config { effects: Effects::Mounts(directory.join("volumes")), ..Config::full() };
        let numbers = |field: &str, into: &mut Vec<i32>| {
            if let Some(list) = self.0[field].as_array() {
                let number = |v: &Value| v.as_i64().and_then(|n| i32::try_from(n).ok()).expect("a number");
                *into = list.iter().map(number).collect();
            }
        };
        numbers("services", &mut config.services);
        numbers("controller", &mut config.controller);
        numbers("node", &mut config.node);
        config.name = self.text("name").map_or(config.name, str::to_owned);
        config.vendor_version = self.text("version").map_or(config.vendor_version, str::to_owned);
        config.ready = self.0["ready"].as_bool();
        config.max_volumes = self.0["maxVolumes"].as_i64().unwrap_or(0);
        (config, Site::new(self.node()))
    }

    /// The node by whose name the book is kept, whatever is said of it.
    fn node(&self) -> &str {
        self.text("nodeId").filter(|id| !id.is_empty()).unwrap_or("i-a")
    }

    /// What is said of the node now.
    fn node_info(&self) -> proto::NodeGetInfoResponse {
        let segments = self.0["topology"].as_object().into_iter().flatten();
        let segments: std::collections::BTreeMap<_, _> =
            segments.map(|(k, v)| (k.clone(), v.as_str().expect("a text").to_owned())).collect();
        proto::NodeGetInfoResponse {
            node_id: self.text("nodeId").unwrap_or("i-a").to_owned(),
            max_volumes_per_node: self.0["maxVolumes"].as_i64().unwrap_or(0),
            accessible_topology: (!segments.is_empty()).then_some(proto::Topology { segments }),
        }
    }
}

/// What of one answer's file is said in which words: `fail` (a code), `exit`, `cut` or what CSI says; `afterEffect`, `hang`
/// (a gate) before it; `volume` for which one; `forever`.
fn answer(directory: &Path, said: &Value) -> Answer {
    let message = said["message"].as_str().unwrap_or("as the test wants it");
    let mut answer = match said["fail"].as_i64() {
        Some(code) => Answer::fail(Code::from_i32(i32::try_from(code).expect("a code")), message),
        None if said["exit"] == true => Answer::exit(),
        None if said["cut"] == true => Answer::cut(),
        None => Answer::honest(),
    };
    if said["afterEffect"] == true {
        answer = answer.after_effect();
    }
    let Some(name) = said["hang"].as_str() else { return answer };
    let (gate, name, directory) = (Gate::new(), name.to_owned(), directory.to_owned());
    let answer = answer.hang(&gate);
    tokio::spawn(async move {
        opened(&directory, &name).await;
        gate.open();
    });
    answer
}

/// Keeps the book of one process, and reads it in those of the others.
struct Book {
    directory: PathBuf,
    name: String,
    process: String,
    files: fn(&Path),
    /// How far the book has been read.
    read: Mutex<u64>,
    /// How many faults were told.
    faults: Mutex<usize>,
}

impl Book {
    fn note(&self, file: &str, mut line: Value) {
        line["as"] = json!(self.name);
        line["process"] = json!(self.process);
        line["at"] = json!(now());
        let file = fs::OpenOptions::new().create(true).append(true).open(self.directory.join(file));
        // One write of one line: processes do not mix them.
        file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())).expect("there is a disk");
    }

    /// What a driver that serves files does before it stages them, and when they go.
    fn serve_files(&self, ask: &Ask) {
        let serves = matches!(ask, Ask::NodeStageVolume(_) | Ask::DeleteVolume(_));
        if !serves || !Profile::read(&self.directory, &self.name).is_some_and(|says| says.is("servesFiles")) {
            return;
        }
        let home = self.directory.join("volumes").join(ask.volume().expect("it has one").replace('/', "-"));
        // What a former process served is dead.
        let _not_mounted = rustix::mount::unmount(&home, rustix::mount::UnmountFlags::DETACH);
        if matches!(ask, Ask::NodeStageVolume(_)) {
            (self.files)(&home);
        }
    }

    /// A driver that mounts for others to see needs a mount that others see.
    fn insists(&self, ask: &Ask) -> Option<Answer> {
        let path = match ask {
            Ask::NodeStageVolume(request) => &request.staging_target_path,
            Ask::NodePublishVolume(request) => &request.target_path,
            _ => return None,
        };
        if !Profile::read(&self.directory, &self.name)?.is("sharedOnly") {
            return None;
        }
        let table = fs::read_to_string("/proc/self/mountinfo").expect("Linux has a mount table");
        let above = table
            .lines()
            .filter(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(path).starts_with(point)));
        // The one that was mounted last of the deepest.
        let nearest = above.max_by_key(|line| line.split(' ').nth(4).map_or(0, str::len));
        let shared =
            nearest.is_some_and(|line| line.split(" - ").next().is_some_and(|l| l.contains(" shared:")));
        (!shared).then(|| Answer::fail(Code::Unknown, format!("{path} is not on a shared mount")))
    }
}

impl Witness for Book {
    fn arrived(&self, number: usize, ask: &Ask) {
        let path = match ask {
            Ask::NodeStageVolume(request) => request.staging_target_path.as_str(),
            Ask::NodeUnstageVolume(request) => request.staging_target_path.as_str(),
            Ask::NodePublishVolume(request) => request.target_path.as_str(),
            Ask::NodeUnpublishVolume(request) => request.target_path.as_str(),
            _ => "",
        };
        self.note(
            "calls",
            json!({ "what": "came", "number": number, "rpc": ask.rpc().name(),
            "volume": ask.volume(), "path": path, "request": ask.encode() }),
        );
    }

    fn performed(&self, number: usize, ask: &Ask, done: bool) {
        let profile = Profile::read(&self.directory, &self.name);
        let node = profile.as_ref().map_or("i-a", Profile::node);
        if done && ask.volume().is_some() {
            self.note(
                "calls",
                json!({ "what": "done", "number": number, "rpc": ask.rpc().name(),
                "node": node, "request": ask.encode() }),
            );
        }
    }

    fn catch_up(&self, backend: &Backend) {
        if let Some(profile) = Profile::read(&self.directory, &self.name) {
            backend.configure(|config| *config = profile.of(&self.directory).0);
        }
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(mut book) = fs::File::open(self.directory.join("calls")) else { return };
        book.seek(SeekFrom::Start(*read)).expect("it only grows");
        let mut lines = BufReader::new(book);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) && line.ends_with('\n') {
            *read += line.len() as u64;
            let said: Value = serde_json::from_str(&line).expect("it is written by this");
            line.clear();
            if said["what"] == "done" && said["process"] != self.process.as_str() {
                let rpc = Ask::rpc_of(said["rpc"].as_str().expect("a name")).expect("one of CSI's");
                let bytes: Vec<u8> = serde_json::from_value(said["request"].clone()).expect("bytes");
                let ask = Ask::decode(rpc, &bytes).expect("it was decoded before");
                backend.replay(&Site::new(said["node"].as_str().expect("a name")), &ask);
            }
        }
        backend.look_at_mounts();
    }

    fn prompt(&self, ask: &Ask) -> Option<Answer> {
        self.serve_files(ask);
        if let Some(refusal) = self.insists(ask) {
            return Some(refusal);
        }
        let queue = fs::read_dir(self.directory.join("answers").join(ask.rpc().name()));
        let mut queue: Vec<_> = queue.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        queue.sort();
        for file in queue.into_iter().filter(|file| file.extension().is_some_and(|e| e == "json")) {
            let Ok(text) = fs::read(&file) else { continue };
            let said: Value = serde_json::from_slice(&text).expect("a whole file");
            let meant = said["volume"].is_null() || said["volume"].as_str() == ask.volume();
            if meant && (said["forever"] == true || fs::remove_file(&file).is_ok()) {
                return Some(answer(&self.directory, &said));
            }
        }
        let asks = matches!(ask, Ask::NodeGetInfo(_)).then(|| Profile::read(&self.directory, &self.name));
        asks.flatten().map(|profile| Answer::reply(&profile.node_info()))
    }

    fn ended(&self, backend: &Backend, number: usize, how: End) {
        let how = match how {
            End::Answered(code) => format!("{code:?}"),
            End::Broken | End::Gone | End::Left => format!("{how:?}"),
        };
        self.note("calls", json!({ "what": "over", "number": number, "how": how }));
        let faults = backend.violations();
        let mut told = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        for fault in faults.get(*told..).unwrap_or_default() {
            self.note("faults", json!({ "fault": fault }));
        }
        *told = faults.len();
    }
}

/// One call, as its process wrote it down.
#[derive(Clone, Debug)]
pub struct Call {
    /// What the driver was run as.
    pub by: String,
    /// The process, by a name that no other one has.
    pub process: String,
    /// The call.
    pub rpc: String,
    /// Its volume, by handle or, for `CreateVolume`, name.
    pub volume: String,
    /// Where it stages or publishes.
    pub path: String,
    /// The request as it travelled.
    pub request: Vec<u8>,
    /// When it came, by [`now`].
    pub came: u64,
    /// When it was over, and how; none while it is at work, and for ever in a process that was killed.
    pub over: Option<(u64, String)>,
}

/// The test's end of the directory.
pub struct Steered {
    directory: tempfile::TempDir,
    answers: std::cell::Cell<u32>,
}

thread_local! {
    /// The directories of this test's drivers.
    static MINE: std::cell::RefCell<Vec<PathBuf>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// This test's drivers do from now on what they are asked: a test that failed takes down what it has up.
pub fn relent() {
    for directory in MINE.take() {
        // What a driver of it has for its own is gone with it.
        fs::remove_dir_all(directory.join("answers")).ok();
    }
}

impl Steered {
    /// A driver that is not run yet, and has no profile.
    pub fn new() -> Self {
        let directory =
            tempfile::Builder::new().prefix("steered").tempdir_in("/var/tmp").expect("a directory");
        for name in ["answers", "gates", "volumes"] {
            fs::create_dir(directory.path().join(name)).expect("it is new");
        }
        MINE.with_borrow_mut(|mine| mine.push(directory.path().to_owned()));
        Self { directory, answers: std::cell::Cell::new(0) }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// What it says of itself when it is run as `name`, beside what is said when this says nothing.
    pub fn profile(&self, name: &str, says: &Value) -> &Self {
        self.write(&format!("{name}.json"), says);
        self
    }

    fn write(&self, file: &str, what: &Value) {
        let (new, at) = (self.path().join("new"), self.path().join(file));
        fs::write(&new, what.to_string()).expect("there is a disk");
        fs::rename(new, at).expect("both are there");
    }

    /// Queues an answer for the next call; see [`answer`] for its words.
    pub fn next(&self, rpc: Rpc, says: &Value) {
        let number = self.answers.replace(self.answers.get() + 1);
        fs::create_dir_all(self.path().join("answers").join(rpc.name())).expect("there is a disk");
        self.write(&format!("answers/{}/{number:06}.json", rpc.name()), says);
    }

    /// Forgets what is queued.
    pub fn honest(&self, rpc: Rpc) {
        fs::remove_dir_all(self.path().join("answers").join(rpc.name())).expect("something was queued");
    }

    /// Lets go what waits for this gate.
    pub fn open(&self, gate: &str) {
        fs::write(self.path().join("gates").join(gate), "").expect("there is a disk");
    }

    /// All calls, in the order in which they came.
    pub fn calls(&self) -> Vec<Call> {
        let text = fs::read_to_string(self.path().join("calls")).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut calls: Vec<(u64, Call)> = Vec::new();
        for line in whole.lines() {
            let line: Value = serde_json::from_str(line).expect("a whole line");
            let word = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
            let (number, at) = (line["number"].as_u64().expect("one"), line["at"].as_u64().expect("a time"));
            let process = word("process");
            if line["what"] == "came" {
                let request = serde_json::from_value(line["request"].clone()).expect("bytes");
                let [by, rpc, volume, path] = ["as", "rpc", "volume", "path"].map(word);
                calls.push((number, Call { by, process, rpc, volume, path, request, came: at, over: None }));
            } else if line["what"] == "over" {
                let call = calls.iter_mut().rev().find(|(n, call)| *n == number && call.process == process);
                call.expect("it came").1.over = Some((at, word("how")));
            }
        }
        calls.into_iter().map(|(_, call)| call).collect()
    }

    /// The calls of one kind.
    pub fn calls_of(&self, rpc: Rpc) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.rpc == rpc.name()).collect()
    }

    /// The calls about volumes, by name.
    pub fn order(&self) -> Vec<String> {
        self.calls().into_iter().filter(|call| !call.volume.is_empty()).map(|call| call.rpc).collect()
    }

    /// No rule of CSI was broken, no two calls about one volume overlapped, and each answer was asked for.
    pub fn assert_lawful(&self) {
        let faults = fs::read_to_string(self.path().join("faults")).unwrap_or_default();
        assert_eq!(faults, "", "the driver has to complain");
        let calls: Vec<Call> = self.calls().into_iter().filter(|call| !call.volume.is_empty()).collect();
        for (at, call) in calls.iter().enumerate() {
            let Some((over, _)) = call.over else { continue };
            let beside = calls[at + 1..].iter().find(|c| c.volume == call.volume && c.came < over);
            assert!(beside.is_none(), "{beside:?} came before the end of {call:?}");
        }
        for queue in fs::read_dir(self.path().join("answers")).expect("it is there").flatten() {
            let left: Vec<_> = fs::read_dir(queue.path()).expect("it is there").flatten().collect();
            assert!(left.is_empty(), "never asked for: {left:?}");
        }
    }

    /// The same, and no volume is left.
    pub fn assert_clean(&self) {
        self.assert_lawful();
        let left: Vec<_> =
            fs::read_dir(self.path().join("volumes")).expect("it is there").flatten().collect();
        assert!(left.is_empty(), "volumes are left: {left:?}");
    }
}
