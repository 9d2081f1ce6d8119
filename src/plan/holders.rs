//! The holders and attachments of one volume: who is let go, who is granted, what is attached and what is closed.
//!
//! ```text
//!   wants ▶ holder entered ▶ attachment made ▶ … ▶ nobody there wants it ▶ attachment closed ▶ gone ▶ holder removed
//! ```
//! One step at a time, in the order: change the holders, close, attach. Nothing is attached for a node without holder.
use super::Reason;
use super::release::{self, Fence, HolderFacts, HolderStep, Leaving, User};
use crate::api::meta::{AccessMode, ObjectRef};
use crate::api::volume::Holder;

/// One attachment of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its node.
    pub node: String,
    /// It is being deleted.
    pub going: bool,
    /// It was made for readers only.
    pub read_only: bool,
    /// What is seen of it.
    pub seen: Leaving,
}

/// Everything that decides.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The volume's name.
    pub volume: String,
    /// How it may be used.
    pub mode: AccessMode,
    /// Whether new users may be granted: it is ready and stays, and so does its claim.
    pub open: bool,
    /// Its holders, each with what is known of its allocation.
    pub holders: Vec<(Holder, User)>,
    /// Its attachments.
    pub attachments: Vec<Attachment>,
    /// The allocations that want it on their nodes, first come first.
    pub wanting: Vec<Holder>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Replace the holders by these.
    Holders(Vec<Holder>),
    /// Delete the attachment of this node.
    Close {
        /// The node.
        node: String,
    },
    /// Make an attachment for this node.
    Attach {
        /// The node.
        node: String,
        /// Whether every holder there only reads.
        read_only: bool,
    },
}

/// The steps of this moment, of which the first is to be carried out, and who waits for whom.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// What to do; several nodes may each have one.
    pub steps: Vec<Step>,
    /// Allocations that want the volume and cannot have it yet.
    pub waiting: Vec<(ObjectRef, Reason)>,
}

/// Decides for one volume.
pub fn next(facts: &Facts) -> Verdict {
    let kept: Vec<_> = facts.holders.iter().filter(|h| step_of(facts, h) != HolderStep::Remove).collect();
    let mut holders: Vec<Holder> = kept.iter().map(|(holder, _)| holder.clone()).collect();
    let mut verdict = Verdict::default();
    for wanted in &facts.wanting {
        if holders.iter().any(|h| same(h, wanted)) {
            continue;
        }
        match may_have(facts, &holders, wanted) {
            Ok(()) => holders.push(wanted.clone()),
            Err(reason) => verdict.waiting.push((wanted.allocation.clone(), reason)),
        }
    }
    let changed = holders.len() != facts.holders.len()
        || holders.iter().zip(&facts.holders).any(|(new, (old, _))| new != old);
    if changed {
        verdict.steps.push(Step::Holders(holders));
        return verdict;
    }
    for attachment in facts.attachments.iter().filter(|a| !a.going && !wanted_on(facts, &a.node)) {
        verdict.steps.push(Step::Close { node: attachment.node.clone() });
    }
    let mut nodes: Vec<_> =
        facts.holders.iter().filter(|(_, user)| *user == User::Wants).map(|(h, _)| &h.node_name).collect();
    nodes.sort();
    nodes.dedup();
    for node in nodes {
        if facts.attachments.iter().all(|a| a.node != *node) {
            let read_only =
                facts.holders.iter().filter(|(h, _)| h.node_name == *node).all(|(h, _)| h.read_only);
            verdict.steps.push(Step::Attach { node: node.clone(), read_only });
        }
    }
    verdict
}

fn same(a: &Holder, b: &Holder) -> bool {
    a.allocation.uid == b.allocation.uid && a.node_name == b.node_name
}

fn wanted_on(facts: &Facts, node: &str) -> bool {
    facts.holders.iter().any(|(h, user)| h.node_name == node && *user == User::Wants)
}

fn step_of(facts: &Facts, (holder, user): &(Holder, User)) -> HolderStep {
    let attachment = facts.attachments.iter().find(|a| a.node == holder.node_name);
    let other = |(h, user): &(Holder, User)| {
        h.node_name == holder.node_name && !same(h, holder) && *user == User::Wants
    };
    release::holder_step(HolderFacts {
        user: *user,
        others_on_node: facts.holders.iter().any(other),
        attachment: attachment.map(|a| (a.going, a.seen)),
        fence: attachment.map_or(Fence::None, |a| a.seen.fence),
    })
}

fn may_have(facts: &Facts, holders: &[Holder], wanted: &Holder) -> Result<(), Reason> {
    if !facts.open {
        return Err(Reason::VolumeNotReady { claim: facts.volume.clone(), message: String::new() });
    }
    for attachment in &facts.attachments {
        let here = attachment.node == wanted.node_name;
        let busy = if here {
            // A closed attachment is finished first; one made for readers cannot take a writer.
            attachment.going || attachment.read_only && !wanted.read_only
        } else {
            facts.mode.single_node() && !release::holder_free(attachment.seen)
        };
        if busy {
            return Err(Reason::NotReleased { node: attachment.node.clone() });
        }
    }
    release::grant(&facts.volume, facts.mode, holders, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::meta::Rung;

    fn holder(uid: &str, node: &str, read_only: bool) -> Holder {
        release::holder(
            ObjectRef { namespace: "d".into(), name: uid.into(), uid: uid.into() },
            node,
            read_only,
        )
    }

    fn facts(mode: AccessMode) -> Facts {
        Facts {
            volume: "v".into(),
            mode,
            open: true,
            holders: Vec::new(),
            attachments: Vec::new(),
            wanting: Vec::new(),
        }
    }

    fn attachment(node: &str, going: bool) -> Attachment {
        let seen = Leaving { released: false, fence: Fence::None, attach_required: true, attached: Rung::Up };
        Attachment { node: node.into(), going, read_only: false, seen }
    }

    /// The world as the steps leave it: nodes release and hosts detach what is closed.
    fn carry_out(facts: &mut Facts, step: Step) {
        match step {
            Step::Holders(new) => {
                let user = |h: &Holder| if facts.wanting.contains(h) { User::Wants } else { User::NotDown };
                facts.holders = new.into_iter().map(|h| (h.clone(), user(&h))).collect();
            }
            Step::Close { node } => {
                facts.attachments.iter_mut().filter(|a| a.node == node).for_each(|a| a.going = true);
            }
            Step::Attach { node, read_only } => {
                facts.attachments.push(Attachment { read_only, ..attachment(&node, false) });
            }
        }
    }

    fn wants(facts: &mut Facts, wanting: &[Holder]) {
        facts.wanting = wanting.to_vec();
        for (holder, user) in &mut facts.holders {
            *user = if facts.wanting.contains(holder) { User::Wants } else { User::NotDown };
        }
    }

    fn settle(facts: &mut Facts, nodes_answer: bool) {
        for _ in 0..32 {
            let verdict = next(facts);
            match verdict.steps.into_iter().next() {
                Some(step) => carry_out(facts, step),
                None if nodes_answer && facts.attachments.iter().any(|a| a.going) => {
                    facts.attachments.retain(|a| !a.going);
                }
                None => return,
            }
        }
        panic!("does not settle: {facts:?}");
    }

    #[test]
    fn two_users_of_a_single_writer_come_one_after_the_other() {
        for second_node in ["a", "b"] {
            let mut facts = facts(AccessMode::SingleNodeWriter);
            let (one, two) = (holder("1", "a", false), holder("2", second_node, false));
            wants(&mut facts, &[one.clone(), two.clone()]);
            settle(&mut facts, true);
            assert_eq!(facts.holders, [(one, User::Wants)]);
            assert_eq!(next(&facts).waiting[0].0.uid, "2");
            wants(&mut facts, std::slice::from_ref(&two));
            settle(&mut facts, false);
            assert_eq!(facts.holders.len(), 1, "the node has not answered: {facts:?}");
            assert_eq!(facts.holders[0].0.allocation.uid, "1");
            settle(&mut facts, true);
            assert_eq!(facts.holders, [(two, User::Wants)]);
            assert_eq!(facts.attachments.len(), 1);
        }
    }

    #[test]
    fn many_nodes_are_attached_once_each() {
        let mut facts = facts(AccessMode::MultiNodeMultiWriter);
        let all = [holder("1", "a", false), holder("2", "a", true), holder("3", "b", true)];
        wants(&mut facts, &all);
        settle(&mut facts, true);
        assert_eq!((facts.holders.len(), facts.attachments.len()), (3, 2));
        assert!(facts.attachments.iter().find(|a| a.node == "b").is_some_and(|a| a.read_only));
        assert!(!facts.attachments.iter().find(|a| a.node == "a").is_some_and(|a| a.read_only));
        wants(&mut facts, &all[1..]);
        assert_eq!(next(&facts).steps, [], "another user is left there");
        facts.holders[0].1 = User::Down;
        settle(&mut facts, true);
        assert_eq!((facts.holders.len(), facts.attachments.len()), (2, 2));
        wants(&mut facts, &[]);
        settle(&mut facts, true);
        assert_eq!((facts.holders.len(), facts.attachments.len()), (0, 0));
    }

    #[test]
    fn nobody_is_granted_a_volume_that_is_not_open() {
        let mut closed = Facts { open: false, ..facts(AccessMode::SingleNodeWriter) };
        wants(&mut closed, &[holder("1", "a", false)]);
        assert_eq!(next(&closed).steps, []);
        assert_eq!(next(&closed).waiting.len(), 1);
    }

    #[test]
    fn a_closed_attachment_is_finished_before_the_next_one() {
        let mut facts = facts(AccessMode::MultiNodeMultiWriter);
        facts.attachments = vec![attachment("a", true)];
        wants(&mut facts, &[holder("1", "a", false), holder("2", "b", false)]);
        assert_eq!(next(&facts).steps, [Step::Holders(vec![holder("2", "b", false)])]);
    }

    #[test]
    fn an_attachment_without_holder_blocks_other_nodes_and_is_closed() {
        let mut facts = facts(AccessMode::SingleNodeWriter);
        facts.attachments = vec![attachment("a", false)];
        wants(&mut facts, &[holder("1", "b", false)]);
        let verdict = next(&facts);
        assert_eq!(verdict.steps, [Step::Close { node: "a".into() }]);
        assert_eq!(verdict.waiting[0].1, Reason::NotReleased { node: "a".into() });
    }

    #[test]
    fn a_fence_frees_a_closed_attachment_for_others_but_not_for_its_own_node() {
        let mut facts = facts(AccessMode::SingleNodeWriter);
        facts.holders = vec![(holder("1", "a", false), User::NotDown)];
        let mut fenced = attachment("a", true);
        fenced.seen.fence = Fence::Stands;
        facts.attachments = vec![fenced.clone()];
        facts.wanting = vec![holder("2", "b", false)];
        assert_eq!(next(&facts).steps, [], "not before it is detached");
        facts.attachments[0].seen.attached = Rung::Down;
        assert_eq!(next(&facts).steps, [Step::Holders(vec![holder("2", "b", false)])]);
        facts.holders.clear();
        facts.wanting = vec![holder("3", "a", false)];
        assert_eq!(next(&facts).steps, []);
    }

    #[test]
    fn a_writer_does_not_join_an_attachment_made_for_readers() {
        let mut facts = facts(AccessMode::SingleNodeMultiWriter);
        wants(&mut facts, &[holder("1", "a", true)]);
        settle(&mut facts, true);
        assert!(facts.attachments[0].read_only);
        let (reader, writer) = (holder("1", "a", true), holder("2", "a", false));
        wants(&mut facts, &[reader, writer.clone()]);
        assert_eq!(next(&facts).steps, []);
        wants(&mut facts, &[writer]);
        settle(&mut facts, true);
        assert!(!facts.attachments[0].read_only && facts.holders.len() == 1);
    }
}
