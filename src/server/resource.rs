//! One served resource: a kind's definition with where and how its objects are stored; and the list of all.
use std::sync::Arc;

use serde_json::json;

use super::access::Verb;
use super::route::Part;
use super::schema::Rule;
use super::status::Subject;
use super::{core_kinds, fixed, meta, reviews};
use crate::api::{GROUP, KindDefinition};

/// The prefix of every key that the server writes.
pub(crate) const ROOT: &str = "/wharfline/";

/// What is special about a resource of Kubernetes' own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nature {
    /// Nothing.
    Plain,
    /// Values are sealed before they reach the store.
    Secret,
    /// Its objects are the homes of others.
    Namespace,
    /// Events as core/v1 shows them, which is how they are stored.
    CoreEvent,
    /// Events as events.k8s.io/v1 shows them.
    NewEvent,
    /// Questions that are answered and not stored.
    Review(Review),
    /// The kinds that we serve, as CustomResourceDefinitions: made of the program, not stored.
    Definition,
}

/// What a review asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Review {
    /// SelfSubjectAccessReview: may I do this?
    Access,
    /// SelfSubjectRulesReview: what may I do?
    Rules,
    /// SelfSubjectReview: who am I?
    Subject,
}

/// One resource that the server serves.
pub(crate) struct Resource {
    /// The kind as data.
    pub(crate) kind: KindDefinition,
    /// Its schema, as every write is held against it.
    pub(crate) rule: Rule,
    /// `group/version`.
    pub(crate) api_version: String,
    /// What is special.
    pub(crate) nature: Nature,
    /// Prefix of the keys of all its objects, with the closing slash.
    pub(crate) prefix: String,
    /// Which lane of the watch cache holds its history; resources of one storage share one.
    pub(crate) lane: usize,
}

impl Resource {
    /// The store key of one object.
    pub(crate) fn key(&self, namespace: Option<&str>, name: &str) -> String {
        match namespace {
            Some(namespace) => format!("{}{namespace}/{name}", self.prefix),
            None => format!("{}{name}", self.prefix),
        }
    }

    /// The key prefix of one namespace, or of all.
    pub(crate) fn range(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) => format!("{}{namespace}/", self.prefix),
            None => self.prefix.clone(),
        }
    }

    /// Plural and name, as most errors name an object.
    pub(crate) fn subject(&self, name: &str) -> Subject {
        self.named(self.kind.plural, name)
    }

    /// Kind and name, as `Invalid` errors name an object.
    pub(crate) fn subject_by_kind(&self, name: &str) -> Subject {
        self.named(self.kind.kind, name)
    }

    fn named(&self, kind: &str, name: &str) -> Subject {
        Subject { group: self.kind.group.to_owned(), kind: kind.to_owned(), name: name.to_owned() }
    }

    /// What may be done with its objects by whoever has the right, in the order of discovery.
    pub(crate) fn verbs(&self, part: Part) -> &'static [Verb] {
        use Verb::{Create, Delete, DeleteCollection, Get, List, Patch, Update, Watch};
        match self.nature {
            _ if part == Part::Status && !self.kind.has_status => &[],
            Nature::Definition if part == Part::Status => &[Get],
            _ if part == Part::Status => &[Get, Patch, Update],
            Nature::Definition => &[Get, List, Watch],
            Nature::Review(_) => &[Create],
            Nature::Plain | Nature::Secret | Nature::Namespace | Nature::CoreEvent | Nature::NewEvent => {
                &[Create, Delete, DeleteCollection, Get, List, Patch, Update, Watch]
            }
        }
    }

    /// Whether this is a kind of ours, for which the stricter rules hold.
    pub(crate) fn is_ours(&self) -> bool {
        self.kind.group == GROUP
    }
}

/// Every resource served.
pub(crate) struct Registry {
    all: Vec<Arc<Resource>>,
    lanes: usize,
}

impl Registry {
    /// Our kinds as given, then the core kinds that were not given.
    pub(crate) fn new(ours: Vec<KindDefinition>) -> Self {
        let mut kinds = core_kinds::definitions();
        kinds.push(fixed::definition());
        kinds.extend(reviews::definitions());
        kinds.retain(|core| !ours.iter().any(|own| own.group == core.group && own.plural == core.plural));
        kinds.extend(ours);
        let mut all: Vec<Arc<Resource>> = Vec::new();
        let mut lanes = 0;
        for mut kind in kinds {
            complete(&mut kind);
            let nature = nature(&kind);
            let group = match nature {
                Nature::NewEvent => "core",
                _ if kind.group.is_empty() => "core",
                _ => kind.group,
            };
            let prefix = format!("{ROOT}{group}/{}/", kind.plural);
            let shared = all.iter().find(|known| known.prefix == prefix).map(|known| known.lane);
            let lane = shared.unwrap_or_else(|| {
                lanes += 1;
                lanes - 1
            });
            let (rule, api_version) = (Rule::read(&kind.schema), kind.api_version());
            all.push(Arc::new(Resource { kind, rule, api_version, nature, prefix, lane }));
        }
        Self { all, lanes }
    }

    /// All resources in the order of discovery.
    pub(crate) fn all(&self) -> &[Arc<Resource>] {
        &self.all
    }

    /// How many lanes the watch cache needs.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    /// The resource served at this place.
    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let here = |r: &&Arc<Resource>| {
            r.kind.group == group && r.kind.version == version && r.kind.plural == plural
        };
        self.all.iter().find(here)
    }

    /// The resource of namespaces.
    pub(crate) fn namespaces(&self) -> Option<&Arc<Resource>> {
        self.all.iter().find(|resource| resource.nature == Nature::Namespace)
    }

    /// The resource of nodes.
    pub(crate) fn nodes(&self) -> Option<&Arc<Resource>> {
        self.find("", "v1", "nodes")
    }

    /// Groups with their versions, core first, then in the order of the resources.
    pub(crate) fn groups(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let mut groups: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
        for resource in &self.all {
            let (group, version) = (resource.kind.group, resource.kind.version);
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, versions)) if versions.contains(&version) => {}
                Some((_, versions)) => versions.push(version),
                None => groups.push((group, vec![version])),
            }
        }
        groups
    }
}

/// Puts what every object has into the schema: the walker and `explain` read it from there.
fn complete(kind: &mut KindDefinition) {
    for field in ["apiVersion", "kind"] {
        kind.schema["properties"][field] = json!({ "type": "string" });
    }
    kind.schema["properties"]["metadata"] = meta::SCHEMA.clone();
}

fn nature(kind: &KindDefinition) -> Nature {
    match (kind.group, kind.plural) {
        ("", "secrets") => Nature::Secret,
        ("", "namespaces") => Nature::Namespace,
        ("", "events") => Nature::CoreEvent,
        ("events.k8s.io", "events") => Nature::NewEvent,
        (fixed::GROUP, fixed::PLURAL) => Nature::Definition,
        (reviews::AUTHORIZATION, "selfsubjectaccessreviews") => Nature::Review(Review::Access),
        (reviews::AUTHORIZATION, "selfsubjectrulesreviews") => Nature::Review(Review::Rules),
        (reviews::AUTHENTICATION, "selfsubjectreviews") => Nature::Review(Review::Subject),
        _ => Nature::Plain,
    }
}
