//! Which node makes a volume's controller calls.
//!
//! One host at a time. A host is replaced only when it let go (it is asked to when its plugin leaves it and serves
//! elsewhere), is fenced, or its lease has run out for longer than the
//! longest call it may have begun; the new one gets a higher epoch and treats every rung as Unknown, but for what is up and wanted.
//!
//! The question is taken back when the plugin does well there again before the host has let go. Both words are about one
//! state of the object, and the store refuses the later of the two (tests/model/hosts.rs).
use std::time::Duration;

use super::Reason;
use crate::api::meta::Host;

/// What is known of the present host's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostNode {
    /// Its lease is renewed.
    Alive,
    /// Its lease has run out, not long enough ago.
    Silent,
    /// Its lease has run out for longer than the longest call deadline, or it is fenced, or its Node is deleted.
    Gone,
}

/// What decides whether a node's word still counts. Times are on the controller's own monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Pulse {
    /// How long ago a renewal of its lease was seen last.
    pub silent_for: Duration,
    /// How long it had been silent when the server itself was asked last, and had no newer renewal either: our watch may
    /// be what is silent. Absent when it was not asked.
    pub asked_at: Option<Duration>,
    /// How long a lease lasts.
    pub lease: Duration,
    /// The longest call that the node may have begun while its lease stood.
    pub longest_call: Duration,
    /// A fence stands against it.
    pub fenced: bool,
    /// Its Node object is gone.
    pub deleted: bool,
}

/// What is known of a node as host, and after how much more silence that changes; never by itself where the server has to
/// be asked first.
pub fn host_node(pulse: Pulse) -> (HostNode, Option<Duration>) {
    let end = if planted!("host-replaced-at-once") { pulse.lease } else { pulse.lease + pulse.longest_call };
    let until = |moment: Duration| moment.checked_sub(pulse.silent_for).filter(|left| !left.is_zero());
    let asked_since = |moment| pulse.asked_at.is_some_and(|asked| asked >= moment);
    if pulse.deleted {
        return (HostNode::Gone, None);
    }
    if let Some(left) = until(pulse.lease) {
        return (HostNode::Alive, Some(left));
    }
    if !asked_since(pulse.lease) {
        return (HostNode::Alive, None);
    }
    if pulse.fenced {
        return (HostNode::Gone, None);
    }
    match until(end) {
        Some(left) => (HostNode::Silent, Some(left)),
        // It was silent when it was asked for. It may have spoken since, while we were deaf.
        None if !asked_since(end) => (HostNode::Silent, None),
        None => (HostNode::Gone, None),
    }
}

/// Whether the server has to be asked before more can be said of the node.
pub fn must_ask(pulse: Pulse) -> bool {
    let silent = |moment| pulse.silent_for >= moment && pulse.asked_at.is_none_or(|asked| asked < moment);
    silent(pulse.lease) || silent(pulse.lease + pulse.longest_call)
}

/// How the controller instance of the present host's node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// It is healthy and stays.
    Well,
    /// The same for now, but its process has ended again and again.
    Unsteady,
    /// It is not healthy, and may soon be again.
    Away,
    /// It shall stop, and waits for us.
    Leaving,
    /// There is none, or it has been away for too long.
    Gone,
}

/// A node that could be host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The node, with a healthy controller instance.
    pub node: String,
    /// How many volumes it is host of.
    pub load: usize,
    /// Neither the instance nor the node is on its way out.
    pub stays: bool,
    /// Its instance has kept running.
    pub steady: bool,
}

/// Everything the decision needs.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The present host.
    pub current: Option<&'a Host>,
    /// Its node.
    pub current_node: HostNode,
    /// Its controller instance.
    pub serving: Serving,
    /// The epoch of the host that was asked to let go.
    pub asked: Option<i64>,
    /// The epoch for which a host said that it makes no more calls.
    pub released: i64,
    /// Its Node is being deleted.
    pub node_goes: bool,
    /// Nodes with a healthy controller instance.
    pub candidates: &'a [Candidate],
    /// The only node that will do, with `controllerScope: Node`.
    pub only: Option<&'a str>,
    /// Each node's instance knows its own volumes alone (`controllerScope: Node`).
    pub local: bool,
    /// The consumer's node, preferred.
    pub preferred: Option<&'a str>,
    /// The plugin's name, for the reason.
    pub plugin: &'a str,
    /// Whether the plugin has instances that make controller calls at all.
    pub has_controllers: bool,
}

/// What to do about the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Leave it.
    Keep,
    /// Ask it to let go.
    AskToRelease,
    /// Take back that it was asked to let go: it does well again, and goes on.
    TakeBack,
    /// Assign this one.
    Assign(Host),
    /// The plugin makes no controller calls, so there is nothing to be host of.
    Unneeded,
    /// Nobody can be assigned now.
    Wait(Reason),
}

/// Whether the host has let go, and nobody makes calls for the volume until another is assigned.
pub fn released(current: &Host, released: i64) -> bool {
    released == current.epoch
}

/// Whether the host may make no more calls under its epoch, whatever else it sees: it was asked to let go, or has done so.
pub fn rests(current: &Host, asked: Option<i64>, released_epoch: i64) -> bool {
    asked == Some(current.epoch) || released(current, released_epoch)
}

/// What becomes of a host that may still call.
fn keep_or_ask(facts: &Facts<'_>, current: &Host) -> Decision {
    let others = facts.candidates.iter().any(|c| c.stays && c.node != current.node_name);
    // Of an instance that is gone nothing more is to be expected here; with the Node, its host goes for good.
    let wanted = match facts.serving {
        Serving::Well | Serving::Unsteady | Serving::Away => false,
        Serving::Leaving => others,
        Serving::Gone => others || facts.node_goes,
    };
    // Who is silent does not answer; its silence is counted instead.
    let hears = facts.current_node == HostNode::Alive;
    // Nobody else knows the volumes of a node that it is pinned to.
    let pinned = facts.only == Some(current.node_name.as_str());
    let asked = facts.asked == Some(current.epoch);
    // Whom the volume's own call ends again and again would be asked back each time that it is there for that call.
    if asked && hears && facts.serving == Serving::Well {
        Decision::TakeBack
    } else if wanted && hears && !pinned && !asked {
        Decision::AskToRelease
    } else {
        Decision::Keep
    }
}

/// What becomes of a host whose last word is all that is waited for: it is asked to let go, once.
pub fn asked_off(current: Option<&Host>, asked: Option<i64>) -> Decision {
    match current {
        Some(current) if asked != Some(current.epoch) => Decision::AskToRelease,
        Some(_) | None => Decision::Keep,
    }
}

/// Decides the host of one volume.
pub fn decide(facts: &Facts<'_>) -> Decision {
    // What has a host is known to that node alone, whether that is said or not.
    let home = facts.current.filter(|_| facts.local).map(|host| host.node_name.as_str());
    let facts = &Facts { only: facts.only.or(home), ..facts.clone() };
    let over = |host: &Host| {
        released(host, facts.released)
            || planted!("asked-is-released") && rests(host, facts.asked, facts.released)
    };
    if let Some(current) = facts.current.filter(|current| !over(current)) {
        // The volumes of a node that it is pinned to wait for its return.
        if facts.current_node != HostNode::Gone || facts.only == Some(current.node_name.as_str()) {
            return keep_or_ask(facts, current);
        }
    }
    if facts.current.is_none() && !facts.has_controllers {
        return Decision::Unneeded;
    }
    // Another one that does not know it would say that it is not there.
    if facts.local && facts.only.is_none() && !facts.candidates.is_empty() {
        return Decision::Wait(Reason::NodeNotNamed { plugin: facts.plugin.to_owned() });
    }
    let fits = |c: &&Candidate| facts.only.is_none_or(|only| only == c.node);
    let best = facts.candidates.iter().filter(fits).min_by_key(|c| {
        (!c.stays, !c.steady, facts.preferred != Some(c.node.as_str()), c.load, c.node.clone())
    });
    match best {
        Some(best) => Decision::Assign(Host {
            node_name: best.node.clone(),
            epoch: facts.current.map_or(1, |host| host.epoch + 1),
        }),
        None => Decision::Wait(Reason::PluginNotReady {
            plugin: facts.plugin.to_owned(),
            node: facts.only.unwrap_or_default().to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(list: &[(&str, usize)]) -> Vec<Candidate> {
        list.iter()
            .map(|(node, load)| Candidate { node: (*node).into(), load: *load, stays: true, steady: true })
            .collect()
    }

    fn facts(candidates: &[Candidate]) -> Facts<'_> {
        Facts {
            current: None,
            current_node: HostNode::Gone,
            serving: Serving::Gone,
            asked: None,
            released: 0,
            node_goes: false,
            candidates,
            only: None,
            local: false,
            preferred: None,
            plugin: "p",
            has_controllers: true,
        }
    }

    #[test]
    fn silence_becomes_death_only_after_the_longest_call() {
        let pulse = |silent| Pulse {
            silent_for: Duration::from_secs(silent),
            asked_at: Some(Duration::from_secs(silent)),
            lease: Duration::from_secs(10),
            longest_call: Duration::from_secs(150),
            fenced: false,
            deleted: false,
        };
        for (silent, wanted, left) in [
            (0, HostNode::Alive, Some(10)),
            (9, HostNode::Alive, Some(1)),
            (10, HostNode::Silent, Some(150)),
            (159, HostNode::Silent, Some(1)),
            (160, HostNode::Gone, None),
        ] {
            assert_eq!(host_node(pulse(silent)), (wanted, left.map(Duration::from_secs)), "{silent}");
        }
        let fenced = |silent| host_node(Pulse { fenced: true, ..pulse(silent) }).0;
        assert_eq!(fenced(9), HostNode::Alive, "a fence of a node that speaks is an old one");
        assert_eq!(fenced(10), HostNode::Gone);
        assert_eq!(host_node(Pulse { deleted: true, ..pulse(0) }).0, HostNode::Gone);
        for silent in [10, 159, 1000] {
            for fenced in [false, true] {
                let unasked = host_node(Pulse { asked_at: None, fenced, ..pulse(silent) });
                assert_eq!(unasked, (HostNode::Alive, None), "our own deafness is no silence of the node");
            }
        }
        assert_eq!(host_node(Pulse { asked_at: None, deleted: true, ..pulse(0) }).0, HostNode::Gone);
        // It came back while our watch was deaf, and may call again: what it was asked for before does not count.
        for (silent, asked, wanted, ask) in [
            (9, None, HostNode::Alive, false),
            (10, None, HostNode::Alive, true),
            (10, Some(9), HostNode::Alive, true),
            (100, Some(10), HostNode::Silent, false),
            (160, Some(10), HostNode::Silent, true),
            (161, Some(159), HostNode::Silent, true),
            (161, Some(160), HostNode::Gone, false),
        ] {
            let known = Pulse { asked_at: asked.map(Duration::from_secs), ..pulse(silent) };
            assert_eq!((host_node(known).0, must_ask(known)), (wanted, ask), "{silent} {asked:?}");
        }
    }

    /// Obligation CO-IDEN-03.
    #[test]
    fn a_plugin_without_controller_service_needs_no_host() {
        assert_eq!(decide(&Facts { has_controllers: false, ..facts(&[]) }), Decision::Unneeded);
    }

    #[test]
    fn what_one_node_alone_knows_goes_to_the_node_that_is_named() {
        let list = candidates(&[("a", 0), ("b", 0)]);
        let local = Facts { local: true, ..facts(&list) };
        assert_eq!(decide(&local), Decision::Wait(Reason::NodeNotNamed { plugin: "p".into() }));
        assert_eq!(assigned(decide(&Facts { only: Some("b"), ..local.clone() })), Some(("b".into(), 1)));
        let host = Host { node_name: "a".into(), epoch: 4 };
        let has =
            Facts { current: Some(&host), current_node: HostNode::Alive, serving: Serving::Well, ..local };
        assert_eq!(decide(&has), Decision::Keep, "what has a host keeps it");
        // Nobody else knows it, whatever becomes of that node.
        for (current_node, released) in [(HostNode::Gone, 0), (HostNode::Alive, 4), (HostNode::Gone, 4)] {
            let left = Facts { current_node, released, ..has.clone() };
            let wanted = (released == 4).then(|| ("a".to_owned(), 5));
            assert_eq!(assigned(decide(&left)), wanted, "{left:?}");
        }
        let leaving = Facts { serving: Serving::Leaving, ..has };
        assert_eq!(decide(&leaving), Decision::Keep, "it is not asked to let go");
        assert!(matches!(
            decide(&Facts { local: true, ..facts(&[]) }),
            Decision::Wait(Reason::PluginNotReady { .. })
        ));
    }

    fn assigned(decision: Decision) -> Option<(String, i64)> {
        match decision {
            Decision::Assign(host) => Some((host.node_name, host.epoch)),
            Decision::Keep
            | Decision::AskToRelease
            | Decision::TakeBack
            | Decision::Wait(_)
            | Decision::Unneeded => None,
        }
    }

    #[test]
    fn the_consumers_node_is_best_then_the_least_loaded() {
        let list = candidates(&[("a", 3), ("b", 1), ("c", 1)]);
        assert_eq!(assigned(decide(&facts(&list))), Some(("b".into(), 1)));
        assert_eq!(assigned(decide(&Facts { preferred: Some("a"), ..facts(&list) })), Some(("a".into(), 1)));
        assert_eq!(
            assigned(decide(&Facts { only: Some("c"), preferred: Some("a"), ..facts(&list) })),
            Some(("c".into(), 1))
        );
        assert!(matches!(decide(&Facts { only: Some("z"), ..facts(&list) }), Decision::Wait(_)));
        let mut leaving = candidates(&[("a", 3), ("b", 1)]);
        leaving[1].stays = false;
        assert_eq!(assigned(decide(&facts(&leaving))), Some(("a".into(), 1)));
        assert_eq!(assigned(decide(&facts(&leaving[1..]))), Some(("b".into(), 1)), "better than none");
        let mut shaky = candidates(&[("a", 0), ("b", 9)]);
        shaky[0].steady = false;
        let wishes = Facts { preferred: Some("a"), ..facts(&shaky) };
        assert_eq!(
            assigned(decide(&wishes)),
            Some(("b".into(), 1)),
            "a call of the volume may have ended it"
        );
        assert_eq!(assigned(decide(&Facts { candidates: &shaky[..1], ..wishes })), Some(("a".into(), 1)));
    }

    /// Every state of a host, its instance and what it was asked for and said.
    fn states<'a>(host: &'a Host, list: &'a [Candidate], only: Option<&'a str>) -> Vec<Facts<'a>> {
        let mut all = Vec::new();
        for node in [HostNode::Alive, HostNode::Silent, HostNode::Gone] {
            for serving in [Serving::Well, Serving::Unsteady, Serving::Away, Serving::Leaving, Serving::Gone]
            {
                for asked in [None, Some(3), Some(4)] {
                    for (released, node_goes) in [(0, false), (3, true), (4, false), (4, true), (0, true)] {
                        all.push(Facts {
                            current: Some(host),
                            current_node: node,
                            serving,
                            asked,
                            released,
                            node_goes,
                            only,
                            ..facts(list)
                        });
                    }
                }
            }
        }
        all
    }

    #[test]
    fn a_host_is_replaced_only_when_it_let_go_or_is_gone_and_the_epoch_rises() {
        let list = candidates(&[("b", 0)]);
        let host = Host { node_name: "a".into(), epoch: 4 };
        for facts in states(&host, &list, None) {
            let over = facts.released == 4 || facts.current_node == HostNode::Gone;
            let wanted = over.then(|| ("b".to_owned(), 5));
            assert_eq!(assigned(decide(&facts)), wanted, "{facts:?}");
        }
        for facts in states(&host, &list, Some("a")) {
            assert_eq!(assigned(decide(&facts)), None, "nobody else knows it: {facts:?}");
            assert_ne!(decide(&facts), Decision::AskToRelease, "{facts:?}");
        }
    }

    #[test]
    fn a_living_host_is_asked_once_when_its_plugin_leaves_it_and_serves_elsewhere() {
        let host = Host { node_name: "a".into(), epoch: 4 };
        let mut leaving = candidates(&[("b", 0)]);
        leaving[0].stays = false;
        for (others, list) in [(true, candidates(&[("b", 0)])), (false, candidates(&[])), (false, leaving)] {
            for facts in states(&host, &list, None) {
                let over = facts.released == 4 || facts.current_node == HostNode::Gone;
                let leaves = match facts.serving {
                    Serving::Well | Serving::Unsteady | Serving::Away => false,
                    Serving::Leaving => others,
                    Serving::Gone => others || facts.node_goes,
                };
                let hears = facts.current_node == HostNode::Alive;
                let ask = !over && hears && leaves && facts.asked != Some(4);
                assert_eq!(decide(&facts) == Decision::AskToRelease, ask, "{facts:?}");
            }
        }
    }

    #[test]
    fn what_was_asked_is_taken_back_of_one_that_does_well_again_and_has_not_let_go() {
        let host = Host { node_name: "a".into(), epoch: 4 };
        for list in [candidates(&[]), candidates(&[("b", 0)])] {
            for only in [None, Some("a")] {
                for facts in states(&host, &list, only) {
                    let well = facts.current_node == HostNode::Alive && facts.serving == Serving::Well;
                    let wanted = well && facts.asked == Some(4) && facts.released != 4;
                    assert_eq!(decide(&facts) == Decision::TakeBack, wanted, "{facts:?}");
                }
            }
        }
    }

    #[test]
    fn who_was_asked_or_has_let_go_calls_nothing_under_its_epoch() {
        let host = Host { node_name: "a".into(), epoch: 4 };
        for (asked, released, wanted) in [
            (None, 0, false),
            (Some(3), 3, false),
            (Some(4), 3, true),
            (Some(4), 4, true),
            (None, 4, true),
            (Some(3), 4, true),
        ] {
            assert_eq!(rests(&host, asked, released), wanted, "{asked:?} {released}");
        }
    }

    #[test]
    fn one_that_let_go_may_become_host_again() {
        let host = Host { node_name: "a".into(), epoch: 4 };
        let list = candidates(&[("a", 0)]);
        let back = Facts {
            current: Some(&host),
            current_node: HostNode::Alive,
            serving: Serving::Well,
            asked: Some(4),
            released: 4,
            ..facts(&list)
        };
        assert_eq!(assigned(decide(&back)), Some(("a".into(), 5)));
        let none = candidates(&[]);
        assert!(matches!(decide(&Facts { candidates: &none, ..back }), Decision::Wait(_)));
    }
}
