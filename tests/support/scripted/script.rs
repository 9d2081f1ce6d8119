//! What the next calls get: a queue of answers per call.
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use prost::Message;
use tokio::sync::watch;
use wharfline::csi::{Code, Rpc};

/// Holds calls until it is opened. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    open: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { open: watch::Sender::new(false) }
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets all calls go, the waiting ones and those to come.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until it is open.
    pub async fn passed(&self) {
        let mut open = self.open.subscribe();
        // The sender lives as long as `self`, so this ends only by the gate being opened.
        open.wait_for(|open| *open).await.expect("the gate outlives the wait");
    }
}

/// When the model does what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Never: the answer alone is given.
    Skipped,
    /// After the pause, right before the answer.
    Last,
    /// Before the pause.
    First,
    /// When the caller has gone away: work that a deadline did not stop.
    Late,
}

#[derive(Clone, Debug)]
pub(super) enum Pause {
    None,
    For(Duration),
    Until(Gate),
}

/// How an answer ends.
#[derive(Clone, Debug)]
pub(super) enum Finale {
    Model,
    Reply(Vec<u8>),
    Stream(Parts),
    Status { code: i32, message: String },
    BrokenDetails { code: Code, message: String },
    Oversize(u32),
    Garbage,
    NoStatus,
    Http(u16),
    Cut,
    Exit,
}

/// How a stream ends.
#[derive(Clone, Debug)]
pub(super) enum Last {
    Ok,
    Fail(Code, String),
    NoStatus,
    Cut,
}

/// What is sent as a stream.
#[derive(Clone, Debug)]
pub struct Parts {
    pub(super) messages: Vec<Vec<u8>>,
    /// Before each message but the first.
    pub(super) pause: Duration,
    /// Before the end.
    pub(super) gate: Option<Gate>,
    pub(super) last: Last,
}

impl Parts {
    /// These messages and a clean end.
    pub(super) fn of(messages: Vec<Vec<u8>>) -> Self {
        Self { messages, pause: Duration::ZERO, gate: None, last: Last::Ok }
    }
}

/// The answer to one call.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(super) effect: Effect,
    pub(super) pause: Pause,
    pub(super) finale: Finale,
}

impl Answer {
    fn of(effect: Effect, finale: Finale) -> Self {
        Self { effect, pause: Pause::None, finale }
    }

    /// What the model says, as without a script.
    pub fn honest() -> Self {
        Self::of(Effect::Last, Finale::Model)
    }

    /// This message, whatever the model would say. Nothing is done.
    pub fn reply(message: &impl Message) -> Self {
        Self::of(Effect::Skipped, Finale::Reply(message.encode_to_vec()))
    }

    /// A message of these bytes, which may hold what no version of ours knows. Nothing is done.
    pub fn raw(bytes: Vec<u8>) -> Self {
        Self::of(Effect::Skipped, Finale::Reply(bytes))
    }

    /// A stream of these messages with a clean end, whatever the model would say.
    pub fn stream<M: Message>(messages: impl IntoIterator<Item = M>) -> Self {
        let messages = messages.into_iter().map(|message| message.encode_to_vec()).collect();
        Self::of(Effect::Skipped, Finale::Stream(Parts::of(messages)))
    }

    fn streamed(mut self, change: impl FnOnce(&mut Parts)) -> Self {
        match &mut self.finale {
            Finale::Stream(parts) => change(parts),
            _ => panic!("only a stream has parts"),
        }
        self
    }

    /// The stream ends with a status.
    pub fn then_fail(self, code: Code, message: impl Into<String>) -> Self {
        self.streamed(|parts| parts.last = Last::Fail(code, message.into()))
    }

    /// The stream ends with the connection.
    pub fn then_cut(self) -> Self {
        self.streamed(|parts| parts.last = Last::Cut)
    }

    /// The stream ends without a word.
    pub fn then_no_status(self) -> Self {
        self.streamed(|parts| parts.last = Last::NoStatus)
    }

    /// The stream says nothing between its last message and its end until the gate is opened.
    pub fn then_hang(self, gate: &Gate) -> Self {
        self.streamed(|parts| parts.gate = Some(gate.clone()))
    }

    /// So long passes before each message of the stream but the first.
    pub fn trickling(self, pause: Duration) -> Self {
        self.streamed(|parts| parts.pause = pause)
    }

    /// A status. Nothing is done.
    pub fn fail(code: Code, message: impl Into<String>) -> Self {
        Self::of(Effect::Skipped, Finale::Status { code: code as i32, message: message.into() })
    }

    /// A status with any number as its code.
    pub fn fail_with_number(code: i32, message: impl Into<String>) -> Self {
        Self::of(Effect::Skipped, Finale::Status { code, message: message.into() })
    }

    /// A status whose details are not base64.
    pub fn broken_details(code: Code, message: impl Into<String>) -> Self {
        Self::of(Effect::Skipped, Finale::BrokenDetails { code, message: message.into() })
    }

    /// An OK that announces a message of so many bytes.
    pub fn oversize(bytes: u32) -> Self {
        Self::of(Effect::Skipped, Finale::Oversize(bytes))
    }

    /// An OK with a message that no one can decode.
    pub fn garbage() -> Self {
        Self::of(Effect::Skipped, Finale::Garbage)
    }

    /// An empty message, and the end of the stream without a status.
    pub fn no_status() -> Self {
        Self::of(Effect::Skipped, Finale::NoStatus)
    }

    /// An HTTP status, as a proxy would give it, and no gRPC status.
    pub fn http(status: u16) -> Self {
        Self::of(Effect::Skipped, Finale::Http(status))
    }

    /// The connection is closed, with all calls on it.
    pub fn cut() -> Self {
        Self::of(Effect::Skipped, Finale::Cut)
    }

    /// The plugin dies; see [`Site::on_exit`](super::Site::on_exit).
    pub fn exit() -> Self {
        Self::of(Effect::Skipped, Finale::Exit)
    }

    /// First waits until the gate is opened.
    pub fn hang(mut self, gate: &Gate) -> Self {
        self.pause = Pause::Until(gate.clone());
        self
    }

    /// First waits.
    pub fn delay(mut self, time: Duration) -> Self {
        self.pause = Pause::For(time);
        self
    }

    /// What was asked is done before anything else, whatever the answer then is.
    pub fn after_effect(mut self) -> Self {
        self.effect = Effect::First;
        self
    }

    /// What was asked is done when the caller has given up.
    pub fn late(mut self) -> Self {
        self.effect = Effect::Late;
        self
    }
}

#[derive(Debug)]
struct Planned {
    subject: Option<String>,
    answer: Answer,
    forever: bool,
}

/// The queues.
#[derive(Debug, Default)]
pub(super) struct Script {
    queues: BTreeMap<Rpc, VecDeque<Planned>>,
}

impl Script {
    pub(super) fn push(&mut self, rpc: Rpc, subject: Option<String>, answer: Answer, forever: bool) {
        self.queues.entry(rpc).or_default().push_back(Planned { subject, answer, forever });
    }

    pub(super) fn clear(&mut self, rpc: Rpc) {
        self.queues.remove(&rpc);
    }

    /// The first answer meant for this call.
    pub(super) fn next(&mut self, rpc: Rpc, subject: Option<&str>) -> Answer {
        let meant = |planned: &Planned| planned.subject.is_none() || planned.subject.as_deref() == subject;
        let Some(queue) = self.queues.get_mut(&rpc) else { return Answer::honest() };
        let Some(at) = queue.iter().position(meant) else { return Answer::honest() };
        if queue[at].forever {
            return queue[at].answer.clone();
        }
        queue.remove(at).map_or_else(Answer::honest, |planned| planned.answer)
    }

    /// Answers that no call came for.
    pub(super) fn unused(&self) -> Vec<String> {
        let waiting = |queue: &VecDeque<Planned>| queue.iter().filter(|planned| !planned.forever).count();
        self.queues
            .iter()
            .filter(|(_, queue)| waiting(queue) > 0)
            .map(|(rpc, queue)| format!("{} answers for {rpc} were never asked for", waiting(queue)))
            .collect()
    }
}
