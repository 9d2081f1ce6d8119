//! The state of the model: what the API holds, what the machines hold, and what the daemons have seen of the API.
//!
//! Leaders have no state here. Any number of them act at any time, and each fact that a leader takes from a cache may
//! be any past version of its object: the `ever_…` fields say which past versions there were. What a leader writes by
//! compare-and-swap is written against the present version, because against any other the write fails.
use wharfline::api::meta::Rung;
use wharfline::plan::mount::Level;

/// Node a (0) and node b (1).
pub(crate) const BOTH: [usize; 2] = [0, 1];
/// Allocation x (0), y (1) and z (2).
pub(crate) const ALL: [usize; 3] = [0, 1, 2];
/// Something of each allocation.
pub(crate) type Each<T> = [T; 3];

/// One VolumeAttachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Attachment {
    /// Counts the attachments of its node from 1; 0 = there is none.
    pub(crate) uid: u8,
    /// `spec.allocations`: who gets the volume published.
    pub(crate) users: Each<bool>,
    /// `spec.readOnly`: it was made for readers alone.
    pub(crate) read_only: bool,
    /// It is being deleted.
    pub(crate) leaving: bool,
    /// `spec.fenced`: a fence stands for the node's release.
    pub(crate) fenced: bool,
    /// The node's word that nothing is left under this uid.
    pub(crate) released: bool,
    /// The host's word.
    pub(crate) attached: Rung,
}

/// What the host's cache has of an attachment, as far as it decides by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Sight {
    pub(crate) uid: u8,
    /// Somebody was let in.
    pub(crate) used: bool,
    pub(crate) read_only: bool,
    pub(crate) leaving: bool,
}

impl Sight {
    /// What the host sees now.
    pub(crate) fn of(a: Attachment) -> Self {
        Self { uid: a.uid, used: a.users.contains(&true), read_only: a.read_only, leaving: a.leaving }
    }
}

/// The edits of an allocation that is not there.
const ABSENT: u8 = u8::MAX;

/// One Allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Allocation {
    /// The node it is bound to.
    pub(crate) node: usize,
    /// How often a person has stopped or started it; odd = stopped.
    pub(crate) edits: u8,
    /// Whether it is being deleted.
    pub(crate) ended: bool,
    /// Bound to the node and wanting the volume there, in any version so far.
    pub(crate) ever_wanted: [bool; 2],
}

impl Allocation {
    /// Whether it wants the volume on the node.
    pub(crate) fn wants(self, node: usize) -> bool {
        self.node == node && !self.ended && self.edits.is_multiple_of(2)
    }

    /// Writes a new version.
    pub(crate) fn write(&mut self, node: usize, edits: u8) {
        (self.node, self.edits) = (node, edits);
        for at in BOTH {
            self.ever_wanted[at] |= self.wants(at);
        }
    }
}

/// What a node daemon keeps on disk for the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Journal {
    /// The attachment that it serves; 0 = none.
    pub(crate) uid: u8,
    pub(crate) closed: bool,
    pub(crate) released: bool,
    pub(crate) staged: Level,
    pub(crate) published: Each<Level>,
}

impl Journal {
    /// A journal that has just met an attachment.
    pub(crate) const fn of(uid: u8) -> Self {
        Self { uid, closed: false, released: false, staged: Level::Down, published: [Level::Down; 3] }
    }

    /// Whether nothing is or may be in place.
    pub(crate) fn clean(self) -> bool {
        self.staged == Level::Down && self.published == [Level::Down; 3]
    }
}

/// One machine, its kernel and its daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Machine {
    pub(crate) powered: bool,
    /// Its present boot, from 1.
    pub(crate) boot: u8,
    /// The boot that its NodeAgent reports.
    pub(crate) reported: u8,
    /// The boot that an operator said is over; 0 = none.
    pub(crate) off: u8,
    /// The kernel's truth.
    pub(crate) staged: bool,
    pub(crate) published: Each<bool>,
    pub(crate) journal: Journal,
    /// Whether the daemon has listed what there is since the boot.
    pub(crate) listed: bool,
    /// The daemon's cache: the attachment of this node, which allocations want the volume here, and which are over.
    pub(crate) sees: Attachment,
    pub(crate) wanted: Each<bool>,
    pub(crate) over: Each<bool>,
}

impl Machine {
    fn new() -> Self {
        Self {
            powered: true,
            boot: 1,
            reported: 1,
            off: 0,
            staged: false,
            published: [false; 3],
            journal: Journal::of(0),
            listed: true,
            sees: Attachment::default(),
            wanted: [false; 3],
            over: [false; 3],
        }
    }

    /// Whether the kernel has anything of the volume.
    pub(crate) fn holds_anything(&self) -> bool {
        self.staged || self.published.contains(&true)
    }
}

/// Everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// `Volume.status.holders`: the attachment that each allocation holds on each node by; 0 = it is no holder there.
    pub(crate) held: Each<[u8; 2]>,
    /// Whether the entry was there, in any version of the Volume.
    pub(crate) ever_held: Each<[bool; 2]>,
    /// Whether it named the node's present attachment, in any version of the Volume.
    pub(crate) ever_named: Each<[bool; 2]>,
    pub(crate) attachments: [Attachment; 2],
    /// How many attachments each node has had, or a leader has chosen a uid for.
    pub(crate) made: [u8; 2],
    /// Whether the last of them was never asked for: a holder may name it.
    pub(crate) chosen: [bool; 2],
    pub(crate) allocations: Each<Allocation>,
    pub(crate) machines: [Machine; 2],
    /// What the host has seen of the attachments.
    pub(crate) host: [Sight; 2],
    /// The backend's truth: where it is attached, and where it can be written then.
    pub(crate) attached: [bool; 2],
    pub(crate) writable: [bool; 2],
    /// The node that the volume was published on first.
    pub(crate) first: Option<usize>,
    /// A call was made out of mirror order.
    pub(crate) fault: Option<&'static str>,
}

impl World {
    /// Some allocations are bound and want the volume, and their nodes know it; nothing else is there.
    pub(crate) fn new(bound: Each<Option<usize>>) -> Self {
        let mut world = Self {
            held: [[0; 2]; 3],
            ever_held: [[false; 2]; 3],
            ever_named: [[false; 2]; 3],
            attachments: [Attachment::default(); 2],
            made: [0; 2],
            chosen: [false; 2],
            allocations: [Allocation { edits: ABSENT, ..Allocation::default() }; 3],
            machines: [Machine::new(), Machine::new()],
            host: [Sight::default(); 2],
            attached: [false; 2],
            writable: [false; 2],
            first: None,
            fault: None,
        };
        for (user, node) in ALL.into_iter().filter_map(|user| Some((user, bound[user]?))) {
            world.allocations[user].write(node, 0);
            world.machines[node].wanted[user] = true;
        }
        world
    }

    /// Which allocations want the volume on the node.
    pub(crate) fn wanted(&self, node: usize) -> Each<bool> {
        ALL.map(|user| self.allocations[user].wants(node))
    }

    /// Which allocations are over for good.
    pub(crate) fn over(&self, node: usize) -> Each<bool> {
        ALL.map(|user| self.allocations[user].ended && self.allocations[user].node == node)
    }

    /// Whether anything is published on the node.
    pub(crate) fn published(&self, node: usize) -> bool {
        self.machines[node].published.contains(&true)
    }

    /// Forgets what nobody can act on any more: worlds that differ in nothing that matters are one.
    pub(crate) fn forget(&mut self, held: bool) {
        for (node, a) in self.attachments.iter().enumerate() {
            for user in ALL {
                self.ever_held[user][node] &= held;
                self.ever_named[user][node] &= a.uid != 0 && !a.leaving && !a.users[user];
            }
        }
        for machine in &mut self.machines {
            if !machine.powered {
                (machine.staged, machine.published) = (false, [false; 3]);
                // A new boot has no mounts; the journal still tells what was closed and released.
                (machine.journal.staged, machine.journal.published) = (Level::Down, [Level::Down; 3]);
                (machine.listed, machine.sees) = (false, Attachment::default());
                (machine.wanted, machine.over) = ([false; 3], [false; 3]);
            }
        }
    }
}
