//! Instances of a plugin are replaced by those of a changed spec: node by node, and never all at once.
//!
//! ```text
//!   maxSurge       former ──────────────┬─ former ───────────▶ (stops)
//!                                       └─ next ─ healthy ─ settled ──────▶
//!   maxUnavailable former ─▶ (stops) ─ (nothing) ─ next ─ healthy ─ settled ─▶
//! ```
//! A moment of health is not enough: a driver that gets ready and then ends, again and again, would be everywhere before
//! anybody knew.
//!
//! A spec that never gets healthy is held where it was begun: with `maxSurge` the former ones serve on, there and on all
//! other nodes. To go back is to want the former spec, which is there still.
use std::collections::BTreeMap;

/// How much may be changed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// On so many nodes both run, the former one until the next one is healthy.
    Surge(u32),
    /// On so many nodes the former one stops before the next one is made.
    Unavailable(u32),
}

impl Pace {
    /// From what a person wrote; one node at a time, with both running, if nothing.
    pub fn of(max_surge: Option<u32>, max_unavailable: Option<u32>) -> Self {
        match (max_surge.unwrap_or(0), max_unavailable.unwrap_or(0)) {
            (0, 0) if max_surge.is_none() && max_unavailable.is_none() => Self::Surge(1),
            (0, unavailable) => Self::Unavailable(unavailable.max(1)),
            (surge, _) => Self::Surge(surge),
        }
    }

    fn nodes(self) -> usize {
        match self {
            Self::Surge(nodes) | Self::Unavailable(nodes) => nodes as usize,
        }
    }
}

/// One instance that was made for an entry on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Its allocation.
    pub name: String,
    /// It is of the spec that is wanted.
    pub current: bool,
    /// It may be called.
    pub healthy: bool,
    /// It has been so for long enough, and is none that ends soon after each start.
    pub settled: bool,
    /// It ends soon after each start.
    pub loops: bool,
    /// Its end was asked for.
    pub leaving: bool,
}

/// What there is of one entry on one node where it is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnNode {
    /// The node's lease is renewed and it was not taken down.
    pub ready: bool,
    /// The allocation that is wanted, by name.
    pub name: String,
    /// What was made so far.
    pub made: Vec<Made>,
}

/// What to do now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Steps {
    /// The nodes to make the wanted one on.
    pub make: Vec<String>,
    /// The allocations whose end is asked for.
    pub stop: Vec<String>,
    /// On how many nodes a change is begun by this.
    pub begun: usize,
}

/// The instances that stay, of the spec that is wanted or of a former one.
fn staying(on: &OnNode, current: bool) -> impl Iterator<Item = &Made> {
    on.made.iter().filter(move |made| made.current == current && !made.leaving)
}

/// Whether the change to this spec was begun on a node and is not through, so that it takes room: also while the node is
/// away, for it may be away because of it.
fn changing(pace: Pace, on: &OnNode) -> bool {
    let former = match pace {
        // Also one whose end somebody asked for, as long as it serves on.
        Pace::Surge(_) => on.made.iter().any(|made| !made.current && (!made.leaving || made.healthy)),
        Pace::Unavailable(_) => staying(on, false).next().is_some(),
    };
    let current = staying(on, true).next().is_some();
    let up = staying(on, true).any(|made| made.settled);
    match pace {
        // Also where the former one is gone the next one may turn out to be no good.
        Pace::Surge(_) => current && !up && (former || staying(on, true).any(|made| made.loops)),
        Pace::Unavailable(_) => !former && !up,
    }
}

/// Whether anything healthy is there that stays.
fn served(on: &OnNode) -> bool {
    on.made.iter().any(|made| made.healthy && !made.leaving)
}

/// On how many nodes a change of an entry was begun and is not through.
pub fn begun(pace: Pace, nodes: &BTreeMap<String, OnNode>) -> usize {
    nodes.values().filter(|on| changing(pace, on)).count()
}

/// What to do next for one entry, by its nodes' names. `elsewhere` is how many changes of other entries are under way: two
/// entries on one node serve the same volumes, and are not replaced together.
pub fn steps(pace: Pace, nodes: &BTreeMap<String, OnNode>, elsewhere: usize) -> Steps {
    let mut steps = Steps::default();
    let mut waiting = Vec::new();
    for (node, on) in nodes {
        let next = staying(on, true).any(|made| made.settled);
        let served_before = staying(on, false).any(|made| made.healthy);
        let former: Vec<&Made> = staying(on, false).collect();
        let proven = staying(on, false).any(|made| made.settled);
        // One that is not healthy is of no use beside one that is: of two former ones the later failed. Nor is one that was
        // replaced before it had shown what it is worth.
        let useless = |made: &&&Made| next || served_before && !made.healthy || proven && !made.settled;
        steps.stop.extend(former.iter().filter(useless).map(|made| made.name.clone()));
        let stay: Vec<&Made> = former.iter().filter(|made| !useless(made)).copied().collect();
        if staying(on, true).next().is_some() {
            continue;
        }
        if stay.is_empty() {
            let alone = match pace {
                Pace::Surge(_) => true,
                Pace::Unavailable(_) => on.made.is_empty(),
            };
            // One of this very name has to be gone first.
            if alone && !on.made.iter().any(|made| made.name == on.name) {
                steps.make.push(node.clone());
            }
        } else if on.ready {
            waiting.push((served(on), node, stay));
        }
    }
    let mut room = pace.nodes().saturating_sub(begun(pace, nodes) + elsewhere);
    match pace {
        // Where nobody is served comes last: nothing may ever get healthy there.
        Pace::Surge(_) => {
            waiting.sort_by_key(|(served, node, _)| (!*served, *node));
            let next: Vec<String> = waiting.into_iter().take(room).map(|(_, node, _)| node.clone()).collect();
            steps.begun = next.len();
            steps.make.extend(next);
        }
        // Where nobody is served comes first, for it takes nothing from anybody: so a better spec, or the former one,
        // gets to where a bad one was begun. No other one stops while so many nodes have nobody, for whatever reason.
        Pace::Unavailable(nodes_at_once) => {
            waiting.sort_by_key(|(served, node, _)| (*served, *node));
            let mut unserved = nodes.values().filter(|on| !served(on)).count();
            for (is_served, _, stay) in waiting {
                let may = room > 0 && (!is_served || unserved < nodes_at_once as usize);
                if may {
                    (room, unserved) = (room - 1, unserved + usize::from(is_served));
                    steps.stop.extend(stay.iter().map(|made| made.name.clone()));
                    steps.begun += 1;
                }
            }
        }
    }
    steps
}

/// Whether this former one has to serve on although its end was asked for, by whomever: where both run until the next one is
/// up, it goes when that is so.
pub fn serves_on(pace: Pace, on: &OnNode, former: &str) -> bool {
    let serves = on.made.iter().any(|made| made.name == former && made.healthy && !made.current);
    let other = staying(on, false).any(|made| made.name != former && made.healthy && made.settled);
    matches!(pace, Pace::Surge(_)) && serves && !other && !staying(on, true).any(|made| made.settled)
}

/// How far a change has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The instances that are wanted.
    pub wanted: usize,
    /// Those of them that are there and settled.
    pub done: usize,
    /// The nodes where a former one is still.
    pub former: usize,
    /// The nodes on which a change was begun and is not through.
    pub changing: Vec<String>,
    /// With `maxUnavailable`, the other nodes where nobody serves, when no more of them may be without one.
    pub without: Vec<String>,
}

/// How far the change of one entry has come.
pub fn standing(pace: Pace, nodes: &BTreeMap<String, OnNode>) -> Standing {
    let done = |on: &&OnNode| staying(on, true).any(|made| made.settled);
    let unserved: Vec<&String> = nodes.iter().filter(|(_, on)| !served(on)).map(|(node, _)| node).collect();
    let full = matches!(pace, Pace::Unavailable(nodes_at_once) if unserved.len() >= nodes_at_once as usize);
    let other = |node: &&&String| full && !changing(pace, &nodes[**node]);
    Standing {
        without: unserved.iter().filter(other).map(|node| (*node).clone()).collect(),
        wanted: nodes.len(),
        done: nodes.values().filter(done).count(),
        former: nodes.values().filter(|on| on.made.iter().any(|made| !made.current)).count(),
        changing: nodes.iter().filter(|(_, on)| changing(pace, on)).map(|(node, _)| node.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `N` is settled and wanted, `h` is healthy for a moment only, `l` is so again and again, `n` is not yet, `F` and `f` are former ones, `g` one that is healthy for a moment only, `x` is a former one that goes, `X` one that serves meanwhile, `y` a wanted one.
    fn on(made: &str) -> OnNode {
        let one = |word: char| Made {
            name: match word {
                'N' | 'h' | 'l' | 'n' | 'y' => "next".to_owned(),
                other => format!("former-{}", other.to_ascii_lowercase()),
            },
            current: matches!(word, 'N' | 'h' | 'l' | 'n' | 'y'),
            healthy: matches!(word, 'N' | 'h' | 'l' | 'F' | 'g' | 'X'),
            settled: matches!(word, 'N' | 'F'),
            loops: word == 'l',
            leaving: matches!(word, 'x' | 'X' | 'y'),
        };
        OnNode { ready: true, name: "next".to_owned(), made: made.chars().map(one).collect() }
    }

    /// What is done on each node: `+` makes, `-` stops.
    fn done(pace: Pace, nodes: &[&str]) -> Vec<String> {
        done_beside(0, pace, nodes)
    }

    /// The same while so many changes of other entries are under way.
    fn done_beside(elsewhere: usize, pace: Pace, nodes: &[&str]) -> Vec<String> {
        let names = |n: usize| format!("n{n}");
        let all: BTreeMap<_, _> = nodes
            .iter()
            .enumerate()
            .map(|(n, made)| {
                let mut one = on(made.trim_start_matches('!'));
                one.ready = !made.starts_with('!');
                for made in &mut one.made {
                    made.name = format!("{}/{}", names(n), made.name);
                }
                one.name = format!("{}/next", names(n));
                (names(n), one)
            })
            .collect();
        let steps = steps(pace, &all, elsewhere);
        let on = |n: usize| {
            let made = if steps.make.contains(&names(n)) { "+" } else { "" };
            let stopped =
                steps.stop.iter().filter(|name| name.starts_with(&format!("{}/", names(n)))).count();
            format!("{made}{}", "-".repeat(stopped))
        };
        (0..nodes.len()).map(on).collect()
    }

    #[test]
    fn a_pace_is_one_of_the_two() {
        for (surge, unavailable, pace) in [
            (None, None, Pace::Surge(1)),
            (Some(3), None, Pace::Surge(3)),
            (Some(3), Some(0), Pace::Surge(3)),
            (None, Some(2), Pace::Unavailable(2)),
            (Some(0), Some(2), Pace::Unavailable(2)),
            (Some(0), None, Pace::Unavailable(1)),
        ] {
            assert_eq!(Pace::of(surge, unavailable), pace, "{surge:?} {unavailable:?}");
        }
    }

    #[test]
    fn on_one_node() {
        use Pace::{Surge, Unavailable};
        for (made, surge, unavailable) in [
            ("", "+", "+"),  // none yet
            ("n", "", ""),   // it comes up
            ("N", "", ""),   // all is well
            ("F", "+", "-"), // the change begins
            ("Fn", "", ""),  // the former one serves until the next one does
            ("Fh", "", ""),  // and has done so for a while
            ("Fl", "", ""),
            ("fh", "", ""),
            ("h", "", ""),
            ("FN", "-", "-"),
            ("fN", "-", "-"),
            ("xN", "", ""),
            ("x", "+", ""),     // it has been asked to go
            ("y", "", ""),      // one of this name goes first
            ("f", "+", "-"),    // it may be well again in a moment
            ("Ff", "+-", "--"), // of two former ones the later failed
            ("Ffn", "-", "-"),
            ("fn", "", ""),
            ("FF", "+", "--"),
            ("Fg", "+-", "--"), // of a spec that was replaced before it had been well for long enough
            ("Fgn", "-", "-"),
            ("g", "+", "-"), // nobody else serves
            ("gg", "+", "--"),
            ("!F", "", ""), // on a node that is away none is known to be well
            ("!f", "", ""),
            ("!fn", "", ""),
            ("!", "+", "+"),
        ] {
            assert_eq!(done(Surge(1), &[made]), [surge], "{made}");
            assert_eq!(done(Unavailable(1), &[made]), [unavailable], "{made}");
        }
    }

    #[test]
    fn a_former_one_serves_on_until_the_next_one_is_up() {
        for (made, serves) in [
            ("X", true),
            ("Xn", true),
            ("Xh", true),
            ("Xl", true),
            ("XN", false), // it is up
            ("x", false),  // it is of no use
            ("xn", false),
            ("XF", false), // another one does
            ("Xg", true),  // that one has not shown yet what it is worth
        ] {
            let on = on(made);
            assert_eq!(serves_on(Pace::Surge(1), &on, "former-x"), serves, "{made}");
            assert!(!serves_on(Pace::Unavailable(1), &on, "former-x"), "{made}: it goes first there");
            assert!(!serves_on(Pace::Surge(1), &on, "next"), "{made}: one of the wanted spec comes anew");
        }
    }

    #[test]
    fn so_many_nodes_at_once() {
        use Pace::{Surge, Unavailable};
        assert_eq!(done(Surge(1), &["F", "F", "F"]), ["+", "", ""]);
        assert_eq!(done(Surge(2), &["F", "F", "F"]), ["+", "+", ""]);
        assert_eq!(done(Surge(1), &["Fn", "F", "F"]), ["", "", ""], "held until it is healthy");
        assert_eq!(done(Surge(1), &["Fn", "f", "f"]), ["", "", ""], "also for those that are not well now");
        assert_eq!(done(Surge(1), &["Fn", "!f", "!f"]), ["", "", ""], "and for those that are away");
        assert_eq!(done(Surge(1), &["FN", "F", "F"]), ["-", "+", ""]);
        assert_eq!(done(Surge(1), &["Fh", "F", "F"]), ["", "", ""], "a moment of health is not enough");
        assert_eq!(done(Surge(1), &["l", "F", "F"]), ["", "", ""], "it turned out to be no good");
        assert_eq!(done(Surge(1), &["Xn", "F"]), ["", ""], "one whose end a person asked for serves on");
        assert_eq!(done(Surge(1), &["xn", "F"]), ["", "+"], "that one does not");
        assert_eq!(done(Surge(1), &["h", "F", "F"]), ["", "+", ""], "nothing was replaced there");
        assert_eq!(done(Unavailable(1), &["h", "F"]), ["", ""]);
        assert_eq!(done(Unavailable(1), &["l", "F"]), ["", ""]);
        assert_eq!(done(Surge(1), &["F", "n", "F"]), ["+", "", ""], "nothing was ever well there");
        assert_eq!(done(Surge(1), &["f", "F", "F"]), ["", "+", ""], "where nobody is served comes last");
        assert_eq!(done(Surge(1), &["!Fn", "F"]), ["", ""], "it may be away because of what was begun");
        assert_eq!(done(Surge(1), &["!F", "F"]), ["", "+"], "what was not begun is not waited for");
        assert_eq!(
            done(Unavailable(1), &["f", "F"]),
            ["-", ""],
            "a better spec goes where a bad one was begun"
        );
        assert_eq!(done(Unavailable(2), &["f", "F", "F"]), ["-", "-", ""]);
        assert_eq!(done(Unavailable(1), &["!f", "F"]), ["", ""], "one is without it already");
        assert_eq!(done(Unavailable(1), &["n", "f", "F"]), ["", "", ""]);
        assert_eq!(done(Unavailable(1), &["F", "F"]), ["-", ""]);
        assert_eq!(done(Unavailable(1), &["x", "F"]), ["", ""], "it is not there yet");
        assert_eq!(done(Unavailable(1), &["!x", "F"]), ["", ""], "nor if it is away");
        assert_eq!(done(Unavailable(1), &["!n", "F"]), ["", ""]);
        assert_eq!(done(Unavailable(1), &["", "F"]), ["+", ""]);
        assert_eq!(done(Unavailable(2), &["n", "F"]), ["", "-"]);
        assert_eq!(done(Surge(1), &["", "", ""]), ["+", "+", "+"], "where there was none nothing is changed");
    }

    #[test]
    fn two_entries_are_not_replaced_together() {
        use Pace::{Surge, Unavailable};
        for (pace, alone) in [(Surge(1), ["+"]), (Unavailable(1), ["-"])] {
            assert_eq!(done_beside(0, pace, &["F"]), alone);
            assert_eq!(done_beside(1, pace, &["F"]), [""], "{pace:?}: the other one is not through");
            assert_eq!(done_beside(1, pace, &[""]), ["+"], "{pace:?}: what is missing is no change");
        }
        assert_eq!(done_beside(1, Surge(2), &["F", "F"]), ["+", ""]);
        assert_eq!(done_beside(1, Unavailable(2), &["F", "F"]), ["-", ""]);
        let nodes: BTreeMap<_, _> = [("a".to_owned(), on("F")), ("b".to_owned(), on("F"))].into();
        assert_eq!((steps(Surge(1), &nodes, 0).begun, steps(Unavailable(2), &nodes, 0).begun), (1, 2));
    }

    #[test]
    fn who_keeps_others_from_their_turn_is_named() {
        use Pace::{Surge, Unavailable};
        let without = |pace, made: &[&str]| {
            let of = |(n, made): (usize, &&str)| (format!("n{n}"), on(made.trim_start_matches('!')));
            standing(pace, &made.iter().enumerate().map(of).collect()).without
        };
        assert_eq!(without(Unavailable(1), &["!f", "F"]), ["n0"]);
        assert_eq!(without(Unavailable(2), &["!f", "F"]), Vec::<String>::new(), "there is room for one more");
        assert_eq!(without(Unavailable(1), &["n", "F"]), Vec::<String>::new(), "that one has its turn");
        assert_eq!(without(Surge(1), &["!f", "F"]), Vec::<String>::new(), "nobody waits for it");
    }

    /// From any state, whatever becomes of health and nodes for a while, once what is made gets healthy all are of the
    /// wanted spec in the end; and as long as a change goes on, where both may run no former one stops before the wanted
    /// one was healthy, but for a failed one beside a healthy one.
    #[test]
    fn every_state_comes_to_its_end_and_surge_leaves_nobody_unserved() {
        let states =
            ["", "n", "N", "F", "f", "Fn", "FN", "fN", "fn", "x", "y", "xn", "Ff", "FF", "Ffn", "xF"];
        let mut random: u64 = 1;
        let mut chance = move |of: u64| -> bool {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33).is_multiple_of(of)
        };
        for pace in [Pace::Surge(1), Pace::Surge(2), Pace::Unavailable(1), Pace::Unavailable(2)] {
            for (a, b) in states.iter().flat_map(|a| states.iter().map(move |b| (a, b))) {
                let mut nodes: BTreeMap<String, OnNode> =
                    [("a".to_owned(), on(a)), ("b".to_owned(), on(b))].into();
                for (node, one) in &mut nodes {
                    for (n, made) in one.made.iter_mut().enumerate().filter(|(_, m)| !m.current) {
                        made.name = format!("{node}/{}-{n}", made.name);
                    }
                }
                for round in 0.. {
                    assert!(round < 40, "{pace:?} {a} {b}: {nodes:?}");
                    let now = steps(pace, &nodes, 0);
                    for (name, one) in &mut nodes {
                        let well = |one: &OnNode| one.made.iter().any(|m| m.healthy && !m.leaving);
                        let stopped = |made: &Made| now.stop.contains(&made.name);
                        let served = well(one);
                        one.made.retain(|made| !made.leaving);
                        one.made.iter_mut().for_each(|made| made.leaving |= stopped(made));
                        if let Pace::Surge(_) = pace {
                            assert!(well(one) || !served, "{pace:?} {a} {b} {now:?} {one:?}");
                            let any = one.made.iter().any(|made| !made.leaving);
                            assert!(any || one.made.is_empty(), "the last one stops: {now:?} {one:?}");
                        }
                        if now.make.contains(name) {
                            one.made.push(on("n").made[0].clone());
                        }
                        // For a while anything may happen, then all gets well.
                        let troubled = round < 15;
                        one.ready = !troubled || !chance(4);
                        for made in &mut one.made {
                            made.healthy = if troubled { one.ready && chance(2) } else { made.current };
                            made.settled = made.healthy && (!troubled || chance(2));
                        }
                    }
                    let through =
                        |on: &OnNode| on.made.len() == 1 && on.made[0].current && on.made[0].healthy;
                    if round > 15 && now == Steps::default() && nodes.values().all(through) {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn how_far_it_has_come() {
        let nodes: BTreeMap<String, OnNode> = [("a", "FN"), ("b", "Fn"), ("c", "F"), ("d", "N")]
            .map(|(n, made)| (n.to_owned(), on(made)))
            .into();
        let standing = standing(Pace::Surge(1), &nodes);
        assert_eq!((standing.wanted, standing.done, standing.former), (4, 2, 3));
        assert_eq!(standing.changing, ["b"]);
    }
}
