//! Whose a handle is that a plugin gave to several objects.
//!
//! To a plugin, two objects of one handle are one volume, or one snapshot: who deletes the one deletes the other. So of each that was
//! made for its object the controllers say once whether what it was given is its own. They can: all that was written of any object
//! of the kind before a handle was seen by who sees that. What is another's is never used, and its object goes without a call.
use crate::api::meta::{Condition, HANDLE_OF_ANOTHER, HANDLE_SHARED, Truth};

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The object's that it was made for.
    Own,
    /// That of another object, which had it before.
    Anothers,
    /// Not to be said yet: another one that has it, too, is being deleted with it. A plugin may use what is free again.
    Unsaid,
}

/// Another object of the handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twin {
    /// A person said that it is that, or it was made for it, or is about to be said so.
    Keeps,
    /// It was, and is being deleted with it.
    Goes,
}

/// Whose a handle is that was made for an object: what was `said` of it counts.
pub fn whose(said: Option<Whose>, twins: impl IntoIterator<Item = Twin>) -> Whose {
    let seen = |worst: Whose, twin: Twin| match (worst, twin) {
        (Whose::Anothers, _) | (_, Twin::Keeps) => Whose::Anothers,
        (Whose::Own | Whose::Unsaid, Twin::Goes) => Whose::Unsaid,
    };
    said.unwrap_or_else(|| twins.into_iter().fold(Whose::Own, seen))
}

/// What a host goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sole {
    /// Nothing was said of the handle yet.
    Unsaid,
    /// What it stands for can be deleted for its object.
    Yes,
    /// It would be deleted under another object.
    No,
}

impl Sole {
    /// From the condition `HandleShared`, and from whether the handle is the one that was compared.
    pub fn of(shared: bool, checked: bool) -> Self {
        match (shared, checked) {
            (true, _) => Self::No,
            (false, true) => Self::Yes,
            (false, false) => Self::Unsaid,
        }
    }
}

/// The condition `HandleShared` of an object, while another one of the handle would lose its data with it.
pub fn shared(other: &str) -> Condition {
    let message = format!("{other} has the same plugin and handle");
    Condition::new(HANDLE_SHARED, Truth::True, HANDLE_SHARED, message)
}

/// The same of one that was given what is another's.
pub fn anothers(other: &str) -> Condition {
    let message = format!("its plugin gave it the handle of {other}");
    Condition::new(HANDLE_SHARED, Truth::True, HANDLE_OF_ANOTHER, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_it_is_is_said_once_and_not_while_it_may_become_free() {
        use Twin::{Goes, Keeps};
        use Whose::{Anothers, Own, Unsaid};
        let cases: [(&[Twin], Whose); 6] = [
            (&[], Own),
            (&[Keeps], Anothers),
            (&[Goes], Unsaid),
            (&[Goes, Keeps], Anothers),
            (&[Keeps, Goes], Anothers),
            (&[Goes, Goes], Unsaid),
        ];
        for (twins, expected) in cases {
            assert_eq!(whose(None, twins.iter().copied()), expected, "{twins:?}");
            for said in [Own, Anothers] {
                assert_eq!(whose(Some(said), twins.iter().copied()), said, "{twins:?}");
            }
        }
    }

    #[test]
    fn nothing_is_deleted_on_a_word_that_was_not_given() {
        assert_eq!(Sole::of(false, true), Sole::Yes);
        assert_eq!(Sole::of(false, false), Sole::Unsaid);
        for checked in [true, false] {
            assert_eq!(Sole::of(true, checked), Sole::No);
        }
    }
}
