//! What every part of a simulated cluster stands on: the machines, the list of effects, the record of what happened.
//!
//! Every effect passes [`Universe::gate`] before and after it is done. There it is recorded, and there a process may be
//! doomed: from then on none of its effects is done any more, and the run ends it for good after the present step.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mad_turmoil::rand::get_rng;
use rand::Rng as _;
use serde_json::Value;
use tokio::sync::watch;

use crate::network::Link;
use crate::plugins::Backends;
use crate::state::NodeState;

/// Lines of the record that a failure shows.
const SHOWN: usize = 60;

/// A number below `bound` from the seed.
pub fn below(bound: u64) -> u64 {
    get_rng().next_u64().checked_rem(bound).unwrap_or(0)
}

/// Whether something happens that happens so often in a thousand.
pub fn chance(per_mille: u64) -> bool {
    below(1000) < per_mille
}

/// One of these.
pub fn pick<T: Clone>(of: &[T]) -> T {
    of[usize::try_from(below(of.len() as u64)).unwrap()].clone()
}

/// A process is killed at one of its effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashAt {
    /// Whose effects count; all when absent.
    pub host: Option<String>,
    /// At which of them, from 1 counted from when this was set.
    pub left: u64,
}

/// What happened, as a hash and as its last lines.
#[derive(Default)]
pub struct Record {
    hash: u64,
    pub lines: u64,
    last: VecDeque<String>,
    pub shown: bool,
}

impl Record {
    fn add(&mut self, line: String) {
        for byte in line.bytes() {
            // FNV-1a: it only has to tell two histories apart.
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.lines += 1;
        if self.shown {
            println!("{line}");
        }
        self.last.push_back(line);
        if self.last.len() > SHOWN {
            self.last.pop_front();
        }
    }

    pub fn hash(&self) -> String {
        format!("{:016x}", self.hash)
    }

    pub fn tail(&self) -> String {
        self.last.iter().fold(String::new(), |mut text, line| {
            let _infallible = writeln!(text, "  {line}");
            text
        })
    }
}

/// The objects of the store as they were written last, by the plural that their keys lie under.
#[derive(Default)]
pub struct Objects(BTreeMap<String, BTreeMap<String, Arc<Value>>>);

/// The plural that a key of the store lies under.
pub fn kind(key: &str) -> &str {
    key.split('/').nth(3).unwrap_or_default()
}

impl Objects {
    pub fn get(&self, key: &str) -> Option<&Arc<Value>> {
        self.0.get(kind(key))?.get(key)
    }

    pub fn insert(&mut self, key: &str, object: Arc<Value>) -> Option<Arc<Value>> {
        self.0.entry(kind(key).to_owned()).or_default().insert(key.to_owned(), object)
    }

    pub fn remove(&mut self, key: &str) -> Option<Arc<Value>> {
        self.0.get_mut(kind(key))?.remove(key)
    }

    /// Those of one kind.
    pub fn of(&self, plural: &str) -> impl Iterator<Item = &Value> {
        self.0.get(plural).into_iter().flatten().map(|(_, object)| &**object)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.values().flatten().map(|(key, object)| (key, &**object))
    }
}

/// What people were told is stored, and have not asked to delete since.
#[derive(Debug)]
pub struct Promise {
    pub uid: String,
    pub spec: Value,
}

pub struct Inner {
    pub now: Duration,
    pub record: Record,
    /// Every effect so far, when they are to be listed.
    pub effects: Option<Vec<String>>,
    pub crash_at: Option<CrashAt>,
    pub doomed: BTreeSet<String>,
    pub violations: Vec<String>,
    pub nodes: BTreeMap<String, NodeState>,
    pub links: BTreeMap<String, Link>,
    /// The hosts that serve the API.
    pub servers: Vec<String>,
    pub backends: Backends,
    /// Every object as it was stored last.
    pub objects: Objects,
    /// Plugin, name and handle of what stays at its backend, or may, although its object is gone.
    pub kept: Vec<[String; 3]>,
    /// What was acknowledged, by key.
    pub promised: BTreeMap<String, Promise>,
    /// Since when allocations are on their way out, by uid.
    pub ending: BTreeMap<String, Duration>,
    /// At which revision that was, or its deletion.
    pub revisions: BTreeMap<String, u64>,
    /// The revisions of all commits, by plural.
    pub commits: BTreeMap<String, BTreeSet<u64>>,
    /// When who asked last for which change, as far back as a moment.
    pub asked: BTreeMap<(String, String), VecDeque<Duration>>,
    /// Two sets of controllers are at work, neither of which knows of the other.
    pub rivals: bool,
    /// How often tasks were started, by the first word of their command.
    pub started: BTreeMap<String, u64>,
    /// Writes to the store, leases aside.
    pub writes: u64,
    /// The last of them, for whoever has to explain them: when, what, and what the object was then.
    pub last_writes: VecDeque<(Duration, String, Option<Arc<Value>>)>,
}

/// Shared by all parts of one run.
pub struct Universe {
    inner: Mutex<Inner>,
    /// Sockets came or went.
    pub sockets: watch::Sender<u64>,
}

impl Universe {
    pub fn new() -> Arc<Self> {
        let inner = Inner {
            now: Duration::ZERO,
            record: Record::default(),
            effects: None,
            crash_at: None,
            doomed: BTreeSet::new(),
            violations: Vec::new(),
            nodes: BTreeMap::new(),
            links: BTreeMap::new(),
            servers: Vec::new(),
            backends: Backends::new(),
            objects: Objects::default(),
            kept: Vec::new(),
            promised: BTreeMap::new(),
            ending: BTreeMap::new(),
            commits: BTreeMap::new(),
            revisions: BTreeMap::new(),
            asked: BTreeMap::new(),
            rivals: false,
            started: BTreeMap::new(),
            writes: 0,
            last_writes: VecDeque::new(),
        };
        Arc::new(Self { inner: Mutex::new(inner), sockets: watch::Sender::new(0) })
    }

    pub fn look(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An effect of `host` is about to be done, or has been. Never returns once the host is doomed.
    pub async fn gate(&self, host: &str, what: &str) {
        if self.look().effect(host, what) {
            std::future::pending::<()>().await;
        }
    }

    /// The same for what cannot wait; true when the host is doomed and must do nothing.
    pub fn doomed(&self, host: &str, what: &str) -> bool {
        self.look().effect(host, what)
    }

    /// Something that is no effect of a process.
    pub fn note(&self, line: &str) {
        self.look().note(line);
    }
}

impl Inner {
    pub fn note(&mut self, line: &str) {
        let at = self.now.as_millis();
        self.record.add(format!("{at:>7} {line}"));
    }

    pub fn violated(&mut self, what: String) {
        self.note(&format!("VIOLATION {what}"));
        self.violations.push(what);
    }

    fn effect(&mut self, host: &str, what: &str) -> bool {
        if self.doomed.contains(host) {
            return true;
        }
        self.note(&format!("{host}: {what}"));
        if let Some(effects) = &mut self.effects {
            effects.push(format!("{host}: {what}"));
        }
        if let Some(crash) = &mut self.crash_at
            && crash.host.as_deref().is_none_or(|wanted| wanted == host)
        {
            crash.left -= 1;
            if crash.left == 0 {
                self.crash_at = None;
                self.doomed.insert(host.to_owned());
                self.note(&format!("{host} is killed there"));
                return true;
            }
        }
        false
    }
}
