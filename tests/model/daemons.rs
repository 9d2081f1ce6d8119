//! What the node daemons and the host's daemon do, on what they have seen.
use wharfline::api::meta::Rung;
use wharfline::plan::expand::Growth;
use wharfline::plan::mount::{self, Level, Publication};
use wharfline::plan::{Next, Wanted, attach};

use crate::protocol::{Planted, Protocol};
use crate::world::{Attachment, BOTH, Journal, Machine, World};

impl Protocol {
    /// The journal is kept. The list may be older than what was seen before as far as the journal knows better: that the
    /// attachment was closed.
    pub(crate) fn restart(&self, next: &mut World, node: usize) {
        let machine = &mut next.machines[node];
        let past = machine.journal.closed || self.plants(Planted::ListsThePast);
        machine.sees.leaving &= !(past && machine.sees.uid == machine.journal.uid);
        machine.journal.closed &= !self.plants(Planted::ClosingForgotten);
        if self.plants(Planted::PublicationsForgotten) {
            machine.journal.published = [Level::Down; 2];
        }
    }

    /// The daemon takes the next step; without a known end the call was made and its answer lost.
    pub(crate) fn node(&self, next: &mut World, node: usize, known: bool) {
        let before = next.machines[node];
        let Next::Do(step) = mount::next(going(&before), &self.observed(&before)) else { return };
        let (up, down) = if known { (Level::Up, Level::Down) } else { (Level::Rising, Level::Sinking) };
        let machine = &mut next.machines[node];
        let journal = &mut machine.journal;
        match step {
            mount::Step::Close => journal.closed = true,
            mount::Step::Stage => (machine.staged, journal.staged) = (true, up),
            mount::Step::Publish(user) => {
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
                next.attachments[node].released |= next.attachments[node].uid == before.journal.uid;
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
            publications: BOTH.map(publication).to_vec(),
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
        let observed = attach::Seen {
            required: true,
            attached: if same { a.attached } else { Rung::Unknown },
            used: sees.used || self.plants(Planted::AttachedUnused),
            let_go: (same && (a.released || a.fenced)) || self.plants(Planted::DetachUnasked),
            node: String::new(),
        };
        let wanted = if sees.leaving { Wanted::Absent } else { Wanted::Present };
        let word = match attach::next(wanted, &observed) {
            Next::Do(attach::Step::Attach) if self.plants(Planted::DownTooEarly) && !known => Rung::Down,
            Next::Do(attach::Step::Attach) => {
                next.attached[node] = true;
                if known { Rung::Up } else { Rung::Unknown }
            }
            Next::Do(attach::Step::Detach) => {
                if next.machines[node].holds_anything() {
                    next.fault = Some("detached before the node let go");
                }
                next.attached[node] &= !known;
                if known { Rung::Down } else { Rung::Unknown }
            }
            Next::Wait(_) | Next::Converged => return,
        };
        if same {
            next.attachments[node].attached = word;
        }
    }
}

/// Whether the daemon sees the attachment that it serves, and it is not leaving.
fn is_open(machine: &Machine) -> bool {
    machine.sees.uid == machine.journal.uid && !machine.sees.leaving
}

fn going(machine: &Machine) -> mount::Attachment {
    if is_open(machine) { mount::Attachment::Open } else { mount::Attachment::Leaving }
}

/// The daemon sees the attachment, and takes it up once nothing is left of the one before.
pub(crate) fn see(next: &mut World, node: usize) {
    let (a, machine) = (next.attachments[node], &mut next.machines[node]);
    let attached = if a.attached == Rung::Up { Rung::Up } else { Rung::Down };
    machine.sees = Attachment { attached, released: false, fenced: false, ..a };
    if machine.journal.uid != a.uid && machine.journal.clean() {
        machine.journal = Journal::of(a.uid);
    }
}

/// The daemon lists what there is after a boot.
pub(crate) fn list(next: &mut World, node: usize) {
    let (wanted, over) = (next.wanted(node), next.over(node));
    let machine = &mut next.machines[node];
    (machine.listed, machine.wanted, machine.over) = (true, wanted, over);
    see(next, node);
}
