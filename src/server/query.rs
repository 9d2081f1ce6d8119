//! What a request asks for beside its path: query parameters and the form of the answer.
use std::sync::Arc;

use axum::extract::Query as Pairs;
use http::{HeaderMap, Uri, header};

use super::access::{CONTROLLERS, Identity, NODES};
use super::status::{Refusal, Subject};
use crate::api::FieldErrors;
use crate::api::field::Cause;
use crate::store::{Expect, Rev, Unwritten};

/// The longest name of a manager of fields.
const MAX_MANAGER: usize = 128;

/// How unknown and duplicate fields are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FieldValidation {
    /// Refused.
    Strict,
    /// Dropped with a warning header.
    #[default]
    Warn,
    /// Dropped.
    Ignore,
}

/// Which revision a read wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// The newest, or any that the server has: the same here, as every read goes to the store.
    Newest,
    /// At least this one.
    NotOlderThan(u64),
    /// This one.
    Exact(u64),
}

/// The query parameters that we know; unknown ones are ignored, as in Kubernetes.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is one flag of the wire")]
pub(crate) struct Query {
    pub(crate) label_selector: Option<String>,
    pub(crate) field_selector: Option<String>,
    pub(crate) limit: Option<usize>,
    pub(crate) continue_token: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) version_match: Option<String>,
    pub(crate) watch: bool,
    pub(crate) bookmarks: bool,
    pub(crate) send_initial_events: Option<bool>,
    pub(crate) timeout_seconds: Option<u64>,
    pub(crate) dry_run: bool,
    pub(crate) field_validation: FieldValidation,
    pub(crate) include_object: Option<String>,
    pub(crate) propagation_policy: Option<String>,
    /// For which object a node asks for a Secret, as `volumes/NAME`; our own.
    pub(crate) asked_for: Option<String>,
    /// The name under which the client manages fields.
    pub(crate) field_manager: Option<String>,
    /// Whether an apply takes what others have.
    pub(crate) force: Option<bool>,
    /// The node that asks, if one does; not of the query.
    pub(crate) node: Option<String>,
    /// Who asks, if that is a person who may not do everything; not of the query.
    pub(crate) confined: Option<String>,
    /// The term of the leader that asks, if one does; not of the query.
    pub(crate) term: Option<Rev>,
    /// What else the leader's write goes by; not of the query either.
    pub(crate) also: Option<Arc<Unwritten>>,
    /// Whether what is made keeps the status that it bears.
    pub(crate) with_status: bool,
    /// The uid of what is made, if that was chosen.
    pub(crate) uid: Option<String>,
    /// Whether the end of the object is asked for with its status.
    pub(crate) with_end: bool,
    /// The manager of what is written, but for what is applied; none for our own. Not of the query.
    pub(crate) writer: Option<String>,
    /// Why the client may not make what it applies to, if it may not; not of the query.
    pub(crate) barred: Option<Refusal>,
}

impl Query {
    /// What is expected of the store for a write of an object that was last written so, or that is not there.
    pub(crate) fn expect(&self, rev: Option<Rev>) -> Expect {
        if self.term.is_some() || self.also.is_some() {
            return Expect::Led { rev, term: self.term, also: self.also.clone() };
        }
        rev.map_or(Expect::Absent, Expect::Rev)
    }

    /// Reads the query of a request.
    pub(crate) fn parse(uri: &Uri) -> Result<Self, Refusal> {
        let pairs = Pairs::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|e| Refusal::bad_request(format!("the query cannot be read: {e}")))?;
        let mut query = Self::default();
        for (name, value) in pairs.0 {
            query.set(&name, value)?;
        }
        Ok(query)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), Refusal> {
        let some = |value: String| (!value.is_empty()).then_some(value);
        match name {
            "labelSelector" => self.label_selector = some(value),
            "fieldSelector" => self.field_selector = some(value),
            "limit" => self.limit = number(name, &value)?.filter(|limit| *limit > 0).map(clamped),
            "continue" => self.continue_token = some(value),
            "resourceVersion" => self.resource_version = some(value),
            "resourceVersionMatch" => self.version_match = some(value),
            "watch" => self.watch = flag(name, &value)?,
            "allowWatchBookmarks" => self.bookmarks = flag(name, &value)?,
            "sendInitialEvents" => self.send_initial_events = Some(flag(name, &value)?),
            "timeoutSeconds" => self.timeout_seconds = number(name, &value)?.filter(|seconds| *seconds > 0),
            "dryRun" => self.dry_run = dry_run(&value)? || self.dry_run,
            "fieldValidation" => self.field_validation = field_validation(&value)?,
            "includeObject" => self.include_object = some(value),
            "propagationPolicy" => self.propagation_policy = some(value),
            "for" => self.asked_for = some(value),
            "fieldManager" => self.field_manager = some(value),
            "force" => self.force = Some(flag(name, &value)?),
            _ => {}
        }
        Ok(())
    }

    /// Names the manager of what is written: as the client says, else by its program. Our own controllers and nodes have
    /// their parts of an object by right, and no entry.
    pub(crate) fn name_writer(&mut self, identity: &Identity, headers: &HeaderMap) {
        if identity.is_in(CONTROLLERS) || identity.is_in(NODES) {
            return;
        }
        let program = || {
            let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
            let name = agent.unwrap_or_default().split('/').next().unwrap_or_default();
            let name: String = name.chars().filter(|letter| !letter.is_control()).take(MAX_MANAGER).collect();
            if name.is_empty() { "unknown".to_owned() } else { name }
        };
        self.writer = Some(self.field_manager.clone().unwrap_or_else(program));
    }

    /// Checks what only writes take; `kind` is the word of Kubernetes for their options.
    pub(crate) fn check_write(&self, kind: &str, applies: bool) -> Result<(), Refusal> {
        let mut faults = FieldErrors::new();
        match self.field_manager.as_deref() {
            None if applies => faults.required("fieldManager", "Required value: is required for apply patch"),
            Some(name) if name.chars().count() > MAX_MANAGER => {
                let message = format!("Too long: may not be more than {MAX_MANAGER} characters");
                faults.add("fieldManager", Cause::TooLong, message);
            }
            Some(name) if name.chars().any(char::is_control) => {
                faults.invalid("fieldManager", "Invalid value: must consist of printable characters");
            }
            Some(_) | None => {}
        }
        if self.force.is_some() && !applies {
            faults.forbidden("force", "Forbidden: may not be specified for non-apply patch");
        }
        let faults = faults.into_vec();
        if faults.is_empty() {
            return Ok(());
        }
        let subject = Subject { group: "meta.k8s.io".to_owned(), kind: kind.to_owned(), name: String::new() };
        Err(Refusal::invalid(subject, &faults))
    }

    /// The revision as a number; unset and `0` are none.
    pub(crate) fn version_number(&self) -> Result<Option<u64>, Refusal> {
        match self.resource_version.as_deref() {
            None | Some("0") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                Refusal::bad_request(format!(
                    "invalid resourceVersion {text:?}: it is not one of this server's"
                ))
            }),
        }
    }

    /// What a list asks for.
    pub(crate) fn list_version(&self) -> Result<Version, Refusal> {
        self.check_list()?;
        let number = self.version_number()?;
        match (self.version_match.as_deref(), number) {
            (Some("Exact"), Some(number)) => Ok(Version::Exact(number)),
            (None, Some(number)) if self.limit.is_some() => Ok(Version::Exact(number)),
            (_, Some(number)) => Ok(Version::NotOlderThan(number)),
            (_, None) => Ok(Version::Newest),
        }
    }

    /// Refuses the combinations of options that mean nothing to a list.
    fn check_list(&self) -> Result<(), Refusal> {
        let mut faults = FieldErrors::new();
        let at = "resourceVersionMatch";
        if let Some(wanted) = self.version_match.as_deref() {
            if self.resource_version.is_none() {
                faults.forbidden(
                    at,
                    "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
                );
            }
            if self.continue_token.is_some() {
                faults
                    .forbidden(at, "Forbidden: resourceVersionMatch is forbidden when continue is provided");
            }
            if !matches!(wanted, "Exact" | "NotOlderThan") {
                let message = format!(
                    "Unsupported value: {wanted:?}: supported values: \"Exact\", \"NotOlderThan\", \"\""
                );
                faults.add(at, Cause::NotSupported, message);
            }
            if wanted == "Exact" && self.resource_version.as_deref() == Some("0") {
                faults.forbidden(
                    at,
                    "Forbidden: resourceVersionMatch \"Exact\" is forbidden for resourceVersion \"0\"",
                );
            }
        }
        if self.send_initial_events.is_some() {
            faults.forbidden("sendInitialEvents", "Forbidden: sendInitialEvents is forbidden for list");
        }
        refused_options(faults)
    }
}

/// Options of a list or a watch that contradict each other, as one refusal.
pub(crate) fn refused_options(faults: FieldErrors) -> Result<(), Refusal> {
    if faults.is_empty() {
        return Ok(());
    }
    let subject =
        Subject { group: "meta.k8s.io".to_owned(), kind: "ListOptions".to_owned(), name: String::new() };
    Err(Refusal::invalid(subject, &faults.into_vec()))
}

/// One `dryRun` value.
pub(crate) fn dry_run(value: &str) -> Result<bool, Refusal> {
    match value {
        "" => Ok(false),
        "All" => Ok(true),
        other => Err(Refusal::bad_request(format!("dryRun {other:?} is not supported; supported: \"All\""))),
    }
}

fn field_validation(value: &str) -> Result<FieldValidation, Refusal> {
    match value {
        "Strict" => Ok(FieldValidation::Strict),
        "Warn" | "" => Ok(FieldValidation::Warn),
        "Ignore" => Ok(FieldValidation::Ignore),
        other => Err(Refusal::bad_request(format!(
            "fieldValidation {other:?} is not supported; supported: \"Ignore\", \"Strict\", \"Warn\""
        ))),
    }
}

fn flag(name: &str, value: &str) -> Result<bool, Refusal> {
    match value {
        "true" | "1" | "True" | "" => Ok(true),
        "false" | "0" | "False" => Ok(false),
        other => Err(Refusal::bad_request(format!("{name}: {other:?} is neither true nor false"))),
    }
}

fn number(name: &str, value: &str) -> Result<Option<u64>, Refusal> {
    if value.is_empty() {
        return Ok(None);
    }
    value.parse().map(Some).map_err(|_| Refusal::bad_request(format!("{name}: {value:?} is not a number")))
}

fn clamped(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Objects as they are.
    Whole,
    /// `meta.k8s.io/v1` Table.
    Table,
    /// `meta.k8s.io/v1` PartialObjectMetadata.
    Metadata,
}

/// The first form of the Accept header that we can give.
pub(crate) fn accepted(headers: &HeaderMap) -> Result<Form, Refusal> {
    let mut offers =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
    if offers.peek().is_none() {
        return Ok(Form::Whole);
    }
    let mut parts = offers.flat_map(|offer| offer.split(','));
    parts.find_map(form).ok_or_else(|| {
        let message =
            "only application/json is served, as whole objects, as Table or as PartialObjectMetadata";
        Refusal::new(http::StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    })
}

fn form(offer: &str) -> Option<Form> {
    let mut words = offer.split(';').map(str::trim);
    if !matches!(words.next()?, "application/json" | "application/*" | "*/*") {
        return None;
    }
    let mut found = Form::Whole;
    for (name, value) in words.filter_map(|word| word.split_once('=')) {
        match (name, value) {
            ("as", "Table") => found = Form::Table,
            ("as", "PartialObjectMetadata" | "PartialObjectMetadataList") => found = Form::Metadata,
            ("v", "v1") | ("g", "meta.k8s.io") => {}
            ("as" | "v" | "g", _) => return None,
            _ => {}
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, header};

    use super::{Form, Query, Version, accepted};

    fn query(text: &str) -> Query {
        Query::parse(&format!("/x?{text}").parse().unwrap()).unwrap()
    }

    #[test]
    fn versions_of_lists_follow_the_kubernetes_table() {
        for (text, expected) in [
            ("", Some(Version::Newest)),
            ("resourceVersion=0", Some(Version::Newest)),
            ("resourceVersion=7", Some(Version::NotOlderThan(7))),
            ("resourceVersion=7&limit=5", Some(Version::Exact(7))),
            ("resourceVersion=7&resourceVersionMatch=Exact", Some(Version::Exact(7))),
            ("resourceVersion=7&limit=5&resourceVersionMatch=NotOlderThan", Some(Version::NotOlderThan(7))),
            ("resourceVersionMatch=NotOlderThan", None),
            ("resourceVersion=0&resourceVersionMatch=Exact", None),
            ("resourceVersion=7&resourceVersionMatch=Older", None),
            ("resourceVersion=x", None),
        ] {
            assert_eq!(query(text).list_version().ok(), expected, "{text}");
        }
    }

    #[test]
    fn the_first_form_that_we_know_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        for (accept, expected) in [
            ("application/json", Some(Form::Whole)),
            ("*/*", Some(Form::Whole)),
            ("application/vnd.kubernetes.protobuf, application/json", Some(Form::Whole)),
            (table, Some(Form::Table)),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", Some(Form::Whole)),
            ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", Some(Form::Metadata)),
            ("application/yaml", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
            assert_eq!(accepted(&headers).ok(), expected, "{accept}");
        }
        assert_eq!(accepted(&HeaderMap::new()).unwrap(), Form::Whole);
    }

    #[test]
    fn bad_parameters_are_refused() {
        for bad in ["limit=x", "watch=maybe", "dryRun=Some", "fieldValidation=Lax", "timeoutSeconds=-1"] {
            assert!(Query::parse(&format!("/x?{bad}").parse().unwrap()).is_err(), "{bad}");
        }
    }
}
