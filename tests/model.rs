//! Grant, close, release, fence and rebind of one single-node volume: every order of every step, on two nodes, with two
//! allocations, daemons with stale caches, and any number of leaders at once, each with caches as old as may be.
//!
//! The steps are chosen by the functions of `wharfline::plan`. Rule 5 holds in every world that can be reached, and it
//! does not hold any more when one of the mistakes in [`Planted`] is made: each of those is a rule for the code around
//! the plan. Run with `--no-capture` to see the sizes and the shortest ways to a fault.
//!
//! Of the modes of many nodes it is the one of a single writer, with three allocations: the others refuse nobody, or every writer.
//!
//! Not modelled: a change of the volume's host, which has a model of its own (`hosts`), and calls that take effect after their deadline.
#![allow(clippy::print_stdout)] // sizes and traces, read with --no-capture
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};
use wharfline::api::meta::AccessMode;

#[path = "model/daemons.rs"]
mod daemons;
#[path = "model/hosts.rs"]
mod hosts;
#[path = "model/leaders.rs"]
mod leaders;
#[path = "model/protocol.rs"]
mod protocol;
#[path = "model/world.rs"]
mod world;

use protocol::{Action, Planted, Protocol};
use world::{ALL, BOTH, Each, World};

const ONE_NODE: &str = "published on one node";
const HELD: &str = "nothing is published without its holder";
const ONE_ATTACHED: &str = "attached to one node";
const ATTACHED: &str = "nothing is in place where it is not attached";
const MIRROR: &str = "mirror order";
const ONE_WRITES: &str = "written on one node";
const ONE_WRITABLE: &str = "attached to one node for writing";
const A_TO_B: &str = "it moves from a to b";
const B_TO_A: &str = "it moves from b to a";
const REBOUND: &str = "the allocation of the lost node writes on the other";
const RETURNED: &str = "the fenced node comes back and is rid of it while the other writes";
const AGAIN: &str = "the node that was lost writes again in its next boot";
const SHARED: &str = "both write on one node";
const BOTH_NODES: &str = "published on both nodes";
const WRITER_AND_READER: &str = "written on one node and read on the other";
const WRITER_MOVED: &str = "written on b, and read on a, where it was written";
const ONE_LEFT: &str = "one of two is no holder any more while the other writes";

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        self.starts.iter().copied().map(World::new).collect()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.actions(world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        self.after(world, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_NODE, |p: &Protocol, w: &World| {
                !(p.mode.single_node() && w.published(0) && w.published(1))
            }),
            Property::always(ONE_WRITES, |p: &Protocol, w: &World| {
                !(p.mode == AccessMode::MultiNodeSingleWriter && p.writes(w, 0) && p.writes(w, 1))
            }),
            Property::always(ONE_WRITABLE, |p: &Protocol, w: &World| {
                !(p.mode == AccessMode::MultiNodeSingleWriter && w.writable == [true; 2])
            }),
            Property::always(HELD, |_, w: &World| {
                BOTH.iter().all(|n| {
                    let machine = &w.machines[*n];
                    ALL.iter().all(|u| !machine.published[*u] || w.held[*u][*n] == machine.journal.uid)
                })
            }),
            Property::always(ONE_ATTACHED, |p: &Protocol, w: &World| {
                !(p.mode.single_node() && w.attached == [true; 2])
            }),
            Property::always(ATTACHED, |p: &Protocol, w: &World| {
                !p.attach || BOTH.iter().all(|n| w.attached[*n] || !w.machines[*n].holds_anything())
            }),
            Property::always(MIRROR, |_, w: &World| w.fault.is_none()),
            Property::sometimes(A_TO_B, |_, w: &World| w.first == Some(0) && w.published(1)),
            Property::sometimes(B_TO_A, |_, w: &World| w.first == Some(1) && w.published(0)),
            Property::sometimes(REBOUND, |_, w: &World| {
                w.first == Some(0) && w.machines[1].published[0] && w.allocations[0].wants(1)
            }),
            Property::sometimes(RETURNED, |_, w: &World| {
                let a = &w.machines[0];
                w.first == Some(0) && a.powered && a.boot == 2 && w.attachments[0].uid == 0 && w.published(1)
            }),
            Property::sometimes(AGAIN, |_, w: &World| w.machines[0].boot == 2 && w.published(0)),
            Property::sometimes(SHARED, |_, w: &World| w.machines[0].published == [true, true, false]),
            Property::sometimes(BOTH_NODES, |_, w: &World| w.published(0) && w.published(1)),
            Property::sometimes(WRITER_AND_READER, |p: &Protocol, w: &World| {
                BOTH.iter().any(|n| p.writes(w, *n) && w.published(1 - n))
            }),
            Property::sometimes(WRITER_MOVED, |p: &Protocol, w: &World| {
                w.first == Some(0) && p.writes(w, 1) && w.machines[0].published[1] && p.reads[1]
            }),
            Property::sometimes(ONE_LEFT, |_, w: &World| {
                let x = w.allocations[0];
                x.ended
                    && x.ever_wanted[0]
                    && w.held[0] == [0; 2]
                    && w.machines[0].published == [false, true, false]
            }),
        ]
    }
}

impl Protocol {
    /// Whether somebody who writes has it published on the node.
    fn writes(&self, w: &World, node: usize) -> bool {
        ALL.iter().any(|user| w.machines[node].published[*user] && !self.reads[*user])
    }
}

/// Each of two allocations on a node of its own, or both on one.
const TWO: &[Each<Option<usize>>] = &[[Some(0), Some(1), None], [Some(0), Some(0), None]];

/// Two nodes that are never lost; a plugin that stages and does not attach.
const PLAIN: Protocol = Protocol {
    mode: AccessMode::SingleNodeWriter,
    starts: TWO,
    reads: [false; 3],
    attach: false,
    at_node: false,
    stage: true,
    loss: false,
    edits: [1, 1, 0],
    attachments: [2, 1],
    restarts: true,
    doubt: true,
    remember: false,
    ends: false,
    fresh: false,
    ready: false,
    chooses: false,
    planted: None,
};

const ATTACHING: Protocol =
    Protocol { attach: true, stage: false, restarts: false, attachments: [1, 1], ..PLAIN };
const LOSING: Protocol = Protocol {
    loss: true,
    stage: false,
    restarts: false,
    doubt: false,
    attachments: [1, 1],
    edits: [0, 0, 0],
    ..PLAIN
};
const SHARING: Protocol = Protocol { mode: AccessMode::SingleNodeMultiWriter, stage: false, ..PLAIN };

/// Explores every world that can be reached: no rule breaks, and each of `reached` can be reached.
fn exhaust(protocol: Protocol, reached: &[&'static str]) {
    let checker = protocol.checker().finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
    println!("{protocol:?}: {} worlds, {} steps", checker.unique_state_count(), checker.state_count());
    for property in protocol.properties() {
        let path = checker.discovery(property.name).map(stateright::Path::into_actions);
        match property.expectation {
            Expectation::Always => assert_eq!(path, None, "broken: {}", property.name),
            Expectation::Sometimes | Expectation::Eventually => {
                assert!(path.is_some() || !reached.contains(&property.name), "never: {}", property.name);
            }
        }
    }
}

#[test]
fn one_node_at_a_time() {
    exhaust(PLAIN, &[]);
}

#[test]
fn one_node_at_a_time_where_attachments_are_made_with_who_is_let_in() {
    exhaust(Protocol { chooses: true, restarts: false, attachments: [2, 2], ..PLAIN }, &[]);
    exhaust(Protocol { chooses: true, edits: [1, 0, 0], attachments: [2, 1], ..ATTACHING }, &[]);
    exhaust(Protocol { chooses: true, attachments: [2, 1], ..LOSING }, &[]);
    let sharing = Protocol { chooses: true, ends: true, restarts: false, edits: [0, 1, 0], ..SHARING };
    exhaust(sharing, &[SHARED, ONE_LEFT]);
}

#[test]
fn one_node_at_a_time_where_one_is_deleted() {
    exhaust(Protocol { ends: true, edits: [0, 1, 0], ..PLAIN }, &[]);
    exhaust(Protocol { ends: true, edits: [0, 0, 0], ..ATTACHING }, &[]);
    exhaust(Protocol { ends: true, edits: [0, 0, 0], at_node: true, ..ATTACHING }, &[]);
    exhaust(Protocol { ends: true, ..LOSING }, &[]);
}

#[test]
fn attached_to_one_node_at_a_time() {
    exhaust(ATTACHING, &[]);
    exhaust(Protocol { at_node: true, ..ATTACHING }, &[]);
}

#[test]
fn a_lost_node_is_fenced_and_comes_back() {
    exhaust(Protocol { attachments: [2, 1], ..LOSING }, &[AGAIN]);
    exhaust(Protocol { edits: [1, 0, 0], ..LOSING }, &[]);
}

#[test]
fn a_lost_node_is_fenced_and_its_volume_detached() {
    exhaust(Protocol { attach: true, ..LOSING }, &[]);
    exhaust(Protocol { attach: true, at_node: true, ..LOSING }, &[]);
}

#[test]
fn users_of_one_node_share() {
    exhaust(SHARING, &[SHARED]);
    exhaust(Protocol { ends: true, edits: [0, 1, 0], ..SHARING }, &[SHARED, ONE_LEFT]);
}

/// x writes and y reads, both on a or not; z writes on b.
const MANY: Protocol = Protocol {
    mode: AccessMode::MultiNodeSingleWriter,
    starts: &[[Some(0), Some(0), Some(1)], [Some(0), Some(1), Some(1)]],
    reads: [false, true, false],
    stage: false,
    restarts: false,
    doubt: false,
    edits: [1, 0, 0],
    attachments: [1, 1],
    ..PLAIN
};

#[test]
fn on_many_nodes_one_writes() {
    let reached = [BOTH_NODES, WRITER_AND_READER];
    exhaust(Protocol { attachments: [2, 1], edits: [1, 1, 0], ..MANY }, &reached);
    exhaust(Protocol { attach: true, ..MANY }, &reached);
    exhaust(Protocol { ends: true, edits: [0, 1, 0], doubt: true, restarts: true, ..MANY }, &reached);
}

#[test]
fn on_many_nodes_one_writes_where_attachments_are_made_with_who_is_let_in() {
    let reached = [BOTH_NODES, WRITER_AND_READER];
    exhaust(Protocol { chooses: true, attach: true, ..MANY }, &reached);
    exhaust(Protocol { chooses: true, loss: true, edits: [0, 0, 0], ..MANY }, &reached);
}

#[test]
fn what_people_want_can_be_reached() {
    let once = Protocol {
        remember: true,
        doubt: false,
        edits: [2, 1, 0],
        stage: false,
        restarts: false,
        fresh: true,
        attachments: [2, 2],
        ..PLAIN
    };
    exhaust(once, &[A_TO_B, B_TO_A]);
    exhaust(Protocol { attach: true, edits: [1, 0, 0], ..once }, &[A_TO_B]);
    exhaust(Protocol { loss: true, edits: [0, 1, 0], ..once }, &[A_TO_B, REBOUND, RETURNED]);
    exhaust(Protocol { mode: AccessMode::SingleNodeMultiWriter, ends: true, ..once }, &[SHARED, ONE_LEFT]);
    // No leader asks: the node of who is deleted lets go by itself.
    exhaust(Protocol { ends: true, ready: true, edits: [0, 0, 0], ..once }, &[A_TO_B]);
    exhaust(Protocol { chooses: true, ..once }, &[A_TO_B, B_TO_A]);
    let attached = Protocol { ends: true, ready: true, edits: [0, 0, 0], attach: true, ..once };
    exhaust(attached, &[A_TO_B]);
    exhaust(Protocol { at_node: true, ..attached }, &[A_TO_B]);
    // The reader has to come anew, for its node could write.
    let many = Protocol {
        mode: MANY.mode,
        starts: &[[Some(0), Some(0), Some(1)]],
        reads: MANY.reads,
        edits: [1, 2, 0],
        attach: true,
        ..once
    };
    exhaust(many, &[WRITER_MOVED]);
    exhaust(Protocol { chooses: true, ..many }, &[WRITER_MOVED]);
}

#[test]
fn every_planted_mistake_is_found() {
    use Planted as P;
    let small = Protocol {
        edits: [0, 0, 0],
        attachments: [1, 1],
        stage: false,
        restarts: false,
        doubt: false,
        ..PLAIN
    };
    let attaching = Protocol { attach: true, ..small };
    let losing = Protocol { loss: true, ..small };
    let sharing = Protocol { mode: AccessMode::SingleNodeMultiWriter, edits: [2, 0, 0], ..small };
    let planted = [
        (P::SilenceIsAFence, small, ONE_NODE),
        (P::UsableOnceMade, small, ONE_NODE),
        (P::HolderFirst, Protocol { attachments: [2, 1], ..small }, ONE_NODE),
        (P::ChosenByThePast, Protocol { chooses: true, attachments: [2, 1], ..small }, ONE_NODE),
        (P::AnyHolderIsAdmitted, Protocol { attachments: [2, 1], ..small }, ONE_NODE),
        (P::AbsenceFromACache, small, ONE_NODE),
        (P::ListsBeforeReporting, losing, ONE_NODE),
        (P::FencedWhileOpen, losing, ONE_NODE),
        (P::BoundIsEnough, Protocol { edits: [1, 0, 0], ..small }, HELD),
        (P::OneOfSeveralGoes, sharing, HELD),
        (P::AttachedUnused, attaching, ONE_ATTACHED),
        (P::DetachUnasked, attaching, MIRROR),
        (P::DownTooEarly, Protocol { doubt: true, ..attaching }, ONE_ATTACHED),
        (P::ClosingForgotten, Protocol { restarts: true, ..small }, ONE_NODE),
        (P::ListsThePast, Protocol { restarts: true, ..losing }, ONE_NODE),
        (P::LettingGoForgotten, Protocol { at_node: true, ..attaching }, ONE_ATTACHED),
        (P::PublicationsForgotten, Protocol { stage: true, restarts: true, ..small }, MIRROR),
        (P::FreedBeforeDetach, attaching, ONE_ATTACHED),
    ];
    for (mistake, protocol, property) in planted {
        let found = Protocol { planted: Some(mistake), ..protocol }
            .checker()
            .finish_when(HasDiscoveries::AnyOf([property].into()))
            .spawn_bfs()
            .join();
        let path = found.discovery(property).map(stateright::Path::into_actions);
        println!("{mistake:?}, {} worlds, {property}: {path:?}", found.unique_state_count());
        assert!(path.is_some(), "{mistake:?} does not break: {property}");
    }
}
