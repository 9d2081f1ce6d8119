//! Why an object is not where it should be: the chain of causes down to the one that must change first.
//!
//! A pure function from a set of objects to a tree. It reads conditions, rungs and recorded CSI calls, follows the
//! references between objects, and never asks a server or a clock: what it says can be checked in a table.
//!
//! An object is blocked when it waits for something; the first blocked branch is followed down, and the last one is
//! the root cause. Everything else that ends at the same root is blocked by it too.
mod walk;

use std::fmt;

use k8s_openapi::api::core::v1::{Event, Node};

use crate::api::meta::{Call, Time};
use crate::api::{
    Allocation, Plugin, PluginInstance, Snapshot, SnapshotSchedule, Volume, VolumeAttachment, VolumeClaim,
    VolumeClass,
};
use walk::Walk;

/// All objects that can be part of a cause.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    /// Plugins.
    pub plugins: Vec<Plugin>,
    /// Their instances.
    pub instances: Vec<PluginInstance>,
    /// Classes.
    pub classes: Vec<VolumeClass>,
    /// Claims of all namespaces.
    pub claims: Vec<VolumeClaim>,
    /// Volumes.
    pub volumes: Vec<Volume>,
    /// Snapshots of all namespaces.
    pub snapshots: Vec<Snapshot>,
    /// Schedules of snapshots, of all namespaces.
    pub schedules: Vec<SnapshotSchedule>,
    /// Attachments.
    pub attachments: Vec<VolumeAttachment>,
    /// Allocations of all namespaces.
    pub allocations: Vec<Allocation>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// What happened: of it, that a call has no answer yet.
    pub events: Vec<Event>,
}

/// Which events are wanted, as a field selector.
pub const EVENTS: &str = "reason=NoAnswerYet";

/// The kinds that causes run through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A workload.
    Allocation,
    /// A request for storage.
    Claim,
    /// A class of claims.
    Class,
    /// A volume.
    Volume,
    /// A picture of a volume.
    Snapshot,
    /// Pictures by the clock.
    Schedule,
    /// A volume on a node.
    Attachment,
    /// A driver.
    Plugin,
    /// One process of a driver.
    Instance,
    /// A machine.
    Node,
}

impl Kind {
    /// The kind by its name in manifests.
    pub fn of(kind: &str) -> Option<Self> {
        let kinds = [
            ("Allocation", Self::Allocation),
            ("VolumeClaim", Self::Claim),
            ("VolumeClass", Self::Class),
            ("Volume", Self::Volume),
            ("Snapshot", Self::Snapshot),
            ("SnapshotSchedule", Self::Schedule),
            ("VolumeAttachment", Self::Attachment),
            ("Plugin", Self::Plugin),
            ("PluginInstance", Self::Instance),
            ("Node", Self::Node),
        ];
        kinds.into_iter().find(|(name, _)| *name == kind).map(|(_, kind)| kind)
    }

    fn singular(self) -> &'static str {
        match self {
            Self::Allocation => "allocation",
            Self::Claim => "volumeclaim",
            Self::Class => "volumeclass",
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::Schedule => "snapshotschedule",
            Self::Attachment => "volumeattachment",
            Self::Plugin => "plugin",
            Self::Instance => "plugininstance",
            Self::Node => "node",
        }
    }
}

/// One object by its names; the namespace is empty for kinds that have none.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// The kind.
    pub kind: Kind,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Subject {
    /// An object in a namespace.
    pub fn namespaced(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// An object of a kind without namespaces.
    pub fn global(kind: Kind, name: &str) -> Self {
        Self::namespaced(kind, "", name)
    }

    /// The words that name it on a command line where `-n` says `namespace`.
    pub fn words(&self, namespace: &str) -> String {
        if self.namespace.is_empty() || self.namespace == namespace {
            self.to_string()
        } else {
            format!("{self} -n {}", self.namespace)
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.singular(), self.name)
    }
}

/// Whether an object holds others up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is as it should be.
    Fine,
    /// It waits or fails.
    Blocked,
    /// It does not exist.
    Missing,
}

/// One object in the tree, and what it waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    /// The object.
    pub subject: Subject,
    /// Whether it holds others up.
    pub state: State,
    /// One CamelCase word, empty where nobody gave one.
    pub reason: String,
    /// What is to be said of it, without its name.
    pub text: String,
    /// The last CSI call about it that did not end well.
    pub call: Option<Call>,
    /// When it is tried again.
    pub next: Option<Time>,
    /// What a person can do, where its kind and reason do not say it.
    pub hint: String,
    /// What its driver says is wrong with it, though it holds nobody up; mostly empty.
    pub unwell: String,
    /// What it waits for, the nearest cause first.
    pub because: Vec<Branch>,
}

impl Branch {
    fn new(subject: Subject, state: State, text: impl Into<String>) -> Self {
        let (reason, text, hint, unwell) = (String::new(), text.into(), String::new(), String::new());
        Self { subject, state, reason, text, call: None, next: None, hint, unwell, because: Vec::new() }
    }

    /// What a driver says is wrong with it or with what it needs.
    pub fn told_unwell(&self) -> Option<&str> {
        let own = Some(self.unwell.as_str()).filter(|told| !told.is_empty());
        own.or_else(|| self.because.iter().find_map(Self::told_unwell))
    }

    /// Whether it or anything below it holds others up.
    pub fn blocked(&self) -> bool {
        self.state != State::Fine || self.because.iter().any(Branch::blocked)
    }

    /// The way from this object down to the root cause: always the first branch that is blocked.
    pub fn path(&self) -> Vec<&Branch> {
        let mut path = vec![self];
        while let Some(next) = path.last().and_then(|at| at.because.iter().find(|b| b.blocked())) {
            path.push(next);
        }
        path
    }
}

/// What `why` has to say of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The chain of causes.
    pub tree: Branch,
    /// The cause that must change first; none when all is well.
    pub root: Option<Root>,
    /// What else is blocked by the same cause.
    pub also: Vec<Subject>,
}

/// The cause that must change first.
#[derive(Debug, Clone, PartialEq)]
pub struct Root {
    /// The object to look at.
    pub subject: Subject,
    /// One CamelCase word, possibly empty.
    pub reason: String,
    /// One sentence.
    pub text: String,
    /// The last CSI call on the way to it that did not end well.
    pub call: Option<Call>,
    /// When something on the way to it is tried again.
    pub next: Option<Time>,
    /// What a person can do.
    pub advice: String,
}

/// Explains one object, or nothing when it does not exist.
pub fn explain(objects: &Objects, subject: &Subject) -> Option<Explanation> {
    let walk = Walk::new(objects);
    if !walk.exists(subject) {
        return None;
    }
    let tree = walk.branch(subject);
    let root = tree.blocked().then(|| root_of(&tree));
    let also = match &root {
        Some(root) => also_blocked(objects, &walk, root, &tree),
        None => Vec::new(),
    };
    Some(Explanation { tree, root, also })
}

fn root_of(tree: &Branch) -> Root {
    let path = tree.path();
    let last = path[path.len() - 1];
    Root {
        subject: last.subject.clone(),
        reason: last.reason.clone(),
        text: last.text.clone(),
        call: path.iter().rev().find_map(|b| b.call.clone()),
        // What a node does is not tried before that is there again.
        next: path.iter().rev().find_map(|b| b.next).filter(|_| last.subject.kind != Kind::Node),
        advice: advice(last, &path),
    }
}

/// Every workload, claim and volume that ends at the same cause, apart from those on the way to it.
fn also_blocked(objects: &Objects, walk: &Walk<'_>, root: &Root, tree: &Branch) -> Vec<Subject> {
    let shown: Vec<&Subject> = tree.path().into_iter().map(|b| &b.subject).collect();
    let subjects = walk::subjects_of(objects);
    let same_root = |subject: &Subject| {
        let other = walk.branch(subject);
        other.blocked() && other.path().last().is_some_and(|b| b.subject == root.subject)
    };
    let concerned = |s: &Subject| !shown.contains(&s) && *s != root.subject && !walk.runs(s, &root.subject);
    subjects.into_iter().filter(|s| concerned(s) && same_root(s)).collect()
}

fn advice(last: &Branch, path: &[&Branch]) -> String {
    let subject = &last.subject;
    let words = subject.words("");
    // What needs something that was changed is not to be deleted for that, nor what has a claim that goes.
    let changed = |branch: &&&Branch| {
        let told = match branch.subject.kind {
            Kind::Allocation | Kind::Plugin => "InUse",
            Kind::Claim => "BeingDeleted",
            _ => return false,
        };
        branch.reason == told && !branch.hint.is_empty()
    };
    let needed = path.iter().find(changed).filter(|_| last.reason == "InUse");
    if let Some(hint) =
        needed.map(|branch| &branch.hint).into_iter().chain([&last.hint]).find(|hint| !hint.is_empty())
    {
        return hint.clone();
    }
    match (last.state, last.reason.as_str(), subject.kind) {
        (State::Missing, _, Kind::Node) => of_missing_node(&subject.name, path),
        (State::Missing, _, _) => format!("apply a manifest of {words}; what waits goes on by itself"),
        (_, "InUse", _) => format!("`wharfline delete {words}`, or leave it"),
        (_, "WaitingForFirstConsumer", _) => "apply an allocation that uses it".to_owned(),
        (_, "SecretMissing", _) => "create the Secret; the call is then made by itself".to_owned(),
        (_, "SecretUnreadable", _) => {
            "mend what the message says; the call is then made by itself".to_owned()
        }
        (_, "NoFence", _) => "run the command in the message once the node is surely off".to_owned(),
        (_, "HostPathNotAllowed", _) => {
            "allow its directory on that node (`--host-path`, or hostPaths in its file), or name another path in another allocation"
                .to_owned()
        }
        (_, "ForeignMount", _) => "unmount what the message names; it then goes on by itself".to_owned(),
        (_, "MountSilent", _) => {
            "look why its file system does not answer: its driver, its server, its device; it goes on by itself when it does"
                .to_owned()
        }
        (_, "NoPlaceAllowed", _) => {
            "change allowedTopologies of the class, or give its plugin an instance that is there".to_owned()
        }
        (_, "SubPathUnusable", _) => {
            "make that directory in the volume, or delete the allocation and apply it with another subPath".to_owned()
        }
        (_, "NodeStopped", _) => "start its daemon again: `wharfline up`, or `wharfline node` in a cluster".to_owned(),
        (_, "BeingDeleted", Kind::Node) => format!("`wharfline describe {words}`"),
        (_, _, Kind::Node) => {
            format!("start the node daemon on {} or look at its log there", subject.name)
        }
        (_, "NoInstance", Kind::Plugin) => {
            format!("give {words} instances that reach there: `wharfline describe {words}`")
        }
        _ if let Some(words) = of_registered(last) => words,
        _ => {
            let tried = path.iter().any(|b| b.next.is_some());
            let call = path.iter().rev().find_map(|b| b.call.as_ref());
            let describe = format!("`wharfline describe {words}`");
            match (call.and_then(|call| first_of_all(call, last)), tried) {
                (Some(first), true) => format!("{first}; it is tried again by itself; {describe} shows all calls"),
                (Some(first), false) => format!("{first}; {describe} shows all calls"),
                (None, true) => format!("it is tried again by itself; {describe} shows all calls"),
                (None, false) => describe,
            }
        }
    }
}

/// What has to be done where a node is missing. What goes and cannot be deleted by anybody else may be left where it is.
fn of_missing_node(name: &str, path: &[&Branch]) -> String {
    let back = format!(
        "start `wharfline up --node-name {name}` on that machine, or let it join as that (`wharfline node`)"
    );
    let going = |b: &&&Branch| b.text.starts_with("being deleted") && policy(b.subject.kind).is_some();
    match path.iter().rev().find(going) {
        Some(going) => {
            format!("{back}; if it is gone for good, leave what it has: {}", retain(&going.subject))
        }
        None => back,
    }
}

/// The field that says whether the data of an object is kept.
fn policy(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Volume => Some("reclaimPolicy"),
        Kind::Snapshot => Some("deletionPolicy"),
        _ => None,
    }
}

/// The command that keeps what a volume or a snapshot has at its backend.
fn retain(subject: &Subject) -> String {
    let (words, field) = (subject.words(""), policy(subject.kind).unwrap_or_default());
    format!("`wharfline patch {words} --type merge -p '{{\"spec\": {{\"{field}\": \"Retain\"}}}}'`")
}

/// What has to be done about something that was registered, and not as it has to be.
fn of_registered(last: &Branch) -> Option<String> {
    let words = last.subject.words("");
    Some(match (last.reason.as_str(), last.subject.kind) {
        ("SizeUnknown", _) => {
            "say it once in spec.source.existing.capacity of the volume that the message names (`wharfline patch`)".to_owned()
        }
        ("SnapshotNotFound", _) => format!(
            "`wharfline volume audit` tells what its plugin lists; if its handle is wrong, or it is lost for good: `wharfline delete {words}`"
        ),
        ("NodeNotNamed", _) => format!(
            "if it was registered, `wharfline delete {words}`, and apply it with nodeName in its source; if it was made, give its plugin \
             controllerScope Cluster back"
        ),
        _ => return None,
    })
}

/// The same of what ends, or is to, with how it goes without its data.
fn and_how_to_keep(call: &Call, last: &Branch) -> Option<String> {
    Some(match (call.method.as_str(), call.code.as_str()) {
        (
            "DeleteVolume",
            "FAILED_PRECONDITION" | "INVALID_ARGUMENT" | "NOT_FOUND" | "PERMISSION_DENIED" | "UNIMPLEMENTED",
        ) if last.subject.kind == Kind::Volume => {
            format!("mend what the message says; or keep what is at the backend: {}", retain(&last.subject))
        }
        ("DeleteSnapshot", "UNIMPLEMENTED") if last.subject.kind == Kind::Snapshot => {
            format!("mend its driver; or keep what is at the backend: {}", retain(&last.subject))
        }
        ("DeleteSnapshot", "INVALID_ARGUMENT") if last.subject.kind == Kind::Snapshot => format!(
            "by this code it is one of a group, and it is not asked for again before its driver comes anew; or keep what is at \
             the backend: {}",
            retain(&last.subject)
        ),
        ("CreateVolume", "NOT_FOUND") if last.subject.kind == Kind::Volume => format!(
            "what it is filled from may be gone: delete its claim; if it is being deleted, and this stays so: {}",
            retain(&last.subject)
        ),
        _ => return None,
    })
}

/// What has to be done before a call can succeed, where its code says that it will not otherwise.
fn first_of_all(call: &Call, last: &Branch) -> Option<String> {
    if let Some(text) = and_how_to_keep(call, last) {
        return Some(text);
    }
    let name = &last.subject.name;
    let text = match (call.method.as_str(), call.code.as_str()) {
        ("ValidateVolumeCapabilities", "NOT_FOUND") if last.subject.kind == Kind::Volume => format!(
            "if its handle or its node is wrong, `wharfline delete volume/{name}` and register it anew"
        ),
        (
            "ControllerPublishVolume" | "ValidateVolumeCapabilities" | "NodeStageVolume" | "NodePublishVolume",
            "NOT_FOUND",
        ) => {
            "`wharfline volume audit` tells whether its backend has the volume still; where it is lost for good, delete its claim".to_owned()
        }
        ("CreateVolume", "INVALID_ARGUMENT") => {
            "mend what the message says: what is wrong in its class by another class of the same name, what a claim cannot change \
             by another claim"
                .to_owned()
        }
        ("CreateVolume", "OUT_OF_RANGE" | "ALREADY_EXISTS") => {
            "give its claim another size, or put another class of the same name in the place of its own; or delete the claim"
                .to_owned()
        }
        ("CreateSnapshot" | "CreateVolumeGroupSnapshot", "INVALID_ARGUMENT" | "RESOURCE_EXHAUSTED" | "ALREADY_EXISTS") => {
            "mend what the message says; then delete it and make another one".to_owned()
        }
        ("ControllerModifyVolume", "INVALID_ARGUMENT" | "OUT_OF_RANGE") => {
            "name another VolumeAttributesClass in its claim, or that which the volume has".to_owned()
        }
        ("ControllerExpandVolume", "OUT_OF_RANGE" | "INVALID_ARGUMENT") => {
            "ask for another size in resources.requests.storage of its claim: that which it has takes the request back"
                .to_owned()
        }
        ("ControllerExpandVolume", "UNIMPLEMENTED") => {
            "by this code its driver grows no volume: ask for the size that it has in resources.requests.storage of its claim, which takes \
             the request back"
                .to_owned()
        }
        ("NodeExpandVolume", "OUT_OF_RANGE" | "INVALID_ARGUMENT" | "NOT_FOUND") => {
            "mend what the message says: by its code the call is not expected to succeed before; once those who use it on the node are \
             deleted and applied again it is staged anew, and grown then"
                .to_owned()
        }
        ("ControllerExpandVolume", "FAILED_PRECONDITION") => {
            "if its driver grows no volume in use, end those who use it; or ask for the size that it has".to_owned()
        }
        (_, "PERMISSION_DENIED" | "UNAUTHENTICATED") => {
            "give its driver, or the Secret that the call is made with, the right to it".to_owned()
        }
        (_, "UNIMPLEMENTED") => {
            "by this code its driver does not have the call, and is not asked again before it comes anew: `wharfline get allocations \
             -n wharfline-system` lists those that serve plugins; one that is deleted comes anew"
                .to_owned()
        }
        (
            "ControllerPublishVolume" | "NodeStageVolume" | "NodePublishVolume",
            "INVALID_ARGUMENT" | "OUT_OF_RANGE",
        ) => {
            "mend what the message says: by its code the call is not expected to succeed before; an allocation that is deleted and applied \
             again is asked for anew"
                .to_owned()
        }
        (_, "FAILED_PRECONDITION" | "INVALID_ARGUMENT" | "OUT_OF_RANGE" | "ALREADY_EXISTS") => {
            "mend what the message says: by its code the call is not expected to succeed before".to_owned()
        }
        _ => return None,
    };
    Some(text)
}

#[cfg(test)]
mod tests;
