//! Faults of an object, each with the path of its field, collected so that all are reported at once.

/// One fault: where, what was found, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The path as a person writes it, such as `spec.instances[0].runtime`.
    pub path: String,
    /// The machine-readable cause, one of the Kubernetes `CauseType` words.
    pub cause: Cause,
    /// One sentence: what was wrong and what to do.
    pub message: String,
}

/// The Kubernetes cause words that we use in `Status.details.causes[].reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A required field is absent.
    Required,
    /// A value is malformed or out of range.
    Invalid,
    /// A value is not one of those allowed.
    NotSupported,
    /// The field may not be set or changed here.
    Forbidden,
    /// The value stands twice in a list keyed by it.
    Duplicate,
    /// The value is too long.
    TooLong,
}

impl Cause {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::TooLong => "FieldValueTooLong",
        }
    }
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// How many faults are listed, but for one that says that there are more.
const MOST: usize = 100;

/// Collects faults while walking an object. A path is passed down, never parsed back.
#[derive(Debug, Default)]
pub struct FieldErrors(Vec<FieldError>);

impl FieldErrors {
    /// No faults yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records one fault.
    pub fn add(&mut self, path: impl Into<String>, cause: Cause, message: impl Into<String>) {
        let mut message = message.into();
        match self.0.len() {
            0..MOST => {}
            MOST => message.push_str(" (there are more, which are not listed)"),
            _ => return,
        }
        self.0.push(FieldError { path: path.into(), cause, message });
    }

    /// Records a fault with cause [`Cause::Required`].
    pub fn required(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.add(path, Cause::Required, message);
    }

    /// Records a fault with cause [`Cause::Invalid`].
    pub fn invalid(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.add(path, Cause::Invalid, message);
    }

    /// Records a fault with cause [`Cause::Forbidden`].
    pub fn forbidden(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.add(path, Cause::Forbidden, message);
    }

    /// The faults in the order found.
    pub fn into_vec(self) -> Vec<FieldError> {
        self.0
    }

    /// Whether a fault of this very field is known.
    pub fn has(&self, path: &str) -> bool {
        self.0.iter().any(|fault| fault.path == path)
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
