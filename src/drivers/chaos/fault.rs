//! What is wrong with a script: each fault with the field that has it.
use std::fmt::Write as _;

/// Where a value stands in a script, such as `rules[1].delay`.
#[derive(Debug, Clone)]
pub(super) struct Place(String);

impl Place {
    /// The script itself.
    pub(super) fn root() -> Self {
        Self(String::new())
    }

    /// A field of what stands here.
    pub(super) fn field(&self, name: &str) -> Self {
        let dot = if self.0.is_empty() { "" } else { "." };
        Self(format!("{}{dot}{name}", self.0))
    }

    /// An item of the list that stands here.
    pub(super) fn item(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }
}

/// All that was found.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<String>);

impl Faults {
    /// One more.
    pub(super) fn add(&mut self, place: &Place, what: impl AsRef<str>) {
        let mut line = place.0.clone();
        if line.is_empty() {
            line.push_str("the script");
        }
        // Writing to a text cannot fail.
        let _ = write!(line, ": {}", what.as_ref());
        self.0.push(line);
    }

    /// One more, and no value.
    pub(super) fn none<T>(&mut self, place: &Place, what: &str) -> Option<T> {
        self.add(place, what);
        None
    }

    /// A line for each.
    pub(super) fn into_lines(self) -> Vec<String> {
        self.0
    }
}
