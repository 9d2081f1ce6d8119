//! Failures as a person reads them: what, why, what to do, and the exit code.
//!
//! Turns whatever the client or the server reports into one [`Failure`]. Never prints; [`super::run`] does.
use std::fmt;

use kube::core::Status;

/// How a command ended, as the process's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All was done.
    Done = 0,
    /// Something failed.
    Failed = 1,
    /// The command was written wrongly.
    Usage = 2,
    /// An object or a kind does not exist.
    NotFound = 3,
    /// The object changed meanwhile, or exists already.
    Conflict = 4,
    /// What was waited for did not come in time.
    TimedOut = 5,
    /// The server did not answer.
    Unreachable = 6,
}

impl Exit {
    /// The number given to the shell.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// One failure: a line for what, lines for why, a line for what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code it leads to.
    pub exit: Exit,
    /// What went wrong, in one line.
    pub what: String,
    /// Why, one line per cause.
    pub why: Vec<String>,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Failure {
    /// A failure that says only what went wrong.
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), why: Vec::new(), advice: None }
    }

    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self::new(Exit::Failed, what)
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    /// Adds a cause.
    #[must_use]
    pub fn because(mut self, why: impl Into<String>) -> Self {
        let why = why.into();
        if !why.is_empty() {
            self.why.push(why);
        }
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn try_this(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// The same failure speaking of the object or file that it happened to.
    #[must_use]
    pub(crate) fn about(mut self, subject: &str) -> Self {
        self.what = format!("{subject}: {}", self.what);
        self
    }

    /// Whether it is the reader of our output that went away, which is no failure of ours.
    pub(crate) fn closed_pipe() -> Self {
        Self::new(Exit::Done, "")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        for why in &self.why {
            write!(f, "\n  why: {why}")?;
        }
        match &self.advice {
            Some(advice) => write!(f, "\n  try: {advice}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Self::closed_pipe()
        } else {
            Self::failed("the output could not be written").because(error.to_string())
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => of_status(&status),
            kube::Error::HyperError(error) => unreachable(&error),
            kube::Error::Service(error) => unreachable(error.as_ref()),
            kube::Error::ReadEvents(error) => unreachable(&error),
            kube::Error::SerdeError(error) => {
                Self::failed("the server's answer could not be read").because(error.to_string())
            }
            other => Self::failed("the request could not be made").because(chain(&other)),
        }
    }
}

/// The failure that a `Status` object of the server stands for; causes with a field come one per line.
pub(crate) fn of_status(status: &Status) -> Failure {
    let exit = match (status.code, status.reason.as_str()) {
        (404, _) | (_, "NotFound") => Exit::NotFound,
        (409, _) | (_, "Conflict" | "AlreadyExists") => Exit::Conflict,
        _ => Exit::Failed,
    };
    let causes = status.details.as_ref().map(|d| d.causes.as_slice()).unwrap_or_default();
    let listed: Vec<String> = causes
        .iter()
        .map(|c| {
            // Of a field that is unknown or stands twice the message itself has the path.
            if c.field.is_empty() || c.message.contains(&format!("\"{}\"", c.field)) {
                c.message.clone()
            } else {
                format!("{}: {}", c.field, c.message)
            }
        })
        .collect();
    let what = match (status.reason.as_str(), listed.len()) {
        ("Invalid" | "BadRequest", 1) => "the server refused the object, it has one fault".to_owned(),
        ("Invalid" | "BadRequest", n) if n > 1 => format!("the server refused the object, it has {n} faults"),
        _ if status.message.is_empty() => format!("the server answered {} {}", status.code, status.reason),
        _ => status.message.clone(),
    };
    let failure = Failure { exit, what, why: listed, advice: None };
    match (status.code, status.reason.as_str()) {
        (401, _) => failure.try_this(
            "use a kubeconfig of this cluster: that of `wharfline up` or `wharfline server` is in its data directory, those of \
             users come from `wharfline user create`",
        ),
        (403, _) => failure.try_this("use a kubeconfig with the rights for this"),
        (_, "Conflict") => failure.try_this("read the object again and repeat the change"),
        _ => failure,
    }
}

fn unreachable(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::new(Exit::Unreachable, "the server cannot be reached")
        .because(chain(error))
        .try_this("check that `wharfline up` runs and that the kubeconfig names its address")
}

/// The server took longer than a request may take.
pub(crate) fn silent(seconds: u64) -> Failure {
    Failure::new(Exit::Unreachable, "the server does not answer")
        .because(format!("no answer within {seconds} s"))
        .try_this("look at the server's log; repeat the command once it answers")
}

/// An error and its sources in one line, leaving out what was said already.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let line = source.to_string();
        if !text.contains(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(value: serde_json::Value) -> Failure {
        of_status(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn every_fault_of_a_refused_object_gets_its_line() {
        let failure = status(json!({
            "code": 422, "reason": "Invalid", "message": "long",
            "details": { "causes": [
                { "field": "spec.a", "reason": "FieldValueRequired", "message": "say a" },
                { "field": "spec.b", "reason": "FieldValueInvalid", "message": "b is odd" },
            ] },
        }))
        .about("plugin/dir");
        assert_eq!(
            failure.to_string(),
            "error: plugin/dir: the server refused the object, it has 2 faults\n  why: spec.a: say a\n  why: spec.b: b is odd"
        );
        assert_eq!(failure.exit, Exit::Failed);
    }

    #[test]
    fn a_field_that_nobody_knows_is_named_once() {
        let failure = status(json!({
            "code": 400, "reason": "BadRequest",
            "message": "cannot be handled as a Plugin: strict decoding error: unknown field \"spec.x\"",
            "details": { "causes": [{ "field": "spec.x", "message": "unknown field \"spec.x\"" }] },
        }));
        let wanted =
            "error: the server refused the object, it has one fault\n  why: unknown field \"spec.x\"";
        assert_eq!(failure.to_string(), wanted);
    }

    #[test]
    fn advice_names_commands_that_exist() {
        let refused = status(json!({ "code": 401, "reason": "Unauthorized", "message": "m" }));
        let away = unreachable(&std::io::Error::other("refused"));
        for failure in [refused, away] {
            let advice = failure.advice.unwrap();
            let commands: Vec<&str> = advice
                .split("`wharfline ")
                .skip(1)
                .filter_map(|rest| rest.split([' ', '`']).next())
                .collect();
            assert!(commands.contains(&"up"), "{advice}");
            assert!(commands.iter().all(|command| ["up", "server", "user"].contains(command)), "{advice}");
        }
    }

    #[test]
    fn exit_codes_follow_the_answer() {
        for (code, reason, exit) in [
            (404, "NotFound", Exit::NotFound),
            (409, "Conflict", Exit::Conflict),
            (409, "AlreadyExists", Exit::Conflict),
            (403, "Forbidden", Exit::Failed),
            (500, "InternalError", Exit::Failed),
        ] {
            let failure = status(json!({ "code": code, "reason": reason, "message": "m" }));
            assert_eq!((failure.exit, failure.what.as_str()), (exit, "m"), "{reason}");
        }
    }
}
