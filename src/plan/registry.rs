//! Which instance of a plugin serves, and the counts that a Plugin shows.
//!
//! Counts are computed from the list at hand, never kept up by adding and subtracting.
use std::collections::{BTreeMap, BTreeSet};

use crate::api::meta::Time;
use crate::api::plugin::{Health, Role};

/// One instance as it is known now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// What tells it from all others.
    pub id: String,
    /// Which services it has.
    pub role: Role,
    /// Its node.
    pub node: String,
    /// When it was made: newer serves before older, however often either was unwell since.
    pub born: Option<Time>,
    /// Whether it may be called, and since when, which tells the newer of two that were made in one second.
    pub healthy_since: Option<Time>,
    /// What the driver calls the node.
    pub node_id: String,
}

/// Which of the two services a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Controller calls.
    Controller,
    /// Node calls.
    Node,
}

impl Service {
    fn of(self, role: Role) -> bool {
        match self {
            Self::Controller => role.controller(),
            Self::Node => role.node(),
        }
    }
}

/// The instance that serves on a node: the newest healthy one. Older ones stay listed and take over when it goes.
pub fn serving<'a>(instances: &'a [Instance], service: Service, node: &str) -> Option<&'a Instance> {
    instances
        .iter()
        .filter(|i| i.node == node && service.of(i.role) && i.healthy_since.is_some())
        .max_by(|a, b| age(a).cmp(&age(b)))
}

/// What tells the newer of two.
fn age(instance: &Instance) -> (Option<Time>, Option<Time>, &str) {
    (instance.born, instance.healthy_since, &instance.id)
}

/// One process of a plugin on a node that has the service, as far as a call about one volume goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// It was admitted, is well, and shall go on.
    pub well: bool,
    /// It is run here, so that its end is seen; or it was not asked yet how it is.
    pub awaited: bool,
    /// It was asked about the volume and may be at work on that still.
    pub owes: bool,
}

impl Process {
    /// Nobody else is asked. The end of what something else runs is not seen: it is waited for only while it is well.
    fn holds(self) -> bool {
        self.owes && (self.awaited || self.well)
    }
}

/// Who makes a call about a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The one that was asked before: another one knows nothing of that.
    Again(usize),
    /// Nobody, before the one that was asked before is well or gone.
    Nobody,
    /// The one that serves.
    Serving,
}

/// Whom to ask about a volume.
pub fn asked(processes: &[Process]) -> Asked {
    match processes.iter().position(|process| process.holds()) {
        Some(at) if processes[at].well => Asked::Again(at),
        Some(_) => Asked::Nobody,
        None => Asked::Serving,
    }
}

/// Whether the one that was chosen may be asked still, now that the turn of the call has come: it is none that shall end,
/// and nobody was left at work on the volume meanwhile. Of what [`asked`] chooses on the same facts this is always so.
pub fn may_ask(processes: &[Process], chosen: usize) -> bool {
    let of = processes[chosen];
    of.well && (of.owes || !processes.iter().any(|process| process.holds()))
}

/// The instance that serves on each node that has one, by the nodes' names.
pub fn each_serving(instances: &[Instance], service: Service) -> BTreeMap<&str, &Instance> {
    let mut all = BTreeMap::new();
    for instance in instances.iter().filter(|i| service.of(i.role) && i.healthy_since.is_some()) {
        let known = all.entry(instance.node.as_str()).or_insert(instance);
        if age(known) <= age(instance) {
            *known = instance;
        }
    }
    all
}

/// Controllers and nodes, healthy of wanted.
pub fn health(instances: &[Instance]) -> (Health, Health) {
    let count = |service: Service| {
        let of_it = || instances.iter().filter(move |i| service.of(i.role));
        Health {
            healthy: u32::try_from(of_it().filter(|i| i.healthy_since.is_some()).count()).unwrap_or(u32::MAX),
            expected: u32::try_from(of_it().count()).unwrap_or(u32::MAX),
        }
    };
    (count(Service::Controller), count(Service::Node))
}

/// Instances whose node id another node reported before them: (id, the node that had it first).
pub fn duplicate_node_ids(instances: &[Instance]) -> Vec<(&str, &str)> {
    let mut first: BTreeMap<&str, &Instance> = BTreeMap::new();
    let mut nodes: Vec<_> = instances.iter().filter(|i| i.role.node() && !i.node_id.is_empty()).collect();
    let order =
        |i: &Instance| (i.healthy_since.is_none(), i.born, i.healthy_since, i.node.clone(), i.id.clone());
    nodes.sort_by_key(|instance| order(instance));
    let mut duplicates = Vec::new();
    for instance in nodes {
        match first.get(instance.node_id.as_str()) {
            Some(holder) if holder.node != instance.node => {
                duplicates.push((instance.id.as_str(), holder.node.as_str()));
            }
            Some(_) => {}
            None => {
                first.insert(&instance.node_id, instance);
            }
        }
    }
    duplicates
}

/// How a capability begins that is the plugin's, whoever of its instances tells it.
const PLUGIN_WIDE: &str = "plugin/";

/// What one instance tells of its plugin.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// The driver's version; others may tell other things.
    pub version: &'a str,
    /// It was asked for what controllers can do.
    pub controller: bool,
    /// Its capabilities, such as `controller/CREATE_DELETE_VOLUME`.
    pub words: &'a [String],
}

/// What all controllers of a plugin can do, and all nodes, of what each of them tells. What is said of the whole plugin holds
/// when those of both kinds say it (CO-IDEN-04).
pub fn in_common(controllers: &[&[String]], nodes: &[&[String]]) -> [BTreeSet<String>; 2] {
    let of_all = |told: &[&[String]]| -> BTreeSet<String> {
        let Some((first, others)) = told.split_first() else { return BTreeSet::new() };
        first.iter().filter(|word| others.iter().all(|other| other.contains(word))).cloned().collect()
    };
    let holds = |word: &String, told: &[&[String]]| {
        !word.starts_with(PLUGIN_WIDE) || told.iter().all(|one| one.contains(word))
    };
    let (mut of_controllers, mut of_nodes) = (of_all(controllers), of_all(nodes));
    of_controllers.retain(|word| holds(word, nodes));
    of_nodes.retain(|word| holds(word, controllers));
    [of_controllers, of_nodes]
}

/// Capabilities of the plugin or of its controllers that some instances of one version tell and others do not, and that
/// version. What a node can do is a matter of the node. CSI wants the same of all (CO-IDEN-04).
pub fn disagreement(told: &[Told<'_>]) -> Option<(String, BTreeSet<String>)> {
    let counts = |one: &Told<'_>, word: &str| {
        let of_controllers = word.starts_with("controller/") || word.starts_with("group-controller/");
        word.starts_with(PLUGIN_WIDE) || one.controller && of_controllers
    };
    told.iter().find_map(|one| {
        let of_version = told.iter().filter(|other| other.version == one.version);
        let lacks = |word: &&String| {
            of_version.clone().any(|other| counts(other, word) && !other.words.contains(word))
        };
        let said = one.words.iter().filter(|word| counts(one, word));
        let words: BTreeSet<String> = said.filter(lacks).cloned().collect();
        (!words.is_empty()).then(|| (one.version.to_owned(), words))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Obligation CO-IDEN-04.
    #[test]
    fn instances_of_one_version_that_tell_different_things_are_found() {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let full = words(&["plugin/CONTROLLER_SERVICE", "controller/CREATE_DELETE_VOLUME", "node/STAGE"]);
        let less = words(&["plugin/CONTROLLER_SERVICE", "controller/OTHER"]);
        let node = words(&["plugin/CONTROLLER_SERVICE"]);
        let bare = words(&[]);
        let one = |version, controller, words| Told { version, controller, words };
        for (told, wanted) in [
            (vec![], None),
            (vec![one("1", true, &full[..]), one("1", true, &full[..])], None),
            // It was not asked what controllers can do, and what a node can do is its own matter.
            (vec![one("1", true, &full[..]), one("1", false, &node[..])], None),
            (vec![one("1", true, &full[..]), one("2", true, &less[..])], None),
            (
                vec![one("1", true, &full[..]), one("1", true, &less[..])],
                Some(("1", &["controller/CREATE_DELETE_VOLUME"][..])),
            ),
            (
                vec![one("0", true, &less[..]), one("1", false, &bare[..]), one("1", true, &full[..])],
                Some(("1", &["plugin/CONTROLLER_SERVICE"])),
            ),
        ] {
            let found = disagreement(&told);
            let wanted = wanted.map(|(version, of)| (version.to_owned(), words(of).into_iter().collect()));
            assert_eq!(found, wanted, "{told:?}");
        }
    }

    /// Obligation CO-IDEN-04.
    #[test]
    fn what_is_the_plugins_is_what_those_of_both_services_tell() {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let both = words(&["plugin/A", "plugin/B", "controller/C", "node/N"]);
        let one = words(&["plugin/A", "controller/D", "node/N"]);
        let none = words(&[]);
        let (both, one, none) = (&both[..], &one[..], &none[..]);
        for (controllers, nodes, of_controllers, of_nodes) in [
            (vec![], vec![], &[][..], &[][..]),
            (vec![both], vec![], &["plugin/A", "plugin/B", "controller/C", "node/N"], &[]),
            (vec![both, one], vec![], &["plugin/A", "node/N"], &[]),
            (
                vec![both],
                vec![one],
                &["plugin/A", "controller/C", "node/N"],
                &["plugin/A", "controller/D", "node/N"],
            ),
            (
                vec![one],
                vec![both],
                &["plugin/A", "controller/D", "node/N"],
                &["plugin/A", "controller/C", "node/N"],
            ),
            (vec![both], vec![both, none], &["controller/C", "node/N"], &[]),
        ] {
            let wanted = [of_controllers, of_nodes].map(|list| words(list).into_iter().collect());
            assert_eq!(in_common(&controllers, &nodes), wanted, "{controllers:?} {nodes:?}");
        }
    }

    fn instance(id: &str, role: Role, node: &str, since: Option<i64>) -> Instance {
        Instance {
            id: id.into(),
            role,
            node: node.into(),
            born: None,
            healthy_since: since.map(|s| Time(jiff::Timestamp::from_second(s).expect("in range"))),
            node_id: format!("id-{node}"),
        }
    }

    fn serves(list: &[Instance]) -> Option<&str> {
        let one = serving(list, Service::Node, "n");
        assert_eq!(each_serving(list, Service::Node).get("n").copied(), one, "of all nodes or of one");
        one.map(|i| i.id.as_str())
    }

    #[test]
    fn an_older_one_that_was_unwell_for_a_moment_stays_the_older_one() {
        let born = |second| Some(Time(jiff::Timestamp::from_second(second).expect("in range")));
        let older = Instance { born: born(1), ..instance("b", Role::Node, "n", Some(9)) };
        let newer = Instance { born: born(2), ..instance("a", Role::Node, "n", Some(3)) };
        assert_eq!(serves(&[older.clone(), newer.clone()]), Some("a"));
        assert_eq!(serves(&[newer.clone(), older.clone()]), Some("a"));
        assert_eq!(serves(&[Instance { healthy_since: None, ..newer }, older]), Some("b"));
    }

    #[test]
    fn the_newest_healthy_one_serves_and_older_ones_take_over() {
        let a = instance("a", Role::Node, "n", Some(1));
        let b = instance("b", Role::Monolith, "n", Some(2));
        assert_eq!(serves(&[a.clone(), b.clone()]), Some("b"));
        assert_eq!(serves(&[b, a.clone()]), Some("b"));
        let sick = instance("b", Role::Monolith, "n", None);
        assert_eq!(serves(&[a.clone(), sick]), Some("a"));
        assert_eq!(
            serves(&[instance("c", Role::Controller, "n", Some(9)), instance("d", Role::Node, "m", Some(9))]),
            None
        );
        assert_eq!(serves(&[]), None);
    }

    const FINE: Process = Process { well: true, awaited: true, owes: false };
    const ENDS: Process = Process { well: false, awaited: true, owes: false };
    const AT_WORK: Process = Process { owes: true, ..FINE };
    const ENDS_AT_WORK: Process = Process { owes: true, ..ENDS };
    const ELSEWHERE: Process = Process { awaited: false, ..AT_WORK };
    const LOST_ELSEWHERE: Process = Process { awaited: false, ..ENDS_AT_WORK };

    #[test]
    fn who_was_asked_about_a_volume_is_asked_on_and_nobody_else() {
        for (processes, wanted, may_ask_the_first) in [
            ([FINE, FINE], Asked::Serving, true),
            ([ENDS, FINE], Asked::Serving, false),
            ([FINE, AT_WORK], Asked::Again(1), false),
            ([AT_WORK, FINE], Asked::Again(0), true),
            ([FINE, ENDS_AT_WORK], Asked::Nobody, false),
            ([ENDS_AT_WORK, FINE], Asked::Nobody, false),
            ([FINE, ELSEWHERE], Asked::Again(1), false),
            ([FINE, LOST_ELSEWHERE], Asked::Serving, true),
            ([LOST_ELSEWHERE, FINE], Asked::Serving, false),
            ([AT_WORK, ENDS_AT_WORK], Asked::Again(0), true),
        ] {
            assert_eq!(asked(&processes), wanted, "{processes:?}");
            assert_eq!(may_ask(&processes, 0), may_ask_the_first, "{processes:?}");
        }
    }

    /// Else a call that is turned away would be made again at once, and turned away, for ever.
    #[test]
    fn who_is_chosen_is_let_through_if_nothing_changes() {
        let bits = [false, true];
        let each = bits.map(|well| bits.map(|awaited| bits.map(|owes| Process { well, awaited, owes })));
        let each = each.as_flattened().as_flattened();
        for (a, b) in each.iter().flat_map(|a| each.iter().map(move |b| (*a, *b))) {
            match asked(&[a, b]) {
                Asked::Again(at) => assert!(may_ask(&[a, b], at), "{a:?} {b:?}"),
                Asked::Serving => {
                    assert!((0..2).all(|at| may_ask(&[a, b], at) == [a, b][at].well), "{a:?} {b:?}");
                }
                Asked::Nobody => {}
            }
        }
    }

    #[test]
    fn counts_come_from_the_list() {
        let list = [
            instance("a", Role::Monolith, "n", Some(1)),
            instance("b", Role::Node, "m", None),
            instance("c", Role::Controller, "m", Some(1)),
        ];
        let (controllers, nodes) = health(&list);
        assert_eq!((controllers.healthy, controllers.expected), (2, 2));
        assert_eq!((nodes.healthy, nodes.expected), (1, 2));
        assert_eq!(each_serving(&list, Service::Controller).into_keys().collect::<Vec<_>>(), ["m", "n"]);
    }

    #[test]
    fn one_node_id_belongs_to_one_node() {
        let mut late = instance("b", Role::Node, "m", Some(2));
        late.node_id = "id-n".into();
        let list = [late, instance("a", Role::Node, "n", Some(1)), instance("a2", Role::Node, "n", Some(3))];
        assert_eq!(duplicate_node_ids(&list), [("b", "n")]);
    }
}
