//! Tables: the server's `Table` objects, and small ones of our own, as aligned text.
//!
//! Columns and cells are the server's; this file only chooses, pads and cleans them. A printer that is fed several
//! times, as a watch does, keeps its columns where they are as long as the cells fit.
use std::io::{self, Write};

use serde_json::{Value, json};

/// What to show around the server's columns.
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::struct_excessive_bools)] // each is a flag of the command
pub struct Layout<'a> {
    /// The columns of priority 1 too.
    pub wide: bool,
    /// A first column with the namespace.
    pub with_namespace: bool,
    /// A last column with the labels.
    pub with_labels: bool,
    /// No headings.
    pub no_headers: bool,
    /// The kind before each name, where several kinds are shown.
    pub prefix: Option<&'a str>,
    /// A first column that says what happened, in a watch.
    pub event: Option<&'a str>,
}

/// Prints rows under headings, growing columns as needed.
#[derive(Debug, Default)]
pub struct Printer {
    widths: Vec<usize>,
    headed: bool,
}

/// The space between two columns.
const GAP: usize = 3;

impl Printer {
    /// Prints one `Table` of the server; headings only the first time.
    pub fn table(&mut self, out: &mut dyn Write, table: &Value, layout: Layout<'_>) -> io::Result<()> {
        let (headings, rows) = lay_out(table, layout);
        self.rows(out, &headings, &rows, layout.no_headers)
    }

    /// Prints rows of text.
    pub fn rows(
        &mut self,
        out: &mut dyn Write,
        headings: &[String],
        rows: &[Vec<String>],
        no_headers: bool,
    ) -> io::Result<()> {
        let head = (!self.headed && !no_headers).then_some(headings);
        self.headed = true;
        for row in head.into_iter().chain(rows.iter().map(Vec::as_slice)) {
            self.widths.resize(self.widths.len().max(row.len()), 0);
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in head.into_iter().chain(rows.iter().map(Vec::as_slice)) {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&self.widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width + GAP - cell.chars().count()));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A table of our own in one go.
pub(crate) fn print(out: &mut dyn Write, headings: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let headings: Vec<String> = headings.iter().map(|h| (*h).to_owned()).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| clean(cell)).collect()).collect();
    Printer::default().rows(out, &headings, &rows, false)
}

/// The server's answer as a table; a server that knows no tables gets NAME and AGE.
pub(crate) fn from_answer(answer: Value, now: jiff::Timestamp) -> Value {
    if answer["kind"] == "Table" {
        return answer;
    }
    let items = match answer["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![answer.clone()],
    };
    let row = |object: Value| {
        let created = super::age::time_of(&object["metadata"]["creationTimestamp"]);
        json!({ "cells": [object["metadata"]["name"], super::age::since(created, now)], "object": object })
    };
    json!({
        "kind": "Table",
        "metadata": answer["metadata"],
        "columnDefinitions": [{ "name": "Name", "type": "string" }, { "name": "Age", "type": "string" }],
        "rows": items.into_iter().map(row).collect::<Vec<_>>(),
    })
}

/// The rows of a table.
pub(crate) fn rows_of(table: &Value) -> &[Value] {
    table["rows"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn lay_out(table: &Value, layout: Layout<'_>) -> (Vec<String>, Vec<Vec<String>>) {
    let columns = table["columnDefinitions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let shown = |column: &Value| layout.wide || column["priority"].as_i64().unwrap_or(0) == 0;
    let mut headings: Vec<String> = Vec::new();
    headings.extend(layout.event.map(|_| "EVENT".to_owned()));
    headings.extend(layout.with_namespace.then(|| "NAMESPACE".to_owned()));
    headings.extend(columns.iter().filter(|c| shown(c)).map(|c| text(&c["name"]).to_uppercase()));
    headings.extend(layout.with_labels.then(|| "LABELS".to_owned()));
    let rows = rows_of(table).iter().map(|row| {
        let meta = &row["object"]["metadata"];
        let mut cells: Vec<String> = Vec::new();
        cells.extend(layout.event.map(str::to_owned));
        cells.extend(layout.with_namespace.then(|| text(&meta["namespace"])));
        for (index, column) in columns.iter().enumerate().filter(|(_, c)| shown(c)) {
            let cell = text(&row["cells"][index]);
            let is_name = index == 0 || column["format"] == "name";
            match layout.prefix {
                Some(prefix) if is_name => cells.push(format!("{prefix}/{cell}")),
                _ => cells.push(cell),
            }
        }
        cells.extend(layout.with_labels.then(|| labels(&meta["labels"])));
        cells
    });
    (headings, rows.collect())
}

pub(crate) fn labels(map: &Value) -> String {
    let pairs: Vec<String> =
        map.as_object().into_iter().flatten().map(|(key, value)| format!("{key}={}", text(value))).collect();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

/// A value as a cell: the first line of a text, nothing that could steer a terminal.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => clean(text),
        other => clean(&other.to_string()),
    }
}

pub(crate) fn clean(text: &str) -> String {
    let (line, more) = match text.split_once(['\n', '\r']) {
        Some((line, _)) => (line, "..."),
        None => (text, ""),
    };
    let mut cell: String = line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    cell.push_str(more);
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Value {
        json!({
            "kind": "Table",
            "columnDefinitions": [
                { "name": "Name", "format": "name", "priority": 0 }, { "name": "STATUS", "priority": 0 },
                { "name": "MESSAGE", "priority": 1 }, { "name": "Age", "priority": 0 },
            ],
            "rows": [
                { "cells": ["data", "Bound", null, "3d"], "object": { "metadata": { "namespace": "shop", "labels": { "a": "b" } } } },
                { "cells": ["cache-long", 7, "one\ntwo\u{1b}[31m", "42s"], "object": { "metadata": { "namespace": "ci" } } },
            ],
        })
    }

    fn printed(layout: Layout<'_>) -> String {
        let mut out = Vec::new();
        Printer::default().table(&mut out, &sample(), layout).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_are_chosen_and_aligned() {
        assert_eq!(
            printed(Layout::default()),
            "NAME         STATUS   AGE\ndata         Bound    3d\ncache-long   7        42s\n"
        );
        let all = Layout {
            wide: true,
            with_namespace: true,
            with_labels: true,
            prefix: Some("vc"),
            no_headers: true,
            event: Some("ADDED"),
        };
        assert_eq!(
            printed(all),
            "ADDED   shop   vc/data         Bound            3d    a=b\nADDED   ci     vc/cache-long   7       one...   42s   <none>\n"
        );
    }

    #[test]
    fn a_watch_keeps_its_columns_and_heads_them_once() {
        let mut printer = Printer::default();
        let mut out = Vec::new();
        let heads = ["NAME".to_owned(), "AGE".to_owned()];
        let row = |name: &str| vec![vec![name.to_owned(), "1s".to_owned()]];
        for name in ["a-long-name", "b", "a-longer-name"] {
            printer.rows(&mut out, &heads, &row(name), false).unwrap();
        }
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "NAME          AGE\na-long-name   1s\nb             1s\na-longer-name   1s\n"
        );
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\tc"), "a\u{fffd}[2Jb\u{fffd}c");
    }

    #[test]
    fn a_server_without_tables_gets_names_and_ages() {
        let now = "2026-01-01T00:00:10Z".parse().unwrap();
        let list = json!({ "items": [{ "metadata": { "name": "a", "creationTimestamp": "2026-01-01T00:00:00Z" } }] });
        assert_eq!(from_answer(list, now)["rows"][0]["cells"], json!(["a", "10s"]));
    }
}
