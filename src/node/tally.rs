//! Counts of the calls that this daemon made of plugins, by plugin, method and code, and how long they took: since it began.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};

use super::figures::labels;
use crate::csi::{CallRecord, Observer};

/// Upper ends of the classes of durations, in seconds: from a call that only looks to one that copies a volume.
const CLASSES: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0];

/// Plugin, method and code.
type Key = (String, &'static str, &'static str);

#[derive(Debug, Default)]
struct Count {
    classes: [u64; CLASSES.len()],
    all: u64,
    seconds: f64,
}

/// What was counted. Never fails, and waits for nothing but its own short lock.
#[derive(Debug, Clone, Default)]
pub struct Tally(Arc<Mutex<BTreeMap<Key, Count>>>);

impl Tally {
    /// Who counts the calls of one plugin.
    pub(super) fn observer(&self, plugin: &str) -> Arc<dyn Observer> {
        let (tally, plugin) = (self.clone(), plugin.to_owned());
        Arc::new(move |record: &CallRecord| tally.note(&plugin, record))
    }

    fn note(&self, plugin: &str, record: &CallRecord) {
        let key = (plugin.to_owned(), record.rpc.name(), record.code_name());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(key).or_default();
        let seconds = record.duration.as_secs_f64();
        for (class, most) in count.classes.iter_mut().zip(CLASSES) {
            *class += u64::from(seconds <= most);
        }
        count.all += 1;
        count.seconds += seconds;
    }

    /// Everything as text; nothing while no call was made.
    pub(super) fn write(&self, text: &mut String, node: &str) {
        const NAME: &str = "wharfline_csi_call_seconds";
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.is_empty() {
            return;
        }
        let _ = write!(text, "# HELP {NAME} How long calls of plugins took.\n# TYPE {NAME} histogram\n");
        for ((plugin, method, code), count) in &*all {
            let labels = labels(&[("plugin", plugin), ("method", method), ("code", code), ("node", node)]);
            for (most, class) in CLASSES.iter().zip(count.classes) {
                let _ = writeln!(text, "{NAME}_bucket{{{labels},le=\"{most}\"}} {class}");
            }
            let _ = writeln!(text, "{NAME}_bucket{{{labels},le=\"+Inf\"}} {}", count.all);
            let _ = writeln!(text, "{NAME}_sum{{{labels}}} {}", count.seconds);
            let _ = writeln!(text, "{NAME}_count{{{labels}}} {}", count.all);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::csi::{Code, Failure, Rpc};

    #[test]
    fn each_call_is_in_the_classes_that_it_was_no_longer_than() {
        let tally = Tally::default();
        let mut text = String::new();
        tally.write(&mut text, "a");
        assert_eq!(text, "");
        let observer = tally.observer("p");
        let record = |millis, result| CallRecord {
            rpc: Rpc::NodeStageVolume,
            volume: None,
            result,
            started: SystemTime::UNIX_EPOCH,
            duration: Duration::from_millis(millis),
            waited: Duration::ZERO,
            attempt: 1,
        };
        observer.finished(&record(1, Ok(())));
        observer.finished(&record(400, Ok(())));
        observer
            .finished(&record(1000, Err(Failure::deadline(Rpc::NodeStageVolume, Duration::from_secs(1)))));
        tally.write(&mut text, "a");
        let of = |code: &str| format!("plugin=\"p\",method=\"NodeStageVolume\",code=\"{code}\",node=\"a\"");
        let (ok, late) = (of("OK"), of(crate::csi::code_name(Code::DeadlineExceeded)));
        for line in [
            format!("wharfline_csi_call_seconds_bucket{{{ok},le=\"0.005\"}} 1"),
            format!("wharfline_csi_call_seconds_bucket{{{ok},le=\"0.1\"}} 1"),
            format!("wharfline_csi_call_seconds_bucket{{{ok},le=\"0.5\"}} 2"),
            format!("wharfline_csi_call_seconds_bucket{{{ok},le=\"+Inf\"}} 2"),
            format!("wharfline_csi_call_seconds_sum{{{ok}}} 0.401"),
            format!("wharfline_csi_call_seconds_count{{{ok}}} 2"),
            format!("wharfline_csi_call_seconds_bucket{{{late},le=\"0.5\"}} 0"),
            format!("wharfline_csi_call_seconds_count{{{late}}} 1"),
        ] {
            assert!(text.lines().any(|one| one == line), "{line}:\n{text}");
        }
    }
}
