//! The scorecard: what was checked, what the contract says of it, what was seen. A value, and how it is shown.
use std::fmt;

use serde::Serialize;

use crate::csi::{Code, Failure, Origin, code_name};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Verdict {
    /// As the contract has it.
    Pass,
    /// Otherwise.
    Fail,
    /// The driver does not have what it is about, or what it needs was not there.
    NotApplicable,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::NotApplicable => "n/a",
        }
    }
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Check {
    /// The call.
    pub(super) call: String,
    /// What was special about it.
    pub(super) case: String,
    pub(super) verdict: Verdict,
    /// What the contract says, in our words.
    pub(super) contract: String,
    /// What was seen; of what is not applicable, why.
    pub(super) seen: String,
}

/// Who was examined.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Driver {
    pub(super) name: String,
    pub(super) version: String,
}

/// All checks of one driver.
#[derive(Debug, Default)]
pub(super) struct Card {
    pub(super) driver: Driver,
    pub(super) checks: Vec<Check>,
}

/// What a check is about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point<'a> {
    pub(super) call: &'a str,
    pub(super) case: &'a str,
    pub(super) contract: &'a str,
}

/// What is checked.
pub(super) fn point<'a>(call: &'a str, case: &'a str, contract: &'a str) -> Point<'a> {
    Point { call, case, contract }
}

impl Card {
    /// One check more.
    pub(super) fn add(&mut self, point: Point<'_>, verdict: Verdict, seen: impl Into<String>) {
        self.checks.push(Check {
            call: point.call.to_owned(),
            case: point.case.to_owned(),
            verdict,
            contract: point.contract.to_owned(),
            seen: seen.into(),
        });
    }

    /// One that cannot be made, and why.
    pub(super) fn skip(&mut self, point: Point<'_>, why: impl Into<String>) {
        self.add(point, Verdict::NotApplicable, why);
    }

    /// Whether something holds, and what was seen of it.
    pub(super) fn holds(&mut self, point: Point<'_>, holds: bool, seen: impl Into<String>) -> bool {
        self.add(point, if holds { Verdict::Pass } else { Verdict::Fail }, seen);
        holds
    }

    /// Whether a call ended with one of these codes, by the driver's own word. What it answered, if it answered OK and that
    /// was wanted.
    pub(super) fn answer<T>(
        &mut self,
        point: Point<'_>,
        wanted: &[Code],
        result: Result<T, Failure>,
    ) -> Option<T> {
        match result {
            Ok(answer) => self.holds(point, wanted.contains(&Code::Ok), "OK").then_some(answer),
            Err(failure) => {
                let holds = failure.origin == Origin::Peer && wanted.contains(&failure.code);
                self.holds(point, holds, said(&failure));
                None
            }
        }
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|check| check.verdict == verdict).count()
    }

    /// How many failed.
    pub(super) fn failed(&self) -> usize {
        self.count(Verdict::Fail)
    }

    /// As JSON, for programs.
    pub(super) fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "driver": self.driver,
            "checks": self.checks,
            "passed": self.count(Verdict::Pass),
            "failed": self.failed(),
            "notApplicable": self.count(Verdict::NotApplicable),
        })
    }
}

/// A failure in a few words.
fn said(failure: &Failure) -> String {
    let code = code_name(failure.code);
    match (failure.breach, failure.origin) {
        (Some(_), _) => format!("OK, but {}", failure.message),
        (None, Origin::Peer) if failure.message.is_empty() => code.to_owned(),
        (None, Origin::Peer) => format!("{code}: {}", failure.message),
        (None, Origin::Local | Origin::Unsent) => format!("no answer: {}", failure.message),
    }
}

/// For people: a line for each check, what was seen beneath those that failed, and why one was not made.
impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.driver.name, self.driver.version)?;
        let width = |of: fn(&Check) -> &str, title: &str| {
            self.checks.iter().map(|check| of(check).chars().count()).chain([title.len()]).max().unwrap_or(0)
        };
        let (call, case) = (width(|check| &check.call, "CALL"), width(|check| &check.case, "CASE"));
        writeln!(f, "{:4}   {:call$}   {:case$}   CONTRACT", "", "CALL", "CASE")?;
        for check in &self.checks {
            let (word, why) = (check.verdict.word(), format!("({})", check.seen));
            let skipped = check.verdict == Verdict::NotApplicable;
            let last = if skipped { &why } else { &check.contract };
            writeln!(f, "{word:4}   {:call$}   {:case$}   {last}", check.call, check.case)?;
            if check.verdict == Verdict::Fail {
                writeln!(f, "       {:call$}   seen: {}", "", check.seen)?;
            }
        }
        let (passed, skipped) = (self.count(Verdict::Pass), self.count(Verdict::NotApplicable));
        writeln!(f, "{passed} passed, {} failed, {skipped} not applicable", self.failed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_shows_what_failed_and_why_something_was_left_out() {
        let mut card =
            Card { driver: Driver { name: "x.example".into(), version: "1".into() }, ..Card::default() };
        assert!(card.holds(point("Probe", "is ready", "A driver says so."), true, "ready"));
        assert!(!card.holds(point("CreateVolume", "without a name", "A name is required."), false, "OK"));
        card.skip(point("ListVolumes", "a page", "Pages."), "it does not report LIST_VOLUMES");
        let wanted = "x.example 1
       CALL           CASE             CONTRACT
pass   Probe          is ready         A driver says so.
FAIL   CreateVolume   without a name   A name is required.
                      seen: OK
n/a    ListVolumes    a page           (it does not report LIST_VOLUMES)
1 passed, 1 failed, 1 not applicable
";
        assert_eq!(card.to_string(), wanted);
        let json = card.to_json();
        assert_eq!((json["passed"].as_u64(), json["failed"].as_u64()), (Some(1), Some(1)));
        assert_eq!(json["checks"][1]["verdict"], "fail");
        assert_eq!(json["checks"][2]["verdict"], "notApplicable");
    }
}
