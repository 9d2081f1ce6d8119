//! Every call with its times, and the watch over calls that must not overlap.
use std::time::Duration;

use tokio::time::Instant;
use wharfline::csi::{Code, Rpc};

use super::ask::Ask;

/// How a call ended, as the plugin saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A status was sent, OK included.
    Answered(Code),
    /// Something was sent that is no status.
    Broken,
    /// It was over, and the connection was cut before the answer.
    Gone,
    /// The caller went away in the middle.
    Left,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Logged {
    /// Its place in the log.
    pub number: usize,
    /// The call.
    pub rpc: Rpc,
    /// The request. Secrets included.
    pub ask: Ask,
    /// Node id of the instance that got it.
    pub node: String,
    /// `:authority` of the request.
    pub authority: String,
    /// `grpc-timeout` as it was sent.
    pub timeout: Option<String>,
    /// Number of the connection it came over.
    pub connection: u64,
    /// When it came.
    pub started: Instant,
    /// The same by the one clock of all nodes.
    pub at: Duration,
    /// When it ended, and how; none while it is in flight.
    pub ended: Option<(Instant, End)>,
}

impl Logged {
    /// No answer was given yet, and the caller waits.
    pub fn in_flight(&self) -> bool {
        self.ended.is_none()
    }

    /// Whether the plugin may be at work on the other one still, although its caller has gone, and cannot know of this one:
    /// it came to another node's.
    pub(super) fn meets(&self, other: &Self, works_on: Duration) -> bool {
        let left = matches!(other.ended, Some((_, End::Left)));
        let calls = !self.ask.is_node_call() && !other.ask.is_node_call();
        left && calls && self.node != other.node && self.at < other.at + works_on
    }

    /// Whether the plugin has answered here that nothing else about the volume is at work: `of` is a call about it.
    pub(super) fn is_last_word(&self, of: &Self) -> bool {
        let answered = matches!(self.ended, Some((_, End::Answered(code))) if code != Code::Aborted);
        answered && self.number > of.number && self.node == of.node && !self.ask.is_node_call()
    }

    /// Whether both may be in flight at one time. Controller calls of a volume exclude one another everywhere, node
    /// calls on their node; a controller call excludes the node calls, except those of a volume that may be on
    /// several nodes when they are on another node than the one it names, and what is done beside users (ARCHITECTURE.md,
    /// "How calls take turns").
    pub(super) fn excludes(&self, other: &Self, shared_volume: bool) -> bool {
        if self.rpc.streams() && other.rpc.streams() {
            return false; // they only read, for minutes
        }
        match (self.ask.is_node_call(), other.ask.is_node_call()) {
            (true, true) => self.node == other.node,
            (false, false) => true,
            (node_call, _) => {
                let (on_node, controller) = if node_call { (self, other) } else { (other, self) };
                let beside = matches!(
                    controller.rpc,
                    Rpc::CreateSnapshot
                        | Rpc::CreateVolumeGroupSnapshot
                        | Rpc::ControllerExpandVolume
                        | Rpc::ControllerModifyVolume
                );
                if beside && controller.node != on_node.node {
                    return false;
                }
                let named = match &controller.ask {
                    Ask::ControllerPublishVolume(request) => Some(&request.node_id),
                    Ask::ControllerUnpublishVolume(request) => Some(&request.node_id),
                    _ => None,
                };
                !shared_volume || named.is_none_or(|node| *node == on_node.node)
            }
        }
    }
}
