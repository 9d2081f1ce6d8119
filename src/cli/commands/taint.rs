//! `taint`: sets and removes taints of nodes, by the words of kubectl. That a node is surely off is said with one.
use http::Method;
use serde_json::{Value, json};

use crate::cli::args::{Selection, Taint};
use crate::cli::failure::{Exit, Failure};
use crate::cli::session::{Item, Session};
use crate::cli::wire::{Form, content};

/// What taints do.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// How often a Node that others change meanwhile is read anew.
const TRIES: usize = 5;

/// One change of a Node's taints.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    /// This one is there.
    Set { key: String, value: String, effect: String },
    /// None of this key is there, or none with this effect.
    Remove { key: String, effect: Option<String> },
}

/// `KEY=VALUE:EFFECT`, `KEY:EFFECT`, `KEY:EFFECT-` or `KEY-`.
fn change(word: &str) -> Result<Change, Failure> {
    let bad = |what: &str| {
        let advice = "write KEY=VALUE:EFFECT to set one, KEY:EFFECT- or KEY- to remove it";
        Err(Failure::usage(format!("\"{word}\" {what}")).try_this(advice))
    };
    let known = |effect: &str| EFFECTS.contains(&effect);
    if let Some(rest) = word.strip_suffix('-') {
        let (key, effect) = rest.split_once(':').map_or((rest, None), |(key, effect)| (key, Some(effect)));
        return match effect {
            _ if key.is_empty() => bad("names no key"),
            Some(effect) if !known(effect) => bad(&format!("has no effect of {}", EFFECTS.join(", "))),
            effect => Ok(Change::Remove { key: key.to_owned(), effect: effect.map(str::to_owned) }),
        };
    }
    let Some((pair, effect)) = word.rsplit_once(':') else { return bad("names no effect") };
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    if key.is_empty() {
        return bad("names no key");
    }
    if !known(effect) {
        return bad(&format!("has no effect of {}", EFFECTS.join(", ")));
    }
    Ok(Change::Set { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() })
}

/// The taints as they are to be, or what is there already and would have to be overwritten.
fn changed(there: &[Value], changes: &[Change], overwrite: bool) -> Result<Vec<Value>, String> {
    let mut taints = there.to_vec();
    for change in changes {
        match change {
            Change::Remove { key, effect } => {
                let goes = |taint: &Value| {
                    taint["key"] == key.as_str()
                        && effect.as_ref().is_none_or(|effect| taint["effect"] == effect.as_str())
                };
                taints.retain(|taint| !goes(taint));
            }
            Change::Set { key, value, effect } => {
                let same =
                    |taint: &&mut Value| taint["key"] == key.as_str() && taint["effect"] == effect.as_str();
                let value_of = |taint: &Value| taint["value"].as_str().unwrap_or_default().to_owned();
                match taints.iter_mut().find(same) {
                    Some(taint) if value_of(taint) == *value => {}
                    Some(taint) if !overwrite => {
                        return Err(format!("{key}:{effect} has the value \"{}\" already", value_of(taint)));
                    }
                    Some(taint) => taint["value"] = json!(value),
                    None if value.is_empty() => taints.push(json!({ "key": key, "effect": effect })),
                    None => taints.push(json!({ "key": key, "value": value, "effect": effect })),
                }
            }
        }
    }
    Ok(taints)
}

pub(crate) async fn run(session: &mut Session<'_>, args: &Taint) -> Result<(), Failure> {
    let is_change = |word: &String| word.contains([':', '=']) || word.ends_with('-');
    let split = args.words.iter().position(is_change).unwrap_or(args.words.len());
    let (targets, words) = args.words.split_at(split);
    if words.is_empty() {
        return Err(
            Failure::usage("no taint is given").try_this("write KEY=VALUE:EFFECT, or KEY- to remove it")
        );
    }
    let changes = words.iter().map(|word| change(word)).collect::<Result<Vec<_>, _>>()?;
    for item in session.items_of_words(targets, &Selection::default(), false).await? {
        if item.resource.plural != "nodes" {
            return Err(Failure::usage(format!("{} is no node: only nodes have taints", item.label())));
        }
        let word = taint(session, &item, &changes, args.overwrite).await?;
        session.say(format_args!("{} {word}", item.label()))?;
    }
    Ok(())
}

/// Changes one Node as it is now, whatever others change of it meanwhile. Returns what was done.
async fn taint(
    session: &mut Session<'_>,
    item: &Item,
    changes: &[Change],
    overwrite: bool,
) -> Result<&'static str, Failure> {
    let path = item.path();
    let mut tries = 0;
    loop {
        tries += 1;
        let seen = session.wire.get(&path, Form::Object).await?;
        let there = seen["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let wanted = changed(&there, changes, overwrite).map_err(|what| {
            Failure::failed(format!("{}: {what}", item.label())).try_this("--overwrite changes it")
        })?;
        if wanted == there {
            return Ok("unchanged");
        }
        let done = if wanted.len() < there.len() { "untainted" } else { "tainted" };
        let taints = if wanted.is_empty() { Value::Null } else { json!(wanted) };
        let version = &seen["metadata"]["resourceVersion"];
        let body = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
        let sent = session.wire.send(Method::PATCH, &path, Some((content::MERGE_PATCH, &body)), Form::Object);
        match sent.await {
            Ok(answer) => {
                session.warn_all(&answer);
                return Ok(done);
            }
            Err(failure) if failure.exit == Exit::Conflict && tries < TRIES => {}
            Err(failure) => return Err(failure.about(&item.label())),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::Command;

    #[derive(Parser)]
    struct Arguments {
        #[command(subcommand)]
        command: Command,
    }

    fn set(key: &str, value: &str, effect: &str) -> Change {
        Change::Set { key: key.into(), value: value.into(), effect: effect.into() }
    }

    fn remove(key: &str, effect: Option<&str>) -> Change {
        Change::Remove { key: key.into(), effect: effect.map(str::to_owned) }
    }

    #[test]
    fn the_words_of_kubectl() {
        for (word, wanted) in [
            ("k=v:NoExecute", set("k", "v", "NoExecute")),
            ("example.com/k=a-b:NoSchedule", set("example.com/k", "a-b", "NoSchedule")),
            ("k:PreferNoSchedule", set("k", "", "PreferNoSchedule")),
            ("k-", remove("k", None)),
            ("k:NoExecute-", remove("k", Some("NoExecute"))),
        ] {
            assert_eq!(change(word).unwrap(), wanted, "{word}");
        }
        for word in ["k", "k=v", "=v:NoExecute", ":NoExecute", "k:Never", "k:Never-", "-", ":NoExecute-"] {
            let failure = change(word).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage, "{word}");
        }
    }

    /// The command that is told where a machine is off is one, with its flag in the middle.
    #[test]
    fn what_is_told_of_a_lost_node_is_understood() {
        let told = crate::api::node_agent::fence_command("n1", "boot-1");
        let arguments = Arguments::try_parse_from(told.split(' ')).unwrap();
        let Command::Taint(args) = arguments.command else { panic!("{told}") };
        assert!(args.overwrite);
        assert_eq!(args.words, ["node", "n1", "wharfline.dev/out-of-service=boot-1:NoExecute"]);
    }

    #[test]
    fn one_taint_is_changed_and_the_others_stay() {
        let drain = json!({ "key": "d", "effect": "NoExecute" });
        let off = |value: &str| json!({ "key": "o", "value": value, "effect": "NoExecute" });
        let other = json!({ "key": "o", "value": "x", "effect": "NoSchedule" });
        let there = [drain.clone(), off("1"), other.clone()];
        for (changes, overwrite, wanted) in [
            (vec![set("o", "1", "NoExecute")], false, Ok(there.to_vec())),
            (
                vec![set("o", "2", "NoExecute")],
                false,
                Err("o:NoExecute has the value \"1\" already".to_owned()),
            ),
            (vec![set("o", "2", "NoExecute")], true, Ok(vec![drain.clone(), off("2"), other.clone()])),
            (vec![remove("o", None)], false, Ok(vec![drain.clone()])),
            (vec![remove("o", Some("NoExecute"))], false, Ok(vec![drain.clone(), other.clone()])),
            (vec![remove("nothing", None)], false, Ok(there.to_vec())),
            (
                vec![remove("o", None), set("n", "", "NoSchedule")],
                false,
                Ok(vec![drain.clone(), json!({ "key": "n", "effect": "NoSchedule" })]),
            ),
        ] {
            assert_eq!(changed(&there, &changes, overwrite), wanted, "{changes:?}");
        }
    }
}
