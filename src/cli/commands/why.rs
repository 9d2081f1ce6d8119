//! `why`: gathers the objects, asks [`crate::cli::why`] for the chain of causes, and prints it.
use std::fmt::Write as _;
use std::time::Duration;

use futures::future::try_join_all;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::age::{millis, since};
use crate::cli::args::Why;
use crate::cli::failure::{Exit, Failure};
use crate::cli::kinds::Kinds;
use crate::cli::session::{Item, Session, Target};
use crate::cli::table::clean;
use crate::cli::why::{Branch, EVENTS, Explanation, Kind, Objects, Root, Subject, explain};
use crate::cli::wire::Form;

/// How many others a line names.
const NAMED: usize = 8;
/// How long a cause is looked for where another failure is to be told.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) async fn run(session: &mut Session<'_>, args: &Why) -> Result<(), Failure> {
    let mut subjects = Vec::new();
    let namespace = session.namespace();
    for Target { resource, name } in session.targets(&args.targets).await? {
        let Some(name) = name else {
            let failure = Failure::usage(format!("no {} is named", resource.singular));
            return Err(failure.try_this("write KIND/NAME"));
        };
        let Some(kind) = Kind::of(&resource.kind) else {
            let failure = Failure::usage(format!("why follows no {}", resource.plural));
            return Err(failure.try_this(format!("wharfline describe {}", resource.label(&name))));
        };
        let of = if resource.namespaced { namespace.as_str() } else { "" };
        subjects.push(Subject::namespaced(kind, of, &name));
    }
    let kinds = session.kinds().await?;
    let objects = gather(session, &kinds).await?;
    let mut before = false;
    for subject in subjects {
        match explain(&objects, &subject) {
            Some(explanation) => {
                let page = render(&explanation, &namespace, Timestamp::now());
                let apart = if before { "\n" } else { "" };
                write!(session.terminal.out, "{apart}{page}")?;
                before = true;
            }
            None => {
                let what = format!("{} does not exist", subject.words(""));
                session.report(&Failure::new(Exit::NotFound, what));
            }
        }
    }
    Ok(())
}

/// The cause that must change first, in one line, of an object that does not go; none where it is not known.
pub(crate) async fn cause(session: &mut Session<'_>, item: &Item) -> Option<String> {
    let kind = Kind::of(&item.resource.kind)?;
    let of = if item.resource.namespaced { item.namespace.as_str() } else { "" };
    let gathering = async {
        let kinds = session.kinds().await?;
        gather(session, &kinds).await
    };
    let objects = tokio::time::timeout(PATIENCE, gathering).await.ok()?.ok()?;
    let explanation = explain(&objects, &Subject::namespaced(kind, of, &item.name))?;
    in_one_line(&explanation, &session.default_namespace)
}

fn in_one_line(explanation: &Explanation, namespace: &str) -> Option<String> {
    let root = explanation.root.as_ref()?;
    let said = clean(&root.text);
    if root.subject != explanation.tree.subject {
        return Some(format!("{}: {said}", root.subject.words(namespace)));
    }
    // That it goes is known to whoever waits for that.
    (said != "being deleted").then_some(said)
}

async fn gather(session: &mut Session<'_>, kinds: &Kinds) -> Result<Objects, Failure> {
    let plurals = [
        "plugins",
        "plugininstances",
        "volumeclasses",
        "volumeclaims",
        "volumes",
        "snapshots",
        "snapshotschedules",
        "volumeattachments",
        "allocations",
        "nodes",
        "events",
    ];
    let wire = &session.wire;
    let lists = plurals.map(|plural| async move {
        let path = kinds.find(plural)?.collection(None);
        let wanted = [("fieldSelector", EVENTS)];
        let parameters = if plural == "events" { wanted.as_slice() } else { &[] };
        wire.list(&path, parameters, Form::Object).await
    });
    let mut lists = try_join_all(lists).await?.into_iter();
    let mut unread = 0;
    let mut next = || lists.next().unwrap_or_default();
    let objects = Objects {
        plugins: read(next(), &mut unread),
        instances: read(next(), &mut unread),
        classes: read(next(), &mut unread),
        claims: read(next(), &mut unread),
        volumes: read(next(), &mut unread),
        snapshots: read(next(), &mut unread),
        schedules: read(next(), &mut unread),
        attachments: read(next(), &mut unread),
        allocations: read(next(), &mut unread),
        nodes: read(next(), &mut unread),
        events: read(next(), &mut unread),
    };
    if unread > 0 {
        session.note(format_args!("warning: {unread} objects could not be read and are left out"));
    }
    Ok(objects)
}

fn read<K: DeserializeOwned>(mut list: Value, unread: &mut usize) -> Vec<K> {
    let Value::Array(items) = list["items"].take() else { return Vec::new() };
    let all = items.len();
    let objects: Vec<K> = items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect();
    *unread += all - objects.len();
    objects
}

/// The page about one explanation.
pub(crate) fn render(explanation: &Explanation, namespace: &str, now: Timestamp) -> String {
    let mut page = String::new();
    let tree = &explanation.tree;
    let subject = tree.subject.words(namespace);
    let Some(root) = &explanation.root else {
        return match tree.told_unwell() {
            Some(told) => format!("{subject} waits for nothing, but {}\n", clean(told)),
            None => format!("{subject} is fine: {}\n", clean(&tree.text)),
        };
    };
    let cause = root.subject.words(namespace);
    let said = clean(&root.text);
    // Writing into a String cannot fail.
    if root.subject == tree.subject {
        writeln!(page, "{cause}: {said}\n").ok();
    } else {
        writeln!(page, "{subject} waits. The cause is {cause}: {said}\n").ok();
    }
    let width = widest(tree, namespace, 0) + 3;
    draw(&mut page, tree, (namespace, width), (0, root));
    page.push('\n');
    facts(&mut page, root, now);
    others(&mut page, &explanation.also, namespace);
    page
}

fn widest(branch: &Branch, namespace: &str, depth: usize) -> usize {
    let own = 2 * depth + branch.subject.words(namespace).chars().count();
    branch.because.iter().map(|b| widest(b, namespace, depth + 1)).chain([own]).max().unwrap_or(own)
}

fn draw(
    page: &mut String,
    branch: &Branch,
    (namespace, width): (&str, usize),
    (depth, cause): (usize, &Root),
) {
    let name = format!("{:indent$}{}", "", branch.subject.words(namespace), indent = 2 * depth);
    // One may be told of twice: as what waits for others, and as what others wait for.
    let is_cause = (&branch.subject, &branch.text) == (&cause.subject, &cause.text);
    let mark = if is_cause { "  <- cause" } else { "" };
    writeln!(page, "{name:width$}{}{mark}", clean(&branch.text)).ok();
    for below in &branch.because {
        draw(page, below, (namespace, width), (depth + 1, cause));
    }
}

fn facts(page: &mut String, root: &Root, now: Timestamp) {
    if let Some(call) = &root.call {
        let when = since(Some(call.start_time.0), now);
        let took = millis(call.duration_millis);
        let (method, code, attempt) = (&call.method, &call.code, call.attempt);
        let message = clean(&call.message);
        let told = if message.is_empty() { String::new() } else { format!(": {message}") };
        writeln!(page, "Last call:    {method} {code}, try {attempt}, {when} ago, took {took}{told}").ok();
    }
    if let Some(next) = root.next {
        let left = next.0.duration_since(now).as_secs();
        let when = if left > 0 { format!("in {left}s") } else { "now".to_owned() };
        writeln!(page, "Next attempt: {when}").ok();
    }
    writeln!(page, "Try:          {}", root.advice).ok();
}

fn others(page: &mut String, also: &[Subject], namespace: &str) {
    if also.is_empty() {
        return;
    }
    let named: Vec<String> = also.iter().take(NAMED).map(|s| s.words(namespace)).collect();
    let more = also.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    writeln!(page, "Blocked too:  {}{rest}", named.join(", ")).ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::why::State;
    use serde_json::json;

    fn branch(kind: Kind, name: &str, text: &str, because: Vec<Branch>) -> Branch {
        let state = if text == "ready" { State::Fine } else { State::Blocked };
        let subject = Subject::namespaced(kind, if kind == Kind::Claim { "shop" } else { "" }, name);
        Branch {
            subject,
            state,
            reason: String::new(),
            text: text.to_owned(),
            call: None,
            next: None,
            hint: String::new(),
            unwell: String::new(),
            because,
        }
    }

    #[test]
    fn a_page_leads_to_the_cause() {
        let node = branch(Kind::Node, "node-c", "ready", Vec::new());
        let attachment = branch(Kind::Attachment, "att-1", "not staged: no shared mount", vec![node]);
        let tree = branch(Kind::Claim, "cache", "bound to vol-1", vec![attachment]);
        let call = json!({
            "method": "NodeStageVolume", "code": "FAILED_PRECONDITION", "message": "not\u{1b} shared",
            "startTime": "2026-01-01T00:00:00Z", "durationMillis": 3, "attempt": 4,
        });
        let root = Root {
            subject: Subject::global(Kind::Attachment, "att-1"),
            reason: "StageFailed".to_owned(),
            text: "not staged: no shared mount".to_owned(),
            call: serde_json::from_value(call).unwrap(),
            next: serde_json::from_value(json!("2026-01-01T00:00:20Z")).unwrap(),
            advice: "wait".to_owned(),
        };
        let also = (0..10).map(|n| Subject::namespaced(Kind::Claim, "ci", &format!("c{n}"))).collect();
        let explanation = Explanation { tree, root: Some(root), also };
        let page = render(&explanation, "shop", "2026-01-01T00:00:12Z".parse().unwrap());
        assert_eq!(
            page,
            "\
volumeclaim/cache waits. The cause is volumeattachment/att-1: not staged: no shared mount

volumeclaim/cache          bound to vol-1
  volumeattachment/att-1   not staged: no shared mount  <- cause
    node/node-c            ready

Last call:    NodeStageVolume FAILED_PRECONDITION, try 4, 12s ago, took 3ms: not\u{fffd} shared
Next attempt: in 8s
Try:          wait
Blocked too:  volumeclaim/c0 -n ci, volumeclaim/c1 -n ci, volumeclaim/c2 -n ci, volumeclaim/c3 -n ci, \
volumeclaim/c4 -n ci, volumeclaim/c5 -n ci, volumeclaim/c6 -n ci, volumeclaim/c7 -n ci and 2 more
"
        );
        let fine =
            Explanation { tree: branch(Kind::Node, "a", "ready", Vec::new()), root: None, also: Vec::new() };
        assert_eq!(render(&fine, "shop", Timestamp::UNIX_EPOCH), "node/a is fine: ready\n");
    }
}
