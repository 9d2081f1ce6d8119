//! When it is told anew how full a volume is, and how it is by its plugin's word.
//!
//! What is measured is kept in memory and shown as metrics; each word to the API is a durable write, so it is one only when
//! a person would read something else from it.
//!
//! | before | now | told |
//! |---|---|---|
//! | nothing | figures | yes |
//! | figures | none any more | yes |
//! | of another size: by a hundredth of its bytes, a twentieth of its inodes, for some file systems make those as they go | | yes |
//! | space left | none left, or the reverse | yes |
//! | used by a twentieth more or less of it | | yes |
//! | anything nearer | | no |
//! | a state of the volume | another state, or another word for it | yes |
use crate::api::volume::{Figures, VolumeUsage};

/// What is told lags behind by less than one of so many parts of the volume.
const PARTS: i128 = 20;
/// The same of its size in bytes. Some file systems have no size of their own, and tell what is left of another one.
const PARTS_OF_SIZE: i128 = 100;
/// The most rounds in which a volume is passed over that did not answer the last time.
const LONGEST: u32 = 16;

/// How a volume is, by its plugin's word. For people: nothing is done because of it (CO-CTRL-69).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Well.
    Well,
    /// Not, and what is wrong with it.
    Abnormal(String),
    /// The plugin was asked and said no: one word, and what it said.
    Unknown(String, String),
}

impl State {
    /// Whether another one says something else to a person. What a plugin says of a failure may differ each time.
    pub fn is_news(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Unknown(word, _), Self::Unknown(former, _)) => word != former,
            _ => self != before,
        }
    }
}

/// Whether the figures are told anew, after those that were told last.
pub fn is_news(told: &VolumeUsage, now: &VolumeUsage) -> bool {
    moved(told.bytes, now.bytes, PARTS_OF_SIZE) || moved(told.inodes, now.inodes, PARTS)
}

fn moved(told: Option<Figures>, now: Option<Figures>, parts_of_size: i128) -> bool {
    let (told, now) = match (told, now) {
        (None, None) => return false,
        (Some(told), Some(now)) => (told, now),
        (Some(_), None) | (None, Some(_)) => return true,
    };
    let full = |of: Figures| of.available == Some(0);
    let apart = |told: i64, now: i64| (i128::from(told) - i128::from(now)).abs();
    let distance = match (told.used, now.used) {
        (Some(told), Some(now)) => apart(told, now),
        (None, None) => 0,
        (Some(_), None) | (None, Some(_)) => return true,
    };
    let resized = apart(told.total, now.total) * parts_of_size >= i128::from(now.total);
    resized || full(told) != full(now) || distance * PARTS >= i128::from(now.total)
}

/// How many rounds a volume is passed over that did not answer so many times in a row: one that hangs is not asked each time.
pub fn rounds_off(silent: u32) -> u32 {
    1_u32.checked_shl(silent).unwrap_or(LONGEST).min(LONGEST) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(total: i64, used: Option<i64>, available: Option<i64>) -> Figures {
        Figures { total, used, available }
    }

    #[test]
    fn figures_are_told_anew_when_a_person_would_read_something_else() {
        let half = Some(of(1000, Some(500), Some(500)));
        for (told, now, news) in [
            (None, None, false),
            (None, half, true),
            (half, None, true),
            (half, half, false),
            (half, Some(of(1000, Some(549), Some(451))), false),
            (half, Some(of(1000, Some(550), Some(450))), true),
            (half, Some(of(1000, Some(451), Some(549))), false),
            (half, Some(of(1000, Some(450), Some(550))), true),
            // It grew.
            (half, Some(of(1060, Some(500), Some(560))), true),
            // The last of it went.
            (Some(of(1000, Some(980), Some(20))), Some(of(1000, Some(1000), Some(0))), true),
            (Some(of(1000, Some(1000), Some(0))), Some(of(1000, Some(999), Some(1))), true),
            // A block volume tells its size alone.
            (Some(of(1000, None, None)), Some(of(1000, None, None)), false),
            (Some(of(1000, None, None)), half, true),
            (Some(of(i64::MAX, Some(0), None)), Some(of(i64::MAX, Some(i64::MAX), None)), true),
        ] {
            let usage = |bytes| VolumeUsage { bytes, ..VolumeUsage::default() };
            assert_eq!(is_news(&usage(told), &usage(now)), news, "bytes: {told:?}, then {now:?}");
            let usage = |inodes| VolumeUsage { inodes, ..VolumeUsage::default() };
            assert_eq!(is_news(&usage(told), &usage(now)), news, "inodes: {told:?}, then {now:?}");
        }
    }

    /// As xfs makes inodes, and as a directory shows the file system that it is on.
    #[test]
    fn a_size_that_floats_is_not_told_each_time() {
        let usage = |bytes, inodes| VolumeUsage { bytes, inodes, ..VolumeUsage::default() };
        let told = usage(Some(of(10_000, Some(10), None)), Some(of(10_000, Some(10), None)));
        for (bytes, inodes, news) in [
            (10_099, 10_000, false),
            (10_102, 10_000, true),
            (9_902, 10_000, false),
            (9_900, 10_000, true),
            (10_000, 10_500, false),
            (10_000, 10_527, true),
        ] {
            let now = usage(Some(of(bytes, Some(10), None)), Some(of(inodes, Some(10), None)));
            assert_eq!(is_news(&told, &now), news, "{bytes} bytes, {inodes} inodes");
        }
    }

    #[test]
    fn a_state_is_news_when_it_says_something_else() {
        let bad = |message: &str| State::Abnormal(message.to_owned());
        let no = |word: &str, message: &str| State::Unknown(word.to_owned(), message.to_owned());
        for (before, now, news) in [
            (State::Well, State::Well, false),
            (State::Well, bad("a disk is gone"), true),
            (bad("a disk is gone"), bad("two disks are gone"), true),
            (bad("a disk is gone"), State::Well, true),
            (no("NotFound", "request 1"), no("NotFound", "request 2"), false),
            (no("NotFound", ""), no("Internal", ""), true),
            (no("NotFound", ""), State::Well, true),
        ] {
            assert_eq!(now.is_news(&before), news, "{before:?}, then {now:?}");
        }
    }

    #[test]
    fn what_hangs_is_asked_less_and_less_and_never_given_up() {
        let off: Vec<u32> = [0, 1, 2, 3, 4, 5, 40, u32::MAX].into_iter().map(rounds_off).collect();
        assert_eq!(off, [0, 1, 3, 7, 15, 15, 15, 15]);
    }
}
