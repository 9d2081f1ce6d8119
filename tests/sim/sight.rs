//! S13: what a watch tells, held against what was committed: each change once, in order, and none left out.
use std::io::BufRead as _;

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
    pub fn read(&mut self, universe: &Universe, mut bytes: &[u8]) {
        while bytes.read_until(b'\n', &mut self.rest).is_ok_and(|read| read > 0) {
            if self.rest.last() == Some(&b'\n') {
                if let Some((kind, rev)) = beginning(&self.rest).or_else(|| whole(&self.rest)) {
                    self.told(universe, &kind, rev);
                }
                self.rest.clear();
            }
        }
    }

    fn told(&mut self, universe: &Universe, kind: &str, rev: u64) {
        let bookmark = kind == "BOOKMARK";
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

/// The kind of a line and its revision, if its first bytes tell them: the server writes the revision first of all metadata,
/// and before that nothing but words.
fn beginning(line: &[u8]) -> Option<(String, u64)> {
    let head = &line[..line.len().min(HEAD)];
    let (kind, object) = split(head.strip_prefix(b"{\"type\":\"")?, b"\",\"object\":{")?;
    let (before, metadata) = split(object, b"\"metadata\":{\"resourceVersion\":\"")?;
    let (rev, _) = split(metadata, b"\"")?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    let words = [kind, before].iter().all(|part| !part.contains(&b'{') && !part.contains(&b'\\'));
    if words { Some((text(kind)?, text(rev)?.parse().ok()?)) } else { None }
}

/// How far the first words of an object go.
const HEAD: usize = 320;

fn split<'a>(bytes: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let start = bytes.windows(at.len()).position(|window| window == at)?;
    Some((&bytes[..start], &bytes[start + at.len()..]))
}

/// The same from the whole line.
fn whole(line: &[u8]) -> Option<(String, u64)> {
    let line: Line = serde_json::from_slice(line).ok()?;
    Some((line.kind, line.object.metadata.resource_version.parse().ok()?))
}
