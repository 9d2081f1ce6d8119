//! One step at a time for each name, however many handlers come to it.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// The names at which somebody is.
#[derive(Debug, Default)]
pub struct Turns(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits until nobody else is at the name; it is ours until the guard goes.
    pub async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        let turn = self.at(name);
        turn.lock_owned().await
    }

    /// The same without waiting: absent while somebody else is there or waits.
    pub fn take_if_free(&self, name: &str) -> Option<OwnedMutexGuard<()>> {
        self.at(name).try_lock_owned().ok()
    }

    fn at(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Few are under way at a time, and of the others nothing is kept.
        all.retain(|_, turn| turn.strong_count() > 0);
        match all.get(name).and_then(Weak::upgrade) {
            Some(turn) => turn,
            None => {
                let turn = Arc::default();
                all.insert(name.to_owned(), Arc::downgrade(&turn));
                turn
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_per_name_and_nothing_is_kept() {
        let turns = Turns::default();
        let mine = turns.take("a").await;
        assert!(turns.take_if_free("a").is_none());
        assert!(turns.take_if_free("b").is_some());
        let mut second = Box::pin(turns.take("a"));
        assert!(futures::poll!(&mut second).is_pending());
        drop(turns.take("b").await);
        drop(mine);
        drop(second.await);
        drop(turns.take("c").await);
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }
}
