//! Events about what the daemon did: bounded, and nobody ever waits for them.
//!
//! A step that fails says so once for each reason and message, and once more when it has recovered; what lies between stands
//! in the object's status. What differs in its numbers alone is one event, which is counted and has the newest message.
//! Texts are those of conditions, so no secret is in them. When the server is slow or gone, events are dropped.
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{self as core, ObjectReference};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::context::API_DEADLINE;
use super::mounts::DATA_LOSS;

/// How many events may wait to be written.
const WAITING: usize = 1024;
/// How long an event waits before it is written. What it tells of is written meanwhile: a person does not see the
/// difference, and a volume is in use earlier.
const LATER: Duration = Duration::from_millis(100);
/// A call that takes longer than this is told of.
pub(super) const SLOW: Duration = Duration::from_secs(5);
/// The longest note, in bytes; Kubernetes takes 1024.
const NOTE: usize = 1000;
/// Who reports.
const REPORTER: &str = "wharfline.dev/node";
/// After this the server has removed what told of a failure: one that lasts is told anew.
const AGAIN: Duration = Duration::from_secs(60 * 60);
/// How long an event is counted on after it was last told; what comes later is an event of its own.
const SERIES_AGE: Duration = Duration::from_secs(6 * 60);
/// How many events are remembered; past that all are forgotten, and what comes later is an event of its own.
const REMEMBERED: usize = 4096;
/// How many events one object and reason have at a time. Where each message has another word, such as the name of a request,
/// the newest event takes what comes: it is true, and the server is not filled.
const MESSAGES: usize = 8;

/// Whether a person should look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tone {
    /// As it should be.
    Normal,
    /// Something is wrong.
    Warning,
}

/// One thing that happened.
#[derive(Debug)]
pub struct Happened {
    about: ObjectReference,
    tone: Tone,
    reason: String,
    action: String,
    note: String,
    at: Instant,
}

/// Where events are left.
#[derive(Debug)]
pub struct Events {
    send: mpsc::Sender<Happened>,
    failing: Mutex<HashMap<String, Failing>>,
}

/// A step that fails.
#[derive(Debug)]
struct Failing {
    /// The reason, and the message without its numbers; none if another told of it.
    what: Option<(String, String)>,
    told: Instant,
}

impl Events {
    /// Events, and where [`write`] takes them from.
    pub fn new() -> (Self, mpsc::Receiver<Happened>) {
        let (send, waiting) = mpsc::channel(WAITING);
        (Self { send, failing: Mutex::default() }, waiting)
    }

    /// Something happened to an object. Dropped when too many wait.
    pub fn tell(&self, about: ObjectReference, tone: Tone, reason: &str, action: &str, note: &str) {
        let note = cut(note).to_owned();
        let (reason, action) = (reason.to_owned(), action.to_owned());
        let _full = self.send.try_send(Happened { about, tone, reason, action, note, at: Instant::now() });
    }

    /// A step failed: told when it did not fail before, or not like this.
    pub fn failed(&self, about: ObjectReference, step: &str, reason: &str, action: &str, note: &str) {
        if reason.ends_with(DATA_LOSS) {
            tracing::error!(step, note, "the driver says that data is lost");
        }
        if self.is_news(step, (reason.to_owned(), shape(cut(note)))) {
            self.tell(about, Tone::Warning, reason, action, note);
        }
    }

    fn is_news(&self, step: &str, what: (String, String)) -> bool {
        let now = Instant::now();
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = failing.get_mut(step) else {
            failing.insert(step.to_owned(), Failing { what: Some(what), told: now });
            return true;
        };
        let same = known.what.as_ref().is_none_or(|known| *known == what);
        let news = !same || now.duration_since(known.told) >= AGAIN;
        known.what = Some(what);
        if news {
            known.told = now;
        }
        news
    }

    /// A step failed, which was told already.
    pub fn known(&self, step: &str) {
        let told = Failing { what: None, told: Instant::now() };
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).insert(step.to_owned(), told);
    }

    /// A step succeeded: told when it failed before.
    pub fn recovered(&self, about: ObjectReference, step: &str, action: &str) {
        self.over(about, step, ("Recovered", action, "succeeded after a failure"));
    }

    /// What was told of a step is over: told if it was, by this reason, action and sentence.
    pub fn over(&self, about: ObjectReference, step: &str, (reason, action, note): (&str, &str, &str)) {
        if self.failing.lock().unwrap_or_else(PoisonError::into_inner).remove(step).is_some() {
            self.tell(about, Tone::Normal, reason, action, note);
        }
    }

    /// Waits for the answer to a call, and tells when it takes long: while it does, no status is written that would say
    /// what the object waits for.
    pub async fn follow<T>(
        &self,
        about: Option<ObjectReference>,
        (rpc, deadline): (&str, Duration),
        answer: impl Future<Output = T>,
    ) -> T {
        tokio::pin!(answer);
        if let Ok(answer) = tokio::time::timeout(SLOW, &mut answer).await {
            return answer;
        }
        if let Some(about) = about {
            let (so_far, most) = (SLOW.as_secs(), deadline.as_secs_f64());
            let note = format!("no answer from the plugin for {so_far} s; it is waited for up to {most} s");
            self.tell(about, Tone::Warning, "NoAnswerYet", rpc, &format!("{rpc}: {note}"));
        }
        answer.await
    }

    /// Forgets the steps of an object that is gone.
    pub fn gone(&self, object: &str) {
        self.failing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|step, _| !step.starts_with(object));
    }
}

/// Writes events until `stop`.
pub async fn write(
    client: kube::Client,
    node: String,
    mut waiting: mpsc::Receiver<Happened>,
    stop: CancellationToken,
) {
    let mut writer = Writer { client, node, recent: Recent::default() };
    loop {
        let happened = tokio::select! {
            () = stop.cancelled() => return,
            happened = waiting.recv() => happened,
        };
        let Some(happened) = happened else { return };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep_until(happened.at + LATER) => {}
        }
        let written = tokio::select! {
            () = stop.cancelled() => return,
            written = tokio::time::timeout(API_DEADLINE, writer.publish(&happened)) => written,
        };
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "event not written");
            }
            Err(_) => tracing::debug!("event not written in time"),
        }
    }
}

/// Who writes events, and which of them are counted on.
struct Writer {
    client: kube::Client,
    node: String,
    recent: Recent,
}

impl Writer {
    /// One more of an event that was told, or an event of its own.
    async fn publish(&mut self, happened: &Happened) -> Result<(), kube::Error> {
        let (topic, shape) = (Topic::of(happened), shape(&happened.note));
        if let Some((name, count)) = self.recent.find(&topic, &shape, Instant::now()) {
            let count = count.saturating_add(1);
            match self.count_on(happened, &name, count).await {
                Ok(()) => {
                    self.recent.keep(topic, Series { name, shape, count, told: Instant::now() });
                    return Ok(());
                }
                // Somebody deleted it. What is told now has happened all the same.
                Err(kube::Error::Api(status)) if status.code == 404 => self.recent.gone(&topic, &name),
                Err(error) => return Err(error),
            }
        }
        let name = self.begin(happened).await?;
        self.recent.keep(topic, Series { name, shape, count: 1, told: Instant::now() });
        Ok(())
    }

    /// Makes an event; its name.
    async fn begin(&self, happened: &Happened) -> Result<String, kube::Error> {
        let (about, now) = (&happened.about, Timestamp::now());
        let name = format!("{}.{:x}", about.name.as_deref().unwrap_or(&self.node), now.as_nanosecond());
        let tone = match happened.tone {
            Tone::Normal => "Normal",
            Tone::Warning => "Warning",
        };
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: about.namespace.clone(),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            regarding: Some(about.clone()),
            type_: Some(tone.to_owned()),
            reason: Some(happened.reason.clone()),
            action: Some(happened.action.clone()),
            note: Some(happened.note.clone()),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(self.node.clone()),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace(about));
        api.create(&PostParams::default(), &event).await?;
        Ok(name)
    }

    /// Counts an event once more. In core/v1, as in events.k8s.io/v1 Kubernetes lets no note change.
    async fn count_on(&self, happened: &Happened, name: &str, count: i32) -> Result<(), kube::Error> {
        let series = json!({ "count": count, "lastObservedTime": MicroTime(Timestamp::now()) });
        let patch = json!({ "message": happened.note, "series": series });
        let api: Api<core::Event> = Api::namespaced(self.client.clone(), namespace(&happened.about));
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
    }
}

/// What events have in common that may be one.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Topic {
    about: [Option<String>; 5],
    tone: Tone,
    reason: String,
    action: String,
}

impl Topic {
    fn of(happened: &Happened) -> Self {
        let ObjectReference { kind, namespace, name, uid, field_path, .. } = happened.about.clone();
        let (reason, action) = (happened.reason.clone(), happened.action.clone());
        Self { about: [kind, namespace, name, uid, field_path], tone: happened.tone, reason, action }
    }
}

/// An event that is at the server.
#[derive(Debug)]
struct Series {
    name: String,
    /// Its newest note without the numbers.
    shape: String,
    count: i32,
    told: Instant,
}

/// The events that were told a short while ago; of each topic the one that was told last comes last.
#[derive(Debug, Default)]
struct Recent(HashMap<Topic, Vec<Series>>);

impl Recent {
    /// The name and count of the event that is counted on by a note like this.
    fn find(&mut self, topic: &Topic, shape: &str, now: Instant) -> Option<(String, i32)> {
        self.0.retain(|_, told| {
            told.retain(|series| now.duration_since(series.told) < SERIES_AGE);
            !told.is_empty()
        });
        let told = self.0.get(topic)?;
        let alike = told.iter().find(|series| series.shape == shape);
        let found = alike.or_else(|| told.last().filter(|_| told.len() >= MESSAGES))?;
        Some((found.name.clone(), found.count))
    }

    fn keep(&mut self, topic: Topic, series: Series) {
        if self.0.values().map(Vec::len).sum::<usize>() >= REMEMBERED {
            self.0.clear();
        }
        let told = self.0.entry(topic).or_default();
        told.retain(|known| known.name != series.name);
        told.push(series);
    }

    fn gone(&mut self, topic: &Topic, name: &str) {
        if let Some(told) = self.0.get_mut(topic) {
            told.retain(|series| series.name != name);
        }
    }
}

/// Where the events about an object are; those about one of the whole cluster are where Kubernetes has them.
fn namespace(about: &ObjectReference) -> &str {
    about.namespace.as_deref().unwrap_or("default")
}

/// As much of a note as is told.
fn cut(note: &str) -> &str {
    let end = note.char_indices().find(|(at, c)| at + c.len_utf8() > NOTE);
    end.map_or(note, |(end, _)| &note[..end])
}

/// A note without its numbers, to whose digits the point between them belongs.
fn shape(note: &str) -> String {
    let mut rest = note.chars().peekable();
    let (mut shape, mut in_number) = (String::new(), false);
    while let Some(c) = rest.next() {
        let is_point = in_number && c == '.' && rest.peek().is_some_and(char::is_ascii_digit);
        let is_part = c.is_ascii_digit() || is_point;
        match (is_part, in_number) {
            (true, false) => shape.push('0'),
            (true, true) => {}
            (false, _) => shape.push(c),
        }
        in_number = is_part;
    }
    shape
}

/// One part of an object: of `what` in its spec the one with this name. Events with one reason about one part, whose notes
/// differ in numbers alone, are one, with the newest note: without this, of two volumes one would be told of.
pub fn part(about: ObjectReference, what: &str, name: &str) -> ObjectReference {
    ObjectReference { field_path: Some(format!("spec.{what}{{{name}}}")), ..about }
}

/// What an event about an attachment refers to that is known from the journal alone.
pub fn about_attachment(name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("wharfline.dev/v1alpha1".to_owned()),
        kind: Some("VolumeAttachment".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// What an event about an allocation refers to.
pub fn about_allocation(allocation: &crate::api::meta::ObjectRef) -> ObjectReference {
    ObjectReference {
        api_version: Some("wharfline.dev/v1alpha1".to_owned()),
        kind: Some("Allocation".to_owned()),
        namespace: Some(allocation.namespace.clone()),
        name: Some(allocation.name.clone()),
        uid: Some(allocation.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> ObjectReference {
        ObjectReference { name: Some("a".into()), ..ObjectReference::default() }
    }

    #[test]
    fn a_step_tells_of_its_edges_alone() {
        let (events, mut told) = Events::new();
        for _ in 0..3 {
            events.failed(about(), "a/stage", "StageFailed", "Stage", "no");
        }
        events.recovered(about(), "a/stage", "Stage");
        events.recovered(about(), "a/stage", "Stage");
        events.recovered(about(), "a/publish", "Publish");
        let reasons: Vec<_> = reasons(&mut told).into_iter().map(|(reason, _)| reason).collect();
        assert_eq!(reasons, ["StageFailed", "Recovered"]);
    }

    fn reasons(told: &mut mpsc::Receiver<Happened>) -> Vec<(String, String)> {
        std::iter::from_fn(|| told.try_recv().ok()).map(|e| (e.reason, e.note)).collect()
    }

    #[test]
    fn another_reason_or_message_of_a_step_is_told_and_another_number_is_not() {
        let (events, mut told) = Events::new();
        let said = [
            ("RuntimeMissing", "runc is not installed"),
            ("RuntimeMissing", "runc is not installed"),
            ("ImageUnusable", "no such file"),
            ("ImageUnusable", "not an archive: ends after 13 bytes"),
            ("ImageUnusable", "not an archive: ends after 4.5 bytes"),
            ("ImageUnusable", "no such file"),
        ];
        for (reason, note) in said {
            events.failed(about(), "task/1/t", reason, "Run", note);
        }
        let expected = [said[0], said[2], said[3], said[5]].map(|(r, n)| (r.to_owned(), n.to_owned()));
        assert_eq!(reasons(&mut told), expected);
        events.recovered(about(), "task/1/t", "Run");
        events.recovered(about(), "task/1/t", "Run");
        assert_eq!(reasons(&mut told).len(), 1);
    }

    #[test]
    fn what_another_told_of_is_not_told_again_until_it_differs() {
        let (events, mut told) = Events::new();
        events.known("i/OtherDriver");
        for note in ["is a", "is a", "is b"] {
            events.failed(about(), "i/OtherDriver", "OtherDriver", "Probe", note);
        }
        assert_eq!(reasons(&mut told), [("OtherDriver".to_owned(), "is b".to_owned())]);
    }

    /// The server has removed by then what told of it.
    #[tokio::test(start_paused = true)]
    async fn a_failure_that_lasts_is_told_anew_after_an_hour() {
        let (events, mut told) = Events::new();
        for _ in 0..=AGAIN.as_secs() / 60 {
            events.failed(about(), "a/stage", "StageFailed", "Stage", "no");
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert_eq!(reasons(&mut told).len(), 2);
    }

    #[test]
    fn notes_are_alike_that_differ_in_numbers_alone() {
        let shapes = ["after 63 s", "after 3 s", "after 0.25 s", "after 1.2.3 s"].map(shape);
        assert_eq!(shapes, ["after 0 s"; 4].map(str::to_owned));
        assert_eq!(shape("3. its shim, v2."), "0. its shim, v0.");
        assert_ne!(shape("exited with code 9"), shape("killed by signal 9"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded_in_number_and_time() {
        let topic = |name: &str| {
            let about = [None, None, Some(name.to_owned()), None, None];
            Topic { about, tone: Tone::Normal, reason: "r".into(), action: "a".into() }
        };
        let series = |name: String| Series { shape: name.clone(), name, count: 1, told: Instant::now() };
        let mut recent = Recent::default();
        for i in 0..MESSAGES {
            assert_eq!(recent.find(&topic("a"), &format!("m-{i}"), Instant::now()), None);
            recent.keep(topic("a"), series(format!("m-{i}")));
        }
        let found = |recent: &mut Recent, shape: &str| recent.find(&topic("a"), shape, Instant::now());
        assert_eq!(found(&mut recent, "m-2"), Some(("m-2".to_owned(), 1)));
        assert_eq!(found(&mut recent, "another"), Some((format!("m-{}", MESSAGES - 1), 1)));
        tokio::time::advance(SERIES_AGE).await;
        assert_eq!(found(&mut recent, "m-2"), None);
        for i in 0..REMEMBERED * 2 {
            recent.keep(topic(&i.to_string()), series("m".to_owned()));
            assert!(recent.0.len() <= REMEMBERED);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_takes_long_is_told_of_once_while_it_lasts() {
        let (events, mut told) = Events::new();
        let call = |seconds| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            seconds
        };
        let rpc = ("CreateVolume", Duration::from_secs(60));
        assert_eq!(events.follow(Some(about()), rpc, call(4)).await, 4);
        assert!(told.try_recv().is_err());
        let start = Instant::now();
        assert_eq!(events.follow(Some(about()), rpc, call(14)).await, 14);
        let one = told.try_recv().unwrap();
        assert_eq!((one.at - start, one.reason.as_str()), (SLOW, "NoAnswerYet"));
        assert_eq!(one.note, "CreateVolume: no answer from the plugin for 5 s; it is waited for up to 60 s");
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn nobody_waits_when_too_many_do() {
        let (events, mut told) = Events::new();
        for _ in 0..WAITING * 2 {
            events.tell(about(), Tone::Normal, "r", "a", &"é".repeat(NOTE));
        }
        let kept: Vec<_> = std::iter::from_fn(|| told.try_recv().ok()).collect();
        assert_eq!(kept.len(), WAITING);
        assert!(kept[0].note.len() <= NOTE);
    }
}
