//! Who has a volume that another allocation waits for.
use kube::ResourceExt;

use super::super::{Branch, Kind, State, Subject};
use super::{MOST, Walk, key, leaves};
use crate::api::allocation::AllocationPhase;
use crate::api::meta::{AccessMode, Rung};
use crate::api::volume::{Holder, VolumeAttachmentSpec};
use crate::api::{Allocation, Volume, VolumeAttachment, VolumeClaim};

/// Who waits for the volume.
struct Waiting<'a> {
    allocation: &'a Allocation,
    node: &'a str,
    read_only: bool,
}

impl<'a> Walk<'a> {
    /// Adds the holders that shut out the allocation on the way to this volume; whether there are any.
    pub(super) fn add_holders(&self, branch: &mut Branch, volume: &Volume, node: &str) -> bool {
        let Some(allocation) = self.on_the_way() else { return false };
        let claim = volume.spec.claim_ref.as_ref().map(|c| c.name.as_str()).unwrap_or_default();
        let mut uses = allocation.spec.volumes.iter().filter(|v| v.claim_name == claim);
        let waiting = Waiting { allocation, node, read_only: uses.any(|v| v.read_only) };
        let holders = volume.status.as_ref().map(|s| s.holders.as_slice()).unwrap_or_default();
        if holders.iter().any(|holder| is_of(holder, allocation) && holder.node_name == node) {
            return false;
        }
        let mode = volume.spec.capability().access_mode;
        let name = branch.subject.name.clone();
        // What was attached for a writer lets its node write, though only readers are left there.
        let writes = |holder: &&Holder| {
            let there = || self.on_node(&name, &holder.node_name).is_some_and(|a| !a.spec.read_only);
            mode == AccessMode::MultiNodeSingleWriter
                && !waiting.read_only
                && holder.node_name != node
                && there()
        };
        // Where readers came first their node was not let write, and is let once they are gone.
        let reads = self.on_node(&name, node).is_some_and(|attachment| attachment.spec.read_only);
        let reads_first = |holder: &&Holder| {
            reads
                && mode == AccessMode::MultiNodeSingleWriter
                && !waiting.read_only
                && holder.node_name == node
        };
        let shut_out =
            |holder: &&Holder| shuts_out(mode, holder, &waiting) || writes(holder) || reads_first(holder);
        for holder in holders.iter().filter(shut_out).take(MOST) {
            branch.add(&format!(", held on {}", holder.node_name));
            let held = self.holder(holder, &branch.subject.to_string());
            branch.because.push(held);
        }
        !branch.because.is_empty()
    }

    /// Who keeps a claim that is being deleted: those who hold its volume, or have it still by their node's word.
    pub(super) fn users_of(&self, claim: &VolumeClaim, volume: Option<&Volume>) -> Vec<Branch> {
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let holders =
            volume.and_then(|v| v.status.as_ref()).map(|s| s.holders.as_slice()).unwrap_or_default();
        let held = volume.into_iter().flat_map(|volume| holders.iter().map(|h| self.left_by(volume, h)));
        let mut users: Vec<Branch> = held.collect();
        let has = |a: &&Allocation| !holders.iter().any(|h| is_of(h, a)) && has_still(a, &name);
        users.extend(self.naming(&namespace, &name).filter(has).map(|user| self.user(user)));
        users
    }

    /// The allocation that the way comes from, if it waits for this claim and has nothing of it.
    pub(super) fn waiting_for(&self, claim: &VolumeClaim, volume: Option<&Volume>) -> Option<&'a Allocation> {
        let name = claim.name_any();
        let holders =
            volume.and_then(|v| v.status.as_ref()).map(|s| s.holders.as_slice()).unwrap_or_default();
        self.on_the_way().filter(|a| {
            a.namespace() == claim.namespace()
                && a.spec.volumes.iter().any(|v| v.claim_name == name)
                && !holders.iter().any(|h| is_of(h, a))
                && !has_still(a, &name)
        })
    }

    /// What leaves a node and holds something up with that: the end of the volume, or itself by a call that fails. What is left on a node
    /// that was fenced is in nobody's way.
    pub(super) fn left_of(&self, volume: &Volume) -> Vec<Branch> {
        let claim = volume.spec.claim_ref.as_ref();
        let claim = claim.and_then(|of| self.claims.get(&(of.namespace.clone(), of.name.clone())));
        let ends = claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some());
        let fails = |a: &VolumeAttachment| {
            let status = a.status.as_ref();
            let host = status.and_then(|s| s.controller.as_ref()).is_some_and(|host| !host.reason.is_empty());
            host || status.and_then(|s| s.node.as_ref()).is_some_and(|node| !node.reason.is_empty())
        };
        let left = self.attached.get(volume.name_any().as_str()).into_iter().flatten();
        let left = left.filter(|a| self.is_leaving(a) && !a.spec.fenced && (ends || fails(a)));
        left.map(|a| self.attachment(&a.name_any())).filter(Branch::blocked).collect()
    }

    /// Whether an allocation that has ended is there until this attachment is gone.
    pub(super) fn is_held_until(&self, allocation: &Allocation, attachment: &VolumeAttachment) -> bool {
        let volume = self.volumes.get(&key(&attachment.spec.volume));
        let holders =
            volume.and_then(|v| v.status.as_ref()).map(|s| s.holders.as_slice()).unwrap_or_default();
        let of_it = |h: &Holder| is_of(h, allocation) && h.node_name == attachment.spec.node_name;
        holders.iter().any(of_it) && self.is_leaving(attachment)
    }

    /// A holder that keeps a claim from going: the allocation, or where that is over and gone, what is left of it on its node.
    pub(super) fn left_by(&self, volume: &Volume, holder: &Holder) -> Branch {
        let (of, name) = (&holder.allocation, volume.name_any());
        let found = self.allocations.get(&(of.namespace.clone(), of.name.clone()));
        if let Some(allocation) = found.filter(|allocation| is_of(holder, allocation)) {
            let phase = allocation.status.as_ref().and_then(|s| s.phase);
            if leaves(allocation) || !phase.is_some_and(AllocationPhase::terminal) {
                return self.user(allocation);
            }
        }
        let left = self.on_node(&name, &holder.node_name).map(|a| self.attachment(&a.name_any()));
        let left = left.filter(Branch::blocked);
        left.unwrap_or_else(|| self.holder(holder, &Subject::global(Kind::Volume, &name).to_string()))
    }

    /// Those on their way out that have the volume of an attachment still; the one that the way comes from is seen above.
    pub(super) fn users_there(&self, attachment: &VolumeAttachmentSpec) -> Vec<Branch> {
        let has = |allocation: &&&Allocation| {
            let status = allocation.status.as_ref().filter(|s| s.node_name == attachment.node_name);
            let mut volumes = status.into_iter().flat_map(|status| &status.volumes);
            volumes.any(|v| v.volume == attachment.volume && v.published != Rung::Down)
        };
        let goes = |allocation: &&&Allocation| {
            let status = allocation.status.as_ref();
            leaves(allocation)
                || status.is_some_and(|s| s.evicted || s.phase.is_some_and(AllocationPhase::terminal))
        };
        let leaving = self.allocations.values().filter(goes).filter(has);
        leaving.map(|allocation| self.user(allocation)).filter(Branch::blocked).take(MOST).collect()
    }

    /// The allocation from which the way has come.
    fn on_the_way(&self) -> Option<&'a Allocation> {
        let way = self.way.borrow();
        let subject = way.iter().rev().find(|subject| subject.kind == Kind::Allocation)?;
        self.allocations.get(&(subject.namespace.clone(), subject.name.clone())).copied()
    }

    /// The allocation that has a volume and must let go first.
    fn holder(&self, holder: &Holder, volume: &str) -> Branch {
        let (of, node) = (&holder.allocation, &holder.node_name);
        let found = self.allocations.get(&(of.namespace.clone(), of.name.clone()));
        let subject = Subject::namespaced(Kind::Allocation, &of.namespace, &of.name);
        let mut branch = match found.filter(|allocation| is_of(holder, allocation)) {
            Some(allocation) if leaves(allocation) => self.allocation(&of.namespace, &of.name),
            Some(allocation) => {
                let mut branch = Branch::new(subject, State::Blocked, "");
                let phase = allocation.status.as_ref().and_then(|s| s.phase);
                if phase.is_some_and(AllocationPhase::terminal) {
                    branch.say(&format!("has ended, and {node} has not released {volume} yet"));
                    branch.hint = format!("`wharfline describe {volume}`");
                } else {
                    branch.name_reason("HeldElsewhere");
                    branch.say(&format!("holds {volume} on {node}, and has to end or be deleted first"));
                    let words = branch.subject.words("");
                    branch.hint = format!("wait until it ends, or `wharfline delete {words}`");
                }
                branch
            }
            None => {
                let text = format!("one of this name is gone, and {node} has not released {volume} yet");
                let mut branch = Branch::new(subject, State::Blocked, text);
                branch.hint = format!("`wharfline describe {volume}`");
                branch
            }
        };
        let shown = branch.because.iter().any(|b| b.subject.kind == Kind::Node);
        branch.because.extend(Some(self.node(node)).filter(|b| !shown && b.blocked()));
        branch
    }
}

/// Whether an allocation has the volume of a claim still, by its node's word.
fn has_still(allocation: &Allocation, claim: &str) -> bool {
    let named = |name: &str| allocation.spec.volumes.iter().any(|v| v.name == name && v.claim_name == claim);
    let seen = allocation.status.as_ref().map(|s| s.volumes.as_slice()).unwrap_or_default();
    seen.iter().any(|v| named(&v.name) && v.published != Rung::Down)
}

/// Whether a holder stands for this allocation, not for an earlier one of its name.
fn is_of(holder: &Holder, allocation: &Allocation) -> bool {
    let of = &holder.allocation;
    let named =
        of.name == allocation.name_any() && of.namespace == allocation.namespace().unwrap_or_default();
    named && (of.uid.is_empty() || allocation.uid().is_none_or(|uid| uid == of.uid))
}

/// Whether who waits cannot have the volume beside this holder. As the controllers grant it.
fn shuts_out(mode: AccessMode, holder: &Holder, waiting: &Waiting<'_>) -> bool {
    let elsewhere = holder.node_name != waiting.node || is_of(holder, waiting.allocation);
    match mode {
        AccessMode::SingleNodeWriter
        | AccessMode::SingleNodeSingleWriter
        | AccessMode::SingleNodeReaderOnly => true,
        AccessMode::SingleNodeMultiWriter => elsewhere,
        AccessMode::MultiNodeReaderOnly | AccessMode::MultiNodeMultiWriter => false,
        AccessMode::MultiNodeSingleWriter => !holder.read_only && !waiting.read_only,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_holder_shuts_out_as_it_is_granted() {
        use AccessMode::{
            MultiNodeMultiWriter, MultiNodeReaderOnly, MultiNodeSingleWriter, SingleNodeMultiWriter,
            SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeWriter,
        };
        let allocation: Allocation = serde_json::from_value(json!({
            "apiVersion": "wharfline.dev/v1alpha1", "kind": "Allocation",
            "metadata": { "name": "waits", "namespace": "n", "uid": "w" }, "spec": {},
        }))
        .unwrap();
        let by = |node: &str, read_only: bool| -> Holder {
            let of = json!({ "allocation": { "namespace": "n", "name": "has", "uid": "h" }, "nodeName": node,
                "readOnly": read_only });
            serde_json::from_value(of).unwrap()
        };
        // On one node: two readers, a writer and a reader, two writers; on two nodes the same.
        for (mode, expected) in [
            (SingleNodeWriter, [true; 6]),
            (SingleNodeSingleWriter, [true; 6]),
            (SingleNodeReaderOnly, [true; 6]),
            (SingleNodeMultiWriter, [false, false, false, true, true, true]),
            (MultiNodeReaderOnly, [false; 6]),
            (MultiNodeMultiWriter, [false; 6]),
            (MultiNodeSingleWriter, [false, false, true, false, false, true]),
        ] {
            let users = [(true, true), (false, true), (false, false)];
            let cases = ["a", "b"].into_iter().flat_map(|node| users.map(|user| (node, user)));
            let found: Vec<_> = cases
                .map(|(node, (has, waits))| {
                    let waiting = Waiting { allocation: &allocation, node: "a", read_only: waits };
                    shuts_out(mode, &by(node, has), &waiting)
                })
                .collect();
            assert_eq!(found, expected, "{mode:?}");
        }
    }
}
