//! At most one call in flight per key; the others wait in the order in which they came.
//!
//! A waiting call costs nothing but its own time: no deadline runs and no slot is taken. Keys that nobody uses or
//! waits for are forgotten at once, so the table is as large as the work in progress.
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as Gate, OwnedMutexGuard};

use super::rpc::Key;

type Table = HashMap<Key, Arc<Gate<()>>>;

/// Who may call now, per key. Clones share everything: several processes of one driver get calls in turn as one does.
#[derive(Clone, Default)]
pub struct Turns {
    gates: Arc<Mutex<Table>>,
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("in_use", &self.table().len()).finish()
    }
}

impl Turns {
    /// Waits until no other call about `key` is in flight. The turn ends when the value is dropped.
    pub(crate) async fn take(&self, key: Key) -> Turn<'_> {
        let gate = Arc::clone(self.table().entry(key.clone()).or_default());
        // Made before the wait, so that a caller who gives up while waiting cleans up as well.
        let mut turn = Turn { turns: self, key, held: None };
        turn.held = if planted!("calls-side-by-side") {
            gate.try_lock_owned().ok()
        } else {
            Some(gate.lock_owned().await)
        };
        turn
    }

    /// Whether anybody else has a clone of it.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.gates) > 1
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing panics while the lock is held; were it to, the table would still be whole.
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to make one call; dropping it lets the next one go.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    key: Key,
    held: Option<OwnedMutexGuard<()>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Gates are cloned under this lock alone, and every other clone belongs to a turn that will come by here.
        let mut table = self.turns.table();
        self.held = None;
        if table.get(&self.key).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            table.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    fn key(name: &str) -> Key {
        Key::Volume(name.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn calls_about_one_volume_go_in_order_and_others_do_not_wait() {
        let turns = Arc::new(Turns::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = turns.take(key("a")).await;
        let mut waiting = Vec::new();
        for number in 0..4 {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                let _turn = turns.take(key("a")).await;
                order.lock().unwrap().push(number);
            }));
            tokio::task::yield_now().await;
        }
        let other = tokio::time::timeout(Duration::from_secs(1), turns.take(key("b"))).await;
        assert!(other.is_ok(), "another volume had to wait");
        assert!(order.lock().unwrap().is_empty());
        drop((first, other));
        for task in waiting {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
        assert!(turns.table().is_empty(), "keys were left behind");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_while_waiting_leaves_nothing() {
        let turns = Turns::default();
        let first = turns.take(key("a")).await;
        assert!(tokio::time::timeout(Duration::from_secs(1), turns.take(key("a"))).await.is_err());
        assert_eq!(turns.table().len(), 1);
        drop(first);
        assert!(turns.table().is_empty());
        drop(turns.take(key("a")).await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn never_two_at_a_time_under_load() {
        let turns = Arc::new(Turns::default());
        let inside = Arc::new(AtomicUsize::new(0));
        let tasks = (0..64).map(|_| {
            let (turns, inside) = (Arc::clone(&turns), Arc::clone(&inside));
            tokio::spawn(async move {
                for _ in 0..50 {
                    let _turn = turns.take(key("a")).await;
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert!(turns.table().is_empty());
    }
}
