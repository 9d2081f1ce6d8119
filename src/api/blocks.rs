//! What a node's daemon is asked about the blocks of a snapshot, and what it answers: one line of JSON after the other, over a
//! socket of its data directory that only root can reach. No object carries it: it may be millions of lines.
use serde::{Deserialize, Serialize};

use super::Snapshot;

/// The daemon's socket in its data directory.
pub const SOCKET: &str = "daemon.sock";
/// Where on it this is asked, by POST.
pub const PATH: &str = "/v1/blocks";

/// Which blocks of a snapshot hold something, or differ from those of an earlier one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Question {
    /// The snapshot, as the server has it.
    pub snapshot: Snapshot,
    /// Of a snapshot of several volumes, the claim of the one that is meant.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim_name: String,
    /// The earlier one; without it, all that holds something is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Snapshot>,
    /// The first byte of interest.
    #[serde(default)]
    pub starting_offset: i64,
}

/// One line of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Line {
    /// Some blocks.
    Part(Part),
    /// That was all: an answer without this line is not whole.
    Complete,
    /// There is more that was not told.
    Interrupted(Interrupted),
}

/// Some blocks, in rising order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// What the volume has, in bytes.
    pub capacity: i64,
    /// The blocks.
    pub blocks: Vec<Block>,
}

/// A range of bytes of a volume, not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// Its first byte.
    pub offset: i64,
    /// How many bytes.
    pub size: i64,
}

/// Why there is more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interrupted {
    /// What happened, and what to do.
    pub message: String,
    /// The offset from which the same question goes on; absent where it is of no use to ask on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_at: Option<i64>,
}

/// What is said instead of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// What is wrong, and what to do.
    pub message: String,
}
