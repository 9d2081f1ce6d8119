//! Discovery: which groups, versions and resources are served, in the plain and in the aggregated form.
use http::{HeaderMap, header};
use serde_json::{Value, json};

use super::resource::{Registry, Resource};
use super::route::Part;
use super::status::Refusal;

/// Content type of the aggregated form; clients look for its parameters.
pub(crate) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// What may be done with a status.
const OF_STATUS: [&str; 3] = ["get", "patch", "update"];

/// Whether the client asks for the aggregated form.
pub(crate) fn wants_aggregated(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts.flat_map(|accept| accept.split(',')).any(|offer| {
        let mut words = offer.split(';').map(str::trim);
        let wanted = ["g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"];
        words.next() == Some("application/json") && {
            let given: Vec<&str> = words.collect();
            wanted.iter().all(|word| given.contains(word))
        }
    })
}

/// The aggregated form of `/api` (core alone) or `/apis` (all the others).
pub(crate) fn aggregated(registry: &Registry, core: bool) -> Value {
    let groups = registry.groups().into_iter().filter(|(group, _)| group.is_empty() == core);
    let items: Vec<Value> = groups
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let here = in_version(registry, group, version);
                    let resources: Vec<Value> = here.map(aggregated_resource).collect();
                    json!({ "version": version, "resources": resources, "freshness": "Current" })
                })
                .collect();
            json!({ "metadata": { "name": group, "creationTimestamp": null }, "versions": versions })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn in_version<'a>(
    registry: &'a Registry,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Resource> {
    let all = registry.all().iter().map(AsRef::as_ref);
    all.filter(move |r: &&Resource| r.kind.group == group && r.kind.version == version)
}

fn aggregated_resource(resource: &Resource) -> Value {
    let kind = &resource.kind;
    let response = json!({ "group": kind.group, "version": kind.version, "kind": kind.kind });
    let mut entry = json!({
        "resource": kind.plural,
        "responseKind": response,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": verbs(resource),
    });
    if !kind.short_names.is_empty() {
        entry["shortNames"] = json!(kind.short_names);
    }
    if kind.has_status {
        entry["subresources"] = json!([
            { "subresource": "status", "responseKind": response, "verbs": OF_STATUS }
        ]);
    }
    entry
}

fn verbs(resource: &Resource) -> Vec<&'static str> {
    resource.verbs(Part::Main).iter().map(|verb| verb.as_str()).collect()
}

/// `/api` in the plain form.
pub(crate) fn core_versions() -> Value {
    json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] })
}

/// `/apis` in the plain form.
pub(crate) fn groups(registry: &Registry) -> Value {
    let groups = registry.groups().into_iter().filter(|(group, _)| !group.is_empty());
    let groups: Vec<Value> = groups.map(|(group, versions)| group_entry(group, &versions)).collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

/// `/apis/GROUP`.
pub(crate) fn group(registry: &Registry, name: &str) -> Result<Value, Refusal> {
    let found = registry.groups().into_iter().find(|(group, _)| *group == name && !group.is_empty());
    let (group, versions) = found.ok_or_else(Refusal::no_route)?;
    let mut entry = group_entry(group, &versions);
    entry["kind"] = Value::from("APIGroup");
    entry["apiVersion"] = Value::from("v1");
    Ok(entry)
}

fn group_entry(group: &str, versions: &[&str]) -> Value {
    let version =
        |version: &&str| json!({ "groupVersion": format!("{group}/{version}"), "version": version });
    json!({
        "name": group,
        "versions": versions.iter().map(version).collect::<Vec<_>>(),
        "preferredVersion": version(&versions[0]),
    })
}

/// `/api/v1` or `/apis/GROUP/VERSION`.
pub(crate) fn resources(registry: &Registry, group: &str, version: &str) -> Result<Value, Refusal> {
    let mut entries = Vec::new();
    for resource in in_version(registry, group, version) {
        let kind = &resource.kind;
        let mut entry = json!({
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": verbs(resource),
        });
        if !kind.short_names.is_empty() {
            entry["shortNames"] = json!(kind.short_names);
        }
        entries.push(entry);
        if kind.has_status {
            entries.push(json!({
                "name": format!("{}/status", kind.plural),
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": OF_STATUS,
            }));
        }
    }
    if entries.is_empty() {
        return Err(Refusal::no_route());
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": entries,
    }))
}
