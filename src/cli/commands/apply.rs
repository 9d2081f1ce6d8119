//! `apply`: create what is not there, patch what differs, say what was done.
use http::Method;
use serde_json::Value;

use crate::cli::args::{Apply, DryRun};
use crate::cli::failure::{Exit, Failure};
use crate::cli::kinds::query;
use crate::cli::merge;
use crate::cli::output::{Output, list_of, tidy};
use crate::cli::session::{Item, Session};
use crate::cli::wire::{Answer, Form, content};

/// kubectl's name for the same merge, so that fields have one owner whichever tool applied them.
const MANAGER: &str = "kubectl-client-side-apply";
/// How often an object is looked at again when it changed under the hand.
const ROUNDS: usize = 4;

pub(crate) async fn run(session: &mut Session<'_>, args: &Apply) -> Result<(), Failure> {
    let output = Output::of_change(args.output.as_deref())?;
    if args.files.files.is_empty() {
        return Err(Failure::usage("no file is named").try_this("write -f FILE, -f DIR or -f -"));
    }
    if args.server_side && args.dry_run == DryRun::Client {
        return Err(
            Failure::usage("--server-side cannot be tried without the server").try_this("--dry-run=server")
        );
    }
    let items = session.items_of_files(&args.files.files, args.files.recursive).await?;
    let mut results = Vec::new();
    for item in &items {
        let applied = if args.server_side {
            on_server(session, args, item).await
        } else {
            merged(session, args, item).await
        };
        match applied {
            Ok((verb, object)) => match output {
                Output::Table { .. } => {
                    session.say(format_args!("{} {verb}{}", item.label(), tried(args.dry_run)))?;
                }
                Output::Name => session.say(item.resource.full_label(&item.name))?,
                _ => results.push(tidy(object)),
            },
            Err(failure) if failure.exit == Exit::Unreachable => return Err(failure),
            Err(failure) => session.report(&failure.about(&item.label())),
        }
    }
    match results.len() {
        0 => Ok(()),
        1 => output.print(session.terminal.out, &results.remove(0), &|_| String::new()),
        _ => output.print(session.terminal.out, &list_of(&results), &|_| String::new()),
    }
}

/// What is said after a change that was only tried.
pub(crate) fn tried(dry_run: DryRun) -> &'static str {
    match dry_run {
        DryRun::None => "",
        DryRun::Client => " (dry run)",
        DryRun::Server => " (server dry run)",
    }
}

async fn on_server(
    session: &mut Session<'_>,
    args: &Apply,
    item: &Item,
) -> Result<(&'static str, Value), Failure> {
    let mut parameters = vec![("fieldManager", args.field_manager.as_str()), ("fieldValidation", "Strict")];
    parameters.push(("force", if args.force_conflicts { "true" } else { "false" }));
    parameters.extend((args.dry_run == DryRun::Server).then_some(("dryRun", "All")));
    let path = format!("{}{}", item.path(), query(&parameters));
    let answer = send(session, Method::PATCH, &path, (content::APPLY_PATCH, &item.object)).await?;
    remark_going(session, item, &answer.body);
    Ok(("serverside-applied", answer.body))
}

async fn merged(
    session: &mut Session<'_>,
    args: &Apply,
    item: &Item,
) -> Result<(&'static str, Value), Failure> {
    let wanted = merge::with_annotation(&item.object);
    let mut parameters = vec![("fieldManager", MANAGER), ("fieldValidation", "Strict")];
    parameters.extend((args.dry_run == DryRun::Server).then_some(("dryRun", "All")));
    let parameters = query(&parameters);
    let mut rounds = 0;
    loop {
        rounds += 1;
        let seen = match session.wire.get(&item.path(), Form::Object).await {
            Ok(seen) => Some(seen),
            Err(failure) if failure.exit == Exit::NotFound => None,
            Err(failure) => return Err(failure),
        };
        let done = match (&seen, args.dry_run) {
            (None, DryRun::Client) => return Ok(("created", wanted)),
            (None, DryRun::None | DryRun::Server) => {
                let path = format!("{}{parameters}", item.resource.collection(Some(&item.namespace)));
                let answer = send(session, Method::POST, &path, (content::JSON, &wanted)).await;
                answer.map(|answer| ("created", answer.body))
            }
            (Some(seen), dry_run) => {
                if rounds == 1 {
                    remark_going(session, item, seen);
                }
                let patch = merge::three_way(merge::last_applied(seen).as_ref(), &wanted, seen);
                if merge::is_empty(&patch) {
                    return Ok(("unchanged", seen.clone()));
                }
                if rounds == 1 {
                    remark(session, item, seen);
                }
                if dry_run == DryRun::Client {
                    let mut after = seen.clone();
                    json_patch::merge(&mut after, &patch);
                    return Ok(("configured", after));
                }
                let target = format!("{}{parameters}", item.path());
                let answer = send(session, Method::PATCH, &target, (content::MERGE_PATCH, &patch)).await;
                answer.map(|answer| (verb(seen, &answer.body), answer.body))
            }
        };
        match (done, rounds < ROUNDS) {
            // Created, changed or removed by somebody else in between: look again.
            (Err(failure), true)
                if matches!(failure.exit, Exit::Conflict | Exit::NotFound)
                    && is_race(seen.as_ref(), &failure) => {}
            (done, _) => return done,
        }
    }
}

/// A missing object is found missing by a patch, and an existing one by a create; a missing namespace is no race.
fn is_race(seen: Option<&Value>, failure: &Failure) -> bool {
    match seen {
        Some(_) => true,
        None => failure.exit == Exit::Conflict,
    }
}

/// A write that changed nothing answers the object as it was, though the patch was not empty: a Secret's
/// `stringData` is never read back.
fn verb(before: &Value, after: &Value) -> &'static str {
    if tidy(before.clone()) == tidy(after.clone()) { "unchanged" } else { "configured" }
}

/// Even when nothing is to be changed: seconds later it is gone.
fn remark_going(session: &mut Session<'_>, item: &Item, seen: &Value) {
    if seen["metadata"]["deletionTimestamp"].is_string() {
        session
            .note(format_args!("warning: {} is being deleted; what is applied goes with it", item.label()));
    }
}

fn remark(session: &mut Session<'_>, item: &Item, seen: &Value) {
    if merge::last_applied(seen).is_none() {
        let label = item.label();
        session.note(format_args!(
            "warning: {label} was not made by apply; fields that are not in the file stay as they are"
        ));
    }
}

async fn send(
    session: &mut Session<'_>,
    method: Method,
    path: &str,
    (content_type, body): (&str, &Value),
) -> Result<Answer, Failure> {
    let answer = session.wire.send(method, path, Some((content_type, body)), Form::Object).await?;
    session.warn_all(&answer);
    Ok(answer)
}
