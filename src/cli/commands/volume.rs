//! `volume`: what backends have, beside what is known here.
//!
//! How plugins are asked is in [`super::backends`], the comparison in [`crate::cli::audit`].
use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::json;

use super::backends::{Unasked, as_word, free_name, gather, known, make, the_one, tried};
use super::wait::Deadline;
use crate::api::audit::{AuditList, BackendVolume};
use crate::api::meta::VolumeMode;
use crate::api::volume::ExistingSource;
use crate::api::{API_VERSION, Volume as Adopted};
use crate::cli::args::{Adopt, Audit, DryRun, Volume, VolumeCommand};
use crate::cli::audit::{Finding, Known, Listed, Lists, What, confirmed, findings, unlooked};
use crate::cli::failure::{Exit, Failure};
use crate::cli::kinds::Kinds;
use crate::cli::session::Session;
use crate::cli::table;

pub(crate) async fn run(session: &mut Session<'_>, args: &Volume) -> Result<(), Failure> {
    match &args.command {
        VolumeCommand::Audit(args) => audit(session, args).await,
        VolumeCommand::Adopt(args) => adopt(session, args).await,
    }
}

async fn audit(session: &mut Session<'_>, args: &Audit) -> Result<(), Failure> {
    let as_json = match args.output.as_deref() {
        None => false,
        Some("json") => true,
        Some(other) => {
            return Err(Failure::usage(format!("-o {other}: an audit is printed as a table or as json")));
        }
    };
    let kinds = session.kinds().await?;
    let deadline = Deadline::new(Some(Instant::now() + args.timeout));
    let mut look = looked(session, &kinds, (&args.plugins, &deadline)).await?;
    if !look.found.is_empty() {
        let deadline = Deadline::new(Some(Instant::now() + args.timeout));
        let again = looked(session, &kinds, (&args.plugins, &deadline)).await?;
        let (had, has) = (look.lists.whose(), again.lists.whose());
        look = Look { found: confirmed((look.found, &had), (again.found, &has)), ..again };
    }
    let Look { found, lists, by, asked, unasked, unlooked } = look;
    if asked == 0 {
        session.note("No plugins; nothing can be asked.");
    }
    if as_json {
        let text =
            serde_json::to_string_pretty(&found).map_err(|error| Failure::failed(error.to_string()))?;
        session.say(text)?;
    } else {
        print(session, &found)?;
    }
    for one in &unasked {
        session.report(&one.failure);
    }
    for (what, why) in unlooked.iter().cloned() {
        session.report(&Failure::failed(format!("{what} was not looked for")).because(why));
    }
    if asked == 0 && found.is_empty() {
        return Ok(());
    }
    let listed = format!("{} listed by {}", count(&lists), plural(by.len(), "instance"));
    if found.is_empty() {
        let all = if unasked.is_empty() && unlooked.is_empty() {
            "all of them fit"
        } else {
            "what was listed fits"
        };
        session.note(format_args!("{listed}; {all}"));
        return Ok(());
    }
    let things =
        if found.len() == 1 { "1 thing does".to_owned() } else { format!("{} things do", found.len()) };
    let failure = Failure::failed(format!("{listed}; {things} not fit"));
    Err(match way_on(&found) {
        Some(advice) => failure.try_this(advice),
        None => failure,
    })
}

/// One look at the backends and at what is known here.
struct Look {
    found: Vec<Finding>,
    lists: Lists,
    /// The instances that answered.
    by: BTreeSet<String>,
    /// How many were to be asked.
    asked: usize,
    /// The others.
    unasked: Vec<Unasked>,
    /// What was not looked for, and why.
    unlooked: Vec<(String, String)>,
}

async fn looked(
    session: &Session<'_>,
    kinds: &Kinds,
    (plugins, deadline): (&[String], &Deadline),
) -> Result<Look, Failure> {
    let before = known(session, kinds).await?;
    // One after the other: an instance is asked one thing at a time.
    let (of, by) = ((plugins, AuditList::Volumes), (&before, deadline));
    let volumes = gather(session, kinds, of, by, |answer| answer.volumes).await?;
    let of = (plugins, AuditList::Snapshots);
    let snapshots = gather(session, kinds, of, by, |answer| answer.snapshots).await?;
    let after = known(session, kinds).await?;
    // Where nobody could be asked for volumes, nobody could be for snapshots.
    let whom = |one: &Unasked| (one.plugin.clone(), one.node.clone());
    let nobody: BTreeSet<_> = volumes.unasked.iter().filter(|one| one.nobody).map(whom).collect();
    let news = |one: &Unasked| !one.nobody || !nobody.contains(&whom(one));
    let unasked = volumes.unasked.into_iter().chain(snapshots.unasked.into_iter().filter(news)).collect();
    let unlooked = unlooked(&snapshots.listed, &after);
    let by = volumes.by.union(&snapshots.by).cloned().collect();
    let lists = Lists { volumes: volumes.listed, snapshots: snapshots.listed };
    Ok(Look { found: findings(&lists, &before, &after), lists, by, asked: volumes.asked, unasked, unlooked })
}

/// What can be done with the first orphan of each kind.
fn way_on(found: &[Finding]) -> Option<String> {
    let adopt = |what: What, command: &str| {
        let orphan = found.iter().find(|found| found.what == what)?;
        let node = if orphan.node.is_empty() { String::new() } else { format!(" --node {}", orphan.node) };
        Some(format!("wharfline {command} adopt --plugin {}{node} {}", orphan.of, as_word(&orphan.subject)))
    };
    let ways = [adopt(What::Unknown, "volume"), adopt(What::UnknownSnapshot, "snapshot")];
    let ways: Vec<_> = ways.into_iter().flatten().collect();
    let ways = (!ways.is_empty()).then(|| ways.join(", "))?;
    Some(format!("to use one that is unknown: {ways}; or delete it at the backend"))
}

/// How many there were, each counted once however often it was listed; of snapshots only where there were any.
fn count(lists: &Lists) -> String {
    fn of<'a, T>(lists: &'a [Listed<T>], handle: impl Fn(&'a T) -> &'a str) -> usize {
        let each = lists.iter().flat_map(|list| list.entries.iter().map(move |entry| (list, entry)));
        let each = each.map(|(list, entry)| (list.plugin.as_str(), list.node.as_str(), handle(entry)));
        each.collect::<BTreeSet<_>>().len()
    }
    let volumes = of(&lists.volumes, |volume| volume.handle.as_str());
    let snapshots = of(&lists.snapshots, |snapshot| snapshot.handle.as_str());
    let volumes = plural(volumes, "volume");
    if snapshots == 0 { volumes } else { format!("{volumes} and {}", plural(snapshots, "snapshot")) }
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

fn print(session: &mut Session<'_>, found: &[Finding]) -> Result<(), Failure> {
    if found.is_empty() {
        return Ok(());
    }
    let row = |found: &Finding| {
        let what = match found.what {
            What::Unknown => "unknown",
            What::Unclear => "unclear",
            What::NotListed => "not listed",
            What::Attached => "attached",
            What::NotAttached => "not attached",
            What::Unwell => "unwell",
            What::Smaller => "smaller",
            What::UnknownSnapshot => "unknown snapshot",
            What::UnclearSnapshot => "unclear snapshot",
            What::SnapshotNotListed => "snapshot not listed",
            What::Mount => "mount",
        };
        let of =
            if found.node.is_empty() { found.of.clone() } else { format!("{} on {}", found.of, found.node) };
        [what, &of, &found.subject, &found.details].map(table::clean).to_vec()
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    table::print(session.terminal.out, &["WHAT", "PLUGIN OR NODE", "HANDLE OR PATH", "DETAILS"], &rows)?;
    Ok(())
}

async fn adopt(session: &mut Session<'_>, args: &Adopt) -> Result<(), Failure> {
    let kinds = session.kinds().await?;
    let mode = if args.block { "Block" } else { "Filesystem" };
    let (name, source, modes) = match source_of(session, &kinds, args).await? {
        Source::Adopted(volume) => {
            let modes = modes_of(args, &volume)?;
            (volume.metadata.name.clone().unwrap_or_default(), None, modes)
        }
        Source::New(source, name) => {
            let default = || vec![DEFAULT_MODE.to_owned()];
            let modes = if args.modes.is_empty() { default() } else { args.modes.clone() };
            (name, Some(source), modes)
        }
    };
    let namespace = session.namespace();
    let claim = args.claim.as_ref().map(|claim| {
        json!({ "apiVersion": API_VERSION, "kind": "VolumeClaim",
            "metadata": { "name": claim, "namespace": namespace },
            "spec": { "volumeName": name, "accessModes": modes, "volumeMode": mode } })
    });
    // What is refused of the claim is refused before there is a Volume.
    if let Some(claim) = claim.as_ref().filter(|_| args.dry_run == DryRun::None) {
        tried(session, &kinds, "volumeclaims", claim).await?;
    }
    if let Some(source) = source {
        let object = json!({ "apiVersion": API_VERSION, "kind": "Volume", "metadata": { "name": name },
            "spec": { "plugin": args.plugin, "source": { "existing": source }, "accessModes": modes,
                "volumeMode": mode, "reclaimPolicy": "Retain" } });
        make(session, &kinds, "volumes", &object, args.dry_run).await?;
    }
    match claim {
        Some(claim) => make(session, &kinds, "volumeclaims", &claim, args.dry_run).await,
        None if args.dry_run == DryRun::None => {
            session.note(format_args!("a claim takes it with `volumeName: {name}` and volumeMode {mode}"));
            Ok(())
        }
        None => Ok(()),
    }
}

/// `--mode` when it is not given.
const DEFAULT_MODE: &str = "SingleNodeWriter";

/// How the claim of one that was adopted before is to use it: as its Volume says.
fn modes_of(args: &Adopt, volume: &Adopted) -> Result<Vec<String>, Failure> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let spec = &volume.spec;
    let what = format!("\"{}\" of plugin/{} is volume/{name} already", args.handle, args.plugin);
    let conflict = |why: String| Failure::new(Exit::Conflict, what.clone()).because(why);
    if args.claim.is_none() {
        return Err(Failure::new(Exit::Conflict, what));
    }
    if let Some(other) = args.name.as_ref().filter(|other| **other != name) {
        return Err(conflict(format!("it cannot be {other}, too")).try_this("leave out --name"));
    }
    if args.block != (spec.volume_mode == VolumeMode::Block) {
        let (has, advice) =
            if args.block { ("a file system", "leave out --block") } else { ("a device", "give --block") };
        return Err(conflict(format!("it is used as {has}")).try_this(advice));
    }
    let has: Vec<String> = spec.access_modes.iter().map(|mode| format!("{mode:?}")).collect();
    if args.modes.is_empty() {
        return Ok(has);
    }
    if args.modes.iter().all(|mode| has.contains(mode)) {
        return Ok(args.modes.clone());
    }
    Err(conflict(format!("it is used as {}", has.join(", "))).try_this("leave out --mode"))
}

/// What is adopted.
enum Source {
    /// What the plugin says of it, and the name that its Volume gets.
    New(ExistingSource, String),
    /// It was adopted before, as the Volume of this name, and nobody has claimed it.
    Adopted(Box<Adopted>),
}

/// What the plugin says of the handle. A conflict if it is somebody's, or may be.
async fn source_of(session: &Session<'_>, kinds: &Kinds, args: &Adopt) -> Result<Source, Failure> {
    let (before, (node, volume)) = lookup(session, kinds, args).await?;
    let known = known(session, kinds).await?;
    let adopted = known.volumes.iter().find(|volume| {
        let source = volume.spec.source.existing.as_ref();
        let it = |source: &ExistingSource| source.handle == args.handle && source.node_name == node;
        volume.spec.plugin == args.plugin && source.is_some_and(it)
    });
    let is_free =
        |volume: &&Adopted| volume.spec.claim_ref.is_none() && volume.metadata.deletion_timestamp.is_none();
    if let Some(adopted) = adopted.filter(is_free) {
        return Ok(Source::Adopted(Box::new(adopted.clone())));
    }
    let list = Listed {
        plugin: args.plugin.clone(),
        node: node.clone(),
        entries: vec![volume.clone()],
        ..Listed::default()
    };
    let lists = Lists { volumes: vec![list], ..Lists::default() };
    let told = findings(&lists, &before, &known);
    match told.iter().find(|found| [What::Unknown, What::Unclear].contains(&found.what)) {
        Some(found) if found.what == What::Unknown => {}
        Some(unclear) => {
            let what = format!("\"{}\" of plugin/{} is not adopted now", args.handle, args.plugin);
            let failure = Failure::new(Exit::Conflict, what).because(unclear.details.clone());
            return Err(failure.try_this("wait until that is made, or delete its claim"));
        }
        None => {
            let what = format!("\"{}\" of plugin/{} has a Volume already", args.handle, args.plugin);
            return Err(Failure::new(Exit::Conflict, what).try_this("wharfline get volumes -o wide"));
        }
    }
    let BackendVolume { handle, context, topology, size: capacity, .. } = volume;
    let taken = known.volumes.iter().map(|volume| volume.metadata.name.clone().unwrap_or_default());
    let name = args.name.clone().unwrap_or_else(|| free_name(&handle, &node, &taken.collect()));
    Ok(Source::New(ExistingSource { handle, context, topology, node_name: node, capacity }, name))
}

/// The volume of the handle, as the plugin lists it, and the only node that has it; with what was known before.
async fn lookup(
    session: &Session<'_>,
    kinds: &Kinds,
    args: &Adopt,
) -> Result<(Known, (String, BackendVolume)), Failure> {
    let deadline = Deadline::new(Some(Instant::now() + args.timeout));
    let plugins = std::slice::from_ref(&args.plugin);
    let known = known(session, kinds).await?;
    let of = (plugins, AuditList::Volumes);
    let mut gathered = gather(session, kinds, of, (&known, &deadline), |answer| answer.volumes).await?;
    let unasked = gathered.may_have_it(args.node.as_ref());
    let which = (args.handle.as_str(), args.node.as_ref());
    let found = the_one(gathered.listed, which, |volume: &BackendVolume| volume.handle == args.handle)?;
    if let Some((node, volume)) = found.and_then(|mut list| Some((list.node, list.entries.pop()?))) {
        return Ok((known, (node, volume)));
    }
    if let Some(failure) = unasked {
        let by_hand = "a Volume with spec.source.existing can be applied without the plugin's list";
        return Err(failure.try_this(by_hand));
    }
    let what = format!("plugin/{} lists no volume \"{}\"", args.plugin, args.handle);
    let advice = format!("wharfline volume audit {}", args.plugin);
    Err(Failure::new(Exit::NotFound, what).try_this(advice))
}
