//! What leaders do: any number of them, each with caches of any age.
//!
//! A fact that decides against a holder (released, fenced, detached, gone) stays true once it is true. So it is read from
//! the present world: an older version could only show less of it.
use std::sync::LazyLock;

use wharfline::api::meta::ObjectRef;
use wharfline::api::volume::Holder;
use wharfline::plan::mount::Level;
use wharfline::plan::release::{self, Fence, HolderFacts, HolderStep, Leaving, User};

use crate::protocol::{Planted, Protocol};
use crate::world::{Attachment, BOTH, World};

static HOLDERS: LazyLock<[[Holder; 2]; 2]> = LazyLock::new(|| {
    ["x", "y"].map(|name| {
        ["a", "b"].map(|node| {
            let allocation = ObjectRef { namespace: "d".into(), name: name.into(), uid: name.into() };
            release::holder(allocation, node, false)
        })
    })
});

impl Protocol {
    /// Makes an attachment for one boot of the node. Nobody may use it before a holder names it.
    pub(crate) fn create(&self, next: &mut World, node: usize, boot: u8) {
        let w = *next;
        let wanted = BOTH.iter().any(|user| {
            let held = w.ever_held[*user][node] || !self.plants(Planted::HolderFirst);
            w.allocations[*user].ever_wanted[node] && held
        });
        if !wanted || w.attachments[node].uid != 0 || w.made[node] == self.attachments[node] {
            return;
        }
        next.made[node] += 1;
        let users = BOTH.map(|user| {
            (self.plants(Planted::UsableOnceMade) && w.allocations[user].ever_wanted[node])
                || (self.plants(Planted::HolderFirst) && w.ever_held[user][node])
        });
        next.attachments[node] = Attachment { uid: next.made[node], boot, users, ..Attachment::default() };
    }

    /// Adds a holder that names an attachment, whether that still stands or not.
    pub(crate) fn hold(&self, next: &mut World, user: usize, node: usize, uid: u8) {
        let w = *next;
        if w.holders[user][node] != 0 || !w.allocations[user].ever_wanted[node] {
            return;
        }
        // Its own grant on the node it left stands in its way like any other.
        let elsewhere = self.mode.single_node() && w.holders[user][1 - node] != 0;
        if elsewhere && !self.plants(Planted::OwnGrantElsewhere) {
            return;
        }
        let present: Vec<Holder> = BOTH
            .iter()
            .flat_map(|u| BOTH.iter().map(move |n| (*u, *n)))
            .filter(|(u, n)| w.holders[*u][*n] != 0)
            .map(|(u, n)| HOLDERS[u][n].clone())
            .collect();
        if release::grant("v", self.mode, &present, &HOLDERS[user][node]).is_ok() {
            next.holders[user][node] = uid;
            next.ever_held[user][node] |= w.attachments[node].uid == uid || self.plants(Planted::HolderFirst);
        }
    }

    /// Lets a holder use the attachment that it names.
    pub(crate) fn admit(next: &mut World, user: usize, node: usize) {
        let may = next.ever_held[user][node] && next.allocations[user].ever_wanted[node];
        let a = &mut next.attachments[node];
        a.users[user] |= a.uid != 0 && !a.leaving && may;
    }

    /// Takes the finalizer away.
    pub(crate) fn finalize(&self, next: &mut World, node: usize) {
        let a = next.attachments[node];
        if a.leaving && release::attachment_gone(self.leaving(next, node, a)) {
            next.attachments[node] = Attachment::default();
        }
    }

    /// Removes a holder whose release is known. That there is no attachment is read from the server itself, after the
    /// holder that names it.
    pub(crate) fn free(&self, next: &mut World, user: usize, node: usize) {
        let w = *next;
        let (uid, a) = (w.holders[user][node], w.attachments[node]);
        if uid == 0 {
            return;
        }
        let named = a.uid == uid || (self.plants(Planted::HolderFirst) && a.uid != 0);
        let there = named && !self.plants(Planted::AbsenceFromACache);
        let leaving = self.leaving(&w, node, a);
        let down =
            self.plants(Planted::OneOfSeveralGoes) && w.machines[node].journal.published[user] == Level::Down;
        let others = BOTH.iter().any(|o| *o != user && w.holders[*o][node] != 0);
        for others_on_node in [false, others] {
            let step = release::holder_step(HolderFacts {
                user: if down { User::Down } else { User::NotDown },
                others_on_node,
                attachment: there.then_some((a.leaving, leaving)),
                fence: if there { leaving.fence } else { Fence::None },
            });
            match step {
                HolderStep::Remove => next.holders[user][node] = 0,
                HolderStep::Keep | HolderStep::CloseAttachment => {}
            }
        }
    }

    /// What a leader or the host knows of an attachment on its way out.
    pub(crate) fn leaving(&self, w: &World, node: usize, a: Attachment) -> Leaving {
        // Nobody ever used it, and nobody can be let in any more.
        let unused = a.leaving && !a.granted();
        Leaving {
            released: a.released || unused,
            fence: self.fence(w, node, a),
            attach_required: self.attach && !self.plants(Planted::FreedBeforeDetach),
            attached: a.attached,
        }
    }

    /// Whether the boot that the attachment was made for is over.
    fn fence(&self, w: &World, node: usize, a: Attachment) -> Fence {
        let machine = &w.machines[node];
        let over = machine.over(a.boot)
            || self.plants(Planted::SilenceIsAFence)
            || (self.plants(Planted::BootFromACache) && machine.reported > 1);
        if over { Fence::Stands } else { Fence::None }
    }
}
