//! What leaders do: any number of them, each with caches of any age. What they do is what `plan::holders` says.
//!
//! The holders are written against the newest version of the volume, so they are decided on that one and on any version
//! of all else. Making and closing an attachment are not: any leader may do either at any time, for none of its caches
//! need show a reason not to. Letting in is decided on any version of the volume.
use std::cell::RefCell;
use std::collections::HashMap;

use wharfline::api::allocation::AllocationPhase;
use wharfline::api::meta::{AccessMode, ObjectRef, Rung};
use wharfline::api::volume;
use wharfline::plan::holders::{self, Facts, Step};
use wharfline::plan::mount::Level;
use wharfline::plan::release::{self, Fence, Leaving, User, UserFacts};

use crate::protocol::{Action, Planted, Protocol};
use crate::world::{ALL, Attachment, BOTH, Each, Machine, World};

const NODES: [&str; 2] = ["a", "b"];
const USERS: [&str; 3] = ["x", "y", "z"];

/// `Volume.status.holders`: the attachment that each allocation holds on each node by; 0 = it is no holder there.
pub(crate) type Held = Each<[u8; 2]>;

/// What a leader goes by when it decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct View {
    held: Held,
    /// The node on which each allocation wants the volume.
    wants: Each<Option<usize>>,
    attachments: [Option<Attachment>; 2],
    /// Whether the allocation is known to be over, and down where it was.
    down: Each<[bool; 2]>,
    /// Whether the allocation is known to be over.
    ended: Each<bool>,
    /// The uid that the leader has chosen for a node; 0 = none.
    chosen: [u8; 2],
}

/// All that the holders depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Known {
    held: Held,
    attachments: [Attachment; 2],
    made: [u8; 2],
    pending: [bool; 2],
    wanted: Each<[bool; 2]>,
    down: Each<[bool; 2]>,
}

#[derive(Default)]
struct Decided {
    protocol: Option<Protocol>,
    views: HashMap<View, Vec<Action>>,
    holders: HashMap<Known, Vec<Action>>,
}

thread_local! {
    /// The decisions taken so far: asking takes longer than all the rest.
    static DECIDED: RefCell<Decided> = RefCell::default();
}

/// What was decided before by the same protocol.
fn memory<T>(protocol: &Protocol, look: impl FnOnce(&mut Decided) -> T) -> T {
    DECIDED.with_borrow_mut(|decided| {
        if decided.protocol != Some(*protocol) {
            *decided = Decided { protocol: Some(*protocol), ..Decided::default() };
        }
        look(decided)
    })
}

fn holder(user: usize, (node, uid): (usize, u8), read_only: bool) -> volume::Holder {
    let name = USERS[user].to_owned();
    let of = ObjectRef { namespace: "d".to_owned(), name: name.clone(), uid: name };
    let attachment_uid = if uid == 0 { String::new() } else { uid.to_string() };
    volume::Holder { attachment_uid, ..release::holder(of, NODES[node], read_only) }
}

fn index(of: &[&str], name: &str) -> usize {
    of.iter().position(|one| *one == name).expect("it is one of these")
}

/// The steps of `plan::holders` on this view, be the nodes there to take down what is left, or not.
fn decided(protocol: &Protocol, view: View) -> Vec<Action> {
    memory(protocol, |known| known.views.entry(view).or_insert_with(|| both(protocol, view)).clone())
}

fn both(protocol: &Protocol, view: View) -> Vec<Action> {
    let mut steps = if protocol.ready { Vec::new() } else { ask(protocol, view, false) };
    for step in ask(protocol, view, true) {
        if !steps.contains(&step) {
            steps.push(step);
        }
    }
    steps
}

fn ask(protocol: &Protocol, view: View, node_ready: bool) -> Vec<Action> {
    let entries = ALL.into_iter().flat_map(|user| BOTH.map(|node| (user, node)));
    let user = |user: usize, node: usize| {
        let wants = view.wants[user] == Some(node);
        let down = view.down[user][node] && !wants;
        release::user(UserFacts {
            exists: true,
            leaving: !wants,
            deleting: down || view.ended[user] && !wants,
            here: true,
            node_down: false,
            node_ready,
            phase: down.then_some(AllocationPhase::Stopped),
            lost: false,
            published: (!wants && !down).then_some(Rung::Up),
        })
    };
    let attachment = |node: usize| {
        let a = view.attachments[node]?;
        let allocations = ALL.iter().filter(|u| a.users[**u]).map(|u| USERS[*u].to_owned()).collect();
        Some(holders::Attachment {
            node: NODES[node].to_owned(),
            uid: a.uid.to_string(),
            going: a.leaving,
            read_only: a.read_only,
            allocations,
            seen: leaving(a, protocol.attach_required()),
        })
    };
    let held = entries.filter(|(user, node)| view.held[*user][*node] != 0);
    let of = |user: usize, node: usize, uid: u8| holder(user, (node, uid), protocol.reads[user]);
    let facts = Facts {
        volume: "v".to_owned(),
        claim: "c".to_owned(),
        mode: protocol.mode,
        open: true,
        expanding: false,
        holders: held.map(|(u, n)| (of(u, n, view.held[u][n]), user(u, n))).collect(),
        attachments: BOTH.into_iter().filter_map(attachment).collect(),
        wanting: ALL.into_iter().filter_map(|u| Some(of(u, view.wants[u]?, 0))).collect(),
        chosen: BOTH
            .into_iter()
            .filter(|node| view.chosen[*node] != 0 && view.attachments[*node].is_none())
            .map(|node| (NODES[node].to_owned(), view.chosen[node].to_string()))
            .collect(),
    };
    for (holder, user) in &facts.holders {
        assert!(*user != User::Wants || facts.wanting.iter().any(|w| w.allocation == holder.allocation));
    }
    holders::next(&facts).steps.into_iter().map(action).collect()
}

fn action(step: Step) -> Action {
    match step {
        Step::Holders { holders, unseen } => {
            Action::Holders { held: table(&holders), unseen: table(&unseen) }
        }
        Step::Close { node } => Action::Close(index(&NODES, &node)),
        Step::Attach { node, read_only, granted: None } => {
            Action::Create { node: index(&NODES, &node), read_only }
        }
        Step::Attach { node, granted: Some(_), .. } => Action::CreateChosen(index(&NODES, &node)),
        Step::Admit { node, allocations } => {
            let users = USERS.map(|user| allocations.iter().any(|a| a == user));
            Action::Admit { node: index(&NODES, &node), users }
        }
    }
}

fn table(holders: &[volume::Holder]) -> Held {
    let mut table = [[0; 2]; 3];
    for holder in holders {
        let (user, node) = (index(&USERS, &holder.allocation.name), index(&NODES, &holder.node_name));
        table[user][node] = holder.attachment_uid.parse().expect("every holder names an attachment");
    }
    table
}

impl Protocol {
    /// Everything that some leader may do about holders and attachments.
    pub(crate) fn leaders(&self, w: &World, out: &mut Vec<Action>) {
        if self.fresh {
            let wants = ALL.map(|user| BOTH.into_iter().find(|node| w.allocations[user].wants(*node)));
            let there = BOTH.map(|node| Some(w.attachments[node]).filter(|a| a.uid != 0));
            let ended = ALL.map(|user| w.allocations[user].ended);
            out.extend(decided(
                self,
                View {
                    held: w.held,
                    wants,
                    attachments: there,
                    down: self.down(w),
                    ended,
                    chosen: self.own(w),
                },
            ));
        } else {
            self.holders(w, out);
            for node in BOTH {
                let a = w.attachments[node];
                if a.uid == 0 {
                    out.extend(self.makings(w, node).map(|read_only| Action::Create { node, read_only }));
                }
                if a.uid == 0 && w.chosen[node] {
                    out.push(Action::CreateChosen(node));
                }
                if a.uid != 0 && !a.leaving {
                    out.push(Action::Close(node));
                    out.extend(ALL.into_iter().filter_map(|user| self.way_in(w, user, node)));
                }
            }
        }
        for node in BOTH {
            let a = w.attachments[node];
            if a.leaving {
                out.push(Action::Finalize(node));
            }
            if a.uid != 0 && !a.fenced {
                out.push(Action::EnterFence(node));
            }
        }
    }

    /// For readers alone or for writing: how an attachment may be made by a leader that saw some of those who ever wanted it there.
    fn makings(&self, w: &World, node: usize) -> impl Iterator<Item = bool> {
        let wanted = |reads: bool| {
            ALL.iter().any(|user| w.allocations[*user].ever_wanted[node] && self.reads[*user] == reads)
        };
        let mode = self.mode;
        let mut ways: Vec<_> = [false, true]
            .into_iter()
            .filter(|reads| wanted(*reads))
            .map(|all_read| release::attached_for_reading(mode, all_read))
            .collect();
        ways.dedup();
        ways.into_iter()
    }

    /// Every change of the holders that some leader may decide on.
    fn holders(&self, w: &World, out: &mut Vec<Action>) {
        let known = Known {
            held: w.held,
            attachments: w.attachments,
            made: w.made,
            pending: w.chosen,
            wanted: ALL.map(|user| w.allocations[user].ever_wanted),
            down: self.down(w),
        };
        memory(self, |decided| {
            let steps = decided.holders.entry(known).or_insert_with(|| {
                let mut steps = Vec::new();
                for step in self.views(w).into_iter().flat_map(|view| both(self, view)) {
                    if matches!(step, Action::Holders { .. }) && !steps.contains(&step) {
                        steps.push(step);
                    }
                }
                steps
            });
            out.extend_from_slice(steps);
        });
    }

    /// Every view that some leader may have beside the newest version of the volume. An older version of an attachment
    /// shows less of what is known against its holder, and no more; one of an attachment that is gone looks as if it
    /// could still be used.
    fn views(&self, w: &World) -> Vec<View> {
        let wants = |user: usize| {
            let past = w.allocations[user].ever_wanted;
            BOTH.into_iter().filter(move |node| past[*node]).map(Some).chain([None])
        };
        let cached = |node: usize| {
            let there = Some(w.attachments[node]).filter(|a| a.uid != 0);
            // What one was made for is known of the present one.
            let ways =
                if self.mode == AccessMode::MultiNodeSingleWriter { [false, true] } else { [false; 2] };
            let of = move |uid: u8| {
                let mut ways = ways.to_vec();
                ways.retain(|read_only| there.is_none_or(|a| a.uid != uid || a.read_only == *read_only));
                ways.dedup();
                ways.into_iter()
                    .map(move |read_only| Some(Attachment { uid, read_only, ..Attachment::default() }))
            };
            let fresh = (1..=w.made[node]).flat_map(of);
            fresh.filter(move |a| *a != there).chain([None]).chain(there.map(Some))
        };
        let mut views = Vec::new();
        let pairs = wants(0).flat_map(|x| wants(1).map(move |y| (x, y)));
        for wants in pairs.flat_map(|(x, y)| wants(2).map(move |z| [x, y, z])) {
            for attachments in cached(0).flat_map(|a| cached(1).map(move |b| [a, b])) {
                for down in [[[false; 2]; 3], self.down(w)] {
                    for chosen in self.choices(w) {
                        let ended = [false; 3];
                        views.push(View { held: w.held, wants, attachments, down, ended, chosen });
                    }
                }
            }
        }
        views.dedup();
        views
    }

    /// Who is over for good and has nothing published, by the word of its node.
    fn down(&self, w: &World) -> Each<[bool; 2]> {
        ALL.map(|user| {
            BOTH.map(|node| {
                let machine: &Machine = &w.machines[node];
                let over = machine.over[user] || self.plants(Planted::OneOfSeveralGoes);
                over && machine.journal.published[user] == Level::Down
            })
        })
    }

    /// How a leader lets an allocation in that was a holder by the present attachment in any version of the volume.
    fn way_in(&self, w: &World, user: usize, node: usize) -> Option<Action> {
        let a = w.attachments[node];
        let any = self.plants(Planted::AnyHolderIsAdmitted) && w.ever_held[user][node];
        let (wants, attachments, ended, chosen) = ([None; 3], [None; 2], [false; 3], [0; 2]);
        let mut view = View { held: [[0; 2]; 3], wants, attachments, down: [[false; 2]; 3], ended, chosen };
        view.held[user][node] = if w.ever_named[user][node] || any { a.uid } else { return None };
        (view.wants[user], view.attachments[node]) = (Some(node), Some(a));
        decided(self, view).into_iter().find(|step| matches!(step, Action::Admit { .. }))
    }

    /// Writes the holders, unless the server has an attachment that a leader did not see.
    pub(crate) fn write(&self, next: &mut World, held: Held, unseen: Held) {
        let there = |user: usize, node: usize| {
            unseen[user][node] != 0 && next.attachments[node].uid == unseen[user][node]
        };
        let late = ALL.iter().any(|user| BOTH.iter().any(|node| there(*user, *node)));
        if late && !self.plants(Planted::AbsenceFromACache) {
            return;
        }
        for node in BOTH {
            let (before, made) = (next.held, next.made[node]);
            if ALL.iter().any(|user| held[*user][node] > made) {
                // A uid that is chosen is nobody else's.
                if made == self.attachments[node] {
                    return;
                }
                (next.made[node], next.chosen[node]) = (made + 1, true);
            } else if ALL.iter().any(|user| before[*user][node] == made && held[*user][node] != made) {
                // Somebody who was granted by it is not any more: it is never made.
                next.chosen[node] &= self.plants(Planted::ChosenByThePast);
            }
        }
        next.held = held;
        for user in ALL {
            for node in BOTH {
                let uid = held[user][node];
                next.ever_held[user][node] |= uid != 0;
                next.ever_named[user][node] |= uid != 0 && uid == next.attachments[node].uid;
            }
        }
    }

    /// Makes an attachment. Nobody may use it yet.
    pub(crate) fn create(&self, next: &mut World, (node, read_only): (usize, bool)) {
        if next.made[node] == self.attachments[node] {
            return;
        }
        (next.made[node], next.chosen[node]) = (next.made[node] + 1, false);
        let users = ALL.map(|user| {
            let wanted = next.allocations[user].ever_wanted[node];
            let usable = self.plants(Planted::UsableOnceMade)
                || self.plants(Planted::HolderFirst) && next.ever_held[user][node];
            wanted && usable
        });
        next.attachments[node] =
            Attachment { uid: next.made[node], users, read_only, ..Attachment::default() };
        next.ever_named.iter_mut().for_each(|of| of[node] = false);
        // Who was granted by this one before it was seen.
        for user in ALL {
            next.ever_named[user][node] = next.held[user][node] == next.made[node];
        }
    }

    /// Makes the attachment that a leader has chosen the uid of, with who holds it: it wrote that, and nobody has written the volume
    /// since.
    pub(crate) fn create_chosen(&self, next: &mut World, node: usize) {
        let uid = next.made[node];
        let users = ALL.map(|user| {
            let past = self.plants(Planted::ChosenByThePast) && next.ever_held[user][node];
            next.held[user][node] == uid || past
        });
        if next.chosen[node] && next.attachments[node].uid == 0 && users.contains(&true) {
            next.chosen[node] = false;
            let all_read = ALL.iter().all(|user| !users[*user] || self.reads[*user]);
            let read_only = release::attached_for_reading(self.mode, all_read);
            next.attachments[node] = Attachment { uid, users, read_only, ..Attachment::default() };
            next.ever_named.iter_mut().for_each(|of| of[node] = false);
        }
    }

    /// What the leader that sees everything has chosen.
    fn own(&self, w: &World) -> [u8; 2] {
        let made = |node: usize| if w.chosen[node] { w.made[node] } else { w.made[node] + 1 };
        BOTH.map(|node| if self.chooses { made(node) } else { 0 })
    }

    /// What some leader may have chosen: nothing, what holders name already, or another one.
    fn choices(&self, w: &World) -> Vec<[u8; 2]> {
        if !self.chooses {
            return vec![[0; 2]];
        }
        let of = |node: usize| {
            let pending = w.chosen[node].then_some(w.made[node]);
            [Some(0), pending, Some(w.made[node] + 1)].into_iter().flatten()
        };
        of(0).flat_map(|a| of(1).map(move |b| [a, b])).collect()
    }

    /// Enters the fence into a closed attachment: the boot that was declared over is the last one that the node reports,
    /// as read from the server itself after it was closed.
    pub(crate) fn enter_fence(&self, next: &mut World, node: usize) {
        let machine = &next.machines[node];
        let stands = machine.off == machine.reported || self.plants(Planted::SilenceIsAFence);
        let a = &mut next.attachments[node];
        a.fenced |= stands && (a.leaving || self.plants(Planted::FencedWhileOpen));
    }

    /// Takes the finalizer away.
    pub(crate) fn finalize(&self, next: &mut World, node: usize) {
        let a = next.attachments[node];
        if a.leaving && release::attachment_gone(leaving(a, self.attach_required())) {
            next.attachments[node] = Attachment::default();
        }
    }

    fn attach_required(&self) -> bool {
        self.attach && !self.plants(Planted::FreedBeforeDetach)
    }
}

/// What a leader knows of an attachment on its way out.
fn leaving(a: Attachment, attach_required: bool) -> Leaving {
    let fence = if a.fenced { Fence::Stands } else { Fence::None };
    let used = a.users.contains(&true);
    Leaving { released: a.released, fence, attach_required, attached: a.attached, used }
}
