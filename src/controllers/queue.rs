//! The keys that a controller has to look at: woken now, due later, or looked at this moment. A key stands in it once,
//! so it is bounded by the number of objects.
//!
//! kube-runtime's own scheduler rounds every start up to a full millisecond, which a claim would pay at each step of its
//! way; here a key that is woken starts at once.
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::cache::{Kind, Name};

/// The queue of one controller.
#[derive(Debug)]
pub(crate) struct Queue<K>(Arc<Inner>, PhantomData<fn() -> K>);

#[derive(Debug, Default)]
struct Inner {
    keys: Mutex<Keys>,
    woken: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    /// To be looked at when this moment comes, or earlier when it is woken.
    Later(Instant),
    /// Looked at this moment; whether it was woken meanwhile.
    Running {
        woken: bool,
    },
}

#[derive(Debug, Default)]
struct Keys {
    states: HashMap<Name, State>,
    /// Those that are `Ready`, first come, first served.
    ready: VecDeque<Name>,
    /// Those that are `Later`, the next one first.
    later: BTreeSet<(Instant, Name)>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self(Arc::default(), PhantomData)
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), PhantomData)
    }
}

impl<K: Kind> Queue<K> {
    /// Asks for a look at this object.
    pub(crate) fn add(&self, name: Name) {
        if self.keys().wake(name) {
            self.0.woken.notify_one();
        }
    }

    /// Asks for a look at these objects.
    pub(crate) fn add_all(&self, names: impl IntoIterator<Item = Name>) {
        names.into_iter().for_each(|name| self.add(name));
    }

    /// The next key to look at, if one is due; it is not given out again before [`Queue::done`].
    pub(crate) fn take(&self) -> Option<Name> {
        self.keys().take(Instant::now())
    }

    /// The look at a key is over; look again after a while, if so wanted and nobody wakes it earlier.
    pub(crate) fn done(&self, name: Name, again: Option<Duration>) {
        self.keys().done(name, again.and_then(|wait| Instant::now().checked_add(wait)));
    }

    /// Returns when a key may be due. There is one waiter.
    pub(crate) async fn due(&self) {
        let next = self.keys().next();
        let woken = self.0.woken.notified();
        match next {
            // A timer would round this up to a full millisecond.
            Some(at) if at <= Instant::now() => {}
            Some(at) => drop(tokio::time::timeout_at(at, woken).await),
            None => woken.await,
        }
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.0.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keys {
    /// Whether the key became ready by this.
    fn wake(&mut self, name: Name) -> bool {
        match self.states.get_mut(&name) {
            Some(State::Ready) => return false,
            Some(State::Running { woken }) => {
                *woken = true;
                return false;
            }
            Some(State::Later(at)) => {
                let entry = (*at, name.clone());
                self.later.remove(&entry);
            }
            None => {}
        }
        self.states.insert(name.clone(), State::Ready);
        self.ready.push_back(name);
        true
    }

    fn take(&mut self, now: Instant) -> Option<Name> {
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = self.later.pop_first() else { break };
            self.states.insert(name.clone(), State::Ready);
            self.ready.push_back(name);
        }
        let name = self.ready.pop_front()?;
        self.states.insert(name.clone(), State::Running { woken: false });
        Some(name)
    }

    fn done(&mut self, name: Name, again: Option<Instant>) {
        let woken = self.states.remove(&name) == Some(State::Running { woken: true });
        if woken {
            self.wake(name);
        } else if let Some(at) = again {
            self.states.insert(name.clone(), State::Later(at));
            self.later.insert((at, name));
        }
    }

    fn next(&self) -> Option<Instant> {
        if self.ready.is_empty() { self.later.first().map(|(at, _)| *at) } else { Some(Instant::now()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        (String::new(), text.to_owned())
    }

    #[test]
    fn a_key_is_given_out_once_at_a_time_and_again_if_it_was_woken_meanwhile() {
        let (mut keys, now) = (Keys::default(), Instant::now());
        assert!(keys.wake(name("b")) && keys.wake(name("a")) && !keys.wake(name("b")));
        assert_eq!(keys.take(now), Some(name("b")), "first come, first served");
        assert!(!keys.wake(name("b")));
        assert_eq!((keys.take(now), keys.take(now)), (Some(name("a")), None), "not beside itself");
        keys.done(name("a"), None);
        keys.done(name("b"), Some(now + Duration::from_secs(9)));
        assert_eq!((keys.take(now), keys.take(now)), (Some(name("b")), None), "what woke it is not lost");
        keys.done(name("b"), None);
        assert!(keys.states.is_empty() && keys.later.is_empty(), "nothing is kept of what nobody waits for");
    }

    #[test]
    fn a_delay_passes_unless_somebody_wakes_it() {
        let (mut keys, now, wait) = (Keys::default(), Instant::now(), Duration::from_secs(9));
        keys.wake(name("a"));
        for early in [false, true] {
            keys.take(now).unwrap();
            keys.done(name("a"), Some(now + wait));
            assert_eq!((keys.take(now), keys.next()), (None, Some(now + wait)));
            if early {
                assert!(keys.wake(name("a")) && keys.later.is_empty());
                assert_eq!(keys.take(now), Some(name("a")));
            } else {
                assert_eq!(keys.take(now + wait), Some(name("a")));
                keys.done(name("a"), None);
                keys.wake(name("a"));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_woken_is_due_without_any_time_passing() {
        let queue = Queue::<k8s_openapi::api::core::v1::ConfigMap>::default();
        let start = Instant::now();
        queue.add(name("a"));
        queue.due().await;
        assert_eq!((queue.take(), start.elapsed()), (Some(name("a")), Duration::ZERO));
        queue.done(name("a"), Some(Duration::from_millis(5)));
        // A wake-up that was served already may be told once more.
        while queue.take().is_none() {
            queue.due().await;
        }
        assert!(start.elapsed() >= Duration::from_millis(5));
    }
}
