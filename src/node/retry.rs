//! Backoff per (object, step, cause), over `plan::backoff`.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::plan::backoff::{self, Failing};
use crate::sys::Random;

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

    /// Something that the object waited for has changed: all its steps may be tried at once.
    pub fn forget(&self, object: &str) {
        let mut failing = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        failing.retain(|step, _| !step.strip_prefix(object).is_some_and(|rest| rest.starts_with('/')));
    }
}
