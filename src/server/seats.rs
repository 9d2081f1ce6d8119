//! Seats: how many requests are worked on at once, and whose turn is next.
//!
//! Whoever waits is served in turns per identity, so that a flood of one delays that one alone: it waits behind its own
//! requests, and is refused when too many of them wait. A lone client gets all that one identity may have. The parts of
//! the server's own process take no seat.
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::access::Verb;
use super::status::Refusal;

/// How many seats there are, and how many an identity may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seating {
    /// All seats. 256.
    pub seats: usize,
    /// The most that requests of one identity take at once. 128.
    pub each: usize,
    /// The most requests of one identity that wait; more get 429. 1,024.
    pub waiting: usize,
}

impl Default for Seating {
    fn default() -> Self {
        Self { seats: 256, each: 128, waiting: 1024 }
    }
}

/// How many seats a request takes: a list is the work of many objects.
pub(crate) fn width(verb: Verb) -> usize {
    match verb {
        Verb::Get | Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => 1,
        Verb::Watch => 8,
        Verb::List | Verb::DeleteCollection => 32,
    }
}

/// The seats of one server.
pub(crate) struct Seats {
    seating: Seating,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    taken: usize,
    guests: HashMap<String, Guest>,
    /// Who has requests that wait, the next one first; each stands here once.
    turns: VecDeque<String>,
}

#[derive(Default)]
struct Guest {
    taken: usize,
    waiting: VecDeque<(usize, oneshot::Sender<Seat>)>,
}

/// The right to work on a request, until it is dropped.
pub(crate) struct Seat {
    seats: Option<Arc<Seats>>,
    who: String,
    width: usize,
}

impl Seats {
    /// All free.
    pub(crate) fn new(seating: Seating) -> Arc<Self> {
        Arc::new(Self { seating, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a seat; refuses when too many requests of the same identity wait.
    pub(crate) async fn take(self: &Arc<Self>, who: &str, width: usize) -> Result<Seat, Refusal> {
        let width = width.clamp(1, self.seating.each.min(self.seating.seats));
        let turn = {
            let mut state = self.state();
            let guest = state.guests.entry(who.to_owned()).or_default();
            // Those whose client has gone do not count.
            guest.waiting.retain(|(_, give)| !give.is_closed());
            if guest.waiting.len() >= self.seating.waiting {
                return Err(Refusal::too_many(1));
            }
            let (give, turn) = oneshot::channel();
            guest.waiting.push_back((width, give));
            if guest.waiting.len() == 1 {
                state.turns.push_back(who.to_owned());
            }
            turn
        };
        self.serve();
        turn.await.map_err(|_| Refusal::unavailable("the server closes"))
    }

    /// Gives free seats to those who wait, one request of each in turn.
    fn serve(self: &Arc<Self>) {
        let mut state = self.state();
        let State { taken, guests, turns } = &mut *state;
        let mut passed_over = 0;
        while passed_over < turns.len() {
            let Some(who) = turns.pop_front() else { break };
            let Some(guest) = guests.get_mut(&who) else { continue };
            while guest.waiting.front().is_some_and(|(_, give)| give.is_closed()) {
                guest.waiting.pop_front();
            }
            if guest.waiting.is_empty() && guest.taken == 0 {
                guests.remove(&who);
                continue;
            }
            let Some(width) = guest.waiting.front().map(|(width, _)| *width) else { continue };
            if guest.taken + width > self.seating.each {
                // It waits for its own requests; others need not.
                turns.push_back(who);
                passed_over += 1;
                continue;
            }
            if *taken + width > self.seating.seats {
                // Whoever is first stays first, so that a wide request is not passed by narrow ones for ever.
                turns.push_front(who);
                break;
            }
            passed_over = 0;
            let Some((width, give)) = guest.waiting.pop_front() else { continue };
            *taken += width;
            guest.taken += width;
            if !guest.waiting.is_empty() {
                turns.push_back(who.clone());
            }
            if let Err(mut unused) =
                give.send(Seat { seats: Some(Arc::clone(self)), who: who.clone(), width })
            {
                // Given up in this moment: its seat is taken back here, not by dropping it.
                unused.seats = None;
                *taken -= width;
                guest.taken -= width;
            }
        }
    }

    fn leave(self: &Arc<Self>, who: &str, width: usize) {
        {
            let mut state = self.state();
            state.taken -= width;
            if let Some(guest) = state.guests.get_mut(who) {
                guest.taken -= width;
                if guest.taken == 0 && guest.waiting.is_empty() {
                    state.guests.remove(who);
                }
            }
        }
        self.serve();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(seats) = self.seats.take() {
            seats.leave(&self.who, self.width);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    const SEATING: Seating = Seating { seats: 4, each: 3, waiting: 2 };

    /// Seats of `SEATING`, and one request asked for without waiting.
    fn now(seats: &Arc<Seats>, who: &str, width: usize) -> Option<Seat> {
        seats.take(who, width).now_or_never().and_then(Result::ok)
    }

    #[tokio::test]
    async fn one_has_its_share_and_others_find_room() {
        let seats = Seats::new(SEATING);
        let held: Vec<Seat> = (0..3).filter_map(|_| now(&seats, "a", 1)).collect();
        assert_eq!(held.len(), 3);
        assert!(now(&seats, "a", 1).is_none(), "a fourth waits");
        let other = now(&seats, "b", 1);
        assert!(other.is_some());
        assert!(now(&seats, "c", 1).is_none(), "all are taken");
        drop(held);
        drop(other);
        assert!(now(&seats, "c", 100).is_some(), "a wide one takes what one may have");
        assert!(seats.state().guests.is_empty() && seats.state().taken == 0);
    }

    #[tokio::test]
    async fn who_waits_is_served_in_turns() {
        let seats = Seats::new(SEATING);
        let first = now(&seats, "a", 3).unwrap();
        let second = now(&seats, "z", 1).unwrap();
        let flood = [tokio::spawn(asked(&seats, "a")), tokio::spawn(asked(&seats, "a"))];
        tokio::task::yield_now().await;
        let refusal = seats.take("a", 1).await.err().unwrap();
        assert_eq!((refusal.code.as_u16(), refusal.details.retry_after), (429, Some(1)));
        let other = tokio::spawn(asked(&seats, "b"));
        tokio::task::yield_now().await;
        drop(second);
        // The seat goes to b, although a's requests were first: a has its share.
        let other = other.await.unwrap();
        assert!(flood.iter().all(|one| !one.is_finished()));
        drop(first);
        for one in flood {
            drop(one.await.unwrap());
        }
        drop(other);
        assert!(seats.state().guests.is_empty() && seats.state().turns.is_empty());
    }

    fn asked(seats: &Arc<Seats>, who: &'static str) -> impl Future<Output = Seat> + Send + use<> {
        let seats = Arc::clone(seats);
        async move { seats.take(who, 1).await.ok().unwrap() }
    }

    #[tokio::test]
    async fn thousands_that_were_given_up_are_passed_over_in_one_go() {
        let seats = Seats::new(Seating { seats: 4, each: 3, waiting: 100_000 });
        let held = now(&seats, "z", 3).unwrap();
        let mut flood: Vec<_> = (0..10_000).map(|_| Box::pin(seats.take("a", 3))).collect();
        for one in &mut flood {
            assert!(futures::poll!(one.as_mut()).is_pending());
        }
        // All but one are given up while they wait.
        let mut last = flood.pop().unwrap();
        drop(flood);
        assert!(futures::poll!(last.as_mut()).is_pending());
        drop(held);
        assert!(last.await.is_ok());
        assert!(seats.state().guests.is_empty() && seats.state().taken == 0);
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_gives_its_place_back() {
        let seats = Seats::new(SEATING);
        let held = now(&seats, "a", 3).unwrap();
        assert!(now(&seats, "a", 1).is_none());
        assert!(now(&seats, "a", 1).is_none());
        drop(held);
        assert!(now(&seats, "a", 3).is_some());
        assert!(seats.state().guests.is_empty() && seats.state().taken == 0);
    }
}
