//! What an error of etcd or of its client means for the caller.
use std::error::Error as _;
use std::io;
use std::sync::Arc;

use etcd_client::Error;
use tonic::{Code, Status};

use super::super::{Outcome, StoreError};
use super::VALUE_LIMIT;

/// What was asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Nothing could be changed by it.
    Read,
    /// Something may have been.
    Write,
}

/// What etcd itself said of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It is below the compaction.
    Compacted,
    /// It was never given out.
    Future,
    /// Something else.
    Else,
}

impl Told {
    pub(super) fn of(error: &Error) -> Self {
        let Error::GRpcStatus(status) = error else { return Self::Else };
        // One code for both; the sentences are part of etcd's API (its clients compare them).
        match (status.code(), status.message()) {
            (Code::OutOfRange, text) if text.contains("has been compacted") => Self::Compacted,
            (Code::OutOfRange, text) if text.contains("is a future revision") => Self::Future,
            _ => Self::Else,
        }
    }
}

/// The error for a caller. A write is in doubt unless it is certain that it was not done.
pub(super) fn failed(error: Error, asked: Asked) -> StoreError {
    if let Error::GRpcStatus(status) = &error
        && status.code() == Code::InvalidArgument
        && status.message().contains("request is too large")
    {
        // Ours is kept already: etcd was given a lower one (--max-request-bytes).
        return StoreError::TooLarge { size: VALUE_LIMIT, limit: VALUE_LIMIT / 2 };
    }
    let done = asked == Asked::Write && may_be_done(&error);
    let outcome = if done { Outcome::Unknown } else { Outcome::NotDone };
    StoreError::Unavailable { outcome, source: Arc::new(error) }
}

/// Whether etcd may have done what was asked, or may do it yet.
fn may_be_done(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => status_may(status),
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => false,
        _ => true,
    }
}

fn status_may(status: &Status) -> bool {
    // Codes that our own stack makes up say nothing of what etcd did; its own refusals name it.
    let told = status.message().starts_with("etcdserver:");
    match status.code() {
        // Made before anything is proposed.
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange => !told,
        Code::Unavailable => !(no_leader(status) || never_sent(status)),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unimplemented
        | Code::DataLoss => true,
    }
}

/// A member that is cut off from its cluster turns everything away at once.
fn no_leader(status: &Status) -> bool {
    status.code() == Code::Unavailable && status.message() == "etcdserver: no leader"
}

/// Whether another member may be asked the same: nothing was sent, or nothing was begun.
pub(super) fn may_go_elsewhere(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    status.code() == Code::Unavailable && (no_leader(status) || never_sent(status))
}

/// Whether the connection was never made.
fn never_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        let refused = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if refused == Some(io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Why nothing is done any more.
pub(super) const MOVED: &str = "another etcd cluster answered than at the start, or an older state of it";

/// Another history answered a call, and may have done it.
pub(super) fn moved() -> StoreError {
    let source = Arc::new(io::Error::other(MOVED));
    StoreError::Unavailable { outcome: Outcome::Unknown, source }
}

/// What etcd sent makes no sense.
pub(super) fn corrupt(why: &'static str) -> StoreError {
    StoreError::Corrupt { source: Arc::new(io::Error::new(io::ErrorKind::InvalidData, why)) }
}

/// A watch that cannot go on.
pub(super) fn cut(why: String) -> StoreError {
    StoreError::Unavailable { outcome: Outcome::NotDone, source: Arc::new(io::Error::other(why)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(code: Code, message: &str, asked: Asked) -> Outcome {
        match failed(Error::GRpcStatus(Status::new(code, message)), asked) {
            StoreError::Unavailable { outcome, .. } => outcome,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_write_is_in_doubt_unless_it_was_refused() {
        let cases = [
            (Code::Unavailable, "etcdserver: no leader", Outcome::NotDone),
            (Code::Unavailable, "etcdserver: request timed out", Outcome::Unknown),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
                Outcome::Unknown,
            ),
            (Code::Unavailable, "etcdserver: leader changed", Outcome::Unknown),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", Outcome::NotDone),
            (Code::ResourceExhausted, "etcdserver: too many requests", Outcome::NotDone),
            (Code::PermissionDenied, "etcdserver: permission denied", Outcome::NotDone),
            (Code::Unknown, "transport error", Outcome::Unknown),
            (Code::DeadlineExceeded, "", Outcome::Unknown),
            (Code::Internal, "h2 protocol error", Outcome::Unknown),
            (Code::ResourceExhausted, "h2: enhance your calm", Outcome::Unknown),
            (Code::OutOfRange, "decoded message too large", Outcome::Unknown),
        ];
        for (code, message, wanted) in cases {
            assert_eq!(outcome(code, message, Asked::Write), wanted, "{code:?} {message}");
            assert_eq!(outcome(code, message, Asked::Read), Outcome::NotDone, "{code:?} {message}");
        }
        let large = Status::new(Code::InvalidArgument, "etcdserver: request is too large");
        assert!(matches!(failed(Error::GRpcStatus(large), Asked::Write), StoreError::TooLarge { .. }));
    }

    #[test]
    fn what_is_said_of_revisions() {
        let told = |code, message: &str| Told::of(&Error::GRpcStatus(Status::new(code, message)));
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(told(Code::OutOfRange, compacted), Told::Compacted);
        assert_eq!(
            told(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
            Told::Future
        );
        assert_eq!(told(Code::Unavailable, compacted), Told::Else);
    }
}
