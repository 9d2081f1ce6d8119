//! What is checked, what can happen, and when. Who decides it stands in `leaders` and `daemons`.
use wharfline::api::meta::AccessMode;

use crate::leaders::Held;
use crate::world::{ALL, BOTH, Each, Sight, World};

/// A mistake that is planted to show that the checker would find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Planted {
    /// A node that does not answer counts as fenced.
    SilenceIsAFence,
    /// The attachment may be used as soon as it is made, before there is a holder.
    UsableOnceMade,
    /// The holder is written first, and the attachment may be used as soon as it is made by whoever was a holder then.
    HolderFirst,
    /// A chosen attachment is made for who held it once, though the volume was written since.
    ChosenByThePast,
    /// Who is a holder is let into the attachment, whichever attachment its grant was for.
    AnyHolderIsAdmitted,
    /// A holder goes because a cache has no attachment for it.
    AbsenceFromACache,
    /// The daemon lists its attachments before its new boot is known.
    ListsBeforeReporting,
    /// The daemon's list after a boot or restart is older than what the API had when the boot was reported.
    ListsThePast,
    /// A fence is entered before the attachment is closed.
    FencedWhileOpen,
    /// The node publishes for every allocation bound to it, granted or not.
    BoundIsEnough,
    /// One user's holder goes while others keep the attachment, because its publication is down, though it may want the
    /// volume again.
    OneOfSeveralGoes,
    /// The host attaches before anybody was let in.
    AttachedUnused,
    /// The host detaches without waiting for the node.
    DetachUnasked,
    /// The host says Down before it has seen the attachment leave.
    DownTooEarly,
    /// The daemon forgets on a restart that it had closed the attachment.
    ClosingForgotten,
    /// The daemon forgets what it let go before the host, which is the same machine, has heard that it went.
    LettingGoForgotten,
    /// The daemon forgets on a restart what it had published.
    PublicationsForgotten,
    /// The holder goes while the volume is still attached.
    FreedBeforeDetach,
}

/// What is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Protocol {
    pub(crate) mode: AccessMode,
    /// Where allocations are at first; none: there is no such allocation.
    pub(crate) starts: &'static [Each<Option<usize>>],
    /// Which of them only read.
    pub(crate) reads: Each<bool>,
    /// Whether the plugin attaches.
    pub(crate) attach: bool,
    /// Whether the host of a node's attachment is the node, which knows what it let go before the API does.
    pub(crate) at_node: bool,
    /// Whether the plugin stages.
    pub(crate) stage: bool,
    /// Whether node a may be lost, fenced and come back.
    pub(crate) loss: bool,
    /// How often each allocation may be stopped or started.
    pub(crate) edits: Each<u8>,
    /// Whether allocation x may be deleted.
    pub(crate) ends: bool,
    /// How many attachments a node may have in all.
    pub(crate) attachments: [u8; 2],
    /// Whether daemons start again.
    pub(crate) restarts: bool,
    /// Whether a call may end without an answer that counts.
    pub(crate) doubt: bool,
    /// Whether the world remembers where the volume was first: for what shall be reachable.
    pub(crate) remember: bool,
    /// Whether there is one leader, which sees everything, instead of any number with caches of any age.
    pub(crate) fresh: bool,
    /// Whether leaders know that the nodes are there, and leave to them what they do by themselves.
    pub(crate) ready: bool,
    /// Whether leaders choose uids and let holders in with the attachment.
    pub(crate) chooses: bool,
    pub(crate) planted: Option<Planted>,
}

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A person stops or starts an allocation.
    Edit(usize),
    /// Allocation x is deleted.
    End,
    /// Placement binds allocation x to node b because node a is fenced.
    Rebind,
    /// A leader writes the holders that it thinks right, by compare-and-swap of the volume.
    Holders {
        held: Held,
        /// Those that go because no attachment was seen.
        unseen: Held,
    },
    /// A leader makes the attachment of a node. The server refuses a second one of the name.
    Create {
        node: usize,
        read_only: bool,
    },
    /// A leader makes the attachment whose uid it has chosen with those who hold it, as long as they do.
    CreateChosen(usize),
    /// A leader lets holders in, by compare-and-swap of the attachment.
    Admit {
        node: usize,
        users: Each<bool>,
    },
    /// A leader deletes the attachment it saw, by uid.
    Close(usize),
    /// A leader enters the fence into the attachment, by compare-and-swap.
    EnterFence(usize),
    /// A leader takes the finalizer away, by compare-and-swap.
    Finalize(usize),
    /// The daemon's caches catch up.
    SeeAttachment(usize),
    SeeAllocations(usize),
    /// The daemon takes the next step, and the call's end is known or not.
    Node {
        node: usize,
        known: bool,
    },
    /// The daemon starts again and reads its journal.
    Restart(usize),
    /// The host's cache catches up.
    HostSees(usize),
    /// The host takes the next step.
    Host {
        node: usize,
        known: bool,
    },
    /// Node a loses its power, is declared off, gets its power back, and reports its new boot.
    PowerOff,
    DeclareOff,
    PowerOn,
    Report,
}

impl Protocol {
    pub(crate) fn plants(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    fn ends(&self) -> impl Iterator<Item = bool> {
        [true, false].into_iter().take(if self.doubt { 2 } else { 1 })
    }

    /// Every action that may be tried. Those that change nothing are dropped by [`Self::after`].
    pub(crate) fn actions(&self, w: &World, out: &mut Vec<Action>) {
        for user in ALL {
            if w.allocations[user].edits < self.edits[user] {
                out.push(Action::Edit(user));
            }
        }
        if self.ends && !w.allocations[0].ended {
            out.push(Action::End);
        }
        // Off at some time is enough: placement's cache may be old.
        if w.machines[0].off != 0 && w.allocations[0].wants(0) {
            out.push(Action::Rebind);
        }
        self.leaders(w, out);
        for node in BOTH {
            self.daemons(w, node, out);
        }
        let a = &w.machines[0];
        match (self.loss, a.powered, a.boot) {
            (true, true, 1) => out.push(Action::PowerOff),
            (true, true, boot) if a.reported < boot => out.push(Action::Report),
            (true, false, _) if a.off == 0 => out.extend([Action::DeclareOff, Action::PowerOn]),
            (true, false, _) => out.push(Action::PowerOn),
            (_, _, _) => {}
        }
    }

    fn daemons(&self, w: &World, node: usize, out: &mut Vec<Action>) {
        let machine = &w.machines[node];
        if machine.powered && machine.listed {
            out.push(Action::SeeAttachment(node));
            if (machine.wanted, machine.over) != (w.wanted(node), w.over(node)) {
                out.push(Action::SeeAllocations(node));
            }
            if machine.journal.uid != 0 {
                out.extend(self.ends().map(|known| Action::Node { node, known }));
            }
            if self.restarts {
                out.push(Action::Restart(node));
            }
        }
        if self.attach {
            if w.host[node] != Sight::of(w.attachments[node]) {
                out.push(Action::HostSees(node));
            }
            if w.host[node].uid != 0 {
                out.extend(self.ends().map(|known| Action::Host { node, known }));
            }
        }
    }

    /// The world after an action; `None` if it changes nothing.
    pub(crate) fn after(&self, w: &World, action: Action) -> Option<World> {
        let mut next = *w;
        match action {
            Action::Edit(user) => {
                let a = w.allocations[user];
                next.allocations[user].write(a.node, a.edits + 1);
            }
            Action::End => next.allocations[0].ended = true,
            Action::Rebind => next.allocations[0].write(1, w.allocations[0].edits),
            Action::Holders { held, unseen } => self.write(&mut next, held, unseen),
            Action::Create { node, read_only } => self.create(&mut next, (node, read_only)),
            Action::CreateChosen(node) => self.create_chosen(&mut next, node),
            Action::Admit { node, users } => {
                for user in ALL {
                    next.attachments[node].users[user] |= users[user];
                }
            }
            Action::Close(node) => next.attachments[node].leaving = true,
            Action::EnterFence(node) => self.enter_fence(&mut next, node),
            Action::Finalize(node) => self.finalize(&mut next, node),
            Action::SeeAttachment(node) => self.see(&mut next, node),
            Action::SeeAllocations(node) => {
                (next.machines[node].wanted, next.machines[node].over) = (w.wanted(node), w.over(node));
            }
            Action::Node { node, known } => self.node(&mut next, node, known),
            Action::Restart(node) => self.restart(&mut next, node),
            Action::HostSees(node) => next.host[node] = Sight::of(w.attachments[node]),
            Action::Host { node, known } => self.host(&mut next, node, known),
            Action::PowerOff => next.machines[0].powered = false,
            // The operator tells the truth: it is off.
            Action::DeclareOff => next.machines[0].off = w.machines[0].boot,
            Action::PowerOn => {
                let machine = &mut next.machines[0];
                (machine.powered, machine.boot) = (true, machine.boot + 1);
                if self.plants(Planted::ListsBeforeReporting) {
                    self.list(&mut next, 0);
                }
            }
            Action::Report => {
                next.machines[0].reported = w.machines[0].boot;
                if !w.machines[0].listed {
                    self.list(&mut next, 0);
                }
            }
        }
        let past = [Planted::HolderFirst, Planted::AnyHolderIsAdmitted, Planted::ChosenByThePast];
        let held = past.iter().any(|planted| self.plants(*planted));
        next.forget(held);
        (next != *w).then_some(next)
    }
}
