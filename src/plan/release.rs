//! Who may hold a volume, and when a holder is let go.
//!
//! A grant is one compare-and-swap of the volume's holders. A holder goes when its node said so, or a fence says that
//! the node cannot write any more; never because time passed, and never because nobody answers. Every fact that lets one
//! go stays true once it is true, so that a cache of any age may be believed.
use super::Reason;
use crate::api::allocation::AllocationPhase;
use crate::api::meta::{AccessMode, ObjectRef, Rung};
use crate::api::volume::Holder;

/// Whether a new user may be granted beside the present holders.
pub fn grant(volume: &str, mode: AccessMode, holders: &[Holder], wanted: &Holder) -> Result<(), Reason> {
    // Its own grant on another node is a conflict like any other: an allocation that moved waits for itself.
    let own = |h: &Holder| h.allocation.uid == wanted.allocation.uid && h.node_name == wanted.node_name;
    let conflict = holders.iter().filter(|h| !own(h)).find(|h| match mode {
        // The specification has a second target refused with FAILED_PRECONDITION, readers or not (NodePublishVolume,
        // one user is what every plugin takes.
        AccessMode::SingleNodeWriter
        | AccessMode::SingleNodeSingleWriter
        | AccessMode::SingleNodeReaderOnly => !planted!("granted-beside-others"),
        AccessMode::SingleNodeMultiWriter => h.node_name != wanted.node_name,
        AccessMode::MultiNodeReaderOnly | AccessMode::MultiNodeMultiWriter => false,
        AccessMode::MultiNodeSingleWriter => !h.read_only && !wanted.read_only,
    });
    match conflict {
        Some(own) if own.allocation.uid == wanted.allocation.uid => {
            Err(Reason::NotReleased { node: own.node_name.clone() })
        }
        Some(holder) => Err(Reason::HeldElsewhere {
            volume: volume.to_owned(),
            holder: format!("{}/{}", holder.allocation.namespace, holder.allocation.name),
            node: holder.node_name.clone(),
        }),
        None => Ok(()),
    }
}

/// Why a node is known to be unable to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// Nothing says so.
    None,
    /// The node booted anew since the grant, an operator said that it is off, or its Node was deleted.
    Stands,
}

/// What is seen of one attachment on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// Whether the node reported that nothing is left there, for this very attachment.
    pub released: bool,
    /// Whether a fence stands for the node's word.
    pub fence: Fence,
    /// Whether ControllerPublish was needed.
    pub attach_required: bool,
    /// The host's rung.
    pub attached: Rung,
    /// Whether anybody was ever let in. Before that nothing is attached, staged or published under it.
    pub used: bool,
}

/// Whether the object of an attachment that is being deleted may go: the node let go and the controller detached.
pub fn attachment_gone(leaving: Leaving) -> bool {
    !leaving.used || leaving.released && (planted!("gone-before-detach") || detached(leaving))
}

/// Whether the volume may be granted elsewhere although the closed attachment's object stays for the node's return.
pub fn holder_free(leaving: Leaving) -> bool {
    !leaving.used || (leaving.released || leaving.fence == Fence::Stands) && detached(leaving)
}

fn detached(leaving: Leaving) -> bool {
    !leaving.attach_required || leaving.attached == Rung::Down
}

/// What is seen of the allocation behind a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// It wants the volume on the holder's node.
    Wants,
    /// It is over for good and cannot want the volume again; its node says that this publication is down.
    Down,
    /// It does not want the volume now. The node has not said that it is down, or it may want it again.
    NotDown,
    /// It does not want the volume now, and has it still: its node says so, and is there to take it away.
    There,
    /// It is being deleted, which nobody takes back, and its node is there: where no other may have the volume beside it, that
    /// lets go of the attachment by itself ([`lets_go`]).
    Ends,
}

/// What is seen of the allocation behind a holder.
#[derive(Debug, Clone, Copy)]
pub struct UserFacts {
    /// Its object is there, with the same uid. One that is gone without having let go was abandoned.
    pub exists: bool,
    /// It was stopped, has to leave its node, or no longer names the claim; the first and the last may be taken back.
    pub leaving: bool,
    /// It is being deleted.
    pub deleting: bool,
    /// It is bound to the holder's node.
    pub here: bool,
    /// That node was taken down.
    pub node_down: bool,
    /// That node answers.
    pub node_ready: bool,
    /// Where it stands.
    pub phase: Option<AllocationPhase>,
    /// Its phase is the controllers' word, for its node is lost: nothing of what it says is that node's.
    pub lost: bool,
    /// What its node says of this volume; absent when it never had it.
    pub published: Option<Rung>,
}

/// Whether an allocation wants its volume still, and if not, whether its node says that it is down.
pub fn user(facts: UserFacts) -> User {
    let over = matches!(facts.phase, Some(AllocationPhase::Complete | AllocationPhase::Failed));
    if facts.exists && facts.here && !facts.leaving && !facts.deleting && !facts.node_down && !over {
        return User::Wants;
    }
    // Before the phase says that it is over, "not published" may be older than the publication itself. And one that was
    // only stopped may be started again and published by the grant that it has.
    let ended = over || facts.deleting && facts.phase.is_some_and(AllocationPhase::terminal);
    let down = ended && !facts.lost && matches!(facts.published, None | Some(Rung::Down));
    let there = matches!(facts.published, Some(Rung::Up | Rung::Unknown));
    if !facts.exists || !facts.here {
        User::NotDown
    } else if down {
        User::Down
    } else if facts.deleting && facts.node_ready && !facts.node_down && !facts.lost {
        User::Ends
    } else if there && facts.node_ready && !facts.lost {
        User::There
    } else {
        User::NotDown
    }
}

/// Whether a node lets go of an attachment before anybody asks it to: all who were let in are being deleted and
/// have nothing of the volume there any more, and nobody else can have been let in whom it has not heard of.
pub fn lets_go(mode: AccessMode, mut let_in: impl ExactSizeIterator<Item = Ending>) -> bool {
    let_in.len() > 0 && !several_on_a_node(mode) && let_in.all(|one| one.deleting && one.down)
}

/// What who uses a volume on a node still has of it, by the attachment that it was published under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenure {
    /// All of it.
    Stands,
    /// It keeps what it has for as long as it runs, and begins nothing more with it: the node lets go of the attachment.
    Ends,
    /// Nothing: others may have the volume by now.
    Taken,
}

/// That, of an attachment that its node knows: whether the node lets go of it, and whether it was fenced. None: the server has it no
/// more.
pub fn tenure(attachment: Option<(bool, bool)>) -> Tenure {
    match attachment {
        Some((_, true)) if planted!("taken-is-kept") => Tenure::Stands,
        None | Some((_, true)) => Tenure::Taken,
        Some((true, false)) => Tenure::Ends,
        Some((false, false)) => Tenure::Stands,
    }
}

/// What a node sees of one who was let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending {
    /// Its object is known here, and is being deleted.
    pub deleting: bool,
    /// It has nothing of the volume: never, or not any more.
    pub down: bool,
}

/// Whether one that comes while another one leaves the same node may have the volume beside it.
pub fn several_on_a_node(mode: AccessMode) -> bool {
    match mode {
        AccessMode::SingleNodeMultiWriter
        | AccessMode::MultiNodeReaderOnly
        | AccessMode::MultiNodeSingleWriter
        | AccessMode::MultiNodeMultiWriter => true,
        AccessMode::SingleNodeWriter
        | AccessMode::SingleNodeReaderOnly
        | AccessMode::SingleNodeSingleWriter => false,
    }
}

/// The rung as the host of this epoch knows it: no word is doubt, and of what another host said only that it is up is
/// taken, while it is wanted. For nobody detaches what is wanted, and who attached it again to be sure would call about a
/// volume in use.
pub fn attached(deleting: bool, epoch: Option<i64>, said: Option<(Rung, i64)>) -> Rung {
    match (epoch, said) {
        // Nobody was ever assigned, so nobody ever attempted it.
        (None, None) => Rung::Down,
        (Some(epoch), Some((rung, of))) if of == epoch => rung,
        (Some(_), Some((Rung::Up, _))) if !deleting => Rung::Up,
        (Some(_) | None, _) => Rung::Unknown,
    }
}

/// Whether a volume that only readers wait for is attached for reading. Not where a writer may come beside them on the same node: it
/// would have to wait until they are gone, and a volume that nobody has formatted could not be. Readers publish it for reading
/// at any rate.
pub fn attached_for_reading(mode: AccessMode, all_read: bool) -> bool {
    let beside = match mode {
        AccessMode::SingleNodeMultiWriter | AccessMode::MultiNodeMultiWriter => true,
        AccessMode::SingleNodeWriter
        | AccessMode::SingleNodeReaderOnly
        | AccessMode::SingleNodeSingleWriter
        | AccessMode::MultiNodeReaderOnly
        | AccessMode::MultiNodeSingleWriter => false,
    };
    all_read && !beside
}

/// What to do with one holder of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderStep {
    /// It stays.
    Keep,
    /// Take the attachment away: nobody on that node wants the volume. [`super::holders`] waits with it for one that is
    /// [`User::There`], where others may come.
    CloseAttachment,
    /// Remove the entry: its release is known.
    Remove,
}

/// Everything that decides about one holder.
#[derive(Debug, Clone, Copy)]
pub struct HolderFacts {
    /// Its allocation.
    pub user: User,
    /// Whether another holder of the same attachment still wants the volume.
    pub others_on_node: bool,
    /// Whether another holder of the same attachment stays: it wants the volume, or is not known to be down.
    pub others_stay: bool,
    /// The attachment that it names, if there is one: whether it is leaving, and what is seen of it. None must be the
    /// server's own word, asked after the holder was read: the attachment is older than the holder.
    pub attachment: Option<(bool, Leaving)>,
}

/// What to do with one holder.
pub fn holder_step(facts: HolderFacts) -> HolderStep {
    let wants = facts.user == User::Wants;
    match facts.attachment {
        // Nobody can be let in by it any more. Who wants the volume is granted anew.
        None => HolderStep::Remove,
        Some(_) if wants => HolderStep::Keep,
        // Only once it is closed: whoever comes back on that node then finds it closed and stages nothing under it.
        Some((true, leaving)) if leaving.fence == Fence::Stands && holder_free(leaving) => HolderStep::Remove,
        // It need not wait for the other one, which keeps what it has: that may be stuck.
        Some(_) if facts.others_stay && facts.user == User::Down => HolderStep::Remove,
        Some((false, _)) if facts.others_on_node => HolderStep::Keep,
        Some((false, _)) => HolderStep::CloseAttachment,
        Some((true, _)) => HolderStep::Keep,
    }
}

/// A holder entry for an allocation, which names no attachment yet.
pub fn holder(allocation: ObjectRef, node: &str, read_only: bool) -> Holder {
    let node_name = node.to_owned();
    Holder { allocation, node_name, attachment_uid: String::new(), boot_id: String::new(), read_only }
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_begins_on_what_is_let_go_and_nothing_goes_on_with_what_was_taken() {
        for (attachment, left) in [
            (None, Tenure::Taken),
            (Some((true, true)), Tenure::Taken),
            // The word that the node is off comes first, what follows from it later.
            (Some((false, true)), Tenure::Taken),
            (Some((true, false)), Tenure::Ends),
            (Some((false, false)), Tenure::Stands),
        ] {
            assert_eq!(tenure(attachment), left, "{attachment:?}");
        }
    }

    use super::*;
    use serde_json::json;

    fn user(uid: &str, node: &str, read_only: bool) -> Holder {
        holder(ObjectRef { namespace: "d".into(), name: uid.into(), uid: uid.into() }, node, read_only)
    }

    /// What the server decides by one object alone, when its node or its host writes the last word.
    #[test]
    fn what_goes_with_the_last_word_of_its_node_or_host_would_go_by_what_is_seen_of_it_too() {
        let definitions = crate::api::definitions();
        let over = definitions.iter().find(|kind| kind.kind == "VolumeAttachment").unwrap().over;
        let said = [
            None,
            Some((Rung::Down, 1)),
            Some((Rung::Down, 2)),
            Some((Rung::Unknown, 2)),
            Some((Rung::Up, 2)),
        ];
        let mut found = 0;
        for (released, attach_required) in [(false, false), (false, true), (true, false), (true, true)] {
            for (epoch, said) in [None, Some(2)].into_iter().flat_map(|epoch| said.map(|said| (epoch, said)))
            {
                let mut object = json!({ "metadata": { "uid": "u" }, "spec": { "attachRequired": attach_required },
                    "status": { "node": { "releasedUID": if released { "u" } else { "former" } } } });
                if let Some(epoch) = epoch {
                    object["spec"]["host"] = json!({ "nodeName": "n", "epoch": epoch });
                }
                if let Some((rung, epoch)) = said {
                    object["status"]["controller"] = json!({ "attached": rung, "epoch": epoch });
                }
                let (fence, attached) = (Fence::None, attached(true, epoch, said));
                let leaving = Leaving { released, fence, attach_required, attached, used: true };
                if over(&object) {
                    found += 1;
                    assert!(attachment_gone(leaving), "{object}");
                }
            }
        }
        // Whatever is said of one that is never attached; and the word of the host that it has.
        assert_eq!(found, 10 + 1);
    }

    /// Obligations CO-NODE-47, CO-NODE-48.
    /// Scenario A45.
    #[test]
    fn access_modes_hold_in_every_order_of_readers_and_writers() {
        use AccessMode as M;
        let modes = [
            M::SingleNodeWriter,
            M::SingleNodeReaderOnly,
            M::SingleNodeSingleWriter,
            M::SingleNodeMultiWriter,
            M::MultiNodeReaderOnly,
            M::MultiNodeSingleWriter,
            M::MultiNodeMultiWriter,
        ];
        for mode in modes {
            for (node, first_reads, second_reads) in ["a", "b"]
                .iter()
                .flat_map(|n| [(n, false, false), (n, false, true), (n, true, false), (n, true, true)])
            {
                let first = [user("1", "a", first_reads)];
                let granted = grant("v", mode, &first, &user("2", node, second_reads)).is_ok();
                if mode.single_node() && *node == "b" {
                    assert!(!granted, "{mode:?} on two nodes");
                }
                if mode == M::MultiNodeSingleWriter {
                    assert_eq!(granted, first_reads || second_reads);
                }
                if mode.single_node() && mode != M::SingleNodeMultiWriter {
                    assert!(!granted, "{mode:?}: one target");
                }
                // The order does not matter.
                let swapped =
                    grant("v", mode, &[user("2", node, second_reads)], &user("1", "a", first_reads)).is_ok();
                assert_eq!(granted, swapped, "{mode:?} {node}");
            }
            let beside = grant("v", mode, &[user("1", "a", true)], &user("2", "a", true)).is_ok();
            assert_eq!(several_on_a_node(mode), beside, "{mode:?}");
            assert!(grant("v", mode, &[], &user("1", "a", false)).is_ok());
            assert!(
                grant("v", mode, &[user("1", "a", false)], &user("1", "a", false)).is_ok(),
                "its own grant"
            );
        }
    }

    #[test]
    fn an_allocation_that_moved_waits_for_its_own_old_grant() {
        let old = [user("1", "a", false)];
        let own = grant("v", AccessMode::SingleNodeWriter, &old, &user("1", "b", false)).unwrap_err();
        assert_eq!(own, Reason::NotReleased { node: "a".to_owned() }, "it is not told to end itself");
        assert!(grant("v", AccessMode::MultiNodeMultiWriter, &old, &user("1", "b", false)).is_ok());
    }

    #[test]
    fn an_allocation_is_down_only_by_its_nodes_last_word() {
        use AllocationPhase as P;
        let phases = [
            None,
            Some(P::WaitingVolumes),
            Some(P::Running),
            Some(P::Stopping),
            Some(P::Stopped),
            Some(P::Failed),
        ];
        for bits in 0..128_u8 {
            for phase in phases {
                for published in [None, Some(Rung::Down), Some(Rung::Unknown), Some(Rung::Up)] {
                    let facts = UserFacts {
                        exists: bits & 1 != 0,
                        leaving: bits & 2 != 0,
                        here: bits & 4 != 0,
                        node_down: bits & 8 != 0,
                        deleting: bits & 16 != 0,
                        phase,
                        lost: bits & 32 != 0,
                        node_ready: bits & 64 != 0,
                        published,
                    };
                    match super::user(facts) {
                        User::Wants => {
                            assert!(facts.exists && facts.here && !facts.leaving && !facts.node_down);
                            assert!(!facts.deleting);
                        }
                        User::Down => {
                            assert!(
                                facts.exists && facts.here && phase.is_some_and(P::terminal),
                                "{facts:?}"
                            );
                            assert!(matches!(published, None | Some(Rung::Down)), "{facts:?}");
                            let over = matches!(phase, Some(P::Complete | P::Failed));
                            assert!(over || facts.deleting, "it may want the volume again: {facts:?}");
                            assert!(!facts.lost, "its node has not said so: {facts:?}");
                        }
                        User::There => {
                            assert!(facts.exists && facts.here && facts.node_ready && !facts.lost);
                            assert!(matches!(published, Some(Rung::Up | Rung::Unknown)), "{facts:?}");
                        }
                        User::Ends => {
                            assert!(facts.exists && facts.here && facts.node_ready && !facts.lost);
                            assert!(facts.deleting && !facts.node_down, "nobody takes it back: {facts:?}");
                        }
                        User::NotDown => {}
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_user_says_before_it_is_down() {
        use AllocationPhase as P;
        let restarted = UserFacts {
            exists: true,
            leaving: false,
            deleting: false,
            here: true,
            node_down: false,
            node_ready: true,
            phase: Some(P::Stopped),
            lost: false,
            published: Some(Rung::Down),
        };
        assert_eq!(super::user(restarted), User::Wants, "stopped and started again");
        assert_eq!(super::user(UserFacts { leaving: true, ..restarted }), User::NotDown);
        assert_eq!(super::user(UserFacts { deleting: true, ..restarted }), User::Down);
        let leaves =
            UserFacts { leaving: true, published: Some(Rung::Up), phase: Some(P::Stopping), ..restarted };
        assert_eq!(super::user(leaves), User::There);
        assert_eq!(super::user(UserFacts { deleting: true, ..leaves }), User::Ends);
        assert_eq!(super::user(UserFacts { deleting: true, lost: true, ..leaves }), User::NotDown);
        assert_eq!(
            super::user(UserFacts { node_ready: false, ..leaves }),
            User::NotDown,
            "nobody takes it away"
        );
    }

    #[test]
    fn a_node_lets_go_by_itself_of_what_nobody_can_want_there_any_more() {
        use AccessMode as M;
        let one = |deleting, down| Ending { deleting, down };
        let gone = one(true, true);
        for (mode, let_in, lets) in [
            (M::SingleNodeWriter, vec![gone], true),
            (M::SingleNodeSingleWriter, vec![gone], true),
            (M::SingleNodeReaderOnly, vec![gone, gone], true),
            // Nobody was let in: somebody may be about to be.
            (M::SingleNodeWriter, vec![], false),
            (M::SingleNodeWriter, vec![one(false, true)], false),
            (M::SingleNodeWriter, vec![one(true, false)], false),
            (M::SingleNodeWriter, vec![gone, one(false, true)], false),
            // Another one may have been let in meanwhile.
            (M::SingleNodeMultiWriter, vec![gone], false),
            (M::MultiNodeReaderOnly, vec![gone], false),
            (M::MultiNodeSingleWriter, vec![gone], false),
            (M::MultiNodeMultiWriter, vec![gone], false),
        ] {
            assert_eq!(lets_go(mode, let_in.iter().copied()), lets, "{mode:?} {let_in:?}");
        }
    }

    #[test]
    fn only_the_present_hosts_word_counts_but_for_what_is_up_and_wanted() {
        for deleting in [false, true] {
            assert_eq!(attached(deleting, None, None), Rung::Down);
            assert_eq!(attached(deleting, Some(2), None), Rung::Unknown);
            for rung in [Rung::Down, Rung::Unknown, Rung::Up] {
                assert_eq!(attached(deleting, Some(2), Some((rung, 2))), rung);
                let stays = !deleting && rung == Rung::Up;
                let expected = if stays { Rung::Up } else { Rung::Unknown };
                assert_eq!(attached(deleting, Some(2), Some((rung, 1))), expected, "{deleting} {rung:?}");
            }
        }
    }

    fn all_leaving() -> Vec<Leaving> {
        let mut all = Vec::new();
        for released in [false, true] {
            for fence in [Fence::None, Fence::Stands] {
                for attach_required in [false, true] {
                    for attached in [Rung::Down, Rung::Unknown, Rung::Up] {
                        for used in [false, true] {
                            all.push(Leaving { released, fence, attach_required, attached, used });
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn without_word_or_fence_nothing_is_free() {
        for leaving in all_leaving() {
            if !leaving.used {
                assert!(holder_free(leaving) && attachment_gone(leaving), "nobody was ever let in");
                continue;
            }
            if !leaving.released && leaving.fence == Fence::None {
                assert!(!holder_free(leaving) && !attachment_gone(leaving));
            }
            if leaving.attach_required && leaving.attached != Rung::Down {
                assert!(!holder_free(leaving) && !attachment_gone(leaving));
            }
            if attachment_gone(leaving) {
                assert!(holder_free(leaving));
            }
        }
    }

    #[test]
    fn a_holder_goes_only_when_its_release_is_known() {
        for leaving in all_leaving() {
            for user in [User::Wants, User::Down, User::NotDown, User::There, User::Ends] {
                for (others_on_node, others_stay) in [(false, false), (false, true), (true, true)] {
                    for going in [false, true] {
                        let fence = leaving.fence;
                        let attachment = Some((going, leaving));
                        let step = holder_step(HolderFacts { user, others_on_node, others_stay, attachment });
                        if step == HolderStep::Remove {
                            let shared = others_stay && user == User::Down;
                            let fenced = going && fence == Fence::Stands && holder_free(leaving);
                            assert!(shared || fenced, "{leaving:?}");
                        }
                        if user == User::Wants {
                            assert_eq!(step, HolderStep::Keep);
                        }
                    }
                }
            }
        }
    }
}
