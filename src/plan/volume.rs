//! Where a volume stands, in words for people, and when its object may go.
use super::Reason;
use crate::api::meta::{Condition, Host, READY, ReclaimPolicy, Rung, Truth};
use crate::api::volume::VolumePhase;

/// The claim behind a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Nobody has claimed it yet.
    None,
    /// It is there.
    Live,
    /// It was there.
    Gone,
}

/// Everything that decides.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// Its object is being deleted.
    pub deleting: bool,
    /// It existed before us.
    pub existing: bool,
    /// What becomes of it when its claim is gone.
    pub reclaim: ReclaimPolicy,
    /// Its claim.
    pub claim: Claim,
    /// Its host, if one was ever assigned.
    pub host: Option<&'a Host>,
    /// Why it has no host; absent while it has one or needs none.
    pub no_host: Option<&'a Reason>,
    /// What the host says, with the epoch that it speaks for.
    pub exists: Option<(Rung, i64)>,
    /// The host's word on a failure or wait.
    pub provisioning: Option<&'a Condition>,
    /// A holder is entered, or an attachment is there.
    pub held: bool,
}

/// Whether the backend has the volume, as far as is known for sure.
pub fn exists(facts: &Facts<'_>) -> Rung {
    match (facts.host, facts.exists) {
        (Some(host), Some((rung, epoch))) if host.epoch == epoch => rung,
        // Nobody deletes what nobody asked to delete: what an earlier host confirmed stays true while that is so.
        (Some(_), Some((Rung::Up, _))) if !facts.deleting => Rung::Up,
        (Some(_), _) => Rung::Unknown,
        // Without a controller service nobody can ask; what a person registered is taken as it is.
        (None, _) if facts.existing && facts.no_host.is_none() => Rung::Up,
        // A host never assigned means never attempted.
        (None, _) => Rung::Down,
    }
}

/// Whether its finalizer may be removed.
pub fn gone(facts: &Facts<'_>) -> bool {
    let kept = facts.existing || facts.reclaim == ReclaimPolicy::Retain;
    facts.deleting && !facts.held && (kept || exists(facts) == Rung::Down)
}

/// Whether its object is to be deleted although nobody asked for it: its claim went without it, or it was kept until its
/// policy was changed. That the claim is gone has to be sure.
pub fn unwanted(facts: &Facts<'_>) -> bool {
    let kept = facts.existing || facts.reclaim == ReclaimPolicy::Retain;
    !facts.deleting && facts.claim == Claim::Gone && !kept
}

/// The phase and the `Ready` condition, without generation and time.
pub fn standing(facts: &Facts<'_>) -> (VolumePhase, Condition) {
    let not_ready =
        |phase, reason: &str, message: String| (phase, Condition::new(READY, Truth::False, reason, message));
    let failing = facts.provisioning.filter(|c| c.status != Truth::True);
    if facts.deleting {
        return match failing {
            Some(c) => not_ready(VolumePhase::Releasing, &c.reason, c.message.clone()),
            None if facts.held => {
                not_ready(VolumePhase::Releasing, "InUse", "waits until no allocation has it any more".into())
            }
            None => not_ready(VolumePhase::Releasing, super::claim::RELEASING, "is being deleted".into()),
        };
    }
    match (exists(facts), failing) {
        (Rung::Up, _) if facts.claim == Claim::Gone => {
            not_ready(VolumePhase::Released, "Released", "its claim is gone and it is kept".into())
        }
        (Rung::Up, _) => (VolumePhase::Ready, Condition::new(READY, Truth::True, "Ready", "can be used")),
        // A final answer: the host knows that it is not there, and why.
        (Rung::Down, Some(c)) if facts.exists.is_some() => {
            not_ready(VolumePhase::Failed, &c.reason, c.message.clone())
        }
        (Rung::Down | Rung::Unknown, Some(c)) => {
            not_ready(VolumePhase::Pending, &c.reason, c.message.clone())
        }
        (Rung::Down | Rung::Unknown, None) => match facts.no_host {
            Some(reason) => not_ready(VolumePhase::Pending, reason.word(), reason.to_string()),
            None => {
                let node = facts.host.map(|h| h.node_name.as_str()).unwrap_or_default();
                not_ready(
                    VolumePhase::Pending,
                    super::claim::PROVISIONING,
                    format!("waits for node \"{node}\""),
                )
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        Host { node_name: "n".into(), epoch: 2 }
    }

    fn all<'a>(host: &'a Host, why: &'a Reason) -> Vec<Facts<'a>> {
        let mut all = Vec::new();
        for bits in 0..16_u8 {
            for said in [
                None,
                Some((Rung::Down, 2)),
                Some((Rung::Unknown, 2)),
                Some((Rung::Up, 2)),
                Some((Rung::Down, 1)),
            ] {
                for reclaim in [ReclaimPolicy::Delete, ReclaimPolicy::Retain] {
                    all.push(Facts {
                        deleting: bits & 1 != 0,
                        existing: bits & 2 != 0,
                        reclaim,
                        claim: Claim::Live,
                        host: (bits & 4 != 0).then_some(host),
                        no_host: (bits & 4 == 0).then_some(why),
                        exists: said,
                        provisioning: None,
                        held: bits & 8 != 0,
                    });
                }
            }
        }
        all
    }

    #[test]
    fn an_object_goes_only_when_nothing_holds_it_and_nothing_is_left_behind() {
        let (host, why) = (host(), Reason::NoHost);
        for facts in all(&host, &why) {
            if gone(&facts) {
                assert!(facts.deleting && !facts.held, "{facts:?}");
                let kept = facts.existing || facts.reclaim == ReclaimPolicy::Retain;
                let never = facts.host.is_none();
                assert!(kept || never || facts.exists == Some((Rung::Down, 2)), "{facts:?}");
            }
        }
    }

    #[test]
    fn only_what_was_made_for_a_claim_that_is_gone_is_unwanted() {
        let (host, why) = (host(), Reason::NoHost);
        for facts in all(&host, &why) {
            for claim in [Claim::None, Claim::Live, Claim::Gone] {
                let facts = Facts { claim, ..facts.clone() };
                let made = !facts.existing && facts.reclaim == ReclaimPolicy::Delete;
                assert_eq!(unwanted(&facts), made && claim == Claim::Gone && !facts.deleting, "{facts:?}");
            }
        }
    }

    #[test]
    fn ready_means_that_a_host_said_so() {
        let (host, why) = (host(), Reason::NoHost);
        for facts in all(&host, &why) {
            let (phase, condition) = standing(&facts);
            assert_eq!(phase == VolumePhase::Ready, condition.status == Truth::True);
            if phase == VolumePhase::Ready {
                assert_eq!(facts.exists, Some((Rung::Up, 2)), "{facts:?}");
            }
            assert!(!condition.message.is_empty() && !condition.reason.is_empty());
        }
    }

    #[test]
    fn the_hosts_reason_is_passed_on() {
        let host = host();
        let full = Condition::new("Provisioned", Truth::False, "ResourceExhausted", "no room");
        let facts = Facts {
            deleting: false,
            existing: false,
            reclaim: ReclaimPolicy::Delete,
            claim: Claim::Live,
            host: Some(&host),
            no_host: None,
            exists: Some((Rung::Unknown, 2)),
            provisioning: Some(&full),
            held: false,
        };
        let (phase, condition) = standing(&facts);
        assert_eq!((phase, condition.reason.as_str()), (VolumePhase::Pending, "ResourceExhausted"));
        let sure = Facts { exists: Some((Rung::Down, 2)), ..facts };
        assert_eq!(standing(&sure).0, VolumePhase::Failed);
        let moved = Facts { exists: Some((Rung::Up, 1)), provisioning: None, ..sure.clone() };
        assert_eq!(standing(&moved).0, VolumePhase::Ready, "a new host changes nothing for its users");
        let going = Facts { deleting: true, ..moved };
        assert_eq!(exists(&going), Rung::Unknown, "but its deletion is the new host's to confirm");
        let registered = Facts { existing: true, host: None, exists: None, provisioning: None, ..sure };
        assert_eq!(standing(&registered).0, VolumePhase::Ready, "no controller service, nobody to ask");
        assert_eq!(standing(&Facts { claim: Claim::Gone, ..registered }).0, VolumePhase::Released);
    }
}
