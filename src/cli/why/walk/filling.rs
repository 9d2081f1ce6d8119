//! What a volume is filled from, what is made of it, and snapshots: each may wait for another.
use kube::ResourceExt;

use super::super::{Branch, Kind, State, Subject};
use super::{MOST, Walk, add_told, unmet};
use crate::api::meta::{HANDLE_ENDING, HANDLE_SHARED, Truth, is_of_another, shared_because};
use crate::api::snapshot::SnapshotSource;
use crate::api::{Snapshot, Volume, VolumeClaim};

impl Walk<'_> {
    /// What the volume of a claim shall be filled from, where that is not as it should be.
    pub(super) fn source_of(&self, claim: &VolumeClaim) -> Option<Branch> {
        let source = claim.spec.data_source.as_ref()?;
        let namespace = claim.namespace().unwrap_or_default();
        let filled = Subject::namespaced(Kind::Claim, &namespace, &source.claim_name);
        // Beside a snapshot it says which of its pictures, and is not waited for.
        if source.snapshot_name.is_empty() && self.way.borrow().contains(&filled) {
            let own = Subject::namespaced(Kind::Claim, &namespace, &claim.name_any()).words(&namespace);
            let text = format!("is to be filled from {own}, which waits for it: neither can begin");
            let mut branch = Branch::new(filled, State::Blocked, text);
            "delete one of them, and apply it with another dataSource or none".clone_into(&mut branch.hint);
            return Some(branch);
        }
        let branch = if source.snapshot_name.is_empty() {
            self.claim(&namespace, &source.claim_name, "")
        } else {
            self.snapshot(&namespace, &source.snapshot_name)
        };
        Some(branch).filter(Branch::blocked)
    }

    /// What is being made of this volume, which stays for it: copies and snapshots.
    pub(super) fn copies_of(&self, volume: &str) -> Vec<Branch> {
        let copies = self.filled(|content| content.volume == volume);
        let pictured = |snapshot: &&&Snapshot| {
            let of = snapshot.status.as_ref().and_then(|status| status.of.as_ref());
            snapshot.needs_volume() && of.is_some_and(|of| of.volumes().any(|(name, _)| name == volume))
        };
        let cut = self.snapshots.values().filter(pictured);
        let cut = cut.map(|one| self.snapshot(&one.namespace().unwrap_or_default(), &one.name_any()));
        copies.into_iter().chain(cut).take(MOST).collect()
    }

    /// The volumes that are being filled from such a source.
    fn filled(&self, from: impl Fn(&crate::api::volume::Content) -> bool) -> Vec<Branch> {
        let copy = |copy: &&&Volume| copy.unfinished().is_some_and(&from);
        self.volumes.values().filter(copy).take(MOST).map(|copy| self.volume(&copy.name_any(), "")).collect()
    }

    /// The claims that a snapshot is to be taken of.
    fn pictured(&self, namespace: &str, source: &SnapshotSource) -> Vec<Branch> {
        let Some(selector) = &source.selector else {
            return vec![self.claim(namespace, &source.claim_name, "")];
        };
        let meant = |claim: &&&VolumeClaim| {
            claim.namespace().as_deref() == Some(namespace) && selector.matches(claim.labels())
        };
        let claims = self.claims.values().filter(meant);
        claims.map(|claim| self.claim(namespace, &claim.name_any(), "")).collect()
    }

    pub(super) fn snapshot(&self, namespace: &str, name: &str) -> Branch {
        let found = self.snapshots.get(&(namespace.to_owned(), name.to_owned()));
        self.enter(Subject::namespaced(Kind::Snapshot, namespace, name), found, |snapshot, mut branch| {
            let status = snapshot.status.clone().unwrap_or_default();
            let leaving = snapshot.metadata.deletion_timestamp.is_some();
            let shared = [HANDLE_SHARED, HANDLE_ENDING];
            let not_used = unmet(&status.conditions, "Ready").is_some_and(|told| shared.contains(&told.reason.as_str()));
            if status.ready && !leaving && !not_used {
                branch.say("ready");
                return branch;
            }
            branch.state = State::Blocked;
            branch.say(if leaving { "being deleted" } else { "not ready" });
            let own = status.taking.as_ref().filter(|told| told.status != Truth::True);
            add_told(&mut branch, own.or_else(|| unmet(&status.conditions, "Ready")));
            self.add_calls(&mut branch, snapshot, &status.calls);
            branch.next = status.next_attempt_time;
            if is_of_another(&status.conditions) {
                let subject = branch.subject.words("");
                branch.hint = format!(
                    "`wharfline delete {subject}`, and take it anew once the driver is corrected: nothing is deleted at the backend"
                );
            } else if shared_because(&status.conditions) == HANDLE_SHARED {
                let keep = r#"'{"spec": {"deletionPolicy": "Retain"}}'"#;
                let subject = branch.subject.words("");
                branch.hint = format!(
                    "one of the two has to go without its data: `wharfline patch {subject} --type merge -p {keep}`, and delete it"
                );
            }
            let full = format!("{namespace}/{name}");
            if leaving {
                branch.because = self.filled(|content| content.snapshot == full);
            } else if status.of.is_none() && snapshot.is_cut() {
                let sources = self.pictured(namespace, &snapshot.spec.source);
                branch.because.extend(sources.into_iter().filter(Branch::blocked).take(MOST));
            }
            if let Some(of) = &status.of {
                let host = status.controller.as_ref().map(|host| host.node_name.as_str());
                self.add_host(&mut branch, &of.plugin, host);
            }
            branch
        })
    }

    /// What was taken last is what the next one waits for, as long as that is not ready.
    pub(super) fn schedule(&self, namespace: &str, name: &str) -> Branch {
        let found = self.schedules.get(&(namespace.to_owned(), name.to_owned()));
        self.enter(Subject::namespaced(Kind::Schedule, namespace, name), found, |schedule, mut branch| {
            let status = schedule.status.clone().unwrap_or_default();
            branch.next = status.next_time;
            let unmet = unmet(&status.conditions, "Ready");
            if unmet.is_none() {
                branch.say("takes snapshots");
            } else {
                branch.state = State::Blocked;
                branch.say("took none when one was due last");
                add_told(&mut branch, unmet);
            }
            if !status.last_snapshot.is_empty() {
                let last = self.snapshot(namespace, &status.last_snapshot);
                // Whoever deleted it did so on purpose.
                branch.because.extend(Some(last).filter(|last| last.state == State::Blocked));
            }
            branch
        })
    }
}
