//! The newest events, kept in memory so that watchers that keep up read nothing from the file.
//!
//! Bounded by count and by bytes whatever the watchers do: it is history, not a queue for anyone.
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::snapshot::ChunkLimit;
use crate::store::{Event, Rev};

const MAX_EVENTS: usize = 1024;
const MAX_BYTES: usize = 2 * 1024 * 1024;

#[derive(Default)]
pub(super) struct Recent(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    /// Contiguous in revision.
    events: VecDeque<Event>,
    bytes: usize,
}

impl Recent {
    pub(super) fn append(&self, events: Vec<Event>) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            insist!(ring.events.back().is_none_or(|last| last.rev().next() == event.rev()));
            ring.bytes += weight(&event);
            ring.events.push_back(event);
        }
        while ring.events.len() > MAX_EVENTS || ring.bytes > MAX_BYTES {
            let Some(oldest) = ring.events.pop_front() else { break };
            ring.bytes -= weight(&oldest);
        }
    }

    pub(super) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Ring::default();
    }

    /// The writes above `after` to keys of `prefix`, and the revision up to which that is all of them; `None`
    /// when the ring does not reach back to `after`.
    pub(super) fn after(&self, prefix: &[u8], after: Rev, limit: ChunkLimit) -> Option<(Vec<Event>, Rev)> {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = ring.events.front()?.rev();
        let skip = usize::try_from(after.next().0.checked_sub(first.0)?).ok()?;
        let take = usize::try_from(limit.revisions).unwrap_or(usize::MAX);
        let seen = ring.events.iter().skip(skip).take(take);
        let last = seen.clone().last()?.rev();
        let matching = seen.filter(|event| event.key().is_some_and(|key| key.starts_with(prefix)));
        Some((matching.cloned().collect(), last))
    }
}

fn weight(event: &Event) -> usize {
    match event {
        Event::Put { kv, prev } => {
            kv.key.len() + kv.value.len() + prev.as_ref().map_or(0, |prev| prev.value.len())
        }
        Event::Delete { key, prev, .. } => key.len() + prev.value.len(),
        Event::Progress(_) => 0,
    }
}
