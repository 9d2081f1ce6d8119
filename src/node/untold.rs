//! Since when something is so that is not worth a write of its own yet.
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// By the uid of whom it is about.
#[derive(Debug, Default)]
pub struct Untold(Mutex<HashMap<String, Instant>>);

impl Untold {
    /// For how long it has been so, from the first time on that this is asked.
    pub fn since(&self, uid: &str) -> Duration {
        self.all().entry(uid.to_owned()).or_insert_with(Instant::now).elapsed()
    }

    /// It is not so, or it is told.
    pub fn settled(&self, uid: &str) {
        self.all().remove(uid);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
