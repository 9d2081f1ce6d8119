//! Where the objects are whose status this daemon writes.
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::api::{Allocation, NodeAgent, PluginInstance, Snapshot, Volume, VolumeAttachment, VolumeClaim};

/// Where an object's API is.
pub trait ObjectApi: Sized {
    /// The API that holds the object.
    fn api(client: kube::Client, object: &Self) -> Api<Self>;

    /// Its status as JSON; null if it has none.
    fn status(object: &Self) -> serde_json::Result<Value>;
}

macro_rules! cluster {
    ($($kind:ty),*) => { $(impl ObjectApi for $kind {
        fn api(client: kube::Client, _: &Self) -> Api<Self> { Api::all(client) }
        fn status(object: &Self) -> serde_json::Result<Value> { serde_json::to_value(&object.status) }
    })* };
}
cluster!(Volume, VolumeAttachment, PluginInstance, NodeAgent);

macro_rules! namespaced {
    ($($kind:ty),*) => { $(impl ObjectApi for $kind {
        fn api(client: kube::Client, object: &Self) -> Api<Self> {
            Api::namespaced(client, &object.namespace().unwrap_or_default())
        }
        fn status(object: &Self) -> serde_json::Result<Value> { serde_json::to_value(&object.status) }
    })* };
}
namespaced!(Allocation, Snapshot, VolumeClaim);
