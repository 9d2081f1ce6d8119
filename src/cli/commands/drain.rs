//! `drain`: a node is cordoned and tainted, what runs there leaves, and this waits until it has.
//!
//! Who is evicted is placement's to decide, and goes on without this command; it only says what it sees.
use std::collections::BTreeSet;
use std::time::Instant;

use http::Method;
use serde_json::{Value, json};

use super::wait::{Deadline, blocker};
use crate::api::allocation::DRAIN;
use crate::cli::args::Drain;
use crate::cli::failure::{Exit, Failure};
use crate::cli::session::{Item, Session};
use crate::cli::wire::{Form, content};

pub(crate) async fn run(session: &mut Session<'_>, args: &Drain) -> Result<(), Failure> {
    let kinds = session.kinds().await?;
    let nodes = kinds.find("nodes")?;
    let deadline = Deadline::new(Some(Instant::now() + args.timeout));
    for name in &args.nodes {
        let name = name.split_once('/').map_or(name.as_str(), |(_, name)| name);
        let path = nodes.item("", name);
        let seen = session.wire.get(&path, Form::Object).await?;
        let cordoned = seen["spec"]["unschedulable"] == json!(true);
        if !is_drained(&seen) || !cordoned {
            let mut body = json!({ "spec": { "unschedulable": true } });
            set(&mut body, &seen, true);
            session
                .wire
                .send(Method::PATCH, &path, Some((content::MERGE_PATCH, &body)), Form::Object)
                .await?;
        }
        session.say(format_args!("{} cordoned, and being drained", nodes.label(name)))?;
    }
    for name in &args.nodes {
        let name = name.split_once('/').map_or(name.as_str(), |(_, name)| name);
        let mut seen = BTreeSet::new();
        loop {
            // What was placed here in the moment of the taint leaves, too.
            let mut new = users(session, name).await?;
            new.retain(|item| seen.insert((item.namespace.clone(), item.name.clone())));
            if new.is_empty() {
                break;
            }
            for item in new {
                match leaves(session, &item, name, &deadline).await {
                    Ok(()) => session.say(format_args!("{} has left {name}", item.label()))?,
                    Err(failure) if failure.exit == Exit::Unreachable => return Err(failure),
                    Err(failure) => session.report(&failure),
                }
                session.terminal.out.flush()?;
            }
            // A machine that may be switched off has nothing of their volumes any more.
            for item in attachments(session, name).await? {
                match ends(session, &item, name, &deadline).await {
                    Ok(()) => {}
                    Err(failure) if failure.exit == Exit::Unreachable => return Err(failure),
                    Err(failure) => session.report(&failure),
                }
            }
        }
    }
    Ok(())
}

/// The attachments of a node that go or are of no use any more.
async fn attachments(session: &mut Session<'_>, node: &str) -> Result<Vec<Item>, Failure> {
    let kinds = session.kinds().await?;
    let resource = kinds.find("volumeattachments")?;
    let selector = format!("spec.nodeName={node}");
    let only = [("fieldSelector", selector.as_str())];
    let list = session.wire.list(&resource.collection(None), &only, Form::Object).await?;
    let ours = kinds.find("allocations")?;
    let here = session.wire.list(&ours.collection(None), &[], Form::Object).await?;
    let stay: Vec<&Value> = here["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|allocation| allocation["status"]["nodeName"] == node && !is_over(allocation))
        .map(|allocation| &allocation["metadata"]["uid"])
        .collect();
    let used = |object: &&Value| {
        let mut users = object["spec"]["allocations"].as_array().into_iter().flatten();
        users.any(|user| stay.contains(&user))
    };
    let going = list["items"].as_array().into_iter().flatten().filter(|object| !used(object));
    let item = |object: &Value| Item {
        resource: resource.clone(),
        namespace: String::new(),
        name: object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        object: Value::Null,
    };
    Ok(going.map(item).collect())
}

async fn ends(session: &Session<'_>, item: &Item, node: &str, deadline: &Deadline) -> Result<(), Failure> {
    let followed = session.follow(item, |seen| seen.is_none().then_some(()));
    match deadline.limit(followed).await {
        Some(followed) => followed,
        None => {
            let what = format!("{}: the volume has not left {node} in time", item.label());
            Err(Failure::new(Exit::TimedOut, what).try_this(format!("wharfline why {}", session.words(item))))
        }
    }
}

/// Whether a Node has the taint.
pub(crate) fn is_drained(node: &Value) -> bool {
    node["spec"]["taints"].as_array().into_iter().flatten().any(is_ours)
}

/// Whether it is the taint: with another effect it is somebody else's, and drives nothing away.
fn is_ours(taint: &Value) -> bool {
    taint["key"] == DRAIN && taint["effect"] == "NoExecute"
}

/// Makes a patch of a Node that sets or removes the taint beside its other ones, as they were seen.
pub(crate) fn set(patch: &mut Value, node: &Value, drained: bool) {
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let mut taints: Vec<Value> = taints.filter(|taint| !is_ours(taint)).cloned().collect();
    if drained {
        taints.push(json!({ "key": DRAIN, "effect": "NoExecute" }));
    }
    patch["spec"]["taints"] = if taints.is_empty() { Value::Null } else { json!(taints) };
    patch["metadata"]["resourceVersion"] = node["metadata"]["resourceVersion"].clone();
}

/// What is on a node and has to leave it: no plugins, and nothing that is over and down.
async fn users(session: &mut Session<'_>, node: &str) -> Result<Vec<Item>, Failure> {
    let kinds = session.kinds().await?;
    let resource = kinds.find("allocations")?;
    let selector = format!("status.nodeName={node}");
    let only = [("fieldSelector", selector.as_str())];
    let list = session.wire.list(&resource.collection(None), &only, Form::Object).await?;
    let items = list["items"].as_array().into_iter().flatten().filter(|object| !stays(object));
    let item = |object: &Value| Item {
        resource: resource.clone(),
        namespace: object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(),
        name: object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        object: Value::Null,
    };
    Ok(items.map(item).collect())
}

fn stays(allocation: &Value) -> bool {
    let tasks = allocation["spec"]["tasks"].as_array().into_iter().flatten();
    let mut plugins = tasks.filter(|task| !task["csiPlugin"].is_null());
    plugins.next().is_some() || is_over(allocation)
}

/// Whether it has ended for good, with its volumes down.
fn is_over(allocation: &Value) -> bool {
    let status = &allocation["status"];
    let mut volumes = status["volumes"].as_array().into_iter().flatten();
    matches!(status["phase"].as_str(), Some("Complete" | "Failed"))
        && volumes.all(|volume| volume["published"] == "Down")
}

async fn leaves(session: &Session<'_>, item: &Item, node: &str, deadline: &Deadline) -> Result<(), Failure> {
    let mut last = Value::Null;
    let followed = session.follow(item, |seen| {
        let gone = seen.is_none_or(|seen| seen["status"]["nodeName"] != node || is_over(seen));
        last = seen.cloned().unwrap_or_default();
        gone.then_some(())
    });
    match deadline.limit(followed).await {
        Some(followed) => followed,
        None => {
            let what = format!("{}: has not left {node} in time", item.label());
            let failure = Failure::new(Exit::TimedOut, what).because(blocker(&last));
            Err(failure.try_this(format!("wharfline why {}", session.words(item))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_taint_is_set_and_removed_beside_others() {
        let other = json!({ "key": "a", "effect": "NoSchedule" });
        let node = json!({ "metadata": { "resourceVersion": "7" }, "spec": { "taints": [other] } });
        let mut patch = json!({ "spec": { "unschedulable": true } });
        set(&mut patch, &node, true);
        let ours = json!({ "key": DRAIN, "effect": "NoExecute" });
        let expected = json!({ "metadata": { "resourceVersion": "7" },
            "spec": { "unschedulable": true, "taints": [other, ours] } });
        assert_eq!(patch, expected);
        assert!(is_drained(&patch) && !is_drained(&node));
        set(&mut patch, &expected.clone(), false);
        assert_eq!(patch["spec"]["taints"], json!([other]));
        set(&mut patch, &json!({ "spec": { "taints": [ours] } }), false);
        assert_eq!(patch["spec"]["taints"], Value::Null, "the list goes with its last");
    }

    #[test]
    fn plugins_and_what_is_over_stay() {
        let with = |phase: &str, published: &str, plugin: Value| {
            json!({ "spec": { "tasks": [{ "csiPlugin": plugin }] },
                "status": { "phase": phase, "volumes": [{ "published": published }] } })
        };
        assert!(stays(&with("Running", "Up", json!({ "pluginName": "p" }))));
        assert!(stays(&with("Complete", "Down", Value::Null)));
        for (phase, published) in [("Complete", "Up"), ("Running", "Up"), ("Stopped", "Down")] {
            assert!(!stays(&with(phase, published, Value::Null)), "{phase} {published}");
        }
    }
}
