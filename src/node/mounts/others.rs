//! Other Volumes of the same plugin and handle on this node. To the plugin they are one volume with one staging path.
use std::sync::Arc;

use kube::{Resource, ResourceExt};

use super::super::context::{Key, Node, handle_word};
use super::super::journal::AttachmentEntry;
use super::staging_name;
use super::unit::Unit;
use crate::api::VolumeAttachment;
use crate::plan::mount::{Level, Others};

/// An attachment of another Volume, as the API and the journal know it.
struct Other {
    volume: String,
    object: Option<Arc<VolumeAttachment>>,
    entry: Option<AttachmentEntry>,
}

impl Other {
    fn uses(&self, node: &Node) -> bool {
        let closed = self.entry.as_ref().is_some_and(|e| e.closed);
        let open = self.object.as_ref().is_some_and(|o| o.meta().deletion_timestamp.is_none()) && !closed;
        let published =
            |e: &AttachmentEntry| node.journal.publications(&e.uid).iter().any(|p| p.level != Level::Down);
        open || self.staged() || self.entry.as_ref().is_some_and(published)
    }

    fn staged(&self) -> bool {
        self.entry.as_ref().is_some_and(|e| e.staged != Level::Down)
    }

    fn sinks(&self) -> bool {
        self.entry.as_ref().is_some_and(|e| e.staged == Level::Sinking)
    }
}

impl Unit {
    /// The directory beneath the tree.
    pub(super) fn staging(&self) -> String {
        let (plugin, handle, _) = self.identity();
        self.entry.as_ref().map_or_else(|| staging_name(plugin, handle), |e| e.staging.clone())
    }

    /// Plugin, handle and Volume.
    fn identity(&self) -> (&str, &str, &str) {
        match (&self.entry, &self.object) {
            (Some(entry), _) => (&entry.plugin, &entry.handle, &entry.volume),
            (None, Some(object)) => (&object.spec.plugin, &object.spec.handle, &object.spec.volume),
            (None, None) => ("", "", ""),
        }
    }

    /// What others of the handle have here now. To be asked, and acted on, in one turn of the staging directory.
    pub(super) fn others(&self, node: &Node) -> Others {
        let others = self.all_others(node);
        let first =
            |holds: &dyn Fn(&Other) -> bool| others.iter().find(|o| holds(o)).map(|o| o.volume.clone());
        Others {
            staged: others.iter().any(Other::staged),
            sinking: first(&Other::sinks),
            // Without the object nobody detaches by this one's word any more.
            using: self.object.as_ref().and_then(|_| first(&|other| other.uses(node))),
        }
    }

    /// Something changed here that others of the handle may wait for.
    pub(super) fn wake_others(&self, node: &Node) {
        for other in self.all_others(node) {
            node.queue.wake(Key::Mount(other.volume));
        }
    }

    fn all_others(&self, node: &Node) -> Vec<Other> {
        let (plugin, handle, volume) = self.identity();
        let mut entries = node.journal.attachments_at(&self.staging());
        entries.retain(|e| e.volume != volume);
        let mut objects = node.caches.attachments.of(&handle_word(plugin, handle));
        objects.retain(|o| o.spec.volume != volume);
        let mut all: Vec<_> = objects
            .into_iter()
            .map(|object| {
                let at = entries.iter().position(|e| object.uid().as_ref() == Some(&e.uid));
                let entry = at.map(|at| entries.swap_remove(at));
                Other { volume: object.spec.volume.clone(), object: Some(object), entry }
            })
            .collect();
        all.extend(entries.into_iter().map(|entry| Other {
            volume: entry.volume.clone(),
            object: None,
            entry: Some(entry),
        }));
        all
    }
}
