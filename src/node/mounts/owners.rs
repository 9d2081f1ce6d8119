//! The files of a volume are given to the group that its claim names, once it is published.
use std::sync::Arc;

use super::super::context::Node;
use super::super::events::{SLOW, Tone};
use super::super::journal::AttachmentEntry;
use super::super::requests::{Dialect, Modes};
use super::steps::Serving;
use super::unit::{Unit, User, gather, user_note};
use super::{Trouble, chain, record};
use crate::api::volume::VolumeAttachmentSpec;
use crate::plan::Reason;
use crate::plan::ownership::{Facts, Giver, giver};
use crate::sys::kernel::Present;
use crate::sys::path::TreePath;

/// The word for a walk that takes long.
const UNDER_WAY: &str = "FsGroupUnderWay";

impl AttachmentEntry {
    /// How its driver is spoken to: as it was when it was first, until the volume is down here.
    pub(super) fn dialect(&mut self, spec: &VolumeAttachmentSpec, plugin: &Serving) -> Dialect {
        let frozen = spec.newer_modes.map(|frozen| frozen.node);
        let first = Modes::first(self.newer_modes, frozen, plugin.newer_modes);
        Dialect {
            newer_modes: *self.modes.get_or_insert(first),
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
        (spec, dialect, plugin): (&VolumeAttachmentSpec, Dialect, &Serving),
    ) -> Result<(), Trouble> {
        let facts = Facts {
            group: spec.fs_group,
            mounts_for_group: dialect.mount_group,
            says_so: plugin.mount_group,
            policy: node.fs_group_policy(&spec.plugin),
            capability: &spec.capability,
            read_only: user.read_only || spec.read_only,
        };
        let group = match giver(facts) {
            Giver::Nobody | Giver::Driver => return Ok(()),
            Giver::Withheld(why) => {
                self.not_applied(node, user, why);
                return Ok(());
            }
            Giver::Node(group) => group,
        };
        let walk = node.machine.kernel.give_to_group(target, verified, group);
        let given = self.walked(node, (user, &spec.volume, group), walk).await?.map_err(|error| {
            let why = chain(&error);
            Trouble::Kernel("FsGroupNotSet", format!("its files cannot be given to group {group}: {why}"))
        })?;
        if given.left > 0 {
            let left = given.left;
            let why = format!(
                "{left} of them cannot be given to group {group}: their server does not let root, they are marked as \
                 immutable, or lie too deep"
            );
            self.not_applied(node, user, &why);
        }
        if given.changed > 0 {
            tracing::info!(volume = spec.volume, group, given = given.changed, "files given to the group");
        }
        Ok(())
    }

    /// Waits for the end of the walk, for as long as the user wants the volume. One that takes long is told.
    async fn walked<T>(
        &self,
        node: &Arc<Node>,
        (user, volume, group): (&User, &str, u32),
        walk: impl Future<Output = T>,
    ) -> Result<T, Trouble> {
        tokio::pin!(walk);
        let mut told = false;
        loop {
            if let Ok(given) = tokio::time::timeout(SLOW, &mut walk).await {
                return Ok(given);
            }
            let now = gather(node, volume);
            let same = |other: &User| {
                other.wanted && other.allocation.uid == user.allocation.uid && other.name == user.name
            };
            if !now.iter().any(|unit| unit.uid == self.uid && unit.users.iter().any(same)) {
                return Err(Trouble::Wait(Reason::Stopped));
            }
            if !std::mem::replace(&mut told, true) {
                let sentence = format!(
                    "the files of volume {volume} are being given to group {group}, which takes as long as there are many"
                );
                let note = user_note(&self.uid, &user.allocation.uid, &user.name);
                node.notes.set(&note, UNDER_WAY, &sentence, None);
                node.events.tell(user.about(), Tone::Normal, UNDER_WAY, "Publish", &sentence);
                // What was done before it is told, too: that is more than nothing for an hour.
                let _tried_again_at_its_end = record(node, &now).await;
            }
        }
    }

    /// Told once for as long as it is so.
    fn not_applied(&self, node: &Node, user: &User, why: &str) {
        let step = format!("{}/fsGroup/{}/{}", self.key(), user.allocation.uid, user.name);
        let note = format!("files keep their groups: {why}");
        node.events.failed(user.about(), &step, "FsGroupNotApplied", "Publish", &note);
    }
}
