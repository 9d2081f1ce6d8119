//! Who is at it while an attach or a detach waits for its turn (`spec.concurrency` of the Plugin).
use kube::ResourceExt;

use super::super::Branch;
use super::{MOST, Walk};
use crate::api::VolumeAttachment;
use crate::api::meta::Rung;

/// The word of one that waits.
pub(super) const NOT_IN_TURN: &str = "NotInTurn";

impl Walk<'_> {
    /// Those whose calls may be under way: at the node of the one that waits, or at others where that has none.
    pub(super) fn at_it(&self, waiting: &VolumeAttachment) -> Vec<Branch> {
        let under_way = |other: &&VolumeAttachment| {
            let host = other.status.as_ref().and_then(|status| status.controller.as_ref());
            let other_one = other.spec.plugin == waiting.spec.plugin && other.uid() != waiting.uid();
            other_one && host.is_some_and(|host| host.attached == Rung::Unknown && host.reason != NOT_IN_TURN)
        };
        let all = self.objects.attachments.iter().filter(under_way);
        let (here, there): (Vec<_>, Vec<_>) =
            all.partition(|other| other.spec.node_name == waiting.spec.node_name);
        let them = if here.is_empty() { there } else { here };
        let them = them.iter().take(MOST).map(|other| self.attachment(&other.name_any()));
        them.filter(Branch::blocked).collect()
    }
}
