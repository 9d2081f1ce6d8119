//! Attachments that are gone at a backend, though nobody here took them down, by what the backend lists.
//!
//! No list is a consistent view (CO-CTRL-65): an attachment may be missing in one that was begun before it was made. One that is missing twice
//! in a row is asked for again, and where that does not help, ever more seldom: it may be the list that is wrong.

/// What one list says of one attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// Nothing: its volume is not in it.
    Nothing,
    /// The volume is attached to the node.
    There,
    /// The volume is listed, and not as attached to the node.
    Missing,
}

/// In how many lists it was missing since it was last seen, with this one; and whether it is asked for again now.
pub fn after(missed: u32, listed: Listed) -> (u32, bool) {
    match listed {
        Listed::There => (0, false),
        Listed::Nothing => (missed, false),
        Listed::Missing => {
            let missed = missed.saturating_add(1);
            (missed, missed >= 2 && missed.is_power_of_two())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_twice_is_asked_for_again_and_then_ever_more_seldom() {
        use Listed::{Missing, Nothing, There};
        let run = |lists: &[Listed]| {
            let mut missed = 0;
            let mut asked = Vec::new();
            for (at, listed) in lists.iter().enumerate() {
                let (now, again) = after(missed, *listed);
                missed = now;
                asked.extend(again.then_some(at + 1));
            }
            asked
        };
        assert_eq!(run(&[There; 20]), [0; 0]);
        assert_eq!(run(&[Nothing; 20]), [0; 0]);
        assert_eq!(run(&[Missing; 20]), [2, 4, 8, 16]);
        assert_eq!(run(&[Missing, There, Missing, There]), [0; 0], "each was a list that came late");
        assert_eq!(run(&[Missing, Nothing, Missing]), [3], "a gap proves nothing");
        assert_eq!(run(&[Missing, Missing, There, Missing, Missing]), [2, 5]);
        assert_eq!(after(u32::MAX, Missing).0, u32::MAX);
    }
}
