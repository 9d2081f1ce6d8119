//! Admission: what becomes of an object on its way in. Values in, a value or a refusal out; no I/O, no clock.
//!
//! Order: identity of the object, shape (prune, default), the kind's own defaults, the server's own fields,
//! every fault of schema, metadata and kind in one answer.
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::meta;
use super::path::Path;
use super::query::FieldValidation;
use super::resource::{Nature, Resource};
use super::route::Part;
use super::schema::{self, Unknown};
use super::status::{Refusal, StatusCause};
use crate::api::{FieldError, FieldErrors};

/// An object as a client sent it.
pub(crate) struct Submitted {
    /// The parsed body.
    pub(crate) object: Value,
    /// Paths of keys that stood twice.
    pub(crate) duplicates: Vec<String>,
    /// What to do about fields that we do not know.
    pub(crate) validation: FieldValidation,
}

/// An object that may be stored, and what the client is to be told about it.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// The object.
    pub(crate) object: Value,
    /// Texts of `Warning` headers.
    pub(crate) warnings: Vec<String>,
}

/// What the server itself gives a new object.
pub(crate) struct Stamp {
    /// The present time.
    pub(crate) now: Timestamp,
    /// A fresh uid.
    pub(crate) uid: String,
    /// Random letters for `generateName`.
    pub(crate) suffix: String,
}

/// A new object. What it says of its status counts for nothing.
pub(crate) fn create(
    resource: &Resource,
    namespace: Option<&str>,
    mut submitted: Submitted,
    stamp: &Stamp,
) -> Result<Admitted, Refusal> {
    if resource.kind.has_status
        && let Some(fields) = submitted.object.as_object_mut()
    {
        fields.remove("status");
    }
    create_with_status(resource, namespace, submitted, stamp)
}

/// A new object with the status that it bears, of somebody who may write that.
pub(crate) fn create_with_status(
    resource: &Resource,
    namespace: Option<&str>,
    submitted: Submitted,
    stamp: &Stamp,
) -> Result<Admitted, Refusal> {
    let Submitted { mut object, duplicates, validation } = submitted;
    identify(resource, namespace, None, &mut object)?;
    if !object["metadata"]["resourceVersion"].as_str().unwrap_or_default().is_empty() {
        return Err(Refusal::bad_request("resourceVersion should not be set on objects to be created"));
    }
    stamp_new(resource, &mut object, stamp);
    finish(resource, Part::Main, None, object, (duplicates, validation))
}

/// The next state of an object that exists. `old` carries its resourceVersion, the result carries none.
pub(crate) fn update(
    resource: &Resource,
    part: Part,
    old: &Value,
    submitted: Submitted,
) -> Result<Admitted, Refusal> {
    let Submitted { mut object, duplicates, validation } = submitted;
    let name = old["metadata"]["name"].as_str().unwrap_or_default();
    identify(resource, old["metadata"]["namespace"].as_str(), Some(name), &mut object)?;
    let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
    if !uid.is_empty() && Some(uid) != old["metadata"]["uid"].as_str() {
        let why = "the UID in the request is not that of the object, which was deleted and made again";
        return Err(Refusal::conflict(resource.subject(name), why));
    }
    let object = match part {
        Part::Main => {
            keep(old, &mut object, resource.kind.has_status);
            if old["metadata"].get("deletionTimestamp").is_none()
                && let Some(metadata) = object["metadata"].as_object_mut()
            {
                // Whoever replaces an object from a file leaves out what the file does not have. What goes is another
                // matter: there a person may take it off by force.
                protect(resource, metadata);
            }
            object
        }
        // As it mostly is: a patch of the status was applied to the object as it stands.
        Part::Status if same_but(old, &object, |field| field == "status") => object,
        Part::Status => {
            let mut whole = old.clone();
            replace(&mut whole, "status", object.as_object_mut().and_then(|fields| fields.remove("status")));
            whole
        }
    };
    if part == Part::Status
        && let Some(why) = (resource.kind.late)(&object, old)
    {
        return Err(Refusal::conflict(resource.subject(name), &why));
    }
    finish(resource, part, Some(old), object, (duplicates, validation))
}

/// Checks that the body speaks of the object that the path names, and fills in what the path already says.
pub(crate) fn identify(
    resource: &Resource,
    namespace: Option<&str>,
    name: Option<&str>,
    object: &mut Value,
) -> Result<(), Refusal> {
    let Some(fields) = object.as_object_mut() else {
        return Err(Refusal::bad_request("the body must be one JSON object"));
    };
    for (field, expected) in [("apiVersion", resource.api_version.as_str()), ("kind", resource.kind.kind)] {
        match fields.get(field).and_then(Value::as_str) {
            None | Some("") => {
                fields.insert(field.to_owned(), Value::from(expected));
            }
            Some(given) if given == expected => {}
            Some(given) => {
                return Err(Refusal::bad_request(format!(
                    "the {field} in the data ({given}) does not match the expected {field} ({expected})"
                )));
            }
        }
    }
    let metadata = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Some(metadata) = metadata.as_object_mut() else {
        return Err(Refusal::bad_request("metadata must be an object"));
    };
    for (field, expected) in [("namespace", namespace), ("name", name)] {
        match (metadata.get(field).and_then(Value::as_str).filter(|given| !given.is_empty()), expected) {
            (None, Some(expected)) => {
                metadata.insert(field.to_owned(), Value::from(expected));
            }
            (Some(given), Some(expected)) if given != expected => {
                return Err(Refusal::bad_request(format!(
                    "the {field} of the provided object ({given}) does not match the {field} sent on the request \
                     ({expected})"
                )));
            }
            (Some(_), None) if field == "namespace" => {
                metadata.remove("namespace");
            }
            (Some(_) | None, _) => {}
        }
    }
    Ok(())
}

fn stamp_new(resource: &Resource, object: &mut Value, stamp: &Stamp) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"] {
        metadata.remove(field);
    }
    let text = |metadata: &Map<String, Value>, field: &str| {
        metadata.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let stem = text(metadata, "generateName");
    if text(metadata, "name").is_empty() && !stem.is_empty() {
        let stem: String = stem.chars().take(58).collect();
        metadata.insert("name".to_owned(), Value::from(format!("{stem}{}", stamp.suffix)));
    }
    metadata.insert("uid".to_owned(), Value::from(stamp.uid.clone()));
    metadata.insert("creationTimestamp".to_owned(), Value::from(seconds(stamp.now)));
    metadata.insert("generation".to_owned(), Value::from(1));
    protect(resource, metadata);
}

/// Every living object of a kind that has a finalizer carries it: without it, deletion would not wait.
fn protect(resource: &Resource, metadata: &mut Map<String, Value>) {
    if let Some(own) = resource.kind.finalizer {
        let finalizers = metadata.entry("finalizers").or_insert(Value::Null);
        if finalizers.is_null() {
            *finalizers = Value::Array(Vec::new());
        }
        if let Some(finalizers) = finalizers.as_array_mut()
            && !finalizers.iter().any(|known| known == own)
        {
            finalizers.push(Value::from(own));
        }
    }
}

/// Marks an object that is to go. One that is on its way out stays as it is.
pub(crate) fn begin_end(object: &mut Value, now: Timestamp) {
    if mark(object, now) {
        let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
        object["metadata"]["generation"] = Value::from(generation + 1);
    }
}

/// The same of one whose status says that it is to go; whoever wrote that speaks of this generation, and asks for nothing new.
pub(crate) fn go(resource: &Resource, object: &mut Value, now: Timestamp) {
    if resource.kind.finalizer.is_some() && (resource.kind.goes)(object) {
        mark(object, now);
    }
}

fn mark(object: &mut Value, now: Timestamp) -> bool {
    let stays = object["metadata"].get("deletionTimestamp").is_none();
    if stays {
        object["metadata"]["deletionTimestamp"] = Value::from(seconds(now));
        object["metadata"]["deletionGracePeriodSeconds"] = Value::from(0);
    }
    stays
}

/// An object on its way out whose status says that nothing of it is left loses its kind's finalizer with that word. Whoever waits
/// for something else has a finalizer of his own.
pub(crate) fn end(resource: &Resource, object: &mut Value) {
    let deleting = object["metadata"].get("deletionTimestamp").is_some();
    if let Some(own) = resource.kind.finalizer.filter(|_| deleting && (resource.kind.over)(object))
        && let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut()
    {
        finalizers.retain(|known| known != own);
    }
}

/// A time as Kubernetes writes it in metadata: whole seconds, UTC.
pub(crate) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Takes over from the stored object what a client cannot change.
fn keep(old: &Value, object: &mut Value, has_status: bool) {
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
    ] {
        replace(&mut object["metadata"], field, old["metadata"].get(field).cloned());
    }
    replace(&mut object["metadata"], "selfLink", None);
    if has_status {
        replace(object, "status", old.get("status").cloned());
    }
}

fn replace(object: &mut Value, field: &str, value: Option<Value>) {
    if let Some(fields) = object.as_object_mut() {
        match value {
            Some(value) => fields.insert(field.to_owned(), value),
            None => fields.remove(field),
        };
    }
}

/// Shapes, defaults and checks; the last step of every write.
fn finish(
    resource: &Resource,
    part: Part,
    old: Option<&Value>,
    mut object: Value,
    (duplicates, validation): (Vec<String>, FieldValidation),
) -> Result<Admitted, Refusal> {
    let mut unknown = Vec::new();
    let whole = &resource.rule;
    match (part, whole.property("status")) {
        // The rest is as it was stored.
        (Part::Status, Some(rule)) => {
            if let Some(status) = object.get_mut("status") {
                schema::shape(status, rule, &Path::Root.field("status"), &mut unknown);
            }
        }
        (Part::Main | Part::Status, _) => schema::shape(&mut object, whole, &Path::Root, &mut unknown),
    }
    replace(&mut object["metadata"], "resourceVersion", None);
    if part == Part::Main {
        (resource.kind.default)(&mut object);
        if let Some(old) = old {
            (resource.kind.amend)(old, &mut object);
            raise_generation(resource, old, &mut object);
        }
    }
    let faults = faults(resource, part, old, &object);
    let complaints = complaints(&unknown, &duplicates);
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    match validation {
        FieldValidation::Strict if !complaints.is_empty() => {
            Err(not_strict(resource, &name, (&unknown, &duplicates, &faults)))
        }
        _ if !faults.is_empty() => Err(Refusal::invalid(resource.subject_by_kind(&name), &faults)),
        FieldValidation::Warn => Ok(Admitted { object, warnings: complaints }),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Admitted { object, warnings: Vec::new() }),
    }
}

fn faults(resource: &Resource, part: Part, old: Option<&Value>, object: &Value) -> Vec<FieldError> {
    let mut faults = FieldErrors::new();
    if part == Part::Status {
        // Nothing else is written, and a stored spec that newer rules would refuse must not keep its status from being
        // written. No kind has rules for its status beyond the schema.
        if let (Some(status), Some(rule)) = (object.get("status"), resource.rule.property("status")) {
            schema::check(status, rule, &Path::Root.field("status"), &mut faults);
        }
        return faults.into_vec();
    }
    schema::check(object, &resource.rule, &Path::Root, &mut faults);
    meta::check(&object["metadata"], resource.nature == Nature::Namespace, &mut faults);
    if let Some(old) = old {
        new_finalizers(old, object, &mut faults);
    }
    let own = (resource.kind.validate)(object, old);
    let mut all = schema::merged(faults.into_vec(), own);
    if resource.nature == Nature::Secret {
        // Messages end up in terminals and logs, and these would quote what is secret.
        for fault in all
            .iter_mut()
            .filter(|fault| fault.path.starts_with("data") || fault.path.starts_with("stringData"))
        {
            "Invalid value: must be text, base64 in data (it is not shown here)"
                .clone_into(&mut fault.message);
        }
    }
    if old.is_some_and(|old| old["spec"] == object["spec"]) {
        // Nor must it keep its finalizer from being removed, or its labels from being changed.
        all.retain(|fault| fault.path != "spec" && !fault.path.starts_with("spec."));
    }
    all
}

fn new_finalizers(old: &Value, object: &Value, faults: &mut FieldErrors) {
    if old["metadata"].get("deletionTimestamp").is_none() {
        return;
    }
    let list = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let before = list(old);
    if list(object).iter().any(|finalizer| !before.contains(finalizer)) {
        let message = "Forbidden: no new finalizers can be added if the object is being deleted";
        faults.forbidden("metadata.finalizers", message);
    }
}

/// What there is to say of fields that nobody knows, and of keys that stood twice.
pub(crate) fn complaints(unknown: &[Unknown], duplicates: &[String]) -> Vec<String> {
    let twice = duplicates.iter().map(|path| format!("duplicate field \"{path}\""));
    unknown.iter().map(ToString::to_string).chain(twice).collect()
}

/// 400 for unknown and duplicate fields; every other fault is listed with them, so that one answer tells all.
pub(crate) fn not_strict(
    resource: &Resource,
    name: &str,
    (unknown, duplicates, faults): (&[Unknown], &[String], &[FieldError]),
) -> Refusal {
    let kind = resource.kind.kind;
    let mut message = format!(
        "{kind} in version \"{}\" cannot be handled as a {kind}: strict decoding error: {}",
        resource.kind.version,
        complaints(unknown, duplicates).join(", ")
    );
    if !faults.is_empty() {
        let all: Vec<String> = faults.iter().map(ToString::to_string).collect();
        message.push_str("; and it is invalid: ");
        message.push_str(&all.join(", "));
    }
    let mut refusal = Refusal::bad_request(message).about(resource.subject_by_kind(name));
    let unknown = unknown.iter().map(|field| (field.path.clone(), field.to_string()));
    let twice = duplicates.iter().map(|path| (path.clone(), format!("duplicate field \"{path}\"")));
    let causes = unknown.chain(twice).map(|(field, message)| StatusCause {
        reason: "FieldValueInvalid",
        message,
        field,
    });
    refusal.details.causes = causes.chain(faults.iter().map(StatusCause::from)).collect();
    refusal
}

/// The generation counts changes of what is wanted: everything but metadata and, where it is a part of its
/// own, status.
fn raise_generation(resource: &Resource, old: &Value, object: &mut Value) {
    let own = |name: &str| name == "metadata" || (resource.kind.has_status && name == "status");
    if !same_but(old, object, own) {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        replace(&mut object["metadata"], "generation", Some(Value::from(generation + 1)));
    }
}

/// Whether two objects have the same fields, those aside that are named.
pub(crate) fn same_but(left: &Value, right: &Value, aside: impl Fn(&str) -> bool) -> bool {
    let (Some(left), Some(right)) = (left.as_object(), right.as_object()) else { return left == right };
    let count = |fields: &Map<String, Value>| fields.keys().filter(|name| !aside(name)).count();
    count(left) == count(right)
        && left.iter().all(|(name, value)| aside(name) || right.get(name) == Some(value))
}

/// Whether an object that is being deleted has nothing left to wait for.
pub(crate) fn is_finished(object: &Value) -> bool {
    let metadata = &object["metadata"];
    metadata.get("deletionTimestamp").is_some() && metadata["finalizers"].as_array().is_none_or(Vec::is_empty)
}
