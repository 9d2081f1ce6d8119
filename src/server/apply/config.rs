//! What a client applies, from the bytes of its request to the fields that it wants.
use serde_json::{Map, Value};

use super::walk::keyless;
use crate::server::admission::{self, identify};
use crate::server::body;
use crate::server::path::Path;
use crate::server::query::FieldValidation;
use crate::server::resource::{Nature, Resource};
use crate::server::schema;
use crate::server::status::Refusal;
use crate::server::yaml;

/// The content type of what is applied.
const CONTENT_TYPE: &str = "application/apply-patch+yaml";

/// Whether a body of this type is applied.
pub(crate) fn is_apply(content_type: &str) -> bool {
    content_type.split(';').next().unwrap_or_default().trim() == CONTENT_TYPE
}

/// What a client applies.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// The fields that it wants, without those that no schema knows, and without defaults: it owns what it named.
    pub(crate) object: Value,
    /// Texts of `Warning` headers.
    pub(crate) warnings: Vec<String>,
}

impl Wanted {
    /// Reads a body, JSON or YAML, about the object of this name.
    pub(crate) fn read(
        resource: &Resource,
        (namespace, name): (Option<&str>, &str),
        (bytes, validation): (&[u8], FieldValidation),
    ) -> Result<Self, Refusal> {
        let (mut object, duplicates) = parse(bytes)?;
        check_kind(resource, &object)?;
        if !object["metadata"]["managedFields"].is_null() {
            return Err(Refusal::bad_request("metadata.managedFields must be nil"));
        }
        identify(resource, namespace, Some(name), &mut object)?;
        let mut unknown = Vec::new();
        schema::prune(&mut object, &resource.rule, &Path::Root, &mut unknown);
        if resource.nature == Nature::Secret {
            // Kept in `data`, and so owned there: else it could not be taken back.
            (resource.kind.default)(&mut object);
        }
        if let Some(message) = keyless(&object, Some(&resource.rule), &Path::Root) {
            return Err(Refusal::bad_request(message));
        }
        let warnings = match validation {
            FieldValidation::Ignore => Vec::new(),
            FieldValidation::Warn => admission::complaints(&unknown, &duplicates),
            FieldValidation::Strict if unknown.is_empty() && duplicates.is_empty() => Vec::new(),
            FieldValidation::Strict => {
                return Err(admission::not_strict(resource, name, (&unknown, &duplicates, &[])));
            }
        };
        Ok(Self { object, warnings })
    }

    /// A text of its metadata, empty if it says nothing.
    pub(crate) fn metadata(&self, field: &str) -> &str {
        self.object["metadata"].get(field).and_then(Value::as_str).unwrap_or_default()
    }
}

fn parse(bytes: &[u8]) -> Result<(Value, Vec<String>), Refusal> {
    let is_json = bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    let read = match body::json_with_duplicates(bytes) {
        Ok(read) if is_json => read,
        // It may be YAML in braces.
        Ok(_) | Err(_) => (yaml::read(bytes)?, Vec::new()),
    };
    if read.0.is_object() { Ok(read) } else { Err(Refusal::bad_request("the body must be one object")) }
}

fn check_kind(resource: &Resource, object: &Value) -> Result<(), Refusal> {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    for (field, word, expected) in
        [("apiVersion", "version", resource.api_version.as_str()), ("kind", "kind", resource.kind.kind)]
    {
        if text(field) != expected {
            return Err(Refusal::bad_request(format!(
                "Incorrect {word} specified in apply patch. Specified patch {word}: {}, expected: {expected}",
                text(field)
            )));
        }
    }
    let metadata = object.get("metadata").cloned().unwrap_or_else(|| Value::Object(Map::new()));
    if metadata.is_object() { Ok(()) } else { Err(Refusal::bad_request("metadata must be an object")) }
}
