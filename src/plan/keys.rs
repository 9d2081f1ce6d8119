//! Which key is looked at next: woken now, due later, or looked at this moment. A key stands in it once, so it is bounded
//! by the number of objects; what woke a key is not kept.
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Where a key stands. `T` is a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State<T> {
    Ready,
    /// To be looked at when this moment comes, or earlier when it is woken.
    Later(T),
    /// Looked at this moment; whether it was woken meanwhile.
    Running {
        woken: bool,
    },
}

/// The keys that are to be looked at, of type `K`; moments are of type `T`.
#[derive(Debug)]
pub struct Keys<K, T> {
    states: BTreeMap<K, State<T>>,
    /// Those that are `Ready`, first come, first served.
    ready: VecDeque<K>,
    /// Those that are `Later`, the next one first.
    later: BTreeSet<(T, K)>,
}

impl<K, T> Default for Keys<K, T> {
    fn default() -> Self {
        Self { states: BTreeMap::new(), ready: VecDeque::new(), later: BTreeSet::new() }
    }
}

impl<K: Ord + Clone, T: Ord + Copy> Keys<K, T> {
    /// Asks for a look at a key. Whether it became ready by this.
    pub fn wake(&mut self, key: K) -> bool {
        match self.states.get_mut(&key) {
            Some(State::Ready) => return false,
            Some(State::Running { woken }) => {
                *woken = !planted!("wake-up-lost");
                return false;
            }
            Some(State::Later(at)) => {
                let entry = (*at, key.clone());
                self.later.remove(&entry);
            }
            None => {}
        }
        self.states.insert(key.clone(), State::Ready);
        self.ready.push_back(key);
        true
    }

    /// The next key to look at, if one is due; it is not given out again before [`Self::done`].
    pub fn take(&mut self, now: T) -> Option<K> {
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.later.pop_first() else { break };
            self.states.insert(key.clone(), State::Ready);
            self.ready.push_back(key);
        }
        let key = self.ready.pop_front()?;
        self.states.insert(key.clone(), State::Running { woken: false });
        Some(key)
    }

    /// The look at a key is over; look again at a moment, if so wanted and nobody wakes it earlier.
    pub fn done(&mut self, key: K, again: Option<T>) {
        let woken = self.states.remove(&key).is_some_and(|s| matches!(s, State::Running { woken: true }));
        if woken {
            self.wake(key);
        } else if let Some(at) = again {
            self.states.insert(key.clone(), State::Later(at));
            self.later.insert((at, key));
        }
    }

    /// When a key is due next, if at any time known: `now` when one is ready.
    pub fn next(&self, now: T) -> Option<T> {
        if self.ready.is_empty() { self.later.first().map(|(at, _)| *at) } else { Some(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_given_out_once_at_a_time_and_again_if_it_was_woken_meanwhile() {
        let mut keys = Keys::<_, u32>::default();
        assert!(keys.wake("b") && keys.wake("a") && !keys.wake("b"));
        assert_eq!(keys.take(0), Some("b"), "first come, first served");
        assert!(!keys.wake("b"));
        assert_eq!((keys.take(0), keys.take(0)), (Some("a"), None), "not beside itself");
        keys.done("a", None);
        keys.done("b", Some(9));
        assert_eq!((keys.take(0), keys.take(0)), (Some("b"), None), "what woke it is not lost");
        keys.done("b", None);
        assert!(keys.states.is_empty() && keys.later.is_empty(), "nothing is kept of what nobody waits for");
    }

    #[test]
    fn a_delay_passes_unless_somebody_wakes_it() {
        let mut keys = Keys::default();
        keys.wake("a");
        for early in [false, true] {
            keys.take(0).unwrap();
            keys.done("a", Some(9));
            assert_eq!((keys.take(8), keys.next(0)), (None, Some(9)));
            if early {
                assert!(keys.wake("a") && keys.later.is_empty());
                assert_eq!((keys.next(3), keys.take(0)), (Some(3), Some("a")));
            } else {
                assert_eq!(keys.take(9), Some("a"));
                keys.done("a", None);
                keys.wake("a");
            }
        }
    }
}
