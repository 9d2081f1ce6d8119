//! Attaches and detaches of a plugin have their turns at each node ([`crate::plan::widths`]).
//!
//! A turn is asked for as the very last thing before a call is sent, when the volume's own turn has come and its Secret is read,
//! and given back with the answer: whatever else takes long keeps it from nobody.
//! Nobody waits here for longer than a moment: whoever is not in turn is told so, goes, and is woken when it is. What waits belongs
//! to a volume, and all of a volume is looked at by one handler: while that runs it could not answer, and nobody waits for it; what it has
//! not asked for again by its end it does not want any more. Where calls are short, that moment is worth much: from one answer to the next
//! call there is nothing to be done then.
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use kube::ResourceExt;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::context::{Key, Node};
use crate::api::{Plugin, VolumeAttachment};
use crate::csi::Gate;
use crate::plan::widths::{self, Turn, Widths};

/// How long a handler stays for its turn, once in each of its runs: so long it does not hear that it is not wanted any more.
const MOMENT: Duration = Duration::from_millis(250);

/// Who is at it, and who waits.
#[derive(Debug, Default)]
pub struct Lanes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By plugin.
    lanes: HashMap<String, Lane>,
    /// Volumes of which something waits.
    volumes: HashSet<String>,
    /// Volumes whose handler has stayed for a turn in this run.
    stayed: HashSet<String>,
}

#[derive(Debug)]
struct Lane {
    widths: Widths,
    /// The uid of what is under way, and its node.
    running: Vec<(String, String)>,
    /// In the order in which they came.
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    uid: String,
    volume: String,
    node: String,
    since: Instant,
    /// By the handler that runs, or ran last.
    asked: bool,
    /// No handler of its volume runs.
    present: bool,
    /// A handler of its volume stays for it.
    stays: Option<Arc<Notify>>,
}

/// One that wants its turn.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// The uid of the attachment.
    pub uid: &'a str,
    /// Its volume's name.
    pub volume: &'a str,
    /// The node that it is attached to or detached from.
    pub node: &'a str,
}

/// Not in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// Since when it waits.
    pub since: Instant,
    /// What it waits for.
    pub turn: Turn,
    /// How many may be under way.
    pub widths: Widths,
}

/// How many attaches and detaches may be under way at a time by the word of a Plugin.
pub fn widths(plugin: Option<&Plugin>) -> Widths {
    let said = plugin.and_then(|plugin| plugin.spec.concurrency).unwrap_or_default();
    let most = |said: Option<u32>, else_: u32| said.unwrap_or(else_).max(1) as usize;
    Widths {
        per_node: most(said.attaches_per_node, crate::api::plugin::ATTACHES_PER_NODE),
        in_all: most(said.attaches, crate::api::plugin::ATTACHES),
    }
}

impl Lanes {
    /// A handler begins to look at a volume.
    pub fn begin(&self, volume: &str) {
        let mut state = self.state();
        state.stayed.remove(volume);
        if state.volumes.contains(volume) {
            for waiting in state.waiting_of(volume) {
                (waiting.asked, waiting.present) = (false, false);
            }
        }
    }

    /// It has ended; the volumes that have to be looked at, for something of theirs is in turn now.
    #[must_use]
    pub fn end(&self, volume: &str) -> Vec<String> {
        let mut state = self.state();
        state.stayed.remove(volume);
        if !state.volumes.contains(volume) {
            return Vec::new();
        }
        let (mut left, mut woken) = (false, Vec::new());
        for lane in state.lanes.values_mut() {
            let before = lane.waiting.len();
            lane.waiting.retain(|waiting| waiting.volume != volume || waiting.asked);
            let mut changed = lane.waiting.len() != before;
            for waiting in lane.waiting.iter_mut().filter(|waiting| waiting.volume == volume) {
                waiting.present = true;
                (left, changed) = (true, true);
            }
            if changed {
                woken.extend(lane.in_turn());
            }
        }
        if !left {
            state.volumes.remove(volume);
        }
        state.forget_empty();
        woken
    }

    /// Begins, if it is its turn; `free` has to follow then.
    pub fn ask(&self, plugin: &str, widths: Widths, wish: Wish<'_>) -> Result<(), Queued> {
        let mut state = self.state();
        let lane = state.lanes.entry(plugin.to_owned()).or_insert_with(|| Lane {
            widths,
            running: Vec::new(),
            waiting: Vec::new(),
        });
        lane.widths = widths;
        let queued = lane.ask(wish);
        if queued.is_err() {
            state.volumes.insert(wish.volume.to_owned());
        }
        queued
    }

    /// One has ended; the volumes that have to be looked at.
    #[must_use]
    pub fn free(&self, plugin: &str, uid: &str) -> Vec<String> {
        let mut state = self.state();
        let Some(lane) = state.lanes.get_mut(plugin) else { return Vec::new() };
        lane.running.retain(|(running, _)| running != uid);
        let woken = lane.in_turn();
        state.forget_empty();
        woken
    }

    /// Stays for the turn of one that waits, unless its handler has done so in this run; what tells that it has come.
    fn stay(&self, plugin: &str, uid: &str) -> Option<Arc<Notify>> {
        let mut state = self.state();
        let State { lanes, stayed, .. } = &mut *state;
        let waiting = lanes.get_mut(plugin)?.waiting.iter_mut().find(|waiting| waiting.uid == uid)?;
        let stays = stayed.insert(waiting.volume.clone()).then(Arc::<Notify>::default)?;
        waiting.stays = Some(Arc::clone(&stays));
        Some(stays)
    }

    /// Stays no longer. One that was told and is not in turn after all goes on waiting, and is looked for at the end of its handler.
    fn leave(&self, plugin: &str, uid: &str) {
        let mut state = self.state();
        let Some(lane) = state.lanes.get_mut(plugin) else { return };
        if let Some(waiting) = lane.waiting.iter_mut().find(|waiting| waiting.uid == uid) {
            waiting.stays = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of a stay, however it comes.
struct Stay<'a> {
    lanes: &'a Lanes,
    plugin: &'a str,
    uid: &'a str,
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.lanes.leave(self.plugin, self.uid);
    }
}

impl State {
    fn waiting_of<'a>(&'a mut self, volume: &'a str) -> impl Iterator<Item = &'a mut Waiting> {
        let all = self.lanes.values_mut().flat_map(|lane| lane.waiting.iter_mut());
        all.filter(move |waiting| waiting.volume == volume)
    }

    fn forget_empty(&mut self) {
        self.lanes.retain(|_, lane| !lane.running.is_empty() || !lane.waiting.is_empty());
    }
}

impl Lane {
    fn ask(&mut self, wish: Wish<'_>) -> Result<(), Queued> {
        let at = match self.waiting.iter().position(|waiting| waiting.uid == wish.uid) {
            Some(at) => at,
            None => {
                self.waiting.push(Waiting {
                    uid: wish.uid.to_owned(),
                    volume: wish.volume.to_owned(),
                    node: wish.node.to_owned(),
                    since: Instant::now(),
                    asked: true,
                    present: false,
                    stays: None,
                });
                self.waiting.len() - 1
            }
        };
        self.waiting[at].asked = true;
        let turn = self.turns(Some(at)).into_iter().find(|(of, _)| *of == at).map(|(_, turn)| turn);
        match turn {
            Some(Turn::Now) | None => {
                let Waiting { uid, node, .. } = self.waiting.remove(at);
                self.running.push((uid, node));
                Ok(())
            }
            Some(turn @ (Turn::FullNode | Turn::FullInAll)) => {
                Err(Queued { since: self.waiting[at].since, turn, widths: self.widths })
            }
        }
    }

    /// What comes of those that would answer, and of the one that asks.
    fn turns(&self, asking: Option<usize>) -> Vec<(usize, Turn)> {
        let running: Vec<&str> = self.running.iter().map(|(_, node)| node.as_str()).collect();
        let all = self.waiting.iter().enumerate();
        let (places, nodes): (Vec<usize>, Vec<&str>) = all
            .filter(|(at, waiting)| waiting.present || waiting.stays.is_some() || asking == Some(*at))
            .map(|(at, waiting)| (at, waiting.node.as_str()))
            .unzip();
        places.into_iter().zip(widths::turns(self.widths, &running, &nodes)).collect()
    }

    /// Tells those that may begin, and stay for it; the volumes of the others.
    fn in_turn(&self) -> Vec<String> {
        let now = self.turns(None).into_iter().filter(|(_, turn)| *turn == Turn::Now);
        let now = now.map(|(at, _)| &self.waiting[at]);
        let told = |waiting: &&Waiting| waiting.stays.as_ref().inspect(|stays| stays.notify_one()).is_none();
        now.filter(told).map(|waiting| waiting.volume.clone()).collect()
    }
}

/// The turn of one attachment, for as long as it is kept.
#[derive(Debug)]
struct Slot {
    node: Arc<Node>,
    plugin: String,
    uid: String,
}

impl Drop for Slot {
    fn drop(&mut self) {
        for volume in self.node.lanes.free(&self.plugin, &self.uid) {
            self.node.queue.wake(Key::Host(volume));
        }
    }
}

/// One attachment's way to its turn: asked for when nothing else is in the way of the call, and given back when that is over.
#[derive(Debug)]
pub struct Turned {
    node: Arc<Node>,
    plugin: String,
    uid: String,
    volume: String,
    at: String,
    state: Mutex<(Option<Slot>, Option<Queued>)>,
}

impl Turned {
    /// The one of an attachment.
    pub fn of(node: &Arc<Node>, object: &VolumeAttachment) -> Arc<Self> {
        let spec = &object.spec;
        Arc::new(Self {
            node: Arc::clone(node),
            plugin: spec.plugin.clone(),
            uid: object.uid().unwrap_or_default(),
            volume: spec.volume.clone(),
            at: spec.node_name.clone(),
            state: Mutex::default(),
        })
    }

    /// The same gate, at which it is asked for.
    pub fn before(self: &Arc<Self>, gate: Arc<dyn Gate>) -> Arc<dyn Gate> {
        Arc::new(TurnGate { turn: Arc::clone(self), gate })
    }

    /// There is no call to make any more, and what comes now may take long.
    pub fn end(&self) {
        let slot = self.state().0.take();
        drop(slot);
    }

    /// What it waits for, if it was not in turn.
    pub fn queued(&self) -> Option<Queued> {
        self.state().1
    }

    /// One that has its turn keeps it for its next call.
    fn begin(&self) -> bool {
        if self.state().0.is_some() {
            return true;
        }
        let widths = widths(self.node.caches.plugins.one(&self.plugin).as_deref());
        let wish = Wish { uid: &self.uid, volume: &self.volume, node: &self.at };
        let asked = self.node.lanes.ask(&self.plugin, widths, wish);
        let slot =
            |()| Slot { node: Arc::clone(&self.node), plugin: self.plugin.clone(), uid: self.uid.clone() };
        let mut state = self.state();
        state.1 = asked.err();
        state.0 = asked.ok().map(slot);
        state.0.is_some()
    }

    /// The same, but it stays for a moment if it is not its turn yet.
    async fn come(&self) -> bool {
        if self.begin() {
            return true;
        }
        let Some(told) = self.node.lanes.stay(&self.plugin, &self.uid) else { return false };
        let _stay = Stay { lanes: &self.node.lanes, plugin: &self.plugin, uid: &self.uid };
        // Told or not, it may be its turn.
        let _late = tokio::time::timeout(MOMENT, told.notified()).await;
        self.begin()
    }

    fn state(&self) -> MutexGuard<'_, (Option<Slot>, Option<Queued>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct TurnGate {
    turn: Arc<Turned>,
    gate: Arc<dyn Gate>,
}

#[async_trait]
impl Gate for TurnGate {
    async fn open(&self, changes: bool) -> bool {
        if !self.turn.come().await {
            return false;
        }
        let open = self.gate.open(changes).await;
        if !open {
            self.turn.end();
        }
        open
    }

    async fn over(&self) {
        self.gate.over().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Widths = Widths { per_node: 1, in_all: 9 };

    fn wish(volume: &'static str, node: &'static str) -> Wish<'static> {
        Wish { uid: volume, volume, node }
    }

    /// A handler that looks at one volume and asks for its turn.
    fn handler(lanes: &Lanes, widths: Widths, wish: Wish<'_>) -> (Result<(), Turn>, Vec<String>) {
        lanes.begin(wish.volume);
        let asked = lanes.ask("p", widths, wish).map_err(|queued| queued.turn);
        (asked, lanes.end(wish.volume))
    }

    #[test]
    fn who_waits_is_woken_in_the_order_in_which_it_came() {
        let lanes = Lanes::default();
        let none = Vec::<String>::new();
        assert_eq!(handler(&lanes, ONE, wish("1", "a")), (Ok(()), none.clone()));
        assert_eq!(handler(&lanes, ONE, wish("2", "a")), (Err(Turn::FullNode), none.clone()));
        assert_eq!(handler(&lanes, ONE, wish("3", "a")), (Err(Turn::FullNode), none.clone()));
        assert_eq!(handler(&lanes, ONE, wish("4", "b")), (Ok(()), none.clone()));
        assert_eq!(lanes.free("p", "4"), none, "another node's");
        // Whoever looks again keeps its place.
        assert_eq!(handler(&lanes, ONE, wish("2", "a")).0, Err(Turn::FullNode));
        assert_eq!(lanes.free("p", "1"), ["2"]);
        assert_eq!(handler(&lanes, ONE, wish("3", "a")).0, Err(Turn::FullNode), "the other's turn");
        assert_eq!(handler(&lanes, ONE, wish("2", "a")).0, Ok(()));
        assert_eq!(lanes.free("p", "2"), ["3"]);
        assert_eq!(handler(&lanes, ONE, wish("3", "a")).0, Ok(()));
        assert_eq!(lanes.free("p", "3"), none);
        let state = lanes.state();
        assert!(state.lanes.is_empty() && state.volumes.is_empty(), "nothing is kept: {state:?}");
    }

    /// From one answer to the next call no handler has to be woken.
    #[tokio::test(start_paused = true)]
    async fn who_stays_is_told_in_its_turn_and_once_in_a_run() {
        let lanes = Lanes::default();
        handler(&lanes, ONE, wish("1", "a")).0.unwrap();
        lanes.begin("2");
        assert!(lanes.ask("p", ONE, wish("2", "a")).is_err());
        let told = lanes.stay("p", "2").expect("it may");
        let stay = Stay { lanes: &lanes, plugin: "p", uid: "2" };
        assert_eq!(handler(&lanes, ONE, wish("3", "a")).0, Err(Turn::FullNode));
        assert_eq!(lanes.free("p", "1"), Vec::<String>::new(), "nobody has to be woken");
        told.notified().await;
        assert_eq!(handler(&lanes, ONE, wish("3", "a")).0, Err(Turn::FullNode), "it keeps its place");
        assert!(lanes.ask("p", ONE, wish("2", "a")).is_ok());
        drop(stay);
        assert_eq!(lanes.free("p", "2"), ["3"]);
        // Whoever has stayed once goes, and is woken.
        handler(&lanes, ONE, wish("3", "a")).0.unwrap();
        assert!(lanes.ask("p", ONE, wish("2", "a")).is_err());
        assert!(lanes.stay("p", "2").is_none());
        assert_eq!(lanes.end("2"), Vec::<String>::new());
        assert_eq!(lanes.free("p", "3"), ["2"]);
        lanes.begin("2");
        assert!(lanes.ask("p", ONE, wish("2", "a")).is_ok());
        assert_eq!((lanes.end("2"), lanes.free("p", "2")), (Vec::new(), Vec::new()));
        let state = lanes.state();
        assert!(state.lanes.is_empty() && state.volumes.is_empty() && state.stayed.is_empty(), "{state:?}");
    }

    #[test]
    fn what_is_not_asked_for_again_holds_up_nobody() {
        let lanes = Lanes::default();
        for volume in ["1", "2", "3"] {
            handler(&lanes, ONE, wish(volume, "a")).0.ok();
        }
        assert_eq!(lanes.free("p", "1"), ["2"]);
        lanes.begin("2");
        assert_eq!(lanes.end("2"), ["3"], "it is gone, or waits before its next attempt");
        assert_eq!(handler(&lanes, ONE, wish("3", "a")).0, Ok(()));
    }

    /// A volume that is attached in two places: its handler is in the middle of a call at the one.
    #[test]
    fn who_is_busy_elsewhere_is_passed_over_and_keeps_its_place() {
        let lanes = Lanes::default();
        let two = |node| Wish { uid: node, volume: "2", node };
        assert_eq!(handler(&lanes, ONE, wish("1", "a")).0, Ok(()));
        assert_eq!(handler(&lanes, ONE, two("a")).0, Err(Turn::FullNode));
        assert_eq!(handler(&lanes, ONE, wish("3", "a")).0, Err(Turn::FullNode));
        lanes.begin("2");
        assert!(lanes.ask("p", ONE, two("a")).is_err());
        assert!(lanes.ask("p", ONE, two("b")).is_ok());
        assert_eq!(lanes.free("p", "1"), ["3"], "the other would not answer");
        assert_eq!(handler(&lanes, ONE, wish("3", "a")).0, Ok(()));
        assert_eq!(lanes.free("p", "3"), Vec::<String>::new());
        assert_eq!(lanes.free("p", "b"), Vec::<String>::new());
        assert_eq!(lanes.end("2"), ["2"], "it is its turn, and was while nobody heard");
        assert_eq!(handler(&lanes, ONE, two("a")).0, Ok(()));
    }

    #[test]
    fn what_a_plugin_says_anew_counts_from_the_next_question_on() {
        let lanes = Lanes::default();
        for volume in ["1", "2", "3"] {
            handler(&lanes, ONE, wish(volume, "a")).0.ok();
        }
        let wide = Widths { per_node: 2, in_all: 9 };
        assert_eq!(handler(&lanes, wide, wish("2", "a")).0, Ok(()));
        assert_eq!(handler(&lanes, wide, wish("3", "a")).0, Err(Turn::FullNode));
        let narrow = Widths { per_node: 2, in_all: 1 };
        assert_eq!(handler(&lanes, narrow, wish("4", "b")).0, Err(Turn::FullInAll));
        assert_eq!(lanes.free("p", "1"), Vec::<String>::new(), "one is under way still");
        assert_eq!(lanes.free("p", "2"), ["3"]);
    }

    #[test]
    fn a_plugin_that_says_nothing_has_one_at_a_time_at_each_node() {
        let said = |concurrency: serde_json::Value| {
            let spec = serde_json::from_value(serde_json::json!({ "concurrency": concurrency })).unwrap();
            widths(Some(&Plugin::new("p", spec)))
        };
        let usual = Widths { per_node: 1, in_all: 32 };
        assert_eq!((widths(None), said(serde_json::Value::Null)), (usual, usual));
        let both = serde_json::json!({ "attachesPerNode": 4, "attaches": 8 });
        assert_eq!(said(both), Widths { per_node: 4, in_all: 8 });
        assert_eq!(said(serde_json::json!({ "attaches": 2 })), Widths { per_node: 1, in_all: 2 });
    }
}
