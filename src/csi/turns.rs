//! At most one call in flight per key; the others wait in the order in which they came.
//!
//! A waiting call costs nothing but its own time: no deadline runs and no slot is taken. Keys that nobody uses or
//! waits for are forgotten at once, so the table is as large as the work in progress.
//!
//! | manner | who |
//! |---|---|
//! | alone | what changes something: waits until nobody is at the key, and keeps all others off |
//! | beside | streams about a snapshot: go on side by side, and keep off its deletion alone |
//! | if free | what only reads, statistics among it: not begun when somebody is at the key or waits for it |
//!
//! A call about several things has all its turns at once, and holds none while it waits for another: a snapshot of a
//! group waits for a volume that hangs, and the other volumes of the group do not. So it may be passed over for as long
//! as one of them is busy.
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock as Gate};

/// What a call excludes others from while it is in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// A volume that has a handle.
    Volume(String),
    /// A volume that has no handle yet, by the name sent to `CreateVolume`.
    Name(String),
    /// A snapshot that has an id.
    Snapshot(String),
    /// A snapshot that has no id yet, by the name sent to `CreateSnapshot`.
    SnapshotName(String),
    /// A group snapshot that has an id.
    Group(String),
    /// A group snapshot that has no id yet, by the name sent to `CreateVolumeGroupSnapshot`.
    GroupName(String),
    /// The plugin's readiness: a probe never overlaps another probe.
    Readiness,
}

impl Key {
    /// The handle, id or name, for records.
    pub(crate) fn subject(&self) -> Option<&str> {
        match self {
            Self::Volume(name)
            | Self::Name(name)
            | Self::Snapshot(name)
            | Self::SnapshotName(name)
            | Self::Group(name)
            | Self::GroupName(name) => Some(name),
            Self::Readiness => None,
        }
    }
}

/// How a call waits for others about the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Keeps all others off.
    Alone,
    /// Keeps off those that have to be alone.
    Beside,
    /// Keeps all others off, and does not begin when it would have to wait.
    IfFree,
}

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
    /// Waits until it is the turn of a call about `keys`; none when it may not wait and would have to. The turns end when
    /// they are dropped.
    pub(crate) async fn take(&self, keys: &[Key], manner: Manner) -> Option<Vec<Turn>> {
        // A volume that is named twice must not wait for itself.
        let mut wanted: Vec<&Key> = Vec::new();
        for key in keys {
            if !wanted.contains(&key) {
                wanted.push(key);
            }
        }
        if manner == Manner::IfFree {
            return wanted.iter().map(|key| self.attempt(key, manner)).collect();
        }
        while let Some(first) = wanted.first().copied() {
            let mut turns = vec![self.wait(first, manner).await];
            let mut busy = None;
            for (at, key) in wanted.iter().enumerate().skip(1) {
                match self.attempt(key, manner) {
                    Some(turn) => turns.push(turn),
                    None => {
                        busy = Some(at);
                        break;
                    }
                }
            }
            match busy {
                Some(at) => wanted.swap(0, at),
                None => return Some(turns),
            }
        }
        Some(Vec::new())
    }

    async fn wait(&self, key: &Key, manner: Manner) -> Turn {
        let (mut turn, gate) = self.enter(key);
        turn.held = if planted!("calls-side-by-side") {
            gate.try_write_owned().ok().map(Held::Alone)
        } else {
            Some(match manner {
                Manner::Alone | Manner::IfFree => Held::Alone(gate.write_owned().await),
                Manner::Beside => Held::Beside(gate.read_owned().await),
            })
        };
        turn
    }

    /// Whether anybody else has a clone of it.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.gates) > 1
    }

    fn attempt(&self, key: &Key, manner: Manner) -> Option<Turn> {
        let (mut turn, gate) = self.enter(key);
        turn.held = Some(match manner {
            Manner::Alone | Manner::IfFree => Held::Alone(gate.try_write_owned().ok()?),
            Manner::Beside => Held::Beside(gate.try_read_owned().ok()?),
        });
        Some(turn)
    }

    /// A turn that holds nothing yet: made before the wait, so that a caller who gives up while waiting cleans up as well.
    fn enter(&self, key: &Key) -> (Turn, Arc<Gate<()>>) {
        let gate = Arc::clone(self.table().entry(key.clone()).or_default());
        (Turn { turns: self.clone(), key: key.clone(), held: None }, gate)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing panics while the lock is held; were it to, the table would still be whole.
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to make one call; dropping it lets the next one go.
pub(crate) struct Turn {
    turns: Turns,
    key: Key,
    held: Option<Held>,
}

#[allow(dead_code)] // held, never read
enum Held {
    Alone(OwnedRwLockWriteGuard<()>),
    Beside(OwnedRwLockReadGuard<()>),
}

impl Drop for Turn {
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

    async fn take(turns: &Turns, names: &[&str], manner: Manner) -> Option<Vec<Turn>> {
        turns.take(&names.iter().map(|name| key(name)).collect::<Vec<_>>(), manner).await
    }

    async fn alone(turns: &Turns, name: &str) -> Vec<Turn> {
        take(turns, &[name], Manner::Alone).await.unwrap()
    }

    /// Whether it has to wait.
    async fn waits<T>(taking: impl Future<Output = T>) -> bool {
        tokio::time::timeout(Duration::from_secs(1), taking).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn calls_about_one_volume_go_in_order_and_others_do_not_wait() {
        let turns = Arc::new(Turns::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = alone(&turns, "a").await;
        let mut waiting = Vec::new();
        for number in 0..4 {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                let _turn = alone(&turns, "a").await;
                order.lock().unwrap().push(number);
            }));
            tokio::task::yield_now().await;
        }
        let other = tokio::time::timeout(Duration::from_secs(1), alone(&turns, "b")).await;
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
        let first = alone(&turns, "a").await;
        assert!(tokio::time::timeout(Duration::from_secs(1), alone(&turns, "a")).await.is_err());
        assert_eq!(turns.table().len(), 1);
        drop(first);
        assert!(turns.table().is_empty());
        drop(alone(&turns, "a").await);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn never_two_at_a_time_under_load() {
        let turns = Arc::new(Turns::default());
        let inside = Arc::new(AtomicUsize::new(0));
        let tasks = (0..64).map(|_| {
            let (turns, inside) = (Arc::clone(&turns), Arc::clone(&inside));
            tokio::spawn(async move {
                for _ in 0..50 {
                    let _turn = alone(&turns, "a").await;
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

    #[tokio::test(start_paused = true)]
    async fn what_only_reads_begins_when_nobody_is_there_or_waits() {
        let turns = Turns::default();
        let first = alone(&turns, "a").await;
        assert!(take(&turns, &["a"], Manner::IfFree).await.is_none(), "somebody is there");
        let mut second = Box::pin(alone(&turns, "a"));
        assert!(waits(&mut second).await);
        drop(first);
        assert!(take(&turns, &["a"], Manner::IfFree).await.is_none(), "somebody waits");
        drop(second.await);
        let reading = take(&turns, &["a"], Manner::IfFree).await;
        assert!(reading.is_some() && waits(alone(&turns, "a")).await, "a call never overlaps it");
        drop(reading);
        assert!(turns.table().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn streams_go_side_by_side_and_keep_off_who_must_be_alone() {
        let turns = Turns::default();
        let streams = [
            take(&turns, &["a", "b"], Manner::Beside).await.unwrap(),
            take(&turns, &["b"], Manner::Beside).await.unwrap(),
        ];
        let mut deletion = Box::pin(alone(&turns, "b"));
        assert!(waits(&mut deletion).await);
        assert!(waits(take(&turns, &["b"], Manner::Beside)).await, "who comes later does not go first");
        drop(streams);
        let deletion = deletion.await;
        assert!(waits(take(&turns, &["a", "b"], Manner::Beside)).await);
        drop(deletion);
        assert!(turns.table().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_one_of_several_holds_none_of_the_others() {
        let turns = Turns::default();
        let hanging = alone(&turns, "c").await;
        let mut group = Box::pin(take(&turns, &["a", "b", "c", "a"], Manner::Alone));
        assert!(waits(&mut group).await);
        for free in ["a", "b"] {
            assert!(!waits(alone(&turns, free)).await, "{free} waited for another volume");
        }
        drop(hanging);
        let group = group.await.unwrap();
        assert_eq!(group.len(), 3);
        for held in ["a", "b", "c"] {
            assert!(waits(alone(&turns, held)).await, "{held}");
        }
        drop(group);
        assert!(turns.table().is_empty());
        assert_eq!(turns.take(&[], Manner::Alone).await.map(|turns| turns.len()), Some(0));
    }
}
