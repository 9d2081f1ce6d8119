//! The kinds that we serve as CustomResourceDefinitions, for clients that ask whether a kind is there.
//!
//! They are made from the [`KindDefinition`]s of the program and lie in memory under keys like any others, so that get,
//! list and watch read them as they read the store. Nobody can write them: what is served changes with the program alone.
use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::core_kinds::{open, open_object, plain};
use super::resource::ROOT;
use super::status::Refusal;
use crate::api::{Cell, Column, KindDefinition, crd};
use crate::store::{Kv, Page, Rev};

/// The group of CustomResourceDefinitions.
pub(crate) const GROUP: &str = "apiextensions.k8s.io";
/// Their plural.
pub(crate) const PLURAL: &str = "customresourcedefinitions";

/// What a client hears that wants to write one.
pub(crate) const UNCHANGEABLE: &str = "customresourcedefinitions are read-only here: they tell of the kinds that this \
     server was built with, and no other kinds can be added or changed";

/// CustomResourceDefinition as a kind.
pub(crate) fn definition() -> KindDefinition {
    const COLUMNS: &[Column] = &[Column {
        name: "Created At",
        kind: "string",
        wide: false,
        cell: Cell::Path(".metadata.creationTimestamp"),
    }];
    KindDefinition {
        group: GROUP,
        namespaced: false,
        short_names: &["crd", "crds"],
        schema: open(&[("spec", open_object()), ("status", open_object())]),
        columns: COLUMNS,
        ..plain("CustomResourceDefinition", PLURAL, "customresourcedefinition")
    }
}

/// The definitions; their birth is that of the store, which is read when they are first asked for.
pub(crate) struct Fixed {
    manifests: Vec<Value>,
    prefix: String,
    made: OnceCell<Made>,
}

struct Made {
    /// The revision of all of them. A watch from before it may have missed what another build of this program served.
    since: Rev,
    kvs: BTreeMap<Bytes, Kv>,
}

/// When and as what the store was made.
pub(crate) struct Birth {
    /// Its newest revision now.
    pub(crate) rev: Rev,
    /// The uid of its first namespace.
    pub(crate) uid: String,
    /// The time at which that was made.
    pub(crate) time: String,
}

impl Fixed {
    /// Those of the given kinds that are ours, not Kubernetes' own.
    pub(crate) fn of(kinds: &[KindDefinition]) -> Self {
        let ours = kinds.iter().filter(|kind| !kind.group.is_empty() && !kind.group.ends_with(".k8s.io"));
        let manifests = ours.map(crd::manifest).collect();
        Self { manifests, prefix: format!("{ROOT}{GROUP}/{PLURAL}/"), made: OnceCell::new() }
    }

    /// Whether a key or the prefix of keys is of this place.
    pub(crate) fn holds(&self, key: &str) -> bool {
        key.starts_with(&self.prefix)
    }

    async fn made<F>(&self, birth: impl FnOnce() -> F) -> Result<&Made, Refusal>
    where
        F: Future<Output = Result<Birth, Refusal>>,
    {
        let make = async || birth().await.map(|birth| self.make(&birth));
        self.made.get_or_try_init(make).await
    }

    fn make(&self, birth: &Birth) -> Made {
        let one = |manifest: &Value| {
            let object = complete(manifest.clone(), birth);
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let key = Bytes::from(format!("{}{name}", self.prefix));
            let value = Bytes::from(object.to_string());
            let kv = Kv { key: key.clone(), value, create_revision: birth.rev, mod_revision: birth.rev };
            (key, kv)
        };
        Made { since: birth.rev, kvs: self.manifests.iter().map(one).collect() }
    }

    /// One definition by its key.
    pub(crate) async fn get<F>(&self, key: &str, birth: impl FnOnce() -> F) -> Result<Option<Kv>, Refusal>
    where
        F: Future<Output = Result<Birth, Refusal>>,
    {
        Ok(self.made(birth).await?.kvs.get(key.as_bytes()).cloned())
    }

    /// A page of them as of `rev`; they are the same at every revision.
    pub(crate) async fn page<F>(
        &self,
        after: Option<&[u8]>,
        limit: usize,
        (rev, birth): (Rev, impl FnOnce() -> F),
    ) -> Result<Page, Refusal>
    where
        F: Future<Output = Result<Birth, Refusal>>,
    {
        let kvs = &self.made(birth).await?.kvs;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = kvs.range::<[u8], _>((from, Bound::Unbounded)).map(|(_, kv)| kv.clone());
        let kvs: Vec<Kv> = rest.by_ref().take(limit).collect();
        let left = rest.count();
        Ok(Page { kvs, rev, more: left > 0, left: Some(left) })
    }

    /// From which revision on a watch misses nothing.
    pub(crate) async fn since<F>(&self, birth: impl FnOnce() -> F) -> Result<Rev, Refusal>
    where
        F: Future<Output = Result<Birth, Refusal>>,
    {
        self.made(birth).await.map(|made| made.since)
    }
}

/// A definition as Kubernetes shows one that it serves.
fn complete(mut object: Value, birth: &Birth) -> Value {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let hash = digest(&SHA256, format!("{}/{name}", birth.uid).as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_ref()[..16]);
    let uid = uuid::Builder::from_random_bytes(bytes).into_uuid().to_string();
    object["metadata"] =
        json!({ "name": name, "uid": uid, "generation": 1, "creationTimestamp": birth.time });
    object["spec"]["conversion"] = json!({ "strategy": "None" });
    let condition = |kind: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": birth.time,
        })
    };
    object["status"] = json!({
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the kind is served"),
        ],
        "acceptedNames": object["spec"]["names"],
        "storedVersions": [object["spec"]["versions"][0]["name"]],
    });
    object
}
