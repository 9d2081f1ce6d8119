//! What is checked, what can happen, and when. Who decides it stands in `leaders` and `daemons`.
use wharfline::api::meta::AccessMode;
use wharfline::plan::mount::Level;

use crate::daemons::see;
use crate::world::{BOTH, Sight, World};

/// A mistake that is planted to show that the checker would find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Planted {
    /// A node that does not answer counts as fenced.
    SilenceIsAFence,
    /// The attachment may be used as soon as it is made, before there is a holder.
    UsableOnceMade,
    /// The holder is written first and names no attachment; who sees it makes one that may be used at once. All other
    /// facts are read from the server itself.
    HolderFirst,
    /// A holder goes because a cache has no attachment for it.
    AbsenceFromACache,
    /// The node serves attachments made for an earlier boot.
    AnyBootServes,
    /// That a boot is over is read from a cache that may be older than the attachment.
    BootFromACache,
    /// An allocation that moved is granted beside its own grant on the node it left.
    OwnGrantElsewhere,
    /// The node publishes for every allocation bound to it, granted or not.
    BoundIsEnough,
    /// One user's holder goes while others keep the attachment, on the word that its publication is down.
    OneOfSeveralGoes,
    /// The host detaches without waiting for the node.
    DetachUnasked,
    /// The host says Down before it has seen the attachment leave.
    DownTooEarly,
    /// The daemon forgets on a restart that it had closed the attachment.
    ClosingForgotten,
    /// The daemon forgets on a restart what it had published.
    PublicationsForgotten,
    /// Detaching does not hold the holder.
    FreedBeforeDetach,
}

/// What is checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Protocol {
    pub(crate) mode: AccessMode,
    /// Whether the plugin attaches.
    pub(crate) attach: bool,
    /// Whether the plugin stages.
    pub(crate) stage: bool,
    /// Whether node a may be lost, fenced and come back.
    pub(crate) loss: bool,
    /// How often allocation x and y may be stopped or started.
    pub(crate) edits: [u8; 2],
    /// How many attachments a node may have in all.
    pub(crate) attachments: [u8; 2],
    /// Whether daemons start again.
    pub(crate) restarts: bool,
    /// Whether a call may end without an answer that counts.
    pub(crate) doubt: bool,
    /// Whether the world remembers where the volume was first: for what shall be reachable.
    pub(crate) remember: bool,
    pub(crate) planted: Option<Planted>,
}

/// One thing that happens. Numbers are nodes, then allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// A person stops or starts an allocation.
    Edit(usize),
    /// Placement binds it to node b because node a is fenced.
    Rebind(usize),
    /// A leader makes the node's attachment for one of its boots. The server refuses a second one of the name.
    Create {
        node: usize,
        boot: u8,
    },
    /// A leader adds a holder by compare-and-swap.
    Hold {
        user: usize,
        node: usize,
        uid: u8,
    },
    /// A leader lets an allocation use the attachment, by compare-and-swap of the attachment.
    Admit {
        user: usize,
        node: usize,
    },
    /// A leader deletes the attachment it saw, by uid.
    Close(usize),
    /// A leader takes the finalizer away, by compare-and-swap.
    Finalize(usize),
    /// A leader removes a holder by compare-and-swap.
    Free {
        user: usize,
        node: usize,
    },
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
    /// Node a loses its power, is declared off, gets its power back, and says so.
    PowerOff,
    Fence,
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
        for user in BOTH {
            let allocation = &w.allocations[user];
            if allocation.edits < self.edits[user] {
                out.push(Action::Edit(user));
            }
            if user == 0 && allocation.wants(0) && w.machines[0].over(1) {
                out.push(Action::Rebind(user));
            }
        }
        for node in BOTH {
            self.leaders(w, node, out);
            let (a, machine) = (w.attachments[node], &w.machines[node]);
            if machine.powered {
                out.push(Action::SeeAttachment(node));
                if machine.wanted != w.wanted(node) {
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
                if w.host[node] != Sight::of(a) {
                    out.push(Action::HostSees(node));
                }
                if w.host[node].granted {
                    out.extend(self.ends().map(|known| Action::Host { node, known }));
                }
            }
        }
        if self.loss {
            let a = &w.machines[0];
            match (a.powered, a.boot) {
                (true, 1) => out.push(Action::PowerOff),
                (false, _) if a.fenced == 0 => out.extend([Action::Fence, Action::PowerOn]),
                (false, _) => out.push(Action::PowerOn),
                (true, boot) if a.reported < boot => out.push(Action::Report),
                (true, _) => {}
            }
        }
    }

    fn leaders(&self, w: &World, node: usize, out: &mut Vec<Action>) {
        let a = w.attachments[node];
        match (a.uid, a.leaving) {
            (0, _) if w.made[node] < self.attachments[node] => {
                out.extend((1..=w.machines[node].reported).map(|boot| Action::Create { node, boot }));
            }
            (0, _) => {}
            (_, false) => out.push(Action::Close(node)),
            (_, true) => out.push(Action::Finalize(node)),
        }
        for user in BOTH {
            if w.holders[user][node] != 0 {
                out.push(Action::Free { user, node });
            } else if w.allocations[user].ever_wanted[node] {
                let first = u8::from(self.plants(Planted::HolderFirst));
                out.extend((1..=w.made[node] + first).map(|uid| Action::Hold { user, node, uid }));
            }
            if w.ever_held[user][node] {
                out.push(Action::Admit { user, node });
            }
        }
    }

    /// The world after an action; `None` if it cannot happen or changes nothing.
    pub(crate) fn after(&self, w: &World, action: Action) -> Option<World> {
        let mut next = *w;
        match action {
            Action::Edit(user) => {
                let a = w.allocations[user];
                next.allocations[user].write(a.node, a.edits + 1);
            }
            Action::Rebind(user) => next.allocations[user].write(Some(1), w.allocations[user].edits),
            Action::Create { node, boot } => self.create(&mut next, node, boot),
            Action::Hold { user, node, uid } => self.hold(&mut next, user, node, uid),
            Action::Admit { user, node } => Self::admit(&mut next, user, node),
            // Any cache may be from before the allocations were bound: every leader may think that nobody wants it.
            Action::Close(node) => next.attachments[node].leaving = true,
            Action::Finalize(node) => self.finalize(&mut next, node),
            Action::Free { user, node } => self.free(&mut next, user, node),
            Action::SeeAttachment(node) => see(&mut next, node),
            Action::SeeAllocations(node) => {
                next.machines[node].wanted = w.wanted(node);
            }
            Action::Node { node, known } => self.node(&mut next, node, known),
            Action::Restart(node) => self.restart(&mut next, node),
            Action::HostSees(node) => {
                next.host[node] = Sight::of(w.attachments[node]);
            }
            Action::Host { node, known } => self.host(&mut next, node, known),
            Action::PowerOff => {
                let machine = &mut next.machines[0];
                machine.powered = false;
                // A new boot has no mounts; the journal still tells what was closed and released.
                (machine.journal.staged, machine.journal.published) = (Level::Down, [Level::Down; 2]);
            }
            // The operator tells the truth: it is off.
            Action::Fence => next.machines[0].fenced = w.machines[0].boot,
            Action::PowerOn => {
                let machine = &mut next.machines[0];
                (machine.powered, machine.boot) = (true, machine.boot + 1);
                machine.wanted = w.wanted(0);
                see(&mut next, 0);
            }
            Action::Report => next.machines[0].reported = w.machines[0].boot,
        }
        if !self.plants(Planted::HolderFirst) {
            next.forget_held();
        }
        next.forget_off();
        (next != *w).then_some(next)
    }
}
