//! Turns a gRPC status into the one thing that callers need: may the attempt still be running, or already done?
//!
//! | class | when | what a caller may do |
//! |---|---|---|
//! | final | the peer itself sent the status, and its code says that the attempt is over | report, fix, repeat, or reverse |
//! | uncertain | everything else, whatever the code | repeat the same request, or call the reverse; never assume that nothing happened |
//!
//! This and `advice` are the only places that read gRPC codes. Never decides how often or when to repeat.
use std::borrow::Cow;
use std::error::Error;
use std::time::Duration;

use tonic::{Code, Status};

use super::advice::{self, Advice};
use super::check::Fault;
use super::confided::Told;
use super::hiding::hidden;
use super::rpc::Rpc;
use super::witness;

/// The longest message kept, in bytes: it goes into conditions, events and stored objects.
pub const MAX_MESSAGE: usize = 1024;

/// What one failed attempt tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// This attempt is over. It may have left effects, and says nothing about earlier attempts.
    Final,
    /// The attempt may still be running, or may have succeeded.
    Uncertain,
}

/// Who made the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The plugin sent it.
    Peer,
    /// We made it: no connection, no answer in time, or an answer that cannot be read. Never final.
    Local,
    /// We made it, and nothing was sent. Always final.
    Unsent,
}

/// What has to change before the call can succeed; the advice that CSI gives for a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Remedy {
    /// Nothing but time: the same request again, after a pause.
    Repeat,
    /// The request: repeating it as it is would be wrong.
    ChangeInput,
    /// The secrets, or what their owner may do.
    RepairSecrets,
    /// The plugin: it does not have this call.
    Unsupported,
}

/// One attempt that did not return OK.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rpc}: {}: {message}", code_name(*.code))]
pub struct Failure {
    /// The call.
    pub rpc: Rpc,
    /// The code: as the peer sent it, or what fits best if we made it (4 deadline, 14 no connection, 8 too large,
    /// 13 unreadable, 2 no status).
    pub code: Code,
    /// Text for people: one line, at most [`MAX_MESSAGE`] bytes, without the secrets of the request.
    pub message: String,
    /// Whether the attempt is over.
    pub class: Class,
    /// Who says so.
    pub origin: Origin,
    /// Whether the request carried secrets.
    pub secrets: bool,
    /// The word for an OK with an answer that no plugin may give.
    pub breach: Option<&'static str>,
}

impl Failure {
    /// What tonic returned for a call. What its plugin was `told` in confidence is kept out of the message.
    pub(crate) fn from_status(rpc: Rpc, status: &Status, told: &Told) -> Self {
        match witness::peer_code(status.metadata()) {
            // The note counts, not tonic's code: tonic replaces it when it cannot read the message.
            Some(code) if code != Code::Ok => Self {
                rpc,
                code,
                message: clean(&told.hidden(status.message()), &[]),
                class: class_of(rpc, code),
                origin: Origin::Peer,
                secrets: false,
                breach: None,
            },
            Some(_) | None => {
                let (code, message) = local_meaning(status);
                Self::local(rpc, code, &clean(&told.hidden(&message), &[]))
            }
        }
    }

    /// No answer in time. The plugin may go on working.
    pub(crate) fn deadline(rpc: Rpc, deadline: Duration) -> Self {
        Self::local(rpc, Code::DeadlineExceeded, &format!("no answer within {deadline:?}"))
    }

    /// It had waited for its turn until it was too late to send it.
    pub(crate) fn too_late(rpc: Rpc) -> Self {
        let message = "not sent: this node's lease ran out while the call waited";
        Self { class: Class::Final, origin: Origin::Unsent, ..Self::local(rpc, Code::Unavailable, message) }
    }

    /// Nobody has said since the last connection ended that the same driver is at the other end.
    pub(crate) fn unvouched(rpc: Rpc) -> Self {
        let message =
            "not sent: the connection to the plugin ended, and it has not said yet which driver it is";
        Self { class: Class::Final, origin: Origin::Unsent, ..Self::local(rpc, Code::Unavailable, message) }
    }

    /// While it waited for its turn, its process became one that may not be asked.
    pub(crate) fn turned_away(rpc: Rpc) -> Self {
        let message =
            "not sent: while the call waited, its process of the driver became one that may not be asked";
        Self { class: Class::Final, origin: Origin::Unsent, ..Self::local(rpc, Code::Aborted, message) }
    }

    /// It only reads, and somebody else is at what it is about, or waits for it.
    pub(crate) fn busy(rpc: Rpc) -> Self {
        let message = "not sent: another call about the same is under way or waits";
        Self { class: Class::Final, origin: Origin::Unsent, ..Self::local(rpc, Code::Cancelled, message) }
    }

    /// The contract calls it alpha, and what is alpha is not sent.
    pub(crate) fn switched_off(rpc: Rpc) -> Self {
        let message = "not sent: CSI calls it alpha, and what is alpha is switched off";
        Self { class: Class::Final, origin: Origin::Unsent, ..Self::local(rpc, Code::Unimplemented, message) }
    }

    /// A stream said nothing for so long.
    pub(crate) fn silent(rpc: Rpc, silence: Duration) -> Self {
        Self::local(rpc, Code::DeadlineExceeded, &format!("the stream said nothing for {silence:?}"))
    }

    /// The caller dropped the call before its end.
    pub(crate) fn abandoned(rpc: Rpc) -> Self {
        Self::local(rpc, Code::Cancelled, "given up before an answer came")
    }

    /// An OK whose content cannot be used.
    pub(crate) fn unusable(rpc: Rpc, fault: &Fault) -> Self {
        let message =
            clean(&format!("the plugin answered OK, but {fault}; the driver must be corrected"), &[]);
        Self { breach: Some(fault.reason()), ..Self::local(rpc, Code::Internal, &message) }
    }

    /// An OK that the peer did not confirm by a status.
    pub(crate) fn unconfirmed(rpc: Rpc) -> Self {
        Self::local(rpc, Code::Unknown, "the plugin's answer ended without a status")
    }

    fn local(rpc: Rpc, code: Code, message: &str) -> Self {
        let (class, origin) = (Class::Uncertain, Origin::Local);
        Self { rpc, code, message: message.to_owned(), class, origin, secrets: false, breach: None }
    }

    /// The same, of a request with secrets or without.
    pub(crate) fn of_request(self, secrets: bool) -> Self {
        Self { secrets, ..self }
    }

    /// The attempt may still be running or already done.
    pub fn is_uncertain(&self) -> bool {
        self.class == Class::Uncertain
    }

    /// The peer said NOT_FOUND: it does not know the volume, or the node. Says nothing about being safely detached.
    pub fn is_not_found(&self) -> bool {
        self.peer_said(Code::NotFound)
    }

    /// The peer said by its code that it did not begin what it was asked to delete: that is in use, or it may not be asked.
    pub fn keeps(&self) -> bool {
        let codes =
            [Code::FailedPrecondition, Code::InvalidArgument, Code::PermissionDenied, Code::Unauthenticated];
        codes.into_iter().any(|code| self.peer_said(code))
    }

    /// The peer said ABORTED: another operation on the volume is pending there.
    pub fn is_aborted(&self) -> bool {
        self.peer_said(Code::Aborted)
    }

    /// The peer said INVALID_ARGUMENT.
    pub fn is_invalid_argument(&self) -> bool {
        self.peer_said(Code::InvalidArgument)
    }

    /// The peer said UNIMPLEMENTED: it does not have this call, and must not be asked again as it is.
    pub fn is_unimplemented(&self) -> bool {
        self.peer_said(Code::Unimplemented)
    }

    /// The peer said ALREADY_EXISTS: the thing is there with other arguments.
    pub fn is_already_exists(&self) -> bool {
        self.peer_said(Code::AlreadyExists)
    }

    /// The peer said DATA_LOSS: what it has of the volume is lost or damaged.
    pub fn is_data_loss(&self) -> bool {
        self.peer_said(Code::DataLoss)
    }

    /// The peer said FAILED_PRECONDITION.
    pub fn is_failed_precondition(&self) -> bool {
        self.peer_said(Code::FailedPrecondition)
    }

    /// The peer said RESOURCE_EXHAUSTED, and the call gives that a meaning: no space, or no free slot on the node.
    pub fn is_exhausted(&self) -> bool {
        self.peer_said(Code::ResourceExhausted) && self.class == Class::Final
    }

    /// The plugin itself said so; else we gave up, or what came was no answer.
    pub fn is_answer(&self) -> bool {
        self.origin == Origin::Peer
    }

    /// The plugin is done with the call, however it ended. Not so when it says that the time was up, or that another call
    /// about the volume is under way, which may be one that was given up.
    pub fn is_over(&self) -> bool {
        let at_work = matches!(self.code, Code::Aborted | Code::Cancelled | Code::DeadlineExceeded);
        self.is_answer() && !at_work || self.breach.is_some()
    }

    /// Nothing was sent.
    pub fn is_unsent(&self) -> bool {
        self.origin == Origin::Unsent
    }

    /// Nothing was sent, for another process of the driver is to be asked, or none: choose anew.
    pub fn is_turned_away(&self) -> bool {
        self.origin == Origin::Unsent && self.code == Code::Aborted
    }

    /// Nothing was sent, for it only reads, and another call about the same is under way or waits. Ask later.
    pub fn is_busy(&self) -> bool {
        self.origin == Origin::Unsent && self.code == Code::Cancelled
    }

    /// Our deadline passed.
    pub fn is_deadline(&self) -> bool {
        self.origin == Origin::Local && self.code == Code::DeadlineExceeded
    }

    /// There was no connection, or it broke.
    pub fn is_disconnected(&self) -> bool {
        self.origin == Origin::Local && self.code == Code::Unavailable
    }

    /// The same request must not be sent again before the input changed.
    pub fn needs_input_change(&self) -> bool {
        self.remedy() == Remedy::ChangeInput
    }

    /// What CSI says has to be done about the code of this call. What we made up ourselves says nothing but that it has
    /// to be repeated.
    pub fn advice(&self) -> Advice {
        match self.origin {
            Origin::Peer => advice::of(self.rpc, self.code),
            Origin::Unsent if self.code == Code::Unimplemented => Advice::Unsupported,
            Origin::Local | Origin::Unsent => Advice::Repeat,
        }
    }

    /// What has to change before the call can succeed: [`advice`](Self::advice) in the four words that decide whether it
    /// is repeated.
    pub fn remedy(&self) -> Remedy {
        match self.advice() {
            // A wrong key in a Secret is an invalid argument to many drivers, and nobody is told when it is mended.
            Advice::ChangeInput if self.secrets && self.code == Code::InvalidArgument => {
                Remedy::RepairSecrets
            }
            // What has to come down has no input that anybody could change.
            Advice::ChangeInput | Advice::UndoFirst if self.rpc.undoes() => Remedy::Repeat,
            Advice::ChangeInput
            | Advice::UndoFirst
            | Advice::GiveUp
            | Advice::NextMount
            | Advice::DeleteGroup
            | Advice::CorrectMembers
            | Advice::CopyWhole => Remedy::ChangeInput,
            Advice::RepairSecrets => Remedy::RepairSecrets,
            Advice::Unsupported => Remedy::Unsupported,
            Advice::Repeat
            | Advice::Verify
            | Advice::MakeRoom
            | Advice::EndUse
            | Advice::DetachElsewhere
            | Advice::TakeOffline
            | Advice::WaitForUnpublish
            | Advice::StageFirst
            | Advice::BeginAnew
            | Advice::MendPlugin => Remedy::Repeat,
        }
    }

    /// The code in capitals, as gRPC writes it.
    pub fn code_name(&self) -> &'static str {
        code_name(self.code)
    }
}

impl Failure {
    fn peer_said(&self, code: Code) -> bool {
        self.origin == Origin::Peer && self.code == code
    }
}

/// The code in capitals, as gRPC writes it.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The class of a code that the peer itself sent.
fn class_of(rpc: Rpc, code: Code) -> Class {
    match code {
        // The same list as Kubernetes' side of CSI: these are also what a server says about work that goes on.
        Code::Cancelled | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable => Class::Uncertain,
        // gRPC servers send 8 for limits of their own too; only some calls give it a meaning.
        Code::ResourceExhausted if advice::has_a_row(rpc, code) => Class::Final,
        Code::ResourceExhausted => Class::Uncertain,
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => Class::Final,
    }
}

/// The code that says best what went wrong on our side of the wire, and a sentence for people.
fn local_meaning(status: &Status) -> (Code, Cow<'_, str>) {
    let Some(first) = status.source() else {
        return match status.code() {
            // tonic's decoder calls a reply above the limit OUT_OF_RANGE, which CSI uses for capacities.
            Code::OutOfRange => {
                (Code::ResourceExhausted, format!("the answer is too large: {}", status.message()).into())
            }
            code @ (Code::Unavailable | Code::Internal | Code::Unknown) => (code, status.message().into()),
            other => (
                Code::Internal,
                format!("unusable answer ({}): {}", code_name(other), status.message()).into(),
            ),
        };
    };
    let (mut deepest, mut timed_out) = (first, first.is::<tonic::TimeoutExpired>());
    while let Some(next) = deepest.source() {
        deepest = next;
        timed_out |= deepest.is::<tonic::TimeoutExpired>();
    }
    if timed_out {
        (Code::DeadlineExceeded, "no answer in time".into())
    } else {
        (Code::Unavailable, format!("no connection to the plugin, or it broke: {deepest}").into())
    }
}

/// One line of at most [`MAX_MESSAGE`] bytes without `secrets`.
pub(crate) fn clean(text: &str, secrets: &[String]) -> String {
    // Before anything is cut: half a secret is a secret as well.
    let text = hidden(text, secrets);
    let mut line = String::new();
    for letter in text.trim().chars() {
        if line.len() + letter.len_utf8() > MAX_MESSAGE - '…'.len_utf8() {
            line.push('…');
            break;
        }
        line.push(if letter.is_control() { ' ' } else { letter });
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::confided::Confided;
    use super::*;

    #[test]
    fn a_message_is_one_short_line_without_secrets() {
        let secrets = ["line one\nline two", "hunter22", "line one", "line two"].map(str::to_owned);
        assert_eq!(
            clean("mount -o\npass=hunter22,ab: line two\u{7}", &secrets),
            "mount -o pass=<redacted>,ab: <redacted> "
        );
        for length in [1020, 1021, 1022, 1024, 1025, 100_000] {
            let line = clean(&"é".repeat(length / 2), &[]);
            assert!(line.len() <= MAX_MESSAGE, "{length}: {}", line.len());
            assert_eq!(line.ends_with('…'), length > 1021, "{length}");
        }
        let cut = clean(&format!("{}hunter22", "x".repeat(MAX_MESSAGE - 8)), &secrets);
        assert!(!cut.contains("hun"), "{cut}");
    }

    #[test]
    fn what_must_come_down_and_what_has_secrets_is_tried_again() {
        use Code::{AlreadyExists, InvalidArgument, OutOfRange};
        let failed = |rpc, code, secrets| Failure {
            origin: Origin::Peer,
            ..Failure::local(rpc, code, "no").of_request(secrets)
        };
        for code in [InvalidArgument, OutOfRange, AlreadyExists] {
            assert_eq!(failed(Rpc::NodeStageVolume, code, false).remedy(), Remedy::ChangeInput, "{code:?}");
            for rpc in Rpc::ALL.iter().filter(|rpc| rpc.undoes()) {
                // Where the code says that another call is the right one, this one is not repeated.
                let other = matches!(advice::of(*rpc, code), Advice::DeleteGroup | Advice::CorrectMembers);
                let wanted = if other { Remedy::ChangeInput } else { Remedy::Repeat };
                assert_eq!(failed(*rpc, code, false).remedy(), wanted, "{rpc} {code:?}");
            }
        }
        assert_eq!(failed(Rpc::NodeStageVolume, InvalidArgument, true).remedy(), Remedy::RepairSecrets);
        assert_eq!(failed(Rpc::NodeStageVolume, OutOfRange, true).remedy(), Remedy::ChangeInput);
        assert_eq!(Rpc::ALL.iter().filter(|rpc| rpc.undoes()).count(), 6);
    }

    #[test]
    fn a_status_that_nobody_witnessed_is_never_final() {
        for number in 1..=16 {
            let status = Status::new(Code::from_i32(number), "x");
            let failure =
                Failure::from_status(Rpc::NodeStageVolume, &status, &Confided::default().tell(None));
            assert_eq!((failure.class, failure.origin), (Class::Uncertain, Origin::Local), "{number}");
            assert_eq!(failure.remedy(), Remedy::Repeat, "{number}");
            assert!(!failure.is_not_found() && !failure.is_unimplemented(), "{number}");
        }
    }

    #[test]
    fn code_names_are_grpcs() {
        assert_eq!(code_name(Code::FailedPrecondition), "FAILED_PRECONDITION");
        assert_eq!(
            Failure::deadline(Rpc::Probe, Duration::from_secs(5)).to_string(),
            "Probe: DEADLINE_EXCEEDED: no answer within 5s"
        );
    }
}
