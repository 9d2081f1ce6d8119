//! The watches of a daemon, and who is woken by what they show.
use std::sync::Arc;

use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::allocations;
use super::caches::{Cache, follow};
use super::context::{Key, Node, handle_word, snapshot_word};
use super::mounts::has_to_stop;
use super::registry::InstanceKey;
use super::supervisor;
use crate::api::allocation::{AllocationPhase, AllocationVolume};
use crate::api::meta::Rung;
use crate::api::{Allocation, NodeAgent, Plugin, PluginInstance, Snapshot, Volume, VolumeAttachment};

const HOST_OF_ATTACHMENT: &str = "spec.host.nodeName";
const HOST_OF_VOLUME: &str = "status.controller.nodeName";

/// Everything that could need a hand gets one.
pub fn wake_all(node: &Node) {
    let wake = |key| node.queue.wake(key);
    node.caches.attachments.all().iter().for_each(|a| wake(Key::Mount(a.spec.volume.clone())));
    node.journal.attachments().into_iter().for_each(|a| wake(Key::Mount(a.volume)));
    node.caches.hosted.all().iter().for_each(|a| wake(Key::Host(a.spec.volume.clone())));
    node.caches.volumes.all().iter().for_each(|v| wake(Key::Host(v.name_any())));
    node.caches.snapshots.all().iter().for_each(|s| wake(Key::Host(snapshot_word(s))));
    node.caches.allocations.all().iter().for_each(|a| wake(Key::Allocation(a.uid().unwrap_or_default())));
    node.journal.tasks().into_iter().for_each(|t| wake(Key::Allocation(t.allocation.uid)));
    node.tasks.allocations().into_iter().for_each(|uid| wake(Key::Allocation(uid)));
    wake(Key::Agent);
}

/// Opens one watch; `field` must be this node's name in what it shows. Of what this node is host of, it asks for a new
/// list with every new term of the lease.
fn open<K>(
    node: &Arc<Node>,
    watches: &mut JoinSet<()>,
    field: Option<&str>,
    cache: &Arc<Cache<K>>,
    changed: impl Fn(&Arc<Node>, Option<&K>, Option<&K>) + Send + Sync + 'static,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let mut config = watcher::Config::default();
    if let Some(field) = field {
        config = config.fields(&format!("{field}={}", node.options.name));
    }
    let (api, cache, stop) = (Api::all(node.client.0.clone()), Arc::clone(cache), node.stop.clone());
    let hosted = matches!(field, Some(HOST_OF_ATTACHMENT | HOST_OF_VOLUME));
    let terms = hosted.then(|| node.tenure.subscribe());
    let node = Arc::clone(node);
    watches.spawn(async move {
        follow(api, config, cache, terms, stop, |old, new| changed(&node, old, new)).await;
    });
}

/// For watches to which the state before a change means as much as the one after it.
fn each<K>(
    concerned: fn(&Arc<Node>, &K),
) -> impl Fn(&Arc<Node>, Option<&K>, Option<&K>) + Send + Sync + 'static
where
    K: 'static,
{
    move |node, old, new| old.into_iter().chain(new).for_each(|object| concerned(node, object))
}

pub(super) fn open_watches(node: &Arc<Node>, watches: &mut JoinSet<()>) {
    let caches = &node.caches;
    open(node, watches, Some("status.nodeName"), &caches.allocations, |node, old, new| {
        let Some(uid) = new.or(old).and_then(ResourceExt::uid) else { return };
        // What this node writes of an allocation comes back here: its volumes are looked at for what concerns them.
        if old.map(matters) != new.map(matters) {
            for attachment in node.caches.attachments.of(&format!("user:{uid}")) {
                node.queue.wake(Key::Mount(attachment.spec.volume.clone()));
            }
            allocations::wake_volumes(node, &uid);
        }
        node.queue.wake(Key::Allocation(uid));
    });
    open(
        node,
        watches,
        Some("spec.nodeName"),
        &caches.attachments,
        each(|node, a: &VolumeAttachment| {
            // Whoever was not let in says who was.
            let claim = format!("claim:{}/{}", a.spec.claim.namespace, a.spec.claim.name);
            let users = node.caches.allocations.of(&claim).into_iter().filter_map(|user| user.uid());
            for uid in users.filter(|uid| !a.spec.allocations.contains(uid)) {
                node.queue.wake(Key::Allocation(uid));
            }
            // Whoever was let in may have ended, and wait for it to go; or it was taken from them.
            if a.spec.fenced || !node.caches.attachments.has(&a.uid().unwrap_or_default()) {
                a.spec.allocations.iter().for_each(|uid| node.queue.wake(Key::Allocation(uid.clone())));
            }
            node.queue.wake(Key::Mount(a.spec.volume.clone()));
            // Each refusal anew: how many volumes the node may have may not be what the plugin said (CO-CTRL-40), and the node
            // may not be called any more what it was (CO-CTRL-37).
            if a.refused() || a.is_unknown() {
                node.supervisors.ask_again(node, &a.spec.plugin);
            }
            // Another volume of the handle may wait for this one to go.
            for other in node.caches.attachments.of(&handle_word(&a.spec.plugin, &a.spec.handle)) {
                node.queue.wake(Key::Mount(other.spec.volume.clone()));
            }
        }),
    );
    open_hosted(node, watches);
    let instances = each(|node, i: &PluginInstance| {
        let (allocation, task) = (i.spec.allocation.uid.clone(), i.spec.task.clone());
        node.queue.wake(Key::Instance(InstanceKey { allocation, task }));
    });
    open(node, watches, Some("spec.nodeName"), &caches.instances, instances);
    open(node, watches, None, &caches.plugins, |node, old: Option<&Plugin>, new| {
        let Some(name) = new.or(old).map(ResourceExt::name_any) else { return };
        supervisor::look_again(node, &name);
        // How its instances on other nodes fare is nothing to those that wait here.
        let matters = |p: &Plugin| {
            let driver = p.status.as_ref().map(|s| s.driver_name.clone()).unwrap_or_default();
            (p.uid(), p.metadata.generation, driver)
        };
        if old.map(matters) != new.map(matters) {
            node.queue.wake(Key::Plugin(name));
        }
    });
    // One that was deleted and made again has to be told everything once more.
    open(node, watches, Some("metadata.name"), &caches.agent, |node, old: Option<&NodeAgent>, new| {
        if old.map(ResourceExt::uid) != new.map(ResourceExt::uid) {
            node.queue.wake(Key::Agent);
        }
    });
    // Whether the node is marked stopped concerns everything on it.
    open(node, watches, Some("metadata.name"), &caches.node, each(|node, _| wake_all(node)));
}

/// What this node is host of.
fn open_hosted(node: &Arc<Node>, watches: &mut JoinSet<()>) {
    let caches = &node.caches;
    let hosted = each(|node, a: &VolumeAttachment| {
        let uid = a.uid().unwrap_or_default();
        if !node.caches.hosted.has(&uid) {
            forget(node, &uid, &format!("host/{uid}"));
            // What this node let go of it need not be known any more.
            node.queue.wake(Key::Mount(a.spec.volume.clone()));
            wake_made_of(node, &a.spec.volume_uid);
        }
        node.queue.wake(Key::Host(a.spec.volume.clone()));
    });
    open(node, watches, Some(HOST_OF_ATTACHMENT), &caches.hosted, hosted);
    let volumes = each(|node, v: &Volume| {
        let uid = v.uid().unwrap_or_default();
        if !node.caches.volumes.has(&uid) {
            forget(node, &uid, &format!("vol/{uid}"));
            node.doubts.forget(&uid);
        }
        wake_made_of(node, &uid);
        node.queue.wake(Key::Host(v.name_any()));
    });
    open(node, watches, Some(HOST_OF_VOLUME), &caches.volumes, volumes);
    let snapshots = each(|node, s: &Snapshot| {
        let uid = s.uid().unwrap_or_default();
        if !node.caches.snapshots.has(&uid) {
            forget(node, &uid, &format!("snap/{uid}"));
            node.doubts.forget(&uid);
            // It is another node's by now, or nobody's.
            node.listed.end(&uid);
        }
        node.queue.wake(Key::Host(snapshot_word(s)));
    });
    open(node, watches, Some(HOST_OF_VOLUME), &caches.snapshots, snapshots);
}

/// What is being made of a volume: copies, and snapshots. What is cut of several volumes is no part of the look at one.
fn wake_made_of(node: &Node, uid: &str) {
    for snapshot in node.caches.snapshots.of(&format!("of:{uid}")) {
        node.queue.wake(Key::Host(snapshot_word(&snapshot)));
    }
    let unmade = |copy: &Arc<Volume>| copy.status.as_ref().is_none_or(|s| s.exists != Some(Rung::Up));
    for copy in node.caches.volumes.of(&format!("from:{uid}")).into_iter().filter(unmade) {
        node.queue.wake(Key::Host(copy.name_any()));
    }
}

/// What of an allocation its volumes here go by.
fn matters(allocation: &Allocation) -> (bool, bool, Option<AllocationPhase>, &[AllocationVolume]) {
    let phase = allocation.status.as_ref().and_then(|s| s.phase).filter(|phase| phase.terminal());
    let leaving = allocation.metadata.deletion_timestamp.is_some();
    (leaving, has_to_stop(allocation), phase, &allocation.spec.volumes)
}

/// An object is gone, or no longer ours: nothing of it is kept.
fn forget(node: &Node, uid: &str, key: &str) {
    if !node.caches.attachments.has(uid) {
        node.forget_written(uid);
    }
    node.calls.clear(key);
    node.retry.gone(key);
    node.events.gone(key);
}

/// A plugin's health or object changed: everything that waits for it is tried at once.
pub(super) fn plugin_changed(node: &Node, plugin: &str) {
    node.sightings.look_at(plugin);
    allocations::wake_orphans(node, plugin);
    for object in node.caches.attachments.all().iter().filter(|a| a.spec.plugin == plugin) {
        node.retry.plugin_back(&format!("att/{}", object.uid().unwrap_or_default()));
        node.queue.wake(Key::Mount(object.spec.volume.clone()));
    }
    for entry in node.journal.attachments().into_iter().filter(|a| a.plugin == plugin) {
        node.retry.plugin_back(&format!("att/{}", entry.uid));
        node.queue.wake(Key::Mount(entry.volume));
    }
    for object in node.caches.hosted.all().iter().filter(|a| a.spec.plugin == plugin) {
        node.retry.plugin_back(&format!("host/{}", object.uid().unwrap_or_default()));
        node.queue.wake(Key::Host(object.spec.volume.clone()));
    }
    let of_it = |s: &Snapshot| {
        s.status.as_ref().and_then(|status| status.of.as_ref()).is_some_and(|of| of.plugin == plugin)
    };
    for snapshot in node.caches.snapshots.all().iter().filter(|s| of_it(s)) {
        node.retry.plugin_back(&format!("snap/{}", snapshot.uid().unwrap_or_default()));
        node.queue.wake(Key::Host(snapshot_word(snapshot)));
    }
    for volume in node.caches.volumes.all().iter().filter(|v| v.spec.plugin == plugin) {
        node.retry.plugin_back(&format!("vol/{}", volume.uid().unwrap_or_default()));
        node.queue.wake(Key::Host(volume.name_any()));
    }
}
