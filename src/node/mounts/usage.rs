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
use super::super::events::Tone;
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
use crate::csi::{Code, Failure, Terms};
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

    /// Takes what came of a call, and says what of it is news for the status. `before` is what it told when nobody here knew
    /// anything.
    fn take(&self, uid: &str, seen: Seen, before: impl FnOnce() -> (VolumeUsage, Option<State>)) -> News {
        let mut all = self.all();
        let known = all.entry(uid.to_owned()).or_default();
        match seen {
            Seen::Silent => {
                known.silent = known.silent.saturating_add(1);
                known.off = rounds_off(known.silent);
                return News::default();
            }
            Seen::Stats { usage, state } => (known.usage, known.state) = (usage, state),
            Seen::Refused(state) => known.state = Some(state),
            Seen::Untold => (known.usage, known.state) = (VolumeUsage::default(), None),
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
        let state = word.then(|| (std::mem::replace(state, known.state.clone()), known.state.clone()));
        News { figures, state }
    }

    fn keep(&self, uids: &BTreeSet<String>) {
        self.all().retain(|uid, _| uids.contains(uid));
    }
}

/// What the status has to tell anew.
#[derive(Debug, Default, PartialEq, Eq)]
struct News {
    /// The figures.
    figures: bool,
    /// How the volume is: as it was told, and as it is.
    state: Option<(Option<State>, Option<State>)>,
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
    /// It is not asked any more: its plugin tells nothing of volumes.
    Untold,
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
    let Ok(serving) = serving(node, &entry.plugin, &entry.handle) else { return };
    let uid = entry.uid.clone();
    let (volume, plugin) = (entry.volume.clone(), entry.plugin.clone());
    let object = node.caches.attachments.of(&volume).into_iter().find(|a| a.uid().as_ref() == Some(&uid));
    let status = object.as_ref().and_then(|object| object.status.clone()).unwrap_or_default();
    if !serving.measures {
        // What it told of the volume once is not kept for true.
        if told_before(&status) != (VolumeUsage::default(), None) || node.usages.get(&uid).is_some() {
            told_anew(node, object.as_deref(), (&uid, volume), Seen::Untold, &status);
        }
        return;
    }
    if !node.usages.is_due(&uid) {
        return;
    }
    let Some(answer) = ask(node, entry).await else { return };
    if answer.as_ref().is_err_and(Failure::is_not_found) {
        // What became of its mounts is looked at; they stay, whatever it says (CO-NODE-73).
        node.sightings.look_at(&plugin);
    }
    let seen = match answer {
        Ok(stats) => seen(stats, VolumeUsage { time: Some(node.now()), ..VolumeUsage::default() }),
        // What is over in a moment, or may be at work still, says nothing of the volume.
        Err(failure) if failure.is_over() && failure.code != Code::Unavailable => {
            Seen::Refused(State::Unknown(format!("{:?}", failure.code), failure.to_string()))
        }
        Err(_) => Seen::Silent,
    };
    told_anew(node, object.as_deref(), (&uid, volume), seen, &status);
}

/// Has the status told, where it has something else to tell.
fn told_anew(
    node: &Node,
    object: Option<&VolumeAttachment>,
    (uid, volume): (&str, String),
    seen: Seen,
    status: &VolumeAttachmentStatus,
) {
    let news = node.usages.take(uid, seen, || told_before(status));
    if news != News::default() {
        node.queue.wake(Key::Mount(volume));
    }
    if let Some((object, (before, now))) = object.zip(news.state) {
        tell(node, object, before.as_ref(), now.as_ref());
    }
}

/// An event when a volume becomes unwell, and one when it is well again, whichever daemon told the first.
fn tell(node: &Node, object: &VolumeAttachment, before: Option<&State>, now: Option<&State>) {
    let about = object.object_ref(&());
    match (before, now) {
        (_, Some(State::Abnormal(message))) => {
            node.events.tell(about, Tone::Warning, "VolumeAbnormal", "Measure", message);
        }
        (Some(State::Abnormal(_)), Some(State::Well)) => {
            let note = "its plugin says that it is well again";
            node.events.tell(about, Tone::Normal, "VolumeWell", "Measure", note);
        }
        (_, Some(State::Well | State::Unknown(..)) | None) => {}
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
        gate: Some(serving.gate()),
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
        Truth::Unknown => State::Unknown(condition.reason.clone(), condition.message.clone()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_answer_is_asked_less_and_less() {
        let usages = Usages::default();
        let mut asked = Vec::new();
        for round in 0..20 {
            if usages.is_due("a") {
                asked.push(round);
                assert_eq!(usages.take("a", Seen::Silent, Default::default), News::default());
            }
            assert!(usages.is_due("b"), "another one is asked each time");
        }
        assert_eq!(asked, [0, 2, 6, 14]);
        usages.take("a", Seen::Refused(State::Well), Default::default);
        assert!(usages.is_due("a") && usages.is_due("a"), "it has answered");
    }
}
