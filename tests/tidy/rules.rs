//! The rules of the tree as data, and what they say about one file.
use std::path::Path;

use crate::source::{Named, Token, paths, tokens};

/// Which modules each module may name, besides itself. ARCHITECTURE.md shows the same table to people.
pub(crate) const ARROWS: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("plan", &["api"]),
    ("csi", &[]),
    ("store", &[]),
    ("server", &["api", "store"]),
    ("controllers", &["api", "plan"]),
    ("node", &["api", "plan", "csi", "sys"]),
    ("drivers", &["csi::proto", "sys"]),
    ("sys", &[]),
    ("cli", &["api"]),
    ("effect", &[]),
    ("planted", &[]),
    ("run", EVERY),
    ("main", &["run", "cli", "sys::shim"]),
];
const EVERY: &[&str] = &[
    "api",
    "plan",
    "csi",
    "store",
    "server",
    "controllers",
    "node",
    "drivers",
    "sys",
    "cli",
    "run",
    "effect",
    "planted",
];

/// The outside crates that the pure modules may name; every other one is forbidden there.
const PURE: &[(&str, &[&str])] = &[
    (
        "api",
        &[
            "std",
            "core",
            "cronexpr",
            "jiff",
            "k8s_openapi",
            "kube",
            "schemars",
            "serde",
            "serde_json",
            "thiserror",
        ],
    ),
    ("plan", &["std", "core", "jiff", "serde", "serde_json", "thiserror"]),
];

/// What the pure modules may not name even where they may name its crate: I/O, clocks, locks, clients.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::sync::atomic",
    "std::sync::mpsc",
    "std::sync::Barrier",
    "std::sync::Condvar",
    "std::sync::Mutex",
    "std::sync::Once",
    "std::sync::RwLock",
    "std::time::Instant",
    "std::time::SystemTime",
    "kube::Api",
    "kube::Client",
    "kube::Config",
    "kube::api",
    "kube::client",
    "kube::config",
    "kube::discovery",
    "kube::runtime",
];

/// Crates that one place alone may name, so that each stays behind one file or folder.
const CONFINED: &[(&str, &[&str])] = &[
    ("serde_saphyr", &["src/cli/manifest.rs", "src/server/yaml.rs", "tests/"]),
    ("redb", &["src/store/", "tests/"]),
    ("zbus", &["src/sys/real/"]),
    ("libc", &["src/sys/", "tests/"]),
    ("axum", &["src/server/", "src/run/", "tests/"]),
    (
        "kube",
        &[
            "src/api/",
            "src/cli/",
            "src/controllers/",
            "src/node/",
            "src/run/",
            "src/server/",
            "tests/",
            "benches/",
        ],
    ),
    ("etcd_client", &["src/store/", "tests/", "benches/"]),
];

/// Test support that may sleep: a delay that a test told the scripted plugin to make is the plugin's, not the test's, and
/// the time of the simulation is simulated.
const SLEEPERS: &[&str] = &["tests/support/scripted/", "tests/sim/"];

/// Machine paths, put together here so that this file does not contain them.
const MACHINE: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// The longest a Rust file may be.
pub(crate) const LINES: usize = 800;

/// Words that YAML 1.1 reads as booleans, whatever their case.
const YAML_BOOLEANS: &[&str] = &["y", "n", "yes", "no", "on", "off", "true", "false"];

/// Headings that the README must have.
pub(crate) const README_SECTIONS: &[&str] = &["Quickstart", "Test", "License"];

/// One fault: where, and what the rule says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fault {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) what: String,
}

/// Every fault of one file; `file` is its path from the root of the tree.
pub(crate) fn faults(file: &str, text: &str) -> Vec<Fault> {
    let mut found = machine_paths(text);
    if is_rust(file) {
        found.extend(rust(file, text));
    }
    if file.starts_with("crds/") {
        found.extend(yaml_booleans(text));
    }
    if file == "README.md" {
        found.extend(missing_sections(text));
    }
    found.into_iter().map(|(line, what)| Fault { file: file.to_owned(), line, what }).collect()
}

fn is_rust(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|extension| extension == "rs")
}

type Found = Vec<(usize, String)>;

fn machine_paths(text: &str) -> Found {
    let named = |line: &str| MACHINE.iter().find(|path| line.contains(*path)).copied();
    numbered(text)
        .filter_map(|(n, line)| named(line).map(|p| (n, format!("names {p}, a path of one machine"))))
        .collect()
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines())
}

fn rust(file: &str, text: &str) -> Found {
    let tokens = tokens(text);
    let named = paths(&tokens, &module_of(file));
    let mut found = words(file, &tokens);
    found.extend(arrows(file, &named));
    found.extend(outside(file, &named));
    if file.starts_with("tests/") && !SLEEPERS.iter().any(|place| file.starts_with(place)) {
        found.extend(named.iter().filter(|n| sleeps(n)).map(|n| (n.line, "sleeps in a test".to_owned())));
    }
    let lines = text.lines().count();
    if lines > LINES {
        found.push((lines, format!("has {lines} lines, more than {LINES}: split it")));
    }
    found
}

/// The module that a file is, such as `["plan", "mount"]`.
fn module_of(file: &str) -> Vec<String> {
    let Some(inner) = file.strip_prefix("src/").and_then(|f| f.strip_suffix(".rs")) else {
        return Vec::new();
    };
    let mut module: Vec<String> = inner.split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

/// The row of [`ARROWS`] that a file of `src` belongs to.
fn row_of(file: &str) -> Option<String> {
    let inner = file.strip_prefix("src/")?;
    match inner {
        "lib.rs" => None,
        _ if inner == "main.rs" || inner.starts_with("bin/") => Some("main".to_owned()),
        _ => Some(inner.split(['/', '.']).next().unwrap_or(inner).to_owned()),
    }
}

fn words(file: &str, tokens: &[Token]) -> Found {
    let at = |i: usize| tokens.get(i).map_or("", |t| t.text.as_str());
    let pure = PURE.iter().any(|(module, _)| Some(*module) == row_of(file).as_deref());
    let mut found = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let what = match token.text.as_str() {
            "unsafe" | "unsafe_code" if !file.starts_with("src/sys/") => "unsafe code outside src/sys",
            "todo" | "unimplemented" if at(i + 1) == "!" => "unfinished code",
            "#" if ignores(tokens, i) => "an ignored test",
            "now" if pure && at(i + 1) == "(" && i > 0 && at(i - 1) == "::" => {
                "a pure module reads the clock"
            }
            _ => continue,
        };
        found.push((token.line, what.to_owned()));
    }
    found
}

/// Whether the attribute that starts here says `ignore`.
fn ignores(tokens: &[Token], hash: usize) -> bool {
    let open = if tokens.get(hash + 1).is_some_and(|t| t.text == "!") { hash + 2 } else { hash + 1 };
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "[" => depth += 1,
            "]" => depth -= 1,
            "ignore"
                if tokens.get(i + 1).is_some_and(|t| matches!(t.text.as_str(), "]" | ")" | "=" | ",")) =>
            {
                return true;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    false
}

fn sleeps(named: &Named) -> bool {
    named.segments.windows(2).any(|pair| matches!(pair[0].as_str(), "thread" | "time") && pair[1] == "sleep")
}

fn arrows(file: &str, named: &[Named]) -> Found {
    let Some(row) = row_of(file) else { return Vec::new() };
    let Some((_, allowed)) = ARROWS.iter().find(|(module, _)| *module == row) else {
        return vec![(1, format!("src/{row} is not in the table of arrows"))];
    };
    let wrong = |n: &&Named| {
        n.segments[0] == "crate"
            && match n.segments.get(1) {
                None => true,
                Some(module) if *module == row => false,
                Some(_) => !allowed.iter().any(|a| starts_with(&n.segments[1..], a)),
            }
    };
    named
        .iter()
        .filter(wrong)
        .map(|n| (n.line, format!("{row} may not use {}", n.segments.join("::"))))
        .collect()
}

fn starts_with(segments: &[String], prefix: &str) -> bool {
    let prefix: Vec<&str> = prefix.split("::").collect();
    segments.len() >= prefix.len() && segments.iter().zip(&prefix).all(|(a, b)| a == b)
}

fn outside(file: &str, named: &[Named]) -> Found {
    let row = row_of(file);
    let pure = PURE.iter().find(|(module, _)| Some(*module) == row.as_deref());
    let mut found = Vec::new();
    for n in named.iter().filter(|n| n.segments[0] != "crate") {
        let name = n.segments[0].as_str();
        if let Some((module, allowed)) = pure
            && is_crate(name)
            && (!allowed.contains(&name) || IMPURE.iter().any(|path| reaches(&n.segments, path)))
        {
            found.push((n.line, format!("{module} is pure and may not use {}", n.segments.join("::"))));
        }
        if let Some((_, places)) = CONFINED.iter().find(|(confined, _)| *confined == name)
            && !places.iter().any(|place| file.starts_with(place))
        {
            found.push((n.line, format!("{name} belongs to {}", places[0])));
        }
    }
    found
}

/// Whether naming `segments` names the forbidden path, something in it, or a module that holds it as a whole.
fn reaches(segments: &[String], forbidden: &str) -> bool {
    let forbidden: Vec<&str> = forbidden.split("::").collect();
    segments.iter().take_while(|s| *s != "*").zip(&forbidden).all(|(a, b)| a == b)
}

/// Whether a first segment is a crate of `Cargo.toml` or of the toolchain, not a module or a type nearby.
fn is_crate(name: &str) -> bool {
    const MANIFEST: &str = include_str!("../../Cargo.toml");
    matches!(name, "std" | "core" | "alloc")
        || MANIFEST.lines().any(|l| l.split_once(" = ").is_some_and(|(key, _)| key.replace('-', "_") == name))
}

/// Field names and enum values that YAML 1.1 would read as booleans. The truth of a condition is Kubernetes' own set
/// of values and nobody writes it by hand: it is the one exception, and only in its own order.
fn yaml_booleans(text: &str) -> Found {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let bare = |line: &str| line.trim_start_matches("- ").trim_matches(['"', '\'']).to_lowercase();
    let truth = |i: usize| {
        (i.saturating_sub(1)..=i).any(|n| {
            lines.get(n..n + 3).is_some_and(|three| {
                three.iter().map(|l| l.trim_matches(['"', '\'', '-', ' '])).eq(["True", "False", "Unknown"])
            })
        })
    };
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let value = line.starts_with("- ") && YAML_BOOLEANS.contains(&bare(line).as_str()) && !truth(i);
        let field = line.split_once(':').is_some_and(|(key, _)| {
            YAML_BOOLEANS.contains(&bare(key.trim_end_matches(['"', '\''])).as_str())
        });
        if value || field {
            found.push((i + 1, format!("{line} is a boolean in YAML 1.1")));
        }
    }
    found
}

fn missing_sections(text: &str) -> Found {
    let has = |section: &str| {
        text.lines().any(|l| l.starts_with('#') && l.to_lowercase().contains(&section.to_lowercase()))
    };
    README_SECTIONS.iter().filter(|s| !has(s)).map(|s| (1, format!("has no section {s}"))).collect()
}
