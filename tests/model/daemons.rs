//! What the node daemons and the host's daemon do, on what they have seen.
use wharfline::api::meta::Rung;
use wharfline::plan::expand::Growth;
use wharfline::plan::mount::{self, Level, Publication};
use wharfline::plan::release::{self, Ending};
use wharfline::plan::{Next, Wanted, attach};

use crate::protocol::{Planted, Protocol};
use crate::world::{ALL, Attachment, Journal, Machine, World};

impl Protocol {
    /// The journal is kept. The list may be older than what was seen before as far as the journal knows better: that the
    /// attachment was closed.
    pub(crate) fn restart(&self, next: &mut World, node: usize) {
        let machine = &mut next.machines[node];
        let past = machine.journal.closed || self.plants(Planted::ListsThePast);
        machine.sees.leaving &= !(past && machine.sees.uid == machine.journal.uid);
        machine.journal.closed &= !self.plants(Planted::ClosingForgotten);
        if self.plants(Planted::PublicationsForgotten) {
            machine.journal.published = [Level::Down; 3];
        }
    }

    /// The daemon takes the next step; without a known end the call was made and its answer lost.
    pub(crate) fn node(&self, next: &mut World, node: usize, known: bool) {
        let before = next.machines[node];
        let Next::Do(step) = mount::next(self.going(&before), &self.observed(&before)) else { return };
        let (up, down) = if known { (Level::Up, Level::Down) } else { (Level::Rising, Level::Sinking) };
        let machine = &mut next.machines[node];
        let journal = &mut machine.journal;
        match step {
            mount::Step::Close => journal.closed = true,
            mount::Step::Stage => (machine.staged, journal.staged) = (true, up),
            mount::Step::Publish(user) => {
                if before.sees.read_only && !self.reads[user] {
                    next.fault = Some("a writer published where it is attached for reading");
                }
                (machine.published[user], journal.published[user]) = (true, up);
                next.first = next.first.or(self.remember.then_some(node));
            }
            mount::Step::Unpublish(user) => {
                (machine.published[user], journal.published[user]) = (!known, down);
            }
            mount::Step::Unstage => {
                (machine.staged, journal.staged) = (!known, down);
                if before.published.contains(&true) {
                    next.fault = Some("unstaged under a publication");
                }
            }
            mount::Step::PassOn => unreachable!("there is one volume here"),
            mount::Step::Expand => unreachable!("nothing grows here"),
            mount::Step::Release => {
                journal.released = true;
                let a = &mut next.attachments[node];
                let same = a.uid == before.journal.uid;
                // With the word that nothing is left its deletion begins, if nobody began it.
                (a.released, a.leaving) = (a.released || same, a.leaving || same);
            }
        }
    }

    /// What the daemon tells the plan.
    fn observed(&self, machine: &Machine) -> mount::Seen {
        let (sees, journal) = (machine.sees, machine.journal);
        let publication = |user: usize| Publication {
            wanted: machine.wanted[user] && (sees.users[user] || self.plants(Planted::BoundIsEnough)),
            level: journal.published[user],
            idle: true,
            cure: wharfline::plan::stale::Cure::Nothing,
            held: false,
        };
        mount::Seen {
            attach_required: self.attach,
            attached: sees.attached,
            stage_required: self.stage,
            staged: journal.staged,
            dead: false,
            closed: journal.closed,
            released: journal.released,
            publications: ALL.map(publication).to_vec(),
            others: mount::Others::default(),
            growth: Growth::Done,
        }
    }

    /// The host takes the next step. Its word is in the attachment, which nobody else writes; it is gone with it.
    pub(crate) fn host(&self, next: &mut World, node: usize, known: bool) {
        let (sees, a) = (next.host[node], next.attachments[node]);
        let same = sees.uid == a.uid;
        if sees.uid == 0 || (sees.leaving && !same) {
            return;
        }
        let journal = &next.machines[node].journal;
        let here = self.at_node && journal.uid == sees.uid && journal.released;
        let observed = attach::Seen {
            required: true,
            attached: if same { a.attached } else { Rung::Unknown },
            used: sees.used || self.plants(Planted::AttachedUnused),
            let_go: (same && (a.released || a.fenced)) || here || self.plants(Planted::DetachUnasked),
            node: String::new(),
        };
        let going = sees.leaving || here;
        let wanted = if going { Wanted::Absent } else { Wanted::Present };
        let word = match attach::next(wanted, &observed) {
            Next::Do(attach::Step::Attach) if self.plants(Planted::DownTooEarly) && !known => Rung::Down,
            Next::Do(attach::Step::Attach) => {
                (next.attached[node], next.writable[node]) = (true, !sees.read_only);
                if known { Rung::Up } else { Rung::Unknown }
            }
            Next::Do(attach::Step::Detach) => {
                if next.machines[node].holds_anything() {
                    next.fault = Some("detached before the node let go");
                }
                next.attached[node] &= !known;
                next.writable[node] &= !known;
                if known { Rung::Down } else { Rung::Unknown }
            }
            Next::Wait(_) | Next::Converged => return,
        };
        if same {
            next.attachments[node].attached = word;
        }
    }
}

impl Protocol {
    /// What the daemon makes of the attachment that it serves: who is asked to take it away does so, and who has nothing for
    /// anybody who was let in, all of whom are over.
    fn going(&self, machine: &Machine) -> mount::Attachment {
        let (sees, journal) = (machine.sees, machine.journal);
        let let_in: Vec<_> = ALL.into_iter().filter(|user| sees.users[*user]).collect();
        let ending = |user: &usize| Ending {
            deleting: machine.over[*user],
            down: journal.published[*user] == Level::Down,
        };
        let lets_go = release::lets_go(self.mode, let_in.iter().map(ending));
        if sees.uid == journal.uid && !sees.leaving && !journal.closed && !lets_go {
            mount::Attachment::Open
        } else {
            mount::Attachment::Leaving
        }
    }
}

impl Protocol {
    /// The daemon sees the attachment, and takes it up once nothing is left of the one before, and the host has heard of the
    /// end of that.
    pub(crate) fn see(&self, next: &mut World, node: usize) {
        let (a, host, machine) = (next.attachments[node], next.host[node], &mut next.machines[node]);
        let attached = if a.attached == Rung::Up { Rung::Up } else { Rung::Down };
        machine.sees = Attachment { attached, released: false, fenced: false, ..a };
        let journal = machine.journal;
        let told = self.at_node && journal.released && host.uid == journal.uid;
        if journal.uid != a.uid && journal.clean() && (!told || self.plants(Planted::LettingGoForgotten)) {
            machine.journal = Journal::of(a.uid);
        }
    }

    /// The daemon lists what there is after a boot.
    pub(crate) fn list(&self, next: &mut World, node: usize) {
        let (wanted, over) = (next.wanted(node), next.over(node));
        let machine = &mut next.machines[node];
        (machine.listed, machine.wanted, machine.over) = (true, wanted, over);
        self.see(next, node);
    }
}
