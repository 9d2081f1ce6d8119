//! Where a volume stands, in words for people, and when its object may go.
use super::host::HostNode;
use super::{Reason, handle};
use crate::api::meta::{Call, Condition, HANDLE_SHARED, Host, READY, Rung, Truth};
use crate::api::volume::{VolumePhase, VolumeSource, taken_for_refused};

/// The claim behind a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Nobody has claimed it yet.
    None,
    /// It is there, and does not have the volume yet.
    Live,
    /// It is there, and has the volume.
    Bound,
    /// It was there.
    Gone,
}

/// Where a volume comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// CreateVolume makes it, and DeleteVolume ends it.
    Created,
    /// It existed before us.
    Existing,
    /// It is there while it is published, and there is nothing to be made or deleted beside that.
    Ephemeral,
}

impl Source {
    /// By what its object says.
    pub fn of(source: &VolumeSource) -> Self {
        match (&source.existing, &source.ephemeral) {
            (Some(_), _) => Self::Existing,
            (None, Some(_)) => Self::Ephemeral,
            (None, None) => Self::Created,
        }
    }
}

/// Everything that decides.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// Its object is being deleted.
    pub deleting: bool,
    /// Where it comes from.
    pub source: Source,
    /// Its data outlives its object.
    pub kept: bool,
    /// Its claim.
    pub claim: Claim,
    /// Its host, if one was ever assigned.
    pub host: Option<&'a Host>,
    /// Why it has no host; absent while it has one or needs none.
    pub no_host: Option<&'a Reason>,
    /// What the host says, with the epoch that it speaks for.
    pub exists: Option<(Rung, i64)>,
    /// The host makes a create of what it said is not there.
    pub attempting: bool,
    /// The host's word on a failure or wait.
    pub provisioning: Option<&'a Condition>,
    /// A holder is entered, or an attachment is there.
    pub held: bool,
    /// What is being made of it: a copy, or a snapshot.
    pub copy: Option<String>,
    /// Another Volume of the same plugin and handle, which is used in this one's place.
    pub before: Option<String>,
    /// Another Volume of the same plugin and handle, which would lose its data with this one.
    pub shared: Option<String>,
    /// Whose handle its plugin gave it, as `volume "NAME"`: it is not used, and goes without a call.
    pub anothers: Option<String>,
    /// What has the handle, too, and goes first: whose it is then is said after that, and it is neither used nor deleted before.
    pub ending: Option<String>,
    /// That is being deleted, and what this one was given may go with it.
    pub leaves: bool,
    /// That has gone, and what this one was given perhaps with it: it is asked for once more.
    pub stale: bool,
    /// Whether its deletion may have begun at the backend, and it is kept by now.
    pub late: Late,
}

/// What is known of the deletion at the backend of what is kept (Retain), and was not to be when it was deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Late {
    /// It was never asked for: it was to be kept from the start, or there is no host or handle.
    #[default]
    No,
    /// Its host may be at it, and has not let go.
    UnderWay,
    /// Its host has let go: what it said last counts.
    Said,
    /// Its host is lost.
    Lost,
}

impl Late {
    /// Of one that was `marked`; where who may still make its calls stands, and nobody may.
    pub fn of(marked: bool, calling: Option<HostNode>) -> Self {
        match calling {
            _ if !marked || planted!("kept-at-once") => Self::No,
            None => Self::Said,
            Some(HostNode::Gone) => Self::Lost,
            Some(HostNode::Alive | HostNode::Silent) => Self::UnderWay,
        }
    }

    /// Whether nobody knows if it is there, by what was said of it last.
    pub fn is_doubt(self, exists: Option<Rung>) -> bool {
        match self {
            Self::No => false,
            Self::Said => exists != Some(Rung::Up),
            Self::UnderWay | Self::Lost => true,
        }
    }
}

/// Why what is kept late is there still.
pub(super) const KEEPING: &str = "Keeping";
pub(super) const KEEPING_WORDS: &str = "is to be kept by now, and its plugin may be deleting it: its host says first how that ended, as soon as no call can be at work any more";

/// Whether all that its object waits for is what its host knows of its deletion: it is asked to let go.
pub fn is_asked_off(facts: &Facts<'_>) -> bool {
    facts.late == Late::UnderWay && !gone(facts) && gone(&Facts { late: Late::Said, ..facts.clone() })
}

/// Which of several Volumes of one plugin and handle may be used: the one with the lowest rank, of these the oldest. One
/// that is held keeps its place whatever comes beside it, and so does one that was `ready`; one that nobody will be granted any more
/// leaves it to others.
pub fn rank(facts: &Facts<'_>, ready: bool) -> u8 {
    let spent = facts.claim == Claim::Gone || facts.deleting;
    match (facts.held, spent && facts.kept, ready) {
        (true, _, _) => 0,
        (false, false, true) => 1,
        (false, false, false) => 2,
        (false, true, _) => 3,
    }
}

/// Whether one of this rank has its place already, and keeps it beside one that its plugin may be deleting: nothing was deleted under it.
pub fn keeps_its_place(rank: u8) -> bool {
    rank <= 1
}

/// Whether the host of a Volume waits for the word on its handle, which else goes with the next write: of one that is to be deleted, of
/// one that the plugin answered with and that does not fit, and, where it has none any more, that the word is taken back.
pub fn waits_for_word(facts: &Facts<'_>, named: bool) -> bool {
    let leaves = facts.deleting && !facts.kept;
    match facts.exists {
        _ if !named => true,
        Some((Rung::Unknown, _)) => true,
        Some((Rung::Up, _)) => leaves,
        Some((Rung::Down, _)) | None => false,
    }
}

/// The condition `HandleShared`, while it holds: the host deletes nothing under it.
pub fn shared(facts: &Facts<'_>) -> Option<Condition> {
    let in_words = |other: &String| format!("volume \"{other}\"");
    let anothers = facts.anothers.as_ref().map(|other| handle::anothers(other));
    let ending = || facts.ending.as_ref().filter(|_| facts.leaves).map(|other| handle::ending(other));
    let ended = || facts.stale.then(handle::ended);
    anothers
        .or_else(ending)
        .or_else(ended)
        .or_else(|| facts.shared.as_ref().map(|other| handle::shared(&in_words(other))))
}

/// Whether the backend has the volume, as far as is known for sure.
pub fn exists(facts: &Facts<'_>) -> Rung {
    if facts.source == Source::Ephemeral {
        return if facts.deleting && !facts.held { Rung::Down } else { Rung::Up };
    }
    match (facts.host, facts.exists) {
        (Some(host), Some((rung, epoch))) if host.epoch == epoch => rung,
        // Nobody deletes what nobody asked to delete: what an earlier host confirmed stays true while that is so.
        (Some(_), Some((Rung::Up, _))) if !facts.deleting => Rung::Up,
        (Some(_), _) => Rung::Unknown,
        // Without a controller service nobody can ask; what a person registered is taken as it is.
        (None, _) if facts.source == Source::Existing && facts.no_host.is_none() => Rung::Up,
        // A host never assigned means never attempted.
        (None, _) => Rung::Down,
    }
}

/// Whether its finalizer may be removed. That the backend does not have it is enough only while its host makes no call
/// that could change it.
pub fn gone(facts: &Facts<'_>) -> bool {
    let absent = exists(facts) == Rung::Down && !facts.attempting;
    // What is being made of it has to find it, and may have to be asked for by it once more.
    let kept = facts.kept && facts.claim != Claim::Bound && facts.late != Late::UnderWay;
    let stays = kept || facts.anothers.is_some();
    let left_alone = stays && facts.copy.is_none();
    facts.deleting && !facts.held && (left_alone || absent)
}

/// What is told when its object goes, of what stays behind and nobody else has written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// Nothing.
    None,
    /// How its plugin calls what it keeps.
    Kept,
    /// That its plugin may keep one, and that nobody knows how it calls it.
    KeptInDoubt,
    /// That nothing was deleted, for its handle is another's.
    Anothers,
    /// That it had been deleted when it was to be kept.
    Deleted,
}

/// What is told of a volume that goes; `named` when it is known how its plugin calls it.
pub fn farewell(facts: &Facts<'_>, named: bool) -> Farewell {
    let absent = exists(facts) == Rung::Down && !facts.attempting;
    match (facts.source, named) {
        _ if absent && facts.kept && facts.late != Late::No => Farewell::Deleted,
        _ if absent => Farewell::None,
        (Source::Created, _) if facts.anothers.is_some() => Farewell::Anothers,
        _ if !facts.kept => Farewell::None,
        // Whoever registered it has it written down.
        (Source::Existing | Source::Ephemeral, _) => Farewell::None,
        (Source::Created, true)
            if facts.late.is_doubt(Some(exists(facts))) || facts.leaves || facts.stale =>
        {
            Farewell::KeptInDoubt
        }
        (Source::Created, true) => Farewell::Kept,
        (Source::Created, false) => Farewell::KeptInDoubt,
    }
}

/// The last of its calls, if that is taken for a refusal and may be none.
pub fn vague(calls: &[Call]) -> Option<&Call> {
    calls.last().filter(|call| taken_for_refused((&call.method, &call.code)))
}

/// Whether its object is to be deleted although nobody asked for it: its claim went without it, or it was kept until its
/// policy was changed. That the claim is gone has to be sure. Not while a copy of it is being made.
pub fn unwanted(facts: &Facts<'_>) -> bool {
    !facts.deleting && facts.claim == Claim::Gone && !facts.kept && facts.copy.is_none()
}

/// Why what is made of another object, a volume or a snapshot, gets no first host yet; nothing if it may. `source` is the other one, if
/// it is there: whether it is on its way out, and whether it names this copy.
///
/// Who decides to delete the other one does so on the state that it saw. A state in which this copy is named comes after
/// this copy was made, and so nobody who saw it overlooks the copy; on any earlier one the deletion is refused.
pub fn held_back(kind: &'static str, from: &str, source: Option<(bool, bool)>) -> Option<Reason> {
    match source {
        None => Some(Reason::NotFound { kind, name: from.to_owned() }),
        // It was entered before the deletion, which waits for it.
        Some((_, true)) => None,
        Some((true, false)) => Some(Reason::BeingDeleted { kind, name: from.to_owned() }),
        Some((false, false)) => Some(Reason::SourceNotReady {
            from: format!("{kind} \"{from}\""),
            why: "it is entered there first".to_owned(),
        }),
    }
}

/// Whether what is to be said goes on by itself, or is told with something else: that it is being made or deleted, and, for the
/// first time, that it can be used, for everybody goes by the facts and whoever is let in has it written with that.
pub fn is_passing(before: Option<VolumePhase>, phase: VolumePhase, word: &str) -> bool {
    let first = phase == VolumePhase::Ready && before.is_none_or(|before| before == VolumePhase::Pending);
    first || [super::claim::RELEASING, super::claim::SOURCE_NOT_READY].contains(&word)
}

/// The same of one that is being deleted.
fn leaving(facts: &Facts<'_>) -> (VolumePhase, Condition) {
    let not_ready =
        |phase, reason: &str, message: String| (phase, Condition::new(READY, Truth::False, reason, message));
    let failing = facts.provisioning.filter(|c| c.status != Truth::True);
    let ending = facts.ending.as_ref().map(|other| Reason::HandleEnding { other: other.clone() });
    match (failing, facts.copy.as_ref()) {
        _ if is_asked_off(facts) => not_ready(VolumePhase::Releasing, KEEPING, KEEPING_WORDS.to_owned()),
        // Of what is not kept, its host asks for the claim itself, before it deletes anything.
        (_, copy) if facts.kept && facts.claim == Claim::Bound && !facts.held && copy.is_none() => not_ready(
            VolumePhase::Releasing,
            "InUse",
            "is bound to its claim, and goes once that is deleted, too".into(),
        ),
        (Some(c), _) => not_ready(VolumePhase::Releasing, &c.reason, c.message.clone()),
        (None, _) if facts.held => {
            not_ready(VolumePhase::Releasing, "InUse", "waits until no allocation has it any more".into())
        }
        (None, Some(copy)) => not_ready(
            VolumePhase::Releasing,
            "InUse",
            format!("waits until {copy}, which is made of it, is made or deleted"),
        ),
        (None, None) => match facts.shared.as_ref().filter(|_| !facts.kept) {
            Some(other) => not_ready(
                VolumePhase::Releasing,
                HANDLE_SHARED,
                format!(
                    "volume \"{other}\" has the same plugin and handle and would lose its data, too: delete that \
                         one, or set reclaimPolicy Retain for this one"
                ),
            ),
            None => match ending.filter(|_| !facts.kept) {
                Some(reason) => not_ready(VolumePhase::Releasing, reason.word(), reason.to_string()),
                None => not_ready(VolumePhase::Releasing, super::claim::RELEASING, "is being deleted".into()),
            },
        },
    }
}

/// The phase and the `Ready` condition, without generation and time.
pub fn standing(facts: &Facts<'_>) -> (VolumePhase, Condition) {
    let not_ready =
        |phase, reason: &str, message: String| (phase, Condition::new(READY, Truth::False, reason, message));
    let failing = facts.provisioning.filter(|c| c.status != Truth::True);
    let ending = facts.ending.as_ref().map(|other| Reason::HandleEnding { other: other.clone() });
    if facts.deleting {
        return leaving(facts);
    }
    if let Some(other) = &facts.anothers {
        let reason = Reason::GivenTwice { other: other.clone() };
        return not_ready(VolumePhase::Pending, reason.word(), reason.to_string());
    }
    if let Some(reason) = ending.or(facts.stale.then_some(Reason::HandleEnded)) {
        return not_ready(VolumePhase::Pending, reason.word(), reason.to_string());
    }
    if let Some(other) = &facts.before {
        return not_ready(
            VolumePhase::Pending,
            HANDLE_SHARED,
            format!(
                "volume \"{other}\" has the same plugin and handle and goes first: one of the two has to go"
            ),
        );
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
                    format!("node \"{node}\" makes its calls"),
                )
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn host() -> Host {
        Host { node_name: "n".into(), epoch: 2 }
    }

    fn all<'a>(host: &'a Host, why: &'a Reason) -> Vec<Facts<'a>> {
        let mut all = Vec::new();
        for bits in 0..32_u8 {
            for said in [
                None,
                Some((Rung::Down, 2)),
                Some((Rung::Unknown, 2)),
                Some((Rung::Up, 2)),
                Some((Rung::Down, 1)),
            ] {
                for retained in [false, true] {
                    all.push(Facts {
                        deleting: bits & 1 != 0,
                        source: if bits & 2 != 0 { Source::Existing } else { Source::Created },
                        kept: retained || bits & 2 != 0,
                        claim: Claim::Live,
                        host: (bits & 4 != 0).then_some(host),
                        no_host: (bits & 4 == 0).then_some(why),
                        exists: said,
                        attempting: bits & 16 != 0,
                        provisioning: None,
                        held: bits & 8 != 0,
                        copy: None,
                        before: None,
                        shared: None,
                        anothers: None,
                        ending: None,
                        leaves: false,
                        stale: false,
                        late: Late::No,
                    });
                }
            }
        }
        all
    }

    /// What the server decides by one object alone, when its host writes the last word.
    #[test]
    fn what_goes_with_its_hosts_last_word_would_go_by_what_is_known_of_it_too() {
        let definitions = crate::api::definitions();
        let over = definitions.iter().find(|kind| kind.kind == "Volume").unwrap().over;
        let (host, why) = (host(), Reason::NoHost);
        let mut found = 0;
        for facts in all(&host, &why) {
            let mut status = json!({ "attempting": facts.attempting });
            if let Some(host) = facts.host {
                status["controller"] = json!({ "nodeName": host.node_name, "epoch": host.epoch });
            }
            if let Some((rung, epoch)) = facts.exists {
                (status["exists"], status["observedEpoch"]) = (json!(rung), json!(epoch));
            }
            if facts.held {
                status["holders"] = json!([{}]);
            }
            if over(&json!({ "status": status })) {
                found += 1;
                assert!(gone(&Facts { deleting: true, ..facts.clone() }), "{facts:?}");
            }
        }
        // Deleting or not, made or found, with either policy.
        assert_eq!(found, 8);
    }

    #[test]
    fn an_object_goes_only_when_nothing_holds_it_and_nothing_is_left_behind() {
        let (host, why) = (host(), Reason::NoHost);
        for facts in all(&host, &why) {
            if gone(&facts) {
                assert!(facts.deleting && !facts.held, "{facts:?}");
                let never = facts.host.is_none();
                let sure = (never || facts.exists == Some((Rung::Down, 2))) && !facts.attempting;
                assert!(facts.kept || sure, "{facts:?}");
            }
        }
    }

    #[test]
    fn only_what_was_made_for_a_claim_that_is_gone_is_unwanted() {
        let (host, why) = (host(), Reason::NoHost);
        for facts in all(&host, &why) {
            for claim in [Claim::None, Claim::Live, Claim::Bound, Claim::Gone] {
                let facts = Facts { claim, ..facts.clone() };
                assert_eq!(
                    unwanted(&facts),
                    !facts.kept && claim == Claim::Gone && !facts.deleting,
                    "{facts:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_kept_goes_only_after_the_claim_that_has_it() {
        let (host, why) = (host(), Reason::NoHost);
        let mut waited = 0;
        for facts in all(&host, &why).into_iter().filter(|facts| facts.deleting) {
            let bound = Facts { claim: Claim::Bound, ..facts.clone() };
            let absent = exists(&facts) == Rung::Down && !facts.attempting;
            assert_eq!(gone(&bound), !facts.held && absent, "{facts:?}");
            for claim in [Claim::None, Claim::Live, Claim::Gone] {
                let facts = Facts { claim, ..facts.clone() };
                assert_eq!(gone(&facts), !facts.held && (facts.kept || absent), "{facts:?}");
            }
            if facts.kept && !facts.held {
                let full = Condition::new("Provisioned", Truth::False, "ResourceExhausted", "no room");
                for provisioning in [None, Some(&full)] {
                    let (_, condition) = standing(&Facts { provisioning, ..bound.clone() });
                    assert_eq!(condition.reason, "InUse", "{condition:?}");
                    assert!(condition.message.contains("its claim"), "{condition:?}");
                }
                waited += 1;
            }
        }
        assert_eq!(waited, 60);
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
    fn of_one_handle_one_volume_is_ready_and_both_say_so() {
        let (host, why) = (host(), Reason::NoHost);
        let other = || Some("other".to_owned());
        for facts in all(&host, &why) {
            let second = Facts { before: other(), shared: other(), ..facts.clone() };
            let (_, condition) = standing(&second);
            assert_eq!(condition.status, Truth::False, "{second:?}");
            assert!(facts.deleting || condition.reason == HANDLE_SHARED, "{second:?}");
            assert!(shared(&second).is_some() && shared(&facts).is_none());
            // The other's data is no reason to keep the object of what is kept anyway.
            assert_eq!(gone(&second), gone(&facts));
            let first = Facts { shared: other(), ..facts.clone() };
            let goes = facts.deleting && !facts.held && !facts.kept;
            let word = if goes { HANDLE_SHARED.to_owned() } else { standing(&facts).1.reason };
            assert_eq!(standing(&first).1.reason, word, "{first:?}");
        }
    }

    #[test]
    fn what_was_given_the_handle_of_another_one_is_never_used_and_goes_alone() {
        let (host, why) = (host(), Reason::NoHost);
        for facts in all(&host, &why) {
            let anothers = Facts { anothers: Some("volume \"other\"".to_owned()), ..facts.clone() };
            let (phase, condition) = standing(&anothers);
            assert!(phase != VolumePhase::Ready && condition.status == Truth::False, "{anothers:?}");
            if !facts.deleting {
                assert_eq!(condition.reason, HANDLE_SHARED);
                assert!(condition.message.contains("volume \"other\""), "{condition:?}");
            }
            assert_eq!(
                shared(&anothers).map(|told| told.reason),
                Some(crate::api::meta::HANDLE_OF_ANOTHER.to_owned())
            );
            assert_eq!(gone(&anothers), facts.deleting && !facts.held, "{anothers:?}");
            let bound = Facts { claim: Claim::Bound, ..anothers.clone() };
            assert_eq!(gone(&bound), gone(&anothers), "it never was its claim's");
            let ending = Facts { ending: Some("volume \"other\"".to_owned()), ..facts.clone() };
            let (phase, condition) = standing(&ending);
            assert!(phase != VolumePhase::Ready && condition.status == Truth::False, "{ending:?}");
            let told = !facts.deleting || !facts.held && !facts.kept;
            assert_eq!(condition.reason == "HandleEnding", told, "{ending:?}");
            let absent = exists(&facts) == Rung::Down && !facts.attempting;
            let told = facts.source == Source::Created && !absent;
            assert_eq!(farewell(&anothers, true) == Farewell::Anothers, told, "{anothers:?}");
        }
    }

    #[test]
    fn a_word_is_waited_for_by_who_deletes_and_while_an_old_one_is_there() {
        let (host, why) = (host(), Reason::NoHost);
        for facts in all(&host, &why) {
            let rung = facts.exists.map(|(rung, _)| rung);
            let deletes = facts.deleting && !facts.kept;
            let waits = rung == Some(Rung::Unknown) || rung == Some(Rung::Up) && deletes;
            assert_eq!(waits_for_word(&facts, true), waits, "{facts:?}");
            assert!(waits_for_word(&facts, false), "{facts:?}");
        }
    }

    #[test]
    fn who_holds_goes_before_who_could_and_who_never_will_comes_last() {
        let (host, why) = (host(), Reason::NoHost);
        for facts in all(&host, &why) {
            let released = Facts { claim: Claim::Gone, ..facts.clone() };
            for facts in [facts, released] {
                let [was_ready, rank] = [true, false].map(|ready| rank(&facts, ready));
                assert_eq!((was_ready == 0, rank == 0), (facts.held, facts.held));
                // Nothing was deleted under who had it before.
                assert_eq!(keeps_its_place(rank), facts.held, "{facts:?}");
                assert!(keeps_its_place(was_ready) || facts.kept, "{facts:?}");
                // What may be deleted at the backend at any moment leaves its place to nobody.
                assert!(rank < 3 || facts.kept, "{facts:?}");
                let over = facts.kept && standing(&facts).0 == VolumePhase::Released;
                assert!(rank == 3 || facts.held || !over, "{facts:?}");
                // Somebody may have written into it, whoever comes by its handle.
                assert_eq!(was_ready < rank, rank == 2, "{facts:?}");
            }
        }
    }

    #[test]
    fn a_code_without_a_meaning_is_no_word_on_what_was_made() {
        let call = |method: &str, code: &str| {
            let (method, code) = (method.to_owned(), code.to_owned());
            Call {
                method,
                code,
                message: String::new(),
                start_time: crate::api::meta::Time(jiff::Timestamp::UNIX_EPOCH),
                duration_millis: 1,
                attempt: 1,
            }
        };
        for (calls, expected) in [
            (vec![], false),
            (vec![("CreateVolume", "UNKNOWN")], true),
            (vec![("CreateSnapshot", "INTERNAL")], true),
            (vec![("CreateVolumeGroupSnapshot", "DATA_LOSS")], true),
            (vec![("CreateVolume", "INTERNAL"), ("CreateVolume", "INVALID_ARGUMENT")], false),
            (vec![("CreateVolume", "INTERNAL"), ("DeleteVolume", "OK")], false),
            (vec![("CreateVolume", "OUT_OF_RANGE")], false),
            (vec![("DeleteVolume", "INTERNAL")], false),
        ] {
            let all: Vec<_> = calls.iter().map(|(method, code)| call(method, code)).collect();
            assert_eq!(vague(&all).is_some(), expected, "{calls:?}");
        }
    }

    #[test]
    fn what_stays_behind_is_told_once_its_object_goes() {
        let (host, why) = (host(), Reason::NoHost);
        for facts in all(&host, &why).into_iter().filter(gone) {
            let sure = facts.host.is_none() || facts.exists == Some((Rung::Down, 2));
            let stays = facts.source == Source::Created && facts.kept && (facts.attempting || !sure);
            for (named, told) in [(true, Farewell::Kept), (false, Farewell::KeptInDoubt)] {
                let told = if stays { told } else { Farewell::None };
                assert_eq!(farewell(&facts, named), told, "{facts:?}");
            }
        }
    }

    /// Part of obligation CO-CTRL-05.
    #[test]
    fn nothing_goes_by_itself_while_a_copy_of_it_is_made() {
        let (host, why) = (host(), Reason::NoHost);
        for facts in all(&host, &why) {
            let alone = Facts { claim: Claim::Gone, ..facts };
            let copied = Facts { copy: Some("vol-2".to_owned()), ..alone.clone() };
            assert!(!unwanted(&copied), "{copied:?}");
            let waits = alone.deleting && !alone.held;
            let absent = exists(&copied) == Rung::Down && !copied.attempting;
            assert!(absent || !gone(&copied), "{copied:?}");
            let message = standing(&copied).1.message;
            assert_eq!(message.contains("vol-2, which is made of it"), waits, "{message}");
        }
        for (source, word) in [
            (None, Some("NotFound")),
            (Some((true, false)), Some("BeingDeleted")),
            (Some((true, true)), None),
            (Some((false, false)), Some("SourceNotReady")),
            (Some((false, true)), None),
        ] {
            assert_eq!(held_back("Volume", "vol-1", source).map(|reason| reason.word()), word);
        }
    }

    /// Scenario B90.
    #[test]
    fn an_ephemeral_one_can_be_used_at_once_and_goes_once_nobody_has_it() {
        let (host, why) = (host(), Reason::NoHost);
        let all = all(&host, &why).into_iter().filter(|facts| facts.host.is_none() && !facts.attempting);
        for facts in all {
            let facts =
                Facts { source: Source::Ephemeral, kept: false, no_host: None, exists: None, ..facts };
            assert_eq!(gone(&facts), facts.deleting && !facts.held, "{facts:?}");
            assert_eq!(standing(&facts).0 == VolumePhase::Ready, !facts.deleting, "{facts:?}");
            let left = Facts { claim: Claim::Gone, ..facts };
            assert_eq!(unwanted(&left), !left.deleting, "no policy keeps it: {left:?}");
        }
    }

    #[test]
    fn only_what_goes_on_by_itself_may_wait() {
        use VolumePhase::{Failed, Pending, Ready, Released, Releasing};
        for (before, phase, word, wanted) in [
            (None, Ready, "Ready", true),
            (Some(Pending), Ready, "Ready", true),
            (Some(Failed), Ready, "Ready", false),
            (Some(Released), Ready, "Ready", false),
            (Some(Ready), Releasing, "Releasing", true),
            (Some(Ready), Releasing, "InUse", false),
            (None, Pending, "SourceNotReady", true),
            (None, Pending, "ResourceExhausted", false),
        ] {
            assert_eq!(is_passing(before, phase, word), wanted, "{before:?} {phase:?} {word}");
        }
    }

    #[test]
    fn what_is_kept_late_goes_when_its_host_has_said_how_its_deletion_ended() {
        use HostNode::{Alive, Gone, Silent};
        for (calling, late) in [
            (None, Late::Said),
            (Some(Gone), Late::Lost),
            (Some(Silent), Late::UnderWay),
            (Some(Alive), Late::UnderWay),
        ] {
            assert_eq!((Late::of(true, calling), Late::of(false, calling)), (late, Late::No));
        }
        let (host, why) = (host(), Reason::NoHost);
        let mut asked = 0;
        for facts in all(&host, &why).into_iter().filter(|facts| facts.source == Source::Created) {
            let of = |late| Facts { late, ..facts.clone() };
            let absent = exists(&facts) == Rung::Down && !facts.attempting;
            let under_way = of(Late::UnderWay);
            assert_eq!(gone(&under_way), facts.deleting && !facts.held && absent, "{facts:?}");
            for late in [Late::Said, Late::Lost] {
                assert_eq!(gone(&of(late)), gone(&facts), "{facts:?}");
                assert!(!is_asked_off(&of(late)));
            }
            assert_eq!(is_asked_off(&under_way), gone(&facts) && !gone(&under_way), "{facts:?}");
            asked += usize::from(is_asked_off(&under_way));
            if !facts.kept {
                continue;
            }
            for late in [Late::Said, Late::Lost, Late::UnderWay] {
                let told = match (absent, exists(&facts)) {
                    (true, _) => Farewell::Deleted,
                    (false, Rung::Up) if late == Late::Said => Farewell::Kept,
                    (false, Rung::Up | Rung::Unknown | Rung::Down) => Farewell::KeptInDoubt,
                };
                assert_eq!(farewell(&of(late), true), told, "{facts:?} {late:?}");
            }
            // Another one's deletion may take it.
            for doubtful in [Facts { stale: true, ..facts.clone() }, Facts { leaves: true, ..facts.clone() }]
            {
                let told = if absent { Farewell::None } else { Farewell::KeptInDoubt };
                assert_eq!(farewell(&doubtful, true), told, "{facts:?}");
            }
        }
        assert!(asked > 0);
    }

    /// What was given beside one that goes is used when it was given once more.
    #[test]
    fn what_may_have_gone_with_another_one_is_not_used() {
        let (host, why) = (host(), Reason::NoHost);
        for facts in all(&host, &why).into_iter().filter(|facts| !facts.deleting) {
            let stale = Facts { stale: true, ..facts.clone() };
            let (phase, condition) = standing(&stale);
            assert_eq!((phase, condition.reason.as_str()), (VolumePhase::Pending, "HandleEnding"));
            assert_eq!(shared(&stale).unwrap().reason, crate::api::meta::HANDLE_ENDED);
            let younger = Facts { ending: Some("volume \"other\"".to_owned()), ..facts };
            assert_eq!(shared(&younger), None, "it takes nothing with it");
            assert_eq!(standing(&younger).1.reason, "HandleEnding");
            let ending = Facts { leaves: true, ..younger };
            assert_eq!(shared(&ending).unwrap().reason, "HandleEnding");
        }
    }

    #[test]
    fn the_hosts_reason_is_passed_on() {
        let host = host();
        let full = Condition::new("Provisioned", Truth::False, "ResourceExhausted", "no room");
        let facts = Facts {
            deleting: false,
            source: Source::Created,
            kept: false,
            claim: Claim::Live,
            host: Some(&host),
            no_host: None,
            exists: Some((Rung::Unknown, 2)),
            attempting: false,
            provisioning: Some(&full),
            held: false,
            copy: None,
            before: None,
            shared: None,
            anothers: None,
            ending: None,
            leaves: false,
            stale: false,
            late: Late::No,
        };
        let (phase, condition) = standing(&facts);
        assert_eq!((phase, condition.reason.as_str()), (VolumePhase::Pending, "ResourceExhausted"));
        let sure = Facts { exists: Some((Rung::Down, 2)), ..facts };
        assert_eq!(standing(&sure).0, VolumePhase::Failed);
        let moved = Facts { exists: Some((Rung::Up, 1)), provisioning: None, ..sure.clone() };
        assert_eq!(standing(&moved).0, VolumePhase::Ready, "a new host changes nothing for its users");
        let going = Facts { deleting: true, ..moved };
        assert_eq!(exists(&going), Rung::Unknown, "but its deletion is the new host's to confirm");
        let let_go = Facts { exists: Some((Rung::Down, 1)), ..going };
        assert!(!gone(&let_go), "the new host may be making it");
        let registered = Facts {
            source: Source::Existing,
            kept: true,
            host: None,
            exists: None,
            provisioning: None,
            ..sure
        };
        assert_eq!(standing(&registered).0, VolumePhase::Ready, "no controller service, nobody to ask");
        assert_eq!(standing(&Facts { claim: Claim::Gone, ..registered }).0, VolumePhase::Released);
    }
}
