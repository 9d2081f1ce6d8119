//! Decides how much history to keep, and forgets the rest from time to time.
//!
//! [`History::forget_below`] is the decision and is pure; [`run_compactor`] is the loop around it. Two
//! loops on one store do no harm: compaction only ever moves up.
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Rev, Store};

/// How much history survives. Both rules must allow a revision to be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepPolicy {
    /// Whatever was current at some moment this long ago can still be listed and watched from.
    pub age: Duration,
    /// At least this many of the newest revisions.
    pub revisions: u64,
    /// How long to wait between two looks; also how exact `age` is.
    pub every: Duration,
}

impl Default for KeepPolicy {
    fn default() -> Self {
        KeepPolicy { age: Duration::from_secs(300), revisions: 10_000, every: Duration::from_secs(60) }
    }
}

/// When the store was seen at which revision: no longer than the policy's age needs, so bounded.
#[derive(Debug, Default)]
pub struct History {
    seen: VecDeque<(Instant, Rev)>,
}

impl History {
    /// Notes that the store was at `current` at `now`, and says up to which revision to compact, if any.
    pub fn forget_below(&mut self, policy: &KeepPolicy, now: Instant, current: Rev) -> Option<Rev> {
        self.seen.push_back((now, current));
        let aged = |&(then, _): &(Instant, Rev)| now.duration_since(then) >= policy.age;
        // Of the aged ones only the newest matters; it stays while the other rule holds it back.
        while self.seen.get(1).is_some_and(aged) {
            self.seen.pop_front();
        }
        let (_, rev) = *self.seen.front().filter(|first| aged(first))?;
        let below = rev.min(Rev(current.0.saturating_sub(policy.revisions)));
        (below > Rev::ZERO).then_some(below)
    }
}

/// Compacts `store` by `policy` until dropped. A failure is logged and the next look tries again.
pub async fn run_compactor(store: Arc<dyn Store>, policy: KeepPolicy) {
    let mut history = History::default();
    loop {
        let outcome = match store.revision().await {
            Ok(current) => match history.forget_below(&policy, Instant::now(), current) {
                Some(rev) => store.compact(rev).await,
                None => Ok(()),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            tracing::warn!(error = &error as &dyn std::error::Error, "compaction put off");
        }
        tokio::time::sleep(policy.every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_rules_must_allow_it() {
        let policy = KeepPolicy { revisions: 100, ..KeepPolicy::default() };
        let start = Instant::now();
        let mut history = History::default();
        let cases = [
            (0, 500, None),
            (60, 500, None),
            (299, 900, None),
            (300, 900, Some(500)), // what was seen at 0
            (359, 900, Some(500)), // what was seen at 0: of 60 one second is missing
            (599, 950, Some(850)), // 900 is old enough, but the newest hundred stay
            (700, 960, Some(860)),
            (9999, 960, Some(860)), // a quiet store keeps its newest hundred
        ];
        for (seconds, current, forgotten) in cases {
            let now = start + Duration::from_secs(seconds);
            assert_eq!(
                history.forget_below(&policy, now, Rev(current)),
                forgotten.map(Rev),
                "at {seconds} s"
            );
        }
        assert_eq!(history.seen.len(), 2); // the aged one that counts, and now
    }

    #[test]
    fn a_young_store_forgets_nothing() {
        let start = Instant::now();
        let mut history = History::default();
        for minute in 0..60 {
            let now = start + Duration::from_secs(60 * minute);
            assert_eq!(history.forget_below(&KeepPolicy::default(), now, Rev(150 * minute)), None);
            assert!(history.seen.len() <= 7);
        }
    }
}
