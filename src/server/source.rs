//! Where a list is read: in the store, or in what the server holds of it (`mirror`). Values only.
//!
//! What is held is the store's state at one revision, a little behind it. It is as good as the store's own word once it has come to
//! the revision at which the store says, after the request came, that it is now: whatever was acknowledged before the
//! request is in it. So Kubernetes has it, too (KEP-2340).
use crate::store::Rev;

/// The state that a list is to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The newest. `told`: at which revision the store said to be since; none while it was not asked.
    Newest { told: Option<Rev> },
    /// The one at this revision.
    At(Rev),
}

/// What to do next for a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Read it in the store.
    Store,
    /// Ask the store at which revision it is.
    Ask,
    /// Wait until this revision is held.
    Wait(Rev),
    /// Read it in what is held.
    Held,
}

/// What to do next for a list, where everything up to `held` is held; none where nothing is, or not whether it is still so.
pub(crate) fn next(asked: Asked, held: Option<Rev>) -> Next {
    match (asked, held) {
        (_, None) => Next::Store,
        (Asked::At(rev), Some(held)) if rev == held => Next::Held,
        // Only the store knows its history, what of it is forgotten, and what is yet to come.
        (Asked::At(_), Some(_)) => Next::Store,
        (Asked::Newest { told: None }, Some(_)) => Next::Ask,
        (Asked::Newest { told: Some(told) }, Some(held)) if told <= held => Next::Held,
        (Asked::Newest { told: Some(told) }, Some(_)) => Next::Wait(told),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_as_good_as_the_stores_word_is_told() {
        let newest = |told: Option<u64>| Asked::Newest { told: told.map(Rev) };
        for (asked, held, expected) in [
            // Nothing is held: it is being filled, or not followed.
            (newest(None), None, Next::Store),
            (newest(Some(7)), None, Next::Store),
            (Asked::At(Rev(7)), None, Next::Store),
            // However much is held, the store may have more.
            (newest(None), Some(7), Next::Ask),
            (newest(Some(8)), Some(7), Next::Wait(Rev(8))),
            (newest(Some(7)), Some(7), Next::Held),
            (newest(Some(6)), Some(7), Next::Held),
            // History is the store's, and so is the future.
            (Asked::At(Rev(6)), Some(7), Next::Store),
            (Asked::At(Rev(7)), Some(7), Next::Held),
            (Asked::At(Rev(8)), Some(7), Next::Store),
        ] {
            assert_eq!(next(asked, held.map(Rev)), expected, "{asked:?} {held:?}");
        }
    }
}
