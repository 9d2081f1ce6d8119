//! What still needs a plugin or a node that is to go.
use kube::ResourceExt;

use super::super::{Branch, Kind, State, Subject};
use super::{MOST, Walk, key};
use crate::api::meta::ReclaimPolicy;
use crate::api::{Allocation, Volume};

impl Walk<'_> {
    /// The volumes that still need a plugin which is to go.
    pub(super) fn volumes_of(&self, plugin: &str, node: &str) -> Vec<Branch> {
        let node_goes = self.nodes.get(&key(node)).is_some_and(|n| n.metadata.deletion_timestamp.is_some());
        let mut needing: Vec<&Volume> =
            self.volumes.values().copied().filter(|v| v.spec.plugin == plugin).collect();
        // What goes by itself comes last: the others are for a person to delete.
        needing.sort_by_key(|volume| self.goes(volume));
        let branch = |volume: &Volume| {
            let name = volume.name_any();
            if volume.metadata.deletion_timestamp.is_some() {
                return self.volume(&name, "");
            }
            let mut branch = Branch::new(Subject::global(Kind::Volume, &name), State::Blocked, "needs it");
            branch.name_reason("InUse");
            if let Some(host) = handed_over(volume) {
                branch.text = format!("goes to another node once {host} lets go of it");
                branch.hint = String::from(
                    "wait: it does so when no call can be at work any more, at most 150 s after \
                               its last call, or after its daemon began",
                );
                return branch;
            }
            if let Some(claim) = &volume.spec.claim_ref {
                if self.goes(volume) {
                    return self.claim(&claim.namespace, &claim.name, "");
                }
                branch.subject = Subject::namespaced(Kind::Claim, &claim.namespace, &claim.name);
                branch.text = format!("needs it for {name}");
                if volume.spec.reclaim_policy == ReclaimPolicy::Delete {
                    let words = branch.subject.words("");
                    branch.hint = format!("`wharfline delete {words}`, and its data with it, or leave it");
                    if node_goes && !is_local(volume) {
                        // It goes on as soon as somebody else can make its calls.
                        let way = "and that one goes on with the volume";
                        branch.hint = format!(
                            "start a controller instance of {plugin} on another node, {way}; or {}",
                            branch.hint
                        );
                    }
                }
            }
            branch
        };
        needing.into_iter().take(MOST).map(branch).collect()
    }

    /// Whether a volume or its claim is being deleted.
    fn goes(&self, volume: &Volume) -> bool {
        let of = volume.spec.claim_ref.as_ref();
        let claim = of.and_then(|of| self.claims.get(&(of.namespace.clone(), of.name.clone())));
        volume.metadata.deletion_timestamp.is_some()
            || claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some())
    }

    /// What still has to leave a node that is being deleted, the workloads first; plugins leave by themselves, after what
    /// needs them.
    pub(super) fn left_on(&self, node: &str) -> Vec<Branch> {
        let bound = |a: &&&Allocation| a.status.as_ref().is_some_and(|s| s.node_name == node);
        let serves = |a: &Allocation| a.spec.tasks.iter().any(|t| t.csi_plugin.is_some());
        let here = || self.allocations.values().filter(bound);
        let users = here().filter(|a| !serves(a)).take(MOST);
        let plugins = here().filter(|a| serves(a));
        let plugins = plugins.map(|a| self.allocation(&a.namespace().unwrap_or_default(), &a.name_any()));
        let user = |allocation: &&Allocation| {
            let mut branch = self.user(allocation);
            if branch.reason == "InUse" {
                branch.say("runs on it");
            }
            branch
        };
        let attached = self.attachments.values().filter(|a| a.spec.node_name == node);
        let attached = attached.map(|a| self.attachment(&a.name_any())).filter(Branch::blocked);
        users.map(user).chain(attached.take(MOST)).chain(plugins.filter(Branch::blocked).take(MOST)).collect()
    }
}

/// The node that was asked to let go of the volume and has not said yet that it did.
fn handed_over(volume: &Volume) -> Option<&str> {
    let status = volume.status.as_ref()?;
    let host = status.calling_host()?;
    (status.asked_to_release == Some(host.epoch)).then_some(&host.node_name)
}

/// Whether one node alone reaches the volume.
fn is_local(volume: &Volume) -> bool {
    let source = &volume.spec.source;
    let made = source.create.as_ref().is_some_and(|made| !made.node_name.is_empty());
    made || source.existing.as_ref().is_some_and(|found| !found.node_name.is_empty())
}
