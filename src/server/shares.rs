//! How much of something one may hold at once, so that nobody takes all of it: open watches, connections.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::seats::Seating;

/// What may be open at once, and how much of it one identity may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open watches; more get 429. 16,384.
    pub watches: usize,
    /// Open watches of one identity. 4,096.
    pub watches_each: usize,
    /// Connections: half for those that show a certificate, a quarter for those that show none, a quarter for those that have
    /// not shown yet. 32,768.
    pub connections: usize,
    /// Connections of one certificate, and of one address that shows none; more are closed. 4,096.
    pub connections_each: usize,
    /// Bodies that are in memory, in units of 64 KiB, once for nodes and once for others: 2,048 (128 MiB), of one identity 256
    /// (16 MiB).
    pub bodies: Seating,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            watches: 16_384,
            watches_each: 4_096,
            connections: 32_768,
            connections_each: 4_096,
            bodies: Seating { seats: 2_048, each: 256, waiting: 1_024 },
        }
    }
}

/// So many in all, and so many of each.
pub(crate) struct Shares {
    all: usize,
    each: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    all: usize,
    of: HashMap<String, usize>,
}

/// One that is held, until it is dropped.
pub(crate) struct Share {
    shares: Arc<Shares>,
    who: String,
}

impl Shares {
    /// None held yet.
    pub(crate) fn new(all: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { all, each, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more for somebody; none when all are held, or this one holds all that one may.
    pub(crate) fn take(self: &Arc<Self>, who: &str) -> Option<Share> {
        let mut state = self.state();
        let held = state.of.get(who).copied().unwrap_or_default();
        if state.all >= self.all || held >= self.each {
            return None;
        }
        state.all += 1;
        state.of.insert(who.to_owned(), held + 1);
        Some(Share { shares: Arc::clone(self), who: who.to_owned() })
    }

    /// One more for a part of the server, which is counted and never refused.
    pub(crate) fn take_anyway(self: &Arc<Self>, who: &str) -> Share {
        let mut state = self.state();
        state.all += 1;
        *state.of.entry(who.to_owned()).or_default() += 1;
        Share { shares: Arc::clone(self), who: who.to_owned() }
    }

    /// One more for whoever holds a share of something else.
    pub(crate) fn take_as(self: &Arc<Self>, other: &Share) -> Option<Share> {
        self.take(&other.who)
    }

    /// How many are held.
    pub(crate) fn held(&self) -> usize {
        self.state().all
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.shares.state();
        state.all -= 1;
        if let Some(held) = state.of.get_mut(&self.who) {
            *held -= 1;
            if *held == 0 {
                state.of.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Shares;

    #[test]
    fn one_has_its_share_and_all_have_theirs() {
        let shares = Shares::new(3, 2);
        let one = shares.take("a").unwrap();
        let two = shares.take("a").unwrap();
        assert!(shares.take("a").is_none(), "a has what one may have");
        let three = shares.take("b").unwrap();
        assert!(shares.take("c").is_none(), "all are held");
        drop(one);
        assert_eq!(shares.held(), 2);
        let again = shares.take("c").unwrap();
        let own = [shares.take_anyway("server"), shares.take_anyway("server"), shares.take_anyway("server")];
        assert_eq!(shares.held(), 6);
        drop((again, two, three, own));
        assert!(shares.held() == 0 && shares.state().of.is_empty());
    }
}
