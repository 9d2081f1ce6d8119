//! `snapshot take`: a Snapshot of a claim, cut while what writes to it holds still.
//!
//! ```text
//!   tried ▶ freeze ▶ made ▶ cut (it has a handle) ▶ thaw
//! ```
//! It is thawed as soon as it is cut and not when it is ready, which may take hours; and however else it ends. What is not cut in time
//! is thawed first, and then deleted.
use std::cell::Cell;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use http::Method;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::signal::unix::{self, SignalKind};

use super::wait::{Deadline, Goal};
use crate::api::API_VERSION;
use crate::cli::args::TakeSnapshot;
use crate::cli::failure::{Exit, Failure};
use crate::cli::session::{Item, Session};
use crate::cli::wire::{Form, content};

pub(super) async fn take(session: &mut Session<'_>, args: &TakeSnapshot) -> Result<(), Failure> {
    let namespace = session.namespace();
    let claim = args.claim.strip_prefix("volumeclaim/").unwrap_or(&args.claim);
    let mut object = json!({ "apiVersion": API_VERSION, "kind": "Snapshot",
        "metadata": { "name": args.name, "namespace": namespace },
        "spec": { "source": { "claimName": claim } } });
    if let Some(class) = &args.class {
        object["spec"]["volumeClassName"] = json!(class);
    }
    let kinds = session.kinds().await?;
    let item = |plural: &str, name: &str| {
        let (resource, namespace) = (kinds.find(plural)?.clone(), namespace.clone());
        Ok::<_, Failure>(Item { resource, namespace, name: name.to_owned(), object: Value::Null })
    };
    let (snapshot, claim) = (item("snapshots", &args.name)?, item("volumeclaims", claim)?);
    // What cannot be is refused before anything holds still.
    let bound = session.wire.get(&claim.path(), Form::Object).await?;
    if bound["status"]["phase"] != "Bound" {
        let what = format!("{} has no volume yet", claim.label());
        let way = format!("wharfline why {}", session.words(&claim));
        return Err(Failure::new(Exit::Conflict, what).try_this(way));
    }
    let collection = snapshot.resource.collection(Some(&namespace));
    let body = Some((content::JSON, &object));
    session.wire.send(Method::POST, &format!("{collection}?dryRun=All"), body, Form::Object).await?;

    let mut signals = Signals::new()?;
    if let Some(freeze) = &args.freeze
        && let Err(failure) = hook("freeze", freeze, args.timeout).await
    {
        // By half it may hold something all the same.
        let thawed = thaw(args).await;
        return Err(both(failure, thawed));
    }
    let begun = Instant::now();
    let made = Cell::new(false);
    let outcome = tokio::select! {
        biased;
        name = signals.next() => {
            let failure = Failure::failed(format!("ended by {name}"));
            if made.get() { Outcome::Late(failure) } else { Outcome::Doubtful(failure) }
        }
        outcome = cut(session, (&snapshot, &collection, &object), (args.timeout, &made)) => outcome,
    };
    let (held, thawed) = (begun.elapsed(), thaw(args).await);
    let failure = match outcome {
        Outcome::Cut => {
            let still = if args.freeze.is_some() {
                format!("; it held still for {:.1} s", held.as_secs_f64())
            } else {
                String::new()
            };
            // A reader that is gone does not keep back that the thaw failed.
            let told = session.say(format_args!("{} cut{still}", snapshot.label()));
            session.note(format_args!("wharfline wait --for=condition=Ready {}", session.words(&snapshot)));
            return thawed.and(told);
        }
        Outcome::Refused(failure) => failure,
        Outcome::Doubtful(failure) => failure
            .because(format!("whether {} was made is not known, so it is not deleted", snapshot.label())),
        Outcome::Late(failure) => {
            let gone = session.wire.send(Method::DELETE, &snapshot.path(), None, Form::Object).await;
            match gone {
                Ok(_) => failure.because(format!("{} is deleted again", snapshot.label())),
                Err(gone) if gone.exit == Exit::NotFound => failure,
                Err(gone) => failure
                    .because(format!("{} is there still: {}", snapshot.label(), gone.what))
                    .try_this(format!("wharfline delete {}", session.words(&snapshot))),
            }
        }
    };
    Err(both(failure, thawed))
}

/// What came of the snapshot itself.
enum Outcome {
    /// Its driver has it.
    Cut,
    /// There is none.
    Refused(Failure),
    /// Nobody knows whether there is one.
    Doubtful(Failure),
    /// There is one, and it was not seen to be cut in time.
    Late(Failure),
}

/// Makes the Snapshot and waits until it is cut.
async fn cut(
    session: &Session<'_>,
    (snapshot, collection, object): (&Item, &str, &Value),
    (patience, is_made): (Duration, &Cell<bool>),
) -> Outcome {
    let deadline = Deadline::new(Some(Instant::now() + patience));
    let body = Some((content::JSON, object));
    let made = deadline.limit(session.wire.send(Method::POST, collection, body, Form::Object)).await;
    match made {
        Some(Ok(_)) => is_made.set(true),
        Some(Err(failure)) if failure.exit == Exit::Unreachable => return Outcome::Doubtful(failure),
        Some(Err(failure)) => return Outcome::Refused(failure),
        None => return Outcome::Doubtful(Failure::new(Exit::TimedOut, "the server did not answer in time")),
    }
    let Ok(handle) = Goal::parse("jsonpath={.status.handle}") else {
        return Outcome::Late(Failure::failed("its handle cannot be looked for"));
    };
    let mut last = Value::Null;
    let seen = session.follow(snapshot, |seen| {
        last = seen.cloned().unwrap_or_default();
        let is_cut = handle.met(seen);
        (is_cut || seen.is_none()).then_some(is_cut)
    });
    let label = snapshot.label();
    match deadline.limit(seen).await {
        Some(Ok(true)) => Outcome::Cut,
        Some(Ok(false)) => {
            Outcome::Refused(Failure::failed(format!("{label} was deleted before it was cut")))
        }
        Some(Err(failure)) => Outcome::Late(failure),
        None => {
            let failure = Failure::new(Exit::TimedOut, format!("{label} was not cut within {patience:?}"));
            Outcome::Late(failure.because(super::wait::blocker(&last)))
        }
    }
}

/// Lets what writes go on, if it was asked to hold still.
async fn thaw(args: &TakeSnapshot) -> Result<(), Failure> {
    let Some(thaw) = &args.thaw else { return Ok(()) };
    let failure = match hook("thaw", thaw, args.timeout).await {
        Ok(()) => return Ok(()),
        Err(failure) => failure,
    };
    Err(failure.because("what writes to the volume may hold still").try_this(thaw.clone()))
}

/// One failure of two: what has to be done at once comes first.
fn both(failure: Failure, thawed: Result<(), Failure>) -> Failure {
    match thawed {
        Ok(()) => failure,
        Err(frozen) => frozen.because(failure.what),
    }
}

/// Runs a command of the person's, in a process group of its own: what ends this one by the terminal does not end it.
async fn hook(name: &str, command: &str, patience: Duration) -> Result<(), Failure> {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).stdin(Stdio::null()).process_group(0);
    let failed = |why: String| Failure::failed(format!("{name} failed")).because(why);
    let mut child = shell.spawn().map_err(|error| failed(error.to_string()))?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let mut ended = tokio::task::spawn_blocking(move || child.wait());
    let Ok(ended) = tokio::time::timeout(patience, &mut ended).await else {
        // With what it has started; it may have ended in this moment.
        group.and_then(|group| kill_process_group(group, Signal::KILL).ok());
        let _ended = ended.await;
        return Err(failed(format!("it did not end within {patience:?}")));
    };
    let ended = ended.map_err(io::Error::from).flatten().map_err(|error| failed(error.to_string()))?;
    if ended.success() { Ok(()) } else { Err(failed(how(ended))) }
}

fn how(ended: ExitStatus) -> String {
    ended
        .code()
        .map_or_else(|| format!("it ended by {ended}"), |code| format!("it ended with exit code {code}"))
}

/// The signals by which a person ends a command.
struct Signals([unix::Signal; 3]);

impl Signals {
    fn new() -> Result<Self, Failure> {
        let of = |kind| unix::signal(kind).map_err(Failure::from);
        Ok(Self([of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?]))
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
            _ = hangup.recv() => "SIGHUP",
        }
    }
}
