//! Objects in the store: keys, sealing, revisions spliced into JSON, and store errors as refusals.
//!
//! An object is kept as JSON bytes without its resourceVersion, which is the store's revision. Lists and
//! watches hand these bytes on with the revision spliced in; only who must look inside parses them.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

use super::events;
use super::fixed::{Birth, Fixed};
use super::mirror::{Mirror, Part};
use super::resource::{Nature, ROOT, Resource};
use super::seal::SealingKey;
use super::selector::Traits;
use super::source::{Asked, Next};
use super::status::Refusal;
use super::{NAMESPACES, Random, random_bytes};
use crate::store::{Expect, Kv, Outcome, Page, Rev, Store, StoreError, Watch};

/// How long the server waits for its store before it answers 503.
const STORE_DEADLINE: Duration = Duration::from_secs(10);
/// How long what is held may take to come to where the store is, before that is read instead.
const HELD_DEADLINE: Duration = Duration::from_secs(1);

/// The store with what turns objects into its values.
pub(crate) struct Objects {
    pub(crate) store: Arc<dyn Store>,
    /// What is held of it, where that is kept.
    pub(crate) mirror: Option<Arc<Mirror>>,
    pub(crate) sealing: SealingKey,
    pub(crate) random: Random,
    /// What is made of the program and read like the rest.
    pub(crate) fixed: Arc<Fixed>,
    /// Whether the store answered when it was asked last.
    pub(crate) answers: AtomicBool,
}

/// One object as stored: opened, but not parsed.
#[derive(Clone)]
pub(crate) struct Stored {
    /// The revision it was written at.
    pub(crate) rev: Rev,
    json: Bytes,
}

/// Why a write was not done.
pub(crate) enum WriteError {
    /// The key is not as expected; what is there, if anything.
    Conflict(Option<Stored>),
    /// Anything else.
    Refused(Refusal),
}

impl From<Refusal> for WriteError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Stored {
    /// The object as this resource shows it, with its resourceVersion.
    pub(crate) fn value(&self, resource: &Resource) -> Result<Value, Refusal> {
        let mut value: Value =
            serde_json::from_slice(&self.json).map_err(|e| damaged(resource, &format!("not JSON: {e}")))?;
        value = versioned(value, self.rev);
        if resource.nature == Nature::NewEvent {
            events::to_new_group(&mut value);
        }
        Ok(value)
    }

    /// What selectors match against.
    pub(crate) fn traits(&self, resource: &Resource) -> Result<Traits, Refusal> {
        if resource.nature == Nature::NewEvent {
            return Ok(Traits::of(&self.value(resource)?, resource.kind.selectable));
        }
        let read = Traits::read(&self.json, resource.kind.selectable);
        read.map_err(|e| damaged(resource, &format!("not JSON: {e}")))
    }

    /// The JSON of the object as this resource shows it, with `rev` as its resourceVersion.
    pub(crate) fn json_at(&self, resource: &Resource, rev: Rev) -> Result<Bytes, Refusal> {
        if resource.nature == Nature::NewEvent {
            return Self { rev, json: self.json.clone() }.value(resource).map(|value| text(&value));
        }
        let at = metadata_start(&self.json).ok_or_else(|| damaged(resource, "it has no metadata"))?;
        let mut spliced = Vec::with_capacity(self.json.len() + 40);
        spliced.extend_from_slice(&self.json[..at]);
        spliced.extend_from_slice(format!("\"resourceVersion\":\"{rev}\"").as_bytes());
        if self.json.get(at) != Some(&b'}') {
            spliced.push(b',');
        }
        spliced.extend_from_slice(&self.json[at..]);
        Ok(Bytes::from(spliced))
    }

    /// The JSON of the object with its own revision.
    pub(crate) fn json(&self, resource: &Resource) -> Result<Bytes, Refusal> {
        self.json_at(resource, self.rev)
    }
}

/// The object with this as its resourceVersion.
pub(crate) fn versioned(mut object: Value, rev: Rev) -> Value {
    object["metadata"]["resourceVersion"] = Value::from(rev.to_string());
    object
}

/// The JSON of a value, without the way over a formatter, which costs three times as much.
pub(crate) fn text(value: &Value) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("a value is JSON"))
}

fn damaged(resource: &Resource, what: &str) -> Refusal {
    Refusal::internal(format!("a stored object of {} cannot be read: {what}", resource.kind.plural))
}

/// Where the fields of the top-level `metadata` object begin.
fn metadata_start(json: &[u8]) -> Option<usize> {
    const KEY: &[u8] = b"\"metadata\":{";
    let (mut depth, mut text, mut escaped) = (0_usize, false, false);
    for (at, byte) in json.iter().enumerate() {
        match (text, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (false, b'"') if depth == 1 && json[at..].starts_with(KEY) => return Some(at + KEY.len()),
            (_, b'"') => text = !text,
            (false, b'{' | b'[') => depth += 1,
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

impl Objects {
    /// Opens a value of the store.
    pub(crate) fn open(&self, resource: &Resource, kv: &Kv) -> Result<Stored, Refusal> {
        let json = if resource.nature == Nature::Secret {
            let place = String::from_utf8_lossy(&kv.key);
            let opened = self.sealing.open(&place, &kv.value);
            Bytes::from(opened.map_err(|e| damaged(resource, &e.to_string()))?)
        } else {
            kv.value.clone()
        };
        Ok(Stored { rev: kv.mod_revision, json })
    }

    /// The JSON of an object, and its bytes for the store.
    fn close(&self, resource: &Resource, key: &str, object: &Value) -> (Bytes, Bytes) {
        let json = if resource.nature == Nature::NewEvent {
            let mut event = object.clone();
            events::to_core(&mut event);
            text(&event)
        } else {
            text(object)
        };
        let value = if resource.nature == Nature::Secret {
            let nonce = random_bytes(&self.random);
            Bytes::from(self.sealing.seal(key, nonce, &json))
        } else {
            json.clone()
        };
        (json, value)
    }

    /// A read with a deadline.
    async fn timely<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, Refusal> {
        let done = tokio::time::timeout(STORE_DEADLINE, call).await;
        self.note(&done);
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(refused(error)),
            Err(_) => Err(Refusal::unavailable("the store did not answer in time")),
        }
    }

    /// Keeps whether the store answers.
    fn note<T>(&self, done: &Result<Result<T, StoreError>, tokio::time::error::Elapsed>) {
        let answers = !matches!(done, Err(_) | Ok(Err(StoreError::Unavailable { .. })));
        self.answers.store(answers, Ordering::Relaxed);
    }

    /// Whether the store answered when it was asked last. If not, a read comes before each write: that is refused for
    /// certain, and a write might be in doubt.
    pub(crate) fn answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }

    /// The newest revision.
    pub(crate) async fn revision(&self) -> Result<Rev, Refusal> {
        self.timely(self.store.revision()).await
    }

    /// One object.
    pub(crate) async fn get(&self, resource: &Resource, key: &str) -> Result<Option<Stored>, Refusal> {
        if self.fixed.holds(key) {
            let kv = self.fixed.get(key, || self.birth()).await?;
            return kv.map(|kv| self.open(resource, &kv)).transpose();
        }
        let (kv, _) = self.timely(self.store.get(key.as_bytes())).await?;
        kv.map(|kv| self.open(resource, &kv)).transpose()
    }

    /// One page of objects; see [`Store::list`].
    pub(crate) async fn page(
        &self,
        range: &str,
        after: Option<&[u8]>,
        limit: usize,
        at: Option<Rev>,
    ) -> Result<Page, Refusal> {
        if self.fixed.holds(range) {
            let current = self.revision().await?;
            let rev = at.unwrap_or(current);
            if rev > current {
                return Err(Refusal::too_large_version(rev.0, current.0));
            }
            return self.fixed.page(after, limit, (rev, || self.birth())).await;
        }
        self.timely(self.store.list(range.as_bytes(), after, limit, at)).await
    }

    /// A part at once, out of what is held, where that is as good as the store's word; see [`source`](super::source).
    pub(crate) async fn held(&self, part: &Part<'_>, at: Option<Rev>) -> Result<Option<Page>, Refusal> {
        let Some(mirror) = self.mirror.as_ref().filter(|_| !self.fixed.holds(part.range)) else {
            return Ok(None);
        };
        let mut asked = at.map_or(Asked::Newest { told: None }, Asked::At);
        loop {
            match mirror.look(asked, part) {
                Ok(page) => return Ok(Some(page)),
                Err(Next::Ask) => asked = Asked::Newest { told: Some(self.revision().await?) },
                Err(Next::Wait(rev)) => {
                    if !mirror.reached(rev, HELD_DEADLINE).await {
                        return Ok(None);
                    }
                }
                Err(Next::Store | Next::Held) => return Ok(None),
            }
        }
    }

    /// What the store remembers of a range after a revision.
    pub(crate) async fn history(&self, range: &str, after: Rev) -> Result<Watch, Refusal> {
        self.timely(self.store.watch(range.as_bytes(), after)).await
    }

    /// From which revision on a watch of what is fixed misses nothing.
    pub(crate) async fn fixed_since(&self) -> Result<Rev, Refusal> {
        self.fixed.since(|| self.birth()).await
    }

    /// When and as what this store was made: its system namespace says so.
    async fn birth(&self) -> Result<Birth, Refusal> {
        let key = format!("{ROOT}core/namespaces/{}", NAMESPACES[1]);
        let (kv, _) = self.timely(self.store.get(key.as_bytes())).await?;
        let kv = kv.ok_or_else(|| Refusal::unavailable("the server has not made its namespaces yet"))?;
        let object: Value = serde_json::from_slice(&kv.value)
            .map_err(|e| Refusal::internal(format!("the system namespace cannot be read: {e}")))?;
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let rev = self.revision().await?;
        Ok(Birth { rev, uid: text("uid"), time: text("creationTimestamp") })
    }

    /// Writes an object and returns it as stored.
    pub(crate) async fn put(
        &self,
        resource: &Resource,
        key: &str,
        object: &Value,
        expect: Expect,
    ) -> Result<Stored, WriteError> {
        let (json, value) = self.close(resource, key, object);
        let bytes = value.len();
        let start = tokio::time::Instant::now();
        let done = tokio::time::timeout(STORE_DEADLINE, self.store.put(key.as_bytes(), value, expect)).await;
        let written = self.written(resource, done);
        if let Ok(rev) = &written {
            tracing::trace!(target: "life", key, rev = rev.0, bytes, took = ?start.elapsed(), "put");
        }
        written.map(|rev| Stored { rev, json })
    }

    /// Deletes an object that is as last seen.
    pub(crate) async fn delete(
        &self,
        resource: &Resource,
        key: &str,
        seen: Expect,
    ) -> Result<Rev, WriteError> {
        let delete = self.store.delete(key.as_bytes(), seen);
        let done = tokio::time::timeout(STORE_DEADLINE, delete).await;
        tracing::trace!(target: "life", key, "delete");
        self.written(resource, done.map(|done| done.map(|(rev, _)| rev)))
    }

    fn written(
        &self,
        resource: &Resource,
        done: Result<Result<Rev, StoreError>, tokio::time::error::Elapsed>,
    ) -> Result<Rev, WriteError> {
        self.note(&done);
        match done {
            Ok(Ok(rev)) => Ok(rev),
            Ok(Err(StoreError::Conflict { current })) => {
                let current = current.map(|kv| self.open(resource, &kv)).transpose()?;
                Err(WriteError::Conflict(current))
            }
            Ok(Err(error)) => Err(WriteError::Refused(refused(error))),
            Err(_) => Err(WriteError::Refused(in_doubt())),
        }
    }
}

/// 504 without Retry-After: a client must look before it repeats.
fn in_doubt() -> Refusal {
    let message = "the store did not say whether the write was done; read the object before trying again";
    Refusal::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
}

/// A store error as the client sees it.
pub(crate) fn refused(error: StoreError) -> Refusal {
    match error {
        StoreError::Compacted { at } => Refusal::expired(format!(
            "too old resource version: the history up to {at} is compacted; list again"
        )),
        StoreError::Future { current } => Refusal::too_large_version(0, current.0),
        StoreError::Unavailable { outcome: Outcome::Unknown, source } => {
            tracing::warn!(error = &*source as &dyn std::error::Error, "write in doubt");
            in_doubt()
        }
        StoreError::Unavailable { outcome: Outcome::NotDone, source } => {
            // The hub says it once.
            tracing::debug!(error = &*source as &dyn std::error::Error, "store unavailable");
            Refusal::unavailable("the store is unavailable")
        }
        StoreError::Overtaken => {
            let message = "what the write goes by was written since";
            Refusal::new(StatusCode::CONFLICT, "Conflict", message)
        }
        StoreError::Deposed => {
            let message = "another server runs the controllers since; this one no longer does";
            Refusal::new(StatusCode::FORBIDDEN, "Forbidden", message)
        }
        StoreError::TooSlow { .. } => Refusal::unavailable("the watch fell behind"),
        StoreError::TooLarge { size, limit } => Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("the object has {size} bytes, at most {limit} can be stored"),
        ),
        StoreError::Conflict { .. } => Refusal::internal("the store reported a conflict to a read"),
        StoreError::Corrupt { source } => {
            tracing::error!(error = &*source as &dyn std::error::Error, "store corrupt");
            Refusal::internal("the store is corrupt")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::metadata_start;

    #[test]
    fn the_fields_of_metadata_are_found_at_the_top_level_only() {
        for (json, expected) in [
            (r#"{"metadata":{}}"#, Some(13)),
            (r#"{"data":{"metadata":{"x":"1"}},"metadata":{"name":"a"}}"#, Some(43)),
            (r#"{"a":"\"metadata\":{","metadata":{"b":1}}"#, Some(34)),
            (r#"{"spec":{}}"#, None),
        ] {
            assert_eq!(metadata_start(json.as_bytes()), expected, "{json}");
        }
    }
}
