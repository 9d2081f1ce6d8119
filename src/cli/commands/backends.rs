//! What is asked of plugins about their backends: by a field of one of their instances, page by page; the node's daemon answers there.
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Method;
use ring::rand::SecureRandom as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::wait::Deadline;
use crate::api::audit::{Audit as Answer, AuditList, AuditRequest};
use crate::api::meta::{READY, is_true};
use crate::api::plugin::ControllerScope;
use crate::api::validate::is_subdomain;
use crate::api::{Plugin, PluginInstance};
use crate::cli::args::DryRun;
use crate::cli::audit::{Known, Listed};
use crate::cli::failure::{Exit, Failure};
use crate::cli::kinds::Kinds;
use crate::cli::session::{Item, Session, follow};
use crate::cli::wire::{Form, Wire, content};

/// What instances that can be asked report.
fn capability(list: AuditList) -> &'static str {
    match list {
        AuditList::Volumes => "controller/LIST_VOLUMES",
        AuditList::Snapshots => "controller/LIST_SNAPSHOTS",
    }
}

/// What was listed, and what was not.
pub(super) struct Gathered<T> {
    /// One list for each instance.
    pub(super) listed: Vec<Listed<T>>,
    /// The instances that answered.
    pub(super) by: BTreeSet<String>,
    /// How many were to be asked.
    pub(super) asked: usize,
    /// The others.
    pub(super) unasked: Vec<Unasked>,
}

/// Who did not list.
pub(super) struct Unasked {
    pub(super) plugin: String,
    /// The only node that it would have listed of; empty where it would have listed all.
    pub(super) node: String,
    /// Whether there was nobody to ask.
    pub(super) nobody: bool,
    /// Why.
    pub(super) failure: Failure,
}

impl<T> Gathered<T> {
    /// Why one may not have been found that is looked for, on this node if it was named.
    pub(super) fn may_have_it(&mut self, named: Option<&String>) -> Option<Failure> {
        let concerns = |one: &Unasked| named.is_none_or(|node| one.node.is_empty() || one.node == *node);
        let at = self.unasked.iter().position(concerns)?;
        Some(self.unasked.swap_remove(at).failure)
    }
}

/// Asks plugins, all where none is named, for what their backends have.
///
/// # Errors
/// When the server cannot be asked, or does not have one of the plugins.
pub(super) async fn gather<T>(
    session: &Session<'_>,
    kinds: &Kinds,
    (plugins, list): (&[String], AuditList),
    (known, deadline): (&Known, &Deadline),
    entries: impl Fn(Answer) -> Vec<T>,
) -> Result<Gathered<T>, Failure> {
    let asked = chosen(session, kinds, (plugins, list), known).await?;
    let answers = asked.iter().map(|one| answers(&session.wire, kinds, one, list, deadline));
    let mut gathered =
        Gathered { listed: Vec::new(), by: BTreeSet::new(), asked: asked.len(), unasked: Vec::new() };
    for (one, outcome) in asked.iter().zip(futures::future::join_all(answers).await) {
        match outcome {
            Ok(answers) => {
                let (secrets, refused) = with_secrets(&answers);
                let entries = answers.into_iter().flat_map(&entries).collect();
                gathered.by.insert(one.instance.clone());
                let (plugin, node) = (one.plugin.clone(), one.only.clone());
                gathered.listed.push(Listed { plugin, node, entries, secrets, refused });
            }
            Err(failure) if failure.exit == Exit::Unreachable => return Err(failure),
            Err(failure) => gathered.unasked.push(Unasked {
                plugin: one.plugin.clone(),
                node: one.only.clone(),
                nobody: one.instance.is_empty(),
                failure,
            }),
        }
    }
    Ok(gathered)
}

/// The Secrets with which all was listed, and those with which it was not, each with why.
fn with_secrets(answers: &[Answer]) -> (BTreeSet<String>, BTreeMap<String, String>) {
    let of = |answer: &Answer| answer.secret.clone().map(|secret| (secret, answer.unlisted.clone()));
    let (listed, refused): (Vec<_>, Vec<_>) =
        answers.iter().filter_map(of).partition(|(_, why)| why.is_empty());
    let refused: BTreeMap<_, _> = refused.into_iter().collect();
    let listed = listed.into_iter().map(|(secret, _)| secret).filter(|secret| !refused.contains_key(secret));
    (listed.collect(), refused)
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
async fn chosen(
    session: &Session<'_>,
    kinds: &Kinds,
    (names, list): (&[String], AuditList),
    known: &Known,
) -> Result<Vec<Asked>, Failure> {
    let plugins: Vec<Plugin> = all(&session.wire, kinds, "plugins").await?;
    let instances: Vec<PluginInstance> = all(&session.wire, kinds, "plugininstances").await?;
    let nodes: Vec<Value> = all(&session.wire, kinds, "nodes").await?;
    let lives: BTreeSet<String> = nodes.iter().filter(|node| is_ready(node)).map(name_in).collect();
    let named = |plugin: &Plugin| plugin.metadata.name.clone().unwrap_or_default();
    if let Some(missing) = names.iter().find(|name| !plugins.iter().any(|plugin| named(plugin) == **name)) {
        return Err(Failure::new(Exit::NotFound, format!("plugin/{missing} does not exist")));
    }
    let wanted = plugins.iter().filter(|plugin| names.is_empty() || names.contains(&named(plugin)));
    let asked = |plugin: &Plugin| {
        let (name, scope) = (named(plugin), plugin.spec.controller_scope);
        // A plugin that wants a Secret is not asked without one where it has one.
        let with_secrets = match (list, scope) {
            (AuditList::Snapshots, ControllerScope::Cluster) => {
                readers(&able((&name, list), &instances, &lives), &known.secrets(&name))
            }
            (AuditList::Snapshots, ControllerScope::Node) | (AuditList::Volumes, _) => Vec::new(),
        };
        if !with_secrets.is_empty() {
            return with_secrets;
        }
        to_ask((&name, list), scope, (&instances, &lives), known.homes(&name))
    };
    Ok(wanted.flat_map(asked).collect())
}

fn name_in(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// Whether a Node is heard of: what its daemon said last of an instance stands, whatever has become of both.
fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == READY && condition["status"] == "True")
}

fn can(instance: &PluginInstance, word: &str) -> bool {
    instance.status.iter().flat_map(|status| &status.capabilities).any(|can| can == word)
}

fn name(instance: &PluginInstance) -> String {
    instance.metadata.name.clone().unwrap_or_default()
}

/// The instances that list, in order of their nodes.
fn able<'a>(
    (plugin, list): (&str, AuditList),
    instances: &'a [PluginInstance],
    lives: &BTreeSet<String>,
) -> Vec<&'a PluginInstance> {
    let able = |instance: &&PluginInstance| {
        instance.spec.plugin == plugin
            && instance.spec.role.controller()
            && lives.contains(&instance.spec.node_name)
            && instance.status.as_ref().is_some_and(|status| is_true(&status.conditions, READY))
            && can(instance, capability(list))
    };
    let mut able: Vec<_> = instances.iter().filter(able).collect();
    able.sort_by_key(|instance| (instance.spec.node_name.clone(), name(instance)));
    able
}

/// Those that are asked for snapshots with the Secrets that there are, each by a node that may read it.
fn readers(able: &[&PluginInstance], secrets: &BTreeMap<String, BTreeSet<String>>) -> Vec<Asked> {
    let at = |node: &String| able.iter().find(|instance| instance.spec.node_name == *node);
    let (mut nodes, mut all) = (BTreeSet::new(), Vec::new());
    for readers in secrets.values() {
        if readers.is_disjoint(&nodes)
            && let Some(instance) = readers.iter().find_map(at)
        {
            nodes.insert(instance.spec.node_name.clone());
            let plugin = instance.spec.plugin.clone();
            all.push(Asked { plugin, instance: name(instance), only: String::new() });
        }
    }
    all
}

fn to_ask(
    (plugin, list): (&str, AuditList),
    scope: ControllerScope,
    (instances, lives): (&[PluginInstance], &BTreeSet<String>),
    mut homes: BTreeSet<String>,
) -> Vec<Asked> {
    let lists = capability(list);
    let its = |instance: &&PluginInstance| instance.spec.plugin == plugin && instance.spec.role.controller();
    let its: Vec<_> = instances.iter().filter(its).collect();
    // Many take snapshots and list none: that is no fault of anything.
    if list == AuditList::Snapshots && !its.iter().any(|instance| can(instance, lists)) {
        return Vec::new();
    }
    let mut able = able((plugin, list), instances, lives);
    let asked = |instance: &str, only: &str| Asked {
        plugin: plugin.to_owned(),
        instance: instance.to_owned(),
        only: only.to_owned(),
    };
    if scope != ControllerScope::Node {
        return vec![asked(&able.first().map(|instance| name(instance)).unwrap_or_default(), "")];
    }
    able.dedup_by_key(|instance| instance.spec.node_name.clone());
    // A node that is away, or whose driver is, has volumes all the same.
    homes.extend(its.iter().map(|instance| instance.spec.node_name.clone()));
    let there = |node: &String| able.iter().any(|instance| instance.spec.node_name == *node);
    homes.retain(|node| !there(node));
    let all = able.iter().map(|instance| asked(&name(instance), &instance.spec.node_name));
    let all: Vec<_> = all.chain(homes.iter().map(|node| asked("", node))).collect();
    if all.is_empty() { vec![asked("", "")] } else { all }
}

/// All that one instance lists, page by page. What it is asked is taken back in the end.
async fn answers(
    wire: &Wire,
    kinds: &Kinds,
    asked: &Asked,
    list: AuditList,
    deadline: &Deadline,
) -> Result<Vec<Answer>, Failure> {
    let plugin = &asked.plugin;
    if asked.instance.is_empty() {
        let lists = capability(list).trim_start_matches("controller/");
        let (of, there) = match asked.only.as_str() {
            "" => (String::new(), "no instance of it that is ready, on a node that is,".to_owned()),
            node => (
                format!(" of node {node}"),
                "no instance of it is ready there, on a node that is, and".to_owned(),
            ),
        };
        let why = format!("{there} lists {list} ({lists})");
        return Err(Failure::failed(format!("plugin/{plugin} was not asked for {list}{of}")).because(why));
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
    let mut request = AuditRequest { id, list, starting_token: String::new() };
    let mut answers = Vec::new();
    let unlisted = || Failure::failed(format!("the {list} of plugin/{plugin} were not listed"));
    let outcome = loop {
        match deadline.limit(page(wire, &item, &request)).await {
            None => {
                let what = format!("plugin/{plugin} did not answer in time, asked for its {list}");
                let advice = format!("wharfline describe plugininstance/{}", asked.instance);
                break Err(Failure::new(Exit::TimedOut, what).try_this(advice));
            }
            Some(Err(failure)) => break Err(failure),
            Some(Ok(answer)) if !answer.message.is_empty() => {
                break Err(unlisted().because(answer.message));
            }
            Some(Ok(answer)) if answer.list != list => {
                let why = "the daemon of its node is of an older version, which does not list them";
                break Err(unlisted().because(why));
            }
            Some(Ok(answer)) => {
                let next = answer.next_token.clone();
                answers.push(answer);
                if next.is_empty() {
                    break Ok(answers);
                }
                request.starting_token = next;
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
        let question =
            json!({ "id": request.id, "list": request.list, "startingToken": request.starting_token });
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
    answer.is_for(request).then_some(answer)
}

pub(super) async fn all<T: DeserializeOwned>(
    wire: &Wire,
    kinds: &Kinds,
    plural: &str,
) -> Result<Vec<T>, Failure> {
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

pub(super) async fn known(session: &Session<'_>, kinds: &Kinds) -> Result<Known, Failure> {
    let wire = &session.wire;
    Ok(Known {
        volumes: all(wire, kinds, "volumes").await?,
        snapshots: all(wire, kinds, "snapshots").await?,
        attachments: all(wire, kinds, "volumeattachments").await?,
        agents: all(wire, kinds, "nodeagents").await?,
    })
}

/// Has the server say whether it would take an object.
pub(super) async fn tried(
    session: &Session<'_>,
    kinds: &Kinds,
    plural: &str,
    object: &Value,
) -> Result<(), Failure> {
    let collection = kinds.find(plural)?.collection(object["metadata"]["namespace"].as_str());
    let path = format!("{collection}?dryRun=All");
    session.wire.send(Method::POST, &path, Some((content::JSON, object)), Form::Object).await.map(drop)
}

/// Makes an object, or only tries, and says so.
pub(super) async fn make(
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

/// A name for the object of a handle, as long as it is free: nodes that know their own alone may have one handle each.
pub(super) fn free_name(handle: &str, node: &str, taken: &BTreeSet<String>) -> String {
    let name = name_of(handle);
    if node.is_empty() || !taken.contains(&name) { name } else { format!("{name}-{node}") }
}

/// A name for the object of a handle: the handle where it can be one, else what is left of it, and something that tells it from others.
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

/// The list that has one that is looked for: of several, the one of the node that is named.
///
/// # Errors
/// When several have one, and none is named; or a node is, and all nodes have the same.
pub(super) fn the_one<T>(
    mut lists: Vec<Listed<T>>,
    (handle, node): (&str, Option<&String>),
    is_it: impl Fn(&T) -> bool,
) -> Result<Option<Listed<T>>, Failure> {
    lists.retain(|list| list.entries.iter().any(&is_it));
    if let Some(node) = node {
        if let Some(list) = lists.iter().find(|list| list.node.is_empty()) {
            let what = format!("--node {node}: what plugin/{} has it has for all nodes", list.plugin);
            return Err(Failure::usage(what).try_this("leave out --node"));
        }
        lists.retain(|list| list.node == *node);
    }
    // What all nodes know may have been listed by several of them, each with Secrets of its own.
    if lists.iter().all(|list| list.node.is_empty()) {
        let whole = lists.into_iter().reduce(|mut whole, list| {
            whole.entries.extend(list.entries);
            whole.secrets.extend(list.secrets);
            whole.refused.extend(list.refused);
            whole
        });
        lists = whole.into_iter().collect();
    }
    if lists.len() > 1 {
        let nodes: Vec<_> = lists.iter().map(|list| list.node.as_str()).collect();
        let what = format!("\"{handle}\" is on several nodes: {}", nodes.join(", "));
        return Err(Failure::new(Exit::Conflict, what).try_this("say with --node which one is meant"));
    }
    let mut one = lists.pop();
    if let Some(list) = &mut one {
        list.entries.retain(&is_it);
    }
    Ok(one)
}

/// As a shell takes it for one word, and this program for no flag.
pub(super) fn as_word(handle: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/:@+=,-".contains(c);
    if !handle.is_empty() && !handle.starts_with('-') && handle.chars().all(plain) {
        return handle.to_owned();
    }
    let quoted = handle.replace('\'', r"'\''");
    if handle.starts_with('-') { format!("-- '{quoted}'") } else { format!("'{quoted}'") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::API_VERSION;

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
    fn one_of_several_is_named_by_its_node() {
        let list = |node: &str, handles: &[&'static str]| Listed {
            plugin: "p".to_owned(),
            node: node.to_owned(),
            entries: handles.to_vec(),
            ..Listed::default()
        };
        let find = |node: Option<&str>| {
            let lists = vec![list("a", &["x", "h"]), list("b", &["h"]), list("c", &["y"])];
            let node = node.map(str::to_owned);
            the_one(lists, ("h", node.as_ref()), |one: &&str| *one == "h")
        };
        assert_eq!(find(None).unwrap_err().exit, Exit::Conflict);
        for (node, found) in [("a", true), ("b", true), ("c", false)] {
            let one = find(Some(node)).unwrap();
            assert_eq!(
                one.map(|list| (list.node, list.entries)),
                found.then(|| (node.to_owned(), vec!["h"]))
            );
        }
        let everywhere = || vec![Listed { plugin: "p".to_owned(), entries: vec!["h"], ..Listed::default() }];
        let twice = [everywhere(), everywhere()].concat();
        assert!(the_one(twice, ("h", None), |one: &&str| *one == "h").unwrap().is_some());
        let named = the_one(everywhere(), ("h", Some(&"a".to_owned())), |one: &&str| *one == "h");
        assert_eq!(named.unwrap_err().exit, Exit::Usage);
        let alone = the_one(vec![list("", &["h"])], ("h", None), |one: &&str| *one == "h").unwrap();
        assert!(alone.is_some_and(|list| list.node.is_empty()));
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
    fn the_second_of_a_handle_has_its_nodes_name() {
        let taken = BTreeSet::from(["h".to_owned()]);
        for (handle, node, name) in [("h", "", "h"), ("h", "a", "h-a"), ("i", "a", "i")] {
            assert_eq!(free_name(handle, node, &taken), name);
        }
    }

    const LISTS: &str = "controller/LIST_VOLUMES";

    fn instance(name: &str, node: &str, ready: &str, role: &str, can: &str) -> PluginInstance {
        serde_json::from_value(json!({ "apiVersion": API_VERSION, "kind": "PluginInstance",
            "metadata": { "name": name },
            "spec": { "plugin": "p", "role": role, "nodeName": node, "task": "t",
                "allocation": { "namespace": "n", "name": "a", "uid": "u" } },
            "status": { "capabilities": [can], "conditions": [{ "type": "Ready", "status": ready, "reason": "R",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] } }))
        .unwrap()
    }

    /// Each with a node that may read it, and none is asked without one where there is one.
    #[test]
    fn snapshots_are_asked_for_with_each_secret() {
        let all = [
            instance("i-4", "b", "True", "Monolith", LISTS),
            instance("i-2", "a", "True", "Controller", LISTS),
        ];
        let lives = ["a", "b"].map(str::to_owned).into();
        let able: Vec<_> = able(("p", AuditList::Volumes), &all, &lives);
        let secrets = |nodes: &[(&str, &[&str])]| -> BTreeMap<String, BTreeSet<String>> {
            let of = |(secret, nodes): &(&str, &[&str])| {
                ((*secret).to_owned(), nodes.iter().map(|node| (*node).to_owned()).collect())
            };
            nodes.iter().map(of).collect()
        };
        for (nodes, asked) in [
            (&[][..], &[][..]),
            (&[("k", &["a"][..])], &["i-2"]),
            (&[("k", &["b"])], &["i-4"]),
            (&[("k", &["a", "b"])], &["i-2"]),
            (&[("k", &["b"]), ("l", &["a", "b"])], &["i-4"]),
            (&[("k", &["a"]), ("l", &["b"]), ("m", &["b"])], &["i-2", "i-4"]),
            (&[("l", &["0", "gone"])], &[]),
        ] {
            let names: Vec<_> = readers(&able, &secrets(nodes)).into_iter().map(|one| one.instance).collect();
            assert_eq!(names, asked, "{nodes:?}");
        }
        let answer = |secret: &str, unlisted: &str| Answer {
            secret: Some(secret.to_owned()),
            unlisted: unlisted.to_owned(),
            ..Answer::default()
        };
        // One that breaks off after a part of its list is one that was refused.
        let (listed, refused) = with_secrets(&[answer("k", ""), answer("k", "revoked"), answer("l", "")]);
        assert_eq!(
            (listed, refused),
            (["l".to_owned()].into(), [("k".to_owned(), "revoked".to_owned())].into())
        );
    }

    #[test]
    fn one_instance_is_asked_for_all_or_one_on_each_node() {
        let all = [
            instance("i-4", "b", "True", "Monolith", LISTS),
            instance("i-3", "a", "True", "Controller", LISTS),
            instance("i-2", "a", "True", "Controller", LISTS),
            instance("i-1", "a", "False", "Controller", LISTS),
            instance("i-0", "a", "True", "Node", LISTS),
            instance("i-00", "a", "True", "Controller", "controller/GET_CAPACITY"),
            instance("i-000", "0", "True", "Controller", LISTS), // its node is not heard of
        ];
        let lives = ["a", "b"].map(str::to_owned).into();
        let names = |scope| -> Vec<(String, String)> {
            to_ask(("p", AuditList::Volumes), scope, (&all, &lives), BTreeSet::new())
                .into_iter()
                .map(|one| (one.instance, one.only))
                .collect()
        };
        let text = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(names(ControllerScope::Cluster), [text("i-2", "")]);
        assert_eq!(names(ControllerScope::Node), [text("i-2", "a"), text("i-4", "b"), text("", "0")]);
        let homes = ["a", "gone"].map(str::to_owned).into();
        let asked = to_ask(("p", AuditList::Volumes), ControllerScope::Node, (&all, &lives), homes);
        let unasked: Vec<_> =
            asked.iter().filter(|a| a.instance.is_empty()).map(|a| a.only.as_str()).collect();
        assert_eq!(unasked, ["0", "gone"], "nor is that of a node that has volumes and no instance any more");
        // Who lists no snapshots is not asked for any.
        let snapshots = |can: &str| -> Vec<String> {
            let one = [instance("i", "a", "True", "Controller", can)];
            let asked = to_ask(
                ("p", AuditList::Snapshots),
                ControllerScope::Cluster,
                (&one, &lives),
                BTreeSet::new(),
            );
            asked.into_iter().map(|one| one.instance).collect()
        };
        assert_eq!(snapshots("controller/LIST_SNAPSHOTS"), ["i"]);
        assert_eq!(snapshots("controller/CREATE_DELETE_SNAPSHOT"), Vec::<String>::new());
        assert_eq!(snapshots(LISTS), Vec::<String>::new());
        assert_eq!(
            to_ask(("q", AuditList::Volumes), ControllerScope::Node, (&all, &lives), BTreeSet::new())[0]
                .instance,
            ""
        );
    }
}
