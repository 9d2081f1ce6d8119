//! Which of several servers runs the controllers.
//!
//! A lease that its holder renews. Nobody compares clocks: a lease has run out when *we* saw it unchanged for as long as it
//! lasts. The holder counts from when it asked for the renewal and stops earlier than anybody may follow it.
use std::time::Duration;

/// What is seen of the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Who holds it; empty when it was given back.
    pub holder: String,
    /// How long it lasts without renewal.
    pub lasts: Duration,
    /// For how long we have seen it as it is.
    pub unchanged: Duration,
}

/// What to do about the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is none: make it.
    Make,
    /// Ours, or nobody's any more: enter us, if it is still as seen.
    Take,
    /// Another's. Look again after so long, or when it changes.
    Wait(Duration),
}

/// The next step of who wants to lead as `me`.
pub fn next(me: &str, seen: Option<&Seen>) -> Step {
    let Some(seen) = seen else { return Step::Make };
    // Ours of before a restart: whoever led under this name is we, or has ended.
    if seen.holder.is_empty() || seen.holder == me {
        return Step::Take;
    }
    match seen.lasts.checked_sub(seen.unchanged).filter(|left| !left.is_zero()) {
        Some(left) => Step::Wait(left),
        None => Step::Take,
    }
}

/// How often the holder renews, for a lease that lasts so long.
pub fn period(lasts: Duration) -> Duration {
    lasts / 5
}

/// How much longer the holder leads that asked for its last renewal so long ago: a third less than the lease lasts, so that it
/// has ended its work when another takes over. None: no longer.
pub fn leads_for(lasts: Duration, renewed_ago: Duration) -> Option<Duration> {
    (lasts * 2 / 3).checked_sub(renewed_ago).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(15);

    fn seen(holder: &str, unchanged: u64) -> Seen {
        Seen { holder: holder.to_owned(), lasts: LASTS, unchanged: Duration::from_secs(unchanged) }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_nobodys() {
        for (what, lease, wanted) in [
            ("none", None, Step::Make),
            ("given back", Some(seen("", 0)), Step::Take),
            ("ours of before", Some(seen("a", 0)), Step::Take),
            ("another's, fresh", Some(seen("b", 0)), Step::Wait(LASTS)),
            ("another's, older", Some(seen("b", 14)), Step::Wait(Duration::from_secs(1))),
            ("another's, at its end", Some(seen("b", 15)), Step::Take),
            ("another's, run out", Some(seen("b", 100)), Step::Take),
        ] {
            assert_eq!(next("a", lease.as_ref()), wanted, "{what}");
        }
    }

    #[test]
    fn who_leads_ends_before_another_may_begin() {
        // The holder renews at second 0, as it counts; the other sees that at once, or later.
        for second in 0..40 {
            let ago = Duration::from_secs(second);
            let leads = leads_for(LASTS, ago).is_some();
            let taken = next("b", Some(&seen("a", second))) == Step::Take;
            assert!(!(leads && taken), "both at second {second}");
        }
        assert_eq!(leads_for(LASTS, Duration::from_secs(4)), Some(Duration::from_secs(6)));
        assert_eq!(leads_for(LASTS, Duration::from_secs(10)), None);
        assert!(period(LASTS) * 3 < LASTS * 2 / 3, "two renewals may fail");
    }
}
