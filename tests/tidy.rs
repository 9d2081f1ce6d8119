//! The tree keeps its own rules: the arrows between modules, where crates may be named, sizes, tests that run.
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[path = "tidy/obligations.rs"]
mod obligations;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/source.rs"]
mod source;

use rules::{ARROWS, Fault, LINES, README_SECTIONS, faults};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every text file of the tree, by its path from the root. What is built or kept by git is not the tree.
fn tree(folder: &Path, out: &mut Vec<(String, String)>) {
    let entries = fs::read_dir(folder).expect("the tree can be read");
    for entry in entries.map(|e| e.expect("the tree can be read")) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().expect("a file has a type").is_dir() {
            let built = path.join("CACHEDIR.TAG").exists();
            if !built && !matches!(name.to_str(), Some(".git" | "target")) {
                tree(&path, out);
            }
        } else if name != ".git"
            && let Ok(text) = fs::read_to_string(&path)
        {
            let file = path.strip_prefix(root()).expect("it lies beneath the root");
            out.push((file.to_str().expect("names are UTF-8").to_owned(), text));
        }
    }
}

#[test]
fn the_tree_is_tidy() {
    let mut files = Vec::new();
    tree(root(), &mut files);
    assert!(files.len() > 30, "only {} files were found", files.len());
    let mut found: Vec<Fault> = files.iter().flat_map(|(file, text)| faults(file, text)).collect();
    found.sort();
    let lines: Vec<_> = found.iter().map(|f| format!("  {}:{}: {}", f.file, f.line, f.what)).collect();
    assert!(found.is_empty(), "{} faults:\n{}", found.len(), lines.join("\n"));
}

#[test]
fn the_table_and_the_map_name_the_same_folders() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("there is a map");
    for entry in fs::read_dir(root().join("src")).expect("there is src") {
        let entry = entry.expect("src can be read");
        let name = entry.file_name().into_string().expect("names are UTF-8");
        if entry.path().is_dir() && name != "bin" {
            assert!(ARROWS.iter().any(|(module, _)| *module == name), "src/{name} has no row in the table");
            assert!(map.contains(&format!("| `src/{name}` |")), "src/{name} is not on the map");
        }
    }
}

/// Text that breaks a rule, in a file where it is forbidden, and what is said of it.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("src/api/x.rs", "use crate::plan::attach;", "api may not use crate::plan::attach"),
    ("src/api/x.rs", "fn f() { crate::server::f() }", "api may not use crate::server::f"),
    ("src/plan/x.rs", "use super::super::node::x;", "plan may not use crate::node::x"),
    ("src/plan/mod.rs", "use super::csi;", "plan may not use crate::csi"),
    (
        "src/plan/x.rs",
        "mod tests { use super::super::super::{csi::a, api::b}; }",
        "plan may not use crate::csi::a",
    ),
    ("src/store/x.rs", "use crate::{api, store};", "store may not use crate::api"),
    ("src/csi/x.rs", "use crate::*;", "csi may not use crate::*"),
    ("src/sys/x.rs", "use crate as c;", "sys may not use crate"),
    ("src/server/x.rs", "use crate::controllers::c;", "server may not use crate::controllers::c"),
    ("src/controllers/x.rs", "#[cfg(test)] mod tests { use crate::store::mem; }", "controllers may not use"),
    ("src/controllers/x.rs", "let a = <crate::csi::A as B>::c;", "controllers may not use crate::csi::A"),
    ("src/node/x.rs", "use crate::store::Store;", "node may not use crate::store::Store"),
    ("src/drivers/x.rs", "use crate::csi::client::Client;", "drivers may not use crate::csi::client::Client"),
    ("src/cli/x.rs", "use crate::plan::Next;", "cli may not use crate::plan::Next"),
    ("src/main.rs", "use wharfline::node::daemon;", "main may not use crate::node::daemon"),
    ("src/extra/x.rs", "", "not in the table"),
    ("src/plan/x.rs", "use tokio::sync::Mutex;", "plan is pure and may not use tokio::sync::Mutex"),
    ("src/plan/x.rs", "#[tokio::test] async fn f() {}", "plan is pure and may not use tokio::test"),
    ("src/plan/x.rs", "fn f() -> ::tonic::Code { todo() }", "plan is pure and may not use tonic::Code"),
    ("src/plan/x.rs", "use std::time::{Duration, Instant};", "may not use std::time::Instant"),
    ("src/plan/x.rs", "use std::time;", "plan is pure and may not use std::time"),
    ("src/plan/x.rs", "use std::time::*;", "plan is pure and may not use std::time::*"),
    ("src/plan/x.rs", "let t = std::time::SystemTime::now();", "may not use std::time::SystemTime::now"),
    ("src/plan/x.rs", "use std::sync::RwLock;", "may not use std::sync::RwLock"),
    ("src/plan/x.rs", "use kube::Client;", "plan is pure and may not use kube::Client"),
    ("src/plan/x.rs", "use jiff::Timestamp;\nfn f() { Timestamp::now(); }", "reads the clock"),
    ("src/api/x.rs", "use kube::{Api, CustomResource};", "api is pure and may not use kube::Api"),
    ("src/api/x.rs", "use std::fs;", "api is pure and may not use std::fs"),
    ("src/api/x.rs", "use reqwest::x; use hyper::y;", "api is pure and may not use hyper::y"),
    ("src/cli/get.rs", "fn f() { serde_saphyr::from_str(x) }", "serde_saphyr belongs to src/cli/manifest.rs"),
    ("src/server/x.rs", "use redb::Database;", "redb belongs to src/store/"),
    ("src/node/x.rs", "extern crate libc;", "libc belongs to src/sys/"),
    ("src/store/x.rs", "use kube::Client;", "kube belongs to src/api/"),
    ("src/node/x.rs", "unsafe { f() }", "unsafe code outside src/sys"),
    ("tests/x.rs", "#![allow(unsafe_code)]", "unsafe code outside src/sys"),
    ("tests/x.rs", "#[test]\n#[ignore]\nfn f() {}", "an ignored test"),
    ("src/api/x.rs", "#[ignore = \"slow\"]", "an ignored test"),
    ("tests/x.rs", "#[cfg_attr(not(root), ignore)]", "an ignored test"),
    ("src/api/x.rs", "fn f() { todo!() }", "unfinished code"),
    ("tests/x.rs", "std::thread::sleep(d);", "sleeps in a test"),
    ("tests/support/x.rs", "use tokio::{task, time::sleep};", "sleeps in a test"),
    ("tests/x.rs", "use tokio::time; time::sleep(d).await;", "sleeps in a test"),
    ("docs/x.md", concat!("see /wo", "rk/notes"), "a path of one machine"),
    ("README.md", "# Wharfline\n## Quickstart\n", "has no section Test"),
    ("crds/x.yaml", "enum:\n- \"Yes\"\n- Never\n", "a boolean in YAML 1.1"),
    ("crds/x.yaml", "enum:\n- off\n", "a boolean in YAML 1.1"),
    ("crds/x.yaml", "properties:\n  \"on\":\n    type: string\n", "a boolean in YAML 1.1"),
    ("crds/x.yaml", "properties:\n  y:\n    type: string\n", "a boolean in YAML 1.1"),
    ("crds/x.yaml", "enum:\n- \"True\"\n- \"False\"\n", "a boolean in YAML 1.1"),
];

#[test]
fn each_forbidden_thing_is_found() {
    for (file, text, wanted) in FORBIDDEN {
        let found = faults(file, text);
        assert!(
            found.iter().any(|f| f.what.contains(wanted)),
            "{file}: {text}\n  wanted: {wanted}\n  {found:?}"
        );
    }
    let long = "// one line\n".repeat(LINES + 1);
    assert!(faults("src/api/x.rs", &long).iter().any(|f| f.what.contains("split it")));
}

/// Text that looks like a fault and is none.
const ALLOWED: &[(&str, &str)] = &[
    ("src/plan/x.rs", "use super::{Next, Reason};\nuse crate::api::meta::Rung;\nuse std::time::Duration;"),
    ("src/plan/x.rs", "mod tests { use super::super::mount; use super::*; } use super::attach;"),
    (
        "src/plan/x.rs",
        "// use tokio::sync;\n/* use /* nested */ kube::Client; */ let s = \"use crate::node;\";",
    ),
    (
        "src/plan/x.rs",
        "let s = r#\"crate::node \"quoted\" unsafe todo!()\"#; let c = '\"'; let l: &'a str = b\"x\\\"\";",
    ),
    ("src/api/x.rs", "pub(crate) fn f() {} pub(in crate::api) fn g() {} use crate::api::meta;"),
    ("src/api/x.rs", "use kube::{CustomResource, CustomResourceExt};\nuse std::sync::OnceLock;"),
    ("src/drivers/x.rs", "use crate::csi::proto::{self, csi::Thing}; use crate::sys::Clock;"),
    ("src/cli/manifest.rs", "use serde_saphyr as yaml;"),
    ("src/store/redb.rs", "use redb::{Database, ReadableTable};"),
    ("src/sys/x.rs", "unsafe { f() }"),
    ("src/run/x.rs", "use crate::{api, plan, node, server::Server, sys};"),
    ("src/main.rs", "fn main() { wharfline::run::main() }"),
    ("src/server/x.rs", "fn f(ignore: bool) { x.time::<u8>(); todo(); }"),
    ("tests/x.rs", "use std::time::Duration; // no thread::sleep here\nlet x = time::timeout(d, f);"),
    ("crds/x.yaml", "enum:\n- \"True\"\n- \"False\"\n- Unknown\ndefault: false\nserved: true\n"),
];

#[test]
fn what_is_allowed_is_not_reported() {
    for (file, text) in ALLOWED {
        assert_eq!(faults(file, text), [], "{file}: {text}");
    }
    assert_eq!(faults("README.md", &format!("## {}\n", README_SECTIONS.join("\n## "))), []);
    assert_eq!(faults("src/api/x.rs", &"// one line\n".repeat(LINES)), []);
}

/// The binaries of tests in which the program and what it runs are processes of their own.
const PROCESSES: [&str; 3] = ["whole", "cluster", "runtime"];

/// What one test says it shows.
struct Shown {
    file: String,
    test: String,
    rows: Vec<String>,
}

/// A table of what tests show.
struct Table {
    /// Where it stands.
    file: &'static str,
    /// The word with which a test says in its comment which of its rows it shows.
    word: &'static str,
    /// The names of the rows that it must have.
    names: Vec<String>,
}

fn scenarios() -> Table {
    let wanted = [('A', 1..=75), ('B', 1..=132), ('Q', 1..=18)];
    let mut names: Vec<_> =
        wanted.into_iter().flat_map(|(letter, all)| all.map(move |n| format!("{letter}{n}"))).collect();
    names.extend(["R1", "R2", "R3", "R4"].map(str::to_owned));
    Table { file: "docs/scenarios.md", word: "Scenario", names }
}

/// Those that tests have to show in which all are processes of their own.
fn of_processes() -> Vec<String> {
    let wanted = [('A', 1..=21), ('A', 49..=55), ('B', 111..=120), ('R', 1..=4)];
    let numbered = wanted.into_iter().flat_map(|(letter, all)| all.map(move |n| format!("{letter}{n}")));
    let named = ["A66", "A75", "B123", "B129", "Q3", "Q4", "Q5", "Q6", "Q9", "Q12", "Q17", "Q18"];
    numbered.chain(named.map(str::to_owned)).collect()
}

/// Of them, those that none of the tests with processes shows and that the text does not except; and what it excepts for
/// nothing.
fn without_processes(text: &str) -> Vec<String> {
    let excepted: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("- ")?.split_once(": "))
        .map(|(name, _)| name)
        .collect();
    let by_processes = |name: &String| {
        let row = text.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap_or_default();
        PROCESSES.iter().any(|binary| row.contains(&format!("`{binary}: ")))
    };
    let wanted = of_processes();
    let (shown, missing): (Vec<_>, Vec<_>) = wanted.into_iter().partition(by_processes);
    let unexplained = missing.into_iter().filter(|name| !excepted.contains(&name.as_str()));
    let needless = shown.into_iter().filter(|name| excepted.contains(&name.as_str()));
    unexplained
        .map(|name| format!("{name}: no test with real processes"))
        .chain(needless.map(|name| format!("{name}: excepted, and shown")))
        .collect()
}

/// Each obligation that a test shows as a whole has to be in the table.
fn obligations() -> Table {
    let table = |names| Table { file: "docs/obligations.md", word: "Obligation", names };
    let named: BTreeSet<String> = table(Vec::new()).shown().into_iter().flat_map(|one| one.rows).collect();
    table(named.into_iter().collect())
}

impl Table {
    fn text(&self) -> String {
        fs::read_to_string(root().join(self.file)).expect("there is the table")
    }

    /// The rows that a line of a comment names, if it is one of those that do.
    fn named<'a>(&self, comment: &'a str) -> impl Iterator<Item = &'a str> {
        let list = comment.strip_prefix(self.word);
        let list = list.and_then(|rest| rest.strip_prefix('s').unwrap_or(rest).strip_prefix(' '));
        let list = list.and_then(|list| list.split(['.', ':']).next()).unwrap_or_default();
        list.split(", ").filter(|name| !name.is_empty())
    }

    /// The names of the rows that each test says it shows.
    fn shown(&self) -> Vec<Shown> {
        let mut files = Vec::new();
        tree(root(), &mut files);
        let mut shown = Vec::new();
        for (file, text) in
            files.iter().filter(|(file, _)| Path::new(file).extension().is_some_and(|e| e == "rs"))
        {
            let (mut said, mut is_test) = (Vec::new(), false);
            for line in text.lines().map(str::trim) {
                if let Some(comment) = line.strip_prefix("/// ") {
                    said.extend(self.named(comment).map(str::to_owned));
                } else if line.starts_with("#[") {
                    is_test |= line.starts_with("#[test") || line.starts_with("#[tokio::test");
                } else {
                    let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
                    let name = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
                    if let Some((name, rest)) = name.and_then(|name| name.split_once('('))
                        && (is_test || rest == FOR_EACH_RUNTIME)
                    {
                        let (file, test) = (file.clone(), name.to_owned());
                        shown.push(Shown { file, test, rows: said.clone() });
                    }
                    said.clear();
                    is_test = false;
                }
            }
        }
        shown
    }

    /// What is wrong with its text: a row that it misses, a test that is not there or does not say that it shows it.
    fn faults(&self, text: &str, shown: &[Shown]) -> Vec<String> {
        let mut missed = self.names.clone();
        let mut faults = Vec::new();
        // The heads of tables have nothing in their first cell.
        for row in text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| |")) {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let (of, says) = (cells[1], cells[3]);
            missed.retain(|name| name != of);
            let tests: Vec<_> = says.split('`').skip(1).step_by(2).collect();
            if tests.is_empty() && !says.starts_with("missing: ") {
                faults.push(format!("{of}: neither a test nor what is missing"));
            }
            if says.starts_with("missing: ") {
                continue;
            }
            for test in tests {
                let (binary, name) = test.split_once(": ").unwrap_or(("", test));
                let there =
                    |file: &str| !PROCESSES.contains(&binary) || file.starts_with(&format!("tests/{binary}"));
                let mut of_it = shown.iter().filter(|one| one.test == name && there(&one.file));
                if !of_it.any(|one| one.rows.iter().any(|row| row == of)) {
                    faults.push(format!("{of}: no test `{test}` says that it shows it"));
                }
            }
        }
        faults.extend(missed.into_iter().map(|name| format!("{name}: not in the table")));
        faults
    }

    /// Compares it with the tests, and sees that each of these changes of its text is found.
    fn compare(&self, changes: &[(&str, &str, &str)]) {
        let (text, shown) = (self.text(), self.shown());
        assert_eq!(self.faults(&text, &shown), Vec::<String>::new());
        for &(from, to, wanted) in changes {
            assert!(text.contains(from), "{from}");
            let found = self.faults(&text.replace(from, to), &shown);
            assert!(found.iter().any(|fault| fault.contains(wanted)), "{wanted}: {found:?}");
        }
    }
}

/// The end of the head of a case that runs under every runtime: a macro makes tests of it.
const FOR_EACH_RUNTIME: &str = "flavour: Flavour) {";

#[test]
fn the_scenarios_of_the_table_are_shown_by_tests() {
    scenarios().compare(&[
        ("| A52 |", "| A53 |", "A52: not in the table"),
        ("two_users_are_still_two_after_a_restart", "two_users", "A52: no test `node: two_users`"),
        ("missing: there is no earlier release", "later", "B131: neither a test"),
        ("| B44 |", "| B45 |", "B44: not in the table"),
        ("`node: two_users_are", "`whole: two_users_are", "A52: no test `whole: two_users_are"),
    ]);
}

#[test]
fn plugins_and_allocations_are_shown_by_real_processes() {
    let text = scenarios().text();
    assert_eq!(without_processes(&text), Vec::<String>::new());
    for (from, to, wanted) in [
        ("`whole: whoever_comes_and_goes", "`node: whoever_comes_and_goes", "A9: no test"),
        ("`whole: a_driver_that_is_slow_to_list", "`node: a_driver_that_is_slow_to_list", "B118: no test"),
        ("| B118 |", "- B119: it is not shown\n| B118 |", "B119: excepted, and shown"),
        ("| R3 |", "| R9 |", "R3: no test"),
    ] {
        let found = without_processes(&text.replace(from, to));
        assert!(found.iter().any(|fault| fault.contains(wanted)), "{wanted}: {found:?}");
    }
}

#[test]
fn the_obligations_of_the_table_are_shown_by_tests() {
    assert_eq!(obligations().names.len(), 222, "whoever shows one more, or no more, says so here");
    obligations().compare(&[
        ("| CO-PLUG-20 |", "| CO-PLUG-19 |", "CO-PLUG-20: not in the table"),
        ("lib: plugin_names", "lib: names", "CO-IDEN-01: no test `lib: names`"),
        ("runtime: output_is_bounded_on_disk", "runtime: output", "CO-PLUG-14: no test `runtime: output`"),
        ("| CO-META-04 |", "| CO-META-05 |", "CO-META-04: not in the table"),
    ]);
}

/// Which test shows which obligation as a whole, and which in part.
fn shown_obligations() -> (obligations::Named, obligations::Named) {
    let in_part = Table { word: "Part of obligation", ..obligations() };
    let by_id = |table: &Table| {
        let shown = table.shown().into_iter().map(|one| (one.test, one.rows));
        obligations::by_id(&shown.collect::<Vec<_>>())
    };
    (by_id(&obligations()), by_id(&in_part))
}

/// With `OBLIGATIONS` set to a file, the report goes there: `make obligations` shows it.
#[test]
fn the_obligations_are_counted() {
    let all = obligations::all();
    assert_eq!(all.len(), 222);
    let count = |level| all.iter().filter(|one| one.level.starts_with(level)).count();
    assert_eq!((count("M"), count("S"), count("Y")), (179, 29, 14), "as the levels of the contract are");
    let (whole, in_part) = shown_obligations();
    for (id, tests) in whole.iter().chain(&in_part) {
        assert!(
            all.iter().any(|one| one.id == id),
            "{id} is no obligation, and {} names it",
            tests.join(", ")
        );
    }
    let report = obligations::report(&whole, &in_part);
    for one in &all {
        assert_eq!(report.matches(&format!("  {} ", one.id)).count(), 1, "{}", one.id);
    }
    assert!(report.contains("CO-PLUG-02"), "what a test names is covered");
    assert_eq!(
        obligations::missing(&whole),
        Vec::<&str>::new(),
        "what must be done needs a test that shows all of it"
    );
    if let Some(file) = std::env::var_os("OBLIGATIONS") {
        fs::write(file, report).expect("the report can be written");
    }
}

#[test]
fn an_obligation_is_covered_only_by_a_test_that_names_it_as_a_whole() {
    let by = |test: &str, id: &str| obligations::by_id(&[(test.to_owned(), vec![id.to_owned()])]);
    let report = obligations::report(&by("one", "CO-GEN-01"), &by("two", "CO-GEN-02"));
    let at = |text: &str| report.find(text).unwrap_or_else(|| panic!("{text} is not in {report}"));
    let order =
        ["COVERED: 1 of 222 (M 1 of", "CO-GEN-01", "IN PART: 1 of 222", "CO-GEN-02", "NOT COVERED: 220"];
    assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{report}");
    assert!(at("NOT COVERED: 220") < at("CO-GEN-03") && at("CO-H13-05") < at("makes CI fail"));
    // What is shown in part, and what may or should be done, makes the difference to all that must be.
    let missing = obligations::missing(&by("one", "CO-GEN-01"));
    assert_eq!(missing.len(), 178);
    assert!(
        missing.contains(&"CO-GEN-02") && !missing.contains(&"CO-GEN-01") && !missing.contains(&"CO-GEN-18")
    );
    assert!(report.contains("one\n") && report.contains("two\n"), "who shows it is told");
}

/// The names in a manifest that look like those of variables with something secret in them.
fn secret_variables(manifest: &str) -> Vec<&str> {
    let keys = manifest.lines().filter_map(|line| line.trim().trim_start_matches("- ").split_once(':'));
    let variable = |name: &&str| {
        let form = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
        let secret = ["PASSWORD", "SECRET", "TOKEN", "CREDENTIAL", "KEY"];
        name.bytes().all(form) && secret.iter().any(|word| name.contains(word))
    };
    keys.map(|(name, _)| name.trim_matches('"')).filter(variable).collect()
}

/// Obligation CO-PLUG-08.
#[test]
fn no_manifest_gives_a_driver_a_secret_in_its_environment() {
    assert_eq!(
        secret_variables("env:\n  API_TOKEN: x\n  \"DB_PASSWORD\": y\n  LEVEL: z"),
        ["API_TOKEN", "DB_PASSWORD"]
    );
    let mut files = Vec::new();
    tree(root(), &mut files);
    let manifests: Vec<_> = files
        .iter()
        .filter(|(file, _)| ["manifests/", "deploy/"].iter().any(|of| file.starts_with(of)))
        .collect();
    assert!(manifests.len() >= 4, "only {} manifests were found", manifests.len());
    for (file, text) in manifests {
        assert_eq!(secret_variables(text), Vec::<&str>::new(), "{file}");
    }
}

/// Obligations CO-PLUG-08, CO-PLUG-10, CO-PLUG-19.
#[test]
fn what_a_driver_and_its_operator_have_to_know_is_written_down() {
    let page = fs::read_to_string(root().join("docs/plugins.md")).expect("there is the page for drivers");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in [
        "with `rshared` propagation",
        "What is secret does not belong in `env`",
        "The way from a driver to what is behind it is the driver's own to secure",
    ] {
        assert!(page.contains(sentence), "{sentence}");
    }
}
