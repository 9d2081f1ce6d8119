//! `volume`: what backends have, beside what is known here.
//!
//! A plugin's instance is asked by a field of its object, page by page; its node's daemon answers there. The comparison is in
//! [`crate::cli::audit`].
use std::time::Instant;

use http::Method;
use ring::rand::SecureRandom as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::wait::Deadline;
use crate::api::audit::{Audit as Answer, AuditRequest, BackendVolume};
use crate::api::meta::{READY, is_true};
use crate::api::plugin::ControllerScope;
use crate::api::validate::is_subdomain;
use crate::api::volume::ExistingSource;
use crate::api::{API_VERSION, Plugin, PluginInstance};
use crate::cli::args::{Adopt, Audit, DryRun, Volume, VolumeCommand};
use crate::cli::audit::{Finding, Known, Listed, What, findings};
use crate::cli::failure::{Exit, Failure};
use crate::cli::kinds::Kinds;
use crate::cli::session::{Item, Session, follow};
use crate::cli::table;
use crate::cli::wire::{Form, Wire, content};

/// What an instance that can be asked reports.
const LISTS: &str = "controller/LIST_VOLUMES";

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
    let asked = chosen(session, &kinds, &args.plugins).await?;
    if asked.is_empty() {
        session.note("No plugins; nothing can be asked.");
    }
    let before = known(session, &kinds).await?;
    let deadline = Deadline::new(Some(Instant::now() + args.timeout));
    let (mut listed, mut unasked) = (Vec::new(), Vec::new());
    let lists = asked.iter().map(|one| list(&session.wire, &kinds, one, &deadline));
    for (one, outcome) in asked.iter().zip(futures::future::join_all(lists).await) {
        match outcome {
            Ok(volumes) => {
                listed.push(Listed { plugin: one.plugin.clone(), node: one.only.clone(), volumes });
            }
            Err(failure) if failure.exit == Exit::Unreachable => return Err(failure),
            Err(failure) => unasked.push(failure),
        }
    }
    let after = known(session, &kinds).await?;
    let found = findings(&listed, &before, &after);
    if as_json {
        let text =
            serde_json::to_string_pretty(&found).map_err(|error| Failure::failed(error.to_string()))?;
        session.say(text)?;
    } else {
        print(session, &found)?;
    }
    for failure in &unasked {
        session.report(failure);
    }
    if asked.is_empty() && found.is_empty() {
        return Ok(());
    }
    let count: usize = listed.iter().map(|list| list.volumes.len()).sum();
    let summary = format!("{} listed by {}", plural(count, "volume"), plural(listed.len(), "instance"));
    if found.is_empty() {
        session.note(format_args!("{summary}; all of them fit"));
        return Ok(());
    }
    let what = format!(
        "{summary}; {} not fit",
        if found.len() == 1 { "1 thing does".to_owned() } else { format!("{} things do", found.len()) }
    );
    let mut failure = Failure::failed(what);
    if let Some(orphan) = found.iter().find(|found| found.what == What::Unknown) {
        failure = failure.try_this(format!(
            "to use one that is unknown: wharfline volume adopt {} --plugin {}; or delete it at the backend",
            orphan.subject, orphan.of
        ));
    }
    Err(failure)
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
            What::NotListed => "not listed",
            What::Attached => "attached",
            What::NotAttached => "not attached",
            What::Unwell => "unwell",
            What::Mount => "mount",
        };
        let cells = [what, &found.of, &found.subject, &found.details];
        cells.map(table::clean).to_vec()
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    table::print(session.terminal.out, &["WHAT", "PLUGIN OR NODE", "HANDLE OR PATH", "DETAILS"], &rows)?;
    Ok(())
}

/// An instance to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    plugin: String,
    /// The PluginInstance; empty where none can be asked.
    instance: String,
    /// The only node whose volumes it knows; empty where it knows all.
    only: String,
}

/// Which instances are asked: one for all, or one on each node where a node knows its own volumes alone.
async fn chosen(session: &Session<'_>, kinds: &Kinds, names: &[String]) -> Result<Vec<Asked>, Failure> {
    let plugins: Vec<Plugin> = all(&session.wire, kinds, "plugins").await?;
    let instances: Vec<PluginInstance> = all(&session.wire, kinds, "plugininstances").await?;
    let named = |plugin: &Plugin| plugin.metadata.name.clone().unwrap_or_default();
    if let Some(missing) = names.iter().find(|name| !plugins.iter().any(|plugin| named(plugin) == **name)) {
        return Err(Failure::new(Exit::NotFound, format!("plugin/{missing} does not exist")));
    }
    let wanted = plugins.iter().filter(|plugin| names.is_empty() || names.contains(&named(plugin)));
    Ok(wanted.flat_map(|plugin| to_ask(&named(plugin), plugin.spec.controller_scope, &instances)).collect())
}

fn to_ask(plugin: &str, scope: ControllerScope, instances: &[PluginInstance]) -> Vec<Asked> {
    let able = |instance: &&PluginInstance| {
        let status = instance.status.clone().unwrap_or_default();
        instance.spec.plugin == plugin
            && instance.spec.role.controller()
            && is_true(&status.conditions, READY)
            && status.capabilities.iter().any(|word| word == LISTS)
    };
    let mut able: Vec<_> = instances.iter().filter(able).collect();
    able.sort_by_key(|instance| (instance.spec.node_name.clone(), instance.metadata.name.clone()));
    if scope == ControllerScope::Node {
        able.dedup_by_key(|instance| instance.spec.node_name.clone());
    } else {
        able.truncate(1);
    }
    let asked = |instance: &PluginInstance| Asked {
        plugin: plugin.to_owned(),
        instance: instance.metadata.name.clone().unwrap_or_default(),
        only: if scope == ControllerScope::Node { instance.spec.node_name.clone() } else { String::new() },
    };
    if able.is_empty() {
        return vec![Asked { plugin: plugin.to_owned(), instance: String::new(), only: String::new() }];
    }
    able.into_iter().map(asked).collect()
}

/// All that one instance lists, page by page. What it is asked is taken back in the end.
async fn list(
    wire: &Wire,
    kinds: &Kinds,
    asked: &Asked,
    deadline: &Deadline,
) -> Result<Vec<BackendVolume>, Failure> {
    let plugin = &asked.plugin;
    if asked.instance.is_empty() {
        let what = format!("plugin/{plugin} was not asked");
        let why = "no ready instance of it lists volumes (LIST_VOLUMES)";
        return Err(Failure::failed(what).because(why));
    }
    let resource = kinds.find("plugininstances")?;
    let item = Item {
        resource: resource.clone(),
        namespace: String::new(),
        name: asked.instance.clone(),
        object: Value::Null,
    };
    let mut random = [0; 8];

    let generator = ring::rand::SystemRandom::new();
    generator.fill(&mut random).map_err(|_| Failure::failed("the system gave no random bytes"))?;
    let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let ask = async |question: Value| {
        let body = json!({ "spec": { "audit": question } });
        wire.send(Method::PATCH, &item.path(), Some((content::MERGE_PATCH, &body)), Form::Object).await
    };
    let mut request = AuditRequest { id, starting_token: String::new() };
    let mut volumes = Vec::new();
    let outcome = loop {
        // What a merge patch leaves out stays as it was: the token is always said.
        let question = json!({ "id": request.id, "startingToken": request.starting_token });
        if let Err(failure) = ask(question).await {
            break Err(failure);
        }
        let answer = follow(wire, &item, |seen| match seen {
            None => Some(None),
            Some(seen) => answer_to(seen, &request).map(Some),
        });
        match deadline.limit(answer).await {
            None => {
                let what = format!("plugin/{plugin} did not answer in time");
                let advice = format!("wharfline describe plugininstance/{}", asked.instance);
                break Err(Failure::new(Exit::TimedOut, what).try_this(advice));
            }
            Some(Err(failure)) => break Err(failure),
            Some(Ok(None)) => {
                break Err(Failure::failed(format!("plugininstance/{} is gone", asked.instance)));
            }
            Some(Ok(Some(answer))) if !answer.message.is_empty() => {
                break Err(Failure::failed(format!("plugin/{plugin} was not listed")).because(answer.message));
            }
            Some(Ok(Some(answer))) => {
                volumes.extend(answer.volumes);
                if answer.next_token.is_empty() {
                    break Ok(volumes);
                }
                request.starting_token = answer.next_token;
            }
        }
    };
    // Nobody reads the answer any more, and the store need not keep it.
    let taken_back = ask(Value::Null).await;
    let volumes = outcome?;
    taken_back.map(|_| volumes)
}

/// The answer to this very question, if it stands there.
fn answer_to(instance: &Value, request: &AuditRequest) -> Option<Answer> {
    let answer: Answer = serde_json::from_value(instance["status"]["audit"].clone()).ok()?;
    answer.answers(request).then_some(answer)
}

async fn all<T: DeserializeOwned>(wire: &Wire, kinds: &Kinds, plural: &str) -> Result<Vec<T>, Failure> {
    let resource = kinds.find(plural)?;
    let mut list = wire.list(&resource.collection(None), &[], Form::Object).await?;
    let items = match list["items"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    let unread = |error: serde_json::Error| {
        Failure::failed(format!("{plural} of the server cannot be read")).because(error.to_string())
    };
    items.into_iter().map(|item| serde_json::from_value(item).map_err(unread)).collect()
}

async fn known(session: &Session<'_>, kinds: &Kinds) -> Result<Known, Failure> {
    let wire = &session.wire;
    Ok(Known {
        volumes: all(wire, kinds, "volumes").await?,
        attachments: all(wire, kinds, "volumeattachments").await?,
        agents: all(wire, kinds, "nodeagents").await?,
    })
}

async fn adopt(session: &mut Session<'_>, args: &Adopt) -> Result<(), Failure> {
    let kinds = session.kinds().await?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name_of(&args.handle),
    };
    let source = source_of(session, &kinds, args).await?;
    let mode = if args.block { "Block" } else { "Filesystem" };
    let object = json!({ "apiVersion": API_VERSION, "kind": "Volume", "metadata": { "name": name },
        "spec": { "plugin": args.plugin, "source": { "existing": source }, "accessModes": args.modes,
            "volumeMode": mode, "reclaimPolicy": "Retain" } });
    make(session, &kinds, "volumes", &object, args.dry_run).await?;
    let Some(claim) = &args.claim else {
        if args.dry_run == DryRun::None {
            session.note(format_args!("a claim takes it with `volumeName: {name}` and volumeMode {mode}"));
        }
        return Ok(());
    };
    let namespace = session.namespace();
    let object = json!({ "apiVersion": API_VERSION, "kind": "VolumeClaim",
        "metadata": { "name": claim, "namespace": namespace },
        "spec": { "volumeName": name, "accessModes": args.modes, "volumeMode": mode } });
    make(session, &kinds, "volumeclaims", &object, args.dry_run).await
}

/// What the plugin says of the handle. A conflict if a Volume has it already.
async fn source_of(session: &Session<'_>, kinds: &Kinds, args: &Adopt) -> Result<ExistingSource, Failure> {
    let deadline = Deadline::new(Some(Instant::now() + args.timeout));
    let asked = chosen(session, kinds, std::slice::from_ref(&args.plugin)).await?;
    let lists = asked.iter().map(|one| list(&session.wire, kinds, one, &deadline));
    let (mut found, mut failure) = (None, None);
    for (one, outcome) in asked.iter().zip(futures::future::join_all(lists).await) {
        match outcome {
            Ok(volumes) => {
                let it = volumes.into_iter().find(|volume| volume.handle == args.handle);
                found = found.or(it.map(|volume| (one.only.clone(), volume)));
            }
            Err(error) => failure = Some(error),
        }
    }
    let Some((node, volume)) = found else {
        let what = format!("plugin/{} lists no volume \"{}\"", args.plugin, args.handle);
        let unlisted = Failure::new(Exit::NotFound, what);
        let advice = format!("wharfline volume audit {}", args.plugin);
        let by_hand = "a Volume with spec.source.existing can be applied without the plugin's list";
        return Err(match failure {
            Some(failure) => failure.try_this(by_hand),
            None => unlisted.try_this(advice),
        });
    };
    let known = known(session, kinds).await?;
    let list = Listed { plugin: args.plugin.clone(), node: node.clone(), volumes: vec![volume.clone()] };
    if !findings(&[list], &known, &known).iter().any(|found| found.what == What::Unknown) {
        let what = format!("\"{}\" of plugin/{} has a Volume already", args.handle, args.plugin);
        return Err(Failure::new(Exit::Conflict, what).try_this("wharfline get volumes -o wide"));
    }
    let BackendVolume { handle, context, topology, .. } = volume;
    Ok(ExistingSource { handle, context, topology, node_name: node })
}

async fn make(
    session: &mut Session<'_>,
    kinds: &Kinds,
    plural: &str,
    object: &Value,
    dry_run: DryRun,
) -> Result<(), Failure> {
    let resource = kinds.find(plural)?;
    let label = resource.label(object["metadata"]["name"].as_str().unwrap_or_default());
    let tried = match dry_run {
        DryRun::None => "",
        DryRun::Client => " (only tried)",
        DryRun::Server => " (only tried, by the server)",
    };
    if dry_run != DryRun::Client {
        let query = if dry_run == DryRun::Server { "?dryRun=All" } else { "" };
        let path = format!("{}{query}", resource.collection(object["metadata"]["namespace"].as_str()));
        session.wire.send(Method::POST, &path, Some((content::JSON, object)), Form::Object).await?;
    }
    session.say(format_args!("{label} created{tried}"))
}

/// A name for the Volume of a handle: the handle where it can be one, else what is left of it, and something that tells it from others.
fn name_of(handle: &str) -> String {
    const LONGEST: usize = 200;
    if is_subdomain(handle, LONGEST) {
        return handle.to_owned();
    }
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = handle.chars().map(plain).take(LONGEST).collect();
    let hash = ring::digest::digest(&ring::digest::SHA256, handle.as_bytes());
    let hash: String = hash.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("adopted-{}-{hash}", text.trim_matches('-')).replace("--", "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_and_differ_where_handles_do() {
        assert_eq!(name_of("vol-1"), "vol-1");
        let (one, other) = (name_of("pool/A"), name_of("pool/a"));
        assert_ne!(one, other);
        for handle in ["pool/A", "///", "ü", &"x".repeat(500), "a--b", ""] {
            assert!(is_subdomain(&name_of(handle), 253), "{handle}: {}", name_of(handle));
        }
    }

    #[test]
    fn one_instance_is_asked_for_all_or_one_on_each_node() {
        let instance = |name: &str, node: &str, ready: &str, role: &str, can: &str| -> PluginInstance {
            serde_json::from_value(json!({ "apiVersion": API_VERSION, "kind": "PluginInstance",
                "metadata": { "name": name },
                "spec": { "plugin": "p", "role": role, "nodeName": node, "task": "t",
                    "allocation": { "namespace": "n", "name": "a", "uid": "u" } },
                "status": { "capabilities": [can], "conditions": [{ "type": "Ready", "status": ready, "reason": "R",
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] } }))
            .unwrap()
        };
        let all = [
            instance("i-4", "b", "True", "Monolith", LISTS),
            instance("i-3", "a", "True", "Controller", LISTS),
            instance("i-2", "a", "True", "Controller", LISTS),
            instance("i-1", "a", "False", "Controller", LISTS),
            instance("i-0", "a", "True", "Node", LISTS),
            instance("i-00", "a", "True", "Controller", "controller/GET_CAPACITY"),
        ];
        let names = |scope| -> Vec<(String, String)> {
            to_ask("p", scope, &all).into_iter().map(|one| (one.instance, one.only)).collect()
        };
        let text = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(names(ControllerScope::Cluster), [text("i-2", "")]);
        assert_eq!(names(ControllerScope::Node), [text("i-2", "a"), text("i-4", "b")]);
        assert_eq!(to_ask("q", ControllerScope::Node, &all)[0].instance, "");
    }
}
