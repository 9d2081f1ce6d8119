//! B20: how large the binary is, and how many crates are in it.
use std::collections::BTreeSet;
use std::process::Command;

use serde_json::json;

use super::report::{Report, Row, Target};
use super::stack::wharfline;

pub(crate) fn measure(report: &mut Report) {
    let bytes = std::fs::metadata(wharfline()).unwrap().len();
    report.add(Row {
        target: Some(Target::Value(15.0)),
        more: json!({ "bytes": bytes }),
        ..Row::new("B20", "binary, release, stripped", "MB", vec![bytes as f64 / 1e6])
    });
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let tree = Command::new(cargo)
        .args(["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none", "--no-dedupe"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&tree.stdout);
    // A line is `name version` and what may follow.
    let crates: BTreeSet<_> = text
        .lines()
        .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty())
        .collect();
    report.add(Row::new("B20", "crates in it", "", vec![crates.len() as f64]));
}
