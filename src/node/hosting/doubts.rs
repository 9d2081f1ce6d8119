//! Controller calls that may still be at work in the plugin, although nobody here waits for them: they ended without the
//! plugin's word, or were begun before this daemon was.
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::ResourceExt as _;
use tokio::time::Instant;

use crate::api::snapshot::SnapshotOf;
use crate::api::{Snapshot, Volume, VolumeAttachment};
use crate::csi::Failure;

/// Until when, by the volume's uid and by what the calls are remembered under. In memory only: what an earlier daemon began is
/// in doubt by [`Doubts::begin_with`].
#[derive(Debug)]
pub struct Doubts {
    longest_call: Duration,
    until: Mutex<HashMap<String, HashMap<String, Instant>>>,
    inherited: Mutex<HashSet<String>>,
    untouched: Mutex<HashMap<String, i64>>,
}

/// The uid of what a call may have been about, and what it is remembered under.
type Called = (String, String);

/// What an earlier daemon may have made calls about, of all that names this node as its host: one at a time under each key.
pub fn callable(
    volumes: &[Arc<Volume>],
    attachments: &[Arc<VolumeAttachment>],
    snapshots: &[Arc<Snapshot>],
) -> Vec<Called> {
    let of_volumes =
        volumes.iter().filter_map(|one| one.uid()).map(|uid| (uid.clone(), format!("vol/{uid}")));
    let of_attachments = attachments.iter().filter_map(|one| {
        let uid = one.uid()?;
        Some((one.spec.volume_uid.clone(), format!("host/{uid}")))
    });
    let of_snapshots = snapshots.iter().filter_map(|one| {
        let (uid, of) = (one.uid()?, one.status.as_ref().and_then(|status| status.of.as_ref()));
        // As long as it is not ready its calls are about its volume.
        let volumes = of.into_iter().flat_map(SnapshotOf::uids).map(str::to_owned);
        let abouts = volumes.chain([uid.clone()]);
        Some(abouts.map(move |about| (about, format!("snap/{uid}"))))
    });
    of_volumes.chain(of_attachments).chain(of_snapshots.flatten()).collect()
}

impl Doubts {
    /// Nothing is in doubt. A plugin is done with a call at the latest so long after it began.
    pub fn new(longest_call: Duration) -> Self {
        Self {
            longest_call,
            until: Mutex::default(),
            inherited: Mutex::default(),
            untouched: Mutex::default(),
        }
    }

    /// What this node was host of when its daemon began.
    pub fn begin_with(&self, called: impl IntoIterator<Item = Called>) {
        let until = Instant::now() + self.longest_call;
        let mut all = self.all();
        for (about, key) in called {
            self.inherited.lock().unwrap_or_else(PoisonError::into_inner).insert(about.clone());
            all.entry(about).or_default().insert(key, until);
        }
    }

    /// A call that is also about this is about to be made, and remembered under `key`: until when an earlier one was in doubt.
    /// Whoever lets go of it from now on sees that; whoever begins looks once more whether it was let go before.
    pub(super) fn begin(&self, about: &str, key: &str) -> Option<Instant> {
        let until = Instant::now() + self.longest_call;
        self.all().entry(about.to_owned()).or_default().insert(key.to_owned(), until)
    }

    /// The call was not made after all.
    pub(super) fn unbegin(&self, about: &str, key: &str, before: Option<Instant>) {
        let mut all = self.all();
        let Some(calls) = all.get_mut(about) else { return };
        match before {
            Some(until) => drop(calls.insert(key.to_owned(), until)),
            None => drop(calls.remove(key)),
        }
    }

    /// The server was told that a snapshot may be asked for under this epoch, and nothing was sent yet.
    pub(super) fn set_untouched(&self, snapshot: &str, epoch: i64) {
        self.untouched.lock().unwrap_or_else(PoisonError::into_inner).insert(snapshot.to_owned(), epoch);
    }

    /// Something was sent.
    pub(super) fn set_touched(&self, snapshot: &str) {
        self.untouched.lock().unwrap_or_else(PoisonError::into_inner).remove(snapshot);
    }

    /// Whether nothing was sent of what the server was told of under this epoch. In between another node may have been host.
    pub(super) fn is_untouched(&self, snapshot: &str, epoch: i64) -> bool {
        self.untouched.lock().unwrap_or_else(PoisonError::into_inner).get(snapshot) == Some(&epoch)
    }

    /// Whether an earlier daemon may have made calls about it in the name of this node.
    pub(super) fn inherited(&self, volume: &str) -> bool {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner).contains(volume)
    }

    /// A call about the volume, begun then and remembered under `key`, has ended so. An answer says nothing of what is remembered
    /// under another key.
    pub(super) fn ended<T>(&self, (volume, key): (&str, &str), began: Instant, result: &Result<T, Failure>) {
        let mut all = self.all();
        let mut doubt = |until| {
            all.entry(volume.to_owned()).or_default().insert(key.to_owned(), until);
        };
        match result {
            // Nothing was sent, which says nothing of an earlier one.
            Err(failure) if failure.is_unsent() => {}
            Err(failure) if !failure.is_answer() => doubt(began + self.longest_call),
            // It says that it is at work on an earlier one.
            Err(failure) if failure.is_aborted() => doubt(Instant::now() + self.longest_call),
            Ok(_) | Err(_) => {
                if let Some(calls) = all.get_mut(volume) {
                    calls.remove(key);
                }
            }
        }
    }

    /// How long the plugin may still be at work on the volume.
    pub(super) fn left(&self, volume: &str) -> Option<Duration> {
        let mut all = self.all();
        let now = Instant::now();
        let calls = all.get_mut(volume)?;
        calls.retain(|_, until| *until > now);
        let left = calls.values().max().map(|until| *until - now);
        if left.is_none() {
            all.remove(volume);
        }
        left
    }

    /// The volume is gone, or is another node's.
    pub fn forget(&self, volume: &str) {
        self.all().remove(volume);
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner).remove(volume);
        self.untouched.lock().unwrap_or_else(PoisonError::into_inner).remove(volume);
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<String, HashMap<String, Instant>>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::Rpc;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_the_doubt_of_its_own_calls_alone() {
        let longest = Duration::from_secs(60);
        let doubts = Doubts::new(longest);
        let late = |rpc| Err::<(), _>(Failure::deadline(rpc, Duration::from_secs(10)));
        let began = Instant::now();
        doubts.ended(("v", "snap/1"), began, &late(Rpc::CreateSnapshot));
        doubts.ended(("v", "vol/v"), began, &Ok(()));
        assert_eq!(doubts.left("v"), Some(longest), "the snapshot may still be being cut");
        assert_eq!(doubts.left("w"), None);
        tokio::time::advance(Duration::from_secs(20)).await;
        doubts.ended(("v", "vol/v"), Instant::now(), &late(Rpc::ControllerExpandVolume));
        assert_eq!(doubts.left("v"), Some(longest), "the later one counts");
        doubts.ended(("v", "vol/v"), Instant::now(), &Ok(()));
        assert_eq!(doubts.left("v"), Some(Duration::from_secs(40)));
        doubts.ended(("v", "snap/1"), Instant::now(), &Ok(()));
        assert_eq!(doubts.left("v"), None);
        doubts.ended(("v", "vol/v"), Instant::now(), &late(Rpc::DeleteVolume));
        tokio::time::advance(longest).await;
        assert_eq!(doubts.left("v"), None, "by now the plugin is done with it");
    }

    #[tokio::test(start_paused = true)]
    async fn of_what_an_earlier_daemon_began_each_call_is_in_doubt_for_itself() {
        let longest = Duration::from_secs(60);
        let doubts = Doubts::new(longest);
        let volume = object(json!({ "spec": { "source": {}, "plugin": "p", "accessModes": [] } }), "v");
        let to = json!({ "volume": "v", "volumeUid": "v", "nodeName": "n", "claim": { "name": "c", "uid": "c" }, "plugin": "p", "handle": "h", "attachRequired": true,
            "stageRequired": false, "capability": { "accessMode": "SingleNodeWriter" } });
        let attachment = object(json!({ "spec": to }), "a");
        let of = json!({ "volume": "w", "uid": "w", "plugin": "p" });
        let snapshot = object(json!({ "spec": { "source": {} }, "status": { "of": of } }), "s");
        doubts.begin_with(callable(&[volume], &[attachment], &[snapshot]));
        for (about, key) in [("v", "vol/v"), ("w", "snap/s"), ("s", "snap/s")] {
            assert!(doubts.inherited(about), "{about}");
            assert_eq!(doubts.left(about), Some(longest), "{about}");
            doubts.ended((about, key), Instant::now(), &Ok(()));
            let attached = about == "v";
            assert_eq!(doubts.left(about), attached.then_some(longest), "{about}");
        }
        doubts.ended(("v", "host/a"), Instant::now(), &Ok(()));
        assert_eq!(doubts.left("v"), None);
        assert!(doubts.inherited("v"), "whatever was answered since");
    }

    fn object<K: serde::de::DeserializeOwned>(mut fields: serde_json::Value, uid: &str) -> Arc<K> {
        fields["metadata"] = json!({ "name": uid, "uid": uid });
        serde_json::from_value(fields).unwrap()
    }
}
