//! A watch of one prefix, made of etcd's watch of all keys.
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use futures::StreamExt as _;
use futures::stream;

use super::super::{Event, Rev, Store as _, StoreError, Watch};
use super::failure::{self, Asked};
use super::track::{Fit, Track};
use super::{EtcdStore, kv_of, rev, signed};

/// Why one event of etcd ends the watch.
enum Unfit {
    /// What was before it is forgotten.
    Forgotten,
    /// Anything else.
    Error(StoreError),
}

struct Follower {
    store: EtcdStore,
    /// The root and the prefix.
    prefix: Vec<u8>,
    track: Track,
    source: WatchStream,
    ready: VecDeque<Event>,
    /// Why the watch ends once what is ready was given.
    end: Option<StoreError>,
    over: bool,
}

/// The events of a prefix after `after`, in a store that is at `now`.
pub(super) async fn follow(
    store: EtcdStore,
    prefix: Vec<u8>,
    after: Rev,
    now: Rev,
) -> Result<Watch, StoreError> {
    let options =
        WatchOptions::new().with_all_keys().with_start_revision(signed(after.next())).with_prev_key();
    let apart = store.apart().await?;
    let source = store.sent(|| {
        // Answers come whole, however long: of one that came in parts nobody could tell where a revision ends.
        let mut client = apart.watch_client().max_decoding_message_size(usize::MAX);
        let options = options.clone();
        async move { client.watch([], Some(options)).await }
    });
    let source = source.await.map_err(|error| failure::failed(error, Asked::Read))?;
    let mut track = Track::new(after, now);
    let ready = track.progress().map(Event::Progress).into_iter().collect();
    let follower = Follower { store, prefix, track, source, ready, end: None, over: false };
    Ok(stream::unfold(follower, |mut follower| async move {
        let next = follower.next().await?;
        Some((next, follower))
    })
    .boxed())
}

impl Follower {
    async fn next(&mut self) -> Option<Result<Event, StoreError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if let Some(error) = self.end.take() {
                self.over = true;
                return Some(Err(error));
            }
            if self.over {
                return None;
            }
            match self.source.message().await {
                Ok(Some(answer)) => self.take(&answer).await,
                Ok(None) => self.end = Some(failure::cut("etcd ended the watch".to_owned())),
                Err(error) => self.end = Some(failure::failed(error, Asked::Read)),
            }
        }
    }

    async fn take(&mut self, answer: &WatchResponse) {
        if let Err(error) = self.store.rev(answer.header()) {
            self.end = Some(error);
            return;
        }
        if answer.canceled() {
            self.end = Some(match answer.compact_revision() {
                0 => failure::cut(format!("etcd cancelled the watch: {}", answer.cancel_reason())),
                at => StoreError::Compacted { at: rev(at) },
            });
            return;
        }
        for event in answer.events() {
            match self.event(event) {
                Ok(()) => {}
                Err(Unfit::Error(error)) => {
                    self.end = Some(error);
                    return;
                }
                Err(Unfit::Forgotten) => {
                    let at = self.store.compacted().await;
                    self.end = Some(at.map_or_else(|error| error, |at| StoreError::Compacted { at }));
                    return;
                }
            }
        }
        self.ready.extend(self.track.progress().map(Event::Progress));
    }

    fn event(&mut self, event: &etcd_client::Event) -> Result<(), Unfit> {
        let nothing = || Unfit::Error(failure::corrupt("an event has no key"));
        let kv = event.kv().ok_or_else(nothing)?;
        let at = rev(kv.mod_revision());
        match self.track.take(at, kv.key()) {
            Fit::Next => {
                // What was told of was committed: what is asked for later cannot be older.
                self.store.shared.newest.fetch_max(at.0, Ordering::AcqRel);
            }
            Fit::Repeated => return Ok(()),
            Fit::Missing => {
                let seen = self.track.seen();
                let before = self.store.shared.missing.swap(seen.0, Ordering::Relaxed);
                tracing::error!("etcd left out the revisions between {seen} and {at}");
                // Asked once more it may tell them; if not, they are lost.
                return Err(if before == seen.0 {
                    Unfit::Error(StoreError::Compacted { at })
                } else {
                    Unfit::Error(failure::cut(format!("etcd left out the revisions between {seen} and {at}")))
                });
            }
        }
        if !kv.key().starts_with(&self.prefix) {
            return Ok(());
        }
        let root = self.store.shared.root.len();
        let ours = |kv: &etcd_client::KeyValue| kv_of(kv.clone(), root).map_err(Unfit::Error);
        let prev = event.prev_kv().map(ours).transpose()?;
        let event = match event.event_type() {
            EventType::Put => {
                // A key that was there before comes with what it was, or that is forgotten.
                if kv.create_revision() != kv.mod_revision() && prev.is_none() {
                    return Err(Unfit::Forgotten);
                }
                Event::Put { kv: ours(kv)?, prev }
            }
            EventType::Delete => {
                let key = Bytes::copy_from_slice(kv.key()).slice(root..);
                Event::Delete { key, rev: at, prev: prev.ok_or(Unfit::Forgotten)? }
            }
        };
        self.ready.push_back(event);
        self.track.tell(at);
        Ok(())
    }
}
