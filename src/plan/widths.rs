//! Which attaches and detaches of a plugin may begin.
//!
//! Drivers find a free slot of a machine, and take it, in two steps, and many expect that somebody sends them one volume at
//! a time for each machine. So at each node so many are under way at a time, and in all so many; the others have their turn
//! in the order in which they came. A node that is full holds up nobody at another one; where there are enough in all, all wait.
use std::collections::BTreeMap;

/// How many may be under way at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Widths {
    /// At one node.
    pub per_node: usize,
    /// Everywhere together, of those that one node makes the calls of.
    pub in_all: usize,
}

/// What comes of one that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It may begin.
    Now,
    /// There are enough at its node.
    FullNode,
    /// There are enough in all.
    FullInAll,
}

/// What comes of those that wait. `running` are the nodes of those under way, `waiting` those of the others, in the order in
/// which they came; one that may begin counts for those behind it.
pub fn turns(widths: Widths, running: &[&str], waiting: &[&str]) -> Vec<Turn> {
    let mut at_node: BTreeMap<&str, usize> = BTreeMap::new();
    for node in running {
        *at_node.entry(node).or_default() += 1;
    }
    let mut in_all = running.len();
    let mut decide = |node| {
        let here = at_node.entry(node).or_default();
        if *here >= widths.per_node {
            return Turn::FullNode;
        }
        if in_all >= widths.in_all {
            return Turn::FullInAll;
        }
        *here += 1;
        in_all += 1;
        Turn::Now
    };
    waiting.iter().map(|node| decide(node)).collect()
}

#[cfg(test)]
mod tests {
    use super::Turn::{FullInAll, FullNode, Now};
    use super::*;

    #[test]
    fn each_node_has_its_own_order_and_all_of_them_one_bound() {
        for (per_node, in_all, running, waiting, wanted) in [
            (1, 9, &[][..], &["a"][..], &[Now][..]),
            (1, 9, &[], &["a", "a"], &[Now, FullNode]),
            (1, 9, &["a"], &["a", "b", "a", "b"], &[FullNode, Now, FullNode, FullNode]),
            (2, 9, &["a"], &["a", "a", "b"], &[Now, FullNode, Now]),
            (2, 2, &["a"], &["b", "a", "a"], &[Now, FullInAll, FullInAll]),
            (1, 1, &["a"], &["a", "b"], &[FullNode, FullInAll]),
            // It was narrowed while they ran.
            (1, 1, &["a", "a", "b"], &["a", "c"], &[FullNode, FullInAll]),
            (9, 9, &["a"], &[], &[]),
        ] {
            let told = turns(Widths { per_node, in_all }, running, waiting);
            assert_eq!(told, wanted, "{per_node}/{in_all}: {running:?} {waiting:?}");
        }
    }

    /// Whatever order they come and go in: never more than the widths, none that could go is kept, and everybody's turn comes.
    #[test]
    fn all_come_to_their_turn_and_never_too_many_at_once() {
        let nodes = ["a", "b", "c"];
        for seed in 0..200_usize {
            let widths = Widths { per_node: 1 + seed % 2, in_all: 1 + seed % 4 };
            let mut waiting: Vec<&str> = (0..12).map(|i| nodes[(seed * 7 + i * i) % 3]).collect();
            let mut running: Vec<&str> = Vec::new();
            let mut step = seed;
            while !waiting.is_empty() || !running.is_empty() {
                let told = turns(widths, &running, &waiting);
                let mut told = told.into_iter();
                let mut begun = Vec::new();
                waiting.retain(|node| {
                    let now = told.next() == Some(Now);
                    if now {
                        begun.push(*node);
                    }
                    !now
                });
                running.append(&mut begun);
                assert!(!running.is_empty(), "{seed}: somebody's turn is always");
                assert!(running.len() <= widths.in_all, "{seed}: {running:?}");
                for node in nodes {
                    let here = running.iter().filter(|at| **at == node).count();
                    assert!(here <= widths.per_node, "{seed}: {running:?}");
                }
                running.remove(step % running.len());
                step += 1;
            }
        }
    }
}
