//! The line that is written of each call when it is over. It holds ids, codes and times: no other field of a request or
//! an answer, and no text of an error, any of which may have a secret in it.
use std::time::{Duration, Instant};

use http::HeaderMap;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::script::code_name;

/// What is known of one call. Its line is written when it is dropped.
#[derive(Debug)]
pub(super) struct Account {
    method: String,
    id: Option<String>,
    rule: Option<(String, String)>,
    driver: Vec<String>,
    caller: Option<String>,
    since: Instant,
    /// The caller's connection was cut.
    cut: CancellationToken,
}

impl Account {
    /// A call that has just come in, over a connection that `cut` cuts.
    pub(super) fn begin(method: &str, cut: &CancellationToken) -> Self {
        Self {
            method: method.to_owned(),
            id: None,
            rule: None,
            driver: Vec::new(),
            caller: None,
            since: Instant::now(),
            cut: cut.clone(),
        }
    }

    /// What it is about.
    pub(super) fn about(&mut self, ids: &[String]) {
        self.id = ids.first().cloned();
    }

    /// A rule takes it, and does this.
    pub(super) fn taken(&mut self, rule: String, words: String) {
        self.rule = Some((rule, words));
    }

    /// The driver has answered.
    pub(super) fn driver(&mut self, code: Option<Code>) {
        self.driver.push(code.map_or("no status", code_name).to_owned());
    }

    /// The driver went away, or broke the protocol.
    pub(super) fn driver_failed(&mut self) {
        self.driver.push("no answer".to_owned());
    }

    /// What the caller is told.
    pub(super) fn caller(&mut self, code: Option<Code>) {
        self.caller = Some(code.map_or("no status", code_name).to_owned());
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let driver = if self.driver.is_empty() { "not asked".to_owned() } else { self.driver.join(", ") };
        // Who was told nothing gave up, at its deadline or with its connection, unless that was cut.
        let silent = if self.cut.is_cancelled() { "cut" } else { "left" };
        let caller = self.caller.as_deref().unwrap_or(silent);
        let (rule, injected) = self.rule.clone().unzip();
        let took = Rounded(self.since.elapsed());
        tracing::info!(
            method = self.method.as_str(),
            id = self.id.as_deref(),
            rule = rule.as_deref(),
            injected = injected.as_deref(),
            driver = driver.as_str(),
            caller,
            ?took,
            "call"
        );
    }
}

/// A time without the digits that nobody reads.
struct Rounded(Duration);

impl std::fmt::Debug for Rounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1}ms", self.0.as_secs_f64() * 1e3)
    }
}

/// The status in these headers or trailers.
pub(super) fn code_in(headers: &HeaderMap) -> Option<Code> {
    // By hand: the library's reader of a status panics when its details are not base64.
    headers.get("grpc-status").map(|number| Code::from_bytes(number.as_bytes()))
}
