//! The files of a volume are given to the group that its claim names, once it is published.
use std::sync::Arc;

use super::super::context::Node;
use super::super::events::Tone;
use super::super::journal::AttachmentEntry;
use super::super::requests::Dialect;
use super::steps::Serving;
use super::unit::{Unit, User};
use super::{Trouble, chain};
use crate::api::volume::VolumeAttachmentSpec;
use crate::plan::ownership::{Facts, Giver, giver};
use crate::sys::kernel::Present;
use crate::sys::path::TreePath;

impl AttachmentEntry {
    /// How its driver is spoken to: as it was when it was first, until the volume is down here.
    pub(super) fn dialect(&mut self, plugin: &Serving) -> Dialect {
        Dialect {
            newer_modes: *self.newer_modes.get_or_insert(plugin.newer_modes),
            mount_group: *self.mount_group.get_or_insert(plugin.mount_group),
        }
    }
}

impl Unit {
    /// Who has to give the files to the group gives them; that takes as long as it takes, and a daemon that ends meanwhile
    /// begins anew.
    pub(super) async fn give_to_group(
        &self,
        node: &Arc<Node>,
        user: &User,
        (target, verified): (&TreePath, &Present),
        (spec, dialect): (&VolumeAttachmentSpec, Dialect),
    ) -> Result<(), Trouble> {
        let facts = Facts {
            group: spec.fs_group,
            mounts_for_group: dialect.mount_group,
            policy: node.fs_group_policy(&spec.plugin),
            capability: &spec.capability,
            read_only: user.read_only || spec.read_only,
        };
        let group = match giver(facts) {
            Giver::Nobody | Giver::Driver => return Ok(()),
            Giver::Withheld(why) => {
                let note = format!("the files of volume {} keep their groups: {why}", spec.volume);
                node.events.tell(user.about(), Tone::Warning, "FsGroupNotApplied", "Publish", &note);
                return Ok(());
            }
            Giver::Node(group) => group,
        };
        let given = node.machine.kernel.give_to_group(target, verified, group).await.map_err(|error| {
            let why = chain(&error);
            Trouble::Kernel("FsGroupNotSet", format!("its files cannot be given to group {group}: {why}"))
        })?;
        if given > 0 {
            tracing::info!(volume = spec.volume, group, given, "files given to the group");
        }
        Ok(())
    }
}
