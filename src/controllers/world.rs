//! Every kind that the controllers watch, how its objects are found, and the caches together.
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::store::Writer;
use kube::{Resource, ResourceExt};

use super::cache::{Cache, Kind};
use super::facts::Found;
use crate::api::allocation::AllocationPhase;
use crate::api::attributes::MODIFIED;
use crate::api::claim::ClaimPhase;
use crate::api::plugin::ControllerScope;
use crate::api::schedule::SCHEDULE;
use crate::api::volume::EXPANDED;
use crate::api::{
    Allocation, AllocationStatus, NodeAgent, Plugin, PluginInstance, Snapshot, SnapshotSchedule, Volume,
    VolumeAttachment, VolumeAttributesClass, VolumeClaim, VolumeClass,
};
use crate::plan::marks::{PLUGIN_NAME, STOPPED};

impl Kind for Plugin {}

impl Kind for PluginInstance {
    fn index(&self) -> Vec<String> {
        let from = &self.spec.allocation;
        vec![
            format!("plugin:{}", self.spec.plugin),
            format!("node:{}", self.spec.node_name),
            format!("allocation:{}/{}", from.namespace, from.name),
        ]
    }
}

impl Kind for VolumeClass {
    fn index(&self) -> Vec<String> {
        vec![format!("plugin:{}", self.spec.plugin)]
    }
}

impl Kind for VolumeAttributesClass {
    fn index(&self) -> Vec<String> {
        vec![format!("plugin:{}", self.spec.plugin)]
    }
}

impl Kind for VolumeClaim {
    fn index(&self) -> Vec<String> {
        let status = self.status.as_ref();
        let mut words = Vec::new();
        let made = status.map(|s| s.volume_name.as_str()).unwrap_or_default();
        for volume in [made, &self.spec.volume_name] {
            if !volume.is_empty() {
                words.push(format!("volume:{volume}"));
            }
        }
        if status.and_then(|s| s.phase) != Some(ClaimPhase::Bound) {
            words.push("unbound".to_owned());
        }
        if let Some(source) = &self.spec.data_source
            && status.and_then(|s| s.phase) != Some(ClaimPhase::Bound)
        {
            let namespace = self.namespace().unwrap_or_default();
            for (word, name) in [("source", &source.claim_name), ("snapshot", &source.snapshot_name)] {
                words.extend((!name.is_empty()).then(|| format!("{word}:{namespace}/{name}")));
            }
        }
        if let Some(source) = self.spec.data_source.as_ref().filter(|source| !source.snapshot_name.is_empty())
        {
            words.push(format!("from:{}/{}", self.namespace().unwrap_or_default(), source.snapshot_name));
        }
        if status.is_some_and(|s| s.conditions.iter().any(|c| c.kind == EXPANDED)) {
            words.push("expanding".to_owned());
        }
        if !self.spec.volume_attributes_class_name.is_empty() {
            words.push(format!("attributes:{}", self.spec.volume_attributes_class_name));
        }
        if status.is_some_and(|s| s.conditions.iter().any(|c| c.kind == MODIFIED)) {
            words.push("modifying".to_owned());
        }
        words
    }
}

impl Kind for Volume {
    fn index(&self) -> Vec<String> {
        let mut words = vec![format!("plugin:{}", self.spec.plugin)];
        words.extend(handle_of(self).map(|handle| handle_word(&self.spec.plugin, handle)));
        if let Some(claim) = &self.spec.claim_ref {
            words.push(format!("claim:{}/{}", namespace_or_default(&claim.namespace), claim.name));
        }
        words.extend(self.unfinished().map(|content| format!("copy:{}", content.uid)));
        if let Some(status) = &self.status {
            words.extend(status.controller.iter().map(|host| format!("host:{}", host.node_name)));
            words.extend(status.holders.iter().map(|h| format!("user:{}", h.allocation.uid)));
            words.extend(status.holders.iter().map(|h| format!("holder:{}", h.node_name)));
        }
        words
    }
}

/// What the plugin knows it by, as soon as that is known.
fn handle_of(volume: &Volume) -> Option<&str> {
    let told = volume.spec.source.told().map(|(handle, _)| handle);
    let made = volume.status.as_ref().map(|s| s.handle.as_str()).filter(|handle| !handle.is_empty());
    told.or(made)
}

/// The words of all that it is to its plugin: what one of them is done to is done to both of two that share it.
pub(crate) fn snapshot_words(snapshot: &Snapshot) -> Vec<String> {
    let mut words: Vec<_> = snapshot.handles().map(|(plugin, handle)| handle_word(plugin, handle)).collect();
    let group = snapshot.handle().filter(|_| snapshot.is_group());
    words.extend(group.map(|(plugin, id)| format!("group:{plugin}/{id}")));
    words
}

/// The word for what is one volume, or one snapshot, to a plugin.
pub(crate) fn handle_word(plugin: &str, handle: &str) -> String {
    format!("handle:{plugin}/{handle}")
}

impl World {
    /// The Volumes of the same plugin and handle as this one, itself left out.
    pub(crate) fn twins(&self, volume: &Volume) -> Vec<Arc<Volume>> {
        let Some(handle) = handle_of(volume) else { return Vec::new() };
        let plugin = &volume.spec.plugin;
        let mut all = self.volumes.by(&handle_word(plugin, handle));
        let (name, home) = (volume.name_any(), volume.spec.source.home());
        all.retain(|other| {
            other.name_any() != name && !self.are_apart(plugin, home, other.spec.source.home())
        });
        all
    }

    /// Whether one handle of a plugin is two things: each is of a node that knows its own alone.
    pub(crate) fn are_apart(&self, plugin: &str, one: Option<&str>, other: Option<&str>) -> bool {
        let alone = |plugin: Arc<Plugin>| plugin.spec.controller_scope == ControllerScope::Node;
        one.zip(other).is_some_and(|(one, other)| one != other)
            && self.plugins.named(plugin).is_some_and(alone)
    }
}

impl Kind for Snapshot {
    fn index(&self) -> Vec<String> {
        let status = self.status.as_ref();
        let namespace = self.namespace().unwrap_or_default();
        let mut words = Vec::new();
        let of = status.and_then(|status| status.of.as_ref());
        match of {
            Some(of) => {
                words.push(format!("plugin:{}", of.plugin));
                words.extend(of.uids().map(|uid| format!("of:{uid}")));
            }
            // It waits for its source.
            None => {
                words.push("unfrozen".to_owned());
                words.push(if self.is_group() {
                    format!("selecting:{namespace}")
                } else {
                    format!("claim:{namespace}/{}", self.spec.source.claim_name)
                });
            }
        }
        let cut = of.filter(|_| self.needs_volume());
        words.extend(cut.into_iter().flat_map(|of| of.uids().map(|uid| format!("cut:{uid}"))));
        words.extend(
            status.and_then(|s| s.controller.as_ref()).map(|host| format!("host:{}", host.node_name)),
        );
        words.extend(snapshot_words(self));
        words.extend(self.labels().get(SCHEDULE).map(|schedule| format!("schedule:{namespace}/{schedule}")));
        words
    }
}

impl Kind for SnapshotSchedule {}

impl Kind for VolumeAttachment {
    fn index(&self) -> Vec<String> {
        let mut words = vec![
            format!("volume:{}", self.spec.volume),
            format!("node:{}", self.spec.node_name),
            format!("node:{}/{}", self.spec.node_name, self.spec.plugin),
            format!("plugin:{}", self.spec.plugin),
        ];
        // What was fenced its node takes from them by itself.
        if self.metadata.deletion_timestamp.is_some() && !self.spec.fenced {
            words.extend(self.spec.allocations.iter().map(|user| closing(user)));
        }
        words
    }
}

/// The word of the attachments that are being taken away, and let in the allocation of this uid.
pub(super) fn closing(user: &str) -> String {
    format!("closing:{user}")
}

impl Kind for Allocation {
    fn index(&self) -> Vec<String> {
        let namespace = self.namespace().unwrap_or_default();
        let mut words: Vec<_> =
            self.spec.volumes.iter().map(|v| format!("claim:{namespace}/{}", v.claim_name)).collect();
        match self.status.as_ref().map(|s| s.node_name.as_str()).filter(|node| !node.is_empty()) {
            Some(node) => {
                words.push(format!("node:{node}"));
                let phase = self.status.as_ref().and_then(|s| s.phase);
                words.extend((phase == Some(AllocationPhase::WaitingVolumes)).then(|| "waiting".to_owned()));
                let unbegun = self.spec.node_name.is_empty()
                    && self.status.as_ref().is_some_and(AllocationStatus::is_unbegun);
                words.extend(unbegun.then(|| "unbegun".to_owned()));
            }
            None => words.push("unplaced".to_owned()),
        }
        let plugins = self.spec.tasks.iter().filter_map(|t| t.csi_plugin.as_ref());
        for plugin in plugins.map(|p| &p.plugin_name) {
            words.push(format!("serves:{plugin}"));
            if self.spec.stop || self.metadata.deletion_timestamp.is_some() {
                words.push(format!("leaving:{plugin}"));
            }
        }
        words.extend(self.annotations().get(PLUGIN_NAME).map(|plugin| format!("of:{plugin}")));
        words
    }
}

impl Kind for NodeAgent {
    fn index(&self) -> Vec<String> {
        let stopped = self.status.as_ref().is_some_and(|s| s.stopped);
        stopped.then(|| "down".to_owned()).into_iter().collect()
    }
}

impl Kind for Node {
    fn index(&self) -> Vec<String> {
        let marked = self.annotations().contains_key(STOPPED);
        marked.then(|| "down".to_owned()).into_iter().collect()
    }
}

impl Kind for Lease {}
impl Kind for Namespace {}
impl Kind for Event {}

impl Kind for SecretMeta {}
impl Kind for ConfigMapMeta {}

/// A Secret without its content, which no controller needs.
pub(crate) type SecretMeta = PartialObjectMeta<Secret>;
/// A ConfigMap without its content.
pub(crate) type ConfigMapMeta = PartialObjectMeta<ConfigMap>;

/// A reference written by a person may leave the namespace out.
pub(crate) fn namespace_or_default(namespace: &str) -> &str {
    if namespace.is_empty() { "default" } else { namespace }
}

macro_rules! world {
    ($($field:ident: $kind:ty, $scope:ident;)*) => {
        /// All caches.
        #[derive(Debug)]
        pub(crate) struct World { $(pub(crate) $field: Cache<$kind>,)* pub(crate) found: Found }

        /// The ends that fill them.
        pub(crate) struct Writers { $(pub(crate) $field: Writer<$kind>,)* }

        impl World {
            /// Empty caches and the ends that fill them.
            pub(crate) fn new() -> (Self, Writers) {
                $(let $field = Cache::<$kind>::new();)*
                (Self { $($field: $field.0,)* found: Found::default() }, Writers { $($field: $field.1,)* })
            }

            /// Asks for a look at every object that this one owned.
            pub(crate) fn owner_gone(&self, uid: &str) {
                let word = format!("owner:{uid}");
                $(self.$field.dependents.add_all(self.$field.names(&word));)*
            }

            /// Asks for a look at an owner that is being deleted, named by an object of this namespace: it may wait for
            /// that one.
            pub(crate) fn dependent_changed(&self, owner: &OwnerReference, namespace: &str) {
                $(if <$kind>::kind(&()) == owner.kind && <$kind>::api_version(&()) == owner.api_version {
                    let namespace = if Scope::$scope == Scope::Namespaced { namespace } else { "" };
                    let name = (namespace.to_owned(), owner.name.clone());
                    if self.$field.get(&name).is_some_and(|o| o.meta().deletion_timestamp.is_some()) {
                        self.$field.dependents.add(name);
                    }
                })*
            }

            /// Whether anything is owned by the object of this uid.
            pub(crate) fn owns_anything(&self, uid: &str) -> bool {
                let word = format!("owner:{uid}");
                $(!self.$field.names(&word).is_empty() ||)* false
            }

            /// What is known of an owner named by an object of this namespace.
            pub(crate) fn owner(&self, owner: &OwnerReference, namespace: &str) -> Owner {
                $(if <$kind>::kind(&()) == owner.kind && <$kind>::api_version(&()) == owner.api_version {
                    let namespace = if Scope::$scope == Scope::Namespaced { namespace } else { "" };
                    let name = (namespace.to_owned(), owner.name.clone());
                    let there = self.$field.get(&name).is_some_and(|o| o.uid().as_deref() == Some(&owner.uid));
                    let within = Some(namespace).filter(|n| !n.is_empty());
                    let path = <$kind>::url_path(&(), within);
                    return if there { Owner::There } else { Owner::NotSeen { path } };
                })*
                Owner::Unknown
            }
        }

        $(impl Cached for $kind {
            fn cache(world: &World) -> &Cache<Self> {
                &world.$field
            }
        })*

        /// Calls a macro with every field.
        macro_rules! for_each_kind {
            ($call:ident) => { $($call!($field);)* };
        }
        pub(crate) use for_each_kind;
    };
}

/// Where objects of a kind live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Cluster,
    Namespaced,
}

/// What the caches know of an object that another names as its owner.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// It is there.
    There,
    /// It is not in the cache; this is where its kind is found.
    NotSeen {
        /// The path of the collection.
        path: String,
    },
    /// A kind that we do not watch.
    Unknown,
}

/// A kind with a cache.
pub(crate) trait Cached: Kind {
    /// Its cache.
    fn cache(world: &World) -> &Cache<Self>;
}

world! {
    plugins: Plugin, Cluster;
    instances: PluginInstance, Cluster;
    classes: VolumeClass, Cluster;
    attributes: VolumeAttributesClass, Cluster;
    claims: VolumeClaim, Namespaced;
    volumes: Volume, Cluster;
    snapshots: Snapshot, Namespaced;
    schedules: SnapshotSchedule, Namespaced;
    attachments: VolumeAttachment, Cluster;
    allocations: Allocation, Namespaced;
    agents: NodeAgent, Cluster;
    nodes: Node, Cluster;
    leases: Lease, Namespaced;
    namespaces: Namespace, Cluster;
    events: Event, Namespaced;
    secrets: SecretMeta, Namespaced;
    config_maps: ConfigMapMeta, Namespaced;
}
