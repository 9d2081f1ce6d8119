//! Refusals as Kubernetes `Status` objects: what clients read code, reason and causes from.
//!
//! Every error that leaves the server is made here; nothing here decides whether to refuse.
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};

use crate::api::FieldError;

/// One entry of `details.causes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatusCause {
    /// The Kubernetes cause word, such as `FieldValueInvalid`.
    pub(crate) reason: &'static str,
    /// What was wrong, without the path.
    pub(crate) message: String,
    /// The path of the field, empty when the cause has none.
    pub(crate) field: String,
}

/// A request that was refused or failed, as the client will read it.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    /// The HTTP code.
    pub(crate) code: StatusCode,
    /// The machine-readable reason, one CamelCase word of Kubernetes.
    pub(crate) reason: &'static str,
    /// One line for a person.
    pub(crate) message: String,
    /// What else there is to say; boxed, as refusals travel in many results.
    pub(crate) details: Box<Details>,
}

/// The details of a refusal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Details {
    /// The object or kind concerned: group, kind and name.
    pub(crate) subject: Option<Subject>,
    /// Each single fault.
    pub(crate) causes: Vec<StatusCause>,
    /// After how many seconds to try again.
    pub(crate) retry_after: Option<u32>,
    /// A token that lets an expired list go on, inconsistently.
    pub(crate) fresh_continue: Option<String>,
}

/// What a refusal speaks of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    /// API group, empty for core.
    pub(crate) group: String,
    /// The plural for most errors, the kind for `Invalid`, as Kubernetes does it.
    pub(crate) kind: String,
    /// The object's name.
    pub(crate) name: String,
}

impl Subject {
    /// A plural as it stands in messages: `volumes.wharfline.dev`, or `secrets` for core.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() { self.kind.clone() } else { format!("{}.{}", self.kind, self.group) }
    }
}

impl Refusal {
    /// A refusal with nothing but code, reason and message.
    pub(crate) fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Box::default() }
    }

    /// 400: the request itself is malformed.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 404 for a path that nothing serves.
    pub(crate) fn no_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", "the server could not find the requested resource")
    }

    /// 404 for an object.
    pub(crate) fn not_found(subject: Subject) -> Self {
        let message = format!("{} \"{}\" not found", subject.qualified(), subject.name);
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(subject)
    }

    /// 409: the name is taken.
    pub(crate) fn already_exists(subject: Subject) -> Self {
        let message = format!("{} \"{}\" already exists", subject.qualified(), subject.name);
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(subject)
    }

    /// 409: the object is not what the writer believed.
    pub(crate) fn conflict(subject: Subject, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} \"{}\": {why}", subject.qualified(), subject.name);
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(subject)
    }

    /// 409: the writer's resourceVersion is stale.
    pub(crate) fn stale(subject: Subject) -> Self {
        Self::conflict(
            subject,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 422 with every fault by its path. `subject.kind` is the kind, not the plural.
    pub(crate) fn invalid(subject: Subject, faults: &[FieldError]) -> Self {
        let all: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let list = if all.len() == 1 { all[0].clone() } else { format!("[{}]", all.join(", ")) };
        let message = format!("{} \"{}\" is invalid: {list}", subject.qualified(), subject.name);
        let mut refusal = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message).about(subject);
        refusal.details.causes = faults.iter().map(StatusCause::from).collect();
        refusal
    }

    /// 403 with the reason in words.
    pub(crate) fn forbidden(subject: Subject, why: &str) -> Self {
        let named = if subject.name.is_empty() { String::new() } else { format!(" \"{}\"", subject.name) };
        let message = format!("{}{named} is forbidden: {why}", subject.qualified());
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).about(subject)
    }

    /// 401: no identity.
    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// 405: the path is right, the verb is not.
    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    /// 415: a body of a type that this path does not take.
    pub(crate) fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// 410: the revision asked for is compacted.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// 504: the revision asked for lies in the future.
    pub(crate) fn too_large_version(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut refusal = Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message);
        refusal.details.causes.push(StatusCause {
            reason: "ResourceVersionTooLarge",
            message: "Too large resource version".to_owned(),
            field: String::new(),
        });
        refusal.details.retry_after = Some(1);
        refusal
    }

    /// 503: try again later.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        let mut refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
        refusal.details.retry_after = Some(1);
        refusal
    }

    /// 429: too much of this at once; to be tried again after so many seconds.
    pub(crate) fn too_many(seconds: u32) -> Self {
        let message = "there are too many requests like this at once; please try again later";
        let mut refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
        refusal.details.retry_after = Some(seconds);
        refusal
    }

    /// 500: a defect or damage on our side.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// Names the object concerned.
    pub(crate) fn about(mut self, subject: Subject) -> Self {
        self.details.subject = Some(subject);
        self
    }

    /// The Status object.
    pub(crate) fn to_value(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.details.fresh_continue {
            metadata.insert("continue".to_owned(), Value::from(token.clone()));
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        let details = self.details();
        if !details.is_empty() {
            status["details"] = Value::Object(details);
        }
        status
    }

    fn details(&self) -> Map<String, Value> {
        let mut details = Map::new();
        if let Some(subject) = &self.details.subject {
            let parts = [("name", &subject.name), ("group", &subject.group), ("kind", &subject.kind)];
            for (key, text) in parts.into_iter().filter(|(_, text)| !text.is_empty()) {
                details.insert(key.to_owned(), Value::from(text.clone()));
            }
        }
        if !self.details.causes.is_empty() {
            let causes = self.details.causes.iter().map(StatusCause::to_value).collect();
            details.insert("causes".to_owned(), Value::Array(causes));
        }
        if let Some(seconds) = self.details.retry_after {
            details.insert("retryAfterSeconds".to_owned(), Value::from(seconds));
        }
        details
    }
}

impl StatusCause {
    fn to_value(&self) -> Value {
        let mut cause = json!({ "reason": self.reason, "message": self.message });
        if !self.field.is_empty() {
            cause["field"] = Value::from(self.field.clone());
        }
        cause
    }
}

impl From<&FieldError> for StatusCause {
    fn from(fault: &FieldError) -> Self {
        Self { reason: fault.cause.as_str(), message: fault.message.clone(), field: fault.path.clone() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_value().to_string()));
        *response.status_mut() = self.code;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.details.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
