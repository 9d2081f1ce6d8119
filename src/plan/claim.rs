//! What a claim needs next: its volume made, found or let go.
//!
//! ```text
//!            (late: first consumer's node) Create ▶ volume ready ▶ Bound ▶ volume gone ▶ Lost
//!   Pending ◀                                                        ╲
//!            named: Adopt ▶ volume ready ▶ Bound                      ╲▶ deleted, no user: DeleteVolume ▶ Release
//! ```
//! A volume is begun only when none of the claim's is left, and one that was ever bound is never made anew.
use super::Reason;
use crate::api::claim::ClaimPhase;

/// The volume is being made.
pub const PROVISIONING: &str = "Provisioning";
/// The volume is being deleted.
pub const RELEASING: &str = "Releasing";
/// The claim's uid is being entered into the volume.
pub const BINDING: &str = "Binding";
/// Words of what goes on by itself, step by step: others who wait for it need not repeat each step.
pub const UNDER_WAY: [&str; 4] = [PROVISIONING, RELEASING, BINDING, "WaitingForFirstConsumer"];

/// Whose the volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// This claim's, by uid.
    Mine,
    /// Nobody's, or this claim's by name alone.
    Free,
    /// That of the claim named here.
    Other(String),
}

/// The volume that the claim names or that was made for it.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub owner: Owner,
    /// What the claim asks for and the volume is not; empty when it fits.
    pub mismatch: String,
    /// Whether it can be used.
    pub ready: bool,
    /// If not: one word and one sentence.
    pub why: (String, String),
    /// Its object is being deleted.
    pub deleting: bool,
    /// It outlives the claim: it existed before, or is retained.
    pub kept: bool,
}

/// The plugin of the claim's class.
#[derive(Debug, Clone, Default)]
pub struct Plugin {
    /// Its object is being deleted.
    pub deleting: bool,
    /// Whether a controller instance of it is healthy where one is needed.
    pub serves: bool,
    /// Whether it creates volumes.
    pub creates: bool,
    /// With `controllerScope: Node`: the nodes with a healthy controller instance that the class allows, each with the
    /// number of volumes it has.
    pub nodes: Option<Vec<(String, usize)>>,
}

/// The class of a claim that names no volume.
#[derive(Debug, Clone)]
pub struct Class {
    /// Its name, or `default`.
    pub name: String,
    /// Whether it is there.
    pub found: bool,
    /// Whether the first consumer chooses the place.
    pub late: bool,
    /// Its plugin's name.
    pub plugin_name: String,
    /// The plugin, if it is there.
    pub plugin: Option<Plugin>,
}

/// Everything that decides.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The claim is being deleted.
    pub deleting: bool,
    /// Allocations that have it or may have it.
    pub users: Vec<String>,
    /// The volume named in the spec, empty for none.
    pub named: String,
    /// The volume, if it is there.
    pub volume: Option<Volume>,
    /// The phase as it was.
    pub phase: Option<ClaimPhase>,
    /// The volume that the claim had before, empty for none.
    pub had: String,
    /// The node that the first consumer chose, empty for none yet, and whether the plugin serves there.
    pub selected: (String, bool),
    /// Its class.
    pub class: Class,
}

/// One thing to do about a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make the volume; on this node if one must.
    Create {
        /// With `controllerScope: Node`, its node.
        node: String,
    },
    /// Enter this claim's uid into the volume it names.
    Adopt,
    /// Delete the volume's object.
    DeleteVolume,
    /// Remove the claim's finalizer.
    Release,
}

/// Where the claim stands, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The phase to show.
    pub phase: ClaimPhase,
    /// `Ok` when bound; otherwise one word and one sentence.
    pub ready: Result<(), (String, String)>,
    /// The step, if there is one.
    pub step: Option<Step>,
}

/// The next step of one claim.
pub fn next(facts: &Facts) -> Verdict {
    if facts.deleting {
        return leaving(facts);
    }
    match &facts.volume {
        Some(volume) => with_volume(facts, volume),
        None if facts.phase == Some(ClaimPhase::Bound) || facts.phase == Some(ClaimPhase::Lost) => {
            let lost = Reason::VolumeLost { volume: facts.had.clone() };
            Verdict { phase: ClaimPhase::Lost, ready: why(&lost), step: None }
        }
        None if !facts.named.is_empty() => {
            pending(&Reason::NotFound { kind: "Volume", name: facts.named.clone() })
        }
        None => make(facts),
    }
}

fn why(reason: &Reason) -> Result<(), (String, String)> {
    Err((reason.word().to_owned(), reason.to_string()))
}

fn pending(reason: &Reason) -> Verdict {
    Verdict { phase: ClaimPhase::Pending, ready: why(reason), step: None }
}

fn leaving(facts: &Facts) -> Verdict {
    let phase = facts.phase.unwrap_or(ClaimPhase::Pending);
    let passed_over = planted!("deleted-in-use") && facts.volume.is_some();
    if !(facts.users.is_empty() || passed_over) {
        let by = format!("allocation {}", facts.users.join(", "));
        return Verdict { phase, ready: why(&Reason::InUse { by }), step: None };
    }
    let being_deleted = |kind, name: &str| why(&Reason::BeingDeleted { kind, name: name.to_owned() });
    match &facts.volume {
        Some(volume) if volume.owner == Owner::Mine && !volume.kept => Verdict {
            phase,
            ready: if volume.deleting {
                Err(volume.why.clone())
            } else {
                being_deleted("Volume", &volume.name)
            },
            step: (!volume.deleting).then_some(Step::DeleteVolume),
        },
        Some(_) | None => {
            Verdict { phase, ready: being_deleted("VolumeClaim", ""), step: Some(Step::Release) }
        }
    }
}

fn with_volume(facts: &Facts, volume: &Volume) -> Verdict {
    let phase = facts.phase.unwrap_or(ClaimPhase::Pending);
    if let Owner::Other(claim) = &volume.owner {
        return pending(&Reason::BoundElsewhere { volume: volume.name.clone(), claim: claim.clone() });
    }
    if volume.deleting {
        let reason = Reason::BeingDeleted { kind: "Volume", name: volume.name.clone() };
        return Verdict { phase, ready: why(&reason), step: None };
    }
    if !volume.mismatch.is_empty() {
        let details = volume.mismatch.clone();
        return pending(&Reason::VolumeMismatch { volume: volume.name.clone(), details });
    }
    let step = (volume.owner == Owner::Free).then_some(Step::Adopt);
    // Once bound, bound: a host that changes makes the volume doubtful for a while, not the claim.
    if step.is_none() && (volume.ready || phase == ClaimPhase::Bound) {
        return Verdict { phase: ClaimPhase::Bound, ready: Ok(()), step };
    }
    let why = match step {
        Some(_) => (BINDING.to_owned(), format!("is being bound to volume \"{}\"", volume.name)),
        None => volume.why.clone(),
    };
    Verdict { phase: ClaimPhase::Pending, ready: Err(why), step }
}

fn make(facts: &Facts) -> Verdict {
    let class = &facts.class;
    if !class.found {
        return pending(&Reason::NotFound { kind: "VolumeClass", name: class.name.clone() });
    }
    let Some(plugin) = &class.plugin else {
        return pending(&Reason::NotFound { kind: "Plugin", name: class.plugin_name.clone() });
    };
    if plugin.deleting {
        return pending(&Reason::BeingDeleted { kind: "Plugin", name: class.plugin_name.clone() });
    }
    let (selected, selected_serves) = (&facts.selected.0, facts.selected.1);
    let not_ready = |node: &str| {
        pending(&Reason::PluginNotReady { plugin: class.plugin_name.clone(), node: node.to_owned() })
    };
    if plugin.serves && !plugin.creates {
        let capability = "CREATE_DELETE_VOLUME";
        return pending(&Reason::PluginLacks { plugin: class.plugin_name.clone(), capability });
    }
    if class.late && selected.is_empty() {
        return pending(&Reason::WaitingForFirstConsumer);
    }
    if !plugin.serves {
        return not_ready("");
    }
    if class.late && !selected_serves {
        return not_ready(selected);
    }
    let node = match &plugin.nodes {
        None => String::new(),
        Some(nodes) if class.late => match nodes.iter().find(|(node, _)| node == selected) {
            Some((node, _)) => node.clone(),
            None => return not_ready(selected),
        },
        Some(nodes) => match nodes.iter().min_by_key(|(node, load)| (*load, node.clone())) {
            Some((node, _)) => node.clone(),
            None => return not_ready(""),
        },
    };
    let ready = Err((PROVISIONING.to_owned(), "its volume is being made".to_owned()));
    Verdict { phase: ClaimPhase::Pending, ready, step: Some(Step::Create { node }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> Volume {
        Volume {
            name: "v".into(),
            owner: Owner::Mine,
            mismatch: String::new(),
            ready: true,
            why: ("Provisioning".into(), "is on its way".into()),
            deleting: false,
            kept: false,
        }
    }

    fn facts() -> Facts {
        let plugin = Plugin { serves: true, creates: true, ..Plugin::default() };
        Facts {
            deleting: false,
            users: Vec::new(),
            named: String::new(),
            volume: None,
            phase: None,
            had: String::new(),
            selected: (String::new(), false),
            class: Class {
                name: "c".into(),
                found: true,
                late: false,
                plugin_name: "p".into(),
                plugin: Some(plugin),
            },
        }
    }

    fn word(verdict: &Verdict) -> &str {
        verdict.ready.as_ref().err().map_or("Bound", |(word, _)| word.as_str())
    }

    #[test]
    fn what_is_missing_is_named() {
        type Edit = fn(&mut Facts);
        let with = |edit: fn(&mut Facts)| {
            let mut facts = facts();
            edit(&mut facts);
            next(&facts)
        };
        let cases: [(Edit, &str); 9] = [
            (|f| f.class.found = false, "NotFound"),
            (|f| f.class.plugin = None, "NotFound"),
            (|f| f.class.plugin.as_mut().unwrap().deleting = true, "BeingDeleted"),
            (|f| f.class.plugin.as_mut().unwrap().creates = false, "PluginLacksCapability"),
            (|f| f.class.plugin.as_mut().unwrap().serves = false, "PluginNotReady"),
            (|f| f.class.plugin.as_mut().unwrap().nodes = Some(Vec::new()), "PluginNotReady"),
            (|f| f.class.late = true, "WaitingForFirstConsumer"),
            (
                |f| {
                    f.class.late = true;
                    f.selected = ("a".into(), false);
                },
                "PluginNotReady",
            ),
            (|f| f.named = "x".into(), "NotFound"),
        ];
        for (edit, wanted) in cases {
            let verdict = with(edit);
            assert_eq!((word(&verdict), verdict.step.clone()), (wanted, None), "{verdict:?}");
            assert_eq!(verdict.phase, ClaimPhase::Pending);
        }
    }

    #[test]
    fn the_place_is_the_consumers_or_the_least_loaded() {
        let mut facts = facts();
        assert_eq!(next(&facts).step, Some(Step::Create { node: String::new() }));
        facts.class.plugin.as_mut().unwrap().nodes = Some(vec![("a".into(), 2), ("b".into(), 1)]);
        assert_eq!(next(&facts).step, Some(Step::Create { node: "b".into() }));
        facts.class.late = true;
        facts.selected = ("a".into(), true);
        assert_eq!(next(&facts).step, Some(Step::Create { node: "a".into() }));
        facts.selected = ("z".into(), true);
        assert_eq!(next(&facts).step, None);
    }

    #[test]
    fn a_volume_that_was_bound_is_never_made_anew() {
        let gone = |phase| next(&Facts { phase, had: "v".into(), ..facts() });
        for phase in [ClaimPhase::Bound, ClaimPhase::Lost] {
            let verdict = gone(Some(phase));
            assert_eq!((verdict.phase, verdict.step), (ClaimPhase::Lost, None));
        }
        assert!(gone(Some(ClaimPhase::Pending)).step.is_some(), "one that was never bound is begun again");
    }

    #[test]
    fn a_named_volume_is_taken_only_when_it_is_free_and_fits() {
        type Edit = fn(&mut Volume);
        let with = |edit: fn(&mut Volume)| {
            let mut volume = volume();
            edit(&mut volume);
            next(&Facts { named: "v".into(), volume: Some(volume), ..facts() })
        };
        assert_eq!(with(|_| {}).phase, ClaimPhase::Bound);
        let cases: [(Edit, &str, Option<Step>); 5] = [
            (|v| v.owner = Owner::Other("d/x".into()), "BoundElsewhere", None),
            (|v| v.owner = Owner::Free, "Binding", Some(Step::Adopt)),
            (|v| v.mismatch = "mode".into(), "VolumeMismatch", None),
            (|v| v.deleting = true, "BeingDeleted", None),
            (|v| v.ready = false, "Provisioning", None),
        ];
        for (edit, wanted, step) in cases {
            let verdict = with(edit);
            assert_eq!((word(&verdict), verdict.step.clone()), (wanted, step), "{verdict:?}");
        }
    }

    #[test]
    fn a_claim_leaves_after_its_users_and_its_volume() {
        let leaving = Facts { deleting: true, phase: Some(ClaimPhase::Bound), ..facts() };
        let used = Facts { users: vec!["d/a".into()], volume: Some(volume()), ..leaving.clone() };
        assert_eq!((word(&next(&used)), next(&used).step), ("InUse", None));
        let unused = Facts { volume: Some(volume()), ..leaving.clone() };
        assert_eq!(next(&unused).step, Some(Step::DeleteVolume));
        let waiting = Facts { volume: Some(Volume { deleting: true, ..volume() }), ..leaving.clone() };
        assert_eq!(next(&waiting).step, None);
        for volume in [None, Some(Volume { kept: true, ..volume() })] {
            assert_eq!(next(&Facts { volume, ..leaving.clone() }).step, Some(Step::Release));
        }
    }
}
