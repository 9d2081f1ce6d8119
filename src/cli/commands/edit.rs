//! `patch`, `label`, `annotate`, `cordon`, `uncordon`: small changes by one patch each.
use http::Method;
use serde_json::{Map, Value, json};

use crate::cli::args::{DryRun, Nodes, Pairs, Patch, PatchType};
use crate::cli::failure::Failure;
use crate::cli::kinds::query;
use crate::cli::manifest;
use crate::cli::session::Session;
use crate::cli::wire::{Form, content};

use super::apply::tried;
use super::drain;

pub(crate) async fn patch(session: &mut Session<'_>, args: &Patch) -> Result<(), Failure> {
    let (resource, name) = session.one_target(&args.target).await?;
    let text = match (&args.patch, &args.patch_file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => std::fs::read_to_string(file)
            .map_err(|error| Failure::failed(format!("{file} cannot be read")).because(error.to_string()))?,
        (None, None) => return Err(Failure::usage("no patch is given").try_this("write -p '{\"spec\": …}'")),
    };
    let body = manifest::parse_value(&text, "patch").map_err(|error| Failure::usage(error.to_string()))?;
    let content_type = match (args.kind, &body) {
        (PatchType::Merge, Value::Object(_)) => content::MERGE_PATCH,
        (PatchType::Json, Value::Array(_)) => content::JSON_PATCH,
        (PatchType::Merge, _) => {
            return Err(Failure::usage("a merge patch is an object").try_this("--type=json for a list"));
        }
        (PatchType::Json, _) => return Err(Failure::usage("a JSON patch is a list of operations")),
    };
    let label = resource.label(&name);
    let mut path = resource.item(&session.namespace(), &name);
    if let Some(subresource) = &args.subresource {
        path.push('/');
        path.push_str(&crate::cli::kinds::encode(subresource));
    }
    let before = session.wire.get(&path, Form::Object).await?;
    let mut verb = "patched";
    if args.dry_run != DryRun::Client {
        let mut parameters = vec![("fieldManager", "kubectl-patch"), ("fieldValidation", "Strict")];
        parameters.extend((args.dry_run == DryRun::Server).then_some(("dryRun", "All")));
        let path = format!("{path}{}", query(&parameters));
        let answer = session.wire.send(Method::PATCH, &path, Some((content_type, &body)), Form::Object).await;
        let answer = answer.map_err(|failure| failure.about(&label))?;
        session.warn_all(&answer);
        if answer.body == before {
            verb = "patched (no change)";
        }
    }
    session.say(format_args!("{label} {verb}{}", tried(args.dry_run)))
}

/// Which of the two maps of the metadata is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Labels,
    Annotations,
}

impl Which {
    fn field(self) -> &'static str {
        match self {
            Self::Labels => "labels",
            Self::Annotations => "annotations",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Labels => "labeled",
            Self::Annotations => "annotated",
        }
    }
}

pub(crate) async fn pairs(session: &mut Session<'_>, args: &Pairs, which: Which) -> Result<(), Failure> {
    let is_change = |word: &String| word.contains('=') || word.ends_with('-');
    let split = args.words.iter().position(is_change).unwrap_or(args.words.len());
    let (targets, changes) = args.words.split_at(split);
    if changes.is_empty() {
        return Err(
            Failure::usage("no change is given").try_this("write KEY=VALUE to set and KEY- to remove")
        );
    }
    let mut wanted = Map::new();
    for change in changes {
        match (change.split_once('='), change.strip_suffix('-')) {
            (Some((key, value)), _) => wanted.insert(key.to_owned(), json!(value)),
            (None, Some(key)) => wanted.insert(key.to_owned(), Value::Null),
            (None, None) => {
                return Err(Failure::usage(format!("\"{change}\" is neither KEY=VALUE nor KEY-")));
            }
        };
    }
    let field = which.field();
    for item in session.items_of_words(targets, &crate::cli::args::Selection::default(), false).await? {
        let path = item.path();
        let seen = session.wire.get(&path, Form::Object).await?;
        let there = &seen["metadata"][field];
        let taken = wanted.iter().find(|(key, value)| {
            !value.is_null() && !there[key.as_str()].is_null() && there[key.as_str()] != **value
        });
        if let (Some((key, _)), false) = (taken, args.overwrite) {
            let what = format!("{}: {key} has the value {} already", item.label(), there[key.as_str()]);
            return Err(Failure::failed(what).try_this("--overwrite changes it"));
        }
        let differs = wanted.iter().any(|(key, value)| there[key.as_str()] != *value);
        if differs {
            let body = json!({ "metadata": { field: wanted } });
            let sent =
                session.wire.send(Method::PATCH, &path, Some((content::MERGE_PATCH, &body)), Form::Object);
            let answer = sent.await.map_err(|failure| failure.about(&item.label()))?;
            session.warn_all(&answer);
        }
        session.say(format_args!("{} {}", item.label(), if differs { which.done() } else { "unchanged" }))?;
    }
    Ok(())
}

pub(crate) async fn cordon(session: &mut Session<'_>, args: &Nodes, closed: bool) -> Result<(), Failure> {
    let kinds = session.kinds().await?;
    let nodes = kinds.find("nodes")?;
    for name in &args.nodes {
        let name = name.split_once('/').map_or(name.as_str(), |(_, name)| name);
        let path = nodes.item("", name);
        let seen = session.wire.get(&path, Form::Object).await?;
        let word = if closed { "cordoned" } else { "uncordoned" };
        let drained = !closed && drain::is_drained(&seen);
        if (seen["spec"]["unschedulable"] == json!(true)) == closed && !drained {
            session.say(format_args!("{} already {word}", nodes.label(name)))?;
            continue;
        }
        // Absent, not false: the field is a person's and false is its default.
        let mut body = json!({ "spec": { "unschedulable": if closed { json!(true) } else { Value::Null } } });
        if drained {
            drain::set(&mut body, &seen, false);
        }
        session.wire.send(Method::PATCH, &path, Some((content::MERGE_PATCH, &body)), Form::Object).await?;
        session.say(format_args!("{} {word}", nodes.label(name)))?;
    }
    Ok(())
}
