//! `delete`: all objects at once, then each awaited in whatever order they go.
use std::cell::RefCell;
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use crate::cli::args::{Delete, DryRun};
use crate::cli::failure::{Exit, Failure};
use crate::cli::kinds::query;
use crate::cli::output::Output;
use crate::cli::session::{Item, Session, Terminal, follow};
use crate::cli::why::Kind;
use crate::cli::wire::{Form, content};

use super::apply::tried;
use super::wait::{Deadline, blocker};
use super::why::cause;

pub(crate) async fn run(session: &mut Session<'_>, args: &Delete) -> Result<(), Failure> {
    let by_name = match args.output.as_deref() {
        None => false,
        some => Output::parse(some)? == Output::Name,
    };
    if args.output.is_some() && !by_name {
        return Err(Failure::usage("-o takes only name here"));
    }
    let items = match (args.files.files.is_empty(), args.targets.is_empty()) {
        (false, true) => session.items_of_files(&args.files.files, args.files.recursive).await?,
        (true, false) => session.items_of_words(&args.targets, &args.selection, args.all).await?,
        (false, false) => return Err(Failure::usage("files and named objects exclude each other")),
        (true, true) => {
            return Err(Failure::usage("nothing is named").try_this("write KIND NAME, KIND/NAME or -f FILE"));
        }
    };
    if items.is_empty() {
        session.note("No resources found.");
    }
    // What was listed here and goes by itself meanwhile, nobody asked for by name.
    let may_lack = args.ignore_not_found || args.all || args.selection.selects();
    let mut leaving = Vec::new();
    for item in &items {
        match ask(session, args, item).await {
            Ok(uid) => {
                if by_name {
                    session.say(item.resource.full_label(&item.name))?;
                } else {
                    session.say(format_args!("{} deleted{}", item.label(), tried(args.dry_run)))?;
                }
                leaving.push((item, uid));
            }
            Err(failure) if failure.exit == Exit::NotFound && may_lack => {}
            Err(failure) if failure.exit == Exit::Unreachable => return Err(failure),
            Err(failure) => session.report(&failure),
        }
    }
    session.terminal.out.flush()?;
    if args.wait && args.dry_run == DryRun::None {
        Box::pin(all_gone(session, &leaving, args.timeout)).await?;
    }
    Ok(())
}

/// Asks for one deletion; the uid tells the object from a later one of the same name.
async fn ask(session: &mut Session<'_>, args: &Delete, item: &Item) -> Result<Option<String>, Failure> {
    if args.dry_run == DryRun::Client {
        return session.wire.get(&item.path(), Form::Object).await.map(|_| None);
    }
    let body =
        json!({ "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": args.cascade.policy() });
    let parameters: &[_] = if args.dry_run == DryRun::Server { &[("dryRun", "All")] } else { &[] };
    let path = format!("{}{}", item.path(), query(parameters));
    let answer = session.wire.send(Method::DELETE, &path, Some((content::JSON, &body)), Form::Object).await?;
    session.warn_all(&answer);
    if item.resource.plural == "nodes" && args.dry_run == DryRun::None && is_silent(&answer.body) {
        let (label, name) = (item.label(), &item.name);
        session.note(format_args!(
            "{label} is not heard: by this its machine is off for good, and what it had is given to others. If it is not off, end what runs there \
             now: `wharfline down` with the data directory of {name}"
        ));
    }
    let uid = answer.body["details"]["uid"].as_str().or(answer.body["metadata"]["uid"].as_str());
    Ok(uid.map(str::to_owned))
}

/// Whether a Node says that its daemon is not heard, and said so before it was deleted.
fn is_silent(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    ready.any(|ready| ready["status"] == "Unknown" && ready["reason"] != "SilentSinceDeleted")
}

async fn all_gone(
    session: &mut Session<'_>,
    leaving: &[(&Item, Option<String>)],
    timeout: Duration,
) -> Result<(), Failure> {
    let deadline = Deadline::new((!timeout.is_zero()).then(|| Instant::now() + timeout));
    for (item, uid) in leaving {
        let last = RefCell::new(Value::Null);
        let gone = follow(&session.wire, item, |seen| match seen {
            Some(seen) if uid.as_deref().is_none_or(|uid| seen["metadata"]["uid"] == uid) => {
                *last.borrow_mut() = seen.clone();
                None
            }
            _ => Some(()),
        });
        let words = session.words(item);
        let told = tell(&mut session.terminal, (item, &words), &last);
        let gone = async {
            tokio::select! {
                done = gone => done,
                () = told => Ok(()),
            }
        };
        match deadline.limit(gone).await {
            Some(done) => done?,
            None => {
                let what = format!("{} is still there after {} s", item.label(), timeout.as_secs());
                let why = match cause(session, item).await {
                    Some(cause) => cause,
                    None => blocker(&last.borrow()),
                };
                let advice = format!("wharfline why {}", session.words(item));
                session.report(&Failure::new(Exit::TimedOut, what).because(why).try_this(advice));
            }
        }
    }
    Ok(())
}

/// How long a reason stands before it is told: most pass at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// At which look it is told who knows more.
const LONG: u32 = 5;

/// Says what an object waits for, each reason once, and what names the cause if that takes long. Never ends.
async fn tell(terminal: &mut Terminal<'_>, (item, words): (&Item, &str), last: &RefCell<Value>) {
    let mut said = String::new();
    for looks in 1_u32.. {
        if looks == LONG && Kind::of(&item.resource.kind).is_some() {
            writeln!(terminal.err, "{} waits still: `wharfline why {words}` names the cause", item.label())
                .ok();
        }
        let before = blocker(&last.borrow());
        tokio::time::sleep(PATIENCE).await;
        let why = blocker(&last.borrow());
        if why == before && why != said && !why.is_empty() {
            // Nobody can be told that telling failed.
            writeln!(terminal.err, "{} waits: {why}", item.label()).ok();
            said = why;
        }
    }
}
