//! NodeGetVolumeStats: how full what is up here is, and how it is by its plugin's word.
//!
//! In rounds, beside the queue: no handler waits for a measurement. A volume at which anything else is done is left out until
//! the next round; one that did not answer is passed over for more and more of them. What was measured is kept in memory, for
//! metrics; the attachment's status tells of it when a person would read something else from it
//! ([`plan::usage`](crate::plan::usage)).
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use kube::{Resource, ResourceExt};
use tokio::time::{Instant, MissedTickBehavior};

use super::super::context::{Key, Node};
use super::super::journal::AttachmentEntry;
use super::TARGET;
use super::steps::serving;
use super::unit::Unit;
use crate::api::VolumeAttachment;
use crate::api::meta::Condition as Told;
use crate::api::meta::Truth;
use crate::api::volume::{Figures, VOLUME_HEALTHY, VolumeAttachmentStatus, VolumeUsage};
use crate::csi::check::{Condition, Stats, Usage};
use crate::csi::proto::NodeGetVolumeStatsRequest;
use crate::csi::{Failure, Terms};
use crate::plan::mount::{Attachment, Level};
use crate::plan::usage::{State, is_news, rounds_off};
use crate::sys::path::TreePath;

/// Measurements at once: so many drivers that hang hold up no other's figures.
const AT_ONCE: usize = 8;

/// What was measured of the volumes here, by the uid of their attachment.
#[derive(Debug, Default)]
pub struct Usages(Mutex<HashMap<String, Measured>>);

/// What is known of one volume here.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// The figures of the last measurement that succeeded.
    pub usage: VolumeUsage,
    /// How it is, where that is told.
    pub state: Option<State>,
    /// The figures and the state that the status tells.
    pub(in crate::node) told: Option<(VolumeUsage, Option<State>)>,
    /// How often in a row it did not answer.
    pub(in crate::node) silent: u32,
    /// Rounds that it is passed over for that still.
    pub(in crate::node) off: u32,
}

impl Usages {
    /// What is known of an attachment.
    pub fn get(&self, uid: &str) -> Option<Measured> {
        self.all().get(uid).cloned()
    }

    /// What its status is to tell; absent as long as nothing was measured since the daemon started.
    pub(super) fn told(&self, uid: &str) -> Option<(VolumeUsage, Option<State>)> {
        self.all().get(uid).and_then(|measured| measured.told.clone())
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Measured>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is asked in this round.
    fn is_due(&self, uid: &str) -> bool {
        let mut all = self.all();
        let Some(known) = all.get_mut(uid).filter(|known| known.off > 0) else { return true };
        known.off -= 1;
        false
    }

    /// Takes what came of a call. Whether the status has something else to tell. `before` is what it told when nobody here
    /// knew anything.
    fn take(&self, uid: &str, seen: Seen, before: impl FnOnce() -> (VolumeUsage, Option<State>)) -> bool {
        let mut all = self.all();
        let known = all.entry(uid.to_owned()).or_default();
        match seen {
            Seen::Silent => {
                known.silent = known.silent.saturating_add(1);
                known.off = rounds_off(known.silent);
                return false;
            }
            Seen::Stats { usage, state } => (known.usage, known.state) = (usage, state),
            Seen::Refused(state) => known.state = Some(state),
        }
        (known.silent, known.off) = (0, 0);
        let (usage, state) = known.told.get_or_insert_with(before);
        let figures = is_news(usage, &known.usage);
        let word = match (&*state, &known.state) {
            (None, None) => false,
            (Some(before), Some(now)) => now.is_news(before),
            (Some(_), None) | (None, Some(_)) => true,
        };
        if figures {
            known.usage.clone_into(usage);
        }
        if word {
            known.state.clone_into(state);
        }
        figures || word
    }

    fn keep(&self, uids: &BTreeSet<String>) {
        self.all().retain(|uid, _| uids.contains(uid));
    }
}

/// What came of one call.
#[derive(Debug)]
enum Seen {
    Stats {
        usage: VolumeUsage,
        state: Option<State>,
    },
    /// The plugin said no.
    Refused(State),
    /// Nobody knows.
    Silent,
}

/// Measures what is up here, round by round, until the daemon ends.
pub(crate) async fn follow(node: Arc<Node>) {
    let Some(period) = node.options.stats_period else {
        node.stop.cancelled().await;
        return;
    };
    let mut beat = tokio::time::interval_at(Instant::now() + period, period);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = node.stop.cancelled() => return,
            _ = beat.tick() => {}
        }
        let entries = node.journal.attachments();
        node.usages.keep(&entries.iter().map(|entry| entry.uid.clone()).collect());
        let round =
            futures::stream::iter(entries).for_each_concurrent(AT_ONCE, |entry| measure(&node, entry));
        tokio::select! {
            () = node.stop.cancelled() => return,
            () = round => {}
        }
    }
}

async fn measure(node: &Arc<Node>, entry: AttachmentEntry) {
    let measures = serving(node, &entry.plugin, &entry.handle).is_ok_and(|serving| serving.measures);
    if !measures || !node.usages.is_due(&entry.uid) {
        return;
    }
    let uid = entry.uid.clone();
    let (volume, plugin) = (entry.volume.clone(), entry.plugin.clone());
    let object = node.caches.attachments.of(&volume).into_iter().find(|a| a.uid().as_ref() == Some(&uid));
    let Some(answer) = ask(node, entry).await else { return };
    if answer.as_ref().is_err_and(Failure::is_not_found) {
        // What became of its mounts is looked at; they stay, whatever it says (CO-NODE-73).
        node.sightings.look_at(&plugin);
    }
    let seen = match answer {
        Ok(stats) => seen(stats, VolumeUsage { time: Some(node.now()), ..VolumeUsage::default() }),
        Err(failure) if failure.is_answer() => {
            Seen::Refused(State::Unknown("NodeGetVolumeStatsFailed", failure.to_string()))
        }
        Err(_) => Seen::Silent,
    };
    tell(node, &uid, object.as_deref(), &seen);
    let status = object.and_then(|object| object.status.clone()).unwrap_or_default();
    if node.usages.take(&uid, seen, || told_before(&status)) {
        node.queue.wake(Key::Mount(volume));
    }
}

/// Once when a volume becomes unwell, and once when it is well again.
fn tell(node: &Node, uid: &str, object: Option<&VolumeAttachment>, seen: &Seen) {
    let (Some(object), Seen::Stats { state: Some(state), .. }) = (object, seen) else { return };
    let (about, step) = (object.object_ref(&()), format!("att/{uid}/healthy"));
    match state {
        State::Abnormal(message) => {
            node.events.failed(about, &step, "VolumeAbnormal", "Measure", message);
        }
        State::Well => node.events.recovered(about, &step, "Measure"),
        State::Unknown(..) => {}
    }
}

/// Asks the plugin about a volume that is up and at which nothing else is done: absent where that is not so.
async fn ask(node: &Arc<Node>, entry: AttachmentEntry) -> Option<Result<Stats, Failure>> {
    // Nothing is staged or published meanwhile, nor taken down: what hangs here holds that up for one short deadline.
    let _turn = node.turns.take_if_free(&entry.staging)?;
    let uid = entry.uid.clone();
    let entry = node.journal.attachment(&uid)?;
    let object = node.caches.attachments.of(&entry.volume);
    let object = object.into_iter().find(|object| object.uid().as_ref() == Some(&uid));
    let unit = Unit::new(node, uid, object, Some(entry.clone()));
    let staged = entry.stage_required && entry.staged == Level::Up;
    let published = unit.users.iter().find(|user| user.level() == Level::Up);
    if unit.wanted != Attachment::Open || entry.stage_required && !staged {
        return None;
    }
    let serving = serving(node, &entry.plugin, &entry.handle).ok()?;
    let staging = TreePath::new(["staging", &entry.staging]).ok().filter(|_| staged);
    let staging = staging.map(|staging| serving.told(node, &staging)).unwrap_or_default();
    let path = match published.and_then(|user| user.entry.as_ref()) {
        Some(of) => serving.told(node, &TreePath::new(["publish", of.directory.as_str(), TARGET]).ok()?),
        None => staging.clone(),
    };
    if path.is_empty() {
        return None;
    }
    let request = NodeGetVolumeStatsRequest {
        volume_id: entry.handle.clone(),
        volume_path: path,
        staging_target_path: staging,
    };
    let terms = Terms {
        deadline: node.deadline(&entry.plugin, "NodeGetVolumeStats"),
        attempt: 1,
        lease: None,
        // It is sent at once or not at all, and says nothing of other calls that a process was asked for.
        gate: None,
        alpha: node.alpha(&entry.plugin),
    };
    match serving.client.node_get_volume_stats(request, terms).await {
        // It was not asked: another call went before, or another process is to be asked.
        Err(failure) if failure.is_unsent() => None,
        answer => Some(answer),
    }
}

fn seen(stats: Stats, at: VolumeUsage) -> Seen {
    let state = stats.condition.map(
        |Condition { abnormal, message }| {
            if abnormal { State::Abnormal(message) } else { State::Well }
        },
    );
    let (bytes, inodes) = (stats.bytes.map(figures), stats.inodes.map(figures));
    Seen::Stats { usage: VolumeUsage { bytes, inodes, ..at }, state }
}

fn figures(usage: Usage) -> Figures {
    let bounded = |figure: u64| i64::try_from(figure).unwrap_or(i64::MAX);
    Figures {
        total: bounded(usage.total),
        used: usage.used.map(bounded),
        available: usage.available.map(bounded),
    }
}

/// What the status told before this daemon measured anything.
fn told_before(status: &VolumeAttachmentStatus) -> (VolumeUsage, Option<State>) {
    let usage = status.node.as_ref().and_then(|node| node.usage.clone()).unwrap_or_default();
    let condition = status.conditions.iter().find(|condition| condition.kind == VOLUME_HEALTHY);
    let state = condition.map(|condition| match condition.status {
        Truth::True => State::Well,
        Truth::False => State::Abnormal(condition.message.clone()),
        Truth::Unknown => State::Unknown("NodeGetVolumeStatsFailed", condition.message.clone()),
    });
    (usage, state)
}

/// A state as a condition of the attachment.
pub(super) fn condition(state: &State) -> Told {
    match state {
        State::Well => Told::new(VOLUME_HEALTHY, Truth::True, "Normal", ""),
        State::Abnormal(message) => Told::new(VOLUME_HEALTHY, Truth::False, "Abnormal", message.clone()),
        State::Unknown(word, message) => Told::new(VOLUME_HEALTHY, Truth::Unknown, word, message.clone()),
    }
}
