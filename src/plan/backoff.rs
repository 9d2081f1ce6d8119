//! When a failed step is tried again.
//!
//! Belongs to (object, step, cause): a new cause starts again at the first delay. An early wake-up neither lengthens nor
//! shortens the delay. Capped at one minute, with jitter that the caller draws.
use std::time::Duration;

/// The first delay.
pub const FIRST: Duration = Duration::from_millis(250);
/// The longest delay.
pub const LAST: Duration = Duration::from_secs(60);

/// What is remembered of one failing step. Times are on the caller's monotonic clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing<C> {
    /// Why it failed last.
    pub cause: C,
    /// How often in a row with that cause, from 1.
    pub attempts: u32,
    /// When it may be tried again.
    pub due: Duration,
}

/// The record after one more failure at `now`; `jitter` is a fraction of the delay from 0 to 255/256.
pub fn failed<C: PartialEq>(before: Option<&Failing<C>>, cause: C, now: Duration, jitter: u8) -> Failing<C> {
    let attempts = match before {
        Some(before) if before.cause == cause => before.attempts.saturating_add(1),
        Some(_) | None => 1,
    };
    let full = FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(LAST);
    // Between three quarters of the delay and all of it.
    let delay = full.saturating_sub(full / 4 * u32::from(jitter) / 256);
    Failing { cause, attempts, due: now + delay }
}

/// How long to wait still, if at all.
pub fn remaining<C>(failing: &Failing<C>, now: Duration) -> Option<Duration> {
    failing.due.checked_sub(now).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Obligation CO-GEN-25.
    #[test]
    fn delays_grow_to_the_cap_and_start_again_with_a_new_cause() {
        let now = Duration::ZERO;
        let mut record = failed(None, 'a', now, 0);
        let mut delays = vec![record.due];
        for _ in 0..12 {
            record = failed(Some(&record), 'a', now, 0);
            delays.push(record.due);
        }
        assert_eq!(delays[0], FIRST);
        assert!(delays.windows(2).all(|w| w[0] <= w[1]));
        assert_eq!(*delays.last().expect("not empty"), LAST);
        assert_eq!(failed(Some(&record), 'b', now, 0).due, FIRST);
        assert_eq!(
            failed(Some(&Failing { cause: 'a', attempts: u32::MAX, due: now }), 'a', now, 0).due,
            LAST
        );
    }

    /// Obligation CO-GEN-25.
    #[test]
    fn jitter_takes_a_quarter_at_most() {
        let least = failed::<char>(None, 'a', Duration::ZERO, 255).due;
        assert!(least >= FIRST / 4 * 3 && least < FIRST);
    }

    #[test]
    fn what_is_due_does_not_wait() {
        let record = failed(None, 'a', Duration::from_secs(5), 0);
        assert_eq!(remaining(&record, Duration::from_secs(5)), Some(FIRST));
        assert_eq!(remaining(&record, Duration::from_secs(6)), None);
    }
}
