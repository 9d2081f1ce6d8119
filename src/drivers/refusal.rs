//! Why a call is refused, and the gRPC code that tells the caller what to do about it.
use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};

use tonic::{Code, Status};

/// A call that was not carried out. Unless it says otherwise nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A field of the request is missing, malformed or asks for what this driver cannot do.
    #[error("{field}: {problem}")]
    Invalid {
        /// The field by its name in the contract.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// No volume has this id.
    #[error("volume {volume:?} does not exist")]
    NoVolume {
        /// The id as it was sent.
        volume: String,
    },
    /// The name belongs to a volume or snapshot that was made from a different request.
    #[error("{kind} {name:?} exists with another {what}")]
    NameTaken {
        /// What it is the name of.
        kind: &'static str,
        /// The name as it was sent.
        name: String,
        /// What differs.
        what: &'static str,
    },
    /// The target shows the volume already, published with other arguments.
    #[error("the volume is published at {target} with another {what}")]
    PublishedOtherwise {
        /// Where.
        target: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// The volume is published, which forbids this call.
    #[error("volume {volume} is in use: {by}")]
    InUse {
        /// The id.
        volume: String,
        /// What uses it.
        by: String,
    },
    /// The path is in no state to be a target.
    #[error("target path {target}: {problem}")]
    BadTarget {
        /// Where.
        target: PathBuf,
        /// What is in the way.
        problem: &'static str,
    },
    /// Data that ought to be there is not.
    #[error("{path} is gone: {lost}")]
    Gone {
        /// The directory that is missing.
        path: PathBuf,
        /// What it held.
        lost: &'static str,
    },
    /// Too little space now.
    #[error("{required} bytes are asked for; {available} are neither used nor promised on {place}")]
    NoRoom {
        /// Bytes asked for.
        required: u64,
        /// Bytes that can be promised now.
        available: u64,
        /// Whose disk this is.
        place: String,
    },
    /// More than the whole file system.
    #[error("{required} bytes are asked for; the file system of {place} has {total} in all")]
    TooLarge {
        /// Bytes asked for.
        required: u64,
        /// Size of the file system in bytes.
        total: u64,
        /// Whose disk this is.
        place: String,
    },
    /// A range that no size satisfies.
    #[error("capacity_range: limit_bytes {limit} is below required_bytes {required}")]
    EmptyRange {
        /// Bytes asked for.
        required: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// No size between these is possible.
    #[error(
        "a volume of {least} bytes is the least that serves the capabilities asked for; at most {limit} are allowed"
    )]
    BelowLeast {
        /// The smallest possible size.
        least: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The topology asked for leaves this node out.
    #[error("volumes of this instance are reachable on node {node} only, which the requirement leaves out")]
    Elsewhere {
        /// This node.
        node: String,
    },
    /// No node has this id.
    #[error("node {node:?} is not known: its driver has not been started on this data directory")]
    NoNode {
        /// The id as it was sent.
        node: String,
    },
    /// The node has the volume already, under other arguments.
    #[error("volume {volume} is attached to node {node} with another {what}")]
    AttachedOtherwise {
        /// The id.
        volume: String,
        /// Where.
        node: String,
        /// What differs.
        what: &'static str,
    },
    /// The node has as many volumes as it takes.
    #[error("node {node} has {limit} volumes attached, which is its limit")]
    NodeFull {
        /// Which.
        node: String,
        /// Its limit.
        limit: u32,
    },
    /// The volume is to be staged without being attached, or with the publish context of another attachment.
    #[error("volume {volume} is not attached to node {node}{how}")]
    NotAttached {
        /// The id.
        volume: String,
        /// This node.
        node: String,
        /// In what way, if it is attached somehow.
        how: &'static str,
    },
    /// The volume is staged, under other arguments.
    #[error("the volume is staged at {staging} with another {what}")]
    StagedOtherwise {
        /// Where.
        staging: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// The volume is not staged where the caller says.
    #[error("volume {volume} is not staged at {staging}")]
    NotStaged {
        /// The id.
        volume: String,
        /// Where the caller expects it.
        staging: PathBuf,
    },
    /// What is asked for does not go with what the volume is.
    #[error("volume {volume} {problem}")]
    Unfit {
        /// The id.
        volume: String,
        /// Why not.
        problem: String,
    },
    /// Somebody outside this driver still uses the device.
    #[error("{device} still shows volume {volume}: it is mounted or open {place}")]
    Busy {
        /// The id.
        volume: String,
        /// The device.
        device: PathBuf,
        /// Where, as far as that can be seen.
        place: String,
    },
    /// A program that is needed did not do its work.
    #[error("{program}: {problem}")]
    Program {
        /// Its name.
        program: &'static str,
        /// What became of it.
        problem: String,
    },
    /// Another call on the same volume or snapshot is still at work.
    #[error("another call on {kind} {id} is still at work")]
    Pending {
        /// What it is.
        kind: &'static str,
        /// The id.
        id: String,
    },
    /// No snapshot has this id.
    #[error("snapshot {snapshot:?} does not exist")]
    NoSnapshot {
        /// The id as it was sent.
        snapshot: String,
    },
    /// The volume is not to be seen where the caller says.
    #[error("volume {volume} is not published or staged at {path}")]
    NotThere {
        /// The id.
        volume: String,
        /// Where the caller expects it.
        path: PathBuf,
    },
    /// What a volume is to be made from is larger than the volume may be.
    #[error("what it is made from has {source_bytes} bytes; at most {limit} are allowed")]
    SourceTooLarge {
        /// Bytes of the source.
        source_bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A volume that exists is outside of what is asked for, and cannot get there.
    #[error("volume {volume} has {capacity} bytes; {asked}")]
    OutOfReach {
        /// The id.
        volume: String,
        /// Bytes that it has.
        capacity: u64,
        /// What is asked for, and why it cannot be.
        asked: String,
    },
    /// The data directory is on a file system that will not do.
    #[error("{path} is on {found}, and this driver needs {wanted}")]
    WrongFileSystem {
        /// The data directory, or the nearest one above it that is there.
        path: PathBuf,
        /// Its file system.
        found: String,
        /// The one that is needed.
        wanted: &'static str,
    },
    /// Not a token of this driver.
    #[error("starting_token {0:?} is not one of this driver")]
    BadToken(String),
    /// A record cannot be read; only a person can mend it.
    #[error("the record {path} is damaged")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The kernel refused a step; the call may be half done and can be repeated.
    #[error("cannot {step} {path}")]
    Failed {
        /// What was tried.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl Refusal {
    /// For `map_err`: the step that failed and what on.
    pub(super) fn failed<E: Into<io::Error>>(step: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |error| Self::Failed { step, path: path.to_owned(), source: error.into() }
    }

    /// What the caller is told by the code alone.
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Invalid { .. } => Code::InvalidArgument,
            Self::NoVolume { .. } | Self::NoSnapshot { .. } | Self::NoNode { .. } | Self::NotThere { .. } => {
                Code::NotFound
            }
            Self::NameTaken { .. }
            | Self::PublishedOtherwise { .. }
            | Self::AttachedOtherwise { .. }
            | Self::StagedOtherwise { .. } => Code::AlreadyExists,
            Self::InUse { .. }
            | Self::BadTarget { .. }
            | Self::Gone { .. }
            | Self::NotAttached { .. }
            | Self::NotStaged { .. }
            | Self::WrongFileSystem { .. }
            | Self::Unfit { .. } => Code::FailedPrecondition,
            Self::NoRoom { .. } | Self::Elsewhere { .. } | Self::NodeFull { .. } => Code::ResourceExhausted,
            Self::TooLarge { .. }
            | Self::EmptyRange { .. }
            | Self::BelowLeast { .. }
            | Self::SourceTooLarge { .. }
            | Self::OutOfReach { .. } => Code::OutOfRange,
            Self::Pending { .. } | Self::BadToken(_) | Self::Busy { .. } => Code::Aborted,
            Self::Failed { source, .. } if is_full(source) => Code::ResourceExhausted,
            Self::Damaged { .. } | Self::Failed { .. } | Self::Program { .. } => Code::Internal,
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        // The caller sees one text only, so it gets the whole chain.
        let mut message = refusal.to_string();
        let mut source = refusal.source();
        while let Some(error) = source {
            message.push_str(": ");
            message.push_str(&error.to_string());
            source = error.source();
        }
        Self::new(refusal.code(), message)
    }
}
