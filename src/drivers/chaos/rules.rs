//! DECISION: which rule takes a call. No clock, no I/O; chance is a number that the seed, the rule and the count of its
//! calls make, so that a script with a seed does the same to the same calls, whatever other rules did.
use std::sync::Arc;

use super::script::{Plan, Rule, Script, When, is_of, matches};

/// A call, as rules see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    /// Its path without the leading slash.
    pub(super) method: &'a str,
    /// Whether it is one of CSI's.
    pub(super) known: bool,
    /// What it is about.
    pub(super) ids: &'a [String],
}

/// What was decided.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    /// Which rule: its name, or its place from 1.
    pub(super) rule: String,
    pub(super) plan: Arc<Plan>,
}

/// The rules, and how often each had its turn.
#[derive(Debug)]
pub(super) struct Rules {
    rules: Vec<Counted>,
    seed: u64,
}

#[derive(Debug)]
struct Counted {
    rule: Rule,
    plan: Arc<Plan>,
    /// Calls that it was about and that no rule before it took.
    seen: u64,
    /// Those that it took.
    taken: u64,
}

impl Rules {
    /// The rules of a script, with no call counted yet.
    pub(super) fn new(script: Script, seed: u64) -> Self {
        let counted = |rule: Rule| Counted { plan: Arc::new(rule.plan.clone()), rule, seen: 0, taken: 0 };
        Self { rules: script.rules.into_iter().map(counted).collect(), seed }
    }

    /// The first rule that takes the call. Those before it have counted it, those behind it have not.
    pub(super) fn take(&mut self, asked: Asked<'_>) -> Option<Taken> {
        let seed = self.seed;
        for (index, counted) in self.rules.iter_mut().enumerate() {
            if !is_about(&counted.rule, asked) {
                continue;
            }
            counted.seen += 1;
            let place = index as u64 + 1;
            if counted.rule.when.takes(counted.seen, counted.taken, || chance(seed, place, counted.seen)) {
                counted.taken += 1;
                let rule = counted.rule.name.clone().unwrap_or_else(|| place.to_string());
                return Some(Taken { rule, plan: Arc::clone(&counted.plan) });
            }
        }
        None
    }
}

fn is_about(rule: &Rule, asked: Asked<'_>) -> bool {
    let id = |pattern: &String| asked.ids.iter().any(|id| matches(pattern, id));
    is_of(&rule.method, asked.method)
        && rule.id.as_ref().is_none_or(id)
        && (asked.known || !rule.plan.needs_contract())
}

impl When {
    /// Whether the call is taken that is the `seen`th of its kind, from 1, after `taken` ones that were.
    fn takes(self, seen: u64, taken: u64, chance: impl FnOnce() -> f64) -> bool {
        let Some(behind) = seen.checked_sub(self.after.saturating_add(1)) else { return false };
        behind.checked_rem(self.every) == Some(0)
            && self.times.is_none_or(|times| taken < times)
            && self.probability.is_none_or(|share| chance() < share)
    }
}

/// A number from 0 up to 1, the same for the same three.
#[allow(clippy::cast_precision_loss)] // of 53 bits none is lost
fn chance(seed: u64, place: u64, seen: u64) -> f64 {
    let mixed = mixed(mixed(mixed(seed) ^ place) ^ seen);
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

/// The finaliser of SplitMix64: numbers beside each other come out far apart.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rules(seed: u64, script: &Value) -> Rules {
        Rules::new(Script::read(script).unwrap(), seed)
    }

    /// The rules that take each of these calls, `-` for none.
    fn taken(rules: &mut Rules, calls: &[(&str, &str)]) -> String {
        let one = |(method, id): &(&str, &str)| {
            let ids = [(*id).to_owned()];
            let known = method.starts_with("csi.v1.");
            rules.take(Asked { method, known, ids: &ids }).map_or_else(|| "-".to_owned(), |taken| taken.rule)
        };
        calls.iter().map(one).collect()
    }

    const CREATE: &str = "csi.v1.Controller/CreateVolume";
    const STAGE: &str = "csi.v1.Node/NodeStageVolume";
    const OTHER: &str = "vendor.Extra/Thing";

    #[test]
    fn which_rule_takes_which_call() {
        let each = |rule: Value| json!({ "rules": [rule] });
        for (script, calls, wanted) in [
            (json!({}), vec![(CREATE, "a")], "-"),
            (
                each(json!({ "method": "CreateVolume" })),
                vec![(CREATE, "a"), (STAGE, "a"), (CREATE, "b")],
                "1-1",
            ),
            (
                each(json!({ "method": "csi.v1.Controller/CreateVolume" })),
                vec![(CREATE, "a"), (STAGE, "a")],
                "1-",
            ),
            (each(json!({ "method": "/csi.v1.Node/*" })), vec![(CREATE, "a"), (STAGE, "a")], "-1"),
            (each(json!({ "method": "Node*" })), vec![(CREATE, "a"), (STAGE, "a")], "-1"),
            (each(json!({ "method": "*" })), vec![(CREATE, "a"), (STAGE, "a"), (OTHER, "")], "111"),
            (each(json!({ "method": "*", "repeat": "After" })), vec![(CREATE, "a"), (OTHER, "")], "1-"),
            (each(json!({ "method": "*", "lie": "Empty" })), vec![(CREATE, "a"), (OTHER, "")], "1-"),
            (each(json!({ "method": "vendor.Extra/Thing", "hang": true })), vec![(OTHER, "")], "1"),
            (
                each(json!({ "method": "*", "id": "pvc-*" })),
                vec![(CREATE, "pvc-1"), (STAGE, "x-pvc-1")],
                "1-",
            ),
            (
                each(json!({ "method": "*", "id": "*a*b" })),
                vec![(CREATE, "xaxb"), (CREATE, "ba"), (CREATE, "ab")],
                "1-1",
            ),
            (each(json!({ "method": "*", "after": 2 })), vec![(CREATE, "a"); 4], "--11"),
            (each(json!({ "method": "*", "times": 2 })), vec![(CREATE, "a"); 4], "11--"),
            (each(json!({ "method": "*", "every": 3 })), vec![(CREATE, "a"); 7], "1--1--1"),
            (
                each(json!({ "method": "*", "after": 1, "every": 2, "times": 2 })),
                vec![(CREATE, "a"); 7],
                "-1-1---",
            ),
            (
                json!({ "rules": [{ "method": "CreateVolume", "times": 1 }, { "method": "*", "name": "B" }] }),
                vec![(CREATE, "a"), (CREATE, "a"), (STAGE, "a")],
                "1BB",
            ),
            // What the first one took the second has not counted.
            (
                json!({ "rules": [{ "method": "*", "times": 2 }, { "method": "*", "after": 1 }] }),
                vec![(CREATE, "a"); 4],
                "11-2",
            ),
            // A rule that does nothing keeps calls from those behind it.
            (
                json!({ "rules": [{ "method": "*", "id": "spared" }, { "method": "*", "code": "INTERNAL" }] }),
                vec![(CREATE, "spared"), (CREATE, "b")],
                "12",
            ),
        ] {
            assert_eq!(taken(&mut rules(1, &script), &calls), wanted, "{script}");
        }
    }

    #[test]
    fn chance_is_the_seeds_and_no_other_rules() {
        let half = json!({ "method": "CreateVolume", "probability": 0.5, "name": "x" });
        let alone = json!({ "rules": [half] });
        let run = |seed| taken(&mut rules(seed, &alone), &[(CREATE, "a"); 200]);
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let hits = run(7).matches('x').count();
        assert!((70..130).contains(&hits), "{hits} of 200");
        // Calls of others in between change nothing.
        let mut between =
            rules(7, &json!({ "rules": [half, { "method": "NodeStageVolume", "probability": 0.5 }] }));
        let mixed: Vec<_> = (0..400).map(|n| if n % 2 == 0 { (CREATE, "a") } else { (STAGE, "a") }).collect();
        let told: String = taken(&mut between, &mixed).chars().step_by(2).collect();
        assert_eq!(told, run(7));
        let sure = rules(7, &json!({ "rules": [{ "method": "*", "probability": 1 }] }));
        assert_eq!(taken(&mut { sure }, &[(CREATE, "a"); 50]), "1".repeat(50));
    }
}
