//! create, update, patch and apply.
//!
//! A change is decided on what was read and written only if that still stands; where the client named no
//! resourceVersion, the server reads again and decides again, so that racing writers lose nothing.
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value};

use super::Inner;
use super::admission::{self, Admitted, Submitted};
use super::apply::{self, Config, Ground, Wanted, Writer};
use super::body;
use super::objects::{Stored, WriteError, versioned};
use super::patch::{Patch, PatchType};
use super::query::{Form, Query};
use super::read::{object_response, stored_response};
use super::resource::Resource;
use super::rights;
use super::route::{Part, Target};
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
    query.check_write("CreateOptions", false)?;
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
        let admit = if query.with_status { admission::create_with_status } else { admission::create };
        let stamp = inner.stamp();
        let uid = query.uid.clone().unwrap_or(stamp.uid);
        let stamp = admission::Stamp { uid, ..stamp };
        let Admitted { mut object, warnings } = admit(resource, namespace, submitted, &stamp)?;
        check_reserved(resource, query, &object)?;
        if let Some(node) = &query.node {
            rights::of_change(node, resource, &Value::Null, &object)?;
        }
        let ground = Ground::of(resource, target.part);
        apply::track(&ground, (None, &mut object), writer(query), inner.now());
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
    Apply(Wanted),
}

impl Wish {
    /// Whether the client named the revision that it knew, so that a conflict must go back to it.
    fn names_version(&self) -> bool {
        match self {
            Self::Replace { object, .. } => {
                object["metadata"]["resourceVersion"].as_str().is_some_and(|given| !given.is_empty())
            }
            Self::Patch(patch) => patch.names_version(),
            Self::Apply(wanted) => !wanted.metadata("resourceVersion").is_empty(),
        }
    }

    /// What the client is to be told of what it sent.
    fn warnings(&self) -> &[String] {
        match self {
            Self::Replace { .. } | Self::Patch(_) => &[],
            Self::Apply(wanted) => &wanted.warnings,
        }
    }
}

/// Replaces an object.
pub(crate) async fn update(
    inner: &Inner,
    target: &Target,
    (query, form): (&Query, Form),
    bytes: &[u8],
) -> Result<Response, Refusal> {
    query.check_write("UpdateOptions", false)?;
    let (object, duplicates) = body::json_with_duplicates(bytes)?;
    change(inner, target, (query, form), Wish::Replace { object, duplicates }).await
}

/// Patches an object, or applies to it.
pub(crate) async fn patch(
    inner: &Inner,
    target: &Target,
    (query, form): (&Query, Form),
    (content_type, bytes): (&str, Bytes),
) -> Result<Response, Refusal> {
    let applies = apply::is_apply(content_type);
    query.check_write("PatchOptions", applies)?;
    let wish = if applies {
        let place = (target.namespace.as_deref(), target.name.as_deref().unwrap_or_default());
        Wish::Apply(Wanted::read(&target.resource, place, (&bytes, query.field_validation))?)
    } else {
        Wish::Patch(Patch::read(patch_type(&target.resource, content_type)?, &bytes)?)
    };
    change(inner, target, (query, form), wish).await
}

fn patch_type(resource: &Resource, content_type: &str) -> Result<PatchType, Refusal> {
    let refused = |why: &str| {
        let accepted =
            "application/merge-patch+json, application/json-patch+json, application/apply-patch+yaml";
        Refusal::unsupported_media_type(format!("{why} - accepted media types include: {accepted}"))
    };
    match PatchType::of(content_type) {
        None => Err(refused("the body of the request was in an unknown format")),
        Some(PatchType::Strategic) if resource.is_ours() => {
            Err(refused("strategic merge is not supported for this kind"))
        }
        Some(kind) => Ok(kind),
    }
}

async fn change(
    inner: &Inner,
    target: &Target,
    asked: (&Query, Form),
    wish: Wish,
) -> Result<Response, Refusal> {
    let resource = &target.resource;
    let name = target.name.as_deref().unwrap_or_default();
    let key = resource.key(target.namespace.as_deref(), name);
    let _turn = inner.turns.of(&key).await?;
    let mut current = match guessed(inner, target, asked, (&key, &wish)).await {
        Ok(Some(response)) => return Ok(response),
        Err(WriteError::Conflict(Some(_))) if wish.names_version() => {
            return Err(Refusal::stale(resource.subject(name)));
        }
        Err(WriteError::Conflict(newer)) => newer,
        // With what is there by now it may not be too large.
        Err(WriteError::Refused(refusal)) if refusal.code != StatusCode::PAYLOAD_TOO_LARGE => {
            return Err(refusal);
        }
        Ok(None) | Err(WriteError::Refused(_)) => inner.objects.get(resource, &key).await?,
    };
    for _ in 0..TRIES {
        let done = match (&current, &wish) {
            (Some(current), wish) => once(inner, target, asked, (&key, current, wish)).await,
            (None, Wish::Apply(wanted)) if target.part == Part::Main => {
                make_applied(inner, target, asked, (&key, wanted)).await
            }
            (None, Wish::Replace { .. } | Wish::Patch(_) | Wish::Apply(_)) => {
                return Err(Refusal::not_found(resource.subject(name)));
            }
        };
        match done {
            Ok(response) => return Ok(response),
            Err(WriteError::Conflict(Some(_))) if wish.names_version() => break,
            Err(WriteError::Conflict(newer)) => current = newer,
            Err(WriteError::Refused(refusal)) => return Err(refusal),
        }
    }
    Err(Refusal::stale(resource.subject(name)))
}

/// Decides from what the watch of the store showed last, without reading: mostly that still stands, and then the write
/// says so. Nothing is refused, or found to be so already, on what may be old; none then, and nothing was done.
async fn guessed(
    inner: &Inner,
    target: &Target,
    asked: (&Query, Form),
    (key, wish): (&str, &Wish),
) -> Result<Option<Response>, WriteError> {
    let resource = &target.resource;
    let last =
        inner.hub.newest(resource.lane, key).filter(|_| inner.hub.follows() && inner.objects.answers());
    let Some(seen) = last.as_ref().and_then(|change| change.new.as_ref()) else { return Ok(None) };
    let Ok(current) = seen.stored(&inner.objects, resource) else { return Ok(None) };
    match decide(inner, target, asked, (&current, wish)) {
        Ok(decided) if !asked.0.dry_run && !is_same(&decided.old, &decided.admitted.object) => {
            finish(inner, target, asked, (key, &current, wish), decided).await.map(Some)
        }
        Ok(_) | Err(_) => Ok(None),
    }
}

/// What is to become of an object.
struct Decided {
    old: Value,
    admitted: Admitted,
}

/// Decides what becomes of an object as it was read, and writes that if it still stands.
async fn once(
    inner: &Inner,
    target: &Target,
    asked: (&Query, Form),
    (key, current, wish): (&str, &Stored, &Wish),
) -> Result<Response, WriteError> {
    let decided = decide(inner, target, asked, (current, wish))?;
    finish(inner, target, asked, (key, current, wish), decided).await
}

fn decide(
    inner: &Inner,
    target: &Target,
    (query, _): (&Query, Form),
    (current, wish): (&Stored, &Wish),
) -> Result<Decided, Refusal> {
    let resource = &target.resource;
    let ground = Ground::of(resource, target.part);
    let old = current.value(resource)?;
    let (object, applied) = match wish {
        Wish::Replace { object, .. } => (object.clone(), None),
        Wish::Patch(patch) => (patch.apply(&old)?, None),
        Wish::Apply(wanted) => {
            let mut applied = apply::apply(&ground, &old, &config(query, wanted), inner.now())?;
            (std::mem::take(&mut applied.object), Some(applied))
        }
    };
    check_version(resource, &old, &object, wish)?;
    if let Some(node) = &query.node {
        rights::of_object(node, resource, &old)?;
    }
    let duplicates = match wish {
        Wish::Replace { duplicates, .. } => duplicates.clone(),
        Wish::Patch(_) | Wish::Apply(_) => Vec::new(),
    };
    let submitted = Submitted { object, duplicates, validation: query.field_validation };
    let mut admitted = admission::update(resource, target.part, &old, submitted)?;
    if let Some(node) = &query.node {
        rights::of_change(node, resource, &old, &admitted.object)?;
    }
    if target.part == Part::Status {
        if query.with_end {
            admission::begin_end(&mut admitted.object, inner.now());
        }
        admission::go(resource, &mut admitted.object, inner.now());
        admission::end(resource, &mut admitted.object);
    }
    match applied {
        Some(applied) => apply::settle(&ground, &old, &mut admitted.object, (applied, inner.now())),
        None => apply::track(&ground, (Some(&old), &mut admitted.object), writer(query), inner.now()),
    }
    Ok(Decided { old, admitted })
}

/// Writes what was decided, if what it was decided on still stands.
async fn finish(
    inner: &Inner,
    target: &Target,
    (query, form): (&Query, Form),
    (key, current, wish): (&str, &Stored, &Wish),
    Decided { old, admitted }: Decided,
) -> Result<Response, WriteError> {
    let resource = &target.resource;
    let done = carry_out(inner, resource, (key, query), (current, &old, &admitted.object)).await?;
    let how = (StatusCode::OK, form, query);
    let response = match done {
        Done::Stored(stored) => stored_response(inner, resource, (&stored, admitted.object), how)?,
        Done::At(rev) => object_response(inner, resource, versioned(admitted.object, rev), how),
    };
    Ok(warned(warned(response, wish.warnings()), &admitted.warnings))
}

/// Makes the object that was applied to and is not there.
async fn make_applied(
    inner: &Inner,
    target: &Target,
    (query, form): (&Query, Form),
    (key, wanted): (&str, &Wanted),
) -> Result<Response, WriteError> {
    let (resource, namespace) = (&target.resource, target.namespace.as_deref());
    if let Some(barred) = &query.barred {
        return Err(barred.clone().into());
    }
    let (name, uid) = (wanted.metadata("name"), wanted.metadata("uid"));
    if !uid.is_empty() {
        let why = format!("the object with uid {uid} that it is to be applied to is not there");
        return Err(Refusal::conflict(resource.subject(name), &why).into());
    }
    if let Some(namespace) = namespace {
        check_namespace(inner, resource, namespace).await?;
    }
    let (ground, nothing) = (Ground::of(resource, target.part), Value::Object(Map::new()));
    let mut applied = apply::apply(&ground, &nothing, &config(query, wanted), inner.now())?;
    let object = std::mem::take(&mut applied.object);
    let submitted = Submitted { object, duplicates: Vec::new(), validation: query.field_validation };
    let mut admitted = admission::create(resource, namespace, submitted, &inner.stamp())?;
    check_reserved(resource, query, &admitted.object)?;
    if let Some(node) = &query.node {
        rights::of_change(node, resource, &Value::Null, &admitted.object)?;
    }
    apply::settle(&ground, &nothing, &mut admitted.object, (applied, inner.now()));
    let how = (StatusCode::CREATED, form, query);
    let response = match make(inner, resource, (key, query), &admitted.object).await? {
        Some(stored) => stored_response(inner, resource, (&stored, admitted.object), how)?,
        None => object_response(inner, resource, admitted.object, how),
    };
    Ok(warned(response, &wanted.warnings))
}

/// Whether the one who asks may set all that is set.
fn check_reserved(resource: &Resource, query: &Query, object: &Value) -> Result<(), Refusal> {
    let Some((user, field)) = query.confined.as_ref().zip((resource.kind.reserved)(object)) else {
        return Ok(());
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let why = format!(
        "{field} names what may belong to anybody, and User \"{user}\" may not do everything; have an administrator make it"
    );
    Err(Refusal::forbidden(resource.subject(name), &why))
}

fn config<'a>(query: &'a Query, wanted: &'a Wanted) -> Config<'a> {
    Config {
        object: &wanted.object,
        manager: query.field_manager.as_deref().unwrap_or_default(),
        force: query.force.unwrap_or_default(),
    }
}

fn writer(query: &Query) -> Writer<'_> {
    query.writer.as_deref().map_or(Writer::Ours, Writer::Manager)
}

/// Refuses a revision that is not that of the object, and a replacement that names none where one is needed.
fn check_version(resource: &Resource, old: &Value, object: &Value, wish: &Wish) -> Result<(), Refusal> {
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
    Ok(())
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
