//! Requests over a kube client: one answer with a deadline, or a watch.
//!
//! Knows HTTP and the shape of a `Status`; knows no command. Everything else of the command line asks through here.
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use http::{Method, Request, Response, header};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use serde_json::Value;

use super::failure::{self, Failure};
use super::kinds::Kinds;

/// The header of a request by which its client takes what the store held last for an answer.
const LAST_KNOWN: &str = "wharfline-last-known";
/// How long a request may take until its whole answer is here.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long the server is asked to keep a watch open, in seconds.
pub(crate) const WATCH_SECONDS: &str = "300";
/// A watch that says nothing for longer than it may last is dead.
const WATCH_SILENCE: Duration = Duration::from_secs(330);
/// No event is larger; the store takes 1 MiB.
const LONGEST_EVENT: usize = 8 << 20;

/// What form the answer should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The object itself.
    Object,
    /// A `Table`, rendered by the server.
    Table,
}

impl Form {
    fn accept(self) -> &'static str {
        match self {
            Self::Object => "application/json",
            Self::Table => {
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
            }
        }
    }
}

/// The content types of bodies.
pub(crate) mod content {
    pub(crate) const JSON: &str = "application/json";
    pub(crate) const MERGE_PATCH: &str = "application/merge-patch+json";
    pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
    pub(crate) const APPLY_PATCH: &str = "application/apply-patch+yaml";
}

/// An answer and the warnings that came with it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

/// The way to one server.
#[derive(Clone)]
pub(crate) struct Wire {
    client: Client,
    /// Where what is read may be old, which is for a person to judge: what the server says of that.
    last_known: Option<Arc<Mutex<BTreeSet<String>>>>,
}

impl Wire {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, last_known: None }
    }

    /// Takes what the store held last for an answer while it is lost.
    pub(crate) fn take_last_known(&mut self) {
        self.last_known = Some(Arc::default());
    }

    /// What the server said of what was read since it was asked last.
    pub(crate) fn told(&self) -> BTreeSet<String> {
        let lock = |told: &Arc<Mutex<BTreeSet<_>>>| {
            std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner))
        };
        self.last_known.as_ref().map(lock).unwrap_or_default()
    }

    /// Asks which kinds there are.
    pub(crate) async fn kinds(&self) -> Result<Kinds, Failure> {
        let both = async {
            let core = self.client.list_core_api_versions_aggregated().await?;
            let groups = self.client.list_api_groups_aggregated().await?;
            Ok::<_, kube::Error>([core, groups])
        };
        let documents = within(both).await??;
        Ok(Kinds::from_discovery(&documents))
    }

    /// Reads one path.
    pub(crate) async fn get(&self, path: &str, form: Form) -> Result<Value, Failure> {
        Ok(self.send(Method::GET, path, None, form).await?.body)
    }

    /// Sends one request and reads the whole answer.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
        form: Form,
    ) -> Result<Answer, Failure> {
        let last_known = self.last_known.as_ref().filter(|_| method == Method::GET);
        let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, form.accept());
        if last_known.is_some() {
            request = request.header(LAST_KNOWN, "yes");
        }
        let mut bytes = Vec::new();
        if let Some((content_type, value)) = body {
            request = request.header(header::CONTENT_TYPE, content_type);
            bytes = value.to_string().into_bytes();
        }
        let request = request.body(Body::from(bytes)).map_err(kube::Error::HttpError)?;
        within(async {
            let response = checked(self.client.send(request).await?).await?;
            let mut warnings = warnings(&response);
            if let Some(told) = last_known {
                // Said once, however many answers say it.
                told.lock().unwrap_or_else(PoisonError::into_inner).extend(warnings.drain(..));
            }
            let bytes = response.into_body().collect_bytes().await?;
            let body = serde_json::from_slice(&bytes).map_err(kube::Error::SerdeError)?;
            Ok(Answer { body, warnings })
        })
        .await?
    }

    /// Reads every page of a list into one answer.
    pub(crate) async fn list(
        &self,
        path: &str,
        parameters: &[(&str, &str)],
        form: Form,
    ) -> Result<Value, Failure> {
        let field = if form == Form::Table { "rows" } else { "items" };
        let mut whole: Option<Value> = None;
        let mut token = String::new();
        loop {
            let mut all = vec![("limit", "500")];
            all.extend_from_slice(parameters);
            all.extend((!token.is_empty()).then_some(("continue", token.as_str())));
            let mut page = self.get(&format!("{path}{}", super::kinds::query(&all)), form).await?;
            let more = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
            match &mut whole {
                None => whole = Some(page),
                Some(first) => {
                    // A server that knows no tables answers a plain list whatever was asked.
                    let field = if page.get(field).is_some() { field } else { "items" };
                    if let (Some(all), Some(more)) = (first[field].as_array_mut(), page[field].as_array_mut())
                    {
                        all.append(more);
                    }
                }
            }
            if more.is_empty() {
                return Ok(whole.unwrap_or_default());
            }
            token = more;
        }
    }

    /// Reads an answer of many lines piece by piece; its last line.
    pub(crate) async fn lines(
        &self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<Vec<u8>, Failure> {
        let request = Request::get(path).header(header::ACCEPT_ENCODING, "identity").body(Body::empty());
        let request = request.map_err(kube::Error::HttpError)?;
        let opened = async { checked(self.client.send(request).await?).await };
        let mut body = within(opened).await??.into_body();
        let mut last = Vec::new();
        while let Some(frame) = within(body.frame()).await? {
            let broken =
                |error: kube::Error| Failure::failed("the server broke off").because(error.to_string());
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            take(&data)?;
            last.extend_from_slice(&data);
            // All but the line that is last so far.
            let lines = last.strip_suffix(b"\n").unwrap_or(&last);
            if let Some(end) = lines.iter().rposition(|byte| *byte == b'\n') {
                last.drain(..=end);
            }
        }
        Ok(last)
    }

    /// Opens a watch.
    pub(crate) async fn watch(
        &self,
        path: &str,
        parameters: &[(&str, &str)],
        form: Form,
    ) -> Result<Watch, Failure> {
        let mut all = parameters.to_vec();
        all.extend([("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", WATCH_SECONDS)]);
        let request = Request::get(format!("{path}{}", super::kinds::query(&all)))
            .header(header::ACCEPT, form.accept())
            .header(header::ACCEPT_ENCODING, "identity")
            .body(Body::empty())
            .map_err(kube::Error::HttpError)?;
        let opened = async { checked(self.client.send(request).await?).await };
        match within(opened).await? {
            Ok(response) => Ok(Watch { body: response.into_body(), buffer: BytesMut::new() }),
            Err(failure) => Err(failure),
        }
    }
}

/// One step of a watch.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// Something changed; a bookmark only carries a newer resourceVersion.
    Change(Change, Value),
    /// The version to begin at is compacted away; list again.
    Expired,
    /// The server closed the watch; open it again from the last version seen.
    Ended,
}

/// What happened to the object of a watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Added,
    Modified,
    Deleted,
    Bookmark,
}

impl Change {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
        }
    }
}

/// An open watch.
pub(crate) struct Watch {
    body: Body,
    buffer: BytesMut,
}

impl Watch {
    /// Waits for the next step.
    pub(crate) async fn next(&mut self) -> Result<Step, Failure> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                if !line.is_empty() {
                    return step_of(&line);
                }
                continue;
            }
            if self.buffer.len() > LONGEST_EVENT {
                return Err(Failure::failed("the server sent an event that is too large"));
            }
            match tokio::time::timeout(WATCH_SILENCE, self.body.frame()).await {
                Err(_) => return Err(failure::silent(WATCH_SILENCE.as_secs())),
                Ok(None) => return Ok(Step::Ended),
                Ok(Some(Err(error))) => {
                    tracing::debug!(error = %failure::chain(&error), "watch broken");
                    return Ok(Step::Ended);
                }
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

fn step_of(line: &[u8]) -> Result<Step, Failure> {
    let mut event: Value = serde_json::from_slice(line).map_err(kube::Error::SerdeError)?;
    let object = event["object"].take();
    let change = match event["type"].as_str().unwrap_or_default() {
        "ADDED" => Change::Added,
        "MODIFIED" => Change::Modified,
        "DELETED" => Change::Deleted,
        "BOOKMARK" => Change::Bookmark,
        "ERROR" if object["code"] == 410 => return Ok(Step::Expired),
        "ERROR" => {
            let status: Status = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
            return Err(failure::of_status(&status));
        }
        other => return Err(Failure::failed(format!("the server sent a watch event of type {other:?}"))),
    };
    Ok(Step::Change(change, object))
}

async fn within<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(DEADLINE, work).await.map_err(|_| failure::silent(DEADLINE.as_secs()))
}

async fn checked(response: Response<Body>) -> Result<Response<Body>, Failure> {
    let code = response.status();
    if !(code.is_client_error() || code.is_server_error()) {
        return Ok(response);
    }
    let bytes = response.into_body().collect_bytes().await?;
    let mut status = serde_json::from_slice::<Status>(&bytes).unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&bytes);
        Status::failure(text.trim(), code.canonical_reason().unwrap_or_default())
    });
    status.code = code.as_u16();
    Err(failure::of_status(&status))
}

/// The texts of `Warning: 299 - "text"` headers.
fn warnings(response: &Response<Body>) -> Vec<String> {
    let headers = response.headers().get_all(header::WARNING).iter().filter_map(|h| h.to_str().ok());
    headers
        .map(|header| match (header.find('"'), header.rfind('"')) {
            (Some(from), Some(to)) if from < to => header[from + 1..to].replace("\\\"", "\""),
            _ => header.to_owned(),
        })
        .collect()
}
