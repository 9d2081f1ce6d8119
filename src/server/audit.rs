//! The audit log: who changed what, and who was refused.
//!
//! One JSON line per request in the shape of audit.k8s.io/v1 at level Metadata: never a body, so never a secret. Noted is
//! every write of a person, a node or a program, and every refusal for lack of rights or for excess; not what the server's
//! own parts write, nor the renewals of leases. The line is handed over without waiting: a full disk stops no one.
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use http::request::Parts;
use http::{Method, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::access::{Identity, Verb};
use super::route::{Part, Route, Target};
use super::status::Refusal;

/// The longest address, agent or message that is copied into a line.
const LONGEST: usize = 512;

/// Takes a line, without its end, and never waits.
pub type AuditSink = Arc<dyn Fn(String) + Send + Sync>;

/// How many lines a second those get who show nothing, so that they cannot flood the log.
const STRANGERS: u32 = 20;

/// Counts the lines of those who show nothing.
#[derive(Default)]
pub(super) struct Strangers(Mutex<(i64, u32)>);

impl Strangers {
    /// Whether one more is noted in this second.
    pub(super) fn may_be_noted(&self, now: Timestamp) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 != now.as_second() {
            *state = (now.as_second(), 0);
        }
        state.1 += 1;
        if state.1 == STRANGERS + 1 {
            tracing::warn!("many requests without credentials; the audit log has the first of each second");
        }
        state.1 <= STRANGERS
    }
}

/// What is known of a request when it comes in.
pub(super) struct Asked {
    method: Method,
    uri: String,
    agent: String,
    peer: Option<SocketAddr>,
    received: Timestamp,
    verb: String,
    target: Option<Target>,
    /// Whether everything is asked for.
    reads_all: bool,
}

/// How it ended.
pub(super) enum Ended<'a> {
    Answered(StatusCode),
    Refused(&'a Refusal),
}

impl Ended<'_> {
    fn code(&self) -> StatusCode {
        match self {
            Self::Answered(code) => *code,
            Self::Refused(refusal) => refusal.code,
        }
    }
}

impl Asked {
    /// Notes a request.
    pub(super) fn of(parts: &Parts, route: &Route, received: Timestamp) -> Self {
        let agent = parts.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let target = if let Route::Object(target) = route { Some(target.clone()) } else { None };
        let named = target.as_ref().is_some_and(|target| target.name.is_some());
        let watch = parts.uri.query().is_some_and(|query| query.contains("watch=true"));
        let verb = target.as_ref().and_then(|_| Verb::of(&parts.method, named, watch));
        let verb = verb.map_or_else(|| parts.method.as_str().to_ascii_lowercase(), |v| v.as_str().to_owned());
        Self {
            method: parts.method.clone(),
            uri: short(parts.uri.path_and_query().map_or("/", |uri| uri.as_str())),
            agent: short(agent.unwrap_or_default()),
            peer: parts.extensions.get::<SocketAddr>().copied(),
            received,
            verb,
            target,
            reads_all: matches!(route, Route::Backup),
        }
    }

    /// Whether the request is noted, ended so.
    fn counts(&self, who: Option<&Identity>, code: StatusCode) -> bool {
        let refused =
            matches!(code, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS);
        let renews = self.method != Method::DELETE
            && self.target.as_ref().is_some_and(|target| target.resource.kind.group == "coordination.k8s.io")
            && who.is_some_and(|who| who.node_name().is_some());
        let writes = self.method != Method::GET && self.method != Method::HEAD;
        // Whoever reads everything is noted like one who writes.
        refused || self.reads_all || writes && !renews && !who.is_some_and(Identity::is_internal)
    }

    /// The line about it; none if it is not noted.
    pub(super) fn line(
        &self,
        who: Option<&Identity>,
        ended: &Ended<'_>,
        stamp: impl FnOnce() -> (String, Timestamp),
    ) -> Option<String> {
        let code = ended.code();
        if !self.counts(who, code) {
            return None;
        }
        let (id, now) = stamp();
        let mut status = json!({ "metadata": {}, "code": code.as_u16() });
        if let Ended::Refused(refusal) = ended {
            status["status"] = "Failure".into();
            status["reason"] = refusal.reason.into();
            // Words about the body may repeat it; what is refused for lack of rights is told before a body is read.
            if matches!(code, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
                status["message"] = short(&refusal.message).into();
            }
        }
        let user = match who {
            Some(who) => json!({ "username": who.user, "groups": who.groups }),
            None => json!({ "username": "system:anonymous", "groups": ["system:unauthenticated"] }),
        };
        let mut line = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": id,
            "stage": "ResponseComplete",
            "requestURI": self.uri,
            "verb": self.verb,
            "user": user,
            "sourceIPs": self.peer.iter().map(|peer| peer.ip().to_string()).collect::<Vec<_>>(),
            "userAgent": self.agent,
            "responseStatus": status,
            "requestReceivedTimestamp": micros(self.received),
            "stageTimestamp": micros(now),
        });
        if let Some(target) = &self.target {
            line["objectRef"] = reference(target);
        }
        Some(line.to_string())
    }
}

fn reference(target: &Target) -> Value {
    let kind = &target.resource.kind;
    let mut reference = json!({ "resource": kind.plural, "apiVersion": kind.version });
    let status = (target.part == Part::Status).then_some("status");
    let parts = [
        ("namespace", target.namespace.as_deref()),
        ("name", target.name.as_deref()),
        ("apiGroup", Some(kind.group).filter(|group| !group.is_empty())),
        ("subresource", status),
    ];
    for (field, value) in parts {
        if let Some(value) = value {
            reference[field] = value.into();
        }
    }
    reference
}

fn micros(at: Timestamp) -> String {
    format!("{at:.6}")
}

fn short(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::super::resource::Registry;
    use super::super::route::parse;
    use super::*;

    fn asked(method: &str, uri: &str) -> Asked {
        let request = http::Request::builder().method(method).uri(uri).header("user-agent", "kubectl/v1");
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        parts.extensions.insert(SocketAddr::from(([10, 0, 0, 7], 4711)));
        let route = parse(&Registry::new(crate::api::definitions()), parts.uri.path());
        Asked::of(&parts, &route, Timestamp::UNIX_EPOCH)
    }

    const CLAIM: &str = "/apis/wharfline.dev/v1alpha1/namespaces/a/volumeclaims/c";

    #[test]
    fn writes_and_refusals_are_noted_and_nothing_else() {
        let admin = Identity::admin().with_key(Some("k".to_owned()));
        let (node, inside) = (Identity::node("n").with_key(Some("k".to_owned())), Identity::controllers());
        let (ok, created, denied) = (StatusCode::OK, StatusCode::CREATED, StatusCode::FORBIDDEN);
        let lease = "/apis/coordination.k8s.io/v1/namespaces/wharfline-system/leases/n";
        for (method, uri, who, code, noted) in [
            ("PATCH", CLAIM, Some(&admin), ok, true),
            ("DELETE", CLAIM, Some(&admin), StatusCode::CONFLICT, true),
            ("GET", CLAIM, Some(&admin), ok, false),
            ("GET", CLAIM, Some(&node), denied, true),
            ("GET", CLAIM, None, StatusCode::UNAUTHORIZED, true),
            ("GET", CLAIM, Some(&admin), StatusCode::TOO_MANY_REQUESTS, true),
            ("PATCH", CLAIM, Some(&inside), ok, false),
            ("PATCH", CLAIM, Some(&inside), denied, true),
            ("PUT", lease, Some(&node), ok, false),
            ("PUT", lease, Some(&node), denied, true),
            ("PUT", lease, Some(&admin), ok, true),
            ("GET", "/bootstrap/v1/back%75p/", Some(&admin), ok, true),
            ("DELETE", lease, Some(&admin), ok, true),
            ("POST", "/bootstrap/v1/tokens", Some(&admin), created, true),
        ] {
            let said = asked(method, uri).counts(who, code);
            assert_eq!(said, noted, "{method} {uri} {code} by {:?}", who.map(|who| &who.user));
        }
    }

    #[test]
    fn a_line_is_an_event_of_kubernetes_audit() {
        let refusal = Refusal::new(StatusCode::FORBIDDEN, "Forbidden", "not for you");
        let who = Identity::node("n").with_key(Some("hash".to_owned()));
        let status = format!("{CLAIM}/status?fieldManager=x");
        let at = || ("id-1".to_owned(), Timestamp::UNIX_EPOCH);
        let line = asked("PATCH", &status).line(Some(&who), &Ended::Refused(&refusal), at).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        let expected = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata", "auditID": "id-1",
            "stage": "ResponseComplete", "requestURI": status, "verb": "patch",
            "user": { "username": "system:node:n", "groups": ["system:nodes"] },
            "sourceIPs": ["10.0.0.7"], "userAgent": "kubectl/v1",
            "objectRef": { "resource": "volumeclaims", "namespace": "a", "name": "c",
                "apiGroup": "wharfline.dev", "apiVersion": "v1alpha1", "subresource": "status" },
            "responseStatus": { "metadata": {}, "code": 403, "status": "Failure", "reason": "Forbidden",
                "message": "not for you" },
            "requestReceivedTimestamp": "1970-01-01T00:00:00.000000Z",
            "stageTimestamp": "1970-01-01T00:00:00.000000Z",
        });
        assert_eq!(line, expected);
    }

    #[test]
    fn what_a_body_said_is_not_repeated() {
        let refusal = Refusal::bad_request("cannot read \"hunter2\"");
        let who = Identity::admin().with_key(Some("k".to_owned()));
        let at = || ("id".to_owned(), Timestamp::UNIX_EPOCH);
        let line = asked("PUT", CLAIM).line(Some(&who), &Ended::Refused(&refusal), at).unwrap();
        assert!(line.contains("BadRequest") && !line.contains("hunter2"), "{line}");
    }
}
