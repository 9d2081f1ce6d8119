//! create, update and patch.
//!
//! A change is decided on what was read and written only if that still stands; where the client named no
//! resourceVersion, the server reads again and decides again, so that racing writers lose nothing.
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::Value;

use super::Inner;
use super::admission::{self, Admitted, Submitted};
use super::body;
use super::objects::{Stored, WriteError, versioned};
use super::patch::{Patch, PatchType};
use super::query::{Form, Query};
use super::read::{object_response, stored_response};
use super::resource::Resource;
use super::rights;
use super::route::Target;
use super::status::Refusal;
use crate::api::FieldErrors;
use crate::store::Rev;

/// How often a change without a resourceVersion is decided anew, when other servers write too, before the client
/// gets the conflict.
const TRIES: usize = 64;
/// How often a generated name is drawn.
const DRAWS: usize = 8;

/// Makes an object.
pub(crate) async fn create(
    inner: &Inner,
    target: &Target,
    (query, form): (&Query, Form),
    bytes: &[u8],
) -> Result<Response, Refusal> {
    let resource = &target.resource;
    let namespace = target.namespace.as_deref();
    if resource.kind.namespaced && namespace.is_none() {
        return Err(Refusal::bad_request("a namespace is needed in the path"));
    }
    let (object, duplicates) = body::json_with_duplicates(bytes)?;
    let given = object["metadata"]["name"].as_str().is_some_and(|name| !name.is_empty());
    let draws = if given { 1 } else { DRAWS };
    if let Some(namespace) = namespace {
        check_namespace(inner, resource, namespace).await?;
    }
    let mut name = String::new();
    for _ in 0..draws {
        let submitted = Submitted {
            object: object.clone(),
            duplicates: duplicates.clone(),
            validation: query.field_validation,
        };
        let Admitted { object, warnings } =
            admission::create(resource, namespace, submitted, &inner.stamp())?;
        if let Some(node) = &query.node {
            rights::of_change(node, resource, &Value::Null, &object)?;
        }
        object["metadata"]["name"].as_str().unwrap_or_default().clone_into(&mut name);
        let key = resource.key(namespace, &name);
        match make(inner, resource, (&key, query), &object).await {
            Ok(made) => {
                let how = (StatusCode::CREATED, form, query);
                let response = match made {
                    Some(stored) => stored_response(inner, resource, (&stored, object), how)?,
                    None => object_response(inner, resource, object, how),
                };
                return Ok(warned(response, &warnings));
            }
            Err(WriteError::Conflict(_)) => {}
            Err(WriteError::Refused(refusal)) => return Err(refusal),
        }
    }
    Err(Refusal::already_exists(resource.subject(&name)))
}

/// Writes the new object, or, in a dry run, only looks whether it could.
async fn make(
    inner: &Inner,
    resource: &Resource,
    (key, query): (&str, &Query),
    object: &Value,
) -> Result<Option<Stored>, WriteError> {
    if !query.dry_run {
        return inner.objects.put(resource, key, object, query.expect(None)).await.map(Some);
    }
    match inner.objects.get(resource, key).await? {
        Some(there) => Err(WriteError::Conflict(Some(there))),
        None => Ok(None),
    }
}

/// An object can be made only in a namespace that exists and is not going away.
async fn check_namespace(inner: &Inner, resource: &Resource, name: &str) -> Result<(), Refusal> {
    let Some(namespaces) = inner.registry.namespaces() else { return Ok(()) };
    let found = inner.objects.get(namespaces, &namespaces.key(None, name)).await?;
    let found = found.ok_or_else(|| Refusal::not_found(namespaces.subject(name)))?;
    if found.value(namespaces)?["metadata"].get("deletionTimestamp").is_some() {
        let why = format!("unable to create new content in namespace {name} because it is being terminated");
        return Err(Refusal::forbidden(resource.subject(""), &why));
    }
    Ok(())
}

fn warned(mut response: Response, warnings: &[String]) -> Response {
    for warning in warnings.iter().take(32) {
        let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

/// What a client wants to become of an object.
enum Wish {
    Replace { object: Value, duplicates: Vec<String> },
    Patch(Patch),
}

/// Replaces an object.
pub(crate) async fn update(
    inner: &Inner,
    target: &Target,
    (query, form): (&Query, Form),
    bytes: &[u8],
) -> Result<Response, Refusal> {
    let (object, duplicates) = body::json_with_duplicates(bytes)?;
    change(inner, target, (query, form), Wish::Replace { object, duplicates }).await
}

/// Patches an object.
pub(crate) async fn patch(
    inner: &Inner,
    target: &Target,
    (query, form): (&Query, Form),
    (content_type, bytes): (&str, Bytes),
) -> Result<Response, Refusal> {
    let accepted = "application/merge-patch+json, application/json-patch+json";
    let kind = PatchType::of(content_type).ok_or_else(|| {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Refusal::unsupported_media_type(message)
    })?;
    if kind == PatchType::Strategic && target.resource.is_ours() {
        let message = format!(
            "strategic merge is not supported for this kind - accepted media types include: {accepted}"
        );
        return Err(Refusal::unsupported_media_type(message));
    }
    let patch = Patch::read(kind, &bytes)?;
    change(inner, target, (query, form), Wish::Patch(patch)).await
}

async fn change(
    inner: &Inner,
    target: &Target,
    (query, form): (&Query, Form),
    wish: Wish,
) -> Result<Response, Refusal> {
    let resource = &target.resource;
    let name = target.name.as_deref().unwrap_or_default();
    let key = resource.key(target.namespace.as_deref(), name);
    let missing = || Refusal::not_found(resource.subject(name));
    let _turn = inner.turns.of(&key).await?;
    let mut current = inner.objects.get(resource, &key).await?.ok_or_else(missing)?;
    for _ in 0..TRIES {
        let old = current.value(resource)?;
        let (submitted, insists) = submit(resource, &old, &wish, query)?;
        if let Some(node) = &query.node {
            rights::of_object(node, resource, &old)?;
        }
        let admitted = admission::update(resource, target.part, &old, submitted)?;
        if let Some(node) = &query.node {
            rights::of_change(node, resource, &old, &admitted.object)?;
        }
        let done = carry_out(inner, resource, (&key, query), (&current, &old, &admitted.object)).await;
        match done {
            Ok(done) => {
                let how = (StatusCode::OK, form, query);
                let response = match done {
                    Done::Stored(stored) => {
                        stored_response(inner, resource, (&stored, admitted.object), how)?
                    }
                    Done::At(rev) => object_response(inner, resource, versioned(admitted.object, rev), how),
                };
                return Ok(warned(response, &admitted.warnings));
            }
            Err(WriteError::Conflict(None)) => return Err(missing()),
            Err(WriteError::Conflict(Some(_))) if insists => break,
            Err(WriteError::Conflict(Some(newer))) => current = newer,
            Err(WriteError::Refused(refusal)) => return Err(refusal),
        }
    }
    Err(Refusal::stale(resource.subject(name)))
}

/// The object that the wish makes of `old`, and whether the client insists on the revision it knew.
fn submit(
    resource: &Resource,
    old: &Value,
    wish: &Wish,
    query: &Query,
) -> Result<(Submitted, bool), Refusal> {
    let (object, duplicates, names_version) = match wish {
        Wish::Replace { object, duplicates } => (object.clone(), duplicates.clone(), true),
        Wish::Patch(patch) => (patch.apply(old)?, Vec::new(), patch.names_version()),
    };
    let name = old["metadata"]["name"].as_str().unwrap_or_default();
    let given = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    if given.is_empty() && matches!(wish, Wish::Replace { .. }) && needs_version(resource) {
        let mut faults = FieldErrors::new();
        faults.invalid("metadata.resourceVersion", "Invalid value: 0x0: must be specified for an update");
        return Err(Refusal::invalid(resource.subject(name), &faults.into_vec()));
    }
    if !given.is_empty() && Some(given) != old["metadata"]["resourceVersion"].as_str() {
        return Err(Refusal::stale(resource.subject(name)));
    }
    let insists = names_version && !given.is_empty();
    Ok((Submitted { object, duplicates, validation: query.field_validation }, insists))
}

/// Kinds whose PUT is a decision by compare-and-swap: ours, and leases.
fn needs_version(resource: &Resource) -> bool {
    resource.is_ours() || resource.kind.group == "coordination.k8s.io"
}

/// What became of a change.
enum Done {
    /// It was written.
    Stored(Stored),
    /// Nothing was to be written, or the object is gone; the revision that tells so.
    At(Rev),
}

/// Writes what differs; removes an object that nothing holds any longer.
async fn carry_out(
    inner: &Inner,
    resource: &Resource,
    (key, query): (&str, &Query),
    (current, old, new): (&Stored, &Value, &Value),
) -> Result<Done, WriteError> {
    if query.dry_run || is_same(old, new) {
        return Ok(Done::At(current.rev));
    }
    if admission::is_finished(new) {
        return inner.objects.delete(resource, key, query.expect(Some(current.rev))).await.map(Done::At);
    }
    inner.objects.put(resource, key, new, query.expect(Some(current.rev))).await.map(Done::Stored)
}

/// Whether nothing but the resourceVersion tells the two apart.
fn is_same(old: &Value, new: &Value) -> bool {
    admission::same_but(old, new, |field| field == "metadata")
        && admission::same_but(&old["metadata"], &new["metadata"], |field| field == "resourceVersion")
}
