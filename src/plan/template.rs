//! Claims that an allocation brings along (`claimTemplate`).
//!
//! Such a claim has a name that another one may have, so whose it is has to be known: one that goes with its allocation says
//! so by its owner, that allocation's very uid; one that stays says it by a label, for the next allocation of that name has
//! it again. Neither is ever taken over from anybody else.
use super::Reason;

/// What is there under the name of the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// The allocation's own.
    Own,
    /// The same, on its way out.
    OwnLeaving,
    /// Somebody else's, such as an earlier allocation's of the same name.
    Others,
    /// The same, on its way out.
    OthersLeaving,
}

/// What is done about the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It is there, or not wanted.
    Keep,
    /// It is made.
    Make,
}

/// Whether the claim is made. Only for an allocation that will use it: one that is deleted, over or stopped needs none.
pub fn step(wanted: bool, found: Found) -> Step {
    match (wanted, found) {
        (true, Found::Nothing) => Step::Make,
        (false, _) | (true, Found::Own | Found::OwnLeaving | Found::Others | Found::OthersLeaving) => {
            Step::Keep
        }
    }
}

/// Why an allocation cannot use what is there under the name of its claim.
pub fn unusable(found: Found, claim: &str) -> Option<Reason> {
    let claim = || claim.to_owned();
    match found {
        Found::Own => None,
        Found::Nothing => Some(Reason::NotFound { kind: "VolumeClaim", name: claim() }),
        Found::OwnLeaving | Found::OthersLeaving => {
            Some(Reason::BeingDeleted { kind: "VolumeClaim", name: claim() })
        }
        Found::Others => Some(Reason::ClaimTaken { claim: claim() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_and_not_there_is_made_and_only_ones_own_is_used() {
        let all = [Found::Nothing, Found::Own, Found::OwnLeaving, Found::Others, Found::OthersLeaving];
        for found in all {
            let made = step(true, found) == Step::Make;
            assert_eq!(made, found == Found::Nothing, "{found:?}");
            assert_eq!(step(false, found), Step::Keep, "{found:?}");
            assert_eq!(unusable(found, "c").is_none(), found == Found::Own, "{found:?}");
        }
        let words = |found| unusable(found, "c").map(|reason| reason.word());
        assert_eq!(words(Found::Others), Some("ClaimTaken"));
        assert_eq!(words(Found::OthersLeaving), Some("BeingDeleted"), "it is made anew once that is gone");
        assert_eq!(words(Found::OwnLeaving), Some("BeingDeleted"));
        assert_eq!(words(Found::Nothing), Some("NotFound"));
    }
}
