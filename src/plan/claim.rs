//! What a claim needs next: its volume made, found or let go.
//!
//! ```text
//!            (late: first consumer's node) Create ▶ volume ready ▶ Bound ▶ volume gone ▶ Lost
//!   Pending ◀                                                        ╲
//!            named: Adopt ▶ volume ready ▶ Bound                      ╲▶ deleted, no user: DeleteVolume ▶ Release
//! ```
//! A volume is begun only when none of the claim's is left, and one that was ever bound is never made anew. One that is
//! filled from another is begun once that one can be used and fits, and that one stays until it is made.
use super::Reason;
use super::place::reaches;
use crate::api::claim::ClaimPhase;
use crate::api::meta::Segments;
use crate::api::quantity;

/// The volume is being made.
pub const PROVISIONING: &str = "Provisioning";
/// The volume is being deleted.
pub const RELEASING: &str = "Releasing";
/// What the volume is filled from is about to be told of it.
pub const SOURCE_NOT_READY: &str = "SourceNotReady";
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
    /// Its host was told that the claim goes, too.
    pub told: bool,
    /// It outlives the claim: it existed before, or is retained.
    pub kept: bool,
    /// What it was to be filled from is gone, and nobody was ever asked to make it.
    pub unfillable: bool,
    /// It was refused and is surely not there, and by now it would be asked for otherwise: its claim or its class says something
    /// else, or there was no room for it and another place is chosen.
    pub superseded: bool,
    /// Its plugin gave it what is another's: it is never used.
    pub anothers: bool,
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
    /// Which volumes it has: those that are created and deleted, and those that are there while they are published.
    pub lives: Lives,
    /// With `controllerScope: Node`: the nodes with a healthy controller instance that the class allows, each with the
    /// number of volumes it has.
    pub nodes: Option<Vec<(String, usize)>>,
    /// The nodes with a healthy instance, each with what that reports of its place; nothing where the plugin is asked for no place.
    pub places: Option<Vec<(String, Segments)>>,
}

/// Which volumes a plugin has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lives {
    /// Those that are created and deleted.
    pub persistent: bool,
    /// Those that are there while they are published.
    pub ephemeral: bool,
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

/// What a claim's volume is to be filled from, as it is seen.
#[derive(Debug, Clone)]
pub struct Source {
    /// How a person calls it, such as `claim "data"`.
    pub from: String,
    /// What the class's plugin has to be able to do: CSI's word.
    pub capability: &'static str,
    /// Whether it is.
    pub able: bool,
    /// How it stands.
    pub state: SourceState,
}

/// How the source of a volume stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceState {
    /// There is no object of that name: its kind, its name.
    Missing(&'static str, String),
    /// It is on its way out: its kind, its name.
    Leaving(&'static str, String),
    /// It cannot be used yet, and why.
    NotReady(String),
    /// It can be used.
    There(Origin),
}

/// A source that can be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// Its plugin.
    pub plugin: String,
    /// Its size in bytes; 0 = nobody said.
    pub bytes: i64,
    /// Whether it is a block volume or a file system, where that is known.
    pub block: Option<bool>,
    /// With `controllerScope: Node`, the only node that knows it.
    pub node: String,
    /// Where it can be reached from; anywhere when empty.
    pub topology: Vec<Segments>,
}

/// What a claim asks of its volume, as far as its source has to fit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// At least so many bytes; 0 = as many as the source has.
    pub bytes: i64,
    /// At most so many; 0 = no bound.
    pub limit: i64,
    /// Whether it is a block volume.
    pub block: bool,
    /// Where its class lets it be; anywhere when empty.
    pub allowed: Vec<Segments>,
    /// What the plugin reports of the place of the selected node; empty for nothing.
    pub here: Segments,
}

/// Everything that decides.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The claim is being deleted.
    pub deleting: bool,
    /// Allocations that have it ([`has`]).
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
    /// What its volume is filled from; none for nothing.
    pub source: Option<Source>,
    /// Why its volume cannot have the attributes that it names; none if it can, or names none.
    pub attributes: Option<Reason>,
    /// What it asks of it.
    pub wish: Wish,
    /// Its volume is there only while it is used: it has no class, and what `class` says is of the plugin that it names.
    pub ephemeral: bool,
    /// What is being made of its volume, such as `claim default/copy` and `snapshot default/nightly`.
    pub copies: Vec<String>,
}

/// An allocation that names a claim, as it is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consumer {
    /// It is over, or stopped.
    pub over: bool,
    /// It holds the claim's volume.
    pub holds: bool,
    /// Its node has not said that the volume is down there.
    pub there: bool,
}

/// Whether an allocation has a claim, and so keeps it when that is deleted. One that waits for it has nothing, and is
/// given nothing any more: both would wait for each other.
pub fn has(consumer: Consumer) -> bool {
    consumer.holds || consumer.there && !consumer.over
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
    /// Delete the volume's object, so that another one is begun where and as the claim wants it now.
    BeginAnew,
    /// Tell the host of the volume, which was deleted first and waits for its claim, that this goes, too.
    Tell,
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

/// Whether what is said of a claim, after `last`, may wait a moment: it is being `deleted` and in use, and mostly its users are
/// deleted with it.
pub fn is_passing(verdict: &Verdict, last: Option<&str>, deleted: bool) -> bool {
    let in_use = |word: &str| word == Reason::InUse { by: String::new() }.word();
    deleted && matches!(&verdict.ready, Err((word, _)) if in_use(word)) && !last.is_some_and(in_use)
}

fn why(reason: &Reason) -> Result<(), (String, String)> {
    Err((reason.word().to_owned(), reason.to_string()))
}

fn pending(reason: &Reason) -> Verdict {
    Verdict { phase: ClaimPhase::Pending, ready: why(reason), step: None }
}

/// What a volume says that waits for who has it.
const IN_USE: &str = "InUse";

fn leaving(facts: &Facts) -> Verdict {
    let phase = facts.phase.unwrap_or(ClaimPhase::Pending);
    let passed_over = planted!("deleted-in-use") && facts.volume.is_some();
    if !(facts.users.is_empty() || passed_over) {
        let by = format!("allocation {}", facts.users.join(", "));
        return Verdict { phase, ready: why(&Reason::InUse { by }), step: None };
    }
    let being_deleted = |kind, name: &str| why(&Reason::BeingDeleted { kind, name: name.to_owned() });
    match &facts.volume {
        Some(volume) if volume.owner == Owner::Mine && !volume.kept && !facts.copies.is_empty() => {
            let by = format!("{}, which is being made of its volume", facts.copies.join(", "));
            Verdict { phase, ready: why(&Reason::InUse { by }), step: None }
        }
        Some(volume) if volume.owner == Owner::Mine && !volume.kept => Verdict {
            phase,
            ready: if volume.deleting {
                Err(volume.why.clone())
            } else {
                being_deleted("Volume", &volume.name)
            },
            step: match (volume.deleting, volume.told) {
                (false, _) => Some(Step::DeleteVolume),
                (true, false) if volume.why.0 == IN_USE => Some(Step::Tell),
                (true, _) => None,
            },
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
    // Another object of the name, if there is one, is another content: it is begun anew, from that.
    if volume.unfillable
        && facts.named.is_empty()
        && volume.owner == Owner::Mine
        && phase != ClaimPhase::Bound
    {
        return Verdict { phase, ready: Err(volume.why.clone()), step: Some(Step::DeleteVolume) };
    }
    if volume.superseded && volume.owner == Owner::Mine && phase != ClaimPhase::Bound {
        return Verdict { phase, ready: Err(volume.why.clone()), step: Some(Step::BeginAnew) };
    }
    if !volume.mismatch.is_empty() {
        let details = volume.mismatch.clone();
        return pending(&Reason::VolumeMismatch { volume: volume.name.clone(), details });
    }
    let step = (volume.owner == Owner::Free).then_some(Step::Adopt);
    // Once bound, bound: a host that changes makes the volume doubtful for a while, not the claim. But it may be bound before it is said
    // whose the volume is.
    if step.is_none() && (volume.ready || phase == ClaimPhase::Bound && !volume.anothers) {
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
    if !class.found && !facts.ephemeral {
        return pending(&Reason::NotFound { kind: "VolumeClass", name: class.name.clone() });
    }
    let Some(plugin) = &class.plugin else {
        return pending(&Reason::NotFound { kind: "Plugin", name: class.plugin_name.clone() });
    };
    if plugin.deleting {
        return pending(&Reason::BeingDeleted { kind: "Plugin", name: class.plugin_name.clone() });
    }
    let (lives, mode) = if facts.ephemeral {
        (plugin.lives.ephemeral, "Ephemeral")
    } else {
        (plugin.lives.persistent, "Persistent")
    };
    if !lives {
        return pending(&Reason::NoLifecycleMode { plugin: class.plugin_name.clone(), mode });
    }
    if facts.ephemeral {
        // Nobody has to make it, so nobody has to be there yet.
        return begun(String::new());
    }
    let (selected, selected_serves) = (&facts.selected.0, facts.selected.1);
    let not_ready = |node: &str| {
        pending(&Reason::PluginNotReady { plugin: class.plugin_name.clone(), node: node.to_owned() })
    };
    let lacks = match &facts.source {
        _ if !plugin.serves => None,
        _ if !plugin.creates => Some("CREATE_DELETE_VOLUME"),
        Some(source) if !source.able => Some(source.capability),
        Some(_) | None => None,
    };
    if let Some(capability) = lacks {
        return pending(&Reason::PluginLacks { plugin: class.plugin_name.clone(), capability });
    }
    if let Some(reason) = facts.attributes.as_ref().filter(|_| plugin.serves) {
        return pending(reason);
    }
    let origin = match facts.source.as_ref().map(|source| usable(source, &facts.wish, &class.plugin_name)) {
        None => None,
        Some(Ok(origin)) => Some(origin),
        Some(Err(reason)) => return pending(&reason),
    };
    if class.late && selected.is_empty() {
        return pending(&Reason::WaitingForFirstConsumer);
    }
    if !plugin.serves {
        return not_ready("");
    }
    if class.late && !selected_serves {
        return not_ready(selected);
    }
    if facts.wish.allowed.is_empty() || origin.is_some_and(|origin| !origin.topology.is_empty()) {
        // It may be anywhere, or where that is which it is filled from.
    } else if let Some(places) = &plugin.places {
        if places.is_empty() {
            return not_ready("");
        }
        let can = |(node, place): &&(String, Segments)| {
            (!class.late || node == selected) && reaches(&facts.wish.allowed, place)
        };
        if !places.iter().any(|place| can(&place)) {
            return pending(&outside(class, &facts.wish.allowed, places));
        }
    }
    match place(facts, plugin, origin) {
        Ok(node) => begun(node),
        Err(node) => not_ready(&node),
    }
}

/// With `controllerScope: Node`, the node where the volume is made; or the one whose instance is waited for. Empty for any.
fn place(facts: &Facts, plugin: &Plugin, origin: Option<&Origin>) -> Result<String, String> {
    let Some(nodes) = &plugin.nodes else { return Ok(String::new()) };
    let only = match origin {
        // Nobody else knows what it is filled from.
        Some(origin) if !origin.node.is_empty() => Some(&origin.node),
        Some(_) | None => Some(&facts.selected.0).filter(|_| facts.class.late),
    };
    match only {
        Some(only) if nodes.iter().any(|(node, _)| node == only) => Ok(only.clone()),
        Some(only) => Err(only.clone()),
        None => {
            let least = nodes.iter().min_by_key(|(node, load)| (*load, node));
            least.map(|(node, _)| node.clone()).ok_or_else(String::new)
        }
    }
}

/// How many places a message names.
const NAMED: usize = 4;

fn outside(class: &Class, allowed: &[Segments], places: &[(String, Segments)]) -> Reason {
    let there = places.iter().map(|(node, place)| format!("on {node}: {}", in_words(place)));
    Reason::NoPlaceAllowed {
        class: class.name.clone(),
        allowed: some_of(allowed.iter().map(in_words), " or "),
        plugin: class.plugin_name.clone(),
        there: some_of(there, "; "),
    }
}

/// Some of them, and how many there are more.
pub(super) fn some_of(all: impl ExactSizeIterator<Item = String>, between: &str) -> String {
    let more = all.len().saturating_sub(NAMED);
    let some = all.take(NAMED).collect::<Vec<_>>().join(between);
    if more == 0 { some } else { format!("{some}{between}{more} more") }
}

/// Such as `rack=7,zone=north`.
pub(super) fn in_words(place: &Segments) -> String {
    let pairs: Vec<_> = place.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if pairs.is_empty() { "no topology".to_owned() } else { pairs.join(",") }
}

fn begun(node: String) -> Verdict {
    let ready = Err((PROVISIONING.to_owned(), "its volume is being made".to_owned()));
    Verdict { phase: ClaimPhase::Pending, ready, step: Some(Step::Create { node }) }
}

/// The source of a volume, if it can be used and fits what is asked for.
pub fn usable<'s>(source: &'s Source, wish: &Wish, plugin: &str) -> Result<&'s Origin, Reason> {
    let from = || source.from.clone();
    let origin = match &source.state {
        SourceState::Missing(kind, name) => return Err(Reason::NotFound { kind, name: name.clone() }),
        SourceState::Leaving(kind, name) => return Err(Reason::BeingDeleted { kind, name: name.clone() }),
        SourceState::NotReady(why) => return Err(Reason::SourceNotReady { from: from(), why: why.clone() }),
        SourceState::There(origin) => origin,
    };
    if let Some(details) = mismatch(origin, wish, plugin) {
        return Err(Reason::SourceMismatch { from: from(), details });
    }
    let terms = &origin.topology;
    let allowed = terms.is_empty() || terms.iter().any(|term| reaches(&wish.allowed, term));
    let details = if !allowed {
        "the class's allowedTopologies leave out where it is; choose another class"
    } else if !wish.here.is_empty() && !reaches(terms, &wish.here) {
        "the node of the first consumer does not reach it; let the consumer go where it is reached"
    } else {
        return Ok(origin);
    };
    Err(Reason::SourceElsewhere { from: from(), details: details.to_owned() })
}

/// What of the source does not fit what is asked for.
fn mismatch(origin: &Origin, wish: &Wish, plugin: &str) -> Option<String> {
    if origin.plugin != plugin {
        let its = &origin.plugin;
        return Some(format!(
            "it is of plugin \"{its}\", and the class of plugin \"{plugin}\"; choose a class of \"{its}\""
        ));
    }
    let mode = |block| if block { "Block" } else { "Filesystem" };
    if let Some(block) = origin.block.filter(|block| *block != wish.block) {
        return Some(format!("its volumeMode is {}; ask for that", mode(block)));
    }
    let has = quantity::display(origin.bytes);
    if wish.bytes != 0 && wish.bytes < origin.bytes {
        return Some(format!("it has {has}; ask for no less"));
    }
    (wish.limit != 0 && wish.limit < origin.bytes).then(|| format!("it has {has}; the limit may not be less"))
}

#[cfg(test)]
mod tests;
