//! Events about what the daemon did: bounded, and nobody ever waits for them.
//!
//! A step that fails says so once, and once more when it has recovered; what lies between stands in the object's status.
//! Texts are those of conditions, so no secret is in them. When the server is slow or gone, events are dropped.
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
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
const SLOW: Duration = Duration::from_secs(5);
/// The longest note, in bytes; Kubernetes takes 1024.
const NOTE: usize = 1000;
/// Who reports.
const REPORTER: &str = "wharfline.dev/node";

/// Whether a person should look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    failing: Mutex<HashSet<String>>,
}

impl Events {
    /// Events, and where [`write`] takes them from.
    pub fn new() -> (Self, mpsc::Receiver<Happened>) {
        let (send, waiting) = mpsc::channel(WAITING);
        (Self { send, failing: Mutex::default() }, waiting)
    }

    /// Something happened to an object. Dropped when too many wait.
    pub fn tell(&self, about: ObjectReference, tone: Tone, reason: &str, action: &str, note: &str) {
        let note = match note.char_indices().find(|(at, c)| at + c.len_utf8() > NOTE) {
            Some((end, _)) => note[..end].to_owned(),
            None => note.to_owned(),
        };
        let (reason, action) = (reason.to_owned(), action.to_owned());
        let _full = self.send.try_send(Happened { about, tone, reason, action, note, at: Instant::now() });
    }

    /// A step failed: told when it did not fail before.
    pub fn failed(&self, about: ObjectReference, step: &str, reason: &str, action: &str, note: &str) {
        let lost = reason.ends_with(DATA_LOSS);
        if lost {
            tracing::error!(step, note, "the driver says that data is lost");
        }
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        // That data is lost is told of what failed otherwise before, too.
        let news = failing.insert(step.to_owned()) | (lost && failing.insert(of_loss(step)));
        drop(failing);
        if news {
            self.tell(about, Tone::Warning, reason, action, note);
        }
    }

    /// A step failed, which was told already.
    pub fn known(&self, step: &str) {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).insert(step.to_owned());
    }

    /// A step succeeded: told when it failed before.
    pub fn recovered(&self, about: ObjectReference, step: &str, action: &str) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = failing.remove(step) | failing.remove(&of_loss(step));
        drop(failing);
        if failed {
            self.tell(about, Tone::Normal, "Recovered", action, "succeeded after a failure");
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
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).retain(|step| !step.starts_with(object));
    }
}

/// Writes events until `stop`.
pub async fn write(
    client: kube::Client,
    node: String,
    mut waiting: mpsc::Receiver<Happened>,
    stop: CancellationToken,
) {
    let reporter = Reporter { controller: REPORTER.to_owned(), instance: Some(node) };
    let recorder = Recorder::new(client, reporter);
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
        let event = Event {
            type_: match happened.tone {
                Tone::Normal => EventType::Normal,
                Tone::Warning => EventType::Warning,
            },
            reason: happened.reason,
            note: Some(happened.note),
            action: happened.action,
            secondary: None,
        };
        let written = tokio::select! {
            () = stop.cancelled() => return,
            written = tokio::time::timeout(API_DEADLINE, recorder.publish(&event, &happened.about)) => written,
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

/// One part of an object: of `what` in its spec the one with this name. Events with one reason about one part are one series,
/// of which only the first note is kept, as people see it: without this, of two volumes one would be told of.
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

/// What is remembered of a step whose driver said that data is lost.
fn of_loss(step: &str) -> String {
    format!("{step}/{DATA_LOSS}")
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
        let reasons: Vec<_> = std::iter::from_fn(|| told.try_recv().ok()).map(|e| e.reason).collect();
        assert_eq!(reasons, ["StageFailed", "Recovered"]);
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
