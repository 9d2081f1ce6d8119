//! Who makes a volume's calls: asked to let go, asked back, let go, replaced, on two nodes with daemons that restart and
//! whose caches are as old as may be.
//!
//! The steps are chosen by `plan::host`. The store takes a word only on the state that it was said of; a word of a host may be on
//! its way for any time, and outlive its daemon. A host that goes on although it was asked is a fault that `plan` cannot see:
//! each of [`Mistake`] is a rule for the code around it.
//!
//! Not modelled: a host that is replaced for its silence (its lease is what `plan::host::host_node` counts).
use stateright::{Checker, HasDiscoveries, Model, Path, Property};
use wharfline::api::meta::Host;
use wharfline::plan::host::{self, Candidate, Decision, Facts, HostNode, Serving};

const NAMES: [&str; 2] = ["a", "b"];
const BOTH: [usize; 2] = [0, 1];

const ONE_CALLS: &str = "one node calls";
const HANDED_OVER: &str = "b calls after a";
const TAKEN_BACK: &str = "a calls on, which was asked to let go";
const ANEW: &str = "a calls again after b";
const HOSTLESS: &str = "a host that has let go is followed by another";

/// What stands on the Volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Stands {
    version: u8,
    host: usize,
    epoch: i64,
    asked: Option<i64>,
    released: i64,
}

/// A host's word that it lets go, on its way to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Word {
    epoch: i64,
    seen: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Daemon {
    sees: Stands,
    /// A call is at work at its driver.
    calls: bool,
    word: Option<Word>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    volume: Stands,
    daemons: [Daemon; 2],
    restarts: u8,
    /// What a leader decided on, if its caches are old.
    leader: Stands,
    /// The host of epoch 1 was asked, and its question was taken back.
    taken_back: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// A leader decides, its instance at the host standing so.
    Lead(Standing),
    LeaderSees,
    See(usize),
    Call(usize),
    Ends(usize),
    LetGo(usize),
    Arrives(usize),
    Restart(usize),
}

/// [`Serving`], which is not hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Standing {
    Well,
    Unsteady,
    Away,
    Leaving,
    Gone,
}

/// What the code around the plan could do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// The word that it lets go is taken on any state of the Volume.
    LateWordCounts,
    /// What a leader decided on an old state is written all the same.
    LeaderOverwrites,
    /// A host says that it lets go while its call is at work.
    LetsGoInACall,
    /// A host that was asked goes on.
    CallsOn,
}

#[derive(Debug, Clone, Copy)]
struct Hosts {
    versions: u8,
    restarts: u8,
    mistake: Option<Mistake>,
}

impl Hosts {
    fn makes(self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// What `plan` makes of the Volume as a leader sees it.
    fn decision(sees: Stands, standing: Standing) -> Decision {
        let host = host_of(sees);
        let candidates =
            NAMES.map(|node| Candidate { node: node.into(), load: 0, stays: true, steady: true });
        // The one that does not serve is no candidate.
        let serves = |c: &Candidate| {
            c.node != host.node_name || matches!(standing, Standing::Well | Standing::Unsteady)
        };
        let candidates: Vec<_> = candidates.into_iter().filter(serves).collect();
        host::decide(&Facts {
            current: Some(&host),
            current_node: HostNode::Alive,
            serving: match standing {
                Standing::Well => Serving::Well,
                Standing::Unsteady => Serving::Unsteady,
                Standing::Away => Serving::Away,
                Standing::Leaving => Serving::Leaving,
                Standing::Gone => Serving::Gone,
            },
            asked: sees.asked,
            released: sees.released,
            node_goes: false,
            candidates: &candidates,
            only: None,
            local: false,
            preferred: None,
            plugin: "p",
            has_controllers: true,
        })
    }

    /// A leader's write, on the state that it saw.
    fn lead(self, w: &mut World, standing: Standing) -> bool {
        let sees = w.leader;
        let stale = sees.version != w.volume.version && !self.makes(Mistake::LeaderOverwrites);
        let mut new = w.volume;
        match Self::decision(sees, standing) {
            Decision::AskToRelease => new.asked = Some(sees.epoch),
            Decision::TakeBack => new.asked = None,
            Decision::Assign(host) => {
                new.host = usize::from(host.node_name == NAMES[1]);
                (new.epoch, new.asked) = (host.epoch, None);
            }
            Decision::Keep | Decision::Wait(_) | Decision::Unneeded => return false,
        }
        if stale || new == w.volume || new.version == self.versions {
            return false;
        }
        w.taken_back |=
            w.volume.epoch == 1 && w.volume.asked == Some(1) && new.asked.is_none() && new.epoch == 1;
        new.version += 1;
        w.volume = new;
        true
    }

    /// Whether the daemon makes calls by what it sees.
    fn may_call(self, node: usize, sees: Stands) -> bool {
        let rests = host::rests(&host_of(sees), sees.asked, sees.released);
        sees.host == node && (!rests || self.makes(Mistake::CallsOn))
    }
}

fn host_of(stands: Stands) -> Host {
    Host { node_name: NAMES[stands.host].to_owned(), epoch: stands.epoch }
}

impl Model for Hosts {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let volume = Stands { version: 0, host: 0, epoch: 1, asked: None, released: 0 };
        let daemon = Daemon { sees: volume, calls: false, word: None };
        vec![World {
            volume,
            daemons: [daemon; 2],
            restarts: self.restarts,
            leader: volume,
            taken_back: false,
        }]
    }

    fn actions(&self, _: &World, steps: &mut Vec<Step>) {
        let standings =
            [Standing::Well, Standing::Unsteady, Standing::Away, Standing::Leaving, Standing::Gone];
        steps.extend(standings.map(Step::Lead));
        steps.push(Step::LeaderSees);
        for node in BOTH {
            steps.extend([Step::See(node), Step::Call(node), Step::Ends(node)]);
            steps.extend([Step::LetGo(node), Step::Arrives(node), Step::Restart(node)]);
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut w = *before;
        match step {
            Step::Lead(standing) => return self.lead(&mut w, standing).then_some(w),
            Step::LeaderSees => w.leader = w.volume,
            Step::See(node) => w.daemons[node].sees = w.volume,
            Step::Call(node) => {
                w.daemons[node].calls |= self.may_call(node, w.daemons[node].sees);
            }
            Step::Ends(node) => w.daemons[node].calls = false,
            Step::LetGo(node) => {
                let daemon = &mut w.daemons[node];
                let sees = daemon.sees;
                let asked = sees.host == node && host::rests(&host_of(sees), sees.asked, sees.released);
                // One that began may have a call under way of the daemon before it, and waits as long as that.
                if asked && (!daemon.calls || self.makes(Mistake::LetsGoInACall)) {
                    daemon.word = Some(Word { epoch: sees.epoch, seen: sees.version });
                }
            }
            Step::Arrives(node) => {
                let word = w.daemons[node].word.take()?;
                let late = word.seen != w.volume.version && !self.makes(Mistake::LateWordCounts);
                if !late && w.volume.released != word.epoch && w.volume.version < self.versions {
                    w.volume.released = word.epoch;
                    w.volume.version += 1;
                }
            }
            Step::Restart(node) => {
                w.restarts = w.restarts.checked_sub(1)?;
                // Its word may still be on its way, and its driver at work.
                w.daemons[node].sees = w.volume;
            }
        }
        (w != *before).then_some(w)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_CALLS, |_, w: &World| !w.daemons.iter().all(|daemon| daemon.calls)),
            Property::sometimes(HANDED_OVER, |_, w: &World| w.daemons[1].calls && w.volume.epoch == 2),
            Property::sometimes(TAKEN_BACK, |_, w: &World| {
                w.taken_back && w.daemons[0].calls && w.daemons[0].sees == w.volume && w.volume.epoch == 1
            }),
            Property::sometimes(ANEW, |_, w: &World| w.daemons[0].calls && w.daemons[0].sees.epoch == 3),
            Property::sometimes(HOSTLESS, |_, w: &World| w.volume.released == 1 && w.volume.epoch == 2),
        ]
    }
}

#[test]
fn one_host_at_a_time_makes_the_calls_of_a_volume_asked_and_asked_back() {
    let found = Hosts { versions: 7, restarts: 1, mistake: None }.checker().spawn_bfs().join();
    println!("{} worlds", found.unique_state_count());
    found.assert_properties();
}

#[test]
fn every_mistake_about_a_host_is_found() {
    for mistake in
        [Mistake::LateWordCounts, Mistake::LeaderOverwrites, Mistake::LetsGoInACall, Mistake::CallsOn]
    {
        let found = Hosts { versions: 7, restarts: 0, mistake: Some(mistake) }
            .checker()
            .finish_when(HasDiscoveries::AnyOf([ONE_CALLS].into()))
            .spawn_bfs()
            .join();
        let path = found.discovery(ONE_CALLS).map(Path::into_actions);
        println!("{mistake:?}, {} worlds: {path:?}", found.unique_state_count());
        assert!(path.is_some(), "{mistake:?} does no harm");
    }
}
