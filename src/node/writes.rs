//! What this daemon writes of the statuses of objects, and what it remembers of that.
use std::sync::PoisonError;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::core::{PartialObjectMeta, Request};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::context::{API_DEADLINE, Node};
use super::hosting::attach::CONTROLLER;
use super::objects::ObjectApi;

/// An answer without spec and status.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// For how long a word waits for another one of the same object, to be written with it.
const MOMENT: Duration = Duration::from_millis(300);

/// One writer's fields of an object's status.
#[derive(Debug)]
pub struct Part {
    /// Tells it from the other parts that this daemon writes of the same object.
    pub name: &'static str,
    /// The top-level fields.
    pub fields: &'static [&'static str],
    /// Where the epoch stands that the writer speaks for, if any. It goes with every write: a late one would pass for another's.
    pub epoch: Option<&'static [&'static str]>,
    /// Which state of the object the word is about.
    pub guard: Guard,
}

/// Which state of an object a word holds for: one that comes late is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Any: it stays true, or an epoch tells that it is late.
    Any,
    /// The one that it was decided on.
    Seen,
    /// The newest that is known here, be it by an answer to a write of ours.
    Newest,
}

/// What one part of a status was last written as.
#[derive(Debug, Clone)]
pub(super) struct Written {
    /// The object's version after it; 0 when it is not known.
    version: u64,
    value: Value,
    at: Instant,
    /// Whether the server said that it has it. It may have it although it did not.
    sure: bool,
}

/// All fields of one part, be it that they are not there.
fn whole(part: &Part, new: &Value) -> Value {
    part.fields.iter().map(|field| ((*field).to_owned(), new[*field].clone())).collect()
}

/// What this daemon had to say of one part of an object.
#[derive(Debug)]
pub(super) struct Said {
    /// As JSON.
    text: Vec<u8>,
    /// The version of the object that said the same: most looks find nothing new.
    settled: Option<u64>,
}

/// One part of a status on its way.
struct Draft {
    key: String,
    new: Value,
    /// What of it is new to the server.
    patch: Value,
}

impl Draft {
    fn is_empty(&self) -> bool {
        self.patch.as_object().is_some_and(serde_json::Map::is_empty)
    }
}

fn key_of<K: Resource>(object: &K, part: &Part) -> String {
    format!("{}/{}", object.meta().uid.as_deref().unwrap_or_default(), part.name)
}

/// Our server's versions are the store's revisions, so that the later of two is known.
fn version<K: Resource>(object: &K) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl Node {
    /// Writes one part of an object's status, if it differs from what was written last or stands there. `part` names
    /// the writer's fields, so that two parts of one object do not disturb one another.
    pub async fn write_status<K>(
        &self,
        object: &K,
        part: &Part,
        status: &impl Serialize,
    ) -> Result<(), kube::Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
        K: ObjectApi,
    {
        self.write_part(object, part, status, false).await.map(drop)
    }

    /// The same for what has to stand at the server before something else is done: it is written whatever is known of what
    /// stands there. Whether the object is there still, and has it by this very write.
    pub async fn assert_status<K>(
        &self,
        object: &K,
        part: &Part,
        status: &impl Serialize,
    ) -> Result<bool, kube::Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
        K: ObjectApi,
    {
        self.write_part(object, part, status, true).await
    }

    /// The same, if it is not known to stand there. `holds` tells it of what the object or the server's last answer says.
    pub async fn ensure_status<K, T>(
        &self,
        object: &K,
        part: &Part,
        (shown, wanted): (&T, &T),
        holds: impl Fn(&T) -> bool,
    ) -> Result<bool, kube::Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
        K: ObjectApi,
        T: Serialize + DeserializeOwned,
    {
        let stands =
            self.answered::<K, T>(object, part).map_or_else(|| holds(shown), |answer| holds(&answer));
        if stands { Ok(true) } else { self.assert_status(object, part, wanted).await }
    }

    /// Writes one part as [`Node::write_status`] does, and with it what is kept back of another one of the object.
    pub async fn write_both<K>(
        &self,
        object: &K,
        (part, status): (&Part, &impl Serialize),
        other: &Part,
    ) -> Result<(), kube::Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
        K: ObjectApi,
    {
        let beside = self.kept_back(object, other)?;
        self.write(object, (part, status), false, beside).await.map(drop)
    }

    /// Says one part of an object's status and does not write it: another part's writer is about to, and takes it along.
    /// How long to wait for that; absent when it is time to write it alone, or nothing is to be written.
    pub fn keep_back<K>(&self, object: &K, part: &Part, status: &impl Serialize) -> Option<Duration>
    where
        K: Resource,
    {
        let text = serde_json::to_vec(status).ok()?;
        let key = key_of(object, part);
        let new: Value = serde_json::from_slice(&text).ok()?;
        let stands = |written: &Written| written.sure && written.value == new;
        if self.written.lock().unwrap_or_else(PoisonError::into_inner).get(&key).is_some_and(stands) {
            return None;
        }
        {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            if said.get(&key).is_none_or(|known| known.text != text) {
                said.insert(key.clone(), Said { text, settled: None });
            }
        }
        self.untold.lock().unwrap_or_else(PoisonError::into_inner).left(&key, Instant::now(), MOMENT)
    }

    /// The same of news that have a moment of their own, whatever was kept back before them.
    pub fn keep_back_anew<K>(&self, object: &K, part: &Part, status: &impl Serialize) -> Option<Duration>
    where
        K: Resource,
    {
        let key = key_of(object, part);
        self.untold.lock().unwrap_or_else(PoisonError::into_inner).settled(&key);
        self.keep_back(object, part, status)
    }

    /// How long one part of an object is kept back yet, if it is.
    fn keeps_back<K: Resource>(&self, object: &K, part: &Part) -> Option<Duration> {
        let untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        untold.waits(&key_of(object, part), Instant::now(), MOMENT)
    }

    /// What has been said of one part of an object, if its time to be written alone has not come yet.
    fn kept_back<K>(&self, object: &K, part: &Part) -> Result<Option<Draft>, kube::Error>
    where
        K: Resource<DynamicType = ()> + ObjectApi,
    {
        if self.keeps_back(object, part).is_none() {
            return Ok(None);
        }
        let key = key_of(object, part);
        let said =
            self.said.lock().unwrap_or_else(PoisonError::into_inner).get(&key).map(|said| said.text.clone());
        let Some(text) = said else { return Ok(None) };
        self.draft(object, part, &text, false).map(|draft| Some(draft).filter(|draft| !draft.is_empty()))
    }

    async fn write_part<K>(
        &self,
        object: &K,
        part: &Part,
        status: &impl Serialize,
        always: bool,
    ) -> Result<bool, kube::Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
        K: ObjectApi,
    {
        self.write(object, (part, status), always, None).await
    }

    async fn write<K>(
        &self,
        object: &K,
        (part, status): (&Part, &impl Serialize),
        always: bool,
        beside: Option<Draft>,
    ) -> Result<bool, kube::Error>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
        K: ObjectApi,
    {
        let text = serde_json::to_vec(status).map_err(kube::Error::SerdeError)?;
        let key = key_of(object, part);
        let mut before = None;
        {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            match said.get(&key) {
                Some(known) if !always && known.text == text && known.settled == Some(version(object)) => {
                    return Ok(false);
                }
                Some(known) if known.text == text => {}
                Some(_) | None => {
                    before = Some(said.insert(key.clone(), Said { text: text.clone(), settled: None }));
                }
            }
        }
        let draft = self.draft(object, part, &text, always)?;
        if draft.is_empty() {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(said) = said.get_mut(&key) {
                said.settled = Some(version(object));
            }
            return Ok(false);
        }
        let known = self.written.lock().unwrap_or_else(PoisonError::into_inner).get(&key).map(|w| w.version);
        let drafts: Vec<_> = [Some(draft), beside].into_iter().flatten().collect();
        let body = body_of(object, part, &drafts, known);
        let api = K::api(self.client.0.clone(), object);
        let (name, patch) = (object.name_any(), Patch::Merge(&body));
        let write = self.patch_status(&api, &name, &patch);
        let (outcome, known) = match tokio::time::timeout(API_DEADLINE, write).await {
            // With that word it has gone, and nobody will ask about it.
            Ok(Ok(object))
                if object.meta().deletion_timestamp.is_some() && object.finalizers().is_empty() =>
            {
                (Ok(true), None)
            }
            Ok(Ok(object)) => (Ok(true), Some((version(&object), true))),
            // Gone: there is nothing to write to any more.
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => (Ok(false), None),
            Ok(Err(error)) => (Err(error), Some((0, false))),
            Err(_) => (Err(kube::Error::Service("no answer in time".into())), Some((0, false))),
        };
        if always
            && matches!(&outcome, Err(kube::Error::Api(status)) if status.code == 409)
            && let Some(before) = before
        {
            self.unsay(&key, before);
        }
        self.remember(drafts, known);
        outcome
    }

    /// What is to be written of one part of an object, for what was said of it.
    fn draft<K>(&self, object: &K, part: &Part, text: &[u8], always: bool) -> Result<Draft, kube::Error>
    where
        K: Resource<DynamicType = ()> + ObjectApi,
    {
        let key = key_of(object, part);
        let new: Value = serde_json::from_slice(text).map_err(kube::Error::SerdeError)?;
        let last = self.written.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        let unsure = last.as_ref().is_some_and(|last| !last.sure);
        let old = match last {
            // The cache does not show our own last write yet.
            Some(last) if version(object) < last.version => last.value,
            // Others may have written our fields since: controllers do when they take this node for lost.
            Some(_) | None => restrict(K::status(object).map_err(kube::Error::SerdeError)?, part.fields),
        };
        let mut patch = if always || unsure { whole(part, &new) } else { merge_diff(&old, &new) };
        if let Some(path) = part.epoch.filter(|_| patch.as_object().is_none_or(|patch| !patch.is_empty())) {
            carry(&mut patch, &new, path);
        }
        Ok(Draft { key, new, patch })
    }

    /// What came of a write: the version after it and whether that is sure, or that the object is gone.
    fn remember(&self, drafts: Vec<Draft>, known: Option<(u64, bool)>) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        for Draft { key, new, .. } in drafts {
            untold.settled(&key);
            match known {
                Some((version, sure)) => {
                    written.insert(key, Written { version, value: new, at: Instant::now(), sure });
                }
                None => drop(written.remove(&key)),
            }
        }
    }

    /// What was to stand before something is done, and is refused for a newer state, was never said: nothing was done.
    fn unsay(&self, key: &str, before: Option<Said>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        match before {
            Some(before) => drop(said.insert(key.to_owned(), before)),
            None => drop(said.remove(key)),
        }
    }

    /// Patches a status. Of the answer only the version is needed, and more is not asked for.
    async fn patch_status<K: Resource>(
        &self,
        api: &Api<K>,
        name: &str,
        patch: &Patch<&Value>,
    ) -> Result<PartialObjectMeta<K>, kube::Error>
    where
        K::DynamicType: Default,
    {
        let request = Request::new(api.resource_url()).patch_subresource(
            "status",
            name,
            &PatchParams::default(),
            patch,
        );
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.headers_mut().insert(http::header::ACCEPT, http::HeaderValue::from_static(METADATA));
        self.client.0.request(request).await
    }

    /// What this daemon last had to say of an object, if anything. A cache lags behind it, and the server may not even
    /// have it; who decided by those would repeat a call that was answered.
    pub fn said<T: DeserializeOwned>(&self, uid: &str, part: &Part) -> Option<T> {
        let key = format!("{uid}/{}", part.name);
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        serde_json::from_slice(&said.get(&key)?.text).ok()
    }

    /// What the server said that one part of an object is, in answer to our own last write, if that is newer than this
    /// state of the object.
    pub fn answered<K: Resource, T: DeserializeOwned>(&self, object: &K, part: &Part) -> Option<T> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let answer =
            written.get(&key_of(object, part)).filter(|written| written.version > version(object))?;
        T::deserialize(&answer.value).ok()
    }

    /// When one part of an object was written last, by this daemon.
    pub fn written_at<K: Resource>(&self, object: &K, part: &Part) -> Option<Instant> {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.get(&key_of(object, part)).filter(|w| w.sure).map(|w| w.at)
    }

    /// Forgets what was written of an object that is gone. What a host said of an attachment stays while its own watch
    /// shows the attachment still: the two watches of a node that is both need not see its end at the same time.
    pub fn forget_written(&self, uid: &str) {
        let prefix = format!("{uid}/");
        let hosted = self.caches.hosted.has(uid).then(|| format!("{prefix}{}", CONTROLLER.name));
        let keep = |key: &String| !key.starts_with(&prefix) || hosted.as_ref() == Some(key);
        self.untold.lock().unwrap_or_else(PoisonError::into_inner).forget_of(&prefix);
        self.written.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| keep(key));
        self.said.lock().unwrap_or_else(PoisonError::into_inner).retain(|key, _| keep(key));
    }

    /// Runs a write to its end and says when to try again if it failed.
    pub fn after_write(&self, step: &str, result: Result<(), kube::Error>) -> Option<Duration> {
        match result {
            Ok(()) => {
                self.retry.succeeded(step);
                None
            }
            Err(error) => {
                let again = self.retry.attempt(step) > 1;
                let delay = self.retry.failed(step, "write".to_owned());
                let said = &error as &dyn std::error::Error;
                match &error {
                    // Somebody wrote it since it was seen: it is looked at once more.
                    kube::Error::Api(status) if status.code == 409 => {
                        tracing::debug!(step, error = said, "status not written");
                    }
                    // Once is enough.
                    _ if again => tracing::debug!(step, error = said, "status not written"),
                    _ => tracing::warn!(step, error = said, "status not written"),
                }
                Some(delay)
            }
        }
    }
}

/// What is sent, all of it in one write, guarded as the first part says; `known` is the version of its last write.
fn body_of<K: Resource>(object: &K, part: &Part, drafts: &[Draft], known: Option<u64>) -> Value {
    let fields = drafts.iter().filter_map(|draft| draft.patch.as_object()).flatten();
    let status: serde_json::Map<_, _> = fields.map(|(field, value)| (field.clone(), value.clone())).collect();
    // Another object may have the name by now.
    let mut body = serde_json::json!({ "metadata": { "uid": object.meta().uid }, "status": status });
    let seen = match part.guard {
        Guard::Any => None,
        Guard::Seen => object.meta().resource_version.clone(),
        Guard::Newest => Some(version(object).max(known.unwrap_or_default()).to_string()),
    };
    if let Some(seen) = seen {
        body["metadata"]["resourceVersion"] = seen.into();
    }
    body
}

/// The merge patch (RFC 7386) that leads from one status to another. A list without entries is none: kinds leave it out.
fn merge_diff(old: &Value, new: &Value) -> Value {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return new.clone() };
    let mut patch = serde_json::Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        match old.get(key) {
            Some(before) if before == value => {}
            None if value.as_array().is_some_and(Vec::is_empty) => {}
            Some(before) if before.is_object() && value.is_object() => {
                let inner = merge_diff(before, value);
                if inner.as_object().is_some_and(|inner| !inner.is_empty()) {
                    patch.insert(key.clone(), inner);
                }
            }
            Some(_) | None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

/// Puts the value at this path into a patch, as it is.
fn carry(patch: &mut Value, new: &Value, path: &[&str]) {
    let value = path.iter().fold(new, |value, key| &value[key]).clone();
    let place = path.iter().fold(patch, |place, key| &mut place[key]);
    *place = value;
}

/// The fields of `seen` that the writer owns: what it no longer says goes, even if a former daemon said it.
fn restrict(seen: Value, fields: &[&str]) -> Value {
    let Value::Object(mut seen) = seen else { return Value::Object(serde_json::Map::new()) };
    seen.retain(|key, _| fields.contains(&key.as_str()));
    Value::Object(seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_merge_diff_applied_gives_the_new_value() {
        let cases = [
            (json!({ "a": 1, "b": { "c": 2, "d": 3 } }), json!({ "b": { "c": 2, "e": [1] } })),
            (json!({}), json!({ "x": { "y": 1 } })),
            (json!({ "x": [1, 2] }), json!({ "x": [2] })),
        ];
        for (old, new) in cases {
            let mut value = old.clone();
            json_patch::merge(&mut value, &merge_diff(&old, &new));
            assert_eq!(value, new);
        }
        let same = [
            (json!({ "a": 1 }), json!({ "a": 1 })),
            (json!({}), json!({ "a": [] })),
            (json!({ "b": { "c": 1 } }), json!({ "b": { "c": 1, "a": [] } })),
        ];
        for (old, new) in same {
            assert_eq!(merge_diff(&old, &new), json!({}));
        }
    }

    #[test]
    fn the_epoch_goes_with_what_is_written() {
        let (old, new) = (
            json!({ "controller": { "attached": "Unknown", "epoch": 3 } }),
            json!({ "controller": { "attached": "Up", "epoch": 3 } }),
        );
        let mut patch = merge_diff(&old, &new);
        carry(&mut patch, &new, &["controller", "epoch"]);
        assert_eq!(patch, new);
        let (old, new) = (json!({ "exists": "Up", "observedEpoch": 3 }), json!({ "observedEpoch": 3 }));
        let mut patch = merge_diff(&old, &new);
        carry(&mut patch, &new, &["observedEpoch"]);
        assert_eq!(patch, json!({ "exists": null, "observedEpoch": 3 }));
    }
}
