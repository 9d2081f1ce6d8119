//! Backoff per (object, step, cause), over `plan::backoff`.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::csi::{Code, code_name};
use crate::plan::backoff::{self, Failing};
use crate::sys::Random;

/// How long a call that broke the connection waits at most once its plugin is back.
const SOON: Duration = Duration::from_secs(1);

/// What failed and when it may be tried again. Keys are `object/step`.
#[derive(Debug)]
pub struct Retry {
    start: Instant,
    random: Arc<dyn Random>,
    failing: Mutex<HashMap<String, Failing<String>>>,
    versions: Mutex<HashMap<String, String>>,
}

impl Retry {
    /// Nothing has failed yet.
    pub fn new(random: Arc<dyn Random>) -> Self {
        Self { start: Instant::now(), random, failing: Mutex::default(), versions: Mutex::default() }
    }

    /// One more failure of this step; how long to wait.
    pub fn failed(&self, step: &str, cause: String) -> Duration {
        let now = self.start.elapsed();
        let jitter = u8::try_from(self.random.below(256)).unwrap_or(0);
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let record = backoff::failed(failing.get(step), cause, now, jitter);
        let delay = record.due.saturating_sub(now);
        failing.insert(step.to_owned(), record);
        delay
    }

    /// A step failed so often in a row, and with this cause, before this daemon began; it may be tried at once.
    pub fn restore(&self, step: &str, cause: String, attempts: u32) {
        if attempts > 0 {
            let record = Failing { cause, attempts, due: self.start.elapsed() };
            self.failing.lock().unwrap_or_else(PoisonError::into_inner).insert(step.to_owned(), record);
        }
    }

    /// Keeps a step from being tried for so long, or until [`Retry::forget`].
    pub fn block(&self, step: &str, delay: Duration) {
        let due = self.start.elapsed() + delay;
        if let Some(record) = self.failing.lock().unwrap_or_else(PoisonError::into_inner).get_mut(step) {
            record.due = due;
        }
    }

    /// Tells which version of an object is worked on: another one than before lets all its steps be tried at once.
    pub fn renew(&self, object: &str, version: &str) {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let before = versions.insert(object.to_owned(), version.to_owned());
        drop(versions);
        if before.is_some_and(|before| before != version) {
            self.forget(object);
        }
    }

    /// The object is gone.
    pub fn gone(&self, object: &str) {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
        self.forget(object);
    }

    /// How long this step must wait still.
    pub fn remaining(&self, step: &str) -> Option<Duration> {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        backoff::remaining(failing.get(step)?, self.start.elapsed())
    }

    /// The number of the next attempt of this step, from 1.
    pub fn attempt(&self, step: &str) -> u32 {
        let failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.get(step).map_or(1, |record| record.attempts.saturating_add(1))
    }

    /// The step succeeded.
    pub fn succeeded(&self, step: &str) {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner).remove(step);
    }

    /// The plugin that an object waits for is there again, or anew: its steps may be tried at once. Those whose last call
    /// broke the connection may soon, for a plugin that falls at every call would be called as fast as it gets up.
    pub fn plugin_back(&self, object: &str) {
        let broke = code_name(Code::Unavailable);
        let soon = self.start.elapsed() + SOON;
        self.each_of(object, |record| {
            record.due = record.due.min(soon);
            record.cause == broke
        });
    }

    /// Something that the object waited for has changed: all its steps may be tried at once.
    pub fn forget(&self, object: &str) {
        self.each_of(object, |_| false);
    }

    fn each_of(&self, object: &str, stays: impl Fn(&mut Failing<String>) -> bool) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        let of_object = |step: &str| step.strip_prefix(object).is_some_and(|rest| rest.starts_with('/'));
        failing.retain(|step, record| !of_object(step) || stays(record));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::random::RealRandom;

    /// Obligation CO-GEN-25.
    #[tokio::test(start_paused = true)]
    async fn each_step_has_its_own_pauses_which_begin_anew_once_it_succeeded() {
        let retry = Retry::new(Arc::new(RealRandom));
        let fails = |step: &str| retry.failed(step, "INTERNAL".into());
        let (least, most) = (backoff::FIRST / 4 * 3, backoff::FIRST);
        let first = |pause: Duration| (least..=most).contains(&pause);
        let pauses: Vec<_> = (0..7).map(|_| fails("att/1/stage")).collect();
        assert!(first(pauses[0]) && pauses.windows(2).all(|w| w[0] < w[1]), "{pauses:?}");
        assert!(first(fails("att/1/publish")) && first(fails("att/2/stage")));
        retry.succeeded("att/1/stage");
        assert_eq!(retry.remaining("att/1/stage"), None);
        assert!(first(fails("att/1/stage")));
        assert_eq!(retry.attempt("att/1/publish"), 2, "that of another is not touched");
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_daemon_goes_on_with_the_pauses_of_the_one_before() {
        let retry = Retry::new(Arc::new(RealRandom));
        retry.restore("task/1/t", "run".into(), 5);
        retry.restore("task/1/u", "run".into(), 0);
        assert_eq!((retry.remaining("task/1/t"), retry.attempt("task/1/t")), (None, 6));
        let sixth = backoff::FIRST * 32;
        assert!((sixth / 4 * 3..=sixth).contains(&retry.failed("task/1/t", "run".into())));
        assert!(retry.failed("task/1/u", "run".into()) <= backoff::FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_is_back_is_called_at_once_but_not_with_what_it_fell_at() {
        let retry = Retry::new(Arc::new(RealRandom));
        for _ in 0..9 {
            retry.failed("att/1/stage", "UNAVAILABLE".into());
        }
        retry.failed("att/1/publish", "INVALID_ARGUMENT".into());
        retry.block("att/1/publish", Duration::from_secs(3600));
        retry.failed("att/12/stage", "INTERNAL".into());
        assert!(retry.remaining("att/1/stage").is_some_and(|left| left > SOON * 10));
        retry.plugin_back("att/1");
        assert!(retry.remaining("att/1/stage").is_some_and(|left| left <= SOON));
        assert_eq!(retry.attempt("att/1/stage"), 10, "it goes on where it was");
        assert_eq!(retry.remaining("att/1/publish"), None);
        assert!(retry.remaining("att/12/stage").is_some(), "another object");
        tokio::time::advance(SOON).await;
        assert_eq!(retry.remaining("att/1/stage"), None);
    }
}
