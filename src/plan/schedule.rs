//! What is taken by the clock, and which of what was taken goes.
use jiff::{SignedDuration, Timestamp};

/// A Snapshot that a schedule has taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Its name.
    pub name: String,
    /// When it fell due.
    pub at: Timestamp,
    /// Claims can be filled from it.
    pub ready: bool,
    /// Somebody is being filled from it, or names it.
    pub needed: bool,
    /// It is being deleted.
    pub leaving: bool,
}

/// What is done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    /// Nothing has fallen due, or it was taken already.
    Nothing,
    /// One is taken, of this moment.
    Take(Timestamp),
    /// One has fallen due and is passed over: this one is not finished yet, and more of them would help nobody.
    PassOver(Timestamp, String),
}

/// From when on what falls due is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since {
    /// What falls due after this.
    pub at: Timestamp,
    /// It is another moment than was said before, for what was said is of something else.
    pub anew: bool,
}

/// A clock that was so far ahead was wrong: no two servers differ by as much.
const AHEAD: SignedDuration = SignedDuration::from_hours(1);

/// From when on what falls due is taken. `said` is what was said before, and whether it was of the schedule as it is now; what
/// another one would have asked for by now, or this one while it was suspended, is not made up for. Nothing said: from the
/// birth of the schedule on, unless it is suspended.
pub fn since(said: Option<(Timestamp, bool)>, (born, suspended): (Timestamp, bool), now: Timestamp) -> Since {
    match said {
        None => Since { at: if suspended { now } else { born.min(now) }, anew: true },
        Some((at, true)) if at <= now.saturating_add(AHEAD).unwrap_or(Timestamp::MAX) => {
            Since { at, anew: false }
        }
        Some(_) => Since { at: now, anew: true },
    }
}

/// What is done about what fell due last.
pub fn due(last: Option<Timestamp>, pictures: &[Picture]) -> Due {
    let Some(at) = last.filter(|at| pictures.iter().all(|picture| picture.at != *at)) else {
        return Due::Nothing;
    };
    let unfinished = pictures.iter().filter(|picture| !picture.ready && !picture.leaving);
    match unfinished.max_by_key(|picture| picture.at) {
        Some(picture) => Due::PassOver(at, picture.name.clone()),
        None => Due::Take(at),
    }
}

/// Which of them go: those that are ready and neither among the last so many nor of this moment or later. The newest that is
/// ready stays, whatever its age, and so does what is needed: that counts, and goes when it is not needed any more.
pub fn surplus(keep_last: Option<usize>, since: Option<Timestamp>, pictures: &[Picture]) -> Vec<&str> {
    let mut ready: Vec<&Picture> = pictures.iter().filter(|one| one.ready && !one.leaving).collect();
    ready.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.name.cmp(&b.name)));
    let goes = |(place, one): &(usize, &&Picture)| {
        let beyond = keep_last.is_some_and(|last| *place >= last);
        let old = since.is_some_and(|since| one.at < since);
        *place > 0 && (beyond || old) && !one.needed
    };
    ready.iter().enumerate().filter(goes).map(|(_, one)| one.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: i64) -> Timestamp {
        Timestamp::from_second(day * 86400).unwrap()
    }

    fn picture(day: i64) -> Picture {
        Picture { name: format!("d{day}"), at: at(day), ready: true, needed: false, leaving: false }
    }

    #[test]
    fn what_was_said_of_something_else_does_not_count() {
        let hour = SignedDuration::from_hours(1);
        let second = SignedDuration::from_secs(1);
        for (said, suspended, at_, anew) in [
            (None, false, at(1), true),
            (None, true, at(5), true),
            (Some((at(3), true)), false, at(3), false),
            (Some((at(3), true)), true, at(3), false),
            (Some((at(3), false)), false, at(5), true),
            (Some((at(5) + hour, true)), false, at(5) + hour, false),
            (Some((at(5) + hour + second, true)), false, at(5), true),
        ] {
            let told = since(said, (at(1), suspended), at(5));
            assert_eq!(told, Since { at: at_, anew }, "{said:?} {suspended}");
        }
        assert_eq!(since(None, (at(9), false), at(5)).at, at(5), "born by a clock that is ahead");
    }

    #[test]
    fn one_is_taken_when_it_is_due_and_none_beside_one_that_is_not_finished() {
        let unfinished = Picture { ready: false, ..picture(2) };
        let leaving = Picture { ready: false, leaving: true, ..picture(2) };
        for (last, pictures, wanted) in [
            (None, vec![], Due::Nothing),
            (None, vec![unfinished.clone()], Due::Nothing),
            (Some(3), vec![], Due::Take(at(3))),
            (Some(3), vec![picture(1), picture(2)], Due::Take(at(3))),
            (Some(3), vec![picture(3)], Due::Nothing),
            (Some(2), vec![unfinished.clone()], Due::Nothing),
            (Some(3), vec![picture(1), unfinished], Due::PassOver(at(3), "d2".to_owned())),
            (Some(3), vec![leaving], Due::Take(at(3))),
        ] {
            assert_eq!(due(last.map(at), &pictures), wanted, "{last:?} {pictures:?}");
        }
    }

    #[test]
    fn the_newest_are_kept_and_what_is_needed_and_one_at_any_rate() {
        let all: Vec<_> = (1..=5).map(picture).collect();
        let with = |change: &dyn Fn(&mut Vec<Picture>)| {
            let mut all = all.clone();
            change(&mut all);
            all
        };
        let none: [&str; 0] = [];
        assert_eq!(surplus(None, None, &all), none);
        assert_eq!(surplus(Some(3), None, &all), ["d2", "d1"]);
        assert_eq!(surplus(None, Some(at(4)), &all), ["d3", "d2", "d1"]);
        assert_eq!(surplus(Some(2), Some(at(2)), &all), ["d3", "d2", "d1"], "what is beyond either");
        assert_eq!(surplus(None, Some(at(9)), &all), ["d4", "d3", "d2", "d1"], "one stays at any rate");
        assert_eq!(surplus(Some(0), None, &all), ["d4", "d3", "d2", "d1"]);
        assert_eq!(surplus(Some(3), None, &with(&|all| all[0].needed = true)), ["d2"]);
        // What is not ready neither counts nor goes.
        assert_eq!(surplus(Some(3), None, &with(&|all| all[4].ready = false)), ["d1"]);
        assert_eq!(surplus(Some(1), None, &with(&|all| all[0].ready = false)), ["d4", "d3", "d2"]);
        assert_eq!(surplus(Some(3), None, &with(&|all| all[4].leaving = true)), ["d1"]);
    }
}
