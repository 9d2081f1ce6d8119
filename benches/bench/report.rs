//! What was measured: a table for people, JSON for the next run.
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::floors::Floors;

/// Floors that moved further than this between the beginning and the end make a run worthless.
const STEADY: f64 = 0.15;
/// So much of the machine may be busy with other things.
const FOREIGN: f64 = 0.10;

/// The rows of the table.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

/// One figure.
pub(crate) struct Row {
    /// Such as `B1`.
    pub(crate) name: &'static str,
    /// What it is.
    pub(crate) what: String,
    /// The unit of floor, value and target.
    pub(crate) unit: &'static str,
    /// What the machine itself needs, where there is such a thing.
    pub(crate) floor: Option<f64>,
    /// One figure per round.
    pub(crate) rounds: Vec<f64>,
    /// The most that it may be.
    pub(crate) target: Option<Target>,
    /// Whatever else was seen.
    pub(crate) more: Value,
}

/// What a figure is held to.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// Its median, in its unit.
    Value(f64),
    /// Its median, in floors.
    Ratio(f64),
    /// Its median, in floors, of a figure that is better when it is larger.
    AtLeast(f64),
}

impl Row {
    /// A figure without floor and target.
    pub(crate) fn new(
        name: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        rounds: Vec<f64>,
    ) -> Self {
        Self { name, what: what.into(), unit, floor: None, rounds, target: None, more: Value::Null }
    }

    fn ratio(&self) -> Option<f64> {
        Some(median(&self.rounds) / self.floor?)
    }

    fn met(&self) -> Option<bool> {
        Some(match self.target? {
            Target::Value(most) => median(&self.rounds) <= most,
            Target::Ratio(most) => self.ratio()? <= most,
            Target::AtLeast(least) => self.ratio()? >= least,
        })
    }

    fn best(&self) -> f64 {
        match self.target {
            Some(Target::AtLeast(_)) => self.rounds.iter().copied().fold(f64::NAN, f64::max),
            Some(Target::Value(_) | Target::Ratio(_)) | None => best(&self.rounds),
        }
    }

    fn line(&self) -> String {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
        let target = match self.target {
            None => "-".to_owned(),
            Some(Target::Value(most)) => format!("{} {}", figure(most), self.unit),
            Some(Target::Ratio(most)) => format!("{most} x"),
            Some(Target::AtLeast(least)) => format!("> {least} x"),
        };
        let met = match self.met() {
            None => "",
            Some(true) => "met",
            Some(false) => "NOT MET",
        };
        format!(
            "{:<5} {:<46} {:>9} {:>9} {:>9} {:<4} {:>7} {:>9}  {met}",
            self.name,
            self.what,
            number(self.floor),
            figure(median(&self.rounds)),
            figure(self.best()),
            self.unit,
            self.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2} x")),
            target,
        )
    }

    fn json(&self) -> Value {
        let (target, of) = match self.target {
            None => (Value::Null, Value::Null),
            Some(Target::Value(most)) => (json!(most), json!("value")),
            Some(Target::Ratio(most)) => (json!(most), json!("ratio")),
            Some(Target::AtLeast(least)) => (json!(least), json!("least ratio")),
        };
        json!({ "name": self.name, "what": self.what, "unit": self.unit, "floor": self.floor,
            "median": median(&self.rounds), "min": self.best(), "rounds": self.rounds,
            "ratio": self.ratio(), "target": target, "targetOf": of, "met": self.met(), "more": self.more })
    }
}

impl Report {
    /// Adds a figure and shows it at once: a run takes minutes.
    pub(crate) fn add(&mut self, row: Row) {
        if self.rows.is_empty() {
            println!(
                "{:<5} {:<46} {:>9} {:>9} {:>9} {:<4} {:>7} {:>9}",
                "", "", "floor", "median", "best", "", "ratio", "target"
            );
        }
        println!("{}", row.line());
        self.rows.push(row);
    }

    /// The last word: does the run count, what was missed, and where the JSON is.
    pub(crate) fn finish(&self, before: &Floors, after: &Floors) {
        println!("\nfloors at the end\n{after}");
        let drift = before.drift(after);
        let foreign = before.foreign.max(after.foreign);
        let counts = drift < STEADY && foreign < FOREIGN;
        let missed: Vec<_> = self.rows.iter().filter(|r| r.met() == Some(false)).map(|r| r.name).collect();
        if !counts {
            println!(
                "THIS RUN DOES NOT COUNT: floors moved by {:.0} % (allowed {:.0} %), other work took {:.0} % of the \
                 machine (allowed {:.0} %)",
                drift * 100.0,
                STEADY * 100.0,
                foreign * 100.0,
                FOREIGN * 100.0
            );
        }
        match missed.as_slice() {
            [] => println!("every target was met"),
            missed => println!("targets not met: {}", missed.join(", ")),
        }
        let commit = commit();
        let all = json!({ "commit": commit, "counts": counts, "drift": drift, "foreignCpu": foreign,
            "machine": machine(), "floorsBefore": before.json(), "floorsAfter": after.json(),
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>() });
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join(format!("{commit}.json"));
        std::fs::write(&file, serde_json::to_string_pretty(&all).unwrap() + "\n").unwrap();
        println!("written: target/bench/{commit}.json");
    }
}

/// The commit that was measured; work that is not committed is called so.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    let clean = git(&["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
    if clean { head } else { format!("{head}-dirty") }
}

fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cpu, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    json!({ "cpu": field(&cpu, "model name"), "cores": std::thread::available_parallelism().map_or(0, Into::into),
        "memory": field(&memory, "MemTotal"), "kernel": read("/proc/sys/kernel/osrelease").trim() })
}

fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The middle one, or of an even number the mean of the two middle ones.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[half],
        _ => f64::midpoint(sorted[half - 1], sorted[half]),
    }
}

/// The smallest.
pub(crate) fn best(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::min)
}

/// Milliseconds.
pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
