//! What a volume is filled from, and what is filled from it: each may wait for the other.
use kube::ResourceExt;

use super::super::Branch;
use super::{MOST, Walk};
use crate::api::meta::Rung;
use crate::api::{Volume, VolumeClaim};

impl Walk<'_> {
    /// What the volume of a claim shall be filled from, where that is not as it should be.
    pub(super) fn source_of(&self, claim: &VolumeClaim) -> Option<Branch> {
        let source = claim.spec.data_source.as_ref().filter(|source| !source.claim_name.is_empty())?;
        let namespace = claim.namespace().unwrap_or_default();
        Some(self.claim(&namespace, &source.claim_name, "")).filter(Branch::blocked)
    }

    /// The volumes that are being made as copies of this one, which stays for them.
    pub(super) fn copies_of(&self, volume: &str) -> Vec<Branch> {
        let copy = |copy: &&&Volume| {
            let content = copy.spec.source.create.as_ref().and_then(|create| create.content.as_ref());
            let made = copy.status.as_ref().is_some_and(|status| status.exists == Some(Rung::Up));
            !made && content.is_some_and(|content| content.volume == volume)
        };
        self.volumes.values().filter(copy).take(MOST).map(|copy| self.volume(&copy.name_any(), "")).collect()
    }
}
