//! Where in an object a walker is. Every write is walked several times and hardly one has a fault, so a path is a chain of
//! borrowed names that becomes text only when somebody is told of it.
use std::fmt;

/// The way from an object to one of its fields.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Path<'a> {
    /// The object itself.
    Root,
    /// A field of what is there.
    Field(&'a Path<'a>, &'a str),
    /// An element of what is there.
    Item(&'a Path<'a>, usize),
}

impl<'a> Path<'a> {
    /// The way to a field.
    pub(crate) fn field(&'a self, name: &'a str) -> Self {
        Self::Field(self, name)
    }

    /// The way to an element.
    pub(crate) fn item(&'a self, index: usize) -> Self {
        Self::Item(self, index)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(above, name) => write!(f, "{above}.{name}"),
            Self::Item(above, index) => write!(f, "{above}[{index}]"),
        }
    }
}

impl From<Path<'_>> for String {
    fn from(path: Path<'_>) -> Self {
        path.to_string()
    }
}

impl From<&Path<'_>> for String {
    fn from(path: &Path<'_>) -> Self {
        path.to_string()
    }
}
