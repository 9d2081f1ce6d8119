//! Watches: what exists, then every change that the selector lets through, as lines of JSON.
//!
//! A watch is a stream that is pulled by its connection. Where it stands:
//!
//! ```text
//! Initial ──> Live <──> Replay (its place left the lane: the store's own history)
//!    └──────────┴──────────┴──> Done (timeout, shutdown, or an ERROR line was sent)
//! ```
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use http::{HeaderValue, header};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::hub::{Change, Ear, Side, Taken, View};
use super::mirror::Part;
use super::objects::{Objects, Stored, refused};
use super::query::{Form, Query, refused_options};
use super::resource::{Nature, Resource};
use super::route::Target;
use super::selector::Selector;
use super::shares::{Share, Shares};
use super::status::Refusal;
use super::table::{self, RowObject};
use super::{HangUp, Identity, Inner, Server};
use crate::api::FieldErrors;
use crate::api::field::Cause;
use crate::store::{Event, Kv, Rev, Watch};

/// What is still to be told of a picture that was taken in memory.
struct Rest {
    kvs: VecDeque<Kv>,
    rev: Rev,
}

/// How many objects of the initial state are sent at once.
const PAGE: usize = 500;
/// How long a watch waits for the server to follow its store.
const READY_DEADLINE: Duration = Duration::from_secs(10);

enum Phase {
    Initial { after: Option<Bytes>, at: Option<Rev>, announce: bool, rest: Option<Rest> },
    Live,
    Replay(Watch, Option<Share>),
    Done,
}

struct Watcher {
    server: Server,
    resource: Arc<Resource>,
    range: String,
    selector: Selector,
    form: Form,
    rows: RowObject,
    phase: Phase,
    /// Everything up to here was told.
    cursor: Rev,
    ear: Ear,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    hang_up: HangUp,
    alarms: Alarms,
    share: Share,
}

/// What a watcher wakes for besides news: its end, and its clock. They stand from the first step to the last, so that a
/// change costs each of a thousand watchers no timer and no place in the lists of those who wait for the end.
struct Alarms(FuturesUnordered<BoxFuture<'static, Alarm>>);

/// What a watcher was woken for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alarm {
    /// The server ends, or hangs up.
    Over,
    /// A bookmark is due, or the watch has lasted as long as it may.
    Time,
}

impl Alarms {
    fn new(closing: &CancellationToken, hang_up: &HangUp, first: Instant) -> Self {
        let (closing, hang_up) = (closing.clone(), hang_up.clone());
        let over = async move {
            tokio::select! {
                () = closing.cancelled() => {}
                () = hang_up.cancelled() => {}
            }
            Alarm::Over
        };
        let alarms = Self(FuturesUnordered::new());
        alarms.0.push(over.boxed());
        alarms.set(first);
        alarms
    }

    /// The clock strikes then. It is set anew each time that it has.
    fn set(&self, at: Instant) {
        self.0.push(tokio::time::sleep_until(at).map(|()| Alarm::Time).boxed());
    }

    async fn next(&mut self) -> Alarm {
        // There is always the end left to wait for.
        self.0.next().await.unwrap_or(Alarm::Over)
    }
}

/// What is to be watched, and how it is told.
pub(crate) struct Watched<'a> {
    pub(crate) target: &'a Target,
    pub(crate) query: &'a Query,
    pub(crate) form: Form,
}

/// Starts a watch for somebody, of whom only so many are taken.
pub(crate) async fn start(
    server: &Server,
    who: &Identity,
    Watched { target, query, form }: Watched<'_>,
    hang_up: HangUp,
) -> Result<Response, Refusal> {
    let inner = &server.inner;
    let share = if who.is_internal() {
        inner.watches.take_anyway(&who.user)
    } else {
        inner.watches.take(&who.user).ok_or_else(too_many)?
    };
    let resource = Arc::clone(&target.resource);
    let selector = Selector::of(target, query)?;
    tokio::time::timeout(READY_DEADLINE, inner.hub.ready())
        .await
        .map_err(|_| Refusal::unavailable("the server does not follow its store yet"))?;
    // Subscribed before the first look at the lane, so that no wake-up is lost.
    let wanted = if resource.nature == Nature::Plain { selector.one() } else { None };
    let ear = inner.hub.ear((&resource, &inner.objects), wanted);
    check_options(query)?;
    let (phase, cursor) = match beginning(inner, &resource, query).await {
        // Clients list anew on an error in the stream; a refused watch they only try again.
        Err(refusal) if refusal.code == http::StatusCode::GONE => {
            return Ok(stream(Body::from(line("ERROR", refusal.to_value().to_string().as_bytes()))));
        }
        other => other?,
    };
    let seconds = query.timeout_seconds.map(Duration::from_secs);
    let lasts = seconds.unwrap_or(inner.options.watch_timeout).min(Duration::from_secs(86_400));
    let valid =
        hang_up.expires.map(|at| Duration::try_from(at.duration_since(inner.now())).unwrap_or_default());
    let now = Instant::now();
    let next_bookmark = now + inner.options.bookmark_interval;
    let deadline = now + valid.map_or(lasts, |valid| lasts.min(valid));
    let mut watcher = Watcher {
        server: server.clone(),
        range: resource.range(target.namespace.as_deref()),
        resource,
        selector,
        form,
        rows: RowObject::of(query.include_object.as_deref()),
        phase,
        cursor,
        ear,
        bookmarks: query.bookmarks,
        next_bookmark,
        deadline,
        alarms: Alarms::new(&inner.closing, &hang_up, next_bookmark.min(deadline)),
        hang_up,
        share,
    };
    // What exists is read now, not when the client first reads: its picture is that of its request.
    let mut first = Vec::new();
    if matches!(watcher.phase, Phase::Initial { .. }) {
        first = watcher.step().await?;
    }
    let first = (!first.is_empty()).then(|| Ok(Bytes::from(first)));
    let rest = futures::stream::unfold(watcher, |mut watcher| async {
        watcher.next().await.map(|lines| (Ok::<_, std::convert::Infallible>(lines), watcher))
    });
    let lines = futures::stream::iter(first).chain(rest);
    Ok(stream(Body::from_stream(lines)))
}

/// Nobody waits for a place: whoever lists anew is sooner there, and costs the store nothing.
fn crowded(at: Rev) -> Refusal {
    Refusal::expired(format!(
        "too old resource version: too many watches are told what was after {at} already; list again"
    ))
}

fn too_many() -> Refusal {
    let message = "too many watches are open; please try again later";
    let mut refusal = Refusal::new(http::StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
    refusal.details.retry_after = Some(5);
    refusal
}

fn stream(lines: Body) -> Response {
    let mut response = Response::new(lines);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Where a watch begins, by the rules of `resourceVersion` and `sendInitialEvents`.
async fn beginning(inner: &Inner, resource: &Resource, query: &Query) -> Result<(Phase, Rev), Refusal> {
    let version = query.version_number()?.map(Rev);
    if let Some(asked) = version.filter(|asked| *asked > inner.hub.position()) {
        let current = inner.objects.revision().await?;
        if asked > current {
            // A place in a history that is no more, as after a restored backup: to list anew is all that helps.
            let message =
                format!("too old resource version: {asked} is not of this store, which is at {current}");
            return Err(Refusal::expired(message));
        }
    }
    if let (Nature::Definition, Some(asked), None | Some(false)) =
        (resource.nature, version, query.send_initial_events)
        && asked < inner.objects.fixed_since().await?
    {
        let message = format!("too old resource version: {asked} is from before this server knew its kinds");
        return Err(Refusal::expired(message));
    }
    let initial = |announce| Phase::Initial { after: None, at: None, announce, rest: None };
    match (query.send_initial_events, version) {
        (Some(true), _) => Ok((initial(true), Rev::ZERO)),
        (None, None) => Ok((initial(false), Rev::ZERO)),
        (Some(false), None) => Ok((Phase::Live, inner.objects.revision().await?)),
        (Some(false) | None, Some(asked)) => Ok((Phase::Live, asked)),
    }
}

fn check_options(query: &Query) -> Result<(), Refusal> {
    query.version_number()?;
    let mut faults = FieldErrors::new();
    let version_match = query.version_match.as_deref();
    if query.send_initial_events.is_some() && version_match != Some("NotOlderThan") {
        let message = "Forbidden: sendInitialEvents requires resourceVersionMatch set to NotOlderThan";
        faults.add("resourceVersionMatch", Cause::Forbidden, message);
    }
    if query.send_initial_events.is_none() && version_match.is_some() {
        let message =
            "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        faults.add("resourceVersionMatch", Cause::Forbidden, message);
    }
    refused_options(faults)
}

impl Watcher {
    /// The next lines; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let lines = match self.step().await {
                Ok(lines) => lines,
                Err(refusal) => {
                    self.phase = Phase::Done;
                    line("ERROR", refusal.to_value().to_string().as_bytes())
                }
            };
            if !lines.is_empty() {
                return Some(Bytes::from(lines));
            }
            if matches!(self.phase, Phase::Done) {
                return None;
            }
        }
    }

    /// One step; an empty answer means that another step is due.
    async fn step(&mut self) -> Result<Vec<u8>, Refusal> {
        let expired = self.hang_up.expires.is_some_and(|at| at <= self.server.inner.now());
        if expired || self.hang_up.is_cancelled() {
            self.phase = Phase::Done;
            return Ok(Vec::new());
        }
        match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Initial { after, at, announce, rest } => self.initial((after, at), announce, rest).await,
            Phase::Live => self.live().await,
            Phase::Replay(history, place) => self.replay(history, place).await,
            Phase::Done => Ok(Vec::new()),
        }
    }

    /// One page of what exists.
    async fn initial(
        &mut self,
        (after, at): (Option<Bytes>, Option<Rev>),
        announce: bool,
        rest: Option<Rest>,
    ) -> Result<Vec<u8>, Refusal> {
        let objects = &self.server.inner.objects;
        let held = match (rest, at) {
            (Some(rest), _) => Some(rest),
            // All that is held is taken at once: it is one picture, however slowly it is read.
            (None, None) => held(objects, &self.range, &self.selector, &self.resource).await?,
            (None, Some(_)) => None,
        };
        let (kvs, rev, more, rest) = match held {
            Some(mut rest) => {
                let now = rest.kvs.drain(..PAGE.min(rest.kvs.len())).collect();
                (now, rest.rev, !rest.kvs.is_empty(), Some(rest))
            }
            None => {
                let page = objects.page(&self.range, after.as_deref(), PAGE, at).await?;
                (page.kvs, page.rev, page.more, None)
            }
        };
        let mut lines = Vec::new();
        for kv in &kvs {
            let stored = objects.open(&self.resource, kv)?;
            if self.selects(&stored)? {
                self.write("ADDED", &stored.json(&self.resource)?, &mut lines)?;
            }
        }
        match kvs.last() {
            Some(last) if more => {
                self.phase = Phase::Initial { after: Some(last.key.clone()), at: Some(rev), announce, rest };
            }
            Some(_) | None => {
                self.cursor = rev;
                self.phase = Phase::Live;
                if announce && self.bookmarks {
                    lines.extend(self.bookmark(true));
                }
            }
        }
        Ok(lines)
    }

    fn selects(&self, stored: &Stored) -> Result<bool, Refusal> {
        Ok(self.selector.is_empty() || self.selector.matches(&stored.traits(&self.resource)?))
    }

    /// What is new on the lane, or what comes first: news, a bookmark, the end.
    async fn live(&mut self) -> Result<Vec<u8>, Refusal> {
        let inner = Arc::clone(&self.server.inner);
        self.ear.listen();
        let waiting = match self.ear.take(self.cursor) {
            Taken::Changes(changes) => {
                let mut lines = Vec::new();
                for change in changes {
                    self.tell(&change, &mut lines)?;
                    self.cursor = change.rev;
                }
                self.phase = Phase::Live;
                if !lines.is_empty() {
                    return Ok(lines);
                }
                false
            }
            Taken::Nothing(seen) => {
                self.cursor = seen;
                true
            }
            Taken::TooOld => {
                let take = |replays: &Arc<Shares>| replays.take_as(&self.share);
                let place = inner.replays.as_ref().map(|r| take(r).ok_or_else(|| crowded(self.cursor)));
                let place = place.transpose()?;
                let history = inner.objects.history(&self.range, self.cursor).await?;
                self.phase = Phase::Replay(history, place);
                return Ok(Vec::new());
            }
        };
        if waiting {
            let alarm = tokio::select! {
                _ = self.ear.news() => None,
                alarm = self.alarms.next() => Some(alarm),
            };
            match alarm {
                None => {}
                Some(Alarm::Over) => return Ok(Vec::new()),
                Some(Alarm::Time) => {
                    self.phase = Phase::Live;
                    let lines = self.due();
                    self.set_clock();
                    return Ok(lines);
                }
            }
        }
        self.phase = Phase::Live;
        Ok(self.due())
    }

    /// Also without bookmarks: the place of who hears nothing goes on with the others.
    fn set_clock(&self) {
        self.alarms.set(self.next_bookmark.min(self.deadline));
    }

    /// A bookmark if it is time for one; the last one at the end.
    fn due(&mut self) -> Vec<u8> {
        let now = Instant::now();
        if now >= self.deadline {
            self.phase = Phase::Done;
        } else if now < self.next_bookmark {
            return Vec::new();
        }
        self.next_bookmark = now + self.server.inner.options.bookmark_interval;
        // Silence says that something is wrong: whoever waits here looks for another server.
        let speaks = self.bookmarks && self.server.inner.hub.follows();
        if let (true, Taken::Nothing(seen)) = (speaks, self.ear.take(self.cursor)) {
            self.cursor = seen;
            return self.bookmark(false);
        }
        Vec::new()
    }

    /// One change out of the store's own history, until the lane holds what follows.
    async fn replay(&mut self, mut history: Watch, place: Option<Share>) -> Result<Vec<u8>, Refusal> {
        let inner = Arc::clone(&self.server.inner);
        let event = loop {
            tokio::select! {
                alarm = self.alarms.next() => {
                    if alarm == Alarm::Over || Instant::now() >= self.deadline {
                        return Ok(Vec::new());
                    }
                    // Until it has come to where the others are, there is nothing to mark.
                    self.next_bookmark = Instant::now() + inner.options.bookmark_interval;
                    self.set_clock();
                }
                event = history.next() => break event,
            }
        };
        let Some(event) = event else {
            // Cut short without a reason: take up the thread where it is.
            self.phase = Phase::Live;
            return Ok(Vec::new());
        };
        let event = event.map_err(refused)?;
        let (rev, progress) = (event.rev(), matches!(event, Event::Progress(_)));
        let mut lines = Vec::new();
        if let Some(change) = Change::of(event) {
            self.tell(&change, &mut lines)?;
        }
        self.cursor = self.cursor.max(rev);
        let covered = progress && self.ear.covers(self.cursor);
        self.phase = if covered { Phase::Live } else { Phase::Replay(history, place) };
        Ok(lines)
    }

    /// Writes the line of a change, if the watcher is to hear of it.
    fn tell(&self, change: &Change, lines: &mut Vec<u8>) -> Result<(), Refusal> {
        if !change.key.starts_with(self.range.as_bytes()) {
            return Ok(());
        }
        let (is, was) = (self.chosen(change.new.as_ref())?, self.chosen(change.old.as_ref())?);
        let (word, side) = match (is, was) {
            (Some(now), None) => ("ADDED", now),
            (Some(now), Some(_)) => ("MODIFIED", now),
            (None, Some(before)) => ("DELETED", before),
            (None, None) => return Ok(()),
        };
        self.write(word, &self.view(side)?.json, lines)
    }

    /// The state, if there is one and the selector takes it. Without a selector it is not even opened.
    fn chosen<'a>(&self, side: Option<&'a Side>) -> Result<Option<&'a Side>, Refusal> {
        let Some(side) = side else { return Ok(None) };
        let traits = || side.traits(&self.server.inner.objects, &self.resource);
        let chosen = self.selector.is_empty() || self.selector.matches(traits()?);
        Ok(chosen.then_some(side))
    }

    fn view<'a>(&self, side: &'a Side) -> Result<&'a View, Refusal> {
        side.view(&self.server.inner.objects, &self.resource)
    }

    fn write(&self, kind: &str, object: &[u8], lines: &mut Vec<u8>) -> Result<(), Refusal> {
        let parsed = || -> Result<Value, Refusal> {
            serde_json::from_slice(object)
                .map_err(|e| Refusal::internal(format!("an event is not JSON: {e}")))
        };
        match self.form {
            Form::Whole => lines.extend(line(kind, object)),
            Form::Metadata => lines.extend(line(kind, table::bare(&parsed()?).to_string().as_bytes())),
            Form::Table => {
                let object = parsed()?;
                let metadata = json!({ "resourceVersion": object["metadata"]["resourceVersion"] });
                let how = (self.rows, self.server.inner.now());
                let table = table::table(&self.resource, [object], &metadata, how);
                lines.extend(line(kind, table.to_string().as_bytes()));
            }
        }
        Ok(())
    }

    fn bookmark(&self, initial_end: bool) -> Vec<u8> {
        let mut metadata = json!({ "resourceVersion": self.cursor.to_string(), "creationTimestamp": null });
        if initial_end {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let (kind, api_version) = match self.form {
            Form::Whole => (self.resource.kind.kind, self.resource.api_version.as_str()),
            Form::Table => ("Table", "meta.k8s.io/v1"),
            Form::Metadata => ("PartialObjectMetadata", "meta.k8s.io/v1"),
        };
        let mut object = json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata });
        if self.form == Form::Table {
            object["rows"] = json!([]);
        }
        line("BOOKMARK", object.to_string().as_bytes())
    }
}

fn line(kind: &str, object: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(object.len() + 40);
    line.extend_from_slice(b"{\"type\":\"");
    line.extend_from_slice(kind.as_bytes());
    line.extend_from_slice(b"\",\"object\":");
    line.extend_from_slice(object);
    line.extend_from_slice(b"}\n");
    line
}
/// What is held of a range now, without what the selector surely does not select.
async fn held(
    objects: &Objects,
    range: &str,
    selector: &Selector,
    resource: &Resource,
) -> Result<Option<Rest>, Refusal> {
    let part = Part { range, after: None, limit: usize::MAX };
    let Some(page) = objects.held(&part, None).await? else { return Ok(None) };
    let hint = selector.hint().filter(|_| resource.nature == Nature::Plain);
    let mut kvs = VecDeque::new();
    for (n, kv) in page.kvs.into_iter().enumerate() {
        if n % PAGE == PAGE - 1 {
            tokio::task::yield_now().await;
        }
        if hint.as_ref().is_none_or(|hint| hint.may_be_in(&kv.value)) {
            kvs.push_back(kv);
        }
    }
    Ok(Some(Rest { kvs, rev: page.rev }))
}
