//! What becomes of the attributes of a volume: wanted by its claim, changed by its host.
//!
//! ```text
//!   claim: names another class than its volume was asked for ▶ Set
//!   host:  wanted ≠ has ▶ Ask ▶ Modify ▶ has        (in doubt: the same Modify again, whatever is wanted by then)
//! ```
//! See docs/volumes.md.
use super::{Next, Reason};
use crate::api::meta::Map;

/// What decides whether a claim's volume is asked for other attributes.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The VolumeAttributesClass that the claim names; empty = none.
    pub wanted: String,
    /// The one that its volume was asked for last; empty = none.
    pub asked: String,
    /// The one that its volume has; empty = none.
    pub has: String,
    /// Whether its volume was ever given any, though it may be in doubt what it has now; or somebody else than the claim asked for them.
    pub given: bool,
    /// The plugin of the class that the claim names, if there is such a class.
    pub class: Option<String>,
    /// The plugin of the volume.
    pub plugin: String,
    /// Whether the plugin changes volumes; nobody knows while no instance that would tell is healthy.
    pub can: Option<bool>,
}

/// What is to be done about a claim's attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// Its volume was asked for them, or nothing is wanted of them.
    AsAsked,
    /// Its volume is to be asked for those of the class that it names.
    Set,
    /// Its volume is to be asked for none any more: it names none, and the volume was never given those that it was asked for.
    Unset,
    /// They cannot be asked for.
    Refused(Reason),
}

/// What is to be done about the attributes that a claim asks for.
pub fn claimed(claim: &Claim) -> Claimed {
    if claim.wanted.is_empty() {
        return if !claim.given && !claim.asked.is_empty() { Claimed::Unset } else { Claimed::AsAsked };
    }
    if claim.wanted == claim.asked {
        return Claimed::AsAsked;
    }
    match usable(claim) {
        Ok(()) => Claimed::Set,
        Err(reason) => Claimed::Refused(reason),
    }
}

/// Why a volume of the plugin cannot have the class that its claim names, if so: for one that is there, and for one that is to
/// be made.
pub fn usable(claim: &Claim) -> Result<(), Reason> {
    // Back to what it has needs no call, nor the class, which may be gone.
    if !claim.has.is_empty() && claim.wanted == claim.has {
        return Ok(());
    }
    let plugin = claim.plugin.clone();
    let Some(class) = &claim.class else {
        return Err(Reason::NotFound { kind: "VolumeAttributesClass", name: claim.wanted.clone() });
    };
    if *class != plugin {
        return Err(Reason::AttributesMismatch { class: claim.wanted.clone(), of: class.clone(), plugin });
    }
    match claim.can {
        Some(true) => Ok(()),
        Some(false) => Err(Reason::PluginLacks { plugin, capability: "MODIFY_VOLUME" }),
        None => Err(Reason::PluginNotReady { plugin, node: String::new() }),
    }
}

/// What a host sees of a volume that exists.
#[derive(Debug, Clone, Copy)]
pub struct Hosted<'a, T> {
    /// What it shall have.
    pub wanted: Option<&'a T>,
    /// What it has.
    pub has: Option<&'a T>,
    /// What was asked for and not answered for good.
    pub asked: Option<&'a T>,
}

/// One thing that a host does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a, T> {
    /// Says what it is about to ask for, so that the same is asked again whatever becomes of it.
    Ask(&'a T),
    /// ControllerModifyVolume.
    Modify(&'a T),
}

/// The next step of a host.
pub fn hosted<'a, T: PartialEq>(seen: &Hosted<'a, T>) -> Next<Step<'a, T>> {
    match (seen.asked, seen.wanted) {
        (Some(asked), _) => Next::Do(Step::Modify(asked)),
        (None, Some(wanted)) if seen.has != Some(wanted) => Next::Do(Step::Ask(wanted)),
        (None, Some(_) | None) => Next::Converged,
    }
}

/// How an attempt that was made and not answered with OK has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was not sent.
    Unsent,
    /// Nobody knows how: it may be under way still.
    InDoubt,
    /// For good. Of its codes one alone says that this attempt applied nothing (CO-CTRL-78).
    Refused {
        /// Whether it was that one.
        nothing_applied: bool,
    },
}

/// Whether the same is asked for again, and whether it is in doubt what the volume has. `doubted`: whether it was before.
pub fn after(doubted: bool, ended: Ended) -> (bool, bool) {
    match ended {
        Ended::Unsent => (true, doubted),
        Ended::InDoubt => (true, true),
        Ended::Refused { nothing_applied } => (false, doubted || !nothing_applied),
    }
}

/// What a volume keeps of the parameters that it has when it is given others: those that the others do not name (CO-CTRL-76).
pub fn kept<'a>(has: &'a Map, wanted: &Map) -> Vec<&'a str> {
    has.keys().filter(|key| !wanted.contains_key(*key)).map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Part of obligation CO-CTRL-75.
    #[test]
    fn what_a_claim_names_is_asked_for_or_refused_with_a_reason() {
        type Edit = fn(&mut Claim);
        let claim = Claim {
            wanted: "gold".into(),
            asked: "silver".into(),
            has: "silver".into(),
            given: true,
            class: Some("p".into()),
            plugin: "p".into(),
            can: Some(true),
        };
        let word = |edit: Edit| {
            let mut claim = claim.clone();
            edit(&mut claim);
            match claimed(&claim) {
                Claimed::AsAsked => "as asked",
                Claimed::Set => "set",
                Claimed::Unset => "unset",
                Claimed::Refused(reason) => reason.word(),
            }
        };
        let cases: [(Edit, &str); 12] = [
            (|_| (), "set"),
            (|c| c.wanted = "silver".into(), "as asked"),
            (|c| c.wanted.clear(), "as asked"),
            (|c| (c.wanted, c.has) = (String::new(), String::new()), "as asked"),
            (|c| (c.wanted, c.has, c.given) = (String::new(), String::new(), false), "unset"),
            (|c| (c.wanted, c.asked, c.given) = (String::new(), String::new(), false), "as asked"),
            (|c| c.asked.clear(), "set"),
            (|c| c.class = None, "NotFound"),
            (|c| c.class = Some("q".into()), "AttributesMismatch"),
            (|c| c.can = Some(false), "PluginLacksCapability"),
            (|c| c.can = None, "PluginNotReady"),
            // What was refused is taken back, whoever is there.
            (|c| (c.has, c.can, c.class) = ("gold".into(), None, None), "set"),
        ];
        for (n, (edit, expected)) in cases.into_iter().enumerate() {
            assert_eq!(word(edit), expected, "case {n}");
        }
    }

    /// Part of obligations CO-CTRL-77, CO-CTRL-78.
    #[test]
    fn what_was_sent_leaves_a_doubt_unless_it_is_said_that_nothing_was_applied() {
        for (ended, again, leaves) in [
            (Ended::Unsent, true, false),
            (Ended::InDoubt, true, true),
            (Ended::Refused { nothing_applied: false }, false, true),
            (Ended::Refused { nothing_applied: true }, false, false),
        ] {
            assert_eq!(after(false, ended), (again, leaves), "{ended:?}");
            assert_eq!(after(true, ended), (again, true), "an earlier attempt stays in doubt: {ended:?}");
        }
    }

    /// Part of obligation CO-CTRL-77.
    #[test]
    fn a_host_ends_what_is_in_doubt_before_it_asks_for_anything_else() {
        let all = [None, Some(&1), Some(&2)];
        for wanted in all {
            for has in all {
                for asked in all {
                    let step = hosted(&Hosted { wanted, has, asked });
                    match (asked, wanted) {
                        (Some(asked), _) => assert_eq!(step, Next::Do(Step::Modify(asked))),
                        (None, Some(wanted)) if has != Some(wanted) => {
                            assert_eq!(step, Next::Do(Step::Ask(wanted)));
                            let next = hosted(&Hosted { wanted: Some(wanted), has, asked: Some(wanted) });
                            assert_eq!(next, Next::Do(Step::Modify(wanted)));
                            let done =
                                hosted(&Hosted { wanted: Some(wanted), has: Some(wanted), asked: None });
                            assert_eq!(done, Next::Converged);
                        }
                        (None, _) => assert_eq!(step, Next::Converged),
                    }
                }
            }
        }
    }
}
