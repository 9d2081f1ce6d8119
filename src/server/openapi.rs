//! OpenAPI v3, made once from the same schemas that the server checks with.
//!
//! kubectl needs from it: the kinds by `x-kubernetes-group-version-kind`, a PATCH operation that knows
//! `fieldValidation`, and the schemas for `explain`.
use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::access::Verb;
use super::resource::{Registry, Resource};
use super::route::Part;
use super::seal::hex;
use super::words;

/// One document, ready to be sent.
pub(crate) struct Document {
    /// The JSON.
    pub(crate) bytes: Bytes,
    /// A hash of it, which names this version of it.
    pub(crate) hash: String,
}

/// Every document by its path beneath `/openapi/v3/`, made when the first is asked for.
#[derive(Default)]
pub(crate) struct Documents {
    made: OnceLock<BTreeMap<String, Document>>,
}

impl Documents {
    fn all(&self, registry: &Registry) -> &BTreeMap<String, Document> {
        self.made.get_or_init(|| Self::make(registry))
    }

    fn make(registry: &Registry) -> BTreeMap<String, Document> {
        let mut by_path = BTreeMap::new();
        for (group, versions) in registry.groups() {
            for version in versions {
                let bytes = Bytes::from(document(registry, group, version).to_string());
                let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
                let hash = hex(&digest.as_ref()[..16]).to_uppercase();
                by_path.insert(path_of(group, version), Document { bytes, hash });
            }
        }
        by_path
    }

    /// The list of documents.
    pub(crate) fn index(&self, registry: &Registry) -> Value {
        let paths: Map<String, Value> = self
            .all(registry)
            .iter()
            .map(|(path, document)| {
                let url = format!("/openapi/v3/{path}?hash={}", document.hash);
                (path.clone(), json!({ "serverRelativeURL": url }))
            })
            .collect();
        json!({ "paths": paths })
    }

    /// One document.
    pub(crate) fn get(&self, registry: &Registry, group: &str, version: &str) -> Option<&Document> {
        self.all(registry).get(&path_of(group, version))
    }
}

fn path_of(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

fn document(registry: &Registry, group: &str, version: &str) -> Value {
    let mut schemas = Map::new();
    let mut paths = Map::new();
    for resource in registry.all().iter().filter(|r| r.kind.group == group && r.kind.version == version) {
        let name = schema_name(resource);
        let mut schema = resource.kind.schema.clone();
        words::describe(&mut schema, resource.kind.group, resource.kind.kind);
        schema["x-kubernetes-group-version-kind"] = json!([kind_of(resource)]);
        schemas.insert(format!("{name}List"), list_schema(resource, &name));
        schemas.insert(name, schema);
        paths.extend(operations(resource));
    }
    json!({
        "openapi": "3.0.0",
        "info": { "title": "Wharfline", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

/// A name such as `dev.wharfline.v1alpha1.Volume`.
fn schema_name(resource: &Resource) -> String {
    let group = if resource.kind.group.is_empty() { "core.api.k8s.io" } else { resource.kind.group };
    let mut parts: Vec<&str> = group.split('.').rev().collect();
    parts.extend([resource.kind.version, resource.kind.kind]);
    parts.join(".")
}

fn kind_of(resource: &Resource) -> Value {
    json!({ "group": resource.kind.group, "version": resource.kind.version, "kind": resource.kind.kind })
}

fn list_schema(resource: &Resource, name: &str) -> Value {
    let kind = &resource.kind;
    json!({
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "items": { "type": "array", "items": { "$ref": format!("#/components/schemas/{name}") } },
        },
        "x-kubernetes-group-version-kind": [
            { "group": kind.group, "version": kind.version, "kind": format!("{}List", kind.kind) }
        ],
    })
}

fn operations(resource: &Resource) -> Vec<(String, Value)> {
    let serves = |verb: Verb| resource.verbs(Part::Main).contains(&verb);
    let base = format!("/{}", path_of(resource.kind.group, resource.kind.version));
    let plural = resource.kind.plural;
    let mut paths = Vec::new();
    let collection = if resource.kind.namespaced {
        let over_all = format!("{base}/{plural}");
        paths.push((over_all, json!({ "get": operation(resource, "list", "List", &[]) })));
        format!("{base}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("{base}/{plural}")
    };
    let write = ["dryRun", "fieldManager", "fieldValidation"];
    let place: &[&str] = if resource.kind.namespaced { &["namespace"] } else { &[] };
    let named: Vec<&str> = [place, &["name"]].concat();
    let every = |operations: &[(Verb, &str, Value)]| {
        let served = operations.iter().filter(|(verb, ..)| serves(*verb));
        served.map(|(_, method, operation)| ((*method).to_owned(), operation.clone())).collect::<Map<_, _>>()
    };
    let whole = every(&[
        (Verb::List, "get", operation(resource, "list", "List", &[])),
        (Verb::Create, "post", operation(resource, "post", "", &write)),
        (Verb::DeleteCollection, "delete", operation(resource, "deletecollection", "", &[])),
    ]);
    let mut whole = Value::Object(whole);
    whole["parameters"] = path_parameters(place);
    let single = every(&[
        (Verb::Get, "get", operation(resource, "get", "", &[])),
        (Verb::Update, "put", operation(resource, "put", "", &write)),
        (Verb::Patch, "patch", operation(resource, "patch", "", &[&write[..], &["force"]].concat())),
        (Verb::Delete, "delete", operation(resource, "delete", "", &["dryRun"])),
    ]);
    let named_paths = !single.is_empty();
    let mut single = Value::Object(single);
    single["parameters"] = path_parameters(&named);
    if resource.kind.has_status {
        let mut status = json!({
            "get": operation(resource, "get", "", &[]),
            "put": operation(resource, "put", "", &write),
            "patch": operation(resource, "patch", "", &[&write[..], &["force"]].concat()),
        });
        status["parameters"] = path_parameters(&named);
        paths.push((format!("{collection}/{{name}}/status"), status));
    }
    if named_paths {
        paths.push((format!("{collection}/{{name}}"), single));
    }
    paths.push((collection, whole));
    paths
}

fn path_parameters(names: &[&str]) -> Value {
    let parameter =
        |name: &&str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    names.iter().map(parameter).collect()
}

fn operation(resource: &Resource, action: &str, suffix: &str, queries: &[&str]) -> Value {
    let schema = json!({ "$ref": format!("#/components/schemas/{}{suffix}", schema_name(resource)) });
    let content = json!({ "application/json": { "schema": schema } });
    let parameters: Value = queries
        .iter()
        .map(|name| {
            let kind = if *name == "force" { "boolean" } else { "string" };
            json!({ "name": name, "in": "query", "schema": { "type": kind } })
        })
        .collect();
    let mut operation = json!({
        "responses": { "200": { "description": "OK", "content": content } },
        "parameters": parameters,
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind_of(resource),
    });
    match action {
        "post" | "put" => operation["requestBody"] = json!({ "content": content }),
        "patch" => {
            let any = json!({ "schema": { "type": "object" } });
            operation["requestBody"] = json!({ "content": {
                "application/merge-patch+json": any, "application/json-patch+json": any,
                "application/apply-patch+yaml": any
            } });
        }
        _ => {}
    }
    operation
}
