//! What the controllers say of handles: that they were compared with those of all other objects.
use std::collections::BTreeMap;
use std::fmt::Debug;

use futures::StreamExt;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use wharfline::api::{Snapshot, Volume};

/// Says it of every Volume and Snapshot while `speaks` is true, until nobody can change that any more.
pub fn compare(client: &Client, speaks: &watch::Receiver<bool>) {
    let volume = |object: &Volume| {
        let status = object.status.as_ref()?;
        (status.handle_checked != status.handle).then(|| json!({ "handleChecked": status.handle }))
    };
    let snapshot = |object: &Snapshot| {
        let status = object.status.as_ref()?;
        let known: Vec<_> = status.known_by().collect();
        (status.handles_checked != known).then(|| json!({ "handlesChecked": known }))
    };
    tokio::spawn(say(Api::<Volume>::all(client.clone()), speaks.clone(), volume));
    tokio::spawn(say(Api::<Snapshot>::namespaced(client.clone(), "default"), speaks.clone(), snapshot));
}

async fn say<K>(api: Api<K>, mut speaks: watch::Receiver<bool>, unsaid: impl Fn(&K) -> Option<Value>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut seen: BTreeMap<String, K> = BTreeMap::new();
    let mut changes = Box::pin(watcher(api.clone(), watcher::Config::default()).applied_objects());
    loop {
        tokio::select! {
            change = changes.next() => {
                if let Some(Ok(object)) = change {
                    seen.insert(object.name_any(), object);
                }
            }
            told = speaks.changed() => {
                if told.is_err() {
                    return;
                }
            }
        }
        let speaks = *speaks.borrow();
        for (name, object) in seen.iter().filter(|_| speaks) {
            if let Some(status) = unsaid(object) {
                // It may be gone by now.
                let patch = Patch::Merge(json!({ "metadata": { "uid": object.uid() }, "status": status }));
                let _ = api.patch_status(name, &PatchParams::default(), &patch).await;
            }
        }
        seen.retain(|_, object| !speaks || unsaid(object).is_none());
    }
}
