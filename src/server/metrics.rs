//! What the server counts of itself, in the text format of Prometheus: requests by verb, kind and code, how long they
//! took, open watches, the store's revision. Counting never fails and never waits for anything but its own short lock.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::access::Verb;
use super::route::{Part, Target};
use crate::store::Rev;

/// Upper ends of the classes of durations, in seconds.
const CLASSES: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0];

/// One line of what is counted. All parts are words of the program: the number of lines is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    verb: &'static str,
    group: &'static str,
    plural: &'static str,
    status: bool,
    code: u16,
}

#[derive(Debug, Default)]
struct Count {
    classes: [u64; CLASSES.len()],
    all: u64,
    seconds: f64,
}

/// The counts since the server started.
#[derive(Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<Key, Count>>,
}

/// What is so now, beside what was counted.
pub(crate) struct Present {
    /// How many watches are open.
    pub(crate) watches: usize,
    /// The newest revision of the store; none if it does not answer.
    pub(crate) revision: Option<Rev>,
    /// Whether the server follows its store.
    pub(crate) follows: bool,
}

impl Metrics {
    /// Counts a request that was answered. A watch is counted when it is granted.
    pub(crate) fn note(&self, (verb, target): (Verb, &Target), code: u16, took: Duration) {
        let kind = &target.resource.kind;
        let status = target.part == Part::Status;
        let key = Key { verb: verb.as_str(), group: kind.group, plural: kind.plural, status, code };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let count = requests.entry(key).or_default();
        let seconds = took.as_secs_f64();
        for (class, most) in count.classes.iter_mut().zip(CLASSES) {
            *class += u64::from(seconds <= most);
        }
        count.all += 1;
        count.seconds += seconds;
    }

    /// Everything as text.
    pub(crate) fn text(&self, present: &Present) -> String {
        let mut out = String::new();
        let head = |out: &mut String, name: &str, kind: &str, help: &str| {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        };
        let name = "wharfline_request_duration_seconds";
        head(
            &mut out,
            name,
            "histogram",
            "How long requests for objects took; a watch until it was granted.",
        );
        for (key, count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let labels = key.labels();
            for (most, class) in CLASSES.iter().zip(count.classes) {
                let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{most}\"}} {class}");
            }
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", count.all);
            let _ = writeln!(out, "{name}_sum{{{labels}}} {}", count.seconds);
            let _ = writeln!(out, "{name}_count{{{labels}}} {}", count.all);
        }
        let name = "wharfline_watches";
        head(&mut out, name, "gauge", "Watches that are open.");
        let _ = writeln!(out, "{name} {}", present.watches);
        let name = "wharfline_store_followed";
        head(&mut out, name, "gauge", "Whether the server follows its store.");
        let _ = writeln!(out, "{name} {}", u8::from(present.follows));
        if let Some(revision) = present.revision {
            let name = "wharfline_store_revision";
            head(&mut out, name, "counter", "The newest revision of the store.");
            let _ = writeln!(out, "{name} {revision}");
        }
        out
    }
}

impl Key {
    fn labels(&self) -> String {
        let Self { verb, group, plural, status, code } = self;
        let part = if *status { "status" } else { "" };
        format!(
            "verb=\"{verb}\",group=\"{group}\",resource=\"{plural}\",subresource=\"{part}\",code=\"{code}\""
        )
    }
}
