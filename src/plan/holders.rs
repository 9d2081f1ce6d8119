//! The holders and attachments of one volume: who is let go, who is granted, what is attached and what is closed.
//!
//! ```text
//!   wants ▶ attachment made ▶ holder that names it ▶ let in ▶ … ▶ nobody there wants it or is to be waited for ▶ closed ▶ gone ▶ holder removed
//!         ╲ holder that names one to be made ▶ made with who is let in ╱
//! ```
//! In this order, because a grant is the holder, and only the holder is written against the newest version of the
//! volume. An attachment alone gives nobody anything; whoever is let in was granted by this very attachment; and a grant
//! ends only once nobody can be let in by it any more. So leaders that know old things cannot break it together.
//!
//! Who can name an attachment before it is there ([`Facts::chosen`]) saves a write. It makes it only as long as the volume is as it
//! wrote it, and nobody takes the holder away unless there is no such attachment in that very moment; a name that was written
//! once is used for nothing else.
use super::Reason;
use super::release::{self, HolderFacts, HolderStep, Leaving, User};
use crate::api::meta::{AccessMode, ObjectRef};
use crate::api::volume::Holder;

/// One attachment of the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its node.
    pub node: String,
    /// Its uid.
    pub uid: String,
    /// It is being deleted.
    pub going: bool,
    /// It was made for readers only.
    pub read_only: bool,
    /// The allocations that were let in.
    pub allocations: Vec<String>,
    /// What is seen of it.
    pub seen: Leaving,
}

/// Everything that decides.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The volume's name.
    pub volume: String,
    /// The name of its claim.
    pub claim: String,
    /// How it may be used.
    pub mode: AccessMode,
    /// Whether new users may be granted: it is ready and stays, and so does its claim.
    pub open: bool,
    /// Whether its driver may be at an expansion under which nobody may use it.
    pub expanding: bool,
    /// Its holders, each with what is known of its allocation.
    pub holders: Vec<(Holder, User)>,
    /// Its attachments.
    pub attachments: Vec<Attachment>,
    /// The allocations that want it on their nodes, first come first; none names an attachment.
    pub wanting: Vec<Holder>,
    /// The uids that this very leader has chosen, by node, for attachments that it has not asked for yet.
    pub chosen: Vec<(String, String)>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Replace the holders, by compare-and-swap of the volume.
    Holders {
        /// By these.
        holders: Vec<Holder>,
        /// These, of one node, go because the attachment that they name is not seen. That must first be the server's own word.
        unseen: Vec<Holder>,
    },
    /// Delete the attachment of this node.
    Close {
        /// The node.
        node: String,
    },
    /// Make an attachment for this node.
    Attach {
        /// The node.
        node: String,
        /// Whether it is for readers alone.
        read_only: bool,
        /// Its uid and who is let in, as long as the volume is as it was seen; else the server names it and nobody is.
        granted: Option<(String, Vec<String>)>,
    },
    /// Let holders in, by compare-and-swap of the attachment.
    Admit {
        /// The node.
        node: String,
        /// Everybody who is let in then.
        allocations: Vec<String>,
    },
}

/// The steps of this moment, and who waits for whom.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// What to do; several nodes may each have one.
    pub steps: Vec<Step>,
    /// Allocations that want the volume and cannot have it yet.
    pub waiting: Vec<(ObjectRef, Reason)>,
}

/// Decides for one volume.
pub fn next(facts: &Facts) -> Verdict {
    let (holders, unseen) = kept(facts);
    let Granted { holders, attach, waiting } = granted(facts, holders);
    let mut verdict = Verdict { steps: Vec::new(), waiting };
    if !holders.iter().eq(facts.holders.iter().map(|(holder, _)| holder)) {
        verdict.steps.push(Step::Holders { holders, unseen });
        return verdict;
    }
    for attachment in facts.attachments.iter().filter(|a| !a.going) {
        let named = |(holder, user): &&(Holder, User)| names(holder, attachment) && *user == User::Wants;
        let holders: Vec<_> = facts.holders.iter().filter(named).map(|(holder, _)| holder).collect();
        let node = attachment.node.clone();
        // What is closed is not opened again: where others may come, and nobody waits already, the last one is waited for.
        let leaves = |(holder, user): &(Holder, User)| {
            names(holder, attachment) && matches!(user, User::There | User::Ends)
        };
        let welcome = facts.open && release::several_on_a_node(facts.mode) && verdict.waiting.is_empty();
        let stays = welcome && facts.holders.iter().any(leaves);
        // Its node lets go by itself; that is one write less.
        let mut left = facts.holders.iter().filter(|(holder, _)| names(holder, attachment)).peekable();
        let alone = left.peek().is_some() && left.all(|(_, user)| *user == User::Ends);
        let stays =
            stays || alone && !release::several_on_a_node(facts.mode) && !attachment.allocations.is_empty();
        match with(attachment, &holders) {
            _ if holders.is_empty() && stays => {}
            _ if holders.is_empty() => verdict.steps.push(Step::Close { node }),
            Some(allocations) => verdict.steps.push(Step::Admit { node, allocations }),
            None => {}
        }
    }
    let mut nodes: Vec<_> = attach.iter().map(|holder| &holder.node_name).collect();
    nodes.sort();
    nodes.dedup();
    let read_only = |all_read| release::attached_for_reading(facts.mode, all_read);
    for node in nodes {
        let all_read = attach.iter().filter(|h| h.node_name == *node).all(|h| h.read_only);
        verdict.steps.push(Step::Attach {
            node: node.clone(),
            read_only: read_only(all_read),
            granted: None,
        });
    }
    for (node, uid) in &facts.chosen {
        let of_it = |h: &&Holder| h.node_name == *node && h.attachment_uid == *uid;
        let granted: Vec<_> = facts.holders.iter().map(|(holder, _)| holder).filter(of_it).collect();
        if !granted.is_empty() {
            let read_only = read_only(granted.iter().all(|h| h.read_only));
            let allocations = granted.iter().map(|h| h.allocation.uid.clone()).collect();
            let granted = Some((uid.clone(), allocations));
            verdict.steps.push(Step::Attach { node: node.clone(), read_only, granted });
        }
    }
    verdict
}

/// The holders that stay, and those that go because what they name is not seen.
fn kept(facts: &Facts) -> (Vec<Holder>, Vec<Holder>) {
    let (mut kept, mut unseen) = (Vec::new(), Vec::new());
    for entry in &facts.holders {
        match step_of(facts, entry) {
            // It is made next, if anybody wants it.
            HolderStep::Remove if entry.1 == User::Wants && chosen_for(facts, &entry.0).is_some() => {
                kept.push(entry.0.clone());
            }
            HolderStep::Keep | HolderStep::CloseAttachment => kept.push(entry.0.clone()),
            HolderStep::Remove if attachment_of(facts, &entry.0).is_none() => unseen.push(entry.0.clone()),
            HolderStep::Remove => {}
        }
    }
    // That one is not there is asked of one node at a time; until then those of others count.
    if let Some(node) = unseen.first().map(|holder: &Holder| holder.node_name.clone()) {
        kept.extend(unseen.extract_if(.., |holder| holder.node_name != node));
    }
    (kept, unseen)
}

struct Granted {
    /// The holders with those that are granted now.
    holders: Vec<Holder>,
    /// Those that are granted once there is an attachment for them.
    attach: Vec<Holder>,
    waiting: Vec<(ObjectRef, Reason)>,
}

/// Grants what can be granted beside `holders`, first come first.
fn granted(facts: &Facts, mut holders: Vec<Holder>) -> Granted {
    let (mut attach, mut waiting) = (Vec::new(), Vec::new());
    // With those whose attachment is being made: nothing is made for who could not be granted after them.
    let mut expected = holders.clone();
    for wanted in &facts.wanting {
        if holders.iter().any(|h| same(h, wanted)) {
            continue;
        }
        if let Err(reason) = may_have(facts, &expected, wanted) {
            waiting.push((wanted.allocation.clone(), reason));
            continue;
        }
        expected.push(wanted.clone());
        let there = facts.attachments.iter().find(|a| a.node == wanted.node_name).map(|a| &a.uid);
        let chosen = || facts.chosen.iter().find(|(node, _)| *node == wanted.node_name).map(|(_, uid)| uid);
        match there.or_else(chosen) {
            Some(uid) => holders.push(Holder { attachment_uid: uid.clone(), ..wanted.clone() }),
            None => attach.push(wanted.clone()),
        }
    }
    Granted { holders, attach, waiting }
}

/// Everybody who is let in by an attachment once these holders of it are; absent when all of them are in already.
/// Nobody is taken out again: who is gone for good uses nothing, and an old list of holders must not shut out a new one.
fn with(attachment: &Attachment, holders: &[&Holder]) -> Option<Vec<String>> {
    let mut allocations = attachment.allocations.clone();
    for holder in holders {
        if holder.attachment_uid == attachment.uid && !allocations.contains(&holder.allocation.uid) {
            allocations.push(holder.allocation.uid.clone());
        }
    }
    (allocations.len() != attachment.allocations.len()).then_some(allocations)
}

fn same(a: &Holder, b: &Holder) -> bool {
    a.allocation.uid == b.allocation.uid && a.node_name == b.node_name
}

/// Whether a holder was granted by this attachment. One that names none may have been granted by any of its node.
fn names(holder: &Holder, attachment: &Attachment) -> bool {
    let uid = &holder.attachment_uid;
    holder.node_name == attachment.node && (uid.is_empty() || *uid == attachment.uid)
}

/// The uid that a holder names and that was chosen for an attachment to be made.
fn chosen_for<'a>(facts: &'a Facts, holder: &Holder) -> Option<&'a String> {
    let of_it = |(node, uid): &&(String, String)| *node == holder.node_name && *uid == holder.attachment_uid;
    facts.chosen.iter().find(of_it).map(|(_, uid)| uid)
}

fn attachment_of<'a>(facts: &'a Facts, holder: &Holder) -> Option<&'a Attachment> {
    facts.attachments.iter().find(|a| names(holder, a))
}

fn step_of(facts: &Facts, (holder, user): &(Holder, User)) -> HolderStep {
    let attachment = attachment_of(facts, holder);
    let others = || {
        let of_it = |(h, _): &&(Holder, User)| attachment.is_some_and(|a| names(h, a)) && !same(h, holder);
        facts.holders.iter().filter(of_it).map(|(_, user)| *user)
    };
    release::holder_step(HolderFacts {
        user: *user,
        others_on_node: others().any(|user| user == User::Wants),
        others_stay: others().any(|user| user != User::Down),
        attachment: attachment.map(|a| (a.going, a.seen)),
    })
}

fn may_have(facts: &Facts, holders: &[Holder], wanted: &Holder) -> Result<(), Reason> {
    if !facts.open {
        return Err(Reason::VolumeNotReady { claim: facts.claim.clone(), message: String::new() });
    }
    if facts.expanding {
        return Err(Reason::VolumeExpanding { volume: facts.volume.clone() });
    }
    let one_writes = facts.mode == AccessMode::MultiNodeSingleWriter;
    // What was made for a writer lets its node write, whoever is let in by it.
    let open_here = facts.attachments.iter().any(|a| a.node == wanted.node_name && !a.read_only);
    let would_write = one_writes && (!wanted.read_only || open_here);
    for attachment in &facts.attachments {
        let here = attachment.node == wanted.node_name;
        let busy = if here {
            // A closed attachment is finished first; one made for readers cannot take a writer.
            attachment.going || attachment.read_only && !wanted.read_only
        } else {
            // One that lets nobody in holds nobody up: who is granted decides, and that one is closed.
            let used = attachment.seen.used || holders.iter().any(|holder| names(holder, attachment));
            let there = used && !(attachment.going && release::holder_free(attachment.seen));
            let writable = would_write && !attachment.read_only && !planted!("second-writable");
            there && (facts.mode.single_node() || writable)
        };
        if busy {
            // Who has it says more than where it is, until it is on its way out.
            if !attachment.going {
                release::grant(&facts.volume, facts.mode, holders, wanted)?;
                if let Some(reader) = who_stays(facts, holders, attachment).filter(|_| !here) {
                    let holder = format!("{}/{}", reader.allocation.namespace, reader.allocation.name);
                    let (volume, node) = (facts.volume.clone(), attachment.node.clone());
                    return Err(Reason::HeldElsewhere { volume, holder, node });
                }
            }
            return Err(Reason::NotReleased { node: attachment.node.clone() });
        }
    }
    // What a holder elsewhere was granted by and we do not see may let its node write.
    let unknown = |holder: &&Holder| {
        holder.node_name != wanted.node_name
            && attachment_of(facts, holder).is_none()
            && chosen_for(facts, holder).is_none()
            && facts.holders.iter().any(|(held, _)| held == *holder)
    };
    if let Some(holder) = holders.iter().find(unknown).filter(|_| would_write) {
        return Err(Reason::NotReleased { node: holder.node_name.clone() });
    }
    // A writer's attachment elsewhere may be yet to be made: this one is closed, and made anew for readers.
    let writer = holders.iter().any(|holder| !holder.read_only && holder.node_name != wanted.node_name);
    if would_write && wanted.read_only && writer {
        return Err(Reason::NotReleased { node: wanted.node_name.clone() });
    }
    release::grant(&facts.volume, facts.mode, holders, wanted)
}

/// What an allocation with a place is told of its volumes beside its conditions: for whom it waits, unless it says that already, and
/// else what is wrong with those that nobody has. `said` is the message of its `Ready` condition, with whether anything was told so
/// before: that stands for as long as it is true.
pub fn obstacle(
    (said, told): (&str, bool),
    held: Option<Reason>,
    fault: impl FnOnce() -> Option<Reason>,
) -> Option<Reason> {
    // It was said when it was bound, and is said anew once another one has it.
    let news = |reason: &Reason| told || said != reason.to_string();
    held.filter(news).or_else(fault)
}

/// Who has an attachment: one that goes on using it, if there is such a one.
fn who_stays<'a>(facts: &Facts, holders: &'a [Holder], attachment: &Attachment) -> Option<&'a Holder> {
    let there = || holders.iter().filter(|holder| holder.node_name == attachment.node);
    let goes_on =
        |holder: &Holder| facts.holders.iter().any(|(held, user)| same(held, holder) && *user == User::Wants);
    there().find(|holder| goes_on(holder)).or_else(|| there().next())
}

#[cfg(test)]
mod tests;
