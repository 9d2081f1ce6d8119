//! One storage system behind any number of plugin instances. Knows no socket, so a simulation can use it as it is.
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use wharfline::csi::{Code, Rpc};

use super::ask::Ask;
use super::config::Config;
use super::log::{End, Logged};
use super::model::{Leftover, Model, Refusal};
use super::script::{Answer, Effect, Finale, Parts, Pause, Script};

/// How long [`Backend::until`] waits.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sees every call of an instance from within the plugin.
pub trait Witness: Send + Sync {
    /// A call has come; nothing is done yet.
    fn arrived(&self, number: usize, ask: &Ask);
    /// What was asked is done, or refused; nothing is sent yet.
    fn performed(&self, number: usize, ask: &Ask, done: bool);
    /// A call is about to come: what other processes of the plugin did since can be told to the backend now.
    fn catch_up(&self, _backend: &Backend) {}
    /// What the next call gets, if it is not the backend's own script that says so.
    fn prompt(&self, _ask: &Ask) -> Option<Answer> {
        None
    }
    /// A call is over.
    fn ended(&self, _backend: &Backend, _number: usize, _how: End) {}
}

/// One instance of the plugin.
#[derive(Clone)]
pub struct Site {
    /// What `NodeGetInfo` says there.
    pub node_id: String,
    /// Segments of the node's topology.
    pub topology: std::collections::BTreeMap<String, String>,
    /// What [`Answer::exit`] does: a child process ends itself here. None stops the serving.
    pub on_exit: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Who sees its calls.
    pub witness: Option<Arc<dyn Witness>>,
}

impl Site {
    /// An instance on a node.
    pub fn new(node_id: &str) -> Self {
        Self {
            node_id: node_id.into(),
            topology: std::collections::BTreeMap::new(),
            on_exit: None,
            witness: None,
        }
    }
}

/// What is known of a call besides its request.
#[derive(Clone, Debug, Default)]
pub struct Wire {
    /// `:authority`.
    pub authority: String,
    /// `grpc-timeout`.
    pub timeout: Option<String>,
    /// Number of the connection.
    pub connection: u64,
}

/// What to send.
#[derive(Clone, Debug)]
pub enum Ending {
    /// OK with this message.
    Reply(Vec<u8>),
    /// A stream. Its call is in flight until [`Backend::finished`].
    Stream {
        /// The call's place in the log.
        number: usize,
        /// What is sent.
        parts: Parts,
    },
    /// A status.
    Status {
        /// Its number.
        code: i32,
        /// Its text.
        message: String,
    },
    /// A status with details that are not base64.
    BrokenDetails {
        /// Its code.
        code: Code,
        /// Its text.
        message: String,
    },
    /// The head of a message of so many bytes.
    Oversize(u32),
    /// This message and the end of the stream.
    NoStatus,
    /// An HTTP status alone.
    Http(u16),
    /// The end of the connection.
    Cut,
    /// The end of the process.
    Exit,
}

struct State {
    config: Config,
    script: Script,
    model: Model,
    log: Vec<Logged>,
    faults: Vec<String>,
    /// Of the faults those of a call that came beside another one, and both numbers, the later one's first.
    overlaps: Vec<(usize, usize, String)>,
}

/// That a caller has given up a call is seen only some time after it, maybe after its next call.
const TOLD_OF: Duration = Duration::from_millis(500);

impl State {
    fn end(&mut self, number: usize, how: End) {
        let now = Instant::now();
        self.log[number].ended = Some((now, how));
        if how != End::Left {
            return;
        }
        let (log, works_on) = (&self.log, self.config.works_on);
        let was_over = |(later, earlier, _): &(usize, usize, String)| {
            *earlier == number
                && log[*later].started + TOLD_OF > now
                && !log[*later].meets(&log[number], works_on)
        };
        for (_, _, fault) in self.overlaps.extract_if(.., |overlap| was_over(overlap)) {
            self.faults.retain(|other| *other != fault);
        }
    }
}

/// The storage system, its script and its books.
pub struct Backend {
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

impl Backend {
    /// An empty one.
    pub fn new(config: Config) -> Arc<Self> {
        let state = State {
            config,
            script: Script::default(),
            model: Model::default(),
            log: Vec::new(),
            faults: Vec::new(),
            overlaps: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state), changed: watch::Sender::new(0) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn tell(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    /// Changes what the plugin says of itself.
    pub fn configure(&self, change: impl FnOnce(&mut Config)) {
        change(&mut self.state().config);
    }

    /// Whether answers are compressed.
    pub(super) fn gzips(&self) -> bool {
        self.state().config.gzip
    }

    /// Whether each answer about a volume is followed by GOAWAY.
    pub(super) fn hangs_up(&self) -> bool {
        self.state().config.hangs_up
    }

    pub(super) fn goes_away(&self) -> bool {
        self.state().config.goes_away
    }

    /// Queues an answer for the next call of `rpc`.
    pub fn next(&self, rpc: Rpc, answer: Answer) {
        self.state().script.push(rpc, None, answer, false);
    }

    /// Queues an answer for the next call of `rpc` about this volume, snapshot or group, by its id or, where it gets one
    /// yet, name.
    pub fn next_for(&self, rpc: Rpc, subject: &str, answer: Answer) {
        self.state().script.push(rpc, Some(subject.to_owned()), answer, false);
    }

    /// Gives this answer to every call of `rpc` once the queue before it is empty.
    pub fn always(&self, rpc: Rpc, answer: Answer) {
        self.state().script.push(rpc, None, answer, true);
    }

    /// Gives this answer to every call of `rpc` from now on, in place of what is queued.
    pub fn instead(&self, rpc: Rpc, answer: Answer) {
        let mut state = self.state();
        state.script.clear(rpc);
        state.script.push(rpc, None, answer, true);
    }

    /// Forgets what is queued for `rpc`.
    pub fn honest(&self, rpc: Rpc) {
        self.state().script.clear(rpc);
    }

    /// Adds a volume that was there before: it may be left at the end.
    pub fn add_volume(&self, id: &str, context: std::collections::BTreeMap<String, String>) {
        self.state().model.add_existing(id, context);
    }

    /// Makes a node known before its first call.
    pub fn add_node(&self, site: &Site) {
        self.state().model.see_node(site);
    }

    /// The node lost power or was restarted: what was staged and published there is gone.
    pub fn reboot(&self, node: &str) {
        let mut state = self.state();
        let State { config, model, log, .. } = &mut *state;
        model.reboot(node, &config.effects);
        // With the machine went its plugin, and whatever that was at work on.
        for call in log.iter_mut().filter(|call| call.node == node) {
            call.ended = call.ended.map(|(at, how)| (at, if how == End::Left { End::Gone } else { how }));
        }
        drop(state);
        self.tell();
    }

    /// The plugin on this node knows of no stage any more; what it published stays.
    pub fn forget_stages(&self, node: &str) {
        self.state().model.forget_stages(node);
    }

    /// The plugin on this node knows of no publication any more, as one that looks at its mounts after they went.
    pub fn forget_publications(&self, node: &str) {
        self.state().model.forget_publications(node);
    }

    /// The plugin looks at its machine: it knows of nothing staged or published where nothing is mounted.
    pub fn look_at_mounts(&self) {
        self.state().model.keep_at(&super::mounts::beneath(std::path::Path::new("/")));
    }

    /// The node cannot write any more: its attachments may be taken without its doing.
    pub fn fence(&self, node: &str) {
        self.state().model.fence(node);
    }

    /// Every node can be heard again, and has nothing that was taken.
    pub fn unfence(&self) {
        self.state().model.fenced.clear();
    }

    /// Forgets what the caller did wrong where that is excused.
    pub fn forgive(&self, excused: impl Fn(&str) -> bool) {
        self.state().faults.retain(|fault| !excused(fault));
    }

    /// Handles of the volumes that exist.
    pub fn volumes(&self) -> Vec<String> {
        self.state().model.volume_ids()
    }

    /// What a volume has now, in bytes.
    pub fn capacity(&self, volume: &str) -> Option<i64> {
        self.state().model.volumes.get(volume).map(|volume| volume.capacity)
    }

    /// What may be changed of a volume, as it is now.
    pub fn mutable_parameters(&self, volume: &str) -> std::collections::BTreeMap<String, String> {
        self.state().model.volumes.get(volume).map(|volume| volume.mutable.clone()).unwrap_or_default()
    }

    /// Where a volume is used and its file system is smaller than the volume: volume and node.
    pub fn expansion_debts(&self) -> Vec<(String, String)> {
        self.state().model.debts()
    }

    /// Ids of the snapshots that exist.
    pub fn snapshots(&self) -> Vec<String> {
        self.state().model.snapshots.keys().cloned().collect()
    }

    /// The handle of the volume that was made under this name, if it exists.
    pub fn volume_named(&self, name: &str) -> Option<String> {
        self.state().model.handle_of(name)
    }

    /// The id of the snapshot that was taken under this name, if it exists.
    pub fn snapshot_named(&self, name: &str) -> Option<String> {
        self.state().model.snapshot_named(name)
    }

    /// The whole log.
    pub fn calls(&self) -> Vec<Logged> {
        self.state().log.clone()
    }

    /// The calls of one kind.
    pub fn calls_of(&self, rpc: Rpc) -> Vec<Logged> {
        self.state().log.iter().filter(|call| call.rpc == rpc).cloned().collect()
    }

    /// The calls about volumes, in order, by name.
    pub fn order(&self) -> Vec<&'static str> {
        self.state()
            .log
            .iter()
            .filter(|call| call.ask.volume().is_some())
            .map(|call| call.rpc.name())
            .collect()
    }

    /// Waits until the log is as wanted. Panics after a while.
    pub async fn until(&self, what: &str, wanted: impl Fn(&[Logged]) -> bool) {
        let mut changed = self.changed.subscribe();
        let seen = async {
            loop {
                changed.borrow_and_update();
                if wanted(&self.state().log) {
                    return;
                }
                changed.changed().await.expect("the backend lives");
            }
        };
        let seen = tokio::time::timeout(PATIENCE, seen).await;
        assert!(seen.is_ok(), "not seen: {what}; calls: {:#?}", self.calls());
    }

    /// What exists or is held now.
    pub fn left(&self) -> Vec<Leftover> {
        self.state().model.left()
    }

    /// What was done against the rules.
    pub fn violations(&self) -> Vec<String> {
        self.state().faults.clone()
    }

    /// Panics unless the caller broke no rule, no calls overlapped, and every answer of the script was used.
    pub fn assert_lawful(&self) {
        let state = self.state();
        let faults = state.faults.iter().cloned().chain(state.script.unused()).collect::<Vec<_>>();
        assert!(faults.is_empty(), "the plugin has to complain:\n{}", faults.join("\n"));
    }

    /// Like [`assert_lawful`](Self::assert_lawful), and nothing may be left or in flight.
    pub fn assert_clean(&self) {
        self.assert_lawful();
        let left = self.left();
        assert!(left.is_empty(), "left behind: {left:#?}");
        let flying = self.calls().into_iter().filter(Logged::in_flight).collect::<Vec<_>>();
        assert!(flying.is_empty(), "still in flight: {flying:#?}");
    }

    /// Another process of the plugin did this: the ledger has it, and nothing is done.
    pub fn replay(&self, site: &Site, ask: &Ask) {
        let config = Config { effects: super::config::Effects::Ledger, ..Config::everything() };
        let mut faults = Vec::new();
        let mut state = self.state();
        state.model.see_node(site);
        let done = state.model.perform(site, &config, ask, &mut faults);
        assert!(done.is_ok(), "it was done there: {ask:?}: {faults:?}");
    }

    /// One call from its arrival to what is sent back. Dropping the future means that the caller has gone.
    pub async fn handle(self: &Arc<Self>, site: &Site, rpc: Rpc, bytes: &[u8], wire: Wire) -> Ending {
        let ask = match Ask::decode(rpc, bytes) {
            Ok(ask) => ask,
            Err(error) => return refused(&Refusal::new(Code::Internal, error.to_string())),
        };
        if let Some(witness) = &site.witness {
            witness.catch_up(self);
        }
        let (number, answer) = self.begin(site, &ask, wire);
        let mut call = Flying {
            backend: self,
            site,
            number,
            ask: &ask,
            late: answer.effect == Effect::Late,
            over: false,
        };
        let mut done = (answer.effect == Effect::First).then(|| self.perform(site, number, &ask));
        match &answer.pause {
            Pause::None => {
                let pace = self.state().config.pace;
                let time = pace();
                if !time.is_zero() {
                    tokio::time::sleep(time).await;
                }
            }
            Pause::For(time) => tokio::time::sleep(*time).await,
            Pause::Until(gate) => gate.passed().await,
        }
        if answer.effect == Effect::Last {
            done = Some(self.perform(site, number, &ask));
        }
        let ending = match answer.finale {
            Finale::Model => match done.unwrap_or_else(|| self.perform(site, number, &ask)) {
                Ok(messages) if rpc.streams() => Ending::Stream { number, parts: Parts::of(messages) },
                Ok(messages) => Ending::Reply(messages.concat()),
                Err(refusal) => refused(&refusal),
            },
            Finale::Reply(reply) => Ending::Reply(reply),
            Finale::Stream(parts) => Ending::Stream { number, parts },
            Finale::Status { code, message } => Ending::Status { code, message },
            Finale::BrokenDetails { code, message } => Ending::BrokenDetails { code, message },
            Finale::Oversize(bytes) => Ending::Oversize(bytes),
            // Field 1 as bytes that go on after the end of the message.
            Finale::Garbage => Ending::Reply(vec![0x0a, 0xff, 0x01]),
            Finale::NoStatus => Ending::NoStatus,
            Finale::Http(status) => Ending::Http(status),
            Finale::Cut => Ending::Cut,
            Finale::Exit => Ending::Exit,
        };
        call.end(&ending);
        ending
    }

    fn begin(&self, site: &Site, ask: &Ask, wire: Wire) -> (usize, Answer) {
        let mut state = self.state();
        let State { script, model, log, faults, overlaps, config } = &mut *state;
        model.see_node(site);
        let call = Logged {
            number: log.len(),
            rpc: ask.rpc(),
            ask: ask.clone(),
            node: site.node_id.clone(),
            authority: wire.authority,
            timeout: wire.timeout,
            connection: wire.connection,
            started: Instant::now(),
            at: (config.clock)(),
            ended: None,
        };
        for subject in model.subjects(ask) {
            let shared = model.is_shared(&subject);
            let about_it = |other: &Logged| model.subjects(&other.ask).contains(&subject);
            let over = |other: &Logged| log.iter().any(|later| later.is_last_word(other) && about_it(later));
            let at_work =
                |other: &&Logged| other.in_flight() || call.meets(other, config.works_on) && !over(other);
            for other in log.iter().filter(at_work) {
                if about_it(other) && call.excludes(other, shared) {
                    let fault = format!(
                        "#{} {} on {} overlaps #{} {} on {}, both about {subject}",
                        call.number, call.rpc, call.node, other.number, other.rpc, other.node
                    );
                    overlaps.push((call.number, other.number, fault.clone()));
                    faults.push(fault);
                }
            }
        }
        let number = call.number;
        log.push(call);
        if let Some(witness) = &site.witness {
            witness.arrived(number, ask);
        }
        let prompted = site.witness.as_ref().and_then(|witness| witness.prompt(ask));
        let answer = prompted.unwrap_or_else(|| script.next(ask.rpc(), ask.subject()));
        drop(state);
        self.tell();
        (number, answer)
    }

    /// A stream has come to its end, or its caller has gone.
    pub(super) fn finished(&self, number: usize, how: End) {
        self.state().log[number].ended = Some((Instant::now(), how));
        self.tell();
    }

    fn perform(&self, site: &Site, number: usize, ask: &Ask) -> Result<Vec<Vec<u8>>, Refusal> {
        let mut state = self.state();
        let State { config, model, faults, .. } = &mut *state;
        let before = faults.len();
        let result = model.perform(site, config, ask, faults);
        for fault in &mut faults[before..] {
            *fault = format!("#{number} {} on {}: {fault}", ask.rpc(), site.node_id);
        }
        if let Some(witness) = &site.witness {
            witness.performed(number, ask, result.is_ok());
        }
        result
    }
}

fn refused(refusal: &Refusal) -> Ending {
    Ending::Status { code: refusal.code as i32, message: refusal.message.clone() }
}

/// A call in flight. Dropped before its end, it books that the caller has gone, and does late work.
struct Flying<'a> {
    backend: &'a Backend,
    site: &'a Site,
    number: usize,
    ask: &'a Ask,
    late: bool,
    over: bool,
}

impl Flying<'_> {
    fn end(&mut self, ending: &Ending) {
        let how = match ending {
            Ending::Stream { .. } => {
                self.over = true;
                return;
            }
            Ending::Reply(_) => End::Answered(Code::Ok),
            Ending::Status { code, .. } => End::Answered(Code::from_i32(*code)),
            Ending::BrokenDetails { code, .. } => End::Answered(*code),
            Ending::Oversize(_) | Ending::NoStatus | Ending::Http(_) => End::Broken,
            Ending::Cut | Ending::Exit => End::Gone,
        };
        self.over = true;
        self.book(how);
    }

    fn book(&self, how: End) {
        self.backend.state().end(self.number, how);
        if let Some(witness) = &self.site.witness {
            witness.ended(self.backend, self.number, how);
        }
        self.backend.tell();
    }
}

impl Drop for Flying<'_> {
    fn drop(&mut self) {
        if !self.over {
            if self.late {
                // What comes of it is the ledger's to tell; nobody waits for the answer.
                drop(self.backend.perform(self.site, self.number, self.ask));
            }
            self.book(End::Left);
        }
    }
}
