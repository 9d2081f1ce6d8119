//! `snapshot`: one that is taken while what writes holds still ([`super::take`]); one that a backend has and nobody knows here; and which
//! blocks of a snapshot hold something, or differ from those of
//! an earlier one.
//!
//! The latter may be millions of lines: the daemon of the node that makes the snapshot's calls is asked, over its socket in its data
//! directory, and neither server nor store has to do with them.
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::backends::{all, free_name, gather, known, make, the_one};
use super::wait::Deadline;
use crate::api::audit::{Audit, AuditList, BackendSnapshot};
use crate::api::blocks::{Block, Line, PATH, Question, Refusal, SOCKET};
use crate::api::{API_VERSION, Snapshot, VolumeClass, quantity};
use crate::cli::args::{AdoptSnapshot, Blocks, DryRun, SnapshotArgs, SnapshotCommand};
use crate::cli::audit::{Finding, Listed, Lists, What, findings};
use crate::cli::failure::{Exit, Failure};
use crate::cli::session::{Item, Session};
use crate::cli::wire::Form;

/// How long a line may be: a part of the plugin's has at most 4 MiB, and its numbers are longer in text.
const LONGEST: usize = 64 << 20;

pub(crate) async fn run(session: &mut Session<'_>, args: &SnapshotArgs) -> Result<(), Failure> {
    match &args.command {
        SnapshotCommand::Blocks(args) => blocks(session, args).await,
        SnapshotCommand::Adopt(args) => adopt(session, args).await,
        SnapshotCommand::Take(args) => super::take::take(session, args).await,
    }
}

async fn adopt(session: &mut Session<'_>, args: &AdoptSnapshot) -> Result<(), Failure> {
    let kinds = session.kinds().await?;
    let classes: Vec<VolumeClass> = all(&session.wire, &kinds, "volumeclasses").await?;
    let chosen = match &args.class {
        Some(name) => Some(class_of(&classes, (name, &args.plugin))?),
        None => None,
    };
    let deadline = Deadline::new(Some(Instant::now() + args.timeout));
    let what = (std::slice::from_ref(&args.plugin), AuditList::Snapshots);
    let before = known(session, &kinds).await?;
    let mut gathered = gather(session, &kinds, what, (&before, &deadline), with_secret).await?;
    let unasked = gathered.may_have_it(args.node.as_ref());
    let which = (args.handle.as_str(), args.node.as_ref());
    let asked_with: BTreeSet<String> = gathered.listed.iter().flat_map(|list| list.secrets.clone()).collect();
    let refused: BTreeMap<String, String> =
        gathered.listed.iter().flat_map(|list| list.refused.clone()).collect();
    let found = the_one(gathered.listed, which, |(snapshot, _): &Entry| snapshot.handle == args.handle)?;
    let Some(mut list) = found else {
        let unread = chosen.map(secret_of).filter(|secret| !asked_with.contains(secret));
        return Err(unlisted(args, unasked, (unread, refused)));
    };
    let with: BTreeSet<String> = list.entries.iter().map(|(_, secret)| secret.clone()).collect();
    let (plugin, node, secrets) = (list.plugin.clone(), list.node.clone(), std::mem::take(&mut list.secrets));
    let entries = list.entries.into_iter().map(|(snapshot, _)| snapshot).collect();
    let list = Listed { plugin, node: node.clone(), entries, secrets, ..Listed::default() };
    let known = known(session, &kinds).await?;
    let told = findings(&Lists { snapshots: vec![list], ..Lists::default() }, &before, &known);
    let its = |found: &&Finding| found.subject == args.handle && found.what != What::SnapshotNotListed;
    match told.iter().find(its) {
        Some(found) if found.what == What::UnknownSnapshot => {}
        Some(unclear) => {
            let what = format!("\"{}\" of plugin/{} is not adopted now", args.handle, args.plugin);
            let failure = Failure::new(Exit::Conflict, what).because(unclear.details.clone());
            return Err(failure.try_this("wait until that is made, or delete it"));
        }
        None => {
            let what = format!("\"{}\" of plugin/{} has a Snapshot already", args.handle, args.plugin);
            return Err(Failure::new(Exit::Conflict, what).try_this("wharfline get snapshots -A -o wide"));
        }
    }
    let class = class_with(session, args, (chosen, &classes), &with)?;
    let mut source = json!({ "handle": args.handle, "plugin": args.plugin });
    if !node.is_empty() {
        source["nodeName"] = json!(node);
    }
    let namespace = session.namespace();
    let ours = known.snapshots.iter().filter(|one| one.metadata.namespace.as_deref() == Some(&*namespace));
    let taken = ours.map(|one| one.metadata.name.clone().unwrap_or_default()).collect();
    let name = args.name.clone().unwrap_or_else(|| free_name(&args.handle, &node, &taken));
    let mut object = json!({ "apiVersion": API_VERSION, "kind": "Snapshot",
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "source": source, "deletionPolicy": "Retain" } });
    if let Some(class) = class {
        object["spec"]["volumeClassName"] = json!(class);
    }
    make(session, &kinds, "snapshots", &object, args.dry_run).await?;
    if args.dry_run == DryRun::None {
        session.note(format_args!("a claim is filled from it with `dataSource: {{ snapshotName: {name} }}`"));
    }
    Ok(())
}

/// A snapshot, and the Secret that it was listed with, as `namespace/name`; empty without one.
type Entry = (BackendSnapshot, String);

fn with_secret(answer: Audit) -> Vec<Entry> {
    let secret = answer.secret.unwrap_or_default();
    answer.snapshots.into_iter().map(|snapshot| (snapshot, secret.clone())).collect()
}

/// The class that is named.
fn class_of<'a>(
    classes: &'a [VolumeClass],
    (name, plugin): (&String, &str),
) -> Result<&'a VolumeClass, Failure> {
    let class = classes.iter().find(|class| class.metadata.name.as_ref() == Some(name));
    let missing = || Failure::new(Exit::NotFound, format!("volumeclass/{name} does not exist"));
    let class = class.ok_or_else(missing)?;
    if class.spec.plugin == plugin {
        return Ok(class);
    }
    let of = &class.spec.plugin;
    let what = format!("--class {name}: it is a class of plugin/{of}, and not of plugin/{plugin}");
    Err(Failure::usage(what))
}

/// The Secret of a class's snapshots, as `namespace/name`; empty without one.
fn secret_of(class: &VolumeClass) -> String {
    let named = class.spec.secrets.snapshot.as_ref();
    let namespace = |of: &str| if of.is_empty() { "default".to_owned() } else { of.to_owned() };
    named.map(|of| format!("{}/{}", namespace(&of.namespace), of.name)).unwrap_or_default()
}

/// What to do where no class has the Secret.
const MAKE_A_CLASS: &str =
    "make a class of the plugin whose secrets.snapshot is that, and name it with --class";

/// The class whose Secret the snapshot's calls want: the one that is named, or the first of the plugin's that has a Secret that the
/// snapshot was listed with.
fn class_with(
    session: &mut Session<'_>,
    args: &AdoptSnapshot,
    (chosen, classes): (Option<&VolumeClass>, &[VolumeClass]),
    with: &BTreeSet<String>,
) -> Result<Option<String>, Failure> {
    match fitting(&args.plugin, (chosen, classes), with) {
        Fit::Chosen(class) => Ok(Some(class)),
        Fit::Unneeded => Ok(None),
        Fit::Class(class, secret) => {
            session.note(format_args!(
                "it is listed with the Secret {secret}, which class {class} has for its snapshots"
            ));
            Ok(Some(class))
        }
        Fit::Other(class, has) => {
            let names = with;
            let with = with.iter().cloned().collect::<Vec<_>>().join(", ");
            let what =
                format!("\"{}\" of plugin/{} is listed with the Secret {with}", args.handle, args.plugin);
            let has = if has.is_empty() { "none".to_owned() } else { format!("the Secret {has}") };
            let failure = Failure::new(Exit::Conflict, what)
                .because(format!("class {class} has {has} for its snapshots"));
            Err(failure.try_this(match fitting(&args.plugin, (None, classes), names) {
                Fit::Missing(_) => MAKE_A_CLASS,
                _ => "leave out --class: the plugin's class with that Secret is found by itself",
            }))
        }
        Fit::Missing(secret) => {
            let what =
                format!("\"{}\" of plugin/{} is listed with the Secret {secret}", args.handle, args.plugin);
            let failure = Failure::new(Exit::Conflict, what).because("no class has it for its snapshots");
            Err(failure.try_this(MAKE_A_CLASS))
        }
    }
}

/// Which class a snapshot is adopted with.
#[derive(Debug, PartialEq, Eq)]
enum Fit {
    /// The one that was named.
    Chosen(String),
    /// None: it was listed without a Secret.
    Unneeded,
    /// This one, for it has this Secret.
    Class(String, String),
    /// The one that was named has another Secret, this one or none.
    Other(String, String),
    /// None has this Secret.
    Missing(String),
}

fn fitting(
    plugin: &str,
    (chosen, classes): (Option<&VolumeClass>, &[VolumeClass]),
    with: &BTreeSet<String>,
) -> Fit {
    let name = |class: &VolumeClass| class.metadata.name.clone().unwrap_or_default();
    if let Some(class) = chosen {
        // What is listed without one, or was not asked for with that of the class, says nothing against it.
        let fits = with.is_empty() || with.contains("") || with.contains(&secret_of(class));
        return if fits { Fit::Chosen(name(class)) } else { Fit::Other(name(class), secret_of(class)) };
    }
    let needed = |secret: &String| !secret.is_empty() && with.contains(secret);
    let of_plugin = classes.iter().filter(|class| class.spec.plugin == plugin);
    let fits = of_plugin.map(|class| (name(class), secret_of(class))).filter(|(_, secret)| needed(secret));
    match (fits.min(), with.first()) {
        (Some((class, secret)), _) => Fit::Class(class, secret),
        (None, None) => Fit::Unneeded,
        (None, Some(first)) if first.is_empty() => Fit::Unneeded,
        (None, Some(first)) => Fit::Missing(first.clone()),
    }
}

fn unlisted(
    args: &AdoptSnapshot,
    unasked: Option<Failure>,
    (unread, refused): (Option<String>, BTreeMap<String, String>),
) -> Failure {
    let by_hand = "a Snapshot with spec.source.handle can be applied without the plugin's list";
    if let Some(failure) = unasked {
        return failure.try_this(by_hand);
    }
    let what = format!("plugin/{} lists no snapshot \"{}\"", args.plugin, args.handle);
    let failure = Failure::new(Exit::NotFound, what);
    // With the class's Secret, or any: it may be of one that is refused.
    let of_class = unread.filter(|secret| !secret.is_empty());
    let known =
        refused.iter().find(|(secret, _)| of_class.as_ref().is_none_or(|of_class| of_class == *secret));
    if let Some((secret, why)) = known {
        return failure
            .because(format!("with the Secret {secret} it lists none: {why}"))
            .try_this(format!("{by_hand}, with volumeClassName"));
    }
    if let Some(secret) = of_class {
        return failure
            .because(format!("it was not asked with the Secret {secret}, which no Snapshot of it has yet"))
            .try_this(format!("{by_hand}, with volumeClassName"));
    }
    failure.try_this(format!("wharfline volume audit {}", args.plugin))
}

async fn blocks(session: &mut Session<'_>, args: &Blocks) -> Result<(), Failure> {
    let as_json = match args.output.as_deref() {
        None => false,
        Some("json") => true,
        Some(other) => {
            return Err(Failure::usage(format!("-o {other}: blocks are printed as a table or as json")));
        }
    };
    let snapshot = read(session, &args.name).await?;
    let since = match &args.since {
        Some(name) => Some(read(session, name).await?),
        None => None,
    };
    let homes = super::logs::homes(session, SOCKET);
    let stream = connect(&homes).await.map_err(|error| nobody(&error, &homes, &snapshot))?;
    let claim_name = args.claim.clone().unwrap_or_default();
    let question = Question { snapshot, claim_name, since, starting_offset: args.from };
    let mut answer = ask(stream, &question).await?;
    let mut told = Tally::default();
    if !as_json {
        session.say(format_args!("{:<20} SIZE", "OFFSET"))?;
    }
    loop {
        match answer.next().await? {
            Some(Line::Part(part)) => {
                told.capacity = part.capacity;
                for block in part.blocks {
                    told.add(block);
                    if as_json {
                        session.say(json!({ "offset": block.offset, "size": block.size }))?;
                    } else {
                        session.say(format_args!("{:<20} {}", block.offset, block.size))?;
                    }
                }
            }
            Some(Line::Complete) => break,
            Some(Line::Interrupted(over)) => {
                let failure = Failure::failed("that is not all").because(over.message);
                return Err(match over.resume_at {
                    Some(offset) => failure.try_this(format!("ask on with --from {offset}")),
                    None => failure,
                });
            }
            None => return Err(Failure::failed("that is not all: the daemon ended").try_this(again(&told))),
        }
    }
    if as_json {
        session.say(json!({ "complete": true, "capacity": told.capacity }))?;
    }
    session.note(told.sentence(args.since.is_some()));
    Ok(())
}

fn again(told: &Tally) -> String {
    if told.end == 0 { "ask again".to_owned() } else { format!("ask on with --from {}", told.end) }
}

/// What was told so far.
#[derive(Default)]
struct Tally {
    blocks: u64,
    bytes: i64,
    end: i64,
    capacity: i64,
}

impl Tally {
    fn add(&mut self, block: Block) {
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(block.size);
        self.end = block.offset.saturating_add(block.size);
    }

    fn sentence(&self, changed: bool) -> String {
        let verb = if changed { "changed" } else { "hold something" };
        let of = if self.capacity > 0 {
            format!(" of {}", quantity::display(self.capacity))
        } else {
            String::new()
        };
        match self.blocks {
            0 if changed => "nothing changed".to_owned(),
            0 => "nothing is in it".to_owned(),
            1 => format!("1 block, {}{of}: {verb}", quantity::display(self.bytes)),
            many => format!("{many} blocks, {}{of}: {verb}", quantity::display(self.bytes)),
        }
    }
}

async fn read(session: &mut Session<'_>, name: &str) -> Result<Snapshot, Failure> {
    let resource = session.kinds().await?.find("snapshots")?.clone();
    let name = name.strip_prefix("snapshot/").unwrap_or(name).to_owned();
    let item = Item { resource, namespace: session.namespace(), name, object: Value::Null };
    let object = session.wire.get(&item.path(), Form::Object).await?;
    serde_json::from_value(object).map_err(|error| {
        Failure::failed(format!("{} cannot be read", item.label())).because(error.to_string())
    })
}

/// The daemon of the first of these data directories that has one. However long a directory's path is, that of a socket is short.
async fn connect(homes: &[PathBuf]) -> io::Result<UnixStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for home in homes {
        match connect_in(home).await {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn connect_in(home: &Path) -> io::Result<UnixStream> {
    let directory = std::fs::File::open(home)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd())).await
}

/// Nobody can be asked here.
fn nobody(error: &io::Error, homes: &[PathBuf], snapshot: &Snapshot) -> Failure {
    let homes = homes.iter().map(|home| home.display().to_string()).collect::<Vec<_>>().join(" and ");
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Failure::failed(format!("the daemon in {homes} may not be asked")).try_this("run it as root");
    }
    let failure = Failure::failed("the daemon of this machine does not answer")
        .because(format!("no socket of one in {homes}: {error}"));
    let host = snapshot.status.as_ref().and_then(|status| status.controller.as_ref());
    match host {
        Some(host) => failure.try_this(format!(
            "run it on node {}, which makes the snapshot's calls, with that node's --data-dir",
            host.node_name
        )),
        None => failure.try_this("no node makes its calls yet: `wharfline why` tells what it waits for"),
    }
}

/// An answer as it comes.
struct Lines {
    body: Incoming,
    text: Vec<u8>,
}

async fn ask(stream: UnixStream, question: &Question) -> Result<Lines, Failure> {
    let broke = |error: &dyn std::error::Error| {
        Failure::failed("the daemon gave no answer").because(error.to_string())
    };
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| broke(&error))?;
    // It ends with the answer.
    tokio::spawn(async move {
        let _ended = connection.await;
    });
    let text = serde_json::to_vec(question).map_err(|error| broke(&error))?;
    let request = http::Request::post(PATH)
        .header(http::header::HOST, "localhost")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(text)))
        .map_err(|error| broke(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| broke(&error))?;
    let status = answer.status();
    let body = answer.into_body();
    if status.is_success() {
        return Ok(Lines { body, text: Vec::new() });
    }
    let told = body.collect().await.map_err(|error| broke(&error))?.to_bytes();
    let refusal = serde_json::from_slice::<Refusal>(&told);
    let message =
        refusal.map_or_else(|_| String::from_utf8_lossy(&told).into_owned(), |refusal| refusal.message);
    Err(Failure::failed("its blocks cannot be told").because(message))
}

impl Lines {
    /// The next line; none when there are no more.
    async fn next(&mut self) -> Result<Option<Line>, Failure> {
        let broken = |why: String| Failure::failed("the answer of the daemon broke").because(why);
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.text) {
                let line =
                    serde_json::from_slice(&self.text[..end]).map_err(|error| broken(error.to_string()))?;
                self.text.drain(..=end);
                return Ok(Some(line));
            }
            if self.text.len() > LONGEST {
                return Err(broken("a line of it has no end".to_owned()));
            }
            match self.body.frame().await {
                Some(frame) => {
                    let frame = frame.map_err(|error| broken(error.to_string()))?;
                    self.text.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                }
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_adopted_with_a_class_that_has_a_secret_it_was_listed_with() {
        let class = |name: &str, plugin: &str, secret: &str| -> VolumeClass {
            let secrets =
                if secret.is_empty() { json!({}) } else { json!({ "snapshot": { "name": secret } }) };
            serde_json::from_value(json!({ "apiVersion": API_VERSION, "kind": "VolumeClass",
                "metadata": { "name": name }, "spec": { "plugin": plugin, "secrets": secrets } }))
            .unwrap()
        };
        let classes =
            [class("z", "p", "a"), class("silver", "p", "b"), class("aa", "q", "a"), class("no", "p", "")];
        for (chosen, with, fit) in [
            (Some(3), &["default/a"][..], Fit::Other("no".into(), String::new())),
            (Some(1), &["default/a"], Fit::Other("silver".into(), "default/b".into())),
            (Some(1), &["default/a", "default/b"], Fit::Chosen("silver".into())),
            (Some(1), &["", "default/a"], Fit::Chosen("silver".into())),
            (Some(3), &[], Fit::Chosen("no".into())),
            (None, &[], Fit::Unneeded),
            (None, &[""], Fit::Unneeded),
            (None, &["default/a"], Fit::Class("z".into(), "default/a".into())),
            // Whichever it was listed with: one of them has a class.
            (None, &["default/0", "default/b"], Fit::Class("silver".into(), "default/b".into())),
            (None, &["", "default/a"], Fit::Class("z".into(), "default/a".into())),
            (None, &["", "default/0"], Fit::Unneeded),
            (None, &["other/a", "x/y"], Fit::Missing("other/a".into())),
        ] {
            let with_secrets: BTreeSet<String> = with.iter().map(|secret| (*secret).to_owned()).collect();
            let chosen = chosen.map(|which: usize| &classes[which]);
            assert_eq!(fitting("p", (chosen, &classes), &with_secrets), fit, "{with:?}");
        }
    }

    #[test]
    fn what_was_told_is_summed_up() {
        let of = |blocks: &[(i64, i64)]| {
            let mut tally = Tally { capacity: 1 << 20, ..Tally::default() };
            for (offset, size) in blocks {
                tally.add(Block { offset: *offset, size: *size });
            }
            (tally.sentence(false), tally.sentence(true), again(&tally))
        };
        let said = |one: &str, two: &str, three: &str| (one.to_owned(), two.to_owned(), three.to_owned());
        assert_eq!(of(&[]), said("nothing is in it", "nothing changed", "ask again"));
        assert_eq!(
            of(&[(4096, 1024)]),
            said(
                "1 block, 1Ki of 1Mi: hold something",
                "1 block, 1Ki of 1Mi: changed",
                "ask on with --from 5120"
            )
        );
        assert_eq!(of(&[(0, 1024), (4096, 1024)]).0, "2 blocks, 2Ki of 1Mi: hold something");
    }
}
