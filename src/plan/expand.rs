//! What an expansion needs next: asked for by its claim, made by its host, ended on each node that has the volume.
//!
//! ```text
//!   claim: requested > asked before ▶ SetSize
//!   host:  size > capacity ▶ Ask ▶ Expand ▶ capacity, nodeBytes      (in doubt: the same Expand again)
//!   node:  staged, nobody published: Now (once) ▶ later, behind what users wait for ▶ done
//! ```
//! See docs/design/expansion.md. The node's part is a step of [`super::mount`].
use super::{Next, Reason};
use crate::api::meta::VolumeMode;
use crate::api::volume::WantedSize;

/// What decides whether a claim's volume is asked for another size.
#[derive(Debug, Clone)]
pub struct Claim {
    /// What the claim asks for, in bytes.
    pub requested: i64,
    /// Its upper bound, in bytes; 0 = none.
    pub limit: i64,
    /// What its volume was asked for last, in bytes; 0 = nobody knows: it was registered, and its size was never told.
    pub asked: i64,
    /// The size that its volume has, in bytes; 0 = nobody said.
    pub capacity: i64,
    /// The class, if it has one, and whether it lets volumes expand.
    pub class: Option<(String, bool)>,
    /// The plugin.
    pub plugin: String,
    /// What can be done by instances that are healthy.
    pub can: Ability,
}

/// What of an expansion a plugin does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ability {
    /// No instance that would tell is healthy.
    NotKnown,
    /// Nothing.
    Nothing,
    /// The controller expands, and says whether nodes have to go on.
    Controller,
    /// Only nodes expand.
    NodeAlone,
}

/// What is to be done about a claim's size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// Its volume was asked for it.
    AsAsked,
    /// Its volume is to be asked for this.
    Set(WantedSize),
    /// It cannot be asked for.
    Refused(Reason),
}

/// What is to be done about a volume that was never asked for another size than it was made or registered with, where nothing of it is asked
/// now, or nobody can tell. Absent = [`claimed`] decides.
pub fn as_it_came(requested: i64, asked: i64, registered: Option<&str>) -> Option<Claimed> {
    match registered {
        Some(volume) if asked == 0 && requested > 0 => {
            Some(Claimed::Refused(Reason::SizeUnknown { volume: volume.to_owned() }))
        }
        _ => (requested <= asked || asked == 0).then_some(Claimed::AsAsked),
    }
}

/// What is to be done about the size that a bound claim asks for.
pub fn claimed(claim: &Claim) -> Claimed {
    // Of a volume whose size nobody told, what its claim asks for is taken for what it has.
    if claim.asked == 0 || claim.requested == claim.asked || claim.requested < claim.capacity {
        return Claimed::AsAsked;
    }
    // What is there already, or is taken back, needs nobody's leave.
    let node_only = claim.can == Ability::NodeAlone;
    let set = Claimed::Set(WantedSize {
        required_bytes: claim.requested,
        limit_bytes: if claim.limit >= claim.requested { claim.limit } else { 0 },
        node_only,
    });
    if claim.requested <= claim.capacity || claim.requested < claim.asked && !node_only {
        return set;
    }
    if let Some((class, false)) = &claim.class {
        return Claimed::Refused(Reason::ExpansionNotAllowed { class: class.clone() });
    }
    let plugin = claim.plugin.clone();
    match claim.can {
        Ability::NotKnown => Claimed::Refused(Reason::PluginNotReady { plugin, node: String::new() }),
        Ability::Nothing => Claimed::Refused(Reason::PluginLacks { plugin, capability: "EXPAND_VOLUME" }),
        Ability::Controller | Ability::NodeAlone => set,
    }
}

/// What a host sees of a volume that exists.
#[derive(Debug, Clone, Copy)]
pub struct Hosted {
    /// The size that it shall have.
    pub wanted: Option<WantedSize>,
    /// The size that it has, in bytes; 0 = nobody said.
    pub capacity: i64,
    /// What was asked for and not answered for good.
    pub asked: Option<WantedSize>,
    /// Whether the plugin expands what is in use.
    pub online: bool,
    /// Whether anything holds or may hold it.
    pub held: bool,
}

/// One thing that a host does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Says what it is about to ask for, so that the same is asked again whatever becomes of it.
    Ask(WantedSize),
    /// ControllerExpandVolume.
    Expand(WantedSize),
}

/// The next step of a host.
pub fn hosted(seen: &Hosted) -> Next<Step> {
    let wanted = seen.wanted.filter(|size| !size.node_only && size.required_bytes > seen.capacity);
    let step = match (seen.asked, wanted) {
        (Some(asked), _) => Step::Expand(asked),
        (None, Some(wanted)) => Step::Ask(wanted),
        (None, None) => return Next::Converged,
    };
    if seen.held && !seen.online {
        return Next::Wait(Reason::InUse { by: "an allocation or a node that may still have it".to_owned() });
    }
    Next::Do(step)
}

/// What a node knows of the size of a volume that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Growth {
    /// It owes nothing.
    #[default]
    Done,
    /// It owes an expansion that was not tried since the volume was staged.
    Owed,
    /// One that was tried and has not succeeded.
    Tried,
    /// One that the plugin refuses for as long as the volume is staged (CO-NODE-87).
    Refused,
}

/// Whether a node can bring a volume to its size: no file system grows through a mount that nobody may write, and the debt stays. A
/// device shows its size, and nothing is written.
pub fn can_grow(read_only: bool, mode: VolumeMode) -> bool {
    !read_only || mode == VolumeMode::Block
}

/// What a node owes, by what it shall do, what it has done, and what it tried since the volume was staged.
pub fn growth(wanted: i64, done: i64, tried: Option<Tried>) -> Growth {
    match tried {
        _ if wanted <= done => Growth::Done,
        // Another size is another question.
        Some(tried) if tried.bytes == wanted && tried.refused => Growth::Refused,
        Some(_) => Growth::Tried,
        None => Growth::Owed,
    }
}

/// The last expansion that a node tried and that did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Tried {
    /// To what size, in bytes.
    pub bytes: i64,
    /// The plugin said that it cannot while the volume is staged or published as it is.
    pub refused: bool,
}

/// One node that has a volume, as its attachment tells.
#[derive(Debug, Clone, Copy)]
pub struct Having {
    /// Whether the volume is up there, or may be.
    pub up: bool,
    /// The size that the node has brought it to, in bytes.
    pub expanded: i64,
}

/// The size that users have, in bytes: what the backend has, or, as long as nodes have not done their part, what was shown
/// before.
pub fn seen(backend: i64, node_bytes: i64, shown: i64, nodes: &[Having]) -> i64 {
    // A plugin that expands on nodes alone never tells a size.
    let whole = backend.max(node_bytes);
    if node_bytes <= shown || backend == 0 && node_bytes == 0 {
        return whole;
    }
    let one = nodes.iter().any(|node| node.expanded >= node_bytes);
    let behind = nodes.iter().any(|node| node.up && node.expanded < node_bytes);
    if one && !behind { whole } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_system_wants_to_be_written_to_grow() {
        use VolumeMode::{Block, Filesystem};
        for (read_only, mode, can) in
            [(false, Filesystem, true), (false, Block, true), (true, Filesystem, false), (true, Block, true)]
        {
            assert_eq!(can_grow(read_only, mode), can, "{read_only} {mode:?}");
        }
    }

    fn claim() -> Claim {
        Claim {
            requested: 10,
            limit: 0,
            asked: 10,
            capacity: 10,
            class: Some(("c".into(), true)),
            plugin: "p".into(),
            can: Ability::Controller,
        }
    }

    fn size(required: i64) -> WantedSize {
        WantedSize { required_bytes: required, limit_bytes: 0, node_only: false }
    }

    #[test]
    fn what_a_claim_asks_for_is_passed_on_or_refused_with_a_reason() {
        type Edit = fn(&mut Claim);
        let word = |edit: Edit| {
            let mut claim = claim();
            edit(&mut claim);
            match claimed(&claim) {
                Claimed::AsAsked => "as asked".to_owned(),
                Claimed::Set(size) => {
                    format!("{}..{} {}", size.required_bytes, size.limit_bytes, size.node_only)
                }
                Claimed::Refused(reason) => reason.word().to_owned(),
            }
        };
        let cases: [(Edit, &str); 13] = [
            (|_| {}, "as asked"),
            (|c| (c.asked, c.capacity, c.class) = (0, 0, None), "as asked"),
            (|c| c.requested = 20, "20..0 false"),
            (|c| (c.requested, c.limit) = (20, 30), "20..30 false"),
            // A bound from before the request was raised is none.
            (|c| (c.requested, c.limit) = (20, 15), "20..0 false"),
            (|c| (c.requested, c.can) = (20, Ability::NodeAlone), "20..0 true"),
            (|c| (c.requested, c.can) = (20, Ability::Nothing), "PluginLacksCapability"),
            (|c| (c.requested, c.can) = (20, Ability::NotKnown), "PluginNotReady"),
            (|c| (c.requested, c.class) = (20, Some(("c".into(), false))), "ExpansionNotAllowed"),
            // A volume that a person registered has no class that could forbid it.
            (|c| (c.requested, c.class) = (20, None), "20..0 false"),
            // Taken back: it never got more than it has.
            (|c| (c.asked, c.class) = (20, Some(("c".into(), false))), "10..0 false"),
            // The plugin made it larger than asked, and the claim follows.
            (|c| (c.requested, c.capacity, c.class) = (20, 30, Some(("c".into(), false))), "as asked"),
            (|c| (c.requested, c.asked, c.capacity) = (15, 20, 10), "15..0 false"),
        ];
        for (edit, wanted) in cases {
            assert_eq!(word(edit), wanted);
        }
    }

    #[test]
    fn what_was_never_asked_for_more_is_as_it_came() {
        for (requested, asked, registered, word) in [
            (10, 10, None, Some("as asked")),
            (5, 10, None, Some("as asked")),
            // Made without a size, or registered, and its claim asks for none.
            (10, 0, None, Some("as asked")),
            (0, 0, Some("v"), Some("as asked")),
            (10, 0, Some("v"), Some("SizeUnknown")),
            (10, 10, Some("v"), Some("as asked")),
            (20, 10, Some("v"), None),
            (20, 10, None, None),
        ] {
            let decided = as_it_came(requested, asked, registered);
            let said = decided.map(|claimed| match claimed {
                Claimed::Refused(reason) => reason.word().to_owned(),
                Claimed::AsAsked => "as asked".to_owned(),
                Claimed::Set(size) => format!("{size:?}"),
            });
            assert_eq!(said.as_deref(), word, "{requested} {asked} {registered:?}");
        }
    }

    #[test]
    fn a_host_asks_for_one_size_until_it_is_answered() {
        for required in [5, 10, 20] {
            for asked in [None, Some(size(15))] {
                for online in [false, true] {
                    for held in [false, true] {
                        let seen = Hosted { wanted: Some(size(required)), capacity: 10, asked, online, held };
                        let next = hosted(&seen);
                        match (asked, required > 10) {
                            (None, false) => assert_eq!(next, Next::Converged, "{seen:?}"),
                            _ if held && !online => assert!(matches!(next, Next::Wait(_)), "{seen:?}"),
                            (Some(asked), _) => assert_eq!(next, Next::Do(Step::Expand(asked)), "{seen:?}"),
                            (None, true) => assert_eq!(next, Next::Do(Step::Ask(size(required))), "{seen:?}"),
                        }
                    }
                }
            }
        }
        let alone = WantedSize { node_only: true, ..size(20) };
        let none = Hosted { wanted: Some(alone), capacity: 0, asked: None, online: true, held: false };
        assert_eq!(hosted(&none), Next::Converged, "its controller cannot");
        assert_eq!(hosted(&Hosted { wanted: None, ..none }), Next::Converged);
        let unknown = Hosted { wanted: Some(size(20)), ..none };
        assert_eq!(hosted(&unknown), Next::Do(Step::Ask(size(20))), "nobody said how large it is");
    }

    #[test]
    fn a_node_owes_what_it_has_not_done() {
        let refused = |bytes| Some(Tried { bytes, refused: true });
        for (wanted, done, tried, owes) in [
            (0, 0, None, Growth::Done),
            (10, 10, refused(10), Growth::Done),
            (10, 20, None, Growth::Done),
            (10, 0, None, Growth::Owed),
            (20, 10, Some(Tried { bytes: 20, refused: false }), Growth::Tried),
            (20, 10, refused(20), Growth::Refused),
            (30, 10, refused(20), Growth::Tried),
        ] {
            assert_eq!(growth(wanted, done, tried), owes, "{wanted} {done} {tried:?}");
        }
    }

    #[test]
    fn the_size_shown_is_what_users_have() {
        let at = |up, expanded| Having { up, expanded };
        for (backend, node_bytes, shown, nodes, wanted) in [
            (10, 0, 0, vec![], 10),
            (20, 0, 10, vec![at(true, 0)], 20),
            (20, 20, 10, vec![], 10),
            (20, 20, 10, vec![at(true, 0)], 10),
            (20, 20, 10, vec![at(true, 20)], 20),
            (20, 20, 10, vec![at(true, 20), at(true, 0)], 10),
            (20, 20, 10, vec![at(true, 20), at(false, 0)], 20),
            // Who comes later is behind for a moment, and takes nothing back.
            (20, 20, 20, vec![at(true, 0)], 20),
            // On nodes alone.
            (0, 20, 10, vec![at(true, 0)], 10),
            (0, 20, 10, vec![at(true, 20)], 20),
            (0, 0, 0, vec![], 0),
        ] {
            assert_eq!(
                seen(backend, node_bytes, shown, &nodes),
                wanted,
                "{backend} {node_bytes} {shown} {nodes:?}"
            );
        }
    }
}
