//! What CSI asks of an orchestrator, and how much of it tests show, by what they say in their comments.
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One line each: id, level, what it is about.
const LIST: &str = include_str!("obligations.tsv");

/// One thing that is owed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obligation {
    pub(crate) id: &'static str,
    /// `M`, `S` or `Y`: it must, should or may be done. A `d` behind it: the contract does not say so, but what it says
    /// cannot be kept to otherwise.
    pub(crate) level: &'static str,
    about: &'static str,
}

/// All of them.
pub(crate) fn all() -> Vec<Obligation> {
    let of = |line: &'static str| {
        let mut cells = line.split('\t');
        let mut cell = || cells.next().expect("a line has three cells");
        Obligation { id: cell(), level: cell(), about: cell() }
    };
    LIST.lines().filter(|line| !line.starts_with('#')).map(of).collect()
}

/// The tests that name each id, by the id.
pub(crate) type Named = BTreeMap<String, Vec<String>>;

/// Turns what each test names into who names each id.
pub(crate) fn by_id(shown: &[(String, Vec<String>)]) -> Named {
    let mut named = Named::new();
    for (test, ids) in shown {
        for id in ids {
            named.entry(id.clone()).or_default().push(test.clone());
        }
    }
    named
}

/// How far it is: shown by a test, shown in part, or not at all.
pub(crate) fn report(whole: &Named, in_part: &Named) -> String {
    let all = all();
    let state = |one: &Obligation| match (whole.get(one.id), in_part.get(one.id)) {
        (Some(tests), _) => (0, tests.join(", ")),
        (None, Some(tests)) => (1, tests.join(", ")),
        (None, None) => (2, String::new()),
    };
    let mut text = String::new();
    for (wanted, head) in ["COVERED", "IN PART", "NOT COVERED"].into_iter().enumerate() {
        let rows = all.iter().filter(|one| state(one).0 == wanted).collect::<Vec<_>>();
        let levels = ["M", "S", "Y"].map(|level| {
            let of = |rows: &mut dyn Iterator<Item = &Obligation>| {
                rows.filter(|one| one.level.starts_with(level)).count()
            };
            format!("{level} {} of {}", of(&mut rows.iter().copied()), of(&mut all.iter()))
        });
        let _ = writeln!(text, "{head}: {} of {} ({})", rows.len(), all.len(), levels.join(", "));
        for one in rows {
            let line = format!("  {:<12}{:<4}{:<46}{}", one.id, one.level, one.about, state(one).1);
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text + "M must, S should, Y may be done; d: it follows from another one. A MUST that is not covered makes CI fail.\n"
}

/// What must be done and no test shows as a whole.
pub(crate) fn missing(whole: &Named) -> Vec<&'static str> {
    let all = all().into_iter();
    all.filter(|one| one.level.starts_with('M') && !whole.contains_key(one.id)).map(|one| one.id).collect()
}
