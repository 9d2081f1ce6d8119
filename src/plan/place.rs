//! Which node an allocation goes to, with a reason for every node that was refused.
//!
//! Pins are placed too. A node fits when it is ready and not cordoned (plugins ignore cordons), carries the labels asked
//! for, lists the runtimes of the tasks, and can have every volume: by topology, by a healthy plugin instance, and within the plugin's limit.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Reason;
use crate::api::meta::{Map, Segments};

/// One node.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether its daemon renews its lease.
    pub ready: bool,
    /// Why it takes nothing new, if it does not.
    pub closed: Option<Closed>,
    /// Its labels.
    pub labels: Arc<Map>,
    /// What it says of runtimes; none where it has said nothing yet.
    pub runtimes: Option<Arc<Runtimes>>,
    /// How many allocations are bound to it.
    pub load: usize,
}

/// The runtimes of a node, by their words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runtimes {
    /// Those that tasks may be started with.
    pub listed: BTreeSet<String>,
    /// Those that it allows, and what is missing for them.
    pub missing: Map,
}

/// The runtimes that a node has which has not said yet what it has: all but those have to be looked for.
const USUAL: [&str; 2] = ["external", "process"];

/// Why tasks of this runtime cannot be begun on a node that says this of runtimes, if it has said anything yet.
pub fn lacks(runtimes: Option<&Runtimes>, runtime: &str) -> Option<String> {
    let Some(runtimes) = runtimes else {
        let usual = USUAL.contains(&runtime);
        return (!usual).then(|| format!("has not said yet whether it has the runtime {runtime}"));
    };
    if runtimes.listed.contains(runtime) {
        return None;
    }
    Some(match runtimes.missing.get(runtime) {
        Some(why) => format!("cannot use the runtime {runtime}: {why}"),
        None => format!("does not allow the runtime {runtime}"),
    })
}

/// Why a node takes no new allocation; plugins' own go there all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// Its Node object is being deleted.
    Deleted,
    /// `wharfline down` took it down.
    Stopped,
    /// A person said that its present boot is off.
    SaidOff,
    /// A person wants nothing to stay there.
    Drained,
    /// A person wants nothing new there.
    Cordoned,
}

impl std::fmt::Display for Closed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Deleted => "being deleted",
            Self::Stopped => "taken down",
            Self::SaidOff => "said to be off",
            Self::Drained => "being drained",
            Self::Cordoned => "cordoned",
        })
    }
}

/// One node's part of a plugin.
#[derive(Debug, Clone, Default)]
pub struct NodePlugin {
    /// The node.
    pub node: String,
    /// What it reports of its place.
    pub topology: Segments,
    /// How many volumes it can take; 0 = no limit known.
    pub max_volumes: i64,
    /// How many it has, those on their way out included.
    pub volumes: usize,
    /// The plugin refused to attach one more there, a moment ago.
    pub refused: bool,
    /// What room the plugin says there is for what the claim asks for; absent when it is not known, or nothing is to be made.
    pub room: Option<Room>,
}

/// How much room there is at a node for a volume that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// In all, in bytes.
    pub available: i64,
    /// For one volume, in bytes.
    pub largest: i64,
}

/// One claim of the allocation, as far as it limits where it can go.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Its name.
    pub name: String,
    /// Its plugin.
    pub plugin: String,
    /// The nodes with a healthy node instance of that plugin.
    pub nodes: Vec<NodePlugin>,
    /// Where the volume can be reached from, or where it may be made; anywhere when empty.
    pub topology: Vec<Segments>,
    /// The class that says where it may be made; empty where something else does.
    pub class: String,
    /// The only node that will do: selected before, or held by a single-node volume.
    pub only: Option<String>,
    /// Nodes that have it attached already and need no further place for it.
    pub present_on: BTreeSet<String>,
    /// How many bytes are to be made for it, of which class; nothing when it is there, or nobody said.
    pub needs: (String, i64),
}

/// What is wanted of the place.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// The only node that a person wants.
    pub pin: Option<String>,
    /// Labels that the node must have.
    pub labels: Map,
    /// Whether cordons are ignored: the allocation is a plugin's own.
    pub plugin: bool,
    /// The runtimes of its tasks.
    pub runtimes: BTreeSet<&'static str>,
}

/// What is seen of an allocation that has a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// It serves a plugin: those stay with their node.
    pub plugin: bool,
    /// Its node is surely off, and it shall then be bound anew.
    pub lost: bool,
    /// Its node is being drained.
    pub draining: bool,
    /// The plugin attaches no more volumes to its node, so it cannot start there; nobody pinned it to it.
    pub refused: bool,
    /// Nothing of it has begun, and one of its claims [`deprives`] it of its place.
    pub deprived: bool,
    /// Nothing of it has begun, its node [`lacks`] a runtime of its tasks and another one would take it; nobody pinned it.
    pub unfit: bool,
    /// A task of it uses a volume whose attachment is being taken away, by what is seen of that, though it shall run on.
    pub closed: bool,
    /// It was told to leave.
    pub evicted: bool,
    /// Its node said, after it was told to leave, that nothing of it is left.
    pub ended: bool,
}

/// A claim that an allocation waits for on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Awaited {
    /// It is there.
    pub exists: bool,
    /// It is being deleted.
    pub going: bool,
    /// The allocation holds its volume.
    pub holds: bool,
    /// The first consumer has to say where its volume is made, and none has.
    pub unplaced: bool,
    /// Its volume is, or is made, where this node does not reach it.
    pub elsewhere: bool,
}

/// Whether an allocation is where it is for nothing: the claim is not given to it any more, or another one has come in its place,
/// whose volume is to be somewhere else or wherever its consumer goes.
pub fn deprives(claim: Awaited) -> bool {
    let Awaited { exists, going, holds, unplaced, elsewhere } = claim;
    !holds && (!exists || going || unplaced || elsewhere)
}

/// What becomes of an allocation that has a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It stays there.
    Keep,
    /// It is told to leave.
    Evict,
    /// It is told to leave once the server itself says that the attachment goes: no old cache may stop a task.
    EvictIfClosed,
    /// It is placed anew.
    Anew,
}

/// What becomes of an allocation that has a node. Who was told to leave leaves, though the drain may be over by then: its
/// node takes it down already.
pub fn placed(seen: Placed) -> Place {
    match seen {
        Placed { plugin: true, .. } => Place::Keep,
        Placed { lost: true, .. } | Placed { evicted: true, ended: true, .. } => Place::Anew,
        Placed { evicted: false, draining: true, .. }
        | Placed { evicted: false, refused: true, .. }
        | Placed { evicted: false, deprived: true, .. }
        | Placed { evicted: false, unfit: true, .. } => Place::Evict,
        // What is closed is not opened again, and does not go while the task runs: both would stay for ever.
        Placed { evicted: false, closed: true, .. } => Place::EvictIfClosed,
        Placed { .. } => Place::Keep,
    }
}

/// Chooses the node, or says why none fits. Those that lack room by their plugins' word come last: it may be old news.
pub fn choose(wish: &Wish, nodes: &[Node], claims: &[Claim]) -> Result<String, Reason> {
    if nodes.is_empty() {
        return Err(Reason::NoNodes);
    }
    let mut refused = Vec::new();
    let mut best: Option<(bool, usize, &str)> = None;
    for node in nodes {
        if let Some(why) = refusal(wish, node, claims) {
            refused.push(format!("{}: {why}", node.name));
            continue;
        }
        let rank = (lacks_room(&node.name, claims), node.load, node.name.as_str());
        if best.is_none_or(|best| rank < best) {
            best = Some(rank);
        }
    }
    match best {
        Some((_, _, node)) => Ok(node.to_owned()),
        None => {
            if let Some(pin) = &wish.pin
                && !nodes.iter().any(|n| n.name == *pin)
            {
                return Err(Reason::NotFound { kind: "Node", name: pin.clone() });
            }
            refused.truncate(5);
            Err(Reason::NoNodeFits { details: refused.join("; ") })
        }
    }
}

/// Whether a plugin says that there is no room at a node for all that is to be made there.
pub fn lacks_room(node: &str, claims: &[Claim]) -> bool {
    claims.iter().any(|claim| {
        let (class, bytes) = (&claim.needs.0, claim.needs.1);
        let there = claim.nodes.iter().find(|p| p.node == node).and_then(|p| p.room);
        let Some(room) = there.filter(|_| bytes > 0) else { return false };
        let same = claims.iter().filter(|other| other.plugin == claim.plugin && other.needs.0 == *class);
        let all = same.fold(0, |sum: i64, other| sum.saturating_add(other.needs.1));
        bytes > room.largest || all > room.available
    })
}

fn refusal(wish: &Wish, node: &Node, claims: &[Claim]) -> Option<String> {
    if wish.pin.as_ref().is_some_and(|pin| *pin != node.name) {
        return Some("the allocation is pinned elsewhere".to_owned());
    }
    if !node.ready {
        return Some("not ready".to_owned());
    }
    if let Some(why) = node.closed.filter(|_| !wish.plugin) {
        return Some(why.to_string());
    }
    if let Some((key, value)) = wish.labels.iter().find(|(k, v)| node.labels.get(*k) != Some(*v)) {
        return Some(format!("has no label {key}={value}"));
    }
    // Where a person wants it, or a plugin is to be, the node says by itself what is missing.
    let mut runtimes = wish.runtimes.iter().filter(|_| wish.pin.is_none());
    if let Some(why) = runtimes.find_map(|word| lacks(node.runtimes.as_deref(), word)) {
        return Some(why);
    }
    claims.iter().find_map(|claim| claim_refusal(node, claim))
}

fn claim_refusal(node: &Node, claim: &Claim) -> Option<String> {
    if let Some(only) = claim.only.as_ref().filter(|only| **only != node.name) {
        return Some(format!("claim {} is on node {only}", claim.name));
    }
    let Some(plugin) = claim.nodes.iter().find(|p| p.node == node.name) else {
        return Some(format!("no healthy instance of plugin {}", claim.plugin));
    };
    if !reaches(&claim.topology, &plugin.topology) {
        return Some(if claim.class.is_empty() {
            let places = super::claim::some_of(claim.topology.iter().map(super::claim::in_words), " or ");
            format!("claim {} cannot be reached from there, only at {places}", claim.name)
        } else {
            let there = super::claim::in_words(&plugin.topology);
            format!("class {} lets no volume be there, at {there} (allowedTopologies)", claim.class)
        });
    }
    if plugin.refused && !claim.present_on.contains(&node.name) {
        return Some(format!("plugin {} refused to attach one more volume there", claim.plugin));
    }
    let full = plugin.max_volumes > 0 && i64::try_from(plugin.volumes).is_ok_and(|n| n >= plugin.max_volumes);
    if full && !claim.present_on.contains(&node.name) {
        return Some(format!(
            "plugin {} has its limit of {} volumes there",
            claim.plugin, plugin.max_volumes
        ));
    }
    None
}

/// Whether a node with these segments reaches a volume with these terms: any term whose segments the node all has.
/// A node may report more keys than the volume names. No terms = from anywhere.
pub fn reaches(volume: &[Segments], node: &Segments) -> bool {
    volume.is_empty()
        || volume.iter().any(|term| term.iter().all(|(key, value)| node.get(key) == Some(value)))
}

/// What CreateVolume is asked about the place: (requisite, preferred).
pub fn requirement(
    allowed: &[Segments],
    selected: Option<&Segments>,
    all: &[Segments],
) -> (Vec<Segments>, Vec<Segments>) {
    let fits = |node: &&Segments| {
        !node.is_empty()
            && (allowed.is_empty()
                || allowed.iter().any(|term| term.iter().all(|(k, v)| node.get(k) == Some(v))))
    };
    let mut requisite: Vec<Segments> = all.iter().filter(fits).cloned().collect();
    requisite.sort();
    requisite.dedup();
    match selected.filter(|s| !s.is_empty()) {
        // The first consumer's node is the only place that serves it.
        Some(selected) => (vec![selected.clone()], vec![selected.clone()]),
        None => {
            let preferred = requisite.clone();
            (requisite, preferred)
        }
    }
}

/// For how long the first refusal of an attach closes its node, and the last of many.
pub const CLOSED_FIRST: Duration = Duration::from_secs(15);
/// See [`CLOSED_FIRST`].
pub const CLOSED_MOST: Duration = Duration::from_secs(120);

/// For how long a node is closed to a plugin's volumes, which refused to attach one more there: a driver may count what it does not tell
/// of, and says nothing once there is room. `before` is for how long the last refusal closed it, and how long ago that was: those of
/// one moment are one, and one that comes as soon as it is open again closes it for longer.
pub fn closed_for(before: Option<(Duration, Duration)>) -> Duration {
    match before {
        Some((lasts, ago)) if ago < lasts => lasts,
        Some((lasts, ago)) if ago < lasts + CLOSED_MOST => lasts.saturating_mul(2).min(CLOSED_MOST),
        Some(_) | None => CLOSED_FIRST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_refused_again_and_again_is_closed_for_longer() {
        let seconds = Duration::from_secs;
        for (before, closed) in [
            (None, 15),
            (Some((15, 0)), 15),
            (Some((15, 14)), 15),
            (Some((15, 15)), 30),
            (Some((30, 31)), 60),
            (Some((60, 100)), 120),
            (Some((120, 121)), 120),
            (Some((120, 239)), 120),
            // So long ago that it says nothing any more.
            (Some((120, 240)), 15),
            (Some((15, 200)), 15),
        ] {
            let before = before.map(|(lasts, ago)| (seconds(lasts), seconds(ago)));
            assert_eq!(closed_for(before), seconds(closed), "{before:?}");
        }
    }

    fn segments(pairs: &[(&str, &str)]) -> Segments {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn node(name: &str, load: usize) -> Node {
        Node { name: name.into(), ready: true, load, ..Node::default() }
    }

    fn claim(nodes: &[(&str, &[(&str, &str)])]) -> Claim {
        Claim {
            class: String::new(),
            name: "c".into(),
            plugin: "p".into(),
            nodes: nodes
                .iter()
                .map(|(n, t)| NodePlugin {
                    node: (*n).into(),
                    topology: segments(t),
                    ..NodePlugin::default()
                })
                .collect(),
            topology: Vec::new(),
            only: None,
            present_on: BTreeSet::new(),
            needs: (String::new(), 0),
        }
    }

    /// Obligation CO-CTRL-71.
    #[test]
    fn nodes_without_room_come_last() {
        const GIB: i64 = 1 << 30;
        let nodes = [node("a", 0), node("b", 1), node("c", 2)];
        let all: Vec<(&str, &[(&str, &str)])> = vec![("a", &[]), ("b", &[]), ("c", &[])];
        let asks = |bytes: i64, rooms: [Option<(i64, i64)>; 3]| {
            let mut claim = Claim { needs: ("k".into(), bytes), ..claim(&all) };
            for (node, room) in claim.nodes.iter_mut().zip(rooms) {
                node.room = room.map(|(available, largest)| Room { available, largest });
            }
            claim
        };
        let much = Some((100 * GIB, 100 * GIB));
        for (claims, wanted) in [
            (vec![asks(GIB, [None, None, None])], "a"),
            (vec![asks(GIB, [much, much, much])], "a"),
            (vec![asks(GIB, [Some((GIB, GIB)), much, much])], "a"),
            (vec![asks(GIB, [Some((GIB - 1, GIB)), much, much])], "b"),
            (vec![asks(2 * GIB, [Some((9 * GIB, GIB)), Some((9 * GIB, 2 * GIB)), much])], "b"),
            (vec![asks(GIB, [Some((0, 0)), None, much])], "b"),
            // What is asked for together has to be there together.
            (vec![asks(GIB, [Some((GIB, GIB)), much, much]); 2], "b"),
            // Nowhere: the usual one, for it may be old news.
            (vec![asks(GIB, [Some((0, 0)); 3])], "a"),
            // It is there already, or of a size that nobody said.
            (vec![asks(0, [Some((0, 0)), much, much])], "a"),
        ] {
            assert_eq!(choose(&Wish::default(), &nodes, &claims), Ok(wanted.into()), "{claims:?}");
        }
        let mut other = asks(GIB, [Some((GIB, GIB)), much, much]);
        other.needs.0 = "another".into();
        let two = [asks(GIB, [Some((GIB, GIB)), much, much]), other];
        assert_eq!(
            choose(&Wish::default(), &nodes, &two),
            Ok("a".into()),
            "of another class, perhaps another pool"
        );
    }

    #[test]
    fn the_least_loaded_fitting_node_is_taken() {
        let nodes = [node("a", 2), node("b", 1), node("c", 1)];
        assert_eq!(choose(&Wish::default(), &nodes, &[]), Ok("b".into()));
        let pin = Wish { pin: Some("a".into()), ..Wish::default() };
        assert_eq!(choose(&pin, &nodes, &[]), Ok("a".into()));
        assert_eq!(
            choose(&Wish { pin: Some("z".into()), ..Wish::default() }, &nodes, &[]).unwrap_err().word(),
            "NotFound"
        );
        assert_eq!(choose(&pin, &[], &[]), Err(Reason::NoNodes));
    }

    #[test]
    fn a_task_goes_where_its_runtime_is() {
        let lists = |name: &str, load: usize, words: &[&str]| {
            let listed = words.iter().map(|word| (*word).to_owned()).collect();
            let missing = Map::from([("containerd".to_owned(), "it is away".to_owned())]);
            Node { runtimes: Some(Arc::new(Runtimes { listed, missing })), ..node(name, load) }
        };
        let asks =
            |words: &[&'static str]| Wish { runtimes: words.iter().copied().collect(), ..Wish::default() };
        let none = |details: &str| Err(Reason::NoNodeFits { details: details.into() });
        let nodes = [lists("a", 0, &["process"]), lists("b", 1, &["oci", "process"]), node("c", 2)];
        for (wish, wanted) in [
            (asks(&[]), Ok("a".to_owned())),
            (asks(&["process"]), Ok("a".to_owned())),
            (asks(&["oci", "process"]), Ok("b".to_owned())),
            (
                asks(&["containerd"]),
                none(
                    "a: cannot use the runtime containerd: it is away; b: cannot use the runtime containerd: it is away; \
                     c: has not said yet whether it has the runtime containerd",
                ),
            ),
            // That is told by the node.
            (Wish { pin: Some("a".into()), ..asks(&["oci"]) }, Ok("a".to_owned())),
            (Wish { plugin: true, ..asks(&["oci"]) }, Ok("b".to_owned())),
        ] {
            assert_eq!(choose(&wish, &nodes, &[]), wanted, "{wish:?}");
        }
        // Whoever else has it, and whether that one is there: one that has it not is never taken.
        let away = [nodes[0].clone(), Node { ready: false, ..nodes[1].clone() }];
        assert_eq!(
            choose(&asks(&["oci"]), &away, &[]),
            none("a: does not allow the runtime oci; b: not ready")
        );
        assert_eq!(choose(&asks(&["oci"]), &nodes[..1], &[]), none("a: does not allow the runtime oci"));
        assert_eq!(
            choose(&asks(&["process"]), &[lists("a", 0, &[])], &[]),
            none("a: does not allow the runtime process")
        );
        assert_eq!(choose(&asks(&["process"]), &nodes[2..], &[]), Ok("c".into()), "it will have that");
    }

    /// Scenario B58.
    #[test]
    fn each_refused_node_has_its_reason() {
        let nodes = [
            Node { ready: false, ..node("a", 0) },
            Node { closed: Some(Closed::Cordoned), ..node("b", 0) },
            Node { closed: Some(Closed::Stopped), ..node("s", 0) },
            Node { closed: Some(Closed::Deleted), ..node("x", 0) },
            node("c", 0),
            node("d", 0),
        ];
        let mut volume = claim(&[("d", &[("zone", "1")])]);
        volume.topology = vec![segments(&[("zone", "2")])];
        let Err(Reason::NoNodeFits { details }) = choose(&Wish::default(), &nodes, &[volume]) else {
            panic!("nothing fits")
        };
        assert_eq!(
            details,
            "a: not ready; b: cordoned; s: taken down; x: being deleted; c: no healthy instance of plugin p"
        );
        let plugin = Wish { plugin: true, ..Wish::default() };
        assert_eq!(choose(&plugin, &nodes[1..2], &[]), Ok("b".into()), "plugins ignore cordons");
    }

    #[test]
    fn who_waits_for_what_is_not_to_be_had_there_does_not_stay() {
        let there = Awaited { exists: true, going: false, holds: false, unplaced: false, elsewhere: false };
        for (claim, leaves) in [
            (there, false),
            (Awaited { exists: false, ..there }, true),
            (Awaited { going: true, ..there }, true),
            (Awaited { unplaced: true, ..there }, true),
            (Awaited { elsewhere: true, ..there }, true),
            // What it has is taken down by its own end, wherever the claim goes.
            (Awaited { holds: true, going: true, ..there }, false),
            (Awaited { holds: true, elsewhere: true, ..there }, false),
        ] {
            assert_eq!(deprives(claim), leaves, "{claim:?}");
        }
    }

    #[test]
    fn who_has_to_leave_is_placed_anew_only_once_nothing_of_it_is_left() {
        for bits in 0..1_u16 << 9 {
            let bit = |n: u8| bits >> n & 1 == 1;
            let seen = Placed {
                plugin: bit(0),
                lost: bit(1),
                draining: bit(2),
                evicted: bit(3),
                ended: bit(4),
                refused: bit(5),
                deprived: bit(6),
                unfit: bit(7),
                closed: bit(8),
            };
            let leaves = seen.draining || seen.refused || seen.deprived || seen.unfit;
            match placed(seen) {
                Place::Anew => assert!(seen.lost || seen.evicted && seen.ended, "{seen:?}"),
                Place::Evict => assert!(leaves && !seen.evicted, "{seen:?}"),
                Place::EvictIfClosed => assert!(seen.closed && !leaves && !seen.evicted, "{seen:?}"),
                Place::Keep => {
                    assert!(
                        seen.plugin || !seen.lost && (seen.evicted && !seen.ended || !leaves && !seen.closed),
                        "{seen:?}"
                    );
                }
            }
            assert!(!seen.plugin || placed(seen) == Place::Keep, "plugins stay: {seen:?}");
        }
        assert_eq!(Closed::Drained.to_string(), "being drained");
    }

    /// Scenario A6.
    /// Obligation CO-CTRL-34.
    #[test]
    fn limits_count_what_is_there() {
        let mut volume = claim(&[("a", &[])]);
        volume.nodes[0].refused = true;
        assert!(claim_refusal(&node("a", 0), &volume).is_some_and(|why| why.contains("refused to attach")));
        volume.present_on.insert("a".into());
        assert_eq!(claim_refusal(&node("a", 0), &volume), None, "it is there already");
        let mut volume = claim(&[("a", &[])]);
        volume.nodes[0].max_volumes = 2;
        volume.nodes[0].volumes = 2;
        assert!(choose(&Wish::default(), &[node("a", 0)], &[volume.clone()]).is_err());
        volume.present_on.insert("a".into());
        assert!(choose(&Wish::default(), &[node("a", 0)], &[volume]).is_ok());
    }

    /// Scenarios A70, Q14.
    /// Obligation CO-IDEN-03.
    /// Obligation CO-CTRL-10.
    #[test]
    fn a_superset_of_the_segments_reaches() {
        let term = [segments(&[("zone", "1")])];
        assert!(reaches(&term, &segments(&[("zone", "1"), ("rack", "x")])));
        assert!(!reaches(&term, &segments(&[("rack", "x")])));
        assert!(!reaches(&term, &Segments::new()));
        assert!(reaches(&[], &Segments::new()));
    }

    /// Scenarios A70, Q14.
    /// Obligation CO-NODE-13.
    #[test]
    fn any_term_of_a_volume_will_do_and_each_is_wanted_whole() {
        let terms = [segments(&[("zone", "1"), ("rack", "x")]), segments(&[("zone", "2")])];
        let nowhere: &[(&str, &str)] = &[];
        for (told, fits) in [
            (&[("zone", "1"), ("rack", "x")][..], true),
            (&[("zone", "2")], true),
            (&[("zone", "2"), ("rack", "y")], true),
            (&[("zone", "1")], false),
            (&[("zone", "1"), ("rack", "y")], false),
            (&[("rack", "x")], false),
            (nowhere, false),
        ] {
            let anywhere = claim(&[("a", told)]);
            let bound = Claim { topology: terms.to_vec(), ..anywhere.clone() };
            let chosen = |claim: Claim| choose(&Wish::default(), &[node("a", 0)], &[claim]).is_ok();
            assert_eq!((chosen(bound), chosen(anywhere)), (fits, true), "{told:?}");
        }
    }

    /// Obligation CO-CTRL-06.
    #[test]
    fn what_is_asked_of_the_place_is_known_to_the_plugin_and_in_itself_sound() {
        let places = ["a", "b", "c"].map(|name| segments(&[("n", name), ("zone", "1")]));
        let none = segments(&[]);
        let terms: [&[Segments]; 4] =
            [&[], &places[1..2], &[segments(&[("zone", "1")])], &[segments(&[("zone", "2")])]];
        for (bits, allowed) in (0..8_usize).flat_map(|bits| terms.iter().map(move |term| (bits, term))) {
            let known: Vec<_> = (0..3).filter(|n| bits >> n & 1 == 1).map(|n| places[n].clone()).collect();
            let all: Vec<_> = known.iter().rev().chain([&none]).chain(&known).cloned().collect();
            for selected in known.iter().chain([&none]).map(Some).chain([None]) {
                let (requisite, preferred) = requirement(allowed, selected, &all);
                assert!(requisite.iter().all(|one| known.contains(one)), "{requisite:?}");
                assert!(preferred.iter().all(|one| requisite.contains(one)), "{preferred:?}");
                assert_eq!(requisite.is_empty(), preferred.is_empty());
                let once: BTreeSet<_> = preferred.iter().collect();
                assert_eq!(once.len(), preferred.len(), "each once: {preferred:?}");
                if let Some(selected) = selected.filter(|selected| !selected.is_empty()) {
                    assert_eq!(preferred.first(), Some(selected), "the best is first");
                }
            }
        }
    }

    /// Obligation CO-IDEN-03.
    #[test]
    fn the_first_consumers_node_is_all_that_is_asked_for() {
        let all = [segments(&[("n", "a")]), segments(&[("n", "b")]), Segments::new()];
        let (requisite, preferred) = requirement(&[], Some(&all[1]), &all);
        assert_eq!((requisite.len(), &preferred), (1, &vec![all[1].clone()]));
        let (requisite, _) = requirement(&[segments(&[("n", "a")])], None, &all);
        assert_eq!(requisite, [all[0].clone()]);
        assert_eq!(requirement(&[], None, &[]), (vec![], vec![]));
    }
}
