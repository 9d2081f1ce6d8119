//! NodeExpandVolume: what this node owes of an expansion. docs/design/expansion.md.
use std::sync::Arc;

use kube::ResourceExt;

use super::super::context::Node;
use super::super::journal::Entry;
use super::super::requests;
use super::steps::serving;
use super::unit::Unit;
use super::{TARGET, Trouble};
use crate::plan::Reason;
use crate::plan::expand::{self, Growth, Tried};
use crate::plan::mount::Level;
use crate::sys::path::TreePath;

impl Unit {
    /// What is owed here.
    pub(super) fn growth(&self) -> Growth {
        let (Some(object), Some(entry)) = (&self.object, &self.entry) else { return Growth::Done };
        match expand::growth(object.spec.expand_bytes, entry.expanded, entry.tried) {
            Growth::Owed | Growth::Tried
                if !expand::can_grow(object.spec.read_only, object.spec.capability.volume_mode) =>
            {
                Growth::Refused
            }
            growth => growth,
        }
    }

    /// Has the plugin bring the volume to its size here. That it was tried stands in the journal before the call: no user waits
    /// for it a second time, whatever becomes of the daemon.
    pub(super) async fn expand(&self, node: &Arc<Node>, step: &str) -> Result<(), Trouble> {
        let (Some(object), Some(entry)) = (&self.object, &self.entry) else {
            return Err(Trouble::Wait(Reason::NotAttached));
        };
        let (spec, mut entry) = (&object.spec, entry.clone());
        let plugin = serving(node, &spec.plugin, &spec.handle)?;
        if !plugin.expands {
            // Nothing is owed by a plugin that cannot (CO-NODE-80).
            (entry.expanded, entry.tried) = (spec.expand_bytes, None);
            return Ok(node.journal.put(Entry::Attachment(entry)).await?);
        }
        let asker = format!("volumeattachments/{}", object.name_any());
        let secrets = node.secrets(&asker, spec.secrets.node_expand.as_ref()).await.map_err(Trouble::Wait)?;
        entry.tried = Some(Tried { bytes: spec.expand_bytes, refused: false });
        node.journal.put(Entry::Attachment(entry.clone())).await?;
        let staging = TreePath::new(["staging", &entry.staging])?;
        let staged = if spec.stage_required { plugin.told(node, &staging) } else { String::new() };
        let published = self.users.iter().find(|user| user.level() == Level::Up);
        let path = match published.and_then(|user| user.entry.as_ref()) {
            Some(entry) => plugin.told(node, &TreePath::new(["publish", entry.directory.as_str(), TARGET])?),
            None => staged.clone(),
        };
        let dialect = entry.dialect(spec, &plugin);
        let with = requests::Expand { path: &path, staging: &staged, bytes: spec.expand_bytes, secrets };
        let request = requests::node_expand(spec, with, dialect);
        let call = |terms| plugin.client.node_expand_volume(request, terms);
        match self.call(node, &plugin, ("NodeExpandVolume", step), call).await {
            Ok(_) => {
                (entry.expanded, entry.tried) = (spec.expand_bytes, None);
                tracing::info!(volume = entry.volume, bytes = entry.expanded, "expanded");
                Ok(node.journal.put(Entry::Attachment(entry)).await?)
            }
            Err(failure) => {
                if failure.is_failed_precondition() {
                    entry.tried = Some(Tried { bytes: spec.expand_bytes, refused: true });
                    node.journal.put(Entry::Attachment(entry)).await?;
                }
                Err(Trouble::Call(requests::naming(failure, spec.secrets.node_expand.as_ref())))
            }
        }
    }
}
