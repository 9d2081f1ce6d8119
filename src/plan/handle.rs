//! Whose a handle is that a plugin gave to several objects.
//!
//! To a plugin, two objects of one handle are one volume, or one snapshot: who deletes the one deletes the other. So of each that was
//! made for its object the controllers say once whether what it was given is its own. They can: all that was written of any object
//! of the kind before a handle was seen by who sees that. What is another's is never used, and its object goes without a call.
use crate::api::meta::{
    Condition, HANDLE_ENDED, HANDLE_ENDING, HANDLE_OF_ANOTHER, HANDLE_SHARED, Truth, may_be_stale,
    shared_because,
};

/// Whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The object's that it was made for.
    Own,
    /// That of another object, which had it before.
    Anothers,
    /// Not to be said yet: of another one that has it, too, it is to be said first, or that is being deleted with it. A plugin may use
    /// what is free again.
    Unsaid,
    /// Nobody's any more, perhaps: it was given while what had it was being deleted, and that has ended. What was given may have gone with it:
    /// it is asked for once more before anything is said.
    Stale,
}

/// Another object of the handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Twin {
    /// A person said that it is that, or it was made for it, or is about to be said so.
    Keeps,
    /// It was, and is being deleted with it; or it gives it back.
    Leaving,
    /// It is younger, and nothing was said of it yet.
    Younger,
}

/// Whose a handle is that was made for an object: what was `said` of it counts. By its `conditions` it was to be waited for.
pub fn whose(said: Option<Whose>, conditions: &[Condition], twins: impl IntoIterator<Item = Twin>) -> Whose {
    let alone = if may_be_stale(conditions) { Whose::Stale } else { Whose::Own };
    let seen = |worst: Whose, twin: Twin| match (worst, twin) {
        (Whose::Anothers, _) | (_, Twin::Keeps) => Whose::Anothers,
        // The younger one does not make it good.
        (Whose::Stale, Twin::Younger) => Whose::Stale,
        (Whose::Own | Whose::Unsaid | Whose::Stale, Twin::Leaving | Twin::Younger) => Whose::Unsaid,
    };
    if planted!("twin-is-own") {
        return Whose::Own;
    }
    said.unwrap_or_else(|| twins.into_iter().fold(alone, seen))
}

/// Another object of the handle, as the controllers have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Other {
    /// A person registered it, and it is not refused; else it was made for its object.
    pub registered: bool,
    /// What was said of whose the handle is.
    pub said: Option<Whose>,
    /// Its object is older.
    pub older: bool,
    /// It is being deleted at the backend: nobody has it, and nothing is made of it.
    pub leaving: bool,
    /// Its host has said that it is not there any more.
    pub gone: bool,
    /// What it was given may have gone with a third one: it is asked for once more.
    pub stale: bool,
}

/// What another object of the handle is to one of which nothing is said yet. Of two of that kind the younger one has it from another:
/// that is said first.
pub fn twin(other: Other) -> Option<Twin> {
    match (other.registered, other.said) {
        (_, Some(Whose::Anothers)) => None,
        _ if other.leaving && other.gone => None,
        (true, _) => Some(Twin::Keeps),
        (false, Some(Whose::Own)) => Some(if other.leaving { Twin::Leaving } else { Twin::Keeps }),
        // Nothing was deleted of it so far, whether it is to be or not: so nothing of it can be given again.
        (false, Some(Whose::Unsaid | Whose::Stale) | None) => Some(match (other.older, other.stale) {
            (true, false) => Twin::Keeps,
            // It gives the handle back, which may be another's by right since then.
            (true, true) => Twin::Leaving,
            (false, _) => Twin::Younger,
        }),
    }
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
    /// It stands for what may be gone with another object.
    Stale,
}

impl Sole {
    /// From the condition `HandleShared` among these, and from whether the handle is the one that was compared.
    pub fn of(conditions: &[Condition], checked: bool) -> Self {
        match (shared_because(conditions), checked) {
            (HANDLE_ENDED, _) => Self::Stale,
            (HANDLE_ENDING, _) | ("", false) => Self::Unsaid,
            ("", true) => Self::Yes,
            (_, _) => Self::No,
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

/// The same of one that waits for another one that goes first.
pub fn ending(other: &str) -> Condition {
    let message = format!("{other} has the same handle, and goes first");
    Condition::new(HANDLE_SHARED, Truth::True, HANDLE_ENDING, message)
}

/// The same once that has gone.
pub fn ended() -> Condition {
    let message = "what had the same handle has gone, and what it stands for perhaps with it";
    Condition::new(HANDLE_SHARED, Truth::True, HANDLE_ENDED, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_it_is_is_said_once_and_not_while_it_may_become_free() {
        use Twin::{Keeps, Leaving, Younger};
        use Whose::{Anothers, Own, Stale, Unsaid};
        // What was given beside one that has gone may be gone with it: a younger one does not make it good.
        let cases: [(&[Twin], Whose, Whose); 7] = [
            (&[], Own, Stale),
            (&[Keeps], Anothers, Anothers),
            (&[Leaving], Unsaid, Unsaid),
            (&[Younger], Unsaid, Stale),
            (&[Younger, Keeps], Anothers, Anothers),
            (&[Keeps, Leaving], Anothers, Anothers),
            (&[Younger, Leaving], Unsaid, Unsaid),
        ];
        let others = [vec![], vec![shared("x")], vec![anothers("x")]];
        let waited = [vec![ending("x")], vec![ended()]];
        for (twins, expected, after) in cases {
            let twins = || twins.iter().copied();
            for conditions in &others {
                assert_eq!(whose(None, conditions, twins()), expected, "{conditions:?}");
            }
            for conditions in &waited {
                assert_eq!(whose(None, conditions, twins()), after, "{conditions:?}");
            }
            for (said, conditions) in [Own, Anothers].into_iter().zip(others.iter().chain(&waited)) {
                assert_eq!(whose(Some(said), conditions, twins()), said, "{conditions:?}");
            }
        }
    }

    const LEAVING: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

    #[test]
    fn of_two_that_are_given_one_handle_at_once_one_has_it() {
        let made =
            Other { registered: false, said: None, older: true, leaving: false, gone: false, stale: false };
        let cases = [
            (made, Some(Twin::Keeps)),
            (Other { older: false, ..made }, Some(Twin::Younger)),
            (Other { older: false, said: Some(Whose::Own), ..made }, Some(Twin::Keeps)),
            (Other { said: Some(Whose::Anothers), ..made }, None),
            (Other { said: Some(Whose::Own), leaving: true, ..made }, Some(Twin::Leaving)),
            (Other { said: Some(Whose::Own), leaving: true, gone: true, ..made }, None),
            (Other { leaving: true, ..made }, Some(Twin::Keeps)),
            (Other { leaving: true, older: false, ..made }, Some(Twin::Younger)),
            (Other { stale: true, ..made }, Some(Twin::Leaving)),
            (Other { stale: true, older: false, ..made }, Some(Twin::Younger)),
            (Other { registered: true, older: false, ..made }, Some(Twin::Keeps)),
        ];
        for (other, expected) in cases {
            assert_eq!(twin(other), expected, "{other:?}");
        }
        // Whatever order their handles came in, and whoever is looked at first: never both, and in the end one.
        for (younger_first, leaving) in
            [true, false].into_iter().flat_map(|first| LEAVING.map(|l| (first, l)))
        {
            let mut said: [Option<Whose>; 2] = [None, None];
            let order = if younger_first { [1, 0] } else { [0, 1] };
            for _ in 0..3 {
                for one in order {
                    let other =
                        Other { said: said[1 - one], older: one == 1, leaving: leaving[1 - one], ..made };
                    let word = whose(said[one], &[], twin(other));
                    said[one] = Some(word).filter(|word| *word != Whose::Unsaid);
                    assert_ne!(said, [Some(Whose::Own); 2]);
                }
            }
            assert_eq!(said, [Some(Whose::Own), Some(Whose::Anothers)], "{leaving:?}");
        }
    }

    #[test]
    fn nothing_is_deleted_on_a_word_that_was_not_given() {
        assert_eq!(Sole::of(&[], true), Sole::Yes);
        assert_eq!(Sole::of(&[], false), Sole::Unsaid);
        for checked in [true, false] {
            for (condition, sole) in [
                (shared("x"), Sole::No),
                (anothers("x"), Sole::No),
                (ending("x"), Sole::Unsaid),
                (ended(), Sole::Stale),
            ] {
                assert_eq!(Sole::of(&[condition], checked), sole);
            }
        }
    }
}
