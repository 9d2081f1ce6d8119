//! What an attachment's status says of this node.
use kube::Resource;

use super::super::context::Node;
use super::NODE;
use super::health::staging_trouble;
use super::unit::Unit;
use crate::api::meta::{Call, Condition, READY, Rung, Truth, set_condition};
use crate::api::volume::{EXPANDED, StageStatus, VOLUME_HEALTHY};
use crate::plan::expand::Growth;
use crate::plan::mount::Attachment;

impl Unit {
    pub(super) fn status(&self, node: &Node, released: bool) -> NodePart {
        let before = self.object.as_ref().and_then(|o| o.status.as_ref());
        let known: &[Call] =
            before.and_then(|s| s.node.as_ref()).map(|n| n.calls.as_slice()).unwrap_or_default();
        let (mut reason, mut message, next) = self.told(node);
        let mut staged = self.entry.as_ref().map_or(Rung::Down, |e| e.staged.rung());
        if let Some((health, sentence)) = self.entry.as_ref().and_then(|e| staging_trouble(node, e)) {
            staged = health.rung(staged);
            // What is waited for comes first.
            if let (Some(word), true, Attachment::Open) = (health.word(), reason.is_empty(), self.wanted) {
                (reason, message) = (word.to_owned(), sentence);
            }
        }
        // Of what is not up nothing is told. A daemon that has measured nothing yet leaves what stands there.
        let up = self.is_up();
        let measured = node.usages.told(&self.uid).filter(|_| up);
        let stands = before.and_then(|s| s.node.as_ref()).and_then(|n| n.usage.clone());
        let measures = node.options.stats_period.is_some();
        let stands = stands.filter(|_| up && measures);
        let (usage, state) = match measured {
            Some((usage, state)) => (Some(usage), Some(state)),
            None => (stands, None),
        };
        let stage = StageStatus {
            staged,
            closed: self.entry.as_ref().is_some_and(|e| e.closed),
            released_uid: if released { self.uid.clone() } else { String::new() },
            expanded_bytes: self.entry.as_ref().map_or(0, |e| e.expanded),
            usage: usage.filter(|usage| !usage.is_empty()),
            calls: node.calls.get(&self.key(), known),
            next_attempt_time: next,
            reason: reason.clone(),
            message: message.clone(),
        };
        let spec = self.object.as_ref().map(|o| &o.spec);
        let ready = spec.is_some_and(|s| {
            (!s.attach_required || self.attached() == Rung::Up) && (!s.stage_required || staged == Rung::Up)
        });
        let (truth, word) = match (ready, self.wanted, reason.is_empty()) {
            (true, Attachment::Open, true) => (Truth::True, "Ready".to_owned()),
            (_, Attachment::Leaving, true) => (Truth::False, "Leaving".to_owned()),
            (_, _, true) => (Truth::False, "Waiting".to_owned()),
            (_, _, false) => (Truth::False, reason),
        };
        // Of what this node wrote itself the cache may know nothing yet.
        let written = self.object.as_ref().and_then(|o| node.answered::<_, ConditionsPart>(&**o, &NODE));
        let mut conditions = match (written, before) {
            (Some(written), _) => written.conditions,
            (None, before) => before.map(|s| s.conditions.clone()).unwrap_or_default(),
        };
        let generation = self.object.as_ref().and_then(|o| o.meta().generation);
        let condition = Condition::new(READY, truth, &word, message).of_generation(generation);
        set_condition(&mut conditions, condition, node.now());
        let (word, message, _) = node.notes.get(&self.size_note());
        if self.growth() == Growth::Done {
            conditions.retain(|condition| condition.kind != EXPANDED);
        } else if !word.is_empty() {
            let condition = Condition::new(EXPANDED, Truth::False, &word, message).of_generation(generation);
            set_condition(&mut conditions, condition, node.now());
        }
        match state {
            Some(Some(state)) => {
                let condition = super::usage::condition(&state).of_generation(generation);
                set_condition(&mut conditions, condition, node.now());
            }
            Some(None) => conditions.retain(|condition| condition.kind != VOLUME_HEALTHY),
            None if !up || !measures => conditions.retain(|condition| condition.kind != VOLUME_HEALTHY),
            None => {}
        }
        NodePart { node: stage, conditions }
    }
}

/// The conditions of such a part.
#[derive(serde::Deserialize)]
struct ConditionsPart {
    conditions: Vec<Condition>,
}

/// This node's part of an attachment's status.
#[derive(serde::Serialize)]
pub(super) struct NodePart {
    node: StageStatus,
    conditions: Vec<Condition>,
}
