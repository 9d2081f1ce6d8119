//! Which kinds the server serves and how a person names them.
//!
//! Built from aggregated discovery; resolves plural, singular, short and kind names, with or without a group.
//! Never asks the server itself.
use kube::core::discovery::v2::{APIGroupDiscoveryList, APIResourceDiscovery};

use super::failure::{Exit, Failure};

/// One kind as the server serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// API group, empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind in camel case.
    pub kind: String,
    /// Plural name, as paths write it.
    pub plural: String,
    /// Singular name.
    pub singular: String,
    /// Short names.
    pub short_names: Vec<String>,
    /// Whether its objects live in a namespace.
    pub namespaced: bool,
    /// The verbs served.
    pub verbs: Vec<String>,
}

impl Resource {
    /// `group/version`, or the version alone for core.
    pub fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The path of the collection, in all namespaces when none is given.
    pub(crate) fn collection(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let base = format!("{root}/{}", self.api_version());
        match namespace {
            Some(namespace) if self.namespaced => {
                format!("{base}/namespaces/{}/{}", encode(namespace), self.plural)
            }
            _ => format!("{base}/{}", self.plural),
        }
    }

    /// The path of one object.
    pub(crate) fn item(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.collection(Some(namespace)), encode(name))
    }

    /// How messages name an object: `volumeclaim/data`.
    pub(crate) fn label(&self, name: &str) -> String {
        format!("{}/{name}", self.singular)
    }

    /// How `-o name` names an object: `volumeclaim.wharfline.dev/data`.
    pub(crate) fn full_label(&self, name: &str) -> String {
        match self.group.as_str() {
            "" => self.label(name),
            group => format!("{}.{group}/{name}", self.singular),
        }
    }

    fn answers_to(&self, word: &str) -> bool {
        self.plural == word
            || self.singular == word
            || self.kind.to_lowercase() == word
            || self.short_names.iter().any(|short| short == word)
    }
}

/// All kinds served, core first.
#[derive(Debug, Clone, Default)]
pub struct Kinds(Vec<Resource>);

/// Words of everyday speech for kinds of ours whose full names are long.
const EVERYDAY: &[(&str, &str)] = &[
    ("claim", "volumeclaims"),
    ("claims", "volumeclaims"),
    ("class", "volumeclasses"),
    ("classes", "volumeclasses"),
    ("attachment", "volumeattachments"),
    ("attachments", "volumeattachments"),
    ("instance", "plugininstances"),
    ("instances", "plugininstances"),
    ("agent", "nodeagents"),
    ("agents", "nodeagents"),
];

impl Kinds {
    /// The kinds in the order of the given discovery documents.
    pub fn from_discovery(documents: &[APIGroupDiscoveryList]) -> Self {
        let mut kinds = Vec::new();
        for group in documents.iter().flat_map(|document| &document.items) {
            let name = group.metadata.as_ref().and_then(|m| m.name.clone()).unwrap_or_default();
            // The first version is the preferred one.
            for version in group.versions.iter().take(1) {
                let of = (name.as_str(), version.version.as_deref().unwrap_or_default());
                kinds.extend(version.resources.iter().filter_map(|r| resource(of, r)));
            }
        }
        Self(kinds)
    }

    /// Every kind.
    pub fn all(&self) -> &[Resource] {
        &self.0
    }

    /// The kind that a person means by a word such as `vc`, `claims`, `VolumeClaim` or `volumeclaims.wharfline.dev`.
    pub fn find(&self, word: &str) -> Result<&Resource, Failure> {
        let lower = word.to_lowercase();
        let (name, group) = match lower.split_once('.') {
            Some((name, group)) => (name, Some(group)),
            None => (lower.as_str(), None),
        };
        let in_group = |r: &&Resource| match group {
            Some(group) => r.group == group || format!("{}.{}", r.version, r.group) == group,
            None => true,
        };
        let by = |name: &str| self.0.iter().filter(in_group).find(|r| r.answers_to(name));
        let everyday = || EVERYDAY.iter().find(|(said, _)| *said == name).and_then(|(_, meant)| by(meant));
        by(name).or_else(everyday).ok_or_else(|| {
            let failure = Failure::new(Exit::NotFound, format!("the server has no kind \"{word}\""));
            let known = self.0.iter().flat_map(|r| [r.plural.as_str(), r.singular.as_str()]);
            match nearest(name, known) {
                Some(near) => failure.try_this(format!("did you mean {near}?")),
                None => failure.try_this("`wharfline api-resources` lists the kinds"),
            }
        })
    }

    /// The kind of an object by its `apiVersion` and `kind`.
    pub fn of_object(&self, api_version: &str, kind: &str) -> Result<&Resource, Failure> {
        let found = self.0.iter().find(|r| r.kind == kind && r.api_version() == api_version);
        found.ok_or_else(|| {
            let failure = Failure::failed(format!("the server has no kind {kind} in {api_version}"));
            let same_kind = self.0.iter().find(|r| r.kind == kind);
            let known = self.0.iter().map(|r| r.kind.as_str());
            match (same_kind, nearest(kind, known)) {
                (Some(r), _) => failure.try_this(format!("write apiVersion: {}", r.api_version())),
                (None, Some(near)) => failure.try_this(format!("did you mean kind: {near}?")),
                (None, None) => failure.try_this("`wharfline api-resources` lists the kinds"),
            }
        })
    }
}

fn resource((group, version): (&str, &str), found: &APIResourceDiscovery) -> Option<Resource> {
    let plural = found.resource.clone()?;
    let kind = found.response_kind.as_ref().and_then(|k| k.kind.clone())?;
    let singular = found.singular_resource.clone().filter(|s| !s.is_empty());
    Some(Resource {
        group: group.to_owned(),
        version: version.to_owned(),
        singular: singular.unwrap_or_else(|| kind.to_lowercase()),
        kind,
        plural,
        short_names: found.short_names.clone(),
        namespaced: found.scope.as_deref() == Some("Namespaced"),
        verbs: found.verbs.clone(),
    })
}

/// The known word that a mistyped one is closest to, if one is close.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let budget = (word.chars().count() / 3).clamp(1, 3);
    known
        .map(|candidate| (distance(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= budget)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let swap = corner + usize::from(from != *to);
            corner = row[j + 1];
            row[j + 1] = swap.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Percent-encodes one path segment or query value.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            other => {
                let digit = |n: u8| char::from_digit(u32::from(n), 16).unwrap_or('0').to_ascii_uppercase();
                encoded.extend(['%', digit(other >> 4), digit(other & 15)]);
            }
        }
    }
    encoded
}

/// The query string of the given parameters, `?` included, empty without any.
pub(crate) fn query(parameters: &[(&str, &str)]) -> String {
    let pairs: Vec<String> =
        parameters.iter().map(|(key, value)| format!("{key}={}", encode(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Discovery documents with a few kinds, as the server answers them.
    pub(crate) fn discovery() -> (Value, Value) {
        let kind = |plural: &str, kind: &str, short: &str, group: &str, version: &str, scope: &str| {
            json!({
                "resource": plural, "scope": scope, "shortNames": [short], "singularResource": kind.to_lowercase(),
                "responseKind": { "group": group, "version": version, "kind": kind },
                "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
            })
        };
        let ours = |plural, name, short, scope| kind(plural, name, short, "wharfline.dev", "v1alpha1", scope);
        let document = |items: Value| json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items });
        let core = document(json!([{ "metadata": {}, "versions": [{ "version": "v1", "resources": [
            kind("nodes", "Node", "no", "", "v1", "Cluster"),
            kind("events", "Event", "ev", "", "v1", "Namespaced"),
            kind("secrets", "Secret", "", "", "v1", "Namespaced"),
        ] }] }]));
        let groups = document(json!([
            { "metadata": { "name": "events.k8s.io" }, "versions": [{ "version": "v1", "resources": [
                kind("events", "Event", "ev", "events.k8s.io", "v1", "Namespaced"),
            ] }] },
            { "metadata": { "name": "wharfline.dev" }, "versions": [{ "version": "v1alpha1", "resources": [
                ours("plugins", "Plugin", "plug", "Cluster"),
                ours("plugininstances", "PluginInstance", "pi", "Cluster"),
                ours("volumeclaims", "VolumeClaim", "vc", "Namespaced"),
                ours("volumeclasses", "VolumeClass", "vclass", "Cluster"),
                ours("volumes", "Volume", "vol", "Cluster"),
                ours("volumeattachments", "VolumeAttachment", "att", "Cluster"),
                ours("allocations", "Allocation", "alloc", "Namespaced"),
            ] }] },
        ]));
        (core, groups)
    }

    pub(crate) fn kinds() -> Kinds {
        let (core, groups) = discovery();
        Kinds::from_discovery(&[
            serde_json::from_value(core).unwrap(),
            serde_json::from_value(groups).unwrap(),
        ])
    }

    #[test]
    fn people_name_kinds_in_many_ways() {
        let kinds = kinds();
        for (word, wanted) in [
            ("vc", "VolumeClaim"),
            ("claims", "VolumeClaim"),
            ("VolumeClaim", "VolumeClaim"),
            ("volumeclaims.wharfline.dev", "VolumeClaim"),
            ("volumeclaims.v1alpha1.wharfline.dev", "VolumeClaim"),
            ("plugins", "Plugin"),
            ("no", "Node"),
        ] {
            assert_eq!(kinds.find(word).map(|r| r.kind.as_str()), Ok(wanted), "{word}");
        }
        assert_eq!(kinds.find("events").unwrap().group, "");
        assert_eq!(kinds.find("events.events.k8s.io").unwrap().group, "events.k8s.io");
        let failure = kinds.find("volumclaims").unwrap_err();
        assert_eq!(
            (failure.exit, failure.advice.as_deref()),
            (Exit::NotFound, Some("did you mean volumeclaims?"))
        );
        assert!(kinds.find("pods").is_err());
    }

    #[test]
    fn objects_find_their_kind_or_hear_what_to_write() {
        let kinds = kinds();
        assert_eq!(kinds.of_object("wharfline.dev/v1alpha1", "Plugin").unwrap().plural, "plugins");
        for (api_version, kind, advice) in [
            ("wharfline.dev/v1", "Plugin", "write apiVersion: wharfline.dev/v1alpha1"),
            ("wharfline.dev/v1alpha1", "VolumeClaims", "did you mean kind: VolumeClaim?"),
            ("v1", "Pod", "`wharfline api-resources` lists the kinds"),
        ] {
            let failure = kinds.of_object(api_version, kind).unwrap_err();
            assert_eq!(failure.advice.as_deref(), Some(advice));
        }
    }

    #[test]
    fn paths_are_built_and_encoded() {
        let kinds = kinds();
        let claims = kinds.find("vc").unwrap();
        assert_eq!(claims.collection(None), "/apis/wharfline.dev/v1alpha1/volumeclaims");
        assert_eq!(
            claims.item("a/b", "c?d"),
            "/apis/wharfline.dev/v1alpha1/namespaces/a%2Fb/volumeclaims/c%3Fd"
        );
        assert_eq!(kinds.find("no").unwrap().item("default", "n1"), "/api/v1/nodes/n1");
        assert_eq!(
            query(&[("labelSelector", "a=b,c!=d"), ("watch", "true")]),
            "?labelSelector=a%3Db%2Cc%21%3Dd&watch=true"
        );
    }
}
