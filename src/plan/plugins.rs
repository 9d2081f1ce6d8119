//! Where a plugin's instances run, and when one of them may stop.
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Reason;
use crate::api::allocation::CsiPlugin;
use crate::api::meta::Map;
use crate::api::plugin::{Placement, Role};

/// One node, as far as it matters for plugins. Cordons do not.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its lease is renewed and it was not taken down.
    pub ready: bool,
    /// Its labels.
    pub labels: Map,
    /// It lacks the runtime of the instance, which has not begun there.
    pub lacks: bool,
}

/// The nodes that shall have an instance. `present` are those that have one, and whether that one stays; so many replicas
/// stay where they are.
pub fn wanted_nodes(
    placement: &Placement,
    nodes: &[Node],
    present: &BTreeMap<String, bool>,
) -> BTreeSet<String> {
    let named = |node: &Node| node.name.clone();
    if let Some(replicas) = placement.replicas {
        let mut order: Vec<_> = nodes.iter().collect();
        // A lost node's replica goes elsewhere only while there is an elsewhere, and is not wanted back from there; and so does
        // one that cannot begin.
        order.sort_by_key(|n| {
            let there = present.get(&n.name);
            (!n.ready, n.lacks, there != Some(&true), there.is_none(), n.name.clone())
        });
        let usable = order.into_iter().filter(|n| n.ready || present.contains_key(&n.name));
        return usable.take(replicas as usize).map(named).collect();
    }
    let selector = placement.node_selector.as_ref();
    let fits = |node: &&Node| {
        selector.is_none_or(|labels| labels.iter().all(|(k, v)| node.labels.get(k) == Some(v)))
    };
    nodes.iter().filter(fits).map(named).collect()
}

/// What is to be said where the two sides of a driver do not know the same access modes: whether the controllers and the nodes
/// know the newer ones, absent where there is no such side (CO-GEN-18).
pub fn modes_differ(controllers: Option<bool>, nodes: Option<bool>) -> Option<String> {
    let (knows, lacks) = match (controllers?, nodes?) {
        (true, false) => ("controller", "node"),
        (false, true) => ("node", "controller"),
        (true, true) | (false, false) => return None,
    };
    Some(format!(
        "its {knows} service has SINGLE_NODE_MULTI_WRITER and its {lacks} service has not: each is asked in the access modes that \
         it knows, and they may not agree on who may write; its vendor has to say why"
    ))
}

/// Why an instance shall stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Going {
    /// It shall not.
    No,
    /// Its spec changed: it is started again with the new one, and mounts outlive that.
    Replaced,
    /// Its node was taken down.
    NodeDown,
    /// Its allocation or its plugin is being deleted.
    Deleted,
}

/// One instance, and what needs it. Lists name volumes.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Why it shall stop.
    pub going: Going,
    /// Its services.
    pub role: Role,
    /// Volumes that its node may still have staged or published.
    pub on_node: BTreeSet<String>,
    /// Volumes whose controller calls it makes.
    pub hosted: BTreeSet<String>,
    /// Volumes that still need somebody to make their controller calls.
    pub unhosted: BTreeSet<String>,
    /// Another healthy instance that stays serves the node as well.
    pub other_node_here: bool,
    /// Another healthy instance that stays makes controller calls here as well.
    pub other_controller_here: bool,
    /// Another healthy instance makes controller calls somewhere.
    pub other_controller: bool,
    /// The healthy instances of the node service that are still there beside it, also those that are about to stop.
    pub node_services: BTreeSet<String>,
}

/// Whether the instance may stop; if it shall but may not, why.
pub fn released(facts: &Facts) -> Result<bool, Reason> {
    let mut by: BTreeSet<&String> = BTreeSet::new();
    match facts.going {
        Going::No => return Ok(false),
        Going::Replaced => return Ok(true),
        Going::NodeDown if facts.on_node.is_empty() && facts.role == Role::Controller => {
            // What is taken down goes in mirror order: whoever makes the controller calls goes last.
            return match facts.node_services.first() {
                Some(first) => Err(Reason::InUse { by: format!("the node service {first}") }),
                None => Ok(true),
            };
        }
        Going::NodeDown => by.extend(&facts.on_node),
        Going::Deleted => {
            if facts.role.node() && !facts.other_node_here {
                by.extend(&facts.on_node);
            }
            if facts.role.controller() && !facts.other_controller_here {
                by.extend(&facts.hosted);
            }
            if facts.role.controller() && !facts.other_controller_here && !facts.other_controller {
                by.extend(&facts.unhosted);
            }
        }
    }
    if by.is_empty() { Ok(true) } else { Err(in_use(by)) }
}

/// The services that an instance gives up when its task comes to serve in another role, or another plugin; none if the
/// plugin loses nothing by it.
pub fn given_up(from: Role, to: Role, same_plugin: bool) -> Option<Role> {
    let controller = from.controller() && !(same_plugin && to.controller());
    let node = from.node() && !(same_plugin && to.node());
    match (controller, node) {
        (true, true) => Some(Role::Monolith),
        (true, false) => Some(Role::Controller),
        (false, true) => Some(Role::Node),
        (false, false) => None,
    }
}

/// The csiPlugin block by which a task serves: the one that is written, unless volumes may need what `kept`, the one that
/// it was started with, says. That is so until the controllers admit it for what is written. Where nothing is kept, it
/// serves as it is admitted.
pub fn in_force<'a>(
    written: &'a CsiPlugin,
    kept: Option<&'a CsiPlugin>,
    admitted: Option<(&str, Role)>,
) -> Cow<'a, CsiPlugin> {
    let wanted = (written.plugin_name.as_str(), written.role);
    match (kept, admitted.filter(|admitted| *admitted != wanted)) {
        (Some(kept), _) if (kept.plugin_name.as_str(), kept.role) != wanted && admitted != Some(wanted) => {
            Cow::Borrowed(kept)
        }
        (None, Some((plugin, role))) => {
            Cow::Owned(CsiPlugin { plugin_name: plugin.to_owned(), role, ..written.clone() })
        }
        (Some(_) | None, _) => Cow::Borrowed(written),
    }
}

/// Whether a process that was started by one block has to make room for one that is started by the other. How long it may
/// take to be ready is nothing that it was told.
pub fn outdated(started: &CsiPlugin, wanted: &CsiPlugin) -> bool {
    let told = |block: &CsiPlugin| CsiPlugin { health_timeout: None, ..block.clone() };
    told(started) != told(wanted)
}

/// The driver that the volumes of a plugin are of: the one that was there when the first of them came, until another one
/// asks for its place when there is no volume any more. To that one the ids of volumes mean nothing, and it would answer
/// OK to their deletion, as CSI wants.
pub fn driver_of_volumes(known: &str, seen: Option<&str>, has_volumes: bool, refused: bool) -> String {
    match (known, has_volumes) {
        ("", true) => seen.unwrap_or_default().to_owned(),
        (_, false) if refused => String::new(),
        (known, _) => known.to_owned(),
    }
}

/// How many volumes that hold a plugin are named.
const NAMED: usize = 5;

/// The sentence that names volumes which hold a plugin, of many a few and how many more there are. Which are named has
/// nothing to do with their order, and of many more only a round number is told: a thousand that go one after the other
/// change it some fifty times.
pub fn in_use<'a>(volumes: impl IntoIterator<Item = &'a String>) -> Reason {
    let (mut named, mut count) = (BTreeSet::new(), 0_usize);
    for volume in volumes {
        count += 1;
        named.insert((scattered(volume), volume));
        if named.len() > NAMED {
            named.pop_first();
        }
    }
    let mut names: Vec<&str> = named.into_iter().map(|(_, volume)| volume.as_str()).collect();
    names.sort_unstable();
    let (kind, names) = (if names.len() == 1 { "volume" } else { "volumes" }, names.join(", "));
    Reason::InUse { by: format!("{kind} {names}{}", others(count.saturating_sub(NAMED))) }
}

/// How many more there are: up to ten all of them, beyond that at least how many.
fn others(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " and 1 other".to_owned(),
        2..=10 => format!(" and {count} others"),
        _ => {
            let power = 10_usize.pow(count.ilog10());
            let steps = [5, 2, 1].map(|step| step * power);
            let round = steps.into_iter().find(|step| *step <= count).unwrap_or(power);
            format!(" and at least {round} others")
        }
    }
}

/// A number that says nothing about the order of the names.
fn scattered(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_that_know_other_modes_are_told_and_no_others() {
        for controllers in [None, Some(false), Some(true)] {
            for nodes in [None, Some(false), Some(true)] {
                let told = modes_differ(controllers, nodes);
                let differ = matches!((controllers, nodes), (Some(a), Some(b)) if a != b);
                assert_eq!(told.is_some(), differ, "{controllers:?} {nodes:?}");
            }
        }
        assert!(modes_differ(Some(true), Some(false)).is_some_and(|told| {
            told.starts_with(
                "its controller service has SINGLE_NODE_MULTI_WRITER and its node service has not",
            )
        }));
        assert!(modes_differ(Some(false), Some(true)).is_some_and(|told| {
            told.starts_with(
                "its node service has SINGLE_NODE_MULTI_WRITER and its controller service has not",
            )
        }));
    }
    use crate::api::plugin::Nothing;

    fn nodes() -> Vec<Node> {
        ["a", "b", "c"]
            .iter()
            .map(|n| Node {
                name: (*n).into(),
                ready: *n != "b",
                labels: Map::from([("on".into(), (*n).into())]),
                lacks: false,
            })
            .collect()
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn instances_go_where_the_placement_says() {
        let none = BTreeMap::new();
        let every = Placement { every_node: Some(Nothing {}), ..Placement::default() };
        for placement in [every, Placement::default()] {
            assert_eq!(wanted_nodes(&placement, &nodes(), &none), set(&["a", "b", "c"]));
        }
        let selector = Some(Map::from([("on".into(), "b".into())]));
        let placement = Placement { node_selector: selector, ..Placement::default() };
        assert_eq!(wanted_nodes(&placement, &nodes(), &none), set(&["b"]));
    }

    #[test]
    fn replicas_stay_and_leave_lost_nodes_for_ready_ones() {
        let of = |n, present: &[(&str, bool)]| {
            let placement = Placement { replicas: Some(n), ..Placement::default() };
            let present = present.iter().map(|(node, stays)| ((*node).to_owned(), *stays)).collect();
            wanted_nodes(&placement, &nodes(), &present)
        };
        let replicas = |n, present: &[&str]| {
            let staying: Vec<_> = present.iter().map(|node| (*node, true)).collect();
            of(n, &staying)
        };
        assert_eq!(replicas(1, &[]), set(&["a"]));
        assert_eq!(replicas(1, &["c"]), set(&["c"]), "it stays where it is");
        assert_eq!(replicas(1, &["b"]), set(&["a"]), "b is lost");
        assert_eq!(replicas(3, &["b"]), set(&["a", "b", "c"]), "nowhere else to go");
        assert_eq!(replicas(3, &[]), set(&["a", "c"]), "none is begun on a lost node");
        assert_eq!(replicas(0, &["a"]), set(&[]));
        assert_eq!(of(1, &[("a", false), ("c", true)]), set(&["c"]), "a is back, and c has it");
        assert_eq!(of(1, &[("c", false)]), set(&["c"]), "it is made again where it was");
        assert_eq!(of(2, &[("b", false), ("c", true)]), set(&["a", "c"]));
    }

    #[test]
    fn replicas_begin_where_their_runtime_is() {
        let of = |n, lacking: &[&str], present: &[&str]| {
            let placement = Placement { replicas: Some(n), ..Placement::default() };
            let present = present.iter().map(|node| ((*node).to_owned(), true)).collect();
            let mut nodes = nodes();
            for node in &mut nodes {
                node.lacks = lacking.contains(&node.name.as_str());
            }
            wanted_nodes(&placement, &nodes, &present)
        };
        assert_eq!(of(1, &["a"], &[]), set(&["c"]));
        assert_eq!(of(1, &["a"], &["a"]), set(&["c"]), "it has not begun, and leaves");
        assert_eq!(of(1, &["a", "c"], &[]), set(&["a"]), "it says there what is missing");
        assert_eq!(of(1, &["a", "b", "c"], &["c"]), set(&["c"]));
        assert_eq!(of(2, &["a"], &[]), set(&["a", "c"]));
        assert_eq!(of(1, &["a"], &["b"]), set(&["c"]), "b is lost");
    }

    /// Obligation CO-PLUG-20.
    #[test]
    fn nothing_that_a_volume_needs_stops() {
        for going in [Going::No, Going::Replaced, Going::NodeDown, Going::Deleted] {
            for role in [Role::Controller, Role::Node, Role::Monolith] {
                for bits in 0..128_u8 {
                    let some = |bit: u8| if bits & bit == 0 { set(&[]) } else { set(&["v"]) };
                    let facts = Facts {
                        going,
                        role,
                        on_node: some(1),
                        hosted: some(2),
                        unhosted: some(4),
                        other_node_here: bits & 8 != 0,
                        other_controller_here: bits & 64 != 0,
                        other_controller: bits & 16 != 0,
                        node_services: some(32),
                    };
                    let may = released(&facts);
                    let idle = !(bits & 1 != 0 || bits & 2 != 0 || bits & 4 != 0);
                    match going {
                        Going::No => assert_eq!(may, Ok(false)),
                        Going::Replaced => assert_eq!(may, Ok(true)),
                        Going::NodeDown => {
                            let last = role != Role::Controller || bits & 32 == 0;
                            assert_eq!(may.is_ok(), bits & 1 == 0 && last, "{facts:?}");
                        }
                        Going::Deleted if idle => assert_eq!(may, Ok(true)),
                        Going::Deleted => {
                            let node = role.node() && bits & 1 != 0 && bits & 8 == 0;
                            let alone = role.controller() && bits & 64 == 0;
                            let host = alone && (bits & 2 != 0 || bits & 4 != 0 && bits & 16 == 0);
                            assert_eq!(may.is_err(), node || host, "{facts:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn volumes_keep_the_driver_that_they_came_from() {
        let driver = driver_of_volumes;
        for refused in [false, true] {
            assert_eq!(driver("", Some("a"), false, refused), "", "nobody is bound to it yet");
            assert_eq!(driver("", None, true, refused), "", "none was seen");
            assert_eq!(driver("", Some("a"), true, refused), "a");
            assert_eq!(driver("a", Some("b"), true, refused), "a", "it is not replaced");
            assert_eq!(driver("a", None, true, refused), "a");
        }
        assert_eq!(driver("a", Some("a"), false, false), "a", "the last one is gone, and it is here still");
        assert_eq!(driver("a", Some("a"), false, true), "", "the last one is gone, and another is here");
    }

    #[test]
    fn the_sentence_names_some_and_seldom_changes() {
        let many: Vec<_> = (0..1000).map(|i| format!("v{i}")).collect();
        let sentence = |from: usize| in_use(&many[from..]).to_string();
        assert!(sentence(0).ends_with(" and at least 500 others"), "{}", sentence(0));
        for (others, told) in [
            (1, " and 1 other"),
            (10, " and 10 others"),
            (19, " and at least 10 others"),
            (20, " at least 20 others"),
        ] {
            assert!(sentence(995 - others).ends_with(told), "{}", sentence(995 - others));
        }
        assert_eq!(sentence(999), "still in use by volume v999");
        assert_eq!(sentence(995), "still in use by volumes v995, v996, v997, v998, v999");
        let different: BTreeSet<_> = (0..1000).map(sentence).collect();
        assert!(different.len() < 70, "{different:?}");
        let backwards: BTreeSet<_> = (1..=1000).map(|to| in_use(&many[..to]).to_string()).collect();
        assert!(backwards.len() < 70, "{backwards:?}");
    }

    fn block(plugin: &str, role: Role) -> CsiPlugin {
        CsiPlugin {
            plugin_name: plugin.to_owned(),
            role,
            mount_dir: String::new(),
            stage_publish_base_dir: String::new(),
            health_timeout: None,
        }
    }

    #[test]
    fn a_changed_block_gives_up_what_nobody_else_of_the_task_does() {
        use Role::{Controller, Monolith, Node};
        for (from, to, same, lost) in [
            (Monolith, Monolith, true, None),
            (Monolith, Node, true, Some(Controller)),
            (Monolith, Controller, true, Some(Node)),
            (Node, Monolith, true, None),
            (Node, Controller, true, Some(Node)),
            (Controller, Node, true, Some(Controller)),
            (Controller, Controller, false, Some(Controller)),
            (Node, Monolith, false, Some(Node)),
            (Monolith, Node, false, Some(Monolith)),
        ] {
            assert_eq!(given_up(from, to, same), lost, "{from:?} to {to:?}, same plugin: {same}");
        }
    }

    #[test]
    fn a_changed_block_is_in_force_once_it_is_admitted() {
        use Role::{Monolith, Node};
        let (p, q, node_of_p) = (block("p", Monolith), block("q", Monolith), block("p", Node));
        let elsewhere = CsiPlugin { mount_dir: "/csi".to_owned(), ..p.clone() };
        for (written, kept, admitted, in_force_is) in [
            (&q, None, None, &q),
            (&q, None, Some(("q", Monolith)), &q),
            (&q, None, Some(("p", Monolith)), &p),
            (&q, None, Some(("p", Node)), &node_of_p),
            (&q, Some(&p), None, &p),
            (&q, Some(&p), Some(("p", Monolith)), &p),
            (&q, Some(&p), Some(("q", Monolith)), &q),
            (&q, Some(&p), Some(("q", Node)), &p),
            (&node_of_p, Some(&p), Some(("p", Monolith)), &p),
            (&node_of_p, Some(&p), Some(("p", Node)), &node_of_p),
            // Nobody loses anything by another path.
            (&elsewhere, Some(&p), None, &elsewhere),
        ] {
            assert_eq!(*in_force(written, kept, admitted), *in_force_is, "{written:?} {kept:?} {admitted:?}");
        }
    }

    #[test]
    fn a_process_makes_room_for_whatever_it_was_told_otherwise() {
        let p = block("p", Role::Monolith);
        for (other, expected) in [
            (p.clone(), false),
            (CsiPlugin { health_timeout: Some("1m".into()), ..p.clone() }, false),
            (block("q", Role::Monolith), true),
            (block("p", Role::Node), true),
            (CsiPlugin { mount_dir: "/csi".into(), ..p.clone() }, true),
            (CsiPlugin { stage_publish_base_dir: "/local".into(), ..p.clone() }, true),
        ] {
            assert_eq!(outdated(&p, &other), expected, "{other:?}");
        }
    }
}
