//! delete and deletecollection.
//!
//! An object with finalizers is only marked; the write that takes the last finalizer removes it. Who depends
//! on it by owner reference is the concern of the controllers.
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};

use super::admission;
use super::body;
use super::objects::{Stored, WriteError, versioned};
use super::query::{self, Form, Query};
use super::read::{self, json_response, object_response, whole_list};
use super::resource::{Nature, Resource};
use super::route::Target;
use super::status::Refusal;
use super::{Inner, NAMESPACES};
use crate::store::{Expect, Rev};

/// How often a deletion is decided anew when others write the object meanwhile.
const TRIES: usize = 64;

/// What becomes of the dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// `DeleteOptions`, from the body or the query.
struct Options {
    propagation: Propagation,
    uid: Option<String>,
    version: Option<String>,
    dry_run: bool,
    term: Option<Rev>,
}

impl Options {
    fn read(query: &Query, bytes: &[u8]) -> Result<Self, Refusal> {
        let body = if bytes.is_empty() { Value::Null } else { body::json(bytes)? };
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let mut dry_run = query.dry_run;
        for value in body["dryRun"].as_array().into_iter().flatten() {
            dry_run |= query::dry_run(value.as_str().unwrap_or("?"))?;
        }
        let policy = text("/propagationPolicy").or_else(|| query.propagation_policy.clone());
        let propagation = match policy.as_deref() {
            Some("Foreground") => Propagation::Foreground,
            Some("Orphan") => Propagation::Orphan,
            None if body["orphanDependents"] == Value::Bool(true) => Propagation::Orphan,
            Some("Background") | None => Propagation::Background,
            Some(other) => {
                let message = format!("propagationPolicy {other:?} is not Background, Foreground or Orphan");
                return Err(Refusal::bad_request(message));
            }
        };
        let version = text("/preconditions/resourceVersion");
        Ok(Self { propagation, uid: text("/preconditions/uid"), version, dry_run, term: query.term })
    }

    /// What is expected of the store for a write of an object that was last written so.
    fn expect(&self, rev: Rev) -> Expect {
        match self.term {
            Some(term) => Expect::Led { rev: Some(rev), term: Some(term), also: None },
            None => Expect::Rev(rev),
        }
    }

    fn finalizer(&self) -> Option<&'static str> {
        match self.propagation {
            Propagation::Background => None,
            Propagation::Foreground => Some("foregroundDeletion"),
            Propagation::Orphan => Some("orphan"),
        }
    }
}

/// What a deletion did.
enum Deleted {
    Gone,
    Marked(Value),
}

/// Deletes one object.
pub(crate) async fn one(
    inner: &Inner,
    target: &Target,
    (query, form): (&Query, Form),
    bytes: &[u8],
) -> Result<Response, Refusal> {
    let resource = &target.resource;
    let options = Options::read(query, bytes)?;
    let name = target.name.as_deref().unwrap_or_default();
    let key = resource.key(target.namespace.as_deref(), name);
    let found = inner.objects.get(resource, &key).await?;
    let found = found.ok_or_else(|| Refusal::not_found(resource.subject(name)))?;
    let uid = found.value(resource)?["metadata"]["uid"].clone();
    match delete(inner, resource, (&key, name), (found, &options)).await? {
        Deleted::Gone => {
            let mut details = json!({ "name": name, "kind": resource.kind.plural, "uid": uid });
            if !resource.kind.group.is_empty() {
                details["group"] = Value::from(resource.kind.group);
            }
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
            });
            Ok(json_response(StatusCode::OK, status.to_string()))
        }
        Deleted::Marked(object) => {
            let code = match options.propagation {
                Propagation::Background => StatusCode::OK,
                Propagation::Foreground | Propagation::Orphan => StatusCode::ACCEPTED,
            };
            Ok(object_response(inner, resource, object, (code, form, query)))
        }
    }
}

/// Deletes every object that the selectors choose; answers with the list of them as they were.
pub(crate) async fn many(
    inner: &Inner,
    target: &Target,
    query: &Query,
    bytes: &[u8],
) -> Result<Response, Refusal> {
    let resource = &target.resource;
    let options = Options::read(query, bytes)?;
    if options.uid.is_some() || options.version.is_some() {
        return Err(Refusal::bad_request("preconditions are not allowed when a collection is deleted"));
    }
    let listing = read::find(&inner.objects, target, query).await?;
    for stored in &listing.items {
        let object = stored.value(resource)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let key = resource.key(object["metadata"]["namespace"].as_str(), name);
        match delete(inner, resource, (&key, name), (stored.clone(), &options)).await {
            Ok(_) => {}
            Err(refusal) if refusal.code == StatusCode::NOT_FOUND => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let metadata = json!({ "resourceVersion": listing.rev.to_string() });
    Ok(json_response(StatusCode::OK, whole_list(resource, &listing.items, &metadata)?))
}

async fn delete(
    inner: &Inner,
    resource: &Resource,
    (key, name): (&str, &str),
    (mut current, options): (Stored, &Options),
) -> Result<Deleted, Refusal> {
    if resource.nature == Nature::Namespace && NAMESPACES.contains(&name) {
        return Err(Refusal::forbidden(resource.subject(name), "this namespace may not be deleted"));
    }
    let _turn = inner.turns.of(key).await?;
    for _ in 0..TRIES {
        let object = current.value(resource)?;
        check_preconditions(resource, name, options, &object)?;
        let marked = marked(inner, resource, &object, options);
        let done = match marked {
            None => remove(inner, resource, key, (&current, options)).await.map(|()| Deleted::Gone),
            Some(marked) => mark(inner, resource, key, (&current, options, object, marked)).await,
        };
        match done {
            Ok(deleted) => return Ok(deleted),
            Err(WriteError::Conflict(None)) => return Err(Refusal::not_found(resource.subject(name))),
            Err(WriteError::Conflict(Some(newer))) => current = newer,
            Err(WriteError::Refused(refusal)) => return Err(refusal),
        }
    }
    Err(Refusal::stale(resource.subject(name)))
}

fn check_preconditions(
    resource: &Resource,
    name: &str,
    options: &Options,
    object: &Value,
) -> Result<(), Refusal> {
    let pairs = [("UID", &options.uid, "uid"), ("ResourceVersion", &options.version, "resourceVersion")];
    for (word, wanted, field) in pairs {
        let found = object["metadata"][field].as_str().unwrap_or_default();
        if let Some(wanted) = wanted.as_ref().filter(|wanted| *wanted != found) {
            let why = format!(
                "Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {found}"
            );
            return Err(Refusal::conflict(resource.subject(name), &why));
        }
    }
    Ok(())
}

/// The object marked for deletion; none if nothing holds it. An object marked before is left as it is, but for
/// the finalizer of the propagation.
fn marked(inner: &Inner, resource: &Resource, object: &Value, options: &Options) -> Option<Value> {
    let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if let Some(finalizer) = options.finalizer()
        && !finalizers.iter().any(|known| known == finalizer)
    {
        finalizers.push(Value::from(finalizer));
    }
    if finalizers.is_empty() {
        return None;
    }
    let mut marked = object.clone();
    marked["metadata"]["finalizers"] = Value::Array(finalizers);
    admission::begin_end(&mut marked, inner.now());
    if resource.nature == Nature::Namespace {
        (resource.kind.default)(&mut marked);
    }
    Some(marked)
}

async fn remove(
    inner: &Inner,
    resource: &Resource,
    key: &str,
    (current, options): (&Stored, &Options),
) -> Result<(), WriteError> {
    if options.dry_run {
        return Ok(());
    }
    inner.objects.delete(resource, key, options.expect(current.rev)).await.map(|_: Rev| ())
}

async fn mark(
    inner: &Inner,
    resource: &Resource,
    key: &str,
    (current, options, object, mut marked): (&Stored, &Options, Value, Value),
) -> Result<Deleted, WriteError> {
    if object == marked || options.dry_run {
        return Ok(Deleted::Marked(marked));
    }
    if let Some(metadata) = marked["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    let stored = inner.objects.put(resource, key, &marked, options.expect(current.rev)).await?;
    Ok(Deleted::Marked(versioned(marked, stored.rev)))
}
