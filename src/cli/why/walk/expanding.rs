//! What has less than it asks for. Who uses it has it all the same: it is told where it is asked about, and of nobody else.
use kube::ResourceExt;

use super::super::{Branch, Kind, State, Subject};
use super::{MOST, Walk, add_call, key, unmet};
use crate::api::attributes::MODIFIED;
use crate::api::meta::{Condition, Truth};
use crate::api::volume::{EXPANDED, Holder, VOLUME_HEALTHY};
use crate::api::{AllocationStatus, Volume, VolumeAttachment, VolumeClaim, VolumeClaimStatus, VolumeStatus};

/// A claim that is bound, and is to have more.
pub(super) fn add_size(branch: &mut Branch, claim: &VolumeClaim, status: &VolumeClaimStatus) {
    let Some(told) = unmet(&status.conditions, EXPANDED) else { return };
    branch.state = State::Blocked;
    let asked = claim.spec.resources.requests.as_ref().map(|size| size.storage.as_str()).unwrap_or_default();
    let has = if status.capacity.is_empty() { "an unknown size" } else { status.capacity.as_str() };
    branch.add(&format!(", and has {has} of {asked}: {}", told.message));
    branch.name_reason(&told.reason);
}

/// A claim that is bound, and is to have other attributes.
pub(super) fn add_attributes(branch: &mut Branch, claim: &VolumeClaim, status: &VolumeClaimStatus) {
    let Some(told) = unmet(&status.conditions, MODIFIED) else { return };
    branch.state = State::Blocked;
    let wanted = &claim.spec.volume_attributes_class_name;
    branch.add(&format!(", without the attributes of \"{wanted}\": {}", told.message));
    branch.name_reason(&told.reason);
}

impl Walk<'_> {
    /// A volume to which its host cannot give the attributes that it shall have.
    pub(super) fn add_modification(&self, branch: &mut Branch, volume: &Volume, status: &VolumeStatus) {
        let Some(told) = status.modification.as_ref().and_then(|m| m.condition.as_ref()) else { return };
        branch.state = State::Blocked;
        branch.add(&format!(", not modified: {}", told.message));
        branch.name_reason(&told.reason);
        self.add_calls(branch, volume, &status.calls);
        branch.next = status.next_attempt_time;
    }

    /// A volume that its host, or a node that has it, cannot bring to its size.
    pub(super) fn add_expansion(&self, branch: &mut Branch, volume: &Volume, status: &VolumeStatus) {
        let told = status.expansion.as_ref().and_then(|expansion| expansion.condition.as_ref());
        if let Some(told) = told {
            branch.state = State::Blocked;
            branch.add(&format!(", not expanded: {}", told.message));
            branch.name_reason(&told.reason);
            self.add_calls(branch, volume, &status.calls);
            branch.next = status.next_attempt_time;
            if told.reason == "InUse" {
                // Who uses it has to end, not the volume.
                "it is expanded by itself once nothing has it any more".clone_into(&mut branch.hint);
                branch
                    .because
                    .extend(status.holders.iter().take(MOST).map(|holder| self.in_the_way(volume, holder)));
            }
            return;
        }
        let there =
            self.attached.get(volume.metadata.name.as_deref().unwrap_or_default()).into_iter().flatten();
        let unmet_there = there.filter_map(|a| Some((a, unmet(&a.status.as_ref()?.conditions, EXPANDED)?)));
        for (attachment, told) in unmet_there {
            branch.because.push(less_there(attachment, told));
        }
    }

    /// A volume that is given to nobody until its driver has answered.
    pub(super) fn add_expansion_under_way(
        &self,
        branch: &mut Branch,
        volume: &Volume,
        status: &VolumeStatus,
    ) {
        branch.state = State::Blocked;
        branch.name_reason("VolumeExpanding");
        branch.add(", given to nobody while its driver expands it");
        let told = status.expansion.as_ref().and_then(|expansion| expansion.condition.as_ref());
        if let Some(told) = told {
            branch.add(&format!(": {}", told.message));
        }
        self.add_calls(branch, volume, &status.calls);
        branch.next = status.next_attempt_time;
        let host = status.controller.as_ref().map(|host| host.node_name.as_str());
        self.add_host(branch, &volume.spec.plugin, host);
        if branch.because.is_empty() && told.is_none() {
            "wait until its driver has answered".clone_into(&mut branch.hint);
        }
    }

    /// What its driver says is wrong with a volume on a node that has it; nothing is done because of that, and nobody waits.
    pub(super) fn unwell(&self, volume: &Volume) -> String {
        let there = self.attached.get(volume.name_any().as_str()).into_iter().flatten();
        let told = |a: &VolumeAttachment| {
            let told = a.status.as_ref()?.conditions.iter().find(|c| c.kind == VOLUME_HEALTHY)?;
            let unwell = told.status == Truth::False;
            let (name, node, message) = (&a.spec.volume, &a.spec.node_name, &told.message);
            unwell.then(|| format!("the driver calls volume/{name} unwell on {node}: {message}"))
        };
        there.copied().find_map(told).unwrap_or_default()
    }

    /// The same of the volumes that an allocation uses.
    pub(super) fn unwell_of(&self, status: &AllocationStatus) -> String {
        let volumes = status.volumes.iter().filter_map(|v| self.volumes.get(&key(&v.volume)));
        volumes.map(|volume| self.unwell(volume)).find(|told| !told.is_empty()).unwrap_or_default()
    }

    /// One that uses a volume which is expanded only while nobody does.
    fn in_the_way(&self, volume: &Volume, holder: &Holder) -> Branch {
        let mut branch = self.left_by(volume, holder);
        if branch.reason == "InUse" {
            branch.add(", and the volume is expanded only while nobody does");
            let words = branch.subject.words("");
            branch.hint = format!(
                "`wharfline patch {words} -p '{{\"spec\":{{\"stop\":true}}}}'`, and the same with false once the volume has grown"
            );
        }
        branch
    }
}

/// A node that has less than its volume: its calls stand at the attachment.
pub(super) fn less_there(attachment: &VolumeAttachment, told: &Condition) -> Branch {
    let subject = Subject::global(Kind::Attachment, &attachment.name_any());
    let text = format!("not expanded on {}: {}", attachment.spec.node_name, told.message);
    let mut branch = Branch::new(subject, State::Blocked, text);
    branch.name_reason(&told.reason);
    let node = attachment.status.as_ref().and_then(|status| status.node.as_ref());
    branch.next = node.and_then(|node| node.next_attempt_time);
    add_call(&mut branch, node.into_iter().flat_map(|node| &node.calls));
    branch
}
