//! S13: what a watch tells, held against what was committed: each change once, in order, and none left out.
use serde::Deserialize;

use crate::universe::Universe;

/// One watch of one host.
pub struct Sight {
    host: String,
    plural: String,
    /// It asks for all objects of its kind: then it must be told of each change.
    whole: bool,
    /// It has been told of everything up to this revision.
    last: u64,
    /// The beginning of a line whose end has not come yet.
    rest: Vec<u8>,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    resource_version: String,
}

impl Sight {
    /// What is asked for by this path and query; absent when it names no revision to begin after.
    pub fn of(host: &str, request: &str) -> Option<Self> {
        let (path, query) = request.split_once('?')?;
        let value = |name| query.split('&').find_map(|pair| pair.strip_prefix(name));
        let plural = path.rsplit('/').next()?.to_owned();
        // Leases change all the time and their commits are not noted; events lie under two names.
        if plural == "leases" || plural == "events" {
            return None;
        }
        let whole = !query.contains("Selector=") && !path.contains("/namespaces/");
        let last = value("resourceVersion=")?.parse().ok().filter(|rev| *rev > 0)?;
        Some(Self { host: host.to_owned(), plural, whole, last, rest: Vec::new() })
    }

    /// Takes in what has come.
    pub fn read(&mut self, universe: &Universe, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            if let Ok(line) = serde_json::from_slice::<Line>(&line) {
                self.told(universe, &line);
            }
        }
    }

    fn told(&mut self, universe: &Universe, line: &Line) {
        let Ok(rev) = line.object.metadata.resource_version.parse::<u64>() else { return };
        let bookmark = line.kind == "BOOKMARK";
        let mut inner = universe.look();
        if rev < self.last || rev == self.last && !bookmark {
            let Self { host, plural, last, .. } = self;
            inner.violated(format!("S13: {host} is told of {plural} at {rev} after {last}"));
        }
        // Of a change the one at its own revision is this one; a bookmark has none.
        let upto = if bookmark { rev } else { rev.saturating_sub(1) };
        let missed = inner.commits.get(&self.plural).and_then(|all| {
            if self.whole && upto > self.last {
                all.range(self.last + 1..=upto).next().copied()
            } else {
                None
            }
        });
        if let Some(missed) = missed {
            let Self { host, plural, .. } = self;
            inner.violated(format!("S13: {host} is told of {plural} at {rev} and never of {missed}"));
        }
        self.last = self.last.max(rev);
    }
}
