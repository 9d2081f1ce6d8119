//! `volume`: what backends have, beside what is known here.
//!
//! A plugin's instance is asked by a field of its object, page by page; its node's daemon answers there. The comparison is in
//! [`crate::cli::audit`].
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

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
        let all = if unasked.is_empty() { "all of them fit" } else { "what was listed fits" };
        session.note(format_args!("{summary}; {all}"));
        return Ok(());
    }
    let what = format!(
        "{summary}; {} not fit",
        if found.len() == 1 { "1 thing does".to_owned() } else { format!("{} things do", found.len()) }
    );
    let mut failure = Failure::failed(what);
    if let Some(orphan) = found.iter().find(|found| found.what == What::Unknown) {
        failure = failure.try_this(format!(
            "to use one that is unknown: wharfline volume adopt --plugin {} {}; or delete it at the backend",
            orphan.of,
            as_word(&orphan.subject)
        ));
    }
    Err(failure)
}

/// As a shell takes it for one word, and this program for no flag.
fn as_word(handle: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/:@+=,-".contains(c);
    if !handle.is_empty() && !handle.starts_with('-') && handle.chars().all(plain) {
        return handle.to_owned();
    }
    let quoted = handle.replace('\'', r"'\''");
    if handle.starts_with('-') { format!("-- '{quoted}'") } else { format!("'{quoted}'") }
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
    let nodes: Vec<Value> = all(&session.wire, kinds, "nodes").await?;
    let lives: BTreeSet<String> = nodes.iter().filter(|node| is_ready(node)).map(name_in).collect();
    let named = |plugin: &Plugin| plugin.metadata.name.clone().unwrap_or_default();
    if let Some(missing) = names.iter().find(|name| !plugins.iter().any(|plugin| named(plugin) == **name)) {
        return Err(Failure::new(Exit::NotFound, format!("plugin/{missing} does not exist")));
    }
    let wanted = plugins.iter().filter(|plugin| names.is_empty() || names.contains(&named(plugin)));
    Ok(wanted
        .flat_map(|plugin| to_ask(&named(plugin), plugin.spec.controller_scope, (&instances, &lives)))
        .collect())
}

fn name_in(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// Whether a Node is heard of: what its daemon said last of an instance stands, whatever has become of both.
fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == READY && condition["status"] == "True")
}

fn to_ask(
    plugin: &str,
    scope: ControllerScope,
    (instances, lives): (&[PluginInstance], &BTreeSet<String>),
) -> Vec<Asked> {
    let able = |instance: &&PluginInstance| {
        let status = instance.status.clone().unwrap_or_default();
        instance.spec.plugin == plugin
            && instance.spec.role.controller()
            && lives.contains(&instance.spec.node_name)
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
        let why = "no instance of it that is ready, on a node that is, lists volumes (LIST_VOLUMES)";
        return Err(Failure::failed(what).because(why));
    }
    let item = Item {
        resource: kinds.find("plugininstances")?.clone(),
        namespace: String::new(),
        name: asked.instance.clone(),
        object: Value::Null,
    };
    let mut random = [0; 8];
    let generator = ring::rand::SystemRandom::new();
    generator.fill(&mut random).map_err(|_| Failure::failed("the system gave no random bytes"))?;
    let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut request = AuditRequest { id, starting_token: String::new() };
    let mut volumes = Vec::new();
    let outcome = loop {
        match deadline.limit(page(wire, &item, &request)).await {
            None => {
                let what = format!("plugin/{plugin} did not answer in time");
                let advice = format!("wharfline describe plugininstance/{}", asked.instance);
                break Err(Failure::new(Exit::TimedOut, what).try_this(advice));
            }
            Some(Err(failure)) => break Err(failure),
            Some(Ok(answer)) if !answer.message.is_empty() => {
                break Err(Failure::failed(format!("plugin/{plugin} was not listed")).because(answer.message));
            }
            Some(Ok(answer)) => {
                volumes.extend(answer.volumes);
                if answer.next_token.is_empty() {
                    break Ok(volumes);
                }
                request.starting_token = answer.next_token;
            }
        }
    };
    // Nobody reads the answer any more, and the store need not keep it. Another's question stays: then this fails, rightly.
    let taken_back = json!([
        { "op": "test", "path": "/spec/audit/id", "value": request.id },
        { "op": "remove", "path": "/spec/audit" },
    ]);
    let body = Some((content::JSON_PATCH, &taken_back));
    let _left_to_others = wire.send(Method::PATCH, &item.path(), body, Form::Object).await;
    outcome
}

/// How long another one's question is waited for: who asked may have been killed.
const OTHERS: Duration = Duration::from_secs(10);

/// One page. Asked when nobody else asks, and again when somebody did over it.
async fn page(wire: &Wire, item: &Item, request: &AuditRequest) -> Result<Answer, Failure> {
    let gone = || Failure::failed(format!("plugininstance/{} is gone", item.name));
    let others = |seen: &Value| {
        let id = &seen["spec"]["audit"]["id"];
        !id.is_null() && *id != request.id.as_str()
    };
    loop {
        let free = follow(wire, item, |seen| match seen {
            None => Some(false),
            Some(seen) => (!others(seen)).then_some(true),
        });
        match tokio::time::timeout(OTHERS, free).await {
            Ok(Ok(false)) => return Err(gone()),
            Ok(Err(failure)) => return Err(failure),
            Ok(Ok(true)) | Err(_) => {}
        }
        // What a merge patch leaves out stays as it was: the token is always said.
        let question = json!({ "id": request.id, "startingToken": request.starting_token });
        let body = json!({ "spec": { "audit": question } });
        wire.send(Method::PATCH, &item.path(), Some((content::MERGE_PATCH, &body)), Form::Object).await?;
        let answered = follow(wire, item, |seen| match seen {
            None => Some(Err(gone())),
            Some(seen) => match answer_to(seen, request) {
                Some(answer) => Some(Ok(Some(answer))),
                None => (seen["spec"]["audit"]["id"] != request.id.as_str()).then_some(Ok(None)),
            },
        });
        if let Some(answer) = answered.await?? {
            return Ok(answer);
        }
    }
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
    let mode = if args.block { "Block" } else { "Filesystem" };
    let name = match source_of(session, &kinds, args).await? {
        Source::Adopted(name) if args.claim.is_some() => name,
        Source::Adopted(name) => {
            let what = format!("\"{}\" of plugin/{} is volume/{name} already", args.handle, args.plugin);
            return Err(Failure::new(Exit::Conflict, what));
        }
        Source::New(source) => {
            let name = args.name.clone().unwrap_or_else(|| name_of(&args.handle));
            let object = json!({ "apiVersion": API_VERSION, "kind": "Volume", "metadata": { "name": name },
                "spec": { "plugin": args.plugin, "source": { "existing": source }, "accessModes": args.modes,
                    "volumeMode": mode, "reclaimPolicy": "Retain" } });
            make(session, &kinds, "volumes", &object, args.dry_run).await?;
            name
        }
    };
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

/// What is adopted.
enum Source {
    /// What the plugin says of it.
    New(ExistingSource),
    /// It was adopted before, as the Volume of this name, and nobody has claimed it.
    Adopted(String),
}

/// What the plugin says of the handle. A conflict if it is somebody's, or may be.
async fn source_of(session: &Session<'_>, kinds: &Kinds, args: &Adopt) -> Result<Source, Failure> {
    let (node, volume) = lookup(session, kinds, args).await?;
    let known = known(session, kinds).await?;
    let adopted = known.volumes.iter().find(|volume| {
        let source = volume.spec.source.existing.as_ref();
        volume.spec.plugin == args.plugin && source.is_some_and(|source| source.handle == args.handle)
    });
    if let Some(adopted) = adopted.filter(|volume| volume.spec.claim_ref.is_none()) {
        return Ok(Source::Adopted(adopted.metadata.name.clone().unwrap_or_default()));
    }
    let list = Listed { plugin: args.plugin.clone(), node: node.clone(), volumes: vec![volume.clone()] };
    let told = findings(&[list], &known, &known);
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
    let BackendVolume { handle, context, topology, .. } = volume;
    Ok(Source::New(ExistingSource { handle, context, topology, node_name: node }))
}

/// The volume of the handle, as the plugin lists it, and the only node that has it.
async fn lookup(
    session: &Session<'_>,
    kinds: &Kinds,
    args: &Adopt,
) -> Result<(String, BackendVolume), Failure> {
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
    if let Some(found) = found {
        return Ok(found);
    }
    if let Some(failure) = failure {
        let by_hand = "a Volume with spec.source.existing can be applied without the plugin's list";
        return Err(failure.try_this(by_hand));
    }
    let what = format!("plugin/{} lists no volume \"{}\"", args.plugin, args.handle);
    let advice = format!("wharfline volume audit {}", args.plugin);
    Err(Failure::new(Exit::NotFound, what).try_this(advice))
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
    fn a_handle_is_one_word_for_a_shell() {
        for (handle, word) in [
            ("vol-1", "vol-1"),
            ("pool/a:b", "pool/a:b"),
            ("a b", "'a b'"),
            ("$(x)", "'$(x)'"),
            ("it's", r"'it'\''s'"),
            ("-x", "-- '-x'"),
            ("", "''"),
        ] {
            assert_eq!(as_word(handle), word);
        }
    }

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
            instance("i-000", "0", "True", "Controller", LISTS),
        ];
        let lives = ["a", "b"].map(str::to_owned).into();
        let names = |scope| -> Vec<(String, String)> {
            to_ask("p", scope, (&all, &lives)).into_iter().map(|one| (one.instance, one.only)).collect()
        };
        let text = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(names(ControllerScope::Cluster), [text("i-2", "")]);
        assert_eq!(names(ControllerScope::Node), [text("i-2", "a"), text("i-4", "b")]);
        assert_eq!(to_ask("q", ControllerScope::Node, (&all, &lives))[0].instance, "");
    }
}
