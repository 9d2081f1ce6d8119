//! A watch is a position in the history, and nothing else.
//!
//! It reads the writes above its position, a bounded chunk at a time, and when there are none it waits for
//! the next commit. So it cannot miss a write between replaying and following, it holds no more than one
//! chunk however slow its consumer is, and a failed engine that was opened again costs it nothing.
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use futures::StreamExt;
use futures::stream;
use tokio::sync::watch;

use super::Reading;
use super::core::Core;
use super::fault::Fault;
use super::snapshot::ChunkLimit;
use crate::store::{Event, Rev, StoreError, Watch};

/// What one watch holds at most, but for one event that may go over.
const CHUNK: ChunkLimit = ChunkLimit { revisions: 256, bytes: 1024 * 1024 };

pub(super) struct Follower {
    core: Weak<Core>,
    reading: Reading,
    published: watch::Receiver<Rev>,
    prefix: Arc<[u8]>,
    /// A consumer that fell this many revisions behind after it had caught up once is cut.
    lag: u64,
    /// All writes up to here are delivered or in `pending`.
    position: Rev,
    pending: VecDeque<Event>,
    /// The revision that the consumer knows of; `None` until it has caught up.
    told: Option<Rev>,
}

impl Follower {
    pub(super) fn new(core: &Arc<Core>, reading: Reading, prefix: &[u8], after: Rev, lag: u64) -> Self {
        Follower {
            core: Arc::downgrade(core),
            reading,
            published: core.subscribe(),
            prefix: prefix.into(),
            lag,
            position: after,
            pending: VecDeque::new(),
            told: None,
        }
    }

    pub(super) fn into_stream(self) -> Watch {
        let steps = stream::unfold(Some(self), |follower| async move {
            let mut follower = follower?;
            match follower.next().await {
                Ok(event) => Some((Ok(event), Some(follower))),
                Err(error) => Some((Err(error), None)),
            }
        });
        steps.boxed()
    }

    async fn next(&mut self) -> Result<Event, StoreError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                self.told = self.told.map(|_| event.rev());
                return Ok(event);
            }
            let current = *self.published.borrow_and_update();
            if self.position < current {
                self.read(current).await?;
            } else if self.told.is_none_or(|told| told < self.position) {
                self.told = Some(self.position);
                return Ok(Event::Progress(self.position));
            } else {
                self.published.changed().await.map_err(|_| Fault::Closed)?;
            }
        }
    }

    async fn read(&mut self, current: Rev) -> Result<(), StoreError> {
        if self.told.is_some() && current.0 - self.position.0 > self.lag {
            return Err(StoreError::TooSlow { delivered: self.position, current });
        }
        let core = self.core.upgrade().ok_or(Fault::Closed)?;
        let (prefix, position) = (self.prefix.clone(), self.position);
        // What is still in memory costs less than handing the question to another thread.
        let (events, reached) = match core.recent(&prefix, position, CHUNK) {
            Some(found) => found,
            None => self.reading.run(core, move |core| core.history(&prefix, position, CHUNK)).await?,
        };
        self.pending = events.into();
        self.position = reached;
        Ok(())
    }
}
